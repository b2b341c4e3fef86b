"""Attention: what each query takes of the values, by how well it goes with their keys.

    attention(q, k, v) = softmax(scale * q @ k.T) @ v

A block has a tile of queries and goes over the keys and values once, tile by tile. It keeps the maximum and the sum of the
exponentials of each row up to date, and corrects what it has added up when a maximum grows: Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022. The scores never leave the multiprocessor.

Exponentials are powers of two, with the factor in `scale`. Tiles in which no query sees a key are not visited.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.errors import check_flag
from tilekit.kernels._attention.arguments import check_qkv, scale_of
from tilekit.kernels._attention.mask import Masks, masks_of, seen
from tilekit.kernels._attention.online_softmax import LN_2, LOG2_E, LOWEST
from tilekit.kernels._attention.parts import added_up
from tilekit.kernels._host import (
    Launches,
    Operand,
    check_choice,
    filled,
    multiprocessors,
    on_cpu,
    out_or_new,
    power,
    shaped,
    takes_ops,
)
from tilekit.kernels._staging import in_stages
from tilekit.ops import DeviceOp, Spec

__all__ = ["attention", "taller", "tiling_of"]

BM, BN, BD = tk.generics("BM BN BD")

# Keys and values of so many heads at a time are to stay in the L2 cache; an H200's has 50 MB, with a faster half.
_CACHED = 16 << 20
_ROUNDS = 16  # of the blocks, in which causal tiles of different lengths even out: by a simulation up to 2 %


# ------------------------------------------------------------------------------------------------------------------------- kernel


@tk.function
def _visited(at, heads, rows, share):
    """The tile of rows and the head that are visited as number `at`.

    `share` heads at a time; of these, the last rows first: with a causal mask they have most to do.
    """
    batch = at // (share * rows)
    index = at - batch * (share * rows)
    width = min(share, heads - batch * share)
    return rows - 1 - index // width, batch * share + index % width


@tk.function
def _back_and_forth(at, tiles, blocks):
    """In every second round of the blocks, the last of them goes first: who had the longest tile gets the shortest."""
    before = at - tk.bid(0)
    if before // blocks % 2 == 1:
        at = before + min(blocks, tiles - before) - 1 - tk.bid(0)
    return at


@tk.function
def _attend(
    o, lse, q, k, v, scale, left, right, group, parts, b, h, i, part, masked: tk.Const, below: tk.Const, above: tk.Const,
    wanted: tk.Const, apart: tk.Const, ahead: tk.Const, stages: tk.Const, rotate: tk.Const, precision: tk.Const,
):  # fmt: skip
    """A tile of queries, number `i` of head `h` of sequence `b`; `part` of its keys, where they are taken `apart`."""
    queries, keys = q.shape[2], k.shape[2]
    diagonal = i * BM + keys - queries
    first, last, reach = 0, tk.cdiv(keys, BN), 0
    if below:
        first, reach = max(0, diagonal - left) // BN, right
    if above:
        last = max(first + 1, min(last, tk.cdiv(diagonal + min(BM, queries - i * BM) + reach, BN)))
    if apart:
        each = tk.cdiv(last - first, parts)
        first = min(last, first + part * each)
        last = min(last, first + each)
    for tq in tk.pipelined(q.tiles((1, 1, BM, BD))[b, h, i : i + 1, 0], stages=ahead):
        query, j = tq.reshape((BM, BD)), first
        acc, row_sum = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, 1), tk.float32)
        row_max = tk.full((BM, 1), LOWEST, tk.float32)
        for key, value in tk.pipelined(
            k.tiles((1, 1, BN, BD))[b, h // group, first:last, 0],
            v.tiles((1, 1, BN, BD))[b, h // group, first:last, 0],
            stages=stages,
            rotate=rotate,
        ):
            nothing = tk.zeros((BM, BN), tk.float32)
            scores = tk.mma(query, key.reshape((BN, BD)).transpose(), nothing, precision=precision)
            if masked:
                scores = seen(scores, j * BN, keys, diagonal, left, reach, below, above)
            new_max = tk.maximum(row_max, tk.max(scores, 1, keepdims=True) * scale)
            p, alpha = tk.exp2(scores * scale - new_max), tk.exp2(row_max - new_max)
            row_sum = row_sum * alpha + tk.sum(p, 1, keepdims=True)
            acc = tk.mma(p.astype(v.dtype), value.reshape((BN, BD)), acc * alpha, precision=precision)
            row_max = new_max
            j += 1
        # A query that sees no key gets zeros, and -inf.
        result = acc * tk.where(row_sum == 0, 0.0, 1.0 / row_sum)
        to = part * q.shape[0] + b
        tk.store(o, (to, h, i, 0), result.astype(o.dtype).reshape((1, 1, BM, BD)))
        if wanted:
            sums = row_max + tk.log2(row_sum)
            if not apart:
                sums = sums * LN_2
            tk.store(lse, (to, h, i), sums.reshape((1, 1, BM)))


@tk.kernel
def _attention(
    o: tk.Out, lse: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float, left: int, right: int, group: int, share: int,
    rows: int, tiles: int, blocks: int, parts: int, stays: tk.Const, masked: tk.Const, below: tk.Const, above: tk.Const,
    wanted: tk.Const, apart: tk.Const, ahead: tk.Const, stages: tk.Const, rotate: tk.Const, precision: tk.Const,
):  # fmt: skip
    """A block that `stays` visits one tile of queries after another, each with so many tiles `ahead`; else there is one for each.

    `masked` says whether there is a tile of keys that a query does not see all of, `wanted` whether `lse` is. Where keys are
    taken `apart`, each tile of queries is visited in so many `parts`, whose results and binary logarithms of sums come one behind
    the other along the batch.
    """
    heads = q.shape[1]
    number = tk.bid(0)
    while number < tiles:
        at = number
        if stays and above:
            at = _back_and_forth(number, tiles, blocks)
        part = 0
        if apart:
            part = at // (heads * q.shape[0] * rows)
            at = at - part * (heads * q.shape[0] * rows)
        i, h = _visited(at, heads * q.shape[0], rows, share)
        b = h // heads
        h = h - b * heads
        _attend(
            o, lse, q, k, v, scale, left, right, group, parts, b, h, i, part, masked, below, above, wanted, apart, ahead, stages,
            rotate, precision,
        )  # fmt: skip
        number += blocks
        if not stays:
            number = tiles


@tk.kernel
def _attention_at_once(
    o: tk.Out, lse: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float, left: int, right: int, group: int, parts: int,
    masked: tk.Const, below: tk.Const, above: tk.Const, wanted: tk.Const, apart: tk.Const, stages: tk.Const, rotate: tk.Const,
    precision: tk.Const,
):  # fmt: skip
    """As `_attention`, where all blocks have room at the same time: nothing is to be found out before their first tile comes."""
    i, h, b, part = tk.bid(0), tk.bid(1), tk.bid(2), 0
    if apart:
        part = b // q.shape[0]
        b = b - part * q.shape[0]
    _attend(
        o, lse, q, k, v, scale, left, right, group, parts, b, h, i, part, masked, below, above, wanted, apart, 1, stages, rotate,
        precision,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------------------- host


class _Tiling(NamedTuple):
    """`BM`, `BN`, `BD`, the stages of keys and values, the warps, and the blocks that a multiprocessor has room for.

    Loops that `rotate` ask for scores ahead, which keys of the next tile have to be there for.
    """

    rows: int
    columns: int
    depth: int
    stages: int | None
    num_warps: int
    occupancy: int = 1
    rotate: bool = True


# By the head size. On GPUs of compute capability 9.0 each warpgroup has 64 rows, and shared memory room for the stages.
_STAGED = {64: _Tiling(128, 128, 64, 4, 8), 128: _Tiling(128, 128, 128, 2, 8), 256: _Tiling(128, 32, 256, 4, 8)}
# With scores that are asked for ahead: keys and values come once for twice as many queries.
_TALL = {64: _Tiling(256, 64, 64, 6, 16)}
# With more keys, and nothing asked for ahead, for which there is no room: products of 32 columns take half as long again.
_WIDE = {256: _Tiling(128, 64, 256, 2, 8, rotate=False)}
# With fewer rows, of which several blocks share a multiprocessor: while one begins and ends, others calculate.
_LOW = {64: _Tiling(64, 64, 64, 2, 4, 3), 128: _Tiling(64, 64, 128, 1, 4, 2), 256: _Tiling(64, 64, 256, 1, 4, 2, False)}
# With fewer rows and a multiprocessor for each block, where there are no more of these: what half of the rows take less time for.
_ALONE = {64: _Tiling(64, 128, 64, 3, 4), 128: _Tiling(64, 64, 128, 3, 4), 256: _Tiling(64, 64, 256, 2, 4)}
# Microseconds that a turn of such a tile takes, and all the rest of it, as measured on an H200; for other tiles by what a
# multiprocessor calculates in one, by an element's size.
_COSTS = {
    _STAGED[64]: (1.18, 2.7), _TALL[64]: (1.07, 4.8), _LOW[64]: (0.92, 3.2), _STAGED[128]: (1.85, 2.5), _LOW[128]: (1.3, 3.0),
    _STAGED[256]: (0.93, 6.2), _WIDE[256]: (1.6, 4.0), _LOW[256]: (2.06, 2.8),
    _ALONE[64]: (0.75, 2.3), _ALONE[128]: (0.6, 2.2), _ALONE[256]: (0.75, 2.6),
}  # fmt: skip
# The same of a low tile that has a multiprocessor nearly to itself: its turns take as long as what is done one after another.
# (By sequences of 64 to 238 keys of the sweeps, which took 4.4 to 7.6 us with 2 us of a launch; of 256 elements estimated.)
_FEW = {_LOW[64]: (0.5, 2.2), _LOW[128]: (0.9, 1.7), _LOW[256]: (1.5, 3.0)}
_RATE, _START = {2: 4.5e6, 4: 0.3e6}, 4.0
# Of keys that are taken apart: microseconds that adding up takes, and the bytes that it moves in one, of as many parts as a power
# of two (15 heads with 96 queries of 256 elements to 1504 keys: 22.5 us in four parts, 31.7 in five).
_ADDING, _ADDED = 4.0, 2.0e6
_MOST_PARTS, _LEAST_TURNS = 64, 2
_LIKE = 0.75  # of the longest tile: where all take longer, the last to begin are the last to end
_SHORT = 2048  # keys of sequences whose tiles blocks take in turns, whatever the mask
_QUERIES_AHEAD = 64  # elements of heads of which two tiles of queries have room
_WORTH = 0.9  # less than so much of the time of what is known to be good
_TALL_TIME = 1.83  # that such a tile takes on an H200, of that of one of half as many rows
_LOADED = {64: _Tiling(64, 32, 64, None, 4), 128: _Tiling(128, 32, 128, None, 8), 256: _Tiling(64, 16, 256, None, 4)}
# For head sizes up to 128, and beyond.
_LOADED_TF32, _LOADED_F32 = (_Tiling(64, 32, 128, None, 4),), (_Tiling(32, 32, 128, None, 4), _Tiling(16, 16, 256, None, 4))


@takes_ops
def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    return_lse: bool = False,
    precision: str = "ieee",
    out: Tensor | None = None,
) -> DeviceOp[Any]:
    """`softmax(scale * q @ k.T) @ v` for each head, in one pass over the memory.

    Args:
        q: queries, a tensor of shape `(B, H, LQ, D)`: batch, heads, length, head size; or an op that produces one. D is up to
            256; multiples of 16 from 64 to 128, and 192 and 256, are sizes that little is wasted on.
        k, v: keys and values, `(B, HK, LK, D)`. H is a multiple of HK: query head `h` has key head `h // (H // HK)` (grouped
            queries; with one key head, multi-query attention). All hold float16, or bfloat16, or float32. Any strides will do,
            but with gaps along D, or rows at no multiple of 16 bytes, it is slower.
        scale: a positive number that the scores are multiplied by; by default `1 / sqrt(D)`.
        causal: a query sees only the keys up to its own place. The last query stands at the last key, whatever the lengths.
        window: a query sees only keys less than so many places away (and with `causal` only before it); None for all.
        return_lse: also return the logarithm of the sum of the exponentials of each row, which `attention_backward` takes.
        precision: of float32 operands, as for `tk.mma`: "ieee", or "tf32" for tensor cores.
        out: where the result goes; by default a new tensor.

    Returns:
        An op whose result is a tensor of the shape and dtype of `q`; with `return_lse` this and a float32 tensor of shape
        `(B, H, LQ)`. A query that sees no key gets zeros, and -inf. Sums are taken in float32; the weights are rounded to the
        dtype of `v` before they are multiplied by it.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check_qkv("attention", q, k, v)
    check_choice("attention", "precision", precision, ("ieee", "tf32"))
    factor, masks = scale_of("attention", scale, q), masks_of("attention", causal, window)
    destination = out_or_new("attention", out, q)
    return_lse = check_flag("attention: return_lse", return_lse)
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    tf32 = precision == "tf32" and q.dtype == dtypes.float32
    tiling = tiling_of(q.shape, keys, q.dtype, on_cpu(q), in_stages(q, k, v), tf32)
    group = heads // max(1, k.shape[1])
    share = max(1, _CACHED // max(1, 2 * keys * q.shape[3] * q.itemsize)) * group
    count = multiprocessors(q)

    # Each query sees the first key: blocks may stay, which visit tiles that differ in length by what a causal mask cuts alone.
    overlapped = tiling.stages is not None and not masks.below and (not masks.above or keys >= queries)
    if overlapped:
        tiling = taller(_WIDE.get(tiling.depth, tiling), batch * heads, queries, count)
    places = 1 if on_cpu(q) else count
    tiling, parts = _planned(tiling, batch * heads, queries, keys, q.shape[3], q.itemsize, masks, places, overlapped)
    rows = -(-queries // tiling.rows)
    tiles = batch * heads * rows * parts
    # Blocks that stay load ahead for their next tile: 3 % to 5 % on an H200, of short sequences 10 %. But where tiles take
    # differently long, those of large heads had better come to who is done first: up to 13 %.
    # Where all have room at once, there is no next one.
    at_once = tiles <= count * tiling.occupancy
    stays = overlapped and not at_once and not (masks.above and tiling.depth > 64 and keys > _SHORT)
    blocks = min(tiles, count * tiling.occupancy) if stays else tiles
    ahead = 2 if stays and not masks.above and tiling.depth <= _QUERIES_AHEAD else 1
    if overlapped and masks.above:
        share = max(share, -(-_ROUNDS * count * tiling.rows // max(1, queries * group)) * group)

    def steps(new):
        y, sums = new(destination), new(Spec((batch, heads, queries), dtypes.float32))
        if y.size and keys:
            apart, o, weights = parts > 1, y, sums
            if apart:
                o, weights = (new(Spec((parts * batch, *x.shape[1:]), dtypes.float32)) for x in (y, sums))
            operands = o.scattered(), weights.scattered(), q, k, v, factor * LOG2_E, masks.left, masks.right, group
            masked = masks.above or masks.below or keys % tiling.columns > 0
            facts = masked, masks.below, masks.above, return_lse or apart, apart
            grid: Any = blocks
            if at_once:
                launch = _attention_at_once(*operands, parts, *facts, tiling.stages, tiling.rotate, precision)
                grid = (rows, heads, batch * parts)
            else:
                launch = _attention(
                    *operands, share, rows, tiles, blocks, parts, stays, *facts, ahead, tiling.stages, tiling.rotate, precision
                )
            launch = launch.generics(BM=tiling.rows, BN=tiling.columns, BD=tiling.depth)
            yield launch.num_warps(tiling.num_warps).occupancy(tiling.occupancy).grid(grid)
            if apart:
                of_heads = (parts, batch * heads, *y.shape[2:])
                yield added_up(y, sums if return_lse else None, shaped(o, of_heads), shaped(weights, of_heads[:3]), tiling.depth)
        elif y.size:
            yield filled(y)
            yield filled(sums, float("-inf"))
        return (y, sums) if return_lse else y

    return Launches(q, steps, None if return_lse else q)


@functools.lru_cache(maxsize=256)
def _planned(
    tiling: _Tiling, heads: int, queries: int, keys: int, size: int, itemsize: int, masks: Masks, count: int, overlapped: bool
) -> tuple[_Tiling, int]:
    """The tiles, and how many parts the keys are taken apart into, by which so many multiprocessors are done first.

    By a model; in doubt the `tiling` that is given, and one part.
    """

    def times(tiling: _Tiling) -> list[float]:
        """What it takes with 1, 2, ... parts, in microseconds."""
        turns = _turns(tiling, queries, keys, masks) or [0]
        mean, longest = sum(turns) / len(turns), max(turns)
        flops = 4 * tiling.rows * tiling.columns * tiling.depth
        most = _COSTS.get(tiling, (flops / _RATE[itemsize], _START))

        def time(parts: int) -> float:
            beside = heads * len(turns) * parts / count
            rounds = beside / tiling.occupancy
            # How far a multiprocessor is from having one block alone to having all that it has room for.
            full = 1.0 if tiling.occupancy == 1 else min(1.0, max(0.0, (beside - 1) / (tiling.occupancy - 1)))
            each, rest = (a + (b - a) * full for a, b in zip(_FEW.get(tiling, most), most, strict=True))
            rounds = math.ceil(rounds) if min(turns) > _LIKE * longest else max(1.0, rounds)
            adding = _ADDING + heads * queries * size * 8 * power(parts) / _ADDED if parts > 1 else 0.0
            return max(rounds * (mean / parts * each + rest), longest / parts * each + rest) + adding

        return [time(parts) for parts in range(1, max(1, min(_MOST_PARTS, longest // _LEAST_TURNS)) + 1)]

    best, parts, least = tiling, 1, _WORTH * times(tiling)[0]
    others = (ways[tiling.depth] for ways in (_LOW, _ALONE) if overlapped and itemsize == 2 and tiling.depth in ways)
    for each in (tiling, *others):
        estimates = times(each)
        if each in _ALONE.values():  # of blocks of which each has a multiprocessor
            estimates = estimates[: count // max(1, heads * len(_turns(each, queries, keys, masks)))]
        if min(estimates, default=least) < least:
            best, parts, least = each, estimates.index(min(estimates)) + 1, min(estimates)
    return best, parts


def _turns(tiling: _Tiling, queries: int, keys: int, masks: Masks) -> list[int]:
    """How many tiles of keys each tile of queries visits."""
    turns = []
    for row in range(0, queries, tiling.rows):
        diagonal, first, last = row + keys - queries, 0, -(-keys // tiling.columns)
        if masks.below:
            first = max(0, diagonal - masks.left) // tiling.columns
        if masks.above:
            last = min(last, -(-(diagonal + min(tiling.rows, queries - row) + masks.right) // tiling.columns))
        turns.append(max(1, last - first))
    return turns


@functools.lru_cache(maxsize=256)
def tiling_of(shape: tuple[int, ...], keys: int, dtype: Any, cpu: bool, staged: bool, tf32: bool) -> _Tiling:
    """The tiles for queries of a shape, and so many keys."""
    depth = max(16, power(shape[3]))
    if cpu:
        return _Tiling(min(128, max(16, power(shape[2]))), min(256, max(16, power(keys))), depth, None, 1)
    if dtype.itemsize == 2:
        depth = max(64, depth)
        tiling = (_STAGED if staged else _LOADED)[depth]
        return tiling._replace(depth=depth)
    return (_LOADED_TF32 if tf32 and depth <= 128 else _LOADED_F32)[depth > 128]._replace(depth=depth)


def taller(tiling: _Tiling, heads: int, queries: int, count: int, sequences: int = 0) -> _Tiling:
    """The tiling, or that with more rows if so many multiprocessors are done sooner with it.

    Packed `sequences` of unknown lengths take half a tile more each.
    """
    tall = _TALL.get(tiling.depth, tiling)

    def rounds(rows: int) -> int:
        return -(-heads * -(-(2 * queries + sequences * rows) // (2 * rows)) // count)

    return tall if _TALL_TIME * rounds(tall.rows) <= rounds(tiling.rows) else tiling
