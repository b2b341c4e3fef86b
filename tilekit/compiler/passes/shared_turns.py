"""Split-K in clusters: where several blocks visit a tile together, each takes a share of the turns that add up its products.

    for tile in out.tiles():                     for tile in tilekit__everybody(out.tiles()):
        acc = tk.zeros(...)                          acc = tk.zeros(...)
        for ta, tb in row, column:                   for ta, tb in row[first:last], column[first:last]:
            acc = tk.mma(ta, tb, acc)                    acc = tk.mma(ta, tb, acc)
        out.store(acc, tile)                         acc = tilekit__sum_of_blocks(0, 4, 4, acc)
                                                     tilekit__store_piece(out, acc, tile, tilekit__place(4), 4)

Each block gets a piece of the sums, some columns, and does what is left of the tile for these (`pieces`): what they send each
other, and what they store, goes on in all of them at the same time. Where that takes whole tiles, the first block gets all, and
does it. Sums are added up in the order of the blocks behind each block's own, so that the result is the same in every run. The
language lets sums of products be taken in parts.

Legal where the loop stands in one over the tiles of a mapped partition that has several blocks for each, where nothing before it
has an effect, and its turns do nothing but multiply tiles of its streams, and add that to sums of 32 bits that begin with zeros;
and where nothing in the kernel depends on the block but by the tile that it visits.
Where it is not, or a kernel has no rings of stages, the first block alone visits the tile (`lower.mapped`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.effects import READS, effects
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Section, Value, definitions
from tilekit.compiler.ir.products import product_of
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import ScalarType, TensorType, TileType, sampling
from tilekit.compiler.passes.factors import is_view
from tilekit.compiler.passes.pieces import LEAST_COLUMNS, in_pieces, is_apart
from tilekit.lang import calculation, create, memory

__all__ = ["SHARED_TURNS", "share_turns"]

SHARED_TURNS = "split-K in a cluster"
"""The name of its remarks."""

_SUM_BYTES = 4  # of an element: what is sent to another block's memory at once is 16 bytes
_NOT_FROM_ZERO = "its sums begin with something else than zeros"
_NOT_PRODUCTS = "its turns do more than multiply tiles of its streams and add up 32 bits"
_UNKNOWN = "its streams are no rows of tiles, one after the other, from one on that is known when the kernel is compiled"
_EARLIER = "the kernel writes, or reads from others, before it"
_APART = "the kernel returns early, or asks for the number of its block: blocks that share a tile may differ"


def share_turns(kernel: Region) -> int:
    """Let blocks that visit tiles together share turns; how many sums they take together."""
    defined, count = definitions(kernel), 0
    for visit in [operation for operation in kernel.operations if operation.kind == "each"]:
        tiles = defined.get(visit.operands[0]) if isinstance(visit.operands[0], Value) else None
        blocks = _blocks(tiles)
        body = visit.regions[0]
        loop = next((operation for operation in body.operations if operation.kind == "stream"), None)
        if tiles is None or blocks == 1 or loop is None or visit.results or body.exit != "yield":
            continue
        reason = _APART if _goes_apart(kernel) else _refusal(loop, body, defined)
        if reason is not None:
            remark(loop.location, SHARED_TURNS, reason, done=False)
            continue
        visit.operands[0] = _everybody(kernel, tiles)
        with sampling():
            body.operations = _shared(loop, body, blocks, count, defined)
        count += len(loop.results)
    return count


def _goes_apart(kernel: Region) -> bool:
    """Whether blocks that visit the same tile may do other things than each other."""
    asked = (operation.what for operation in kernel.walk() if operation.kind == "call")
    leaves = any(region.exit == "return" for region in kernel.regions() if region is not kernel)
    return leaves or any(isinstance(what, Constant) and what.value is memory.bid for what in asked)


def _blocks(tiles: Operation | None) -> int:
    """How many blocks visit each of the tiles that an operation gives."""
    if tiles is None or (tiles.kind, tiles.what) != ("method", "tiles") or not isinstance(tiles.operands[0], Value):
        return 1
    partition = tiles.operands[0].type
    return partition.facts.blocks_per_tile if isinstance(partition, TensorType) else 1


def _refusal(loop: Operation, body: Region, defined: Mapping[Value, Operation]) -> str | None:
    """Why the turns of a loop cannot be shared out; None if they can."""
    before = body.operations[: body.operations.index(loop)]
    if any(effects(operation) - {READS} for operation in before):
        return _EARLIER
    if any(_stretch(row, defined) is None for row in _streams(loop)):
        return _UNKNOWN
    (turn,) = loop.regions
    products = [operation for operation in turn.operations if not is_view(operation)]
    if turn.exit != "yield" or not products or [one.results for one in products] != [[total] for total in turn.operands]:
        return _NOT_PRODUCTS
    if not all(_adds_to(product, total, loop) for product, total in zip(products, loop.carried, strict=True)):
        return _NOT_PRODUCTS
    if not all(_is_zeros(operand, defined) for operand in loop.initial):
        return _NOT_FROM_ZERO
    return None


def _adds_to(operation: Operation, total: Value, loop: Operation) -> bool:
    """Whether an operation of a loop's turn is a product of tiles that turns do not hand on, added to a sum of theirs."""
    product = product_of(operation)
    if product is None or product.total is not total or not isinstance(total.type, TileType):
        return False
    return total.type.dtype.itemsize == _SUM_BYTES and not {product.a, product.b} & set(loop.carried)


def _streams(loop: Operation) -> list[Operand]:
    return loop.operands[: len(loop.operands) - len(loop.results)]


def _is_zeros(operand: Operand, defined: Mapping[Value, Operation]) -> bool:
    maker = defined.get(operand) if isinstance(operand, Value) else None
    return maker is not None and maker.kind == "call" and maker.what.value is create.zeros


def _stretch(row: Operand, defined: Mapping[Value, Operation]) -> tuple[int, int] | None:
    """Of a stream that is a row of tiles from one on that is known: which part of its index says so, and that tile."""
    item = defined.get(row) if isinstance(row, Value) else None
    if item is None or item.kind != "item":
        return None
    index = item.operands[1]
    parts = index.parts if isinstance(index, Group) else (index,)
    cut = [(at, _section(part)) for at, part in enumerate(parts)]
    if sum(section is not None for _, section in cut) != 1:
        return None
    at, section = next((at, section) for at, section in cut if section is not None)
    start = 0 if section.start == Constant(None) else _number(section.start)
    return None if start is None or start < 0 or section.step != Constant(None) else (at, start)


def _section(part: Operand) -> Section | None:
    """A part of an index that is a slice."""
    if isinstance(part, Constant) and isinstance(part.value, slice):
        return Section(Constant(part.value.start), Constant(part.value.stop), Constant(part.value.step))
    return part if isinstance(part, Section) else None


def _number(operand: Operand) -> int | None:
    """An int that is known when the kernel is compiled."""
    return operand.value if isinstance(operand, Constant) and type(operand.value) is int else None


def _everybody(kernel: Region, tiles: Operation) -> Value:
    """The tiles that all blocks visit; what makes them is inserted behind what makes those of the first."""
    result = Value(tiles.results[0].name, tiles.results[0].type)
    call = Constant(intrinsics.everybody, "tilekit__everybody")
    region = next(region for region in kernel.regions() if tiles in region.operations)
    at = region.operations.index(tiles) + 1
    region.operations.insert(at, Operation("call", [tiles.results[0]], tiles.location, call, results=[result]))
    return result


def _shared(loop: Operation, body: Region, blocks: int, first: int, defined: Mapping[Value, Operation]) -> list[Operation]:
    """What a body does whose loop is shared by so many blocks; the numbers of its sums begin at `first`."""
    at = body.operations.index(loop)
    before, behind = body.operations[:at], body.operations[at + 1 :]
    place, turns = Value("place", ScalarType(int)), Value("turns", ScalarType(int))
    new = Insertion(loop.location)
    new.add([_call(loop, intrinsics.place, [Constant(blocks)], place), _call(loop, intrinsics.steps, _streams(loop), turns)])
    share = new.call(calculation.cdiv, turns, Constant(blocks))
    begin = new.call(min, new.emit("binary", [place, share], "*"), turns)
    end = new.call(min, new.emit("binary", [begin, share], "+"), turns)
    rows = [_part(row, begin, end, new, defined) for row in _streams(loop)]
    loop.operands[: len(rows)] = rows
    pieces = _count_of_pieces(loop, blocks)
    columns = {result.type.shape[-1] for result in loop.results if isinstance(result.type, TileType)}
    if not all(is_apart(operation, size) for operation in before for size in columns):
        pieces = 1
    sums = _sums(loop, pieces)
    rest = in_pieces(behind, sums, body.parameters[0], place, pieces, loop.location) if pieces > 1 else None
    if rest is None:
        pieces, sums = 1, _sums(loop, 1)
        whole = Region([], behind)
        whole.replace(dict(sums))
        rest = whole.operations
    added = [
        _call(loop, intrinsics.sum_of_blocks, [Constant(first + n), Constant(blocks), Constant(pieces), result], total)
        for n, (result, total) in enumerate(sums.items())
    ]
    follows = f"and {pieces} have pieces of what follows" if pieces > 1 else "and the first does what follows for the whole tile"
    remark(loop.location, SHARED_TURNS, f"{blocks} blocks share its turns, {follows}")
    if pieces < blocks:
        has_one = Value("t", ScalarType(bool))
        compare = Operation("compare", [place, Constant(pieces)], loop.location, "<", results=[has_one])
        rest = [compare, Operation("if", [has_one], loop.location, regions=[Region([], rest), Region()])]
    return [*before, *new.operations, loop, *added, *rest]


def _count_of_pieces(loop: Operation, blocks: int) -> int:
    """Into how many pieces the sums of a loop are cut at most, a power of two."""
    columns = min(result.type.shape[-1] for result in loop.results if isinstance(result.type, TileType))
    return 1 << max(1, min(blocks, columns // LEAST_COLUMNS)).bit_length() - 1


def _sums(loop: Operation, pieces: int) -> dict[Value, Value]:
    """For each result of a loop the piece of its sum over the blocks."""
    types = [result.type for result in loop.results if isinstance(result.type, TileType)]
    cut = [TileType(ty.dtype, (*ty.shape[:-1], ty.shape[-1] // pieces)) for ty in types]
    return {result: Value(result.name, ty) for result, ty in zip(loop.results, cut, strict=True)}


def _part(row: Operand, begin: Value, end: Value, new: Insertion, defined: Mapping[Value, Operation]) -> Value:
    """The tiles of a row from one to another."""
    stretch = _stretch(row, defined)
    assert isinstance(row, Value) and stretch is not None, "`_refusal` has looked at it"
    (at, first), (grid, index) = stretch, defined[row].operands
    parts = list(index.parts) if isinstance(index, Group) else [index]
    parts[at] = Section(new.plus(begin, first), new.plus(end, first), Constant(None))
    return new.emit("item", [grid, Group(tuple(parts)) if len(parts) > 1 else parts[0]])


def _call(loop: Operation, function: object, operands: list[Operand], result: Value) -> Operation:
    name = f"tilekit__{function.__name__}"  # type: ignore[attr-defined]
    return Operation("call", operands, loop.location, Constant(function, name), results=[result])
