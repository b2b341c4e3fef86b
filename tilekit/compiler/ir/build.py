"""From a bound kernel to the kernel IR: names are resolved, calls inlined, tuples and aliases vanish, types are inferred.

Each function that the kernel calls is walked at each of its calls, as if its text stood there. What is known by types alone (the
shape of a tile, the rank of a tensor) is a constant from here on, and a branch that constants decide is not built.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel, stored
from tilekit.compiler.frontend.liveness import is_endless
from tilekit.compiler.frontend.syntax import NOT_UNPACKED, TOO_FEW, WRONG_LENGTH
from tilekit.compiler.frontend.unrolling import without_jumps
from tilekit.compiler.ir.calls import Calls
from tilekit.compiler.ir.choices import choices_in, picked, picked_environment
from tilekit.compiler.ir.constants import (
    constant_of,
    is_known,
    is_unset,
    joined_type,
    may_be_one,
    same_types,
    type_of_operand,
)
from tilekit.compiler.ir.expressions import Unsupported
from tilekit.compiler.ir.frames import Closure, Environment, Frame, Loop
from tilekit.compiler.ir.inference import item_types
from tilekit.compiler.ir.nodes import (
    UNDEFINED,
    Constant,
    Group,
    Operand,
    Operation,
    Region,
    Value,
    leaves,
    rebuilt,
)
from tilekit.compiler.ir.rules import in_place, unassignable
from tilekit.compiler.ir.symbols import SYMBOLS
from tilekit.compiler.ir.types import UNKNOWN, ScalarType, TensorType, TileType, Type, of_argument, sampling
from tilekit.errors import CompileError
from tilekit.lang.loops import static_range, unknown_bounds
from tilekit.lang.pipelines import pipelined
from tilekit.lang.tile import NO_ITERATION

__all__ = ["Unsupported", "build", "build_function"]

_MOST_UNSWITCHED = 2  # conditions that choose tensors: each doubles what a loop has in it
_UNKNOWN_ITEMS = (
    "a comprehension goes over a tuple, or over a range whose bounds are known when the kernel is compiled: it makes a tuple; "
    "write a loop"
)
_ROUNDS = 4  # a type widens from int to float, and a tuple of such by its parts: each takes a round at most


def build(bound: BoundKernel, facts: Sequence[ArgumentFacts], num_warps: int | None = None) -> Region:
    """The IR of a kernel.

    Args:
        bound: the kernel.
        facts: about each of its parameters.
        num_warps: of a block, if they were given; they decide how large tiles may be.

    Raises:
        Unsupported: see there.
    """
    with sampling(num_warps=num_warps):
        return _Builder(bound).kernel(facts)


def build_function(bound: BoundKernel, parameters: Sequence[Type]) -> Region:
    """The IR of a function that a kernel passes on, for parameters of these types; what it returns are the region's operands.

    Operations can be called on samples while it is built; see `sampling`.
    """
    return _Builder(bound).function(parameters)


class _Builder(Calls):
    """Statements: what variables stand for, and control flow."""

    def kernel(self, facts: Sequence[ArgumentFacts]) -> Region:
        bound, environment = self.frame.bound, Environment()
        for name, known in zip(bound.names, facts, strict=True):
            parameter = Value(name, of_argument(name, known))
            self.region.parameters.append(parameter)
            environment[name] = parameter
        if self.block(self.frame.definition.body, environment):
            self.region.exit = "return"
        self.region.rewritten = self.rewritten
        for operation in self.region.walk():
            if operation in self.refused:
                raise self.refused[operation]
        return self.region

    def function(self, parameters: Sequence[Type]) -> Region:
        self.frame = Frame.of(self.frame.bound, inlined=True)
        self.region.parameters = [Value(name, ty) for name, ty in zip(self.frame.bound.names, parameters, strict=True)]
        environment: Environment = dict(zip(self.frame.bound.names, self.region.parameters, strict=True))
        result = self.body(self.frame.definition.body, environment)
        self.region.operands = list(result.parts) if isinstance(result, Group) else [result]
        return self.region

    # ------------------------------------------------------------------------------------------------------------ statements

    def block(self, statements: Sequence[ast.stmt], environment: Environment) -> bool:
        """Walk statements; whether what follows them is reached."""
        return all(self.statement(statement, environment) for statement in statements)

    def statement(self, node: ast.stmt, environment: Environment) -> bool:
        match node:
            case ast.Assign(targets=targets, value=value):
                name = targets[0].id if isinstance(targets[0], ast.Name) else "t"
                operand = self.expression(value, environment, name)
                for target in targets:
                    self.assign(target, operand, environment)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self.assign(target, self.expression(value, environment), environment)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                operands = self.name(name, environment), self.expression(value, environment)
                if isinstance(type_of_operand(operands[0]), TensorType):
                    self.refuse(in_place(name, SYMBOLS[type(op)], ast.unparse(value)), node)
                environment[name] = self.operator("binary", type(op), operands, node, name)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.expression(value, environment)
            case ast.If():
                return self.branch(node, environment)
            case ast.For():
                return self.loop(node, environment)
            case ast.While():
                return self.loop(node, environment)
            case ast.Break() | ast.Continue():
                self.leave("break" if isinstance(node, ast.Break) else "continue", node, environment)
                return False
            case ast.FunctionDef(name=name):
                environment[name] = Constant(Closure(node, self.frame), name)
            case ast.Return() if not self.frame.inlined:
                self.region.exit, self.region.location = "return", self.location(node)
                return False
            case _:
                raise Unsupported(f"{type(node).__name__}", self.location(node))
        return True

    def leave(self, how: str, node: ast.stmt, environment: Environment) -> None:
        """Leave the turn, or the loop: with what, is known once the loop is built."""
        self.region.exit, self.region.location = how, self.location(node)
        self.loops[-1].exits.append((self.region, dict(environment)))

    def assign(self, target: ast.expr, operand: Operand, environment: Environment) -> None:
        match target:
            case ast.Name(id=name):
                for leaf in leaves(operand):
                    if isinstance(leaf, Value) and leaf.name == "t":
                        leaf.name = name
                environment[name] = operand
            case ast.Starred(value=value):
                self.assign(value, operand, environment)
            case ast.Tuple(elts=elements):
                parts = self.parts(operand, len(elements), target)
                for element, part in zip(elements, parts, strict=True):
                    self.assign(element, part, environment)
            case ast.Subscript(value=value):
                owner = self.expression(value, environment)
                if type_of_operand(owner) == UNKNOWN:  # an array of numba's
                    raise Unsupported("assignment to an element", self.location(target))
                self.refuse(unassignable(owner), target)
            case _:
                raise AssertionError("`frontend.syntax` refuses other targets")

    def parts(self, operand: Operand, count: int, node: ast.Tuple) -> Sequence[Operand]:
        """What a tuple that is taken apart has in it."""
        starred = next((at for at, element in enumerate(node.elts) if isinstance(element, ast.Starred)), None)
        if isinstance(operand, Group) and starred is not None:
            behind = len(operand.parts) - (count - 1 - starred)
            if behind < starred:
                self.refuse(TOO_FEW.format(wanted=count - 1), node)
            return [*operand.parts[:starred], Group(operand.parts[starred:behind]), *operand.parts[behind:]]
        if isinstance(operand, Group):
            if len(operand.parts) != count:
                self.refuse(WRONG_LENGTH.format(wanted=count), node)
            return operand.parts
        ty = type_of_operand(operand)
        if isinstance(ty, TileType):
            self.refuse(NO_ITERATION, node)
        if isinstance(operand, Constant) or isinstance(ty, (ScalarType, TensorType)) or starred is not None:
            self.refuse(NOT_UNPACKED, node)
        return [self.emit("item", [operand, Constant(n)], node, "t") for n in range(count)]

    def branch(self, node: ast.If, environment: Environment) -> bool:
        condition = self.condition(node.test, environment)
        if is_known(condition):
            return self.block(node.body if condition.value else node.orelse, environment)  # type: ignore[union-attr]
        return self.ways(node, condition, lambda way, env: self.block((node.body, node.orelse)[way], env), environment)

    def ways(
        self,
        node: ast.If | ast.For | ast.While,
        condition: Operand,
        walk: Callable[[int, Environment], bool],
        environment: Environment,
    ) -> bool:
        """A branch, whose ways `walk` builds."""
        environments = [picked_environment(environment, condition, way) for way in (0, 1)]
        built = [self.nested(lambda way=way: walk(way, environments[way])) for way in (0, 1)]  # type: ignore[misc]
        operation = Operation("if", [condition], self.location(node), regions=[region for region, _ in built])
        self.region.operations.append(operation)
        ways = [(region, env) for (region, falls), env in zip(built, environments, strict=True) if falls]
        written = stored(ast.walk(node))
        live = self.frame.liveness.after.get(id(node), written)
        for name in sorted(written - live):
            environment.pop(name, None)
        if not ways:
            self.go_on(operation)
            return False
        for name in sorted(written & live):
            environment[name] = self.join(operation, name, [(region, env.get(name, UNDEFINED)) for region, env in ways], node)
        return True

    def go_on(self, branch: Operation) -> None:
        """Of a branch both of whose ways leave, let the second be what follows it, so that each region has an end."""
        region, last = self.region, branch.regions[1]
        branch.regions[1] = Region()
        region.operations += last.operations
        region.exit, region.location = last.exit, last.location
        if self.loops:
            exits = self.loops[-1].exits
            exits[:] = [(region if one is last else one, environment) for one, environment in exits]

    # ----------------------------------------------------------------------------------------------------------------- loops

    def loop(self, node: ast.For | ast.While, environment: Environment) -> bool:
        kind, over, options = ("while", [], {}) if isinstance(node, ast.While) else self.iteration(node, environment)
        if isinstance(node, ast.For) and kind == "each" and isinstance(over[0], Group):
            return self.unrolled(node, over[0].parts, environment)
        return self.turns(node, kind, over, options, environment)

    def turns(
        self, node: ast.For | ast.While, kind: str, over: list[Operand], options: Environment, environment: Environment
    ) -> bool:
        """A loop that stays one; where it reads a tensor that a condition chooses, there is one for each."""
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        choice = next(choices_in(over), None)
        if choice is None and self.unswitched < _MOST_UNSWITCHED:
            choice = next(choices_in(operand for name, operand in environment.items() if name in read), None)
        if choice is not None:
            condition = choice.condition

            def walk(way: int, env: Environment) -> bool:
                return self.turns(node, kind, [picked(one, condition, way) for one in over], options, env)

            self.unswitched += 1
            try:
                return self.ways(node, condition, walk, environment)
            finally:
                self.unswitched -= 1
        over = [self.materialized(one) for one in over]
        liveness, written = self.frame.liveness, stored(ast.walk(node))
        live = liveness.after.get(id(node), written) | liveness.again.get(id(node), written)
        carried = sorted(written & live)
        entry = {name: environment.get(name, UNDEFINED) for name in carried}
        for _ in range(_ROUNDS):
            operation, loop = self.turn(node, kind, over, options, entry, environment)
            if is_endless(node) and all(region.exit == "break" for region, _ in loop.exits):
                return self.once(node, environment)
            for region, env in loop.exits:
                unread = set(carried) - liveness.after.get(id(node), written) if region.exit == "break" else ()
                for name in unread:
                    if not may_be_one(entry[name], env.get(name, UNDEFINED)):
                        env.pop(name, None)
            wider = {name: self.widened(entry[name], loop, name, node) for name in carried}
            if all(same_types(wider[name], entry[name]) for name in carried):
                break
            entry = wider
        else:
            raise Unsupported("a variable that changes its type in a loop", self.location(node))
        for region, env in loop.exits:
            region.operands = [leaf for name in carried for leaf in self.fitted(env.get(name, UNDEFINED), entry[name])]
        initial = [leaf for name in carried for leaf in self.fitted(environment.get(name, UNDEFINED), entry[name])]
        operation.operands += initial
        self.region.operations.append(operation)
        for name in carried:
            results = [Value(name, type_of_operand(leaf)) for leaf in leaves(entry[name])]
            operation.results += results
            environment[name] = rebuilt(entry[name], results)
        for name in written - set(carried):
            environment.pop(name, None)
        endless = isinstance(node, ast.While) and not any(region.exit == "break" for region, _ in loop.exits)
        return not endless and self.block(node.orelse, environment)

    def turn(
        self,
        node: ast.For | ast.While,
        kind: str,
        over: Sequence[Operand],
        options: Environment,
        entry: Environment,
        environment: Environment,
    ) -> tuple[Operation, Loop]:
        """The body of a loop, whose carried variables are at the start of a turn of the types that `entry` has."""
        inner, parameters = dict(environment), []
        operation = Operation(kind, list(over), self.location(node), keywords=options)
        if isinstance(node, ast.For):
            items = [Value("t", ty) for ty in ([ScalarType(int)] if kind == "for" else self.item_types(operation, node))]
            parameters += items
        for name, operand in entry.items():
            values = [Value(name, type_of_operand(leaf)) for leaf in leaves(operand)]
            parameters += values
            inner[name] = rebuilt(operand, values)
        loop = Loop(list(entry))
        self.loops.append(loop)

        def walk() -> bool:
            if isinstance(node, ast.For):
                self.assign(node.target, items[0] if len(items) == 1 else Group(tuple(items)), inner)
            else:
                self.test(node, inner)
            return self.block(node.body, inner)

        try:
            region, falls = self.nested(walk, parameters)
        finally:
            self.loops.pop()
        if falls:
            loop.exits.append((region, inner))
        operation.regions = [region]
        return operation, loop

    def item_types(self, operation: Operation, node: ast.For) -> list[Type]:
        try:
            return item_types(operation)
        except CompileError as error:
            self.refuse(error.reason, node.iter)

    def once(self, node: ast.For | ast.While, environment: Environment) -> bool:
        """A loop without a second turn."""
        body, left = without_jumps(node, self.count())
        if left:
            self.assign(ast.copy_location(ast.Name(left, ast.Store()), node), Constant(False), environment)
        return self.block(body, environment)

    def unrolled(self, node: ast.For, items: Sequence[Operand], environment: Environment) -> bool:
        """A loop over what is known when the kernel is compiled: its body once for each item."""
        self.rewritten = True
        body, left = without_jumps(node, self.count())
        if left:
            self.assign(ast.copy_location(ast.Name(left, ast.Store()), node), Constant(False), environment)
        for item in items:
            self.assign(node.target, item, environment)
            if not self.block(body, environment):
                return False
        return self.block(node.orelse, environment)

    def items(self, node: ast.expr, environment: Environment) -> Sequence[Operand]:
        over = ast.copy_location(ast.For(ast.Name("_", ast.Store()), node, [], []), node)
        kind, operands, _ = self.iteration(over, environment)
        bounds = [constant_of(operand) for operand in operands]
        if kind == "for" and all(bounds):
            return tuple(map(Constant, range(*(bound.value for bound in bounds if bound))))
        if kind != "each" or not isinstance(operands[0], Group):
            self.refuse(_UNKNOWN_ITEMS, node)
        self.rewritten = True
        return operands[0].parts

    def test(self, node: ast.While, environment: Environment) -> None:
        """The condition of a `while`, where a turn begins: the loop is left if it does not hold."""
        condition = self.condition(node.test, environment)
        if is_known(condition) and condition.value:  # type: ignore[union-attr]
            return
        stay, leave = Region(), Region(exit="break", location=self.location(node))
        self.loops[-1].exits.append((leave, dict(environment)))
        self.region.operations.append(Operation("if", [condition], self.location(node), regions=[stay, leave]))

    def iteration(self, node: ast.For, environment: Environment) -> tuple[str, list[Operand], Environment]:
        """What a `for` goes over, and its options."""
        over = node.iter
        function = self.static(over.func, environment) if isinstance(over, ast.Call) else None
        if isinstance(over, ast.Call) and isinstance(function, Constant):
            if function.value is range:
                bounds = [self.expression(bound, environment) for bound in over.args]
                self.check_operation(
                    Operation(
                        "call",
                        bounds,
                        self.location(over),
                        function,
                        dict.fromkeys([str(k.arg) for k in over.keywords], Constant(None)),
                    )
                )
                start, stop = bounds[:2] if len(bounds) > 1 else (Constant(0), bounds[0])
                return "for", [start, stop, bounds[2] if len(bounds) > 2 else Constant(1)], {}
            if function.value is static_range:
                bounds = [self.expression(bound, environment) for bound in over.args]
                constants = [constant_of(bound) for bound in bounds]
                if over.keywords or not all(constants):
                    self.refuse(f"static_range: {unknown_bounds()}", over)
                try:
                    numbers = static_range(*(constant.value for constant in constants if constant))
                except (CompileError, TypeError) as error:
                    self.refuse(str(error), over)
                return "each", [Group(tuple(map(Constant, numbers)))], {}
            if function.value is pipelined:
                streams = [self.expression(stream, environment) for stream in over.args]
                options = {str(k.arg): self.expression(k.value, environment) for k in over.keywords}
                return "stream", streams, options
        return "each", [self.expression(over, environment)], {}

    def widened(self, entry: Operand, loop: Loop, name: str, node: ast.AST) -> Operand:
        """What a carried variable is at the start of a turn, by what the turns before may end with."""
        wider = entry
        for _, env in loop.exits:
            operand = env.get(name, UNDEFINED)
            if is_unset(operand):
                continue
            if is_unset(wider):
                wider = rebuilt(operand, [Value(name, type_of_operand(leaf)) for leaf in leaves(operand)])
            self.check_same(name, wider, operand, node)
            pairs = zip(leaves(wider), leaves(operand), strict=True)
            wider = rebuilt(wider, [Value(name, joined_type(pair)) for pair in pairs])
        return wider

    def fitted(self, operand: Operand, like: Operand) -> list[Operand]:
        """The leaves of an operand that has the structure of another, or is undefined as a whole."""
        if operand is UNDEFINED:
            return [UNDEFINED for _ in leaves(like)]
        return list(leaves(operand))
