"""Random kernels as trees: what they say in Python, and what they do by our own reckoning.

A tree is walked twice: `Program.source` writes the kernel, `Program.evaluate` computes what its outputs hold afterwards, block by
block, with the functions of `semantics`. Every statement carries its own text and its own evaluation.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from values import NAMES, Array, DType, Value

Shape = tuple[int, ...]


class Mistake(Exception):
    """The generator's own: a tree that does not hold together."""


@dataclass(frozen=True)
class Var:
    """A tile in a variable.

    Attributes:
        sure: whether its elements are expected to be certain, so that operations that need that may take it.
    """

    name: str
    dtype: DType
    shape: Shape
    sure: bool = True


@dataclass(frozen=True)
class Number:
    """An integer of the kernel: its text, its value in a block, and between what that lies."""

    text: str
    value: Callable[[Frame], int]
    low: int
    high: int


@dataclass
class Tensor:
    """A parameter.

    Attributes:
        array: what it holds before the launch.
        tile: the shape of its tiles, where it is passed as a partition; None for an input; () for a scattered tensor.
        layout: how it lies in memory, see `running.placed`.
        role: In, Out or InOut.
    """

    name: str
    array: Array
    role: str = "In"
    tile: Shape | None = None
    layout: str = "plain"


@dataclass
class Frame:
    """What a block knows while it runs.

    Attributes:
        block: its index in the grid; in a mapped kernel the tile's.
        memory: what the tensors hold, and how far off that may be.
    """

    block: Shape
    grid: Shape
    memory: dict[str, Value]
    values: dict[str, Value] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)


class Leave(Exception):
    """`break`, `continue` or `return`; its text says which."""


class Statement:
    """One statement."""

    reads: tuple[Var, ...]
    writes: tuple[Var, ...]

    def lines(self, write: Writer) -> list[str]:
        """Its text."""
        raise NotImplementedError

    def run(self, frame: Frame) -> None:
        """What it does."""
        raise NotImplementedError

    def bodies(self) -> list[list[Statement]]:
        """The statements in it."""
        return []


@dataclass(eq=False)
class Let(Statement):
    """`a = ...` or `a, b = ...`, or a call for its effect alone.

    Attributes:
        text: of the right side, with {0}, {1}... for what it reads.
        compute: of the frame and the values that it reads: a value, several, or None.
        pure: whether it may stand where its result is used.
    """

    text: str
    reads: tuple[Var, ...]
    writes: tuple[Var, ...]
    compute: Callable[..., Any]
    pure: bool = True
    to: str | None = None  # the left side, where it is not the names of `writes`

    def lines(self, write: Writer) -> list[str]:
        right = self.text.format(*(write.use(v) for v in self.reads))
        left = self.to or ", ".join(v.name for v in self.writes)
        return [f"{left} = {right}" if left else right]

    def run(self, frame: Frame) -> None:
        made = self.compute(frame, *(frame.values[v.name] for v in self.reads))
        for var, value in zip(self.writes, made if isinstance(made, tuple) else (made,) * len(self.writes), strict=True):
            if value.dtype != var.dtype or value.array.shape != var.shape:
                raise Mistake(f"{self.text}: {value.dtype.name} {value.array.shape}, not {var.dtype.name} {var.shape}")
            frame.values[var.name] = value


@dataclass(eq=False)
class Block(Statement):
    """A statement with a body: `head` is its first line; `turns` runs the body as often as it is to."""

    head: str
    body: list[Statement]
    turns: Callable[[Frame, Callable[[], None]], None]
    other: list[Statement] = field(default_factory=list)
    reads: tuple[Var, ...] = ()
    writes: tuple[Var, ...] = ()
    after: tuple[str, ...] = ()  # lines at the end of the body

    def lines(self, write: Writer) -> list[str]:
        made = [self.head.format(*(write.use(v) for v in self.reads)), *indented([*write.body(self.body), *self.after])]
        return made + (["else:", *indented(write.body(self.other))] if self.other else [])

    def run(self, frame: Frame) -> None:
        self.turns(frame, lambda: execute(self.body, frame))

    def bodies(self) -> list[list[Statement]]:
        return [self.body, self.other]


@dataclass(eq=False)
class Jump(Statement):
    """`if ...: break`, `continue` or `return`."""

    condition: Number
    kind: str
    reads: tuple[Var, ...] = ()
    writes: tuple[Var, ...] = ()

    def lines(self, write: Writer) -> list[str]:
        return [f"if {self.condition.text}:", f"    {self.kind}"]

    def run(self, frame: Frame) -> None:
        if self.condition.value(frame):
            raise Leave(self.kind)


def indented(lines: Sequence[str]) -> list[str]:
    """One level further in."""
    return [f"    {line}" for line in lines] or ["    pass"]


def execute(body: Sequence[Statement], frame: Frame) -> None:
    """Run statements in order."""
    for statement in body:
        statement.run(frame)


def walk(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, the inner ones too."""
    for statement in body:
        yield statement
        for inner in statement.bodies():
            yield from walk(inner)


class Writer:
    """Writes statements; a variable that is used once may stand where it is used."""

    def __init__(self, body: Sequence[Statement]) -> None:
        everything = list(walk(body))
        self._uses: dict[str, int] = {}
        for statement in everything:
            for var in statement.reads:
                self._uses[var.name] = self._uses.get(var.name, 0) + 1
        self._texts: dict[str, str] = {}

    def use(self, var: Var) -> str:
        """The text for a variable that is read."""
        text = self._texts.pop(var.name, None)
        return var.name if text is None else f"({text})"

    def body(self, statements: Sequence[Statement]) -> list[str]:
        """The lines of a body."""
        made: list[str] = []
        for at, statement in enumerate(statements):
            if self._inlined(statement, statements[at + 1 :]):
                assert isinstance(statement, Let)
                self._texts[statement.writes[0].name] = statement.text.format(*(self.use(v) for v in statement.reads))
            else:
                made += statement.lines(self)
        return made

    def _inlined(self, statement: Statement, rest: Sequence[Statement]) -> bool:
        if not isinstance(statement, Let) or not statement.pure or len(statement.writes) != 1 or statement.to:
            return False
        name = statement.writes[0].name
        if self._uses.get(name) != 1 or zlib.crc32(name.encode()) % 2:
            return False
        # What it reads must still be the same where it is used: nothing is assigned again in between, and no line breaks.
        for later in rest:
            if any(v.name == name for v in later.reads):
                return isinstance(later, Let)
            changed = {v.name for inner in walk([later]) for v in inner.writes}
            if not isinstance(later, Let) or changed & {v.name for v in statement.reads} or not later.pure:
                return False
        return False


@dataclass
class Program:
    """A kernel, and a launch of it.

    Attributes:
        tile: the shape of what a block owns, of the first output.
        mapped: how many blocks visit the tiles, in a persistent kernel; else None.
    """

    seed: Any
    mode: str
    grid: Shape
    tensors: list[Tensor]
    scalars: dict[str, Any]
    body: list[Statement]
    helpers: list[str]
    num_warps: int | None = None
    mapped: int | None = None
    constants: dict[str, int] = field(default_factory=dict)
    group: Shape | None = None

    def source(self) -> str:
        """The text of a module with the kernel `k`."""
        parameters = [f"{t.name}: tk.{t.role}" for t in self.tensors]
        parameters += [*self.scalars, *(f"{name}: tk.Const" for name in self.constants)]
        body = Writer(self.body).body(self.body)
        if self.mapped is not None:
            first = self.tensors[0]
            names = ", ".join(f"i{d}" for d in range(len(first.tile or ())))
            body = [
                f"for tile in {first.name}.tiles():",
                *indented([f"{names}{',' * (len(first.tile or ()) == 1)} = tile.index", *body]),
            ]
        head = ["import operator", "", "import tilekit as tk", "", ""]
        return "\n".join([*head, *self.helpers, "@tk.kernel", f"def k({', '.join(parameters)}):", *indented(body), ""])

    def blocks(self) -> Iterator[Shape]:
        """The indices of the blocks; of the tiles, of a mapped kernel."""
        return itertools.product(*map(range, self.grid))

    def evaluate(self) -> dict[str, Value]:
        """What the outputs hold after the launch."""
        memory = {t.name: Value(t.array.copy()) for t in self.tensors}
        with np.errstate(all="ignore"):
            for index in self.blocks():
                frame = Frame(index, self.grid, memory)
                try:
                    execute(self.body, frame)
                except Leave as leave:
                    if str(leave) != "return":
                        raise Mistake(f"{leave} outside a loop") from None
        return {t.name: memory[t.name] for t in self.tensors if t.role != "In"}

    @property
    def statements(self) -> int:
        """How long it is."""
        return sum(1 for _ in walk(self.body))


def window(index: Sequence[int], extents: Sequence[int], steps: Sequence[int] | None = None) -> tuple[slice, ...]:
    """The slices of window `index`."""
    steps = extents if steps is None else steps
    return tuple(slice(i * s, i * s + n) for i, s, n in zip(index, steps, extents, strict=True))


def padded(part: Array, extents: Shape, fill: Any) -> Array:
    """A window that hangs over the edge, filled up."""
    made = np.full(extents, fill, part.dtype)
    made[tuple(map(slice, part.shape))] = part
    return made


def owned(frame: Frame, rank: int, extents: Shape, tile: Shape) -> Shape:
    """The index of the block's own tile of a tensor of that rank."""
    if rank < 4 or len(frame.block) == rank:  # of a mapped kernel it is the tile's own index
        return frame.block[:rank]
    across = math.ceil(extents[1] / tile[1])
    return (*divmod(frame.block[0], across), *frame.block[1:])


def literal(value: Any) -> str:
    """A scalar as Python has it."""
    return repr(value)


def dtype_text(dtype: DType) -> str:
    """`tk.float32`."""
    return f"tk.{NAMES[dtype]}"
