"""The warning for an op that was built, never run, and is gone: most often a `.sync()` or an `await` was forgotten."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from tilekit.errors import UnusedOpWarning, location

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["excused", "warn_unused"]

_KEPT = 1024  # how many places are remembered
_SCANS = 8  # how often it is looked whether ops of one place fall victim to an exception: that takes milliseconds

_warned: set[tuple[str, int]] = set()
_scans: dict[tuple[str, int], int] = {}
_shown: dict[Any, Any] = {}  # what the filters remember: the registry of `warnings.warn_explicit`


class _Text(str):
    """A text that equals those of the same place, whatever the op and the shapes: the filters, which compare texts, show one."""

    at: tuple[str, int]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and self.at == other.at

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.at)


def warn_unused(op: DeviceOp[Any], frame: FrameType | None) -> None:
    """Warn at the place where `op` was built, unless an exception is on its way: then that is why nobody has run the op.

    Args:
        op: is being collected.
        frame: what runs meanwhile.
    """
    filename, line = at = op.location()
    if at not in _warned:
        if frame is not None and _unwinding(at, frame):
            return
        if len(_warned) >= _KEPT:
            _warned.clear()
            _scans.clear()
        _warned.add(at)
    try:
        what = repr(op)
    except AttributeError:  # it was never built: its __init__ failed
        return
    text = _Text(f"{what}, built at {location(filename, line)}, was never run: use .sync(), .async_on(stream) or await")
    text.at = at
    warnings.warn_explicit(text, UnusedOpWarning, filename, line, registry=_shown)


def _unwinding(at: tuple[str, int], frame: FrameType) -> bool:
    """Whether an exception is leaving `frame`: it has a traceback then that stands where the frame does.

    Nothing public tells: while a finalizer runs, Python puts the exception aside.
    """
    scans = _scans.get(at, 0)
    if scans < _SCANS:
        _scans[at] = scans + 1
        where = frame.f_lasti
        return any(type(one) is TracebackType and one.tb_lasti == where for one in gc.get_referrers(frame))
    return True  # so far there always was one


def excused(build: Callable[..., None]) -> Callable[..., None]:
    """The `__init__` of a user's op: if it raises, there is no op that could have been run."""

    @functools.wraps(build)
    def __init__(self: DeviceOp[Any], *args: Any, **kwargs: Any) -> None:
        try:
            build(self, *args, **kwargs)
        except BaseException:
            self.consumed()
            raise

    return __init__
