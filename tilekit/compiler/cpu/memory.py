"""Loads and stores of windows of tensors, whose elements beyond the edge are padding, or dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu.code import Number, i1, i64
from tilekit.compiler.cpu.convert import in_memory
from tilekit.compiler.cpu.elementwise import as_tile
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Index, Tile, Window, element_at, kept, one, traverse
from tilekit.compiler.cpu.values import Grid, Row, Scalar, Tensor, Unsupported, Views, Visited
from tilekit.dtypes import DType
from tilekit.lang.memory import reordered
from tilekit.lang.windows import check_order, check_steps, check_window, padding

__all__ = ["bounds_of", "filling", "index_of", "own_index", "tile_of_views", "window_at"]

Shape = tuple[int, ...]


class _Place(Window):
    """A window: where its elements are, and which of them exist. One that begins outside the tensor ends the block.

    Attributes:
        tensor: that it is a part of.
        starts: of its first element, along each dimension of the tensor.
        extents: how many elements it has along each; `steps`: windows begin at multiples of these.
        along: for each dimension of the tile, the tensor's that it lies along; none for a tile of shape `()`.
        identity: what two windows have in common that are the same.
    """

    def __init__(
        self,
        p: Any,
        what: str,
        tensor: Tensor,
        index: Sequence[Number],
        extents: Shape,
        steps: Shape,
        along: Shape,
        *,
        checked: bool = True,
    ) -> None:
        k = p.k
        starts = [k.mul(at, step) for at, step in zip(index, steps, strict=True)]
        if checked:
            _check(p, what, tensor, index, extents, steps)
        self.k, self.tensor, self.starts, self.extents, self.steps, self.along = k, tensor, tuple(starts), extents, steps, along
        self.identity = (tensor.name, tensor.address, tuple(index), extents, steps, along)
        inside: ir.Value | None = None
        for d, (start, extent) in enumerate(zip(starts, extents, strict=True)):
            if self.may_overhang(d):
                fits = k.b.icmp_signed("<=", k.number(k.add(start, extent)), k.number(tensor.extents[d]))
                inside = fits if inside is None else k.b.and_(inside, fits)
        super().__init__(tensor.name, inside)
        offset: Number = 0
        for start, stride in zip(starts, tensor.strides, strict=True):
            offset = k.add(offset, k.mul(k.mul(start, stride), tensor.dtype.itemsize))
        self.origin = k.offset(tensor.address, offset)

    def may_overhang(self, d: int) -> bool:
        """Whether elements along a dimension may not exist; of one element it is known that it does."""
        extent = self.extents[d]
        return extent > 1 and bool(self.tensor.divisors[d] % extent or self.steps[d] % extent)

    def at(self, index: Index) -> tuple[ir.Value, Number, ir.Value | None]:
        """The address of an element, how far it is to the next along the index, and which of the elements exist."""
        k, itemsize = self.k, self.tensor.dtype.itemsize
        offset: Number = 0
        step: Number = 0
        mask: ir.Value | None = None
        for position, d in enumerate(self.along):
            offset = k.add(offset, k.mul(k.mul(index.at[position], self.tensor.strides[d]), itemsize))
            if position == index.along:
                step = k.mul(self.tensor.strides[d], itemsize)
            if self.inside is not None and self.may_overhang(d):
                there = k.number(k.add(index.at[position], self.starts[d]))
                if position == index.along:
                    lanes = k.b.add(k.splat(there, index.lanes), k.steps(index.lanes))
                    exists = k.b.icmp_signed("<", lanes, k.splat(k.number(self.tensor.extents[d]), index.lanes))
                else:
                    exists = k.splat(k.b.icmp_signed("<", there, k.number(self.tensor.extents[d])), index.lanes)
                mask = exists if mask is None else k.b.and_(mask, exists)
        return k.offset(self.origin, offset), step, mask


def index_of(p: Any, value: Any) -> Number:
    """An index: an int, a scalar, or an integer tile of shape `()`."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) or (hasattr(value, "item") and not isinstance(value, Tile)):
        return int(value)
    if isinstance(value, (Scalar, Tile)):
        return one(p.k, as_tile(p.k, value, p.integer))
    if isinstance(value, ir.Value):
        return value
    raise Unsupported(f"an index that is a {type(value).__name__}")


def _indices(p: Any, index: Any) -> tuple[Number, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(index_of(p, part) for part in parts)


def _check(p: Any, what: str, tensor: Tensor, index: Sequence[Number], extents: Shape, steps: Shape) -> None:
    """End the block where a window begins outside the tensor; 0 is inside of an empty one, too."""
    k = p.k
    wrong: ir.Value | None = None
    for at, step, extent in zip(index, steps, tensor.extents, strict=True):
        if isinstance(at, int) and at == 0:
            continue
        outside = k.b.icmp_unsigned(">=", k.number(at), k.number(k.ceiling(extent, step)))
        if not isinstance(at, int):
            outside = k.b.and_(outside, k.b.icmp_unsigned("!=", at, i64(0)))
        wrong = outside if wrong is None else k.b.or_(wrong, outside)
    if wrong is not None:
        p.check(wrong, ("window", tensor.name, what, extents, steps, tensor.rank), [*index, *tensor.extents])


def _read(p: Any, area: _Place, shape: Shape, fill: Any, mask: Tile | None = None) -> Tile:
    """The elements of a window; `fill` for those that do not exist, or that a mask leaves out."""
    k, tensor = p.k, area.tensor
    if tensor.role == "out":
        raise Unsupported("reading what is written only")
    fixed, computed = filling(p, fill, tensor.dtype)

    def element(index: Index) -> ir.Value:
        address, step, exists = area.at(index)
        if mask is not None:
            chosen = element_at(k, mask, index, shape)
            exists = chosen if exists is None else k.b.and_(exists, chosen)
        value = k.read(address, tensor.dtype, index.lanes, step, exists, fixed)
        return value if exists is None or computed is None else k.b.select(exists, value, k.splat(computed, index.lanes))

    windows = (area, *(mask.windows if mask is not None else ()))
    reads = frozenset({tensor.name}) | (mask.reads if mask is not None else frozenset())
    straight = not shape or tensor.strides[area.along[-1]] == 1
    loaded = Tile(shape, tensor.dtype, element, (1 if straight else 4) + (mask.cost if mask is not None else 0), reads, windows)
    return kept(k, loaded) if loaded.size == 1 else loaded


@lowers("load")
def load(
    p: Any, array: Tensor, index: Any, shape: Any, *, order: Any, padding_mode: str, mask: Any, padding_value: Any,
    eviction_policy: str,
) -> Tile:  # fmt: skip
    """A tile of a tensor."""
    extents, tile_shape = check_window(shape, array.rank, array.name, "load")
    along = check_order(order, array.rank, "load")
    where, lies = reordered(along, _indices(p, index)), reordered(along, extents)
    area = _Place(p, "load", array, where, lies, lies, along if tile_shape else ())
    fill = padding(array.dtype, padding_mode, array.name, "load") if padding_value is None else padding_value
    return _read(p, area, tile_shape, fill, _mask(p, mask))


def filling(p: Any, value: Any, dtype: DType) -> tuple[ir.Constant, ir.Value | None]:
    """What stands for elements that are not there, as it lies in memory; or in a register, if the kernel computes it."""
    if isinstance(value, (Scalar, Tile)):
        return in_memory(0, dtype), one(p.k, as_tile(p.k, value, dtype))
    return in_memory(value, dtype), None


def _mask(p: Any, mask: Any) -> Tile | None:
    if mask is None:
        return None
    chosen = as_tile(p.k, mask, p.boolean)
    return kept(p.k, chosen) if chosen.size == 1 else chosen


def own_index(p: Any, tensor: Tensor) -> tuple[Number, ...]:
    """The index of the tile that the block owns."""
    if tensor.tile is None or tensor.group is not None:
        raise Unsupported("a tensor whose tiles no block owns")
    k, bid = p.k, p.k.index
    if tensor.rank < 4:
        return tuple(bid[: tensor.rank])
    tiles = k.number(k.ceiling(tensor.extents[1], tensor.tile[1]))
    return (k.b.udiv(bid[0], tiles), k.b.urem(bid[0], tiles), *bid[1:])


def _index_in(p: Any, tensor: Tensor, tile: Any) -> tuple[Number, ...]:
    return tuple(tile.index) if isinstance(tile, Visited) else own_index(p, tensor)


def _whole(p: Any, what: str, tensor: Tensor, index: Sequence[Number], extents: Shape) -> _Place:
    return _Place(p, what, tensor, index, extents, extents, tuple(range(tensor.rank)))


def window_at(p: Any, what: str, tensor: Tensor, index: Any, extents: Shape, shape: Shape) -> _Place:
    """The window at an index that the kernel gives."""
    return _Place(p, what, tensor, _indices(p, index), extents, extents, tuple(range(tensor.rank)) if shape else ())


@lowers("load_tile_like")
def load_tile_like(p: Any, array: Tensor, like: Any, *, padding_mode: str, eviction_policy: str) -> Tile:
    """The tile of a tensor that lies where another one's does."""
    at, owner = (like, like.tensors[0]) if isinstance(like, Visited) else (None, like)
    if owner.tile is None or array.rank != owner.rank:
        raise Unsupported("load_tile_like of what is no partition")
    area = _whole(p, "load_tile_like", array, _index_in(p, owner, at), owner.tile)
    return _read(p, area, owner.tile, padding(array.dtype, padding_mode, array.name, "load_tile_like"))


@lowers(".load")
def load_own(p: Any, view: Any, *index: Any, tile: Any = None, eviction_policy: str = "") -> Tile:
    """`y.load()`, `y.load(tile)`, or a window of a view."""
    if isinstance(view, Views):
        return tile_of_views(p, view, _indices(p, *index))
    where = index[0] if index else tile
    return _read(p, _whole(p, "load", view, _index_in(p, view, where), view.tile), view.tile, 0.0)


def tile_of_views(p: Any, views: Views, index: Sequence[Number], *, checked: bool = True) -> Tile:
    """A window of a view."""
    tensor, along = views.tensor, tuple(range(views.tensor.rank)) if views.shape else ()
    area = _Place(p, "load", tensor, index, views.extents, views.steps, along, checked=checked)
    return _read(p, area, views.shape, padding(tensor.dtype, views.padding, tensor.name, "load"))


# ------------------------------------------------------------------------------------------------------------------------ stores


def _write(p: Any, area: _Place, shape: Shape, value: Any, mask: Tile | None) -> None:
    """Store a value; what it is made of is read before anything that it is read from is written."""
    k, tensor = p.k, area.tensor
    tile = as_tile(k, value, tensor.dtype)
    if (tensor.name in tile.reads or (p.aliased and tile.windows)) and not _same_place(tile, area, p.aliased):
        tile = kept(k, tile)
    p.before_write(tensor)

    def body(index: Index) -> None:
        address, step, exists = area.at(index)
        if mask is not None:
            chosen = element_at(k, mask, index, shape)
            exists = chosen if exists is None else k.b.and_(exists, chosen)
        k.write(address, tensor.dtype, index.lanes, step, exists, element_at(k, tile, index, shape))

    tiles = [tile] if mask is None else [tile, mask]
    traverse(k, shape, tiles, body, [area])


def _same_place(tile: Tile, area: _Place, aliased: bool) -> bool:
    """Whether the elements of a tensor that a tile is made of are each where what is made of it goes."""
    near = [window for window in tile.windows if aliased or window.name == area.name]
    return tile.aligned and all(isinstance(window, _Place) and window.identity == area.identity for window in near)


@lowers("store")
def store(p: Any, array: Tensor, index: Any, tile: Any, *, order: Any, mask: Any, eviction_policy: str) -> None:
    """Write a tile of a tensor."""
    along = check_order(order, array.rank, "store")
    if array.group is not None or array.role == "in":
        raise Unsupported("a store to what has no such tiles")
    if array.tile is not None:
        shape = extents = tuple(array.tile[d] for d in along)
    else:
        extents, shape = check_window(tile.shape if isinstance(tile, Tile) else (), array.rank, array.name, "store")
    where, lies = reordered(along, _indices(p, index)), reordered(along, extents)
    area = _Place(p, "store", array, where, lies, lies, along if shape else ())
    _write(p, area, shape, tile, _mask(p, mask))


@lowers(".store")
def store_own(
    p: Any, view: Any, *arguments: Any, tile: Any = None, value: Any = None, index: Any = None, eviction_policy: str = ""
) -> None:
    """`y.store(value)`, `y.store(value, tile)`, or a window of a view."""
    if isinstance(view, Views):
        at, value = arguments
        along = tuple(range(view.tensor.rank)) if view.shape else ()
        area = _Place(p, "store", view.tensor, _indices(p, at), view.extents, view.steps, along)
        _write(p, area, view.shape, value, None)
        return
    value = arguments[0] if arguments else value
    where = arguments[1] if len(arguments) > 1 else tile
    _write(p, _whole(p, "store", view, _index_in(p, view, where), view.tile), view.tile, value, None)


# ------------------------------------------------------------------------------------------------------------------------- views


@lowers("bid")
def bid(p: Any, axis: int) -> Scalar:
    """The block's index."""
    return Scalar(p.k.index[axis], int)


@lowers("num_blocks")
def num_blocks(p: Any, axis: int) -> Scalar:
    """How many blocks there are."""
    return Scalar(p.k.grid[axis], int)


@lowers("num_tiles")
def num_tiles(p: Any, array: Tensor, axis: int, shape: Any, *, order: Any) -> Scalar:
    """How many tiles there are along a dimension."""
    extents, _ = check_window(shape, array.rank, array.name, "num_tiles")
    along = check_order(order, array.rank, "num_tiles")
    return _number(p, p.k.ceiling(array.extents[along[axis]], extents[axis]))


@lowers(".num_tiles")
def count_tiles(p: Any, views: Views, axis: int) -> Scalar:
    """The same of a view."""
    return _number(p, p.k.ceiling(views.tensor.extents[axis], views.steps[axis]))


def _number(p: Any, value: Number) -> Scalar:
    return Scalar(p.k.number(value), int)


@lowers(".tiles")
def tiles(p: Any, tensor: Tensor, *what: Any) -> Any:
    """The tiles of a tensor; of a mapped partition those that the block visits are a loop's, see the program."""
    if not what or isinstance(what[0], Tensor):
        for other in what:
            different: ir.Value = i1(0)
            for extent, same in zip(tensor.extents, other.extents, strict=True):
                different = p.k.b.or_(different, p.k.b.icmp_signed("!=", p.k.number(extent), p.k.number(same)))
            p.check(different, ("cut", tensor.name, other.name), [])
        return (tensor, *what)
    extents, shape = check_window(what[0], tensor.rank, tensor.name, "tiles")
    return Grid(Views(tensor, extents, shape, extents, "zero"))


@lowers(".tiled_view")
def tiled_view(p: Any, tensor: Tensor, tile_shape: Any, padding_mode: str = "zero", traversal_steps: Any = None) -> Views:
    """Windows of a tensor."""
    extents, shape = check_window(tile_shape, tensor.rank, tensor.name, "tiled_view")
    return Views(tensor, extents, shape, check_steps(traversal_steps, extents, "tiled_view"), padding_mode)


@lowers(".slice")
def sliced(p: Any, tensor: Tensor, axis: int, start: Any, stop: Any = None) -> Tensor:
    """A part of a tensor."""
    k, d = p.k, axis % tensor.rank
    first, there = k.number(index_of(p, start)), k.number(tensor.extents[d])
    last = there if stop is None else k.number(index_of(p, stop))
    wrong = k.b.or_(k.b.icmp_unsigned(">", first, last), k.b.icmp_unsigned(">", last, there))
    p.check(wrong, ("slice", tensor.name, d), [first, last, there])
    offset = k.mul(k.mul(first, tensor.strides[d]), tensor.dtype.itemsize)
    extents, divisors = list(tensor.extents), list(tensor.divisors)
    extents[d], divisors[d] = k.b.sub(last, first), 1
    return Tensor(
        tensor.name, tensor.parameter, tensor.dtype, k.offset(tensor.address, offset), tuple(extents), tuple(divisors),
        tensor.strides, None, tensor.role,
    )  # fmt: skip


def bounds_of(p: Any, row: Row) -> list[tuple[Number, Number]]:
    """Of a row of tiles the first and the end along each dimension; of a slice by the rules of Python's."""
    k, views, bounds = p.k, row.views, []
    for d, part in enumerate(row.parts):
        if not isinstance(part, slice):
            at = index_of(p, part)
            bounds.append((at, k.add(at, 1)))
            continue
        count = k.number(k.ceiling(views.tensor.extents[d], views.steps[d]))

        def bound(value: Any, usual: Number, count: ir.Value = count) -> Number:
            if value is None:
                return usual
            number = k.number(index_of(p, value))
            number = k.b.select(k.b.icmp_signed("<", number, i64(0)), k.b.add(number, count), number)
            number = k.b.select(k.b.icmp_signed("<", number, i64(0)), i64(0), number)
            return k.least(number, count)

        first, last = bound(part.start, 0), k.number(bound(part.stop, count))
        start = k.number(first)
        bounds.append((first, k.b.select(k.b.icmp_signed("<", last, start), start, last)))
    return bounds
