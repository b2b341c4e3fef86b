"""Slices whose bounds are partly constants: samples of the other bounds may be before them."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


@pytest.mark.parametrize("form", ["places", "names"])
def test_a_stop_that_is_computed_comes_behind_a_start_that_is_not(device, form):
    @tk.kernel
    def part(y: tk.Out, x: tk.In, n: int, form: tk.Const):
        if form == "names":
            y.store(tk.load(x.slice(axis=0, start=5, stop=n), 0, 8))
        else:
            y.store(tk.load(x.slice(0, 5, n), 0, 8))

    x = np.arange(20, dtype=np.float32)
    y = part(api.zeros(8).partition(8), api.from_host(x), 9, form).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, [5, 6, 7, 8, 0, 0, 0, 0])
