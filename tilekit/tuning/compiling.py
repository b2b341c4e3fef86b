"""Many launches compiled at once, in processes. No device is used there."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilekit.compiler.kernel import CompiledKernel
from tilekit.compiler.toolkit import importing_numba
from tilekit.errors import CompileError, SpillWarning
from tilekit.launch.launch import KernelLaunch

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["compile_all"]

_PATIENCE_S = 60.0  # for the next kernel of any process


def compile_all(
    launches: Sequence[KernelLaunch], target: str, step: Callable[[], object], processes: int | None = None
) -> list[CompiledKernel | Exception]:
    """Each launch compiled for `target`, or why it cannot be; the launches' specialisations have it, too.

    Processes are forked, as kernels are functions that others cannot import. A fork may find a lock that another thread of this
    process had; so whatever has not come in time is compiled here, and so is everything where systems do not fork.

    Args:
        launches: them.
        target: as of `KernelLaunch.compile`.
        step: called whenever another one is done.
        processes: how many; by default as many as this process may use cores.
    """
    for launch in launches:
        launch.consumed()  # in another process, perhaps
    count = min(len(launches), processes or _cores())
    results: list[CompiledKernel | Exception | None] = [None] * len(launches)
    if count > 1 and sys.platform == "linux":
        _in_processes(launches, target, step, count, results)
    for at, launch in enumerate(launches):
        if results[at] is None:
            results[at] = _compiled(launch, target)
            step()
    return [result for result in results if result is not None]


def _in_processes(
    launches: Sequence[KernelLaunch], target: str, step: Callable[[], object], count: int, results: list[Any]
) -> None:
    """Fill `results`, by so many processes, with what comes of them."""
    import multiprocessing
    from multiprocessing.connection import wait

    if multiprocessing.current_process().daemon:  # which may have no processes of its own
        return
    with importing_numba():
        import tilekit.compiler.build  # noqa: F401 - once, for all of them
    context = multiprocessing.get_context("fork")
    workers: list[Any] = []
    readers: list[Any] = []
    try:
        for number in range(count):
            reader, writer = context.Pipe(duplex=False)
            mine = [(at, launches[at]) for at in range(number, len(launches), count)]
            worker = context.Process(target=_work, args=(mine, target, writer), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of forks beside threads, see above: Python's, and those of libraries
                worker.start()
            writer.close()
            workers.append(worker)
            readers.append(reader)
        while readers:
            ready: list[Any] = wait(readers, _PATIENCE_S)
            if not ready:
                return
            for reader in ready:
                try:
                    at, kernel, error = reader.recv()
                except (EOFError, OSError):  # it is done, or has died
                    readers.remove(reader)
                    continue
                if kernel is not None:
                    results[at] = CompiledKernel.from_bytes(kernel)
                    launches[at].adopt(results[at])
                else:
                    results[at] = CompileError(error)
                step()
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _work(mine: Sequence[tuple[int, KernelLaunch]], target: str, writer: Connection) -> None:
    """What a process does: its share, one after the other."""
    for at, launch in mine:
        result = _compiled(launch, target)
        if isinstance(result, CompiledKernel):
            writer.send((at, result.to_bytes(), ""))
        else:
            writer.send((at, None, str(result)))
    writer.close()


def _compiled(launch: KernelLaunch, target: str) -> CompiledKernel | Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpillWarning)  # a table says so
        try:
            return launch.compile(target)
        except Exception as error:
            return error


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
