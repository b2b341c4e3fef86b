"""The classes of kernels and launches whose methods are compiled. What these leave to Python is their bases', in `launch`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tilekit import launch
from tilekit._native import _launch
from tilekit._native.attributes import CONSTANTS, HELPERS, NAMES, SLOTS
from tilekit._runtime.allocator import StreamOrderedMemory
from tilekit._runtime.storage import Imported, Storage
from tilekit.ops.at_once import AtOnce
from tilekit.ops.execution import Submission
from tilekit.ops.reactor import awaited, patience, reached

__all__ = ["Kernel", "KernelLaunch", "prepare", "recalls"]


class KernelLaunch(_launch.Runs, launch.KernelLaunch, AtOnce):
    __doc__ = launch.KernelLaunch.__doc__
    __slots__ = ()

    _launch_row = _launch.row

    def __await__(self) -> Generator[Any, None, tuple[Any, ...]]:
        poll_s = patience()
        left = _launch.submit(self, poll_s)
        if left is not None:
            stream, serial = left
            if stream is None or serial is None:
                result: tuple[Any, ...] = yield from awaited(Submission(self, stream or self._next_stream()))
                return result
            yield from reached(((stream, serial),), polled_s=poll_s, op=self)
        return self.arguments


class Kernel(_launch.Calls, launch.Kernel):
    __doc__ = launch.Kernel.__doc__
    __slots__ = ()

    _launch_links = _launch.links  # what runs a chain asks for it, see `AndThen.steps`
    _launch_type = KernelLaunch


def recalls(op: type[Any], recipe: type[Any]) -> type[Any]:
    """A class derived from that of recalled ops, whose methods are compiled: that of what `_launch.recalled` makes.

    Raises:
        ImportError: the compiled module was built to read other recipes.
    """

    class Recalled(_launch.Recalls, op):  # type: ignore[misc]
        __doc__ = op.__doc__
        __slots__ = ()

    Recalled.__module__, Recalled.__qualname__ = op.__module__, op.__qualname__
    _launch.recalls(Recalled, recipe, (op.sync, op.sync_on, op.async_on))
    return Recalled


_DERIVED: dict[type, type] = {launch.Kernel: Kernel, launch.KernelLaunch: KernelLaunch}
for _base, _derived in _DERIVED.items():  # which to users are one
    _derived.__module__, _derived.__qualname__ = _base.__module__, _base.__qualname__


def prepare() -> None:
    """Tell the compiled module the classes whose attributes it reads, and all else that it needs of Python's.

    Raises:
        ImportError: it was built to read others.
    """
    finalizers = _launch.prepare(
        tuple((_DERIVED.get(owner, owner), tuple(attributes)) for owner, attributes in SLOTS.items()),
        tuple(NAMES),
        {**HELPERS, "ended": KernelLaunch._ended, "waited": KernelLaunch._waited},
        dict(CONSTANTS),
    )
    StreamOrderedMemory._in_use = _launch.in_use  # type: ignore[method-assign, assignment]
    Storage.__del__, Imported.__del__ = finalizers  # type: ignore[method-assign]
