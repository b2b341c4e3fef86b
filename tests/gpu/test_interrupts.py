"""Ctrl-C during each kind of wait for a GPU that is busy for a second; `tests/driver/test_waiting.py` has what needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilekit

BUSY_S = 1.0  # how long the kernel takes
LATEST_S = 0.3  # after the signal

PROGRAM = """
import asyncio, faulthandler, os, signal, sys, threading, time
faulthandler.dump_traceback_later(280, exit=True)
import numpy as np
import tilekit as tk
from tilekit import api, memory

CODE = r'''
__device__ unsigned long long now() { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
extern "C" __global__ void busy(int* y, long long ns) {
    unsigned long long start = now();
    while (now() - start < ns) {}
    y[0] += 1;
}
'''
busy = tk.cuda_source(CODE, "busy", "y: InOut[i32], ns: i64")[tk.LaunchConfig(grid=(1,), block=1)]
NS = int(BUSY_S * 1e9)
device = tk.default_device()
stream, other = device.stream(), device.stream()
y = api.zeros(4, tk.int32).sync()
small, medium, large = (api.zeros(n).sync() for n in (1000, 1_000_000, 20_000_000))
pinned = memory.pinned(1_000_000, tk.float32)
host = np.zeros(1_000_000, np.float32)
begin = lambda: busy(y, NS).async_on(stream)
behind = lambda tensor: busy(y, NS).then(lambda _: tensor.to_host()).sync_on(stream)
graph = busy(y, NS).graph()
prepared = busy(y, NS).prepare()

@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())

async def awaited():
    await busy(y, NS)

WAITS = {
    "sync": lambda: busy(y, NS).sync(),
    "sync_on": lambda: busy(y, NS).sync_on(stream),
    "result": lambda: begin().result(),
    "result in time": lambda: begin().result(100),
    "exception": lambda: begin().exception(),
    "chain": lambda: busy(y, NS).then(lambda _: y.to_host()).map(sum).sync(),
    "result of a chain": lambda: busy(y, NS).then(lambda _: y.to_host()).map(sum).async_on(stream).result(),
    "host function": lambda: busy(y, NS).then(lambda _: tk.host_fn(abs, 1)).sync(),
    "to_host, 4 KB": lambda: behind(small),
    "to_host, 4 MB": lambda: behind(medium),
    "to_host, 80 MB": lambda: behind(large),
    "to_host, page-locked": lambda: busy(y, NS).then(lambda _: medium.to_host(out=pinned)).sync_on(stream),
    "from_host": lambda: (begin(), api.memcpy(medium, host).sync_on(stream)),
    "from_host, 80 MB": lambda: (begin(), api.memcpy(large, np.zeros(20_000_000, np.float32)).sync_on(stream)),
    "tile kernel": lambda: (begin(), double(small.partition(128)).sync_on(stream)),
    "graph": lambda: graph.launch().sync_on(stream),
    "prepared": lambda: (prepared.run(stream), stream.synchronize()),
    "stream": lambda: (begin(), stream.synchronize()),
    "another stream": lambda: (begin(), other.wait_for(stream, stream.mark()), other.synchronize()),
    "device": lambda: (begin(), device.synchronize()),
    "event": lambda: (begin(), device.event().record(stream).synchronize()),
    "event in time": lambda: (begin(), device.event().record(stream).synchronize(100)),
    "await": lambda: asyncio.run(awaited()),
}
double(small.partition(128)).sync()
for tensor in (small, medium, large):
    tensor.to_host().sync()
api.memcpy(large, np.zeros(20_000_000, np.float32)).sync()
count, sent = 0, 0.0

def send():
    global sent
    sent = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)

for name, wait in WAITS.items():
    device.synchronize()
    threading.Timer(0.2, send).start()
    try:
        wait()
        late = "was not interrupted"
    except KeyboardInterrupt:
        late = f"{time.perf_counter() - sent:.3f}"
    count += 1
    # The kernel goes on, and whoever asks next waits for it: every one of them has counted.
    counted = int(y.to_host().sync()[0])
    print(f"{name}: {late}" + ("" if counted == count else f", but {counted} kernels of {count} have run"), flush=True)

future = begin()
threading.Timer(0.2, send).start()
try:
    future.result()
except KeyboardInterrupt:
    print("future:", future.state, future.result()[0] is y, future.state, int(y.to_host().sync()[0]) - count)
"""


@pytest.mark.alone
@pytest.mark.parametrize("spin_us", ["20", "0"])
def test_ctrl_c_reaches_every_wait(device, tmp_path, spin_us):
    program = tmp_path / "interrupted.py"
    program.write_text(PROGRAM.replace("BUSY_S", str(BUSY_S)))
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(tilekit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "TILEKIT_SPIN_US": spin_us,
    }
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "future: executing True complete 1"
    late = []
    for line in lines:
        seconds = line.rpartition(": ")[2]
        if not seconds.replace(".", "", 1).isdigit() or float(seconds) > LATEST_S:
            late.append(line)
    assert late == [] or (len(late) == 1 and "Exception ignored in" in done.stderr), done.stderr  # a finalizer swallowed it
    assert len(lines) == 23
