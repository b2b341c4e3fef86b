"""Operations on each element alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code, type_of
from tilekit.compiler.cpu.convert import constant, converted, wide, wide_dtype
from tilekit.compiler.cpu.directed import calculation, flushed, is_directed, narrowed
from tilekit.compiler.cpu.mathematics.power import KNOWN_POWERS, power
from tilekit.compiler.cpu.mathematics.vectors import Vector
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Index, Tile, element_at, of_value
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
from tilekit.dtypes import DType
from tilekit.lang.tile import common_shape

__all__ = ["as_tile", "cast", "check_fits", "compare", "inverted", "mapped", "meet", "negated", "operate"]

_BITWISE = ("&", "|", "^")


def mapped(k: Code, tiles: Sequence[Tile], dtype: DType, function: Callable[..., ir.Value], cost: int = 1) -> Tile:
    """A function of the elements of tiles that broadcast."""
    shape = common_shape("", [tile.shape for tile in tiles])

    def element(index: Index) -> ir.Value:
        return function(*k.alike([element_at(k, tile, index, shape) for tile in tiles]))

    reads = frozenset().union(*(tile.reads for tile in tiles))
    windows = tuple(window for tile in tiles for window in tile.windows)
    aligned = all(tile.aligned and (tile.shape == shape or not tile.reads) for tile in tiles)
    return Tile(shape, dtype, element, cost + sum(tile.cost for tile in tiles), reads, windows, aligned=aligned)


def cast(k: Code, tile: Tile, dtype: DType) -> Tile:
    """The elements in another dtype."""
    if tile.dtype == dtype:
        return tile
    return mapped(k, [tile], dtype, lambda x: converted(k, x, tile.dtype, dtype))


def as_tile(k: Code, value: Any, dtype: DType) -> Tile:
    """A tile, or a scalar, in a dtype."""
    if isinstance(value, Tile):
        return cast(k, value, dtype)
    if isinstance(value, Scalar):
        return of_value((), dtype, converted(k, value.value, value.dtype, dtype))
    return of_value((), dtype, constant(value, dtype))


def meet(k: Code, *values: Any) -> tuple[list[Tile], DType]:
    """Tiles and scalars in the dtype in which they meet."""
    kinds = [kind_of(value) for value in values if not isinstance(value, Tile)]
    tile_dtypes = [value.dtype for value in values if isinstance(value, Tile)]
    dtype = tile_dtypes[0] if tile_dtypes else dtypes.bool_
    for other in tile_dtypes[1:]:
        dtype = dtypes.common_dtype(dtype, other)
    for kind in kinds:
        if kind is None:
            raise Unsupported("an operand that is neither tile nor scalar")
        dtype = dtypes.scalar_dtype(dtype, kind)
    for value in values:
        if isinstance(value, Scalar) and value.kind is int:
            check_fits(k, value.value, dtype, "scalar", k.what, dtype.name)
    return [as_tile(k, value, dtype) for value in values], dtype


def check_fits(k: Code, value: ir.Value, dtype: DType, *site: Any) -> None:
    """End the block where an i64 does not fit an integer dtype that is narrower."""
    if dtypes.is_float(dtype) or dtype == dtypes.bool_ or dtype == dtypes.int64:
        return
    narrow = converted(k, value, dtypes.int64, dtype)
    back = converted(k, narrow, dtype, dtypes.int64)
    wrong = k.b.icmp_signed("<", value, k.like(0, value)) if dtype == dtypes.uint64 else k.b.icmp_signed("!=", value, back)
    k.check(wrong, k.site(*site), lambda: [value])


def operate(k: Code, symbol: str, x: Any, y: Any) -> Tile:
    """An operator between tiles, or a tile and a scalar."""
    tiles, dtype = meet(k, x, y)
    if symbol == "/":
        dtype = dtypes.quotient_dtype(dtype)
        tiles = [cast(k, tile, dtype) for tile in tiles]
    if symbol == "**":
        return _power(k, tiles, dtype, y if isinstance(y, (bool, int, float)) else None)
    return mapped(k, tiles, dtype, arithmetic.binary(k, symbol, dtype), arithmetic.COSTS.get(symbol, 1))


def compare(k: Code, symbol: str, x: Any, y: Any) -> Tile:
    """A comparison of each two elements."""
    tiles, dtype = meet(k, x, y)
    return mapped(k, tiles, dtypes.bool_, arithmetic.comparison(k, symbol, dtype))


def negated(k: Code, x: Tile) -> Tile:
    """`-x`."""
    return mapped(k, [x], x.dtype, arithmetic.negative(k, x.dtype))


def inverted(k: Code, x: Tile) -> Tile:
    """`~x`."""
    return mapped(k, [x], x.dtype, lambda v: k.b.not_(v))


def _power(k: Code, tiles: list[Tile], dtype: DType, exponent: float | None) -> Tile:
    """A power; by some exponents that are known, as products, quotients and roots."""
    if not dtypes.is_float(dtype):
        return mapped(k, tiles, dtype, arithmetic.power(k, dtype), 40)
    known = KNOWN_POWERS.get(exponent)
    formula, operands, cost = (power, tiles, 60) if known is None else (known, tiles[:1], 2)
    of_values = arithmetic.in_wide(k, dtype, lambda *values: formula(*(Vector(k, value) for value in values)).value)
    return mapped(k, operands, dtype, of_values, cost)


_NAMES = {
    "floordiv": "//", "mod": "%", "pow": "**", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "bitwise_lshift": "<<",
    "bitwise_rshift": ">>",
}  # fmt: skip
_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip


_ROUNDED = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}


def _enter(name: str, symbol: str, function: Callable[..., Tile]) -> None:
    @lowers(name)
    def lower(p: Any, x: Any, y: Any) -> Tile:
        return function(p.k, symbol, x, y)


def _enter_rounded(name: str, symbol: str) -> None:
    @lowers(name)
    def lower(p: Any, x: Any, y: Any, *, rounding_mode: Any, flush_to_zero: bool) -> Tile:
        if not is_directed(rounding_mode) and not flush_to_zero:
            return operate(p.k, symbol, x, y)
        tiles, dtype = meet(p.k, x, y)
        if name == "truediv":
            dtype = dtypes.quotient_dtype(dtype)
            tiles = [cast(p.k, tile, dtype) for tile in tiles]
        return mapped(p.k, tiles, dtype, calculation(p.k, name, dtype, rounding_mode, flush_to_zero), 20)


for _name, _symbol in _NAMES.items():
    _enter(_name, _symbol, operate)
for _name, _symbol in _COMPARISONS.items():
    _enter(_name, _symbol, compare)
for _name, _symbol in _ROUNDED.items():
    _enter_rounded(_name, _symbol)


@lowers("fma")
def fma(p: Any, x: Any, y: Any, z: Any, *, rounding_mode: Any, flush_to_zero: bool) -> Tile:
    """`x * y + z`, rounded once."""
    tiles, dtype = meet(p.k, x, y, z)
    if not dtypes.is_float(dtype):
        times, plus = (arithmetic.binary(p.k, symbol, dtype) for symbol in "*+")
        return mapped(p.k, tiles, dtype, lambda u, v, w: plus(times(u, v), w), 2)
    return mapped(p.k, tiles, dtype, calculation(p.k, "fma", dtype, rounding_mode, flush_to_zero), 3)


@lowers("where")
def where(p: Any, condition: Tile, x: Any, y: Any) -> Tile:
    """One of two elements."""
    (_, a, b), dtype = meet(p.k, condition, x, y)
    return mapped(p.k, [condition, a, b], dtype, lambda c, u, v: p.k.b.select(c, u, v))


@lowers("maximum", "minimum")
def extreme(p: Any, x: Any, y: Any, *, propagate_nan: bool, flush_to_zero: bool, name: str) -> Tile:
    """The larger or the smaller one."""
    tiles, dtype = meet(p.k, x, y)
    if flush_to_zero:
        tiles = [mapped(p.k, [tile], dtype, lambda value: flushed(p.k, value), 3) for tile in tiles]
    return mapped(p.k, tiles, dtype, arithmetic.extremum(p.k, name == "maximum", dtype, propagate_nan))


@lowers("clip")
def clip(p: Any, x: Any, lo: Any, hi: Any) -> Tile:
    """Between two bounds."""
    tiles, dtype = meet(p.k, x, lo, hi)
    larger, smaller = (arithmetic.extremum(p.k, largest, dtype) for largest in (True, False))
    return mapped(p.k, tiles, dtype, lambda v, low, high: smaller(larger(v, low), high), 2)


@lowers("astype")
def astype(p: Any, x: Tile, dtype: Any, *, rounding_mode: Any = None) -> Tile:
    """In another dtype."""
    target = dtypes.as_dtype(dtype)
    if not is_directed(rounding_mode):
        return cast(p.k, x, target)
    return mapped(p.k, [x], target, lambda v: narrowed(p.k, wide(p.k, v, x.dtype), wide_dtype(x.dtype), target, rounding_mode), 8)


@lowers("bitcast")
def bitcast(p: Any, x: Tile, dtype: Any) -> Tile:
    """The bits as those of another dtype."""
    target = dtypes.as_dtype(dtype)
    return mapped(p.k, [x], target, lambda v: p.k.b.bitcast(v, p.k.with_lanes(type_of(target), v)), 0)


@lowers("abs")
def absolute(p: Any, x: Tile) -> Tile:
    """The magnitude."""
    k, dtype = p.k, x.dtype
    if dtype == dtypes.bfloat16:
        return mapped(k, [x], dtype, lambda v: k.b.and_(v, k.like(0x7FFF, v)))
    if dtypes.is_float(dtype):
        return mapped(k, [x], dtype, lambda v: k.intrinsic("fabs", v))
    if dtype.kind != "i":
        return x
    return mapped(k, [x], dtype, lambda v: k.b.select(k.b.icmp_signed("<", v, k.like(0, v)), k.b.neg(v), v), 2)


@lowers("sign")
def sign(p: Any, x: Tile) -> Tile:
    """1, 0, -1, or NaN."""
    k, dtype = p.k, x.dtype
    wider = wide_dtype(dtype)
    more, less = (arithmetic.comparison(k, symbol, wider) for symbol in "><")

    def of(v: ir.Value) -> ir.Value:
        zero = k.like(0.0 if dtypes.is_float(dtype) else 0, v)
        ones = [k.like(float(n) if dtypes.is_float(dtype) else n, v) for n in (1, -1)]
        same = k.b.fcmp_ordered("==", v, zero) if dtypes.is_float(dtype) else None
        rest = v if same is None else k.b.select(same, zero, v)
        if dtype.kind == "u":
            return k.b.select(more(v, zero), ones[0], zero)
        return k.b.select(more(v, zero), ones[0], k.b.select(less(v, zero), ones[1], rest))

    return mapped(k, [x], dtype, arithmetic.in_wide(k, dtype, of), 2)


@lowers("copysign")
def copysign(p: Any, x: Any, y: Any) -> Tile:
    """The magnitude of one with the sign of the other."""
    tiles, dtype = meet(p.k, x, y)
    return mapped(p.k, tiles, dtype, arithmetic.in_wide(p.k, dtype, lambda u, v: p.k.intrinsic("copysign", u, v)))


@lowers("floor", "ceil", "trunc", "round")
def rounded(p: Any, x: Tile, *, name: str) -> Tile:
    """A whole number."""
    intrinsic = {"round": "rint"}.get(name, name)
    return mapped(p.k, [x], x.dtype, arithmetic.in_wide(p.k, x.dtype, lambda v: p.k.intrinsic(intrinsic, v)), 2)


@lowers("negative")
def negative(p: Any, x: Tile) -> Tile:
    """The negative."""
    return negated(p.k, x)


@lowers("bitwise_not")
def bitwise_not(p: Any, x: Tile) -> Tile:
    """All bits the other way round."""
    return inverted(p.k, x)
