"""Tiles of other shapes with the same elements. `tile[:, None]` and the methods are `Tile`'s own (`lang.tile`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.size import check_size
from tilekit.lang.tile import Tile, check_shape, families, is_index, what_is

__all__ = [
    "axes_of",
    "axis_of",
    "broadcast_to",
    "cat",
    "cat_problem",
    "expand_dims",
    "extract",
    "grid_of",
    "insert",
    "permute",
    "reshape",
    "reshape_to",
    "transpose",
]  # fmt: skip


def axis_of(axis: Any, rank: int, what: str) -> int:
    """`axis`, which may count from the end, as an index of one of `rank` dimensions.

    Raises:
        CompileError: it is none.
    """
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise CompileError(f"{what}: an axis is an int that is known when the kernel is compiled, not {axis!r}")
    if not -rank <= axis < rank:
        raise CompileError(f"{what}: axis {axis} of a tile with {rank} dimensions; there are {-rank} to {rank - 1}")
    return int(axis) % rank


def axes_of(axes: Any, rank: int, what: str) -> tuple[int, ...]:
    """`axes` (an int, a tuple of ints, None for all) as indices of dimensions, each once.

    Raises:
        CompileError: one is none, or comes twice.
    """
    if axes is None:
        return tuple(range(rank))
    dims = tuple(axis_of(a, rank, what) for a in (axes if isinstance(axes, tuple) else (axes,)))
    if len(set(dims)) < len(dims):
        raise CompileError(f"{what}: axes {axes} name a dimension twice")
    return dims


def reshape_to(shape: Any, old: tuple[int, ...], what: str) -> tuple[int, ...]:
    """The new shape of a tile of shape `old`, where one extent may be -1.

    Raises:
        CompileError: the number of elements differs, or an extent is no power of two.
    """
    extents = shape if isinstance(shape, tuple) else (shape,)
    if extents == ():
        new: tuple[int, ...] = ()
    else:
        if extents.count(-1) == 1:
            rest = math.prod(n for n in extents if n != -1)
            extents = tuple(math.prod(old) // rest if n == -1 and rest > 0 else n for n in extents)
        new = check_shape(extents, what)
    if math.prod(new) != math.prod(old):
        raise CompileError(
            f"{what}: a tile of shape {old} has {math.prod(old)} elements, one of shape {shape} would have another number"
        )
    return new


def _tile(value: Any, what: str) -> Tile:
    if not isinstance(value, Tile):
        raise CompileError(f"{what}: needs a tile, not {what_is(value)}")
    return value


@tile_op("reshape", host="Tensor.reshape")
def reshape(x: Tile, shape: int | tuple[int, ...]) -> Tile:
    """The elements of `x`, in row-major order, in another shape. Costs nothing.

    Args:
        x: a tile.
        shape: the new extents, powers of two known when the kernel is compiled; one may be -1.

    Raises:
        CompileError: the number of elements differs, or an extent is no power of two.

    Examples:
        >>> @tk.kernel
        ... def swap_halves(y: tk.InOut):
        ...     t = tk.reshape(y.load(), (2, 2))
        ...     y.store(tk.reshape(tk.transpose(t), 4))
        >>> swap_halves(api.arange(4).partition(4)).out().sync().numpy()
        array([0, 2, 1, 3])
    """
    tile = _tile(x, "reshape")
    return Tile(tile._array.reshape(reshape_to(shape, tile.shape, "reshape")))


@tile_op("permute", host="Tensor.permute")
def permute(x: Tile, axes: tuple[int, ...]) -> Tile:
    """The dimensions of `x` in another order. Costs nothing by itself; what uses the tile may have to move its elements.

    Args:
        x: a tile.
        axes: for each dimension of the result the one of `x` that it is, as in `numpy.transpose`.

    Raises:
        CompileError: `axes` does not name each dimension once.

    Examples:
        >>> @tk.kernel
        ... def turn(y: tk.Out, x: tk.In):
        ...     y.store(tk.permute(tk.load(x, (0, 0), (2, 4)), (1, 0)))
        >>> x = api.arange(8).reshape(2, 4).sync()
        >>> op = turn(api.zeros((4, 2), tk.int64).partition((4, 2)), x).first()
        >>> op.unpartition().to_host().sync()
        array([[0, 4],
               [1, 5],
               [2, 6],
               [3, 7]])
    """
    tile = _tile(x, "permute")
    order = axes_of(axes, tile.ndim, "permute")
    if len(order) != tile.ndim:
        raise CompileError(f"permute: axes {axes} of a tile with {tile.ndim} dimensions: each must be there once")
    return Tile(tile._array.transpose(order))


@tile_op("transpose", host="Tensor.permute")
def transpose(x: Tile, axis0: int = -2, axis1: int = -1) -> Tile:
    """`x` with two of its dimensions exchanged.

    Args:
        x: a tile of two dimensions or more.
        axis0, axis1: the dimensions, the last two by default.

    Raises:
        CompileError: there is no such dimension.

    Examples:
        >>> @tk.kernel
        ... def turn(y: tk.Out, x: tk.In):
        ...     y.store(tk.transpose(tk.load(x, (tk.bid(1), tk.bid(0)), (2, 2))))
        >>> x = api.arange(8).reshape(2, 4).sync()
        >>> op = turn(api.zeros((4, 2), tk.int64).partition((2, 2)), x).first()
        >>> op.unpartition().to_host().sync()
        array([[0, 4],
               [1, 5],
               [2, 6],
               [3, 7]])
    """
    tile = _tile(x, "transpose")
    return Tile(tile._array.swapaxes(*(axis_of(a, tile.ndim, "transpose") for a in (axis0, axis1))))


@tile_op("expand_dims", host="Tensor.reshape")
def expand_dims(x: Tile, axis: int) -> Tile:
    """`x` with a dimension of extent 1 inserted, as `x[:, None]` does. Costs nothing.

    Args:
        x: a tile.
        axis: where the new dimension is in the result.

    Raises:
        CompileError: there is no such place.

    Examples:
        >>> @tk.kernel
        ... def table(y: tk.Out):
        ...     n = tk.arange(4)
        ...     y.store(tk.expand_dims(n, 1) * tk.expand_dims(n, 0))
        >>> table(api.zeros((4, 4), tk.int32).partition((4, 4))).out().sync().numpy()
        array([[0, 0, 0, 0],
               [0, 1, 2, 3],
               [0, 2, 4, 6],
               [0, 3, 6, 9]], dtype=int32)
    """
    tile = _tile(x, "expand_dims")
    return Tile(np.expand_dims(tile._array, axis_of(axis, tile.ndim + 1, "expand_dims")))


@tile_op("broadcast_to", host="numpy.broadcast_to")
def broadcast_to(x: Tile, shape: int | tuple[int, ...]) -> Tile:
    """`x` repeated along its dimensions of extent 1, and along new ones before the first.

    Args:
        x: a tile.
        shape: the extents of the result, powers of two known when the kernel is compiled.

    Raises:
        CompileError: `x` does not broadcast to `shape` by NumPy's rules.

    Examples:
        >>> @tk.kernel
        ... def rows(y: tk.Out):
        ...     y.store(tk.broadcast_to(tk.arange(4), (2, 4)))
        >>> rows(api.zeros((2, 4), tk.int32).partition((2, 4))).out().sync().numpy()
        array([[0, 1, 2, 3],
               [0, 1, 2, 3]], dtype=int32)
    """
    tile, extents = _tile(x, "broadcast_to"), check_shape(shape, "broadcast_to")
    try:
        return Tile(np.broadcast_to(tile._array, extents))
    except ValueError:
        raise CompileError(f"broadcast_to: a tile of shape {tile.shape} does not broadcast to {extents}") from None


def cat_problem(shapes: list[tuple[int, ...]], names: list[str], axis: Any) -> str | None:
    """Why tiles of these shapes and dtypes cannot be put side by side; None if they can."""
    if len(shapes) != 2 or shapes[0] != shapes[1]:
        return f"takes two tiles of one shape, so that the extents of the result are powers of two; these have {shapes}"
    if names[0] != names[1]:
        return f"tiles of {names[0]} and {names[1]}; cast one of them with .astype(...)"
    try:
        along = axis_of(axis, len(shapes[0]), "cat")
        check_size(tuple(n << (d == along) for d, n in enumerate(shapes[0])), "cat")
    except CompileError as error:
        return error.reason.removeprefix("cat: ")
    return None


@tile_op("cat", host="numpy.concatenate")
def cat(tiles: tuple[Tile, Tile], axis: int) -> Tile:
    """Two tiles one after the other along a dimension.

    Args:
        tiles: two tiles of one shape and dtype.
        axis: the dimension along which they follow each other.

    Raises:
        CompileError: there are not two, their shapes or dtypes differ, or there is no such dimension.

    Examples:
        >>> @tk.kernel
        ... def twice(y: tk.Out):
        ...     y.store(tk.cat((tk.arange(2), tk.arange(2)), 0))
        >>> twice(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([0, 1, 0, 1], dtype=int32)
    """
    if not isinstance(tiles, tuple):
        raise CompileError(f"cat: needs a tuple of two tiles, not {what_is(tiles)}")
    parts = [_tile(tile, "cat") for tile in tiles]
    problem = cat_problem([t.shape for t in parts], [t.dtype.name for t in parts], axis)
    if problem:
        raise CompileError(f"cat: {problem}")
    return Tile(np.concatenate([t._array for t in parts], axis))


def grid_of(shape: Any, whole: tuple[int, ...], what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the parts that a tile is cut into, and how many there are along each dimension.

    Raises:
        CompileError: the parts have another number of dimensions, or are larger than the tile.
    """
    part = check_shape(shape, what)
    if len(part) != len(whole) or any(p > w for p, w in zip(part, whole, strict=True)):
        raise CompileError(f"{what}: parts of shape {part} of a tile of shape {whole}")
    return part, tuple(w // p for p, w in zip(part, whole, strict=True))


def _part(index: Any, shape: Any, whole: tuple[int, ...], what: str) -> tuple[slice, ...]:
    part, grid = grid_of(shape, whole, what)
    indices = index if isinstance(index, tuple) else (index,)
    if len(indices) != len(part) or not all(map(is_index, indices)):
        raise CompileError(f"{what}: the index is an int for each of {len(part)} dimensions, not {what_is(index)}")
    for i, count in zip(indices, grid, strict=True):
        if not 0 <= int(i) < count:
            raise CompileError(f"{what}: index {tuple(map(int, indices))} of parts of which there are {grid}")
    return tuple(slice(int(i) * n, int(i) * n + n) for i, n in zip(indices, part, strict=True))


@tile_op("extract")
def extract(x: Tile, index: int | tuple[int, ...], shape: int | tuple[int, ...]) -> Tile:
    """A part of a tile that is cut into parts of one shape.

    Args:
        x: a tile.
        index: which part, counted in parts along each dimension; ints that the kernel may compute. On a GPU one that is computed
            and outside wraps.
        shape: the extents of a part, powers of two known when the kernel is compiled.

    Raises:
        CompileError: the part is larger than the tile, or the index is known and outside.

    Examples:
        >>> @tk.kernel
        ... def second_half(y: tk.Out, x: tk.In):
        ...     y.store(tk.extract(tk.load(x, 0, 8), 1, 4))
        >>> op = second_half(api.zeros(4, tk.int64).partition(4), api.arange(8)).first()
        >>> op.unpartition().to_host().sync()
        array([4, 5, 6, 7])
    """
    tile = _tile(x, "extract")
    return Tile(tile._array[_part(index, shape, tile.shape, "extract")].copy())


@tile_op("insert")
def insert(x: Tile, index: int | tuple[int, ...], value: Tile) -> Tile:
    """`x` with one of its parts replaced.

    Args:
        x: a tile.
        index: which part, counted in parts of the shape of `value`; see `extract`.
        value: the new part, a tile of the dtype of `x`.

    Raises:
        CompileError: the part is larger than the tile, has another dtype, or the index is known and outside.

    Examples:
        >>> @tk.kernel
        ... def blank(y: tk.InOut):
        ...     y.store(tk.insert(y.load(), 1, tk.zeros(2, tk.int64)))
        >>> blank(api.arange(8).partition(8)).out().sync().numpy()
        array([0, 1, 0, 0, 4, 5, 6, 7])
    """
    tile, part = _tile(x, "insert"), _tile(value, "insert")
    if part.dtype != tile.dtype:
        raise CompileError(f"insert: a {part.dtype.name} tile into a {tile.dtype.name} tile; cast it with .astype(...)")
    elements = tile._array.copy()
    elements[_part(index, part.shape, tile.shape, "insert")] = part._array
    return Tile(elements)


families.update(reshape=reshape, permute=permute, transpose=transpose, broadcast_to=broadcast_to)
