"""The first section of the design, executed: the parts that exist, and strictly the parts that do not yet."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import numpy as np

import tilekit as tk
from tilekit import api

PROGRAM = Path(__file__).with_name("section_1.py")
ASYNC_PART = "async def main():"


def run_up_to(marker: str, tmp_path: Path) -> dict:
    """Execute the program's text before `marker`."""
    head = tmp_path / "head.py"
    head.write_text(PROGRAM.read_text().partition(marker)[0])
    return runpy.run_path(str(head))


def test_the_whole_program(device):
    runpy.run_path(str(PROGRAM))


def test_everything_before_the_matrix_product(device, tmp_path):
    names = run_up_to(ASYNC_PART, tmp_path)
    x = np.arange(4096, dtype=np.float32)
    np.testing.assert_array_equal(names["host"], 2 * x + 1)
    np.testing.assert_array_equal(names["y"].to_host().sync(), 2.5 * x)


def test_the_asynchronous_part_without_the_matrix_product(device):
    async def main():
        a, b = await tk.zip(api.randn(0.0, 1.0, (256, 256), seed=1), api.full((256, 256), 3.0))
        return await asyncio.gather(api.dup(a).to_host(), api.dup(b).to_host())

    r1, r2 = asyncio.run(main())
    assert abs(r1.mean()) < 0.02 and abs(r1.std() - 1) < 0.02
    np.testing.assert_array_equal(r2, np.full((256, 256), 3.0, np.float32))
