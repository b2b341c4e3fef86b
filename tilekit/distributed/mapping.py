"""A function over many items, on whichever worker is free."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tilekit._runtime.context import ExecutionContext
from tilekit.distributed.remote import Remote
from tilekit.distributed.worker import Worker, check_retries
from tilekit.errors import check_flag
from tilekit.ops import DeviceOp
from tilekit.ops.execution import HostJob, Steps

if TYPE_CHECKING:
    from tilekit.distributed.cluster import Cluster

__all__ = ["MapOp", "shown"]

# How many items a worker has at a time: one that it works on, and one that arrives meanwhile.
_AHEAD = 2


class MapOp(DeviceOp[list[Remote]]):
    """What `Cluster.map` makes."""

    _placed = True

    def __init__(self, cluster: Cluster, build: Callable[..., Any], items: Iterable[Any], progress: bool, retries: int) -> None:
        self.cluster, self.build, self.items, self.retries = cluster, build, items, retries
        self._label = f"map {getattr(build, '__qualname__', type(build).__name__)}"
        for op in (build, items):
            if isinstance(op, DeviceOp):
                op.consumed()
        try:
            self.progress = check_flag("map: progress", progress)
            check_retries(retries)
            if not callable(build) or isinstance(build, DeviceOp):
                raise TypeError(f"map takes a function that returns an op, and items, not {build!r}: map(lambda x: ..., items)")
            if isinstance(items, DeviceOp) or not hasattr(items, "__iter__"):
                raise TypeError(f"map takes items to iterate over, such as a list, not {type(items).__name__}")
        except BaseException:
            self.consumed()
            raise

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Send items to the workers from threads, until none is left, and wait for the last."""
        self.cluster.check_open()
        sending = _Sending(self)
        job = HostJob(sending.run)
        try:
            yield [job]
        finally:
            sending.stop()  # nobody waits any more: of a task that was cancelled no further items are sent
        return job.result()


class _Sending:
    """The sending of items: a few threads a worker, each of which has one item under way."""

    def __init__(self, op: MapOp) -> None:
        self._op = op
        self._items: Iterator[tuple[int, Any]] = enumerate(op.items)
        self._sent: dict[int, Any] = {}  # the items, where they may have to be sent again
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._results: dict[int, Remote] = {}
        self._failure: BaseException | None = None
        self._stopped = False
        self._context = contextvars.copy_context()

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    def run(self) -> list[Remote]:
        """Send all, and give the results in the order of the items. Blocks."""
        op = self._op
        total = len(op.items) if hasattr(op.items, "__len__") else None  # type: ignore[arg-type]
        with shown(op.label, total) if op.progress else _unseen() as advance:
            self._send(total, advance)
            for _ in range(op.retries):  # a worker that was lost later took what it had done before with it
                lost = [(at, self._sent[at]) for at, result in self._results.items() if result.lost]
                if not lost or self._failure is not None or self._stopped:
                    break
                self._items = iter(lost)
                self._send(len(lost), lambda: None)
        if self._failure is not None:
            raise self._failure
        return [self._results[at] for at in range(len(self._results))]

    def _send(self, total: int | None, advance: Callable[[], None]) -> None:
        """Send the items that are next."""
        op = self._op
        lanes = [
            threading.Thread(target=self._context.copy().run, args=(self._lane, worker, advance), name=f"tilekit {op.label}")
            for _ in range(_AHEAD)
            for worker in op.cluster.workers
        ]
        try:
            for lane in lanes if total is None else lanes[:total]:
                lane.start()
        finally:
            for lane in lanes:
                if lane.ident is not None:
                    try:
                        lane.join()
                    except BaseException:
                        self.stop()
                        raise

    def _lane(self, worker: Worker, advance: Callable[[], None]) -> None:
        """One item after the other on one worker."""
        at: int | None = None
        try:
            while (following := self._next()) is not None:
                at, item = following
                if self._op.retries:
                    self._sent[at] = item
                op = worker.run(self._op.build, item, retries=self._op.retries)
                op._site = self._op._site
                result = op.sync()
                with self._lock:
                    self._results[at] = result
                at = None
                advance()
        except BaseException as error:
            if at is not None:
                error.add_note(f"item {at} of {self._op.label}")
            with self._lock:
                self._stopped = True
                if self._failure is None:
                    self._failure = error

    def _next(self) -> tuple[int, Any] | None:
        """The next item and its number; None if there is none, or no more are sent."""
        with self._asking:
            return None if self._stopped else next(self._items, None)


@contextmanager
def _unseen() -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextmanager
def shown(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """What to call when one more of `total` items is done. It shows that if standard error is a terminal, and rich is there."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield lambda: None
        return
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
