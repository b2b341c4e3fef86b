"""Copies between tensors and the host's memory that block nobody who must not be blocked. Parts of ops, as steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit._driver.staging import PARALLEL
from tilekit._driver.waiting import gets_signals
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.storage import Garbage, Storage
from tilekit.ops.execution import HostJob, Steps
from tilekit.ops.host_values import HostValue

__all__ = ["copy_across", "copy_in", "copy_out"]


def copy_in(ctx: ExecutionContext, storage: Storage, offset: int, source: np.ndarray[Any, Any]) -> Steps:
    """Copy a C-contiguous array to `offset` bytes into `storage`, after those who use it now.

    When these steps are done a pageable `source` has been read; one in page-locked memory, or for a CPU device, is kept alive
    until it has.
    """
    if not source.nbytes:
        return
    driver, stream = ctx.driver, ctx.stream
    ctx.acquire((), (storage,))
    if ctx.recording is not None:
        ctx.recording.check_host_array(source, written=False)
        driver.copy_from_host(storage.memory, offset, source, stream.handle)
        ctx.note((), (storage,))
        return

    def direct() -> None:
        try:
            driver.copy_from_host(storage.memory, offset, source, stream.handle)
        finally:
            ctx.note((), (storage,))

    def blocking() -> None:
        _let_through(ctx)
        direct()

    def staged() -> None:
        assert staging is not None, "checked below"
        try:
            staging.send_all(storage.memory, offset, source, stream.handle)
        finally:  # of the task that waits for this there may be nothing left: `storage` must know of what was submitted
            ctx.note((), (storage,))

    staging = driver.staging
    if staging is not None and staging.send(storage.memory, offset, source, stream.handle):
        ctx.note((), (storage,))
    elif staging is None or staging.is_pinned(source):
        direct()
        ctx.device.garbage.append(Garbage(None, [(stream, stream.pending)], source))
    else:
        job = HostJob(staged, blocking=blocking if source.nbytes < PARALLEL else None)
        yield [job]
        job.result()


def copy_out(
    ctx: ExecutionContext, target: np.ndarray[Any, Any], storage: Storage, offset: int, *, from_caller: bool = False
) -> Steps:
    """Copy from `offset` bytes into `storage` to a C-contiguous array, as soon as it is written.

    Args:
        from_caller: whether the array is the caller's, and so may be in page-locked memory. It is kept alive until it is written.

    Returns:
        The array as a HostValue.
    """
    driver, stream = ctx.driver, ctx.stream
    if not target.nbytes:
        return HostValue(target, stream)
    ctx.acquire((storage,), ())
    if ctx.recording is not None:
        target = ctx.recording.host_target(target, from_caller=from_caller)
        driver.copy_to_host(target, storage.memory, offset, stream.handle)
        ctx.note((storage,), ())
        return HostValue(target, stream)

    def direct() -> None:
        try:
            driver.copy_to_host(target, storage.memory, offset, stream.handle)
        finally:
            ctx.note((storage,), ())

    def blocking() -> None:
        _let_through(ctx)
        direct()

    def staged() -> None:
        assert staging is not None, "checked below"
        try:
            staging.fetch_all(target, storage.memory, offset, stream.handle)
        finally:
            ctx.note((storage,), ())

    staging = driver.staging
    if staging is None or (from_caller and staging.is_pinned(target)):
        direct()
        if from_caller:
            ctx.device.garbage.append(Garbage(None, [(stream, stream.pending)], target))
        return HostValue(target, stream)
    fetch = staging.fetch(target, storage.memory, offset, stream.handle)
    if fetch is not None:
        ctx.note((storage,), ())
        return HostValue(target, stream, fetch.finish)
    job = HostJob(staged, blocking=blocking if target.nbytes < PARALLEL else None, after=[(stream, stream.pending)])
    yield [job]
    job.result()
    return HostValue(target, stream)


def _let_through(ctx: ExecutionContext) -> None:
    """Before the driver copies pageable memory: it does so when all before it is done, and no signal gets through until then."""
    if gets_signals():
        ctx.driver.stream_synchronize(ctx.stream.handle)


def copy_across(ctx: ExecutionContext, target: Storage, source: Storage, offset: int, nbytes: int) -> None:
    """Copy from `offset` bytes into `source`, on another device of the same kind, to the start of `target`.

    The copy waits for the last write of `source`, and who writes that next, or frees it, waits for the copy.
    """
    if not nbytes:
        return
    if ctx.recording is not None:
        ctx.recording.read_peer(source)
        ctx.acquire((), (target,))
        ctx.driver.copy(target.memory, 0, source.memory, offset, nbytes, ctx.stream.handle)
        ctx.note((), (target,))
        return
    for use in filter(None, (source.last_write, source.theirs)):
        ctx.stream.wait_for(*use)
    ctx.acquire((), (target,))
    ctx.device.driver.copy_from_peer(target.memory, 0, source.device.driver, source.memory, offset, nbytes, ctx.stream.handle)
    ctx.note((source,), (target,))
