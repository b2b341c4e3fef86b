"""What `op.explain("cpu")` says of a kernel: its loops, the tiles that are kept and why, its products."""

from __future__ import annotations

from kernels_on_cpu import product, softmax
from machines import MACHINES

import tilekit as tk
from tilekit import api
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
