"""Every expression of the table of peers, run: with NumPy, with tilekit, and with CuPy and PyTorch where they are installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, memory
from tilekit.ops import DeviceOp

TOOL = Path(__file__).resolve().parents[2] / "docs" / "tools" / "peer_table.py"


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peer_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_table"] = module  # a dataclass looks for its own module
    spec.loader.exec_module(module)
    return module


TABLE = _tool()
ROWS = [row for group in TABLE.GROUPS for row in group.rows]


CODE = 'extern "C" __global__ void f(float* y) { y[threadIdx.x] = 1; }'


def array() -> np.ndarray[Any, Any]:
    return np.arange(24, dtype=np.float32).reshape(4, 6)


def evaluate(row: Any, code: str, names: dict[str, Any]) -> Any:
    value = eval(code, {**names, "code": CODE})
    return value if row.after is None else eval(row.after, {**names, "value": value})


def expected(row: Any) -> Any:
    names = {"np": np, "x": array(), "y": -array(), "a": array()[1]}
    return evaluate(row, row.numpy, names) if row.numpy else None


def agree(row: Any, found: Any, wanted: Any) -> None:
    if wanted is None:
        return
    if isinstance(wanted, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        if not row.random:
            np.testing.assert_array_equal(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_tilekit_gives_what_numpy_gives(row: Any, device: tk.Device) -> None:
    x, y = api.from_host(array()).sync(), api.from_host(-array()).sync()
    found = evaluate(row, row.tilekit, {"tk": tk, "api": api, "memory": memory, "x": x, "y": y, "a": array()[1]})
    assert not isinstance(found, DeviceOp), "an op that was not run"
    agree(row, found.to_host().sync() if isinstance(found, tk.Tensor) and not found.is_meta else found, expected(row))


@pytest.mark.parametrize("row", [row for row in ROWS if row.of_cupy], ids=lambda row: row.what)
def test_cupy_gives_what_numpy_gives(row: Any, device: tk.Device) -> None:
    if device.kind != "cuda":
        pytest.skip("CuPy needs a GPU")
    cp = pytest.importorskip("cupy", reason="CuPy is not installed")
    found = evaluate(row, row.of_cupy, {"cp": cp, "x": cp.asarray(array()), "y": cp.asarray(-array()), "a": array()[1]})
    agree(row, cp.asnumpy(found) if isinstance(found, cp.ndarray) else found, expected(row))


@pytest.mark.parametrize("row", [row for row in ROWS if row.torch], ids=lambda row: row.what)
def test_torch_gives_what_numpy_gives(row: Any, device: tk.Device) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if ("cuda" in row.torch or "pin_memory" in row.torch) and not torch.cuda.is_available():
        pytest.skip("PyTorch was installed without CUDA")
    x, y = (torch.tensor(values, device=device.kind) for values in (array(), -array()))
    found = evaluate(row, row.torch, {"torch": torch, "x": x, "y": y, "a": array()[1]})
    agree(row, found.cpu().numpy() if isinstance(found, torch.Tensor) and not found.is_meta else found, expected(row))


def test_the_page_is_what_the_tool_makes() -> None:
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.markdown(), "run python docs/tools/peer_table.py"


def test_every_row_is_in_a_table_of_every_library_that_fits_a_page() -> None:
    rows = [line for line in TABLE.markdown().splitlines() if line.startswith("| ") and not line.startswith("| |")]
    assert len(rows) == len(ROWS) * len(TABLE.LIBRARIES)
    assert all(len(line.strip("|").split(" | ")) == 3 for line in rows)
