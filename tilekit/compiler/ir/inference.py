"""Type inference by reference: each operation runs, as NumPy does it, on samples of its operands.

What the reference refuses, the language refuses, on every device: `infer` raises the error. `rules` has what samples cannot show.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.folding import BINARY, COMPARE, UNARY
from tilekit.compiler.frontend.zero_division import QUOTIENTS
from tilekit.compiler.ir import rules
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Section, Undefined, Value, leaves
from tilekit.compiler.ir.symbols import SYMBOLS
from tilekit.compiler.ir.types import UNKNOWN, UNSET, ScalarType, Type, Unknown, type_of
from tilekit.errors import CompileError, DeviceError
from tilekit.lang.views import TileRow

__all__ = ["infer", "item_types"]

_OPERATORS: dict[tuple[str, str], Callable[..., Any]] = {
    (kind, SYMBOLS[op]): function
    for kind, table in (("binary", BINARY), ("unary", UNARY), ("compare", COMPARE))
    for op, function in table.items()
}
_OPERATORS |= {
    ("binary", "@"): operator.matmul,
    ("binary", "/"): QUOTIENTS["tilekit__truediv"],
    ("binary", "//"): QUOTIENTS["tilekit__floordiv"],
    ("binary", "%"): QUOTIENTS["tilekit__mod"],
}
_NOTHING = Constant(None)
# What the value of a sample may be the reason of.
_BY_VALUE = (DeviceError, ArithmeticError, ValueError, LookupError)


def infer(operation: Operation) -> Operand:
    """What an operation defines: values with their types, put together as its result is; None where it gives nothing.

    Raises:
        CompileError: the language has no such operation on values of these types.
    """
    operands = (*operation.operands, *operation.keywords.values())
    if any(_is_unset(operand) for operand in operands):
        return Value("", UNSET)
    if _has_unknown(operands) or rules.is_foreign(operation):
        return Value("", UNKNOWN)
    rules.check(operation, _sample)
    for others in (False, True):
        try:
            return _described(_run(operation, others=others))
        except CompileError:
            raise
        except _BY_VALUE:
            continue
        except (TypeError, AttributeError) as error:
            raise CompileError(rules.in_words(operation, error, _sample)).with_traceback(error.__traceback__) from None
    return Value("", UNKNOWN)


def item_types(operation: Operation) -> list[Type]:
    """The types of what a loop over streams, or over anything else, gets in each turn.

    Raises:
        CompileError: nothing can be iterated over there.
    """
    if _has_unknown(operation.operands):
        return [UNKNOWN for _ in operation.operands]
    if operation.kind == "stream":
        rules.check_stream(operation, _sample)
    return [_item_type(operand) for operand in operation.operands]


def _item_type(operand: Operand) -> Type:
    sample = _sample(operand)
    if isinstance(sample, range):
        return ScalarType(int)
    rules.check_iterable(sample)
    try:
        return type_of(next(iter(sample.grid if isinstance(sample, TileRow) else sample)))  # a row may be empty
    except (*_BY_VALUE, StopIteration):
        return UNKNOWN


def _is_unset(operand: Operand) -> bool:
    return any(isinstance(leaf, Undefined) or (isinstance(leaf, Value) and leaf.type == UNSET) for leaf in leaves(operand))


def _has_unknown(operands: Iterable[Operand]) -> bool:
    return any(
        isinstance(leaf, Undefined) or (isinstance(leaf, Value) and isinstance(leaf.type, Unknown))
        for operand in operands
        for leaf in leaves(operand)
    )


def _run(operation: Operation, *, others: bool) -> Any:
    """The result for samples; for `others`, if the first are of no use."""

    def sample(operand: Operand) -> Any:
        value = _sample(operand)
        return type(value)(1 - value) if others and isinstance(operand, Value) and type(value) in (int, float) else value

    operands = [sample(operand) for operand in operation.operands]
    keywords = {name: sample(operand) for name, operand in operation.keywords.items()}
    match operation.kind:
        case "call":
            return _sample(operation.what)(*operands, **keywords)
        case "method":
            return getattr(operands[0], operation.what)(*operands[1:], **keywords)
        case "attribute":
            return getattr(operands[0], operation.what)
        case "item":
            return operands[0][operands[1]]
    return _OPERATORS[operation.kind, operation.what](*operands)


def _sample(operand: Operand) -> Any:
    match operand:
        case Value(type=ty):
            return ty.sample()
        case Constant(value=BoundKernel(function=function)):
            return function
        case Constant(value=value):
            return value
        case Group(parts):
            return tuple(map(_sample, parts))
        case Section(start, stop, step):
            return slice(_sample(start), _sample(stop), _sample(step))
    raise AssertionError(operand)


def _described(result: Any) -> Operand:
    if result is None:
        return _NOTHING
    if type(result) is tuple:
        return Group(tuple(map(_described, result)))
    return Value("", type_of(result))
