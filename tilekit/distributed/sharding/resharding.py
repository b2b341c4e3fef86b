"""Another split of a sharded array: pieces go from worker to worker, whatever the extents; or a collective where one will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tilekit.distributed.sharding import parts as on_worker
from tilekit.distributed.sharding.collectives import all_gather, along, count, gathers, on_each
from tilekit.distributed.sharding.sharded import Sharded, Steps, Work
from tilekit.distributed.sharding.specs import Region, ShardSpec, regions
from tilekit.ops import join_all

if TYPE_CHECKING:
    from tilekit.distributed.sharding.mesh import Mesh

__all__ = ["reshard"]


def reshard(mesh: Mesh, x: Sharded, spec: ShardSpec) -> Work:
    """The work of `Mesh.reshard`: to `mesh`, which may be another than that of `x`, of the same cluster."""

    def steps() -> Steps:
        between = _before_gathering(mesh, x, spec) if x.mesh is mesh else spec
        exchange = _exchange(mesh, x, between) if x.mesh is mesh else None
        parts = yield from _moved(mesh, x, between) if exchange is None else _exchanged(mesh, x, *exchange)
        result = Sharded(mesh, x.shape, x.dtype, between, parts)
        for dim in range(x.ndim):
            late = between.names(dim)[len(spec.names(dim)) :]
            if late:
                result = yield from all_gather(mesh, result, late, dim).steps()
        return result

    return Work(steps, x.shape, x.dtype)


def _before_gathering(mesh: Mesh, x: Sharded, spec: ShardSpec) -> ShardSpec:
    """The spec from which all-gathers lead to the wanted one: copies are handed on last, by those who can do that best."""
    between = spec
    for dim in range(x.ndim):
        before, after = x.spec.names(dim), spec.names(dim)
        late = before[len(after) :]
        if late and before[: len(after)] == after and gathers(mesh, x, dim, after) and not set(late) & set(spec.split):
            between = between.with_dim(dim, before)
    return between


def _exchange(mesh: Mesh, x: Sharded, spec: ShardSpec) -> tuple[int, int, tuple[str, ...]] | None:
    """Whether an all-to-all leads to the spec: the last axes that split one even dimension split another one further instead.

    The dimension that they split before, the one that they split then, and they; or None.
    """
    changed = [dim for dim in range(x.ndim) if x.spec.names(dim) != spec.names(dim)]
    if len(changed) != 2:
        return None
    for before, after in (changed, changed[::-1]):
        names = x.spec.names(before)[len(spec.names(before)) :]
        further = spec.names(after)
        if names and further == (*x.spec.names(after), *names) and gathers(mesh, x, before, spec.names(before)):
            return (before, after, names) if x.shape[after] % count(mesh, further) == 0 else None
    return None


def _exchanged(mesh: Mesh, x: Sharded, before: int, after: int, names: tuple[str, ...]) -> Steps:
    """The parts by another spec, see `_exchange`."""
    parts: Sequence[Any] = x.parts
    if after:
        parts = yield from on_each(mesh, on_worker.leading, parts, after)
    parts = yield from along(mesh, names, "all_to_all", parts)
    return (yield from on_each(mesh, on_worker.exchanged, parts, before, after, count(mesh, names)))


class _Piece(NamedTuple):
    """Elements that a new part gets.

    Attributes:
        source: the number of the worker that has them.
        of: where they are in that worker's part; None for all of it.
        to: where they go in the new part.
    """

    source: int
    of: Region | None
    to: Region


def _moved(mesh: Mesh, x: Sharded, spec: ShardSpec) -> Steps:
    """The parts by another spec. Each worker gets the pieces that it lacks, and builds its part of them."""
    wanted = regions(x.shape, spec, mesh.axes)
    recipes = _recipes(mesh, x, wanted)
    cuts: dict[tuple[int, Region | None], Any] = {}  # the pieces that leave their worker, and are not all that it has
    for worker, recipe in zip(mesh.workers, recipes):
        for piece in recipe:
            source = x.mesh.workers[piece.source]
            if source is not worker and piece.of is not None and (piece.source, piece.of) not in cuts:
                cuts[piece.source, piece.of] = source.run(on_worker.cut, x.parts[piece.source], piece.of)
    ready = dict(zip(cuts, (yield join_all(cuts.values(), parallel=True))))
    builds: list[Any] = []
    for worker, recipe, region in zip(mesh.workers, recipes, wanted):
        shape = tuple(stop - start for start, stop in region)
        pieces, inner = [], []
        for piece in recipe:
            moves = piece.of is not None and x.mesh.workers[piece.source] is not worker
            pieces.append(ready[piece.source, piece.of] if moves else x.parts[piece.source])
            inner.append(None if moves else piece.of)
        if not pieces:
            builds.append(worker.run(on_worker.empty, shape, x.dtype))
        elif len(pieces) > 1:
            builds.append(worker.run(on_worker.assembled, shape, [piece.to for piece in recipe], inner, *pieces))
        elif inner[0] is None:
            builds.append(pieces[0].to(worker))
        else:
            builds.append(worker.run(on_worker.cut, pieces[0], inner[0]))
    return (yield join_all(builds, parallel=True))


def _recipes(mesh: Mesh, x: Sharded, wanted: Sequence[Region]) -> list[list[_Piece]]:
    """Of which pieces each worker builds its part: of its own, where it has all, else of what is nearest at hand."""
    held = regions(x.shape, x.spec, x.mesh.axes)
    holders: dict[Region, list[int]] = {}
    for number, region in enumerate(held):
        holders.setdefault(region, []).append(number)
    own = {worker: number for number, worker in enumerate(x.mesh.workers)}
    recipes = []
    for target, (worker, region) in enumerate(zip(mesh.workers, wanted)):
        here = own.get(worker)
        inside = here is not None and _inside(region, held[here])
        recipe = []
        for source, numbers in holders.items():
            if inside and here not in numbers:
                continue
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(region, source))
            if any(start >= stop for start, stop in common):
                continue
            number = here if here is not None and here in numbers else numbers[target % len(numbers)]  # not always the same
            recipe.append(_Piece(number, None if common == source else _shifted(common, source), _shifted(common, region)))
        recipes.append(recipe)
    return recipes


def _inside(wanted: Region, held: Region) -> bool:
    return all(c <= a and b <= d for (a, b), (c, d) in zip(wanted, held))


def _shifted(held: Region, by: Sequence[tuple[int, int]]) -> Region:
    """The region as counted from the start of another."""
    return tuple((start - origin, stop - origin) for (start, stop), (origin, _) in zip(held, by))
