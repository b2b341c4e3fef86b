"""What a launch costs the host, counted: calls of Python functions, and of the driver's, on a GPU that does nothing.

Times differ between machines, counts do not. A change that needs a higher budget here makes every launch slower: on an H200's
host a call is about 0.1 microseconds.
"""

import asyncio
import sys

import pytest
from counting import counted
from fake_gpu import fake_device, fake_gpu, launch_through

import tilekit as tk
from tilekit import _native, api, kernels
from tilekit._runtime.context import ExecutionContext
from tilekit.ops.reactor import _reactor
from tilekit.ops.reactor._running import running_reactor


@tk.kernel
def scale(y: tk.Out, x: tk.In, g: float):
    y.store(tk.load_tile_like(x, y) * g)


@tk.kernel
def nothing():
    pass


FACTOR = 2.0


class Config:
    OFFSET = 1.0


@tk.function
def multiplied(t):
    return t * FACTOR + Config.OFFSET


@tk.kernel
def helped(y: tk.Out, x: tk.In, g: float):
    y.store(multiplied(tk.load_tile_like(x, y)) * g)


@tk.kernel
def polynomial(
    y: tk.Out, x: tk.In, a0: float, a1: float, a2: float, a3: float, a4: float, a5: float, a6: float, a7: float, a8: float,
    a9: float, a10: float, a11: float, a12: float, a13: float,
):  # fmt: skip
    t = tk.load_tile_like(x, y)
    y.store(a0 + t * a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11 + a12 + a13)


@pytest.fixture(params=["native", "python"])
def gpu(request, monkeypatch):
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    launch_through(request.param, monkeypatch)
    with fake_device() as made:
        yield made


@pytest.fixture
def launches(gpu, monkeypatch):
    """Ways to launch one small op with three arguments, each run before, and the budget of Python calls."""
    monkeypatch.delitem(sys.modules, "trio", raising=False)  # once it is imported, each await asks it whether it runs here
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    tiles, stream = y.partition(1024), gpu[0].policy.next_stream()
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(_reactor, "_TURN_S", 60.0)  # however long it takes to count

    async def awaited(turn):
        if turn:
            running_reactor()._others_at = 0.0
        await scale(tiles, x, 1.5)

    def chained():
        op = scale(tiles, x, 1.5)
        for _ in range(9):
            op = op.apply(scale)
        op.sync()

    numbers = [0.5] * 14
    ways = {
        "sync": lambda: scale(tiles, x, 1.5).sync(),
        "sync_on": lambda: scale(tiles, x, 1.5).sync_on(stream),
        "async_on": lambda: scale(tiles, x, 1.5).async_on(stream),
        "its result": lambda: scale(tiles, x, 1.5).async_on(stream).result(),
        "await": lambda: loop.run_until_complete(awaited(False)),
        "await, and a turn": lambda: loop.run_until_complete(awaited(True)),
        "a chain of ten": chained,
        "ten joined": lambda: tk.join_all([scale(tiles, x, 1.5) for _ in range(10)]).sync(),
        "no arguments": lambda: nothing().grid(4).sync_on(stream),
        "names from outside": lambda: helped(tiles, x, 1.5).sync_on(stream),
        "16 arguments": lambda: polynomial(tiles, x, *numbers).sync_on(stream),
    }
    for way in ways.values():
        way()
        way()
    yield ways
    loop.close()


# Each launch: cuLaunchKernel. Each submission: one event recorded; each wait: a query, which this GPU answers at once. The second
# number holds for TILEKIT_NATIVE=0, and where tilekit was installed without a C compiler.
@pytest.mark.parametrize(
    ("way", "native", "python", "driver"),
    [
        ("sync", 2, 44, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("sync_on", 0, 43, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("async_on", 0, 42, {"cuLaunchKernel": 1, "cuEventRecord": 1}),
        ("its result", 12, 51, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("await", 6, 47, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("await, and a turn", 19, 54, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("a chain of ten", 83, 292, {"cuLaunchKernel": 10, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("ten joined", 58, 259, {"cuLaunchKernel": 10, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("no arguments", 4, 52, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("names from outside", 0, 51, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("16 arguments", 0, 43, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
    ],
)
def test_a_launch_stays_within_its_budget(request, gpu, launches, way, native, python, driver):
    gpu[1].calls.clear()
    calls = counted(launches[way])
    asked = {name: count for name, count in gpu[1].calls.items() if not name.startswith("cuCtx")}
    assert asked == driver
    assert calls <= (native if "native" in request.node.callspec.id else python)


# As above, of ready-made kernels that are recalled.
@pytest.mark.parametrize(
    ("name", "native", "python"),
    [
        ("softmax", 5, 67),
        ("rms_norm", 5, 69),
        ("layer_norm", 5, 71),
        ("gemm", 6, 78),
        ("gemm, bias", 15, 80),
        ("attention", 5, 83),
    ],
)
def test_a_ready_made_kernel_stays_within_its_budget(request, gpu, name, native, python):
    x, out, a, b, product = (api.empty((256, n), tk.float16).sync() for n in (1024, 1024, 256, 256, 256))
    row, bias, short = (api.empty(n, tk.float16).sync() for n in (1024, 1024, 256))
    q, k, v, o = (api.empty((1, 2, 128, 64), tk.float16).sync() for _ in range(4))
    way = {
        "softmax": lambda: kernels.softmax(x, out=out),
        "rms_norm": lambda: kernels.rms_norm(x, row, out=out),
        "layer_norm": lambda: kernels.layer_norm(x, row, bias, out=out),
        "gemm": lambda: kernels.gemm(a, b, out=product),
        "gemm, bias": lambda: kernels.gemm(a, b, epilogue=kernels.epilogues.bias, operands=(short,), out=product),
        "attention": lambda: kernels.attention(q, k, v, out=o),
    }[name]
    for _ in range(4):
        way().sync()
    gpu[1].calls.clear()
    calls = counted(lambda: way().sync())
    asked = {call: count for call, count in gpu[1].calls.items() if call.startswith(("cuLaunch", "cuEvent"))}
    assert sum(asked.values()) == 3
    assert calls <= (native if "native" in request.node.callspec.id else python)


def ready_made(name):
    """A call of a ready-made kernel, on the same tensors each time."""
    new = lambda *shape: api.empty(shape, tk.float16).sync()  # noqa: E731
    x, out, row = new(512, 1024), new(512, 1024), new(1024)
    a, b, product = new(64, 2048), new(2048, 256), new(64, 256)
    q, o = new(1, 2, 128, 64), new(1, 2, 128, 64)
    return {
        "softmax": lambda: kernels.softmax(x, out=out),
        "halves": lambda: kernels.softmax(x[256:], out=out[:256]),
        "a new result": lambda: kernels.layer_norm(x, row, row),
        "split": lambda: kernels.gemm(a, b, out=product, splits=4),
        "attention": lambda: kernels.attention(q, q, q, out=o),
    }[name]


only_native = pytest.mark.parametrize("gpu", ["native"], indirect=True)


@only_native
@pytest.mark.parametrize("name", ["softmax", "halves", "a new result", "split", "attention"])
def test_launches_that_are_known_have_the_parameters_of_others(gpu, name):
    device, bindings = gpu
    way, stream = ready_made(name), device.policy.next_stream()
    for _ in range(4):
        way().async_on(stream).result(60)

    def launched(change):
        """What is launched, and where its result is; nothing of it is left."""
        op = way()
        plans = [next(iter(launch.form.plans.values())) for launch in op._recipe.launches]
        bindings.slots = min(len(plan.executable.slots) for plan in plans)
        assert bindings.slots > 3
        op._recipe = op._recipe._replace(**change)
        bindings.launches.clear()
        address = op.async_on(stream).result(60).address
        assert len(bindings.launches) == len(plans)
        return bindings.launches.copy(), address

    known = launched({})
    assert known == launched({"native": None})
    assert counted(lambda: way().async_on(stream)) < (80 if name == "halves" else 40)  # of which the views take 42


@only_native
def test_what_is_left_of_known_launches_is_done_by_python(gpu):
    device, bindings = gpu
    way, stream = ready_made("split"), device.policy.next_stream()
    for _ in range(4):
        op = way()
        op.sync()
    native = op._recipe.native

    class Some:
        """Makes so many of two launches, and says so."""

        def __init__(self, done):
            self.done = done

        def submit(self, bases, stream, poll_s):
            assert native.submit(bases, stream, poll_s)[0] == 2
            return self.done, None

    for done in (0, 1):
        op = way()
        op._recipe = op._recipe._replace(native=Some(done))
        bindings.launches.clear()
        assert op.async_on(stream).result(60).shape == (64, 256)
        assert len(bindings.launches) == 2 + 2 - done
        with pytest.raises(ValueError, match="has already run"):
            op.sync()
    bindings.refuse = 700
    with pytest.raises(tk.DeviceError, match="CUDA_ERROR_FAKE"):
        way().async_on(stream)
    bindings.refuse = 0


@only_native
def test_a_launch_that_fails_behind_others_is_left_to_python(gpu):
    bindings, way, stream = gpu[1], ready_made("split"), gpu[0].policy.next_stream()
    for _ in range(4):
        way().sync()

    def refusing(*given):
        """Let the launches from now on have these codes."""
        codes = iter(given)
        bindings.meanwhile = lambda: setattr(bindings, "refuse", next(codes, 0))
        bindings.launches.clear()
        return way()

    assert refusing(0, 700).async_on(stream).result(60).shape == (64, 256)
    assert len(bindings.launches) == 3, "Python makes the second again"
    op = refusing(0, *[700] * 4)
    with pytest.raises(tk.DeviceError, match="CUDA_ERROR_FAKE"):
        op.sync_on(stream)
    with pytest.raises(ValueError, match="has already run"):
        op.sync()
    bindings.refuse = 0


@only_native
@pytest.mark.parametrize("run", ["sync", "sync_on", "async_on"])
def test_known_launches_are_made_once(gpu, run):
    way, stream = ready_made("attention"), gpu[0].policy.next_stream()
    for _ in range(4):
        op = way()
        op.sync()

    def again():
        return op.sync() if run == "sync" else getattr(op, run)(stream)

    op = way()
    first = again()
    assert (first.result(60) if run == "async_on" else first).shape == (1, 2, 128, 64)
    with pytest.raises(ValueError, match="has already run"):
        again()
    op = way()
    assert "test_host_path.py" in op.where()
    with pytest.raises(TypeError):
        getattr(op, run)(stream, 3)
    assert op.sync().shape == (1, 2, 128, 64)


@only_native
def test_a_closed_stream_is_refused_known_launches(gpu):
    way = ready_made("softmax")
    for _ in range(4):
        way().sync()
    stream = gpu[0].stream()
    stream.close()
    op = way()
    for run in (op.sync_on, op.async_on):
        with pytest.raises(ValueError, match="closed"):
            run(stream)
    assert op.sync().shape == (512, 1024)


@only_native
def test_results_for_which_no_block_is_kept(gpu):
    """Nothing half made is left for a finalizer, which pytest would tell of."""
    way = ready_made("a new result")
    results = [way().sync() for _ in range(8)]
    assert len({result.address for result in results}) == 8


@only_native
def test_an_event_that_is_not_recorded_behind_known_launches_is_recorded_by_python(gpu):
    way, stream = ready_made("softmax"), gpu[0].policy.next_stream()
    for _ in range(4):
        op = way()
        op.sync()
    native, op = op._recipe.native, way()

    class Unmarked:
        def submit(self, bases, stream, poll_s):
            return native.submit(bases, stream, poll_s)[0], None

    op._recipe = op._recipe._replace(native=Unmarked())
    before = stream.pending
    assert op.async_on(stream).result(60).shape == (512, 1024)
    assert stream.pending == before + 2


@only_native
def test_known_launches_are_made_of_launches(gpu):
    launches = _native.compiled.Launches
    with pytest.raises(ValueError, match="not made by native code"):
        launches(((None, (), (), "label"),))
    with pytest.raises(TypeError):
        launches(((None, 3, (), "label"),))
    with pytest.raises(TypeError, match="a list of tensors, a stream"):
        launches(()).submit((), None, None)


# 4 KB of device memory, allocated and dropped: `ExecutionContext.allocate`, `storage.allocate`, and the storage's finalizer.
def test_allocating_stays_within_its_budget():
    device, driver = fake_gpu()
    ctx = ExecutionContext(device, device.stream())
    ctx.allocate(4096)
    driver.calls.clear()
    assert counted(lambda: ctx.allocate(4096)) <= 3
    assert not driver.calls
