"""Looking for GPUs through cuda.bindings, which are imported then, and not before."""

from __future__ import annotations

import importlib
from typing import Any

from tilekit._driver.cuda.driver import CudaDriver
from tilekit._driver.cuda.errors import check, failure
from tilekit._driver.discovery import Discovery
from tilekit._driver.protocol import Driver
from tilekit.errors import DeviceError

__all__ = ["discover"]

OLDEST = (8, 0)


def discover(bindings: Any = None) -> Discovery:
    """Look for GPUs. Makes no context.

    Args:
        bindings: the module `cuda.bindings.driver`, or what a test puts in its place; imported by default.
    """
    if bindings is None:
        try:
            bindings = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            return Discovery(
                reason=f'cuda-bindings is not installed ({error}); install it with: pip install "numba-cuda[cu13]" '
                "(numba-cuda[cu12] for drivers of CUDA 12)"
            )
    try:
        (code,) = bindings.cuInit(0)
    except Exception as error:  # what it raises where libcuda is missing differs between versions
        return Discovery(reason=f"the NVIDIA driver (libcuda) cannot be loaded; install it for your system. {_first_line(error)}")
    if code:
        return Discovery(
            reason=f"the NVIDIA driver finds no GPU to use ({failure(bindings, code)}); see what nvidia-smi says, and whether "
            "CUDA_VISIBLE_DEVICES hides it"
        )
    count = int(check(bindings, bindings.cuDeviceGetCount()))
    drivers: list[Driver] = []
    unusable: dict[int, str] = {}
    for ordinal in range(count):
        try:
            driver = CudaDriver(bindings, ordinal, count == 1)
        except DeviceError as error:
            unusable[ordinal] = str(error)
            continue
        capability = driver.compute_capability or (0, 0)
        if capability < OLDEST:
            unusable[ordinal] = f"{driver.name} is {driver.target}; tilekit needs sm_80 (Ampere) or newer"
        elif not driver.pools:
            unusable[ordinal] = f"{driver.name} has no stream-ordered memory pools here (cuMemAllocAsync); tilekit needs them"
        else:
            drivers.append(driver)
    if drivers:
        return Discovery(drivers=drivers, unusable=unusable)
    reasons = "; ".join(f"cuda:{ordinal}: {why}" for ordinal, why in unusable.items())
    return Discovery(reason=reasons or "the NVIDIA driver finds no GPU; CUDA_VISIBLE_DEVICES may hide it", unusable=unusable)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
