"""The machine code of products by warpgroups of 8-bit floats, 8-bit integers, and float32 as tf32."""

import re
from collections import Counter

import pytest

import tilekit as tk
from tilekit import api

BM, BN, BK = tk.generics("BM BN BK")
E4, E5 = tk.float8_e4m3fn, tk.float8_e5m2
SIZE = 4096


@tk.kernel
def persistent(c: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const, precision: tk.Const):
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
            acc = tk.mma(ta, tb, acc, precision=precision)
        c.store(acc.astype(c.dtype), tile)


@tk.kernel
def of_turned_tiles(c: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const, precision: tk.Const):
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BN, BK))[j, :]):
            acc = tk.mma(ta, tb.transpose(), acc, precision=precision)
        c.store(acc.astype(c.dtype), tile)


@tk.kernel
def of_one_tile(c: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const, precision: tk.Const):
    for tile in c.tiles():
        i, j = tile.index
        ta, acc = tk.load(a, (i, 0), (BM, BK), eviction_policy="evict_first"), tk.zeros((BM, BN), dtype)
        for tb in tk.pipelined(b.tiles((BK, BN))[:, j]):
            acc = tk.mma(ta, tb, acc, precision=precision)
        c.store(acc.astype(c.dtype), tile)


def compiled(pair, tile, precision="ieee", *, kernel=persistent, warps=8, cluster=None, turned=True, out=None):
    """The kernel, compiled; `b` is the transpose of a row-major matrix if it is `turned`."""
    a, b = (api.meta((SIZE, SIZE), dtype) for dtype in pair)
    acc = tk.int32 if pair[0] in (tk.int8, tk.uint8) else tk.float64 if pair[0] == tk.float64 else tk.float32
    c = api.meta((SIZE, SIZE), out or acc).partition(tile[:2]).map(num_blocks=132, cluster=cluster)
    op = kernel(c, a, b.T if turned and kernel is not of_turned_tiles else b, acc, precision)
    return op.generics(BM=tile[0], BN=tile[1], BK=tile[2]).num_warps(warps).compile(target="sm_90a")


def by_warpgroups(kernel):
    """How many there are of each instruction for warpgroups."""
    return Counter(re.findall(r"\b([HIQ]GMMA[.\w]*)", kernel.sass))


def letters(kernel):
    """What the warps that multiply do: Arrive, Multiply, the last one of a Group, waits for all but so many, and float additions
    as one `+`."""
    found = []
    for line in kernel.sass.splitlines():
        match = re.search(r"WARPGROUP\.ARRIVE|[HIQ]GMMA.*|WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)|\bFADD\b", line)
        if match:
            text = match[0]
            kind = "+" if "FADD" in text else "A" if "ARRIVE" in text else "G" if "gsb0 " in text else "M"
            found.append(match[1] or kind)
    return re.sub(r"\++", "+", "".join(found))


def touches_local_memory(kernel):
    """Whether warps that multiply do; what the loading thread keeps there costs nothing."""
    return bool(re.search(r"\b(LDL|STL)\b", kernel.sass.split("USETMAXREG.TRY_ALLOC")[-1]))


INSTRUCTIONS = {
    "e4m3, e4m3": ((E4, E4), "fast", "QGMMA.64x256x32.F32.E4M3.E4M3"),
    "e4m3, e5m2": ((E4, E5), "fast", "QGMMA.64x256x32.F32.E4M3.E5M2"),
    "e5m2, e4m3": ((E5, E4), "fast", "QGMMA.64x256x32.F32.E5M2.E4M3"),
    "e5m2, e5m2": ((E5, E5), "fast", "QGMMA.64x256x32.F32.E5M2.E5M2"),
    "int8, int8": ((tk.int8, tk.int8), "ieee", "IGMMA.64x256x32.S8.S8"),
    "int8, uint8": ((tk.int8, tk.uint8), "ieee", "IGMMA.64x256x32.S8.U8"),
    "uint8, int8": ((tk.uint8, tk.int8), "ieee", "IGMMA.64x256x32.U8.S8"),
    "uint8, uint8": ((tk.uint8, tk.uint8), "ieee", "IGMMA.64x256x32.U8.U8"),
    "tf32": ((tk.float32, tk.float32), "tf32", "HGMMA.64x256x8.F32.TF32"),
}
KERNELS = [persistent, of_turned_tiles]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("case", INSTRUCTIONS)
def test_products_follow_each_other(case, kernel):
    """A turn has 4 instructions for 128 bytes of k; one group stays under way."""
    pair, precision, instruction = INSTRUCTIONS[case]
    found = compiled(pair, (128, 256, 128 // pair[0].itemsize), precision, kernel=kernel, cluster=(2, 1))
    assert set(by_warpgroups(found)) == {instruction}
    assert re.fullmatch("(?:AMMMG1)+0+", letters(found)), letters(found)
    assert not touches_local_memory(found)
    assert "UTMALDG.2D.MULTICAST" in found.sass
    assert not re.search(r"\b(LDSM|LDS|HMMA|IMMA)\b", found.sass)


@pytest.mark.parametrize(
    ("tile", "warps", "chains", "columns"),
    [
        ((128, 256, 128), 8, 2, 128),
        ((128, 128, 128), 8, 1, 128),
        ((64, 256, 128), 4, 2, 128),
        ((64, 64, 256), 4, 2, 64),
        ((128, 64, 128), 4, 2, 64),
        ((64, 256, 128), 8, 1, 128),
    ],
    ids=str,
)
def test_short_sums_of_8_bit_floats_are_added_up(tile, warps, chains, columns):
    """A chain takes 128 of k, and begins at zero; its sums are waited for, and added to the accumulator."""
    found = compiled((E4, E5), tile, warps=warps)
    assert set(by_warpgroups(found)) == {f"QGMMA.64x{columns}x32.F32.E4M3.E5M2"}
    assert re.fullmatch(rf"(?:(?:AMMMG0+\+){{{chains}}})+", letters(found)), letters(found)
    assert not touches_local_memory(found)
    sums = re.findall(r"wgmma\.mma_async\S+ \{[^}]*\}, \S+, \S+, ([01]), 1, 1;", found.ptx)
    assert sums == ["0", "1", "1", "1"] * (len(sums) // 4)


ELSEWHERE = {
    "b row-major, fp8": ((E4, E4), "ieee", {"turned": False}, "HMMA.16816.F32"),
    "b row-major, int8": ((tk.int8, tk.int8), "ieee", {"turned": False}, "IMMA.16832.S8.S8"),
    "float32": ((tk.float32, tk.float32), "ieee", {}, "FFMA"),
    "float32, fast": ((tk.float32, tk.float32), "fast", {}, "FFMA"),
    "float64": ((tk.float64, tk.float64), "ieee", {}, "DMMA"),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_others_go_through_registers(case):
    pair, precision, options, instruction = ELSEWHERE[case]
    found = compiled(pair, (64, 64, 128 // pair[0].itemsize), precision, warps=4, **options)
    assert not by_warpgroups(found)
    assert instruction in found.sass
    # Of exact sums, rows come across K: each word by itself.
    assert ("LDGSTS" if case == "float32" else "UTMALDG") in found.sass


IN_SHARED_MEMORY = {
    "a is loaded before the loop": (tk.int8, "ieee", {"kernel": of_one_tile}, "IGMMA.64x64x32.S8.S8"),
    "b is turned over there": (tk.float32, "tf32", {"turned": False}, "HGMMA.64x64x8.F32.TF32"),
}


@pytest.mark.parametrize("case", IN_SHARED_MEMORY)
def test_others_come_to_shared_memory(case):
    dtype, precision, options, instruction = IN_SHARED_MEMORY[case]
    found = compiled((dtype, dtype), (64, 64, 128 // dtype.itemsize), precision, warps=4, **options)
    assert set(by_warpgroups(found)) == {instruction}
    assert "UTMALDG" in found.sass
    assert not touches_local_memory(found)


def test_fast_sums_of_16_bit_floats_are_as_they_were():
    made = [compiled((tk.bfloat16, tk.bfloat16), (128, 256, 64), precision) for precision in ("ieee", "fast", "tf32")]
    assert {letters(kernel) for kernel in made} == {letters(made[0])}
    assert [by_warpgroups(kernel) for kernel in made] == [{"HGMMA.64x256x16.F32.BF16": 4}] * 3
