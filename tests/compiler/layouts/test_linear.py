"""Layouts: every element of a tile is somewhere, once but for copies; vectors are contiguous; small tiles leave threads idle."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilekit.compiler.layouts.linear import Config, Layout, choose_num_warps, choose_vec

configs = st.builds(Config, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16]))
shapes = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4).map(tuple)


def places(layout):
    """Who holds each element: coordinate -> [(register, thread)]."""
    found = defaultdict(list)
    for thread in range(1 << len(layout.thread)):
        start = layout.thread_coordinate(thread)
        for register, offset in enumerate(layout.coordinates()):
            found[tuple(a ^ b for a, b in zip(start, offset, strict=True))].append((register, thread))
    return found


@settings(max_examples=40)
@given(shapes, configs)
def test_every_element_has_one_owner(shape, config):
    layout = Layout.blocked(shape, config)
    found = places(layout)
    assert len(found) == layout.num_registers * config.num_threads >> layout.copies.bit_count()
    for coordinate, holders in found.items():
        assert all(0 <= c < n for c, n in zip(coordinate, shape, strict=True))
        assert len({register for register, _ in holders}) == 1
        assert len([thread for _, thread in holders if not thread & layout.copies]) == 1
    total = 1
    for n in shape:
        total *= n
    assert len(found) == total


@settings(max_examples=40)
@given(shapes, configs)
def test_a_run_steps_by_one(shape, config):
    layout = Layout.blocked(shape, config)
    coordinates = layout.coordinates()
    for dim in range(len(shape)):
        run = layout.run(dim)
        for registers in layout.chunks(run):
            steps = [coordinates[r] for r in registers]
            assert [s[dim] - steps[0][dim] for s in steps] == list(range(len(registers)))
            assert {s[:dim] + s[dim + 1 :] for s in steps} == {steps[0][:dim] + steps[0][dim + 1 :]}
        assert sorted(r for chunk in layout.chunks(run) for r in chunk) == list(range(layout.num_registers))


def test_the_picture_in_the_docstring():
    layout = Layout.blocked((64,), Config(num_warps=1, vec=2))
    assert (layout.reg, layout.lane, layout.warp) == (((1,),), ((2,), (4,), (8,), (16,), (32,)), ())
    assert layout.thread_coordinate(31) == (62,)


def test_a_row_of_vectors_then_lanes_then_warps_then_registers():
    layout = Layout.blocked((2, 1024), Config(num_warps=4, vec=4))
    assert layout.run(1) == (0, 1)
    assert layout.thread_coordinate(1) == (0, 4)
    assert layout.thread_coordinate(32) == (0, 128)
    assert layout.coordinates()[4] == (0, 512)
    assert layout.coordinates()[8] == (1, 0)
    assert layout.copies == 0


def test_a_tile_smaller_than_the_block_is_copied():
    layout = Layout.blocked((16,), Config(num_warps=2, vec=4))
    assert layout.num_registers == 4
    assert layout.copies == 0b111100
    assert Layout.blocked((1,), Config(1, 4)).num_registers == 1


def test_equal_layouts_are_equal():
    a, b = (Layout.blocked((8, 8), Config(1, 2)) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert str(a) == "8x8 reg[0,1] lane[0,2 0,4 1,0 2,0 4,0] warp[]"


def test_shapes_are_powers_of_two():
    with pytest.raises(ValueError, match="24 is no power of two"):
        Layout.blocked((24,), Config(1, 1))


@pytest.mark.parametrize(
    ("itemsize", "tile", "warps"), [(4, 1024, 4), (2, 1024, 2), (8, 1024, 8), (1, 1024, 1), (4, 1, 1), (4, 1 << 20, 8)]
)
def test_warps_give_each_thread_two_vectors(itemsize, tile, warps):
    assert choose_num_warps(tile, choose_vec(itemsize)) == warps


# ------------------------------------------------------------------------------------------------------ the same places, renamed


def renamings(draw):
    """A layout that is the result of some renamings of a blocked one, so that its bits lie anywhere."""
    shape = draw(shapes)
    layout = Layout.blocked(shape, draw(configs), draw(st.sampled_from([None, *range(len(shape))])))
    return layout.permute(tuple(draw(st.permutations(range(len(shape))))))


layouts = st.composite(renamings)()


@settings(max_examples=60)
@given(layouts, st.data())
def test_renaming_moves_no_element(layout, data):
    total = 1
    for n in layout.shape:
        total *= n
    flat = layout.reshape((total,))
    for thread in (0, 1, 31):
        for at, (index,) in zip(layout.coordinates(), flat.coordinates(), strict=True):
            at = [a ^ b for a, b in zip(at, layout.thread_coordinate(thread), strict=True)]
            row_major = 0
            for extent, a in zip(layout.shape, at, strict=True):
                row_major = row_major * extent + a
            assert row_major == index ^ flat.thread_coordinate(thread)[0]
    axis = data.draw(st.integers(0, len(layout.shape)))
    assert layout.expand_dims(axis).without((axis,)) == layout
    assert flat.reshape(layout.shape) == layout


@settings(max_examples=60)
@given(layouts, st.data())
def test_what_is_left_of_a_reduction_broadcasts_back_without_moving(layout, data):
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    small = layout.without((axis,)).expand_dims(axis)
    registers = layout.broadcast(small)
    assert registers is not None
    for at, register in zip(layout.coordinates(), registers, strict=True):
        assert small.coordinates()[register] == tuple(0 if d == axis else a for d, a in enumerate(at))


@settings(max_examples=60)
@given(layouts)
def test_every_bit_of_a_dimension_has_a_place(layout):
    for dim, extent in enumerate(layout.shape):
        assert 1 << len(layout.axis(dim)) == extent
    with pytest.raises(KeyError):
        layout.bit_of((layout.shape[0],) + (0,) * (len(layout.shape) - 1))
