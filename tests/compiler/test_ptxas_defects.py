"""What ptxas gets wrong: nothing of it reaches ptxas, or what it makes of it does no harm."""

import linecache
import re
from types import SimpleNamespace

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, dtypes
from tilekit.compiler.dispatcher import _mended
from tilekit.compiler.nvidia.ptxas_defects import is_wrong, mended, registers_wanted

LOW, HIGH = -(1 << 15), (1 << 15) - 1
VALUES = np.array([LOW, LOW + 1, -2, -1, 0, 1, 2, HIGH], np.int16)
X, Y = (np.ascontiguousarray(t.ravel()) for t in np.meshgrid(VALUES, VALUES))


@tk.kernel
def signs_of_negatives(z: tk.Out, x: tk.In, y: tk.In):
    a, b = -tk.load_tile_like(x, z), tk.load_tile_like(y, z)
    z.store(
        tk.where(a < 0, 1, 0) + tk.where((a >> 15) != 0, 2, 0) + tk.where(a // b > 0, 4, 0) + tk.where(tk.cdiv(b, a) < 0, 8, 0)
    )


@tk.kernel
def signs_of_magnitudes(z: tk.Out, x: tk.In, y: tk.In):
    a, b = abs(tk.load_tile_like(x, z)), tk.load_tile_like(y, z)
    z.store(tk.where(a < 0, 1, 0) + tk.where(a % b == b, 2, 0) + tk.where(a.astype(tk.int32) < 0, 4, 0))


@tk.kernel
def which_is_larger(z: tk.Out, x: tk.In, y: tk.In):
    a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
    low, high = tk.minimum(a, b), tk.maximum(a, b)
    z.store(tk.where(high == a, 1, 0) + tk.where(high == b, 2, 0) + tk.where(low == a, 4, 0) + tk.where(low == b, 8, 0))


@tk.kernel
def signs_of_what_is_masked(z: tk.Out, x: tk.In, y: tk.In):
    s = tk.sign(tk.load(x, tk.bid(0), (64,), mask=tk.arange(64) < 40))
    z.store(tk.where(s == 0, 1, 0) + tk.where(tk.load_tile_like(y, z) == s, 2, 0))


def quotient(a, b):
    return np.where(b == 0, 0, a.astype(int) // np.where(b == 0, 1, b)).astype(np.int16)


def expected(kernel, x, y):
    with np.errstate(all="ignore"):
        if kernel is signs_of_negatives:
            a = -x
            return (a < 0) + 2 * (a < 0) + 4 * (quotient(a, y) > 0) + 8 * (-quotient(-y.astype(int), a) < 0)
        if kernel is signs_of_magnitudes:
            a = np.abs(x)
            rest = a.astype(int) - quotient(a, y).astype(int) * y
            return (a < 0) + 2 * (np.where(y == 0, 0, rest) == y) + 4 * (a < 0)
        if kernel is which_is_larger:
            return 1 * (x >= y) + 2 * (y >= x) + 4 * (x <= y) + 8 * (y <= x)
        s = np.where(np.arange(64) < 40, np.sign(x), 0)
        return 1 * (s == 0) + 2 * (y == s)


KERNELS = [signs_of_negatives, signs_of_magnitudes, which_is_larger, signs_of_what_is_masked]


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_the_results(kernel, dtype, device):
    if dtype == "uint16" and kernel is not which_is_larger:
        pytest.skip("has no signs")
    x, y = X.astype(dtype), Y.astype(dtype)
    with tk.use_device(device):
        z = (
            kernel(api.zeros(64, tk.int32).partition(64), api.from_host(x), api.from_host(y))
            .first()
            .unpartition()
            .to_host()
            .sync()
        )
    np.testing.assert_array_equal(z, expected(kernel, x, y))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_the_code(kernel, target):
    z, x = api.meta(64, tk.int32).partition(64), api.meta(64, tk.int16)
    compiled = kernel(z, x, x).compile(target=target)
    assert not is_wrong(compiled.ptx)
    assert not re.search(r"MNMX\.[SU]16x2 R\d+, P", compiled.sass or ""), "an equality out of two extrema at once"


@tk.kernel(num_warps=8)
def products_and_signs(c: tk.Out, d: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    acc = tk.zeros((128, 128), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)
    d.store(tk.where(-tk.load(x, tk.bid(0), (128,)) < 0, 1, 0)[:, None] + tk.zeros((128, 128), tk.int32))


@pytest.mark.parametrize(("dtype", "ringed"), [("int16", False), ("int32", True)])
def test_whole_programs_have_none_of_it(dtype, ringed):
    """Their PTX is made where they are linked."""
    c, d = (api.meta((256, 256), t).partition((128, 128)) for t in (tk.float32, tk.int32))
    a = api.meta((256, 256), tk.float16)
    explained = products_and_signs(c, d, a, a, api.meta(256, dtype)).explain("sm_90a")
    assert bool(explained.pipelines[0].stages) == ringed
    assert ringed or "integers that ptxas gets wrong" in explained.pipelines[0].reason
    assert not is_wrong(explained.compiled.ptx)


@tk.kernel
def a_product_before_a_loop(c: tk.Out, counts: tk.InOut, a: tk.In, b: tk.In, x: tk.In):
    product = tk.mma(tk.load(a, (0, 0), (4, 1)), tk.load(b, (0, 0), (1, 16)), tk.load(x, (0, 0), (4, 16)))
    for at in range(tk.num_blocks(0)):
        i = at + 0
        while i > 0:
            tk.atomic_xor(counts, tk.arange(4) + tk.bid(0), i)
            i -= 1
    c.store(product)


@pytest.mark.parametrize("dtype", dtypes.EIGHT_BIT_FLOATS, ids=lambda dtype: dtype.name)
def test_eight_bit_floats_that_are_not_there_are_zero(dtype, device):
    """Rows and depths that only the instruction has: of a constant zero, ptxas makes a float16 that is none."""
    a, b, x = np.arange(8).reshape(8, 1).astype(dtype), np.arange(16).reshape(1, 16).astype(dtype), np.zeros((4, 5), np.float32)
    c, counts = api.zeros((4, 16)), api.zeros(8, tk.int32)
    op = a_product_before_a_loop(c.partition((4, 16)), counts.scattered(), *map(api.from_host, (a, b, x)))
    np.testing.assert_array_equal(op.out().sync()[0].numpy(), a[:4].astype(np.float32) @ b.astype(np.float32))
    shapes = [((4, 16), tk.float32), (8, tk.int32), (a.shape, dtype), (b.shape, dtype), (x.shape, tk.float32)]
    c, counts, *read = (api.meta(*given) for given in shapes)
    sass = a_product_before_a_loop(c.partition((4, 16)), counts.scattered(), *read).compile("sm_90a").sass
    assert "UNPACK_B" in sass and not re.search(r"UNPACK_B R\d+, [\d.e-]+ ;", sass)


class Library:
    """As much of numba's as is asked for."""

    def __init__(self, ptx):
        self.texts, self._cubin_cache, self._cufunc_cache = [ptx], {1: 2}, {1: 2}

    def get_asm_strs(self, cc=None):
        return self.texts


@pytest.mark.parametrize("ptx", ["\tneg.s16 \t%rs1, %rs2;\n", "\tneg.s32 \t%r1, %r2;\n"])
def test_dispatchers_assemble_anew_what_is_wrong(ptx):
    library = Library(ptx)
    wrong = is_wrong(ptx)
    compiled = SimpleNamespace(overloads={(): SimpleNamespace(_codelibrary=library)})
    assert _mended(compiled) is compiled
    assert library.texts == [mended(ptx)]
    assert library._cubin_cache == library._cufunc_cache == ({} if wrong else {1: 2})


def test_extrema_that_nothing_is_compared_with_stay():
    ptx = "\tmax.s16 \t%rs1, %rs2, -1;\n"
    assert mended(ptx) == ptx and not is_wrong(ptx)


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("neg.s16 \t%rs1, %rs2;", "{ .reg .b32 x; cvt.s32.s16 x, %rs2; neg.s32 x, x; cvt.u16.u32 %rs1, x; }"),
        ("abs.s16 \t%rs1, %rs2;", "{ .reg .b32 x; cvt.s32.s16 x, %rs2; abs.s32 x, x; cvt.u16.u32 %rs1, x; }"),
        (
            "min.u16 \t%rs1, %rs2, -1;",
            "{ .reg .b32 x, y; cvt.u32.u16 x, %rs2; mov.b32 y, 65535; min.u32 x, x, y; cvt.u16.u32 %rs1, x; }",
        ),
        (
            "max.s16 \t%rs1, 65535, %rs2;",
            "{ .reg .b32 x, y; mov.b32 x, -1; cvt.s32.s16 y, %rs2; max.s32 x, x, y; cvt.u16.u32 %rs1, x; }",
        ),
    ],
)
def test_the_rewriting(text, rewritten):
    rest = "\n\tsetp.eq.s16 \t%p1, %rs1, 0;\n"
    assert is_wrong(f"\t{text}{rest}")
    assert mended(f"\t{text}{rest}") == f"\t{rewritten}{rest}"


OF_BYTES = {
    "-x": lambda x: -x,
    "-(x >> 1)": lambda x: -(x >> 1),
    "tk.where(x > 3, -x, x)": lambda x: np.where(x > 3, -x, x).astype(x.dtype),
    "tk.maximum(x, -x)": lambda x: np.maximum(x, -x),
    "tk.abs(-x)": lambda x: np.abs(-x),
    "-x // 2": lambda x: -x // 2,
}


def spelled(text):
    """A product whose first operand is computed from bytes."""
    source = f"""
@tk.kernel(num_warps=8)
def kernel(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 64), tk.float32)
    for x, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 64))[:, tk.bid(1)]):
        acc = tk.mma(({text}).astype(tk.float16), tb, acc)
    c.store(acc)
"""
    filename = f"<of bytes: {text}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"tk": tk, "__name__": "of_bytes"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["kernel"]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("text", OF_BYTES)
def test_negatives_of_bytes(text, dtype, device):
    """None is -32768, or nobody looks at its sign: all bytes are right, and rings stay."""
    x = np.tile(np.arange(256).astype(np.uint8).view(dtype), 32).reshape(128, 64)
    eye = np.eye(64, dtype=np.float16)
    c = api.zeros((128, 64), tk.float32)
    op = spelled(text)(c.partition((128, 64)), api.from_host(x), api.from_host(eye))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(op.first().unpartition().to_host().sync(), OF_BYTES[text](x).astype(np.float32))
    c, a, b = (api.meta(shape, t) for shape, t in [((128, 64), tk.float32), ((128, 64), dtype), ((64, 64), tk.float16)])
    assert spelled(text)(c.partition((128, 64)), a, b).explain("sm_90a").pipelines[0].stages


@pytest.mark.parametrize(
    ("rest", "wrong"),
    [
        ("\tcvt.s16.s8 \t%rs3, %rs1;\n", False),
        ("\tand.b16 \t%rs3, %rs1, 255;\n", False),
        ("\tselp.b16 \t%rs3, %rs1, %rs2, %p1;\n\tst.global.b8 \t[%rd1], %rs3;\n", False),
        ("\tselp.b16 \t%rs3, %rs1, %rs2, %p1;\n\tst.global.b16 \t[%rd1], %rs3;\n", True),
        ("\tcvt.s16.s8 \t%rs3, %rs1;\n\tsetp.lt.s16 \t%p1, %rs1, 0;\n", True),
        ("\tand.b16 \t%rs3, %rs1, -256;\n", True),
    ],
)
def test_negatives_of_which_low_bits_matter_stay(rest, wrong):
    assert is_wrong(f"\tcvt.u16.u32 \t%rs2, %r1;\n\tneg.s16 \t%rs1, %rs2;\n{rest}") == wrong


@pytest.mark.parametrize(
    ("operand", "wrong"),
    [
        ("cvt.s16.s8 \t%rs2, %rs9;", False),
        ("shr.u16 \t%rs2, %rs9, 8;", False),
        ("shr.s16 \t%rs2, %rs9, 0;", True),
        ("cvt.u16.u32 \t%rs2, %r9;", True),
    ],
)
def test_negatives_of_small_numbers_stay(operand, wrong):
    assert is_wrong(f"\t{operand}\n\tneg.s16 \t%rs1, %rs2;\n\tcvt.s32.s16 \t%r1, %rs1;\n") == wrong


@tk.kernel(num_warps=1)
def largest_of_negatives(y: tk.Out, x: tk.In):
    t = -tk.load(x, (tk.bid(0), 0), (1, 8))
    y.store(tk.cat((tk.max(t, 1, keepdims=True), tk.min(t, 1, keepdims=True)), 1))


@tk.kernel(num_warps=1)
def highest_of_negatives(y: tk.Out, x: tk.In):
    highest = tk.full((1,), -(1 << 31), tk.int32)
    for i in range(x.shape[1]):
        highest = tk.maximum(highest, 0 - tk.load(x, (tk.bid(0), i), (1, 1)).reshape((1,)))
    y.store(highest.reshape((1, 1)))


def test_extrema_of_negatives(device):
    """CUDA 13.0's ptxas forgets the sign of one of three operands."""
    x = np.random.default_rng(5).integers(-1000, 1000, (64, 8)).astype(np.int32)
    given = api.from_host(x)
    both = largest_of_negatives(api.zeros((64, 2), tk.int32).partition((1, 2)), given).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(both, np.stack([(-x).max(1), (-x).min(1)], 1))
    given = api.from_host(x)
    one = highest_of_negatives(api.zeros((64, 1), tk.int32).partition((1, 1)), given).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(one[:, 0], (-x).max(1))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", [largest_of_negatives, highest_of_negatives], ids=lambda k: k.__name__)
def test_the_code_of_extrema_of_negatives(kernel, target):
    tile = (1, 2) if kernel is largest_of_negatives else (1, 1)
    compiled = kernel(api.meta((64, tile[1]), tk.int32).partition(tile), api.meta((64, 8), tk.int32)).compile(target=target)
    assert "neg.s64" in compiled.ptx and not is_wrong(compiled.ptx)


@pytest.mark.parametrize(
    ("rest", "wrong"),
    [
        ("max.s32 \t%r3, %r2, %r9;\n\tmax.s32 \t%r4, %r3, %r8;", True),
        ("max.s32 \t%r3, %r8, %r9;\n\tmax.s32 \t%r4, %r3, %r2;", True),
        ("mov.b32 \t%r5, %r2;\n\tmin.s32 \t%r3, %r5, %r9;\n\tmov.b32 \t%r6, %r3;\n\tmin.s32 \t%r4, %r8, %r6;", True),
        ("max.s32 \t%r3, %r4, %r2;\n\tmov.b32 \t%r4, %r3;", True),  # a loop's, of which ptxas takes two turns at once
        ("mov.b32 \t%hh5, %r2;\n\tmax.f16x2 \t%hh6, %hh5, %hh5;", False),  # 32 bits that are two halves
        ("max.s32 \t%r3, %r2, %r9;\n\tmin.s32 \t%r4, %r3, %r8;", False),
        ("max.s32 \t%r3, %r2, %r9;\n\tadd.s32 \t%r4, %r3, %r8;", False),
        ("max.u32 \t%r3, %r2, %r9;\n\tmax.u32 \t%r4, %r3, %r8;", False),
        ("add.s32 \t%r7, %r2, 1;\n\tmax.s32 \t%r3, %r7, %r9;\n\tmax.s32 \t%r4, %r3, %r8;", False),
    ],
)
@pytest.mark.parametrize("negative", ["neg.s32 \t%r2, %r1;", "sub.s32 \t%r2, 0, %r1;"])
def test_negatives_that_go_to_two_extrema(negative, rest, wrong):
    ptx = f"\t{negative}\n\t{rest}\n"
    wide = "{ .reg .b64 x; cvt.s64.s32 x, %r1; neg.s64 x, x; cvt.u32.u64 %r2, x; }"
    assert mended(ptx) == (f"\t{wide}\n\t{rest}\n" if wrong else ptx)


@tk.kernel
def shares_behind_a_loop(most: tk.InOut, x: tk.In, y: tk.Out):
    before = tk.atomic_max(most, tk.arange(8), tk.load(x, (0, tk.bid(0)), (1, 8)).reshape(8))
    y.store(tk.mma(tk.load(x, (0, 0), (16, 8)), tk.load(x, (0, 0), (8, 8)), tk.zeros((16, 8))) + before)


@pytest.mark.parametrize("dtype", [tk.float16, tk.float32], ids=str)
def test_warps_are_whole_behind_loops_with_atomics(dtype):
    """Who yields in a loop is not waited for at its end, though the code behind it takes the warp to be whole."""
    most, x, y = api.meta((8,), dtype), api.meta((16, 8), dtype), api.meta((16, 8), tk.float32)
    op = shares_behind_a_loop(most.scattered(), x, y.partition((16, 8)))
    steps = re.findall(r"\b(YIELD|WARPSYNC R\d+|SHFL|[HI]MMA)\b", op.compile("sm_90a").sass)
    behind = steps[len(steps) - steps[::-1].index("YIELD") :]
    assert behind[0].startswith("WARPSYNC R")
    assert {"SHFL", "HMMA"} & set(behind)


@tk.kernel
def product(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(y.tile_shape, tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, y.tile_shape[1]))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    y.store(acc.astype(y.dtype))


@pytest.mark.parametrize(("columns", "occupancy", "wanted"), [(128, 5, 90), (256, 3, 154)])
def test_products_without_registers_are_not_given_to_ptxas(monkeypatch, columns, occupancy, wanted):
    """It would say how many it wants (as `wanted`), and leave nvJitLink broken: the kernel is compiled without a ring."""
    from numba.cuda.cudadrv.driver import _Linker

    seen, link = [], _Linker.complete

    def complete(linker):
        seen.append(max((registers_wanted(o.code.decode()) for o in linker._object_codes if o.code_type == "ptx"), default=0))
        return link(linker)

    monkeypatch.setattr(_Linker, "complete", complete)
    a = api.meta((1024, 1024), tk.float16)
    op = product(api.meta((1024, 1024), tk.float16).partition((64, columns)), a, a).num_warps(4)
    (use,) = op.occupancy(occupancy).explain("sm_90a").products
    assert "mma.sync" in use.instruction
    assert max(seen) == 0
    (use,) = op.occupancy(1).explain("sm_90a").products
    assert "wgmma" in use.instruction
    assert registers_wanted(op.occupancy(1).compile("sm_90a").ptx) == wanted


@pytest.mark.parametrize(("columns", "occupancy"), [(128, 3), (128, 4), (256, 2)])
def test_fewer_threads_load_where_products_lack_their_registers(columns, occupancy):
    """ptxas counts equal shares: a warp that loads takes less of them than a warpgroup, which has registers to give."""
    a = api.meta((1024, 1024), tk.float16)
    op = product(api.meta((1024, 1024), tk.float16).partition((64, columns)), a, a).num_warps(4).occupancy(occupancy)
    explained = op.explain("sm_90a")
    compiled = explained.compiled
    assert explained.pipelines[0].stages >= 2
    assert "HGMMA" in compiled.sass
    assert (compiled.block[0], compiled.local_bytes, compiled.ptx.count("setmaxnreg")) == (4 * 32 + 32, 0, 0)
    assert explained.blocks_per_multiprocessor >= occupancy
    assert not explained.serialised


def test_how_many_registers_a_product_wants():
    text = "\twgmma.mma_async.sync.aligned.m64n{}k16.{}.f16.f16 {{%r1}};\n"
    assert registers_wanted("ret;") == 0
    assert registers_wanted(text.format(64, "f32") + text.format(192, "f32")) == 96 + 26
    assert registers_wanted(text.format(256, "f16")) == 64 + 26
    assert registers_wanted(text.format(8, "s32")) == 4 + 26
