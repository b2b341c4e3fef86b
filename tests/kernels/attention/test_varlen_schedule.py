"""Where the tiles of packed sequences are, and what they see, against what is counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.kernels._attention.mask import masks_of
from tilekit.kernels._attention.varlen_backward import _of_rows
from tilekit.kernels._attention.varlen_schedule import visits_of

ROWS, COLUMNS = 32, 16


def found(starts, other_starts, length, other_length, masks):
    """The table of visits."""

    def new(spec):
        return api.full(spec.shape, -7, spec.dtype).sync()

    packed, others = (
        (n, api.from_host(np.array(x, np.int32)).sync()) for n, x in ((length, starts), (other_length, other_starts))
    )
    steps = visits_of(new, ROWS, COLUMNS, packed, others, masks)
    try:
        while True:
            next(steps).sync()
    except StopIteration as stop:
        return stop.value


def tiles_of(height, width, masks):
    """Of each tile of rows the first tile of columns that it sees any of; of which it sees all; and behind the last."""
    row, column = np.arange(height)[:, None] + width - height, np.arange(width)[None, :]
    seen = np.ones((height, width), bool)
    if masks.below:
        seen &= column >= row - masks.left
    if masks.above:
        seen &= column <= row + masks.right
    for top in range(0, height, ROWS):
        tiles = [seen[top : top + ROWS, left : left + COLUMNS] for left in range(0, width, COLUMNS)]
        some = [n for n, tile in enumerate(tiles) if tile.any()]
        # A tile of columns is whole if all rows would see all of it, if there were so many of both.
        whole = [n for n, tile in enumerate(tiles) if tile.all() and tile.shape[1] == COLUMNS]
        yield some, whole


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 20}, {"window": 70, "causal": True}], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_every_tile_is_visited_once(device, seed, options):
    lengths, others = np.random.default_rng(seed).integers(0, 200, (2, 24))
    lengths[:8], others[:8] = (70, 0, 5, 32, 33, 160, 1, 64), (70, 9, 130, 32, 0, 100, 40, 64)
    starts, other_starts = (np.cumsum([begin, *each]) for begin, each in ((6, lengths), (0, others)))
    length, masks = starts[-1] + 40, masks_of("", options.get("causal", False), options.get("window"))
    table = found(starts, other_starts, length, other_starts[-1], masks).to_host().sync()
    used = [row for row in table if row[0] >= 0]
    # What is before the first sequence and behind the last are parts too, which see nothing.
    wanted = [(0, 0), *((n, b + 1) for b, size in enumerate(lengths) for n in range(-(-size // ROWS))), (0, 25), (1, 25)]
    assert [tuple(row[:2]) for row in used] == wanted
    ends = [0, *starts, length]
    for tile, part, begin, end, other_begin, other_end, first, low, high, last, *_ in used:
        assert (begin, end) == (ends[part], ends[part + 1])
        if part in (0, 25):
            assert other_begin == other_end == first == last == 0
            continue
        assert (other_begin, other_end) == tuple(other_starts[part - 1 : part + 1])
        some, whole = list(tiles_of(end - begin, other_end - other_begin, masks))[tile]
        assert set(some) <= set(range(first, last))
        assert last - first <= len(some) + 1, "nearly nothing is visited in vain"
        assert set(range(low, high)) <= set(whole), "no whole tile is cut"
        assert first <= low <= high <= last
        if (tile + 1) * ROWS <= end - begin:  # the last one counts as if it were full
            assert set(whole) == set(range(low, high))


@pytest.mark.parametrize("starts", [[0, 90, 30, 100], [-50, 20, 2**31 - 1, 100], [2**31 - 1, -(2**31), 70, -5], [7]], ids=str)
def test_starts_that_make_no_sense_give_tiles_inside(device, starts):
    for row in found(starts, starts, 100, 80, masks_of("", True, 30)).to_host().sync():
        tile, _, begin, end, other_begin, other_end, first, low, high, last, *_ = row
        assert 0 <= begin <= end <= 100
        assert 0 <= other_begin <= other_end <= 80
        assert tile < 0 or (tile * ROWS < end - begin and 0 <= first <= low <= high <= last)
        assert tile < 0 or (last - 1) * COLUMNS < other_end - other_begin


def test_queries_of_places_without_a_tile_have_no_weights(device):
    """Where starts decrease, keys may find such places; what was in memory before must not matter."""
    starts = [2**31 - 1, -(2**31), 70, -5]
    visits = found(starts, starts, 100, 100, masks_of("", False, None))
    places = visits.shape[0]
    delta, sums = (api.full((2, places * ROWS), float("nan"), tk.float32).sync() for _ in range(2))
    ones, lse = api.full((2, 100, 16), 1.0, tk.float16).sync(), api.zeros((2, 100)).sync()
    launch = _of_rows(delta.scattered(), sums.scattered(), ones, ones, lse, visits).generics(BM=ROWS, BD=16).num_warps(4)
    launch.grid((places, 2)).sync()
    assert not any(np.isnan(x.to_host().sync()).any() for x in (delta, sums))
    unused = visits.to_host().sync()[:, 0] < 0
    assert unused.any()
    assert (sums.to_host().sync().reshape(2, places, ROWS)[:, unused] == -np.inf).all()
