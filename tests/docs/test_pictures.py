"""The pictures are what their scripts draw today."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")  # they read every file of the package, once
def tools() -> tuple[ModuleType, ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS / "tools"))
        import draw_architecture
        import draw_tutorials

        for name in ("drawing", "draw_architecture", "draw_tutorials"):
            patch.delitem(sys.modules, name)
    return draw_architecture, draw_tutorials


def test_architecture_picture_is_current(tools: tuple[ModuleType, ModuleType]) -> None:
    for room in tools[0].ROOMS:
        drawn = tools[0].draw(room).svg()
        assert tools[0].picture(room).read_text("utf-8") == drawn, "run python docs/tools/draw_architecture.py"


def test_tutorial_pictures_are_current(tools: tuple[ModuleType, ModuleType]) -> None:
    for name, draw in tools[1].PICTURES.items():
        assert (DOCS / "images" / f"{name}.svg").read_text("utf-8") == draw().svg(), "run python docs/tools/draw_tutorials.py"


def test_picture_of_speed_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "tools"))
    import draw_speed

    for name in ("drawing", "draw_speed", "sweep_tables"):
        monkeypatch.delitem(sys.modules, name)
    assert draw_speed.PICTURE.read_text("utf-8") == draw_speed.draw().svg(), "run python docs/tools/draw_speed.py"


def test_every_module_has_a_layer(tools: tuple[ModuleType, ModuleType]) -> None:
    edges, _ = tools[0].imports()
    rows = {name for row in tools[0].layers() for name in row}
    modules = {name for edge in edges for name in edge} - {"__init__"}
    assert modules <= rows


def test_only_driver_and_compiler_are_close_to_the_device(tools: tuple[ModuleType, ModuleType]) -> None:
    _, close_to_device = tools[0].imports()
    assert close_to_device <= {"_driver", "compiler"}


def test_imports_are_read_rightly(tools: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    package = tmp_path / "tilekit"
    (package / "ops").mkdir(parents=True)
    (package / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tilekit import b\nimport numba.cuda\n"
    )
    (package / "b.py").write_text("def f():\n    from tilekit import a\n")
    (package / "ops" / "c.py").write_text("from .. import b\nfrom ..a import x\nfrom . import d\n")
    (package / "ops" / "d.py").write_text("import tilekit.b\n")
    edges, close_to_device = tools[0].imports(package)
    assert edges == {("b", "a"), ("ops", "b"), ("ops", "a")}
    assert close_to_device == {"a"}
    assert tools[0].imports(package, "ops")[0] == {("c", "d")}
    assert tools[0].reduce(edges, {"ops": 0, "b": 1, "a": 2}) == {("ops", "b"), ("b", "a")}


def test_rows_follow_from_imports_and_a_circle_is_refused(tools: tuple[ModuleType, ModuleType]) -> None:
    assert tools[0].levels({("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")}) == [["a"], ["b", "d"], ["c"]]
    with pytest.raises(ValueError, match="a circle of imports: a, b, c"):
        tools[0].levels({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")})
