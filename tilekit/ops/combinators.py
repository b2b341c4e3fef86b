"""The ops that are made of other ops, and the few that touch no device."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit.ops.execution import Done, HostJob, HostValue, Run, Steps, Wait, called_on_host, moments, unwrap
from tilekit.ops.methods import methods
from tilekit.ops.op import DeviceOp
from tilekit.ops.sites import site_of
from tilekit.ops.spec import Spec

__all__ = [
    "AndThen",
    "Derived",
    "Element",
    "HostFunction",
    "Inspect",
    "Map",
    "OrElse",
    "Shared",
    "StreamOperation",
    "Value",
    "as_op",
    "host_fn",
    "unzip",
    "value",
    "with_context",
]

T = TypeVar("T")


def refuse_function(method: str, function: Any, *ops: DeviceOp[Any]) -> NoReturn:
    """A TypeError for what is called `function` and is none. The ops answer for nothing: whoever is told need not run them."""
    for op in ops:
        op._consumed = True
    raise TypeError(f"{method} takes a function, not {type(function).__name__}")


class Value(DeviceOp[T]):
    """A value of the host's as an op. It does nothing."""

    def __init__(self, result: T) -> None:
        self.result = result
        shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:
            self.spec = Spec(shape, dtype)

    @property
    def device(self) -> Device | None:
        """The device of a tensor or partition; None for anything else, which may call something of its own a device."""
        device = getattr(self.result, "device", None) if self.spec is not None else None
        return device if isinstance(device, Device) else None

    def execute(self, ctx: ExecutionContext) -> T:
        """Nothing to enqueue."""
        return self.result

    def __del__(self) -> None:  # dropping a value loses no work
        pass


class StreamOperation(DeviceOp[Any]):
    """An op that is built when the stream is known: `function(ctx)` returns the op to run there."""

    def __init__(self, function: Callable[[ExecutionContext], Any]) -> None:
        if not callable(function):
            refuse_function("with_context", function, self)
        self.function = function

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Build it, and run what was built."""
        return (yield _follow(self.function(ctx), self, ctx))


def _follow(made: Any, maker: DeviceOp[Any], ctx: ExecutionContext) -> Steps | Done:
    """Begin to run the op that a closure returned."""
    if not isinstance(made, DeviceOp):
        raise TypeError(
            f"the function given to {maker.label} returned {type(made).__name__}, not an op; return tk.value(...) for a plain "
            "value, or use .map(function)"
        )
    if made._site is None:
        made._site = maker._site
    return made.start(ctx)


class Derived(DeviceOp[Any]):
    """An op made of one other."""

    if not TYPE_CHECKING:
        __slots__ = ()

    _passes_on = False  # whether its result is that of the other

    def __init__(self, source: DeviceOp[Any], *, label: str | None = None, spec: Spec | None = None) -> None:
        if not isinstance(source, DeviceOp):
            raise TypeError(f"{type(self).__name__} needs an op, not {type(source).__name__}")
        source.consumed()
        self.source, self._label, self.spec = source, label, spec

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The op it is made of."""
        return (self.source,)

    @property
    def specs(self) -> Any:
        """What is known of each result, if it is known how many there are; else None."""
        op: Any = self
        while isinstance(op, Derived) and op._passes_on:
            op = op.source
        return None if op is self else getattr(op, "specs", None)


@methods.enter
class AndThen(Derived):
    """Run an op, then the op that `function` makes of its result, on the same stream."""

    if not TYPE_CHECKING:
        __slots__ = (
            *("_consumed", "_fresh", "_label", "_site", "_spent"),
            *("context", "function", "source", "spec", "unpack"),
        )
        __init__ = object.__init__

    function: Callable[..., Any]
    unpack: bool
    context: bool

    def __new__(  # all of it, since chains have many of these
        cls,
        source: DeviceOp[Any],
        function: Callable[..., Any],
        unpack: bool = False,
        context: bool = False,
        label: str | None = None,
        spec: Spec | None = None,
    ) -> Self:
        if not isinstance(source, DeviceOp):
            raise TypeError(f"{cls.__name__} needs an op, not {type(source).__name__}")
        if not callable(function):
            refuse_function("context" if context else "apply" if unpack else "then", function, source)
        self = object.__new__(cls)
        self._fresh, self._site = None, site_of(sys._getframe(2))  # past the method that makes it
        source._consumed = True
        self._spent = self._consumed = False
        self.source, self._label, self.spec = source, label, spec
        self.function, self.unpack, self.context = function, unpack, context
        return self

    def _given(self) -> Iterable[Any]:
        """No tensor: these are the source's."""
        return ()

    @property
    def specs(self) -> Any:
        """What is known of each result: of a kernel's launch at least how many there are."""
        count = getattr(self.function, "result_count", None)
        return None if count is None else (None,) * count

    def steps(self, ctx: ExecutionContext) -> Steps:
        """First one, then the other. A chain of such ops is run from its start, in a loop."""
        links, source = [self], self.source
        while type(source) is AndThen:
            source.claim()
            links.append(source)
            source = source.source
        result = yield source.start(ctx)
        links.reverse()
        at = 0
        while at < len(links):
            link = links[at]
            launch_links = getattr(type(link.function), "_launch_links", None)  # a kernel's: of as many links as are launches
            if launch_links is not None:
                at = launch_links(links, at, result, ctx)
                if at == len(links):
                    break
                link = links[at]
            at += 1
            if pending := moments(result):
                yield pending
                result = unwrap(result)
            if link.unpack and not isinstance(result, tuple):
                raise TypeError(f"apply: {link.source!r} gave {type(result).__name__}, not a tuple; use .then(function)")
            given = result if link.unpack else (ctx, result) if link.context else (result,)
            made = _follow(link.function(*given), link, ctx)
            result = made.value if isinstance(made, Done) else (yield made)
        return result


_HOLDERS = frozenset((HostValue, tuple, list))  # the types of results in which host values may be


class OnResult(Derived):
    """Run an op, and do something with its result that submits nothing."""

    _on_result = True
    _looks = False  # whether host values must have arrived

    def of(self, result: Any) -> Any:
        """What becomes of the result."""
        raise NotImplementedError

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Run it, and go on with its result. A chain of such ops is run from its start, in a loop, and at once if that can be."""
        links, source = [self], self.source
        while isinstance(source, OnResult):
            source.claim()
            links.append(source)
            source = source.source
        made = source.start(ctx)
        if type(made) is Done:
            result = made.value
            while links and not (links[-1]._looks and type(result) in _HOLDERS and moments(result)):
                result = links.pop().of(result)
            made.value = result
        return _finished(made, links) if links else made


def _finished(made: Steps | Done, links: list[OnResult]) -> Steps:
    result = yield made
    for link in reversed(links):
        if link._looks and (pending := moments(result)):
            yield pending
            result = unwrap(result)
        result = link.of(result)
    return result


def is_shallow(op: DeviceOp[Any]) -> bool:
    """Whether nothing is inside the op but one without parts, so that beginning to run it takes no more stack than that."""
    while isinstance(op, OnResult):
        op = op.source
    return type(op).parts is DeviceOp.parts


@methods.enter
class Map(OnResult):
    """Run an op and pass its result through a function of the host's."""

    _looks = True

    def __init__(
        self, source: DeviceOp[Any], function: Callable[[Any], Any], label: str | None = None, spec: Spec | None = None
    ) -> None:
        if not isinstance(source, DeviceOp):
            raise TypeError(f"{type(self).__name__} needs an op, not {type(source).__name__}")
        if not callable(function):
            refuse_function("map", function, self, source)
        source._consumed = True
        self.source, self._label, self.spec = source, label, spec
        self.function = function

    def of(self, result: Any) -> Any:
        """Call the function."""
        made = self.function(result)
        if isinstance(made, DeviceOp):
            made.consumed()
            raise TypeError(f"the function given to {self.label} returned an op, {made!r}; use .then(function) to run it")
        return made


@methods.enter
class Element(OnResult):
    """One element of a tuple."""

    def __init__(self, source: DeviceOp[Any], index: int, count: int | None = None) -> None:
        if not isinstance(source, DeviceOp):
            raise TypeError(f"{type(self).__name__} needs an op, not {type(source).__name__}")
        source._consumed = True
        name = {0: "first", -1: "last"}.get(index) or f"element {index}"
        self.source, self._label = source, name if count is None else f"{index} of {count}"
        self.index, self.count = index, count
        specs = getattr(source, "specs", None)
        self.spec = specs[index] if specs else None

    def of(self, result: Any) -> Any:
        """Take the element."""
        if not isinstance(result, tuple) or not result:
            raise TypeError(f"{self.label}: {self.source!r} gave {type(result).__name__}, not a tuple of results")
        if self.count is not None and len(result) != self.count:
            raise TypeError(f"unzip: {self.source!r} gave {len(result)} results, not {self.count}")
        return result[self.index]


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


@methods.enter
class Inspect(Derived):
    """Run an op, show its result to a function of the host's, and pass it on."""

    _passes_on = True

    def __init__(self, source: DeviceOp[Any], function: Callable[[Any], object]) -> None:
        if not callable(function):
            refuse_function("inspect", function, self, source)
        super().__init__(source, spec=source.spec)
        self.function = function

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run it, call the function."""
        result = yield self.source.start(ctx)
        if pending := moments(result):
            yield pending
            result = unwrap(result)
        self.function(result)
        return result


@methods.enter
class OrElse(Derived):
    """Run an op; if it fails, the op that `function` makes of the error takes its place."""

    def __init__(self, source: DeviceOp[Any], function: Callable[[Exception], Any]) -> None:
        if not callable(function):
            refuse_function("or_else", function, self, source)
        super().__init__(source, spec=source.spec)
        self.function = function

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run it and wait for it, since it may fail on the device as well; then the other op if it has to be."""
        try:
            result = yield self.source.start(ctx)
            yield [(ctx.stream, ctx.stream.mark()), *moments(result)]
        except Exception as error:
            failure = error
        else:
            return unwrap(result)
        return (yield _follow(self.function(failure), self, ctx))


class HostFunction(DeviceOp[Any]):
    """A function of the host's in the order of the stream: it is called once all work submitted before is done."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if not callable(function):
            refuse_function("host_fn", function, self)
        self.function, self.arguments = function, arguments
        self._label = f"host_fn {getattr(function, '__name__', type(function).__name__)}"

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Wait for what came before, call the function."""
        yield [(ctx.stream, ctx.stream.mark())]
        return called_on_host(self.function, *self.arguments)


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
                            made = self._run.begin() or (yield self._run)  # nothing else of this thread comes in between
                            if isinstance(made, Done):
                                self._waits, self._outcome = (), (made.value, None)
                            else:
                                self._waits = waits = made
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


def value(result: T) -> Value[T]:
    """`result`, a value of the host's, as an op: for steps of a pipeline that need no device."""
    return Value(result)


def with_context(function: Callable[[ExecutionContext], Any]) -> StreamOperation:
    """An op that `function(ctx)` builds once `ctx.device` and `ctx.stream` are chosen; it returns the op to run."""
    op = StreamOperation(function)
    op._site = site_of(sys._getframe(1))  # from this module it would count as built by an op that runs
    return op


def host_fn(function: Callable[..., Any], *arguments: Any) -> HostFunction:
    """An op that calls `function(*arguments)` on the host when the stream has come to it: all work before it is done.

    Its result is what the function returns. The function runs in the thread that waits for the op: under `await` that of the
    event loop; after `async_on` the one that calls back, or that submits. It may run ops, with `sync()` too; whatever else that
    thread has to do waits meanwhile.
    """
    op = HostFunction(function, arguments)
    op._site = site_of(sys._getframe(1))
    return op


def as_op(candidate: Any) -> DeviceOp[Any]:
    """`candidate` if it is an op, else the op whose result it is."""
    return candidate if isinstance(candidate, DeviceOp) else Value(candidate)


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
