"""Attention of a few queries at the end of each sequence, as when tokens are generated one by one.

There is little to calculate and much to read: all keys and values once. To keep all multiprocessors busy, the keys of a sequence
are dealt out to several blocks, each of which writes a result of its own and the logarithm of its sum; a second kernel weighs
these and adds them up, always in the same order ("Flash-Decoding", Dao et al., 2023). Query heads that share a key head are rows
of one tile.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tilekit as tk
from tilekit import dtypes
from tilekit.kernels._host import Launches, Operand, integers, on_cpu, out_or_new, power, shaped, takes_ops
from tilekit.kernels.attentions import LOG2_E, LOWEST, check_qkv, scale_of
from tilekit.ops import DeviceOp, Spec
from tilekit.tensor import Tensor

__all__ = ["attention_decode"]

BM, BN, BD = tk.generics("BM BN BD")

_MOST_ROWS, _MOST_SPLITS = 64, 64
_LEAST_ROWS, _COLUMNS, _CPU_COLUMNS = 16, 64, 256
_LEAST_SHARE = 4  # tiles of keys that are worth a block
_MULTIPROCESSORS = 132  # where there is no GPU: those of an H200


@tk.kernel
def _of_parts(
    o: tk.Out, sums: tk.Out, q: tk.In, k: tk.In, v: tk.In, lengths: tk.In, pages: tk.In, scale: float, keys: int, queries: int,
    share: int, given: tk.Const, tiles_of_page: tk.Const,
):  # fmt: skip
    part, at = tk.bid(0), tk.bid(1)
    b = at // k.shape[1]
    h = at - b * k.shape[1]
    # A sequence may be longer than what there is room for, if someone counts wrongly; what is not there is not read.
    length = tk.minimum(tk.load(lengths, b, ()), keys) if given else keys
    query = tk.load(q, (b, h, 0, 0), (1, 1, BM, BD)).reshape((BM, BD))
    acc, total = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, 1), tk.float32)
    most = tk.full((BM, 1), LOWEST, tk.float32)
    # The query of a row stands so far from the last key.
    last = tk.arange(BM)[:, None] % queries + (length - queries)
    for j in range(part * share, min((part + 1) * share, tk.cdiv(keys, BN))):
        if j * BN < length:
            if tiles_of_page:
                page = tk.load(pages, (b, j // tiles_of_page), ())
                inside = j % tiles_of_page
            else:
                page = b
                inside = j
            key = tk.load(k, (page, h, inside, 0), (1, 1, BN, BD)).reshape((BN, BD))
            value = tk.load(v, (page, h, inside, 0), (1, 1, BN, BD)).reshape((BN, BD))
            scores = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32))
            columns = tk.where(scores == scores, tk.arange(BN)[None, :], tk.arange(BN)[None, :])  # in the layout of the scores
            scores = tk.where(columns <= last - j * BN, scores, float("-inf"))
            higher = tk.maximum(most, tk.max(scores, 1, keepdims=True) * scale)
            p, shrink = tk.exp2(scores * scale - higher, flush_to_zero=True), tk.exp2(most - higher, flush_to_zero=True)
            total = total * shrink + tk.sum(p, 1, keepdims=True)
            acc = tk.mma(p.astype(v.dtype), value, acc * shrink)
            most = higher
    made = acc * tk.where(total == 0, 0.0, 1.0 / total)
    tk.store(o, (part, at, 0, 0), made.reshape((1, 1, BM, BD)))
    tk.store(sums, (part, at, 0), (most + tk.log2(total)).reshape((1, 1, BM)))


@tk.kernel
def _together(y: tk.Out, o: tk.In, sums: tk.In, parts: int):
    at = tk.bid(0)
    acc, total = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, 1), tk.float32)
    most = tk.full((BM, 1), LOWEST, tk.float32)
    for part in range(parts):
        s = tk.load(sums, (part, at, 0), (1, 1, BM)).reshape((BM, 1))
        higher = tk.maximum(most, s)
        weight, shrink = tk.exp2(s - higher), tk.exp2(most - higher)
        acc = acc * shrink + tk.load(o, (part, at, 0, 0), (1, 1, BM, BD)).reshape((BM, BD)) * weight
        total = total * shrink + weight
        most = higher
    tk.store(y, (at, 0, 0), (acc * tk.where(total == 0, 0.0, 1.0 / total)).astype(y.dtype).reshape((1, BM, BD)))


class _Plan(NamedTuple):
    """`BM`, `BN`, `BD`, the parts, and how many tiles of keys each has."""

    rows: int
    columns: int
    depth: int
    parts: int
    share: int


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
        lengths: how many keys each sequence has, int32 or int64 of shape `(B,)`, the queries' own included; by default all.
        block_table: int32 or int64 of shape `(B, N)`: row `b` lists the pages of sequence `b`, in order. Pages behind its length
            are not looked at.
        scale: as for `attention`.
        splits: to how many blocks the keys of a sequence are dealt out, instead of as many as keep the GPU busy.
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
    if splits is not None and (type(splits) is not int or splits < 1):
        raise ValueError(f"{name}: splits is an int from 1 on, not {splits!r}")
    place = out_or_new(name, out, q)
    count = q.device.driver.multiprocessors if q.device is not None else _MULTIPROCESSORS
    plan = _plan(batch * key_heads, group * queries, size, keys, page, count, on_cpu(q), splits)
    rows = (batch, key_heads, group * queries, size)

    def steps(new):
        y = new(place)
        if not y.size:
            return y
        if not keys:
            yield y.fill(0)
            return y
        packed = shaped(q, rows) if q.is_contiguous else shaped((yield q.dup()), rows)
        o = new(Spec((plan.parts, batch * key_heads, *rows[2:]), dtypes.float32))
        sums = new(Spec(o.shape[:3], dtypes.float32))
        launch = _of_parts(
            o.scattered(), sums.scattered(), packed, k, v, q if lengths is None else lengths, block_table if paged else q,
            factor * LOG2_E, keys, queries, plan.share, lengths is not None, page // plan.columns if paged else 0,
        )  # fmt: skip
        generics = {"BM": plan.rows, "BD": plan.depth}
        yield launch.generics(BN=plan.columns, **generics).num_warps(4).grid((plan.parts, batch * key_heads))
        flat = y if y.is_contiguous else new(Spec(y.shape, y.dtype))
        launch = _together(shaped(flat, (batch * key_heads, *rows[2:])).scattered(), o, sums, plan.parts)
        yield launch.generics(**generics).num_warps(4).grid(batch * key_heads)
        if flat is not y:
            yield flat.copy_into(y)
        return y

    return Launches(q, steps, q)


@functools.lru_cache(maxsize=256)
def _plan(blocks: int, rows: int, size: int, keys: int, page: int, count: int, cpu: bool, splits: int | None) -> _Plan:
    columns = min(_CPU_COLUMNS if cpu else _COLUMNS, max(16, power(page)))
    tiles = max(1, -(-keys // columns))
    parts = splits or max(1, min(_MOST_SPLITS, 2 * count // max(1, blocks), tiles // _LEAST_SHARE))
    share = -(-tiles // min(parts, tiles))
    return _Plan(max(_LEAST_ROWS, power(rows)), columns, max(16, power(size)), -(-tiles // share), share)


def _check_table(name: str, table: Any, batch: int, page: int) -> int:
    """The length of a page."""
    integers(name, block_table=table)
    if len(table.shape) != 2 or table.shape[0] != batch:
        raise ValueError(f"{name}: block_table has shape {table.shape}; for {batch} sequences it is ({batch}, pages of each)")
    if page < 16 or page & (page - 1):
        raise ValueError(f"{name}: pages have {page} keys; it takes powers of two from 16 on")
    return page
