"""Kernels that choose their configuration themselves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.tuning import TunedLaunch, autotuned, records
from tilekit.tuning.search import Tuning

TILES = tk.Space(tile=[64, 256])


@tk.autotune(TILES, key=["y"])
@tk.kernel
def add(y: tk.InOut, x: tk.In, a: float = 1.0) -> None:
    """Add."""
    y.store(y.load() + a * tk.load_tile_like(x, y))


@tk.autotune([tk.Config(tile=32, times=3), tk.Config(tile=64, times=3)])
@tk.kernel
def multiply(y: tk.Out, x: tk.In, times: Annotated[int, tk.Const], plus: Annotated[int, tk.Const] = 0) -> None:
    y.store(tk.load_tile_like(x, y) * times + plus)


@pytest.fixture(autouse=True)
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each search; nothing is known before a test."""
    seen: list[Any] = []
    search = autotuned.Autotuned._search

    def noted(self: autotuned.Autotuned, arguments: Any, device: tk.Device) -> Tuning:
        seen.append(arguments)
        return search(self, arguments, device)

    monkeypatch.setattr(autotuned.Autotuned, "_search", noted)
    for kernel in (add, multiply):
        kernel._best.clear()
    return seen


def numbers(tensor: tk.Tensor) -> np.ndarray[Any, Any]:
    return tensor.to_host().sync()


def test_the_first_run_of_a_size_searches(device: tk.Device, searches: list[Any]) -> None:
    y, x = api.zeros(1000).sync(), api.ones(1000).sync()
    op = add(y, x, 2.0)
    assert isinstance(op, TunedLaunch)
    assert not searches
    assert not numbers(y).any()
    result = op.sync()
    assert len(searches) == 1
    assert (numbers(y) == 2).all()
    assert isinstance(result[0], tk.Partition)
    add(y, x).sync()
    assert (numbers(y) == 3).all()
    add(api.zeros(1024), api.ones(1024)).sync()  # of the same bucket
    assert len(searches) == 1
    add(api.zeros(1025), api.ones(1025)).sync()
    assert len(searches) == 2
    add(api.zeros(1000, tk.float64), api.ones(1000, tk.float64)).sync()
    assert len(searches) == 3


def test_arguments_are_those_of_the_kernel_without_what_is_chosen(device: tk.Device) -> None:
    y, x = api.zeros(100).sync(), api.ones(100).sync()
    multiply(y, x, plus=1).sync()
    assert (numbers(y) == 4).all()
    multiply(x=x, y=y).sync()
    assert (numbers(y) == 3).all()


def test_constants_count_and_scalars_do_not(device: tk.Device, searches: list[Any]) -> None:
    y, x = api.zeros(100).sync(), api.ones(100).sync()
    for plus in (0, 1, 1):
        multiply(y, x, plus).sync()
    for a in (1.0, 2.0):
        add(y, x, a).sync()
    assert len(searches) == 3


def test_arguments_may_be_ops_and_it_may_be_an_argument(device: tk.Device) -> None:
    op = add(multiply(api.zeros(100), api.ones(100)).first().unpartition(), api.ones(100), 2.0)
    assert (op.first().unpartition().to_host().sync() == 5).all()


def test_it_can_be_awaited(device: tk.Device, searches: list[Any]) -> None:
    async def both() -> list[Any]:
        ops = [add(api.zeros(100), api.ones(100), a).first().unpartition().to_host() for a in (1.0, 2.0)]
        return await asyncio.gather(*(op.run() for op in ops))

    one, two = asyncio.run(both())
    assert (one == 1).all() and (two == 2).all()
    assert len(searches) == 1


def test_side_by_side_and_behind_other_work(device: tk.Device) -> None:
    y, x = api.zeros(100).sync(), api.ones(100).sync()
    chain = y.fill(1.0).then(lambda y: add(y, x)).first().unpartition().to_host()
    other = add(api.zeros(3000), api.ones(3000)).first().unpartition().to_host()
    one, two = tk.zip(chain, other).sync()
    assert (one == 2).all() and (two == 1).all()


def test_threads_wait_for_one_search(device: tk.Device, searches: list[Any]) -> None:
    results: list[Any] = []

    def run() -> None:
        with tk.use_device(device):
            results.append(add(api.zeros(100), api.ones(100)).first().unpartition().to_host().sync())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(searches) == 1
    assert len(results) == 4 and all((result == 1).all() for result in results)


def test_arrays_of_numpy_go_where_tensors_do(cpu: tk.Device, searches: list[Any]) -> None:
    y = np.zeros(100, np.float32)
    add(y, np.ones(100, np.float32)).sync()
    assert (y == 1).all()
    add(api.zeros(100), api.ones(100)).sync()
    assert len(searches) == 1


def test_a_graph_is_recorded_once_a_configuration_is_known(device: tk.Device) -> None:
    y, x = api.zeros(100).sync(), api.ones(100).sync()
    with pytest.raises(TypeError, match="autotuned kernel add cannot be recorded: .* run it, or .tune"):
        add(y, x).graph()
    add.tune(y, x)
    assert not numbers(y).any()
    graph = add(y, x).graph()
    for _ in range(3):
        graph.launch().sync()
    assert (numbers(y) == 3).all()


def test_tune_gives_the_table_and_launches_nothing(device: tk.Device, searches: list[Any]) -> None:
    y, x = api.zeros(100).sync(), api.ones(100).sync()
    tuning = add.tune(y, x)
    assert tuning.best in TILES
    assert len(tuning.candidates) == 2
    assert add.tune(y, x) is tuning
    assert not numbers(y).any()
    with pytest.raises(TypeError, match="needs tensors, not ops, for x"):
        add.tune(y, api.ones(100))


def test_a_record_is_used_and_nothing_searched(
    device: tk.Device, searches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    y, x = api.zeros(100).sync(), api.ones(100).sync()
    first = add.tune(y, x)
    (record,) = records.records()
    assert record.key.sizes == "y=float32[128], x=float32[_]"
    assert record.config == first.best
    add._best.clear()
    second = add.tune(y, x)
    assert second.from_record
    assert (second.best, second.us) == (first.best, first.us)
    assert [(one.config, one.us, one.reason) for one in second.candidates] == [
        (one.config, one.us, one.reason) for one in first.candidates
    ]
    assert "of 2, from a record" in str(second)
    assert len(searches) == 1


def test_a_record_of_no_configuration_of_the_space_is_not_used(
    device: tk.Device, searches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "load", lambda key: records.Record(key=key, config=tk.Config(tile=7), us=1.0, candidates=()))
    assert add.tune(api.zeros(100).sync(), api.ones(100).sync()).best in TILES
    assert len(searches) == 1


PROGRAM = """
import tilekit as tk
from tilekit import api
from tilekit.tuning import autotuned

@tk.autotune(tk.Space(tile=[64, 256]))
@tk.kernel
def scale(y: tk.Out, x: tk.In) -> None:
    y.store(2.0 * tk.load_tile_like(x, y))

search = autotuned.Autotuned._search
autotuned.Autotuned._search = lambda *arguments: print("searches") or search(*arguments)
print(scale(api.zeros(100), api.ones(100)).first().unpartition().to_host().sync().sum())
"""


def test_a_second_process_searches_nothing(device: tk.Device, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(Path(tk.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TILEKIT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    outputs = [
        subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert outputs == ["searches\n200.0\n", "200.0\n"]


def test_calls_that_cannot_be(device: tk.Device) -> None:
    y = api.zeros(100).sync()
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((y,), {}, "autotuned kernel multiply\\(y, x, plus\\): missing a required argument: 'x'"),
        ((y, y, 1, 1), {}, "too many positional arguments"),
        ((y, y), {"times": 2}, "times comes with the configuration"),
        ((y, y), {"y": y}, "multiple values for argument 'y'"),
        ((y, y), {"z": y}, "unexpected keyword argument 'z'"),
    ]
    for args, kwargs, text in cases:
        with pytest.raises(TypeError, match=text):
            multiply(*args, **kwargs)


def test_decorations_that_cannot_be() -> None:
    kernel = multiply.kernel
    cases: list[tuple[Any, dict[str, Any], Any, str]] = [
        (TILES, {}, lambda y: None, "decorates a kernel: put it above @tk.kernel"),
        ([tk.Config(BM=3)], {}, kernel, "a value for BM, which is no parameter and no generic of it; it has plus, times, x, y"),
        ([tk.Config(times=3), tk.Config()], {}, kernel, "Config\\(\\) has no value for times, as others have"),
        (TILES, {"key": "y"}, kernel, "key is a list of parameters' names, as \\['x'\\], not 'y'"),
        (TILES, {"key": ["z"]}, kernel, "no parameter that calls give is called 'z'"),
        (TILES, {"seed": "1"}, kernel, "autotune: seed is an int, not '1'"),
        (TILES, {"check": 3}, kernel, "autotune: check"),
        ([3], {}, kernel, "autotune takes a tk.Space, or a list of tk.Config"),
    ]
    for configs, options, decorated, text in cases:
        with pytest.raises(TypeError, match=text):
            tk.autotune(configs, **options)(decorated)


def test_it_looks_like_the_kernel() -> None:
    assert (add.__name__, add.__doc__, add.__wrapped__) == ("add", "Add.", add.kernel)
    assert repr(add) == "<autotuned kernel add of 2 configurations>"
    with pytest.raises(AttributeError, match="autotuned kernel add has no grid; .kernel is the kernel"):
        _ = add.grid


def test_an_error_of_the_kernel_s_is_told(device: tk.Device) -> None:
    with pytest.raises(tk.TilekitError, match="none of 2 configurations can be used"):
        add(api.zeros((10, 10)), api.ones((10, 10))).sync()
