"""README's first command is enough for the tutorials and the examples: no CUDA compiler, no GPU.

`.ci/run` runs the examples where nothing else was installed; this file the tutorials, and the example that asks for a compiler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, blocks, name, text_of

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
EXAMPLES = [ROOT / "examples" / "13_other_kernels.py"]

# Runs programs where no library of the CUDA toolkit, and no driver, can be loaded. Prints, for each, its output and the error.
RUNNER = """
import contextlib, io, json, runpy, sys, traceback
from cuda import pathfinder

def nothing(name, *args, **kwargs):
    raise pathfinder.DynamicLibNotFoundError(f"No such file: lib{name}.so")

pathfinder.load_nvidia_dynamic_lib = nothing
ends = {}
for path in sys.argv[1:]:
    sys.argv = [path]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(path, run_name="__main__")
        error = ""
    except BaseException as caught:
        error = "".join(traceback.format_exception(caught))
    ends[path] = printed.getvalue(), error
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What each program printed, and how it ended, by its name."""
    folder = tmp_path_factory.mktemp("tutorials")
    programs = list(EXAMPLES)
    for page in TUTORIALS:
        programs.append(folder / f"{page.stem}.py")
        programs[-1].write_text("\n".join(block.code for block in blocks(text_of(page))), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, programs)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TILEKIT_DEVICE": "cpu", "TILEKIT_CACHE_DIR": "off", "PYTHONPATH": str(ROOT)},
    )
    return {Path(path).stem: end for path, end in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("program", [p.stem for p in (*EXAMPLES, *TUTORIALS)])
def test_it_ends_well(program: str, ends: dict[str, tuple[str, str]]) -> None:
    _, error = ends[program]
    assert not error


@pytest.mark.parametrize("program", ["04-softmax", "05-matmul", "06-flash-attention", "13_other_kernels"])
def test_it_says_what_to_install(program: str, ends: dict[str, tuple[str, str]]) -> None:
    printed, _ = ends[program]
    assert [line for line in printed.splitlines() if "pip install" in line and "cu13" in line]


@pytest.mark.parametrize("page", [p for p in PAGES if p not in TUTORIALS], ids=name)
def test_a_page_that_compiles_for_a_gpu_says_what_it_needs(page: Path) -> None:
    text = page.read_text("utf-8")
    for block in blocks(text):
        # What a CPU device makes of a kernel needs no compiler but LLVM, which is there; torch.compile is PyTorch's.
        code = block.code.replace('.explain("cpu")', "").replace("torch.compile(", "")
        if any(call in code for call in (".compile(", ".explain(")):
            before = "\n".join(text.splitlines()[: block.line])
            assert "install.md#extras" in before
