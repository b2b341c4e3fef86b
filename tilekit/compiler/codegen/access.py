"""Address arithmetic, bounds predicates and vectorization: where elements are, which exist, how wide an access may be.

What is proven decides the code. `access_pattern` works on facts alone:

    every element exists            full-width vectors, no mask        own tile of a partition whose extents the tile divides
    a vector exists or does not     full-width vectors, predicated     the extent is ragged, but a multiple of the vector
    a vector may be cut by the edge a branch that the whole block takes: tiles inside as in the first row; at the edge
                                    narrower accesses, predicated

An index that is not proven is compared with the number of tiles, unsigned: negative ones and those beyond the end read padding
and write nothing. Under `TILEKIT_CHECKS=1` they stop the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from tilekit.compiler.codegen.checks import checking, require
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.emit import all_of, special_register, thread_coordinates
from tilekit.compiler.codegen.types import TensorType, extent_dtype, i32, i64, integer, register_type
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP, Layout

__all__ = [
    "Access", "AccessPattern", "Slot", "Window", "access_pattern", "aligned", "count_tiles", "members", "open_access",
    "open_window", "tensor_field",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AccessPattern:
    """How a tile is accessed: vector width, and which bounds are checked.

    Attributes:
        vector: register bits that one full-width access covers.
        edge: register bits that one access covers where the tile hangs over the edge.
        ragged: dimensions in which the tile may hang over the edge.
        checked: dimensions in which the tile index is compared with the number of tiles.
        apart: whether tiles inside have accesses of their own, where those at the edge are as wide, too: in machine code each
            atomic addition with a predicate is a branch.
    """

    vector: tuple[int, ...]
    edge: tuple[int, ...]
    ragged: tuple[int, ...]
    checked: tuple[int, ...]
    apart: bool = False

    @property
    def masked(self) -> bool:
        """Whether some elements may not exist."""
        return bool(self.ragged or self.checked)

    @property
    def branches(self) -> bool:
        """Whether tiles at the edge need other accesses than tiles inside."""
        return self.masked and (self.apart or self.edge != self.vector)


def access_pattern(
    tensor: TensorType, layout: Layout, proven: Sequence[int], steps: tuple[int, ...], added: int | None = None
) -> AccessPattern:
    """Vectorization and bounds checks: how to access a tile in `layout` of `tensor`.

    Args:
        tensor, layout: its dimensions are those of the layout.
        proven: the dimensions in which the tile index is sure to be inside.
        steps: how many elements apart tiles start.
        added: how many elements one instruction adds to atomically; None for loads and stores.
    """
    facts, itemsize = tensor.facts, tensor.dtype.itemsize
    ragged = tuple(d for d in range(facts.rank) if facts.extents[d] % steps[d] or layout.shape[d] > steps[d])
    checked = tuple(d for d in range(facts.rank) if d not in proven)
    over = facts.unit is not None and facts.present(layout.shape[facts.unit]) < layout.shape[facts.unit]
    apart = added is not None and bool(ragged) and not over
    if facts.unit is None:
        return AccessPattern(vector=(), edge=(), ragged=ragged, checked=checked, apart=apart)
    run = layout.run(facts.unit)
    widest = min(aligned(tensor, steps), ACCESS_BYTES // itemsize if added is None else added)
    uncut = min(widest, facts.extents[facts.unit]) if facts.unit in ragged else widest
    # A tile that always hangs over the edge has no other accesses.
    vector, edge = (run[: max(1, elements).bit_length() - 1] for elements in (uncut if over else widest, uncut))
    return AccessPattern(vector=vector, edge=edge, ragged=ragged, checked=checked, apart=apart)


def aligned(tensor: TensorType, steps: tuple[int, ...]) -> int:
    """How many elements, a power of two, all rows of all tiles begin at multiples of, as far as is known."""
    facts = tensor.facts
    step = steps[facts.unit]
    others = (facts.strides[d] for d in range(facts.rank) if d != facts.unit)
    return min([facts.align // tensor.dtype.itemsize, step & -step, *others])


@dataclass(frozen=True)
class Slot:
    """One access of a thread: its registers, in memory's order; the address, and an offset in bytes; its predicate, if any; and
    whether none of its elements exists in any tile of the tensor (see `TensorFacts.present`)."""

    registers: list[int]
    address: ir.Value
    offset: int
    predicate: ir.Value | None
    absent: bool = False


@dataclass(frozen=True)
class Access:
    """A tile of a tensor, ready to be read or written.

    Attributes:
        full: the accesses where nothing is cut by the edge.
        edge: the accesses where something is.
        inside: whether the tile is wholly inside, the same for the whole block (of indexed elements: whether all of the thread's
            are inside and neighbours); None where `full` serves always.
    """

    full: list[Slot]
    edge: list[Slot]
    inside: ir.Value | None


def tensor_field(builder: ir.IRBuilder, tensor: TensorType, value: ir.Value, name: str) -> ir.Value:
    """A member of a tensor parameter: `address`, `extent0`, `stride1`... The stride of the unit dimension is the constant 1.

    `origin0` is where a slice begins in the parameter, in elements.
    """
    facts = tensor.facts
    if name == "address":
        return builder.extract_value(value, 0)
    kind, dim = name[:-1], int(name[-1])
    if kind == "extent":
        if facts.short and dim == facts.unit:
            return integer(64 if facts.wide else 32, facts.short)
        return builder.extract_value(value, 1 + dim)
    if kind == "origin":
        origins = tensor.origins or ()
        if dim not in origins:
            return integer(64 if facts.wide else 32, 0)
        return builder.extract_value(value, members(tensor) + origins.index(dim))
    if dim == facts.unit:
        return integer(64, 1)
    before = sum(1 for d in range(dim) if d != facts.unit)
    return builder.extract_value(value, 1 + facts.rank + before)


def members(tensor: TensorType) -> int:
    """How many members a tensor parameter has."""
    return 1 + 2 * tensor.facts.rank - (tensor.facts.unit is not None)


def count_tiles(builder: ir.IRBuilder, extent: ir.Value, step: int) -> ir.Value:
    """The number of tiles that start every `step` elements of `extent`."""
    rounded = builder.add(extent, ir.Constant(extent.type, step - 1))
    if step & (step - 1):
        return builder.udiv(rounded, ir.Constant(extent.type, step))
    return builder.lshr(rounded, ir.Constant(extent.type, step.bit_length() - 1))


def open_access(window: Window) -> Access:
    """Addresses and predicates of what is read or written of a window."""
    chosen, writing = window.pattern, window.writing
    owner = window.owner() if writing else None

    def slots(bits: tuple[int, ...], *, masked: bool) -> list[Slot]:
        return [slot for slot in window.slots(bits, owner, masked=masked) if not (writing and slot.absent)]

    if not chosen.masked:
        return Access(slots(chosen.vector, masked=False), [], None)
    if not chosen.branches:
        return Access(slots(chosen.vector, masked=True), [], None)
    inside = window.inside()
    return Access(slots(chosen.vector, masked=False), slots(chosen.edge, masked=True), inside)


def open_window(
    builder: ir.IRBuilder,
    tensor: TensorType,
    value: ir.Value,
    index: list[ir.Value],
    layout: Layout,
    *,
    proven: bool | Sequence[int],
    writing: bool,
    what: str = "",
    steps: tuple[int, ...] | None = None,
    added: int | None = None,
    words: tuple[int, ...] | None = None,
) -> Window:
    """The part of a tensor that the tile at `index` covers, noted and checked.

    Args:
        builder: at the place of the access.
        tensor, value: the tensor parameter.
        index: which tile, an i32 or i64 for each dimension.
        layout: the tile's.
        proven: whether `index` is sure to be inside the tensor; or the dimensions in which it is.
        writing: threads that hold copies take no part.
        what: the operation.
        steps: how many elements apart tiles start; by default the tile's own extents.
        added: as for `access_pattern`.
        words: the register bits that an access covers whatever the alignment: threads see it as the first of their warp does.
    """
    if isinstance(proven, bool):
        proven = range(tensor.facts.rank) if proven else ()
    steps = layout.shape if steps is None else steps
    pattern, thread = access_pattern(tensor, layout, proven, steps, added), special_register(builder, "tid.x")
    if words is not None:
        pattern = replace(pattern, vector=words, edge=words, apart=True)
        thread = builder.and_(thread, integer(32, -WARP & 0xFFFFFFFF))
    together = added is not None
    window = Window(builder, tensor, value, index, layout, pattern, steps, thread, together=together, writing=writing)
    current().note("access", tensor, layout, pattern, writing)
    if window.valid is not None and checking():
        marks = ", ".join(["{}"] * len(index))
        require(builder, window.allowed(index), f"{what}: tile index ({marks}) is outside {tensor.parameter}", index)
    return window


class Window:
    """The part of a tensor that a tile covers, as `thread` sees it: by default by its number in the block.

    If elements are looked at `together`, predicates are those of as many neighbours as exist all or none, by what is known of the
    extents: of registers that are such neighbours there is one.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        tensor: TensorType,
        value: ir.Value,
        index: list[ir.Value],
        layout: Layout,
        pattern: AccessPattern,
        steps: tuple[int, ...],
        thread: ir.Value | None = None,
        together: bool = False,
        writing: bool = False,
    ) -> None:
        self.steps = steps
        self.builder, self.tensor, self.value, self.layout, self.pattern = builder, tensor, value, layout, pattern
        self.writing = writing
        self.thread = special_register(builder, "tid.x") if thread is None else thread
        self.width = register_type(extent_dtype(tensor.facts))
        self.valid = all_of(builder, [self._in_range(d, index[d]) for d in pattern.checked])
        starts = [builder.mul(self._resize(i), self._count(steps[d])) for d, i in enumerate(index)]
        offsets = thread_coordinates(builder, self.thread, layout.thread)
        self.left = {d: self._left(d, starts[d]) for d in pattern.ragged}
        # Tiles begin at such multiples, too, and what threads and registers add to that differs in its bits.
        self._multiples = {d: math.gcd(tensor.facts.extents[d], steps[d]) if together else 1 for d in pattern.ragged}
        self.remaining = {d: builder.sub(left, self._whole(d, offsets[d])) for d, left in self.left.items()}
        if self.valid is not None and self.remaining:
            first = pattern.ragged[-1]
            self.remaining[first] = builder.select(self.valid, self.remaining[first], integer(32, 0))
        self.base = self._address(starts, offsets)
        self._rows: dict[tuple[int, ...], ir.Value] = {}

    def _whole(self, dim: int, offset: ir.Value) -> ir.Value:
        """An offset, to where the neighbours begin that exist all or none."""
        multiple = self._multiples[dim]
        return offset if multiple == 1 else self.builder.and_(offset, integer(32, -multiple & 0xFFFFFFFF))

    def _count(self, n: int) -> ir.Constant:
        return ir.Constant(self.width, n)

    def _field(self, name: str) -> ir.Value:
        return tensor_field(self.builder, self.tensor, self.value, name)

    def _resize(self, index: ir.Value) -> ir.Value:
        if index.type == self.width:
            return index
        return (self.builder.trunc if index.type == i64 else self.builder.sext)(index, self.width)

    def allowed(self, index: list[ir.Value]) -> ir.Value:
        """Whether checks let the index pass: as `valid`, but as on the CPU device a tensor without elements has a tile 0."""
        result = all_of(self.builder, [self._in_range(d, index[d], at_least=1) for d in self.pattern.checked])
        assert result is not None, "only asked for what is not proven"
        return result

    def _in_range(self, dim: int, index: ir.Value, at_least: int = 0) -> ir.Value:
        """Bounds check: 0 <= index < tiles along `dim`, in the wider of the two types, so that no index wraps into range.

        Where there are fewer tiles than `at_least`, that many are taken for there.
        """
        builder = self.builder
        tiles = count_tiles(builder, self._field(f"extent{dim}"), self.steps[dim])
        if at_least:
            least = ir.Constant(tiles.type, at_least)
            tiles = builder.select(builder.icmp_unsigned("<", tiles, least), least, tiles)
        if index.type == i64 and tiles.type == i32:
            tiles = builder.zext(tiles, i64)
        elif index.type == i32 and tiles.type == i64:
            index = builder.sext(index, i64)
        return builder.icmp_unsigned("<", index, tiles)

    def _left(self, dim: int, start: ir.Value) -> ir.Value:
        """How many elements there are from the tile's start to the tensor's end, an i32; what exceeds the tile does not count."""
        left = self.builder.sub(self._field(f"extent{dim}"), start)
        if self.width == i32:
            return left
        extent = self._count(self.layout.shape[dim])
        fits = self.builder.icmp_signed("<", left, extent)
        return self.builder.trunc(self.builder.select(fits, left, extent), i32)

    def _address(self, starts: list[ir.Value], offsets: list[ir.Value]) -> ir.Value:
        """The address of the thread's register 0, in 64 bits."""
        builder, total = self.builder, integer(64, 0)
        for dim, (start, offset) in enumerate(zip(starts, offsets, strict=True)):
            element = builder.add(start, offset if self.width == i32 else builder.zext(offset, i64))
            element = element if self.width == i64 else builder.zext(element, i64)
            if dim != self.tensor.facts.unit:
                element = builder.mul(element, self._field(f"stride{dim}"))
            total = builder.add(total, element)
        return builder.add(self._field("address"), builder.mul(total, integer(64, self.tensor.dtype.itemsize)))

    def row(self, coordinate: tuple[int, ...]) -> ir.Value:
        """The base address moved by a register's coordinate in every dimension but the unit one, whose offset is an immediate."""
        unit = self.tensor.facts.unit
        key = tuple(0 if d == unit else c for d, c in enumerate(coordinate))
        if key not in self._rows:
            self._rows[key] = self.row_here(key)
        return self._rows[key]

    def row_here(self, coordinate: tuple[int, ...]) -> ir.Value:
        """The same, computed where it is asked for: in one of several branches."""
        address = self.base
        for dim, c in enumerate(coordinate):
            if c and dim != self.tensor.facts.unit:
                step = self.builder.mul(self._field(f"stride{dim}"), integer(64, c * self.tensor.dtype.itemsize))
                address = self.builder.add(address, step)
        return address

    def owner(self) -> ir.Value | None:
        """Whether this thread is the one, among those that hold copies, that writes. None if there are no copies."""
        copies = self.layout.copies
        if not copies:
            return None
        return self.builder.icmp_unsigned("==", self.builder.and_(self.thread, integer(32, copies)), integer(32, 0))

    def inside(self, dims: Sequence[int] | None = None) -> ir.Value:
        """Whether no element of the tile is beyond the edge, along any dimension or only these."""
        dims = self.pattern.ragged if dims is None else dims
        fits = [self.builder.icmp_signed(">=", self.left[d], integer(32, self.layout.shape[d])) for d in dims]
        result = all_of(self.builder, [self.valid, *fits])
        assert result is not None, "only masked accesses ask"
        return result

    def _exists(self, at: Sequence[int] | Mapping[int, int]) -> list[ir.Value | None]:
        """Conditions for the register at coordinate `at` to be an element of the tensor."""
        if not self.remaining:
            return [self.valid]
        return [self.builder.icmp_signed(">", left, integer(32, at[d])) for d, left in self.remaining.items()]

    def row_exists(self, at: tuple[int, ...]) -> ir.Value | None:
        """Whether the tensor has the row of the register at coordinate `at`, if it has all columns of the tile; None if it surely
        has."""
        if not self.remaining:
            return self.valid
        others = [(d, left) for d, left in self.remaining.items() if d != self.tensor.facts.unit]
        return all_of(self.builder, [self.builder.icmp_signed(">", left, integer(32, at[d])) for d, left in others])

    def present(self, at: tuple[int, ...], count: int) -> ir.Value:
        """How many of `count` neighbours, from the register at coordinate `at` on, are elements of the tensor: an i32."""
        builder, unit, limit = self.builder, self.tensor.facts.unit, integer(32, count)
        left = self.remaining.get(unit) if self.tensor.facts.extents[unit] % count else None  # which the edge may cut
        if left is not None:
            left = builder.sub(left, integer(32, at[unit]))
            left = builder.select(builder.icmp_signed("<", left, limit), left, limit)
            limit = builder.select(builder.icmp_signed(">", left, integer(32, 0)), left, integer(32, 0))
        exists = all_of(builder, self._exists(at))
        return limit if exists is None else builder.select(exists, limit, integer(32, 0))

    def slots(self, bits: tuple[int, ...], owner: ir.Value | None, *, masked: bool) -> list[Slot]:
        """One access for each group of registers that differ in `bits`. Those that exist together have one predicate."""
        coordinates, unit, itemsize = self.layout.coordinates(), self.tensor.facts.unit, self.tensor.dtype.itemsize
        slots, predicates = [], {}
        for registers in self.layout.chunks(bits):
            at = coordinates[registers[0]]
            which = {d: at[d] & -self._multiples[d] for d in self.remaining} if masked else {}
            key = tuple(which.values())
            if key not in predicates:
                predicates[key] = all_of(self.builder, [owner, *self._exists(which)]) if masked else owner
            absent = unit is not None and at[unit] >= self.tensor.facts.present(self.layout.shape[unit])
            slots.append(Slot(registers, self.row(at), 0 if unit is None else at[unit] * itemsize, predicates[key], absent))
        return slots
