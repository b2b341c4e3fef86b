"""Products of matrices: every pair of dtypes, tiles larger and smaller than an instruction's, batches, turned operands, loops."""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from scale import Case, Near

import tilekit as tk
from cases.values import modest

PAIRS: list[tuple[Any, Any]] = [
    (tk.float16, tk.float16), (tk.bfloat16, tk.bfloat16), (tk.float32, tk.float32), (tk.float64, tk.float64), (tk.int8, tk.int8),
    (tk.uint8, tk.int8), (tk.uint8, tk.uint8), (tk.float8_e4m3fn, tk.float8_e4m3fn), (tk.float8_e5m2, tk.float8_e4m3fn),
]  # fmt: skip
SHAPES = [  # M, N, K
    (1, 1, 1), (1, 64, 32), (64, 1, 16), (2, 4, 8), (8, 8, 4), (16, 8, 16), (16, 16, 128), (32, 32, 32), (64, 32, 2), (128, 64, 32),
    (32, 128, 64), (64, 64, 1), (4, 256, 16), (256, 16, 8),
]  # fmt: skip


def added_up_in(a: Any, b: Any) -> Any:
    """The dtype of an accumulator."""
    if a.itemsize == 1:
        return tk.int32 if a.kind in "iu" else tk.float32
    return tk.float64 if a == tk.float64 else tk.float32


def near(a: Any, b: Any, c: Any, dtype: Any, *, tf32: bool = False) -> Any:
    """The product and its bound, as `tilekit.lang.matmul` states it; of integers the product itself."""
    if a.dtype.itemsize == 1 and a.dtype.kind in "iu":
        return (a.astype(np.int64) @ b.astype(np.int64) + c.astype(np.int64)).astype(np.int32)
    wide = np.longdouble if a.dtype == tk.float64 else np.float64
    x, y, z = (v.astype(wide) for v in (a, b, c))
    size = abs(x) @ abs(y) + abs(z)
    step = 2.0**-52 if a.dtype == tk.float64 else 2.0**-22
    rounded = 2.01 * 2.0**-11 * (abs(x) @ abs(y)) if tf32 else 0.0
    return Near(x @ y + z, ulp=0.5, absolute=a.shape[-1] * step * size + rounded)


def _three(rng: np.random.Generator, m: int, n: int, k: int, dtypes: tuple[Any, Any, Any]) -> list[Any]:
    """Both operands and an accumulator."""
    return [modest(rng, shape, dtype) for shape, dtype in zip(((m, k), (k, n), (m, n)), dtypes, strict=True)]


def products() -> Iterator[Case]:
    """`tk.mma`, `tk.matmul` and `@` of one tile each."""
    for first, second in PAIRS:
        acc = added_up_in(first, second)
        for m, n, k in SHAPES:
            name = f"{first.name} {m}x{k} and {second.name} {k}x{n}"
            load = f"t, u = tk.load(a, (0, 0), ({m}, {k})), tk.load(b, (0, 0), ({k}, {n}))\n"
            make = functools.partial(_three, m=m, n=n, k=k, dtypes=(first, second, acc))
            for precision in ("ieee", "tf32") if first == tk.float32 else ("ieee",):
                yield Case(
                    "mma", f"{name}, {precision}", load + f"y.store(tk.mma(t, u, tk.load(c, (0, 0), ({m}, {n})), precision='{precision}'))", (m, n), acc, (m, n),
                    make, lambda a, b, c, acc=acc, precision=precision: near(a, b, c, acc, tf32=precision == "tf32"),
                )  # fmt: skip
            result = first if first.itemsize > 1 else acc
            for text in ("tk.matmul(t, u)", "t @ u"):
                yield Case(
                    "matmul", f"{name}, {text}", load + f"y.store({text})", (m, n), result, (m, n),
                    lambda rng, make=make: make(rng)[:2], lambda a, b, result=result: near(a, b, np.zeros(1, result), result),
                )  # fmt: skip


def _whole(rng: np.random.Generator, shape: Any, dtype: Any) -> Any:
    """Numbers whose sums are exact, in any order."""
    return rng.integers(0 if dtype == tk.uint8 else -1, 2, shape).astype(dtype)


def turned() -> Iterator[Case]:
    """Operands that lie otherwise in memory, transposed tiles, batches, vectors, results that are operands again."""
    for first, second in PAIRS:
        acc = added_up_in(first, second)
        pair = f"{first.name}, {second.name}"
        for m, n, k in ((64, 32, 64), (16, 128, 32), (128, 16, 16)):
            loads = {
                "both turned": (f"tk.load(a, (0, 0), ({k}, {m})).transpose()", f"tk.load(b, (0, 0), ({n}, {k})).transpose()"),
                "orders": (f"tk.load(a, (0, 0), ({m}, {k}), order='F')", f"tk.load(b, (0, 0), ({k}, {n}), order='F')"),
            }
            for what, (t, u) in loads.items():
                yield Case(
                    "mma", f"{pair} {m}x{n}x{k}, {what}", f"y.store(tk.mma({t}, {u}, tk.ones(({m}, {n}), tk.{acc.name})))", (m, n), acc, (m, n),
                    lambda rng, m=m, n=n, k=k, first=first, second=second: [_whole(rng, (k, m), first), _whole(rng, (n, k), second)],
                    lambda a, b, acc=acc: (a.T.astype(np.float64) @ b.T.astype(np.float64) + 1).astype(acc),
                )  # fmt: skip
        for m, n, k in ((64, 64, 64), (64, 128, 128 if first.itemsize < 8 else 64), (16, 32, 32)):
            body = (
                f"acc = tk.zeros(({m}, {n}), tk.{acc.name})\n"
                f"for t, u in tk.pipelined(a.tiles(({m}, {k}))[0, :], b.tiles(({k}, {n}))[:, 0]):\n"
                "    acc = tk.mma(t, u, acc)\ny.store(acc)"
            )
            yield Case(
                "pipelined", f"{pair} {m}x{n}x{3 * k}", body, (m, n), acc, (m, n),
                lambda rng, m=m, n=n, k=k, first=first, second=second: [_whole(rng, (m, 3 * k), first), _whole(rng, (3 * k, n), second)],
                lambda a, b, acc=acc: (a.astype(np.float64) @ b.astype(np.float64)).astype(acc),
            )  # fmt: skip
        for batch, m, n, k in ((2, 16, 32, 32), (8, 4, 8, 16), (1, 32, 32, 16)):
            t, u, z = (
                f"tk.load({x}, (0, 0, 0), {s})" for x, s in (("a", (batch, m, k)), ("b", (batch, k, n)), ("c", (batch, m, n)))
            )
            yield Case(
                "mma", f"{pair} batch of {batch}, {m}x{n}x{k}", f"y.store(tk.mma({t}, {u}, {z}))", (batch, m, n), acc, (batch, m, n),
                lambda rng, batch=batch, m=m, n=n, k=k, first=first, second=second, acc=acc: [_whole(rng, (batch, m, k), first), _whole(rng, (batch, k, n), second), _whole(rng, (batch, m, n), acc)],
                lambda a, b, c, acc=acc: (a.astype(np.float64) @ b.astype(np.float64) + c).astype(acc),
            )  # fmt: skip
        if first == second and first.itemsize > 1:
            for shape, other in (((64,), (64, 32)), ((32, 64), (64,))):
                y = (np.zeros(shape) @ np.zeros(other)).shape
                t, u = (f"tk.load({x}, {(0,) * len(s)}, {s})" for x, s in (("a", shape), ("b", other)))
                yield Case(
                    "matmul", f"{pair} {shape} and {other}", f"y.store({t} @ {u})", y, first, y,
                    lambda rng, shape=shape, other=other, first=first: [_whole(rng, shape, first), _whole(rng, other, first)],
                    lambda a, b, first=first: (a.astype(np.float64) @ b.astype(np.float64)).astype(first),
                )  # fmt: skip
            for m, n, k in ((32, 64, 16), (16, 16, 64), (64, 32, 32)):
                body = f"t = tk.load(a, (0, 0), ({m}, {k})) @ tk.load(b, (0, 0), ({k}, {n}))\ny.store((t * (t > 0).astype(t.dtype)) @ tk.load(c, (0, 0), ({n}, {k})))"
                yield Case(
                    "matmul", f"{pair} {m}x{n}x{k}, twice", body, (m, k), first, (m, k),
                    lambda rng, m=m, n=n, k=k, first=first: [_sparse(rng, (m, k), first), _sparse(rng, (k, n), first), _sparse(rng, (n, k), first)],
                    lambda a, b, c, first=first: (np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0) @ c.astype(np.float64)).astype(first),
                )  # fmt: skip


def _sparse(rng: np.random.Generator, shape: Any, dtype: Any) -> Any:
    return (_whole(rng, shape, dtype).astype(np.float32) * (rng.random(shape) < 0.2)).astype(dtype)


def loops() -> Iterator[Case]:
    """Products of whole matrices, of any extents, `k` by `k`."""
    for first, second in PAIRS:
        acc = added_up_in(first, second)
        for rows, columns, depth in ((64, 64, 128), (100, 72, 50), (33, 31, 17), (64, 96, 1)):
            for bm, bn, bk in ((32, 32, 16), (16, 64, 64), (64, 32, 8)):
                body = f"""
                    total = tk.zeros(({bm}, {bn}), tk.{acc.name})
                    for k in range(tk.cdiv(a.shape[1], {bk})):
                        total = tk.mma(tk.load(a, (tk.bid(0), k), ({bm}, {bk})), tk.load(b, (k, tk.bid(1)), ({bk}, {bn})), total)
                    y.store(total)
                """
                yield Case(
                    "mma", f"{first.name}, {second.name} {rows}x{columns}x{depth} by {bm}x{bn}x{bk}", body, (rows, columns), acc, (bm, bn),
                    lambda rng, rows=rows, columns=columns, depth=depth, first=first, second=second: [modest(rng, (rows, depth), first), modest(rng, (depth, columns), second)],
                    lambda a, b, acc=acc: near(a, b, np.zeros(1, acc), acc),
                )  # fmt: skip


FAMILIES = [products, turned, loops]
