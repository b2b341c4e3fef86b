"""What the Ray engine is made of, without Ray's processes: how functions and errors travel, and how memory is read."""

from __future__ import annotations

import ctypes
import itertools
import linecache
import os
import pickle
import sys
import threading
import types
from types import SimpleNamespace

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels

pytest.importorskip("ray", "2.55", reason="Ray is not installed: pip install 'tilekit-cuda[ray]'")

from ray import cloudpickle

from tilekit.distributed._ray import transport as _ray_transport
from tilekit.distributed._ray.group import RayGroup
from tilekit.distributed._ray.pickling import packed, packed_error, packed_function, unpacked, unpacked_error
from tilekit.distributed._ray.transport import Refused, SenderGone, read_memory
from tilekit.distributed._ray.worker import Kept, Part, Process, machine

FACTOR = 2.0
LIST = [1]


@tk.function
def twice(tile):
    return tile * FACTOR


@tk.kernel
def work(y: tk.Out, x: tk.In):
    y.store(twice(tk.load_tile_like(x, y)))


def build(x):
    return work(api.empty(x.shape).partition(16), x).first().unpartition()


def number():
    return FACTOR


def count():
    return len(LIST)


@pytest.fixture(autouse=True)
def _by_value():
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def there(value):
    data, files = packed(value)
    return unpacked(data, files)


def test_kernels_of_modules_are_imported():
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    try:
        assert there(work) is work
        assert there(twice) is twice
        assert len(packed(work)[0]) < 200
    finally:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_kernels_that_go_by_value_run_and_stay_the_same(cpu):
    kernel = there(work)
    assert kernel is not work
    assert repr(kernel) == repr(work)
    assert there(work) is kernel
    x = np.arange(32, dtype=np.float32)
    function = there(build)
    np.testing.assert_array_equal(function(api.from_host(x).sync()).to_host().sync(), 2 * x)
    assert function.__globals__["work"] is kernel


def test_a_kernel_needs_no_names_that_only_its_annotations_have(cpu):
    scope = {"tk": tk, "annotated": tk, "__name__": __name__}
    text = "@tk.kernel\ndef one(y: 'annotated.InOut[16]'):\n    y.store(y.load() + 1.0)\n"
    linecache.cache["<cell 7>"] = (len(text), None, text.splitlines(keepends=True), "<cell 7>")
    exec(compile(text, "<cell 7>", "exec", dont_inherit=True), scope)
    data, files = packed(scope["one"])
    assert list(files) == ["<cell 7>"]
    del linecache.cache["<cell 7>"]
    kernel = unpacked(data, files)
    assert linecache.getline("<cell 7>", 2) == "def one(y: 'annotated.InOut[16]'):\n"
    host = kernel(api.zeros(16).sync()).out().to_host().sync()
    np.testing.assert_array_equal(host, np.ones(16))


def test_a_file_that_is_the_same_is_not_replaced():
    packed(build)
    linecache.getlines(__file__)
    before = linecache.cache[__file__]
    there(build)
    assert linecache.cache[__file__] is before


def test_functions_are_packed_once_as_long_as_nothing_changes(monkeypatch):
    first, _, constant = packed_function(number)
    assert constant
    assert packed_function(number)[0] is first
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    assert unpacked(packed_function(number)[0], {})() == 3.0
    assert packed_function(build)[2]
    assert unpacked(packed_function(kernels.softmax)[0], {}) is kernels.softmax


@pytest.mark.parametrize("case", ["list", "closure", "attribute", "default", "partial", "class", "unfilled"])
def test_what_may_change_is_packed_each_time(case):
    held, local = [1], type("Local", (), {})

    def attribute():
        return 1

    attribute.held = held

    def unfilled():
        return later

    functions = {
        "list": count,
        "closure": lambda: held,
        "attribute": attribute,
        "default": lambda x=held: x,
        "partial": types.MethodType(lambda self: 1, held),
        "class": lambda: local,
        "unfilled": unfilled,
    }
    assert not (packed_function(functions[case])[2] if case != "unfilled" else False)
    if case == "unfilled":
        with pytest.raises(Exception, match="cell|later|empty"):
            unpacked(packed_function(unfilled)[0], {})()
    later = 5
    assert later == 5


class Odd(Exception):
    def __init__(self, message, *, code):
        super().__init__(message)
        self.code = code


class Sealed(Exception):
    def __init__(self):
        super().__init__("sealed")
        self.lock = threading.Lock()


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("key"),
        OSError(2, "no such", "file"),
        Odd("odd", code=7),
        tk.CompileError("reason", filename="f.py", lineno=3, line="  x = 1", column=2),
        tk.OutOfMemoryError("full", requested_bytes=5, free_bytes=1, total_bytes=2),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ],
)
def test_errors_arrive_as_themselves(error):
    error = raised(error)
    error.add_note("note")
    data, text = packed_error(error)
    arrived = unpacked_error(data)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert "test_ray_parts.py" in text
    assert "note" not in text


def test_errors_that_cannot_be_pickled_are_named():
    arrived = unpacked_error(packed_error(raised(Sealed()))[0])
    assert type(arrived) is RuntimeError
    assert "Sealed, which cannot be pickled: sealed" in str(arrived)


# the transport

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="process_vm_readv is Linux's")


def addresses(nbytes):
    source, target = np.arange(nbytes, dtype=np.uint8), np.zeros(nbytes, np.uint8)
    return source, target, source.ctypes.data, target.ctypes.data


@needs_linux
def test_memory_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr(_ray_transport, "_LARGEST", 7)
    source, target, start, to = addresses(100)
    try:
        read_memory(os.getpid(), start, to, 100, _ray_transport._born(os.getpid()))
    except Refused as refused:
        pytest.skip(f"this system forbids it: {refused}")
    np.testing.assert_array_equal(source, target)
    with pytest.raises(OSError, match="Bad address"):
        read_memory(os.getpid(), 8, to, 8)


@needs_linux
def test_processes_that_have_ended_are_not_read():
    _, _, start, to = addresses(8)
    with pytest.raises(SenderGone, match="has ended"):
        read_memory(os.getpid(), start, to, 8, "another")
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitpid(pid, 0)
    with pytest.raises((SenderGone, Refused)):
        read_memory(pid, start, to, 8)


def test_systems_without_it_refuse(monkeypatch):
    monkeypatch.setattr(_ray_transport, "_libc", lambda: object())
    with pytest.raises(Refused, match="has no process_vm_readv"):
        read_memory(os.getpid(), 8, 8, 8)


@needs_linux
def test_kernels_that_forbid_it_refuse(monkeypatch):
    class Library:
        @staticmethod
        def process_vm_readv(*args):
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(_ray_transport, "_libc", lambda: Library)
    with pytest.raises(Refused, match="reading 8 bytes of process"):
        read_memory(os.getpid(), 8, 8, 8)


@needs_linux
def test_machines_are_told_apart():
    assert machine() == machine() != ""


@needs_linux
def test_the_transport_reads_what_it_describes(cpu):
    transport = _ray_transport.DirectTransport()
    tensors = [api.arange(5).sync(), api.zeros((0, 2)).sync()]
    sent = transport.extract_tensor_transport_metadata("id", tensors)
    try:
        arrived = transport.recv_multiple_tensors("id", sent, transport.get_communicator_metadata(None, None))
    except Refused as refused:
        pytest.skip(f"this system forbids it: {refused}")
    for tensor, other in zip(tensors, arrived, strict=True):
        assert (tensor.shape, tensor.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(tensor.numpy(), other.numpy())
    assert transport.tensor_transport_backend() == "TILEKIT"
    assert transport.can_abort_transport()
    assert transport.is_one_sided()
    with pytest.raises(NotImplementedError):
        transport.send_multiple_tensors([], sent, None)


# the process, in this one


@pytest.fixture
def process(cpu):
    return Process("cpu", False)


def call(process, key, function, *args, dropped=(), parts=()):
    data, files = packed((args, {}))
    message = (key, packed(function)[0], False, data, files, list(dropped))
    return pickle.loads(process.run(pickle.dumps(message), *parts))


def test_a_process_keeps_results_until_they_are_dropped(process):
    assert call(process, 1, lambda: api.ones(4)) == ("done", (4,), tk.float32)
    assert call(process, 2, lambda t, u: t.dup(), Kept(1), Part(0), parts=[np.ones(3)]) == ("done", (4,), tk.float32)
    assert process.memory() == (2, 32)
    np.testing.assert_array_equal(process.fetch(2)[1], np.ones(4))
    assert call(process, 3, lambda: 5, dropped=[1]) == ("done", None, None)
    assert process.memory() == (2, 16)
    process.drop([2, 3])
    assert process.memory() == (0, 0)


def test_what_was_dropped_before_it_began_is_not_run(process):
    called = []
    process.drop([7])
    assert process.unwanted() == 1
    assert call(process, 7, called.append, 1) == ("done", None, None)
    assert process.unwanted() == 0
    assert process.memory() == (0, 0)


def test_calls_that_fail_leave_nothing(process):
    """Whoever called drops their results as well, and that may come before the call, or after."""
    process.drop([1])
    call(process, 1, lambda: 1 / 0)
    assert call(process, 2, lambda: 1 / 0)[0] == "failed"
    assert process.collective(7, "all_reduce", 3, None, {})[0] == "failed"  # there is no such group
    process.drop([4])
    process.collective(7, "all_reduce", 4, None, {})
    process.drop([2, 3])
    assert (process.unwanted(), process.memory(), process._kept) == (0, (0, 0), {})


def test_a_process_replies_with_errors(process):
    kind, data, text = call(process, 1, lambda: 1 / 0)
    assert kind == "failed"
    assert isinstance(unpacked_error(data), ZeroDivisionError)
    assert "1 / 0" in text
    assert process.fetch(99)[0] == "failed"
    kind, data, text = pickle.loads(process.run(pickle.dumps((1, b"no pickle", False, b"", {}, []))))
    assert kind == "failed"
    assert process.memory() == (0, 0)


def test_dense(process):
    call(process, 1, lambda: api.arange(6).reshape(2, 3).map(lambda t: (t.T, 5)))
    tensor, five = process.send(1)
    assert tensor.is_contiguous
    assert five == 5
    np.testing.assert_array_equal(process.export(1)[0], np.arange(6).reshape(2, 3).T)


def test_about(process):
    about = process.about()
    assert about["device"] == "cpu:0"
    assert about["pid"] == os.getpid()
    assert process.nothing() is None


class _Actor:
    """Notes what it is asked for, in the order in which that comes."""

    def __init__(self, asked):
        self.asked = asked
        self.collective = self

    def remote(self, number, name, *_):
        self.asked(self, number)
        return object()


def test_two_groups_ask_their_workers_in_one_order():
    """Else one worker begins with the one group's collective, and another with the other's, and they wait for each other."""
    order: list[list[int]] = [[], []]
    others = []

    def asked(actor, number):
        order[actors.index(actor)].append(number)
        if not others:  # in the middle of the first group's: somebody else comes with the second's
            others.append(threading.Thread(target=groups[1].submit, args=("barrier", [], {})))
            others[0].start()
            others[0].join(0.2)  # which has to wait

    actors = [_Actor(asked), _Actor(asked)]
    cluster = SimpleNamespace(
        submitting=threading.Lock(),
        keys=itertools.count(),
        check_open=lambda: None,
        dropper=SimpleNamespace(drop=lambda *_: None),
    )
    worker = SimpleNamespace(cluster=cluster)
    groups = []
    for number in range(2):
        group = object.__new__(RayGroup)
        group.cluster, group.workers, group._number = cluster, (worker, worker), number
        group._homes = [SimpleNamespace(actor=actor, lost=False) for actor in actors]
        groups.append(group)
    groups[0].submit("barrier", [], {})
    others[0].join(30)
    assert order == [[0, 1], [0, 1]]
