"""Operands of `kernels.gemm` that are packed, and products of few rows: against NumPy, and what is launched for which shapes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels._gemm import products, recipes
from tilekit.kernels._gemm.packing import packed, packing_of
from tilekit.kernels._gemm.vectors import products_of_vectors, vectors_of
from tilekit.kernels._host import Launches
from tilekit.ops import Spec

BF = ml_dtypes.bfloat16
rng = np.random.default_rng(5)


def laid(x, transposed, gap=0):
    """On the device; transposed so that the first of the two extents is contiguous, and with a gap behind each row."""
    outer = np.swapaxes(x, -1, -2) if transposed else x
    wide = np.full((*outer.shape[:-1], outer.shape[-1] + gap), 7, outer.dtype)
    wide[..., : outer.shape[-1]] = outer
    y = api.from_host(wide).sync()[..., : outer.shape[-1]]
    return y.permute(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2) if transposed else y


def operand(shape, dtype):
    if np.dtype(dtype) == np.int8:
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def names(op):
    op.consumed()
    return [each.kernel.name for each in op.parts()]


# ----------------------------------------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("shape", "dtype", "precision"),
    [
        ((301, 403, 507), np.float16, "ieee"),
        ((3, 257, 129, 1023), BF, "ieee"),
        ((700, 333, 600), np.float32, "tf32"),
        ((260, 391, 777), np.int8, "ieee"),
        ((1, 1001, 997), BF, "ieee"),
        ((999, 3, 1234), np.float16, "ieee"),
        ((5, 2, 301, 77), np.float32, "ieee"),
        ((1100, 1301, 2049), np.float32, "ieee"),
        ((4, 515, 333), np.int8, "ieee"),
    ],
    ids=str,
)
def test_odd_widths(device, shape, dtype, precision, layout):
    *batch, m, n, k = shape
    a, b = operand((*batch, m, k), dtype), operand((*batch, k, n), dtype)
    y = kernels.gemm(laid(a, layout[0] == "T"), laid(b, layout[1] == "T", gap=3), precision=precision).to_host().sync()
    expected, size = (np.matmul(*(f(x.astype(np.float64)) for x in (a, b))) for f in (lambda x: x, np.abs))
    rounding = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "int8": 0.0}[np.dtype(dtype).name]
    products = 2**-10 if precision == "tf32" else 2**-20 if rounding else 0.0
    assert (np.abs(y.astype(np.float64) - expected) <= size * products + np.abs(expected) * 2 * rounding).all()


def test_epilogues_of_few_rows(device):
    """Factors, an operand of the epilogue and `c` come after all parts were added up, in a stack and with one matrix for all."""
    a, b, c, bias = (operand(shape, np.float32) for shape in ((3, 2, 501), (501, 203), (3, 2, 203), (203,)))
    y = kernels.gemm(
        *map(api.from_host, (a, b, c)), alpha=0.5, beta=2, epilogue=kernels.epilogues.bias, operands=(api.from_host(bias),)
    ).to_host().sync()  # fmt: skip
    assert np.allclose(y, 0.5 * a.astype(np.float64) @ b + 2 * c + bias, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("m", "n", "k"), [(72, 2056, 4648), (3008, 136, 4560), (171, 1024, 2056)])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_parts_of_tall_tiles(device, m, n, k, layout):
    """On a GPU sums are taken in parts, of 80 or 192 columns next to each other, also of the transpose."""
    a, b, c = operand((m, k), np.float16), operand((k, n), np.float16), operand((m, n), np.float16)
    y = kernels.gemm(laid(a, layout[0] == "T"), laid(b, layout[1] == "T"), api.from_host(c), alpha=0.5, beta=2).to_host().sync()
    expected = 0.5 * (a.astype(np.float32) @ b.astype(np.float32)) + 2 * c.astype(np.float32)
    assert np.abs(y - expected).max() <= 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize("splits", ["stream", 3])
def test_the_transpose_where_its_operands_alone_come_ahead(device, monkeypatch, splits):
    """Rounded float32 of which K is contiguous in `b` alone, dealt out as on a GPU, on the CPU device too."""
    monkeypatch.setattr(recipes, "_recipes", {})
    monkeypatch.setattr(recipes, "staged_operands", lambda a, b: a.unit == 1)
    for module in (recipes, products):
        monkeypatch.setattr(module, "on_cpu", lambda x: False)
        monkeypatch.setattr(module, "multiprocessors", lambda x: 12)
    a, b, c = operand((300, 1000), np.float32), operand((1000, 520), np.float32), operand((300, 520), np.float32)
    options = {"alpha": 0.5, "beta": 2, "precision": "tf32", "splits": splits}
    y = kernels.gemm(laid(a, True), laid(b, True), api.from_host(c), **options).to_host().sync()
    ways = {(recipe.turned, recipe.schedule.stream is not None) for recipe in recipes._recipes.values()}
    assert ways == {(True, splits == "stream")}
    expected = 0.5 * a.astype(np.float64) @ b + 2 * c
    assert np.abs(y - expected).max() <= 2e-3 * np.abs(expected).max()


# ------------------------------------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_copies(device, transposed, both):
    """What is packed has the elements of the operand, as it says, in rows of whole lines; all else stays where it is."""
    a, b = operand((3, 70, 131), np.float16), operand((131, 65 if both else 64), np.float16)
    operands = laid(a, transposed), laid(b, False)
    packing = packing_of(*operands)
    assert packing[0] == ((70 * 192, 192, 1) if not transposed else (131 * 128, 1, 128)) and (packing[1] is not None) == both

    def steps(new):
        return tuple((yield from packed(new, operands, packing)))

    copies = Launches(operands[0], steps).sync()
    for x, y, operand_, strides in zip((a, b), copies, operands, packing, strict=True):
        assert (y.to_host().sync() == x).all()
        assert y is operand_ if strides is None else y.strides[-2:] == strides[-2:]


def test_eight_bits_are_packed_along_k(device):
    a, b = operand((40, 64), np.int8), operand((64, 48), np.int8)
    assert packing_of(laid(a, True), laid(b, False)) == ((128, 1), (1, 128))
    assert packing_of(laid(a, False), laid(b, True)) == (None, None)


@pytest.mark.parametrize(("shape", "layout", "packed"), [
    ((1949, 2525, 10939), "TT", True), ((1949, 2525, 10939), "NN", True), ((2048, 2048, 2048), "TN", False),
    ((2048, 2048, 200), "NT", False), ((4082, 277, 518), "NN", False), ((16384, 16384, 16384), "NN", False),
], ids=str)  # fmt: skip
def test_exact_float32_is_packed_across_k_where_it_is_multiplied_often(shape, layout, packed):
    m, n, k = shape
    a = api.meta((k, m), tk.float32).T if layout[0] == "T" else api.meta((m, k), tk.float32)
    b = api.meta((n, k), tk.float32).T if layout[1] == "T" else api.meta((k, n), tk.float32)
    assert ("_pack" in names(kernels.gemm(a, b))) == packed


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("rows", "k"), [(1, 1300), (3, 77), (4, 4100)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 132], ids="of{}".format)
def test_parts_of_few_rows(device, deep, rows, k, shared, count):
    w, x = operand((2, rows, k), BF), operand((1 if shared else 2, k, 90), BF)
    vectors = vectors_of(2, rows, 90, k, deep, 1, count)
    left, right = laid(w, False), laid(x, deep)

    def steps(new):
        parts = new(Spec((2 * vectors.splits, rows, 90), tk.float32))
        yield products_of_vectors(parts, left, right, vectors, tk.float32, (1, 0 if shared else 1))
        return parts

    parts = Launches(left, steps).sync().to_host().sync()
    expected = w.astype(np.float64) @ x.astype(np.float64)
    assert np.allclose(parts.reshape(2, -1, rows, 90).sum(1), expected, rtol=1e-4, atol=2e-4 * k**0.5)


# -------------------------------------------------------------------------------------------------------------------------- plans


def m(*shape, dtype=tk.bfloat16):
    return api.meta(shape, dtype)


def test_what_is_packed():
    """Odd widths of large products; not where operands are read once or twice, nor where tiles come ahead as they lie."""
    assert names(kernels.gemm(m(4097, 4097), m(4097, 4097))) in (["_pack", "gemm"], ["_pack", "gemm_abreast"])
    assert names(kernels.gemm(m(4097, 4097).T, m(4097, 4096))) in (["_pack", "gemm"], ["_pack", "gemm_abreast"])
    assert names(kernels.gemm(m(2, 500, 5001), m(5001, 1000)))[0] == "_pack"
    assert names(kernels.gemm(m(2000, 2000, dtype=tk.float32).T, m(2000, 2000, dtype=tk.float32), precision="tf32"))[0] == "_pack"
    for a, b in (((4096, 4096), (4096, 4096)), ((2000, 9), (9, 3001)), ((64, 33), (33, 64))):
        assert "_pack" not in names(kernels.gemm(m(*a), m(*b)))
    assert "_pack" not in names(kernels.gemm(m(4097, 4097), m(4097, 4097), tile=(128, 128, 64)))
    assert "_pack" not in names(kernels.gemm(m(999, 999, dtype=tk.float32), m(999, 999, dtype=tk.float32)))


def test_large_operands_are_not_turned_over_by_those_that_multiply():
    """To copy one costs its bytes, once; to turn each of its tiles over as often as it is loaded costs more, if sums are long and
    the other side is, too."""

    def packed(a, b):
        return names(kernels.gemm(a, b, precision="tf32"))[0] == "_pack"

    wide, small = m(8192, 16384, dtype=tk.float32), m(700, 1024, dtype=tk.float32)
    assert packed(wide, m(16384, 2048, dtype=tk.float32))
    assert not packed(wide, m(2048, 16384, dtype=tk.float32).T)
    assert not packed(small, m(1024, 2048, dtype=tk.float32))
    assert not packed(m(45, 1856, 296, dtype=tk.float32), m(45, 296, 4168, dtype=tk.float32))


def test_what_is_little_beside_the_result_is_not_packed():
    """Rows of two elements, and a large result: blocks whose tiles come as they go store it as fast. Rows of 66 take longer."""

    def launches(rows, columns, k):
        a, b = m(4, k, rows, dtype=tk.float32).permute(0, 2, 1), m(4, k, columns, dtype=tk.float32)
        return names(kernels.gemm(a, b, precision="tf32"))

    assert launches(10679, 1267, 2) == ["batched_gemm"]
    assert launches(9340, 151, 16) == ["batched_gemm"]
    assert launches(16384, 151, 66)[0] == "_pack"


def test_tiles_of_short_rows_have_several_steps():
    """What threads have of sums is added up once for all of them; unless there are too few tiles, or it is for whole warps."""
    short, few, wide = (vectors_of(batch, 1, 2213, 91, True, run, 132) for batch, run in ((32, 1), (1, 1), (32, 2)))
    assert [(each.columns, each.depth, each.splits) for each in (short, few, wide)] == [(128, 32, 1), (32, 128, 1), (64, 64, 1)]
    op = kernels.gemm(m(32, 1, 91), m(32, 2213, 91).permute(0, 2, 1))
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    assert dict(launch._options.generics)["BK"] == 32


def test_few_columns_have_narrow_tiles():
    """So that there are blocks for all multiprocessors, unless K is so short that parts of it have too few steps."""
    for k, columns, blocks in ((14181, 64, 225), (14181 * 4, 64, 320), (1000, 512, 25), (40, 64, 5)):
        vectors = vectors_of(1, 1, 266, k, False, 1, 132)
        assert (vectors.columns, -(-266 // vectors.columns) * vectors.splits) == (columns, blocks)
    assert vectors_of(1, 1, 60000, 14181, False, 1, 132).columns == 512
    assert vectors_of(1, 1, 266, 14181, False, 1, 32).columns == 512


def test_few_rows_are_vectors():
    """Where no tile comes to shared memory, whatever the dtype; one launch if there is nothing to add up or to do besides."""
    assert names(kernels.gemm(m(1, 4097), m(4097, 600001))) == ["_products_of_vectors"]
    assert names(kernels.gemm(m(1, 4097), m(4097, 501))) == ["_products_of_vectors", "sum_of_parts"]
    assert names(kernels.gemm(m(50, 3, 70, dtype=tk.float32), m(70, 9000, dtype=tk.float32))) == ["_products_of_vectors"]
    assert "_products_of_vectors" not in names(kernels.gemm(m(1, 4096), m(4096, 4096)))
    assert "_products_of_vectors" not in names(kernels.gemm(m(5, 4097), m(4097, 501)))


@pytest.mark.parametrize(("a", "b"), [((1, 4097), (4097, 4097)), ((4097, 4097), (4097, 4))], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_read_in_lines(a, b, transposed):
    """Lanes next to each other read elements next to each other, whichever dimension is contiguous, and nothing spills."""
    left, right = (m(*shape[::-1]).T if transposed else m(*shape) for shape in (a, b))
    op = kernels.gemm(left, right)
    op.consumed()
    compiled = op.parts()[0].compile(target="sm_90a")
    assert compiled.local_bytes == 0 and compiled.registers <= 168
    rows = [line.split() for line in str(op.parts()[0].explain("sm_90a")).splitlines()]
    (read,) = (row[-1] for row in rows if row[1:3] == ["load", "x:"])
    assert int(read.rstrip("%")) >= 50


def test_copies_are_written_in_lines():
    op = kernels.gemm(m(4097, 4097), m(4097, 4097).T)
    op.consumed()
    rows = [line.split() for line in str(op.parts()[0].explain("sm_90a")).splitlines()]
    assert {row[1]: row[-1] for row in rows if row[1:2] in (["load"], ["store"])} == {"load": "50%", "store": "100%"}
