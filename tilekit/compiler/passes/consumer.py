"""The consumer of rings: the kernel for the warps that calculate, which wait for stages and release them.

Waits by dependence: a product is under way when the next operation begins, and is waited for where its result is read, but not
those that were asked for after it; where several operations read it, before the first of them, for all. First operands that are
carried round a loop, or come into it, lie as products take them all the time.

A loop that has one turn gives its stage back as soon as nothing reads it any more: the thread that loads goes on to the tiles of
the next such loop while the results of this one are still written. (Attention of short sequences: queries of the next tile came
when the last had been stored, and all keys behind them.)
"""

from __future__ import annotations

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.nodes import LOOPS, Constant, Location, Operand, Operation, Region, Value, values_of
from tilekit.compiler.ir.products import accumulates

__all__ = ["consume", "may_be_under_way", "products_of"]


def products_of(loop: Operation) -> int:
    """How many products a turn asks for, without those of loops in it."""
    return sum(map(_products, loop.regions))


def _products(region: Region) -> int:
    inner = (each for operation in region.operations if operation.kind not in LOOPS for each in operation.regions)
    return sum(map(accumulates, region.operations)) + sum(map(_products, inner))


def consume(kernel: Region) -> None:
    """Let loops over streams take their tiles from rings."""
    for region in list(kernel.regions()):
        for loop in [operation for operation in region.operations if operation.kind == "stream"]:
            _prepare_operands(loop, region)
            _wait_for_products(loop.regions[0])
    for region in kernel.regions():
        _wait_once(region)
    for loop in [operation for operation in kernel.walk() if operation.kind == "stream"]:
        if loop.keywords["once"] == Constant(True):
            _give_early(loop)


def _give_early(loop: Operation) -> None:
    """Give back the stage of the only turn of a loop behind the last operation that reads it.

    Legal where what is behind neither reads the tiles, nor what may still be them (views; operands that products read where they
    lie; whatever is computed of them, which may be computed late), nor asks for products, which are the turn's own. Products that
    read them are under way at most: to give a stage back waits for them.
    """
    (body,) = loop.regions
    tiles, before = set(body.parameters[: len(body.parameters) - len(loop.results)]), -1
    while before < len(tiles):
        before = len(tiles)
        for operation in body.walk():
            _follow(operation, tiles)
    needed = [at for at, each in enumerate(body.operations) if _read(each) & tiles or _asks(each)]
    behind = needed[-1] + 1 if needed else len(body.operations)
    if behind < len(body.operations):
        give = Constant(intrinsics.give, "tilekit__give")
        body.operations.insert(behind, Operation("call", [loop.keywords["ring"]], body.operations[behind].location, give))


def _follow(operation: Operation, tiles: set[Value]) -> None:
    """Add what an operation computes of tiles of a stage, but for products."""
    if not operation.regions:
        if not accumulates(operation) and tiles.intersection(operation.reads()):
            tiles.update(operation.results)
        return
    ways = list(operation.ends()) if operation.kind in LOOPS else operation.regions
    for at, result in enumerate(operation.results):
        handed = [region.operands[at] for region in ways if region.exit != "return" and at < len(region.operands)]
        handed += operation.initial[at : at + 1] if operation.kind in LOOPS else []
        if any(tiles.intersection(values_of(operand)) for operand in handed):
            tiles.update([result] if operation.kind == "if" else [result, operation.carried[at]])


def _asks(operation: Operation) -> bool:
    """Whether it is a product, or there are some in it that are not of loops over streams."""
    if operation.kind == "stream":
        return False
    return accumulates(operation) or any(_asks(each) for region in operation.regions for each in region.operations)


def _prepare_operands(loop: Operation, region: Region) -> None:
    """First operands of products that are not computed in the turn are converted before the loop, or where a turn ends."""
    (body,) = loop.regions
    inside = {value for operation in body.walk() for value in operation.results}
    inside.update(body.parameters[: len(body.parameters) - len(loop.results)])
    firsts = [operation.operands[0] for operation in body.operations if accumulates(operation)]
    for first in dict.fromkeys(one for one in firsts if isinstance(one, Value) and one not in inside):
        if first in body.parameters:
            at = loop.carried.index(first)
            begins = len(loop.operands) - len(loop.results) + at
            where = region.operations.index(loop)
            loop.operands[begins] = _prepared(region, where, loop.operands[begins], loop.location, renewed=True)
            body.operands[at] = _prepared(body, len(body.operations), body.operands[at], loop.location, renewed=True)
        else:
            at = region.operations.index(loop)
            prepared = _prepared(region, at, first, loop.location, renewed=False)
            rest = Region([], region.operations[at + 1 :], region.exit, region.operands)
            rest.replace({first: prepared})
            region.operands = rest.operands


def _prepared(region: Region, at: int, tile: Operand, location: Location, *, renewed: bool) -> Operand:
    """A tile as products take it: what makes it so is inserted into the region."""
    if not isinstance(tile, Value):
        return tile
    result = Value(tile.name, tile.type)
    call = Constant(intrinsics.operand, "tilekit__operand")
    region.operations.insert(at, Operation("call", [tile, Constant(renewed)], location, call, results=[result]))
    return result


def _wait_for_products(body: Region) -> None:
    """Wait for products of a turn where their results are read in it, if others that were asked for later are under way."""
    operations, waits = list(body.operations), dict[int, list[Operation]]()
    needed: dict[Operation, int] = {}
    for at, product in enumerate(operations):
        if accumulates(product):
            (result,) = product.results
            readers = (n for n in range(at + 1, len(operations)) if result in _read(operations[n]))
            needed[product] = next(readers, len(operations))
    for product, at in needed.items():
        (result,) = product.results
        between = operations[operations.index(product) + 1 : at]
        later = [one.results[0] for one in between if accumulates(one) and needed[one] >= at]
        if at == len(operations) or not later or _only_adds_to(operations[at], result):
            continue
        wait, body.operands = _waited(result, later, operations[at:], body)
        waits.setdefault(at, []).append(wait)
    body.operations = [each for at, one in enumerate(operations) for each in (*waits.get(at, ()), one)]


def _wait_once(region: Region) -> None:
    """Wait for what may be under way before the first of several operations that read it: each of them would."""
    operations = region.operations
    for at in reversed(range(len(operations))):
        for n, result in enumerate(operations[at].results):
            if not may_be_under_way(operations[at], n):
                continue
            readers = [where for where in range(at + 1, len(operations)) if result in _read(operations[where])]
            first = operations[readers[0]] if len(readers) > 1 else None
            if first is None or first.kind in LOOPS or _is_wait(first) or _only_adds_to(first, result):
                continue
            wait, region.operands = _waited(result, [], operations[readers[0] :], region)
            operations.insert(readers[0], wait)


def may_be_under_way(operation: Operation, n: int) -> bool:
    """Whether it is a product that a result is, or comes to in a loop or in a branch."""
    if accumulates(operation):
        return True
    for body in operation.regions:
        ends = body.operands[n] if body.exit == "yield" else None
        for each in body.operations:
            if isinstance(ends, Value) and ends in each.results and may_be_under_way(each, each.results.index(ends)):
                return True
    return False


def _is_wait(operation: Operation) -> bool:
    return isinstance(operation.what, Constant) and operation.what.value is intrinsics.wait_product


def _waited(product: Value, later: list[Value], behind: list[Operation], region: Region) -> tuple[Operation, list[Operand]]:
    """A wait for a product, whose result those behind it in a region read instead; and what the region ends with then."""
    waited = Value(product.name, product.type)
    call = Constant(intrinsics.wait_product, "tilekit__wait_product")
    wait = Operation("call", [product, *later], behind[0].location, call, results=[waited])
    rest = Region([], behind, region.exit, region.operands)
    rest.replace({product: waited})
    return wait, rest.operands


def _only_adds_to(operation: Operation, sum_: Value) -> bool:
    """Whether it is a product that needs a value as what it begins with alone."""
    if not accumulates(operation):
        return False
    *operands, begins = [*operation.operands, *operation.keywords.values()][:3]
    return begins is sum_ and not any(sum_ in values_of(operand) for operand in operands)


def _read(operation: Operation) -> set[Value]:
    """What an operation reads, and its regions."""
    read = set(operation.reads())
    for region in operation.regions:
        for inner in region.regions():
            read.update(value for operand in inner.operands for value in values_of(operand))
            read.update(value for each in inner.operations for value in each.reads())
    return read
