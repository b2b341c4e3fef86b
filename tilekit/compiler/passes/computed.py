"""First operands that are computed of a tile in a stage: each thread reads those elements that it multiplies.

Else it would read rows, as of a load, calculate, and exchange the results with others through shared memory, in each turn.

    ta in x.tiles(...)                                       ta in x.tiles(...)
    tk.mma((ta * 2.0).astype(ta.dtype), tb, acc)             tk.mma((tilekit__operand_tile(ta) * 2.0).astype(ta.dtype), tb, acc)

Legal always: it is the same tile. It is one that operations read which compute every element alone, and of what these make one
product takes its first operand; who else reads it, reads it where it lies.
"""

from __future__ import annotations

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.nodes import Constant, Operation, Region, Value
from tilekit.compiler.ir.products import accumulates, extents, product_of
from tilekit.compiler.ir.remarks import remark

__all__ = ["read_as_operands"]


def read_as_operands(kernel: Region) -> None:
    """Let threads read such tiles of a kernel's loops over streams as they multiply them."""
    for loop in [operation for operation in kernel.walk() if operation.kind == "stream"]:
        (body,) = loop.regions
        for tile in body.parameters[: len(body.parameters) - len(loop.results)]:
            readers = [operation for operation in body.operations if tile in operation.reads() and _computes(operation, tile)]
            readers = [operation for operation in readers if _is_multiplied(operation.results[0], body)]
            if readers:
                _read(tile, readers, body)


def _computes(operation: Operation, tile: Value) -> bool:
    return is_elementwise(operation) and len(extents(tile)) == 2 and extents(operation.results[0]) == extents(tile)


def _is_multiplied(value: Value, body: Region) -> bool:
    """Whether a product takes it, or what is computed of it, for its first operand."""
    for operation in body.operations:
        if value not in operation.reads():
            continue
        if accumulates(operation):
            product = product_of(operation)
            if product is not None and product.a is value:
                return True
        elif _computes(operation, value) and _is_multiplied(operation.results[0], body):
            return True
    return False


def _read(tile: Value, readers: list[Operation], body: Region) -> None:
    """Let operations of a turn read a tile so."""
    held = Value(tile.name, tile.type)
    function = Constant(intrinsics.operand_tile, "tilekit__operand_tile")
    read = Operation("call", [tile], readers[0].location, function, results=[held])
    for operation in readers:
        Region([], [operation]).replace({tile: held})
    body.operations.insert(body.operations.index(readers[0]), read)
    remark(read.location, "placement", "each thread reads the elements that it multiplies")
