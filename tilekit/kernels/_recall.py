"""What a function of this package decides for arguments that look alike is decided once, and found again.

Which kernels are launched, on which views, with which numbers and options follows from shapes, strides, dtypes, alignment and
device of the tensors (their `traits`), and from all other arguments: only addresses differ from one call to the next. When such
a call comes up for the second time, its op notes while it runs what it launches (`Noted`); from the third on the op is built from
that (`Recalled`), and the function is not called. It is called after all by whoever wants more of the op than to run it: what it
is made of, for a picture or to compile.

Not recalled are ops that do more than launch kernels on the arguments, on new tensors, and on views of these.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from types import FunctionType
from typing import Any, ClassVar

from tilekit import dtypes
from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.storage import BORROWED
from tilekit._runtime.stream import Stream
from tilekit._tensor.arrays import is_array
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._launches import Launches
from tilekit.kernels._noting import Note, Noted
from tilekit.kernels._recipe import Launch, Recipe
from tilekit.lang.functions import Function
from tilekit.ops import DeviceOp
from tilekit.ops.at_once import AtOnce
from tilekit.ops.execution import Done, Steps, Submission
from tilekit.ops.fast_path import FAST_PATH
from tilekit.ops.future import DeviceFuture
from tilekit.ops.reactor import awaited, patience, reached
from tilekit.ops.sites import site_of

__all__ = ["SEQUENCES", "Recall", "leaves", "with_leaves"]

SEQUENCES = (tuple, list)
"""What several arguments may be given in, in the place of one."""

_KEPT = 512  # kinds of arguments, of all functions, and as many of before

# The types of arguments that are what they say, and so part of what is looked up. Of functions there is one object for each.
_FUNCTIONS = frozenset((FunctionType, Function))
_PLAIN = frozenset((bool, int, float, str, type, *map(type, dtypes.ALL), *_FUNCTIONS))

# In the place of a recipe: the arguments came up once; what is done for them cannot be recalled.
_ONCE, _NEVER = "once", "never"


class Recall:
    """What is known of a function's calls.

    Args:
        function: takes tensors and other arguments, and returns an op.
        name: what its ops are called.
    """

    __slots__ = ("_function", "_name")

    # Of all functions. When there is no more room in the first, it becomes the second: what is asked for comes back from there.
    known: ClassVar[dict[tuple[Any, ...], Recipe | str]] = {}
    before: ClassVar[dict[tuple[Any, ...], Recipe | str]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, function: Callable[..., DeviceOp[Any]], name: str) -> None:
        self._function, self._name = function, name

    def op(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DeviceOp[Any] | None:
        """The op of a call. None if some arguments have to become tensors first, or have no memory, or are of any other kind.

        Raises:
            Whatever the function raises.
        """
        known: DeviceOp[Any] | None = FAST_PATH.recalled(self.known, self._function, self._name, args, kwargs, _PLAIN)
        if known is not None:
            return known
        tensors: list[Tensor] = []
        key = None if FAST_PATH.key is None else FAST_PATH.key(self._function, args, kwargs, _PLAIN, tensors)
        if key is None:
            tensors = []
            key = _key(self._function, args, kwargs, tensors)
        if key is None or not tensors:
            return None
        recipe = self.known.get(key)
        if recipe is None and (recipe := self.before.get(key)) is not None:
            self.keep(key, recipe)
        if type(recipe) is not Recipe:
            return self._called(key, tensors, *with_tensors(args, kwargs, tensors), recipe)
        op: Recalled = object.__new__(_op_type)  # past DeviceOp's, which takes twice as long
        op._fresh, op._spent, op._consumed, op._site = None, False, False, site_of(sys._getframe(2))
        op._label, op.spec, op._recipe, op._tensors = self._name, recipe.spec, recipe, tensors
        op._inputs, op._begun = (self._function, *with_leaves(args, kwargs, lambda value: value)), None  # a list may change
        return op

    def _called(
        self, key: tuple[Any, ...], tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], known: Any
    ) -> DeviceOp[Any]:
        op = self._function(*args, **kwargs)
        if known is None:
            self.keep(key, _ONCE)
        elif known is _ONCE:
            if type(op) is Launches:
                note = Note(lambda recipe: self.keep(key, recipe or _NEVER), tensors, _calls_functions(args, kwargs))
                op = Noted(op, note)
            else:
                self.keep(key, _NEVER)
        return op.named(self._name)

    def keep(self, key: tuple[Any, ...], recipe: Recipe | str) -> None:
        """Remember what there is to be known of such arguments, in the place of what nobody has asked for long."""
        with self._lock:
            if len(self.known) >= _KEPT and key not in self.known:
                self.before.clear()
                self.before.update(self.known)
                self.known.clear()
            self.known[key] = recipe


def with_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a function is given, with tensors in the places of the arrays among it; all tensors in order are known."""
    left = iter(tensors)
    return with_leaves(args, kwargs, lambda value: next(left) if type(value) is Tensor or is_array(value) else value)


def leaves(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments, those in tuples and lists one by one."""
    flat: list[Any] = []
    for value in (*args, *kwargs.values()):
        if type(value) in SEQUENCES:
            flat += value
        else:
            flat.append(value)
    return flat


def with_leaves(
    args: Sequence[Any], kwargs: dict[str, Any], change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, each of `leaves` changed, in their order, and lists copied."""

    def changed(value: Any) -> Any:
        return type(value)(map(change, value)) if type(value) in SEQUENCES else change(value)

    return tuple(map(changed, args)), {name: changed(value) for name, value in kwargs.items()}


def _key(function: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Tensor]) -> tuple[Any, ...] | None:
    """What all follows from: the function, and what it is given. In `tensors` the tensors. None if there is no telling.

    Each argument begins with something by which it is seen how it goes on: a tensor's traits, None, or a type; of several in the
    place of one it is said how many. Tensors in one
    memory are told by how far they are apart, too: it is the same which of them something else in that memory is found by.
    """
    key: list[Any] = [function, len(args), *kwargs]
    storages: list[Any] = []
    for argument in (*args, *kwargs.values()):
        several = type(argument) in SEQUENCES
        if several:
            key += (tuple, len(argument))
        for value in argument if several else (argument,):
            kind = type(value)
            if kind is Tensor:
                storage = value.storage
                if storage is None:
                    return None
                key.append(value.traits)
                if storage in storages:
                    first = storages.index(storage)
                    key += (first, _apart(tensors[first], value))
                tensors.append(value)
                storages.append(storage)
            elif value is None:
                key.append(None)
            elif kind in _PLAIN:
                key += (kind, value if kind is not float or value else str(value))  # 0.0 == -0.0
            else:
                return None
    return tuple(key)


def _apart(first: Tensor, tensor: Tensor) -> int:
    """How far two tensors in one memory are apart: in elements of both, or else in bytes."""
    if tensor.dtype == first.dtype:
        return tensor.offset - first.offset
    return tensor.offset * tensor.itemsize - first.offset * first.itemsize


def _calls_functions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a kernel may call functions of the user's."""
    return any(type(value) in _FUNCTIONS for value in leaves(args, kwargs))


class Recalled(Launches, AtOnce):
    """An op that does what is known to be done for its arguments."""

    __slots__ = (
        "_begun",
        "_consumed",
        "_fresh",
        "_inputs",
        "_label",
        "_recipe",
        "_site",
        "_spent",
        "_tensors",
        "arguments",
        "spec",
    )

    _recipe: Recipe
    _tensors: list[Tensor]
    _inputs: tuple[Callable[..., DeviceOp[Any]], tuple[Any, ...], dict[str, Any]]
    _by_function: Launches | None = None  # by the function, for who asks
    _begun: Steps | None  # what is left of a run that was to be submitted in one go
    arguments: Any  # the result of one that was: where a future looks for that of a launch

    @property
    def device(self) -> Any:
        """That of the tensors."""
        return self._tensors[0].device

    def _operands(self) -> Sequence[Any]:
        return self._tensors

    def _stream(self, stream: Any) -> Stream:
        if type(stream) is Stream and not stream.closed and stream.device is self._tensors[0].storage.device:  # type: ignore[union-attr]
            return stream
        return super()._stream(stream)

    def _of_function(self) -> Launches:
        """The op that the function makes."""
        if self._by_function is None:
            function, args, kwargs = self._inputs
            args, kwargs = with_tensors(args, kwargs, self._tensors)
            self._by_function = function(*args, **kwargs)  # type: ignore[assignment]
            self._by_function.consumed()  # type: ignore[union-attr]
        return self._by_function  # type: ignore[return-value]

    def _tried(self) -> tuple[list[DeviceOp[Any]], Any]:
        return self._of_function()._tried()

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Launch, at once if what is launched is compiled."""
        if self._begun is not None:
            return self._begun
        bases = self._recipe.bases(self._tensors, ctx)
        if bases is None:
            return self._of_function().start(ctx)
        launches = iter(self._recipe.launches)
        for launch in launches:
            started = launch.op(bases, self._site).start(ctx)
            if type(started) is not Done:
                return self._onwards_from(launches, bases, ctx, started)
        return Done(self._recipe.outcome(bases))

    def _onwards_from(self, left: Iterator[Launch], bases: list[Tensor], ctx: ExecutionContext, started: Any = None) -> Steps:
        if started is not None:
            yield started
        for launch in left:
            yield launch.op(bases, self._site).start(ctx)
        return self._recipe.outcome(bases)

    # Where all is launched in one call, that is all of a submission.

    def sync(self) -> Any:
        """As `DeviceOp.sync`."""
        return self._run_on(self._next_stream())

    def sync_on(self, stream: Any) -> Any:
        """As `DeviceOp.sync_on`."""
        return self._run_on(self._stream(stream))

    def _run_on(self, stream: Stream) -> Any:
        serial = self._submitted(stream, None)
        if serial is None:
            return super().sync_on(stream)
        return self._waited(stream, serial) if serial else self.arguments

    def async_on(self, stream: Any) -> DeviceFuture[Any]:
        """As `DeviceOp.async_on`."""
        where = self._stream(stream)
        serial = None if BORROWED else self._submitted(where, 0.0)
        return super().async_on(where) if serial is None else DeviceFuture.of_submitted(self, where, serial)

    def __await__(self) -> Generator[Any, None, Any]:
        where, poll_s = self._next_stream(), patience()
        serial = self._submitted(where, poll_s)
        if serial is None:
            return (yield from awaited(Submission(self, where)))
        if serial:
            yield from reached(((where, serial),), polled_s=poll_s, op=self)
        return self.arguments

    def _submitted(self, stream: Stream, poll_s: float | None) -> int | None:
        """Submit in one call, and poll for the end for so many seconds, None for as long as a waiter does: the serial behind the
        last launch; 0 if it is over. None where that takes more, and the op is to be run: by `steps`, which do what is left."""
        recipe: Recipe = self._recipe
        if recipe.native is None or self._begun is not None or submitting.submission is not None:
            return None
        if recipe.bound and any(bound.outdated for bound in recipe.bound):
            return None
        bases: list[Tensor] | None = self._tensors
        self.claim()
        try:
            if recipe.new:
                bases = FAST_PATH.new_tensors(self._tensors, recipe.new, stream)
                if bases is None:
                    bases = recipe.bases(self._tensors, ExecutionContext(stream.device, stream))
            done, serial = (0, None) if bases is None else recipe.native.submit(bases, stream, poll_s)
        except Exception as error:
            self.annotate(error)
            raise
        if bases is not None and done == len(recipe.launches):
            self.arguments = recipe.outcome(bases)
            return self._ended(stream) if serial is None else serial
        self._go_on(done, bases, stream)
        return None

    def _go_on(self, done: int, bases: list[Tensor] | None, stream: Stream) -> None:
        """Have what is left run as ops: so many launches were made."""
        if bases is not None and done:
            left = iter(self._recipe.launches[done:])
            self._begun = self._onwards_from(left, bases, ExecutionContext(stream.device, stream))
        self._fresh, self._spent = None, False


# The class of the ops that are made; its methods may be compiled.
_op_type: type[Recalled] = FAST_PATH.recalls(Recalled, Recipe)
