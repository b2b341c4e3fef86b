"""The machine code of products of matrices: which instructions, how operands reach them, what stays in registers.

In loops that load as they go; rings of stages are in test_pipelined_code.py.
"""

import re
from collections import Counter

import pytest

import tilekit as tk
from tilekit import api

BM, BN, BK = tk.generics("BM BN BK")


@tk.kernel
def gemm(c: tk.Out, a: tk.In, b: tk.In, acc_dtype: tk.Const, precision: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((BM, BN), acc_dtype)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j], warp_specialize=False):
        acc = tk.mma(ta, tb, acc, precision=precision)
    c.store(acc.astype(c.dtype))


@tk.kernel
def added(c: tk.InOut, a: tk.In, b: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    acc = c.load()
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BN, BK))[j, :], warp_specialize=False):
        acc = tk.mma(ta, tb.transpose(), acc)
    c.store(acc)


def meta(dtype, *shape):
    return api.meta(shape, dtype)


def launch(dtypes, tile, *, acc="float32", out=None, precision="ieee", warps=None):
    bm, bn, bk = tile
    a, b = (meta(d, 4096, 4096) for d in dtypes)
    c = meta(out or getattr(tk, acc), 4096, 4096).partition((bm, bn))
    op = gemm(c, a, b, acc, precision).generics(BM=bm, BN=bn, BK=bk)
    return op if warps is None else op.num_warps(warps)


def instructions(kernel):
    """How many there are of each instruction that matters here."""
    names = "HMMA|IMMA|DMMA|QMMA|FFMA|LDS|LDSM|STS|LDG|STG|LDL|STL|SHFL"
    return Counter(re.findall(rf"\b((?:{names})\b[.\w]*)", kernel.sass))


def of(counted, name):
    return sum(n for instruction, n in counted.items() if instruction.startswith(name))


def loop(kernel):
    """The machine code from the label that the last jump back goes to, up to that jump."""
    lines = kernel.sass.splitlines()
    labels = {m[1]: n for n, line in enumerate(lines) if (m := re.match(r"\s*(\.L_x_\d+):", line))}
    jumps = [(n, m[1]) for n, line in enumerate(lines) if (m := re.search(r"BRA `\((\.L_x_\d+)\)", line))]
    back = [(labels[label], n) for n, label in jumps if labels.get(label, n) < n and n - labels[label] > 20]
    first, last = min(back)
    return "\n".join(lines[first:last])


# (operands, accumulator, precision, instruction on sm_80 and on sm_90a, its extents' product)
KINDS = {
    "float16": ((tk.float16, tk.float16), "float32", "ieee", ("HMMA.16816.F32", "HMMA.16816.F32"), (2048, 2048)),
    "bfloat16": ((tk.bfloat16, tk.bfloat16), "float32", "ieee", ("HMMA.16816.F32.BF16", "HMMA.16816.F32.BF16"), (2048, 2048)),
    "tf32": ((tk.float32, tk.float32), "float32", "tf32", ("HMMA.1688.F32.TF32", "HMMA.1688.F32.TF32"), (1024, 1024)),
    "int8": ((tk.int8, tk.uint8), "int32", "ieee", ("IMMA.16832.S8.U8", "IMMA.16832.S8.U8"), (4096, 4096)),
    "float8": ((tk.float8_e4m3fn, tk.float8_e5m2), "float32", "ieee", ("HMMA.16816.F32", "HMMA.16816.F32"), (2048, 2048)),
    "float64": ((tk.float64, tk.float64), "float64", "ieee", ("DMMA.884", "DMMA.16x8x8"), (256, 1024)),
}  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_cores(kind, target):
    dtypes, acc, precision, names, sizes = KINDS[kind]
    late = target == "sm_90a"
    kernel = launch(dtypes, (64, 64, 64), acc=acc, precision=precision, warps=4).compile(target=target)
    found = instructions(kernel)
    assert of(found, names[late]) == 64**3 // 4 // sizes[late], found
    assert of(found, "FFMA") == 0
    assert kernel.local_bytes == 0
    assert of(found, "LDL") == of(found, "STL") == 0
    assert {n for n in found if n.startswith("LDG")} == {"LDG.E.128"}
    assert {n for n in found if n.startswith("STG")} == {"STG.E.128"}, "two sectors of a row at a time"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("turned", [False, True])
def test_operands_of_16_bits_are_read_as_matrices(turned, target):
    """By 4 warps that share rows, and 2 that share columns: 128 x 64 elements twice, 64 x 128 four times; nothing is moved."""
    if turned:
        c = meta(tk.float32, 4096, 4096).partition((128, 128))
        op = added(c, meta(tk.bfloat16, 4096, 4096), meta(tk.bfloat16, 4096, 4096)).generics(BM=128, BN=128, BK=64).num_warps(8)
    else:
        op = launch((tk.bfloat16, tk.bfloat16), (128, 128, 64), warps=8)
    code = loop(op.compile(target=target))
    found = Counter(re.findall(r"\b((?:LDS|LDSM|STS|HMMA)\b[.\w]*)", code))
    rows, columns = 128 * 64 * 2 * 2 // 16 // 256, 64 * 128 * 4 * 2 // 16 // 256
    wanted = {"HMMA.16816.F32.BF16": 64, "STS.128": 2 * 128 * 64 * 2 // 16 // 256}
    wanted |= {"LDSM.16.M88.4": rows + columns} if turned else {"LDSM.16.M88.4": rows, "LDSM.16.MT88.4": columns}
    assert found == wanted
    assert len(re.findall(r"\bMOV\b|\bPRMT\b", code)) <= 16


@pytest.mark.parametrize("kind", ["tf32", "int8", "float8", "float64"])
def test_others_are_read_16_bytes_at_a_time(kind):
    dtypes, acc, precision, *_ = KINDS[kind]
    size = 128 if dtypes[0].itemsize == 1 else 64
    kernel = launch(dtypes, (size, size, size), acc=acc, precision=precision, warps=size // 16).compile(target="sm_90a")
    found = instructions(kernel)
    assert {n for n in found if n.startswith(("LDS", "STS"))} == {"LDS.128", "STS.128"}


def test_two_blocks_fit_on_a_multiprocessor():
    kernel = launch((tk.bfloat16, tk.bfloat16), (128, 128, 64), out=tk.bfloat16, warps=8).occupancy(2).compile(target="sm_90a")
    assert (kernel.registers <= 128, kernel.local_bytes) == (True, 0)


# Registers that a thread may take; more would mean fewer blocks on a multiprocessor.
BUDGET = [
    (tk.bfloat16, (128, 128, 64), 8, 160), (tk.bfloat16, (128, 256, 64), 8, 255), (tk.bfloat16, (64, 64, 64), 4, 128),
    (tk.bfloat16, (128, 256, 64), None, 128), (tk.float32, (128, 128, 32), 8, 128), (tk.float32, (64, 64, 32), 4, 128),
]  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("dtype", "tile", "warps", "registers"), BUDGET, ids=str)
def test_registers(dtype, tile, warps, registers, target):
    kernel = launch((dtype, dtype), tile, warps=warps).compile(target=target)
    assert kernel.registers <= registers
    assert kernel.local_bytes == 0


@pytest.mark.parametrize("start", ["zeros", "loaded"])
def test_an_accumulator_stays_where_it_is_round_a_loop(start):
    """In the loop nothing moves but the operands: nothing is stored, exchanged, or converted."""
    if start == "zeros":
        op = launch((tk.float16, tk.float16), (64, 64, 32), warps=4)
    else:
        c = meta(tk.float32, 4096, 4096).partition((64, 64))
        op = added(c, meta(tk.float16, 4096, 4096), meta(tk.float16, 4096, 4096)).generics(BM=64, BN=64, BK=32).num_warps(4)
    explained = op.explain(target="sm_80")
    moved = [each for each in explained.conversions if "float32" in each.what and each.way != "registers"]  # but when stored
    assert len(moved) == (start == "loaded"), "loaded before the loop, in the layout of loads"
    code = loop(explained.compiled)
    assert code.count("HMMA.16816.F32") == 16
    assert code.count("BAR.SYNC") == 2
    assert not re.search(r"\b(STG|SHFL|STL|LDL)\b", code)


def test_float32_is_multiplied_by_each_thread():
    kernel = launch((tk.float32, tk.float32), (128, 128, 32), warps=8).compile(target="sm_90a")
    found = instructions(kernel)
    assert of(found, "HMMA") == 0
    assert found["FFMA"] == 512, "the loop over k is no longer than that"
    assert found["LDS.128"] == of(found, "LDS") == 32 + 4, "of 8 rows and 8 columns for each k, and the first before the loop"


def test_eight_bit_floats_need_no_instruction_of_their_own():
    """sm_89 and sm_120 multiply them; sm_90 and those before make float16 of them, which is exact."""
    for target, name in (("sm_80", "HMMA.16816.F32"), ("sm_89", "QMMA.16832.F32.E4M3.E5M2"), ("sm_90a", "HMMA.16816.F32")):
        kernel = launch((tk.float8_e4m3fn, tk.float8_e5m2), (64, 64, 64), warps=4).compile(target=target)
        assert of(instructions(kernel), name)


def test_a_row_of_a_warp_stays_in_it_between_two_products():
    """What a product leaves is an operand of the next where warps share no rows: nothing goes through shared memory."""

    @tk.kernel(num_warps=1)
    def twice(y: tk.Out, a: tk.In, b: tk.In, c: tk.In):
        t = tk.mma(tk.load(a, (0, 0), (64, 32)), tk.load(b, (0, 0), (32, 32)), tk.zeros((64, 32), tk.float32))
        y.store(tk.mma(t.astype(tk.float16), tk.load(c, (0, 0), (32, 32)), tk.zeros((64, 32), tk.float32)))

    given = [meta(tk.float16, 64, 32), meta(tk.float16, 32, 32), meta(tk.float16, 32, 32)]
    explained = twice(meta(tk.float32, 64, 32).partition((64, 32)), *given).explain(target="sm_90a")
    assert Counter(c.way for c in explained.conversions) == {"shared memory": 3, "registers": 2}


def test_operands_must_have_room():
    with pytest.raises(tk.CompileError, match=r"mma: the operands need 262,144 bytes of shared memory, .* 232,448; take smaller"):
        launch((tk.float16, tk.float16), (256, 256, 256)).compile(target="sm_90a")
