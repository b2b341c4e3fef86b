"""`connect`: a cluster, by the name of its engine."""

from __future__ import annotations

from typing import Any

from tilekit.distributed.cluster import Cluster
from tilekit.distributed.local import LocalCluster

__all__ = ["connect"]


def connect(engine: str = "local", devices: Any = None, **options: Any) -> Cluster:
    """Connect to workers.

    Args:
        engine: "local": this process's devices, a worker for each. "ray": a process for each device, as actors of Ray, which is
            started on this machine unless it runs or `address=` says where it does.
        devices: of "local", which: a list of devices or their labels; by default all of the default device's kind.
        options: of "ray": `gpus=8`, a worker for each GPU, or `workers=2, device="cpu"`; `address`, of a running Ray cluster as
            `ray.init` has it; `runtime_env`, what the workers' processes need; `ray_options`, more for `ray.init`, where that is
            called; `startup_timeout_s`, how long to wait for the workers, in seconds, 120 by default.

    Raises:
        TypeError, ValueError: no such engine or option.
        DeviceUnavailableError: a device does not exist, or the engine has no room for the workers.
        ImportError: the engine's library is not installed, or too old.
    """
    if engine == "local":
        if options:
            raise TypeError(f'connect("local") takes devices=, not {", ".join(options)}')
        return LocalCluster(devices)
    if engine == "ray":
        if devices is not None:
            raise TypeError('connect("ray") takes gpus=, or workers= and device=, not devices')
        try:
            from tilekit.distributed._ray import connect as connect_ray
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "ray":
                raise
            raise ImportError(
                f'connect("ray") needs Ray 2.55 or newer ({error}): pip install "tilekit-cuda[ray]"', name=error.name
            ) from error
        cluster: Cluster = connect_ray(**options)
        return cluster
    raise ValueError(f'there is no engine {engine!r}: connect("local") or connect("ray")')
