"""Questions about each element: comparisons as functions, truth, and what kind of number it is. All give bool tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.floats import floats
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Scalar, Tile, comparison, convert, operands, scalar_kind, what_is

__all__ = [
    "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and", "logical_not",
    "logical_or", "logical_xor", "not_equal",
]  # fmt: skip


def _truth(x: Any) -> Any:
    """What is not zero, as a bool array."""
    return convert(x._array if isinstance(x, Tile) else x, dtypes.bool_)


def _truths(name: str, function: Callable[[Any, Any], Any], x: Any, y: Any) -> Tile:
    bools = [Tile(_truth(v)) if isinstance(v, Tile) else bool(v) if scalar_kind(v) is not None else v for v in (x, y)]
    (a, b), _ = operands(name, *bools)
    return Tile(np.asarray(function(a, b)))


@tile_op("equal", host="numpy.equal")
def equal(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x == y` as a bool tile; NaN equals nothing.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or their dtypes have none in common.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.equal(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([False, False,  True, False])
    """
    return comparison("equal", np.equal, x, y)


@tile_op("not_equal", host="numpy.not_equal")
def not_equal(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x != y` as a bool tile; True for NaN.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or their dtypes have none in common.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.not_equal(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([ True,  True, False,  True])
    """
    return comparison("not_equal", np.not_equal, x, y)


@tile_op("less", host="numpy.less")
def less(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x < y` as a bool tile; False for NaN.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or their dtypes have none in common.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.less(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([ True,  True, False, False])
    """
    return comparison("less", np.less, x, y)


@tile_op("less_equal", host="numpy.less_equal")
def less_equal(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x <= y` as a bool tile; False for NaN.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or their dtypes have none in common.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.less_equal(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([ True,  True,  True, False])
    """
    return comparison("less_equal", np.less_equal, x, y)


@tile_op("greater", host="numpy.greater")
def greater(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x > y` as a bool tile; False for NaN.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or their dtypes have none in common.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.greater(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([False, False, False,  True])
    """
    return comparison("greater", np.greater, x, y)


@tile_op("greater_equal", host="numpy.greater_equal")
def greater_equal(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x >= y` as a bool tile; False for NaN.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or their dtypes have none in common.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.greater_equal(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([False, False,  True,  True])
    """
    return comparison("greater_equal", np.greater_equal, x, y)


@tile_op("logical_and", host="numpy.logical_and")
def logical_and(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Whether both elements are true.

    Args:
        x, y: tiles of any dtypes whose shapes broadcast, or a tile and a scalar; what is not zero counts as True, NaN too.

    Raises:
        CompileError: the shapes do not broadcast, or neither is a tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.logical_and(tk.arange(4) > 1, tk.arange(4) < 3))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([False, False,  True, False])
    """
    return _truths("logical_and", np.logical_and, x, y)


@tile_op("logical_or", host="numpy.logical_or")
def logical_or(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Whether one element at least is true.

    Args:
        x, y: tiles of any dtypes whose shapes broadcast, or a tile and a scalar; what is not zero counts as True, NaN too.

    Raises:
        CompileError: the shapes do not broadcast, or neither is a tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.logical_or(tk.arange(4) > 1, tk.arange(4) < 3))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([ True,  True,  True,  True])
    """
    return _truths("logical_or", np.logical_or, x, y)


@tile_op("logical_xor", host="numpy.logical_xor")
def logical_xor(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Whether one element is true and the other is not.

    Args:
        x, y: tiles of any dtypes whose shapes broadcast, or a tile and a scalar; what is not zero counts as True, NaN too.

    Raises:
        CompileError: the shapes do not broadcast, or neither is a tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.logical_xor(tk.arange(4) > 1, tk.arange(4) < 3))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([ True,  True, False,  True])
    """
    return _truths("logical_xor", np.logical_xor, x, y)


@tile_op("logical_not", host="numpy.logical_not")
def logical_not(x: Tile) -> Tile:
    """Whether an element is zero (or False).

    Args:
        x: a tile of any dtype.

    Raises:
        CompileError: `x` is no tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.logical_not(tk.arange(4)))
        >>> compute(api.zeros(4, tk.bool_).partition(4)).out().sync().numpy()
        array([ True, False, False, False])
    """
    if not isinstance(x, Tile):
        raise CompileError(f"logical_not: needs a tile, not {what_is(x)}")
    return Tile(~_truth(x))


@tile_op("isnan", host="numpy.isnan")
def isnan(x: Tile) -> Tile:
    """Whether each element is NaN, as a bool tile.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out, x: tk.In):
        ...     y.store(tk.isnan(tk.load_tile_like(x, y)))
        >>> x = api.from_host(np.array([1.0, np.inf, -np.inf, np.nan], np.float32)).sync()
        >>> compute(api.zeros(4, tk.bool_).partition(4), x).out().sync().numpy()
        array([False, False, False,  True])
    """
    return Tile(np.isnan(floats("isnan", x)))


@tile_op("isinf", host="numpy.isinf")
def isinf(x: Tile) -> Tile:
    """Whether each element is an infinity, as a bool tile.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out, x: tk.In):
        ...     y.store(tk.isinf(tk.load_tile_like(x, y)))
        >>> x = api.from_host(np.array([1.0, np.inf, -np.inf, np.nan], np.float32)).sync()
        >>> compute(api.zeros(4, tk.bool_).partition(4), x).out().sync().numpy()
        array([False,  True,  True, False])
    """
    return Tile(np.isinf(floats("isinf", x)))


@tile_op("isfinite", host="numpy.isfinite")
def isfinite(x: Tile) -> Tile:
    """Whether each element is neither an infinity nor NaN, as a bool tile.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out, x: tk.In):
        ...     y.store(tk.isfinite(tk.load_tile_like(x, y)))
        >>> x = api.from_host(np.array([1.0, np.inf, -np.inf, np.nan], np.float32)).sync()
        >>> compute(api.zeros(4, tk.bool_).partition(4), x).out().sync().numpy()
        array([ True, False, False, False])
    """
    return Tile(np.isfinite(floats("isfinite", x)))
