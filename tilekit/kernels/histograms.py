"""How often each value occurs.

Many blocks count at the same time, by atomic additions. If all of them counted in one place, they would wait for each other at
the values that occur most; so each has counts of its own, which are added up afterwards.
"""

from __future__ import annotations

import tilekit as tk
from tilekit import api
from tilekit.kernels._host import Operand, flat, integers, on_cpu, power, result, takes_ops
from tilekit.kernels.norms import _column_sums
from tilekit.ops import DeviceOp, Spec
from tilekit.tensor import Tensor

__all__ = ["histogram"]

_TILE = 1024
_BLOCKS = 1024
# Counts of their own for each block: no more than this many in all.
_COUNTS = 1 << 22


@tk.kernel
def _count(counts: tk.InOut, x: tk.In, bins: int, tiles: int, tile: tk.Const):
    b = tk.bid(0)
    mine = b % counts.shape[0]
    for i in range(b, tiles, tk.num_blocks(0)):
        t = tk.load(x, i, tile, padding_value=-1)
        tk.atomic_add(counts, (mine, t), 1, mask=(t >= 0) & (t < bins))


@takes_ops
def histogram(x: Operand, bins: int) -> DeviceOp[Tensor]:
    """How often each of the integers `0, 1, ... bins - 1` occurs in `x`; others count for nothing.

    Args:
        x: a tensor of int32 or int64; or an op that produces one.
        bins: how many integers, from 1 to 2**24.

    Returns:
        An op whose result is an int32 tensor of `bins` elements.

    Raises:
        TypeError, ValueError: other arguments.
    """
    integers("histogram", x=x)
    if type(bins) is not int:
        raise TypeError(f"histogram: bins is an int, not {bins!r}")
    if not 1 <= bins <= 1 << 24:
        raise ValueError(f"histogram: bins is from 1 to 2**24, not {bins}")
    tile = min(power(x.size), 1 << 16 if on_cpu(x) else _TILE)
    tiles = -(-x.size // tile)
    blocks = max(1, min(tiles, _BLOCKS))
    copies = 1 if on_cpu(x) else max(1, min(blocks, _COUNTS // bins))

    def counted(zeros):
        launch = _count(zeros.scattered(), flat(x), bins, tiles, tile).grid(blocks)
        return launch.first().unpartition()

    def total(counts):
        wide, high = min(128, power(bins)), min(64, power(copies))
        return _column_sums(api.empty(bins, tk.int32).partition(wide), counts, -(-copies // high), high)

    if x.is_meta:
        launch = _count(api.meta((copies, bins), tk.int32).scattered(), x.reshape(x.size), bins, tiles, tile).grid(blocks)
        return result(launch, Spec((bins,), tk.int32), api.meta(bins, tk.int32))
    return result(api.zeros((copies, bins), tk.int32).then(counted).then(total), Spec((bins,), tk.int32), None)
