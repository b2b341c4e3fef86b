"""Random graphs of ops over threads, tasks, streams, policies and devices give what running them in order gives."""

from __future__ import annotations

import gc

import graph_checks
from graph_plans import drawn


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
