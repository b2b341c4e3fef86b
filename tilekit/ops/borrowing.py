"""Which ops use borrowed memory: bare addresses that nobody keeps alive (`tilekit.from_pointer` without an owner).

Only work that its user waits for, in the place where it is started, may use such memory. What an op was given is looked at
before it is submitted; what its closures bring, when that is used (`ExecutionContext.acquire`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tilekit._runtime.context import borrowed_refused
from tilekit._runtime.storage import Storage

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["refuse_borrowed"]


def refuse_borrowed(op: DeviceOp[Any]) -> None:
    """Raise if `op`, or a part of it, was given a tensor in borrowed memory. It stays as it is, and can be run otherwise.

    Raises:
        ValueError: it was.
    """
    waiting = [op]
    seen: set[int] = set()
    while waiting:  # ops nest deeper than Python's stack
        part = waiting.pop()
        if id(part) in seen:  # a shared one
            continue
        seen.add(id(part))
        storage = _borrowed(part._operands())
        if storage is not None:
            op.consumed()
            error = ValueError(borrowed_refused(op, storage))
            op.annotate(error)
            raise error
        waiting.extend(part.parts())


def _borrowed(values: Iterable[Any]) -> Storage | None:
    """The first borrowed storage behind tensors and partitions among `values`, or in tuples, lists and dicts of them."""
    for value in values:
        if isinstance(value, (tuple, list)):
            first = _borrowed(value)
        elif isinstance(value, Mapping):
            first = _borrowed(value.values())
        else:
            storage = value if isinstance(value, Storage) else getattr(value, "storage", None)
            first = storage if isinstance(storage, Storage) and storage.borrowed else None
        if first is not None:
            return first
    return None
