"""Attention of a few queries at the end of each sequence, as when tokens are generated one by one.

There is little to calculate and much to read: all keys and values once. To keep all multiprocessors busy, the keys of a sequence
are dealt out to several blocks, each of which writes a result of its own and the logarithm of its sum, which `parts` adds up.
Query heads that share a key head are rows of one tile. Tiles of keys and values come ahead, from pages too: what is being worked
on is a small part of what is on its way.
What a block has to read follows from the sequence's own length.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._attention.arguments import check_qkv, scale_of
from tilekit.kernels._attention.online_softmax import LOG2_E, LOWEST
from tilekit.kernels._attention.parts import added_up
from tilekit.kernels._host import (
    Launches,
    Operand,
    check_splits,
    filled,
    has_warpgroups,
    integers,
    multiprocessors,
    on_cpu,
    out_or_new,
    power,
    shaped,
    takes_ops,
)
from tilekit.ops import DeviceOp, Spec

__all__ = ["attention_decode"]

BM, BN, BD = tk.generics("BM BN BD")

_MOST_ROWS, _MOST_SPLITS = 64, 64
_LEAST_ROWS, _LEAST_COLUMNS, _MOST_COLUMNS, _CPU_COLUMNS = 16, 16, 128, 256
# A multiprocessor of an H200 needs some 40 KB on their way to it at any time (4.8 TB/s / 132 * 1 us), and two blocks, lest it
# waits for one's sums. Each has three stages of a tile of keys and one of values, of which one is being worked on: 128 KB. Of
# smaller tiles there are more stages; elsewhere there is room for two. Of short sequences most of the time goes by beginning and
# ending: there are four blocks then, with a stage each.
_TILE_BYTES, _BLOCKS, _MOST_STAGES = 16 << 10, 2, 8
_STAGES, _STAGES_ELSEWHERE = 3, 2
_SHORT_BLOCKS, _SHORT_STAGES = 4, 1
# Bytes of a query. Of larger ones, and of more rows than products have at least, two blocks' sums are too many; of larger ones of
# the least rows two or four blocks of fewer warps have room (79 to 111 registers, 64), which the model asks for.
_SMALL = 256
_LEAST_SHARE = 2  # tiles of keys that are worth a block
_LEAST_PARTS = 4  # of sequences that may be of different lengths: blocks that are done early leave room for others
# As measured on an H200: bytes that all blocks get in a microsecond, and one with a tile's bytes on their way, by these; what a
# block takes to begin and end, and what adding up takes, with each part, and where they are no power of two, in microseconds.
_BANDWIDTH, _OF_STAGE, _START = 4.2e6, 0.42, 3.0
_ADDING, _EACH, _BETWEEN = 2.5, 0.05, 1.0
_EFFICIENT = 0.85  # of the places that the best number of parts keeps busy; fewer parts are less to add up
_WORTH, _PARTS_WORTH = 0.95, 0.885  # less than so much of the time of these parts: with one, and with several


@tk.kernel
def _of_parts(
    o: tk.Out, sums: tk.Out, q: tk.In, k: tk.In, v: tk.In, lengths: tk.In, pages: tk.In, scale: float, keys: int, queries: int,
    has_lengths: tk.Const, paged: tk.Const, stages: tk.Const,
):  # fmt: skip
    part, at = tk.bid(0), tk.bid(1)
    b = at // k.shape[1]
    h = at - b * k.shape[1]
    # A sequence may be longer than what there is room for, if someone counts wrongly; what is not there is not read.
    length = keys
    if has_lengths:
        length = max(0, min(keys, tk.load(lengths, b, ()).item()))
    # A page has so many tiles, and the keys of a sequence that has none are one.
    each = tk.cdiv(k.shape[2], BN)
    share = tk.cdiv(tk.cdiv(length, BN), tk.num_blocks(0))
    first, end = part * share, min((part + 1) * share, tk.cdiv(length, BN))
    for tq in tk.pipelined(q.tiles((1, 1, BM, BD))[0, at, 0:1, 0], stages=1):  # products take it from shared memory
        acc, row_sum = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, 1), tk.float32)
        row_max = tk.full((BM, 1), LOWEST, tk.float32)
        for n in range(first // each, tk.cdiv(end, each)):
            page = b
            if paged:
                page = tk.load(pages, (b, n), ()).item()
            j = max(first, n * each)
            inside, behind = j - n * each, min(end - n * each, each)
            for key, value in tk.pipelined(
                k.tiles((1, 1, BN, BD))[page, h, inside:behind, 0],
                v.tiles((1, 1, BN, BD))[page, h, inside:behind, 0],
                stages=stages,
                rotate=False,
            ):
                nothing = tk.zeros((BM, BN), tk.float32)
                scores = tk.mma(tq.reshape((BM, BD)), key.reshape((BN, BD)).transpose(), nothing)
                if (j + 1) * BN > length - queries + 1:
                    # The query of a row stands so far from the last key.
                    last = tk.arange(BM)[:, None] % queries + (length - queries - j * BN)
                    scores = tk.where(tk.arange(BN)[None, :] <= last, scores, float("-inf"))
                new_max = tk.maximum(row_max, tk.max(scores, 1, keepdims=True) * scale)
                p, alpha = tk.exp2(scores * scale - new_max, flush_to_zero=True), tk.exp2(row_max - new_max, flush_to_zero=True)
                row_sum = row_sum * alpha + tk.sum(p, 1, keepdims=True)
                acc = tk.mma(p.astype(v.dtype), value.reshape((BN, BD)), acc * alpha)
                row_max = new_max
                j += 1
        result = acc * tk.where(row_sum == 0, 0.0, 1.0 / row_sum)
        tk.store(o, (part, at, 0, 0), result.astype(o.dtype).reshape((1, 1, BM, BD)))
        tk.store(sums, (part, at, 0), (row_max + tk.log2(row_sum)).reshape((1, 1, BM)))


class _Schedule(NamedTuple):
    """`BM`, `BN`, `BD`, the stages of keys and values, the parts, the warps, and the blocks that a multiprocessor is to have."""

    rows: int
    columns: int
    depth: int
    stages: int
    parts: int
    num_warps: int
    occupancy: int


@takes_ops
def attention_decode(
    q: Operand,
    k: Operand,
    v: Operand,
    lengths: Operand | None = None,
    *,
    block_table: Operand | None = None,
    scale: float | None = None,
    splits: int | None = None,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """Attention of the last few queries of each sequence to all keys before them, `attention(..., causal=True)` otherwise.

    Args:
        q: queries of shape `(B, H, LQ, D)`, the last LQ of each sequence; `(H // HK) * LQ` is up to 64.
        k, v: keys and values, `(B, HK, LK, D)`; or with `block_table` pages of them, `(P, HK, S, D)`, where S, the length of a
            page, is a power of two from 16 on. Caches that lie as `(P, S, HK, D)` are taken as `cache.permute(0, 2, 1, 3)`.
        lengths: how many keys each sequence has, int32 or int64 of shape `(B,)`, the queries' own included; by default all. What
            lies behind them in a page, or up to 128 keys on, takes no part but must be finite: zero times infinity is no number.
        block_table: int32 or int64 of shape `(B, N)`: row `b` lists the pages of sequence `b`, in order. Pages behind its length
            are not looked at.
        scale: as for `attention`.
        splits: to how many blocks the keys of a sequence are dealt out, up to 64, instead of as many as keep the GPU busy.
        out: where the result goes; by default a new tensor.

    Returns:
        An op whose result is a tensor of the shape and dtype of `q`, the same in every run. Queries that see no key get zeros.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "attention_decode"
    paged = block_table is not None
    check_qkv(name, q, k, v, paged=paged)
    factor = scale_of(name, scale, q)
    (batch, heads, queries, size), key_heads, keys = q.shape, k.shape[1], k.shape[2]
    group = heads // max(1, key_heads)
    if group * queries > _MOST_ROWS:
        raise ValueError(
            f"{name}: {queries} queries of {group} heads for each of the keys' are more than {_MOST_ROWS}: "
            "take attention(..., causal=True)"
        )
    page = keys
    if paged:
        page = _check_table(name, block_table, batch, keys)
        keys *= block_table.shape[1]
    if lengths is not None:
        integers(name, lengths=lengths)
        if lengths.shape != (batch,):
            raise ValueError(f"{name}: lengths has shape {lengths.shape}; for {batch} sequences it is ({batch},)")
    check_splits(name, splits)
    destination = out_or_new(name, out, q)
    count = multiprocessors(q)
    stages = _STAGES if has_warpgroups(q) else _STAGES_ELSEWHERE
    uneven, cpu = lengths is not None, on_cpu(q)
    schedule = _schedule(batch * key_heads, group * queries, size, q.itemsize, keys, page, count, stages, cpu, splits, uneven)
    rows = (1, batch * key_heads, group * queries, size)

    def steps(new):
        y = new(destination)
        if not y.size:
            return y
        if not keys:
            yield filled(y)
            return y
        packed = shaped(q, rows) if q.is_contiguous else shaped((yield q.dup()), rows)
        flat = y if y.is_contiguous else new(Spec(y.shape, y.dtype))
        several = schedule.parts > 1
        o = new(Spec((schedule.parts, *rows[1:]), dtypes.float32)) if several else shaped(flat, rows)
        sums = new(Spec(o.shape[:3], dtypes.float32))
        launch = _of_parts(
            o.scattered(), sums.scattered(), packed, k, v, packed if lengths is None else lengths,
            block_table if paged else packed, factor * LOG2_E, keys, queries, lengths is not None, paged, schedule.stages,
        )  # fmt: skip
        launch = launch.generics(BM=schedule.rows, BN=schedule.columns, BD=schedule.depth).num_warps(schedule.num_warps)
        yield launch.occupancy(schedule.occupancy).grid((schedule.parts, rows[1]))
        if several:
            yield added_up(shaped(flat, rows), None, o, sums, schedule.depth)
        if flat is not y:
            yield flat.copy_into(y)
        return y

    return Launches(q, steps, q)


@functools.lru_cache(maxsize=256)
def _schedule(
    blocks: int, rows: int, size: int, itemsize: int, keys: int, page: int, count: int, stages: int, cpu: bool,
    splits: int | None, uneven: bool = False,
) -> _Schedule:  # fmt: skip
    depth = max(16, power(size))
    columns = _CPU_COLUMNS if cpu else min(_MOST_COLUMNS, max(_LEAST_COLUMNS, _TILE_BYTES // (depth * itemsize)))
    columns = min(columns, max(_LEAST_COLUMNS, power(page)))
    stages = min(_MOST_STAGES, max(stages, stages * _TILE_BYTES // (columns * depth * itemsize)))
    tiles = max(1, -(-keys // columns))
    rows = max(_LEAST_ROWS, power(rows))
    num_warps, occupancy = (4, _BLOCKS) if rows == _LEAST_ROWS and depth * itemsize <= _SMALL else (8, 1)
    if occupancy > 1 and columns == _LEAST_COLUMNS:  # as measured: more would mostly wait for each other
        num_warps = 2
    limit = max(1, min(_MOST_SPLITS, tiles // _LEAST_SHARE))
    blocks, places = max(1, blocks), count * occupancy
    parts = min(splits, tiles, _MOST_SPLITS) if splits else _parts(blocks, _LEAST_PARTS if uneven else 1, limit, places)
    schedule = _Schedule(rows, columns, depth, stages, parts, num_warps, occupancy)
    if splits or uneven or cpu:
        return schedule

    def time(way: _Schedule) -> float:
        return _time(way, blocks, 2 * keys * size * itemsize, columns * depth * itemsize, count)

    ways = [schedule]
    if rows == _LEAST_ROWS and occupancy == 1:  # large heads of short sequences: half of the warps have room for their sums, too
        ways.append(schedule._replace(num_warps=4, occupancy=_BLOCKS))
    if ways[-1].occupancy > 1 and num_warps > 2 and page == keys:
        ways.append(ways[-1]._replace(stages=_SHORT_STAGES, occupancy=_SHORT_BLOCKS))
    best = min((way._replace(parts=parts) for way in ways for parts in range(1, limit + 1)), key=time)
    worth = _WORTH if best.parts == 1 else _PARTS_WORTH
    return best if time(best) <= worth * time(schedule) else schedule


def _parts(blocks: int, least: int, limit: int, places: int) -> int:
    """The fewest parts, from `least` on, that keep the places for blocks about as busy as the best (as flash-attention does)."""

    def busy(parts: int) -> float:
        return blocks * parts / (-(-blocks * parts // places) * places)

    some = range(min(least, limit), limit + 1)
    wanted = _EFFICIENT * max(map(busy, some))
    return next(parts for parts in some if busy(parts) >= wanted)


def _time(schedule: _Schedule, blocks: int, sequence_bytes: int, tile_bytes: int, count: int) -> float:
    """What so many blocks, times the parts, take to read their sequences, in microseconds."""
    blocks, places = blocks * schedule.parts, count * schedule.occupancy
    rate = min(_BANDWIDTH / min(blocks, places), _OF_STAGE * 2 * schedule.stages * tile_bytes)
    adding = _ADDING + _EACH * power(schedule.parts) if schedule.parts > 1 else 0.0
    if schedule.parts != power(schedule.parts):
        adding += _BETWEEN
    return -(-blocks // places) * (sequence_bytes / schedule.parts / rate + _START) + adding


def _check_table(name: str, table: Any, batch: int, page: int) -> int:
    """The length of a page."""
    integers(name, block_table=table)
    if len(table.shape) != 2 or table.shape[0] != batch:
        raise ValueError(f"{name}: block_table has shape {table.shape}; for {batch} sequences it is ({batch}, pages of each)")
    if page < 16 or page & (page - 1):
        raise ValueError(f"{name}: pages have {page} keys; it takes powers of two from 16 on")
    return page
