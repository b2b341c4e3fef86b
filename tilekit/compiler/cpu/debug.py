"""Printing and assertions. What a block prints, Python writes: machine code calls it back, with the values in scratch memory."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.compiler.cpu.code import Number, i64
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Buffer, Index, Tile, element_at, traverse, write_into
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
from tilekit.lang.debug import described, message_problem, parse_format, unprintable
from tilekit.lang.registry import OPS
from tilekit.lang.tile import Tile as ReferenceTile
from tilekit.lang.tile import common_shape

__all__ = ["Saved", "printed"]


@dataclass(frozen=True)
class Saved:
    """A value that a block prints.

    Attributes:
        at: where it lies in the scratch memory, in bytes; None for a tile of which dtype and shape are all that matters.
        dtype: of its elements.
        shape: of a tile; None of a number.
        python: whether it is one of Python's numbers.
    """

    at: int | None
    dtype: dtypes.DType
    shape: tuple[int, ...] | None
    python: bool = False

    def value(self, memory: int) -> Any:
        """It, for the reference: a tile, or a number."""
        shape = self.shape or ()
        if self.at is None:
            return ReferenceTile(np.broadcast_to(np.zeros((), self.dtype), shape))
        array = np.frombuffer(ctypes.string_at(memory + self.at, self.dtype.itemsize * math.prod(shape)), self.dtype).reshape(shape)
        if self.shape is not None:
            return ReferenceTile(array)
        return array.item() if self.python else array[()]


def printed(name: str, values: tuple[Any, ...], memory: int) -> None:
    """Print what a block says, by the operation's reference."""
    OPS[name].function(*(value.value(memory) if isinstance(value, Saved) else value for value in values))


def _saved(p: Any, value: Any) -> Any:
    """A value of the block's, written down; anything else as it is."""
    if not isinstance(value, (Tile, Scalar)):
        return value
    k, dtype = p.k, value.dtype
    shape = value.shape if isinstance(value, Tile) else ()
    at = k.reserve(math.prod(shape) * dtype.itemsize)
    buffer = Buffer(k.offset(k.scratch, at), shape, dtype)
    if isinstance(value, Tile):
        write_into(k, buffer, value)
        return Saved(at, dtype, shape)
    k.write(buffer.address, dtype, 1, 0, None, value.value)
    return Saved(at, dtype, None, isinstance(value.kind, type))


@lowers("print")
def print_(p: Any, *values: Any) -> None:
    """A line, or one for each element of the last value."""
    for number, value in enumerate(values):
        tile = isinstance(value, Tile) and number == len(values) - 1
        if not tile and not isinstance(value, str) and (isinstance(value, Tile) or kind_of(value) is None):
            raise Unsupported("print of something else than strings, scalars and a tile")
    p.say("print", [_saved(p, value) for value in values])


@lowers("printf")
def printf(p: Any, text: Any, *values: Any) -> None:
    """A text for each element."""
    if not isinstance(text, str) or any(not isinstance(value, Tile) and kind_of(value) is None for value in values):
        raise Unsupported("printf of something else than scalars and tiles")
    letters = "".join(directive.letter for directive in parse_format(text)[1])
    kinds = [_dtype(value) for value in values]
    if problem := unprintable(letters, kinds):
        raise Unsupported(f"printf: {problem}")
    shapes = [value.shape for value in values if isinstance(value, Tile)]
    if shapes:
        common_shape("printf", shapes)
    p.say("printf", [text, *(_saved(p, value) for value in values)])


def _dtype(value: Any) -> dtypes.DType:
    if isinstance(value, (Tile, Scalar, np.generic)):
        return value.dtype
    return {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float64}[kind_of(value) or float]


@lowers("static_print")
def static_print(p: Any, *values: Any) -> None:
    """A line by the first block."""
    known = [Saved(None, value.dtype, value.shape) if isinstance(value, Tile) else value for value in values]
    if any(not isinstance(value, Saved) and described(value) is None for value in known):
        raise Unsupported("static_print of what is no constant")
    k = p.k
    any_index = k.b.or_(k.b.or_(k.index[0], k.index[1]), k.index[2])
    with k.b.if_then(k.b.icmp_unsigned("==", any_index, i64(0))):
        p.say("static_print", known)


@lowers("static_assert")
def static_assert(p: Any, condition: Any, message: Any) -> None:
    """Nothing, if it holds; else the interpreter says what does not."""
    if isinstance(condition, (Scalar, Tile)) or kind_of(condition) is None or not condition or message_problem(message):
        raise Unsupported("static_assert of what does not hold, or is not known")


@lowers("assert_")
def assert_(p: Any, condition: Any, message: Any) -> None:
    """End the block where an element does not hold."""
    k = p.k
    if message_problem(message) or (not isinstance(condition, (Tile, bool)) and kind_of(condition) is not bool):
        raise Unsupported("assert_ of what is no condition")
    if not isinstance(condition, Tile):
        p.check(k.b.not_(p.truth(condition)), ("assertion", message, None), [])
        return
    if condition.dtype != dtypes.bool_:
        raise Unsupported("assert_ of what is no condition")
    site = p.site(("assertion", message, condition.shape))

    def body(index: Index) -> None:
        wrong = k.b.not_(element_at(k, condition, index, condition.shape))

        def where() -> list[Number]:
            lane = k.b.zext(k.first_lane(wrong), i64)
            return [k.add(at, lane) if d == index.along else at for d, at in enumerate(index.at)]

        k.fail(k.any_lane(wrong), site, where)

    traverse(k, condition.shape, [condition], body)
