"""Every operation on floats, and every conversion, over the values that are special: the table and its expectations.

Zeros of both signs, subnormal numbers, the smallest normal and the largest, infinities, NaNs of both signs, exact halves, what
lies at the limits of the integers; of 16-bit and 8-bit floats every value there is. What is expected comes from `semantics`. What
no device promises is in `EXCEPTIONS`, with its reason; for all else a result is wrong if it is not the one, or not within the
bound that the documentation states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import semantics
from programs import dtype_text
from running import kernel_of, wrong
from semantics import cast
from values import BOOL, DTYPES, EIGHTS, F16, F32, F64, FLOATS, INT32, Array, DType, Value, certain, is_float, step, wide

import tilekit as tk
from tilekit import api

MODES = ["nearest_even", "zero", "negative_inf", "positive_inf"]
EXCEPTIONS = {
    "astype": "a float outside the range of an integer type gives a value that depends on the device (tk.astype)",
    "bitcast": "the sign and the payload of a NaN are nobody's promise (docs/concepts/dtypes-and-promotion.md)",
    "copysign": "the sign of a NaN is nobody's promise (docs/concepts/dtypes-and-promotion.md)",
    "minimum": "of zeros of both signs either may be the smaller (docs/concepts/dtypes-and-promotion.md)",
    "maximum": "as for minimum",
    "clip": "as for minimum",
    "min": "as for minimum",
    "max": "as for minimum",
    "sort": "zeros of both signs are equal, and one may stand for the other (docs/concepts/dtypes-and-promotion.md)",
    "sign": "of a zero's sign nothing is said",
    "floordiv": "a quotient that its dtype does not hold is rounded twice: two units in the last place",
    "divmod": "as for floordiv",
    "truediv approx": "divisors beyond 2**126, and subnormal ones, give 0 or an infinity (tk.truediv)",
    "sqrt approx": "its bound is for normal numbers",
    "exp approx": "a result that is subnormal may be 0",
    "tanh approx": "its bound is for normal numbers",
    "pow": "a result next to the largest number may be an infinity",
    "exp": "as for pow", "exp2": "as for pow", "expm1": "as for pow", "sinh": "as for pow", "cosh": "as for pow",
    "rsqrt": "as for pow", "tan": "as for pow", "erfc": "as for pow",
}  # fmt: skip


def special(dtype: DType, few: bool = False) -> Array:
    """The special values of a float type; fewer where triples of them are tried."""
    info = ml_dtypes.finfo(dtype)
    largest, tiny, smallest, eps = (float(v) for v in (info.max, info.tiny, info.smallest_subnormal, info.eps))
    values = [0.0, smallest, tiny - smallest, tiny, 0.5, 1.0, 1.5, 3.0, largest]
    if not few:
        values += [3 * smallest, 2.5 * tiny, eps, 0.25, 0.75, 1 + eps, 2.0, 2.5, 7.0, 10.0, 88.75, 126.5, 128.0, 149.5]
        values += [1 / eps, 1 / eps + 1, largest / 3, largest / 2]
    values += [] if dtype == EIGHTS[0] else [np.inf]
    made = np.array([*values, *(-v for v in values)]).astype(dtype)
    nan = np.array([np.nan, -np.nan], np.float64).astype(dtype)
    nan = np.where(np.signbit(nan.astype(np.float64)) == [False, True], nan, -nan).astype(dtype)
    return np.concatenate([made, nan])


@functools.cache
def every(dtype: DType) -> Array:
    """Every value of 8 and 16 bits; of wider floats special ones, bits at random, and ordinary numbers."""
    if dtype.itemsize <= 2:
        made = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype)
        nan = np.isnan(wide(made))  # of NaNs quiet ones of both signs
        return np.concatenate([made[~nan], special(dtype)])
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 256, (3000, dtype.itemsize), np.uint8).view(dtype).reshape(-1)
    limits = [v + f for b in (7, 8, 15, 16, 31, 32, 63, 64) for v in (2.0**b, -(2.0**b)) for f in (-1, -0.5, 0, 0.5, 1)]
    limits += [n / 2 for n in range(-9, 10)] + [255.9, -128.9, 65504.0, 65519.9, 65520.0, 448.0, 464.0, 464.1, 480.0]
    bits = np.where(np.isnan(wide(bits)), dtype.type(1), bits)
    return np.concatenate([special(dtype), bits, (rng.normal(0, 10, 500)).astype(dtype), np.array(limits).astype(dtype)])


@functools.cache
def whole(dtype: DType) -> Array:
    """Integers: near the limits, near powers of two, where they are rounded."""
    if dtype == BOOL:
        return np.array([False, True])
    limits, rng = np.iinfo(dtype), np.random.default_rng(5)
    near = {limits.min, limits.max, 0, 1, limits.max - 1, limits.max // 2}
    for b in range(64):
        for f in range(-3, 4):
            near |= {
                (1 << b) + f,
                -(1 << b) + f,
                3 * (1 << b) + f,
                *((1 << b) + (1 << max(b - s, 0)) + f for s in (8, 9, 12, 25)),
            }
    inside = sorted(v for v in near if limits.min <= v <= limits.max)
    return np.concatenate([np.array(inside, dtype), rng.integers(limits.min, limits.max, 400, dtype, endpoint=True)])


@dataclass(frozen=True)
class Row:
    """One operation: its name, its text with a, b and c, what it gives, and of what dtype."""

    op: str
    text: str
    expected: Callable[..., Value]
    result: DType
    slow: bool = False  # of every value: an expectation that is computed one by one


def unary(dtype: DType) -> Iterator[Row]:
    """Of one operand `a`."""
    for name, text, f in [
        ("negative", "-a", semantics.negative), ("abs", "tk.abs(a)", lambda a: Value(np.abs(a.array))),
        ("sqrt", "tk.sqrt(a)", semantics.roots), ("sum", "a + 0.0", lambda a: semantics.add(a, Value(np.zeros((), dtype)))),
        ("mul", "a * 1.0", lambda a: a), ("sub", "a - a", lambda a: semantics.sub(a, a)),
        ("pow", "a ** 2", lambda a: semantics.mul(a, a)),
        ("truediv", "1.0 / a", lambda a: semantics.quotient(Value(np.ones((), dtype)), a)),
        ("truediv", "a / 3.0", lambda a: semantics.quotient(a, Value(np.array(3.0).astype(dtype)))),
    ]:  # fmt: skip
        yield Row(name, text, f, dtype)
    for name, function in [("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("round", np.rint)]:
        yield Row(name, f"tk.{name}(a)", lambda a, f=function: certain(lambda p: f(wide(p)).astype(p.dtype), a), dtype)
    yield Row("sign", "tk.sign(a)", _sign, dtype)
    for name in semantics.MATHS:
        yield Row(name, f"tk.{name}(a)", lambda a, name=name: semantics.mathematics(name, a), dtype)
    for exponent in (0, 3, 4, 0.5, -1, -0.5, 2.5):
        yield Row("pow", f"a ** {exponent}", lambda a, e=exponent: _power(a, Value(np.array(e).astype(dtype))), dtype)
    yield Row("pow", "2.0 ** a", lambda a: _power(Value(np.array(2.0).astype(dtype)), a), dtype)
    for name, function in [
        ("isnan", np.isnan),
        ("isinf", np.isinf),
        ("isfinite", np.isfinite),
        ("logical_not", lambda p: p == 0),
    ]:
        yield Row(name, f"tk.{name}(a)", lambda a, f=function: certain(lambda p: f(wide(p)), a), BOOL)
    for mode in MODES:
        text = f"tk.sqrt(a, rounding_mode={mode!r})"
        yield Row("sqrt", text, lambda a, mode=mode: semantics.exactly("sqrt", dtype, mode, a), dtype, True)
    if dtype == F32:
        yield from _fast()


def _sign(a: Value) -> Value:
    made = np.sign(wide(a.array))
    return Value(made.astype(a.dtype), np.where(made == 0, semantics.TINY, 0.0))


def _power(a: Value, b: Value) -> Value:
    dtype = a.dtype
    p, q = (
        np.array(v) for v in np.broadcast_arrays(*(v.array.astype(np.longdouble if dtype == F64 else np.float64) for v in (a, b)))
    )
    bound = 1.0 if dtype.itemsize == 2 else 2.0 if dtype == F64 else 4.0
    with np.errstate(all="ignore"):
        exact = np.power(p.reshape(-1), q.reshape(-1)).reshape(p.shape)
    return semantics.near(exact, dtype, bound, a, b)


def _loosened(value: Value, unknown: Any, error: Any = 0.0) -> Value:
    return Value(value.array, np.where(unknown, np.inf, np.maximum(value.off, error)))


def _normal(a: Value) -> Array:
    size = np.abs(wide(a.array))
    return (size >= 2.0**-126) | (size == 0) | np.isnan(size)


def _fast() -> Iterator[Row]:
    """What only float32 has: fewer instructions, and zeros for subnormal numbers."""

    def flush(a: Value) -> Value:
        return semantics.flushed(a)

    def root(a: Value) -> Value:
        made = semantics.roots(a)
        return _loosened(made, ~_normal(a), np.where(np.isfinite(wide(made.array)), 2 * step(made.array, F32), 0.0))

    yield Row("sqrt approx", "tk.sqrt(a, rounding_mode='approx')", root, F32)
    yield Row("sqrt", "tk.sqrt(a, flush_to_zero=True)", lambda a: semantics.roots(flush(a)), F32)
    yield Row("exp", "tk.exp(a, rounding_mode='full')", lambda a: semantics.mathematics("exp", a), F32)

    def exponential(a: Value) -> Value:
        made = semantics.mathematics("exp", a)
        with np.errstate(all="ignore"):
            size = np.abs(wide(a.array))
            bound = np.where(np.isfinite(wide(made.array)) & np.isfinite(size), (2 + 2 * size) * step(made.array, F32), 0.0)
            low = (wide(made.array) < 2.0**-125) & np.isfinite(size)
        return Value(made.array, np.where(low, 2.0**-125, np.where(np.isinf(made.off), np.inf, bound)))

    yield Row("exp approx", "tk.exp(a, rounding_mode='approx')", exponential, F32)

    def tangent(a: Value) -> Value:
        made = semantics.mathematics("tanh", a)
        return Value(made.array, np.where(_normal(a), np.abs(wide(made.array)) * 2.0**-10.8, 2.0**-126))

    yield Row("tanh approx", "tk.tanh(a, rounding_mode='approx')", tangent, F32)
    for name in ("exp2", "rsqrt"):

        def flushed(a: Value, name: str = name) -> Value:
            made = semantics.mathematics(name, flush(a))
            small = (np.abs(wide(made.array)) < 2.0**-125) & np.isfinite(wide(made.array))
            return Value(
                np.where(small & (np.abs(made.array) < 2.0**-126), np.float32(0), made.array),
                np.where(small, 2.0**-125, made.off),
            )

        yield Row(name, f"tk.{name}(a, flush_to_zero=True)", flushed, F32)


def binary(dtype: DType) -> Iterator[Row]:
    """Of two operands `a` and `b`."""
    for name, symbol, function in [("add", "+", semantics.add), ("sub", "-", semantics.sub), ("mul", "*", semantics.mul)]:
        yield Row(name, f"a {symbol} b", function, dtype)
    for name in ("add", "sub", "mul", "truediv"):
        for mode in [None, *MODES]:
            more = "" if mode is None else f", rounding_mode={mode!r}"
            compute = functools.partial(semantics.exactly, name, dtype, mode)
            yield Row(name, f"tk.{name}(a, b{more})", compute, dtype, slow=mode is not None)
        if dtype == F32:

            def flushed(a: Value, b: Value, name: str = name) -> Value:
                return semantics.flushed(semantics.exactly(name, F32, None, semantics.flushed(a), semantics.flushed(b)))

            yield Row(name, f"tk.{name}(a, b, flush_to_zero=True)", flushed, F32)
    for index, (name, text) in enumerate([("floordiv", "a // b"), ("mod", "a % b")]):
        yield Row(name, text, lambda a, b, i=index: semantics.floor_division(a, b)[i], dtype)
        yield Row("divmod", f"divmod(a, b)[{index}]", lambda a, b, i=index: semantics.floor_division(a, b)[i], dtype)
    yield Row("pow", "tk.pow(a, b)", _power, dtype)
    for name, larger in (("minimum", False), ("maximum", True)):
        for keep in (True, False):
            more = "" if keep else ", propagate_nan=False"
            yield Row(name, f"tk.{name}(a, b{more})", lambda a, b, g=larger, k=keep: semantics.extreme(a, b, g, k), dtype)
            if dtype == F32:

                def low(a: Value, b: Value, larger: bool = larger, keep: bool = keep) -> Value:
                    return semantics.extreme(semantics.flushed(a), semantics.flushed(b), larger, keep)

                yield Row(name, f"tk.{name}(a, b{more}, flush_to_zero=True)", low, F32)
    yield Row("copysign", "tk.copysign(a, b)", _copysign, dtype)
    yield Row("atan2", "tk.atan2(a, b)", _atan2, dtype)
    for symbol, function in [("==", np.equal), ("!=", np.not_equal), ("<", np.less), ("<=", np.less_equal), (">", np.greater)]:
        yield Row("comparison", f"a {symbol} b", lambda a, b, f=function: certain(lambda p, q: f(wide(p), wide(q)), a, b), BOOL)
    for name in ("logical_and", "logical_or", "logical_xor"):
        function = getattr(np, name)
        yield Row(
            name, f"tk.{name}(a, b)", lambda a, b, f=function: certain(lambda p, q: f(wide(p) != 0, wide(q) != 0), a, b), BOOL
        )
    yield Row(
        "where", "tk.where(a < b, a, b)", lambda a, b: Value(np.where(wide(a.array) < wide(b.array), a.array, b.array)), dtype
    )
    if dtype == F32:
        for mode in ("full", "approx"):
            name = "truediv approx" if mode == "approx" else "truediv"
            yield Row(name, f"tk.truediv(a, b, rounding_mode={mode!r})", functools.partial(_divided, mode), F32)


def _divided(mode: str, a: Value, b: Value) -> Value:
    made = semantics.quotient(a, b)
    size = np.abs(wide(made.array))
    error = np.where(np.isfinite(size) & (size > 0), 2 * step(made.array, F32), 0.0)
    divisor = np.abs(wide(b.array))
    odd = np.isfinite(divisor) & (divisor > 0) & ((divisor < 2.0**-126) | (divisor > 2.0**126))
    odd |= (size < 2.0**-125) & (size > 0) | ((size > 2.0**127) & np.isfinite(wide(a.array)) & (divisor > 0))
    return _loosened(made, odd & (mode == "approx"), error)


def _copysign(a: Value, b: Value) -> Value:
    made = np.copysign(wide(a.array), wide(b.array)).astype(a.dtype)
    return Value(made, np.where(np.isnan(wide(b.array)) & ~np.isnan(wide(made)), np.inf, 0.0))


def _atan2(a: Value, b: Value) -> Value:
    p, q = (v.array.astype(np.longdouble if a.dtype == F64 else np.float64) for v in (a, b))
    return semantics.near(np.arctan2(p, q), a.dtype, semantics.stated("atan2", a.dtype), a, b)


def ternary(dtype: DType) -> Iterator[Row]:
    """Of three operands."""
    for mode in [None, *MODES]:
        more = "" if mode is None else f", rounding_mode={mode!r}"
        yield Row("fma", f"tk.fma(a, b, c{more})", lambda *v, m=mode: semantics.exactly("fma", dtype, m, *v), dtype)
    if dtype == F32:

        def flushed(*v: Value) -> Value:
            return semantics.flushed(semantics.exactly("fma", F32, None, *map(semantics.flushed, v)))

        yield Row("fma", "tk.fma(a, b, c, flush_to_zero=True)", flushed, F32)
    clipped = lambda a, b, c: semantics.extreme(semantics.extreme(a, b, True), c, False)  # noqa: E731
    yield Row("clip", "tk.clip(a, b, c)", clipped, dtype)


def conversions(dtype: DType) -> Iterator[Row]:
    """To every other dtype; between floats in every rounding mode."""
    for target in DTYPES.values():
        if target != dtype:
            yield Row("astype", f"a.astype({dtype_text(target)})", lambda a, t=target: cast(a, t), target)
            if is_float(dtype) and is_float(target) and not {dtype, target} & set(EIGHTS):
                for mode in MODES:
                    text = f"a.astype({dtype_text(target)}, rounding_mode={mode!r})"
                    yield Row("astype", text, lambda a, t=target, m=mode: cast(a, t, m), target)
        if target != dtype and target.itemsize == dtype.itemsize and BOOL not in (dtype, target):
            yield Row("bitcast", f"tk.bitcast(a, {dtype_text(target)})", functools.partial(_bitcast, target), target)


def _bitcast(target: DType, a: Value) -> Value:
    nan = np.isnan(wide(a.array)) if is_float(a.dtype) else np.zeros(a.array.shape, bool)
    return Value(a.array.view(target), np.where(nan, np.inf, 0.0))


def folds(dtype: DType) -> Iterator[Row]:
    """Of rows of 16 special values."""
    for name, larger in (("max", True), ("min", False)):
        for keep in (True, False):
            more = f"1, keepdims=True, propagate_nan={keep}"
            yield Row(name, f"tk.{name}(a, {more})", lambda a, g=larger, k=keep: semantics.most(a, (1,), True, g, k), dtype)
            text = f"tk.arg{name}(a, {more})"
            yield Row(f"arg{name}", text, lambda a, g=larger, k=keep: semantics.position(a, 1, True, g, k), INT32)
    for descending in (False, True):
        more = f"1, descending={descending}"
        yield Row("sort", f"tk.sort(a, {more})", lambda a, d=descending: semantics.in_order(a, 1, d)[0], dtype)
        yield Row("argsort", f"tk.argsort(a, {more})", lambda a, d=descending: semantics.in_order(a, 1, d)[1], INT32)
        yield Row(
            "topk", f"tk.topk(a, 4, 1, largest={descending})[0]", lambda a, d=descending: semantics.in_order(a, 1, d, 4)[0], dtype
        )
    for name, function in (("any", np.any), ("all", np.all)):
        compute = lambda a, f=function: Value(f(wide(a.array) != 0, axis=1, keepdims=True))  # noqa: E731
        yield Row(name, f"tk.{name}(a, 1, keepdims=True)", compute, BOOL)


def operands(kind: str, dtype: DType, slow: bool) -> list[Array]:
    """What a kind of rows is tried on."""
    if kind == "unary":
        return [special(dtype) if slow and dtype.itemsize == 2 else every(dtype)]
    if kind == "conversions":
        return [every(dtype) if is_float(dtype) else whole(dtype)]
    values = special(dtype, few=kind == "ternary" or (slow and dtype == F64))
    if kind == "ternary" and dtype == F64:
        values = values[::2]
    if kind == "folds":
        rng = np.random.default_rng(11)
        ordinary = rng.integers(-3, 4, (256, 16)).astype(dtype)
        return [np.where(rng.random((256, 1)) < 0.5, ordinary, values[rng.integers(0, len(values), (256, 16))]).astype(dtype)]
    count = 3 if kind == "ternary" else 2
    return [a.reshape(-1) for a in np.meshgrid(*[values] * count, indexing="ij")]


KINDS: dict[str, Callable[[DType], Iterator[Row]]] = {
    "unary": unary, "binary": binary, "ternary": ternary, "conversions": conversions, "folds": folds,
}  # fmt: skip
TILE, MOST = 512, 8


def launched(kind: str, rows: Sequence[Row], inputs: Sequence[Array], meta: bool = False) -> tuple[Any, list[Any]]:
    """One kernel for some rows: the op, and its outputs."""
    shape = inputs[0].shape
    tile = (64, shape[1]) if kind == "folds" else (TILE,)
    body = [
        f"{name} = tk.load(x{name}, {'(tk.bid(0), 0)' if kind == 'folds' else 'tk.bid(0)'}, {tile})"
        for name in "abc"[: len(inputs)]
    ]
    outputs, parts = [], []
    for at, row in enumerate(rows):
        width = (4 if "topk" in row.text else 16 if "sort" in row.text else 1,) if kind == "folds" else ()
        made = (shape[0], *width)
        tensor = api.meta(made, row.result) if meta else api.from_host(np.zeros(made, row.result)).sync()
        outputs.append(tensor)
        parts.append(tensor.partition((tile[0], *width)))
        body.append(f"y{at}.store({row.text})")
    parameters = [*(f"y{at}: tk.Out" for at in range(len(rows))), *(f"x{name}: tk.In" for name in "abc"[: len(inputs)])]
    lines = ["import tilekit as tk", "", "", "@tk.kernel", f"def k({', '.join(parameters)}):", *(f"    {line}" for line in body)]
    given = [api.meta(a.shape, a.dtype) if meta else api.from_host(a).sync() for a in inputs]
    return kernel_of("\n".join(lines) + "\n")(*parts, *given).num_warps(4), outputs


def differences(kind: str, dtype: DType, devices: Sequence[Any]) -> Iterator[str]:
    """What is wrong with the rows of a kind."""
    with np.errstate(all="ignore"):
        yield from _differences(kind, dtype, devices)


def _differences(kind: str, dtype: DType, devices: Sequence[Any]) -> Iterator[str]:
    rows = list(KINDS[kind](dtype))
    for slow in (False, True):
        chosen = [row for row in rows if row.slow == slow]
        inputs = operands(kind, dtype, slow)
        for start in range(0, len(chosen), MOST):
            some = chosen[start : start + MOST]
            expected = [row.expected(*map(Value, inputs)) for row in some]
            for row, value in zip(some, expected, strict=True):
                loose = np.isinf(value.off) | (value.off == semantics.TINY)
                if loose.any() and row.op not in EXCEPTIONS and row.op not in semantics.MATHS:
                    yield f"{row.op} of {dtype.name}: {int(loose.sum())} elements are left out, for no reason of EXCEPTIONS"
            for device in devices:
                with tk.use_device(device):
                    op, outputs = launched(kind, some, inputs)
                    op.sync()
                    results = [y.to_host().sync() for y in outputs]
                for row, value, result in zip(some, expected, results, strict=True):
                    yield from _told(row, inputs, value, result, device, dtype)


def _told(row: Row, inputs: Sequence[Array], value: Value, result: Array, device: Any, dtype: DType) -> Iterator[str]:
    whole_value = Value(np.broadcast_to(value.array, result.shape), value.off)
    bad = wrong(result, whole_value)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        of = [a[place] if a.ndim == 1 else a[place[0]] for a in inputs]
        yield (
            f"{device.kind}: {row.text} of {dtype.name}: {int(bad.sum())} of {bad.size} differ; of {of} it is {result[place]!r}, "
            f"not {whole_value.array[place]!r} +- {whole_value.off[place]:.3g}"
        )


__all__ = ["F16", "FLOATS", "KINDS", "differences"]
