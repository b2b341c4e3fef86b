"""The streams by which others and tilekit wait for each other."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence

from tilekit._runtime.device import Device
from tilekit._runtime.hazards import Use
from tilekit._runtime.stream import Stream

__all__ = ["bridge"]

# How many streams there are, of each device, by which others are waited for at the same time.
_BRIDGES = 8

# The streams of each device, those that were used longest ago first, and behind which moments each is: by the streams' numbers
# their serials; None where that is not known.
_bridges: weakref.WeakKeyDictionary[Device, dict[Stream, dict[int, int] | None]] = weakref.WeakKeyDictionary()

atexit.register(_bridges.clear)  # streams that outlive the modules have no way to go


def bridge(device: Device, uses: Sequence[Use] | None = None) -> Stream:
    """A stream that does nothing but wait: for others, on behalf of tilekit, or for tilekit, on behalf of others.

    One that waits for nothing but these moments, or earlier ones of the same streams; or an idle one, so that nobody waits for
    what is nothing to him; of eight that are all busy, the one that was used longest ago.

    Args:
        device: the device.
        uses: the moments that it will be behind; None if nobody knows.
    """
    streams = _bridges.setdefault(device, {})
    behind = None if uses is None else {user.number: serial for user, serial in uses}
    chosen = None
    if behind is not None:
        for stream, known in tuple(streams.items()):
            if known is not None and all(serial <= behind.get(number, -1) for number, serial in known.items()):
                chosen = stream
                break
    if chosen is None:
        chosen = next((stream for stream in tuple(streams) if stream.query()), None)
    if chosen is None and len(streams) < _BRIDGES:
        chosen = device.stream()
    if chosen is None:
        chosen = next(iter(streams))
        known = streams.pop(chosen)  # it is the one that was used last from now on
        both = None if behind is None or known is None else {*behind, *known}
        behind = None if both is None else {n: max(behind.get(n, 0), known.get(n, 0)) for n in both}  # type: ignore[union-attr]
    streams[chosen] = behind
    return chosen
