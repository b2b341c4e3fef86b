"""How a tile that is folded is cut into what each thread has of it: parts that threads fold by themselves."""

from __future__ import annotations

from typing import NamedTuple

from tilekit.compiler.ir.constants import constant_of
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Value
from tilekit.compiler.ir.types import TileType
from tilekit.compiler.layouts.linear import Layout
from tilekit.lang import reduction
from tilekit.lang.shape import axes_of

__all__ = ["Cut", "cut_of", "folded", "is_fold", "operand_of_axes", "operand_of_shape"]

_FOLDS = (reduction.sum_, reduction.max_, reduction.min_)


class Cut(NamedTuple):
    """How a tile is cut.

    Attributes:
        shape: of the tile, with more dimensions.
        own: those of them that are folded and that one thread has whole.
        across: those that are folded and that threads share.
    """

    shape: tuple[int, ...]
    own: tuple[int, ...]
    across: tuple[int, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """The shape of the parts."""
        return tuple(1 if axis in self.own else extent for axis, extent in enumerate(self.shape))

    @property
    def results(self) -> tuple[int, ...]:
        """The shape of what parts are folded to."""
        return tuple(1 if axis in self.across else extent for axis, extent in enumerate(self.parts))


def cut_of(layout: Layout, axes: tuple[int, ...]) -> Cut | None:
    """How a tile of such a layout is cut that is folded along some axes; None if each thread has them whole.

    A dimension is cut into what registers have and what threads have, in turns, beginning and ending with registers: so parts of
    wider and narrower tiles have one shape.
    """
    shape, own, across = list[int](), list[int](), list[int]()
    for axis, extent in enumerate(layout.shape):
        if axis not in axes or extent == 1:
            shape.append(extent)
            continue
        pieces = [1]
        for bit in reversed(layout.axis(axis)):
            if (bit.kind == "reg") == len(pieces) % 2:
                pieces[-1] *= 2
            else:
                pieces.append(2)
        pieces += [1] * (1 - len(pieces) % 2)
        own += range(len(shape), len(shape) + len(pieces), 2)
        across += range(len(shape) + 1, len(shape) + len(pieces), 2)
        shape += pieces
    return Cut(tuple(shape), tuple(own), tuple(across)) if across else None


def is_fold(operation: Operation) -> bool:
    """Whether it is a sum, a maximum or a minimum of a tile's elements."""
    return operation.kind == "call" and any(operation.what.value is function for function in _FOLDS)


def folded(operation: Operation) -> tuple[Value, tuple[int, ...]] | None:
    """The tile that a fold is of, and the axes; None if that is not known."""
    tile, axis = operation.operands[0], (*operation.operands[1:2], operation.keywords.get("axis", Constant(None)))[0]
    known = constant_of(axis)
    if known is None or not isinstance(tile, Value) or not isinstance(tile.type, TileType):
        return None
    return tile, axes_of(known.value, len(tile.type.shape), "a fold")


def operand_of_shape(shape: tuple[int, ...]) -> Group:
    """Extents, as an operand."""
    return Group(tuple(map(Constant, shape)))


def operand_of_axes(axes: tuple[int, ...]) -> Operand:
    """Axes, as an operand."""
    return Constant(axes[0]) if len(axes) == 1 else Group(tuple(map(Constant, axes)))
