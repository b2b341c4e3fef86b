"""Lowering of `tilekit.lang.pipelines`: what `compiler.pipelines` makes of a loop over `tk.pipelined`.

Each ring has two barriers (PTX: mbarriers) a stage. One thread loads: it waits until a stage is `empty`, says how many bytes
will come, and has the tensor memory accelerator bring them, which counts them at the barrier `full`. Those that calculate wait
for that one, and each of their warps arrives at `empty` when it has read the stage. Barriers change phase each time they are
passed; so turn `n` waits for phase `n // stages` of stage `n % stages`, by its parity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model

from tilekit.compiler import pipelines as steps
from tilekit.compiler.diagnose import reject
from tilekit.compiler.layout import ACCESS_BYTES, WARP
from tilekit.compiler.lower.emit import asm, pack, special_register
from tilekit.compiler.lower.staged import LEAST_ROWS, StagedType, span_of
from tilekit.compiler.lower.views import TileGridType, TileRowType, all_of_grid, load_of_row, tiles_of_row
from tilekit.compiler.lower.warpgroups import OperandType, PendingType
from tilekit.compiler.ops import known, lowers, settled
from tilekit.compiler.pipelines import Unfit
from tilekit.compiler.types import RING_ALIGNMENT, Pipelines, current, describe, i8, i32, i64, integer
from tilekit.driver.tensormaps import MAP_BYTES, TensorMap
from tilekit.lang import pipelines as lang

__all__ = ["LOADERS", "MAP_NAME", "SHARED_BYTES", "WITH_TMA"]

SHARED_BYTES = 228 * 1024
"""What a block of sm_90 may take of shared memory, with the 1024 bytes that ptxas counts as its own."""
WITH_TMA = (9, 0)
"""The compute capability whose tensor memory accelerator is made use of."""
LOADERS = 128
"""Threads of a block besides those that calculate, of which one loads: registers are dealt out to four warps at a time."""
MAP_NAME = "tilekit_map_"
"""How the kernel's parameters for tensor maps are called, with a number each."""

_MOST_STAGES = 4  # unless more are asked for
_DEALT = 8  # warps that calculate, among which registers are dealt out anew
_REGISTERS = {steps.CALCULATES: 232, steps.LOADS: 40}  # of a thread; the block began with 168 for all
_OWN_BYTES = 2048  # that nearly all kernels need besides: ptxas's, barriers
_BARRIER = 8  # bytes
_MOST_READ = 32  # registers for a first operand that products of several turns share
_SHARED = 3  # the address space
_VOID = ir.VoidType()
_MEET = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"


@lowers(lang.pipelined)
def pipelined(streams: types.Type, stages: types.Type, warp_specialize: types.Type) -> Any:
    reject("pipelined", "stands in a for statement: for ta, tb in tk.pipelined(...):")


def _row(ty: types.Type) -> TileRowType:
    if isinstance(ty, TileGridType):
        return TileRowType(ty, tuple(range(ty.tensor.facts.rank)))
    if not isinstance(ty, TileRowType):
        reject("pipelined", lang.no_stream(describe(ty)))
    return ty


def _as_row(builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> ir.Value:
    return all_of_grid(builder, ty, value) if isinstance(ty, TileGridType) else value


def _shortest(builder: ir.IRBuilder, rows: Sequence[tuple[types.Type, ir.Value]]) -> ir.Value:
    counts = [tiles_of_row(builder, _row(ty), _as_row(builder, ty, value)) for ty, value in rows]
    least = counts[0]
    for count in counts[1:]:
        least = builder.select(builder.icmp_signed("<", count, least), count, least)
    return least


@lowers(steps._steps)
def count(*rows: types.Type) -> Any:
    if not rows:
        reject("pipelined", "at least one stream of tiles")
    for row in rows:
        _row(row)
    return types.int32, lambda builder, *values: _shortest(builder, list(zip(rows, values, strict=True)))


@lowers(steps._nth)
def nth(row: types.Type, k: types.Type) -> Any:
    tile, emit = load_of_row(_row(row))
    return tile, lambda builder, value, at: emit(builder, _as_row(builder, row, value), _i32(builder, at))


def _i32(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.trunc(value, i32) if value.type.width > 32 else value


# ---------------------------------------------------------------------------------------------------------------------- rings


class RingType(types.Type):
    """A ring of stages; the value is its address, an i32, a multiple of 1024.

    Attributes:
        number: which of the kernel's it is.
        stages: how many.
        tiles: what each stage has room for.
        maps: the numbers of their tensor maps.
        shared: which of them the blocks of a cluster load together; `cluster` is how many blocks that are, 1 if there are none.
    """

    mangling_args = ("G", ())

    def __init__(
        self,
        number: int,
        stages: int,
        tiles: tuple[StagedType, ...],
        maps: tuple[int, ...],
        shared: tuple[bool, ...],
        cluster: int,
    ) -> None:
        self.number, self.stages, self.tiles, self.maps, self.shared, self.cluster = number, stages, tiles, maps, shared, cluster
        super().__init__(f"Ring({number}, {stages}, {tiles}, {maps}, {shared}, {cluster})")

    @property
    def offsets(self) -> list[int]:
        """Where the stages of each tile begin, and where the last ends, in bytes."""
        return list(itertools.accumulate((self.stages * tile.nbytes for tile in self.tiles), initial=0))

    def full(self, builder: ir.IRBuilder, stage: ir.Value) -> ir.Value:
        """The address of a stage's barrier for what has come."""
        return _plus(builder, self._barriers(builder), 0, stage, _BARRIER)

    def empty(self, builder: ir.IRBuilder, stage: ir.Value) -> ir.Value:
        """The address of its barrier for what has been read."""
        return _plus(builder, self._barriers(builder), _BARRIER * self.stages, stage, _BARRIER)

    def _barriers(self, builder: ir.IRBuilder) -> ir.Value:
        name = f"tilekit_barriers{self.number}"
        found = builder.module.globals.get(name)
        if found is None:
            found = ir.GlobalVariable(builder.module, ir.ArrayType(i64, 2 * self.stages), name, addrspace=_SHARED)
            found.linkage, found.initializer, found.align = "internal", ir.Constant(found.value_type, ir.Undefined), _BARRIER
            current().static_bytes += 2 * _BARRIER * self.stages
        return builder.ptrtoint(found, i32)

    def stage(self, builder: ir.IRBuilder, turn: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The stage of a turn, and the parity of its phase."""
        turn, stages = _i32(builder, turn), integer(32, self.stages)
        return builder.urem(turn, stages), builder.and_(builder.udiv(turn, stages), integer(32, 1))


@register_model(RingType)
class _RingModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: RingType) -> None:
        super().__init__(manager, ty, i32)


def _plus(builder: ir.IRBuilder, base: ir.Value, offset: int, stage: ir.Value, nbytes: int) -> ir.Value:
    return builder.add(builder.add(base, integer(32, offset)), builder.mul(stage, integer(32, nbytes)))


def _staged(grid: types.Type, state: Pipelines, parts: int) -> tuple[StagedType, TensorMap]:
    """How tiles of a grid lie in a stage, and the tensor map that brings them, in so many parts."""
    if not isinstance(grid, TileGridType):
        raise Unfit("a stream is no tiles of a tensor")
    tensor, cut = grid.tensor, grid.cut
    facts, name, itemsize = tensor.facts, tensor.parameter, tensor.dtype.itemsize
    if not tensor.whole or name not in state.tensors:
        raise Unfit(f"{name} is a slice")
    if facts.role != "in":
        raise Unfit(f"{name} is written, too")
    if facts.unit is None or facts.wide or not 1 <= facts.rank <= 5:
        raise Unfit(f"{name} has no dimension of stride 1, more than 5 dimensions, or 2**31 elements in a row")
    if facts.align < ACCESS_BYTES:
        raise Unfit(f"{name} does not begin at a multiple of 16 bytes")
    if any(facts.strides[d] * itemsize % ACCESS_BYTES for d in range(facts.rank) if d != facts.unit):
        raise Unfit(f"rows of {name} are not multiples of 16 bytes apart")
    order = [facts.unit, *(d for d in reversed(range(facts.rank)) if d != facts.unit)]
    memory = tuple(cut.extents[d] for d in reversed(order))
    span = span_of(memory[-1] * itemsize)
    if span is None or not cut.shape or (max(cut.extents) > 256 and facts.unit != cut.extents.index(max(cut.extents))):
        raise Unfit(f"tiles of {name} have rows of {memory[-1] * itemsize} bytes")
    place = list(reversed(order))
    tile = StagedType(tensor.dtype, memory, tuple(place.index(d) for d in cut.along), tensor.config)
    if tile.rows < LEAST_ROWS or tile.nbytes % RING_ALIGNMENT or any(n > 256 for n in memory[:-1]):
        raise Unfit(f"tiles of {name} have {tile.rows} rows")
    box = [span // itemsize if d == facts.unit else n for d, n in enumerate(cut.extents)]
    if parts > 1 and not _by_panels(tile, parts):
        slowest = next((d for d in reversed(order) if d != facts.unit and cut.extents[d] > 1), None)
        if slowest is None or tile.rows % (parts * LEAST_ROWS) or box[slowest] % parts:
            raise Unfit(f"tiles of {name} cannot be loaded in {parts} parts")
        box[slowest] //= parts
    return tile, TensorMap(state.tensors[name][0], tensor.dtype.name, tuple(box), tuple(order), span)


def _by_panels(tile: StagedType, parts: int) -> bool:
    """Whether a tile has panels for each of so many parts."""
    return tile.panels % parts == 0


def _state() -> Pipelines:
    state = current().pipelines
    assert state is not None, "compiler.pipelines makes rings in kernels that are compiled with them"
    return state


@lowers(steps._ring)
def ring(number: types.Type, stages: types.Type, shared: types.Type, *grids: types.Type) -> Any:
    compilation, state = current(), _state()
    together = tuple(bool(known(shared) >> place & 1) for place in range(len(grids)))
    cluster = math.prod(*state.clusters.values()) if any(together) else 1
    state.cluster = max(state.cluster, cluster)
    found = [_staged(grid, state, cluster if each else 1) for grid, each in zip(grids, together, strict=True)]
    each = sum(tile.nbytes for tile, _ in found)
    most = SHARED_BYTES - _OWN_BYTES - RING_ALIGNMENT - state.rooms - state.kept
    room = most // state.rings & -RING_ALIGNMENT
    wanted = known(stages)  # 0 if as many as fit
    count = wanted or min(_MOST_STAGES, room // each)
    if not count:
        raise Unfit(f"a stage of {each} bytes does not fit into the shared memory that is left, {max(0, room)}")
    numbers = []
    for _, tensor_map in found:
        if tensor_map not in state.maps:
            state.maps.append(tensor_map)
        numbers.append(state.maps.index(tensor_map))
    made = RingType(known(number), count, tuple(tile for tile, _ in found), tuple(numbers), together, cluster)
    begin = state.rooms + state.ring_bytes

    def emit(builder: ir.IRBuilder, *_: ir.Value) -> ir.Value:
        for number in made.maps:
            _map(builder, number)
        state.ring_bytes += made.offsets[-1]
        compilation.note("ring", made)
        base = _dynamic(builder)
        aligned = builder.and_(builder.add(base, integer(32, RING_ALIGNMENT - 1)), integer(32, -RING_ALIGNMENT & 0xFFFFFFFF))
        base = builder.add(aligned, integer(32, begin))
        first = builder.icmp_unsigned("==", special_register(builder, "tid.x"), integer(32, 0))
        with builder.if_then(first):
            for stage in range(count):
                where = integer(32, stage)
                for barrier, arrivals in ((made.full, 1), (made.empty, compilation.config.num_warps * cluster)):
                    text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
                    asm(builder, text, "r,~{memory}", _VOID, [barrier(builder, where)], effect=True)
            asm(builder, "fence.mbarrier_init.release.cluster;", "~{memory}", _VOID, [], effect=True)
        asm(builder, "bar.sync 0;" if cluster == 1 else _MEET, "~{memory}", _VOID, [], convergent=True)
        return base

    return made, emit


def _dynamic(builder: ir.IRBuilder) -> ir.Value:
    name = "tilekit_rings"
    buffer = builder.module.globals.get(name)
    if buffer is None:
        buffer = ir.GlobalVariable(builder.module, ir.ArrayType(i8, 0), name, addrspace=_SHARED)
        buffer.linkage, buffer.align = "external", 16
    return builder.ptrtoint(buffer, i32)


@lowers(steps._role)
def role() -> Any:
    loader = current().config.num_threads

    def emit(builder: ir.IRBuilder) -> ir.Value:
        thread = special_register(builder, "tid.x")
        loads = builder.icmp_unsigned("==", thread, integer(32, loader))
        other = builder.select(loads, integer(32, steps.LOADS), integer(32, 2))
        return builder.select(builder.icmp_unsigned("<", thread, integer(32, loader)), integer(32, steps.CALCULATES), other)

    return types.int32, emit


def _ring_type(ty: types.Type) -> RingType:
    assert isinstance(ty, RingType), "compiler.pipelines passes rings"
    return ty


@lowers(steps._registers)
def registers(role: types.Type) -> Any:
    mine = known(role)
    text = f"setmaxnreg.{'inc' if mine == steps.CALCULATES else 'dec'}.sync.aligned.u32 {_REGISTERS[mine]};"

    def emit(builder: ir.IRBuilder, _: ir.Value) -> None:
        if current().config.num_warps == _DEALT:
            asm(builder, text, "~{memory}", _VOID, [], convergent=True)

    return types.none, emit


@lowers(steps._put)
def put(ring: types.Type, turn: types.Type, k: types.Type, *rows: types.Type) -> Any:
    made = _ring_type(ring)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, k: ir.Value, *values: ir.Value) -> None:
        stage, parity = made.stage(builder, turn)
        full = made.full(builder, stage)
        # Nobody has arrived before the first phase: who waits for the one before that does not wait.
        _wait(builder, made.empty(builder, stage), builder.xor(parity, integer(32, 1)))
        nbytes = sum(tile.nbytes for tile in made.tiles)
        text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {nbytes};"
        asm(builder, text, "r,~{memory}", _VOID, [full], effect=True)
        at = _i32(builder, k)
        for place, (ty, value) in enumerate(zip(rows, values, strict=True)):
            row, tile = _row(ty), made.tiles[place]
            index = row.index(builder, _as_row(builder, ty, value), at)
            target = _plus(builder, base, made.offsets[place], stage, tile.nbytes)
            _load(builder, row, tile, made.maps[place], target, full, index, made.cluster if made.shared[place] else 1)

    return types.none, emit


def _load(
    builder: ir.IRBuilder,
    row: TileRowType,
    tile: StagedType,
    number: int,
    target: ir.Value,
    full: ir.Value,
    index: list[ir.Value],
    parts: int,
) -> None:
    """Have a tile brought: a copy for each panel. If it comes in `parts`, each block of the cluster has one brought to all."""
    cut, facts = row.grid.cut, row.grid.tensor.facts
    order = _state().maps[number].order
    begins = [builder.mul(index[d], integer(32, cut.steps[d])) for d in range(facts.rank)]
    step, rank = tile.span // tile.dtype.itemsize, len(order)
    tensor_map = builder.ptrtoint(_map(builder, number), i64)
    coordinates = ", ".join(f"${3 + d}" for d in range(rank))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {{{coordinates}}}], [$2];"
    )
    where = [begins[d] for d in order]
    panels = tile.panels
    if parts > 1:
        block = asm(builder, "mov.u32 $0, %cluster_ctarank;", "=r", i32, [])
        head, _, tail = text.partition(" [$0]")
        copy = f"{head}.multicast::cluster [$0]{tail.removesuffix(';')}, all;"
        text = f"{{ .reg .b16 all; mov.b16 all, {(1 << parts) - 1}; {copy} }}"
        if _by_panels(tile, parts):
            panels //= parts
            where[0] = builder.add(where[0], builder.mul(block, integer(32, panels * step)))
            ahead = panels * tile.rows * tile.span
        else:
            box = _state().maps[number].box
            slowest = next(n for n in reversed(range(1, len(order))) if row.grid.cut.extents[order[n]] > box[order[n]])
            where[slowest] = builder.add(where[slowest], builder.mul(block, integer(32, box[order[slowest]])))
            ahead = tile.rows // parts * tile.span
        target = builder.add(target, builder.mul(block, integer(32, ahead)))
    for panel in range(panels):
        moved = [builder.add(where[0], integer(32, panel * step)), *where[1:]]
        address = builder.add(target, integer(32, panel * tile.rows * tile.span))
        asm(
            builder,
            text,
            ",".join(["r", "l", "r", *["r"] * rank, "~{memory}"]),
            _VOID,
            [address, tensor_map, full, *moved],
            effect=True,
        )


def _map(builder: ir.IRBuilder, number: int) -> ir.Value:
    """The kernel's parameter that is a tensor map. It is put behind its own, as soon as it is needed."""
    kernel = builder.function
    name = f"{MAP_NAME}{number}"
    for argument in kernel.args:
        if argument.name == name:
            return argument
    pointer = ir.PointerType(ir.ArrayType(i64, MAP_BYTES // 8))
    made = ir.Argument(kernel, pointer, name)
    kernel.args = (*kernel.args, made)
    kernel.ftype = ir.FunctionType(kernel.ftype.return_type, [*kernel.ftype.args, pointer])
    kernel.type = ir.PointerType(kernel.ftype)
    return made


def _wait(builder: ir.IRBuilder, barrier: ir.Value, parity: ir.Value) -> None:
    """Wait until a barrier has passed the phase of a parity."""
    text = "{ .reg .pred P; W${:uid}: mbarrier.try_wait.parity.shared::cta.b64 P, [$0], $1; @!P bra W${:uid}; }"
    asm(builder, text, "r,r,~{memory}", _VOID, [barrier, parity], effect=True)


@lowers(steps._end)
def end() -> Any:
    def emit(builder: ir.IRBuilder) -> None:
        if _state().cluster > 1:
            asm(builder, "barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire;", "~{memory}", _VOID, [], convergent=True)

    return types.none, emit


@lowers(steps._take)
def take(ring: types.Type, turn: types.Type) -> Any:
    made = _ring_type(ring)
    result = made.tiles[0] if len(made.tiles) == 1 else types.BaseTuple.from_types(list(made.tiles))

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value) -> ir.Value:
        _state().products.clear()
        stage, parity = made.stage(builder, turn)
        _wait(builder, made.full(builder, stage), parity)
        tiles = zip(made.tiles, made.offsets, strict=False)
        places = [_plus(builder, base, begin, stage, tile.nbytes) for tile, begin in tiles]
        if len(places) == 1:
            return places[0]
        alike = isinstance(result, types.UniTuple)
        packed: Any = ir.Constant(
            ir.ArrayType(i32, len(places)) if alike else ir.LiteralStructType([i32] * len(places)), ir.Undefined
        )
        for n, place in enumerate(places):
            packed = builder.insert_value(packed, place, n)
        return packed

    return result, emit


def _given(builder: ir.IRBuilder, ring: RingType, turn: ir.Value) -> None:
    """A warp is done with the tiles of a turn."""
    stage, _ = ring.stage(builder, turn)
    # Products have been waited for, which leaves nothing to order. What threads read by themselves has to have been read before
    # the accelerator writes there: it is another proxy, and a barrier alone does not wait for loads that are under way.
    read = _state().read
    text = "fence.proxy.async.shared::cta; " * read + "bar.warp.sync -1; "
    if ring.cluster == 1:
        text += "@P mbarrier.arrive.shared::cta.b64 _, [$0];"
    else:
        arrive = f"mbarrier.arrive.{'release' if read else 'relaxed'}.cluster.shared::cluster.b64"
        text += f"@P mapa.shared::cluster.u32 there, $0, $1; @P {arrive} _, [there];"
    text = f"{{ .reg .pred P; .reg .b32 there; setp.lt.u32 P, $1, {ring.cluster}; {text} }}"
    lane = builder.and_(special_register(builder, "tid.x"), integer(32, WARP - 1))
    asm(builder, text, "r,r,~{memory}", _VOID, [ring.empty(builder, stage), lane], convergent=True)


def _products(builder: ir.IRBuilder, left: int) -> None:
    """Wait until at most so many of the products that were asked for are under way."""
    asm(builder, f"wgmma.wait_group.sync.aligned {left};", "~{memory}", _VOID, [], convergent=True)


@lowers(steps._operand, deferred=True)
def operand(tile: types.Type) -> Any:
    found = OperandType.of(settled(tile) if isinstance(tile, StagedType) else tile)
    # A tile in shared memory is read once if that takes few registers: products need not read it there in each turn.
    if found is None or (isinstance(tile, StagedType) and found.count > _MOST_READ):
        return tile, lambda builder, value: value
    return found, lambda builder, value: pack(builder, found.words(builder, tile, value))


@lowers(steps._settled, deferred=True)
def settled_product(product: types.Type, *later: types.Type) -> Any:
    left = sum(isinstance(ty, PendingType) for ty in later)
    if isinstance(product, PendingType):
        return product.settled, lambda builder, value, *_: product.settle(builder, value, left)
    return product, lambda builder, value, *_: value


@lowers(steps._give)
def give(ring: types.Type, turn: types.Type, k: types.Type, lines: types.Type) -> Any:
    made = _ring_type(ring)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, k: ir.Value, _: ir.Value) -> None:
        state = _state()
        left = _left(known(lines))
        most = 1 if left and made.stages > 1 and _lags(known(lines)) else 0
        if left > most:
            _products(builder, most)
        state.left[made.number] = most
        if not most:
            _given(builder, made, turn)
            return
        with builder.if_then(builder.icmp_signed(">", k, ir.Constant(k.type, 0))):
            _given(builder, made, builder.sub(turn, ir.Constant(turn.type, 1)))

    return types.none, emit


def _lags(lines: tuple[int, ...]) -> bool:
    """Whether warpgroups are asked for a product in each turn: on one of the lines of its own statements."""
    return any(left is None and line in lines for line, left in _state().products)


def _left(lines: tuple[int, ...]) -> int:
    """How many products may be under way at the end of a turn, whose own statements are on these lines."""
    most = 1  # from the turn before
    for line, left in _state().products:
        if left is None:
            most += 1
        elif line in lines:
            most = min(most, left)
    return most


@lowers(steps._last)
def last(ring: types.Type, turn: types.Type, k: types.Type, lines: types.Type) -> Any:
    made = _ring_type(ring)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, k: ir.Value, _: ir.Value) -> None:
        if not _state().left[made.number]:
            return
        _products(builder, 0)
        with builder.if_then(builder.icmp_signed(">", k, ir.Constant(k.type, 0))):
            _given(builder, made, builder.sub(turn, ir.Constant(turn.type, 1)))

    return types.none, emit
