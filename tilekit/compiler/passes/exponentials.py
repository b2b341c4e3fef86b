"""Exponentials of scores below their maximum, as softmax takes them: one fused multiply-add and one instruction each.

`tk.exp(s - h)`, where `h` is made of the largest element of each row of `s`, becomes `tk.exp2(tk.fma(x, c * log2(e), -h *
log2(e)), flush_to_zero=True)`, where `s` is `x * c`, or `x`; and the same of `tk.exp2`, and of `x / c`. Where `c` is positive,
the maximum is that of `x`, times `c`, which is the same number: rounding does not change the order of numbers. A constant is
known to be positive, and a parameter that was so at the launch, times a constant or not. By how much sums shrink when a maximum
grows, `tk.exp(m - tk.maximum(m, ...))`, becomes `tk.exp2((m - ...) * log2(e), flush_to_zero=True)`. Differences may be multiplied
by a positive number, as in `tk.exp2((s - h) * log2(e))`, and `h` be a number near 0 for rows that have no score.

Scores may be far from 0 because a mask makes them `-1e30`, as such or times zeros and ones, or because they are loaded, or
something loaded is added to them: a mask of such numbers. Of these it is the difference that is multiplied: where a whole row is
masked, it is 0. Else a maximum would be rounded by more than a power has room for.

Legal by the text of `tilekit.lang.exponential` for float32, where the call has no options: with `rounding_mode` or
`flush_to_zero` it stays as it is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tilekit import dtypes
from tilekit.compiler.ir.constants import number_in, number_of
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions
from tilekit.compiler.ir.products import product_of
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import ScalarType, TileType, sampling
from tilekit.compiler.passes.factors import is_view
from tilekit.lang import calculation, elementwise, exponential, indexed, memory, reduction

__all__ = ["fuse_exponentials"]

# By function, the factor of its powers of two.
_POWERS = {exponential.exp: math.log2(math.e), exponential.exp2: 1.0}
_ONE = Constant(1.0)
_NEAR = 1024.0  # a number that far off is rounded by less than 2^-13
_ROOM = 2.0**104  # of a number that much is left for factors
_LEAST = 2.0**-20  # see `facts.is_positive`
_LOADS = [Constant(memory.load), Constant(memory.load_tile_like), Constant(indexed.gather), "load"]
_FMA, _EXP2 = Constant(calculation.fma, "fma"), Constant(exponential.exp2, "exp2")


def fuse_exponentials(kernel: Region) -> None:
    """Rewrite such exponentials of a kernel."""
    defined = definitions(kernel)
    # Of what turns hand on a type says what it begins with.
    positive = {p for p in kernel.parameters if isinstance(p.type, ScalarType) and p.type.positive}
    streams = [(loop.regions[0].parameters, len(loop.results)) for loop in kernel.walk() if loop.kind == "stream"]
    streamed = {tile for parameters, carried in streams for tile in parameters[: len(parameters) - carried]}
    numbers = [number_in(value, defined) for value in defined]
    lowest = any(number is not None and -math.inf < number < -_ROOM for number in numbers)
    with sampling():
        for region in kernel.regions():
            for operation in list(region.operations):
                if operation.kind == "call" and operation.what.value in _POWERS and not operation.keywords:
                    _Exponential(operation, region, defined, positive, streamed, lowest).fuse()


class _Scores(NamedTuple):
    """Scores as tiles times a number, or divided by one.

    Attributes:
        tile: what is multiplied.
        factor: by what: a float, a number of the kernel's, or 1.0.
        masked: the mask and what stands where it is false, if the product is masked.
        symbol: `*`, or `/`.
    """

    tile: Operand
    factor: Operand
    masked: tuple[Operand, Operand] | None = None
    symbol: str = "*"


@dataclass
class _Exponential:
    """One of them.

    Attributes:
        power, region: the call, and where it stands.
        defined: what makes each value of the kernel.
        positive: numbers that are.
        streamed: the tiles that streams bring.
        lowest: whether maxima may begin with a number that has no room for a factor: rows whose scores are all -inf keep it.
    """

    power: Operation
    region: Region
    defined: dict[Value, Operation]
    positive: set[Value]
    streamed: set[Value]
    lowest: bool

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
            self.of_two(difference, exponent, "of scores that may be far from 0: by exp2")
            return
        if maxima is None and parts.masked is None and self.maximum_of(highest, parts.tile, parts) is not None:
            tile, scale = parts.tile, self.scaled(parts, exponent)
        elif maxima is None:
            return
        elif self.is_positive(parts.factor):
            tile = self.unscaled(parts, maxima, scores)
            scale = self.scaled(parts, exponent)
        elif parts.masked is None:
            tile, scale = parts.tile, self.scaled(parts, exponent)
        else:
            tile, scale = scores, exponent
        if self.lowest and exponent != _ONE:
            highest = self.before(self.power, "call", [highest, Constant(-_ROOM)], Constant(elementwise.maximum, "maximum"))
        shift = self.before(self.power, "unary", [self.times(highest, exponent)], "-")
        self.power.operands = [self.before(self.power, "call", [tile, scale, shift], _FMA)]
        self.power.what, self.power.keywords = _EXP2, {"flush_to_zero": Constant(True)}
        remark(self.power.location, "exponential", "of scores below their maximum: by a fused multiply-add and exp2")

    def difference(self) -> tuple[Operation | None, Operand]:
        """What it is the power of, and by what that is multiplied for one of two; None if it is no difference."""
        operand: Operand = self.power.operands[0]
        exponent: Operand = Constant(_POWERS[self.power.what.value])
        product = self.maker(operand, "binary", "*")
        for tile, factor in () if product is None else (product.operands, product.operands[::-1]):
            number = number_of(factor, self.defined)
            if self.is_positive(factor):
                operand, exponent = tile, self.times(factor if number is None else Constant(number), exponent)
        return self.maker(operand, "binary", "-"), exponent

    def shrink(self, difference: Operation, exponent: Operand) -> None:
        """That of a maximum and one with it."""
        (result,) = self.power.results
        growth = self.maker(difference.operands[1], "call", elementwise.maximum)
        if growth is None or growth.keywords or difference.operands[0] not in growth.operands:
            return
        if isinstance(result.type, TileType) and result.type.dtype == dtypes.float32:
            self.of_two(difference, exponent, "of how much a maximum grows: by exp2")

    def of_two(self, difference: Operation, exponent: Operand, what: str) -> None:
        """Make it a power of two of the difference, which is exact where both are the same."""
        self.power.operands = [self.times(difference.results[0], exponent)]
        self.power.what, self.power.keywords = _EXP2, {"flush_to_zero": Constant(True)}
        remark(self.power.location, "exponential", what)

    def may_be_far(self, scores: Operand) -> bool:
        """Whether a mask may leave -1e30 or the like of a whole row."""
        if scores in self.streamed:
            return True
        operation = self.defined.get(scores) if isinstance(scores, Value) else None
        if operation is None or not isinstance(operation.results[0].type, TileType):
            return False
        if operation.kind in ("call", "method") and operation.what in _LOADS:
            return True
        if (product := product_of(operation)) is not None:
            return product.total is not None and self.may_be_far(product.total)
        if operation.kind == "call" and operation.what.value is elementwise.where:
            _, tile, other = operation.operands
            return self.is_far(other) or self.may_be_far(tile) or self.may_be_far(other)
        if is_elementwise(operation) or is_view(operation) or operation.kind in ("item", "method"):
            tiles = [one for one in operation.operands if isinstance(one, Value) and isinstance(one.type, TileType)]
            numbers = [one for one in operation.operands if one not in tiles and self.is_far(one)]
            if numbers and operation.kind == "binary":
                known = any(number_of(one, self.defined) is not None for one in numbers)
                if known or (operation.what == "*" and any(map(self.is_of_truths, tiles))):
                    return True
            several = all if operation.what == "*" else any  # what is multiplied by scales is no mask
            return bool(tiles) and several(map(self.may_be_far, tiles))
        return False

    def is_of_truths(self, tile: Operand) -> bool:
        """Whether it is computed from a mask, as zeros and ones: times a number it is a mask as well."""
        operation = self.defined.get(tile) if isinstance(tile, Value) else None
        made = None if operation is None else operation.results[0].type
        if operation is None or not isinstance(made, TileType):
            return False
        if not (is_elementwise(operation) or is_view(operation) or operation.kind in ("item", "method")):
            return False
        return made.dtype == dtypes.bool_ or any(map(self.is_of_truths, operation.operands))

    def is_far(self, other: Operand) -> bool:
        """Whether it is a number, and none that is known to be -inf or near 0."""
        number = number_of(other, self.defined)
        scalar = isinstance(other, Constant) or (isinstance(other, Value) and isinstance(other.type, ScalarType))
        return scalar and (number is None or (number != -math.inf and abs(number) > _NEAR))

    def scaled(self, scores: _Scores, exponent: Operand) -> Operand:
        """The factor of scores, as one of powers of two."""
        factor, number = scores.factor, number_of(scores.factor, self.defined)
        if number is not None:
            return self.times(Constant(number if scores.symbol == "*" else 1 / number), exponent)
        return (
            self.times(factor, exponent) if scores.symbol == "*" else self.before(self.power, "binary", [exponent, factor], "/")
        )

    def times(self, operand: Operand, number: Operand) -> Operand:
        """A product with a number, computed ahead of the power if it is not known."""
        if isinstance(operand, Constant) and isinstance(number, Constant):
            return Constant(operand.value * number.value)
        if _ONE in (operand, number):
            return number if operand == _ONE else operand
        return self.before(self.power, "binary", [operand, number], "*")

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
        scaled = Operation("binary", [new, parts.factor], maxima.location, parts.symbol, results=[old])
        self.region.operations.insert(at, scaled)
        self.defined[old], self.defined[new] = scaled, maxima
        return tile

    def parts(self, scores: Operand) -> _Scores:
        masked = self.maker(scores, "call", elementwise.where)
        if masked is not None and not masked.keywords and number_of(masked.operands[2], self.defined) == -math.inf:
            inner = self.parts(masked.operands[1])
            if inner.masked is None and self.is_positive(inner.factor):
                return inner._replace(masked=(masked.operands[0], masked.operands[2]))
        for symbol in ("*", "/"):
            scaled = self.maker(scores, "binary", symbol)
            for tile, factor in () if scaled is None else (scaled.operands, scaled.operands[::-1])[: 2 if symbol == "*" else 1]:
                number = number_of(factor, self.defined)
                if number is None:
                    fits = isinstance(factor, Value) and isinstance(factor.type, ScalarType)
                else:
                    fits = 0 < number < math.inf and (symbol == "*" or _LEAST <= number <= 1 / _LEAST)
                if fits and isinstance(tile, Value) and isinstance(scores, Value) and tile.type == scores.type:
                    return _Scores(tile, factor, symbol=symbol)
        return _Scores(scores, _ONE)

    def is_positive(self, factor: Operand) -> bool:
        """Whether a number is known to be positive and finite."""
        number = number_of(factor, self.defined)
        if number is not None or factor in self.positive:
            return number is None or 0 < number < math.inf
        product = self.maker(factor, "binary", "*") or self.maker(factor, "binary", "/")
        if product is None:
            return False
        constants = [operand for operand in product.operands if isinstance(operand, Constant) and self.is_positive(operand)]
        others = [operand for operand in product.operands if operand in self.positive]
        return len(others) == 1 and len(constants) == 1 and _LEAST <= constants[0].value <= 1 / _LEAST

    def maximum_of(self, highest: Operand, scores: Operand, scale: _Scores | None = None) -> Operation | None:
        """What takes the largest of the scores of each row, if `highest` is that, scaled as others are, or a maximum with it."""
        operation = self.defined.get(highest) if isinstance(highest, Value) else None
        if operation is None:
            return None
        if operation.kind == "item" or (operation.kind == "method" and operation.what in ("reshape", "broadcast_to")):
            return self.maximum_of(operation.operands[0], scores, scale)
        if (
            scale is not None
            and (operation.kind, operation.what) == ("binary", scale.symbol)
            and scale.factor in operation.operands
        ):
            tile = next((x for x in operation.operands if x != scale.factor), scale.factor)
            return self.maximum_of(tile, scores) if scale.symbol == "*" or tile is operation.operands[0] else None
        if operation.kind != "call":
            return None
        if operation.what.value is elementwise.where and not operation.keywords:  # of rows that have no score
            _, *either = operation.operands
            near = [one for one in either if number_of(one, self.defined) is not None and not self.is_far(one)]
            others = [one for one in either if one not in near]
            return self.maximum_of(others[0], scores, scale) if len(near) == len(others) == 1 else None
        if operation.what.value is elementwise.maximum and not operation.keywords:
            maxima = (self.maximum_of(operand, scores, scale) for operand in operation.operands)
            return next((one for one in maxima if one is not None), None)
        if scale is not None:
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
