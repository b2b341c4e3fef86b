"""`kernels.gemm` and `kernels.grouped_gemm` with tiles of two powers of two of columns, against NumPy."""

import re

import hazards
import ml_dtypes
import numpy as np
import pytest
from closeness import normal

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import epilogues
from tilekit.kernels._gemm import model, products, recipes, schedules

f = api.from_host
BF = ml_dtypes.bfloat16
SHAPES = [(130, 200, 136), (300, 1000, 520), (1, 5, 7)]


def wide(x):
    return np.asarray(x).astype(np.float64)


def close(found, a, b, single=2**-22, **more):
    """Within what `tk.mma` states, and the rounding of the result; `more` was added."""
    wanted, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
    for what in more.values():
        wanted, size = wanted + what, size + np.abs(what)
    assert found.shape == wanted.shape
    rounding = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}[found.dtype.name]
    allowed = (a.shape[-1] + 4) * single * size + 1.01 * rounding * np.abs(wanted) + 1e-6
    assert np.all(np.abs(wide(found) - wanted) <= allowed)


def laid(array, turned):
    """A tensor of the same values, whose columns, or those of its matrices, are contiguous if it is turned."""
    if not turned:
        return f(array)
    x = f(np.ascontiguousarray(array.swapaxes(-1, -2)))
    return x.then(lambda x: tk.value(x.permute(*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)))


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "tile", [(128, 192, 64), (64, 192, 64), (64, 96, 64), (128, 160, 64), (256, 192, 64), (64, 104, 64)], ids=str
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(device, shape, tile, layouts, splits):
    m, n, k = shape
    a, b = normal((m, k), BF), normal((k, n), BF, 1)
    options = {"tile": tile, "num_warps": 4 if tile[0] == 64 else 8, "splits": splits}
    y = kernels.gemm(laid(a, layouts[0] == "T"), laid(b, layouts[1] == "T"), **options).to_host().sync()
    close(y, a, b)


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("batched", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("tile", [(64, 192, 64), (128, 160, 64), (128, 208, 64)], ids=str)
def test_batches(device, tile, batched, layouts, splits):
    (m, n, k), (of_a, of_b) = (130, 200, 136), batched
    a, b = normal((3, m, k) if of_a else (m, k), BF), normal((3, k, n) if of_b else (k, n), BF, 1)
    options = {"tile": tile, "num_warps": 4 if tile[0] == 64 else 8, "splits": splits}
    y = kernels.gemm(laid(a, layouts[0] == "T"), laid(b, layouts[1] == "T"), **options).to_host().sync()
    close(y, a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: np.dtype(d).name)
def test_batches_without_tensor_cores(device, dtype):
    a, b = normal((3, 100, 72), dtype), normal((3, 72, 200), dtype, 1)
    close(kernels.gemm(f(a), f(b), tile=(64, 96, 16), num_warps=4).to_host().sync(), a, b)
    offsets = f(np.array([0, 40, 100], np.int32))
    y = kernels.grouped_gemm(f(a[0]), f(b), offsets, tile=(64, 96, 16)).to_host().sync()
    close(y[:40], a[0, :40], b[1])


@pytest.mark.parametrize("splits", [1, 2])
def test_what_else_is_done_to_batches(device, splits):
    shapes = [(3, 130, 136), (3, 136, 330), (3, 130, 330), (3, 130, 1), (330,), (130, 330)]
    a, b, c, x, y, z = (normal(shape, np.float16, seed) for seed, shape in enumerate(shapes))

    @tk.function
    def epilogue(acc, x, y, z):
        return acc + x - y + z

    options = {"alpha": 0.5, "beta": 2, "epilogue": epilogue, "tile": (128, 192, 64), "num_warps": 8, "splits": splits}
    found = kernels.gemm(f(a), f(b), f(c), operands=(f(x), f(y), f(z)), **options).to_host().sync()
    close(found, a * 0.5, b, c=2 * wide(c), x=wide(x), y=-wide(y), z=wide(z))


def dealt_out_as_on_a_gpu(monkeypatch):
    """Let products on the CPU device be dealt out as on a GPU with 12 multiprocessors."""
    monkeypatch.setattr(recipes, "_recipes", {})
    monkeypatch.setattr(recipes, "staged_operands", lambda a, b: True)
    for module in (recipes, products):
        monkeypatch.setattr(module, "on_cpu", lambda x: False)
        monkeypatch.setattr(module, "multiprocessors", lambda x: 12)


@pytest.mark.parametrize("added", [False, True], ids=["alone", "added to c"])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("shape", [(4, 16, 600, 136), (4, 384, 512, 136)], ids=["few rows", "many"])
def test_batches_that_are_turned(device, monkeypatch, shape, layouts, added):
    """The transpose of each product is computed, on the CPU device, too, where that is dealt out to like a GPU."""
    dealt_out_as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(recipes, "_TURNED", 9.0)  # whether or not it is less work
    batch, m, n, k = shape
    a, b, c = (normal(shape, BF, seed) for seed, shape in enumerate([(batch, m, k), (k, n), (batch, m, n)]))
    y = kernels.gemm(laid(a, layouts[0] == "T"), laid(b, layouts[1] == "T"), f(c) if added else None).to_host().sync()
    close(y, a, b, c=wide(c) if added else 0.0)
    assert all(recipe.turned for recipe in recipes._recipes.values())


@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("tile", [(64, 192, 64), (128, 160, 64), (64, 80, 64)], ids=str)
def test_groups(device, tile, layout):
    """Some without rows, some that begin in the middle of a tile, and rows of no group."""
    ends = [0, 70, 130, 130, 131, 400]
    a, b = normal((410, 136), BF), normal((6, 136, 200), BF, 1)
    offsets = f(np.array(ends, np.int32))
    options = {"tile": tile, "num_warps": 4 if tile[0] == 64 else 8}
    y = kernels.grouped_gemm(f(a), laid(b, layout[1] == "T"), offsets, **options).to_host().sync()
    for g, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        close(y[first:last], a[first:last], b[g])
    assert (y[400:] == 0).all()


def kernel_of(op):
    """What a product's first launch is compiled to."""
    op.consumed()
    launch = op if isinstance(op, tk.KernelLaunch) else op.parts()[0]
    launch.consumed()
    explained = launch.explain("sm_90a")
    return explained.compiled, [ring.stages for ring in explained.pipelines]


@pytest.mark.parametrize("tile", [(64, 96, 64), (64, 160, 64), (128, 192, 64), (256, 80, 64)], ids=str)
def test_warps_that_a_tile_suggests(tile):
    x = api.meta((768, 768), tk.bfloat16)
    kernel, _ = kernel_of(kernels.gemm(x, x.T, tile=tile))
    assert set(re.findall(r"(m64n\d+)k16", kernel.ptx)) == {f"m64n{tile[1]}"}


@pytest.mark.parametrize(
    ("tile", "stages"),
    [((128, 144, 64), 5), ((128, 160, 64), 5), ((128, 136, 64), 5), ((128, 96, 64), 7), ((64, 80, 64), 4), ((64, 48, 64), 4)],
    ids=str,
)
def test_columns_that_are_contiguous_are_multiplied_as_many_as_there_are(tile, stages):
    """And not the panels that they come in, which the second tile has of the first one's width."""
    x = api.meta((4096, 4096), tk.bfloat16)
    op = kernels.gemm(x, x, tile=tile)
    kernel, room = kernel_of(op)
    assert set(re.findall(r"(m64n\d+)k16", kernel.ptx)) == {f"m64n{tile[1]}"}
    panel = min(64, schedules.columns_of(tile[1])[0])
    assert {known.box for known in kernel.maps if known.argument == 3} == {(64, panel)}
    assert not kernel.local_bytes
    assert room == [stages]


@pytest.mark.parametrize(
    ("shape", "shared"),
    [
        ((13, 1800, 272, 1432), 1),
        ((17, 3040, 304, 4312), 1),
        ((1, 1488, 3056, 10992), 1),
        ((1, 256, 9000, 4008), 2),
        ((1, 5736, 280, 5720), 1),
    ],
    ids=str,
)
def test_pairs_of_blocks_load_tiles_of_rows_that_lie_across_lines(shape, shared):
    """Of what both blocks have in common each loads a half, for both: the rows, or both of the tiles that are abreast."""
    batch, m, n, k = shape
    stack = (batch,) if batch > 1 else ()
    b = api.meta((*stack, n, k), tk.bfloat16)
    op = kernels.gemm(api.meta((*stack, m, k), tk.bfloat16), b.permute(0, 2, 1) if stack else b.T)
    kernel, _ = kernel_of(op)
    assert re.search(r"m64n(144|160|192)k16", kernel.ptx)
    assert kernel.sass.count("MULTICAST") == shared
    assert not kernel.local_bytes
    hazards.check(kernel)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("columns", [144, 160, 192])
@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.int8], ids=str)
def test_tall_tiles_fit_the_registers(dtype, columns, layout):
    """Warpgroups have 128 rows, of which two products take the same columns; sums, and what stores them, are all they have."""
    if dtype == tk.int8 and layout != "NT":
        pytest.skip("tensor cores take 8 bits along K alone")
    a, b = (api.meta(shape, dtype) for shape in ((4096, 2048), (2048, 4104)))
    a = api.meta((2048, 4096), dtype).T if layout[0] == "T" else a
    b = api.meta((4104, 2048), dtype).T if layout[1] == "T" else b
    kernel, _ = kernel_of(kernels.gemm(a, b, tile=(256, columns, 128 // dtype.itemsize), num_warps=8))
    assert set(re.findall(r"m64n\d+", kernel.ptx)) == {f"m64n{columns}"}
    assert not kernel.local_bytes
    hazards.check(kernel)


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("columns", [104, 112, 176, 208, 224])
@pytest.mark.parametrize("rows", [64, 128])
def test_three_tiles_are_one_instruction(rows, columns, splits):
    """Each comes by a copy of its own, behind the one before."""
    a, b = api.meta((4096, 2048), tk.bfloat16), api.meta((4104, 2048), tk.bfloat16).T
    kernel, _ = kernel_of(kernels.gemm(a, b, tile=(rows, columns, 64), num_warps=rows // 16, splits=splits))
    assert set(re.findall(r"(m64n\d+)k16", kernel.ptx)) == {f"m64n{columns}"}
    assert kernel.sass.count("UTMALDG") == 4
    assert not kernel.local_bytes
    hazards.check(kernel)


@pytest.mark.parametrize(("columns", "added"), [(208, "c"), (208, "bias"), (224, "c"), (176, "bias")])
def test_what_is_added_to_three_tiles_fits_the_registers(columns, added):
    a, b = api.meta((4096, 2048), tk.bfloat16), api.meta((4104, 2048), tk.bfloat16).T
    more = {"c": api.meta((4096, 4104), tk.bfloat16)}
    if added == "bias":
        more = {"epilogue": epilogues.bias, "operands": (api.meta((4104,), tk.bfloat16),)}
    kernel, _ = kernel_of(kernels.gemm(a, b, tile=(128, columns, 64), num_warps=8, **more))
    assert not kernel.local_bytes
    hazards.check(kernel)


@pytest.mark.parametrize(("columns", "instructions"), [(104, {96, 8}), (112, {112}), (208, {208}), (24, {24}), (40, {32, 8})])
def test_integers_have_instructions_of_16_columns_more(columns, instructions):
    """wgmma has 8, 16, 24, 32, 48, ... of 8-bit integers: what is none stays several."""
    a, b = api.meta((128, 256), tk.int8), api.meta((416, 256), tk.int8).T
    kernel, rings = kernel_of(kernels.gemm(a, b, tile=(128, columns, 128), num_warps=8))
    assert rings
    assert {int(n) for n in re.findall(r"m64n(\d+)k32", kernel.ptx)} == instructions


def test_tall_tiles_are_of_sums_that_are_stored_as_they_are():
    def rows(a, b, **more):
        kernels.gemm(a, b, **more).consumed()
        return list(recipes._recipes.values())[-1].schedule.rows

    m, n, k = 16384, 8192, 8192
    a, b = api.meta((m, k), tk.bfloat16), api.meta((n, k), tk.bfloat16).T
    short = (api.meta((m, k), tk.float8_e4m3fn), api.meta((n, k), tk.float8_e4m3fn).T)
    assert rows(a, b) == 256
    assert rows(a, b, epilogue=epilogues.gelu) == rows(a, b, c=api.meta((n,), tk.bfloat16)) == 128
    assert rows(*short) == 128
    assert rows(*short, precision="fast") == 256
    assert rows(a, api.meta((n + 4, k), tk.bfloat16).T) == 128
    assert rows(a, b, splits=2) == 128


@pytest.mark.parametrize("columns", [80, 144, 160, 192])
def test_short_sums_of_two_tiles_are_one_instruction(columns):
    """They are added up in float32, of all columns at a time."""
    a, b = api.meta((4096, 4096), tk.float8_e4m3fn), api.meta((4096, 4096), tk.float8_e4m3fn).T
    kernel, _ = kernel_of(kernels.gemm(a, b, tile=(128, columns, 128), num_warps=8))
    assert set(re.findall(r"(m64n\d+)k32", kernel.ptx)) == {f"m64n{columns}"}
    assert not kernel.local_bytes


@pytest.mark.parametrize("grouped", [False, True], ids=["batch", "groups"])
@pytest.mark.parametrize(("columns", "turned", "room"), [(160, True, 6), (144, False, 5), (192, False, 5)])
def test_batches_and_groups_have_one_instruction_for_both_tiles(columns, turned, room, grouped):
    m, k, stack = 1024, 1024, 4
    b = api.meta((stack, columns, k), tk.bfloat16).permute(0, 2, 1) if turned else api.meta((stack, k, columns), tk.bfloat16)
    options = {"tile": (128, columns, 64), "num_warps": 8}
    if grouped:
        op = kernels.grouped_gemm(api.meta((m, k), tk.bfloat16), b, api.meta((stack,), tk.int32), **options)
    else:
        op = kernels.gemm(api.meta((stack, m, k), tk.bfloat16), b, **options)
    kernel, stages = kernel_of(op)
    assert set(re.findall(r"(m64n\d+)k16", kernel.ptx)) == {f"m64n{columns}"}
    assert not kernel.local_bytes
    assert stages == [room]


DTYPES = [np.float16, np.float32, np.float64, np.int8, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_dtypes(device, dtype):
    if dtype == np.int8:
        a, b = (np.random.default_rng(seed).integers(-9, 9, shape, np.int8) for seed, shape in ((1, (200, 144)), (2, (144, 400))))
        y = kernels.gemm(f(a), f(b), tile=(64, 192, 64), num_warps=4).to_host().sync()
        assert np.array_equal(y, a.astype(np.int32) @ b.astype(np.int32))
    else:
        options = {"dtype": tk.float32, "single": 2**-10} if np.dtype(dtype).itemsize == 1 else {}
        single = options.pop("single", 2**-22)
        a, b = normal((200, 144), dtype), normal((144, 400), dtype, 1)
        y = kernels.gemm(f(a), f(b), tile=(64, 192, 32), num_warps=4, **options).to_host().sync()
        close(y, a, b, single)


@pytest.mark.parametrize("splits", [1, 2])
def test_what_else_is_done(device, splits):
    a, b, c, bias = (normal(shape, np.float16, seed) for seed, shape in enumerate([(200, 136), (136, 330), (200, 330), 330]))
    options = {
        "alpha": 0.5,
        "beta": 2,
        "epilogue": epilogues.bias,
        "operands": (f(bias),),
        "tile": (128, 192, 64),
        "num_warps": 8,
    }
    y = kernels.gemm(f(a), f(b), f(c), splits=splits, **options).to_host().sync()
    close(y, a * 0.5, b, c=2 * wide(c), bias=wide(bias))


@pytest.mark.parametrize("added", [False, True], ids=["alone", "added to c"])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
def test_one_that_is_chosen(device, layouts, added):
    """Whatever tile that is, and whichever way round; see `test_schedules`."""
    a, b, c = (normal(shape, BF, seed) for seed, shape in enumerate([(312, 1024), (1024, 3648), (312, 3648)]))
    y = kernels.gemm(laid(a, layouts[0] == "T"), laid(b, layouts[1] == "T"), f(c) if added else None).to_host().sync()
    close(y, a, b, c=wide(c) if added else 0.0)


@pytest.mark.parametrize("operand", [False, True], ids=["c", "an operand"])
@pytest.mark.parametrize("stack", [(), (3,)], ids=["matrix", "batch"])
def test_none_are_chosen_in_place(device, monkeypatch, stack, operand):
    """No analysis sees that blocks read of two tiles what they write themselves."""
    dealt_out_as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(model, "_STAGED", ())  # there are no others
    a, b, c = (normal(shape, np.float16, seed) for seed, shape in enumerate([(*stack, 130, 72), (72, 336), (*stack, 130, 336)]))
    for in_place in (True, False):
        other = f(c).sync()
        more = {"epilogue": epilogues.residual, "operands": (other,)} if operand else {"c": other}
        y = kernels.gemm(f(a).sync(), f(b).sync(), out=other if in_place else None, **more)
        close(y.to_host().sync(), a, b, c=wide(c))
        *_, recipe = recipes._recipes.values()
        assert (recipe.schedule.abreast is None) is in_place


def test_tiles_that_there_are_not():
    x = api.meta((192, 192), tk.float16)
    for tile in ((192, 64, 64), (64, 192, 96), (64, 240, 64), (64, 15, 64), (64, 0, 64), (64, 192.0, 64)):
        with pytest.raises(
            ValueError, match=r"tile is \(BM, BN, BK\), three powers of two, of which BN may be the sum of two or three, not"
        ):
            kernels.gemm(x, x, tile=tile)
    with pytest.raises(ValueError, match=r"three powers of two, not \(64, 192, 64\)"):
        kernels.gemm(x, x, tile=(64, 192, 64), splits="stream")
