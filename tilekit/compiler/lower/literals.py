"""Constant folding by type inference: `t.shape[0] // 2`, `len(x.shape)`, `x.dtype == tk.float16` have literal types.

So their results serve wherever the language wants a compile-time value. numba would give plain integers; these templates come
before its own in the order of targets, and leave to them whatever is no constant, and all that is no kernel of tilekit's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from tilekit.compiler.codegen.compilation import compiles
from tilekit.compiler.codegen.definition import ABSENT, LOWERINGS, attribute, known
from tilekit.compiler.codegen.diagnose import refuse
from tilekit.compiler.codegen.emit import constant_tuple
from tilekit.compiler.codegen.types import DTypeType, dtype_of, integer
from tilekit.compiler.frontend.folding import BINARY, COMPARE, FOLDABLE_CALLS, UNARY

__all__: list[str] = []


def _value(ty: types.Type) -> Any:
    """What a type knows: the value of a constant, a dtype, or a tuple of these; `ABSENT` if it is none."""
    if isinstance(ty, types.BaseTuple):
        values = tuple(map(_value, ty.types))
        return ABSENT if any(v is ABSENT for v in values) else values
    dtype = None if isinstance(ty, types.StringLiteral) else dtype_of(ty)
    return known(ty) if dtype is None else dtype


def _constant(value: Any) -> types.Type | None:
    """The type that knows `value`; None if there is none."""
    if isinstance(value, tuple):
        elements = [_constant(v) for v in value]
        return types.BaseTuple.from_types(elements) if elements and all(type(v) is int for v in value) else None
    if isinstance(value, bool) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63):
        return types.literal(value)
    return None


def _code(ty: types.Type) -> ir.Value:
    value = known(ty)
    if isinstance(value, tuple):
        return constant_tuple(value)[1](None)
    return integer(1 if isinstance(value, bool) else 64, int(value))


@lowering_registry.lower(_code, types.VarArg(types.Any))
def _lower(context: Any, builder: ir.IRBuilder, sig: Any, args: list[ir.Value]) -> ir.Value:
    return _code(sig.return_type)


class _Folding(AbstractTemplate):
    """A function of constants that is a constant."""

    metadata = {"target": "cuda"}  # noqa: RUF012  (numba's word for: before the templates of every target)
    prefer_literal = True
    evaluate: Callable[..., Any]
    read: Callable[[types.Type], Any]

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        values = [self.read(a) for a in args] if compiles() and not kws else [ABSENT]
        if any(v is ABSENT for v in values):
            return None
        try:
            result = _constant(type(self).evaluate(*values))
        except (ArithmeticError, TypeError, ValueError, IndexError):
            return None  # numba knows what to say
        return None if result is None else signature(result, *args)

    def get_impl_key(self, sig: Any) -> Any:
        return _code


def _fold(function: Callable[..., Any], evaluate: Callable[..., Any], read: Callable[[types.Type], Any] = _value) -> None:
    members = {"key": function, "evaluate": staticmethod(evaluate), "read": staticmethod(read)}
    template = type(f"{function.__name__}_of_constants", (_Folding,), members)
    typing_registry.register(template)
    typing_registry.register_global(function, types.Function(template))


_SOMETHING = object()


def _something(ty: types.Type) -> Any:
    """As `_value`; and of what is computed, that it is not None."""
    value = _value(ty)
    return _SOMETHING if value is ABSENT and not isinstance(ty, types.Optional) else value


def _same(x: Any, y: Any) -> Any:
    if x is None or y is None or not (x is _SOMETHING or y is _SOMETHING):
        return x is y
    return NotImplemented


def _other(x: Any, y: Any) -> Any:
    same = _same(x, y)
    return same if same is NotImplemented else not same


_fold(operator.is_, _same, read=_something)
_fold(operator.is_not, _other, read=_something)
for _evaluate in (*BINARY.values(), *UNARY.values(), *COMPARE.values()):
    if _evaluate.__name__ != "<lambda>" and _evaluate not in (operator.is_, operator.is_not):
        _fold(_evaluate, _evaluate)
for _name in ("add", "sub", "mul", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"):
    _inplace = getattr(operator, f"i{_name}")
    _fold(_inplace, _inplace)
_fold(operator.contains, operator.contains)
for _function, _evaluate in FOLDABLE_CALLS.items():
    if _function is not len and _function not in LOWERINGS:
        _fold(_function, _evaluate)


_fold(len, lambda count: count, read=lambda ty: len(ty) if isinstance(ty, types.BaseTuple) else ABSENT)


class _Element(_Folding):
    """Of a tuple, at a place that is known: its elements may differ."""

    key = operator.getitem

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        values, index = args
        if not compiles() or not isinstance(values, types.BaseTuple) or not isinstance(index, types.IntegerLiteral):
            return None
        at = index.literal_value
        return signature(values.types[at], *args) if -len(values) <= at < len(values) else None

    def get_impl_key(self, sig: Any) -> Any:
        return _element


def _element(context: Any, builder: ir.IRBuilder, sig: Any, args: list[ir.Value]) -> ir.Value:
    values, index = sig.args
    return builder.extract_value(args[0], index.literal_value % len(values))


lowering_registry.lower(_element, types.VarArg(types.Any))(_element)
typing_registry.register(_Element)
typing_registry.register_global(operator.getitem, types.Function(_Element))


class _Range(AbstractTemplate):
    """numba would cut floats off."""

    key = range

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        if any(isinstance(a, types.Float) for a in args):
            refuse("range", "its bounds and step are ints, not floats")
        return None


typing_registry.register_global(range, types.Function(_Range))


class _BitLength(AbstractTemplate):
    """`n.bit_length()`, by which loops over powers of two count."""

    key = _code

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        return None if args or kws else signature(types.literal(self.this.literal_value.bit_length()), recvr=self.this)


@typing_registry.register_attr
class _IntegerAttributes(AttributeTemplate):
    key = types.IntegerLiteral

    def generic_resolve(self, value: types.IntegerLiteral, attr: str) -> types.Type | None:
        return types.BoundFunction(_BitLength, value) if attr == "bit_length" and compiles() else None


@attribute(DTypeType, "name")
def name(ty: DTypeType) -> Any:
    return types.literal(ty.dtype.name), lambda builder, value: None


@attribute(DTypeType, "itemsize")
def itemsize(ty: DTypeType) -> Any:
    size = types.literal(ty.dtype.itemsize)
    return size, lambda builder, value: _code(size)
