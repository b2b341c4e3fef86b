"""What becomes of measurements."""

import json
import subprocess
from importlib.util import find_spec

import pytest

from tilekit import _environment as environment
from tilekit._environment import DeviceInfo, DriverInfo
from tilekit_benchmarks import report, sources
from tilekit_benchmarks.harness import Measurement
from tilekit_benchmarks.report import LeftOut, Record

DEVICE = DeviceInfo(label="cuda:0", name="NVIDIA H200", compute_capability="9.0", memory_bytes=2**37, free_bytes=2**36)


def measurement(name, *samples_us, variant=""):
    return Measurement(
        name=name,
        version="1.0",
        variant=variant,
        launches_per_sample=7,
        samples_us=samples_us,
        tried_us={variant: 1.0} if variant else {},
    )


MEASURED = [
    measurement("tilekit", 10.0, 11.0, 20.0, variant="tile 1024"),
    measurement("slow", 40.0, 44.0, 80.0),
    measurement("peer", 20.0, 21.0, 30.0),
]


@pytest.fixture
def run():
    errors = {"tilekit": 0.0, "slow": 1e-8, "peer": 1e-7}
    found = report.results(MEASURED, work=12_000, unit="GB/s", errors=errors)
    return Record(
        benchmark="saxpy",
        n=1000,
        bytes_per_launch=12_000,
        rounds=3,
        timer="device events",
        device=DEVICE,
        driver=DriverInfo(release="580.159.04", cuda="13.0"),
        versions={"tilekit": "0.1.0", "python": "3.12.3"},
        commit="0123456789abcdef",
        dirty=True,
        date="2026-11-20T00:00:00+00:00",
        command="python -m tilekit bench saxpy",
        results=found,
        left_out=(LeftOut(name="cupy", cause="missing", reason="not installed: pip install cupy-cuda13x"),),
        notes=("small",),
    )


def test_rates_and_ratios(run):
    assert [r.name for r in run.results] == ["tilekit", "peer", "slow"]
    own, peer, slow = run.results
    assert own.median_us == 11.0
    assert own.rate == pytest.approx(12e3 / 11e-6 / 1e9)
    assert own.min_rate == pytest.approx(0.6)
    assert own.max_rate == pytest.approx(1.2)
    assert own.ratio == pytest.approx(21 / 11)  # the median of 20/10, 21/11, 30/20
    assert peer.ratio == 1.0
    assert slow.ratio == pytest.approx(21 / 44)


def test_without_a_peer_there_is_no_ratio():
    (only,) = report.results([measurement("tilekit", 1.0)], work=1, unit="GB/s", errors={"tilekit": 0.0})
    assert only.ratio is None


def test_operations_and_ratios_to_one_peer():
    errors = dict.fromkeys(("tilekit", "slow", "peer"), 0.0)
    own, *_ = report.results(MEASURED, work=22e6, unit="TFLOP/s", errors=errors, reference="slow")
    assert (own.unit, own.rate) == ("TFLOP/s", pytest.approx(2.0))
    assert own.ratio == pytest.approx(4.0)
    own, *_ = report.results(MEASURED, work=1, unit="TFLOP/s", errors=errors, reference="nobody")
    assert own.ratio is None


def test_the_table_says_it_all(run):
    text = report.table(run)
    for part in (
        "saxpy, n = 1000",
        "NVIDIA H200",
        "580.159.04 (CUDA 13.0)",
        "0123456789ab with uncommitted changes",
        "tile 1024",
        "1.909",
        "cupy: missing: not installed: pip install cupy-cuda13x",
        "Note: small",
    ):
        assert part in text, part


def test_the_json_holds_everything(run, tmp_path):
    path = tmp_path / "run.json"
    report.save(run, path)
    read = json.loads(path.read_text())
    assert '"commit": "0123456789abcdef"' in path.read_text()
    assert read["dirty"] is True
    assert read["device"]["name"] == "NVIDIA H200"
    assert read["results"][0]["samples_us"] == [10.0, 11.0, 20.0]
    assert read["results"][0]["tried_us"] == {"tile 1024": 1.0}


def test_the_plot_is_a_picture(run, tmp_path):
    pytest.importorskip("matplotlib", reason="drawing needs the extra bench")
    for name, start in (("run.png", b"\x89PNG"), ("run.svg", b"<?xml")):
        report.plot(run, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(ValueError, match="xyz"):
        report.plot(run, tmp_path / "run.xyz")


def test_without_matplotlib_the_command_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    with pytest.raises(ImportError, match="pip install matplotlib"):
        report.plot(run, tmp_path / "run.png")


def git(folder, *arguments):
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_packages_own_checkout(tmp_path):
    package, other = tmp_path / "project" / "package", tmp_path / "project" / "venv" / "package"
    for folder in (package, other):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    assert sources.sources(package) == sources.Sources(commit=None, dirty=None)
    git(tmp_path / "project", "init", "--quiet")
    git(tmp_path / "project", "add", "package")
    git(tmp_path / "project", "commit", "--quiet", "-m", "one")
    commit = git(tmp_path / "project", "rev-parse", "HEAD")
    assert sources.sources(other).commit is None  # below a checkout, no part of it
    assert sources.sources(package) == sources.Sources(commit=commit, dirty=True)  # the folder venv is new
    git(tmp_path / "project", "add", ".")
    git(tmp_path / "project", "commit", "--quiet", "-m", "two")
    assert sources.sources(package).dirty is False


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert sources.sources() == sources.Sources(commit=None, dirty=None)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Oct 14 22:19:56 UTC 2025\nGCC version:  gcc\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)\n",
    ],
)
def test_the_drivers_release_is_read_from_the_kernel(tmp_path, text):
    proc = tmp_path / "version"
    proc.write_text(text)
    assert environment._release(proc) == "580.159.04"


def test_or_asked_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 580.159.03\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert environment._release(tmp_path / "nothing") == "580.159.03"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert environment._release(tmp_path / "nothing") is None
