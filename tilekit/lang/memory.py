"""Where a block is, and how tiles come from and go to tensors.

Indices count tiles, not elements: tile `(i, j)` of shape `(BM, BN)` starts at element `(i * BM, j * BN)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import block
from tilekit.lang.mapped import TileIndex, ownerless
from tilekit.lang.registry import tile_op
from tilekit.lang.size import check_size
from tilekit.lang.tile import Tile, convert, scalar_kind, what_is
from tilekit.lang.views import TensorView
from tilekit.lang.windows import (
    PaddingMode,
    check_eviction,
    check_order,
    check_window,
    mask_of,
    padding,
    padding_tile,
    read,
    stored,
    tile_index,
    tileless,
    window_of,
    write,
)

__all__ = ["PaddingMode", "TensorView", "bid", "load", "load_tile_like", "num_blocks", "num_tiles", "store"]


def tensor(array: Any, what: str) -> TensorView:
    """`array`, which must be a tensor."""
    if not isinstance(array, TensorView):
        raise CompileError(f"{what}: needs a tensor parameter, not {what_is(array)}")
    return array


def reordered(along: tuple[int, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What belongs to the dimensions of a tile, by the dimensions of the tensor that they lie along."""
    by_tensor = list(values)
    for position, dim in enumerate(along):
        by_tensor[dim] = values[position]
    return tuple(by_tensor)


@tile_op("bid")
def bid(axis: int) -> int:
    """The index of the running block along one axis of the launch grid.

    It is an int32 scalar; int64 in a launch of 2^31 blocks or more. Blocks run in any order, and several at a time: none may wait
    for another.

    Args:
        axis: 0, 1 or 2, known when the kernel is compiled. Dimension `d` of a partition of rank 1 to 3 lies along axis `d`;
            the first two dimensions of a partition of rank 4 share axis 0.

    Raises:
        CompileError: `axis` is something else.

    Examples:
        >>> @tk.kernel
        ... def number(y: tk.Out):
        ...     y.store(tk.full(y.tile_shape, tk.bid(0)))
        >>> number(api.zeros(4, tk.int32).partition(2)).out().sync().numpy()
        array([0, 0, 1, 1], dtype=int32)
    """
    running = block.current()
    assert running is not None, "checked by tile_op"
    return running.index[_axis(axis, "bid")]


@tile_op("num_blocks")
def num_blocks(axis: int) -> int:
    """The number of blocks along one axis of the launch grid, in the dtype of `bid`.

    Args:
        axis: 0, 1 or 2, known when the kernel is compiled.

    Raises:
        CompileError: `axis` is something else.

    Examples:
        >>> @tk.kernel
        ... def count(y: tk.Out):
        ...     y.store(tk.full(y.tile_shape, tk.num_blocks(0)))
        >>> count(api.zeros(4, tk.int32).partition(2)).out().sync().numpy()
        array([2, 2, 2, 2], dtype=int32)
    """
    running = block.current()
    assert running is not None, "checked by tile_op"
    return running.grid[_axis(axis, "num_blocks")]


def _axis(axis: Any, what: str) -> int:
    if axis not in (0, 1, 2) or isinstance(axis, bool):
        raise CompileError(f"{what}: the axis is 0, 1 or 2, known when the kernel is compiled, not {axis!r}")
    return int(axis)


@tile_op("num_tiles")
def num_tiles(array: TensorView, axis: int, shape: int | tuple[int, ...], *, order: Any = "C") -> int:
    """The number of tiles along one dimension of a tensor that is cut into tiles of `shape`.

    It is a scalar of the type of `array.shape`: int32, or int64 where an extent of the tensor is beyond 2^31 - 2^24.

    Args:
        array: a tensor parameter of the kernel.
        axis: the dimension of the tiles, known when the kernel is compiled; it may count from the end.
        shape: the tiles' extents, as for `tk.load`.
        order: as for `tk.load`.

    Raises:
        CompileError: axis or shape do not fit the tensor's rank.

    Examples:
        >>> @tk.kernel
        ... def total(y: tk.Out, x: tk.In):
        ...     t = tk.zeros(4)
        ...     for i in range(tk.num_tiles(x, 0, 4)):
        ...         t += tk.load(x, i, 4)
        ...     y.store(t)
        >>> total(api.zeros(4).partition(4), api.ones(10)).out().sync().numpy()
        array([3., 3., 2., 2.], dtype=float32)
    """
    from tilekit.lang.shape import axis_of  # it imports the tiles

    view = tensor(array, "num_tiles")
    extents, _ = check_window(shape, view.ndim, view.name, "num_tiles")
    along, at = check_order(order, view.ndim, "num_tiles"), axis_of(axis, view.ndim, "num_tiles")
    return -(-view.shape[along[at]] // extents[at])


@tile_op("load")
def load(
    array: TensorView,
    index: Any,
    shape: int | tuple[int, ...],
    *,
    order: Any = "C",
    padding_mode: str = "zero",
    mask: Any = None,
    padding_value: Any = None,
    eviction_policy: str = "evict_normal",
) -> Tile:
    """Read a tile of a tensor.

    Args:
        array: a tensor parameter of the kernel.
        index: which tile, counted in tiles along each dimension; ints that the kernel may compute.
        shape: the tile's extents, powers of two known when the kernel is compiled; one for each dimension of `array`. With `()`
            the index counts elements, and the tile has that one, and shape `()`.
        order: which dimension of the tensor each dimension of the tile lies along: `"C"` for the same, `"F"` for the reverse, or
            a permutation. `index` and `shape` are the tile's. It costs nothing.
        padding_mode: what elements beyond the edge are, see `tk.PaddingMode`; all but `"zero"` need a floating-point tensor.
        mask: a bool tile that broadcasts to the tile's shape; where it is False nothing is read.
        padding_value: a scalar, or a tile that broadcasts to the tile's shape, for elements beyond the edge and those that the
            mask leaves out, instead of `padding_mode`; a scalar that an integer tensor does not hold is an error where its value
            is known.
        eviction_policy: a hint to the caches of a GPU, known when the kernel is compiled, about what is read:
            `"evict_first"` for what is read once (PTX `ld.global.L1::evict_first`), `"evict_last"` for what is read again
            (`.L1::evict_last`), `"no_allocate"` for what shall take no line of the L1 (`.L1::no_allocate`). By default there is
            none. It changes no result, and nothing on a CPU device. Whether it pays has to be measured.

    Raises:
        CompileError: index and shape do not fit the tensor's rank, or the shape is not a compile-time power of two.
        DeviceError: on the CPU device, an index outside the tensor, or, under `TILEKIT_CHECKS=1`, an element that nobody has
            written. A GPU gives a tile of padding, or whatever the memory held.

    Examples:
        >>> @tk.kernel
        ... def reverse_tiles(y: tk.Out, x: tk.In):
        ...     y.store(tk.load(x, tk.num_blocks(0) - 1 - tk.bid(0), 2))
        >>> x = api.arange(6, dtype=tk.float32).sync()
        >>> reverse_tiles(api.zeros(6).partition(2), x).out().sync().numpy()
        array([4., 5., 2., 3., 0., 1.], dtype=float32)
    """
    view = tensor(array, "load")
    check_eviction(eviction_policy, "load")
    where = tile_index(view, index, "load")
    extents, tile_shape = check_window(shape, view.ndim, view.name, "load")
    along = check_order(order, view.ndim, "load")
    fill = _fill(view, padding_mode, padding_value, tile_shape, "load")
    if isinstance(padding_value, Tile):
        fill = _by_tensor(fill, extents, along)
    chosen = _by_tensor(mask_of(mask, tile_shape, "load"), extents, along)
    where, lies = reordered(along, where), reordered(along, extents)
    values = read(view, window_of(view, where, lies, lies, "load"), lies, fill, "load", mask=chosen)
    return Tile(values.transpose(along).reshape(tile_shape))


def _by_tensor(values: Any, extents: tuple[int, ...], along: tuple[int, ...]) -> Any:
    """An array with the dimensions of a tile, with those of the tensor instead."""
    return None if values is None else values.reshape(extents).transpose(np.argsort(along))


def _fill(view: TensorView, padding_mode: str, padding_value: Any, shape: tuple[int, ...], what: str) -> Any:
    """What elements are that do not exist, of a tile of that shape."""
    number = padding(view.dtype, padding_mode, view.name, what)
    if padding_value is None:
        return number
    if padding_mode != "zero":
        raise CompileError(f"{what}: padding_mode or padding_value, not both")
    if isinstance(padding_value, Tile):
        return padding_tile(view, padding_value, shape, what)
    if scalar_kind(padding_value) is None:
        raise CompileError(f"{what}: padding_value is a scalar or a tile, not {what_is(padding_value)}")
    if problem := dtypes.unfit_padding(view.dtype, padding_value, view.name):
        raise CompileError(f"{what}: {problem}")
    return convert(padding_value, view.dtype)


@tile_op("load_tile_like")
def load_tile_like(
    array: TensorView, like: TensorView | TileIndex, *, padding_mode: str = "zero", eviction_policy: str = "evict_normal"
) -> Tile:
    """Read the tile of `array` at the index, and of the shape, of the tile that the block owns of the partition `like`.

    Args:
        array: a tensor parameter of the same rank as `like`.
        like: a partition; or a tile of a mapped one, from `for tile in y.tiles():`.
        padding_mode: what elements beyond the edge of `array` are, see `tk.PaddingMode`. Where it is left out, the launch makes
            sure that the two have the same extents; `padding_mode="zero"` says that they need not.
        eviction_policy: as for `tk.load`.

    Raises:
        CompileError: the ranks differ, or `like` is no partition.
        ValueError: before the launch, `array` has other extents than `like`, and nothing says that padding is meant.
        DeviceError: on the CPU device, where `array` has no such tile, or, under `TILEKIT_CHECKS=1`, where nobody has written an
            element of it that lies within the extents of `like`. A GPU gives a tile of padding, or whatever the memory held.

    Examples:
        >>> @tk.kernel
        ... def double(y: tk.Out, x: tk.In):
        ...     y.store(2 * tk.load_tile_like(x, y))
        >>> x = api.arange(4, dtype=tk.float32).sync()
        >>> double(api.zeros(4).partition(2), x).out().sync().numpy()
        array([0., 2., 4., 6.], dtype=float32)
    """
    check_eviction(eviction_policy, "load_tile_like")
    at, like = (like, like.views[0]) if isinstance(like, TileIndex) else (None, like)
    if tensor(like, "load_tile_like").tile_shape is None:
        raise CompileError(f"load_tile_like: {tileless(like.name, like.writable)}")
    shape, view = check_size(like.tile_shape, "load_tile_like"), tensor(array, "load_tile_like")
    if view.ndim != len(shape):
        raise CompileError(
            f"load_tile_like: {view.name} has {view.ndim} dimensions, {like.name} has {len(shape)}; "
            "use tk.load with an index of its own"
        )
    fill = padding(view.dtype, padding_mode, view.name, "load_tile_like")
    window = window_of(view, like._index_of(at, "load_tile_like"), shape, shape, "load_tile_like")
    # A store to the tile drops what is beyond the edge of `like`.
    return Tile(read(view, window, shape, fill, "load_tile_like", like.shape))


@tile_op("store")
def store(
    array: TensorView, index: Any, tile: Any, *, order: Any = "C", mask: Any = None, eviction_policy: str = "evict_normal"
) -> None:
    """Write a tile of a partition; what hangs over the edge is dropped.

    A block owns one tile, and `y.store(tile)` writes it. This form names the tile by its index. Two blocks that write the same
    element race, which is an error on the CPU device under `TILEKIT_CHECKS=1`.

    Args:
        array: a partition; not a mapped one, whose tiles are written as `y.tiles()` gives them. Or a tensor that is passed as
            `y.scattered()`, of which tiles of any shape may be written.
        index: which tile, counted in tiles along each dimension.
        tile: of the partition's tile shape, in a dtype that the tensor's holds without loss; or a scalar. Into a tensor that is
            scattered, a scalar or a tile of shape `()` writes one element, and the index counts elements.
        order: which dimension of the tensor each dimension of the tile lies along, see `tk.load`.
        mask: a bool tile that broadcasts to the tile's shape; where it is False nothing is written.
        eviction_policy: as for `tk.load`, about what is written: `"evict_first"` (`st.global.L1::evict_first`, which a GPU
            executes as it does `st.global.cs`), `"evict_last"`, `"no_allocate"`.

    Raises:
        CompileError: `array` is no partition, or the tile does not fit it.
        DeviceError: on the CPU device, an index outside the tensor, or, under `TILEKIT_CHECKS=1`, two blocks that write one
            element. A GPU writes nothing outside.

    Examples:
        >>> @tk.kernel
        ... def reverse_tiles(y: tk.Out, x: tk.In):
        ...     tk.store(y, tk.num_blocks(0) - 1 - tk.bid(0), tk.load_tile_like(x, y))
        >>> x = api.arange(6, dtype=tk.float32).sync()
        >>> reverse_tiles(api.zeros(6).partition(2), x).out().sync().numpy()
        array([4., 5., 2., 3., 0., 1.], dtype=float32)
    """
    view = tensor(array, "store")
    check_eviction(eviction_policy, "store")
    if not view.writable:
        raise CompileError(f"store: {tileless(view.name, False)}")
    if view.group is not None:
        raise CompileError(f"store: {ownerless(view.name)}")
    along, where = check_order(order, view.ndim, "store"), tile_index(view, index, "store")
    if view.tile_shape is not None:
        tile_shape = extents = tuple(view.tile_shape[dim] for dim in along)
    else:
        extents, tile_shape = check_window(tile.shape if isinstance(tile, Tile) else (), view.ndim, view.name, "store")
    values = _by_tensor(stored(view, tile, tile_shape, "store"), extents, along)
    chosen = _by_tensor(mask_of(mask, tile_shape, "store"), extents, along)
    where, lies = reordered(along, where), reordered(along, extents)
    window = window_of(view, where, lies, lies, "store")
    write(view, window, values, chosen, where if view.tile_shape is not None else None)
