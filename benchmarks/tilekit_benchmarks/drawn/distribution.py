"""From which distribution cases are drawn: a pure function of the family, the seed and the number of a case.

Every case is of one of three kinds, a third each: its sizes are powers of two, multiples of 8, or anything. Whatever its kind,
sizes are log-uniform. `docs/benchmarks/sweeps.md` writes the distribution down.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["CONTIGUOUS", "LIMITS", "SIZES", "Case", "Draw", "Limits"]

T = TypeVar("T")

SIZES = ("powers of two", "multiples of 8", "anything")
"""The kinds of cases, by their sizes."""

CONTIGUOUS = "contiguous"
"""The layout of tensors without gaps."""

# How tensors of rows lie in memory, and how often.
_LAYOUTS = {CONTIGUOUS: 0.5, "rows with gaps": 0.2, "batches": 0.2, "batches with gaps": 0.1}
_DTYPES = {"float32": 1.0, "float16": 1.0, "bfloat16": 1.0}
_LONGEST_GAP, _BATCHES = 64, 16
_COMPILED = 0.25  # of the cases torch.compile takes part in
_TRIES = 10_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is drawn at all.

    Attributes:
        nbytes: the least and the largest number of bytes that a launch must move.
        extent: the largest M, N and K of products.
        row: the longest row of a family of rows.
        length: the shortest and the longest sequence of attention.
        operations: the largest number that a launch calculates.
        shortest_us: how long the fastest peer takes at least: a case that is shorter is drawn again.
    """

    nbytes: tuple[int, int]
    extent: int
    row: int
    length: tuple[int, int]
    operations: float
    shortest_us: float


LIMITS: Mapping[str, Limits] = {
    "cuda": Limits(
        nbytes=(2**16, 2**31), extent=2**14, row=2**18, length=(2**6, 2**15), operations=2.0**44, shortest_us=5.0
    ),
    "cpu": Limits(nbytes=(2**10, 2**17), extent=2**7, row=2**10, length=(2**3, 2**6), operations=2.0**22, shortest_us=0.0),
}  # fmt: skip
"""The limits, by the kind of device: a CPU device shows only that all is right."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What was drawn.

    Attributes:
        number: which case of the family, from 0 on.
        attempt: how often it was drawn again.
        kernel: what is computed.
        sizes: one of `SIZES`.
        dtype: of the operands.
        shape: of the first operand; of a product (batch,) M, N, K.
        layout: how the operands lie in memory.
        nbytes: that a launch must move, each element once.
        operations: that it must calculate, where this is more than an element or two; else None.
        compiled: whether torch.compile takes part.
        options: whatever else the family draws, by name.
    """

    number: int
    attempt: int
    kernel: str
    sizes: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    nbytes: int
    operations: int | None
    compiled: bool
    options: dict[str, Any]

    @property
    def label(self) -> str:
        """The case in a few words."""
        chosen = (f"{name}={value}" for name, value in self.options.items())
        return " ".join([self.kernel, self.dtype, "x".join(map(str, self.shape)), self.layout, *chosen])


class Draw:
    """A case while it is drawn.

    Attributes:
        sizes: the kind of the case, one of `SIZES`.
        limits: see `Limits`.
    """

    def __init__(self, family: str, seed: int, number: int, attempt: int, limits: Limits) -> None:
        # Only random() gives the same numbers in every version of Python.
        self._uniform = random.Random(f"{family} {seed} {number} {attempt}").random
        self._number, self._attempt, self.limits = number, attempt, limits
        self.sizes = self.one_of(SIZES)
        self._compiled = self.chance(_COMPILED)

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self._uniform() < probability

    def one_of(self, values: Sequence[T] | Mapping[T, float]) -> T:
        """One of the values, each as often, or as often as its weight says."""
        weights = values if isinstance(values, Mapping) else dict.fromkeys(values, 1.0)
        left = self._uniform() * sum(weights.values())
        for value, weight in weights.items():
            left -= weight
            if left < 0:
                return value
        return list(weights)[-1]  # by rounding

    def log_uniform(self, low: float, high: float) -> float:
        """A number between the two, whose logarithm is uniform."""
        return math.exp(math.log(low) + self._uniform() * (math.log(high) - math.log(low)))

    def size(self, low: int, high: int) -> int:
        """A log-uniform size from `low` to `high`, both included, of the kind of the case if there is one between them."""
        if self.sizes == "powers of two" and (low - 1).bit_length() <= high.bit_length() - 1:
            first, last = (low - 1).bit_length(), high.bit_length() - 1
            return 1 << first + int(self._uniform() * (last - first + 1))
        step = 8 if self.sizes == "multiples of 8" and -(-low // 8) <= high // 8 else 1
        first, last = -(-low // step), high // step
        return step * self.count(first, last)

    def count(self, low: int, high: int) -> int:
        """A log-uniform number from `low` to `high`, both included, whatever the kind of the case: of heads, of batches."""
        return min(high, int(self.log_uniform(low, high + 1)))

    def near(self, value: float) -> int:
        """The size of the kind of the case that is nearest to `value`."""
        if self.sizes == "powers of two":
            return 1 << max(0, round(math.log2(value)))
        step = 8 if self.sizes == "multiples of 8" else 1
        return step * max(1, round(value / step))

    def within(self, nbytes: float) -> bool:
        """Whether so many bytes are within the limits."""
        low, high = self.limits.nbytes
        return low <= nbytes <= high

    def fitting(self, draw_one: Any) -> Any:
        """What `draw_one()` gives, which is asked until it gives something else than None."""
        for _ in range(_TRIES):
            value = draw_one()
            if value is not None:
                return value
        raise RuntimeError(f"case {self._number}: nothing that was drawn in {_TRIES} tries is within the limits")

    def matrix(self, width: float, columns: tuple[int, int] | None = None) -> tuple[int, int]:
        """Rows and columns, where a launch moves `width` bytes for each element: the bytes and the columns are log-uniform."""
        low, high = columns or (16, self.limits.row)

        def once() -> tuple[int, int] | None:
            elements = self.log_uniform(*self.limits.nbytes) / width
            n = self.size(low, high)
            m = self.near(elements / n) if n <= elements else 0
            return (m, n) if m and self.within(m * n * width) else None

        shape: tuple[int, int] = self.fitting(once)
        return shape

    def dtype(self, weights: Mapping[str, float] = _DTYPES) -> str:
        """A name of a dtype."""
        return self.one_of(weights)

    def rows(self, width: float, layouts: Mapping[str, float] = _LAYOUTS) -> tuple[tuple[int, ...], str, dict[str, int]]:
        """The shape of a tensor of rows, how it lies in memory, and the length of its gaps, if it has any. See `matrix`."""
        m, n = self.matrix(width)
        layout = self.one_of(layouts)
        options = {"gap": self.size(1, _LONGEST_GAP)} if layout.endswith("gaps") else {}
        if not layout.startswith("batches"):
            return (m, n), layout, options
        batches = self.count(1, min(_BATCHES, m))
        return (batches, max(1, m // batches), n), layout, options

    def copied(self, kernel: str, dtype: str, itemsize: int) -> Case:
        """A case of a kernel that reads each element of some rows, and writes as many."""
        width = 2 * itemsize
        shape, layout, options = self.rows(width)
        return self.case(kernel=kernel, dtype=dtype, shape=shape, layout=layout, nbytes=math.prod(shape) * width, **options)

    def case(self, *, kernel: str, dtype: str, shape: tuple[int, ...], nbytes: float, **fields: Any) -> Case:
        """The case; `fields` are `layout`, `operations`, and options."""
        return Case(
            number=self._number,
            attempt=self._attempt,
            kernel=kernel,
            sizes=self.sizes,
            dtype=dtype,
            shape=shape,
            layout=fields.pop("layout", CONTIGUOUS),
            nbytes=int(nbytes),
            operations=fields.pop("operations", None),
            compiled=self._compiled,
            options=fields,
        )
