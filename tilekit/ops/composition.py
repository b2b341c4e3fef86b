"""Composition: the ops that an op is made of, and the device that it is tied to by them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tilekit._runtime.device import Device

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["Composition"]


class _Asked(threading.local):
    """The op whose override of `device` is being asked. If that asks `Composition.device`, the parts are left to the asker."""

    op: Any = None


_asked = _Asked()


class Composition:
    """The part of `DeviceOp` that knows what an op is made of, whatever the op does."""

    if not TYPE_CHECKING:
        __slots__ = ()

    # what a class says of its ops
    _on_result = False  # it does something on the host with the result of its one part, `source`
    _side_by_side = False  # its parts need not run in one place
    _placed = False  # it has a device of its own
    _many = False  # it may be part of many ops
    _finds_home = False  # it sees by itself that its tensors are on another device, and runs there

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The ops that this one is made of."""
        return ()

    @property
    def device(self) -> Device | None:
        """The device that the op is tied to by what it works on, or None if any will do."""
        if _asked.op is self:  # by an override of this, which the loop below called
            _asked.op = None
            return None
        op: Any = self
        while op._on_result:  # one part, and no device of its own
            op = op.source
        parts = op.parts() if op is self else (op,)
        waiting: list[DeviceOp[Any]] = []
        seen: set[int] | None = None
        while True:  # in a loop: ops nest deeper than Python's stack
            if op._side_by_side:  # a part with a place of its own says nothing about the others
                parts = tuple(part for part in parts if not part._placed)
            waiting += parts[::-1]
            while waiting:
                op = waiting.pop()
                kind = type(op)
                if kind.device is Composition.device:
                    if kind._many:  # which may be in many places, and each time with all that it is made of
                        if seen is None:
                            seen = set()
                        if id(op) in seen:
                            continue
                        seen.add(id(op))
                    break
                asks_parts = False
                if kind.parts is Composition.parts:
                    device: Device | None = op.device
                else:
                    outer, _asked.op = _asked.op, op
                    try:
                        device = op.device
                        asks_parts = _asked.op is None
                    finally:
                        _asked.op = outer
                if device is not None:
                    return device
                if asks_parts:
                    break
            else:
                return None
            parts = op.parts()
