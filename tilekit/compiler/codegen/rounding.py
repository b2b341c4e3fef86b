"""Rounding modes of basic arithmetic on floats: PTX has an instruction for each, which nothing fuses with another.

16-bit floats are computed in float32 and rounded in the same direction again, which is as good as once.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.arithmetic import binary
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import ABSENT, known
from tilekit.compiler.codegen.diagnose import refuse, reject
from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.codegen.types import describe, i16, i32
from tilekit.dtypes import DType
from tilekit.errors import CompileError
from tilekit.lang import rounding
from tilekit.lang.rounding import RoundingMode

__all__ = ["conversion_mode", "converted", "directed", "flushed_extremum", "modes"]

_SUFFIX = {
    RoundingMode.RN: "rn", RoundingMode.RZ: "rz", RoundingMode.RM: "rm", RoundingMode.RP: "rp",
    RoundingMode.FULL: "full", RoundingMode.APPROX: "approx",
}  # fmt: skip
_LETTER = {dtypes.float32: "f", dtypes.float64: "d"}
_NAMES = {"truediv": "div"}
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*"}


def modes(
    what: str, accepted: tuple[RoundingMode, ...], mode: types.Type, flush_to_zero: types.Type | None, dtype: DType
) -> tuple[RoundingMode | None, bool]:
    """The rounding mode and the flushing that an operation on `dtype` was given, as they are known when it is compiled."""
    chosen, flush = _mode(what, mode), False if flush_to_zero is None else known(flush_to_zero)
    problem = rounding.problem(accepted, chosen, flush, dtype)
    if problem:
        refuse(what, problem)
    return chosen, bool(flush)


def _mode(what: str, mode: types.Type) -> RoundingMode | None:
    value = known(mode)
    if value is ABSENT:
        reject(what, f"rounding_mode is known when the kernel is compiled, not {describe(mode)}")
    try:
        return rounding.known_mode(what, value)
    except CompileError as error:
        refuse(what, error.reason)


def conversion_mode(mode: types.Type, source: DType, target: DType) -> RoundingMode | None:
    """The rounding mode of a conversion."""
    chosen = _mode("astype", mode)
    problem = rounding.conversion_problem(source, target, chosen) if chosen is not None else None
    if problem:
        refuse("astype", problem)
    return chosen


def converted(b: ir.IRBuilder, value: ir.Value, source: DType, target: DType, mode: RoundingMode) -> ir.Value:
    """A float as another float, rounded as `mode` says; from 64 bits to 16 in two steps of one direction."""
    if mode == RoundingMode.RN or target.itemsize >= source.itemsize > 2 or target.itemsize > 2 >= source.itemsize:
        return convert(b, value, source, target)
    if source == dtypes.float64:
        value = asm(b, f"cvt.{_SUFFIX[mode]}.f32.f64 $0, $1;", "=f,d", ir.FloatType(), [value])
    elif source != dtypes.float32:
        value = convert(b, value, source, dtypes.float32)
    return value if target == dtypes.float32 else _narrowed(b, value, target, mode)


def _narrowed(b: ir.IRBuilder, value: ir.Value, target: DType, mode: RoundingMode) -> ir.Value:
    """A float32 rounded to 16 bits."""
    if target == dtypes.bfloat16:
        return _to_bfloat16(b, value, mode)
    return b.bitcast(asm(b, f"cvt.{_SUFFIX[mode]}.f16.f32 $0, $1;", "=h,f", i16, [value]), ir.HalfType())


def directed(what: str, mode: RoundingMode | None, flush_to_zero: bool, dtype: DType) -> Callable[..., ir.Value]:
    """`add`, `sub`, `mul`, `truediv`, `fma` or `sqrt` of elements, rounded as `mode` says, by default to the nearest."""
    name, mode = _NAMES.get(what, what), mode or RoundingMode.RN
    if dtype in _LETTER:
        ftz = ".ftz" * flush_to_zero
        text = f"{name}.{_SUFFIX[mode]}{ftz}.f{8 * dtype.itemsize} "
        return lambda b, *x: _instruction(b, text, _LETTER[dtype], *x)
    if mode == RoundingMode.RN and dtype == dtypes.float16 and what in ("add", "sub", "mul", "fma"):
        return lambda b, *x: _half(b, f"{name}.rn.f16 ", *x)
    if mode == RoundingMode.RN and dtype == dtypes.bfloat16 and what == "fma":
        return lambda b, *x: _instruction(b, "fma.rn.bf16 ", "h", *x)
    if mode == RoundingMode.RN and dtype == dtypes.bfloat16 and what in _SYMBOLS:
        return binary(_SYMBOLS[what], dtype)
    single = directed(what, mode, False, dtypes.float32)

    def through(b: ir.IRBuilder, *x: ir.Value) -> ir.Value:
        return _narrowed(b, single(b, *(convert(b, v, dtype, dtypes.float32) for v in x)), dtype, mode)

    return through


def flushed_extremum(name: str, propagate_nan: bool) -> Callable[..., ir.Value]:
    """`minimum` or `maximum` of float32, where subnormal numbers are zeros."""
    text = f"{name[:3]}.ftz{'.NaN' * propagate_nan}.f32 "
    return lambda b, x, y: _instruction(b, text, "f", x, y)


def _instruction(b: ir.IRBuilder, text: str, letter: str, *x: ir.Value) -> ir.Value:
    places = ", ".join(f"${n}" for n in range(len(x) + 1))
    return asm(b, f"{text}{places};", ",".join([f"={letter}", *[letter] * len(x)]), x[0].type, x)


def _half(b: ir.IRBuilder, text: str, *x: ir.Value) -> ir.Value:
    return b.bitcast(_instruction(b, text, "h", *(b.bitcast(v, i16) for v in x)), ir.HalfType())


def _to_bfloat16(b: ir.IRBuilder, value: ir.Value, mode: RoundingMode) -> ir.Value:
    """A float32 rounded; below sm_100 PTX rounds to bfloat16 to the nearest or towards zero only."""
    if mode in (RoundingMode.RN, RoundingMode.RZ):
        return asm(b, f"cvt.{_SUFFIX[mode]}.bf16.f32 $0, $1;", "=h,f", i16, [value])
    bits = b.bitcast(value, i32)
    upper, lower = b.lshr(bits, ir.Constant(i32, 16)), b.and_(bits, ir.Constant(i32, 0xFFFF))
    away = b.icmp_signed("<" if mode == RoundingMode.RM else ">=", bits, ir.Constant(i32, 0))
    step = b.zext(b.and_(away, b.icmp_unsigned("!=", lower, ir.Constant(i32, 0))), i32)
    grown = b.select(b.fcmp_unordered("uno", value, value), ir.Constant(i32, 0x7FFF), b.add(upper, step))
    return b.trunc(grown, i16)
