"""Conversions between layouts: what is taken and put is the right element, and no bank is asked twice."""

import itertools

import numpy as np
import pytest

from tilekit.compiler.layouts.conversion import (
    Swizzle,
    wavefronts,
    with_lanes,
    with_registers_first,
    with_runs,
    within_threads,
    within_warps,
)
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.compiler.layouts.mma import accumulator, sum_of_products, warpgroup_accumulator

SHAPES = [(128,), (64, 64), (32, 32), (128, 16), (16, 256), (1, 1024), (4, 8), (2, 2)]


def layouts(shape, config):
    """Layouts that tiles of this shape come in: loaded, transposed, left by reductions, from a broadcast row."""
    made = [Layout.blocked(shape, config, dim) for dim in range(len(shape))]
    if len(shape) == 2:
        made.append(Layout.blocked(shape[::-1], config).permute((1, 0)))
        made.append(Layout.blocked((shape[0], 4, shape[1]), config).without((1,)))
    return made


def pairs(warps, vec):
    config = Config(warps, vec)
    for shape in SHAPES:
        yield from ((a, b) for a, b in itertools.permutations(layouts(shape, config), 2) if a != b)


@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("vec", [1, 2, 4, 8, 16])
def test_elements_within_a_thread(warps, vec):
    for source, target in pairs(warps, vec):
        choices = within_threads(source, target)
        if choices is None:
            continue
        held, taken = source.coordinates(), target.coordinates()
        for thread in range(32 * warps):
            start, end = source.thread_coordinate(thread), target.thread_coordinate(thread)
            for (register, flips), wanted in zip(choices, taken, strict=True):
                for bit, flip in flips:
                    register ^= flip if thread >> bit & 1 else 0
                assert all(a ^ b == c ^ d for a, b, c, d in zip(held[register], start, wanted, end, strict=True))


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("vec", [1, 4, 8, 16])
def test_shared_memory_without_bank_conflicts(itemsize, warps, vec):
    moved = 0
    for source, target in pairs(warps, vec):
        if within_threads(source, target) is not None:
            continue
        moved += 1
        swizzle = Swizzle.between(source, target, itemsize)
        for layout in (source, target):
            widest = 32 * (itemsize << len(swizzle.shared))
            assert wavefronts(swizzle, layout, itemsize) == max(1, widest // 128)
            coordinates = layout.coordinates()
            for registers in swizzle.registers(layout):
                starts = [swizzle.offset(coordinates[r]) for r in registers]
                assert starts == list(range(starts[0], starts[0] + len(registers)))
    assert moved


@pytest.mark.parametrize(("warps", "vec"), [(1, 1), (4, 4), (8, 16)])
def test_every_element_has_an_offset_of_its_own(warps, vec):
    for source, target in pairs(warps, vec):
        if within_threads(source, target) is None and len(source.shape) == 2:
            swizzle = Swizzle.between(source, target, 4)
            offsets = {swizzle.offset(at) for at in itertools.product(*map(range, source.shape))}
            assert offsets == set(range(source.shape[0] * source.shape[1]))


# ------------------------------------------------------------------------------------------------------------------ by shuffles


def held(layout):
    """What is in each register of each thread of the last warp: coordinates by `[lane][register]`."""
    coordinates = np.array(layout.coordinates())
    first = 32 * ((1 << len(layout.warp)) - 1)
    return np.stack([coordinates ^ np.array(layout.thread_coordinate(first + lane)) for lane in range(32)])


def swapped(elements, swaps):
    """What lanes hold when bits of the register number and of the lane have changed places: a shuffle for each pair of registers.

    A lane whose bit is not set sends the upper register of a pair, and gets the other lane's lower one for it, and vice versa.
    """
    lanes, registers = np.arange(elements.shape[0]), np.arange(elements.shape[1])
    for reg, lane in swaps:
        sent = elements[lanes ^ 1 << lane][:, registers ^ 1 << reg]
        stays = (lanes >> lane & 1)[:, None] == registers >> reg & 1
        elements = np.where(stays[..., None], elements, sent)
    return elements


def products():
    """Layouts that products come in."""
    shapes = [(16, 8), (16, 16), (64, 64), (64, 256), (128, 32), (32, 128), (2, 32, 64)]
    made = [accumulator(shape, warps, size) for shape in shapes for warps in (1, 4, 8) for size in (2, 4)]
    made += [warpgroup_accumulator(shape, warps) for shape in shapes for warps in (4, 8)]
    return [layout for layout in made if layout is not None]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_results_of_products_get_runs_by_shuffles(itemsize):
    """16 bytes of a row in each thread where the row has them, and where lanes and registers walk it that far."""
    widened = 0
    for source in products():
        for dim in range(len(source.shape)):
            target = with_runs(source, dim, itemsize)
            swaps = within_warps(source, target)
            assert swaps is not None
            np.testing.assert_array_equal(swapped(held(source), swaps), held(target))
            assert target.warp == source.warp
            assert sorted(target.reg + target.lane) == sorted(source.reg + source.lane)
            before, after = (itemsize << len(layout.run(dim)) for layout in (source, target))
            assert before <= after
            assert after <= max(16, before)
            assert (source == target) == (not swaps)
            assert (before == after) == (not swaps), "each exchange lengthens the run"
            widened += bool(swaps)
    assert widened > 10


@pytest.mark.parametrize(("itemsize", "run"), [(1, 16), (2, 8), (4, 4), (8, 2)])
def test_runs_of_a_warpgroups_result(itemsize, run):
    """Two neighbours in a thread, and 8 in four lanes, become what 16 bytes take."""
    source = warpgroup_accumulator((64, 128), 4)
    assert source.run(1) == (0,)
    assert 1 << len(with_runs(source, 1, itemsize).run(1)) == run


@pytest.mark.parametrize("run", [1, 2, 4])
def test_results_of_products_lie_along_lanes_by_shuffles(run):
    """As far as lanes and registers walk the dimension, neighbours are in neighbouring lanes."""
    for source in products():
        for dim in range(len(source.shape)):
            target = with_lanes(source, dim, run)
            swaps = within_warps(source, target)
            assert swaps is not None
            np.testing.assert_array_equal(swapped(held(source), swaps), held(target))
            assert target.warp == source.warp
    source = warpgroup_accumulator((64, 128), 4)
    assert with_lanes(source, 1, run).stretch(1) == 32 * run
    assert len(with_lanes(source, 1, run).run(1)) == run.bit_length() - 1


@pytest.mark.parametrize(
    ("itemsize", "nbytes", "lanes"), [(2, 16, 16), (2, 8, 32), (2, 4, 32), (4, 16, 16), (4, 8, 32), (1, 16, 16)]
)
def test_results_of_products_have_long_pieces_of_rows_by_shuffles(itemsize, nbytes, lanes):
    """As many bytes of a row in each thread as an access takes, and neighbours in as many lanes as walk the row."""
    for source in products():
        for dim in range(len(source.shape)):
            target = with_lanes(with_runs(source, dim, itemsize, nbytes), dim, nbytes // itemsize, lanes)
            swaps = within_warps(source, target)
            if swaps is not None:
                np.testing.assert_array_equal(swapped(held(source), swaps), held(target))
    source = warpgroup_accumulator((64, 256), 4)
    target = with_lanes(with_runs(source, 1, itemsize, nbytes), 1, nbytes // itemsize, lanes)
    assert within_warps(source, target) is not None
    assert len(target.run(1)) == (nbytes // itemsize).bit_length() - 1
    assert target.stretch(1) * itemsize >= nbytes * lanes


def test_conversions_that_are_no_exchange_within_warps():
    source = warpgroup_accumulator((64, 128), 8)
    reg, lane, warp = source.reg, source.lane, source.warp
    assert within_warps(source, source) == []
    exchanged = Layout(source.shape, (lane[2], *reg[1:]), (*lane[:2], reg[0], *lane[3:]), warp)
    assert within_warps(source, exchanged) == [(0, 2)]
    np.testing.assert_array_equal(swapped(held(source), [(0, 2)]), held(exchanged))
    twice = Layout(source.shape, (lane[2], lane[0], *reg[2:]), (reg[1], lane[1], reg[0], *lane[3:]), warp)
    assert sorted(within_warps(source, twice)) == [(0, 2), (1, 0)]
    np.testing.assert_array_equal(swapped(held(source), within_warps(source, twice)), held(twice))
    others = {
        "another warp": Layout(source.shape, (warp[0], *reg[1:]), lane, (reg[0], *warp[1:])),
        "registers in another order": Layout(source.shape, (reg[1], reg[0], *reg[2:]), lane, warp),
        "lanes in another order": Layout(source.shape, reg, (lane[1], lane[0], *lane[2:]), warp),
        "a circle of three": Layout(source.shape, (lane[0], reg[0], *reg[2:]), (reg[1], *lane[1:]), warp),
        "two that cross": Layout(source.shape, (lane[1], lane[0], *reg[2:]), (*reg[:2], *lane[2:]), warp),
        "registers besides": Layout(source.shape, (lane[2], reg[2], reg[1], *reg[3:]), (*lane[:2], reg[0], *lane[3:]), warp),
        "fewer registers": Layout(source.shape, reg[1:], (reg[0], *lane[1:]), warp),
        "a copy": Layout(source.shape, reg, ((0, 0), *lane[1:]), warp),
        "from a copy": Layout(source.shape, (lane[0], *reg[1:]), ((0, 0), *lane[1:]), warp),
    }
    for name, target in others.items():
        assert within_warps(source, target) is None, name
    assert within_warps(others["a copy"], others["from a copy"]) is None
    assert within_warps(others["a copy"], source) is None


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_tiles_as_they_are_loaded_get_runs_by_shuffles_too(itemsize):
    for warps, vec in itertools.product((1, 4), (1, 2, 8)):
        for shape in SHAPES:
            for source in layouts(shape, Config(warps, vec)):
                for dim in range(len(source.shape)):
                    target = with_runs(source, dim, itemsize)
                    swaps = within_warps(source, target)
                    assert swaps is not None
                    if source != target:
                        np.testing.assert_array_equal(swapped(held(source), swaps), held(target))
                        assert len(target.run(dim)) > len(source.run(dim))


@pytest.mark.parametrize(
    ("shape", "depth", "warps"), [((128, 128), 16, 4), ((64, 64), 32, 2), ((128, 64), 32, 4), ((32, 64), 8, 1)]
)
@pytest.mark.parametrize("vec", [1, 4])
def test_operands_are_read_across_k(shape, depth, warps, vec):
    """Each element has a place of its own, of which 16 bytes are read at once, whichever dimension was loaded together."""
    for kept, target in enumerate(sum_of_products(shape, depth, warps)):
        deep = [v for v in target.reg if v[1 - kept]]
        for fastest in range(2):
            source = Layout.blocked(target.shape, Config(warps, vec), fastest)
            swizzle = Swizzle.between(source, target, 4, deep, read_wide=True)
            assert len({swizzle.offset(at) for at in np.ndindex(target.shape)}) == np.prod(target.shape)
            assert len(swizzle.shared) == 2 and not set(swizzle.shared) & set(deep)
            read, written = swizzle.within(target), swizzle.within(source)
            assert wavefronts(read, target, 4) <= 4
            for side, layout in ((read, target), (written, source)):
                for group in side.registers(layout):
                    offsets = [swizzle.offset(layout.coordinates()[register]) for register in group]
                    assert offsets == list(range(offsets[0], offsets[0] + len(group)))


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(2048,), (2, 1024)])
def test_registers_in_a_row_are_read_wide_without_conflicts(shape, itemsize):
    """As scans have them: one side accesses 16 bytes in shared memory, the other what lanes have of rows that begin anywhere."""
    dim = len(shape) - 1
    for warps in (1, 4):
        source = Layout.blocked(shape, Config(warps, 1))
        target = with_registers_first(source, dim)
        run = 1 << len([place for place in source.axis(dim) if place.kind == "reg"])
        assert 1 << len(target.run(dim)) >= run
        assert sorted(target.reg + target.thread) == sorted(source.reg + source.thread)
        swizzle = Swizzle.between(source, target, itemsize, read_wide=True)
        assert len({swizzle.offset(at) for at in np.ndindex(shape)}) == np.prod(shape)
        at_once = itemsize << len(swizzle.shared)
        assert at_once >= min(16, run * itemsize)
        assert wavefronts(swizzle, target, itemsize) == max(1, at_once * 32 // 128)
        assert wavefronts(swizzle.within(source), source, itemsize) <= max(1, itemsize * 32 // 128)
