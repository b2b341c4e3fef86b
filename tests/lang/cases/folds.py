"""Reductions, scans and sorts along every dimension; how often values occur."""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scale import Case, Near

import tilekit as tk
from cases.values import INTEGERS, NUMBERS, any_of, modest
from tilekit import dtypes
from tilekit.lang.registry import OPS

AXES: list[tuple[tuple[int, ...], Any]] = [
    ((64,), None), ((2048,), 0), ((1, 512), 1), ((8, 128), 1), ((8, 128), 0), ((128, 8), 0), ((32, 64), None), ((4, 8, 32), 1),
    ((4, 8, 32), (0, 2)), ((2, 16, 4, 8), (0, 1, 2)), ((1, 1), None),
]  # fmt: skip
_HALF = {tk.float16: 2.0**-11, tk.bfloat16: 2.0**-8, tk.float32: 2.0**-24, tk.float64: 2.0**-53}


def _summed(dtype: Any) -> Any:
    """The dtype of a sum."""
    if dtypes.is_float(dtype) or dtype.itemsize >= 4:
        return dtype
    return tk.uint32 if dtype.kind == "u" else tk.int32


def _bound(dtype: Any, size: Any, exact: Any) -> Any:
    """How far a sum may be off: its own rounding, and one for each of its levels of a tree, in float32 for 16-bit floats."""
    wide = 2.0**-24 if dtype.itemsize == 2 else _HALF[dtype]
    return _HALF[dtype] * np.abs(exact) * 1.01 + 16 * wide * size


def _exact(dtype: Any) -> Any:
    return np.longdouble if dtype == tk.float64 else np.float64


def sums(x: Any, axis: Any) -> Any:
    """The sum, with its bound."""
    if not dtypes.is_float(x.dtype):
        return np.asarray(np.sum(x, axis, dtype=_summed(x.dtype)))
    wide = x.astype(_exact(x.dtype))
    exact, size = np.sum(wide, axis), np.sum(np.abs(wide), axis)
    return Near(np.asarray(exact), absolute=_bound(x.dtype, size, exact))


def products(x: Any, axis: Any) -> Any:
    """The product, with its bound."""
    if not dtypes.is_float(x.dtype):
        return np.asarray(np.prod(x, axis, dtype=_summed(x.dtype)))
    exact = np.prod(x.astype(_exact(x.dtype)), axis)
    count = x.size // max(1, exact.size)
    wide = 2.0**-24 if x.dtype.itemsize == 2 else _HALF[x.dtype]
    return Near(np.asarray(exact), ulp=0.5, absolute=np.abs(exact) * wide * (count + 1))


def _ones(rng: Any, shape: Any, dtype: Any) -> Any:
    """Factors whose product stays in range."""
    if dtypes.is_float(dtype):
        return rng.uniform(0.97, 1.03, shape).astype(dtype)
    return rng.integers(1, 4, shape).astype(dtype)


def _flags(rng: Any, shape: Any, dtype: Any) -> Any:
    return (rng.random(shape) < rng.choice([0.02, 0.98])).astype(dtype)


def reductions() -> Iterator[Case]:
    """Each reduction over every shape and dtype."""
    table: list[tuple[str, list[Any], Any, Any, Any]] = [
        ("sum", [tk.bool_, *NUMBERS], modest, sums, _summed),
        ("prod", NUMBERS, _ones, products, _summed),
        ("max", NUMBERS, modest, lambda x, axis: np.asarray(np.max(x, axis)), None),
        ("min", NUMBERS, modest, lambda x, axis: np.asarray(np.min(x, axis)), None),
        ("argmax", NUMBERS, modest, lambda x, axis: np.asarray(np.argmax(x, axis)).astype(np.int32), lambda _: tk.int32),
        ("argmin", NUMBERS, modest, lambda x, axis: np.asarray(np.argmin(x, axis)).astype(np.int32), lambda _: tk.int32),
        ("any", [tk.bool_, tk.int32, tk.float32], _flags, lambda x, axis: np.asarray(np.any(x != 0, axis)), lambda _: tk.bool_),
        ("all", [tk.bool_, tk.int32, tk.float32], _flags, lambda x, axis: np.asarray(np.all(x != 0, axis)), lambda _: tk.bool_),
    ]
    for op, kinds, make, reference, result in table:
        for dtype in kinds:
            for shape, axis in AXES:
                if op.startswith("arg") and isinstance(axis, tuple):
                    continue
                y = np.sum(np.zeros(shape), axis, keepdims=True).shape
                body = f"y.store(tk.{op}(tk.load(a, {(0,) * len(shape)}, {shape}), {axis}, keepdims=True).reshape({y}))"
                yield Case(
                    op, f"{dtype.name} {shape} along {axis}", body, y, result(dtype) if result else dtype, y,
                    lambda rng, make=make, shape=shape, dtype=dtype: [make(rng, shape, dtype)],
                    lambda x, reference=reference, axis=axis, y=y: _shaped(reference(x, axis), y),
                )  # fmt: skip


def _shaped(found: Any, shape: Any) -> Any:
    if isinstance(found, Near):
        return Near(found.exact.reshape(shape), found.ulp, np.asarray(found.absolute).reshape(shape))
    return found.reshape(shape)


def folds() -> Iterator[Case]:
    """A function of the kernel's own as what folds."""
    if "reduce" not in OPS:
        return
    for dtype in NUMBERS:
        for shape, axis in [((64,), 0), ((8, 64), 1), ((64, 8), 0), ((4, 8, 32), 1)]:
            y = np.sum(np.zeros(shape), axis, keepdims=True).shape
            load = f"tk.load(a, {(0,) * len(shape)}, {shape})"
            body = f"y.store(tk.reduce({load}, {axis}, lambda u, v: tk.maximum(u, v), keepdims=True))"
            yield Case(
                "reduce", f"maximum of {dtype.name} {shape} along {axis}", body, y, dtype, y,
                lambda rng, shape=shape, dtype=dtype: [modest(rng, shape, dtype)],
                lambda x, axis=axis: np.max(x, axis, keepdims=True),
            )  # fmt: skip
            body = f"y.store(tk.scan({load}, {axis}, lambda u, v: tk.minimum(u, v)))"
            yield Case(
                "scan", f"minimum of {dtype.name} {shape} along {axis}", body, shape, dtype, shape,
                lambda rng, shape=shape, dtype=dtype: [modest(rng, shape, dtype)],
                lambda x, axis=axis: np.minimum.accumulate(x.astype(np.float64) if dtypes.is_float(x.dtype) else x, axis).astype(x.dtype),
            )  # fmt: skip


LONG = [((64,), 0), ((1024,), 0), ((4, 256), 1), ((64, 16), 0), ((4, 8, 16), 1), ((1, 32), 1)]


def scans() -> Iterator[Case]:
    """Running sums and products."""
    for op in ("cumsum", "cumprod"):
        if op not in OPS:
            continue
        for dtype in [tk.bool_, *NUMBERS] if op == "cumsum" else NUMBERS:
            for shape, axis in LONG:
                for reverse in (False, True):
                    body = f"y.store(tk.{op}(tk.load(a, {(0,) * len(shape)}, {shape}), {axis}, reverse={reverse}))"
                    make = _ones if op == "cumprod" else modest
                    yield Case(
                        op, f"{dtype.name} {shape} along {axis}{', reverse' * reverse}", body, shape, _summed(dtype), shape,
                        lambda rng, shape=shape, dtype=dtype, make=make: [make(rng, shape, dtype)],
                        lambda x, op=op, axis=axis, reverse=reverse: _running(op, x, axis, reverse),
                    )  # fmt: skip


def _running(op: str, x: Any, axis: int, reverse: bool) -> Any:
    def accumulate(array: Any, dtype: Any) -> Any:
        array = np.flip(array, axis) if reverse else array
        made = getattr(np, op)(array, axis=axis, dtype=dtype)
        return np.flip(made, axis) if reverse else made

    if not dtypes.is_float(x.dtype):
        return np.ascontiguousarray(accumulate(x, _summed(x.dtype)))
    wide = _exact(x.dtype)
    exact = accumulate(x.astype(wide), wide)
    if op == "cumsum":
        return Near(exact, absolute=_bound(x.dtype, accumulate(np.abs(x.astype(wide)), wide), exact) * 2)
    step = 2.0**-24 if x.dtype.itemsize == 2 else _HALF[x.dtype]
    return Near(exact, ulp=0.5, absolute=np.abs(exact) * step * (x.shape[axis] + 2))


def sorts() -> Iterator[Case]:
    """Sorted tiles, and the places where the elements were."""
    for dtype in NUMBERS:
        for shape, axis in LONG:
            for down in (False, True):
                load = f"tk.load(a, {(0,) * len(shape)}, {shape})"
                make = lambda rng, shape=shape, dtype=dtype: [modest(rng, shape, dtype)]  # noqa: E731
                name = f"{dtype.name} {shape} along {axis}{', descending' * down}"
                if "sort" in OPS:
                    yield Case(
                        "sort", name, f"y.store(tk.sort({load}, {axis}, descending={down}))", shape, dtype, shape, make,
                        lambda x, axis=axis, down=down: _sorted(x, axis, down),
                    )  # fmt: skip
                if "argsort" in OPS:
                    yield Case(
                        "argsort", name, f"y.store(tk.argsort({load}, {axis}, descending={down}))", shape, tk.int32, shape, make,
                        lambda x, axis=axis, down=down: _order(x, axis, down),
                    )  # fmt: skip
                if "topk" in OPS and axis == len(shape) - 1:
                    k = 8
                    y = (*shape[:-1], k)
                    for which, result in (("[0]", dtype), ("[1]", tk.int32)):
                        yield Case(
                            "topk", name + which, f"y.store(tk.topk({load}, {k}, {axis}, largest={down}){which})", y, result, y, make,
                            lambda x, axis=axis, down=down, k=k, which=which: _best(x, axis, down, k, which),
                        )  # fmt: skip


def _keys(x: Any) -> Any:
    return x.astype(np.float64) if dtypes.is_float(x.dtype) else x.astype(object)


def _order(x: Any, axis: int, down: bool) -> Any:
    """Stable, also where it goes down."""
    keys = _keys(x)
    return np.ascontiguousarray(np.argsort(-keys if down else keys, axis, kind="stable")).astype(np.int32)


def _sorted(x: Any, axis: int, down: bool) -> Any:
    return np.ascontiguousarray(np.take_along_axis(x, _order(x, axis, down).astype(np.int64), axis))


def _best(x: Any, axis: int, down: bool, k: int, which: str) -> Any:
    order = _order(x, axis, down)
    found = _sorted(x, axis, down) if which == "[0]" else order
    return np.ascontiguousarray(found[..., :k])


def counts() -> Iterator[Case]:
    """How often values occur: of tiles smaller and larger than a block, among them values that are no bins."""
    for dtype in INTEGERS:
        for shape in [(1,), (16,), (256,), (4096,), (8, 64), (64, 8), (4, 8, 32)]:
            for bins in (1, 32, 512):
                load = f"t = tk.load(a, {(0,) * len(shape)}, {shape})\n"
                make = lambda rng, shape=shape, dtype=dtype: [_near_bins(rng, shape, dtype)]  # noqa: E731
                for masked in (False, True):
                    body = f"{load}y.store(tk.histogram(t, {bins}{', mask=t != 3' * masked}))"
                    yield Case(
                        "histogram", f"{dtype.name} {shape}{', masked' * masked}", body, (bins,), tk.int32, (bins,), make,
                        lambda x, bins=bins, masked=masked: _counted(x[x != 3] if masked else x, bins),
                    )  # fmt: skip


def _near_bins(rng: Any, shape: Any, dtype: Any) -> Any:
    few, any_ = rng.integers(-3 if dtype.kind == "i" else 0, 40, shape).astype(dtype), any_of(rng, shape, dtype)
    return np.where(rng.random(shape) < 0.7, few, any_).astype(dtype)


def _counted(x: Any, bins: int) -> Any:
    return np.array([np.count_nonzero(x == k) if k <= np.iinfo(x.dtype).max else 0 for k in range(bins)], np.int32)


FAMILIES = [reductions, folds, scans, sorts, counts]
