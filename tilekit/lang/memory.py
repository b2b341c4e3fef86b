"""Where a block is, and how tiles come from and go to tensors.

Indices count tiles, not elements: tile `(i, j)` of shape `(BM, BN)` starts at element `(i * BM, j * BN)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes
from tilekit.driver.shadow import ShadowView
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block
from tilekit.lang.mapped import TileIndex, cut_otherwise, foreign_tile, no_tile, not_an_index, ownerless, unmapped, visited
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Tile, check_shape, convert, is_index, scalar_kind

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = ["PaddingMode", "TensorView", "bid", "load", "load_tile_like", "num_blocks", "store"]


class PaddingMode(StrEnum):
    """What a load gives for elements beyond the edge of a tensor. The plain string does as well: `"nan"`."""

    ZERO = "zero"
    NEG_ZERO = "neg_zero"
    NAN = "nan"
    POS_INF = "inf"
    NEG_INF = "-inf"


_PADDING = {"zero": 0.0, "neg_zero": -0.0, "nan": np.nan, "inf": np.inf, "-inf": -np.inf}


class TensorView:
    """A tensor parameter, as the body of a kernel sees it on the CPU device.

    Attributes:
        name: the parameter's.
        tile_shape: of a partition, the shape of its tiles; None for a tensor that is only read.
        readable: whether the kernel may load (`Out` is written only).
        group: of a mapped partition, the number of tiles in a group along each dimension; None for all else.
    """

    __slots__ = ("_elements", "_shadow", "group", "name", "readable", "tile_shape")

    def __init__(
        self,
        name: str,
        array: NDArray[Any],
        tile_shape: Any,
        readable: bool,
        group: tuple[int, ...] | None = None,
        shadow: ShadowView | None = None,
    ) -> None:
        self.name, self._elements, self.tile_shape, self.readable, self.group = name, array, tile_shape, readable, group
        self._shadow = shadow

    @property
    def _array(self) -> NDArray[Any]:
        """The elements, for operations that do not note what they write: from then on all of them count as written."""
        if self._shadow is not None:
            self._shadow.trust()
        return self._elements

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's extents, in elements."""
        return self._elements.shape

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self._elements.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._elements.ndim

    def load(self, tile: TileIndex | None = None) -> Tile:
        """The block's own tile of a partition, or `tile` of a mapped one; zeros beyond the edge."""
        return _read(self, self._place(tile, "load"), _tile_shape(self, "load"), "zero", "load")

    def store(self, value: Tile, tile: TileIndex | None = None) -> None:
        """Write the block's own tile of a partition, or `tile` of a mapped one; what hangs over the edge is dropped."""
        _write(self, self._place(tile, "store"), value)

    def tiles(self, *others: TensorView) -> Iterator[TileIndex]:
        """The tiles of a mapped partition that the block visits. `others`, mapped partitions cut alike, take them too."""
        views = (self, *others)
        for view in views:
            _tile_shape(view, "tiles")
            if view.group is None:
                raise CompileError(f"tiles: {unmapped(view.name)}")
            if (view.shape, view.tile_shape, view.group) != (self.shape, self.tile_shape, self.group):
                raise CompileError(f"tiles: {cut_otherwise(self.name, view.name)}")
        assert self.group is not None, "looked at above"
        return visited(views, self.tile_shape, self.group)

    def _place(self, tile: Any, what: str) -> tuple[int, ...]:
        """The index of `tile`, which must be of this partition; of the block's own tile if it is None."""
        if tile is None:
            return self.own_index(what)
        _tile_shape(self, what)
        if not isinstance(tile, TileIndex):
            raise CompileError(f"{what}: {no_tile(self.name, f'{type(tile).__name__}')}")
        if not any(view is self for view in tile.views):
            raise CompileError(f"{what}: {foreign_tile(self.name, tile.views[0].name)}")
        return tile.index

    def own_index(self, what: str) -> tuple[int, ...]:
        """The index of the tile that the running block owns."""
        shape = _tile_shape(self, what)
        if self.group is not None:
            raise CompileError(f"{what}: {ownerless(self.name)}")
        running = block.current()
        assert running is not None, "views exist only while a kernel runs"
        if len(shape) < 4:
            return running.index[: len(shape)]
        tiles = -(-self.shape[1] // shape[1])
        return (*divmod(running.index[0], tiles), *running.index[1:])


def _tile_shape(view: Any, what: str) -> tuple[int, ...]:
    if not isinstance(view, TensorView):
        raise CompileError(f"{what}: needs a tensor parameter, not {type(view).__name__}")
    if view.tile_shape is None:
        raise CompileError(
            f"{what}: {view.name} is a tensor without tiles of its own: pass {view.name}.partition(...) to write it, "
            f"or read it with tk.load({view.name}, index, shape)"
        )
    shape: tuple[int, ...] = view.tile_shape
    return shape


def _window(view: TensorView, index: tuple[int, ...], shape: tuple[int, ...], what: str) -> tuple[slice, ...]:
    """The slices of the tensor that tile `index` covers, cut off at the edge."""
    for i, extent, n in zip(index, view.shape, shape, strict=True):
        if not 0 <= i < max(1, -(-extent // n)):
            raise DeviceError(
                f"{what}: tile index {index} is outside {view.name}, a tensor of shape {view.shape} in tiles of {shape}"
            )
    return tuple(slice(i * n, i * n + n) for i, n in zip(index, shape, strict=True))


def _index(view: TensorView, index: Any, what: str) -> tuple[int, ...]:
    if isinstance(index, TileIndex):
        raise CompileError(f"{what}: {not_an_index()}")
    indices = index if isinstance(index, tuple) else (index,)
    if not all(map(is_index, indices)):
        raise CompileError(f"{what}: a tile index is an int or a tuple of ints, not {index!r}")
    if len(indices) != view.ndim:
        raise CompileError(f"{what}: {len(indices)} indices for {view.name}, which has {view.ndim} dimensions")
    return tuple(int(i) for i in indices)


def _read(
    view: TensorView, index: tuple[int, ...], shape: tuple[int, ...], padding_mode: str, what: str, wanted: tuple[int, ...] = ()
) -> Tile:
    """Tile `index` of the tensor. Elements outside the extents `wanted`, if given, may be ones that nobody has written."""
    if not view.readable:
        raise CompileError(f"{what}: {view.name} is declared Out, which is written only; annotate it InOut to read it")
    if padding_mode not in _PADDING:
        raise CompileError(f"{what}: padding_mode is one of {', '.join(map(repr, _PADDING))}, not {padding_mode!r}")
    if padding_mode != "zero" and not dtypes.is_float(view.dtype):
        raise CompileError(
            f"{what}: padding_mode {str(padding_mode)!r} needs a floating-point tensor; {view.name} is {view.dtype.name}"
        )
    window = _window(view, index, shape, what)
    if view._shadow is not None:
        used = tuple(slice(s.start, min(s.stop, n)) for s, n in zip(window, wanted, strict=True)) if wanted else window
        view._shadow.check(used, what, view.name)
    inside = view._elements[window]
    if inside.shape == shape:
        return Tile(inside.copy())
    tile = np.full(shape, _PADDING[padding_mode], view.dtype)
    tile[tuple(slice(n) for n in inside.shape)] = inside
    return Tile(tile)


def _write(view: Any, index: tuple[int, ...], tile: Any) -> None:
    shape = _tile_shape(view, "store")
    if isinstance(tile, Tile):
        if tile.shape != shape:
            raise CompileError(f"store: a tile of shape {tile.shape} into {view.name}, whose tiles are {shape}")
        if not dtypes.storable(tile.dtype, view.dtype):
            raise CompileError(
                f"store: a {tile.dtype.name} tile does not fit {view.name}, a {view.dtype.name} tensor, without loss; "
                f"write .astype({view.name}.dtype) if that is meant"
            )
        values = tile._array
    elif (kind := scalar_kind(tile)) is not None:
        problem = dtypes.unstorable(view.dtype, kind, tile, view.name)
        if problem:
            raise CompileError(f"store: {problem}")
        values = np.broadcast_to(convert(tile, view.dtype), shape)
    else:
        raise CompileError(f"store: the value is a tile or a scalar, not {type(tile).__name__}")
    window = _window(view, index, shape, "store")
    inside = view._elements[window]
    inside[...] = values[tuple(slice(n) for n in inside.shape)]
    if view._shadow is not None:
        view._shadow.write(window)


@tile_op("bid")
def bid(axis: int) -> int:
    """The index of the running block along one axis of the launch grid, as an int32 scalar.

    Args:
        axis: 0, 1 or 2, known when the kernel is compiled. Dimension `d` of a partition of rank 1 to 3 lies along axis `d`;
            the first two dimensions of a partition of rank 4 share axis 0.

    Raises:
        CompileError: `axis` is something else.

    Examples:
        >>> @tk.kernel
        ... def number(y: tk.Out):
        ...     y.store(tk.full(y.tile_shape, tk.bid(0)))
        >>> number(api.zeros(4, tk.int32).partition(2)).first().unpartition().to_host().sync()
        array([0, 0, 1, 1], dtype=int32)
    """
    running = block.current()
    assert running is not None, "checked by tile_op"
    return running.index[_axis(axis, "bid")]


@tile_op("num_blocks")
def num_blocks(axis: int) -> int:
    """The number of blocks along one axis of the launch grid, as an int32 scalar.

    Args:
        axis: 0, 1 or 2, known when the kernel is compiled.

    Raises:
        CompileError: `axis` is something else.

    Examples:
        >>> @tk.kernel
        ... def count(y: tk.Out):
        ...     y.store(tk.full(y.tile_shape, tk.num_blocks(0)))
        >>> count(api.zeros(4, tk.int32).partition(2)).first().unpartition().to_host().sync()
        array([2, 2, 2, 2], dtype=int32)
    """
    running = block.current()
    assert running is not None, "checked by tile_op"
    return running.grid[_axis(axis, "num_blocks")]


def _axis(axis: Any, what: str) -> int:
    if axis not in (0, 1, 2) or isinstance(axis, bool):
        raise CompileError(f"{what}: the axis is 0, 1 or 2, known when the kernel is compiled, not {axis!r}")
    return int(axis)


@tile_op("load")
def load(array: TensorView, index: Any, shape: int | tuple[int, ...], *, padding_mode: str = "zero") -> Tile:
    """Read a tile of a tensor.

    Args:
        array: a tensor parameter of the kernel.
        index: which tile, counted in tiles along each dimension; ints that the kernel may compute.
        shape: the tile's extents, powers of two known when the kernel is compiled; one for each dimension of `array`.
        padding_mode: what elements beyond the edge are, see `tk.PaddingMode`; all but `"zero"` need a floating-point tensor.

    Raises:
        CompileError: index and shape do not fit the tensor's rank, or the shape is not a compile-time power of two.
        DeviceError: on the CPU device, an index outside the tensor. A GPU gives a tile of padding.

    Examples:
        >>> @tk.kernel
        ... def reverse_tiles(y: tk.Out, x: tk.In):
        ...     y.store(tk.load(x, tk.num_blocks(0) - 1 - tk.bid(0), 2))
        >>> x = api.arange(6, dtype=tk.float32).sync()
        >>> reverse_tiles(api.zeros(6).partition(2), x).first().unpartition().to_host().sync()
        array([4., 5., 2., 3., 0., 1.], dtype=float32)
    """
    extents = check_shape(shape, "load")
    if not isinstance(array, TensorView):
        raise CompileError(f"load: needs a tensor parameter, not {type(array).__name__}")
    where = _index(array, index, "load")
    if len(extents) != array.ndim:
        raise CompileError(f"load: a tile of shape {extents} from {array.name}, which has {array.ndim} dimensions")
    return _read(array, where, extents, padding_mode, "load")


@tile_op("load_tile_like")
def load_tile_like(array: TensorView, like: TensorView | TileIndex, *, padding_mode: str = "zero") -> Tile:
    """Read the tile of `array` at the index, and of the shape, of the tile that the block owns of the partition `like`.

    Args:
        array: a tensor parameter of the same rank as `like`.
        like: a partition; or a tile of a mapped one, from `for tile in y.tiles():`.
        padding_mode: what elements beyond the edge of `array` are, see `tk.PaddingMode`.

    Raises:
        CompileError: the ranks differ, or `like` is no partition.
        DeviceError: on the CPU device, where `array` has no such tile. A GPU gives a tile of padding.

    Examples:
        >>> @tk.kernel
        ... def double(y: tk.Out, x: tk.In):
        ...     y.store(2 * tk.load_tile_like(x, y))
        >>> x = api.arange(4, dtype=tk.float32).sync()
        >>> double(api.zeros(4).partition(2), x).first().unpartition().to_host().sync()
        array([0., 2., 4., 6.], dtype=float32)
    """
    at, like = (like, like.views[0]) if isinstance(like, TileIndex) else (None, like)
    shape = _tile_shape(like, "load_tile_like")
    if not isinstance(array, TensorView):
        raise CompileError(f"load_tile_like: needs a tensor parameter, not {type(array).__name__}")
    if array.ndim != len(shape):
        raise CompileError(
            f"load_tile_like: {array.name} has {array.ndim} dimensions, {like.name} has {len(shape)}; "
            "use tk.load with an index of its own"
        )
    # What lies beyond the edge of `like` is not stored, so it may be there unwritten.
    return _read(array, like._place(at, "load_tile_like"), shape, padding_mode, "load_tile_like", like.shape)


@tile_op("store")
def store(array: TensorView, index: Any, tile: Tile) -> None:
    """Write a tile of a partition; what hangs over the edge is dropped.

    A block owns one tile, and `y.store(tile)` writes it. This form names the tile by its index; two blocks that write the same
    one race.

    Args:
        array: a partition; not a mapped one, whose tiles are written as `y.tiles()` gives them.
        index: which tile, counted in tiles along each dimension.
        tile: of the partition's tile shape, in a dtype that the tensor's holds without loss; or a scalar.

    Raises:
        CompileError: `array` is no partition, or the tile does not fit it.
        DeviceError: on the CPU device, an index outside the tensor. A GPU writes nothing then.

    Examples:
        >>> @tk.kernel
        ... def reverse_tiles(y: tk.Out, x: tk.In):
        ...     tk.store(y, tk.num_blocks(0) - 1 - tk.bid(0), tk.load_tile_like(x, y))
        >>> x = api.arange(6, dtype=tk.float32).sync()
        >>> reverse_tiles(api.zeros(6).partition(2), x).first().unpartition().to_host().sync()
        array([4., 5., 2., 3., 0., 1.], dtype=float32)
    """
    _tile_shape(array, "store")
    if array.group is not None:
        raise CompileError(f"store: {ownerless(array.name)}")
    _write(array, _index(array, index, "store"), tile)
