"""Rings of stages, and warp specialisation: the last pass over kernels with loops over streams.

Where tiles can be brought ahead, by the tensor memory accelerator or by copies, a ring of stages in shared memory stands between
these and a loop, and the kernel becomes two: that of the threads that load (`passes.producer`), which is the kernel without all
that does not decide which tiles come, and that of those that calculate (`passes.consumer`), which take the tiles and give the
stages back. Loops of which none stands in another share a ring, and one's tiles are brought while another's are still read: a
prologue, a loop, an epilogue over the same tiles; two products in a row, whose stages are then as large as the larger one needs.

    ring = ring(0, stages, shared, (counts), x.tiles(...), ...)        in all threads
    other = variant(ring, 1)                                           the same stages, for the tiles of another loop
    role = role()
    if role == CONSUMER:
        consume t, ... in (rows)                                       takes a stage in each turn, and gives it back
    else:
        if role == PRODUCER:
            produce in (rows)                                          fills a stage in each turn
            drain(ring)                                                if blocks of a cluster share tiles: all have been read
    end()

A loop that has one turn at most is a branch there: nothing is carried round, for which a thread would need registers.

Legal where nothing leaves such a loop early, the streams are tiles of parameters, and no tile is used behind its loop or in a
later turn, when the stage has been given back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.affine import Affine, affine
from tilekit.compiler.ir.constants import operand_of
from tilekit.compiler.ir.nodes import (
    LOOPS,
    Constant,
    Group,
    Location,
    Operand,
    Operation,
    Region,
    Section,
    Value,
    copied,
    definitions,
    values_of,
)
from tilekit.compiler.ir.types import ObjectType, ScalarType, TileType
from tilekit.compiler.passes.abreast import follows
from tilekit.compiler.passes.begins import Begins, begins_of, combined, parts_of
from tilekit.compiler.passes.consumer import consume, products_of
from tilekit.compiler.passes.factors import is_view
from tilekit.compiler.passes.multicast import alike
from tilekit.compiler.passes.multiples import divisor_of, divisor_of_sum, slice_of
from tilekit.compiler.passes.producer import Unfit, produce
from tilekit.compiler.passes.summed import summed_along

__all__ = ["Unfit", "make_rings"]

Definitions = Mapping[Value, Operation]
_MOST_ARGUMENTS = 20  # of a call of which numba takes constants for such: Python makes a list of more than 30
_CHOSEN = "a branch or a loop decides which tensor, or which part of it, the tiles of a stream are of"


def make_rings(kernel: Region) -> int:
    """Let a kernel's loops over streams have rings; how many there are.

    Raises:
        Unfit: it cannot have them. The kernel is as it was then.
    """
    loops = [operation for operation in kernel.walk() if operation.kind == "stream"]
    if not loops:
        return 0
    defined = definitions(kernel)
    for loop in loops:
        _check(loop)
    rings = _rings(loops, _Known(frozenset(kernel.parameters), defined))
    shared = alike(kernel, loops, defined)
    begins = {loop: [begins_of(stream, defined) for stream in _streams(loop)] for loop in loops}
    values = [[Value(f"ring{number}", ObjectType(intrinsics.ring)) for _ in ring.variants] for number, ring in enumerate(rings)]
    of = {
        loop: value
        for ring, variants in zip(rings, values, strict=True)
        for users, value in zip(ring.variants.values(), variants, strict=True)
        for loop in users
    }
    bodies = [Region([], copied(kernel.operations, {}), "yield") for _ in range(2)]
    for body, what in zip(bodies, ("consume", "produce"), strict=True):
        copies = [operation for operation in body.walk() if operation.kind == "stream"]
        for loop, copy in zip(loops, copies, strict=True):
            copy.what, copy.keywords = what, {"ring": of[loop], "once": Constant(_has_one_turn(loop, defined))}
    consumer, producer = bodies
    produce(producer)
    for ring, (whole, *_) in zip(rings, values, strict=True):
        if any(any(shared[loop]) for users in ring.variants.values() for loop in users):
            producer.operations.append(_call(intrinsics.drain, [whole], kernel.operations[0].location))
    consume(consumer)
    # Those of which nobody said how many stages they have come last, and share what the others leave.
    operations: list[Operation] = []
    for number, ring in sorted(enumerate(rings), key=lambda numbered: numbered[1].stages is None):
        operations += _ring(number, ring, shared, begins, values[number])
    products = max(map(products_of, loops))
    kernel.operations = [*_meetings(kernel), *operations, *_roles(consumer, producer, products, kernel.operations[0].location)]
    kernel.exit, kernel.operands = "return", []
    return len(rings)


# ------------------------------------------------------------------------------------------------------------------- legality


def _check(loop: Operation) -> None:
    """Refuse a loop that cannot take its tiles from a ring."""
    (body,) = loop.regions
    if loop.keywords.get("warp_specialize") == Constant(False):
        raise Unfit("warp_specialize=False")
    if loop.leaves_early():
        raise Unfit("the loop has a break, continue or return")
    if any(region.exit != "yield" for region in body.regions()):
        raise Unfit("a loop in it has a break or continue, or goes on while a condition holds")
    tiles = set(body.parameters[: len(body.parameters) - len(loop.results)])
    before = -1
    while before < len(tiles):
        before = len(tiles)
        for operation in body.walk():
            _follow(operation, tiles)
    for value, operand in zip(loop.carried, body.operands, strict=True):
        if any(part in tiles for part in values_of(operand)):
            later = any(value in operation.reads() for operation in body.walk())
            when = "may be used in a later turn" if later else "is used behind the loop"
            raise Unfit(f"{value.name}, a tile of the pipeline, {when}")


def _follow(operation: Operation, tiles: set[Value]) -> None:
    """Add what else an operation calls tiles that nobody has loaded into registers yet."""
    if is_view(operation) or operation.kind == "item":
        tiles.update(operation.results if operation.operands[0] in tiles else ())
    ways = list(operation.ends()) if operation.kind in LOOPS else operation.regions
    for at, result in enumerate(operation.results if operation.regions else ()):
        handed = [region.operands[at] for region in ways if region.exit != "return" and at < len(region.operands)]
        handed += operation.initial[at : at + 1] if operation.kind in LOOPS else []
        if any(operand in tiles for operand in handed):
            tiles.update([result] if operation.kind == "if" else [result, operation.carried[at]])


# ---------------------------------------------------------------------------------------------------------------------- rings

Key = tuple[Any, ...]
"""The tiles of each stream: of what, by which method, with which operands. A view is of a parameter, or of a view."""


class _Ring(NamedTuple):
    """Stages that loops share of which none stands in another.

    Attributes:
        stages: how many the user wants; None for as many as fit.
        variants: the loops, by their tiles.
    """

    stages: int | None
    variants: dict[Key, list[Operation]]

    def takes(self, stages: int | None, key: Key, loop: Operation, known: _Known) -> bool:
        """Whether another loop may have its tiles in this ring."""
        users = [user for users in self.variants.values() for user in users]
        if self.stages != stages or any(_stands_in(loop, user) for user in users):
            return False
        return key in self.variants or not any(_has_one_turn(each, known.defined) for each in (loop, *users))


class _Known(NamedTuple):
    """What is known of values.

    Attributes:
        parameters: of the kernel.
        defined: what makes the others.
    """

    parameters: frozenset[Value]
    defined: Mapping[Value, Operation]

    def definition(self, operand: Operand) -> Operation | None:
        return self.defined.get(operand) if isinstance(operand, Value) else None


def _rings(loops: list[Operation], known: _Known) -> list[_Ring]:
    """The rings that there are, and the loops that use them: that of the same tiles; or of loops that have many turns, any."""
    rings: list[_Ring] = []
    for loop in loops:
        stages = loop.keywords.get("stages", Constant(None))
        assert isinstance(stages, Constant), "`check_call` has seen to that"
        key = tuple(_grid(operand, known) for operand in _streams(loop))
        ring = next((one for one in rings if one.takes(stages.value, key, loop, known)), None)
        if ring is None:
            rings.append(ring := _Ring(stages.value, {}))
        ring.variants.setdefault(key, []).append(loop)
    return rings


def _stands_in(loop: Operation, other: Operation) -> bool:
    """Whether one of them stands in the other: which of two comes first is known."""
    return any(operation is loop for region in other.regions for operation in region.walk())


def _streams(loop: Operation) -> list[Operand]:
    return loop.operands[: len(loop.operands) - len(loop.results)]


def _grid(stream: Operand, known: _Known) -> Key:
    """The tiles that a stream is some of; of a slice to the end, those of the whole tensor."""
    view = known.definition(stream)
    if view is not None and view.kind == "item":
        view = known.definition(view.operands[0])
    if view is not None and view.kind == "gathered":
        view = Operation("method", view.operands[:2], view.location, "tiles")
    if view is None or view.kind != "method":
        raise Unfit(_CHOSEN)
    return _view(view, known)


def _view(view: Operation, known: _Known) -> Key:
    """Tiles of a parameter, or of a slice of one: of this one what is known of where it begins."""
    tensor, *operands = view.operands
    extents, begun = operands[0] if view.what == "tiles" else None, dict[int, Affine | None]()
    while (outer := known.definition(tensor)) is not None and _may_be_whole(outer, extents, begun, known):
        tensor = outer.operands[0]
    whole: Value | Key
    if outer is not None and outer.kind == "method":
        whole = _view(outer, known)
    elif isinstance(tensor, Value) and tensor in known.parameters:
        whole = tensor
    else:
        raise Unfit(_CHOSEN)
    bounds = slice_of(view)
    if bounds is not None:
        axis, start, _ = bounds
        return whole, view.what, (axis, Constant(divisor_of(start, known.defined))), ()
    return whole, view.what, tuple(operands), tuple(view.keywords.items())


def _may_be_whole(view: Operation, extents: Operand | None, begun: dict[int, Affine | None], known: _Known) -> bool:
    """Whether tiles of a slice are tiles of its tensor: to the end of which it goes, or so far that no tile has more than it.

    Args:
        view: perhaps a slice.
        extents: of the tiles.
        begun: for each axis where slices of the slice begin, to which this one is added; None where that is not known.
        known: what is known of values.
    """
    bounds = slice_of(view)
    if bounds is None:
        return False
    axis, first, behind = bounds[0], *(affine(bound, known.defined) for bound in bounds[1:])
    assert isinstance(axis, Constant), "the language takes no other"
    tile = extents.parts if isinstance(extents, Group) else (extents,)
    at = axis.value % len(tile) if extents is not None else axis.value
    before = begun.get(at, Affine({}, 0))
    first = None if before is None or first is None else before.plus(first)
    if bounds[-1] != Constant(None):
        along = tile[at % len(tile)]
        if first is None or behind is None or not isinstance(along, Constant):
            return False
        if divisor_of_sum(behind.plus(first, -1), known.defined) % along.value:
            return False
    begun[at] = first
    return True


def _has_one_turn(loop: Operation, defined: Definitions) -> bool:
    """Whether a loop has one turn, or none: one of its streams is `tiles[i : i + 1, j]`."""
    return any(_is_one_tile(defined[stream], defined) for stream in _streams(loop) if isinstance(stream, Value))


def _is_one_tile(row: Operation, defined: Definitions) -> bool:
    if row.kind == "gathered":
        return _spans_one(Section(row.operands[2], row.operands[3], Constant(None)), defined)
    if row.kind != "item":
        return False
    parts, extents = parts_of(row, defined)
    sections = [part for part in parts if isinstance(part, Section)]
    elsewhere = any(isinstance(part, Constant) and isinstance(part.value, slice) for part in parts)
    return len(parts) == len(extents) and not elsewhere and all(_spans_one(section, defined) for section in sections)


def _spans_one(section: Section, defined: Definitions) -> bool:
    start = Constant(0) if section.start == Constant(None) else section.start
    further = defined.get(section.stop) if isinstance(section.stop, Value) else None
    if further is not None and (further.kind, further.what, further.operands) == ("binary", "+", [start, Constant(1)]):
        return True  # of whichever type of integer
    first, behind = affine(start, defined), affine(section.stop, defined)
    return first is not None and behind is not None and behind.plus(first, -1) == Affine({}, 1)


def _ring(
    number: int,
    ring: _Ring,
    shared: Mapping[Operation, list[int]],
    begins: Mapping[Operation, list[Begins]],
    results: list[Value],
) -> list[Operation]:
    """What makes a ring, some of whose streams are shared by the blocks of a cluster, and its variants."""

    def bits(each: Iterable[bool]) -> Constant:
        return Constant(sum(1 << at for at, holds in enumerate(each) if holds))

    operations: list[Operation] = []

    def view(key: Value | Key, location: Location) -> Value:
        if isinstance(key, Value):
            return key
        whole, what, operands, keywords = key
        result = Value("tiles", ObjectType(number))
        if what == "slice":  # any that begins so
            axis, multiple = operands
            start = Value("start", ScalarType(int))
            operations.append(_call(intrinsics.multiple, [Constant(0), multiple], location, start))
            operands = axis, start, Constant(0)
        operations.append(Operation("method", [view(whole, location), *operands], location, what, dict(keywords), [result]))
        return result

    locations = [users[0].location for users in ring.variants.values()]
    grids: list[Operand] = [view(grid, location) for key, location in zip(ring.variants, locations, strict=True) for grid in key]
    together = Group(tuple(Constant(axes) for users in ring.variants.values() for axes in shared[users[0]]))
    behind = bits(any(each) for users in ring.variants.values() for each in zip(*map(follows, users), strict=True))
    counts = Group(tuple(Constant(len(key)) for key in ring.variants))
    across = [set(each) for users in ring.variants.values() for each in zip(*map(summed_along, users), strict=True)]
    summed = Group(tuple(Constant(each.pop() if len(each) == 1 else 0) for each in across))
    apart = [combined(each) for users in ring.variants.values() for each in zip(*(begins[loop] for loop in users), strict=True)]
    where = operand_of(tuple(number for one in apart for begin in one for number in begin))
    whole, *others = results
    if len(grids) > _MOST_ARGUMENTS:
        tuples = [grids[at : at + _MOST_ARGUMENTS] for at in range(0, len(grids), _MOST_ARGUMENTS)]
        grids = [Group(tuple(several)) for several in tuples]
    operands = [Constant(number), Constant(ring.stages or 0), together, behind, counts, summed, where, *grids]
    operations.append(_call(intrinsics.ring, operands, locations[0], whole))
    for at, (other, location) in enumerate(zip(others, locations[1:], strict=True), start=1):
        operations.append(_call(intrinsics.variant, [whole, Constant(at)], location, other))
    return operations


def _meetings(kernel: Region) -> list[Operation]:
    """What makes room for pieces of the sums that blocks take together (see `passes.shared_turns`)."""
    sums = [one for one in kernel.walk() if one.kind == "call" and one.what.value is intrinsics.sum_of_blocks]
    tiles = [one.results[0].type for one in sums]
    sizes = Group(tuple(Constant(math.prod(ty.shape) * ty.dtype.itemsize) for ty in tiles if isinstance(ty, TileType)))
    return [_call(intrinsics.meet, [sums[0].operands[1], sizes], sums[0].location)] if sums else []


# ---------------------------------------------------------------------------------------------------------------------- roles


def _roles(consumer: Region, producer: Region, products: int, location: Location) -> list[Operation]:
    """Each thread does what its role is."""

    def registers(role: int) -> Operation:
        return _call(intrinsics.registers, [Constant(role), Constant(products)], location)

    def branch(role: int, then: Region, other: Region) -> list[Operation]:
        is_it = Value("t", ScalarType(bool))
        compare = Operation("compare", [the_role, Constant(role)], location, "==", results=[is_it])
        return [compare, Operation("if", [is_it], location, regions=[then, other])]

    the_role = Value("role", ScalarType(int))
    consumer.operations.insert(0, registers(intrinsics.CONSUMER))
    others = [registers(intrinsics.PRODUCER), *branch(intrinsics.PRODUCER, producer, Region())]
    return [
        _call(intrinsics.role, [], location, the_role),
        *branch(intrinsics.CONSUMER, consumer, Region([], others)),
        _call(intrinsics.end, [], location),
    ]


def _call(function: Any, operands: list[Any], location: Location, *results: Value) -> Operation:
    return Operation("call", operands, location, Constant(function, f"tilekit__{function.__name__}"), results=list(results))
