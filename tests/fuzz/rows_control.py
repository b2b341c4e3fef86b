"""How a kernel is put together: its outputs, branches, loops, helpers and pipelines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rows_memory
import semantics
from grammar import MOST, ROWS, SHAPES, Grammar, Unfit, contents, other, row
from programs import (
    Block,
    Frame,
    Jump,
    Leave,
    Let,
    Number,
    Program,
    Shape,
    Statement,
    Tensor,
    Var,
    execute,
    owned,
    padded,
    walk,
    window,
)
from values import BF16, BOOL, DTYPES, EIGHTS, F16, F32, F64, INT32, INTEGERS, Value, is_float

NUMERIC = [F32, INT32, F16, F64, *INTEGERS[1:]]


class Unknown(Exception):
    """A branch on what nobody knows: the program says nothing."""


# ------------------------------------------------------------------------------------------------------------- carried variables


def carried(g: Grammar, source: Var) -> Var:
    """A variable that will be assigned again."""
    var = Var(g.name("c"), source.dtype, source.shape, source.sure)
    g.body.append(Let("{0}", (source,), (var,), lambda _, v: v, pure=False))
    return var


def assign(g: Grammar, target: Var) -> None:
    """`target` becomes something else of its type, as a rule what was computed last."""
    wanted = [
        v for v in g.scope if v.dtype == target.dtype and v.shape == target.shape and (v.sure or not target.sure) and v != target
    ]  # fmt: skip
    source = wanted[-1] if wanted and g.draw.chance(70) else None
    if source is None:
        g.scope.append(target)
        names = ["bitwise_xor"] if target.dtype == BOOL else ["maximum", "minimum"]
        x = g.exactly_like(Var("", target.dtype, target.shape))
        name = g.draw.pick(names)
        larger = name == "maximum"
        compute: Callable[..., Value] = lambda a, b: semantics.extreme(a, b, larger)  # noqa: E731
        if target.dtype == BOOL:
            compute = lambda a, b: semantics.certain(np.bitwise_xor, a, b)  # noqa: E731
        source = g.let(f"tk.{name}({{0}}, {{1}})", [target, x], target.dtype, target.shape, compute, sure=target.sure)
    g.body.append(Let("{0}", (source,), (target,), lambda _, v: v, pure=False))


def _to_carry(g: Grammar) -> list[Var]:
    count = 1 + g.draw.chance(30)
    sources = [g.some([d for d in NUMERIC if d not in EIGHTS] + [BOOL], sure=False) for _ in range(count)]
    return [carried(g, s) for s in sources]


def _inside(
    g: Grammar, targets: Sequence[Var], turns: int, most: int, numbers: Sequence[Number] = (), jump: bool = True
) -> list[Statement]:
    """A body that changes the carried variables."""
    with g.inner(turns) as body:
        g.scope += list(targets)
        g.numbers += list(numbers)
        if jump and g.draw.chance(20):
            conditions = [n for n in g.numbers if n.low < n.high]
            if conditions:
                n = g.draw.pick(conditions[::-1])
                bound = g.draw.between(n.low, n.high)
                test = Number(f"{n.text} == {bound}", lambda f, n=n, bound=bound: n.value(f) == bound, 0, 1)
                kind = g.draw.pick(["break", "continue"]) if numbers and not numbers[0].text.startswith("w") else "break"
                body.append(Jump(test, kind))
        g.some_statements(1, most)
        for target in targets:
            assign(g, target)
    return body


def _looped(frame: Frame, run: Callable[[], None]) -> bool:
    """One turn; False after a `break`."""
    try:
        run()
    except Leave as leave:
        if str(leave) == "return":
            raise
        return str(leave) != "break"
    return True


@other
def for_loop(g: Grammar) -> None:
    """`for i in range(...)`, with constant bounds or such as only the launch knows."""
    if g.depth > 1:
        raise Unfit
    targets = _to_carry(g)
    name = g.name("j")
    start, step = g.draw.pick([(0, 1), (1, 1), (0, 2), (3, -1)])
    stop = g.number(0, 4)
    turns = max(1, len(range(start, stop.high, step)))
    reach = [v for end in range(stop.low, stop.high + 1) for v in range(start, end, step)] or [0]
    number = Number(name, lambda f: f.numbers[name], min(reach), max(reach))

    def run(frame: Frame, body: Callable[[], None]) -> None:
        for value in range(start, stop.value(frame), step):
            frame.numbers[name] = value
            if not _looped(frame, body):
                return

    body = _inside(g, targets, turns, 4, [number])
    bounds = stop.text if (start, step) == (0, 1) else f"{start}, {stop.text}" if step == 1 else f"{start}, {stop.text}, {step}"
    g.body.append(Block(f"for {name} in range({bounds}):", body, run, writes=tuple(targets)))
    g.scope += targets


@other
def while_loop(g: Grammar) -> None:
    """`while n > 0:`."""
    if g.depth > 1:
        raise Unfit
    targets = _to_carry(g)
    name, start = g.name("w"), g.number(0, 3)
    number = Number(name, lambda f: f.numbers[name], 1, max(1, start.high))

    def run(frame: Frame, body: Callable[[], None]) -> None:
        for value in range(start.value(frame), 0, -1):
            frame.numbers[name] = value
            if not _looped(frame, body):
                return

    body = _inside(g, targets, max(1, start.high), 3, [number])
    g.body.append(Let(f"{start.text} + 0", (), (), lambda _: (), pure=False, to=name))
    g.body.append(Block(f"while {name} > 0:", body, run, writes=tuple(targets), after=(f"{name} = {name} - 1",)))
    g.scope += targets


@other
def branch(g: Grammar) -> None:
    """`if`, by where the block is, by a scalar, or by an element."""
    if g.depth > 2:
        raise Unfit
    targets = _to_carry(g)
    reads: tuple[Var, ...] = ()
    conditions = [n for n in g.numbers if n.low < n.high]
    if conditions and g.draw.chance(60):
        n = g.draw.pick(conditions[::-1])
        bound = g.draw.between(n.low, n.high)
        symbol = g.draw.pick(["==", ">", "<="])
        head = f"if {n.text} {symbol} {bound}:"
        test = {"==": lambda v: v == bound, ">": lambda v: v > bound, "<=": lambda v: v <= bound}[symbol]
        value: Callable[[Frame], bool] = lambda f: test(n.value(f))  # noqa: E731
    else:
        x = g.some([BOOL, INT32])
        kind = g.draw.pick(["any", "all"])
        if x.shape:
            function = np.any if kind == "any" else np.all
            x = g.let(
                f"tk.{kind}({{0}})", [x], BOOL, (), lambda a: Value(function(a.array), np.inf if np.any(a.off > 0) else 0.0)
            )  # fmt: skip
        head, reads = ("if {0}:" if x.dtype == BOOL else "if {0}.item() > 0:"), (x,)
        condition = x

        def value(frame: Frame) -> bool:
            found = frame.values[condition.name]
            if found.error is not None:
                raise Unknown
            return bool(found.array > 0)

    body = _inside(g, targets, 1, 3, jump=False)
    other_body = _inside(g, targets, 1, 3, jump=False) if g.draw.chance(50) else []

    def run(frame: Frame, then: Callable[[], None]) -> None:
        if value(frame):
            then()
        else:
            execute(other_body, frame)

    g.body.append(Block(head, body, run, other_body, reads, tuple(targets)))
    g.scope += targets


@other
def early_return(g: Grammar) -> None:
    """`if ...: return`, for some of the blocks."""
    conditions = [n for n in g.numbers if n.low < n.high and "bid" in n.text]
    if g.depth or g.mapped is not None or not conditions:
        raise Unfit
    n = g.draw.pick(conditions)
    bound = g.draw.between(n.low, n.high)
    g.body.append(Jump(Number(f"{n.text} == {bound}", lambda f: n.value(f) == bound, 0, 1), "return"))


@other
def helper(g: Grammar) -> None:
    """A `@tk.function` of one's own, called once or twice."""
    if g.pure or g.depth > 1:
        raise Unfit
    arguments = [g.some(None) for _ in range(1 + g.draw.chance(50))]
    inner = Grammar(g.draw, g.mode, g.seed)
    inner._names, inner.pure = g._names, True
    parameters = [Var(inner.name("p"), a.dtype, a.shape) for a in arguments]
    inner.scope = list(parameters)
    inner.some_statements(1, 4)
    results = inner.scope[-2:] if g.draw.chance(30) else inner.scope[-1:]
    g._names = inner._names
    name = g.name("h")
    from programs import Writer, indented

    end = Let(", ".join(f"{{{i}}}" for i in range(len(results))), tuple(results), (), lambda *_: (), pure=False, to="return ")
    lines = Writer([*inner.body, end]).body([*inner.body, end])
    lines[-1] = lines[-1].replace("return  = ", "return ")
    g.helpers.append(
        "\n".join(["@tk.function", f"def {name}({', '.join(p.name for p in parameters)}):", *indented(lines), "", "", ""])
    )

    def compute(frame: Frame, *values: Value) -> Any:
        within = Frame(frame.block, frame.grid, frame.memory, dict(zip((p.name for p in parameters), values, strict=True)))
        execute(inner.body, within)
        made = tuple(within.values[r.name] for r in results)
        return made if len(made) > 1 else made[0]

    for _ in range(1 + g.draw.chance(20)):
        made = [Var(g.name(), r.dtype, r.shape, r.sure) for r in results]
        g.body.append(
            Let(f"{name}({', '.join(f'{{{i}}}' for i in range(len(arguments)))})", tuple(arguments), tuple(made), compute)
        )
        g.scope += made


# ------------------------------------------------------------------------------------------------------------------- pipelines


@row("pipelined")
def pipelined(g: Grammar) -> None:
    """Tiles of one or two tensors, one after the other, in a loop that adds them up, or folds each and adds that up."""
    if g.depth > 0 or len(g.tensors) > 7:
        raise Unfit
    first = g.dtype([F16, F32, BF16, DTYPES["int8"], F64, INT32])
    m, k, n = g.draw.pick([16, 8, 32]), g.draw.pick([16, 8, 32]), g.draw.pick([16, 8, 32])
    count = g.draw.pick([2, 1, 3, 0, 5])
    extent = max(1, k * count - (g.draw.below(k) if g.draw.chance(40) and count else 0))
    tiles = math.ceil(extent / k) if count else 0
    streams, names, shapes = [], [], []
    for at in range(1 + g.draw.chance(60)):
        shape = (m, k) if at == 0 else (k, n)
        rows = max(1, m - (g.draw.below(m) if g.draw.chance(30) else 0)) if at == 0 else n
        whole = (rows, extent) if at == 0 else (extent, rows)
        streams.append(rows_memory.tensor_of(g, first, whole))
        names.append(Var(g.name("t"), first, shape))
        shapes.append(shape)
    cut = ":" if count else ":0"
    parts = [
        f"{x.name}.tiles({s})[{'0, ' + cut if i == 0 else cut + ', 0'}]"
        for i, (x, s) in enumerate(zip(streams, shapes, strict=True))
    ]
    acc_dtype = F64 if first == F64 else F32 if is_float(first) else INT32
    product = len(streams) == 2 and first != INT32
    acc_shape = (m, n) if product else (m, k)
    folds = not product and (g.mode == "exact" or not is_float(first)) and g.draw.chance(60)
    axis, larger = g.draw.below(2), folds and g.draw.chance(40)
    if folds:
        acc_shape = (1, k) if axis == 0 else (m, 1)
    start = g.let(
        f"tk.zeros({acc_shape}, tk.{acc_dtype.name})", (), acc_dtype, acc_shape, lambda: Value(np.zeros(acc_shape, acc_dtype))
    )
    acc = Var(g.name("c"), acc_dtype, acc_shape, g.mode == "exact" or not is_float(acc_dtype))
    g.body.append(Let("{0}", (start,), (acc,), lambda _, v: v, pure=False))
    with g.inner(max(1, tiles)) as body:
        g.scope += [*names, acc]
        ta = names[0]
        if g.draw.chance(60):
            ta = g.draw.pick([_shrunk, _absolute, _doubled])(g, ta)
        if product:
            made = g.let(
                "tk.mma({0}, {1}, {2})", [ta, names[1], acc], acc_dtype, acc_shape,
                lambda a, b, c: semantics.product(a, b, c, acc_dtype, "ieee"), sure=acc.sure,
            )  # fmt: skip
        elif folds:
            tb = g.converted(ta, acc_dtype)
            made = g.let(
                f"tk.maximum({{0}}, tk.max({{1}}, {axis}, keepdims=True))" if larger
                else f"{{0}} + tk.sum({{1}}, {axis}, keepdims=True)", [acc, tb], acc_dtype, acc_shape,
                lambda a, b: semantics.extreme(a, semantics.most(b, (axis,), True, True), True) if larger
                else semantics.add(a, semantics.total(b, (axis,), True)), sure=acc.sure,
            )  # fmt: skip
        else:
            tb = g.converted(ta, acc_dtype)
            made = g.let("{0} + {1}", [acc, tb], acc_dtype, acc_shape, semantics.add, sure=acc.sure)
        g.some_statements(0, 2)
        g.body.append(Let("{0}", (made,), (acc,), lambda _, v: v, pure=False))

    def run(frame: Frame, turn: Callable[[], None]) -> None:
        for at in range(tiles):
            for x, var in zip(streams, names, strict=True):
                place = (0, at) if var is names[0] else (at, 0)
                frame.values[var.name] = Value(padded(x.array[window(place, var.shape)], var.shape, 0))
            if not _looped(frame, turn):
                return

    stages = g.draw.pick(["", "", ", stages=2", ", stages=1"])
    head = f"for {', '.join(v.name for v in names)} in tk.pipelined({', '.join(parts)}{stages}):"
    if len(parts) == 1 and g.draw.chance(40):
        head = f"for {names[0].name} in {parts[0]}:"
    g.body.append(Block(head, body, run, writes=(acc, *names)))
    g.scope.append(acc)


def _shrunk(g: Grammar, x: Var) -> Var:
    return g.let("tk.clip({0}, -1, 1)", [x], x.dtype, x.shape, lambda a: _clipped(a))


def _clipped(a: Value) -> Value:
    bounds = [Value(np.array(b).astype(a.dtype)) for b in (-1, 1)]
    return semantics.extreme(semantics.extreme(a, bounds[0], True), bounds[1], False)


def _absolute(g: Grammar, x: Var) -> Var:
    return g.let("tk.abs({0})", [x], x.dtype, x.shape, lambda a: Value(np.abs(a.array), a.error))


def _doubled(g: Grammar, x: Var) -> Var:
    return g.let("{0} + {0}", [x], x.dtype, x.shape, lambda a: semantics.add(a, a))


# --------------------------------------------------------------------------------------------------------------------- outputs


def _stored(name: str, var: Var, tile: Shape, place: Callable[[Frame], Shape]) -> Callable[..., Any]:
    def compute(frame: Frame, value: Value) -> tuple[()]:
        where = window(place(frame), tile)
        memory = frame.memory[name]
        inside = memory.array[where]
        part = tuple(map(slice, inside.shape))
        rows_memory.write(frame, name, where, value.moved(lambda a: np.broadcast_to(a, tile)[part]))
        return ()

    return compute


def _output(g: Grammar, var: Var, grid: Shape) -> None:
    """One more output, for a tile: a partition of the same grid, or a tensor that is scattered."""
    shape = var.shape or (2,)
    if g.mapped is None and g.draw.chance(70):
        while len(shape) < 3 and any(n > 1 for n in grid[len(shape) :]):
            shape = (*shape, 1)
        counts = (grid[0], 1, *grid[1:]) if len(shape) == 4 else grid[: len(shape)]
        text = "{0}" if shape == var.shape or not var.shape else f"{{0}}.reshape({shape})"
        extents = tuple(n * c - (g.draw.below(n) if g.draw.chance(30) else 0) for n, c in zip(shape, counts, strict=True))
        y = rows_memory.tensor_of(g, var.dtype, extents, "Out", shape)
        store = _stored(y.name, var, shape, lambda f: owned(f, len(shape), extents, shape))
        reshaped = lambda f, v: store(f, v.moved(lambda a: a.reshape(shape)) if var.shape else v)  # noqa: E731
        g.body.append(Let(f"{y.name}.store({text})", (var,), (), reshaped, pure=False, to=""))
        return
    linear = g.linear
    extents = (shape[0] * (linear.high + 1), *shape[1:])
    y = rows_memory.tensor_of(g, var.dtype, extents, "Out", ())
    index = ", ".join([linear.text, *("0" for _ in shape[1:])])
    index = f"({index})" if len(shape) > 1 else index
    text = "{0}" if var.shape else f"tk.broadcast_to({{0}}, {shape})"
    store = _stored(y.name, var, shape, lambda f: (linear.value(f), *(0 for _ in shape[1:])))
    g.body.append(Let(f"tk.store({y.name}, {index}, {text})", (var,), (), store, pure=False, to=""))


def _main_output(g: Grammar, y: Tensor) -> None:
    """What the first output gets: what was computed last, brought to its shape."""
    tile: Shape = y.tile or ()
    options = [v for v in reversed(g.scope) if not (y.role == "InOut" and v.dtype != y.array.dtype)]
    var = next((v for v in options if math.prod(v.shape) == math.prod(tile) or v.shape == ()), None)
    if var is None:
        var = g.let(f"tk.zeros({tile}, tk.{'bool_' if y.array.dtype == BOOL else y.array.dtype.name})", (), y.array.dtype, tile,
                    lambda: Value(np.zeros(tile, y.array.dtype)))  # fmt: skip
    if y.role == "Out":
        rng = np.random.default_rng([*repr((g.seed, g.mode, y.name)).encode()])
        y.array = contents(rng, y.array.shape, var.dtype, g.mode)
    text = "{0}" if var.shape in (tile, ()) else f"{{0}}.reshape({tile})"
    extents = y.array.shape
    place: Callable[[Frame], Shape] = lambda f: owned(f, len(tile), extents, tile)  # noqa: E731
    mask = None
    if g.mapped is not None:
        call = f"{y.name}.store({text}, tile)"
    elif len(tile) < 4 and g.draw.chance(30):
        index = ", ".join(f"tk.bid({d})" for d in range(len(tile)))
        mask = g.draw.between(0, tile[-1]) if g.draw.chance(40) else None
        more = "" if mask is None else f", mask=tk.arange({tile[-1]}) < {mask}"
        call = f"tk.store({y.name}, ({index},), {text}{more})"
    else:
        call = f"{y.name}.store({text})"

    def compute(frame: Frame, value: Value) -> tuple[()]:
        where = window(place(frame), tile)
        inside = frame.memory[y.name].array[where]
        part = tuple(map(slice, inside.shape))
        chosen = None if mask is None else np.broadcast_to(np.arange(tile[-1]) < mask, tile)[part]
        shaped = value.moved(lambda a: (a.reshape(tile) if a.shape else np.broadcast_to(a, tile))[part])
        rows_memory.write(frame, y.name, where, shaped, chosen)
        return ()

    g.body.append(Let(call, (var,), (), compute, pure=False, to=""))


def _places(g: Grammar, tile: Shape, counts: Shape, grid: Shape) -> None:
    """The integers that say where a block is."""
    if g.mapped is not None:
        for d, n in enumerate(counts):
            g.numbers.append(Number(f"i{d}", lambda f, d=d: f.block[d], 0, n - 1))
        text = "i0"
        for d in range(1, len(counts)):
            text = f"({text} * {counts[d]} + i{d})"
        value: Callable[[Frame], int] = lambda f: int(np.ravel_multi_index(f.block, counts))  # noqa: E731
        g.linear = Number(f"({text})", value, 0, math.prod(counts) - 1)
        return
    for d, n in enumerate(grid):
        g.numbers.append(Number(f"tk.num_blocks({d})", lambda f, n=n: n, n, n))
        g.numbers.append(Number(f"(tk.num_blocks({d}) - 1 - tk.bid({d}))", lambda f, d=d, n=n: n - 1 - f.block[d], 0, n - 1))
        g.numbers.append(Number(f"tk.bid({d})", lambda f, d=d: f.block[d], 0, n - 1))
    text = "(tk.bid(0) + tk.num_blocks(0) * (tk.bid(1) + tk.num_blocks(1) * tk.bid(2)))"
    value = lambda f: f.block[0] + grid[0] * (f.block[1] + grid[1] * f.block[2])  # noqa: E731
    g.linear = Number(text, value, 0, math.prod(grid) - 1)


def grow(g: Grammar) -> Program:
    """A whole kernel."""
    draw = g.draw
    tile = draw.pick([s for s in SHAPES if math.prod(s) <= MOST])
    counts = tuple(draw.pick([1, 2, 3]) if d < 2 or draw.chance(30) else 1 for d in range(len(tile)))
    g.mapped = draw.pick([2, 1, 3]) if draw.chance(15) else None
    extents = tuple(n * c - (draw.below(n) if draw.chance(40) else 0) for n, c in zip(tile, counts, strict=True))
    role = "InOut" if draw.chance(25) else "Out"
    y = rows_memory.tensor_of(g, g.dtype([F32, INT32, F16, BF16, F64, *INTEGERS[1:], BOOL]), extents, role, tile)
    if len(tile) == 4:
        grid = (counts[0] * counts[1], *counts[2:])
    else:
        grid = (*counts, *(1 for _ in range(3 - len(counts))))
    _places(g, tile, counts, grid)
    if role == "InOut":

        def read(frame: Frame) -> Value:
            where = window(owned(frame, len(tile), extents, tile), tile)
            return Value(padded(y.array[where], tile, 0))

        g.of_frame(f"{y.name}.load({'tile' if g.mapped is not None else ''})", (), y.array.dtype, tile, read, pure=False)
    else:
        g.fresh(g.dtype([F32, INT32, F16]), tile)
    g.some_statements(2, 10)
    used = {v.name for s in walk(g.body) for v in s.reads}
    leaves = [v for v in g.scope if v.name not in used]
    _main_output(g, y)
    used = {v.name for s in walk(g.body) for v in s.reads}
    for var in [v for v in leaves[::-1] if v.name not in used][:3]:
        if len(g.tensors) < 11:
            _output(g, var, grid)
    warps = draw.pick([None, None, None, 1, 2, 4, 8])
    group = tuple(draw.pick([1, 2]) for _ in tile) if g.mapped is not None and draw.chance(40) else None
    return Program(
        g.seed, g.mode, counts if g.mapped is not None else grid, g.tensors, g.scalars, g.body, g.helpers, warps, g.mapped,
        g.constants, group,
    )  # fmt: skip


__all__ = ["ROWS", "Unknown", "grow"]
