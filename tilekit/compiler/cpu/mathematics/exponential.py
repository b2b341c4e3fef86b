"""Exponentials, and the hyperbolic functions that are made of them.

e^x is 2^n e^r, for a whole number n and |r| <= log(2) / 2 (W. J. Cody, W. Waite: Software Manual for the Elementary Functions,
1980). For what differs from it by 1, as for the hyperbolic functions, e^r - 1 is a sum of two numbers, a head and a tail. The
polynomials are minimax (by Remez' algorithm, of the relative error of the result); their coefficients are rounded one by one, the
lowest power's first, and the others fitted anew.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tilekit.compiler.cpu.mathematics.vectors import (
    Vector,
    fast_two_sum,
    fma,
    has_registers,
    in_registers,
    polynomial,
    quotient,
    two_product,
    two_sum,
    where,
)

__all__ = [
    "cosh", "exp", "exp2", "exp_of_sum", "exp_within", "expm1", "nearest", "power_of_two", "scaled", "sigmoid", "sinh", "tanh",
]  # fmt: skip

# (e^r - 1 - r) / r^2
_SERIES = {
    True: (0.00138355, 0.008367118, 0.041667756, 0.16666539, 0.49999997),
    False: (
        1.5484260512946992e-10, 2.092226430851847e-09, 2.505532723989396e-08, 2.7557252383861346e-07, 2.7557313201724443e-06,
        2.4801587345874175e-05, 0.00019841269846143357, 0.0013888888888876213, 0.008333333333331656, 0.04166666666666668,
        0.16666666666666669, 0.5,
    ),
}  # fmt: skip
# (e^2r - 1 - 2 r) / (2 r^2), of float32: a term more of the first
_DOUBLED_SERIES = tuple(
    2.0 ** (6 - n) * coefficient
    for n, coefficient in enumerate((0.00015046008, 0.0013930543, 0.00834151, 0.04166651, 0.16666636, 0.5))
)
# (2^r - 1 - r log(2)) / r^2 for |r| <= 1/2
_BINARY_SERIES = {
    True: (1.3453451e-05, 0.00015453057, 0.0013340322, 0.009618084, 0.05550405, 0.2402265),
    False: (
        2.5208125183569255e-11, 4.456375146740396e-10, 7.055274162012311e-09, 1.0178053490387599e-07, 1.3215485803689064e-06,
        1.5252733849634076e-05, 0.00015403530394570718, 0.0013333558146399287, 0.00961812910762787, 0.055504108664821646,
        0.24022650695910072,
    ),
}  # fmt: skip
# log(2) in two parts, of which the first times n is exact.
_LOG2 = {True: (0.693145751953125, 1.42860677e-06), False: (0.6931471803691238, 1.9082149292705877e-10)}
# What the float64 next to log(2) lacks.
_LOG2_LACKS = 2.3190468138462996e-17
_BIAS = {True: (127, 23), False: (1023, 52)}


class Whole(NamedTuple):
    """A vector of whole numbers, as floats and as integers."""

    number: Vector
    integer: Vector


def scaled(x: Vector, power: Whole) -> Vector:
    """x * 2^power, rounded once where it is subnormal; what is beyond the largest number on the way is right, too."""
    if has_registers(x):
        return in_registers("scalef", x, power.number)
    half = power.integer >> 1
    return x * power_of_two(half) * power_of_two(power.integer - half)


def power_of_two(power: Vector) -> Vector:
    """Of an integer, as a float, if that is a normal one."""
    bias, bits = _BIAS[power.single]
    return ((power + bias) << bits).floats()


def nearest(x: Vector, scale: float) -> Whole:
    """The whole number next to x * scale."""
    # From this number on neighbours are 1 apart: what is added to it is rounded, and stands in its lower bits.
    magic = x.new(1.5 * 2.0 ** (23 if x.single else 52))
    shifted = fma(x, scale, magic)
    return Whole(shifted - magic, shifted.bits() - magic.bits())


def _bounded(x: Vector) -> Vector:
    """Not far beyond where e^x is infinite or 0."""
    low, high = (-104.0, 89.0) if x.single else (-746.0, 710.0)
    return x.at_least(low).at_most(high)


def exp(x: Vector) -> Vector:
    """e^x."""
    return exp_within(_bounded(x))


def exp_within(x: Vector) -> Vector:
    """e^x, if x is not far beyond where that is infinite or 0."""
    n = nearest(x, 1 / math.log(2))
    upper, lower = _LOG2[x.single]
    r = fma(n.number, -lower, fma(n.number, -upper, x))
    return scaled(fma(r * r, polynomial(r, _SERIES[x.single]), r) + 1.0, n)


def exp2(x: Vector) -> Vector:
    """2^x."""
    low, high = (-151.0, 129.0) if x.single else (-1076.0, 1025.0)
    x = x.at_least(low).at_most(high)
    n = nearest(x, 1.0)
    r = x - n.number
    series = polynomial(r, _BINARY_SERIES[x.single])
    if x.single:
        return scaled(fma(r * r, series, r * math.log(2)) + 1.0, n)
    product, lack = two_product(r, math.log(2))
    return scaled(product + fma(r * r, series, fma(r, _LOG2_LACKS, lack)) + 1.0, n)


def exp_of_sum(x: Vector, rest: Vector | None = None) -> tuple[Whole, Vector, Vector]:
    """n, head and tail, where e^(x + rest) = 2^n (1 + head + tail); of float32 there is no tail."""
    n = nearest(x, 1 / math.log(2))
    upper, lower = _LOG2[x.single]
    above = fma(n.number, -upper, x)
    if x.single:
        r = fma(n.number, -lower, above if rest is None else above + rest)
        return n, fma(r * r, polynomial(r, _SERIES[True]), r), x.new(-0.0)
    taken = n.number * lower if rest is None else fma(n.number, lower, -rest)
    r = above - taken
    lost = (above - r) - taken
    head, tail = fast_two_sum(r, r * r * polynomial(r, _SERIES[x.single]))
    return n, head, tail + fma(lost, r, lost)


def _less_one(x: Vector, less: Vector | int = 0) -> tuple[Vector, Vector]:
    """(e^x - 1) / 2^less."""
    n, head, tail = exp_of_sum(x)
    less = n.integer.new(less)
    scale, one = power_of_two(n.integer - less), power_of_two(-less)
    if x.single:
        return fma(scale, head, scale - one), x.new(-0.0)
    first, lost = two_sum(scale, -one)
    total, lack = fast_two_sum(first, scale * head)
    return total, fma(scale, tail, lack + lost)


def expm1(x: Vector) -> Vector:
    """e^x - 1."""
    low, high = (-18.0, 89.0) if x.single else (-40.0, 710.0)
    bounded = x.at_least(low).at_most(high)
    less = where(bounded > 1.0, bounded.bits().new(1), 0)  # 2^1024 is no float
    total, lack = _less_one(bounded, less)
    return ((total + lack) * power_of_two(less)).with_sign(x)


def sigmoid(x: Vector) -> Vector:
    """1 / (1 + e^-x)."""
    e = exp(-abs(x))
    return where(x < 0.0, e, 1.0) / (e + 1.0)


def tanh(x: Vector) -> Vector:
    """The hyperbolic tangent: t / (t + 2) for t = e^2x - 1."""
    magnitude = abs(x)
    if x.single:  # h / (h + 1) for h = t / 2; near 0, where the sum's rounding would show, h - h^2 / (h + 1)
        bounded = magnitude.at_most(10.0)
        n = nearest(bounded, 2 / math.log(2))
        upper, lower = _LOG2[True]
        r = fma(n.number, -lower / 2, fma(n.number, -upper / 2, bounded))
        scale = power_of_two(n.integer)
        half = fma(scale, fma(r * r, polynomial(r, _DOUBLED_SERIES), r), fma(scale, 0.5, -0.5))
        result = half / (half + 1.0)
        return where(magnitude < 0.5, fma(-half, result, half), result).with_sign(x)
    total, lack = _less_one((magnitude * 2.0).at_most(44.0))
    below, rest = two_sum(total, total.new(2.0))
    return quotient((total, lack), (below, rest + lack))[0].with_sign(x)


def _halved(x: Vector) -> Vector:
    """What the powers of large numbers are divided by in the meantime, as a power of two, and the powers of others."""
    return where(x > 64.0, x.bits().new(3), 1)


def sinh(x: Vector) -> Vector:
    """The hyperbolic sine: (t + t / (t + 1)) / 2 for t = e^x - 1."""
    bounded = abs(x).at_most(90.0 if x.single else 711.0)
    less = _halved(bounded)
    half, lack = _less_one(bounded, less)
    t = (half * 2.0).at_most(2.0**60)
    return ((half + fma(t / (t + 1.0), 0.5, lack)) * power_of_two(less - 1)).with_sign(x)


def cosh(x: Vector) -> Vector:
    """The hyperbolic cosine."""
    bounded = abs(x).at_most(90.0 if x.single else 711.0)
    less = _halved(bounded)
    n, head, tail = exp_of_sum(bounded)
    scale = power_of_two(n.integer - less)
    total, lack = fast_two_sum(head.new(1.0), head)
    half = scale * total
    return (half + fma(scale, lack + tail, 0.25 / half)) * power_of_two(less - 1)
