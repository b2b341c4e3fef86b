"""`Recipe`: what an op of this package launches, and on what, but for the addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.layout import Layout
from tilekit._tensor.partition import Partition, Traits
from tilekit._tensor.tensor import Tensor, new_tensor
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.launch.launch import KernelLaunch, launch_of
from tilekit.ops import Spec
from tilekit.ops.fast_path import KnownLaunches

__all__ = ["Cut", "Launch", "New", "Place", "Recipe", "View", "at_places"]


class View(NamedTuple):
    """A view of a tensor, or a partition of one, by how it differs from the tensor: its base.

    Attributes:
        shape, strides, dtype, traits: of the view; the base may have another dtype.
        tail: what a kernel gets of it behind the address.
        shift: how far its first element is behind the base's, in bytes.
        itemsize, base_itemsize: bytes of an element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    traits: Traits
    tail: tuple[int, ...]
    shift: int
    itemsize: int
    base_itemsize: int

    def of(self, base: Tensor) -> Tensor:
        """The view of a tensor that has the traits of the one that was noted."""
        view: Tensor = object.__new__(Tensor)
        view.storage, view.shape, view.strides, view.dtype = base.storage, self.shape, self.strides, self.dtype
        view.offset = (base.offset * self.base_itemsize + self.shift) // self.itemsize
        view.traits, view.flat = self.traits, (base.flat[0] + self.shift, *self.tail)
        return view


class Cut(NamedTuple):
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


class Place(NamedTuple):
    """Where a tensor or a partition comes from: a number among the arguments and the new tensors, and what is made of that."""

    number: int
    view: View | None
    cut: Cut | None


def at_places(parts: Any) -> Callable[[Sequence[Tensor]], Any]:
    """A function of tensors that gives what is at a place; or, for a tuple, that of what is at the places in it and of all else.

    Written out it takes no loop, which would take longer than all else that there is to do.
    """
    names: dict[str, Any] = {}

    def item(at: int, part: Any) -> str:
        if type(part) is not Place:
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


class Launch(NamedTuple):
    """A launch: all that is said of it, and its arguments, given tensors.

    Attributes:
        bound: the kernel with the functions that it calls, if some are the user's, who may have defined them anew, as in a
            notebook; then the kernel is called, which looks.
    """

    kernel: Any
    form: Any
    options: Any
    label: str | None
    arguments: Callable[[Sequence[Tensor]], tuple[Any, ...]]
    bound: BoundKernel | None

    def op(self, bases: Sequence[Tensor], site: Any) -> KernelLaunch:
        """The launch on these tensors. It is run at once."""
        kernel, form, options, label, arguments, bound = self
        if bound is not None and bound.outdated:
            launch: KernelLaunch = kernel(*arguments(bases))
            launch._options, launch._site = options, site
        else:
            launch = launch_of(kernel, arguments(bases), form, options, site)
        launch._label, launch._consumed = label, True
        return launch


class New(NamedTuple):
    """A new tensor, C-contiguous."""

    nbytes: int
    layout: Layout
    traits: Traits


class Recipe(NamedTuple):
    """What is done for arguments that look alike.

    Attributes:
        new: the tensors to be made.
        launches: what is launched, in order.
        outcome: the result, given tensors.
        spec: what is known of the result.
        native: makes the launches in one call; None if each is made by itself.
        bound: of kernels that call functions of the user's those of the launches, which may be outdated.
    """

    new: tuple[New, ...]
    launches: tuple[Launch, ...]
    outcome: Callable[[Sequence[Tensor]], Any]
    spec: Spec | None
    native: KnownLaunches | None
    bound: tuple[BoundKernel, ...]

    def bases(self, tensors: list[Tensor], ctx: ExecutionContext) -> list[Tensor] | None:
        """The tensors, and with them the new ones. None where these are aligned otherwise than they were."""
        if not self.new:
            return tensors
        bases = tensors.copy()
        for nbytes, layout, traits in self.new:
            tensor = new_tensor(ctx.allocate(nbytes), layout.shape, layout.dtype)
            if tensor.traits is not traits:
                return None
            bases.append(tensor)
        return bases
