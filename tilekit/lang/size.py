"""How large a tile may be: the same on every device, so that a kernel written without a GPU compiles for one.

A GPU keeps a tile in the registers of a block's threads, of which each has up to 255. Every element of a thread's is a value of
its own in the compiled code, and what is computed of them is written out one by one: with 256 elements a thread kernels compile
in a second or two, with 512 in ten, with 8192 not in minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilekit.errors import CompileError

__all__ = ["ELEMENTS_A_THREAD", "MOST_WARPS", "SORTED_A_THREAD", "check_size", "sized"]

ELEMENTS_A_THREAD = 256
"""Of a tile, on the average of the block's threads: copies that threads hold do not count."""
SORTED_A_THREAD = 128
"""The same of a tile that is sorted, whose code grows faster: with 128 it compiles in ten seconds, with 256 in ninety."""
MOST_WARPS = 16
"""Up to which a block gets more warps for the sake of a large tile: with more, a thread can have no more than 64 registers."""

_WARP, _MOST_ASKED = 32, 32
_num_warps: ContextVar[int | None] = ContextVar("tilekit_num_warps", default=None)


@contextmanager
def sized(num_warps: int | None) -> Iterator[None]:
    """While the block runs, tiles are those of blocks of so many warps; None for as many as the compiler may take."""
    token = _num_warps.set(num_warps)
    try:
        yield
    finally:
        _num_warps.reset(token)


def check_size(shape: tuple[int, ...], what: str, each: int = ELEMENTS_A_THREAD) -> tuple[int, ...]:
    """`shape`, if a tile of it is not too large.

    Args:
        shape: the extents.
        what: the operation that makes the tile.
        each: elements a thread.

    Raises:
        CompileError: it is.
    """
    count = math.prod(shape)
    if count <= each * _WARP:
        return shape
    warps = _num_warps.get() or MOST_WARPS
    if count > each * _WARP * warps:
        wanted = count // (each * _WARP)
        more = f", or {wanted} warps a block (num_warps={wanted})" if wanted <= _MOST_ASKED else ""
        raise CompileError(
            f"{what}: a tile of shape {shape} has {count:,} elements; a block of {warps} warps takes tiles of up to "
            f"{each * _WARP * warps:,}, {each} elements a thread: take smaller tiles{more}"
        )
    return shape
