"""The pages of the documentation as a reader sees them: their blocks of code, and the parts of programs that they include."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "_build" not in p.parts)
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.M | re.S)
INCLUDED = re.compile(
    r'^```\{literalinclude\} (\S+)\n:language: python\n:start-after: "?([^"\n]+)"?\n:end-before: "?([^"\n]+)"?\n```\n', re.M
)


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


def text_of(page: Path) -> str:
    """The page, with the parts of programs that it includes where a reader sees them."""

    def included(match: re.Match[str]) -> str:
        program, begin, end = match.groups()
        code = (page.parent / program).read_text("utf-8")
        assert code.count(begin) == code.count(end) == 1, f"{name(page)}: {program} is not marked"
        return f"```python\n{code.partition(begin)[2].partition(end)[0].strip()}\n```\n"

    return INCLUDED.sub(included, page.read_text("utf-8"))


def name(page: Path) -> str:
    """Its path from the repository's root."""
    return page.relative_to(ROOT).as_posix()
