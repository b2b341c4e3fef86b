"""Type inference by reference: each operation runs, as NumPy does it, on samples of its operands."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.folding import BINARY, COMPARE, UNARY
from tilekit.compiler.frontend.zero_division import QUOTIENTS
from tilekit.compiler.ir.effects import PRINTS, WRITES, effects
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Section, Undefined, Value, leaves, rebuilt
from tilekit.compiler.ir.symbols import SYMBOLS
from tilekit.compiler.ir.types import UNKNOWN, UNSET, TileType, Type, type_of
from tilekit.errors import CompileError, DeviceError
from tilekit.lang.views import TileGrid, TileRow

__all__ = ["check", "infer", "item_types"]

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
_FAILURES = (CompileError, DeviceError, ArithmeticError, TypeError, ValueError, IndexError, AttributeError, LookupError)
_NOTHING = Constant(None)


def infer(operation: Operation) -> Operand:
    """What an operation defines: values with their types, put together as its result is; None where it gives nothing."""
    if effects(operation) in ({PRINTS}, {WRITES}):
        return _NOTHING
    if any(_is_unset(operand) for operand in (*operation.operands, *operation.keywords.values())):
        return Value("", UNSET)
    for attempt in (operation, _at_the_first_tile(operation)):
        try:
            return _described(_run(attempt))
        except DeviceError:
            continue
        except _FAILURES:
            break
    return Value("", UNKNOWN)


def _at_the_first_tile(operation: Operation) -> Operation:
    """The same with another index: one that is a constant may lie outside of samples, and inside of what there is."""
    if len(operation.operands) < 2:
        return operation
    owner, index, *rest = operation.operands
    starts = [Constant(0) if isinstance(leaf, Constant) and type(leaf.value) is int else leaf for leaf in leaves(index)]
    return replace(operation, operands=[owner, rebuilt(index, starts), *rest])


def check(operation: Operation) -> None:
    """Raise the CompileError that the language has for an operation on values of these types; see `infer`."""
    try:
        _run(operation)
    except CompileError:
        raise
    except _FAILURES:
        pass


def item_types(operation: Operation) -> list[Type]:
    """The types of what a loop over streams, or over anything else, gets in each turn."""
    types: list[Type] = []
    for operand in operation.operands:
        try:
            sample = _sample(operand)
            if isinstance(sample, (TileGrid, TileRow)):  # which may be empty
                windows = (sample.grid if isinstance(sample, TileRow) else sample).windows
                types.append(TileType(windows.dtype, windows.tile_shape))
            else:
                types.append(type_of(next(iter(sample))))
        except (*_FAILURES, StopIteration):
            types.append(UNKNOWN)
    return types


def _is_unset(operand: Operand) -> bool:
    return any(isinstance(leaf, Undefined) or (isinstance(leaf, Value) and leaf.type == UNSET) for leaf in leaves(operand))


def _run(operation: Operation) -> Any:
    operands = [_sample(operand) for operand in operation.operands]
    keywords = {name: _sample(operand) for name, operand in operation.keywords.items()}
    match operation.kind:
        case "call":
            function = _sample(operation.what)
            return (_quotient_and_rest if function is divmod else function)(*operands, **keywords)
        case "method":
            return getattr(operands[0], operation.what)(*operands[1:], **keywords)
        case "attribute":
            return getattr(operands[0], operation.what)
        case "item":
            return operands[0][operands[1]]
    return _OPERATORS[operation.kind, operation.what](*operands)


def _quotient_and_rest(x: Any, y: Any) -> tuple[Any, Any]:
    """`divmod`, also of samples: these are zeros."""
    return _OPERATORS["binary", "//"](x, y), _OPERATORS["binary", "%"](x, y)


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
        case Undefined():
            raise LookupError("undefined")
    raise AssertionError(operand)


def _described(result: Any) -> Operand:
    if result is None:
        return _NOTHING
    if type(result) is tuple:
        return Group(tuple(map(_described, result)))
    return Value("", type_of(result))
