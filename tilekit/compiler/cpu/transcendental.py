"""Mathematical functions of tiles, with their rounding modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code
from tilekit.compiler.cpu.directed import calculation, flushed, is_directed
from tilekit.compiler.cpu.elementwise import mapped, meet
from tilekit.compiler.cpu.mathematics import error_function, exponential, inverse, logarithm, power, trigonometry
from tilekit.compiler.cpu.mathematics.vectors import Formula, Vector
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Tile
from tilekit.compiler.cpu.values import Unsupported
from tilekit.dtypes import DType

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


def _enter(name: str, formula: Formula, cost: int) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile, *, rounding_mode: Any = None, flush_to_zero: bool = False) -> Tile:
        if not dtypes.is_float(x.dtype) or x.dtype in dtypes.EIGHT_BIT_FLOATS:
            raise Unsupported(f"{name} of {x.dtype.name}")
        if is_directed(rounding_mode):
            function = calculation(p.k, name, x.dtype, rounding_mode)
        else:
            function = _of_values(p.k, x.dtype, formula)
        if flush_to_zero:
            return mapped(p.k, [x], x.dtype, lambda v: flushed(p.k, function(flushed(p.k, v))), cost + 4)
        return mapped(p.k, [x], x.dtype, function, cost)


for _name, (_formula, _cost) in _FUNCTIONS.items():
    _enter(_name, _formula, _cost)


@lowers("atan2")
def atan2(p: Any, x1: Any, x2: Any) -> Tile:
    """The angle of a point."""
    tiles, dtype = meet(p.k, x1, x2)
    if not dtypes.is_float(dtype):
        raise Unsupported("atan2 of integers")
    return mapped(p.k, tiles, dtype, _of_values(p.k, dtype, inverse.atan2), 30)
