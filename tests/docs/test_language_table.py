"""The page of the tile language is what its tool makes, and no cell of it is empty."""

from __future__ import annotations

import importlib.util
import inspect
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


def test_the_page_is_what_the_tool_makes() -> None:
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.markdown(), "run python docs/tools/language_table.py"


def test_every_operation_has_its_peers_and_every_family_its_title() -> None:
    assert set(TABLE.PEERS.OPERATIONS) == set(OPS)
    assert {op.family for op in OPS.values()} <= set(TABLE.TITLES)


@pytest.mark.parametrize(
    "line", [line for line in TABLE.markdown().splitlines() if line.startswith("| ")], ids=lambda line: line[:40]
)
def test_no_cell_is_empty(line: str) -> None:
    if line.startswith(("| |", "| name")):
        return
    cells = [cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")]
    assert len(cells) in (2, 5)
    assert all(cells), line


@pytest.mark.parametrize("owner", TABLE.MEMBERS)
def test_every_public_member_has_its_line(owner: str) -> None:
    cls, _ = TABLE.MEMBERS[owner]
    members = {n for n, m in vars(cls).items() if not n.startswith("_") and (inspect.isfunction(m) or isinstance(m, property))}
    shown = {name.partition(".")[2] for name, _ in TABLE.members_of(owner)}
    internal = {"own_index"}  # for operations of other families, not for kernels
    assert members - internal <= shown
