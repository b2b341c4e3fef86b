"""Combinators: ops made of one other op, whose result they pass on, look at, or make the next op of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from tilekit._runtime.context import ExecutionContext
from tilekit.ops.execution import Done, Steps
from tilekit.ops.host_values import HostValue, moments, unwrap
from tilekit.ops.methods import methods
from tilekit.ops.op import DeviceOp
from tilekit.ops.sites import site_of
from tilekit.ops.sources import follow, refuse_function
from tilekit.ops.spec import Spec

__all__ = ["AndThen", "Derived", "Element", "Inspect", "Map", "OrElse"]

_PACKAGE = __name__.partition(".")[0] + "."


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

    def _details(self) -> tuple[str, ...]:
        """The name of the kernel, or of the user's function, that gets the result."""
        function = getattr(self, "function", None)
        name = getattr(function, "label", None) or getattr(function, "__name__", "<lambda>")
        own = str(getattr(function, "__module__", "")).startswith(_PACKAGE)
        return () if name == "<lambda>" or own else (str(name),)

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

    def _operands(self) -> Iterable[Any]:
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
            arguments = result if link.unpack else (ctx, result) if link.context else (result,)
            steps = follow(link.function(*arguments), link, ctx)
            result = steps.value if isinstance(steps, Done) else (yield steps)
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
        steps = source.start(ctx)
        if type(steps) is Done:
            result = steps.value
            while links and not (links[-1]._looks and type(result) in _HOLDERS and moments(result)):
                result = links.pop().of(result)
            steps.value = result
        return _finished(steps, links) if links else steps


def _finished(steps: Steps | Done, links: list[OnResult]) -> Steps:
    result = yield steps
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
        self,
        source: DeviceOp[Any],
        function: Callable[[Any], Any],
        label: str | None = None,
        spec: Spec | None = None,
        specs: tuple[Spec | None, ...] | None = None,
    ) -> None:
        if not isinstance(source, DeviceOp):
            raise TypeError(f"{type(self).__name__} needs an op, not {type(source).__name__}")
        if not callable(function):
            refuse_function("map", function, self, source)
        source._consumed = True
        self.source, self._label, self.spec = source, label, spec
        self.function, self._specs = function, specs

    @property
    def specs(self) -> tuple[Spec | None, ...] | None:
        """What is known of each result, if it is known how many there are."""
        return self._specs

    def of(self, result: Any) -> Any:
        """Call the function."""
        mapped = self.function(result)
        if isinstance(mapped, DeviceOp):
            mapped.consumed()
            raise TypeError(f"the function given to {self.label} returned an op, {mapped!r}; use .then(function) to run it")
        return mapped


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
        return (yield follow(self.function(failure), self, ctx))
