"""Work on many devices, of one process or of many machines: clusters of workers, and results that stay where they are.

    with tk.Mesh({"data": 2, "model": 2}) as mesh:
        x = mesh.shard(array, ("data", None))
        y = mesh.map(kernels.softmax, x).sync()

    with distributed.connect("local") as cluster:
        x = cluster.workers[0].put(array).sync()
        y = cluster.workers[1].run(step, x).sync()
        y.to_host().sync()

A worker is a device and the process that drives it. `run` calls a function there, which returns an op, and runs the op there, a
whole chain in one call; its result is a `Remote`. A mesh is a grid of workers with named axes, over which arrays are sharded.
All are ordinary lazy ops. The engine says where the workers are: "local" is this process's devices; "ray" (extra `ray`) is a
process for each device, on as many machines as the Ray cluster has.
"""

from __future__ import annotations

from tilekit.distributed.cluster import Cluster as Cluster
from tilekit.distributed.engines import connect as connect
from tilekit.distributed.remote import Remote as Remote
from tilekit.distributed.sharding.mesh import Mesh as Mesh
from tilekit.distributed.sharding.sharded import Sharded as Sharded
from tilekit.distributed.sharding.specs import ShardSpec as ShardSpec
from tilekit.distributed.worker import Worker as Worker
from tilekit.distributed.worker import WorkerLostError as WorkerLostError

__all__ = ["Cluster", "Mesh", "Remote", "ShardSpec", "Sharded", "Worker", "WorkerLostError", "connect"]
