"""Products whose last tiles do not suffice for all multiprocessors: the steps along K of these are dealt out evenly (stream-K).

Whole rounds of tiles, one for each block, are computed as ever. Of the tiles that are left, all steps along K stand in a line,
tile after tile, and each block gets an equal share of it: the end of one tile, and the beginning of the next. What it adds up of
a tile it writes to a place of its own, and a second kernel adds these up, always in the same order. No block waits for another.
Osama et al., "Stream-K: work-centric parallel decomposition for dense matrix-matrix multiplication on the GPU", 2023.

From one piece to the next in this line, the number of the block grows by one, or that of the tile, or both. So the two, added up,
number the places.
"""

from __future__ import annotations

from typing import NamedTuple

import tilekit as tk

__all__ = ["StreamK", "shares_of", "stream_k"]

BM, BN, BK = tk.generics("BM BN BK")

_EVEN = 2  # rows of tiles in clusters of a product, see `schedules`


@tk.kernel
def shares_of(
    parts: tk.Out, a: tk.In, b: tk.In, top: int, columns: int, tiles: int, steps: int, share: int,
    precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """What each block adds up of the tiles from row `top` of tiles on, in shares of so many steps."""
    at = tk.bid(0) * share
    end = min(at + share, tiles * steps)
    while at < end:
        tile = at // steps
        first = at - tile * steps
        last = min(steps, first + end - at)
        i, j = top + tile // columns, tile % columns
        acc = tk.zeros((BM, BN), parts.dtype)
        for ta, tb in tk.pipelined(
            a.tiles((BM, BK))[i, first:last], b.tiles((BK, BN))[first:last, j], warp_specialize=warp_specialize
        ):
            acc = tk.mma(ta, tb, acc, precision=precision)
        tk.store(parts, (tk.bid(0) + tile, 0, 0), acc.reshape((1, BM, BN)))
        at += last - first


class StreamK(NamedTuple):
    """How the steps of the last tiles are dealt out.

    Attributes:
        top: how many rows of tiles are computed as ever.
        columns: of tiles.
        tiles: that are dealt out, in the rows below.
        steps: of a tile.
        share: the steps of a block.
        blocks: that have some.
    """

    top: int
    columns: int
    tiles: int
    steps: int
    share: int
    blocks: int

    @property
    def places(self) -> int:
        """For what blocks have of tiles."""
        return self.blocks + self.tiles - 1


def stream_k(rows: int, columns: int, steps: int, blocks: int) -> StreamK | None:
    """How so many rows and columns of tiles go to blocks that run at the same time; None if nothing is left of whole rounds."""
    top = rows * columns // blocks * blocks // columns
    if top < rows:
        top -= top % _EVEN
    tiles = (rows - top) * columns
    if not tiles:
        return None
    share = -(-tiles * steps // blocks)
    return StreamK(top, columns, tiles, steps, share, -(-tiles * steps // share))
