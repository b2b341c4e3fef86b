"""Records on disk, and the command line that shows them and takes them elsewhere."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

import tilekit as tk
from tilekit import cli
from tilekit.compiler import cache_folder
from tilekit.tuning import records
from tilekit.tuning.records import Key, Record
from tilekit.tuning.search import Candidate

KEY = Key(device="a GPU (sm_90a)", toolkit="numba-cuda 1", kernel="module.product", source="abc", sizes="x=float32[64]")
BEST, SLOW = tk.Config(tile=(64, 32), BM=8), tk.Config(tile=(8, 8), BM=8)
CANDIDATES = (Candidate(config=BEST, samples=[12.5]), Candidate(config=SLOW, reason="spills"))
RECORD = Record(key=KEY, config=BEST, us=12.5, candidates=CANDIDATES)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_folder, "_said", set())
    return tmp_path / "cache" / "tuning"


def test_a_record_is_kept_under_its_key(folder: Path) -> None:
    assert records.load(KEY) is None
    records.save(RECORD)
    assert records.load(KEY) == RECORD
    assert records.load(replace(KEY, sizes="x=float32[128]")) is None
    newer = replace(RECORD, us=3.0)
    records.save(newer)
    assert records.load(KEY) == newer
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    assert folder.stat().st_mode & 0o077 == 0


def test_every_part_of_a_key_counts() -> None:
    names = {replace(KEY, **{part: "else"}).file_name for part in ("device", "toolkit", "kernel", "source", "sizes")}
    assert len(names | {KEY.file_name}) == 6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({**RECORD.to_json(), "us": "NaN"}),
        json.dumps({**RECORD.to_json(), "candidates": 3}),
        json.dumps({**RECORD.to_json(), "config": 3}),
        json.dumps({**RECORD.to_json(), "kernel": 3}),
        '{"config": 3}',
    ],
)
def test_what_is_no_record_is_not_used(folder: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    records.save(RECORD)
    (folder / KEY.file_name).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert records.load(KEY) is None
    assert "is no tuning record of this version" in caplog.text
    assert records.records() == []


def test_a_record_under_another_s_name_is_not_used(folder: Path) -> None:
    records.save(RECORD)
    other = replace(KEY, kernel="module.other")
    (folder / KEY.file_name).rename(folder / other.file_name)
    assert records.load(other) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a system without owners")
def test_a_folder_that_others_may_write_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    records.save(RECORD)
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert records.load(KEY) is None
        records.save(RECORD)
    assert caplog.text.count("tuning records are not used: others may write") == 1


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEKIT_CACHE_DIR", "off")
    records.save(RECORD)
    assert records.load(KEY) is None
    assert records.records() == []
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"format": "tilekit tuning 1", "records": []}))
    with pytest.raises(ValueError, match="no records are kept"):
        records.import_file(path)


def test_a_disk_that_refuses_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.parent.write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        records.save(RECORD)
        assert records.load(KEY) is None
    assert "cannot write tuning records" in caplog.text


def test_records_go_elsewhere_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = replace(RECORD, key=replace(KEY, sizes="x=float32[128]"))
    for record in (RECORD, second):
        records.save(record)
    path = tmp_path / "records.json"
    assert records.export(path) == 2
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert records.import_file(path) == 2
    assert records.load(KEY) == RECORD
    assert records.records() == [second, RECORD]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "x"}', '{"format": "tilekit tuning 1", "records": [{}]}'])
def test_a_file_of_something_else_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "records.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="records.json is no file of tuning records"):
        records.import_file(path)
    assert records.records() == []


def test_the_command_line_shows_exports_and_imports(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["tune", "show"]) == 0
    assert capsys.readouterr().out == f"{folder}: 0 records\n"
    records.save(RECORD)
    cli.main(["tune", "show"])
    out = capsys.readouterr().out
    assert f"{folder}: 1 record\n" in out
    assert "module.product(x=float32[64]) on a GPU (sm_90a), by numba-cuda 1\n" in out
    assert "12.5 us with Config(tile=(64, 32), BM=8), of 2\n" in out
    cli.main(["tune", "show", "--json"])
    assert json.loads(capsys.readouterr().out) == [json.loads(json.dumps(RECORD.to_json()))]
    path = tmp_path / "records.json"
    cli.main(["tune", "export", str(path)])
    assert capsys.readouterr().out == f"{path}: 1 record\n"
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "elsewhere"))
    cli.main(["tune", "import", str(path)])
    assert capsys.readouterr().out == f"1 record from {path}\n"
    monkeypatch.setenv("TILEKIT_CACHE_DIR", "off")
    cli.main(["tune", "show"])
    assert capsys.readouterr().out.startswith("off (")


def test_the_command_line_says_what_is_wrong_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["tune", "import", str(tmp_path / "missing.json")])
    assert stop.value.code == 2
    assert "No such file" in capsys.readouterr().err


def test_names_of_devices_and_toolkits_tell_them_apart(device: tk.Device) -> None:
    assert records.device_name(device)
    assert ("llvmlite" in records.toolkit_name(device)) == (device.kind == "cpu")
