"""Constant folding in a syntax tree: what is a constant, which node stands for one, and the operators that fold."""

from __future__ import annotations

import ast
import enum
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.lang import calculation

__all__ = ["BINARY", "COMPARE", "FOLDABLE_CALLS", "MISSING", "UNARY", "is_constant", "literal", "plain", "value_of"]

MISSING: Any = object()
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
}  # fmt: skip
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda x, among: x in among,
    ast.NotIn: lambda x, among: x not in among,
}  # fmt: skip
FOLDABLE_CALLS: dict[Callable[..., Any], Callable[..., Any]] = {
    f: f for f in (min, max, abs, len, sum, round, int, float, bool, divmod, pow, ord, math.prod, math.gcd)
}
"""Functions whose calls with constants are constants, and what evaluates them."""


def _ceiling_quotient(x: Any, y: Any) -> Any:
    """`tk.cdiv` of two ints; of anything else it is the operation's to say what it thinks of them."""
    if type(x) is not int or type(y) is not int:
        return MISSING
    return -(-x // y) if y else 0


FOLDABLE_CALLS[calculation.cdiv] = _ceiling_quotient


def plain(value: Any) -> Any:
    """What stands for a value of these types in a kernel: numba knows neither them nor what they are equal to."""
    if isinstance(value, enum.StrEnum):
        return str(value)
    if isinstance(value, enum.Enum) and isinstance(value, int):
        return int(value)
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, np.dtype) and value in dtypes.EIGHT_BIT_FLOATS:
        return value.name
    return value


def is_constant(value: Any) -> bool:
    """Whether a value can stand in a syntax tree as it is."""
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return value is None or type(value) in (bool, int, float, str)


def literal(value: Any, at: ast.stmt | ast.expr) -> ast.expr:
    """The node of a constant, at the place of another."""
    node: ast.expr
    if isinstance(value, tuple):
        node = ast.Tuple([literal(v, at) for v in value], ast.Load())
    else:
        node = ast.Constant(value)
    return ast.copy_location(node, at)


def value_of(node: ast.expr) -> Any:
    """The constant that an expression is, or `MISSING`."""
    if isinstance(node, ast.Constant) and is_constant(node.value):
        return node.value
    if isinstance(node, ast.Tuple):
        values = tuple(value_of(element) for element in node.elts)
        return MISSING if any(v is MISSING for v in values) else values
    return MISSING
