"""Printing and assertions. What a block prints, Python writes, see `printing`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.compiler.cpu.code import Number, i64
from tilekit.compiler.cpu.printing import Saved
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Buffer, Index, Tile, element_at, traverse, write_into
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
from tilekit.lang.debug import described, described_tile, message_problem, parse_format, unprintable
from tilekit.lang.tile import common_shape

__all__: list[str] = []


def _saved(p: Any, value: Any) -> Any:
    """A value of the block's, written down; a constant as it is."""
    if not isinstance(value, (Tile, Scalar)):
        return value.item() if isinstance(value, np.generic) else value
    k, dtype = p.k, value.dtype
    shape = value.shape if isinstance(value, Tile) else ()
    at = k.reserve(math.prod(shape) * dtype.itemsize)
    buffer = Buffer(k.offset(k.scratch, at), shape, dtype)
    if isinstance(value, Tile):
        write_into(k, buffer, value)
        return Saved(at, dtype.name, shape, False)
    k.write(buffer.address, dtype, 1, 0, None, value.value)
    return Saved(at, dtype.name, None, isinstance(value.kind, type))


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
    words = [described_tile(value.dtype, value.shape) if isinstance(value, Tile) else described(value) for value in values]
    if None in words:
        raise Unsupported("static_print of what is no constant")
    k = p.k
    any_index = k.b.or_(k.b.or_(k.index[0], k.index[1]), k.index[2])
    with k.b.if_then(k.b.icmp_unsigned("==", any_index, i64(0))):
        p.say("static_print", words)


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

        k.check(k.any_lane(wrong), site, where)

    traverse(k, condition.shape, [condition], body)
