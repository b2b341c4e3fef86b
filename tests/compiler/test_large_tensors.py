"""Kernels on tensors beyond 2^31 elements, as machine code: what counts them has 64 bits there, and 32 where that is enough."""

import re

import pytest

pytest.importorskip("numba.cuda", reason="compiles kernels")

import tilekit as tk
from tilekit import api

TARGETS = ["sm_80", "sm_90a"]
N = 3_000_000_005  # beyond 2^31, and of 1024 no multiple


@tk.kernel
def tiles_of(y: tk.Out, x: tk.In):
    y.store(tk.full(1, tk.num_tiles(x, 0, 1), tk.int64))


@tk.kernel
def extents_of(y: tk.Out, x: tk.In):
    y.store(tk.full(1, x.shape[0] + x.tiled_view(1).num_tiles(0) + x.tiles(1).shape[0], tk.int64))


@tk.kernel
def added_up(y: tk.Out, x: tk.In):
    total = tk.zeros(1024, tk.int32)
    for t in x.tiles(1024)[tk.bid(0) * 100 : -5]:
        total = total + t.astype(tk.int32)
    y.store(total + x.tiles(1024)[tk.bid(0)].astype(tk.int32))


@tk.kernel
def added_up_in_order(y: tk.Out, x: tk.In):
    total = tk.zeros((1, 16), tk.int32)
    for t in x.tiles((1, 16)):
        total = total + t.astype(tk.int32)
    y.store(total)


@tk.kernel
def piped(y: tk.Out, x: tk.In):
    total = tk.zeros((64, 64), tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))[:, tk.bid(0)]):
        total = total + t.astype(tk.float32)
    y.store(total)


@tk.kernel
def multiplied(y: tk.Out, x: tk.In, z: tk.In):
    total = tk.zeros((64, 64), tk.float32)
    for a, b in tk.pipelined(x.tiles((64, 64))[:, 0], z.slice(0, tk.bid(0) * 64).tiles((64, 64))[:, 0]):
        total = tk.mma(a, b, total)
    y.store(total)


@tk.kernel
def mapped(y: tk.Out, x: tk.In):
    for tile in y.tiles():
        y.store(tk.load(x, tile.index, y.tile_shape), tile)


@tk.kernel
def by_index(y: tk.InOut, x: tk.In, places: tk.In):
    at = tk.arange(1024, dtype=tk.int64, start=tk.bid(0) * 1024)
    t = tk.gather(x, at) + tk.gather(x, tk.load(places, tk.bid(0), 1024))
    tk.scatter(y, at, t)
    tk.atomic_add(y, at, 1)
    tk.store(y, tk.bid(0) * 3, 1)


@tk.kernel
def sliced(y: tk.Out, x: tk.In):
    part = x.slice(0, tk.bid(0) * 1000, 2_900_000_000)
    y.store(tk.load(part, tk.num_tiles(part, 0, 1024) - 1, 1024))


@tk.kernel
def windows(y: tk.Out, x: tk.In):
    view = x.tiled_view(1024, traversal_steps=512)
    y.store(view.load(view.num_tiles(0) - 1) + view.load(tk.bid(0)))


def m(*shape, dtype=tk.int8):
    return api.meta(shape, dtype)


SUM = m(1024, dtype=tk.int32).partition(1024)
BLOCK = m(64, 64, dtype=tk.float32).partition((64, 64))
LAUNCHES = {
    "tiles": lambda n: tiles_of(m(1, dtype=tk.int64).partition(1), m(n)),
    "extents": lambda n: extents_of(m(1, dtype=tk.int64).partition(1), m(n)),
    "a row of tiles": lambda n: added_up(SUM, m(n)),
    "all tiles": lambda n: added_up_in_order(m(1, 16, dtype=tk.int32).partition((1, 16)), m(n, 64)),
    "a pipeline": lambda n: piped(BLOCK, m(n, 128, dtype=tk.float16)),
    "a pipeline of a slice": lambda n: multiplied(BLOCK, m(n, 128, dtype=tk.float16), m(n, 128, dtype=tk.float16)),
    "a map": lambda n: mapped(m(n).partition(1024).map(num_blocks=132), m(n)),
    "a map in clusters": lambda n: mapped(m(n // 2 * 2).partition(1).map(num_blocks=132, group=8, cluster=2), m(n)),
    "by index": lambda n: by_index(m(n, dtype=tk.int32).scattered(), m(n, dtype=tk.int32), m(n, dtype=tk.int64)).grid(n // 1024),
    "a slice": lambda n: sliced(m(1 << 20).partition(1024), m(n)),
    "windows": lambda n: windows(m(1 << 20).partition(1024), m(n)),
}  # fmt: skip


def parameters(ptx, width):
    return len(re.findall(rf"\.param \.u{width}", ptx[: ptx.index("\n)")]))


@pytest.mark.parametrize("name", ["tiles", "a row of tiles", "a map", "by index"])
def test_extents_have_64_bits_where_one_is_large_and_32_elsewhere(name):
    large, small = (LAUNCHES[name](n).compile(target="sm_90a") for n in (N, 10_000_001))
    assert large.local_bytes == small.local_bytes == 0
    assert small.registers <= large.registers + 2
    moved = parameters(small.ptx, 32) - parameters(large.ptx, 32)
    assert moved >= 1
    assert parameters(large.ptx, 64) - parameters(small.ptx, 64) == moved


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_way_to_a_tile_compiles(name):
    target = "sm_80" if name in ("a pipeline", "windows", "a map") else "sm_90a"
    assert LAUNCHES[name](N).compile(target=target).local_bytes == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_of_tiles_is_not_cut_to_32_bits(target):
    """bugs/r09: the low half of the extent was read, and extended by its sign."""
    ptx = LAUNCHES["tiles"](N).compile(target=target).ptx
    assert "ld.param.s32" not in ptx
    assert "cvt.s64.s32" not in ptx


def test_the_tensor_memory_accelerator_brings_what_has_coordinates_of_32_bits():
    maps = {n: len(LAUNCHES["a pipeline"](n).compile(target="sm_90a").maps) for n in (1 << 26, 2**31 - 2**24, 1 << 32)}
    assert maps == {1 << 26: 1, 2**31 - 2**24: 1, 1 << 32: 0}
    assert "cp.async" in LAUNCHES["a pipeline"](1 << 32).compile(target="sm_90a").ptx


def test_tiles_of_several_dimensions_are_counted_in_64_bits_where_they_are_so_many():
    """No extent needs it, but their product does."""

    def counters(rows):
        ptx = added_up_in_order(m(1, 16, dtype=tk.int32).partition((1, 16)), m(rows, rows)).compile(target="sm_90a").ptx
        return len(re.findall(r"mul\.\w+\.s64|mul\.wide|mul\.lo\.u64", ptx)), ".param .u32" in ptx

    assert counters(70_000)[1]
    assert counters(70_000)[0] > counters(30_000)[0]


def test_a_map_of_2_to_the_31_tiles_counts_them_in_64_bits():
    def width(rows):
        part = m(rows, 1 << 14).partition((1, 1)).map(group=(8, 1), num_blocks=132)
        ptx = mapped(part, m(rows, 1 << 14)).compile(target="sm_90a").ptx
        return max(re.findall(r"setp\.\w+\.(u\d\d)", ptx), default=None)

    assert width(1 << 16) == "u32"
    assert width(1 << 17) == "u64"
