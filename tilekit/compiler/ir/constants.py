"""What is known of operands while a kernel is built: constants, and their types."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.compiler.frontend.folding import is_constant
from tilekit.compiler.ir.nodes import (
    UNDEFINED,
    Choice,
    Constant,
    Group,
    Operand,
    Operation,
    Section,
    Value,
    View,
    leaves,
    structure,
)
from tilekit.compiler.ir.types import UNKNOWN, UNSET, ObjectType, ScalarType, TensorType, TileType, Type, joined
from tilekit.lang import create
from tilekit.lang.tile import what_is
from tilekit.lang.views import TensorView, TiledView

__all__ = [
    "KEEPS", "STAYS", "constant_of", "dtype_constant", "is_known", "is_unset", "is_zeros", "joined_type", "kind_of",
    "known_attribute", "may_be_one", "number_in", "number_of", "operand_of", "same_types", "type_of_operand",
]  # fmt: skip

KEEPS = (
    "on every path through the kernel, and each time round a loop, a variable keeps its shape and dtype; cast with "
    ".astype(...), or start from tk.zeros of the right shape and dtype"
)
STAYS = "round a loop a variable stays the same tensor: choose it, w = b if ... else d, where a turn, or what follows, reads it"
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_OF_VIEWS = ("dtype", "ndim", "tile_shape", "traversal_steps")


def is_known(operand: Operand) -> bool:
    """Whether a condition is decided."""
    return isinstance(operand, Constant) and is_constant(operand.value)


def constant_of(operand: Operand) -> Constant | None:
    """An operand as one constant: a number, a dtype, a tuple of such."""
    if isinstance(operand, Constant) and (is_constant(operand.value) or isinstance(operand.value, np.dtype)):
        return operand
    if isinstance(operand, Group):
        parts = [constant_of(part) for part in operand.parts]
        if all(part is not None for part in parts):
            return Constant(tuple(part.value for part in parts if part is not None))
    return None


def operand_of(value: Any) -> Operand:
    return Group(tuple(map(operand_of, value))) if isinstance(value, tuple) else Constant(value)


def known_attribute(owner: Operand, attribute: str) -> Operand | None:
    """What types know."""
    ty = owner.type if isinstance(owner, (Value, View)) else None
    if isinstance(owner, Constant) and isinstance(owner.value, np.dtype) and attribute in ("itemsize", "name"):
        return Constant(getattr(owner.value, attribute))
    if isinstance(ty, TileType):
        known = {"shape": operand_of(ty.shape), "ndim": Constant(len(ty.shape)), "dtype": dtype_constant(ty.dtype)}
        return known.get(attribute)
    if isinstance(ty, TensorType):
        tile = Constant(None) if ty.facts.tile is None else operand_of(ty.facts.tile)
        known = {
            "ndim": Constant(ty.facts.rank),
            "dtype": dtype_constant(dtypes.as_dtype(ty.facts.dtype)),
            "tile_shape": tile,
        }
        return known.get(attribute)
    if isinstance(ty, ObjectType) and attribute in _OF_VIEWS and isinstance(ty.object, (TensorView, TiledView)):
        value = getattr(ty.object, attribute, None)
        return dtype_constant(value) if isinstance(value, np.dtype) else operand_of(value)
    return None


def dtype_constant(dtype: dtypes.DType) -> Constant:
    """A dtype, as kernels write it."""
    name = "bool_" if dtype == dtypes.bool_ else dtype.name
    return Constant(dtype, f"tk.{name}", dtypes, (name,))


def type_of_operand(operand: Operand) -> Type:
    if isinstance(operand, (Value, View)):
        return operand.type
    if isinstance(operand, Constant) and type(operand.value) in (bool, int, float):
        return ScalarType(type(operand.value))
    return UNSET if operand is UNDEFINED else UNKNOWN


def is_unset(operand: Operand) -> bool:
    """Whether a variable has no value yet, where its loop is looked at for the first time, or on this path."""
    return operand is UNDEFINED or (isinstance(operand, Value) and operand.type == UNSET)


def joined_type(operands: Iterable[Operand]) -> Type:
    """The type of what is one of several."""
    first: Type = UNSET
    return functools.reduce(joined, map(type_of_operand, operands), first)


def may_be_one(first: Operand, second: Operand) -> bool:
    """Whether a variable may be the one on one path and the other on another: a scalar may be now an int, now a float."""
    if is_unset(first) or is_unset(second) or first == second:
        return True
    if isinstance(first, Group) and isinstance(second, Group):
        together = zip(first.parts, second.parts, strict=False)
        return len(first.parts) == len(second.parts) and all(may_be_one(*parts) for parts in together)
    if any(isinstance(one, (Group, Section, Choice, View)) for one in (first, second)):
        return False
    types = type_of_operand(first), type_of_operand(second)
    if any(isinstance(one, Value) and one.type == UNKNOWN for one in (first, second)):
        return True  # of what is wrong something else has been said
    return joined(*types) != UNKNOWN


def kind_of(operand: Operand) -> str:
    """What a variable is, in words."""
    match operand:
        case Value(type=ty):
            return what_is(ty.sample())
        case Constant(value=value):
            return what_is(value)
        case Group(parts):
            return f"a tuple of {len(parts)} ({', '.join(map(kind_of, parts))})"
        case Choice(first=first, second=second):
            return f"{kind_of(first)} or {kind_of(second)}"
        case View(type=ty):
            return what_is(ty.sample())
    return "a slice"


def same_types(first: Operand, second: Operand) -> bool:
    pairs = zip(leaves(first), leaves(second), strict=False)
    return structure(first) == structure(second) and all(
        type_of_operand(a) == type_of_operand(b) and (a is UNDEFINED) == (b is UNDEFINED) for a, b in pairs
    )


def number_of(operand: Operand, defined: Mapping[Value, Operation]) -> float | None:
    """A number that is known: a constant, `float("-inf")`, or what floats such as `1 / math.sqrt(128)` are computed of."""
    made = defined.get(operand) if isinstance(operand, Value) and isinstance(operand.type, ScalarType) else None
    if made is not None and made.kind == "call" and made.what == Constant(float) and isinstance(made.operands[0], Constant):
        (operand,) = made.operands
    elif made is not None and made.results[0].type == ScalarType(float):
        function: Any = _ARITHMETIC.get(made.what) if made.kind == "binary" else None
        if made.kind == "call" and made.what == Constant(math.sqrt):
            function = math.sqrt
        numbers = [] if function is None else [number_of(part, defined) for part in made.operands]
        try:
            return None if function is None or None in numbers else function(*numbers)
        except (ArithmeticError, ValueError):
            return None
    if not isinstance(operand, Constant) or type(operand.value) not in (int, float, str):
        return None
    try:
        return float(operand.value)
    except (ValueError, OverflowError):
        return None


def number_in(tile: Operand, defined: Mapping[Value, Operation]) -> float | None:
    """The number that all elements of a tile are known to be, such as of `tk.ones(...)`, or of zeros and a number added."""
    definition = defined.get(tile) if isinstance(tile, Value) else None
    if definition is None or not isinstance(definition.results[0].type, TileType):
        return None
    if definition.kind == "binary" and definition.what in ("+", "-"):
        parts = [(number_of(part, defined), number_in(part, defined)) for part in definition.operands]
        first, second = (of_tile if number is None else number for number, of_tile in parts)
        return None if first is None or second is None else _ARITHMETIC[definition.what](first, second)
    function = definition.what.value if definition.kind == "call" else None
    if function is create.full and len(definition.operands) > 1:
        return number_of(definition.operands[1], defined)
    return 0.0 if function is create.zeros else 1.0 if function is create.ones else None


def is_zeros(operand: Operand, defined: Mapping[Value, Operation]) -> bool:
    """Whether a tile is known to be zeros."""
    definition = defined.get(operand) if isinstance(operand, Value) else None
    if definition is None or definition.kind != "call":
        return False
    if definition.what.value is create.full:
        return len(definition.operands) > 1 and definition.operands[1] in (Constant(0), Constant(0.0))
    return definition.what.value is create.zeros
