"""Reader-writer hazards: who wrote a piece of memory last, and who has read it since.

Work on another stream has to come after those (`tilekit._runtime.context.ExecutionContext.acquire`): a read after the last write
(RAW), a write after that (WAW), and after all reads since (WAR). What another library has done with memory that it shares may
be either, so everybody waits for that. Users are kept as moments, (stream, serial), see `tilekit._runtime.timeline`; those of the
stream at hand are in order already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilekit._runtime.stream import Stream

__all__ = ["READERS_KEPT", "AccessHistory", "Use"]

Use = tuple["Stream", int]  # a moment: whatever the stream did with the memory was submitted before

# How many readers a history remembers before it looks which are done.
READERS_KEPT = 8


class AccessHistory:
    """The last write of some memory and the reads since, for those who come later.

    Attributes:
        last_write: the moment behind the last write, or None.
        reads: for each stream that has read since, the moment behind its last read.
        theirs: the moment behind what another library has done with the memory, if that is not behind `last_write`; or None.
    """

    __slots__ = ("__weakref__", "last_write", "reads", "theirs")

    last_write: Use | None
    reads: dict[Stream, int]
    theirs: Use | None

    def __init__(self) -> None:
        self.last_write, self.reads, self.theirs = None, {}, None

    def prune(self) -> None:
        """Forget the reads that are known to be over."""
        for stream, serial in list(self.reads.items()):
            if serial <= stream.completed:
                self._drop(stream, serial)

    def written_by(self, use: Use) -> None:
        """Remember that `use` writes it: whoever comes later waits for that, and thereby for all that it waited for.

        Users that it did not wait for (other threads' that came in between) are still remembered.
        """
        stream = use[0]
        before, self.last_write = self.last_write, use
        if self.theirs is not None and stream.follows(*self.theirs):
            self.theirs = None
        for other, last in list(self.reads.items()):
            if other is stream or stream.follows(other, last):
                self._drop(other, last)
        if before is not None and not stream.follows(*before):
            self.reads[before[0]] = max(before[1], self.reads.get(before[0], 0))

    def _drop(self, stream: Stream, serial: int) -> None:
        """Forget a read, unless a later one took its place just now."""
        last = self.reads.pop(stream, None)
        if last is not None and last > serial:
            self.reads[stream] = max(last, self.reads.get(stream, 0))

    def uses(self) -> list[Use]:
        """Everybody who must be done before the memory can go."""
        uses = self.own_uses()
        if self.theirs is not None:
            uses.append(self.theirs)
        return uses

    def is_busy(self) -> bool:
        """Whether tilekit's work may not be done yet, as far as is known."""
        return any(serial > stream.completed for stream, serial in self.own_uses())

    def own_uses(self) -> list[Use]:
        """What tilekit has submitted of it."""
        uses = list(self.reads.items())
        if self.last_write is not None:
            uses.append(self.last_write)
        return uses
