"""Rows and columns that are loaded, and decide about products' elements: nothing as large as these changes threads for them."""

from __future__ import annotations

import linecache

import numpy as np
import pytest
from through_ir import both_ways, ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES

B, D = 64, 64
ATTENTION = """
def kernel(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, rows: tk.In, columns: tk.In):
    i = tk.bid(0)
    query, own = tk.load(q, (i, 0), (64, 64)), tk.load(rows, i, 64)[:, None]
    most, total = tk.full((64, 1), -1e30, tk.float32), tk.zeros((64, 1), tk.float32)
    acc = tk.zeros((64, 64), tk.float32)
    for j in range(tk.cdiv(k.shape[0], 64)):
        scores = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * 0.125
        others = tk.load(columns, j, 64)[None, :]
        scores = MASKED
        higher = tk.maximum(most, tk.max(scores, 1, keepdims=True))
        p, shrink = tk.exp(scores - higher), tk.exp(most - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), tk.load(v, (j, 0), (64, 64)), acc * shrink)
        most = higher
    o.store(acc / total)
"""
MASKED = {
    "positions": "tk.where(others <= own, scores, float('-inf'))",
    "segments": "tk.where((others == own) | (others < 2), scores, -1e9)",
    "both": "tk.where((others // 4 == own // 4) & (64 * j + tk.arange(64)[None, :] < 100), scores, -1e9)",
    "a bias": "scores + (others - own).astype(tk.float32) * 0.25",
}


def launch(how, o, q, k, v, rows, columns):
    source, name = ATTENTION.replace("MASKED", MASKED[how]), f"<spread {how}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = {"tk": tk}
    exec(compile(source, name, "exec"), namespace)
    return tk.kernel(num_warps=4)(namespace["kernel"])(o.partition((B, D)), q, k, v, rows, columns)


def meta_op(how):
    q, at = api.meta((256, D), tk.float16), api.meta(256, tk.int32)
    return launch(how, api.meta((256, D)), q, q, q, at, at)


each = pytest.mark.parametrize("how", MASKED)


@each
def test_what_meets_a_product_is_spread_as_it_lies(how):
    text = printed(ir_of(meta_op(how), *PASSES))
    assert "tilekit__spread(" in text


@each
def test_no_mask_changes_threads(how):
    explained = meta_op(how).explain("sm_90a")
    assert [each.nbytes for each in explained.conversions if each.nbytes > 64 * 4] == []
    assert "rotation" in {remark.transformation for remark in explained.remarks if remark.done}
    assert explained.compiled.local_bytes == 0


def test_a_column_is_spread_before_the_loop():
    lines = printed(ir_of(meta_op("positions"), *PASSES)).splitlines()
    own = next(n for n, line in enumerate(lines) if "spread(tk.float16, (64, 64), own)" in line)
    assert own < next(n for n, line in enumerate(lines) if " = stream " in line and "with" in line)


def test_nothing_else_is_spread():
    def kernel(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
        row = tk.load(x, 0, 64)[None, :]
        c.store((tk.load(a, (0, 0), (64, 64)) @ tk.load(b, (0, 0), (64, 64))).astype(tk.float32))
        tk.store(c, (0, 0), row + tk.arange(64)[:, None])

    a = api.meta((64, 64), tk.float16)
    op = tk.kernel(kernel)(api.meta((64, 64)).partition((64, 64)), a, a, api.meta(64))
    assert "spread" not in printed(ir_of(op, *PASSES))


@each
def test_the_result_is_the_same(how, device):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((n, D)).astype(np.float16) for n in (128, 192, 192))
    rows, columns = (np.sort(rng.integers(0, 8, n)).astype(np.int32) for n in (128, 192))
    columns[0] = 0

    def run():
        o, *others = [api.zeros((128, D)).sync(), *(api.from_host(x).sync() for x in (q, k, v, rows, columns))]
        launch(how, o, *others).sync()
        return o.to_host().sync()

    plain, passed = both_ways(run, device)
    np.testing.assert_allclose(passed, plain, atol=2e-3)
