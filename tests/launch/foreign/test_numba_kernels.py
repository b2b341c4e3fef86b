"""numba's kernels as ops: what they declare, and how they run in numba's simulator where there is no GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest
from cuda_code import CONFIG
from fake_gpu import fake_device

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu.driver import CpuDriver
from tilekit.compiler.foreign import executables as foreign


def numba_kernel():
    cuda = pytest.importorskip("numba.cuda", reason="wraps a kernel of numba's")

    @cuda.jit
    def add(c: tk.Out, a: tk.In, b, n: int):
        i = cuda.grid(1)
        if i < n:
            c[i] = a[i] + b[i]

    return add


def test_annotations_say_what_becomes_of_arrays():
    add = numba_kernel()
    assert [p.access for p in tk.wrap(add).parameters] == ["out", "in", "auto", "auto"]
    marked = tk.wrap(add, signature="InOut, In[f32], In, i64")
    assert [p.access for p in marked.parameters] == ["inout", "in", "in", "scalar"]
    assert [p.name for p in marked.parameters] == ["c", "a", "b", "n"]
    assert marked.result_count == 4
    with pytest.raises(ValueError, match=r"numba kernel add has 4 parameters \(c, a, b, n\), its signature declares 2"):
        tk.wrap(add, signature="Out, In")


def test_annotations_that_are_strings_or_for_others():
    cuda = pytest.importorskip("numba.cuda", reason="wraps a kernel of numba's")

    @cuda.jit
    def add(c: "tk.Out[16]", a: "tk.In", b: "Array"):  # noqa: F821
        pass

    assert [p.access for p in tk.wrap(add).parameters] == ["out", "in", "auto"]

    @cuda.jit
    def variadic(*arrays):
        pass

    with pytest.raises(TypeError, match="takes any number of arguments: say what it is called with"):
        tk.wrap(variadic)
    assert len(tk.wrap(variadic, signature="Out, In").parameters) == 2


def test_what_is_no_kernel_of_numbas():
    cuda = pytest.importorskip("numba.cuda", reason="wraps a kernel of numba's")

    @cuda.jit(device=True)
    def helper(x):
        return x

    @tk.kernel
    def tile(y: tk.Out):
        y.store(1.0)

    for given, found in [
        (len, "built-in function len"),
        (tile, "<kernel tile"),
        (helper, "a device function, which only kernels call"),
    ]:
        with pytest.raises(TypeError, match=f"tk.wrap takes a kernel, a function decorated with numba.cuda.jit, not .*{found}"):
            tk.wrap(given)


def test_a_numba_kernel_takes_tensors_and_scalars():
    add = tk.wrap(numba_kernel(), CONFIG)
    with tk.use_device("cpu"):
        c = api.zeros(8).sync()
        with pytest.raises(
            TypeError, match="numba kernel add, argument b: kernels take tensors and scalars, not a NumPy array; copy"
        ):
            add(c, c, np.zeros(8), 8)
        with pytest.raises(TypeError, match="argument a: declared In, so it takes a tensor, not int"):
            add(c, 3, c, 8)
    with pytest.raises(ValueError, match=r"numba kernel add: numba launches no clusters; leave out cluster=\(2, 1, 1\)"):
        add[tk.LaunchConfig(grid=2, block=32, cluster=2)]
    strided = add(c[::2], c.reshape(2, 4).permute(1, 0), c, 8)  # numba's arrays have strides
    strided.consumed()


def test_on_the_cpu_device_it_needs_the_simulator():
    add = tk.wrap(numba_kernel(), CONFIG)
    with tk.use_device("cpu"):
        c, a, b = (api.zeros(8).sync() for _ in range(3))
        op = add(c, a, b, 8)
        with pytest.raises(tk.DeviceUnavailableError) as caught:
            op.sync()
    assert str(caught.value) == (
        "numba kernel add is compiled for GPUs, and cpu:0 is none. On a CPU device it runs in numba's simulator, which must be "
        "chosen before numba is imported: set NUMBA_ENABLE_CUDASIM=1 (that switches numba's compiler off for the whole process)"
    )


@pytest.fixture
def views(monkeypatch):
    """A GPU that does nothing, with numba's views of its tensors: numba itself finds no context there."""
    cudadrv = pytest.importorskip("numba.cuda.cudadrv", reason="makes numba's device arrays")
    from numba.cuda.cudadrv import devices

    assert cudadrv
    monkeypatch.setattr(devices, "get_context", lambda: None)
    with fake_device() as made:
        yield made


def test_numba_sees_the_same_memory(views):
    from numba.cuda import types

    x = api.zeros((4, 6)).sync()
    for tensor, layout in [(x, "C"), (x.permute(1, 0), "F"), (x[:, ::2], "A"), (x[1], "C"), (x[3, 5], "C"), (x[4:], "C")]:
        array = foreign._device_array(tensor)
        assert array._numba_type_ == types.Array(types.float32, tensor.ndim, layout)
        assert (array.shape, array.dtype) == (tensor.shape, tensor.dtype)
        if tensor.size:
            assert array.__cuda_array_interface__["data"][0] == tensor.address
            assert array.strides == tuple(4 * stride for stride in tensor.strides)
            assert array.gpu_data._owner is tensor
    assert str(foreign._device_array(api.zeros(8, tk.bfloat16).sync())._numba_type_.dtype) == "__nv_bfloat16"


def test_numba_launches_on_the_stream_of_the_op(views, monkeypatch):
    device, bindings = views
    add, compiled, launched = numba_kernel(), [], []
    monkeypatch.setattr(foreign, "_external_stream", lambda ordinal, address: (ordinal, address))
    add.overloads = {}  # numba gives up what is in its own
    add.compile = lambda types: (compiled.append(types), add.overloads.update({types: None}))
    add.configure = lambda *config: lambda *arguments: launched.append((config, arguments))
    stream = device.stream()
    kernel = tk.wrap(add, signature="Out, In, In, i32")[tk.LaunchConfig(grid=(2, 3), block=64, shared_bytes=32)]
    c, a, b = (api.zeros(8).sync() for _ in range(3))
    before = bindings.calls["cuStreamWaitEvent"]
    assert kernel(c, a, b, 8).sync_on(stream) == (c, a, b, 8)
    kernel(c, a, b, 8).sync_on(stream)
    assert bindings.calls["cuStreamWaitEvent"] == before  # what was waited for has passed
    assert [str(t) for (types,) in [compiled] for t in types] == [*3 * ["array(float32, 1d, C)"], "int32"]
    assert [config for config, _ in launched] == 2 * [((2, 3, 1), (64, 1, 1), (0, stream.address), 32)]
    arrays = launched[0][1]
    assert [array.__cuda_array_interface__["data"][0] for array in arrays[:3]] == [c.address, a.address, b.address]
    assert isinstance(arrays[3], np.int32)
    assert c.storage.last_write[0] is stream
    assert a.storage.last_write[0] is not stream


def test_what_numba_cannot_compile(views):
    from numba.core.errors import TypingError

    def fail(types):
        raise TypingError("no such thing")

    add = numba_kernel()
    add.compile = fail
    c = api.zeros(8).sync()
    with pytest.raises(tk.CompileError, match="numba kernel add does not compile: no such thing"):
        tk.wrap(add, CONFIG)(c, api.zeros(8), api.zeros(8), 8).sync()
    eight = api.meta((8,), tk.float8_e5m2)
    with pytest.raises(TypeError, match=r"numba kernel add: numba does not know what .*float8_e5m2.* is: "):
        foreign.NumbaLaunch(add, "numba kernel add", [eight], (1, 1, 1), 0, views[0])


SIMULATED = """
import numpy as np
import pytest
from numba import cuda, float32

import tilekit as tk
from tilekit import api

@cuda.jit
def add(c: tk.Out, a: tk.In, b: tk.In):
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]

@cuda.jit
def reverse(y, s):
    buffer = cuda.shared.array(0, dtype=float32)
    i = cuda.threadIdx.x
    buffer[i] = y[i]
    cuda.syncthreads()
    y[i] = s * buffer[cuda.blockDim.x - 1 - i]

device = tk.default_device()
assert device.kind == "cpu"
n = 100
config = tk.LaunchConfig.for_num_elems(n, block=32)
add = tk.wrap(add)[config]
numbers = np.arange(n, dtype=np.float32)
"""


@pytest.mark.parametrize(
    "body",
    [
        # results, views, lazily produced tensors, chains
        """
a = api.from_host(numbers).sync()
c = api.zeros(2 * n).sync()
view = c[::2]
op = add(view, a, api.full(n, 3.0))
assert not c.to_host().sync().any()
assert op.sync()[0] is view
host = c.to_host().sync()
np.testing.assert_array_equal(host[::2], numbers + 3)
np.testing.assert_array_equal(host[1::2], 0)
total = add(api.zeros(n), a, a).apply(lambda c, a, b: add(api.zeros(n), c, b)).first().to_host().sync()
np.testing.assert_array_equal(total, 3 * numbers)
in_place = add(a, a, a).first().sync()
np.testing.assert_array_equal(in_place.to_host().sync(), 2 * numbers)
""",
        # shared memory, barriers, declared scalars
        """
y = api.from_host(numbers[:32].copy()).sync()
kernel = tk.wrap(reverse, tk.LaunchConfig(grid=1, block=32, shared_bytes=128), signature="InOut[f32], f32")
kernel(y, 2).sync()
np.testing.assert_array_equal(y.to_host().sync(), 2 * numbers[31::-1])
with pytest.raises(TypeError, match="argument y: declared InOut.f32., not a tensor of int32"):
    kernel(api.zeros(32, tk.int32).sync(), 2)
""",
        # order: on another stream at every step
        """
streams = [device.stream() for _ in range(4)]
c, one = api.zeros(n).sync(), api.ones(n).sync()
d = api.zeros(n).sync()
futures = []
for step in range(20):
    futures.append(add(d, c, one).async_on(streams[step % 4]))
    c, d = d, c
np.testing.assert_array_equal(c.to_host().sync(), 20)
""",
        # faults
        """
@cuda.jit
def beyond(c):
    c[n] = 1

@cuda.jit
def wrong(c, a: tk.In):
    a[0] = 1

c, a = api.zeros(n).sync(), api.zeros(n).sync()
with pytest.raises(tk.DeviceError, match="numba kernel beyond: IndexError: tid=.0, 0, 0. ctaid=.0, 0, 0.: index 100 is out"):
    tk.wrap(beyond, tk.LaunchConfig(grid=1, block=1))(c).sync()
with pytest.raises(tk.DeviceError, match="numba kernel wrong: ValueError: .*read-only"):
    tk.wrap(wrong, tk.LaunchConfig(grid=1, block=1))(c, a).sync()
with pytest.raises(ValueError, match="arguments c and a overlap in memory, and c is written"):
    add(c[1:], c[:-1], a[1:]).sync()
assert not a.to_host().sync().any()
""",
        # asyncio, an empty grid, kernels that numba simulates are no device functions
        """
import asyncio

async def main():
    sums = [add(api.zeros(n), api.full(n, float(k)), api.ones(n)).first().to_host() for k in range(4)]
    rows = await asyncio.gather(*(each.run() for each in sums))
    return [row[0] for row in rows]

assert asyncio.run(main()) == [1, 2, 3, 4]
empty = api.zeros(0).sync()
assert add[tk.LaunchConfig.for_num_elems(0)](empty, empty, empty).sync() == (empty, empty, empty)

@cuda.jit(device=True)
def helper(x):
    return x

with pytest.raises(TypeError, match="a device function"):
    tk.wrap(helper)
""",
    ],
    ids=["results", "shared memory", "order", "faults", "asyncio"],
)
def test_the_simulator_runs_it_on_the_cpu_device(body):
    pytest.importorskip("numba.cuda", reason="runs in numba's simulator")
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "TILEKIT_DEVICE": "cpu"}
    done = subprocess.run([sys.executable, "-c", SIMULATED + body], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_the_simulator_is_asked_nothing_when_the_op_is_built(monkeypatch):
    """Building, whatever runs it: no work reaches a queue."""
    queued = []
    monkeypatch.setattr(CpuDriver, "submit", lambda *given, **_: queued.append(given))
    with tk.use_device("cpu"):
        op = tk.wrap(numba_kernel(), CONFIG)(api.zeros(8), api.zeros(8), api.zeros(8), 8)
    assert queued == []
    op.consumed()
