"""What collectives compute, in NumPy: the CPU device's, and what those of GPUs are tested against."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tilekit._groups.call import Call

__all__ = ["results"]

Array = np.ndarray[Any, Any]

_FUNCTIONS: dict[str, np.ufunc] = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def results(call: Call, members: Sequence[Array]) -> list[Array]:
    """Each member's result, of what all members brought, by rank. Arrays may be views of each other; none is to be written.

    Floats of 8 and 16 bits are reduced in float32 and rounded once. Members come in the order of their ranks, so that the result
    is the same, bit by bit, at each member and each time.
    """
    size = len(members)
    if call.kind == "all_gather":
        return [np.concatenate(members)] * size
    if call.kind == "broadcast":
        return [members[call.root]] * size
    if call.kind == "permute":
        sources = {target: source for source, target in call.pairs}
        nothing = np.zeros(call.shape, call.dtype)
        return [members[sources[rank]] if rank in sources else nothing for rank in range(size)]
    if call.kind == "all_to_all":
        parts = [np.split(member, size) for member in members]
        return [np.concatenate([parts[source][rank] for source in range(size)]) for rank in range(size)]
    whole = _reduced(call, members)
    return np.split(whole, size) if call.kind == "reduce_scatter" else [whole] * size


def _reduced(call: Call, members: Sequence[Array]) -> Array:
    narrow = call.dtype.itemsize < 4 and call.dtype.kind not in "iub"
    wide = [member.astype(np.float32) if narrow else member for member in members]
    with np.errstate(all="ignore"):  # what overflows does so on a GPU, too, and nobody is told there
        whole = reduce(_FUNCTIONS[call.op], wide)
        if call.op == "avg":
            whole = whole / whole.dtype.type(len(members))
        return whole.astype(call.dtype, copy=False)
