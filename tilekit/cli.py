"""The command line: `python -m tilekit info`, `python -m tilekit bench NAME`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tilekit
from tilekit import bench
from tilekit.bench.environment import DeviceInfo, DriverInfo, device_info, driver_info, version_of, versions
from tilekit.compiler import cache
from tilekit.compiler.kernel import find_nvdisasm
from tilekit.device import Device, cuda_unavailable_reason, default_device, devices
from tilekit.errors import TilekitError

__all__ = ["Info", "Lack", "collect", "main"]

# What compiles kernels for a GPU, and the wheels that bring it, for CUDA 13 or 12. numba-cuda finds it in an installed CUDA
# toolkit too.
_TOOLKIT = {
    "NVVM": ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"),
    "NVRTC": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    "nvJitLink": ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"),
}
_PEERS = {"torch": ("torch",), "triton": ("triton",), "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}


@dataclass(frozen=True, kw_only=True)
class Lack:
    """Something that is not there.

    Attributes:
        what: its name.
        purpose: what it is for.
        remedy: the command that gets it, or what to do.
    """

    what: str
    purpose: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Info:
    """What `info` found.

    Attributes:
        devices: those that can be used, GPUs first.
        default_device: the one that is used where none is named; None if what was asked for is not there.
        default_error: then, why.
        no_gpu: why no GPU can be used; None if one can.
        driver: NVIDIA's driver.
        versions: of tilekit and what it stands on; None for what is not installed.
        toolkit: the versions of the CUDA toolkit's wheels, by part; None for those that are not installed.
        toolkit_folder: an installed CUDA toolkit, if there is one.
        nvdisasm: where it is, if it is.
        peers: the versions of those that benchmarks compare with.
        cache_folder: where compiled kernels are kept; None if they are not.
        cache_entries, cache_bytes: how many there are, and how large they are together.
        missing: what is not there and would be of use.
    """

    devices: tuple[DeviceInfo, ...]
    default_device: str | None
    default_error: str | None
    no_gpu: str | None
    driver: DriverInfo
    versions: dict[str, str | None]
    toolkit: dict[str, str | None]
    toolkit_folder: str | None
    nvdisasm: str | None
    peers: dict[str, str | None]
    cache_folder: str | None
    cache_entries: int
    cache_bytes: int
    missing: tuple[Lack, ...]


def collect() -> Info:
    """Look at what is installed, and at the devices. Starts no work on them, and imports no peer.

    Raises:
        ValueError: an environment variable of tilekit's has a value it cannot have.
    """
    driver, no_gpu = driver_info(), cuda_unavailable_reason()
    default, default_error = None, None
    try:
        default = default_device().label
    except TilekitError as error:
        default_error = str(error)
    found, toolkit, folder, nvdisasm = versions(), _versions(_TOOLKIT), _toolkit_folder(), find_nvdisasm()
    peers = _versions(_PEERS)
    entries, size = _cache_contents()
    cache_folder = cache.folder()
    return Info(
        devices=tuple(map(device_info, devices())),
        default_device=default,
        default_error=default_error,
        no_gpu=no_gpu,
        driver=driver,
        versions=found,
        toolkit=toolkit,
        toolkit_folder=folder,
        nvdisasm=nvdisasm,
        peers=peers,
        cache_folder=None if cache_folder is None else str(cache_folder),
        cache_entries=entries,
        cache_bytes=size,
        missing=_missing(driver, no_gpu, {**found, **peers}, toolkit, folder, nvdisasm),
    )


def _versions(names: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """The version of the first of several distributions that is installed, for each name."""
    return {name: next((v for d in distributions if (v := version_of(d))), None) for name, distributions in names.items()}


def _toolkit_folder() -> str | None:
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), nvcc and str(Path(nvcc).parent.parent), "/usr/local/cuda"]
    return next((place for place in places if place and Path(place, "nvvm").is_dir()), None)


def _cache_contents() -> tuple[int, int]:
    """(entries, bytes) of the kernel cache."""
    folder = cache.folder()
    if folder is None or not folder.is_dir():
        return 0, 0
    sizes = []
    for path in folder.glob("*.kernel"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # another process has deleted it
            continue
    return len(sizes), sum(sizes)


def _missing(
    driver: DriverInfo,
    no_gpu: str | None,
    installed: Mapping[str, str | None],
    toolkit: Mapping[str, str | None],
    toolkit_folder: str | None,
    nvdisasm: str | None,
) -> tuple[Lack, ...]:
    extra = "cu12" if (driver.cuda or "").startswith("12.") else "cu13"
    brings_toolkit = f'pip install "numba-cuda[{extra}]"'
    lacks = []
    if no_gpu is not None:
        lacks.append(Lack(what="a GPU", purpose="running kernels at speed; the CPU device runs them all the same", remedy=no_gpu))
    if installed["numba-cuda"] is None:
        lacks.append(Lack(what="numba-cuda", purpose="compiling kernels for GPUs, and running them there", remedy=brings_toolkit))
    parts = [name for name, version in toolkit.items() if version is None]
    if parts and toolkit_folder is None:
        what = f"the CUDA toolkit ({', '.join(parts)})"
        lacks.append(Lack(what=what, purpose="compiling kernels for GPUs", remedy=brings_toolkit))
    if nvdisasm is None:
        lacks.append(
            Lack(
                what="nvdisasm",
                purpose="showing the SASS of compiled kernels",
                remedy='pip install "cuda-toolkit[nvdisasm]==13.*"',
            )
        )
    if find_spec("matplotlib") is None:
        lacks.append(Lack(what="matplotlib", purpose="bench --plot", remedy="pip install matplotlib"))
    for peer, distributions in _PEERS.items():
        if installed[peer] is None:
            package = "cupy-cuda12x" if peer == "cupy" and extra == "cu12" else distributions[0]
            lacks.append(Lack(what=peer, purpose="being compared with in bench, on a GPU", remedy=f"pip install {package}"))
    return tuple(lacks)


def describe(info: Info) -> str:
    """`info` as text."""
    lines = ["Devices"]
    for device in info.devices:
        default = "  (default)" if device.label == info.default_device else ""
        capability = f", compute capability {device.compute_capability}" if device.compute_capability else ""
        memory = f", {_size(device.memory_bytes)} ({_size(device.free_bytes)} free)" if device.memory_bytes else ""
        lines.append(f"  {device.label:8} {device.name}{capability}{memory}{default}")
    if info.default_error is not None:
        lines.append(f"  no default device: {info.default_error}")
    release = "not found"
    if info.driver.release or info.driver.cuda:
        release = f"{info.driver.release or 'unknown release'}, supports CUDA {info.driver.cuda or 'unknown'}"
    lines.append(f"  driver   {release}")
    lines += ["", "Versions"]
    for name, version in {**info.versions, **info.toolkit}.items():
        lines.append(f"  {name:14} {version or 'not installed'}")
    if info.toolkit_folder is not None:
        lines.append(f"  {'CUDA toolkit':14} {info.toolkit_folder}")
    lines.append(f"  {'nvdisasm':14} {info.nvdisasm or 'not found'}")
    lines.append(f"  {'peers':14} {', '.join(f'{name} {v}' for name, v in info.peers.items() if v) or 'none'}")
    lines += ["", "Kernel cache"]
    if info.cache_folder is None:
        lines.append("  off (TILEKIT_CACHE_DIR)")
    else:
        count = "1 entry" if info.cache_entries == 1 else f"{info.cache_entries} entries"
        lines.append(f"  {info.cache_folder}: {count}, {_size(info.cache_bytes)}")
    lines += ["", "Missing"]
    for lack in info.missing:
        lines += [f"  {lack.what}, for {lack.purpose}", f"      {lack.remedy}"]
    if not info.missing:
        lines.append("  nothing")
    return "\n".join(lines)


def _size(nbytes: int) -> str:
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    It is 0, 1 if a benchmark found a wrong result, and 2 (by SystemExit, after a line of text) if something that was asked for
    cannot be done.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(given)
    try:
        if options.command == "info":
            info = collect()
            print(json.dumps(dataclasses.asdict(info), indent=2) if options.json else describe(info))
            return 0
        if options.benchmark is None:
            for name, benchmark in bench.BENCHMARKS.items():
                print(f"{name:10} {benchmark.summary}")
            return 0
        return _bench(options, given)
    except BrokenPipeError:  # whoever reads has seen enough; Python would complain once more as it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TilekitError, ValueError, ImportError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _bench(options: argparse.Namespace, given: Sequence[str]) -> int:
    from tilekit.bench import report

    for path in (options.json, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path} cannot be written: its folder does not exist")
    if options.plot is not None:
        report.check_plot()
    command = f"python -m tilekit {shlex.join(given)}"
    graph = getattr(options, "graph", False)
    asked = bench.Options(device=Device(options.device), n=options.n, rounds=options.rounds, graph=graph, command=command)
    log, handler = logging.getLogger("tilekit.bench"), logging.StreamHandler()  # to stderr, what it is busy with
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        run = bench.run(options.benchmark, asked)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    if run.commit is None:
        run = dataclasses.replace(run, commit=options.commit)
    print(report.table(run))
    if options.json is not None:
        report.save(run, options.json)
    if options.plot is not None:
        report.plot(run, options.plot)
    return 0 if run.all_correct else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tilekit", description="tilekit: GPU kernels on tiles, in Python.")
    parser.add_argument("--version", action="version", version=f"tilekit {tilekit.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="devices, driver, versions, cache, and what is missing")
    info.add_argument("--json", action="store_true", help="as JSON")
    benchmarks = commands.add_parser("bench", help="measure tilekit beside its peers; without a name, list the benchmarks")
    names = benchmarks.add_subparsers(dest="benchmark", metavar="NAME")
    for name, benchmark in bench.BENCHMARKS.items():
        one = names.add_parser(name, help=benchmark.summary, description=benchmark.summary)
        one.add_argument("--n", type=_count, metavar="N", help=f"how many {benchmark.size}, such as 1000 or 2^28")
        one.add_argument(
            "--rounds", type=_count, default=20, metavar="R", help="how many samples of each contestant (default: 20)"
        )
        if benchmark.graph:
            one.add_argument("--graph", action="store_true", help="launch CUDA graphs")
        one.add_argument("--device", metavar="DEVICE", help='such as "cuda:0" or "cpu" (default: the default device)')
        one.add_argument("--json", type=Path, metavar="FILE", help="write the record there, as JSON")
        one.add_argument("--commit", metavar="HASH", help="the commit to record where tilekit does not run from a git checkout")
        one.add_argument(
            "--plot", type=Path, metavar="FILE", help="draw the results there, as .png, .svg or .pdf; needs matplotlib"
        )
    return parser


def _count(text: str) -> int:
    """A count on the command line: `1000000`, `1_000_000`, `2^20`, `2**20`."""
    match = re.fullmatch(r"([\d_]+)(?:(?:\^|\*\*)(\d{1,2}))?", text.strip())
    try:
        value = int(match[1]) ** int(match[2] or 1) if match else 0
    except ValueError:  # underscores alone
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; write 1000000 or 2^20")
    return value
