"""Specialisation, from a kernel to a function without generics: names of compile-time values become those values.

The function's syntax tree is copied, generics and `Const` parameters are replaced by their values, constant expressions fold
(`BM // 2`, `S[0] * S[1]`, `if BK > 32:`), and the result is compiled again, at the same lines and columns. Nothing of the
user's is changed. Where kernels are interpreted, the result runs as it is; numba types it, or the IR is built of it, for code.

A function that the kernel calls (`@tk.function`) is bound likewise, once for each call, with the constants among the arguments
of that call in place of its parameters. So generics fold in it as well, and an error in it can name the call.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tilekit.compiler.frontend.arguments import kept_parameters, parameters_of
from tilekit.compiler.frontend.bound import (
    BoundKernel,
    Origin,
    compile_tree,
    current,
    free_names,
    local_names,
    without_type_parameters,
)
from tilekit.compiler.frontend.calling import Calling, Passed
from tilekit.compiler.frontend.captures import attribute_of, check_values
from tilekit.compiler.frontend.desugar import desugared
from tilekit.compiler.frontend.flow import check_flow
from tilekit.compiler.frontend.folding import (
    BINARY,
    COMPARE,
    FOLDABLE_CALLS,
    MISSING,
    UNARY,
    is_constant,
    literal,
    plain,
    value_of,
)
from tilekit.compiler.frontend.names import check_library, no_attribute, undefined
from tilekit.compiler.frontend.pipelined import check_call
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.frontend.syntax import check_syntax
from tilekit.compiler.frontend.tuples import names_of, put_together
from tilekit.lang import reduction, scanning
from tilekit.lang.annotations import Generic
from tilekit.lang.functions import LIBRARIES
from tilekit.lang.pipelines import pipelined

__all__ = ["BoundKernel", "Constant", "bind"]

Constant = bool | int | float | str | None | tuple["Constant", ...]


def bind(
    function: Callable[..., Any],
    source: KernelSource,
    generics: Mapping[str, Any],
    constants: Mapping[str, Any],
    tuples: Mapping[str, Any] | None = None,
) -> BoundKernel:
    """Bind the generics (by name: ints, or tuples for whole shapes) and `Const` parameters of `function`.

    Parameters of which `tuples` has the names of others are those, put together as the names are; None for None.

    Raises:
        CompileError: a generic without a value is used, a name that does not exist, a statement that has no meaning in a kernel,
            or a `Const` parameter is assigned to; in the kernel, or in a function that it calls.
    """
    assert isinstance(function, types.FunctionType), "checked by @kernel"
    check_syntax(source)
    absent = {name: None for name, names in (tuples or {}).items() if names is None}
    return _Binder(function, source, generics, {**constants, **absent}, tuples=tuples).bind()


_TAKING_FUNCTIONS = (reduction.reduce, scanning.scan)
_PACKAGE = __name__.partition(".")[0] + "."


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression may as well be evaluated twice: names, constants, attributes and items of them."""
    return all(
        isinstance(part, (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.UnaryOp, ast.unaryop, ast.expr_context))
        for part in ast.walk(node)
    )


class _Binder(Calling):
    """Rewrites one function definition."""

    def bind(self) -> BoundKernel:
        """The function with all that is known put in."""
        definition = self._rewrite()
        check_values(definition, self.source, self.locals | self.called.keys(), self.lookup)
        check_flow(definition, self.source)
        free, called = sorted(free_names(definition)), self.called
        outside = {name: self.lookup(name) for name in free if name not in called}
        cells = {name: value for name, value in outside.items() if name in self.cells}
        function = compile_tree(
            definition, self.function, self.source, cells | {name: called[name].function for name in free if name in called}
        )
        names = tuple(argument.arg for argument in parameters_of(definition.args))
        text, origins = [ast.dump(definition)], [*self._global_origins(), *self.origins]
        for name, bound in called.items():
            text.append(f"{name}: {bound.text}")
            outside |= {f"{name}.{key}": value for key, value in bound.outside.items()}
            origins += bound.origins
        return BoundKernel(
            function=function,
            source=self.source,
            names=names,
            text="\n".join(text),
            outside=outside,
            definition=definition,
            cells=cells,
            called=called,
            passed=frozenset(self.passed),
            origins=tuple(origins),
        )

    def _rewrite(self) -> ast.FunctionDef:
        original = self.source.tree
        parameters = parameters_of(original.args)
        definition = ast.FunctionDef(
            name=original.name,
            args=self._parameters(original, parameters),
            body=[
                *(put_together(a, self.tuples[a.arg]) for a in parameters if a.arg in self.tuples),
                *copy.deepcopy(original.body),
            ],
            decorator_list=[],
        )
        without_type_parameters(definition)
        ast.copy_location(definition, original)
        definition.body = desugared(definition.body, self._static)
        self.locals = local_names(definition.args, *definition.body)
        for node in ast.walk(definition):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in self.constants:
                raise self.source.error(f"{node.id} is a Const parameter: the kernel cannot assign to it", node.lineno, node.id)
        definition.body = self._block(definition.body)
        return definition

    def _parameters(self, original: ast.FunctionDef, parameters: list[ast.arg]) -> ast.arguments:
        """The parameters that are left."""
        if self.defaults is not None:
            nodes = {name: self._standing_for(value, original.body[0]) for name, value in self.defaults.items()}
            return kept_parameters(original.args, self.constants, nodes)
        left = [
            ast.copy_location(ast.arg(arg=name), a)
            for a in parameters
            if a.arg not in self.constants
            for name in names_of(self.tuples.get(a.arg, a.arg))
            if name not in self.constants
        ]
        return ast.arguments(posonlyargs=[], args=left, kwonlyargs=[], kw_defaults=[], defaults=[])

    def _standing_for(self, value: Any, at: ast.stmt | ast.expr) -> ast.expr:
        """An expression of a value: a constant, or the name of an enclosing variable that has it."""
        if is_constant(plain(value)):
            return literal(plain(value), at)
        name = f"tilekit__value{len(self.cells)}"
        self.cells[name] = value
        return ast.copy_location(ast.Name(name, ast.Load()), at)

    def lookup(self, name: str) -> Any:
        """What a name that is not local stands for; `MISSING` if nothing."""
        for namespace in (self.constants, self.cells, self.function.__globals__, vars(builtins)):
            if name in namespace:
                return namespace[name]
        return MISSING

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        rewritten: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            rewritten.extend(result if isinstance(result, list) else [result])
        return rewritten or [ast.copy_location(ast.Pass(), statements[0])]

    def visit_If(self, node: ast.If) -> Any:
        node.test = self.visit(node.test)
        value = value_of(node.test)
        if value is not MISSING:
            chosen = node.body if value else node.orelse
            return self._block(chosen) if chosen else ast.copy_location(ast.Pass(), node)
        node.body = self._block(node.body)
        node.orelse = self._block(node.orelse) if node.orelse else []
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        node.test = self.visit(node.test)
        value = value_of(node.test)
        if value is not MISSING:
            return self.visit(node.body if value else node.orelse)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return node
        if node.id in self.called:
            return node
        static = self._static(node)
        function = static if isinstance(static, Passed) else self._helper(static, node)
        if function is not None:
            return self._passed(node, function)
        if node.id in self.constants:
            value = self.constants[node.id]
            return literal(value, node) if is_constant(value) else node
        if node.id in self.locals:
            return node
        value = self._named(node.id)
        if value is MISSING:
            known = {*self.locals, *self.cells, *self.function.__globals__}
            raise self.source.error(undefined(node.id, known), node.lineno, node.id)
        value = self._resolve(value, node)
        return literal(value, node) if value is not MISSING else node

    def _named(self, name: str) -> Any:
        """The value of a name, where a type parameter (`def kernel[BM]`) counts as the generic of its name."""
        value = self.lookup(name)
        if value is MISSING and name in self.generics:
            return self.generics[name]
        if isinstance(value, (typing.TypeVar, typing.TypeVarTuple)) and value.__name__ in self.generics:
            return self.generics[value.__name__]
        return value

    def _resolve(self, value: Any, node: ast.expr) -> Any:
        if isinstance(value, Generic):
            if value.name not in self.generics:
                raise self.source.error(
                    f"generic {value.name} is not bound: give it a value with .generics({value.name}=...)",
                    node.lineno,
                    value.name,
                )
            value = self.generics[value.name]
        value = plain(value)
        return value if is_constant(value) else MISSING

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Python does not look at annotations of local variables; names of modules are habits of other libraries' often."""
        if not isinstance(node.annotation, ast.Attribute) or not isinstance(
            self._static(node.annotation.value), types.ModuleType
        ):
            node.annotation = ast.copy_location(ast.Constant(None), node.annotation)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        check_library(node, self.source, self.locals, self.lookup)
        function = self._helper(self._static(node), node)
        if function is not None:
            return self._passed(node, function)
        owner = self._static(node.value)
        if isinstance(owner, np.dtype) and node.attr in ("itemsize", "name"):
            return literal(getattr(owner, node.attr), node)
        if not isinstance(owner, (types.ModuleType, type)):
            value = attribute_of(owner, node.attr)
            if isinstance(value, Generic) or is_constant(plain(value)) or isinstance(value, np.dtype):
                self._note_attribute(node)
                value = self._resolve(value, node) if isinstance(value, Generic) else value
                return self._standing_for(value, node)
            return self.generic_visit(node)
        if not hasattr(owner, node.attr):
            raise self.source.error(no_attribute(node, owner), node.lineno, node.attr)
        self._note_attribute(node)
        value = self._resolve(getattr(owner, node.attr), node)
        return literal(value, node) if value is not MISSING else node

    def _static(self, node: ast.expr) -> Any:
        """What an expression of names and attributes stands for, such as `tk.PaddingMode`, or `CONFIG.width`."""
        if isinstance(node, ast.Name):
            return MISSING if node.id in self.locals else self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._static(node.value)
            if isinstance(owner, (types.ModuleType, type)):
                return getattr(owner, node.attr, MISSING)
            return attribute_of(owner, node.attr)
        return MISSING

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        return self._fold(node, BINARY.get(type(node.op)), node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return self._fold(node, UNARY.get(type(node.op)), node.operand)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        functions = [COMPARE[type(op)] for op in node.ops]

        def compare(*values: Any) -> Any:
            steps = zip(functions, itertools.pairwise(values), strict=True)
            return all(function(first, second) for function, (first, second) in steps)

        operands = [node.left, *node.comparators]
        folded = self._fold(node, compare, *operands)
        if folded is not node or len(functions) == 1 or not all(map(_is_plain, operands[1:-1])):
            return folded
        # In parts, each of which types may decide.
        pairs = zip(node.ops, itertools.pairwise(operands), strict=True)
        parts: list[ast.expr] = [
            ast.copy_location(ast.Compare(copy.deepcopy(first), [op], [second]), node) for op, (first, second) in pairs
        ]
        return ast.copy_location(ast.BoolOp(ast.And(), parts), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        while len(node.values) > 1:
            first = value_of(node.values[0])
            if first is MISSING:
                return node
            if bool(first) is isinstance(node.op, ast.Or):
                return node.values[0]  # it decides
            del node.values[0]
        return node.values[0]

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        return self._fold(node, operator.getitem, node.value, node.slice) if isinstance(node.ctx, ast.Load) else node

    def visit_For(self, node: ast.For) -> Any:
        before = self._count_turns(node)
        self.looped.append(node.iter)
        loop = self.generic_visit(node)
        return [*map(self.visit, before), loop] if before else loop

    def _count_turns(self, node: ast.For) -> list[ast.stmt]:
        """Let a variable count the turns of `for k, (ta, tb) in enumerate(tk.pipelined(...)):`; what it begins with."""
        outer, target = node.iter, node.target
        if not isinstance(outer, ast.Call) or self._static(outer.func) is not enumerate or not outer.args:
            return []
        inner, named = outer.args[0], {k.arg: k.value for k in outer.keywords}
        if not isinstance(inner, ast.Call) or self._static(inner.func) is not pipelined or not isinstance(target, ast.Tuple):
            return []
        if len(target.elts) != 2 or len(outer.args) + len(named) > 2 or named.keys() - {"start"}:
            return []
        begins = [*outer.args[1:], *named.values(), ast.copy_location(ast.Constant(0), outer)][0]
        name = f"tilekit__turn{len(self.looped)}"
        self.locals.add(name)
        before, count = ast.parse(f"{name} = 0\n{name} = {name} + 1").body
        number = ast.Assign([target.elts[0]], ast.Name(name, ast.Load()))
        for statement in (before, number, count):
            for part in ast.walk(statement):
                if part is not target.elts[0] and isinstance(part, (ast.expr, ast.stmt)):
                    ast.copy_location(part, outer)
        assert isinstance(before, ast.Assign), "see there"
        before.value = begins
        node.iter, node.target, node.body = inner, target.elts[1], [number, count, *node.body]
        return [before]

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            check_library(node.func, self.source, self.locals, self.lookup)
        node.keywords = [named for keyword in node.keywords for named in self._options(keyword)]
        called = self._static(node.func)
        if isinstance(called, Passed):
            return self._call(node, called)
        helper = self._helper(called, node)
        if helper is not None:
            return self._call(node, helper)
        if any(called is function for function in _TAKING_FUNCTIONS):
            node.args = [self._function_argument(a) for a in node.args]
            for k in node.keywords:
                k.value = self._function_argument(k.value)
        self.generic_visit(node)
        if isinstance(called, np.dtype):
            reason = f"{ast.unparse(node.func)} is a dtype, which is not called: cast a tile with .astype(...), a scalar with "
            raise self.source.error(f"{reason}tk.astile(..., dtype=...)", node.lineno)
        if called is pipelined:
            check_call(self.source, node, looped=any(node is each for each in self.looped))
        for function, evaluate in FOLDABLE_CALLS.items():
            if called is function and node.args and not node.keywords:
                return self._fold(node, evaluate, *node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "bit_length" and not (node.args or node.keywords):
            return self._fold(node, int.bit_length, node.func.value)
        return node

    def _fold(self, node: ast.expr, function: Callable[..., Any] | None, *operands: ast.expr) -> ast.expr:
        values = [value_of(operand) for operand in operands]
        if function is None or any(v is MISSING for v in values):
            return node
        try:
            result = function(*values)
        except (ArithmeticError, TypeError, ValueError, IndexError) as error:
            reason = str(error).replace("'NoneType' object", "None").replace("'NoneType'", "None")
            raise self.source.error(f"{ast.unparse(node)}: {reason}", node.lineno) from None
        return literal(result, node) if is_constant(result) else node

    def _note_attribute(self, node: ast.expr) -> None:
        """Remember what an attribute of a module or class of the user's stands for, so that another value of it counts."""
        owner = self._static(node.value) if isinstance(node, ast.Attribute) else None
        if not isinstance(node, ast.Attribute) or not isinstance(owner, (types.ModuleType, type)):
            if isinstance(node, ast.Attribute) and node.attr in getattr(owner, "__dict__", {}):
                self.origins.append((vars(owner), node.attr, vars(owner)[node.attr]))
            return
        module = str(owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__)
        if module.partition(".")[0] in LIBRARIES or f"{module}.".startswith(_PACKAGE):
            return
        scopes = [vars(owner)] if isinstance(owner, types.ModuleType) else owner.__mro__
        scope = next((one for one in scopes if node.attr in (one if isinstance(one, dict) else vars(one))), None)
        if scope is not None:
            self.origins.append((scope, node.attr, current(scope, node.attr)))

    def _global_origins(self) -> Iterator[Origin]:
        """What the names stand for that the function takes from its module. Nobody gives those of tilekit's another meaning."""
        names = self.function.__globals__
        if str(names.get("__name__")).startswith(_PACKAGE):
            return
        used = {node.id for statement in self.source.tree.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
        for name in sorted(used - self.locals - self.constants.keys() - self.cells.keys()):
            if name in names and not isinstance(names[name], types.ModuleType):
                yield names, name, names[name]
