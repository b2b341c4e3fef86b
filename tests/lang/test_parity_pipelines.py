"""`tk.pipelined` against NumPy: it means what the loop without it means, whatever becomes of it on a GPU."""

import itertools

import numpy as np
import pytest
from parity import FLOATS, INTEGERS, check, run, sample

import tilekit as tk
from tilekit import api, dtypes

BM, BN, BK = tk.generics("BM BN BK")
HALVES = [tk.float16, tk.bfloat16]
# Extents that rings of the TMA take, ragged ones that it fills up with zeros, and rows that it cannot have.
EXTENTS = [(128, 256, 192), (130, 264, 200), (65, 136, 40), (63, 71, 45)]


def whole(shape, dtype, seed=0):
    """Numbers whose products and sums are exact."""
    return np.random.default_rng(seed).integers(0 if dtype.kind == "u" else -2, 3, shape).astype(dtype)


def product_of(*operands):
    result = operands[0].astype(np.float64)
    for operand in operands[1:]:
        result = result @ operand.astype(np.float64)
    return result


def padded(x, *multiples):
    """Zeros behind `x`, up to multiples of these extents."""
    return np.pad(x.astype(np.float64), [(0, -n % m) for n, m in zip(x.shape, multiples, strict=True)])


def tiles_of(x, *tile):
    """The tiles of `x` as an array: first the indices of the tile, then those of the element."""
    x = padded(x, *tile)
    rank, shape = len(tile), [part for n, t in zip(x.shape, tile, strict=True) for part in (n // t, t)]
    return x.reshape(shape).transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])


@tk.kernel
def gemm(c: tk.Out[BM, BN], a: tk.In[-1, -1], b: tk.In[-1, -1], stages: tk.Const):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)], stages=stages):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel
def turned(c: tk.Out[BM, BN], a: tk.In[-1, -1], b: tk.In[-1, -1], stages: tk.Const):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BK, BM))[:, tk.bid(0)], b.tiles((BN, BK))[tk.bid(1), :], stages=stages):
        acc = tk.mma(tk.transpose(ta), tb.transpose(), acc)
    c.store(acc)


@tk.kernel
def persistent(c: tk.Out, a: tk.In, b: tk.In):
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros(c.tile_shape, tk.float32)
        for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
            acc = tk.mma(ta, tb, acc)
        c.store(acc, tile)


def multiply(kernel, a, b, shape, tile=(64, 128, 64), *, dtype=tk.float32, stages=None, map_=None, warps=None):
    c = api.zeros(shape, dtype).sync().partition(tile[:2])
    c = c if map_ is None else c.map(num_blocks=map_)
    more = () if kernel is persistent else (stages,)
    op = kernel(c, api.from_host(a), api.from_host(b), *more).generics(BM=tile[0], BN=tile[1], BK=tile[2])
    return (op if warps is None else op.num_warps(warps)).first().unpartition().to_host().sync()


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products(device, extents, dtype):
    m, n, k = extents
    a, b = whole((m, k), dtype), whole((k, n), dtype, 1)
    check(multiply(gemm, a, b, (m, n)), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_of_turned_tiles(device, extents, dtype):
    m, n, k = extents
    a, b = whole((k, m), dtype), whole((n, k), dtype, 1)
    check(multiply(turned, a, b, (m, n)), product_of(a.T, b.T).astype(np.float32))


@pytest.mark.parametrize(
    ("tile", "warps"),
    [
        ((64, 64, 64), 4), ((128, 64, 32), 8), ((64, 256, 64), 4), ((64, 256, 128), 8), ((128, 128, 64), 8), ((16, 16, 16), 1),
        ((32, 32, 64), 2), ((64, 32, 64), 4),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kernel", [gemm, turned], ids=lambda kernel: kernel.name)
def test_tiles_of_products(device, kernel, tile, warps):
    m, n, k = 136, 264, 328
    a, b = whole((m, k), tk.bfloat16), whole((k, n), tk.bfloat16, 1)
    given = (a, b) if kernel is gemm else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    check(multiply(kernel, *given, (m, n), tile, warps=warps), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("dtype", [tk.float32, tk.float8_e4m3fn, tk.float8_e5m2], ids=str)
def test_products_of_other_dtypes(device, dtype):
    a, b = whole((72, 96), dtype), whole((96, 80), dtype, 1)
    check(multiply(gemm, a, b, (72, 80), (32, 32, 32)), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("k", [0, 1, 64, 128, 640])
def test_any_number_of_stages_and_turns(device, stages, k):
    a, b = whole((64, k), tk.float16), whole((k, 64), tk.float16, 1)
    check(multiply(gemm, a, b, (64, 64), (64, 64, 64), stages=stages), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("blocks", [1, 3, 50])
@pytest.mark.parametrize("extents", [(192, 256, 448), (130, 264, 200), (63, 71, 45)], ids=str)
def test_persistent_kernels(device, blocks, extents):
    """The stages go on from one tile of the result to the next."""
    m, n, k = extents
    a, b = whole((m, k), tk.bfloat16), whole((k, n), tk.bfloat16, 1)
    found = multiply(persistent, a, b, (m, n), (64, 64, 64), map_=blocks)
    check(found, product_of(a, b).astype(np.float32))


# ----------------------------------------------------------------------------------------------- streams, and other uses of tiles


@tk.kernel
def total(y: tk.Out, x: tk.In):
    s = tk.zeros((BM, BK), tk.float32)
    for t in tk.pipelined(x.tiles((BM, BK))[tk.bid(0), :]):
        s = s + t.astype(tk.float32)
    y.store(s)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *dtypes.EIGHT_BIT_FLOATS, tk.bool_], ids=str)
@pytest.mark.parametrize("extents", [(64, 512), (60, 272), (33, 45)], ids=str)
def test_a_row_of_every_dtype(device, dtype, extents):
    """One stream gives the tile itself; zeros fill up the edges."""
    x = whole(extents, dtype) if dtype != tk.bool_ else sample(dtype, n=extents)
    found = run_total(x)
    np.testing.assert_array_equal(found, tiles_of(x, 32, 64).sum(1).reshape(found.shape))


def run_total(x, rows=32, columns=64):
    n = -(-x.shape[0] // rows) * rows
    op = total(api.zeros((n, columns)).partition((rows, columns)), api.from_host(x)).generics(BM=rows, BK=columns)
    return op.first().unpartition().to_host().sync()


@pytest.mark.parametrize("tile", [(8, 16), (16, 32), (64, 128), (128, 64), (256, 8), (1, 512), (4, 256), (8, 512)], ids=str)
@pytest.mark.parametrize("dtype", [tk.int8, tk.float16, tk.float32, tk.float64], ids=str)
def test_tiles_of_any_extents(device, dtype, tile):
    x = whole((300, 720), dtype)
    found = run_total(x, *tile)
    np.testing.assert_array_equal(found, tiles_of(x, *tile).sum(1).reshape(found.shape))


def test_all_tiles_of_a_grid(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        at, s = 0, tk.zeros(y.tile_shape, tk.float32)
        for t in tk.pipelined(x.tiles((16, 64))):
            at += 1  # noqa: SIM113
            s += t * at  # in the order of the indices, the last one fastest
        y.store(s)

    x = whole((40, 200), tk.float32)
    tiles = tiles_of(x, 16, 64).reshape(-1, 16, 64)
    wanted = (tiles * np.arange(1, len(tiles) + 1)[:, None, None]).sum(0)
    check(run(kernel, tk.float32, x, n=(16, 64), tile=(16, 64)), wanted.astype(np.float32))


@pytest.mark.parametrize(("first", "last"), [(0, 4), (1, 3), (2, 100), (3, 3), (4, 2), (-2, 7)])
def test_ranges(device, first, last):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, a, b):
        s = tk.zeros(y.tile_shape, tk.float32)
        for t in tk.pipelined(x.tiles((16, 64))[1, a:b]):
            s += t
        y.store(s)

    x = whole((32, 256), tk.float32)
    wanted = tiles_of(x, 16, 64)[1, first:last].sum(0)
    check(run(kernel, tk.float32, x, first, last, n=(16, 64), tile=(16, 64)), wanted.astype(np.float32))


def test_several_streams_are_a_tuple(device):
    @tk.kernel
    def kernel(y: tk.Out, a: tk.In, b: tk.In, c: tk.In):
        s = tk.zeros(y.tile_shape, tk.float32)
        for tiles in tk.pipelined(a.tiles((16, 64))[0, :], b.tiles((16, 32))[0, :], c.tiles((64, 16))[:, 0]):
            ta, tb, tc = tiles
            s += ta.astype(tk.float32) * tk.sum(tb.astype(tk.float32)) - tc.transpose()
        y.store(s)

    a, b, c = whole((16, 256), tk.float16), whole((16, 128), tk.bfloat16, 1), whole((256, 16), tk.float32, 2)
    ta, tb, tc = tiles_of(a, 16, 64)[0], tiles_of(b, 16, 32)[0], tiles_of(c, 64, 16)[:, 0]
    wanted = (ta * tb.sum((1, 2))[:, None, None] - tc.transpose(0, 2, 1)).sum(0)
    check(run(kernel, tk.float32, a, b, c, n=(16, 64), tile=(16, 64)), wanted.astype(np.float32))


def test_one_tensor_in_two_streams(device):
    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, x: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for ta, tb in tk.pipelined(x.tiles((64, 64))[0, :], x.tiles((64, 64))[1, :]):
            acc = tk.mma(ta, tb.transpose(), acc)
        y.store(acc)

    x = whole((128, 256), tk.bfloat16)
    found = run(kernel, tk.float32, x, n=(64, 64), tile=(64, 64))
    check(found, product_of(x[:64], x[64:].T).astype(np.float32))


def test_what_else_tiles_are_good_for(device):
    """Reduced, compared, turned, cut, cast, multiplied by themselves, printed about: all that a loaded tile is good for."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        s = tk.zeros(y.tile_shape, tk.float32)
        for t in tk.pipelined(x.tiles((32, 64))[tk.bid(0), :]):
            tk.static_assert(t.shape == (32, 64) and t.ndim == 2 and t.dtype == x.dtype, "a tile")
            wide = t.astype(tk.float32)
            s += tk.where(t > 0, wide, -wide) + tk.max(t, 0)[None, :].astype(tk.float32)
            s += tk.sum(wide, 1)[:, None] * tk.reshape(t.permute((1, 0)), (32, 64)).astype(tk.float32)
            s += tk.cat((tk.extract(wide, (0, 1), (32, 32)), tk.extract(wide, (0, 0), (32, 32))), 1)
            s += tk.maximum(t, abs(t) * 2).astype(tk.float32)
        y.store(s)

    for dtype, columns in itertools.product([tk.float16, tk.float32], [256, 200]):
        x = whole((64, columns), dtype)
        t = tiles_of(x, 32, 64)
        wanted = abs(t) + t.max(2, keepdims=True) + t.sum(3, keepdims=True) * t.swapaxes(2, 3).reshape(t.shape)
        wanted += np.concatenate([t[..., 32:], t[..., :32]], 3) + 2 * abs(t)
        wanted = wanted.sum(1).reshape(64, 64).astype(np.float32)
        check(run(kernel, tk.float32, x, n=(64, 64), tile=(32, 64)), wanted)


def test_kept_from_one_turn_to_the_next(device):
    """The stage that a tile lies in is used again; the tile is not lost."""

    @tk.kernel
    def kernel(y: tk.Out, z: tk.Out, x: tk.In):
        s, before = tk.zeros(y.tile_shape, tk.float32), tk.zeros(y.tile_shape, tk.float32)
        for t in tk.pipelined(x.tiles((16, 64))[0, :], stages=2):
            s += t * before
            before = t
            same = t
        y.store(s)
        z.store(same)

    x = whole((16, 64 * 9), tk.float32)
    t = tiles_of(x, 16, 64)[0]
    y, z = (api.zeros((16, 64)).partition((16, 64)) for _ in range(2))
    y, z, _ = kernel(y, z, api.from_host(x)).sync()
    check(y.unpartition().to_host().sync(), (t[1:] * t[:-1]).sum(0).astype(np.float32))
    check(z.unpartition().to_host().sync(), t[-1].astype(np.float32))


# --------------------------------------------------------------------------------------------------------- more than one pipeline


def test_one_after_the_other(device):
    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, a: tk.In, b: tk.In, c: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 64))[:, tk.bid(1)]):
            acc = tk.mma(ta, tb, acc)
        for t in tk.pipelined(c.tiles((64, 64))[tk.bid(0), :]):
            acc = acc + t
        y.store(acc)

    a, b, c = whole((128, 320), tk.bfloat16), whole((320, 128), tk.bfloat16, 1), whole((128, 200), tk.float32, 2)
    wanted = product_of(a, b) + np.tile(tiles_of(c, 64, 64).sum(1).reshape(128, 64), 2)
    check(run(kernel, tk.float32, a, b, c, n=(128, 128), tile=(64, 64)), wanted.astype(np.float32))


def test_one_in_the_turn_of_another(device):
    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, a: tk.In, b: tk.In):
        at, acc = 0, tk.zeros((64, 64), tk.float32)
        for ta in tk.pipelined(a.tiles((64, 64))[:, 0], stages=2):
            at += 1  # noqa: SIM113
            for tb in tk.pipelined(b.tiles((64, 64))[at % 2, :], stages=2):
                acc = tk.mma(ta, tb, acc)
        y.store(acc)

    a, b = whole((320, 64), tk.bfloat16), whole((128, 192), tk.bfloat16, 1)
    ta, tb = tiles_of(a, 64, 64)[:, 0], tiles_of(b, 64, 64)
    wanted = sum(product_of(ta[n], tb[(n + 1) % 2, k]) for n in range(5) for k in range(3))
    check(run(kernel, tk.float32, a, b, n=(64, 64), tile=(64, 64)), wanted.astype(np.float32))


def test_what_an_earlier_one_counts_decides_what_a_later_one_loads(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        row, s = 0, tk.zeros((16, 64), tk.float32)
        for t in tk.pipelined(x.tiles((16, 64))[0, :]):
            s += t
            row += 1
        for u in tk.pipelined(x.tiles((16, 64))[row - 1, :]):
            s += 3 * u
        y.store(s)

    x = whole((64, 192), tk.float32)
    t = tiles_of(x, 16, 64)
    check(run(kernel, tk.float32, x, n=(16, 64), tile=(16, 64)), (t[0].sum(0) + 3 * t[2].sum(0)).astype(np.float32))


def test_in_branches_and_loops(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, n):
        s, twice = tk.zeros((16, 64), tk.float32), n * 2
        if tk.bid(0) == 2:
            return
        i = 0
        while i < twice:
            if (i + tk.bid(0)) % 2 == 0:
                for t in tk.pipelined(x.tiles((16, 64))[i, :]):
                    s += t
            else:
                s += 1
            i += 1
        y.store(s)

    x = whole((64, 192), tk.float32)
    t = tiles_of(x, 16, 64).sum(1)
    wanted = np.concatenate([t[0] + t[2] + 2, t[1] + t[3] + 2, 0 * t[0]])
    check(run(kernel, tk.float32, x, 2, n=(48, 64), tile=(16, 64)), wanted.astype(np.float32))


def test_branches_that_types_decide(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        s = tk.zeros((16, 64), tk.float32)
        for t in tk.pipelined(x.tiles((16, 64))[0, :]):
            if t.ndim == 3:
                s += tk.sum(t, 2)
            else:
                s += t
        y.store(s)

    x = whole((16, 192), tk.float32)
    check(run(kernel, tk.float32, x, n=(16, 64), tile=(16, 64)), tiles_of(x, 16, 64)[0].sum(0).astype(np.float32))


def test_breaks(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        at, s = 0, tk.zeros((16, 64), tk.float32)
        for t in tk.pipelined(x.tiles((16, 64))[0, :]):
            at += 1
            if at == 2:
                continue
            if at == 4:
                break
            s += t
        else:
            s += 1
        y.store(s)

    x = whole((16, 64 * 6), tk.float32)
    t = tiles_of(x, 16, 64)[0]
    check(run(kernel, tk.float32, x, n=(16, 64), tile=(16, 64)), (t[0] + t[2]).astype(np.float32))


# ----------------------------------------------------------------------------------------- where the TMA does not bring the tiles


@tk.function
def added_up(x, i):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[i, :]):
        s += t
    return s


def test_in_a_function_that_the_kernel_calls(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        y.store(added_up(x, 1) - 2 * added_up(x, tk.bid(0)))

    x = whole((32, 200), tk.float32)
    t = tiles_of(x, 16, 64).sum(1)
    check(run(kernel, tk.float32, x, n=(16, 64), tile=(16, 64)), (t[1] - 2 * t[0]).astype(np.float32))


def test_loading_by_the_threads_that_calculate(device):
    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, a: tk.In, b: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((64, 64))[0, :], b.tiles((64, 64))[:, 0], warp_specialize=False):
            acc = tk.mma(ta, tb, acc)
        y.store(acc)

    a, b = whole((64, 320), tk.bfloat16), whole((320, 64), tk.bfloat16, 1)
    check(run(kernel, tk.float32, a, b, n=(64, 64), tile=(64, 64)), product_of(a, b).astype(np.float32))


def test_slices(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, first):
        s = tk.zeros((16, 64), tk.float32)
        for t in tk.pipelined(x.slice(1, first, first + 100).tiles((16, 64))[0, :]):
            s += t
        y.store(s)

    x = whole((16, 256), tk.float32)
    wanted = tiles_of(x[:, 32:132], 16, 64)[0].sum(0)
    check(run(kernel, tk.float32, x, 32, n=(16, 64), tile=(16, 64)), wanted.astype(np.float32))


def test_rank_1(device):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        s = tk.zeros(128, tk.float32)
        for t in tk.pipelined(x.tiles(128)):
            s += t
        y.store(s)

    x = whole(1000, tk.float32)
    check(run(kernel, tk.float32, x, n=128, tile=128), tiles_of(x, 128).sum(0).astype(np.float32))


@pytest.mark.parametrize("shape", [(3, 32, 256), (2, 30, 200), (3, 5, 77)], ids=str)
def test_rank_3(device, shape):
    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        s = tk.zeros((1, 16, 64), tk.float32)
        for t in tk.pipelined(x.tiles((1, 16, 64))[tk.bid(0), :, :]):
            s += t
        for u in tk.pipelined(x.tiles((2, 8, 32))):
            s += tk.sum(u)
        y.store(s)

    x = whole(shape, tk.float32)
    wanted = tiles_of(x, 1, 16, 64).sum((1, 2))[:, 0] + padded(x, 1, 1, 1).sum()
    check(run(kernel, tk.float32, x, n=(shape[0], 16, 64), tile=(1, 16, 64)), wanted.astype(np.float32))


def test_tensors_in_other_orders(device):
    """Column-major ones come by the TMA, ones with gaps along all dimensions do not, and those written to do not."""

    @tk.kernel
    def kernel(y: tk.InOut, x: tk.In):
        s = y.load()
        for t, u in tk.pipelined(x.tiles((64, 16))[:, 0], y.tiles((16, 16))):
            s += t.transpose() + 0 * tk.sum(u)
        y.store(s)

    x = whole((16, 512), tk.float32)
    for view in (api.from_host(x).sync().permute(1, 0)[:256], api.from_host(np.ascontiguousarray(x.T)).sync()[::2, :]):
        y = api.zeros((16, 64)).partition((16, 64))
        found = kernel(y, view).first().unpartition().to_host().sync()
        check(found, tiles_of(view.to_host().sync(), 64, 16)[:, 0].sum(0).T.astype(np.float32))


def test_streams_of_unequal_length(device):
    @tk.kernel
    def kernel(y: tk.Out, a: tk.In, b: tk.In):
        s = tk.zeros((16, 64), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((16, 64))[0, :], b.tiles((16, 64))[0, :]):
            s += ta * tb
        y.store(s)

    a, b = whole((16, 320), tk.float32), whole((16, 192), tk.float32, 1)
    if device.kind == "cpu":
        with pytest.raises(tk.DeviceError, match=r"pipelined: the streams have 5, 3 tiles; they must have equally many"):
            run(kernel, tk.float32, a, b, n=(16, 64), tile=(16, 64))
    else:
        wanted = (tiles_of(a, 16, 64)[0, :3] * tiles_of(b, 16, 64)[0]).sum(0)
        check(run(kernel, tk.float32, a, b, n=(16, 64), tile=(16, 64)), wanted.astype(np.float32))
