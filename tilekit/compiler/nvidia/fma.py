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
_LEAST_DEPTH = 4  # elements of 16 bytes, which are read together


@product_family("fma", preference=0)
def fma(product: MatrixProduct) -> Way:
    """Every product that no instruction for matrices computes."""
    a, b = product.tiles[:2]
    shape, depth, warps = product.shape, product.depth, a.config.num_warps
    result = TileType(product.dtype, layouts.accumulator(shape, warps, a.dtype.itemsize), a.config)
    operands = Operands(product, (a.dtype, b.dtype), layouts.sum_of_products(shape, depth, warps))
    at_once = min(depth, max(_LEAST_DEPTH, _UNROLLED // result.layout.num_registers))

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value | None) -> ir.Value:
        *factors, total = operands.brought(builder, x, y, z, result, at_once)
        return pack(builder, _sum_of_products(builder, factors, result.layout, at_once, depth, total))

    return Way(result, f"fma.rn.{'f64' if a.dtype.itemsize == 8 else 'f32'}", emit)


def _sum_of_products(
    builder: ir.IRBuilder, operands: Sequence[Operand], layout: Layout, at_once: int, depth: int, total: Elements
) -> Elements:
    """float32, multiplied and added by each thread, in the order of `k`, of which `at_once` are written out."""
    if at_once == depth or not all(operand.anywhere for operand in operands):
        return _multiplied(builder, operands, [o.taker(builder) for o in operands], layout, depth, total)

    def body(k: ir.Value, carried: Elements) -> Elements:
        return _multiplied(builder, operands, [o.taker(builder, k) for o in operands], layout, at_once, carried)

    return _looped(builder, depth, at_once, total, body)


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
    builder: ir.IRBuilder, operands: Sequence[Operand], takers: Sequence[Take], layout: Layout, depth: int, total: Elements
) -> Elements:
    rank = len(layout.shape)
    x, y = (operand.target for operand in operands)
    for k in range(depth):
        for register, at in enumerate(layout.coordinates()):
            a = takers[0](x.register_of((*at[: rank - 1], k)))
            b = takers[1](y.register_of((*at[: rank - 2], k, at[-1])))
            total[register] = arithmetic.fma(builder, a, b, total[register])
    return total
