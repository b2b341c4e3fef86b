"""Products by each thread's own fused multiply-adds: float32 in full precision, in the order of `k`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.convert_layout import Take
from tilekit.compiler.codegen.emit import pack
from tilekit.compiler.codegen.types import TileType, i32, integer
from tilekit.compiler.layouts import mma as layouts
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.nvidia.fragments import Elements, Operand, Operands
from tilekit.compiler.nvidia.products import MatrixProduct, Way, product_family

__all__ = ["fma"]

_UNROLLED = 512
"""How many multiplications of float32 are written out: of more, ptxas keeps so many operands that registers spill."""
_AHEAD = 1024
"""The same where operands are read a turn ahead, across `k`: ptxas keeps two turns of them, however many there are. The more
there are, the better it deals accumulators out to the two banks of registers: 4096 x 4096 x 4096 reaches 0.94 of cuBLAS with
1024, 0.90 with 512; with 2048, small loops take too long to be fetched (1000 x 1000 x 1000: 0.50 of it, 0.77 with 1024)."""
_SHORT = (
    8  # warps, of which two blocks fit a multiprocessor if a thread has 128 registers: of more that is written out, it has more
)
_LEAST_DEPTH = 4  # elements of 16 bytes, which are read together


@product_family("fma", preference=0)
def fma(product: MatrixProduct) -> Way:
    """Every product that no instruction for matrices computes."""
    a, b = product.tiles[:2]
    shape, depth, warps = product.shape, product.depth, a.config.num_warps
    result = TileType(product.dtype, layouts.accumulator(shape, warps, a.dtype.itemsize), a.config)
    across = a.dtype.itemsize == 4
    operands = Operands(
        product, (a.dtype, b.dtype), layouts.sum_of_products(shape, depth, warps, a.dtype.itemsize), across=across
    )
    written = _AHEAD if across and warps < _SHORT else _UNROLLED
    at_once = min(depth, max(_LEAST_DEPTH, written // result.layout.num_registers))

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value | None) -> ir.Value:
        *factors, total = operands.brought(builder, x, y, z, result, at_once)
        return pack(builder, _sum_of_products(builder, factors, result.layout, at_once, depth, total))

    return Way(result, f"fma.rn.{'f64' if a.dtype.itemsize == 8 else 'f32'}", emit)


def _sum_of_products(
    builder: ir.IRBuilder, operands: Sequence[Operand], layout: Layout, at_once: int, depth: int, total: Elements
) -> Elements:
    """float32, multiplied and added by each thread, in the order of `k`, of which `at_once` are written out.

    What is multiplied with the next `k` is read before this one's is, unless an access brings several `k`: that takes registers.
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
    """What a thread multiplies with one `k`: its rows of `a`, and its columns of `b`.

    Attributes:
        walk: the registers of the result in the order in which they are added to, with the places of both factors: row after row,
            forth and back, so that each takes one of them from the instruction before, which keeps it at hand (`.reuse`).
    """

    def __init__(self, operands: Sequence[Operand], takers: Sequence[Take], layout: Layout) -> None:
        self._takers, self._targets = takers, [operand.target for operand in operands]
        coordinates = layout.coordinates()
        self._rows = sorted({at[:-1] for at in coordinates})
        self._columns = sorted({(*at[:-2], at[-1]) for at in coordinates})
        self.walk = []
        for number, row in enumerate(self._rows):
            columns = [at for at in self._columns if at[:-1] == row[:-1]]
            for column in columns if number % 2 == 0 else reversed(columns):
                places = number, len(self._rows) + self._columns.index(column)
                self.walk.append((layout.register_of((*row, column[-1])), *places))

    def at(self, k: int) -> Elements:
        """The elements of both, one after the other."""
        x, y = self._targets
        rows = [self._takers[0](x.register_of((*at, k))) for at in self._rows]
        return [*rows, *(self._takers[1](y.register_of((*at[:-1], k, at[-1]))) for at in self._columns)]


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
    that come `then`. Those of the next `k` are read before they are multiplied, if they are read `ahead`."""
    held, following = first, list[ir.Value]()
    for k in range(depth):
        held = fragments.at(k) if held is None else held
        if ahead and k + 1 < depth:
            following = fragments.at(k + 1)
        elif ahead and then is not None:
            following = then.at(0)
        for register, row, column in fragments.walk:
            total[register] = arithmetic.fma(builder, held[row], held[column], total[register])
        held = following if ahead else None
    return total, following
