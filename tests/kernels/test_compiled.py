"""What the compiler makes of every kernel, for two architectures: wide accesses, no local memory, a budget of registers.

A budget is what the kernel took when it was written, and a little more. It decides how many blocks a multiprocessor holds, and so
how many bytes are on their way to it: who raises one should measure. No GPU is needed.
"""

from __future__ import annotations

import re
from collections import Counter
from unittest.mock import patch

import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import _embedding, _loss, _norm_gradients, _scan, _selection, epilogues
from tilekit.kernels._gemm import grouped, recipes

B, H, F, D = tk.bfloat16, tk.float16, tk.float32, tk.float64
ROWS = 8192


def m(*shape, dtype=F):
    return api.meta(shape, dtype)


def i64(*shape):
    return api.meta(shape, tk.int64)


def launch_in(op):
    """The first launch that an op is made of, which is compiled and not run."""
    op.consumed()
    waiting = [op]
    while waiting:
        op = waiting.pop()
        if isinstance(op, tk.KernelLaunch):
            return op
        waiting += reversed(op.parts())
    raise AssertionError("no launch in it")


def rows(function, columns, dtype=F, weights=0, tensors=1):
    given = [m(ROWS, columns, dtype=dtype)] * tensors + [m(columns, dtype=dtype)] * weights
    return lambda: function(*given)


def weight_gradients(dtype):
    parts = [m(16, 4096).partition((1, 128)) for _ in range(2)]
    x, s = m(ROWS, 4096, dtype=dtype), m(ROWS)
    return _norm_gradients._weight_gradients(*parts, x, x, s, s, ROWS // 16, 32, 16, True, F).num_warps(4)


def by_parts(function, *args):
    """The launches of a gradient of a norm whose blocks do not stay."""

    def make():
        with patch.object(_norm_gradients, "_staying", return_value=None):
            return rows(function, *args)()

    return make


def best_of_best():
    out = [m(ROWS, 8, dtype=d).partition((1, 8)) for d in (F, tk.int64)]
    return _selection._topk_of_best(*out, m(ROWS, 64), i64(ROWS, 64), 64, float("-inf"), True, tk.int32).num_warps(1)


def cumsum_from(reverse):
    return _scan._cumsum_from(m(1, 1 << 20).partition((1, 8192)), m(1, 1 << 20), m(1, 128), 127, reverse).num_warps(8)


def cumsum_after(reverse):
    return _scan._cumsum_after(m(1, 1 << 20).partition((1, 8192)), m(1, 1 << 20), m(1, 129)[:, :128], 128, reverse).num_warps(8)


# What is compiled, with the budget of registers for sm_90a; sm_80 gets 8 more.
KERNELS = {
    "softmax f32 64": (rows(kernels.softmax, 64), 48),
    "softmax f32 1024": (rows(kernels.softmax, 1024), 48),
    "softmax f32 4096": (rows(kernels.softmax, 4096), 48),
    "softmax f32 16384": (rows(kernels.softmax, 16384), 64),
    "softmax f32 32768": (rows(kernels.softmax, 32768), 128),
    "softmax f32 131072": (rows(kernels.softmax, 131072), 48),
    "softmax f16 4096": (rows(kernels.softmax, 4096, H), 64),
    "softmax f16 32768": (rows(kernels.softmax, 32768, H), 48),
    "softmax f16 131072": (rows(kernels.softmax, 131072, H), 48),
    "softmax bf16 8192": (rows(kernels.softmax, 8192, tk.bfloat16), 64),
    "softmax f64 4096": (rows(kernels.softmax, 4096, D), 80),
    "log_softmax f32 4096": (rows(kernels.log_softmax, 4096), 56),
    "softmax_backward f32 4096": (rows(kernels.softmax_backward, 4096, tensors=2), 48),
    "softmax_backward f16 131072": (rows(kernels.softmax_backward, 131072, H, tensors=2), 64),
    "log_softmax_backward f16 4096": (rows(kernels.log_softmax_backward, 4096, H, tensors=2), 64),
    "layer_norm f16 4096": (rows(kernels.layer_norm, 4096, H, 2), 80),
    "layer_norm f16 8192": (rows(kernels.layer_norm, 8192, H, 2), 128),
    "layer_norm bf16 16384": (rows(kernels.layer_norm, 16384, tk.bfloat16, 2), 64),
    "layer_norm f32 4096": (rows(kernels.layer_norm, 4096, F, 2), 64),
    "layer_norm f32 16384": (rows(kernels.layer_norm, 16384, F, 2), 128),
    "layer_norm f16 65536": (rows(kernels.layer_norm, 65536, H, 2), 104),
    "rms_norm f16 4096": (rows(kernels.rms_norm, 4096, H, 1), 64),
    "rms_norm f16 8192": (rows(kernels.rms_norm, 8192, H, 1), 248),  # up to 255 leave room for its 4 blocks
    "rms_norm f32 8192": (rows(kernels.rms_norm, 8192, F, 1), 64),
    "add_rms_norm bf16 4096": (rows(kernels.add_rms_norm, 4096, tk.bfloat16, 1, 2), 64),
    "add_rms_norm_backward bf16 4096": (by_parts(kernels.add_rms_norm_backward, 4096, tk.bfloat16, 1, 3), 96),
    "add_rms_norm_backward f16 65536": (rows(kernels.add_rms_norm_backward, 65536, H, 1, 3), 80),
    "layer_norm_backward f16 4096": (by_parts(kernels.layer_norm_backward, 4096, H, 1, 2), 96),
    "layer_norm_backward f32 8192": (by_parts(kernels.layer_norm_backward, 8192, F, 1, 2), 96),
    "rms_norm_backward f16 65536": (rows(kernels.rms_norm_backward, 65536, H, 1, 2), 72),
    "l2_norm f16 4096": (rows(kernels.l2_norm, 4096, H), 56),
    "l2_norm f32 4096": (rows(kernels.l2_norm, 4096), 40),
    "l2_norm f64 4096": (rows(kernels.l2_norm, 4096, D), 64),
    "l2_norm f16 65536": (rows(kernels.l2_norm, 65536, H), 64),
    "l2_norm_backward f16 4096": (rows(kernels.l2_norm_backward, 4096, H, tensors=2), 64),
    "l2_norm_backward f32 4096": (rows(kernels.l2_norm_backward, 4096, tensors=2), 48),
    "l2_norm_backward f16 65536": (rows(kernels.l2_norm_backward, 65536, H, tensors=2), 72),
    "weight gradients f16": (lambda: weight_gradients(H), 112),
    "weight gradients f32": (lambda: weight_gradients(F), 104),
    "sums of columns": (lambda: _norm_gradients._column_sums(m(4096).partition(128), m(16, 4096), 1, 16), 160),
    "sums of columns of two": (
        lambda: _norm_gradients._column_sums_of_two(
            m(128).partition(8), m(128).partition(8), m(319, 128), m(319, 128), 1, 512
        ).num_warps(8),
        96,
    ),
    "gelu f32": (rows(kernels.gelu, 4096), 48),
    "gelu f16": (rows(kernels.gelu, 4096, H), 72),
    "gelu tanh f16": (rows(lambda x: kernels.gelu(x, approximate="tanh"), 4096, H), 80),
    "gelu_backward f16": (rows(kernels.gelu_backward, 4096, H, tensors=2), 88),
    "silu f16": (rows(kernels.silu, 4096, H), 72),
    "silu_backward f32": (rows(kernels.silu_backward, 4096, tensors=2), 64),
    "swiglu f16": (rows(kernels.swiglu, 4096, H, tensors=2), 80),
    "swiglu_backward f16": (rows(kernels.swiglu_backward, 4096, H, tensors=3), 88),
    "dropout f32": (rows(lambda x: kernels.dropout(x, 0.1, 3), 4096), 40),
    "dropout f16": (rows(lambda x: kernels.dropout(x, 0.1, 3), 4096, H), 64),
    "cross_entropy f32 4096": (lambda: kernels.cross_entropy(m(ROWS, 4096), i64(ROWS)), 64),
    "cross_entropy f16 32768": (lambda: kernels.cross_entropy(m(ROWS, 32768, dtype=H), i64(ROWS)), 48),
    "cross_entropy f32 131072": (lambda: kernels.cross_entropy(m(ROWS, 131072), i64(ROWS)), 48),
    "cross_entropy_backward f16": (
        lambda: kernels.cross_entropy_backward(m(), m(ROWS, 32768, dtype=H), i64(ROWS), m(ROWS), reduction="sum"),
        64,
    ),
    "total of losses": (
        lambda: _loss._partial_totals(
            m(4).partition(1), m(4, dtype=tk.int32).partition(1), m(ROWS), i64(ROWS), 4, 1, -100, 2048, tk.int32
        ).num_warps(8),
        72,
    ),
    "cross_entropy f32 1500": (lambda: kernels.cross_entropy(m(ROWS, 1500), i64(ROWS)), 64),
    "cross_entropy f16 528": (lambda: kernels.cross_entropy(m(ROWS, 528, dtype=H), i64(ROWS)), 72),
    "transpose f32": (lambda: kernels.transpose(m(4096, 4096)), 56),
    "transpose f16": (lambda: kernels.transpose(m(4096, 4096, dtype=H)), 56),
    "transpose f64": (lambda: kernels.transpose(m(4096, 4096, dtype=D)), 56),
    "cumsum f32": (rows(kernels.cumsum, 4096), 48),
    "cumsum f32 16384": (rows(kernels.cumsum, 16384), 96),
    "cumsum f16": (rows(kernels.cumsum, 4096, H), 48),
    "cumsum f32, reverse": (rows(lambda x: kernels.cumsum(x, reverse=True), 4096), 48),
    "cumsum f16 16384": (rows(kernels.cumsum, 16384, H), 72),
    "cumsum i64": (lambda: kernels.cumsum(i64(ROWS, 2048)), 128),
    "cumsum along": (lambda: kernels.cumsum(m(1024, 65536)), 64),
    "cumsum along, reverse": (lambda: kernels.cumsum(m(1024, 65536, dtype=H), reverse=True), 64),
    "cumsum of batches": (lambda: kernels.cumsum(m(5, 4100, 648)[:, :4096]), 48),
    "cumsum from": (lambda: cumsum_from(False), 72),
    "cumsum from, reverse": (lambda: cumsum_from(True), 72),
    "cumsum after": (lambda: cumsum_after(False), 72),
    "cumsum after, reverse": (lambda: cumsum_after(True), 72),
    "sums of tiles": (lambda: _scan._tile_sums(m(1, 128).partition((1, 1)), m(1, 1 << 20), 8192).num_warps(8), 48),
    "argmax f32": (rows(kernels.argmax, 4096), 72),
    "argmax f16 131072": (rows(kernels.argmax, 131072, H), 112),
    "topk f32": (rows(lambda x: kernels.topk(x, 8), 4096), 64),
    "topk of best": (best_of_best, 64),
    "histogram i32": (lambda: kernels.histogram(m(1 << 26, dtype=tk.int32), 256), 64),
    "histogram i64": (lambda: kernels.histogram(i64(1 << 26), 256), 64),
    "histogram i32 16384 bins": (lambda: kernels.histogram(m(1 << 26, dtype=tk.int32), 16384), 64),
    "histogram i64 5000 bins": (lambda: kernels.histogram(i64(1 << 26), 5000), 64),
    "histogram in the L2 cache": (lambda: kernels.histogram(m(1 << 26, dtype=tk.int32), 1 << 16), 88),
    "embedding f16": (lambda: kernels.embedding(m(50000, 1024, dtype=H), i64(65536)), 32),
    "embedding_backward f16": (lambda: kernels.embedding_backward(m(65536, 1024, dtype=H), i64(65536), 50000), 40),
    "rope f16": (lambda: kernels.rope(m(4, 4096, 32, 128, dtype=H), m(4096, 64), m(4096, 64)), 64),
}
# These read or write one number a row next to their tiles, or elements by index.
NARROW = {"STG.E", "STG.E.64", "LDG.E", "LDG.E.64", "LDG.E.U16"}
ONE_A_ROW = (
    "cross_entropy", "backward", "argmax", "total", "embedding", "sums of tiles", "cumsum from", "cumsum after", "topk of best",
)  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel(name, target):
    make, budget = KERNELS[name]
    kernel = launch_in(make()).compile(target=target)
    sass = kernel.sass
    assert kernel.local_bytes == 0
    assert not re.search(r"\b(LDL|STL)\b", sass)
    assert kernel.registers <= budget + 8 * (target == "sm_80"), f"{kernel.registers} registers, the budget is {budget}"

    accesses = re.findall(r"\b((?:LDG|STG)[.\w]*)", sass)
    wide = [a for a in accesses if ".128" in a]
    # What 16-bit floats are added to is wider: a lane reads as many as one addition takes.
    assert wide or name == "embedding_backward f16", "an access of 128 bits at least"
    rest = {re.sub(r"\.(CONSTANT|STRONG|SYS|GPU)", "", a) for a in accesses if ".128" not in a}
    assert rest <= (NARROW if any(part in name for part in ONE_A_ROW) else set()), f"narrow accesses: {rest}"


@tk.kernel
def maxima_so_far(y: tk.Out, x: tk.In):
    y.store(tk.scan(tk.load_tile_like(x, y), 1, tk.maximum))


@pytest.mark.parametrize("dtype", [B, F], ids=str)
@pytest.mark.parametrize("own", [False, True])
def test_rows_that_begin_anywhere_are_scanned_by_one_ladder(own, dtype):
    """Neighbouring lanes read neighbours, and then have 16 elements in a row: through shared memory, 16 bytes at a time there."""
    x, y = m(ROWS, 3871, dtype=dtype), m(ROWS, 3871, dtype=dtype)
    op = maxima_so_far(y.partition((1, 4096)), x).num_warps(8) if own else kernels.cumsum(x)
    kernel = launch_in(op).compile(target="sm_90a")
    counted = Counter(re.findall(r"\b(?:SHFL|LDS|STS|LDG|STG)[.\w]*", kernel.sass))
    shuffles, wide = sum(n for name, n in counted.items() if name.startswith("SHFL")), 16 * dtype.itemsize // 16
    assert shuffles == 6
    totals = 8 * (dtype.itemsize if own else 4) // 16  # of 8 warps
    assert counted["LDS.128"] == wide + totals
    assert counted["STS.128"] == wide
    assert kernel.registers <= 48
    assert kernel.local_bytes == 0


def test_lanes_share_what_the_warps_of_long_rows_have():
    """16 stretches of the row a thread, of 16 warps: each lane reads the sums of one stretch, not of all of them."""
    kernel = launch_in(kernels.cumsum(m(ROWS, 32768))).compile(target="sm_90a")
    assert len(re.findall(r"\bLDS", kernel.sass)) == 4
    assert len(re.findall(r"\bFADD", kernel.sass)) < 4 * 64
    assert kernel.registers <= 120
    assert kernel.local_bytes == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("dtype", "bins", "elements"), [(tk.int32, 200, 32), (tk.int64, 4096, 16), (tk.int64, 32768, 8)], ids=str
)
def test_a_histogram_is_counted_in_shared_memory(dtype, bins, elements, target):
    """One instruction without a predicate for each element, from the registers that it was loaded into."""
    kernel = launch_in(kernels.histogram(m(1 << 26, dtype=dtype), bins)).compile(target=target)
    assert kernel.ptx.count("red.shared.add.u32") == elements
    instructions = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(\S.*?) ;", kernel.sass, re.M)
    barriers = [n for n, text in enumerate(instructions) if text.startswith("BAR.SYNC")]
    loads = [n for n, text in enumerate(instructions) if "LDG.E.128" in text]
    assert len(barriers) == 3, "before the counts are zeroed, and on both sides of counting"
    assert len(loads) * 16 == elements * dtype.itemsize
    assert max(loads) < barriers[0], "nothing is loaded after others have been waited for"
    counting = instructions[loads[0] : barriers[2]]
    assert sum(text.startswith("ATOMS.POPC.INC.32") for text in counting) == elements
    assert not re.search(r"\b(BRA|LDL|STL|ATOMS\.ADD|ATOMS\.CAS)\b", "\n".join(counting))
    assert len(counting) <= 9 * elements + 60
    assert kernel.registers <= 64, "for 32 warps on a multiprocessor"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("width", "dtype", "word"), [(65, H, "U16"), (62, F, "64"), (63, F, ""), (4098, H, "")], ids=str)
def test_an_embedding_of_odd_rows(width, dtype, word, target):
    """By the widest words that a row is a whole number of, lanes next to each other, and no division but by multiplying."""
    op = launch_in(kernels.embedding(m(50000, width, dtype=dtype), m(65536, dtype=tk.int32)))
    store = next(access for access in op.explain(target=target).accesses if access.kind == "store")
    assert store.coalesced == 1
    kernel = op.compile(target=target)
    accesses = Counter(re.findall(r"\b((?:LDG|STG)[.\w]*)", kernel.sass))
    words = _embedding._BY_ELEMENTS // {"U16": 2, "64": 8, "": 4}[word] // kernel.block[0]
    assert accesses[".".join(("STG", "E", word)).rstrip(".")] == words
    assert not re.search(r"\b(CALL|I2F|LDL|STL)\b", kernel.sass)
    assert kernel.registers <= 72


def test_additions_and_stores_fill_sectors():
    """A warp adds to 512 bytes in a row at once, and writes as many, whatever the narrower elements beside them."""
    added = launch_in(kernels.embedding_backward(m(65536, 1024, dtype=H), i64(65536), 50000))
    sass = added.compile(target="sm_90a").sass
    assert "REDG.E.ADD.F32x4" in sass
    (read,) = (a for a in added.explain(target="sm_90a").accesses if a.parameter == "dy")
    assert (read.bits, read.coalesced) == (64, 1)
    looked_up = launch_in(kernels.embedding(m(50000, 64), m(65536, dtype=tk.int32)))
    (store,) = (a for a in looked_up.explain(target="sm_90a").accesses if a.kind == "store")
    assert (store.bits, store.coalesced) == (128, 1)
    turned = launch_in(kernels.transpose(m(8, 261360)))
    assert [(a.bits, a.coalesced) for a in turned.explain(target="sm_90a").accesses] == [(128, 1), (128, 1)]
    sass = turned.compile(target="sm_90a").sass
    assert "SHFL" in sass and "STS" not in sass


@pytest.mark.parametrize("columns", [16, 56, 147, 256, 752, 2048, 2344, 4096, 8192])
@pytest.mark.parametrize("dtype", [F, H, D], ids=str)
@pytest.mark.parametrize("name", ["layer_norm_backward", "rms_norm_backward", "add_rms_norm_backward"])
def test_gradients_of_norms_read_once(name, dtype, columns):
    """By blocks that stay, of which as many fit as are launched, without local memory; where rows allow it 16 bytes at a time."""
    x, w = m(1 << 17, columns, dtype=dtype), m(columns, dtype=dtype)
    op = getattr(kernels, name)(*[x] * (3 if name.startswith("add") else 2), w)
    op.consumed()
    first, second = op.parts()[0], op.parts()[-1]
    if (1 << (columns - 1).bit_length()) * max(1, dtype.itemsize // 4) > 4096:  # too many sums for registers
        assert first.label == "kernel _norm_backward"
        return
    assert first.label == "kernel _norm_backward_staying"
    kernel, dealt = first.compile("sm_90a"), _norm_gradients._staying(x, x, x)
    assert kernel.spilled_bytes == 0
    assert kernel.registers * 32 * dealt.tile.num_warps * dealt.tile.occupancy <= 1 << 16
    loaded = [access for access in first.explain("sm_90a").accesses if access.parameter in ("x", "dy", "dx", "extra")]
    assert len(loaded) >= 3
    if columns * dtype.itemsize % 16 == 0:
        assert {access.bits for access in loaded} == {128}
    assert second.compile("sm_90a").spilled_bytes == 0


@pytest.mark.parametrize("columns", [64, 104])
@pytest.mark.parametrize("dtype", [F, H], ids=str)
def test_gradients_of_short_rows_leave_little_to_add_up(dtype, columns):
    """No two warps share a row, so blocks may be large; what these leave is read by many blocks at once."""
    x, w = m(10192, columns, dtype=dtype), m(columns, dtype=dtype)
    op = kernels.layer_norm_backward(x, x, w)
    op.consumed()
    first, second = op.parts()
    barriers = re.findall(r"\bBAR\.SYNC", first.compile("sm_90a").sass)
    assert len(barriers) == 4, "none but in the sums of columns, at the end"
    assert first.arguments[1].tensor.shape[0] <= 3 * 132
    assert second._plan("a test").grid == (columns // 8, 1, 1)
    assert second.compile("sm_90a").sass.count("BAR.SYNC") <= 4


@pytest.mark.parametrize("dtype", [F, H], ids=str)
@pytest.mark.parametrize("centred", [True, False])
def test_long_rows_are_read_twice(dtype, centred):
    """Once for the mean and the squares (but for the first tile), and once more."""
    x, w = m(ROWS, 100_000, dtype=dtype), m(100_000, dtype=dtype)
    launch = launch_in(kernels.layer_norm(x, w, w) if centred else kernels.rms_norm(x, w))
    assert launch.label == "kernel _norm_long"
    loads = [access for access in launch.explain("sm_90a").accesses if access.parameter == "x"]
    assert len(loads) == 2 + centred
    assert launch.compile("sm_90a").spilled_bytes == 0


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("columns", [400, 837, 1700, 6000])
def test_norms_of_narrow_rows_spill_nothing(gap, columns):
    x, w = m(ROWS, columns + gap, dtype=H)[:, :columns], m(columns, dtype=H)
    for op in (kernels.layer_norm(x, w, w), kernels.rms_norm(x, w)):
        assert launch_in(op).compile("sm_90a").spilled_bytes == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_layer_norm_of_even_rows_is_not_masked(target):
    op = launch_in(kernels.layer_norm(m(16384, 8192, dtype=H), *[m(8192, dtype=H)] * 2))
    kernel = op.compile(target=target)
    assert not re.search(r"@p (ld|st)\.global", kernel.ptx)
    assert Counter(re.findall(r"\b((?:LDG|STG)[.\w]*)", kernel.sass)) == {"LDG.E.128": 24, "STG.E.128": 8}


def product(m_, n, k, dtype=B, **options):
    return kernels.gemm(m(m_, k, dtype=dtype), m(k, n, dtype=dtype), **options)


def turned(which):
    a, b = m(4096, 4096, dtype=B), m(4096, 4096, dtype=B)
    return kernels.gemm(a.T if "a" in which else a, b.T if "b" in which else b)


# With the tile that is expected: what is compiled, and the columns of an instruction, of which there are BK / 16 a turn.
PRODUCTS = {
    "4096": (lambda: product(4096, 4096, 4096), 256),
    "2048 f16": (lambda: product(2048, 2048, 2048, H), 256),
    "1024": (lambda: product(1024, 1024, 1024), 128),
    "16 rows": (lambda: product(16, 8192, 8192), 16),
    "ragged": (lambda: product(4000, 4008, 4040), 256),
    "in parts": (lambda: product(128, 128, 65536), 128),
    "batch in parts": (lambda: kernels.gemm(m(2, 128, 65536, dtype=B), m(2, 65536, 128, dtype=B), splits=33), 128),
    "a.T": (lambda: turned("a"), 256),
    "b.T": (lambda: turned("b"), 256),
    "a.T, b.T": (lambda: turned("ab"), 256),
    "batch": (lambda: kernels.gemm(m(16, 1024, 512, dtype=B), m(16, 512, 1024, dtype=B)), 256),
    "batch, one b.T": (lambda: kernels.gemm(m(16, 1024, 512, dtype=B), m(1024, 512, dtype=B).T), 256),
    "batch, one b": (lambda: kernels.gemm(m(16, 1024, 512, dtype=B), m(512, 1024, dtype=B)), 256),
    "bias, gelu": (lambda: product(4096, 4096, 4096, epilogue=epilogues.bias_gelu, operands=(m(4096),)), 256),
    "bias, silu": (lambda: product(4096, 4096, 4096, epilogue=epilogues.bias_silu, operands=(m(4096),)), 256),
    "residual": (lambda: product(4096, 4096, 4096, epilogue=epilogues.residual, operands=(m(4096, 4096, dtype=B),)), 256),
    "c": (lambda: product(4096, 4096, 4096, c=m(4096, 4096, dtype=B), alpha=0.5, beta=2.0), 256),
    "c f32": (lambda: product(4096, 4096, 4096, c=m(4096, 4096), beta=2.0), 128),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_warpgroups(name):
    make, columns = PRODUCTS[name]
    kernel = launch_in(make()).compile(target="sm_90a")
    loading, calculating = kernel.sass.split("USETMAXREG.TRY_ALLOC") if columns > 128 else (kernel.sass, kernel.sass)
    found = Counter(re.findall(r"\b(HGMMA[.\w]*|HMMA[.\w]*)", kernel.sass))
    instruction = f"HGMMA.64x{columns}x16.F32" + ("" if "f16" in name else ".BF16")
    assert set(found) == {instruction}, found
    assert found[instruction] % 4 == 0, "64 / 16 a turn"
    turn = 16 if name == "16 rows" else 4  # steps along K
    assert len(re.findall(r"\bHGMMA\b.*\bgsb0\b", calculating)) == found[instruction] // turn, "those of a turn go together"
    assert "UTMALDG" in loading
    assert kernel.local_bytes <= 8 * (name == "bias, silu"), "by toolkit 13.0, round the loop"
    assert "LDSM" not in kernel.sass
    assert kernel.registers <= 168 or columns <= 128
    stores = set(re.findall(r"\b(STG[.\w]*)", calculating))
    # Of 16 rows the transpose is computed, and its few elements stored one by one.
    assert stores == {{"16 rows": "STG.E.U16"}.get(name, "STG.E.128")}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_warps(name, monkeypatch):
    """As on a GPU without products by warpgroups: threads copy tiles to shared memory ahead, and nobody waits for a load."""
    monkeypatch.setattr(recipes, "staged_operands", lambda *tensors: False)
    monkeypatch.setattr(recipes, "in_stages", lambda *tensors, to, warpgroups: not warpgroups)
    monkeypatch.setattr(recipes, "_recipes", {})
    kernel = launch_in(PRODUCTS[name][0]()).compile(target="sm_80")
    assert "HMMA.16816.F32" in kernel.sass
    assert "LDSM.16.M" in kernel.sass
    assert set(re.findall(r"\b(LDGSTS\.[.\w]*)", kernel.sass)) == {"LDGSTS.E.BYPASS.LTC128B.128"}
    assert kernel.local_bytes == 0
    beside = {"bias, gelu", "bias, silu", "residual", "c", "c f32"}
    assert name in beside or not re.search(r"\bLDG\b", kernel.sass)


def deep(m_, n, k, left, right=None, **options):
    """A product whose K is contiguous in both operands."""
    return kernels.gemm(m(m_, k, dtype=left), m(n, k, dtype=right or left).T, **options)


E4, E5, I8 = tk.float8_e4m3fn, tk.float8_e5m2, tk.int8
# With the instruction that is expected.
OF_OTHER_TYPES = {
    "e4m3": (lambda: deep(8192, 8192, 8192, E4, dtype=B), "QGMMA.64x128x32.F32.E4M3.E4M3"),
    "e4m3, fast": (lambda: deep(8192, 8192, 8192, E4, dtype=H, precision="fast"), "QGMMA.64x256x32.F32.E4M3.E4M3"),
    "e5m2, e4m3": (lambda: deep(4096, 4096, 4096, E5, E4), "QGMMA.64x128x32.F32.E5M2.E4M3"),
    "i8": (lambda: deep(8192, 8192, 8192, I8), "IGMMA.64x256x32.S8.S8"),
    "u8, i8": (lambda: deep(4096, 4096, 4096, tk.uint8, I8, alpha=3, c=m(4096, dtype=tk.int32)), "IGMMA.64x256x32.U8.S8"),
    "tf32": (lambda: deep(8192, 8192, 8192, F, precision="tf32"), "HGMMA.64x256x8.F32.TF32"),
    "tf32, b not turned": (lambda: product(4096, 4096, 4096, F, precision="tf32"), "HGMMA.64x128x8.F32.TF32"),
    "batch of tf32, b not turned": (
        lambda: kernels.gemm(m(16, 1024, 512), m(16, 512, 1024), precision="tf32"), "HGMMA.64x128x8.F32.TF32",
    ),
    "ragged e4m3": (lambda: deep(4000, 4010, 4048, E4, dtype=B), "QGMMA.64x128x32.F32.E4M3.E4M3"),
    "e4m3 1024": (lambda: deep(1024, 1024, 1024, E4, dtype=B), "QGMMA.64x64x32.F32.E4M3.E4M3"),
    "16 rows of e4m3": (lambda: deep(16, 8192, 8192, E4, dtype=B), "QGMMA.64x16x32.F32.E4M3.E4M3"),
    "i8 in parts": (lambda: deep(128, 128, 65536, I8), "IGMMA.64x64x32.S8.S8"),
    "batch of tf32": (
        lambda: kernels.gemm(m(16, 1024, 512), m(16, 1024, 512).permute(0, 2, 1), precision="tf32"), "HGMMA.64x256x8.F32.TF32",
    ),
    "bias, gelu, e4m3": (
        lambda: deep(4096, 4096, 4096, E4, dtype=B, epilogue=epilogues.bias_gelu, operands=(m(4096),)),
        "QGMMA.64x128x32.F32.E4M3.E4M3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_OTHER_TYPES)
def test_products_of_other_types_by_warpgroups(name):
    make, instruction = OF_OTHER_TYPES[name]
    kernel = launch_in(make()).compile(target="sm_90a")
    found = Counter(re.findall(r"\b([HIQ]GMMA[.\w]*|[HIQ]MMA[.\w]*)", kernel.sass))
    assert set(found) == {instruction}, found
    promoted = instruction.startswith("QGMMA") and "fast" not in name
    turn = 16 if "rows" in name and not promoted else 4  # steps along K
    groups = re.findall(r"\b[HIQ]GMMA\b.*\bgsb0\b", kernel.sass)
    tall = 2 if "not turned" in name else 1  # 256 rows are two instructions a step, which ptxas of toolkit 13.0 has in one group
    assert len(groups) in (found[instruction] // turn, found[instruction] // turn // tall), "those of a turn, or of 128 bytes"
    dealt = kernel.block == (384, 1, 1)
    loading, calculating = kernel.sass.split("USETMAXREG.TRY_ALLOC") if dealt else (kernel.sass, kernel.sass)
    assert "UTMALDG" in loading
    assert not re.search(r"\b(LDL|STL|LDSM)\b", calculating)
    assert kernel.registers <= 168


COPIED = {
    "e4m3": (lambda: deep(4096, 4096, 4100, E4, dtype=B, tile=(128, 128, 128)), "QGMMA.64x128x32.F32.E4M3.E4M3", "LDGSTS.E"),
    "e4m3, fast": (
        lambda: deep(4096, 4096, 4104, E4, dtype=B, precision="fast", tile=(128, 256, 128)),
        "QGMMA.64x256x32.F32.E4M3.E4M3",
        "LDGSTS.E.64",
    ),
    "i8": (lambda: deep(4096, 4096, 4100, I8, tile=(128, 256, 128)), "IGMMA.64x256x32.S8.S8", "LDGSTS.E"),
    "tf32": (lambda: deep(4096, 4096, 4098, F, precision="tf32"), "HGMMA.64x256x8.F32.TF32", "LDGSTS.E.64"),
}


@pytest.mark.parametrize("name", COPIED)
def test_products_of_other_types_that_threads_copy(name):
    make, instruction, copy = COPIED[name]
    kernel = launch_in(make()).compile(target="sm_90a")
    assert set(re.findall(r"\b([HIQ]GMMA[.\w]*|LDGSTS\.[.\w]*)", kernel.sass)) == {instruction, copy}
    assert not re.search(r"\b(UTMALDG|LDG|[HIQ]MMA)\b", kernel.sass)
    assert (kernel.local_bytes, kernel.registers <= 168) == (0, True)


OTHER_PRODUCTS = {
    "f32": (lambda: product(4096, 4096, 4096, F), "FFMA", 255),
    "tf32": (
        lambda: kernels.gemm(m(4096, 4096).T, m(4096, 4096), precision="tf32", tile=(128, 128, 32)),
        "HMMA.1688.F32.TF32",
        168,
    ),
    "f64": (lambda: product(1024, 1024, 1024, D), "DMMA", 136),
    "fp8": (lambda: product(4096, 4096, 4096, tk.float8_e4m3fn, tile=(128, 128, 64)), "HMMA.16816.F32", 168),
    "i8": (lambda: product(4096, 4096, 4096, tk.int8, tile=(128, 128, 64)), "IMMA.16832.S8.S8", 168),
    "rows at odd addresses": (lambda: product(4096, 4096, 4099, tile=(128, 64, 64)), "HMMA.16816.F32.BF16", 208),
    "batch, c, bias": (
        lambda: kernels.gemm(
            *(m(4, 512, 512, dtype=B) for _ in range(3)), alpha=2.0, epilogue=epilogues.bias, operands=(m(512),)
        ),
        "16.F32.BF16",
        224,
    ),
    "batch, c": (lambda: kernels.gemm(m(3, 70, 100), m(100, 90), m(1, 1, 1)), "FFMA", 168),
    "small, odd": (lambda: product(40, 33, 77), "HMMA.16816.F32.BF16", 160),
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", OTHER_PRODUCTS)
def test_other_products(name, target):
    make, instruction, budget = OTHER_PRODUCTS[name]
    kernel = launch_in(make()).compile(target=target)
    assert instruction in kernel.sass
    assert kernel.local_bytes == 0
    assert kernel.registers <= budget, f"{kernel.registers} registers, the budget is {budget}"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_steps_that_are_dealt_out(target):
    op = product(3072, 3072, 3072, splits="stream", tile=(128, 256, 64) if target == "sm_90a" else (128, 64, 64))
    op.consumed()
    whole, shares, total = op.parts()
    whole.consumed()
    kernel = shares.compile(target=target)
    assert ("HGMMA.64x256x16.F32.BF16" if target == "sm_90a" else "HMMA.16816.F32.BF16") in kernel.sass
    assert ("UTMALDG" in kernel.sass) == (target == "sm_90a")
    assert kernel.sass.count("gsb0 ;") * 4 == kernel.sass.count("HGMMA"), "those of a turn go together"
    assert kernel.local_bytes == 0
    kernel = total.compile(target=target)
    assert set(re.findall(r"\b(LDG[.\w]*)", kernel.sass)) == {"LDG.E.128"}
    assert (kernel.local_bytes, kernel.registers <= 72) == (0, True)


# Tokens, experts, K and N, and the columns of an instruction.
GROUPS = {"few, large": (16384, 8, 4096, 4096, 256), "many, small": (4096, 128, 2048, 768, 256)}


def groups(tokens, experts, k, n, dtype=B, **options):
    x = m(tokens, k, dtype=dtype), m(experts, k, n, dtype=dtype), m(experts, dtype=tk.int32)
    return kernels.grouped_gemm(*x, **options)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_by_warpgroups(name):
    *sizes, columns = GROUPS[name]
    kernel = launch_in(groups(*sizes)).compile(target="sm_90a")
    found = Counter(re.findall(r"\b(HGMMA[.\w]*|HMMA[.\w]*)", kernel.sass))
    assert set(found) == {f"HGMMA.64x{columns}x16.F32.BF16"}
    assert len(re.findall(r"\bHGMMA\b.*\bgsb0\b", kernel.sass)) == found.total() // 4, "those of a turn go together"
    assert {"UTMALDG.2D", "UTMALDG.3D"} <= set(re.findall(r"\b(UTMALDG\.\dD)", kernel.sass))
    assert set(re.findall(r"\b((?:LDG|STG)[.\w]*)", kernel.sass)) == {"LDG.E", "STG.E.128"}, "offsets are loaded one by one"
    assert kernel.local_bytes == 0
    assert kernel.registers <= (168 if kernel.block[0] == 384 else 184)


def deep_groups(k, dtype, **options):
    """Groups whose K is contiguous in both operands."""
    return kernels.grouped_gemm(
        m(16384, k, dtype=dtype), m(8, 4096, k, dtype=dtype).permute(0, 2, 1), m(8, dtype=tk.int32), **options
    )


OTHER_GROUPS = {
    "e4m3": (lambda: deep_groups(4096, E4), "QGMMA.64x128x32.F32.E4M3.E4M3", "UTMALDG.2D"),
    "tf32": (lambda: deep_groups(4096, F, precision="tf32"), "HGMMA.64x256x8.F32.TF32", "UTMALDG.2D"),
    "bf16 that threads copy": (lambda: groups(16384, 8, 4100, 4096), "HGMMA.64x256x16.F32.BF16", "LDGSTS.E.64"),
    "i8 that threads copy": (lambda: deep_groups(4100, I8), "IGMMA.64x256x32.S8.S8", "LDGSTS.E"),
    "columns that begin in the middle of a copy": (lambda: groups_of_columns(16384), "HMMA.16816.F32.BF16", "LDG.E.U16"),
    "odd rows": (lambda: groups(16384, 8, 4099, 4096, splits=1), "HMMA.16816.F32.BF16", "LDG.E.U16"),
}


def groups_of_columns(tokens):
    return kernels.grouped_gemm(m(4096, tokens, dtype=B).T, m(8, 4096, 4096, dtype=B), m(8, dtype=tk.int32), splits=1)


@pytest.mark.parametrize("name", OTHER_GROUPS)
def test_how_groups_come(name):
    make, instruction, load = OTHER_GROUPS[name]
    kernel = launch_in(make()).compile(target="sm_90a")
    assert set(re.findall(r"\b([HIQ]GMMA[.\w]*|[HIQ]MMA[.\w]*)", kernel.sass)) == {instruction}
    assert re.search(rf"\b{re.escape(load)} ", kernel.sass)
    assert kernel.local_bytes == 0


@pytest.mark.parametrize(
    ("dtype", "target", "instruction", "budget"),
    [(B, "sm_80", "HMMA.16816.F32.BF16", 208), (F, "sm_80", "FFMA", 255), (F, "sm_90a", "FFMA", 255)],
    ids=str,
)
def test_other_groups(dtype, target, instruction, budget, monkeypatch):
    """As on a GPU without products by warpgroups, which copies operands ahead, of 16 bits."""
    monkeypatch.setattr(grouped, "staged_operands", lambda *tensors: False)
    monkeypatch.setattr(grouped, "in_stages", lambda *tensors, to, warpgroups: dtype == B)
    kernel = launch_in(groups(16384, 8, 4096, 4096, dtype)).compile(target=target)
    assert instruction in kernel.sass
    assert ("LDGSTS.E.BYPASS.LTC128B.128" in kernel.sass) == (dtype == B)
    assert kernel.local_bytes == 0
    assert kernel.registers <= budget, f"{kernel.registers} registers, the budget is {budget}"


def test_parts_are_added_up_in_wide_accesses():
    op = product(128, 128, 65536)
    op.consumed()
    parts, total = op.parts()
    kernel = total.compile(target="sm_90a")
    assert set(re.findall(r"\b(LDG[.\w]*)", kernel.sass)) == {"LDG.E.128"}
    assert (kernel.local_bytes, kernel.registers <= 96) == (0, True)  # of 64 parts
    parts.consumed()


def decoded(heads, key_heads, size, page=None, dtype=B):
    lengths, table = m(8, dtype=tk.int32), None if page is None else m(8, 32768 // page, dtype=tk.int32)
    shape = (8, key_heads, 32768, size) if page is None else (40000, key_heads, page, size)
    cache = m(*shape, dtype=dtype)
    return kernels.attention_decode(m(8, heads, 1, size, dtype=dtype), cache, cache, lengths, block_table=table)


# With the stages of keys and values, the least blocks of a multiprocessor (of sm_90a), and the most registers.
DECODED = {
    "128": (lambda: decoded(32, 8, 128), 3, 2, 128),
    "64": (lambda: decoded(16, 16, 64), 3, 2, 128),
    "256": (lambda: decoded(16, 16, 256), 3, 1, 168),
    "64 rows": (lambda: decoded(64, 1, 128), 3, 1, 168),
    "32 rows of 256": (lambda: decoded(32, 1, 256), 3, 1, 168),
    "f32": (lambda: decoded(16, 16, 64, dtype=F), 3, 2, 128),
    "f32 128": (lambda: decoded(16, 16, 128, dtype=F), 3, 1, 168),
    "pages of 64": (lambda: decoded(32, 8, 128, 64), 3, 2, 128),
    "pages of 16": (lambda: decoded(32, 8, 128, 16), 8, 2, 128),
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", DECODED)
def test_keys_and_values_of_few_queries_come_ahead(name, target):
    make, stages, blocks, budget = DECODED[name]
    op = make()
    op.consumed()
    parts, together = op.parts()
    kernel = parts.compile(target=target)
    explained = parts.explain(target)
    assert explained.pipelines[-1].stages == stages
    assert target == "sm_80" or explained.blocks_per_multiprocessor >= blocks
    copies = set(re.findall(r"\b(UTMALDG|LDGSTS\.[.\w]*)", kernel.sass))
    assert copies == ({"UTMALDG"} if target == "sm_90a" else {"LDGSTS.E.BYPASS.LTC128B.128"})
    assert set(re.findall(r"\b(LDG\.[.\w]*)", kernel.sass)) <= {"LDG.E", "LDG.E.CONSTANT"}, "lengths and pages"
    assert ("FFMA" if "f32" in name else "HMMA.16816.F32.BF16") in kernel.sass
    assert kernel.local_bytes == 0
    assert kernel.registers <= budget + 40 * (target == "sm_80"), f"{kernel.registers} registers"
    kernel = together.compile(target=target)
    assert "LDG.E.128" in kernel.sass
    assert (kernel.local_bytes, kernel.registers <= 168) == (0, True)
