"""The functions that a kernel calls or passes on: each is bound at each of its calls, with the constants among the arguments."""

from __future__ import annotations

import ast
import copy
import inspect
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilekit.compiler.frontend.arguments import has_stars, is_variadic, options_of, written_out
from tilekit.compiler.frontend.bound import (
    BoundKernel,
    Origin,
    arguments_of,
    arguments_of_lambdas,
    stored,
    without_type_parameters,
)
from tilekit.compiler.frontend.desugar import STANDING_FOR
from tilekit.compiler.frontend.folding import MISSING, is_constant, literal, plain, value_of
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.frontend.syntax import check_syntax
from tilekit.compiler.frontend.tuples import put_together
from tilekit.errors import CompileError
from tilekit.lang.annotations import Generic
from tilekit.lang.functions import Function, helper_of

__all__ = ["Calling", "Passed"]

_sources: weakref.WeakKeyDictionary[Function, KernelSource] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Passed:
    """A lambda that a kernel passes on, or a function that is written in it, in the place of a `Function`."""

    binder: Calling
    node: ast.Lambda | ast.FunctionDef

    constants = frozenset[str]()

    @property
    def name(self) -> str:
        return self.node.name if isinstance(self.node, ast.FunctionDef) else "the_lambda"

    @property
    def definition(self) -> ast.FunctionDef:
        """It as a function."""
        tree = ast.FunctionDef(name=self.name, args=self.node.args, body=self.body, decorator_list=[])
        without_type_parameters(tree)
        return ast.copy_location(tree, self.node)

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements, as those of a function."""
        if isinstance(self.node, ast.FunctionDef):
            return copy.deepcopy(self.node.body)
        return [ast.copy_location(ast.Return(copy.deepcopy(self.node.body)), self.node)]

    @property
    def signature(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(a.arg, kind) for a in self.node.args.args])


class Calling(ast.NodeTransformer):
    """What is known of a function that is being bound, and the functions that it calls."""

    def __init__(
        self,
        function: types.FunctionType,
        source: KernelSource,
        generics: Mapping[str, Any],
        constants: Mapping[str, Any],
        callers: tuple[Function | Passed, ...] = (),
        tuples: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Of one function; with `defaults` it is called with a star, and has its parameters as they are written."""
        self.tuples = {name: names for name, names in (tuples or {}).items() if names is not None}
        self.defaults = defaults
        self.function, self.source, self.generics, self.callers = function, source, generics, callers
        self.called: dict[str, BoundKernel] = {}
        self.origins: list[Origin] = []
        self.passed: set[str] = set()
        self.constants = {name: plain(value) for name, value in constants.items()}
        self.cells: dict[str, Any] = {**STANDING_FOR}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.cells[name] = cell.cell_contents
            except ValueError:  # a variable of the enclosing function that has no value yet
                continue
        self.cells |= {name: value for name, value in self.constants.items() if not is_constant(value)}
        self.locals: set[str] = set()
        self.looped: list[ast.expr] = []  # what for statements go over

    def bind(self) -> BoundKernel:
        """The function with all that is known put in."""
        raise NotImplementedError

    def lookup(self, name: str) -> Any:
        """What a name that is not local stands for; `MISSING` if nothing."""
        raise NotImplementedError

    def _static(self, node: ast.expr) -> Any:
        """What an expression of names and attributes stands for."""
        raise NotImplementedError

    def _standing_for(self, value: Any, at: ast.stmt | ast.expr) -> ast.expr:
        """An expression of a value."""
        raise NotImplementedError

    def _note_attribute(self, node: ast.expr) -> None:
        """Remember what an attribute stands for."""
        raise NotImplementedError

    def _function(self, node: ast.expr) -> Function | Passed | None:
        """The function that an argument is."""
        if isinstance(node, ast.Lambda):
            return Passed(self, node)
        value = self._static(node)
        return value if isinstance(value, Passed) else self._helper(value, node)

    def _call(self, node: ast.Call, function: Function | Passed) -> ast.Call:
        """A call, with the constants among its arguments put into a copy of the function."""
        name, signature = function.name, function.signature
        node.args = list(written_out(node.args, self._behind_star))
        if has_stars(node):
            return self._call_with_star(node, function)
        keywords: dict[str, ast.expr] = {}
        for k in node.keywords:
            if k.arg in keywords:
                raise self.source.error(f"{name}: {k.arg} is given twice", node.lineno, name)
            keywords[str(k.arg)] = k.value
        try:
            arguments = signature.bind(*node.args, **keywords).arguments
        except TypeError as error:
            raise self.source.error(f"{name}: {error}; it is called as {name}{signature}", node.lineno, name) from None
        tuples: dict[str, Any] = {}
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                parts = arguments.pop(parameter.name, ())
                tuples[parameter.name] = tuple(f"tilekit__{parameter.name}{at}" for at, _ in enumerate(parts))
                arguments |= zip(tuples[parameter.name], parts, strict=True)
        constants, left = self._sorted_out(arguments)
        bound = self._bound(node, function, constants, [parameter for parameter, _ in left], tuples)
        bound = replace(bound, demanded=function.constants & dict(left).keys())
        by_name = dict(left) | {p: literal(constants[p], node) for p in bound.names if p in constants}
        called = ast.Call(self._stand_in(node, function, bound), [by_name[p] for p in bound.names], [])
        return ast.copy_location(called, node)

    def _sorted_out(self, arguments: Mapping[str, ast.expr]) -> tuple[dict[str, Any], list[tuple[str, ast.expr]]]:
        """The constants and functions among arguments, by the names of their parameters, and the expressions that are left."""
        constants: dict[str, Any] = {}
        left = []
        for parameter, argument in arguments.items():
            passed = self._function(argument)
            if passed is not None:
                constants[parameter] = passed
                continue
            argument = self.visit(argument)
            value = value_of(argument)
            if value is not MISSING:
                constants[parameter] = value
            else:
                left.append((parameter, argument))
        return constants, left

    def _call_with_star(self, node: ast.Call, function: Function | Passed) -> ast.Call:
        """A call with a tuple of arguments: how many these are, types tell. So which parameters are left to their defaults is
        open here, and what stands ahead of the star, or has a name, is put in."""
        name, signature = function.name, function.signature
        parameters = signature.parameters.values()
        first = next(at for at, argument in enumerate(node.args) if isinstance(argument, ast.Starred))
        order = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if is_variadic(signature):
            first = min(first, len(order))
        elif first > len(order):
            raise self.source.error(
                f"{name}: too many positional arguments; it is called as {name}{signature}", node.lineno, name
            )
        stated = dict(zip(order, node.args[:first], strict=False))
        for k in node.keywords:
            if k.arg in stated or k.arg not in signature.parameters:
                reason = f"{k.arg} is given twice" if k.arg in stated else f"got an unexpected keyword argument {k.arg!r}"
                raise self.source.error(f"{name}: {reason}; it is called as {name}{signature}", node.lineno, name)
            stated[str(k.arg)] = k.value
        constants, left = self._sorted_out(stated)
        source = self._source_of(function, node)
        assigned = stored(ast.walk(source.tree))
        known = {p: value for p, value in constants.items() if p not in assigned or not is_constant(value)}
        defaults = {p.name: self._default(p, source) for p in parameters if p.default is not p.empty and p.name not in known}
        bound = self._bound(node, function, known, [p.name for p in parameters], defaults=defaults)
        bound = replace(bound, demanded=function.constants & set(bound.names))
        by_name = dict(left) | {p: literal(value, node) for p, value in constants.items() if p not in known}
        ahead = [by_name[p] for p in order[:first] if p in by_name]
        behind = [self.visit(argument) for argument in node.args[first:]]
        named = [ast.keyword(str(k.arg), by_name[str(k.arg)]) for k in node.keywords if k.arg in by_name]
        return ast.copy_location(ast.Call(self._stand_in(node, function, bound), [*ahead, *behind], named), node)

    def _behind_star(self, node: ast.expr) -> Any:
        """What stands behind a star: a tuple of names, where it is a parameter that is one."""
        if isinstance(node, ast.Name) and node.id in self.tuples and node.id not in stored(ast.walk(self.source.tree)):
            statement = put_together(ast.copy_location(ast.arg(node.id), node), self.tuples[node.id])
            assert isinstance(statement, ast.Assign), "see there"
            return statement.value
        return self.visit(node)

    def _options(self, keyword: ast.keyword) -> Iterator[ast.keyword]:
        """A keyword; of `**options`, one for each entry."""
        if keyword.arg is not None:
            yield keyword
            return
        try:
            entries = options_of(keyword, self._static)
        except CompileError as error:
            raise self.source.error(error.reason, keyword.value.lineno) from None
        for name, value in entries.items():
            if not isinstance(keyword.value, ast.Dict):
                self.origins.append((self._static(keyword.value), name, value))
                value = self._standing_for(value, keyword.value)
            yield ast.keyword(name, value)

    def _function_argument(self, node: ast.expr) -> ast.expr:
        """An argument of an operation that takes a function: a lambda, or one that is written for Python alone, is one, too."""
        if isinstance(node, ast.Lambda):
            return self._passed(node, Passed(self, node))
        written = [one for one in ast.walk(self.source.tree) if isinstance(one, ast.FunctionDef) and one is not self.source.tree]
        named = [one for one in written if isinstance(node, ast.Name) and one.name == node.id]
        if len(named) == 1 and named[0].name not in stored(ast.walk(self.source.tree)):
            return self._passed(node, Passed(self, named[0]))
        function = self._helper(self._static(node), node)
        return node if function is None else self._passed(node, function)

    def _helper(self, value: Any, node: ast.expr) -> Function | None:
        """The helper that a function is, decorated or not."""
        try:
            return helper_of(value)
        except TypeError as error:
            raise self.source.error(str(error).removeprefix("@tk.function "), node.lineno) from None

    def _passed(self, node: ast.expr, function: Function | Passed) -> ast.Name:
        """What stands for a function that is passed on."""
        if is_variadic(function.signature):
            reason = f"{function.name}, which is passed on, takes plain parameters, and no *args"
            raise self.source.error(reason, node.lineno, function.name)
        required = [p.name for p in function.signature.parameters.values() if p.default is p.empty]
        stand_in = self._stand_in(node, function, self._bound(node, function, {}, required))
        self.passed.add(stand_in.id)
        return stand_in

    def _stand_in(self, node: ast.expr, function: Function | Passed, bound: BoundKernel) -> ast.Name:
        number = len(self.called) + 1
        while (name := f"{function.name}__{number}") in self.locals or self.lookup(name) is not MISSING:
            number += 1
        self.called[name] = bound
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _bound(
        self,
        at: ast.expr,
        function: Function | Passed,
        constants: dict[str, Any],
        left: list[str],
        tuples: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> BoundKernel:
        """A copy of a function for one call, whose parameters are `left`, and those of `constants` that it assigns to.

        Parameters of which `tuples` has names are tuples of these. With `defaults` the call has a star.
        """
        if function in self.callers:
            cycle = [f.name for f in self.callers[self.callers.index(function) :]] + [function.name]
            raise self.source.error(
                f"{function.name} calls itself ({' -> '.join(cycle)}): functions are put into the kernels that call them, so "
                "they cannot recurse; use a loop",
                at.lineno,
                function.name,
            )
        callers = (*self.callers, function)
        if isinstance(function, Passed):
            return self._bound_lambda(at, function, constants, callers, defaults)
        source = self._source_of(function, at)
        check_syntax(source, returns=True)
        tuples = {**(tuples or {})}
        for name, names in tuples.items():
            if all(one in constants and is_constant(constants[one]) for one in names):
                constants[name] = tuple(constants[one] for one in names)
        for name, parameter in function.signature.parameters.items():
            if name not in constants and name not in left and name not in tuples:
                constants[name] = self._default(parameter, source)
        assigned = stored(ast.walk(source.tree))
        kept = {name: value for name, value in constants.items() if name not in assigned or not is_constant(value)}
        tuples = {name: names for name, names in tuples.items() if name not in constants}
        binder = type(self)(function.function, source, self.generics, kept, callers, tuples, defaults)
        self._note_attribute(at.func if isinstance(at, ast.Call) else at)
        return binder.bind()

    def _source_of(self, function: Function | Passed, at: ast.expr) -> KernelSource:
        """The text of a function that is called there."""
        if isinstance(function, Passed):
            return function.binder.source.part(function.definition).called(self.source, at.lineno)
        source = _sources.get(function)
        if source is None:
            try:
                source = _sources[function] = KernelSource(function.function, function.file, "function")
            except CompileError as error:  # it cannot be read
                raise self.source.error(error.reason, at.lineno) from None
        return source.called(self.source, at.lineno)

    def _default(self, parameter: inspect.Parameter, source: KernelSource) -> Any:
        value = plain(parameter.default)
        if isinstance(value, Generic):
            if value.name not in self.generics:
                raise source.error(f"generic {value.name} is not bound", source.tree.lineno, value.name)
            return self.generics[value.name]
        if not is_constant(value) and not isinstance(value, (np.dtype, type, Function)):
            reason = f"the default of {parameter.name} is no constant: a bool, int, float, str, dtype, None, or a tuple of these"
            raise source.error(reason, source.tree.lineno)
        return value

    def _bound_lambda(
        self,
        at: ast.expr,
        function: Passed,
        constants: dict[str, Any],
        callers: tuple[Function | Passed, ...],
        defaults: Mapping[str, Any] | None,
    ) -> BoundKernel:
        outer, node, body = function.binder, function.node, function.body
        what = "a lambda in a kernel" if isinstance(node, ast.Lambda) else f"{node.name}, which is passed on,"
        parameters = {a.arg for a in node.args.args}
        if len(parameters) != len(arguments_of(node.args)) or node.args.defaults:
            raise outer.source.error(f"{what} takes plain parameters, without defaults", node.lineno)
        inside = [part for statement in body for part in ast.walk(statement)]
        used = {n.id for n in inside if isinstance(n, ast.Name)} - parameters - stored(inside)
        for name in sorted(used & (outer.locals - arguments_of_lambdas(outer.source.tree))):
            reason = f"{what} sees its arguments and constants alone; {name} is a value that the kernel computes"
            raise outer.source.error(reason, node.lineno, name)
        source = self._source_of(function, at)
        known = {name: value for name, value in outer.constants.items() if name not in parameters}
        binder = type(self)(outer.function, source, self.generics, known | constants, callers, defaults=defaults)
        binder.cells = outer.cells | binder.cells
        return binder.bind()
