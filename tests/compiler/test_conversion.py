"""Conversions between layouts: what is taken and put is the right element, and no bank is asked twice."""

import itertools

import pytest

from tilekit.compiler.conversion import Swizzle, wavefronts, within_threads
from tilekit.compiler.layout import Config, Layout

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
        for thread in range(32 * warps):
            for (register, flips), wanted in zip(choices, target.coordinates(), strict=True):
                for bit, flip in flips:
                    register ^= flip if thread >> bit & 1 else 0
                held, start = source.coordinates()[register], source.thread_coordinate(thread)
                assert tuple(a ^ b for a, b in zip(held, start, strict=True)) == tuple(
                    a ^ b for a, b in zip(wanted, target.thread_coordinate(thread), strict=True)
                )


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
            for registers in swizzle.registers(layout):
                starts = [swizzle.offset(layout.coordinates()[r]) for r in registers]
                assert starts == list(range(starts[0], starts[0] + len(registers)))
    assert moved


@pytest.mark.parametrize(("warps", "vec"), [(1, 1), (4, 4), (8, 16)])
def test_every_element_has_an_offset_of_its_own(warps, vec):
    for source, target in pairs(warps, vec):
        if within_threads(source, target) is None and len(source.shape) == 2:
            swizzle = Swizzle.between(source, target, 4)
            offsets = {swizzle.offset(at) for at in itertools.product(*map(range, source.shape))}
            assert offsets == set(range(source.shape[0] * source.shape[1]))
