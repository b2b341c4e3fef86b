"""What operations do besides computing a value: read memory, write it, or more. What has no effect may be moved, or left out."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.frontend.folding import FOLDABLE_CALLS
from tilekit.compiler.ir.nodes import Constant, Operation, Region, values_of
from tilekit.lang.registry import OPS

__all__ = ["ATOMIC", "PRINTS", "READS", "WRITES", "effects", "is_pure", "learns"]

READS, WRITES, ATOMIC, PRINTS = "reads", "writes", "atomic", "prints"

_ANY = frozenset({READS, WRITES, ATOMIC, PRINTS})
_NONE: frozenset[str] = frozenset()
_OF_OPERATIONS = {
    "load": {READS}, "load_tile_like": {READS}, "gather": {READS}, "store": {WRITES}, "scatter": {WRITES},
    "print": {PRINTS}, "printf": {PRINTS}, "assert_": {PRINTS}, "static_print": {PRINTS}, "static_assert": {PRINTS},
}  # fmt: skip
_OF_METHODS = {"load": {READS}, "store": {WRITES}, "item": set[str]()}
_PURE_METHODS = frozenset(
    (
        "astype",
        "reshape",
        "transpose",
        "permute",
        "broadcast_to",
        "item",
        "tiles",
        "tiled_view",
        "slice",
        "num_tiles",
        "bit_length",
    )
)
_FUNCTIONS: set[Callable[..., Any]] = {
    *FOLDABLE_CALLS,
    float,
    round,
    range,
    zip,
    enumerate,
    operator.index,
    intrinsics.everybody,
    intrinsics.join,
    intrinsics.mma_abreast,
    intrinsics.multiple,
    intrinsics.operand_tile,
    intrinsics.part,
    intrinsics.place,
    intrinsics.spread,
    intrinsics.steps,
    intrinsics.within,
    *filter(callable, vars(math).values()),
}


def effects(operation: Operation) -> frozenset[str]:
    """Those of an operation, and of all that its regions have."""
    own = _own(operation)
    for region in operation.regions:
        for inner in region.walk():
            own |= _own(inner)
    return own


def is_pure(operation: Operation) -> bool:
    """Whether an operation can be left out, if nothing reads what it defines: that it reads memory is no reason to keep it."""
    leaves = any(region.exit in ("break", "continue", "return") for inner in operation.regions for region in inner.regions())
    return not leaves and operation.kind not in ("while", "each") and effects(operation) <= {READS}


def learns(kernel: Region) -> bool:
    """Whether a kernel learns from others while it runs: it reads what an atomic operation found, or does what nobody knows."""
    operations = list(kernel.walk())
    read = {value for operation in operations for value in operation.reads()}
    read |= {value for region in kernel.regions() for operand in region.operands for value in values_of(operand)}
    return any(ATOMIC in _own(one) and (PRINTS in _own(one) or not read.isdisjoint(one.results)) for one in operations)


def _own(operation: Operation) -> frozenset[str]:
    if operation.kind == "method":
        known = _OF_METHODS.get(operation.what)
        return frozenset(known) if known is not None else _NONE if operation.what in _PURE_METHODS else _ANY
    if operation.kind != "call":
        return frozenset({READS}) if operation.kind == "stream" else _NONE
    function = operation.what.value if isinstance(operation.what, Constant) else operation.what
    name = getattr(function, "__name__", "")
    if name in OPS and OPS[name].function is function:
        if name.startswith("atomic_"):
            return frozenset({ATOMIC, READS, WRITES})
        return frozenset(_OF_OPERATIONS.get(name, _NONE))
    if function in (intrinsics.load_beside, intrinsics.load_tile_like_beside):
        return frozenset({READS})
    if function is intrinsics.store_piece:
        return frozenset({WRITES})
    try:
        return _NONE if function in _FUNCTIONS else _ANY
    except TypeError:  # it has no hash
        return _ANY
