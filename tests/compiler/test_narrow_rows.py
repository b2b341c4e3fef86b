"""Products by warpgroups of operands whose rows in shared memory have 64 or 32 bytes: their descriptors, and the code."""

from __future__ import annotations

import re

import hazards
import numpy as np
import pytest
from numba.cuda import types

import tilekit as tk
from tilekit import api
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.compiler.nvidia.wgmma import _Operand, _widened

BM, BN, BK = tk.generics("BM BN BK")
B, E4, F = tk.bfloat16, tk.float8_e4m3fn, tk.float32
SPANS = {1: 128, 2: 64, 3: 32}  # the layout type of a descriptor, and the bytes of a row in which it exchanges pieces


def as_wgmma_reads(bits, start, kept, deep, turned, itemsize):
    """The address of an element of an operand, by the canonical layouts of the PTX ISA.

    Args:
        bits, start: of the descriptor, and the address that is added to it.
        kept, deep: which row (of `a`; column of `b`), and which `k` of an instruction.
        turned: whether it is MN-major.
    """
    span, leading, stride = SPANS[bits >> 62], (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4
    if turned:
        panel, within = divmod(kept * itemsize, span)
        address = start + panel * leading + deep // 8 * stride + deep % 8 * span + within
    else:
        address = start + kept // 8 * stride + kept % 8 * span + deep * itemsize
    return address ^ (address >> 7 & span // 16 - 1) << 4


OPERANDS = [
    (B, (64, 32), False), (B, (128, 16), False), (B, (256, 64), False), (E4, (64, 64), False), (E4, (128, 32), False),
    (F, (128, 16), False), (F, (64, 8), False), (F, (128, 32), False), (B, (32, 32), True), (B, (16, 64), True),
    (B, (16, 16), True), (B, (64, 128), True), (B, (128, 64), True), (B, (64, 16), True),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "turned"), OPERANDS, ids=str)
@pytest.mark.parametrize("columns", [8, 16, 64])
def test_an_instruction_reads_what_lies_there(dtype, shape, turned, columns):
    """Each element that an instruction of so many columns reads is where the TMA, or threads, put it."""
    count, depth = shape
    memory, axes = (shape[::-1], (1, 0)) if turned else (shape, (0, 1))
    tile = StagedType(dtype, memory, axes, Config(4, 8))
    operand, swizzle = _Operand(tile, tile.span, 0, 1), tile.swizzle()
    assert operand.turned == turned
    assert SPANS[operand.bits >> 62] == tile.span
    assert 8 * tile.span == (operand.bits >> 32 & 0x3FFF) << 4, "an exchange begins anew after eight rows"
    each, columns = 32 // dtype.itemsize, min(columns, count)
    for first in range(0, count, columns):
        for step in range(depth // each):
            start = operand.along(first) + operand.depth(step) << 4
            for at in np.ndindex(columns, each):
                read = as_wgmma_reads(operand.bits, start, *at, turned, dtype.itemsize)
                assert read == swizzle.offset((first + at[0], step * each + at[1])) * dtype.itemsize


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(("depth", "columns"), [(32, 32), (64, 32), (64, 16), (16, 64), (32, 128)])
def test_an_instruction_reads_tiles_that_lie_behind_each_other(depth, columns, turned):
    memory, axes = ((depth, columns), (0, 1)) if turned else ((columns, depth), (1, 0))
    tile = StagedType(B, memory, axes, Config(4, 8))
    whole, swizzle = _widened(types.BaseTuple.from_types([tile] * 3)), tile.swizzle()
    operand = _Operand(whole, tile.span, 1, 0)
    for step in range(depth // 16):
        for at in np.ndindex(16, 3 * columns):
            read = as_wgmma_reads(operand.bits, operand.depth(step) << 4, at[1], at[0], turned, 2)
            number, column = divmod(at[1], columns)
            assert read == number * tile.room + 2 * swizzle.offset((16 * step + at[0], column))


@tk.kernel
def pipelined(c: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const, precision: tk.Const):
    acc = tk.zeros((BM, BN), dtype)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc, precision=precision)
    c.store(acc.astype(c.dtype))


@tk.kernel
def plain(c: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const, precision: tk.Const):
    acc = tk.zeros((BM, BN), dtype)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc, precision=precision)
    c.store(acc.astype(c.dtype))


def explained(kernel, dtype, tile, ways="NN", warps=8, n=1024, pitch=None):
    """What `explain` says of a product of matrices that are transposed (T) or not (N)."""
    sums = tk.int32 if dtype == tk.int8 else tk.float32
    a, b = (api.meta((n, pitch or n), dtype) for _ in ways)
    a, b = (x.T if way == "T" else x for x, way in zip((a, b), ways, strict=True))
    op = kernel(api.meta((a.shape[0], b.shape[1]), sums).partition(tile[:2]), a, b, sums, "tf32")
    return op.generics(BM=tile[0], BN=tile[1], BK=tile[2]).num_warps(warps).explain("sm_90a")


def check(found, instruction, *, copies="TMA"):
    """Its product is that instruction, of tiles that come ahead; nothing spills, and nothing is overwritten while it is read."""
    compiled = found.compiled
    assert set(re.findall(r"\b([HIQ]GMMA[.\w]*|[HI]MMA[.\w]*)", compiled.sass)) == {instruction}
    (product,) = found.products
    assert product.instruction.startswith("wgmma")
    assert not product.refusals
    (ring,) = found.pipelines
    assert ring.stages >= 4
    assert all(copies in tile for tile in ring.tiles)
    assert compiled.local_bytes == 0
    hazards.check(compiled)


@pytest.mark.parametrize("ways", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("depth", [32, 16])
@pytest.mark.parametrize("kernel", [pipelined, plain], ids=lambda kernel: kernel.name)
def test_16_bits(kernel, depth, ways):
    check(explained(kernel, B, (128, 128, depth), ways), "HGMMA.64x128x16.F32.BF16")


OF_OTHER_TYPES = {
    "e4m3, 64": (E4, (128, 128, 64), "NT", "QGMMA.64x128x32.F32.E4M3.E4M3"),
    "e4m3, 32": (E4, (128, 128, 32), "NT", "QGMMA.64x128x32.F32.E4M3.E4M3"),
    "int8, 64": (tk.int8, (128, 128, 64), "NT", "IGMMA.64x128x32.S8.S8"),
    "int8, 32": (tk.int8, (128, 128, 32), "NT", "IGMMA.64x128x32.S8.S8"),
    "tf32, 16": (F, (128, 128, 16), "NT", "HGMMA.64x128x8.F32.TF32"),
    "tf32, 8": (F, (128, 128, 8), "NT", "HGMMA.64x128x8.F32.TF32"),
    "tf32, 16, turned over": (F, (128, 128, 16), "NN", "HGMMA.64x128x8.F32.TF32"),
}


@pytest.mark.parametrize("case", OF_OTHER_TYPES)
def test_other_types(case):
    dtype, tile, ways, instruction = OF_OTHER_TYPES[case]
    check(explained(pipelined, dtype, tile, ways), instruction)


@pytest.mark.parametrize("ways", ["NN", "NT"])
@pytest.mark.parametrize("columns", [32, 16])
def test_few_columns(columns, ways):
    """Where rows lie along the result's columns, it is these that they have few of. Two groups of warps may share such a row."""
    check(explained(pipelined, B, (128, columns, 64), ways, warps=4), f"HGMMA.64x{columns}x16.F32.BF16")
    check(explained(pipelined, B, (64, columns, 64), ways), f"HGMMA.64x{columns // 2}x16.F32.BF16")


def test_rows_that_threads_copy():
    """They lie as the TMA would put them."""
    check(explained(plain, B, (128, 128, 32), n=1020, pitch=1020), "HGMMA.64x128x16.F32.BF16", copies="cp.async of 8 bytes")


@tk.kernel
def of_registers(c: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const, precision: tk.Const):
    acc = tk.zeros((BM, BN), dtype)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(tk.abs(ta), tb * 2, acc)
    c.store(acc)


@pytest.mark.parametrize("ways", ["NN", "NT"])
@pytest.mark.parametrize("tile", [(64, 32, 64), (64, 64, 32), (128, 16, 32), (64, 64, 16)], ids=str)
def test_operands_that_are_computed(tile, ways):
    check(explained(of_registers, B, tile, ways, warps=4), f"HGMMA.64x{tile[1]}x16.F32.BF16")


@tk.kernel
def gated(c: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const, precision: tk.Const):
    left, right = tk.zeros((BM, BN), dtype), tk.zeros((BM, BN), dtype)
    for ta, tb, tc in tk.pipelined(a.tiles((BM, BK))[0, :], b.tiles((BK, BN))[:, 0], b.tiles((BK, BN))[:, 1]):
        left, right = tk.mma(ta, tb, left), tk.mma(ta, tc, right)
    c.store(left * right)


ONE = [((128, 64, 32), "NT"), ((128, 64, 32), "NN"), ((128, 32, 64), "NN"), ((128, 32, 16), "NN")]


@pytest.mark.parametrize(("tile", "ways"), ONE, ids=str)
def test_products_of_one_tile_are_one(tile, ways):
    """Each tile has its panels, which go on as those of the next."""
    check(explained(gated, B, tile, ways, warps=4), f"HGMMA.64x{2 * tile[1]}x16.F32.BF16")


@tk.kernel
def attention(out: tk.Out, q: tk.In, k: tk.In, v: tk.In, factor):
    i = tk.bid(0)
    tq = tk.load(q, (i, 0), (64, 32))
    most, total, acc = tk.full(64, float("-inf"), F), tk.zeros(64, F), tk.zeros((64, 32), F)
    for j in range(tk.cdiv(k.shape[0], 64)):
        s = tk.mma(tq, tk.load(k, (j, 0), (64, 32)).transpose(), tk.zeros((64, 64), F)) * factor
        top = tk.maximum(most, tk.max(s, 1))
        p, scale = tk.exp(s - top[:, None]), tk.exp(most - top)
        total, most = total * scale + tk.sum(p, 1), top
        acc = tk.mma(p.astype(v.dtype), tk.load(v, (j, 0), (64, 32)), acc * scale[:, None])
    out.store((acc / total[:, None]).astype(out.dtype))


def test_attention_of_heads_of_32():
    x = api.meta((1024, 32), B)
    found = attention(x.partition((64, 32)), x, x, x, 1.0).num_warps(4).explain("sm_90a")
    assert all(product.instruction.startswith("wgmma") for product in found.products)
    assert not re.search(r"\bHMMA", found.compiled.sass)
    assert {ring.reason for ring in found.pipelines} == {""}
    assert found.compiled.local_bytes == 0
    hazards.check(found.compiled)
