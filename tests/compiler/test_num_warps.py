"""How many warps a block has where nobody says: from its own tiles, and more for larger ones inside."""

import pytest

import tilekit as tk
from tilekit import api


@tk.kernel
def weighted(y: tk.Out, x: tk.In, columns: tk.Const):
    t = tk.load(x, (tk.bid(0), 0), (16, columns))
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    y.store(tk.sum(e / tk.sum(e, 1, keepdims=True) * t, 1))


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
