"""Random numbers by counter: Philox4x32-10 and what is made of its words, bit for bit as `lang.randomness` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, f32, f64, i32, i64
from tilekit.compiler.cpu.convert import converted, narrow
from tilekit.compiler.cpu.elementwise import as_tile, cast, mapped
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.scalars import as_kind
from tilekit.compiler.cpu.tiles import Index, Tile, address_of, element_at, new_buffer, of_buffer, traverse
from tilekit.compiler.cpu.values import Scalar, Unsupported
from tilekit.lang.randomness import BITS, COSINE, INTEGERS, LOGARITHM, M0, M1, NORMAL, SINE, UNIFORM, W0, W1, problem_of_bounds
from tilekit.lang.tile import common_shape

__all__: list[str] = []

Words = list[ir.Value]
_COST = 60


class _Lanes:
    """Arithmetic of words of one width: constants meet vectors as they are."""

    def __init__(self, k: Code) -> None:
        self.k = k

    def wide(self, word: ir.Value) -> ir.Value:
        """A word in 64 bits."""
        return self.k.b.zext(word, self.k.with_lanes(i64, word))

    def low(self, wide: ir.Value) -> ir.Value:
        """The lower word of 64 bits, and `high` the upper one."""
        return self.k.b.trunc(wide, self.k.with_lanes(i32, wide))

    def high(self, wide: ir.Value) -> ir.Value:
        return self.low(self.k.b.lshr(wide, self.k.like(32, wide)))


def _rounds(k: Code, counter: Words, seed: ir.Value) -> Words:
    """Ten rounds on a counter of four words; the seed, an i64, is the key."""
    b, w = k.b, _Lanes(k)
    lanes = counter[0].type.count if isinstance(counter[0].type, ir.VectorType) else 1
    c0, c1, c2, c3 = counter
    key0, key1 = w.low(seed), w.high(seed)
    for _ in range(10):
        p, q = b.mul(w.wide(c0), k.like(M0, w.wide(c0))), b.mul(w.wide(c2), k.like(M1, w.wide(c2)))
        c0, c1 = b.xor(b.xor(w.high(q), c1), k.splat(key0, lanes)), w.low(q)
        c2, c3 = b.xor(b.xor(w.high(p), c3), k.splat(key1, lanes)), w.low(p)
        key0, key1 = b.add(key0, i32(W0)), b.add(key1, i32(W1))
    return [c0, c1, c2, c3]


def _drawn(k: Code, at: ir.Value, seed: ir.Value, kind: int, words: int) -> Words:
    """The four words of an offset's counter, of which `words` are the element's: of neighbours, once for all that share it."""
    share = 4 // words
    lanes = at.type.count if isinstance(at.type, ir.VectorType) else 1
    if lanes < share:
        return _of_counters(k, k.b.lshr(at, k.like(share.bit_length() - 1, at)), seed, kind)
    b, first = k.b, k.b.extract_element(at, i32(0))
    apart = k.any_lane(b.icmp_unsigned("!=", at, b.add(k.splat(first, lanes), k.steps(lanes))))
    straddling = b.icmp_unsigned("!=", b.and_(first, i64(share - 1)), i64(0))
    slots = [k.slot(ir.VectorType(i32, lanes)) for _ in range(4)]
    with b.if_else(b.or_(apart, straddling)) as (alone, together):
        with alone:
            lone = _of_counters(k, b.lshr(at, k.like(share.bit_length() - 1, at)), seed, kind)
            for slot, word in zip(slots, lone, strict=True):
                b.store(word, slot)
        with together:
            many, shift = lanes // share, share.bit_length() - 1
            each = first if many == 1 else b.add(k.splat(first, many), b.shl(k.steps(many), k.like(shift, k.steps(many))))
            counters = b.lshr(each, k.like(shift, each))
            for slot, word in zip(slots, _of_counters(k, counters, seed, kind), strict=True):
                b.store(_repeated(k, word, share), slot)
    return [b.load(slot, typ=ir.VectorType(i32, lanes)) for slot in slots]


def _repeated(k: Code, word: ir.Value, times: int) -> ir.Value:
    """Each lane several times."""
    if not isinstance(word.type, ir.VectorType):
        return k.splat(word, times)
    chosen = [n // times for n in range(word.type.count * times)]
    return k.b.shuffle_vector(word, word, ir.Constant(ir.VectorType(i32, len(chosen)), chosen))


def _of_counters(k: Code, j: ir.Value, seed: ir.Value, kind: int) -> Words:
    w = _Lanes(k)
    low = w.low(j)
    return _rounds(k, [low, w.high(j), k.like(kind, low), k.like(0, low)], seed)


def _bit(k: Code, at: ir.Value, bit: int) -> ir.Value:
    return k.b.icmp_unsigned("!=", k.b.and_(at, k.like(bit, at)), k.like(0, at))


def _one(k: Code, drawn: Words, at: ir.Value) -> ir.Value:
    """An element's word, of four."""
    odd, high, select = _bit(k, at, 1), _bit(k, at, 2), k.b.select
    w0, w1, w2, w3 = drawn
    return select(high, select(odd, w3, w2), select(odd, w1, w0))


def _two(k: Code, drawn: Words, at: ir.Value) -> ir.Value:
    """An element's two words of four, as one of 64 bits."""
    w0, w1, w2, w3 = drawn
    odd, w = _bit(k, at, 1), _Lanes(k)
    upper = w.wide(k.b.select(odd, w2, w0))
    return k.b.or_(k.b.shl(upper, k.like(32, upper)), w.wide(k.b.select(odd, w3, w1)))


def _polynomial(k: Code, coefficients: Sequence[float], x: ir.Value) -> ir.Value:
    """Horner's rule; nothing is fused."""
    value: ir.Value = k.like(_single(coefficients[0]), x)
    for coefficient in coefficients[1:]:
        value = k.b.fadd(k.b.fmul(value, x), k.like(_single(coefficient), x))
    return value


def _single(number: float) -> float:
    """The float32 nearest to a number."""
    return float(dtypes.float32.type(number))


def _normal(k: Code, drawn: Words, at: ir.Value) -> ir.Value:
    """Box and Muller's method in float32, step by step as `lang.randomness` has it."""
    b, select = k.b, k.b.select
    w0, w1, w2, w3 = drawn
    odd, high = _bit(k, at, 1), _bit(k, at, 2)
    single = k.with_lanes(f32, w0)

    def times(x: ir.Value, y: float) -> ir.Value:
        return b.fmul(x, k.like(_single(y), x))

    word = select(high, w2, w0)
    x = b.uitofp(b.or_(word, k.like(1, word)), single)
    pattern = b.bitcast(x, word.type)
    exponent = b.ashr(b.sub(pattern, k.like(0x3F3504F3, pattern)), k.like(23, pattern))
    f = b.fsub(b.bitcast(b.sub(pattern, b.shl(exponent, k.like(23, exponent))), single), k.like(1.0, x))
    scale = b.sitofp(b.sub(exponent, k.like(32, exponent)), single)
    z = b.fmul(f, f)
    p = b.fsub(b.fmul(b.fmul(_polynomial(k, LOGARITHM, f), f), z), times(scale, 2.12194440e-4))
    p = b.fsub(p, times(z, 0.5))
    radius = k.intrinsic("sqrt", times(b.fadd(b.fadd(p, f), times(scale, 0.693359375)), -2.0))
    turn = select(high, w3, w1)
    turn = b.add(turn, k.like(0x20000000, turn))
    quarter = b.add(b.lshr(turn, k.like(30, turn)), select(odd, k.like(3, turn), k.like(0, turn)))
    rest = b.sub(b.and_(turn, k.like(0x3FFFFFFF, turn)), k.like(0x20000000, turn))
    a = times(b.sitofp(rest, single), 1.4629180792671596e-09)
    z = b.fmul(a, a)
    sine = b.fadd(b.fmul(b.fmul(_polynomial(k, SINE, z), z), a), a)
    cosine = b.fadd(b.fsub(b.fmul(b.fmul(_polynomial(k, COSINE, z), z), z), times(z, 0.5)), k.like(1.0, z))
    wave = b.bitcast(select(_bit(k, quarter, 1), sine, cosine), word.type)
    sign = b.shl(b.and_(b.add(quarter, k.like(1, quarter)), k.like(2, quarter)), k.like(30, quarter))
    return b.fmul(radius, b.bitcast(b.xor(wave, sign), single))


def _normal64(k: Code, drawn: Words, at: ir.Value) -> ir.Value:
    """The same in float64, by the C library."""
    b, w = k.b, _Lanes(k)
    double = k.with_lanes(f64, drawn[0])

    def fraction(upper: ir.Value, lower: ir.Value) -> ir.Value:
        both = b.or_(b.shl(w.wide(upper), k.like(32, w.wide(upper))), w.wide(lower))
        return b.lshr(both, k.like(11, both))

    def library(name: str, x: ir.Value) -> ir.Value:
        return k.by_lane(lambda lane: k.call(name, f64, [lane]), x)

    x = fraction(*drawn[:2])
    x = b.fmul(b.uitofp(b.or_(x, k.like(1, x)), double), k.like(2.0**-53, b.uitofp(x, double)))
    angle = b.uitofp(fraction(*drawn[2:]), double)
    angle = b.fmul(angle, k.like(2.0**-53 * 6.283185307179586, angle))
    radius = k.intrinsic("sqrt", b.fmul(library("log", x), k.like(-2.0, x)))
    return b.fmul(radius, b.select(_bit(k, at, 1), library("sin", angle), library("cos", angle)))


# ----------------------------------------------------------------------------------------------------------------- operations


def _seed(p: Any, seed: Any) -> ir.Value:
    """64 bits of a seed."""
    return as_kind(p.k, seed, int) if isinstance(seed, Scalar) else i64(int(seed) % 2**64)


def _offsets(p: Any, offsets: Any) -> Tile:
    """Offsets in 64 bits; those of 32 bits and fewer count as unsigned numbers of 32."""
    if not isinstance(offsets, Tile):
        raise Unsupported("offsets that are no tile")
    if offsets.dtype.itemsize <= 4:
        offsets = cast(p.k, offsets, dtypes.uint32)
    return cast(p.k, offsets, dtypes.uint64)


def _tile_of(p: Any, offsets: Any, dtype: dtypes.DType, function: Callable[[ir.Value], ir.Value]) -> Tile:
    return mapped(p.k, [_offsets(p, offsets)], dtype, function, _COST)


@lowers("philox")
def philox(p: Any, seed: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[Tile, ...]:
    """The four words of a counter."""
    k, key = p.k, _seed(p, seed)
    counter = [as_tile(k, word, dtypes.uint32) for word in (c0, c1, c2, c3)]
    shape = common_shape("philox", [word.shape for word in counter])
    drawn = [new_buffer(k, shape, dtypes.uint32) for _ in range(4)]

    def body(index: Index) -> None:
        words = _rounds(k, [element_at(k, word, index, shape) for word in counter], key)
        for buffer, word in zip(drawn, words, strict=True):
            address, step = address_of(k, buffer, index)
            k.write(address, dtypes.uint32, index.lanes, step, None, word)

    traverse(k, shape, counter, body)
    return tuple(of_buffer(k, buffer) for buffer in drawn)


@lowers("rand")
def rand(p: Any, seed: Any, offsets: Any, dtype: Any) -> Tile:
    """Uniform in [0, 1)."""
    k, key, chosen = p.k, _seed(p, seed), dtypes.as_dtype(dtype)

    def number(at: ir.Value) -> ir.Value:
        bits = BITS[chosen]
        double = chosen == dtypes.float64
        word = (_two if double else _one)(k, _drawn(k, at, key, UNIFORM, 2 if double else 1), at)
        whole = k.b.lshr(word, k.like((64 if double else 32) - bits, word))
        fraction = k.b.uitofp(whole, k.with_lanes(f64 if double else f32, whole))
        return narrow(k, k.b.fmul(fraction, k.like(2.0**-bits, fraction)), chosen)

    return _tile_of(p, offsets, chosen, number)


@lowers("randn")
def randn(p: Any, seed: Any, offsets: Any, dtype: Any) -> Tile:
    """Normal."""
    k, key, chosen = p.k, _seed(p, seed), dtypes.as_dtype(dtype)

    def number(at: ir.Value) -> ir.Value:
        if chosen == dtypes.float64:
            return _normal64(k, _drawn(k, at, key, NORMAL, 2), at)
        return narrow(k, _normal(k, _drawn(k, at, key, NORMAL, 1), at), chosen)

    return _tile_of(p, offsets, chosen, number)


@lowers("randint")
def randint(p: Any, seed: Any, offsets: Any, low: Any, high: Any, dtype: Any) -> Tile:
    """Integers in [low, high)."""
    k, chosen = p.k, dtypes.as_dtype(dtype)
    key = _seed(p, seed)
    if not isinstance(low, Scalar) and not isinstance(high, Scalar) and problem_of_bounds(int(low), int(high), chosen):
        raise Unsupported("bounds without an integer between them")
    first, end = (as_kind(k, bound, int) for bound in (low, high))
    span = k.b.sub(end, first)

    def number(at: ir.Value) -> ir.Value:
        b, wide = k.b, _two(k, _drawn(k, at, key, INTEGERS, 2), at)
        lanes = wide.type.count if isinstance(wide.type, ir.VectorType) else 1
        times, half = k.splat(span, lanes), k.like(32, wide)
        upper = b.mul(b.lshr(wide, half), times)
        lower = b.lshr(b.mul(b.and_(wide, k.like(0xFFFFFFFF, wide)), times), half)
        return converted(k, b.add(b.lshr(b.add(upper, lower), half), k.splat(first, lanes)), dtypes.int64, chosen)

    return _tile_of(p, offsets, chosen, number)
