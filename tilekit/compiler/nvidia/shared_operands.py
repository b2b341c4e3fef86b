"""Double-buffered operands in shared memory: second operands of products that threads hold, put where warpgroups read them.

In a turn of a pipelined loop they take turns at two places: a turn writes where the product of the turn before the last read.
Between the two all threads have met, after each had waited for that product; so one barrier a turn is enough, behind the writes.
Only there the product of the last turn is waited for: while an operand is read, turned and written, that is under way.
That holds for statements that run once in each turn; others have one place, and a barrier on both sides of the writes.
"""

from __future__ import annotations

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.compilation import Asked, Pipelines, Turn, current, own_line
from tilekit.compiler.codegen.convert_layout import InShared, accesses
from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.codegen.types import TileType, integer
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.nvidia.multibuffer import behind_rooms
from tilekit.compiler.nvidia.staged import LEAST_ROWS, SPANS, StagedType

__all__ = ["asked_in_turn", "own_turn", "park", "parked", "turned_over"]

_MOST_BYTES = 32 * 1024  # of a tile, which has two places
_TURNED_ITEMSIZE, _TURNED_ROWS = 4, 16  # whole banks; of fewer rows, four lanes or more would write to the same one
_LANES = 32
_VOID = ir.VoidType()


def parked(tile: TileType) -> StagedType | str:
    """How a tile lies in shared memory when a product reads it there; or why none does."""
    if current().pipelines is None:
        return "b is in registers, and no loop of the kernel has a ring"
    if tile.dtype not in (dtypes.float16, dtypes.bfloat16):
        return f"b is in registers, from where float16 and bfloat16 are put into shared memory for it, not {tile.dtype.name}"
    if tile.splat:
        return "b is in registers, from where tiles are put into shared memory for it, not equal elements"
    near = next((d for d in (1, 0) if tile.layout.run(d)), None)  # words of neighbours that a thread holds
    if near is None or tile.shape[near] * tile.dtype.itemsize % SPANS[-1] or tile.shape[1 - near] < LEAST_ROWS:
        return f"b is in registers, and has not {LEAST_ROWS} rows of {SPANS[-1]} bytes to be put into shared memory with"
    far = 1 - near
    lies = StagedType(tile.dtype, (tile.shape[far], tile.shape[near]), (far, near), tile.config)
    return lies if lies.nbytes <= _MOST_BYTES else f"b is in registers, and takes more shared memory than {_MOST_BYTES} bytes"


def turned_over(staged: StagedType) -> tuple[Layout, StagedType] | str:
    """How threads take a tile out of its stage so that its columns, where the tensor's neighbours lie, become rows in shared
    memory, and how it lies there; or why not.

    A lane reads 16 bytes of a row, and lanes beside it those of the next rows; it writes four elements, of one column each.
    Reading, lanes meet no bank conflict, nor do they writing 32 elements of a column, which are 128 bytes; where columns have 16,
    two lanes write to each bank.
    """
    (deep, wide), warps = staged.shape, staged.config.num_warps.bit_length() - 1
    needs = f"b of {staged.dtype.name} needs its k contiguous in memory"
    if staged.dtype.itemsize != _TURNED_ITEMSIZE:
        return needs
    lies = StagedType(staged.dtype, (wide, deep), (1, 0), staged.config)
    rows, columns = ([(1 << n, 0) for n in range(deep.bit_length() - 1)], [(0, 1 << n) for n in range(wide.bit_length() - 1)])
    taken = 2 if max(deep, _TURNED_ROWS) >= _LANES else 3  # so many bits of the column are a thread's and a lane's
    lane, warp = (*rows[:5], *columns[2:taken]), columns[taken : taken + warps]
    if deep < _TURNED_ROWS or len(warp) < warps or lies.nbytes > _MOST_BYTES:
        limits = f"{_TURNED_ROWS} or more of k, {1 << taken + warps} or more columns, and {_MOST_BYTES} bytes at most"
        return f"{needs}, or {limits}, to be turned over"
    return Layout(staged.shape, (*columns[:2], *columns[taken + warps :], *rows[5:]), lane, tuple(warp)), lies


def park(builder: ir.IRBuilder, tile: TileType, elements: list[ir.Value], lies: StagedType) -> tuple[ir.Value, str]:
    """Put a tile, given by register, into shared memory. All threads that calculate take part.

    Returns:
        Its address, an i32, and the name of its place.
    """
    state = current().pipelines
    assert state is not None, "looked at by `parked`"
    turn, waited = own_turn(state), False
    if turn is not None:
        base, name = _reserved(builder, state, (turn.ring, turn.parked, lies.room), 2 * lies.room)
        base = builder.add(base, builder.mul(builder.and_(turn.number, integer(32, 1)), integer(32, lies.room)))
        turn.parked += 1
        left, waited = asked_in_turn(state, turn.lines)
    else:
        base, name = _reserved(builder, state, (len(state.places),), lies.room)
        asm(builder, "wgmma.wait_group.sync.aligned 0;", "~{memory}", _VOID, [], convergent=True)
        shared.barrier(builder)
    asm(builder, f"// park {name} {'fixed' if turn is None else 'turns'}", "~{memory}", _VOID, [], effect=True)
    way = InShared(tile.dtype, lies.swizzle(), tile.layout)
    for registers, address, offset in accesses(builder, base, tile.dtype.itemsize, way.swizzle, tile.layout):
        shared.put(builder, address, offset, tile.dtype, [elements[r] for r in registers])
    asm(builder, "fence.proxy.async.shared::cta;", "~{memory}", _VOID, [], effect=True)
    if turn is not None:  # it orders what was read of the turn's tiles, too, before all threads meet
        state.unfenced.discard(turn.ring)
        state.read.discard(turn.ring)
        if not waited:
            asm(builder, f"wgmma.wait_group.sync.aligned {left};", "~{memory}", _VOID, [], convergent=True)
    shared.barrier(builder)
    return base, name


def _reserved(builder: ir.IRBuilder, state: Pipelines, key: tuple[int, ...], nbytes: int) -> tuple[ir.Value, str]:
    """The address of so much shared memory, that is used for nothing but this, and its name."""
    if key not in state.places:
        state.places[key] = state.ring_bytes + state.parked_bytes
        state.parked_bytes += nbytes
    return behind_rooms(builder, state.places[key]), f"P{list(state.places).index(key)}"


def own_turn(state: Pipelines) -> Turn | None:
    """The turn in which the statement that is being lowered runs once; None if it may run more or less often."""
    return state.turn if state.turn is not None and own_line() in state.turn.lines else None


def asked_in_turn(state: Pipelines, lines: tuple[int, ...]) -> tuple[int, bool]:
    """How many products this turn has asked for, at least; and whether it has waited for those of the turns before."""
    asked, waited = 0, False
    for step in state.products:
        if step.line in lines:
            if isinstance(step, Asked):
                asked += 1
            else:
                waited |= step.left <= asked
    return asked, waited
