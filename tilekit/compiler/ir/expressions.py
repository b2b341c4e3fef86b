"""Expressions of a kernel as operations and operands of the IR; what calls come to is in `calls`."""

from __future__ import annotations

import ast
import builtins
import types as python_types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tilekit.compiler.frontend.bound import stored
from tilekit.compiler.frontend.flow import UNSET
from tilekit.compiler.frontend.folding import BINARY, COMPARE, UNARY
from tilekit.compiler.frontend.syntax import NOT_UNPACKED
from tilekit.compiler.ir.constants import (
    constant_of,
    is_known,
    operand_of,
)
from tilekit.compiler.ir.emission import Emission, Unsupported
from tilekit.compiler.ir.frames import Closure, Environment
from tilekit.compiler.ir.nodes import (
    UNDEFINED,
    Choice,
    Constant,
    Group,
    Operand,
    Section,
    Value,
    View,
)
from tilekit.compiler.ir.rules import check_condition
from tilekit.compiler.ir.symbols import SYMBOLS
from tilekit.compiler.ir.types import UNKNOWN, TileType, Unknown
from tilekit.errors import CompileError
from tilekit.lang.tile import whole_index

__all__ = ["Expressions", "Unsupported"]

_BY_SYMBOL: dict[str, dict[str, Callable[..., Any]]] = {
    "binary": {SYMBOLS[op]: f for op, f in BINARY.items()},
    "unary": {SYMBOLS[op]: f for op, f in UNARY.items()},
    "compare": {SYMBOLS[op]: f for op, f in COMPARE.items()},
}

_UNKNOWN_CONDITION = (
    "what a comprehension leaves out must be known when the kernel is compiled: it makes a tuple; write a loop, with an if in it"
)
_WHOLE = Section(Constant(None), Constant(None), Constant(None))
R = TypeVar("R")


class Expressions(Emission):
    """What expressions come to, in the region that is being built."""

    def statement(self, node: ast.stmt, environment: Environment) -> bool:
        """Walk a statement; whether what follows it is reached."""
        raise NotImplementedError

    def name(self, name: str, environment: Environment) -> Operand:
        """What a name stands for."""
        if name in environment:
            return environment[name]
        bound, frame = self.frame.bound, self.frame
        while frame.closure is not None and frame.around is not None and name not in stored(ast.walk(frame.definition)):
            if name in frame.around:
                return frame.around[name]
            frame = frame.closure.frame
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
                    value = getattr(owner.value, attribute)
                    return None if isinstance(value, property) else Constant(value, spelling, root, (*owner.path, attribute))
        return None

    def expression(self, node: ast.expr, environment: Environment, name: str = "t") -> Operand:
        """The operand that an expression comes to; `name` is what its value is called."""
        match node:
            case ast.Constant(value=value):
                return Constant(value)
            case ast.Name(id=variable):
                operand = self.name(variable, environment)
                if operand is UNDEFINED:  # on a path that types decide
                    self.refuse(UNSET.format(name=variable), node)
                return operand
            case ast.Tuple(elts=elements):
                return Group(tuple(self.expressions(elements, environment)))
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
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.operator("unary", ast.Not, [self.condition(operand, environment)], node, name)
            case ast.UnaryOp(op=op, operand=operand):
                return self.operator("unary", type(op), [self.expression(operand, environment)], node, name)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                operands = self.expression(left, environment), self.expression(right, environment)
                return self.operator("compare", type(op), operands, node, name)
            case ast.BoolOp(op=op, values=values):
                return self.decided(node, op, values, environment)
            case ast.Compare(left=left, ops=[op, *ops], comparators=[middle, *rest]):
                return self.chain(node, left, op, middle, ops, rest, environment)
            case ast.NamedExpr(target=target, value=value):
                self.rewritten = True
                environment[target.id] = assigned = self.expression(value, environment, target.id)
                return assigned
            case ast.GeneratorExp(elt=element, generators=generators):
                return Group(tuple(self.comprehension(element, generators, environment)))
            case ast.Lambda():
                return Constant(Closure(node, self.frame), "lambda")
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.condition(test, environment)
                ways = [lambda: self.expression(body, environment, name), lambda: self.expression(orelse, environment, name)]
                return self.chosen(node, condition, ways, name)
            case ast.Subscript(value=value, slice=index):
                return self.item(self.expression(value, environment), self.expression(index, environment), node, name)
            case ast.Call():
                return self.call(node, environment, name)
        raise Unsupported(type(node).__name__, self.location(node))

    def expressions(self, nodes: Iterable[ast.expr], environment: Environment) -> Iterator[Operand]:
        """The operands that expressions come to, one after the other; `*t` is what the tuple has in it."""
        for node in nodes:
            if not isinstance(node, ast.Starred):
                yield self.expression(node, environment)
                continue
            operand = self.expression(node.value, environment)
            if isinstance(operand, Constant):
                operand = operand_of(operand.value)
            if not isinstance(operand, Group):
                if (
                    isinstance(operand, Value) and operand.type == UNKNOWN
                ):  # perhaps a tuple of numba's: the IR has no form for it
                    yield self.expression(node, environment)
                self.refuse(NOT_UNPACKED, node)
            self.rewritten = True
            yield from operand.parts

    def comprehension(
        self, element: ast.expr, generators: Sequence[ast.comprehension], environment: Environment
    ) -> Iterator[Operand]:
        """What a comprehension gives, one after the other: it goes over what is known when the kernel is compiled."""
        self.rewritten = True
        if not generators:
            yield self.expression(element, environment)
            return
        (generator, *inner) = generators
        for item in self.items(generator.iter, environment):
            self.assign(generator.target, item, environment := dict(environment))
            conditions = [self.condition(condition, environment) for condition in generator.ifs]
            for condition, node in zip(conditions, generator.ifs, strict=True):
                if not is_known(condition):
                    self.refuse(_UNKNOWN_CONDITION, node)
            if all(condition.value for condition in conditions if isinstance(condition, Constant)):
                yield from self.comprehension(element, inner, environment)

    def items(self, node: ast.expr, environment: Environment) -> Sequence[Operand]:
        """What a comprehension goes over."""
        raise NotImplementedError

    def assign(self, target: ast.expr, operand: Operand, environment: Environment) -> None:
        """Let a variable, or those of a tuple, stand for an operand."""
        raise NotImplementedError

    def condition(self, node: ast.expr, environment: Environment) -> Operand:
        """What decides a branch: a constant where it is known."""
        if isinstance(node, ast.BoolOp):
            return self.decided(node, node.op, node.values, environment, truth=True)
        operand = self.expression(node, environment)
        try:
            check_condition(operand)
        except CompileError as error:
            self.refuse(error.reason, node)
        return Constant(bool(operand.parts)) if isinstance(operand, Group) else operand

    def chain(
        self,
        node: ast.Compare,
        left: ast.expr,
        op: ast.cmpop,
        middle: ast.expr,
        ops: list[ast.cmpop],
        rest: list[ast.expr],
        environment: Environment,
    ) -> Operand:
        """`a < b < c`, where `b` is computed once."""
        kept = f"tilekit__between{self.count()}"
        known = environment | {kept: self.expression(middle, environment)}
        between = ast.copy_location(ast.Name(kept, ast.Load()), middle)
        parts: list[ast.expr] = [
            ast.copy_location(ast.Compare(left, [op], [between]), node),
            ast.copy_location(ast.Compare(between, ops, rest), node),
        ]
        return self.decided(ast.copy_location(ast.BoolOp(ast.And(), parts), node), ast.And(), parts, known)

    def count(self) -> int:
        """A number that makes a name one of its own."""
        self.counted += 1
        return self.counted

    def decided(
        self, node: ast.BoolOp, op: ast.boolop, values: Sequence[ast.expr], environment: Environment, *, truth: bool = False
    ) -> Operand:
        """`and`, `or`: the first operand decides whether the others are looked at.

        Of conditions (`truth`) only that matters whether they hold: one may be a tile, and another a number.
        """
        if len(values) == 1 and not truth:
            return self.expression(values[0], environment)
        first = self.condition(values[0], environment)
        if truth and isinstance(first, Value) and isinstance(first.type, TileType):
            first = self.operator("unary", ast.Not, [self.operator("unary", ast.Not, [first], node, "t")], node, "t")
        if len(values) == 1:
            return first
        rest = lambda: self.decided(node, op, values[1:], environment, truth=truth)  # noqa: E731
        ways = [rest, lambda: first] if isinstance(op, ast.And) else [lambda: first, rest]
        return self.chosen(node, first, ways, "t")

    def operator(self, kind: str, op: type, operands: Sequence[Operand], node: ast.AST, name: str) -> Operand:
        symbol = SYMBOLS[op]
        if kind == "compare" and symbol in ("is", "is not") and Constant(None) in operands:
            (other,) = [o for o in operands if o != Constant(None)] or [Constant(None)]
            if isinstance(other, (Group, Choice, View)) or (isinstance(other, Value) and not isinstance(other.type, Unknown)):
                return Constant(symbol == "is not")
        if kind == "binary" and symbol == "+" and all(isinstance(operand, Group) for operand in operands):
            self.rewritten = True
            return Group(tuple(part for operand in operands if isinstance(operand, Group) for part in operand.parts))
        constants = [constant_of(operand) for operand in operands]
        if all(constant is not None for constant in constants) and symbol in _BY_SYMBOL[kind]:
            try:
                return operand_of(_BY_SYMBOL[kind][symbol](*(constant.value for constant in constants if constant)))
            except (ArithmeticError, TypeError, ValueError):
                pass
        return self.emit(kind, self.batched(operands, node) if symbol == "@" else operands, node, name, symbol)

    def item(self, owner: Operand, index: Operand, node: ast.AST, name: str) -> Operand:
        at = constant_of(index)
        if isinstance(owner, Value) and isinstance(owner.type, TileType):
            parts = index.parts if isinstance(index, Group) else (index,)
            written: list[Any] = [
                None if isinstance(p, Constant) and p.value is None else slice(None) if p == _WHOLE else p for p in parts
            ]
            written = [... if isinstance(p, Constant) and p.value is ... else p for p in written]
            whole = whole_index(written, len(owner.type.shape))
            if whole is not None and (len(whole) != len(parts) or ... in written):
                self.rewritten = True
                if None not in whole:
                    return owner
                index = Group(tuple(Constant(None) if part is None else _WHOLE for part in whole))
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
        """What a call comes to."""
        raise NotImplementedError

    def batched(self, operands: Sequence[Operand], node: ast.AST) -> list[Operand]:
        """Operands of a product, of which a matrix beside a batch is a batch of that matrix."""
        raise NotImplementedError
