"""TILEKIT_CHECKS=1: a kernel that goes astray stops, and the error says where.

Each in a process of its own, which loses the GPU.
"""

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
def load(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, tk.bid(0) + 7), (1, 64)).reshape(64))  # load


@tk.kernel
def store(y: tk.Out, x: tk.In):
    tk.store(y, -tk.bid(0), 1.0)  # store


@tk.kernel
def gather(y: tk.Out, x: tk.In):
    y.store(tk.gather(x, (2, tk.arange(64) + 64 * tk.bid(0))))  # gather


@tk.kernel
def masked(y: tk.Out, x: tk.In):
    place = tk.arange(64) + 64 * tk.bid(0)
    y.store(tk.gather(x, (2, place), mask=place < 500))


@tk.kernel
def scatter(y: tk.Out, x: tk.In):
    tk.scatter(y, 1000 - tk.bid(0), 1.0)  # scatter


@tk.kernel
def atomic(y: tk.InOut, x: tk.In):
    tk.atomic_add(y, tk.arange(64) * 64 * tk.bid(0), 1.0)  # atomic


@tk.kernel
def added(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(y, 16 - tk.bid(0), tk.ones(64))  # added


@tk.kernel
def part(y: tk.Out, x: tk.In):
    y.store(tk.load(x.slice(1, 490, 490 + tk.bid(0)), (0, 0), (1, 64)).reshape(64))  # part


@tk.kernel
def window(y: tk.Out, x: tk.In):
    y.store(x.tiled_view((1, 64), traversal_steps=(1, 100)).load((0, tk.bid(0))).reshape(64))  # window


@tk.kernel
def row(y: tk.Out, x: tk.In):
    t = tk.zeros((1, 64))
    for tile in x.tiles((1, 64))[tk.bid(0), :]:  # row
        t += tile
    y.store(t.reshape(64))


kernel = globals()[sys.argv[1]]
y, x = api.zeros(1000).sync(), api.ones((10, 500)).sync()
try:
    print(json.dumps(kernel(y.partition(64), x).first().unpartition().to_host().sync().sum().item()))
except tk.DeviceError as error:
    print(json.dumps([str(error), error.lost]))
"""

# What each kernel does first: the block, and the text. Of several threads and blocks the first is chance.
WRONG = {
    "load": r"block \((\d+), 0, 0\): load: tile index \(0, (\d+)\) is outside x",
    "store": r"block \((\d+), 0, 0\): store: tile index \((-\d+)\) is outside y",
    "gather": r"block \((\d+), 0, 0\): gather: index \(2, (\d+)\) is outside x",
    "scatter": r"block \(0, 0, 0\): scatter: index \(1000\) is outside y",
    "atomic": r"block \((\d+), 0, 0\): atomic_add: index \((\d+)\) is outside y",
    "added": r"block \(0, 0, 0\): atomic_add_tile: tile index \(16\) is outside y",
    "part": r"block \((\d+), 0, 0\): slice: 490:(\d+) is outside x",
    "window": r"block \((\d+), 0, 0\): load: tile index \(0, (\d+)\) is outside x",
    "row": r"block \((\d+), 0, 0\): load: tile index \((\d+), 0\) is outside x",
}


def run(path, which, checks, cache="off"):
    env = {**os.environ, "TILEKIT_CHECKS": checks, "TILEKIT_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, str(path), which], capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "astray.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("which", WRONG)
def test_the_error_names_kernel_line_block_and_index(program, which):
    text, lost = run(program, which, "1")
    assert lost
    line = next(n for n, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {which}"))
    assert re.search(rf"astray\.py:{line}: kernel {which}, {WRONG[which]}\n    .*# {which}", text), text
    assert "restart it to go on" in text


def test_the_block_and_the_index_belong_together(program):
    text, _ = run(program, "load", "1")
    block, index = map(int, re.search(WRONG["load"], text).groups())
    assert index == block + 7
    assert index >= 8


@pytest.mark.parametrize("which", WRONG)
def test_without_checks_it_is_masked(program, which):
    assert isinstance(run(program, which, "0"), float)


@pytest.mark.parametrize("checks", ["0", "1"])
def test_what_the_mask_leaves_out_is_not_checked(program, checks):
    assert run(program, "masked", checks) == 500


def test_a_kernel_from_the_cache_knows_its_lines(program, tmp_path):
    first, second = (run(program, "gather", "1", tmp_path / "cache")[0] for _ in range(2))
    assert re.search(WRONG["gather"], first)
    assert re.search(WRONG["gather"], second)
