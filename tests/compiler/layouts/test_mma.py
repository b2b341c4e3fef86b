"""Products of matrices, as the lowering emits them, carried out for all threads of a block at once.

`mma.sync` is computed from the registers of a warp as PTX documents where they belong, and not from tilekit's layouts. What else
is emulated is in `stand_ins/emulated.py`.
"""

import itertools
import re

import numpy as np
import pytest
from emulated import ROOM, Block, Fragment, Value, emulate, gathered, spread, value_of
from llvmlite import ir
from numba.cuda import types

import tilekit as tk
from tilekit.compiler.codegen import convert_layout as relayout
from tilekit.compiler.codegen import definition as ops
from tilekit.compiler.codegen.compilation import compiling
from tilekit.compiler.codegen.types import TileType, i32, register_type
from tilekit.compiler.layouts import mma as fragments
from tilekit.compiler.layouts.conversion import Matrices, Swizzle, wavefronts, within_threads
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.compiler.lower import matmul
from tilekit.compiler.nvidia import fma, mma_sync
from tilekit.compiler.nvidia import fragments as operands
from tilekit.compiler.nvidia.shared_operands import turned_over
from tilekit.compiler.nvidia.staged import StagedType, span_of
from tilekit.compiler.target import of

PTX = {
    "f16": np.float16, "bf16": tk.bfloat16, "tf32": np.float32, "f64": np.float64, "s8": np.int8, "u8": np.uint8,
    "e4m3": tk.float8_e4m3fn, "e5m2": tk.float8_e5m2, "f32": np.float32, "s32": np.int32,
}  # fmt: skip


def unpacked(block, values, dtype, count):
    """The elements `[thread][number]` that registers hold, `count` in each, the lowest bits first."""
    bits = np.stack([np.broadcast_to(value_of(v).bits, block.thread.shape) for v in values], 1)
    width = 8 * np.dtype(dtype).itemsize
    parts = [bits >> np.uint64(width * n) for n in range(count)]
    made = np.stack(parts, 2).reshape(len(block.thread), -1)
    return made.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)


def places(chosen, lane, k):
    """PTX's tables ("Matrix fragments for mma.m16n8k16" and its like): row and column of each element of a, b and the result."""
    group, member = divmod(lane, 4)
    if k == 4:  # m8n8k4
        return [(group, member)], [(member, group)], [(group, 2 * member + i) for i in range(2)]
    size = k // 8  # neighbouring elements of k in a register
    a = [(group + 8 * (i // size % 2), size * member + i % size + k // 2 * (i // (2 * size))) for i in range(4 * size)]
    b = [(size * member + i % size + k // 2 * (i // size), group) for i in range(2 * size)]
    return a, b, [(group + 8 * (i // 2), 2 * member + i % 2) for i in range(4)]


def carried_out(block, chosen, x, y, z):
    """`mma.sync`, by every warp; sums of float64 of small integers are exact."""
    rows, columns, k = map(int, re.match(r"m(\d+)n(\d+)k(\d+)", chosen.shape).groups())
    assert len(x) * (64 if chosen.a == "f64" else 32) * 32 == rows * k * 8 * np.dtype(PTX[chosen.a]).itemsize
    count = 2 if chosen.unpacks else 1 << chosen.packed
    a, b = (unpacked(block, v, PTX[kind], count) for v, kind in ((x, chosen.a), (y, chosen.b)))
    c = unpacked(block, z, PTX[chosen.acc], 1)
    made = np.zeros(c.shape, c.dtype)
    for warp in range(0, len(block.thread), 32):
        left, right, total = np.full((rows, k), np.nan), np.full((k, columns), np.nan), np.full((rows, columns), np.nan)
        tables = [places(chosen, lane, k) for lane in range(32)]
        for lane, table in enumerate(tables):
            for matrix, held, at in zip((left, right, total), (a, b, c), table, strict=True):
                for n, place in enumerate(at):
                    matrix[place] = held[warp + lane, n]
        assert not np.isnan(left).any()
        assert not np.isnan(right).any()
        result = left @ right + total
        for lane, (_, _, at) in enumerate(tables):
            made[warp + lane] = [result[place] for place in at]
    bits = made.view(f"u{made.dtype.itemsize}").astype(np.uint64)
    return [Value(z[0].type, bits[:, n]) for n in range(len(z))]


def in_words(block, held, dtype, words):
    bits = sum(value_of(e).bits << np.uint64(8 * dtype.itemsize * n) for n, e in enumerate(held))
    return [Value(words.type, bits)]


def converted(block, value, source, target):
    if source == target:
        return value
    bits = block.whole(value_of(value).bits).astype(f"u{source.itemsize}")
    made = bits.view(source).astype(np.float32).astype(target)
    return Value(register_type(target), made.view(f"u{target.itemsize}"))


def assembly(block, text, letters, result, args):
    """Conversions of operands: to tf32, which holds small integers, and of two 8-bit floats."""
    bits = value_of(args[0]).bits
    if two := re.match(r"cvt\.rn\.f16x2\.(\w+)x2 ", text):
        pair = np.stack([bits >> np.uint64(8 * n) for n in range(2)]).astype(np.uint8).view(PTX[two[1]])
        low, high = pair.astype(np.float16).view(np.uint16).astype(np.uint64)
        bits = low | high << np.uint64(16)
    return Value(result, bits)


def shuffled(block, value, distance):
    return Value(value.type, block.whole(value_of(value).bits)[(block.thread ^ np.uint64(distance)).astype(int)])


def looped(block, end, step, total, body):
    assert end > step == 4
    for k in range(0, end, step):
        total = body(Value(i32, k), total)
    return total


def summed(block, x, y, z):
    a, b, c = (block.whole(value_of(v).bits).astype(np.uint32).view(np.float32) for v in (x, y, z))
    return Value(z.type, (a * b + c).view(np.uint32))


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    emulate(monkeypatch, [matmul, operands, mma_sync, fma, relayout])
    monkeypatch.setattr(relayout, "_shuffled", shuffled)
    monkeypatch.setattr(mma_sync, "_mma", carried_out)
    monkeypatch.setattr(mma_sync, "packed", in_words)
    monkeypatch.setattr(fma.arithmetic, "fma", summed)
    monkeypatch.setattr(fma, "_looped", looped)
    for count in ("_UNROLLED", "_AHEAD"):
        monkeypatch.setattr(fma, count, 1)  # every product of float32 with a k of 8 or more is a loop
    monkeypatch.setattr(mma_sync, "thread_bit", lambda block, bit: Value(ir.IntType(1), block.thread >> np.uint64(bit)))
    monkeypatch.setattr(operands, "convert", converted)
    monkeypatch.setattr(mma_sync, "asm", assembly)


def small(shape, dtype, seed):
    return np.random.default_rng(seed).integers(0 if dtype == tk.uint8 else -3, 4, shape).astype(dtype)


def product(shape, depth, dtypes, warps, layouts=None, precision="ieee", capability=(9, 0)):
    """The result of `tk.mma` on integers, the layout that it comes in, and what NumPy says."""
    *batch, rows, columns = shape
    shapes = [(*batch, rows, depth), (*batch, depth, columns), shape]
    acc = (
        tk.int32 if dtypes[0].itemsize == 1 and dtypes[0].kind in "iu" else tk.float64 if dtypes[0] == tk.float64 else tk.float32
    )
    given = [small(s, d, n) for n, (s, d) in enumerate(zip(shapes, (*dtypes, acc), strict=True))]
    config = Config(warps, 16 // dtypes[0].itemsize)
    layouts = layouts or [Layout.blocked(s, config) for s in shapes]
    block = Block(config.num_threads)
    with compiling(config, target=of(capability)):
        tiles = [TileType(x.dtype, layout, config) for x, layout in zip(given, layouts, strict=True)]
        ty, emit = ops.LOWERINGS[tk.mma](*tiles, types.StringLiteral(precision))
        made = emit(block, *(spread(block, layout, x) for x, layout in zip(given, layouts, strict=True)), None)
    a, b, c = (x.astype(np.float64) for x in given)
    return gathered(block, ty.layout, Fragment(made), acc), ty.layout, (a @ b + c).astype(acc)


KINDS = [
    (tk.float16, tk.float16), (tk.bfloat16, tk.bfloat16), (tk.float32, tk.float32), (tk.float64, tk.float64), (tk.int8, tk.uint8),
    (tk.uint8, tk.uint8), (tk.float8_e4m3fn, tk.float8_e5m2),
]  # fmt: skip
SHAPES = [
    ((16, 8), 16, 1), ((64, 64), 64, 4), ((32, 128), 32, 8), ((128, 32), 16, 4), ((2, 32, 16), 32, 4), ((4, 16, 16), 8, 2),
    ((1, 1), 1, 1), ((1, 64), 32, 2), ((64, 1), 4, 4), ((8, 4), 2, 2), ((2, 2), 128, 1), ((4, 16), 1, 1), ((16, 64), 256, 2),
]  # fmt: skip


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "-".join(d.name for d in kinds))
@pytest.mark.parametrize(("shape", "depth", "warps"), SHAPES)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_products(shape, depth, warps, kinds, capability):
    found, layout, wanted = product(shape, depth, kinds, warps, capability=capability)
    np.testing.assert_array_equal(found, wanted)
    assert fragments.is_accumulator(layout)


@pytest.mark.parametrize(("shape", "depth", "warps"), SHAPES)
def test_products_of_tf32(shape, depth, warps):
    found, _, wanted = product(shape, depth, (tk.float32, tk.float32), warps, precision="tf32")
    np.testing.assert_array_equal(found, wanted)


def turned(shape, config):
    """The layout of a tile that was transposed."""
    *batch, rows, columns = shape
    axes = (*range(len(batch)), len(batch) + 1, len(batch))
    return Layout.blocked((*batch, columns, rows), config).permute(axes)


@pytest.mark.parametrize("kinds", [KINDS[0], KINDS[2], KINDS[3], KINDS[4]], ids=lambda kinds: kinds[0].name)
@pytest.mark.parametrize(("shape", "depth", "warps"), [s for s in SHAPES if max(s[0]) > 8])
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_operands_in_other_layouts(shape, depth, warps, kinds, which):
    *batch, rows, columns = shape
    config = Config(warps, 16 // kinds[0].itemsize)
    shapes = [(*batch, rows, depth), (*batch, depth, columns), shape]
    layouts = [Layout.blocked(s, config) for s in shapes]
    for n, name in enumerate("ab"):
        if which in (name, "both"):
            layouts[n] = turned(shapes[n], config)
    layouts[2] = turned(shape, config)
    found, _, wanted = product(shape, depth, kinds, warps, layouts)
    np.testing.assert_array_equal(found, wanted)


STAGES = [((64, 64), 64, 4), ((128, 64), 32, 8), ((32, 128), 64, 1), ((64, 32), 128, 2), ((16, 64), 16, 1)]
STAGED = [
    (tk.float16, tk.float16, (8, 0), "ieee"), (tk.bfloat16, tk.bfloat16, (8, 0), "ieee"),
    (tk.float64, tk.float64, (8, 0), "ieee"),
    (tk.float32, tk.float32, (8, 0), "ieee"), (tk.float32, tk.float32, (8, 0), "tf32"), (tk.int8, tk.uint8, (8, 0), "ieee"),
    (tk.float8_e4m3fn, tk.float8_e5m2, (8, 0), "ieee"), (tk.float8_e4m3fn, tk.float8_e5m2, (8, 9), "ieee"),
]  # fmt: skip


@pytest.mark.parametrize("kinds", STAGED, ids=str)
@pytest.mark.parametrize(("shape", "depth", "warps"), STAGES)
@pytest.mark.parametrize("which", ["a", "b", "ab"])
@pytest.mark.parametrize("turned", ["", "ab"])
def test_operands_that_lie_in_stages(shape, depth, warps, kinds, which, turned):
    """Of one or both, whichever dimension is contiguous there: read as instructions take them, or as threads hold them."""
    *kinds, capability, precision = kinds
    rows, columns = shape
    shapes, config = [(rows, depth), (depth, columns), shape], Config(warps, 16 // kinds[0].itemsize)
    acc = tk.int32 if kinds[0].kind in "iu" else tk.float64 if kinds[0] == tk.float64 else tk.float32
    given = [small(s, d, n) for n, (s, d) in enumerate(zip(shapes, (*kinds, acc), strict=True))]
    layouts = [Layout.blocked(s, config) for s in shapes]
    block, start = Block(config.num_threads), ROOM
    with compiling(config, target=of(capability)):
        tiles = [TileType(x.dtype, layout, config) for x, layout in zip(given, layouts, strict=True)]
        values = [spread(block, layout, x) for x, layout in zip(given, layouts, strict=True)]
        for n, name in enumerate("ab"):
            size = given[n].itemsize
            memory, axes = (shapes[n][::-1], (1, 0)) if name in turned else (shapes[n], (0, 1))
            if name not in which or span_of(memory[-1] * size) is None:
                continue
            tiles[n], values[n] = StagedType(given[n].dtype, memory, axes, config), Value(i32, start)
            held, swizzle = np.zeros(given[n].size, given[n].dtype), tiles[n].swizzle()
            for at in np.ndindex(shapes[n]):
                held[swizzle.offset(at)] = given[n][at]
            block.memory[start : start + held.nbytes] = held.view(np.uint8)
            start += held.nbytes
        ty, emit = ops.LOWERINGS[tk.mma](*tiles, types.StringLiteral(precision))
        made = emit(block, *values, None)
    a, b, c = (x.astype(np.float64) for x in given)
    np.testing.assert_array_equal(gathered(block, ty.layout, Fragment(made), acc), (a @ b + c).astype(acc))


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("shape", [(32, 64), (32, 256), (64, 128), (16, 64), (16, 128)], ids=str)
def test_a_stage_that_is_turned_over(shape, warps):
    """It lies then as the tensor memory accelerator would bring the other matrix."""
    staged, given = StagedType(tk.float32, shape, (0, 1), Config(warps, 4)), small(shape, tk.float32, 5)
    layout, lies = turned_over(staged)
    block, behind = Block(32 * warps), ROOM + given.nbytes
    stage = np.zeros(given.size, np.float32)
    for at in np.ndindex(shape):
        stage[staged.swizzle().offset(at)] = given[at]
    block.memory[ROOM:behind] = stage.view(np.uint8)
    with compiling(staged.config, target=of((9, 0))):
        elements = staged.read(block, Value(i32, ROOM), layout)
        way = relayout.InShared(tk.float32, lies.swizzle(), layout)
        for registers, address, offset in relayout.accesses(block, Value(i32, behind), 4, way.swizzle, layout):
            relayout.shared.put(block, address, offset, staged.dtype, [elements[r] for r in registers])
    found = block.memory[behind : behind + given.nbytes].view(np.float32)
    other = StagedType(tk.float32, shape[::-1], (0, 1), staged.config).swizzle()
    for at in np.ndindex(shape):
        assert found[other.offset(at[::-1])] == given[at]


@pytest.mark.parametrize("kinds", [KINDS[0], KINDS[2]], ids=lambda kinds: kinds[0].name)
@pytest.mark.parametrize(("rows", "columns", "depth", "warps"), [(64, 32, 32, 1), (128, 64, 64, 2), (64, 16, 16, 4)])
def test_what_a_product_leaves_is_an_operand(rows, columns, depth, warps, kinds):
    size = kinds[0].itemsize
    left = fragments.accumulator((rows, depth), warps, size)
    config = Config(warps, 8)
    layouts = [left, Layout.blocked((depth, columns), config), fragments.accumulator((rows, columns), warps, size)]
    found, _layout, wanted = product((rows, columns), depth, kinds, warps, layouts, precision="tf32")
    np.testing.assert_array_equal(found, wanted)
    a = fragments.product((rows, columns), depth, warps, size, 2 // size, wide=True).a
    if size == 2 and not any(vector[1] for vector in left.warp):
        assert within_threads(left, a) is not None, "where warps share no rows, it stays in its threads"


@pytest.mark.parametrize(("itemsize", "packed"), [(1, 2), (2, 1), (4, 0), (8, 0)])
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("shape", [(16, 8), (32, 32), (64, 64), (128, 128), (64, 256), (2, 32, 64)], ids=str)
@pytest.mark.parametrize("depth", [8, 32, 64])
def test_operands_meet_no_bank_conflicts(shape, depth, warps, itemsize, packed):
    made = fragments.product(shape, depth, warps, itemsize, packed, wide=True)
    slow = fragments.sum_of_products(shape, depth, warps)
    config = Config(warps, 16 // itemsize)
    for target in (made.a, made.b, *(slow if itemsize == 4 else ())):
        for source in (Layout.blocked(target.shape, config), turned(target.shape, config)):
            if within_threads(source, target) is None:
                matrices = Matrices.between(source.reg, target, itemsize)
                read = matrices.pointing if matrices else target
                swizzle = Swizzle.between(source, read, itemsize)
                for layout in (source, read):
                    widest = 32 * (itemsize << len(swizzle.shared))
                    assert wavefronts(swizzle, layout, itemsize) <= max(1, widest // 128)


@pytest.mark.parametrize("warps", [1, 2, 8, 16, 32])
@pytest.mark.parametrize("shape", [(1, 1), (8, 4), (16, 8), (128, 128), (16, 512), (512, 16), (8, 16, 16), (64, 1, 1)], ids=str)
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_every_element_of_a_result_has_a_place(shape, warps, itemsize):
    layout = fragments.accumulator(shape, warps, itemsize)
    held = {
        tuple(a ^ b for a, b in zip(at, layout.thread_coordinate(thread), strict=True))
        for at in layout.coordinates()
        for thread in range(32 * warps)
    }
    assert held == set(itertools.product(*map(range, shape)))
    assert len(layout.warp) == warps.bit_length() - 1
    assert all(map(any, layout.reg)), "registers hold no copies"
