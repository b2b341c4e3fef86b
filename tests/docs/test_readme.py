"""The README keeps its promises in form; `.ci/run` executes its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")


def test_the_first_two_sh_blocks_are_one_command_line_each() -> None:
    first, second = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S)[:2]
    for block in (first, second):
        assert block.count("\n") == 1
        assert shlex.split(block)[:3] == ["python3", "-m", "venv"]
    assert "examples/03_saxpy.py" in first
    assert "TILEKIT_DEVICE=cpu" in first
    assert "pytest" in second


def test_how_long_the_tests_take_is_said_before_they_start() -> None:
    before, _ = TEXT.split(".venv/bin/python -m pytest\n", 1)
    assert re.search(r"\bminutes on two cores", before.rpartition("```\n")[2])


def test_the_introduction_is_three_lines() -> None:
    introduction = TEXT.split("\n\n")[1]
    assert introduction.count("\n") == 2


def test_the_kernel_is_short() -> None:
    kernel = re.search(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    assert kernel is not None
    assert len([line for line in kernel[1].splitlines() if line.strip()]) <= 15


def test_every_extra_that_is_named_exists() -> None:
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text("utf-8").partition("optional-dependencies]")[2], re.M)
    pages = [TEXT, *(p.read_text("utf-8") for p in (ROOT / "docs").rglob("*.md"))]
    named = {extra for page in pages for extra in re.findall(r"(?:tilekit-cuda|\.)\[(\w+)\]", page)}
    assert named <= set(extras)
    assert {"cu12", "cu13", "test", "docs", "bench"} <= set(extras)


def test_every_tutorial_is_listed_in_order() -> None:
    tutorials = sorted(f"docs/tutorials/{page.name}" for page in (ROOT / "docs" / "tutorials").glob("*.md"))
    assert re.findall(r"\((docs/tutorials/[^)]+[.]md)\)", TEXT) == tutorials
