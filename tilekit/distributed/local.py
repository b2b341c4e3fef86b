"""The local engine: this process's devices, a worker for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilekit import api
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device, default_device, devices, use_device
from tilekit._tensor.tensor import Tensor
from tilekit.distributed.arguments import as_result, leaves, turned
from tilekit.distributed.cluster import Cluster, WorkerGroup, check_collective
from tilekit.distributed.remote import Remote
from tilekit.distributed.worker import RemoteRun, Worker
from tilekit.ops import DeviceOp, HostValue, Spec
from tilekit.ops.execution import Steps
from tilekit.ops.host_values import moments, unwrap

__all__ = ["LocalCluster", "LocalRemote", "LocalWorker", "to_host_steps"]


class LocalCluster(Cluster):
    """This process's devices.

    Args:
        chosen: which; by default all of the default device's kind.
    """

    engine = "local"

    def __init__(self, chosen: Any = None) -> None:
        if chosen is None:
            kind = default_device().kind
            chosen = [device for device in devices() if device.kind == kind]
        if isinstance(chosen, (str, int, Device)):
            raise TypeError(f"devices is a list of devices, not {chosen!r}: write devices=[{chosen!r}]")
        own = [Device(device) for device in chosen]
        if not own or len(set(own)) != len(own):
            raise ValueError(f"devices are some that differ, at least one, not {[device.label for device in own]}")
        self.workers = tuple(LocalWorker(self, rank, device) for rank, device in enumerate(own))

    def _group(self, workers: tuple[Worker, ...]) -> WorkerGroup:
        return _LocalGroup(self, workers)


class LocalWorker(Worker):
    """A device of this process's.

    Args:
        cluster, rank: as of `Worker`.
        device: the device.
    """

    __slots__ = ("_own",)

    def __init__(self, cluster: Cluster, rank: int, device: Device) -> None:
        super().__init__(cluster, rank, device.label)
        self._own = device

    @property
    def _device(self) -> Device:
        return self._own

    def _steps(self, call: RemoteRun, args: tuple[Any, ...], kwargs: dict[str, Any], ctx: ExecutionContext) -> Steps:
        """Bring the arguments to the device, call the function, run its op there."""
        args, kwargs = yield self._arriving((args, kwargs), ctx)
        with use_device(self._own):
            built = call.build(*args, **kwargs)
        if isinstance(built, DeviceOp):
            if built._site is None:
                built._site = call._site
            built = yield built.on(self._own).start(ctx)
            if pending := moments(built):
                yield pending
                built = unwrap(built)
        result = as_result(built, call.label)
        if any(isinstance(leaf, Tensor) and leaf.device is not self._own for leaf in leaves(result)):
            result = yield self._brought(result, ctx)  # by a function that went on elsewhere
        return LocalRemote(self, result)

    def _brought(self, value: Any, ctx: ExecutionContext) -> Steps:
        """Steps that give `value` with tensors of this device for those of others."""
        arrived: dict[int, Any] = {}
        for leaf in leaves(value):
            if isinstance(leaf, Tensor) and leaf.device is not self._own and id(leaf) not in arrived:
                arrived[id(leaf)] = yield leaf.to(self._own).start(ctx)
        return turned(value, lambda leaf: arrived.get(id(leaf), leaf)) if arrived else value

    def _arriving(self, value: Any, ctx: ExecutionContext) -> Steps:
        """Steps that give `value` with tensors of this device for Remotes, tensors and arrays."""
        value = yield self._brought(turned(value, lambda leaf: leaf.value if isinstance(leaf, LocalRemote) else leaf), ctx)
        arrived: dict[int, Any] = {}
        for leaf in leaves(value):
            if isinstance(leaf, np.ndarray) and id(leaf) not in arrived:
                arrived[id(leaf)] = yield api.from_host(leaf).on(self._own).start(ctx)
        return turned(value, lambda leaf: arrived.get(id(leaf), leaf)) if arrived else value


class LocalRemote(Remote):
    """A result on a device of this process's.

    Attributes:
        value: the result itself.
    """

    __slots__ = ("value",)

    def __init__(self, worker: LocalWorker, value: Any) -> None:
        self.worker, self.value = worker, value
        self.shape, self.dtype = (value.shape, value.dtype) if isinstance(value, Tensor) else (None, None)

    def to_host(self) -> DeviceOp[Any]:
        """As of `Remote`."""
        return _ToHost(self)


class _ToHost(DeviceOp[Any]):
    """A local result as the host has it."""

    _label = "to_host"

    def __init__(self, remote: LocalRemote) -> None:
        self.remote = remote
        if remote.shape is not None:
            self.spec = Spec(remote.shape, remote.dtype)

    @property
    def device(self) -> Device | None:
        """The worker's."""
        return self.remote.worker._device

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Copy what is on the device."""
        self.remote.worker.cluster.check_open()
        return (yield to_host_steps(self.remote.value, ctx))


def to_host_steps(value: Any, ctx: ExecutionContext) -> Steps:
    """Steps that give `value` with NumPy arrays in the place of its tensors."""
    if isinstance(value, Tensor):
        assert value.device is not None, "workers keep no meta tensors"
        return (yield value.to_host().on(value.device).start(ctx))
    arrays: dict[int, Any] = {}
    for leaf in leaves(value):
        if isinstance(leaf, Tensor) and id(leaf) not in arrays:
            assert leaf.device is not None, "workers keep no meta tensors"
            arrays[id(leaf)] = yield leaf.to_host().on(leaf.device).start(ctx)
    if pending := moments(list(arrays.values())):
        yield pending
    arrived = {key: unwrap(array) if isinstance(array, HostValue) else array for key, array in arrays.items()}
    return turned(value, lambda leaf: arrived.get(id(leaf), leaf)) if arrived else value


class _LocalGroup:
    """Devices of this process's that communicate."""

    def __init__(self, cluster: LocalCluster, workers: tuple[Worker, ...]) -> None:
        from tilekit._groups import Group

        self.cluster, self.workers = cluster, workers
        self._group = Group([worker._own for worker in workers if isinstance(worker, LocalWorker)])

    def collective(self, name: str, parts: Sequence[Remote], **options: Any) -> DeviceOp[list[Remote]]:
        """As of `WorkerGroup`."""
        tensors = [part.value for part in check_collective(name, parts, self.workers) if isinstance(part, LocalRemote)]
        self.cluster.check_open()
        method = getattr(self._group, name)
        op: DeviceOp[Any] = method(**options) if name == "barrier" else method(tensors, **options)
        return op.map(self._results).named(name)

    def _results(self, results: Any) -> list[Remote]:
        """The results on the workers."""
        if not isinstance(results, list):  # a barrier's
            return []
        pairs = zip(self.workers, results, strict=True)
        return [LocalRemote(worker, result) for worker, result in pairs if isinstance(worker, LocalWorker)]

    def close(self) -> None:
        """As of `WorkerGroup`."""
        self._group.close()
