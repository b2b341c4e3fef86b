"""Lowering of `tilekit.lang.randomness`: the counter-based generator Philox, then what its words become.

Elements of one counter that a thread holds, as far as `known_bits` sees it, share the computation of its words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.arithmetic import libdevice
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import ABSENT, known, lowers
from tilekit.compiler.codegen.diagnose import refuse, reject
from tilekit.compiler.codegen.emit import pack, unpack
from tilekit.compiler.codegen.known_bits import sum_of
from tilekit.compiler.codegen.operands import broadcast
from tilekit.compiler.codegen.types import TileType, describe, dtype_of, i32, i64, integer, prevailing, scalar_dtype, scalar_kind
from tilekit.dtypes import DType
from tilekit.errors import CompileError
from tilekit.lang import randomness as lang
from tilekit.lang.tile import common_shape

__all__: list[str] = []

_f32, _f64 = ir.FloatType(), ir.DoubleType()
Words = list[ir.Value]
Key = tuple[ir.Value, ir.Value]


def _rounds(b: ir.IRBuilder, counter: Words, key: Key) -> Words:
    """Ten rounds of Philox on four i32."""
    c0, c1, c2, c3 = counter
    key0, key1 = key

    def both_halves(word: ir.Value, multiplier: int) -> tuple[ir.Value, ir.Value]:
        wide = b.mul(b.zext(word, i64), integer(64, multiplier))
        return b.trunc(b.lshr(wide, integer(64, 32)), i32), b.trunc(wide, i32)

    for number in range(10):
        if number:
            key0, key1 = b.add(key0, integer(32, lang.W0)), b.add(key1, integer(32, lang.W1))
        (p_high, p_low), (q_high, q_low) = both_halves(c0, lang.M0), both_halves(c2, lang.M1)
        c0, c1, c2, c3 = b.xor(b.xor(q_high, c1), key0), q_low, b.xor(b.xor(p_high, c3), key1), p_low
    return [c0, c1, c2, c3]


def _key(b: ir.IRBuilder, ty: types.Type, seed: ir.Value) -> Key:
    """The two words of the key."""
    wide = convert(b, seed, scalar_dtype(ty), dtypes.uint64)
    return b.trunc(wide, i32), b.trunc(b.lshr(wide, integer(64, 32)), i32)


class _Counters:
    """The words of counters, each computed once."""

    def __init__(self, b: ir.IRBuilder, key: Key, kind: int, words: int) -> None:
        self.b, self.key, self.kind, self.shift = b, key, kind, 2 if words == 1 else 1
        self.known: dict[Any, Words] = {}

    def element(self, offset: ir.Value) -> _Element:
        """The element at an offset."""
        b, width, total = self.b, offset.type.width, sum_of(offset)
        # Where the terms reach into the lowest bits, nobody else is known to have the same counter.
        plain = total.zeros >= self.shift
        name = (total.terms, total.constant >> self.shift) if plain else total
        if name not in self.known:
            j = b.lshr(offset, integer(width, self.shift))
            low, high = (j, integer(32, 0)) if width == 32 else (b.trunc(j, i32), b.trunc(b.lshr(j, integer(64, 32)), i32))
            self.known[name] = _rounds(b, [low, high, integer(32, self.kind), integer(32, 0)], self.key)
        lowest = total.constant & (1 << self.shift) - 1 if plain else None
        return _Element(b, offset, lowest, self.known[name])


class _Element:
    """One element: the words of its counter, and which of them are its own."""

    def __init__(self, b: ir.IRBuilder, offset: ir.Value, lowest: int | None, words: Words) -> None:
        self.b, self.offset, self.lowest, self.words = b, offset, lowest, words

    def bit(self, number: int) -> ir.Value:
        """A bit of the offset."""
        if self.lowest is not None:
            return integer(1, self.lowest >> number & 1)
        width = self.offset.type.width
        return self.b.icmp_unsigned("!=", self.b.and_(self.offset, integer(width, 1 << number)), integer(width, 0))

    def one(self) -> ir.Value:
        """The element's word, of four."""
        b, (w0, w1, w2, w3), odd = self.b, self.words, self.bit(0)
        return b.select(self.bit(1), b.select(odd, w3, w2), b.select(odd, w1, w0))

    def two(self) -> ir.Value:
        """The element's two words of four, as an i64."""
        b, (w0, w1, w2, w3), odd = self.b, self.words, self.bit(0)
        return _together(b, b.select(odd, w2, w0), b.select(odd, w3, w1))


def _together(b: ir.IRBuilder, upper: ir.Value, lower: ir.Value) -> ir.Value:
    return b.or_(b.shl(b.zext(upper, i64), integer(64, 32)), b.zext(lower, i64))


# ------------------------------------------------------------------------------------------------- from words to numbers


def _uniform(dtype: DType) -> Callable[[_Element], ir.Value]:
    bits = lang.BITS[dtype]

    def number(element: _Element) -> ir.Value:
        b = element.b
        if dtype == dtypes.float64:
            return b.fmul(b.uitofp(b.lshr(element.two(), integer(64, 11)), _f64), ir.Constant(_f64, 2.0**-53))
        whole = b.uitofp(b.lshr(element.one(), integer(32, 32 - bits)), _f32)
        return convert(b, b.fmul(whole, ir.Constant(_f32, 2.0**-bits)), dtypes.float32, dtype)

    return number


_times = libdevice("__nv_fmul_rn")  # a product that no sum swallows


def _single(value: float) -> ir.Constant:
    """A constant of float32, rounded to it."""
    return ir.Constant(_f32, float(np.float32(value)))


def _polynomial(b: ir.IRBuilder, coefficients: tuple[float, ...], x: ir.Value) -> ir.Value:
    value: ir.Value = _single(coefficients[0])
    for coefficient in coefficients[1:]:
        value = b.fadd(_times(b, value, x), _single(coefficient))
    return value


def _normal(element: _Element) -> ir.Value:
    """As `lang.randomness._normal`, step by step."""
    b, (w0, w1, w2, w3) = element.b, element.words
    odd, high = element.bit(0), element.bit(1)
    x = b.uitofp(b.or_(b.select(high, w2, w0), integer(32, 1)), _f32)
    pattern = b.bitcast(x, i32)
    exponent = b.ashr(b.sub(pattern, integer(32, 0x3F3504F3)), integer(32, 23))
    f = b.fsub(b.bitcast(b.sub(pattern, b.shl(exponent, integer(32, 23))), _f32), _single(1.0))
    scale = b.sitofp(b.sub(exponent, integer(32, 32)), _f32)
    z = _times(b, f, f)
    p = _times(b, _times(b, _polynomial(b, lang.LOGARITHM, f), f), z)
    p = b.fsub(b.fsub(p, _times(b, scale, _single(2.12194440e-4))), _times(b, z, _single(0.5)))
    logarithm = b.fadd(b.fadd(p, f), _times(b, scale, _single(0.693359375)))
    radius = libdevice("__nv_fsqrt_rn")(b, _times(b, logarithm, _single(-2.0)))
    turn = b.add(b.select(high, w3, w1), integer(32, 0x20000000))
    quarter = b.add(b.lshr(turn, integer(32, 30)), b.select(odd, integer(32, 3), integer(32, 0)))
    left = b.sub(b.and_(turn, integer(32, 0x3FFFFFFF)), integer(32, 0x20000000))
    a = _times(b, b.sitofp(left, _f32), _single(1.4629180792671596e-09))
    z = _times(b, a, a)
    sine = b.fadd(_times(b, _times(b, _polynomial(b, lang.SINE, z), z), a), a)
    cosine = b.fsub(_times(b, _times(b, _polynomial(b, lang.COSINE, z), z), z), _times(b, z, _single(0.5)))
    cosine = b.fadd(cosine, _single(1.0))
    crossed = b.icmp_unsigned("!=", b.and_(quarter, integer(32, 1)), integer(32, 0))
    wave = b.bitcast(b.select(crossed, sine, cosine), i32)
    sign = b.shl(b.and_(b.add(quarter, integer(32, 1)), integer(32, 2)), integer(32, 30))
    return _times(b, radius, b.bitcast(b.xor(wave, sign), _f32))


def _normal64(element: _Element) -> ir.Value:
    b, (w0, w1, w2, w3) = element.b, element.words
    times = libdevice("__nv_dmul_rn")
    x = b.or_(b.lshr(_together(b, w0, w1), integer(64, 11)), integer(64, 1))
    turn = b.lshr(_together(b, w2, w3), integer(64, 11))
    angle = times(b, b.uitofp(turn, _f64), ir.Constant(_f64, 2.0**-53 * 6.283185307179586))
    logarithm = libdevice("__nv_log")(b, times(b, b.uitofp(x, _f64), ir.Constant(_f64, 2.0**-53)))
    radius = libdevice("__nv_dsqrt_rn")(b, times(b, logarithm, ir.Constant(_f64, -2.0)))
    wave = b.select(element.bit(0), libdevice("__nv_sin")(b, angle), libdevice("__nv_cos")(b, angle))
    return times(b, radius, wave)


# ----------------------------------------------------------------------------------------------------------- the operations


def _check(what: str, seed: types.Type, offsets: types.Type, dtype: types.Type) -> DType:
    """The dtype, once seed and offsets are what they should be."""
    if scalar_kind(seed) is not int:
        reject(what, lang.no_seed(describe(seed)))
    if not isinstance(offsets, TileType) or dtypes.is_float(offsets.dtype) or offsets.dtype == dtypes.bool_:
        reject(what, lang.no_offsets(describe(offsets)))
    chosen = dtype_of(dtype) or (dtypes.as_dtype(dtype.value) if isinstance(dtype, types.Omitted) else None)
    if chosen is None:
        reject(what, f"{describe(dtype)} is not a dtype of tilekit; there are {', '.join(d.name for d in dtypes.ALL)}")
    return chosen


def _wide(dtype: DType) -> DType:
    """The type that offsets are computed in."""
    return dtypes.uint64 if dtype.itemsize == 8 else dtypes.uint32


def _numbers(
    seed: types.Type, offsets: TileType, dtype: DType, kind: int, words: int, number: Callable[[_Element], ir.Value]
) -> tuple[TileType, Callable[..., ir.Value]]:
    result = offsets.like(dtype)

    def emit(builder: ir.IRBuilder, seed_: ir.Value, offsets_: ir.Value, *_: ir.Value) -> ir.Value:
        key = _key(builder, seed, seed_)
        columns = unpack(builder, offsets_)[: 1 if offsets.splat else None]
        columns = [convert(builder, offset, offsets.dtype, _wide(offsets.dtype)) for offset in columns]
        counters = _Counters(builder, key, kind, words)
        results = [number(counters.element(offset)) for offset in columns]
        return pack(builder, results * (result.layout.num_registers // len(results)))

    return result, emit


@lowers(lang.philox)
def philox(seed: types.Type, c0: types.Type, c1: types.Type, c2: types.Type, c3: types.Type) -> Any:
    if scalar_kind(seed) is not int:
        reject("philox", lang.no_seed(describe(seed)))
    counter = (c0, c1, c2, c3)
    for word in counter:
        dtype = word.dtype if isinstance(word, TileType) else scalar_dtype(word)
        present = not (isinstance(word, types.Omitted) and word.value == 0)
        if present and (dtype is None or dtypes.is_float(dtype) or dtype == dtypes.bool_):
            reject("philox", lang.no_word(describe(word)))
    tiles = [word for word in counter if isinstance(word, TileType)]
    if not tiles:
        reject("philox", lang.NO_TILE)
    try:
        shape = common_shape("philox", [tile.shape for tile in tiles])
    except CompileError as error:
        reject("philox", error.reason)
    whole = [tile for tile in tiles if tile.shape == shape and not tile.splat]
    result = prevailing(whole).like(dtypes.uint32) if whole else TileType.of_shape(dtypes.uint32, shape, tiles[0].config)

    def emit(builder: ir.IRBuilder, seed_: ir.Value, *words: ir.Value) -> ir.Value:
        key, columns = _key(builder, seed, seed_), []
        for ty, word in zip(counter, words, strict=True):
            if isinstance(ty, TileType):
                held = broadcast(builder, ty, word, result.layout)
                columns.append([convert(builder, w, ty.dtype, dtypes.uint32) for w in held])
            else:
                one = integer(32, 0) if isinstance(ty, types.Omitted) else convert(builder, word, scalar_dtype(ty), dtypes.uint32)
                columns.append([one] * result.layout.num_registers)
        known: dict[Any, Words] = {}
        rows = []
        for row in zip(*columns, strict=True):
            name = tuple(sum_of(word) for word in row)
            if name not in known:
                known[name] = _rounds(builder, list(row), key)
            rows.append(known[name])
        return pack(builder, [pack(builder, list(tile)) for tile in zip(*rows, strict=True)])

    return types.UniTuple(result, 4), emit


@lowers(lang.rand)
def rand(seed: types.Type, offsets: types.Type, dtype: types.Type) -> Any:
    chosen = _check("rand", seed, offsets, dtype)
    if problem := lang.problem_of_dtype(chosen):
        reject("rand", problem)
    return _numbers(seed, offsets, chosen, lang.UNIFORM, 2 if chosen == dtypes.float64 else 1, _uniform(chosen))


@lowers(lang.randn)
def randn(seed: types.Type, offsets: types.Type, dtype: types.Type) -> Any:
    chosen = _check("randn", seed, offsets, dtype)
    if problem := lang.problem_of_dtype(chosen):
        reject("randn", problem)
    if chosen == dtypes.float64:
        return _numbers(seed, offsets, chosen, lang.NORMAL, 2, _normal64)

    def rounded(element: _Element) -> ir.Value:
        return convert(element.b, _normal(element), dtypes.float32, chosen)

    return _numbers(seed, offsets, chosen, lang.NORMAL, 1, rounded)


@lowers(lang.randint)
def randint(seed: types.Type, offsets: types.Type, low: types.Type, high: types.Type, dtype: types.Type) -> Any:
    chosen = _check("randint", seed, offsets, dtype)
    if dtypes.is_float(chosen) or chosen == dtypes.bool_:
        reject("randint", lang.no_integers(chosen.name))
    for name, bound in (("low", low), ("high", high)):
        if scalar_kind(bound) is not int:
            reject("randint", f"{name} is an integer scalar, not {describe(bound)}")
    if known(low) is not ABSENT and known(high) is not ABSENT:
        problem = lang.problem_of_bounds(known(low), known(high), chosen)
        if problem:
            refuse("randint", problem)

    def emit(builder: ir.IRBuilder, seed_: ir.Value, offsets_: ir.Value, low_: ir.Value, high_: ir.Value, *_: ir.Value) -> Any:
        first = convert(builder, low_, scalar_dtype(low), dtypes.int64)
        span = builder.sub(convert(builder, high_, scalar_dtype(high), dtypes.int64), first)

        def number(element: _Element) -> ir.Value:
            upper = libdevice("__nv_umul64hi")(builder, element.two(), span)
            return convert(builder, builder.add(upper, first), dtypes.int64, chosen)

        return _numbers(seed, offsets, chosen, lang.INTEGERS, 2, number)[1](builder, seed_, offsets_)

    return offsets.like(chosen), emit
