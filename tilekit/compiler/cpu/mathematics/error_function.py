"""The error function and its complement.

Near 0 erf is a polynomial, and beyond it is 1 less e to another one. The complement is e^(-x^2) g(t) / (1 + 2 x) there, where g
is a polynomial of t = (x - 4) / (x + 4) (M. M. Shepherd, J. G. Laframboise: Chebyshev approximation of (1 + 2x) exp(x^2) erfc(x)
in 0 <= x < infinity, 1981). All are fitted as those of exponential.py.
"""

from __future__ import annotations

from tilekit.compiler.cpu.mathematics.exponential import exp_of_sum, exp_within, scaled
from tilekit.compiler.cpu.mathematics.vectors import Vector, fma, polynomial, two_product, where

__all__ = ["erf", "erfc"]

# (erf(x) - x) / x of x^2, for |x| <= 1
_NEAR = {
    True: (7.806904e-05, -0.0007997853, 0.005187162, -0.026853347, 0.11283579, -0.37612626, 0.12837917),
    False: (
        -7.607820420941618e-10, 1.3616703621796577e-08, -1.618399211068097e-07, 1.6444150675051541e-06, -1.492446564616125e-05,
        0.0001205528049678781, -0.0008548325485002327, 0.005223977596735902, -0.02686617064195914, 0.1128379167093695,
        -0.37612638903183343, 0.12837916709551256,
    ),
}  # fmt: skip
# log(1 - erf(x)) / x for 0.97 <= x, to 4 and 5.93, where erf is 1
_TAIL = {
    True: (-1.7057995e-05, 0.00038026768, -0.003871069, 0.024232015, -0.106764056, -0.63484484, -1.1287208),
    False: (
        -2.0311490839253656e-13, 1.0039074874865607e-11, -2.338121712437547e-10, 3.4113883438005717e-09, -3.4942521259149347e-08,
        2.665523128165516e-07, -1.5643185625885496e-06, 7.1656073873790695e-06, -2.5504864035429486e-05, 6.791912577313702e-05,
        -0.00011735271309809233, 3.303086225379776e-05, 0.0005375002037279108, -0.0016590076536312495, 0.00018885350739669685,
        0.01913674338983132, -0.10277497774193586, -0.6366193472336766, -1.1283792029018822,
    ),
}  # fmt: skip
# The 4 of t; of float32 so that what the polynomial is of 0 is a float, or nearly.
_FOUR = {True: 3.999998092651367, False: 4.0}
# (1 + 2 x) e^(x^2) erfc(x) of t, for x >= 1/2
_SCALED = {
    True: (
        0.0052743717, -0.016573261, 0.03699194, -0.06626253, 0.093767904, -0.10104434, 0.06809465, 0.015379728, -0.13962108,
        1.2329952,
    ),
    False: (
        -4.1759372145772735e-09, 7.483757548081991e-08, 4.444601389023521e-08, -7.834610515556815e-07, 3.2646363918222484e-07,
        5.680747644750966e-06, -1.1242468440127847e-05, -2.4386702181684935e-05, 0.00015062955220436472, -0.0001992601533029567,
        -0.0007577751837808805, 0.005031970584559917, -0.016197733779113613, 0.03716751547278598, -0.06633036583577581,
        0.09373283500218768, -0.10103906603529436, 0.06809705425458701, 0.015379652102603003, -0.13962111684056164,
        1.2329951186255526,
    ),
}  # fmt: skip


def _near(x: Vector) -> Vector:
    return fma(x, polynomial(x * x, _NEAR[x.single]), x)


def _complement(x: Vector) -> Vector:
    """Of numbers from 1/2 on."""
    x = x.at_most(10.1 if x.single else 27.3)
    four = _FOUR[x.single]
    factor = polynomial((x - four) / (x + four), _SCALED[x.single]) / fma(x, 2.0, 1.0)
    square, lack = two_product(x, x)
    n, head, tail = exp_of_sum(-square, -lack)
    return scaled(fma(factor, head + tail, factor), n)


def erf(x: Vector) -> Vector:
    """The error function."""
    magnitude = abs(x)
    bounded = magnitude.at_most(4.0 if x.single else 5.93)
    far = 1.0 - exp_within(bounded * polynomial(bounded, _TAIL[x.single]))
    return where(magnitude < 1.0, _near(magnitude), far).with_sign(x)


def erfc(x: Vector) -> Vector:
    """1 - erf(x)."""
    magnitude = abs(x)
    far = _complement(magnitude)
    return where(magnitude < 0.5, 1.0 - _near(x), where(x < 0.0, 2.0 - far, far))
