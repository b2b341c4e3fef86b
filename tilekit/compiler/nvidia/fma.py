"""Products by each thread's own fused multiply-adds: float32 in full precision, in the order of `k`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.convert_layout import Take
from tilekit.compiler.codegen.emit import pack
from tilekit.compiler.codegen.types import TileType, i32, integer
from tilekit.compiler.layouts import mma as layouts
from tilekit.compiler.layouts.linear import Layout, Vector
from tilekit.compiler.nvidia.fragments import Elements, Operand, Operands
from tilekit.compiler.nvidia.products import MatrixProduct, Way, product_family

__all__ = ["fma"]

import os
_UNROLLED = int(os.environ.get("UNROLL","512"))
"""How many multiplications of float32 are written out: of more, ptxas keeps so many operands that registers spill."""
_LEAST_DEPTH = 4  # elements of 16 bytes, which are read together


@product_family("fma", preference=0)
def fma(product: MatrixProduct) -> Way:
    """Every product that no instruction for matrices computes."""
    a, b = product.tiles[:2]
    shape, depth, warps = product.shape, product.depth, a.config.num_warps
    result = TileType(product.dtype, layouts.accumulator(shape, warps, a.dtype.itemsize), a.config)
    operands = Operands(product, (a.dtype, b.dtype), layouts.sum_of_products(shape, depth, warps), across=a.dtype.itemsize == 4)
    at_once = min(depth, max(_LEAST_DEPTH, _UNROLLED // result.layout.num_registers))

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value | None) -> ir.Value:
        *factors, total = operands.brought(builder, x, y, z, result, at_once)
        return pack(builder, _sum_of_products(builder, factors, result.layout, at_once, depth, total))

    return Way(result, f"fma.rn.{'f64' if a.dtype.itemsize == 8 else 'f32'}", emit)


def _sum_of_products(
    builder: ir.IRBuilder, operands: Sequence[Operand], layout: Layout, at_once: int, depth: int, total: Elements
) -> Elements:
    """float32, multiplied and added by each thread, in the order of `k`, of which `at_once` are written out.

    What is multiplied with the next `k` is read before this one's is multiplied, where that takes no more than a vector of each.
    """
    takers = [o.taker(builder) for o in operands]
    ahead = not any(operand.deep for operand in operands)
    if at_once == depth or not all(operand.anywhere for operand in operands):
        return _multiplied(builder, _Fragments(operands, takers, layout), depth, total, ahead=ahead)[0]

    def body(k: ir.Value, carried: Elements) -> Elements:
        fragments = _Fragments(operands, [o.taker(builder, k) for o in operands], layout)
        if not ahead:
            return _multiplied(builder, fragments, at_once, carried, ahead=False)[0]
        after = builder.add(k, integer(32, at_once))  # behind the last there is the first once more, which nobody multiplies
        following = _Fragments(operands, [o.taker(builder, after) for o in operands], layout)
        held = carried[len(total) :]
        result, read = _multiplied(builder, fragments, at_once, carried[: len(total)], ahead=True, first=held, then=following)
        return [*result, *read]

    first = _Fragments(operands, takers, layout).at(0) if ahead else []
    return _looped(builder, depth, at_once, [*total, *first], body)[: len(total)]


class _Fragments:
    """What a thread multiplies with one `k`: its rows of `a`, and its columns of `b`."""

    def __init__(self, operands: Sequence[Operand], takers: Sequence[Take], layout: Layout) -> None:
        self._takers, self._targets, self._rank = takers, [o.target for o in operands], len(layout.shape)
        self.coordinates = layout.coordinates()
        rank = self._rank
        self._rows = list(dict.fromkeys(at[: rank - 1] for at in self.coordinates))
        self._columns = list(dict.fromkeys((*at[: rank - 2], at[-1]) for at in self.coordinates))

    def at(self, k: int) -> Elements:
        """The elements of both, one after the other."""
        x, y = self._targets
        rows = [self._takers[0](x.register_of((*at, k))) for at in self._rows]
        columns = [self._takers[1](y.register_of((*at[:-1], k, at[-1]))) for at in self._columns]
        return [*rows, *columns]

    def pair(self, held: Elements, at: Vector) -> tuple[ir.Value, ir.Value]:
        """Those whose product belongs to an element of the result."""
        row, column = self._rows.index(at[:-1]), self._columns.index((*at[:-2], at[-1]))
        return held[row], held[len(self._rows) + column]


def _looped(
    builder: ir.IRBuilder, end: int, step: int, total: Elements, body: Callable[[ir.Value, Elements], Elements]
) -> Elements:
    """`total`, after `total = body(k, total)` for `k` in `range(0, end, step)`, in a loop of the kernel."""
    before, block = builder.block, builder.append_basic_block("products")
    builder.branch(block)
    builder.position_at_end(block)
    k, carried = builder.phi(i32), [builder.phi(value.type) for value in total]
    result = body(k, list(carried))
    following = builder.add(k, integer(32, step))
    for phi, first, next_ in zip([k, *carried], [integer(32, 0), *total], [following, *result], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_, builder.block)
    after = builder.append_basic_block("product")
    builder.cbranch(builder.icmp_unsigned("<", following, integer(32, end)), block, after)
    builder.position_at_end(after)
    return result


def _multiplied(
    builder: ir.IRBuilder,
    fragments: _Fragments,
    depth: int,
    total: Elements,
    *,
    ahead: bool,
    first: Elements | None = None,
    then: _Fragments | None = None,
) -> tuple[Elements, Elements]:
    """The sum of `total` and the products of `depth` fragments, the `first` of which may be there already; and the first of those
    that come `then`."""
    held, read = first, list[ir.Value]()
    for k in range(depth):
        held = fragments.at(k) if held is None else held
        following = None
        if ahead and k + 1 < depth:
            following = fragments.at(k + 1)
        elif then is not None and k + 1 == depth:
            read = then.at(0)
        for register, at in ORDER(list(enumerate(fragments.coordinates))):
            a, b = fragments.pair(held, at)
            total[register] = arithmetic.fma(builder, a, b, total[register])
        held = following
    return total, read


import os


def ORDER(at):
    kind = os.environ.get("ORDER", "base")
    rows = list(dict.fromkeys(c[-2] for _, c in at))
    cols = list(dict.fromkeys(c[-1] for _, c in at))
    if os.environ.get("SORT", "1") == "1":
        rows, cols = sorted(rows), sorted(cols)
    reg = {c[-2:]: (r, c) for r, c in at}

    def serp(xs, odd):
        return xs[::-1] if odd else xs

    out = []
    if kind == "base":
        return at
    if kind == "ij":
        out = [(i, j) for i in rows for j in cols]
    if kind == "ji":
        out = [(i, j) for j in cols for i in rows]
    if kind == "serp":
        out = [(i, j) for n, i in enumerate(rows) for j in serp(cols, n & 1)]
    if kind == "sjrp":
        out = [(i, j) for n, j in enumerate(cols) for i in serp(rows, n & 1)]
    if kind.startswith("strip"):
        w = int(kind[5:])
        out = [
            (i, j)
            for n in range(0, len(cols), w)
            for m, i in enumerate(serp(rows, (n // w) & 1))
            for j in serp(cols[n : n + w], m & 1)
        ]
    if kind.startswith("rstrip"):
        w = int(kind[6:])
        out = [
            (i, j)
            for n in range(0, len(rows), w)
            for m, j in enumerate(serp(cols, (n // w) & 1))
            for i in serp(rows[n : n + w], m & 1)
        ]
    assert len(out) == len(at)
    return [reg[o] for o in out]
