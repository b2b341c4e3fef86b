"""Collectives of a mesh, and arrays that are split otherwise: all against NumPy."""

from __future__ import annotations

import asyncio
import itertools
import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import distributed, kernels
from tilekit._driver.cpu import driver as cpu_driver
from tilekit._runtime.device import Device
from tilekit.distributed.sharding.mesh import Mesh
from tilekit.distributed.sharding.specs import ShardSpec

FOLDS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "avg": np.mean}


@pytest.fixture(scope="module")
def devices():
    """CPU devices of this module's own."""
    return [Device.of_driver(driver) for driver in cpu_driver.discover(8)]


@pytest.fixture
def mesh_of(cpu, devices):
    """Make a mesh of axes; all are closed at the end."""
    meshes = []

    def make(**axes):
        meshes.append(Mesh(devices[: int(np.prod(list(axes.values())))], axes))
        return meshes[-1]

    yield make
    for mesh in meshes:
        mesh.close()
    for device in devices:
        device.synchronize()


def drawn(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def held(x):
    return [part.to_host().sync() for part in x.parts]


def along(mesh, names):
    """The rows of workers that differ along these axes alone, as lists of their numbers."""
    rows = {}
    for number, at in enumerate(np.ndindex(*mesh.axes.values())):
        where = dict(zip(mesh.axes, at))
        others = tuple(index for name, index in where.items() if name not in names)
        rows.setdefault(others, []).append((tuple(where[name] for name in names), number))
    return [[number for _, number in sorted(row)] for row in rows.values()]


CASES = [
    ({"a": 2}, "a"), ({"a": 3}, "a"), ({"a": 2, "b": 2}, "a"), ({"a": 2, "b": 2}, "b"), ({"a": 2, "b": 3}, ("a", "b")),
    ({"a": 2, "b": 3}, ("b", "a")), ({"a": 2, "b": 2, "c": 2}, "b"), ({"a": 2, "b": 2, "c": 2}, ("c", "a")), ({"a": 8}, "a"),
]  # fmt: skip


@pytest.mark.parametrize(("axes", "axis"), CASES, ids=str)
@pytest.mark.parametrize("op", FOLDS)
def test_all_reduce(mesh_of, axes, axis, op):
    mesh, names = mesh_of(**axes), (axis,) if isinstance(axis, str) else axis
    x = mesh.shard(drawn((24, 3)), (tuple(axes),)).sync()
    y = mesh.all_reduce(x, axis, op).sync()
    before, after = held(x), held(y)
    for row in along(mesh, names):
        expected = FOLDS[op]([before[number] for number in row], axis=0)
        for number in row:
            np.testing.assert_allclose(after[number], expected, rtol=1e-6)
    rest = tuple(name for name in axes if name not in names)
    assert y.spec == ShardSpec(rest, None)
    assert y.shape == (24 // (x.shape[0] // y.shape[0]), 3)
    np.testing.assert_array_equal(y.to_host().sync().shape, y.shape)


@pytest.mark.parametrize(("axes", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_gather(mesh_of, axes, axis, dim):
    mesh, names = mesh_of(**axes), (axis,) if isinstance(axis, str) else axis
    rest = tuple(name for name in axes if name not in names)
    array = drawn((24, 24, 24))[:, :2] if dim != 1 else drawn((2, 24, 2))
    spec = [(), (), ()]
    spec[dim] = (*rest, *names)  # the last ones can be gathered
    x = mesh.shard(array, tuple(spec)).sync()
    for y in (mesh.all_gather(x, axis).sync(), x.all_gather(names[::-1], dim).sync(), x.all_gather(names, dim - 3).sync()):
        spec[dim] = rest
        assert y.spec == ShardSpec(*spec)
        for part, expected in zip(held(y), held(mesh.shard(array, tuple(spec)).sync())):
            np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(("axes", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_reduce_scatter(mesh_of, axes, axis, dim, op):
    mesh = mesh_of(**axes)
    x = mesh.shard(drawn((mesh.size**2, 24)), (tuple(axes),)).sync()
    y = mesh.reduce_scatter(x, axis, dim, op).sync()
    names = (axis,) if isinstance(axis, str) else axis
    whole = x.all_reduce(axis, op).sync()
    assert y.shape == whole.shape
    rest = tuple(name for name in axes if name not in names)
    assert y.spec == (ShardSpec((*rest, *names), None) if dim == 0 else ShardSpec(rest, names))
    np.testing.assert_array_equal(y.to_host().sync(), whole.to_host().sync())


def test_several_dimensions_are_gathered_in_one_op(mesh_of):
    mesh = mesh_of(a=2, b=2)
    array = drawn((4, 6))
    y = mesh.shard(array, ("a", "b")).all_gather(("a", "b")).sync()
    assert y.spec == ShardSpec(None, None)
    for part in held(y):
        np.testing.assert_array_equal(part, array)


def test_summands(mesh_of):
    mesh = mesh_of(data=2, model=2)
    x, w = drawn((6, 8)), drawn((8, 4), seed=1)
    spec = ShardSpec("data", partial="model")
    y = mesh.map(kernels.gemm, mesh.shard(x, ("data", "model")), mesh.shard(w, ("model", None)), out=spec).sync()
    assert y.spec == ShardSpec("data", None, partial="model")
    for reduced in (y.reduce(), mesh.all_reduce(y, "model")):
        z = reduced.sync()
        assert z.spec == ShardSpec("data", None)
        np.testing.assert_array_equal(z.to_host().sync(), x @ w)
        np.testing.assert_array_equal(z.parts[0].to_host().sync(), z.parts[1].to_host().sync())
    z = y.reduce_scatter("model", 1).sync()
    assert z.spec == ShardSpec("data", "model")
    np.testing.assert_array_equal(z.to_host().sync(), x @ w)
    both = y.all_reduce(("data", "model")).sync()  # summands along one, parts along the other
    np.testing.assert_array_equal(both.to_host().sync(), (x @ w)[:3] + (x @ w)[3:])


def test_summands_over_several_axes(mesh_of):
    mesh = mesh_of(a=2, b=2, c=2)
    y = mesh.map(lambda at: np.full(3, at, np.float32), mesh.axis_index(("a", "b", "c")), out=ShardSpec("c", partial=("a", "b")))
    y = y.sync()
    assert y.reduce().to_host().sync().tolist() == [0 + 2 + 4 + 6] * 3 + [1 + 3 + 5 + 7] * 3
    gathered = y.all_gather("c").sync()
    assert gathered.spec == ShardSpec(None, partial=("a", "b"))
    assert gathered.reduce().to_host().sync().tolist() == [12] * 3 + [16] * 3
    one = y.all_reduce("a").sync()
    assert one.spec == ShardSpec("c", partial="b")
    assert one.reduce().to_host().sync().tolist() == [12] * 3 + [16] * 3


def test_an_axis_of_one_worker(mesh_of):
    mesh = mesh_of(a=1, b=2)
    x = mesh.shard(drawn((4, 5)), ("a", "b")).sync()
    np.testing.assert_array_equal(x.all_reduce("a").to_host().sync(), drawn((4, 5)))
    np.testing.assert_array_equal(x.all_gather("a").to_host().sync(), drawn((4, 5)))
    np.testing.assert_array_equal(x.reduce_scatter("a", 1).to_host().sync(), drawn((4, 5)))


def test_collectives_take_ops(mesh_of):
    mesh = mesh_of(a=2, b=2)
    array = drawn((4, 4))
    op = mesh.shard(array, ("a", "b")).all_gather("b").all_reduce("a")
    assert op.to_host().sync().tolist() == (array[:2] + array[2:]).tolist()
    shared = mesh.map(lambda x: x.dup(), mesh.shard(array, ("a", "b"))).shared()
    first, second = tk.zip(mesh.all_reduce(shared, "a"), mesh.reshard(shared, ("b", "a"))).sync()
    np.testing.assert_array_equal(first.to_host().sync(), array[:2] + array[2:])
    np.testing.assert_array_equal(second.to_host().sync(), array)
    known = mesh.all_reduce(mesh.shard(array, ("a", "b")).sync(), "a")
    assert (known.shape, known.dtype) == ((2, 4), np.float32)
    known.sync()


def test_tasks_share_a_mesh(mesh_of):
    mesh = mesh_of(a=2, b=2)

    async def one(seed):
        array = drawn((4, 4), seed=seed)
        y = await mesh.shard(array, ("a", "b")).all_reduce("a").reshard(()).run()
        return array, await y.to_host()

    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(one, range(6))), 60)

    for array, y in asyncio.run(main()):
        np.testing.assert_array_equal(y, array[:2] + array[2:])


def test_groups_are_kept_until_the_mesh_closes(mesh_of, monkeypatch):
    mesh = mesh_of(a=2, b=2)
    joined, left = [], []
    group = mesh.cluster.group

    def noted(workers):
        joined.append([worker.rank for worker in workers])
        made_group = group(workers)
        close = made_group.close
        made_group.close = lambda: (left.append(None), close())
        return made_group

    monkeypatch.setattr(mesh.cluster, "group", noted)
    x = mesh.shard(drawn((4, 4)), ("a", "b")).sync()
    for _ in range(3):
        x.all_reduce("a").sync()
        x.all_reduce(("a", "b")).sync()
        x.all_gather("b").sync()
    assert sorted(joined) == [[0, 1], [0, 1, 2, 3], [0, 2], [1, 3], [2, 3]]
    assert not left
    mesh.close()
    assert len(left) == 5


# other splits


@pytest.mark.parametrize("axes", [{"a": 2}, {"a": 3}, {"a": 2, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 2, "c": 2}], ids=str)
@pytest.mark.parametrize("shape", [(7,), (5, 9), (8, 12), (3, 2, 4)], ids=str)
def test_every_split_becomes_every_other(mesh_of, axes, shape):
    mesh, array = mesh_of(**axes), drawn(shape)
    names = list(axes)
    specs = {()}
    for count in range(1, len(names) + 1):
        for chosen in itertools.permutations(names, count):
            dims = [()] * len(shape)
            for at, name in enumerate(chosen):
                dims[at % len(shape)] = (*dims[at % len(shape)], name)
            specs |= {tuple(dims), (*((),) * (len(shape) - 1), chosen)}
    specs = sorted(specs, key=str)
    if len(specs) > 4:
        specs = [specs[at] for at in np.random.default_rng(0).permutation(len(specs))[:4]]
    for before, after in itertools.product(specs, repeat=2):
        x = mesh.shard(array, before).sync()
        y = x.reshard(after).sync()
        assert y.spec == ShardSpec(*after, *((),) * (len(shape) - len(after)))
        for part, expected in zip(held(y), held(mesh.shard(array, after).sync())):
            np.testing.assert_array_equal(part, expected)


def test_what_is_where_it_belongs_stays(mesh_of):
    mesh = mesh_of(a=2, b=2)
    x = mesh.shard(drawn((4, 4)), ("a", "b")).sync()
    assert x.reshard(("a", "b")).sync().parts == x.parts
    whole = mesh.shard(drawn((4, 4))).sync()
    assert whole.reshard(None).sync().parts == whole.parts


def test_copies_along_an_axis_are_gathered(mesh_of, monkeypatch):
    mesh = mesh_of(a=2, b=2)
    calls = []
    group = mesh.group

    def noted(row):
        calls.append(tuple(row))
        return group(row)

    monkeypatch.setattr(mesh, "group", noted)
    array = drawn((8, 8))
    even = mesh.shard(array, ("a", "b")).sync()
    np.testing.assert_array_equal(even.reshard(("a", None)).to_host().sync(), array)
    assert sorted(calls) == [(0, 1), (2, 3)]
    np.testing.assert_array_equal(even.reshard(()).to_host().sync(), array)
    calls.clear()
    np.testing.assert_array_equal(mesh.shard(drawn((7, 7)), ("a", "b")).reshard(()).to_host().sync(), drawn((7, 7)))  # uneven
    assert not calls


@pytest.mark.parametrize(("before", "after"), [
    ((("a",), (), ()), ((), ("a",), ())),
    (((), (), ("b", "a")), (("b", "a"), (), ())),
    ((("a", "b"), (), ()), (("a",), (), ("b",))),
    ((("a",), ("b",), ()), ((), ("b", "a"), ())),
], ids=str)  # fmt: skip
def test_an_axis_that_splits_another_dimension_is_an_all_to_all(mesh_of, monkeypatch, before, after):
    mesh, calls = mesh_of(a=2, b=3), []
    group = mesh.group

    class Noted:
        def __init__(self, row):
            self.group = group(row)

        def collective(self, name, parts, **options):
            calls.append(name)
            return self.group.collective(name, parts, **options)

    array = drawn((12, 6, 18))
    x = mesh.shard(array, before).sync()
    monkeypatch.setattr(mesh, "group", Noted)
    y = x.reshard(after).sync()
    assert set(calls) == {"all_to_all"}
    for part, expected in zip(held(y), held(mesh.shard(array, after).sync())):
        np.testing.assert_array_equal(part, expected)
    calls.clear()
    uneven = mesh.shard(array[:11, :5, :17], before).reshard(after).sync()
    np.testing.assert_array_equal(uneven.to_host().sync(), array[:11, :5, :17])
    assert not calls


# what is refused


def refused(error, text, call):
    def run():
        return call().sync()

    with pytest.raises(error, match=re.escape(text)):
        run()


def test_collectives_need_even_parts(mesh_of):
    mesh = mesh_of(a=2, b=2)
    x = mesh.shard(drawn((5, 4)), ("a", "b")).sync()
    refused(ValueError, "all_reduce: a collective needs even parts, and along 'a' those of", lambda: mesh.all_reduce(x, "a"))
    refused(ValueError, "have the shapes (3, 2), (2, 2)", lambda: mesh.all_reduce(x, "a"))
    refused(ValueError, "x.reshard(ShardSpec(None, 'b')) gathers uneven ones", lambda: mesh.all_gather(x, "a"))
    refused(ValueError, "has the extent 3, which 2 workers along 'b' do not divide", lambda: mesh.reduce_scatter(x, "b"))
    np.testing.assert_array_equal(x.all_reduce("b").to_host().sync(), drawn((5, 4))[:, :2] + drawn((5, 4))[:, 2:])
    uneven = mesh.shard(drawn((6,)), (("a", "b"),))  # of 2, 2, 1, 1: rows along "b" are even, but not split as one array
    refused(ValueError, "a collective needs even parts", lambda: mesh.all_gather(uneven, "b"))


def test_collectives_that_there_are_not(mesh_of):
    mesh = mesh_of(data=2, model=2)
    x = mesh.shard(drawn((4, 4)), ("data", None)).sync()
    refused(ValueError, "all_reduce: the mesh has no axis 'batch'", lambda: mesh.all_reduce(x, "batch"))
    refused(ValueError, "all_reduce: the mesh has no axis 'batch'", lambda: mesh.all_reduce(mesh.shard(drawn(4)), "batch"))
    refused(ValueError, "one axis or several that differ", lambda: mesh.all_reduce(x, ()))
    refused(ValueError, "one axis or several that differ", lambda: mesh.all_gather(x, ("data", "data")))
    refused(TypeError, "all_reduce: the name of an axis or a tuple of names, not 0", lambda: mesh.all_reduce(x, 0))
    refused(ValueError, "op is one of 'sum', 'prod', 'max', 'min', 'avg', not 'mean'", lambda: mesh.all_reduce(x, "data", "mean"))
    refused(ValueError, "the workers hold copies of", lambda: mesh.all_reduce(x, "model"))
    refused(ValueError, "out=ShardSpec(..., partial='model')", lambda: mesh.reduce_scatter(x, "model"))
    refused(ValueError, "is not split over 'model': there is nothing to gather", lambda: mesh.all_gather(x, "model"))
    refused(ValueError, "'data' splits dimension 0", lambda: mesh.all_gather(x, "data", 1))
    refused(ValueError, "has 2 dimensions, and no dimension 2", lambda: mesh.reduce_scatter(x, "data", 2))
    refused(TypeError, "dim is an int, not 'data'", lambda: mesh.all_gather(x, "data", "data"))
    refused(ValueError, "the parts of <Sharded float32 (4, 4) by ShardSpec('data', None)> are no summands", lambda: x.reduce())
    both = mesh.shard(drawn((4, 4)), (("data", "model"), None)).sync()
    refused(ValueError, "the first of which is the slowest: gather the last ones first", lambda: both.all_gather("data"))
    summands = mesh.map(lambda x: x, x, out=ShardSpec(partial="data")).sync()
    refused(ValueError, "the max of summands is not that of their sums", lambda: summands.all_reduce("data", "max"))
    refused(ValueError, "are summands over 'data': op is 'sum' there, not 'avg'", lambda: summands.all_reduce("data", "avg"))
    split = mesh.map(lambda x: x, mesh.shard(drawn((4, 4)), "data"), out=ShardSpec("data", partial="model")).sync()
    refused(ValueError, "the prod of summands is not that of their sums", lambda: split.reduce_scatter("data", op="prod"))
    refused(ValueError, "all_gather: the parts of", lambda: summands.all_gather("data"))
    refused(TypeError, "bool", lambda: mesh.shard(np.ones((4,), bool), "data").all_reduce("data"))
    with distributed.connect("local", ["cpu:0"]) as cluster, Mesh(cluster, {"data": 1}) as other:
        refused(ValueError, "brings it to this one", lambda: other.all_gather(x, "data"))
