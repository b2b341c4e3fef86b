"""Which instruction computes a product. Why not a preferred one: tests/compiler/test_reasons.py."""

from __future__ import annotations

import tilekit as tk
from tilekit import api


@tk.kernel
def product(c: tk.Out, a: tk.In, b: tk.In, M: tk.Const, N: tk.Const, K: tk.Const, precision: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((M, N), c.dtype)
    for ta, tb in tk.pipelined(a.tiles((M, K))[i, :], b.tiles((K, N))[:, j]):
        acc = tk.mma(ta, tb, acc, precision=precision)
    c.store(acc)


def explained(*constants, dtype=tk.float16):
    a, b, c = api.meta((1024, 1024), dtype), api.meta((1024, 1024), dtype), api.meta((1024, 1024))
    whole = product(c.partition((128, 128)), a, b, 128, 128, *constants).num_warps(4).explain("sm_90a")
    (found,) = whole.products
    return found, whole


def test_a_product_by_warpgroups_is_preferred():
    found, whole = explained(64, "ieee")
    assert found.instruction == "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16"
    assert (found.a, found.b, found.count, found.refusals) == ("float16 128x64", "float16 64x128", 1, ())
    assert "HGMMA.64x128x16.F32" in whole.compiled.sass
    assert found.instruction in str(whole)


def test_full_precision_says_what_would_be_faster():
    found, _ = explained(32, "ieee", dtype=tk.float32)
    assert dict(found.refusals)["mma.sync"] == 'it does not take float32; precision="tf32" rounds them to 10 bits for it'
    assert found.instruction == "fma.rn.f32"
