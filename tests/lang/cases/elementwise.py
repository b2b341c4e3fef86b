"""Operations on each element: an expression of tiles p, q, r, and NumPy's."""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scale import Case, Near

import tilekit as tk
from cases.values import (
    FEW,
    FLOATS,
    INTEGERS,
    LINES,
    NUMBERS,
    PLACES,
    PLANES,
    SIGNED,
    WIDE_FLOATS,
    any_of,
    bits_of,
    modest,
)
from tilekit import dtypes
from tilekit.lang.registry import OPS


class Row(NamedTuple):
    """An expression.

    Attributes:
        op: the operation.
        code: an expression of p, q and r.
        reference: the same by NumPy, of arrays of what `wide` gives.
        dtypes: of the operands.
        result: the dtype of the result; that of the operands if it is None.
        ulp: how far off floats may be, by dtype; None for results that are exact.
        second: how the operands after the first are made, if not as the first.
        places: where it is tried.
    """

    op: str
    code: str
    reference: Callable[..., Any]
    dtypes: list[Any]
    result: Any = None
    ulp: Callable[[Any], float] | None = None
    second: Any = None
    first: Any = any_of
    places: Any = PLACES


def _wide(dtype: Any) -> Any:
    """What a result is computed in, before it is rounded."""
    return np.float32 if dtype.itemsize == 2 and dtypes.is_float(dtype) else np.float64 if dtype == tk.float32 else dtype


def _exact_type(dtype: Any) -> Any:
    return np.longdouble if dtype == tk.float64 else np.float64


def _bits(dtype: Any) -> int:
    return 8 * dtype.itemsize


def _distance(rng: Any, shape: Any, dtype: Any) -> Any:
    return rng.integers(0, _bits(dtype) + (dtype.itemsize > 1) * 3, shape).astype(dtype)


def _power(rng: Any, shape: Any, dtype: Any) -> Any:
    return rng.integers(0, 6, shape).astype(dtype) if not dtypes.is_float(dtype) else rng.normal(0, 2, shape).astype(dtype)


def _positive(rng: Any, shape: Any, dtype: Any) -> Any:
    return np.abs(modest(rng, shape, dtype))


def _high(x: Any, y: Any) -> Any:
    bits = _bits(x.dtype)
    product = x.astype(object) * y.astype(object) >> bits
    return np.array(product.tolist(), object).reshape(x.shape).astype(x.dtype)


def _count(function: Callable[[int, int], int]) -> Callable[[Any], Any]:
    def count(x: Any) -> Any:
        bits = _bits(x.dtype)
        flat = [function(int(v) % (1 << bits), bits) for v in x.reshape(-1)]
        return np.array(flat, np.int32).reshape(x.shape)

    return count


def stated(op: str) -> Callable[[Any], float]:
    """The bound of an operation, as its docstring states it; 16-bit floats are computed in float32, and off by their rounding."""
    found = re.search(
        r"[Aa]t most ([\d.]+) (?:ulp|units in the last place) off for float32,? (?:and )?([\d.]+) for float64",
        OPS[op].function.__doc__,
    )
    assert found, f"tk.{op} states no bound"
    return lambda dtype: 1.0 if dtype.itemsize == 2 else float(found[2 if dtype == tk.float64 else 1])


def _vectorised(function: Callable[[float], float]) -> Callable[[Any], Any]:
    return lambda x: np.array([function(float(v)) for v in x.reshape(-1)], x.dtype).reshape(x.shape)


def _math(op: str, reference: Callable[..., Any], **more: Any) -> Row:
    return Row(op, f"tk.{op}(p{', q' if more.get('second') else ''})", reference, FLOATS, None, stated(op), **more)


def rows() -> Iterator[Row]:
    """The table."""
    for op, code, f in [("add", "p + q", np.add), ("sub", "p - q", np.subtract), ("mul", "p * q", np.multiply)]:
        yield Row(op, code, f, NUMBERS)
        yield Row(op, f"tk.{op}(p, q)", f, NUMBERS, places=FEW)
    yield Row("truediv", "p / q", np.true_divide, FLOATS)
    yield Row("truediv", "tk.truediv(p, q)", np.true_divide, FLOATS, places=FEW)
    yield Row("floordiv", "p // q", np.floor_divide, INTEGERS)
    yield Row("floordiv", "tk.floordiv(p, q)", np.floor_divide, INTEGERS, places=FEW)
    yield Row("mod", "p % q", np.mod, INTEGERS)
    yield Row("mod", "tk.mod(p, q)", np.mod, INTEGERS, places=FEW)
    yield Row(
        "divmod",
        "tk.divmod(p, q)[0] * 2 + tk.divmod(p, q)[1]",
        lambda x, y: np.floor_divide(x, y) * x.dtype.type(2) + np.mod(x, y),
        INTEGERS,
        places=FEW,
    )
    yield Row(
        "cdiv",
        "tk.cdiv(p, q)",
        lambda x, y: -(-x // y),
        [tk.int32, tk.int64],
        first=modest,
        second=lambda g, s, d: _positive(g, s, d) + d.type(1),
    )
    yield Row("pow", "p ** q", np.power, INTEGERS, second=_power)
    yield Row("pow", "tk.pow(p, q)", np.power, WIDE_FLOATS, None, stated("pow"), first=_positive, second=_power)
    yield Row("negative", "-p", np.negative, SIGNED + FLOATS)
    yield Row("negative", "tk.negative(p)", np.negative, SIGNED + FLOATS, places=FEW)
    yield Row("abs", "abs(p)", np.abs, SIGNED + FLOATS)
    yield Row("abs", "tk.abs(p)", np.abs, SIGNED + FLOATS, places=FEW)
    yield Row("mulhi", "tk.mulhi(p, q)", _high, INTEGERS, places=[*LINES, PLANES[1]])
    yield Row("fma", "tk.fma(p, q, r)", lambda x, y, z: x * y + z, [tk.float16, tk.float32], first=modest, ulp=lambda _: 0.51)
    for op, symbol, f in [
        ("equal", "==", operator.eq), ("not_equal", "!=", operator.ne), ("less", "<", operator.lt), ("less_equal", "<=", operator.le),
        ("greater", ">", operator.gt), ("greater_equal", ">=", operator.ge),
    ]:  # fmt: skip
        yield Row(op, f"p {symbol} q", f, NUMBERS, tk.bool_, places=FEW)
        yield Row(op, f"tk.{op}(p, q)", f, NUMBERS, tk.bool_, places=[LINES[1], PLANES[2]])
    for op, symbol, f in [
        ("bitwise_and", "&", operator.and_),
        ("bitwise_or", "|", operator.or_),
        ("bitwise_xor", "^", operator.xor),
    ]:
        yield Row(op, f"p {symbol} q", f, [tk.bool_, *INTEGERS], places=FEW)
        yield Row(op, f"tk.{op}(p, q)", f, [tk.bool_, *INTEGERS], places=[LINES[1], PLANES[2]])
    yield Row("bitwise_not", "~p", operator.invert, [tk.bool_, *INTEGERS], places=FEW)
    yield Row("bitwise_not", "tk.bitwise_not(p)", operator.invert, [tk.bool_, *INTEGERS], places=[LINES[1]])
    for op, symbol, f in [("bitwise_lshift", "<<", np.left_shift), ("bitwise_rshift", ">>", np.right_shift)]:
        yield Row(op, f"p {symbol} q", f, INTEGERS, second=_distance, places=FEW)
        yield Row(op, f"tk.{op}(p, q)", f, INTEGERS, second=_distance, places=[LINES[1], PLANES[2]])
    yield Row("popcount", "tk.popcount(p)", _count(lambda v, _: v.bit_count()), INTEGERS, tk.int32, places=FEW)
    yield Row("clz", "tk.clz(p)", _count(lambda v, bits: bits - v.bit_length()), INTEGERS, tk.int32, places=FEW)
    for op, f in [("logical_and", np.logical_and), ("logical_or", np.logical_or), ("logical_xor", np.logical_xor)]:
        yield Row(op, f"tk.{op}(p, q)", f, [tk.bool_], tk.bool_)
    yield Row("logical_not", "tk.logical_not(p)", np.logical_not, [tk.bool_], tk.bool_)
    for op in ("isnan", "isinf", "isfinite"):
        yield Row(op, f"tk.{op}(p)", getattr(np, op), FLOATS, tk.bool_, places=FEW)
    yield Row("where", "tk.where(p > q, p, q)", lambda x, y: np.where(x > y, x, y), NUMBERS, places=FEW)
    yield Row("where", "tk.where(p, q, p)", lambda x, y: np.where(x, y, x), [tk.bool_], places=FEW)
    yield Row("clip", "tk.clip(p, -2, 3)", lambda x: np.clip(x, -2, 3).astype(x.dtype), SIGNED + FLOATS, first=modest, places=FEW)
    for op, f in [("minimum", np.minimum), ("maximum", np.maximum)]:
        yield Row(op, f"tk.{op}(p, q)", f, NUMBERS, first=modest)
    yield Row("sign", "tk.sign(p)", np.sign, SIGNED + FLOATS, first=modest, places=FEW)
    yield Row("copysign", "tk.copysign(p, q)", np.copysign, FLOATS, places=FEW)
    for op in ("floor", "ceil", "trunc"):
        yield Row(op, f"tk.{op}(p)", getattr(np, op), FLOATS, places=FEW)
    yield Row("round", "tk.round(p)", np.rint, FLOATS, places=FEW)
    yield Row("sqrt", "tk.sqrt(p)", np.sqrt, FLOATS)
    for op in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "sin", "cos", "tan", "sinh", "cosh", "tanh"):
        yield _math(op, getattr(np, op))
    for op in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
        yield _math(f"a{op}", getattr(np, f"arc{op}"))
    yield _math("atan2", np.arctan2, second=any_of)
    yield _math("rsqrt", lambda x: 1 / np.sqrt(x))
    yield _math("sigmoid", lambda x: 1 / (1 + np.exp(-x)))
    yield _math("softplus", lambda x: np.logaddexp(0, x))
    for op in ("erf", "erfc"):
        yield _math(op, _vectorised(getattr(math, op)), first=modest)


def expressions() -> Iterator[Case]:
    """Cases of the table."""
    for row in rows():
        if row.op not in OPS:
            continue
        count = len(set(re.findall(r"\b[pqr]\b", row.code)))
        loads = "\n".join(f"{n} = tk.load_tile_like({m}, y)" for n, m in zip("pqr"[:count], "abc", strict=False))
        body = f"{loads}\ny.store({row.code})"
        for dtype in row.dtypes:
            for shape, tile, edge in row.places:
                yield _case(row, body, dtype, count, shape, tile, edge)


def _case(row: Row, body: str, dtype: Any, count: int, shape: Any, tile: Any, edge: str) -> Case:
    result = row.result or dtype

    def inputs(rng: Any) -> Any:
        return [(row.second if i and row.second else row.first)(rng, shape, dtype) for i in range(count)]

    def expected(*arrays: Any) -> Any:
        if row.ulp is not None:
            wide = [a.astype(_exact_type(dtype)) for a in arrays]
            return Near(row.reference(*wide), row.ulp(dtype))
        if result == dtype:
            return np.asarray(row.reference(*(a.astype(_wide(dtype)) for a in arrays))).astype(result)
        return np.asarray(row.reference(*(a.astype(_wide(dtype)) for a in arrays)))

    return Case(row.op, f"{row.code} of {dtype.name}", body, shape, result, tile, inputs, expected, edge=edge)


# ---------------------------------------------------------------------------------------------------------------- conversions


def _castable(source: Any, target: Any) -> Any:
    """Makes values whose conversion every device defines."""
    if not dtypes.is_float(source) or dtypes.is_float(target) or target == tk.bool_:
        return lambda rng, shape: (
            any_of(rng, shape, source) if source not in dtypes.EIGHT_BIT_FLOATS else bits_of(rng, shape, source)
        )
    low = 0 if target.kind == "u" else -100
    return lambda rng, shape: (rng.random(shape) * (100 - low) + low).astype(source)


def casts() -> Iterator[Case]:
    """From every dtype to every other."""
    places = [LINES[1], LINES[3], PLANES[1]]
    for source in dtypes.ALL:
        for target in dtypes.ALL:
            make = _castable(source, target)
            for shape, tile, edge in places:
                call = "tk.astype({0}, tk.{1})" if len(shape) > 1 else "{0}.astype(tk.{1})"
                body = f"y.store({call.format('tk.load_tile_like(a, y)', _name(target))})"
                yield Case(
                    "astype", f"{source.name} to {target.name}", body, shape, target, tile,
                    lambda rng, make=make, shape=shape: [make(rng, shape)],
                    lambda x, source=source, target=target: _cast(x, source, target), edge=edge,
                )  # fmt: skip


def _cast(x: Any, source: Any, target: Any) -> Any:
    if target in dtypes.EIGHT_BIT_FLOATS:
        return x.astype(np.float32).astype(target)
    return x.astype(np.float32).astype(target) if source in dtypes.EIGHT_BIT_FLOATS else x.astype(target)


def _name(dtype: Any) -> str:
    return "bool_" if dtype == tk.bool_ else dtype.name


def bitcasts() -> Iterator[Case]:
    """Between dtypes of one size."""
    for source in dtypes.ALL[1:]:
        for target in dtypes.ALL[1:]:
            if source.itemsize == target.itemsize and source != target:
                for shape, tile, edge in [LINES[1], PLANES[2]]:
                    yield Case(
                        "bitcast", f"{source.name} as {target.name}",
                        f"y.store(tk.bitcast(tk.load_tile_like(a, y), tk.{target.name}))", shape, target, tile,
                        lambda rng, shape=shape, source=source: [bits_of(rng, shape, source)],
                        lambda x, target=target: x.view(target), edge=edge,
                    )  # fmt: skip


def mixed() -> Iterator[Case]:
    """Operands of two dtypes meet in the wider; scalars take the tile's."""
    for narrow, wide in [
        (tk.int8, tk.int32),
        (tk.uint8, tk.uint64),
        (tk.int32, tk.float16),
        (tk.float16, tk.float32),
        (tk.bfloat16, tk.float64),
        (tk.int64, tk.float32),
    ]:
        for shape, tile, edge in [LINES[2], LINES[3], PLANES[1]]:
            body = "y.store(tk.load_tile_like(a, y) + tk.load_tile_like(b, y))"
            yield Case(
                "add", f"{narrow.name} + {wide.name}", body, shape, wide, tile,
                lambda rng, shape=shape, narrow=narrow, wide=wide: [modest(rng, shape, narrow), modest(rng, shape, wide)],
                lambda x, y, wide=wide: (x.astype(wide).astype(_wide(wide)) + y.astype(_wide(wide))).astype(wide), edge=edge,
            )  # fmt: skip
    for dtype in NUMBERS:
        for shape, tile, edge in [LINES[1], PLANES[1]]:
            yield Case(
                "mul", f"{dtype.name} * scalar", "y.store(tk.load_tile_like(a, y) * k + 1)", shape, dtype, tile,
                lambda rng, shape=shape, dtype=dtype: [(modest(rng, shape, dtype) % 10).astype(dtype).round().astype(dtype) if dtypes.is_float(dtype) else modest(rng, shape, dtype)],
                lambda x, k, dtype=dtype: (x * dtype.type(k) + dtype.type(1)).astype(dtype), scalars=(3,), edge=edge,
            )  # fmt: skip


def broadcasts() -> Iterator[Case]:
    """A row meets a column."""
    body = """
    row = tk.load(a, (0, tk.bid(1)), (1, y.tile_shape[1]))
    column = tk.load(b, (tk.bid(0), 0), (y.tile_shape[0], 1))
    y.store(tk.maximum(row, column) - row)
    """
    for dtype in NUMBERS:
        for shape, tile, edge in PLANES:
            yield Case(
                "maximum", "row and column", body, shape, dtype, tile,
                lambda rng, shape=shape, dtype=dtype: [modest(rng, (1, shape[1]), dtype), modest(rng, (shape[0], 1), dtype)],
                lambda x, y, dtype=dtype: (np.maximum(x, y).astype(_wide(dtype)) - x.astype(_wide(dtype))).astype(dtype), edge=edge if edge != "fortran" else "plain",
            )  # fmt: skip


FAMILIES = [expressions, casts, bitcasts, mixed, broadcasts]
