"""Draw up `docs/guides/mistakes.md`: what is written by habit from elsewhere, or by mistake, and what tilekit says.

    python docs/tools/mistake_table.py

The rows stand in `mistake_rows.py`. Each is run by `tests/docs/test_mistakes.py`, those of kernels on a CPU device and compiled for
a GPU, and must be refused in these words.
"""

# ruff: noqa: E501 - a paragraph of the page is one line

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "guides" / "mistakes.md"

_INTRODUCTION = """\
# Mistakes, and what tilekit says

Whoever comes from numba, Triton, cuTile, NumPy or PyTorch writes their words first. An error says what was found, where, what it is called here, and the line to write. In kernels it is a `CompileError`, which shows the line with a caret, the same on a CPU and on a GPU, before anything runs; on the host a `TypeError`, `ValueError` or `AttributeError`.

In the tables `x` is a tensor, `y` what the kernel writes, of one dimension; `m` and `q` are the like of two. On the host `p` is `y.partition(256)`, `op` an op that has not run, such as `api.ones(8)`, and `scale(y: tk.InOut, a, x: tk.In)` a kernel. [Errors in kernels](kernel-errors.md) says what kernels can have instead.

All rows are run by the tests. The page is made by `python docs/tools/mistake_table.py`.
"""


def _rows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mistake_rows", HERE / "mistake_rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mistake_rows"] = module  # a dataclass looks for its own module
    spec.loader.exec_module(module)
    return module


ROWS = _rows()


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    pad = " " if fence == "``" else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def _cell(text: str) -> str:
    """Lines of code, one below the other, as deep as they stand."""
    lines = (line.replace("    ", "\N{NO-BREAK SPACE}" * 2) for line in text.splitlines())
    return "<br>".join(map(_code, lines))


def markdown() -> str:
    """The page: a table for each origin of habits."""
    lines = [_INTRODUCTION]
    for group in ROWS.GROUPS:
        lines += [
            f"## {group.title}\n",
            group.about + "\n",
            ":::::{div} mistakes",
            "",
            "| written | said |",
            "|---|---|",
        ]
        lines += [f"| {_cell(row.written)} | {_code(row.said)} |" for row in group.rows]
        lines += [":::::", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
