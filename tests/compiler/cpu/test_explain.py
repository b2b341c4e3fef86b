"""What `op.explain("cpu")` says of a kernel: its loops, the tiles that are kept and why, its products."""

from __future__ import annotations

import pytest
import reasons
from kernels_on_cpu import product, softmax
from machines import MACHINES

import tilekit as tk
from tilekit import api, kernels
from tilekit.compiler.cpu import build
from tilekit.compiler.cpu.explain import CpuProduct, explain
from tilekit.compiler.ir.remarks import remark


@tk.kernel
def stopped(y: tk.InOut):
    breakpoint()
    y.store(y.load())


def of_rows(columns):
    x, y = api.meta((64, columns)), api.meta((64, columns))
    return softmax(y.partition((1, 1024)), x)


def explained(op, name="avx512"):
    chosen = op._plan("explain").specialisation
    op._consumed = True
    return explain(chosen.bound, chosen.facts, None, MACHINES[name])


def test_each_loop_is_told_once_with_its_edges():
    """Where a tile may hang over, there are two loops in the code, and one in the table, with the tensors that it is for."""
    told = [(loop.what, loop.tile_shape, loop.lanes, loop.edge) for loop in explained(of_rows(1000)).loops]
    row = (1, 1024)
    assert told == [("max", row, 32, ("x",)), ("exp", row, 32, ("x",)), ("sum", row, 32, ()), ("store", row, 32, ("y",))]
    assert [loop.edge for loop in explained(of_rows(2048)).loops] == [()] * 4
    assert {loop.lanes for loop in explained(of_rows(1000), "baseline").loops} == {8}


def test_a_tile_that_two_need_is_kept():
    explanation = explained(of_rows(1000))
    (tile,) = explanation.kept
    assert (tile.dtype, tile.tile_shape, tile.reason) == ("float32", (1, 1024), "it is needed more than once")
    assert explanation.scratch_bytes >= 4096
    source = softmax._function.__code__.co_firstlineno
    assert tile.line == source + 3
    assert {loop.line for loop in explanation.loops} == {source + 3, source + 4}


def test_a_product_tells_its_extents():
    a, b, y = (api.meta(shape, tk.float16) for shape in ((64, 64), (64, 128), (64, 128)))
    (told,) = explained(product(y.partition((32, 64)), a, b)).products
    assert told == CpuProduct(line=told.line, extents=(32, 64, 64), dtype="float32", registers=told.registers)


def test_all_of_it_is_text(cpu):
    """For the CPU at hand; the op is not used up."""
    op = of_rows(1000)
    explanation = op.explain("cpu")
    for words in ("kernel softmax for the CPU", "loop of", "kept tile", "it is needed more than once"):
        assert words in str(explanation)
    assert "t.1: float32[1, 1] = tk.max(t, 1, keepdims=True)" in explanation.ir
    assert "define" in explanation.llvm
    assert "run:" in explanation.assembly
    assert op.explain("cpu") == explanation


def test_it_says_why_a_kernel_is_interpreted():
    explanation = explained(stopped(api.meta(8).partition(4)))
    assert explanation.interpreted.startswith("breakpoint(), in stopped:")
    assert str(explanation).endswith(f"interpreted, operation by operation: {explanation.interpreted}")
    assert not (explanation.loops or explanation.kept or explanation.llvm)


def test_what_a_pass_says_is_shown(monkeypatch):
    def count_operations(kernel):
        remark(kernel.operations[0].location, "operations", f"{len(kernel.operations)} of them", done=None)

    monkeypatch.setattr(build, "_PASSES", (*build._PASSES, count_operations, count_operations))
    explanation = explained(of_rows(1000))
    (seen,) = explanation.remarks
    assert (seen.filename, seen.done) == (explanation.filename, None)
    assert f"{seen.line}:{seen.column + 1}  operations      -     {seen.text}" in str(explanation)


# Reasons to keep a tile, each with a kernel in which one is kept for it, and the same without just that.


@tk.kernel
def needed_twice(y: tk.Out, z: tk.In, twice: tk.Const):
    t = tk.exp(tk.load_tile_like(z, y))
    y.store(t / tk.max(t) if twice else t)


@tk.kernel
def needed_in_turns(y: tk.Out, z: tk.In, outside: tk.Const):
    t = tk.exp(tk.load_tile_like(z, y))
    total = tk.zeros((16, 16), tk.float32)
    for i in range(y.shape[0]):
        total += t * i if outside else tk.exp(tk.load_tile_like(z, y)) * i
    y.store(total)


@tk.kernel
def written_in_turns(y: tk.InOut, z: tk.Out, writes: tk.Const):
    t = y.load()
    for i in range(y.shape[0]):
        if writes:
            y.store(tk.full((16, 16), i, tk.float32))
        else:
            tk.printf("%d", i)
    z.store(t)


@tk.kernel
def written_later(y: tk.InOut, z: tk.Out, late: tk.Const):
    t = y.load()
    if not late:
        z.store(t)
    y.store(tk.zeros((16, 16), tk.float32))
    if late:
        z.store(t)


@tk.kernel
def multiplied(y: tk.Out, z: tk.In, product: tk.Const):
    t = tk.load_tile_like(z, y)
    y.store(t @ t if product else t * t)


@tk.kernel
def cut_anew(y: tk.Out, z: tk.In, anew: tk.Const):
    t = tk.load_tile_like(z, y) + 1
    y.store(t.reshape((8, 32)).reshape((16, 16)) if anew else t.reshape((1, 16, 16)).reshape((16, 16)))


@tk.kernel
def handed_on(y: tk.Out, z: tk.In, swap: tk.Const):
    a, b = tk.load_tile_like(z, y), tk.zeros((16, 16), tk.float32)
    for _ in range(y.shape[0]):
        a, b = (b + 1, a + 1) if swap else (a + 1, b + 1)
    y.store(a + b)


PAIRS = {
    "it is needed more than once": needed_twice,
    "each turn needs it": needed_in_turns,
    "what follows may write what it is read from": written_in_turns,
    "it is read before the store": written_later,
    "a product reads it again and again": multiplied,
    "the operation needs all of it": cut_anew,
    "a turn hands it on while another value takes its buffer": handed_on,
}


@pytest.mark.parametrize("reason", PAIRS)
def test_a_tile_is_kept_for_its_reason_and_not_without(reason):
    y = api.meta((16, 16))
    kernel = PAIRS[reason]
    written = y.partition((16, 16)) if kernel in (written_in_turns, written_later) else y
    found = [{tile.reason for tile in explained(kernel(y.partition((16, 16)), written, flag)).kept} for flag in (True, False)]
    assert [reason in each for each in found] == [True, False]


def test_every_reason_to_keep_a_tile_has_its_pair():
    assert reasons.kept() == set(PAIRS)


def test_kernels_of_tilekits_own_are_explained_as_they_run(cpu):
    """Their tiles are chosen by the device: more than the warps of a GPU's block would take."""
    x, weight = api.zeros((64, 256)).sync(), api.ones(256).sync()
    op = kernels.layer_norm(x, weight, weight)
    op.consumed()
    (launch,) = op.parts()
    assert launch.explain("cpu").loops
