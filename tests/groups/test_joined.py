"""Groups of a process each. The members are threads here, where that shows the same; processes where one is killed."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._groups import Group, control, free_address, transport
from tilekit._groups.control import Hub, parsed
from tilekit._groups.link import Link
from tilekit._groups.messages import HOST
from tilekit.errors import GroupError

LIMIT_S = 60


@pytest.fixture
def members(cpu_devices):
    """Runs a function of (group, rank) as each of so many members; gives what each returns, or raised."""

    def run(function, size, **options):
        devices, address = cpu_devices(size), free_address()

        def member(rank):
            try:
                with Group.join(rank, size, address=address, device=devices[rank], **{"timeout_s": LIMIT_S, **options}) as group:
                    return function(group, rank)
            except Exception as error:
                return error

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(member, range(size), timeout=2 * LIMIT_S))

    return run


def results(found):
    """None of them is an error."""
    for value in found:
        if isinstance(value, Exception):
            raise value
    return found


def _error(op, *kinds):
    """What an op fails with, a GroupError or one of `kinds`; or None."""
    try:
        op.sync()
    except (GroupError, *kinds) as error:
        return error
    return None


def part(rank, shape=(6, 2), dtype=np.float32):
    return (np.arange(np.prod(shape)).reshape(shape) % 7 + rank).astype(dtype)


def test_collectives(members):
    def use(group, rank):
        assert (group.rank, group.ranks, group.size) == (rank, (rank,), 3)
        x = api.from_host(part(rank)).sync() if rank == 0 else api.from_host(part(rank)).on(group.devices[0]).sync()
        ops = [
            group.all_reduce(x),
            group.all_reduce(x, op="max"),
            group.all_gather(x),
            group.reduce_scatter(x),
            group.broadcast(x, root=2),
            group.all_to_all(x),
        ]
        assert ops[2].shape == (18, 2) and ops[3].shape == (2, 2)
        return [op.sync().numpy() for op in ops]

    parts = [part(rank) for rank in range(3)]
    for rank, found in enumerate(results(members(use, 3))):
        expected = [
            sum(parts),
            np.maximum.reduce(parts),
            np.concatenate(parts),
            sum(parts)[2 * rank : 2 * rank + 2],
            parts[2],
            np.concatenate([p[2 * rank : 2 * rank + 2] for p in parts]),
        ]
        for a, b in zip(found, expected, strict=True):
            assert np.array_equal(a, b)


def test_lazily_produced_tensors_and_dtypes(members):
    def use(group, rank):
        device = group.devices[0]
        total = group.all_reduce(api.full((5,), rank + 1.0, tk.bfloat16).on(device)).sync()
        flags = group.all_gather(api.from_host(np.array([rank == 1])).on(device)).sync()
        return total.numpy().tolist(), flags.numpy().tolist()

    assert results(members(use, 2)) == [([3.0] * 5, [False, True])] * 2


def test_messages_and_barrier(members):
    def use(group, rank):
        device = group.devices[0]
        follower, leader = (rank + 1) % 3, (rank - 1) % 3
        x = api.from_host(part(rank)).on(device).sync()
        group.send(x, follower).sync()
        group.send(api.full((2,), float(rank)).on(device), follower).sync()
        first, second = group.recv((6, 2), tk.float32, leader).sync(), group.recv((2,), tk.float32, leader).sync()
        group.barrier().sync()
        with pytest.raises(ValueError, match=f"this process is rank {rank}; leave source= out"):
            group.send(x, 0, source=follower)
        return first.numpy(), second.numpy()

    for rank, (first, second) in enumerate(results(members(use, 3))):
        assert np.array_equal(first, part((rank - 1) % 3)) and (second == (rank - 1) % 3).all()


def test_hosts_exchange_values(members):
    assert (
        results(members(lambda group, rank: group.exchange({"rank": rank, "name": f"n{rank}"}), 2))
        == [[{"rank": 0, "name": "n0"}, {"rank": 1, "name": "n1"}]] * 2
    )


def test_a_member_sends_to_itself(members):
    """What is sent first arrives first, and no other member has anything to do with it."""

    def use(group, rank):
        first, second = (api.full((3,), float(10 * rank + n)).on(group.devices[0]).sync() for n in range(2))
        group.send(first, rank).sync()
        group.send(second, np.int64(rank)).sync()
        got = [group.recv((3,), tk.float32, rank).sync().numpy()[0] for _ in range(2)]
        nothing = _error(group.recv((3,), tk.float32, rank))
        return got, str(nothing)

    for rank, (got, nothing) in enumerate(results(members(use, 2))):
        assert got == [10.0 * rank, 10.0 * rank + 1]
        assert f"rank {rank} has nothing from rank {rank}" in nothing


def test_ranks_may_be_numpys(members):
    def use(group, rank):
        x = api.full((2,), float(rank)).on(group.devices[0]).sync()
        ring = [(np.int32(0), np.int64(1))]
        return group.broadcast(x, root=np.int64(1)).sync().numpy()[0], group.permute(x, ring).sync().numpy()[0]

    assert results(members(use, 2)) == [(1.0, 0.0), (1.0, 0.0)]
    with Group.join(np.int64(0), np.int64(1), address=free_address(), device="cpu") as group:
        assert group.rank == 0 and type(group.rank) is int


def test_recorded_in_a_graph(members):
    def use(group, rank):
        device = group.devices[0]
        stream = device.stream()
        x = api.zeros((4,)).on(device).sync()
        graph = group.all_reduce(x).graph_on(stream)
        seen = []
        for turn in range(3):
            x.fill(float(rank + turn)).sync()
            graph.run(stream)
            stream.synchronize()
            seen.append(graph.output.numpy()[0])
        return seen

    assert results(members(use, 2)) == [[1.0, 3.0, 5.0]] * 2


def test_members_that_do_different_things(members):
    def use(group, rank):
        x = api.zeros((4,)).on(group.devices[0]).sync()
        (group.all_reduce(x) if rank else group.all_gather(x)).sync()

    for error in members(use, 2):
        assert isinstance(error, GroupError)
        assert (
            "rank 0 submitted all_gather(float32 (4,)), rank 1 all_reduce(sum, float32 (4,)). "
            "All members submit the same collectives in the same order" in str(error)
        )
        assert error.ranks == (1,)


def test_members_that_expect_another_shape(members):
    def use(group, rank):
        device = group.devices[0]
        group.send(api.zeros((4,)).on(device), 1).sync() if rank == 0 else group.recv((3,), tk.float32, 0).sync()
        group.barrier().sync()

    for error in members(use, 2):
        assert isinstance(error, GroupError) and "rank 1 expects float32 (3,) from rank 0, which sent float32 (4,)" in str(error)


def test_a_member_that_does_not_come(members):
    """It is named, once the others have waited so long; whoever asks later learns the same."""
    waited = threading.Barrier(2)

    def use(group, rank):
        if rank == 1:
            waited.wait(LIMIT_S)
            with pytest.raises(GroupError, match=r"rank 0 submitted number 1, barrier, and rank 1 did not within 0\.5 s"):
                group.barrier().sync()
            return
        with pytest.raises(GroupError, match=r"and rank 1 did not within 0\.5 s") as caught:
            group.barrier().sync()
        assert caught.value.ranks == (1,)
        waited.wait(LIMIT_S)

    results(members(use, 2, timeout_s=0.5))


def test_a_member_that_has_closed_the_group(members):
    def use(group, rank):
        if rank == 0:
            with pytest.raises(GroupError, match="rank 1 closed the group before") as caught:
                group.barrier().sync()
            assert caught.value.ranks == (1,)
            with pytest.raises(GroupError, match="is broken: .*rank 1 closed the group before"):
                group.barrier().sync()

    results(members(use, 2))


def test_not_all_join(cpu_devices):
    cpu_devices(1)
    start = time.monotonic()
    with pytest.raises(GroupError, match=r"rank 0 joined the group, and ranks 1, 2 did not within 0\.3 s") as caught:
        Group.join(0, 3, address=free_address(), timeout_s=0.3)
    assert caught.value.ranks == (1, 2) and time.monotonic() - start < LIMIT_S
    with pytest.raises(GroupError, match=r"rank 1 could not reach rank 0 at .* within 0\.3 s"):
        Group.join(1, 2, address=free_address(), timeout_s=0.3)


def test_the_port_is_free_again_after_a_group_and_after_none(cpu_devices):
    cpu_devices(1)
    address = free_address()
    for _ in range(2):
        with pytest.raises(GroupError, match="rank 1 did not"):
            Group.join(0, 2, address=address, timeout_s=0.1)
    with Group.join(0, 1, address=address, timeout_s=LIMIT_S) as alone:
        assert alone.all_reduce(api.ones((2,))).sync().numpy().tolist() == [1.0, 1.0]


def test_two_of_one_rank(cpu_devices):
    cpu_devices(1)
    address = free_address()

    def member(rank):
        try:
            Group.join(rank, 3, address=address, timeout_s=LIMIT_S)
        except GroupError as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(member, (0, 1, 1))) == {"two processes joined as rank 1: each needs a rank of its own"}


def test_who_comes_to_a_broken_group_is_told_why(cpu_devices):
    """Rank 0 as well, whose hub knew before it had joined itself."""
    cpu_devices(1)
    address = parsed(free_address())
    hub = Hub(2, address, b"tilekit", LIMIT_S)
    hub.give_up("it is broken", (1,))
    for rank in range(2):
        with pytest.raises(GroupError, match="it is broken") as caught:
            Link(HOST, rank, 2, address, b"tilekit", LIMIT_S)
        assert caught.value.ranks == (1,)
    hub.stop()


def test_another_size(cpu_devices):
    cpu_devices(1)
    address = free_address()

    def member(rank):
        try:
            Group.join(rank, 2 + rank, address=address, timeout_s=LIMIT_S)
        except GroupError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(member, (0, 1))) == {"rank 1 joined a group of 3, which rank 0 says has 2 members"}


def test_another_key(cpu_devices):
    cpu_devices(1)
    address = free_address()

    def member(rank):
        try:
            Group.join(rank, 2, address=address, timeout_s=1.0, key=b"mine" if rank else b"yours")
        except GroupError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        host, stranger = pool.map(member, (0, 1))
    assert "rank 0 joined the group, and rank 1 did not" in host
    assert "has another key than rank 1: give all members the same" in stranger


def test_strangers_keep_nobody_from_joining(cpu_devices):
    """One that connects first and says nothing, as those do who look for open ports, and one that says something else."""
    devices, address = cpu_devices(2), free_address()
    host, port = parsed(address)

    def member(rank):
        with Group.join(rank, 2, address=address, device=devices[rank], timeout_s=LIMIT_S / 2) as group:
            return group.exchange(rank)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(member, 0)
        while True:
            try:
                silent, loud = (socket.create_connection((host, port)) for _ in range(2))
                break
            except OSError:  # rank 0 does not listen yet
                assert not first.done()
        with silent, loud:
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
            second = pool.submit(member, 1)
            assert first.result(LIMIT_S) == second.result(LIMIT_S) == [0, 1]


def test_a_port_that_is_taken(cpu_devices):
    cpu_devices(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(GroupError, match=f"rank 0 cannot listen on {address}.*take another one"):
            Group.join(0, 2, address=address)


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ((2, 2), ValueError, "there is no rank 2 in a group of 2"),
        ((-1, 2), ValueError, "there is no rank -1"),
        ((0.0, 2), TypeError, "rank is an int, not 0.0"),
        ((0, "2"), TypeError, "size is an int, not '2'"),
    ],
)
def test_ranks_that_cannot_be(arguments, kind, match):
    with pytest.raises(kind, match=match):
        Group.join(*arguments, address="localhost:1")


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"key": "secret"}, TypeError, "key is bytes, the same in all processes, not str"),
        ({"timeout_s": 0}, ValueError, "timeout_s is 0, and must be positive"),
        ({"timeout_s": -1.0}, ValueError, "timeout_s is -1.0"),
        ({"timeout_s": "1"}, TypeError, "timeout_s is a number"),
    ],
)
def test_options_that_cannot_be(options, kind, match):
    with pytest.raises(kind, match=match):
        Group.join(0, 1, address=free_address(), **options)


def test_no_time_out(cpu_devices):
    (device,) = cpu_devices(1)
    with Group.join(0, 1, address=free_address(), device=device, timeout_s=float("inf")) as group:
        assert group.exchange(None) == [None]


def test_an_op_runs_on_the_member_s_device(members):
    """As it does in one process: not on the default device, which is another rank's."""

    def use(group, rank):
        return group.all_reduce(api.full(4, rank + 1.0)).sync().numpy().tolist()

    assert results(members(use, 2)) == [[3.0] * 4] * 2


def test_values_that_hosts_cannot_exchange(members):
    """Nothing has been sent then: the next exchange is the same one for all members."""
    values = [
        (np.float32(1), "not float32: give its .tolist()"),
        ([{"a": {1}}], "not set"),
        ({"a": {2: 1}}, "keys of a dict are str, not 2"),
        (b"1", "not bytes"),
    ]

    def use(group, rank):
        if rank == 0:
            for value, match in values:
                with pytest.raises(TypeError, match=match):
                    group.exchange(value)
        return group.exchange([rank, None, {"a": (1.5, "b")}])

    assert results(members(use, 2)) == [[[0, None, {"a": [1.5, "b"]}], [1, None, {"a": [1.5, "b"]}]]] * 2


def test_leaving_by_an_error_in_the_middle_of_a_collective(members):
    """The stream that is in it does not wait for the others any more, and they learn of it."""
    left = threading.Event()

    def use(group, rank):
        x = api.zeros(4).on(group.devices[0]).sync()
        group.barrier().sync()
        if rank:
            assert left.wait(LIMIT_S)
            return [_error(group.all_reduce(x)) for _ in range(2)][-1]
        future = group.all_reduce(x).async_on(group.devices[0].stream())
        future.add_done_callback(lambda _: left.set())
        raise KeyError("leaves")  # and waits at the end until rank 1 has left, too

    left_by, told = members(use, 2)
    assert type(left_by) is KeyError
    assert isinstance(told, GroupError) and told.ranks == (0,)


@tk.kernel
def refuse(x: tk.InOut):
    tk.assert_(x.load() > 100.0, "too small")  # noqa: PT009


def test_work_that_fails_before_a_collective_leaves_no_member_behind(members):
    """Rank 0 takes no part in the first one. Its second must not meet rank 1's first: both are told."""

    def use(group, rank):
        x = api.full(4, rank + 1.0).on(group.devices[0]).sync()
        if rank:
            return str(_error(group.all_reduce(x)))
        refuse(x.partition(4)).async_on(group.devices[0].stream())
        with pytest.raises(tk.DeviceError, match="too small"):
            group.all_reduce(x).sync()
        return str(_error(group.all_reduce(api.ones(4).on(group.devices[0]))))

    why = r"rank 0 left out what it had submitted before all_reduce.*: work that it waited for had failed there"
    for told in results(members(use, 2)):
        assert re.search(why, told)


def test_a_broken_group_gives_its_streams_back(members):
    """Their faults would hold the group, and so the streams, and their threads, for ever."""
    streams = []

    def use(group, rank):
        x = api.ones(4).on(group.devices[0]).sync()
        streams.extend(group.streams())
        return str(_error(group.all_gather(x) if rank else group.all_reduce(x)))

    for told in members(use, 2):
        assert "members disagree on number 1" in told
    assert len(streams) == 2 and all(stream.closed for stream in streams)


def test_a_collective_that_fails_at_one_member_is_told_to_all(members, monkeypatch):
    reading = transport._reading

    def failing(call, inputs):
        read = reading(call, inputs)
        return read if inputs and inputs[0].device.ordinal else lambda: read()[len(inputs)]

    monkeypatch.setattr(transport, "_reading", failing)

    def use(group, rank):
        return str(_error(group.all_reduce(api.ones(4).on(group.devices[0])), tk.DeviceError))

    first, second = results(members(use, 2))
    assert "list index out of range" in first
    assert second == "all_reduce(sum, float32 (4,)) of rank 0 failed: list index out of range"


def test_rank_0_leaves_by_an_error_while_others_are_busy(members, monkeypatch):
    """It does not wait for them until the time-out, and they are told when they come."""
    monkeypatch.setattr(control, "_FAREWELL_S", 0.05)
    left = threading.Event()

    def use(group, rank):
        group.barrier().sync()
        if rank:
            assert left.wait(LIMIT_S / 2)
            return _error(group.barrier())
        leave = group.close
        monkeypatch.setattr(group, "close", lambda: (leave(), left.set()))
        raise KeyError("leaves")

    first, told = members(use, 2)
    assert type(first) is KeyError
    assert isinstance(told, GroupError) and "here rank 0 on cpu:0> was left by an error" in str(told) and told.ranks == (0,)


def test_what_the_hub_cannot_do_is_an_error_for_all(members, monkeypatch):
    def failing(call, brought):
        raise MemoryError("too much")

    monkeypatch.setattr(control, "results", failing)

    def use(group, rank):
        x = api.zeros(4).on(group.devices[0]).sync()
        with pytest.raises(GroupError, match="rank 0 could not do what rank . asked for: MemoryError: too much"):
            group.all_reduce(x).sync()

    results(members(use, 3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks nothing")
def test_a_forked_process_is_no_member(cpu_devices):
    """It says so, and holds none of the connections, which would keep others from learning of the parent's end."""
    (device,) = cpu_devices(1)
    with Group.join(0, 1, address=free_address(), device=device, timeout_s=LIMIT_S) as group:
        x = api.ones(4).on(device).sync()
        connections = [group._work._connection, group._host._connection, *group._hub._connections]
        assert len(connections) >= 4  # there may be another, which only wakes who listens
        child = os.fork()
        if not child:
            code = 1
            try:
                with pytest.raises(GroupError, match="was joined by the process that this one was forked from"):
                    group.all_reduce(x).sync()
                code = 0 if all(connection.closed for connection in connections) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert group.all_reduce(x).sync().numpy().tolist() == [1.0] * 4


@pytest.mark.parametrize("address", ["localhost", ":29500", "localhost:http", "localhost:0", "localhost:70000", 29500, None])
def test_addresses_that_are_none(address):
    with pytest.raises((TypeError, ValueError), match="host:29500|node0:29500"):
        parsed(address)


# processes


def _killed(rank, size, address, doing, said):
    """A member of which rank 1 is killed."""
    os.environ["TILEKIT_DEVICE"] = "cpu"
    with Group.join(rank, size, address=address, timeout_s=LIMIT_S) as group:
        x = api.full((1000,), float(rank)).sync()
        assert group.all_reduce(x).sync().numpy()[0] == 3.0
        doing.release()
        start = time.monotonic()
        try:
            while True:
                group.all_reduce(x).sync()
        except GroupError as error:
            said.put((rank, str(error), error.ranks, time.monotonic() - start))


def test_a_killed_member_is_named_and_nobody_hangs():
    """In the middle of collectives; well before the time-out."""
    context = multiprocessing.get_context("spawn")
    doing, said, address = context.Semaphore(0), context.Queue(), free_address()
    processes = [context.Process(target=_killed, args=(rank, 3, address, doing, said)) for rank in range(3)]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            assert doing.acquire(timeout=LIMIT_S)
        processes[1].kill()
        told = sorted(said.get(timeout=LIMIT_S) for _ in range(2))
        assert [(rank, message, ranks) for rank, message, ranks, _ in told] == [
            (rank, "the process of rank 1 has ended", (1,)) for rank in (0, 2)
        ]
        assert max(seconds for *_, seconds in told) < LIMIT_S / 2
    finally:
        for process in processes:
            process.kill() if process.exitcode is None and process is processes[1] else process.join(LIMIT_S)
