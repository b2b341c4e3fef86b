"""The benchmarks of the host's side: small, on any device; and what a GPU's peers do, against stand-ins."""

import ast
import asyncio
import ctypes
import json
import re
import struct
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import tilekit as tk
import tilekit_benchmarks as bench
from tilekit import api
from tilekit_benchmarks import Options, bimodal, chain, decode, overlap
from tilekit_benchmarks._tilekit_host import LAUNCHES, accumulate, scale, turn
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.turning import Clock, Wheel, advanced, op_us

SMALL = {"launch": 100, "await": 100, "guest": 128, "block": 16, "chain": 5, "graph": 5, "decode": 2, "overlap": 3, "bimodal": 10}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's compiler, of its own parts
@pytest.mark.parametrize("name", SMALL)
def test_each_is_measured_and_right(name, device, monkeypatch):
    monkeypatch.setattr(bimodal, "STREAMS", (1, 3))
    monkeypatch.setattr(decode, "WIDTHS", {"cpu": (48, 64), "cuda": (504, 512)})
    policy = device.policy
    run = bench.run(name, Options(device=device, n=SMALL[name], rounds=2, command="c"))
    assert run.benchmark == name
    assert run.command == "c"
    assert run.all_correct
    missing = [one.name for one in run.left_out]
    assert all(one.cause == "missing" for one in run.left_out)
    assert not missing or name in ("launch", "guest", "block", "decode")
    assert run.parameters["n"] == SMALL[name]
    assert device.policy is policy
    assert len({series.label for series in run.results}) == len(run.results)
    assert run.reference in [*missing, *(series.label for series in run.results)]
    places = {
        "launch": [0, 1, 3, 8, 16],
        "await": [100],
        "guest": [128],
        "block": [16],
        "chain": [1, 5],
        "graph": [1, 5],
        "decode": decode.WIDTHS[device.kind],
        "bimodal": [1, 3],
        "overlap": [round(share * run.parameters.get("chain_us", 0)) for share in (0, 0.5, 1, 2)],
    }
    for series in run.results:
        at = [point.at for point in series.points]
        assert at == list(places[name]) or (name == "launch" and at in ([3, 8, 16], [3]))
        for point in series.points:
            assert point.low <= point.value <= point.high
            assert len(point.samples_us) == 2
            if run.reference in missing:
                assert point.ratio is None
            else:
                assert point.ratio == 1.0 if series.label == run.reference else point.ratio > 0
    json.dumps(run.parameters)


def test_overlap_with_graphs(device):
    run = bench.run("overlap", Options(device=device, n=3, rounds=2, graph=True))
    assert run.all_correct
    assert run.parameters["graph"] == 1
    assert all(series.variant.startswith("graph: ") for series in run.results)
    assert "graph" not in bench.run("overlap", Options(device=device, n=2, rounds=1)).parameters


def test_who_has_no_graphs_says_so(device):
    with pytest.raises(ValueError, match="the benchmark await does not run as a graph; overlap does"):
        bench.run("await", Options(device=device, graph=True))


def test_chains_grow_by_tens():
    assert chain.lengths(1000) == [1, 10, 100, 1000]
    assert chain.lengths(1) == [1]
    assert chain.lengths(30) == [1, 10, 30]


def test_the_policy_is_put_back(device):
    before = device.policy
    with device.stream() as stream:
        with policy_of(device, stream):
            assert device.policy.next_stream() is stream
        assert device.policy is before


# Work whose amount can be checked


def test_a_wheel_tells_how_far_it_was_turned(device):
    with device.stream() as stream:
        wheel = Wheel(stream)
        wheel.turn(3).sync_on(stream)
        assert "of 128 generators are not where 0 turns lead" in wheel.check()
        wheel.turned += 3
        assert wheel.check() is None
        wheel.chain(4, 2).sync_on(stream)
        wheel.turned += 8
        assert wheel.check() is None
        wheel.reset()
        assert wheel.check() is None


def test_turns_are_foreseen():
    start = np.array([-5, 0, 2**31 - 1], np.int32)
    expected = start.copy()
    for turns in range(40):
        assert np.array_equal(advanced(start, turns), expected)
        expected = expected * np.int32(1664525) + np.int32(1013904223)
    assert np.array_equal(advanced(advanced(start, 2**33 + 17), 5), advanced(start, 2**33 + 22))


def test_a_clock_says_how_many_turns_take_how_long(device):
    assert Clock(fixed_us=5.0, turn_us=0.5).loops(50.0) == 90
    assert Clock(fixed_us=5.0, turn_us=0.5).loops(1.0) == 1
    with device.stream() as stream:
        wheel = Wheel(stream)
        assert Clock.measure(wheel).turn_us > 0
        assert op_us(wheel, 2) > 0
        assert wheel.check() is None


def test_units_are_mostly_small():
    units = bimodal._units(100, 7, 70)
    assert (units.count(7), units.count(70)) == (80, 20)
    assert units == bimodal._units(100, 7, 70)
    assert units != sorted(units)


def test_a_unit_that_is_left_out_is_noticed(device):
    with device.stream() as stream:
        wheel = Wheel(stream)
        work = bimodal._work([wheel], [2, 3], lambda: None)
        work.reset()
        bimodal._block(wheel, iter([2]))
        assert work.check() == "2 turns were asked for, where the units have 5"
        work.reset()
        bimodal._block(wheel, iter([2, 3]))
        assert work.check() is None


def test_an_op_that_was_too_short_is_said():
    assert overlap._notes(60.0) == ()
    assert overlap._notes(42.0) == ("an op took 42.0 us, less than the 50 that it should",)


# What only a GPU runs. On a CPU device, tensors have the host's addresses, so a stand-in can look at what it is given.


@pytest.fixture
def launches(monkeypatch, device):
    """A stand-in for the driver: `(function, grid, block, stream, parameter addresses)` of each launch."""
    bindings = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")
    if device.kind != "cpu":
        pytest.skip("a stand-in for a CPU device")
    seen = []

    def launch(function, x, y, z, bx, by, bz, shared, stream, params, extra):
        assert (shared, extra) == (0, 0)
        seen.append((function, (x, y, z), (bx, by, bz), stream, params))
        return (0,)

    monkeypatch.setattr(bindings, "cuLaunchKernel", launch)
    monkeypatch.setattr(bindings, "cuStreamSynchronize", lambda stream: (seen.append(stream), (0,))[1])
    return seen


def fake_stream(images):
    def load(image, entry):
        images.append((image, entry))
        return types.SimpleNamespace(handle=7)

    driver = types.SimpleNamespace(load=load)
    return types.SimpleNamespace(handle=9, address=9, device=types.SimpleNamespace(target="sm_90a", driver=driver))


def test_a_raw_launch_passes_what_the_kernel_takes(launches, device):
    from tilekit_benchmarks.raw import RawLaunch

    x, y = (api.zeros(3000).sync() for _ in range(2))
    images = []
    raw = RawLaunch(scale(y.partition(1024), x, 1.75), fake_stream(images))
    ((image, entry),) = images
    assert image.startswith(b"\x7fELF")
    assert "scale" in entry
    raw.launch_and_wait(2)
    *twice, waited = launches
    assert waited == 9
    for function, grid, block, stream, params in twice:
        assert (function, grid, block, stream) == (7, (3, 1, 1), (128, 1, 1), 9)
        slots = (ctypes.c_void_p * 5).from_address(params)
        values = [struct.unpack(f, ctypes.string_at(slot, 8)) for f, slot in zip(("Q", "i4x", "Q", "i4x", "d"), slots)]
        assert values == [(y.address,), (3000,), (x.address,), (3000,), (1.75,)]


def test_a_raw_launch_that_fails_is_an_error(launches, device, monkeypatch):
    from tilekit_benchmarks.raw import RawLaunch

    y = api.zeros(128, tk.int32).sync()
    raw = RawLaunch(turn(y.partition(128), 1, 2, 3), fake_stream([]))
    monkeypatch.setattr(raw._cu, "cuLaunchKernel", lambda *_: (700,))
    with pytest.raises(RuntimeError, match="700"):
        raw.launch()


def test_a_native_loop_launches_as_often_as_it_should(launches, device, monkeypatch):
    from tilekit_benchmarks import _numba_host, raw

    seen = []

    @_numba_host.LAUNCH
    def launch(*arguments):
        seen.append(arguments)
        return 0 if len(seen) < 6 else 700

    monkeypatch.setattr(raw, "_address_of_launch", lambda: ctypes.cast(launch, ctypes.c_void_p).value)
    x, y = (api.zeros(2048, tk.int32).sync() for _ in range(2))
    prepared = raw.RawLaunch(accumulate(y.partition(1024), x, 3), fake_stream([]))
    prepared.native_launches(5)
    assert seen == [(7, 2, 1, 1, 128, 1, 1, 0, 9, prepared._params, 0)] * 5
    with pytest.raises(RuntimeError, match="700"):
        prepared.native_launches(5)
    assert len(seen) == 6


def test_a_raw_launch_by_a_function(launches, device, monkeypatch):
    from tilekit_benchmarks.raw import RawLaunch

    x, y, z = (api.zeros(2048, tk.int32).sync() for _ in range(3))
    prepared = RawLaunch(LAUNCHES[3](y.partition(1024), x, z), fake_stream([]))
    once = prepared.once()
    once()
    once()
    assert launches == [(7, (2, 1, 1), (128, 1, 1), 9, prepared._params)] * 2
    RawLaunch(LAUNCHES[0]().grid(1), fake_stream([])).once()()
    assert launches[2][1:3] == ((1, 1, 1), (32, 1, 1))
    monkeypatch.setattr(prepared._cu, "cuLaunchKernel", lambda *_: (700,))
    with pytest.raises(RuntimeError, match="700"):
        prepared.once()()


def test_a_raw_graph_is_captured_once_and_replayed(launches, device, monkeypatch):
    from tilekit_benchmarks.raw import RawGraph, RawLaunch

    bindings = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")
    results = {
        "cuStreamBeginCapture": (0,), "cuStreamEndCapture": (0, "template"), "cuGraphInstantiate": (0, "executable"),
        "cuGraphLaunch": (0,), "cuGraphExecDestroy": (0,), "cuGraphDestroy": (0,),
    }  # fmt: skip
    for name, result in results.items():
        monkeypatch.setattr(bindings, name, lambda *given, name=name, result=result: (launches.append((name, *given)), result)[1])
    stream, y = fake_stream([]), api.zeros(128, tk.int32).sync()
    graph = RawGraph(RawLaunch(turn(y.partition(128), 1, 2, 3), stream), 2, stream)
    assert [seen[0] for seen in launches] == ["cuStreamBeginCapture", 7, 7, "cuStreamEndCapture", "cuGraphInstantiate"]
    del launches[:]
    graph.launch_and_wait()
    graph.launch_and_wait()
    assert launches == [("cuGraphLaunch", "executable", 9), 9] * 2
    graph.close()
    assert [seen[0] for seen in launches[4:]] == ["cuGraphExecDestroy", "cuGraphDestroy"]
    monkeypatch.setattr(bindings, "cuGraphLaunch", lambda *_: (700,))
    with pytest.raises(RuntimeError, match="700"):
        graph.launch_and_wait()


@pytest.mark.parametrize("status", [0, 700])
def test_numbas_async_done_repaired(status, monkeypatch):
    driver = pytest.importorskip("numba.cuda.cudadrv.driver", reason="needs numba-cuda")
    from tilekit_benchmarks._numba_host import async_done

    def add_callback(stream, function, data, flags):
        assert (stream, flags) == (9, 0)
        assert int(function) == int.from_bytes(driver.Stream._stream_callback, byteorder="little")
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(int(function))
        thread = threading.Thread(target=call, args=(stream, status, data))  # as the driver does, from a thread of its own
        thread.start()
        thread.join()

    monkeypatch.setattr(driver, "driver", types.SimpleNamespace(cuStreamAddCallback=add_callback))
    stream = driver.Stream(driver.binding.CUstream(9), external=True)

    async def main():
        return await asyncio.wait_for(async_done(stream), 10)

    if status:
        with pytest.raises(RuntimeError, match="stream error 700"):
            asyncio.run(main())
    else:
        assert asyncio.run(main()) is stream


@pytest.mark.parametrize("name", ["launch", "await", "chain", "graph"])
def test_a_gpus_contestants_are_named(name, device):
    """Their labels tell them apart; what they do is the tests' above, and a GPU's."""
    from contextlib import ExitStack

    from tilekit_benchmarks import awaiting, graph, launch

    with device.stream() as stream, ExitStack() as stack:
        made = {
            "launch": lambda: launch._on_gpu(launch._Data(stream, 10, stack)),
            "await": lambda: awaiting._on_gpu(awaiting._Data(stream, 10, stack)),
            "chain": lambda: chain.on_gpu(chain.Data(stream, stack)),
            "graph": lambda: graph._on_gpu(chain.Data(stream, stack)),
        }[name]()
        assert len({candidate.label for candidate in made}) == len(made)
        assert made[0].name == "cuda-bindings"


@pytest.mark.parametrize(
    "make",
    [
        lambda: scale(api.meta(2048, tk.float32).partition(1024), api.meta(2048, tk.float32), 1.7),
        lambda: accumulate(api.meta(2048, tk.int32).partition(1024), api.meta(2048, tk.int32), 3),
        lambda: turn(api.meta(128, tk.int32).partition(128), 5, 3, 4),
    ],
)
def test_the_kernels_compile_for_a_gpu_without_spills(make):
    compiled = make().compile(target="sm_90a")
    assert compiled.local_bytes == 0
    assert compiled.shared_bytes == 0


@pytest.mark.parametrize("count", LAUNCHES)
def test_the_kernels_of_launch_have_as_many_tensors(count):
    tensors = [api.meta(2048, tk.int32) for _ in range(count)]
    op = LAUNCHES[count](tensors[0].partition(1024), *tensors[1:]) if count else LAUNCHES[0]().grid(1)
    compiled = op.compile(target="sm_90a")
    assert compiled.local_bytes == 0
    assert compiled.param_format.count("Q") == count


@pytest.mark.parametrize("count", LAUNCHES)
@pytest.mark.parametrize("module", ["_triton_launch", "_cutile_launch", "_numba_host"])
def test_the_peers_kernels_of_launch_read_as_many(module, count):
    source = (Path(bench.__file__).parent / f"{module}.py").read_text()
    kernels = {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    kernel = kernels[f"of_{count}" if count else "nothing"]
    others = {"_triton_launch": {"n", "BLOCK"}, "_cutile_launch": {"tile"}}.get(module, set())
    tensors = [argument.arg for argument in kernel.args.args if argument.arg not in others]
    assert len(set(tensors)) == count
    read = [node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and node.id in tensors[1:]]
    assert sorted(read) == sorted(tensors[1:])


@pytest.mark.parametrize("count", LAUNCHES)
def test_the_cuda_kernels_of_launch_compile(count):
    from tilekit_benchmarks.launch_peers import cuda_source

    tensors = [f"p{at}: {'Out' if at == 0 else 'In'}[i32]" for at in range(count)]
    signature = ", ".join([*tensors, *(["size: i32"] if count else [])])
    assert tk.cuda_source(cuda_source(count), "kernel", signature).compile("sm_90a").registers > 0


def test_a_wheel_is_one_warp():
    compiled = turn(api.meta(128, tk.int32).partition(128), 5, 3, 4).compile(target="sm_90a")
    assert compiled.block == (32, 1, 1)


@pytest.mark.parametrize(("rows", "warps"), decode._MATVECS)
def test_a_matvec_reads_16_bytes_a_thread_and_spills_nothing(rows, warps):
    from tilekit_benchmarks import _tilekit_decode

    width = 2048
    vector, matrix = api.meta(width, tk.float16), api.meta((width, width), tk.float16)
    for kernel in (_tilekit_decode.matvec, _tilekit_decode.matvec_add):
        if 256 * warps <= rows * width:
            compiled = kernel(vector.partition(rows), matrix, vector, width).num_warps(warps).compile(target="sm_90a")
            assert compiled.local_bytes == 0
            assert len(re.findall(r"ld\.global\S*\.v4", compiled.ptx)) >= rows * width // (256 * warps)


def test_a_model_that_leaves_out_a_layer_is_noticed(device):
    with device.stream() as stream:
        model = decode._Models(stream, 3).of(64)

        def launch(ops):
            tk.join_all([api.memcpy(model.x, model.tokens[model.next()]), *ops]).sync_on(stream)

        *fewer, norm, product, addition = model.ops()
        for left_out in (norm, product, addition):
            left_out.consumed()
        for ops, wrong in ((model.ops(), False), (model.fused_ops(), False), (fewer, True)):
            work = model.work(lambda ops=ops: launch(ops))
            work.reset()
            assert work.check() == "the first token's result is off by nan, 0.01 is right"
            work.launch()
            assert (work.check() is not None) == wrong


def test_numbas_kernel_computes_in_single_precision():
    cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    from numba import types as nb

    from tilekit_benchmarks import _numba_host

    vector = nb.float32[::1]
    ptx, _ = cuda.compile_ptx(_numba_host.scale().py_func, (vector, vector, nb.float32), cc=(9, 0))
    assert "mul.rn.f32" in ptx or "mul.f32" in ptx
    assert ".f64" not in ptx
