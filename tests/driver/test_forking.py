"""What a forked process may do with devices that its parent used, and what it is told."""

import os
import subprocess
import sys

import pytest

from tilekit._driver.cuda import context as cuda_context
from tilekit._driver.cuda import driver as cuda
from tilekit.errors import DeviceUnavailableError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")

# The child's outcome comes back as its exit status.
PROGRAM = """
import os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of forks while threads run
import numpy as np
import tilekit as tk
from tilekit import api
from tilekit.errors import DeviceUnavailableError

def forked(function):
    child = os.fork()
    if not child:
        try:
            function()
            os._exit(0)
        except DeviceUnavailableError as error:
            text = str(error)
            os._exit(3 if "spawn" in text and "forked" in text else 4)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(program):
    done = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cpu_device_at_rest_works_in_the_child():
    program = """
x = api.ones(100).sync()
api.ones(3).sync_on(x.device.stream())
x.device.stream().add_callback(lambda *_: None)

async def main():
    return (await x.dup().to_host()).sum()

def work():
    import asyncio
    assert x.to_host().sync().sum() == 100
    assert api.ones(1000).to_host().sync().sum() == 1000
    assert asyncio.run(main()) == 100
    done = threading.Event()
    x.device.stream().add_callback(lambda *_: done.set())
    assert done.wait(30)

import asyncio
assert asyncio.run(main()) == 100
x.device.synchronize()
print(forked(work))
"""
    assert run("import os; os.environ['TILEKIT_DEVICE'] = 'cpu'\n" + program) == "0\n"


def test_a_cpu_device_at_work_is_lost_in_the_child():
    program = """
device = tk.Device("cpu")
gate, stream, other = threading.Event(), device.stream(), device.stream()
future = api.ones(3).async_on(stream)
device.driver.submit(stream.handle, gate.wait)
serial = stream.mark()
with tk.use_device(device):
    codes = [
        forked(lambda: stream.wait(serial)),
        forked(lambda: api.ones(3).sync()),
        forked(lambda: api.ones(3).sync_on(other)),
        forked(lambda: device.synchronize()),
    ]
gate.set()
device.synchronize()
print(codes, future.result().shape)
"""
    assert run(program) == "[3, 3, 3, 3] (3,)\n"


def test_a_child_of_a_process_that_only_imported_tilekit_is_free():
    assert run("print(forked(lambda: api.ones(3).sync_on(tk.Device('cpu').stream())))") == "0\n"


def test_spawned_processes_are_free(tmp_path):
    (tmp_path / "main.py").write_text("""
import multiprocessing
from tilekit import api

def work(n):
    return float(api.ones(n).to_host().sync().sum())

if __name__ == "__main__":
    api.ones(3).sync()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]))
""")
    done = subprocess.run([sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[1.0, 2.0]\n", "")


def test_a_gpu_refuses_at_the_first_call():
    """With a stand-in for the driver: its context must not be touched."""

    class Bindings:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was called")

    driver = object.__new__(cuda.CudaDriver)
    driver._cu, driver.ordinal, driver._alone, driver._context = Bindings(), 0, True, "a context"
    driver._forked = False
    cuda_context.this_thread.driver = driver
    try:
        driver.after_fork()
        cuda_context.this_thread.driver = None
        for call in (
            lambda: driver.stream_create(0),
            lambda: driver.event_record(None, None),
            lambda: driver.allocate(1, None),
            lambda: driver.launch(None, (1, 1, 1), (1, 1, 1), 0, None, 0),
            driver.synchronize,
        ):
            with pytest.raises(DeviceUnavailableError, match=r"cuda:0 was in use when this process was forked.*spawn"):
                call()
    finally:
        cuda_context.this_thread.driver = None


@pytest.mark.gpu
def test_a_gpu_is_lost_in_the_child():
    program = """
x = api.ones(100).sync()
stream = x.device.stream()
serial = stream.mark()
with tk.use_device("cuda"):
    print([
        forked(lambda: api.ones(3).sync()),
        forked(lambda: x.to_host().sync()),
        forked(lambda: stream.wait(serial + 1)),
        forked(lambda: x.device.synchronize()),
        forked(lambda: api.ones(3).sync_on(tk.Device("cpu").stream())),
    ], x.to_host().sync().sum())
"""
    assert run("import os; os.environ['TILEKIT_DEVICE'] = 'cuda'\n" + program) == "[3, 3, 3, 3, 0] 100.0\n"
