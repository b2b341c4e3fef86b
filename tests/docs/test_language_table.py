"""The pages of the tile language are what their tool makes; no cell of them is empty, and every name leads to its description."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tilekit.lang.registry import OPS

TOOL = Path(__file__).resolve().parents[2] / "docs" / "tools" / "language_table.py"


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("language_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["language_table"] = module
    spec.loader.exec_module(module)
    return module


TABLE = _tool()


PAGES = TABLE.pages()
ROLE = re.compile(r"\{py:\w+\}`([^`<]*) <([^>]*)>`")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_page_is_what_the_tool_makes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path], "run python docs/tools/language_table.py"


def test_there_is_no_other_page() -> None:
    assert set((TABLE.REFERENCE / "language").glob("*.md")) == set(PAGES) - {TABLE.REFERENCE / "language.md"}


@pytest.mark.parametrize("op", OPS)
def test_an_operation_leads_to_its_description_on_its_page_and_on_the_first(op: str) -> None:
    page = PAGES[TABLE.REFERENCE / "language" / f"{OPS[op].family}.md"]
    assert f"| {{py:func}}`tk.{op} <tilekit.{op}>` |" in page
    assert f".. autofunction:: tilekit.{op}\n" in page
    assert f"{{py:func}}`tk.{op} <tilekit.{op}>`" in PAGES[TABLE.REFERENCE / "language.md"]


def test_every_operation_has_its_peers_and_every_family_its_title() -> None:
    assert set(TABLE.PEERS.OPERATIONS) == set(OPS)
    assert {op.family for op in OPS.values()} <= set(TABLE.TITLES)


ROWS = [line for text in PAGES.values() for line in text.splitlines() if line.startswith("| ") and not line.startswith("| |")]


@pytest.mark.parametrize("line", ROWS, ids=lambda line: line[:60])
def test_no_cell_is_empty_and_no_row_too_wide(line: str) -> None:
    cells = [cell.strip() for cell in ROLE.sub(r"\1", line.replace("\\|", "/")).strip("|").split("|")]
    assert all(cells), line
    # Two columns are a name and a text that wraps. Four are names, a line of which holds about 26 characters in 816 pixels.
    assert len(cells) in (2, 4)
    if len(cells) == 4:
        assert max(map(len, cells)) <= 45


@pytest.mark.parametrize("owner", TABLE.MEMBERS)
def test_every_public_member_has_its_line(owner: str) -> None:
    cls, _ = TABLE.MEMBERS[owner]
    members = {n for n, m in vars(cls).items() if not n.startswith("_") and (inspect.isfunction(m) or isinstance(m, property))}
    shown = {name.partition(".")[2] for name, *_ in TABLE.members_of(owner)}
    internal = {"own_index"}  # for operations of other families, not for kernels
    assert members - internal <= shown


@pytest.mark.parametrize("op", OPS)
def test_an_example_is_no_wider_than_its_page(op: str) -> None:
    lines = [line.strip() for line in (inspect.getdoc(OPS[op].function) or "").splitlines()]
    code = [line for line in lines if line.startswith((">>>", "..."))]
    assert max(map(len, code)) <= 97  # docs/_static/tilekit.css
