"""Groups of CPU devices in one process: their collectives against NumPy, how they run, and what they refuse."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._groups import Group
from tilekit._groups.arithmetic import results
from tilekit._groups.call import KINDS, Call
from tilekit.errors import GroupError

SPREAD = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


@pytest.fixture
def group(cpu_devices):
    with Group(cpu_devices(3)) as opened:
        yield opened


def arrays(count=3, shape=(6, 4), dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 8, shape).astype(dtype) for _ in range(count)]


def tensors(group, parts):
    return [api.from_host(part).on(device).sync() for part, device in zip(parts, group.devices, strict=True)]


def hosts(parts):
    return [part.numpy() for part in parts]


def expected(kind, parts, **options):
    """By the meaning of each, written out."""
    size, op, root = len(parts), options.get("op", "sum"), options.get("root", 0)
    wide = [part.astype(np.float64) for part in parts]
    total = {"sum": sum, "avg": lambda p: sum(p) / size, "prod": np.prod, "max": np.max, "min": np.min}
    whole = total[op](wide) if op in ("sum", "avg") else total[op](wide, axis=0)
    n = parts[0].shape[0] // size
    return {
        "all_reduce": lambda r: whole,
        "all_gather": lambda r: np.concatenate(parts),
        "reduce_scatter": lambda r: whole[r * n : (r + 1) * n],
        "broadcast": lambda r: parts[root],
        "all_to_all": lambda r: np.concatenate([part[r * n : (r + 1) * n] for part in parts]),
    }[kind]


@pytest.mark.parametrize("kind", SPREAD)
def test_what_each_member_gets(group, kind):
    parts = arrays()
    found = getattr(group, kind)(tensors(group, parts)).sync()
    assert [t.device for t in found] == list(group.devices)
    for rank, array in enumerate(hosts(found)):
        assert np.array_equal(array, expected(kind, parts)(rank))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
def test_reductions(group, op, dtype):
    if op == "avg" and dtype in ("int32", "uint8"):
        with pytest.raises(TypeError, match=f"the average of {dtype} is no {dtype}"):
            group.all_reduce(tensors(group, arrays(dtype=getattr(tk, dtype))), op="avg")
        return
    parts = [np.abs(part) % 4 if dtype == "uint8" else part for part in arrays()]
    parts = [part.astype(getattr(tk, dtype)) for part in parts]
    for rank, array in enumerate(hosts(group.all_reduce(tensors(group, parts), op=op).sync())):
        assert array.dtype == parts[0].dtype
        assert np.allclose(array.astype(float), expected("all_reduce", parts, op=op)(rank), rtol=1e-2 if op == "avg" else 0)


def test_narrow_floats_are_rounded_once(group):
    """2048 + 1 + 1 in float16 is 2048 if each sum is rounded, and 2050 if only the last is."""
    parts = [np.full((4,), value, np.float16) for value in (2048, 1, 1)]
    assert all((array == 2050).all() for array in hosts(group.all_reduce(tensors(group, parts)).sync()))


def test_what_is_only_moved_may_be_of_any_dtype(group):
    parts = arrays(dtype=np.int16)
    assert np.array_equal(hosts(group.all_gather(tensors(group, parts)).sync())[1], np.concatenate(parts))
    flags = [part > 0 for part in parts]
    assert np.array_equal(hosts(group.broadcast(tensors(group, flags), root=2).sync())[0], flags[2])


def test_building_one_does_nothing(group):
    before = [device.driver.allocated_bytes for device in group.devices]
    op = group.all_reduce([api.full((4,), float(rank)) for rank in range(3)])
    assert [device.driver.allocated_bytes for device in group.devices] == before
    assert [t.numpy().tolist() for t in op.sync()] == [[3.0] * 4] * 3
    with pytest.raises(ValueError, match="has already run"):
        op.sync()


def test_it_chains_and_awaits(group):
    parts = arrays()

    async def main():
        op = tk.value(tensors(group, parts)).then(group.all_reduce).then(group.all_gather)
        return await op.map(lambda tensors: tensors[2])

    assert np.array_equal(asyncio.run(main()).numpy(), np.concatenate([sum(parts)] * 3))


def test_into_what_is_there(group):
    parts = arrays()
    xs = tensors(group, parts)
    found = group.all_reduce(xs, out=xs).sync()
    assert all(a is b for a, b in zip(found, xs, strict=True))
    assert np.array_equal(xs[2].numpy(), sum(parts))
    gathered = [api.empty((18, 4)).on(device).sync() for device in group.devices]
    group.all_gather(xs, out=gathered).sync()
    assert np.array_equal(gathered[1].numpy(), np.concatenate([sum(parts)] * 3))


def test_views_that_are_not_contiguous(group):
    parts = arrays(shape=(4, 6))
    xs = [x.T for x in tensors(group, parts)]
    assert np.array_equal(group.all_reduce(xs).sync()[0].numpy(), sum(parts).T)


def test_order_is_kept_with_work_on_other_streams(group, gate):
    """A member's tensor is still being written on a stream of its own; the result is overwritten after it was read."""
    started = threading.Event()
    x = [api.full((8,), 1.0).on(device).sync() for device in group.devices]
    stream = group.devices[1].stream()
    stream.device.driver.submit(stream.handle, lambda: (started.set(), gate.wait(30)))
    late = x[1].fill(5.0).async_on(stream)
    future = group.all_reduce(x).schedule(group.devices[0].policy)
    again = x[0].fill(100.0).schedule(group.devices[0].policy)
    assert started.wait(30)
    assert not future.done()
    gate.set()
    assert [t.numpy()[0] for t in future.result()] == [7.0] * 3
    late.result(), again.result()


def test_elements_that_nobody_wrote_are_told(group):
    xs = [api.empty((4,)).on(device).sync() for device in group.devices]
    with pytest.raises(tk.DeviceError, match="all_reduce"):
        group.all_reduce(xs).sync()
    parts = arrays()
    assert np.array_equal(group.all_reduce(tensors(group, parts)).sync()[1].numpy(), sum(parts))  # and the group goes on


def test_an_op_that_fails_leaves_the_group_whole(group):
    def fails():
        raise RuntimeError("mine")

    bad = tk.host_fn(fails).then(lambda _: api.zeros((4,)))
    with pytest.raises(RuntimeError, match="mine"):
        group.all_reduce([api.zeros((4,)), bad, api.zeros((4,))]).sync()
    assert group.all_reduce([api.ones((4,)) for _ in range(3)]).sync()[0].numpy().tolist() == [3.0] * 4


def test_messages(group):
    parts = arrays()
    xs = tensors(group, parts)
    group.send(xs[0], 2, source=0).sync()
    xs[0].fill(9.0).sync()  # what was sent is what was there
    group.send(xs[0], 2, source=0).sync()
    first = group.recv((6, 4), tk.float32, 0, to=2).sync()
    second = group.recv((6, 4), tk.float32, 0, to=2).sync()
    assert first.device is group.devices[2]
    assert np.array_equal(first.numpy(), parts[0]) and (second.numpy() == 9.0).all()
    with pytest.raises(GroupError, match="rank 2 has nothing from rank 0.* the send has to run first"):
        group.recv((6, 4), tk.float32, 0, to=2).sync()
    group.send(xs[1], 0, source=1).sync()
    with pytest.raises(ValueError, match=r"rank 1 sent float32 \(6, 4\), not recv\(float32 \(3,\)\)"):
        group.recv((3,), tk.float32, 1, to=0).sync()


def test_tensors_change_places(group):
    parts = arrays()
    xs = tensors(group, parts)
    ring = hosts(group.permute(xs, [(0, 1), (1, 2), (2, 0)]).sync())
    assert all(np.array_equal(ring[(rank + 1) % 3], part) for rank, part in enumerate(parts))
    shifted = hosts(group.permute(xs, [(0, 1), (2, 2)]).sync())
    for array, expected_one in zip(shifted, (np.zeros_like(parts[0]), parts[0], parts[2]), strict=True):
        assert np.array_equal(array, expected_one)
    assert all((array == 0).all() for array in hosts(group.permute(xs, []).sync()))


@pytest.mark.parametrize(
    ("pairs", "kind", "match"),
    [
        ([(0, 3)], ValueError, "there is no rank 3 in a group of 3"),
        ([(0, 1), (0, 2)], ValueError, "rank 0 is the source of two pairs"),
        ([(0, 1), (2, 1)], ValueError, "rank 1 is the target of two pairs"),
        ([0, 1], TypeError, r"pairs is a list of \(source, target\), not \(0, 1\)"),
        ({0: 1}, TypeError, "pairs is a list of"),
        ([(0, 1.0)], TypeError, "target is a rank"),
    ],
)
def test_pairs_that_cannot_be(group, pairs, kind, match):
    with pytest.raises(kind, match=match):
        group.permute(tensors(group, arrays()), pairs)


def test_barrier(group):
    assert group.barrier().sync() is None
    assert KINDS.keys() >= {"barrier"}


def test_one_member(cpu_devices):
    with Group(cpu_devices(2)[1:]) as alone:
        (x,) = tensors(alone, arrays(1))
        assert np.array_equal(alone.all_reduce([x]).sync()[0].numpy(), x.numpy())
        stream = alone.devices[0].stream()
        graph = alone.all_reduce([x]).graph_on(stream)
        graph.run(stream)
        stream.synchronize()
        assert np.array_equal(graph.output[0].numpy(), x.numpy())


def test_what_it_looks_like(group):
    assert repr(group) == "<tilekit.Group of 3: cpu:0, cpu:1, cpu:2>"
    op = group.all_reduce([api.zeros((4,)) for _ in range(3)])
    assert "all_reduce" in repr(op)
    op.consumed()
    op = group.all_reduce(tensors(group, arrays()))
    assert "all_reduce(sum, float32 (6, 4))" in op.svg()
    op.consumed()


def test_groups_that_cannot_be(cpu_devices):
    cpu_devices(2)
    with pytest.raises(ValueError, match="no devices; give one for each member"):
        Group([])
    with pytest.raises(ValueError, match="a device twice among cpu:0, cpu:0"):
        Group(["cpu:0", "cpu:0"])
    with pytest.raises(TypeError, match="a list of devices, such as .*, not 'cpu:0'"):
        Group("cpu:0")
    with pytest.raises(TypeError, match="a list of devices, such as .*, not 2"):
        Group(2)
    with Group() as every:
        assert [device.label for device in every.devices] == ["cpu:0", "cpu:1"]
        assert (every.size, every.ranks) == (2, (0, 1))
        with pytest.raises(AttributeError, match="of one process, which has all ranks"):
            _ = every.rank
        with pytest.raises(TypeError, match="of one process, which has all that there is to exchange"):
            every.exchange(1)


def test_what_is_refused(group):
    xs = tensors(group, arrays())
    turned = [api.zeros((4, 6)).on(device).sync().T for device in group.devices]
    cases = [
        (lambda: group.all_reduce(xs[0]), TypeError, "a list with a tensor for each of 3 devices, not Tensor"),
        (lambda: group.all_reduce(xs[:2]), ValueError, "2 tensors for x, and .* has 3 devices here"),
        (lambda: group.all_reduce([api.zeros(4)] * 2), ValueError, "2 tensors for x"),
        (lambda: group.all_reduce([*xs[:2], 1.0]), TypeError, "x of rank 2 is a tensor, or an op that gives one, not float"),
        (lambda: group.all_reduce([*xs[:2], api.meta((6, 4))]), TypeError, "x of rank 2.* has no memory"),
        (lambda: group.all_reduce([xs[1], xs[0], xs[2]]), ValueError, "x of rank 0 is on cpu:1, and the member is cpu:0"),
        (lambda: group.all_reduce([*xs[:2], xs[2][:3]]), ValueError, r"rank 0 has float32 \(6, 4\), rank 2 float32 \(3, 4\)"),
        (lambda: group.all_reduce(xs, op="mean"), ValueError, "op='mean' is no reduction; there are sum, prod"),
        (lambda: group.all_reduce(tensors(group, arrays(dtype=np.int16))), TypeError, "int16 cannot be reduced across devices"),
        (lambda: group.reduce_scatter([x[:4] for x in xs]), ValueError, "4 is no multiple of 3: pad the tensor to 6"),
        (lambda: group.all_to_all([x[:4] for x in xs]), ValueError, "4 is no multiple of 3"),
        (lambda: group.all_gather([x[0, 0] for x in xs]), ValueError, "tensors without dimensions"),
        (lambda: group.reduce_scatter([x[0, 0] for x in xs]), ValueError, "a tensor without dimensions has no parts"),
        (lambda: group.broadcast(xs, root=3), ValueError, "there is no rank 3 in a group of 3"),
        (lambda: group.send(xs[0], 1), TypeError, "say with source= which rank does it"),
        (lambda: group.broadcast(xs, root=1.0), TypeError, "root is a rank, an int from 0 to 2, not 1.0"),
        (lambda: group.broadcast(xs, root=True), TypeError, "root is a rank, an int from 0 to 2, not True"),
        (lambda: group.send(xs[0], 7, source=0), ValueError, "there is no rank 7"),
        (lambda: group.send(xs[0], "1", source=0), TypeError, "to is a rank, an int from 0 to 2, not '1'"),
        (lambda: group.recv((4,), tk.float32, np.float64(1), to=0), TypeError, "source is a rank.*not .*1"),
        (lambda: group.all_reduce([np.ones(4)] * 3), TypeError, r"not ndarray; api.from_host\(array\) makes one"),
        (lambda: group.all_reduce(xs, out=[1, 2, 3]), TypeError, "out of rank 0 is a tensor, not int"),
        (lambda: group.recv((4,), tk.float32, 0), TypeError, "say with to= which rank does it"),
        (lambda: group.all_gather(xs, out=xs), ValueError, r"out is float32 \(6, 4\), and the result float32 \(18, 4\)"),
        (lambda: group.all_to_all(xs, out=xs), ValueError, "out has memory of x's"),
        (lambda: group.all_reduce(xs, out=turned), ValueError, "out is not contiguous"),
        (lambda: group.send(xs[1], 2, source=0), ValueError, "x of rank 0 is on cpu:1"),
    ]
    for build, kind, match in cases:
        with pytest.raises(kind, match=match):
            build()
    with pytest.raises(TypeError, match="works on 3 devices, and a graph is of one"):
        group.all_reduce(xs).graph_on(group.devices[0].stream())


def test_misuse_of_ops_is_an_error_at_once_and_no_more(group):
    """Not when they run, and nobody is told that they have not run: that would be an error here."""
    zeros = lambda: [api.zeros(4) for _ in group.devices]  # noqa: E731
    cases = [
        (lambda: group.all_reduce(zeros(), op="mean"), ValueError, "is no reduction"),
        (lambda: group.all_reduce(api.zeros(4), op="mean"), ValueError, "is no reduction"),
        (lambda: group.broadcast(zeros(), root=9), ValueError, "no rank 9"),
        (
            lambda: group.all_reduce([api.zeros(4), api.zeros(4), 3]),
            TypeError,
            "x of rank 2 is a tensor, or an op that gives one, not int",
        ),
        (lambda: group.all_reduce(zeros(), out=3), TypeError, "out is a list"),
        (lambda: group.all_reduce(zeros(), out=zeros()), TypeError, "out of rank 0 is a tensor, not "),
        (lambda: group.all_reduce([api.zeros(4).on(device) for device in reversed(group.devices)]), ValueError, "cpu:2"),
        (lambda: group.send(api.zeros(4), 7, source=0), ValueError, "no rank 7"),
        (lambda: group.send(api.zeros(4), 1), TypeError, "say with source="),
    ]
    for build, kind, match in cases:
        with pytest.raises(kind, match=match):
            build()
        gc.collect()


def test_send_and_recv_are_called_so_in_messages(group):
    x = api.zeros(4).on(group.devices[0]).sync()
    ops = [group.send(x, 1, source=0), group.send(api.zeros(4), 1, source=0), group.recv((4,), tk.float32, 0, to=1)]
    ops += [group.send(api.ones(4), 0, source=2), group.recv((4,), tk.float32, 2, to=0)]  # the op runs on rank 2's device
    assert [op.label for op in ops] == ["send", "send", "recv", "send", "recv"]
    for op in ops:
        op.sync()


def test_closing_waits_for_who_submits(cpu_devices):
    group = Group(cpu_devices(2))
    op = group.all_reduce([api.zeros(4).on(device).sync() for device in group.devices])
    inside, go, order = threading.Event(), threading.Event(), []

    def submit(*args):
        inside.set()
        assert go.wait(30)
        order.append("submitted")

    group.transport = SimpleNamespace(submit=submit, watched=False, close=lambda: order.append("closed"))
    threads = [threading.Thread(target=op.sync), threading.Thread(target=group.close)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    threads[1].join(0.1)
    go.set()
    for thread in threads:
        thread.join(30)
    assert order == ["submitted", "closed"]


def test_a_closed_group_passes_nothing_on(cpu_devices):
    group = Group(cpu_devices(2))
    x = api.zeros(4).on(group.devices[0]).sync()
    group.send(x, 1, source=0).sync()
    late = [group.send(x, 1, source=0), group.recv((4,), tk.float32, 0, to=1)]
    group.close()
    for op in late:
        with pytest.raises(GroupError, match="was closed"):
            op.sync()


def test_a_closed_group(cpu_devices):
    group = Group(cpu_devices(2))
    xs = [api.zeros(4).on(device).sync() for device in group.devices]
    op = group.all_reduce(xs)
    group.close()
    group.close()
    with pytest.raises(GroupError, match="was closed: what it does runs before"):
        op.sync()


def test_the_arithmetic_itself():
    call = Call(kind="all_reduce", shape=(2,), dtype=np.dtype(np.int32), op="sum")
    assert results(call, [np.array([2**31 - 1, 1], np.int32), np.array([1, 1], np.int32)])[0].tolist() == [-(2**31), 2]
