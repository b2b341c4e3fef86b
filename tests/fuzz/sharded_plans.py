"""Programs on sharded arrays, drawn, and what they give by NumPy, of whole arrays that nobody splits.

What a collective does to arrays that are split over its axis is said of parts: those are NumPy's, cut by `array_split`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from draws import Draw

MESHES = [
    {"a": 2}, {"a": 2, "b": 2}, {"a": 3}, {"a": 4}, {"a": 2, "b": 3}, {"b": 4, "a": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 8},
    {"a": 1, "b": 3}, {"a": 1},
]  # fmt: skip
FOLDS: dict[str, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "avg": np.mean}
LIMIT = 2.0**12  # integers of float32 stay exact: what is larger is not calculated with
STEPS = 10

Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Value:
    """An array of the program.

    Attributes:
        whole: by NumPy; of summands their sum.
        dims: of each dimension the axes that split it.
        partial: the axes over which its parts are summands.
        exact: whether the device must have these very numbers.
    """

    whole: np.ndarray[Any, Any]
    dims: Dims
    partial: tuple[str, ...] = ()
    exact: bool = True


@dataclass(frozen=True)
class Step:
    """One step: what is done to which values, with what, and what it gives. A step that must be refused gives nothing."""

    kind: str
    operands: tuple[int, ...]
    options: dict[str, Any]
    results: tuple[Value, ...] = ()
    refused: str = ""
    waits: bool = False  # whether the program runs it at once, or leaves an op to the steps that use it

    def __str__(self) -> str:
        shown = {key: option.shape if isinstance(option, np.ndarray) else option for key, option in self.options.items()}
        gives = ", ".join(
            f"{value.whole.shape} by {value.dims}" + f" partial {value.partial}" * bool(value.partial) for value in self.results
        )
        return f"{self.kind} of {list(self.operands)} with {shown}: {gives or f'refused, {self.refused!r}'}"


@dataclass
class Plan:
    """A mesh, and the steps."""

    axes: dict[str, int]
    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def __str__(self) -> str:
        number, lines = 0, [f"mesh {self.axes}"]
        for step in self.steps:
            names = ", ".join(f"v{number + at}" for at in range(len(step.results)))
            number += len(step.results)
            lines.append(f"{names + ' = ' if names else ''}{step}" + ("" if step.waits else "  (an op)"))
        return "\n".join(lines)


# splitting by NumPy


def _places(axes: dict[str, int]) -> list[dict[str, int]]:
    return [dict(zip(axes, at)) for at in np.ndindex(*axes.values())]


def _index(names: Sequence[str], axes: dict[str, int], at: dict[str, int]) -> int:
    return int(np.ravel_multi_index([at[name] for name in names], [axes[name] for name in names])) if names else 0


def count(names: Sequence[str], axes: dict[str, int]) -> int:
    """Into how many parts the axes split a dimension."""
    return math.prod(axes[name] for name in names)


def split(whole: np.ndarray[Any, Any], dims: Dims, axes: dict[str, int]) -> list[np.ndarray[Any, Any]]:
    """What each worker holds."""
    parts = []
    for at in _places(axes):
        part = whole
        for dim, names in enumerate(dims):
            part = np.array_split(part, count(names, axes), dim)[_index(names, axes, at)]
        parts.append(part)
    return parts


def join(parts: Sequence[np.ndarray[Any, Any]], dims: Dims, axes: dict[str, int]) -> np.ndarray[Any, Any]:
    """The array whose parts these are."""
    grid = {tuple(_index(names, axes, at) for names in dims): part for at, part in zip(_places(axes), parts)}
    for dim in reversed(range(len(dims))):
        rows: dict[tuple[int, ...], list[np.ndarray[Any, Any]]] = {}
        for index, part in sorted(grid.items()):
            rows.setdefault(index[:dim], []).append(part)
        grid = {index: np.concatenate(row, dim) for index, row in rows.items()}
    return grid[()]


def combined(value: Value, names: Sequence[str], op: str, axes: dict[str, int]) -> Value | None:
    """What an all-reduce gives; None where the parts are uneven."""
    dims = tuple(tuple(name for name in split_by if name not in names) for split_by in value.dims)
    partial = tuple(name for name in value.partial if name not in names)
    held = [name for name in names if name not in value.partial]
    parts, places = split(value.whole, value.dims, axes), _places(axes)
    results = []
    for at in places:
        row = [part for part, other in zip(parts, places) if all(at[name] == other[name] for name in axes if name not in held)]
        if len({part.shape for part in row}) > 1:
            return None
        results.append(FOLDS[op](np.array(row), axis=0).astype(value.whole.dtype))
    return Value(join(results, dims, axes), dims, partial, value.exact)


# drawing


def plan(draw: Draw) -> Plan:
    """A program."""
    made = Plan(dict(draw.pick(MESHES)))
    _new(draw, made)
    for _ in range(draw.below(STEPS) + 1):
        with draw.span():
            draw.pick(_KINDS)(draw, made)
    return made


def _add(
    plan: Plan, draw: Draw, kind: str, operands: tuple[int, ...], *results: Value, refused: str = "", **options: Any
) -> None:
    plan.steps.append(Step(kind, operands, options, results, refused, draw.chance(50)))
    plan.values += results


def _dims(draw: Draw, plan: Plan, ndim: int, free: Sequence[str] | None = None) -> Dims:
    """A split of some of the axes."""
    dims: list[tuple[str, ...]] = [()] * ndim
    names = list(plan.axes if free is None else free)
    while names and ndim and draw.chance(75):
        name = names.pop(draw.below(len(names)))
        dim = draw.below(ndim)
        dims[dim] = (*dims[dim], name)
    return tuple(dims)


def _extent(draw: Draw, plan: Plan) -> int:
    size = math.prod(plan.axes.values())
    kind = draw.below(6)
    return draw.between(1, 3) * size if kind < 4 else draw.between(1, 17) if kind == 4 else draw.between(0, 3)


def _new(draw: Draw, plan: Plan) -> None:
    shape = tuple(_extent(draw, plan) for _ in range(draw.pick([2, 1, 3, 0])))
    array = np.random.default_rng(draw.below(100)).integers(-3, 4, shape).astype(np.float32)
    dims = _dims(draw, plan, len(shape))
    _add(plan, draw, "shard", (), Value(array, dims), array=array, dims=dims, how=draw.pick(["array", "tensor", "op"]))


def _value(draw: Draw, plan: Plan, *, whole: bool = True, ndim: int = 0) -> int:
    """One of the values; if there is none that will do, a new one."""
    fitting = [at for at, value in enumerate(plan.values) if not (whole and value.partial) and value.whole.ndim >= ndim]
    while not fitting:
        _new(draw, plan)
        fitting = [at for at, value in enumerate(plan.values) if not (whole and value.partial) and value.whole.ndim >= ndim]
    return fitting[-1 - draw.below(len(fitting))]


def _small(value: Value) -> bool:
    return float(np.abs(value.whole).max(initial=0)) < LIMIT


def _resharded(draw: Draw, plan: Plan, at: int, dims: Dims) -> int:
    """The value by another split: the number of a value that has it."""
    if plan.values[at].dims == dims:
        return at
    value = plan.values[at]
    _add(plan, draw, "reshard", (at,), Value(value.whole, dims, (), value.exact), dims=dims)
    return len(plan.values) - 1


def _scale(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan, whole=False)
    value, factor = plan.values[at], draw.pick([2.0, -1.0, 0.5])
    if not _small(value):
        factor = 0.5
    result = Value(value.whole * np.float32(factor), value.dims, value.partial, value.exact)
    _add(plan, draw, "scale", (at,), result, factor=factor)


def _add_two(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan)
    value = plan.values[at]
    same = [n for n, other in enumerate(plan.values) if not other.partial and other.whole.shape == value.whole.shape]
    other = _resharded(draw, plan, same[-1 - draw.below(len(same))], value.dims)
    second = plan.values[other]
    if _small(value) and _small(second):
        _add(plan, draw, "add", (at, other), Value(value.whole + second.whole, value.dims, (), value.exact and second.exact))


def _two_results(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan)
    value = plan.values[at]
    if _small(value):
        results = [Value(value.whole * np.float32(factor), value.dims, (), value.exact) for factor in (2, -1)]
        _add(plan, draw, "two results", (at,), *results)


def _rows(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan, ndim=1)
    value = plan.values[at]
    at = _resharded(draw, plan, at, (*value.dims[:-1], ()))
    if not value.whole.shape[-1] or not _small(value):
        return
    high = value.whole.astype(np.float64)
    with np.errstate(all="ignore"):
        powers = np.exp(high - high.max(-1, keepdims=True))
    soft = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    _add(plan, draw, "softmax", (at,), Value(soft, plan.values[at].dims, (), False))


def _product(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan, ndim=2)
    value = plan.values[at]
    if value.whole.ndim != 2 or not _small(value):
        return
    if not value.dims[1] and draw.chance(60):  # so that summands come of it
        dims = _dims(draw, plan, 2)
        at = _resharded(draw, plan, at, dims if dims[1] else (dims[1], dims[0]))
    rows, inner = plan.values[at].dims
    free = [name for name in plan.axes if name not in rows + inner]
    weights = np.random.default_rng(draw.below(100)).integers(-2, 3, (value.whole.shape[1], _extent(draw, plan)))
    columns = _dims(draw, plan, 1, free)[0]
    weight = Value(weights.astype(np.float32), (inner, columns))
    _add(plan, draw, "shard", (), weight, array=weight.whole, dims=weight.dims, how="array")
    result = (value.whole.astype(np.float64) @ weights).astype(np.float32)
    _add(plan, draw, "product", (at, len(plan.values) - 1), Value(result, (rows, columns), inner, value.exact))


def _reshard(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan)
    _resharded(draw, plan, at, _dims(draw, plan, plan.values[at].whole.ndim))


def _reduce(draw: Draw, plan: Plan) -> None:
    if not any(value.partial for value in plan.values):
        _product(draw, plan)
    partial = [at for at, value in enumerate(plan.values) if value.partial]
    if partial:
        at = partial[-1 - draw.below(len(partial))]
        value = plan.values[at]
        _add(plan, draw, "reduce", (at,), Value(value.whole, value.dims, (), value.exact))


def _axes(draw: Draw, candidates: Sequence[str]) -> tuple[str, ...]:
    names: list[str] = list(candidates)
    chosen: list[str] = []
    while names and (not chosen or draw.chance(30)):
        chosen.append(names.pop(draw.below(len(names))))
    return tuple(chosen)


def _all_reduce(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan, whole=False)
    value = plan.values[at]
    names = _axes(draw, [*value.partial, *sum(value.dims, ())])
    op = "sum" if set(names) & set(value.partial) else draw.pick(list(FOLDS))
    if not names or not _small(value):
        return
    result = combined(value, names, op, plan.axes)
    scatters = draw.chance(40) and value.whole.ndim > 0
    if value.partial and op in ("max", "min"):
        _add(plan, draw, "all_reduce", (at,), refused="of summands is not that of their sums", names=names, op=op)
    elif result is None:
        _add(plan, draw, "all_reduce", (at,), refused="needs even parts", names=names, op=op)
    elif not scatters:
        exact = result.exact and op != "avg"
        _add(plan, draw, "all_reduce", (at,), Value(result.whole, result.dims, result.partial, exact), names=names, op=op)
    else:
        dim = draw.below(value.whole.ndim)
        dims = tuple((*split_by, *names) if d == dim else split_by for d, split_by in enumerate(result.dims))
        if any(part.shape[dim] % count(names, plan.axes) for part in split(value.whole, value.dims, plan.axes)):
            _add(plan, draw, "reduce_scatter", (at,), refused="needs even parts", names=names, dim=dim, op=op)
        else:
            scattered = Value(result.whole, dims, result.partial, result.exact and op != "avg")
            _add(plan, draw, "reduce_scatter", (at,), scattered, names=names, dim=dim, op=op)


def _all_gather(draw: Draw, plan: Plan) -> None:
    at = _value(draw, plan, whole=False)
    value = plan.values[at]
    dims = [dim for dim, names in enumerate(value.dims) if names]
    if not dims:
        return
    dim = draw.pick(dims)
    held = value.dims[dim]
    names = _axes(draw, held)
    rest = held[: len(held) - len(names)]
    if set(rest) & set(names):
        _add(plan, draw, "all_gather", (at,), refused="gather the last ones first", names=names)
    elif value.whole.shape[dim] % count(held, plan.axes):
        _add(plan, draw, "all_gather", (at,), refused="needs even parts", names=names)
    else:
        gathered = tuple(rest if d == dim else split_by for d, split_by in enumerate(value.dims))
        _add(plan, draw, "all_gather", (at,), Value(value.whole, gathered, value.partial, value.exact), names=names)


_KINDS = [
    _scale,
    _add_two,
    _reshard,
    _product,
    _reduce,
    _all_reduce,
    _all_gather,
    _rows,
    _two_results,
    _new,
    _reshard,
    _all_reduce,
]
