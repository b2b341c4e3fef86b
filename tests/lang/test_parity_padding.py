"""Tiles as the padding of loads and gathers: each element that is not read is the padding's own, on both devices."""

import numpy as np
import pytest
from lines import both_refuse, kernel_of

import tilekit as tk
from tilekit import api

X = np.arange(1, 51, dtype=np.float32).reshape(5, 10)


def ways(make, out, *arguments):
    """What kernels that `make` makes anew store: compiled for the CPU, and interpreted; for GPUs they are compiled alone."""
    for target in ("sm_80", "sm_90a"):
        make()(api.meta(out, tk.float32).partition(out), *(api.meta(a.shape, a.dtype) for a in arguments)).compile(target=target)
    for way in ("compiled", "interpreted"):
        with pytest.MonkeyPatch.context() as patch, tk.use_device("cpu"):
            patch.setenv("TILEKIT_CPU", way)
            op = make()(api.zeros(out).partition(out), *map(api.from_host, arguments))
            yield op.first().unpartition().to_host().sync()


def test_a_load_that_hangs_over_the_edges():
    def make():
        @tk.kernel
        def k(y: tk.Out, x: tk.In):
            fill = (tk.arange(8)[:, None] * 100 + tk.arange(16)).astype(tk.float32)
            y.store(tk.load(x, (0, 0), (8, 16), padding_value=fill))

        return k

    expected = np.arange(8)[:, None] * 100.0 + np.arange(16)
    expected[:5, :10] = X
    for result in ways(make, (8, 16), X):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("fill", [-np.inf, np.nan, -1.5, 2.0**-149, 1e300, 0.1, 0, -7, 7, (1 << 24) + 1, True])
def test_constants(fill):
    def make():
        @tk.kernel
        def k(y: tk.Out, x: tk.In):
            y.store(tk.load(x, (0, 0), (8, 16), padding_value=fill))

        return k

    with np.errstate(over="ignore"):
        expected = np.full((8, 16), np.float64(fill).astype(np.float32))
    expected[:5, :10] = X
    for result in ways(make, (8, 16), X):
        np.testing.assert_array_equal(result, expected)


def test_a_row_that_broadcasts_with_a_mask_and_in_another_order():
    def make():
        @tk.kernel
        def k(y: tk.Out, x: tk.In):
            mask = tk.arange(16)[:, None] != 3
            y.store(tk.load(x, (0, 1), (16, 4), order="F", mask=mask, padding_value=-tk.arange(4).astype(tk.float32)))

        return k

    expected = np.broadcast_to(-np.arange(4.0), (16, 4)).copy()
    expected[:10, :1] = X.T[:, 4:5]
    expected[3] = -np.arange(4.0)
    for result in ways(make, (16, 4), X):
        np.testing.assert_array_equal(result, expected)


def test_an_element():
    def make():
        @tk.kernel
        def k(y: tk.Out, x: tk.In):
            least = tk.min(tk.load(x, (0, 0), (1, 8)))
            y.store(tk.load(x, (4, 9), (), padding_value=least) + tk.load(x, (0, 0), (), mask=False, padding_value=least))

        return k

    for result in ways(make, (1,), X):
        np.testing.assert_array_equal(result, [51])


def test_a_gather():
    def make():
        @tk.kernel
        def k(y: tk.Out, x: tk.In):
            columns = tk.arange(16)
            old = columns.astype(tk.float32) * 7
            y.store(tk.gather(x, (tk.bid(0) + 2, columns), mask=columns < 6, padding_value=old))

        return k

    for result in ways(make, (16,), X):
        np.testing.assert_array_equal(result, np.where(np.arange(16) < 6, np.r_[X[2], np.zeros(6)], np.arange(16) * 7.0))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("y.store(tk.load(x, 0, 16, padding_value=tk.zeros(32)))", "load: tiles of shapes (32,) and (16,) do not match"),
        ("y.store(tk.load(x, 0, 16, padding_value=t.astype(tk.float64)))", "load: padding_value is a float64 tile, which does"),
        ("y.store(tk.load(x, 0, 16, padding_mode='nan', padding_value=t))", "load: padding_mode or padding_value, not both"),
        ("y.store(tk.gather(x, tk.arange(16), padding_value='a'))", "gather: padding_value is a scalar or a tile, not the"),
        ("y.store(tk.gather(x, tk.arange(16), padding_value=tk.zeros((2, 1))))", "gather: padding_value of shape (2, 1)"),
    ],
)  # fmt: skip
def test_paddings_that_do_not_fit(line, reason):
    for error in both_refuse(kernel_of(line)):
        assert error.reason.startswith(reason)
