"""Elements of tensors at places that the kernel computes: gather, scatter, and atomics, which go one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Number, i32, i64, type_of
from tilekit.compiler.cpu.elementwise import as_tile
from tilekit.compiler.cpu.memory import filling, window_at
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Index, Tile, address_of, element_at, kept, new_buffer, of_buffer, of_value, traverse
from tilekit.compiler.cpu.values import Tensor, Unsupported
from tilekit.dtypes import DType
from tilekit.lang.tile import common_shape
from tilekit.lang.windows import check_window

__all__: list[str] = []

Shape = tuple[int, ...]
_YIELDS = hasattr(os, "sched_yield")  # whether the C library has that
_ORDERS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}


class _Points:
    """Elements that indices name; an index outside the tensor that the mask leaves ends the block."""

    def __init__(self, p: Any, what: str, tensor: Tensor, indices: Any, mask: Any) -> None:
        parts = indices if isinstance(indices, tuple) else (indices,)
        if len(parts) != tensor.rank:
            raise Unsupported(f"{what} with another number of indices")
        self.p, self.tensor = p, tensor
        self.columns = [as_tile(p.k, part, dtypes.int64) for part in parts]
        self.shape = common_shape(what, [column.shape for column in self.columns])
        self.mask = None if mask is None else as_tile(p.k, mask, dtypes.bool_)
        self.tiles = [*self.columns, *([self.mask] if self.mask is not None else [])]
        unsigned = tuple(isinstance(part, Tile) and part.dtype == dtypes.uint64 for part in parts)
        self.site = p.site(("point", tensor.name, what, unsigned))

    def at(self, index: Index) -> tuple[ir.Value, ir.Value | None]:
        """The addresses of elements, and which of them are there; one of each, or vectors."""
        k, tensor = self.p.k, self.tensor
        numbers = [element_at(k, column, index, self.shape) for column in self.columns]
        chosen = None if self.mask is None else element_at(k, self.mask, index, self.shape)
        wrong: ir.Value | None = None
        for number, extent in zip(numbers, tensor.extents, strict=True):
            outside = k.b.icmp_unsigned(">=", number, k.splat(k.number(extent), index.lanes))
            wrong = outside if wrong is None else k.b.or_(wrong, outside)
        assert wrong is not None, "a tensor has a dimension at least"
        if chosen is not None:
            wrong = k.b.and_(wrong, chosen)

        def said() -> list[Number]:
            lane = k.first_lane(wrong)
            first = [number if index.lanes == 1 else k.b.extract_element(number, lane) for number in numbers]
            return [*first, *tensor.extents]

        k.check(k.any_lane(wrong), self.site, said)
        offsets: ir.Value | None = None
        for number, stride in zip(numbers, tensor.strides, strict=True):
            by = k.mul(stride, tensor.dtype.itemsize)
            part = k.b.mul(number, k.splat(k.number(by), index.lanes))
            offsets = part if offsets is None else k.b.add(offsets, part)
        if index.lanes == 1:
            return k.offset(tensor.address, offsets), chosen
        return k.addresses(tensor.address, offsets), chosen


@lowers("gather")
def gather(p: Any, array: Tensor, indices: Any, *, mask: Any, padding_value: Any, eviction_policy: str) -> Tile:
    """Elements by index."""
    if array.role == "out":
        raise Unsupported("reading what is written only")
    k, dtype = p.k, array.dtype
    points, (fixed, computed) = _Points(p, "gather", array, indices, mask), filling(p, padding_value, dtype)

    def element(index: Index) -> ir.Value:
        addresses, chosen = points.at(index)
        if index.lanes == 1:
            value = k.read(addresses, dtype, 1, 0, chosen, fixed)
        else:
            value = k.gather(addresses, dtype, chosen, fixed)
            value = k.b.icmp_unsigned("!=", value, k.like(0, value)) if dtype == dtypes.bool_ else value
        return value if computed is None or chosen is None else k.b.select(chosen, value, k.splat(computed, index.lanes))

    reads = frozenset({array.name}).union(*(tile.reads for tile in points.tiles))
    windows = (*(window for tile in points.tiles for window in tile.windows), p.anywhere(array))
    cost = 8 + sum(tile.cost for tile in points.tiles)
    gathered = Tile(points.shape, dtype, element, cost, reads, windows, aligned=False)
    return kept(k, gathered) if gathered.size == 1 else gathered


@lowers("scatter")
def scatter(p: Any, array: Tensor, indices: Any, value: Any, *, mask: Any, eviction_policy: str) -> None:
    """Write elements by index."""
    k, dtype = p.k, array.dtype
    points = _Points(p, "scatter", array, indices, mask)
    tile = as_tile(k, value, dtype)
    points.columns = [_apart(p, column, array) for column in points.columns]
    tile = _apart(p, tile, array)
    p.before_write(array)

    def body(index: Index) -> None:
        addresses, chosen = points.at(index)
        elements = element_at(k, tile, index, points.shape)
        if index.lanes == 1:
            k.write(addresses, dtype, 1, 0, chosen, elements)
        else:
            k.scatter(
                addresses,
                chosen,
                k.b.zext(elements, ir.VectorType(ir.IntType(8), index.lanes)) if dtype == dtypes.bool_ else elements,
            )

    traverse(k, points.shape, [tile, *points.tiles], body)


def _apart(p: Any, tile: Tile, array: Tensor) -> Tile:
    """The tile, computed before the tensor is written that it is made of."""
    return kept(p.k, tile) if array.name in tile.reads or (p.aliased and tile.windows) else tile


# ----------------------------------------------------------------------------------------------------------------------- atomics


def _changed(p: Any, name: str, dtype: DType, address: ir.Value, values: Sequence[ir.Value], order: str) -> ir.Value:
    """Change one element, and give what it was."""
    k, b = p.k, p.k.b
    if name == "cas":
        bits = ir.IntType(8 * dtype.itemsize)
        wanted, new = (b.bitcast(value, bits) for value in values)
        fail = {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)
        seen_there = b.extract_value(b.cmpxchg(address, wanted, new, order, fail), 0)
        return b.bitcast(seen_there, type_of(dtype))
    operation = _instruction(name, dtype)
    if operation is not None:
        return b.atomic_rmw(operation, address, values[0], order)
    function = arithmetic.binary(k, "+", dtype) if name == "add" else arithmetic.extremum(k, name == "max", dtype)
    bits = ir.IntType(8 * dtype.itemsize)
    first = b.load_atomic(address, "monotonic", dtype.itemsize, typ=bits)
    before, again, done = b.block, *(k.function.append_basic_block(part) for part in ("again", "swapped"))
    b.branch(again)
    b.position_at_end(again)
    seen = b.phi(bits)
    seen.add_incoming(first, before)
    new = b.bitcast(function(b.bitcast(seen, type_of(dtype)), values[0]), bits)
    result = b.cmpxchg(address, seen, new, order, "monotonic")
    seen_there = b.extract_value(result, 0)
    seen.add_incoming(seen_there, b.block)
    b.cbranch(b.extract_value(result, 1), done, again)
    b.position_at_end(done)
    return b.bitcast(seen_there, type_of(dtype))


def _instruction(name: str, dtype: DType) -> str | None:
    """LLVM's for integers; floats go round a loop."""
    if dtypes.is_float(dtype):
        return None if name != "xchg" else "xchg"
    if name in ("max", "min"):
        return name if dtype.kind == "i" else f"u{name}"
    return name


def _enter(name: str) -> None:
    what = f"atomic_{name}"

    @lowers(what)
    def lower(p: Any, array: Tensor, indices: Any, *values: Any, mask: Any, memory_order: str, memory_scope: str) -> Tile:
        k, dtype = p.k, array.dtype
        points = _Points(p, what, array, indices, mask)
        tiles = [_apart(p, as_tile(k, value, dtype), array) for value in values]
        points.columns = [_apart(p, column, array) for column in points.columns]
        p.before_write(array)
        order, needed = _ORDERS[memory_order], p.needed()
        if all(n == 1 for n in points.shape):
            slot = k.slot(type_of(dtype))
            _one(p, name, dtype, points, tiles, Index((0,) * len(points.shape)), order, lambda value: k.b.store(value, slot))
            _let_others_run(k, memory_order, memory_scope)
            return of_value(points.shape, dtype, k.b.load(slot, typ=type_of(dtype)))
        buffer = new_buffer(k, points.shape, dtype)

        def body(index: Index) -> None:
            for lane in range(index.lanes):
                at = tuple(k.add(i, lane) if d == index.along else i for d, i in enumerate(index.at))
                single = Index(at)

                def keep(value: ir.Value, single: Index = single) -> None:
                    k.write(address_of(k, buffer, single)[0], dtype, 1, 0, None, value)

                _one(p, name, dtype, points, tiles, single, order, keep if needed else None)

        traverse(k, points.shape, [*tiles, *points.tiles], body, lanes=1)
        _let_others_run(k, memory_order, memory_scope)
        return of_buffer(k, buffer)


def _let_others_run(k: Any, order: str, scope: str) -> None:
    """Who looks for what other devices say may wait for one that shares its core."""
    if scope == "system" and order in ("acquire", "acq_rel") and _YIELDS:
        k.call("sched_yield", ir.IntType(32), [])


def _one(
    p: Any,
    name: str,
    dtype: DType,
    points: _Points,
    tiles: Sequence[Tile],
    index: Index,
    order: str,
    keep: Callable[[ir.Value], Any] | None,
) -> None:
    """Change one element, if it is there; `keep` gets what it was, or 0."""
    k = p.k
    address, chosen = points.at(index)
    values = [element_at(k, tile, index, points.shape) for tile in tiles]
    if chosen is None:
        before = _changed(p, name, dtype, address, values, order)
        if keep is not None:
            keep(before)
        return
    if keep is not None:
        keep(
            ir.Constant(type_of(dtype), 0 if not isinstance(type_of(dtype), (ir.HalfType, ir.FloatType, ir.DoubleType)) else 0.0)
        )
    with k.b.if_then(chosen):
        before = _changed(p, name, dtype, address, values, order)
        if keep is not None:
            keep(before)


for _name in ("add", "max", "min", "and", "or", "xor", "xchg", "cas"):
    _enter(_name)


@lowers("atomic_add_tile")
def atomic_add_tile(p: Any, array: Tensor, index: Any, tile: Tile) -> None:
    """Add a tile to a tile of a tensor."""
    k, dtype = p.k, array.dtype
    extents, shape = check_window(tile.shape, array.rank, array.name, "atomic_add_tile")
    where = window_at(p, "atomic_add_tile", array, index, extents, shape)
    values = _apart(p, as_tile(k, tile, dtype), array)
    p.before_write(array)

    def body(at: Index) -> None:
        address, _, exists = where.at(at)
        value = element_at(k, values, at, shape)
        if exists is None:
            _changed(p, "add", dtype, address, [value], "monotonic")
        else:
            with k.b.if_then(exists):
                _changed(p, "add", dtype, address, [value], "monotonic")

    traverse(k, shape, [values], body, [where], lanes=1)


_ = (i32, i64)
