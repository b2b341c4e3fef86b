"""What the host functions of this package share: checks, new tensors, and how many rows a block gets.

Each of them makes a launch and says which argument is the result. They take tensors, or ops that produce some.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tilekit import api, dtypes
from tilekit.ops import DeviceOp, Spec, zip_ops
from tilekit.tensor import Tensor

__all__ = [
    "Operand", "RowTile", "a_tensor", "check", "compute_dtype", "exponential", "flat", "flat_tile", "integers", "on_cpu",
    "out_or_new", "power", "result", "results", "row_tile", "rows_of", "same_shape", "shaped", "takes_ops",
]  # fmt: skip

# A thread's share of a row, in registers of 32 bits: fewer leave the memory idle, more leave room for too few blocks. On an H200,
# 16 for float32 (four accesses of 16 bytes), and 32 for 16-bit types, which are loaded two to a register.
_SHARE, _SHARE_16_BIT = 16, 32
# At most so many warps, and so many values in a thread: what a row takes that is held in registers from end to end. As many of a
# 16-bit type would be half the bytes, too few for the one block that there is room for.
_WARPS, _MOST, _MOST_16_BIT = 16, 64, 32
# Warps of a block that goes over a row tile by tile.
_LOOP_WARPS = 8
# What a block of a CPU device works on: each tile operation there is a call of NumPy, and this much stays in a cache.
_CPU_ELEMENTS = 1 << 15
_FLAT_BYTES = 4096

Operand = Tensor | DeviceOp[Tensor]
"""What the functions take: a tensor, or an op that produces one."""

F = TypeVar("F", bound=Callable[..., DeviceOp[Any]])


def takes_ops(function: F) -> F:
    """Let a function that takes tensors take ops that produce them too; it is then called when they have run.

    Where the ops know the shapes of their results, the function is asked at once, with tensors that have no memory: mistakes are
    told where they are made, and the op knows its result's shape too.
    """
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> DeviceOp[Any]:
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, DeviceOp)]
        if not given:
            return function(*args, **kwargs).named(name)

        def called(tensors: Sequence[Any]) -> DeviceOp[Any]:
            left = iter(tensors)
            positional = [next(left) if isinstance(a, DeviceOp) else a for a in args]
            named = {key: next(left) if isinstance(a, DeviceOp) else a for key, a in kwargs.items()}
            return function(*positional, **named)

        for op in given:
            op.consumed()  # also if this is a mistake: whoever is told need not run them
        specs = [op.spec for op in given]
        spec = None
        if all(known is not None and known.shape is not None for known in specs):
            trial = called([api.meta(known.shape, known.dtype) for known in specs if known is not None])
            trial.consumed()
            spec = trial.spec
        made: DeviceOp[Any] = zip_ops(*given).then(called)
        made.spec = spec
        return made.named(name)

    return call  # type: ignore[return-value]


def check(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors, with floats for elements."""
    for what, tensor in tensors.items():
        _check_tensor(name, what, tensor)
        if tensor.dtype not in (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64):
            raise TypeError(
                f"{name}: {what} holds {tensor.dtype.name}; it takes float16, bfloat16, float32 and float64: "
                "convert it with .astype(tk.float32)"
            )


def integers(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors of int32 or int64."""
    for what, tensor in tensors.items():
        _check_tensor(name, what, tensor)
        if tensor.dtype not in (dtypes.int32, dtypes.int64):
            raise TypeError(f"{name}: {what} holds {tensor.dtype.name}; it takes int32 and int64")


def a_tensor(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors."""
    for what, tensor in tensors.items():
        _check_tensor(name, what, tensor)


def _check_tensor(name: str, what: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        hint = "; copy it to the device with api.from_host(array)" if isinstance(tensor, np.ndarray) else ""
        raise TypeError(f"{name}: {what} is a tensor or an op that produces one, not {type(tensor).__name__}{hint}")


def same_shape(name: str, **tensors: Tensor) -> None:
    """Raise ValueError or TypeError unless all of them have the shape and the dtype of the first."""
    (first, like), *others = tensors.items()
    for what, tensor in others:
        if tensor.shape != like.shape:
            raise ValueError(f"{name}: {first} has shape {like.shape}, {what} {tensor.shape}; they must be the same")
        if tensor.dtype != like.dtype:
            raise TypeError(f"{name}: {first} holds {like.dtype.name}, {what} {tensor.dtype.name}; convert one with .astype(...)")


def compute_dtype(dtype: Any) -> Any:
    """What is calculated in: float32 for 16-bit floats, else the dtype itself."""
    return dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype


def exponential(dtype: Any) -> str | None:
    """The rounding mode of `tk.exp` for elements of `dtype`: in 16 bits nobody sees the difference, and it takes a third."""
    return "approx" if dtype in (dtypes.float16, dtypes.bfloat16) else None


def on_cpu(tensor: Tensor) -> bool:
    """Whether it is a CPU device's, whose blocks are calls of NumPy."""
    return tensor.device is not None and tensor.device.kind == "cpu"


def power(n: int) -> int:
    """The smallest power of two from `n` on."""
    return 1 << max(0, n - 1).bit_length()


# ------------------------------------------------------------------------------------------------------------ tensors and results


def rows_of(name: str, x: Tensor) -> Tensor:
    """`x` as a matrix, whose rows lie along its last dimension.

    Raises:
        ValueError: it has no dimensions, or its strides give no such view.
    """
    if not x.shape:
        raise ValueError(f"{name}: a tensor without dimensions has no rows; reshape(1) makes one of one element")
    return x if len(x.shape) == 2 else shaped(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """`x`, a tensor or an op that produces one, in another shape of as many elements; as it is, if it has that one."""
    if x.shape == shape:
        return x
    if isinstance(x, Tensor) and x.is_contiguous:  # what reshape makes of it, without asking NumPy
        return Tensor(x.storage, shape, x.dtype, None, x.offset)
    return x.reshape(shape)


def flat(x: Tensor) -> Any:
    """The elements of `x` in one dimension: a view; of a tensor with gaps an op that copies it."""
    return shaped(x, (x.size,)) if x.is_contiguous else x.dup().reshape(x.size)


def out_or_new(name: str, out: Any, like: Tensor, shape: tuple[int, ...] | None = None, dtype: Any = None) -> Any:
    """`out`, if it was given and is what is needed; else a new tensor, on the device of `like`, as an op.

    Raises:
        TypeError, ValueError: `out` is no tensor, or has another shape or dtype.
    """
    shape, dtype = like.shape if shape is None else shape, like.dtype if dtype is None else dtype
    if out is None:
        return api.meta(shape, dtype) if like.is_meta else api.empty(shape, dtype)
    _check_tensor(name, "out", out)
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"{name}: out is {out.dtype.name} of shape {out.shape}, the result is {dtype.name} of shape {tuple(shape)}"
        )
    return out


def result(launch: DeviceOp[Any], like: Any, out: Tensor | None, at: int = 0) -> DeviceOp[Tensor]:
    """The argument `at` of a launch, a partition, as the tensor that was asked for.

    Args:
        launch: the launch.
        like: what has the shape and dtype of the result.
        out: the result itself, if it was given.
        at: which argument.
    """
    made: DeviceOp[Tensor] = launch.map(lambda done: _whole(done[at], like.shape, out))
    made.spec = Spec(tuple(like.shape), like.dtype)
    return made


def results(launch: DeviceOp[Any], **wanted: tuple[int, tuple[int, ...]]) -> DeviceOp[tuple[Tensor, ...]]:
    """Several arguments of a launch, partitions, as tensors: for each where it is, and its shape."""
    made: DeviceOp[tuple[Tensor, ...]] = launch.map(lambda done: tuple(_whole(done[at], to, None) for at, to in wanted.values()))
    return made


def _whole(partition: Any, shape: tuple[int, ...], out: Tensor | None) -> Tensor:
    if out is not None:
        return out
    tensor: Tensor = partition.unpartition()
    return shaped(tensor, tuple(shape))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------------------- tiles


Measured = Mapping[tuple[int, int], tuple[int, int | None]]


class RowTile(NamedTuple):
    """How rows are dealt out to blocks.

    Attributes:
        rows, columns: the tile's extents.
        chunks: how many tiles a row takes; 1 if it fits one.
        num_warps, occupancy: for the launch; None where the compiler does better without.
    """

    rows: int
    columns: int
    chunks: int
    num_warps: int
    occupancy: int | None

    @property
    def shape(self) -> tuple[int, int]:
        """The tile's."""
        return self.rows, self.columns

    def cut(self, matrix: Any, count: int) -> Any:
        """The partition of a matrix of `count` rows (or of an op that gives one), for a block to have whole rows.

        Of a row that takes several tiles a block goes from one to the next by itself, and so has the first of them only.
        """
        if self.chunks == 1:
            return matrix.partition(self.shape)
        tiles = -(-count // self.rows), 1
        if isinstance(matrix, DeviceOp):
            return matrix.map(lambda tensor: tensor.partition(self.shape).prefix(tiles))
        return matrix.partition(self.shape).prefix(tiles)

    def launch(self, op: Any) -> Any:
        """The launch `op`, with the warps and the occupancy."""
        op = op.num_warps(self.num_warps)
        return op if self.occupancy is None else op.occupancy(self.occupancy)

    def threads(self, itemsize: int) -> tuple[int, int, int]:
        """The tile's extents, taken apart: how often all threads take a vector of 16 bytes, the threads, and its elements.

        What is folded along the first and the last of these stays in the thread.
        """
        vector = 16 // itemsize
        return self.columns // (32 * self.num_warps * vector), 32 * self.num_warps, vector


def row_tile(
    matrix: Tensor, held: int = 1, room: int = 2, blocks: int | None = None, measured: Measured | None = None
) -> RowTile:
    """The tile for a kernel that goes over the rows of `matrix`, each in one block.

    Args:
        matrix: what is read.
        held: how many tiles of that shape a block keeps at a time.
        room: how many registers a thread needs for each 32 bits that it keeps, to do without local memory.
        blocks: where a row takes several tiles, how many blocks of that loop a multiprocessor shall hold.
        measured: for a size of element and a number of columns the warps and the occupancy that were best on an H200; the rule
            here is for all others.
    """
    (count, length), itemsize, cpu = matrix.shape, matrix.itemsize, on_cpu(matrix)
    best = None if cpu or measured is None else measured.get((itemsize, power(length)))
    return RowTile(1, power(length), 1, *best) if best else _row_tile(count, length, itemsize, cpu, held, room, blocks)


@functools.lru_cache(maxsize=256)
def _row_tile(count: int, length: int, itemsize: int, cpu: bool, held: int, room: int, blocks: int | None) -> RowTile:
    columns, words = power(length), held * max(1, itemsize // 4)  # 16-bit floats are calculated in 32 bits
    share = max(4, (_SHARE_16_BIT if itemsize < 4 else _SHARE) // words)
    if columns * words > 32 * _WARPS * (_MOST_16_BIT if itemsize < 4 and held == 1 else _MOST):
        columns = 32 * _LOOP_WARPS * share
        return RowTile(1, columns, -(-length // columns), _LOOP_WARPS, blocks)
    warps = max(1, min(_WARPS, columns // (32 * share)))
    elements = _CPU_ELEMENTS if cpu else 32 * warps * share
    rows = min(max(1, elements // columns), power(count))
    values = max(1, columns // (32 * warps)) * words
    # Up to 16 values, threads take few enough registers by themselves. A multiprocessor has 64 K of them.
    occupancy = max(1, 2048 // (warps * values * room)) if values > _SHARE else None
    return RowTile(rows, columns, 1, warps, occupancy)


def flat_tile(x: Tensor) -> int:
    """How many elements a block gets, where each is calculated by itself: 32 bytes for each of 128 threads."""
    return min(_CPU_ELEMENTS if on_cpu(x) else _FLAT_BYTES // x.itemsize, power(x.size))
