"""What a kernel that stopped itself left behind: see `tilekit.compiler.codegen.checks`.

The record lies in page-locked memory of the host's, one for each GPU, which the kernel writes and which outlives its context:

    word        0         1          2 to 4     5         6 to 9
    contents    1 if set  the site   the block  a thread  what the message shows
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilekit.errors import location

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = ["FIRST_VALUE", "MOST_VALUES", "VARIABLE", "WORDS", "Report", "Site", "stop_message"]

VARIABLE = "tilekit_report"
"""The name of the variable in a module that says where its record is: the address, then the number of its first site."""

FIRST_VALUE, MOST_VALUES = 6, 4
WORDS = FIRST_VALUE + MOST_VALUES


class Site(NamedTuple):
    """A check in a compiled kernel: in which kernel, in which line, and what it says when it fails, with `{}` for values."""

    kernel: str
    filename: str
    line: int
    message: str


_reports: list[Report] = []


class Report:
    """The record of one GPU, and the checks in the kernels that it has loaded.

    Args:
        memory: at least `WORDS` words of memory that the GPU can write, kept for the life of the process.
    """

    __slots__ = ("_sites", "_words")

    def __init__(self, memory: NDArray[Any]) -> None:
        self._words: NDArray[np.int64] = memory[: 8 * WORDS].view(np.int64)
        self._words[:] = 0
        self._sites: list[Site] = []
        _reports.append(self)

    def add(self, sites: Sequence[Site]) -> tuple[int, int]:
        """Know the sites of another module. Returns what its variable is to hold: the record's address, and its first site."""
        first = len(self._sites)
        self._sites += sites
        address: int = self._words.__array_interface__["data"][0]
        return address, first

    def message(self) -> str | None:
        """What the record says; None if there is none."""
        words = [int(word) for word in self._words]
        if not words[0] or not 0 <= words[1] < len(self._sites):
            return None
        site = self._sites[words[1]]
        block, values = tuple(words[2:5]), words[FIRST_VALUE : FIRST_VALUE + site.message.count("{}")]
        text = f"{location(site.filename, site.line)}: kernel {site.kernel}, block {block}: {site.message.format(*values)}"
        line = linecache.getline(site.filename, site.line).strip()
        return f"{text}\n    {line}" if line else text


def stop_message() -> str | None:
    """What a kernel of this process said when it stopped itself, or None."""
    return next((text for report in _reports if (text := report.message()) is not None), None)
