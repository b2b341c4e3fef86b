"""All operations of the language that are compiled for the CPU: importing their families enters them into the table."""

from __future__ import annotations

from tilekit.compiler.cpu import (
    counting,
    created,
    debug,
    elementwise,
    folding,
    indexed,
    integral,
    memory,
    positions,
    products,
    questions,
    randomness,
    reduction,
    shape,
    sorting,
    transcendental,
)
from tilekit.compiler.cpu.registry import LOWERINGS
from tilekit.lang.registry import OPS

__all__ = ["FAMILIES", "not_lowered"]

FAMILIES = (
    counting, created, debug, elementwise, folding, indexed, integral, memory, positions, products, questions, randomness,
    reduction, shape, sorting, transcendental,
)  # fmt: skip


def not_lowered() -> tuple[str, ...]:
    """The operations of the language that are not compiled for CPUs: a kernel with one of them is interpreted.

    `pipelined` is none of them: the IR has a loop in its place.
    """
    return tuple(sorted({*OPS} - {*LOWERINGS, "pipelined"}))
