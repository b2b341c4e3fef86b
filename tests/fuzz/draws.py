"""Choices of the generators: drawn from a seed, written down, and drawn again from what was written down.

A program is what a generator makes of a sequence of choices. So a failing one gets shorter by shortening the sequence, whatever
the generator does with it: a choice of 0 is the simplest everywhere, and a sequence that ends early goes on with zeros.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Draw:
    """A source of choices.

    Attributes:
        choices: those that were drawn.
        spans: for each part of the program (a statement, a tensor) where its choices begin and end.
    """

    def __init__(self, seed: Any = 0, replayed: Sequence[int] | None = None) -> None:
        self._random, self._replayed = random.Random(repr(seed)), replayed
        self.choices: list[int] = []
        self.spans: list[tuple[int, int]] = []

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        if self._replayed is None:
            made = self._random.randrange(n)
        else:
            at = len(self.choices)
            made = min(self._replayed[at], n - 1) if at < len(self._replayed) else 0
        self.choices.append(made)
        return made

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred draws; False is the simpler."""
        return self.below(100) >= 100 - percent

    def between(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return low + self.below(high - low + 1)

    @contextlib.contextmanager
    def span(self) -> Iterator[None]:
        """The choices of one part of the program, which a shorter program may do without."""
        start = len(self.choices)
        yield
        self.spans.append((start, len(self.choices)))
