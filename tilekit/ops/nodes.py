"""The ops that are made of other ops, and the few that touch no device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tilekit.ops.base import DeviceOp, Spec
from tilekit.ops.execution import Steps, moments, unwrap
from tilekit.schedule import ExecutionContext

__all__ = ["AndThen", "Element", "Map", "Shared", "StreamOperation", "Value", "Zip", "value", "with_context", "zip_ops"]

T = TypeVar("T")


class Value(DeviceOp[T]):
    """A value of the host's as an op. It does nothing."""

    def __init__(self, result: T) -> None:
        self.result = result
        shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:
            self.spec = Spec(shape, dtype)

    @property
    def device(self) -> Any:
        """The device of a tensor or partition; None for anything else."""
        return getattr(self.result, "device", None) if self.spec is not None else None

    def execute(self, ctx: ExecutionContext) -> T:
        """Nothing to enqueue."""
        return self.result

    def __del__(self) -> None:  # dropping a value loses no work
        pass


class StreamOperation(DeviceOp[Any]):
    """An op that is built when the stream is known: `function(ctx)` returns the op to run there."""

    def __init__(self, function: Callable[[ExecutionContext], Any]) -> None:
        self.function = function

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Build it, and run what was built."""
        return (yield from _follow(self.function(ctx), self, ctx))


def _follow(made: Any, maker: DeviceOp[Any], ctx: ExecutionContext) -> Steps:
    """Run the op that a closure returned."""
    if not isinstance(made, DeviceOp):
        raise TypeError(
            f"the function given to {maker.label} returned {type(made).__name__}, not an op; return tk.value(...) for a plain "
            "value, or use .map(function)"
        )
    return (yield from made.start(ctx))


def _arrived(result: Any) -> Steps:
    """`result` with its host values readable: where there are any, wait for them first."""
    pending = moments(result)
    if pending:
        yield pending
        return unwrap(result)
    return result


class _Derived(DeviceOp[Any]):
    """An op made of one other."""

    def __init__(self, source: DeviceOp[Any], *, label: str | None = None, spec: Spec | None = None) -> None:
        if not isinstance(source, DeviceOp):
            raise TypeError(f"{type(self).__name__} needs an op, not {type(source).__name__}")
        source.consumed()
        self.source, self._label, self.spec = source, label, spec

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The op it is made of."""
        return (self.source,)


class AndThen(_Derived):
    """Run an op, then the op that `function` makes of its result, on the same stream."""

    def __init__(self, source: DeviceOp[Any], function: Callable[..., Any], *, unpack: bool = False, **known: Any) -> None:
        super().__init__(source, **known)
        self.function, self.unpack = function, unpack

    def steps(self, ctx: ExecutionContext) -> Steps:
        """First one, then the other."""
        result = yield from _arrived((yield from self.source.start(ctx)))
        if self.unpack and not isinstance(result, tuple):
            raise TypeError(f"apply: {self.source!r} gave {type(result).__name__}, not a tuple; use .then(function)")
        made = self.function(*result) if self.unpack else self.function(result)
        return (yield from _follow(made, self, ctx))


class Map(_Derived):
    """Run an op and pass its result through a function of the host's."""

    def __init__(self, source: DeviceOp[Any], function: Callable[[Any], Any], **known: Any) -> None:
        super().__init__(source, **known)
        self.function = function

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run it, call the function."""
        result = yield from _arrived((yield from self.source.start(ctx)))
        made = self.function(result)
        if isinstance(made, DeviceOp):
            made.consumed()
            raise TypeError(f"the function given to {self.label} returned an op, {made!r}; use .then(function) to run it")
        return made


class Element(_Derived):
    """One element of a tuple."""

    def __init__(self, source: DeviceOp[Any], index: int) -> None:
        super().__init__(source, label="first" if index == 0 else "last")
        self.index = index
        specs = getattr(source, "specs", None)
        self.spec = specs[index] if specs else None

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run it, take the element."""
        result = yield from self.source.start(ctx)
        if not isinstance(result, tuple) or not result:
            raise TypeError(f"{self.label}: {self.source!r} gave {type(result).__name__}, not a tuple of results")
        return result[self.index]


class Zip(DeviceOp[Any]):
    """Several ops, one after the other on one stream, as one op whose result is the tuple of theirs."""

    def __init__(self, ops: tuple[Any, ...]) -> None:
        self.ops = tuple(op if isinstance(op, DeviceOp) else Value(op) for op in ops)
        for op in self.ops:
            op.consumed()

    @property
    def specs(self) -> tuple[Spec | None, ...]:
        """What is known of each result."""
        return tuple(op.spec for op in self.ops)

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The ops it is made of."""
        return self.ops

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Each in turn."""
        results = []
        for op in self.ops:
            result = yield from op.start(ctx)
            results.append(result)
        return tuple(results)


class Shared(_Derived):
    """An op that may run many times; the op it is made of runs the first time only, and its result, or error, is kept."""

    def __init__(self, source: DeviceOp[Any]) -> None:
        super().__init__(source, spec=source.spec)
        self._lock = threading.Lock()
        self._taken = False
        self._outcome: tuple[Any, BaseException | None] | None = None

    def start(self, ctx: ExecutionContext) -> Steps:
        """A run of its own for everyone who asks."""
        self._spent = True
        return self.steps(ctx)

    def shared(self) -> DeviceOp[Any]:
        """It is that already."""
        return self

    def steps(self, ctx: ExecutionContext) -> Steps:
        """The kept result; whoever comes first makes it, others give way meanwhile."""
        with self._lock:
            mine, self._taken = not self._taken, True
        if mine:
            try:
                self._outcome = ((yield from self.source.start(ctx)), None)
            except BaseException as error:
                self._outcome = (None, error)
        while self._outcome is None:
            yield []
        result, failure = self._outcome
        if failure is not None:
            raise failure
        return result


def value(result: T) -> Value[T]:
    """`result`, a value of the host's, as an op: for steps of a pipeline that need no device."""
    return Value(result)


def with_context(function: Callable[[ExecutionContext], Any]) -> StreamOperation:
    """An op that `function(ctx)` builds once `ctx.device` and `ctx.stream` are chosen; it returns the op to run."""
    return StreamOperation(function)


def zip_ops(*ops: Any) -> Zip:
    """Several ops as one, whose result is the tuple of theirs. They run in order, on one stream; plain values pass through."""
    return Zip(ops)
