"""The grammar: how a random kernel grows, statement by statement, from choices.

`ROWS` has a function for every operation of the language, which adds one statement (or a few) that uses it: the modules
`rows_*` enter them. A row looks for operands among the tiles that there are, and makes what is missing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import semantics
from draws import Draw
from programs import Frame, Let, Number, Program, Shape, Statement, Tensor, Var, dtype_text, padded, window
from values import BF16, BOOL, DTYPES, EIGHTS, F16, F32, F64, FLOATS, INT32, INTEGERS, Array, DType, Value, is_float

Row = Callable[["Grammar"], None]
ROWS: dict[str, Row] = {}
OTHERS: dict[str, Row] = {}

# What has no result that could be compared, and has tests of its own in tests/lang/test_parity_debug.py.
EXCLUDED = {"print", "printf", "static_print"}
MOST = 256  # elements of a tile, as a rule
SHAPES: list[Shape] = [
    (4,), (8,), (16,), (32,), (128,), (4, 4), (8, 16), (16, 8), (1, 8), (32, 4), (2, 64), (2, 4, 8), (4, 1, 16), (2, 2, 2, 4),
    (1, 4, 8, 2),
]  # fmt: skip


class Unfit(Exception):
    """A row finds no operands, and would need too much for them."""


def row(name: str, *more: str) -> Callable[[Row], Row]:
    """Enter the decorated function as the generator of an operation, or of several."""

    def enter(function: Row) -> Row:
        for one in (name, *more):
            ROWS[one] = function
        return function

    return enter


def other(function: Row) -> Row:
    """Enter what is no operation: operators, branches, loops, methods."""
    OTHERS[function.__name__] = function
    return function


def contents(rng: np.random.Generator, shape: Shape, dtype: DType, mode: str) -> Array:
    """What a tensor holds: small whole numbers; in the wild anything that the dtype has."""
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if mode == "exact":
        low = 0 if dtype.kind == "u" else -3
        return rng.integers(low, 4, shape).astype(dtype)
    if not is_float(dtype):
        bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)
        small = rng.integers(0 if dtype.kind == "u" else -3, 4, shape).astype(dtype)
        limits = np.iinfo(dtype)
        edge = rng.choice(np.array([limits.min, limits.max, limits.max - 1, limits.max // 2 + 1], dtype), shape)
        return np.select([rng.random(shape) < 0.5, rng.random(shape) < 0.3], [small, edge], bits).astype(dtype)
    info = ml_dtypes.finfo(dtype)
    special = [0.0, -0.0, np.nan, 1.0, -1.0, float(info.max), -float(info.max), float(info.tiny), float(info.smallest_subnormal)]
    special += [-float(info.smallest_subnormal), 0.5, 1.5, 2.5, -3.5]
    special += [] if dtype == EIGHTS[0] else [np.inf, -np.inf]
    # One pattern of NaN: its sign and payload are nobody's promise.
    ordinary = rng.normal(0, 4, shape) * 2.0 ** rng.integers(-2, 3, shape)
    anywhere = np.ldexp(
        rng.normal(0, 1, shape), rng.integers(-30, 30, shape) if dtype.itemsize > 2 else rng.integers(-8, 8, shape)
    )
    chosen = np.select([rng.random(shape) < 0.6, rng.random(shape) < 0.5], [ordinary, anywhere], rng.choice(special, shape))
    made = chosen.astype(dtype)
    return np.where(np.isnan(made.astype(np.float64)), np.array(np.nan).astype(dtype), made).astype(dtype)


class Grammar:
    """A kernel that grows.

    Attributes:
        draw: where choices come from.
        mode: exact or wild.
        turns: the product of the turns of the loops round the place.
        pure: whether only operations without memory may come, as in a helper.
    """

    def __init__(self, draw: Draw, mode: str, seed: Any) -> None:
        self.draw, self.mode, self.seed = draw, mode, seed
        self.tensors: list[Tensor] = []
        self.scalars: dict[str, Any] = {}
        self.constants: dict[str, int] = {}
        self.helpers: list[str] = []
        self.scope: list[Var] = []
        self.numbers: list[Number] = []
        self.body: list[Statement] = []
        self.turns, self.pure, self.branched = 1, False, False
        self.depth = 0
        self.mapped: int | None = None
        self.linear = Number("0", lambda _: 0, 0, 0)  # of the block, or of the tile of a mapped kernel
        self._names = 0

    # ------------------------------------------------------------------------------------------------------------- names, types

    def name(self, letter: str = "v") -> str:
        """A fresh one."""
        self._names += 1
        return f"{letter}{self._names}"

    def dtype(self, options: Sequence[DType] | None = None) -> DType:
        """Any, or one of the options."""
        return self.draw.pick(options or [F32, INT32, F16, BF16, F64, *INTEGERS[1:], BOOL])

    def axis(self, var: Var) -> int:
        """A dimension of a tile, perhaps counted from its end; `% ndim` gives the dimension."""
        axis = self.draw.below(len(var.shape))
        return axis - len(var.shape) if self.draw.chance(30) else axis

    # ------------------------------------------------------------------------------------------------------------------- tiles

    def let(
        self,
        text: str,
        reads: Sequence[Var],
        dtype: DType,
        shape: Shape,
        compute: Callable[..., Any],
        *,
        sure: bool | None = None,
        pure: bool = True,
    ) -> Var:
        """`v = text`; `compute` is of the values that it reads."""
        known = all(v.sure for v in reads) if sure is None else sure
        var = Var(self.name(), dtype, shape, known)
        self.body.append(Let(text, tuple(reads), (var,), lambda _, *values: compute(*values), pure))
        self.scope.append(var)
        return var

    def lets(
        self, text: str, reads: Sequence[Var], types: Sequence[tuple[DType, Shape]], compute: Callable[..., Any]
    ) -> list[Var]:
        """`v, w = text`."""
        known = all(v.sure for v in reads)
        made = [Var(self.name(), dtype, shape, known) for dtype, shape in types]
        self.body.append(Let(text, tuple(reads), tuple(made), lambda _, *values: tuple(compute(*values))))
        self.scope += made
        return made

    def do(self, text: str, reads: Sequence[Var], effect: Callable[..., None]) -> None:
        """A statement for its effect."""

        def compute(frame: Frame, *values: Value) -> tuple[()]:
            effect(frame, *values)
            return ()

        self.body.append(Let(text, tuple(reads), (), compute, pure=False, to=""))

    def of_frame(self, text: str, reads: Sequence[Var], dtype: DType, shape: Shape, compute: Any, *, pure: bool = True) -> Var:
        """`v = text`, which depends on where the block is or on what memory holds."""
        var = Var(self.name(), dtype, shape, all(v.sure for v in reads))
        self.body.append(Let(text, tuple(reads), (var,), compute, pure))
        self.scope.append(var)
        return var

    def some(
        self, options: Sequence[DType] | None = None, *, sure: bool = True, rank: int | None = None, most: int = 4 * MOST
    ) -> Var:
        """A tile of one of these dtypes: one that there is, or another."""
        wanted = [
            v
            for v in self.scope
            if (options is None or v.dtype in options)
            and (v.sure or not sure)
            and (rank is None or len(v.shape) == rank)
            and math.prod(v.shape) <= most
        ]
        if wanted and not self.draw.chance(12):
            # The latest first: a kernel is rather a chain than a heap.
            return self.draw.pick(wanted[::-1][:6])
        return self.fresh(self.dtype(options), self.shape(rank))

    def shape(self, rank: int | None = None) -> Shape:
        """The shape of a tile."""
        if rank == 0:
            return ()
        return self.draw.pick([s for s in SHAPES if rank is None or len(s) == rank])

    def fresh(self, dtype: DType, shape: Shape) -> Var:
        """A tile of this dtype and shape: loaded from a tensor, or converted from another."""
        if not self.pure and len(self.tensors) < 9 and shape:
            from rows_memory import load_of

            return load_of(self, dtype, shape)
        source = next((v for v in reversed(self.scope) if v.shape == shape and v.sure and not self._wild_cast(v, dtype)), None)
        if source is not None:
            return self.converted(source, dtype)
        value = self.draw.pick([1, 0, 2, 3])
        text = f"tk.full({shape}, {bool(value) if dtype == BOOL else value}, {dtype_text(dtype)})"
        if not shape:
            text = f"tk.astile({bool(value) if dtype == BOOL else value}, dtype={dtype_text(dtype)})"
        return self.let(text, (), dtype, shape, lambda: Value(np.full(shape, value).astype(dtype)))

    def _wild_cast(self, var: Var, dtype: DType) -> bool:
        return is_float(var.dtype) and not is_float(dtype) and dtype != BOOL

    def converted(self, var: Var, dtype: DType) -> Var:
        """The tile in another dtype."""
        if var.dtype == dtype:
            return var
        text = f"{{0}}.astype({dtype_text(dtype)})" if self.draw.chance(50) else f"tk.astype({{0}}, {dtype_text(dtype)})"
        sure = var.sure and not self._wild_cast(var, dtype)
        return self.let(text, [var], dtype, var.shape, lambda x: semantics.cast(x, dtype), sure=sure or self.mode == "exact")

    def partner(self, var: Var, options: Sequence[DType] | None = None, *, sure: bool = True) -> Var:
        """A tile that meets `var`: of a shape that broadcasts, of a dtype with which there is a common one."""
        wanted = [
            v
            for v in self.scope
            if (options is None or v.dtype in options)
            and (v.sure or not sure)
            and semantics.common(v.dtype, var.dtype)
            and meeting(v.shape, var.shape) is not None
            and v.dtype not in EIGHTS
        ]
        if wanted and not self.draw.chance(20):
            return self.draw.pick(wanted[::-1][:8])
        dtype = var.dtype if options is None or var.dtype in options else options[0]
        return self.fresh(dtype, var.shape)

    def exactly_like(self, var: Var, dtype: DType | None = None) -> Var:
        """A tile of the shape and dtype of `var`, perhaps itself."""
        dtype = dtype or var.dtype
        wanted = [v for v in self.scope if v.dtype == dtype and v.shape == var.shape and v.sure]
        return self.draw.pick(wanted[::-1][:6]) if wanted and not self.draw.chance(20) else self.fresh(dtype, var.shape)

    # ----------------------------------------------------------------------------------------------------------------- scalars

    def scalar_for(self, dtype: DType, divides: bool = False) -> tuple[str, Any, DType]:
        """A scalar that meets a tile of `dtype`: its text, its value, and the dtype in which they meet.

        One that divides is 0 only where the launch decides it: the constant 0 is refused (see refusals.py).
        """
        options: list[Any] = [2, 1, 3, 0, 5]
        if dtype.kind != "u" and dtype != BOOL:
            options += [-1, -2]
        if is_float(dtype):
            options += [0.5, 1.5, -0.25, 2.0] if self.mode == "wild" else [2.0]
        value = self.draw.pick(options)
        if dtype == BOOL:
            return repr(bool(value)), bool(value), BOOL
        text = repr(value)
        if not self.pure and self.draw.chance(25):
            text = self.name("s")
            self.scalars[text] = value
        elif divides and value == 0:
            return "7", 7, dtype
        return text, value, dtype

    def number(self, low: int, high: int) -> Number:
        """An integer of the kernel that lies between."""
        fits = [n for n in self.numbers if low <= n.low and n.high <= high]
        if fits and not self.draw.chance(30):
            return self.draw.pick(fits[::-1])
        value = self.draw.between(low, high)
        if not self.pure and self.draw.chance(30):
            name = self.name("n")
            self.scalars[name] = value
            return Number(name, lambda _: value, value, value)
        return Number(str(value), lambda _: value, value, value)

    # ------------------------------------------------------------------------------------------------------------------- growth

    @contextlib.contextmanager
    def inner(self, turns: int = 1, branched: bool = True) -> Iterator[list[Statement]]:
        """A body: what is put into it is forgotten behind it."""
        scope, numbers, body, before = list(self.scope), list(self.numbers), self.body, self.turns
        was_branched = self.branched
        self.body, self.turns, self.branched = [], self.turns * turns, self.branched or branched
        self.depth += 1
        try:
            yield self.body
        finally:
            self.scope, self.numbers, self.body, self.turns = scope, numbers, body, before
            self.branched, self.depth = was_branched, self.depth - 1

    def statement(self, only: Sequence[str] | None = None) -> None:
        """One more statement, of any row."""
        names = list(only) if only is not None else self.rows()
        with self.draw.span():
            name = self.draw.pick(names)
            kept = (list(self.scope), list(self.body), list(self.tensors))
            try:
                (ROWS.get(name) or OTHERS[name])(self)
            except Unfit:
                self.scope, self.body[:], self.tensors = kept[0], kept[1], kept[2]

    def rows(self) -> list[str]:
        """What may come here, the simplest first; what shapes a kernel comes more often."""
        from rows_memory import MEMORY

        names = [name for name in ROWS if not (self.pure and name in MEMORY)]
        others = [name for name in OTHERS if not (self.pure and OTHERS[name].__module__ in ("rows_control", "rows_memory"))]
        return names + others * 3

    def some_statements(self, fewest: int, most: int, only: Sequence[str] | None = None) -> None:
        """A few more: each is a choice of its own, so that a shorter program may do without it."""
        for at in range(most):
            if at >= fewest and not self.draw.chance(75):
                return
            self.statement(only)


def meeting(a: Shape, b: Shape) -> Shape | None:
    """What shapes broadcast to, by NumPy's rules; None if they do not, or to much."""
    try:
        made = np.broadcast_shapes(a, b)
    except ValueError:
        return None
    return made if math.prod(made) <= 4 * MOST else None


def tile_at(array: Array, index: Sequence[int], shape: Shape, fill: Any = 0, steps: Sequence[int] | None = None) -> Array:
    """A tile of an array, filled up beyond its edge."""
    return padded(array[window(index, shape, steps)], shape, fill)


def generate(seed: Any, mode: str, draw: Draw | None = None) -> Program:
    """The program of a seed."""
    import rows_control
    import rows_elementwise  # noqa: F401 - they enter their rows
    import rows_folds  # noqa: F401
    import rows_memory  # noqa: F401

    draw = draw or Draw((seed, mode))
    grammar = Grammar(draw, mode, seed)
    return rows_control.grow(grammar)


__all__ = ["DTYPES", "F16", "F64", "FLOATS", "ROWS", "Grammar", "generate"]
