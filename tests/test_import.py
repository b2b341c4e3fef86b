"""Importing tilekit is cheap, and drags nothing in."""

import os
import subprocess
import sys

CHEAP = """
import sys
import tilekit, tilekit.api
heavy = {"numba", "llvmlite", "torch", "cupy", "cuda", "triton", "asyncio"} & set(sys.modules)
assert not heavy, heavy
"""

TIMED = """
import time
start = time.thread_time()
import numpy
middle = time.thread_time()
import tilekit
print(time.thread_time() - middle)
"""


def test_it_imports_no_compiler_and_no_peer():
    subprocess.run([sys.executable, "-c", CHEAP], check=True)


def test_it_takes_less_than_150_ms_more_than_numpy(tmp_path):
    """Of this thread's processor time, which other threads and programs do not change; the first run compiles the modules."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times: list[float] = []
    while len(times) < 12 and min(times, default=1.0) >= 0.150:  # a processor that others use, too, has its slow moments
        run = subprocess.run([sys.executable, "-c", TIMED], check=True, capture_output=True, text=True, env=environment)
        times.append(float(run.stdout))
    assert min(times) < 0.150, times


def test_a_folder_of_that_name_does_not_hide_it(tmp_path):
    """Such as the clone itself, beside a script: it is no package, but Python might take it for a part of one."""
    (tmp_path / "tilekit").mkdir()
    (tmp_path / "script.py").write_text("import tilekit\nprint(tilekit.kernel.__name__)\n")
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert run.stdout == "kernel\n"
