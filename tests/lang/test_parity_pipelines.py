"""`tk.pipelined` against NumPy: it means what the loop without it means, whatever becomes of it on a GPU."""

import itertools

import numpy as np
import pytest
from parity import FLOATS, INTEGERS, check, run, sample

import tilekit as tk
from tilekit import api, dtypes

BM, BN, BK = tk.generics("BM BN BK")
HALVES = [tk.float16, tk.bfloat16]
# Extents that rings of the TMA take, ragged ones that it fills up with zeros, rows that threads copy 8 and 4 bytes at a time (of
# both operands, of one), and rows that no ring can have.
EXTENTS = [(128, 256, 192), (130, 264, 200), (65, 136, 40), (132, 268, 196), (66, 142, 90), (136, 260, 200), (63, 71, 45)]


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


@tk.kernel
def persistent_turned(c: tk.Out, a: tk.In, b: tk.In):
    for tile in c.tiles():
        acc = tk.zeros(c.tile_shape, tk.float32)
        for ta, tb in tk.pipelined(a.tiles((BK, BM))[:, tile.index[0]], b.tiles((BN, BK))[tile.index[1], :]):
            acc = tk.mma(ta.transpose(), tb.transpose(), acc)
        c.store(acc.astype(c.dtype), tile)


def multiply(kernel, a, b, shape, tile=(64, 128, 64), *, dtype=tk.float32, stages=None, map_=None, cluster=None, warps=None):
    c = api.zeros(shape, dtype).sync().partition(tile[:2])
    c = c if map_ is None else c.map(num_blocks=map_, cluster=cluster, group=(2, 1))
    assert cluster is None or c.cluster == cluster
    more = () if kernel in (persistent, persistent_turned) else (stages,)
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
        ((32, 32, 64), 2), ((64, 32, 64), 4), ((64, 32, 64), 8), ((64, 16, 32), 4), ((128, 128, 16), 8), ((128, 256, 32), 8),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kernel", [gemm, turned], ids=lambda kernel: kernel.name)
def test_tiles_of_products(device, kernel, tile, warps):
    m, n, k = 136, 264, 328
    a, b = whole((m, k), tk.bfloat16), whole((k, n), tk.bfloat16, 1)
    given = (a, b) if kernel is gemm else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    check(multiply(kernel, *given, (m, n), tile, warps=warps), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("extents", [(132, 260, 332), (134, 262, 330)], ids=str)
@pytest.mark.parametrize(
    ("tile", "warps"),
    [
        ((64, 64, 64), 4), ((64, 256, 128), 8), ((128, 256, 64), 8), ((128, 128, 32), 4), ((16, 16, 16), 1), ((256, 64, 64), 8),
        ((128, 64, 16), 8), ((64, 32, 32), 4),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kernel", [gemm, turned], ids=lambda kernel: kernel.name)
def test_tiles_that_threads_copy(device, kernel, tile, warps, extents):
    m, n, k = extents
    a, b = whole((m, k), tk.bfloat16), whole((k, n), tk.bfloat16, 1)
    given = (a, b) if kernel is gemm else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    check(multiply(kernel, *given, (m, n), tile, warps=warps), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("extents", [(72, 80, 96), (68, 76, 92)], ids=str)
@pytest.mark.parametrize("dtype", [tk.float32, tk.float8_e4m3fn, tk.float8_e5m2], ids=str)
def test_products_of_other_dtypes(device, dtype, extents):
    m, n, k = extents
    a, b = whole((m, k), dtype), whole((k, n), dtype, 1)
    check(multiply(gemm, a, b, (m, n), (32, 32, 32)), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("stages", [1, 2, 3, 7])
@pytest.mark.parametrize("k", [2, 62, 66, 642])
def test_copies_in_any_number_of_stages_and_turns(device, stages, k):
    a, b = whole((64, k), tk.float16), whole((k, 68), tk.float16, 1)
    check(multiply(gemm, a, b, (64, 68), (64, 64, 64), stages=stages), product_of(a, b).astype(np.float32))


@tk.kernel
def of_any(c: tk.Out, a: tk.In, b: tk.In, precision: tk.Const):
    """`b` comes in tiles of its transpose: `k` is contiguous in both operands."""
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros(c.tile_shape, c.dtype)
        for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BN, BK))[j, :]):
            acc = tk.mma(ta, tb.transpose(), acc, precision=precision)
        c.store(acc, tile)


@tk.kernel
def of_rows(c: tk.Out, a: tk.In, b: tk.In, precision: tk.Const):
    acc = tk.zeros(c.tile_shape, c.dtype)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc, precision=precision)
    c.store(acc)


@tk.kernel
def gated(c: tk.Out, a: tk.In, b: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    left, right = tk.zeros(c.tile_shape, c.dtype), tk.zeros(c.tile_shape, c.dtype)
    for ta, tb, tc in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j], b.tiles((BK, BN))[:, j + 64 // BN]):
        left, right = tk.mma(ta, tb, left), tk.mma(ta, tc, right)
    c.store(left - 3 * right)


@tk.kernel
def of_doubles(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(c.tile_shape, c.dtype)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(tk.abs(ta), tb * 2, acc)
    c.store(acc)


OF_ANY = [
    (tk.float8_e4m3fn, tk.float8_e5m2, "ieee"), (tk.float8_e5m2, tk.float8_e4m3fn, "fast"), (tk.int8, tk.uint8, "ieee"),
    (tk.uint8, tk.int8, "ieee"), (tk.float32, tk.float32, "tf32"), (tk.bfloat16, tk.bfloat16, "fast"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "precision"), OF_ANY, ids=str)
@pytest.mark.parametrize("extents", [(256, 512, 640), (136, 264, 400), (63, 70, 48), (64, 64, 0)], ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "nbytes", "warps", "cluster"),
    [
        (64, 64, 128, 4, None),
        (128, 256, 128, 8, (2, 1)),
        (128, 128, 256, 8, (1, 2)),
        (64, 256, 128, 8, None),
        (32, 32, 128, 2, None),
        (128, 128, 64, 8, None),
        (64, 128, 32, 4, None),
        (128, 64, 64, 8, (2, 2)),
    ],
    ids=str,
)
def test_products_with_k_contiguous(device, left, right, precision, extents, rows, columns, nbytes, warps, cluster):
    m, n, k = extents
    a, b = whole((m, k), left), whole((n, k), right, 1)
    into = np.dtype(np.int32) if left in (tk.int8, tk.uint8) else tk.float32
    c = api.zeros((m, n), into).sync().partition((rows, columns)).map(num_blocks=4, cluster=cluster, group=(2, 2))
    op = of_any(c, api.from_host(a), api.from_host(b), precision).generics(BM=rows, BN=columns, BK=nbytes // left.itemsize)
    found = op.num_warps(warps).first().unpartition().to_host().sync()
    check(found, product_of(a, b.T).astype(into))


@pytest.mark.parametrize(("left", "right", "precision"), OF_ANY, ids=str)
@pytest.mark.parametrize("extents", [(256, 128, 640), (136, 264, 4000), (63, 70, 48), (64, 64, 0)], ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "warps", "blocks"), [(64, 64, 4, 2), (128, 64, 8, 3), (64, 32, 4, 8), (32, 32, 2, 5)]
)
def test_products_whose_turns_blocks_share(device, left, right, precision, extents, rows, columns, warps, blocks):
    m, n, k = extents
    a, b = whole((m, k), left), whole((n, k), right, 1)
    into = np.dtype(np.int32) if left in (tk.int8, tk.uint8) else tk.float32
    c = api.zeros((m, n), into).sync().partition((rows, columns))
    c = c.map(num_blocks=blocks * (c.grid[0] * c.grid[1] + 1), blocks_per_tile=blocks, group=(2, 2))
    op = of_any(c, api.from_host(a), api.from_host(b), precision).generics(BM=rows, BN=columns, BK=128 // left.itemsize)
    found = op.num_warps(warps).first().unpartition().to_host().sync()
    check(found, product_of(a, b.T).astype(into))


@pytest.mark.parametrize("tile", [(128, 128, 16), (64, 32, 16), (64, 64, 32), (128, 64, 8)], ids=str)
@pytest.mark.parametrize("extents", [(136, 264, 104), (64, 60, 44), (130, 132, 20)], ids=str)
def test_tf32_of_row_major_matrices(device, tile, extents):
    """`b` is turned over on its way to warpgroups, where it can be."""
    m, n, k = extents
    a, b = whole((m, k), tk.float32), whole((k, n), tk.float32, 1)
    c = api.zeros((m, n)).sync().partition(tile[:2])
    op = of_rows(c, api.from_host(a), api.from_host(b), "tf32").generics(BM=tile[0], BN=tile[1], BK=tile[2])
    check(op.num_warps(8 if tile[0] == 128 else 4).first().unpartition().to_host().sync(), product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("columns", [64, 32, 16])
@pytest.mark.parametrize("depth", [64, 32, 16])
def test_products_of_one_tile_with_two(device, depth, columns):
    x, w = whole((130, 168), tk.bfloat16), whole((168, 128), tk.bfloat16, 1)
    y = api.zeros((130, 64)).sync().partition((64, columns))
    op = gated(y, api.from_host(x), api.from_host(w)).generics(BM=64, BN=columns, BK=depth).num_warps(4)
    left, right = product_of(x, w[:, :64]), product_of(x, w[:, 64:])
    check(op.first().unpartition().to_host().sync(), (left - 3 * right).astype(np.float32))


@pytest.mark.parametrize("tile", [(64, 32, 64), (64, 64, 32), (64, 16, 16), (128, 32, 32)], ids=str)
@pytest.mark.parametrize("ways", ["NN", "NT"])
def test_products_of_narrow_operands_that_are_computed(device, ways, tile):
    x, w = whole((130, 168), tk.bfloat16), whole((168, 72) if ways == "NN" else (72, 168), tk.bfloat16, 1)
    y, b = api.zeros((130, 72)).sync().partition(tile[:2]), api.from_host(w).sync()
    op = of_doubles(y, api.from_host(x), b if ways == "NN" else b.T).generics(BM=tile[0], BN=tile[1], BK=tile[2]).num_warps(4)
    want = 2 * product_of(abs(x), w if ways == "NN" else w.T)
    check(op.first().unpartition().to_host().sync(), want.astype(np.float32))


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


# -------------------------------------------------------------------------------------------------------------------- clusters


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (4, 1), (1, 4), (2, 2)], ids=str)
@pytest.mark.parametrize("kernel", [persistent, persistent_turned], ids=lambda kernel: kernel.name)
def test_clusters(device, kernel, cluster, dtype):
    """Each block of a cluster brings a part of what all of them multiply; some blocks visit a tile more than others do."""
    m, n, k = 256, 1024, 320
    a, b = whole((m, k), dtype), whole((k, n), dtype, 1)
    given = (a, b) if kernel is persistent else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    found = multiply(kernel, *given, (m, n), (64, 128, 64), map_=20, cluster=cluster, warps=4)
    check(found, product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("tile", [(64, 128, 32), (128, 64, 16), (64, 32, 64)], ids=str)
@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("kernel", [persistent, persistent_turned], ids=lambda kernel: kernel.name)
def test_clusters_that_bring_narrow_rows(device, kernel, cluster, tile):
    m, n, k = 256, 512, 168
    a, b = whole((m, k), tk.bfloat16), whole((k, n), tk.bfloat16, 1)
    given = (a, b) if kernel is persistent else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    found = multiply(kernel, *given, (m, n), tile, map_=20, cluster=cluster, warps=4)
    check(found, product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("kernel", [persistent, persistent_turned], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("tile", "warps"), [((128, 256, 64), 8), ((128, 128, 128), 8), ((256, 128, 64), 8), ((64, 256, 64), 4)], ids=str
)
def test_tiles_in_clusters(device, kernel, cluster, tile, warps):
    """Extents that hang over, along all dimensions."""
    m, n, k = 4 * tile[0] - 24, 2 * tile[1] - 8, 200
    a, b = whole((m, k), tk.bfloat16), whole((k, n), tk.bfloat16, 1)
    given = (a, b) if kernel is persistent else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    found = multiply(kernel, *given, (m, n), tile, map_=4, cluster=cluster, warps=warps)
    check(found, product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("extents", [(232, 500, 200), (232, 504, 198), (230, 508, 196)], ids=str)
def test_streams_that_are_copied_in_clusters(device, extents, cluster):
    """Each block copies what it needs itself, and has a part of the other stream's tiles brought to all."""
    m, n, k = extents
    a, b = whole((m, k), tk.bfloat16), whole((k, n), tk.bfloat16, 1)
    found = multiply(persistent, a, b, (m, n), (64, 128, 64), map_=4, cluster=cluster, warps=4)
    check(found, product_of(a, b).astype(np.float32))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [(256, 512), (256, 504), (250, 510), (255, 511)], ids=str)
def test_results_of_16_bits(device, shape, dtype):
    """Rows change from the layout of products to that of wide stores; those that lie otherwise are stored as they can be."""
    (m, n), k = shape, 64
    a, b = whole((m, k), dtype), whole((k, n), dtype, 1)

    @tk.kernel(num_warps=4)
    def kernel(c: tk.Out, a: tk.In, b: tk.In):
        for tile in c.tiles():
            i, j = tile.index
            acc = tk.zeros(c.tile_shape, tk.float32)
            for ta, tb in tk.pipelined(a.tiles((64, 64))[i, :], b.tiles((64, 128))[:, j]):
                acc = tk.mma(ta, tb, acc)
            c.store(acc.astype(c.dtype), tile)

    c = api.zeros(shape, dtype).sync().partition((64, 128)).map(num_blocks=4, cluster=(2, 1))
    found = kernel(c, api.from_host(a), api.from_host(b)).first().unpartition().to_host().sync()
    check(found, product_of(a, b).astype(dtype))


def test_what_threads_of_a_cluster_read_by_themselves(device):
    """A row of tiles that all blocks of a cluster add up, another one of their own, and no product."""

    @tk.kernel
    def kernel(y: tk.Out, a: tk.In, b: tk.In):
        for tile in y.tiles():
            i, j = tile.index
            s = tk.zeros((16, 128), tk.float32)
            for ta, tb in tk.pipelined(a.tiles((16, 128))[i, :], b.tiles((128, 16))[:, j], stages=2):
                s += ta * (j + 1) + tb.transpose()
            y.store(s, tile)

    a, b = whole((64, 128 * 6), tk.float32), whole((128 * 6, 64), tk.float32, 1)
    ta, tb = tiles_of(a, 16, 128).sum(1), tiles_of(b, 128, 16).sum(0).swapaxes(1, 2)
    wanted = np.block([[ta[i] * (j + 1) + tb[j] for j in range(4)] for i in range(4)]).astype(np.float32)
    for cluster in ((2, 1), (1, 2), (1, 4), (2, 2), None):
        y = api.zeros((64, 512)).sync().partition((16, 128)).map(num_blocks=8, cluster=cluster)
        check(kernel(y, api.from_host(a), api.from_host(b)).first().unpartition().to_host().sync(), wanted)


def test_one_stream_of_several_is_shared_and_two_pipelines_follow_each_other(device):
    @tk.kernel(num_warps=4)
    def kernel(c: tk.Out, a: tk.In, b: tk.In, d: tk.In):
        for tile in c.tiles():
            i, j = tile.index
            acc = tk.zeros(c.tile_shape, tk.float32)
            for ta, tb in tk.pipelined(a.tiles((64, 64))[i, :], b.tiles((64, 128))[:, j]):
                acc = tk.mma(ta, tb, acc)
            for td in tk.pipelined(d.tiles((8, 128))[:, j], stages=2):
                acc = acc + tk.sum(td, 0, keepdims=True)
            c.store(acc, tile)

    a, b, d = whole((256, 192), tk.bfloat16), whole((192, 512), tk.bfloat16, 1), whole((40, 512), tk.float32, 2)
    c = api.zeros((256, 512)).sync().partition((64, 128)).map(num_blocks=6, cluster=(2, 1))
    found = kernel(c, *(api.from_host(x) for x in (a, b, d))).first().unpartition().to_host().sync()
    check(found, (product_of(a, b) + d.sum(0, dtype=np.float64)).astype(np.float32))


# ---------------------------------------------------------------------------------------------- products that wait for each other


@tk.kernel
def attention(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    h, i = tk.bid(0), tk.bid(1)
    n = tk.cdiv(k.shape[1], BN)
    query = tk.load(q, (h, i, 0), (1, BM, BK)).reshape((BM, BK))
    acc, scores = tk.zeros((BM, BK), tk.float32), tk.zeros((BM, BN), tk.float32)
    for first in tk.pipelined(k.tiles((1, BN, BK))[h, 0:1, 0], stages=1):
        scores = tk.mma(query, first.reshape((BN, BK)).transpose(), scores)
    most = tk.max(scores, 1, keepdims=True) * scale
    p32 = tk.exp2(scores * scale - most)
    total = tk.sum(p32, 1, keepdims=True)
    p = p32.astype(v.dtype)
    for key, value in tk.pipelined(k.tiles((1, BN, BK))[h, 1:n, 0], v.tiles((1, BN, BK))[h, 0 : n - 1, 0], stages=2):
        scores = tk.mma(query, key.reshape((BN, BK)).transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(p, value.reshape((BN, BK)), acc)
        higher = tk.maximum(most, tk.max(scores, 1, keepdims=True) * scale)
        p32 = tk.exp2(scores * scale - higher)
        shrink = tk.exp2(most - higher)
        total = total * shrink + tk.sum(p32, 1, keepdims=True)
        most = higher
        acc = acc * shrink
        p = p32.astype(v.dtype)
    for value in tk.pipelined(v.tiles((1, BN, BK))[h, n - 1 : n, 0], stages=1):
        acc = tk.mma(p, value.reshape((BN, BK)), acc)
    o.store((acc / total).astype(o.dtype).reshape((1, BM, BK)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("turns", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("tile", "warps"), [((64, 64, 64), 4), ((128, 64, 64), 8), ((128, 128, 128), 8), ((64, 128, 64), 4)], ids=str
)
def test_attention(device, tile, warps, turns, dtype):
    queries, keys, depth = tile
    rng = np.random.default_rng(turns)
    q, k, v = (rng.normal(size=(2, n, depth)).astype(dtype) for n in (2 * queries, turns * keys, turns * keys))
    o = api.zeros((2, 2 * queries, depth)).sync().partition((1, queries, depth))
    scale = depth**-0.5
    op = attention(o, *(api.from_host(x) for x in (q, k, v)), scale * np.log2(np.e).item())
    found = op.generics(BM=queries, BN=keys, BK=depth).num_warps(warps).first().unpartition().to_host().sync()
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    p = np.exp(q @ k.swapaxes(1, 2) * scale)
    wanted = p / p.sum(2, keepdims=True) @ v
    assert abs(found - wanted).max() < (4e-3 if dtype == tk.float16 else 2e-2)


def carry(kernel, turns, warps=4, rows=64, dtype=tk.bfloat16):
    """Run `kernel(y, a, b, c)`, whose tiles have so many rows, and 64 columns."""
    a, b, c = whole((rows, 64), dtype), whole((64, 64 * turns), dtype, 1), whole((64 * turns, 64), dtype, 2)
    y = api.zeros((rows, 64)).sync().partition((rows, 64))
    op = kernel(y, *(api.from_host(x) for x in (a, b, c))).num_warps(warps)
    found = op.first().unpartition().to_host().sync()
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    return found, a, [b[:, 64 * t : 64 * t + 64] for t in range(turns)], [c[64 * t : 64 * t + 64] for t in range(turns)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("rows", "warps"), [(64, 4), (128, 8), (128, 4), (64, 8), (32, 2)])
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_an_operand_that_is_carried_round_the_loop(device, turns, rows, warps, dtype):
    """It comes from the scores of the turn before: exact, as these are cut to one, zero and minus one."""

    @tk.kernel
    def kernel(y: tk.Out, a: tk.In, b: tk.In, c: tk.In):
        query = tk.load(a, (0, 0), y.tile_shape)
        p, acc = query, tk.zeros(y.tile_shape, tk.float32)
        for tb, tc in tk.pipelined(b.tiles((64, 64))[0, :], c.tiles((64, 64))[:, 0], stages=2):
            scores = tk.mma(query, tb, tk.zeros(y.tile_shape, tk.float32))
            acc = tk.mma(p, tc, acc)
            p = tk.minimum(tk.maximum(scores, -1.0), 1.0).astype(a.dtype)
            acc = acc * -1.0
        y.store(acc + p.astype(tk.float32))

    found, query, b, c = carry(kernel, turns, warps, rows, dtype)
    p, acc = query, 0
    for tb, tc in zip(b, c, strict=True):
        acc = -(acc + p @ tc)
        p = np.clip(query @ tb, -1, 1)
    check(found, (acc + p).astype(np.float32))


def test_what_else_a_carried_operand_is_good_for(device):
    """Read by other operations, changed in branches, and handed on to another variable."""

    @tk.kernel
    def kernel(y: tk.Out, a: tk.In, b: tk.In, c: tk.In):
        p, acc, at = tk.load(a, (0, 0), (64, 64)), tk.zeros((64, 64), tk.float32), 0
        before, seen = p, tk.zeros((64, 1), tk.float32)
        for tb, tc in tk.pipelined(b.tiles((64, 64))[0, :], c.tiles((64, 64))[:, 0]):
            acc = tk.mma(p, tb, acc)
            seen += tk.sum(p.astype(tk.float32), 1, keepdims=True)
            acc = tk.mma(before, tc, acc)
            before = p
            if at % 2 == 0:
                p = p * -1.0
            elif at % 3 == 0:
                p = tk.where(p > 0, p, before)
            at += 1  # noqa: SIM113
        y.store(acc + seen + before.astype(tk.float32) * p.astype(tk.float32))

    for turns in (1, 4, 7):
        found, p, b, c = carry(kernel, turns)
        before, seen, acc = p, 0, 0
        for at, (tb, tc) in enumerate(zip(b, c, strict=True)):
            acc = acc + p @ tb + before @ tc
            seen = seen + p.sum(1, keepdims=True)
            before = p
            p = -p if at % 2 == 0 else p
        check(found, (acc + seen + before * p).astype(np.float32))


def test_products_that_are_needed_in_another_order(device):
    """Three are asked for in a turn; the second is needed first, the first with it, and the last in the next turn alone."""

    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, a: tk.In, b: tk.In, c: tk.In):
        query = tk.load(a, (0, 0), (64, 64))
        total, late = tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float32)
        for tb, tc in tk.pipelined(b.tiles((64, 64))[0, :], c.tiles((64, 64))[:, 0]):
            total = total + late
            one = tk.mma(query, tb, tk.zeros((64, 64), tk.float32))
            two = tk.mma(query, tc.transpose(), tk.zeros((64, 64), tk.float32))
            late = tk.mma(query, tc, tk.zeros((64, 64), tk.float32))
            total = total + tk.max(two, 1, keepdims=True)
            total = total - one
        y.store(total + 2.0 * late)

    for turns in (1, 2, 6):
        found, query, b, c = carry(kernel, turns)
        total, late = 0, 0
        for tb, tc in zip(b, c, strict=True):
            total = total + late - query @ tb + (query @ tc.T).max(1, keepdims=True)
            late = query @ tc
        check(found, (total + 2 * late).astype(np.float32))


# ----------------------------------------------------------------------------------------------------- tiles as they lie, renamed


@pytest.mark.parametrize("dtype", [*HALVES, tk.float32], ids=str)
@pytest.mark.parametrize("shape", [(3, 64, 256), (2, 60, 200)], ids=str)
def test_tiles_with_other_dimensions(device, dtype, shape):
    """Elementwise, in reductions and in other shapes: it does not matter how a tile got its dimensions."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        s = tk.zeros((64, 32), tk.float32)
        for t in tk.pipelined(x.tiles((1, 32, 64))[tk.bid(0), 0, :]):
            flat = t.reshape((32, 64))
            s += flat.transpose().astype(tk.float32)
            s += 2 * t.permute((2, 0, 1)).reshape((64, 32)).astype(tk.float32)
            s += 3 * tk.reshape(t, (1, 32, 1, 64)).permute((3, 0, 2, 1)).reshape((64, 32)).astype(tk.float32)
            s += 4 * tk.transpose(tk.transpose(t, 0, 2), 1, 2).reshape((64, 32)).astype(tk.float32)
            s += 5 * flat.reshape((64, 32)).astype(tk.float32)  # rows apart: other elements lie together
            s += tk.sum(t.transpose(1, 2).astype(tk.float32), 2).reshape((64, 1))
            s += tk.max(flat.transpose().reshape((64, 1, 32)), 0).astype(tk.float32)
        y.store(s.reshape((1, 64, 32)))

    x = whole(shape, dtype)
    t = tiles_of(x, 1, 32, 64)[:, 0, :, 0]
    turned = t.swapaxes(2, 3)
    wanted = 10 * turned + 5 * t.reshape(turned.shape) + t.sum(2)[..., None] + t.max(3)[:, :, None, :]
    check(run(kernel, tk.float32, x, n=(shape[0], 64, 32), tile=(1, 64, 32)), wanted.sum(1).astype(np.float32))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize("turned_a", [False, True])
def test_products_of_tiles_with_other_dimensions(device, turned_a, turned_b, dtype):
    """Batches of one, taken off; and dimensions of one put in, exchanged, and taken off."""

    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, a: tk.In, b: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((1, 64, 64))[tk.bid(0), 0, :], b.tiles((64, 1, 64))[:, 0, 0]):
            first, second = ta.reshape((64, 64)), tb.permute((1, 0, 2)).reshape((64, 64))
            if turned_a:
                first = ta.permute((2, 1, 0)).reshape((64, 64))
            if turned_b:
                second = tb.reshape((1, 64, 64)).transpose(1, 2).reshape((64, 64))
            acc = tk.mma(first, second, acc)
            acc = acc + tk.sum(first.astype(tk.float32), 1, keepdims=True)
        y.store(acc.reshape((1, 64, 64)))

    a, b = whole((2, 64, 192), dtype), whole((192, 1, 64), dtype, 1)
    ta, tb = tiles_of(a, 1, 64, 64)[:, 0, :, 0], tiles_of(b, 64, 1, 64)[:, 0, 0, :, 0]
    ta, tb = (ta.swapaxes(2, 3) if turned_a else ta), (tb.swapaxes(1, 2) if turned_b else tb)
    wanted = (ta @ tb + ta.sum(3, keepdims=True)).sum(1)
    check(run(kernel, tk.float32, a, b, n=(2, 64, 64), tile=(1, 64, 64)), wanted.astype(np.float32))


# ----------------------------------------------------------------------------------------------- streams, and other uses of tiles


@tk.kernel
def total(y: tk.Out, x: tk.In):
    s = tk.zeros((BM, BK), tk.float32)
    for t in tk.pipelined(x.tiles((BM, BK))[tk.bid(0), :]):
        s = s + t.astype(tk.float32)
    y.store(s)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *dtypes.EIGHT_BIT_FLOATS, tk.bool_], ids=str)
@pytest.mark.parametrize("extents", [(64, 512), (60, 272), (60, 268), (33, 45)], ids=str)
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


def test_tiles_that_are_looked_up(device):
    """Single elements of a tensor decide which tiles come, in what order."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, table: tk.In, begins: tk.In, n: int):
        s = tk.zeros(y.tile_shape, tk.float32)
        for at in range(n):
            begin = tk.load(begins, at, ()).item()
            for t in tk.pipelined(x.tiles((16, 64))[tk.load(table, at, ()).item(), begin : begin + 2], stages=2):
                s = s * 2 + t
        y.store(s)

    x, table, begins = whole((40, 320), tk.float32), np.array([2, 0, 0, 1], np.int32), np.array([3, 0, 2, 1], np.int32)
    wanted, tiles = np.zeros((16, 64)), tiles_of(x, 16, 64)
    for row, begin in zip(table, begins, strict=True):
        wanted = (wanted * 2 + tiles[row, begin]) * 2 + tiles[row, begin + 1]
    op = kernel(api.zeros((16, 64)).partition((16, 64)), *(api.from_host(a) for a in (x, table, begins)), len(table))
    np.testing.assert_array_equal(op.first().unpartition().to_host().sync(), wanted)


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
        same = before
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


def test_one_turn_or_none(device):
    """`[i : i + 1]` is a tile, or none: as of a slice in Python, -1 is none, and -2 the last but one."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        s = tk.zeros((16, 64), tk.float32)
        for at in range(6):
            column = at - 2
            for t in tk.pipelined(x.tiles((16, 64))[tk.bid(0), column : column + 1], stages=1):
                s = s * 10 + t
            for t in tk.pipelined(x.tiles((16, 64))[0:1, 1]):
                s += t
        y.store(s)

    x = whole((64, 128), tk.float32)
    t = tiles_of(x, 16, 64)
    more = t[0, 1]
    wanted = []
    for first, second in t:
        s = np.zeros((16, 64))
        for tile in (first, None, first, second, None, None):
            s = (s if tile is None else s * 10 + tile) + more
        wanted.append(s)
    check(run(kernel, tk.float32, x, n=(64, 64), tile=(16, 64)), np.concatenate(wanted).astype(np.float32))


SOME = slice(0, 2)


def test_slices_that_are_written_elsewhere(device):
    """Of `[ROWS, i : i + 1]` there may be several tiles."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        s, i = tk.zeros((16, 64), tk.float32), tk.bid(0)
        for t in tk.pipelined(x.tiles((16, 64))[i, SOME]):
            s += t
        for t in tk.pipelined(x.tiles((16, 64))[SOME, 0:1]):
            s = s * 10 + t
        y.store(s)

    x = whole((64, 192), tk.float32)
    t = tiles_of(x, 16, 64)
    wanted = ((t[:, 0] + t[:, 1]) * 10 + t[0, 0]) * 10 + t[1, 0]
    check(run(kernel, tk.float32, x, n=(64, 64), tile=(16, 64)), wanted.reshape(64, 64).astype(np.float32))


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


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("depths", [(64, 64), (64, 32), (32, 64)], ids=str)
def test_two_products_in_a_row(device, depths, extents):
    """Of tiles of the same size, and of others, for which the stages have room; brought by TMA, by copies, or one by each."""
    first, second = depths

    @tk.kernel(num_warps=4)
    def kernel(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, e: tk.In):
        for tile in c.tiles():
            i, j = tile.index
            acc = tk.zeros((64, 64), tk.float32)
            for ta, tb in tk.pipelined(a.tiles((64, first))[i, :], b.tiles((first, 64))[:, j]):
                acc = tk.mma(ta, tb, acc)
            for td, te in tk.pipelined(d.tiles((64, second))[i, :], e.tiles((second, 64))[:, j]):
                acc = tk.mma(td, te, acc)
            c.store(acc, tile)

    (m, n, k), other = extents, 200
    operands = [whole((m, k), tk.float16), whole((k, n), tk.float16, 1), whole((m, other), tk.float16, 2)]
    operands.append(whole((other, n), tk.float16, 3))
    tiles = api.zeros((m, n)).sync().partition((64, 64)).map(num_blocks=2)
    found = kernel(tiles, *map(api.from_host, operands)).first().unpartition().to_host().sync()
    check(found, (product_of(*operands[:2]) + product_of(*operands[2:])).astype(np.float32))


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
    for first in (32, 33):
        wanted = tiles_of(x[:, first : first + 100], 16, 64)[0].sum(0)
        check(run(kernel, tk.float32, x, first, n=(16, 64), tile=(16, 64)), wanted.astype(np.float32))


@pytest.mark.parametrize("first", [1, 2, 4, 8])
def test_tensors_that_begin_anywhere(device, first):
    """In a tensor with other rows: by 16, 8, 4 bytes, or as the loop goes."""

    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, a: tk.In, b: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((64, 64))[0, :], b.tiles((64, 64))[:, 0]):
            acc = tk.mma(ta, tb, acc)
        y.store(acc)

    a, b = whole((64, 320), tk.bfloat16), whole((304, 72), tk.bfloat16, 1)
    views = api.from_host(a).sync()[:, first : first + 304], api.from_host(b).sync()[:, first : first + 64]
    found = kernel(api.zeros((64, 64)).partition((64, 64)), *views).first().unpartition().to_host().sync()
    check(found, product_of(a[:, first : first + 304], b[:, first : first + 64]).astype(np.float32))


def test_slices_to_the_end(device):
    """They begin at any element, which the kernel may look up; beyond the end of the tensor there are zeros."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, rows: tk.In, column):
        s = tk.zeros((16, 64), tk.float32)
        at = tk.load(rows, tk.bid(0), ()).item()
        for t in tk.pipelined(x.slice(0, at).slice(1, column).slice(0, 1).tiles((16, 64))[0, :]):
            s += t
        y.store(s)

    x, rows = whole((50, 256), tk.float32), np.array([0, 3, 17, 30, 45, 49], np.int32)
    wanted = [tiles_of(np.pad(x[row + 1 :, 5:], ((0, 16), (0, 0))), 16, 64)[0].sum(0) for row in rows]
    found = run(kernel, tk.float32, x, rows, 5, n=(16 * len(rows), 64), tile=(16, 64))
    check(found, np.concatenate(wanted).astype(np.float32))


def test_products_of_slices_to_the_end(device):
    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, a: tk.In, b: tk.In, offsets: tk.In):
        for g in range(offsets.shape[0]):
            first = tk.load(offsets, g, ()).item()
            acc = tk.zeros((64, 64), tk.float32)
            for ta, tb in tk.pipelined(a.slice(0, first).tiles((64, 64))[0, :], b.tiles((64, 64))[:, 0]):
                acc = tk.mma(ta, tb, acc)
            tk.store(y, (g, 0), acc)

    a, b, offsets = whole((200, 320), tk.bfloat16), whole((320, 64), tk.bfloat16, 1), np.array([0, 1, 77, 136], np.int32)
    wanted = [product_of(a[at : at + 64], b) for at in offsets]
    y = api.zeros((256, 64)).sync()
    kernel(y.scattered(), *map(api.from_host, (a, b, offsets))).grid(1).sync()
    check(y.to_host().sync(), np.concatenate(wanted).astype(np.float32))


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


@tk.kernel(num_warps=4)
def summed(y: tk.Out, x: tk.In):
    total = tk.zeros((16, 64), tk.float32)
    for tile in tk.pipelined(x.tiles((16, 64))[:, tk.bid(1)]):
        total += tile
    y.store(total)


@pytest.mark.parametrize("steps", [(-1, 1), (-2, 1), (1, -1), (2, 1)], ids=str)
def test_streams_of_reversed_tensors(device, steps):
    """A tensor map has no negative strides: such tiles come by copies, or as the loop goes."""
    x = whole((64, 128), tk.float32).astype(np.float32)
    slices = tuple(slice(None, None, step) for step in steps)
    given = api.from_host(x).sync()[slices]
    assert given.shape == x[slices].shape
    y = summed(api.zeros((16, given.shape[1])).partition((16, 64)), given).first().unpartition().to_host().sync()
    want = x[slices].reshape(-1, 16, given.shape[1]).sum(0)
    np.testing.assert_array_equal(y, want)


@tk.kernel
def numbered(c: tk.Out[BM, BN], a: tk.In[-1, -1], b: tk.In[-1, -1], first: int):
    acc, total, k = tk.zeros((BM, BN), tk.float32), 0, -1
    for k, (ta, tb) in enumerate(tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]), start=first):
        if k == 2:
            continue
        for n, t in enumerate(tk.pipelined(b.tiles((BK, BN))[:, tk.bid(1)])):
            acc = tk.mma(ta * n, t, acc)
        acc = tk.mma(ta * k, tb, acc)
        if k == 4:
            break
        total += k
    c.store(acc + total * 100 + k)


def test_enumerate_counts_turns(device):
    a, b = whole((64, 192), np.dtype(np.float16)), whole((192, 64), np.dtype(np.float16), 1)
    c = api.zeros((64, 64)).sync()
    numbered(c.partition((64, 64)), api.from_host(a), api.from_host(b), 1).generics(BM=64, BN=64, BK=32).sync()
    expected, wide = np.zeros((64, 64)), tuple(x.astype(np.float64) for x in (a, b))
    for k in (1, 3, 4):
        part = wide[0][:, 32 * (k - 1) : 32 * k]
        expected += part @ (wide[1][32 * (k - 1) : 32 * k] * k + sum(n * wide[1][32 * n : 32 * n + 32] for n in range(6)))
    np.testing.assert_array_equal(c.to_host().sync(), expected + 404)
