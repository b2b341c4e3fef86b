"""Random numbers, made on the device, the same on every device: Philox4x32-10, a function of the seed and the element's index.

A generator by counter (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) has no state. The seed
is the key: its lower 32 bits are the first word, its upper the second. The counter is `(j, j >> 32, kind, 0)`, where `kind` is 0
for `rand`, 1 for `randn` and 2 for `randint`, so that one seed gives the three different numbers. Each counter makes four words
of 32 bits; an element takes one word of them, two or all four, in order: `j` is `i // 4`, `i // 2` or `i` for element `i`.
What an element becomes thus depends on the seed, its index in C order and its dtype, and not on the shape, the tiles, the grid
or the device.

Nothing here may round differently from one device to another: products that are added to something are `mul`, which no GPU
fuses, and the functions of float32 are polynomials of our own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.copying import as_real, shown
from tilekit.lang import create, memory
from tilekit.lang.elementwise import bitcast, cos, log, mul, mulhi, sin, sqrt, where
from tilekit.lang.signature import Const, Out
from tilekit.lang.tile import scalar_kind
from tilekit.launcher import kernel
from tilekit.ops import DeviceOp, Spec, value, with_context
from tilekit.schedule import ExecutionContext
from tilekit.tensor import Tensor, as_shape

__all__ = ["rand", "randint", "randn"]

# Elements in a tile: on a GPU 8 for each of 128 threads; on a CPU device as many as its caches hold, because each tile
# operation there is a call of NumPy. The numbers do not depend on it.
_TILE, _CPU_TILE = 1024, 1 << 14

# The bits that a uniform number is made of: as many as the significand holds.
_BITS = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}

# Philox4x32: the two multipliers, what the words of the key grow by in each round, and the 32 bits that are kept of them.
_M0, _M1, _W0, _W1, _LOW = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF

i32, u32, u64, f32, f64 = dtypes.int32, dtypes.uint32, dtypes.uint64, dtypes.float32, dtypes.float64


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
    return _drawn("rand", shape, chosen, seed, 0, "uniform", 2 if chosen == dtypes.float64 else 1)


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
    kind, words = ("normal64", 2) if chosen == dtypes.float64 else ("normal", 1)
    return _drawn("randn", shape, chosen, seed, 1, kind, words, mean=centre, std=width)


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
        kind, words, span = "bits", 2, 0
    else:
        kind, words = ("below", 2) if span <= 2**32 else ("far below", 4)
    return _drawn("randint", shape, chosen, seed, 2, kind, words, low=low % 2**64, span=span)


def _float(name: str, dtype: Any) -> dtypes.DType:
    chosen = dtypes.as_dtype(dtype)
    if chosen not in _BITS:
        raise TypeError(f"{name}: random numbers are {', '.join(d.name for d in _BITS)}, not {chosen.name}; cast them afterwards")
    return chosen


def _key(name: str, seed: Any) -> Callable[[], tuple[int, int]]:
    """What gives the two words of the key, for one run.

    Raises:
        TypeError, ValueError: the seed is no int of 64 bits.
    """
    if seed is not None:
        if scalar_kind(seed) is not int:
            raise TypeError(f"{name}: a seed is an int or None, not {seed!r}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"{name}: a seed is at least 0 and below 2**64, not {shown(seed)}")

    def key() -> tuple[int, int]:
        number = int.from_bytes(os.urandom(8), "little") if seed is None else int(seed)
        return number & 0xFFFFFFFF, number >> 32

    return key


def _drawn(
    name: str, shape: Any, dtype: dtypes.DType, seed: Any, counter: int, kind: str, words: int, *,
    mean: float = 0.0, std: float = 1.0, low: int = 0, span: int = 0,
) -> DeviceOp[Tensor]:  # fmt: skip
    """The op that allocates a tensor and draws its elements; `words` of the four of a counter go to one element."""
    extents, key = as_shape(shape), _key(name, seed)

    def make(ctx: ExecutionContext) -> DeviceOp[Tensor]:
        tensor = Tensor(ctx.allocate(math.prod(extents) * dtype.itemsize), extents, dtype)
        if not tensor.size:
            return value(tensor)
        tile = _TILE if ctx.device.kind == "cuda" else min(_CPU_TILE, 1 << (tensor.size - 1).bit_length())
        flat, (key0, key1), shift = tensor.reshape(-1).partition(tile), key(), (4 // words).bit_length() - 1
        drawn: DeviceOp[Tensor] = _draw(
            flat, key0, key1, counter, mean, std, np.uint64(low), np.uint64(span), kind, shift, _BITS.get(dtype, 0), tile
        ).map(lambda _: tensor)
        return drawn

    op: DeviceOp[Tensor] = with_context(make)
    op.spec = Spec(extents, dtype)
    return op.named(name)


@kernel
def _draw(
    y: Out, key0: int, key1: int, counter: int, mean: float, std: float, low: int, span: int,
    kind: Const, shift: Const, bits: Const, tile: Const,
) -> None:  # fmt: skip
    """Every element computes its own counter's words and takes its own. Where a thread holds the elements of one counter, which
    is the rule, the compiler sees that they are the same and keeps one computation: so it is written for one element."""
    index, first = create.arange(tile, dtype=u32), memory.bid(0) * tile >> shift
    w0, w1 = (index >> shift) | (first & _LOW), create.full(tile, first >> 32, u32)  # a tile's length divides 2**32
    w2, w3 = create.full(tile, counter, u32), create.zeros(tile, u32)
    # Ten rounds, written out: around a loop the compiler does not see that elements have the same words. Each element then
    # computes them: for float32 on sm_90a 47 registers instead of 20, and `normal` takes 792 instructions instead of 544.
    # fmt: off
    p, q = mulhi(w0, _M0), mulhi(w2, _M1)
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    p, q, key0, key1 = mulhi(w0, _M0), mulhi(w2, _M1), key0 + _W0 & _LOW, key1 + _W1 & _LOW
    w0, w1, w2, w3 = q ^ w1 ^ key0, w2 * _M1, p ^ w3 ^ key1, w0 * _M0
    # fmt: on
    odd = (index & 1) == 1
    if shift == 1 and kind != "normal64":
        # Two of the four words, as one.
        wide = (where(odd, w2, w0).astype(u64) << 32) | where(odd, w3, w1).astype(u64)

    if kind == "uniform":
        if shift == 2:
            word = where((index & 2) == 2, where(odd, w3, w2), where(odd, w1, w0))
            number = (word >> (32 - bits)).astype(f32) * 2.0**-bits
            y.store(number.astype(y.dtype))
        else:
            y.store((wide >> 11).astype(f64) * 2.0**-53)

    if kind == "normal":
        # Two words make two numbers: the first the radius, the second the angle, the cosine for the even element.
        high = (index & 2) == 2
        x = (where(high, w2, w0) | 1).astype(f32)  # an odd number: never 0, and at most 2**32
        pattern = bitcast(x, i32)
        exponent = (pattern - 0x3F3504F3) >> 23  # x = 2**exponent * (1 + f), 1 + f between sqrt(1/2) and sqrt(2)
        f = bitcast(pattern - (exponent << 23), f32) - 1.0
        scale = (exponent - 32).astype(f32)
        # The logarithm of x / 2**32, by the polynomial of Cephes' logf; ln(2) = 0.693359375 - 2.12194440e-4.
        p = mul(f, 7.0376836292e-2) - 1.1514610310e-1
        p = mul(p, f) + 1.1676998740e-1
        p = mul(p, f) - 1.2420140846e-1
        p = mul(p, f) + 1.4249322787e-1
        p = mul(p, f) - 1.6668057665e-1
        p = mul(p, f) + 2.0000714765e-1
        p = mul(p, f) - 2.4999993993e-1
        p = mul(p, f) + 3.3333331174e-1
        z = mul(f, f)
        p = mul(mul(p, f), z) - mul(scale, 2.12194440e-4) - mul(z, 0.5)
        logarithm = (p + f) + mul(scale, 0.693359375)
        radius = sqrt(mul(logarithm, -2.0))
        # The angle in quarter turns, rounded to the nearest; what is left is between -1/8 and 1/8 of a turn.
        turn = where(high, w3, w1) + 0x20000000
        quarter = (turn >> 30) + where(odd, 3, 0).astype(u32)  # sin(a) is cos(a - a quarter)
        a = mul((turn & 0x3FFFFFFF).astype(i32) - 0x20000000, 1.4629180792671596e-09)
        z = mul(a, a)
        p = mul(z, -1.9515295891e-4) + 8.3321608736e-3
        p = mul(p, z) - 1.6666654611e-1
        sine = mul(mul(p, z), a) + a
        p = mul(z, 2.443315711809948e-5) - 1.388731625493765e-3
        p = mul(p, z) + 4.166664568298827e-2
        cosine = mul(mul(p, z), z) - mul(z, 0.5) + 1.0
        wave = bitcast(where((quarter & 1) == 1, sine, cosine), u32) ^ (((quarter + 1) & 2) << 30)
        y.store((mul(mul(radius, bitcast(wave, f32)), std) + mean).astype(y.dtype))

    if kind == "normal64":
        # The pair of elements has the counter of the even one.
        x = (((w0.astype(u64) << 32) | w1.astype(u64)) >> 11) | 1
        turn = ((w2.astype(u64) << 32) | w3.astype(u64)) >> 11
        angle = mul(turn.astype(f64), 2.0**-53 * 6.283185307179586)
        radius = sqrt(mul(log(mul(x.astype(f64), 2.0**-53)), -2.0))
        y.store(mul(mul(radius, where(odd, sin(angle), cos(angle))), std) + mean)

    if kind == "bits":
        y.store((wide + low).astype(y.dtype))

    if kind == "below":
        y.store((mulhi(wide, span) + low).astype(y.dtype))

    if kind == "far below":
        upper = (w0.astype(u64) << 32) | w1.astype(u64)
        lower = (w2.astype(u64) << 32) | w3.astype(u64)
        # The upper 64 bits of 128 random ones times span.
        middle = upper * span
        carry = where(middle + mulhi(lower, span) < middle, 1, 0).astype(u64)
        y.store((mulhi(upper, span) + carry + low).astype(y.dtype))
