"""Loads that meet products: each thread loads those elements that it has of the product.

Else they come as rows, and change threads through shared memory, of which a ring is to have as much as can be.

    acc + tk.load(c, (i, j), (128, 256)).astype(tk.float32)          tilekit__load_beside(tk.bfloat16, c, (i, j), (128, 256))

Legal always: it is the same load. It is one where each operation that reads the tile computes every element alone, and a product,
or what such operations make of one, is among their operands; or where a product is added to the tile.
"""

from __future__ import annotations

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.constants import dtype_constant
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.nodes import LOOPS, Constant, Operation, Region, Value, values_of
from tilekit.compiler.ir.products import accumulates, extents, of_products, product_of
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TensorType
from tilekit.dtypes import DType
from tilekit.lang import memory

__all__ = ["Products", "load_beside_products"]

_BESIDE = {
    memory.load: Constant(intrinsics.load_beside, "tilekit__load_beside"),
    memory.load_tile_like: Constant(intrinsics.load_tile_like_beside, "tilekit__load_tile_like_beside"),
}


def load_beside_products(kernel: Region) -> None:
    """Let such loads of a kernel bring the elements to where the product's are."""
    found = Products(kernel)
    for operation in kernel.walk():
        if _is_load(operation):
            dtype = found.met_by(operation.results[0])
            if dtype is not None:
                _bring(operation, dtype)
                remark(operation.location, "placement", "each thread loads the elements that it has of the product")


def _is_load(operation: Operation) -> bool:
    owner = operation.operands[0] if operation.operands else None
    if operation.kind == "method":
        return operation.what == "load" and isinstance(owner, Value) and isinstance(owner.type, TensorType)
    return operation.kind == "call" and operation.what.value in _BESIDE


def _bring(load: Operation, dtype: DType) -> None:
    what = load.what.value if load.kind == "call" else memory.load_tile_like
    if load.kind == "method":  # of the block's own tile, or of one of a mapped partition
        tile = load.keywords.pop("tile", None)
        load.operands = [load.operands[0], *([tile] if tile else load.operands[1:] or load.operands)]
    load.kind, load.what, load.operands = "call", _BESIDE[what], [dtype_constant(dtype), *load.operands]


class Products:
    """The results of a kernel's products and who reads them."""

    def __init__(self, kernel: Region) -> None:
        self._readers: dict[Value, list[Operation]] = {}
        for operation in kernel.walk():
            for value in operation.reads():
                self._readers.setdefault(value, []).append(operation)
        self._handed_on = {v for region in kernel.regions() for operand in region.operands for v in values_of(operand)}
        self._dtypes = of_products(kernel)

    def lies_as(self, tile: Value) -> DType | None:
        """The dtype of the operands of the product that a tile is made of, or meets; None if there is none."""
        return self._dtypes.get(tile) or self.met_by(tile)

    def met_by(self, tile: Value) -> DType | None:
        """The dtype of the operands of the product that meets a tile; None if something else reads it."""
        readers = self._readers.get(tile, [])
        if tile in self._handed_on or not readers or len(extents(tile)) < 2:
            return None
        dtypes = [self._met_in(reader, tile) for reader in readers]
        return dtypes[0] if all(dtype is not None for dtype in dtypes) else None

    def _met_in(self, reader: Operation, tile: Value) -> DType | None:
        if accumulates(reader):
            product = product_of(reader)
            added = product is not None and product.total is tile and tile not in (product.a, product.b)
            return self._dtypes.get(reader.results[0]) if added else None
        if reader.kind in LOOPS:
            carried = [each for each, first in zip(reader.carried, reader.initial, strict=True) if first is tile]
            return self._dtypes.get(carried[0]) if carried else None
        alone = is_elementwise(reader) or (reader.kind, reader.what) == ("method", "reshape")
        if not alone or extents(reader.results[0]) != extents(tile):
            return None
        return self._dtypes.get(reader.results[0]) or self.met_by(reader.results[0])
