"""Names say what a thing is: words that say nothing are kept out, see docs/development."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilekit

PACKAGE = Path(tilekit.__file__).parent
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EMPTY = {"made", "found", "given", "place", "told", "kin", "most"}
PER_THOUSAND = 1
# What users write stays as it is: `tk.graphed(most=4)`.
PUBLIC = {("_capture/graphed.py", "most")}
ROOMS = sorted(path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())


def stored(path: Path) -> Iterator[tuple[str, int]]:
    """The names that a file gives: to variables, parameters, attributes, functions and classes; and where."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


@pytest.mark.parametrize("room", [*ROOMS, BENCHMARKS], ids=lambda room: room.name)
def test_names_say_what_things_are(room: Path) -> None:
    files = [room] if room.is_file() else sorted(room.rglob("*.py"))
    root = BENCHMARKS if room is BENCHMARKS else PACKAGE
    names = [(file.relative_to(root).as_posix(), line, name) for file in files for name, line in stored(file)]
    empty = [f"{name} in {file}:{line}" for file, line, name in names if name.strip("_") in EMPTY and (file, name) not in PUBLIC]
    assert files
    assert len(empty) * 1000 <= PER_THOUSAND * len(names), empty


def test_every_kind_of_name_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text("class A:\n    def b(self, c, *d):\n        self.e = f = c\n        for g in f: h(g)\n")
    assert sorted(name for name, _ in stored(file)) == ["A", "b", "c", "d", "e", "f", "g", "self"]
