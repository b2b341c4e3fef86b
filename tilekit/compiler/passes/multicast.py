"""Cluster multicast, a uniformity analysis: which tiles blocks of a cluster load alike, so that one copy may come to all of them.

The blocks of a cluster visit neighbouring tiles of a mapped partition. Along a dimension in which the cluster has several tiles,
a stream of tiles is the same for all blocks if nothing that it is made of differs between them: not the block's number, nor the
tile's index along this dimension. And all blocks of the cluster must go the same ways, as often: nothing that differs may decide
about a loop over streams, or how long they are; and none may be gone (`return`). What is not seen to be alike counts as
different.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilekit.compiler.ir.nodes import LOOPS, Group, Operand, Operation, Region, Section, Value, values_of
from tilekit.compiler.ir.types import TensorType
from tilekit.lang import memory

__all__ = ["alike"]


def alike(kernel: Region, loops: list[Operation], defined: Mapping[Value, Operation]) -> dict[Operation, list[int]]:
    """For each stream of each loop, the dimensions of the cluster, a bit each, along which it is uniform: alike in all blocks.

    Args:
        kernel: the kernel.
        loops: its loops over streams.
        defined: what makes its values.
    """
    streams = {loop: loop.operands[: len(loop.operands) - len(loop.results)] for loop in loops}
    shared = {loop: [0] * len(operands) for loop, operands in streams.items()}
    tensors = [value for value in kernel.parameters if isinstance(value.type, TensorType)]
    clusters = {value: value.type.facts.cluster for value in tensors if value.type.facts.cluster}  # type: ignore[union-attr]
    if len(clusters) != 1 or any(region.exit == "return" for region in kernel.regions() if region is not kernel):
        return shared
    ((partition, cluster),) = clusters.items()
    axes = [axis for axis, blocks in enumerate(cluster) if blocks > 1]
    differing = {axis: _Differing(kernel, partition, axis, defined) for axis in axes}
    rows = [defined[row] for operands in streams.values() for row in operands if isinstance(row, Value) and row in defined]
    bounds = [bound for row in rows for bound in _bounds(row)]
    around = list(_around(kernel, loops))
    if any(any(map(one.decides, around)) or any(map(one.of, bounds)) for one in differing.values()):
        return shared
    return {loop: [sum(1 << axis for axis in axes if not differing[axis].of(row)) for row in streams[loop]] for loop in loops}


class _Differing:
    """Uniformity: the values that may differ between the blocks of a cluster along one of its dimensions.

    Attributes:
        values: these.
        visits: the loops over the tiles of the partition that has clusters, of which all blocks visit equally many.
    """

    def __init__(self, kernel: Region, partition: Value, axis: int, defined: Mapping[Value, Operation]) -> None:
        self.values: set[Value] = set()
        self.visits: set[Operation] = set()
        self._tiles: set[Value] = set()
        self._axis = axis
        for loop in [operation for operation in kernel.walk() if operation.kind == "each"]:
            over = defined.get(loop.operands[0]) if isinstance(loop.operands[0], Value) else None
            if over is not None and (over.kind, over.what, over.operands[0]) == ("method", "tiles", partition):
                self.visits.add(loop)
                self._tiles.add(loop.regions[0].parameters[0])
        before = -1
        while before < len(self.values):
            before = len(self.values)
            for operation in kernel.walk():
                self.values.update(self._made(operation))

    def of(self, operand: Operand) -> bool:
        """Whether what an operand is differs."""
        return any(value in self.values or value in self._tiles for value in values_of(operand))

    def decides(self, operation: Operation) -> bool:
        """Whether what stands in a branch or loop may run in one block and not in another, or more often."""
        if operation.kind not in LOOPS:
            return self.of(operation.operands[0])
        over = operation.operands[: len(operation.operands) - len(operation.results)]
        differs = operation not in self.visits if operation.kind == "each" else any(map(self.of, over))
        return differs or any(map(self.decides, operation.regions[0].ways_out()))

    def _made(self, operation: Operation) -> list[Value]:
        """Of what an operation defines, what differs; of a loop, of what it carries, too."""
        indexed = operation.kind == "attribute" and operation.what == "index" and operation.operands[0] in self._tiles
        if indexed and len(operation.results) > 1:
            return [operation.results[self._axis]]
        if not operation.regions:
            asked = [operation, *(operation.what.walk() if operation.kind == "gathered" else ())]
            own = any(one.kind == "call" and one.what.value is memory.bid for one in asked)
            differs = own or any(map(self.of, (*operation.operands, *operation.keywords.values())))
            return operation.results if differs else []
        if self.decides(operation):
            return [*operation.results, *(value for region in operation.regions for value in region.parameters)]
        ways = list(operation.ends()) if operation.kind in LOOPS else [r for r in operation.regions if r.exit == "yield"]
        columns: list[Sequence[Operand]] = [region.operands for region in ways]
        if operation.kind in LOOPS:
            columns += [operation.initial, operation.carried]
        differing = [at for at, _ in enumerate(operation.results) if any(self.of(column[at]) for column in columns)]
        carried = operation.carried if operation.kind in LOOPS else operation.results
        return [value for at in differing for value in (operation.results[at], carried[at])]


def _around(region: Region, loops: list[Operation]) -> Iterator[Operation]:
    """The branches and loops that a loop stands in."""
    for operation in region.operations:
        inside = any(inner in loops for each in operation.regions for inner in each.walk())
        if inside:
            yield operation
            for each in operation.regions:
                yield from _around(each, loops)


def _bounds(row: Operation) -> Iterator[Operand]:
    """What decides how many tiles a stream has."""
    if row.kind == "gathered":
        yield from row.operands[2:4]
    index = row.operands[1] if row.kind == "item" else Group(())
    for part in index.parts if isinstance(index, Group) else (index,):
        if isinstance(part, Section):
            yield from (part.start, part.stop)
