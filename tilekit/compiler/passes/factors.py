"""Operands of products: the tiles that tensor cores multiply, and the loads that bring them."""

from __future__ import annotations

import math
from collections import Counter

from tilekit import dtypes
from tilekit.compiler.ir.nodes import Constant, Operation, Region, Value, values_of
from tilekit.compiler.ir.products import accumulates
from tilekit.compiler.ir.types import TensorType, TileType
from tilekit.lang import memory, shape

__all__ = ["Factors", "is_copied", "is_view"]

_VIEW_METHODS, _VIEWS = ("permute", "reshape", "transpose"), (shape.permute, shape.reshape, shape.transpose)
_LARGE = 64 * 64  # elements of a result: of fewer, the warps that load ahead would be more than those that multiply


class Factors:
    """The operands of a kernel's products."""

    def __init__(self, kernel: Region) -> None:
        self._readers: dict[Value, list[Operation]] = {}
        for operation in kernel.walk():
            for value in operation.reads():
                self._readers.setdefault(value, []).append(operation)
        self._handed_on = Counter(v for region in kernel.regions() for operand in region.operands for v in values_of(operand))

    def loads_one(self, operation: Operation, *, large: bool = True) -> bool:
        """Whether an operation loads an operand of products, and of nothing else; of `large` ones, or of any."""
        if operation.kind != "call" or operation.what.value is not memory.load:
            return False
        tile = operation.results[0]
        return isinstance(tile.type, TileType) and bool(tile.type.shape) and self.is_one(tile, large=large)

    def is_one(self, tile: Value, *, large: bool = True) -> bool:
        """Whether products have a tile for an operand, perhaps by way of views, and nothing else reads it."""
        if self._handed_on[tile]:
            return False
        readers = self._readers.get(tile, [])
        return bool(readers) and all(self._multiplies(reader, tile, large=large) for reader in readers)

    def products(self, tile: Value) -> list[Operation]:
        """The products that have it for an operand, where it is one."""
        products = []
        for reader in self._readers.get(tile, []):
            products += [reader] if accumulates(reader) else self.products(reader.results[0])
        return products

    def _multiplies(self, reader: Operation, tile: Value, *, large: bool) -> bool:
        if accumulates(reader):
            result = reader.results[0].type
            enough = isinstance(result, TileType) and (math.prod(result.shape) >= _LARGE or not large)
            return enough and _by_tensor_cores(reader, tile) and all(tile is not operand for operand in reader.operands[2:])
        return is_view(reader) and self.is_one(reader.results[0], large=large)


def is_view(operation: Operation) -> bool:
    """Whether it is a tile in another shape, or with its dimensions in another order: in shared memory it stays where it is."""
    if operation.kind == "method":
        return operation.what in _VIEW_METHODS
    return operation.kind == "call" and operation.what.value in _VIEWS


def is_copied(load: Operation) -> bool:
    """Whether a load can be a copy made while the kernel runs: without options, of a tensor that is only read, and lies at
    multiples of 4 bytes."""
    tensor = load.operands[0]
    if len(load.operands) != 3 or load.keywords or not isinstance(tensor, Value) or not isinstance(tensor.type, TensorType):
        return False
    facts = tensor.type.facts
    itemsize = dtypes.as_dtype(facts.dtype).itemsize
    apart = all(stride * itemsize % 4 == 0 for d, stride in enumerate(facts.strides) if d != facts.unit)
    return facts.role == "in" and facts.unit is not None and facts.align % 4 == 0 and apart


def _by_tensor_cores(product: Operation, tile: Value) -> bool:
    """Whether the operands are multiplied faster than they come: not so of float64, and of float32 as it is."""
    tf32 = product.keywords.get("precision") == Constant("tf32")
    return isinstance(tile.type, TileType) and (tile.type.dtype.itemsize <= 2 or (tf32 and tile.type.dtype.itemsize == 4))
