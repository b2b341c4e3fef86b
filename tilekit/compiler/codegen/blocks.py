"""Block index and grid size: what special registers (ctaid, nctaid) say; or, of a folded grid, or one whose blocks are visited in
another order, what follows from them.
"""

from __future__ import annotations

from llvmlite import ir

from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.emit import MAP_NAME, asm, special_register
from tilekit.compiler.codegen.types import i32, i64
from tilekit.compiler.grids import FOLDED_SLOTS, Fold, Visits

__all__ = ["block_counts", "block_index", "pass_the_grid"]

_AXES = "xyz"
_GRID_NAME = "tilekit_blocks"


def block_index(builder: ir.IRBuilder) -> list[ir.Value]:
    """The place of the running block along each axis of the grid, in 32 bits; in 64 where a folded grid needs them."""
    fold, visits = current().fold, current().visits
    if fold is None:
        places = [special_register(builder, f"ctaid.{axis}") for axis in _AXES]
        return places if visits is None else _visited(builder, visits, places, block_counts(builder))
    rest, places = _number(builder, fold), []
    for axis in range(fold.axes - 1):
        count = _count(builder, axis, fold)
        places.append(builder.urem(rest, count))
        rest = builder.udiv(rest, count)
    places.append(rest)
    return places + [ir.Constant(rest.type, 0)] * (len(_AXES) - fold.axes)


def _visited(builder: ir.IRBuilder, visits: Visits, places: list[ir.Value], counts: list[ir.Value]) -> list[ir.Value]:
    """The place of the block that is visited when CUDA starts that at `places`: itself, if 32 bits cannot number them."""
    axes, last = visits.axes, len(visits.axes) - 1
    rest, total = places[last], builder.zext(counts[last], i64)
    for axis in reversed(range(last)):
        rest = builder.add(builder.mul(rest, counts[axis]), places[axis])
        total = builder.mul(total, builder.zext(counts[axis], i64))
    found = list(places)
    if visits.group:
        first, second, *axes = axes
        size = _least(builder, ir.Constant(i32, visits.group), counts[first])
        if axes:
            plane = builder.mul(counts[first], counts[second])
            inner, rest = builder.urem(rest, plane), builder.udiv(rest, plane)
        else:
            inner = rest
        groups = builder.mul(size, counts[second])
        start = builder.mul(builder.udiv(inner, groups), size)
        inner, width = builder.urem(inner, groups), _least(builder, size, builder.sub(counts[first], start))
        found[first] = builder.add(start, builder.urem(inner, width))
        found[second] = builder.udiv(inner, width)
    for number, axis in enumerate(axes, 1):
        found[axis] = rest if number == len(axes) else builder.urem(rest, counts[axis])
        rest = builder.udiv(rest, counts[axis])
    for axis in visits.backwards:
        found[axis] = builder.sub(builder.sub(counts[axis], ir.Constant(i32, 1)), found[axis])
    numbered = builder.icmp_unsigned("<", total, ir.Constant(i64, 1 << 32))
    return [builder.select(numbered, *pair) for pair in zip(found, places, strict=True)]


def _least(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_unsigned("<", a, b), a, b)


def block_counts(builder: ir.IRBuilder) -> list[ir.Value]:
    """The number of blocks along each axis of the grid, in as many bits."""
    fold = current().fold
    if fold is None:
        return [special_register(builder, f"nctaid.{axis}") for axis in _AXES]
    counts = [_count(builder, axis, fold) for axis in range(fold.axes)]
    return counts + [ir.Constant(counts[0].type, 1)] * (len(_AXES) - fold.axes)


def _number(builder: ir.IRBuilder, fold: Fold) -> ir.Value:
    """The number of the running block of a folded grid."""
    column = special_register(builder, "ctaid.x")
    if not fold.wide:
        return column
    row, width = (builder.zext(special_register(builder, name), i64) for name in ("ctaid.y", "nctaid.x"))
    return builder.add(builder.mul(row, width), builder.zext(column, i64))


def _count(builder: ir.IRBuilder, axis: int, fold: Fold) -> ir.Value:
    """The number of blocks along an axis of a folded grid."""
    count = _parameters(builder.function)[axis]
    return count if fold.wide else builder.trunc(count, i32)


def _parameters(kernel: ir.Function) -> list[ir.Argument]:
    """The kernel's parameters for its grid. They go behind its own, before its tensor maps, when they are needed."""
    names = [f"{_GRID_NAME}{axis}" for axis in range(FOLDED_SLOTS)]
    declared = [argument for argument in kernel.args if argument.name in names]
    if declared:
        return declared
    args = list(kernel.args)
    at = next((n for n, argument in enumerate(args) if argument.name.startswith(MAP_NAME)), len(args))
    added = [ir.Argument(kernel, i64, name) for name in names]
    kernel.args = (*args[:at], *added, *args[at:])
    # When numba has lowered a kernel, it makes what it returns nothing, in `type` alone.
    kernel.ftype = ir.FunctionType(kernel.type.pointee.return_type, [argument.type for argument in kernel.args])
    kernel.type = ir.PointerType(kernel.ftype)
    return added


def pass_the_grid(kernel: ir.Function, fold: Fold) -> None:
    """Give a kernel whose grid is folded the parameters for it, and let blocks end at once that are none of the grid's."""
    counts = _parameters(kernel)
    used = kernel.module.globals["llvm.used"]  # where numba has written down what the kernel took before
    used.initializer = ir.Constant(used.value_type, [kernel.bitcast(used.value_type.element)])
    if not fold.wide:  # as many are launched as there are
        return
    builder = ir.IRBuilder(kernel.entry_basic_block)
    builder.position_at_start(kernel.entry_basic_block)
    total: ir.Value = counts[0]
    for count in counts[1 : fold.axes]:
        total = builder.mul(total, count)
    text = "{ .reg .pred none; setp.ge.u64 none, $0, $1; @none exit; }"
    asm(builder, text, "l,l,~{memory}", ir.VoidType(), [_number(builder, fold), total], effect=True)
