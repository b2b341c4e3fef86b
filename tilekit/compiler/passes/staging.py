"""Operands that stay: a tile that is loaded before a loop over streams, and multiplied in it, lies in shared memory.

Else each thread would hold its part of it in registers, all through the loop. The rest of what the tile is loaded for becomes a
loop over a stream of one tile.

Legal where the tensor is a parameter that is only read, the load has no options, products alone read the tile, in a loop over
streams that stands behind it, and nothing behind it leaves early.
"""

from __future__ import annotations

from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import (
    UNDEFINED,
    Constant,
    Group,
    Operand,
    Operation,
    Region,
    Section,
    Value,
    values_of,
)
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import sampling
from tilekit.compiler.passes.factors import Factors, is_copied

__all__ = ["stage_operands"]


def stage_operands(kernel: Region) -> None:
    """Let such tiles of a kernel be streams of one."""
    with sampling():
        factors = Factors(kernel)
        for region in list(kernel.regions()):
            for load in reversed(region.operations):
                if any(operation.kind == "stream" for operation in region.operations) and _stays(load, region, factors):
                    _stage(load, region)
                    remark(load.location, "staging", "the tile stays in shared memory, where the products of a loop read it")


def _stays(load: Operation, region: Region, factors: Factors) -> bool:
    """Whether it loads an operand of products in loops behind it."""
    if not factors.loads_one(load) or not is_copied(load):
        return False
    behind = region.operations[region.operations.index(load) + 1 :]
    if any(inner.exit == "return" for operation in behind for each in operation.regions for inner in each.regions()):
        return False
    if region.exit not in ("yield", "return") or any(
        True for operation in behind if operation.kind == "if" for each in operation.regions for _ in each.jumps()
    ):
        return False
    inside = {inner for operation in behind if operation.kind == "stream" for inner in operation.regions[0].walk()}
    return any(product in inside for product in factors.products(load.results[0]))


def _stage(load: Operation, region: Region) -> None:
    at = region.operations.index(load)
    tensor, index, extents = load.operands
    parts: list[Operand] = list(index.parts) if isinstance(index, Group) else [index]
    dim = next((d for d in reversed(range(len(parts))) if isinstance(parts[d], Value)), 0)
    start, new = parts[dim], Insertion(load.location)
    parts[dim] = Section(start, new.plus(start, 1), Constant(None))
    grid = new.emit("method", [tensor, extents], "tiles")
    row = new.emit("item", [grid, Group(tuple(parts)) if len(parts) > 1 else parts[0]])

    behind = region.operations[at + 1 :]
    produced = {value for operation in behind for value in operation.results}
    handed_on = list(dict.fromkeys(v for operand in region.operands for v in values_of(operand) if v in produced))
    parameters = [Value(value.name, value.type) for value in handed_on]
    inner = Region([load.results[0], *parameters], behind, "yield", list(handed_on), region.location)
    results = [Value(value.name, value.type) for value in handed_on]
    initial: list[Operand] = [UNDEFINED] * len(handed_on)
    stream = Operation("stream", [row, *initial], load.location, None, {"stages": Constant(1)}, results=results, regions=[inner])
    region.operations = [*region.operations[:at], *new.operations, stream]
    ends = dict(zip(handed_on, results, strict=True))
    region.operands = [ends.get(operand, operand) if isinstance(operand, Value) else operand for operand in region.operands]
