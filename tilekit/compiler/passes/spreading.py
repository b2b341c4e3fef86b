"""Rows and columns that are loaded, and meet products: they are spread over tiles that lie as the products do.

    rows = tk.load(positions, i, 128)[:, None]             wide = tilekit__spread(tk.bfloat16, (128, 128), rows)
    for ...:                                               for ...:
        tk.where(columns <= rows, scores, -inf)                tk.where(tilekit__spread(..., columns) <= wide, scores, -inf)

What is made of a row and a column has no product among its operands: its elements would be computed as those of a load lie, and
all change threads through shared memory, in each turn. Each thread has one register for the elements of a row, or column, that
are the same.

Legal always: operations of each element alone would spread them so. What is calculated anywhere stays (`tk.arange`).
"""

from __future__ import annotations

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.constants import dtype_constant
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Value
from tilekit.compiler.ir.products import extents
from tilekit.compiler.ir.types import TileType
from tilekit.compiler.passes.factors import is_view
from tilekit.compiler.passes.fragments import Products
from tilekit.dtypes import DType
from tilekit.lang import memory

__all__ = ["spread_beside_products"]


def spread_beside_products(kernel: Region) -> None:
    """Spread such rows and columns of a kernel."""
    _Spread(kernel).region(kernel)


class _Spread:
    def __init__(self, kernel: Region) -> None:
        self.products = Products(kernel)
        self.definitions = {value: operation for operation in kernel.walk() for value in operation.results}
        self.regions = {operation: region for region in kernel.regions() for operation in region.operations}
        self.wide: dict[tuple[Value, tuple[int, ...]], Value] = {}

    def region(self, region: Region) -> None:
        for operation in list(region.operations):
            for inner in operation.regions:
                self.region(inner)
            if is_elementwise(operation) and len(extents(operation.results[0])) == 2:
                dtype = self.products.lies_as(operation.results[0])
                narrow = [value for value in dict.fromkeys(operation.reads()) if self.is_loaded(value)]
                if dtype is not None and narrow:
                    new = {value: self.spread(value, operation, dtype, region) for value in narrow}
                    Region([], [operation]).replace(new)

    def is_loaded(self, value: Value) -> bool:
        """Whether it is a row or a column that is loaded, or made of such alone."""
        operation = self.definitions.get(value)
        if operation is None or not isinstance(value.type, TileType) or len(extents(value)) != 1:
            return False
        if operation.kind == "call" and operation.what.value is memory.load:
            return True
        if not is_elementwise(operation) and not is_view(operation) and operation.kind != "item":
            return False
        tiles = [each for each in operation.reads() if isinstance(each.type, TileType) and extents(each)]
        return any(map(self.is_loaded, tiles)) and all(self.is_loaded(each) or self.is_anywhere(each) for each in tiles)

    def is_anywhere(self, value: Value) -> bool:
        """Whether it is made of no tile that anybody holds."""
        operation = self.definitions.get(value)
        if operation is None or operation.regions or (operation.kind == "call" and operation.what.value is memory.load):
            return False
        return all(self.is_anywhere(each) for each in operation.reads() if isinstance(each.type, TileType))

    def spread(self, value: Value, reader: Operation, dtype: DType, region: Region) -> Value:
        (result,) = reader.results
        assert isinstance(result.type, TileType) and isinstance(value.type, TileType), "looked at"
        shape, maker = result.type.shape, self.definitions[value]
        column = len(value.type.shape) == len(shape) and value.type.shape[-1] == 1
        key = value, shape
        if key not in self.wide or not column:
            wide = Value(value.name, TileType(value.type.dtype, shape))
            operands: list[Operand] = [dtype_constant(dtype), Group(tuple(map(Constant, shape))), value]
            call = Constant(intrinsics.spread, "tilekit__spread")
            spread = Operation("call", operands, reader.location, call, results=[wide])
            # Of a column each thread has few elements, which may stay in registers all through a loop.
            home, at = (self.regions[maker], maker) if column else (region, reader)
            home.operations.insert(home.operations.index(at) + column, spread)
            self.wide[key] = wide
        return self.wide[key]
