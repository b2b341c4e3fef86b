"""What the host functions of this package share: checks, new tensors, and how many rows a block gets.

Each of them makes a launch and says which argument is the result. They take tensors, or ops that produce some.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tilekit import api, dtypes
from tilekit._tensor.arrays import is_array, tensor_of
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.facts import MOST_NARROW, divisor
from tilekit.compiler.target import of
from tilekit.kernels._launches import Destination, Launches, New
from tilekit.kernels._recall import SEQUENCES, Recall, leaves, with_leaves
from tilekit.launch import copying
from tilekit.ops import DeviceOp, Spec, zip_ops

__all__ = [
    "Destination",
    "Joined",
    "Launches",
    "Measured",
    "New",
    "Operand",
    "RowTile",
    "a_tensor",
    "batches_of",
    "check",
    "compute_dtype",
    "exponential",
    "filled",
    "flat",
    "flat_tile",
    "has_warpgroups",
    "index_dtype",
    "integers",
    "joined",
    "lacks_rows",
    "multiprocessors",
    "narrow_rows",
    "of_parts",
    "on_cpu",
    "out_or_new",
    "power",
    "result",
    "row_tile",
    "rows_in",
    "rows_of",
    "rows_tile",
    "same_shape",
    "shaped",
    "takes_batches",
    "takes_ops",
    "takes_rows",
]  # fmt: skip

# A thread's share of a row, in registers of 32 bits: fewer leave the memory idle, more leave room for too few blocks. On an H200,
# 16 for float32 (four accesses of 16 bytes), and 32 for 16-bit types, which are loaded two to a register.
_SHARE, _SHARE_16_BIT = 16, 32
# At most so many warps, and so many values in a thread: what a row takes that is held in registers from end to end. As many of a
# 16-bit type would be half the bytes, too few for the one block that there is room for.
_WARPS, _MOST, _MOST_16_BIT = 16, 64, 32
# Warps of a block that goes over a row tile by tile.
_LOOP_WARPS = 8
# Fewer rows than so many for each multiprocessor are taken apart, into about so many blocks for each.
_FEW, _BUSY = 2, 4
# What a block of a CPU device works on: this much stays in the caches of a core.
_CPU_ELEMENTS = 1 << 15
_MOST_BLOCKS = 32  # that a multiprocessor holds
_MULTIPROCESSORS = 132  # of an H200, where there is no GPU
_FLAT_BYTES = 4096
_MOST_DIMS = 3  # of views that a kernel takes for each element by itself

_FLOATS = frozenset((dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64))
_INTEGERS = frozenset((dtypes.int32, dtypes.int64))
_HALVES = frozenset((dtypes.float16, dtypes.bfloat16))

Operand = Tensor | DeviceOp[Tensor]
"""What the functions take: a tensor, or an op that produces one."""

F = TypeVar("F", bound=Callable[..., DeviceOp[Any]])


def takes_ops(function: F) -> F:
    """Let a function that takes tensors take ops that produce them too; it is then called when they have run. And arrays of other
    libraries, as kernels do. What takes several tensors takes a tuple or a list of these.

    Where the ops know the shapes of their results, the function is asked at once, with tensors that have no memory: mistakes are
    told where they are made, and the op knows its result's shape too.

    What the function decides for arguments that look alike is found again, see `Recall`.
    """
    name = function.__name__.lstrip("_")
    parameters = inspect.signature(function).parameters.values()
    tensors = [p for p in parameters if "Operand" in str(p.annotation) or "Tensor" in str(p.annotation)]
    named = {p.name for p in tensors}
    at = [p in tensors for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    beyond = any(p.kind is p.VAR_POSITIONAL for p in tensors)
    recall = Recall(function, name)

    def with_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        others = leaves(args, kwargs)

        def one(value: Any) -> Any:
            return tensor_of(value, others, name) if is_array(value) else value

        def taken(argument: Any, is_tensor: bool) -> Any:
            if not is_tensor:
                return argument
            return type(argument)(map(one, argument)) if type(argument) in SEQUENCES else one(argument)

        wanted = itertools.chain(at, itertools.repeat(beyond))
        return tuple(map(taken, args, wanted)), {key: taken(value, key in named) for key, value in kwargs.items()}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> DeviceOp[Any]:
        op = recall.op(args, kwargs)
        if op is not None:
            return op
        lazy = arrays = False
        for argument in leaves(args, kwargs):
            if type(argument) is Tensor or argument is None:
                continue
            if isinstance(argument, DeviceOp):
                lazy = True
            elif is_array(argument):
                arrays = True
        if arrays:
            args, kwargs = with_tensors(args, kwargs)
        if not lazy:
            op = recall.op(args, kwargs) if arrays else None
            return function(*args, **kwargs).named(name) if op is None else op
        ops = [a for a in leaves(args, kwargs) if isinstance(a, DeviceOp)]

        def called(tensors: Sequence[Any]) -> DeviceOp[Any]:
            left = iter(tensors)
            placed, by_name = with_leaves(args, kwargs, lambda a: next(left) if isinstance(a, DeviceOp) else a)
            op = recall.op(placed, by_name)
            return function(*placed, **by_name) if op is None else op

        for op in ops:
            op.consumed()  # also if this is a mistake: whoever is told need not run them
        specs = [op.spec for op in ops]
        spec = None
        if all(known is not None and known.shape is not None for known in specs):
            trial = called([api.meta(known.shape, known.dtype) for known in specs if known is not None])
            trial.consumed()
            spec = trial.spec
        whole: DeviceOp[Any] = zip_ops(*ops).then(called)
        whole.spec = spec
        return whole.named(name)

    return call  # type: ignore[return-value]


def takes_rows(function: F) -> F:
    """As `takes_ops`, of a function that works on rows along the last dimension: tensors of which no view is a matrix of these
    rows, such as batches with gaps between them, are copied first, and results come to such an `out` by a copy."""
    return _takes(function, lacks_rows)


def takes_batches(function: F) -> F:
    """As `takes_rows`, of a function that takes batches of rows as they lie, too; see `rows_in`."""
    return _takes(function, lambda x: lacks_rows(x) and len(x.shape) != 3)


def _takes(function: F, copied: Callable[[Any], bool]) -> F:
    whole = takes_ops(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> DeviceOp[Any]:
        if not any(map(copied, (*args, *kwargs.values()))):
            return function(*args, **kwargs)
        out = kwargs.pop("out", None)
        if out is not None and not copied(out):
            kwargs["out"], out = out, None
        taken = [x.dup() if copied(x) else x for x in args]
        op = whole(*taken, **{key: x.dup() if copied(x) else x for key, x in kwargs.items()})
        if out is None:
            return op
        moved = op.then(lambda result: result.copy_into(out))
        moved.spec = op.spec
        return moved

    return takes_ops(call)  # type: ignore[type-var]


def lacks_rows(x: Any) -> bool:
    """Whether it is a tensor of which `rows_of` makes no matrix."""
    if type(x) is not Tensor or len(x.shape) <= 2 or x.is_contiguous:
        return False
    try:
        rows_of("", x)
    except ValueError:
        return True
    return False


def check(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors, with floats for elements."""
    for what, tensor in tensors.items():
        if type(tensor) is not Tensor:
            _check_tensor(name, what, tensor)
        if tensor.dtype not in _FLOATS:
            raise TypeError(
                f"{name}: {what} holds {tensor.dtype.name}; it takes float16, bfloat16, float32 and float64: "
                "convert it with .astype(tk.float32)"
            )


def integers(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors of int32 or int64."""
    for what, tensor in tensors.items():
        _check_tensor(name, what, tensor)
        if tensor.dtype not in _INTEGERS:
            raise TypeError(f"{name}: {what} holds {tensor.dtype.name}; it takes int32 and int64")


def a_tensor(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors."""
    for what, tensor in tensors.items():
        _check_tensor(name, what, tensor)


def _check_tensor(name: str, what: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {what} is a tensor or an op that produces one, not {type(tensor).__name__}")


def check_choice(name: str, what: str, choice: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless it is one of `choices`."""
    if not isinstance(choice, str) or choice not in choices:
        *others, last = map('"{}"'.format, choices)
        raise ValueError(f"{name}: {what} is {', '.join(others)} or {last}, not {choice!r}")


def check_splits(name: str, splits: Any, *, otherwise: str = "") -> None:
    """Raise ValueError unless it is None or a number of parts that sums are split into, or what else is allowed."""
    also = f', or "{otherwise}"' if otherwise else ""
    known = splits in (otherwise or None,) if isinstance(splits, str) else type(splits) is int and splits >= 1
    if splits is not None and not known:
        raise ValueError(f"{name}: splits is an int from 1 on{also}, not {splits!r}")


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
    return dtypes.float32 if dtype in _HALVES else dtype


def index_dtype(*counts: int) -> Any:
    """What tiles of indices up to any of `counts`, and of a tile more, are of: int32, or int64 where that is too small."""
    return dtypes.int64 if max(counts) > MOST_NARROW else dtypes.int32


def exponential(dtype: Any) -> str | None:
    """The rounding mode of `tk.exp` for elements of `dtype`: in 16 bits nobody sees the difference, and it takes a third."""
    return "approx" if dtype in _HALVES else None


def on_cpu(tensor: Tensor) -> bool:
    """Whether it is a CPU device's, whose blocks work on what the caches of a core hold."""
    return tensor.storage is not None and tensor.storage.device.kind == "cpu"


def multiprocessors(tensor: Tensor) -> int:
    """Those of its device."""
    return _MULTIPROCESSORS if tensor.device is None else tensor.device.driver.multiprocessors


def has_warpgroups(tensor: Tensor) -> bool | None:
    """Whether products on its GPU are by warpgroups (a tensor without memory: they are); None on a CPU device."""
    if tensor.device is None:
        return True
    capability = tensor.device.compute_capability
    return None if capability is None else of(capability).wgmma


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


def rows_in(name: str, *tensors: Destination) -> list[Any]:
    """Tensors of one shape as matrices, whose rows lie along their last dimension; or, if one of them has three dimensions and
    no such view, all as batches of rows.

    Raises:
        ValueError: they have no dimensions.
    """
    shape = tensors[0].shape
    if not shape:
        raise ValueError(f"{name}: a tensor without dimensions has no rows; reshape(1) makes one of one element")
    if any(map(lacks_rows, tensors)):
        return list(tensors)
    return [x if len(shape) == 2 else shaped(x, (math.prod(shape[:-1]), shape[-1])) for x in tensors]


def batches_of(*tensors: Destination) -> list[Destination] | None:
    """Tensors of one shape as batches of matrices, whose rows lie along the last dimension: views in three dimensions. None if
    some have no such view."""
    views = [Tensor(None, x.shape, x.dtype) if type(x) is Spec else x for x in tensors]
    dims: list[tuple[int, list[int]]] = []
    for dim, extent in enumerate(views[0].shape[:-1]):
        strides = [view.strides[dim] for view in views]
        if extent == 1:
            continue
        if dims and all(outer == extent * inner for outer, inner in zip(dims[-1][1], strides, strict=True)):
            dims[-1] = (dims[-1][0] * extent, strides)
        else:
            dims.append((extent, strides))
    if len(dims) > 2:
        return None
    width = views[0].shape[-1]
    for extent in (1,) * (2 - len(dims)):
        dims.insert(0, (extent, [dims[0][0] * stride for stride in dims[0][1]] if dims else [width] * len(views)))
    shape = (*(extent for extent, _ in dims), width)
    return [
        Spec(shape, x.dtype)
        if type(x) is Spec
        else Tensor(view.storage, shape, view.dtype, (*(strides[k] for _, strides in dims), view.strides[-1]), view.offset)
        for k, (x, view) in enumerate(zip(tensors, views, strict=True))
    ]


def shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """`x`, a `Destination` or an op that produces a tensor, in another shape of as many elements; as it is, if it has that."""
    if x.shape == shape:
        return x
    if type(x) is Spec:
        return Spec(shape, x.dtype)
    if isinstance(x, Tensor) and x.is_contiguous:  # what reshape makes of it, without asking NumPy
        return Tensor(x.storage, shape, x.dtype, None, x.offset)
    return x.reshape(shape)


def flat(x: Tensor) -> Any:
    """The elements of `x` in one dimension: a view; of a tensor with gaps an op that copies it."""
    return shaped(x, (x.size,)) if x.is_contiguous else x.dup().reshape(x.size)


def out_or_new(name: str, out: Any, like: Tensor, shape: tuple[int, ...] | None = None, dtype: Any = None) -> Destination:
    """`out`, if it was given and is what is needed; else what a new tensor is to be, on the device of `like`.

    Raises:
        TypeError, ValueError: `out` is no tensor, or has another shape or dtype.
    """
    shape, dtype = like.shape if shape is None else shape, like.dtype if dtype is None else dtype
    if out is None:
        return Spec(tuple(shape), dtype)
    _check_tensor(name, "out", out)
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"{name}: out is {out.dtype.name} of shape {out.shape}, the result is {dtype.name} of shape {tuple(shape)}"
        )
    return out  # type: ignore[no-any-return]


def filled(x: Tensor, value: float = 0) -> DeviceOp[Tensor]:
    """An op that sets every element; unlike `Tensor.fill` also of tensors that have no memory, with which steps are tried out."""
    return copying.fill(x, np.array(value, x.dtype))


def result(launch: DeviceOp[Any], like: Any, out: Tensor | None) -> DeviceOp[Tensor]:
    """The first argument of a launch, a partition, as the tensor that was asked for.

    Args:
        launch: the launch.
        like: what has the shape and dtype of the result.
        out: the result itself, if it was given.
    """
    tensor: DeviceOp[Tensor] = launch.map(lambda done: shaped(done[0].unpartition(), like.shape) if out is None else out)
    tensor.spec = Spec(tuple(like.shape), like.dtype)
    return tensor


# ------------------------------------------------------------------------------------------------------------------------- tiles


class Measured(dict[tuple[int, int], tuple[int, int | None]]):
    """For the size of an element and a number of columns the warps and the occupancy that were best on an H200."""

    __hash__ = object.__hash__  # it is told from others by what it is, not by what is in it

    def __eq__(self, other: object) -> bool:
        return self is other


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

    def cut(self, matrix: Tensor) -> Partition:
        """The partition of a matrix for a block to have whole rows.

        Of a row that takes several tiles a block goes from one to the next by itself, and so has the first of them only.
        """
        cut = Partition(matrix, self.shape(matrix))
        return cut if self.chunks == 1 else cut.prefix((*matrix.shape[:-2], -(-matrix.shape[-2] // self.rows), 1))

    def shape(self, matrix: Destination) -> tuple[int, ...]:
        """The tile's extents in a matrix, or in batches of rows, of one of which a block has rows."""
        return (*(1,) * (len(matrix.shape) - 2), self.rows, self.columns)

    def parts(self, matrix: Tensor) -> tuple[int, int]:
        """Into how many parts each row is taken apart, for a block each, where rows are too few to keep a GPU busy; 1 elsewhere.
        And how many tiles a part has.
        """
        count = math.prod(matrix.shape[:-1])
        if self.chunks == 1 or on_cpu(matrix) or not 0 < count < _FEW * multiprocessors(matrix):
            return 1, self.chunks
        share = -(-self.chunks * count // (_BUSY * multiprocessors(matrix)))
        return -(-self.chunks // share), share

    def launch(self, op: Any) -> Any:
        """The launch `op`, with the warps and the occupancy."""
        op = op.num_warps(self.num_warps)
        return op if self.occupancy is None else op.occupancy(self.occupancy)

    def threads(self, *matrices: Destination) -> tuple[int, int, int]:
        """The tile's extents, taken apart: how often all threads take a vector of up to 16 bytes, for which the rows of one of
        these matrices are aligned; the threads; and the vector's elements.

        What is folded along the first and the last of these stays in the thread.
        """
        vector = max(map(_aligned, matrices))
        if any(_aligned(matrix) < min(vector, 16 // matrix.dtype.itemsize) for matrix in matrices):
            # Where only some are aligned, a lane has no more than four bytes.
            vector = min(vector, max(1, 4 // min(matrix.dtype.itemsize for matrix in matrices)))
        return self.columns // (32 * self.num_warps * vector), 32 * self.num_warps, vector


def _aligned(matrix: Destination) -> int:
    """How many elements lanes have next to each other, as `choose_config` of the compiler has it for a matrix."""
    itemsize, address, strides = matrix.dtype.itemsize, 0, (matrix.shape[-1], 1)
    if isinstance(matrix, Tensor):
        address, strides = matrix.address if matrix.storage is not None else 0, matrix.strides
    if strides[-1] != 1:
        return 16 // itemsize
    return max(1, min(16 // itemsize, divisor(address) // itemsize, *map(divisor, strides[:-1])))


def narrow_rows(matrix: Tensor, nbytes: int) -> bool:
    """Whether its rows are aligned to fewer bytes: accesses are narrower then, and each takes registers for where it is."""
    return any(stride * matrix.itemsize % nbytes for stride in matrix.strides[:-1])


def row_tile(
    matrix: Tensor,
    held: int = 1,
    room: int = 2,
    blocks: int | None = None,
    measured: Measured | None = None,
    more: tuple[int, int] = (1, 1),
) -> RowTile:
    """The tile for a kernel that goes over the rows of `matrix`, each in one block.

    Args:
        matrix: what is read, a matrix or batches of rows.
        held: how many tiles of that shape a block keeps at a time.
        room: how many registers a thread needs for each 32 bits that it keeps, to do without local memory.
        blocks: where a row takes several tiles, how many blocks of that loop a multiprocessor shall hold.
        measured: what was measured; the rule here is for all others.
        more: where a block would be one warp, and there are more blocks than fit at once: how many warps it has instead, and how
            many times as many rows each of these.
    """
    (count, length), cpu = matrix.shape[-2:], on_cpu(matrix)
    more = (1, 1) if cpu else more
    return _row_tile(count, length, matrix.dtype.itemsize, cpu, held, room, blocks, None if cpu else measured, more)


@functools.lru_cache(maxsize=256)
def _row_tile(
    count: int,
    length: int,
    itemsize: int,
    cpu: bool,
    held: int,
    room: int,
    blocks: int | None,
    measured: Measured | None,
    more: tuple[int, int],
) -> RowTile:
    columns, words = power(length), held * max(1, itemsize // 4)  # 16-bit floats are calculated in 32 bits
    if measured is not None and (itemsize, columns) in measured:
        return RowTile(1, columns, 1, *measured[itemsize, columns])
    share = max(4, (_SHARE_16_BIT if itemsize < 4 else _SHARE) // words)
    if columns * words > 32 * _WARPS * (_MOST_16_BIT if itemsize < 4 and held == 1 else _MOST):
        columns = 32 * _LOOP_WARPS * share
        return RowTile(1, columns, -(-length // columns), _LOOP_WARPS, blocks)
    warps = max(1, min(_WARPS, columns // (32 * share)))
    elements = _CPU_ELEMENTS if cpu else 32 * warps * share
    rows = min(max(1, elements // columns), power(count))
    if warps == 1 and more != (1, 1) and count > rows * _MULTIPROCESSORS * _MOST_BLOCKS:
        warps, rows = more[0], more[0] * more[1] * rows
        return RowTile(rows, columns, 1, warps, None)
    values = max(1, columns // (32 * warps)) * words
    # Up to 16 values, threads take few enough registers by themselves, but of the largest blocks, of which there shall be two.
    # A multiprocessor has 64 K of them.
    occupancy = max(1, 2048 // (warps * values * room)) if values > _SHARE else 2 if warps == _WARPS else None
    return RowTile(rows, columns, 1, warps, occupancy)


def of_parts(new: New, count: int | tuple[int, ...], parts: int, dtype: Any) -> Tensor:
    """A new tensor for a number of each part of each row, of which there are so many (in batches). Its rows begin anywhere, so
    that how wide others are read and written, which are large, does not follow from it."""
    counts = count if isinstance(count, tuple) else (count,)
    return new(Spec((*counts, parts | 1), dtype))[..., :parts]


def flat_tile(x: Tensor) -> int:
    """How many elements a block gets, where each is calculated by itself: 32 bytes for each of 128 threads."""
    return min(_CPU_ELEMENTS if on_cpu(x) else _FLAT_BYTES // x.itemsize, power(x.size))


class Joined(NamedTuple):
    """Tensors of one shape for a kernel that takes each element by itself: views in the fewest dimensions, which all have.

    Attributes:
        tile: the extents of a block's tile.
        result: where the result goes.
        operands: views of the others, or ops that copy them.
    """

    tile: tuple[int, ...]
    result: Destination
    operands: list[Any]


def joined(result: Destination, *operands: Tensor) -> Joined:
    """The tensors in one dimension if none has gaps. If some have, which lie in rows, they are read and written as they lie; of
    others there are copies.

    Raises:
        ValueError: the result has no such view.
    """
    target = Tensor(None, result.shape, result.dtype) if type(result) is Spec else result
    tensors, shape, tile = (target, *operands), (target.size,), (flat_tile(operands[0]),)
    if not all(x.is_contiguous for x in tensors):
        dims, offsets = copying.fewest_dims(tensors)
        if len(dims) <= _MOST_DIMS and all(stride == 1 for stride in dims[-1][1]):
            shape = tuple(extent for extent, _ in dims)
            views = [
                Tensor(x.storage, shape, x.dtype, tuple(strides[k] for _, strides in dims), offsets[k])
                for k, x in enumerate(tensors)
            ]
            return Joined(rows_tile(shape, tile[0]), Spec(shape, result.dtype) if type(result) is Spec else views[0], views[1:])
    return Joined(tile, shaped(result, shape), [flat(x) for x in operands])


def rows_tile(shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The extents of a tile of about so many elements: whole rows, or as much of one as leaves little of the last tile empty.

    Parts of rows that begin anywhere share sectors of memory, which whole rows do only at their ends: 330711 rows of 286 bfloat16
    with gaps take 332 us in tiles of 64 columns, of 256 250, and of 512 180.
    """
    widths = [1 << bit for bit in range(6, elements.bit_length()) if 1 << bit <= power(shape[-1])] or [power(shape[-1])]
    covered = [-(-shape[-1] // width) * width for width in widths]
    fitting = [width for width, many in zip(widths, covered, strict=True) if 8 * many <= 9 * min(covered)]
    tile = [power(shape[-1]) if power(shape[-1]) <= elements else max(fitting)]
    for extent in reversed(shape[:-1]):
        elements //= tile[0]
        tile.insert(0, min(elements, power(extent)))
    return tuple(tile)
