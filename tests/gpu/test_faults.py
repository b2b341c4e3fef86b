"""Kernels that fail: every waiter of the GPU is told what happened, at once, and the process ends as any other.

Each in a process of its own, since a fault takes the GPU from the process that made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tilekit as tk
from tilekit import api
from tilekit.ops import AsyncKernelLaunch

pytestmark = pytest.mark.alone

# After `clocks` cycles: nothing, a write far out of bounds, a trap, a failed assertion.
SOURCE = """
extern "C" __global__ void fault(int* y, int kind, long long clocks) {
    long long start = clock64();
    while (clock64() - start < clocks) {}
    if (kind == 1) y[1ll << 40] = 1;
    if (kind == 2) __trap();
    if (kind == 3) assert(y == nullptr);
}
"""
KINDS = {"address": 1, "trap": 2, "assert": 3}
CODES = {
    "address": {"CUDA_ERROR_ILLEGAL_ADDRESS"},
    "trap": {"CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_ILLEGAL_INSTRUCTION"},
    "assert": {"CUDA_ERROR_ASSERT"},
}
DELAY = 100_000_000  # clock cycles until a fault: about 50 ms
FOREVER = 20_000_000_000  # 10 s: nobody waits for that long, for the fault ends it
# How long after the fault everybody must have been told, in seconds; the delay is counted in. With CUDA_DEVICE_MAX_CONNECTIONS=32
# the driver (580.159) tells of a trap after 3.3 s, a program of nothing but driver calls too; without it, after 0.4.
SOON_S = {"address": 1.0, "assert": 1.0, "trap": 1.0}


def compiled(target: str) -> bytes:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="the kernel of these tests is compiled by NVRTC")
    _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"fault.cu", 0, [], [])
    options = [f"--gpu-architecture={target}".encode()]
    if nvrtc.nvrtcCompileProgram(program, len(options), options)[0] != 0:
        log = b" " * (nvrtc.nvrtcGetProgramLogSize(program)[1] + 1)  # it is written to; of one byte there is one object
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin


def test_the_kernel_compiles():
    assert compiled("sm_90a").startswith(b"\x7fELF")


class Faulty:
    """The kernel, loaded; as much of an executable as a launch needs."""

    def __init__(self, device):
        self.function = device.driver.load(compiled(device.target), "fault")
        self.memory = api.zeros(4, tk.int32).sync()

    def launch(self, ctx, grid, arguments):
        kind, clocks = arguments
        values = (ctypes.c_uint64(self.memory.address), ctypes.c_int32(kind), ctypes.c_int64(clocks))
        pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(value) for value in values])
        ctx.device.driver.launch(self.function, grid, (32, 1, 1), 0, ctx.stream.handle, ctypes.addressof(pointers))


class Launch(AsyncKernelLaunch):
    """One launch of it, as an op."""

    def __init__(self, faulty, name, kind=0, clocks=1000):
        self.faulty, self.kind, self.clocks = faulty, kind, clocks
        self._label = name

    def execute(self, ctx):
        self.enqueue(ctx, self.faulty, (1, 1, 1), (self.kind, self.clocks), (), ())
        return self._label


class Session:
    """What the programs below share: the device, the kernel, and notes of who was told what, and when."""

    def __init__(self, name):
        with contextlib.suppress(ImportError):
            import trio  # noqa: F401  (now, since later is timed)
        self.kind = KINDS[name]
        self.device = tk.Device("cuda")
        self.streams = [self.device.stream() for _ in range(4)]
        self.faulty = Faulty(self.device)
        self.told: dict[str, dict[str, object]] = {}
        self.device.driver.make_signals_ready()
        for stream in self.streams:
            self.launch("warm").sync_on(stream)
        self.device.synchronize()
        self.start = time.perf_counter()

    def launch(self, name, kind=0, clocks=1000):
        return Launch(self.faulty, name, kind, clocks)

    def bad(self):
        return self.launch("bad", self.kind, DELAY)

    def chain(self, name, clocks=1000, bad=False):
        """Three launches; the middle one takes `clocks`, or fails."""
        middle = self.bad() if bad else self.launch(f"{name} 2", clocks=clocks)
        return self.launch(f"{name} 1").then(lambda _: middle).then(lambda _: self.launch(f"{name} 3"))

    def tell(self, who, error):
        self.told[who] = {
            "type": type(error).__name__,
            "code": getattr(error, "code", None),
            "lost": getattr(error, "lost", None),
            "unfinished": list(getattr(error, "unfinished", ())),
            "after_s": time.perf_counter() - self.start,
            "text": str(error),
        }

    def blocking(self, who, wait):
        try:
            wait()
            self.told[who] = {"type": "nothing"}
        except BaseException as error:
            self.tell(who, error)

    def threads(self, waits):
        threads = [threading.Thread(target=self.blocking, args=(who, wait)) for who, wait in waits.items()]
        for thread in threads:
            thread.start()
        return threads

    async def awaiting(self, who, future):
        try:
            await future
            self.told[who] = {"type": "nothing"}
        except BaseException as error:
            self.tell(who, error)

    def end(self):
        """What comes after a fault: every call says the same, nothing hangs."""
        x = api.ones(3)
        self.blocking("later op", x.sync)
        self.blocking("later launch", lambda: self.launch("late").sync_on(self.streams[0]))
        self.blocking("later stream", self.device.stream)
        self.blocking("later synchronize", self.device.synchronize)
        self.blocking("later wait", self.streams[1].synchronize)
        self.faulty.memory = None
        self.streams[0].close()
        sys.stdout.write("\n" + json.dumps(self.told) + "\n")


def sync(session):
    """One blocks for the fault, others in other threads for other streams."""
    one, two, three, _ = session.streams
    long = session.launch("long", clocks=FOREVER).async_on(two)
    event = session.device.event().record(three)
    session.launch("long", clocks=FOREVER).async_on(three)
    marked = three.mark()
    threads = session.threads(
        {
            "future": long.result,
            "stream": two.synchronize,
            "moment": lambda: three.wait(marked),
            "moment with timeout": lambda: three.wait(marked, 30.0),
        }
    )
    session.blocking("sync", lambda: session.bad().sync_on(one))
    for thread in threads:
        thread.join(20)
    del event


def callbacks(session):
    """Callbacks come with the status of the fault; what follows from one on its thread fails as well."""
    one, two, *_ = session.streams
    called, statuses = threading.Event(), []
    session.launch("long", clocks=FOREVER).async_on(two)
    two.add_callback(lambda stream, status, arg: (statuses.append(status), called.set()))
    split = session.bad().then(lambda _: api.ones(3)).to_host().then(api.from_host).async_on(one)
    done = threading.Event()
    split.add_done_callback(lambda future: done.set())
    session.blocking("future", lambda: split.result(20))
    assert called.wait(20)
    assert done.wait(20)
    session.told["statuses"] = {"type": statuses}


def run_await(session):
    async def main():
        await session.awaiting("await", asyncio.wait_for(session.bad().async_on(session.streams[0]), 20))
        await session.awaiting("await again", session.launch("late").run())

    asyncio.run(main())


def run_gather(session):
    """Eight tasks on four streams; one kernel fails, and all the others would take for ever."""

    async def main():
        futures = {"bad": session.bad().async_on(session.streams[0])}
        for k in range(8):
            futures[f"long {k}"] = session.launch(f"long {k}", clocks=FOREVER).async_on(session.streams[k % 4])
        async with asyncio.timeout(20):
            await asyncio.gather(*(session.awaiting(who, future) for who, future in futures.items()))

    asyncio.run(main())


def run_trio(session):
    import trio

    async def main():
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.awaiting, "bad", session.bad().async_on(session.streams[0]))
                nursery.start_soon(session.awaiting, "long", session.launch("long", clocks=FOREVER).async_on(session.streams[1]))

    trio.run(main)


def run_chains(session):
    """Chains on four streams, waited for in threads and in tasks."""
    futures = [
        session.chain(f"chain {k}", clocks=FOREVER, bad=k == 2).async_on(stream) for k, stream in enumerate(session.streams)
    ]
    threads = session.threads({f"thread {k}": future.result for k, future in enumerate(futures)})

    async def main():
        async with asyncio.timeout(20):
            await asyncio.gather(*(session.awaiting(f"task {k}", future) for k, future in enumerate(futures)))

    asyncio.run(main())
    for thread in threads:
        thread.join(20)


SCENARIOS = {function.__name__: function for function in (sync, callbacks, run_await, run_gather, run_trio, run_chains)}


def run(scenario, kind):
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import test_faults\n"
        f"session = test_faults.Session({kind!r})\n"
        f"test_faults.SCENARIOS[{scenario!r}](session)\n"
        "session.end()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    if "statuses" in told:
        assert told.pop("statuses")["type"][0] > 0
    later = {who: told.pop(who) for who in list(told) if who.startswith("later")}
    for who, what in {**told, **later}.items():
        assert what["type"] == "DeviceError", (who, what)
        assert what["code"] in CODES[kind], (who, what)
        assert what["lost"], (who, what)
        assert "This process cannot use the GPU any more: restart it to go on" in what["text"], (who, what)
    for who, what in told.items():
        assert what["after_s"] < SOON_S[kind], (who, what)
    assert len(later) == 5
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_blocking(kind):
    told = run("sync", kind)
    assert set(told) == {"sync", "future", "stream", "moment", "moment with timeout"}
    assert told["sync"]["unfinished"] == ["bad"]
    for who in ("future", "stream", "moment", "moment with timeout"):
        assert told[who]["unfinished"] == ["long"], who


def test_callbacks():
    told = run("callbacks", "address")
    assert told["future"]["unfinished"][0] == "bad"


@pytest.mark.parametrize("kind", KINDS)
def test_await(kind):
    told = run("run_await", kind)
    assert told["await"]["unfinished"] == ["bad"]


@pytest.mark.parametrize("kind", KINDS)
def test_gather(kind):
    told = run("run_gather", kind)
    assert len(told) == 9
    assert told["bad"]["unfinished"] == ["bad", "long 0", "long 4"]
    for k in range(8):
        first = ["bad"] if k % 4 == 0 else []
        assert told[f"long {k}"]["unfinished"] == [*first, f"long {k % 4}", f"long {k % 4 + 4}"], k


def test_trio():
    pytest.importorskip("trio", reason="trio is not installed")
    told = run("run_trio", "address")
    assert told["bad"]["unfinished"] == ["bad"]
    assert told["long"]["unfinished"] == ["long"]


@pytest.mark.parametrize("kind", KINDS)
def test_chains_on_four_streams(kind):
    told = run("run_chains", kind)
    assert len(told) == 8
    for who, what in told.items():
        name = f"chain {who[-1]}"
        assert what["unfinished"] == [f"{name} 1", "bad" if who[-1] == "2" else f"{name} 2", f"{name} 3"], who
