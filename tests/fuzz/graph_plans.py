"""Random graphs of ops, drawn from a seed before anything runs: who submits what, in which order, and what must come of it.

A plan is JSON. Its steps are numbered in the order of submission; each belongs to an actor (a thread, or an event loop of
asyncio's or trio's with one task a step), which submits it when its turn has come. `outcomes` has what each step must give.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
from graph_terms import VIEWS, Boom, Model, N, Term, may_fail, size, splits, touches

Plan = dict[str, Any]

DEVICES, TENSORS, POLICIES, STREAMS = 3, 4, 5, 3
PURE, QUIET, WHOLE, RECORDED = "pure", "quiet", "whole", "recorded"  # what may be asked of an expression
_TERMS = (
    ["tensor"] * 6
    + ["lazy"] * 2
    + ["fresh"] * 3
    + ["mix"] * 8
    + ["then_mix", "copy"] * 3
    + ["both", "dup", "fill", "part", "same", "placed", "bring", "pair"] * 2
    + ["memo", "roundtrip", "write", "steps", "host_function", "fail", "mend"]
)
_THREADED = ["sync", "sync_on", "future", "future", "schedule", "recorded", "unused", "twice", "fault", "closed", "join"]
_TASKED = ["await", "await", "task", "before", "after", "timeout", "idle", "future", "join", "sync"]


class Drawing:
    """Draws one plan."""

    def __init__(self, seed: int, kinds: list[str]) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.plan: Plan = {
            "seed": seed,
            "kinds": kinds,
            "homes": [0, *(pick(range(len(kinds))) for _ in range(TENSORS - 1))],
            "actors": [pick(["thread", "thread", "asyncio", "trio"]) for _ in range(self.random.randint(1, 4))],
            "shared": [],
            "shared_as": [],
            "steps": [],
            "stepped": None,
        }
        if self.plan["actors"] == ["thread"] and set(kinds) == {"cpu"} and pick([True, False]):
            self.plan["stepped"] = seed
        for _ in range(self.random.randint(0, 3)):
            home, n = pick(range(len(kinds))), pick([4, N])
            term = self.term(home, n, 2, frozenset())
            # One that is submitted in stretches is taken further by whoever comes: what it touches would be in no order.
            if splits(term, self.plan) and (touches(term) or may_fail(term)):
                term = self.term(home, n, 2, frozenset({PURE, QUIET}))
            self.plan["shared"].append(term)
            self.plan["shared_as"].append([home, n])

    def draw(self) -> Plan:
        """The plan."""
        for _ in range(self.random.randint(3, 12)):
            actor = self.random.randrange(len(self.plan["actors"]))
            modes = _THREADED if self.plan["actors"][actor] == "thread" else _TASKED
            step = getattr(self, f"_{self.random.choice(modes)}", self._run)
            self.plan["steps"].append({"actor": actor, **step()})
        return self.plan

    # expressions

    def term(self, home: int, n: int, depth: int, asked: frozenset[str]) -> Term:
        """An expression for a tensor of `n` elements on the device `home`."""
        draw, pick = self.random, self.random.choice
        while True:
            name = pick(_TERMS) if depth > 0 else pick(["tensor", "lazy", "fresh"])
            maker = getattr(self, f"_{name}")
            term = maker(home, n, depth - 1, asked, draw)
            if term is not None and self._allowed(term, asked):
                return term

    def _allowed(self, term: Term, asked: frozenset[str]) -> bool:
        name = term[0]
        if PURE in asked and name in ("tensor", "lazy", "memo"):
            return False
        if QUIET in asked and name in ("fail", "memo", "mix", "then_mix", "copy", "both", "steps"):
            return False
        if RECORDED in asked and name in ("memo", "bring", "placed"):
            return False
        return not ((WHOLE in asked or RECORDED in asked) and splits(term, self.plan))

    def _tensor(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term | None:
        tensors = [index for index, place in enumerate(self.plan["homes"]) if place == home]
        views = [view for view in VIEWS if size(view) == n]
        return ["tensor", draw.choice(tensors), draw.choice(views)] if tensors and views else None

    def _lazy(self, *given: Any) -> Term | None:
        term = self._tensor(*given)
        return term and ["lazy", *term[1:]]

    def _fresh(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        return ["fresh", draw.choice(["arange", "full"]), n, draw.randint(-3, 3)]

    def _memo(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term | None:
        fitting = [index for index, of in enumerate(self.plan["shared_as"]) if of == [home, n]]
        return ["memo", draw.choice(fitting)] if fitting else None

    def _two(self, home: int, n: int, depth: int, asked: frozenset[str]) -> tuple[Term, Term]:
        return self.term(home, n, depth, asked), self.term(home, n, depth, asked)

    def _mix(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random, name: str = "mix") -> Term:
        target, source = self._two(home, n, depth, asked)
        return [name, draw.choice([2, 4, 8]), target, draw.choice([-1, 1, 2, 3]), source]

    def _then_mix(self, *given: Any) -> Term:
        return self._mix(*given, name="then_mix")

    def _copy(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        return ["copy", draw.choice([2, 4]), *self._two(home, n, depth, asked)]

    def _both(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        return ["both", draw.choice([0, 1]), *self._two(home, n, depth, asked), draw.choice([-1, 2])]

    def _one(self, name: str, *rest: Any, behind: bool = False) -> Any:
        def make(home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
            source = self.term(home, n, depth, asked)
            given = [item(draw) for item in rest]
            return [name, *given, source] if behind else [name, source, *given]

        return make

    def _dup(self, *given: Any) -> Term:
        return self._one("dup")(*given)

    def _fill(self, *given: Any) -> Term:
        return self._one("fill", lambda draw: draw.randint(-9, 9))(*given)

    def _write(self, *given: Any) -> Term:
        return self._one("write", lambda draw: draw.randint(-9, 9))(*given)

    def _roundtrip(self, *given: Any) -> Term:
        return self._one("roundtrip", lambda draw: draw.randint(-9, 9))(*given)

    def _host_function(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        return ["host_function", home, self.term(home, n, depth, asked), draw.randint(-9, 9)]

    def _same(self, *given: Any) -> Term:
        hows = ["inspect", "then", "context", "join_all", "with_ctx"]
        return self._one("same", lambda draw: draw.choice(hows), behind=True)(*given)

    def _fail(self, *given: Any) -> Term:
        hows = ["then", "map", "inspect", "and_then", "no op"]
        return self._one("fail", lambda draw: draw.choice(hows), lambda draw: draw.randrange(1000), behind=True)(*given)

    def _placed(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        how, which = draw.choice(["on", "policy"]), draw.randrange(POLICIES)
        return ["placed", how, home, which, self.term(home, n, depth, asked)]

    def _bring(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        there = draw.randrange(len(self.plan["kinds"]))
        return ["bring", there, home, self.term(there, n, depth, asked)]

    def _part(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term | None:
        if n != 4:
            return None
        return ["part", self.term(home, N, depth, asked), draw.choice([[0, 4, 1], [3, 7, 1], [1, 8, 2], [7, 3, -1]])]

    def _pair(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        first, second = self._two(home, n, depth, asked)
        how = draw.choice(["first", "unzip", "parallel", "second"])
        return ["pair", how if self._side_by_side(first, second) else "first", first, second]

    def _side_by_side(self, *terms: Term) -> bool:
        """Whether they may run in parallel: in their order, or where no order shows."""
        if any(splits(term, self.plan) for term in terms):
            return not any(touches(term) or may_fail(term) for term in terms)
        return True

    def _steps(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        return ["steps", *self._two(home, n, depth, asked)]

    def _mend(self, home: int, n: int, depth: int, asked: frozenset[str], draw: random.Random) -> Term:
        return ["mend", *self._two(home, n, depth, asked)]

    # steps

    def _root(self, *asked: str) -> dict[str, Any]:
        """An expression, with a copy to the host behind it or without, and where it runs."""
        home, n = self.random.randrange(len(self.plan["kinds"])), self.random.choice([4, N])
        term = self.term(home, n, self.random.randint(1, 4), frozenset(asked))
        how = self.random.choice(["tensor", "host", "host", "out", "hosts"])
        if how == "hosts":
            second = self.term(home, n, 1, frozenset(asked))
            term = ["hosts", self.random.choice([True, False]) and self._side_by_side(term, second), term, second]
        elif how != "tensor" and not (RECORDED in asked and how == "out"):
            term = ["host", how, term]
        return {"term": term, "device": home, "stream": self.random.randrange(STREAMS)}

    def _run(self, mode: str = "await", *asked: str) -> dict[str, Any]:
        step = {"mode": mode, **self._root(*asked)}
        step["early"] = step["term"][0] not in ("host", "hosts") and not splits(step["term"], self.plan)
        return step

    def _sync(self) -> dict[str, Any]:
        return self._run("sync")

    def _sync_on(self) -> dict[str, Any]:
        return self._run("sync_on")

    def _task(self) -> dict[str, Any]:
        return self._run("task")

    def _idle(self) -> dict[str, Any]:
        return {**self._run("idle"), "early": False}

    def _future(self) -> dict[str, Any]:
        step = self._run("future")
        step["early"] = not splits(step["term"], self.plan)
        return {**step, "then": self.random.choice(["keep", "keep", "drop", "result", "poll", "callback"])}

    def _schedule(self) -> dict[str, Any]:
        return {**self._future(), "mode": "schedule", "stream": self.random.randrange(POLICIES)}

    def _before(self) -> dict[str, Any]:
        return {**self._run("before"), "early": False}

    def _after(self) -> dict[str, Any]:
        while True:
            step = self._run("after", WHOLE, QUIET)
            if step["early"]:
                return step

    def _timeout(self) -> dict[str, Any]:
        return {**self._run("timeout", PURE, QUIET), "early": False}

    def _recorded(self) -> dict[str, Any]:
        step = {
            **self._run("recorded", RECORDED),
            "early": False,
            "how": self.random.choice(["graph", "graph_on", "prepare", "scope"]),
        }
        launches = ["launch", "launch", "async", "run", "sync_on", "chain"]
        return {**step, "launches": [self.random.choice(launches) for _ in range(self.random.randint(0, 3))]}

    def _unused(self) -> dict[str, Any]:
        return {**self._run("unused", PURE), "early": False}

    def _twice(self) -> dict[str, Any]:
        return {**self._run("twice"), "early": False}

    def _closed(self) -> dict[str, Any]:
        return {**self._run("closed", PURE, QUIET), "early": False}

    def _fault(self) -> dict[str, Any]:
        cpus = [index for index, kind in enumerate(self.plan["kinds"]) if kind == "cpu"]
        if not cpus or self.plan["stepped"] is not None:
            return self._sync()
        how = self.random.choice(["sync", "result", "exception", "drop", "callback", "chain"])
        return {"mode": "fault", "device": self.random.choice(cpus), "how": how, "early": False}

    def _join(self) -> dict[str, Any]:
        kept = [number for number, step in enumerate(self.plan["steps"]) if step.get("then") == "keep"]
        if not kept:
            return self._run("sync")
        return {
            "mode": "join",
            "of": self.random.choice(kept),
            "how": self.random.choice(["result", "exception", "poll"]),
            "early": True,
        }


def drawn(seed: int, kinds: list[str]) -> Plan:
    """The plan of a seed, for devices of these kinds."""
    return Drawing(seed, kinds).draw()


# what must come of it


def start() -> list[np.ndarray]:
    return [np.arange(N) * (index + 1) for index in range(TENSORS)]


def expected(plan: Plan) -> tuple[list[Any], list[list[int]]]:
    """What each step gives, and what the tensors hold at the end."""
    model = Model(start(), plan["shared"])
    outcomes: list[Any] = []
    for step in plan["steps"]:
        outcomes.append(_expected(step, model, outcomes))
    for index in range(len(plan["shared"])):  # those that nothing has used
        with contextlib.suppress(Boom, ValueError, TypeError):
            model.memo(index)
    return outcomes, [tensor.tolist() for tensor in model.tensors]


def _expected(step: dict[str, Any], model: Model, outcomes: list[Any]) -> Any:
    mode = step["mode"]
    if mode in ("before", "unused", "fault", "closed"):  # nothing that is shared is touched; the run itself looks at what comes
        return None
    if mode == "join":
        return outcomes[step["of"]]
    try:
        if mode == "recorded":
            trial = Model([tensor.copy() for tensor in model.tensors], model.shared)
            trial.run(step["term"])
            for _ in step["launches"]:
                result = model.run(step["term"])
            return _plain(step["term"], result) if step["launches"] else None
        result = _plain(step["term"], model.run(step["term"]))
    except (Boom, ValueError, TypeError) as error:
        result = raised(error)
    return None if mode == "after" or step.get("then") == "drop" else result


def _plain(term: Term, result: Any) -> Any:
    return plain(result) if term[0] in ("host", "hosts") else "tensor"


def plain(result: Any) -> Any:
    """A result as plans have it: what the host got; of tensors nothing but that they are."""
    if isinstance(result, (tuple, list)):
        return [plain(part) for part in result]
    return result.tolist() if isinstance(result, np.ndarray) else "tensor"


def raised(error: BaseException) -> dict[str, Any]:
    """An error as plans have it."""
    return {"error": type(error).__name__, "number": error.args[0] if isinstance(error, Boom) else None}
