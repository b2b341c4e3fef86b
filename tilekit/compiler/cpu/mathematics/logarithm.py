"""Logarithms, and what is made of them.

x is 2^e (1 + f), where 1 + f lies between the roots of 1/2 and 2, and log(1 + f) is f - f^2 / 2 + r: of float32 r is f^3 times a
polynomial, of float64, as in FreeBSD's msun (e_log.c, k_log.h), made of one of s = f / (2 + f), since log(1 + f) = 2 atanh(s).
What is large is added last, with what the sum lacks. The polynomials are fitted as those of exponential.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilekit.compiler.cpu.mathematics.exponential import exp, nearest, power_of_two, scaled
from tilekit.compiler.cpu.mathematics.vectors import (
    Vector,
    fast_two_sum,
    fma,
    has_registers,
    in_registers,
    polynomial,
    two_product,
    two_sum,
    unless,
    where,
)

__all__ = ["acosh", "asinh", "atanh", "log", "log1p", "log2", "log10", "softplus", "split"]

# (log(1 + f) - f + f^2 / 2) / f^3
_SINGLE = (-0.07644186, 0.12768623, -0.13160005, 0.14200875, -0.16623303, 0.20001261, -0.25000823, 0.3333333)
# (2 atanh(s) - 2 s) / s^3 of s^2
_DOUBLE = (
    0.14777950614917457, 0.1531600030903996, 0.18183480598195778, 0.2222220037687822, 0.2857142872215638, 0.399999999995241,
    0.6666666666666713,
)  # fmt: skip
# log(2), and the logarithms of 2 to the bases 2 and 10, in two parts, of which the first times an exponent is exact.
_LOG2 = {True: (0.693145751953125, 1.42860677e-06), False: (0.6931471803691238, 1.9082149292705877e-10)}
_OF_TWO = {
    2: {True: (1.0, 0.0), False: (1.0, 0.0)},
    10: {True: (0.301025390625, 4.605039e-06), False: (0.30102999566361177, 3.694239077158931e-13)},
}
# The logarithms of e, in two parts.
_OF_E = {
    2: {True: (1.4426950216293335, 1.925963e-08), False: (1.4426950408889634, 2.0355273740931033e-17)},
    10: {True: (0.4342944920063019, -1.010305e-08), False: (0.4342944819032518, 1.098319650216765e-17)},
}
_ROOT = math.sqrt(2)


def split(x: Vector) -> tuple[Vector, Vector]:
    """e and f of a positive number. AVX-512 gives 0 and infinity an infinite e, and negative numbers an f that is NaN."""
    if has_registers(x):
        mantissa, e = in_registers("getmant", x, 8), in_registers("getexp", x)
        large = mantissa >= _ROOT
        f = where(large, fma(mantissa, 0.5, -1.0), mantissa - 1.0)
        return where(large, e + 1.0, e), f
    bits = 23 if x.single else 52
    tiny = x < 2.0 ** (-126 if x.single else -1022)
    e, f = _split_normal(where(tiny, x * 2.0**bits, x))
    return e - where(tiny, x.new(bits), 0.0), f


def _split_normal(x: Vector) -> tuple[Vector, Vector]:
    bits, root = 23 if x.single else 52, x.new(_ROOT / 2).bits()
    from_root = x.bits() - root
    fraction = (from_root & ((1 << bits) - 1)) + root
    magic = x.new(1.5 * 2.0**bits)  # whose lower bits count, one by one
    return (magic.bits() + (from_root >> bits)).floats() - magic, fraction.floats() - 1.0


def _series(f: Vector) -> tuple[Vector, Vector]:
    """h and r, where log(1 + f) = f - h + r, and h = f^2 / 2."""
    square = f * f
    half = square * 0.5
    if f.single:
        return half, square * f * polynomial(f, _SINGLE)
    s = f / (f + 2.0)
    power = s * s
    return half, s * fma(power, polynomial(power, _DOUBLE), half)


def _natural(e: Vector, f: Vector, lack: Vector | None = None) -> Vector:
    """log(2^e (1 + f + lack))."""
    upper, lower = _LOG2[f.single]
    half, rest = _series(f)
    rest = fma(e, lower, rest)
    if lack is not None:
        rest = fma(lack, 1.0 - f, rest)
    return fma(e, upper, f + (rest - half))


def log(x: Vector) -> Vector:
    """The natural logarithm."""
    return _natural(*split(x)) if has_registers(x) else _of_any(x, _natural)


def _of_any(x: Vector, logarithm: Callable[[Vector, Vector], Vector]) -> Vector:
    """The logarithm of any number, from that of those that are positive and finite, by their e and f."""
    ordinary = (x >= 2.0 ** (-126 if x.single else -1022)) & (x < math.inf)

    def others() -> Vector:
        special = where(x < 0.0, x.new(math.nan), where(x.equals(0.0), x.new(-math.inf), x))
        return where((x > 0.0) & (x < math.inf), logarithm(*split(x)), special)

    return unless(~ordinary, logarithm(*_split_normal(x)), others)


def _to_base(x: Vector, base: int) -> Vector:
    """The logarithm of 1 + f is multiplied as a sum of two numbers, so that it is as good as the natural one."""
    (upper, lower), (slope, slope_lacks) = _OF_TWO[base][x.single], _OF_E[base][x.single]

    def logarithm(e: Vector, f: Vector) -> Vector:
        half, rest = _series(f)
        near, less = fast_two_sum(f, -half)
        product, product_lacks = two_product(near, slope)
        rest = fma(rest + less, slope, fma(near, slope_lacks, product_lacks))
        total, less = fast_two_sum(e * upper, product)
        return total + (fma(e, lower, rest) + less)

    if not has_registers(x):
        return _of_any(x, logarithm)
    e, f = split(x)
    return where(abs(e) < math.inf, logarithm(e, f), e + f)


def log2(x: Vector) -> Vector:
    """The logarithm to the base 2."""
    return _to_base(x, 2)


def log10(x: Vector) -> Vector:
    """The logarithm to the base 10."""
    return _to_base(x, 10)


def log1p(x: Vector) -> Vector:
    """log(1 + x): the e of the sum, and f = x 2^-e + (2^-e - 1), with what that lacks."""

    def others() -> Vector:
        e, _ = split(x + 1.0)
        minus = nearest(-e, 1.0)
        f, lack = two_sum(scaled(x, minus), scaled(x.new(1.0), minus) - 1.0)
        special = where(x < -1.0, x.new(math.nan), where(x.equals(-1.0), x.new(-math.inf), x))
        return where((x > -1.0) & (x < math.inf), _natural(e, f, lack), special).with_sign(x)

    e, _ = (split if has_registers(x) else _split_normal)(x + 1.0)
    scale = power_of_two(nearest(-e, 1.0).integer)
    f, lack = two_sum(x * scale, scale - 1.0)
    return unless(~((x > -1.0) & (x < 2.0**100)), _natural(e, f, lack).with_sign(x), others)


def softplus(x: Vector) -> Vector:
    """log(1 + e^x): x, if it is positive, and the logarithm of a number from 1 to 2."""
    e = exp(-abs(x))
    large = e > _ROOT - 1.0
    n, f = where(large, x.new(1.0), 0.0), where(large, fma(e, 0.5, -0.5), e)
    return x.at_least(0.0) + _natural(n, f)


def asinh(x: Vector) -> Vector:
    """The inverse hyperbolic sine: log1p(x + x^2 / (1 + sqrt(x^2 + 1))); of large numbers log(2 x)."""
    magnitude = abs(x)
    large = magnitude > 2.0**60
    square = magnitude * magnitude
    argument = magnitude + square / ((square + 1.0).sqrt() + 1.0)
    result = log1p(where(large, magnitude, argument)) + where(large, x.new(math.log(2)), 0.0)
    return result.with_sign(x)


def acosh(x: Vector) -> Vector:
    """The inverse hyperbolic cosine: log1p(t + sqrt(t (2 + t))) for t = x - 1; of large numbers log(2 x)."""
    large = x > 2.0**60
    t = x - 1.0
    argument = t + (t * (t + 2.0)).sqrt()
    result = log1p(where(large, x, argument)) + where(large, x.new(math.log(2)), 0.0)
    return where(x < 1.0, x.new(math.nan), result)


def atanh(x: Vector) -> Vector:
    """The inverse hyperbolic tangent: log1p(2 x / (1 - x)) / 2."""
    magnitude = abs(x)
    return (log1p((magnitude * 2.0) / (1.0 - magnitude)) * 0.5).with_sign(x)
