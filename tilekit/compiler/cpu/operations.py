"""All operations of the language that are compiled for the CPU: importing their families enters them into the table."""

from __future__ import annotations

from tilekit.compiler.cpu import (
    counting,
    created,
    debug,
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

__all__ = ["FAMILIES"]

FAMILIES = (
    counting, created, debug, folding, indexed, integral, memory, positions, products, questions, randomness,
    reduction, shape, sorting, transcendental,
)  # fmt: skip
