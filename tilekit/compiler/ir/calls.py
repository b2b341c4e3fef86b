"""Calls: functions of the user's are walked as if their text stood there, builtins and some forms become other operations."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.builtin_calls import BUILTINS, Builtins
from tilekit.compiler.frontend.desugar import ASSERTION
from tilekit.compiler.frontend.folding import FOLDABLE_CALLS, MISSING
from tilekit.compiler.frontend.syntax import NOT_CALLED
from tilekit.compiler.ir.constants import constant_of, operand_of
from tilekit.compiler.ir.expressions import Expressions, Unsupported
from tilekit.compiler.ir.frames import Closure, Environment, Frame
from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Value
from tilekit.compiler.ir.padded import is_padded, padded
from tilekit.compiler.ir.products import PRODUCTS
from tilekit.compiler.ir.rules import check_condition
from tilekit.compiler.ir.types import TileType
from tilekit.errors import CompileError
from tilekit.lang.shape import broadcast_to, reshape

__all__ = ["Calls"]

_REVERSED = (
    "reversed: goes over tuples, and over ranges with one or two bounds; of anything else count down, "
    "for i in range(n - 1, -1, -1)"
)
_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD


class Calls(Expressions):
    """What calls come to, in the region that is being built."""

    def call(self, node: ast.Call, environment: Environment, name: str) -> Operand:
        function = self.static(node.func, environment)
        receiver = None
        if function is None and isinstance(node.func, ast.Attribute):
            receiver = self.expression(node.func.value, environment)
        elif function is None:
            function = self.expression(node.func, environment)
        if isinstance(function, Constant) and function.value is breakpoint:
            # It would stop while types are inferred; a debugger follows kernels that are interpreted.
            raise Unsupported("breakpoint()", self.location(node))
        arguments = list(self.expressions(node.args, environment))
        keywords = {str(k.arg): self.expression(k.value, environment) for k in node.keywords}
        if isinstance(function, Constant) and function.value is enumerate and list(keywords) == ["start"]:
            arguments, keywords = [*arguments, keywords["start"]], {}
        known = None if keywords else self.folded(node, function, receiver, arguments)
        if known is not None:
            return known
        if receiver is not None:
            assert isinstance(node.func, ast.Attribute)
            return self.emit("method", [receiver, *arguments], node, name, node.func.attr, **keywords)
        if not isinstance(function, Constant):
            self.refuse(NOT_CALLED, node)
        if isinstance(function.value, BoundKernel):
            called = function.value
            frame = Frame.of(called, inlined=True, caller=self.frame, calling=environment, call=self.location(node))
            parameters = self.matched(called.source.name, called.definition.args, arguments, keywords, node, frame)
            self.check_demanded(called, parameters, node)
            return self.inline(frame, parameters)
        if isinstance(function.value, Closure):
            return self.inline_closure(function.value, arguments, keywords, node, environment)
        if not keywords and arguments and any(function.value is one for one in BUILTINS):
            return self.builtin(function, arguments, node, name)
        if function.value is reversed:
            self.refuse(_REVERSED, node)
        if function.value in (any, all) and len(arguments) == 1 and isinstance(arguments[0], Group):
            return self.holds(function.value is all, arguments[0].parts, node)
        if function.spelling == ASSERTION and self.region is self.outermost and arguments[0] == Constant(False):
            said = [str(one.value) for one in arguments[1:] if isinstance(one, Constant)]
            self.refuse(": ".join(("assert: the condition does not hold", *said)), node)
        if is_padded(function.value, keywords):
            self.rewritten = True
            self.check_operation(Operation("call", arguments, self.location(node), function, keywords))
            return padded(self, node, function.value, arguments, keywords)
        for signature in (PRODUCTS[product] for product in PRODUCTS if product is function.value):
            with suppress(TypeError):  # of which `emit` makes an error
                given = signature.bind(*arguments, **keywords)
                arguments, keywords = list(given.args), given.kwargs
            arguments = self.batched(arguments, node)
        return self.emit("call", arguments, node, name, function, **keywords)

    def matched(
        self,
        name: str,
        parameters: ast.arguments,
        arguments: Sequence[Operand],
        keywords: Mapping[str, Operand],
        node: ast.Call,
        frame: Frame,
        environment: Environment | None = None,
    ) -> Environment:
        """The arguments of a call by the names of the parameters; defaults stand in this frame, or environment."""
        listed = [inspect.Parameter(a.arg, _PLAIN) for a in (*parameters.posonlyargs, *parameters.args)]
        without = len(listed) - len(parameters.defaults)
        listed = [p if at < without else p.replace(default=parameters.defaults[at - without]) for at, p in enumerate(listed)]
        if parameters.vararg is not None:
            listed.append(inspect.Parameter(parameters.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
            self.rewritten = True
        for only, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
            named = inspect.Parameter(only.arg, inspect.Parameter.KEYWORD_ONLY)
            listed.append(named if default is None else named.replace(default=default))
        signature = inspect.Signature(listed)
        try:
            bound = signature.bind(*arguments, **keywords).arguments
        except TypeError as error:
            shown = signature.replace(parameters=[p.replace(default=p.empty) for p in listed])
            self.refuse(f"{name}: {error}; it is called as {name}{shown}", node)
        outer, self.frame = self.frame, frame
        try:
            return {
                p.name: Group(tuple(bound.get(p.name, ())))
                if p.kind is p.VAR_POSITIONAL
                else bound[p.name]
                if p.name in bound
                else self.expression(p.default, environment or {})
                for p in listed
            }
        finally:
            self.frame = outer

    def holds(self, every: bool, parts: Sequence[Operand], node: ast.Call) -> Operand:
        """Whether all of several conditions hold, or one of them."""
        self.rewritten = True
        result: Operand = Constant(every)
        for part in reversed(parts):
            try:
                check_condition(part)
            except CompileError as error:
                self.refuse(error.reason, node)
            condition = self.operator("unary", ast.Not, [self.operator("unary", ast.Not, [part], node, "t")], node, "t")
            ways: list[Operand] = [result, Constant(not every)]
            first, second = ways if every else ways[::-1]
            result = self.chosen(node, condition, [partial(_same, first), partial(_same, second)], "t")
        return result

    def check_demanded(self, called: BoundKernel, arguments: Environment, node: ast.Call) -> None:
        """Whether types tell the arguments that are to be known when the kernel is compiled."""
        for parameter, argument in arguments.items():
            if parameter in called.demanded and constant_of(argument) is None:
                reason = f"{parameter} is a Const parameter: it must be known when the kernel is compiled"
                self.refuse(f"{called.definition.name}: {reason}", node)

    def check_operation(self, operation: Operation) -> None:
        """Refuse an operation that others will stand for."""
        try:
            infer(operation)
        except CompileError as error:
            raise self.located(operation, error) from None

    def batched(self, operands: Sequence[Operand], node: ast.AST) -> list[Operand]:
        """Operands of a product, of which a matrix beside a batch is a batch of that matrix."""
        types = [operand.type if isinstance(operand, Value) else None for operand in operands[:2]]
        shapes = [ty.shape for ty in types if isinstance(ty, TileType)]
        if sorted(map(len, shapes)) != [2, 3]:
            return list(operands)
        self.rewritten = True
        count = max(shapes, key=len)[0]

        def spread(operand: Operand, shape: tuple[int, ...]) -> Operand:
            one = self.emit("call", [operand, operand_of((1, *shape))], node, "t", Constant(reshape, "reshape"))
            return self.emit("call", [one, operand_of((count, *shape))], node, "t", Constant(broadcast_to, "broadcast_to"))

        wide = [spread(o, s) if len(s) == 2 else o for o, s in zip(operands[:2], shapes, strict=True)]
        return [*wide, *operands[2:]]

    def folded(
        self, node: ast.Call, function: Operand | None, receiver: Operand | None, arguments: Sequence[Operand]
    ) -> Operand | None:
        """What a call of constants comes to, if it is known."""
        if receiver is not None:
            owner = constant_of(receiver)
            is_length = isinstance(node.func, ast.Attribute) and node.func.attr == "bit_length" and not arguments
            return Constant(owner.value.bit_length()) if is_length and owner is not None and type(owner.value) is int else None
        if not isinstance(function, Constant):
            return None
        if function.value is len and len(arguments) == 1 and isinstance(arguments[0], Group):
            return Constant(len(arguments[0].parts))
        if function.value in (tuple, reversed) and len(arguments) == 1 and isinstance(arguments[0], Group):
            self.rewritten = True
            return arguments[0] if function.value is tuple else Group(arguments[0].parts[::-1])
        if function.value is enumerate and len(arguments) == 2 and isinstance(arguments[0], Group):
            first = constant_of(arguments[1])
            if first is not None and type(first.value) is int:
                self.rewritten = True
                numbers = range(first.value, first.value + len(arguments[0].parts))
                return Group(tuple(Group((Constant(n), part)) for n, part in zip(numbers, arguments[0].parts, strict=True)))
        if function.value in (enumerate, zip) and arguments and all(isinstance(argument, Group) for argument in arguments):
            columns = [argument.parts for argument in arguments if isinstance(argument, Group)]
            if function.value is enumerate:
                columns = [tuple(map(Constant, range(len(columns[0])))), *columns]
            return Group(tuple(map(Group, zip(*columns, strict=False))))
        evaluate = next((known for called, known in FOLDABLE_CALLS.items() if called is function.value), None)
        constants = [constant_of(argument) for argument in arguments]
        if evaluate is None or not constants or not all(constants):
            return None
        try:
            result = evaluate(*(constant.value for constant in constants if constant))
        except (ArithmeticError, TypeError, ValueError):
            return None
        return None if result is MISSING else operand_of(result)

    def builtin(self, function: Constant, arguments: Sequence[Operand], node: ast.Call, name: str) -> Operand:
        """A call of a builtin of Python's, which operations of the language stand for where there are tiles."""
        try:
            operand: Operand = _BuiltinOperations(self, function, node, name).called(function.value, arguments)
            return operand
        except CompileError as error:
            if error.lineno is not None:
                raise
            self.refuse(error.reason, node)

    def inline(self, frame: Frame, arguments: Environment) -> Operand:
        """A call, by the text of the function."""
        outer, loops = self.frame, self.loops
        self.frame, self.loops = frame, []
        try:
            return self.body(frame.definition.body, arguments)
        finally:
            self.frame, self.loops = outer, loops

    def inline_closure(
        self,
        closure: Closure,
        arguments: Sequence[Operand],
        keywords: dict[str, Operand],
        node: ast.Call,
        environment: Environment,
    ) -> Operand:
        """A call of a function that is written in the kernel; it sees what the variables around it are now."""
        frame, around = self.frame, environment
        while frame is not closure.frame:
            if frame.closure is closure:
                self.refuse(f"{closure.name} calls itself: recursion does not exist in kernels; write a loop", node)
            if frame.caller is None:
                self.refuse("a function that is written in another cannot be called outside of it", node)
            frame, around = frame.caller, frame.calling
        inner = closure.called_from(self.frame, environment, around, self.location(node))
        return self.inline(inner, self.matched(closure.name, closure.node.args, arguments, keywords, node, frame, around))

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
        condition = self.condition(node.test, environment)
        ways = [
            lambda: self.body([*node.body, *rest], dict(environment)),
            lambda: self.body([*node.orelse, *rest], dict(environment)),
        ]
        values = (inner.value for one in (node, *rest) for inner in ast.walk(one) if isinstance(inner, ast.Return))
        last = [value for value in values if value is not None]
        return self.chosen(last[-1] if last else node, condition, ways, "t")


def _same(operand: Operand) -> Operand:
    return operand


class _BuiltinOperations(Builtins):
    """What calls of builtins come to, as operations."""

    def __init__(self, to: Expressions, function: Constant, node: ast.Call, name: str) -> None:
        self.to, self.function, self.node, self.name = to, function, node, name

    def rank(self, value: Operand) -> int | None:
        return len(value.type.shape) if isinstance(value, Value) and isinstance(value.type, TileType) else None

    def parts(self, value: Operand) -> Sequence[Operand] | None:
        return value.parts if isinstance(value, Group) else None

    def number(self, value: int) -> Operand:
        return Constant(value)

    def apply(self, function: Callable[..., Any], *values: Operand) -> Operand:
        if function is self.function.value:
            return self.to.emit("call", values, self.node, self.name, self.function)
        self.to.rewritten = True
        name = function.__name__
        return self.to.emit("call", values, self.node, self.name, Constant(function, name))

    def operate(self, op: type[ast.operator], first: Operand, second: Operand) -> Operand:
        return self.to.operator("binary", op, [first, second], self.node, self.name)

    def tuple_of(self, *values: Operand) -> Operand:
        return Group(values)
