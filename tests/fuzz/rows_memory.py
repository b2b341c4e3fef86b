"""Rows of operations that read tensors, or write elements of them that no block owns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import semantics
from grammar import Grammar, Unfit, contents, meeting, row
from programs import Number, Shape, Tensor, Var, dtype_text, padded, window
from values import BOOL, DTYPES, EIGHTS, F32, F64, FLOATS, FORMATS, INT32, Array, DType, Value, is_float

MEMORY = {
    "load", "load_tile_like", "gather", "scatter", "store", "bid", "num_blocks", "num_tiles", "pipelined", "atomic_add",
    "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg", "atomic_cas", "atomic_add_tile",
    "assert_", "static_assert",
}  # fmt: skip
LAYOUTS = ["plain", "offset", "strided", "reversed", "permuted", "repeated"]
_EVICTION = ["evict_first", "evict_last", "no_allocate"]


def tensor_of(g: Grammar, dtype: DType, extents: Shape, role: str = "In", tile: Shape | None = None) -> Tensor:
    """A new parameter."""
    with g.draw.span():
        layout = g.draw.pick(LAYOUTS[: 5 if role != "In" else 6]) if g.draw.chance(50) else "plain"
        name = f"{'x' if role == 'In' else 'y'}{len(g.tensors)}"
        rng = np.random.default_rng([*repr((g.seed, g.mode, name)).encode()])
        array = contents(rng, extents, dtype, g.mode)
        if layout == "repeated":
            array = np.broadcast_to(array[:1], array.shape).copy()
        made = Tensor(name, array, role, tile, layout)
        g.tensors.append(made)
    return made


def index_of(g: Grammar, counts: Sequence[int]) -> list[Number]:
    """An index of a tile, where there are so many."""
    return [g.number(0, n - 1) for n in counts]


def shown(index: Sequence[Number]) -> str:
    """Its text."""
    texts = [n.text for n in index]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def at(index: Sequence[Number], frame: Any) -> list[int]:
    """Its value in a block."""
    return [n.value(frame) for n in index]


def _ragged(g: Grammar, n: int, counts: int) -> int:
    """An extent that is cut into so many tiles of `n`."""
    return n * counts - (g.draw.below(n) if g.draw.chance(40) else 0)


def _input(g: Grammar, dtype: DType, shape: Shape) -> Tensor:
    """A tensor to load tiles of this shape from: one that there is, or a new one."""
    there = [t for t in g.tensors if t.role == "In" and t.array.dtype == dtype and t.array.ndim == len(shape) and t.tile is None]
    if there and g.draw.chance(50):
        return g.draw.pick(there)
    wanted = [max([n.high + 1 for n in g.numbers if n.low == 0 and n.high < 4], default=1) for _ in shape]
    counts = [g.draw.pick([1, 2, w]) for w in wanted]
    return tensor_of(g, dtype, tuple(_ragged(g, n, c) for n, c in zip(shape, counts, strict=True)))


def load_of(g: Grammar, dtype: DType, shape: Shape) -> Var:
    """A tile of this dtype and shape from a tensor, in one of the many ways."""
    kind = g.draw.pick(["load", "padded", "tiles", "masked", "order", "view", "slice", "gather"])
    if kind == "order" and len(shape) > 1:
        return _ordered(g, dtype, shape)
    x = _input(g, dtype, shape)
    counts = [math.ceil(e / n) for e, n in zip(x.array.shape, shape, strict=True)]
    if kind == "gather" and len(shape) < 3:
        return _gathered(g, x, shape)
    if kind == "view":
        steps = tuple(g.draw.pick([n, max(1, n // 2), n + 1]) for n in shape)
        index = index_of(g, [math.ceil(e / s) for e, s in zip(x.array.shape, steps, strict=True)])
        steps_text = "" if steps == shape else f", traversal_steps={steps}"
        text = f"{x.name}.tiled_view({shape}{steps_text}).load({shown(index)})"
        return _loaded(g, text, x, shape, lambda f: padded(x.array[window(at(index, f), shape, steps)], shape, 0))
    if kind == "slice":
        axis = g.draw.below(len(shape))
        start = g.number(0, x.array.shape[axis] - 1)
        stop = g.number(start.high + 1, x.array.shape[axis]) if g.draw.chance(50) else None
        index = [Number("0", lambda _: 0, 0, 0) if d == axis else g.number(0, c - 1) for d, c in enumerate(counts)]
        more = "" if stop is None else f", {stop.text}"

        def sliced(frame: Any) -> Array:
            cut = tuple(
                slice(start.value(frame), None if stop is None else stop.value(frame)) if d == axis else slice(None)
                for d in range(len(shape))
            )
            part = x.array[cut]
            return padded(part[window(at(index, frame), shape)], shape, 0)

        return _loaded(g, f"tk.load({x.name}.slice({axis}, {start.text}{more}), {shown(index)}, {shape})", x, shape, sliced)
    index = index_of(g, counts)
    if kind == "tiles":
        text = f"{x.name}.tiles({shape})[{', '.join(n.text for n in index)}]"
        return _loaded(g, text, x, shape, lambda f: padded(x.array[window(at(index, f), shape)], shape, 0))
    if kind == "masked":
        return _masked(g, x, shape, index)
    more, fill = _padding(g, dtype) if kind == "padded" else ("", 0)
    if g.draw.chance(15):
        more += f", eviction_policy={g.draw.pick(_EVICTION)!r}"
    text = f"tk.load({x.name}, {shown(index)}, {shape}{more})"
    return _loaded(g, text, x, shape, lambda f: padded(x.array[window(at(index, f), shape)], shape, fill))


def _loaded(g: Grammar, text: str, x: Tensor, shape: Shape, read: Any) -> Var:
    return g.of_frame(text, (), x.array.dtype, shape, lambda frame: Value(read(frame)))


def _padding(g: Grammar, dtype: DType) -> tuple[str, Any]:
    if is_float(dtype) and g.draw.chance(60):
        modes = {"neg_zero": -0.0, "nan": np.nan, "inf": np.inf, "-inf": -np.inf}
        mode = g.draw.pick(
            ["neg_zero"] if g.mode == "exact" else ["neg_zero", "nan", *(["inf", "-inf"] if dtype != EIGHTS[0] else [])]
        )
        return f", padding_mode={mode!r}", modes[mode]
    value = g.draw.pick([True, False] if dtype == BOOL else [1, 0, 2])
    return f", padding_value={value}", value


def _masked(g: Grammar, x: Tensor, shape: Shape, index: list[Number]) -> Var:
    there = [v for v in g.scope if v.dtype == BOOL and v.sure and meeting(v.shape, shape) == shape]
    if not there:
        n = shape[-1]
        bound = g.draw.between(0, n)
        there = [g.let(f"tk.arange({n}) < {bound}", (), BOOL, (n,), lambda: Value(np.arange(n) < bound))]
    mask = g.draw.pick(there)
    more, fill = _padding(g, x.array.dtype) if g.draw.chance(50) else ("", 0)

    def compute(frame: Any, m: Value) -> Value:
        made = padded(x.array[window(at(index, frame), shape)], shape, fill)
        unknown = np.where(m.off > 0, np.inf, 0.0)
        return Value(np.where(m.array, made, np.asarray(fill).astype(made.dtype)), np.broadcast_to(unknown, shape))

    return g.of_frame(f"tk.load({x.name}, {shown(index)}, {shape}, mask={{0}}{more})", [mask], x.array.dtype, shape, compute)


def _ordered(g: Grammar, dtype: DType, shape: Shape) -> Var:
    rank = len(shape)
    along = tuple(reversed(range(rank))) if g.draw.chance(50) else tuple(sorted(range(rank), key=lambda d: (d * 7 + 3) % rank))
    extents = [0] * rank
    for place, dim in enumerate(along):
        extents[dim] = _ragged(g, shape[place], g.draw.pick([1, 2]))
    x = tensor_of(g, dtype, tuple(extents))
    turned = x.array.transpose(along)
    index = index_of(g, [math.ceil(e / n) for e, n in zip(turned.shape, shape, strict=True)])
    order = repr("F" if along == tuple(reversed(range(rank))) else along)
    text = f"tk.load({x.name}, {shown(index)}, {shape}, order={order})"
    return _loaded(g, text, x, shape, lambda f: padded(turned[window(at(index, f), shape)], shape, 0))


def _gathered(g: Grammar, x: Tensor, shape: Shape) -> Var:
    """Elements by index: of each dimension a tile of indices, which broadcast to `shape`."""
    indices = []
    for d, extent in enumerate(x.array.shape):
        part = tuple(n if e == d else 1 for e, n in enumerate(shape))
        n = shape[d]
        factor, start = g.draw.pick([1, 3, 5]), g.draw.below(max(1, extent))
        view = "" if len(shape) == 1 else "[:, None]" if d == 0 else "[None, :]"

        def places(n: int = n, factor: int = factor, start: int = start, extent: int = extent, part: Shape = part) -> Value:
            return Value((((np.arange(n) * factor + start) % extent).astype(np.int32)).reshape(part))

        indices.append(g.let(f"((tk.arange({n}) * {factor} + {start}) % {extent}){view}", (), INT32, part, places))
    mask = None
    if g.draw.chance(30):
        there = [v for v in g.scope if v.dtype == BOOL and v.sure and v.shape == shape]
        mask = g.draw.pick(there) if there else None
    names = ", ".join(f"{{{i}}}" for i in range(len(indices)))
    more = f", mask={{{len(indices)}}}, padding_value=1" if mask is not None else ""

    def compute(_: Any, *values: Value) -> Value:
        places = tuple(v.array for v in values[: len(indices)])
        made = np.broadcast_to(x.array[places], shape)
        if mask is None:
            return Value(made)
        chosen = values[-1]
        one = np.asarray(True if made.dtype == BOOL else 1).astype(made.dtype)
        return Value(np.where(chosen.array, made, one), np.where(chosen.off > 0, np.inf, 0.0))

    text = f"tk.gather({x.name}, ({names},){more})"
    return g.of_frame(text, [*indices, *([mask] if mask is not None else [])], x.array.dtype, shape, compute)


@row("load", "gather")
def load(g: Grammar) -> None:
    """A tile of a tensor."""
    if len(g.tensors) > 8:
        raise Unfit
    load_of(g, g.dtype(list(DTYPES.values())), g.shape())


@row("load_tile_like")
def load_tile_like(g: Grammar) -> None:
    """The tile where the block's own is, of a tensor of the same extents."""
    y = g.tensors[0]
    if y.tile is None or len(g.tensors) > 8:
        raise Unfit
    tile: Shape = y.tile
    there = [t for t in g.tensors if t.role == "In" and t.array.shape == y.array.shape]
    x = g.draw.pick(there) if there and g.draw.chance(40) else tensor_of(g, g.dtype(list(DTYPES.values())), y.array.shape)
    like = "tile" if g.mapped is not None else y.name
    more, fill = ("", 0.0)
    if is_float(x.array.dtype) and g.draw.chance(20):
        more, fill = ", padding_mode='neg_zero'", -0.0
    from programs import owned

    def read(frame: Any) -> Array:
        place = owned(frame, y.array.ndim, y.array.shape, tile)
        return padded(x.array[window(place, tile)], tile, fill)

    _loaded(g, f"tk.load_tile_like({x.name}, {like}{more})", x, tile, read)


@row("bid", "num_blocks", "num_tiles")
def places(g: Grammar) -> None:
    """A tile that says where the block is, or how large a tensor."""
    inputs = [t for t in g.tensors if t.role == "In"]
    if inputs and g.draw.chance(50):
        x = g.draw.pick(inputs)
        axis = g.draw.below(x.array.ndim)
        cut = g.draw.pick([4, 2, 8])
        shape = tuple(cut for _ in x.array.shape)
        tiles = math.ceil(x.array.shape[axis] / cut)
        if g.draw.chance(50):
            g.numbers.append(Number(f"{x.name}.shape[{axis}]", lambda _: x.array.shape[axis], *[x.array.shape[axis]] * 2))
        else:
            g.numbers.append(Number(f"tk.num_tiles({x.name}, {axis}, {shape})", lambda _: tiles, tiles, tiles))
        number = g.numbers[-1]
    else:
        number = g.number(0, 64)
    n = g.draw.pick([4, 8])
    g.of_frame(
        f"tk.arange({n}) + {number.text}", (), INT32, (n,), lambda f: Value((np.arange(n) + number.value(f)).astype(np.int32))
    )  # fmt: skip


@row("assert_")
def assertion(g: Grammar) -> None:
    """One that holds: whatever becomes of the value, nothing is stopped."""
    x = g.some([INT32])
    g.do("tk.assert_(({0} == {0}), 'holds')", [x], lambda *_: None)


@row("static_assert")
def static_assertion(g: Grammar) -> None:
    """What the types of tiles say."""
    x = g.some(None, sure=False)
    g.do(f"tk.static_assert({{0}}.shape == {x.shape} and {{0}}.dtype == {dtype_text(x.dtype)})", [x], lambda *_: None)


# ------------------------------------------------------------------------------------------------------------- written anywhere


def _unique(g: Grammar, n: int) -> tuple[str, Any, int]:
    """Indices that no other block has: their text, their values, and how large the tensor is."""
    block = g.linear
    size = n * (block.high + 1)
    kind = g.draw.below(3)
    text = {
        0: f"tk.arange({n}) + {block.text} * {n}",
        1: f"{size - 1} - (tk.arange({n}) + {block.text} * {n})",
        2: f"tk.arange({n}) * {block.high + 1} + {block.text}",
    }[kind]

    def indices(frame: Any) -> Array:
        b = block.value(frame)
        return [np.arange(n) + b * n, size - 1 - (np.arange(n) + b * n), np.arange(n) * (block.high + 1) + b][kind]

    return text, indices, size


def _scattered(g: Grammar, dtype: DType, size: int) -> Tensor:
    if len(g.tensors) > 9 or g.turns > 1:
        raise Unfit
    return tensor_of(g, dtype, (size,), "InOut", ())


@row("scatter", "store")
def scatter(g: Grammar) -> None:
    """Elements at places of the block's own."""
    x = g.some([F32, INT32, *DTYPES.values()], rank=1, sure=False)
    text, indices, size = _unique(g, x.shape[0])
    y = _scattered(g, x.dtype, size)

    def effect(frame: Any, a: Value) -> None:
        write(frame, y.name, indices(frame), a, None)

    g.do(f"tk.scatter({y.name}, {text}, {{0}})", [x], effect)


def write(frame: Any, name: str, where: Any, a: Value, mask: Any = None) -> None:
    """Elements of a tensor become others."""
    memory = frame.memory[name]
    array, off = memory.array.copy(), np.array(memory.off)
    if mask is None:
        array[where], off[where] = a.array, a.off
    else:
        array[where], off[where] = np.where(mask, a.array, array[where]), np.where(mask, a.off, off[where])
    frame.memory[name] = Value(array, off)


_WORDS = [INT32, DTYPES["uint32"], DTYPES["int64"], DTYPES["uint64"]]
_CHANGES: dict[str, tuple[Any, Sequence[DType]]] = {
    "add": (semantics.add, [*_WORDS, *FLOATS]),
    "max": (lambda a, b: semantics.extreme(a, b, True), [*_WORDS, *FLOATS]),
    "min": (lambda a, b: semantics.extreme(a, b, False), [*_WORDS, *FLOATS]),
    "and": (lambda a, b: semantics.certain(np.bitwise_and, a, b), _WORDS),
    "or": (lambda a, b: semantics.certain(np.bitwise_or, a, b), _WORDS),
    "xor": (lambda a, b: semantics.certain(np.bitwise_xor, a, b), _WORDS),
    "xchg": (lambda a, b: b, [*_WORDS, F32, F64]),
    "cas": (None, _WORDS),
}


def _changed(frame: Any, name: str, index: int, function: Any, values: Sequence[Value]) -> Value:
    """Change one element; what it was."""
    memory = frame.memory[name]
    before = Value(memory.array[index], memory.off[index])
    after = function(before, *values)
    array, off = memory.array.copy(), np.array(memory.off)
    array[index] = after.array
    off[index] = after.off
    if is_float(array.dtype) and function is semantics.add:
        # Beyond this sums are rounded, and the order of blocks is chance.
        small = abs(float(after.array)) <= 2.0 ** FORMATS[array.dtype].mantissa
        off[index] = off[index] if small else np.inf
    frame.memory[name] = Value(array, off)
    return before


def _atomic(name: str) -> None:
    function, options = _CHANGES[name]

    @row(f"atomic_{name}")
    def grow(g: Grammar) -> None:
        alone = name in ("xchg", "cas") or g.draw.chance(40)
        x = g.some([d for d in options if name != "add" or g.mode == "exact" or not is_float(d)], rank=1, most=64)
        n = x.shape[0]
        if alone:
            text, indices, size = _unique(g, n)
        else:
            size = g.draw.pick([4, 8, 3])
            factor = g.draw.pick([1, 3])
            text, indices = f"(tk.arange({n}) * {factor}) % {size}", lambda _: np.arange(n) * factor % size
        y = _scattered(g, x.dtype, size)
        masked = g.draw.chance(30)
        bound = g.draw.between(0, n)
        more = f", mask=tk.arange({n}) < {bound}" if masked else ""
        if g.draw.chance(20):
            more += f", memory_order={g.draw.pick(['acquire', 'release', 'acq_rel'])!r}"
        if g.draw.chance(20):
            more += f", memory_scope={g.draw.pick(['device', 'system'])!r}"
        expected = g.draw.pick([0, 1, 2])

        def compute(frame: Any, a: Value) -> Value:
            before, off = np.zeros(n, x.dtype), np.zeros(n)
            for i, where in enumerate(indices(frame)):
                if masked and i >= bound:
                    continue
                value = Value(a.array[i], a.off[i])
                change = function
                if name == "cas":
                    change = lambda was, new: Value(*((new.array, new.off) if was.array == expected else (was.array, was.off)))  # noqa: E731
                was = _changed(frame, y.name, int(where), change, [value])
                before[i], off[i] = was.array, was.off if alone else np.inf
            return Value(before, off)

        values = f"{expected}, {{0}}" if name == "cas" else "{0}"
        call = f"tk.atomic_{name}({y.name}, {text}, {values}{more})"
        if alone and g.draw.chance(60):
            g.of_frame(call, [x], x.dtype, (n,), compute, pure=False)
        else:

            def effect(frame: Any, a: Value) -> None:
                compute(frame, a)

            g.do(call, [x], effect)


for _name in _CHANGES:
    _atomic(_name)


@row("atomic_add_tile")
def atomic_add_tile(g: Grammar) -> None:
    """A tile added to a tile that all blocks share."""
    options = [INT32, *_WORDS[1:], *(FLOATS if g.mode == "exact" else [])]
    x = g.some(options, most=128)
    if not x.shape or g.turns > 1 or len(g.tensors) > 9:
        raise Unfit
    extents = tuple(_ragged(g, n, g.draw.pick([1, 2])) for n in x.shape)
    y = tensor_of(g, x.dtype, extents, "InOut", ())
    index = index_of(g, [math.ceil(e / n) for e, n in zip(extents, x.shape, strict=True)])

    def effect(frame: Any, a: Value) -> None:
        where = window(at(index, frame), x.shape)
        memory = frame.memory[y.name]
        inside = memory.array[where]
        part = tuple(map(slice, inside.shape))
        total = semantics.add(Value(inside, memory.off[where]), Value(a.array[part], a.off[part]))
        off = total.off
        if is_float(x.dtype):  # blocks add in any order, which nobody sees of whole numbers that are not too large
            added, wide = a.array[part].astype(np.float64), np.abs(total.array.astype(np.float64))
            off = np.where((wide <= 2.0 ** FORMATS[x.dtype].mantissa) & (added == np.trunc(added)), off, np.inf)
        write(frame, y.name, where, Value(total.array, off), None)

    g.do(f"tk.atomic_add_tile({y.name}, {shown(index)}, {{0}})", [x], effect)
