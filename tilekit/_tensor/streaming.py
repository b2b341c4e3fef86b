"""Arrays that do not fit on a device, taken through it in chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.storage import Storage
from tilekit._tensor.tensor import Tensor
from tilekit.ops import DeviceOp
from tilekit.ops.execution import HostJob, Steps, called_on_host
from tilekit.ops.host_values import Moment, moments, unwrap

__all__ = ["stream_chunks"]


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
            It may run ops.

    Returns:
        The op. Its result is `out`; without `out`, the list of what the work gave, one for each chunk.

    Raises:
        TypeError: `source` or `out` is no NumPy array, or of a dtype that is none of tilekit's; `work` or `progress` cannot be
            called; `chunk_bytes` is no int.
        ValueError: `source` has rank 0, `out` other rows, or is read-only, or overlaps `source` without being the same view, or
            `chunk_bytes` is not positive. A result that does not fit `out` is one too, when the op runs.
    """
    for name, function in (("work", work), *((("progress", progress),) if progress is not None else ())):
        if not callable(function):
            raise TypeError(f"stream_chunks: {name} is a function, not {function!r}")
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
    if not isinstance(chunk_bytes, (int, np.integer)) or isinstance(chunk_bytes, bool):
        raise TypeError(f"stream_chunks: chunk_bytes is a number of bytes, an int, not {chunk_bytes!r}")
    if chunk_bytes <= 0:
        raise ValueError(f"stream_chunks: chunk_bytes is {chunk_bytes}: a chunk has at least one byte")
    rows = int(chunk_bytes) // max(1, source.nbytes // max(1, len(source)))
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
        self.work, self.source, self.target, self.progress, self.result = work, source, out, progress, result
        self.rows, self._label = max(1, min(rows, len(source))), "stream_chunks"

    def steps(self, ctx: ExecutionContext) -> Steps:
        """In turn r: chunk r goes to the device, and at once the result of chunk r - 1 from it; then the work on chunk r."""
        source, out, device, rows = self.source, self.target, ctx.device, self.rows
        chunks = [slice(at, min(at + rows, len(source))) for at in range(0, len(source), rows)]
        results: list[Any] = []
        worked: list[Moment] = []  # when the work on each chunk is done
        errors: list[BaseException] = []  # of copies
        threads: list[threading.Thread] = []  # in which there are copies
        coming, going = device.stream(), device.stream()
        job: HostJob | None = None
        try:
            arriving, leaving = ExecutionContext(device, coming), ExecutionContext(device, going)
            for turn in range(len(chunks) + 1 if chunks else 0):
                copies = []
                if turn < len(chunks):
                    part = np.ascontiguousarray(source[chunks[turn]])
                    tensor = Tensor(arriving.allocate(part.nbytes), part.shape, part.dtype)
                    copies.append(partial(_arrive, arriving, tensor, part))
                if turn and out is not None:
                    result, target = results.pop(), out[chunks[turn - 1]]
                    if (problem := _misfit(result, target)) is not None:
                        raise problem
                    if not result.is_contiguous:
                        result = yield result.dup().start(ctx)
                    copies.append(partial(_leave, leaving, result, target))
                if turn > 1 or turn == len(chunks):  # two chunks are in flight, no more
                    yield [worked[max(0, turn - 2)]]
                job = HostJob(partial(_at_once, copies, errors, threads))
                yield [job]
                if errors:
                    raise errors.pop(0)
                if turn and self.progress is not None:
                    if out is None:
                        yield [worked[turn - 1]]
                    called_on_host(self.progress, source[: chunks[turn - 1].stop].nbytes, source.nbytes)
                if turn < len(chunks):
                    produced = self.work(tensor)
                    results.append((yield produced.start(ctx)) if isinstance(produced, DeviceOp) else produced)
                    worked.append((ctx.stream, ctx.stream.mark()))
            yield [*worked[-1:], *moments(results)]
            return unwrap(results) if out is None else self.result
        finally:
            # Copies that go on without whoever waited for them (a task that was cancelled, a thread that was interrupted) keep
            # the streams, which end with them.
            if (job is None or job.done) and not threads:
                coming.close()
                going.close()
            # An error holds this frame. Without these names the chunks are free as soon as their streams are behind them.
            results = errors = []
            copies = tensor = part = result = produced = job = None  # type: ignore[assignment]


def _misfit(produced: Any, target: np.ndarray[Any, Any]) -> Exception | None:
    """Why `made` cannot be copied to `target`, None if it can. Not raised here: an error holds the frames that it passed."""
    if not isinstance(produced, Tensor):
        return TypeError(f"stream_chunks: the work gave {produced!r}, not a tensor, for a chunk that goes to out")
    if produced.storage is None:
        return TypeError("stream_chunks: the work gave a meta tensor, which has no elements, for a chunk that goes to out")
    if produced.shape != target.shape or produced.dtype != target.dtype:
        return ValueError(
            f"stream_chunks: the work gave {produced.dtype.name} of shape {produced.shape} for rows of out that are "
            f"{target.dtype} of shape {target.shape}"
        )
    return None


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
        del tensor, storage  # an error holds this frame


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
        del tensor, storage
    if dense is not target:
        np.copyto(target, dense)


def _at_once(copies: Sequence[Callable[[], None]], errors: list[BaseException], threads: list[threading.Thread]) -> None:
    """Do all of them side by side, each in a thread but the last. Blocks until all are done; `errors` gets theirs.

    A signal is an error too, and does not wait for the others: `threads` has those that are not done.

    Nothing is raised here: the error would hold what is to hold it, and both the chunks, until the garbage collector comes.
    """

    def attempt(copy: Callable[[], None]) -> bool:
        try:
            copy()
            return True
        except BaseException as error:
            errors.append(error)
            return isinstance(error, Exception)
        finally:
            del copy

    here = copies[-1:]
    for copy in copies[:-1]:
        thread = threading.Thread(target=attempt, args=(copy,), daemon=True)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # there is none to be had
            here = [copy, *here]
    if all(list(map(attempt, here))):  # each is tried
        try:
            while threads:
                threads[-1].join()
                threads.pop()
        except BaseException as error:
            errors.append(error)
