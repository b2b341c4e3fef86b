"""What the docs and the README say of sweeps is what the records have."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tilekit_benchmarks import report
from tilekit_benchmarks.drawn.record import load

TOOLS = Path(__file__).resolve().parents[2] / "docs" / "tools"
NAMES = ("drawing", "draw_speed", "sweep_tables", "record_sweeps")


@pytest.fixture(scope="module")
def tools() -> Iterator[tuple[ModuleType, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        import record_sweeps
        import sweep_tables

        for name in NAMES:
            patch.delitem(sys.modules, name)
        yield sweep_tables, record_sweeps


@pytest.mark.parametrize("name", ["PAGE", "README"])
def test_a_page_has_the_figures_of_the_records(tools: tuple[ModuleType, ModuleType], name: str) -> None:
    page = getattr(tools[0], name)
    assert page.read_text("utf-8") == tools[0].page(page), "run python docs/tools/sweep_tables.py"


def test_every_family_has_a_record_and_a_sentence_on_its_slowest(tools: tuple[ModuleType, ModuleType]) -> None:
    tables, _ = tools
    assert list(tables.runs()) == list(tables.FAMILIES)
    assert sorted(family for _, group in tables.GROUPS for family in group) == sorted(tables.FAMILIES)
    *_, sentences = tables.PAGE.read_text("utf-8").partition("\nWhat the slowest have in common")
    sentences, *_ = sentences.partition("\n## ")
    assert re.findall(r"^- `(\w+)`: ", sentences, re.M) == list(tables.FAMILIES)


def test_a_record_is_whole_and_says_what_was_measured(tools: tuple[ModuleType, ModuleType]) -> None:
    for family, mine in tools[0].runs().items():
        for path, run in mine:
            assert path.name == f"sweep-{family}-{run.seed}-h200.json"
            assert [result.case.number for result in run.results] == list(range(run.cases))
            assert run.commit is not None
            assert run.device.name == "NVIDIA H200"
            assert all("/" not in (piece.command or "") for piece in run.pieces)
        assert (tools[0].RECORDS / f"sweep-{family}-h200.png").exists()


def test_the_statistics_are_those_that_the_benchmark_prints(tools: tuple[ModuleType, ModuleType]) -> None:
    for mine in tools[0].runs().values():
        for _, run in mine:
            of, lines = tools[0].statistics(run.results), run.body()
            assert re.search(r"of the others (\S+);" if of.failed else r"^geometric mean (\S+);", lines[1])[1] == f"{of.mean:.3f}"
            lowest, low, _, median, _, high, _ = lines[3].split()
            assert [lowest, low, median, high] == [f"{value:.3f}" for value in (of.lowest, of.low, of.median, of.high)]


def test_what_misses_the_aim_is_bold_and_listed(tools: tuple[ModuleType, ModuleType]) -> None:
    tables, _ = tools
    bold = {"mean": set(), "low": set(), "lowest": set()}
    family = ""
    for row in tables.table()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        name = re.match(r"\[`(\w+)`\]", cells[0])
        family = name[1] if name else family
        for kind, cell in (("mean", cells[4]), ("low", cells[5]), ("lowest", cells[8])):
            if "**" in cell:
                bold[kind].add(family)
    listed = [set(re.findall(r"`(\w+)`", line.rpartition(": ")[2])) for line in tables.missed()]
    assert listed == list(bold.values())


def pieces(tables: ModuleType, folder: Path, count: int) -> Path:
    """The first `count` of three pieces of a sweep of rows, as they would come from a machine whose git is out of date."""
    path, _ = tables.runs()["rows"][0]
    fields = json.loads(path.read_text("utf-8"))
    folder.mkdir()
    for start in range(0, 60, 20)[:count]:
        piece = {**fields["pieces"][0], "start": start, "stop": start + 20, "command": "bench --lock /tmp/x --json /tmp/a/b.json"}
        part = {
            "results": fields["results"][start : start + 20],
            "pieces": [piece],
            "commit": "stale",
            "dirty": True,
            "notes": [],
        }
        (folder / f"{start}.json").write_text(json.dumps({**fields, **part}))
    return folder


def test_pieces_in_a_folder_make_a_record(tools: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    tables, recording = tools
    (whole,) = recording.sweeps(pieces(tables, tmp_path / "all", 3))
    run = recording.signed(whole, "abc")
    assert run.results == tables.runs()["rows"][0][1].results
    assert (run.commit, run.dirty) == ("abc", None)
    assert "said stale, with changes" in run.notes[0]
    assert [piece.command for piece in run.pieces] == ["bench --lock x --json b.json"] * 3
    assert recording.signed(run, "abc").notes == run.notes
    assert recording.signed(whole, None).commit == "stale"
    report.save(run, tmp_path / "record.json")
    assert load(tmp_path / "record.json") == run


def test_a_sweep_that_lacks_cases_is_left_out(
    tools: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not tools[1].sweeps(pieces(tools[0], tmp_path / "some", 2))
    assert ": left out, it has 40 of 60 cases" in capsys.readouterr().err
