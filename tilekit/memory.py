"""Device memory: how much is used, how much may be, where it comes from; page-locked host memory; arrays that do not fit.

Functions that name no device ask the default one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._driver.adapters import CupyAllocator, RmmAllocator, TorchAllocator
from tilekit._driver.ledger import ADDRESSABLE
from tilekit._driver.protocol import Allocator as Allocator
from tilekit._runtime.device import Device
from tilekit._tensor.shapes import as_shape
from tilekit._tensor.streaming import stream_chunks as stream_chunks
from tilekit.errors import OutOfMemoryError

__all__ = [
    "Allocator",
    "MemoryStats",
    "cupy_allocator",
    "is_pinned",
    "limit",
    "pinned",
    "release",
    "reset_peak",
    "rmm_allocator",
    "set_limit",
    "stats",
    "stream_chunks",
    "torch_allocator",
    "use_allocator",
]

Where = Device | str | int | None


@dataclass(frozen=True, kw_only=True)
class MemoryStats:
    """What a device's memory is used for, at one moment.

    Attributes:
        used_bytes: what tensors hold. A tensor that is gone counts until its memory is freed, in the order of its stream.
        peak_used_bytes: the most that was allocated at a time, since the start or `reset_peak`; with what was then kept.
        kept_bytes: small blocks that no tensor holds, kept for the next that asks for one of the same size.
        reserved_bytes: what the device's pool holds, used or not. On a GPU it is one pool for all of the process.
        free_bytes, total_bytes: what the device has; what the pool holds and nobody uses counts as free.
        limit_bytes: what `set_limit` set, or None.
        pinned_bytes: page-locked host memory that arrays of `pinned` hold.
        allocations: how many blocks tensors hold.
    """

    used_bytes: int
    peak_used_bytes: int
    kept_bytes: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int
    limit_bytes: int | None
    pinned_bytes: int
    allocations: int


def stats(device: Where = None) -> MemoryStats:
    """How much memory is used, and how much is left. Does not block."""
    where = Device(device)
    where.collect()
    driver, ledger = where.driver, where.driver.ledger
    kept = [lists.content() for lists in list(where.free_lists.values())]
    free, total = driver.memory_info()
    kept_bytes = sum(nbytes for _, nbytes in kept)
    return MemoryStats(
        used_bytes=ledger.used - kept_bytes,
        peak_used_bytes=ledger.peak,
        kept_bytes=kept_bytes,
        reserved_bytes=driver.reserved_bytes(),
        free_bytes=free,
        total_bytes=total,
        limit_bytes=ledger.limit,
        pinned_bytes=driver.pinned.used_bytes,
        allocations=ledger.blocks - sum(blocks for blocks, _ in kept),
    )


def reset_peak(device: Where = None) -> None:
    """Count `peak_used_bytes` anew from here."""
    Device(device).driver.ledger.reset_peak()


def limit(device: Where = None) -> int | None:
    """How many bytes tilekit may allocate on the device; None if there is no limit."""
    return Device(device).driver.ledger.limit


def set_limit(nbytes: int | None, device: Where = None) -> None:
    """Let tilekit allocate at most `nbytes` on the device; None lifts the limit.

    An allocation that would pass the limit is an OutOfMemoryError, which says what was asked for and what is free. What is
    allocated already stays, even if it is more.

    Raises:
        TypeError, ValueError: `nbytes` is no int, or negative.
    """
    if nbytes is not None:
        if not isinstance(nbytes, (int, np.integer)) or isinstance(nbytes, bool):
            raise TypeError(f"set_limit: the limit is a number of bytes or None, not {nbytes!r}")
        if nbytes < 0:
            raise ValueError(f"set_limit: the limit is negative: {nbytes}")
        nbytes = int(nbytes)
    Device(device).driver.ledger.limit = nbytes


def release(device: Where = None) -> None:
    """Give memory that nobody uses back to the system: what the pool holds, spare blocks, page-locked memory of gone arrays.

    What work still in flight will free comes back at a later call. May wait for the device where page-locked memory is freed.
    """
    Device(device).release()


# page-locked memory


def pinned(shape: int | tuple[int, ...], dtype: Any = dtypes.float32, device: Where = None) -> np.ndarray[Any, Any]:
    """A NumPy array, not initialised, in page-locked memory: a GPU copies from and to it while the host does something else.

    The memory is taken back when the array and all views of it are gone, and no copy uses it any more; it is kept for the next
    array of that size, up to 256 MiB, until `release`. It serves all GPUs. For a CPU device it is plain memory.

    Args:
        shape: its extents.
        dtype: its element type.
        device: whose driver locks the pages.

    Raises:
        OutOfMemoryError: the system locks no more pages for this process; on a CPU device, it has no more memory.
        TypeError, ValueError: no shape, or no dtype of tilekit's.
    """
    extents, chosen, where = as_shape(shape), dtypes.as_dtype(dtype), Device(device)
    nbytes = math.prod(extents) * chosen.itemsize
    try:
        array = where.driver.pinned.array(nbytes) if nbytes < ADDRESSABLE else None
    except MemoryError:
        array = None
    if array is None:
        kind, cure = ("page-locked memory", "a plain array") if where.kind == "cuda" else ("memory", "a smaller array")
        raise OutOfMemoryError(
            f"the host has no {kind} left for {where.label}: {nbytes:,} bytes asked for, "
            f"{where.driver.pinned.used_bytes:,} in use by arrays of memory.pinned. Drop some, or use {cure}",
            requested_bytes=nbytes,
            free_bytes=0,
            total_bytes=where.driver.pinned.used_bytes,
        )
    return array.view(chosen).reshape(extents)


def is_pinned(array: np.ndarray[Any, Any], device: Where = None) -> bool:
    """Whether a GPU copies from and to `array` by itself: it is in page-locked memory, whoever locked it.

    For a CPU device: whether the array, or what it is a view of, was made by `pinned`.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"is_pinned: expected a NumPy array, not {type(array).__name__}")
    driver = Device(device).driver
    if driver.staging is not None:
        return driver.staging.is_pinned(array)
    return driver.pinned.holds(array.__array_interface__["data"][0])


# other libraries' pools


def use_allocator(allocator: Allocator | None, device: Where = None) -> None:
    """Take device memory from `allocator` from now on, so that tilekit shares a pool with another library.

        memory.use_allocator(memory.torch_allocator())

    What is allocated already goes back to where it came from. A block goes back to `allocator` in the order of the stream that
    it was allocated for; if others used it, when they are done.

    Args:
        allocator: has `allocate(nbytes, stream) -> address` and `free(address, nbytes, stream)`, see `Allocator`; None for
            tilekit's own pool.
        device: whose memory.

    Raises:
        TypeError: `allocator` has no such methods.
    """
    for name in ("allocate", "free") if allocator is not None else ():
        if not callable(getattr(allocator, name, None)):
            raise TypeError(f"use_allocator: {allocator!r} has no method {name}; see tilekit.memory.Allocator for what it needs")
    Device(device).use_allocator(allocator)


def torch_allocator(device: Where = None) -> Allocator:
    """torch's caching allocator, for `use_allocator`. Imports torch.

    Raises:
        ImportError: torch is not installed. ValueError: `device` is no GPU.
    """
    return TorchAllocator(_gpu(device, "torch_allocator"))


def cupy_allocator(device: Where = None) -> Allocator:
    """cupy's current allocator, by default its memory pool, for `use_allocator`. Imports cupy.

    Raises:
        ImportError: cupy is not installed. ValueError: `device` is no GPU.
    """
    return CupyAllocator(_gpu(device, "cupy_allocator"))


def rmm_allocator(device: Where = None) -> Allocator:
    """The RMM memory resource that is current for the device, for `use_allocator`. Imports rmm.

    Raises:
        ImportError: rmm is not installed, or it is one that needs cupy to know a stream. ValueError: `device` is no GPU.
    """
    return RmmAllocator(_gpu(device, "rmm_allocator"))


def _gpu(device: Where, what: str) -> int:
    where = Device(device)
    if where.kind != "cuda":
        raise ValueError(f"{what}: that is memory of GPUs, and {where!r} is none")
    return where.ordinal
