"""Device memory: how much is used, how much may be, where it comes from; page-locked host memory; arrays that do not fit.

Functions that name no device ask the default one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.device import Device
from tilekit.driver.adapters import CupyAllocator, RmmAllocator, TorchAllocator
from tilekit.driver.protocol import Allocator as Allocator
from tilekit.errors import OutOfMemoryError
from tilekit.ops import DeviceOp
from tilekit.ops.execution import HostJob, Moment, Steps, moments, unwrap
from tilekit.schedule import ExecutionContext
from tilekit.storage import Storage
from tilekit.tensor import Tensor, as_shape

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
    kept = [shelf.content() for shelf in list(where.shelves.values())]
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
        OutOfMemoryError: the system locks no more pages for this process.
        TypeError, ValueError: no shape, or no dtype of tilekit's.
    """
    extents, chosen, where = as_shape(shape), dtypes.as_dtype(dtype), Device(device)
    nbytes = math.prod(extents) * chosen.itemsize
    array = where.driver.pinned.array(nbytes)
    if array is None:
        raise OutOfMemoryError(
            f"the host has no page-locked memory left for {where.label}: {nbytes:,} bytes asked for, "
            f"{where.driver.pinned.used_bytes:,} in use by arrays of memory.pinned. Drop some, or use a plain array",
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


# arrays that do not fit


def stream_chunks(
    work: Callable[[Tensor], Any],
    source: np.ndarray[Any, Any],
    out: np.ndarray[Any, Any] | None = None,
    *,
    chunk_bytes: int = 128 << 20,
    progress: Callable[[int, int], object] | None = None,
) -> DeviceOp[Any]:
    """An op that takes an array through the device in chunks: while one is worked on, the next comes and the last one goes.

        source = np.load("in.npy", mmap_mode="r")
        result = np.lib.format.open_memmap("out.npy", "w+", source.dtype, source.shape)
        memory.stream_chunks(lambda x: saxpy(x.partition(1024), 2.0, x).first().unpartition(), source, result).sync()

    Chunks are cut along axis 0. `work` runs on the op's stream; the copies, through page-locked memory, have two streams of their
    own. The device holds two chunks and their results at a time.

    Args:
        work: is called with each chunk, a new Tensor, in order; gives an op, or a value that is ready (the tensor itself, say).
            It may change the tensor in place.
        source: any array of rank 1 or more, such as an `np.memmap`. It is read while the op runs.
        out: where the results go: an array with as many rows as `source`, and it may be `source`. Each result must be a tensor of
            the shape and dtype of its rows.
        chunk_bytes: how large a chunk of `source` is, at most; at least one row.
        progress: is called with (bytes of `source` that are done, bytes in all) after each chunk, by whoever runs the op.

    Returns:
        The op. Its result is `out`; without `out`, the list of what the work gave, one for each chunk.

    Raises:
        TypeError: `source` or `out` is no NumPy array, or of a dtype that is none of tilekit's.
        ValueError: `source` has rank 0, `out` other rows, or is read-only, or overlaps `source` without being the same view, or
            `chunk_bytes` is not positive. A result that does not fit `out` is one too, when the op runs.
    """
    for name, array in (("source", source), *((("out", out),) if out is not None else ())):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"stream_chunks: {name} is a NumPy array, not {type(array).__name__}")
        if not array.ndim:
            raise ValueError(f"stream_chunks: {name} has rank 0, and so no axis to cut into chunks")
        dtypes.as_dtype(array.dtype)
    if out is not None and len(out) != len(source):
        raise ValueError(f"stream_chunks: source has {len(source)} rows, out has {len(out)}")
    if out is not None and not out.flags.writeable:
        raise ValueError('stream_chunks: out is read-only; open a memmap with mode "r+" or "w+"')
    if out is not None and _overlap(source, out):
        raise ValueError(
            "stream_chunks: out overlaps source and is not the same view of the same memory: rows would be overwritten before "
            "they are read. Pass source itself, or another array"
        )
    if chunk_bytes <= 0:
        raise ValueError(f"stream_chunks: chunk_bytes is {chunk_bytes}: a chunk has at least one byte")
    rows = chunk_bytes // max(1, source.nbytes // max(1, len(source)))
    return _StreamChunks(work, np.asarray(source), None if out is None else np.asarray(out), progress, rows, out)


def _overlap(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays share memory, or are too intricate to tell, and are not the same view of it."""
    if (a.__array_interface__["data"][0], a.strides) == (b.__array_interface__["data"][0], b.strides):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=100_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _StreamChunks(DeviceOp[Any]):
    """An array on its way through the device."""

    def __init__(
        self,
        work: Callable[[Tensor], Any],
        source: np.ndarray[Any, Any],
        out: np.ndarray[Any, Any] | None,
        progress: Callable[[int, int], object] | None,
        rows: int,
        result: Any,
    ) -> None:
        self.work, self.source, self.out, self.progress, self.result = work, source, out, progress, result
        self.rows, self._label = max(1, min(rows, len(source))), "stream_chunks"

    def steps(self, ctx: ExecutionContext) -> Steps:
        """In turn r: chunk r goes to the device, and at once the result of chunk r - 1 from it; then the work on chunk r."""
        source, out, device, rows = self.source, self.out, ctx.device, self.rows
        chunks = [slice(at, min(at + rows, len(source))) for at in range(0, len(source), rows)]
        results: list[Any] = []
        worked: list[Moment] = []  # when the work on each chunk is done
        with device.stream() as coming, device.stream() as going:
            arriving, leaving = ExecutionContext(device, coming), ExecutionContext(device, going)
            for turn in range(len(chunks) + 1 if chunks else 0):
                copies = []
                if turn < len(chunks):
                    part = np.ascontiguousarray(source[chunks[turn]])
                    tensor = Tensor(arriving.allocate(part.nbytes), part.shape, part.dtype)
                    copies.append(partial(_arrive, arriving, tensor, part))
                if turn and out is not None:
                    result, target = results[-1], out[chunks[turn - 1]]
                    if not self._fitting(result, target).is_contiguous:
                        result = yield result.dup().start(ctx)
                    copies.append(partial(_leave, leaving, result, target))
                    results.clear()
                if turn > 1 or turn == len(chunks):  # two chunks are in flight, no more
                    yield [worked[max(0, turn - 2)]]
                job = HostJob(partial(_at_once, copies))
                yield [job]
                job.result()
                if turn and self.progress is not None:
                    if out is None:
                        yield [worked[turn - 1]]
                    self.progress(source[: chunks[turn - 1].stop].nbytes, source.nbytes)
                if turn < len(chunks):
                    made = self.work(tensor)
                    results.append((yield made.start(ctx)) if isinstance(made, DeviceOp) else made)
                    worked.append((ctx.stream, ctx.stream.mark()))
        yield [*worked[-1:], *moments(results)]
        return unwrap(results) if out is None else self.result

    @staticmethod
    def _fitting(made: Any, target: np.ndarray[Any, Any]) -> Tensor:
        """`made`, if it is a tensor that can be copied to `target`."""
        if not isinstance(made, Tensor):
            raise TypeError(f"stream_chunks: the work gave {made!r}, not a tensor, for a chunk that goes to out")
        if made.shape != target.shape or made.dtype != target.dtype:
            raise ValueError(
                f"stream_chunks: the work gave {made.dtype.name} of shape {made.shape} for rows of out that are "
                f"{target.dtype.name} of shape {target.shape}"
            )
        return made


def _storage(tensor: Tensor) -> Storage:
    assert tensor.storage is not None, "what an op made has memory"
    return tensor.storage


def _arrive(ctx: ExecutionContext, tensor: Tensor, source: np.ndarray[Any, Any]) -> None:
    """Submit a copy of `source` to new memory, and block until it has been read, unless it is in page-locked memory."""
    driver, storage = ctx.device.driver, _storage(tensor)
    try:
        if driver.staging is None or driver.staging.is_pinned(source):
            driver.copy_from_host(storage.memory, 0, source, ctx.stream.handle)
        else:
            driver.staging.send_all(storage.memory, 0, source, ctx.stream.handle)
    finally:
        ctx.note((), (storage,))


def _leave(ctx: ExecutionContext, tensor: Tensor, target: np.ndarray[Any, Any]) -> None:
    """Copy a contiguous tensor to `target`, as soon as it is written. Blocks until that is done."""
    driver, storage, offset = ctx.device.driver, _storage(tensor), tensor.offset * tensor.itemsize
    dense = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)
    ctx.acquire((storage,), ())
    try:
        if driver.staging is None or driver.staging.is_pinned(dense):
            driver.copy_to_host(dense, storage.memory, offset, ctx.stream.handle)
            driver.stream_synchronize(ctx.stream.handle)
        else:
            driver.staging.fetch_all(dense, storage.memory, offset, ctx.stream.handle)
    finally:
        ctx.note((storage,), ())
    if dense is not target:
        np.copyto(target, dense)


def _at_once(copies: Sequence[Callable[[], None]]) -> None:
    """Do all of them side by side, each in a thread but the last. Blocks; the first error is raised when all are done."""
    errors: list[BaseException] = []

    def attempt(copy: Callable[[], None]) -> None:
        try:
            copy()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(copy,)) for copy in copies[:-1]]
    for thread in threads:
        thread.start()
    for copy in copies[-1:]:
        attempt(copy)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
