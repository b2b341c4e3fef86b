"""Ops written as Python generators, which yield the ops that they are made of and are sent their results."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit.ops.execution import Done, Steps
from tilekit.ops.host_values import moments, unwrap
from tilekit.ops.launch import AsyncKernelLaunch
from tilekit.ops.op import DeviceOp

__all__ = ["Stepwise", "operation"]

T = TypeVar("T")
P = ParamSpec("P")


class Stepwise(DeviceOp[T]):
    """An op that is a generator: each op that it yields runs next on the same stream, and its result is sent back.

    To derive from it, define `begin`.
    """

    def begin(self, ctx: ExecutionContext) -> Generator[DeviceOp[Any], Any, T]:
        """The generator of one run. Nothing of it has been executed yet."""
        raise NotImplementedError(f"{type(self).__name__} does not define begin(ctx)")

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Run the generator as far as nothing has to be waited for, which mostly is to its end."""
        running, result = self.begin(ctx), None
        while True:
            try:
                op = running.send(result)
            except StopIteration as stop:
                return Done(self._result(stop.value))
            # Ops inside each other must not need Python's stack for each: where there are parts, `Run.advance` takes over.
            if not isinstance(op, AsyncKernelLaunch) and getattr(type(op), "parts", None) is not DeviceOp.parts:
                return self._onwards(running, op, None, [], ctx)
            try:
                started = self._started(op, ctx)
            except Exception as error:
                return self._onwards(running, op, None, [error], ctx)
            if type(started) is not Done or moments(started.value):
                return self._onwards(running, op, started, [], ctx)
            result = started.value

    def _onwards(
        self,
        running: Generator[DeviceOp[Any], Any, T],
        op: DeviceOp[Any],
        started: Steps | Done | None,
        failed: list[Exception],
        ctx: ExecutionContext,
    ) -> Steps:
        """Go on where `op` was yielded: `made` is what its `start` gave; or it is not started yet, or has `failed`."""
        result: Any = None
        try:
            while True:
                if not failed:
                    try:
                        result = yield (started or self._started(op, ctx))
                        if pending := moments(result):
                            yield pending
                            result = unwrap(result)
                    except Exception as error:
                        failed.append(error)
                try:
                    # Popped, lest an error that is raised hold the frame that holds it.
                    op = running.throw(failed.pop()) if failed else running.send(result)
                except StopIteration as stop:
                    return self._result(stop.value)
                started = result = None
        finally:
            running.close()

    def _started(self, op: Any, ctx: ExecutionContext) -> Steps | Done:
        if not isinstance(op, DeviceOp):
            raise TypeError(
                f"{self.label} yielded {type(op).__name__}, not an op: what is no op needs no yield, and is returned by return"
            )
        if op._site is None:
            op._site = self._site
        return op.start(ctx)

    def _result(self, value: T) -> T:
        if isinstance(value, DeviceOp):
            value.consumed()
            raise TypeError(f"{self.label} returned an op, {value!r}; return what it gives: return (yield op)")
        return value


class _Operation(Stepwise[T]):
    """A call of what `operation` made."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self._label = function.__name__
        for part in self.parts():
            part.consumed()

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The arguments that are ops."""
        return tuple(argument for argument in (*self.args, *self.kwargs.values()) if isinstance(argument, DeviceOp))

    @property
    def device(self) -> Device | None:
        """The device of the first argument that has one."""
        for argument in (*self.args, *self.kwargs.values()):
            if getattr(argument, "storage", None) is not None:
                device: Device = argument.device
                return device
        return super().device

    def begin(self, ctx: ExecutionContext) -> Generator[DeviceOp[Any], Any, T]:
        """Call the function."""
        generator: Generator[DeviceOp[Any], Any, T] = self.function(*self.args, **self.kwargs)
        return generator


def operation(function: Callable[P, Generator[DeviceOp[Any], Any, T]]) -> Callable[P, DeviceOp[T]]:
    """Make a generator function one whose calls are ops: `@tk.operation`.

    ::

        @tk.operation
        def block(x, weight):
            h = yield kernels.rms_norm(x, weight)
            y, _ = yield scale(api.empty(h.shape).partition((1, 1024)), h)
            return y.unpartition()

    A call does nothing. When its op is run, so is the function: each op that it yields runs next on the same stream, and the
    `yield` gives the result; what the function returns is the result of the whole. Results are what `then` gives a closure:
    handles of what the device may still be computing; host values (`to_host`) have arrived. If an op fails, its error is raised
    at the `yield`, and may be caught there. An argument that is an op is for the function to yield.

    Raises:
        TypeError: `function` is no generator function.
    """
    if not inspect.isgeneratorfunction(function):
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(f"@tk.operation makes ops of functions that yield some; {name} has no yield")

    @functools.wraps(function)
    def build(*args: P.args, **kwargs: P.kwargs) -> DeviceOp[T]:
        return _Operation(function, args, kwargs)

    return build
