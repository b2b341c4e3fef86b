"""Random loops with several products a turn: as they are written, and on a CPU device as passes leave them, too."""

from __future__ import annotations

import pytest
import shrinking
import through_ir
import turns
from draws import Draw

BUDGET = 0.5


def fail(seed, fails, cases):
    """With the simplest loop that fails as that of the seed does."""
    draw = Draw(("turns", seed))
    turns.turns(seed, draw)
    made, said = shrinking.shortest(draw.choices, lambda d: turns.turns(seed, d), fails, seconds=40)
    pytest.fail(cases.report(seed, f"{said}\n{made.source()}"))


def test_turns(device, cases):
    def fails(made):
        if problem := turns.problem(made, device):
            return problem
        if device.kind == "cpu":
            with through_ir.rewritten():
                return turns.problem(made, device)
        return None

    for seed in cases:
        if fails(turns.turns(seed)):
            fail(seed, fails, cases)


def test_a_loop_is_as_its_text_says(cpu):
    made = turns.Turns("count", 2, 2, [(0, 0), (1, 1)], [(0, 0, "mma", 0), (1, 1, "takes", 0)], 1, "", (1, True))
    assert turns.problem(made, cpu) is None
    assert made.source().count("tk.load(") == 4
