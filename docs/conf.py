"""Sphinx configuration. Build with: sphinx-build -W docs docs/_build"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from docutils import nodes
from sphinx import addnodes

import tilekit

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from notebooks import as_markdown

# The docstrings of tilekit.torch need no PyTorch; what it derives from and compares with are classes.
sys.modules["torch"] = MagicMock(
    Tensor=type("Tensor", (), {"__module__": "torch"}), dtype=type("dtype", (), {"__module__": "torch"})
)

project = "tilekit"
author = "the tilekit developers"
copyright = "the tilekit developers; Apache License 2.0"
release = version = tilekit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build", "tools"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

copybutton_prompt_text = r">>> |\.\.\. |\$ "  # what was typed is copied, and not what was printed
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "tilekit"
html_static_path = ["_static"]
html_css_files = ["tilekit.css"]


_SEVERAL = re.compile(r":ivar (\w+(?:, \w+)+): (.*)")


def _several_attributes(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """`a, b: text` under Attributes is two entries. Napoleon parts such names in Args alone; Sphinx would take `a` for a type."""
    for at in reversed(range(len(lines))):
        if found := _SEVERAL.fullmatch(lines[at]):
            end = next((i for i in range(at + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
            more = lines[at + 1 : end]
            lines[at:end] = [line for each in found[1].split(", ") for line in (f":ivar {each}: {found[2]}", *more)]


def _markdown_tables(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings write tables as Markdown does, which reads better in source; Sphinx wants them as list-tables."""
    made: list[str] = []
    for is_table, group in groupby(lines, lambda line: line.startswith("|")):
        if not is_table:
            made += group
        else:
            rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in group]
            made += [".. list-table::", "   :header-rows: 1", ""]
            for row in rows[:1] + rows[2:]:  # the second line only says that this is a table
                made += [f"   {'*' if at == 0 else ' '} - {cell}" for at, cell in enumerate(row)]
    lines[:] = made


def _no_constructor(app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returned: str) -> Any:
    """Classes that kernels are handed objects of, and that nobody calls, are shown without arguments."""
    return ("", None) if what == "class" and name.startswith("tilekit.lang.") else None


def _no_private_modules(app: Any, doctree: nodes.document) -> None:
    """What users are handed and do not import stands without the module that it is defined in."""
    for prefix in list(doctree.findall(addnodes.desc_addname)):
        if prefix.astext().startswith(("tilekit._", "tilekit.compiler.", "tilekit.launch.")):
            prefix.parent.remove(prefix)


def _no_blank_end(app: Any, doctree: nodes.document) -> None:
    """A part of a program that is included ends where its text does."""
    for block in doctree.findall(nodes.literal_block):
        if "source" in block:  # the file it was taken from
            block.rawsource = block.astext().rstrip()  # Sphinx colours what is the same in both
            block[:] = [nodes.Text(block.rawsource)]


def _notebook_as_page(app: Any, docname: str, source: list[str]) -> None:
    """Notebooks are pages with what they show; they are not run here."""
    path = app.env.doc2path(docname)
    if path.suffix == ".ipynb":
        source[0] = as_markdown(source[0], path.name)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _notebook_as_page)
    app.connect("autodoc-process-signature", _no_constructor)
    app.connect("doctree-read", _no_blank_end)
    app.connect("doctree-read", _no_private_modules)
    app.connect("autodoc-process-docstring", _markdown_tables)
    app.connect("autodoc-process-docstring", _several_attributes)  # after napoleon, which comes first as an extension
