"""Lowering of `tilekit.lang.matmul`.

`instruction` chooses how a product is computed: the place for other ways. Operands go through shared memory into the layouts
that `layouts.mma` gives them, all at once, and come back register by register, as the instructions want them: so a thread
never holds all of an operand. Those that lie right already stay where they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.convert_layout import Beyond, InShared, Passage, Take, in_layout, thread_bit
from tilekit.compiler.codegen.definition import lowers, lowers_operator, materialize, materialized
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import asm, pack, unpack
from tilekit.compiler.codegen.types import TileType, current, describe, i32, integer, register_type
from tilekit.compiler.codegen.types import constant as constant_of
from tilekit.compiler.codegen.words import braced, packed, words_of
from tilekit.compiler.layouts import mma as fragments
from tilekit.compiler.layouts.conversion import within_threads
from tilekit.compiler.layouts.linear import Layout, Vector
from tilekit.compiler.layouts.mma import Product
from tilekit.compiler.lower.shape import constant, in_words
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.compiler.nvidia.wgmma import warpgroup_product
from tilekit.compiler.target import Target
from tilekit.dtypes import DType
from tilekit.lang import matmul as lang

__all__ = ["Instruction", "instruction"]

_UNROLLED = 512
"""How many multiplications of float32 are written out: of more, ptxas keeps so many operands that registers spill."""
_LEAST_DEPTH = 4  # elements of 16 bytes, which are read together

Elements = list[ir.Value]


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """A `mma.sync`.

    Attributes:
        shape: its extents, as PTX writes them.
        a, b, acc: PTX's types of the operands and the accumulator.
        through: the dtypes that its operands are converted to, where the instruction does not take them as they are.
        letter: LLVM's constraint for a register of the accumulator.
        packed: how many bits of `k` a register of an operand holds.
        wide: whether it takes two rows and two groups of `k` from a thread, or one.
    """

    shape: str
    a: str
    b: str
    acc: str
    through: tuple[DType, DType]
    letter: str
    packed: int
    wide: bool = True


_EIGHT = {dtypes.float8_e4m3fn: "e4m3", dtypes.float8_e5m2: "e5m2", dtypes.int8: "s8", dtypes.uint8: "u8"}
_SIXTEEN = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}


def instruction(a: DType, b: DType, precision: str, target: Target) -> Instruction | None:
    """What computes a product of these operands; None for multiplications and additions by each thread."""
    if a in dtypes.EIGHT_BIT_FLOATS and a not in target.mma_dtypes:
        a = b = dtypes.float16  # it holds both kinds exactly
    if a in _SIXTEEN:
        return Instruction(shape="m16n8k16", a=_SIXTEEN[a], b=_SIXTEEN[b], acc="f32", through=(a, b), letter="f", packed=1)
    if a in _EIGHT:
        acc, letter = ("s32", "r") if a.kind in "iu" else ("f32", "f")
        return Instruction(shape="m16n8k32", a=_EIGHT[a], b=_EIGHT[b], acc=acc, through=(a, b), letter=letter, packed=2)
    if a == dtypes.float64:
        wide = target.mma_rows_f64 == 16
        shape = "m16n8k8" if wide else "m8n8k4"
        return Instruction(shape=shape, a="f64", b="f64", acc="f64", through=(a, b), letter="d", packed=0, wide=wide)
    if precision == "tf32":
        return Instruction(shape="m16n8k8", a="tf32", b="tf32", acc="f32", through=(a, b), letter="f", packed=0)
    return None


def _product(
    what: str,
    a: TileType,
    b: TileType,
    acc: TileType | None,
    precision: str,
    staged: Sequence[StagedType | None] = (None, None),
) -> Any:
    """The type of `a @ b + acc` (or without `acc`), of matrices, and how to emit it, given the operands' elements.

    Operands that are `staged` are read where they lie: given is the address.
    """
    shape = in_words(what, lang.product_shape, a.shape, b.shape)
    wide = in_words(what, lang.accumulator_dtype, a.dtype, b.dtype)
    extent, num_warps = a.shape[-1], a.config.num_warps
    chosen = instruction(a.dtype, b.dtype, precision, current().target)
    first, second = (a, b) if chosen is None else (a.like(chosen.through[0]), b.like(chosen.through[1]))
    result = TileType(wide, fragments.accumulator(shape, num_warps, first.dtype.itemsize), a.config)
    product, layouts = _spread(shape, extent, num_warps, chosen, first.dtype.itemsize)
    at_once = extent if chosen else min(extent, max(_LEAST_DEPTH, _UNROLLED // result.layout.num_registers))

    def emit(builder: ir.IRBuilder, x: Elements, y: Elements, z: Elements | None) -> Elements:
        if acc is None or z is None:
            total = [constant_of(wide, 0)] * result.layout.num_registers
        else:
            total = in_layout(builder, acc, z, result.layout)
        x, y = (
            held if tile.dtype == through.dtype else [convert(builder, e, tile.dtype, through.dtype) for e in held]
            for tile, through, held in ((a, first, x), (b, second, y))
        )
        brought = _brought(
            builder, [(first, x, layouts[0]), (second, y, layouts[1])], _turns(len(shape), at_once, extent), staged
        )
        if chosen is None or product is None:
            return _sum_of_products(builder, brought, result.layout, at_once, extent, list(total))
        operands = [_Operand(builder, product, chosen, operand, depth) for operand, depth in zip(brought, (-1, -2), strict=True)]
        return _by_instructions(builder, chosen, product, operands[0], operands[1], list(total), wide)

    return result, emit


def _spread(
    shape: Vector, extent: int, num_warps: int, chosen: Instruction | None, itemsize: int
) -> tuple[Product | None, tuple[Layout, Layout]]:
    """How a product is computed by instructions, if it is; and the layouts in which its operands are multiplied."""
    if chosen is None:
        return None, fragments.sum_of_products(shape, extent, num_warps)
    product = fragments.product(shape, extent, num_warps, itemsize, chosen.packed, wide=chosen.wide)
    return product, (product.a, product.b)


class _Brought:
    """An operand on its way to the layout in which it is multiplied."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        tile: TileType,
        held: Elements,
        target: Layout,
        turns: Sequence[tuple[int, Vector]],
        staged: StagedType | None,
    ) -> None:
        """`turns` are the bits of `k` that a loop counts, and how far they move a coordinate of the tile.

        `held` is the address of a tile that is `staged`.
        """
        self.tile, self.held, self.target, self.turns = tile, held, target, turns
        self.passage: Passage | None = None
        self.lies: InShared | None = None
        self.start: ir.Value | None = None
        if staged is not None:
            staged.note_read()
            self.lies, self.start = staged.reader(target, matrices=True), held[0]
        elif not tile.splat:
            if within_threads(tile.layout, target) is None:
                current().note("conversion", tile.dtype, tile.layout, target, True)
                apart = [vector for _, vector in turns]
                self.lies = self.passage = Passage(tile.dtype, tile.layout, target, apart, matrices=True)
            else:
                self.held = in_layout(builder, tile, held, target)

    def taker(self, builder: ir.IRBuilder, k: ir.Value | None = None) -> Take:
        """What gives the element of a register of `target`; that which lies `k` further on, if it is given."""
        if self.tile.splat:
            return lambda _: self.held[0]
        if self.lies is None:
            return self.held.__getitem__
        return self.lies.taker(builder, self.start, None if k is None else Beyond(k, self.turns))

    @property
    def anywhere(self) -> bool:
        """Whether its elements need not be known by register."""
        return self.tile.splat or self.lies is not None


def _turns(rank: int, at_once: int, depth: int) -> list[list[tuple[int, Vector]]]:
    """For each operand, the bits of `k` from `at_once` on, with their vectors."""
    bits = range(at_once.bit_length() - 1, depth.bit_length() - 1)
    return [[(bit, tuple(1 << bit if d == dim else 0 for d in range(rank))) for bit in bits] for dim in (rank - 1, rank - 2)]


def _brought(
    builder: ir.IRBuilder,
    tiles: Sequence[tuple[TileType, Elements, Layout]],
    turns: Sequence[Sequence[tuple[int, Vector]]],
    staged: Sequence[StagedType | None],
) -> list[_Brought]:
    """Operands (types, elements, and where they must go), together through shared memory if they must."""
    operands = [_Brought(builder, *tile, counted, lies) for tile, counted, lies in zip(tiles, turns, staged, strict=True)]
    moving = [(operand, operand.passage) for operand in operands if operand.passage is not None]
    if moving:
        sizes = [-(-passage.nbytes // 16) * 16 for _, passage in moving]
        base = shared.room(builder, sum(sizes), "the operands")
        for place, (operand, passage) in enumerate(moving):
            operand.start = builder.add(base, integer(32, sum(sizes[:place])))
            passage.put(builder, operand.start, operand.held)
        shared.barrier(builder)
    return operands


class _Operand:
    """An operand as instructions take it: registers of 32 bits (64 for float64), each made when it is first asked for."""

    def __init__(self, builder: ir.IRBuilder, product: Product, chosen: Instruction, operand: _Brought, depth: int) -> None:
        """`depth` is the dimension of `k`."""
        self.builder, self.product, self.chosen, self.depth = builder, product, chosen, depth
        self.layout, self.dtype, self.take = operand.target, operand.tile.dtype, operand.taker(builder)
        self.made: dict[int, ir.Value] = {}
        self.idle = [thread_bit(builder, bit) for bit in product.idle]

    def word(self, at: Vector, k: int | None) -> ir.Value:
        """The register that begins at a coordinate of the result and at `k`; zero for a `k` that does not exist."""
        count = 1 << self.chosen.packed
        if k is None:
            return self._finished([constant_of(self.dtype, 0)] * count)
        place = list(at)
        place[self.depth] = k
        first = self.layout.register_of(tuple(place))
        if first not in self.made:
            self.made[first] = self._made(place, k, count)
        return self.made[first]

    def _made(self, place: list[int], k: int, count: int) -> ir.Value:
        held = []
        for n in range(count):
            if n >> len(self.product.packed):
                held.append(constant_of(self.dtype, 0))
                continue
            place[self.depth] = k + sum(bit for b, bit in enumerate(self.product.packed) if n >> b & 1)
            held.append(self.take(self.layout.register_of(tuple(place))))
        word = self._finished(held)
        for absent in self.idle:
            word = self.builder.select(absent, ir.Constant(word.type, 0.0 if self.dtype == dtypes.float64 else 0), word)
        return word

    def _finished(self, held: Elements) -> ir.Value:
        if self.dtype == dtypes.float64:
            return held[0]
        if self.chosen.a == "tf32":
            return asm(self.builder, "cvt.rna.tf32.f32 $0, $1;", "=r,f", i32, held)
        (word,) = packed(self.builder, held, self.dtype, words_of(self.dtype, len(held)))
        return word


def _by_instructions(
    builder: ir.IRBuilder, chosen: Instruction, product: Product, a: _Operand, b: _Operand, total: Elements, wide: DType
) -> Elements:
    deep = (0, product.high or None) if chosen.wide else (0,)
    layout = product.acc
    for batch in product.batches:
        for step in product.steps:
            depths = [None if k is None else step + k for k in deep]
            for start in product.starts:
                at = _plus(batch, start)
                lower = _plus(at, product.row) if any(product.row) else None
                places = [at, lower] if chosen.wide else [at]
                x = [a.word(at if p is None else p, None if p is None else k) for k in depths for p in places]
                y = [b.word(at, k) for k in depths]
                registers = [_pair(layout, p, product.column) for p in places]
                flat = [register for pair in registers for register in pair]
                z = [constant_of(wide, 0) if r is None else total[r] for r in flat]
                for register, value in zip(flat, _mma(builder, chosen, x, y, z), strict=True):
                    if register is not None:
                        total[register] = value
    return total


def _pair(layout: Layout, at: Vector | None, column: Vector) -> list[int | None]:
    """The registers of the result for two neighbouring columns; None for those that do not exist."""
    if at is None:
        return [None, None]
    return [layout.register_of(at), layout.register_of(_plus(at, column)) if any(column) else None]


def _mma(builder: ir.IRBuilder, chosen: Instruction, x: Elements, y: Elements, z: Elements) -> Elements:
    """One instruction of a warp."""
    count, letter = len(z), "d" if chosen.a == "f64" else "r"
    names = iter(f"${n}" for n in range(2 * count + len(x) + len(y)))
    groups = [braced([next(names) for _ in part]) if len(part) > 1 else "{" + next(names) + "}" for part in (z, x, y, z)]
    text = f"mma.sync.aligned.{chosen.shape}.row.col.{chosen.acc}.{chosen.a}.{chosen.b}.{chosen.acc} {', '.join(groups)};"
    letters = [f"={chosen.letter}"] * count + [letter] * (len(x) + len(y)) + [chosen.letter] * count
    kind = ir.LiteralStructType([z[0].type] * count)
    made = asm(builder, text, ",".join(letters), kind, [*x, *y, *z], convergent=True)
    return [builder.extract_value(made, n) for n in range(count)]


def _sum_of_products(
    builder: ir.IRBuilder, operands: Sequence[_Brought], layout: Layout, at_once: int, depth: int, total: Elements
) -> Elements:
    """float32, multiplied and added by each thread, in the order of `k`, of which `at_once` are written out."""
    if at_once == depth or not all(operand.anywhere for operand in operands):
        return _multiplied(builder, operands, [o.taker(builder) for o in operands], layout, depth, total)

    def body(k: ir.Value, carried: Elements) -> Elements:
        return _multiplied(builder, operands, [o.taker(builder, k) for o in operands], layout, at_once, carried)

    return _looped(builder, depth, at_once, total, body)


def _looped(
    builder: ir.IRBuilder, end: int, step: int, total: Elements, body: Callable[[ir.Value, Elements], Elements]
) -> Elements:
    """`total`, after `total = body(k, total)` for `k` in `range(0, end, step)`, in a loop of the kernel."""
    before, block = builder.block, builder.append_basic_block("products")
    builder.branch(block)
    builder.position_at_end(block)
    k, carried = builder.phi(i32), [builder.phi(value.type) for value in total]
    made = body(k, list(carried))
    following = builder.add(k, integer(32, step))
    for phi, first, next_ in zip([k, *carried], [integer(32, 0), *total], [following, *made], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_, builder.block)
    after = builder.append_basic_block("product")
    builder.cbranch(builder.icmp_unsigned("<", following, integer(32, end)), block, after)
    builder.position_at_end(after)
    return made


def _multiplied(
    builder: ir.IRBuilder, operands: Sequence[_Brought], takers: Sequence[Take], layout: Layout, depth: int, total: Elements
) -> Elements:
    rank = len(layout.shape)
    x, y = (operand.target for operand in operands)
    for k in range(depth):
        for register, at in enumerate(layout.coordinates()):
            a = takers[0](x.register_of((*at[: rank - 1], k)))
            b = takers[1](y.register_of((*at[: rank - 2], k, at[-1])))
            total[register] = arithmetic.fma(builder, a, b, total[register])
    return total


def _plus(x: Vector, y: Vector) -> Vector:
    return tuple(a | b for a, b in zip(x, y, strict=True))


# ------------------------------------------------------------------------------------------------------------------ operations


def _the_tile(what: str, name: str, ty: types.Type) -> TileType:
    if not isinstance(ty, TileType):
        reject(what, f"{name} is a tile, not {describe(ty)}")
    return ty


def _read_there(operands: Sequence[types.Type], tiles: Sequence[TileType], precision: str) -> list[StagedType | None]:
    """Operands that lie in shared memory, if instructions' fragments can be read there, 16 bytes at a time."""
    a, b = tiles[:2]
    shape = in_words("mma", lang.product_shape, a.shape, b.shape)
    chosen = instruction(a.dtype, b.dtype, precision, current().target)
    through = (a.dtype, b.dtype) if chosen is None else chosen.through
    _, layouts = _spread(shape, a.shape[-1], a.config.num_warps, chosen, through[0].itemsize)
    made: list[StagedType | None] = []
    for ty, dtype, layout in zip(operands, through, layouts, strict=True):
        lies = ty.reader(layout, matrices=True) if isinstance(ty, StagedType) and ty.dtype == dtype else None
        made.append(ty if lies is not None and (lies.matrices or lies.nearby) else None)  # type: ignore[arg-type]
    return made


@lowers(lang.mma, deferred=True)
def mma(a: types.Type, b: types.Type, acc: types.Type, precision: types.Type) -> Any:
    chosen = in_words("mma", lang.check_precision, constant(precision, "mma", "precision"))
    by_groups = warpgroup_product(a, b, acc, chosen)
    if by_groups is not None:
        pending, emit_pending = by_groups
        return pending, lambda builder, x, y, z, _: emit_pending(builder, x, y, z)
    deferred = (a, b, acc)
    tiles = [_the_tile("mma", name, materialized(ty)) for name, ty in zip(("a", "b", "acc"), deferred, strict=True)]
    staged = _read_there((a, b), tiles, chosen)
    result, emit_product = _product("mma", *tiles, chosen, staged)
    in_words("mma", lang.check_accumulator, tiles[2].shape, tiles[2].dtype, result.shape, result.dtype)

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value, precision: ir.Value) -> ir.Value:
        given = [
            [value] if lies else unpack(builder, materialize(builder, ty, value))
            for ty, value, lies in zip(deferred, (x, y, z), (*staged, None), strict=True)
        ]
        return pack(builder, emit_product(builder, *given))

    return result, emit


def _matmul(what: str, a: types.Type, b: types.Type, precision: str) -> Any:
    tiles = [_the_tile(what, name, ty) for name, ty in (("a", a), ("b", b))]
    shapes = lang.padded_shapes(tiles[0].shape, tiles[1].shape)
    met = in_words(what, lang.meeting_dtypes, tiles[0].dtype, tiles[1].dtype)
    final = in_words(what, lang.result_dtype, *met)
    matrices = [
        (tile if tile.shape == shape else tile.at(tile.layout.reshape(shape))).like(dtype)
        for tile, shape, dtype in zip(tiles, shapes, met, strict=True)
    ]
    product, emit_product = _product(what, *matrices, None, precision)
    alone = [d for d, tile in zip((-2, -1), tiles, strict=True) if len(tile.shape) == 1]  # 1 in the product, and not there
    shape = tuple(n for d, n in enumerate(product.shape) if d - len(product.shape) not in alone)
    result = product.at(product.layout.reshape(shape)).like(final)

    def emit(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        held = [
            [convert(builder, e, tile.dtype, dtype) for e in unpack(builder, value)]
            for tile, dtype, value in zip(tiles, met, values[:2], strict=True)
        ]
        made = emit_product(builder, *held, None)
        return pack(builder, [convert(builder, e, product.dtype, final) for e in made])

    return result, emit


@lowers(lang.matmul)
def matmul(a: types.Type, b: types.Type, precision: types.Type) -> Any:
    chosen = in_words("matmul", lang.check_precision, constant(precision, "matmul", "precision"))
    return _matmul("matmul", a, b, chosen)


for _operator in (operator.matmul, operator.imatmul):
    lowers_operator(_operator, "@")(lambda x, y: _matmul("@", x, y, "ieee"))

assert register_type(dtypes.bfloat16) == register_type(dtypes.int16), "16-bit elements fill words alike"
