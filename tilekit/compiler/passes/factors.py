"""Operands of products: the tiles that tensor cores multiply, and the loads that bring them."""

from __future__ import annotations

import math
from collections import Counter

from tilekit import dtypes
from tilekit.compiler.facts import TensorFacts
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.products import accumulates
from tilekit.compiler.ir.types import TensorType, TileType
from tilekit.compiler.layouts.linear import ACCESS_BYTES
from tilekit.compiler.passes.multiples import divisor_of, slice_of
from tilekit.lang import memory, shape

__all__ = ["LARGE", "Factors", "is_view"]

_VIEW_METHODS, _VIEWS = ("permute", "reshape", "transpose"), (shape.permute, shape.reshape, shape.transpose)
_LEAST_ROW_BYTES, _LEAST_ROWS = 32, 8  # of a tile in a stage
LARGE = 64 * 64  # elements of a result: of fewer, the warps that load ahead would be more than those that multiply


class Factors:
    """The operands of a kernel's products.

    Attributes:
        definitions: what makes each value of the kernel.
    """

    def __init__(self, kernel: Region) -> None:
        self.definitions = definitions(kernel)
        self._readers: dict[Value, list[Operation]] = {}
        for operation in kernel.walk():
            for value in operation.reads():
                self._readers.setdefault(value, []).append(operation)
        self._handed_on = Counter(v for region in kernel.regions() for operand in region.operands for v in values_of(operand))
        self._chosen: dict[Value, list[Value]] = {}
        for operation in kernel.walk():
            for region in operation.regions if operation.kind == "if" and operation.results else ():
                for operand, result in zip(region.operands, operation.results, strict=False):
                    if isinstance(operand, Value) and region.exit == "yield":
                        self._chosen.setdefault(operand, []).append(result)

    def loads_one(self, operation: Operation, *, large: bool = True, computed: bool = False) -> bool:
        """Whether an operation loads an operand of products, and of nothing else; of `large` ones, or of any. If it may be
        `computed`, it loads what an operand is made of; and others may read it, too.
        """
        if operation.kind != "call" or operation.what.value is not memory.load:
            return False
        tile = operation.results[0]
        if not isinstance(tile.type, TileType) or not tile.type.shape:
            return False
        if not computed or not self._is_staged(operation):
            return self.is_one(tile, large=large)
        return self._is_among_them(tile, large=large)

    def is_one(self, tile: Value, *, large: bool = True, computed: bool = False) -> bool:
        """Whether products have a tile for an operand, perhaps by way of views, and nothing else reads it."""
        if self._is_carried(tile) if computed else self._handed_on[tile]:
            return False
        ways = [self._multiplies(reader, tile, large=large, computed=computed) for reader in self._readers.get(tile, [])]
        ways += [self.is_one(result, large=large, computed=True) for result in self._chosen.get(tile, [])]
        return bool(ways) and all(ways)

    def _is_among_them(self, tile: Value, *, large: bool) -> bool:
        """Whether products have a tile, or what is made of it, for an operand, whatever else reads it."""
        if self._is_carried(tile):
            return False
        ways = [self._multiplies(reader, tile, large=large, computed=True) for reader in self._readers.get(tile, [])]
        return any(ways) or any(self.is_one(result, large=large, computed=True) for result in self._chosen.get(tile, []))

    def _is_carried(self, tile: Value) -> bool:
        """Whether a turn of a loop hands it on to the next one."""
        return self._handed_on[tile] > len(self._chosen.get(tile, []))

    def _is_staged(self, load: Operation) -> bool:
        """Whether a tile can lie in a stage. One of which an operand is made need not: nothing is lost if it does not try."""
        tile, facts = load.results[0].type, self._facts(load)
        if not isinstance(tile, TileType) or facts is None or facts.unit is None or len(tile.shape) != facts.rank:
            return False
        along = tile.shape[facts.unit]
        return along * tile.dtype.itemsize >= _LEAST_ROW_BYTES and math.prod(tile.shape) // along >= _LEAST_ROWS

    def is_copied(self, load: Operation) -> bool:
        """Whether a load can be a copy made while the kernel runs."""
        return self.refusal(load) is None

    def refusal(self, load: Operation) -> str | None:
        """Why not: it has options, or its tensor is written, too, or part of one that does not lie at multiples of 4 bytes."""
        reason = None
        options, facts = [name for name in load.keywords if name != "eviction_policy"], self._facts(load)
        if options:
            reason = f"the load has {options[0]}="
        elif facts is None or facts.unit is None:
            reason = (
                "it is no tensor whose rows or columns are contiguous, nor a slice that begins at a multiple of 16 bytes of them"
            )
        elif facts.role != "in":
            reason = "the tensor is written, too"
        else:
            itemsize = dtypes.as_dtype(facts.dtype).itemsize
            strides = [stride * itemsize for d, stride in enumerate(facts.strides) if d != facts.unit]
            if facts.align % 4 or any(stride % 4 for stride in strides):
                reason = "its rows do not lie at multiples of 4 bytes"
        return reason

    def _facts(self, load: Operation) -> TensorFacts | None:
        """Those of the tensor that a load is of, or of which it is some rows, or columns from a multiple of 16 bytes on."""
        tensor, cut = load.operands[0], list[tuple[int, Operand]]()
        while isinstance(tensor, Value) and (part := self.definitions.get(tensor)) is not None:
            axis, start, _ = slice_of(part) or (None, None, None)
            if start is None or not isinstance(axis, Constant):
                return None
            tensor = part.operands[0]
            cut.append((axis.value, start))
        if not isinstance(tensor, Value) or not isinstance(tensor.type, TensorType):
            return None
        facts = tensor.type.facts
        starts = [start for axis, start in cut if axis % facts.rank == facts.unit]
        itemsize = dtypes.as_dtype(facts.dtype).itemsize
        whole = all(divisor_of(start, self.definitions) * itemsize % ACCESS_BYTES == 0 for start in starts)
        return facts if whole else None

    def products(self, tile: Value) -> list[Operation]:
        """The products that have it for an operand, where it is one."""
        products = []
        for reader in self._readers.get(tile, []):
            products += [reader] if accumulates(reader) else self.products(reader.results[0])
        return products

    def _multiplies(self, reader: Operation, tile: Value, *, large: bool, computed: bool) -> bool:
        if accumulates(reader):
            result = reader.results[0].type
            enough = isinstance(result, TileType) and (math.prod(result.shape) >= LARGE or not large)
            return enough and _by_tensor_cores(reader, tile) and all(tile is not operand for operand in reader.operands[2:])
        if computed and is_elementwise(reader):
            made = reader.results[0]
            alike = isinstance(made.type, TileType) and isinstance(tile.type, TileType) and made.type.shape == tile.type.shape
            if alike and all(self._is_of_loads(value) for value in reader.reads()):
                return self._is_among_them(made, large=large)
            return alike and self.is_one(made, large=large, computed=True)
        if computed and _rearranges(reader):
            return self.is_one(reader.results[0], large=large, computed=True)
        return is_view(reader) and self.is_one(reader.results[0], large=large, computed=computed)

    def _is_of_loads(self, value: Value) -> bool:
        """Whether a value is made of loads and numbers alone: of no product, and of nothing that turns hand on."""
        if not isinstance(value.type, TileType):
            return True
        if (made := self.definitions.get(value)) is None or made.regions or accumulates(made):
            return False
        return all(map(self._is_of_loads, made.reads()))


def is_view(operation: Operation) -> bool:
    """Whether it is a tile in another shape, or with its dimensions in another order: in shared memory it stays where it is."""
    if operation.kind == "method":
        return operation.what in _VIEW_METHODS
    return operation.kind == "call" and operation.what.value in _VIEWS


def _rearranges(operation: Operation) -> bool:
    """Whether it makes a tile of the elements of some."""
    if operation.kind == "item":
        return len(operation.results) == 1 and isinstance(operation.results[0].type, TileType)
    return operation.kind == "call" and operation.what.value in (shape.cat, shape.expand_dims)


def _by_tensor_cores(product: Operation, tile: Value) -> bool:
    """Whether the operands are multiplied faster than they come: not so of float64, and of float32 as it is."""
    tf32 = product.keywords.get("precision") == Constant("tf32")
    return isinstance(tile.type, TileType) and (tile.type.dtype.itemsize <= 2 or (tf32 and tile.type.dtype.itemsize == 4))
