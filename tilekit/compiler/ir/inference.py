"""Type inference by reference: each operation runs, as NumPy does it, on samples of its operands.

What the reference refuses, the language refuses, on every device: `infer` raises the error. `rules` has what samples cannot show.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.folding import BINARY, COMPARE, UNARY
from tilekit.compiler.frontend.zero_division import QUOTIENTS
from tilekit.compiler.ir import rules
from tilekit.compiler.ir.effects import PRINTS, WRITES, effects
from tilekit.compiler.ir.nodes import (
    Choice,
    Constant,
    Group,
    Operand,
    Operation,
    Section,
    Undefined,
    Value,
    View,
    leaves,
    rebuilt,
)
from tilekit.compiler.ir.symbols import SYMBOLS
from tilekit.compiler.ir.types import UNKNOWN, UNSET, ObjectType, ScalarType, TileType, Type, Unknown, type_of
from tilekit.errors import CompileError, DeviceError
from tilekit.lang.views import TileGrid, TileRow

__all__ = ["infer", "item_types", "samples_of"]

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
    traversal = _traversal(operation)
    if traversal is not None:
        return Value("", ObjectType(traversal))
    refused: CompileError | None = None
    attempts = [(operation, factor) for factor in ((0, 1, -1) if any(map(_is_number, operands)) else (0,))]
    for attempt, factor in (*attempts, (_at_the_first_tile(operation), 0)):
        if refused is not None and attempt is not operation:
            break
        try:
            return _described(_checked(operation, _run(attempt, factor)))
        except CompileError as error:
            refused = refused or error
        except _BY_VALUE:
            continue
        except (TypeError, AttributeError) as error:
            raise CompileError(rules.in_words(operation, error, _sample)).with_traceback(error.__traceback__) from None
    if refused is not None:  # whatever the numbers
        raise refused
    return _NOTHING if effects(operation) in ({PRINTS}, {WRITES}) else Value("", UNKNOWN)


def _at_the_first_tile(operation: Operation) -> Operation:
    """The same with another index: one that is a constant may lie outside of samples, and inside of what there is."""
    if operation.kind == "method" and operation.what == "slice":  # as far as it goes, wherever it begins
        axis = {name: operand for name, operand in operation.keywords.items() if name == "axis"}
        return replace(operation, operands=operation.operands[:2], keywords={**axis, "start": Constant(0)})
    if len(operation.operands) < 2:
        return operation
    owner, index, *rest = operation.operands
    starts = [Constant(0) if isinstance(leaf, Constant) and type(leaf.value) is int else leaf for leaf in leaves(index)]
    return replace(operation, operands=[owner, rebuilt(index, starts), *rest])


def samples_of(operation: Operation) -> list[Any]:
    """Samples of its operands."""
    return [_sample(operand) for operand in operation.operands]


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


class _Traversal:
    """What a loop over a `zip` or `enumerate` goes over, of which each turn gets several things.

    Attributes:
        items: samples of these. Python's own give none where a row of tiles is empty, as that of a sample may be.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = tuple(items)

    def __iter__(self) -> Iterator[Any]:
        yield self.items


def _traversal(operation: Operation) -> _Traversal | None:
    """What `zip` or `enumerate` of rows of tiles is, or of such."""
    function = operation.what.value if operation.kind == "call" and isinstance(operation.what, Constant) else None
    rows = operation.operands[:1] if function is enumerate else operation.operands
    known = all(isinstance(_sample(row), (TileGrid, TileRow, _Traversal, range)) for row in rows)
    if function not in (zip, enumerate) or not rows or not known or operation.keywords:
        return None
    items = [_item_type(row).sample() for row in rows]
    return _Traversal([0, *items] if function is enumerate else items)


def _item_type(operand: Operand) -> Type:
    sample = _sample(operand)
    if isinstance(sample, range):
        return ScalarType(int)
    if isinstance(sample, (TileGrid, TileRow)):  # which may be empty
        windows = (sample.grid if isinstance(sample, TileRow) else sample).windows
        return TileType(windows.dtype, windows.tile_shape)
    rules.check_iterable(sample)
    try:
        return type_of(next(iter(sample)))
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


def _is_number(operand: Operand) -> bool:
    """Whether an operand has a number in it that the kernel computes."""
    return any(isinstance(leaf, Value) and isinstance(leaf.type, ScalarType) for leaf in leaves(operand))


def _run(operation: Operation, factor: int) -> Any:
    """The result for samples; where the first are of no use, for others, which differ from each other by this."""

    def sample(at: int, operand: Operand) -> Any:
        value = _sample(operand)
        return type(value)(factor * (at + 1)) if factor and isinstance(operand, Value) and type(value) in (int, float) else value

    operands = [sample(at, operand) for at, operand in enumerate(operation.operands)]
    keywords = {n: sample(at, operation.keywords[n]) for at, n in enumerate(operation.keywords, len(operands))}
    match operation.kind:
        case "call":
            function = _sample(operation.what)
            result = function(*operands, **keywords)
            return _widened(result, operands) if function is min or function is max else result
        case "method":
            return getattr(operands[0], operation.what)(*operands[1:], **keywords)
        case "attribute":
            return getattr(operands[0], operation.what)
        case "item":
            return operands[0][operands[1]]
    return _OPERATORS[operation.kind, operation.what](*operands)


def _checked(operation: Operation, result: Any) -> Any:
    """The result of an operation, unless a function of NumPy's gave an array."""
    if operation.kind == "call" and isinstance(result, np.ndarray) and result.ndim:
        raise CompileError(rules.array_of_numpy(operation))
    return result


def _widened(result: Any, operands: Sequence[Any]) -> Any:
    """One of several numbers: which of them it is depends on the values, and it is a float if one of them is."""
    numbers = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple) else operands
    mixed = type(result) in (bool, int) and any(type(number) is float for number in numbers)
    return float(result) if mixed else result


def _sample(operand: Operand) -> Any:
    match operand:
        case Value(type=ty) | View(type=ty):
            return ty.sample()
        case Choice(first=first):
            return _sample(first)
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
