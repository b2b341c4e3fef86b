"""Attention of sequences of any lengths, packed one behind the other: no padding, and no batch dimension.

Where tiles come ahead (of 16-bit floats, on compute capability 9.0), they begin where sequences do. Elsewhere they are those of
the packed tensors, in which sequences begin anywhere: a tile of queries in which sequences meet is visited once for each, and of
the result each visit stores the rows that are its sequence's. The tiles at the ends of a sequence's keys may hold keys of others,
which are masked. No weight makes a zero of a value that is infinite or no number: where others have such, the sequence's own are
added row by row.
"""

from __future__ import annotations

from typing import Any

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.errors import check_flag
from tilekit.kernels._attention.arguments import check_qkv, check_starts, scale_of
from tilekit.kernels._attention.forward import taller, tiling_of
from tilekit.kernels._attention.mask import masks_of, seen
from tilekit.kernels._attention.online_softmax import LN_2, LOG2_E, LOWEST, online_softmax
from tilekit.kernels._attention.varlen_schedule import range_at, visit_at, visits_of
from tilekit.kernels._host import (
    Launches,
    Operand,
    check_choice,
    filled,
    multiprocessors,
    on_cpu,
    out_or_new,
    takes_ops,
)
from tilekit.kernels._staging import in_stages
from tilekit.ops import DeviceOp, Spec

__all__ = ["attention_varlen", "by_rows", "finite_outside"]

BM, BN, BD = tk.generics("BM BN BD")

# ------------------------------------------------------------------------------------------------------------------------- kernel


@tk.function
def visible(top, bottom, end, other_begin, other_end, left, right, columns: tk.Const, below: tk.Const, above: tk.Const):
    """Of the tiles of the other tensor, the first that rows `top` to `bottom` see any of, and the one behind the last."""
    low, high = other_begin, other_end
    if below:
        low = max(low, top + other_end - end - left)
    if above:
        high = min(high, bottom + other_end - end + right)
    return low // columns, tk.cdiv(max(low, high), columns)


@tk.function
def inside(row, rows, begin, end):
    """Which of the rows from `row` on are those of a sequence, as a column."""
    at = tk.arange(rows)[:, None]
    return (at >= begin - row) & (at < end - row)


@tk.function
def finite_outside(tile, row, begin, end):
    """Whether all is finite in those rows of a tile, whose first is `row`, that are not from `begin` to `end`."""
    others = tk.where(inside(row, tile.shape[0], begin, end), 0.0, tile.astype(tk.float32))
    return tk.sum(others * 0.0).item() == 0.0


@tk.function
def by_rows(weights, x, h, row, begin, end, acc):
    """`acc + weights @ tile`, of those rows of a tile of `x`, whose first is `row`, that are from `begin` to `end`."""
    columns = tk.arange(weights.shape[1])[None, :]
    for at in range(max(row, begin), min(row + weights.shape[1], end)):
        weight = tk.sum(tk.where(columns == at - row, weights.astype(tk.float32), 0.0), 1, keepdims=True)
        weight = tk.where(acc == acc, weight, weight)  # in the layout that the sums have
        acc = acc + weight * tk.load(x, (h, at, 0), (1, 1, acc.shape[1])).astype(tk.float32).reshape((1, acc.shape[1]))
    return acc


@tk.kernel
def _varlen(
    o: tk.Out, lse: tk.Out, q: tk.In, k: tk.In, v: tk.In, visits: tk.In, scale: float, left: int, right: int, group: int,
    below: tk.Const, above: tk.Const, stages: tk.Const, precision: tk.Const,
):  # fmt: skip
    h = tk.bid(1)
    # With a causal mask the last rows of a sequence have most to do; they come first.
    visit = tk.num_blocks(0) - 1 - tk.bid(0)
    _, part, begin, end, key_begin, key_end = visit_at(visits, visit)
    i = visit - part
    top, bottom = max(begin, i * BM), min(end, (i + 1) * BM)
    if top < bottom:
        diagonal = i * BM + key_end - end
        first, last = visible(top, bottom, end, key_begin, key_end, left, right, BN, below, above)
        for tq in tk.pipelined(q.tiles((1, BM, BD))[h, i : i + 1, 0], stages=1):
            acc, row_sum = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, 1), tk.float32)
            row_max = tk.full((BM, 1), LOWEST, tk.float32)
            j = first
            for tkey, tvalue in tk.pipelined(
                k.tiles((1, BN, BD))[h // group, first:last, 0],
                v.tiles((1, BN, BD))[h // group, first:last, 0],
                stages=stages,
                rotate=False,
            ):
                nothing = tk.zeros((BM, BN), tk.float32)
                key, value = tkey.reshape((BN, BD)), tvalue.reshape((BN, BD))
                scores = tk.mma(tq.reshape((BM, BD)), key.transpose(), nothing, precision=precision)
                shared = j * BN < key_begin or (j + 1) * BN > key_end
                cut = shared
                if above:
                    cut = cut or (j + 1) * BN > diagonal + right + 1
                if below:
                    cut = cut or j * BN < diagonal + BM - 1 - left
                if cut:
                    scores = tk.where(j * BN + tk.arange(BN)[None, :] >= key_begin, scores, float("-inf"))
                    scores = seen(scores, j * BN, key_end, diagonal, left, right, below, above)
                new_max = tk.maximum(row_max, tk.max(scores, 1, keepdims=True) * scale)
                p, alpha = tk.exp2(scores * scale - new_max, flush_to_zero=True), tk.exp2(row_max - new_max, flush_to_zero=True)
                row_sum = row_sum * alpha + tk.sum(p, 1, keepdims=True)
                acc, weights = acc * alpha, p.astype(v.dtype)
                if shared and not finite_outside(value, j * BN, key_begin, key_end):
                    acc = by_rows(weights, v, h // group, j * BN, key_begin, key_end, acc)
                else:
                    acc = tk.mma(weights, value, acc, precision=precision)
                row_max = new_max
                j += 1
            result = (acc * tk.where(row_sum == 0, 0.0, 1.0 / row_sum)).astype(o.dtype).reshape((1, BM, BD))
            sums = ((row_max + tk.log2(row_sum)) * LN_2).reshape((1, BM))
            mine = inside(i * BM, BM, begin, end)
            tk.store(o, (h, i, 0), result, mask=mine.reshape((1, BM, 1)))
            tk.store(lse, (h, i), sums, mask=mine.reshape((1, BM)))


@tk.kernel
def _varlen_overlapped(
    o: tk.Out, lse: tk.Out, q: tk.In, k: tk.In, v: tk.In, visits: tk.In, scale: float, left: int, right: int, group: int,
    below: tk.Const, above: tk.Const, stages: tk.Const,
):  # fmt: skip
    """As `_varlen`, with tiles that begin where sequences do, so that only the last tile of keys may hold others'.

    The first scores are asked for ahead of the loop, and the last values added behind it, since what happens to these differs.
    """
    h, visit = tk.bid(1), tk.num_blocks(0) - 1 - tk.bid(0)
    i, _, begin, _, _, _ = visit_at(visits, visit)
    if i >= 0:
        for tq in tk.pipelined(q.slice(1, begin).tiles((1, BM, BD))[h, i : i + 1, 0], stages=1):
            query = tq.reshape((BM, BD))
            acc, row_sum = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, 1), tk.float32)
            row_max = tk.full((BM, 1), LOWEST, tk.float32)
            scores = tk.zeros((BM, BN), tk.float32)
            key_begin, first, some, last, keys, diagonal = _keys_at(visits, visit)
            for key in tk.pipelined(k.slice(1, key_begin).tiles((1, BN, BD))[h // group, first : first + some, 0], stages=1):
                scores = tk.mma(query, key.reshape((BN, BD)).transpose(), scores)
            scores = seen(scores, first * BN, keys, diagonal, left, right, below, above)
            p, row_max, row_sum, alpha = online_softmax(scores, row_max, row_sum, scale)
            weights = p.astype(v.dtype)
            j = first + some
            for key, value in tk.pipelined(
                k.slice(1, key_begin).tiles((1, BN, BD))[h // group, first + some : last, 0],
                v.slice(1, key_begin).tiles((1, BN, BD))[h // group, first : last - some, 0],
                stages=stages,
            ):
                scores = tk.mma(query, key.reshape((BN, BD)).transpose(), tk.zeros((BM, BN), tk.float32))
                acc = tk.mma(weights, value.reshape((BN, BD)), acc)
                scores = seen(scores, j * BN, keys, diagonal, left, right, below, above)
                p, row_max, row_sum, alpha = online_softmax(scores, row_max, row_sum, scale)
                acc = acc * alpha
                weights = p.astype(v.dtype)
                j += 1
            key_begin, first, some, last, keys, _ = _keys_at(visits, visit)
            for value in tk.pipelined(v.slice(1, key_begin).tiles((1, BN, BD))[h // group, last - some : last, 0], stages=1):
                begins = (last - 1) * BN
                if last * BN > keys and not finite_outside(value.reshape((BN, BD)), begins, 0, keys):
                    acc = by_rows(weights, v.slice(1, key_begin), h // group, begins, 0, keys, acc)
                else:
                    acc = tk.mma(weights, value.reshape((BN, BD)), acc)
            result = acc * tk.where(row_sum == 0, 0.0, 1.0 / row_sum)
            i, _, begin, end, _, _ = visit_at(visits, visit)
            tk.store(o.slice(1, begin, end), (h, i, 0), result.astype(o.dtype).reshape((1, BM, BD)))
            tk.store(lse.slice(1, begin, end), (h, i), ((row_max + tk.log2(row_sum)) * LN_2).reshape((1, BM)))


@tk.function
def _keys_at(visits, visit):
    """Where the keys begin; of the tiles that are seen the first, whether there is any, and the last; how many keys there are; at
    which the first query stands."""
    i, _, begin, end, key_begin, key_end = visit_at(visits, visit)
    first, _, _, last = range_at(visits, visit)
    keys = key_end - key_begin
    return key_begin, first, min(1, last - first), last, keys, i * BM + keys - (end - begin)


# --------------------------------------------------------------------------------------------------------------------------- host


@takes_ops
def attention_varlen(
    q: Operand,
    k: Operand,
    v: Operand,
    cu_seqlens_q: Operand,
    cu_seqlens_k: Operand,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    return_lse: bool = False,
    precision: str = "ieee",
    out: Tensor | None = None,
) -> DeviceOp[Any]:
    """`attention` of each of several sequences, which are packed one behind the other.

    Args:
        q: queries of shape `(TQ, H, D)`: those of all sequences, heads, head size. D is up to 256; multiples of 16 from 64 to
            128, and 192 and 256, are sizes that little is wasted on.
        k, v: keys and values, `(TK, HK, D)`; H is a multiple of HK. Dtypes and strides are as for `attention`.
        cu_seqlens_q: int32 of shape `(B + 1,)` on the same device: the queries of sequence `b` are those from `cu_seqlens_q[b]`
            to `cu_seqlens_q[b + 1]`. The longest sequence need not be known.
        cu_seqlens_k: the same of its keys. Both may be the same tensor.
        scale, causal, window, precision: as for `attention`. With `causal`, each sequence's last query stands at its last key.
        return_lse: also return the logarithm of the sum of the exponentials of each row.
        out: where the result goes; by default a new tensor.

    Returns:
        An op whose result is a tensor of the shape and dtype of `q`; with `return_lse` this and a float32 tensor of shape
        `(H, TQ)`. Queries that see no key, and those before the first sequence or behind the last, get zeros, and -inf. What the
        cumulative lengths hold is not checked, which would mean waiting for it: where they decrease, or are larger than TQ or
        TK, queries get what others should, or nothing, which a CPU device may notice; nothing outside the tensors is touched.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "attention_varlen"
    check_qkv(name, q, k, v, packed=True)
    check_starts(name, q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    check_choice(name, "precision", precision, ("ieee", "tf32"))
    factor, masks = scale_of(name, scale, q), masks_of(name, causal, window)
    destination = out_or_new(name, out, q)
    return_lse = check_flag(f"{name}: return_lse", return_lse)
    (queries, heads, size), (keys, key_heads, _) = q.shape, k.shape
    tf32 = precision == "tf32" and q.dtype == dtypes.float32
    tiling = tiling_of((1, heads, queries, size), keys, q.dtype, on_cpu(q), in_stages(q, k, v), tf32)
    overlapped = q.itemsize == 2 and (tiling.stages is not None or on_cpu(q))
    if tiling.stages is not None:
        tiling = taller(tiling, heads, queries, multiprocessors(q), cu_seqlens_q.shape[0] - 1)

    def steps(new):
        y, sums = new(destination), new(Spec((heads, queries), dtypes.float32))
        if y.size and k.size:
            packed, others = (queries, cu_seqlens_q), (keys, cu_seqlens_k)
            visits = yield from visits_of(new, tiling.rows, tiling.columns, packed, others, masks)
            arguments = (
                y.permute(1, 0, 2).scattered(), sums.scattered(), *(x.permute(1, 0, 2) for x in (q, k, v)), visits,
                factor * LOG2_E, masks.left, masks.right, heads // key_heads, masks.below, masks.above, tiling.stages,
            )  # fmt: skip
            launch = _varlen_overlapped(*arguments) if overlapped else _varlen(*arguments, precision)
            launch = launch.generics(BM=tiling.rows, BN=tiling.columns, BD=tiling.depth).num_warps(tiling.num_warps)
            yield launch.grid((visits.shape[0], heads))
        elif y.size:
            yield filled(y)
            yield filled(sums, float("-inf"))
        return (y, sums) if return_lse else y

    return Launches(q, steps, None if return_lse else q)
