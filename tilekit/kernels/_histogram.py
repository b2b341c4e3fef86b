"""How often each value occurs.

As many bins as shared memory has room for are counted there, tile by tile; a block keeps the sums of its tiles in registers, and
adds them to the result once, at its end. More bins are counted in the L2 cache, by an atomic addition an element. If all blocks
counted in one place there, they would wait for each other at the values that occur most; so each has counts of its own, which are
added up afterwards.
"""

from __future__ import annotations

from typing import Any

import tilekit as tk
from tilekit import api
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import Operand, flat, integers, on_cpu, power, result, takes_ops
from tilekit.kernels._norm_gradients import _column_sums
from tilekit.lang.counting import MOST_BINS
from tilekit.ops import DeviceOp

__all__ = ["histogram"]

# In shared memory: fewer bins than this take as long, and are one compiled kernel.
_FEWEST_BINS = 256
# With 32 warps on a multiprocessor a thread has 64 registers: for so many bytes of a tile, and so many of its block's sums.
_SHARE, _SUMS = 128, 16
# So many warps has a block at least, and a multiprocessor in all its blocks: while one counts, loads of others are on their way.
_WARPS, _ALL_WARPS = 16, 32

# In the L2 cache: counts of its own for each block, but no more than so many in all.
_TILE, _BLOCKS, _COUNTS = 1024, 1024, 1 << 22
_CPU_TILE = 1 << 16
_MOST_COUNTED = 2**31 - 1  # by an int32


@tk.kernel
def _count(counts: tk.InOut, x: tk.In, tiles: int, padding: int, tile: tk.Const, bins: tk.Const):
    """`padding`: how many zeros the last tile has beyond the edge. Padding with what is no bin would cost a select an element.

    Each block counts up to 2**31 - 1 elements, all of them together as many as `counts` holds.
    """
    total = tk.zeros(bins, tk.int32)
    for i in range(tk.bid(0), tiles, tk.num_blocks(0)):
        total = total + tk.histogram(tk.load(x, i, tile), bins)
    index = tk.arange(bins)
    if counts.dtype == tk.int64:
        tk.atomic_add(counts, index, total.astype(tk.int64), mask=index < counts.shape[0])
    else:
        tk.atomic_add(counts, index, total, mask=index < counts.shape[0])
    if tk.bid(0) == 0:
        tk.atomic_add(counts, 0, -padding)


@tk.kernel
def _count_many(counts: tk.InOut, x: tk.In, bins: int, tiles: int, tile: tk.Const):
    b = tk.bid(0)
    mine = b % counts.shape[0]
    for i in range(b, tiles, tk.num_blocks(0)):
        t = tk.load(x, i, tile, padding_value=-1)
        tk.atomic_add(counts, (mine, t), 1, mask=(t >= 0) & (t < bins))


@takes_ops
def histogram(x: Operand, bins: int) -> DeviceOp[Tensor]:
    """How often each of the integers `0, 1, ... bins - 1` occurs in `x`; others count for nothing.

    Up to 32768 bins are counted in shared memory. More are counted in the L2 cache, which takes longer.

    Args:
        x: a tensor of int32 or int64; or an op that produces one.
        bins: how many integers, from 1 to 2**24.

    Returns:
        An op whose result is a tensor of `bins` elements: int32, or int64 where `x` has 2**31 elements or more, of which int32
        could not hold the count.

    Raises:
        TypeError, ValueError: other arguments.
    """
    integers("histogram", x=x)
    if type(bins) is not int:
        raise TypeError(f"histogram: bins is an int, not {bins!r}")
    if not 1 <= bins <= 1 << 24:
        raise ValueError(f"histogram: bins is from 1 to 2**24, not {bins}")
    counts = _in_shared_memory(x, bins) if bins <= MOST_BINS else _in_the_cache(x, bins)
    return result(counts, api.meta(bins, _counter(x)), None)


def _counter(x: Tensor) -> Any:
    """What holds the number of all elements of `x`."""
    return tk.int64 if x.size > _MOST_COUNTED else tk.int32


def _in_shared_memory(x: Tensor, bins: int) -> DeviceOp:
    """The launch of `_count`, whose first argument is the result."""
    room = max(_FEWEST_BINS, power(bins))
    warps = min(_ALL_WARPS, max(_WARPS, room // (32 * _SUMS)))
    share = _SHARE if room <= 32 * warps * _SUMS else _SHARE // 2
    tile = min(power(x.size), _CPU_TILE if on_cpu(x) else 32 * warps * share // x.itemsize)
    tiles, resident = -(-x.size // tile), _ALL_WARPS // warps
    blocks = 1 if x.device is None or on_cpu(x) else resident * x.device.driver.multiprocessors
    blocks = max(blocks, -(-tiles // (_MOST_COUNTED // tile)))
    counts = api.meta(bins, _counter(x)) if x.is_meta else api.zeros(bins, _counter(x))
    launch = _count(counts.scattered(), flat(x), tiles, tiles * tile - x.size, tile, room)
    return launch.grid(max(1, min(tiles, blocks))).num_warps(warps).occupancy(resident)


def _in_the_cache(x: Tensor, bins: int) -> DeviceOp:
    """An op whose first result is a partition of what `_count_many` counted, all blocks' together."""
    tile = min(power(x.size), _CPU_TILE if on_cpu(x) else _TILE)
    tiles = -(-x.size // tile)
    blocks = max(1, min(tiles, _BLOCKS))
    copies = 1 if on_cpu(x) else max(1, min(blocks, _COUNTS // bins))
    counter = _counter(x)
    counts = api.meta((copies, bins), counter) if x.is_meta else api.zeros((copies, bins), counter)
    launch = _count_many(counts.scattered(), flat(x), bins, tiles, tile).grid(blocks)
    if x.is_meta:
        return launch

    def total(counts):
        wide, high = min(128, power(bins)), min(64, power(copies))
        return _column_sums(api.empty(bins, counter).partition(wide), counts.unpartition(), -(-copies // high), high)

    return launch.first().then(total)
