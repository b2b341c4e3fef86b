"""The CUDA driver where there is no GPU: what is looked for, and what is said. `tests/gpu` has the rest."""

from __future__ import annotations

import builtins
import enum
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tilekit._driver.cuda import context as cuda_context
from tilekit._driver.cuda import discovery as cuda_discovery
from tilekit._driver.cuda import errors as cuda_errors
from tilekit.errors import DeviceError


class Code(enum.IntEnum):
    SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115


class Bindings:
    """As much of cuda.bindings.driver as discovery asks: GPUs given as (name, major, minor, pools)."""

    CUdevice_attribute = Attribute
    cuLaunchKernel = cuEventQuery = None

    def __init__(self, *gpus, init=Code.SUCCESS):
        self.gpus, self.init = gpus, init

    def cuInit(self, flags):
        if isinstance(self.init, Exception):
            raise self.init
        return (self.init,)

    def cuDeviceGetCount(self):
        return Code.SUCCESS, len(self.gpus)

    def cuDeviceGet(self, ordinal):
        return Code.SUCCESS, ordinal

    def cuDeviceGetName(self, length, device):
        return Code.SUCCESS, self.gpus[device][0].encode().ljust(length, b"\0")

    def cuDeviceGetAttribute(self, attribute, device):
        return Code.SUCCESS, self.gpus[device][1 + list(Attribute).index(attribute)]

    def cuGetErrorName(self, code):
        return Code.SUCCESS, code.name.encode()

    def cuGetErrorString(self, code):
        return Code.SUCCESS, b"as the driver explains it"


def test_importing_the_driver_imports_nothing_of_cuda():
    program = (
        "import sys, tilekit._driver.cuda.discovery; print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'numba')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_bindings_are_missing(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(cuda_discovery, "importlib", SimpleNamespace(import_module=missing))
    found = cuda_discovery.discover()
    assert found.drivers == []
    assert (
        "cuda-bindings is not installed (No module named 'cuda.bindings.driver'); install it with: "
        'pip install "numba-cuda[cu13]"' in (found.reason)
    )


def test_the_driver_library_is_missing():
    found = cuda_discovery.discover(Bindings(init=RuntimeError("Failed to dlopen libcuda.so\nmore")))
    assert found.reason == (
        "the NVIDIA driver (libcuda) cannot be loaded; install it for your system. Failed to dlopen libcuda.so"
    )


def test_there_is_no_gpu():
    found = cuda_discovery.discover(Bindings(init=Code.CUDA_ERROR_NO_DEVICE))
    assert found.reason.startswith("the NVIDIA driver finds no GPU to use (CUDA_ERROR_NO_DEVICE: as the driver explains it)")
    assert "CUDA_VISIBLE_DEVICES" in found.reason
    assert "finds no GPU" in cuda_discovery.discover(Bindings()).reason


def test_every_gpu_is_too_old_or_lacks_pools():
    found = cuda_discovery.discover(Bindings(("Tesla V100", 7, 0, 1), ("A2", 8, 6, 0)))
    assert found.drivers == []
    assert "cuda:0: Tesla V100 is sm_70; tilekit needs sm_80 (Ampere) or newer; cuda:1: A2 has no" in found.reason


def test_usable_gpus_are_found_beside_others():
    found = cuda_discovery.discover(Bindings(("Tesla V100", 7, 0, 1), ("NVIDIA H200", 9, 0, 1), ("NVIDIA L4", 8, 9, 1)))
    assert found.reason is None
    assert list(found.unusable) == [0]
    assert [(driver.ordinal, driver.name, driver.target, driver.compute_capability) for driver in found.drivers] == [
        (1, "NVIDIA H200", "sm_90a", (9, 0)),
        (2, "NVIDIA L4", "sm_89", (8, 9)),
    ]
    with pytest.raises(TypeError, match="runs kernels, not Python functions"):
        found.drivers[0].submit(None, builtins.print)


@pytest.mark.parametrize(
    ("capability", "target"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_103a"), ((12, 0), "sm_120")],
)
def test_what_is_compiled_for(capability, target):
    assert cuda_context.target_for(capability) == target


def test_check_gives_values_or_the_drivers_words():
    bindings = Bindings()
    assert cuda_errors.check(bindings, (Code.SUCCESS,)) is None
    assert cuda_errors.check(bindings, (Code.SUCCESS, 5)) == 5
    assert cuda_errors.check(bindings, (Code.SUCCESS, 5, 6)) == (5, 6)
    with pytest.raises(
        DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS: as the driver explains it. A kernel launched earlier"
    ) as caught:
        cuda_errors.check(bindings, (Code.CUDA_ERROR_ILLEGAL_ADDRESS,))
    assert caught.value.code == "CUDA_ERROR_ILLEGAL_ADDRESS"


def test_what_is_gone_with_its_context_needs_no_giving_up():
    bindings = Bindings()
    cuda_errors.given_up(bindings, (Code.SUCCESS,))
    cuda_errors.given_up(bindings, (Code.CUDA_ERROR_ILLEGAL_ADDRESS,))
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE: as the driver explains it"):
        cuda_errors.given_up(bindings, (Code.CUDA_ERROR_NO_DEVICE,))
