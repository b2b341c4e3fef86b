"""Where slices begin: of which numbers that is known to be a multiple, and how wide their tiles are accessed then."""

import re

import numpy as np
import pytest
from through_ir import both_ways, ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES


def product(x, k):
    """Which gives a kernel a stream, so that passes run over it."""
    return tk.mma(tk.load(x, (0, k), (64, 64)), tk.load(x, (k, 0), (64, 64)), tk.zeros((64, 64), tk.float32))


def kernel_of(begin):
    product_, begin = tk.function(product), tk.function(begin)

    def kernel(y: tk.Out, x: tk.In, n: int):
        acc = tk.zeros((64, 64), tk.float32)
        for k in range(x.shape[0] // 64):
            acc += product_(x, k)
        start = begin(tk.bid(0), n)
        tk.store(y.slice(1, start), (0, 0), acc.astype(y.dtype))

    return tk.kernel(kernel)


def a_factor(i, n):
    return 160 * i


def a_sum(i, n):
    return 64 * i + 32


def a_difference(i, n):
    return 48 * (i + 1) - 16


def a_minimum(i, n):
    return min(96 * i, 64 * n)


def a_choice(i, n):
    return 64 * i if n > 1 else 24 * i


def a_product_of_multiples(i, n):
    return 4 * max(8 * i, 16 * n)


def a_number(i, n):
    return n


def a_number_more(i, n):
    return 64 * i + n


def an_odd_sum(i, n):
    return 64 * i + 1


def a_quotient(i, n):
    return 64 * i // 3


STARTS = {a_factor: 160, a_sum: 32, a_difference: 16, a_minimum: 32, a_choice: 8, a_product_of_multiples: 32}
UNKNOWN = [a_number, a_number_more, an_odd_sum, a_quotient]
named = {"ids": lambda begin: begin.__name__}


def op_of(begin):
    x, y = api.meta((256, 256), tk.float16), api.meta((64, 4096), tk.float16)
    return kernel_of(begin)(y.scattered(), x, 3).num_warps(4).grid(4)


@pytest.mark.parametrize("begin", STARTS, **named)
def test_what_it_is_a_multiple_of(begin):
    assert re.search(rf"tilekit__multiple\([^)]*, {STARTS[begin]}\)", printed(ir_of(op_of(begin), *PASSES)))


@pytest.mark.parametrize("begin", UNKNOWN, **named)
def test_of_nothing(begin):
    assert "tilekit__multiple" not in printed(ir_of(op_of(begin), *PASSES))


@pytest.mark.parametrize("begin", STARTS, **named)
def test_its_tiles_are_stored_as_wide_as_the_tensors_own(begin):
    (store,) = (access for access in op_of(begin).explain("sm_90a").accesses if access.kind == "store")
    assert store.bits == 128


def test_others_by_the_element():
    (store,) = (access for access in op_of(a_number_more).explain("sm_90a").accesses if access.kind == "store")
    assert store.bits == 16


@pytest.mark.parametrize("begin", [*STARTS, *UNKNOWN], **named)
def test_the_result_is_the_same(begin, device):
    x = np.random.default_rng(3).uniform(-1, 1, (256, 256)).astype(np.float16)

    def run():
        y, a = api.zeros((64, 1024), tk.float16).sync(), api.from_host(x).sync()
        kernel_of(begin)(y.scattered(), a, 3).num_warps(4).grid(1).sync()
        return y.to_host().sync()

    np.testing.assert_allclose(*both_ways(run, device), atol=2e-2)


def test_what_is_left_behind_a_constant():
    """Is as divisible as the two: tiles of it need no mask by the element."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        tk.store(y.slice(1, 128), (0, tk.bid(0)), tk.load(x.slice(1, 64), (0, tk.bid(0)), (64, 64)))

    op = kernel(api.meta((64, 4096), tk.float16).scattered(), api.meta((64, 4096), tk.float16)).num_warps(4).grid(4)
    assert {(access.bits, access.edge_bits) for access in op.explain("sm_90a").accesses} == {(128, 128)}


def of_slices(begin):
    """Products with columns of one matrix from some place on, as a layer has them that keeps several in one."""
    begin = tk.function(begin)

    def kernel(y: tk.Out, x: tk.In, w: tk.In, n: int):
        left, right, first = tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float32), begin(tk.bid(0), n)
        for k in range(tk.cdiv(x.shape[1], 64)):
            tile = tk.load(x, (0, k), (64, 64))
            left += tile @ tk.load(w.slice(1, first), (k, 0), (64, 64))
            right += tile @ tk.load(w.slice(1, 192), (k, 0), (64, 64))
        tk.store(y, (0, 2 * tk.bid(0)), left)
        tk.store(y, (0, 2 * tk.bid(0) + 1), right)

    return tk.kernel(kernel)


@pytest.mark.parametrize("begin", STARTS, **named)
def test_tiles_of_slices_come_ahead(begin):
    x = api.meta((64, 1024), tk.float16)
    op = of_slices(begin)(api.meta((64, 1024)).scattered(), x, api.meta((1024, 4096), tk.float16), 3).num_warps(4).grid(4)
    explained = op.explain("sm_90a")
    assert [ring.stages for ring in explained.pipelines] == [4]
    assert explained.products[0].instruction.startswith("wgmma.mma_async.sync.aligned.m64n128")
    assert explained.compiled.sass.count("UTMALDG") >= 3


def test_of_those_that_begin_anywhere_they_do_not():
    x = api.meta((64, 1024), tk.float16)
    op = of_slices(a_number_more)(api.meta((64, 1024)).scattered(), x, api.meta((1024, 4096), tk.float16), 3)
    assert "UTMALDG" not in op.num_warps(4).grid(4).compile("sm_90a").sass


@pytest.mark.parametrize("begin", [a_factor, a_sum, a_number_more], **named)
def test_what_comes_is_what_was_asked_for(begin, device):
    """Where the last tile goes over the edge, too."""
    rng = np.random.default_rng(4)
    x, w = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in ((64, 200), (200, 424)))
    y = api.zeros((64, 384)).sync()
    of_slices(begin)(y.scattered(), *(api.from_host(each).sync() for each in (x, w)), 1).num_warps(4).grid(3).sync()
    wide = np.pad(w.astype(np.float64), ((0, 0), (0, 128)))
    firsts = [at for i in range(3) for at in (begin(i, 1), 192)]
    wanted = np.concatenate([x.astype(np.float64) @ wide[:, at : at + 64] for at in firsts], 1)
    np.testing.assert_allclose(y.to_host().sync(), wanted, atol=2e-2)


def rows_to_the_middle(w, i):
    half = w.shape[0] // 2
    return w.slice(0, 0, half), w.slice(0, half, 2 * half)


def some_tiles(w, i):
    return w.slice(0, 64 * i, 64 * i + 128), w.slice(0, 64, 192)


def rows_that_are_loaded(w, i):
    first = 3 * i + 1
    return w.slice(0, first, first + 70), w.slice(0, 0, 100)


def rows_of_rows(w, i):
    """Of which the tiles go over the end, though there are whole tiles of rows from where the whole begins."""
    return w.slice(0, 0, 128).slice(0, 3, 128), w.slice(0, 64, 256).slice(0, 64, 192)


def some_columns(w, i):
    return w.slice(1, 8 * i, 8 * i + 250), w.slice(1, 16, 266)


PARTS = {
    rows_to_the_middle: "UTMALDG",
    some_tiles: "UTMALDG",
    rows_that_are_loaded: "LDGSTS",
    rows_of_rows: "LDGSTS",
    some_columns: "LDGSTS",
}


def of_parts(parts):
    """Products with parts of one matrix whose rows lie along K, of which each has an end of its own."""
    parts = tk.function(parts)

    def kernel(y: tk.Out, x: tk.In, w: tk.In):
        left, right = tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float32)
        one, two = parts(w, tk.bid(0))
        for k in range(tk.cdiv(one.shape[1], 64)):
            tile = tk.load(x, (0, k), (64, 64))
            left += tile @ tk.load(one, (1, k), (64, 64)).transpose()
            right += tile @ tk.load(two, (1, k), (64, 64)).transpose()
        tk.store(y, (0, 2 * tk.bid(0)), left)
        tk.store(y, (0, 2 * tk.bid(0) + 1), right)

    return tk.kernel(kernel)


@pytest.mark.parametrize("parts", PARTS, **named)
def test_tiles_of_slices_with_an_end_come_ahead(parts):
    """By the TMA where no tile goes over that end."""
    x, w = api.meta((64, 1024), tk.float16), api.meta((4096, 1024), tk.float16)
    explained = of_parts(parts)(api.meta((64, 512)).scattered(), x, w).num_warps(4).grid(4).explain("sm_90a")
    assert [ring.stages for ring in explained.pipelines] == [4]
    assert explained.products[0].instruction.startswith("wgmma")
    ways = {way for way in ("UTMALDG", "LDGSTS") if way in explained.compiled.sass}
    assert ways == {"UTMALDG", PARTS[parts]}, "x comes by the TMA in any case"


@pytest.mark.parametrize("parts", PARTS, **named)
def test_nothing_comes_from_behind_that_end(parts, device):
    rng = np.random.default_rng(5)
    x, w = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in ((64, 320), (256, 320)))
    y = api.full((64, 384), np.nan).sync()
    of_parts(parts)(
        y.scattered(),
        *(api.from_host(each).sync() for each in (x, w)),
    ).num_warps(4).grid(3).sync()

    class Slices:
        """An array with slices as tensors have them."""

        rows, shape = w, w.shape

        def slice(self, axis, start, stop):
            part = Slices()
            part.rows = self.rows[start:stop] if axis == 0 else self.rows[:, start:stop]
            return part

    wide = []
    for i in range(3):
        for part in (one.rows for one in parts(Slices(), i)):
            padded = np.zeros((128, 320))
            padded[: len(part[:128]), : part.shape[1]] = part[:128]
            wide.append(x.astype(np.float64) @ padded[64:].T)  # of no more columns than that has
    np.testing.assert_allclose(y.to_host().sync(), np.concatenate(wide, 1), atol=2e-2)
