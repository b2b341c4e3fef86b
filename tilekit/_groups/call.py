"""`Call`: one collective, as all members of a group must submit it: what it does, of which shape, in which dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilekit import dtypes

__all__ = ["KINDS", "REDUCTIONS", "Call", "Shape", "check_reduction"]

Shape = tuple[int, ...]

REDUCTIONS = ("sum", "prod", "max", "min", "avg")

# The collectives: whether one reduces, and whether it cuts the first dimension into a part for each member.
KINDS: dict[str, tuple[bool, bool]] = {
    "all_reduce": (True, False),
    "all_gather": (False, False),
    "reduce_scatter": (True, True),
    "broadcast": (False, False),
    "all_to_all": (False, True),
    "permute": (False, False),
    "send": (False, False),
    "recv": (False, False),
    "barrier": (False, False),
}

# What is reduced: NCCL's dtypes, so that a program says the same with and without GPUs.
_REDUCED = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
)


def check_reduction(kind: str, op: object) -> None:
    """Whether a collective can reduce so.

    Raises:
        ValueError: there is no such reduction.
    """
    if KINDS[kind][0] and op not in REDUCTIONS:
        raise ValueError(f"{kind}: op={op!r} is no reduction; there are {', '.join(REDUCTIONS)}")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective.

    Attributes:
        kind: a key of `KINDS`.
        shape, dtype: of each member's tensor; of `recv` those of the tensor that comes.
        op: how it reduces, one of `REDUCTIONS`; empty where nothing is reduced.
        root: the rank that broadcasts; of `send` and `recv` the other side's; else 0.
        pairs: of `permute`, from which rank to which.
    """

    kind: str
    shape: Shape
    dtype: dtypes.DType
    op: str = ""
    root: int = 0
    pairs: tuple[tuple[int, int], ...] = ()

    def check(self, size: int) -> None:
        """Whether a group of `size` members can do that.

        Raises:
            TypeError: the dtype cannot be reduced.
            ValueError: the shape has no even parts; there is no such reduction, or no such rank.
        """
        reduces, cuts = KINDS[self.kind]
        if reduces:
            check_reduction(self.kind, self.op)
            if self.dtype.name not in _REDUCED:
                raise TypeError(
                    f"{self.kind}: {self.dtype.name} cannot be reduced across devices; these can: {', '.join(_REDUCED)}. "
                    "Convert with .astype(dtype) before"
                )
            if self.op == "avg" and not dtypes.is_float(self.dtype):
                raise TypeError(
                    f'{self.kind}: the average of {self.dtype.name} is no {self.dtype.name}: use op="sum", and divide'
                )
        if cuts and not self.shape:
            raise ValueError(f"{self.kind}: a tensor without dimensions has no parts, and each of {size} members gets one")
        if cuts and self.shape[0] % size:
            raise ValueError(
                f"{self.kind}: dimension 0 of {self.shape} is dealt out to {size} members, and {self.shape[0]} is no multiple of "
                f"{size}: pad the tensor to {-(-self.shape[0] // size) * size}"
            )
        if self.kind == "all_gather" and not self.shape:
            raise ValueError("all_gather: tensors without dimensions cannot be put behind each other: give .reshape(1)")
        if not 0 <= self.root < size:
            raise ValueError(f"{self.kind}: there is no rank {self.root} in a group of {size}; ranks count from 0")

    def result_shape(self, size: int) -> Shape:
        """The shape of each member's result."""
        if self.kind == "all_gather":
            return (self.shape[0] * size, *self.shape[1:])
        if self.kind == "reduce_scatter":
            return (self.shape[0] // size, *self.shape[1:])
        return self.shape

    @property
    def nbytes(self) -> int:
        """Of each member's tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        if self.kind == "barrier":
            return "barrier"
        if self.kind == "permute":
            return f"permute({list(self.pairs)}, {self.dtype.name} {self.shape})"
        how = f"{self.op}, " if self.op else f"root {self.root}, " if self.kind == "broadcast" else ""
        return f"{self.kind}({how}{self.dtype.name} {self.shape})"
