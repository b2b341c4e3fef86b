"""The softmax of rows whose scores come tile by tile, in powers of two."""

from __future__ import annotations

import math

import tilekit as tk

__all__ = ["LN_2", "LOG2_E", "LOWEST", "online_softmax"]

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
# Of a row in which nothing has been seen yet: -inf minus itself would be no number.
LOWEST = -3.0e38


@tk.function
def online_softmax(scores, most, total, scale):
    """Of new scores the exponentials; the maximum and the sums so far, and what all before must be multiplied by.

    Each thread adds up what it holds itself: of 8 columns 2, so that there are 4 sums of a row.
    """
    rows = scores.shape[0]
    higher = tk.maximum(most, tk.max(scores, 1, keepdims=True) * scale)
    shrink = tk.exp2(most - higher, flush_to_zero=True)
    p = tk.exp2(tk.fma(scores, scale, -higher), flush_to_zero=True)
    own = tk.sum(p.reshape((rows, scores.shape[1] // 8, 4, 2)), (1, 3), keepdims=True)
    return p, higher, tk.fma(total, shrink.reshape((rows, 1, 1, 1)), own), shrink
