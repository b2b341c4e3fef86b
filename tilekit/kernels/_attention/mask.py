"""Which keys a query of attention sees: all, those up to its own place, those of a window around it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilekit as tk
from tilekit.errors import check_flag

__all__ = ["FAR", "Masks", "masks_of", "seen", "within"]

FAR = 1 << 30  # as good as no bound


# ------------------------------------------------------------------------------------------------------------------------- kernel


@tk.function
def seen(scores, column, keys, diagonal, left, right, below: tk.Const, above: tk.Const):
    """`scores`, -inf where the query of a row does not see the key of a column.

    `column` is the first column's key, and `diagonal` that at which the first row's query stands; there are so many `keys`.
    """
    scores = tk.where(column + tk.arange(scores.shape[1])[None, :] < keys, scores, float("-inf"))
    return within(scores, column, diagonal, left, right, below, above)


@tk.function
def within(scores, column, diagonal, left, right, below: tk.Const, above: tk.Const):
    """As `seen`, where all keys are there."""
    rows, columns = diagonal + tk.arange(scores.shape[0])[:, None], column + tk.arange(scores.shape[1])[None, :]
    if above:
        scores = tk.where(columns <= rows + right, scores, float("-inf"))
    if below:
        scores = tk.where(columns >= rows - left, scores, float("-inf"))
    return scores


# --------------------------------------------------------------------------------------------------------------------------- host


class Masks(NamedTuple):
    """Which keys a query at key `n` sees: those from `n - left` to `n + right`.

    Attributes:
        left, right: how far it sees.
        below, above: whether these are bounds at all.
    """

    left: int
    right: int
    below: bool
    above: bool


def masks_of(name: str, causal: Any, window: Any) -> Masks:
    """The bounds that these options mean.

    Raises:
        TypeError, ValueError: they are no such options.
    """
    causal = check_flag(f"{name}: causal", causal)
    if window is None:
        return Masks(0, 0, False, causal)
    if isinstance(window, bool) or not isinstance(window, int):
        raise TypeError(f"{name}: window is a number of keys, or None for all, not {window!r}")
    if window < 1:
        raise ValueError(f"{name}: window is from 1 on, not {window}")
    window = min(window, FAR)
    return Masks(window - 1, 0 if causal else window - 1, True, True)
