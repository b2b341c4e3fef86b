"""How far a search is, on terminals: a bar of `rich`, where that is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tilekit.tuning.search import Progress

__all__ = ["shown"]


@contextmanager
def shown(title: str) -> Iterator[Progress]:
    """What to tell how far a search is. It shows that if standard error is a terminal, and rich is there."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield lambda stage, step, steps: None
        return
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield lambda stage, step, steps: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title)
        yield lambda stage, step, steps: bar.update(task, description=f"{title}: {stage}", completed=step, total=steps)
