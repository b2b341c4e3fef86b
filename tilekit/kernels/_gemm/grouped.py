"""Products of groups of rows with a matrix for each group, as the experts of a mixture have them.

How many rows a group has is known on the device alone, so each block finds its tiles by itself: it goes over the groups, counts
their tiles, and takes every n-th of n blocks. Tiles of rows begin where a group does, at any row: `a.slice(0, first)`. What they
have of the next group's rows is multiplied, too, and not stored. Where tiles are too few for all multiprocessors, sums are split
into parts, which a second kernel adds up. Operands that cannot come ahead as they lie are packed, as those of `gemm`.

Shazeer et al., "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer", 2017; Gale et al.,
"MegaBlocks", 2022.
"""

from __future__ import annotations

from typing import Any

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._gemm.abreast import abreast_columns, place_of, store_part, sums_abreast
from tilekit.kernels._gemm.model import Product
from tilekit.kernels._gemm.packing import AS_THEY_LIE, best_packing, packed
from tilekit.kernels._gemm.products import parts_added_up
from tilekit.kernels._gemm.schedules import check_tile, result_dtype, schedule_of, sum_dtype
from tilekit.kernels._host import (
    Launches,
    Operand,
    a_tensor,
    check_splits,
    filled,
    multiprocessors,
    on_cpu,
    out_or_new,
    shaped,
    takes_ops,
)
from tilekit.kernels._staging import COPIES, LINES, aligned, in_stages, pitched, staged_operands, straightened
from tilekit.ops import DeviceOp, Spec

__all__ = ["grouped_gemm"]

BM, BN, BK = tk.generics("BM BN BK")

# Blocks that stay on a multiprocessor. Where operands come ahead, two have room if their tiles have so many rows and columns and
# four warps calculate.
_STAYING, _STAYING_AHEAD, _SMALL = 4, 2, 192


@tk.kernel
def _grouped(
    out: tk.Out, a: tk.In, b: tk.In, offsets: tk.In, splits: int, share: int,
    dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const, wide: tk.Const, apart: tk.Const,
):  # fmt: skip
    """Tiles have `wide` columns: BN, or more, of two next to each other (see `abreast`).

    Sums that are taken `apart` have so many `splits`, one behind the other in `out`, of which each has `share` tiles along K.
    """
    groups, columns = b.shape[0], tk.cdiv(b.shape[2], wide)
    # The next tile of this block, counted from the first of the group. Groups are counted in 32 bits: each waits for the last.
    at, nothing = tk.bid(0), tk.load(offsets, 0, ()) * 0
    begins = nothing
    for g in range(groups + 1):
        ends, steps = nothing + a.shape[0], 0  # rows behind those of all groups: sums of nothing
        if g < groups:
            ends = tk.minimum(tk.maximum(tk.load(offsets, g, ()), begins), ends)
            steps = tk.cdiv(a.shape[1], BK)
        first, last, rows = begins.item(), ends.item(), tk.cdiv((ends - begins).item(), BM)
        while at < rows * columns * splits:
            part, top, begin, end = 0, 0, 0, steps
            if apart:
                part = at // (rows * columns)
                top, begin, end = part * a.shape[0], min(part * share, steps), min(part * share + share, steps)
            i, j = place_of(at - part * (rows * columns), rows, columns)
            target = out.slice(0, top + first, top + last)
            if wide > BN:
                left, right = sums_abreast(
                    a.slice(0, first), b, g, i, j, begin, end, dtype, precision, warp_specialize, (1,)
                )  # fmt: skip
                store_part(target, (i, j), left.astype(out.dtype), 2, 0, BN, wide)
                store_part(target, (i, j), right.astype(out.dtype), 2, BN, wide - BN, wide)
            else:
                acc = tk.zeros((BM, BN), dtype)
                of_a, of_b = a.slice(0, first).tiles((BM, BK))[i, begin:end], b.tiles((1, BK, BN))[g, begin:end, j]
                for ta, tb in tk.pipelined(of_a, of_b, warp_specialize=warp_specialize):
                    acc = tk.mma(ta, tb.reshape((BK, BN)), acc, precision=precision)
                tk.store(target, (i, j), acc.astype(out.dtype))
            at += tk.num_blocks(0)
        at -= rows * columns * splits
        begins = ends


@takes_ops
def grouped_gemm(
    a: Operand,
    b: Operand,
    offsets: Operand,
    *,
    dtype: Any = None,
    precision: str = "ieee",
    out: Tensor | None = None,
    tile: tuple[int, int, int] | None = None,
    num_warps: int | None = None,
    splits: int | None = None,
) -> DeviceOp[Tensor]:
    """`a[rows of g] @ b[g]` for each group of rows `g`, in one kernel: what the experts of a mixture compute.

    Args:
        a: a matrix of shape `(T, K)`, its rows sorted by group; or an op that produces one.
        b: of shape `(G, K, N)`, a matrix for each group. Dtypes are those of `gemm`. Any strides will do: a tensor of shape
            `(G, N, K)` is passed as `x.permute(0, 2, 1)`.
        offsets: int32 of shape `(G,)`: where the rows of each group end, `cumsum` of their numbers. Group `g` has the rows
            `offsets[g - 1]` (0 for the first) to `offsets[g]`; groups may be empty. It stays on the device.
        dtype, precision, out, tile, num_warps: as for `gemm`.
        splits: into how many parts sums are split, instead of as many as keep all multiprocessors busy.

    Returns:
        An op whose result is a tensor of shape `(T, N)`, the same in every run. Rows behind the last group's are zeros.

    Raises:
        TypeError, ValueError: other arguments.

    Nobody looks at `offsets` beforehand, for that would wait for the device. Those beyond T count as T; one that is less than one
    before it makes its group empty. Nothing is read or written outside of the tensors.

    How far a result may be off is that of `tk.mma`, over all of K.
    """
    name = "grouped_gemm"
    a_tensor(name, a=a, b=b, offsets=offsets)
    a, b = straightened(a), straightened(b)
    wide = sum_dtype(name, a, b, precision)
    if (len(a.shape), len(b.shape)) != (2, 3):
        raise ValueError(f"{name}: a has shape {a.shape}, b {b.shape}; a is a matrix, b a stack of them, one for each group")
    (total, k), (groups, _, n) = a.shape, b.shape
    if b.shape[1] != k:
        turned = "; pass b.permute(0, 2, 1)?" if n == k else ""
        raise ValueError(f"{name}: a has shape {a.shape}, b {b.shape}: rows of {k} elements meet columns of {b.shape[1]}{turned}")
    if offsets.dtype != dtypes.int32:
        raise TypeError(f"{name}: offsets holds {offsets.dtype.name}; it takes int32: convert it with .astype(tk.int32)")
    if offsets.shape != (groups,):
        raise ValueError(f"{name}: offsets has shape {offsets.shape}; for {groups} groups it is ({groups},), where each ends")
    tile = check_tile(name, tile, abreast=2)
    check_splits(name, splits)
    destination = out_or_new(name, out, a, (total, n), result_dtype(a, dtype, wide))
    rounded = a.dtype == dtypes.float32 and precision == "tf32"
    exact = a.dtype == dtypes.float32 and not rounded
    some = max(1, min(groups, total))  # the others have no rows

    def planned(a, b):
        """The schedule for operands that lie like these, and whether tiles come ahead."""
        # Where the columns of `a` are contiguous, tiles begin in the middle of the 16 bytes that are copied at a time.
        lies = a.unit == 1
        staged = not exact and lies and staged_operands(a, b)
        copied = lies and in_stages(a, b, to=COPIES, warpgroups=False)
        product = Product(
            (some, max(1, -(-total // some)), max(1, n), max(1, k)), multiprocessors(a), a.itemsize,
            summed=a.dtype in dtypes.EIGHT_BIT_FLOATS and precision != "fast", lines=pitched(a, b, to=LINES), clusters=False,
            over=rounded and b.unit != 1,
        )  # fmt: skip
        schedule = schedule_of(
            product, staged=staged, copied=copied, even=aligned(a, b), cpu=on_cpu(a), tf32=rounded, tile=tile,
            num_warps=num_warps, splits=splits, abreast=abreast_columns(b, tiles=2) if num_warps is None else (),
        )  # fmt: skip
        return schedule, staged or copied

    plan, packing = planned(a, b), AS_THEY_LIE
    free = not (on_cpu(a) or exact or tile or num_warps or splits) and a.itemsize <= 4
    if free and total * n * k:
        packing, plan = best_packing(a, b, plan, planned, deep=True)
    schedule, ahead = plan
    splits = schedule.splits
    limit = min(total, (total + (groups + 1) * (schedule.rows - 1)) // schedule.rows) * -(-n // schedule.columns) * splits
    count = multiprocessors(a)
    small = schedule.num_warps <= 4 and schedule.rows + schedule.columns <= _SMALL and schedule.occupancy != 1
    blocks = min(limit, count * (_STAYING if not ahead else _STAYING_AHEAD if small else 1))

    def steps(new):
        y = new(destination)
        if y.size and k and groups:
            warp_specialize = False if exact or a.dtype == dtypes.float64 else None
            left, right = yield from packed(new, (a, b), packing)
            parts = new(Spec((splits, total, n), wide)) if splits > 1 else y
            launch = _grouped(
                shaped(parts, (splits * total, n)).scattered(), left, right, offsets, splits, schedule.share, wide, precision,
                warp_specialize, schedule.columns, splits > 1,
            ).grid(blocks)  # fmt: skip
            launch = launch.generics(**schedule.generics).num_warps(schedule.num_warps)
            # Exact sums take all of the registers that two blocks have, and which group a tile is of takes some, too.
            yield launch if schedule.occupancy is None or exact else launch.occupancy(schedule.occupancy)
            if splits > 1:
                yield parts_added_up(y, parts, splits)
        elif y.size:
            yield filled(y)
        return y

    return Launches(a, steps, destination)
