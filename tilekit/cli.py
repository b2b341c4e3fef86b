"""The command line: `python -m tilekit info`, `... cache info`, `... tune show`, `... bench NAME`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import tilekit
from tilekit import _native
from tilekit._environment import CpuInfo, DeviceInfo, DriverInfo, cpu_info, device_info, driver_info, version_of, versions
from tilekit._runtime.device import cuda_unavailable_reason, default_device, devices
from tilekit.compiler import cache, toolkit
from tilekit.compiler.kernel import find_nvdisasm
from tilekit.errors import TilekitError
from tilekit.tuning import records

__all__ = ["Info", "Lack", "collect", "main"]

_PEERS = {"torch": ("torch",), "triton": ("triton",), "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}


@dataclass(frozen=True, kw_only=True)
class Lack:
    """Something that is not there.

    Attributes:
        what: its name.
        purpose: what does not work without it, or not as well.
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
        cpu: how kernels run on CPU devices.
        driver: NVIDIA's driver.
        versions: of tilekit and what it stands on; None for what is not installed.
        toolkit: the versions of the CUDA toolkit's wheels, by part; None for those that are not installed.
        toolkit_files: where each part is, by a wheel or otherwise; None for those that are nowhere.
        nvdisasm: where it is, if it is.
        compiled_part: whether tilekit's own part in C was built.
        peers: the versions of those that benchmarks compare with.
        cache_folder: where compiled kernels are kept; None if they are not.
        cache_entries, cache_bytes: how many there are, and how large they are together.
        cache_owner: whose the folder is; None where there is no folder, or no owners.
        cache_refusal: why the folder is not used, with the cure; None if it is.
        missing: what is not there and would be of use.
    """

    devices: tuple[DeviceInfo, ...]
    default_device: str | None
    default_error: str | None
    no_gpu: str | None
    cpu: CpuInfo
    driver: DriverInfo
    versions: dict[str, str | None]
    toolkit: dict[str, str | None]
    toolkit_files: dict[str, str | None]
    nvdisasm: str | None
    compiled_part: bool
    peers: dict[str, str | None]
    cache_folder: str | None
    cache_entries: int
    cache_bytes: int
    cache_owner: str | None
    cache_refusal: str | None
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
    installed, peers = versions(), _versions(_PEERS)
    files = {part.name: toolkit.where_is(part.name) for part in toolkit.PARTS}
    contents = cache.contents()
    nvdisasm, compiled = find_nvdisasm(), _native.compiled is not None
    return Info(
        devices=tuple(map(device_info, devices())),
        default_device=default,
        default_error=default_error,
        no_gpu=no_gpu,
        cpu=cpu_info(),
        driver=driver,
        versions=installed,
        toolkit=_versions({part.name: part.distributions for part in toolkit.PARTS}),
        toolkit_files=files,
        nvdisasm=nvdisasm,
        compiled_part=compiled,
        peers=peers,
        cache_folder=contents.folder,
        cache_entries=contents.entries,
        cache_bytes=contents.bytes,
        cache_owner=contents.owner,
        cache_refusal=contents.refusal,
        missing=_missing(driver, no_gpu, {**installed, **peers}, files, nvdisasm, compiled),
    )


def _versions(names: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """The version of the first of several distributions that is installed, for each name."""
    return {name: next((v for d in distributions if (v := version_of(d))), None) for name, distributions in names.items()}


def _missing(
    driver: DriverInfo,
    no_gpu: str | None,
    installed: Mapping[str, str | None],
    files: Mapping[str, str | None],
    nvdisasm: str | None,
    compiled_part: bool,
) -> tuple[Lack, ...]:
    extra = "cu12" if (driver.cuda or "").startswith("12.") else "cu13"
    brings_toolkit, brings_nvdisasm = f'pip install "numba-cuda[{extra}]"', 'pip install "cuda-toolkit[nvdisasm]==13.*"'
    if platform.system() == "Darwin":
        brings_toolkit = brings_nvdisasm = "there is none for macOS; compile on Linux, with or without a GPU"
    lacks = []
    if driver.release is None and driver.cuda is None:
        purpose = "running kernels on a GPU; they run on the CPU device, and compile for GPUs, all the same"
        lacks.append(Lack(what="NVIDIA's driver", purpose=purpose, remedy=no_gpu or "install it for your system"))
    elif no_gpu is not None:
        lacks.append(Lack(what="a GPU", purpose="more speed than a CPU's; kernels run on the CPU all the same", remedy=no_gpu))
    if installed["numba-cuda"] is None:
        lacks.append(Lack(what="numba-cuda", purpose="compiling kernels for GPUs, and running them there", remedy=brings_toolkit))
    lacks += [
        Lack(what=part.name, purpose=part.purpose, remedy=brings_toolkit) for part in toolkit.PARTS if files[part.name] is None
    ]
    if nvdisasm is None:
        purpose = "the machine code of compiled kernels as text (op.compile(...).sass)"
        lacks.append(Lack(what="nvdisasm", purpose=purpose, remedy=brings_nvdisasm))
    if not compiled_part:
        lacks.append(
            Lack(
                what="tilekit's part in C",
                purpose="launching on a GPU in fewer microseconds; everything works without it",
                remedy="install a C compiler and Python's headers (Debian: apt install gcc python3-dev), then tilekit once more",
            )
        )
    for module, purpose in (("matplotlib", "bench --plot"), ("threadpoolctl", "bench cpu")):
        if find_spec(module) is None:
            lacks.append(Lack(what=module, purpose=purpose, remedy=f"pip install {module}"))
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
    lines += [f"  {line}" for line in _cpu_lines(info.cpu)]
    release = "not found"
    if info.driver.release or info.driver.cuda:
        release = f"{info.driver.release or 'unknown release'}, supports CUDA {info.driver.cuda or 'unknown'}"
    lines.append(f"  driver   {release}")
    lines += ["", "Versions"]
    for name, version in info.versions.items():
        lines.append(f"  {name:14} {version or 'not installed'}")
    for name, file in info.toolkit_files.items():
        lines.append(f"  {name:14} {'not found' if file is None else info.toolkit[name] or file}")
    lines.append(f"  {'nvdisasm':14} {info.nvdisasm or 'not found'}")
    lines.append(f"  {'part in C':14} {'built' if info.compiled_part else 'not built'}")
    lines.append(f"  {'peers':14} {', '.join(f'{name} {v}' for name, v in info.peers.items() if v) or 'none'}")
    kept = _cache_lines(info.cache_folder, info.cache_entries, info.cache_bytes, info.cache_owner, info.cache_refusal)
    lines += ["", "Kernel cache", *(f"  {line}" for line in kept)]
    lines += ["", "Missing"]
    for lack in info.missing:
        lines += [f"  {lack.what}, needed for {lack.purpose}", f"      {lack.remedy}"]
    if not info.missing:
        lines.append("  nothing")
    return "\n".join(lines)


def _cpu_lines(cpu: CpuInfo) -> list[str]:
    how = f"compiled for {cpu.machine}, vectors of {cpu.vector_bytes} bytes; {cpu.threads} thread{'s' * (cpu.threads != 1)}"
    if cpu.interpreted is not None:
        return [f"kernels on the CPU: interpreted ({cpu.interpreted}); without that {how}"]
    left = [f"    interpreted, if they use {', '.join(f'tk.{name}' for name in cpu.not_lowered)}"] if cpu.not_lowered else []
    return [f"kernels on the CPU: {how}", *left]


def _cache_lines(folder: str | None, entries: int, size: int, owner: str | None, refusal: str | None) -> list[str]:
    if folder is None:
        return ["off (TILEKIT_CACHE_DIR, or there is no home folder)"]
    whose = f", {owner}'s" if owner else ""
    line = f"{folder}: {_entries(entries)}, {_size(size)}{whose}"
    return [line] if refusal is None else [f"{line}; not used:", refusal]


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


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
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, bench_parser = _parser()
    try:
        benchmarks = _benchmarks() if "bench" in words else None  # else they need not be there
        if benchmarks is not None:
            benchmarks.add_names(bench_parser)
        options = parser.parse_args(words)
        if options.command == "info":
            info = collect()
            print(json.dumps(dataclasses.asdict(info), indent=2) if options.json else describe(info))
            return 0
        if options.command == "cache":
            return _cache(options)
        if options.command == "tune":
            return _tune(options)
        assert benchmarks is not None
        status: int = benchmarks.execute(options, words)
        return status
    except BrokenPipeError:  # whoever reads has seen enough; Python would complain once more as it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TilekitError, ValueError, ImportError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _cache(options: argparse.Namespace) -> int:
    contents = cache.contents()
    if options.action == "clear":
        removed = cache.clear()
        print(
            f"removed {_entries(removed)}, {_size(contents.bytes)}" if contents.folder else "the cache is off: nothing to remove"
        )
    elif options.json:
        print(json.dumps(dataclasses.asdict(contents), indent=2))
    else:
        lines = _cache_lines(contents.folder, contents.entries, contents.bytes, contents.owner, contents.refusal)
        print("\n".join(lines))
    return 0


def _tune(options: argparse.Namespace) -> int:
    if options.action == "export":
        print(f"{options.file}: {_records(records.export(options.file))}")
    elif options.action == "import":
        print(f"{_records(records.import_file(options.file))} from {options.file}")
    elif options.json:
        print(json.dumps([record.to_json() for record in records.records()], indent=2))
    else:
        known = records.records()
        where = records.folder()
        print("off (TILEKIT_CACHE_DIR, or there is no home folder)" if where is None else f"{where}: {_records(len(known))}")
        for record in known:
            key = record.key
            print(f"{key.kernel}({key.sizes}) on {key.device}, by {key.toolkit}")
            print(f"    {record.us:.1f} us with {record.config!r}, of {len(record.candidates)}")
    return 0


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _benchmarks() -> ModuleType:
    """The command line of the benchmarks, which are no part of the package.

    Those of the checkout that the package runs from come first: the record names its commit, and others may be of another one.
    """
    folder = Path(tilekit.__file__).resolve().parent.parent / "benchmarks"
    if (folder / "tilekit_benchmarks").is_dir():
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    elif find_spec("tilekit_benchmarks") is None:
        raise ModuleNotFoundError(
            "the benchmarks are not installed: they are a distribution of their own, tilekit-cuda-benchmarks; "
            "in a clone of tilekit's repository, pip install ./benchmarks"
        )
    return importlib.import_module("tilekit_benchmarks.command")


def _parser() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser, and the one of `bench`, which the benchmarks complete."""
    parser = argparse.ArgumentParser(prog="python -m tilekit", description="tilekit: GPU kernels on tiles, in Python.")
    parser.add_argument("--version", action="version", version=f"tilekit {tilekit.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="devices, driver, versions, cache, and what is missing")
    info.add_argument("--json", action="store_true", help="as JSON")
    kept = commands.add_parser("cache", help="compiled kernels on disk: what there is, or delete them")
    actions = kept.add_subparsers(dest="action", required=True, metavar="ACTION")
    contents = actions.add_parser("info", help="where they are, how many, how large, whose, and whether they are used")
    contents.add_argument("--json", action="store_true", help="as JSON")
    actions.add_parser("clear", help="delete them; a kernel that is needed again is compiled again")
    tuned = commands.add_parser(
        "tune", help="configurations that autotuned kernels have found: show them, or take them elsewhere"
    )
    actions = tuned.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("show", help="each kernel, its sizes and device, its configuration and time")
    listed.add_argument("--json", action="store_true", help="as JSON")
    for action, does in (("export", "write all of them to a file"), ("import", "keep those of a file that export wrote")):
        actions.add_parser(action, help=does).add_argument("file", type=Path, metavar="FILE")
    benchmarks = commands.add_parser("bench", help="measure tilekit beside its peers; without a name, list the benchmarks")
    return parser, benchmarks
