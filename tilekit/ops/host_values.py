"""Host values: results that the device is still copying to the host, and the moments from which they can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilekit._runtime.stream import Stream

__all__ = ["HostValue", "Moment", "moments", "rebuilt", "unwrap"]

Moment = tuple[Stream, int]  # a stream and a serial of it, see `tilekit._runtime.timeline`


class HostValue:
    """A value that the device is still writing to host memory, and the moment from which it can be read.

    Args:
        value: what it is then.
        stream: where the copy was just submitted.
        finish: called once the moment has passed, perhaps more than once, before anybody gets the value.
    """

    __slots__ = ("_finish", "_value", "moment")

    def __init__(self, value: Any, stream: Stream, finish: Callable[[], None] | None = None) -> None:
        self._value, self._finish = value, finish
        self.moment: Moment = (stream, stream.pending)

    def get(self) -> Any:
        """The value, once the moment has passed."""
        if self._finish is not None:
            self._finish()
        return self._value


def moments(value: Any) -> list[Moment]:
    """The moments that must pass before the host may look at `value`."""
    kind = type(value)
    if kind is HostValue:
        return [value.moment]
    pending: list[Moment] = []
    if kind is tuple or kind is list:
        containers, seen = [value], None
        for container in containers:  # which grows: results nest as deep as the ops that made them
            for part in container:
                kind = type(part)
                if kind is HostValue:
                    pending.append(part.moment)
                elif kind is tuple or kind is list:
                    if seen is None:
                        seen = {id(value)}
                    if id(part) not in seen:
                        seen.add(id(part))
                        containers.append(part)
    return pending


def unwrap(value: Any) -> Any:
    """`value` as users see it, once its moments have passed."""
    if type(value) is HostValue:
        return value.get()
    if type(value) in (tuple, list) and moments(value):
        return rebuilt(value, HostValue.get)
    return value


def rebuilt(value: Any, turn: Callable[[HostValue], Any]) -> Any:
    """`value` with `turn(v)` for each HostValue `v` in it, at any depth of tuples and lists; what holds none stays the same."""
    if type(value) is HostValue:
        return turn(value)
    if type(value) not in (tuple, list):
        return value
    built: dict[int, Any] = {}  # by the identity of tuples and lists
    entered: set[int] = set()
    waiting = [value]
    while waiting:
        whole = waiting[-1]
        if id(whole) not in entered:
            entered.add(id(whole))
            waiting.extend(part for part in whole if type(part) in (tuple, list) and id(part) not in entered)
            continue
        waiting.pop()
        if id(whole) not in built:  # a list that contains itself is not made yet, and stays as it is in there
            parts = [turn(part) if type(part) is HostValue else built.get(id(part), part) for part in whole]
            same = all(new is old for new, old in zip(parts, whole, strict=True))
            built[id(whole)] = whole if same else type(whole)(parts)
    return built[id(value)]
