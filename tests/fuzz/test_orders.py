"""Random loops with a product: written in many ways, over tiles in many orders. What the passes make of them is the same.

All of them have streams, whichever way and order it is.
"""

from __future__ import annotations

import linecache
import random

import numpy as np
import pytest
import through_ir

import tilekit as tk
from tilekit import api

BUDGET = 0.3

# A loop's lines before its turn, and behind it.
LOOPS = [
    (["for k in range(n):"], []),
    (["for k in range(n - 1, -1, -1):"], []),
    (["for k in range(0, n, 2):"], []),
    (["for k in range(i, n, s):"], []),
    (["k = 0", "while k < n:"], ["k += 1"]),
    (["k = n - 1", "while True:"], ["k -= 1", "if k < 0: break"]),
    (["for k, row in enumerate(a.tiles((64, 64))[0, :n]):"], []),
    (["for k, (row, column) in enumerate(zip(a.tiles((64, 64))[0, :n], b.tiles((64, 64))[1:, 0])):"], []),
    (["off = 0", "for _ in range(n):", "    k = off // 64"], ["off += 64"]),
]
INDICES = [
    "k", "n - 1 - k", "(k + 2) % n", "tk.load(table, k, ()).item()", "k // 2", "min(k + 1, n - 1)", "(k * 3) % n", "k - k % 2",
    "(k if s > 1 else n - 1 - k)",
]  # fmt: skip
FIRST = ["tk.load(a, (i, first), (64, 64))", "tk.load(a.slice(1, 64 * k), (i, 0), (64, 64))"]
COMPUTED = [
    "x",
    "x",
    "(x * 2).astype(a.dtype)",
    "tk.where(64 * k + tk.arange(64)[None, :] < 64 * n - 30, x, 0.0).astype(a.dtype)",
    "tk.where(tk.load(rows, i, 64)[:, None] > tk.load(rows, second, 64)[None, :], x, 0.0).astype(a.dtype)",
]
ADDED = ["acc = tk.mma(x, y, acc)", "acc += x @ y", "acc = tk.mma(x, y, acc) + tk.load(rows, second, 64)[None, :]"]


def drawn(draw):
    """The text of a kernel."""
    before, behind = draw.choice(LOOPS)
    turn = [
        f"first, second = {draw.choice(INDICES)}, {draw.choice(INDICES)}",
        f"x = {draw.choice(FIRST if before[0] == LOOPS[0][0][0] else FIRST[:1])}",
        f"x = {draw.choice(COMPUTED)}",
        "y = tk.load(b, (second, j), (64, 64))",
        draw.choice(ADDED),
        *(["acc = tk.mma(x, y.transpose(), acc)"] if draw.random() < 0.3 else []),
        *behind,
    ]
    lines = [
        "i, j = tk.bid(0), tk.bid(1)",
        "acc = tk.zeros((64, 64), tk.float32)",
        *before,
        *(f"    {line}" for line in turn),
        "c.store(acc)",
    ]
    head = "def kernel(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, rows: tk.In, n: int, s: int):"
    return "\n".join([head, *(f"    {line}" for line in lines)]) + "\n"


def kernel_of(text, name):
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = {"tk": tk}
    exec(compile(text, name, "exec"), namespace)
    return tk.kernel(num_warps=4)(namespace["kernel"])


def test_orders_of_tiles(cases, device):
    for seed in cases:
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        text, n, s = drawn(draw), draw.randrange(1, 5), draw.randrange(1, 4)
        arrays = [
            *(rng.integers(-3, 4, (320, 320)).astype(np.float16) for _ in range(2)),
            rng.integers(0, n, 8).astype(np.int32),
            rng.integers(0, 9, 320).astype(np.int32),
        ]

        def run(text=text, arrays=arrays, n=n, s=s, seed=seed):
            c, *tensors = [api.full((192, 128), -1.0).sync(), *(api.from_host(x).sync() for x in arrays)]
            kernel_of(text, f"<orders {seed}>")(c.partition((64, 64)), *tensors, n, s).sync()
            return c.to_host().sync()

        said = cases.report(seed, f"n = {n}, s = {s}\n{text}")
        plain, passed = through_ir.both_ways(run, device)
        # A product that `@` rounds to 16 bits may be rounded once less.
        assert np.allclose(passed, plain, rtol=2e-3, atol=0.5), said


@pytest.mark.parametrize("target", ["sm_90a"])
def test_they_load_ahead(cases, target):
    meta = [*(api.meta((4096, 4096), tk.float16) for _ in range(2)), api.meta(64, tk.int32), api.meta(4096, tk.int32)]
    for seed in cases:
        text = drawn(random.Random(seed))
        op = kernel_of(text, f"<orders {seed}>")(api.meta((192, 128)).partition((64, 64)), *meta, 4, 2)
        explained = op.explain(target)
        said = cases.report(seed, f"{explained}\n{text}")
        assert any(ring.stages for ring in explained.pipelines), said
        assert "HGMMA" in explained.compiled.sass, said
        assert explained.compiled.local_bytes == 0, said
