"""Searches by hand, on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.errors import TilekitError
from tilekit.tuning import workbench as module

BM, BN, BK = tk.generics("BM BN BK")
TILES = tk.Space(tile=[16, 64, 256])


@tk.kernel
def add(y: tk.InOut, x: tk.In, a: float) -> None:
    y.store(y.load() + a * tk.load_tile_like(x, y))


@tk.kernel
def choose(y: tk.Out, x: tk.In, wrong: tk.Const) -> None:
    t = tk.load_tile_like(x, y)
    y.store(t + 1.0 if wrong else t)


@tk.kernel
def product(c: tk.Out[BM, BN], a: tk.In, b: tk.In) -> None:
    i, j = tk.bid(0), tk.bid(1)
    total = tk.zeros((BM, BN))
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
        total = tk.mma(ta, tb, total)
    c.store(total)


@tk.kernel
def softmax(y: tk.Out, x: tk.In) -> None:
    t = tk.load_tile_like(x, y, padding_mode="-inf")
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    y.store(e / tk.sum(e, 1, keepdims=True))


def test_what_is_written_is_as_it_was(device: tk.Device) -> None:
    y, x = api.arange(1000, dtype=tk.float32).sync(), api.ones(1000).sync()
    tuning = tk.tune(lambda c: c.apply(add(y[::2], x[::2], 3.0)), TILES)
    assert tuning.best in TILES
    np.testing.assert_array_equal(y.to_host().sync(), np.arange(1000))
    assert {one.reason for one in tuning.candidates if one.samples == []} <= {None}


def test_memory_that_nobody_has_written_is_written(device: tk.Device) -> None:
    y, x = api.empty(256).sync(), api.ones(256).sync()
    assert tk.tune(lambda c: c.apply(choose(y, x, False)), TILES).best in TILES


def test_every_run_has_the_same_input(device: tk.Device) -> None:
    """Else the results of a kernel that adds would differ from run to run."""
    y, x = api.zeros(256).sync(), api.ones(256).sync()
    tuning = tk.tune(lambda c: c.apply(add(y, x, 1.0)), TILES, rtol=0, atol=0)
    assert not [one for one in tuning.candidates if "wrong" in (one.reason or "")]


def test_it_is_as_it_was_behind_an_error_too(device: tk.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    y, x = api.zeros(256).sync(), api.ones(256).sync()

    def interrupted(self: Any, config: tk.Config) -> float:
        add(y.partition(64), x, 1.0).sync()
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Workbench, "sample_us", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tk.tune(lambda c: c.apply(add(y, x, 1.0)), TILES)
    assert not y.to_host().sync().any()


def test_a_wrong_configuration_is_not_chosen(device: tk.Device) -> None:
    y, x = api.zeros(256).sync(), api.ones(256).sync()
    space = tk.Space(wrong=[False, True], tile=[32, 64])
    tuning = tk.tune(lambda c: c.apply(choose(y, x, c.wrong)), space)
    assert not tuning.best.wrong
    wrong = [one for one in tuning.candidates if one.config.wrong]
    assert all("is wrong beside Config(tile=32, wrong=False): the result differs in 256" in str(one.reason) for one in wrong)


def test_a_configuration_that_cannot_be_launched_has_its_reason(device: tk.Device) -> None:
    y, x = api.zeros(256).sync(), api.ones(256).sync()
    tuning = tk.tune(lambda c: c.apply(add(y, x, 1.0)), [tk.Config(tile=48), tk.Config(tile=64)])
    assert tuning.best == tk.Config(tile=64)
    assert "cannot be compiled: ValueError" in str(tuning.candidates[1].reason)


def test_if_none_can_be_launched_each_has_its_reason(device: tk.Device) -> None:
    y, x = api.zeros(256).sync(), api.ones(256).sync()
    with pytest.raises(TilekitError, match="none of 2 configurations can be used"):
        tk.tune(lambda c: c.apply(add(y, x, 1.0)), [tk.Config(tile=3), tk.Config(tile=5)])


def test_ops_of_several_launches_are_tuned_and_what_they_write_preserved(device: tk.Device) -> None:
    y, x = api.zeros(256).sync(), api.ones(256).sync()

    def launch(config: tk.Config) -> tk.DeviceOp[Any]:
        return add(y.partition(config.tile), x, 1.0).then(lambda _: add(y.partition(config.tile), x, 1.0)).first().unpartition()

    tuning = tk.tune(launch, TILES, preserve=[y])
    assert not [one for one in tuning.candidates if "wrong" in (one.reason or "")]
    assert not y.to_host().sync().any()


def test_arguments_may_be_ops(device: tk.Device) -> None:
    assert tk.tune(lambda c: c.apply(choose(api.zeros(256), api.ones(256), False)), TILES).best in TILES


def test_a_product_and_a_softmax_are_tuned(device: tk.Device) -> None:
    a, b, c = (api.randn(0.0, 1.0, (96, 96), seed=seed).sync() for seed in range(3))
    space = tk.Space(BM=[16, 32], BN=[16, 32], BK=[16, 32], where=lambda c: c.BM * c.BN <= 512)
    tuning = tk.tune(lambda c_: product(c.partition((c_.BM, c_.BN)), a, b).generics(BK=c_.BK), space)
    assert len(tuning.candidates) == 6
    assert not [one for one in tuning.candidates if "wrong" in (one.reason or "")]
    rows = tk.Space(tile=[(1, 128), (2, 128), (4, 128)], num_warps=[2, 4])
    assert tk.tune(lambda config: config.apply(softmax(c, a)), rows).best in rows


def test_tolerances_are_numbers_of_any_kind(device: tk.Device) -> None:
    x, y = api.ones(256).sync(), api.zeros(256).sync()
    tuning = tk.tune(lambda config: config.apply(add(y, x, 1.0)), TILES, rtol=10**5000, atol=np.int64(1))
    assert len(tuning.candidates) == len(list(TILES))


def test_what_is_no_search(device: tk.Device) -> None:
    y = api.zeros(256).sync()
    with pytest.raises(TypeError, match="takes a function that makes an op"):
        tk.tune(3, TILES)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the function makes an op, not 3"):
        tk.tune(lambda config: 3, TILES)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="tune takes a tk.Space"):
        tk.tune(lambda config: add(y, y, 1.0), 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="preserve is a list of tensors"):
        tk.tune(lambda config: add(y, y, 1.0), TILES, preserve=y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rtol is a number that is not negative, or None, not -1"):
        tk.tune(lambda config: add(y, y, 1.0), TILES, rtol=-1)
    with pytest.raises(TypeError, match="preserve takes tensors"):
        tk.tune(lambda config: add(y, y, 1.0), TILES, preserve=[np.zeros(3)])  # type: ignore[list-item]
