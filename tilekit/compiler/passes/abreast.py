"""Products abreast: those of one tile with tiles of several streams become one, whose result is as wide as theirs together.

    for ta, tb, tc in tk.pipelined(...):            sums = join(left, right)
        left = tk.mma(ta, tb, left)                 for ta, tb, tc in tk.pipelined(...):
        right = tk.mma(ta, tc, right)                   sums = mma_abreast(ta, (tb, tc), sums)
                                                    left, right = part(sums, 0), part(sums, 1)

An instruction of a warpgroup (wgmma) takes up to 256 columns, in steps of 8: tiles of 128 and 32 make a product of 160. Each
reads `a` from shared memory again, and that is what many products wait for. The streams become neighbours, and `passes.rings`
lets their tiles lie behind each other in a stage, as rows of one.

Legal where in a turn nothing but the product reads what it is added to, and nothing reads its result, which the next turn adds
to. Each element is the sum of the same products in the same order as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tilekit import dtypes
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.products import Product, accumulates, product_of
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TileType
from tilekit.compiler.passes.factors import is_view

__all__ = ["TOGETHER", "follows", "multiply_abreast"]

TOGETHER = "one wgmma for all"
"""The name of what products refuse that cannot be one."""

_ROWS, _LEAST_COLUMNS, _MOST_COLUMNS = 64, 8, 256  # of an instruction
_FEW_COLUMNS, _OF_INTEGERS = 32, 16  # of integers, those that have more than the first number have multiples of the second
_ONE_PANEL = (32, 64, 128)  # bytes of a row of a tile, in which tiles behind each other lie as one


def multiply_abreast(kernel: Region) -> None:
    """Let products of a kernel's loops over streams be one where they can."""
    for region in list(kernel.regions()):
        for loop in [operation for operation in region.operations if operation.kind == "stream"]:
            for products in _groups(loop):
                _join(products, loop, region)


def follows(loop: Operation) -> list[bool]:
    """Of each stream of a loop, whether its tiles are to lie behind those of the one before."""
    (body,) = loop.regions
    tiles, defined = _tiles(loop), definitions(body)
    behind: set[Value] = set()
    for operation in body.walk():
        if operation.kind == "call" and operation.what.value is intrinsics.mma_abreast:
            assert isinstance(operation.operands[1], Group), "see `_join`"
            behind.update(_root(tile, defined) for tile in operation.operands[1].parts[1:])  # type: ignore[misc]
    return [tile in behind for tile in tiles]


def _tiles(loop: Operation) -> list[Value]:
    (body,) = loop.regions
    return body.parameters[: len(body.parameters) - len(loop.results)]


def _root(tile: Operand, defined: Mapping[Value, Operation]) -> Operand:
    """The tile that one is a view of."""
    while isinstance(tile, Value) and tile in defined and is_view(defined[tile]):
        tile = defined[tile].operands[0]
    return tile


def _groups(loop: Operation) -> list[list[Operation]]:
    """The products of a loop's own turn that can be one, two or more in each group."""
    (body,) = loop.regions
    if list(loop.ends()) != loop.regions:
        return []
    defined, tiles = definitions(body), set(_tiles(loop))
    reads = Counter(value for operation in body.walk() for value in operation.reads())
    reads.update(v for region in body.regions() for operand in region.operands for v in values_of(operand))
    groups: dict[object, list[Operation]] = {}
    taken: set[Operand] = set()
    for operation in body.operations:
        product = product_of(operation) if accumulates(operation) else None
        if product is None or not _is_carried(operation, product, loop, reads):
            continue
        root = _root(product.b, defined)
        if root in tiles and root not in taken and _fits(product):
            taken.add(root)
            key = (_name(product.a, defined), _type(product.b).dtype, tuple(product.options.items()))
            groups.setdefault(key, []).append(operation)
    divided: list[list[Operation]] = []
    for group in groups.values():
        left = 0
        for operation in group:
            left -= operation.results[0].type.shape[1]  # type: ignore[union-attr]
            if left < 0:
                divided.append([])
                left = _MOST_COLUMNS - operation.results[0].type.shape[1]  # type: ignore[union-attr]
            divided[-1].append(operation)
    for group in divided:
        while len(group) > 1 and not _is_one(group):
            group.pop()
    return [group for group in divided if len(group) > 1]


def _is_one(group: list[Operation]) -> bool:
    """Whether there is an instruction with the columns of all."""
    tiles = [_type(operation.results[0]) for operation in group]
    columns = sum(tile.shape[1] for tile in tiles)
    return tiles[0].dtype != dtypes.int32 or columns <= _FEW_COLUMNS or columns % _OF_INTEGERS == 0


def _is_carried(operation: Operation, product: Product, loop: Operation, reads: Mapping[Value, int]) -> bool:
    """Whether a product adds to a value that turns hand on, and nobody looks at it in between."""
    (body,) = loop.regions
    (result,), total = operation.results, product.total
    if total not in loop.carried or not isinstance(total, Value) or reads[total] != 1 or reads[result] != 1:
        return False
    at = loop.carried.index(total)
    return body.operands[at] is result and isinstance(loop.initial[at], Value)


def _fits(product: Product) -> bool:
    """Whether an instruction could take more columns than the product has."""
    a, b, total = (each.type if isinstance(each, Value) else None for each in (product.a, product.b, product.total))
    if not (isinstance(a, TileType) and isinstance(b, TileType) and isinstance(total, TileType)):
        return False
    if any(len(tile.shape) != 2 for tile in (a, b, total)) or a.shape[0] % _ROWS:
        return False
    size = b.dtype.itemsize
    least = size <= dtypes.float32.itemsize and b.shape[1] >= _LEAST_COLUMNS
    return least and a.dtype.itemsize == size and b.shape[0] * size in _ONE_PANEL


def _type(tile: Operand) -> TileType:
    assert isinstance(tile, Value) and isinstance(tile.type, TileType), "an operand of a product"
    return tile.type


def _name(tile: Operand, defined: Mapping[Value, Operation]) -> object:
    """Equal for a tile, and views of it that are the same."""
    view = defined.get(tile) if isinstance(tile, Value) else None
    if view is None or not is_view(view):
        return tile
    whole, *operands = view.operands
    return _name(whole, defined), view.what, tuple(operands), tuple(view.keywords.items())


def _join(operations: list[Operation], loop: Operation, region: Region) -> None:
    """Let products be one."""
    (body,) = loop.regions
    products = [product for operation in operations if (product := product_of(operation)) is not None]
    _let_follow([_root(product.b, definitions(body)) for product in products], loop)
    slots = [loop.carried.index(product.total) for product in products]  # type: ignore[arg-type]
    totals, results = [loop.carried[slot] for slot in slots], [loop.results[slot] for slot in slots]
    first, *others = slots
    whole = _whole([value.type for value in totals])
    begin, total, end, result = (Value(totals[0].name, whole) for _ in range(4))
    last, at = operations[-1], region.operations.index(loop)
    parts = [_call("part", [result, Constant(n)], loop, each) for n, each in enumerate(results)]
    joined = _call("join", [loop.initial[slot] for slot in slots], loop, begin)
    region.operations[at : at + 1] = [joined, loop, *parts]

    carried = len(loop.operands) - len(loop.results), len(body.parameters) - len(loop.results)
    loop.operands[carried[0] + first], body.parameters[carried[1] + first] = begin, total
    loop.results[first], body.operands[first] = result, end
    for slot in sorted(others, reverse=True):
        del loop.operands[carried[0] + slot], body.parameters[carried[1] + slot], loop.results[slot], body.operands[slot]

    operands = [products[-1].a, Group(tuple(product.b for product in products)), total]
    one = _call("mma_abreast", operands, last, end)
    one.keywords = dict(products[-1].options)
    body.operations[body.operations.index(last)] = one
    body.operations = [each for each in body.operations if each not in operations]
    remark(last.location, "products", f"{len(products)} products of one tile, {whole.shape[1]} columns together")


def _whole(types: list[object]) -> TileType:
    """What sums abreast are together."""
    tiles = [ty for ty in types if isinstance(ty, TileType)]
    return TileType(tiles[0].dtype, (tiles[0].shape[0], sum(tile.shape[1] for tile in tiles)))


def _call(name: str, operands: list[Operand], like: Operation, result: Value) -> Operation:
    return Operation("call", operands, like.location, Constant(getattr(intrinsics, name), f"tilekit__{name}"), results=[result])


def _let_follow(tiles: list[Operand], loop: Operation) -> None:
    """Let the streams of these tiles be neighbours, in this order."""
    (body,) = loop.regions
    before = _tiles(loop)
    streams = dict(zip(before, loop.operands, strict=False))
    order: list[Value] = []
    for tile in before:
        order += [one for one in tiles if isinstance(one, Value)] if tile is tiles[0] else [] if tile in tiles else [tile]
    body.parameters[: len(order)] = order
    loop.operands[: len(order)] = [streams[tile] for tile in order]
