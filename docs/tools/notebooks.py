"""Notebooks of the documentation: run, so that what they show is what they give today; and made pages of.

Run: python docs/tools/notebooks.py docs/tutorials/tour.ipynb

It needs ipykernel and nbclient, which the extra `test` brings. Outputs are kept where they are the same each time; a cell with
the tag `varies` keeps none: times, and what depends on the processor.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

VARIES = "varies"
_KEPT = ("image/svg+xml", "text/html", "text/plain")  # what a page shows of an output, the first that there is


def run(path: Path, timeout_s: int = 120) -> str:
    """The notebook with what its cells show when they run, as the text of its file.

    Raises:
        CellExecutionError: a cell raises an error without the tag `raises-exception`.
    """
    import nbformat  # not needed for pages
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=timeout_s, record_timing=False, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    cells = [_kept(cell) for cell in notebook.cells]
    content = {"cells": cells, "metadata": _METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def _kept(cell: Any) -> dict[str, Any]:
    tags = list(cell.metadata.get("tags", ()))
    kept = {
        "cell_type": cell.cell_type,
        "id": cell.id,
        "metadata": {"tags": tags} if tags else {},
        "source": cell.source.splitlines(keepends=True),
    }
    if cell.cell_type == "code":
        kept |= {"execution_count": cell.execution_count, "outputs": [] if VARIES in tags else list(map(_lines, cell.outputs))}
    return kept


def _lines(output: Mapping[str, Any]) -> dict[str, Any]:
    """An output with its texts in lines, as files of notebooks have them."""
    kept = dict(output)
    if "text" in kept:
        kept["text"] = kept["text"].splitlines(keepends=True)
    if "data" in kept:
        kept["data"] = {kind: text.splitlines(keepends=True) for kind, text in kept["data"].items()}
    return kept


def as_markdown(text: str, name: str) -> str:
    """A notebook, the text of the file `name`, as a page in MyST's Markdown."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            parts += [_fence("python", source), *_shown(cell["outputs"])]
        else:
            parts.append(source)
        if len(parts) == 1:
            parts.append(f"This page is a notebook: {{download}}`{name}`.")
    return "\n\n".join(parts) + "\n"


def _shown(outputs: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for output in outputs:
        if output["output_type"] == "error":
            yield _fence("text", re.sub(r"\x1b\[[\d;]*m", "", "\n".join(output["traceback"])))
        elif output["output_type"] == "stream":
            yield _fence("text", "".join(output["text"]))
        else:
            kind = next(kind for kind in _KEPT if kind in output["data"])
            content = "".join(output["data"][kind])
            yield (
                _fence("text", content)
                if kind == "text/plain"
                else _fence("{raw} html", f"<div style='overflow-x: auto'>{content}</div>")
            )


def _fence(kind: str, content: str) -> str:
    return f"````{kind}\n{content.rstrip()}\n````"


def main(paths: list[str]) -> None:
    """Run the notebooks, and write what they show into their files."""
    for path in map(Path, paths):
        path.write_text(run(path), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
