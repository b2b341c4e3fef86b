"""Words that blocks of different members leave for each other in symmetric memory.

Flags only grow: a member writes the number of its call, and the others wait until a flag has reached theirs. So none has to be
set back, and a call that is recorded in a graph, whose arguments never change, finds its number in memory.
"""

from __future__ import annotations

import tilekit as tk

__all__ = ["LINE", "RELEASED", "announce", "arrived", "lanes_for", "wait_for_all"]

RELEASED = (
    1 << 62
)  # what no call's number reaches: kernels that wait for members that are gone go on, with numbers that mean nothing

LINE = 16
"""How far words are apart, in elements, that many blocks write or wait for at the same time: each has a line of the cache."""

_APART = 8  # elements of a tile of words that one thread has: with one of them used, each member's word has its own thread


def lanes_for(size: int) -> int:
    """The words of a tile with one for each of `size` members, a power of two."""
    return _APART * (1 << (size - 1).bit_length())


@tk.function
def others_of(rank, size: tk.Const, lanes: tk.Const):
    """The ranks of the other members in a tile, and where it has them."""
    at = tk.arange(lanes)
    ranks = at // _APART
    return ranks, (at % _APART == 0) & (ranks < size) & (ranks != rank)


@tk.function
def announce(flags, at, value, rank, size: tk.Const, lanes: tk.Const):
    """Let all others see what the block wrote before: `value` goes to their `flags[other, rank, at]`."""
    ranks, there = others_of(rank, size, lanes)
    tk.atomic_xchg(flags, (ranks, rank, at), value, mask=there, memory_order="release", memory_scope="system")


@tk.function
def arrived(flags, at, value, rank, size: tk.Const, lanes: tk.Const):
    """The least of `flags[rank, other, at]`, which others announce, and `value`: once that is `value`, all have come."""
    ranks, there = others_of(rank, size, lanes)
    seen = tk.atomic_add(flags, (rank, ranks, at), 0, mask=there, memory_order="acquire", memory_scope="system")
    return tk.min(tk.where(there, seen, value))


@tk.function
def wait_for_all(flags, at, value, rank, size: tk.Const, lanes: tk.Const):
    """Wait until all others have announced `value`; what they wrote before is there then."""
    while arrived(flags, at, value, rank, size, lanes) < value:
        pass
