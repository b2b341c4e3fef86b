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
from tilekit.compiler.ir.nodes import LOOPS, Constant, Operand, Operation, Region, Value, values_of
from tilekit.compiler.ir.products import accumulates, product_of
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TensorType, TileType
from tilekit.dtypes import DType
from tilekit.lang import memory

__all__ = ["load_beside_products"]

_BESIDE = {
    memory.load: Constant(intrinsics.load_beside, "tilekit__load_beside"),
    memory.load_tile_like: Constant(intrinsics.load_tile_like_beside, "tilekit__load_tile_like_beside"),
}


def load_beside_products(kernel: Region) -> None:
    """Let such loads of a kernel bring the elements to where the product's are."""
    found = _Products(kernel)
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


class _Products:
    """The results of a kernel's products, and what is made of them element by element."""

    def __init__(self, kernel: Region) -> None:
        self._readers: dict[Value, list[Operation]] = {}
        for operation in kernel.walk():
            for value in operation.reads():
                self._readers.setdefault(value, []).append(operation)
        self._handed_on = {v for region in kernel.regions() for operand in region.operands for v in values_of(operand)}
        self._dtypes: dict[Value, DType] = {}  # of the operands of the product
        before = -1
        while before < len(self._dtypes):
            before = len(self._dtypes)
            for operation in kernel.walk():
                self._follow(operation)

    def _follow(self, operation: Operation) -> None:
        """Note what an operation makes of products."""
        product = product_of(operation) if accumulates(operation) else None
        if product is not None:
            if isinstance(product.b, Value) and isinstance(product.b.type, TileType):
                self._dtypes[operation.results[0]] = product.b.type.dtype
        elif operation.kind in LOOPS:
            for before, first, result in zip(operation.carried, operation.initial, operation.results, strict=True):
                ends = [end.operands[operation.carried.index(before)] for end in operation.ends()]
                self._note([first, *ends], [before, result])
        elif operation.kind == "if":
            for at, result in enumerate(operation.results):
                self._note([region.operands[at] for region in operation.regions if region.exit == "yield"], [result])
        elif is_elementwise(operation):
            self._note([v for v in operation.reads() if _extents(v) == _extents(operation.results[0])], operation.results)

    def _note(self, operands: list[Operand], made: list[Value]) -> None:
        dtype = next((self._dtypes[x] for x in operands if isinstance(x, Value) and x in self._dtypes), None)
        if dtype is not None:
            self._dtypes.update(dict.fromkeys(made, dtype))

    def met_by(self, tile: Value) -> DType | None:
        """The dtype of the operands of the product that meets a tile; None if something else reads it."""
        readers = self._readers.get(tile, [])
        if tile in self._handed_on or not readers or len(_extents(tile)) < 2:
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
        if not alone or _extents(reader.results[0]) != _extents(tile):
            return None
        return self._dtypes.get(reader.results[0]) or self.met_by(reader.results[0])


def _extents(value: Value) -> tuple[int, ...]:
    """A tile's extents, but for those of 1."""
    return tuple(n for n in value.type.shape if n > 1) if isinstance(value.type, TileType) else ()
