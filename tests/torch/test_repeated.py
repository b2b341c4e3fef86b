"""Operators whose work is done again for arguments that look alike (`pure=True`): on a GPU that keeps what it is given.

PyTorch's tensors are the host's here, which that GPU never looks at.
"""

from __future__ import annotations

import gc
import struct
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")
pytest.importorskip("numba.cuda", reason="compiles kernels")

from fake_gpu import first_gpu  # noqa: E402

import tilekit as tk  # noqa: E402
from tilekit import _native, api, kernels  # noqa: E402
from tilekit.errors import DeviceError  # noqa: E402
from tilekit.torch import _custom_op, _repeated, _running, custom_op  # noqa: E402

pytestmark = pytest.mark.skipif(_native.compiled is None, reason="tilekit was installed without a C compiler")


@tk.kernel
def scale(y: tk.Out, x: tk.In, factor):
    y.store(tk.astype(tk.load_tile_like(x, y) * factor, tk.float32))


@tk.kernel
def add(y: tk.InOut, x: tk.In):
    y.store(y.load() + tk.load_tile_like(x, y))


calls: list[str] = []


def scaled(x: torch.Tensor, factor: float = 2.0):
    calls.append("scaled")
    return scale(api.empty(x.shape, tk.float32), x, factor).tile(64)


@pytest.fixture
def gpu(monkeypatch):
    """The driver of the GPU that PyTorch's tensors seem to be on."""
    calls.clear()
    with first_gpu(monkeypatch) as (device, driver):
        stream = device.policy.next_stream()
        for module in (_custom_op, _running, _repeated):
            monkeypatch.setattr(module, "device_on", lambda where: device)
        for module in (_running, _repeated):
            monkeypatch.setattr(module, "stream_on", lambda device: stream)
        monkeypatch.setattr(_repeated, "address_on", lambda ordinal: stream.address)
        monkeypatch.setattr(_repeated, "_empty", lambda *asked: torch.empty_strided(*asked[:2], dtype=asked[2]))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        yield driver


SLOTS = 5  # of `scale`: address and extent of two vectors, and the factor


def parameters(launch):
    """Of a launch of `scale` what it writes to, what it reads, how many elements, and the factor."""
    y, n, x, _, factor = struct.unpack("=4qd", launch[-1])
    return y, x, n, factor


def test_from_the_third_call_on_the_launch_is_not_called(gpu):
    gpu.slots = SLOTS
    operator = custom_op("tilekit_tests::scaled", scaled, pure=True)
    arrays = [torch.ones(100) for _ in range(5)]
    results = [operator(array, 3.0) for array in arrays]
    assert calls == ["scaled"] * 2
    wanted = [(result.data_ptr(), array.data_ptr(), 100, 3.0) for result, array in zip(results, arrays)]
    assert [parameters(launch) for launch in gpu.launches] == wanted
    assert len({launch[:-1] for launch in gpu.launches}) == 1, "the function, the grid, the stream"
    assert all((r.shape, r.dtype, r.stride()) == ((100,), torch.float32, (1,)) for r in results)


def test_an_operator_that_may_do_something_else_each_time_is_called_each_time(gpu):
    operator = custom_op("tilekit_tests::scaled", scaled)
    for _ in range(4):
        operator(torch.ones(100))
    assert calls == ["scaled"] * 4


@pytest.mark.parametrize(
    "other",
    [
        (torch.ones(101), 2.0),
        (torch.ones(200)[::2], 2.0),
        (torch.ones(100, dtype=torch.float64), 2.0),
        (torch.ones(101)[1:], 2.0),
        (torch.ones(100), 4.0),
        (torch.ones(100), -0.0),
        (torch.ones(100, device="meta"), 2.0),
    ],
    ids=["shape", "strides", "dtype", "alignment", "number", "sign", "device"],
)
def test_other_arguments_are_another_kind(gpu, other):
    operator = custom_op("tilekit_tests::scaled", scaled, pure=True, contiguous=False)
    for factor in (2.0, 0.0):
        for _ in range(3):
            operator(torch.ones(100), factor)
    calls.clear()
    if other[0].device.type == "meta":
        assert operator(*other).device.type == "meta"  # without the launch's memory
        return
    for _ in range(3):
        operator(*other)
    assert calls == ["scaled"] * 2


def test_parts_of_one_array_are_told_apart(gpu):
    @custom_op("tilekit_tests::sum", pure=True)
    def total(x: torch.Tensor, y: torch.Tensor):
        return add(y.dup(), x).tile(64)

    gpu.slots = 4
    both = torch.ones(2, 128)
    for _ in range(2):
        total(*both)
    for x, y in (torch.ones(128), torch.ones(128)), both.flip(0), (both[1], both[1]):
        result = total(x, y)
        (_, to, start, count), (written, _, read, _) = gpu.copies[-1], struct.unpack("=4q", gpu.launches[-1][-1])
        assert (to, start, count) == (result.data_ptr(), y.data_ptr(), 512)
        assert (written, read) == (result.data_ptr(), x.data_ptr())


def test_several_launches_with_workspaces_and_tensor_maps(gpu):
    @custom_op("tilekit_tests::products", results=("ab", "bias"), pure=True)
    def products(a: torch.Tensor, b: torch.Tensor):
        return kernels.gemm(a, b), kernels.rms_norm(b, api.ones(b.shape[1], b.dtype))

    a, b, others = *(torch.ones(256, 256, dtype=torch.bfloat16) for _ in range(2)), torch.ones(2, 256, 256, dtype=torch.bfloat16)
    for _ in range(2):
        first = products(a, b)
    encoded = {asked[2] for asked in gpu.encoded.values()}
    assert {a.data_ptr(), b.data_ptr()} <= encoded, "the product reads by tensor maps"
    before = len(gpu.launches)
    again = products(*others)
    assert gpu.calls["cuTensorMapReplaceAddress"]
    assert {others[0].data_ptr(), others[1].data_ptr()} <= {asked[2] for asked in gpu.encoded.values()} - encoded
    assert len(gpu.launches) == before + before // 2
    assert [(x.shape, x.dtype) for x in first] == [(x.shape, x.dtype) for x in again]


CONSTANT = np.ones(100, np.float32)

MORE = {
    "memory of tilekit's": lambda x, own: add(x.dup(), own).tile(64),
    "the host's memory": lambda x, own: scale(api.empty(100, tk.float32), api.from_host(CONSTANT), 2.0).tile(64),
    "a part of new memory": lambda x, own: api.zeros((2, 100), tk.float32).map(lambda rows: rows[0]),
}


def test_nothing_is_garbage_when_a_call_returns(gpu, monkeypatch):
    """Which would spoil the pool of a CUDA graph of PyTorch's that is being captured."""

    @custom_op("tilekit_tests::many", results=("ab", "c", "d"), pure=True)
    def many(a: torch.Tensor, b: torch.Tensor):
        return kernels.gemm(a, b), kernels.rms_norm_backward(a, b, api.ones(b.shape[1], b.dtype))

    made = []
    allocated = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *asked, **named: kept(allocated(*asked, **named)))

    def kept(array):
        made.append(weakref.ref(array.untyped_storage()))
        return array

    gc.disable()
    try:
        for turn in range(4):
            a, b = (kept(torch.ones(256, 256, dtype=torch.bfloat16)) for _ in range(2))
            many(a, b)
            del a, b
            if not turn:
                gc.collect()  # the kernels were compiled
            assert not [at for at, array in enumerate(made) if array() is not None], turn
    finally:
        gc.enable()
    assert len(made) > 8, "workspaces, too"


@pytest.mark.parametrize("what", MORE)
def test_what_is_more_than_launches_is_called_each_time(gpu, what):
    own = api.ones(100).sync()

    @custom_op("tilekit_tests::more", pure=True)
    def more(x: torch.Tensor):
        calls.append("more")
        return MORE[what](x, own)

    for _ in range(4):
        assert more(torch.ones(100)).shape == (100,)
    assert len(calls) >= 4


def test_an_operator_that_writes_into_its_arguments_is_called_each_time(gpu):
    @custom_op("tilekit_tests::add_", mutates=("y",), pure=True)
    def add_(y: torch.Tensor, x: torch.Tensor) -> None:
        calls.append("add_")
        return add(y, x).tile(64)

    for _ in range(4):
        add_(torch.ones(100), torch.ones(100))
    assert calls == ["add_"] * 4


def test_undeclared_writes_are_refused_each_time(gpu):
    @custom_op("tilekit_tests::undeclared", pure=True)
    def undeclared(y: torch.Tensor, x: torch.Tensor):
        return add(y, x).tile(64)

    for _ in range(4):
        with pytest.raises(ValueError, match="the launch has written into y, of which PyTorch must know"):
            undeclared(torch.ones(100), torch.ones(100))


def test_another_current_device_and_a_refusal_of_the_drivers(gpu):
    operator = custom_op("tilekit_tests::scaled", scaled, pure=True)
    x = torch.ones(100)
    for _ in range(3):
        operator(x)
    gpu.context = 8
    calls.clear()
    operator(x)
    assert calls == ["scaled"], "in the usual way, which makes the device current"
    gpu.context, gpu.refuse = 7, 1
    with pytest.raises(DeviceError, match="running tilekit_tests::scaled"):
        operator(x)
    gpu.refuse = 0
    operator(x)
    assert calls == ["scaled"]


def test_gradients_are_repeated(gpu):
    gpu.slots = SLOTS

    def backward(grad, x):
        calls.append("backward")
        return scale(api.empty(x.shape, tk.float32), grad, 2.0).tile(64)

    operator = custom_op("tilekit_tests::scaled", scaled, backward=backward, pure=True)
    for turn in range(4):
        x = torch.ones(100, requires_grad=True)
        y = operator(x)
        grad = torch.ones(100)
        (by_x,) = torch.autograd.grad(y, (x,), grad)
        assert parameters(gpu.launches[-1]) == (by_x.data_ptr(), grad.data_ptr(), 100, 2.0), turn
    assert calls == ["scaled", "backward"] * 2


def test_many_kinds_of_arguments(gpu, monkeypatch):
    gpu.slots = SLOTS
    monkeypatch.setattr(_repeated, "_KEPT", 3)
    operator = custom_op("tilekit_tests::scaled", scaled, pure=True)
    for n in (10, 20, 30, 40, 50):
        for _ in range(3):
            operator(torch.ones(n))
        assert parameters(gpu.launches[-1])[2] == n
    assert calls == ["scaled"] * 10


def test_without_the_compiled_part_nothing_is_repeated(gpu, monkeypatch):
    monkeypatch.setenv("TILEKIT_NATIVE", "0")
    operator = custom_op("tilekit_tests::scaled", scaled, pure=True)
    for _ in range(4):
        operator(torch.ones(100))
    assert len(gpu.launches) == 4


def test_on_the_cpu_nothing_changes(cpu):
    operator = custom_op("tilekit_tests::scaled", scaled, pure=True)
    for factor in (1.0, 2.0, 2.0, 2.0, 3.0):
        assert torch.equal(operator(torch.ones(100), factor), torch.full((100,), factor))
