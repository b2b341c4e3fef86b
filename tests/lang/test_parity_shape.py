"""Operations that change a tile's shape: exact, for every dtype and for layouts that have to move elements."""

import numpy as np
import pytest
from parity import check, run, sample

import tilekit as tk
from tilekit import api, dtypes

M, N = tk.generics("M N")
SHAPES = [(1, 1), (2, 64), (16, 16), (64, 32), (8, 256), (128, 2)]


@tk.kernel
def turn(y: tk.Out[N, M], x: tk.In):
    y.store(tk.transpose(tk.load(x, (0, 0), (M, N))))


@tk.kernel
def turn_by_method(y: tk.Out[N, M], x: tk.In):
    y.store(tk.load(x, (0, 0), (M, N)).transpose().permute((0, 1)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_transpose(device, dtype, shape):
    x = sample(dtype, n=shape)
    check(run(turn, dtype, x, n=shape[::-1], tile=shape[::-1]), x.T)
    check(run(turn_by_method, dtype, x, n=shape[::-1], tile=shape[::-1]), x.T)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("warps", [1, 4])
def test_permute(device, axes, warps):
    shape = (4, 16, 8)
    x = sample(tk.float32, n=shape)

    @tk.kernel(num_warps=warps)
    def permute(y: tk.Out, x: tk.In, axes: tk.Const):
        y.store(tk.permute(tk.load(x, (0, 0, 0), (4, 16, 8)), axes))

    wanted = x.transpose(axes)
    check(run(permute, tk.float32, x, axes, n=wanted.shape, tile=wanted.shape), wanted)


@pytest.mark.parametrize("dtype", [tk.bool_, tk.int8, tk.float16, tk.float32, tk.int64], ids=str)
def test_reshape(device, dtype):
    @tk.kernel
    def fold(y: tk.Out, x: tk.In):
        t = tk.reshape(tk.load(x, 0, 512), (4, -1))
        y.store(t.reshape((2, 2, 8, 16)).permute((1, 0, 2, 3)).reshape(512))

    x = sample(dtype, n=512)
    check(run(fold, dtype, x, n=512, tile=512), x.reshape(2, 2, 8, 16).transpose(1, 0, 2, 3).reshape(512))


@tk.kernel
def outer(y: tk.Out[M, N], a: tk.In, b: tk.In):
    y.store(tk.load(a, tk.bid(0), M)[:, None] + tk.expand_dims(tk.load(b, tk.bid(1), N), 0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [tk.int8, tk.float16, tk.int32, tk.float64], ids=str)
def test_rows_and_columns_broadcast(device, dtype, shape):
    a, b = sample(dtype, n=2 * shape[0]), sample(dtype, 1, n=2 * shape[1])
    check(run(outer, dtype, a, b, n=(2 * shape[0], 2 * shape[1]), tile=shape), a[:, None] + b, dtype)


@tk.kernel
def weighted(y: tk.InOut[M, N], w: tk.In, bias: tk.In):
    t = y.load()
    y.store(t * tk.load(w, 0, N) + tk.broadcast_to(tk.load(bias, 0, M).reshape((M, 1)), (M, N)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_meets_a_tile(device, shape):
    w, bias = sample(tk.float32, n=shape[1]), sample(tk.float32, 1, n=shape[0])

    x = sample(tk.float32, 2, n=shape)
    given = api.from_host(x).sync().partition(shape)
    found = weighted(given, api.from_host(w), api.from_host(bias)).first().unpartition().to_host().sync()
    np.testing.assert_allclose(found, x * w + bias[:, None], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [tk.bool_, tk.float16, tk.float32], ids=str)
def test_cat(device, dtype, axis):
    @tk.kernel
    def join(y: tk.Out, a: tk.In, b: tk.In, axis: tk.Const):
        y.store(tk.cat((tk.load(a, (0, 0), (16, 8)), tk.transpose(tk.load(b, (0, 0), (8, 16)))), axis))

    a, b = sample(dtype, n=(16, 8)), sample(dtype, 1, n=(8, 16))
    wanted = np.concatenate((a, b.T), axis)
    check(run(join, dtype, a, b, axis, n=wanted.shape, tile=wanted.shape), wanted)


@pytest.mark.parametrize("part", [(1, 1), (4, 32), (16, 4), (8, 16), (16, 32)], ids=str)
def test_parts_are_extracted_and_inserted(device, part):
    @tk.kernel
    def move(y: tk.Out, x: tk.In, part: tk.Const, frm: tk.Const, row, column):
        t = tk.load(x, (0, 0), (16, 32))
        piece = tk.extract(t, frm, part)
        again = tk.extract(t, (row, column), part)
        y.store(tk.insert(tk.insert(t, (row, column), piece), frm, again))

    x = sample(tk.float32, n=(16, 32))
    rows, columns = 16 // part[0], 32 // part[1]
    for here, there in [((0, 0), (rows - 1, columns - 1)), ((rows - 1, 0), (0, columns // 2))]:
        wanted = x.copy()
        spots = [tuple(slice(i * n, i * n + n) for i, n in zip(at, part, strict=True)) for at in (here, there)]
        wanted[spots[1]] = x[spots[0]]
        wanted[spots[0]] = x[spots[1]]
        found = run(move, tk.float32, x, part, here, *there, n=(16, 32), tile=(16, 32))
        check(found, wanted)


def test_tiles_of_several_layouts_are_carried_round_a_loop(device):
    @tk.kernel
    def walk(y: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (16, 16))
        for _ in range(3):
            t = tk.transpose(t) + 1
        if tk.bid(0) == 0:
            t = tk.transpose(t)
        y.store(t)

    x = sample(tk.float32, n=(16, 16))
    check(run(walk, tk.float32, x, n=(16, 16), tile=(16, 16)), x + 1 + 1 + 1)
