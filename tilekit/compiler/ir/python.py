"""From the kernel IR back to a function of Python's, for numba to compile and for the CPU device to run."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.frontend.bound import BoundKernel, compile_tree, without_type_parameters
from tilekit.compiler.frontend.folding import is_constant, plain
from tilekit.compiler.ir.constants import dtype_constant
from tilekit.compiler.ir.nodes import (
    Constant,
    Group,
    Location,
    Operand,
    Operation,
    Region,
    Section,
    Undefined,
    Value,
    copied,
    mapped,
    values_of,
)
from tilekit.compiler.ir.symbols import SYMBOLS
from tilekit.compiler.ir.types import ScalarType, TileType, Type
from tilekit.lang import create, memory
from tilekit.lang.pipelines import pipelined
from tilekit.lang.tile import scalar_kind

__all__ = ["to_python"]

_OPERATORS = {symbol: node for node, symbol in SYMBOLS.items()}
_UNARY = {SYMBOLS[node]: node for node in (ast.USub, ast.UAdd, ast.Not, ast.Invert)}
_VIEWS = ("tiles", "tiled_view", "slice")


class _Loop(NamedTuple):
    """The values that a loop carries, and those that it ends with.

    Those of a `while`, which ends by `break` alone, have names of their own: what is assigned on the only way to the end of a
    function gets another name from numba (0.68) in all statements that stand below, and the turns go on with one that is not set.
    """

    carried: Sequence[Value] = ()
    ends: Sequence[Value] = ()


_NONE = _Loop()


def to_python(kernel: Region, bound: BoundKernel) -> BoundKernel:
    """The kernel as a bound kernel whose function has one assignment for each operation.

    Args:
        kernel: the IR.
        bound: what it was built from.
    """
    return _Emitter(kernel, bound).bound_kernel()


class _Emitter:
    def __init__(self, kernel: Region, bound: BoundKernel) -> None:
        self.kernel, self.bound = kernel, bound
        self.names: dict[Value, str] = {}
        self.taken: Counter[str] = Counter((*bound.names, bound.definition.name))
        self.objects: dict[int, str] = {}
        self.cells: dict[str, Any] = {}
        self.called: dict[str, BoundKernel] = {}
        self.views = _nested_views(kernel)
        self.location: Location | None = None
        self.places: dict[int, Location] = {}
        self.lines: list[Location] = []
        self.turns: dict[Operand, str] = {}
        self.turn_statements: list[tuple[ast.Tuple, list[ast.stmt]]] = []
        self.gathered: dict[Operand, Operation] = {}

    def bound_kernel(self) -> BoundKernel:
        old = self.bound.definition
        self.names |= zip(self.kernel.parameters, self.bound.names, strict=True)
        body = self.region(self.kernel, [])
        if body and isinstance(body[-1], ast.Return):
            del body[-1]  # something may be appended: the kernel ends there by itself
        body = body or [ast.Pass()]
        definition = ast.FunctionDef(name=old.name, args=old.args, body=body, decorator_list=[])
        without_type_parameters(definition)
        ast.copy_location(definition, old)
        self.number(body, Location.of(self.bound.source, old))
        for lines, statements in self.turn_statements:
            lines.elts = [ast.copy_location(ast.Constant(statement.lineno), lines) for statement in statements]
        cells = {**self.cells, **{name: called.function for name, called in self.called.items()}}
        function = compile_tree(definition, self.bound.function, self.bound.source, cells)
        return replace(
            self.bound,
            function=function,
            definition=definition,
            cells=self.cells,
            outside=dict(self.cells),
            called=self.called,
            passed=frozenset(self.called),
            lines={n: (location.source.filename, location.line) for n, location in enumerate(self.lines, 1)},
        )

    # ------------------------------------------------------------------------------------------------------------ statements

    def region(self, region: Region, targets: Sequence[Value], loop: _Loop = _NONE) -> list[ast.stmt]:
        """The statements of a region.

        Args:
            region: the region.
            targets: what it assigns where it is left by `yield`.
            loop: the innermost loop.
        """
        statements = [s for operation in region.operations for s in self.operation(operation, loop)]
        if region.exit == "return":
            return [*statements, ast.Return()]
        others = loop.ends if region.exit == "break" else loop.carried
        statements += self.moves(targets if region.exit == "yield" else others, region.operands)
        if region.exit != "yield":
            statements.append(ast.Break() if region.exit == "break" else ast.Continue())
        return statements

    def operation(self, operation: Operation, loop: _Loop) -> list[ast.stmt]:
        outer, self.location = self.location, operation.location
        try:
            statements = self.statements(operation, loop)
            self.places |= {id(statement): operation.location for statement in statements}
            return statements
        finally:
            self.location = outer

    def number(self, statements: Sequence[ast.stmt], location: Location) -> None:
        """Give each statement a line of its own, in order: what is known of a line is known of one statement then."""
        for statement in statements:
            location = self.places.get(id(statement), location)
            self.lines.append(location)
            blocks = [getattr(statement, field, []) for field in ("body", "orelse")]
            inner = {id(node) for block in blocks for part in block for node in ast.walk(part)}
            for node in ast.walk(statement):
                if id(node) not in inner and isinstance(node, (ast.stmt, ast.expr, ast.keyword)):
                    node.lineno = node.end_lineno = len(self.lines)
                    node.col_offset = node.end_col_offset = 0
            for block in blocks:
                self.number(block, location)

    def statements(self, operation: Operation, loop: _Loop) -> list[ast.stmt]:
        if operation.kind == "if":
            then, other = (self.region(region, operation.results, loop) for region in operation.regions)
            return [ast.If(self.operand(operation.operands[0]), then or [ast.Pass()], other)]
        if operation.regions:
            return self.loop(operation)
        if operation.results and operation.results[0] in self.views:
            return []
        if operation.kind == "gathered":
            self.gathered[operation.results[0]] = operation
            return []
        if _gives(operation):
            return self.give(operation.operands[0], ast.Constant(0), [])
        if operation.kind == "call" and operation.what.value is intrinsics.drain:
            turn = ast.Name(self.turns[operation.operands[0]], ast.Load())
            return [ast.Expr(self.intrinsic(intrinsics.drain, self.operand(operation.operands[0]), turn))]
        expression = self.expression(operation)
        if operation.kind == "call" and operation.what.value is intrinsics.ring:
            self.turns[operation.results[0]] = counter = self.fresh("stage")
            ring = self.target(operation.results[0])
            none = self.intrinsic(intrinsics.counted, ast.Constant(0))
            return [ast.Assign([ring], expression), ast.Assign([ast.Name(counter, ast.Store())], none)]
        if operation.kind == "call" and operation.what.value is intrinsics.variant:
            self.turns[operation.results[0]] = self.turns[operation.operands[0]]
        if operation.pattern is not None:
            return [ast.Assign([self.target(operation.pattern)], expression)]
        if operation.results:
            return [ast.Assign([self.target(operation.results[0])], expression)]
        return [ast.Expr(expression)]

    def loop(self, operation: Operation) -> list[ast.stmt]:
        (region,) = operation.regions
        carried, initial = operation.carried, operation.initial
        items = region.parameters[: len(region.parameters) - len(carried)]
        operands = operation.operands[: len(operation.operands) - len(initial)]
        gathered = [self.gathered[operand] for operand in operands if operand in self.gathered]
        over = [] if gathered else [self.operand(operand) for operand in operands]
        before = self.moves(carried, initial)
        if operation.kind != "while":
            for result, parameter in zip(operation.results, carried, strict=True):
                self.names[result] = self.name(parameter)  # what a loop ends with is what its next turn would have begun with
        target = self.target(items[0] if len(items) == 1 else Group(tuple(items))) if items else None
        body = self.region(region, carried, _Loop(carried, operation.results)) or [ast.Pass()]
        if operation.kind == "while":
            return [*before, ast.While(ast.Constant(True), body, [])]
        if operation.kind == "stream" and operation.what:
            return [*before, *self.ring_loop(operation, over, gathered, target, body)]
        if gathered:
            return [*before, self.plain_loop(gathered, items, body)]
        assert target is not None
        if operation.kind == "for":
            over = [ast.Call(self.reference(Constant(range, "range")), over, [])]
        elif operation.kind == "stream":
            options = [ast.keyword(name, self.operand(operand)) for name, operand in operation.keywords.items()]
            over = [ast.Call(self.reference(Constant(pipelined, "pipelined")), over, options)]
        return [*before, ast.For(target, over[0], body, [])]

    def ring_loop(
        self,
        loop: Operation,
        streams: Sequence[ast.expr],
        gathered: Sequence[Operation],
        target: ast.expr | None,
        body: list[ast.stmt],
    ) -> list[ast.stmt]:
        """A loop whose turns fill stages of a ring, or take them and give them back.

        The turns of all loops with a ring are counted together, in a variable: it says which stage comes next.
        """
        statements: list[ast.stmt] = []

        call = self.intrinsic

        def variable(name: str, value: ast.expr) -> ast.expr:
            name = self.fresh(name)
            statements.append(ast.Assign([ast.Name(name, ast.Store())], value))
            return ast.Name(name, ast.Load())

        ring, once = self.operand(loop.keywords["ring"]), loop.keywords["once"] == Constant(True)
        counter = self.turns[loop.keywords["ring"]]
        turn = ast.Name(counter, ast.Load())
        rows = [variable("row", stream) for stream in streams]
        turns_of = call(intrinsics.counted, self.count(gathered)) if gathered else call(intrinsics.steps, *rows)
        count = variable("steps", turns_of)
        index = self.fresh("turn")
        k: ast.expr = ast.Constant(0) if once else ast.Name(index, ast.Load())
        behind: list[ast.stmt] = []
        if loop.what == "produce":
            turns: list[ast.stmt] = []
            for stream in gathered:
                before, row = self.one_tile(stream, k)
                turns, rows = [*turns, *before], [*rows, row]
            at: ast.expr = ast.Constant(0) if gathered else k
            turns += [ast.Expr(call(intrinsics.put, ring, turn, at, *rows)), *body, self.further(counter)]
        else:
            assert target is not None, "it takes tiles"
            lines = [ast.Tuple([], ast.Load()) for _ in range(2)]
            inner = any(isinstance(node, (ast.For, ast.While)) for statement in body for node in ast.walk(statement))
            own = [] if inner else [statement for statement in body if not isinstance(statement, ast.If)]
            self.turn_statements += [(each, own) for each in lines]
            take = ast.Assign([target], call(intrinsics.take, ring, turn, lines[0]))
            give = [] if any(map(_gives, loop.regions[0].operations)) else self.give(loop.keywords["ring"], k, own)
            turns = [take, *body, *give]
            behind.append(ast.Expr(call(intrinsics.last, ring, turn, count, lines[1])))
            if not gathered:
                statements.append(ast.Expr(call(intrinsics.clear, ring, turn, count, *rows)))
            self.places |= {id(statement): loop.location for statement in (take, *give)}
        if once:
            return [*statements, ast.If(count, turns, []), *behind]
        over = ast.Call(self.reference(Constant(range, "range")), [count], [])
        return [*statements, ast.For(ast.Name(index, ast.Store()), over, turns, []), *behind]

    def give(self, ring: Operand, k: ast.expr, own: list[ast.stmt]) -> list[ast.stmt]:
        """What gives back the stage of turn `k` of a loop, whose own statements these are."""
        lines, counter = ast.Tuple([], ast.Load()), self.turns[ring]
        self.turn_statements.append((lines, own))
        turn = ast.Name(counter, ast.Load())
        return [ast.Expr(self.intrinsic(intrinsics.give, self.operand(ring), turn, k, lines)), self.further(counter)]

    def further(self, counter: str) -> ast.stmt:
        """Counts the turns of a ring."""
        turn = ast.BinOp(ast.Name(counter, ast.Load()), ast.Add(), ast.Constant(1))
        return ast.Assign([ast.Name(counter, ast.Store())], self.intrinsic(intrinsics.counted, turn))

    def plain_loop(self, gathered: Sequence[Operation], items: Sequence[Value], body: list[ast.stmt]) -> ast.stmt:
        """A loop over gathered streams that loads its tiles when it needs them."""
        index = self.fresh("turn")
        statements: list[ast.stmt] = []
        for item, operation in zip(items, gathered, strict=True):
            before, at = self.tile_index(operation, ast.Name(index, ast.Load()))
            tensor, extents, *_ = map(self.operand, operation.operands)
            load = ast.Call(self.reference(Constant(memory.load, "load")), [tensor, self.operand(at), extents], [])
            statements += [*before, ast.Assign([self.target(item)], load)]
        over = ast.Call(self.reference(Constant(range, "range")), [self.count(gathered)], [])
        return ast.For(ast.Name(index, ast.Store()), over, [*statements, *body], [])

    def count(self, gathered: Sequence[Operation]) -> ast.expr:
        """How many turns a loop over gathered streams has; all have equally many."""
        _, _, start, stop, *_ = gathered[0].operands
        return ast.BinOp(self.operand(stop), ast.Sub(), self.operand(start))

    def tile_index(self, gathered: Operation, turn: ast.expr) -> tuple[list[ast.stmt], Operand]:
        """What finds out which tile of a stream comes in a turn, and its index."""
        _, _, start, _, *captured = gathered.operands
        number, *others = gathered.what.parameters
        known: dict[Value, Operand] = dict(zip(others, captured, strict=True))
        known[number] = k = Value(number.name, number.type)
        statements: list[ast.stmt] = [ast.Assign([self.target(k)], ast.BinOp(self.operand(start), ast.Add(), turn))]
        for operation in copied(gathered.what.operations, known):
            statements += self.operation(operation, _NONE)
        return statements, mapped(gathered.what.operands[0], known)

    def one_tile(self, gathered: Operation, turn: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
        """The same, and the row of that tile alone."""
        statements, index = self.tile_index(gathered, turn)
        tensor, extents, *_ = map(self.operand, gathered.operands)
        tiles = ast.Call(ast.Attribute(tensor, "tiles", ast.Load()), [extents], [])
        return statements, self.intrinsic(intrinsics.one_tile, tiles, self.operand(index))

    def intrinsic(self, function: Callable[..., Any], *arguments: ast.expr) -> ast.Call:
        return ast.Call(self.reference(Constant(function, f"tilekit__{function.__name__}")), list(arguments), [])

    def moves(self, targets: Sequence[Value], operands: Sequence[Operand]) -> list[ast.stmt]:
        """Assignments at once: each operand is read before any target is written.

        What is undefined is zeros, since what nobody reads may still be handed on.
        """
        pairs = [
            (self.name(target), operand)
            for target, operand in zip(targets, operands, strict=True)
            if not isinstance(operand, Undefined) and not (isinstance(operand, Value) and self.name(operand) == self.name(target))
        ]
        unset = [target for target, operand in zip(targets, operands, strict=True) if isinstance(operand, Undefined)]
        written: set[str] = set()
        early: list[ast.stmt] = []
        late: list[ast.stmt] = []
        names = [name for name, _ in pairs]
        for at, (name, operand) in enumerate(pairs):
            read = {self.name(value) for value in values_of(operand)}
            value = self.operand(operand)
            if read & set(names[:at]):  # it is written before it is read
                kept = self.fresh("kept")
                early.append(ast.Assign([ast.Name(kept, ast.Store())], value))
                value = ast.Name(kept, ast.Load())
            late.append(ast.Assign([ast.Name(name, ast.Store())], value))
            written.add(name)
        zeros = [(self.name(target), self.zero(target.type)) for target in unset]
        late += [ast.Assign([ast.Name(name, ast.Store())], zero) for name, zero in zeros if zero is not None]
        return [*early, *late]

    def zero(self, ty: Type) -> ast.expr | None:
        """A number or a tile of zeros; None if the type is of something else."""
        if isinstance(ty, ScalarType):
            kind = ty.kind if isinstance(ty.kind, type) else scalar_kind(ty.sample())
            return None if kind is None else ast.Constant(kind(0))
        if isinstance(ty, TileType):
            arguments: list[Operand] = [Group(tuple(map(Constant, ty.shape))), Constant(0), dtype_constant(ty.dtype)]
            return ast.Call(self.reference(Constant(create.full, "full")), [self.operand(one) for one in arguments], [])
        return None

    # ----------------------------------------------------------------------------------------------------------- expressions

    def expression(self, operation: Operation) -> ast.expr:
        operands = [self.operand(operand) for operand in operation.operands]
        keywords = [ast.keyword(name, self.operand(operand)) for name, operand in operation.keywords.items()]
        match operation.kind:
            case "call":
                return ast.Call(self.operand(operation.what), operands, keywords)
            case "method":
                return ast.Call(ast.Attribute(operands[0], operation.what, ast.Load()), operands[1:], keywords)
            case "attribute":
                return ast.Attribute(operands[0], operation.what, ast.Load())
            case "item":
                return ast.Subscript(operands[0], operands[1], ast.Load())
            case "unary":
                return ast.UnaryOp(_UNARY[operation.what](), operands[0])
            case "compare":
                return ast.Compare(operands[0], [_OPERATORS[operation.what]()], [operands[1]])
        return ast.BinOp(operands[0], _OPERATORS_OF_TWO[operation.what](), operands[1])

    def operand(self, operand: Operand) -> ast.expr:
        match operand:
            case Value():
                view = self.views.get(operand)
                return ast.Name(self.name(operand), ast.Load()) if view is None else self.expression(view)
            case Constant(value=value) if is_constant(plain(value)):
                return _literal(plain(value))
            case Constant(value=slice() as value):
                return self.operand(Section(Constant(value.start), Constant(value.stop), Constant(value.step)))
            case Constant():
                return self.reference(operand)
            case Group(parts):
                return ast.Tuple([self.operand(part) for part in parts], ast.Load())
            case Section(start, stop, step):
                return ast.Slice(*(None if bound == Constant(None) else self.operand(bound) for bound in (start, stop, step)))
        raise AssertionError(f"{self.location}: a variable that has no value is read")

    def reference(self, constant: Constant) -> ast.expr:
        """An object that is no number: through a variable of an enclosing function."""
        if isinstance(constant.value, BoundKernel):
            name = self.object(constant.value, constant.spelling, constant.value.function)
            self.called[name] = constant.value
            self.cells.pop(name, None)
            return ast.Name(name, ast.Load())
        root = constant.value if constant.root is None else constant.root
        node: ast.expr = ast.Name(self.object(root, constant.spelling.partition(".")[0], root), ast.Load())
        for attribute in constant.path:
            node = ast.Attribute(node, attribute, ast.Load())
        return node

    def object(self, key: Any, spelling: str, value: Any) -> str:
        if id(key) not in self.objects:
            self.objects[id(key)] = name = self.fresh(spelling)
            self.cells[name] = value
        return self.objects[id(key)]

    def target(self, operand: Operand) -> ast.expr:
        if isinstance(operand, Group):
            return ast.Tuple([self.target(part) for part in operand.parts], ast.Store())
        return ast.Name(self.name(operand) if isinstance(operand, Value) else self.fresh("unused"), ast.Store())

    def name(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = self.fresh(value.name)
        return self.names[value]

    def fresh(self, name: str) -> str:
        name = re.sub(r"\W", "_", name)
        self.taken[name] += 1
        return name if self.taken[name] == 1 else self.fresh(f"{name}_{self.taken[name] - 1}")


_OPERATORS_OF_TWO = {SYMBOLS[node]: node for node in SYMBOLS if issubclass(node, ast.operator)}


def _gives(operation: Operation) -> bool:
    """Whether it gives back the stage of the loop that it stands in."""
    return operation.kind == "call" and operation.what.value is intrinsics.give


def _nested_views(kernel: Region) -> dict[Value, Operation]:
    """Views that are read once, by the operation behind them: they stay in its expression."""
    uses = Counter(value for region in kernel.regions() for value in _reads(region))
    return {
        operation.results[0]: operation
        for operation in kernel.walk()
        if len(operation.results) == 1 and uses[operation.results[0]] == 1 and _is_view(operation)
    }


def _is_view(operation: Operation) -> bool:
    return (operation.kind == "method" and operation.what in _VIEWS) or operation.kind == "item"


def _reads(region: Region) -> Iterable[Value]:
    for operation in region.operations:
        yield from operation.reads()
    for operand in region.operands:
        yield from values_of(operand)


def _literal(value: Any) -> ast.expr:
    if isinstance(value, tuple):
        return ast.Tuple([_literal(part) for part in value], ast.Load())
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)
