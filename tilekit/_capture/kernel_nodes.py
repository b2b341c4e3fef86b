"""Launches of kernels as nodes of what is recorded (`tilekit._driver.nodes`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilekit._driver.nodes import Launch, MemoryRange, Node
from tilekit._driver.protocol import FunctionHandle, Memory
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor

__all__ = ["InterpretedLaunch", "compiled_launch", "range_of", "slot_of"]

Triple = tuple[int, int, int]
Pairs = Sequence[tuple[int, int]]


def range_of(argument: Any, written: bool) -> MemoryRange:
    """Where a tensor, or the tensor of a partition, has its first element."""
    tensor: Tensor = argument.tensor if isinstance(argument, Partition) else argument
    assert tensor.storage is not None, "it is an argument of a launch"
    below, above = tensor.reach
    return MemoryRange(tensor.storage.memory, tensor.offset * tensor.itemsize, below + above, written, below)


def slot_of(argument: Any) -> Any:
    """The slot (`tilekit.slot`) that a number came from; None if it is just a number."""
    return getattr(argument, "slot", None) if isinstance(argument, (int, float)) else None


def _set_beside(ranges: Mapping[int, MemoryRange], shared: Pairs | None) -> None:
    """Note which ranges of a launch may be one."""
    if shared is None:
        return
    for span in ranges.values():
        span.beside = ()
    for pair in shared:
        one, other = (ranges[number] for number in pair)
        one.beside, other.beside = (*(one.beside or ()), other), (*(other.beside or ()), one)


def compiled_launch(
    function: FunctionHandle,
    grid: Triple,
    block: Triple,
    shared_bytes: int,
    values: bytes,
    codes: str,
    arguments: Sequence[tuple[Any, int, bool | None]],
    cluster: Triple | None = None,
    maps: Sequence[tuple[int, Callable[[int], bytes]]] = (),
    shared: Pairs | None = None,
) -> Launch:
    """A launch of machine code.

    Args:
        function, grid, block, shared_bytes, cluster: see `Launch`.
        values: its parameters, eight bytes each; `codes` their codes in the module struct, one each.
        arguments: what was passed: each with the number of its first parameter, and whether it is written.
        maps: for each tensor map behind `values` the number of its argument, and what makes it for an address.
        shared: the arguments whose memory may be one, though the first of the two is written; None for all.
    """
    pointers, scalars, ranges = [], [], {}
    for number, (argument, at, written) in enumerate(arguments):
        if isinstance(argument, (Tensor, Partition)):
            ranges[number] = range_of(argument, bool(written))
            pointers.append((at, ranges[number]))
        elif (slot := slot_of(argument)) is not None:
            scalars.append((slot, at, codes[at]))
    _set_beside(ranges, shared)
    maps_of_ranges = [(ranges[number], encode) for number, encode in maps]
    return Launch("", function, grid, block, shared_bytes, values, pointers, scalars, cluster, maps_of_ranges)


class InterpretedLaunch(Node):
    """A launch on a CPU device.

    Args:
        enqueue: submits it: is given the driver, its stream, the grid and the arguments.
        grid, arguments: of the launch.
        written: for each argument, whether it is a tensor that is written; None for what is no tensor.
        shared: the arguments whose memory may be one, though the first of the two is written.
    """

    __slots__ = ("_arguments", "_enqueue", "_grid", "_ranges", "scalars")

    def __init__(
        self,
        enqueue: Callable[[Any, Any, Triple, Sequence[Any]], None],
        grid: Triple,
        arguments: Sequence[Any],
        written: Sequence[bool | None],
        shared: Pairs | None = None,
    ) -> None:
        super().__init__("")
        self._enqueue, self._grid, self._arguments = enqueue, grid, list(arguments)
        self._ranges = [None if w is None else range_of(a, w) for a, w in zip(arguments, written, strict=True)]
        _set_beside({at: span for at, span in enumerate(self._ranges) if span is not None}, shared)
        self.scalars = tuple((slot_of(a), at, "") for at, a in enumerate(arguments) if slot_of(a) is not None)

    def enqueue(self, driver: Any, stream: Any) -> None:
        self._enqueue(driver, stream, self._grid, self._arguments)

    def ranges(self) -> Sequence[MemoryRange]:
        return [span for span in self._ranges if span is not None]

    def refresh(self, span: MemoryRange) -> None:
        for at, mine in enumerate(self._ranges):
            if mine is span:
                self._arguments[at] = _moved(self._arguments[at], span)

    def set(self, slot: Any, number: Any) -> None:
        for from_slot, at, _ in self.scalars:
            if from_slot is slot:
                self._arguments[at] = number


class _Stand:
    """What the view of a tensor needs of a storage."""

    owned = False  # others may have the same memory: whether two overlap, their addresses say

    def __init__(self, memory: Memory, device: Any) -> None:
        self.memory, self.device = memory, device


def _moved(argument: Any, span: MemoryRange) -> Any:
    """A tensor or partition like `argument`, in other memory."""
    if isinstance(argument, Partition):
        partition = copy.copy(argument)
        partition.tensor = _moved(argument.tensor, span)
        partition.storage = partition.tensor.storage
        return partition
    storage: Any = _Stand(span.memory, argument.device)
    return Tensor(storage, argument.shape, argument.dtype, argument.strides, span.offset // argument.itemsize)
