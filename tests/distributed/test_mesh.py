"""A mesh: arrays split over workers, functions of the parts, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, distributed, kernels
from tilekit._driver.cpu import driver as cpu_driver
from tilekit._runtime.device import Device
from tilekit.distributed.sharding.mesh import Mesh
from tilekit.distributed.sharding.sharded import Sharded
from tilekit.distributed.sharding.specs import ShardSpec

MESHES = [{"a": 2}, {"a": 3}, {"a": 8}, {"a": 2, "b": 2}, {"a": 2, "b": 3}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}]
SHAPES = [(8,), (7,), (3, 5), (8, 6), (5, 4, 3), (1, 9)]


@tk.kernel
def scaled(y: tk.Out, x: tk.In, factor: float):
    y.store(tk.load_tile_like(x, y) * factor)


@tk.kernel
def added(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) + tk.load_tile_like(y, z))


def doubled(x, factor=2.0):
    flat = x.reshape(-1)
    return scaled(api.empty(flat.shape).partition(16), flat, factor).out().reshape(x.shape)


@pytest.fixture(scope="module")
def devices():
    """CPU devices of this module's own."""
    return [Device.of_driver(driver) for driver in cpu_driver.discover(8)]


@pytest.fixture
def mesh_of(cpu, devices):
    """Make a mesh of axes; all are closed at the end."""
    meshes = []

    def make(axes, workers=None):
        meshes.append(Mesh(devices[: int(np.prod(list(axes.values())))] if workers is None else workers, axes))
        return meshes[-1]

    yield make
    for mesh in meshes:
        mesh.close()
    for device in devices:
        device.synchronize()


def numbers(shape, dtype=np.float32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def specs_of(axes, ndim):
    """Some ways to split: nothing, each axis, all on one dimension, each on another."""
    names = list(axes)
    yield ()
    yield (*(None,) * (ndim - 1), names[0])
    yield (tuple(names),)
    yield (*(None,) * (ndim - 1), tuple(reversed(names)))
    if ndim > 1:
        yield (*names[: ndim - 1], tuple(names[ndim - 1 :]) or None)


def parts_by_numpy(array, spec, axes):
    """What each worker holds, by NumPy's array_split."""
    held = []
    for at in np.ndindex(*axes.values()):
        where, part = dict(zip(axes, at)), array
        for dim, entry in enumerate(spec):
            names = () if entry is None else (entry,) if isinstance(entry, str) else entry
            index, count = 0, 1
            for name in names:
                index, count = index * axes[name] + where[name], count * axes[name]
            part = np.array_split(part, count, dim)[index]
        held.append(part)
    return held


@pytest.mark.parametrize("axes", MESHES, ids=lambda axes: "x".join(map(str, axes.values())))
def test_arrays_are_split_as_numpy_splits_them(mesh_of, axes):
    mesh = mesh_of(axes)
    for shape in SHAPES:
        array = numbers(shape)
        for spec in specs_of(axes, len(shape)):
            x = mesh.shard(array, spec).sync()
            assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes) == (shape, np.float32, array.ndim, array.size, array.nbytes)
            for part, expected in zip(x.parts, parts_by_numpy(array, spec, axes)):
                np.testing.assert_array_equal(part.to_host().sync(), expected)
            host = x.to_host().sync()
            np.testing.assert_array_equal(host, array)
            assert host.flags.writeable


def test_workers_are_neighbours_along_the_last_axis(mesh_of, devices):
    mesh = mesh_of({"a": 2, "b": 3})
    assert dict(mesh.axes) == {"a": 2, "b": 3}
    assert mesh.size == 6
    x = mesh.shard(numbers((2, 3)), ("a", "b")).sync()
    assert [int(part.to_host().sync()[0, 0]) for part in x.parts] == list(range(6))
    assert [part.worker for part in x.parts] == list(mesh.workers)
    assert [part.worker.device for part in x.parts] == [device.label for device in devices[:6]]


def test_meshes_of_clusters_and_of_some_of_their_workers(mesh_of, devices):
    with distributed.connect("local", devices[:4]) as cluster:
        whole = mesh_of({"a": 2, "b": 2}, cluster)
        some = mesh_of({"a": 2}, cluster.workers[2:])
        assert whole.workers == cluster.workers
        assert some.workers == cluster.workers[2:]
        x = whole.shard(numbers((4, 4)), ("a", "b")).sync()
        y = some.reshard(x, (None, "a")).sync()
        assert [part.worker.rank for part in y.parts] == [2, 3]
        np.testing.assert_array_equal(y.to_host().sync(), numbers((4, 4)))
        back = whole.shard(y, ("b", "a")).sync()
        np.testing.assert_array_equal(back.to_host().sync(), numbers((4, 4)))
        whole.close()
        np.testing.assert_array_equal(some.shard(numbers(3)).sync().to_host().sync(), numbers(3))  # the cluster is open


def test_a_mesh_of_all_devices(cpu):
    with Mesh({"a": len([device for device in tk.devices() if device.kind == "cpu"])}) as mesh:
        assert mesh.shard(numbers(5), "a").to_host().sync().tolist() == [0, 1, 2, 3, 4]


def test_nothing_happens_before_an_op_runs(mesh_of):
    mesh, calls = mesh_of({"a": 2}), []
    array = numbers((4, 2))
    op = mesh.shard(array, "a")
    assert (op.shape, op.dtype) == ((4, 2), np.float32)
    mapped = mesh.map(lambda x: calls.append(x) or x.dup(), op)
    reduced = mesh.all_reduce(mapped, "a")
    assert calls == []
    array[:] = 1
    assert reduced.to_host().sync().tolist() == [[2, 2], [2, 2]]
    assert len(calls) == 2
    with pytest.raises(ValueError, match=r"has already run.*shared\(\)"):
        op.sync()


def test_ops_of_meshes_are_ops(mesh_of):
    mesh = mesh_of({"a": 2, "b": 2})
    array = numbers((4, 6))

    async def main():
        x, y = await tk.zip(mesh.shard(array, ("a", "b")), mesh.shard(array, ("b", None)))
        z = await mesh.map(doubled, x).then(lambda z: z.reshard(())).run()
        return await asyncio.gather(x.to_host().run(), y.to_host().run(), z.to_host().run())

    x, y, z = asyncio.run(main())
    np.testing.assert_array_equal(x, array)
    np.testing.assert_array_equal(y, array)
    np.testing.assert_array_equal(z, 2 * array)
    shared = mesh.shard(array, "a").shared()
    np.testing.assert_array_equal(mesh.map(doubled, shared).to_host().sync(), 2 * array)
    np.testing.assert_array_equal(shared.to_host().sync(), array)
    future = mesh.map(doubled, mesh.shard(array, "a")).async_on(tk.Device("cpu").stream())
    np.testing.assert_array_equal(future.result(60).to_host().sync(), 2 * array)


def test_what_is_sharded_may_be_a_tensor_or_an_op(mesh_of, devices):
    mesh = mesh_of({"a": 3})
    tensor = api.from_host(numbers((4, 2))).on(devices[1]).sync()
    for source in (tensor, api.from_host(numbers((4, 2))), tk.value(numbers((4, 2))), numbers((4, 2)).tolist()):
        np.testing.assert_array_equal(mesh.shard(source, "a").to_host().sync(), numbers((4, 2)))
    again = mesh.shard(mesh.shard(numbers((4, 2)), "a"), (None, "a")).sync()
    assert again.spec == ShardSpec(None, "a")


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float64, np.bool_, tk.bfloat16])
def test_dtypes(mesh_of, dtype):
    mesh = mesh_of({"a": 3})
    array = (numbers((7, 2)) % 2).astype(dtype)
    x = mesh.shard(array, "a").sync()
    assert x.dtype == array.dtype
    assert (x.reshard((None, "a")).sync().to_host().sync() == array).all()


# map


@pytest.mark.parametrize("axes", MESHES, ids=lambda axes: "x".join(map(str, axes.values())))
def test_functions_of_parts(mesh_of, axes):
    mesh = mesh_of(axes)
    for shape in SHAPES:
        if len(shape) == 2:
            array = numbers(shape)
            for spec in specs_of(axes, 2):
                y = mesh.map(doubled, mesh.shard(array, spec)).sync()
                assert y.spec == ShardSpec(*spec, *(None,) * (2 - len(spec)))
                np.testing.assert_array_equal(y.to_host().sync(), 2 * array)


def test_the_whole_chain_is_one_call(mesh_of):
    mesh = mesh_of({"a": 2})
    rng = np.random.default_rng(1)
    x, w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 16), (16, 4)))

    def network(x, w, v):
        return kernels.gemm(kernels.softmax(kernels.gemm(x, w)), v)

    y = mesh.map(network, mesh.shard(x, "a"), mesh.shard(w), v).sync()
    hidden = np.exp(x @ w) / np.exp(x @ w).sum(1, keepdims=True)
    np.testing.assert_allclose(y.to_host().sync(), hidden @ v, rtol=1e-4, atol=1e-5)
    assert y.spec == ShardSpec("a", None)


def test_arguments_arrive_as_they_are_or_as_parts(mesh_of):
    mesh = mesh_of({"a": 2, "b": 2})
    x = mesh.shard(numbers((4, 4)), ("a", "b"))
    seen = []

    def look(x, weights, name, *rest, factor, where):
        seen.append((weights["w"].shape, [part.shape for part in weights["more"]], name, rest, factor, where, x.device.label))
        return doubled(x, factor)

    w = mesh.shard(numbers((6, 2)), ("b",)).sync()
    where = mesh.axis_index(("a", "b"))
    more = [mesh.shard(numbers((3,)), "a"), numbers((5,))]
    y = mesh.map(look, x, {"w": w, "more": more}, "name", 1, mesh.axis_index("b"), factor=3.0, where=where).sync()
    np.testing.assert_array_equal(y.to_host().sync(), 3 * numbers((4, 4)))
    assert sorted(seen, key=lambda s: s[-2]) == [
        ((3, 2), [(2 - at // 2,), (5,)], "name", (1, at % 2), 3.0, at, worker.device) for at, worker in enumerate(mesh.workers)
    ]


def test_values_of_each_worker(mesh_of):
    mesh = mesh_of({"a": 3})
    y = mesh.map(lambda v: np.full((2,), v, np.float32), mesh.per_worker([5, 6, 7]), out="a")
    assert y.to_host().sync().tolist() == [5, 5, 6, 6, 7, 7]
    with pytest.raises(ValueError, match=r"2 values for 3 workers"):
        mesh.per_worker([1, 2])
    assert "[5, 6]" in repr(mesh_of({"a": 2}).per_worker([5, 6]))


def test_results_that_are_no_ops(mesh_of):
    mesh = mesh_of({"a": 2})
    x = mesh.shard(numbers((4, 3)), "a").sync()
    for function in (
        lambda x: x,
        lambda x: api.ones(x.shape).partition((1, 4)),
        lambda x: np.ones(x.shape),
        lambda x: x[:, ::-1],
    ):
        assert mesh.map(function, x).sync().shape == (4, 3)
    total = mesh.map(lambda x: 2.5, x, out=ShardSpec(partial="a")).sync()
    assert (total.shape, total.dtype) == ((), np.float64)
    assert total.reduce().to_host().sync() == 5.0
    view = mesh.map(lambda x: x.permute(1, 0), x, out=(None, "a")).sync()
    np.testing.assert_array_equal(view.to_host().sync(), numbers((4, 3)).T)
    np.testing.assert_array_equal(view.reshard(()).to_host().sync(), numbers((4, 3)).T)


def test_several_results(mesh_of):
    mesh = mesh_of({"a": 2})
    x = mesh.shard(numbers((4, 3)), "a").sync()
    op = mesh.map(lambda x: (doubled(x), x[:, :1]), x, out=["a", ("a", None)])
    twice, column = op.unzip()
    np.testing.assert_array_equal(twice.then(lambda x: x.to_host()).sync(), 2 * numbers((4, 3)))
    np.testing.assert_array_equal(column.sync().to_host().sync(), numbers((4, 3))[:, :1])
    both = mesh.map(lambda x: tk.zip(x.dup(), doubled(x)), x, out=["a", "a"]).sync()
    assert isinstance(both, tuple)
    assert [y.shape for y in both] == [(4, 3), (4, 3)]
    with pytest.raises(TypeError, match=r"gave 2 results, and out= has 1 specs"):
        mesh.map(lambda x: (x, x), x, out=["a"]).sync()
    with pytest.raises(TypeError, match=r"gave Tensor, and out= has 2 specs"):
        mesh.map(lambda x: x, x, out=["a", "a"]).sync()


def test_uneven_parts_go_through_map(mesh_of):
    mesh = mesh_of({"a": 3})
    array = np.random.default_rng(0).standard_normal((10, 7)).astype(np.float32)
    y = mesh.map(kernels.softmax, mesh.shard(array, "a")).to_host().sync()
    np.testing.assert_allclose(y, np.exp(array) / np.exp(array).sum(1, keepdims=True), rtol=1e-5)


def test_parts_without_elements(mesh_of):
    mesh = mesh_of({"a": 8})
    x = mesh.shard(numbers((3, 2)), "a").sync()
    assert [part.shape[0] for part in x.parts] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert [part.shape for part in x.reshard((None, "a")).sync().parts][:3] == [(3, 1), (3, 1), (3, 0)]
    np.testing.assert_array_equal(mesh.map(lambda x: x.dup(), x).to_host().sync(), numbers((3, 2)))
    assert mesh.shard(np.empty((0, 4), np.float32), ("a",)).to_host().sync().shape == (0, 4)
    assert mesh.shard(np.empty((0, 4), np.float32), ("a",)).reshard(()).to_host().sync().shape == (0, 4)


def test_users_errors_arrive_as_themselves(mesh_of):
    mesh = mesh_of({"a": 2})

    def wrong(x):
        raise KeyError("no such weight")

    with pytest.raises(KeyError, match="no such weight") as raised:
        mesh.map(wrong, mesh.shard(numbers(4), "a")).sync()
    assert any("map wrong" in note and "test_mesh.py" in note for note in raised.value.__notes__)
    np.testing.assert_array_equal(mesh.shard(numbers(4), "a").to_host().sync(), numbers(4))  # the mesh goes on


# what is refused


def refused(error, text, call):
    def run():
        return call().sync()

    with pytest.raises(error, match=re.escape(text)):
        run()


def test_meshes_that_there_are_not(mesh_of, devices):
    refused(ValueError, "axes of 2 * 2 = 4 workers, and there are 3", lambda: Mesh(devices[:3], {"a": 2, "b": 2}))
    refused(ValueError, "Mesh(devices[:2], axes)", lambda: Mesh(devices[:3], {"a": 2}))
    refused(ValueError, "a mesh has at least one", lambda: Mesh(devices[:1], {}))
    refused(ValueError, "the axis 'a' is 0", lambda: Mesh(devices[:1], {"a": 0}))
    refused(TypeError, "the axis 'a' is an int, not 2.0", lambda: Mesh(devices[:2], {"a": 2.0}))
    refused(TypeError, "the name of an axis is a str, not 1", lambda: Mesh(devices[:2], {1: 2}))
    refused(TypeError, 'such as {"data": 2, "model": 4}, not [2]', lambda: Mesh(devices[:2], [2]))
    refused(TypeError, "Mesh takes a cluster, a list of workers or of devices, and axes, not 3", lambda: Mesh(3, {"a": 3}))
    with distributed.connect("local", devices[:2]) as one, distributed.connect("local", devices[2:4]) as two:
        refused(ValueError, "of another cluster", lambda: Mesh([one.workers[0], two.workers[0]], {"a": 2}))
        refused(ValueError, "occurs twice", lambda: Mesh([one.workers[0]] * 2, {"a": 2}))
        x = Mesh(one, {"a": 2}).shard(numbers(4), "a").sync()
        refused(ValueError, "is on another cluster than", lambda: Mesh(two, {"a": 2}).reshard(x, "a"))


def test_functions_have_their_own_names_for_arguments(mesh_of):
    mesh = mesh_of({"a": 2})
    x = mesh.shard(numbers(4), "a").sync()
    doubled = mesh.map(lambda x, function, self: (x if function else None).dup(), x, function=True, self=1).sync()
    np.testing.assert_array_equal(doubled.to_host().sync(), numbers(4))


def test_specs_of_several_results_are_a_list(mesh_of):
    mesh = mesh_of({"a": 2})
    x = mesh.shard(numbers(4), "a").sync()
    for out in ((("a",), (None,)), (distributed.ShardSpec("a"), distributed.ShardSpec("a"))):
        refused(TypeError, "it is a list of specs, one for each: out=[", lambda out=out: mesh.map(lambda x: (x, x), x, out=out))
    assert mesh.map(lambda x: x.dup(), x, out=(("a",),)).sync().spec == distributed.ShardSpec("a")


def test_what_is_of_this_process_is_neither_pickled_nor_copied(mesh_of):
    """It says what to do instead: functions that use some of it would be sent to other processes."""
    mesh = mesh_of({"a": 2})
    x = mesh.shard(numbers(4), "a").sync()
    cases = [
        (mesh, "axis_index"),
        (x, "mesh.map(function, x): each worker gets its part"),
        (mesh.cluster, "functions that they run use none of the cluster"),
        (mesh.workers[0], "is passed as an argument"),
    ]
    for each, text in cases:
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=re.escape(f"{each!r} cannot be pickled or copied")) as caught:
                use(each)
            assert text in str(caught.value)


def test_specs_that_there_are_not(mesh_of):
    mesh = mesh_of({"data": 2, "model": 2})
    array = numbers((4, 4))
    refused(
        ValueError, "no axis 'modle': its axes are 'data', 'model'; did you mean 'model'?", lambda: mesh.shard(array, "modle")
    )
    refused(ValueError, "'data' occurs twice in ShardSpec('data', 'data')", lambda: mesh.shard(array, ("data", "data")))
    refused(ValueError, "is for 3 dimensions, and the array has 2", lambda: mesh.shard(array, ("data", None, "model")))
    refused(TypeError, "a spec is a tuple", lambda: mesh.shard(array, ["data"]))
    refused(TypeError, "a spec is a tuple", lambda: mesh.shard(array, 1))
    refused(TypeError, "a dimension of a spec: the name of an axis or a tuple of names, not 1", lambda: mesh.shard(array, (1,)))
    refused(ValueError, "leave partial= out", lambda: mesh.shard(array, ShardSpec(partial="data")))
    refused(ValueError, "leave partial= out", lambda: mesh.shard(array).reshard(ShardSpec(partial="data")))
    refused(ValueError, "no axis 'x'", lambda: mesh.map(lambda x: x, array, out="x"))
    refused(ValueError, "out=[] says that there are no results", lambda: mesh.map(lambda x: x, array, out=[]))


def test_arrays_that_there_are_not(mesh_of):
    mesh = mesh_of({"a": 2})
    refused(TypeError, "complex128", lambda: mesh.shard(np.zeros(3, np.complex128)))
    refused(TypeError, "has no memory", lambda: mesh.shard(api.meta((3,), tk.float32)))
    refused(TypeError, "mask", lambda: mesh.shard(np.ma.masked_array([1.0], [True])))
    refused(TypeError, "shard: NumPy makes no array", lambda: mesh.shard([[1], [1, 2]]))
    for method in (mesh.reduce, lambda x: mesh.all_reduce(x, "a"), lambda x: mesh.reshard(x, ())):
        refused(TypeError, "takes a Sharded, or an op that gives one, not ndarray", lambda method=method: method(numbers(3)))
        refused(TypeError, "takes a Sharded, or an op that gives one, not Tensor", lambda method=method: method(api.zeros(3)))


def test_results_that_are_no_parts(mesh_of):
    mesh = mesh_of({"a": 2, "b": 2})
    x, w = mesh.shard(numbers((4, 4)), "a").sync(), mesh.shard(numbers((4, 4)), (None, "b")).sync()
    refused(
        TypeError, "map takes a function of the local parts, and then its arguments, not ndarray", lambda: mesh.map(numbers(3), x)
    )
    refused(TypeError, "gave dict, not a tensor", lambda: mesh.map(lambda x: {}, x))
    refused(TypeError, "end it with .out()", lambda: mesh.map(lambda x: scaled(api.empty(4).partition(4), x[0], 2.0), x))
    refused(TypeError, "say out=[spec, ...]", lambda: mesh.map(lambda x: [x, x], x))
    refused(TypeError, "gave a meta tensor, which has no memory", lambda: mesh.map(lambda x: api.meta((2,), tk.float32), x))
    refused(ValueError, "is split over 'b', and the first sharded argument of gemm", lambda: mesh.map(kernels.gemm, x, w))
    refused(ValueError, "no argument of <lambda> is sharded: say with out=", lambda: mesh.map(lambda: api.zeros(3)))
    refused(ValueError, "gave (2,) for a part of (2, 4) on worker 0", lambda: mesh.map(lambda x: x[:, 0], x))
    refused(ValueError, "gave (1, 4) for a part of (2, 4) on worker 0", lambda: mesh.map(lambda x: x[:1], x))
    uneven = mesh.per_worker([1, 1, 3, 3])
    refused(ValueError, "parts of the shapes (1,), (3,) are not those of one array", lambda: mesh.map(api.zeros, uneven, out="a"))
    copies = mesh.per_worker([1, 2, 1, 2])
    refused(ValueError, "at a=0, b=1 it would be (1,) of (2,)", lambda: mesh.map(api.zeros, copies, out="a"))
    ranks = mesh.per_worker([(1,), (1,), (1, 1), (1, 1)])
    refused(ValueError, "tensors with 1 and 2 dimensions", lambda: mesh.map(api.zeros, ranks, out="a"))
    kinds = mesh.per_worker([tk.float32, tk.int8, tk.float32, tk.int8])
    refused(ValueError, "float32 on worker 0 and int8 on worker 1", lambda: mesh.map(api.zeros, 3, kinds, out=()))
    refused(ValueError, "is for 2 dimensions, and the array has 1", lambda: mesh.map(api.zeros, 3, out=("a", "b")))
    other = mesh_of({"a": 2, "b": 2}, mesh.cluster)
    refused(ValueError, "is of another mesh", lambda: other.map(doubled, x))
    refused(ValueError, "is of another mesh", lambda: other.map(doubled, mesh.axis_index("a")))
    refused(ValueError, "is of another mesh", lambda: other.all_reduce(x, "a"))


def test_a_function_of_summands_says_so(mesh_of):
    mesh = mesh_of({"a": 2})
    x = mesh.map(lambda x: x.dup(), mesh.shard(numbers((2, 4)), "a"), out=ShardSpec(partial="a")).sync()
    assert x.shape == (1, 4)
    refused(ValueError, "are summands over 'a'", lambda: mesh.map(doubled, x))
    refused(ValueError, "are summands over 'a'", lambda: mesh.map(doubled, x, out=()))
    refused(ValueError, "to_host: the parts of", lambda: x.to_host())
    refused(ValueError, "reshard: the parts of", lambda: x.reshard("a"))
    y = mesh.map(doubled, x, out=ShardSpec(partial="a")).reduce()
    assert y.to_host().sync().tolist() == [[8, 12, 16, 20]]


def test_a_closed_mesh_takes_no_work(mesh_of):
    mesh = mesh_of({"a": 2})
    x = mesh.shard(numbers(4), "a").sync()
    op = mesh.map(doubled, x)
    mesh.close()
    mesh.close()
    assert "closed" in repr(mesh)
    refused(ValueError, "is closed, and takes no more work", lambda: op)
    refused(ValueError, "is closed, and takes no more work", lambda: mesh.shard(numbers(4)))


def test_parts_that_are_there_already(mesh_of):
    mesh = mesh_of({"a": 2})
    parts = [worker.put(numbers(3) + worker.rank).sync() for worker in mesh.workers]
    assert mesh.from_parts(parts, "a").to_host().sync().tolist() == [0, 1, 2, 1, 2, 3]
    summands = mesh.from_parts(parts, ShardSpec(partial="a"))
    assert mesh.reduce(summands).to_host().sync().tolist() == [1, 3, 5]
    refused(ValueError, "1 parts for 2 workers", lambda: mesh.from_parts(parts[:1], "a"))
    refused(ValueError, "parts come in the order of mesh.workers", lambda: mesh.from_parts(parts[::-1], "a"))
    refused(TypeError, "the Remote of a tensor, not None", lambda: mesh.from_parts([None, None], "a"))


def test_a_sharded_array_is_no_array_of_the_host(mesh_of):
    x = mesh_of({"a": 2}).shard(numbers((4, 2)), "a").sync()
    assert len(x) == 4
    for use in (lambda: np.asarray(x), lambda: x[0], lambda: bool(x), lambda: list(x)):
        with pytest.raises(TypeError, match=r"to_host\(\)\.sync\(\)"):
            use()
    with pytest.raises(TypeError, match="no length"):
        len(mesh_of({"a": 1}).shard(3.0).sync())


# how it shows


def test_a_repr_says_who_holds_what(mesh_of):
    mesh = mesh_of({"data": 2, "model": 2})
    x = mesh.shard(numbers((5, 4)), ("data", None)).sync()
    assert str(x) == "<Sharded float32 (5, 4) by ShardSpec('data', None)>"
    assert repr(x) == (
        "<Sharded float32 (5, 4) by ShardSpec('data', None) over <Mesh data=2, model=2 of local>: "
        "[0:3, :] on 0, 1; [3:5, :] on 2, 3>"
    )
    eight = mesh_of({"a": 8}).shard(numbers((20,)), "a").sync()
    assert repr(eight).count(" on ") == 8


def test_a_drawing_shows_who_holds_what(mesh_of, devices):
    labels = ", ".join(f"{at} {device.label}" for at, device in enumerate(devices[:4]))
    mesh = mesh_of({"data": 2, "model": 2})
    x = mesh.shard(numbers((5, 4)), ("data", "model")).sync()
    assert x.layout().splitlines() == [
        "<Sharded float32 (5, 4) by ShardSpec('data', 'model')>",
        "      0:2   2:4",
        "    +-----+-----+",
        "0:3 | 0   | 1   |",
        "    +-----+-----+",
        "3:5 | 2   | 3   |",
        "    +-----+-----+",
        f"workers: {labels}",
    ]
    assert "| 0, 2 | 1, 3 |" in x.reshard((None, "model")).sync().layout()
    assert "| 0, 1, 2, 3 |" in x.reshard(()).sync().layout()
    rows = x.reshard((("model", "data"),)).sync().layout().splitlines()
    assert [row.strip() for row in rows if "|" in row] == ["0:2 | 0 |", "2:3 | 2 |", "3:4 | 1 |", "4:5 | 3 |"]
    summands = mesh.map(lambda x: x, x, out=ShardSpec("data", partial="model")).sync()
    assert "0:3 | 0 + 1 |" in summands.layout()
    cube = mesh_of({"a": 2, "b": 2, "c": 2}).shard(numbers((2, 4, 6)), ("a", "b", "c")).sync()
    assert "[0:1, 2:4, 3:6]  3" in cube.layout()
    assert "| 0 |" in mesh_of({"a": 1}).shard(1.0).sync().layout()


def test_a_spec_is_a_value():
    spec = ShardSpec("a", ["b", "c"], None, partial="d")
    assert spec.dims == ("a", ("b", "c"), None)
    assert spec.partial == ("d",)
    assert repr(spec) == "ShardSpec('a', ('b', 'c'), None, partial=('d',))"
    assert spec == ShardSpec(("a",), ("b", "c"), (), partial=["d"])
    assert hash(spec) == hash(ShardSpec("a", ("b", "c"), None, partial="d"))
    assert spec != ShardSpec("a", ("c", "b"), None, partial="d")
    assert spec != "a"
    with pytest.raises(AttributeError, match="does not change"):
        spec.dims = ()
    import pickle

    assert pickle.loads(pickle.dumps(spec)) == spec
    assert isinstance(spec, ShardSpec) and not isinstance(spec, Sharded)
