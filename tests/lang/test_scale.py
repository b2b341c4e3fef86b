"""Parity at scale: a sample of all cases on a CPU device, as many as `TILEKIT_PARITY_CASES` says anywhere.

On a GPU their kernels are compiled first, by `TILEKIT_TEST_JOBS` processes (as many as there are cores by default), into a disk
cache of the run's own. `TILEKIT_PARITY_SEED` gives other inputs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import scale

from tilekit.lang.registry import OPS

COUNT = int(os.environ.get("TILEKIT_PARITY_CASES", "300"))
SEED = int(os.environ.get("TILEKIT_PARITY_SEED", "0"))
CHOSEN = scale.selected(COUNT)
BY_OP = {op: [case for case in CHOSEN if case.op == op] for op in dict.fromkeys(case.op for case in CHOSEN)}

# Operations that leave nothing in memory that could be compared: test_parity_debug.py looks at them.
ELSEWHERE = {"print", "printf", "assert_", "static_assert", "static_print"}


@pytest.fixture(scope="module")
def _compiled_before(request, tmp_path_factory):
    """On a GPU: all kernels in the disk cache."""
    if request.config.getoption("--device") != "cuda":
        yield
        return
    from tilekit._runtime.device import Device

    folder = str(tmp_path_factory.mktemp("kernels"))
    jobs = int(os.environ.get("TILEKIT_TEST_JOBS", "0")) or os.cpu_count() or 1
    before = os.environ["TILEKIT_CACHE_DIR"]
    os.environ["TILEKIT_CACHE_DIR"] = folder
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TILEKIT_DEVICE": "cpu", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, scale.__file__, Device("cuda").target]
    workers = [
        subprocess.Popen([*command, *map(str, (part, jobs, COUNT, SEED))], env=environment, stdout=subprocess.PIPE, text=True)
        for part in range(jobs)
    ]
    failures = [line for worker in workers for line in worker.communicate()[0].splitlines() if line]
    assert not failures, "\n".join(failures[:20])
    assert all(worker.returncode == 0 for worker in workers)
    yield
    os.environ["TILEKIT_CACHE_DIR"] = before


@pytest.mark.usefixtures("_compiled_before")
@pytest.mark.parametrize("op", BY_OP)
def test_parity_at_scale(op, device):
    wrong = [problem for case in BY_OP[op] if (problem := scale.failure(case, SEED))]
    shown = "\n".join(wrong[:10])
    assert not wrong, f"{len(wrong)} of {len(BY_OP[op])} cases, seed {SEED}:\n{shown}"


def test_there_are_5000_cases_and_no_two_are_the_same():
    everything = scale.everything()
    assert len(everything) >= 5000
    assert len({(str(case), case.body, case.scalars) for case in everything}) == len(everything)


def test_every_operation_has_cases():
    bodies = " ".join({case.body for case in scale.everything()})
    without = {op for op in OPS if not re.search(rf"\btk\.{op}\(", bodies)} - ELSEWHERE
    assert not without, f"tests/lang/cases has nothing of {', '.join(sorted(without))}"
