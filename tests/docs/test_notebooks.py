"""The notebooks of the documentation run, and show what is kept in their files; pages are made of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tools"))
    import notebooks

    yield notebooks
    monkeypatch.delitem(sys.modules, "notebooks")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path: Path, tmp_path: Path) -> None:
    for needed in ("ipykernel", "nbclient"):
        pytest.importorskip(needed, reason="the extra `test` brings it")
    copy = Path(shutil.copy(path, tmp_path))
    where = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": where, "TILEKIT_DEVICE": "cpu"}
    command = [sys.executable, str(ROOT / "docs" / "tools" / "notebooks.py"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert copy.read_text("utf-8") == path.read_text("utf-8"), f"run python docs/tools/notebooks.py {path.relative_to(ROOT)}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_page_has_its_code_and_what_it_shows(tool: ModuleType, path: Path) -> None:
    text = path.read_text("utf-8")
    page = tool.as_markdown(text, path.name)
    assert f"{{download}}`{path.name}`" in page
    for cell in json.loads(text)["cells"]:
        assert "".join(cell["source"]) in page
    assert page.count("<svg") == text.count("<svg") >= 2
    assert "CompileError: Cell In[" in page
    assert re.search(r"\n````text\narray\(", page)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_somewhere(path: Path) -> None:
    sources = [
        "".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "markdown"
    ]
    links = re.findall(r"\]\(([^)#:]+)\)", "\n".join(sources))
    assert links
    assert all((path.parent / link).exists() for link in links)


def test_outputs_of_all_kinds_are_shown(tool: ModuleType) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
        {"output_type": "display_data", "data": {"text/plain": ["short"], "text/html": ["<table/>"]}},
        {"output_type": "execute_result", "data": {"text/plain": ["1"]}},
        {"output_type": "error", "traceback": ["\x1b[31mValueError\x1b[39m: no"]},
    ]
    cells = [{"cell_type": "markdown", "source": ["# Title"]}, {"cell_type": "code", "source": ["f()"], "outputs": outputs}]
    assert tool.as_markdown(json.dumps({"cells": cells}), "n.ipynb").split("\n\n") == [
        *("# Title", "This page is a notebook: {download}`n.ipynb`.", "````python\nf()\n````", "````text\na\nb\n````"),
        *(
            "````{raw} html\n<div style='overflow-x: auto'><table/></div>\n````",
            "````text\n1\n````",
            "````text\nValueError: no\n````\n",
        ),
    ]
