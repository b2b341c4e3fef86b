"""`Mesh`: workers in a grid with named axes, over which arrays are sharded."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from tilekit import dtypes
from tilekit._runtime.device import Device
from tilekit._tensor.tensor import Tensor, refuse_mask
from tilekit.distributed.arguments import leaves
from tilekit.distributed.cluster import Cluster, WorkerGroup
from tilekit.distributed.engines import connect
from tilekit.distributed.remote import Remote, refuse_pickling
from tilekit.distributed.sharding import collectives
from tilekit.distributed.sharding.mapped import mapped, with_specs
from tilekit.distributed.sharding.resharding import reshard
from tilekit.distributed.sharding.sharded import PerWorker, Sharded, ShardedOp, Steps, Work, of_parts
from tilekit.distributed.sharding.specs import ShardSpec, as_names, as_spec, check_names, coordinates, regions
from tilekit.distributed.worker import Worker
from tilekit.ops import DeviceOp, join_all

__all__ = ["Mesh"]


class Mesh:
    """Workers in a grid with named axes. A context manager: at its end it is closed.

        with distributed.Mesh(["cpu:0", "cpu:1", "cpu:2", "cpu:3"], {"data": 2, "model": 2}) as mesh:
            x = mesh.shard(array, ("data", None))             # rows over "data", copies along "model"
            y = mesh.map(kernels.softmax, x)                  # on every worker, of its part
            y.to_host().sync()

    Arrays are split over its axes by a spec, see `ShardSpec`: a tuple that names for each dimension an axis, several, or None. A
    dimension is split as NumPy's `array_split` does: over `n` workers, the first `extent % n` parts are one longer than the
    others, so that extents need not divide. Collectives need even parts, and say so.

    All methods but `close` build ops, which do nothing before they run. Where they take a `Sharded`, an op that gives one will
    do; it runs first. What parts share memory with, if nothing had to be moved, is not specified.

    If a worker is lost, WorkerLostError says which; what it held is gone. The cluster starts another in its place, if its engine
    does that, and the mesh goes on with it: shard again.

    Args:
        workers: a `Cluster`; workers of one; or devices of this process, or their labels. By default all devices of the
            default device's kind.
        axes: the names of the axes and their lengths, the last one the fastest: worker 1 is the neighbour of worker 0 along it.

    Attributes:
        axes: the names and lengths.
        workers: in the order of the grid.
        cluster: theirs.
        size: how many there are.

    Raises:
        TypeError: something else than the above.
        ValueError: the product of the lengths is not the number of workers.
    """

    def __init__(self, workers: Any = None, axes: Mapping[str, int] | None = None) -> None:
        if axes is None and isinstance(workers, Mapping):
            workers, axes = None, workers
        self.axes: Mapping[str, int] = MappingProxyType(_checked_axes(axes))
        self.size = math.prod(self.axes.values())
        self._owns_cluster = False
        if isinstance(workers, Cluster):
            self.cluster, chosen = workers, workers.workers
        elif isinstance(workers, (list, tuple)) and workers and all(isinstance(worker, Worker) for worker in workers):
            self.cluster, chosen = workers[0].cluster, tuple(workers)
            for worker in chosen:
                self.cluster.check_own(worker, f"{worker!r} cannot be in the mesh")
            if len(set(chosen)) < len(chosen):
                raise ValueError(f"Mesh: a worker occurs twice in {list(chosen)!r}")
        elif workers is None or (isinstance(workers, (list, tuple)) and all(isinstance(w, (str, Device)) for w in workers)):
            self.cluster, self._owns_cluster = connect("local", workers), True
            chosen = self.cluster.workers
        else:
            raise TypeError(f"Mesh takes a cluster, a list of workers or of devices, and axes, not {workers!r}")
        if len(chosen) != self.size:
            if self._owns_cluster:
                self.cluster.close()
            shown = " * ".join(map(str, self.axes.values()))
            some = "devices" if self._owns_cluster else "cluster.workers"
            fewer = f"; Mesh({some}[:{self.size}], axes) takes some of them" if len(chosen) > self.size else ""
            raise ValueError(f"Mesh: axes of {shown} = {self.size} workers, and there are {len(chosen)}{fewer}")
        self.workers: tuple[Worker, ...] = chosen
        self._lock = threading.Lock()
        self._groups: dict[tuple[int, ...], WorkerGroup] = {}
        self._closed = False

    # arrays

    def shard(self, array: Any, spec: Any = None) -> ShardedOp:
        """An op that gives each worker its part of an array.

        Args:
            array: a NumPy array (or what NumPy makes one of); a tensor, which goes through the host's memory; or an op that gives
                one of these. It is read while the op runs. One that is sharded already is resharded.
            spec: see `ShardSpec`; by default each worker gets all of it.

        Raises:
            TypeError: no array, or of a dtype that tensors cannot have; no spec.
            ValueError: an axis that the mesh does not have, or twice; more entries than dimensions; summands (`partial`).
        """

        def prepare(spec: ShardSpec, source: Any) -> Work:
            return (self._resharding if isinstance(source, Sharded) else self._sharding)(source, spec)

        return self._op("shard", (array,), partial(self._split, spec, "shard"), prepare)

    def _split(self, spec: Any, what: str) -> ShardSpec:
        checked = as_spec(spec, self.axes, None, what)
        if checked.partial:
            raise ValueError(f"{what}: {checked!r} is of summands, which only map gives: leave partial= out")
        return checked

    def _sharding(self, array: Any, spec: ShardSpec) -> Work:
        if isinstance(array, Tensor):
            if array.is_meta:
                raise TypeError(f"shard: {array!r} has no memory, so there is nothing to split")
        else:
            refuse_mask("shard", array)
            try:
                array = np.asarray(array)
            except (TypeError, ValueError) as error:
                raise TypeError(f"shard: NumPy makes no array of this {type(array).__name__}: {error}") from error
        dtype, shape = dtypes.as_dtype(array.dtype), tuple(array.shape)
        whole = as_spec(spec, self.axes, len(shape), "shard")

        def steps() -> Steps:
            source = array
            if isinstance(array, Tensor):
                assert array.device is not None, "refused above"
                source = yield array.to_host().on(array.device)
            puts = []
            for worker, held in zip(self.workers, regions(shape, whole, self.axes)):
                puts.append(worker.put(source[tuple(slice(*ends) for ends in held)]))
            return Sharded(self, shape, dtype, whole, (yield join_all(puts, parallel=True)))

        return Work(steps, shape, dtype)

    def from_parts(self, parts: Sequence[Any], spec: Any) -> Sharded:
        """The array whose parts are on the workers already. Nothing is moved.

        Args:
            parts: a `Remote` of a C-contiguous tensor for each worker, in the order of `workers`.
            spec: how they belong together.

        Raises:
            TypeError, ValueError: something else; parts that no array is split into by `spec`.
        """
        remotes = list(parts)
        if len(remotes) != self.size:
            raise ValueError(f"from_parts: {len(remotes)} parts for {self.size} workers; each has one")
        for worker, part in zip(self.workers, remotes):
            if not isinstance(part, Remote) or part.shape is None:
                raise TypeError(f"from_parts: a part is the Remote of a tensor, not {part!r}")
            if part.worker is not worker:
                raise ValueError(f"from_parts: {part!r} is not on {worker!r}; parts come in the order of mesh.workers")
        return of_parts(self, remotes, as_spec(spec, self.axes, None, "from_parts"), "from_parts")

    def map(self, function: Callable[..., Any], /, *args: Any, out: Any = None, **kwargs: Any) -> ShardedOp:
        """An op that calls `function` of the local parts on every worker, and runs the op that it returns there: all in one call.

        Args:
            function: of the local parts, which are tensors. It returns an op, or a tensor, array or number; it only describes
                work, as a function given to `then` does. On other machines it is what cloudpickle makes of it.
            args, kwargs: what is sharded arrives as the worker's part, also in tuples, lists and dicts; `axis_index` and
                `per_worker` as this worker's value; all else as it is, but NumPy arrays and tensors as tensors on its device.
            out: how the results belong together, a spec; a list of specs, if `function` gives a tuple: then the op's result is a
                tuple, too. By default the spec of the first sharded argument; see below.

        Raises:
            TypeError: `function` is none, or gave what is no tensor.
            ValueError: without `out`: another argument is split over an axis over which the first is not, or the parts of the
                results have other extents where the first is split. With it: the parts are not those of one array. An argument's
                parts are summands, and `out` does not say that the results are. An argument is of another mesh.
            Whatever the function and its op raise.
        """

        def check() -> Any:
            if not callable(function) or isinstance(function, (DeviceOp, Sharded)):
                raise TypeError(f"map takes a function of the local parts, and then its arguments, not {type(function).__name__}")
            return with_specs(self, out)

        label = f"map {getattr(function, '__name__', type(function).__name__)}"
        count = len(out) if isinstance(out, list) else None
        return self._op(label, (args, kwargs), check, partial(mapped, self, function), count=count)

    def per_worker(self, values: Sequence[Any]) -> PerWorker:
        """An argument of `map` that is another value for each worker, in the order of `workers`."""
        return PerWorker(self, values)

    def axis_index(self, axis: str | Sequence[str]) -> PerWorker:
        """An argument of `map`: where each worker is along an axis, from 0; along several with the last as the fastest."""
        names = self._names(axis, "axis_index")
        lengths = [self.axes[name] for name in names]
        return PerWorker(self, [int(np.ravel_multi_index([at[n] for n in names], lengths)) for at in coordinates(self.axes)])

    def reshard(self, x: Any, spec: Any) -> ShardedOp:
        """An op that splits an array otherwise, or brings it from another mesh of the same cluster.

        Pieces go from worker to worker, whatever the extents; where copies are handed to all along an axis, and the parts are
        even, that is an all-gather.

        Args:
            x: a `Sharded`, or an op that gives one.
            spec: see `ShardSpec`.

        Raises:
            TypeError, ValueError: as `shard`; the parts of `x` are summands; its mesh is of another cluster.
        """
        return self._op(
            "reshard", (x,), partial(self._split, spec, "reshard"), lambda spec, array: self._resharding(array, spec), of=Sharded
        )

    def _resharding(self, x: Sharded, spec: ShardSpec) -> Work:
        x.refuse_partial("reshard")
        if x.mesh.cluster is not self.cluster:
            raise ValueError(f"reshard: {x} is on another cluster than {self!r}; mesh.shard(x.to_host(), spec) brings it here")
        return reshard(self, x, as_spec(spec, self.axes, x.ndim, "reshard"))

    # collectives

    def reduce(self, x: Any) -> ShardedOp:
        """An op that sums the parts of an array that are summands: an all-reduce over the axes that its spec calls partial.

        Raises:
            TypeError, ValueError: `x` is no sharded array, or none of summands.
        """

        def prepare(_: None, array: Sharded) -> Work:
            self._check_own(array, "reduce")
            if not array.spec.partial:
                raise ValueError(f"reduce: the parts of {array} are no summands: its spec has no partial=")
            return collectives.all_reduce(self, array, array.spec.partial, "sum")

        return self._op("reduce", (x,), lambda: None, prepare, of=Sharded)

    def all_reduce(self, x: Any, axis: str | Sequence[str], op: str = "sum") -> ShardedOp:
        """An op that combines the parts along axes of the mesh, element by element; all workers along them get the result.

        Summands (`partial`) become their sum. If the axes split a dimension, the parts are combined all the same, and its extent
        is divided by their length.

        Args:
            x: a `Sharded`, or an op that gives one.
            axis: the name of an axis, or several.
            op: "sum", "prod", "max", "min", or of floats "avg".

        Raises:
            TypeError: no such argument, or a dtype that cannot be reduced.
            ValueError: no such axis or op; parts of several shapes along the axes; the workers along an axis hold copies.
        """
        return self._collective("all_reduce", x, axis, lambda array, names: collectives.all_reduce(self, array, names, op))

    def all_gather(self, x: Any, axis: str | Sequence[str], dim: int | None = None) -> ShardedOp:
        """An op that joins the parts along axes of the mesh: the same array, no longer split over them.

        Args:
            x: a `Sharded`, or an op that gives one.
            axis: the name of an axis, or several. Of a dimension that several axes split, the last ones come first.
            dim: the dimension that they split, which the spec says as well.

        Raises:
            TypeError: no such argument.
            ValueError: no such axis; it does not split the array, or another dimension; uneven parts, which `reshard` gathers.
        """
        return self._collective("all_gather", x, axis, lambda array, names: collectives.all_gather(self, array, names, dim))

    def reduce_scatter(self, x: Any, axis: str | Sequence[str], dim: int = 0, op: str = "sum") -> ShardedOp:
        """An op that combines the parts along axes of the mesh, as `all_reduce`, and splits a dimension of the result over them.

        Args:
            x: a `Sharded`, or an op that gives one.
            axis: the name of an axis, or several.
            dim: the dimension to split; if it is split already, the parts are split further.
            op: as of `all_reduce`.

        Raises:
            TypeError, ValueError: as `all_reduce`; no such dimension, or its parts cannot be split evenly.
        """
        scatter = lambda array, names: collectives.reduce_scatter(self, array, names, dim, op)  # noqa: E731
        return self._collective("reduce_scatter", x, axis, scatter)

    def _collective(self, label: str, x: Any, axis: Any, work: Callable[[Sharded, tuple[str, ...]], Work]) -> ShardedOp:
        def prepare(names: tuple[str, ...], array: Sharded) -> Work:
            self._check_own(array, label)
            return work(array, names)

        return self._op(label, (x,), lambda: self._names(axis, label), prepare, of=Sharded)

    # its end

    def close(self) -> None:
        """Give up the groups of the collectives, and the cluster, if the mesh connected to it itself. Twice does nothing more."""
        with self._lock:
            groups, self._groups, self._closed = list(self._groups.values()), {}, True
        for group in groups:
            group.close()
        if self._owns_cluster:
            self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(
            self, "functions that workers run use none of the mesh; mesh.axis_index(axis) is an argument that tells where"
        )

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<Mesh {', '.join(f'{name}={length}' for name, length in self.axes.items())} of {self.cluster.engine}{closed}>"

    # for the ops

    def group(self, row: Sequence[int]) -> WorkerGroup:
        """The group of some workers, by their numbers. Blocks until they have joined, the first time (internal)."""
        with self._lock:
            self.check_open()
            key = tuple(row)
            if key not in self._groups:
                self._groups[key] = self.cluster.group([self.workers[number] for number in key])
            return self._groups[key]

    def forget_groups(self) -> None:
        """Join anew for the next collective: a member of a group was lost, or late (internal)."""
        with self._lock:
            self._groups = {}

    def check_open(self) -> None:
        """Whether it takes work (internal).

        Raises:
            ValueError: it is closed.
        """
        if self._closed:
            raise ValueError(f"{self!r} is closed, and takes no more work")
        self.cluster.check_open()

    def _check_own(self, x: Sharded, what: str) -> None:
        if x.mesh is not self:
            raise ValueError(f"{what}: {x} is of another mesh than {self!r}; mesh.reshard(x, spec) brings it to this one")

    def _names(self, axis: str | Sequence[str], what: str) -> tuple[str, ...]:
        names = as_names(axis, what)
        check_names(names, self.axes, what)
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{what}: one axis or several that differ, not {axis!r}")
        return names

    def _op(
        self,
        label: str,
        operands: tuple[Any, ...],
        check: Callable[[], Any],
        prepare: Callable[..., Work],
        *,
        count: int | None = None,
        of: type[Sharded] | None = None,
    ) -> ShardedOp:
        """The op whose work `prepare` gives: now, if no operand is an op, so that misuse is reported where it is.

        Args:
            label, operands, count: as of `ShardedOp`.
            check: looks at what else there is; if it raises, of the operands nobody need be told that they have not run.
            prepare: gives the work for what `check` gave, and the operands.
            of: what the one operand must be, if that is so.
        """
        ops = [leaf for leaf in leaves(operands) if isinstance(leaf, DeviceOp)]
        try:
            known = check()
        except BaseException:
            for op in ops:
                op.consumed()
            raise

        def work(*resolved: Any) -> Work:
            self.check_open()
            if of is not None and not isinstance(resolved[0], of):
                raise TypeError(f"{label} takes a Sharded, or an op that gives one, not {type(resolved[0]).__name__}")
            return prepare(known, *resolved)

        return ShardedOp(self, label, operands, work, None if ops else work(*operands), count)


def _checked_axes(axes: Any) -> dict[str, int]:
    if not isinstance(axes, Mapping):
        raise TypeError(f'Mesh: axes is a dict of names and lengths, such as {{"data": 2, "model": 4}}, not {axes!r}')
    for name, length in axes.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"Mesh: the name of an axis is a str, not {name!r}")
        if isinstance(length, bool) or not isinstance(length, int):
            raise TypeError(f"Mesh: the length of the axis {name!r} is an int, not {length!r}")
        if length < 1:
            raise ValueError(f"Mesh: the length of the axis {name!r} is {length}, and must be at least 1")
    if not axes:
        raise ValueError("Mesh: no axes; a mesh has at least one")
    return dict(axes)
