"""The shortest program that still fails: first by shorter choices, then by dropping statements of the tree."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from draws import Draw
from programs import Let, Program, Statement, Var, walk

T = TypeVar("T")


def kind(problem: str) -> str:
    """What sort of failure a problem is: a shorter program must fail in the same way."""
    first = problem.strip().partition("\n")[0]
    first = re.sub(r"/\S+\.py", "", first)
    return "differs" if " differs at " in first else re.sub(r"[\d.]+|'[^']*'|\b[a-z]\d+\b", "", first)[:50]


def shortest(choices: Sequence[int], make: Callable[[Draw], T], fails: Callable[[T], str | None], seconds: float = 20.0) -> Any:
    """The simplest case that fails as the first does, and what is wrong with it.

    Args:
        choices: of a case that fails.
        make: the case of choices; it may raise for those that make none.
        fails: what is wrong with a case, or None.
        seconds: for the search.
    """
    end = time.monotonic() + seconds
    draw = Draw(replayed=choices)
    best = make(draw)
    said = fails(best)
    if said is None:
        return best, None
    wanted, current, spans = kind(said), draw.choices, draw.spans

    def attempt(shorter: list[int]) -> bool:
        nonlocal best, said, current, spans
        if time.monotonic() > end or shorter == current:
            return False
        again = Draw(replayed=shorter)
        try:
            made = make(again)
            found = fails(made)
        except Exception:  # these choices make no case
            return False
        if found is None or kind(found) != wanted or (len(again.choices), again.choices) >= (len(current), current):
            return False
        best, said, current, spans = made, found, again.choices, again.spans
        return True

    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for start, stop in sorted(spans, key=lambda s: s[0] - s[1]):
            # A part goes as a whole, with the choice before it, which said that there is one more.
            if stop <= len(current) and (
                attempt(current[: max(0, start - 1)] + current[stop:]) or attempt(current[:start] + current[stop:])
            ):
                progress = True
                break
        else:
            for at in range(len(current)):
                for lower in (0, current[at] // 2 if at < len(current) else 0, current[at] - 1 if at < len(current) else 0):
                    if at < len(current) and 0 <= lower < current[at] and attempt([*current[:at], lower, *current[at + 1 :]]):
                        progress = True
                        break
    return best, said


def fail(name: str, make: Callable[..., Any], seed: int, fails: Callable[[Any], str | None], cases: Any) -> None:
    """Have a test fail with the simplest case that fails as that of a seed does.

    Args:
        name: of the generator, whose choices are drawn from it and the seed.
        make: the case of a seed, by these choices.
        seed: of the case that fails.
        fails: what is wrong with a case, or None.
        cases: the test's, which say how it is run again.
    """
    draw = Draw((name, seed))
    make(seed, draw)
    made, said = shortest(draw.choices, lambda shorter: make(seed, shorter), fails, seconds=40)
    pytest.fail(cases.report(seed, f"{said}\n{made.source()}"))


def pruned(program: Program, fails: Callable[[Program], str | None], seconds: float = 20.0) -> tuple[Program, str | None]:
    """The program without the statements, outputs and tensors that the failure does not need."""
    end = time.monotonic() + seconds
    said = fails(program)
    if said is None:
        return program, None
    wanted = kind(said)

    def still() -> bool:
        nonlocal said
        try:
            found = fails(program)
        except Exception:  # the tree no longer holds together
            return False
        if found is None or kind(found) != wanted:
            return False
        said = found
        return True

    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for body in _bodies(program.body):
            for at in reversed(range(len(body))):
                if time.monotonic() > end:
                    break
                statement = body.pop(at)
                undo = _substituted(program, statement)
                if undo is not None and still():
                    progress = True
                    continue
                for changed, reads in undo or []:
                    changed.reads = reads
                body.insert(at, statement)
        for tensor in list(program.tensors[1:]):
            used = any(re.search(rf"\b{tensor.name}\b", line) for line in program.source().splitlines() if "def k(" not in line)
            if not used:
                program = dataclasses.replace(program, tensors=[t for t in program.tensors if t is not tensor])
                progress = still() or progress
    return program, said


def _bodies(body: list[Statement]) -> list[list[Statement]]:
    return [body, *(inner for statement in walk(body) for inner in statement.bodies())]


def _substituted(program: Program, gone: Statement) -> list[tuple[Statement, tuple[Var, ...]]] | None:
    """Have other tiles read in the place of those that `gone` writes; what was changed, or None if there are no others."""
    lost, undo = {v.name: v for v in gone.writes}, []
    remaining = list(walk(program.body))
    for statement in remaining:
        if not any(v.name in lost for v in statement.reads):
            continue
        if not isinstance(statement, Let):
            break
        made = []
        for var in statement.reads:
            there = [w for s in remaining[: remaining.index(statement)] for w in s.writes if w.name not in lost]
            same = [w for w in there if (w.dtype, w.shape) == (var.dtype, var.shape)]
            if var.name in lost and not same:
                break
            made.append(same[0] if var.name in lost else var)
        else:
            undo.append((statement, statement.reads))
            statement.reads = tuple(made)
            continue
        break
    else:
        return undo
    for changed, reads in undo:
        changed.reads = reads
    return None
