"""Random control flow: what a device makes of it, and numba of the function that it compiles for a GPU."""

from __future__ import annotations

import flow
import pytest
import shrinking

BUDGET = 2.0


def test_control_flow(device, cases):
    def fails(made):
        try:
            return flow.problem(made, device) or flow.problem_for_numba(made)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    for seed in cases:
        if fails(flow.flow(seed)):
            shrinking.fail("flow", flow.flow, seed, fails, cases)


@pytest.mark.parametrize(
    "lines",
    [
        # Both ways of a branch leave.
        ["for k in range(n):", "    if a < 2:", "        break", "    else:", "        a = 1", "        continue", "    c = 9"],
        # What is assigned where the loop ends is assigned behind that, too.
        ["while True:", "    b += 1", "    if b > n:", "        a = 5", "        break", "    a = a + b"],
        ["while (b := b + 1) < 4:", "    a = a + b"],
    ],
)
def test_loops_that_were_wrong(device, lines):
    made = flow.Flow(["a, b, c, d = n, 1, 2, 3", *lines])
    assert flow.problem(made, device) is None
    assert flow.problem_for_numba(made) is None
