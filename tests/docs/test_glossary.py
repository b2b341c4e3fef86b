"""Words that a reader may not know are in the glossary, and pages lead there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECTIONS = re.split(r"^## ", (DOCS / "glossary.md").read_text("utf-8"), flags=re.M)[1:]
PAGES = sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
ROLE = re.compile(r"\{term\}`([^`]*)`")
NO_PROSE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def terms_of(section: str) -> list[str]:
    (body,) = re.findall(r"^```\{glossary\}\n(.*?)^```$", section, re.M | re.S)
    return [line for line in body.splitlines() if line and not line.startswith(" ")]


OWN, FIELD = terms_of(SECTIONS[0]), [term for section in SECTIONS[1:] for term in terms_of(section)]


def linked(text: str) -> set[str]:
    return {re.sub(r".*<(.*)>", r"\1", role) for role in ROLE.findall(text)}


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def test_every_term_is_there_once_and_explained() -> None:
    terms = OWN + FIELD
    assert len(terms) == len(set(terms))
    for section in SECTIONS:
        for term in terms_of(section):
            assert re.search(rf"^{re.escape(term)}\n  \S", section, re.M), term


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_the_glossary_name_its_terms(page: Path) -> None:
    assert linked(page.read_text("utf-8")) <= {*OWN, *FIELD}


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_links_the_words_of_the_field_that_it_uses(page: Path) -> None:
    text = page.read_text("utf-8")
    prose = NO_PROSE.sub("", text)
    used = {term for term in FIELD if re.search(rf"(?<![\w-]){re.escape(term)}(s|es)?(?![\w-])", prose)}
    assert used <= linked(text)


def test_every_word_of_the_field_is_used_somewhere() -> None:
    used = set().union(*(linked(page.read_text("utf-8")) for page in PAGES))
    assert set(FIELD) <= used
