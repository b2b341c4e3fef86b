"""Code for several CPUs: vectors of their width in what runs long, and the same results where it runs here."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernels_on_cpu import product, softmax
from machines import MACHINES

import tilekit as tk
from tilekit import api
from tilekit.compiler.cpu.explain import explain

F = tk.float32


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


def code_of(op, name):
    plan = op._plan("explain").specialisation
    op._consumed = True
    return explain(plan.bound, plan.facts, None, MACHINES[name]).assembly


REGISTERS = {"avx512": r"%zmm\d", "avx2": r"%ymm\d", "baseline": r"%xmm\d", "neon": r"\bv\d+\.4s"}
FUSED = {"avx512": r"vfmadd\w+ps.*zmm", "avx2": r"vfmadd\w+ps.*ymm", "neon": r"fmla\s+v\d+\.4s"}


@pytest.mark.parametrize("name", MACHINES)
def test_vectors_are_as_wide_as_the_machine_s(name):
    x = api.meta((4096,), F)
    assert re.search(REGISTERS[name], code_of(saxpy(api.meta((4096,), F).partition(1024), 2.0, x), name))
    assert re.search(
        REGISTERS[name], code_of(softmax(api.meta((64, 1024), F).partition((1, 1024)), api.meta((64, 1024), F)), name)
    )


@pytest.mark.parametrize("name", MACHINES)
def test_products_keep_their_sums_in_registers(name):
    """The loop over K has a multiply-add for each vector of the result, and stores none."""
    a, b = api.meta((64, 64), F), api.meta((64, 128), F)
    text = code_of(product(api.meta((64, 128), F).partition((32, 64)), a, b), name)
    if name not in FUSED:
        assert not re.search("vfmadd|fmla", text)  # it has none
        assert "mulps" in text
        return
    blocks = re.split(r"^\.?\w+:.*$|^\s+(?:j\w+|b\.\w+|cbn?z)\s.*$", text, flags=re.MULTILINE)
    inner = max(blocks, key=lambda block: len(re.findall(FUSED[name], block)))
    rows = {"avx512": 16, "avx2": 8, "neon": 8}[name]
    assert len(re.findall(FUSED[name], inner)) >= rows
    assert not re.search(r"vmovup\w\s+%[yz]mm\d+,|\bst[rp]\s+q", inner)


def test_each_machine_s_code_gives_the_same(machine):
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(5000, dtype=np.float32) for _ in range(2))
    done = saxpy(api.from_host(y).sync().partition(1024), 2.0, api.from_host(x).sync()).first().unpartition().to_host().sync()
    np.testing.assert_allclose(done, 2 * x.astype(np.float64) + y, rtol=1e-6, atol=1e-6)
    rows = rng.standard_normal((7, 900), dtype=np.float32)
    done = softmax(api.zeros(rows.shape).partition((1, 1024)), api.from_host(rows)).first().unpartition().to_host().sync()
    e = np.exp(rows.astype(np.float64) - rows.max(1, keepdims=True))
    np.testing.assert_allclose(done, e / e.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64, tk.int8], ids=str)
def test_each_machine_multiplies(machine, dtype):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((64, 64), (64, 128)))
    out = tk.int32 if dtype == tk.int8 else dtype
    done = product(api.zeros((64, 128), out).partition((32, 64)), api.from_host(a), api.from_host(b)).first().unpartition()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(done.to_host().sync().astype(np.float64), exact.astype(out).astype(np.float64))


@tk.kernel
def store_one(y: tk.InOut, x: tk.In, lane: tk.Const):
    narrow = (tk.load_tile_like(x, y) // 2).astype(y.dtype)
    tk.store(y, (tk.bid(0),), narrow, mask=tk.arange(narrow.shape[0]) == lane)


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.int8, tk.uint16, tk.int32], ids=str)
@pytest.mark.parametrize("wide", [tk.int32, tk.int64, tk.float32], ids=str)
@pytest.mark.parametrize("width", [2, 4, 8, 16, 32])
def test_a_store_of_one_element_leaves_its_neighbours(machine, dtype, wide, width):
    """The mask is known to the compiler, and what is stored is narrower than what was computed."""
    before = (np.arange(2 * width) % 50).astype(dtype)
    for lane in (0, width - 1):
        after = before.copy()
        after[[lane, width + lane]] = 7
        y = api.from_host(before).sync()
        store_one(y.partition(width), api.full(2 * width, 14, wide), lane).sync()
        np.testing.assert_array_equal(y.to_host().sync(), after)
