"""Assertions in kernels: a GPU looks under TILEKIT_CHECKS=1 alone. Each in a process of its own, which loses the GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import numpy as np
import tilekit as tk
from tilekit import api


@tk.kernel
def tile(y: tk.InOut):
    t = y.load()
    tk.assert_(t >= 0, "no {negative} numbers")  # tile
    y.store(tk.sqrt(t))


@tk.kernel
def rows(y: tk.InOut):
    t = y.load().reshape((8, 8))
    tk.assert_(t >= 0)  # rows
    y.store(tk.sqrt(t).reshape(64))


@tk.kernel
def scalar(y: tk.InOut):
    tk.assert_(tk.bid(0) < 2, "few blocks")  # scalar
    y.store(1.0)


x = np.ones(256, np.float32)
x[64 + 21] = -1
try:
    made = globals()[sys.argv[1]](api.from_host(x).sync().partition(64)).first().unpartition().to_host().sync()
    print(json.dumps(float(np.nansum(made))))
except tk.DeviceError as error:
    print(json.dumps(str(error)))
"""
WRONG = {
    "tile": r"kernel tile, block \(1, 0, 0\): assert_: no {negative} numbers at element \(21,\)",
    "rows": r"kernel rows, block \(1, 0, 0\): assert_: the condition does not hold at element \(2, 5\)",
    "scalar": r"kernel scalar, block \([23], 0, 0\): assert_: few blocks",
}


def run(path, which, checks):
    env = {**os.environ, "TILEKIT_CHECKS": checks, "TILEKIT_CACHE_DIR": "off"}
    done = subprocess.run([sys.executable, str(path), which], capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("which", WRONG)
def test_the_error_names_kernel_line_block_and_element(which, tmp_path):
    path = tmp_path / "asserting.py"
    path.write_text(PROGRAM)
    line = next(n for n, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {which}"))
    text = run(path, which, "1")
    assert re.search(rf"asserting\.py:{line}: {WRONG[which]}", text), text


@pytest.mark.parametrize("which", WRONG)
def test_without_checks_nothing_is_looked_at(which, tmp_path):
    path = tmp_path / "asserting.py"
    path.write_text(PROGRAM)
    assert run(path, which, "0") == (256 if which == "scalar" else 255)
