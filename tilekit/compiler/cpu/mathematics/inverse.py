"""The inverse trigonometric functions.

Of small numbers they are polynomials (fitted as those of exponential.py), and larger ones are turned into small ones: asin(x) is
pi / 2 - 2 asin(sqrt((1 - x) / 2)) (as in FreeBSD's msun, e_asin.c), atan(x) is pi / 2 - atan(1 / x).
"""

from __future__ import annotations

from tilekit.compiler.cpu.mathematics.vectors import Vector, fast_two_sum, fma, polynomial, where

__all__ = ["acos", "asin", "atan", "atan2"]

# (asin(x) - x) / x^3 for |x| <= 1/2, and (atan(x) - x) / x^3 for |x| <= 1, of x^2
_ARCSINE = {
    True: (0.03769086, 0.014317177, 0.03183883, 0.044513382, 0.07500522, 0.1666666),
    False: (
        0.032196488381708244, -0.02027485474379281, 0.02116872980608644, 0.003940704818132689, 0.010714207238734393,
        0.011411552986921704, 0.013979147887226897, 0.017351764842365846, 0.022372205526092582, 0.03038194308908169,
        0.04464285716531147, 0.07499999999982765, 0.16666666666666702,
    ),
}  # fmt: skip
_ARCTANGENT = {
    True: (
        -0.001836577, 0.011148252, -0.031700242, 0.058582574, -0.084469005, 0.10969956, -0.14268345, 0.19999024, -0.3333332,
    ),
    False: (
        1.3952328758755562e-05, -0.00015967151138681233, 0.0008672328057634982, -0.0029903962515198056, 0.0074094433062619446,
        -0.014213786518373123, 0.02233209360400792, -0.0301998550590415, 0.036838110196825195, -0.042293392620901614,
        0.04726430010583512, -0.05254807640683596, 0.058808383128618615, -0.06666460459032628, 0.07692287367613919,
        -0.09090907713872762, 0.11111111051884554, -0.1428571428430203, 0.19999999999985865, -0.3333333333333331,
    ),
}  # fmt: skip
# pi / 2 in two parts
_QUARTER = {True: (1.5707963705062866, -4.371138828673793e-08), False: (1.5707963267948966, 6.123233995736766e-17)}


def _halved(x: Vector) -> tuple[Vector, Vector, Vector]:
    """Of a magnitude: where it is above 1/2; s, its own or that of (1 - x) / 2 squared; and asin(s) - s."""
    large = x > 0.5
    square = where(large, fma(x, -0.5, 0.5), x * x)
    s = where(large, square.sqrt(), x)
    return large, s, s * square * polynomial(square, _ARCSINE[x.single])


def asin(x: Vector) -> Vector:
    """The angle whose sine it is."""
    large, s, rest = _halved(abs(x))
    upper, lower = _QUARTER[x.single]
    turned, lack = fast_two_sum(x.new(upper), s * -2.0)
    return where(large, turned + (lack - fma(rest, 2.0, -lower)), s + rest).with_sign(x)


def acos(x: Vector) -> Vector:
    """The angle whose cosine it is."""
    large, s, rest = _halved(abs(x))
    upper, lower = _QUARTER[x.single]
    angle = (s + rest) * 2.0
    turned = where(x < 0.0, 2.0 * upper - (angle - 2.0 * lower), angle)
    return where(large, turned, upper - (x - (lower - rest.with_sign(x))))


def _arctangent(x: Vector) -> Vector:
    """Of a number from 0 to 1."""
    square = x * x
    return fma(x * square, polynomial(square, _ARCTANGENT[x.single]), x)


def atan(x: Vector) -> Vector:
    """The angle whose tangent it is."""
    magnitude = abs(x)
    large = magnitude > 1.0
    angle = _arctangent(where(large, 1.0 / magnitude, magnitude))
    upper, lower = _QUARTER[x.single]
    return where(large, upper - (angle - lower), angle).with_sign(x)


def atan2(y: Vector, x: Vector) -> Vector:
    """The angle of a point, of its ordinate and its abscissa."""
    height, width = abs(y), abs(x)
    steep, left = height > width, x.bits() < 0
    shorter, longer = where(steep, width, height), where(steep, height, width)
    same = where(longer.equals(0.0), longer, 1.0)  # 0 / 0 is 0, and infinity / infinity is 1
    ratio = where(shorter.equals(longer), same, shorter / longer)
    angle = _arctangent(ratio)
    upper, lower = (where(steep, x.new(part), where(left, x.new(2.0 * part), 0.0)) for part in _QUARTER[x.single])
    return (upper + (where(steep ^ left, -angle, angle) + lower)).with_sign(y)
