"""Tensors: made, copied, and brought from the host. Every function here returns a `DeviceOp`, except `meta`.

Nothing happens until the op is run. Without a stream or a tensor that ties it to one, an op runs on the default device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.device import Device
from tilekit.lang import create, memory
from tilekit.lang.signature import Const, In, Out
from tilekit.launcher import kernel
from tilekit.ops import DeviceOp, Spec
from tilekit.schedule import ExecutionContext
from tilekit.tensor import DEVICE_CODE, Tensor, as_shape

__all__ = ["arange", "dup", "from_host", "full", "meta", "ones", "zeros"]

# How many elements a tile has in the kernels of this file: 8 for each of 128 threads.
_TILE = 1024


def zeros(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new tensor of zeros.

    Args:
        shape: its extents.
        dtype: its element type.

    Raises:
        TypeError, ValueError: no shape, or no dtype of tilekit's.
    """
    return full(shape, 0, dtype)


def ones(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new tensor of ones; as `zeros`."""
    return full(shape, 1, dtype)


def full(shape: int | tuple[int, ...], value: float, dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new tensor with every element equal to `value`.

    Args:
        shape: its extents.
        value: a scalar; converted to `dtype`.
        dtype: its element type.

    Raises:
        TypeError, ValueError: no shape, no dtype of tilekit's, or a value that `dtype` cannot hold.
    """
    return _Full(as_shape(shape), np.array(value).astype(dtypes.as_dtype(dtype)))


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> DeviceOp[Tensor]:
    """The numbers `start, start + step, ...` below `stop`; `arange(stop)` starts at 0, as NumPy's.

    Args:
        start, stop, step: as NumPy's.
        dtype: the element type; by default int64 if all three are ints, else float32.

    Raises:
        ValueError: `step` is zero.
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange: the step is zero")
    whole = all(isinstance(number, (int, np.integer)) for number in (start, stop, step))
    chosen = dtypes.as_dtype(dtype) if dtype is not None else dtypes.int64 if whole else dtypes.float32
    count = max(0, math.ceil((stop - start) / step))
    index = dtypes.int64 if whole else dtypes.float64

    def fill(tensor: Tensor) -> DeviceOp[Tensor]:
        made: DeviceOp[Tensor] = _arange(tensor.partition(_TILE), start, step, index).first().unpartition()
        return made

    return _named(_Empty((count,), chosen).then(fill), "arange", Spec((count,), chosen))


def from_host(array: Any) -> DeviceOp[Tensor]:
    """A new tensor with the shape, dtype and elements of a NumPy array (or what NumPy makes one of).

    The array is read while the op runs; until that is done, leave it as it is. Later changes to it do not reach the tensor.

    Raises:
        TypeError: its dtype is none of tilekit's.
    """
    source = np.asarray(array)
    return _FromHost(source, dtypes.as_dtype(source.dtype))


def dup(tensor: Tensor | DeviceOp[Tensor]) -> DeviceOp[Tensor]:
    """A copy of a tensor in new memory, C-contiguous, on the same device.

    Raises:
        TypeError: it is no tensor, or a meta tensor.
    """
    if isinstance(tensor, DeviceOp):
        return _named(tensor.then(dup), "dup", tensor.spec)
    if not isinstance(tensor, Tensor) or tensor.storage is None:
        raise TypeError(f"dup copies a tensor that has memory, not {tensor!r}")
    if tensor.is_contiguous:
        return _Copy(tensor)

    def fill(made: Tensor) -> DeviceOp[Tensor]:
        copied: DeviceOp[Tensor] = _copy(made.partition(_tile_for(made.shape)), tensor).first().unpartition()
        return copied

    return _named(_Empty(tensor.shape, tensor.dtype, tensor.device).then(fill), "dup", Spec(tensor.shape, tensor.dtype))


def meta(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> Tensor:
    """A tensor without memory, to compile kernels for: `kernel(api.meta(n).partition(1024), ...).compile(target="sm_90a")`.

    It counts as aligned to 16 bytes. Running a kernel on it is a TypeError.
    """
    return Tensor(None, as_shape(shape), dtypes.as_dtype(dtype))


DEVICE_CODE["dup"] = dup


def _named(op: DeviceOp[Tensor], name: str, spec: Spec | None) -> DeviceOp[Tensor]:
    op.spec = spec
    return op.named(name)


class _Empty(DeviceOp[Tensor]):
    """A new tensor, not written yet."""

    def __init__(self, shape: tuple[int, ...], dtype: dtypes.DType, device: Device | None = None) -> None:
        self.spec: Spec = Spec(shape, dtype)
        self._device = device

    @property
    def device(self) -> Device | None:
        """The device that was asked for, if one was."""
        return self._device

    def execute(self, ctx: ExecutionContext) -> Tensor:
        """Allocate it."""
        shape, dtype = self.spec.shape, self.spec.dtype
        return Tensor(ctx.allocate(math.prod(shape) * dtype.itemsize), shape, dtype)


class _Full(_Empty):
    """A new tensor, filled with one value."""

    def __init__(self, shape: tuple[int, ...], value: np.ndarray[Any, Any]) -> None:
        super().__init__(shape, value.dtype)
        self.value, self._label = value, "full"

    def steps(self, ctx: ExecutionContext) -> Any:
        """Allocate it and fill it: by the driver where a pattern of 4 bytes will do, else by a kernel."""
        tensor = self.execute(ctx)
        pattern = self.value.tobytes()
        if pattern == pattern[:1] * len(pattern):
            pattern = pattern[:1]
        if not tensor.size:
            return tensor
        if len(pattern) > 4:
            scalar = self.value[()]
            flat = tensor.reshape(-1).partition(_TILE)
            return (yield from _fill(flat, scalar).map(lambda _: tensor).start(ctx))
        assert tensor.storage is not None, "it was just allocated"
        ctx.device.driver.fill(tensor.storage.memory, 0, tensor.nbytes // len(pattern), pattern, ctx.stream.handle)
        ctx.note((), (tensor.storage,))
        return tensor


class _FromHost(_Empty):
    """A new tensor, copied from a NumPy array."""

    def __init__(self, source: np.ndarray[Any, Any], dtype: dtypes.DType) -> None:
        super().__init__(source.shape, dtype)
        self.source, self._label = source, "from_host"

    def execute(self, ctx: ExecutionContext) -> Tensor:
        """Allocate it and enqueue the copy."""
        tensor = super().execute(ctx)
        if tensor.nbytes:
            assert tensor.storage is not None, "it was just allocated"
            source = np.ascontiguousarray(self.source)
            ctx.device.driver.copy_from_host(tensor.storage.memory, 0, source, ctx.stream.handle)
            ctx.note((), (tensor.storage,))
        return tensor


class _Copy(_Empty):
    """A new tensor, copied from a contiguous one."""

    def __init__(self, source: Tensor) -> None:
        super().__init__(source.shape, source.dtype, source.device)
        self.source, self._label = source, "dup"

    def execute(self, ctx: ExecutionContext) -> Tensor:
        """Allocate it and enqueue the copy."""
        tensor, source = super().execute(ctx), self.source
        if tensor.nbytes:
            assert tensor.storage is not None and source.storage is not None, "checked by dup"
            ctx.acquire((source.storage,), (tensor.storage,))
            ctx.device.driver.copy(
                tensor.storage.memory, 0, source.storage.memory, source.offset * source.itemsize, source.nbytes, ctx.stream.handle
            )
            ctx.note((source.storage,), (tensor.storage,))
        return tensor


def _tile_for(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A tile of about `_TILE` elements, longest along the last dimensions."""
    tile, left = [], _TILE
    for n in reversed(shape):
        extent = min(left, 1 << max(0, n - 1).bit_length())
        tile.append(extent)
        left //= extent
    return tuple(reversed(tile))


@kernel
def _copy(y: Out, x: In) -> None:
    y.store(memory.load_tile_like(x, y))


@kernel
def _fill(y: Out, value: float) -> None:
    y.store(create.full(y.tile_shape, value, y.dtype))


@kernel
def _arange(y: Out, start: float, step: float, dtype: Const) -> None:
    first = start + memory.bid(0) * (_TILE * step)
    y.store(create.arange(_TILE, dtype=dtype, start=first, step=step).astype(y.dtype))
