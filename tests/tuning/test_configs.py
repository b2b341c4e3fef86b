"""Configurations, and spaces of them."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.tuning.configs import as_configs

B = tk.generics("B")


@tk.kernel
def tiles(y: tk.Out, x: tk.In, factor: tk.Const) -> None:
    y.store(factor * tk.load_tile_like(x, y) + tk.sum(tk.zeros(B)))


def test_a_configuration_has_what_it_was_made_of() -> None:
    config = tk.Config(tile=(64, 32), num_warps=np.int64(4), BM=64, kind="fast", dims=[1, 2])
    assert (config.tile, config.num_warps, config.occupancy) == ((64, 32), 4, None)
    assert (config["BM"], config.kind, config.dims) == (64, "fast", (1, 2))
    assert repr(config) == "Config(tile=(64, 32), num_warps=4, BM=64, kind='fast', dims=(1, 2))"


def test_what_is_not_in_it_is_an_error() -> None:
    with pytest.raises(KeyError, match="Config\\(BM=1\\) has no BN"):
        tk.Config(BM=1)["BN"]
    with pytest.raises(AttributeError, match="has no BN"):
        _ = tk.Config(BM=1).BN


def test_equal_configurations_are_equal() -> None:
    assert tk.Config(tile=[2, 4], BM=8) == tk.Config(BM=8, tile=(2, 4))  # type: ignore[arg-type]
    assert len({tk.Config(BM=8), tk.Config(BM=8), tk.Config(BM=16)}) == 2
    assert tk.Config(flag=True) != tk.Config(flag=1)
    assert tk.Config(a=1) != tk.Config(a=1.0)


ENDLESS = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "config", [tk.Config(), tk.Config(tile={"y": (2, 4), "z": 8}, occupancy=2, BM=(1, (2, None)), f=0.5, s="a", b=False)]
)
def test_a_configuration_survives_json_and_pickle(config: tk.Config) -> None:
    assert tk.Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert pickle.loads(pickle.dumps(config)) == config == copy.copy(config)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"BM": object()}, TypeError, "BM is a number, a string"),
        ({"dtype": np.dtype("f4")}, TypeError, "dtype is a number"),
        ({"x": ENDLESS}, TypeError, r"x is a number, .*not \[\[\.\.\.\]\]"),
        ({"num_warps": 3}, ValueError, "num_warps is a power of two"),
        ({"occupancy": 64}, ValueError, "occupancy is a number of blocks"),
    ],
)
def test_what_no_configuration_can_be(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tk.Config(**options)


def test_values_have_names() -> None:
    with pytest.raises(TypeError, match="by their names, tk.Config\\(BM=128, num_warps=4\\), and no {'BM': 1}"):
        tk.Config({"BM": 1}, num_warps=4)


def test_apply_sets_what_the_launch_takes(device: tk.Device) -> None:
    y, x = api.zeros((8, 8)).sync(), api.ones((8, 8)).sync()
    launch = tk.Config(tile=(4, 8), num_warps=2, occupancy=3, elsewhere=7, B=16).apply(tiles(y, x, 2.0))
    assert launch.arguments[0].tile_shape == (4, 8)
    assert (launch._options.num_warps, launch._options.occupancy) == (2, 3)
    launch.sync()
    assert tk.Config(tile={"y": (2, 2)}, B=2).apply(tiles(y, x, 2.0)).sync()[0].tile_shape == (2, 2)
    assert (y.to_host().sync() == 2).all()


def test_a_space_has_all_combinations_that_satisfy_its_constraints() -> None:
    space = tk.Space(tile=[1, 2], BM=(8, 16), where=[lambda c: c.tile * c.BM < 32, lambda c: c.BM > 0])
    assert list(space) == [tk.Config(tile=1, BM=8), tk.Config(tile=1, BM=16), tk.Config(tile=2, BM=8)]
    assert (len(space), tk.Config(tile=2, BM=8) in space, tk.Config(tile=2, BM=16) in space) == (3, True, False)
    assert repr(space) == "<Space of 3 configurations>"
    assert len(tk.Space(BM=[8, 8, 16])) == 2


def test_a_space_that_is_empty_is_refused() -> None:
    with pytest.raises(ValueError, match="none of 2 combinations satisfies"):
        tk.Space(BM=[1, 2], where=lambda c: c.BM > 2)
    with pytest.raises(ValueError, match="nothing to choose from"):
        tk.Space()
    with pytest.raises(ValueError, match="nothing to choose from"):
        tk.Space(BM=[])
    with pytest.raises(TypeError, match="BM takes a list of values"):
        tk.Space(BM=64)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="where is a function of a configuration, or a list of them, not 3"):
        tk.Space(BM=[64], where=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"constraint <class 'int'> fails at Config\(BM=64\): TypeError: int\(\) argument"):
        tk.Space(BM=[64], where=int)  # type: ignore[arg-type]


def test_configurations_come_from_spaces_and_lists() -> None:
    assert as_configs([tk.Config(BM=1), tk.Config(BM=1)], "tune") == (tk.Config(BM=1),)
    for wrong, error, text in [(3, TypeError, "not 3"), ([3], TypeError, "no 3 in it"), ([], ValueError, "no configuration")]:
        with pytest.raises(error, match=text):
            as_configs(wrong, "tune")  # type: ignore[arg-type]
