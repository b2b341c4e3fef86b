"""Packed operands of products: copies whose rows begin at lines of the cache, so that they come to shared memory ahead.

Rows of an odd number of elements begin at any address, from which neither the tensor memory accelerator nor a copy to shared
memory takes them; and tensor cores take 8-bit integers and floats, and rounded float32, only along K. Such operands are loaded
element by element as the loop goes, again for each tile. Threads that add up float32 by themselves take it across K, and what
lies along K comes to them one element at a time. To copy them first costs their bytes twice, once. (Goto and van de
Geijn, "Anatomy of high-performance matrix multiplication", 2008, pack for a processor's caches.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._gemm.model import FEW_ROWS
from tilekit.kernels._host import multiprocessors, shaped
from tilekit.kernels._launches import New
from tilekit.kernels._staging import LINES, aligned
from tilekit.ops import DeviceOp, Spec

__all__ = ["AS_THEY_LIE", "Packing", "best_packing", "packed", "packing_of"]

BM, BN = tk.generics("BM BN")

# Microseconds on an H200, fitted to 40 random products of odd widths: what a step along K takes for each tile that a
# multiprocessor has, and besides; the beginning of one more kernel; bytes that are copied in one, and stored; the clocks of one.
_ROUND, _STEP, _NEXT, _BYTES, _STORED, _CLOCKS = 0.9, 0.6, 4.0, 2.5e6, 4.2e6, 1700
# The first where rows of the result are no multiples of 8 elements: 6 x 3384 x 9189 x 2 takes 280 us, 16384 x 4096 x 2 39.
_EIGHT, _ODD = 8, 1.3
# The first where float32 is rounded, by the elements along K that a step has. (9 x 9340 x 151 x 66, across K, takes 85 us in
# three steps, 1624 x 13944 x 16 28 in one.)
_ROUNDED = 0.07
# Where both operands are copied to shared memory 4 or 8 bytes at a time, a product takes so many times as long. (3820 x 5770 x
# 9804 takes 960 us, 3030 x 15847 x 2572 570, 4948 x 2382 x 4009 270.)
_COPIED = 1.75
# So much of the time is a gain by two models, of kernels of two kinds; and by one, where tiles are else turned over in each step,
# or exact float32 comes to shared memory one element at a time. (1948 x 2524 x 10940 TT takes 2620 us, and TN 2220.)
_WORTH, _WORTH_TURNED, _WORTH_ACROSS = 0.88, 0.95, 0.96
_MOST_COPIED = 256 << 20  # bytes of memory that so small a gain is worth
_TILE, _WARPS = (64, 64), 4


@tk.function
def _copied(y, x, at):
    rows, columns = tk.cdiv(y.shape[1], BM), tk.cdiv(y.shape[2], BN)
    n = at // (rows * columns)
    i = (at - n * rows * columns) // columns
    place = n, i, at - (n * rows + i) * columns
    tk.store(y, place, tk.load(x, place, (1, BM, BN)))


@tk.kernel
def _pack(copies: tuple[tk.Out, ...], operands: tuple[tk.In, ...], tiles: int):
    """Copy the first operand in so many tiles, and after it the second, if there is one."""
    at = tk.bid(0)
    for number in tk.static_range(len(copies)):
        if min(at // tiles, len(copies) - 1) == number:
            _copied(copies[number], operands[number], at - number * tiles)


class _Described(Tensor):
    """What a packed operand will be like; its memory is that of the operand."""

    __slots__ = ()

    @property
    def align(self) -> int:
        """New memory begins at a line."""
        return 16


Packing = tuple[tuple[int, ...] | None, tuple[int, ...] | None]
"""Of both operands the strides as they are to be packed; None of one that stays where it is."""
Plan = tuple[Any, ...]
"""How a product is done: first its schedule, last whether tiles of the operands come to shared memory ahead."""


AS_THEY_LIE: Packing = (None, None)


def packing_of(a: Tensor, b: Tensor, *, deep: bool = False, across: bool = False) -> Packing:
    """How to pack those that do not come to shared memory as tensor cores take them: with that contiguous which is, or has to be.

    That is K where they take the dtype along K alone; `deep` says that it is K of `a` whatever the dtype. If they are to lie
    `across` it, that is the other dimension.
    """
    if across:
        return _packing(a, len(a.shape) - 2), _packing(b, len(b.shape) - 1)
    a_deep, b_deep = len(a.shape) - 1, len(b.shape) - 2
    return _packing(a, a_deep if deep or a.itemsize != 2 else None), _packing(b, b_deep if b.itemsize != 2 else None)


def _packing(x: Tensor, deep: int | None) -> tuple[int, ...] | None:
    if aligned(x) and deep in (None, x.unit):
        return None
    rank = len(x.shape)
    unit = deep if deep is not None else x.unit if x.unit is not None and x.unit >= rank - 2 else rank - 1
    other = 2 * rank - 3 - unit
    pitch = -(-x.shape[unit] * x.itemsize // LINES) * LINES // x.itemsize
    strides = [pitch * x.shape[other]] * rank
    strides[unit], strides[other] = 1, pitch
    return tuple(strides)


def _described(x: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """A tensor like the packed operand, to decide by; `x` itself if it stays where it is."""
    return x if strides is None else _Described(x.storage, x.shape, x.dtype, strides, 0)


def best_packing(
    a: Tensor, b: Tensor, plan: Plan, planned: Callable[[Tensor, Tensor], Plan], *, deep: bool = False, across: bool = False
) -> tuple[Packing, Plan]:
    """How operands are packed, and the plan for them then; as they lie, and `plan`, where that is no gain.

    Args:
        a, b: the operands.
        plan: for them as they are: first its schedule, last whether tiles come to shared memory ahead.
        planned: makes one for operands that lie otherwise.
        deep, across: see `packing_of`.
    """
    wanted = packing_of(a, b, deep=deep, across=across)
    worth = _WORTH_ACROSS if across else _WORTH_TURNED if plan[-1] and aligned(a, b) else _WORTH
    best, chosen = math.inf, (AS_THEY_LIE, plan)
    # One operand of float32 may be turned over on its way: `b`, or `a` where the transpose is computed.
    for packing in {wanted, (wanted[0], None), (None, wanted[1])} - {AS_THEY_LIE}:
        if across and sum(x.nbytes for x, strides in zip((a, b), packing, strict=True) if strides) > _MOST_COPIED:
            continue
        other = planned(_described(a, packing[0]), _described(b, packing[1]))
        if other[-1]:
            taken, without = _microseconds(plan, other, (a, b), packing)
            if taken < min(best, worth * without):
                best, chosen = taken, (packing, other)
    return chosen


def _microseconds(plan: Plan, other: Plan, operands: tuple[Tensor, Tensor], packing: Packing) -> tuple[float, float]:
    """How long the product takes with operands that are packed, by the `other` plan, and without."""
    as_it_is, staged = plan[0], other[0]
    multiplied = staged.clocks / _CLOCKS
    if math.isinf(multiplied):  # of which there is no model
        multiplied = sum(x.nbytes for x in operands) / _BYTES + _NEXT
    multiplied = max(multiplied, math.prod(operands[0].shape[:-1]) * operands[1].shape[-1] * operands[0].itemsize / _STORED)
    moved = sum(2 * x.nbytes for x, strides in zip(operands, packing, strict=True) if strides)
    if operands[0].itemsize == 4 and as_it_is.clocks < math.inf:
        unpacked = as_it_is.clocks / _CLOCKS
    elif not plan[-1] and min(operands[0].shape[-2], operands[1].shape[-1]) <= FEW_ROWS:
        unpacked = sum(x.nbytes for x in operands) / _BYTES + _NEXT
    elif not plan[-1]:
        rounded = _ROUNDED * operands[0].shape[-1] / as_it_is.share if operands[0].itemsize == 4 else 0
        each = max(_ROUND, rounded) * (1 if operands[1].shape[-1] % _EIGHT == 0 else _ODD)
        unpacked = as_it_is.share * (each * -(-as_it_is.blocks // multiprocessors(operands[0])) + _STEP)
    else:
        unpacked = multiplied * (_COPIED if all(packing) else 1.0)
    return moved / _BYTES + _NEXT + multiplied, unpacked


def packed(new: New, operands: tuple[Tensor, Tensor], packing: Packing) -> Generator[DeviceOp[Any], Any, list[Tensor]]:
    """Launch what packs those of the operands that are to be, and return both as they are then."""
    copies, results = [], []
    for x, strides in zip(operands, packing, strict=True):
        if strides is not None:
            *batch, rows, columns = x.shape
            turned = strides[-1] != 1  # columns are contiguous: the transpose is copied
            source = shaped(x, (math.prod(batch), rows, columns))
            source = source.permute(0, 2, 1) if turned else source
            y = new(Spec((*source.shape[:2], max(strides[-2:])), x.dtype))[:, :, : source.shape[2]]
            copies.append((y, source))
            y = y.permute(0, 2, 1) if turned else y
            x = y if batch else y[0]
        results.append(x)
    if copies:
        counts = [y.shape[0] * math.prod(-(-n // side) for n, side in zip(y.shape[1:], _TILE, strict=True)) for y, _ in copies]
        launch = _pack(tuple(y.scattered() for y, _ in copies), tuple(x for _, x in copies), counts[0])
        yield launch.grid(sum(counts)).generics(BM=_TILE[0], BN=_TILE[1]).num_warps(_WARPS)
    return results
