"""Operands that stay: a tile that is loaded before a loop over streams, and multiplied in it, lies in shared memory.

Else each thread would hold its part of it in registers, all through the loop. The rest of what the tile is loaded for becomes a
loop over a stream of one tile.

Legal where the tensor is a parameter that is only read, the load has no options, products alone read the tile, in a loop over
streams that stands behind it, and nothing behind it leaves early.
"""

from __future__ import annotations

from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import (
    LOOPS,
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
from tilekit.compiler.passes.factors import Factors

__all__ = ["FOUND_OUT", "has_streams", "stage", "stage_operands"]

FOUND_OUT = Constant(False)
"""The option `rotate` of loops of one turn, of which another loop finds out the tile in each of its turns."""


def stage_operands(kernel: Region) -> None:
    """Let such tiles of a kernel be streams of one."""
    with sampling():
        factors = Factors(kernel)
        for region in list(kernel.regions()):
            for load in reversed(region.operations):
                if any(map(has_streams, region.operations)) and _stays(load, region, factors):
                    stage([load], region, stages=Constant(1))
                    remark(load.location, "staging", "the tile stays in shared memory, where the products of a loop read it")


def _stays(load: Operation, region: Region, factors: Factors) -> bool:
    """Whether it loads an operand of products in loops behind it."""
    if not factors.loads_one(load, large=False) or not factors.is_copied(load):
        return False
    behind = region.operations[region.operations.index(load) + 1 :]
    if any(inner.exit == "return" for operation in behind for each in operation.regions for inner in each.regions()):
        return False
    if region.exit not in ("yield", "return") or any(
        True for operation in behind if operation.kind == "if" for each in operation.regions for _ in each.jumps()
    ):
        return False
    inside = {inner for operation in behind if has_streams(operation) for each in operation.regions for inner in each.walk()}
    return any(product in inside for product in factors.products(load.results[0]))


def has_streams(operation: Operation) -> bool:
    """Whether it is a loop over streams, or has one in it."""
    inner = (each.kind for region in operation.regions for each in region.walk()) if operation.kind in LOOPS else ()
    return operation.kind == "stream" or "stream" in inner


def stage(loads: list[Operation], region: Region, **options: Operand) -> None:
    """Make what stands behind loads the one turn of a loop over streams of one tile each, with these options.

    The last operations of `region`, all of which may stand in a loop, begin with the loads.
    """
    rows, new = [], Insertion(loads[0].location)
    for load in loads:
        tensor, index, extents = load.operands
        parts: list[Operand] = list(index.parts) if isinstance(index, Group) else [index]
        dim = next((d for d in reversed(range(len(parts))) if isinstance(parts[d], Value)), 0)
        parts[dim] = Section(parts[dim], new.plus(parts[dim], 1), Constant(None))
        grid = new.emit("method", [tensor, extents], "tiles")
        rows.append(new.emit("item", [grid, Group(tuple(parts)) if len(parts) > 1 else parts[0]]))

    at = region.operations.index(loads[0])
    behind = region.operations[at + len(loads) :]
    produced = {value for operation in behind for value in operation.results}
    handed_on = list(dict.fromkeys(v for operand in region.operands for v in values_of(operand) if v in produced))
    parameters = [Value(value.name, value.type) for value in handed_on]
    tiles = [load.results[0] for load in loads]
    inner = Region([*tiles, *parameters], behind, "yield", list(handed_on), region.location)
    results = [Value(value.name, value.type) for value in handed_on]
    initial: list[Operand] = [UNDEFINED] * len(handed_on)
    stream = Operation("stream", [*rows, *initial], new.location, None, options, results=results, regions=[inner])
    region.operations = [*region.operations[:at], *new.operations, stream]
    ends = dict(zip(handed_on, results, strict=True))
    region.operands = [ends.get(operand, operand) if isinstance(operand, Value) else operand for operand in region.operands]
