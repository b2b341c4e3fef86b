"""The command line."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tilekit as tk
from tilekit import cli
from tilekit._environment import DriverInfo
from tilekit.compiler import cache_folder
from tilekit.errors import DeviceUnavailableError


def run(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "tilekit", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environ},
        timeout=120,
    )


def rejected(capsys, *arguments):
    """The line of text with which the command line is refused."""
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


# info


def test_info_says_what_is_here(device, capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"{device.label:8} {device.name}" in text
    assert "(default)" in text
    assert tk.__version__ in text
    assert np.__version__ in text
    for heading in ("Devices", "Versions", "Kernel cache", "Missing"):
        assert heading in text.splitlines()


def test_info_as_json(device, capsys):
    assert cli.main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert device.label in [found["label"] for found in info["devices"]]
    assert set(info["versions"]) >= {"tilekit", "python", "numpy", "numba", "numba-cuda", "llvmlite", "cuda-bindings"}
    assert info["cache_folder"] is None  # the tests turn it off
    assert all(set(lack) == {"what", "purpose", "remedy"} for lack in info["missing"])


def test_info_imports_nothing_heavy():
    """But for llvmlite, which says what the CPU is."""
    heavy = "{'numba', 'torch', 'cupy', 'triton', 'matplotlib'}"
    code = f"import sys; from tilekit.cli import main; main(['info']); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_info_says_how_kernels_run_on_the_cpu(capsys, monkeypatch):
    monkeypatch.setenv("TILEKIT_CPU_THREADS", "3")
    cli.main(["info"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  kernels on the CPU: ")]
    assert re.fullmatch(r"  kernels on the CPU: compiled for \S+, vectors of (16|32|64) bytes; 3 threads", line)
    for variable, value in (("TILEKIT_CPU", "interpreted"), ("TILEKIT_CHECKS", "1")):
        monkeypatch.setenv(variable, value)
        cli.main(["info"])
        assert f"kernels on the CPU: interpreted ({variable}={value}); without that compiled for" in capsys.readouterr().out


def test_info_names_operations_that_are_interpreted():
    """There are none."""
    info = cli.collect()
    assert info.cpu.not_lowered == ()
    cpu = cli.dataclasses.replace(info.cpu, not_lowered=("fold", "spindle"))
    assert "  interpreted, if they use tk.fold, tk.spindle\n" in cli.describe(cli.dataclasses.replace(info, cpu=cpu))


def test_info_counts_the_cache(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    cli.main(["info"])
    assert f"{tmp_path / 'kernels'}: 0 entries, 0 B" in capsys.readouterr().out
    fill(tmp_path / "kernels")
    cli.main(["info"])
    assert f"{tmp_path / 'kernels'}: 2 entries, 2.0 KiB" in capsys.readouterr().out


def fill(folder):
    folder.mkdir(mode=0o700)
    for name in (f"{'a' * 64}.kernel", f"{'b' * 64}.kernel", "tmp123.partial", "notes.txt"):
        (folder / name).write_bytes(bytes(1024))


def test_info_without_the_device_that_was_asked_for(capsys, monkeypatch):
    def none():
        raise DeviceUnavailableError("TILEKIT_DEVICE=cuda: no GPU can be used: there is none")

    monkeypatch.setattr(cli, "default_device", none)
    assert cli.main(["info"]) == 0
    assert "no default device: TILEKIT_DEVICE=cuda: no GPU can be used: there is none" in capsys.readouterr().out


def missing(cuda=None, nvvm="/lib/libnvvm.so", compiled_part=True):
    """What lacks on a machine with torch, and of the toolkit with NVVM if with anything; by name."""
    lacks = cli._missing(
        DriverInfo(release=None, cuda=cuda), "no driver", {"numba-cuda": None, "torch": "2", "triton": None, "cupy": None},
        {"NVVM": nvvm, "NVRTC": None, "nvJitLink": None, "CUDA runtime": None, "CUDA headers": None}, None, compiled_part,
    )  # fmt: skip
    return {lack.what: lack for lack in lacks}


def test_info_names_every_missing_part_and_how_to_get_it(monkeypatch):
    monkeypatch.setattr(cli.platform, "system", lambda: "Linux")
    found = missing()
    assert found["NVIDIA's driver"].remedy == "no driver"
    assert "NVVM" not in found
    for part in ("numba-cuda", "NVRTC", "nvJitLink", "CUDA runtime", "CUDA headers"):
        assert found[part].remedy == 'pip install "numba-cuda[cu13]"'
    assert "compiling kernels" in found["NVRTC"].purpose
    assert found["nvdisasm"].remedy == 'pip install "cuda-toolkit[nvdisasm]==13.*"'
    assert found["cupy"].remedy == "pip install cupy-cuda13x"
    assert "torch" not in found
    assert "NVVM" in missing(nvvm=None)
    assert "tilekit's part in C" not in found
    assert "C compiler" in missing(compiled_part=False)["tilekit's part in C"].remedy


def test_info_names_what_benchmarks_need(monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda module: None)
    found = missing()
    assert found["matplotlib"].purpose == "bench --plot"
    assert (found["threadpoolctl"].purpose, found["threadpoolctl"].remedy) == ("bench cpu", "pip install threadpoolctl")


def test_info_names_what_fits_the_driver(monkeypatch):
    monkeypatch.setattr(cli.platform, "system", lambda: "Linux")
    found = missing(cuda="12.8")
    assert found["numba-cuda"].remedy == 'pip install "numba-cuda[cu12]"'
    assert found["cupy"].remedy == "pip install cupy-cuda12x"
    assert found["a GPU"].remedy == "no driver"  # the driver is there


def test_info_recommends_nothing_that_macos_lacks(monkeypatch):
    monkeypatch.setattr(cli.platform, "system", lambda: "Darwin")
    assert "compile on Linux" in missing()["numba-cuda"].remedy
    assert "compile on Linux" in missing()["nvdisasm"].remedy


def test_a_part_is_looked_for_where_the_compiler_looks(monkeypatch):
    """A toolkit folder with NVVM in it says nothing about NVRTC and nvJitLink."""
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="comes with numba-cuda")

    def load(library):
        if library == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError("nowhere")
        return SimpleNamespace(abs_path=f"/toolkit/lib{library}.so")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", load)
    info = cli.collect()
    assert info.toolkit_files["NVVM"] == "/toolkit/libnvvm.so"
    assert info.toolkit_files["nvJitLink"] is None
    assert "nvJitLink" in [lack.what for lack in info.missing]
    assert "nvJitLink      not found" in cli.describe(info)


def test_nothing_missing_is_said_too():
    info = cli.collect()
    assert "Missing\n  nothing" in cli.describe(cli.dataclasses.replace(info, missing=()))


def test_a_wrong_setting_is_one_line():
    done = run("info", TILEKIT_CPU_DEVICES="many")
    assert done.returncode == 2
    assert done.stderr.startswith("python -m tilekit: TILEKIT_CPU_DEVICES='many'")
    assert len(done.stderr.splitlines()) == 1


# cache


def test_cache_info_and_clear(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    fill(tmp_path / "kernels")
    assert cli.main(["cache", "info"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'kernels'}: 2 entries, 2.0 KiB, {cache_folder.owner(tmp_path)}'s\n")
    assert cli.main(["cache", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(tmp_path / "kernels"),
        "entries": 2,
        "bytes": 2048,
        "owner": cache_folder.owner(tmp_path),
        "refusal": None,
    }
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "removed 2 entries, 2.0 KiB\n"
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["notes.txt"]


def test_cache_info_says_why_it_is_not_used(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    fill(tmp_path / "kernels")
    (tmp_path / "kernels").chmod(0o777)
    for command in (["cache", "info"], ["info"]):
        assert cli.main(command) == 0
        text = capsys.readouterr().out
        assert "not used:" in text
        assert f"chmod 700 {tmp_path / 'kernels'}" in text


def test_somebody_elses_cache_is_theirs_to_clear(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    fill(tmp_path / "kernels")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert "theirs to clear" in rejected(capsys, "cache", "clear")


def test_a_cache_that_is_off(capsys):
    assert cli.main(["cache", "info"]) == 0
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "off (TILEKIT_CACHE_DIR, or there is no home folder)",
        "the cache is off: nothing to remove",
    ]


# bench: its own tests are in tests/benchmarks/test_command.py


def test_benchmarks_are_no_part_of_the_package(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tk, "__file__", str(tmp_path / "tilekit" / "__init__.py"))  # installed, not in a checkout
    assert cli.main(["bench"]) == 0  # installed too: the tests have them on the path
    assert "saxpy" in capsys.readouterr().out
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    error = rejected(capsys, "bench", "saxpy")
    assert "pip install ./benchmarks" in error
    assert len(error.splitlines()) == 1
    assert cli.main(["cache", "info"]) == 0


def test_benchmarks_are_found_in_the_checkout():
    code = "import sys; from tilekit.cli import main; main(['info']); print('tilekit_benchmarks' in sys.modules); main(['bench'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, listed = done.stdout.split("\nFalse\n")  # `info` does not import them
    assert listed.startswith("saxpy ")


def test_an_unknown_command_is_refused(capsys):
    assert "invalid choice" in rejected(capsys, "fly")
    assert "COMMAND" in rejected(capsys)


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"tilekit {tk.__version__}\n"
