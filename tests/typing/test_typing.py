"""mypy and pyright, both strict, see what kernels take and give; the examples pass both without being told to look away."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
CALLS = Path(__file__).with_name("calls.py")
# Without PyTorch pyright finds nothing to import, in a program that uses it.
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if p.stem != "12_torch_autograd" or find_spec("torch")]
MYPY = re.compile(r"(?P<file>[^:]+\.py):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)")


class Found(NamedTuple):
    """By file: the errors of each line, and the types that `reveal_type` shows."""

    errors: dict[str, dict[int, list[str]]]
    types: dict[str, dict[int, str]]


def _found() -> Found:
    return Found(defaultdict(lambda: defaultdict(list)), defaultdict(dict))


def programs(folder: Path) -> list[Path]:
    """The examples, and of those that are tutorials the parts that their pages show, as a reader copies them into a file."""
    parts: list[Path] = []
    for example in EXAMPLES:
        shown = example.read_text("utf-8").partition("# The tutorial begins here.")[2].partition("# The tutorial ends here")[0]
        if shown:
            parts.append(folder / f"part_{example.name}")
            parts[-1].write_text(shown, "utf-8")
    pages = (ROOT / "docs" / "tutorials").glob("*.md")
    assert len(parts) == sum((ROOT / "examples" / f"{page.stem.replace('-', '_')}.py") in EXAMPLES for page in pages)
    return [*EXAMPLES, *parts]


def by_mypy(files: list[Path], folder: Path) -> Found:
    """By the project's own configuration, so that what it finds out of tilekit's modules serves the linter's run, too."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary"]
    run = subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode < 2, run.stdout + run.stderr
    found = _found()
    for match in filter(None, map(MYPY.fullmatch, run.stdout.splitlines())):
        file, line = Path(match["file"]).name, int(match["line"])
        if match["kind"] == "error":
            found.errors[file][line].append(match["text"])
        elif match["text"].startswith("Revealed type is "):
            found.types[file][line] = match["text"].partition('"')[2].rstrip('"')
    return found


def by_pyright(files: list[Path], folder: Path) -> Found:
    """In strict mode, with this Python and this copy of tilekit."""
    program = shutil.which("pyright", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if program is None:
        pytest.skip("pyright is not installed")
    config = folder / "pyrightconfig.json"
    included, paths = ([os.path.relpath(path, folder) for path in some] for some in (files, [ROOT]))
    options = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "include": included, "extraPaths": paths}
    config.write_text(json.dumps(options), "utf-8")
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [program, "--outputjson", "--pythonpath", sys.executable, "--project", str(config)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode < 2, run.stdout + run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    found = _found()
    for one in report["generalDiagnostics"]:
        file, line = Path(one["file"]).name, one["range"]["start"]["line"] + 1
        if one["severity"] == "error":
            found.errors[file][line].append(one["message"])
        elif " is " in one["message"]:
            found.types[file][line] = one["message"].rpartition(' is "')[2].rstrip('"')
    return found


@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_calls_are_checked_and_examples_pass(checker: Callable[[list[Path], Path], Found], tmp_path: Path) -> None:
    """In one test for each checker, which takes some seconds whatever it looks at."""
    found, lines = checker([*programs(tmp_path), CALLS], tmp_path), CALLS.read_text("utf-8").splitlines()
    errors = found.errors.pop(CALLS.name)
    marked = {at: line.strip() for at, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(marked) > 20
    assert {line for at, line in marked.items() if at not in errors} == set(), "wrong, and no error"
    assert {at: said for at, said in errors.items() if at not in marked} == {}, "right, and an error"

    said = {line.removesuffix("  # wrong"): " ".join(errors[at]) for at, line in marked.items()}
    assert '"a"' in said["scale(p, t)"]
    assert '"by"' in said["scale(p, t, 2.0, by=1.0)"]
    assert '"float"' in said['scale(p, t, "2.0")']
    assert '"stor"' in said["y.stor(0.0)"]

    texts = {at: line.partition("# shows: ")[2].split(" // ") for at, line in enumerate(lines, 1) if "# shows: " in line}
    assert len(texts) > 8
    assert found.types[CALLS.name] == {at: text[0 if checker is by_mypy else -1] for at, text in texts.items()}

    for file in [file for file in found.errors if file.startswith("part_")]:  # pages use what they import further down, too
        said_of = {at: [one for one in texts if "is not accessed" not in one] for at, texts in found.errors.pop(file).items()}
        assert not any(said_of.values()), file
    assert found.errors == {}, "an example"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_no_example_tells_a_checker_to_look_away(example: Path) -> None:
    assert not re.search(r"type: *ignore|pyright:|mypy:|no_type_check|\bcast\(", example.read_text("utf-8"))
