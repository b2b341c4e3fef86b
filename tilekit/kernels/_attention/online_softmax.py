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
def online_softmax(scores, row_max, row_sum, scale):
    """Of new scores the exponentials; the maximum and the sums so far, and what all before must be multiplied by.

    Each thread adds up what it holds itself: of 8 columns 2, so that there are 4 sums of a row.
    """
    new_max = tk.maximum(row_max, tk.max(scores, 1, keepdims=True) * scale)
    p, alpha = tk.exp2(scores * scale - new_max), tk.exp2(row_max - new_max)
    return p, new_max, row_sum * alpha + tk.sum(p, 1, keepdims=True), alpha
