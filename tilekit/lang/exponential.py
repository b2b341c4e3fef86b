"""Exponentials, logarithms, roots and what is made of them, of each element.

How far a result may be off, on any device, is stated in units in the last place (ulp) of the exact one. float16 and bfloat16 are
computed in float32 and rounded, so that they are off by their own rounding. The references compute in float64 and round once, as
does the CPU device where it interprets a kernel.
"""

from __future__ import annotations

import numpy as np

from tilekit.lang import rounding
from tilekit.lang.floats import floating, real_erf, real_erfc, real_rsqrt, real_sigmoid, real_softplus
from tilekit.lang.registry import tile_op
from tilekit.lang.rounding import RoundingMode
from tilekit.lang.tile import Tile

__all__ = ["cbrt", "erf", "erfc", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "rsqrt", "sigmoid", "softplus", "sqrt"]


@tile_op("exp", host="numpy.exp")
def exp(x: Tile, *, rounding_mode: RoundingMode | str | None = None) -> Tile:
    """e to the power of each element.

    At most 2 ulp off for float32, 1 for float64.

    `tk.RoundingMode.APPROX` is two instructions on a GPU, and at most 2 + 2 * abs(x) ulp off.

    Of float32 scores below a maximum of theirs, `tk.exp(s - m)` as softmax takes it, where `m` is made of `tk.max(s)`, the power
    may be computed by a fused multiply-add and one instruction in kernels that multiply: at most 2 + 2 * (abs(s) + abs(m)) ulp
    off, and subnormal ones are zeros; the same of `c * (s - m)`, for a positive constant. So may `tk.exp(old - m)`, where `m` is
    `tk.maximum(old, ...)`: as far off. With a `rounding_mode`, `FULL` too, it is as it is written.

    Round a loop, `total = total * tk.exp(old - m) + tk.sum(tk.exp(s - m), 1)`, where `m = tk.maximum(old, tk.max(s, 1))` is `old`
    in the next turn, may be taken by parts of each row, each below a maximum of its own, which are joined behind the loop: a row
    that begins with -inf, of which nothing is below a maximum of -inf, then has the sum of what comes later. With `tk.add` in
    the place of `+` it is as it is written.

    Args:
        x: a floating-point tile.
        rounding_mode: `tk.RoundingMode.FULL` (the default), or `APPROX` for float32.

    Raises:
        CompileError: `x` is no floating-point tile, or its dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.exp(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([1., 1.], dtype=float32)
    """
    return floating("exp", x, np.exp, accepted=rounding.EXPONENTIAL, rounding_mode=rounding_mode)


@tile_op("exp2", host="numpy.exp2")
def exp2(x: Tile, *, flush_to_zero: bool = False) -> Tile:
    """2 to the power of each element.

    At most 2 ulp off for float32, 1 for float64; of scores below a maximum of theirs as `tk.exp` says, but with `flush_to_zero`,
    False too.

    Args:
        x: a floating-point tile.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: `x` is no floating-point tile, or its dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.exp2(y.load()))
        >>> compute(api.full(2, 3.0).partition(2)).out().sync().numpy()
        array([8., 8.], dtype=float32)
    """
    return floating("exp2", x, np.exp2, flush_to_zero=flush_to_zero)


@tile_op("expm1", host="numpy.expm1")
def expm1(x: Tile) -> Tile:
    """exp(x) - 1 of each element, precise near 0 too.

    At most 2 ulp off for float32, 1 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.expm1(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("expm1", x, np.expm1)


@tile_op("log", host="numpy.log")
def log(x: Tile) -> Tile:
    """The natural logarithm of each element; -inf for 0, NaN for negative ones.

    At most 1 ulp off for float32, 1 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.log(y.load()))
        >>> compute(api.full(2, 1.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("log", x, np.log)


@tile_op("log2", host="numpy.log2")
def log2(x: Tile) -> Tile:
    """The logarithm to the base 2 of each element; -inf for 0, NaN for negative ones.

    At most 1 ulp off for float32, 1 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.log2(y.load()))
        >>> compute(api.full(2, 8.0).partition(2)).out().sync().numpy()
        array([3., 3.], dtype=float32)
    """
    return floating("log2", x, np.log2)


@tile_op("log10", host="numpy.log10")
def log10(x: Tile) -> Tile:
    """The logarithm to the base 10 of each element; -inf for 0, NaN for negative ones.

    At most 2 ulp off for float32, 1 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.log10(y.load()))
        >>> compute(api.full(2, 1.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("log10", x, np.log10)


@tile_op("log1p", host="numpy.log1p")
def log1p(x: Tile) -> Tile:
    """log(1 + x) of each element, precise near 0 too; -inf for -1, NaN below.

    At most 1 ulp off for float32, 1 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.log1p(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("log1p", x, np.log1p)


@tile_op("sqrt", host="numpy.sqrt")
def sqrt(x: Tile, *, rounding_mode: RoundingMode | str | None = None, flush_to_zero: bool = False) -> Tile:
    """The square root of each element; NaN for negative ones.

    Correctly rounded.

    `tk.RoundingMode.APPROX` is at most 2 ulp off, and takes a third of the instructions on a GPU.

    Args:
        x: a floating-point tile.
        rounding_mode: `tk.RoundingMode.RN` (the default), `RZ`, `RM` or `RP`; for float32 also `APPROX`.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: `x` is no floating-point tile, or its dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.sqrt(y.load()))
        >>> compute(api.full(2, 9.0).partition(2)).out().sync().numpy()
        array([3., 3.], dtype=float32)
    """
    return floating("sqrt", x, np.sqrt, accepted=rounding.ROOT, rounding_mode=rounding_mode, flush_to_zero=flush_to_zero)


@tile_op("rsqrt", host="1 / numpy.sqrt")
def rsqrt(x: Tile, *, flush_to_zero: bool = False) -> Tile:
    """1 / sqrt(x) of each element; an infinity for 0, NaN for negative ones.

    At most 2 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: `x` is no floating-point tile, or its dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.rsqrt(y.load()))
        >>> compute(api.full(2, 4.0).partition(2)).out().sync().numpy()
        array([0.5, 0.5], dtype=float32)
    """
    return floating("rsqrt", x, real_rsqrt, flush_to_zero=flush_to_zero)


@tile_op("cbrt", host="numpy.cbrt")
def cbrt(x: Tile) -> Tile:
    """The cube root of each element, negative ones too.

    At most 1 ulp off for float32, 1 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.cbrt(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("cbrt", x, np.cbrt)


@tile_op("sigmoid", host="1 / (1 + numpy.exp(-x))")
def sigmoid(x: Tile) -> Tile:
    """1 / (1 + exp(-x)) of each element, precise at both ends.

    At most 4 ulp off for float32, 4 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.sigmoid(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0.5, 0.5], dtype=float32)
    """
    return floating("sigmoid", x, real_sigmoid)


@tile_op("softplus", host="numpy.logaddexp(0, x)")
def softplus(x: Tile) -> Tile:
    """log(1 + exp(x)) of each element, without overflow, and precise at both ends: exp(x) for low ones, x for high ones.

    At most 5 ulp off for float32, 3 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.softplus(y.load()))
        >>> compute(api.full(2, 100.0).partition(2)).out().sync().numpy()
        array([100., 100.], dtype=float32)
    """
    return floating("softplus", x, real_softplus)


@tile_op("erf", host="math.erf")
def erf(x: Tile) -> Tile:
    """The error function of each element.

    At most 2 ulp off for float32, 2 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.erf(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([0., 0.], dtype=float32)
    """
    return floating("erf", x, real_erf)


@tile_op("erfc", host="math.erfc")
def erfc(x: Tile) -> Tile:
    """1 - erf(x) of each element, precise for large ones too.

    At most 4 ulp off for float32, 5 for float64.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.erfc(y.load()))
        >>> compute(api.full(2, 0.0).partition(2)).out().sync().numpy()
        array([1., 1.], dtype=float32)
    """
    return floating("erfc", x, real_erfc)
