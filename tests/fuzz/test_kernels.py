"""Random kernels, against an evaluation of our own, on the device under test; on a GPU on the CPU device, too."""

from __future__ import annotations

import os

import grammar
import pytest
import running
import shrinking
import through_ir
from draws import Draw
from values import Value

import tilekit as tk
from tilekit.lang.registry import OPS

BUDGET = 0.3


def devices(device):
    """Those that must agree."""
    return [tk.Device("cpu"), device] if device.kind == "cuda" else [device]


def shown(program, problem):
    """A problem, and the kernel that has it."""
    inputs = ", ".join(
        f"{t.name}: {t.role} {t.array.dtype.name} {t.array.shape} {t.layout} {t.tile or ''}" for t in program.tensors
    )
    launched = f"grid {program.grid}, num_warps {program.num_warps}, mapped {program.mapped}, scalars {program.scalars}"
    return f"{problem.strip()}\n{inputs}\n{launched}\n{program.source()}"


def check(seed, mode, fails, cases):
    """Fail with the shortest kernel that does, if that of the seed does."""
    program = grammar.generate(seed, mode)
    if fails(program) is None:
        return
    draw = Draw((seed, mode))
    grammar.generate(seed, mode, draw)
    program, _ = shrinking.shortest(draw.choices, lambda d: grammar.generate(seed, mode, d), fails)
    program, said = shrinking.pruned(program, fails)
    pytest.fail(
        cases.report(seed, shown(program, said or fails(grammar.generate(seed, mode)) or "it failed once, and not again"))
    )


@pytest.mark.parametrize("mode", ["exact", "wild"])
def test_kernels(device, cases, mode, record_property):
    """Small whole numbers, whose results are exact; and any numbers, within the bounds that the documentation states."""
    statistics, wanted = running.Checked(), devices(device)
    for seed in cases:
        check(seed, mode, lambda p: running.problem(p, wanted, statistics), cases)
    everything = statistics.sure + statistics.off + statistics.unknown
    record_property("compared", f"{statistics.sure} exactly, {statistics.off} within bounds, {statistics.unknown} not at all")
    assert statistics.programs <= 20 or statistics.sure > everything * 0.5


@pytest.mark.parametrize(
    ("mode", "by"), [("exact", through_ir.rewritten), ("wild", through_ir.rewritten), ("exact", through_ir.ringless)]
)
def test_kernels_by_way_of_the_ir(cases, mode, by):
    """What the passes make of them is as right, and well formed behind each."""
    with by():
        for seed in cases:
            check(seed, mode, lambda p: running.problem(p, [tk.Device("cpu")]), cases)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_kernels_compile(request, cases, target):
    """What the grammar makes is a kernel: no error, no crash of a compiler."""
    if request.config.getoption("--device") == "cuda":
        pytest.skip("test_kernels compiles what it runs")
    for seed in cases:
        check(seed, "exact", lambda p: running.compile_problem(p, target), cases)


def test_every_operation_has_a_generator():
    grammar.generate(0, "exact")  # enters the rows
    missing = set(OPS) - set(grammar.ROWS) - grammar.EXCLUDED
    assert not missing, f"the grammar of tests/fuzz has no row for {', '.join(sorted(missing))}"
    assert not set(grammar.ROWS) - set(OPS)


def test_every_operation_comes_up():
    """In a thousand kernels, of seeds that stay."""
    texts = "\n".join(grammar.generate(seed, "exact").source() for seed in range(1000))
    rare = {op for op in OPS if f"tk.{op}(" not in texts} - grammar.EXCLUDED
    assert not rare, f"a thousand random kernels have no {', '.join(sorted(rare))}"


def test_a_wrong_result_is_shown_with_a_short_kernel(cpu, monkeypatch):
    """An evaluation that is off by one for `tk.popcount` finds a kernel of a few lines."""
    import semantics

    certain = semantics.certain

    def spoilt(function, *values):
        made = certain(function, *values)
        return Value(made.array + 1, made.error) if function.__name__ == "count" and made.array.dtype.name == "int32" else made

    monkeypatch.setattr("rows_elementwise.certain", spoilt)

    def fails(program):
        return running.problem(program, [cpu])

    seed = next(s for s in range(1000) if fails(grammar.generate(s, "exact")))
    draw = Draw((seed, "exact"))
    grammar.generate(seed, "exact", draw)
    program, said = shrinking.shortest(draw.choices, lambda d: grammar.generate(seed, "exact", d), fails)
    program, said = shrinking.pruned(program, fails)
    assert said is not None and "differs" in said
    lines = program.source().partition("@tk.kernel")[2].strip().splitlines()
    assert len(lines) <= 6, program.source()
    assert "popcount" in program.source() or "clz" in program.source()
    assert os.linesep.join(lines)
