"""Operations on the bits of each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Scalar, Tile, bitwise, inverted, shift, what_is

__all__ = ["bitwise_and", "bitwise_lshift", "bitwise_not", "bitwise_or", "bitwise_rshift", "bitwise_xor", "clz", "popcount"]


@tile_op("bitwise_and", host="numpy.bitwise_and")
def bitwise_and(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x & y`.

    Args:
        x, y: bool or integer tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are floats.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.bitwise_and(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([0, 0, 2, 2], dtype=int32)
    """
    return bitwise("bitwise_and", np.bitwise_and, x, y)


@tile_op("bitwise_or", host="numpy.bitwise_or")
def bitwise_or(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x | y`.

    Args:
        x, y: bool or integer tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are floats.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.bitwise_or(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([2, 3, 2, 3], dtype=int32)
    """
    return bitwise("bitwise_or", np.bitwise_or, x, y)


@tile_op("bitwise_xor", host="numpy.bitwise_xor")
def bitwise_xor(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x ^ y`.

    Args:
        x, y: bool or integer tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are floats.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.bitwise_xor(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([2, 3, 0, 1], dtype=int32)
    """
    return bitwise("bitwise_xor", np.bitwise_xor, x, y)


@tile_op("bitwise_lshift", host="numpy.left_shift")
def bitwise_lshift(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x << y`; all bits leave where `y` is the width or more.

    Args:
        x, y: integer tiles whose shapes broadcast, or a tile and an int.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are no integers.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.bitwise_lshift(tk.arange(4), 2))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([ 0,  4,  8, 12], dtype=int32)
    """
    return shift("bitwise_lshift", np.left_shift, x, y)


@tile_op("bitwise_rshift", host="numpy.right_shift")
def bitwise_rshift(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x >> y`; of signed integers the sign moves in, and all bits leave where `y` is the width or more.

    Args:
        x, y: integer tiles whose shapes broadcast, or a tile and an int.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are no integers.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.bitwise_rshift(tk.arange(4), 1))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([0, 0, 1, 1], dtype=int32)
    """
    return shift("bitwise_rshift", np.right_shift, x, y)


@tile_op("bitwise_not", host="numpy.bitwise_not")
def bitwise_not(x: Tile) -> Tile:
    """`~x`; of bool the opposite.

    Args:
        x: a bool or integer tile.

    Raises:
        CompileError: `x` is no such tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.bitwise_not(tk.arange(4)))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([-1, -2, -3, -4], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"bitwise_not: needs a tile, not {what_is(x)}")
    return inverted("bitwise_not", x)


def _unsigned(name: str, x: Any) -> tuple[Any, int]:
    """The bits of an integer tile, as numbers of 64 bits, and how many there are."""
    if not isinstance(x, Tile):
        raise CompileError(f"{name}: needs a tile, not {what_is(x)}")
    if dtypes.is_float(x.dtype) or x.dtype == dtypes.bool_:
        raise CompileError(f"{name}: needs an integer tile, not {x.dtype.name}")
    return x._array.view(f"u{x.dtype.itemsize}").astype(np.uint64), 8 * x.dtype.itemsize


@tile_op("popcount", host="numpy.bitwise_count")
def popcount(x: Tile) -> Tile:
    """How many bits of each element are set, as int32; of negative numbers those of their two's complement.

    Args:
        x: an integer tile.

    Raises:
        CompileError: `x` is no integer tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.popcount(tk.arange(4)))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([0, 1, 1, 2], dtype=int32)
    """
    value, width = _unsigned("popcount", x)
    one = np.uint64(1)
    count = np.zeros(value.shape, np.int32)
    for bit in range(width):
        count += (value >> np.uint64(bit) & one).astype(np.int32)
    return Tile(count)


@tile_op("clz", host="int.bit_length")
def clz(x: Tile) -> Tile:
    """How many bits of each element, from the highest down, are zero before the first that is set, as int32.

    Args:
        x: an integer tile.

    Raises:
        CompileError: `x` is no integer tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.clz(tk.arange(4)))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([32, 31, 30, 30], dtype=int32)
    """
    value, width = _unsigned("clz", x)
    count = np.full(value.shape, width, np.int32)
    for bit in range(width):
        count = np.where(value >> np.uint64(bit) != 0, np.int32(width - 1 - bit), count)
    return Tile(np.asarray(count))
