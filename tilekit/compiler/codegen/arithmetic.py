"""Arithmetic on single elements: for each operation and dtype the LLVM instructions, or inline PTX where LLVM has none.

Every operation is rounded, to 16 bits too. A product and a sum may contract to a fused multiply-add (not of bfloat16), which
NVVM and ptxas do by themselves; nothing else is relaxed. LLVM's flag for it, `contract`, relaxes more in NVVM: with it on a sum,
`x * 0 + y` is `y`, also where `x` is infinite. `rounding.directed` gives operations that do not contract.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.cuda import cgutils

from tilekit import dtypes
from tilekit.compiler.codegen.convert import narrow, signed, widen
from tilekit.compiler.codegen.emit import asm, masked
from tilekit.compiler.codegen.types import constant, i16, register_type
from tilekit.dtypes import DType

__all__ = [
    "BITWISE", "COMPARISONS", "absolute", "binary", "compare", "divide", "extremum", "extremum_of_numbers", "fma",
    "from_float32", "high_product", "libdevice", "negate", "reciprocal", "shift", "square_root", "via_float32",
]  # fmt: skip

Binary = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]

_SIXTEEN = (dtypes.float16, dtypes.bfloat16)

_FLOAT: dict[str, Binary] = {
    "+": lambda b, x, y: b.fadd(x, y),
    "-": lambda b, x, y: b.fsub(x, y),
    "*": lambda b, x, y: b.fmul(x, y),
}
# x * 1 + y, x - y * 1 and x * y - 0, rounded once: two of them are one packed instruction, and need no conversions.
_BFLOAT16: dict[str, Binary] = {
    "+": lambda b, x, y: _fma_bfloat16(b, x, ir.Constant(i16, 0x3F80), y),
    "-": lambda b, x, y: _fma_bfloat16(b, y, ir.Constant(i16, 0xBF80), x),
    "*": lambda b, x, y: _fma_bfloat16(b, x, y, ir.Constant(i16, 0x8000)),
}
_INTEGER: dict[str, Binary] = {
    "+": lambda b, x, y: b.add(x, y),
    "-": lambda b, x, y: b.sub(x, y),
    "*": lambda b, x, y: b.mul(x, y),
}
BITWISE: dict[str, Binary] = {
    "&": masked,
    "|": lambda b, x, y: b.or_(x, y),
    "^": lambda b, x, y: b.xor(x, y),
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def _fma_bfloat16(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    return asm(b, "fma.rn.bf16 $0, $1, $2, $3;", "=h,h,h,h", i16, [x, y, z])


def binary(symbol: str, dtype: DType) -> Binary:
    """The instruction for `+`, `-` or `*` in `dtype`."""
    if dtype == dtypes.bfloat16:
        return _BFLOAT16[symbol]
    return (_FLOAT if dtypes.is_float(dtype) else _INTEGER)[symbol]


def libdevice(name: str) -> Callable[..., ir.Value]:
    """The function of CUDA's math library with this name, of arguments of one type, which is the result's too."""

    def call(b: ir.IRBuilder, *args: ir.Value) -> ir.Value:
        ty = ir.FunctionType(args[0].type, [a.type for a in args])
        return b.call(cgutils.get_or_insert_function(b.module, ty, name), args)

    return call


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

    return via_float32(dtype, _half_quotient if dtype == dtypes.float16 else quotient)


def square_root(dtype: DType) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """The square root of a float, correctly rounded."""
    if dtype == dtypes.float16:
        return via_float32(dtype, _half_root)
    return via_float32(dtype, libdevice("__nv_dsqrt_rn" if dtype == dtypes.float64 else "__nv_fsqrt_rn"))


# In float32 no quotient or root of float16 numbers overflows or is subnormal, so that an approximation and one correction give
# all that rounding to float16 needs, without the branches for such cases. Tried with all numbers (of quotients 48 million), the
# approximation up to 2 units in the last place off in either direction.
_f32 = ir.FloatType()


def fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z of float32, rounded once."""
    return asm(b, "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", _f32, [x, y, z])


def reciprocal(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """1 / x of a float32 that is not subnormal, at most 1 unit in the last place off."""
    return asm(b, "rcp.approx.ftz.f32 $0, $1;", "=f,f", _f32, [x])


def _half_quotient(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    inverse = reciprocal(b, y)
    quotient = b.fmul(x, inverse)
    missing = fma(b, negate(dtypes.float32)(b, quotient), y, x)
    # It is 0 for exact quotients (of which one is -0), and NaN for those of zeros and infinities.
    final = b.fcmp_unordered("==", missing, ir.Constant(_f32, 0.0))
    return b.select(final, quotient, fma(b, missing, inverse, quotient))


def _half_root(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    inverse = asm(b, "rsqrt.approx.ftz.f32 $0, $1;", "=f,f", _f32, [x])
    root = b.fmul(x, inverse)
    missing = fma(b, negate(dtypes.float32)(b, root), root, x)
    root = fma(b, missing, b.fmul(inverse, ir.Constant(_f32, 0.5)), root)
    same = [b.fcmp_ordered("==", x, ir.Constant(_f32, end)) for end in (0.0, float("inf"))]
    return b.select(b.or_(*same), x, root)


def via_float32(dtype: DType, function: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    """`function` of float32 or float64 elements, for 16-bit floats too: computed in float32, then rounded."""
    if dtype not in _SIXTEEN:
        return function

    def through(b: ir.IRBuilder, *args: ir.Value) -> ir.Value:
        if dtype == dtypes.bfloat16:
            return narrow(b, function(b, *(widen(b, a) for a in args)))
        return b.fptrunc(function(b, *(b.fpext(a, ir.FloatType()) for a in args)), ir.HalfType())

    return through


def from_float32(dtype: DType, function: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    """As `via_float32`, for a `function` that gives no float."""
    if dtype not in _SIXTEEN:
        return function
    to_float32 = widen if dtype == dtypes.bfloat16 else lambda b, x: b.fpext(x, ir.FloatType())
    return lambda b, *args: function(b, *(to_float32(b, a) for a in args))


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
            bits = asm(b, text, f"={letter},{letter},{letter}", as_register, [b.bitcast(v, as_register) for v in (x, y)])
            return b.bitcast(bits, register_type(dtype))

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
    if not dtypes.is_float(dtype):
        return extremum(name, dtype)
    if dtype in _SIXTEEN:
        return via_float32(dtype, extremum_of_numbers(name, dtypes.float32))
    better = compare("<" if name == "minimum" else ">", dtype)
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
        return lambda b, x: _with_bits(b, x, lambda bits: masked(b, bits, ir.Constant(i16, 0x7FFF)))
    if dtypes.is_float(dtype):
        kind = "f32" if dtype == dtypes.float32 else "f64"
        letter = "f" if dtype == dtypes.float32 else "d"
        return lambda b, x: asm(b, f"abs.{kind} $0, $1;", f"={letter},{letter}", x.type, [x])
    if signed(dtype):
        return lambda b, x: b.select(b.icmp_signed("<", x, constant(dtype, 0)), b.neg(x), x)
    return lambda b, x: x


def _with_bits(b: ir.IRBuilder, x: ir.Value, function: Callable[[ir.Value], ir.Value]) -> ir.Value:
    return b.bitcast(function(b.bitcast(x, i16)), x.type)
