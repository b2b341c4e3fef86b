"""Tensors as the body of a kernel sees them on the CPU device, and what it cuts out of them: windows, rows of tiles, slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tilekit import dtypes
from tilekit._driver.shadow import ShadowView, Touched
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block
from tilekit.lang.mapped import TileIndex, cut_otherwise, foreign_tile, no_tile, ownerless, unmapped, visited
from tilekit.lang.size import check_size
from tilekit.lang.tile import Tile, is_index, what_is
from tilekit.lang.windows import (
    check_eviction,
    check_row,
    check_steps,
    check_window,
    padding,
    read,
    read_only,
    stored,
    tile_index,
    tileless,
    window_of,
    write,
)

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = ["TensorView", "TileGrid", "TileRow", "TiledView"]

Shape = tuple[int, ...]


class TensorView:
    """A tensor parameter, or a slice of one, as the body of a kernel sees it on the CPU device.

    Attributes:
        name: the parameter's.
        tile_shape: of a partition, the shape of its tiles; None for a tensor that has none.
        readable: whether the kernel may load (`Out` is written only).
        writable: whether it may be written (`In` is not).
        group: of a mapped partition, the number of tiles in a group along each dimension; None for all else.
        cluster: of a mapped partition, the number of tiles in a cluster, if there are clusters.
    """

    __slots__ = ("_elements", "_origin", "_shadow", "_touched", "cluster", "group", "name", "readable", "tile_shape", "writable")

    def __init__(
        self,
        name: str,
        array: NDArray[Any],
        tile_shape: Any,
        readable: bool,
        group: Shape | None = None,
        shadow: ShadowView | None = None,
        touched: Touched | None = None,
        cluster: Shape | None = None,
    ) -> None:
        self.cluster = cluster
        self.name, self._elements, self.tile_shape, self.readable, self.group = name, array, tile_shape, readable, group
        self._shadow, self._touched, self.writable = shadow, touched, tile_shape is not None or touched is not None
        self._origin: Shape = ()  # where a slice begins in the parameter; () for the parameter itself

    @property
    def _array(self) -> NDArray[Any]:
        """The elements, for operations that do not note what they write: from then on all of them count as written."""
        if self._shadow is not None:
            self._shadow.trust()
        return self._elements

    @property
    def shape(self) -> Shape:
        """The tensor's extents, in elements: int32 scalars, int64 where one of them is beyond 2^31 - 2^24."""
        return self._elements.shape

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self._elements.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._elements.ndim

    def _in_words(self) -> str:
        """What it is, see `what_is`."""
        return f"the tensor {self.name}"

    def load(self, tile: TileIndex | None = None, *, eviction_policy: str = "evict_normal") -> Tile:
        """The block's own tile of a partition, or `tile` of a mapped one; zeros beyond the edge.

        `eviction_policy` is as for `tk.load`.
        """
        check_eviction(eviction_policy, "load")
        shape = check_size(_own_tile(self, "load"), "load")
        return Tile(read(self, window_of(self, self._index_of(tile, "load"), shape, shape, "load"), shape, 0.0, "load"))

    def store(self, value: Any, tile: TileIndex | None = None, *, eviction_policy: str = "evict_normal") -> None:
        """Write the block's own tile of a partition, or `tile` of a mapped one; what hangs over the edge is dropped.

        `eviction_policy` is as for `tk.store`.
        """
        check_eviction(eviction_policy, "store")
        index, shape = self._index_of(tile, "store"), _own_tile(self, "store")
        values = stored(self, value, shape, "store")
        write(self, window_of(self, index, shape, shape, "store"), values, None, index)

    def tiles(self, *what: Any) -> Any:
        """The tiles of a tensor, to iterate over.

        Args:
            what: of a mapped partition nothing, for the tiles that the block visits, or other mapped partitions that are cut
                alike and take them too: `for tile in y.tiles():`. Of any tensor a tile shape: `x.tiles((BM, BK))` is its grid
                of tiles, of which `[i, j]` loads one, and `for t in x.tiles((BM, BK))[i, :]` loads a row, one after the other.

        Raises:
            CompileError: the tensor is no mapped partition, and no shape is given.
        """
        if what and not isinstance(what[0], TensorView):
            if len(what) > 1:
                raise CompileError(f"tiles: one tile shape, such as {self.name}.tiles((64, 32)), not {len(what)} arguments")
            extents, shape = check_window(what[0], self.ndim, self.name, "tiles")
            return TileGrid(TiledView(self, extents, shape, extents, "zero"))
        views = (self, *what)
        for view in views:
            _own_tile(view, "tiles")
            if view.group is None:
                raise CompileError(f"tiles: {unmapped(view.name)}")
            cuts = [(one.shape, one.tile_shape, one.group, one.cluster) for one in (view, self)]
            if cuts[0] != cuts[1]:
                raise CompileError(f"tiles: {cut_otherwise(self.name, view.name)}")
        assert self.group is not None, "looked at above"
        return visited(views, self.tile_shape, self.group, self.cluster)

    def tiled_view(self, tile_shape: Any, padding_mode: str = "zero", traversal_steps: Any = None) -> TiledView:
        """Windows of the tensor: window `(i, j)` of shape `tile_shape` starts at element `(i * si, j * sj)`.

        Args:
            tile_shape: the extents of a window, powers of two known when the kernel is compiled; `()` for one element.
            padding_mode: what elements beyond the edge are, see `tk.PaddingMode`.
            traversal_steps: `(si, sj)`: how many elements apart windows start along each dimension, known when the kernel is
                compiled. By default the extents of a window. Windows overlap where a step is smaller, and leave gaps where
                it is larger.

        Raises:
            CompileError: the shape or the steps do not fit the tensor's rank.
        """
        extents, shape = check_window(tile_shape, self.ndim, self.name, "tiled_view")
        padding(self.dtype, padding_mode, self.name, "tiled_view")
        return TiledView(self, extents, shape, check_steps(traversal_steps, extents, "tiled_view"), padding_mode)

    def slice(self, axis: int, start: Any, stop: Any = None) -> TensorView:
        """The part of the tensor from index `start` up to `stop` along one dimension; no data is copied.

        Args:
            axis: the dimension, known when the kernel is compiled; it may count from the end.
            start, stop: ints that the kernel may compute, `0 <= start <= stop <= shape[axis]`; None for a stop at the end.

        Raises:
            CompileError: there is no such dimension, or a bound is no int.
            DeviceError: on the CPU device, bounds outside the tensor. A GPU moves them inside, or pads what is outside.
        """
        from tilekit.lang.shape import axis_of  # it imports the tiles

        along = axis_of(axis, self.ndim, "slice")
        stop = self.shape[along] if stop is None else stop
        if not is_index(start) or not is_index(stop):
            raise CompileError(f"slice: start and stop are ints, not {what_is(start)} and {what_is(stop)}")
        first, last = int(start), int(stop)
        if not 0 <= first <= last <= self.shape[along]:
            raise DeviceError(f"slice: {first}:{last} is outside {self.name}, which has {self.shape[along]} along axis {along}")
        window = tuple(slice(first, last) if d == along else slice(None) for d in range(self.ndim))
        shadow = self._shadow.part(along, first, last) if self._shadow is not None else None
        part = TensorView(self.name, self._elements[window], None, self.readable, None, shadow, self._touched)
        part.writable = self.writable
        before = self._origin or (0,) * self.ndim
        part._origin = tuple(at + (first if d == along else 0) for d, at in enumerate(before))
        return part

    def _index_of(self, tile: Any, what: str) -> Shape:
        """The index of `tile`, which must be of this partition; of the block's own tile if it is None."""
        if tile is None:
            return self.own_index(what)
        _own_tile(self, what)
        if not isinstance(tile, TileIndex):
            raise CompileError(f"{what}: {no_tile(self.name, what_is(tile))}")
        if not any(view is self for view in tile.views):
            raise CompileError(f"{what}: {foreign_tile(self.name, tile.views[0].name)}")
        return tile.index

    def own_index(self, what: str) -> Shape:
        """The index of the tile that the running block owns."""
        shape = _own_tile(self, what)
        if self.group is not None:
            raise CompileError(f"{what}: {ownerless(self.name)}")
        running = block.current()
        assert running is not None, "views exist only while a kernel runs"
        if len(shape) < 4:
            return running.index[: len(shape)]
        tiles = -(-self.shape[1] // shape[1])
        return (*divmod(running.index[0], tiles), *running.index[1:])


class TiledView:
    """Windows of a tensor, see `TensorView.tiled_view`.

    Attributes:
        tile_shape: the shape of a window.
        traversal_steps: how many elements apart windows start along each dimension.
    """

    __slots__ = ("_extents", "_padding_mode", "_view", "tile_shape", "traversal_steps")

    def __init__(self, view: TensorView, extents: Shape, shape: Shape, steps: Shape, padding_mode: str) -> None:
        self._view, self._extents, self.tile_shape, self.traversal_steps = view, extents, shape, steps
        self._padding_mode = padding_mode

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self._view.dtype

    def num_tiles(self, axis: int) -> int:
        """The number of windows along a dimension: as many as start inside the tensor. A scalar as those of its shape."""
        from tilekit.lang.shape import axis_of

        along = axis_of(axis, self._view.ndim, "num_tiles")
        return -(-self._view.shape[along] // self.traversal_steps[along])

    def load(self, index: Any, *, eviction_policy: str = "evict_normal") -> Tile:
        """The window at an index; what lies beyond the edge is the view's padding. `eviction_policy` is as for `tk.load`.

        Raises:
            CompileError: the tensor is written only, or the index does not fit its rank.
            DeviceError: on the CPU device, an index outside the view. A GPU gives a window of padding.
        """
        check_eviction(eviction_policy, "load")
        return self._load(tile_index(self._view, index, "load"))

    def _load(self, index: Shape) -> Tile:
        view = self._view
        window = window_of(view, index, self._extents, self.traversal_steps, "load")
        fill = padding(view.dtype, self._padding_mode, view.name, "load")
        return Tile(read(view, window, self._extents, fill, "load").reshape(self.tile_shape))

    def store(self, index: Any, tile: Any, *, eviction_policy: str = "evict_normal") -> None:
        """Write the window at an index; what hangs over the edge is dropped.

        Args:
            index: which window; windows that overlap, and two blocks that write the same one, race.
            tile: of the view's tile shape, in a dtype that the tensor's holds without loss; or a scalar.
            eviction_policy: as for `tk.store`.

        Raises:
            CompileError: the tensor is only read, or the tile does not fit it.
            DeviceError: on the CPU device, an index outside the view. A GPU writes nothing then.
        """
        view = self._view
        check_eviction(eviction_policy, "store")
        if not view.writable:
            raise CompileError(f"store: {read_only(view.name)}")
        values = stored(view, tile, self.tile_shape, "store")
        position = tile_index(view, index, "store")
        window = window_of(view, position, self._extents, self.traversal_steps, "store")
        write(view, window, values.reshape(self._extents), None)


class TileGrid:
    """The tiles of a tensor, by index: what `x.tiles(shape)` gives. Iterating over it loads them all, the last index fastest."""

    __slots__ = ("_windows",)

    def __init__(self, windows: TiledView) -> None:
        self._windows = windows

    @property
    def windows(self) -> TiledView:
        """The view whose windows the tiles are."""
        return self._windows

    @property
    def shape(self) -> Shape:
        """The number of tiles along each dimension."""
        return tuple(map(self._windows.num_tiles, range(self._windows._view.ndim)))

    def __getitem__(self, index: Any) -> Any:
        """A tile; or with `:` or `a:b` along some dimensions the tiles there, to iterate over."""
        parts = index if isinstance(index, tuple) else (index,)
        view = self._windows._view
        check_row(parts, view.ndim, view.name)
        if all(map(is_index, parts)):
            return self._windows.load(index)
        return TileRow(self._windows, parts)

    def __iter__(self) -> Iterator[Tile]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def _all(self) -> TileRow:
        return TileRow(self._windows, (slice(None),) * self._windows._view.ndim)


class TileRow:
    """Tiles of a grid along some of its dimensions, loaded one after the other as they are iterated over."""

    __slots__ = ("_parts", "_windows")

    def __init__(self, windows: TiledView, parts: tuple[Any, ...]) -> None:
        self._windows, self._parts = windows, parts

    def __iter__(self) -> Iterator[Tile]:
        for index in itertools.product(*self._ranges):
            yield self._windows._load(index)

    def __len__(self) -> int:
        return math.prod(map(len, self._ranges))

    @property
    def grid(self) -> TileGrid:
        """The tiles that these are some of."""
        return TileGrid(self._windows)

    @property
    def _ranges(self) -> list[Sequence[int]]:
        counts = map(self._windows.num_tiles, range(self._windows._view.ndim))
        return [
            range(*part.indices(count)) if isinstance(part, slice) else (int(part),)
            for part, count in zip(self._parts, counts, strict=True)
        ]


def _own_tile(view: Any, what: str) -> Shape:
    if not isinstance(view, TensorView):
        raise CompileError(f"{what}: needs a tensor parameter, not {what_is(view)}")
    if view.tile_shape is None:
        raise CompileError(f"{what}: {tileless(view.name, view.writable)}")
    shape: Shape = view.tile_shape
    return shape
