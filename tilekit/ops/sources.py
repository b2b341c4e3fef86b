"""Ops that are made of no other op: values and functions of the host's, and ops that are built once their stream is known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._runtime.stream import Stream, next_stream
from tilekit.ops.execution import Done, Steps, called_on_host
from tilekit.ops.host_values import Moment
from tilekit.ops.op import DeviceOp
from tilekit.ops.sites import site_of
from tilekit.ops.spec import Spec

__all__ = [
    "HostFunction",
    "StreamOperation",
    "Value",
    "as_op",
    "elsewhere",
    "follow",
    "host_fn",
    "refuse_function",
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

    _finds_home = True

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
        return (yield follow(self.function(ctx), self, ctx))


def follow(op: Any, maker: DeviceOp[Any], ctx: ExecutionContext) -> Steps | Done:
    """Begin to run the op that a closure returned."""
    if not isinstance(op, DeviceOp):
        raise TypeError(
            f"the function given to {maker.label} returned {type(op).__name__}, not an op; return tk.value(...) for a plain "
            "value, or use .map(function)"
        )
    if op._site is None:
        op._site = maker._site
    if not op._finds_home:
        device = op.device
        if device is not None and device is not ctx.device:  # the chain has gone to another device
            op._consumed = True
            return elsewhere(op.start, next_stream(device.policy), ctx)
    return op.start(ctx)


def elsewhere(begin: Callable[[ExecutionContext], Steps | Done], stream: Stream, ctx: ExecutionContext) -> Steps:
    """Run what `begin(ctx)` begins on another stream, between what comes before and after it on the stream of `ctx`."""
    there_ctx = ctx.on(stream)
    if stream is ctx.stream or there_ctx is ctx:
        return (yield begin(ctx))
    same_kind = stream.device.kind == ctx.device.kind
    here: Moment = (ctx.stream, ctx.stream.mark())
    if same_kind:
        stream.wait_for(*here)
    else:  # no device orders the work of the other kind after its own: the host does
        yield [here]
    result = yield begin(there_ctx)
    there: Moment = (stream, stream.mark())
    if same_kind:
        ctx.stream.wait_for(*there)
    else:
        yield [there]
    return result


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
