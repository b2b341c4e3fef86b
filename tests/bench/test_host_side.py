"""The benchmarks of the host's side: small, on any device; and what a GPU's peers do, against stand-ins."""

import asyncio
import ctypes
import json
import struct
import threading
import types

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, bench
from tilekit.bench import Options, bimodal, chain, overlap
from tilekit.bench._tilekit_host import accumulate, scale, turn
from tilekit.bench.awaiting import policy_of
from tilekit.bench.turning import Clock, Wheel, advanced, op_us

SMALL = {"await": 100, "chain": 5, "overlap": 3, "bimodal": 10}


@pytest.mark.parametrize("name", SMALL)
def test_each_is_measured_and_right(name, device, monkeypatch):
    monkeypatch.setattr(bimodal, "STREAMS", (1, 3))
    policy = device.policy
    run = bench.run(name, Options(device=device, n=SMALL[name], rounds=2, command="c"))
    assert run.benchmark == name
    assert run.command == "c"
    assert run.all_correct
    assert not run.left_out
    assert run.parameters["n"] == SMALL[name]
    assert device.policy is policy
    variants = {series.variant: series for series in run.results}
    assert len(variants) == len(run.results)
    assert any(series.label == run.reference for series in run.results)
    places = {
        "await": [100],
        "chain": [1, 5],
        "bimodal": [1, 3],
        "overlap": [round(share * run.parameters.get("chain_us", 0)) for share in (0, 0.5, 1, 2)],
    }
    for series in run.results:
        assert [point.at for point in series.points] == places[name]
        for point in series.points:
            assert point.low <= point.value <= point.high
            assert len(point.samples_us) == 2
            assert point.ratio == 1.0 if series.label == run.reference else point.ratio > 0
    json.dumps(run.parameters)


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
    assert overlap._notes("cuda", 60.0) == ()
    assert overlap._notes("cuda", 42.0) == ("an op took 42.0 us, less than the 50 that it should",)


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
    from tilekit.bench.raw import RawLaunch

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
    from tilekit.bench.raw import RawLaunch

    y = api.zeros(128, tk.int32).sync()
    raw = RawLaunch(turn(y.partition(128), 1, 2, 3), fake_stream([]))
    monkeypatch.setattr(raw._cu, "cuLaunchKernel", lambda *_: (700,))
    with pytest.raises(RuntimeError, match="700"):
        raw.launch()


def test_a_native_loop_launches_as_often_as_it_should(launches, device, monkeypatch):
    from tilekit.bench import _numba_host, raw

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


@pytest.mark.parametrize("status", [0, 700])
def test_numbas_async_done_repaired(status, monkeypatch):
    driver = pytest.importorskip("numba.cuda.cudadrv.driver", reason="needs numba-cuda")
    from tilekit.bench._numba_host import async_done

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


@pytest.mark.parametrize("name", ["await", "chain"])
def test_a_gpus_contestants_are_named(name, device):
    """Their labels tell them apart; what they do is the tests' above, and a GPU's."""
    from contextlib import ExitStack

    from tilekit.bench import awaiting

    with device.stream() as stream, ExitStack() as stack:
        data = awaiting._Data(stream, 10, stack) if name == "await" else chain._Data(stream, stack)
        made = (awaiting if name == "await" else chain)._on_gpu(data)
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


def test_a_wheel_is_one_warp():
    compiled = turn(api.meta(128, tk.int32).partition(128), 5, 3, 4).compile(target="sm_90a")
    assert compiled.block == (32, 1, 1)


def test_numbas_kernel_computes_in_single_precision():
    cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    from numba import types as nb

    from tilekit.bench import _numba_host

    vector = nb.float32[::1]
    ptx, _ = cuda.compile_ptx(_numba_host.scale().py_func, (vector, vector, nb.float32), cc=(9, 0))
    assert "mul.rn.f32" in ptx or "mul.f32" in ptx
    assert ".f64" not in ptx
