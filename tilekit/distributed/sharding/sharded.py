"""`Sharded`: an array whose parts are on the workers of a mesh; and the ops that give one."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from tilekit._runtime.context import ExecutionContext
from tilekit.distributed.arguments import leaves, turned
from tilekit.distributed.remote import refuse_pickling
from tilekit.distributed.sharding.picture import picture
from tilekit.distributed.sharding.specs import Region, ShardSpec, as_spec, regions, shown_region, whole_shape
from tilekit.ops import DeviceOp, Spec, join_all
from tilekit.ops.stepwise import Stepwise

if TYPE_CHECKING:
    from tilekit._runtime.device import Device
    from tilekit.distributed.remote import Remote
    from tilekit.distributed.sharding.mesh import Mesh

__all__ = ["PerWorker", "Sharded", "ShardedOp", "Steps", "Work", "of_parts"]

_SHOWN = 8  # how many parts a repr shows

Steps = Generator[DeviceOp[Any], Any, Any]


class _OnMesh:
    """What a sharded array, and an op that gives one, have of the mesh's methods."""

    __slots__ = ()

    mesh: Mesh

    def reshard(self, spec: Any) -> ShardedOp:
        """The same array split otherwise, see `Mesh.reshard`."""
        return self.mesh.reshard(self, spec)

    def reduce(self) -> ShardedOp:
        """The sum of parts that are summands, see `Mesh.reduce`."""
        return self.mesh.reduce(self)

    def all_reduce(self, axis: str | Sequence[str], op: str = "sum") -> ShardedOp:
        """The parts along axes of the mesh combined, see `Mesh.all_reduce`."""
        return self.mesh.all_reduce(self, axis, op)

    def all_gather(self, axis: str | Sequence[str], dim: int | None = None) -> ShardedOp:
        """The parts along axes of the mesh joined, see `Mesh.all_gather`."""
        return self.mesh.all_gather(self, axis, dim)

    def reduce_scatter(self, axis: str | Sequence[str], dim: int = 0, op: str = "sum") -> ShardedOp:
        """The parts along axes of the mesh combined, and the result split over them, see `Mesh.reduce_scatter`."""
        return self.mesh.reduce_scatter(self, axis, dim, op)


class Sharded(_OnMesh):
    """An array in parts, each on the device of a worker; they stay there.

    `Mesh.shard` and `Mesh.map` give some. The methods are lazy: each returns an op.

    Attributes:
        mesh: whose workers hold the parts.
        shape, dtype: of the whole array.
        spec: over which axes of the mesh it is split, with an entry for each dimension.
        parts: what each worker holds, in the order of `mesh.workers`: a `Remote`, C-contiguous.
    """

    __slots__ = ("__weakref__", "dtype", "mesh", "parts", "shape", "spec")

    def __init__(self, mesh: Mesh, shape: Sequence[int], dtype: Any, spec: ShardSpec, parts: Sequence[Any]) -> None:
        self.mesh, self.shape, self.dtype, self.spec, self.parts = mesh, tuple(shape), dtype, spec, tuple(parts)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the whole array in bytes: copies count once."""
        return self.size * int(self.dtype.itemsize)

    def to_host(self) -> DeviceOp[np.ndarray[Any, Any]]:
        """An op that gathers the array in the host's memory, as a new NumPy array. Of copies one is fetched.

        Raises:
            ValueError: its parts are summands.
        """
        self.refuse_partial("to_host")
        return HostOp(self)

    def refuse_partial(self, what: str) -> None:
        """A ValueError if the parts are summands (internal)."""
        if self.spec.partial:
            raise ValueError(
                f"{what}: the parts of {self} are summands over {', '.join(map(repr, self.spec.partial))}: sum them first, "
                "with .reduce(), or with .reduce_scatter(axis, dim)"
            )

    def layout(self) -> str:
        """A drawing of which worker holds which part, for people."""
        return picture(self)

    def __str__(self) -> str:  # what messages say
        return f"<Sharded {self.dtype.name} {self.shape} by {self.spec!r}>"

    def __repr__(self) -> str:
        holders: dict[str, list[str]] = {}
        for number, held in enumerate(regions(self.shape, self.spec, self.mesh.axes)):
            holders.setdefault(shown_region(held, self.shape), []).append(str(number))
        shown = [f"{part} on {', '.join(numbers)}" for part, numbers in list(holders.items())[:_SHOWN]]
        more = "; ..." if len(holders) > _SHOWN else ""
        return f"{str(self)[:-1]} over {self.mesh!r}: {'; '.join(shown)}{more}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self!r} has no dimensions, and no length")
        return self.shape[0]

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self, "pass it as an argument, mesh.map(function, x): each worker gets its part")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self!r} lives on several workers; NumPy cannot read it. Write x.to_host().sync()")

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(f"{self!r} has no elements here: write x.to_host().sync()[...], or mesh.map(function, x)")

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self!r} has no truth value: write x.to_host().sync()")


def of_parts(mesh: Mesh, remotes: Sequence[Remote], spec: ShardSpec, what: str) -> Sharded:
    """The array whose parts are there already.

    Args:
        mesh: whose workers have them.
        remotes: a tensor of each worker.
        spec: how they belong together.
        what: gave them, for messages.

    Raises:
        ValueError: these are not the parts of any array.
    """
    shapes = [remote.shape or () for remote in remotes]
    ranks = sorted(set(map(len, shapes)))
    if len(ranks) > 1:
        raise ValueError(f"{what}: tensors with {' and '.join(map(str, ranks))} dimensions; the parts of one array have as many")
    for number, remote in enumerate(remotes):
        if remote.dtype != remotes[0].dtype:
            raise ValueError(
                f"{what}: {remotes[0].dtype.name} on worker 0 and {remote.dtype.name} on worker {number}; the parts of one array "
                "have one dtype"
            )
    whole = as_spec(spec, mesh.axes, ranks[0], f"{what}: out")
    return Sharded(mesh, whole_shape(shapes, whole, mesh.axes, what), remotes[0].dtype, whole, remotes)


class PerWorker:
    """An argument of `Mesh.map` that is another value for each worker.

    Attributes:
        mesh: whose workers.
        parts: the values, in their order.

    Raises:
        ValueError: more or fewer values than workers.
    """

    __slots__ = ("mesh", "parts")

    def __init__(self, mesh: Mesh, values: Sequence[Any]) -> None:
        self.mesh, self.parts = mesh, tuple(values)
        if len(self.parts) != mesh.size:
            raise ValueError(f"per_worker: {len(self.parts)} values for {mesh.size} workers; each gets one")

    def __repr__(self) -> str:
        return f"<PerWorker {list(self.parts)} over {self.mesh!r}>"


class Work(NamedTuple):
    """What an op of a mesh does, and what is known of its result.

    Attributes:
        steps: a generator of the ops to run, see `tilekit.operation`.
        shape, dtype: of the result; None where they are not known yet.
    """

    steps: Callable[[], Steps]
    shape: tuple[int, ...] | None = None
    dtype: Any = None


class ShardedOp(_OnMesh, Stepwise[Any]):
    """An op that gives a `Sharded`, or a tuple of them. What a `Sharded` can do, its op can: the op comes first then.

    Args:
        mesh: whose workers do it.
        label: what the op is called in messages.
        operands: what it is of: ops among them, in tuples, lists and dicts too, run first.
        prepare: gives the work for the operands, results in the place of ops.
        work: the same, if it is known already.
        count: how many results there are, if they are a tuple.
    """

    def __init__(
        self,
        mesh: Mesh,
        label: str,
        operands: Iterable[Any],
        prepare: Callable[..., Work],
        work: Work | None = None,
        count: int | None = None,
    ) -> None:
        self.mesh, self._label, self.operands, self._prepare, self._work = mesh, label, tuple(operands), prepare, work
        self.count = count
        if work is not None and work.shape is not None:
            self.spec = Spec(work.shape, work.dtype)
        self._ops = tuple(dict.fromkeys(leaf for leaf in leaves(self.operands) if isinstance(leaf, DeviceOp)))
        for op in self._ops:
            op.consumed()

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The ops among the operands."""
        return self._ops

    @property
    def device(self) -> Device | None:
        """None: workers have devices of their own, and so do the operands."""
        return None

    @property
    def specs(self) -> tuple[Spec | None, ...] | None:
        """What is known of each result, if there are several."""
        return None if self.count is None else (None,) * self.count

    def begin(self, ctx: ExecutionContext) -> Steps:
        """Run the operands, then the work."""
        work = self._work
        if work is None:
            results = {}
            for op in self._ops:
                results[id(op)] = yield op if op.device is None else op.on(op.device)
            work = self._prepare(*turned(self.operands, lambda leaf: results.get(id(leaf), leaf)))
        else:
            self.mesh.check_open()
        return (yield from work.steps())


class HostOp(Stepwise[Any]):
    """The op of `Sharded.to_host`."""

    _label = "to_host"

    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded
        self.spec = Spec(sharded.shape, sharded.dtype)

    def begin(self, ctx: ExecutionContext) -> Steps:
        """Fetch one copy of each part, all side by side."""
        x = self.sharded
        holders: dict[Region, Any] = {}
        for held, part in zip(regions(x.shape, x.spec, x.mesh.axes), x.parts):
            if all(start < stop for start, stop in held):
                holders.setdefault(held, part)
        fetched = yield join_all([part.to_host() for part in holders.values()], parallel=True)
        if len(holders) == 1 and fetched[0].shape == x.shape and fetched[0].flags.writeable:
            return fetched[0]
        whole = np.empty(x.shape, x.dtype)
        for held, array in zip(holders, fetched):
            whole[tuple(slice(*ends) for ends in held)] = array
        return whole
