"""Tensors: made, copied, and brought from the host. Every function here returns a `DeviceOp`, except `meta`.

Nothing happens until the op is run. Without a stream or a tensor that ties it to one, an op runs on the default device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.device import Device
from tilekit.lang import create, memory
from tilekit.lang.signature import Const, In, Out
from tilekit.lang.tile import scalar_kind
from tilekit.launcher import kernel
from tilekit.ops import DeviceOp, Spec, value, with_context
from tilekit.ops.execution import moments, unwrap
from tilekit.ops.transfer import copy_in
from tilekit.schedule import ExecutionContext
from tilekit.tensor import DEVICE_CODE, Tensor, as_shape

__all__ = ["arange", "dup", "from_host", "full", "memcpy", "meta", "ones", "rand", "randn", "zeros"]

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
    extents, chosen = as_shape(shape), dtypes.as_dtype(dtype)
    if scalar_kind(value) is None:
        raise TypeError(f"full: the value is a scalar, not {type(value).__name__}")
    if not dtypes.holds(chosen, value):
        raise ValueError(f"full: {chosen.name} does not hold {value!r}")
    return _Full(extents, np.array(value).astype(chosen))


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


def rand(shape: int | tuple[int, ...], seed: int | None = None, dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """Random numbers, uniform in [0, 1).

    Args:
        shape: the tensor's extents.
        seed: the same seed gives the same numbers on every device; None gives other numbers at each run.
        dtype: a floating-point type.

    Numbers are drawn on the host (NumPy's Philox generator) when the op runs, and copied.
    """
    return _random("rand", shape, seed, dtype, lambda rng, n: rng.random(n, np.float32))


def randn(
    mean: float, std: float, shape: int | tuple[int, ...], seed: int | None = None, dtype: Any = dtypes.float32
) -> DeviceOp[Tensor]:
    """Random numbers, normally distributed.

    Args:
        mean, std: of the distribution.
        shape, seed, dtype: as for `rand`.
    """
    return _random(
        "randn", shape, seed, dtype, lambda rng, n: rng.standard_normal(n, np.float32) * np.float32(std) + np.float32(mean)
    )


def _random(name: str, shape: Any, seed: int | None, dtype: Any, draw: Callable[..., Any]) -> DeviceOp[Tensor]:
    extents, chosen = as_shape(shape), dtypes.as_dtype(dtype)
    if not dtypes.is_float(chosen):
        raise TypeError(f"{name}: random numbers are floating-point, not {chosen.name}")

    def make(ctx: ExecutionContext) -> DeviceOp[Tensor]:
        numbers = draw(np.random.Generator(np.random.Philox(seed)), math.prod(extents))
        return from_host(numbers.astype(chosen, copy=False).reshape(extents))

    return _named(with_context(make), name, Spec(extents, chosen))


def memcpy(target: Tensor, source: Any) -> DeviceOp[Tensor]:
    """Copy `source` into the memory of `target`; the op's result is `target`.

    Args:
        target: a tensor; any view.
        source: a tensor on the same device, or a NumPy array, of the same shape and dtype.

    Raises:
        TypeError: one of them is something else, or has no memory.
        ValueError: shape or dtype differ.
    """
    if not isinstance(target, Tensor) or target.storage is None:
        raise TypeError(f"memcpy copies into a tensor that has memory, not {target!r}")
    if isinstance(source, DeviceOp):
        return _named(source.then(lambda made: memcpy(target, made)), "memcpy", Spec(target.shape, target.dtype))
    if not isinstance(source, (Tensor, np.ndarray)):
        raise TypeError(f"memcpy copies from a tensor or a NumPy array, not {type(source).__name__}")
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(f"memcpy: {source.dtype.name} of shape {source.shape} into {target.dtype.name} of shape {target.shape}")
    if isinstance(source, np.ndarray):
        return _named(from_host(source).then(lambda made: memcpy(target, made)), "memcpy", Spec(target.shape, target.dtype))
    if source.is_contiguous and target.is_contiguous:
        return _CopyInto(target, source)
    copied: DeviceOp[Tensor] = _copy(target.partition(_tile_for(target.shape)), source).map(lambda _: target)
    return _named(copied, "memcpy", Spec(target.shape, target.dtype))


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


def _to(tensor: Tensor, device: Device) -> DeviceOp[Tensor]:
    """What `Tensor.to` does."""
    if tensor.device is device:
        return value(tensor)
    return _named(_To(tensor, device), "to", Spec(tensor.shape, tensor.dtype))


DEVICE_CODE["dup"] = dup
DEVICE_CODE["to"] = _to


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
            return (yield _fill(flat, scalar).map(lambda _: tensor).start(ctx))
        assert tensor.storage is not None, "it was just allocated"
        ctx.device.driver.fill(tensor.storage.memory, 0, tensor.nbytes // len(pattern), pattern, ctx.stream.handle)
        ctx.note((), (tensor.storage,))
        return tensor


class _FromHost(_Empty):
    """A new tensor, copied from a NumPy array."""

    def __init__(self, source: np.ndarray[Any, Any], dtype: dtypes.DType) -> None:
        super().__init__(source.shape, dtype)
        self.source, self._label = source, "from_host"

    def steps(self, ctx: ExecutionContext) -> Any:
        """Allocate it and copy the array to it."""
        tensor = self.execute(ctx)
        assert tensor.storage is not None, "it was just allocated"
        yield from copy_in(ctx, tensor.storage, 0, np.ascontiguousarray(self.source))
        return tensor


class _Copy(_Empty):
    """A new tensor, copied from a contiguous one."""

    def __init__(self, source: Tensor) -> None:
        super().__init__(source.shape, source.dtype, source.device)
        self.source, self._label = source, "dup"

    def execute(self, ctx: ExecutionContext) -> Tensor:
        """Allocate it and enqueue the copy."""
        return _copy_contiguous(super().execute(ctx), self.source, ctx)


class _CopyInto(DeviceOp[Tensor]):
    """A contiguous tensor, copied into another's memory."""

    def __init__(self, target: Tensor, source: Tensor) -> None:
        self.target, self.source, self._label = target, source, "memcpy"
        self.spec = Spec(target.shape, target.dtype)

    @property
    def device(self) -> Device | None:
        """The target's."""
        return self.target.device

    def execute(self, ctx: ExecutionContext) -> Tensor:
        """Enqueue the copy."""
        if self.source.device is not self.target.device:
            raise ValueError(
                f"memcpy: from {self.source.device!r} to {self.target.device!r}; bring it there first, with source.to(device)"
            )
        return _copy_contiguous(self.target, self.source, ctx)


def _copy_contiguous(target: Tensor, source: Tensor, ctx: ExecutionContext) -> Tensor:
    if target.nbytes:
        assert target.storage is not None and source.storage is not None, "checked by dup and memcpy"
        ctx.acquire((source.storage,), (target.storage,))
        at, start = target.offset * target.itemsize, source.offset * source.itemsize
        ctx.device.driver.copy(target.storage.memory, at, source.storage.memory, start, source.nbytes, ctx.stream.handle)
        ctx.note((source.storage,), (target.storage,))
    return target


class _To(DeviceOp[Tensor]):
    """A tensor copied to another device, through the host."""

    def __init__(self, tensor: Tensor, device: Device) -> None:
        self.tensor, self._target = tensor, device

    @property
    def device(self) -> Device:
        """The device it goes to."""
        return self._target

    def steps(self, ctx: ExecutionContext) -> Any:
        """Copy it to the host on a stream of its own device, wait, and copy it up."""
        assert self.tensor.device is not None, "checked by Tensor.to"
        there = ExecutionContext(self.tensor.device, self.tensor.device.policy.next_stream())
        arriving = yield self.tensor.to_host().start(there)
        yield [(there.stream, there.stream.mark()), *moments(arriving)]
        return (yield from_host(unwrap(arriving)).start(ctx))


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
