"""The fuzzers' cases, see `seeds`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import seeds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cases" in metafunc.fixturenames:
        metafunc.parametrize("cases", range(seeds.shares()), indirect=True)


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Iterator[seeds.Cases]:
    """The seeds that the test is to run; how many it ran is told at the end of the run."""
    drawn = seeds.Cases(request, request.param)
    yield drawn
    request.node.user_properties.append((seeds.RAN, drawn.ran))
