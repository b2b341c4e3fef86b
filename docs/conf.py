"""Sphinx configuration. Build with: sphinx-build -W docs docs/_build"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import tilekit

project = "tilekit"
author = "the tilekit developers"
copyright = "the tilekit developers; Apache License 2.0"
release = version = tilekit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "tools"]
myst_heading_anchors = 3

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # a name in a list of attributes that several classes have

html_theme = "furo"
html_title = "tilekit"


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


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _markdown_tables)
