"""Lowering of `tilekit.lang.debug`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, nvvmutils, types
from numba.cuda.descriptor import cuda_target

from tilekit import dtypes
from tilekit.compiler.diagnose import reject
from tilekit.compiler.lower.convert import convert, signed
from tilekit.compiler.lower.emit import special_register, thread_coordinates, unpack
from tilekit.compiler.ops import lowers
from tilekit.compiler.types import TileType, describe, i8, integer, scalar_dtype, scalar_kind
from tilekit.dtypes import DType
from tilekit.lang import debug as lang

__all__: list[str] = []


@lowers(lang.print_)
def print_(*values: types.Type) -> Any:
    for place, value in enumerate(values):
        if isinstance(value, types.UnicodeType):
            reject("print", "a string must be known when the kernel is compiled")
        if not isinstance(value, (types.StringLiteral, TileType)) and scalar_kind(value) is None:
            reject("print", f"values are strings, scalars and a tile, not {describe(value)}")
        if isinstance(value, TileType) and place != len(values) - 1:
            reject("print", "a tile is the last of the values")
    tile = values[-1] if values and isinstance(values[-1], TileType) else None

    def emit(builder: ir.IRBuilder, *given: ir.Value) -> None:
        thread = special_register(builder, "tid.x")
        idle = tile.layout.copies if tile else -1  # the bits of the thread number that must be zero for it to print
        owner = builder.icmp_unsigned("==", builder.and_(thread, integer(32, idle)), integer(32, 0))
        words, arguments = [], []
        with builder.if_then(owner):
            for ty, value in zip(values[:-1] if tile else values, given, strict=False):
                if isinstance(ty, types.StringLiteral):
                    words.append(ty.literal_value.replace("%", "%%"))
                else:
                    word, argument = _argument(builder, scalar_dtype(ty), value)
                    words.append(word)
                    arguments.append(argument)
            if tile is None:
                _printf(builder, " ".join(words), arguments)
            else:
                _print_elements(builder, tile, given[-1], thread, words, arguments)

    return types.none, emit


def _print_elements(
    builder: ir.IRBuilder, tile: TileType, fragment: ir.Value, thread: ir.Value, words: list[str], arguments: list[ir.Value]
) -> None:
    """A line for each element that the thread holds: the words, the element's index, its value."""
    place = f"[{', '.join(['%d'] * len(tile.shape))}]"
    offsets = thread_coordinates(builder, thread, tile.layout.thread)
    for element, coordinate in zip(unpack(builder, fragment), tile.layout.coordinates(), strict=True):
        index = [builder.or_(offset, integer(32, c)) for offset, c in zip(offsets, coordinate, strict=True)]
        word, argument = _argument(builder, tile.dtype, element)
        _printf(builder, " ".join([*words, place, word]), [*arguments, *index, argument])


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


def _printf(builder: ir.IRBuilder, line: str, arguments: list[ir.Value]) -> None:
    struct = cgutils.alloca_once(builder, ir.LiteralStructType([a.type for a in arguments]))
    for place, argument in enumerate(arguments):
        builder.store(argument, cgutils.gep_inbounds(builder, struct, 0, place))
    vprintf = nvvmutils.declare_vprint(builder.module)
    builder.call(vprintf, [_string(builder, line + "\n"), builder.bitcast(struct, ir.PointerType(i8))])
