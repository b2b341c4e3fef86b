"""Random graphs of ops over threads, tasks, streams, policies and devices give what running them in order gives."""

from __future__ import annotations

import gc
import json

import graph_checks
from graph_plans import drawn

from tilekit._driver.cpu import driver as cpu
from tilekit._runtime.context import ExecutionContext


def test_graphs(device, cases):
    kind = device.kind
    kinds = [used.kind for used in graph_checks.devices(kind)]
    gc.collect()
    gc.freeze()  # what exists already is not looked at again after each case
    try:
        for seed in cases:
            plan = drawn(seed, kinds)
            problem = graph_checks.problem_of(plan, kind)
            if problem is not None:
                shorter, again = graph_checks.shrunk(plan, kind)
                raise AssertionError(cases.report(seed, f"{problem}\nshorter, {again}\n{graph_checks.shown(shorter)}"))
    finally:
        gc.unfreeze()


def test_without_order_between_streams_it_notices(monkeypatch):
    """Plans that one thread submits, under a stepper that lets streams overtake each other as much as they may."""
    used = graph_checks.devices("cpu")
    monkeypatch.setattr(ExecutionContext, "acquire", lambda self, reads, writes: None)
    monkeypatch.setattr(cpu, "Shadow", lambda nbytes: None)  # which would notice first: nobody waits for the writer either
    plans = [plan for plan in (drawn(seed, ["cpu"] * 3) for seed in range(200)) if plan["stepped"] is not None]
    with graph_checks.Watch()():  # plans leave ops unused, too
        assert any(graph_checks.run(plan, used) is not None for plan in plans)


def test_a_shorter_plan_is_one_that_runs():
    plan = next(plan for plan in (drawn(seed, ["cpu"] * 3) for seed in range(100)) if len(plan["steps"]) > 4)
    shorter = list(graph_checks.shorter(plan))
    assert len(shorter) > 4
    with graph_checks.Watch()():
        for candidate in shorter[:8]:
            assert len(json.dumps(candidate)) < len(json.dumps(plan))
            assert graph_checks.run(json.loads(json.dumps(candidate)), graph_checks.devices("cpu")) is None
