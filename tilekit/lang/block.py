"""The block that is running, on the CPU device: which one it is, and of how many.

The worker that executes a kernel sets it (`running`); tile operations ask for it. It is a thread's own: streams run side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Block", "current", "running", "running_one"]


class Block:
    """One instance of a kernel.

    Attributes:
        index: its place in the launch grid, along the axes 0, 1, 2.
        grid: the number of blocks along each axis.
        ordered: whether an atomic has run in this launch, by which blocks may wait for each other.
        sampled: whether it stands for all blocks while types are inferred: operations see to their rules, and print nothing.
    """

    __slots__ = ("grid", "index", "ordered", "sampled")

    def __init__(self, grid: tuple[int, int, int], *, sampled: bool = False) -> None:
        self.grid, self.sampled = grid, sampled
        self.index, self.ordered = (0, 0, 0), False


class _Local(threading.local):
    block: Block | None = None


_local = _Local()


def current() -> Block | None:
    """The block that runs in this thread, or None outside a kernel."""
    return _local.block


def running_one() -> Block:
    """The block that runs in this thread, where one does: the views of tensors exist only then."""
    assert _local.block is not None, "a kernel runs"
    return _local.block


@contextmanager
def running(block: Block) -> Iterator[Block]:
    """Make `block` the current one; its `index` is the caller's to advance."""
    before, _local.block = _local.block, block
    try:
        yield block
    finally:
        _local.block = before
