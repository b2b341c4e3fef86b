"""Attention against NumPy in float64: masks, grouped queries, lengths, head sizes; and what is compiled of it."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from attending import TOLERANCE, compiled, gradients, right
from warpgroup_code import products

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels._attention import backward, forward
from tilekit.kernels._attention.mask import Masks, masks_of

f = api.from_host
BF16 = ml_dtypes.bfloat16


def operands(q_shape, k_shape, dtype=np.float32, seed=0, factor=1.0):
    random = np.random.default_rng(seed)
    return [(factor * random.standard_normal(s)).astype(dtype) for s in (q_shape, k_shape, k_shape)]


def check(q, k, v, **options):
    y, lse = kernels.attention(f(q), f(k), f(v), return_lse=True, **options).sync()
    y, lse = y.to_host().sync(), lse.to_host().sync()
    options.pop("precision", None)
    wanted, sums = right(q, k, v, **options)
    # Scores are rounded to float32 before they become exponents.
    tolerance = TOLERANCE[q.dtype] + 2e-7 * np.abs(sums[~np.isneginf(sums)]).max()
    assert y.dtype == q.dtype
    assert np.abs(y.astype(np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()
    blind = np.isneginf(sums)
    assert np.array_equal(np.isneginf(lse), blind)
    assert np.abs(lse[~blind] - sums[~blind]).max() <= 1e-5 * (1 + np.abs(sums[~blind]).max())
    assert (y[blind] == 0).all()


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_head_sizes(device, dtype, size, causal):
    check(*operands((2, 2, 200, size), (2, 2, 200, size), dtype), causal=causal)


@pytest.mark.parametrize("size", [1, 16, 32, 40, 72, 80, 96, 192, 200])
def test_other_head_sizes(device, size):
    check(*operands((1, 2, 70, size), (1, 2, 150, size), np.float16), causal=True)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 300), (128, 128), (129, 127), (300, 77), (64, 1000), (500, 500)], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 40}, {"window": 200, "causal": True}], ids=str)
def test_lengths_and_masks(device, lengths, options):
    """With a causal mask the last query stands at the last key; earlier ones may see none."""
    queries, keys = lengths
    check(*operands((1, 2, queries, 64), (1, 2, keys, 64), np.float16), **options)


# Neither are all multiples of tiles of 256 queries, nor of 64 keys.
LENGTHS = [(1, 64), (64, 77), (256, 256), (257, 300), (300, 362), (300, 1000), (500, 513), (700, 701), (513, 4000)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_tiles_of_many_queries(device, monkeypatch, lengths, causal):
    monkeypatch.setattr(forward, "_TALL_TIME", 0)
    queries, keys = lengths
    check(*operands((1, 4, queries, 64), (1, 2, keys, 64), np.float16), causal=causal)


@pytest.mark.parametrize("parts", [2, 3, 64])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 1000), (70, 300), (300, 77), (129, 2000)], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 40}, {"window": 200, "causal": True}], ids=str)
def test_keys_are_taken_apart(device, monkeypatch, parts, lengths, options):
    """Some parts have no keys, and some queries see none at all."""
    monkeypatch.setattr(forward, "_planned", lambda tiling, *_: (tiling, parts))
    queries, keys = lengths
    check(*operands((2, 4, queries, 64), (2, 2, keys, 64), np.float16), **options)


def test_parts_are_written_to_any_result(device, monkeypatch):
    monkeypatch.setattr(forward, "_planned", lambda tiling, *_: (tiling, 3))
    q, k, v = operands((2, 2, 70, 80), (2, 2, 500, 80), np.float16)
    out = api.full((2, 70, 2, 80), 7.0, tk.float16).sync()
    kernels.attention(f(q), f(k), f(v), out=out.permute(0, 2, 1, 3)).sync()
    wanted, _ = right(q, k, v)
    assert np.abs(out.to_host().sync().transpose(0, 2, 1, 3) - wanted).max() <= 2e-3 * np.abs(wanted).max()


def plan(heads, queries, keys, size, causal=False):
    masks, tiling = masks_of("", causal, None), forward.tiling_of((1, 1, queries, size), keys, tk.float16, False, True, False)
    tiling = forward.taller(forward._WIDE.get(tiling.depth, tiling), heads, queries, 132)
    chosen, parts = forward._planned(tiling, heads, queries, keys, size, 2, masks, 132, True)
    return chosen.rows, parts


@pytest.mark.parametrize("causal", [False, True])
def test_keys_are_taken_apart_where_multiprocessors_had_nothing_to_do(causal):
    for heads, queries, keys, size in ((3, 88, 10840, 32), (8, 223, 21429, 80), (48, 64, 16384, 256), (1, 128, 4000, 128)):
        rows, parts = plan(heads, queries, keys, size, causal)
        blocks = heads * -(-queries // rows) * parts
        assert parts > 1
        assert 40 < blocks < 6 * 132, (heads, queries, keys, size)
    for heads, queries, keys, size in ((128, 128, 4096, 128), (1000, 64, 64, 64), (1, 1, 1, 64), (32, 8192, 8192, 128)):
        assert plan(heads, queries, keys, size, causal)[1] == 1


@pytest.mark.parametrize("causal", [False, True])
def test_short_sequences_have_low_tiles(causal):
    for heads, length, size in ((768, 64, 64), (1024, 64, 128), (264, 64, 192)):
        assert plan(heads, length, length, size, causal)[0] == 64, (heads, length, size)
    for heads, length, size in ((64, 4096, 64), (32, 8192, 128), (128, 1024, 128), (16, 8192, 256)):
        assert plan(heads, length, length, size, causal)[0] > 64, (heads, length, size)


def test_few_tiles_have_fewer_rows_and_a_multiprocessor_each():
    """Half of the rows take less time; but where half of the multiprocessors were busy before, these would be twice as many."""
    some = ((6, 520, 64, 64), (8, 512, 256, 64), (44, 128, 128, 64), (100, 128, 64, 128), (66, 1024, 128, 128))
    for heads, length, size, rows in some:
        assert plan(heads, length, length, size) == (rows, 1), (heads, length, size)


@pytest.mark.parametrize("size", [64, 128, 256])
def test_blocks_that_all_have_room_find_nothing_out(size):
    """Which tile a block has is its number: what is divided is the number of a head by those that share its keys."""
    q = api.meta((2, 3, 200, size), tk.bfloat16)
    op = kernels.attention(q, q, q)
    op.consumed()
    (launch,) = [part for part in op.parts() if isinstance(part, tk.KernelLaunch)]
    told = launch.explain("sm_90a")
    assert told.compiled.local_bytes == 0
    assert "HGMMA" in told.compiled.sass
    assert len(re.findall(r"\b(?:div|rem)\.", told.compiled.ptx)) <= 2, "one, and its narrow form"
    assert min(pipeline.stages for pipeline in told.pipelines) > 0


def test_blocks_that_all_have_room_are_right(device, monkeypatch):
    monkeypatch.setattr(forward, "multiprocessors", lambda *_: 132)  # a CPU device has fewer
    check(*operands((2, 4, 130, 64), (2, 2, 300, 64), np.float16), causal=True)
    monkeypatch.setattr(forward, "_planned", lambda tiling, *_: (tiling, 3))
    check(*operands((3, 2, 70, 64), (3, 1, 300, 64), np.float16), causal=True)


@pytest.mark.parametrize(("size", "causal"), [(64, False), (64, True), (128, False), (128, True), (256, True)])
def test_blocks_of_low_tiles_share_a_multiprocessor(size, causal):
    """With products by warpgroups in each: registers are dealt out anew among fewer, and none spill.

    Those of 256 columns are two instructions: ptxas has one take no more registers than all threads begin with, 128.
    """
    q = api.meta((64, 16, 64, size), tk.bfloat16)
    op = kernels.attention(q, q, q, causal=causal)
    op.consumed()
    (launch,) = [part for part in op.parts() if isinstance(part, tk.KernelLaunch)]
    told = launch.explain("sm_90a")
    made = told.compiled
    assert made.local_bytes == 0
    assert told.blocks_per_multiprocessor == forward._LOW[size].occupancy
    assert "m64n128k16" in told.products[-1].instruction or size < 128
    assert "HGMMA" in made.sass
    assert "USETMAXREG" in made.sass


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (33, 97), (50, 80), (64, 64), (100, 300), (129, 130), (130, 129)], ids=str)
@pytest.mark.parametrize("tile", [(64, 16), (32, 32), (16, 64)], ids=str)
def test_scores_that_are_asked_for_ahead(cpu, monkeypatch, tile, lengths, causal):
    """What runs where warpgroups multiply: tiles of keys that the mask cuts have a loop of their own."""
    monkeypatch.setattr(forward, "tiling_of", lambda *_: forward._Tiling(*tile, 64, 2, 1))
    monkeypatch.setattr(forward, "_TALL", {})
    queries, keys = lengths
    check(*operands((2, 4, queries, 64), (2, 2, keys, 64)), causal=causal)


def test_tiles_have_many_queries_where_that_is_sooner_done():
    """Each multiprocessor has a tile at a time; one of 256 queries takes less than twice as long as one of 128."""
    tiling = forward._STAGED[64]
    for heads, queries, rows in (
        (64, 4096, 256), (16, 2048, 256), (132, 256, 256), (1, 1 << 20, 256),
        (132, 128, 128), (1000, 100, 128), (66, 256, 128), (100, 300, 128), (1, 1, 128),
    ):  # fmt: skip
        assert forward.taller(tiling, heads, queries, 132).rows == rows, (heads, queries)
    other = forward._STAGED[128]
    assert forward.taller(other, 64, 4096, 132) == other
    # Of packed sequences each ends somewhere in a tile.
    assert [forward.taller(tiling, 32, 16384, 132, sequences).rows for sequences in (1, 8, 64)] == [256, 256, 128]


@pytest.mark.parametrize("window", [1, 2, 128, 129, 10**12])
def test_windows(device, window):
    check(*operands((1, 1, 300, 64), (1, 1, 300, 64)), window=window, causal=True)


@pytest.mark.parametrize(("heads", "of_keys"), [(4, 2), (6, 2), (5, 1), (3, 3)])
def test_grouped_queries(device, heads, of_keys):
    check(*operands((2, heads, 150, 64), (2, of_keys, 200, 64), BF16), causal=True)


def test_many_heads_are_visited_in_parts(device, monkeypatch):
    monkeypatch.setattr(forward, "_CACHED", 3 * 2 * 150 * 16 * 4)
    check(*operands((2, 4, 150, 16), (2, 4, 150, 16)), causal=True)


def test_scale(device):
    q, k, v = operands((1, 2, 100, 64), (1, 2, 100, 64))
    check(q, k, v, scale=0.7)
    check(q, k, v, scale=3)


def test_large_scores(device):
    """Exponentials of the differences only: none overflows."""
    check(*operands((1, 1, 130, 64), (1, 1, 300, 64), np.float32, factor=30.0))


def test_strides(device):
    """Queries that lie as (batch, length, heads, size) are taken as they lie; so are those with gaps."""
    q, k, v = operands((2, 100, 4, 64), (2, 120, 4, 64), np.float16)
    views = [f(x).sync().permute(0, 2, 1, 3) for x in (q, k, v)]
    wanted, _ = right(*(x.swapaxes(1, 2) for x in (q, k, v)), causal=True)
    found = kernels.attention(*views, causal=True).to_host().sync()
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


def test_nan_stays_in_its_row(device):
    q, k, v = operands((1, 1, 70, 64), (1, 1, 90, 64))
    q[0, 0, 3, 5] = np.nan
    y = kernels.attention(f(q), f(k), f(v)).to_host().sync()
    assert np.isnan(y[0, 0, 3]).all()
    assert np.isfinite(np.delete(y, 3, 2)).all()


def test_the_same_each_time(device):
    q, k, v = (f(x).sync() for x in operands((1, 4, 300, 64), (1, 2, 300, 64), BF16))
    first, second = (kernels.attention(q, k, v, causal=True).to_host().sync() for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_nothing_to_do(device):
    for q, k in [((0, 2, 4, 64), (0, 2, 4, 64)), ((2, 2, 0, 64), (2, 2, 4, 64)), ((1, 0, 4, 64), (1, 0, 4, 64))]:
        key = api.zeros(k).sync()
        assert kernels.attention(api.zeros(q), key, key).sync().shape == q
    empty = api.ones((1, 1, 0, 64)).sync()
    y, lse = kernels.attention(api.ones((1, 1, 3, 64)), empty, empty, return_lse=True).sync()
    assert (y.to_host().sync() == 0).all()
    assert np.isneginf(lse.to_host().sync()).all()


def test_out(device):
    q, k, v = operands((1, 2, 50, 64), (1, 2, 50, 64))
    out = api.zeros(q.shape).sync()
    assert kernels.attention(f(q), f(k), f(v), out=out).sync() is out
    assert np.abs(out.to_host().sync() - right(q, k, v)[0]).max() < 1e-5


BACKWARD = [
    ((2, 4, 200, 64), (2, 2, 200, 64), {}),
    ((1, 2, 300, 64), (1, 2, 300, 64), {"causal": True}),
    ((1, 2, 130, 128), (1, 1, 300, 128), {"causal": True, "scale": 0.2}),
    ((1, 2, 300, 64), (1, 2, 77, 64), {"causal": True}),
    ((1, 3, 257, 64), (1, 1, 300, 64), {"causal": True, "window": 70}),
    ((1, 1, 200, 64), (1, 1, 300, 64), {"window": 33}),
    ((1, 2, 70, 256), (1, 2, 90, 256), {"causal": True}),
    ((1, 2, 70, 40), (1, 2, 1, 40), {}),
    ((1, 2, 300, 96), (1, 1, 300, 96), {"causal": True}),
    ((1, 2, 200, 80), (1, 2, 300, 80), {}),
    ((1, 2, 140, 32), (1, 2, 260, 32), {"causal": True}),
]


# Keys that are one tile in what runs where warpgroups multiply; the third has queries that see none.
OF_ONE_TILE = [
    ((2, 6, 90, 64), (2, 2, 30, 64), {}),
    ((1, 2, 32, 40), (1, 2, 32, 40), {"causal": True}),
    ((1, 2, 200, 64), (1, 1, 20, 64), {"causal": True}),
    ((1, 2, 20, 64), (1, 2, 32, 64), {"window": 9}),
]


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("q_shape", "k_shape", "options"), BACKWARD, ids=str)
def test_gradients(device, q_shape, k_shape, options, dtype):
    q, k, v = operands(q_shape, k_shape, dtype)
    g = operands(q_shape, k_shape, dtype, seed=1)[0]
    y, lse = kernels.attention(f(q), f(k), f(v), return_lse=True, **options).sync()
    made = kernels.attention_backward(f(g), f(q), f(k), f(v), y, lse, **options).sync()
    for found, wanted, like in zip(made, gradients(g, q, k, v, **options), (q, k, v), strict=True):
        found = found.to_host().sync()
        assert found.dtype == like.dtype
        tolerance = {np.float16: 3e-3, BF16: 2e-2, np.float32: 4e-6}[dtype]
        assert np.abs(found.astype(np.float64) - wanted).max() <= tolerance * max(np.abs(wanted).max(), 1.0)


@pytest.mark.parametrize(("q_shape", "k_shape", "options"), [*BACKWARD, *OF_ONE_TILE], ids=str)
def test_gradients_with_products_under_way(cpu, monkeypatch, q_shape, k_shape, options):
    """What runs where warpgroups multiply: other kernels, with loops of their own for tiles that the mask cuts."""
    tiles = backward._Tile(64, 32, 2, 1), backward._Tile(32, 64, 2, 1)
    tiling = backward._Tiling(max(64, q_shape[3] + 63 & -64), *tiles)
    monkeypatch.setattr(backward, "tiling_of", lambda *_, **__: tiling)
    q, k, v = operands(q_shape, k_shape, np.float32)
    g = operands(q_shape, k_shape, np.float32, seed=1)[0]
    y, lse = kernels.attention(f(q), f(k), f(v), return_lse=True, **options).sync()
    made = kernels.attention_backward(f(g), f(q), f(k), f(v), y, lse, **options).sync()
    for found, wanted in zip(made, gradients(g, q, k, v, **options), strict=True):
        assert np.abs(found.to_host().sync() - wanted).max() <= 4e-6 * max(np.abs(wanted).max(), 1.0)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("shares", "cuts"), [(1, 3), (2, 1), (2, 2)])
@pytest.mark.parametrize(
    ("q_shape", "k_shape", "options"), [*BACKWARD[1:7], *OF_ONE_TILE, ((1, 6, 130, 64), (1, 2, 200, 64), {})], ids=str
)
def test_gradients_of_tiles_that_blocks_share(cpu, monkeypatch, q_shape, k_shape, options, shares, cuts, deterministic):
    """Some have no turns, or none but those that the mask cuts. Of groups of three heads the second block has one."""
    tiles = backward._Tile(64, 32, 2, 1), backward._Tile(32, 64, 2, 1)
    tiling = backward._Tiling(max(64, q_shape[3] + 63 & -64), *tiles)
    monkeypatch.setattr(backward, "tiling_of", lambda *_, **__: tiling)

    def split_of(turns, heads, group, count):
        each = min(group, shares)
        return backward._Split(-(-group // each), cuts, -(-max(turns) // cuts), each * cuts)

    monkeypatch.setattr(backward, "split_of", split_of)
    q, k, v = operands(q_shape, k_shape, np.float32)
    g = operands(q_shape, k_shape, np.float32, seed=1)[0]
    y, lse = kernels.attention(f(q), f(k), f(v), return_lse=True, **options).sync()
    made = kernels.attention_backward(f(g), f(q), f(k), f(v), y, lse, deterministic=deterministic, **options).sync()
    for found, wanted in zip(made, gradients(g, q, k, v, **options), strict=True):
        assert np.abs(found.to_host().sync() - wanted).max() <= 4e-6 * max(np.abs(wanted).max(), 1.0)


@pytest.mark.parametrize("masks", [Masks(0, 0, False, False), Masks(0, 0, False, True), Masks(40, 0, True, True)], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(300, 300), (77, 300), (300, 77), (1, 500), (129, 64)])
def test_the_turns_of_tiles(rows, columns, masks):
    """As many tiles of columns as there are with an element that the mask leaves, and those between them."""
    tile = backward._Tile(64, 32, 2, 8)
    place, column = np.arange(rows)[:, None] + columns - rows, np.arange(columns)[None, :]
    seen = (column <= place + masks.right) | (not masks.above)
    seen &= (column >= place - masks.left) | (not masks.below)
    wanted = []
    for first in range(0, rows, tile.rows):
        some = np.flatnonzero(seen[first : first + tile.rows].any(0)) // tile.columns
        wanted.append(int(some.max() - some.min() + 1) if some.size else 0)
    found = backward._turns(tile, rows, columns, *masks)
    # The last row of the last tile may be one that does not exist.
    assert len(found) == len(wanted)
    assert all(w <= n <= w + 1 + tile.rows // tile.columns for n, w in zip(found, wanted, strict=True))
    assert found[:-1] == tuple(wanted[:-1])


@tk.kernel
def _order(y: tk.Out, last: int, split: tk.Const):
    number = tk.bid(0) + tk.num_blocks(0) * (tk.bid(1) + tk.num_blocks(1) * tk.bid(2))
    order = backward._longest_first(last, split)
    for n in tk.static_range(3):
        tk.store(y, (number, n), tk.full((1, 1), order[n], tk.int32))


@pytest.mark.parametrize(("grid", "last"), [((3, 5, 2), 4), ((3, 5, 2), 10), ((4, 7, 1), 3), ((1, 4, 1), 1), ((2, 1, 3), 3)])
def test_long_tiles_of_the_last_heads_come_first(device, grid, last):
    """Each block has a tile of its own; first head by head, then tile by tile."""
    tiles, heads, parts = grid
    y = api.zeros((tiles * heads * parts, 3), tk.int32).sync()
    _order(y.scattered(), last, parts > 1).grid(grid).sync()
    wanted = [(tile, at % heads, at // heads) for at in range(heads * parts - last) for tile in range(tiles)]
    wanted += [(tile, at % heads, at // heads) for tile in range(tiles) for at in range(heads * parts - last, heads * parts)]
    assert [tuple(row) for row in y.to_host().sync()] == wanted


def test_blocks_share_tiles_where_that_is_sooner_done():
    """Few tiles that take long: as many blocks as there are multiprocessors, or nearly. Else nothing changes."""
    for turns, heads, group, count in (
        ((64,) * 64, 32, 1, 132), (tuple(range(128, 0, -2)), 32, 1, 132), ((32,) * 32, 64, 1, 132), ((18,) * 9, 16, 1, 132),
        ((1,) * 10, 4, 1, 132), ((2,), 1, 1, 132), ((0, 0), 4, 1, 132),
    ):  # fmt: skip
        assert backward.split_of(turns, heads, group, count).parts == 1
    for turns, heads, group, most in (
        ((21,) * 11, 4, 8, 0.4), ((5, 3, 1), 6, 8, 0.35), ((8,) * 4, 6, 1, 0.7), ((64,) * 32, 1, 1, 0.35), ((300,), 4, 1, 0.1),
        ((1,), 8, 8, 0.6),
    ):  # fmt: skip
        split = backward.split_of(turns, heads, group, 132)
        assert split.parts == -(-group // split.share) * split.cuts <= 32
        assert split.cuts * split.turns >= max(turns) > (split.cuts - 1) * split.turns
        blocks = len(turns) * heads * split.parts
        assert -(-blocks // 132) * (2 + split.share * split.turns) <= most * (2 + group * max(turns))


def test_the_kernels_of_tiles_that_blocks_share():
    """Grouped heads of short sequences: the parts are written as floats and added up 16 bytes at a time, beside the sums."""
    q, k, lse = (api.meta(s, t) for s, t in (((2, 16, 1316, 64), BF16), ((2, 2, 1316, 64), BF16), ((2, 16, 1316), np.float32)))
    for deterministic, names in (
        (False, ["_of_rows", "_backward_dkv", "_of_sums"]),
        (True, ["_of_rows", "_backward_dkv", "_backward_dq", "_of_parts"]),
    ):
        op = kernels.attention_backward(q, q, k, k, q, lse, deterministic=deterministic)
        op.consumed()
        launches = op.parts()
        assert [p.kernel.name for p in launches] == names
        dkv, last = (p.compile(target="sm_90a") for p in (launches[1], launches[-1]))
        assert dkv.local_bytes == last.local_bytes == 0
        loads = re.findall(r"\bLDG\.E\S*", last.sass)
        assert loads and all(".128" in load for load in loads)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("which", ["backward_dkv", "adds", "backward_dq"])
def test_products_of_gradients_stay_under_way(which, size, causal, split):
    """Exponentials are taken while `g @ v.T` is computed; no product waits for one before it, and no element changes threads.

    That holds where several blocks share a tile (`split`), too.
    """

    def of_result(x):
        return api.meta((4, 2, *x.shape[2:]), tk.float32) if split else x

    shape = (1, 4, 1024, size)
    q, k, v, g, *results = (api.meta(shape, tk.bfloat16) for _ in range(7))
    sums = [api.meta(shape[:3], tk.float32) for _ in range(2)]
    tiling = backward.tiling_of(size, 1024, 1024, False, True, overlapped=True)
    adds = which == "adds"
    tile, early = tiling.dq if which == "backward_dq" else tiling.dkv, adds and size == 128 and not causal
    given, masks = (q, k, v, g, *sums, 0.1, 1, 0, 1, 4), (False, causal, tile.stages)
    if which == "backward_dq":
        op = backward._backward_dq(of_result(results[2]).scattered(), *given, 4, *masks, split)
    else:
        held = size * tile.columns
        added = api.meta((1, 4, 1024 // tile.columns, held), tk.float32) if adds else results[2]
        outs = (x.scattered() for x in (*map(of_result, results[:2]), added))
        op = backward._backward_dkv(*outs, *given, 1, 2, 4, *masks, adds, False, early, False, split, True, True)
        op = op.generics(BS=held)
    op = op.generics(BM=tile.rows, BN=tile.columns, BD=size).num_warps(tile.num_warps).grid(8)
    made = op.compile(target="sm_90a")
    calculating = made.sass.split("USETMAXREG.TRY_ALLOC")[-1]
    between = calculating.split("WARPGROUP.ARRIVE", 1)[1].rsplit("HGMMA", 1)[0]
    assert made.local_bytes == 0
    scores, adding = "A" + "H" * (size // 16 - 1) + "G", "A" + "H" * (tile.columns // 16 - 1) + "G"
    whole = "A" + "H" * (tile.rows // 16 - 1) + "G"
    # Versions of ptxas differ in where they wait after that.
    by_both = [adding, whole, adding] if early else [adding, adding, whole]
    further = {"backward_dkv": [adding, adding], "adds": by_both, "backward_dq": [adding]}
    turn = f"{scores}{scores}1[01]*" + "".join(f"{each}[01]*" for each in further[which])
    loops = 1 + (causal or which == "backward_dq")
    assert re.fullmatch(f"(?:{turn}){{{loops}}}", products(made)), products(made)
    if adds:  # 16 bytes of each thread; the weights' gradients lie in shared memory, without elements that change threads
        count = size * tile.columns // 256 // 4
        assert len(re.findall(r"RED\.E\.ADD\.F32x4|REDG\.E\.ADD\.F32x4", calculating)) == loops * count
        assert len(re.findall(r"\bSTS\b", between)) == loops * tile.rows * tile.columns // 256 // 2
    else:
        assert not re.search(r"\bSTS\b", between)
    vectors = len(re.findall(r"\bLDS\b", between))
    assert vectors == (0 if which == "backward_dq" else 2 * loops * tile.columns // 8), "two elements of two vectors"


@pytest.mark.parametrize(
    ("size", "deterministic", "options"),
    [
        (64, False, {"causal": True, "window": 4096}),
        (128, True, {"causal": True, "window": 4096}),
        (256, False, {}),
        (256, False, {"causal": True}),
    ],
    ids=str,
)
def test_gradients_by_warpgroups(size, deterministic, options):
    """Nothing in local memory. A thread has registers for sums of 128 columns by keys and by values, or of 256 by one of both."""
    q, k, _ = given(size)
    op = kernels.attention_backward(q, q, k, k, q, x(1, 32, 8192, dtype=tk.float32), deterministic=deterministic, **options)
    op.consumed()
    launches = [p for p in op.parts() if isinstance(p, tk.KernelLaunch)]
    made = [(p.kernel.name, p.compile(target="sm_90a")) for p in launches]
    last = "_backward_dq" if deterministic or size == 256 else "_of_sums"
    assert [name for name, _ in made] == ["_of_rows", *["_backward_dkv"] * (1 + size // 256), last]
    of = [p.arguments[-2:] for p in launches if p.kernel.name == "_backward_dkv"]
    assert of == ([(True, False), (False, True)] if size == 256 else [(True, True)]), "by keys, and by values"
    for name, kernel in made:
        assert kernel.local_bytes == 0, name
        assert ("HGMMA" in kernel.sass) == name.startswith("_backward_"), name
        assert "HMMA" not in kernel.sass.replace("HGMMA", ""), name


def test_the_steps_of_gradients_are_known_before_they_run():
    """Also that zeros are written, to tensors that have no memory yet: for pictures, and to compile without running."""
    q, lse = api.meta((1, 4, 256, 64), tk.bfloat16), api.meta((1, 4, 256), tk.float32)
    op, none = kernels.attention_backward(q, q, q, q, q, lse), api.meta((1, 4, 0, 64), tk.bfloat16)
    of_nothing = kernels.attention_backward(q, q, none, none, q, lse)
    op.consumed()
    of_nothing.consumed()
    assert [str(part) for part in op.parts()] == ["kernel _of_rows", "kernel _backward_dkv", "kernel _of_sums"]
    assert [str(part) for part in of_nothing.parts()] == ["fill"]
    assert "fill" in of_nothing.graphviz()


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_the_gradients_of_one_tile_of_keys_need_no_sums(causal, size):
    """All of the gradient by queries is one block's: it writes it as it is, the same in every run, without memory for sums."""
    q, lse = api.meta((64, 16, 100, size), tk.bfloat16), api.meta((64, 16, 100), tk.float32)
    for deterministic in (False, True):
        op = kernels.attention_backward(q, q, q, q, q, lse, causal=causal, deterministic=deterministic)
        op.consumed()
        assert [part.kernel.name for part in op.parts()] == ["_of_rows", "_backward_dkv"]
    made = op.parts()[1].compile(target="sm_90a")
    assert made.local_bytes == 0
    assert "RED" not in made.sass and "ATOM" not in made.sass
    # Queries before the first key see none: nobody would write their gradients.
    k = api.meta((64, 16, 30, size), tk.bfloat16)
    blind = kernels.attention_backward(q, q, k, k, q, lse, causal=True)
    blind.consumed()
    assert [part.kernel.name for part in blind.parts()] == ["_of_rows", "_backward_dkv", "_of_sums"]


def test_gradients_of_very_small_sums(device):
    """Weights of keys that do not exist would be infinite; they take no part."""
    q, k, v = operands((1, 1, 70, 64), (1, 1, 70, 64))
    q, k = np.abs(q) * 40, -np.abs(k)
    y, lse = kernels.attention(f(q), f(k), f(v), return_lse=True).sync()
    assert lse.to_host().sync().max() < -89, "exp(89) is infinite in float32"
    made = kernels.attention_backward(f(v), f(q), f(k), f(v), y, lse).sync()
    for found, wanted in zip(made, gradients(v, q, k, v), strict=True):
        assert np.abs(found.to_host().sync() - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_gradients_of_nothing(device):
    q, k = api.zeros((1, 1, 3, 64)).sync(), api.zeros((1, 1, 0, 64)).sync()
    dq, dk, dv = kernels.attention_backward(q, q, k, k, q, api.zeros((1, 1, 3))).sync()
    assert (dq.to_host().sync() == 0).all()
    assert dk.shape == dv.shape == (1, 1, 0, 64)


@pytest.mark.parametrize("size", [64, 128])
def test_gradients_are_the_same_each_time(device, size):
    q, k, v = (f(x).sync() for x in operands((1, 4, 650, size), (1, 2, 650, size), BF16))
    y, lse = kernels.attention(q, k, v, causal=True, return_lse=True).sync()
    runs = [kernels.attention_backward(q, q, k, v, y, lse, causal=True, deterministic=True).sync() for _ in range(2)]
    first, second = ([x.to_host().sync().tobytes() for x in run] for run in runs)
    assert first == second


def x(*shape, dtype=tk.float16):
    return api.meta(shape, dtype)


SAME = (1, 4, 32, 64)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kernels.attention(x(4, 32, 64), x(*SAME), x(*SAME)), ValueError, r"q has shape \(4, 32, 64\); it takes 4 dim"),
        (lambda: kernels.attention(x(*SAME), x(1, 3, 32, 64), x(1, 3, 32, 64)), ValueError, "4 heads, k 3; the former"),
        (lambda: kernels.attention(x(*SAME), x(*SAME), x(1, 4, 16, 64)), ValueError, r"k has shape .* v \(1, 4, 16, 64\)"),
        (lambda: kernels.attention(x(*SAME), x(1, 4, 32, 32), x(1, 4, 32, 32)), ValueError, "batch and head size must be"),
        (lambda: kernels.attention(*[x(1, 4, 32, 512)] * 3), ValueError, "head size is 512; it is from 1 to 256"),
        (lambda: kernels.attention(x(*SAME), x(*SAME, dtype=tk.float32), x(*SAME)), TypeError, "q holds float16, k float32"),
        (lambda: kernels.attention(*[x(*SAME, dtype=tk.int32)] * 3), TypeError, "q holds int32; it takes float16"),
        (lambda: kernels.attention([1.0], x(*SAME), x(*SAME)), TypeError, "q is a tensor or an op .*, not list"),
        (lambda: kernels.attention(*[x(*SAME)] * 3, scale=-1.0), ValueError, "scale is a positive number, not -1.0"),
        (lambda: kernels.attention(*[x(*SAME)] * 3, scale="1"), TypeError, "scale is a number, or None"),
        (lambda: kernels.attention(*[x(*SAME)] * 3, causal=1), TypeError, "causal is True or False, not 1"),
        (lambda: kernels.attention(*[x(*SAME)] * 3, window=0), ValueError, "window is from 1 on, not 0"),
        (lambda: kernels.attention(*[x(*SAME)] * 3, window=1.5), TypeError, "window is a number of keys, or None"),
        (lambda: kernels.attention(*[x(*SAME)] * 3, precision="fast"), ValueError, 'precision is "ieee" or "tf32"'),
        (lambda: kernels.attention(*[x(*SAME)] * 3, out=x(1, 4, 32, 32)), ValueError, "out is float16 of shape"),
        (
            lambda: kernels.attention_backward(*[x(*SAME)] * 5, x(1, 4, 32)),
            ValueError, r"lse is float16 of shape .*; for queries of shape .* it is float32 .*return_lse=True",
        ),
        (
            lambda: kernels.attention_backward(*[x(*SAME)] * 5, x(1, 4, 32, dtype=tk.float32), deterministic=1),
            TypeError, "deterministic is True or False, not 1",
        ),
        (
            lambda: kernels.attention_backward(x(1, 4, 32, 32), *[x(*SAME)] * 4, x(1, 4, 32, dtype=tk.float32)),
            ValueError, r"q has shape \(1, 4, 32, 64\), grad \(1, 4, 32, 32\); they must be the same",
        ),
    ],
)  # fmt: skip
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


# --------------------------------------------------------------------------------------------------------------- what is compiled


def given(size, dtype=tk.bfloat16):
    return x(1, 32, 8192, size, dtype=dtype), *[x(1, 8, 8192, size, dtype=dtype)] * 2


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 4096}], ids=str)
@pytest.mark.parametrize("size", [64, 128])
def test_products_by_warpgroups_are_chained(size, options):
    """One wait for a product, not for each of its instructions; tiles by the TMA; nothing in local memory."""
    kernel, lines = compiled(kernels.attention(*given(size), **options), "sm_90a")
    asynchronous = [n for n, line in enumerate(lines) if "HGMMA" in line]
    assert 4 * sum("gsb0" in lines[n] for n in asynchronous) <= len(asynchronous), "4 instructions of a product, or 8"
    assert any("UTMALDG.4D" in line for line in lines)
    tall = size == 64 and "window" not in options
    assert (kernel.registers, kernel.block[0]) == ((96, 640) if tall else (168, 384)), "which are dealt out anew"
    assert kernel.local_bytes == 0


@pytest.mark.parametrize(("keys", "options"), [(8192, {}), (8192, {"causal": True}), (8001, {})], ids=str)
@pytest.mark.parametrize("size", [64, 128])
def test_scores_are_asked_for_before_values_are_added(size, keys, options):
    """While the exponentials of the next scores are taken, the tensor cores add values: a wait leaves one product under way.

    Of 256 elements there is no room for another tile of keys, unless tiles are so narrow that products take longer.
    """
    q, k = x(1, 32, 8000, size, dtype=tk.bfloat16), x(1, 8, keys, size, dtype=tk.bfloat16)
    _, lines = compiled(kernels.attention(q, k, k, return_lse=True, **options), "sm_90a")
    # Over whole tiles, and over those that are masked.
    waits = [n for n, line in enumerate(lines) if "WARPGROUP.DEPBAR.LE gsb0, 0x1" in line]
    assert len(waits) == (1 if (keys, options) == (8192, {}) else 2)
    turn = lines[waits[0] - 200 : waits[0] + 200]
    assert not re.search(r"\b(LDL|STL)\b", "\n".join(turn)), "whole tiles need no local memory"


@pytest.mark.parametrize("causal", [False, True])
def test_16_warps_leave_queries_in_shared_memory(causal):
    """Their threads have no registers for them; and nothing is in local memory while products are computed."""
    _, lines = compiled(kernels.attention(*given(64), causal=causal), "sm_90a")
    found = [n for n, line in enumerate(lines) if "HGMMA" in line]
    of_scores = [n for n in found if "tnspB" not in lines[n]]  # keys are transposed, values are not
    assert of_scores == [n for n in found if re.search(r"HGMMA\S* R\d+, gdesc", lines[n])], "weights alone come from registers"
    assert 0 < len(of_scores) < len(found)
    assert not re.search(r"\b(LDL|STL)\b", "\n".join(lines[found[0] : found[-1]]))


@pytest.mark.parametrize("size", [64, 128])
def test_products_by_warps(size):
    _, lines = compiled(kernels.attention(*given(size), causal=True), "sm_80")
    text = "\n".join(lines)
    assert "HMMA.16816.F32.BF16" in text
    assert "LDSM" in text
