"""Lowering of `tilekit.lang.debug`: printf, and assertions that stop a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, nvvmutils, types
from numba.cuda.descriptor import cuda_target

from tilekit import dtypes
from tilekit._driver.report import MOST_VALUES
from tilekit.compiler.codegen.checks import checking, require
from tilekit.compiler.codegen.convert import convert, signed
from tilekit.compiler.codegen.definition import ABSENT, known, lowers
from tilekit.compiler.codegen.diagnose import refuse, reject
from tilekit.compiler.codegen.emit import all_of, special_register, thread_coordinates, unpack
from tilekit.compiler.codegen.known_bits import folded
from tilekit.compiler.codegen.operands import broadcast
from tilekit.compiler.codegen.types import TileType, describe, i8, i64, integer, prevailing, scalar_dtype, scalar_kind
from tilekit.dtypes import DType
from tilekit.errors import CompileError
from tilekit.lang import debug as lang
from tilekit.lang.tile import common_shape

__all__: list[str] = []


@lowers(lang.print_)
def print_(*values: types.Type) -> Any:
    for index, value in enumerate(values):
        if isinstance(value, types.UnicodeType):
            reject("print", "a string must be known when the kernel is compiled")
        if not isinstance(value, (types.StringLiteral, TileType)) and scalar_kind(value) is None:
            reject("print", f"values are strings, scalars and a tile, not {describe(value)}")
        if isinstance(value, TileType) and index != len(values) - 1:
            reject("print", "a tile is the last of the values")
    tile = values[-1] if values and isinstance(values[-1], TileType) else None

    def emit(builder: ir.IRBuilder, *operands: ir.Value) -> None:
        thread = special_register(builder, "tid.x")
        idle = tile.layout.copies if tile else -1  # the bits of the thread number that must be zero for it to print
        owner = builder.icmp_unsigned("==", builder.and_(thread, integer(32, idle)), integer(32, 0))
        words, arguments = [], []
        with builder.if_then(owner):
            for ty, value in zip(values[:-1] if tile else values, operands, strict=False):
                if isinstance(ty, types.StringLiteral):
                    words.append(ty.literal_value.replace("%", "%%"))
                else:
                    word, argument = _argument(builder, scalar_dtype(ty), value)
                    words.append(word)
                    arguments.append(argument)
            if tile is None:
                _printf(builder, " ".join(words) + "\n", arguments)
            else:
                _print_elements(builder, tile, operands[-1], thread, words, arguments)

    return types.none, emit


def _print_elements(
    builder: ir.IRBuilder, tile: TileType, fragment: ir.Value, thread: ir.Value, words: list[str], arguments: list[ir.Value]
) -> None:
    """A line for each element that the thread holds: the words, the element's index, its value."""
    index_format = f"[{', '.join(['%d'] * len(tile.shape))}]"
    offsets = thread_coordinates(builder, thread, tile.layout.thread)
    for element, coordinate in zip(unpack(builder, fragment), tile.layout.coordinates(), strict=True):
        index = [builder.or_(offset, integer(32, c)) for offset, c in zip(offsets, coordinate, strict=True)]
        word, argument = _argument(builder, tile.dtype, element)
        _printf(builder, " ".join([*words, index_format, word]) + "\n", [*arguments, *index, argument])


def _argument(builder: ir.IRBuilder, dtype: DType, value: ir.Value) -> tuple[str, ir.Value]:
    """A scalar as printf takes it: its format, and the value."""
    if dtype == dtypes.bool_:
        return "%s", builder.select(value, _string(builder, "True"), _string(builder, "False"))
    if dtypes.is_float(dtype):
        return "%g", convert(builder, value, dtype, dtypes.float64)
    wide = dtypes.int64 if signed(dtype) else dtypes.uint64
    return "%lld" if signed(dtype) else "%llu", convert(builder, value, dtype, wide)


def _string(builder: ir.IRBuilder, text: str) -> ir.Value:
    return cuda_target.target_context.insert_string_const_addrspace(builder, text)


def _printf(builder: ir.IRBuilder, text: str, arguments: list[ir.Value]) -> None:
    """Print `text`, a format of C's, from this thread."""
    struct = cgutils.alloca_once(builder, ir.LiteralStructType([a.type for a in arguments]))
    for field, argument in enumerate(arguments):
        builder.store(argument, cgutils.gep_inbounds(builder, struct, 0, field))
    vprintf = nvvmutils.declare_vprint(builder.module)
    builder.call(vprintf, [_string(builder, text), builder.bitcast(struct, ir.PointerType(i8))])


def _constant_text(what: str, ty: types.Type, problem: str) -> str:
    """The string of a parameter that must be one known when the kernel is compiled."""
    text = known(ty)
    if not isinstance(text, str):
        shown = "" if text is ABSENT and isinstance(ty, types.UnicodeType) else f", not {describe(ty)}"
        reject(what, f"{problem} is a string known when the kernel is compiled{shown}")
    return text


@lowers(lang.printf)
def printf(format: types.Type, *values: types.Type) -> Any:
    text = _constant_text("printf", format, "the format")
    for value in values:
        if not isinstance(value, TileType) and scalar_kind(value) is None:
            reject("printf", f"values are scalars and tiles, not {describe(value)}")
    kinds = [value.dtype if isinstance(value, TileType) else scalar_dtype(value) for value in values]
    tiles = [value for value in values if isinstance(value, TileType)]
    try:
        before, directives = lang.parse_format(text)
        problem = lang.unprintable("".join(d.letter for d in directives), kinds)
        like = _meeting("printf", tiles) if tiles else None
    except CompileError as error:
        reject("printf", error.reason)
    if problem:
        reject("printf", problem)
    line = before.replace("%", "%%")
    index = 0
    for directive in directives:
        line += _sized(directive, kinds[index]) if directive.letter else "%%"
        line += directive.after
        index += bool(directive.letter)

    def emit(builder: ir.IRBuilder, _: ir.Value, *operands: ir.Value) -> None:
        registers = like.layout.num_registers if like else 1
        columns = [
            broadcast(builder, ty, value, like.layout) if isinstance(ty, TileType) else [value] * registers
            for ty, value in zip(values, operands, strict=True)
        ]
        thread = special_register(builder, "tid.x")
        idle = like.layout.copies if like else -1
        owner = builder.icmp_unsigned("==", builder.and_(thread, integer(32, idle)), integer(32, 0))
        letters = [d.letter for d in directives if d.letter]
        with builder.if_then(owner):
            for row in zip(*columns, strict=True) if columns else [()]:
                _printf(builder, line, [_passed(builder, *p) for p in zip(row, kinds, letters, strict=True)])

    return types.none, emit


def _meeting(what: str, tiles: Sequence[TileType]) -> TileType:
    """A tile of the shape that all broadcast to; its dtype means nothing."""
    shape = common_shape(what, [tile.shape for tile in tiles])
    whole = [tile for tile in tiles if tile.shape == shape and not tile.splat]
    return prevailing(whole) if whole else TileType.of_shape(tiles[0].dtype, shape, tiles[0].config)


def _sized(directive: lang.Directive, dtype: DType) -> str:
    """A directive for what `_passed` gives: 64 bits."""
    letter = "u" if directive.letter in "di" and dtype == dtypes.uint64 else directive.letter
    return f"%{directive.style}{'' if dtypes.is_float(dtype) else 'll'}{letter}"


def _passed(builder: ir.IRBuilder, value: ir.Value, dtype: DType, letter: str) -> ir.Value:
    """A value as printf takes it; the letters for bits take those of the value's own width."""
    if dtypes.is_float(dtype):
        return convert(builder, value, dtype, dtypes.float64)
    if value.type == i64:
        return value
    extend = builder.sext if letter in "di" and signed(dtype) else builder.zext
    return extend(value, i64)


@lowers(lang.assert_)
def assert_(condition: types.Type, message: types.Type) -> Any:
    text = _constant_text("assert_", message, "the message")
    if isinstance(condition, TileType):
        if condition.dtype != dtypes.bool_:
            reject("assert_", lang.unconditional(describe(condition)))
    elif scalar_kind(condition) is not bool:
        reject("assert_", lang.unconditional(describe(condition)))

    tile = condition if isinstance(condition, TileType) and 0 < len(condition.shape) <= MOST_VALUES else None
    said = lang.assertion_text(text).replace("{", "{{").replace("}", "}}")
    if tile:
        said += f" at element ({', '.join(['{}'] * len(tile.shape))}{',' * (len(tile.shape) == 1)})"

    def emit(builder: ir.IRBuilder, value: ir.Value, _: ir.Value) -> None:
        if not checking():
            return
        elements = unpack(builder, value) if isinstance(condition, TileType) else [value]
        holds = all_of(builder, elements)
        assert holds is not None, "a tile has elements"
        require(builder, holds, said, lambda: _first_false(builder, tile, elements) if tile else ())

    return types.none, emit


def _first_false(builder: ir.IRBuilder, tile: TileType, elements: list[ir.Value]) -> list[ir.Value]:
    """The index of the first element of the thread's that is False."""
    offsets = thread_coordinates(builder, special_register(builder, "tid.x"), tile.layout.thread)
    first: list[ir.Value] = offsets
    for element, coordinate in reversed(list(zip(elements, tile.layout.coordinates(), strict=True))):
        here = [builder.or_(offset, integer(32, c)) for offset, c in zip(offsets, coordinate, strict=True)]
        first = [builder.select(element, later, at) for later, at in zip(first, here, strict=True)]
    return first


@lowers(lang.static_assert)
def static_assert(condition: types.Type, message: types.Type) -> Any:
    text = _constant_text("static_assert", message, "the message")
    if isinstance(condition, TileType) or scalar_kind(condition) is None:
        reject("static_assert", lang.unknown_condition())
    value = known(condition)
    if value is not ABSENT and not value:
        refuse("static_assert", text or "the condition does not hold")

    def emit(builder: ir.IRBuilder, condition_: ir.Value, _: ir.Value) -> None:
        # Comparisons of what only types know (ranks, shapes) are instructions by now, of constants.
        holds = folded(condition_) if value is ABSENT else value
        if holds is None:
            reject("static_assert", lang.unknown_condition())
        if not holds:
            refuse("static_assert", text or "the condition does not hold")

    return types.none, emit


@lowers(lang.static_print)
def static_print(*values: types.Type) -> Any:
    def emit(builder: ir.IRBuilder, *_: ir.Value) -> None:
        """Nothing: the line is printed with the verdict on the kernel."""

    return types.none, emit
