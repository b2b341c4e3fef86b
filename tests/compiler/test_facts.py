"""What the launcher says of extents: how many specialisations there are, and which loads need no mask."""

import re

import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.facts import divisor, extent_divisor, tile_extents

N = tk.generics("N")


def test_a_tile_that_divides_an_extent_is_known():
    assert [extent_divisor(n) for n in (0, 1, 6, 32, 192, 8192)] == [1, 1, 2, 16, 64, 4096]
    assert [extent_divisor(n, (1, 32, 8192)) for n in (0, 1, 6, 32, 192, 8192, 24576, 4096)] == [
        1,
        1,
        2,
        32,
        64,
        8192,
        8192,
        4096,
    ]
    assert divisor(0) == 4096, "a stride of 0 is a multiple of anything"


def test_the_specialisations_are_few():
    """One more for each extent of a tile, at most."""
    plain = {extent_divisor(n) for n in range(1 << 14)}
    assert len({extent_divisor(n, (512, 8192)) for n in range(1 << 14)}) == len(plain) + 2


def test_the_extents_of_tiles():
    assert tile_extents([(1, 8192), 64, "S", (64, (2,)), 3, 0, True]) == (1, 64, 8192)


@tk.kernel
def scale(y: tk.Out, x: tk.In, w: tk.In):
    y.store(tk.load_tile_like(x, y) * tk.load(w, 0, y.tile_shape[1]))


@tk.kernel
def by_generic(y: tk.Out, x: tk.In):
    y.store(tk.sum(tk.load(x, 0, N)) + tk.zeros(y.tile_shape))


def masks(op):
    return set(re.findall(r"@p (ld|st)\.global", op.compile(target="sm_90a").ptx))


@pytest.mark.parametrize(
    ("columns", "length", "kinds"),
    [
        (8192, 8192, set()),
        (32768, 32768, set()),
        (512, 512 * 3, set()),
        (8192, 8191, {"ld"}),
        (8192, 4096, {"ld"}),
        (8192, 0, {"ld"}),
    ],
)
def test_a_load_by_tiles_that_divide_the_extent_takes_no_mask(columns, length, kinds):
    pytest.importorskip("numba.cuda", reason="compiles kernels")
    wide = (16, columns)
    assert (
        masks(scale(api.meta(wide, tk.float16).partition((1, columns)), api.meta(wide, tk.float16), api.meta(length, tk.float16)))
        == kinds
    )


def test_generics_are_tiles_too():
    pytest.importorskip("numba.cuda", reason="compiles kernels")
    made = by_generic(api.meta(4096).partition(1024), api.meta(8192 * 3)).generics(N=8192)
    assert masks(made) == set()
