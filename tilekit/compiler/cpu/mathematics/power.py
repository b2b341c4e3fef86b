"""Powers and cube roots.

x^y is e^(y log(x)). Of float64 the logarithm is a sum of two numbers, good to 2^-65, as in FreeBSD's msun (e_pow.c) and in N.
Shibata's SLEEF; float32 is computed in float64, with shorter polynomials. These are fitted as those of exponential.py.
"""

from __future__ import annotations

import math

from tilekit.compiler.cpu.mathematics.exponential import exp_of_sum, nearest, power_of_two, scaled
from tilekit.compiler.cpu.mathematics.logarithm import split
from tilekit.compiler.cpu.mathematics.vectors import (
    Formula,
    Vector,
    fast_two_sum,
    fma,
    polynomial,
    quotient,
    two_product,
    unless,
    where,
)

__all__ = ["KNOWN_POWERS", "cbrt", "power"]

# (2 atanh(s) - 2 s) / s^3 and (2 atanh(s) - 2 s - 2 s^3 / 3) / s^5 of s^2, and (e^r - 1 - r) / r^2
_SHORT_LOGARITHM = (0.19584691781435312, 0.2217615323297422, 0.28572109954860586, 0.3999999561484531, 0.6666666667581982)
_LONG_LOGARITHM = (
    0.12026933748861104, 0.11671788796080347, 0.1333637237575994, 0.15384558541430005, 0.1818181878801532, 0.22222222218809992,
    0.2857142857143671, 0.39999999999999997,
)  # fmt: skip
_SHORT_EXPONENTIAL = (
    0.00019978381377032368, 0.0013942953655902556, 0.008333991619851168, 0.04166634743342544, 0.16666658996725, 0.500000004416498,
)  # fmt: skip
# 2 / 3 and log(2), in two parts
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
_LOG2 = (0.6931471803691238, 1.9082149292705877e-10)
# Beyond these powers of e all is 0 or infinite.
_LARGEST = {True: 106.0, False: 760.0}


def power(x: Vector, y: Vector) -> Vector:
    """x to the power of y, as C has it."""
    result = (_of_singles if x.single else _of_doubles)(abs(x), y)
    ordinary = (x > 0.0) & (x < math.inf) & (abs(y) < math.inf)
    return unless(~ordinary, result, lambda: _special(result, x, y))


def _root(x: Vector) -> Vector:
    """The power 1/2, which differs from the square root: that of -0 is 0, that of -infinity is infinity."""
    return where(x.equals(-math.inf), math.inf, (x + 0.0).sqrt())


def _square(x: Vector) -> Vector:
    return x * x


KNOWN_POWERS: dict[float | None, Formula] = {
    2: _square,
    3: lambda x: _square(x) * x,
    4: lambda x: _square(_square(x)),
    -1: lambda x: 1.0 / x,
    -2: lambda x: _square(1.0 / x),
    0.5: _root,
    -0.5: lambda x: 1.0 / _root(x),
    1.5: lambda x: abs(x) * _root(x),
}
"""Powers by exponents that are known when a kernel is compiled."""


def _special(result: Vector, x: Vector, y: Vector) -> Vector:
    """The power, from that of the magnitude, where that is finite and not 0."""
    magnitude = abs(x)
    limit = magnitude.equals(0.0) | magnitude.equals(math.inf)
    result = where(limit, where(magnitude.equals(0.0) ^ (y < 0.0), x.new(0.0), math.inf), result)
    result = _with_sign(result, x, y)
    nan = Vector(x.k, x.k.b.fcmp_unordered("uno", x.value, y.value))
    return where(x.equals(1.0) | y.equals(0.0), 1.0, where(nan, x + y, result))


def _with_sign(result: Vector, x: Vector, y: Vector) -> Vector:
    """Of negative numbers odd powers are negative; powers that are not whole are none."""
    bits, width = (23, 32) if x.single else (52, 64)
    exponent = abs(y)
    small = exponent < 2.0**bits
    counted = where(small, exponent + 2.0**bits, exponent)  # from there on neighbours are 1 apart
    fractional = small & ~(counted - 2.0**bits).equals(exponent)
    none = (x < 0.0) & (x > -math.inf) & fractional
    odd = where(fractional | (exponent > 2.0 ** (bits + 1)), x.bits().new(0), counted.bits() << (width - 1))
    signed = (result.bits() ^ (odd & x.bits())).floats()
    return where(none, x.new(math.nan), signed)


def _of_singles(x: Vector, y: Vector) -> Vector:
    """Of the magnitude."""
    e, f = split(x.doubles())
    s = f / (f + 2.0)
    square = s * s
    logarithm = fma(e, sum(_LOG2), fma(s * square, polynomial(square, _SHORT_LOGARITHM), s * 2.0))
    bound = _LARGEST[True]
    total = (logarithm * y.at_least(-(2.0**40)).at_most(2.0**40).doubles()).at_least(-bound).at_most(bound)
    n = nearest(total, 1 / math.log(2))
    r = fma(n.number, -sum(_LOG2), total)
    return (fma(r * r, polynomial(r, _SHORT_EXPONENTIAL), r + 1.0) * power_of_two(n.integer)).singles()


def _logarithm(x: Vector) -> tuple[Vector, Vector]:
    """In two parts."""
    e, f = split(x)
    s, s_lacks = quotient((f, f.new(0.0)), fast_two_sum(f.new(2.0), f))
    square, square_lacks = two_product(s, s)
    square_lacks = fma(s * 2.0, s_lacks, square_lacks)
    cube, cube_lacks = two_product(square, s)
    cube_lacks = fma(square, s_lacks, fma(square_lacks, s, cube_lacks))
    slope, slope_lacks = fast_two_sum(f.new(_TWO_THIRDS[0]), square * polynomial(square, _LONG_LOGARITHM))
    term, term_lacks = two_product(cube, slope)
    term_lacks = fma(cube, slope_lacks + _TWO_THIRDS[1], fma(cube_lacks, slope, term_lacks))
    total, lack = fast_two_sum(s * 2.0, term)
    lack = lack + fma(s_lacks, 2.0, term_lacks)
    total, more = fast_two_sum(e * _LOG2[0], total)
    return fast_two_sum(total, more + fma(e, _LOG2[1], lack))


def _of_doubles(x: Vector, y: Vector) -> Vector:
    """Of the magnitude."""
    logarithm, lack = _logarithm(x)
    y = y.at_least(-(2.0**70)).at_most(2.0**70)
    total, less = two_product(logarithm, y)
    bound = _LARGEST[False]
    less = where(abs(total) < bound, fma(lack, y, less), 0.0)
    n, head, tail = exp_of_sum(total.at_least(-bound).at_most(bound), less)
    one, more = fast_two_sum(head.new(1.0), head)
    return scaled(one + (more + tail), n)


# What t, of which five bits are those of the root, is multiplied by to have 23, of t^3 / x.
_ROOT = (0.14599619288661245, -0.758397934778766, 1.6214297201053545, -1.8849797954337717, 1.87595182427177)


def cbrt(x: Vector) -> Vector:
    """The cube root (FreeBSD's msun, s_cbrt.c): a third of the exponent, a polynomial, and a step of Newton's or Halley's."""
    magnitude = abs(x)
    up, down = (2.0**24, 2.0**-8) if x.single else (2.0**54, 2.0**-18)
    tiny = magnitude < 2.0 ** (-126 if x.single else -1022)
    a = where(tiny, magnitude * up, magnitude)
    # A third of the bits, computed as a float, is that of the exponent: lower bits of a number beyond 2^23 or 2^52 count by ones.
    spare, magic = (9, 2.0**23) if x.single else (12, 2.0**52)
    bias = (709958130 >> 9) if x.single else (715094163 << 32 >> 12)
    counted = (a.bits().unsigned_shift(spare) | x.new(magic).bits()).floats() - magic
    third = (fma(counted, 1 / 3, magic + bias).bits() ^ x.new(magic).bits()) << spare
    t = third.floats()
    t = t * polynomial(t * t * (t / a), _ROOT)
    if x.single:
        wide = t.doubles()
        wrong = (wide * wide * wide - a.doubles()).singles() / (t * t * 3.0)
        t = (wide - wrong.doubles()).singles()
    else:
        t = ((t.bits() + 0x80000000) & -0x40000000).floats()  # its square is exact
        r = a / (t * t)
        t = fma(t, (r - t) / (t + t + r), t)
    t = where(tiny, t * down, t)
    return where((magnitude > 0.0) & (magnitude < math.inf), t, x).with_sign(x)
