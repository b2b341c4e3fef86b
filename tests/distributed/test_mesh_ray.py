"""A mesh of Ray's actors with CPU devices."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

import tilekit as tk
from tilekit import distributed, kernels
from tilekit.distributed import WorkerLostError
from tilekit.distributed.sharding.mesh import Mesh
from tilekit.distributed.sharding.specs import ShardSpec

ray = pytest.importorskip("ray", "2.55", reason="Ray is not installed: pip install 'tilekit-cuda[ray]'")
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::ResourceWarning:ray")]


@tk.kernel
def scale(y: tk.InOut, factor: float):
    y.store(y.load() * factor)


def scaled(x, factor):
    return scale(x.dup().partition((4, 4)), factor).out()


@pytest.fixture(scope="module")
def cluster():
    from ray import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # workers cannot import tests
    try:
        with distributed.connect("ray", workers=4, device="cpu", ray_options={"object_store_memory": 200_000_000}) as opened:
            yield opened
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def mesh(cluster):
    with Mesh(cluster, {"data": 2, "model": 2}) as opened:
        yield opened


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def test_arrays_and_functions(mesh):
    array = drawn(7, 6)
    x = mesh.shard(array, ("data", "model")).sync()
    assert x.layout().endswith("workers: 0 cpu:0, 1 cpu:0, 2 cpu:0, 3 cpu:0")
    y = mesh.map(scaled, x, mesh.axis_index(("data", "model"))).sync()
    factors = np.repeat(np.repeat([[0, 1], [2, 3]], [4, 3], 0), 3, 1)
    np.testing.assert_array_equal(y.to_host().sync(), array * factors)
    twice, column = mesh.map(lambda x: (scaled(x, 2.0), x[:, :1]), x, out=[("data", "model")] * 2).sync()
    np.testing.assert_array_equal(twice.to_host().sync(), 2 * array)
    np.testing.assert_array_equal(column.to_host().sync(), array[:, ::3])
    with pytest.raises(TypeError, match="gave dict, not a tensor"):
        mesh.map(lambda x: {}, x).sync()


def test_other_splits(mesh):
    for rows, columns in ((7, 6), (8, 8)):  # pieces; collectives
        array = drawn(rows, columns)
        x = mesh.shard(array, ("data", "model")).sync()
        for spec in (("model", "data"), ("data", None), (None, ("model", "data")), ()):
            np.testing.assert_array_equal(x.reshard(spec).to_host().sync(), array)
        z = mesh.shard(array, (None, "model")).reshard(("model", None)).sync()
        np.testing.assert_array_equal(z.to_host().sync(), array)


def test_a_network_split_over_the_workers(mesh):
    x, w, v = drawn(6, 8), drawn(8, 10, seed=1), drawn(10, 4, seed=2)

    def network(x, w, v):
        return kernels.gemm(kernels.gemm(x, w), v)

    args = mesh.shard(x, "data"), mesh.shard(w, (None, "model")), mesh.shard(v, ("model", None))
    y = mesh.map(network, *args, out=ShardSpec("data", None, partial="model")).reduce().sync()
    np.testing.assert_array_equal(y.to_host().sync(), x @ w @ v)


def test_a_mesh_goes_on_after_a_worker_was_lost(mesh):
    x = mesh.shard(drawn(4, 4), ("data", "model")).sync()
    total = drawn(4, 4)[:2] + drawn(4, 4)[2:]
    np.testing.assert_array_equal(x.all_reduce("data").to_host().sync(), total)
    os.kill(mesh.workers[3].home.about["pid"], signal.SIGKILL)
    with pytest.raises(WorkerLostError, match=r"worker 3 of ray"):
        x.all_reduce("data").to_host().sync()
    again = mesh.shard(drawn(4, 4), ("data", "model")).sync()
    np.testing.assert_array_equal(again.all_reduce("data").to_host().sync(), total)
