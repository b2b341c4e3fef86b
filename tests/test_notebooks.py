"""Kernels in the cells of a notebook: run in IPython's own shell, in this process."""

from __future__ import annotations

import builtins
import gc
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import tilekit as tk
from tilekit.errors import CompileError

interactive = pytest.importorskip("IPython.core.interactiveshell", reason="needs IPython, which the extra `test` brings")

Cell = Callable[[str], Any]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        module = types.ModuleType("cells")
        patch.setitem(sys.modules, "cells", module)
        for owner, name in [*((sys, f"ps{n}") for n in (1, 2, 3)), (builtins, "display"), (builtins, "__IPYTHON__")]:
            patch.setattr(owner, name, None, raising=False)  # the shell sets them, and leaves them behind
        shell = interactive.InteractiveShell.instance(user_module=module, colors="nocolor")
        shell.history_manager.enabled = False
        try:
            shell.run_cell("import numpy as np\nimport tilekit as tk\nfrom tilekit import api")
            yield shell
        finally:
            shell.reset(new_session=False)
            interactive.InteractiveShell.clear_instance()


@pytest.fixture
def cell(shell: Any, device: tk.Device, capsys: pytest.CaptureFixture[str]) -> Cell:
    """Run a cell; the value of its last line. What it raises is raised."""

    def run(text: str) -> Any:
        result = shell.run_cell(text, store_history=True)
        result.raise_error()
        return result.result

    return run


ADD = """
@tk.kernel
def add(y: tk.InOut):
    y.store(y.load() + {})
"""
RUN = "add(api.zeros(8)).tile(8).out().sync().numpy().tolist()"


def test_a_kernel_that_is_defined_again_is_the_new_one(cell: Cell) -> None:
    for value in (1, 2, 1):
        cell(ADD.format(value))
        assert cell(RUN) == [value] * 8


def test_the_cache_on_disk_tells_cells_apart(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    for value in (1, 2, 1):
        cell(f"N = {value}\ndef term(t):\n    return t + {10 * value}")
        cell("@tk.kernel\ndef add(y: tk.InOut):\n    y.store(term(y.load()) + N)")
        assert cell(RUN) == [11 * value] * 8
    cell("N = 2")
    assert cell(RUN) == [12] * 8
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) >= 3, "of three programs, one of which came again"


HELPERS = {
    "decorated": "@tk.function\ndef term(t):\n    return t + {}",
    "plain": "def term(t):\n    return t + {}",
    "lambda": "term = lambda t: t + {}",
    "of a helper": "def inner(t):\n    return t + {}\nif 'term' not in dir():\n    def term(t): return inner(t)",
}


@pytest.mark.parametrize("text", HELPERS.values(), ids=HELPERS)
def test_a_helper_that_is_defined_again_is_taken_up(cell: Cell, shell: Any, text: str) -> None:
    shell.user_ns.pop("term", None)
    cell(text.format(1))
    cell("@tk.kernel\ndef add(y: tk.InOut):\n    y.store(term(y.load()))")
    assert cell(RUN) == [1] * 8
    cell(text.format(2))
    assert cell(RUN) == [2] * 8
    cell("term = tk.exp")
    assert cell(RUN) == [1] * 8


@pytest.mark.parametrize(("first", "second"), [("4", "5"), ("0.5", "-0.5"), ("(1, 2)", "(1, 3)"), ("0.0", "-0.0"), ("2", "2.5")])
def test_a_constant_that_gets_another_value_is_taken_up(cell: Cell, first: str, second: str) -> None:
    cell(f"N = {first}")
    used = "N[1]" if first.startswith("(") else "N"
    cell(f"@tk.kernel\ndef add(y: tk.InOut):\n    y.store(y.load() * 0.0 + {used})")
    assert cell(RUN) == cell(f"[0.0 + {used}] * 8")
    cell(f"N = {second}")
    assert cell(RUN) == cell(f"[0.0 + {used}] * 8")


ATTRIBUTES = {
    "class": ("class Config:\n    N = {}", "Config.N = {}"),
    "base class": ("class Base:\n    N = {}\nclass Config(Base): pass", "Base.N = {}"),
    "class that is defined again": ("class Config:\n    N = {}", "class Config:\n    N = {}"),
    "module": ("import types\nConfig = types.ModuleType('configuration')\nConfig.N = {}", "Config.N = {}"),
}


@pytest.mark.parametrize(("first", "second"), ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_an_attribute_that_gets_another_value_is_taken_up(cell: Cell, first: str, second: str) -> None:
    cell(first.format(1))
    cell("@tk.kernel\ndef add(y: tk.InOut):\n    y.store(y.load() + Config.N)")
    assert cell(RUN) == [1] * 8
    cell(second.format(2))
    assert cell(RUN) == [2] * 8


def test_attributes_of_libraries_are_not_looked_at(cell: Cell, shell: Any) -> None:
    cell("import math\n@tk.kernel\ndef add(y: tk.InOut):\n    y.store(tk.exp(y.load() * math.pi))")
    assert cell(RUN) == [1] * 8
    assert shell.user_ns["add"]._origins == []


def test_a_dtype_that_becomes_another_is_taken_up(cell: Cell) -> None:
    cell("D = tk.float32\n@tk.kernel\ndef add(y: tk.InOut):\n    y.store((y.load() + 2049.0).astype(D).astype(tk.float32))")
    assert cell(RUN) == [2049] * 8
    cell("D = tk.float16")
    assert cell(RUN) == [2048] * 8


def test_an_equal_constant_compiles_nothing(cell: Cell, shell: Any) -> None:
    cell("scale = 1.25\n@tk.kernel\ndef add(y: tk.InOut):\n    y.store(y.load() + scale)")
    assert cell(RUN) == [1.25] * 8
    before = dict(shell.user_ns["add"]._specialisations)
    cell("scale = 5 / 4")  # another object of the same value
    assert cell(RUN) == [1.25] * 8
    assert shell.user_ns["add"]._specialisations == before != {}


def test_a_tuple_argument_s_kernel_takes_up_what_changed(cell: Cell) -> None:
    cell("N = 1\n@tk.kernel\ndef pair(y: tk.InOut, xs):\n    y.store(y.load() + xs[0] + N)")
    line = "pair(api.zeros(8), (1.0, 2.0)).tile(8).unzip()[0].sync().numpy().tolist()"
    assert cell(line) == [2] * 8
    cell("N = 2")
    assert cell(line) == [3] * 8


def test_a_name_that_is_gone_is_an_error_at_the_cell_s_line(cell: Cell, shell: Any) -> None:
    cell("def term(t):\n    return t + 1")
    cell("@tk.kernel\ndef add(y: tk.InOut):\n    y.store(term(y.load()))")
    assert cell(RUN) == [1] * 8
    del shell.user_ns["term"]
    with pytest.raises(CompileError, match="term is not defined") as caught:
        cell(RUN)
    assert (caught.value.lineno, caught.value.line) == (3, "    y.store(term(y.load()))")
    assert str(caught.value).startswith(f"Cell In[{shell.execution_count - 3}], line 3: ")


def test_an_error_shows_the_line_of_the_cell_with_a_caret(cell: Cell) -> None:
    cell("# a comment\n@tk.kernel\ndef add(y: tk.InOut):\n    t = y.load()\n    y.store(t.foo)")
    with pytest.raises(CompileError) as caught:
        cell(RUN)
    first, *excerpt = str(caught.value).splitlines()
    assert ", line 5: a tile has no attribute foo" in first
    assert excerpt == ["    y.store(t.foo)", "            ^^^^^"]


@pytest.mark.parametrize("call", ["launched().sync()", "await launched()"])
def test_an_error_in_a_kernel_shows_the_lines_of_cells_alone(
    cell: Cell, shell: Any, call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = shell.execution_count
    cell(
        "@tk.kernel\ndef bad(y: tk.InOut):\n    y.store(y.load().foo)\n\n"
        "def launched():\n    return bad(api.ones(8)).tile(8).out()"
    )
    with pytest.raises(CompileError):
        cell(call)
    assert re.sub(r"foo; there are .*", "foo; ...", capsys.readouterr().out).splitlines() == [
        "Traceback (most recent call last):",
        f"  Cell In[{at + 1}], line 1, in <module>",
        f"    {call}",
        f"CompileError: Cell In[{at}], line 3: a tile has no attribute foo; ...",
        "    y.store(y.load().foo)",
        "            ^^^^^^^^^^^^",
        f"in out(kernel bad(partition(8)(ones))), built at Cell In[{at}], line 6",
    ]


def test_a_remark_names_the_cell_of_a_helper_and_that_of_its_call(cell: Cell, shell: Any) -> None:
    at = shell.execution_count
    cell("def softened(t):\n    return tk.exp(t - tk.max(t, 1, keepdims=True))")
    cell("@tk.kernel\ndef soften(y: tk.Out, x: tk.In):\n    y.store(softened(tk.load_tile_like(x, y)))")
    cell("y = api.meta((64, 64))\nexplained = soften(y.partition((8, 64)), y).explain('sm_90a')")
    explained = shell.user_ns["explained"]
    (remark,) = explained.remarks
    shown = f"Cell In[{at}], line 2, column 12, called in Cell In[{at + 1}], line 3, column 13"
    assert ", called in ".join(map(str, remark.stack)) == shown
    assert shown in str(explained)
    assert f"<td>{shown}</td>" in explained._repr_mimebundle_()["text/html"]


def test_an_op_that_is_not_run_is_warned_of_at_its_cell(cell: Cell, shell: Any) -> None:
    at = shell.execution_count
    with pytest.warns(tk.UnusedOpWarning, match=rf"^ones, built at Cell In\[{at}\], line 2, was never run"):
        cell("op = (\n    api.ones(8))\ndel op")


def test_timeit_times_a_launch(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    cell(ADD.format(1))
    cell("y = api.zeros(8).sync()")
    cell("%timeit -n 2 -r 2 add(y).tile(8).sync()")
    assert "per loop" in capsys.readouterr().out
    assert cell("y.numpy().tolist()") == [4] * 8
    cell("%%timeit -n 1 -r 1 z = api.zeros(8).sync()\nadd(z).tile(8).sync()\ny.fill(z.numpy()[0]).sync()")
    assert cell("y.numpy().tolist()") == [1] * 8


@pytest.mark.parametrize("magic", ["timeit -n 1 -r 2", "time", "capture"])
def test_a_kernel_may_be_defined_where_it_is_timed(cell: Cell, magic: str) -> None:
    cell("results = []")
    cell(
        f"%%{magic}\n\nN = 3\ndef twice(t):\n    return 2 * t\n@tk.kernel\ndef local(y: tk.InOut):\n"
        "    y.store(twice(y.load()) + N)\nresults.append(local(api.ones(8)).tile(8).out().sync().numpy()[7])"
    )
    assert set(cell("results")) == {np.float32(5)}


@pytest.mark.parametrize("mode", ["Plain", "Context", "Minimal"])
def test_each_of_ipython_s_modes_shows_lines(cell: Cell, shell: Any, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("xmode", mode)
    try:
        with pytest.raises(CompileError):
            cell("@tk.kernel\ndef bad(y: tk.InOut):\n    y.store(y.load().foo)\nbad(api.ones(8)).tile(8).sync()")
    finally:
        shell.run_line_magic("xmode", "Context")
    assert "\n    y.store(y.load().foo)\n            ^^^^^^^^^^^^\nin kernel bad" in capsys.readouterr().out


def test_an_error_in_a_timed_cell_shows_its_line(cell: Cell) -> None:
    shown = r"<magic-timeit>:3: a tile has no attribute foo[^\n]*\n    y.store\(y.load\(\).foo\)\n"
    with pytest.raises(CompileError, match=shown):
        cell("%%timeit -n 1 -r 1\n@tk.kernel\ndef bad(y: tk.InOut):\n    y.store(y.load().foo)\nbad(api.ones(8)).tile(8).sync()")


def test_await_in_a_cell(cell: Cell) -> None:
    assert cell("(await tk.zip(api.ones(2), api.zeros(2)))[0].numpy().tolist()") == [1, 1]


# what a notebook shows


def shown(shell: Any, line: str) -> dict[str, str]:
    """What a notebook shows of the value of a line, by MIME type."""
    result = shell.run_cell(line, store_history=False)
    result.raise_error()
    data, _ = shell.display_formatter.format(result.result)
    return dict(data)


def test_an_op_draws_itself_and_can_be_run_then(cell: Cell, shell: Any) -> None:
    cell(ADD.format(1))
    cell("x = api.ones((2, 4)).sync()\nop = add(x.partition((2, 4))).first().then(lambda part: part.to_host()).map(np.sum)")
    data = shown(shell, "op")
    assert set(data) == {"text/plain", "image/svg+xml"}
    assert data["text/plain"] == "Map(AndThen(first(kernel add)))"
    assert texts(data["image/svg+xml"]) == [
        *("kernel add", "y: float32[2, 4] in tiles of [2, 4]", f"on {tk.default_device().label}"),
        *("first float32[2, 4]", "AndThen", "Map", "sum"),
        "has not run: .sync() or await runs it",
    ]
    assert cell("op.sync()") == 16
    assert texts(shown(shell, "op")["image/svg+xml"])[-1] == "has run"


def test_an_op_that_was_shown_is_not_warned_of(cell: Cell, shell: Any, recwarn: pytest.WarningsRecorder) -> None:
    cell("op = api.ones(8).shared()")
    for line in ("op", "op.map(len)", "tk.zip(op, op)"):
        assert "<svg" in shown(shell, line)["image/svg+xml"]
    cell("del op")
    shell.displayhook.flush()
    gc.collect()
    assert not recwarn


def test_a_graph_draws_what_was_recorded(cell: Cell, shell: Any) -> None:
    cell(ADD.format(1))
    cell("y, z = api.zeros(8).sync(), api.zeros(8).sync()\ngraph = tk.zip(add(y.partition(8)), api.memcpy(z, y)).graph()")
    data = shown(shell, "graph")
    assert data["text/plain"] == "<CUDA graph Zip: 2 nodes>"
    assert {"kernel add", "copy", "32 bytes"} <= set(texts(data["image/svg+xml"]))
    assert cell("graph.mermaid()") == 'flowchart TD\n    n0["kernel add"]\n    n1["copy"]\n    n0 --> n1\n'
    assert cell("graph.svg()") == data["image/svg+xml"]


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_an_explanation_is_shown_as_tables(cell: Cell, shell: Any, target: str) -> None:
    if target != "cpu":
        pytest.importorskip("numba.cuda", reason="compiles for a GPU")
    cell(ADD.format(1))
    data = shown(shell, f"add(api.meta(8).partition(8)).explain({target!r})")
    assert "\n" not in data["text/plain"]
    root = ElementTree.fromstring(f"<div>{data['text/html']}</div>")
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    said = cell(f"str(add(api.meta(8).partition(8)).explain({target!r}))")
    assert rows[0][0] == "line"
    assert next(line.split() for line in said.splitlines() if line.startswith("line")) == " ".join(rows[0]).split()
    assert len(rows) == sum(len(table.splitlines()) for table in said.split("\n\n")[1:])
    assert root[0].text == said.splitlines()[0]


def texts(picture: str) -> list[str]:
    """The words in an SVG picture, in order."""
    return [str(text.text) for text in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
