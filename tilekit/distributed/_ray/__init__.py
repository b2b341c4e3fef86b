"""The Ray engine: a worker is an actor with a device of its own, on this machine or another of the Ray cluster.

Results stay in the actors, which keep them by number; a `Remote` here knows the number, and has it dropped when it is collected.
A call is one message: the function, its arguments, and what stands for results that the worker has. What other workers have goes
from them to it directly, by Ray Direct Transport or the object store. Nothing is kept here that could be lost with a worker but
the arguments of the call under way, with which it can be sent again.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from typing import Any

import ray

from tilekit.distributed._ray.calls import Dropper, RayWorker
from tilekit.distributed._ray.group import RayGroup
from tilekit.distributed._ray.process import ProcessOptions
from tilekit.distributed.cluster import Cluster, WorkerGroup
from tilekit.distributed.worker import Worker
from tilekit.errors import DeviceUnavailableError

__all__ = ["RayCluster", "connect"]


def connect(
    *,
    gpus: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    address: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    ray_options: dict[str, Any] | None = None,
    startup_timeout_s: float = 120.0,
) -> RayCluster:
    """Start workers as actors of Ray. Blocks until all are there: seconds, where Ray itself has to be started.

    Args:
        gpus: a worker for each of so many GPUs, which Ray deals out.
        workers: or so many workers with a CPU device.
        device: "cuda" with `gpus`, "cpu" with `workers`; may be left out.
        address: of a running Ray cluster, as `ray.init` has it ("auto", "ray://..." is not taken). By default one is started on
            this machine, and stopped by `close()`. Where Ray is initialised already, that is used, and left running.
        runtime_env: what the workers' processes need, as Ray has it: modules, packages, environment variables.
        ray_options: more options for `ray.init`, where that is called.
        startup_timeout_s: how long to wait for the workers, in seconds.

    Raises:
        TypeError, ValueError: not one of `gpus` and `workers`; another device.
        DeviceUnavailableError: there is no room for the workers in the Ray cluster, or they did not start; the text says which.
    """
    if (gpus is None) == (workers is None):
        raise TypeError('connect("ray") takes gpus=8, a worker for each GPU, or workers=2, with a CPU device each')
    kind = "cuda" if gpus is not None else "cpu"
    if device not in (None, kind):
        raise ValueError(
            f'connect("ray"): device={device!r} does not go with {"gpus" if gpus is not None else "workers"}=: '
            'write gpus=8 for workers with a GPU, or workers=2, device="cpu"'
        )
    count = gpus if gpus is not None else workers
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f'connect("ray"): the number of workers is an int, not {count!r}')
    if count < 1:
        raise ValueError(f'connect("ray"): the number of workers is {count}, and at least 1')
    if address is not None and address.startswith("ray://"):
        raise ValueError(
            f'connect("ray"): {address} is Ray\'s client protocol, which cannot move tensors between workers; run this program '
            'in the cluster, with address="auto"'
        )
    seconds = float(startup_timeout_s)
    if not 0 < seconds < math.inf:
        raise ValueError(f'connect("ray"): startup_timeout_s is {startup_timeout_s!r}, and must be positive')
    started = not ray.is_initialized()
    if started:
        local: dict[str, Any] = {} if address is not None else {"include_dashboard": False}
        options = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR, **local, **(ray_options or {})}
        ray.init(**options)
    try:
        return RayCluster(count, ProcessOptions(kind=kind, runtime_env=runtime_env, startup_timeout_s=seconds), started)
    except BaseException:
        if started:
            ray.shutdown()
        raise


class RayCluster(Cluster):
    """Workers that are actors of Ray.

    Args:
        count: how many.
        options: how their processes are started.
        started: whether Ray was started for this cluster, which stops it then.

    Attributes:
        submitting: held while workers are asked to do something together: all get what they wait for each other in, in one order.
    """

    engine = "ray"

    def __init__(self, count: int, options: ProcessOptions, started: bool) -> None:
        self.options, self._started = options, started
        self.keys = itertools.count()
        self.group_numbers = itertools.count()
        self.submitting = threading.Lock()
        have = ray.cluster_resources().get("GPU", 0)
        if options.kind == "cuda" and have < count:
            raise DeviceUnavailableError(
                f'connect("ray", gpus={count}): the Ray cluster has {have:g} GPUs; gpus={int(have)} takes them all'
                if have
                else f'connect("ray", gpus={count}): the Ray cluster has no GPU; workers={count} takes CPU devices'
            )
        self.dropper = Dropper()
        own = tuple(RayWorker(self, rank) for rank in range(count))
        self.workers = own
        try:
            for worker in own:
                worker.home.ready()
                worker.device = worker.home.about["device"]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers' processes; Ray too, if it was started for them."""
        if self._closed:
            return
        super().close()
        self.dropper.stop()
        for worker in self.workers:
            if isinstance(worker, RayWorker):
                worker.home.end()
        if self._started and ray.is_initialized():
            ray.shutdown()

    def _group(self, workers: tuple[Worker, ...]) -> WorkerGroup:
        return RayGroup(self, tuple(worker for worker in workers if isinstance(worker, RayWorker)))
