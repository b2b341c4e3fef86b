"""Random numbers, made on the device, the same on every device: Philox4x32-10, a function of the seed and the element's index.

What an element becomes depends on the seed, its index in C order and its dtype, and not on the shape, the tiles, the grid or the
device: `tilekit.lang.randomness`, whose operations kernels may use too, says how.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.shapes import as_shape
from tilekit._tensor.tensor import Tensor
from tilekit.lang import create, memory, randomness
from tilekit.lang.annotations import Const, Out
from tilekit.lang.calculation import mul, mulhi
from tilekit.lang.elementwise import where
from tilekit.lang.tile import scalar_kind
from tilekit.launch import kernel
from tilekit.launch.copying import as_real, shown
from tilekit.ops import DeviceOp, Spec, value, with_context

__all__ = ["rand", "randint", "randn"]

# Elements in a tile: on a GPU 8 for each of 128 threads; on a CPU device as many as the caches of a core hold. The numbers do not
# depend on it.
_TILE, _CPU_TILE = 1024, 1 << 14

u64, f64 = dtypes.uint64, dtypes.float64


def rand(shape: int | tuple[int, ...], seed: int | None = None, dtype: Any = dtypes.float32) -> DeviceOp[Tensor]:
    """Random numbers, uniform in [0, 1), made on the device by a kernel.

    They are multiples of 2**-24 (float32; 2**-53 for float64, 2**-11 for float16, 2**-8 for bfloat16), all equally likely. The
    same seed gives the same bits on every device, and an element depends on the seed, its index in C order and the dtype
    alone: `rand(10, seed=1)` begins `rand((4, 5), seed=1)`. The generator is Philox4x32-10.

    Args:
        shape: the tensor's extents.
        seed: 0 <= seed < 2**64; None draws one from the operating system at each run.
        dtype: float16, bfloat16, float32 or float64.

    Raises:
        TypeError: another dtype, or a seed that is no int.
        ValueError: a seed out of range.
    """
    chosen = _float("rand", dtype)
    return _drawn("rand", shape, chosen, seed, "uniform")


def randn(
    mean: float, std: float, shape: int | tuple[int, ...], seed: int | None = None, dtype: Any = dtypes.float32
) -> DeviceOp[Tensor]:
    """Random numbers, normally distributed, made on the device by a kernel.

    They come in pairs, by the method of Box and Muller. float32 (and the 16-bit floats, which are computed in float32) has the
    same bits on every device. float64 is computed with the device's own logarithm, sine and cosine: before `mean` is added,
    numbers of two devices are a few units in the last place apart. Otherwise as `rand`.

    Args:
        mean, std: of the distribution; `std` is not negative.
        shape, seed, dtype: as for `rand`.

    Raises:
        TypeError: as for `rand`, or a mean or standard deviation that is no real number.
        ValueError: a seed out of range, a negative standard deviation, or an int that float64 does not hold.
    """
    chosen = _float("randn", dtype)
    centre, width = as_real(mean, "randn: the mean"), as_real(std, "randn: the standard deviation")
    if width < 0:
        raise ValueError(f"randn: the standard deviation {std} is negative")
    return _drawn("randn", shape, chosen, seed, "normal64" if chosen == dtypes.float64 else "normal", mean=centre, std=width)


def randint(
    low: int, high: int | None, shape: int | tuple[int, ...], dtype: Any = dtypes.int32, seed: int | None = None
) -> DeviceOp[Tensor]:
    """Random integers, uniform in [low, high), made on the device by a kernel; the same on every device, as `rand`.

    An element is `low + floor(r * (high - low))`, where `r` in [0, 1) has 64 random bits, or 128 if `high - low` is above 2**32.
    So no integer is more likely than another by more than one part in 2**32.

    Args:
        low: the smallest.
        high: one more than the largest; None for `low`, with 0 as the smallest, as NumPy's.
        shape: the tensor's extents.
        dtype: an integer type or bool.
        seed: as for `rand`.

    Raises:
        TypeError: another dtype, or bounds or a seed that are no ints.
        ValueError: no integer is in [low, high), or some are outside the range of `dtype`; a seed out of range.
    """
    chosen = dtypes.as_dtype(dtype)
    if dtypes.is_float(chosen):
        raise TypeError(f"randint: random integers are of an integer type or bool, not {chosen.name}")
    if high is None:
        low, high = 0, low
    for name, bound in (("low", low), ("high", high)):
        if scalar_kind(bound) is not int:
            raise TypeError(f"randint: {name} is an int, not {bound!r}")
    low, high = int(low), int(high)
    if low >= high:
        raise ValueError(f"randint: low >= high: there is no integer in [{shown(low)}, {shown(high)})")
    limits = (0, 1) if chosen == dtypes.bool_ else (int(np.iinfo(chosen).min), int(np.iinfo(chosen).max))
    for name, bound, limit in (("low", low, low < limits[0]), ("high", high, high > limits[1] + 1)):
        if limit:
            raise ValueError(f"randint: {name} = {shown(bound)} is out of bounds for {chosen.name}")
    span = high - low
    if span == 2**64:
        kind, span = "bits", 0
    else:
        kind = "below" if span <= 2**32 else "far below"
    return _drawn("randint", shape, chosen, seed, kind, low=low % 2**64, span=span)


def _float(name: str, dtype: Any) -> dtypes.DType:
    chosen = dtypes.as_dtype(dtype)
    if problem := randomness.problem_of_dtype(chosen):
        raise TypeError(f"{name}: {problem}")
    return chosen


def _key(name: str, seed: Any) -> Callable[[], int]:
    """What gives the seed of one run.

    Raises:
        TypeError, ValueError: the seed is no int of 64 bits.
    """
    if seed is not None:
        if scalar_kind(seed) is not int:
            raise TypeError(f"{name}: a seed is an int or None, not {seed!r}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"{name}: a seed is at least 0 and below 2**64, not {shown(seed)}")

    return lambda: int.from_bytes(os.urandom(8), "little") if seed is None else int(seed)


def _drawn(
    name: str, shape: Any, dtype: dtypes.DType, seed: Any, kind: str, *,
    mean: float = 0.0, std: float = 1.0, low: int = 0, span: int = 0,
) -> DeviceOp[Tensor]:  # fmt: skip
    """The op that allocates a tensor and draws its elements."""
    extents, key = as_shape(shape), _key(name, seed)

    def make(ctx: ExecutionContext) -> DeviceOp[Tensor]:
        tensor = Tensor(ctx.allocate(math.prod(extents) * dtype.itemsize), extents, dtype)
        if not tensor.size:
            return value(tensor)
        tile = _TILE if ctx.device.kind == "cuda" else min(_CPU_TILE, 1 << (tensor.size - 1).bit_length())
        flat, unsigned = tensor.reshape(-1).partition(tile), dtypes.uint64.type
        drawn: DeviceOp[Tensor] = _draw(flat, unsigned(key()), mean, std, unsigned(low), unsigned(span), kind, tile).map(
            lambda _: tensor
        )
        return drawn

    op: DeviceOp[Tensor] = with_context(make)
    op.spec = Spec(extents, dtype)
    return op.named(name)


@kernel
def _draw(y: Out, seed: int, mean: float, std: float, low: int, span: int, kind: Const, tile: Const) -> None:
    index = create.arange(tile, dtype=u64, start=memory.bid(0) * tile)
    if kind == "uniform":
        y.store(randomness.rand(seed, index, y.dtype))
    if kind == "normal":
        y.store((mul(randomness.randn(seed, index), std) + mean).astype(y.dtype))
    if kind == "normal64":
        y.store(mul(randomness.randn(seed, index, f64), std) + mean)
    if kind == "bits" or kind == "below":
        # Two of the four words, as one.
        odd, half = (index & 1) == 1, index >> 1
        w0, w1, w2, w3 = randomness.philox(seed, half, half >> 32, randomness.INTEGERS)
        wide = (where(odd, w2, w0).astype(u64) << 32) | where(odd, w3, w1).astype(u64)
        if kind == "bits":
            y.store((wide + low).astype(y.dtype))
        else:
            y.store((mulhi(wide, span) + low).astype(y.dtype))
    if kind == "far below":
        w0, w1, w2, w3 = randomness.philox(seed, index, index >> 32, randomness.INTEGERS)
        upper = (w0.astype(u64) << 32) | w1.astype(u64)
        lower = (w2.astype(u64) << 32) | w3.astype(u64)
        # The upper 64 bits of 128 random ones times span.
        middle = upper * span
        carry = where(middle + mulhi(lower, span) < middle, 1, 0).astype(u64)
        y.store((mulhi(upper, span) + carry + low).astype(y.dtype))
