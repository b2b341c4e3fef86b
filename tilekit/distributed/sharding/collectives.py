"""The collectives of a mesh: parts combined or joined along axes, by a group of workers for each row of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilekit._runtime.context import ExecutionContext
from tilekit.distributed.cluster import WorkerGroup
from tilekit.distributed.sharding import parts as on_worker
from tilekit.distributed.sharding.sharded import Sharded, Steps, Work
from tilekit.distributed.sharding.specs import coordinates, regions, whole_shape
from tilekit.distributed.worker import WorkerLostError
from tilekit.errors import GroupError
from tilekit.ops import DeviceOp, join_all
from tilekit.ops.execution import HostJob
from tilekit.ops.execution import Steps as OpSteps

if TYPE_CHECKING:
    from tilekit.distributed.sharding.mesh import Mesh

__all__ = ["OPS", "all_gather", "all_reduce", "along", "count", "gathers", "on_each", "reduce_scatter", "rows"]

OPS = ("sum", "prod", "max", "min", "avg")


def rows(mesh: Mesh, names: Sequence[str]) -> list[tuple[int, ...]]:
    """The workers that differ along these axes alone, by their numbers; in each row the last name is the fastest."""
    by_others: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for number, at in enumerate(coordinates(mesh.axes)):
        others = tuple(index for name, index in at.items() if name not in names)
        by_others.setdefault(others, []).append((tuple(at[name] for name in names), number))
    return [tuple(number for _, number in sorted(row)) for row in by_others.values()]


class Joining(DeviceOp[WorkerGroup]):
    """The group of a row of workers. The first time they have to join, which may take a while."""

    _label = "join a group"

    def __init__(self, mesh: Mesh, row: tuple[int, ...]) -> None:
        self.mesh, self.row = mesh, row

    def steps(self, ctx: ExecutionContext) -> OpSteps:
        """Let the host do it."""
        job = HostJob(lambda: self.mesh.group(self.row), prepares=True)
        yield [job]
        return job.result()


def all_reduce(mesh: Mesh, x: Sharded, names: tuple[str, ...], op: str) -> Work:
    """The work of `Mesh.all_reduce`."""
    extents = _combined(mesh, x, names, op, "all_reduce")
    spec = x.spec.reduced(names)
    shape = whole_shape(extents, spec, mesh.axes, "all_reduce")

    def steps() -> Steps:
        parts = yield from along(mesh, names, "all_reduce", x.parts, op=op)
        return Sharded(mesh, shape, x.dtype, spec, parts)

    return Work(steps, shape, x.dtype)


def reduce_scatter(mesh: Mesh, x: Sharded, names: tuple[str, ...], dim: int, op: str) -> Work:
    """The work of `Mesh.reduce_scatter`."""
    dim = _dimension(x, dim, "reduce_scatter")
    extents = _combined(mesh, x, names, op, "reduce_scatter")
    spec, members = x.spec.reduced(names), count(mesh, names)
    shape = whole_shape(extents, spec, mesh.axes, "reduce_scatter")
    odd = next((part[dim] for part in extents if part[dim] % members), None)
    if odd is not None:
        raise ValueError(
            f"reduce_scatter: a collective needs even parts, and dimension {dim} of a part of {x} has the extent {odd}, which "
            f"{members} workers {_along_axes(names)} do not divide. all_reduce takes any extent, and reshard splits unevenly"
        )
    scattered = spec.with_dim(dim, (*spec.names(dim), *names))

    def steps() -> Steps:
        parts = yield from along(mesh, names, "reduce_scatter", x.parts, dim, op=op)
        return Sharded(mesh, shape, x.dtype, scattered, parts)

    return Work(steps, shape, x.dtype)


def all_gather(mesh: Mesh, x: Sharded, names: tuple[str, ...], dim: int | None) -> Work:
    """The work of `Mesh.all_gather`."""
    if set(names) & set(x.spec.partial):
        x.refuse_partial("all_gather")
    dim = None if dim is None else _dimension(x, dim, "all_gather")
    steps_of: dict[int, tuple[str, ...]] = {}
    for name in names:
        split = x.spec.dim_of(name)
        if split is None:
            raise ValueError(f"all_gather: {x} is not split over {name!r}: there is nothing to gather along that axis")
        if dim not in (None, split):
            raise ValueError(f"all_gather: {name!r} splits dimension {split} of {x}, not {dim}: leave dim= out")
        steps_of[split] = (*steps_of.get(split, ()), name)
    spec = x.spec
    for split, gathered in steps_of.items():
        held = spec.names(split)
        rest = held[: len(held) - len(gathered)]
        if set(held[len(rest) :]) != set(gathered):
            raise ValueError(
                f"all_gather: dimension {split} of {x} is split over {held}, the first of which is the slowest: gather the "
                "last ones first, or all of them; reshard does any change"
            )
        steps_of[split] = held[len(rest) :]
        if not gathers(mesh, x, split, rest):
            raise ValueError(
                f"all_gather: a collective needs even parts, and {_along_axes(gathered)} those of {x} differ in dimension "
                f"{split}, of extent {x.shape[split]}. x.reshard({spec.with_dim(split, rest)!r}) gathers uneven ones"
            )
        spec = spec.with_dim(split, rest)

    def steps() -> Steps:
        parts: Sequence[Any] = x.parts
        for split, gathered in steps_of.items():
            parts = yield from along(mesh, gathered, "all_gather", parts, split)
        return Sharded(mesh, x.shape, x.dtype, spec, parts)

    return Work(steps, x.shape, x.dtype)


def gathers(mesh: Mesh, x: Sharded, dim: int, rest: tuple[str, ...]) -> bool:
    """Whether a collective can gather a dimension, so that only the axes `rest`, the first it is split over, still split it."""
    held = x.spec.names(dim)
    return held[: len(rest)] == rest and x.shape[dim] % count(mesh, held) == 0


def _combined(mesh: Mesh, x: Sharded, names: tuple[str, ...], op: str, what: str) -> list[tuple[int, ...]]:
    """The shapes of the parts, if those along the axes can be combined element by element."""
    if op not in OPS:
        raise ValueError(f"{what}: op is one of {', '.join(map(repr, OPS))}, not {op!r}")
    if x.spec.partial and op not in ("sum", "avg"):
        raise ValueError(
            f"{what}: the parts of {x} are summands over {', '.join(map(repr, x.spec.partial))}, and the {op} of summands is not "
            "that of their sums: sum them first, with .reduce()"
        )
    for name in names:
        if name in x.spec.partial:
            if op != "sum":
                raise ValueError(f"{what}: the parts of {x} are summands over {name!r}: op is 'sum' there, not {op!r}")
        elif x.spec.dim_of(name) is None:
            raise ValueError(
                f"{what}: along {name!r} the workers hold copies of {x}: there is nothing to combine. If they hold summands, "
                f"map that gave them has to say so: out=ShardSpec(..., partial={name!r})"
            )
    extents = [tuple(stop - start for start, stop in held) for held in regions(x.shape, x.spec, mesh.axes)]
    for row in rows(mesh, names):
        shapes = list(dict.fromkeys(extents[number] for number in row))
        if len(shapes) > 1:
            raise ValueError(
                f"{what}: a collective needs even parts, and {_along_axes(names)} those of {x} have the shapes "
                f"{', '.join(map(str, shapes))}. Take an extent that the number of workers divides, or reshard first"
            )
    return extents


def _along_axes(names: Sequence[str]) -> str:
    return f"along {', '.join(map(repr, names))}"


def count(mesh: Mesh, names: Sequence[str]) -> int:
    return math.prod(mesh.axes[name] for name in names)


def _dimension(x: Sharded, dim: int, what: str) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"{what}: dim is an int, not {dim!r}")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{what}: {x} has {x.ndim} dimensions, and no dimension {dim}")
    return dim % x.ndim


def along(mesh: Mesh, names: Sequence[str], name: str, parts: Sequence[Any], dim: int = 0, **options: Any) -> Steps:
    """One collective in each row of workers along the axes, all side by side; the parts that come of it.

    It splits or joins dimension `dim`, which comes first for that time.
    """
    several = rows(mesh, names)
    if len(several) == len(parts):  # rows of one worker
        return list(parts)
    if dim:
        parts = yield from on_each(mesh, on_worker.leading, parts, dim)
    calls = []
    for row in several:
        group = yield Joining(mesh, row)
        calls.append(group.collective(name, [parts[number] for number in row], **options))
    try:
        results = yield join_all(calls, parallel=True)
    except (GroupError, WorkerLostError):
        mesh.forget_groups()
        raise
    by_number = dict(zip(itertools.chain(*several), itertools.chain(*results)))
    parts = [by_number[number] for number in range(len(parts))]
    return (yield from on_each(mesh, on_worker.trailing, parts, dim)) if dim else parts


def on_each(mesh: Mesh, function: Callable[..., Any], parts: Sequence[Any], *args: Any) -> Steps:
    """A function of each part, on its worker, all side by side; what it gives."""
    return (yield join_all([worker.run(function, part, *args) for worker, part in zip(mesh.workers, parts)], parallel=True))
