"""Every page executes: its ```python blocks run in order, and print the ```text block that follows them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tilekit as tk

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "_build" not in p.parts)
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


class Block(NamedTuple):
    """Python code, the line of the page before it, and what it must print (None where the page does not say)."""

    code: str
    line: int
    output: str | None


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        language, body = match.groups()
        if language == "python":
            found.append(Block(body, text.count("\n", 0, match.start(2)), None))
        elif language == "text" and found and not text[end : match.start()].strip():
            found[-1] = found[-1]._replace(output=body)
        end = match.end()
    return found


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p.read_text("utf-8"))], ids=name)
def test_page_runs_and_prints_what_it_shows(page: Path, device: tk.Device, tmp_path: Path, printed: Callable[[], str]) -> None:
    text = page.read_text("utf-8")
    # Kernels are read from their file, so the code stands in one, at the lines where the page has it.
    lines = [""] * text.count("\n")
    for block in blocks(text):
        code = block.code.splitlines()
        lines[block.line : block.line + len(code)] = code
    file = tmp_path / f"{page.stem.replace('-', '_')}.py"
    file.write_text("\n".join(lines) + "\n", "utf-8")

    namespace: dict[str, Any] = {"__name__": file.stem, "__file__": str(file)}
    everything, expected = "", []
    for block in blocks(text):
        exec(compile("\n" * block.line + block.code, str(file), "exec"), namespace)
        output = printed()
        everything += output
        if block.output is not None:
            expected += block.output.splitlines()
            if device.kind == "cpu":
                assert output == block.output, f"{name(page)}, line {block.line}"
    # A GPU prints through a buffer of its own, in any order: its lines are looked for in all that the page printed.
    assert set(expected) <= set(everything.splitlines())


@pytest.mark.parametrize("page", [p for p in PAGES if "tutorials" in p.parts], ids=name)
def test_tutorial_has_its_parts(page: Path) -> None:
    text = page.read_text("utf-8")
    for part in ("![", "{literalinclude} ../../examples/", "## What happens", "## Takeaways", "## Exercises", "## See also"):
        assert part in text, part
    exercises = text.partition("## Exercises")[2].partition("## See also")[0]
    answers = re.findall(r"<details>\n<summary>Answer</summary>\n(.*?)</details>", exercises, re.S)
    assert [re.findall(r"^\*\*(\d)\.\*\*", exercises, re.M), len(answers)] == [["1", "2", "3"], 3]
    assert all("```python" in answer for answer in answers)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = CODE.sub("", FENCE.sub("", page.read_text("utf-8")))
    broken = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not broken
