"""What kernels for sm_90a do where a tensor may have fewer rows than their tiles."""

import re

import hazards
import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.kernel import CompiledKernel

CLEARED = "st.shared.v4.b32"


def meta(*shape):
    return api.meta(shape, tk.bfloat16)


@tk.kernel(num_warps=4)
def product(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(c.tile_shape, tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def persistent(c: tk.Out, a: tk.In, b: tk.In):
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros(c.tile_shape, tk.float32)
        for ta, tb in tk.pipelined(a.tiles((128, 64))[i, :], b.tiles((64, 256))[:, j]):
            acc = tk.mma(ta, tb, acc)
        c.store(acc.astype(c.dtype), tile)


@tk.kernel(num_warps=4)
def two_loops(c: tk.Out, a: tk.In, b: tk.In):
    """In the stages of both lie tiles of other sizes."""
    acc = tk.zeros(c.tile_shape, tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    for ta, tb in tk.pipelined(a.tiles((64, 128))[tk.bid(0), :], b.tiles((128, 128))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


def compiled(kernel, m, n, k, tile=(64, 128), **mapped):
    c = meta(m, n).partition(tile)
    return kernel(c.map(**mapped) if mapped else c, meta(m, k), meta(n, k).T).compile(target="sm_90a")


def shrinking(made):
    return [known.shrinks for known in made.maps]


@pytest.mark.parametrize(
    ("m", "n", "expected"), [(40, 72, [0, 1]), (1000, 1000, [0, 1]), (40, 4096, [0, None]), (64, 128, [None] * 2)]
)
def test_what_may_be_short_comes_as_far_as_it_is_there(m, n, expected):
    """Extents that tiles divide are no smaller than these, and cost nothing."""
    made = compiled(product, m, n, 4096)
    assert shrinking(made) == expected
    clears = len([d for d in expected if d is not None])
    assert made.ptx.count(CLEARED) == clears, "in a loop over the stages"
    (awaited,) = re.findall(r"expect_tx\S+ _, \[\S+\], (\S+);", made.ptx)
    assert awaited.isdigit() == (not clears)
    assert made.spilled_bytes == 0
    assert hazards.check(made) is None


def awaited(made, extent):
    """How many bytes a stage waits for, by the PTX, if all extents that the kernel gets are as large."""
    (register,) = re.findall(r"expect_tx\S+ _, \[\S+\], (\S+);", made.ptx)
    known = re.findall(r"^\s*(\S+)\s+(%\w+), ([^;]+);", made.ptx, re.MULTILINE)

    def value(name):
        if not name.startswith("%"):
            return int(name)
        ((instruction, operands),) = [(each, rest.split(", ")) for each, to, rest in known if to == name]
        if instruction.startswith("ld.param"):
            return extent
        first, *others = map(value, operands)
        ways = {
            "selp": lambda: first if others[1] else others[0],
            "setp": lambda: first < others[0],
            "shl": lambda: first << others[0],
            "add": lambda: first + others[0],
        }
        return ways[instruction.split(".")[0]]()

    return value(register)


@pytest.mark.parametrize("extent", [1, 40, 64, 100, 128, 4096])
def test_a_stage_waits_for_what_comes(extent):
    """By the accelerator: of tiles that threads copy, it knows no bytes."""
    rows, columns = (128 * min(extent, most) for most in (64, 128))
    assert awaited(compiled(product, 40, 72, 4096), extent) == rows + columns
    mixed = product(meta(136, 260).partition((64, 128)), meta(136, 200), meta(200, 260))
    (ring,) = mixed.explain("sm_90a").pipelines
    assert ring.tiles == ("bfloat16 64x64 by TMA", "bfloat16 64x128 by cp.async of 8 bytes")
    assert awaited(mixed.compile("sm_90a"), extent) == rows


def test_code_for_the_consumers_is_the_same():
    def calculating(made):
        return re.findall(r"HGMMA\S+", made.sass)

    assert calculating(compiled(product, 40, 4096, 4096)) == calculating(compiled(product, 64, 4096, 4096))


def test_blocks_that_load_together_load_whole_tiles():
    alone = compiled(persistent, 1000, 1000, 4096, (128, 256), num_blocks=4)
    together = compiled(persistent, 1000, 1000, 4096, (128, 256), num_blocks=4, cluster=(2, 1))
    assert (shrinking(alone), shrinking(together)) == ([0, 1], [0, None])
    assert (alone.ptx.count(CLEARED), together.ptx.count(CLEARED)) == (2, 1)


def test_stages_with_other_tiles_are_not_cleared():
    made = compiled(two_loops, 40, 72, 4096)
    assert made.maps
    assert set(shrinking(made)) == {None}
    assert CLEARED not in made.ptx


def test_it_is_kept():
    made = compiled(product, 40, 72, 4096)
    assert CompiledKernel.from_bytes(made.to_bytes()).maps == made.maps
