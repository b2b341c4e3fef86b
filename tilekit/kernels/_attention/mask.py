"""Which keys a query of attention sees: all, those up to its own place, those of a window around it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilekit as tk
from tilekit.errors import check_flag

__all__ = ["FAR", "Masks", "hidden", "masks_of", "seen", "within"]

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


@tk.function
def hidden(scores, column, keys, diagonal, left, right, below: tk.Const, above: tk.Const):
    """`scores`, -inf where the query of a row does not see the key of a column.

    `column` is the first column's key; `diagonal` the key at which the first row's query stands. There are so many `keys`, or,
    given a tile of shape `(rows, 1, 1, 1)`, so many for each row.
    """
    rows = scores.shape[0]
    row, last = tk.arange(rows)[:, None, None, None], tk.zeros((rows, 1, 1, 1), tk.int32) + (keys - 1 - column)
    if above:
        last = tk.minimum(last, row + (diagonal + right - column))
    scores = up_to(scores, last)
    if below:
        scores = from_on(scores, row + (diagonal - left - column))
    return scores


@tk.function
def up_to(scores, last):
    """`scores`, -inf in the columns behind `last`: a number, or of shape `(rows, 1, 1, 1)` one for each row.

    A thread holds 2 of each 8 columns. What it counts from 0 to 7 is taken from the bound, which constants are compared with.
    """
    rows, columns = scores.shape[0], scores.shape[1]
    seen = tk.arange(columns // 8)[None, :, None, None] * 8 <= last - _of_eight()
    return tk.where(seen, scores.reshape((rows, columns // 8, 4, 2)), float("-inf")).reshape((rows, columns))


@tk.function
def from_on(scores, first):
    """`scores`, -inf in the columns before `first`, as `up_to`."""
    rows, columns = scores.shape[0], scores.shape[1]
    seen = tk.arange(columns // 8)[None, :, None, None] * 8 >= first - _of_eight()
    return tk.where(seen, scores.reshape((rows, columns // 8, 4, 2)), float("-inf")).reshape((rows, columns))


@tk.function
def _of_eight():
    return tk.arange(4)[:, None] * 2 + tk.arange(2)[None, :]


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
