"""What kernels for sm_90a do where the last tiles may have fewer rows than others."""

import re

import hazards
import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.tensormaps import Last
from tilekit.compiler.kernel import CompiledKernel

CLEARED = "st.shared.v4.b32"
MANY = 1 << 16  # blocks along each dimension: they are not put into groups


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


def lasts(made):
    """The dimensions along which maps have boxes for the last tile."""
    return [known.last.dim for known in made.maps if known.last is not None]


@pytest.mark.parametrize(("m", "n", "expected"), [(40, 72, [0, 1]), (1000, 1000, [0, 1]), (40, 4096, [0]), (64, 128, [])])
def test_of_a_last_tile_comes_what_is_there(m, n, expected):
    """Extents that tiles divide leave no rest, and cost nothing."""
    made = compiled(product, m, n, 4096)
    assert lasts(made) == expected
    assert made.ptx.count(CLEARED) == len(expected)
    assert made.ptx.count("proxy.async.shared::cta") == bool(expected)
    (awaited,) = re.findall(r"expect_tx\S+ _, \[\S+\], (\S+);", made.ptx)
    assert awaited.isdigit() == (not expected)
    assert made.spilled_bytes == 0
    assert hazards.check(made) is None


def awaited(made, extent, block):
    """How many bytes a stage waits for, by the PTX, in a block (x, y) of many, if all extents are as large."""
    (register,) = re.findall(r"expect_tx\S+ _, \[\S+\], (\S+);", made.ptx)
    lines = re.findall(r"^\s*(\S+)\s+(%\w+), ([^;]+);", made.ptx, re.MULTILINE)
    known = {"%ctaid.x": block[0], "%ctaid.y": block[1], **dict.fromkeys(("%nctaid.x", "%nctaid.y"), MANY)}

    def value(name):
        if not name.startswith("%"):
            return int(name)
        if name in known:
            return known[name]
        ((instruction, operands),) = [(each, rest.split(", ")) for each, to, rest in lines if to == name]
        if instruction.startswith("ld.param"):
            return extent
        first, *others = map(value, operands)
        return {
            "selp": lambda: first if others[1] else others[0],
            "setp": lambda: {"eq": first == others[0], "lt": first < others[0], "ne": first != others[0]}[instruction[5:7]],
            "shl": lambda: first << others[0],
            "shr": lambda: first >> others[0],
            "add": lambda: first + others[0],
            "sub": lambda: first - others[0],
            "mul": lambda: first * (others[0] % (1 << 32) if "wide.u32" in instruction else others[0]),
            "mad": lambda: first * others[0] + others[1],
            "div": lambda: first // others[0],
            "min": lambda: min(first, others[0]),
            "max": lambda: max(first, others[0]),
            "rem": lambda: first % others[0],
            "and": lambda: first & others[0],
            "or": lambda: first | others[0],
            "xor": lambda: first ^ others[0],
            "not": lambda: ~first,
            "mov": lambda: first,
            "cvt": lambda: first,
        }[instruction.split(".")[0]]()  # fmt: skip

    return value(register)


def rows_of(extent, tile, at):
    """How many come of a tile: all of one that there is nothing of, which no loop takes."""
    left = extent - tile * at
    return left if 0 < left < tile else tile


@pytest.mark.parametrize("block", [(0, 0), (1, 0), (1, 1), (3, 5)])
@pytest.mark.parametrize("extent", [1, 40, 64, 100, 128, 232, 700, 4096])
def test_a_stage_waits_for_what_comes(extent, block):
    """By the accelerator: of tiles that threads copy, it knows no bytes."""
    rows, columns = (128 * rows_of(extent, tile, at) for tile, at in zip((64, 128), block, strict=True))
    assert awaited(compiled(product, 40, 72, 4096), extent, block) == rows + columns
    mixed = product(meta(136, 260).partition((64, 128)), meta(136, 200), meta(200, 260))
    (ring,) = mixed.explain("sm_90a").pipelines
    assert ring.tiles == ("bfloat16 64x64 by TMA", "bfloat16 64x128 by cp.async of 8 bytes")
    assert awaited(mixed.compile("sm_90a"), extent, block) == rows


@tk.kernel(num_warps=4)
def two_abreast(c: tk.Out, a: tk.In, b: tk.In):
    """Tiles of 64 and of 16 columns stand next to each other; if there are none of the second, it takes any others."""
    left, right = tk.zeros((64, 64), tk.float32), tk.zeros((64, 16), tk.float32)
    begin = 80 * tk.bid(1)
    behind = begin + 64 if begin + 64 < b.shape[1] else 0
    rows = a.tiles((64, 64))[tk.bid(0), :]
    for ta, tb, tc in tk.pipelined(rows, b.slice(1, begin).tiles((64, 64))[:, 0], b.slice(1, behind).tiles((64, 16))[:, 0]):
        left, right = tk.mma(ta, tb, left), tk.mma(ta, tc, right)
    c.slice(1, begin).tiled_view((64, 64)).store((tk.bid(0), 0), left.astype(c.dtype))
    c.slice(1, behind).tiled_view((64, 16)).store((tk.bid(0), 0), right.astype(c.dtype))


@pytest.mark.parametrize("block", [0, 1, 3, 6])
@pytest.mark.parametrize("extent", [64, 72, 80, 100, 152, 240, 264, 312, 4096])
def test_of_tiles_that_begin_further_apart(extent, block):
    """They begin elsewhere in the tensor than at their own multiples, and so have less in other places."""
    made = compiled(two_abreast, 64, 1000, 4096)
    assert [known.last for known in made.maps] == [None, None, Last(1, 80, 0), None, Last(1, 80, 64)]
    begin = 80 * block
    behind = begin + 64 if begin + 64 < extent else 0
    columns = rows_of(extent - begin, 64, 0) + rows_of(extent - behind, 16, 0)
    rows = 64 if extent >= 64 else extent
    assert awaited(made, extent, (0, block)) == 128 * (rows + columns)
    assert (made.spilled_bytes, hazards.check(made)) == (0, None)


def test_code_for_the_consumers_is_the_same():
    def calculating(made):
        return re.findall(r"HGMMA\S+", made.sass)

    assert calculating(compiled(product, 40, 4096, 4096)) == calculating(compiled(product, 64, 4096, 4096))


def test_blocks_that_load_together_load_whole_tiles():
    alone = compiled(persistent, 1000, 1000, 4096, (128, 256), num_blocks=4)
    together = compiled(persistent, 1000, 1000, 4096, (128, 256), num_blocks=4, cluster=(2, 1))
    assert (lasts(alone), lasts(together)) == ([0, 1], [0])
    assert (alone.ptx.count(CLEARED), together.ptx.count(CLEARED)) == (2, 1)


def test_loops_whose_stages_have_other_tiles():
    made = compiled(two_loops, 40, 72, 4096)
    assert lasts(made) == [0, 1], "their boxes are the same"
    assert made.ptx.count(CLEARED) == 1 + 1 + 2 + 2, "each zeroes what does not come of its own tiles, by panels"
    assert made.spilled_bytes == 0
    assert hazards.check(made) is None


def test_it_is_kept():
    made = compiled(product, 40, 72, 4096)
    assert CompiledKernel.from_bytes(made.to_bytes()).maps == made.maps
