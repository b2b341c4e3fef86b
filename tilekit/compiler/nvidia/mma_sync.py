"""Products on tensor cores by `mma.sync`: each warp multiplies fragments in its registers. Every GPU has it, for its dtypes.

Operands come into the layouts that `layouts.mma` gives them register by register, as the instructions want them: so a thread
never holds all of an operand.

Where a GPU has no instruction for 8-bit floats, ptxas unpacks them to float16, and multiplies twice. It is done here instead,
at the same price: what ptxas (13.0 to 13.5) unpacks of the constant zero, where that is also the start of a loop's counter, is
no zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.convert_layout import thread_bit
from tilekit.compiler.codegen.emit import asm, pack
from tilekit.compiler.codegen.types import TileType, i32
from tilekit.compiler.codegen.types import constant as constant_of
from tilekit.compiler.codegen.words import braced, elements_of, packed, words_of
from tilekit.compiler.layouts import mma as layouts
from tilekit.compiler.layouts.linear import Layout, Vector
from tilekit.compiler.nvidia.fragments import Elements, Operand, Operands
from tilekit.compiler.nvidia.products import MatrixProduct, Way, left_out, product_family
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.compiler.target import Target
from tilekit.dtypes import DType

__all__ = ["Instruction", "instruction", "mma_sync"]


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
        unpacks: whether the halves of an operand's register, two elements in each, are made float16, for one instruction each.
    """

    shape: str
    a: str
    b: str
    acc: str
    through: tuple[DType, DType]
    letter: str
    packed: int
    wide: bool = True
    unpacks: bool = False

    @property
    def name(self) -> str:
        """What PTX calls it."""
        return f"mma.sync.aligned.{self.shape}.row.col.{self.acc}.{self.a}.{self.b}.{self.acc}"


_EIGHT = {dtypes.float8_e4m3fn: "e4m3", dtypes.float8_e5m2: "e5m2", dtypes.int8: "s8", dtypes.uint8: "u8"}
_SIXTEEN = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}


def instruction(a: DType, b: DType, precision: str, target: Target, sums: DType = dtypes.float32) -> Instruction | None:
    """The instruction for a product of these operands, with `sums` of float16 if they hold that; None if there is none."""
    if sums == dtypes.float16:
        return Instruction(shape="m16n8k16", a="f16", b="f16", acc="f16", through=(a, b), letter="r", packed=1)
    if a in dtypes.EIGHT_BIT_FLOATS and a not in target.mma_dtypes:
        a = b = dtypes.float16  # it holds both kinds exactly
    if a in _SIXTEEN:
        return Instruction(shape="m16n8k16", a=_SIXTEEN[a], b=_SIXTEEN[b], acc="f32", through=(a, b), letter="f", packed=1)
    if a in _EIGHT:
        if target.mma_unpacks and a in dtypes.EIGHT_BIT_FLOATS:
            through, shape = (a, b), "m16n8k16"
            return Instruction(shape=shape, a="f16", b="f16", acc="f32", through=through, letter="f", packed=2, unpacks=True)
        acc, letter = ("s32", "r") if a.kind in "iu" else ("f32", "f")
        return Instruction(shape="m16n8k32", a=_EIGHT[a], b=_EIGHT[b], acc=acc, through=(a, b), letter=letter, packed=2)
    if a == dtypes.float64:
        wide = target.mma_rows_f64 == 16
        shape = "m16n8k8" if wide else "m8n8k4"
        return Instruction(shape=shape, a="f64", b="f64", acc="f64", through=(a, b), letter="d", packed=0, wide=wide)
    if precision == "tf32":
        return Instruction(shape="m16n8k8", a="tf32", b="tf32", acc="f32", through=(a, b), letter="f", packed=0)
    return None


class _Words:
    """An operand as instructions take it: registers of 32 bits (64 for float64), each packed when it is first asked for.

    Where the instruction unpacks, what is packed are two registers, for one instruction after the other.
    """

    def __init__(
        self, builder: ir.IRBuilder, product: layouts.Product, chosen: Instruction, operand: Operand, depth: int
    ) -> None:
        """`depth` is the dimension of `k`."""
        self.builder, self.product, self.chosen, self.depth = builder, product, chosen, depth
        self.layout, self.dtype, self.take = operand.target, operand.tile.dtype, operand.taker(builder)
        self.packed: dict[int, Elements] = {}
        self.idle = [thread_bit(builder, bit) for bit in product.idle]

    def words(self, at: Vector, k: int | None) -> Elements:
        """The register that begins at a coordinate of the result and at `k`; zero for a `k` that does not exist."""
        count = 1 << self.chosen.packed
        if k is None:
            return self._finished([constant_of(self.dtype, 0)] * count)
        coordinate = list(at)
        coordinate[self.depth] = k
        first = self.layout.register_of(tuple(coordinate))
        if first not in self.packed:
            self.packed[first] = self._packed(coordinate, k, count)
        return self.packed[first]

    def _packed(self, coordinate: list[int], k: int, count: int) -> Elements:
        held = []
        for n in range(count):
            if n >> len(self.product.packed):
                held.append(constant_of(self.dtype, 0))
                continue
            coordinate[self.depth] = k + sum(bit for b, bit in enumerate(self.product.packed) if n >> b & 1)
            held.append(self.take(self.layout.register_of(tuple(coordinate))))
        words = self._finished(held)
        for absent in self.idle:
            zero = ir.Constant(words[0].type, 0.0 if self.dtype == dtypes.float64 else 0)
            words = [self.builder.select(absent, zero, word) for word in words]
        return words

    def _finished(self, held: Elements) -> Elements:
        if self.dtype == dtypes.float64:
            return held
        if self.chosen.a == "tf32":
            return [asm(self.builder, "cvt.rna.tf32.f32 $0, $1;", "=r,f", i32, held)]
        if self.chosen.unpacks:
            return [self._unpacked(held[:2]), self._unpacked(held[2:])]
        return packed(self.builder, held, self.dtype, words_of(self.dtype, len(held)))

    def _unpacked(self, pair: Elements) -> ir.Value:
        if all(isinstance(element, ir.Constant) and not element.constant for element in pair):
            return ir.Constant(i32, 0)
        (word,) = packed(self.builder, pair, self.dtype, words_of(self.dtype, 2))
        return asm(self.builder, f"cvt.rn.f16x2.{_EIGHT[self.dtype]}x2 $0, $1;", "=r,h", i32, [word])


@product_family("mma.sync", preference=1)
def mma_sync(product: MatrixProduct) -> Way | str:
    """Products of operands in registers, by warps."""
    a, b = product.tiles[:2]
    shape, depth, warps = product.shape, product.depth, a.config.num_warps
    chosen = instruction(a.dtype, b.dtype, product.precision, current().target, product.dtype)
    if chosen is None:
        return 'it does not take float32; precision="tf32" rounds them to 10 bits for it'
    itemsize = chosen.through[0].itemsize
    spread = layouts.product(shape, depth, warps, itemsize, chosen.packed, wide=chosen.wide)
    result = TileType(product.dtype, layouts.accumulator(shape, warps, itemsize), a.config)
    operands = Operands(product, chosen.through, (spread.a, spread.b))
    # Of `k` and of the columns so many may be there: see `nvidia.wgmma`.
    sides = ((product.a, a, -1), (product.b, b, -2), (product.b, b, -1))
    *both, columns = [ty.present(dim) if isinstance(ty, StagedType) else tile.shape[dim] for ty, tile, dim in sides]
    there = spread.part(max(both), columns)
    across = [len({at[-1] for at in each.starts}) for each in (there, spread)]
    present = left_out((len(there.steps), len(spread.steps), "steps of k"), (*across, "groups of columns"))

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value | None) -> ir.Value:
        first, second, total = operands.brought(builder, x, y, z, result, depth)
        words = [_Words(builder, spread, chosen, operand, k) for operand, k in ((first, -1), (second, -2))]
        return pack(builder, _by_instructions(builder, chosen, there, words[0], words[1], total, product.dtype))

    return Way(result, chosen.name, emit, present)


def _by_instructions(
    builder: ir.IRBuilder, chosen: Instruction, product: layouts.Product, a: _Words, b: _Words, total: Elements, wide: DType
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
                x = [a.words(at if p is None else p, None if p is None else k) for k in depths for p in places]
                y = [b.words(at, k) for k in depths]
                registers = [_pair(layout, p, product.column) for p in places]
                flat = [register for pair in registers for register in pair]
                z = [constant_of(wide, 0) if r is None else total[r] for r in flat]
                for first, second in zip(zip(*x, strict=True), zip(*y, strict=True), strict=True):
                    z = _mma(builder, chosen, list(first), list(second), z)
                for register, value in zip(flat, z, strict=True):
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
    if chosen.acc == "f16":
        words = words_of(dtypes.float16, 2)
        pairs = [word for n in range(0, len(z), 2) for word in packed(builder, z[n : n + 2], dtypes.float16, words)]
        sums = _instruction(builder, chosen, x, y, pairs)
        return [e for word in sums for e in elements_of(builder, [word], dtypes.float16, 2)]
    return _instruction(builder, chosen, x, y, z)


def _instruction(builder: ir.IRBuilder, chosen: Instruction, x: Elements, y: Elements, z: Elements) -> Elements:
    count, letter = len(z), "d" if chosen.a == "f64" else "r"
    names = iter(f"${n}" for n in range(2 * count + len(x) + len(y)))
    groups = [braced([next(names) for _ in part]) if len(part) > 1 else "{" + next(names) + "}" for part in (z, x, y, z)]
    text = f"{chosen.name} {', '.join(groups)};"
    letters = [f"={chosen.letter}"] * count + [letter] * (len(x) + len(y)) + [chosen.letter] * count
    kind = ir.LiteralStructType([z[0].type] * count)
    results = asm(builder, text, ",".join(letters), kind, [*x, *y, *z], convergent=True)
    return [builder.extract_value(results, n) for n in range(count)]


def _plus(x: Vector, y: Vector) -> Vector:
    return tuple(a | b for a, b in zip(x, y, strict=True))
