"""Expressions of a kernel as operations and operands of the IR; calls are walked as if the text of the function stood there."""

from __future__ import annotations

import ast
import builtins
import types as python_types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tilekit.compiler.frontend.bound import BoundKernel, stored
from tilekit.compiler.frontend.exits import structured
from tilekit.compiler.frontend.folding import BINARY, COMPARE, UNARY
from tilekit.compiler.frontend.liveness import Liveness
from tilekit.compiler.ir.constants import (
    constant_of,
    is_known,
    is_unset,
    joined_type,
    known_attribute,
    operand_of,
)
from tilekit.compiler.ir.effects import is_pure
from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.nodes import (
    UNDEFINED,
    Constant,
    Group,
    Location,
    Operand,
    Operation,
    Region,
    Section,
    Value,
    leaves,
    rebuilt,
    structure,
)
from tilekit.compiler.ir.symbols import SYMBOLS

__all__ = ["Environment", "Expressions", "Frame", "Loop", "Unsupported"]

_BY_SYMBOL: dict[str, dict[str, Callable[..., Any]]] = {
    "binary": {SYMBOLS[op]: f for op, f in BINARY.items()},
    "unary": {SYMBOLS[op]: f for op, f in UNARY.items()},
    "compare": {SYMBOLS[op]: f for op, f in COMPARE.items()},
}

Environment = dict[str, Operand]
R = TypeVar("R")


class Unsupported(Exception):
    """A statement that the IR has no form for, yet."""

    def __init__(self, what: str, location: Location) -> None:
        self.location = location
        super().__init__(f"{what}, in {location}")


@dataclass
class Loop:
    """A loop that is being built: the variables that it carries, and where it goes on or ends."""

    carried: list[str]
    exits: list[tuple[Region, Environment]] = field(default_factory=list)


@dataclass
class Frame:
    """A function that is being walked."""

    bound: BoundKernel
    definition: ast.FunctionDef
    liveness: Liveness
    inlined: bool

    @classmethod
    def of(cls, bound: BoundKernel, *, inlined: bool) -> Frame:
        definition = structured(bound.definition, returns=inlined)
        return cls(bound, definition, Liveness(definition), inlined)


class Expressions:
    """What expressions come to, in the region that is being built.

    Attributes:
        frame: the function that is being walked.
        region: where operations are appended to.
        loops: that are being built, of this function.
    """

    def __init__(self, bound: BoundKernel) -> None:
        self.frame = Frame.of(bound, inlined=False)
        self.region = Region()
        self.loops: list[Loop] = []

    def statement(self, node: ast.stmt, environment: Environment) -> bool:
        """Walk a statement; whether what follows it is reached."""
        raise NotImplementedError

    def location(self, node: ast.AST) -> Location:
        """Where a statement or expression stands."""
        return Location.of(self.frame.bound.source, node)

    def emit(
        self, kind: str, operands: Iterable[Operand], node: ast.AST, name: str, what: Any = None, **keywords: Operand
    ) -> Operand:
        """Append an operation, and give what it defines: nothing but a constant, if that is what it comes to."""
        operation = Operation(kind, list(operands), self.location(node), what, keywords)
        result = infer(operation)
        if is_pure(operation) and not any(isinstance(leaf, Value) for leaf in leaves(result)):
            return result
        defined = [Value(name, leaf.type) if isinstance(leaf, Value) else leaf for leaf in leaves(result)]
        operation.results = [leaf for leaf in defined if isinstance(leaf, Value)]
        self.region.operations.append(operation)
        operand = rebuilt(result, defined)
        operation.pattern = operand if isinstance(operand, Group) else None
        return operand

    def nested(self, walk: Callable[[], R], parameters: Iterable[Value] = ()) -> tuple[Region, R]:
        """The region of what is walked, and what walking gives."""
        outer, self.region = self.region, Region(list(parameters))
        try:
            result = walk()
            return self.region, result
        finally:
            self.region = outer

    def join(self, operation: Operation, name: str, ways: Sequence[tuple[Region, Operand]], node: ast.AST) -> Operand:
        """What a variable is behind a branch: one value if it is that on all ways, else a result of the branch."""
        like = next((operand for _, operand in ways if not is_unset(operand)), ways[0][1])
        columns = []
        for _, operand in ways:
            if is_unset(operand) and structure(operand) != structure(like):
                operand = rebuilt(like, [UNDEFINED for _ in leaves(like)])
            if structure(operand) != structure(like):
                raise Unsupported(f"{name} is one thing on one path and another on another", self.location(node))
            columns.append(list(leaves(operand)))
        inner = {id(result) for region, _ in ways for inside in region.walk() for result in inside.results}
        joined_leaves: list[Operand] = []
        for leaf in zip(*columns, strict=True):
            if all(part == leaf[0] for part in leaf) and id(leaf[0]) not in inner:
                joined_leaves.append(leaf[0])
                continue
            result = Value(name, joined_type(leaf))
            operation.results.append(result)
            for (region, _), part in zip(ways, leaf, strict=True):
                region.operands.append(part)
            joined_leaves.append(result)
        return rebuilt(like, joined_leaves)

    def name(self, name: str, environment: Environment) -> Operand:
        """What a name stands for."""
        if name in environment:
            return environment[name]
        bound = self.frame.bound
        if name in bound.called:
            return Constant(bound.called[name], name)
        if name in bound.names or name in stored(ast.walk(self.frame.definition)):
            return UNDEFINED
        for namespace in (bound.cells, bound.function.__globals__, vars(builtins)):
            if name in namespace:
                return Constant(namespace[name], name)
        return UNDEFINED

    def static(self, node: ast.expr, environment: Environment) -> Operand | None:
        """What an expression of names and modules alone stands for: `tk.exp`."""
        match node:
            case ast.Name(id=name):
                return self.name(name, environment)
            case ast.Attribute(value=value, attr=attribute):
                owner = self.static(value, environment)
                if isinstance(owner, Constant) and isinstance(owner.value, (python_types.ModuleType, type)):
                    spelling = f"{owner.spelling}.{attribute}"
                    root = owner.value if owner.root is None else owner.root
                    return Constant(getattr(owner.value, attribute), spelling, root, (*owner.path, attribute))
        return None

    def expression(self, node: ast.expr, environment: Environment, name: str = "t") -> Operand:
        """The operand that an expression comes to; `name` is what its value is called."""
        match node:
            case ast.Constant(value=value):
                return Constant(value)
            case ast.Name(id=variable):
                return self.name(variable, environment)
            case ast.Tuple(elts=elements):
                return Group(tuple(self.expression(element, environment) for element in elements))
            case ast.Slice(lower=start, upper=stop, step=step):
                bounds = (
                    Constant(None) if bound is None else self.expression(bound, environment) for bound in (start, stop, step)
                )
                return Section(*bounds)
            case ast.Attribute(value=value, attr=attribute):
                static = self.static(node, environment)
                return self.attribute(self.expression(value, environment), attribute, node) if static is None else static
            case ast.BinOp(left=left, op=op, right=right):
                operands = self.expression(left, environment), self.expression(right, environment)
                return self.operator("binary", type(op), operands, node, name)
            case ast.UnaryOp(op=op, operand=operand):
                return self.operator("unary", type(op), [self.expression(operand, environment)], node, name)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                operands = self.expression(left, environment), self.expression(right, environment)
                return self.operator("compare", type(op), operands, node, name)
            case ast.BoolOp(op=op, values=values):
                return self.decided(node, op, values, environment)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.expression(test, environment)
                ways = [lambda: self.expression(body, environment, name), lambda: self.expression(orelse, environment, name)]
                return self.chosen(node, condition, ways, name)
            case ast.Subscript(value=value, slice=index):
                return self.item(self.expression(value, environment), self.expression(index, environment), node, name)
            case ast.Call():
                return self.call(node, environment, name)
        raise Unsupported(type(node).__name__, self.location(node))

    def decided(self, node: ast.BoolOp, op: ast.boolop, values: Sequence[ast.expr], environment: Environment) -> Operand:
        """`and`, `or`: the first operand decides whether the others are looked at."""
        first = self.expression(values[0], environment)
        if len(values) == 1:
            return first
        rest = lambda: self.decided(node, op, values[1:], environment)  # noqa: E731
        ways = [rest, lambda: first] if isinstance(op, ast.And) else [lambda: first, rest]
        return self.chosen(node, first, ways, "t")

    def chosen(self, node: ast.expr, condition: Operand, ways: Sequence[Callable[[], Operand]], name: str) -> Operand:
        """One of two expressions."""
        if is_known(condition):
            return ways[0 if condition.value else 1]()  # type: ignore[union-attr]
        branches = [self.nested(way) for way in ways]
        operation = Operation("if", [condition], self.location(node), regions=[region for region, _ in branches])
        self.region.operations.append(operation)
        return self.join(operation, name, branches, node)

    def operator(self, kind: str, op: type, operands: Sequence[Operand], node: ast.AST, name: str) -> Operand:
        symbol = SYMBOLS[op]
        constants = [constant_of(operand) for operand in operands]
        if all(constant is not None for constant in constants) and symbol in _BY_SYMBOL[kind]:
            try:
                return operand_of(_BY_SYMBOL[kind][symbol](*(constant.value for constant in constants if constant)))
            except (ArithmeticError, TypeError, ValueError):
                pass
        return self.emit(kind, operands, node, name, symbol)

    def attribute(self, owner: Operand, attribute: str, node: ast.AST) -> Operand:
        known = known_attribute(owner, attribute)
        return self.emit("attribute", [owner], node, attribute, attribute) if known is None else known

    def item(self, owner: Operand, index: Operand, node: ast.AST, name: str) -> Operand:
        at = constant_of(index)
        if (
            isinstance(owner, Group)
            and at is not None
            and isinstance(at.value, int)
            and -len(owner.parts) <= at.value < len(owner.parts)
        ):
            return owner.parts[at.value]
        if isinstance(owner, Group) and isinstance(index, Section):
            bounds = [constant_of(bound) for bound in (index.start, index.stop, index.step)]
            if all(bound is not None for bound in bounds):
                return Group(owner.parts[slice(*(bound.value for bound in bounds if bound))])
        return self.emit("item", [owner, index], node, name)

    def call(self, node: ast.Call, environment: Environment, name: str) -> Operand:
        function = self.static(node.func, environment)
        if isinstance(function, Constant) and isinstance(function.value, BoundKernel):
            arguments = [self.expression(argument, environment) for argument in node.args]
            return self.inline(function.value, arguments, node)
        if any(isinstance(argument, ast.Starred) for argument in node.args) or any(k.arg is None for k in node.keywords):
            raise Unsupported("*args and **kwargs", self.location(node))
        receiver = None
        if function is None and isinstance(node.func, ast.Attribute):
            receiver = self.expression(node.func.value, environment)
        elif not isinstance(function, Constant):
            raise Unsupported("a call of what is no function", self.location(node))
        elif function.value is breakpoint:  # it would stop while types are inferred; a debugger follows interpreted kernels
            raise Unsupported("breakpoint()", self.location(node))
        arguments = [self.expression(argument, environment) for argument in node.args]
        keywords = {str(k.arg): self.expression(k.value, environment) for k in node.keywords}
        if receiver is not None:
            assert isinstance(node.func, ast.Attribute)
            return self.emit("method", [receiver, *arguments], node, name, node.func.attr, **keywords)
        return self.emit("call", arguments, node, name, function, **keywords)

    def inline(self, bound: BoundKernel, arguments: Sequence[Operand], node: ast.AST) -> Operand:
        """A call, by the text of the function."""
        outer, loops = self.frame, self.loops
        self.frame, self.loops = Frame.of(bound, inlined=True), []
        try:
            return self.body(self.frame.definition.body, dict(zip(bound.names, arguments, strict=True)))
        finally:
            self.frame, self.loops = outer, loops

    def body(self, statements: Sequence[ast.stmt], environment: Environment) -> Operand:
        """What a function returns. Behind a branch in which it returns, the other one goes on with all that follows."""
        for at, statement in enumerate(statements):
            if isinstance(statement, ast.Return):
                return Constant(None) if statement.value is None else self.expression(statement.value, environment, "t")
            if any(isinstance(part, ast.Return) for part in ast.walk(statement)):
                assert isinstance(statement, ast.If), "no loop returns: see `structured`"
                rest = statements[at + 1 :]
                return self.returned(statement, rest, environment)
            if not self.statement(statement, environment):
                raise Unsupported("statements that are not reached", self.location(statement))
        return Constant(None)

    def returned(self, node: ast.If, rest: Sequence[ast.stmt], environment: Environment) -> Operand:
        condition = self.expression(node.test, environment)
        ways = [
            lambda: self.body([*node.body, *rest], dict(environment)),
            lambda: self.body([*node.orelse, *rest], dict(environment)),
        ]
        return self.chosen(node, condition, ways, "t")  # type: ignore[arg-type]
