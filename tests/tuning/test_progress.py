"""The bar of a search."""

from __future__ import annotations

import io
import sys

import pytest

from tilekit.tuning.progress import shown


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def text_of(file: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", file)
    with shown("tuning scale") as progress:
        progress("compile", 3, 12)
    return file.getvalue()


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.setenv("TERM", "xterm")
    text = text_of(Terminal(), monkeypatch)
    assert "tuning scale: compile" in text
    assert "3/12" in text


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text_of(io.StringIO(), monkeypatch) == ""


def test_without_rich_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert text_of(Terminal(), monkeypatch) == ""
