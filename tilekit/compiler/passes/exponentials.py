"""Exponentials of scores below their maximum, as softmax takes them: one fused multiply-add and one instruction each.

`tk.exp(s - h)`, where `h` is made of the largest element of each row of `s`, becomes `tk.exp2(tk.fma(x, c * log2(e), -h *
log2(e)), flush_to_zero=True)`, where `s` is `x * c`, or `x`; and the same of `tk.exp2`. Where `c` is positive, the maximum is
that of `x`, times `c`, which is the same number: rounding does not change the order of numbers. A constant is known to be
positive, and a parameter that was so at the launch, times a constant or not. By how much sums shrink when a maximum grows,
`tk.exp(m - tk.maximum(m, ...))`, becomes `tk.exp2((m - ...) * log2(e), flush_to_zero=True)`. Differences may be multiplied by a
positive constant, as in `tk.exp2((s - h) * log2(e))`. Of scores that a mask makes `-1e30`, or another number far from 0 but -inf,
it is the difference that is multiplied: where a whole row is masked, it is 0.

Legal by the text of `tilekit.lang.exponential` for float32, where the call has no options: with `rounding_mode` or
`flush_to_zero` it stays as it is written.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tilekit import dtypes
from tilekit.compiler.ir.constants import number_of
from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import ScalarType, TileType, sampling
from tilekit.lang import calculation, elementwise, exponential, reduction

__all__ = ["fuse_exponentials"]

# By function, the factor of its powers of two.
_POWERS = {exponential.exp: math.log2(math.e), exponential.exp2: 1.0}
_ONE = Constant(1.0)
_NEAR = 1024.0  # a number that far off is rounded by less than 2^-13
_LEAST = 2.0**-20  # see `facts.is_positive`
_FMA, _EXP2 = Constant(calculation.fma, "fma"), Constant(exponential.exp2, "exp2")


def fuse_exponentials(kernel: Region) -> None:
    """Rewrite such exponentials of a kernel."""
    with sampling():
        for region in kernel.regions():
            for operation in list(region.operations):
                if operation.kind == "call" and operation.what.value in _POWERS and not operation.keywords:
                    _Exponential(operation, region, kernel).fuse()


class _Scores(NamedTuple):
    """Scores as tiles times a number.

    Attributes:
        tile: what is multiplied.
        factor: by what: a float, a number of the kernel's, or 1.0.
        masked: the mask and what stands where it is false, if the product is masked.
    """

    tile: Operand
    factor: Operand
    masked: tuple[Operand, Operand] | None = None


class _Exponential:
    def __init__(self, power: Operation, region: Region, kernel: Region) -> None:
        self.power, self.region, self.defined = power, region, definitions(kernel)
        # Of what turns hand on a type says what it begins with.
        self.positive = {p for p in kernel.parameters if isinstance(p.type, ScalarType) and p.type.positive}

    def fuse(self) -> None:
        difference, exponent = self.difference()
        if difference is None:
            return
        if not _is_large(self.power.results[0]):
            self.shrink(difference, exponent)
            return
        scores, highest = difference.operands
        parts = self.parts(scores)
        maxima = self.maximum_of(highest, scores)
        if maxima is not None and self.may_be_far(scores):
            self.of_two(difference, exponent, "of scores that a mask may take far off: by exp2")
            return
        if maxima is None and parts.masked is None and self.maximum_of(highest, parts.tile, parts.factor) is not None:
            tile, scale = parts.tile, self.scaled(parts.factor, exponent)
        elif maxima is None:
            return
        elif self.is_positive(parts.factor):
            tile = self.unscaled(parts, maxima, scores)
            scale = self.scaled(parts.factor, exponent)
        elif parts.masked is None:
            tile, scale = parts.tile, self.scaled(parts.factor, exponent)
        else:
            tile, scale = scores, Constant(exponent)
        shift = highest if exponent == 1.0 else self.before(self.power, "binary", [highest, Constant(exponent)], "*")
        shift = self.before(self.power, "unary", [shift], "-")
        self.power.operands = [self.before(self.power, "call", [tile, scale, shift], _FMA)]
        self.power.what, self.power.keywords = _EXP2, {"flush_to_zero": Constant(True)}
        remark(self.power.location, "exponential", "of scores below their maximum: by a fused multiply-add and exp2")

    def difference(self) -> tuple[Operation | None, float]:
        """What it is the power of, and by what that is multiplied for one of two; None if it is no difference."""
        operand, exponent = self.power.operands[0], _POWERS[self.power.what.value]
        product = self.maker(operand, "binary", "*")
        for tile, factor in () if product is None else (product.operands, product.operands[::-1]):
            if isinstance(factor, Constant) and self.is_positive(factor):
                operand, exponent = tile, exponent * factor.value
        return self.maker(operand, "binary", "-"), exponent

    def shrink(self, difference: Operation, exponent: float) -> None:
        """That of a maximum and one with it."""
        (result,) = self.power.results
        growth = self.maker(difference.operands[1], "call", elementwise.maximum)
        if growth is None or growth.keywords or difference.operands[0] not in growth.operands:
            return
        if isinstance(result.type, TileType) and result.type.dtype == dtypes.float32:
            self.of_two(difference, exponent, "of how much a maximum grows: by exp2")

    def of_two(self, difference: Operation, exponent: float, what: str) -> None:
        """Make it a power of two of the difference, which is exact where both are the same."""
        self.power.operands = list(difference.results)
        if exponent != 1.0:
            self.power.operands = [self.before(self.power, "binary", [*difference.results, Constant(exponent)], "*")]
        self.power.what, self.power.keywords = _EXP2, {"flush_to_zero": Constant(True)}
        remark(self.power.location, "exponential", what)

    def may_be_far(self, scores: Operand) -> bool:
        """Whether a mask may leave -1e30 or the like of a whole row: the rounding of a maximum so far off, times a number, would
        be more than a power has room for."""
        operation = self.defined.get(scores) if isinstance(scores, Value) else None
        if operation is not None and operation.kind == "binary" and operation.what in ("*", "+", "-"):
            return any(self.may_be_far(operand) for operand in operation.operands)
        masked = self.maker(scores, "call", elementwise.where)
        if masked is None or masked.keywords:
            return False
        _, tile, other = masked.operands
        number = number_of(other, self.defined)
        scalar = isinstance(other, Constant) or (isinstance(other, Value) and isinstance(other.type, ScalarType))
        far = scalar and (number is None or (number != -math.inf and abs(number) > _NEAR))
        return far or self.may_be_far(tile)

    def scaled(self, factor: Operand, exponent: float) -> Operand:
        """A factor of scores, as one of powers of two."""
        if isinstance(factor, Constant):
            return Constant(factor.value * exponent)
        return factor if exponent == 1.0 else self.before(self.power, "binary", [factor, Constant(exponent)], "*")

    def unscaled(self, parts: _Scores, maxima: Operation, scores: Operand) -> Operand:
        """The scores before they are multiplied, of which the maximum is taken then, too."""
        if parts.factor == _ONE:
            return scores
        tile = parts.tile
        if parts.masked is not None:
            mask, other = parts.masked
            tile = self.before(maxima, "call", [mask, tile, other], Constant(elementwise.where, "where"))
        (old,) = maxima.results
        new = Value(old.name, old.type)
        maxima.operands[0], maxima.results = tile, [new]
        at = self.region.operations.index(maxima) + 1
        scaled = Operation("binary", [new, parts.factor], maxima.location, "*", results=[old])
        self.region.operations.insert(at, scaled)
        self.defined[old], self.defined[new] = scaled, maxima
        return tile

    def parts(self, scores: Operand) -> _Scores:
        masked = self.maker(scores, "call", elementwise.where)
        if masked is not None and not masked.keywords and number_of(masked.operands[2], self.defined) == -math.inf:
            inner = self.parts(masked.operands[1])
            if inner.masked is None and self.is_positive(inner.factor):
                return inner._replace(masked=(masked.operands[0], masked.operands[2]))
        product = self.maker(scores, "binary", "*")
        for tile, factor in () if product is None else (product.operands, product.operands[::-1]):
            number = isinstance(factor, Value) and isinstance(factor.type, ScalarType)
            if (
                (number or self.is_positive(factor))
                and isinstance(tile, Value)
                and isinstance(scores, Value)
                and tile.type == scores.type
            ):
                return _Scores(tile, factor)
        return _Scores(scores, _ONE)

    def is_positive(self, factor: Operand) -> bool:
        """Whether a number is known to be positive and finite."""
        if isinstance(factor, Constant):
            return type(factor.value) in (int, float) and 0 < factor.value < math.inf
        if factor in self.positive:
            return True
        product = self.maker(factor, "binary", "*") or self.maker(factor, "binary", "/")
        if product is None:
            return False
        constants = [operand for operand in product.operands if isinstance(operand, Constant) and self.is_positive(operand)]
        others = [operand for operand in product.operands if operand in self.positive]
        return len(others) == 1 and len(constants) == 1 and _LEAST <= constants[0].value <= 1 / _LEAST

    def maximum_of(self, highest: Operand, scores: Operand, factor: Operand = _ONE) -> Operation | None:
        """What takes the largest of the scores of each row, if `highest` is that, times the factor, or a maximum with it."""
        operation = self.defined.get(highest) if isinstance(highest, Value) else None
        if operation is None:
            return None
        if operation.kind == "item" or (operation.kind == "method" and operation.what in ("reshape", "broadcast_to")):
            return self.maximum_of(operation.operands[0], scores, factor)
        if (operation.kind, operation.what) == ("binary", "*") and factor != _ONE and factor in operation.operands:
            return self.maximum_of(next(x for x in operation.operands if x != factor), scores)
        if operation.kind != "call":
            return None
        if operation.what.value is elementwise.maximum and not operation.keywords:
            maxima = (self.maximum_of(operand, scores, factor) for operand in operation.operands)
            return next((one for one in maxima if one is not None), None)
        if factor != _ONE:
            return None
        plain = not operation.keywords.keys() - {"axis", "keepdims"} and operation in self.region.operations
        return operation if operation.what.value is reduction.max_ and plain and operation.operands[0] is scores else None

    def maker(self, operand: Operand, kind: str, what: object) -> Operation | None:
        operation = self.defined.get(operand) if isinstance(operand, Value) else None
        if operation is None or operation.kind != kind:
            return None
        actual = operation.what.value if isinstance(operation.what, Constant) else operation.what
        return operation if actual is what or actual == what else None

    def before(self, following: Operation, kind: str, operands: list[Operand], what: object) -> Value:
        operation = Operation(kind, operands, following.location, what)
        result = infer(operation)
        assert isinstance(result, Value), "a tile or a number"
        operation.results = [Value("t", result.type)]
        self.region.operations.insert(self.region.operations.index(following), operation)
        self.defined[operation.results[0]] = operation
        return operation.results[0]


def _is_large(value: Value) -> bool:
    """Whether it has rows: of their maxima alone nothing is gained."""
    ty = value.type
    return isinstance(ty, TileType) and ty.dtype == dtypes.float32 and len(ty.shape) > 1 and min(ty.shape) > 1
