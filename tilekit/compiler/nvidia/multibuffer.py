"""Multi-buffering: rings of stages in shared memory with full and empty barriers (mbarrier), and who fills them.

Each ring has two barriers (PTX: mbarriers) a stage. Those who load wait until a stage is `empty`, and have its tiles brought;
those that calculate wait until it is `full`, and each of their warps arrives at `empty` when it has read the stage. Barriers
change phase each time they are passed; so turn `n` waits for phase `n // stages` of stage `n % stages`, by its parity.

The tensor memory accelerator (TMA) brings a tile on behalf of one thread, which says how many bytes will come; `full` counts
them. Where there is none, or it cannot, all threads that load copy a part of the tile (cp.async, 16, 8 or 4 bytes at a time), and
each of them arrives at `full` when its copies have.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model

from tilekit import dtypes
from tilekit._driver.tensormaps import MAP_BYTES, TensorMap
from tilekit.compiler.codegen.compilation import BARRIER_ROOM, RING_ALIGNMENT, Pipelines, current
from tilekit.compiler.codegen.definition import known, lowers
from tilekit.compiler.codegen.emit import MAP_NAME, asm, special_register
from tilekit.compiler.codegen.types import i8, i32, i64, integer
from tilekit.compiler.codegen.view_types import TileGridType
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP
from tilekit.compiler.nvidia import early_starts, fewer_rows
from tilekit.compiler.nvidia.fewer_rows import Begins
from tilekit.compiler.nvidia.staged import LEAST_ROWS, StagedType, span_of
from tilekit.compiler.passes.rings import Unfit
from tilekit.compiler.target import Target

__all__ = [
    "RingType",
    "Together",
    "behind_rooms",
    "by_panels",
    "deals_registers",
    "fewest_producers",
    "memory_order",
    "narrow",
    "plus",
    "producers_of",
    "tensor_map_of",
    "the_pipelines",
    "the_ring",
    "wait",
]  # fmt: skip

_PRODUCERS = 128  # where registers are dealt out anew, which is to four warps at a time
_SHARE = 4  # elsewhere, for so many warps that calculate there is one that loads: its registers are as many as theirs
# Unless more are asked for. Where a multiprocessor has one such block alone, as many as fit are on their way at the same time:
# what a product of few rows reads comes from memory the sooner (72 x 8192 x 8192, 64 columns of K a stage: 52 us with 4 stages,
# 42 with 6, 38 with 8).
_STAGES, _STAGES_ALONE = 4, 8
_MOST_IN_BOX, _MOST_DIMENSIONS = 256, 5  # of a tensor map
_LEAST_COPY = 4  # bytes
_OWN_BYTES = 1536  # that nearly all kernels need besides, with the 1024 that ptxas counts as its own
_BARRIER = 8  # bytes
_SHARED = 3  # the address space
_VOID = ir.VoidType()
_MEET = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"


def deals_registers(target: Target) -> bool:
    """Whether those that load are a warpgroup, which gives registers to those that calculate.

    Sums of products by warpgroups take most of what threads have; those of products by warps fit as it is.
    """
    return target.wgmma and target.setmaxnreg


def producers_of(target: Target, num_warps: int) -> int:
    """How many threads a block has besides those that calculate."""
    return _PRODUCERS if deals_registers(target) else fewest_producers(num_warps)


def fewest_producers(num_warps: int) -> int:
    """The same, where each of them takes as many registers as those that calculate have."""
    return WARP * max(1, num_warps // _SHARE)


def narrow(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A number of turns, as an i32."""
    return builder.trunc(value, i32) if value.type.width > 32 else value


class Together(NamedTuple):
    """The blocks of a cluster that a tile comes to at once, of which each has a part of it brought to all of them.

    They are those along some of the cluster's dimensions. Blocks are numbered along the last dimension first.

    Attributes:
        axes: of each such dimension how many blocks lie along it, and how far apart in their numbers.
        cluster: how many blocks the cluster has.
    """

    axes: tuple[tuple[int, int], ...] = ()
    cluster: int = 1

    @classmethod
    def along(cls, shape: tuple[int, ...], axes: int) -> Together:
        """Those along the dimensions of a cluster of this shape whose bits `axes` has."""
        chosen = [(n, math.prod(shape[d + 1 :])) for d, n in enumerate(shape) if axes >> d & 1 and n > 1]
        return cls(tuple(chosen), math.prod(shape)) if chosen else cls()

    @property
    def parts(self) -> int:
        """How many they are."""
        return math.prod(count for count, _ in self.axes)

    def places(self, builder: ir.IRBuilder) -> tuple[ir.Value, ir.Value]:
        """The part that a block has brought, and the blocks that it comes to: a bit each, by their numbers in the cluster."""
        block = asm(builder, "mov.u32 $0, %cluster_ctarank;", "=r", i32, [])
        numbers = [sum(n * apart for n, (_, apart) in zip(at, self.axes, strict=True)) for at in self._each()]
        every = integer(32, sum(1 << number for number in numbers))
        if self.parts == self.cluster:
            return block, every
        part, first = integer(32, 0), block
        for count, apart in self.axes:
            at = builder.urem(builder.udiv(block, integer(32, apart)), integer(32, count))
            part = builder.add(builder.mul(part, integer(32, count)), at)
            first = builder.sub(first, builder.mul(at, integer(32, apart)))
        return part, builder.shl(every, first)

    def _each(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(count) for count, _ in self.axes))


class Way(NamedTuple):
    """How the tiles of a stream come.

    Attributes:
        map: the number of the tensor map by which the tensor memory accelerator brings them; None if threads copy them.
        nbytes: that a thread copies at a time.
        together: the blocks of a cluster that it comes to.
        turned: the dimension of the tensor that is the fastest in a stage, if that is not the one without gaps: threads transpose
            such tiles as they copy them.
        last: the number of the map of the last tile along a dimension (see `fewer_rows`); None if no tile may have less.
    """

    map: int | None
    nbytes: int = 0
    together: Together = Together()
    turned: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        copied = f"cp.async of {self.nbytes} bytes" if self.map is None else "TMA"
        return copied if self.turned is None else f"{copied}, transposed"


class Variant(NamedTuple):
    """What is in the stages of a ring for some of its loops: `tiles`, by which `ways` they come, and which of them `follows` the
    one before without a gap."""

    tiles: tuple[StagedType, ...]
    ways: tuple[Way, ...]
    follows: tuple[bool, ...]

    @property
    def rooms(self) -> tuple[int, ...]:
        """The bytes of each tile."""
        return tuple(tile.room for tile in self.tiles)

    @property
    def brought(self) -> int:
        """How many bytes of a stage the tensor memory accelerator brings."""
        return sum(tile.nbytes for tile, way in zip(self.tiles, self.ways, strict=True) if way.map is not None)


class RingType(types.Type):
    """A ring of stages; the value is its address, an i32, a multiple of 1024.

    Attributes:
        number: which of the kernel's it is.
        stages: how many.
        variants: what may be in them, and `which` it is here: `tiles` and `ways`.
    """

    mangling_args = ("G", ())

    def __init__(self, number: int, stages: int, variants: tuple[Variant, ...], which: int = 0) -> None:
        self.number, self.stages, self.variants, self.which = number, stages, variants, which
        self.tiles, self.ways = variants[which].tiles, variants[which].ways
        super().__init__(f"Ring({number}, {stages}, {variants}, {which})")

    @property
    def cluster(self) -> int:
        """How many blocks the clusters have of which some load tiles together."""
        return max(way.together.cluster for variant in self.variants for way in variant.ways)

    @property
    def brought(self) -> int:
        """How many bytes of a stage the tensor memory accelerator brings here."""
        return self.variants[self.which].brought

    @property
    def accelerated(self) -> bool:
        """Whether it brings any tiles."""
        return any(variant.brought for variant in self.variants)

    @property
    def copied(self) -> bool:
        """Whether threads copy tiles."""
        return any(way.map is None for variant in self.variants for way in variant.ways)

    @property
    def nbytes(self) -> int:
        """How many bytes a stage has: as many as the largest tiles need."""
        return max(sum(variant.rooms) for variant in self.variants)

    def places(self, builder: ir.IRBuilder, base: ir.Value, stage: ir.Value) -> list[ir.Value]:
        """The addresses of a stage's tiles: each behind its like of the stages before, with those that follow it; or where loops
        have tiles of other sizes, behind each other.
        """
        rooms, follows = self.variants[self.which].rooms, self.variants[self.which].follows
        alike = all((variant.rooms, variant.follows) == (rooms, follows) for variant in self.variants)
        runs: list[list[int]] = []
        for room, behind in zip(rooms, follows, strict=True):
            if alike and not behind:
                runs.append([])
            runs = runs or [[]]
            runs[-1].append(room)
        places, begin = [], 0
        for run in runs:
            each = sum(run) if alike else self.nbytes
            within = itertools.accumulate(run[:-1], initial=0)
            places += [plus(builder, base, self.stages * begin + at, stage, each) for at in within]
            begin += each
        return places

    def full(self, builder: ir.IRBuilder, base: ir.Value, stage: ir.Value) -> ir.Value:
        """The address of a stage's barrier for what has come."""
        return plus(builder, base, -the_pipelines().barriers[self.number], stage, _BARRIER)

    def empty(self, builder: ir.IRBuilder, base: ir.Value, stage: ir.Value) -> ir.Value:
        """The address of its barrier for what has been read."""
        return plus(builder, base, _BARRIER * self.stages - the_pipelines().barriers[self.number], stage, _BARRIER)

    def stage(self, builder: ir.IRBuilder, turn: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The stage of a turn, and the parity of its phase."""
        turn, stages = narrow(builder, turn), integer(32, self.stages)
        return builder.urem(turn, stages), builder.and_(builder.udiv(turn, stages), integer(32, 1))


@register_model(RingType)
class _RingModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: RingType) -> None:
        super().__init__(manager, ty, i32)


def plus(builder: ir.IRBuilder, base: ir.Value, offset: int, stage: ir.Value, nbytes: int) -> ir.Value:
    """`base`, and behind it an offset and so many stages."""
    return builder.add(builder.add(base, ir.Constant(i32, offset)), builder.mul(stage, integer(32, nbytes)))


def memory_order(grid: TileGridType, turned: int | None = None) -> tuple[int, ...]:
    """The dimensions of a tensor as its tiles lie in a stage: the one without gaps last, or that which they are `turned` to."""
    facts = grid.tensor.facts
    last = facts.unit if turned is None else turned
    return (*(d for d in range(facts.rank) if d != last), last)  # type: ignore[return-value]


def _turned(grid: TileGridType, summed: int, number: int) -> tuple[StagedType, Way] | None:
    """The same as `_staged`, of tiles whose `summed` dimension is the one without gaps, and which lie across it in a stage; None
    if they lie right as they are, or cannot lie so."""
    tensor, cut = grid.tensor, grid.cut
    itemsize, along = tensor.dtype.itemsize, cut.along
    if itemsize != _LEAST_COPY or len(along) < 2 or along[summed] != tensor.facts.unit:
        return None
    kept = along[-3 - summed]
    order = memory_order(grid, kept)
    memory = tuple(cut.extents[d] for d in order)
    tile = StagedType(tensor.dtype, memory, tuple(order.index(d) for d in along), tensor.config, number)
    if span_of(memory[-1] * itemsize) is None or tile.rows < LEAST_ROWS or tile.nbytes % RING_ALIGNMENT:
        return None
    return tile, Way(None, itemsize, turned=kept)


def _staged(
    grid: types.Type, state: Pipelines, together: Together, number: int, summed: int, begins: Begins, before: StagedType | None
) -> tuple[StagedType, Way]:
    """How tiles of a grid lie in a stage, and how they come: to blocks `together`, if they can be divided into so many parts.

    Threads read across the `summed` dimension, if it is not 0 (see `passes.summed`). Where tiles begin, see `passes.begins`. A
    tile that follows one `before` goes on in panels of the same width: a product by warpgroups takes as many columns of the last
    one as there are.
    """
    assert isinstance(grid, TileGridType), "the language takes no other streams"
    tensor, cut = grid.tensor, grid.cut
    facts, name, itemsize = tensor.facts, tensor.parameter, tensor.dtype.itemsize
    if facts.role != "in":
        raise Unfit(f"{name} is written, too")
    if facts.unit is None:
        raise Unfit(f"{name} has no dimension of stride 1")
    if summed and (turned := _turned(grid, summed, number)) is not None:
        return turned
    order = memory_order(grid)
    memory, axes = tuple(cut.extents[d] for d in order), tuple(order.index(d) for d in cut.along)
    panel = before.span if before is not None and state.target.wgmma and before.axes == axes else 0
    panel = panel if memory[-1] * itemsize < panel else 0
    if (not panel and span_of(memory[-1] * itemsize) is None) or not cut.shape:
        raise Unfit(f"tiles of {name} have rows of {memory[-1] * itemsize} bytes")
    short = facts.present(memory[-1]) % memory[-1]
    tile = StagedType(tensor.dtype, memory, axes, tensor.config, number, short, panel)
    vector = tile.is_vector and memory[-1] <= _MOST_IN_BOX and dtypes.is_float(tensor.dtype)
    if tile.is_vector and not vector:
        raise Unfit(f"tiles of {name} have one row, of {memory[-1]} {tensor.dtype.name}")
    if not vector and tile.rows < LEAST_ROWS:
        raise Unfit(f"tiles of {name} have {tile.rows} rows")
    if not vector and tile.nbytes % RING_ALIGNMENT:
        raise Unfit(f"tiles of {name} have {tile.nbytes} bytes, no multiple of {RING_ALIGNMENT}")
    for blocks in dict.fromkeys((together, Together())):
        tensor_map = _map_of(grid, tile, state, blocks.parts)
        if tensor_map is None:
            continue
        number, last = state.number_of(tensor_map), fewer_rows.last_of(grid, begins) if blocks.parts == 1 and not vector else None
        of_last = None if last is None else state.number_of(dataclasses.replace(tensor_map, last=last))
        return tile, Way(number, together=blocks, last=of_last)
    strides = [facts.strides[d] * itemsize for d in order[:-1]]
    least = max(_LEAST_COPY, itemsize)
    if facts.align < least:
        raise Unfit(f"{name} does not begin at a multiple of {least} bytes")
    if any(stride % _LEAST_COPY for stride in strides):
        raise Unfit(f"rows of {name} are not multiples of {_LEAST_COPY} bytes apart")
    return tile, Way(None, min([ACCESS_BYTES, facts.align, *(stride & -stride for stride in strides if stride)]))


def _map_of(grid: TileGridType, tile: StagedType, state: Pipelines, parts: int) -> TensorMap | None:
    """The tensor map that brings tiles of a grid in so many parts; None if the tensor memory accelerator cannot."""
    tensor, extents, order = grid.tensor, grid.cut.extents, memory_order(grid)[::-1]
    facts, itemsize, unit = tensor.facts, tensor.dtype.itemsize, order[0]
    strides = [facts.strides[d] * itemsize for d in order[1:]]
    if not state.target.tma or tensor.origins != () or tensor.parameter not in state.tensors:
        return None
    if facts.wide or not facts.steps or facts.rank > _MOST_DIMENSIONS or max(tile.memory[:-1], default=1) > _MOST_IN_BOX:
        return None
    least = state.target.tma_alignment
    if facts.align < least or any(stride % least for stride in strides):
        return None
    box = [tile.span // itemsize if d == unit else n for d, n in enumerate(extents)]
    if parts > 1 and not by_panels(tile, parts):
        slowest = next((d for d in reversed(order) if d != unit and extents[d] > 1), None)
        if slowest is None or tile.rows % (parts * LEAST_ROWS) or box[slowest] % parts:
            return None
        box[slowest] //= parts
    number, swizzle = state.tensors[tensor.parameter][0], 0 if tile.is_vector else tile.span
    return TensorMap(number, tensor.dtype.name, tuple(box), order, swizzle)


def by_panels(tile: StagedType, parts: int) -> bool:
    """Whether a tile has panels for each of so many parts."""
    return tile.panels % parts == 0


def the_pipelines() -> Pipelines:
    """What the rings of the kernel share."""
    state = current().pipelines
    assert state is not None, "passes.rings makes rings in kernels that are compiled with them"
    return state


@lowers(intrinsics.ring)
def ring(
    number: types.Type, stages: types.Type, shared: types.Type, follows: types.Type, counts: types.Type, summed: types.Type,
    begins: types.Type, *grids: types.Type,
) -> Any:  # fmt: skip
    compilation, state = current(), the_pipelines()
    cluster = next(iter(state.clusters.values()), ()) if state.target.multicast else ()
    passed, grids = grids, tuple(one for grid in grids for one in (grid.types if isinstance(grid, types.BaseTuple) else (grid,)))
    ways: list[tuple[StagedType, Way, bool]] = []
    numbers = iter(known(begins))  # numba takes no tuples of tuples for constants
    where = zip(numbers, numbers, strict=True)
    for n, grid in enumerate(grids):
        behind = bool(known(follows) >> n & 1)
        blocks, before = Together.along(cluster, known(shared)[n]), ways[-1][0] if behind else None
        begin = tuple(itertools.islice(where, grid.tensor.facts.rank))  # type: ignore[attr-defined]
        ways.append((*_staged(grid, state, blocks, known(number), known(summed)[n], begin, before), behind))
    staged = iter(ways)
    variants = tuple(Variant(*zip(*itertools.islice(staged, count), strict=True)) for count in known(counts))
    each = max(sum(variant.rooms) for variant in variants)

    def room(blocks: int) -> int:
        available = state.shared // blocks - _OWN_BYTES - RING_ALIGNMENT - BARRIER_ROOM - state.rooms - state.kept
        available -= sum(state.chosen.values()) + state.received
        return max(0, available // max(1, state.rings - len(state.chosen)) & -RING_ALIGNMENT)

    if known(stages):
        state.chosen[known(number)] = known(stages) * each
    # As many as fit if there is room for the other blocks that are wanted, too; but one at least.
    limit = _STAGES_ALONE if state.alone else _STAGES
    count = known(stages) or min(limit, max(room(state.resident) // each, min(1, room(1) // each)))
    if not count:
        raise Unfit(f"a stage of {each} bytes does not fit into the shared memory that is left, {room(1)}")
    if not known(stages):
        state.fewest = min(state.fewest, count)
    ring_type = RingType(known(number), count, variants)
    state.cluster = max(state.cluster, ring_type.cluster)
    begin = state.ring_bytes
    if state.barrier_bytes + 2 * _BARRIER * count > BARRIER_ROOM:
        raise Unfit(f"all rings of a kernel have {BARRIER_ROOM // (2 * _BARRIER)} stages together, at most")

    def emit(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        tensors = _flat(builder, passed, values[-len(passed) :])
        rows = [
            None if way.last is None else fewer_rows.Rows.of(builder, grid, tensor, way.last, state.maps[way.last].last)
            for (_, way, _), grid, tensor in zip(ways, grids, tensors, strict=True)
        ]
        each_way = iter(rows)
        for which, several in enumerate(known(counts)):
            state.rows[ring_type.number, which] = list(itertools.islice(each_way, several))
        state.barriers[ring_type.number] = begin + BARRIER_ROOM - state.barrier_bytes
        state.barrier_bytes += 2 * _BARRIER * count
        state.ring_bytes += count * each
        state.copied |= ring_type.copied
        state.summed |= any(known(summed))
        compilation.note("ring", ring_type)
        last = len(state.barriers) == state.rings
        base = behind_rooms(builder, begin)
        # Taken for a constant, the address would be computed anew in each turn of a loop.
        base = asm(builder, "mov.u32 $0, $1;", "=r,r", i32, [base])
        state.begun.append((ring_type, base))
        if last:  # all rings begin before the threads have roles: they meet once
            _begin(builder, state)
            asm(builder, "bar.sync 0;" if state.cluster == 1 else _MEET, "~{memory}", _VOID, [], convergent=True)
            if state.early:
                early_starts.wait(builder)  # up to here nothing has touched what others write
        return base

    return ring_type, emit


def _flat(builder: ir.IRBuilder, kinds: tuple[types.Type, ...], values: tuple[ir.Value, ...]) -> list[ir.Value]:
    """The values, and those of tuples."""
    return [
        one
        for kind, value in zip(kinds, values, strict=True)
        for one in ([builder.extract_value(value, n) for n in range(len(kind))] if isinstance(kind, types.BaseTuple) else [value])
    ]


def _begin(builder: ir.IRBuilder, state: Pipelines) -> None:
    """Let one thread fetch the tensor maps and make the barriers of all rings."""
    arriving = current().config.num_warps
    variants = [variant for ring, _ in state.begun for variant in ring.variants]
    ways = [way for variant in variants for way in variant.ways if way.map is not None]
    maps = dict.fromkeys(number for way in ways for number in (way.map, way.last) if number is not None)
    with builder.if_then(builder.icmp_unsigned("==", special_register(builder, "tid.x"), integer(32, 0))):
        for number in maps:  # the first tiles come by them at once
            address = builder.ptrtoint(tensor_map_of(builder, number), i64)
            asm(builder, "prefetch.tensormap [$0];", "l,~{memory}", _VOID, [address], effect=True)
        for ring, base in state.begun:
            filling, emptying = ring.accelerated + state.producers * ring.copied, arriving * ring.cluster
            for stage in range(ring.stages):
                for barrier, arrivals in ((ring.full, filling), (ring.empty, emptying)):
                    text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
                    where = barrier(builder, base, integer(32, stage))
                    asm(builder, text, "r,~{memory}", _VOID, [where], effect=True)
        if state.target.tma:
            asm(builder, "fence.mbarrier_init.release.cluster;", "~{memory}", _VOID, [], effect=True)


@lowers(intrinsics.variant)
def variant(ring: types.Type, which: types.Type) -> Any:
    whole = the_ring(ring)
    other = RingType(whole.number, whole.stages, whole.variants, known(which))

    def emit(builder: ir.IRBuilder, base: ir.Value, _: ir.Value) -> ir.Value:
        current().note("ring", other)
        return base

    return other, emit


def behind_rooms(builder: ir.IRBuilder, offset: int) -> ir.Value:
    """An address so many bytes behind where the first stage lies; a multiple of 1024, if that is one."""
    before = the_pipelines().rooms + BARRIER_ROOM + RING_ALIGNMENT - 1
    first = builder.and_(builder.add(_dynamic(builder), integer(32, before)), integer(32, -RING_ALIGNMENT & 0xFFFFFFFF))
    return builder.add(first, integer(32, offset))


def _dynamic(builder: ir.IRBuilder) -> ir.Value:
    name = "tilekit_rings"
    buffer = builder.module.globals.get(name)
    if buffer is None:
        buffer = ir.GlobalVariable(builder.module, ir.ArrayType(i8, 0), name, addrspace=_SHARED)
        buffer.linkage, buffer.align = "external", 16
    return builder.ptrtoint(buffer, i32)


def the_ring(ty: types.Type) -> RingType:
    """`ty`, which is a ring's."""
    assert isinstance(ty, RingType), "passes.rings passes rings"
    return ty


def tensor_map_of(builder: ir.IRBuilder, number: int) -> ir.Value:
    """The kernel's parameter that is a tensor map. It is put behind its own, as soon as it is needed."""
    kernel = builder.function
    name = f"{MAP_NAME}{number}"
    for argument in kernel.args:
        if argument.name == name:
            return argument
    pointer = ir.PointerType(ir.ArrayType(i64, MAP_BYTES // 8))
    parameter = ir.Argument(kernel, pointer, name)
    kernel.args = (*kernel.args, parameter)
    kernel.ftype = ir.FunctionType(kernel.ftype.return_type, [*kernel.ftype.args, pointer])
    kernel.type = ir.PointerType(kernel.ftype)
    return parameter


def wait(builder: ir.IRBuilder, barrier: ir.Value, parity: ir.Value, what: str = "") -> None:
    """Wait until a barrier has passed the phase of a parity; `what` for is said in the PTX."""
    kind = "try_wait" if current().target.mbarrier_sleeps else "test_wait"
    text = f"{{ .reg .pred P; W${{:uid}}: mbarrier.{kind}.parity.shared::cta.b64 P, [$0], $1; @!P bra W${{:uid}}; }}{what}"
    asm(builder, text, "r,r,~{memory}", _VOID, [barrier, parity], effect=True)
