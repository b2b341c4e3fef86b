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
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

from tilekit import dtypes
from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.stream import Stream
from tilekit._tensor.partition import Partition, Traits
from tilekit._tensor.tensor import Tensor, new_tensor
from tilekit.kernels._launches import Destination, Launches, allocated
from tilekit.lang.functions import Function
from tilekit.launch.launch import KernelLaunch, launch_of
from tilekit.ops import DeviceOp, Spec
from tilekit.ops.execution import Done, Steps
from tilekit.ops.fast_path import FAST_PATH
from tilekit.ops.sites import site_of

__all__ = ["Recall"]

_KEPT = 1024  # kinds of arguments, of all functions

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

    known: ClassVar[OrderedDict[tuple[Any, ...], Recipe | str]] = (
        OrderedDict()
    )  # of all functions; what was asked for last is last
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, function: Callable[..., DeviceOp[Any]], name: str) -> None:
        self._function, self._name = function, name

    def op(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DeviceOp[Any] | None:
        """The op of a call. None if some arguments have to become tensors first, or have no memory, or are of any other kind.

        Raises:
            Whatever the function raises.
        """
        tensors: list[Tensor] = []
        key = None if FAST_PATH.key is None else FAST_PATH.key(self._function, args, kwargs, _PLAIN, tensors)
        if key is None:
            tensors = []
            key = _key(self._function, args, kwargs, tensors)
        if key is None or not tensors:
            return None
        recipe = self.known.get(key)
        if type(recipe) is not Recipe:
            return self._called(key, tensors, args, kwargs, recipe)
        try:
            self.known.move_to_end(key)
        except KeyError:  # another thread has just dropped it
            self.keep(key, recipe)
        op: Recalled = object.__new__(Recalled)  # past DeviceOp's, which takes twice as long
        op._fresh, op._spent, op._consumed, op._site = None, False, False, site_of(sys._getframe(2))
        op._label, op.spec, op._recipe, op._tensors = self._name, recipe.spec, recipe, tensors
        op._call = self._function, args, kwargs
        return op

    def _called(
        self, key: tuple[Any, ...], tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], known: Any
    ) -> DeviceOp[Any]:
        op = self._function(*args, **kwargs)
        if known is None:
            self.keep(key, _ONCE)
        elif known is _ONCE:
            if type(op) is Launches:
                op = Noted(op, Note(self, key, tensors, _calls_functions(args, kwargs)))
            else:
                self.keep(key, _NEVER)
        return op.named(self._name)

    def keep(self, key: tuple[Any, ...], recipe: Recipe | str) -> None:
        """Remember what there is to be known of such arguments, in the place of what nobody has asked for the longest."""
        with self._lock:
            self.known[key] = recipe
            self.known.move_to_end(key)
            while len(self.known) > _KEPT:
                self.known.popitem(last=False)


def _key(function: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Tensor]) -> tuple[Any, ...] | None:
    """What all follows from: the function, and what it is given. In `tensors` the tensors. None if there is no telling.

    Each argument begins with something by which it is seen how it goes on: a tensor's traits, None, or a type. Tensors in one
    memory are told by how far they are apart, too: it is the same which of them something else in that memory is found by.
    """
    key: list[Any] = [function, len(args), *kwargs]
    storages: list[Any] = []
    for value in (*args, *kwargs.values()):
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
        elif kind is tuple:
            inner: list[Tensor] = []
            part = _key(None, value, {}, inner)
            if part is None or inner:
                return None
            key += (kind, part)
        else:
            return None
    return tuple(key)


def _apart(first: Tensor, tensor: Tensor) -> int:
    """How far two tensors in one memory are apart: in elements of both, or else in bytes."""
    if tensor.dtype == first.dtype:
        return tensor.offset - first.offset
    return tensor.offset * tensor.itemsize - first.offset * first.itemsize


def _calls_functions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a kernel may call functions of the user's, which may be defined anew, as in a notebook."""
    return any(type(value) in _FUNCTIONS for value in (*args, *kwargs.values()))


# ------------------------------------------------------------------------------------------------------------------- what is kept


class _View(NamedTuple):
    """A view of a tensor, or a partition of one, by how it differs from the tensor: its base.

    Attributes:
        shape, strides, dtype, traits: of the view, whose elements are the base's.
        tail: what a kernel gets of it behind the address.
        offset, shift: how far its first element is behind the base's, in elements and in bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    traits: Traits
    tail: tuple[int, ...]
    offset: int
    shift: int

    def of(self, base: Tensor) -> Tensor:
        """The view of a tensor that has the traits of the one that was noted."""
        view: Tensor = object.__new__(Tensor)
        view.storage, view.shape, view.strides, view.dtype = base.storage, self.shape, self.strides, self.dtype
        view.offset, view.traits, view.flat = base.offset + self.offset, self.traits, (base.flat[0] + self.shift, *self.tail)
        return view


class _Cut(NamedTuple):
    """A partition: its class, and what it has but for the tensor and its storage."""

    kind: type[Partition]
    tile_shape: tuple[int, ...]
    traits: Traits
    others: tuple[tuple[str, Any], ...]

    def of(self, tensor: Tensor) -> Partition:
        """The partition of a tensor that has the traits of the one that was noted."""
        kind, tile_shape, traits, others = self
        partition: Partition = object.__new__(kind)
        partition.tensor, partition.storage, partition.tile_shape, partition.traits = tensor, tensor.storage, tile_shape, traits
        for name, value in others:
            setattr(partition, name, value)
        return partition


class _Place(NamedTuple):
    """Where a tensor or a partition comes from: a number among the arguments and the new tensors, and what is made of that."""

    number: int
    view: _View | None
    cut: _Cut | None


def _given(parts: Any) -> Callable[[Sequence[Tensor]], Any]:
    """A function of tensors that gives what is at a place; or, for a tuple, that of what is at the places in it and of all else.

    Written out it takes no loop, which would take longer than all else that there is to do.
    """
    names: dict[str, Any] = {}

    def item(at: int, part: Any) -> str:
        if type(part) is not _Place:
            names[f"constant_{at}"] = part
            return f"constant_{at}"
        text = f"bases[{part.number}]"
        for kind, what in (("view", part.view), ("cut", part.cut)):
            if what is not None:
                names[f"{kind}_{at}"] = what.of
                text = f"{kind}_{at}({text})"
        return text

    if type(parts) is tuple:
        text = "".join(f"{item(at, part)}, " for at, part in enumerate(parts))
        return eval(f"lambda bases: ({text})", names)  # type: ignore[no-any-return]
    return eval(f"lambda bases: {item(0, parts)}", names)  # type: ignore[no-any-return]


class _Launch(NamedTuple):
    """A launch: all that is said of it, and its arguments, given tensors."""

    kernel: Any
    form: Any
    options: Any
    label: str | None
    arguments: Callable[[Sequence[Tensor]], tuple[Any, ...]]
    looks: bool  # whether the kernel has to look first if functions that it calls are still the same

    def op(self, bases: Sequence[Tensor], site: Any) -> KernelLaunch:
        """The launch on these tensors. It is run at once."""
        kernel, form, options, label, arguments, looks = self
        if looks:
            launch: KernelLaunch = kernel(*arguments(bases))
            launch._options, launch._site = options, site
        else:
            launch = launch_of(kernel, arguments(bases), form, options, site)
        launch._label, launch._consumed = label, True
        return launch


class _New(NamedTuple):
    """A new tensor."""

    nbytes: int
    shape: tuple[int, ...]
    dtype: Any
    traits: Traits


class Recipe(NamedTuple):
    """What is done for arguments that look alike.

    Attributes:
        new: the tensors to be made.
        launches: what is launched, in order.
        alone: the launch, if there is one.
        outcome: the result, given tensors.
        spec: what is known of the result.
    """

    new: tuple[_New, ...]
    launches: tuple[_Launch, ...]
    alone: _Launch | None
    outcome: Callable[[Sequence[Tensor]], Any]
    spec: Spec | None

    def bases(self, tensors: list[Tensor], ctx: ExecutionContext) -> list[Tensor] | None:
        """The tensors, and with them the new ones. None where these are aligned otherwise than they were."""
        if not self.new:
            return tensors
        bases = tensors.copy()
        for nbytes, shape, dtype, traits in self.new:
            tensor = new_tensor(ctx.allocate(nbytes), shape, dtype)
            if tensor.traits is not traits:
                return None
            bases.append(tensor)
        return bases


# ------------------------------------------------------------------------------------------------------------------------- noting


class _NotPlain(Exception):
    """Something is done that no recipe describes."""


class Note:
    """What an op does when it runs.

    Args:
        recall: who is told.
        key: for which arguments.
        tensors: these.
        looks: whether kernels may call functions that are defined anew.
    """

    def __init__(self, recall: Recall, key: tuple[Any, ...], tensors: list[Tensor], looks: bool) -> None:
        self._recall, self._key, self._looks = recall, key, looks
        self._bases, self._new, self._launches = list(tensors), list[_New](), list[_Launch]()
        self._is_plain = True

    def allocated(self, tensor: Tensor) -> None:
        """A tensor was made."""
        self._new.append(_New(tensor.nbytes, tensor.shape, tensor.dtype, tensor.traits))
        self._bases.append(tensor)

    def yielded(self, op: Any) -> None:
        """An op is about to run."""
        try:
            self._launches.append(self._launch(op))
        except _NotPlain:
            self._is_plain = False

    def finished(self, result: Any, spec: Spec | None) -> None:
        """All has been launched."""
        recipe: Recipe | str = _NEVER
        try:
            if self._is_plain:
                outcome = _given(tuple(map(self._place, result)) if type(result) is tuple else self._place(result))
                alone = self._launches[0] if len(self._launches) == 1 else None
                recipe = Recipe(tuple(self._new), tuple(self._launches), alone, outcome, spec)
        except _NotPlain:
            pass
        self._recall.keep(self._key, recipe)

    def _launch(self, op: Any) -> _Launch:
        if not isinstance(op, KernelLaunch) or type(op) is not op.kernel._launch_type or op._form.lazy:
            raise _NotPlain
        parts = tuple(self._place(part) if isinstance(part, (Tensor, Partition)) else part for part in op.arguments)
        return _Launch(op.kernel, op._form, op._options, op._label, _given(parts), self._looks)

    def _place(self, value: Any) -> _Place:
        """Where a tensor or a partition comes from."""
        cut = None
        if isinstance(value, Partition):
            kind, tensor = type(value), value.tensor
            slots = [name for each in kind.__mro__ for name in each.__dict__.get("__slots__", ())]
            others = [name for name in slots if name not in Partition.__slots__]
            cut = _Cut(kind, value.tile_shape, value.traits, tuple((name, getattr(value, name)) for name in others))
        else:
            tensor = value
        if type(tensor) is not Tensor:
            raise _NotPlain
        for number, base in enumerate(self._bases):
            if base is tensor:
                return _Place(number, None, cut)
        for number, base in enumerate(self._bases):
            if base.storage is tensor.storage and base.dtype == tensor.dtype:
                offset = tensor.offset - base.offset
                shift, tail = offset * tensor.itemsize, tensor.flat[1:]
                view = _View(tensor.shape, tensor.strides, tensor.dtype, tensor.traits, tail, offset, shift)
                return _Place(number, view, cut)
        raise _NotPlain


class Noted(Launches):
    """An op that notes what it does, see `Note`."""

    def __init__(self, op: Launches, note: Note) -> None:
        super().__init__(op._like, op._steps, op.spec)
        self._note: Note | None = note
        op.consumed()

    def begin(self, ctx: ExecutionContext) -> Generator[DeviceOp[Any], Any, Any]:
        """The steps. Where they are written down and not run, as in a graph, nothing is noted."""
        note = self._note
        if note is None or type(ctx) is not ExecutionContext:
            self._note = None
            return super().begin(ctx)

        def new(destination: Destination) -> Tensor:
            tensor = allocated(ctx, destination)
            if tensor is not destination:
                note.allocated(tensor)
            return tensor

        return self._steps(new)

    def _started(self, op: Any, ctx: ExecutionContext) -> Steps | Done:
        if self._note is not None:
            self._note.yielded(op)
        return super()._started(op, ctx)

    def _result(self, value: Any) -> Any:
        note, self._note = self._note, None
        if note is not None:
            note.finished(value, self.spec)
        return super()._result(value)


# ---------------------------------------------------------------------------------------------------------------------- recalling


class Recalled(Launches):
    """An op that does what is known to be done for its arguments.

    One launch is left to the launch itself: who waits for it, waits for this.
    """

    __slots__ = ("_call", "_consumed", "_fresh", "_label", "_recipe", "_site", "_spent", "_tensors", "spec")

    _recipe: Recipe
    _tensors: list[Tensor]
    _call: tuple[Callable[..., DeviceOp[Any]], tuple[Any, ...], dict[str, Any]]
    _made: Launches | None = None  # by the function, for who asks

    @property
    def device(self) -> Any:
        """That of the tensors."""
        return self._tensors[0].device

    def _operands(self) -> Sequence[Any]:
        return self._tensors

    def _of_function(self) -> Launches:
        """The op that the function makes."""
        if self._made is None:
            function, args, kwargs = self._call
            self._made = function(*args, **kwargs)  # type: ignore[assignment]
            self._made.consumed()  # type: ignore[union-attr]
        return self._made  # type: ignore[return-value]

    def _tried(self) -> tuple[list[DeviceOp[Any]], Any]:
        return self._of_function()._tried()

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Launch, at once if what is launched is compiled."""
        bases = self._recipe.bases(self._tensors, ctx)
        if bases is None:
            return self._of_function().start(ctx)
        launches = iter(self._recipe.launches)
        for launch in launches:
            started = launch.op(bases, self._site).start(ctx)
            if type(started) is not Done:
                return self._onwards_from(started, launches, bases, ctx)
        return Done(self._recipe.outcome(bases))

    def _onwards_from(self, started: Any, left: Iterator[_Launch], bases: list[Tensor], ctx: ExecutionContext) -> Steps:
        yield started
        for launch in left:
            yield launch.op(bases, self._site).start(ctx)
        return self._recipe.outcome(bases)

    # One launch runs as it would by itself.

    def sync(self) -> Any:
        """As `DeviceOp.sync`."""
        return self._sync(None)

    def sync_on(self, stream: Any) -> Any:
        """As `DeviceOp.sync_on`."""
        return self._sync(self._stream(stream))

    def _sync(self, stream: Stream | None) -> Any:
        recipe, tensors = self._recipe, self._tensors
        if recipe.alone is None or submitting.submission is not None:  # the latter is refused there
            return super().sync() if stream is None else super().sync_on(stream)
        self.claim()
        try:
            if recipe.new:
                stream = stream or self._next_stream()
                tensors = recipe.bases(tensors, ExecutionContext(stream.device, stream))  # type: ignore[assignment]
                if tensors is None:
                    return self._of_function().sync_on(stream)
            launch = recipe.alone.op(tensors, self._site)
            if stream is None:
                launch.sync()
            else:
                launch.sync_on(stream)
        except Exception as error:
            self.annotate(error)
            raise
        return recipe.outcome(tensors)

    def __await__(self) -> Generator[Any, None, Any]:
        recipe = self._recipe
        if recipe.alone is None or recipe.new or submitting.submission is not None:
            return (yield from super().__await__())
        self.claim()
        try:
            yield from recipe.alone.op(self._tensors, self._site).__await__()
        except Exception as error:
            self.annotate(error)
            raise
        return recipe.outcome(self._tensors)
