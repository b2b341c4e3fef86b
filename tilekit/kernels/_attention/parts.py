"""Attention whose keys are taken apart: each part has a result and sums of its own, which are weighed and added up.

Always in the same order, so that results are the same in every run ("Flash-Decoding", Dao et al., 2023).
"""

from __future__ import annotations

from typing import Any

import tilekit as tk
from tilekit.kernels._attention.online_softmax import LN_2, LOWEST
from tilekit.kernels._host import power

__all__ = ["added_up"]

ROWS, BD, PARTS = tk.generics("ROWS BD PARTS")

_ELEMENTS, _WARPS = 4096, 4  # of all parts' results in a block, and its warps


@tk.kernel
def _together(y: tk.Out, lse: tk.Out, o: tk.In, sums: tk.In, wanted: tk.Const):
    row, at = tk.bid(0), tk.bid(1)
    b = at // y.shape[1]
    h = at - b * y.shape[1]
    s = tk.load(sums, (0, at, row), (PARTS, 1, ROWS), padding_mode="-inf").reshape((PARTS, ROWS, 1))
    parts = tk.load(o, (0, at, row, 0), (PARTS, 1, ROWS, BD)).reshape((PARTS, ROWS, BD))
    highest = tk.maximum(tk.max(s, 0, keepdims=True), LOWEST)  # of a row without a key all are -inf
    weights = tk.exp2(s - highest)
    total = tk.sum(weights, 0, keepdims=True)
    result = tk.sum(parts * weights, 0, keepdims=True) * tk.where(total == 0, 0.0, 1.0 / total)
    tk.store(y, (b, h, row, 0), result.astype(y.dtype).reshape((1, 1, ROWS, BD)))
    if wanted:
        tk.store(lse, (b, h, row), ((highest + tk.log2(total)) * LN_2).reshape((1, 1, ROWS)))


def added_up(y: Any, lse: Any, o: Any, sums: Any, depth: int) -> tk.KernelLaunch:
    """The launch that adds up parts.

    Args:
        y: the result, `(B, H, L, D)`.
        lse: the natural logarithms of its rows' sums, float32 of shape `(B, H, L)`; None if nobody wants them.
        o, sums: the parts' results, float32 of shape `(parts, B * H, L, D)`, and binary logarithms of their sums.
        depth: the power of two from D on.
    """
    batch, heads, length, _ = y.shape
    parts = power(o.shape[0])
    rows = max(1, min(power(length), _ELEMENTS // (parts * depth)))
    launch = _together(y.scattered(), (sums if lse is None else lse).scattered(), o, sums, lse is not None)
    launch = launch.generics(ROWS=rows, BD=depth, PARTS=parts).num_warps(_WARPS)
    return launch.grid((-(-length // rows), batch * heads))
