"""What is too large for shared memory goes through it in parts: carried out by a builder that computes for all threads of a block
at once, with little shared memory, and compiled for tiles that no GPU has the memory for.
"""

import itertools

import numpy as np
import pytest
from emulated import DRAIN, Block, Fragment, Value, emulate, gathered, places, run, same, sample, spread

import tilekit as tk
from tilekit.compiler.codegen import convert_layout as relayout
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.compilation import compiling
from tilekit.compiler.codegen.types import i32
from tilekit.compiler.layouts.conversion import Swizzle, parts, wavefronts, within_threads, within_warps
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.compiler.layouts.mma import accumulator, warpgroup_accumulator
from tilekit.compiler.lower import atomic, counting, reduction, scanning, sorting


@pytest.fixture
def small(monkeypatch):
    """Makes shared memory as small as is said."""
    emulate(monkeypatch, [atomic, counting, reduction, relayout, scanning, sorting])
    asked = []

    def asm(block, text, constraints, result, args, *, effect):
        assert text == "red.shared.add.u32 [$0], 1;"
        np.add.at(block.memory.view(np.uint32), block.whole(args[0].bits).astype(int) // 4, 1)

    emulated = shared.room

    def make(nbytes):
        def room(block, wanted, what):
            assert wanted <= nbytes
            asked.append(wanted)
            return emulated(block, wanted, what)

        monkeypatch.setattr(shared, "block_bytes", lambda: nbytes)
        monkeypatch.setattr(shared, "room", room)
        monkeypatch.setattr(shared, "drain", lambda block: Value(i32, DRAIN))
        monkeypatch.setattr(counting, "asm", asm)
        return asked

    return make


def layouts(shape, config):
    """Layouts that tiles of this shape come in: loaded, transposed, left by a reduction, results of products."""
    made = [Layout.blocked(shape, config, dim) for dim in range(len(shape))]
    made.append(Layout.blocked(shape[::-1], config).permute(tuple(reversed(range(len(shape))))))
    if len(shape) == 2:
        made.append(Layout.blocked((shape[0], 4, shape[1]), config).without((1,)))
        made += [accumulator(shape, config.num_warps, size) for size in (2, 4)]
        made.append(warpgroup_accumulator(shape, config.num_warps) if config.num_warps >= 4 else None)
    return list(dict.fromkeys(layout for layout in made if layout is not None))


def pairs():
    """Conversions that go through shared memory."""
    for shape, warps, vec in [((64, 64), 4, 4), ((64, 64), 8, 16), ((128, 16), 1, 2), ((4, 8, 32), 2, 4), ((16, 256), 4, 8)]:
        config = Config(warps, vec)
        for source, target in itertools.permutations(layouts(shape, config), 2):
            if within_threads(source, target) is None and within_warps(source, target) is None:
                yield source, target, config


PAIRS = list(pairs())
DTYPES = (tk.bool_, tk.int8, tk.float8_e4m3fn, tk.float16, tk.bfloat16, tk.float32, tk.int64, tk.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_conversions_in_parts(small, dtype):
    for place, (source, target, config) in enumerate(PAIRS[DTYPES.index(dtype) :: 14]):
        for limit in ((512, 4096), (2048,))[place % 2]:
            small(limit)
            block, array = Block(config.num_threads), sample(dtype, source.shape)
            with compiling(config):
                made = relayout.relayout(block, spread(block, source, array), dtype, source, target)
            same(gathered(block, target, Fragment(made), dtype), array)


def test_a_tile_that_fits_goes_at_once(small):
    for source, target, config in PAIRS[::15]:
        block, array = Block(config.num_threads), sample(tk.float32, source.shape)
        asked = small(4 * array.size)
        asked.clear()
        with compiling(config):
            relayout.relayout(block, spread(block, source, array), tk.float32, source, target)
        assert asked == [4 * array.size]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_parts_meet_no_more_bank_conflicts_than_the_whole(itemsize):
    """All accesses that threads with elements of a part make are as wide as those of the whole, and free of conflicts."""
    free = 0
    for source, target, _ in PAIRS:
        size = itemsize * int(np.prod(source.shape))
        bits = parts(source, target, itemsize, size // 2)
        assert len(bits) == 1
        whole = Swizzle.between(source, target, itemsize)
        if "lane" in {side.bit_of(bits[0]).kind for side in (source, target)} or bits[0] in whole.shared:
            continue  # nothing else is left: lanes have nothing to do, or accesses are narrower
        free += 1
        part = Swizzle.between(source.cut(bits), target.cut(bits), itemsize)
        assert len(part.shared) == len(whole.shared)
        for layout in (source, target):
            assert wavefronts(part, layout.cut(bits), itemsize) == wavefronts(whole, layout, itemsize)
    assert free > len(PAIRS) // 2


def test_parts_are_numbered_by_bits_that_cost_least():
    """A transposed tile: rows that one side has in registers, and the other in warps, and the other way round."""
    config = Config(16, 4)
    source = Layout.blocked((256, 256), config)
    target = Layout.blocked((256, 256), config).permute((1, 0))
    assert parts(source, target, 4, 1 << 18) == ()
    bits = parts(source, target, 4, 1 << 16)
    kinds = [{side.bit_of(v).kind for side in (source, target)} for v in bits]
    assert kinds == [{"reg", "warp"}] * 2
    # A tile whose registers only walk other rows on both sides.
    same_rows = Layout((256, 256), source.reg, tuple(reversed(source.lane)), source.warp)
    (bit,) = parts(source, same_rows, 4, 1 << 17)
    assert bit in source.reg
    assert bit in same_rows.reg
    assert bit not in Swizzle.between(source, same_rows, 4).shared


SCANNED = [((64, 32), 0, 4, 4), ((32, 64), 0, 8, 4), ((2, 64, 8), 1, 4, 2), ((2048,), 0, 8, 4)]


@pytest.mark.parametrize(("shape", "axis", "warps", "vec"), SCANNED)
def test_scans_and_folds_in_parts(small, shape, axis, warps, vec):
    config = Config(warps, vec)
    layout = Layout.blocked(shape, config)
    for limit, dtype in itertools.product((2048, 4096), (tk.int8, tk.int32, tk.uint64)):
        small(limit)
        x, wide = sample(dtype, shape), {tk.int8: tk.int32}.get(dtype, dtype)
        for reverse in (False, True):
            wanted = np.cumsum(np.flip(x, axis) if reverse else x, axis, dtype=wide)
            same(run(tk.cumsum, layout, config, x, axis, reverse), np.flip(wanted, axis) if reverse else wanted)
        same(run(tk.sum, layout, config, x, axis, False), np.sum(x, axis, dtype=wide))
        same(run(tk.argmax, layout, config, x, axis, False, True), np.argmax(x, axis).astype(np.int32))


def test_folds_take_turns(small):
    """Of 64 columns of uint64 what 4 warps have: 2 KB, in 512 bytes at a time."""
    config = Config(4, 2)
    layout = Layout((16, 64), ((0, 1), (0, 8), (8, 0)), ((0, 2), (0, 4), (0, 16), (0, 32), (1, 0)), ((2, 0), (4, 0)))
    x, asked = sample(tk.uint64, layout.shape), small(1024)
    same(run(tk.sum, layout, config, x, 0, False), np.sum(x, 0, dtype=np.uint64))
    assert asked == [1024, 1024]


@pytest.mark.parametrize("bins", [512, 1024])
def test_counts_in_parts(small, bins):
    config, x = Config(2, 4), np.random.default_rng(4).integers(-5, 1100, (1024,))
    asked = small(1024)
    for dtype in (tk.int32, tk.int64, tk.uint16):
        given = x.astype(dtype)
        inside = given.astype(np.int64)
        wanted = np.bincount(inside[(inside >= 0) & (inside < bins)], minlength=bins).astype(np.int32)
        same(run(tk.histogram, Layout.blocked((1024,), config), config, given, bins, None), wanted)
    assert asked == [1024] * (3 * bins // 256)


def test_sorts_never_need_the_whole_tile(small):
    config = Config(8, 4)
    layout = Layout.blocked((2048,), config)
    small(2048 * 4)
    for dtype in (tk.float32, tk.int8):
        x = sample(dtype, (2048,))
        with np.errstate(all="ignore"):
            same(run(tk.sort, layout, config, x, 0, False), np.sort(x))
        same(run(tk.argsort, layout, config, x, 0, False), places(x, 0, False).astype(np.int32))


@pytest.mark.parametrize("dtype", [tk.int8, tk.float32, tk.float64], ids=str)
def test_what_owners_have_comes_in_parts(small, dtype):
    """Copies in other warps, of 8 elements each."""
    config, layout = Config(2, 1), Layout((256,), ((1,), (2,), (4,)), ((8,), (16,), (32,), (64,), (128,)), ((0,),))
    block, array = Block(64), sample(dtype, (256,))
    held = spread(block, layout, array)
    asked = small(128 * dtype.itemsize)
    spoilt = [Value(e.type, np.where(block.thread < 32, e.bits, 0)) for e in held]
    with compiling(config):
        made = atomic._from_owners(block, spoilt, dtype, layout, 64)
    same(gathered(block, layout, Fragment(made), dtype), array)
    assert asked == [128 * dtype.itemsize] * 4
