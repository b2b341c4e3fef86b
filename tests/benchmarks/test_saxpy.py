"""The saxpy benchmark: small, on any device; and the peers of a GPU, against stand-ins for their libraries."""

import ctypes
import sys
import types
from contextlib import contextmanager
from importlib.machinery import ModuleSpec

import numpy as np
import pytest

import tilekit_benchmarks as bench
from tilekit_benchmarks import Options, saxpy, saxpy_peers
from tilekit_benchmarks.harness import Contestant, Variant

N = 5000  # no multiple of any tile


@pytest.fixture
def only(monkeypatch, device):
    """Choose the peers that take part."""

    def choose(**peers):
        monkeypatch.setattr(saxpy_peers, "PEERS", {device.kind: peers})

    return choose


@pytest.fixture
def data(device):
    with device.stream() as stream:
        yield saxpy._Data(device, stream, N)


def test_tilekit_is_measured_and_right(device, only):
    only()
    run = bench.run("saxpy", Options(device=device, n=N, rounds=3, command="c"))
    assert run.benchmark == "saxpy"
    assert run.bytes_per_launch == 12 * N
    assert run.command == "c"
    (own,) = run.results
    assert own.name == "tilekit"
    assert own.variant in own.tried_us
    assert len(own.samples_us) == 3
    assert own.max_relative_error <= saxpy._TOLERANCE
    assert own.ratio is None
    assert any("--n" in note for note in run.notes)
    assert run.all_correct


@pytest.mark.parametrize("peer", ["numpy", "numba"])
def test_the_cpus_peers_are_right(peer, data):
    if data.stream.device.kind != "cpu":
        pytest.skip("these peers compute on the host")
    contestant, error = saxpy._join(peer, saxpy_peers.PEERS["cpu"][peer], data, [])
    assert contestant.name == peer
    assert error <= saxpy._TOLERANCE


def doing(work):
    return lambda data: Contestant(name="peer", version="1", variants=(Variant(label="v", launch=lambda: work(data)),))


def on_host(change):
    """A peer that computes on the host, whatever the device."""

    def work(data):
        if data.stream.device.kind != "cpu":
            pytest.skip("changes the memory of a CPU device")
        change(data.x.host_view(), data.y.host_view(), np.float32(data.factor))

    return doing(work)


def right(x, y, a):
    y += a * x


def last_left_out(x, y, a):
    y[:-1] += a * x[:-1]


def not_a_number(x, y, a):
    y += a * x
    y[7] = np.nan


def done_twice(x, y, a):
    right(x, y, a)
    right(x, y, a)


@pytest.mark.parametrize("work", [last_left_out, not_a_number, done_twice, lambda x, y, a: None])
def test_a_wrong_peer_is_not_measured(device, only, work):
    only(bad=on_host(work), good=on_host(right))
    run = bench.run("saxpy", Options(device=device, n=N, rounds=1))
    assert {result.name for result in run.results} == {"tilekit", "peer"}
    (left,) = run.left_out
    assert (left.name, left.cause) == ("bad", "wrong")
    assert "differs from NumPy's" in left.reason
    assert not run.all_correct


def test_a_peer_that_fails_or_is_missing_is_named(device, only):
    def fail(data):
        raise RuntimeError("no kernel image\nis available")

    def missing(data):
        saxpy_peers.need(("no_such_module", "no-such-package"))

    only(sick=fail, absent=missing)
    run = bench.run("saxpy", Options(device=device, n=N, rounds=1))
    sick, absent = run.left_out
    assert (sick.cause, sick.reason) == ("failed", "RuntimeError: no kernel image")
    assert (absent.cause, absent.reason) == ("missing", "not installed: pip install no-such-package")
    assert run.all_correct


def test_tilekit_itself_may_not_fail(device, only, monkeypatch):
    def broken(data):
        raise RuntimeError("broken")

    only()
    monkeypatch.setattr(saxpy, "_own", broken)
    with pytest.raises(RuntimeError, match="broken"):
        bench.run("saxpy", Options(device=device, n=N, rounds=1))


def test_options_are_checked(device):
    with pytest.raises(ValueError, match="at least one element"):
        Options(device=device, n=0)
    with pytest.raises(ValueError, match="at least one round"):
        Options(device=device, rounds=0)
    with pytest.raises(ValueError, match="no benchmark 'sax'; there is saxpy"):
        bench.run("sax", Options(device=device))


# The peers of a GPU. On a CPU device addresses are the host's, so a stand-in can work on what it is given.


def array_at(owner):
    """What a library makes of `__cuda_array_interface__`: a view, no copy."""
    interface = owner.__cuda_array_interface__
    assert interface["version"] == 3
    assert interface["strides"] is None
    assert interface["stream"] is None
    address, read_only = interface["data"]
    assert not read_only
    (n,) = interface["shape"]
    assert interface["typestr"] == "<f4"
    return np.frombuffer((ctypes.c_float * n).from_address(address), np.float32)


class FakeTensor:
    def __init__(self, owner):
        self.array = array_at(owner)

    def data_ptr(self):
        return self.array.ctypes.data


@pytest.fixture
def stand_in(monkeypatch, data):
    """Put a module in the place of a library."""
    if data.stream.device.kind != "cpu":
        pytest.skip("stand-ins work on a CPU device's memory")
    data.stream.synchronize()

    def put(name, **contents):
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__version__ = "9.9"
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


@pytest.fixture
def fake_torch(stand_in, data):
    current = []

    def stream(given):
        @contextmanager
        def context():
            current.append(given)
            yield
            current.pop()

        return context()

    def add(y, x, *, alpha, out):
        assert current == [(data.stream.address, ("cuda", 0))]
        assert out is y
        y.array += np.float32(alpha) * x.array

    return stand_in(
        "torch",
        device=lambda kind, ordinal: (kind, ordinal),
        cuda=types.SimpleNamespace(ExternalStream=lambda address, device: (address, device), stream=stream),
        as_tensor=lambda owner, device: FakeTensor(owner),
        add=add,
        current=current,
    )


def check(name, data):
    contestant, error = saxpy._join(name, saxpy_peers.PEERS["cuda"][name], data, [])
    assert contestant.name == name
    assert error <= saxpy._TOLERANCE
    return contestant


def test_torch(fake_torch, data):
    assert check("torch", data).version == "9.9"


def test_triton(fake_torch, stand_in, data):
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            def launch(y, a, x, n, *, BLOCK, num_warps):
                assert fake_torch.current
                assert grid == (-(-n // BLOCK),)
                launched.append((BLOCK, num_warps))
                y.array += np.float32(a) * x.array

            return launch

    stand_in("triton")
    stand_in("tilekit_benchmarks._triton_saxpy", saxpy=Kernel())
    contestant = check("triton", data)
    assert launched == list(saxpy_peers._TRITON)
    assert contestant.variants[0].label == "block 512, 4 warps"


def test_triton_needs_torch(stand_in, data, monkeypatch):
    stand_in("triton")
    monkeypatch.setattr(saxpy_peers, "find_spec", lambda name: None if name == "torch" else True)
    left_out = []
    assert saxpy._join("triton", saxpy_peers.triton_kernel, data, left_out) is None
    assert left_out[0].reason == "not installed: pip install torch"


def test_cupy(stand_in, data):
    current = []

    @contextmanager
    def context(thing):
        current.append(thing)
        yield
        current.pop()

    class Stream:
        def __init__(self, address, device):
            self.named = (address, device)

        def __enter__(self):
            current.append(self.named)

        def __exit__(self, *_):
            current.pop()

    class Array:
        def __init__(self, owner):
            self.array = array_at(owner)
            self.data = types.SimpleNamespace(ptr=self.array.ctypes.data)

    def kernel(inputs, outputs, body, name):
        assert (inputs, outputs, body) == ("float32 a, float32 x", "float32 y", "y = a * x + y")

        def launch(a, x, y):
            assert current == [0, (data.stream.address, 0)]
            assert isinstance(a, np.float32)
            y.array += a * x.array

        return launch

    stand_in("cupy", cuda=types.SimpleNamespace(ExternalStream=Stream, Device=context), asarray=Array, ElementwiseKernel=kernel)
    check("cupy", data)


def test_numba_cuda(monkeypatch, data):
    cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    if data.stream.device.kind != "cpu":
        pytest.skip("a stand-in for a CPU device")
    from tilekit_benchmarks import _numba_saxpy

    launched = []

    class Kernel:
        def __getitem__(self, configuration):
            blocks, threads, stream = configuration
            assert stream == ("stream", data.stream.address)
            assert blocks * threads >= data.n

            def launch(y, a, x):
                assert isinstance(a, np.float32)
                launched.append(threads)
                y += a * x

            return launch

    monkeypatch.setattr(cuda, "select_device", lambda ordinal: None)
    monkeypatch.setattr(cuda, "as_cuda_array", array_at)
    monkeypatch.setattr(cuda, "external_stream", lambda address: ("stream", address))
    monkeypatch.setattr(_numba_saxpy, "on_gpu", Kernel)
    check("numba-cuda", data)
    assert launched == [128, 256, 512]


def test_the_numba_kernel_compiles_to_single_precision():
    cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    from numba import types as nb

    from tilekit_benchmarks import _numba_saxpy

    vector = nb.float32[::1]
    ptx, _ = cuda.compile_ptx(_numba_saxpy.on_gpu().py_func, (vector, nb.float32, vector), cc=(9, 0))
    assert "fma.rn.f32" in ptx
    assert ".f64" not in ptx
