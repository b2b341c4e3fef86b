"""Rows of operations that make tiles, give them other shapes, fold them, put them in order, or multiply them as matrices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import semantics
from grammar import MOST, Grammar, Unfit, meeting, other, row
from programs import Shape, Var, dtype_text
from rows_elementwise import NUMBERS
from values import BF16, BOOL, DTYPES, EIGHTS, F16, F32, F64, FLOATS, INT32, INTEGERS, DType, Value, certain, is_float

# ---------------------------------------------------------------------------------------------------------------------- made


def _value(g: Grammar, dtype: DType) -> Any:
    return g.draw.pick([True, False]) if dtype == BOOL else g.draw.pick([1, 0, 2, 3])


@row("full")
def full(g: Grammar) -> None:
    """One value."""
    shape, dtype = g.shape(), g.dtype([F32, *NUMBERS, BOOL, *EIGHTS])
    if g.draw.chance(30):
        number = g.number(0, 100)
        text = f"tk.full({shape}, {number.text}, {dtype_text(dtype)})"
        g.of_frame(text, (), dtype, shape, lambda frame: Value(np.full(shape, number.value(frame)).astype(dtype)))
        return
    value = _value(g, dtype)
    default = {bool: BOOL, int: INT32}[type(value)]
    text = f"tk.full({shape}, {value})" if default == dtype else f"tk.full({shape}, {value}, {dtype_text(dtype)})"
    g.let(text, (), dtype, shape, lambda: Value(np.full(shape, value).astype(dtype)))


def _constant(name: str, value: int) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        shape, dtype = g.shape(), g.dtype([F32, *NUMBERS, BOOL, *EIGHTS])
        short = f"tk.{name}({shape})" if dtype == F32 else f"tk.{name}({shape}, {dtype_text(dtype)})"
        g.let(short, (), dtype, shape, lambda: Value(np.full(shape, value).astype(dtype)))


_constant("zeros", 0)
_constant("ones", 1)


@row("arange")
def arange(g: Grammar) -> None:
    """A range."""
    n = g.draw.pick([8, 4, 16, 32, 64])
    dtype = g.dtype([INT32, *NUMBERS])
    start, step = g.draw.pick([0, 1, 5]), g.draw.pick([1, 2, 3] if dtype.kind == "u" else [1, 2, -1])
    if dtype.kind == "u" or dtype.itemsize == 1:
        step = 1
    text = f"tk.arange({n}, dtype={dtype_text(dtype)}, start={start}, step={step})"

    def compute() -> Value:
        return Value((start + step * np.arange(n)).astype(np.float64).astype(dtype))

    g.let(text if (dtype, start, step) != (INT32, 0, 1) else f"tk.arange({n})", (), dtype, (n,), compute)


@row("astile")
def astile(g: Grammar) -> None:
    """A table."""
    shape = g.draw.pick([(4,), (2, 2), (8,), (1, 2, 2)])
    dtype = g.dtype([INT32, F32, F16, DTYPES["int64"]])
    flat = [g.draw.below(4) for _ in range(math.prod(shape))]
    table = np.array(flat).reshape(shape)

    def nested(a: Any) -> str:
        return f"({', '.join(map(nested, a))},)" if isinstance(a, np.ndarray) and a.ndim else str(a)

    text = f"tk.astile({nested(table)}, dtype={dtype_text(dtype)})"
    g.let(text, (), dtype, shape, lambda: Value(table.astype(dtype)))


# --------------------------------------------------------------------------------------------------------------------- moved


def moved(g: Grammar, text: str, x: Var, shape: Shape, function: Any) -> Var:
    """A tile with the elements of another."""
    return g.let(text, [x], x.dtype, shape, lambda a: a.moved(function))


def any_tile(g: Grammar, least: int = 0) -> Var:
    """One of any dtype, of so many dimensions at least."""
    for _ in range(4):
        x = g.some(None, sure=False)
        if len(x.shape) >= least:
            return x
    raise Unfit


def factors(n: int, rank: int, g: Grammar) -> Shape:
    """`n`, a power of two, as a product of so many."""
    made = [1] * rank
    for _ in range(int(math.log2(n))):
        made[g.draw.below(rank)] *= 2
    return tuple(made)


@row("reshape")
def reshape(g: Grammar) -> None:
    """The elements in another shape."""
    x = any_tile(g)
    shape = factors(math.prod(x.shape), g.draw.between(1, 4), g)
    shown: Any = shape
    if g.draw.chance(30):
        at = g.draw.below(len(shape))
        shown = (*shape[:at], -1, *shape[at + 1 :])
    text = f"tk.reshape({{0}}, {shown})" if g.draw.chance(50) else f"{{0}}.reshape({shown})"
    moved(g, text, x, shape, lambda a: a.reshape(shape))


@row("permute")
def permute(g: Grammar) -> None:
    """The dimensions in another order."""
    x = any_tile(g, 2)
    axes = list(g.draw.pick(list(itertools.permutations(range(len(x.shape))))[1:]))
    text = f"tk.permute({{0}}, {tuple(axes)})" if g.draw.chance(50) else f"{{0}}.permute({tuple(axes)})"
    moved(g, text, x, tuple(x.shape[a] for a in axes), lambda a: a.transpose(axes))


@row("transpose")
def transpose(g: Grammar) -> None:
    """Two dimensions exchanged."""
    x = any_tile(g, 2)
    a, b = (-2, -1) if g.draw.chance(50) else (g.axis(x), g.axis(x))
    shape = list(x.shape)
    shape[a], shape[b] = shape[b], shape[a]
    more = "" if (a, b) == (-2, -1) else f", {a}, {b}"
    text = f"tk.transpose({{0}}{more})" if g.draw.chance(50) else f"{{0}}.transpose({more[2:]})"
    moved(g, text, x, tuple(shape), lambda v: v.swapaxes(a, b))


@row("expand_dims")
def expand_dims(g: Grammar) -> None:
    """A dimension of 1 more."""
    x = any_tile(g)
    if len(x.shape) > 3:
        raise Unfit
    at = g.draw.below(len(x.shape) + 1)
    shape = (*x.shape[:at], 1, *x.shape[at:])
    text = f"tk.expand_dims({{0}}, {at})"
    if g.draw.chance(50) and x.shape:
        text = "{0}[" + ", ".join("None" if d == at else ":" for d in range(len(shape))) + "]"
    moved(g, text, x, shape, lambda a: np.expand_dims(a, at))


@row("broadcast_to")
def broadcast_to(g: Grammar) -> None:
    """Repeated."""
    x = any_tile(g)
    shape = tuple(n if n > 1 else g.draw.pick([1, 2, 4]) for n in x.shape)
    if len(shape) < 4 and g.draw.chance(40):
        shape = (g.draw.pick([2, 1, 4]), *shape)
    if not shape:
        shape = (4,)
    if math.prod(shape) > 4 * MOST:
        raise Unfit
    text = f"tk.broadcast_to({{0}}, {shape})" if g.draw.chance(50) else f"{{0}}.broadcast_to({shape})"
    moved(g, text, x, shape, lambda a: np.broadcast_to(a, shape))


@row("cat")
def cat(g: Grammar) -> None:
    """One after the other."""
    x = g.some(None)
    if not x.shape or math.prod(x.shape) > 2 * MOST:
        raise Unfit
    y, axis = g.exactly_like(x), g.axis(x)
    shape = tuple(n * (2 if d == axis % len(x.shape) else 1) for d, n in enumerate(x.shape))

    def compute(a: Value, b: Value) -> Value:
        parts = [np.concatenate([getattr(v, name) for v in (a, b)], axis) for name in ("array", "off", "loose")]
        return Value(*parts)

    g.let(f"tk.cat(({{0}}, {{1}}), {axis})", [x, y], x.dtype, shape, compute)


def _part(g: Grammar, x: Var) -> tuple[Shape, list[Any], Any]:
    shape = tuple(max(1, n >> g.draw.below(3)) for n in x.shape)
    index = [g.number(0, n // p - 1) for n, p in zip(x.shape, shape, strict=True)]

    def place(frame: Any) -> tuple[slice, ...]:
        at = [n.value(frame) for n in index]
        return tuple(slice(i * p, i * p + p) for i, p in zip(at, shape, strict=True))

    return shape, index, place


def _written(index: list[Any]) -> str:
    texts = [n.text for n in index]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


@row("extract")
def extract(g: Grammar) -> None:
    """A part."""
    x = any_tile(g, 1)
    shape, index, place = _part(g, x)
    text = f"tk.extract({{0}}, {_written(index)}, {shape})"
    g.of_frame(text, [x], x.dtype, shape, lambda frame, a: a.moved(lambda v: v[place(frame)]))


@row("insert")
def insert(g: Grammar) -> None:
    """A part replaced."""
    x = any_tile(g, 1)
    if not x.sure:
        raise Unfit
    shape, index, place = _part(g, x)
    part = g.fresh(x.dtype, shape)

    def compute(frame: Any, a: Value, b: Value) -> Value:
        made = []
        for name in ("array", "off", "loose"):
            whole = np.array(getattr(a, name))
            whole[place(frame)] = getattr(b, name)
            made.append(whole)
        return Value(*made)

    g.of_frame(f"tk.insert({{0}}, {_written(index)}, {{1}})", [x, part], x.dtype, x.shape, compute)


# --------------------------------------------------------------------------------------------------------------------- folded


def axes(g: Grammar, x: Var) -> tuple[str, tuple[int, ...], bool, Shape]:
    """Dimensions to fold: their text, which they are, whether they stay, and the shape that is left."""
    rank = len(x.shape)
    kind = g.draw.below(3 if rank > 1 else 2)
    chosen = tuple(range(rank)) if kind == 1 else (g.axis(x),)
    if kind == 2:
        chosen = tuple(sorted(g.draw.pick(list(itertools.combinations(range(rank), 2)))))
    keep = g.draw.chance(50)
    places = {a % rank for a in chosen}
    shape = tuple(1 if d in places else n for d, n in enumerate(x.shape) if keep or d not in places)
    text = "" if kind == 1 else f", {chosen[0] if len(chosen) == 1 else chosen}"
    return text + (", keepdims=True" if keep else ""), tuple(a % rank for a in chosen), keep, shape


def _numbers(g: Grammar, options: Any = NUMBERS, **more: Any) -> Var:
    x = g.some(options, **more)
    if not x.shape:
        raise Unfit
    return x


def _fold(name: str, function: Any, sure: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = _numbers(g, [*NUMBERS, BOOL], sure=name != "sum")
        text, along, keep, shape = axes(g, x)
        dtype = semantics.sum_dtype(x.dtype)
        result = sure(g, x)
        g.let(f"tk.{name}({{0}}{text})", [x], dtype, shape, lambda a: function(a, along, keep), sure=x.sure and result)


_fold("sum", semantics.total, lambda g, x: g.mode == "exact" or not is_float(x.dtype))
_fold("prod", semantics.multiplied, lambda g, x: not is_float(x.dtype))


def _most(name: str, larger: bool) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = _numbers(g, sure=False)
        text, along, keep, shape = axes(g, x)
        propagate = not (x.sure and is_float(x.dtype) and g.draw.chance(40))
        more = "" if propagate else ", propagate_nan=False"
        g.let(
            f"tk.{name}({{0}}{text}{more})", [x], x.dtype, shape, lambda a: semantics.most(a, along, keep, larger, propagate)
        )  # fmt: skip


_most("max", True)
_most("min", False)


def _position(name: str, larger: bool) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = _numbers(g)
        whole = g.draw.chance(25)
        axis = None if whole else g.axis(x)
        keep = g.draw.chance(40)
        propagate = not (is_float(x.dtype) and g.draw.chance(40))
        kept = tuple(1 if whole or d == (axis or 0) % len(x.shape) else n for d, n in enumerate(x.shape))
        gone = () if whole else tuple(n for d, n in enumerate(x.shape) if d != (axis or 0) % len(x.shape))
        more = (", keepdims=True" if keep else "") + ("" if propagate else ", propagate_nan=False")
        text = f"tk.{name}({{0}}{'' if whole else f', {axis}'}{more})"
        g.let(text, [x], INT32, kept if keep else gone, lambda a: semantics.position(a, axis, keep, larger, propagate))


_position("argmax", True)
_position("argmin", False)


def _truth(name: str, function: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = _numbers(g, [BOOL, *NUMBERS])
        text, along, keep, shape = axes(g, x)

        def compute(a: Value) -> Value:
            b = semantics.cast(a, BOOL)
            unknown = np.max(b.off, axis=along, keepdims=keep)
            return Value(function(b.array, axis=along, keepdims=keep), np.where(unknown > 0, np.inf, 0.0))

        g.let(f"tk.{name}({{0}}{text})", [x], BOOL, shape, compute)


_truth("any", np.any)
_truth("all", np.all)

# A function of two elements: its text, what it does to arrays, the dtypes for which the order does not matter.
COMBINERS: list[tuple[str, Any, Any]] = [
    ("lambda a, b: a + b", np.add, INTEGERS), ("operator.mul", np.multiply, INTEGERS),
    ("lambda a, b: tk.maximum(a, b)", np.maximum, INTEGERS), ("lambda a, b: tk.where(a < b, a, b)", np.minimum, INTEGERS),
    ("operator.xor", np.bitwise_xor, INTEGERS), ("lambda a, b: a | b", np.bitwise_or, [BOOL, *INTEGERS]),
    ("operator.and_", np.bitwise_and, [BOOL, *INTEGERS]),
]  # fmt: skip


def _unknown(a: Value, axis: Any, keep: bool) -> Any:
    return np.where(np.max(a.off, axis=axis, keepdims=keep) > 0, np.inf, 0.0)


@row("reduce")
def reduce(g: Grammar) -> None:
    """A fold by a function of one's own; of two tiles at once, too."""
    text, function, options = g.draw.pick(COMBINERS)
    x = _numbers(g, options)
    shown, along, keep, shape = axes(g, x)
    axis_text, _, rest = shown.removeprefix(", ").partition(", keepdims")
    call = f"{axis_text or 'None'}, {text}" + (", keepdims=True" if rest or shown == ", keepdims=True" else "")
    if shown == ", keepdims=True":
        call = f"None, {text}, keepdims=True"
    g.let(
        f"tk.reduce({{0}}, {call})",
        [x],
        x.dtype,
        shape,
        lambda a: Value(function.reduce(a.array, axis=along, keepdims=keep, dtype=x.dtype), _unknown(a, along, keep)),
    )


@other
def reduce_pairs(g: Grammar) -> None:
    """The largest with its companion: the sum of the companions of all that are as large."""
    x = _numbers(g, INTEGERS)
    y = g.exactly_like(x, INT32)
    axis = g.draw.below(len(x.shape))
    shape = tuple(n for d, n in enumerate(x.shape) if d != axis)
    function = "lambda a, i, b, j: (tk.maximum(a, b), tk.where(a == b, i + j, tk.where(a > b, i, j)))"

    def compute(a: Value, b: Value) -> list[Value]:
        top = np.max(a.array, axis=axis)
        chosen = a.array == np.expand_dims(top, axis)
        places = np.sum(np.where(chosen, b.array, 0), axis=axis, dtype=np.int32)
        unknown = np.maximum(_unknown(a, axis, False), _unknown(b, axis, False))
        return [Value(top, unknown), Value(places, unknown)]

    g.lets(f"tk.reduce(({{0}}, {{1}}), {axis}, {function})", [x, y], [(x.dtype, shape), (INT32, shape)], compute)


def _prefix(name: str, fold: Any, sure: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = _numbers(g, [*NUMBERS, BOOL])
        axis, reverse = g.axis(x), g.draw.chance(40)
        if x.shape[axis] > 32:
            raise Unfit
        more = ", reverse=True" if reverse else ""

        def compute(a: Value) -> Value:
            return semantics.prefixes(a, axis % len(x.shape), reverse, fold)

        text = f"tk.{name}({{0}}, {axis}{more})"
        g.let(text, [x], semantics.sum_dtype(x.dtype), x.shape, compute, sure=sure(g, x))


_prefix("cumsum", semantics.total, lambda g, x: g.mode == "exact" or not is_float(x.dtype))
_prefix("cumprod", semantics.multiplied, lambda g, x: not is_float(x.dtype))


@row("scan")
def scan(g: Grammar) -> None:
    """Every step of a fold."""
    text, function, options = g.draw.pick(COMBINERS)
    x = _numbers(g, options)
    axis, reverse = g.axis(x), g.draw.chance(40)
    if x.shape[axis] > 64:
        raise Unfit

    def compute(a: Value) -> Value:
        turned = np.flip(a.array, axis) if reverse else a.array
        made = function.accumulate(turned, axis=axis, dtype=x.dtype)
        return Value(np.flip(made, axis) if reverse else made, np.broadcast_to(_unknown(a, axis, True), x.shape))

    more = ", reverse=True" if reverse else ""
    g.let(f"tk.scan({{0}}, {axis}, {text}{more})", [x], x.dtype, x.shape, compute)


# ------------------------------------------------------------------------------------------------------------------- in order


def _row_of(g: Grammar) -> tuple[Var, int]:
    x = _numbers(g, [*NUMBERS, BOOL])
    axis = g.axis(x)
    if x.shape[axis] > 32 or math.prod(x.shape) > MOST:
        raise Unfit
    return x, axis


@row("sort")
def sort(g: Grammar) -> None:
    """In order."""
    x, axis = _row_of(g)
    descending = g.draw.chance(40)
    text = f"tk.sort({{0}}, {axis}{', descending=True' if descending else ''})"
    g.let(text, [x], x.dtype, x.shape, lambda a: semantics.in_order(a, axis % len(x.shape), descending)[0])


@row("argsort")
def argsort(g: Grammar) -> None:
    """The places in order."""
    x, axis = _row_of(g)
    descending = g.draw.chance(40)
    text = f"tk.argsort({{0}}, {axis}{', descending=True' if descending else ''})"
    g.let(text, [x], INT32, x.shape, lambda a: semantics.in_order(a, axis % len(x.shape), descending)[1])


@row("topk")
def topk(g: Grammar) -> None:
    """The first few."""
    x, axis = _row_of(g)
    largest = not g.draw.chance(40)
    along = axis % len(x.shape)
    k = g.draw.pick([n for n in (1, 2, 4, 8, 16, 32) if n <= x.shape[along]])
    shape = tuple(k if d == along else n for d, n in enumerate(x.shape))
    text = f"tk.topk({{0}}, {k}, {axis}{'' if largest else ', largest=False'})"
    g.lets(text, [x], [(x.dtype, shape), (INT32, shape)], lambda a: semantics.in_order(a, along, largest, k))


@row("histogram")
def histogram(g: Grammar) -> None:
    """How often."""
    x = _numbers(g, INTEGERS)
    bins = g.draw.pick([8, 2, 16, 64])
    if g.draw.chance(40):
        mask = g.exactly_like(x, BOOL)

        def masked(a: Value, m: Value) -> Value:
            return _counted(a.array[m.array], bins, a.off + m.off)

        g.let(f"tk.histogram({{0}}, {bins}, mask={{1}})", [x, mask], INT32, (bins,), masked)
    else:
        g.let(f"tk.histogram({{0}}, {bins})", [x], INT32, (bins,), lambda a: _counted(a.array, bins, a.off))


def _counted(array: Any, bins: int, off: Any) -> Value:
    flat = [int(v) for v in array.reshape(-1)]
    made = np.array([flat.count(b) for b in range(bins)], np.int32)
    return Value(made, np.full(bins, np.inf if np.any(off > 0) else 0.0))


# -------------------------------------------------------------------------------------------------------------------- products

_PRODUCTS = [(F16, F16), (BF16, BF16), (F32, F32), (F64, F64), *[(a, b) for a in EIGHTS for b in EIGHTS]]
_PRODUCTS += [(DTYPES[a], DTYPES[b]) for a in ("int8", "uint8") for b in ("int8", "uint8")]


def _operands(g: Grammar) -> tuple[Var, Var, Shape]:
    first, second = g.draw.pick(_PRODUCTS)
    m, k, n = (g.draw.pick([16, 8, 4, 1, 32]) for _ in range(3))
    batch = (2,) if g.draw.chance(25) else ()
    wanted = [v for v in g.scope if v.dtype == first and len(v.shape) == 2 + len(batch) and v.sure and math.prod(v.shape) <= 512]
    if wanted and g.draw.chance(60):
        a = g.draw.pick(wanted[::-1])
        batch, (m, k) = a.shape[:-2], a.shape[-2:]
    else:
        a = g.fresh(first, (*batch, m, k))
    if k * n * m * math.prod(batch) > 8192:
        raise Unfit
    return a, g.fresh(second, (*batch, k, n)), (*batch, m, n)


def _precision(g: Grammar, a: Var) -> tuple[str, str]:
    if a.dtype == F32 and g.draw.chance(40):
        return ', precision="tf32"', "tf32"
    if a.dtype in EIGHTS and g.draw.chance(30):
        return ', precision="fast"', "fast"
    return "", "ieee"


@row("mma")
def mma(g: Grammar) -> None:
    """A product, added to a third."""
    a, b, shape = _operands(g)
    acc_dtype = F64 if a.dtype == F64 else F32 if is_float(a.dtype) else INT32
    acc = g.exactly_like(Var("", acc_dtype, shape))
    more, precision = _precision(g, a)
    g.let(
        f"tk.mma({{0}}, {{1}}, {{2}}{more})",
        [a, b, acc],
        acc_dtype,
        shape,
        lambda p, q, r: semantics.product(p, q, r, acc_dtype, precision),
        sure=g.mode == "exact" or not is_float(acc_dtype),
    )


@row("matmul")
def matmul(g: Grammar) -> None:
    """A product, rounded to the dtype of its operands."""
    a, b, shape = _operands(g)
    result = a.dtype if a.dtype.itemsize > 1 else F32 if is_float(a.dtype) else INT32
    more, precision = _precision(g, a)
    text = f"tk.matmul({{0}}, {{1}}{more})" if more or g.draw.chance(50) else "{0} @ {1}"
    sure = g.mode == "exact" or not is_float(result)
    g.let(text, [a, b], result, shape, lambda p, q: semantics.product(p, q, None, result, precision), sure=sure)


__all__ = ["FLOATS", "certain", "meeting"]
