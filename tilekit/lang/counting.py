"""How often values occur in a tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.size import check_size
from tilekit.lang.tile import Tile, what_is
from tilekit.lang.windows import mask_of

__all__ = ["MOST_BINS", "bins_of", "countable", "histogram"]

MOST_BINS = 1 << 15
"""Their counts, 128 KB, are what a block of every GPU has room for in shared memory: a block of sm_80 has 163 KB."""


def countable(dtype: dtypes.DType) -> str | None:
    """Why elements of `dtype` number no bins; None if they do."""
    if dtype.kind in "iu" and not dtypes.is_float(dtype):
        return None
    return f"the elements are numbers of bins, integers; this tile holds {dtype.name}: convert it with .astype(tk.int32)"


def bins_of(bins: Any, what: str) -> int:
    """`bins`, an extent of a tile for which there is room.

    Raises:
        CompileError: it is something else.
    """
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)):
        raise CompileError(f"{what}: bins is an int that is known when the kernel is compiled, not {bins!r}")
    if bins < 1 or bins & (bins - 1):
        raise CompileError(
            f"{what}: bins is a power of two, as every extent of a tile; {bins} is not: take the next one, and of the result "
            "what you need"
        )
    if bins > MOST_BINS:
        raise CompileError(
            f"{what}: {bins} bins are more than the shared memory of a block has room for ({MOST_BINS}); "
            "count in a tensor, with tk.atomic_add(counts, x, 1)"
        )
    return check_size((int(bins),), what)[0]


@tile_op("histogram", host="numpy.bincount, or tilekit.kernels.histogram")
def histogram(x: Tile, bins: int, mask: Any = None) -> Tile:
    """How often each of the integers `0, 1, ... bins - 1` occurs in a tile; others, negative ones too, count for nothing.

    (Triton leaves it open what others do, and takes tiles of one dimension.)

    Args:
        x: a tile of integers, of any shape.
        bins: how many integers, a power of two up to 32768 known when the kernel is compiled, since it is the result's extent.
        mask: a bool tile that broadcasts to the shape of `x`; where it is False an element counts for nothing.

    Returns:
        An int32 tile of shape `(bins,)`.

    Raises:
        CompileError: the elements are no integers, `bins` is no power of two, not known or too large, or the mask does not fit.

    Examples:
        >>> @tk.kernel
        ... def count(y: tk.Out, x: tk.In):
        ...     y.store(tk.histogram(tk.load(x, 0, 8), 4))
        >>> x = api.from_host(np.array([3, 1, 4, 1, -5, 3, 0, 1], np.int32)).sync()
        >>> count(api.zeros(4, tk.int32).partition(4), x).out().sync().numpy()
        array([1, 3, 0, 2], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"histogram: needs a tile, not {what_is(x)}")
    if problem := countable(x.dtype):
        raise CompileError(f"histogram: {problem}")
    count = bins_of(bins, "histogram")
    chosen = mask_of(mask, x.shape, "histogram")
    places = x._array.astype(np.int64, copy=False)  # uint64 from 2**63 on becomes negative, and counts for nothing either way
    inside = (places >= 0) & (places < count)
    if chosen is not None:
        inside &= chosen
    # All others go to one more bin.
    counts = np.bincount(np.where(inside, places, count).reshape(-1), minlength=count + 1)
    return Tile(counts[:count].astype(dtypes.int32))
