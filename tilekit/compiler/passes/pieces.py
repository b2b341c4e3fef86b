"""What becomes of a tile, by blocks that each have a piece of its columns.

    c: bfloat16[64, 32] = tk.load(c, (i, j), (64, 32))       c: bfloat16[64, 8] = tk.load(c, (i, j * 4 + rank), (64, 8))
    t: float32[64, 32] = acc + c                             t: float32[64, 8] = acc + c
    out.store(t, tile)                                       tilekit__store_piece(out, t, tile, rank, 4)

Legal where nothing but the tile is stored, or what is made of it element by element: of other tiles in the same place that are
loaded, of columns, of numbers. It goes to the tile that is visited, or to a tensor of which any tile may be written. Whole tiles
are read by nobody, nor is anything but a piece of a tensor that is written: another block may have stored its own by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.effects import READS, effects
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Location, Operand, Operation, Value, mapped
from tilekit.compiler.ir.types import TensorType, TileType
from tilekit.lang import memory, shape

__all__ = ["LEAST_COLUMNS", "in_pieces", "is_apart"]

LEAST_COLUMNS = 8
"""Of a piece: threads of a product have two of eight neighbouring columns, and the same two of the next eight."""


class _Whole(Exception):
    """Something takes the whole tile."""


def in_pieces(
    operations: Sequence[Operation], sums: dict[Value, Value], visited: Value, rank: Value, pieces: int, location: Location
) -> list[Operation] | None:
    """The operations on pieces that take the place of operations on tiles; None if there are none.

    Args:
        operations: what is done, in their order.
        sums: tiles, and their pieces.
        visited: the tile of the mapped partition that they are for.
        rank: the number of the piece.
        pieces: of a tile.
        location: of what is new.
    """
    columns = {_columns(value) for value in sums}
    if len(columns) > 1:
        return None
    cut = _Cut(sums, columns.pop(), visited, rank, pieces, location)
    cut.find(operations)
    try:
        for operation in operations:
            cut.add(operation)
    except _Whole:
        return None
    return cut.new.operations


class _Cut:
    """Operations on pieces.

    Attributes:
        new: they.
    """

    def __init__(
        self, sums: dict[Value, Value], columns: int, visited: Value, rank: Value, pieces: int, location: Location
    ) -> None:
        self._pieces_of: dict[Value, Operand] = dict(sums)
        self._wide, self._columns, self._visited = set(sums), columns, visited
        self._rank, self._count, self.new = rank, pieces, Insertion(location)

    def find(self, operations: Sequence[Operation]) -> None:
        """Find the tiles that are cut: what is made of sums, and what that is made of."""
        before = -1
        while before < len(self._wide):
            before = len(self._wide)
            for operation in filter(_goes_by_columns, operations):
                along = {value for value in (*operation.reads(), *operation.results) if _columns(value) > 1}
                if not along.isdisjoint(self._wide):
                    self._wide |= along

    def add(self, operation: Operation) -> None:
        """Do an operation, with pieces if it is one on tiles that are cut."""
        self.new.location = operation.location
        reads = [value for value in operation.reads() if value in self._wide]
        if operation.regions or any(value not in self._pieces_of for value in reads):
            raise _Whole
        if not self._wide.isdisjoint(operation.results):
            self._make(operation)
        elif reads:
            self._store(operation)
        elif is_apart(operation, self._columns):
            self.new.add([operation])
        else:
            raise _Whole

    def _make(self, operation: Operation) -> None:
        """Make the piece of a tile."""
        (result,) = operation.results
        operands: list[Operand] = [mapped(operand, self._pieces_of) for operand in operation.operands]
        extents = Group(tuple(map(Constant, (*_shape(result)[:-1], self._columns // self._count))))
        if _calls(operation, memory.load) and len(operands) == len(("array", "index", "shape")):
            if operation.keywords.keys() - {"padding_mode", "padding_value", "eviction_policy"}:
                raise _Whole
            operands = [operands[0], self._index(operands[1]), extents]
        elif not _goes_by_columns(operation):
            raise _Whole
        elif _reshapes(operation):
            operands = [operands[0], extents]
        keywords = {name: mapped(operand, self._pieces_of) for name, operand in operation.keywords.items()}
        self._pieces_of[result] = self.new.emit(operation.kind, operands, operation.what, **keywords)

    def _store(self, operation: Operation) -> None:
        """Store the piece of a tile."""
        array, *rest = operation.operands
        options = dict(operation.keywords)
        facts = array.type.facts if isinstance(array, Value) and isinstance(array.type, TensorType) else None
        what: Constant = operation.what
        if facts is not None and (operation.kind, operation.what) == ("method", "store"):
            tile = options.pop("tile", rest[-1])
            if tile is not self._visited or facts.tile is None or facts.tile[-1] != self._columns:
                raise _Whole
            operands = [array, self._piece(rest[0]), tile, self._rank, Constant(self._count)]
            what = Constant(intrinsics.store_piece, "tilekit__store_piece")
        elif facts is not None and _calls(operation, memory.store) and facts.tile is None and len(rest) == 2:
            operands = [array, self._index(rest[0]), self._piece(rest[1])]
        else:
            raise _Whole
        if options.keys() - {"eviction_policy"}:
            raise _Whole
        self.new.add([Operation("call", operands, operation.location, what, options)])

    def _piece(self, value: Operand) -> Operand:
        if not isinstance(value, Value) or value not in self._pieces_of:
            raise _Whole
        return self._pieces_of[value]

    def _index(self, index: Operand) -> Operand:
        """That of a piece, by that of a tile."""
        *before, column = index.parts if isinstance(index, Group) else (index,)
        if not isinstance(column, Value) and not (isinstance(column, Constant) and type(column.value) is int):
            raise _Whole
        first = self.new.emit("binary", [column, Constant(self._count)], "*")
        piece = self.new.emit("binary", [first, self._rank], "+")
        return Group((*before, piece)) if isinstance(index, Group) else piece


def is_apart(operation: Operation, columns: int) -> bool:
    """Whether an operation writes nothing, and reads nothing that another block with a piece of the same tile may write: only a
    tensor that is not written, and no whole tile of so many columns of it, since that may be the memory of one that is."""
    if not effects(operation):
        return True
    owner = operation.operands[0] if operation.operands else None
    alone = isinstance(owner, Value) and isinstance(owner.type, TensorType) and owner.type.facts.role == "in"
    return alone and effects(operation) == {READS} and all(_columns(result) != columns for result in operation.results)


def _shape(value: Value) -> tuple[int, ...]:
    return value.type.shape if isinstance(value.type, TileType) else ()


def _columns(value: Value) -> int:
    """The extent of a tile's last dimension; 1 of anything else."""
    return (1, *_shape(value))[-1]


def _calls(operation: Operation, function: object) -> bool:
    return operation.kind == "call" and operation.what.value is function


def _reshapes(operation: Operation) -> bool:
    return (operation.kind, operation.what) == ("method", "reshape") or _calls(operation, shape.reshape)


def _goes_by_columns(operation: Operation) -> bool:
    """Whether each column of what an operation makes is made of the same column of its operands, or of those that have one."""
    if is_elementwise(operation):
        return True
    if not (_reshapes(operation) or operation.kind == "item") or len(operation.results) != 1:
        return False
    return isinstance(operation.operands[0], Value) and _columns(operation.operands[0]) == _columns(operation.results[0])
