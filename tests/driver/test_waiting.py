"""Ctrl-C reaches whoever waits in the main thread, for either device; what was waited for goes on, and can be waited for again.

A GPU is a stand-in that says "not yet" until it is told otherwise; `tests/gpu/test_interrupts.py` has one that works.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import fake_device

import tilekit
import tilekit as tk
from tilekit import api
from tilekit._driver import waiting
from tilekit.errors import DeviceError

NOT_READY = 600


class Interrupted(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


@pytest.fixture
def interrupted():
    """A block in which `Interrupted` is raised in this thread a little later, by a signal; it has to leave it."""

    def handler(number, frame):
        soon(
            1.0
        )  # Python drops what a callback raises, the garbage collector's or the stand-in driver's: it comes once more then
        while frame is not None:
            name, file = frame.f_code.co_name, Path(frame.f_code.co_filename).stem
            if name == "__del__" or (name, file) == ("<lambda>", "fake_gpu"):  # which would swallow it
                return
            frame = frame.f_back
        raise Interrupted

    def soon(seconds):
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)))
        timers[-1].start()

    @contextlib.contextmanager
    def block():
        soon(0.03)
        with pytest.raises(Interrupted):
            yield
        for timer in timers:
            timer.cancel()

    timers, before = [], signal.signal(signal.SIGUSR1, handler)
    yield block
    signal.signal(signal.SIGUSR1, before)


@tk.kernel
def scale(y: tk.InOut, a: float):
    y.store(a * y.load())


class Busy:
    """A GPU that is at work until `finish`, a tensor there, and a stream."""

    def __init__(self, device, bindings):
        self.device, self.bindings, self.stream = device, bindings, device.stream()
        self.y = api.zeros(256).sync()
        self.large = api.zeros(100_000).sync()
        scale(self.y.partition(256), 2.0).sync()
        self.event = device.event().record(self.stream)
        bindings.not_ready, bindings.cuStreamQuery = 10**9, lambda stream: (NOT_READY,)
        self.left = [self.op().async_on(self.stream) for _ in range(2)]

    def op(self):
        return scale(self.y.partition(256), 2.0)

    def finish(self):
        self.bindings.not_ready, self.bindings.cuStreamQuery = 0, lambda stream: (0,)


@pytest.fixture(params=[20, 0], ids=["polling", "sleeping"])
def busy(request, monkeypatch):
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    monkeypatch.setenv("TILEKIT_SPIN_US", str(request.param))
    with fake_device() as (device, bindings):
        made = Busy(device, bindings)
        yield made
        made.finish()


WAITS = {
    "sync": lambda b: b.op().sync(),
    "sync_on": lambda b: b.op().sync_on(b.stream),
    "another op": lambda b: api.zeros(8).sync(),
    "a chain": lambda b: b.y.to_host().then(api.from_host).sync(),
    "result": lambda b: b.left[0].result(),
    "result in time": lambda b: b.left[0].result(1000),
    "exception": lambda b: b.left[0].exception(),
    "to_host, small": lambda b: b.y.to_host().sync(),
    "to_host": lambda b: b.large.to_host().sync(),
    "from_host": lambda b: api.memcpy(b.large, np.zeros(100_000, np.float32)).sync_on(b.stream),
    "stream": lambda b: b.stream.synchronize(),
    "device": lambda b: b.device.synchronize(),
    "event": lambda b: b.event.synchronize(),
    "event in time": lambda b: b.event.synchronize(1000),
    "driver's stream": lambda b: b.device.driver.stream_synchronize(b.stream.handle),
    "memory": lambda b: b.device.driver.wait_idle(),
}


@pytest.mark.parametrize("name", WAITS)
def test_every_wait_for_a_gpu_can_be_interrupted(busy, interrupted, name):
    with interrupted():
        WAITS[name](busy)
    busy.finish()
    assert [future.result()[1] for future in busy.left] == [2.0, 2.0]
    WAITS[name](busy)  # everything is still of use
    busy.device.synchronize()


def test_a_device_that_has_no_event_for_everything_is_waited_for_in_a_thread(busy, interrupted, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(busy.bindings, "cuCtxRecordEvent", lambda context, event: (999,), raising=False)
    monkeypatch.setattr(busy.bindings, "cuCtxSynchronize", lambda: (0 if gate.wait(60) else 1,), raising=False)
    with interrupted():
        busy.device.driver.synchronize()
    gate.set()
    busy.device.driver.synchronize()
    monkeypatch.setattr(busy.bindings, "cuCtxSynchronize", lambda: (700,), raising=False)
    with pytest.raises(DeviceError):
        busy.device.driver.synchronize()


def test_an_interrupted_wait_still_tells_of_a_fault(busy, interrupted, monkeypatch):
    with interrupted():
        busy.left[0].result()
    monkeypatch.setattr(busy.bindings, "cuEventQuery", lambda event: (700,), raising=False)
    monkeypatch.setattr(busy.device.driver, "_query", busy.bindings.cuEventQuery)
    with pytest.raises(DeviceError):
        busy.left[0].result()


def test_a_wait_that_is_short_asks_the_driver_no_more_than_it_must(busy):
    busy.finish()
    stream, calls = busy.stream, busy.bindings.calls
    calls.clear()
    busy.op().sync_on(stream)
    stream.wait(stream.mark())
    assert (calls["cuEventQuery"], calls["cuEventSynchronize"], calls["cuEventRecord"]) == (2, 0, 2)


def test_a_long_wait_brings_what_kernels_printed(busy):
    """The driver hands that over when it is asked to wait."""
    busy.bindings.calls.clear()
    threading.Timer(0.02, busy.finish).start()
    busy.stream.synchronize()
    assert busy.bindings.calls["cuEventSynchronize"] == 1


def test_other_threads_leave_waiting_to_the_driver(busy):
    busy.bindings.calls.clear()
    waits = [busy.stream.synchronize, lambda: busy.device.driver.stream_synchronize(0), busy.device.driver.synchronize]
    for wait in waits:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    calls = busy.bindings.calls
    assert [calls[name] for name in ("cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")] == [1, 1, 1]


def test_what_is_left_to_a_thread_returns_and_raises():
    assert waiting.aside(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        waiting.aside(lambda: 1 / 0)


def test_the_main_thread_blocks_for_short_times():
    """A signal that comes right before a lock is taken, when Python has looked for the last time, is seen after one of them."""
    asked = []

    def wait(seconds):
        asked.append(seconds)
        return len(asked) == 3

    assert waiting.until(wait)
    assert len(asked) == 3 and max(asked) <= 0.1
    asked.clear()
    thread = threading.Thread(target=lambda: waiting.until(wait))  # nothing interrupts it
    thread.start()
    thread.join(60)
    assert asked == [threading.TIMEOUT_MAX]


@pytest.mark.parametrize(("limit", "calls"), [(-1.0, 1), (0.0, 1), (0.25, 3), (math.inf, 3)])
def test_a_limit_of_the_wait_holds(monkeypatch, limit, calls):
    asked, now = [], [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])

    def wait(seconds):
        asked.append(seconds)
        now[0] += seconds
        return limit == math.inf and len(asked) == 3

    assert waiting.until(wait, limit) == (limit == math.inf)
    assert len(asked) == calls and (limit == math.inf or now[0] == max(limit, 0.0))


def test_without_threads_the_caller_waits_itself(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert waiting.aside(threading.get_ident) == threading.get_ident()


# a CPU device, by Ctrl-C

PROGRAM = """
import asyncio, faulthandler, os, signal, sys, threading, time
faulthandler.dump_traceback_later(100, exit=True)
import numpy as np
import tilekit as tk
from tilekit import api, memory

device = tk.Device("cpu")
stream, other = device.stream(), device.stream()
y = api.full(4, 2.0).sync_on(stream)

def held(gate):
    return tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, gate.wait) or 5))

@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())

@tk.graphed
def twice(y):
    return double(y.partition(4))

twice(api.zeros(4).sync()).sync_on(stream)
async def awaited(gate):
    await held(gate)

WAITS = {
    "sync": lambda gate: held(gate).sync(),
    "sync_on": lambda gate: held(gate).sync_on(stream),
    "result": lambda gate: held(gate).async_on(stream).result(),
    "result in time": lambda gate: held(gate).async_on(stream).result(90),
    "result of a chain": lambda gate: held(gate).then(lambda _: y.to_host()).then(api.from_host).async_on(stream).result(),
    "sync of a chain": lambda gate: held(gate).then(lambda _: y.to_host()).then(api.from_host).sync(),
    "host function": lambda gate: held(gate).then(lambda _: tk.host_fn(abs, 1)).sync(),
    "to_host": lambda gate: held(gate).then(lambda _: y.to_host()).sync(),
    "parallel": lambda gate: tk.zip(held(gate), held(gate), parallel=True).sync(),
    "shared": lambda gate: held(gate).shared().sync(),
    "stream": lambda gate: (held(gate).async_on(stream), stream.synchronize()),
    "device": lambda gate: (held(gate).async_on(stream), device.synchronize()),
    "event": lambda gate: (held(gate).async_on(stream), device.event().record(stream).synchronize()),
    "another stream": lambda gate: (held(gate).async_on(stream), other.wait_for(stream, stream.mark()), other.synchronize()),
    "a graph": lambda gate: (held(gate).async_on(stream), twice(y).sync_on(stream)),
    "chunks": lambda gate: memory.stream_chunks(lambda t: held(gate).map(lambda _: t), np.ones(8), out=np.ones(8)).sync(),
    "allocator": lambda gate: (held(gate).async_on(stream), device.driver.wait_idle()),
    "await": lambda gate: asyncio.run(awaited(gate)),
}
failing = []
for name, wait in WAITS.items():
    gate = threading.Event()
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait(gate)
        print(name, "was not interrupted")
    except KeyboardInterrupt:
        pass
    # Nobody has opened the gate: the wait ended before the work, which goes on now.
    gate.set()
    device.synchronize()
    assert y.to_host().sync()[0] == (4.0 if name in ("a graph", "chunks", "allocator", "await") else 2.0), name

# What an interrupted wait was for is not lost: a result, an error.
gate = threading.Event()
future = held(gate).async_on(stream)
broken = tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, lambda: 1 / 0)))
fault = held(gate).then(lambda _: broken).async_on(other)
for wait in (future.result, fault.result, fault.exception):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted", future.state)
gate.set()
print(future.result(), type(fault.exception().__cause__).__name__, future.state)
print(device.driver.allocated_bytes > 0, y.to_host().sync_on(other).tolist())
"""


@pytest.mark.alone
def test_ctrl_c_reaches_every_wait_for_a_cpu_device(tmp_path):
    program = tmp_path / "interrupted.py"
    program.write_text(PROGRAM)
    environ = {
        **os.environ,
        "TILEKIT_DEVICE": "cpu",
        "PYTHONPATH": os.pathsep.join([str(Path(tilekit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert (done.stdout, done.stderr) == (
        "interrupted executing\n" * 3 + "5 ZeroDivisionError complete\nTrue [4.0, 4.0, 4.0, 4.0]\n",
        "",
    )
    assert done.returncode == 0
