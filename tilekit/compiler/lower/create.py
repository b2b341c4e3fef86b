"""Lowering of `tilekit.lang.create`: splats (full, zeros, ones), iota (arange), tiles of scalars (astile)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.compilation import current_config
from tilekit.compiler.codegen.computed import ComputedType, scalars_of
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import known, lowers
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import pack, special_register
from tilekit.compiler.codegen.rounding import directed
from tilekit.compiler.codegen.types import TileType, constant, describe, dtype_of, integer, scalar_dtype, scalar_kind
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.lower.memory import tile_shape
from tilekit.dtypes import DType
from tilekit.lang import create as lang

__all__: list[str] = []


def _named_dtype(ty: types.Type, what: str) -> DType:
    dtype = dtype_of(ty)
    if dtype is None:
        reject(what, f"{describe(ty)} is not a dtype of tilekit; there are {', '.join(d.name for d in dtypes.ALL)}")
    return dtype


def _constant(what: str, value: int) -> Callable[..., Any]:
    def define(shape: types.Type, dtype: types.Type) -> Any:
        extents = tile_shape(shape, what)
        result = TileType.of_shape(_named_dtype(dtype, what), extents, current_config(), splat=True, zero=value == 0)
        element = constant(result.dtype, value)
        return result, lambda builder, *_: pack(builder, [element] * result.layout.num_registers)

    return define


lowers(lang.zeros)(_constant("zeros", 0))
lowers(lang.ones)(_constant("ones", 1))


@lowers(lang.full)
def full(shape: types.Type, value: types.Type, dtype: types.Type) -> Any:
    kind = scalar_kind(value)
    if kind is None:
        reject("full", f"the value is a scalar, not {describe(value)}")
    by_default = isinstance(dtype, types.NoneType) or (isinstance(dtype, types.Omitted) and dtype.value is None)
    chosen = dtypes.scalar_dtype(dtypes.bool_, kind) if by_default else _named_dtype(dtype, "full")
    result = TileType.of_shape(chosen, tile_shape(shape, "full"), current_config(), splat=True)

    def emit(builder: ir.IRBuilder, shape: ir.Value, value_: ir.Value, dtype: ir.Value) -> ir.Value:
        return pack(builder, [convert(builder, value_, scalar_dtype(value), chosen)] * result.layout.num_registers)

    return result, emit


@lowers(lang.arange)
def arange(size: types.Type, dtype: types.Type, start: types.Type, step: types.Type) -> Any:
    (extent,), chosen = tile_shape(types.Tuple([size]), "arange"), _named_dtype(dtype, "arange")
    if chosen == dtypes.bool_:
        reject("arange", "a range of bool does not exist; compare a range of integers instead")
    if problem := dtypes.no_arithmetic(chosen):
        reject("arange", problem)
    for name, bound in (("start", start), ("step", step)):
        if not isinstance(bound, types.Omitted) and scalar_kind(bound) is None:
            reject("arange", f"{name} is a scalar, not {describe(bound)}")
        if problem := lang.outside(name, known(bound), chosen):
            reject("arange", problem)
    plus = arithmetic.binary("+", chosen)
    # A float is rounded after the product too, as NumPy does.
    times = directed("mul", None, False, chosen) if dtypes.is_float(chosen) else arithmetic.binary("*", chosen)

    passed = [n for n, ty in enumerate((start, step)) if not isinstance(ty, types.Omitted)]

    def element(builder: ir.IRBuilder, scalars: Sequence[ir.Value], index: Sequence[ir.Value]) -> ir.Value:
        value = convert(builder, index[0], dtypes.int32, chosen)
        if 1 in passed:
            value = times(builder, value, scalars[-1])
        return plus(builder, scalars[0], value) if 0 in passed else value

    result = ComputedType(f"arange{passed}", chosen, (extent,), current_config(), (chosen,) * len(passed), element)

    def emit(builder: ir.IRBuilder, size: ir.Value, dtype: ir.Value, first: ir.Value, by: ir.Value) -> ir.Value:
        bounds = [((start, first), (step, by))[n] for n in passed]
        return scalars_of(builder, result, [convert(builder, value, scalar_dtype(ty), chosen) for ty, value in bounds])

    return result, emit


_FAR = 1 << 30  # as good as further


@lowers(intrinsics.within)
def within(shape: types.Type, factors: types.Type, *sums: types.Type) -> Any:
    """Each thread has a sum for itself, or one for each of its rows: elements are compared with constants."""
    rows, columns = known(shape)
    numbers = known(factors)
    conditions = list(zip(numbers[::2], numbers[1::2], strict=True))

    def element(builder: ir.IRBuilder, scalars: Sequence[ir.Value], index: Sequence[ir.Value]) -> ir.Value:
        (row, row_by), (column, column_by) = map(_parted, index)
        largest: dict[int, ir.Value] = {}
        for (a, b), sum_ in zip(conditions, scalars, strict=True):
            total = builder.add(sum_, builder.mul(row, integer(32, a)))
            total = builder.add(builder.add(total, builder.mul(column, integer(32, b))), integer(32, a * row_by))
            other = largest.get(b)
            largest[b] = total if other is None else builder.select(builder.icmp_signed(">", total, other), total, other)
        holds = [builder.icmp_signed("<=", total, integer(32, -b * column_by)) for b, total in largest.items()]
        return functools.reduce(builder.and_, holds)

    shown = f"within{conditions}"
    result = ComputedType(shown, dtypes.bool_, (rows, columns), current_config(), (dtypes.int32,) * len(sums), element)

    def emit(builder: ir.IRBuilder, shape: ir.Value, factors: ir.Value, *values: ir.Value) -> ir.Value:
        held = []
        for ty, value in zip(sums, values, strict=True):
            number = convert(builder, value, scalar_dtype(ty), dtypes.int64)
            low, high = (ir.Constant(number.type, bound) for bound in (-_FAR, _FAR))
            number = builder.select(builder.icmp_signed("<", number, low), low, number)
            number = builder.select(builder.icmp_signed(">", number, high), high, number)
            held.append(builder.trunc(number, ir.IntType(32)))
        return scalars_of(builder, result, held)

    return result, emit


def _parted(coordinate: ir.Value) -> tuple[ir.Value, int]:
    """A coordinate of an element as that of a thread, and what its register adds."""
    if isinstance(coordinate, ir.Constant):
        return integer(32, 0), coordinate.constant
    begin, further = coordinate.operands
    return begin, further.constant


def _nested(value: types.Type) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], types.Type]]]:
    """The lengths of nested tuples, and their scalars: where each stands, and its type."""
    if not isinstance(value, types.BaseTuple):
        if scalar_kind(value) is None:
            reject("astile", f"elements are scalars, not {describe(value)}")
        return (), [((), value)]
    parts = [_nested(part) for part in value.types]
    if len({shape for shape, _ in parts}) != 1 or len(parts) & (len(parts) - 1):
        reject("astile", lang.uneven((len(parts),)))
    inner = [((index, *path), ty) for index, (_, leaves) in enumerate(parts) for path, ty in leaves]
    return (len(parts), *parts[0][0]), inner


@lowers(lang.astile)
def astile(value: types.Type, dtype: types.Type) -> Any:
    shape, leaves = _nested(value)
    by_default = isinstance(dtype, types.NoneType) or (isinstance(dtype, types.Omitted) and dtype.value is None)
    kinds = {scalar_kind(ty) for _, ty in leaves}
    kind = next(k for k in (float, int, bool) if k in kinds)
    chosen = dtypes.scalar_dtype(dtypes.bool_, kind) if by_default else _named_dtype(dtype, "astile")
    result = TileType.of_shape(chosen, shape, current_config())

    def flat(vector: tuple[int, ...]) -> int:
        position = 0
        for digit, extent in zip(vector, shape, strict=True):
            position = position * extent + digit
        return position

    def emit(builder: ir.IRBuilder, value: ir.Value, dtype: ir.Value) -> ir.Value:
        held = [
            convert(builder, builder.extract_value(value, path) if path else value, scalar_dtype(ty), chosen)
            for path, ty in leaves
        ]
        thread = special_register(builder, "tid.x")
        bits = [(number, flat(vector)) for number, vector in enumerate(result.layout.thread) if any(vector)]
        tests = [builder.trunc(builder.lshr(thread, integer(32, number)), ir.IntType(1)) for number, _ in bits]

        def choose(position: int, remaining: int) -> ir.Value:
            """The element at `position` XOR what the first thread bits add to it."""
            if not remaining:
                return held[position]
            other = choose(position ^ bits[remaining - 1][1], remaining - 1)
            return builder.select(tests[remaining - 1], other, choose(position, remaining - 1))

        return pack(builder, [choose(flat(vector), len(bits)) for vector in result.layout.coordinates()])

    return result, emit
