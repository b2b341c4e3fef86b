"""Tensors that a condition chooses: right on all devices, and on a GPU as fast as with one of them."""

import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

B = np.arange(16, dtype=np.float32) + 1
D = 3 * np.arange(16, dtype=np.float32) ** 2
BM, BN, BK = tk.generics("BM BN BK")


@tk.function
def summed(w, n):
    t = tk.zeros(8)
    for i in range(n):
        t = t + tk.load(w, i, 8)
    return t


def rows(w):
    return w.reshape(2, 8)


def chosen(flag):
    return rows(B if flag > 0 else D)


@tk.kernel
def in_an_expression(y: tk.Out, b: tk.In, d: tk.In, flag):
    w = b if flag > 0 else d
    acc = tk.zeros(8)
    for i in range(tk.cdiv(w.shape[0], 8)):
        acc += tk.load(w, i, 8).astype(w.dtype)
    y.store(acc)


@tk.kernel
def in_a_statement(y: tk.Out, b: tk.In, d: tk.In, flag):
    if flag > 0:
        w = b
    else:
        w = d
    acc = tk.zeros(8)
    for t in w.tiles(8):
        acc += t
    for t, u in tk.pipelined(w.tiles(8), b.tiles(8)):
        acc += t * u
    for t in tk.pipelined(w.tiles(8)[0:2]):
        acc += t
    for j, t in enumerate(tk.pipelined(w.tiles(8))):
        acc += j * t
    y.store(acc)


@tk.kernel
def views(y: tk.Out, b: tk.In, d: tk.In, flag):
    i = tk.bid(0)
    w = b.tiles(8)[i:] if flag > 0 else d.tiles(8)[i + 0 :]
    acc = tk.zeros(8)
    for t in w:
        acc += t
    if flag > 0:
        j = tk.bid(0) + 0
        v = b.slice(0, j, 8 + j)
    else:
        v = d.slice(0, 8)
    y.store(acc + tk.load(v, 0, 8))


@tk.kernel
def nested(y: tk.Out, b: tk.In, d: tk.In, flag):
    w = b if flag == 0 else d if flag == 1 else (b if tk.bid(0) == 0 else d)
    p, q = (b, 1.0) if flag > 0 else (d, 2.0)
    u, v = (b, d) if flag > 0 else (d, b)
    y.store(summed(w, 2) + summed(p, 2) * q + summed(u, 2) * 3.0 - summed(v, 1) + tk.load_tile_like(w, y))


@tk.kernel
def by_a_tile(y: tk.Out, b: tk.In, d: tk.In, flag):
    few = tk.sum(tk.load(b, 0, 8)) < 36 + flag
    w = b if few else d

    def row(i):
        return tk.load(w, i, 8)

    i, acc = 0, row(0)
    while i < 2:
        acc += row(i)
        i += 1
    if few:
        acc += tk.load(w, 1, 8)
    y.store(acc)


@tk.kernel
def in_each_turn(y: tk.Out, b: tk.In, d: tk.In, flag):
    acc = tk.zeros(8)
    for i in range(4):
        w = b if i % 2 == flag else d
        acc += tk.load(w, i // 2, 8)
        for t in w.tiles(8)[0:1]:
            acc += t
    y.store(acc)


@tk.kernel
def three(y: tk.Out, b: tk.In, d: tk.In, flag):
    first = b if flag == 0 else d
    second = b if flag == 1 else d
    third = b if flag == 2 else d
    acc = tk.zeros(8)
    for i in range(2):
        acc += tk.load(first, i, 8) + 2 * tk.load(second, i, 8) + 4 * tk.load(third, i, 8)
    y.store(acc)


@tk.kernel
def other_accesses(y: tk.Out, b: tk.In, d: tk.In, flag):
    w = b if flag > 0 else d
    y.store(tk.gather(w, tk.arange(8) + flag) + tk.load(w, 1, 8, padding_value=3.0) + w.ndim)


@tk.kernel
def changed_later(y: tk.Out, b: tk.In, d: tk.In, flag):
    w = d
    if flag > 1:
        w = b
    y.store(tk.load(w, 0, 8))


def of_nested(flag, i):
    w = rows((B, D, D if i else B)[flag])
    p, q, v = (B, 1.0, D) if flag > 0 else (D, 2.0, B)
    return w.sum(0) + rows(p).sum(0) * (q + 3.0) - v[:8] + w[i]


def of_turns(flag, i):
    turns = [rows(B if j % 2 == flag else D) for j in range(4)]
    return sum(w[j // 2] + w[0] for j, w in enumerate(turns))


CASES = {
    in_an_expression: lambda flag, i: chosen(flag).sum(0),
    in_a_statement: lambda flag, i: chosen(flag).sum(0) * 2 + (chosen(flag) * rows(B)).sum(0) + chosen(flag)[1],
    views: lambda flag, i: chosen(flag)[i:].sum(0) + (B[i : i + 8] if flag > 0 else D[8:]),
    nested: of_nested,
    by_a_tile: lambda flag, i: rows(B if flag else D).sum(0) + rows(B if flag else D)[0] + (B[8:] if flag else 0),
    in_each_turn: of_turns,
    three: lambda flag, i: sum(factor * rows(B if flag == n else D).sum(0) for n, factor in enumerate((1, 2, 4))),
    other_accesses: lambda flag, i: chosen(flag).reshape(-1)[np.arange(8) + flag] + chosen(flag)[1] + 1,
    changed_later: lambda flag, i: (B if flag > 1 else D)[:8],
}


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_what_reads_it_reads_the_chosen_one(device, kernel):
    b, d = api.from_host(B).sync(), api.from_host(D).sync()
    for flag in (0, 1, 2):
        got = kernel(api.zeros(16).partition(8), b, d, flag).out().sync().numpy()
        np.testing.assert_array_equal(rows(got), [CASES[kernel](flag, i) for i in (0, 1)])


def test_what_is_written_is_the_chosen_one(device):
    @tk.kernel
    def kernel(y: tk.Out, z: tk.Out, flag):
        w = y if flag > 0 else z
        w.store(w.tile_shape[0] * tk.ones(8))

    for flag in (0, 1):
        y, z, _ = kernel(api.zeros(16).partition(8), api.zeros(16).partition(8), flag).sync()
        got = [one.unpartition().to_host().sync() for one in (y, z)]
        np.testing.assert_array_equal(got[0 if flag else 1], np.full(16, 8))
        np.testing.assert_array_equal(got[1 if flag else 0], np.zeros(16))


def test_a_constant_leaves_one(device):
    """Which need not be like the other."""

    @tk.kernel
    def kernel(y: tk.Out, b: tk.In, d: tk.In, flag: tk.Const):
        w = b if flag else d
        y.store(tk.load(w, 0, 8) if w.ndim == 1 else tk.load(w, (0, 0), (1, 8)).reshape(8))

    b, d = api.from_host(B).sync(), api.from_host(D.reshape(2, 8)).sync()
    for flag in (True, False):
        got = kernel(api.zeros(8).partition(8), b, d, flag).out().sync().numpy()
        np.testing.assert_array_equal(got, (B if flag else D)[:8])


# ------------------------------------------------------------------------------------------------------- products, on a GPU


@tk.kernel(num_warps=8)
def of_one(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag):
    acc = tk.zeros((BM, BN), tk.float32)
    for i in range(tk.cdiv(a.shape[1], BK)):
        acc += tk.load(a, (tk.bid(0), i), (BM, BK)) @ tk.load(b, (i, tk.bid(1)), (BK, BN))
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def of_either(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag):
    w = b if flag > 0 else d
    acc = tk.zeros((BM, BN), tk.float32)
    for i in range(tk.cdiv(a.shape[1], BK)):
        acc += tk.load(a, (tk.bid(0), i), (BM, BK)) @ tk.load(w, (i, tk.bid(1)), (BK, BN))
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def of_streams(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag):
    if flag > 0:
        w = b.tiles((BK, BN))[:, tk.bid(1)]
    else:
        w = d.tiles((BK, BN))[:, tk.bid(1)]
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], w):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def of_pairs(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag):
    v, w = (a, b) if flag > 0 else (b, d)
    for _ in range(1):
        acc = tk.zeros((BM, BN), tk.float32)
        for i in range(tk.cdiv(v.shape[1], BK)):
            acc += tk.load(v, (tk.bid(0), i), (BM, BK)) @ tk.load(w, (i, tk.bid(1)), (BK, BN))
        c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def of_three(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag):
    v = a if flag > 0 else b
    w = b if flag > 1 else d
    u = b if flag > 2 else d
    acc = tk.zeros((BM, BN), tk.float32)
    for i in range(tk.cdiv(a.shape[1], BK)):
        acc += tk.load(v, (tk.bid(0), i), (BM, BK)) @ tk.load(w, (i, tk.bid(1)), (BK, BN))
        acc += tk.load(v, (tk.bid(0), i), (BM, BK)) @ tk.load(u, (i, tk.bid(1)), (BK, BN))
    c.store(acc.astype(c.dtype))


def compiled(kernel):
    matrix = api.meta((1024, 1024), tk.bfloat16)
    op = kernel(matrix.partition((128, 128)), matrix, matrix, matrix, 1).generics(BM=128, BN=128, BK=64)
    return op.compile(target="sm_90a")


@pytest.mark.parametrize("kernel", [of_either, of_streams, of_pairs, of_three], ids=lambda kernel: kernel.__name__)
def test_every_loop_comes_ahead(kernel, caplog):
    """Each of the loops, one for each tensor, is a pipeline of warpgroups' products, and nothing is loaded besides."""
    of_both, plain = compiled(kernel), compiled(of_one)
    products, loads = (len(re.findall(word, of_both.sass)) for word in ("HGMMA", "UTMALDG"))
    one = [len(re.findall(word, plain.sass)) for word in ("HGMMA", "UTMALDG")]
    assert products >= 2 * one[0]
    assert loads >= 2 * one[1] if kernel is not of_three else loads
    assert of_both.registers == plain.registers
    assert not of_both.local_bytes
    assert not re.search(r"\bLDG\b", of_both.sass)
    assert not caplog.records


def test_products_of_chosen_tensors(device):
    a, b, d = (np.random.default_rng(n).integers(-4, 5, (32, 32)).astype(np.float32) for n in range(3))
    tensors = [api.from_host(one).sync() for one in (a, b, d)]
    for kernel in (of_either, of_streams, of_pairs, of_three):
        for flag in (0, 1, 3):
            op = kernel(api.zeros((32, 32)).partition((16, 16)), *tensors, flag).generics(BM=16, BN=16, BK=16)
            w = b if flag > 0 else d
            expected = {
                of_pairs: (a if flag else b) @ w,
                of_three: (a if flag else b) @ ((b if flag > 1 else d) + (b if flag > 2 else d)),
            }.get(kernel, a @ w)
            np.testing.assert_array_equal(op.out().sync().numpy(), expected)


# ------------------------------------------------------------------------------------------------------------------- errors


def test_tensors_that_are_not_alike(device):
    @tk.kernel
    def kernel(y: tk.Out, b: tk.In, d: tk.In, flag):
        w = b if flag > 0 else d
        y.store(tk.load(w, 0, 8).astype(y.dtype))

    b, d = api.from_host(B).sync(), api.from_host(D.astype(np.float64)).sync()
    with pytest.raises(tk.CompileError) as caught:
        kernel(api.zeros(8).partition(8), b, d, 1).sync()
    assert caught.value.reason.startswith("the value is a float32 tile of shape (8,) and a float64 tile of shape (8,): on every")
    assert caught.value.line.strip() == "y.store(tk.load(w, 0, 8).astype(y.dtype))"


def test_a_tensor_or_a_tile(device):
    @tk.kernel
    def kernel(y: tk.Out, b: tk.In, d: tk.In, flag):
        w = b if flag > 0 else d
        v = w if flag > 1 else tk.load(d, 0, 8)
        y.store(tk.load(v, 0, 8))

    b, d = api.from_host(B).sync(), api.from_host(D).sync()
    with pytest.raises(tk.CompileError) as caught:
        kernel(api.zeros(8).partition(8), b, d, 1).sync()
    assert caught.value.reason.startswith("the value is the tensor b or the tensor d and a float32 tile of shape (8,): on every")


def test_one_that_changes_round_a_loop(device):
    @tk.kernel
    def kernel(y: tk.Out, b: tk.In, d: tk.In, flag):
        w, acc = b, tk.zeros(8)
        for i in range(flag):
            acc += tk.load(w, i, 8)
            w = d
        y.store(acc)

    b, d = api.from_host(B).sync(), api.from_host(D).sync()
    with pytest.raises(tk.CompileError) as caught:
        kernel(api.zeros(8).partition(8), b, d, 1).sync()
    assert caught.value.reason == (
        "w is the tensor b and the tensor d: round a loop a variable stays the same tensor: choose it, w = b if ... else d, "
        "where a turn, or what follows, reads it"
    )


def test_one_that_is_there_on_some_paths(device):
    @tk.kernel
    def kernel(y: tk.Out, b: tk.In, d: tk.In, flag):
        t = tk.ones(8)
        if flag > 0:
            p, v = (b, 2.0) if flag > 1 else (d, 3.0), d.tiles(8)
        if flag > 0:
            t += tk.load(p[0], 0, 8) * p[1]
            for u in v:
                t += u
        y.store(t)

    b, d = api.from_host(B).sync(), api.from_host(D).sync()
    for flag in (0, 1, 2):
        expected = 1 + (0 if flag == 0 else (2 * B if flag > 1 else 3 * D)[:8] + rows(D).sum(0))
        np.testing.assert_array_equal(kernel(api.zeros(8).partition(8), b, d, flag).out().sync().numpy(), expected + np.zeros(8))
