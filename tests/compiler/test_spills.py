"""Registers that have no room: told once, with the bytes and what helps."""

import warnings

import pytest

import tilekit as tk
from tilekit import api
from tilekit.kernels import _transpose


@tk.kernel
def weighted(y: tk.Out, x: tk.In, columns: tk.Const):
    t = tk.load(x, (tk.bid(0), 0), (16, columns))
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    y.store(tk.sum(e / tk.sum(e, 1, keepdims=True) * t, 1))


@tk.kernel
def shown(y: tk.InOut):
    t = y.load()
    tk.print("t", t)
    y.store(t)


def launch(columns):
    return weighted(api.meta(64).partition(16), api.meta((64, columns)), columns)


def test_a_kernel_that_spills_says_so_once():
    op = launch(512).num_warps(1)
    with pytest.warns(tk.SpillWarning) as caught:
        compiled = op.compile("sm_90a")
    assert compiled.spilled_bytes > 0
    (warning,) = caught
    assert str(warning.message) == (
        f"kernel weighted spills: each thread keeps {compiled.spilled_bytes:,} bytes in memory for which its "
        f"{compiled.registers} registers are too few (for sm_90a, 1 warps a block); take smaller tiles or more warps than 1 "
        "(num_warps=2)"
    )
    assert (warning.filename, warning.lineno) == (__file__, weighted.__wrapped__.__code__.co_firstlineno + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launch(512).num_warps(1).compile("sm_90a") is compiled


def test_a_kernel_from_the_cache_says_so_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        again = tk.kernel(weighted.__wrapped__)
        with pytest.warns(tk.SpillWarning, match="kernel weighted spills"):
            again(api.meta(64).partition(16), api.meta((64, 512)), 512).num_warps(1).compile("sm_80")


def test_it_is_shown_by_default():
    """Python shows warnings of users' code without being asked to: this is one."""
    assert issubclass(tk.SpillWarning, UserWarning)


def test_no_warning_without_spills():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launch(512).compile("sm_90a").spilled_bytes == 0
        compiled = shown(api.meta(64).partition(16)).compile("sm_90a")
    assert compiled.local_bytes > 0, "variables, that no register could hold"
    assert compiled.spilled_bytes == 0


def test_ready_made_kernels_spill_in_silence():
    """Who calls them has chosen no tiles."""
    y, x = api.meta((1, 128, 64)), api.meta((1, 64, 128))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _transpose._transpose(y.partition((128, 64, 1)), x).num_warps(1).compile("sm_90a").spilled_bytes > 0
