"""`python -m tilekit bench`."""

import json
import shlex
import subprocess
import sys

import pytest

from tilekit import cli
from tilekit_benchmarks import BENCHMARKS, command, report, saxpy_peers
from tilekit_benchmarks.harness import Contestant, Variant


def rejected(capsys, *arguments):
    """The line of text with which the command line is refused."""
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def no_peers(monkeypatch):
    monkeypatch.setattr(saxpy_peers, "PEERS", {"cpu": {}, "cuda": {}})


def test_bench_lists_the_benchmarks(capsys):
    assert cli.main(["bench"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("saxpy ")
    assert [line.split()[0] for line in listed.splitlines()] == list(BENCHMARKS)


def test_bench_await_records_and_draws(device, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="drawing needs the extra bench")
    record, picture = tmp_path / "run.json", tmp_path / "run.svg"
    words = ["bench", "await", "--n", "64", "--rounds", "1", "--device", device.label, "--commit", "abc"]
    assert cli.main([*words, "--json", str(record), "--plot", str(picture)]) == 0
    assert "await, n = 64" in capsys.readouterr().out
    read = json.loads(record.read_text())
    assert read["benchmark"] == "await"
    assert {"launch, sync", "launch, await"} <= {series["variant"] for series in read["results"]}
    assert picture.read_bytes().startswith(b"<?xml")


def test_bench_saxpy_records_and_draws(device, tmp_path):
    pytest.importorskip("matplotlib", reason="drawing needs the extra bench")
    record, picture = tmp_path / "run.json", tmp_path / "run.png"
    words = ["bench", "saxpy", "--n", "2^14", "--rounds", "2", "--device", device.label]
    words += ["--json", str(record), "--plot", str(picture)]
    done = subprocess.run([sys.executable, "-m", "tilekit", *words], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "saxpy, n = 16384" in done.stdout
    assert "measuring" in done.stderr
    read = json.loads(record.read_text())
    names = {result["name"] for result in read["results"]}
    assert names >= ({"tilekit", "numpy", "numba"} if device.kind == "cpu" else {"tilekit", "numba-cuda"})
    assert read["n"] == 16384
    assert read["command"] == f"python -m tilekit {shlex.join(words)}"
    assert {"commit", "dirty", "date", "device", "driver", "versions"} <= set(read)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_result_is_an_exit_status(capsys, monkeypatch):
    wrong = Contestant(name="bad", version="1", variants=(Variant(launch=lambda: None),))
    monkeypatch.setattr(saxpy_peers, "PEERS", {"cpu": {"bad": lambda data: wrong}})
    assert cli.main(["bench", "saxpy", "--n", "100", "--rounds", "1", "--device", "cpu"]) == 1
    assert "bad: wrong: the result differs from NumPy's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--n", "0"], "'0' is no count; write 1000000 or 2^20"),
        (["--n", "many"], "'many' is no count"),
        (["--rounds", "-1"], "'-1' is no count"),
        (["--device", "tpu"], "'tpu' names no device"),
        (["--device", "cpu:9"], "there is no cpu:9"),
        (["--json", "no/such/folder/x.json"], "no/such/folder/x.json cannot be written: its folder does not exist"),
        (["--plot", "no/such/folder/x.png"], "no/such/folder/x.png cannot be written: its folder does not exist"),
    ],
)
def test_bench_refuses(capsys, no_peers, arguments, text):
    assert text in rejected(capsys, "bench", "saxpy", *arguments)


def test_bench_refuses_to_plot_before_it_measures(capsys, no_peers, monkeypatch, tmp_path):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert "pip install matplotlib" in rejected(capsys, "bench", "saxpy", "--plot", str(tmp_path / "x.png"))


@pytest.mark.parametrize(("text", "count"), [("1000", 1000), ("2^10", 1024), ("2**10", 1024), ("1_000", 1000)])
def test_counts(text, count):
    assert command._count(text) == count
