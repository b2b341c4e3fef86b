"""Arithmetic on single elements: for each operation and dtype the LLVM instructions, or PTX where LLVM has none that fits.

bfloat16 is computed in float32 and rounded after every operation, as NumPy does. A product and a sum may contract to a fused
multiply-add, nothing else is relaxed; `product` gives one that does not.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.cuda import cgutils

from tilekit import dtypes
from tilekit.compiler.lower.convert import narrow, signed, widen
from tilekit.compiler.lower.emit import asm
from tilekit.compiler.types import constant, i16, register_type
from tilekit.dtypes import DType

__all__ = [
    "BITWISE", "COMPARISONS", "absolute", "binary", "compare", "divide", "extremum", "extremum_of_numbers", "high_product",
    "libdevice", "negate", "product", "shift", "via_float32",
]  # fmt: skip

Binary = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]

_CONTRACT = ("contract",)
_SIXTEEN = (dtypes.float16, dtypes.bfloat16)

_FLOAT: dict[str, Binary] = {
    "+": lambda b, x, y: b.fadd(x, y, flags=_CONTRACT),
    "-": lambda b, x, y: b.fsub(x, y, flags=_CONTRACT),
    "*": lambda b, x, y: b.fmul(x, y, flags=_CONTRACT),
}
_INTEGER: dict[str, Binary] = {
    "+": lambda b, x, y: b.add(x, y),
    "-": lambda b, x, y: b.sub(x, y),
    "*": lambda b, x, y: b.mul(x, y),
}
BITWISE: dict[str, Binary] = {
    "&": lambda b, x, y: b.and_(x, y),
    "|": lambda b, x, y: b.or_(x, y),
    "^": lambda b, x, y: b.xor(x, y),
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def binary(symbol: str, dtype: DType) -> Binary:
    """The instruction for `+`, `-` or `*` in `dtype`."""
    if dtype == dtypes.bfloat16:
        return lambda b, x, y: narrow(b, _FLOAT[symbol](b, widen(b, x), widen(b, y)))
    return (_FLOAT if dtypes.is_float(dtype) else _INTEGER)[symbol]


def libdevice(name: str) -> Callable[..., ir.Value]:
    """The function of CUDA's math library with this name, of arguments of one type, which is the result's too."""

    def call(b: ir.IRBuilder, *args: ir.Value) -> ir.Value:
        ty = ir.FunctionType(args[0].type, [a.type for a in args])
        return b.call(cgutils.get_or_insert_function(b.module, ty, name), args)

    return call


def product(dtype: DType) -> Binary:
    """`*`, rounded by itself: floats never become part of a fused multiply-add."""
    if not dtypes.is_float(dtype):
        return _INTEGER["*"]
    return via_float32(dtype, libdevice("__nv_dmul_rn" if dtype == dtypes.float64 else "__nv_fmul_rn"))


def high_product(dtype: DType) -> Binary:
    """The upper half of the product of two integers."""
    if dtype.itemsize >= 4:
        return libdevice(f"__nv_{'' if signed(dtype) else 'u'}mul{'64' if dtype.itemsize == 8 else ''}hi")
    wide = ir.IntType(16 * dtype.itemsize)

    def upper(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        a, c = (b.sext(v, wide) if signed(dtype) else b.zext(v, wide) for v in (x, y))
        return b.trunc(b.lshr(b.mul(a, c), ir.Constant(wide, 8 * dtype.itemsize)), x.type)

    return upper


def shift(symbol: str, dtype: DType) -> Binary:
    """`<<` or `>>` of integers. All bits leave, as NumPy's, where the distance is the width or more (or negative)."""
    bits = 8 * dtype.itemsize

    def move(b: ir.IRBuilder, x: ir.Value, distance: ir.Value) -> ir.Value:
        if symbol == "<<":
            moved, emptied = b.shl(x, distance), constant(dtype, 0)
        elif signed(dtype):
            moved, emptied = b.ashr(x, distance), b.ashr(x, constant(dtype, bits - 1))
        else:
            moved, emptied = b.lshr(x, distance), constant(dtype, 0)
        # A constant distance folds the choice; LLVM gives no meaning to one that is too far.
        return b.select(b.icmp_unsigned("<", distance, constant(dtype, bits)), moved, emptied)

    return move


def divide(dtype: DType) -> Binary:
    """The quotient of floats, correctly rounded."""

    def quotient(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        return b.fdiv(x, y)

    return via_float32(dtype, quotient)


def via_float32(dtype: DType, function: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    """`function` of float32 or float64 elements, for 16-bit floats too: computed in float32, then rounded."""
    if dtype not in _SIXTEEN:
        return function

    def through(b: ir.IRBuilder, *args: ir.Value) -> ir.Value:
        if dtype == dtypes.bfloat16:
            return narrow(b, function(b, *(widen(b, a) for a in args)))
        return b.fptrunc(function(b, *(b.fpext(a, ir.FloatType()) for a in args)), ir.HalfType())

    return through


def compare(symbol: str, dtype: DType) -> Binary:
    """A comparison; with a NaN only `!=` holds."""
    if dtype == dtypes.bfloat16:
        return lambda b, x, y: compare(symbol, dtypes.float32)(b, widen(b, x), widen(b, y))
    if dtypes.is_float(dtype):
        if symbol == "!=":
            return lambda b, x, y: b.fcmp_unordered("!=", x, y)
        return lambda b, x, y: b.fcmp_ordered(symbol, x, y)
    if signed(dtype):
        return lambda b, x, y: b.icmp_signed(symbol, x, y)
    return lambda b, x, y: b.icmp_unsigned(symbol, x, y)


def extremum(name: str, dtype: DType) -> Binary:
    """`minimum` or `maximum`; NaN if either is."""
    if dtype in (dtypes.float32, *_SIXTEEN):
        kind, letter = {dtypes.float32: ("f32", "f"), dtypes.float16: ("f16", "h"), dtypes.bfloat16: ("bf16", "h")}[dtype]
        text = f"{name[:3]}.NaN.{kind} $0, $1, $2;"
        as_register = ir.FloatType() if letter == "f" else i16

        def hardware(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
            made = asm(b, text, f"={letter},{letter},{letter}", as_register, [b.bitcast(v, as_register) for v in (x, y)])
            return b.bitcast(made, register_type(dtype))

        return hardware
    better = compare("<" if name == "minimum" else ">", dtype)

    def choose(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        first = better(b, x, y)
        if dtypes.is_float(dtype):
            first = b.or_(first, b.fcmp_unordered("uno", x, x))
        return b.select(first, x, y)

    return choose


def extremum_of_numbers(name: str, dtype: DType) -> Binary:
    """`minimum` or `maximum`; a NaN loses against every number."""
    if dtype == dtypes.float32:
        return lambda b, x, y: asm(b, f"{name[:3]}.f32 $0, $1, $2;", "=f,f,f", x.type, [x, y])
    better = compare("<" if name == "minimum" else ">", dtype)
    if not dtypes.is_float(dtype):
        return extremum(name, dtype)
    return lambda b, x, y: b.select(b.or_(better(b, x, y), b.fcmp_unordered("uno", y, y)), x, y)


def negate(dtype: DType) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """The negative of an element."""
    if dtype in _SIXTEEN:
        return lambda b, x: _with_bits(b, x, lambda bits: b.xor(bits, ir.Constant(i16, 0x8000)))
    if dtypes.is_float(dtype):
        return lambda b, x: b.fsub(constant(dtype, -0.0), x)  # the LLVM dialect below sm_100 has no fneg
    return lambda b, x: b.neg(x)


def absolute(dtype: DType) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """The absolute value of an element."""
    if dtype in _SIXTEEN:
        return lambda b, x: _with_bits(b, x, lambda bits: b.and_(bits, ir.Constant(i16, 0x7FFF)))
    if dtypes.is_float(dtype):
        kind = "f32" if dtype == dtypes.float32 else "f64"
        letter = "f" if dtype == dtypes.float32 else "d"
        return lambda b, x: asm(b, f"abs.{kind} $0, $1;", f"={letter},{letter}", x.type, [x])
    if signed(dtype):
        return lambda b, x: b.select(b.icmp_signed("<", x, constant(dtype, 0)), b.neg(x), x)
    return lambda b, x: x


def _with_bits(b: ir.IRBuilder, x: ir.Value, function: Callable[[ir.Value], ir.Value]) -> ir.Value:
    return b.bitcast(function(b.bitcast(x, i16)), x.type)
