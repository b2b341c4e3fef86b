"""`all_reduce`: the sum of all members' tensors, for each of them, by one kernel a member.

One-shot: each member puts its tensor where the others read it, tells them, waits for their word, and adds up all of them. That
reads `size - 1` tensors from others. Two-shot: each member adds up its share of all tensors, and reads the others' sums: two
waits, and `2 * (size - 1) / size` tensors. Either way all members add in the order of the ranks, and get the same bits.

Block `b` of a member waits for block `b` of the others alone. Its stage has two halves, for odd and even calls: that the others
have come to call `n + 1` says that they are done with call `n`, so that call `n + 2` may write where that one did.
"""
# ruff: noqa: SIM113 - kernels have no enumerate

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tilekit as tk
from tilekit import api, dtypes
from tilekit._groups.group import Group
from tilekit._groups.symmetric_memory import symmetric
from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.partition import Scattered
from tilekit._tensor.shapes import as_shape
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._collective.signals import LINE, RELEASED, announce, lanes_for, wait_for_all
from tilekit.kernels._collective.together import Together, of_members, started
from tilekit.kernels._host import check_choice, power
from tilekit.kernels._launches import allocated
from tilekit.launch.launch import KernelLaunch
from tilekit.ops import DeviceOp, Spec

__all__ = ["AllReduceWorkspace", "all_reduce"]

T = tk.generics("T")

_OPS = ("sum", "prod", "max", "min", "avg")
_DTYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32)
# All blocks have to run at the same time, beside those of other kernels.
_MOST_BLOCKS = 128
# Of a tile: a thread has four vectors of 16 bytes, or eight. Few large blocks have less to tell each other. (64 KiB, two H200:
# 16 blocks of 4 KiB take 5.1 us, 64 of 1 KiB 6.1; 512 KiB: two warps for 4 KiB 7.1, eight 7.3.)
_LEAST_BYTES, _MOST_BYTES = 1 << 12, 1 << 15
_LEAST_WARPS, _MOST_WARPS = 2, 8
_SMALL_BYTES = 1 << 10  # of a tile of a tensor that is not larger
# What one-shot reads from other members costs as much as a second wait (2 us at 350 GB/s), for three members or more; for two it
# never reads more than two-shot.
_ONE_SHOT_BYTES = 512 << 10


@tk.function
def _combined(acc, value, op: tk.Const):
    if op == "prod":
        acc = acc * value
    elif op == "max":
        acc = tk.maximum(acc, value)
    elif op == "min":
        acc = tk.minimum(acc, value)
    else:
        acc = acc + value
    return acc


@tk.function
def _reduced(stage, half, b, at, size: tk.Const, op: tk.Const):
    """Tile `at` of the block, of all members."""
    acc = tk.load(stage, (0, half, b, at), (1, 1, 1, T)).reshape(T).astype(tk.float32)
    for rank in tk.static_range(1, size):
        acc = _combined(acc, tk.load(stage, (rank, half, b, at), (1, 1, 1, T)).reshape(T).astype(tk.float32), op)
    return acc / size if op == "avg" else acc


@tk.kernel
def _one_shot(
    y: tk.InOut, x: tk.In, stage: tk.InOut, flags: tk.InOut, counts: tk.InOut, rank: int,
    size: tk.Const, lanes: tk.Const, op: tk.Const,
):  # fmt: skip
    """Block `b` of `n` has tiles `b`, `b + n`, ... of `x`."""
    b, blocks = tk.bid(0), tk.num_blocks(0)
    mine = tk.load(x, b, T)  # on its way while the call is counted
    call = tk.atomic_add(counts, b, 1) + 1
    half = call % 2
    tiles, turn = tk.cdiv(x.shape[0], T), 0
    for tile in range(b, tiles, blocks):
        tk.store(stage, (rank, half, b, turn), mine.reshape((1, 1, 1, T)))
        mine = tk.load(x, min(tile + blocks, tiles - 1), T)
        turn += 1
    announce(flags, b * LINE, call, rank, size, lanes)
    wait_for_all(flags, b * LINE, call, rank, size, lanes)
    turn = 0
    for tile in range(b, tiles, blocks):
        tk.store(y, tile, _reduced(stage, half, b, turn, size, op).astype(y.dtype))
        turn += 1


@tk.kernel
def _two_shot(
    y: tk.InOut, x: tk.In, stage: tk.InOut, sums: tk.InOut, flags: tk.InOut, summed: tk.InOut, counts: tk.InOut, rank: int,
    size: tk.Const, lanes: tk.Const, op: tk.Const,
):  # fmt: skip
    """Block `b` of `n` has pieces `b`, `b + n`, ... of `x`: a tile for each member."""
    b, blocks = tk.bid(0), tk.num_blocks(0)
    call = tk.atomic_add(counts, b, 1) + 1
    half = call % 2
    tiles = tk.cdiv(x.shape[0], T)
    pieces, turn = tk.cdiv(tiles, size), 0
    for piece in range(b, pieces, blocks):
        for part in tk.static_range(size):
            if piece * size + part < tiles:
                tile = tk.load(x, piece * size + part, T).reshape((1, 1, 1, T))
                tk.store(stage, (rank, half, b, turn * size + part), tile)
        turn += 1
    announce(flags, b * LINE, call, rank, size, lanes)
    wait_for_all(flags, b * LINE, call, rank, size, lanes)
    turn = 0
    for piece in range(b, pieces, blocks):
        if piece * size + rank < tiles:
            mine = _reduced(stage, half, b, turn * size + rank, size, op)
            tk.store(sums, (rank, half, b, turn), mine.astype(y.dtype).reshape((1, 1, 1, T)))
        turn += 1
    announce(summed, b * LINE, call, rank, size, lanes)
    wait_for_all(summed, b * LINE, call, rank, size, lanes)
    turn = 0
    for piece in range(b, pieces, blocks):
        for part in tk.static_range(size):
            if piece * size + part < tiles:
                tk.store(y, piece * size + part, tk.load(sums, (part, half, b, turn), (1, 1, 1, T)).reshape(T))
        turn += 1


class _Schedule(NamedTuple):
    """How a tensor is dealt out: elements of a tile, blocks, warps, and whether there are two shots."""

    tile: int
    blocks: int
    warps: int
    two_shot: bool


class AllReduceWorkspace:
    """What `kernels.all_reduce` needs of a group: stages that all members see, flags and counters. Blocks until all members have
    come; made once, for any number of calls.

    Calls that use it come one after the other, in the same order at all members.

    Args:
        group: whose. All its members make one, in the same order.
        capacity: the most elements that a tensor has, or its shape.
        dtype: of the tensors: float16, bfloat16 or float32.

    Attributes:
        group, capacity, dtype: these.

    Raises:
        TypeError, ValueError: other arguments, or not those of the other members.
        What `tk.symmetric` raises.
    """

    def __init__(self, group: Group, capacity: int | tuple[int, ...], dtype: Any = dtypes.float32) -> None:
        if not isinstance(group, Group):
            raise TypeError(f"AllReduceWorkspace: group is a tk.Group, not {group!r}")
        self.group, self.capacity, self.dtype = group, math.prod(as_shape(capacity)), dtypes.as_dtype(dtype)
        if self.dtype not in _DTYPES:
            names = ", ".join(known.name for known in _DTYPES)
            raise TypeError(f"AllReduceWorkspace: adds up {names}, not {self.dtype.name}; group.all_reduce takes other dtypes")
        if self.capacity < 1:
            raise ValueError(f"AllReduceWorkspace: a capacity of {capacity} elements: one at least")
        counts = [device.driver.multiprocessors for device in group.devices]
        counts = group.exchange(counts[0]) if group.joined else counts
        self._blocks = min(_MOST_BLOCKS, *counts)
        # So many elements of a tensor as large as can be a block has in the worst case, in tiles of either kernel.
        largest = max(self.schedule(self.capacity, two_shot).tile * (group.size if two_shot else 1) for two_shot in (False, True))
        room = -(-self.capacity // self._blocks) + 2 * largest
        room += -room % largest
        stage, sums = (symmetric(group, (2, self._blocks, room), self.dtype) for _ in range(2))
        flags, summed = self._flags = [symmetric(group, (group.size, self._blocks * LINE), dtypes.int64) for _ in range(2)]
        # What a member's kernel takes beside its tensors, by whether it is that of two shots.
        self._shared: list[tuple[list[Scattered], list[Scattered]]] = []
        for rank, device in zip(group.ranks, group.devices, strict=True):
            counts_here = api.zeros(self._blocks, dtypes.int64).on(device).sync().scattered()
            seen = [tensor.whole(rank).scattered() for tensor in (stage, sums, flags, summed)]
            self._shared.append(([seen[0], seen[2], counts_here], [*seen, counts_here]))
        group.on_loss(self.release)

    def release(self) -> None:
        """Let kernels that wait for members that are gone go on: what they give means nothing, and neither do later calls. Blocks
        until they have been told. Called when the group breaks."""
        for flags in self._flags:
            flags.overwrite(RELEASED)

    def schedule(self, count: int, two_shot: bool | None = None) -> _Schedule:
        """How `count` elements are dealt out (internal)."""
        itemsize, size = self.dtype.itemsize, self.group.size
        if two_shot is None:
            two_shot = size > 2 and (size - 1) * count * itemsize > _ONE_SHOT_BYTES
        parts = size if two_shot else 1
        nbytes = min(
            max(power(-(-count * itemsize // (self._blocks * parts))), _LEAST_BYTES),
            max(_MOST_BYTES // power(parts), _LEAST_BYTES),
            max(power(-(-count * itemsize // parts)), _SMALL_BYTES),
        )
        tile = nbytes // itemsize
        warps = max(_LEAST_WARPS, min(_MOST_WARPS, nbytes // _LEAST_BYTES))
        return _Schedule(tile, min(self._blocks, -(-count // (tile * parts))), warps, two_shot)

    def launch(self, at: int, y: Tensor, x: Tensor, op: str, two_shot: bool | None = None) -> KernelLaunch:
        """The kernel of this process's member number `at` (internal)."""
        rank, size = self.group.ranks[at], self.group.size
        schedule = self.schedule(x.size, two_shot)
        kernel = _two_shot if schedule.two_shot else _one_shot
        launch: KernelLaunch = kernel(
            y.reshape(y.size).scattered(), x.reshape(x.size), *self._shared[at][schedule.two_shot], rank, size,
            lanes_for(size), op,
        )  # fmt: skip
        return launch.generics(T=schedule.tile).grid(schedule.blocks).num_warps(schedule.warps)

    def __repr__(self) -> str:
        return f"<AllReduceWorkspace of up to {self.capacity:,} {self.dtype.name} for {self.group!r}>"


class _Member:
    """One member's part: its kernel."""

    def __init__(self, launch: KernelLaunch | None, y: Tensor) -> None:
        self.launches: Sequence[KernelLaunch] = () if launch is None else (launch,)
        self._y = y

    def submit(self, ctx: ExecutionContext) -> Tensor:
        for launch in self.launches:
            started(launch, ctx)
        return self._y


def all_reduce(
    x: Any, workspace: AllReduceWorkspace, op: str = "sum", *, out: Any = None, two_shot: bool | None = None
) -> DeviceOp[Any]:
    """The reduction of all members' tensors, element by element, for each member: by one kernel on each device.

    For tensors up to some megabytes, for which it takes less time than `group.all_reduce`; it can be recorded in a CUDA graph.
    The members' kernels wait for each other on their devices: all members run it, in the same order as all other such ops.

    Args:
        x: in one process, a list with a tensor for each member, of one shape, or an op that gives one (or a list with ops); in a
            joined group, this member's tensor or an op.
        workspace: what the group's members share for it; `x` has its dtype, and up to its capacity of elements.
        op: "sum", "prod", "max", "min", "avg". Numbers of 16 bits are reduced in float32, in the order of the ranks, and rounded
            once; all members get the same bits.
        out: where to, as `x`, of its shape and dtype; by default new tensors. Not `x` itself.
        two_shot: whether each member adds up a part, and gives it to the others, instead of adding up all of it. By default what
            is faster for the size.

    Returns:
        An op whose result is a tensor, or a list with one for each member.

    Raises:
        TypeError, ValueError: other arguments.
        GroupError: when it runs: the group is closed or broken.
    """
    if not isinstance(workspace, AllReduceWorkspace):
        raise TypeError(f"all_reduce: workspace is a kernels.AllReduceWorkspace, not {workspace!r}")
    check_choice("all_reduce", "op", op, _OPS)
    if two_shot is not None and not isinstance(two_shot, bool):
        raise TypeError(f"all_reduce: two_shot is True, False or None, not {two_shot!r}")
    group = workspace.group
    outputs = None if out is None else group.tensors("all_reduce", [out] if group.joined else out, "out")

    def of(inputs: list[Tensor]) -> DeviceOp[Any]:
        for rank, tensor in zip(group.ranks, inputs, strict=True):
            _check(workspace, rank, tensor, inputs[0])
        for rank, tensor, target in zip(group.ranks, inputs, outputs or (), strict=outputs is not None):
            _check_out(rank, tensor, target)

        def work(at: int, ctx: ExecutionContext, x: Tensor) -> _Member:
            y = allocated(ctx, Spec(x.shape, x.dtype)) if outputs is None else outputs[at]
            return _Member(workspace.launch(at, y, x, op, two_shot) if x.size else None, y)

        return Together(group, [(x,) for x in inputs], work, "all_reduce", Spec(inputs[0].shape, inputs[0].dtype))

    return of_members("all_reduce", group, {"x": x}, of)


def _check(workspace: AllReduceWorkspace, rank: int, x: Tensor, first: Tensor) -> None:
    if x.dtype != workspace.dtype:
        raise TypeError(f"all_reduce: x of rank {rank} holds {x.dtype.name}, and the workspace is for {workspace.dtype.name}")
    if x.size > workspace.capacity:
        raise ValueError(
            f"all_reduce: x of rank {rank} has {x.size:,} elements, and the workspace room for {workspace.capacity:,}: make a "
            "larger one, or use group.all_reduce"
        )
    if x.shape != first.shape:
        raise ValueError(f"all_reduce: x of rank {rank} has shape {x.shape}, and that of the first member {first.shape}")


def _check_out(rank: int, x: Tensor, out: Tensor) -> None:
    if (out.shape, out.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"all_reduce: out of rank {rank} is {out.dtype.name} {out.shape}, and the result {x.dtype.name} {x.shape}"
        )
    if not out.is_contiguous:
        raise ValueError(f"all_reduce: out of rank {rank} has gaps: pass a contiguous tensor")
    if out.shares_memory(x):
        raise ValueError(f"all_reduce: out of rank {rank} shares memory with x: pass another tensor")
