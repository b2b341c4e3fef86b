"""Symmetric memory of CPU devices: what each member has, what it sees of the others', and the order of it; GPUs' as far as a
stand-in for the bindings shows it."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.windows import HostWindow, swap
from tilekit._groups import Group, free_address
from tilekit._groups.symmetric_memory import Symmetric, symmetric
from tilekit.errors import DeviceError, GroupError, OutOfMemoryError

LIMIT_S = 60


@pytest.fixture
def group(cpu_devices):
    with Group(cpu_devices(3)) as opened:
        yield opened


@tk.kernel
def hand_round(memory: tk.InOut, flags: tk.InOut, value: int, rank: int, size: int):
    """Give the next member a number, and take what the one before gives, to one's own place behind it."""
    to = (rank + 1) % size
    tk.store(memory, (to, 0), tk.full((1, 1), value, memory.dtype))
    tk.atomic_xchg(flags, to, 1, memory_order="release", memory_scope="system")
    while tk.atomic_add(flags, rank, 0, memory_order="acquire", memory_scope="system") < 1:
        pass
    tk.store(memory, (rank, 1), tk.load(memory, (rank, 0), (1, 1)))


def test_what_members_have_and_see(group):
    memory = symmetric(group, (2, 3), tk.int32)
    assert (memory.shape, memory.dtype, memory.group) == ((2, 3), tk.int32, group)
    for rank, device in enumerate(group.devices):
        assert memory.local(rank).device is device
        assert np.array_equal(memory.local(rank).numpy(), np.zeros((2, 3)))
        api.from_host(np.full((2, 3), rank, np.int32)).on(device).sync().copy_into(memory.local(rank)).sync()
    for at, device in enumerate(group.devices):
        for rank in range(3):
            seen = memory.peer(rank, at)
            assert seen.device is device and seen.is_contiguous and seen.address == memory.local(rank).address
            assert np.array_equal(seen.numpy(), np.full((2, 3), rank))
        whole = memory.whole(at)
        assert whole.shape == (3, 2, 3) and whole.device is device
        assert np.array_equal(whole.numpy()[:, 0, 0], [0, 1, 2])


def test_repr(group):
    assert repr(symmetric(group, 5)) == "<tilekit.Symmetric float32 (5,) of 3 members>"


def test_kernels_that_wait_for_each_other_run_at_the_same_time(group):
    """Each member's view has an order of its own: else one would wait for the other's launch, which waits for it."""
    memory, flags = symmetric(group, 2, tk.int32), symmetric(group, 1, tk.int32)
    futures = []
    for rank, device in enumerate(group.devices):
        op = hand_round(memory.whole(rank).scattered(), flags.whole(rank)[:, 0].scattered(), 10 + rank, rank, 3)
        futures.append(op.grid(1).async_on(device.stream()))
    for future in futures:
        future.result(timeout_s=LIMIT_S)
    assert [memory.local(rank).numpy().tolist() for rank in range(3)] == [[12, 12], [10, 10], [11, 11]]


def test_work_of_one_device_is_ordered_by_it(group, gate):
    """Views of other members' memory are one memory to a device, whichever stream uses them."""
    memory, device = symmetric(group, 4), group.devices[0]
    one, other = device.stream(), device.stream()
    one.device.driver.submit(one.handle, lambda: gate.wait(LIMIT_S))
    filled = memory.peer(1, 0).fill(3).async_on(one)
    copied = memory.peer(1, 0).dup().async_on(other)
    assert not copied.done()
    gate.set()
    filled.result(timeout_s=LIMIT_S)
    assert copied.result(timeout_s=LIMIT_S).numpy().tolist() == [3] * 4


def test_an_alias_waits_for_nothing(group, gate):
    memory, device = symmetric(group, 4), group.devices[0]
    one, other = device.stream(), device.stream()
    one.device.driver.submit(one.handle, lambda: gate.wait(LIMIT_S))
    filled = memory.local(0).fill(3).async_on(one)
    copied = memory.alias(0)[0].dup().async_on(other)
    assert copied.result(timeout_s=LIMIT_S).numpy().tolist() == [0] * 4
    gate.set()
    filled.result(timeout_s=LIMIT_S)


def test_it_lasts_as_long_as_somebody_has_a_view(group):
    memory = symmetric(group, 1000, tk.int32)
    view = memory.peer(2, 0)
    memory.local(2).fill(5).sync()
    del memory
    gc.collect()
    assert view.numpy().tolist() == [5] * 1000


def test_misuse(group):
    with pytest.raises(TypeError, match=r"symmetric: group is a tk.Group, not \["):
        symmetric(list(group.devices), 4)
    memory = symmetric(group, 4)
    with pytest.raises(ValueError, match="peer: the group has the members 0, 1, 2, not 3"):
        memory.peer(3, 0)
    with pytest.raises(TypeError, match="local: the rank of a member is an int, not None"):
        memory.local()
    with pytest.raises(TypeError, match="whole: the rank of a member is an int, not True"):
        memory.whole(True)
    group.close()
    with pytest.raises(GroupError, match="was closed"):
        symmetric(group, 4)


# ------------------------------------------------------------------------------------------------------------- several processes


@pytest.fixture
def members(cpu_devices):
    """Runs a function of (group, rank) as each of so many members, in threads; gives what each returns, or raised."""

    def run(function, size):
        devices, address = cpu_devices(size), free_address()

        def member(rank):
            try:
                with Group.join(rank, size, address=address, device=devices[rank], timeout_s=LIMIT_S) as group:
                    return function(group, rank)
            except Exception as error:
                return error

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(member, range(size), timeout=2 * LIMIT_S))

    return run


def test_a_joined_member_has_its_own(members):
    def use(group, rank):
        memory = symmetric(group, (2, 2), tk.float32)
        memory.local().fill(rank + 1).sync()
        group.barrier().sync()
        seen = [memory.peer(other).numpy()[0, 0] for other in range(3)]
        with pytest.raises(ValueError, match=f"local: this process has the members {rank}, not {(rank + 1) % 3}"):
            memory.local((rank + 1) % 3)
        group.barrier().sync()
        return seen, memory.whole().numpy()[:, 1, 1].tolist()

    for found in members(use, 3):
        if isinstance(found, Exception):
            raise found
        assert found == ([1, 2, 3], [1, 2, 3])


def test_members_that_disagree(members):
    for first, second in (((4,), tk.float32), ((5,), tk.float32)), (((4,), tk.float32), ((4,), tk.int32)):
        found = members(lambda group, rank, both=(first, second): symmetric(group, *both[rank]), 2)
        assert "rank 1 asks for" in str(found[0]) and "all members have the same" in str(found[0])
        assert isinstance(found[0], ValueError) and isinstance(found[1], ValueError)


@pytest.mark.parametrize("shape", [2**47, (2**40, 2**40), 2**64], ids=["the_system", "a_word", "an_int"])
def test_more_than_there_can_be(group, shape):
    before = group.devices[0].driver.ledger.used
    with pytest.raises(OutOfMemoryError, match=rf"out of memory: {4 * math.prod(np.ravel(shape).tolist()):,} bytes asked for"):
        symmetric(group, shape)
    assert group.devices[0].driver.ledger.used == before


def test_joined_members_ask_for_more_than_there_can_be(members):
    found = members(lambda group, rank: symmetric(group, 2**64), 2)
    assert all(isinstance(error, OutOfMemoryError) for error in found)


def test_no_room_is_an_error_for_all(members, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    found = members(lambda group, rank: symmetric(group, 4), 2)
    assert "No space left on device" in str(found[0])
    assert isinstance(found[1], DeviceError) and "rank 0 could not have symmetric memory" in str(found[1])


def test_open_files_change_hands(members, tmp_path):
    """What GPUs' memory travels as."""

    def use(group, rank):
        path = tmp_path / str(rank)
        path.write_text(f"of rank {rank}")
        with path.open("rb") as file:
            received = swap(rank, 3, file.fileno(), group.exchange)
        texts = {}
        for other, descriptor in received.items():
            texts[other] = os.pread(descriptor, 100, 0).decode()  # two have the same place in the file
            os.close(descriptor)
        return texts

    for rank, found in enumerate(members(use, 3)):
        assert found == {other: f"of rank {other}" for other in range(3) if other != rank}


def _member(rank, size, address, results):
    os.environ["TILEKIT_DEVICE"] = "cpu"
    with Group.join(rank, size, address=address, device="cpu", timeout_s=LIMIT_S) as group:
        memory, flags = symmetric(group, 2, tk.int32), symmetric(group, 1, tk.int32)
        op = hand_round(memory.whole().scattered(), flags.whole()[:, 0].scattered(), 10 + rank, rank, size)
        op.grid(1).async_on(group.devices[0].stream()).result(timeout_s=LIMIT_S)
        group.barrier().sync()
        results.put((rank, memory.local().numpy().tolist()))
        del memory, flags, op


def test_processes_see_each_others_memory():
    """Kernels of two processes wait for each other's words; no file is left."""
    context = multiprocessing.get_context("spawn")
    before = _files()
    results, address = context.Queue(), free_address()
    processes = [context.Process(target=_member, args=(rank, 2, address, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=2 * LIMIT_S) for _ in processes)
    for process in processes:
        process.join(LIMIT_S)
        assert process.exitcode == 0
    assert found == {0: [11, 11], 1: [10, 10]}
    assert _files() <= before


def _files():
    folders = [Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp"))]
    return {path for folder in folders if folder.is_dir() for path in folder.glob("tilekit-*")}


def test_a_window_of_one_process():
    window = HostWindow(0, 3, 5, None)
    assert window.stride == 4096 and window.nbytes == 3 * 4096 and window.address % 4096 == 0
    assert not window.raw.any()


def test_nobody_is_warned_at_the_end(tmp_path):
    """A program that ends with symmetric memory alive says nothing."""
    program = """
        import os, threading
        os.environ["TILEKIT_DEVICE"], os.environ["TILEKIT_CPU_DEVICES"] = "cpu", "2"
        import tilekit as tk
        from tilekit._groups import Group, free_address
        from tilekit._groups.symmetric_memory import symmetric
        address, kept = free_address(), []
        def member(rank):
            group = Group.join(rank, 2, address=address, device=f"cpu:{rank}")
            kept.append(symmetric(group, 10))
            group.close()
        threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    """
    run = subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_the_class_is_what_the_function_gives(group):
    assert isinstance(symmetric(group, 1), Symmetric)
