"""Random loops with several products a turn: as they are written, and on a CPU device as passes leave them, too."""

from __future__ import annotations

import shrinking
import through_ir
import turns

BUDGET = 0.5


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
            shrinking.fail("turns", turns.turns, seed, fails, cases)


def test_a_loop_is_as_its_text_says(cpu):
    made = turns.Turns("count", 2, 2, [(0, 0), (1, 1)], [(0, 0, "mma", 0), (1, 1, "takes", 0)], 1, "", (1, True))
    assert turns.problem(made, cpu) is None
    assert made.source().count("tk.load(") == 4
