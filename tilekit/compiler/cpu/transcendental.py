"""Mathematical functions of tiles, with their rounding modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code, type_of
from tilekit.compiler.cpu.convert import narrow, wide
from tilekit.compiler.cpu.elementwise import mapped, meet
from tilekit.compiler.cpu.mathematics import error_function, exponential, inverse, logarithm, power, trigonometry
from tilekit.compiler.cpu.mathematics.vectors import Formula, Vector, two_product, where
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Tile
from tilekit.compiler.cpu.values import Unsupported
from tilekit.dtypes import DType
from tilekit.lang import rounding
from tilekit.lang.rounding import RoundingMode

__all__: list[str] = []


def _rsqrt(x: Vector) -> Vector:
    return 1.0 / x.sqrt()


# With what each costs, in about additions.
_FUNCTIONS: dict[str, tuple[Formula, int]] = {
    "exp": (exponential.exp, 15), "exp2": (exponential.exp2, 14), "expm1": (exponential.expm1, 25),
    "sigmoid": (exponential.sigmoid, 20), "sinh": (exponential.sinh, 30), "cosh": (exponential.cosh, 25),
    "tanh": (exponential.tanh, 25), "log": (logarithm.log, 22), "log2": (logarithm.log2, 28), "log10": (logarithm.log10, 28),
    "log1p": (logarithm.log1p, 30), "softplus": (logarithm.softplus, 50), "asinh": (logarithm.asinh, 45),
    "acosh": (logarithm.acosh, 45), "atanh": (logarithm.atanh, 40), "sqrt": (Vector.sqrt, 5), "rsqrt": (_rsqrt, 8),
    "cbrt": (power.cbrt, 40), "erf": (error_function.erf, 35), "erfc": (error_function.erfc, 45), "sin": (trigonometry.sin, 25),
    "cos": (trigonometry.cos, 25), "tan": (trigonometry.tan, 30), "asin": (inverse.asin, 20), "acos": (inverse.acos, 22),
    "atan": (inverse.atan, 20),
}  # fmt: skip


def _of_values(k: Code, dtype: DType, formula: Formula) -> Callable[..., ir.Value]:
    """A formula as a function of elements, which is computed in float32 for those of 16 bits."""
    return arithmetic.in_wide(k, dtype, lambda *values: formula(*(Vector(k, value) for value in values)).value)


def _flushed(x: Vector) -> Vector:
    """Zeros of the same sign for subnormal numbers of float32."""
    return where(abs(x) < 2.0**-126, x.new(0.0).with_sign(x), x)


def _enter(name: str, formula: Formula, cost: int) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile, *, rounding_mode: Any = None, flush_to_zero: bool = False) -> Tile:
        if not dtypes.is_float(x.dtype) or x.dtype in dtypes.EIGHT_BIT_FLOATS:
            raise Unsupported(f"{name} of {x.dtype.name}")
        mode = rounding.known_mode(name, rounding_mode)
        if mode in (RoundingMode.RZ, RoundingMode.RM, RoundingMode.RP):
            function = _directed_root(p.k, x.dtype, mode)
        else:
            function = _of_values(p.k, x.dtype, formula)
        if flush_to_zero:
            flush = _of_values(p.k, x.dtype, _flushed)
            return mapped(p.k, [x], x.dtype, lambda v: flush(function(flush(v))), cost + 4)
        return mapped(p.k, [x], x.dtype, function, cost)


for _name, (_formula, _cost) in _FUNCTIONS.items():
    _enter(_name, _formula, _cost)


def _directed_root(k: Code, dtype: DType, mode: RoundingMode) -> Callable[[ir.Value], ir.Value]:
    """The root next to the nearest one where that lies on the wrong side: its square says where."""
    bits = ir.IntType(8 * dtype.itemsize)

    def root(value: ir.Value) -> ir.Value:
        x = Vector(k, wide(k, value, dtype))
        nearest = narrow(k, x.sqrt().value, dtype)
        near = Vector(k, wide(k, nearest, dtype)).doubles()
        x = x.doubles()
        if dtype == dtypes.float64:  # what a product lacks must not be subnormal
            tiny = x < 2.0**-500
            x, near = where(tiny, x * 2.0**600, x), where(tiny, near * 2.0**300, near)
        square, lack = two_product(near, near)
        rest = (x - square) - lack
        pattern = Vector(k, k.b.bitcast(nearest, k.with_lanes(bits, nearest)))
        wrong = rest > 0.0 if mode == RoundingMode.RP else rest < 0.0
        chosen = where(wrong, pattern + (1 if mode == RoundingMode.RP else -1), pattern)
        return k.b.bitcast(chosen.value, k.with_lanes(type_of(dtype), nearest))

    return root


@lowers("atan2")
def atan2(p: Any, x1: Any, x2: Any) -> Tile:
    """The angle of a point."""
    tiles, dtype = meet(p.k, x1, x2)
    if not dtypes.is_float(dtype):
        raise Unsupported("atan2 of integers")
    return mapped(p.k, tiles, dtype, _of_values(p.k, dtype, inverse.atan2), 30)
