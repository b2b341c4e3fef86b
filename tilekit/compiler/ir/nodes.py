"""The kernel IR: SSA values, operations, regions (structured control flow).

A kernel is a region. Each operation has operands, results and, if it is control flow, regions; each value is the result of one
operation or a parameter of one region, and is never assigned to again. Names, tuples and slices of the source are no values: the
builder resolves them, so an alias, a tuple that is taken apart or a helper leaves nothing behind.

    if      operands (condition); two regions. The results are what the region that is taken ends with.
    for     operands (start, stop, step, *carried); one region, whose parameters are the counter and the carried values
    each    operands (iterable, *carried); one region, whose parameters are the item and the carried values
    while   operands (*carried); one region, which begins with the condition and leaves by `break` where that does not hold
    stream  operands (*streams, *carried), of `tk.pipelined`; one region, whose parameters are a tile of each stream and the
            carried values. Behind `passes.rings` it takes the tiles from a ring of stages (`what` is `consume`), or fills one,
            and has no tiles then (`produce`)

A stream is a row of tiles, `x.tiles(...)[i, :]`, or tiles in an order that a pass has found out:

    gathered  operands (tensor, extents, start, stop, *captured): a tile for each number from start to stop. `what` is a region
            that reads nothing from outside, with this number and what is captured for parameters: it ends with the tile's index

A region ends in one of four ways (`Region.exit`), and says with which values:

    yield     an `if` goes on behind it, with the results; a loop goes on with its next turn, with the carried values
    continue  the innermost loop goes on with its next turn
    break     the innermost loop ends, and these are its results
    return    the kernel ends, with no values

What a loop's results are where it ends by itself are the carried values of the turn that did not come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.ir.types import Type
from tilekit.compiler.layouts.linear import Config
from tilekit.errors import CompileError

__all__ = [
    "LOOPS", "UNDEFINED", "Choice", "Constant", "Group", "Location", "Operand", "Operation", "Region", "Section", "Undefined",
    "Value", "View", "copied", "definitions", "leaves", "mapped", "parts_of", "rebuilt", "rebuilt_of", "structure",
    "values_of",
]  # fmt: skip

LOOPS = ("for", "each", "while", "stream")


@dataclass(frozen=True)
class Location:
    """A place in the user's text.

    Attributes:
        source: the function that it is in.
        line, column, end_line, end_column: from where to where; columns count the bytes of UTF-8. `end_line` is 0 where only the
            line is known.
        call: of a function that the kernel calls, where it is called, which may be in a function that is called, too.
    """

    source: KernelSource
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    call: Location | None = None

    @classmethod
    def of(cls, source: KernelSource, node: Any, call: Location | None = None) -> Location:
        """Where a statement or an expression stands."""
        return cls(source, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, call)

    def stack(self) -> Iterator[Location]:
        """This place, and the calls by which it is reached, the kernel's own last."""
        at: Location | None = self
        while at is not None:
            yield at
            at = at.call

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}"

    def error(self, reason: str) -> CompileError:
        """An error about what stands there."""
        return self.source.error_of(reason, self.line, self.column, self.end_line, self.end_column)

    @property
    def text(self) -> str:
        """What stands there."""
        return self.source.text(self.line, self.column, self.end_line, self.end_column)


@dataclass(eq=False)
class Value:
    """What an operation or a region defines, once.

    Attributes:
        name: of the variable that it was first assigned to, as far as there was one; others may have the same.
        type: see `Type`.
    """

    name: str
    type: Type


@dataclass(frozen=True)
class Constant:
    """What is known when the kernel is compiled: a Python value, or an object such as `tk.exp` or `tk.float32`.

    Attributes:
        value: the constant.
        spelling: how it is written, `"tk.exp"`; of a Python value, as Python writes it.
        root: of an object that is reached through another, such as a module, that other, and `path` the attributes from there.
    """

    value: Any
    spelling: str = ""
    root: Any = None
    path: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        return self.value is other.value or (type(self.value) is type(other.value) and repr(self.value) == repr(other.value))

    def __hash__(self) -> int:
        return hash((type(self.value), repr(self.value)))


class Undefined:
    """What a variable is on a path on which it has no value yet, and nobody reads it: `frontend.flow` has seen to that."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED = Undefined()


@dataclass(frozen=True)
class Group:
    """Several operands as one: a tuple."""

    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Section:
    """A slice, in an index."""

    start: Operand
    stop: Operand
    step: Operand


@dataclass(frozen=True)
class Choice:
    """One of two tensors, or of views of such, by a condition. The IR has none: it is built with a branch for what reads one."""

    condition: Value
    first: Operand
    second: Operand


@dataclass(frozen=True)
class View:
    """A view that is made where it is read, of a tensor that a condition chooses. The IR has none, either.

    Attributes:
        kind, what, operands, keywords, location: those of the operation that makes it.
        type: of the view.
    """

    kind: str
    what: Any
    operands: tuple[Operand, ...]
    keywords: tuple[tuple[str, Operand], ...]
    type: Type
    location: Location = field(compare=False)


Operand = Value | Constant | Group | Section | Undefined | Choice | View


@dataclass(eq=False)
class Operation:
    """An operation.

    Attributes:
        kind: `call`, `method`, `attribute`, `item`, `binary`, `unary`, `compare`; or control flow, see above.
        operands: what it reads, in order. The first of a method, attribute or item is the object.
        keywords: operands by name; of a stream its options (`stages`, `warp_specialize`), or its `ring`, and whether it has a
            turn at most (`once`).
        what: the function of a call (`Constant`), the name of a method or attribute, the symbol of an operator.
        results: what it defines.
        pattern: how the results are put together, where that is a tuple, or a tuple in which some parts are constants.
        regions: see above.
        location: where it stands.
    """

    kind: str
    operands: list[Operand]
    location: Location
    what: Any = None
    keywords: dict[str, Operand] = field(default_factory=dict)
    results: list[Value] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    pattern: Operand | None = None

    def reads(self) -> Iterator[Value]:
        """The values that it reads itself, without those that its regions read."""
        for operand in (*self.operands, *self.keywords.values()):
            yield from values_of(operand)

    @property
    def carried(self) -> list[Value]:
        """Of a loop, the parameters of its region that turns hand on to each other. There is a result for each."""
        (region,) = self.regions
        return region.parameters[len(region.parameters) - len(self.results) :]

    @property
    def initial(self) -> list[Operand]:
        """Of a loop, what these are in the first turn."""
        return self.operands[len(self.operands) - len(self.results) :]

    def ends(self) -> Iterator[Region]:
        """Of a loop, the regions that end a turn of it: with operands for the next one, or for the results."""
        (region,) = self.regions
        if region.exit == "yield":
            yield region
        yield from region.jumps()

    def leaves_early(self) -> bool:
        """Of a loop, whether a turn may leave it, or go on with the next one: by a break or continue of its own, or a return."""
        return list(self.ends()) != self.regions or any(r.exit == "return" for region in self.regions for r in region.regions())


@dataclass(eq=False)
class Region:
    """A sequence of operations, with parameters, and what it ends with.

    Attributes:
        parameters: values that are there at its beginning.
        operations: in order.
        exit: `yield`, `continue`, `break` or `return`, see above; `operands`: with what.
        location: of the statement that it ends with, if there is one.
        rewritten: of a kernel, whether forms of the language stand in it otherwise than in the text: numba knows no other ones.
        config: of a kernel that is compiled for blocks of so many warps, what its tiles share.
    """

    parameters: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    exit: str = "yield"
    operands: list[Operand] = field(default_factory=list)
    location: Location | None = None
    rewritten: bool = False
    config: Config | None = None

    def walk(self) -> Iterator[Operation]:
        """All operations, those of inner regions behind the one that has them."""
        for operation in self.operations:
            yield operation
            for region in operation.regions:
                yield from region.walk()

    def jumps(self) -> Iterator[Region]:
        """This region and inner ones, as far as they end with a `break` or `continue` of the loop that this is a part of."""
        if self.exit in ("break", "continue"):
            yield self
        for operation in self.operations:
            for region in operation.regions if operation.kind == "if" else ():
                yield from region.jumps()

    def ways_out(self) -> Iterator[Operation]:
        """The branches in which such a region is."""
        for operation in self.operations:
            if operation.kind == "if" and any(True for region in operation.regions for _ in region.jumps()):
                yield operation
                for region in operation.regions:
                    yield from region.ways_out()

    def regions(self) -> Iterator[Region]:
        """This region and all inner ones."""
        yield self
        for operation in self.operations:
            for region in operation.regions:
                yield from region.regions()

    def copy(self) -> Region:
        """The same, of values and operations of its own."""
        known: dict[Value, Operand] = {}
        return replace(_copied(self, known), rewritten=self.rewritten, config=self.config)

    def replace(self, new: Mapping[Value, Operand]) -> None:
        """Read other operands in the place of values, here and in inner regions."""

        def replaced(operand: Operand) -> Operand:
            while isinstance(operand, Value) and operand in new:
                operand = new[operand]
            return operand if isinstance(operand, (Value, Constant, Undefined)) else rebuilt_of(operand, replaced)

        for region in self.regions():
            region.operands = [replaced(operand) for operand in region.operands]
            for operation in region.operations:
                operation.operands = [replaced(operand) for operand in operation.operands]
                operation.keywords = {name: replaced(operand) for name, operand in operation.keywords.items()}


def mapped(operand: Operand, known: Mapping[Value, Operand]) -> Operand:
    """An operand that reads others in the place of values."""
    if isinstance(operand, Value):
        return known.get(operand, operand)
    return operand if isinstance(operand, (Constant, Undefined)) else rebuilt_of(operand, lambda part: mapped(part, known))


def copied(operations: Iterable[Operation], known: dict[Value, Operand]) -> list[Operation]:
    """Copies of operations in this order, which read `known` in the place of values; what the copies define is entered there."""

    copies = []
    for operation in operations:
        operands = [mapped(operand, known) for operand in operation.operands]
        keywords = {name: mapped(operand, known) for name, operand in operation.keywords.items()}
        regions = [_copied(region, known) for region in operation.regions]
        results = [_new(value, known) for value in operation.results]
        pattern = None if operation.pattern is None else mapped(operation.pattern, known)
        copies.append(replace(operation, operands=operands, keywords=keywords, regions=regions, results=results, pattern=pattern))
    return copies


def _new(value: Value, known: dict[Value, Operand]) -> Value:
    known[value] = copy = Value(value.name, value.type)
    return copy


def _copied(region: Region, known: dict[Value, Operand]) -> Region:
    parameters = [_new(value, known) for value in region.parameters]
    inner = copied(region.operations, known)
    return Region(parameters, inner, region.exit, [mapped(operand, known) for operand in region.operands], region.location)


def definitions(kernel: Region) -> dict[Value, Operation]:
    """What makes each value that is no parameter of a region."""
    return {value: operation for operation in kernel.walk() for value in operation.results}


def rebuilt_of(operand: Group | Section | Choice | View, change: Callable[[Operand], Operand]) -> Operand:
    """An operand of other parts."""
    match operand:
        case Group(parts):
            return Group(tuple(map(change, parts)))
        case Section(start, stop, step):
            return Section(change(start), change(stop), change(step))
        case Choice(condition, first, second):
            chosen = change(condition)
            assert isinstance(chosen, Value), "a condition that is known chooses"
            return Choice(chosen, change(first), change(second))
    operands, keywords = tuple(map(change, operand.operands)), tuple((name, change(part)) for name, part in operand.keywords)
    return replace(operand, operands=operands, keywords=keywords)


def parts_of(operand: Operand) -> Sequence[Operand]:
    """What an operand is put together of; nothing, if it is one by itself."""
    match operand:
        case Group(parts):
            return parts
        case Section(start, stop, step):
            return start, stop, step
        case Choice(condition, first, second):
            return condition, first, second
        case View(operands=operands, keywords=keywords):
            return *operands, *(part for _, part in keywords)
    return ()


def leaves(operand: Operand) -> Iterator[Operand]:
    """What a tuple or slice is of, in order; of anything else the thing itself."""
    if isinstance(operand, (Value, Constant, Undefined)):
        yield operand
    else:
        for part in parts_of(operand):
            yield from leaves(part)


def values_of(operand: Operand) -> Iterator[Value]:
    """The values that an operand is of."""
    return (leaf for leaf in leaves(operand) if isinstance(leaf, Value))


def structure(operand: Operand) -> Any:
    """How an operand is put together: equal for those of which `leaves` can take each other's places."""
    match operand:
        case Group(parts):
            return tuple(map(structure, parts))
        case Section(start, stop, step):
            return slice, structure(start), structure(stop), structure(step)
        case Choice(_, first, second):
            return Choice, structure(first), structure(second)
        case View(kind=kind, what=what):
            return View, kind, what, tuple(map(structure, parts_of(operand)))
    return None


def rebuilt(like: Operand, parts: Iterator[Operand] | Sequence[Operand]) -> Operand:
    """An operand put together as another is, of other leaves."""
    rest = iter(parts)
    if not isinstance(like, (Value, Constant, Undefined)):
        return rebuilt_of(like, lambda part: rebuilt(part, rest))
    return next(rest)
