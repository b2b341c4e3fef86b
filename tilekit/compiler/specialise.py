"""From a kernel to a function without generics: names that stand for compile-time values become those values.

The function's syntax tree is copied, generics and `Const` parameters are replaced by their values, constant expressions fold
(`BM // 2`, `S[0] * S[1]`, `if BK > 32:`), and the result is compiled again, at the same lines and columns. Nothing of the
user's is changed. The CPU device runs the result as it is; numba types it for a GPU.
"""

from __future__ import annotations

import ast
import builtins
import copy
import enum
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.compiler.source import KernelSource
from tilekit.compiler.syntax import check_syntax
from tilekit.lang.signature import Generic

__all__ = ["BoundKernel", "Constant", "bind"]

Constant = bool | int | float | str | None | tuple["Constant", ...]


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel whose generics and `Const` parameters have values.

    Attributes:
        function: the plain function; its parameters are the kernel's without the `Const` ones.
        source: where it comes from, for errors.
        names: the names of its parameters.
        text: its syntax tree as text. Together with `outside` it decides what the function does.
        outside: the names that its body takes from outside, and their values.
    """

    function: types.FunctionType
    source: KernelSource
    names: tuple[str, ...]
    text: str
    outside: Mapping[str, Any]


def bind(
    function: Callable[..., Any], source: KernelSource, generics: Mapping[str, Any], constants: Mapping[str, Any]
) -> BoundKernel:
    """Bind the generics (by name: ints, or tuples for whole shapes) and `Const` parameters of `function`.

    Raises:
        CompileError: a generic without a value is used, a name that does not exist, a statement that has no meaning in a kernel,
            or a `Const` parameter is assigned to.
    """
    assert isinstance(function, types.FunctionType), "checked by @kernel"
    check_syntax(source)
    binder = _Binder(function, source, generics, constants)
    definition = binder.rewrite()
    outside = {name: binder.lookup(name) for name in sorted(_free_names(definition))}
    made = _compile(definition, function, source, {k: v for k, v in outside.items() if k in binder.cells})
    names = tuple(argument.arg for argument in definition.args.args)
    return BoundKernel(made, source, names, ast.dump(definition), outside)


def _compile(
    definition: ast.FunctionDef, original: types.FunctionType, source: KernelSource, cells: Mapping[str, Any]
) -> types.FunctionType:
    """Compile `definition` inside a factory whose parameters are the enclosing variables it uses."""
    factory = ast.FunctionDef(
        name="enclosing",
        args=ast.arguments(
            posonlyargs=[], args=[ast.arg(arg=name) for name in cells], kwonlyargs=[], kw_defaults=[], defaults=[]
        ),
        body=[definition, ast.Return(ast.Name(definition.name, ast.Load()))],
        decorator_list=[],
    )
    _without_type_parameters(factory)
    for node in (factory, *factory.body[1:], *factory.args.args):
        ast.copy_location(node, definition)
    module = ast.fix_missing_locations(ast.Module(body=[factory], type_ignores=[]))
    code = compile(module, source.filename, "exec")
    inner = next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    made: types.FunctionType = types.FunctionType(inner, original.__globals__)(*cells.values())
    made.__qualname__, made.__module__ = original.__qualname__, original.__module__
    return made


def _without_type_parameters(definition: ast.FunctionDef) -> None:
    """Python 3.12 and later compile no function without the field; earlier ones do not know it."""
    if "type_params" in definition._fields:
        setattr(definition, "type_params", [])  # noqa: B010  (mypy checks against Python 3.11)


def _free_names(definition: ast.FunctionDef) -> set[str]:
    used = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - _local_names(definition)


def _local_names(definition: ast.FunctionDef) -> set[str]:
    nodes = list(ast.walk(definition))
    names = {a.arg for a in nodes if isinstance(a, ast.arg)}
    names |= {f.name for f in nodes if isinstance(f, ast.FunctionDef)}
    return names | {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


_MISSING: Any = object()
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_FOLDABLE_CALLS = (min, max, abs, len)


def _plain(value: Any) -> Any:
    """What stands for a value of these types in a kernel: numba knows neither them nor what they are equal to."""
    if isinstance(value, enum.StrEnum):
        return str(value)
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, np.dtype) and value in dtypes.EIGHT_BIT_FLOATS:
        return value.name
    return value


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or type(value) in (bool, int, float, str)


class _Binder(ast.NodeTransformer):
    """Rewrites one function definition."""

    def __init__(
        self, function: types.FunctionType, source: KernelSource, generics: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> None:
        self.function, self.source, self.generics = function, source, generics
        self.constants = {name: _plain(value) for name, value in constants.items()}
        self.cells: dict[str, Any] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.cells[name] = cell.cell_contents
            except ValueError:  # a variable of the enclosing function that has no value yet
                continue
        self.cells |= {name: value for name, value in self.constants.items() if not _is_constant(value)}
        self.locals: set[str] = set()

    def rewrite(self) -> ast.FunctionDef:
        original = self.source.tree
        definition = ast.FunctionDef(
            name=original.name,
            args=ast.arguments(
                posonlyargs=[],
                args=[ast.copy_location(ast.arg(arg=a.arg), a) for a in original.args.args if a.arg not in self.constants],
                kwonlyargs=[],
                kw_defaults=[],
                defaults=[],
            ),
            body=copy.deepcopy(original.body),
            decorator_list=[],
        )
        _without_type_parameters(definition)
        ast.copy_location(definition, original)
        self.locals = _local_names(definition)
        for node in ast.walk(definition):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in self.constants:
                raise self.source.error(f"{node.id} is a Const parameter: the kernel cannot assign to it", node.lineno, node.id)
        definition.body = self._block(definition.body)
        return definition

    def lookup(self, name: str) -> Any:
        """What a name that is not local stands for; `_MISSING` if nothing."""
        for place in (self.cells, self.function.__globals__, vars(builtins)):
            if name in place:
                return place[name]
        return _MISSING

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            made.extend(result if isinstance(result, list) else [result])
        return made or [ast.copy_location(ast.Pass(), statements[0])]

    def visit_If(self, node: ast.If) -> Any:
        node.test = self.visit(node.test)
        value = _value(node.test)
        if value is not _MISSING:
            chosen = node.body if value else node.orelse
            return self._block(chosen) if chosen else ast.copy_location(ast.Pass(), node)
        node.body = self._block(node.body)
        node.orelse = self._block(node.orelse) if node.orelse else []
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        node.test = self.visit(node.test)
        value = _value(node.test)
        if value is not _MISSING:
            return self.visit(node.body if value else node.orelse)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return node
        if node.id in self.constants:
            value = self.constants[node.id]
            return _literal(value, node) if _is_constant(value) else node
        if node.id in self.locals:
            return node
        value = self._named(node.id)
        if value is _MISSING:
            known = {*self.locals, *self.cells, *self.function.__globals__}
            raise self.source.error(f"{node.id} is not defined{_similar(node.id, known)}", node.lineno, node.id)
        value = self._resolve(value, node)
        return _literal(value, node) if value is not _MISSING else node

    def _named(self, name: str) -> Any:
        """The value of a name, where a type parameter (`def kernel[BM]`) counts as the generic of its name."""
        value = self.lookup(name)
        if value is _MISSING and name in self.generics:
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
        value = _plain(value)
        return value if _is_constant(value) else _MISSING

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        owner = self._static(node.value)
        if not isinstance(owner, (types.ModuleType, type)):
            return self.generic_visit(node)
        if not hasattr(owner, node.attr):
            raise self.source.error(
                f"{ast.unparse(node)} does not exist{_similar(node.attr, dir(owner))}", node.lineno, node.attr
            )
        value = self._resolve(getattr(owner, node.attr), node)
        return _literal(value, node) if value is not _MISSING else node

    def _static(self, node: ast.expr) -> Any:
        """The module or class that an expression such as `tk.PaddingMode` names."""
        if isinstance(node, ast.Name):
            return _MISSING if node.id in self.locals else self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._static(node.value)
            if isinstance(owner, (types.ModuleType, type)):
                return getattr(owner, node.attr, _MISSING)
        return _MISSING

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        return self._fold(node, _BINARY.get(type(node.op)), node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return self._fold(node, _UNARY.get(type(node.op)), node.operand)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) != 1:
            return node
        return self._fold(node, _COMPARE.get(type(node.ops[0])), node.left, node.comparators[0])

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        while len(node.values) > 1:
            first = _value(node.values[0])
            if first is _MISSING:
                return node
            if bool(first) is isinstance(node.op, ast.Or):
                return node.values[0]  # it decides
            del node.values[0]
        return node.values[0]

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        return self._fold(node, operator.getitem, node.value, node.slice) if isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        called = self._static(node.func)
        if any(called is function for function in _FOLDABLE_CALLS) and node.args and not node.keywords:
            return self._fold(node, called, *node.args)
        return node

    def _fold(self, node: ast.expr, function: Callable[..., Any] | None, *operands: ast.expr) -> ast.expr:
        values = [_value(operand) for operand in operands]
        if function is None or any(v is _MISSING for v in values):
            return node
        try:
            result = function(*values)
        except (ArithmeticError, TypeError, ValueError, IndexError) as error:
            raise self.source.error(f"{ast.unparse(node)}: {error}", node.lineno) from None
        return _literal(result, node) if _is_constant(result) else node


def _similar(name: str, known: Iterable[str]) -> str:
    import difflib  # for errors only

    close = difflib.get_close_matches(name, [k for k in known if not k.startswith("_")], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _literal(value: Any, at: ast.expr) -> ast.expr:
    node: ast.expr
    if isinstance(value, tuple):
        node = ast.Tuple([_literal(v, at) for v in value], ast.Load())
    else:
        node = ast.Constant(value)
    return ast.copy_location(node, at)


def _value(node: ast.expr) -> Any:
    """The constant that an expression is, or `_MISSING`."""
    if isinstance(node, ast.Constant) and _is_constant(node.value):
        return node.value
    if isinstance(node, ast.Tuple):
        values = tuple(_value(element) for element in node.elts)
        return _MISSING if any(v is _MISSING for v in values) else values
    return _MISSING
