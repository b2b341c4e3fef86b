"""Products by warpgroups (wgmma, sm_90a): four warps multiply tiles in shared memory, and go on before the result is there.

What such an instruction gives is a tile under way (`PendingType`). The next product may be added to it as it is; whatever else
needs it waits. `a` and `b` are described to the instruction by 64 bits each: where the tile begins, how wide its panels
are (128, 64 or 32 bytes: see `staged`), and how far rows and panels are apart, in units of 16 bytes (PTX ISA, "matrix
descriptor"). Panels begin at multiples of 1024 bytes, or of eight rows: there, the exchange of pieces begins anew, and so it does
where an instruction takes the next eight rows; steps within a row only move the address, to which the exchange is applied.

Operands of 16 bits may lie either way in memory, and the first may come from registers. Others must both lie in shared memory,
with `k` contiguous.

Of operands whose rows in memory are shorter than those of their tiles (`StagedType.short`), nothing is multiplied that is known
to be zero. Along `k`, steps are left out where both are. Columns of the result that `b` has none of are not computed: they stay
what they are in the sum, also where `a` has infinities, which times zero are no number. An instruction takes as many columns as
there are, in steps of 8.

Nothing may write registers that a product under way reads (PTX: the behaviour is undefined). ptxas sees to that within a turn,
and not beyond its end; a copy behind a wait it takes for none. So where a product is still under way when the next turn begins,
operands that are computed have registers whose values live all through the loop (`Computed`); if they would spill, turns wait.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.compilation import Asked, current, own_line
from tilekit.compiler.codegen.convert_layout import in_layout
from tilekit.compiler.codegen.definition import materialize, materialized
from tilekit.compiler.codegen.emit import asm, pack, special_register, unpack
from tilekit.compiler.codegen.types import TileType, i64, integer
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.layouts.mma import WARPS_OF_GROUP, warpgroup_accumulator
from tilekit.compiler.nvidia import ptxas_defects
from tilekit.compiler.nvidia.multibuffer import the_pipelines
from tilekit.compiler.nvidia.products import MatrixProduct, Way, left_out, product_family
from tilekit.compiler.nvidia.shared_operands import asked_in_turn, own_turn, park, parked, turned_over
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.compiler.nvidia.wgmma_types import ROWS, WAIT, AbreastType, OperandType, PendingType, joined, register_letter, split
from tilekit.dtypes import DType
from tilekit.errors import CompileError
from tilekit.lang.matmul import accumulator_dtype

__all__ = ["Computed", "forget", "warpgroup_product"]

_LEAST_COLUMNS, _MOST_COLUMNS = 8, 256  # of an instruction's result
_STEP = 32  # bytes of k that it takes
_SWIZZLES = {128: 1, 64: 2, 32: 3}  # how a descriptor calls the exchange in panels so wide, in bytes
_NAMES = {
    dtypes.float16: "f16", dtypes.bfloat16: "bf16", dtypes.float32: "tf32", dtypes.float8_e4m3fn: "e4m3",
    dtypes.float8_e5m2: "e5m2", dtypes.int8: "s8", dtypes.uint8: "u8",
}  # fmt: skip
# Sums of products of 8-bit floats keep 13 bits behind the leading one. After so many instructions, 128 of `k`, they are added up
# in float32; so that registers suffice, of so many columns at a time.
_CHAIN, _SUMMED_COLUMNS = 4, 128
_NO_TILE = 0x3FC00 >> 4  # the address that a descriptor of a tile would have at the end of 18 bits: a block has less
_BEGIN = "wgmma.fence.sync.aligned;"
_VOID = ir.VoidType()


class _Operand:
    """A tile in shared memory as a descriptor tells of it.

    Attributes:
        turned: whether the dimension without gaps is not `k`.
        depth: how far a step along `k` is, by the number of the step; and `along`, by their number, how far rows (of `a`; columns
            of `b`) are. Both in 16 bytes.
    """

    def __init__(self, tile: StagedType, span: int, kept: int, deep: int) -> None:
        """`kept` is the dimension of rows or columns, `deep` that of `k`; a panel is `span` bytes wide."""
        assert {kept, deep} == {0, 1}, "matrices"
        itemsize, panel = tile.dtype.itemsize, tile.rows * span
        self.turned = tile.axes[kept] == len(tile.memory) - 1
        self.depth: Callable[[int], int]
        self.along: Callable[[int], int]
        if self.turned:
            leading = panel
            self.depth = lambda step: step * (_STEP // itemsize) * span >> 4
            self.along = lambda rows: (rows * itemsize // span * panel + rows * itemsize % span) >> 4
        else:
            leading, steps = 16, span // _STEP  # in one panel; the first is not looked at
            self.depth = lambda step: (step % steps * _STEP + step // steps * panel) >> 4
            self.along = lambda rows: rows * span >> 4
        self._span, self._leading = span, leading

    @property
    def bits(self) -> int:
        """Of the descriptor, but for the address."""
        groups = 8 * self._span  # eight rows of a panel
        return _SWIZZLES[self._span] << 62 | (groups >> 4) << 32 | (self._leading >> 4) << 16

    def descriptor(self, builder: ir.IRBuilder, address: ir.Value, offset: ir.Value | None = None) -> ir.Value:
        """The descriptor of the tile at an address; `offset` is added to it, in 16 bytes."""
        low = builder.lshr(builder.and_(address, integer(32, 0x3FFFF)), integer(32, 4))
        if offset is not None:
            low = builder.add(low, offset)
        return builder.or_(builder.zext(low, i64), integer(64, self.bits))


@dataclass(frozen=True)
class _Shape:
    """How the warpgroups of a block share a product `(M, K) @ (K, N)`.

    Attributes:
        layouts: of the result; of products abreast, of each.
        down: how many groups have rows of their own; others have columns of theirs.
        high: instructions down a group's rows, and `wide` across its columns; `deep` along `k`.
        columns: that an instruction takes.
        kind: of the instruction: its name, but for the columns in it.
        flags: its last operands, the first of them whether it adds to what is there.
        present: the columns of the result that are computed, all but at the end.
    """

    layouts: tuple[Layout, ...]
    down: int
    high: int
    wide: int
    deep: int
    columns: int
    kind: str
    flags: str
    present: int

    @classmethod
    def of(
        cls,
        a: DType,
        b: DType,
        rows: int,
        parts: Sequence[int],
        depth: int,
        num_warps: int,
        *,
        limit: int,
        turned: str,
        there: tuple[int, int],
    ) -> _Shape | str:
        """Or why warpgroups cannot compute so many columns, in parts. An instruction takes `limit` of them at most; `turned`
        are its flags for how operands lie. Of `depth` and of the columns so many are `there`."""
        columns, itemsize = sum(parts), b.itemsize
        layouts = [warpgroup_accumulator((rows, part), num_warps) for part in parts]
        if None in layouts or num_warps % WARPS_OF_GROUP:
            least = f"{ROWS} rows and {_LEAST_COLUMNS} columns at least"
            return f"{num_warps} warps cannot share a result of {rows}x{columns}: a group of {WARPS_OF_GROUP} takes {least}"
        if depth * itemsize % _STEP:
            return f"it takes {_STEP} bytes of k at a time, and there are {depth * itemsize}"
        groups = num_warps // WARPS_OF_GROUP
        down = min(groups, rows // ROWS)
        width = columns // (groups // down)
        at_once = min(width, limit)
        if len(parts) > 1 and at_once < columns:
            return f"groups of warps have columns of their own: {at_once} of {columns}"
        whole = a.kind in "iu"
        kind = f"k{_STEP // itemsize}.{'s32' if whole else 'f32'}.{_NAMES[a]}.{_NAMES[b]}"
        flags = "" if whole else ", 1, 1" + turned
        whole_layouts: Any = tuple(layouts)
        step = 2 * _LEAST_COLUMNS if whole else _LEAST_COLUMNS  # instructions for integers come in fewer widths
        present = -(-there[1] // step) * step if width == columns and len(parts) == 1 else columns
        return cls(
            whole_layouts,
            down,
            rows // down // ROWS,
            width // at_once,
            -(-there[0] * itemsize // _STEP),
            at_once,
            kind,
            flags,
            min(columns, present),
        )

    def across(self, number: int) -> int:
        """How many columns the instructions compute that are so far along."""
        return max(0, min(self.columns, self.present - number * self.columns))

    def registers(self, down: int, across: int) -> list[int]:
        """Those of the result that an instruction adds to: they go along the columns, then down the rows, then on to the next
        sum."""
        taken, begin = list[int](), 0
        for layout in self.layouts:
            each = layout.num_registers // (self.high * self.wide)
            at = begin + (down * self.wide + across) * each
            taken += range(at, at + each * self.across(across) // self.columns)
            begin += layout.num_registers
        return taken

    @property
    def instructions(self) -> list[tuple[int, int]]:
        """How far down the rows, and along the columns, they are."""
        return [(down, across) for down in range(self.high) for across in range(self.wide) if self.across(across)]

    @property
    def added(self) -> list[int]:
        """The registers that all of them add to."""
        return sorted(register for part in self.instructions for register in self.registers(*part))

    def name(self, columns: int) -> str:
        """That of an instruction."""
        return f"m64n{columns}{self.kind}"

    def __str__(self) -> str:
        return self.name(min(self.columns, self.present))


def _sum_dtype(a: DType, b: DType, precision: str) -> DType | None:
    """What instructions add up products of these in; None if there is no such instruction."""
    if a not in _NAMES or b not in _NAMES or (a == dtypes.float32 and precision != "tf32"):
        return None
    try:
        return accumulator_dtype(a, b, "mma")
    except CompileError:
        return None


def _widest(parts: int) -> int:
    """How many columns an instruction takes at most; narrow ones what the registers that all threads begin with have room for."""
    state, columns = current().pipelines, _MOST_COLUMNS
    if state is not None and state.narrow and parts == 1:  # several parts are one instruction, or none
        registers = state.target.registers_of((current().config.num_threads + state.producers) * state.resident)
        while columns > _LEAST_COLUMNS and ptxas_defects.wanted_by(columns) > registers:
            columns //= 2
    return columns


def _widened(tiles: types.BaseTuple) -> StagedType | str:
    """Tiles that lie behind each other in a stage, as the one that they are together; or why they are none."""
    first, *others = tiles.types
    assert isinstance(first, StagedType), "a tile of a stream"
    at = first.axes[1]
    columns = sum(tile.shape[1] for tile in tiles.types)
    whole = first.of(tuple(columns if axis == at else n for axis, n in enumerate(first.memory)))
    for tile in others:
        if tile.of(tile.memory) != first.of(tuple(tile.shape[1] if axis == at else n for axis, n in enumerate(first.memory))):
            return "the tiles lie otherwise than each other"
    if at < len(first.memory) - 1:
        assert first.panels == 1, "`passes.abreast` takes no others"
    elif first.dtype.itemsize != 2 or any(tile.span != first.span for tile in others) or any(t.panel for t in tiles.types[:-1]):
        return "panels of one tile do not go on as those of the next"
    return whole


def _matrix(ty: StagedType | TileType) -> StagedType | TileType:
    """A tile, and a batch of one as the matrix that it is."""
    more = len(ty.shape) - 2
    if more <= 0 or any(extent > 1 for extent in ty.shape[:more]):
        return ty
    if isinstance(ty, StagedType):
        return ty.renamed((more, more + 1))
    return TileType(ty.dtype, ty.layout.reshape(ty.shape[more:]), ty.config, splat=ty.splat, zero=ty.zero)


@product_family("wgmma", preference=2)
def warpgroup_product(product: MatrixProduct) -> Way | str:
    """Products that warpgroups multiply.

    `b` lies in shared memory, or is put there if its elements have 16 bits; `a` may lie there, or its elements, of 16 bits, are
    passed as threads hold them.
    """
    a, b, acc, precision, target = product.a, product.b, product.acc, product.precision, current().target
    if not target.wgmma:
        return f"{target.label} does not have it"
    if acc is None:
        return "it has no accumulator: tk.mma(a, b, acc) in a loop adds to one"
    sums = acc.parts if isinstance(acc, AbreastType) else (acc,)
    if isinstance(b, types.BaseTuple):
        second_type = _widened(types.BaseTuple.from_types([_matrix(ty) if isinstance(ty, StagedType) else ty for ty in b]))
        if isinstance(second_type, str):
            return second_type
        b = second_type
    given = [ty if isinstance(ty, StagedType) else materialized(ty) for ty in (a, b, sums[0])]
    if not all(isinstance(ty, (StagedType, TileType)) for ty in given):
        return "it multiplies tiles"
    first, there, tile = map(_matrix, given)
    if len(first.shape) != 2 or len(there.shape) != 2:
        return "it multiplies matrices, not batches of them"
    wide = _sum_dtype(first.dtype, there.dtype, precision)
    if wide is None or tile.dtype != wide:
        return f"it does not take {first.dtype.name} and {there.dtype.name} with sums in {tile.dtype.name}{_tf32(first.dtype)}"
    held = None if isinstance(there, StagedType) else there
    lies = parked(held) if isinstance(held, TileType) else there
    if (
        isinstance(there, StagedType)
        and len(there.shape) == 2
        and there.dtype.itemsize != 2
        and there.axes[1] == len(there.memory) - 1
    ):
        over = turned_over(there)
        if isinstance(over, str):
            return over
        held, lies = TileType(there.dtype, over[0], there.config), over[1]
    if not isinstance(lies, StagedType):
        return lies
    (rows, depth), columns = first.shape, lies.shape[1]
    parts = [_matrix(materialized(ty)).shape for ty in sums]
    if lies.shape[0] != depth or any(part[0] != rows for part in parts) or columns != sum(part[1] for part in parts):
        return "it multiplies matrices that fit together"
    span = product.b.types[0].span if isinstance(product.b, types.BaseTuple) else lies.span  # each tile has its own panels
    second, operand, fragments = _Operand(lies, span, 1, 0), None, None
    columns_there = there.present(1) if isinstance(there, StagedType) else columns
    deep_there = [side.present(1 - n) if isinstance(side, StagedType) else depth for n, side in enumerate((first, there))]
    if isinstance(first, StagedType):
        operand = _Operand(first, first.span, 0, 1)
    else:
        fragments = OperandType.of_tile(a if isinstance(a, OperandType) else first)
        if isinstance(fragments, str):
            return fragments
        deep_there[0] = fragments.depth
    ways, half = [side.turned for side in (operand, second) if side is not None], lies.dtype.itemsize == 2
    if any(ways) and not half:
        return f"{'b' if second.turned else 'a'} of {lies.dtype.name} needs its k contiguous in memory"
    promoted = lies.dtype in dtypes.EIGHT_BIT_FLOATS and precision != "fast"
    limit = _SUMMED_COLUMNS if promoted and len(parts) == 1 else _widest(len(parts))
    turned = "".join(f", {way:d}" for way in ways) if half else ""
    warps = tile.config.num_warps
    wide_parts = [part[1] for part in parts]
    sizes = max(deep_there), columns_there
    shape = _Shape.of(first.dtype, lies.dtype, rows, wide_parts, depth, warps, limit=limit, turned=turned, there=sizes)
    if isinstance(shape, str):
        return shape
    done = [
        TileType(wide, layout.reshape(materialized(ty).shape), tile.config)
        for layout, ty in zip(shape.layouts, sums, strict=True)
    ]
    results = done if promoted else [PendingType(ty, min(n, shape.present)) for ty, n in zip(done, wide_parts, strict=True)]

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value | None) -> ir.Value:
        assert z is not None, "there is an accumulator"
        state = current().pipelines
        total = []
        held_sums = [z] if acc is sums[0] else split(builder, z)
        for ty, result, layout, each in zip(sums, results, shape.layouts, held_sums, strict=True):
            # Products that add to the same registers need not wait for each other if they have as many columns (PTX ISA).
            if ty == result and isinstance(ty, PendingType):
                total += unpack(builder, each)
            else:
                begun = unpack(builder, materialize(builder, ty, each))
                total += in_layout(builder, _matrix(materialized(ty)), begun, layout)
        computed, waits = None, False
        if fragments is not None and (not isinstance(a, OperandType) or a.renewed):
            turn = own_turn(the_pipelines())
            waits = turn is None  # what writes the registers next may come at once
            if turn is not None and not isinstance(a, OperandType):
                computed = Computed(fragments.count, asked_in_turn(the_pipelines(), turn.lines)[0])
        if isinstance(product.b, types.BaseTuple):
            y = builder.extract_value(y, 0)
        if isinstance(held, TileType):
            elements = (
                b.read(builder, y, held.layout) if isinstance(b, StagedType) else unpack(builder, materialize(builder, b, y))
            )
            y, lies_in = park(builder, held, elements, lies)
        else:
            lies_in = f"R{lies.ring}"
        if state is not None and not promoted:
            state.products.append(Asked(own_line(), isinstance(a, OperandType) and a.renewed, computed))
        group = builder.lshr(special_register(builder, "tid.x"), integer(32, 7))
        beside = None
        if shape.down < warps // WARPS_OF_GROUP:
            number = builder.lshr(group, integer(32, shape.down.bit_length() - 1))
            beside = builder.mul(number, integer(32, second.along(shape.columns * shape.wide)))
        inputs = [second.descriptor(builder, y, beside)]
        if operand is not None:
            down = builder.and_(group, integer(32, shape.down - 1))
            mine = builder.mul(down, integer(32, shape.high * operand.along(ROWS)))
            inputs.insert(0, operand.descriptor(builder, x, mine))
        elif fragments is not None:
            operands = (a, x) if first is given[0] else (first, materialize(builder, a, x))
            inputs = [*fragments.words(builder, *operands), *inputs]
        fresh = all(materialized(ty).zero for ty in sums) and not promoted
        reads = {f"R{first.ring}", lies_in} if isinstance(first, StagedType) else {lies_in}
        note = "// reads " + " ".join(sorted(reads))
        sum_ = [total[register] for register in shape.added]
        call = _asked(builder, shape, operand, second, inputs, sum_, wide, note, waits=waits, promoted=promoted, fresh=fresh)
        if waits:
            the_pipelines().waiting = call
        added = shape.added
        if computed is not None:
            computed.asked(call, len(added) * (1 if fresh else 2))
        for n, register in enumerate(added):
            total[register] = builder.extract_value(call, n)
        registers = iter(total)
        tiles = [pack(builder, list(itertools.islice(registers, layout.num_registers))) for layout in shape.layouts]
        return tiles[0] if acc is sums[0] else joined(builder, tiles)

    result = results[0] if acc is sums[0] else AbreastType(tuple(results))
    steps = depth * first.dtype.itemsize // _STEP
    present = left_out((shape.deep, steps, "steps of k"), (shape.present, columns, "columns"))
    return Way(result, f"wgmma.mma_async.sync.aligned.{shape}", emit, present)


def _tf32(dtype: DType) -> str:
    return ' (precision="tf32" rounds float32 for it)' if dtype == dtypes.float32 else ""


class Computed:
    """A product whose first operand is computed for it, on a statement that runs once in each turn of a pipelined loop.

    Args:
        words: the registers of its operand.
        left: how many products may be under way when these are written.
    """

    def __init__(self, words: int, left: int) -> None:
        self._words, self._left = words, left
        self._call: ir.CallInstr | None = None
        self._first = 0

    def asked(self, call: ir.CallInstr, first: int) -> None:
        """It was asked for by this inline PTX, in which the words are the operands from `first` on."""
        self._call, self._first = call, first

    def keep(self, builder: ir.IRBuilder) -> tuple[str, int]:
        """Let it stay under way over the end of the turn: its operand gets registers of its own; their name, and how many.

        A conditional move writes them, whose condition always holds, and ptxas cannot know that: what was in them is needed until
        then, and so nothing else can be there before the wait. The condition: no tile begins at the end of 18 bits of address.
        """
        state, call = the_pipelines(), self._call
        assert call is not None, "a turn ends behind its statements"
        name = f"tilekit_operand{state.operand_sets}_"
        state.operand_sets += 1
        with builder.goto_entry_block():
            asm(builder, f".reg .b32 {name}<{self._words}>; {_zeros(name, self._words)}", "~{memory}", _VOID, [], effect=True)
        words = [f"${self._first + n}" for n in range(self._words)]
        lines = [".reg .pred holds; .reg .b32 low, high;", f"mov.b64 {{low, high}}, ${self._first + self._words};"]
        lines += [f"setp.ne.u32 holds, low, {_NO_TILE};", f"wgmma.wait_group.sync.aligned {self._left};"]
        lines += [f"@holds mov.b32 {name}{n}, {word};" for n, word in enumerate(words)]
        head, rest = call.callee.asm.split(_BEGIN, 1)
        for n in reversed(range(self._words)):
            rest = re.sub(re.escape(words[n]) + r"\b", f"{name}{n}", rest)
        call.callee.asm = " ".join([head, *lines, _BEGIN]) + rest
        return name, self._words


def forget(builder: ir.IRBuilder, registers: list[tuple[str, int]]) -> None:
    """The loop is over in which operands had registers to themselves: what is in them is not needed any longer."""
    for name, count in registers:
        asm(builder, _zeros(name, count), "~{memory}", _VOID, [], effect=True)


def _zeros(name: str, count: int) -> str:
    return " ".join(f"mov.b32 {name}{n}, 0;" for n in range(count))


def _asked(
    builder: ir.IRBuilder,
    shape: _Shape,
    operand: _Operand | None,
    second: _Operand,
    inputs: list[ir.Value],
    total: list[ir.Value],
    wide: DType,
    note: str,
    *,
    waits: bool,
    promoted: bool,
    fresh: bool,
) -> ir.CallInstr:
    """Ask for a product, and do not wait; or, if it is `promoted`, add up the sums of short chains, each waited for.

    Args:
        builder, shape, total, wide: where, how it is shared out, what it is added to (`_Shape.added`), and the dtype of that.
        operand: the first one; None if threads hold it, two elements in a word.
        second: the other one.
        inputs: values behind those of `total`: the descriptor of the first operand or its words, and that of the second.
        note: a comment that says what it reads.
        waits: for it, though it is not `promoted`.
        promoted: see above.
        fresh: `total` is all zeros: no register is set to that. What sets registers has ptxas wait for products that read them.
    """
    count, numbers = len(total), {register: n for n, register in enumerate(shape.added)}
    words = (len(inputs) - 1) // shape.high  # of the first operand, for an instruction's rows
    behind = count if fresh else 2 * count  # the operands that are the result's and the sum's
    begin, end = _BEGIN, "wgmma.commit_group.sync.aligned;"

    def instruction(d: list[str], step: int, down: int, across: int, adds: bool = True) -> str:
        if operand is None:
            at = behind + words * down + 4 * step
            before, first = "", "{" + ", ".join(f"${n}" for n in range(at, at + 4)) + "}"
        else:
            before, first = f"add.s64 x, ${behind}, {operand.depth(step) + down * operand.along(ROWS)};", "x"
        beyond = second.depth(step) + across * second.along(shape.columns)
        return (
            f"{before} add.s64 y, ${behind + len(inputs) - 1}, {beyond}; "
            f"wgmma.mma_async.sync.aligned.{shape.name(shape.across(across))} {{{', '.join(d)}}}, "
            f"{first}, y, {adds:d}{shape.flags};"
        )

    def registers(down: int, across: int) -> list[str]:
        return [f"${numbers[register]}" for register in shape.registers(down, across)]

    places = shape.instructions
    lines = ["{ .reg .b64 x, y;"]
    if promoted:
        lines.append(f".reg .f32 t<{max(len(shape.registers(*part)) for part in places)}>;")
        for part in places:
            taken = registers(*part)
            sums = [f"t{n}" for n in range(len(taken))]
            for start in range(0, shape.deep, _CHAIN):
                steps = range(start, min(start + _CHAIN, shape.deep))
                lines += [begin, *(instruction(sums, step, *part, step > start) for step in steps)]
                lines += [end, "wgmma.wait_group.sync.aligned 0;"]
                lines += [f"add.f32 {d}, {d}, {t};" for d, t in zip(taken, sums, strict=True)]
    else:
        adds = [step > 0 or not fresh for step in range(shape.deep)]
        lines += [begin, *(instruction(registers(*p), step, *p, adds[step]) for step in range(shape.deep) for p in places), end]
        lines += [WAIT] * waits
    letters = ["l" if value.type == i64 else "r" for value in inputs]
    results = (
        [f"=&{register_letter(wide)}"] * count
        if fresh
        else [f"={register_letter(wide)}"] * count + [str(n) for n in range(count)]
    )
    kind = ir.LiteralStructType([total[0].type] * count)
    held = inputs if fresh else [*total, *inputs]
    text, constraints = " ".join([*lines, "}", note]), ",".join([*results, *letters, "~{memory}"])
    return asm(builder, text, constraints, kind, held, convergent=True)  # type: ignore[return-value]
