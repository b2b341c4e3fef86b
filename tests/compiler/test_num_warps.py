"""How many warps a block has where nobody says: from the tiles that it loads and stores, and more for larger ones inside."""

import pytest

import tilekit as tk
from tilekit import api


@tk.kernel
def weighted(y: tk.Out, x: tk.In, columns: tk.Const):
    t = tk.load(x, (tk.bid(0), 0), (16, 1)) * tk.arange(columns)[None, :].astype(tk.float32)
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    y.store(tk.sum(e / tk.sum(e, 1, keepdims=True) * t, 1))


@tk.kernel
def sums(y: tk.Out, x: tk.In, rows: tk.Const):
    total = tk.zeros((rows, y.tile_shape[0]), tk.float32)
    for i in range(tk.num_tiles(x, 0, (rows, y.tile_shape[0]))):
        total = total + tk.load(x, (i, tk.bid(0)), (rows, y.tile_shape[0])).astype(tk.float32)
    y.store(tk.sum(total, 0))


@tk.kernel
def product(y: tk.Out, x: tk.In, columns: tk.Const):
    t = tk.load(x, (tk.bid(0), 0), (16, columns))
    y.store(tk.sum(t @ tk.transpose(t), 1))


@tk.kernel
def ones(y: tk.Out):
    y.store(tk.sum(tk.ones((16, 2048)) * 2.0, 1))


@tk.kernel
def shown(y: tk.InOut):
    t = y.load()
    tk.print("t", t)
    y.store(t)


def made(kernel, *arguments, **options):
    op = kernel(api.meta(64).partition(16), *arguments)
    for name, value in options.items():
        op = getattr(op, name)(value)
    return op.compile(target="sm_90a")


@pytest.mark.parametrize(("columns", "warps"), [(16, 1), (128, 1), (256, 2), (512, 4)])
def test_a_large_tile_inside_gets_more_warps(columns, warps):
    """A thread holds 64 registers of it at most."""
    kernel = made(weighted, api.meta((64, columns)), columns)
    assert kernel.block == (32 * warps, 1, 1)


@pytest.mark.parametrize(("dtype", "rows", "warps"), [(tk.float16, 8, 1), (tk.float16, 128, 4), (tk.float32, 256, 4)])
def test_folds_have_warps_for_what_they_load(dtype, rows, warps):
    """Two vectors of 16 bytes a thread, in four warps at most: 64 registers would be for half of the bytes on their way."""
    kernel = made(sums, api.meta((4096, 64), dtype), rows)
    assert kernel.block == (32 * warps, 1, 1)


def test_products_have_warps_for_what_they_store():
    assert made(product, api.meta((64, 128)), 128).block == (32, 1, 1)


def test_more_warps_than_sixteen_are_never_taken():
    assert made(weighted, api.meta((64, 2048)), 2048).block == (512, 1, 1)


def test_what_is_asked_for_is_given():
    assert made(weighted, api.meta((64, 512)), 512, num_warps=2).block == (64, 1, 1)


def test_a_tile_of_equal_elements_takes_no_registers():
    assert made(ones).block == (32, 1, 1)


def test_spilled_registers_get_more_warps(monkeypatch):
    from tilekit.compiler.codegen import compilation

    monkeypatch.setattr(compilation, "MOST_REGISTERS", 1024)  # so that the tile alone does not
    kernel, given = made(weighted, api.meta((64, 512)), 512), made(weighted, api.meta((64, 512)), 512, num_warps=1)
    assert given.local_bytes > 0
    assert kernel.local_bytes < given.local_bytes
    assert kernel.block[0] > 32


def test_memory_that_is_no_spill_gets_none():
    """What tk.print writes for printf lies in local memory."""
    kernel = made(shown)
    assert kernel.local_bytes > 0
    assert kernel.block == (32, 1, 1)


def test_explain_says_what_was_kept():
    x = api.meta((64, 1024))
    explained = weighted(api.meta(64).partition(16), x, 1024).explain("sm_90a")
    assert explained.compiled.block == (256, 1, 1)
    assert [access.kind for access in explained.accesses] == ["load", "store"]
    assert all(use.layout.num_registers <= 64 for use in explained.layouts)
