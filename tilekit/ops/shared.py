"""One run of an op for many: `shared()`, and `unzip`, whose elements share the run that gives the tuple."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

from tilekit._runtime.context import ExecutionContext
from tilekit.ops.combinators import Derived, Element
from tilekit.ops.execution import Done, HostJob, Run, Steps, Wait
from tilekit.ops.methods import methods
from tilekit.ops.op import DeviceOp
from tilekit.ops.sites import site_of

__all__ = ["Shared", "unzip"]


@methods.enter
class Shared(Derived):
    """An op that may run many times; the op it is made of runs once, and its result, or error, is kept.

    That one run belongs to nobody: whoever needs the result takes it a stretch further when what it waits for has happened. So a
    waiter that is cancelled leaves nobody behind.
    """

    _passes_on = True
    _many = True

    def __init__(self, source: DeviceOp[Any]) -> None:
        super().__init__(source, spec=source.spec)
        self._lock = threading.RLock()
        self._advancing = False
        self._run: Run | None = None
        self._waits: Sequence[Wait] = ()
        self._outcome: tuple[Any, BaseException | None] | None = None

    def claim(self) -> None:
        """Everyone may have a run."""
        self._spent = True

    def shared(self) -> DeviceOp[Any]:
        """It is that already."""
        return self

    def steps(self, ctx: ExecutionContext) -> Steps:
        """The kept result, once there is one."""
        if ctx.recording is not None and self._outcome is None and self._run is None:
            return (yield from ctx.recording.once(self, ctx))
        failure: BaseException | None = None
        waited: Sequence[Wait] = ()  # what `failure` is of
        while self._outcome is None:
            waits: Sequence[Wait] = ()
            # Nobody blocks here: who takes the run further may be in a host function, and that may wait for any thread.
            if self._lock.acquire(blocking=False):
                try:
                    if self._advancing:
                        raise ValueError(f"{self!r} is part of itself: it would wait for its own result")
                    if failure is not None and waited is not self._waits:
                        failure = None  # another waiter has told the source, which went on
                    if self._outcome is not None:
                        break
                    if failure is not None or all(map(_happened, self._waits)):
                        self._advancing = True
                        try:
                            if self._run is None:
                                self._run = Run(self.source, ctx, lasting=True)
                            self._run.failure = failure
                            progress = self._run.begin() or (yield self._run)  # nothing else of this thread comes in between
                            if isinstance(progress, Done):
                                self._waits, self._outcome = (), (progress.value, None)
                            else:
                                self._waits = waits = progress
                        except Exception as error:
                            self._outcome = (None, error)
                        finally:
                            self._advancing = False
                    else:
                        # Others do the jobs that were started; one whose waiter was cancelled before that is everybody's.
                        waits = [wait for wait in self._waits if not (isinstance(wait, HostJob) and wait.started)]
                    waited, failure = self._waits, None
                finally:
                    self._lock.release()
            if self._outcome is None:
                try:
                    yield waits
                except Exception as error:  # what was waited for failed: the source has to know, once
                    failure = error
        result, lasting = self._outcome
        if lasting is not None:
            raise lasting
        return result


def _happened(wait: Wait) -> bool:
    if isinstance(wait, HostJob):
        return wait.done
    stream, serial = wait
    return stream.passed(serial)


class _Unzipped(Element):
    """One of the elements of a tuple that have a run in common. Some may stay unused; if all do, that run warns."""

    @property
    def _consumed(self) -> bool:
        return True

    @_consumed.setter
    def _consumed(self, consumed: bool) -> None:
        self.source._consumed = consumed

    def claim(self) -> None:
        """Take the element's one run."""
        super().claim()
        self.source._consumed = True


_PARTS = 1 << 16  # more results than any tuple that ops give


def _no_count(count: Any) -> Exception:
    if isinstance(count, int) and not isinstance(count, bool):
        return ValueError(f"unzip: {count} is no number of results: from 0 to {_PARTS}")
    return TypeError(f"unzip: the number of results is an int, not {type(count).__name__}")


@methods.enter
def unzip(source: DeviceOp[Any], count: int | None = None) -> tuple[DeviceOp[Any], ...]:
    """The elements of a tuple result as ops of their own, which share one run of `source`.

    Args:
        source: an op whose result is a tuple.
        count: how many elements it has, where that is not known before it runs.

    Raises:
        ValueError: the number of elements is not known, or another than `count`.
    """
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _PARTS):
        raise _no_count(count)
    specs = getattr(source, "specs", None)
    known = len(specs) if specs is not None else None
    if known is None and count is None:
        raise ValueError(f"unzip: how many results {source!r} has is not known before it runs; say .unzip(count)")
    if known is not None and count not in (None, known):
        raise ValueError(f"unzip: {source!r} has {known} results, not {count}")
    shared = Shared(source)
    elements = tuple(_Unzipped(shared, at, known or count) for at in range(known or count or 0))
    site = site_of(sys._getframe(1))  # built here, though not while an op runs
    for op in (shared, *elements):
        op._site = site
    shared._consumed = False
    return elements
