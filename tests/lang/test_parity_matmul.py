"""Products of matrices: both devices against float64, within the bound that `tilekit.lang.matmul` states."""

import numpy as np
import pytest
from parity import check, run, sample

import tilekit as tk
from tilekit import api

BM, BN, BK = tk.generics("BM BN BK")
PAIRS = [
    (tk.float16, tk.float16), (tk.bfloat16, tk.bfloat16), (tk.float32, tk.float32), (tk.float64, tk.float64), (tk.int8, tk.uint8),
    (tk.float8_e4m3fn, tk.float8_e5m2),
]  # fmt: skip


def whole(shape, dtype, seed=0):
    """Numbers whose products and sums are exact."""
    return np.random.default_rng(seed).integers(0 if dtype == tk.uint8 else -2, 3, shape).astype(dtype)


def exact(*operands):
    result = operands[0].astype(np.float64)
    for operand in operands[1:]:
        result = result @ operand.astype(np.float64)
    return result


def added_up_in(a):
    if a.itemsize == 1:
        return tk.int32 if a.kind in "iu" else tk.float32
    return tk.float64 if a == tk.float64 else tk.float32


@tk.kernel
def gemm(c: tk.Out, a: tk.In, b: tk.In, precision: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((BM, BN), c.dtype)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = tk.mma(tk.load(a, (i, k), (BM, BK)), tk.load(b, (k, j), (BK, BN)), acc, precision=precision)
    c.store(acc)


def product(a, b, tile, *, warps=None, precision="ieee"):
    bm, bn, bk = tile
    c = api.zeros((a.shape[0], b.shape[1]), added_up_in(a.dtype)).partition((bm, bn))
    op = gemm(c, api.from_host(a), api.from_host(b), precision).generics(BM=bm, BN=bn, BK=bk)
    return (op if warps is None else op.num_warps(warps)).first().unpartition().to_host().sync()


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16])
def test_loops_with_any_number_of_warps(device, first, second, warps):
    a, b = whole((80, 200), first), whole((200, 96), second, 1)
    check(product(a, b, (32, 64, 32), warps=warps), exact(a, b).astype(added_up_in(first)))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
@pytest.mark.parametrize("tile", [(128, 128, 32), (64, 128, 64), (16, 16, 16), (8, 32, 8), (64, 4, 128), (128, 256, 16)], ids=str)
def test_tiles(device, first, second, tile):
    a, b = whole((192, 130), first), whole((130, 260), second, 1)
    check(product(a, b, tile), exact(a, b).astype(added_up_in(first)))


@pytest.mark.parametrize(
    ("dtype", "precision", "step", "rounded"),
    [
        (tk.float16, "ieee", 2.0**-22, 0.0), (tk.bfloat16, "ieee", 2.0**-22, 0.0), (tk.float32, "ieee", 2.0**-22, 0.0),
        (tk.float32, "tf32", 2.0**-22, 2.01 * 2.0**-11), (tk.float64, "ieee", 2.0**-52, 0.0),
        (tk.float8_e4m3fn, "ieee", 2.0**-22, 0.0),
    ],
)  # fmt: skip
def test_how_exact_it_is(device, dtype, precision, step, rounded):
    a, b = sample(dtype, n=(64, 512)), sample(dtype, seed=1, n=(512, 64))
    found = product(a, b, (64, 64, 32), precision=precision)
    wide = np.longdouble if dtype == tk.float64 else np.float64
    x, y = a.astype(wide), b.astype(wide)
    size = abs(x) @ abs(y)
    wrong = abs(found.astype(wide) - x @ y)
    assert (wrong <= (512 * step + rounded) * size).all()
    if precision == "tf32":
        assert wrong.max() > 2.0**-16 * size.max() / 512, "operands were rounded"


def test_float32_is_not_rounded(device):
    a = np.full((16, 16), 1 + 2.0**-23, np.float32)
    found = product(a, np.eye(16, dtype=np.float32), (16, 16, 16))
    check(found, a)
    assert (product(a, np.eye(16, dtype=np.float32), (16, 16, 16), precision="tf32") == 1).all()
    ties = np.full((16, 16), 1 + 2.0**-11, np.float32)
    assert (product(ties, np.eye(16, dtype=np.float32), (16, 16, 16), precision="tf32") == 1 + 2.0**-10).all(), "away from zero"


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_infinities_and_nans(device, dtype, precision):
    """Those of a row of `a` reach that row of the result alone, also where tiles are filled up to an instruction's extents."""
    a, b = np.ones((4, 2), dtype), np.ones((2, 8), dtype)
    a[1, 0], a[2, 1] = np.inf, np.nan
    found = product(a, b, (4, 8, 2), precision=precision).astype(np.float64)
    np.testing.assert_array_equal(found, np.array([2, np.inf, np.nan, 2])[:, None] + np.zeros(8))


def test_integers_wrap(device):
    @tk.kernel
    def add(y: tk.Out, a: tk.In, b: tk.In):
        start = tk.full((16, 16), 2**31 - 1, tk.int32)
        y.store(tk.mma(tk.load(a, (0, 0), (16, 32)), tk.load(b, (0, 0), (32, 16)), start))

    a, b = np.full((16, 32), 127, np.int8), np.full((32, 16), 255, np.uint8)
    wanted = np.array(2**31 - 1 + 32 * 127 * 255).astype(np.int64).astype(np.int32)
    check(run(add, tk.int32, a, b, n=(16, 16), tile=(16, 16)), np.full((16, 16), wanted))


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64])
def test_the_result_of_matmul_is_rounded_once(device, dtype):
    @tk.kernel
    def square(y: tk.Out, a: tk.In):
        t = tk.load(a, (0, 0), (32, 32))
        y.store(t @ t - tk.matmul(t, t) + tk.matmul(t, t, precision="ieee"))

    a = whole((32, 32), dtype)
    check(run(square, dtype, a, n=(32, 32), tile=(32, 32)), exact(a, a).astype(dtype))


def test_dtypes_meet(device):
    @tk.kernel
    def mixed(y: tk.Out, a: tk.In, b: tk.In):
        y.store(tk.load(a, (0, 0), (16, 16)) @ tk.load(b, (0, 0), (16, 16)))

    for first, second, result in (
        (tk.float16, tk.float32, tk.float32),
        (tk.int8, tk.uint8, tk.int32),
        (tk.int32, tk.bfloat16, tk.bfloat16),
    ):
        a, b = whole((16, 16), first), whole((16, 16), second, 1)
        check(run(mixed, result, a, b, n=(16, 16), tile=(16, 16)), exact(a, b).astype(result))


@pytest.mark.parametrize("dtype", [tk.float16, tk.float32, tk.float64])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_an_accumulator_is_a_tile_like_others(device, dtype, warps):
    """Loaded, changed, reduced, turned, and an operand itself."""

    @tk.kernel(num_warps=warps)
    def several(y: tk.InOut, a: tk.In):
        t = tk.load(a, (0, 0), (32, 32))
        acc = y.load()
        for k in range(3):
            acc = tk.mma(t, t, acc)
            acc = tk.minimum(acc, tk.max(acc, 1, keepdims=True)) - k
        acc = tk.where(tk.arange(32)[:, None] > tk.arange(32), acc, 0.0) + tk.sum(acc, 0)
        u = acc.transpose().astype(a.dtype)
        y.store(tk.mma(t, u, acc))

    a = whole((32, 32), dtype)
    a[:, 4:] = 0
    start = whole((32, 32), added_up_in(dtype), 1)
    acc, square = start.astype(np.float64), exact(a, a)
    for k in range(3):
        acc = acc + square - k
    acc = np.tril(acc, -1) + acc.sum(0)
    wanted = exact(a, acc.T) + acc
    y = api.from_host(start).sync()
    several(y.partition((32, 32)), api.from_host(a)).sync()
    check(y.to_host().sync(), wanted.astype(start.dtype))


@pytest.mark.parametrize("warps", [1, 4])
def test_attention(device, warps):
    """Two products, a softmax between them: what is left of one product is an operand of the next."""

    @tk.kernel(num_warps=warps)
    def attend(o: tk.Out, q: tk.In, k: tk.In, v: tk.In):
        query = tk.load(q, (tk.bid(0), 0), (32, 64))
        most, total = tk.full((32, 1), -np.inf, tk.float32), tk.zeros((32, 1), tk.float32)
        acc = tk.zeros((32, 64), tk.float32)
        for j in range(tk.cdiv(k.shape[0], 32)):
            scores = tk.mma(query, tk.load(k, (j, 0), (32, 64)).transpose(), tk.zeros((32, 32), tk.float32)) * 0.125
            higher = tk.maximum(most, tk.max(scores, 1, keepdims=True))
            p, shrunk = tk.exp(scores - higher), tk.exp(most - higher)
            total = total * shrunk + tk.sum(p, 1, keepdims=True)
            acc = tk.mma(p.astype(v.dtype), tk.load(v, (j, 0), (32, 64)), acc * shrunk)
            most = higher
        o.store(acc / total)

    q, k, v = (np.random.default_rng(s).normal(0, 1, (128, 64)).astype(np.float16) for s in range(3))
    scores = exact(q, k.T) / 8
    p = np.exp(scores - scores.max(1, keepdims=True))
    wanted = (p / p.sum(1, keepdims=True)) @ v.astype(np.float64)
    found = run(attend, tk.float32, q, k, v, n=(128, 64), tile=(32, 64))
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_loaded_and_constant_operands(device):
    @tk.kernel
    def constants(y: tk.Out, a: tk.In):
        t = tk.load(a, (0, 0), (64, 32))
        y.store(tk.mma(t, tk.full((32, 16), 2.0, tk.float16), tk.full((64, 16), 1.0, tk.float32)) + tk.ones((64, 1)))

    a = whole((64, 32), tk.float16)
    check(run(constants, tk.float32, a, n=(64, 16), tile=(64, 16)), (exact(a, np.full((32, 16), 2.0)) + 2).astype(np.float32))


def test_a_loop_within_a_branch_and_a_product_that_is_not_always_made(device):
    @tk.kernel
    def some(y: tk.Out, a: tk.In, often: tk.In):
        acc = tk.zeros((16, 16), tk.float32)
        times = tk.load(often, tk.bid(0), 1).item()
        if times > 0:
            for _ in range(times):
                t = tk.load(a, (0, 0), (16, 16))
                acc = tk.mma(t, t, acc)
        else:
            acc = acc - 1.0
        y.store(acc)

    a = whole((16, 16), tk.bfloat16)
    found = run(some, tk.float32, a, np.array([2, 0, 3], np.int32), n=(48, 16), tile=(16, 16))
    check(found, np.concatenate([2 * exact(a, a), np.full((16, 16), -1.0), 3 * exact(a, a)]).astype(np.float32))


# -------------------------------------------------------------------------------------------------------------------- bad input


def refused(kernel, **operands):
    """The reasons why a kernel is none that does something with tiles `a`, `b`, `c`: the device's, and the compiler's."""
    shapes = {"a": ((16, 32), tk.float16), "b": ((32, 8), tk.float16), "c": ((16, 8), tk.float32)} | operands
    arguments = [*(api.from_host(np.zeros(s, d)) for s, d in shapes.values()), *(s for s, _ in shapes.values())]
    with pytest.raises(tk.CompileError) as run_there:
        kernel(api.zeros(8).partition(8), *arguments).sync()
    meta = [api.meta(s, d) for s, d in shapes.values()]
    with pytest.raises(tk.CompileError) as compiled:
        kernel(api.meta(8, tk.float32).partition(8), *meta, *arguments[3:]).compile(target="sm_80")
    return run_there.value.reason, compiled.value.reason


@tk.kernel
def of_mma(y: tk.Out, a: tk.In, b: tk.In, c: tk.In, s: tk.Const, t: tk.Const, u: tk.Const):
    zero = (0, 0, 0)
    made = tk.mma(tk.load(a, zero[: len(s)], s), tk.load(b, zero[: len(t)], t), tk.load(c, zero[: len(u)], u))
    y.store(tk.sum(made))


@tk.kernel
def of_matmul(y: tk.Out, a: tk.In, b: tk.In, c: tk.In, s: tk.Const, t: tk.Const, u: tk.Const):
    zero = (0, 0, 0)
    y.store(tk.sum(tk.load(a, zero[: len(s)], s) @ tk.load(b, zero[: len(t)], t)).astype(tk.float32))


@tk.kernel
def of_other_precision(y: tk.Out, a: tk.In, b: tk.In, c: tk.In, s: tk.Const, t: tk.Const, u: tk.Const):
    y.store(tk.sum(tk.mma(tk.load(a, (0, 0), s), tk.load(b, (0, 0), t), tk.load(c, (0, 0), u), precision="tf16")))


@tk.kernel
def of_scalars(y: tk.Out, a: tk.In, b: tk.In, c: tk.In, s: tk.Const, t: tk.Const, u: tk.Const):
    y.store(tk.sum(tk.load(a, (0, 0), s) @ 2.0))


@tk.kernel
def with_a_scalar(y: tk.Out, a: tk.In, b: tk.In, c: tk.In, s: tk.Const, t: tk.Const, u: tk.Const):
    y.store(tk.sum(tk.mma(tk.load(a, (0, 0), s), tk.load(b, (0, 0), t), 0.0)))


@pytest.mark.parametrize(
    ("kernel", "operands", "reason"),
    [
        (
            of_mma,
            {"b": ((16, 8), tk.float16)},
            "mma: shapes (16, 32) and (16, 8) do not fit: rows of 32 elements meet columns of 16; transpose one of them?",
        ),
        (
            of_mma,
            {"b": ((64, 8), tk.float16)},
            "mma: shapes (16, 32) and (64, 8) do not fit: rows of 32 elements meet columns of 64",
        ),
        (
            of_mma,
            {"b": ((2, 32, 8), tk.float16)},
            "mma: acc has shape (16, 8); the product has shape (2, 16, 8)",
        ),
        (
            of_mma,
            {"a": ((32,), tk.float16)},
            ("mma: operands have 2 dimensions, or 3 for a batch, not 1 and 2 (shapes (32,) and (32, 8)); use .reshape(...) or "
            ".broadcast_to(...)"),
        ),
        (
            of_mma,
            {"a": ((4, 16, 32), tk.float16), "b": ((2, 32, 8), tk.float16)},
            "mma: batches of 4 and 2 matrices (shapes (4, 16, 32) and (2, 32, 8)); use .broadcast_to(...)",
        ),
        (
            of_mma,
            {"b": ((32, 8), tk.bfloat16)},
            ("mma: no product of float16 and bfloat16: the operands hold float16, bfloat16, float32, float64 (both the same), "
            "8-bit floats, or int8 and uint8; cast them with .astype(...)"),
        ),
        (of_mma, {"c": ((16, 16), tk.float32)}, "mma: acc has shape (16, 16); the product has shape (16, 8)"),
        (
            of_mma,
            {"c": ((16, 8), tk.bfloat16)},
            ("mma: acc holds bfloat16; these operands are added up in float32: start from tk.zeros((16, 8), tk.float32), and "
            "cast the result"),
        ),
        (
            of_mma,
            {"a": ((16, 32), tk.int8), "b": ((32, 8), tk.uint8)},
            ("mma: acc holds float32; these operands are added up in int32: start from tk.zeros((16, 8), tk.int32), and cast the "
            "result"),
        ),
        (
            of_matmul,
            {"a": ((16, 32), tk.int32), "b": ((32, 8), tk.int32)},
            ("@: no product of int32 and int32: the operands hold float16, bfloat16, float32, float64 (both the same), 8-bit "
            "floats, or int8 and uint8; cast them with .astype(...)"),
        ),
        (
            of_matmul,
            {"b": ((32, 8), tk.bfloat16)},
            "@: no common dtype of float16 and bfloat16; cast one of them with .astype(...)",
        ),
        (
            of_matmul,
            {"b": ((16,), tk.float16)},
            "@: shapes (16, 32) and (16, 1) do not fit: rows of 32 elements meet columns of 16; transpose one of them?",
        ),
        (of_other_precision, {}, 'mma: precision is "ieee", "tf32" or "fast", not \'tf16\''),
        (of_scalars, {}, "@: b is a tile, not a scalar (float)"),
        (with_a_scalar, {}, "mma: acc is a tile, not a scalar (float)"),
    ],
)  # fmt: skip
def test_what_does_not_fit(device, kernel, operands, reason):
    assert refused(kernel, **operands) == (reason, reason)


def test_outside_a_kernel():
    with pytest.raises(TypeError, match=r"tk\.mma is a tile operation.*On the host use numpy\.matmul"):
        tk.mma(1, 2, 3)
