"""Formulas over vectors: numbers with operators, sums and products that lose nothing, and calls that are rare.

A function of this room is written down once, for float32 and float64, vectors and scalars, CPUs with fused multiply-adds and
without. It must not use what LLVM makes calls of the C library on some CPU: rounding to whole numbers, and fused multiply-adds
where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu.code import Code, f32, f64, i32, i64, pointer

__all__ = [
    "Formula", "Vector", "by_library", "fast_two_sum", "fma", "has_registers", "in_registers", "polynomial", "quotient",
    "two_product", "two_sum", "unless", "where",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Vector:
    """A vector, or a scalar, of floats, integers or truths, while a formula is written.

    Operators are those of elements; numbers of Python's beside it are constants of its type. `>>` keeps the sign.
    """

    k: Code
    value: ir.Value

    @property
    def kind(self) -> ir.Type:
        """The type of an element."""
        return self.value.type.element if isinstance(self.value.type, ir.VectorType) else self.value.type

    @property
    def single(self) -> bool:
        """Whether elements have 32 bits, rather than 64."""
        return self.kind in (f32, i32)

    @property
    def lanes(self) -> int:
        """The number of elements."""
        return self.value.type.count if isinstance(self.value.type, ir.VectorType) else 1

    @property
    def _float(self) -> bool:
        return self.kind in (f32, f64)

    def new(self, value: Any) -> Vector:
        """A constant of this type, from a number; other vectors as they are."""
        return value if isinstance(value, Vector) else Vector(self.k, self.k.like(value, self.value))

    def _two(self, of_floats: str, of_integers: str, other: Any, swapped: bool = False) -> Vector:
        operands = (self.value, self.new(other).value)
        function = getattr(self.k.b, of_floats if self._float else of_integers)
        return Vector(self.k, function(*(reversed(operands) if swapped else operands)))

    def __add__(self, other: Any) -> Vector:
        return self._two("fadd", "add", other)

    def __sub__(self, other: Any) -> Vector:
        return self._two("fsub", "sub", other)

    def __mul__(self, other: Any) -> Vector:
        return self._two("fmul", "mul", other)

    def __truediv__(self, other: Any) -> Vector:
        return self._two("fdiv", "", other)

    def __radd__(self, other: Any) -> Vector:
        return self._two("fadd", "add", other, swapped=True)

    def __rsub__(self, other: Any) -> Vector:
        return self._two("fsub", "sub", other, swapped=True)

    def __rmul__(self, other: Any) -> Vector:
        return self._two("fmul", "mul", other, swapped=True)

    def __rtruediv__(self, other: Any) -> Vector:
        return self._two("fdiv", "", other, swapped=True)

    def __and__(self, other: Any) -> Vector:
        return self._two("", "and_", other)

    def __or__(self, other: Any) -> Vector:
        return self._two("", "or_", other)

    def __xor__(self, other: Any) -> Vector:
        return self._two("", "xor", other)

    def __lshift__(self, other: Any) -> Vector:
        return self._two("", "shl", other)

    def __rshift__(self, other: Any) -> Vector:
        return self._two("", "ashr", other)

    def unsigned_shift(self, bits: int) -> Vector:
        """The bits moved down, zeros from above."""
        return self._two("", "lshr", bits)

    def __invert__(self) -> Vector:
        return Vector(self.k, self.k.b.not_(self.value))

    def __neg__(self) -> Vector:
        return Vector(self.k, self.k.b.fneg(self.value) if self._float else self.k.b.neg(self.value))

    def __abs__(self) -> Vector:
        return Vector(self.k, self.k.intrinsic("fabs", self.value))

    def _compared(self, symbol: str, other: Any) -> Vector:
        compare = self.k.b.fcmp_ordered if self._float else self.k.b.icmp_signed
        return Vector(self.k, compare(symbol, self.value, self.new(other).value))

    def __lt__(self, other: Any) -> Vector:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Vector:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> Vector:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Vector:
        return self._compared(">=", other)

    def equals(self, other: Any) -> Vector:
        """Where the two are equal, and no NaN."""
        return self._compared("==", other)

    def is_nan(self) -> Vector:
        """Where it is NaN."""
        return Vector(self.k, self.k.b.fcmp_unordered("uno", self.value, self.value))

    def bits(self) -> Vector:
        """Floats as the integers that their bits are."""
        return Vector(self.k, self.k.b.bitcast(self.value, self.k.with_lanes(i32 if self.single else i64, self.value)))

    def floats(self) -> Vector:
        """The opposite of `bits`."""
        return Vector(self.k, self.k.b.bitcast(self.value, self.k.with_lanes(f32 if self.single else f64, self.value)))

    def doubles(self) -> Vector:
        """As float64."""
        return Vector(self.k, self.k.b.fpext(self.value, self.k.with_lanes(f64, self.value))) if self.single else self

    def singles(self) -> Vector:
        """As float32."""
        return self if self.single else Vector(self.k, self.k.b.fptrunc(self.value, self.k.with_lanes(f32, self.value)))

    def sqrt(self) -> Vector:
        """The square root."""
        return Vector(self.k, self.k.intrinsic("sqrt", self.value))

    def with_sign(self, other: Vector) -> Vector:
        """The magnitude of this one, the sign of another."""
        return Vector(self.k, self.k.intrinsic("copysign", self.value, other.value))

    def at_most(self, bound: float) -> Vector:
        """The smaller one of this and a bound; NaN stays."""
        return where(self.new(bound) < self, bound, self)

    def at_least(self, bound: float) -> Vector:
        """The larger one of this and a bound; NaN stays."""
        return where(self.new(bound) > self, bound, self)


Formula = Callable[..., Vector]


def where(mask: Vector, x: Any, y: Any) -> Vector:
    """One of two; at least one of them is a vector."""
    some = x if isinstance(x, Vector) else y
    return Vector(mask.k, mask.k.b.select(mask.value, some.new(x).value, some.new(y).value))


def fma(x: Vector, y: Any, z: Any) -> Vector:
    """x * y + z, rounded once where the CPU can, and twice where it cannot."""
    factor, term = x.new(y), x.new(z)
    if not x.k.machine.fused:
        return x * factor + term
    return Vector(x.k, x.k.intrinsic("fma", x.value, factor.value, term.value))


def polynomial(x: Vector, coefficients: Sequence[float]) -> Vector:
    """By Horner's rule, the highest power first."""
    result = x.new(coefficients[0])
    for coefficient in coefficients[1:]:
        result = fma(result, x, coefficient)
    return result


def has_registers(x: Vector) -> bool:
    """Whether vectors of this type are made of AVX-512's registers."""
    return x.k.machine.vector_bytes == 64 and x.lanes % _lanes_of_registers(x) == 0


def _lanes_of_registers(x: Vector) -> int:
    return 16 if x.single else 8


def in_registers(name: str, x: Vector, *others: Vector | int) -> Vector:
    """One of the instructions that only AVX-512 has, without a mask, rounding as always."""
    k, lanes = x.k, _lanes_of_registers(x)
    parts = []
    for start in range(0, x.lanes, lanes):
        values = [i32(v) if isinstance(v, int) else k.part(v.value, start, lanes) for v in (x, *others)]
        full = f"llvm.x86.avx512.mask.{name}.{'ps' if x.single else 'pd'}.512"
        parts.append(k.call(full, values[0].type, [*values, values[0], ir.IntType(lanes)(-1), i32(4)]))
    while len(parts) > 1:
        parts = [k.joined(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return Vector(k, parts[0])


def two_sum(x: Vector, y: Vector) -> tuple[Vector, Vector]:
    """The sum, and exactly what it lacks (D. E. Knuth: The Art of Computer Programming, volume 2)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def fast_two_sum(x: Vector, y: Vector) -> tuple[Vector, Vector]:
    """The same, where x is no smaller than y, or 0 (T. J. Dekker: A floating-point technique, 1971)."""
    total = x + y
    return total, y - (total - x)


def two_product(x: Vector, y: Any) -> tuple[Vector, Vector]:
    """The product, and exactly what it lacks; without fused multiply-adds by Dekker's halves, which large numbers overflow."""
    y = x.new(y)
    product = x * y
    if x.k.machine.fused:
        return product, fma(x, y, -product)
    (a, b), (c, d) = (_halves(v) for v in (x, y))
    return product, ((a * c - product) + a * d + b * c) + b * d


def _halves(x: Vector) -> tuple[Vector, Vector]:
    spread = x * (2.0 ** (12 if x.single else 27) + 1)
    upper = spread - (spread - x)
    return upper, x - upper


def quotient(x: tuple[Vector, Vector], y: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Of two sums of a number and a small one that it lacks: likewise, about twice as precise as one number."""
    reciprocal = 1.0 / y[0]
    first = x[0] * reciprocal
    product, lacks = two_product(first, y[0])
    rest = ((x[0] - product) - lacks) + (x[1] - first * y[1])
    return fast_two_sum(first, rest * reciprocal)


def unless(mask: Vector, usual: Vector, other: Callable[[], Vector]) -> Vector:
    """`usual` if a truth, which is rare, holds nowhere, and something else if it does anywhere."""
    k, b, before = usual.k, usual.k.b, usual.k.b.block
    rare, end = (k.function.append_basic_block(name) for name in ("rare", "usual"))
    b.cbranch(k.any_lane(mask.value), rare, end)
    b.position_at_end(rare)
    changed = other()
    after = b.block
    b.branch(end)
    b.position_at_end(end)
    chosen = b.phi(usual.value.type)
    chosen.add_incoming(usual.value, before)
    chosen.add_incoming(changed.value, after)
    return Vector(k, chosen)


def by_library(mask: Vector, usual: Vector, name: str, x: Vector) -> Vector:
    """`usual`, and where `mask` holds a function of the C library's, of a double, element by element."""
    k, b = usual.k, usual.k.b
    slot = b.inttoptr(b.ptrtoint(k.slot(x.value.type), i64), pointer)
    b.store(where(mask, x, 0.0).value, slot)
    with k.counted(usual.lanes) as at:
        address = k.offset(slot, k.mul(at, 4 if usual.single else 8))
        one = Vector(k, b.load(address, typ=usual.kind)).doubles()
        result = Vector(k, k.call(name, f64, [one.value]))
        b.store((result.singles() if usual.single else result).value, address)
    return where(mask, Vector(k, b.load(slot, typ=usual.value.type)), usual)
