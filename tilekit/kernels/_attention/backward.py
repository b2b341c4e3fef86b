"""The gradients of attention by queries, keys and values.

With `p` the weights, `softmax(scale * q @ k.T)`, and `g` the gradient by the result `o`:

    dv = p.T @ g        ds = p * (g @ v.T - sum(g * o))        dq = scale * ds @ k        dk = scale * ds.T @ q

The weights are computed anew, from the scores and the logarithms of their sums: Dao et al., "FlashAttention", 2022. One kernel
has a block for each tile of keys, which goes over the queries that see them, and one a block for each tile of queries. So each
sum is one block's, taken in a fixed order: the result is the same in every run. The price is that scores and `g @ v.T` are
computed twice. Where warpgroups multiply (sm_90), unless the result must be the same in every run, or heads have more than 128
elements (see `_Tiling.wanted`), the first adds up `dq` as well, in an order that chance makes, and nothing is computed twice.

So few keys that they are one tile need no sums of `dq`: it is written at once.

Where there are fewer tiles of keys than multiprocessors, or a few more, several blocks share one: each takes some of the heads of
queries of a group, or some of their tiles, and writes float32, which a last kernel adds up in a fixed order (see `split_of`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.errors import check_flag
from tilekit.kernels._attention.arguments import check_qkv, scale_of
from tilekit.kernels._attention.mask import masks_of, seen, within
from tilekit.kernels._attention.online_softmax import LOG2_E
from tilekit.kernels._host import Launches, Operand, a_tensor, filled, multiprocessors, on_cpu, power, takes_ops
from tilekit.kernels._staging import in_stages
from tilekit.ops import DeviceOp, Spec

__all__ = ["as_held", "attention_backward", "of_held", "of_tiles", "power_of", "summed_columns", "tiling_of"]

BM, BN, BD, BS, BR, BP = tk.generics("BM BN BD BS BR BP")


@tk.function
def power_of(lse):
    """By which power of two exponentials are multiplied to be weights, given the logarithm of their sum: -infinity of none."""
    return tk.where(lse == float("-inf"), float("-inf"), lse * -LOG2_E)


@tk.function
def _longest_first(last, split: tk.Const):
    """Of the block: its tile, its head, and which it is of those that share a tile if it is `split`; first tiles take longest.

    Heads come one by one, tile by tile, so that their blocks read the same at a time. But of the `last` of them (times the blocks
    that share a tile) all first tiles come first, then all second ones: what begins at the end is short.
    """
    tile, at = tk.bid(0), tk.bid(1) + tk.num_blocks(1) * tk.bid(2)
    before = tk.num_blocks(1) * tk.num_blocks(2) - last
    if at >= before:
        number = (at - before) * tk.num_blocks(0) + tile
        tile = number // last
        at = before + number - tile * last
    part = at // tk.num_blocks(1) if split else 0
    return tile, at - part * tk.num_blocks(1), part


@tk.kernel
def _of_rows(
    delta: tk.Out, sums: tk.Out, dq: tk.Out, grad: tk.In, o: tk.In, lse: tk.In, heads: int, adds: tk.Const
):  # fmt: skip
    """`-sum(grad * o)` of each query, and the power of two of its exponentials; zeros for `dq` if a kernel `adds` to it."""
    i, h = tk.bid(0), tk.bid(1)
    b = h // heads
    h = h - b * heads
    g = tk.load(grad, (b, h, i, 0), (1, 1, BM, BD)).astype(tk.float32)
    total = tk.sum(g * tk.load(o, (b, h, i, 0), (1, 1, BM, BD)).astype(tk.float32), 3)
    s = tk.load(lse, (b, h, i), (1, 1, BM), padding_mode="-inf")
    tk.store(delta, (b, h, i), -total)
    tk.store(sums, (b, h, i), power_of(s))
    if adds:
        tk.store(dq, (b, h, i, 0), tk.zeros((1, 1, 1, BS), tk.float32))


@tk.kernel
def _backward_dq(
    dq: tk.Out, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, scale: float, left: int, right: int,
    group: int, at_last: int, turns: int, below: tk.Const, above: tk.Const, stages: tk.Const, split: tk.Const,
):  # fmt: skip
    """If `split`, a block takes up to so many `turns`. `dq` is then (batch * heads, blocks that share, queries, size).

    `at_last`: how many heads are for the end, see `_longest_first`.
    """
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    tile, outer, inner = tk.bid(0), tk.bid(1), tk.bid(2)
    if above and not below:
        tile, outer, inner = _longest_first(at_last, split)
    i = tk.num_blocks(0) - 1 - tile
    b = outer // heads
    h = outer - b * heads
    if not split:
        outer, inner = b, h
    diagonal = i * BM + keys - queries
    first, last = 0, tk.cdiv(keys, BN)
    if below:
        first = max(0, diagonal - left) // BN
    if above:
        last = min(last, tk.cdiv(max(0, diagonal + min(BM, queries - i * BM) + right), BN))
    if split:
        first = min(first + inner * turns, last)
        last = min(first + turns, last)
    factor = scale * LOG2_E
    for tq, tg in tk.pipelined(
        q.tiles((1, 1, BM, BD))[b, h, i : i + 1, 0], grad.tiles((1, 1, BM, BD))[b, h, i : i + 1, 0], stages=1
    ):
        acc = tk.zeros((BM, BD), tk.float32)
        j = first
        for key, value in tk.pipelined(
            k.tiles((1, 1, BN, BD))[b, h // group, first:last, 0],
            v.tiles((1, 1, BN, BD))[b, h // group, first:last, 0],
            stages=stages,
        ):
            nothing = tk.zeros((BM, BN), tk.float32)
            shift = tk.load(sums, (b, h, i), (1, 1, BM)).reshape((BM, 1))
            less = tk.load(delta, (b, h, i), (1, 1, BM)).reshape((BM, 1))
            scores = tk.mma(tq.reshape((BM, BD)), key.reshape((BN, BD)).transpose(), nothing)
            dp = tk.mma(tg.reshape((BM, BD)), value.reshape((BN, BD)).transpose(), nothing)
            scores = seen(scores, j * BN, keys, diagonal, left, right, below, above)
            p = tk.exp2(scores * factor + shift, flush_to_zero=True)
            ds = (p * (dp + less)).astype(k.dtype)
            acc = tk.mma(ds, key.reshape((BN, BD)), acc)
            j += 1
        tk.store(dq, (outer, inner, i, 0), (acc * scale).astype(dq.dtype).reshape((1, 1, BM, BD)))


@tk.kernel
def _backward_dkv(
    dk: tk.Out, dv: tk.Out, dq: tk.InOut, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, scale: float,
    left: int, right: int, group: int, at_last: int, share: int, cuts: int, turns: int, below: tk.Const, above: tk.Const,
    stages: tk.Const, adds: tk.Const, alone: tk.Const, early: tk.Const, ragged: tk.Const, split: tk.Const, wants_dk: tk.Const,
    wants_dv: tk.Const,
):  # fmt: skip
    """If it `adds`, `dq` holds `BS` floats, which are `BD * BN`, for each tile of queries: see `_of_sums`. If a tile of keys is
    `alone`, what it would add is the gradient, and `dq` is that.

    `early` is for who has the registers: products by keys are computed while threads add those by queries to the sums. `ragged`:
    the last tile of keys has some that do not exist. They are zeros, but their weights may be infinite. `wants_dk`, `wants_dv`:
    which gradients are wanted, see `_Tiling.wanted`.

    If `split`, a block takes up to `share` heads of a group of queries, and one of so many `cuts` of their tiles, each of up to
    so many `turns`. `dk` and `dv` are then of the shape (batch * key heads, blocks that share, keys, size). For `at_last` see
    `_longest_first`.
    """
    queries, keys, key_heads = q.shape[2], k.shape[2], k.shape[1]
    j, outer, inner = tk.bid(0), tk.bid(1), tk.bid(2)
    if above and not below:
        j, outer, inner = _longest_first(at_last, split)
    b = outer // key_heads
    h = outer - b * key_heads
    low, high = 0, group
    if split:
        low = inner // cuts * share
        high = min(group, low + share)
    else:
        outer, inner = b, h
    diagonal = j * BM + queries - keys
    first, last = 0, tk.cdiv(queries, BN)
    if above:
        first = max(0, diagonal - right) // BN
    if below:
        last = min(last, tk.cdiv(max(0, diagonal + BM + left), BN))
    if split:
        first = min(first + inner % cuts * turns, last)
        last = min(first + turns, last)
    factor = scale * LOG2_E
    for tkey, tvalue in tk.pipelined(
        k.tiles((1, 1, BM, BD))[b, h, j : j + 1, 0], v.tiles((1, 1, BM, BD))[b, h, j : j + 1, 0], stages=1
    ):
        dk_acc, dv_acc = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, BD), tk.float32)
        for which in range(low, high):
            at = h * group + which
            i = first
            for tq, tg, shift, less in tk.pipelined(
                q.tiles((1, 1, BN, BD))[b, at, first:last, 0],
                grad.tiles((1, 1, BN, BD))[b, at, first:last, 0],
                sums.tiles((1, 1, BN))[b, at, first:last],
                delta.tiles((1, 1, BN))[b, at, first:last],
                stages=stages,
            ):
                nothing = tk.zeros((BM, BN), tk.float32)
                scores = tk.mma(tkey.reshape((BM, BD)), tq.reshape((BN, BD)).transpose(), nothing)
                if wants_dk:
                    dp = tk.mma(tvalue.reshape((BM, BD)), tg.reshape((BN, BD)).transpose(), nothing)
                if adds and ragged:
                    scores = tk.where(tk.arange(BM)[:, None] < keys - j * BM, scores, float("-inf"))
                # Rows are keys here, and columns queries: what bounds the one bounds the other from the other side.
                scores = within(scores, i * BN, diagonal, right, left, above, below)
                p = tk.exp2(scores * factor + shift.reshape((1, BN)), flush_to_zero=True)
                weights = p.astype(v.dtype)
                if wants_dv:
                    dv_acc = tk.mma(weights, tg.reshape((BN, BD)), dv_acc)
                if wants_dk:
                    ds = (p * (dp + less.reshape((1, BN)))).astype(k.dtype)
                    if early:
                        dq_part = tk.mma(tkey.reshape((BM, BD)).transpose(), ds, tk.zeros((BD, BN), tk.float32))
                    dk_acc = tk.mma(ds, tq.reshape((BN, BD)), dk_acc)
                if adds and not early:
                    dq_part = tk.mma(tkey.reshape((BM, BD)).transpose(), ds, tk.zeros((BD, BN), tk.float32))
                if adds and alone:
                    tk.store(dq, (b, at, i, 0), (dq_part * scale).astype(dq.dtype).transpose().reshape((1, 1, BN, BD)))
                elif adds:
                    tk.atomic_add_tile(dq, (b, at, i, 0), as_held(dq_part).reshape((1, 1, 1, BS)))
                i += 1
        if wants_dk:
            tk.store(dk, (outer, inner, j, 0), (dk_acc * scale).astype(dk.dtype).reshape((1, 1, BM, BD)))
        if wants_dv:
            tk.store(dv, (outer, inner, j, 0), dv_acc.astype(dv.dtype).reshape((1, 1, BM, BD)))


@tk.function
def as_held(product):
    """A product of `BD` rows and `BN` columns in the order in which threads hold it: each has 16 bytes, warps have 512."""
    return product.reshape((BD // 16, 2, 8, BN // 8, 4, 2)).permute((0, 3, 2, 4, 1, 5))


def summed_columns(size: int) -> int:
    """Of how many elements of a head there are sums: of the `BD` whose order is `as_held` those in front, 16 at a time."""
    return -(-size // 16) * 16


@tk.function
def of_held(held):
    """The product that `as_held` ordered so."""
    parts = held.reshape((BD // 16, BN // 8, 8, 4, 2, 2))
    return parts.permute((0, 4, 2, 1, 3, 5)).reshape((BD, BN))


@tk.kernel
def _of_sums(dq: tk.Out, results: tuple[tk.Out, ...], sums: tk.In, parts: tuple[tk.In, ...], heads: int, scale: float):
    """The gradients by queries from their sums, as `as_held` orders them: a block for each tile of queries.

    Behind these, in the third dimension of the grid, what `_of_parts` does.
    """
    if len(parts) == 0:
        _dq_of_sums(dq, sums, heads, scale, (1, 1, 1, BS), (1, 1, BN, BD))
    else:
        if tk.bid(2) == 0:
            if tk.bid(0) * BN < dq.shape[2]:
                _dq_of_sums(dq, sums, heads, scale, (1, 1, 1, BS), (1, 1, BN, BD))
        else:
            _added_up(results, parts, tk.bid(2) - 1, (1, BP, BR, BD))


@tk.function
def _dq_of_sums(dq, sums, heads, scale, held: tk.Const, shape: tk.Const):
    i, h = tk.bid(0), tk.bid(1)
    b = h // heads
    h = h - b * heads
    product = of_held(tk.load(sums, (b, h, i, 0), held))
    tk.store(dq, (b, h, i, 0), (product * scale).astype(dq.dtype).transpose().reshape(shape))


@tk.kernel
def _of_parts(results: tuple[tk.Out, ...], parts: tuple[tk.In, ...]):
    """Results of which several blocks had a part each: a block for each `BR` rows of a head."""
    _added_up(results, parts, tk.bid(2), (1, BP, BR, BD))


@tk.function
def _added_up(results, parts, which, shape: tk.Const):
    for at in tk.static_range(len(parts)):
        result, rows = results[at], shape[2]
        heads = result.shape[1]
        i, h = tk.bid(0), tk.bid(1)
        if which == at and h < result.shape[0] * heads and i * rows < result.shape[2]:
            total = tk.sum(tk.load(parts[at], (h, 0, i, 0), shape), 1)
            b = h // heads
            tk.store(result, (b, h - b * heads, i, 0), total.astype(result.dtype).reshape((1, 1, rows, shape[3])))


class _Tile(NamedTuple):
    """`BM`, `BN`, the stages and the warps."""

    rows: int
    columns: int
    stages: int | None
    num_warps: int


class _Tiling(NamedTuple):
    """`BD`, and the tiles of the two kernels."""

    depth: int
    dq: _Tile
    dkv: _Tile

    @property
    def wanted(self) -> tuple[tuple[bool, bool], ...]:
        """For each launch of the kernel by keys, whether it makes the gradients by keys, and those by values.

        With tiles of 128 rows, a thread has registers for two accumulators of 128 columns, or for one of 256; so there are two
        launches, which both compute the weights: 8 products instead of 7, but by warpgroups.
        """
        return ((True, True),) if self.depth <= 128 or self.dkv.stages is None else ((True, False), (False, True))


# On GPUs of compute capability 9.0, by the head size.
_AHEAD = {
    64: _Tiling(64, _Tile(128, 128, 3, 8), _Tile(128, 64, 3, 8)),
    128: _Tiling(128, _Tile(128, 64, 3, 8), _Tile(128, 64, 3, 8)),
    256: _Tiling(256, _Tile(128, 32, 2, 8), _Tile(128, 32, 2, 8)),
}
# The same where products are waited for in each turn: of packed sequences.
_STAGED = {
    64: _Tiling(64, _Tile(128, 64, 4, 8), _Tile(128, 64, 4, 8)),
    128: _Tiling(128, _Tile(128, 64, 3, 8), _Tile(128, 32, 4, 8)),
    256: _Tiling(256, _Tile(128, 32, 2, 8), _Tile(128, 32, 2, 8)),
}
_LOADED = {
    64: _Tiling(64, _Tile(64, 32, None, 4), _Tile(64, 32, None, 4)),
    128: _Tiling(128, _Tile(64, 32, None, 4), _Tile(32, 32, None, 4)),
    256: _Tiling(256, _Tile(32, 16, None, 4), _Tile(32, 16, None, 4)),
}
_CPU_TILE = 128

# What it costs to share tiles, by the time of a turn: a block has begun and ended, the parts of as many blocks as there are
# multiprocessors are written and added up, another kernel is launched. And by how much sharing must be faster to be done.
_BEGUN, _ADDED, _LAUNCHED, _FASTER = 2.0, 3.0, 1.0, 0.95
_UNEVEN = 0.3  # of the time of the longest of different blocks, by which the last to end is later than their mean
_MOST_PARTS = 32
# Of causal blocks, those which come at the end tile by tile. By a simulation of 222 shapes what ideal balance takes is exceeded
# by 20 % without, by 5 % with one round, by 4 % with two or more.
_LAST_ROUNDS = 2
_ADDED_AT_A_TIME = 8192  # floats of a block that adds parts up


class _Split(NamedTuple):
    """How so many blocks share a tile: each takes up to `share` heads of a group, and one of `cuts` of up to so many `turns`."""

    share: int
    cuts: int
    turns: int
    parts: int


@functools.lru_cache(maxsize=1024)
def split_of(turns: tuple[int, ...], heads: int, group: int, count: int) -> _Split:
    """How blocks share tiles so that as many multiprocessors are done soonest, by a model; if they do not, there is 1 part.

    A multiprocessor has a block at a time.

    Args:
        turns: those of each of the tiles of a head, for each head of the group.
        heads: how many heads have such tiles.
        group: for how many heads each of their tiles takes so many turns.
        count: of multiprocessors.
    """
    longest, every, alike = max(turns), heads * group * sum(turns), min(turns) == max(turns)

    def time(split: _Split) -> float:
        blocks, alone = len(turns) * heads * split.parts, _BEGUN + split.share * split.turns
        if alike or blocks <= count:
            needed = -(-blocks // count) * alone
        else:  # some are shorter, come last, and fill up what the longest leave: see `_LAST_ROUNDS`
            needed = max(alone, (_BEGUN * blocks + every) / count + _UNEVEN * alone)
        return needed if split.parts == 1 else needed + _LAUNCHED + _ADDED * blocks / count

    whole = _Split(group, 1, max(1, longest), 1)
    best, least = whole, _FASTER * time(whole)
    # As many blocks as there are multiprocessors, or a few times as many; no more.
    limit = min(_MOST_PARTS, 4 * count // (len(turns) * heads))
    for shares in {-(-group // -(-group // n)) for n in range(1, min(group, limit) + 1)}:
        for cuts in {-(-longest // -(-longest // n)) for n in range(1, min(longest, limit // shares) + 1)}:
            split = _Split(-(-group // shares), cuts, -(-longest // cuts), shares * cuts)
            if split.parts > 1 and time(split) < least:
                best, least = split, time(split)
    return best


@functools.lru_cache(maxsize=1024)
def _turns(tile: _Tile, rows: int, columns: int, left: int, right: int, below: bool, above: bool) -> tuple[int, ...]:
    """How many tiles of columns each tile of rows sees, where the last row stands at the last column: see `Masks`."""
    turns = []
    for at in range(0, rows, tile.rows):
        diagonal = at + columns - rows
        first = max(0, diagonal - left) // tile.columns if below else 0
        last = max(0, min(columns, diagonal + tile.rows + right)) if above else columns
        turns.append(max(0, -(-last // tile.columns) - first))
    return tuple(turns)


@functools.lru_cache(maxsize=256)
def tiling_of(size: int, queries: int, keys: int, cpu: bool, staged: bool, overlapped: bool = False) -> _Tiling:
    """The tiles for heads of a size, and so many queries and keys; `overlapped` if products may stay under way."""
    if cpu:
        rows, columns = (min(_CPU_TILE, max(16, power(n))) for n in (queries, keys))
        return _Tiling(max(16, power(size)), _Tile(rows, columns, None, 1), _Tile(columns, rows, None, 1))
    return ((_AHEAD if overlapped else _STAGED) if staged else _LOADED)[max(64, power(size))]


@takes_ops
def attention_backward(
    grad: Operand,
    q: Operand,
    k: Operand,
    v: Operand,
    out: Operand,
    lse: Operand,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    deterministic: bool = False,
) -> DeviceOp[tuple[Tensor, Tensor, Tensor]]:
    """The gradients of `attention` by `q`, `k` and `v`.

    Args:
        grad: the gradient by the result, of the shape and dtype of `q`.
        q, k, v: as they were given to `attention`.
        out, lse: what `attention(..., return_lse=True)` gave.
        scale, causal, window: as they were given to `attention`.
        deterministic: whether the result must be the same in every run. If not, 16-bit floats with heads of up to 128 elements
            are faster on GPUs of compute capability 9.0: the blocks add to the gradient by `q` atomically, in float32, which
            takes `B * H * LQ * D` floats of memory besides (D and LQ rounded up to multiples of 16 and of 64). Where blocks share
            tiles, of short sequences and few heads, their parts are floats as well: at most 140 MB on an H200.

    Returns:
        An op whose result is three tensors, like `q`, `k` and `v`. Those by `k` and `v` are the same in every run, that by `q` if
        `deterministic` says so: else its last bits may differ. Weights and their gradients are rounded to the dtype of the
        tensors before they are multiplied; sums are taken in float32.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "attention_backward"
    check_qkv(name, q, k, v, grad=grad, out=out)
    a_tensor(name, lse=lse)
    deterministic = check_flag(f"{name}: deterministic", deterministic)
    if lse.shape != q.shape[:3] or lse.dtype != dtypes.float32:
        raise ValueError(
            f"{name}: lse is {lse.dtype.name} of shape {lse.shape}; for queries of shape {q.shape} it is float32 of shape "
            f"{q.shape[:3]}: take what attention(..., return_lse=True) gives"
        )
    factor, masks = scale_of(name, scale, q), masks_of(name, causal, window)
    (batch, heads, queries, size), (_, key_heads, keys, _) = q.shape, k.shape
    tiling = tiling_of(size, queries, keys, on_cpu(q), in_stages(q, k, v, grad), overlapped=True)
    # Whole tiles of queries: those that do not exist have sums of infinity, and so no weights.
    whole, rows = -(-queries // tiling.dkv.columns), tiling.dkv.columns
    kept = Spec((batch, heads, whole * rows), dtypes.float32)
    group, masked = heads // max(1, key_heads), masks.below or masks.above
    # The queries that each tile of keys is seen by. One tile that all are seen by gives all of their gradients.
    seen_by = _turns(tiling.dkv, keys, queries, masks.right, masks.left, masks.above, masks.below)
    alone = seen_by == (whole,)
    adds = tiling.dkv.stages is not None and len(tiling.wanted) == 1 and (alone or not deterministic)
    early, held = adds and tiling.depth == 128 and not masked, tiling.depth * rows

    def splits() -> tuple[_Split, _Split]:
        """Of the kernel by queries, and of that by keys."""
        if tiling.dkv.stages is None:
            return _Split(1, 1, 1, 1), _Split(group, 1, 1, 1)
        sees, count = _turns(tiling.dq, queries, keys, *masks), multiprocessors(q)
        return split_of(sees, batch * heads, 1, count), split_of(seen_by, batch * key_heads, group, count)

    def steps(new):
        dq, dk, dv = (new(Spec(x.shape, x.dtype)) for x in (q, k, v))
        if not q.size or not k.size:
            for x in (dq, dk, dv):
                if x.size:
                    yield filled(x)
            return dq, dk, dv
        by_queries, by_keys = splits()

        def written(result, split):
            """Where its blocks write a result: there, or to a tensor that has their parts."""
            b, h, *one = result.shape
            return result if split.parts == 1 else new(Spec((b * h, split.parts, *one), dtypes.float32))

        delta, sums = new(kept), new(kept)
        summed = adds and not alone
        if summed:
            dq_sums = new(Spec((batch, heads, whole, summed_columns(size) * rows), dtypes.float32))
        else:
            dq_sums = dq if adds else written(dq, by_queries)
        launch = _of_rows(delta.scattered(), sums.scattered(), dq_sums.scattered(), grad, out, lse, heads, summed)
        yield launch.generics(BM=rows, BD=tiling.depth, BS=held).num_warps(4).grid((whole, batch * heads))
        arguments, tile = (q, k, v, grad, delta, sums, factor, masks.left, masks.right, group), tiling.dkv
        count = multiprocessors(q)

        def at_last(tiles, heads, parts):
            """Of how many heads, times parts, the last rounds of blocks are."""
            return min(heads * parts, -(-_LAST_ROUNDS * count // tiles))

        dk_parts, dv_parts = written(dk, by_keys), written(dv, by_keys)
        split, ragged = by_keys.parts > 1, keys % tile.rows > 0
        grid = -(-keys // tile.rows), batch * key_heads, by_keys.parts
        for wanted in tiling.wanted:
            launch = _backward_dkv(
                dk_parts.scattered(), dv_parts.scattered(), dq_sums.scattered(), *arguments, at_last(*grid), *by_keys[:3],
                masks.below, masks.above, tile.stages, adds, alone, early, ragged, split, *wanted,
            )  # fmt: skip
            yield of_tiles(launch.generics(BS=held), tiling, tile, *grid)
        of_parts = [(dk, dk_parts, by_keys.parts), (dv, dv_parts, by_keys.parts)] if split else []
        if not adds:
            split, tile = by_queries.parts > 1, tiling.dq
            grid = -(-queries // tile.rows), batch * heads, by_queries.parts
            launch = _backward_dq(
                dq_sums.scattered(), *arguments, at_last(*grid), by_queries.turns, masks.below, masks.above, tile.stages, split
            )
            yield of_tiles(launch, tiling, tile, *grid)
            of_parts += [(dq, dq_sums, by_queries.parts)] if split else []
        if summed or of_parts:
            widest = max((power(parts) for _, _, parts in of_parts), default=1)
            each = _ADDED_AT_A_TIME // (tiling.depth * widest)
            results, added = tuple(x.scattered() for x, _, _ in of_parts), tuple(x for _, x, _ in of_parts)
            tiles = max((-(-x.shape[2] // each) for x, _, _ in of_parts), default=0)
            if summed:
                launch = _of_sums(dq.scattered(), results, dq_sums, added, heads, factor).generics(BN=rows, BS=held)
                grid = max(whole, tiles), batch * heads, 1 + len(of_parts)
            else:
                launch, grid = _of_parts(results, added), (tiles, batch * heads, len(of_parts))
            yield launch.generics(BD=tiling.depth, BR=each, BP=widest).num_warps(4).grid(grid)
        return dq, dk, dv

    return Launches(q, steps)


def of_tiles(launch: tk.KernelLaunch, tiling: _Tiling, tile: _Tile, tiles: int, count: int, parts: int = 1) -> tk.KernelLaunch:
    """A launch with so many blocks for each of so many tiles of each of `count` heads."""
    launch = launch.generics(BM=tile.rows, BN=tile.columns, BD=tiling.depth).num_warps(tile.num_warps)
    return launch.grid((tiles, count, parts))
