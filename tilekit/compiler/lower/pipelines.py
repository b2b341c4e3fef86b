"""Lowering of pipeline intrinsics (`tk.pipelined`): producers issue copies into stages, consumers wait and release.

`passes.rings` makes them of a loop, see there. Rings are of `nvidia.multibuffer`, and filled by `nvidia.stage_copies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit.compiler.codegen.compilation import Asked, Turn, Waited, current
from tilekit.compiler.codegen.definition import known, lowers, materialized
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import asm, pack, special_register
from tilekit.compiler.codegen.shared_memory import barrier
from tilekit.compiler.codegen.types import describe, i32, i64, integer
from tilekit.compiler.codegen.view_types import TileGridType, TileRowType
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP
from tilekit.compiler.lower.atomic import SCOPES, look
from tilekit.compiler.lower.indexed import check_points, index_parts
from tilekit.compiler.lower.views import all_of_grid, load_of_row, tiles_of_row
from tilekit.compiler.nvidia import fewer_rows
from tilekit.compiler.nvidia.multibuffer import RingType, narrow, the_pipelines, the_ring, wait
from tilekit.compiler.nvidia.stage_copies import fill, one_producer
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.compiler.nvidia.vectors import StagedVectorType
from tilekit.compiler.nvidia.wgmma import forget
from tilekit.compiler.nvidia.wgmma_types import AbreastType, OperandType, PendingType, joined, split
from tilekit.compiler.passes.rings import Unfit
from tilekit.compiler.target import Target
from tilekit.lang import pipelines as lang

# By the warps that calculate: what a thread that loads keeps when registers are dealt out anew. If one thread has tiles brought,
# it needs few; if all copy, they need addresses; if sums of several products are carried round, it has to make do.
_PRODUCER_REGISTERS = {4: (40, 72, 24), 8: (40, 72, 24), 16: (32, 64, 32)}
_SUMMING = 40  # of a thread that copies words for others that multiply and add by themselves: these hold two turns of operands
_FEW_PRODUCTS = 3  # of a turn: two to make something of, and one of that
# Registers for a first operand that products of several turns share, and the warps whose threads have them to spare.
_MOST_READ, _MOST_READERS = 32, 8
_VOID = ir.VoidType()


@lowers(lang.pipelined)
def pipelined(streams: types.Type, stages: types.Type, warp_specialize: types.Type, rotate: types.Type, split: types.Type) -> Any:
    reject("pipelined", lang.PLACE)


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
    if _turns(ty for ty, _ in rows) == i64:
        counts = [count if count.type == i64 else builder.zext(count, i64) for count in counts]
    least = counts[0]
    for count in counts[1:]:
        least = builder.select(builder.icmp_signed("<", count, least), count, least)
    return least


def _turns(rows: Iterable[types.Type]) -> ir.Type:
    """The LLVM type of the number of turns of a loop over rows of tiles."""
    return i64 if any(_row(row).width == i64 for row in rows) else i32


@lowers(intrinsics.steps)
def count(*rows: types.Type) -> Any:
    if not rows:
        reject("pipelined", "at least one stream of tiles")
    for row in rows:
        _row(row)
    turns = types.int64 if _turns(rows) == i64 else types.int32
    return turns, lambda builder, *values: _shortest(builder, list(zip(rows, values, strict=True)))


@lowers(intrinsics.counted)
def counted(turns: types.Type) -> Any:
    return types.int32, lambda builder, value: narrow(builder, value)


@lowers(intrinsics.nth)
def nth(row: types.Type, k: types.Type) -> Any:
    tile, emit = load_of_row(_row(row))
    return tile, lambda builder, value, at: emit(builder, _as_row(builder, row, value), _tile_index(builder, row, at))


def _tile_index(builder: ir.IRBuilder, row: types.Type, k: ir.Value) -> ir.Value:
    """The number of a turn as the index of its tile in a row."""
    return narrow(builder, k) if _row(row).width == i32 else k if k.type == i64 else builder.zext(k, i64)


@lowers(intrinsics.role)
def role() -> Any:
    first_producer = current().config.num_threads

    def emit(builder: ir.IRBuilder) -> ir.Value:
        consumes = builder.icmp_unsigned("<", special_register(builder, "tid.x"), integer(32, first_producer))
        other: ir.Value = integer(32, intrinsics.PRODUCER)
        if not the_pipelines().copied:
            other = builder.select(one_producer(builder), other, integer(32, 2))
        return builder.select(consumes, integer(32, intrinsics.CONSUMER), other)

    return types.int32, emit


def _dealt(target: Target, blocks: int, consumers: int, producers: int, few: int) -> dict[int, int]:
    """Registers of a thread (setmaxnreg), by its role, if producers give away all but a `few` of what all began with.

    So many blocks share a multiprocessor.
    """
    unit = target.register_unit
    rest = target.registers_of(blocks * (consumers + producers)) * (consumers + producers) - few * producers
    rest = min(target.thread_registers, rest // consumers) // unit * unit
    return {intrinsics.CONSUMER: rest, intrinsics.PRODUCER: few}


@lowers(intrinsics.registers)
def registers(role: types.Type, products: types.Type) -> Any:
    mine, many, warps = known(role), known(products) > _FEW_PRODUCTS, current().config.num_warps

    def emit(builder: ir.IRBuilder, *_: ir.Value) -> None:
        state = the_pipelines()
        if warps in _PRODUCER_REGISTERS and state.deals:
            few = _PRODUCER_REGISTERS[warps][1 if state.copied else 2 * many]
            few = (_SUMMING if state.copied and state.summed else few) + state.spare
            count = _dealt(state.target, state.resident, warps * WARP, state.producers, few)[mine]
            text = f"setmaxnreg.{'inc' if mine == intrinsics.CONSUMER else 'dec'}.sync.aligned.u32 {count};"
            asm(builder, text, "~{memory}", _VOID, [], convergent=True)

    return types.none, emit


@lowers(intrinsics.peek)
def peek(tensor: types.Type, indices: types.Type, scope: types.Type) -> Any:
    points = check_points("atomic_add", tensor, indices, types.none, writing=True)
    kind = f"acquire.{SCOPES[known(scope)]}"

    def emit(builder: ir.IRBuilder, value: ir.Value, at: ir.Value, _: ir.Value) -> ir.Value:
        access = points.open(builder, value, index_parts(builder, indices, at), at, writing=False, limit=1)
        (slot,) = access.full
        element = look(builder, points.tensor.dtype, kind, slot)
        if the_pipelines().target.wgmma:  # copies by the accelerator read through another proxy
            asm(builder, "fence.proxy.async.global;", "~{memory}", _VOID, [], effect=True)
        return pack(builder, [element])

    return points.tile, emit


def _wait_until_empty(builder: ir.IRBuilder, ring: RingType, base: ir.Value, turn: ir.Value) -> ir.Value:
    """Wait until the stage of a turn is empty; which it is."""
    stage, parity = ring.stage(builder, turn)
    # Nobody has arrived before the first phase: who waits for the one before that does not wait.
    wait(builder, ring.empty(builder, base, stage), builder.xor(parity, integer(32, 1)))
    return stage


@lowers(intrinsics.clear)
def clear(ring: types.Type, turn: types.Type, k: types.Type, *rows: types.Type) -> Any:
    ring_type = the_ring(ring)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, k: ir.Value, *values: ir.Value) -> None:
        fewer = _fewer(builder, ring_type, rows, values)
        if any(fewer):
            most = ir.Constant(k.type, ring_type.stages)
            stages = narrow(builder, builder.select(builder.icmp_signed("<", k, most), k, most))

            def places(further: ir.Value) -> list[ir.Value]:
                stage, _ = ring_type.stage(builder, builder.add(narrow(builder, turn), further))
                return ring_type.places(builder, base, stage)

            fewer_rows.clear(builder, stages, places, list(zip(ring_type.tiles, fewer, strict=True)))

    return types.none, emit


def _fewer(
    builder: ir.IRBuilder, ring: RingType, rows: Sequence[types.Type], values: Sequence[ir.Value]
) -> list[fewer_rows.Fewer | None]:
    """Whether the tiles of each stream of a loop have fewer rows than others; None if they never have."""
    return [
        of and of.fewer(builder, tile, _row(ty), _as_row(builder, ty, value))
        for of, tile, ty, value in zip(the_pipelines().rows[ring.number, ring.which], ring.tiles, rows, values, strict=True)
    ]


@lowers(intrinsics.put)
def put(ring: types.Type, turn: types.Type, k: types.Type, *rows: types.Type) -> Any:
    ring_type = the_ring(ring)
    for tensor, way in zip((_row(row).grid.tensor for row in rows), ring_type.ways, strict=True):
        # The ring is that of the whole tensor, of which this may be the rest. The accelerator's boxes begin where copies of 16
        # bytes would: at others, it stops the kernel (an illegal instruction).
        least = ACCESS_BYTES if way.map is not None else way.nbytes
        if tensor.facts.align < least:
            begins = f"may begin at a multiple of {tensor.facts.align} bytes"
            raise Unfit(f"{tensor.parameter} is a slice that {begins}; copies are of {least}")

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, k: ir.Value, *values: ir.Value) -> None:
        stage = _wait_until_empty(builder, ring_type, base, turn)
        row_values = [(_row(ty), _as_row(builder, ty, value)) for ty, value in zip(rows, values, strict=True)]
        indices = [row.index(builder, value, _tile_index(builder, row, k)) for row, value in row_values]
        fewer = _fewer(builder, ring_type, rows, values)
        streams = [(*one, index, few) for one, index, few in zip(row_values, indices, fewer, strict=True)]
        fill(builder, ring_type, base, stage, streams)

    return types.none, emit


@lowers(intrinsics.drain)
def drain(ring: types.Type, turn: types.Type) -> Any:
    ring_type = the_ring(ring)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value) -> None:
        for further in range(ring_type.stages):
            _wait_until_empty(builder, ring_type, base, builder.add(turn, ir.Constant(turn.type, further)))

    return types.none, emit


@lowers(intrinsics.end)
def end() -> Any:
    def emit(builder: ir.IRBuilder) -> None:
        if the_pipelines().copied:  # nobody is gone while copies are on their way
            asm(builder, "cp.async.wait_all;", "~{memory}", _VOID, [], effect=True)

    return types.none, emit


@lowers(intrinsics.take)
def take(ring: types.Type, turn: types.Type, lines: types.Type) -> Any:
    ring_type = the_ring(ring)
    tiles = [StagedVectorType.of(tile) if tile.is_vector else tile for tile in ring_type.tiles]
    result = tiles[0] if len(tiles) == 1 else types.BaseTuple.from_types(tiles)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, _: ir.Value) -> ir.Value:
        state = the_pipelines()
        state.products.clear()
        state.turn = Turn(ring_type.number, narrow(builder, turn), known(lines))
        stage, parity = ring_type.stage(builder, turn)
        wait(builder, ring_type.full(builder, base, stage), parity, f" // take R{ring_type.number}")
        if ring_type.copied and state.target.wgmma:  # which reads through another proxy than threads copy
            asm(builder, "fence.proxy.async.shared::cta;", "~{memory}", _VOID, [], effect=True)
        addresses = ring_type.places(builder, base, stage)
        if len(addresses) == 1:
            return addresses[0]
        alike = isinstance(result, types.UniTuple)
        packed: Any = ir.Constant(
            ir.ArrayType(i32, len(addresses)) if alike else ir.LiteralStructType([i32] * len(addresses)), ir.Undefined
        )
        for n, address in enumerate(addresses):
            packed = builder.insert_value(packed, address, n)
        return packed

    return result, emit


def _release(builder: ir.IRBuilder, ring: RingType, base: ir.Value, turn: ir.Value, which: str) -> None:
    """A consumer warp releases the stage of a turn: the last that it took ("now"), or the one before that ("before")."""
    stage, _ = ring.stage(builder, turn)
    # Products have been waited for, which leaves nothing to order; but no thread of the warp may still wait for this turn's tiles
    # when those of another come. What threads read by themselves has to have been read before the accelerator writes there, which
    # is another proxy: a barrier alone does not wait for loads that are under way. Copies by threads are of the same proxy.
    state = the_pipelines()
    text = "fence.proxy.async.shared::cta; " * (ring.number in state.unfenced and ring.accelerated) + "bar.warp.sync -1; "
    if ring.cluster == 1:
        text += "@P mbarrier.arrive.shared::cta.b64 _, [$0];"
    else:
        arrive = f"mbarrier.arrive.{'release' if ring.number in state.read else 'relaxed'}.cluster.shared::cluster.b64"
        text += f"@P mapa.shared::cluster.u32 there, $0, $1; @P {arrive} _, [there];"
    text = f"{{ .reg .pred P; .reg .b32 there; setp.lt.u32 P, $1, {ring.cluster}; {text} }} // give R{ring.number} {which}"
    lane = builder.and_(special_register(builder, "tid.x"), integer(32, WARP - 1))
    asm(builder, text, "r,r,~{memory}", _VOID, [ring.empty(builder, base, stage), lane], convergent=True)


def _products(builder: ir.IRBuilder, left: int) -> None:
    """Wait (wgmma.wait_group) until at most so many of the products that were asked for are under way."""
    if not current().target.wgmma:  # none ever is
        return
    asm(builder, f"wgmma.wait_group.sync.aligned {left};", "~{memory}", _VOID, [], convergent=True)


@lowers(intrinsics.operand, deferred=True)
def operand(tile: types.Type, renewed: types.Type) -> Any:
    operand_type = OperandType.of(materialized(tile) if isinstance(tile, StagedType) else tile, renewed=bool(known(renewed)))
    # A tile in shared memory is read once if that takes few registers: products need not read it there in each turn.
    spared = _MOST_READ if current().config.num_warps <= _MOST_READERS else 0
    if operand_type is None or (isinstance(tile, StagedType) and operand_type.count > spared):
        return tile, lambda builder, value, _: value
    if isinstance(tile, StagedType):
        operand_type = operand_type.short(tile.present(1))
    return operand_type, lambda builder, value, _: pack(builder, operand_type.words(builder, tile, value))


@lowers(intrinsics.operand_tile, deferred=True)
def operand_tile(tile: types.Type) -> Any:
    held = OperandType.of(tile.materialized) if isinstance(tile, StagedType) else None
    if held is None:
        return tile, lambda builder, value: value
    layout = held.materialized.layout
    return held.materialized, lambda builder, value: pack(builder, tile.read(builder, value, layout, matrices=True))


@lowers(intrinsics.wait_product, deferred=True)
def wait_product(product: types.Type, *later: types.Type) -> Any:
    left = sum(_under_way(ty) for ty in later)
    if isinstance(product, AbreastType):
        waited = AbreastType(tuple(getattr(part, "materialized", part) for part in product.parts))

        def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
            parts = zip(product.parts, split(builder, value), strict=True)
            return joined(builder, [wait_product(part, *later)[1](builder, each) for part, each in parts])

        return waited, emit
    if isinstance(product, PendingType):
        return product.materialized, lambda builder, value, *_: product.materialize(builder, value, left)
    return product, lambda builder, value, *_: value


def _under_way(ty: types.Type) -> bool:
    """Whether it is a product that may be under way; products abreast are one."""
    return isinstance(ty, PendingType) or (isinstance(ty, AbreastType) and _under_way(ty.parts[0]))


@lowers(intrinsics.give)
def give(ring: types.Type, turn: types.Type, k: types.Type, lines: types.Type) -> Any:
    ring_type = the_ring(ring)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, k: ir.Value, _: ir.Value) -> None:
        state = the_pipelines()
        state.parking[ring_type.number] = state.turn is not None and state.turn.parked > 0
        state.turn = None
        left = _left(known(lines))
        under_way = 1 if left and known(k) != 0 and _lags(known(lines), ring_type.stages) else 0
        if left > under_way:
            _products(builder, under_way)
        state.left[ring_type.number] = under_way
        # Of the products that a turn asks for, the last alone may be under way behind its end.
        computed = _own(known(lines))[-1].computed if under_way else None
        state.operands[ring_type.number] = [] if computed is None else [computed.keep(builder)]
        if not under_way:
            _release(builder, ring_type, base, turn, "now")
            return
        with builder.if_then(builder.icmp_signed(">", k, ir.Constant(k.type, 0))):
            _release(builder, ring_type, base, builder.sub(turn, ir.Constant(turn.type, 1)), "before")

    return types.none, emit


def _own(lines: tuple[int, ...]) -> list[Asked]:
    """The products that a turn asks for by its own statements, which are on these lines."""
    return [step for step in the_pipelines().products if isinstance(step, Asked) and step.line in lines]


def _lags(lines: tuple[int, ...], stages: int) -> bool:
    """Whether a product stays under way until the next turn ends: warpgroups are asked for one in each turn, on one of the lines
    of its own statements; the last one reads no registers that are written where turns meet; if its operand is computed, it may
    have registers to itself; and if there are but two stages, they are asked for nothing else: a turn in which threads wait, and
    go on, ends too late to load the next tiles."""
    asked, state = _own(lines), the_pipelines()
    if not asked or asked[-1].renewed or (not state.apart and asked[-1].computed is not None):
        return False
    waits = any(isinstance(step, Waited) and step.line in lines for step in state.products)
    return stages > (2 if waits else 1)


def _left(lines: tuple[int, ...]) -> int:
    """How many products may be under way at the end of a turn, whose own statements are on these lines."""
    under_way = 1  # from the turn before
    for step in the_pipelines().products:
        if isinstance(step, Asked):
            under_way += 1
        elif step.line in lines:
            under_way = min(under_way, step.left)
    return under_way


@lowers(intrinsics.last)
def last(ring: types.Type, turn: types.Type, k: types.Type, lines: types.Type) -> Any:
    ring_type = the_ring(ring)

    def emit(builder: ir.IRBuilder, base: ir.Value, turn: ir.Value, k: ir.Value, _: ir.Value) -> None:
        state = the_pipelines()
        lags = state.left[ring_type.number] > 0
        if lags:
            _products(builder, 0)
        forget(builder, state.operands[ring_type.number])
        if state.parking[ring_type.number]:  # the places may serve another loop
            barrier(builder)
        if not lags:
            return
        with builder.if_then(builder.icmp_signed(">", k, ir.Constant(k.type, 0))):
            _release(builder, ring_type, base, builder.sub(turn, ir.Constant(turn.type, 1)), "now")

    return types.none, emit
