"""Where the tiles of streams begin, along the dimensions that loops do not go along: at multiples of a period, behind an offset.

It says how much there is of the last tile of a tensor, which alone has less than others: of tiles of 64 columns that begin 96
apart, the first at column 64, there are 20 of 660 (see `nvidia.fewer_rows`). Nothing but speed depends on it: each tile is asked
at run time whether it is that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Value
from tilekit.compiler.passes.multiples import ANYWHERE, Congruence, congruence_of, slice_of

__all__ = ["Begins", "begins_of", "combined", "parts_of"]

Begins = tuple[Congruence, ...]
"""Of each dimension of the tensor: anywhere where a loop goes along it."""


def parts_of(row: Operation, defined: Mapping[Value, Operation]) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The parts of the index of tiles, and the extents of these."""
    index, extents = row.operands[1], defined[row.operands[0]].operands[1]  # type: ignore[index]
    return _each(index), _each(extents)


def begins_of(stream: Operand, defined: Mapping[Value, Operation]) -> Begins:
    """Where the tiles of a stream begin: anywhere those of a whole grid, and those that are looked up."""
    row = defined[stream]  # type: ignore[index]
    if row.kind != "item":
        return (ANYWHERE,) * len(_each(row.operands[1]))
    parts, extents = parts_of(row, defined)
    view = defined[row.operands[0]]  # type: ignore[index]
    begins = [ANYWHERE] * len(extents)
    for at, (part, extent) in enumerate(zip(parts, extents, strict=False)):
        assert isinstance(extent, Constant), "types were inferred of these"
        if isinstance(part, Value) or (isinstance(part, Constant) and isinstance(part.value, int)):
            begins[at] = Congruence(0, 0).plus(congruence_of(part, defined), extent.value)
    tensor = view.operands[0]
    while isinstance(tensor, Value) and (outer := defined.get(tensor)) is not None and (bounds := slice_of(outer)) is not None:
        axis, start, _ = bounds
        assert isinstance(axis, Constant), "the language takes no other"
        begins[axis.value] = begins[axis.value].plus(_varying(start, defined))
        tensor = outer.operands[0]
    return tuple(begins)


def combined(several: Iterable[Begins]) -> Begins:
    """Where the tiles of several streams begin, of the same tensor."""
    first, *others = several
    for other in others:
        first = tuple(map(Congruence.join, first, other))
    return first


def _varying(start: Operand, defined: Mapping[Value, Operation]) -> Congruence:
    """Where a slice begins; of several ways, what lies the furthest apart: the others are for tiles that there are none of."""
    operation = defined.get(start) if isinstance(start, Value) else None
    if operation is not None and operation.kind == "call" and operation.what.value is intrinsics.multiple:
        return _varying(operation.operands[0], defined)
    if operation is not None and operation.kind == "if" and all(region.exit == "yield" for region in operation.regions):
        at = operation.results.index(start)  # type: ignore[arg-type]
        return max(congruence_of(region.operands[at], defined) for region in operation.regions)
    return congruence_of(start, defined)


def _each(operand: Operand) -> tuple[Operand, ...]:
    return tuple(operand.parts) if isinstance(operand, Group) else (operand,)
