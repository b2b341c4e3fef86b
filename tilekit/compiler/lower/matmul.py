"""Lowering of `tilekit.lang.matmul`: what computes a product, the families of instructions in `compiler.nvidia` say."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import known, lowers, lowers_operator
from tilekit.compiler.codegen.diagnose import in_words
from tilekit.compiler.codegen.emit import pack, unpack
from tilekit.compiler.codegen.types import register_type
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.lower.shape import constant
from tilekit.compiler.nvidia import fma, mma_sync, wgmma  # each registers its instructions
from tilekit.compiler.nvidia.products import MatrixProduct, Way, choose, selected
from tilekit.compiler.nvidia.wgmma_types import AbreastType, joined, split
from tilekit.compiler.passes.abreast import TOGETHER
from tilekit.lang import matmul as lang

__all__ = ["FAMILIES"]

FAMILIES = (wgmma, mma_sync, fma)
"""The modules that have instructions for products."""


@lowers(lang.mma, deferred=True)
def mma(a: types.Type, b: types.Type, acc: types.Type, precision: types.Type) -> Any:
    chosen = in_words("mma", lang.check_precision, constant(precision, "mma", "precision"))
    result, emit = choose(MatrixProduct("mma", a, b, acc, chosen))
    return result, lambda builder, x, y, z, _: emit(builder, x, y, z)


@lowers(intrinsics.join, deferred=True)
def join(*tiles: types.Type) -> Any:
    return AbreastType(tiles), lambda builder, *values: joined(builder, values)


@lowers(intrinsics.part, deferred=True)
def part(joined: types.Type, which: types.Type) -> Any:
    assert isinstance(joined, AbreastType), "see `passes.abreast`"
    at = known(which)
    return joined.parts[at], lambda builder, value, _: builder.extract_value(value, at)


@lowers(intrinsics.mma_abreast, deferred=True)
def mma_abreast(a: types.Type, b: types.Type, acc: types.Type, precision: types.Type) -> Any:
    """As one product; or if no instruction is so wide, as several."""
    assert isinstance(b, types.BaseTuple) and isinstance(acc, AbreastType), "see `passes.abreast`"
    how = in_words("mma", lang.check_precision, constant(precision, "mma", "precision"))
    product = MatrixProduct("mma", a, b, acc, how)
    way = wgmma.warpgroup_product(product)
    if isinstance(way, Way):
        result, emit_one = selected(product, way)
        return result, lambda builder, x, y, z, _: emit_one(builder, x, y, z)
    refused = (TOGETHER, way)
    each = [choose(MatrixProduct("mma", a, tile, total, how), refused) for tile, total in zip(b, acc.parts, strict=True)]

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value, _: ir.Value) -> ir.Value:
        tiles = [builder.extract_value(y, at) for at in range(len(each))]
        products = zip(each, tiles, split(builder, z), strict=True)
        return joined(builder, [product(builder, x, tile, total) for (_, product), tile, total in products])

    return AbreastType(tuple(result for result, _ in each)), emit


def _matmul(what: str, a: types.Type, b: types.Type, precision: str) -> Any:
    tiles = MatrixProduct(what, a, b, None, precision).tiles
    shapes = lang.padded_shapes(tiles[0].shape, tiles[1].shape)
    met = in_words(what, lang.meeting_dtypes, tiles[0].dtype, tiles[1].dtype)
    final = in_words(what, lang.result_dtype, *met)
    matrices = [
        (tile if tile.shape == shape else tile.at(tile.layout.reshape(shape))).like(dtype)
        for tile, shape, dtype in zip(tiles, shapes, met, strict=True)
    ]
    product, emit_product = choose(MatrixProduct(what, *matrices, None, precision))
    alone = [d for d, tile in zip((-2, -1), tiles, strict=True) if len(tile.shape) == 1]  # 1 in the product, and not there
    shape = tuple(n for d, n in enumerate(product.shape) if d - len(product.shape) not in alone)
    result = product.at(product.layout.reshape(shape)).like(final)

    def emit(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        x, y = (
            pack(builder, [convert(builder, e, tile.dtype, dtype) for e in unpack(builder, value)])
            for tile, dtype, value in zip(tiles, met, values[:2], strict=True)
        )
        elements = unpack(builder, emit_product(builder, x, y, None))
        return pack(builder, [convert(builder, e, product.dtype, final) for e in elements])

    return result, emit


@lowers(lang.matmul)
def matmul(a: types.Type, b: types.Type, precision: types.Type) -> Any:
    chosen = in_words("matmul", lang.check_precision, constant(precision, "matmul", "precision"))
    return _matmul("matmul", a, b, chosen)


for _operator in (operator.matmul, operator.imatmul):
    lowers_operator(_operator, "@")(lambda x, y: _matmul("@", x, y, "ieee"))

assert register_type(dtypes.bfloat16) == register_type(dtypes.int16), "16-bit elements fill words alike"
