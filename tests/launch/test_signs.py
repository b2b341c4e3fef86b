"""Floats that are known to be positive: kernels that take exponentials have a specialisation for them, others are not asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.facts import ScalarFacts
from tilekit.lang.exponential import exp as power


@tk.function
def weight(x):
    return power(x)


@tk.kernel
def scaled(y: tk.InOut, a: float):
    y.store(tk.exp(y.load() * a))


@tk.kernel
def helped(y: tk.InOut, a: float):
    y.store(weight(y.load() * a))


@tk.kernel
def without(y: tk.InOut, a: float):
    y.store(y.load() * a)


def fact(kernel, a):
    op = kernel(api.meta(8).partition(8), a)
    op.consumed()
    return op._plan("this test").specialisation.facts[-1]


@pytest.mark.parametrize("kernel", [scaled, helped])
@pytest.mark.parametrize("a", [0.125, 1.0, 2.0**-100, 2.0**100])
def test_a_positive_number_is_known(kernel, a):
    assert fact(kernel, a) == ScalarFacts("float64", positive=True)


@pytest.mark.parametrize("a", [0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 1e-38, 1e38, 5e-324])
def test_of_others_nothing_is_known(a):
    assert fact(scaled, a) == ScalarFacts("float64")


def test_kernels_without_exponentials_are_not_asked():
    assert fact(without, 2.0) == ScalarFacts("float64")
    assert fact(scaled, np.float32(2.0)) == ScalarFacts("float32"), "only Python's"


def test_a_slot_may_be_another_number_later(device):
    x = api.ones(8).sync()
    prepared = scaled(x.partition(8), tk.slot("a", 1.0)).prepare()
    for a, expected in ((1.0, math.e), (-1.0, math.exp(-1)), (0.0, 1.0)):
        x.fill(1.0).sync()
        prepared.bind(a=a).launch().sync()
        np.testing.assert_allclose(x.to_host().sync(), expected, rtol=1e-6)


def test_signs_in_turns(device):
    """The same op-building code, whatever it takes for the plan."""
    for a in (0.5, -0.5, 0.5, 0.0, 0.25, -2.0) * 3:
        found = scaled(api.full(8, 3.0).sync().partition(8), a).first().unpartition().to_host().sync()
        np.testing.assert_allclose(found, np.exp(np.float32(3.0 * a)), rtol=1e-6)
