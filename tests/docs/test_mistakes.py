"""Every mistake of the table, made: it is refused in the words that the page shows, at the place in the kernel that is wrong."""

from __future__ import annotations

import ast
import gc
import importlib.util
import linecache
import re
import sys
import textwrap
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilekit as tk
from tilekit import api

TOOL = Path(__file__).resolve().parents[2] / "docs" / "tools" / "mistake_table.py"


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mistake_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _tool()
ROWS = [row for group in TABLE.ROWS.GROUPS for row in group.rows]
IN_KERNELS = [row for row in ROWS if row.error == "CompileError"]
ON_THE_HOST = [row for row in ROWS if row.error != "CompileError"]

# What a kernel's parameters are: `y` is written, of one dimension, `q` of two, `k` of integers; the others are read.
PARAMETERS = {
    "y": ("tk.InOut", 1024, "float32", 256), "q": ("tk.InOut", (64, 64), "float32", (32, 32)),
    "k": ("tk.InOut", 1024, "int32", 256), "o": ("tk.Out", 1024, "float32", 256), "x": ("tk.In", 1024, "float32", None),
    "d": ("tk.In", 1024, "float64", None), "m": ("tk.In", (64, 64), "float32", None), "n": ("int", None, None, None),
}  # fmt: skip

BEFORE_A_KERNEL = """\
import math

import numpy as np

import tilekit as tk
from tilekit import api

A_LIST, A_DICTIONARY = [1, 2], {"one": 1}
AN_ARRAY = np.ones(256, np.float32)
WEIGHTS = api.ones(256).sync()
AN_OP = tk.value(1)


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())

"""
ON_A_HOST = """\
import asyncio

import numpy as np

import tilekit as tk
from tilekit import api


@tk.kernel
def scale(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y))


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())


x, y = api.ones(1024).sync(), api.zeros(1024).sync()
m = api.zeros((64, 64)).sync()
p = y.partition(256)
op = api.ones(8)
future = tk.value(1).into_future()
"""


def _module(text: str, file: Path) -> dict[str, Any]:
    """The names of a program that stands in a file, from where kernels are read."""
    file.write_text(text, "utf-8")
    linecache.checkcache(str(file))
    names: dict[str, Any] = {"__name__": file.stem, "__file__": str(file)}
    exec(compile(text, str(file), "exec", dont_inherit=True), names)
    return names


def refusals(row: Any, file: Path) -> list[tk.CompileError]:
    """What is said of a kernel with these lines where it runs on a CPU, and where it is compiled for a GPU."""
    used = {
        node.id for node in ast.walk(ast.parse(f"def f():\n{textwrap.indent(row.written, '    ')}")) if isinstance(node, ast.Name)
    }
    names = [name for name in PARAMETERS if name in used] or ["y"]
    names = names if any(PARAMETERS[name][3] for name in names) else ["y", *names]
    declared = ", ".join(f"{name}: {PARAMETERS[name][0]}" for name in names)
    text = f"{BEFORE_A_KERNEL}{row.before}\n\n@tk.kernel\ndef wrong({declared}):\n{textwrap.indent(row.written, '    ')}\n"
    kernel = _module(text, file)["wrong"]

    def argument(name: str, make: Any) -> Any:
        _, shape, dtype, tile = PARAMETERS[name]
        if shape is None:
            return 3
        tensor = make(shape, getattr(tk, str(dtype)))
        return tensor if tile is None else tensor.partition(tile)

    errors = []
    with pytest.raises(tk.CompileError) as caught:
        kernel(*(argument(name, lambda *of: api.zeros(*of).sync()) for name in names)).sync()
    errors.append(caught.value)
    if row.gpu:
        with pytest.raises(tk.CompileError) as caught:
            kernel(*(argument(name, api.meta) for name in names)).compile(target="sm_90a")
        errors.append(caught.value)
    return errors


def refusal(row: Any, file: Path) -> tuple[str, str]:
    """Of which class the error of these lines on the host is, and what it says; or the warning, where there is one."""
    names = _module(ON_A_HOST, file)
    said: tuple[str, str] = ("nothing", "")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(row.written, "program.py", "exec", dont_inherit=True), names)
        except Exception as error:
            kind = next(
                k.__name__ for k in type(error).__mro__ if not k.__module__.startswith("tilekit") and "_" not in k.__name__
            )
            said = kind, str(error)
        names.clear()
        gc.collect(1)  # what is left of the program, ops that have not run among it
    wrong = [str(warning.message) for warning in caught if "program.py" in str(warning.message)]
    return said if said[1] else (("UnusedOpWarning", wrong[0]) if wrong else said)


@pytest.mark.parametrize("row", IN_KERNELS, ids=lambda row: row.written.splitlines()[-1])
def test_a_kernel_is_refused_with_the_line_to_write(row: Any, cpu: tk.Device, tmp_path: Path) -> None:
    for error in refusals(row, tmp_path / "wrong.py"):
        assert error.reason == row.said
        assert error.line is not None
        assert error.column is not None
        assert error.line[error.column : error.column + error.width] == row.at


@pytest.mark.parametrize("row", ON_THE_HOST, ids=lambda row: row.written.splitlines()[-1])
def test_the_host_is_told_the_line_to_write(row: Any, cpu: tk.Device, tmp_path: Path) -> None:
    if row.written.startswith("asyncio.run(op") and sys.version_info >= (3, 14):
        pytest.skip("Python 3.14 runs whatever can be awaited")
    assert refusal(row, tmp_path / "host.py") == (row.error, row.said)


def test_an_async_function_is_no_kernel(cpu: tk.Device, tmp_path: Path) -> None:
    names = _module(
        "import tilekit as tk\n\n\n@tk.kernel\nasync def wrong(y: tk.InOut):\n    y.store(1.0)\n", tmp_path / "wrong.py"
    )
    with pytest.raises(
        tk.CompileError, match=r"kernel wrong: a kernel is a function defined with def: await belongs on the host"
    ):
        names["wrong"](api.zeros(8).sync().partition(8)).sync()


def test_there_are_enough_and_none_twice() -> None:
    assert len(ROWS) >= 60
    assert len({(row.written, row.before, row.error) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.written.splitlines()[-1])
def test_no_message_is_raw(row: Any) -> None:
    """None is Python's alone, or another library's: each has a word of what to do."""
    assert not re.search(
        r"object is not|has no len\(\)|unsupported operand|nopython|TypingError|<class|_Full|TensorView", row.said
    )


def test_the_page_is_what_the_tool_makes() -> None:
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.markdown(), "run python docs/tools/mistake_table.py"
