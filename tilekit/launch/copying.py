"""Copies of views, and what else goes over all elements of a view: filling it, converting it to another dtype.

Views of any shape and strides are brought to the fewest dimensions first: what is contiguous is left to the driver, and what is
not needs few versions of one kernel, which moves bits and does not care what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._tensor.partition import Traits
from tilekit._tensor.tensor import Tensor
from tilekit.lang import create, memory
from tilekit.lang.annotations import In, Out
from tilekit.lang.tile import scalar_kind
from tilekit.launch import kernel
from tilekit.ops import DeviceOp, Spec, value
from tilekit.ops.execution import Done, Steps

__all__ = ["as_real", "as_scalar", "convert", "copy_elements", "copy_into", "fewest_dims", "fill", "shown"]

# How many elements a tile has: 8 for each of 128 threads.
_TILE = 1024
# Up to so many elements it does not matter how fast they move, but compiling one more version of a kernel (60 ms) does.
_SMALL = 1 << 15
_SMALL_TILES = {1: [1024], 2: [16, 64], 3: [4, 8, 32], 4: [2, 4, 4, 32]}
# The side of a tile for copies that transpose: both sides then read and write 32 neighbours at a time.
_SIDE = 32
_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
_MAX_RANK = 4
_AXIS_LIMIT = 65535


def as_scalar(scalar: Any, dtype: dtypes.DType, what: str) -> np.ndarray[Any, Any]:
    """`scalar` in `dtype`, as an array of rank 0.

    Raises:
        TypeError: it is no scalar.
        ValueError: `dtype` cannot hold it.
    """
    if scalar_kind(scalar) is None:
        raise TypeError(f"{what}: the value is a scalar, not {type(scalar).__name__}")
    try:
        held, number = dtypes.holds(dtype, scalar), np.array(scalar)
        if number.dtype == object:  # an int of more than 64 bits
            number = np.array(bool(scalar) if dtype == dtypes.bool_ else float(scalar))
    except OverflowError:
        held = False
    if not held:
        raise ValueError(f"{what}: {dtype.name} does not hold {shown(scalar)}")
    with np.errstate(all="ignore"):  # a number beyond the range of a float type is its infinity
        return number.astype(dtype)


def as_real(number: Any, what: str) -> float:
    """The scalar `number` as a Python float; `what` says what it is, for errors.

    Raises:
        TypeError: it is no scalar.
        ValueError: it is an int that float64 does not hold.
    """
    if scalar_kind(number) is None:
        raise TypeError(f"{what} is a number, not {type(number).__name__}")
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{what} is {shown(number)}, which float64 does not hold") from None


def shown(number: Any) -> str:
    """A number for a message, in which hundreds of digits help nobody."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"{'a negative' if number < 0 else 'an'} int of {number.bit_length()} bits"
    return repr(number)


def copy_into(target: Tensor, source: Tensor) -> DeviceOp[Tensor]:
    """Copy the elements of `source` to `target`, both with memory on one device, of one shape and dtype; the result is `target`.

    Where they overlap it is as if all were read before any is written: `source` is copied to new memory first.

    Raises:
        ValueError: views in more dimensions than kernels take.
    """
    if target.shares_memory(source):
        if (source.address, source.strides) == (target.address, target.strides):
            return value(target)
        return convert(source, source.dtype).then(lambda copied: copy_into(target, copied))
    _check_rank(target, source)
    return _CopyInto(target, source)


def convert(source: Tensor, dtype: dtypes.DType) -> DeviceOp[Tensor]:
    """A new tensor, C-contiguous, on the device of `source`, which has memory: its elements in `dtype`.

    Raises:
        ValueError: a view in more dimensions than kernels take.
    """
    _check_rank(Tensor(None, source.shape, dtype), source)
    return _Convert(source, dtype)


def fill(target: Tensor, scalar: np.ndarray[Any, Any]) -> DeviceOp[Tensor]:
    """Set every element of `target`, which has memory, to `scalar` (an array of rank 0 of its dtype); the result is `target`.

    Raises:
        ValueError: a view in more dimensions than kernels take.
    """
    _check_rank(target)
    return _Fill(target, scalar)


class _CopyInto(DeviceOp[Tensor]):
    """A tensor, copied to another's memory."""

    def __init__(self, target: Tensor, source: Tensor) -> None:
        self.target, self.source, self._label = target, source, "copy_into"
        self.spec = Spec(target.shape, target.dtype)

    @property
    def device(self) -> Device | None:
        """The target's."""
        return self.target.device

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """By the driver, or by a kernel."""
        return copy_elements(ctx, self.target, self.source)


class _Convert(DeviceOp[Tensor]):
    """A new tensor, with the elements of another in some dtype."""

    def __init__(self, source: Tensor, dtype: dtypes.DType) -> None:
        self.source, self._label = source, "dup" if source.dtype == dtype else "astype"
        self.spec: Spec = Spec(source.shape, dtype)

    @property
    def device(self) -> Device | None:
        """The source's."""
        return self.source.device

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Allocate it; copy, or convert."""
        shape, dtype = self.spec.shape, self.spec.dtype
        return copy_elements(ctx, Tensor(ctx.allocate(self.source.size * dtype.itemsize), shape, dtype), self.source)


class _Fill(DeviceOp[Tensor]):
    """A tensor, every element set to one value."""

    def __init__(self, target: Tensor, scalar: np.ndarray[Any, Any]) -> None:
        self.target, self.scalar, self._label = target, scalar, "fill"
        self.spec = Spec(target.shape, target.dtype)

    @property
    def device(self) -> Device | None:
        """The target's."""
        return self.target.device

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """By the driver where it is contiguous and a pattern of 4 bytes will do, else by a kernel."""
        target = self.target
        if not target.size:
            return Done(target)
        tile, (view,) = _joined(target)
        pattern = self.scalar.tobytes()
        short = next((pattern[:n] for n in (1, 2, 4) if pattern[:n] * (len(pattern) // n) == pattern), None)
        if short is None or not view.is_contiguous:
            (view,) = _as_bits(view)
            number: Any = self.scalar.view(view.dtype)[()]
            return _launched(ctx, _fill(view.partition(tile), number), target)
        assert view.storage is not None, "checked by whoever makes the op"
        ctx.acquire((), (view.storage,))
        offset, count = view.offset * view.itemsize, view.nbytes // len(short)
        ctx.driver.fill(view.storage.memory, offset, count, short, ctx.stream.handle)
        ctx.note((), (view.storage,))
        return Done(target)


def copy_elements(ctx: ExecutionContext, target: Tensor, source: Tensor) -> Steps | Done:
    """What `copy_into` and `convert` do: write the elements of `source` to `target`, which does not overlap it; the result is
    `target`. Nothing is looked at: both have memory on the context's device, and one shape.
    """
    if not target.size:
        return Done(target)
    to, source_view = target, source
    if target.dtype != source.dtype:
        tile, (to, source_view) = _joined(target, source)
        return _launched(ctx, _convert(to.partition(tile), source_view), target)
    if not (to.is_contiguous and source_view.is_contiguous):
        tile, (to, source_view) = _joined(target, source)
        if not (to.is_contiguous and source_view.is_contiguous):
            to, source_view = _as_bits(to, source_view)
            return _launched(ctx, _copy(to.partition(tile), source_view), target)
    assert to.storage is not None and source_view.storage is not None, "checked by whoever makes the op"
    ctx.acquire((source_view.storage,), (to.storage,))
    at, start = to.offset * to.itemsize, source_view.offset * source_view.itemsize
    ctx.driver.copy(to.storage.memory, at, source_view.storage.memory, start, source_view.nbytes, ctx.stream.handle)
    ctx.note((source_view.storage,), (to.storage,))
    return Done(target)


def _launched(ctx: ExecutionContext, launch: DeviceOp[Any], target: Tensor) -> Steps:
    yield launch.start(ctx)
    return target


def _as_bits(*views: Tensor) -> list[Tensor]:
    """The views as unsigned integers of the same size: a copy does not look at what it moves."""
    return [type(v)(v.storage, v.shape, _BITS[v.itemsize], v.strides, v.offset) for v in views]


class _Plain(Tensor):
    """A view of which the compiler is told less than is known: one version of a kernel then serves many."""

    __slots__ = ()

    @property
    def unit(self) -> None:
        """None: all strides are passed to the kernel."""
        return None

    @property
    def align(self) -> int:
        """An element's size: one is moved at a time."""
        return self.itemsize

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Other than those of an ordinary tensor."""
        return Traits.of((self.shape, self.strides, self.dtype, "plain", self.device))


# A dimension of several views at once: its extent, and the stride in each.
_Dim = tuple[int, list[int]]


def fewest_dims(tensors: Sequence[Tensor]) -> tuple[list[_Dim], list[int]]:
    """The fewest dimensions that views of one shape have, in the order of the first one's memory, and the views' offsets."""
    offsets = [tensor.offset for tensor in tensors]
    dims: list[_Dim] = []
    for dim, extent in enumerate(tensors[0].shape):
        strides = [tensor.strides[dim] for tensor in tensors]
        if strides[0] < 0:  # walked from the other end
            offsets = [offset + (extent - 1) * stride for offset, stride in zip(offsets, strides, strict=True)]
            strides = [-stride for stride in strides]
        if extent != 1:
            dims.append((extent, strides))
    dims.sort(key=lambda dim: -dim[1][0])
    joined: list[_Dim] = []
    for extent, strides in dims:
        if joined and all(outer == extent * inner for outer, inner in zip(joined[-1][1], strides, strict=True)):
            joined[-1] = (joined[-1][0] * extent, strides)
        else:
            joined.append((extent, strides))
    return joined or [(1, [1] * len(tensors))], offsets


def _check_rank(*tensors: Tensor) -> None:
    """Raises ValueError if more dimensions are left than kernels take."""
    shape = tensors[0].shape
    if len(shape) > _MAX_RANK and tensors[0].size and len(fewest_dims(tensors)[0]) > _MAX_RANK:
        raise ValueError(
            f"the elements of a view of shape {shape} and strides {tensors[-1].strides} lie in more than {_MAX_RANK} dimensions "
            "that cannot be joined; take a part at a time"
        )


def _joined(*tensors: Tensor) -> tuple[tuple[int, ...], list[Tensor]]:
    """The tiles to cut the first view, the target, into; and views of the same elements, in the fewest dimensions."""
    dims, offsets = fewest_dims(tensors)
    small = tensors[0].size <= _SMALL
    if small:
        tile = _SMALL_TILES[len(dims)]
    else:
        tile = _tile([extent for extent, _ in dims], *([strides[k] for _, strides in dims] for k in range(len(tensors))))
    counts = [-(-extent // n) for (extent, _), n in zip(dims, tile, strict=True)]
    order = list(range(len(dims)))
    if any(count > _AXIS_LIMIT for count in counts[1:]):  # CUDA launches more blocks along the first axis only
        order.sort(key=lambda i: -counts[i])
    shape = tuple(dims[i][0] for i in order)
    views: list[Tensor] = [
        (_Plain if small else Tensor)(tensor.storage, shape, tensor.dtype, tuple(dims[i][1][k] for i in order), offsets[k])
        for k, tensor in enumerate(tensors)
    ]
    return tuple(tile[i] for i in order), views


def _tile(shape: Sequence[int], target: Sequence[int], source: Sequence[int] | None = None) -> list[int]:
    """The shape of tiles of about `_TILE` elements, longest along the last dimensions; or, for a copy that transposes, square."""
    tile, last, left = [1] * len(shape), len(shape) - 1, _TILE
    near = last if source is None else min(range(len(shape)), key=lambda d: abs(source[d]))
    if near != last and target[last] == 1:
        side = min(_SIDE, _power(shape[last]))
        tile[near] = min(_TILE // side, _power(shape[near]))
        tile[last] = min(_TILE // tile[near], _power(shape[last]))
        return tile
    for dim in range(last, -1, -1):
        tile[dim] = min(left, _power(shape[dim]))
        left //= tile[dim]
    return tile


def _power(n: int) -> int:
    """The smallest power of two from `n` on."""
    return 1 << max(0, n - 1).bit_length()


@kernel
def _copy(y: Out, x: In) -> None:
    y.store(memory.load_tile_like(x, y))


@kernel
def _convert(y: Out, x: In) -> None:
    y.store(memory.load_tile_like(x, y).astype(y.dtype))


@kernel
def _fill(y: Out, scalar: float) -> None:
    y.store(create.full(y.tile_shape, scalar, y.dtype))
