"""Trigonometric and hyperbolic functions of each element, and their inverses.

How far a result may be off, on any device, is stated in units in the last place (ulp) of the exact one. float16 and bfloat16 are
computed in float32 and rounded, so that they are off by their own rounding. The references compute in float64 and round once, as
does the CPU device where it interprets a kernel.
"""

from __future__ import annotations

import numpy as np

from tilekit.lang import rounding
from tilekit.lang.floats import floating, floating_pair
from tilekit.lang.registry import tile_op
from tilekit.lang.rounding import RoundingMode
from tilekit.lang.tile import Scalar, Tile

__all__ = ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"]


@tile_op("sin", host="numpy.sin")
def sin(x: Tile) -> Tile:
    """The sine of each element, in radians; NaN for infinities.

    At most 2 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.sin(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("sin", x, np.sin)


@tile_op("cos", host="numpy.cos")
def cos(x: Tile) -> Tile:
    """The cosine of each element, in radians; NaN for infinities.

    At most 2 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.cos(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([1., 1.], dtype=float32)
    """
    return floating("cos", x, np.cos)


@tile_op("tan", host="numpy.tan")
def tan(x: Tile) -> Tile:
    """The tangent of each element, in radians; NaN for infinities.

    At most 4 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.tan(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("tan", x, np.tan)


@tile_op("asin", host="numpy.arcsin")
def asin(x: Tile) -> Tile:
    """The angle in radians, from -pi/2 to pi/2, whose sine each element is; NaN beyond 1 and -1.

    At most 2 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.asin(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("asin", x, np.arcsin)


@tile_op("acos", host="numpy.arccos")
def acos(x: Tile) -> Tile:
    """The angle in radians, from 0 to pi, whose cosine each element is; NaN beyond 1 and -1.

    At most 2 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.acos(y.load()))
        >>> compute(api.full(2, 1.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("acos", x, np.arccos)


@tile_op("atan", host="numpy.arctan")
def atan(x: Tile) -> Tile:
    """The angle in radians, from -pi/2 to pi/2, whose tangent each element is.

    At most 2 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.atan(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("atan", x, np.arctan)


@tile_op("atan2", host="numpy.arctan2")
def atan2(x1: Tile | Scalar, x2: Tile | Scalar) -> Tile:
    """The angle in radians, from -pi to pi, of the point with ordinate `x1` and abscissa `x2`.

    At most 3 ulp off for float32, 2 for float64.

    Args:
        x1, x2: floating-point tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are integers.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.atan2(0.0, y.load()))
        >>> compute(api.full(2, 1.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating_pair("atan2", x1, x2, np.arctan2)


@tile_op("sinh", host="numpy.sinh")
def sinh(x: Tile) -> Tile:
    """The hyperbolic sine of each element.

    At most 3 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.sinh(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("sinh", x, np.sinh)


@tile_op("cosh", host="numpy.cosh")
def cosh(x: Tile) -> Tile:
    """The hyperbolic cosine of each element.

    At most 2 ulp off for float32, 1 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.cosh(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([1., 1.], dtype=float32)
    """
    return floating("cosh", x, np.cosh)


@tile_op("tanh", host="numpy.tanh")
def tanh(x: Tile, *, rounding_mode: RoundingMode | str | None = None) -> Tile:
    """The hyperbolic tangent of each element.

    At most 2 ulp off for float32, 1 for float64.

    `tk.RoundingMode.APPROX` is one instruction on a GPU, with a relative error of at most 2**-10.9.

    Args:
        x: a floating-point tile.
        rounding_mode: `tk.RoundingMode.FULL` (the default), or `APPROX` for float32.

    Raises:
        CompileError: `x` is no floating-point tile, or its dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.tanh(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("tanh", x, np.tanh, accepted=rounding.EXPONENTIAL, rounding_mode=rounding_mode)


@tile_op("asinh", host="numpy.arcsinh")
def asinh(x: Tile) -> Tile:
    """The inverse hyperbolic sine of each element.

    At most 3 ulp off for float32, 3 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.asinh(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("asinh", x, np.arcsinh)


@tile_op("acosh", host="numpy.arccosh")
def acosh(x: Tile) -> Tile:
    """The inverse hyperbolic cosine of each element; NaN below 1.

    At most 4 ulp off for float32, 3 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.acosh(y.load()))
        >>> compute(api.full(2, 1.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("acosh", x, np.arccosh)


@tile_op("atanh", host="numpy.arctanh")
def atanh(x: Tile) -> Tile:
    """The inverse hyperbolic tangent of each element; infinities for 1 and -1, NaN beyond.

    At most 3 ulp off for float32, 3 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.atanh(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("atanh", x, np.arctanh)
