"""What the arguments of a launch must not be to each other: memory that is written and used otherwise, or of other extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilekit._tensor.partition import Partition, PrefixPartition, Scattered
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.passes.aliasing import apart
from tilekit.compiler.passes.footprints import accesses_of
from tilekit.lang.signature import Parameter

if TYPE_CHECKING:
    from tilekit.launch.decorator import Kernel
    from tilekit.launch.planning import Plan

__all__ = ["check_distinct", "check_extents", "check_overlap", "may_share"]

Grid = tuple[int, int, int]


def check_extents(kernel: Kernel, bound: BoundKernel, tensors: Mapping[str, Any], grid: Grid) -> None:
    """Refuse `tk.load_tile_like(x, y)` of tensors of other extents, where the kernel does not say that padding is meant.

    Raises:
        ValueError: it names both.
    """
    for call in accesses_of(bound).alike:
        array, like = tensors.get(call.array), tensors.get(call.like)
        if array is None or not isinstance(like, Partition) or isinstance(like, Scattered):
            continue
        mine, theirs = array.shape, like.shape
        if mine == theirs or len(mine) != len(theirs):  # of other ranks, the compiler says so
            continue
        if isinstance(like, PrefixPartition) and all(
            min(there, count * tile) <= here
            for here, there, count, tile in zip(mine, theirs, _counts(grid, like), like.tile_shape, strict=True)
        ):
            continue  # of the tiles that the launch covers all elements are there
        padded = f'{call.text.removesuffix(")")}, padding_mode="zero")'
        raise ValueError(
            f"{kernel.label}: arguments {call.array} of shape {mine} and {call.like} of shape {theirs} have other extents, and "
            f"{call.text} in line {call.lineno} takes the tiles of {call.like} from {call.array}. Pass tensors of one shape; if "
            f"padding is meant, write {padded}, or tk.load with an index of its own"
        )


def _counts(grid: Grid, partition: Partition) -> tuple[int, ...]:
    """How many tiles a launch covers along each dimension, at most."""
    if len(partition.tile_shape) < 4:
        return grid[: len(partition.tile_shape)]
    rows = partition.grid[1]
    return -(-grid[0] // rows) if rows else 0, rows, *grid[1:]


def check_overlap(kernel: Kernel, arguments: Sequence[Any], plan: Plan) -> None:
    """Refuse a launch in which memory that one argument writes is also another's, unless that reads the very same view, and each
    block no tile of it but its own.

    Raises:
        ValueError: it names both.
    """
    for at in plan.writes:
        for other in {*plan.reads, *plan.writes} - {at}:
            mine, theirs = arguments[at].storage, arguments[other].storage
            if mine is theirs or not (mine.owned and theirs.owned):  # others' memory may be met in several storages
                _check_pair(kernel, arguments, plan, at, other)


def _check_pair(kernel: Kernel, arguments: Sequence[Any], plan: Plan, at: int, other: int) -> None:
    partition, argument = arguments[at], arguments[other]
    mine, theirs = partition.tensor, argument if isinstance(argument, Tensor) else argument.tensor
    name, partner = (kernel.signature.parameters[i].name for i in (at, other))
    same = theirs.address == mine.address and theirs.shape == mine.shape and theirs.strides == mine.strides
    same = same and theirs.itemsize == mine.itemsize  # strides count elements
    if same and isinstance(argument, Tensor):
        if mine.size and not may_share(kernel, arguments, plan, at, other):
            raise ValueError(
                f"{kernel.label}: arguments {name} and {partner} are the same memory, {name} is written, and a block may read of "
                f"{partner} what another block has written: in place works where each block reads no tile but the one it writes, "
                f"as tk.load_tile_like({partner}, {name}) does. Pass a dup() of one of them"
            )
        return
    if argument is partition:
        raise ValueError(f"{kernel.label}: arguments {name} and {partner} are the same partition, and both are written")
    if mine.shares_memory(theirs):
        raise ValueError(
            f"{kernel.label}: arguments {name} and {partner} overlap in memory, and {name} is written; only the very "
            "same view may be written by one argument and read by another. Pass a dup() of one of them"
        )


def may_share(kernel: Kernel, arguments: Sequence[Any], plan: Plan, written: int, read: int) -> bool:
    """Whether two arguments of a launch may be one view: no block reads of it what another writes."""
    known = plan.apart.get((written, read))
    if known is None:
        names = [p.name for p in kernel.signature.parameters]
        bound, tensors = plan.specialisation.bound, dict(zip(names, arguments, strict=True))
        known = plan.apart[written, read] = apart(bound, tensors, plan.grid, names[written], names[read])
    return known


def check_distinct(kernel: Kernel, parameter: Parameter, partition: Partition) -> None:
    """Refuse to write a tensor of which two elements may be one place in memory, as where a stride is 0."""
    tensor = partition.tensor
    reach = 0  # of the dimensions with smaller strides, in elements
    for stride, extent in sorted((abs(s), n) for s, n in zip(tensor.strides, tensor.shape, strict=True) if n > 1):
        if stride <= reach and tensor.size:
            raise ValueError(
                f"{kernel.label}: argument {parameter.name} is written, and its elements overlap in memory: shape "
                f"{tensor.shape}, strides {tensor.strides}. Write to a dup() of it"
            )
        reach += stride * (extent - 1)
