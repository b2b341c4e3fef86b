"""Tensors: made, copied, and brought from the host. Every function here returns a `DeviceOp`, except `meta`.

Nothing happens until the op is run. Without a stream or a tensor that ties it to one, an op runs on the default device.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._tensor.arrays import is_array, tensor_of
from tilekit._tensor.shapes import as_shape
from tilekit._tensor.tensor import DEVICE_CODE, Tensor, new_tensor, refuse_mask
from tilekit.elsewhere import no_name
from tilekit.errors import check_flag
from tilekit.lang import create, memory
from tilekit.lang.annotations import Const, Out
from tilekit.lang.calculation import mul
from tilekit.lang.elementwise import where
from tilekit.lang.tile import scalar_kind
from tilekit.launch import copying, kernel
from tilekit.launch.copying import as_real, as_scalar
from tilekit.ops import DeviceOp, Spec, value
from tilekit.ops.host_values import moments, unwrap
from tilekit.ops.transfer import copy_across, copy_in
from tilekit.random import rand as rand
from tilekit.random import randint as randint
from tilekit.random import randn as randn

__all__ = [
    "arange", "convert", "dup", "empty", "eye", "from_host", "full", "linspace", "memcpy", "meta", "ones", "rand", "randint",
    "randn", "zeros",
]  # fmt: skip

if not TYPE_CHECKING:  # which then says itself that there is no such name

    def __getattr__(name: str) -> Any:
        raise no_name(sys.modules[__name__], name)


# How many elements a tile has in the kernels of this file: 8 for each of 128 threads.
_TILE = 1024


def empty(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new tensor whose elements nobody has written: for a kernel that writes all of them.

    Reading an element before it is written is an error on the CPU device, in a copy or `to_host`, and under `TILEKIT_CHECKS=1` in
    a kernel; the error names the tensor. Else it gives whatever the memory held.

    Args:
        shape: its extents.
        dtype: its element type.

    Raises:
        TypeError, ValueError: no shape, or no dtype of tilekit's.
    """
    return _Empty(as_shape(shape), dtypes.as_dtype(dtype))


def zeros(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new tensor of zeros.

    Args:
        shape: its extents.
        dtype: its element type.

    Raises:
        TypeError, ValueError: no shape, or no dtype of tilekit's.
    """
    return _filled(shape, 0, dtype, "zeros")


def ones(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new tensor of ones; as `zeros`."""
    return _filled(shape, 1, dtype, "ones")


def full(shape: int | tuple[int, ...], value: float, dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new tensor with every element equal to `value`.

    Args:
        shape: its extents.
        value: a scalar; converted to `dtype`.
        dtype: its element type.

    Raises:
        TypeError, ValueError: no shape, no dtype of tilekit's, or a value that `dtype` cannot hold.
    """
    return _filled(shape, value, dtype, "full")


def _filled(shape: int | tuple[int, ...], value: float, dtype: Any, label: str) -> DeviceOp[Tensor]:
    extents, chosen = as_shape(shape), dtypes.as_dtype(dtype)
    return _Full(extents, as_scalar(value, chosen, label), label)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> DeviceOp[Tensor]:
    """The numbers `start, start + step, ...` below `stop`; `arange(stop)` starts at 0, as NumPy's.

    Element `i` is `start + i * step`, exact, if all three are ints. Else it is `start + i * ((start + step) - start)` in float64,
    each operation rounded; then it is converted to `dtype`. So all devices give the same. float64 gives NumPy's numbers; in
    float32 and less, NumPy adds up in that type, and may be further from the exact number. As with NumPy's, a fractional `step`
    can round to one element more than expected: `linspace` counts them.

    Args:
        start, stop, step: finite numbers.
        dtype: the element type; by default int64 if all three are ints, else float32.

    Raises:
        TypeError: something that is no real number, or no dtype of tilekit's.
        ValueError: `step` is zero; infinity or nan; an element that an integer `dtype` does not hold.
    """
    if stop is None:
        start, stop = 0, start
    kinds = []
    for name, number in (("start", start), ("stop", stop), ("step", step)):
        kinds.append(scalar_kind(number))
        if kinds[-1] is None:
            raise TypeError(f"arange: {name} is a number, not {type(number).__name__}")
        if kinds[-1] is float and not math.isfinite(number):
            raise ValueError(f"arange: {name} is {float(number)}, and must be finite")
    if step == 0:
        raise ValueError("arange: the step is zero")
    whole = float not in kinds
    chosen = dtypes.as_dtype(dtype) if dtype is not None else dtypes.int64 if whole else dtypes.float32
    first: Any
    pace: Any
    if whole:
        first, pace = int(start), int(step)
        count = max(0, -((first - int(stop)) // pace))
        pace = pace if count > 1 else 1
    else:
        first, pace = as_real(start, "arange: start"), as_real(step, "arange: step")
        length = (as_real(stop, "arange: stop") - first) / pace
        if not math.isfinite(length):
            raise ValueError(f"arange: from {start!r} to {stop!r} in steps of {step!r} there are too many numbers to count")
        count, pace = max(0, math.ceil(length)), (first + pace) - first
    ends = (first, first + (count - 1) * pace) if count else ()
    for number in ends:
        as_scalar(number, chosen, "arange")
    short = whole and all(-(2**63) <= number < 2**63 for number in (*ends, pace))

    def fill(tensor: Tensor) -> DeviceOp[Tensor]:
        tiles = tensor.partition(_TILE)
        if short:
            filling = _arange(tiles, first, pace)
        elif whole and chosen == dtypes.uint64:
            filling = _arange_unsigned(tiles, dtypes.uint64.type(first), dtypes.uint64.type(pace % 2**64))
        else:
            filling = _line(tiles, float(first), float(pace), 0.0, -1, "none")
        filled: DeviceOp[Tensor] = filling.first().unpartition()
        return filled

    return _named(_Empty((count,), chosen).then(fill), "arange", Spec((count,), chosen))


def linspace(start: float, stop: float, num: int, endpoint: bool = True, dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """`num` numbers from `start` to `stop`, equally far apart.

    Element `i` is `start + i * step` in float64, each operation rounded, where `step` is `(stop - start) / (num - 1)`, or
    `(stop - start) / num` without the end point; the last is `stop` itself. Then it is converted to `dtype`, to integers by
    rounding down. That is NumPy's formula, and the same on every device.

    Args:
        start: the first.
        stop: the last, or with `endpoint=False` the one that would follow the last.
        num: how many.
        endpoint: whether `stop` is among them.
        dtype: the element type.

    Raises:
        TypeError: `start` or `stop` is no real number, `num` no int, or no dtype of tilekit's.
        ValueError: `num` is negative, or `dtype` does not hold the numbers.
    """
    chosen = dtypes.as_dtype(dtype)
    first, end = as_real(start, "linspace: start"), as_real(stop, "linspace: stop")
    if scalar_kind(num) is not int:
        raise TypeError(f"linspace: num is an int, not {num!r}")
    if num < 0:
        raise ValueError(f"linspace: the number of samples, {num}, must be non-negative")
    count = int(num)
    parts = count - 1 if check_flag("linspace: endpoint", endpoint) else count
    step = (end - first) / as_real(parts, "linspace: num") if parts else end - first
    pinned = count - 1 if endpoint and count > 1 else -1
    whole = chosen.kind in "iu" and not dtypes.is_float(chosen)
    if whole and count:
        for number in (first, end if pinned > 0 else (count - 1) * step + first):
            if not math.isfinite(number) or not dtypes.holds(chosen, math.floor(number)):
                raise ValueError(f"linspace: {chosen.name} does not hold {number!r}")

    # uint64 gets no negative numbers, for which cutting fractions off is rounding down, and some that int64 does not hold.
    rounding = "none" if not whole else "cut" if chosen == dtypes.uint64 else "down"

    def fill(tensor: Tensor) -> DeviceOp[Tensor]:
        filled: DeviceOp[Tensor] = _line(tensor.partition(_TILE), first, step, end, pinned, rounding).first().unpartition()
        return filled

    return _named(_Empty((count,), chosen).then(fill), "linspace", Spec((count,), chosen))


def eye(n: int, m: int | None = None, k: int = 0, dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """A new matrix with ones on a diagonal and zeros elsewhere.

    Args:
        n: the number of rows.
        m: the number of columns; by default `n`.
        k: which diagonal: 0 is the main one, positive ones are above it, negative ones below.
        dtype: its element type.

    Raises:
        TypeError: an extent or `k` that is no int, or no dtype of tilekit's.
        ValueError: a negative extent.
    """
    shape, chosen = as_shape((n, n if m is None else m)), dtypes.as_dtype(dtype)
    if scalar_kind(k) is not int:
        raise TypeError(f"eye: k is an int, not {k!r}")
    rows, columns = shape
    length = min(rows + min(k, 0), columns - max(k, 0))
    first = k if k > 0 else -k * columns

    def fill(tensor: Tensor) -> DeviceOp[Tensor]:
        if length <= 0:
            return value(tensor)
        diagonal = tensor.reshape(-1)[first :: columns + 1][:length]
        filled: DeviceOp[Tensor] = copying.fill(diagonal, np.ones((), chosen)).map(lambda _: tensor)
        return filled

    return _named(zeros(shape, chosen).then(fill), "eye", Spec(shape, chosen))


def from_host(array: Any) -> DeviceOp[Tensor]:
    """A new tensor with the shape, dtype and elements of a NumPy array (or what NumPy makes one of).

    The array is read while the op runs; until that is done, leave it as it is. Later changes to it do not reach the tensor.

    Raises:
        TypeError: its dtype is none of tilekit's, or it has a mask.
    """
    refuse_mask("from_host", array)
    try:
        source = np.asarray(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"from_host: NumPy makes no array of this {type(array).__name__}: {error}") from error
    return _FromHost(source, dtypes.as_dtype(source.dtype))


def memcpy(target: Tensor, source: Any) -> DeviceOp[Tensor]:
    """Copy `source` into the memory of `target`; the op's result is `target`.

    Args:
        target: a tensor; any view.
        source: a tensor on the same device, or a NumPy array or NumPy scalar, of the same shape and dtype.

    Raises:
        TypeError: one of them is something else, or has no memory.
        ValueError: shape or dtype differ.
    """
    target = _taken(target, "memcpy")
    if not isinstance(source, np.ndarray):  # which may be copied to another device
        source = _taken(source, "memcpy")
    if not isinstance(target, Tensor) or target.storage is None:
        raise TypeError(f"memcpy copies into a tensor that has memory, not {target!r}")
    if isinstance(source, DeviceOp):
        return _named(source.then(lambda produced: memcpy(target, produced)), "memcpy", Spec(target.shape, target.dtype))
    refuse_mask("memcpy", source)
    if isinstance(source, np.generic):
        source = np.asarray(source)
    if not isinstance(source, (Tensor, np.ndarray)):
        cure = "" if scalar_kind(source) is None else "; target.fill(value) sets all elements to one value"
        raise TypeError(f"memcpy copies from a tensor or a NumPy array, not {type(source).__name__}{cure}")
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(
            f"memcpy: {source.dtype} of shape {source.shape} into {target.dtype.name} of shape {target.shape}; "
            "copy between views of one shape, of tensors of one dtype"
        )
    if isinstance(source, np.ndarray) and target.is_contiguous:
        return _CopyIn(target, source)
    if isinstance(source, np.ndarray):
        return _named(
            from_host(source).then(lambda produced: memcpy(target, produced)), "memcpy", Spec(target.shape, target.dtype)
        )
    if source.storage is None:
        raise TypeError(f"memcpy copies from a tensor that has memory, not {source!r}")
    if source.device is not target.device:
        raise ValueError(f"memcpy: from {source.device!r} to {target.device!r}; bring it there first, with source.to(device)")
    return copying.copy_into(target, source).named("memcpy")


def dup(tensor: Tensor | DeviceOp[Tensor]) -> DeviceOp[Tensor]:
    """A copy of a tensor in new memory, C-contiguous, on the same device.

    Raises:
        TypeError: it is no tensor, or a meta tensor.
        ValueError: a view with more than 4 dimensions that do not join.
    """
    if isinstance(tensor, DeviceOp):
        return _named(tensor.then(dup), "dup", tensor.spec)
    tensor = _taken(tensor, "dup")
    if not isinstance(tensor, Tensor) or tensor.storage is None:
        raise TypeError(f"dup copies a tensor that has memory, not {tensor!r}")
    return copying.convert(tensor, tensor.dtype)


def convert(tensor: Tensor | DeviceOp[Tensor], dtype: Any) -> DeviceOp[Tensor]:
    """A copy of a tensor in another dtype, in new memory, C-contiguous, on the same device; `tensor.astype(dtype)` is the same.

    As NumPy converts: floats lose their fraction on the way to integers, integers wrap, whatever is not zero is True. A float
    outside the range of an integer type gives a value that depends on the device.

    Raises:
        TypeError: it is no tensor, or a meta tensor; or no dtype of tilekit's.
        ValueError: as for `dup`.
    """
    chosen = dtypes.as_dtype(dtype)
    if isinstance(tensor, DeviceOp):
        spec = None if tensor.spec is None else Spec(tensor.spec.shape, chosen)
        return _named(tensor.then(lambda produced: convert(produced, chosen)), "astype", spec)
    tensor = _taken(tensor, "astype")
    if not isinstance(tensor, Tensor) or tensor.storage is None:
        raise TypeError(f"astype converts a tensor that has memory, not {tensor!r}")
    return copying.convert(tensor, chosen)


def _taken(array: Any, who: str) -> Any:
    """A tensor in the place of another library's array."""
    return tensor_of(array, (), who) if is_array(array) else array


def _fill_tensor(tensor: Tensor, value: Any) -> DeviceOp[Tensor]:
    """What `Tensor.fill` does."""
    return copying.fill(tensor, as_scalar(value, tensor.dtype, "fill"))


def meta(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> Tensor:
    """A tensor without memory, to compile kernels for: `kernel(api.meta(n).partition(1024), ...).compile(target="sm_90a")`.

    It counts as aligned to 16 bytes. Running a kernel on it is a TypeError.
    """
    return Tensor(None, as_shape(shape), dtypes.as_dtype(dtype))


def _to(tensor: Tensor, device: Device) -> DeviceOp[Tensor]:
    """What `Tensor.to` does."""
    if tensor.device is device:
        return value(tensor)
    return _named(_To(tensor, device).on(device), "to", Spec(tensor.shape, tensor.dtype))


DEVICE_CODE["dup"] = dup
DEVICE_CODE["to"] = _to
DEVICE_CODE["astype"] = convert
DEVICE_CODE["copy_into"] = memcpy
DEVICE_CODE["fill"] = _fill_tensor


def _named(op: DeviceOp[Tensor], name: str, spec: Spec | None) -> DeviceOp[Tensor]:
    op.spec = spec
    return op.named(name)


class _Empty(DeviceOp[Tensor]):
    """A new tensor, not written yet."""

    _label = "empty"

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
        return new_tensor(ctx.allocate(math.prod(shape) * dtype.itemsize), shape, dtype)


class _Full(_Empty):
    """A new tensor, filled with one value."""

    def __init__(self, shape: tuple[int, ...], value: np.ndarray[Any, Any], label: str) -> None:
        super().__init__(shape, value.dtype)
        self.value, self._label = value, label

    def steps(self, ctx: ExecutionContext) -> Any:
        """Allocate it and fill it: by the driver where a pattern of 4 bytes will do, else by a kernel."""
        tensor = self.execute(ctx)
        pattern = self.value.tobytes()
        if pattern == pattern[:1] * len(pattern):
            pattern = pattern[:1]
        if not tensor.size:
            return tensor
        if len(pattern) > 4:
            return (yield copying.fill(tensor, self.value).start(ctx))
        assert tensor.storage is not None, "it was just allocated"
        ctx.driver.fill(tensor.storage.memory, 0, tensor.nbytes // len(pattern), pattern, ctx.stream.handle)
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


class _CopyIn(DeviceOp[Tensor]):
    """A contiguous tensor, overwritten from a NumPy array."""

    def __init__(self, target: Tensor, source: np.ndarray[Any, Any]) -> None:
        self.target, self.source, self._label = target, source, "memcpy"
        self.spec = Spec(target.shape, target.dtype)

    @property
    def device(self) -> Device | None:
        """The target's."""
        return self.target.device

    def steps(self, ctx: ExecutionContext) -> Any:
        """Copy the array, from where it is if that is page-locked memory."""
        target = self.target
        assert target.storage is not None, "checked by memcpy"
        yield from copy_in(ctx, target.storage, target.offset * target.itemsize, np.ascontiguousarray(self.source))
        return target


class _To(DeviceOp[Tensor]):
    """A tensor copied to another device: straight to one of the same kind, else through the host."""

    def __init__(self, tensor: Tensor, device: Device) -> None:
        self.tensor, self._target = tensor, device

    @property
    def device(self) -> Device:
        """The device it goes to."""
        return self._target

    def steps(self, ctx: ExecutionContext) -> Any:
        """Copy it on the stream of the device it goes to; or to the host on a stream of its own device, wait, and copy it up."""
        assert self.tensor.device is not None, "checked by Tensor.to"
        straight = self.tensor.device.kind == ctx.device.kind
        at_once = straight and self.tensor.is_contiguous
        there = ctx if at_once else ctx.on(self.tensor.device.policy.next_stream())
        if straight:
            dense: Tensor = self.tensor if self.tensor.is_contiguous else (yield self.tensor.dup().start(there))
            assert dense.storage is not None, "checked by Tensor.to"
            storage = ctx.allocate(dense.nbytes)
            copy_across(ctx, storage, dense.storage, dense.offset * dense.itemsize, dense.nbytes)
            return Tensor(storage, dense.shape, dense.dtype)
        arriving = yield self.tensor.to_host().start(there)
        yield [(there.stream, there.stream.mark()), *moments(arriving)]
        return (yield from_host(unwrap(arriving)).start(ctx))


@kernel
def _arange(y: Out, start: int, step: int) -> None:
    first = start + memory.bid(0) * (_TILE * step)
    y.store(create.arange(_TILE, dtype=dtypes.int64, start=first, step=step).astype(y.dtype))


@kernel
def _arange_unsigned(y: Out, start: int, step: int) -> None:
    """Numbers that int64 does not hold, and uint64 does; a step down is the one up that wraps around to the same."""
    y.store(create.arange(_TILE, dtype=dtypes.uint64, start=memory.bid(0) * _TILE) * step + start)


@kernel
def _line(y: Out, start: float, step: float, stop: float, pinned: int, rounding: Const) -> None:
    """`start + i * step`, but `stop` at `pinned`. `mul` keeps a GPU from rounding once where NumPy rounds twice."""
    index = create.arange(_TILE, dtype=dtypes.int64, start=memory.bid(0) * _TILE)
    number = where(index == pinned, stop, mul(index.astype(dtypes.float64), step) + start)
    if rounding == "down":
        cut = number.astype(dtypes.int64)
        y.store((cut - (cut.astype(dtypes.float64) > number).astype(dtypes.int64)).astype(y.dtype))
    else:
        y.store(number.astype(y.dtype))
