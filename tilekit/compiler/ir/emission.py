"""How operations get into the region that is being built, and what variables are behind branches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.ir.choices import are_alternatives, choices_in, is_view, picked
from tilekit.compiler.ir.constants import (
    KEEPS,
    STAYS,
    is_known,
    is_unset,
    joined_type,
    kind_of,
    known_attribute,
    may_be_one,
    type_of_operand,
)
from tilekit.compiler.ir.effects import is_pure
from tilekit.compiler.ir.frames import Frame, Loop
from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.nodes import (
    UNDEFINED,
    Choice,
    Constant,
    Group,
    Location,
    Operand,
    Operation,
    Region,
    Undefined,
    Value,
    View,
    leaves,
    rebuilt,
    rebuilt_of,
    structure,
)
from tilekit.compiler.ir.types import UNKNOWN, ScalarType, TileType, Type
from tilekit.errors import CompileError

__all__ = ["Emission", "Unsupported"]

R = TypeVar("R")


class Unsupported(Exception):
    """A statement that the IR has no form for, yet."""

    def __init__(self, what: str, location: Location | None = None) -> None:
        super().__init__(what if location is None else f"{what}, in {location}")


class Emission:
    """Appends operations to the region that is being built.

    Attributes:
        frame: the function that is being walked.
        region: where operations are appended to; `outermost`: that of the kernel.
        loops: that are being built, of this function.
        refused: operations that the language does not have, and why.
    """

    def __init__(self, bound: BoundKernel) -> None:
        self.frame = Frame.of(bound, inlined=False)
        self.region = self.outermost = Region()
        self.loops: list[Loop] = []
        self.refused: dict[Operation, CompileError] = {}
        self.rewritten, self.counted, self.unswitched = False, 0, 0

    def location(self, node: ast.AST | Location) -> Location:
        """Where a statement or expression stands."""
        if isinstance(node, Location):
            return node
        return Location.of(self.frame.bound.source, node, self.frame.call)

    def refuse(self, reason: str, node: ast.AST | Location) -> NoReturn:
        """Raise the error that the kernel is wrong there."""
        raise self.location(node).error(reason)

    def emit(
        self, kind: str, operands: Iterable[Operand], node: ast.AST | Location, name: str, what: Any = None, **keywords: Operand
    ) -> Operand:
        """Append an operation, and give what it defines: nothing but a constant, if that is what it comes to."""
        operands = list(operands)
        choice = next(choices_in((*operands, *keywords.values())), None)
        if choice is not None:
            return self.of_choice(choice.condition, kind, operands, node, name, what, keywords)
        operands, keywords = (
            [self.materialized(one) for one in operands],
            {word: self.materialized(one) for word, one in keywords.items()},
        )
        operation = Operation(kind, operands, self.location(node), what, keywords)
        try:
            result = infer(operation)
        except CompileError as error:  # a loop that makes another thing of its variables is the reason, where there is one
            result, self.refused[operation] = Value(name, UNKNOWN), self.located(operation, error)
        if is_pure(operation) and not any(isinstance(leaf, Value) for leaf in leaves(result)):
            return result
        defined = [Value(name, leaf.type) if isinstance(leaf, Value) else leaf for leaf in leaves(result)]
        operation.results = [leaf for leaf in defined if isinstance(leaf, Value)]
        self.region.operations.append(operation)
        operand = rebuilt(result, defined)
        operation.pattern = operand if isinstance(operand, Group) else None
        return operand

    def located(self, operation: Operation, error: CompileError) -> CompileError:
        """The error of an operation; in a function that it was given, that is where it stands."""
        for operand in (*operation.operands, *operation.keywords.values()):
            if isinstance(operand, Constant) and isinstance(operand.value, BoundKernel):
                within = operand.value.error_from(error.reason, error.__traceback__)
                if within.lineno is not None:
                    return within
        return operation.location.error(error.reason)

    def nested(self, walk: Callable[[], R], parameters: Iterable[Value] = ()) -> tuple[Region, R]:
        """The region of what is walked, and what walking gives."""
        outer, self.region = self.region, Region(list(parameters))
        try:
            result = walk()
            return self.region, result
        finally:
            self.region = outer

    def join(self, operation: Operation, name: str, ways: Sequence[tuple[Region, Operand]], node: ast.AST | Location) -> Operand:
        """What a variable is behind a branch: one value if it is that on all ways, else a result of the branch."""
        if len(ways) == 2 and are_alternatives(*(operand for _, operand in ways)):
            return self.alternatives(operation, name, ways, node)
        there = [(region, operand) for region, operand in ways if operand is not UNDEFINED]
        if len(there) == 1 < len(ways):  # who reads it comes from there
            (region, operand) = there[0]
            if is_view(operand):
                return self.outside(operand, region, operation)
            if isinstance(operand, Group):
                sides = [[(each, part if each is region else UNDEFINED) for each, _ in ways] for part in operand.parts]
                return Group(tuple(self.join(operation, name, side, node) for side in sides))
        like = next((operand for _, operand in ways if not is_unset(operand)), ways[0][1])
        columns = []
        for _, operand in ways:
            if is_unset(operand) and structure(operand) != structure(like):
                operand = rebuilt(like, [UNDEFINED for _ in leaves(like)])
            self.check_same(name, like, operand, node)
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

    def check_same(self, name: str, one: Operand, other: Operand, node: ast.AST | Location) -> None:
        """Refuse a variable, or a value, that is one thing on one path or turn, and another on another."""
        if may_be_one(one, other):
            return
        variable = isinstance(node, ast.stmt) and not isinstance(node, ast.Return)
        if variable and isinstance(node, ast.AST):  # the last place that assigns to it
            stores = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
            node = max(stores, key=lambda n: (n.lineno, n.col_offset), default=node)
        types = [type_of_operand(side) for side in (one, other)]
        mixed = any(isinstance(ty, ScalarType) for ty in types) and any(isinstance(ty, TileType) and not ty.shape for ty in types)
        keeps = STAYS if is_view(one) and is_view(other) else KEEPS
        item = "; the scalar of a tile of shape () is tile.item()" if mixed else ""
        self.refuse(f"{name if variable else 'the value'} is {kind_of(one)} and {kind_of(other)}: {keeps}{item}", node)

    def chosen(self, node: ast.AST | Location, condition: Operand, ways: Sequence[Callable[[], Operand]], name: str) -> Operand:
        """One of two expressions."""
        if is_known(condition):
            return ways[0 if condition.value else 1]()  # type: ignore[union-attr]
        branches = [self.nested(way) for way in ways]
        operation = Operation("if", [condition], self.location(node), regions=[region for region, _ in branches])
        self.region.operations.append(operation)
        return self.join(operation, name, branches, node)

    def attribute(self, owner: Operand, attribute: str, node: ast.AST | Location) -> Operand:
        if isinstance(owner, Choice):
            either = self.attribute_of_both(owner, attribute)
            if either is not None:
                return either
        known = known_attribute(owner, attribute)
        return self.emit("attribute", [owner], node, attribute, attribute) if known is None else known

    # -------------------------------------------------------------------------------------------------- tensors that are chosen

    def of_choice(
        self,
        condition: Value,
        kind: str,
        operands: Sequence[Operand],
        node: ast.AST | Location,
        name: str,
        what: Any,
        keywords: Mapping[str, Operand],
    ) -> Operand:
        """What an operation defines that reads a tensor which a condition chooses: a view is made where it is read."""

        def way(number: int) -> Operation:
            known = {word: picked(operand, condition, number) for word, operand in keywords.items()}
            return Operation(kind, [picked(one, condition, number) for one in operands], self.location(node), what, known)

        ways = way(0), way(1)
        with suppress(CompileError):  # which the branches of it tell, as they are built
            results = [infer(one) for one in ways]
            if all(is_view(result) for result in results):
                views = [self.view(one, type_of_operand(result)) for one, result in zip(ways, results, strict=True)]
                return Choice(condition, *views)

        def emitted(one: Operation) -> Operand:
            return self.emit(kind, one.operands, one.location, name, what, **one.keywords)

        return self.chosen(node, condition, [lambda: emitted(ways[0]), lambda: emitted(ways[1])], name)

    def view(self, operation: Operation, ty: Type) -> View:
        """What an operation makes, for where it is read."""
        keywords = tuple(operation.keywords.items())
        return View(operation.kind, operation.what, tuple(operation.operands), keywords, ty, operation.location)

    def materialized(self, operand: Operand) -> Operand:
        """An operand whose views are made here."""
        match operand:
            case View(kind, what, operands, keywords, _, location):
                return self.emit(kind, operands, location, "t", what, **dict(keywords))
            case Value() | Constant() | Undefined():
                return operand
        return rebuilt_of(operand, self.materialized)

    def alternatives(
        self, operation: Operation, name: str, ways: Sequence[tuple[Region, Operand]], node: ast.AST | Location
    ) -> Operand:
        """What a variable is behind a branch whose condition chooses between tensors."""
        one, other = (operand for _, operand in ways)
        if isinstance(one, Group) and isinstance(other, Group):
            columns = zip(one.parts, other.parts, strict=True)
            regions = [region for region, _ in ways]
            return Group(tuple(self.join(operation, name, list(zip(regions, c, strict=True)), node) for c in columns))
        self.rewritten = True
        condition = operation.operands[0]
        assert isinstance(condition, Value), "the condition of a branch that is built"
        return Choice(condition, *(self.outside(operand, region, operation) for region, operand in ways))

    def outside(self, operand: Operand, region: Region, branch: Operation) -> Operand:
        """An operand of a way of a branch, for what stands behind the branch: a view is made again there."""
        if isinstance(operand, (Constant, Undefined)):
            return operand
        if not isinstance(operand, Value):
            return rebuilt_of(operand, lambda part: self.outside(part, region, branch))
        inner = next((one for one in region.walk() if operand in one.results), None)
        if inner is None:
            return operand
        if is_view(operand) and not inner.regions and len(inner.results) == 1:
            view = rebuilt_of(self.view(inner, operand.type), lambda part: self.outside(part, region, branch))
            return view
        result = Value(operand.name, operand.type)
        branch.results.append(result)
        for each in branch.regions:
            each.operands.append(operand if each is region else UNDEFINED)
        return result

    def attribute_of_both(self, owner: Operand, attribute: str) -> Operand | None:
        """What types know of each of two tensors, if it is the same."""
        if not isinstance(owner, Choice):
            return known_attribute(owner, attribute)
        first, second = (self.attribute_of_both(one, attribute) for one in (owner.first, owner.second))
        return first if first == second else None
