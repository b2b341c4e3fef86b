"""Products of matrices: blocks of the result stay in registers while K goes by."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code, Number, type_of
from tilekit.compiler.cpu.elementwise import cast, mapped
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.shape import reshaped
from tilekit.compiler.cpu.tiles import Buffer, Index, Tile, address_of, kept, new_buffer, of_buffer, write_into
from tilekit.dtypes import DType
from tilekit.lang.matmul import accumulator_dtype, meeting_dtypes, padded_shapes, result_dtype

__all__: list[str] = []

_REGISTERS = {64: 28, 32: 12, 16: 12}  # for sums, by the size of a vector


def _add_product(k: Code, a: Buffer, b: Buffer, c: Buffer) -> None:
    """c += a @ b, all of one dtype, of three dimensions."""
    batch, m, n, depth = a.shape[0], a.shape[1], b.shape[2], a.shape[2]
    dtype = c.dtype
    lanes = min(n, k.machine.vector_bytes // dtype.itemsize)
    columns = min(2, n // lanes)
    rows = min(m, 1 << ((_REGISTERS[k.machine.vector_bytes] // columns).bit_length() - 1))
    kind = type_of(dtype) if lanes == 1 else ir.VectorType(type_of(dtype), lanes)
    k.note("product", (m, n, depth), dtype.name, (rows, columns * lanes))

    def at(buffer: Buffer, *index: Number, along: int | None = None) -> ir.Value:
        return address_of(k, buffer, Index(index, along))[0]

    with k.counted(batch) as z, k.counted(n, columns * lanes) as j, k.counted(m, rows) as i:
        sums = {(r, v): k.slot(kind) for r in range(rows) for v in range(columns)}
        for (r, v), slot in sums.items():
            k.b.store(k.b.load(at(c, z, k.add(i, r), k.add(j, v * lanes)), typ=kind, align=dtype.itemsize), slot)
        with k.counted(depth) as d:
            right = [k.b.load(at(b, z, d, k.add(j, v * lanes)), typ=kind, align=dtype.itemsize) for v in range(columns)]
            for r in range(rows):
                left = k.splat(k.b.load(at(a, z, k.add(i, r), d), typ=type_of(dtype), align=dtype.itemsize), lanes)
                for v in range(columns):
                    slot = sums[r, v]
                    k.b.store(_plus_product(k, left, right[v], k.b.load(slot, typ=kind), dtype), slot)
        for (r, v), slot in sums.items():
            k.b.store(k.b.load(slot, typ=kind), at(c, z, k.add(i, r), k.add(j, v * lanes)), align=dtype.itemsize)


def _plus_product(k: Code, x: ir.Value, y: ir.Value, z: ir.Value, dtype: DType) -> ir.Value:
    if not dtypes.is_float(dtype):
        return k.b.add(k.b.mul(x, y), z)
    return k.intrinsic("fma", x, y, z) if k.machine.fused else k.b.fadd(k.b.fmul(x, y), z)


def _as_batch(p: Any, tile: Tile, dtype: DType) -> Buffer:
    """An operand, in the dtype of the sums, in memory."""
    product = kept(p.k, cast(p.k, tile, dtype), "a product reads it again and again")
    shape = (1,) * (3 - len(tile.shape)) + tile.shape
    if product.buffer is None:
        buffer = new_buffer(p.k, shape, dtype)
        write_into(p.k, buffer, product)
        return buffer
    return Buffer(product.buffer.address, shape, dtype)


def _tf32(p: Any, tile: Tile) -> Tile:
    """float32 rounded to 11 significant bits, ties away from zero."""
    from tilekit.compiler.cpu.code import i32

    k = p.k

    def rounded(v: ir.Value) -> ir.Value:
        bits = k.b.bitcast(v, k.with_lanes(i32, v))
        cut = k.b.and_(k.b.add(bits, k.like(1 << 12, bits)), k.like(0xFFFFE000, bits))
        finite = k.b.fcmp_ordered("<", k.intrinsic("fabs", v), k.like(float("inf"), v))
        return k.b.select(finite, k.b.bitcast(cut, v.type), v)

    return mapped(k, [tile], tile.dtype, rounded, 3)


def _product(p: Any, a: Tile, b: Tile, acc: Tile | None, wide: DType, precision: str) -> Tile:
    """a @ b + acc, in `wide`."""
    k = p.k
    if precision == "tf32" and a.dtype == dtypes.float32:
        a, b = _tf32(p, a), _tf32(p, b)
    left, right = _as_batch(p, a, wide), _as_batch(p, b, wide)
    shape = (*a.shape[:-1], b.shape[-1])
    target = p.target() if acc is not None else None
    if target is None or target.dtype != wide or (target in acc.reads and not acc.aligned if acc is not None else True):
        target = new_buffer(k, shape, wide)
    if acc is not None and acc.buffer is not target:
        write_into(k, target, acc)
    if acc is None:
        zero = Tile(shape, wide, lambda index: k.splat(type_of(wide)(0), index.lanes))
        write_into(k, target, zero)
    _add_product(k, left, right, Buffer(target.address, (1,) * (3 - len(shape)) + shape, wide))
    return of_buffer(k, target)


@lowers("mma")
def mma(p: Any, a: Tile, b: Tile, acc: Tile, *, precision: str) -> Tile:
    """A product, added to a third matrix."""
    wide = accumulator_dtype(a.dtype, b.dtype, "mma")
    return cast(p.k, _product(p, a, b, cast(p.k, acc, wide), wide, precision), acc.dtype)


@lowers("matmul")
def matmul(p: Any, a: Tile, b: Tile, *, precision: str) -> Tile:
    """A product."""
    rows, columns = padded_shapes(a.shape, b.shape)
    first, second = meeting_dtypes(a.dtype, b.dtype, "matmul")
    result, wide = result_dtype(first, second, "matmul"), accumulator_dtype(first, second, "matmul")
    x, y = reshaped(p, cast(p.k, a, first), rows), reshaped(p, cast(p.k, b, second), columns)
    product = cast(p.k, _product(p, x, y, None, wide, precision), result)
    shape = (*(rows[:-1] if len(a.shape) > 1 else ()), *(columns[-1:] if len(b.shape) > 1 else ()))
    return reshaped(p, product, shape)


_ = arithmetic
