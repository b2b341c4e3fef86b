"""Groups of GPUs, as far as a machine without one can tell: what NCCL is asked for, and what becomes of a lost member."""

from __future__ import annotations

import threading

import pytest
from fake_gpu import fake_device
from fake_nccl import FakeNccl

import tilekit as tk
from tilekit import api
from tilekit._driver.cuda.nccl import load
from tilekit._groups import Group, free_address, gpus
from tilekit._groups.call import Call
from tilekit._groups.control import parsed
from tilekit._groups.link import Link
from tilekit._groups.messages import HOST, WORK
from tilekit.errors import GroupError

LIMIT_S = 30


@pytest.fixture
def gpu(monkeypatch):
    with fake_device() as (device, bindings):
        nccl = FakeNccl()
        monkeypatch.setattr(gpus, "load", lambda: nccl.library)
        yield device, bindings, nccl


class Other:
    """A second member, which takes part in what hosts do, and submits nothing."""

    def __init__(self, address):
        self.links, self._address = [], address
        self._thread = threading.Thread(target=self._join)
        self._thread.start()

    def _join(self):
        self.links = [Link(channel, 1, 2, parsed(self._address), b"tilekit", LIMIT_S) for channel in (HOST, WORK)]
        self.links[0].exchange("cuda")
        self.links[0].exchange(None)

    def there(self):
        self._thread.join(LIMIT_S)
        return self.links

    def dies(self):
        for link in self.there():
            link._connection.close()


def join(device, **options):
    address = free_address()
    other = Other(address)
    group = Group.join(0, 2, address=address, device=device, **{"timeout_s": LIMIT_S, **options})
    other.there()
    return group, other


def test_a_collective_is_recorded_in_a_graph(gpu):
    device, _, nccl = gpu
    group, other = join(device)
    x = api.empty((64,), tk.float32).on(device).sync()
    group.all_reduce(x, out=x).sync()
    graph = group.all_reduce(x, out=x).graph_on(device.stream())
    eager, recorded = nccl.data()
    assert recorded[:-1] == eager[:-1]
    assert recorded[-1] != eager[-1], "a stream of its own, that is captured"
    graph.close()
    other.dies()
    group.close()


def test_what_nccl_is_asked_for(gpu):
    device, _, nccl = gpu
    group, other = join(device)
    x = api.empty((6, 4), tk.bfloat16).on(device).sync()
    stream = group.streams()[0].address
    results = {
        kind: getattr(group, kind)(x).sync() for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
    }
    group.send(x, 1).sync()
    got = group.recv((3,), tk.int16, 1).sync()
    group.barrier().sync()
    bf16 = FakeNccl.DataType.Bfloat16
    kinds = {"all_gather": (12, 4), "reduce_scatter": (3, 4)}
    assert all(result.shape == kinds.get(kind, (6, 4)) for kind, result in results.items())
    a = {kind: result.address for kind, result in results.items()}
    half = 24
    assert nccl.data() == [
        ("all_reduce", x.address, a["all_reduce"], 24, bf16, FakeNccl.RedOp.Sum, 100, stream),
        ("all_gather", x.address, a["all_gather"], 24, bf16, 100, stream),
        ("reduce_scatter", x.address, a["reduce_scatter"], 12, bf16, FakeNccl.RedOp.Sum, 100, stream),
        ("broadcast", x.address, a["broadcast"], 24, bf16, 0, 100, stream),
        ("group_start",),
        ("send", x.address, 12, bf16, 0, 100, stream),
        ("recv", a["all_to_all"], 12, bf16, 0, 100, stream),
        ("send", x.address + half, 12, bf16, 1, 100, stream),
        ("recv", a["all_to_all"] + half, 12, bf16, 1, 100, stream),
        ("group_end",),
        ("send", x.address, 24, bf16, 1, 100, stream),
        ("recv", got.address, 6, FakeNccl.DataType.Uint8, 1, 100, stream),
        nccl.data()[-1],
    ]
    assert nccl.data()[-1][0] == "all_reduce" and nccl.data()[-1][3:5] == (1, FakeNccl.DataType.Int32)
    assert nccl.calls[0] == ("init", 2, 0, bytes(range(128)))
    other.dies()
    group.close()


def test_what_a_member_sends_to_itself_is_no_business_of_nccls(gpu):
    device, _, nccl = gpu
    group, other = join(device)
    group.send(api.empty((6,), tk.float32).on(device).sync(), 0).sync()
    assert group.recv((6,), tk.float32, 0).sync().shape == (6,)
    assert nccl.data() == []
    other.dies()
    group.close()


def test_tensors_change_places(gpu):
    device, bindings, nccl = gpu
    group, other = join(device)
    x = api.empty((6,), tk.int16).on(device).sync()
    stream = group.streams()[0].address
    u8 = FakeNccl.DataType.Uint8
    swapped = group.permute(x, [(0, 1), (1, 0)]).sync()
    filled = bindings.calls["cuMemsetD8Async"]
    group.permute(x, [(0, 1)]).sync()  # this one gets zeros
    assert bindings.calls["cuMemsetD8Async"] == filled + 1
    assert nccl.data() == [
        ("group_start",),
        ("send", x.address, 12, u8, 1, 100, stream),
        ("recv", swapped.address, 12, u8, 1, 100, stream),
        ("group_end",),
        ("group_start",),
        ("send", x.address, 12, u8, 1, 100, stream),
        ("group_end",),
    ]
    other.dies()
    group.close()


def test_one_process(gpu):
    device, _, nccl = gpu
    with Group([device]) as group:
        (found,) = group.all_reduce([api.ones((5,)).on(device)], op="max").sync()
        assert found.device is device
    assert [call[0] for call in nccl.calls] == ["init_all", "all_reduce", "destroy"]
    assert nccl.calls[1][3:6] == (5, FakeNccl.DataType.Float32, FakeNccl.RedOp.Max)


def test_debug_compares_what_members_submit(gpu):
    device, _, nccl = gpu
    group, other = join(device, debug=True)
    x = api.empty((4,)).on(device).sync()
    link, errors = other.there()[1], []

    def submits(kind, op=""):
        call = Call(kind=kind, shape=(4,), dtype=tk.float32, op=op)
        try:
            link.collective(call, None, None, checks=True)
        except GroupError as error:
            errors.append(str(error))

    same = threading.Thread(target=submits, args=("all_reduce", "sum"))
    same.start()
    group.all_reduce(x).sync()
    same.join(LIMIT_S)
    different = threading.Thread(target=submits, args=("all_gather",))
    different.start()
    with pytest.raises(GroupError, match=r"rank 0 submitted all_reduce\(sum, float32 \(4,\)\), rank 1 all_gather"):
        group.all_reduce(x).sync()
    different.join(LIMIT_S)
    assert len(errors) == 1 and len(nccl.data()) == 1
    group.close()


def test_a_lost_member_ends_the_work_that_waits_for_it(gpu):
    device, bindings, nccl = gpu
    group, other = join(device)
    x = api.empty((4,)).on(device).sync()
    bindings.not_ready = 10**9  # NCCL's kernel waits for the other's
    future = group.all_reduce(x).async_on(device.stream())
    abort = nccl.library.core.Communicator.abort

    def aborted(self):
        abort(self)
        bindings.not_ready = 0

    nccl.library.core.Communicator.abort = aborted
    other.dies()
    with pytest.raises(GroupError, match="the process of rank 1 has ended") as caught:
        future.result(timeout_s=LIMIT_S)
    assert caught.value.ranks == (1,) and ("abort", 100) in nccl.calls
    with pytest.raises(GroupError, match="is broken: the process of rank 1 has ended"):
        group.all_reduce(x).sync()
    group.close()


def test_a_member_that_does_not_submit_is_named(gpu):
    device, bindings, nccl = gpu
    group, other = join(device, timeout_s=0.5)
    x = api.empty((4,)).on(device).sync()
    bindings.not_ready = 10**9
    future = group.all_reduce(x).async_on(device.stream())
    abort = nccl.library.core.Communicator.abort

    def aborted(self):
        abort(self)
        bindings.not_ready = 0

    nccl.library.core.Communicator.abort = aborted
    with pytest.raises(
        GroupError, match=r"number 1, all_reduce\(.*\), of rank 0 was not done within 0\.5 s: rank 1 did not submit that many"
    ):
        future.result(timeout_s=LIMIT_S)
    other.dies()
    group.close()


def test_what_nccl_says_went_wrong(gpu):
    device, _, nccl = gpu
    group, other = join(device)
    x = api.empty((4,)).on(device).sync()
    group.all_reduce(x).sync()
    nccl.state = 3
    broken = threading.Event()
    group.on_loss(broken.set)
    assert broken.wait(LIMIT_S)
    with pytest.raises(GroupError, match="NCCL says: error 3"):
        group.all_reduce(x).sync()
    other.dies()
    group.close()


def test_two_kinds_of_devices(gpu):
    device, _, _ = gpu
    address = free_address()

    def other():
        with pytest.raises(ValueError, match="two kinds: rank 0 cuda, rank 1 cpu"):
            Group.join(1, 2, address=address, device="cpu", timeout_s=LIMIT_S)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(ValueError, match="the members' devices are of two kinds"):
        Group.join(0, 2, address=address, device=device, timeout_s=LIMIT_S)
    thread.join(LIMIT_S)


def test_nccl_that_is_missing(monkeypatch):
    import importlib

    def missing(name):
        raise ImportError(f"no {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r'nccl4py is not installed .*pip install "tilekit-cuda\[nccl13\]"'):
        load()

    class Without:
        def get_version(self):
            raise RuntimeError("libnccl.so.2 not found")

    with pytest.raises(ImportError, match="finds no libnccl .*pip install nvidia-nccl-cu13"):
        load(object(), Without())
