"""The gradients of attention of packed sequences: as in `backward`, with tiles visited as in `varlen`."""

from __future__ import annotations

import math

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.errors import check_flag
from tilekit.kernels._attention import varlen_backward_wgmma as wgmma
from tilekit.kernels._attention.arguments import check_qkv, check_starts, scale_of
from tilekit.kernels._attention.backward import of_tiles, power_of, summed_columns, tiling_of
from tilekit.kernels._attention.mask import Masks, masks_of, seen
from tilekit.kernels._attention.online_softmax import LOG2_E
from tilekit.kernels._attention.varlen import by_rows, finite_outside
from tilekit.kernels._attention.varlen_schedule import range_at, visit_at, visits_of
from tilekit.kernels._host import Launches, Operand, a_tensor, filled, on_cpu, takes_ops
from tilekit.kernels._staging import in_stages
from tilekit.ops import DeviceOp, Spec

__all__ = ["attention_varlen_backward"]

BM, BN, BD = tk.generics("BM BN BD")

# Heads whose blocks run side by side, at most: on an H200 up to 8 % with a causal mask. With one, or all, less is in the cache.
_TOGETHER = 4


@tk.function
def _own(values, scores):
    """`values`, and zeros where no query sees the key: what stands there may belong to another sequence, and be no number."""
    return tk.where(scores != float("-inf"), values, 0.0)


@tk.kernel
def _of_rows(delta: tk.Out, sums: tk.Out, grad: tk.In, o: tk.In, lse: tk.In, visits: tk.In):
    """As in `backward`, a block for each visit of `BM` queries: where its tile ends, so does the sequence.

    Nobody reads of places that stand for no tile, unless starts decrease; then these are queries whose weights are zero.
    """
    visit, h = tk.bid(0), tk.bid(1)
    i, _, begin, end, _, _ = visit_at(visits, visit)
    if i >= 0:
        g = tk.load(grad.slice(1, begin, end), (h, i, 0), (1, BM, BD)).astype(tk.float32)
        total = tk.sum(g * tk.load(o.slice(1, begin, end), (h, i, 0), (1, BM, BD)).astype(tk.float32), 2)
        tk.store(delta, (h, visit), -total)
        tk.store(sums, (h, visit), power_of(tk.load(lse.slice(1, begin, end), (h, i), (1, BM), padding_mode="-inf")))
    else:
        tk.store(delta, (h, visit), tk.zeros((1, BM), tk.float32))
        tk.store(sums, (h, visit), tk.full((1, BM), float("-inf"), tk.float32))


@tk.kernel
def _backward_dq(
    dq: tk.Out, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, marks: tk.In, visits: tk.In,
    scale: float, left: int, right: int, group: int, below: tk.Const, above: tk.Const, rows: tk.Const, stages: tk.Const,
):  # fmt: skip
    if tk.load(marks, 0, ()).item() == 0:
        return
    h, visit = tk.bid(1), tk.num_blocks(0) - 1 - tk.bid(0)
    i, part, begin, end, key_begin, key_end = visit_at(visits, visit)
    if i >= 0 and tk.load(marks, part, ()).item() != 0:
        h_key = h // group
        of_visits = (begin // rows + part) * rows
        shift = tk.load(sums.slice(1, of_visits), (h, i), (1, BM)).reshape((BM, 1))
        less = tk.load(delta.slice(1, of_visits), (h, i), (1, BM)).reshape((BM, 1))
        for tq, tg in tk.pipelined(
            q.slice(1, begin).tiles((1, BM, BD))[h, i : i + 1, 0],
            grad.slice(1, begin).tiles((1, BM, BD))[h, i : i + 1, 0],
            stages=1,
        ):
            acc = tk.zeros((BM, BD), tk.float32)
            for edge in range(2):
                i, _, begin, end, key_begin, key_end = visit_at(visits, visit)
                first, low, high, last = range_at(visits, visit)
                keys = key_end - key_begin
                diagonal = i * BM + keys - (end - begin)
                j, stop = first, low
                if edge > 0:
                    j, stop = high, last
                for key, value in tk.pipelined(
                    k.slice(1, key_begin).tiles((1, BN, BD))[h_key, j:stop, 0],
                    v.slice(1, key_begin).tiles((1, BN, BD))[h_key, j:stop, 0],
                    stages=stages,
                    split=False,
                ):
                    nothing = tk.zeros((BM, BN), tk.float32)
                    scores = tk.mma(tq.reshape((BM, BD)), key.reshape((BN, BD)).transpose(), nothing)
                    dp = tk.mma(tg.reshape((BM, BD)), value.reshape((BN, BD)).transpose(), nothing)
                    scores = seen(scores, j * BN, keys, diagonal, left, right, below, above)
                    p = tk.exp2(scores * (scale * LOG2_E) + shift, flush_to_zero=True)
                    ds = (p * (_own(dp, scores) + less)).astype(k.dtype)
                    if (j + 1) * BN > keys and not finite_outside(key.reshape((BN, BD)), j * BN, 0, keys):
                        acc = by_rows(ds, k.slice(1, key_begin), h_key, j * BN, 0, keys, acc)
                    else:
                        acc = tk.mma(ds, key.reshape((BN, BD)), acc)
                    j += 1
            _, low, high, _ = range_at(visits, visit)
            key_begin = visit_at(visits, visit)[4]
            for key, value in tk.pipelined(
                k.slice(1, key_begin).tiles((1, BN, BD))[h_key, low:high, 0],
                v.slice(1, key_begin).tiles((1, BN, BD))[h_key, low:high, 0],
                stages=stages,
            ):
                scores = tk.mma(tq.reshape((BM, BD)), key.reshape((BN, BD)).transpose(), tk.zeros((BM, BN), tk.float32))
                dp = tk.mma(tg.reshape((BM, BD)), value.reshape((BN, BD)).transpose(), tk.zeros((BM, BN), tk.float32))
                p = tk.exp2(scores * (scale * LOG2_E) + shift, flush_to_zero=True)
                ds = (p * (dp + less)).astype(k.dtype)
                acc = tk.mma(ds, key.reshape((BN, BD)), acc)
            i, _, begin, end, _, _ = visit_at(visits, visit)
            tk.store(dq.slice(1, begin, end), (h, i, 0), (acc * scale).astype(dq.dtype).reshape((1, BM, BD)))


@tk.kernel
def _backward_dkv(
    dk: tk.Out, dv: tk.Out, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, marks: tk.In,
    visits: tk.In, scale: float, left: int, right: int, group: int, below: tk.Const, above: tk.Const, rows: tk.Const,
    stages: tk.Const, wants_dk: tk.Const, wants_dv: tk.Const,
):  # fmt: skip
    if tk.load(marks, 0, ()).item() == 0:
        return
    h, visit = tk.bid(1), tk.bid(0)
    j, part, key_begin, key_end, begin, end = visit_at(visits, visit)
    if j >= 0 and tk.load(marks, part, ()).item() != 0:
        for tkey, tvalue in tk.pipelined(
            k.slice(1, key_begin).tiles((1, BM, BD))[h, j : j + 1, 0],
            v.slice(1, key_begin).tiles((1, BM, BD))[h, j : j + 1, 0],
            stages=1,
        ):
            dk_acc, dv_acc = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, BD), tk.float32)
            at = h * group
            while at < (h + 1) * group:
                for edge in range(2):
                    j, part, key_begin, key_end, begin, end = visit_at(visits, visit)
                    first, low, high, last = range_at(visits, visit)
                    of_visits, queries = (begin // rows + part) * rows, end - begin
                    # What bounds the keys of a query bounds the queries of a key from the other side.
                    diagonal = j * BM + queries - (key_end - key_begin)
                    i, stop = first, low
                    if edge > 0:
                        i, stop = high, last
                    for tq, tg in tk.pipelined(
                        q.slice(1, begin).tiles((1, BN, BD))[at, i:stop, 0],
                        grad.slice(1, begin).tiles((1, BN, BD))[at, i:stop, 0],
                        stages=stages,
                        split=False,
                    ):
                        nothing = tk.zeros((BM, BN), tk.float32)
                        shift = tk.load(sums.slice(1, of_visits), (at, i), (1, BN))
                        less = tk.load(delta.slice(1, of_visits), (at, i), (1, BN))
                        scores = tk.mma(tkey.reshape((BM, BD)), tq.reshape((BN, BD)).transpose(), nothing)
                        scores = seen(scores, i * BN, queries, diagonal, right, left, above, below)
                        p = _own(tk.exp2(scores * (scale * LOG2_E) + shift, flush_to_zero=True), scores)
                        weights = p.astype(v.dtype)
                        if wants_dk:
                            dp = tk.mma(tvalue.reshape((BM, BD)), tg.reshape((BN, BD)).transpose(), nothing)
                            changes = (p * _own(dp + less, scores)).astype(k.dtype)
                        shared = (i + 1) * BN > queries
                        if shared and not (
                            finite_outside(tq.reshape((BN, BD)), i * BN, 0, queries)
                            and finite_outside(tg.reshape((BN, BD)), i * BN, 0, queries)
                        ):
                            if wants_dv:
                                dv_acc = by_rows(weights, grad.slice(1, begin), at, i * BN, 0, queries, dv_acc)
                            if wants_dk:
                                dk_acc = by_rows(changes, q.slice(1, begin), at, i * BN, 0, queries, dk_acc)
                        else:
                            if wants_dv:
                                dv_acc = tk.mma(weights, tg.reshape((BN, BD)), dv_acc)
                            if wants_dk:
                                dk_acc = tk.mma(changes, tq.reshape((BN, BD)), dk_acc)
                        i += 1
                _, part, _, _, begin, _ = visit_at(visits, visit)
                _, low, high, _ = range_at(visits, visit)
                of_visits, i = (begin // rows + part) * rows, low
                for tq, tg in tk.pipelined(
                    q.slice(1, begin).tiles((1, BN, BD))[at, low:high, 0],
                    grad.slice(1, begin).tiles((1, BN, BD))[at, low:high, 0],
                    stages=stages,
                ):
                    shift = tk.load(sums.slice(1, of_visits), (at, i), (1, BN))
                    less = tk.load(delta.slice(1, of_visits), (at, i), (1, BN))
                    scores = tk.mma(tkey.reshape((BM, BD)), tq.reshape((BN, BD)).transpose(), tk.zeros((BM, BN), tk.float32))
                    if wants_dk:
                        dp = tk.mma(tvalue.reshape((BM, BD)), tg.reshape((BN, BD)).transpose(), tk.zeros((BM, BN), tk.float32))
                    p = tk.exp2(scores * (scale * LOG2_E) + shift, flush_to_zero=True)
                    if wants_dv:
                        dv_acc = tk.mma(p.astype(v.dtype), tg.reshape((BN, BD)), dv_acc)
                    if wants_dk:
                        ds = p * (dp + less)
                        dk_acc = tk.mma(ds.astype(k.dtype), tq.reshape((BN, BD)), dk_acc)
                    i += 1
                at += 1
            j, _, key_begin, key_end, _, _ = visit_at(visits, visit)
            if wants_dk:
                result = (dk_acc * scale).astype(dk.dtype).reshape((1, BM, BD))
                tk.store(dk.slice(1, key_begin, key_end), (h, j, 0), result)
            if wants_dv:
                tk.store(dv.slice(1, key_begin, key_end), (h, j, 0), dv_acc.astype(dv.dtype).reshape((1, BM, BD)))


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
    deterministic: bool = False,
) -> DeviceOp[tuple[Tensor, Tensor, Tensor]]:
    """The gradients of `attention_varlen` by `q`, `k` and `v`.

    Args:
        grad: the gradient by the result, of the shape and dtype of `q`.
        q, k, v, cu_seqlens_q, cu_seqlens_k: as they were given to `attention_varlen`.
        out, lse: what `attention_varlen(..., return_lse=True)` gave.
        scale, causal, window: as they were given to `attention_varlen`.
        deterministic: as for `attention_backward`. If not, 16-bit floats with heads of up to 128 elements are faster on GPUs of
            compute capability 9.0, for about `4 * TQ * H * D` bytes of memory besides, and 32 KiB for each head of a sequence.

    Returns:
        An op whose result is three tensors, like `q`, `k` and `v`; what belongs to no sequence gets zeros. Those by `k` and `v`
        are the same in every run, that by `q` if `deterministic` says so. Weights and their gradients are rounded to the dtype of
        the tensors before they are multiplied; sums are taken in float32.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "attention_varlen_backward"
    check_qkv(name, q, k, v, packed=True, grad=grad, out=out)
    check_starts(name, q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    a_tensor(name, lse=lse)
    deterministic = check_flag(f"{name}: deterministic", deterministic)
    (queries, heads, size), (keys, key_heads, _) = q.shape, k.shape
    if lse.shape != (heads, queries) or lse.dtype != dtypes.float32:
        raise ValueError(
            f"{name}: lse is {lse.dtype.name} of shape {lse.shape}; for queries of shape {q.shape} it is float32 of shape "
            f"{(heads, queries)}: take what attention_varlen(..., return_lse=True) gives"
        )
    factor, masks = scale_of(name, scale, q), masks_of(name, causal, window)
    staged, cpu = in_stages(q, k, v, grad), on_cpu(q)
    tiling, swift = (tiling_of(size, queries, keys, cpu, staged, overlapped=each) for each in (False, True))
    adds = not deterministic and q.itemsize == 2 and len(swift.wanted) == 1 and (cpu or swift.dkv.stages is not None)
    rows = swift.dkv.columns  # of a visit's queries, as the keys' kernel loads them
    packed, others, seen = (queries, cu_seqlens_q), (keys, cu_seqlens_k), Masks(masks.right, masks.left, masks.above, masks.below)
    sequences = cu_seqlens_q.shape[0] - 1

    def steps(new):
        gradients = [new(Spec(x.shape, x.dtype)) for x in (q, k, v)]
        if not q.size or not k.size:
            for x in gradients:
                if x.size:
                    yield filled(x)
            return tuple(gradients)
        by_row = yield from visits_of(new, rows, rows, packed, others, masks)
        places = by_row.shape[0]
        delta, sums = (new(Spec((heads, places * rows), dtypes.float32)) for _ in range(2))
        marks = new(Spec((sequences + 2,), dtypes.int32))
        by_head = [x.permute(1, 0, 2) for x in (q, k, v, grad, out)]
        launch = _of_rows(delta.scattered(), sums.scattered(), *by_head[3:], lse, by_row)
        yield launch.generics(BM=rows, BD=tiling.depth).num_warps(4).grid((places, heads))
        dq, dk, dv = (x.permute(1, 0, 2).scattered() for x in gradients)
        arguments, group = (*by_head[:4], delta, sums, marks), heads // max(1, key_heads)
        bounds = factor, masks.left, masks.right, group
        yield filled(marks, 0 if adds else 1)
        if adds:
            tile = swift.dkv
            if sequences:
                launch = wgmma.meet_others(marks.scattered(), *by_head[:4], cu_seqlens_q, cu_seqlens_k, key_heads)
                launch = launch.generics(BM=tile.rows, BN=rows, BD=swift.depth).num_warps(4)
                yield launch.grid((sequences, heads))
            held = swift.depth * rows
            dq_sums = new(Spec((heads, places, summed_columns(size) * rows), dtypes.float32))
            yield filled(dq_sums)
            visits = yield from visits_of(new, tile.rows, tile.columns, others, packed, seen)
            early = swift.depth == 128 and not (masks.below or masks.above)
            together = math.gcd(key_heads, _TOGETHER)
            launch = wgmma.backward_dkv(
                dk, dv, dq_sums.scattered(), *arguments, visits, *bounds, together, masks.below, masks.above, tile.stages, early
            )
            yield of_tiles(launch.generics(BS=held), swift, tile, visits.shape[0] * together, key_heads // together)
            launch = wgmma.of_sums(dq, dq_sums, marks, by_row, factor)
            yield launch.generics(BN=rows, BD=swift.depth, BS=held).num_warps(4).grid((places, heads))
        tile = tiling.dkv
        if not adds or (tile.rows, tile.columns) != (swift.dkv.rows, swift.dkv.columns):  # else they are those above
            visits = yield from visits_of(new, tile.rows, tile.columns, others, packed, seen)
        for wanted in tiling.wanted:
            launch = _backward_dkv(dk, dv, *arguments, visits, *bounds, masks.below, masks.above, rows, tile.stages, *wanted)
            yield of_tiles(launch, tiling, tile, visits.shape[0], key_heads)
        tile = tiling.dq
        visits = yield from visits_of(new, tile.rows, tile.columns, packed, others, masks)
        launch = _backward_dq(dq, *arguments, visits, *bounds, masks.below, masks.above, rows, tile.stages)
        yield of_tiles(launch, tiling, tile, visits.shape[0], heads)
        return tuple(gradients)

    return Launches(q, steps)
