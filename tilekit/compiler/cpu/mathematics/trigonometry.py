"""Sine, cosine and tangent.

x is n pi / 2 + r, |r| <= pi / 4: multiples of pi / 2, in parts of which the first leave nothing to be rounded, are taken away
(W. J. Cody, W. Waite: Software Manual for the Elementary Functions, 1980; FreeBSD's msun, e_rem_pio2.c). Of float64 r has a
second part. Where n is too large, the C library computes, element by element. Sine and cosine of r are polynomials (as in
msun, k_sin.c and k_cos.c, but fitted as those of exponential.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tilekit.compiler.cpu.mathematics.exponential import nearest
from tilekit.compiler.cpu.mathematics.vectors import (
    Vector,
    by_library,
    fast_two_sum,
    fma,
    polynomial,
    quotient,
    two_product,
    two_sum,
    unless,
    where,
)

__all__ = ["cos", "sin", "tan"]

# (sin(r) - r) / r^3, and (cos(r) - 1 + r^2 / 2) / r^4, of r^2
_SINE = {
    True: (-0.00019518285, 0.008332189, -0.16666655),
    False: (
        1.589776957317421e-10, -2.5050778160458023e-08, 2.7557313849098964e-06, -0.00019841269830386964, 0.008333333333323397,
        -0.16666666666666638,
    ),
}  # fmt: skip
_COSINE = {
    True: (2.4462202e-05, -0.0013887612, 0.041666653),
    False: (
        -1.1366052266660173e-11, 2.0875860085397384e-09, -2.755731548038384e-07, 2.4801587293934284e-05, -0.0013888888888882443,
        0.04166666666666666,
    ),
}  # fmt: skip
# pi / 2: in parts of as many bits as floats have, for fused multiply-adds; of 25 bits and 53; and of 33, 33, 33 and 53.
_SINGLES = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_DOUBLES = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_MIXED = (1.5707963109016418, 1.5893254773528196e-08)
_SHORT = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)


class _Reduced(NamedTuple):
    """n as an integer, r, what r lacks, and where it is none, x being too large."""

    n: Vector
    r: Vector
    lack: Vector
    beyond: Vector


def _reduced(x: Vector) -> _Reduced:
    """Of a number that is not negative."""
    number, n = nearest(x, 2 / math.pi)
    fused = x.k.machine.fused
    if x.single:
        if fused:
            r = x
            for part in _SINGLES:
                r = fma(number, -part, r)
        else:
            wide = number.doubles()
            r = ((x.doubles() - wide * _MIXED[0]) - wide * _MIXED[1]).singles()
        return _Reduced(n, r, r.new(0.0), x > 2.0**20)
    if fused:
        first = fma(number, -_DOUBLES[0], x)
        product, less = two_product(number, _DOUBLES[1])
        r, lack = two_sum(first, -product)
        lack = fma(number, -_DOUBLES[2], lack - less)
    else:
        r, lack = two_sum(x - number * _SHORT[0], -(number * _SHORT[1]))
        r, less = two_sum(r, -(number * _SHORT[2]))
        lack = (lack + less) - number * _SHORT[3]
    r, lack = fast_two_sum(r, lack)
    return _Reduced(n, r, lack, x > 2.0 ** (30 if fused else 20))


def _sine(r: Vector, lack: Vector) -> tuple[Vector, Vector]:
    """In two parts."""
    square = r * r
    rest = (square * r) * polynomial(square, _SINE[r.single])
    return r, rest if r.single else rest + fma(square * -0.5, lack, lack)


def _cosine(r: Vector, lack: Vector) -> tuple[Vector, Vector]:
    square = r * r
    half = square * 0.5
    rest = square * square * polynomial(square, _COSINE[r.single])
    near = 1.0 - half
    return near, rest if r.single else ((1.0 - near) - half) + fma(-r, lack, rest)


def _signed(x: Vector, sign: Vector) -> Vector:
    """With its sign changed where the uppermost bit of an integer is set."""
    uppermost = sign & -(1 << (31 if x.single else 63))
    return (x.bits() ^ uppermost).floats()


def _wave(x: Vector, name: str, quarters: int) -> Vector:
    """The sine, so many quarters of a turn ahead."""
    magnitude = abs(x)
    n, r, lack, beyond = _reduced(magnitude)
    n = n + quarters
    odd = (n & 1).equals(1)
    sine, cosine = (a + b for a, b in (_sine(r, lack), _cosine(r, lack)))
    sign = n << (30 if x.single else 62)
    result = _signed(where(odd, cosine, sine), sign if quarters else sign ^ x.bits())
    return unless(beyond, result, lambda: by_library(beyond, result, name, x))


def sin(x: Vector) -> Vector:
    """The sine."""
    return _wave(x, "sin", 0)


def cos(x: Vector) -> Vector:
    """The cosine."""
    return _wave(x, "cos", 1)


def tan(x: Vector) -> Vector:
    """The tangent: the sine divided by the cosine, the other way round in odd quarters of a turn."""
    n, r, lack, beyond = _reduced(abs(x))
    odd = (n & 1).equals(1)
    sine, cosine = (fast_two_sum(*parts) for parts in (_sine(r, lack), _cosine(r, lack)))
    above, below = ([where(odd, *pair) for pair in zip(*order)] for order in ((cosine, sine), (sine, cosine)))
    if x.single:
        result = above[0] / below[0]
    else:
        result = quotient((above[0], above[1]), (below[0], below[1]))[0]
    result = _signed(result, (n << (31 if x.single else 63)) ^ x.bits())
    return unless(beyond, result, lambda: by_library(beyond, result, "tan", x))
