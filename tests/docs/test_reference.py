"""The reference has every public name, and nothing that is not there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import tilekit as tk
import tilekit_benchmarks as bench
from tilekit import api, distributed, memory

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE = "\n".join(p.read_text("utf-8") for p in sorted((DOCS / "reference").rglob("*.md")))
DIRECTIVES = re.findall(r"^\.\. auto\w+:: (\S+)$", REFERENCE, re.M)
MODULES = {"tilekit": tk, "tilekit.api": api, "tilekit.distributed": distributed, "tilekit.memory": memory}


@pytest.mark.parametrize("name", [f"{prefix}.{name}" for prefix, module in MODULES.items() for name in module.__all__])
def test_public_name_is_in_the_reference(name: str) -> None:
    assert name in DIRECTIVES or f"`{name}`" in REFERENCE


@pytest.mark.parametrize("name", DIRECTIVES)
def test_documented_name_exists_and_says_what_it_is(name: str) -> None:
    if name.startswith("tilekit.torch."):
        pytest.importorskip("torch", reason="torch is not installed")
    module, _, attribute = name.rpartition(".")
    documented = getattr(importlib.import_module(module), attribute)
    assert (documented.__doc__ or "").strip()


def test_no_name_is_documented_twice() -> None:
    assert len(DIRECTIVES) == len(set(DIRECTIVES))


def test_settings_page_lists_the_variables() -> None:
    import tilekit.settings

    source = Path(tilekit.settings.__file__).read_text("utf-8")
    page = (DOCS / "reference" / "settings.md").read_text("utf-8")
    assert set(re.findall(r"TILEKIT_\w+", page)) == set(re.findall(r"TILEKIT_\w+", source))


@pytest.mark.parametrize("command", ["info", *(f"bench {name}" for name in bench.BENCHMARKS)])
def test_command_line_page_lists_the_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tilekit.cli import main

    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
    section = (
        (DOCS / "reference" / "command-line.md").read_text("utf-8").partition(f"tilekit {command}`")[2].partition("\n## ")[0]
    )
    assert options == set(re.findall(r"--[a-z]+", section))


def test_guide_lists_the_targets() -> None:
    from tilekit.compiler.target import TARGETS

    page = (DOCS / "guides" / "compiling-without-a-gpu.md").read_text("utf-8")
    assert set(re.findall(r"`(sm_\w+)`", page)) == set(TARGETS)


def test_every_folder_of_the_package_is_a_package() -> None:
    # Without __init__.py, Python finds the folder, but import-linter and autodoc do not.
    package = Path(tk.__file__).parent
    folders = {p.parent for p in package.rglob("*.py")}
    assert not [folder.name for folder in folders if not (folder / "__init__.py").exists()]


def test_version_has_one_home() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("tilekit-cuda")
    except PackageNotFoundError:
        pytest.skip("tilekit runs from its source here, without being installed")
    assert installed == tk.__version__
