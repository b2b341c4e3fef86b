"""`Noted`: an op of this package that notes what it does while it runs, so that it can be done again: a `Recipe`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.layout import Layout
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._launches import Destination, Launches, allocated
from tilekit.kernels._recipe import Cut, Launch, New, Place, Recipe, View, at_places
from tilekit.launch.launch import KernelLaunch
from tilekit.ops import DeviceOp, Spec
from tilekit.ops.execution import Done, Steps
from tilekit.ops.fast_path import FAST_PATH, KnownLaunches

__all__ = ["Note", "Noted"]


class _NotPlain(Exception):
    """Something is done that no recipe describes."""


class Note:
    """What an op does when it runs.

    Args:
        tell: called with the recipe, when all has been launched; with None if there is none.
        tensors: that the op was given.
        looks: whether kernels may call functions of the user's.
    """

    def __init__(self, tell: Callable[[Recipe | None], object], tensors: list[Tensor], looks: bool) -> None:
        self._tell, self._looks = tell, looks
        self._bases, self._new, self._launches = list(tensors), list[New](), list[KernelLaunch]()
        self._is_plain = True

    def allocated(self, tensor: Tensor) -> None:
        """A tensor was made."""
        self._new.append(New(tensor.nbytes, Layout(tensor.shape, tensor.strides, tensor.dtype), tensor.traits))
        self._bases.append(tensor)

    def yielded(self, op: Any) -> None:
        """An op is about to run."""
        if isinstance(op, KernelLaunch) and type(op) is op.kernel._launch_type and not op._form.lazy:
            self._launches.append(op)
        else:
            self._is_plain = False

    def finished(self, result: Any, spec: Spec | None) -> None:
        """All has been launched."""
        recipe = None
        try:
            if self._is_plain:
                outcome = at_places(tuple(map(self._place_of, result)) if type(result) is tuple else self._place_of(result))
                launches = tuple(map(self._launch, self._launches))
                bound = tuple(launch.bound for launch in launches if launch.bound is not None)
                recipe = Recipe(tuple(self._new), launches, outcome, spec, self._native(), bound)
        except _NotPlain:
            pass
        self._tell(recipe)

    def _launch(self, op: KernelLaunch) -> Launch:
        """A launch that has run."""
        plan = op._form.plans.get(op._form.key(op.arguments, op._options))
        if plan is None:  # it was forgotten since
            raise _NotPlain
        parts = tuple(self._place_of(part) if isinstance(part, (Tensor, Partition)) else part for part in op.arguments)
        form, bound = op._form.alone(op._options, plan), plan.specialisation.bound if self._looks else None
        return Launch(op.kernel, form, op._options, op._label, at_places(parts), bound)

    def _native(self) -> KnownLaunches | None:
        """All of them in one call, if each is one."""
        if FAST_PATH.launches is None:
            return None
        items = []
        for op in self._launches:
            arguments, plan = op.arguments, op._form.plans[op._form.key(op.arguments, op._options)]
            places = (self._place_of(part) if isinstance(part, (Tensor, Partition)) else None for part in arguments)
            shifts = (place and (place.number, 0 if place.view is None else place.view.shift) for place in places)
            items.append((plan.native, arguments, tuple(shifts), op._label or op.label))
        try:
            return FAST_PATH.launches(tuple(items))
        except ValueError:
            return None

    def _place_of(self, value: Any) -> Place:
        """Where a tensor or a partition comes from."""
        cut = None
        if isinstance(value, Partition):
            kind, tensor = type(value), value.tensor
            slots = [name for each in kind.__mro__ for name in each.__dict__.get("__slots__", ())]
            others = [name for name in slots if name not in Partition.__slots__]
            cut = Cut(kind, value.tile_shape, value.traits, tuple((name, getattr(value, name)) for name in others))
        else:
            tensor = value
        if type(tensor) is not Tensor:
            raise _NotPlain
        for number, base in enumerate(self._bases):
            if base is tensor:
                return Place(number, None, cut)
        for number, base in enumerate(self._bases):
            if base.storage is tensor.storage:
                shift = tensor.offset * tensor.itemsize - base.offset * base.itemsize
                sizes = tensor.itemsize, base.itemsize
                view = View(tensor.shape, tensor.strides, tensor.dtype, tensor.traits, tensor.flat[1:], shift, *sizes)
                return Place(number, view, cut)
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
        if note is None or ctx.recording is not None:
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
