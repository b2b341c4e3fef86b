"""Which instruction computes a product, and why not a preferred one: the reasons are true, each is looked at both ways."""

from __future__ import annotations

import pytest

import tilekit as tk
from tilekit import api


@tk.kernel
def product(c: tk.Out, a: tk.In, b: tk.In, M: tk.Const, N: tk.Const, K: tk.Const, precision: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((M, N), c.dtype)
    for ta, tb in tk.pipelined(a.tiles((M, K))[i, :], b.tiles((K, N))[:, j]):
        acc = tk.mma(ta, tb, acc, precision=precision)
    c.store(acc)


@tk.kernel
def doubled(c: tk.Out, a: tk.In, b: tk.In, M: tk.Const, N: tk.Const, K: tk.Const, which: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((M, N), c.dtype)
    for ta, tb in tk.pipelined(a.tiles((M, K))[i, :], b.tiles((K, N))[:, j]):
        acc = tk.mma(ta * 2, tb, acc) if which == "a" else tk.mma(ta, tb * 2, acc)
    c.store(acc)


@tk.kernel
def at_once(c: tk.Out, a: tk.In, b: tk.In, M: tk.Const, N: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    c.store((tk.load(a, (i, 0), (M, 64)) @ tk.load(b, (0, j), (64, N))).astype(c.dtype))


def explained(kernel, *constants, dtype=tk.float16, shape=(128, 128), warps=4, target="sm_90a", turned=False):
    a, b = api.meta((1024, 1024), dtype), api.meta((1024, 1024), dtype)
    c = api.meta((1024, 1024), tk.int32 if dtype == tk.int8 else tk.float32)
    op = kernel(c.partition(shape), a, b.T if turned else b, *shape, *constants).num_warps(warps)
    (found,) = op.explain(target).products
    return found, op.explain(target)


def test_a_product_by_warpgroups_is_preferred():
    found, whole = explained(product, 64, "ieee")
    assert found.instruction == "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16"
    assert (found.a, found.b, found.count, found.refusals) == ("float16 128x64", "float16 64x128", 1, ())
    assert "HGMMA.64x128x16.F32" in whole.compiled.sass
    assert found.instruction in str(whole)


REFUSED = [
    ("sm_80 does not have it", product, (64, "ieee"), {"target": "sm_80"}, "mma.sync"),
    ("it has no accumulator", at_once, (), {"shape": (64, 64)}, "mma.sync"),
    ("b has rows of 64 bytes in shared memory", product, (64, "ieee"), {"shape": (128, 32)}, "mma.sync"),
    ("a has rows of 64 bytes in shared memory", product, (32, "ieee"), {}, "mma.sync"),
    ("a group of 4 takes 64 rows", product, (64, "ieee"), {"shape": (32, 128)}, "mma.sync"),
    ("2 warps cannot share a result", product, (64, "ieee"), {"warps": 2}, "mma.sync"),
    ("does not take float32 and float32", product, (32, "ieee"), {"dtype": tk.float32}, "fma"),
    ("b of float32 needs its k contiguous", product, (32, "tf32"), {"dtype": tk.float32}, "mma.sync"),
    ("a is in registers, where it takes float16 and bfloat16, not int8", doubled, (128, "a"),
     {"dtype": tk.int8, "turned": True}, "mma.sync"),
    ("b is in registers, from where float16 and bfloat16 are put", doubled, (128, "b"),
     {"dtype": tk.int8, "turned": True}, "mma.sync"),
    ("a is in registers, where it takes 64 rows of its own", doubled, (64, "a"), {"shape": (64, 256), "warps": 8}, "mma.sync"),
    ("b is in registers, and takes more shared memory", doubled, (128, "b"), {"shape": (64, 256), "warps": 8}, "mma.sync"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "kernel", "constants", "options", "instead"), REFUSED, ids=[row[0] for row in REFUSED])
def test_why_a_product_is_not_by_warpgroups(reason, kernel, constants, options, instead):
    found, whole = explained(kernel, *constants, **options)
    assert reason in dict(found.refusals)["wgmma"]
    assert found.instruction.startswith(instead)
    assert "GMMA" not in whole.compiled.sass
    assert ("MMA." in whole.compiled.sass) == (instead == "mma.sync")


@pytest.mark.parametrize(
    ("kernel", "constants", "options"),
    [
        (product, (32, "tf32"), {"dtype": tk.float32, "turned": True}),
        (product, (128, "fast"), {"dtype": tk.float8_e4m3fn, "turned": True}),
        (doubled, (64, "a"), {"shape": (128, 256), "warps": 8}),
        (doubled, (64, "b"), {"shape": (64, 256), "warps": 8}),
        (product, (64, "ieee"), {"shape": (128, 64)}),
    ],
    ids=["tf32, k contiguous", "8-bit floats, k contiguous", "a of 64 rows a group", "b that has room", "rows of 128 bytes"],
)
def test_what_mends_it(kernel, constants, options):
    """The other side of the reasons above."""
    found, whole = explained(kernel, *constants, **options)
    assert found.instruction.startswith("wgmma")
    assert "GMMA" in whole.compiled.sass


def test_full_precision_says_what_would_be_faster():
    found, _ = explained(product, 32, "ieee", dtype=tk.float32)
    assert dict(found.refusals)["mma.sync"] == 'it does not take float32; precision="tf32" rounds them to 10 bits for it'
    assert found.instruction == "fma.rn.f32"
