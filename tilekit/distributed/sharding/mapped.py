"""A function of local parts, on every worker of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tilekit.distributed.arguments import leaves, turned
from tilekit.distributed.remote import Remote
from tilekit.distributed.sharding import parts as on_worker
from tilekit.distributed.sharding.sharded import PerWorker, Sharded, Steps, Work, of_parts
from tilekit.distributed.sharding.specs import ShardSpec, as_spec, regions
from tilekit.ops import join_all

if TYPE_CHECKING:
    from tilekit.distributed.sharding.mesh import Mesh

__all__ = ["mapped", "with_specs"]


def mapped(mesh: Mesh, function: Callable[..., Any], out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Work:
    """The work of `Mesh.map`; no argument is an op."""
    arrays = [leaf for leaf in leaves((tuple(args), kwargs)) if isinstance(leaf, Sharded)]
    for leaf in leaves((tuple(args), kwargs)):
        if isinstance(leaf, (Sharded, PerWorker)) and leaf.mesh is not mesh:
            raise ValueError(f"map: {leaf} is of another mesh than {mesh!r}; mesh.reshard(x, spec) brings an array to this one")
    specs: list[ShardSpec] | None = None if out is None else out if isinstance(out, list) else [out]
    _check_partial(arrays, specs)
    call = on_worker.MapCall(function, tuple(kwargs), len(out) if isinstance(out, list) else None)

    def steps() -> Steps:
        runs = []
        for number, worker in enumerate(mesh.workers):
            own = turned((*args, *kwargs.values()), partial(_on, number))
            runs.append(worker.run(call, *own))
        remotes = yield join_all(runs, parallel=True)
        if specs is None:
            return of_parts(mesh, remotes, _default(mesh, arrays, remotes, call.__name__), f"map: {call.__name__}")
        if call.count is None:
            return of_parts(mesh, remotes, specs[0], f"map: {call.__name__}")
        results = []
        for at, spec in enumerate(specs):
            each = [worker.run(on_worker.element, several, at) for worker, several in zip(mesh.workers, remotes)]
            results.append(of_parts(mesh, (yield join_all(each, parallel=True)), spec, f"map: result {at} of {call.__name__}"))
        return tuple(results)

    return Work(steps)


def _on(number: int, leaf: Any) -> Any:
    """What a worker gets of an argument."""
    return leaf.parts[number] if isinstance(leaf, (Sharded, PerWorker)) else leaf


def with_specs(mesh: Mesh, out: Any) -> Any:
    """What `out=` says, checked: a spec, a list of them, or None."""
    if isinstance(out, list):
        if not out:
            raise ValueError("map: out=[] says that there are no results; give a spec for each")
        return [as_spec(spec, mesh.axes, None, "map: out") for spec in out]
    if isinstance(out, tuple) and any(isinstance(part, ShardSpec) or (isinstance(part, tuple) and None in part) for part in out):
        raise TypeError(
            f"map: out={out!r} is no spec; for several results it is a list of specs, one for each: out={list(out)!r}"
        )
    return None if out is None else as_spec(out, mesh.axes, None, "map: out")


def _check_partial(arrays: Sequence[Sharded], specs: Sequence[ShardSpec] | None) -> None:
    for x in arrays:
        for name in x.spec.partial:
            if not all(name in spec.partial for spec in specs or ()) or not specs:
                raise ValueError(
                    f"map: the parts of {x} are summands over {name!r}, and a function of a summand is mostly none of the sum: "
                    f"x.reduce() sums them. If it is linear, so that its results are summands, say so: out=ShardSpec(..., "
                    f"partial={name!r})"
                )


def _default(mesh: Mesh, arrays: Sequence[Sharded], remotes: Sequence[Remote], name: str) -> ShardSpec:
    """The spec of the first sharded argument, if the results can have it."""
    if not arrays:
        raise ValueError(f"map: no argument of {name} is sharded: say with out= how its results belong together, as a spec")
    first = arrays[0]
    for other in arrays[1:]:
        more = [axis for axis in other.spec.split if axis not in first.spec.split]
        if more:
            raise ValueError(
                f"map: {other} is split over {more[0]!r}, and the first sharded argument of {name}, {first}, is not: "
                f"say with out= whether results are split over that axis too, or summands: ShardSpec(..., partial={more[0]!r})"
            )
    for number, (held, remote) in enumerate(zip(regions(first.shape, first.spec, mesh.axes), remotes)):
        shape = remote.shape or ()
        if len(shape) != first.ndim or any(
            first.spec.names(dim) and shape[dim] != stop - start for dim, (start, stop) in enumerate(held)
        ):
            part = tuple(stop - start for start, stop in held)
            raise ValueError(
                f"map: {name} gave {shape} for a part of {part} on worker {number}, so that its results are not split as its "
                f"first sharded argument, {first}: say with out= how they are"
            )
    return first.spec
