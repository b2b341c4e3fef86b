"""What decides the compiled code decides the key: each part of it is varied, and must give another key."""

from __future__ import annotations

import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler import cache

B = tk.generics("B")
N = 1 << 20


def key(kernel, *arguments, warps=None, occupancy=None, target="sm_90a", **generics):
    launch = kernel(*arguments)
    launch._spent = True
    if generics:
        launch.generics(**generics)
    if warps:
        launch.num_warps(warps)
    if occupancy:
        launch.occupancy(occupancy)
    return launch._plan("compile").specialisation.key(target)


def make(scale):
    @tk.kernel
    def scaled(y: tk.InOut, a, x: tk.In, n: tk.Const = 1):
        y.store(y.load() * scale + a * tk.load_tile_like(x, y, padding_mode="zero") + n)

    return scaled


@tk.kernel
def generic(y: tk.Out):
    y.store(tk.full(y.tile_shape, B, tk.float32))


def base(kernel=None, n=N, tile=1024, dtype=tk.float32, a=2.0, x=None, const=1, **options):
    x = api.meta(n, dtype) if x is None else x
    return key(kernel or make(2.0), api.meta(n, dtype).partition(tile), a, x, const, **options)


def test_the_same_launch_has_the_same_key():
    assert base() == base()
    assert base() is not None
    assert base(a=3.0) == base(), "a scalar is a parameter of the compiled kernel"


@pytest.mark.parametrize(
    "change",
    [
        {"n": N + 1},  # extents that the tile does not divide need masks
        {"n": N + 4},
        {"n": 2**32},
        {"tile": 512},
        {"dtype": tk.float16},
        {"a": 2},
        {"x": api.meta(N + 1)[1:]},  # its address is not aligned
        {"x": api.meta(2 * N)[::2]},
        {"x": api.meta(2 * N)},  # the grid does not cover it
        {"const": 2},
        {"const": 1.0},
        {"warps": 8},
        {"occupancy": 2},
        {"target": "sm_80"},
        {"kernel": make(3.0)},  # the same text over another enclosing variable
    ],
    ids=str,
)
def test_every_part_counts(change):
    assert base(**change) != base()


def test_generics_count():
    y = api.meta(64).partition(64)
    assert key(generic, y, B=1) != key(generic, y, B=2)


def test_the_toolchain_counts(monkeypatch):
    before = base()
    monkeypatch.setattr(cache, "toolchain_fingerprint", lambda: "another")
    assert base() != before


def test_what_has_no_fingerprint_is_not_kept():
    from numba import cuda

    @cuda.jit(device=True)
    def helper(t):
        return t

    @tk.kernel
    def helped(y: tk.InOut):
        y.store(helper(y.load()))

    assert key(helped, api.meta(64).partition(64)) is None


def test_plain_helpers_are_a_part_of_the_kernel():
    def once(t):
        return t + 1

    def twice(t):
        return t + 2

    def helped(helper):
        @tk.kernel
        def kernel(y: tk.InOut):
            y.store(helper(y.load()))

        return kernel

    keys = {key(helped(helper), api.meta(64).partition(64)) for helper in (once, twice)}
    assert len(keys) == 2 and None not in keys
