"""Random and wrong arguments to every public function and method end in a result or in an error of tilekit's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import argument_pool
import argument_runs
import numpy as np
import pytest
import seeds
from argument_calls import REFUSED

import tilekit as tk
from tilekit import memory

RUNS = Path(argument_runs.__file__)
pytestmark = pytest.mark.filterwarnings("ignore::tilekit.UnusedOpWarning")


@pytest.fixture(autouse=True, scope="module")
def ops_that_nobody_runs():
    """Collected here: elsewhere their warnings are errors."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def test_every_public_name_is_called():
    """What is added is covered without a word here."""
    import tilekit as tk
    from tilekit import api, kernels

    names = argument_runs.targets()
    for prefix, module in (("tk", tk), ("api", api), ("kernels", kernels)):
        public = {f"{prefix}.{name}" for name in module.__all__ if callable(getattr(module, name))}
        made = {f"{prefix}.{name}" for name in module.__all__ if "Made by" in (getattr(module, name).__doc__ or "")}
        assert public - made - argument_runs.SKIPPED <= set(names)
    assert {"<tensor(float32)>.reshape", "<op>.then", "<future>.result", "<graph>.bind"} <= set(names)


@pytest.mark.parametrize(
    ("error", "wrong"),
    [(KeyError("x"), "raw KeyError"), (AssertionError(), "raw AssertionError"), (MemoryError(), "MemoryError is no error")],
)
def test_a_raw_error_is_told(error, wrong):
    assert str(argument_runs.judged(error)).startswith(wrong)


def test_an_error_from_the_inside_is_told():
    from tilekit._tensor.shapes import contiguous_strides

    with pytest.raises(TypeError) as caught:
        contiguous_strides(5)
    assert argument_runs.judged(caught.value) == "TypeError from the inside"


def test_no_number_is_taken_for_a_cuda_stream():
    assert argument_runs.safe(("<op>.sync_on", ["7"], {"x": "None"})) == ("<op>.sync_on", ["stream"], {"x": "None"})
    assert argument_runs.safe(("api.zeros", ["7"], {})) == ("api.zeros", ["7"], {})


@pytest.fixture
def state(device):
    """The device as it was: calls set limits and policies."""
    before, policy = tk.default_device(), device.policy
    yield argument_runs.State(device.kind)
    tk.set_default_device(before)
    device.policy = policy
    for each in (device, argument_pool.other_device())[: 2 if device.kind == "cpu" else 1]:
        memory.use_allocator(None, each)
        memory.set_limit(None, each)


def test_everything_that_takes_an_argument_has_a_call():
    """Else nothing comes further in it than its first check."""
    needed = {name for name in argument_runs.targets() if argument_runs.signature(name)}
    tile_operations = set(filter(argument_runs.is_tile_operation, needed))
    assert needed - tile_operations == set(argument_runs.CALLS)


def test_tile_operations_refuse_every_call_on_the_host(state):
    """In one place, so that they need no calls of their own."""
    for name in filter(argument_runs.is_tile_operation, argument_runs.targets()):
        with pytest.raises(TypeError, match="is a tile operation: it works inside a function"):
            raise argument_runs.raised((name, [], {})) or AssertionError(name)


@pytest.mark.parametrize("name", list(argument_runs.CALLS))
def test_calls_that_shall_work_do(device, state, name):
    """Else what is wrong with one of their arguments is not come to."""
    case = argument_runs.replaced(name, {})
    error = argument_runs.raised(case if device.kind == "cpu" else argument_runs.safe(case))
    if name in REFUSED and device.kind == "cpu":  # GPUs launch what CPU devices refuse
        assert error is not None
    if name in REFUSED or device.kind == "cuda":  # which has no memory where the host's arrays are
        assert error is None or argument_runs.judged(error) is None
    else:
        assert error is None


@pytest.mark.parametrize(
    "case",
    [
        ("kernels.topk", ["tensor(float32)", "2"], {"largest": "read-only"}),
        ("kernels.attention", ["tensor (1, 2, 16, 16)"] * 3, {"return_lse": "[]"}),
        ("kernels.gemm", ["tensor (4, 4)", "tensor (4, 4)"], {"alpha": repr(10**400)}),
        ("kernels.gemm", ["tensor (4, 4)", "tensor (4, 4)"], {"splits": "record"}),
        ("kernels.l2_norm", ["tensor(float32)"], {"eps": repr(10**400)}),
        ("api.linspace", ["0.0", "2.0", repr(10**400)], {}),
        ("api.linspace", ["0.0", "2.0", "4"], {"endpoint": "np.zeros(4, bool)"}),
        ("interop.as_tensor", ["dlpack device lies"], {}),
        ("interop.from_pointer", [repr(2**64), "(2, 4)", "dtype"], {}),
        ("interop.from_pointer", ["4", repr(2**63), "dtype"], {}),
        ("<tensor(float32)>.__dlpack__", [], {"max_version": "()"}),
        ("<tensor(float32)>.__dlpack__", [], {"copy": "np.zeros(4, bool)"}),
        ("<device>.event", ["np.zeros(4, bool)"], {}),
        ("tk.Space", [], {"tile": "(2, 4)", "where": repr(np.int64)}),
        ("tk.do_bench", [], {"op": "partial", "seconds": "0"}),
        ("tk.host_fn", ["Tensor", "dlpack device lies", "interface of data", "tensor(int16)"], {}),
    ],
    ids=argument_runs.shown,
)
def test_what_was_found_once(state, case):
    assert argument_runs.problem_of(case, state) is None
    with pytest.raises((TypeError, ValueError)):
        raise argument_runs.raised(case) or AssertionError("it works")


def test_nothing_side_by_side(state):
    assert argument_runs.problem_of(("tk.zip", [], {"parallel": "True"}), state) is None


def test_arguments(device, cases, tmp_path):
    """In a process of its own: a case may crash it."""
    first, step, count, seconds = cases.block()
    told = tmp_path / "told"
    with told.open("wb") as file:
        command = [sys.executable, str(RUNS), *map(str, (first, step, count, seconds, file.fileno())), device.kind]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TILEKIT_DEVICE": device.kind}
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment, pass_fds=[file.fileno()]
        )
    lines = told.read_text(errors="replace").splitlines()
    cases.ran = sum(line.startswith("seed ") for line in lines)
    wrong = [at for at, line in enumerate(lines) if line.startswith("wrong ")]
    last = next((int(line.split()[1]) for line in reversed(lines) if line.startswith("seed ")), first)
    if wrong:
        seed = int(lines[wrong[0]].split()[1].rstrip(":"))
        raise AssertionError(cases.report(seed, "\n".join(lines[wrong[0] : wrong[0] + 40]) + f"\n({len(wrong)} such cases)"))
    assert ended.returncode == 0, cases.report(last, f"the process ended with {ended.returncode}\n{ended.stderr[-6000:]}")
    assert cases.ran or seeds.count() is not None
