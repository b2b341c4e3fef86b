"""What tilekit runs on: versions, devices, the CPU, the driver. Nothing heavier than llvmlite is imported to find out."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import tilekit
from tilekit._runtime.device import Device
from tilekit.settings import load_settings

__all__ = ["CpuInfo", "DeviceInfo", "DriverInfo", "cpu_info", "device_info", "driver_info", "version_of", "versions"]

# The distributions that decide how fast and how right something is.
_BASE = ("numpy", "ml_dtypes", "numba", "numba-cuda", "llvmlite", "cuda-bindings", "cuda-core")


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """The versions of tilekit, Python, and what tilekit stands on; None for what is not installed."""
    own = {"tilekit": tilekit.__version__, "python": platform.python_version()}
    return {**own, **{name: version_of(name) for name in _BASE}}


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A device.

    Attributes:
        label: tilekit's name for it, such as `"cuda:0"`.
        name: its maker's.
        compute_capability: such as `"9.0"`; None on the CPU.
        memory_bytes, free_bytes: how much it has, and how much of that is free now.
    """

    label: str
    name: str
    compute_capability: str | None
    memory_bytes: int
    free_bytes: int


def device_info(device: Device) -> DeviceInfo:
    """What there is to say about `device`."""
    free, total = device.memory_info()
    capability = device.compute_capability
    return DeviceInfo(
        label=device.label,
        name=device.name,
        compute_capability=".".join(map(str, capability[:2])) if capability else None,
        memory_bytes=total,
        free_bytes=free,
    )


@dataclass(frozen=True, kw_only=True)
class CpuInfo:
    """How kernels run on CPU devices.

    Attributes:
        interpreted: the variable for which Python runs them, such as `"TILEKIT_CHECKS=1"`; None if they are compiled.
        machine: what they are compiled for, as LLVM calls it.
        vector_bytes: of a register of it.
        threads: how many run the blocks of a launch at most.
        not_lowered: operations of the tile language that are not compiled: a kernel with one of them is interpreted.
    """

    interpreted: str | None
    machine: str
    vector_bytes: int
    threads: int
    not_lowered: tuple[str, ...]


def cpu_info() -> CpuInfo:
    """How kernels run on CPU devices, and for which CPU they are compiled. Imports llvmlite, which knows it; compiles nothing."""
    from tilekit.compiler.cpu.machine import host
    from tilekit.compiler.cpu.operations import not_lowered
    from tilekit.compiler.cpu.workers import cores

    settings = load_settings()
    interpreted = "TILEKIT_CHECKS=1" if settings.checks else "TILEKIT_CPU=interpreted" if settings.cpu == "interpreted" else None
    machine = host()
    return CpuInfo(
        interpreted=interpreted,
        machine=machine.name,
        vector_bytes=machine.vector_bytes,
        threads=cores(),
        not_lowered=not_lowered(),
    )


@dataclass(frozen=True, kw_only=True)
class DriverInfo:
    """NVIDIA's driver.

    Attributes:
        release: such as `"580.159.04"`; None if there is none, or it does not tell.
        cuda: the latest CUDA that it supports, such as `"13.0"`; None if its library is not there.
    """

    release: str | None
    cuda: str | None


def driver_info() -> DriverInfo:
    """What driver there is. Uses no GPU."""
    return DriverInfo(release=_release(), cuda=_supported_cuda())


def _release(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    try:
        match = re.search(r"^NVRM version:.*?\s(\d+\.\d[\d.]*)\s", proc.read_text(), re.MULTILINE)
        if match:
            return match[1]
    except OSError:
        pass  # not Linux, a container without it, or no driver
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None


def _supported_cuda() -> str | None:
    # The one call that needs neither a context nor a package: it answers also where tilekit's CUDA driver cannot start.
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
