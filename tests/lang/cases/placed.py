"""Elements at computed places: gather, scatter, atomics; and random numbers, which are computed from places."""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scale import Case

import tilekit as tk
from cases.values import FLOATS, INTEGERS, bits_of, modest
from tilekit import dtypes
from tilekit.lang.registry import OPS

SIZES = [(1, 64), (63, 64), (256, 64), (1000, 128), (511, 256), (2048, 512)]


def _places(rng: Any, n: int, size: int, kind: Any) -> Any:
    return rng.integers(0, size, n).astype(kind)


def gathers() -> Iterator[Case]:
    """Elements by index, and what a mask leaves out."""
    if "gather" not in OPS:
        return
    for dtype in dtypes.ALL:
        for kind in (tk.int32, tk.int64):
            for n, tile in SIZES:
                yield Case(
                    "gather", f"by {kind.name}", "y.store(tk.gather(a, tk.load_tile_like(b, y)))", (n,), dtype, (tile,),
                    lambda rng, n=n, dtype=dtype, kind=kind: [bits_of(rng, (300,), dtype), _places(rng, n, 300, kind)],
                    lambda x, at: x[at],
                )  # fmt: skip
        for n, tile in SIZES[:4]:
            yield Case(
                "gather", "masked", "at = tk.load_tile_like(b, y)\ny.store(tk.gather(a, at, mask=at < 100))", (n,), dtype, (tile,),
                lambda rng, n=n, dtype=dtype: [bits_of(rng, (100,), dtype), _places(rng, n, 200, np.int32)],
                lambda x, at: np.where(at < 100, x[at % 100], np.zeros((), x.dtype)),
            )  # fmt: skip
        for shape, tile in [((16, 32), (8, 32)), ((33, 20), (8, 16))]:
            body = """
            rows = tk.load(b, tk.bid(0), y.tile_shape[0])
            columns = tk.load(c, tk.bid(1), y.tile_shape[1])
            y.store(tk.gather(a, (rows[:, None], columns[None, :])))
            """
            yield Case(
                "gather", "rows and columns", body, shape, dtype, tile,
                lambda rng, shape=shape, dtype=dtype: [bits_of(rng, (40, 50), dtype), _places(rng, shape[0], 40, np.int32), _places(rng, shape[1], 50, np.int32)],
                lambda x, rows, columns: x[np.ix_(rows, columns)],
            )  # fmt: skip


def scatters() -> Iterator[Case]:
    """A permutation of the elements."""
    if "scatter" not in OPS:
        return
    body = """
    n = {tile}
    at = tk.bid(0) * n + tk.arange(n)
    tk.scatter(y, tk.gather(b, at, mask=at < k), tk.gather(a, at, mask=at < k), mask=at < k)
    """
    for dtype in dtypes.ALL:
        for n, tile in SIZES:
            yield Case(
                "scatter", "permutation", body.format(tile=tile), (n,), dtype, (tile,),
                lambda rng, n=n, dtype=dtype: [bits_of(rng, (n,), dtype), rng.permutation(n).astype(np.int32)],
                _scattered, scalars=(n,), role="scattered", grid=(-(-n // tile), 1, 1),
            )  # fmt: skip


def _scattered(x: Any, at: Any, n: int) -> Any:
    made = np.empty_like(x)
    made[at] = x
    return made


_WORDS = [tk.int32, tk.uint32, tk.int64, tk.uint64]


def atomics() -> Iterator[Case]:
    """Many elements meet in few: in any order the result is one."""
    table: dict[str, tuple[list[Any], Any, int]] = {
        "atomic_add": ([*_WORDS, *FLOATS], np.add, 0),
        "atomic_max": ([*_WORDS, *FLOATS], np.maximum, 0),
        "atomic_min": ([*_WORDS, *FLOATS], np.minimum, 0),
        "atomic_and": (_WORDS, np.bitwise_and, 0),
        "atomic_or": (_WORDS, np.bitwise_or, 0),
        "atomic_xor": (_WORDS, np.bitwise_xor, 0),
    }
    body = """
    n = {tile}
    at = tk.bid(0) * n + tk.arange(n)
    tk.{op}(y, tk.gather(b, at, mask=at < k), tk.gather(a, at, mask=at < k), mask=at < k)
    """
    for op, (kinds, ufunc, start) in table.items():
        if op not in OPS:
            continue
        for dtype in kinds:
            for n, tile in SIZES:

                def make(rng: Any, n: int = n, dtype: Any = dtype) -> Any:
                    # Small whole numbers: sums of floats are exact in any order.
                    small = rng.integers(-1 if dtypes.is_float(dtype) or dtype.kind == "i" else 0, 2, n)
                    values = small.astype(dtype) if dtypes.is_float(dtype) else modest(rng, (n,), dtype)
                    return [values, _places(rng, n, 32, np.int32)]

                def expected(x: Any, at: Any, n: int, ufunc: Any = ufunc, start: Any = start) -> Any:
                    wide = np.float64 if dtypes.is_float(x.dtype) else x.dtype
                    made = np.full(32, start, wide)
                    ufunc.at(made, at, x.astype(wide))
                    return made.astype(x.dtype)

                yield Case(
                    op, "few places", body.format(tile=tile, op=op), (32,), dtype, (32,), make, expected, scalars=(n,), start=start,
                    role="scattered", grid=(-(-n // tile), 1, 1),
                )  # fmt: skip
    yield from _tiles()
    exchange = {
        "atomic_xchg": "old = tk.atomic_xchg(y, at, tk.gather(a, at, mask=at < k), mask=at < k)",
        "atomic_cas": "old = tk.atomic_cas(y, at, 0, tk.gather(a, at, mask=at < k), mask=at < k)",
    }
    for op, line in exchange.items():
        if op in OPS:
            for dtype in [*_WORDS, *FLOATS[2:]]:
                for n, tile in SIZES:
                    yield Case(
                        op, "each its own", f"at = tk.bid(0) * {tile} + tk.arange({tile})\n{line}", (n,), dtype, (tile,),
                        lambda rng, n=n, dtype=dtype: [modest(rng, (n,), dtype)], lambda x, n: x, scalars=(n,), start=0,
                        role="scattered", grid=(-(-n // tile), 1, 1),
                    )  # fmt: skip


def _tiles() -> Iterator[Case]:
    """Tiles are added to a tensor, each by three blocks; some hang over the edge."""
    body = """
    at = (tk.bid(0), tk.bid(1))
    tk.atomic_add_tile(y, at, tk.load(a, at, {tile}))
    """
    if "atomic_add_tile" not in OPS:
        return
    for dtype in [*_WORDS, *FLOATS]:
        for edge in ("plain", "unaligned", "strided", "fortran"):
            for shape, tile in [((64, 128), (16, 64)), ((40, 100), (16, 64)), ((33, 67), (8, 32)), ((130, 50), (64, 64))]:
                yield Case(
                    "atomic_add_tile", "each three times", body.format(tile=tile), shape, dtype, tile,
                    lambda rng, shape=shape, dtype=dtype: [rng.integers(0, 9, shape).astype(dtype)],
                    lambda x: x * np.asarray(3, x.dtype), edge=edge, start=0, role="scattered",
                    grid=(-(-shape[0] // tile[0]), -(-shape[1] // tile[1]), 3),
                )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------------- random


def philox(counter: list[Any], seed: int) -> list[Any]:
    """Philox4x32-10, after the paper."""
    c = [np.asarray(word, np.uint64) for word in counter]
    key, low, half = [seed % 2**32, seed >> 32], np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> half) ^ c[1] ^ np.uint64(key[0]), q & low, (p >> half) ^ c[3] ^ np.uint64(key[1]), p & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return [word.astype(np.uint32) for word in c]


def randoms() -> Iterator[Case]:
    """Uniform numbers and words, bit by bit."""
    bits = {tk.float16: 11, tk.bfloat16: 8, tk.float32: 24}
    seeds = [0, 12345, 2**40 + 17]
    for n, tile in SIZES:
        for seed in seeds:
            for dtype, kept in bits.items():

                def uniform(seed: int, n: int = n, dtype: Any = dtype, kept: int = kept) -> Any:
                    at = np.arange(n, dtype=np.uint64)
                    zero = np.zeros_like(at)
                    words = np.stack(philox([at >> np.uint64(2), zero, zero, zero], seed))
                    word = words[at.astype(int) % 4, np.arange(n)]
                    return ((word >> np.uint32(32 - kept)) / 2.0**kept).astype(dtype)

                yield Case(
                    "rand", f"seed {seed}", f"y.store(tk.rand(k, tk.arange({tile}, start={tile} * tk.bid(0)), y.dtype))", (n,), dtype,
                    (tile,), lambda rng: [], uniform, scalars=(seed,),
                )  # fmt: skip
            for word in range(4):
                yield Case(
                    "philox", f"word {word}, seed {seed}", f"y.store(tk.philox(k, tk.load_tile_like(a, y), 7)[{word}])", (n,), tk.uint32,
                    (tile,), lambda rng, n=n: [bits_of(rng, (n,), tk.uint32)],
                    lambda x, seed, word=word: philox([x, np.full_like(x, 7), np.zeros_like(x), np.zeros_like(x)], seed)[word],
                    scalars=(seed,),
                )  # fmt: skip
            for dtype in INTEGERS:
                yield Case(
                    "randint", f"seed {seed}", f"y.store(tk.randint(k, tk.arange({tile}, start={tile} * tk.bid(0)), 3, 100, y.dtype))",
                    (n,), dtype, (tile,), lambda rng: [], lambda seed, n=n, dtype=dtype: _below(seed, n, 3, 97).astype(dtype), scalars=(seed,),
                )  # fmt: skip
            yield Case(
                "randn", f"seed {seed}", f"y.store(tk.randn(k, tk.arange({tile}, start={tile} * tk.bid(0))))", (n,), tk.float32, (tile,),
                lambda rng: [], lambda seed, n=n: _normal(seed, n), scalars=(seed,),
            )  # fmt: skip


def _below(seed: int, n: int, low: int, span: int) -> Any:
    at = np.arange(n, dtype=np.uint64)
    zero = np.zeros_like(at)
    words = np.stack(philox([at >> np.uint64(1), zero, zero + np.uint64(2), zero], seed))
    first, column = 2 * (at.astype(int) % 2), np.arange(n)
    upper, lower = words[first, column], words[first + 1, column]
    return np.array([low + (((int(a) << 32 | int(b)) * span) >> 64) for a, b in zip(upper, lower, strict=True)], np.int64)


def _normal(seed: int, n: int) -> Any:
    from tilekit import api

    # Its own reference, operation by operation, is tests/api/test_random.py's; here the two ways to draw must agree.
    return api.randn(0, 1, n, seed=seed).to_host().sync()


FAMILIES = [gathers, scatters, atomics, randoms]
