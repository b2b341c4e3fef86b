"""Every page executes: its ```python blocks run in order, and print the ```text block that follows them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doc_pages import FENCE, PAGES, blocks, name, text_of

import tilekit as tk

CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(text_of(p))], ids=name)
def test_page_runs_and_prints_what_it_shows(page: Path, device: tk.Device, tmp_path: Path, printed: Callable[[], str]) -> None:
    text = text_of(page)
    if re.search(r"^import torch$", text, re.M):
        pytest.importorskip("torch", reason="torch is not installed")
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


WIDEST = 100  # characters of a line of code that fit beside the side bars of a window 1400 pixels wide: docs/_static/tilekit.css


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "README.md"], ids=name)
def test_no_line_of_code_is_cut_off(page: Path) -> None:
    # What is printed wraps; a line of code that does would be another one.
    code = [body for language, body in FENCE.findall(text_of(page)) if language in ("python", "console", "sh")]
    wide = [line for body in code for line in body.splitlines() if len(line) > WIDEST]
    assert not wide


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = CODE.sub("", FENCE.sub("", page.read_text("utf-8")))
    broken = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not broken
