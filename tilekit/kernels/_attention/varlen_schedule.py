"""Where the tiles of packed sequences are: found once for all blocks, which read it.

How many visits there are is bounded without knowing the starts: sequence `b` has place `starts[b] // rows + b` and those behind
it, up to the next one's, which are enough for all tiles that it has a part of. So nobody waits for the starts to come to the
host, and one launch serves any lengths, in a recorded graph too. A small kernel finds the sequence of each place by bisection.

What a block needs behind a loop it reads again: while sums are carried round, ptxas has no registers for it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._attention.mask import FAR, Masks
from tilekit.kernels._host import New, power
from tilekit.ops import DeviceOp, Spec

__all__ = ["bounds_of", "range_at", "visit_at", "visits_of"]

_FIELDS = 16  # of a visit, for which it takes 64 bytes; 10 hold something


# ------------------------------------------------------------------------------------------------------------------------- kernel


@tk.function
def bounds_of(part, starts, length):
    """Where a part begins and ends: what lies before the first sequence is part 0, what lies behind the last one is the last."""
    begin, end = 0, length
    if part > 0:
        begin = min(max(0, tk.load(starts, part - 1, ()).item()), length)
    if part < starts.shape[0]:
        end = min(max(begin, tk.load(starts, part, ()).item()), length)
    return begin, end


@tk.kernel
def _find(
    visits: tk.Out, starts: tk.In, others: tk.In, length: int, other_length: int, rows: int, columns: int, left: int, right: int,
    step: int,
):  # fmt: skip
    """A block for each place. Starts that decrease, or lie outside, give some sequence within the tensors."""
    visit, count = tk.bid(0), starts.shape[0]
    part = 0
    while step > 0:
        if part + step <= count and tk.load(starts, part + step - 1, ()).item() // rows + part + step <= visit:
            part += step
        step = step // 2
    begin, end = bounds_of(part, starts, length)
    other_begin, other_end = 0, 0
    if part > 0 and part < count:
        other_begin, other_end = bounds_of(part, others, other_length)
    tile, height, width = visit - part - begin // rows, end - begin, other_end - other_begin
    if tile * rows >= height:
        tile = -1
    # The column at which its first row stands, and what the others see of the columns.
    diagonal = tile * rows + width - height
    last = min(tk.cdiv(width, columns), tk.cdiv(max(0, diagonal + min(rows, height - tile * rows) + right), columns))
    first = min(max(0, diagonal - left) // columns, last)
    low = min(tk.cdiv(max(0, diagonal + rows - 1 - left), columns), last)
    high = max(low, min(width // columns, max(0, diagonal + right + 1) // columns))
    tk.store(visits, (visit, 0), tk.full((1, 1), tile, tk.int32))
    tk.store(visits, (visit, 1), tk.full((1, 1), part, tk.int32))
    tk.store(visits, (visit, 2), tk.full((1, 1), begin, tk.int32))
    tk.store(visits, (visit, 3), tk.full((1, 1), end, tk.int32))
    tk.store(visits, (visit, 4), tk.full((1, 1), other_begin, tk.int32))
    tk.store(visits, (visit, 5), tk.full((1, 1), other_end, tk.int32))
    tk.store(visits, (visit, 6), tk.full((1, 1), first, tk.int32))
    tk.store(visits, (visit, 7), tk.full((1, 1), low, tk.int32))
    tk.store(visits, (visit, 8), tk.full((1, 1), high, tk.int32))
    tk.store(visits, (visit, 9), tk.full((1, 1), last, tk.int32))


@tk.function
def visit_at(visits, visit):
    """Which tile of its sequence a place stands for, -1 if none; the sequence, as a part; where it begins and ends; and where it
    does in the other tensor."""
    tile, part = int(tk.load(visits, (visit, 0), ()).item()), _field(visits, visit, 1)
    begin, end = _field(visits, visit, 2), _field(visits, visit, 3)
    return tile, part, begin, end, _field(visits, visit, 4), _field(visits, visit, 5)


@tk.function
def range_at(visits, visit):
    """Of the tiles that it sees the first, those that the whole ones begin and end with, the last. Ends are those of ranges."""
    return _field(visits, visit, 6), _field(visits, visit, 7), _field(visits, visit, 8), _field(visits, visit, 9)


@tk.function
def _field(visits, visit, n):
    """Seen not to be negative: bounds of rows of tiles that are count from the end."""
    return max(0, int(tk.load(visits, (visit, n), ()).item()))


# --------------------------------------------------------------------------------------------------------------------------- host


def visits_of(
    new: New, rows: int, columns: int, packed: tuple[int, Tensor], others: tuple[int, Tensor], masks: Masks
) -> Generator[DeviceOp[Any], Any, Tensor]:
    """Find the visits of tiles of `rows` rows, whose columns are tiles of the others.

    Args:
        new: makes the result, an int32 tensor for `visit_at` and `range_at`.
        packed, others: how many rows there are in all, and where sequences begin.
        masks: which of the others a row sees.
    """
    (length, starts), (other_length, other_starts) = packed, others
    count = length // rows + starts.shape[0] + 1  # enough for tiles of all sequences, and of what lies before and behind them
    visits = new(Spec((count, _FIELDS), dtypes.int32))
    left, right = masks.left if masks.below else FAR, masks.right if masks.above else FAR
    step = power(starts.shape[0] + 1) // 2  # bisection that begins with it ends at one of `B + 2` parts
    launch = _find(visits.scattered(), starts, other_starts, length, other_length, rows, columns, left, right, step)
    yield launch.num_warps(1).grid(count)
    return visits
