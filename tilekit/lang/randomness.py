"""Random numbers inside kernels, by counter: each is a function of a seed and an offset, and of nothing else.

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011). The seed is
the key: its lower 32 bits are the first word, its upper the second. The counter is `(j, j >> 32, kind, 0)`, where `kind` is 0
for `rand`, 1 for `randn` and 2 for `randint`, so that one seed gives three different sequences. Each counter makes four words
of 32 bits; an element takes one word of them or two, in order: `j` is `i // 4` or `i // 2` for offset `i`. `tilekit.api` draws
its tensors with these operations: the number at offset `i` is element `i` of the tensor that `api.rand` makes of the same seed.

Nothing here may round differently from one device to another: no product is fused with a sum, and the functions of float32 are
polynomials of our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Tile, common_shape, scalar_kind, what_is

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["BITS", "COSINE", "LOGARITHM", "M0", "M1", "SINE", "W0", "W1", "philox", "rand", "randint", "randn"]

BITS = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}
"""The bits that a uniform number is made of: as many as the significand holds."""

# The two multipliers, and what the words of the key grow by in each round.
M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85

# Polynomials of float32, the highest power first: those of Cephes' logf, sinf and cosf.
LOGARITHM = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1,
    -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)

UNIFORM, NORMAL, INTEGERS = 0, 1, 2

_u32, _u64, _f32 = np.uint32, np.uint64, np.float32


# ----------------------------------------------------------------------------------------------- words, as the lowering has them


def _rounds(counter: list[Array], seed: int) -> list[Array]:
    """Ten rounds of Philox on arrays of uint32 that broadcast."""
    c0, c1, c2, c3 = counter
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    half = _u64(32)
    for _ in range(10):
        p, q = c0.astype(_u64) * _u64(M0), c2.astype(_u64) * _u64(M1)
        c0, c1 = (q >> half).astype(_u32) ^ c1 ^ _u32(key0), q.astype(_u32)
        c2, c3 = (p >> half).astype(_u32) ^ c3 ^ _u32(key1), p.astype(_u32)
        key0, key1 = key0 + W0 & 0xFFFFFFFF, key1 + W1 & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def _words(offsets: Array, seed: int, kind: int, words: int) -> tuple[list[Array], Array]:
    """The four words of each offset's counter, of which `words` are the element's; and the offsets."""
    j = offsets >> _u64(2 if words == 1 else 1)
    zero = np.zeros((), _u32)
    return _rounds([j.astype(_u32), (j >> _u64(32)).astype(_u32), zero + _u32(kind), zero], seed), offsets


def _one(drawn: tuple[list[Array], Array]) -> Array:
    """Each element's word, of four."""
    (w0, w1, w2, w3), at = drawn
    odd, high = (at & _u64(1)).astype(bool), (at & _u64(2)).astype(bool)
    word: Array = np.where(high, np.where(odd, w3, w2), np.where(odd, w1, w0))
    return word


def _two(drawn: tuple[list[Array], Array]) -> Array:
    """Each element's two words of four, as one of 64 bits."""
    (w0, w1, w2, w3), at = drawn
    odd = (at & _u64(1)).astype(bool)
    return np.where(odd, w2, w0).astype(_u64) << _u64(32) | np.where(odd, w3, w1).astype(_u64)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _f32(coefficient)
    return value


def _normal(drawn: tuple[list[Array], Array]) -> Array:
    """Box and Muller's method in float32: two words make two numbers, the first the radius, the second the angle."""
    (w0, w1, w2, w3), at = drawn
    odd, high = (at & _u64(1)).astype(bool), (at & _u64(2)).astype(bool)
    x = (np.where(high, w2, w0) | _u32(1)).astype(_f32)  # an odd number: never 0, and at most 2**32
    pattern = x.view(np.int32)
    exponent = (pattern - np.int32(0x3F3504F3)) >> np.int32(23)  # x = 2**exponent * (1 + f), 1 + f between sqrt(1/2) and sqrt(2)
    f = (pattern - (exponent << np.int32(23))).view(_f32) - _f32(1)
    scale = (exponent - np.int32(32)).astype(_f32)
    # The logarithm of x / 2**32; ln(2) = 0.693359375 - 2.12194440e-4.
    z = f * f
    p = _polynomial(LOGARITHM, f) * f * z - scale * _f32(2.12194440e-4) - z * _f32(0.5)
    radius = np.sqrt(((p + f) + scale * _f32(0.693359375)) * _f32(-2))
    # The angle in quarter turns, rounded to the nearest; what is left is between -1/8 and 1/8 of a turn.
    turn = np.where(high, w3, w1) + _u32(0x20000000)
    quarter = (turn >> _u32(30)) + np.where(odd, _u32(3), _u32(0))  # sin(a) is cos(a - a quarter)
    a = ((turn & _u32(0x3FFFFFFF)).astype(np.int32) - np.int32(0x20000000)).astype(_f32) * _f32(1.4629180792671596e-09)
    z = a * a
    sine = _polynomial(SINE, z) * z * a + a
    cosine = _polynomial(COSINE, z) * z * z - z * _f32(0.5) + _f32(1)
    wave = np.where((quarter & _u32(1)).astype(bool), sine, cosine).view(_u32) ^ ((quarter + _u32(1) & _u32(2)) << _u32(30))
    number: Array = radius * wave.view(_f32)
    return number


def _normal64(drawn: tuple[list[Array], Array]) -> Array:
    """The same in float64, with the device's own functions: the pair of elements has the counter of the even one."""
    (w0, w1, w2, w3), at = drawn
    odd = (at & _u64(1)).astype(bool)
    x = ((w0.astype(_u64) << _u64(32) | w1) >> _u64(11)) | _u64(1)
    turn = (w2.astype(_u64) << _u64(32) | w3) >> _u64(11)
    angle = turn.astype(np.float64) * (2.0**-53 * 6.283185307179586)
    radius = np.sqrt(np.log(x.astype(np.float64) * 2.0**-53) * -2.0)
    number: Array = radius * np.where(odd, np.sin(angle), np.cos(angle))
    return number


# ------------------------------------------------------------------------------------------------------------------- checks


def problem_of_dtype(dtype: dtypes.DType) -> str | None:
    """Why random floats are not of this dtype; None if they are."""
    if dtype in BITS:
        return None
    return f"random numbers are {', '.join(d.name for d in BITS)}, not {dtype.name}; cast them afterwards"


def problem_of_bounds(low: int, high: int, dtype: dtypes.DType) -> str | None:
    """Why there are no random integers in [low, high) of this dtype; None if there are."""
    if low >= high:
        return f"low >= high: there is no integer in [{low}, {high})"
    if high - low > 2**32:
        return f"high - low is at most 2**32, not {high - low}; tk.philox makes words of 32 bits to compose others from"
    limits = np.iinfo(dtype)
    for name, bound, outside in (("low", low, low < limits.min), ("high", high, high > int(limits.max) + 1)):
        if outside:
            return f"{name} = {bound} is out of bounds for {dtype.name}"
    return None


def no_seed(actual: str) -> str:
    """Why something is no seed."""
    return f"a seed is an integer scalar, not {actual}"


def no_offsets(actual: str) -> str:
    """Why something is no tile of offsets."""
    return f"the offsets are an integer tile, such as tk.arange(...), not {actual}"


def no_integers(actual: str) -> str:
    """Why random integers are not of a dtype."""
    return f"random integers are of an integer dtype, not {actual}"


def _seed(what: str, seed: Any) -> int:
    if scalar_kind(seed) is not int:
        raise CompileError(f"{what}: {no_seed(what_is(seed))}")
    return int(seed) % 2**64


def _offsets(what: str, offsets: Any) -> Array:
    """Offsets as uint64; those of 32 bits and fewer count as unsigned numbers of 32."""
    if not isinstance(offsets, Tile):
        raise CompileError(f"{what}: {no_offsets(what_is(offsets))}")
    if dtypes.is_float(offsets.dtype) or offsets.dtype == dtypes.bool_:
        raise CompileError(f"{what}: {no_offsets(f'a {offsets.dtype.name} tile')}")
    narrow = offsets.dtype.itemsize <= 4
    unsigned: Array = offsets._array.astype(_u32).astype(_u64) if narrow else offsets._array.astype(_u64)
    return unsigned


def _dtype(what: str, spec: Any) -> dtypes.DType:
    try:
        return dtypes.as_dtype(spec)
    except TypeError as error:
        raise CompileError(f"{what}: {error}") from None


def _float(what: str, spec: Any) -> dtypes.DType:
    chosen = _dtype(what, spec)
    if problem := problem_of_dtype(chosen):
        raise CompileError(f"{what}: {problem}")
    return chosen


# ----------------------------------------------------------------------------------------------------------- the operations


@tile_op("philox", host="api.randint")
def philox(seed: int, c0: Any, c1: Any = 0, c2: Any = 0, c3: Any = 0) -> tuple[Tile, Tile, Tile, Tile]:
    """Four tiles of 32 random bits an element: Philox4x32-10 of a counter of four words, with a seed as the key.

    The same counter and seed give the same words, everywhere. `rand`, `randn` and `randint` use counters whose third word is 0, 1
    and 2 and whose fourth is 0.

    Args:
        seed: an integer scalar; its lower and upper 32 bits are the two words of the key.
        c0, c1, c2, c3: the words of the counter: integer tiles whose shapes broadcast, one at least, and integer scalars. Of
            64-bit integers the lower 32 bits count.

    Raises:
        CompileError: the seed is no integer scalar, a word is none of these, none is a tile, or the shapes do not broadcast.

    Examples:
        >>> @tk.kernel
        ... def words(y: tk.Out):
        ...     a, b, c, d = tk.philox(0, tk.arange(1))
        ...     y.store(tk.cat((tk.cat((a, b), 0), tk.cat((c, d), 0)), 0))
        >>> y = words(api.zeros(4, tk.uint32).partition(4)).first().unpartition()
        >>> [hex(word) for word in y.to_host().sync()]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    key, counter = _seed("philox", seed), []
    for word in (c0, c1, c2, c3):
        if isinstance(word, Tile) and not dtypes.is_float(word.dtype) and word.dtype != dtypes.bool_:
            counter.append(word._array.astype(_u32))
        elif scalar_kind(word) is int:
            counter.append(np.asarray(int(word) & 0xFFFFFFFF, _u32))
        else:
            actual = f"a {word.dtype.name} tile" if isinstance(word, Tile) else what_is(word)
            raise CompileError(f"philox: {no_word(actual)}")
    shapes = [word.shape for word in (c0, c1, c2, c3) if isinstance(word, Tile)]
    if not shapes:
        raise CompileError(f"philox: {NO_TILE}")
    shape = common_shape("philox", shapes)
    w0, w1, w2, w3 = (Tile(np.array(np.broadcast_to(word, shape))) for word in _rounds(counter, key))
    return w0, w1, w2, w3


NO_TILE = "one word of the counter at least must be a tile"


def no_word(actual: str) -> str:
    """Why something is no word of a counter."""
    return f"a word of the counter is an integer tile or an integer scalar, not {actual}"


@tile_op("rand", host="api.rand")
def rand(seed: int, offsets: Tile, dtype: Any = dtypes.float32) -> Tile:
    """Random numbers, uniform in [0, 1): that of offset `i` is element `i` of `api.rand(n, seed, dtype)`, bit by bit.

    They are multiples of 2**-24 (float32; 2**-53 for float64, 2**-11 for float16, 2**-8 for bfloat16), all equally likely. One
    generation of Philox serves four neighbouring offsets (two for float64) where a thread holds them and the compiler sees it,
    as in `tk.arange(n, start=n * tk.bid(0))`.

    Args:
        seed: an integer scalar, 64 bits of which count.
        offsets: an integer tile: which numbers. Integers of 32 bits and fewer count as unsigned numbers of 32.
        dtype: float16, bfloat16, float32 or float64.

    Raises:
        CompileError: the seed is no integer scalar, the offsets are no integer tile, or another dtype.

    Examples:
        >>> @tk.kernel
        ... def dropout(y: tk.InOut, seed, p):
        ...     at = tk.arange(4, start=4 * tk.bid(0))
        ...     y.store(tk.where(tk.rand(seed, at) < p, 0.0, y.load()))
        >>> dropout(api.ones(8).partition(4), 7, 0.5).out().sync().numpy()
        array([1., 1., 0., 0., 0., 1., 0., 1.], dtype=float32)
    """
    key, at, chosen = _seed("rand", seed), _offsets("rand", offsets), _float("rand", dtype)
    if chosen == dtypes.float64:
        return Tile((_two(_words(at, key, UNIFORM, 2)) >> _u64(11)).astype(np.float64) * 2.0**-53)
    bits = BITS[chosen]
    number = (_one(_words(at, key, UNIFORM, 1)) >> _u32(32 - bits)).astype(_f32) * _f32(2.0**-bits)
    return Tile(number.astype(chosen))


@tile_op("randn", host="api.randn")
def randn(seed: int, offsets: Tile, dtype: Any = dtypes.float32) -> Tile:
    """Random numbers, normal with mean 0 and standard deviation 1: at offset `i` element `i` of `api.randn(0, 1, n, seed)`.

    float32 (and the 16-bit floats, which are computed in float32) has the same bits on every device. float64 is computed with the
    device's own logarithm, sine and cosine: numbers of two devices are a few units in the last place apart.

    Args:
        seed, offsets, dtype: as for `tk.rand`.

    Raises:
        CompileError: as for `tk.rand`.

    Examples:
        >>> @tk.kernel
        ... def noise(y: tk.Out, seed):
        ...     y.store(tk.randn(seed, tk.arange(2)))
        >>> noise(api.zeros(2).partition(2), 1).out().sync().numpy()
        array([-0.1650477,  2.6764483], dtype=float32)
    """
    key, at, chosen = _seed("randn", seed), _offsets("randn", offsets), _float("randn", dtype)
    if chosen == dtypes.float64:
        return Tile(_normal64(_words(at, key, NORMAL, 2)))
    return Tile(_normal(_words(at, key, NORMAL, 1)).astype(chosen, copy=False))


@tile_op("randint", host="api.randint")
def randint(seed: int, offsets: Tile, low: int, high: int, dtype: Any = dtypes.int32) -> Tile:
    """Random integers, uniform in [low, high): at offset `i` element `i` of `api.randint(low, high, n, dtype, seed)`.

    An integer is `low + floor(r * (high - low))`, where `r` in [0, 1) has 64 random bits: none is more likely than another by
    more than one part in 2**32.

    Args:
        seed, offsets: as for `tk.rand`.
        low: the smallest, an integer scalar.
        high: one more than the largest; at most `low + 2**32`. (Bounds that are not so, and are computed in the kernel, give
            arbitrary integers.)
        dtype: an integer type.

    Raises:
        CompileError: as for `tk.rand`; bounds that are no integer scalars, or between which there is no integer of the dtype, or
            too many.

    Examples:
        >>> @tk.kernel
        ... def dice(y: tk.Out, seed):
        ...     y.store(tk.randint(seed, tk.arange(4), 1, 7))
        >>> dice(api.zeros(4, tk.int32).partition(4), 1).out().sync().numpy()
        array([6, 2, 5, 2], dtype=int32)
    """
    key, at, chosen = _seed("randint", seed), _offsets("randint", offsets), _dtype("randint", dtype)
    if dtypes.is_float(chosen) or chosen == dtypes.bool_:
        raise CompileError(f"randint: {no_integers(chosen.name)}")
    for name, bound in (("low", low), ("high", high)):
        if scalar_kind(bound) is not int:
            raise CompileError(f"randint: {name} is an integer scalar, not {what_is(bound)}")
    if problem := problem_of_bounds(int(low), int(high), chosen):
        raise CompileError(f"randint: {problem}")
    wide, span = _two(_words(at, key, INTEGERS, 2)), _u64(int(high) - int(low))
    # The upper 64 bits of wide * span, whose halves do not overflow since span is at most 2**32.
    upper = ((wide >> _u64(32)) * span + ((wide & _u64(0xFFFFFFFF)) * span >> _u64(32))) >> _u64(32)
    return Tile((upper + _u64(int(low) % 2**64)).astype(chosen))
