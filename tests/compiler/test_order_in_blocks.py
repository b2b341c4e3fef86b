"""Threads of a block wait for each other where one accesses what another wrote, round loops too, and nowhere else."""

import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


@tk.kernel
def turned(y: tk.InOut, n):
    """Own loads before a scatter: the load of a turn comes after the scatter of the one before."""
    for _ in range(n):
        tk.scatter(y, tk.arange(512) + 1 & 511, y.load() + 1)


@tk.kernel
def stored_and_gathered(y: tk.InOut, z: tk.Out, n):
    """Own stores before a gather: the store of a turn comes after the gather of the one before."""
    for i in range(n):
        y.store(tk.arange(512) + i)
        z.store(tk.gather(y, 511 - tk.arange(512)))


@tk.kernel
def counted(y: tk.InOut, n):
    """Own loads and stores after an atomic."""
    for _ in range(n):
        tk.atomic_add(y, tk.arange(512) ^ 511, 1)
        y.store(y.load() * 2)


@tk.kernel
def own(y: tk.InOut, n):
    for i in range(n):
        y.store(y.load() + i)


@tk.kernel
def own_across(y: tk.InOut, n):
    """A store of the block's own tile that lies otherwise than it is loaded."""
    for _ in range(n):
        y.store(tk.transpose(y.load()))


@tk.kernel
def filled(y: tk.Out, n):
    for i in range(n):
        y.store(tk.arange(512) + i)


@tk.kernel
def added(y: tk.InOut, n):
    for _ in range(n):
        tk.atomic_add(y, tk.arange(512) ^ 511, 1)


@tk.kernel
def gathered(y: tk.InOut, z: tk.Out, n):
    for _ in range(n):
        z.store(tk.gather(y, tk.arange(512) ^ 1) + tk.gather(y, tk.arange(512) ^ 2) + y.load())


@tk.kernel
def once(y: tk.InOut):
    y.store(y.load() + 1)
    tk.scatter(y, tk.arange(512) ^ 511, y.load())


def events(op):
    """Barriers and accesses to global memory, a letter for each: the loop may be there several times, unrolled."""
    letters = {"bar": "|", "ld": "l", "st": "s", "red": "r"}
    lines = re.findall(r"\b(bar)\.sync|\b(ld|st|red)\.(?:relaxed\.\w+\.)?global", op.compile(target="sm_90a").ptx)
    return "".join(letters[one or other] for one, other in lines)


def meta(*shape):
    return api.meta(shape or (512,), tk.int32).partition(shape or (512,))


@pytest.mark.parametrize(
    ("make", "turns"),
    [
        (lambda: turned(meta(), 3), r"\|l+\|s+"),
        (lambda: stored_and_gathered(meta(), meta(), 3), r"\|s+\|l+s+"),
        (lambda: counted(meta(), 3), r"\|r+\|l+\|s+"),
        (lambda: own(meta(), 3), "l+s+"),
        (lambda: filled(meta(), 3), "s+"),
        (lambda: added(meta(), 3), "r+"),
        (lambda: gathered(meta(), meta(), 3), "l+s+"),
        (lambda: once(meta()), r"l+s+(l+)?\|s+"),
    ],
    ids=["turned", "stored_and_gathered", "counted", "own", "filled", "added", "gathered", "once"],
)
def test_barriers(make, turns):
    assert re.fullmatch(f"({turns})+", events(make()))


def test_a_tile_that_is_stored_as_it_lies():
    """Other threads store an element than load it: the load of a turn waits for the store of the one before."""
    assert re.fullmatch(r"(\|l+\|s+)+", events(own_across(meta(16, 16), 3)))


@tk.kernel
def of_any_tile(y: tk.Out, n):
    for i in range(n):
        tk.store(y, i // 2, tk.arange(512) + i)


@tk.kernel
def of_a_slice(y: tk.Out, n):
    for i in range(n):
        tk.store(y.slice(0, i), 0, tk.arange(512) + i)


@tk.kernel
def of_other_tiles(y: tk.Out, n):
    for i in range(n):
        tk.store(y, i, tk.arange(512) + i)
        tk.store(y, i // 2, tk.arange(1024) + i)


@tk.kernel
def of_any_tile_and_loaded(y: tk.InOut, n):
    for i in range(n):
        tk.store(y, i, tk.load(y, n - i, 512) + 1)


@pytest.mark.parametrize(
    ("make", "turns"),
    [(of_any_tile, "s+"), (of_a_slice, r"\|s+"), (of_other_tiles, r"\|s+\|s+"), (of_any_tile_and_loaded, r"\|l+\|s+")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_stores_of_any_tile_need_no_order(make, turns):
    """Each element has its thread, whichever tile it is in: but not if tiles begin anywhere, or have several sizes."""
    assert re.fullmatch(f"({turns})+", events(make(api.meta((8192,), tk.int32).scattered(), 3).grid(1)))


def test_the_last_store_of_a_tile_remains(device):
    y = of_any_tile(api.zeros(4096, tk.int32).sync().scattered(), 15).grid(1).first().unpartition().to_host().sync()
    last = np.minimum(2 * (np.arange(4096) // 512) + 1, 14)
    np.testing.assert_array_equal(y, np.arange(4096) % 512 + last)


@pytest.mark.parametrize("n", [1, 5])
def test_results(device, n):
    x = np.arange(512, dtype=np.int32)
    y = turned(api.from_host(x).sync().partition(512), n).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, np.roll(x, n) + n)

    y, z = (api.zeros(512, tk.int32).sync().partition(512) for _ in range(2))
    _, z, _ = stored_and_gathered(y, z, n).sync()
    np.testing.assert_array_equal(z.unpartition().to_host().sync(), x[::-1] + n - 1)

    y = counted(api.zeros(512, tk.int32).sync().partition(512), n).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, np.full(512, 2 ** (n + 1) - 2))
