"""Arguments of a launch as bytes, as compiled kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilekit.compiler.facts import ArgumentFacts, TensorFacts

__all__ = ["packing"]


def packing(facts: Sequence[ArgumentFacts], pack_into: Callable[..., None]) -> Callable[[Any, Sequence[Any]], None]:
    """A function that packs arguments with these facts into a buffer; written out for them, since it runs at each launch."""
    parts = []
    for at, known in enumerate(facts):
        view = f"a[{at}]" if not isinstance(known, TensorFacts) else f"*a[{at}].{'flat' if known.role == 'in' else 'tensor.flat'}"
        parts.append(view)
    source = f"lambda buffer, a: pack_into(buffer, 0, {', '.join(parts)})"
    pack: Callable[[Any, Sequence[Any]], None] = eval(source, {"pack_into": pack_into})
    return pack
