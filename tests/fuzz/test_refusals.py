"""Kernels that are wrong on purpose are refused by the device under test and by the compiler, in words, at their line."""

from __future__ import annotations

import pytest
import refusals

BUDGET = 0.2


@pytest.mark.parametrize("target", [None, "sm_90a"], ids=["device", "sm_90a"])
def test_wrong_kernels_are_refused(device, cases, target):
    for seed in cases:
        made = refusals.case(seed)
        said = refusals.problem(made, target)
        assert said is None, cases.report(seed, f"{said}\n{made.source}")


def test_both_devices_refuse_them_in_the_same_words(cases, cpu):
    """The text, with the line and the caret, is the verdict's, and there is one."""
    for seed in cases:
        made = refusals.case(seed)
        running, compiling = refusals.said(made, None), refusals.said(made, "sm_90a")
        assert running == compiling, cases.report(seed, f"{running}\n{compiling}\n{made.source}")
