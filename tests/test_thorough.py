"""Which tests run without `--thorough`, and in how many processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import thorough


def test_what_is_left_out_is_a_test_and_part_of_it_stays(request):
    assert thorough.unknown(request.config) == []


def test_members_that_stay():
    ids = ["a", "b", "c", "d", "e"]
    assert thorough.stays(None, ids) == [False] * 5
    assert thorough.stays("[bd]", ids) == [False, True, False, True, False]
    assert thorough.stays(2, ids) == [True, False, False, False, True]
    assert thorough.stays(3, ids) == [True, False, True, False, True]
    assert thorough.stays(1, ids) == [True, False, False, False, False]


MANY = """
import pytest

@pytest.mark.parametrize("n", range(5))
def test_quick(n):
    pass

@pytest.mark.parametrize("n", range(20))
def test_wide(n):
    pass

@pytest.mark.thorough
@pytest.mark.parametrize("n", range(5))
def test_slow(n):
    pass
"""


@pytest.fixture
def suite(tmp_path, request):
    """A suite of thirty tests under the project's conftest.py, of which some are quick: gives what pytest prints of a run."""
    root, tests = request.config.rootpath, tmp_path / "tests"
    tests.mkdir()
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(root / name, tmp_path / name)
    (tests / "test_many.py").write_text(MANY)

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", *arguments]
        paths = [str(root), *map(str, request.config.getini("pythonpath")), os.environ.get("PYTHONPATH", "")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    return run


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [(["-n1"], min(5, thorough.MOST) + thorough.MOST), (["-n0", "--thorough"], 30)],
    ids=str,
)
def test_what_runs(suite, arguments, passed):
    printed = suite(*arguments)
    assert f"{passed} passed" in printed
    assert ("the quick run: about" in printed) == ("-n1" in arguments)


def test_a_share_is_drawn_by_the_seed(suite, monkeypatch):
    """The same in each process; with another seed another one."""
    drawn = set()
    for seed in ("17", "23"):
        monkeypatch.setenv("TILEKIT_FUZZ_SEED", seed)
        printed = suite("-n2", "-v", "-m", "thorough", "--share", "0.5")
        drawn.add(frozenset(re.findall(r"test_slow\[(\d)\]", printed)))
    assert len(drawn) == 2 and all(0 < len(one) < 5 for one in drawn)


@pytest.mark.parametrize(
    ("given", "mark", "args", "whole"),
    [
        (False, "", ["tests"], False),
        (True, "", ["tests"], True),
        (False, "thorough", ["tests"], True),
        (False, "not alone", ["tests/lang"], False),
        (False, "", ["tests/api/test_api.py"], True),
        (False, "", ["tests/api/test_api.py::test_x[1]"], True),
    ],
)
def test_nothing_is_left_out_where_all_is_asked_for(given, mark, args, whole):
    options = {"--thorough": given, "markexpr": mark}
    assert thorough.is_asked_for(SimpleNamespace(getoption=lambda name, _=None: options[name], args=args)) == whole


def test_families_of_the_table_are_chosen_by_the_mark(request):
    """The table marks them before -m looks."""
    command = [sys.executable, "-m", "pytest", "-p", "no:benchmark", "--co", "-q", "-m", "thorough"]
    command.append("tests/compiler/test_wgmma_types.py")
    listed = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True, check=True).stdout
    assert "test_products_follow_each_other[e4m3, e4m3-persistent]" in listed
    assert "test_products_follow_each_other[tf32-persistent]" not in listed


def test_names_that_differ_between_processes_are_refused(suite, tmp_path):
    (tmp_path / "tests" / "test_many.py").write_text(MANY.replace("range(5)", "[object()], ids=str"))
    with pytest.raises(subprocess.CalledProcessError) as refused:
        suite("-n0")
    assert "give it other ids: tests/test_many.py::test_quick[<object object at 0x" in refused.value.stderr


@pytest.mark.parametrize(
    ("changes", "processes"),
    [
        ({}, 6),
        ({"args": ["tests/lang"]}, 6),
        ({"args": ["tests/api/test_api.py"]}, None),
        ({"args": ["tests/lang/test_scale.py::test_parity_at_scale[exp]"]}, None),
        ({"numprocesses": 0}, 0),
        ({"numprocesses": "auto"}, "auto"),
        ({"usepdb": True}, None),
        ({"collectonly": True}, None),
        ({"device": "cuda"}, None),
        ({"cores": 64}, 8),
    ],
    ids=str,
)
def test_processes(request, monkeypatch, changes, processes):
    """As many as there are cores, 8 at most; one for a file, for a debugger, for a GPU, or as `-n` says."""
    settings = {"numprocesses": None, "dist": "no", "usepdb": False, "collectonly": False, "device": "cpu", **changes}
    cores = settings.pop("cores", 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    config = SimpleNamespace(option=SimpleNamespace(**settings), args=settings.pop("args", ["tests"]))
    conftest = request.config.pluginmanager.get_plugin(str(request.config.rootpath / "tests" / "conftest.py"))
    conftest.pytest_cmdline_main(config)
    assert config.option.numprocesses == processes
    assert (config.option.dist == "worksteal") == (processes in (6, 8))
