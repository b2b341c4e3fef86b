"""Conditions of masks: comparisons of sums of numbers and of places in a tile. Those of one tile are told all at once.

    s = tk.where(columns < n - j * 64, s, -inf)
    s = tk.where(columns + j * 64 <= rows + i * 64, s, -inf)

    s = tk.where(tilekit__within((64, 64), (0, 1, -1, 1), j * 64 - n + 1, j * 64 - i * 64), s, -inf)

which holds where `a * row + b * column + sum <= 0` for each sum and its factors: a thread compares its elements with constants.

Legal where the masks of a large tile are comparisons of `tk.arange` and ints, or of how far apart such are (`tk.abs`), joined by
`&`, or by `|` where none of them holds, and what they leave out is the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tilekit import dtypes
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.affine import Affine, affine, materialized
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Section, Value, definitions, values_of
from tilekit.compiler.ir.symbols import INVERSE, ORDERS
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.lang import calculation, create, elementwise, shape

__all__ = ["Condition", "Conditions", "gather_masks", "is_masked"]

_LARGE = 64 * 64  # elements of a tile: of fewer a mask costs less than more code
_DISTANCES = (calculation.abs_, abs)
_REPEATS = ["broadcast_to", Constant(shape.broadcast_to)]
_EXPANDS = ["reshape", Constant(shape.expand_dims)]
_MOST = 1 << 28  # a place in a tile, times its factor: sums of them and of `within`'s numbers are int32

Coordinates = Mapping[tuple[int, int], int]
"""The factor of each coordinate: by its dimension, counted from the last, and its extent."""


class Condition(NamedTuple):
    """It holds where a sum of numbers and coordinates is at most 0."""

    sum_: Affine
    coordinates: Coordinates

    @property
    def worst(self) -> Affine:
        """The largest sum of a tile: its condition holds for all of it where this is at most 0."""
        most = sum(factor * (extent - 1) for (_, extent), factor in self.coordinates.items() if factor > 0)
        return self.sum_.plus(Affine({}, most))


class Conditions:
    """What masks say."""

    def __init__(self, defined: dict[Value, Operation]) -> None:
        self.defined = defined

    def of(self, mask: Operand, *, inverse: bool = False) -> list[Condition] | None:
        """The conditions that a mask holds where all of them do; None if it is another. With `inverse`, that it does not hold."""
        operation = self._definition(mask)
        if operation is None:
            return None
        if operation.kind == "call" and operation.what.value is intrinsics.within:
            return None if inverse else self._within(operation)
        symbol = operation.what if operation.kind in ("binary", "compare", "unary") else None
        if symbol == "~":
            return self.of(operation.operands[0], inverse=not inverse)
        if symbol == ("|" if inverse else "&"):
            first, second = (self.of(part, inverse=inverse) for part in operation.operands)
            return None if first is None or second is None else first + second
        if symbol in ORDERS:
            return self._comparison(INVERSE[symbol] if inverse else symbol, *operation.operands)
        viewed = self.of(operation.operands[0], inverse=inverse) if _is_view(operation) else None
        return None if viewed is None else [_viewed(one, operation) for one in viewed]

    def _comparison(self, symbol: str, first: Operand, second: Operand) -> list[Condition] | None:
        low, high = (first, second) if symbol in ("<", "<=") else (second, first)
        distance, above = self._definition(low), self._sum(high)
        if distance is not None and distance.kind == "call" and distance.what.value in _DISTANCES:
            between = self._sum(distance.operands[0])
            below = [] if between is None else [between, _times(between, -1)]
        else:
            below = [one for one in [self._sum(low)] if one is not None]
        if not below or above is None:
            return None
        strict = Condition(Affine({}, int(symbol in ("<", ">"))), {})
        return [_plus(_plus(one, above, -1), strict) for one in below]

    def is_same(self, operand: Operand, other: Operand) -> bool:
        """Whether they are the same value, such as two `float("-inf")`; the zeros of either sign are two."""
        first, second = self._definition(operand), self._definition(other)
        if first is None or second is None or operand == other:
            return operand == other and repr(operand) == repr(other)
        forms = [(one.kind, one.what, one.operands, one.keywords) for one in (first, second)]
        return forms[0] == forms[1] and first.kind == "call" and first.what.value is float

    def _definition(self, operand: Operand) -> Operation | None:
        return self.defined.get(operand) if isinstance(operand, Value) else None

    def _within(self, operation: Operation) -> list[Condition] | None:
        extents, factors, *sums = operation.operands
        assert isinstance(extents, Constant) and isinstance(factors, Constant), "as `_within` makes it"
        conditions = []
        dims = [(d - 2, extent) for d, extent in enumerate(extents.value)]
        for at, operand in enumerate(sums):
            sum_, coordinates = affine(operand, self.defined), zip(dims, factors.value[2 * at :], strict=False)
            if sum_ is None:
                return None
            conditions.append(Condition(sum_, {dim: factor for dim, factor in coordinates if factor}))
        return conditions

    def _sum(self, operand: Operand) -> Condition | None:
        """An int, or a tile of ints, as numbers and coordinates."""
        number = affine(operand, self.defined)
        if number is not None:
            return Condition(number, {})
        operation = self._definition(operand)
        if operation is None or not isinstance(operand, Value) or not isinstance(operand.type, TileType):
            return None
        if operand.type.dtype not in (dtypes.int32, dtypes.int64):  # narrower ones wrap
            return None
        if operation.kind == "call" and operation.what.value is create.arange:
            start = affine(operation.keywords.get("start", Constant(0)), self.defined)
            step = operation.keywords.get("step", Constant(1))
            if start is None or not isinstance(step, Constant) or type(step.value) is not int:
                return None
            return Condition(start, {(-1, operand.type.shape[0]): step.value})
        if _is_view(operation) or (operation.kind == "method" and operation.what == "astype"):
            inner = self._sum(operation.operands[0])
            return None if inner is None else _viewed(inner, operation)
        if (operation.kind, operation.what) == ("unary", "-"):
            inner = self._sum(operation.operands[0])
            return None if inner is None else _times(inner, -1)
        if operation.kind == "binary" and operation.what in ("+", "-", "*"):
            first, second = (self._sum(part) for part in operation.operands)
            if first is None or second is None:
                return None
            return _product(first, second) if operation.what == "*" else _plus(first, second, 1 if operation.what == "+" else -1)
        return None


def _is_view(operation: Operation) -> bool:
    """Whether it is a tile with further dimensions of one element, or more of the same."""
    if operation.kind == "item":
        index = operation.operands[1].parts if isinstance(operation.operands[1], Group) else (operation.operands[1],)
        return all(part in (Section(Constant(None), Constant(None), Constant(None)), Constant(None)) for part in index)
    if operation.kind not in ("method", "call") or not isinstance(operation.operands[0], Value):
        return False
    inner, result = operation.operands[0].type, operation.results[0].type
    if not isinstance(inner, TileType) or not isinstance(result, TileType):
        return False
    if operation.what in _REPEATS:
        return True
    return operation.what in _EXPANDS and _long(inner) == _long(result)


def _long(tile: TileType) -> list[int]:
    """The extents of more than one element."""
    return [extent for extent in tile.shape if extent > 1]


def _viewed(one: Condition, view: Operation) -> Condition:
    """A sum of a tile, as one of a view of it, whose last dimensions are those of the tile, or all that are longer than 1."""
    assert isinstance(view.operands[0], Value), "a tile"
    inner, result = view.operands[0].type, view.results[0].type
    assert isinstance(inner, TileType) and isinstance(result, TileType), "as for `_is_view`"
    if view.what in _REPEATS:
        return one
    dims = [d - len(inner.shape) for d, extent in enumerate(inner.shape) if extent > 1]
    others = [d - len(result.shape) for d, extent in enumerate(result.shape) if extent > 1]
    there = dict(zip(dims, others, strict=True))
    return one._replace(coordinates={(there[d], n): factor for (d, n), factor in one.coordinates.items() if n > 1})


def _product(first: Condition, second: Condition) -> Condition | None:
    """A number that is known, times coordinates: nothing that wraps."""
    for number, other in ((first, second), (second, first)):
        if not number.coordinates and not number.sum_.terms and not other.sum_.terms:
            return _times(other, number.sum_.constant)
    return None


def _times(one: Condition, number: int) -> Condition:
    return Condition(one.sum_.times(number), {dim: factor * number for dim, factor in one.coordinates.items()})


def _plus(first: Condition, second: Condition, sign: int = 1) -> Condition:
    """Two sums, or their difference."""
    coordinates = dict(first.coordinates)
    for dimension, factor in second.coordinates.items():
        coordinates[dimension] = coordinates.get(dimension, 0) + sign * factor
    return Condition(first.sum_.plus(second.sum_, sign), {dim: factor for dim, factor in coordinates.items() if factor})


def is_masked(operation: Operation) -> bool:
    """Whether it masks a large tile."""
    if operation.kind != "call" or operation.what.value is not elementwise.where or operation.keywords:
        return False
    result = operation.results[0].type
    like = isinstance(operation.operands[1], Value) and operation.operands[1].type == result
    return like and isinstance(result, TileType) and math.prod(result.shape) >= _LARGE


def gather_masks(kernel: Region) -> None:
    """Let large tiles of two dimensions have one mask, of conditions, where it is legal; and one more, of those that no turn of a
    loop changes."""
    defined = definitions(kernel)
    conditions = Conditions(defined)
    reads = Counter(value for operation in kernel.walk() for value in operation.reads())
    reads.update(value for region in kernel.regions() for operand in region.operands for value in values_of(operand))
    with sampling():
        for region in kernel.regions():
            own = {*region.parameters, *(value for operation in region.operations for value in operation.results)}
            operations: list[Operation] = []
            for operation in region.operations:
                operations += _gathered(operation, conditions, reads, own) if is_masked(operation) else []
                operations.append(operation)
            region.operations = operations


def _gathered(masked: Operation, conditions: Conditions, reads: Counter[Value], own: set[Value]) -> list[Operation]:
    """Let a tile that is masked have such a mask, with those that were applied to it before; what it is made of. `own` is what
    belongs to its turn."""
    extents = masked.results[0].type.shape  # type: ignore[union-attr]
    holding = conditions.of(masked.operands[0])
    if holding is None or len(extents) != 2:
        return []
    tile, other = masked.operands[1:]
    while isinstance(tile, Value) and tile in conditions.defined and reads[tile] == 1:
        inner = conditions.defined[tile]
        before = conditions.of(inner.operands[0]) if is_masked(inner) and conditions.is_same(inner.operands[2], other) else None
        if before is None:
            break
        holding, tile = before + holding, inner.operands[1]
    dims = [(d - 2, extent) for d, extent in enumerate(extents)]
    if any(dim not in dims or abs(factor) * dim[1] > _MOST for each in holding for dim, factor in each.coordinates.items()):
        return []
    new = Insertion(masked.location, conditions.defined)
    late = [each for each in holding if any(value in own for value in each.sum_.terms)]
    early = [each for each in holding if each not in late]
    if early and late:
        tile = new.call(elementwise.where, _within(early, dims, new, own), tile, other)
    mask = _within(late or early, dims, new, own)
    masked.operands = [mask, tile, other]
    return new.operations


def _within(conditions: list[Condition], dims: list[tuple[int, int]], new: Insertion, own: set[Value]) -> Value:
    """The mask of a tile with these dimensions: where all conditions hold."""
    sums: list[Operand] = []
    for each in conditions:
        first = dict(sorted(each.sum_.terms.items(), key=lambda term: term[0] in own))  # what no turn changes
        operations, sum_ = materialized(Affine(first, each.sum_.constant), new.location)
        new.add(operations)
        sums.append(sum_)
    extents = tuple(extent for _, extent in dims)
    factors = tuple(each.coordinates.get(dim, 0) for each in conditions for dim in dims)
    mask = Value("within", TileType(dtypes.bool_, extents))
    call = Constant(intrinsics.within, "tilekit__within")
    new.add([Operation("call", [Constant(extents), Constant(factors), *sums], new.location, call, results=[mask])])
    return mask
