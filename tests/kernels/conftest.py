"""What all tests of ready-made kernels have in common."""

import pytest

from tilekit.kernels._recall import Recall


@pytest.fixture(autouse=True)
def nothing_is_recalled_from_other_tests():
    """Some replace what a function decides; and whether an op is recalled must not depend on which tests ran before."""
    Recall.known.clear()
    Recall.before.clear()
    yield
    Recall.known.clear()
    Recall.before.clear()
