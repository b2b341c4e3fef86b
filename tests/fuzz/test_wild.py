"""Kernels with numbers that are anything: on a CPU device nothing traps, and machine code says what the interpreter says."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

DTYPES = [tk.int8, tk.uint8, tk.int16, tk.uint16, tk.int32, tk.uint32, tk.int64, tk.uint64]
TILE = tk.generics("TILE")


@tk.kernel
def wild(
    y: tk.InOut, x: tk.In, at: tk.In, n: tk.In, f: tk.In, i: int, mode: tk.Const, how: tk.Const, into: tk.Const,
):  # fmt: skip
    where, number = tk.load(at, tk.bid(0), TILE), tk.load(n, tk.bid(0), TILE)
    if how == "//":
        number = number // where.astype(number.dtype)
    elif how == "%":
        number = number % where.astype(number.dtype)
    elif how == "<<":
        number = number << where.astype(number.dtype)
    elif how == ">>":
        number = number >> where.astype(number.dtype)
    else:
        number = tk.load(f, tk.bid(0), TILE).astype(into)
    if mode == "gather":
        tk.scatter(y, tk.bid(0) * TILE + tk.arange(TILE), tk.gather(x, where).astype(y.dtype))
    elif mode == "scatter":
        tk.scatter(y, where, number.astype(y.dtype), mask=where % 2 == 0)
    elif mode == "atomic":
        tk.atomic_add(y, where, number.astype(y.dtype))
    elif mode == "load":
        tk.scatter(y, tk.bid(0) * TILE + tk.arange(TILE), tk.load(x, i, TILE).astype(y.dtype))
    elif mode == "slice":
        tk.scatter(y, tk.bid(0) * TILE + tk.arange(TILE), tk.load(x.slice(0, i, i + 5), 0, TILE).astype(y.dtype))
    else:
        tk.scatter(y, tk.bid(0) * TILE + tk.arange(TILE), number.astype(y.dtype) + i)


@np.errstate(all="ignore")
def draw(seed):
    """The arguments of a launch: mostly numbers that fit, and some that do not."""
    rng = np.random.default_rng(seed)
    tile, blocks = int(2 ** rng.integers(0, 6)), int(rng.integers(1, 5))
    size = tile * blocks

    def integers(dtype, near):
        limits = np.iinfo(dtype)
        ordinary = rng.integers(0, max(1, min(near, int(limits.max))), size)
        edges = [limits.min, limits.max, 0, 1, min(near, limits.max), -1 if limits.min < 0 else limits.max]
        chance = rng.choice([0.0, 0.02, 0.5])
        chosen = [edges[k] if wild else n for k, wild, n in zip(rng.integers(0, 6, size), rng.random(size) < chance, ordinary)]
        return np.array(chosen, dtype)

    kinds = [DTYPES[k] for k in rng.integers(0, len(DTYPES), 3)]
    specials = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0, 1e-45])
    floats = np.where(
        rng.random(size) < 0.3, rng.choice(specials, size), rng.standard_normal(size) * 10.0 ** rng.integers(-3, 12)
    )
    arrays = [
        rng.integers(0, 100, size).astype(np.int64), rng.standard_normal(size).astype(np.float32), integers(kinds[0], size),
        integers(kinds[1], 100), floats.astype(rng.choice([np.float32, np.float64])),
    ]  # fmt: skip
    i = int(rng.choice([0, blocks - 1, blocks, -1, 2**31, -(2**31), 2**62, 3]))
    mode = str(rng.choice(["gather", "scatter", "atomic", "load", "slice", "value"]))
    return arrays, i, mode, str(rng.choice(["//", "%", "<<", ">>", "cast"])), kinds[2], tile, blocks


def outcome(seed, way, monkeypatch):
    """What a launch leaves, or how it is refused."""
    arrays, i, mode, how, into, tile, blocks = draw(seed)
    monkeypatch.setenv("TILEKIT_CPU", way)
    y, *others = (api.from_host(array).sync() for array in arrays)
    kernel = tk.kernel(wild._function)
    with np.errstate(all="ignore"):
        try:
            kernel(y.scattered(), *others, i, mode, how, into).generics(TILE=tile).grid(blocks).sync()
        except (tk.DeviceError, tk.CompileError) as error:
            return f"{type(error).__name__}: {str(error).partition('not known to be finished')[0].partition(' both write ')[0]}"
    return y.to_host().sync().tolist()


@pytest.mark.usefixtures("cpu")
def test_nothing_traps(cases, monkeypatch):
    """With one thread blocks come in order, so that the first that fails is the interpreter's, too. Floats that no integer holds
    become any."""
    monkeypatch.setenv("TILEKIT_CPU_THREADS", "1")
    for seed in cases:
        compiled, interpreted = (outcome(seed, way, monkeypatch) for way in ("compiled", "interpreted"))
        races = isinstance(interpreted, str) and ": blocks (" in interpreted
        unknown = draw(seed)[3] == "cast" and isinstance(compiled, list) and isinstance(interpreted, list)
        assert races or unknown or compiled == interpreted, cases.report(
            seed, f"compiled: {compiled}\ninterpreted: {interpreted}"
        )
