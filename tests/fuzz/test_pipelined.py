"""Random pipelines with computed operands: whole numbers, so that every sum is exact. On a GPU each is launched three times."""

from __future__ import annotations

import pipelined
import pytest
import shrinking
from draws import Draw

BUDGET = 0.2


def fail(seed, fails, cases):
    """With the simplest case that fails as that of the seed does."""
    draw = Draw(("pipelined", seed))
    pipelined.case(seed, draw)
    made, said = shrinking.shortest(draw.choices, lambda d: pipelined.case(seed, d), fails, seconds=40)
    layout = f"{made}".partition("array=")[0]
    pytest.fail(cases.report(seed, f"{said}\n{made.tile} of {made.extents}, {made.warps} warps, {layout}\n{made.source()}"))


def test_pipelines(device, cases):
    def fails(made):
        return pipelined.problem(made, device, 3 if device.kind == "cuda" else 1)

    for seed in cases:
        if fails(pipelined.case(seed)):
            fail(seed, fails, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_pipelines_compile(request, cases, target):
    if request.config.getoption("--device") == "cuda":
        pytest.skip("test_pipelines compiles what it runs")

    def fails(made):
        try:
            made.op(meta=True)[0].compile(target=target)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    for seed in cases:
        if fails(pipelined.case(seed)):
            fail(seed, fails, cases)


@pytest.mark.thorough
def test_most_pipelines_keep_tiles_under_way():
    """They are about rings and products by warpgroups: most of what is drawn has them."""
    rings = 0
    for seed in range(6):
        (loop,) = pipelined.case(seed).op(meta=True)[0].explain("sm_90a").pipelines
        rings += not loop.reason
    assert rings >= 4
