"""The gradients of attention of packed sequences: as in `attention_gradients`, with tiles visited as in `attention_packed`."""

from __future__ import annotations

import tilekit as tk
from tilekit import dtypes
from tilekit.kernels._gemm_plans import in_stages
from tilekit.kernels._host import Launches, Operand, a_tensor, on_cpu, takes_ops
from tilekit.kernels.attention_gradients import of_rows, plan_of
from tilekit.kernels.attention_packed import (
    by_rows,
    check_starts,
    finite_outside,
    first_step,
    inside,
    part_of,
    seen,
    visits,
    within,
)
from tilekit.kernels.attentions import LOG2_E, check_qkv, masks_of, scale_of
from tilekit.ops import DeviceOp, Spec
from tilekit.tensor import Tensor

__all__ = ["attention_varlen_backward"]

BM, BN, BD = tk.generics("BM BN BD")


@tk.function
def _own(values, scores):
    """`values`, and zeros where no query sees the key: what stands there may belong to another sequence, and be no number."""
    return tk.where(scores != float("-inf"), values, 0.0)


@tk.kernel
def _by_queries(
    dq: tk.Out, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, starts: tk.In, key_starts: tk.In,
    scale: float, left: int, right: int, group: int, step: int, below: tk.Const, above: tk.Const, stages: tk.Const,
):  # fmt: skip
    h = tk.bid(1)
    i, begin, end, key_begin, key_end = part_of(
        tk.num_blocks(0) - 1 - tk.bid(0), starts, q.shape[1], key_starts, k.shape[1], step, BM
    )
    top, bottom = max(begin, i * BM), min(end, (i + 1) * BM)
    if top < bottom:
        ahead = i * BM + key_end - end
        first, last = seen(top, bottom, end, key_begin, key_end, left, right, BN, below, above)
        shift = tk.load(sums, (0, h, i), (1, 1, BM)).reshape((BM, 1))
        less = tk.load(delta, (0, h, i), (1, 1, BM)).reshape((BM, 1))
        for tq, tg in tk.pipelined(q.tiles((1, BM, BD))[h, i : i + 1, 0], grad.tiles((1, BM, BD))[h, i : i + 1, 0], stages=1):
            acc = tk.zeros((BM, BD), tk.float32)
            j = first
            for tkey, tvalue in tk.pipelined(
                k.tiles((1, BN, BD))[h // group, first:last, 0], v.tiles((1, BN, BD))[h // group, first:last, 0], stages=stages
            ):
                nothing = tk.zeros((BM, BN), tk.float32)
                key, value = tkey.reshape((BN, BD)), tvalue.reshape((BN, BD))
                scores = tk.mma(tq.reshape((BM, BD)), key.transpose(), nothing) * 1.0
                dp = tk.mma(tg.reshape((BM, BD)), value.transpose(), nothing) * 1.0
                shared = j * BN < key_begin or (j + 1) * BN > key_end
                cut = shared
                if above:
                    cut = cut or (j + 1) * BN > ahead + right + 1
                if below:
                    cut = cut or j * BN < ahead + BM - 1 - left
                if cut:
                    scores = within(scores, j * BN, key_begin, key_end, ahead, left, right, below, above)
                    dp = _own(dp, scores)
                ds = (tk.exp2(scores * (scale * LOG2_E) + shift, flush_to_zero=True) * (dp + less)).astype(k.dtype)
                if shared and not finite_outside(key, j * BN, key_begin, key_end):
                    acc = by_rows(ds, k, h // group, j * BN, key_begin, key_end, acc)
                else:
                    acc = tk.mma(ds, key, acc) * 1.0
                j += 1
            mine = inside(i * BM, BM, begin, end).reshape((1, BM, 1))
            tk.store(dq, (h, i, 0), (acc * scale).astype(dq.dtype).reshape((1, BM, BD)), mask=mine)


@tk.kernel
def _by_keys(
    dk: tk.Out, dv: tk.Out, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, starts: tk.In,
    key_starts: tk.In, scale: float, left: int, right: int, group: int, step: int, below: tk.Const, above: tk.Const,
    stages: tk.Const,
):  # fmt: skip
    h = tk.bid(1)
    j, key_begin, key_end, begin, end = part_of(tk.bid(0), key_starts, k.shape[1], starts, q.shape[1], step, BM)
    top, bottom = max(key_begin, j * BM), min(key_end, (j + 1) * BM)
    if top < bottom:
        behind = j * BM + end - key_end
        # What bounds the keys of a query bounds the queries of a key from the other side.
        first, last = seen(top, bottom, key_end, begin, end, right, left, BN, above, below)
        for tkey, tvalue in tk.pipelined(k.tiles((1, BM, BD))[h, j : j + 1, 0], v.tiles((1, BM, BD))[h, j : j + 1, 0], stages=1):
            by_key, by_value = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, BD), tk.float32)
            for which in range(group):
                at = h * group + which
                i = first
                for tq, tg in tk.pipelined(
                    q.tiles((1, BN, BD))[at, first:last, 0], grad.tiles((1, BN, BD))[at, first:last, 0], stages=stages
                ):
                    nothing = tk.zeros((BM, BN), tk.float32)
                    query, g = tq.reshape((BN, BD)), tg.reshape((BN, BD))
                    shift = tk.load(sums, (0, at, i), (1, 1, BN)).reshape((1, BN))
                    less = tk.load(delta, (0, at, i), (1, 1, BN)).reshape((1, BN))
                    scores = tk.mma(tkey.reshape((BM, BD)), query.transpose(), nothing) * 1.0
                    dp = tk.mma(tvalue.reshape((BM, BD)), g.transpose(), nothing) * 1.0
                    p = tk.exp2(scores * (scale * LOG2_E) + shift, flush_to_zero=True)
                    ds = p * (dp + less)
                    # Rows are keys here, and columns queries: what bounds the one bounds the other from the other side.
                    shared = i * BN < begin or (i + 1) * BN > end
                    cut = shared
                    if above:
                        cut = cut or i * BN < behind + BM - 1 - right
                    if below:
                        cut = cut or (i + 1) * BN > behind + left + 1
                    if cut:
                        scores = within(scores, i * BN, begin, end, behind, right, left, above, below)
                        p, ds = _own(p, scores), _own(ds, scores)
                    weights, changes = p.astype(v.dtype), ds.astype(k.dtype)
                    if shared and not (finite_outside(query, i * BN, begin, end) and finite_outside(g, i * BN, begin, end)):
                        by_value = by_rows(weights, grad, at, i * BN, begin, end, by_value)
                        by_key = by_rows(changes, q, at, i * BN, begin, end, by_key)
                    else:
                        by_value = tk.mma(weights, g, by_value) * 1.0
                        by_key = tk.mma(changes, query, by_key) * 1.0
                    i += 1
            mine = inside(j * BM, BM, key_begin, key_end).reshape((1, BM, 1))
            tk.store(dk, (h, j, 0), (by_key * scale).astype(dk.dtype).reshape((1, BM, BD)), mask=mine)
            tk.store(dv, (h, j, 0), by_value.astype(dv.dtype).reshape((1, BM, BD)), mask=mine)


@takes_ops
def attention_varlen_backward(
    grad: Operand,
    q: Operand,
    k: Operand,
    v: Operand,
    out: Operand,
    lse: Operand,
    cu_seqlens_q: Operand,
    cu_seqlens_k: Operand,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
) -> DeviceOp[tuple[Tensor, Tensor, Tensor]]:
    """The gradients of `attention_varlen` by `q`, `k` and `v`.

    Args:
        grad: the gradient by the result, of the shape and dtype of `q`.
        q, k, v, cu_seqlens_q, cu_seqlens_k: as they were given to `attention_varlen`.
        out, lse: what `attention_varlen(..., return_lse=True)` gave.
        scale, causal, window: as they were given to `attention_varlen`.

    Returns:
        An op whose result is three tensors, like `q`, `k` and `v`; what belongs to no sequence gets zeros. They are the same in
        every run. Weights and their gradients are rounded to the dtype of the tensors before they are multiplied; sums are taken
        in float32.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "attention_varlen_backward"
    check_qkv(name, q, k, v, packed=True, grad=grad, out=out)
    check_starts(name, q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    a_tensor(name, lse=lse)
    (queries, heads, size), (keys, key_heads, _) = q.shape, k.shape
    if lse.shape != (heads, queries) or lse.dtype != dtypes.float32:
        raise ValueError(
            f"{name}: lse is {lse.dtype.name} of shape {lse.shape}; for queries of shape {q.shape} it is float32 of shape "
            f"{(heads, queries)}: take what attention_varlen(..., return_lse=True) gives"
        )
    factor, masks = scale_of(name, scale, q), masks_of(name, causal, window)
    plan = plan_of(size, queries, keys, on_cpu(q), in_stages(q, k, v, grad))
    # Whole tiles of queries, as those are that the keys' kernel loads.
    whole, rows = -(-queries // plan.by_keys.columns), plan.by_keys.columns
    kept = Spec((1, heads, whole * rows), dtypes.float32)

    def steps(new):
        made = [new(Spec(x.shape, x.dtype)) for x in (q, k, v)]
        if not q.size or not k.size:
            for x in made:
                if x.size:
                    yield x.fill(0)
            return tuple(made)
        delta, sums = new(kept), new(kept)
        by_head = [x.permute(1, 0, 2) for x in (q, k, v, grad, out)]
        of_batch = [x.view((1, *x.shape)) for x in (by_head[3], by_head[4], lse)]
        launch = of_rows(delta.scattered(), sums.scattered(), *of_batch, heads)
        yield launch.generics(BM=rows, BD=plan.depth).num_warps(4).grid((whole, heads))
        given = (*by_head[:4], delta, sums, cu_seqlens_q, cu_seqlens_k, factor, masks.left, masks.right, heads // key_heads)
        for kernel, results, tile, length, starts, of in (
            (_by_keys, made[1:], plan.by_keys, keys, cu_seqlens_k, key_heads),
            (_by_queries, made[:1], plan.by_queries, queries, cu_seqlens_q, heads),
        ):
            places = [x.permute(1, 0, 2).scattered() for x in results]
            launch = kernel(*places, *given, first_step(starts), masks.below, masks.above, tile.stages)
            launch = launch.generics(BM=tile.rows, BN=tile.columns, BD=plan.depth).num_warps(tile.num_warps)
            yield launch.grid((visits(length, tile.rows, starts), of))
        return tuple(made)

    return Launches(q, steps)
