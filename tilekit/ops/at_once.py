"""`AtOnce`: what is left to do of an op that one native call has submitted, to the last launch."""

from __future__ import annotations

from typing import Any

from tilekit._runtime.stream import Stream
from tilekit.errors import DeviceError
from tilekit.ops.op import DeviceOp

__all__ = ["AtOnce"]


class AtOnce(DeviceOp[Any]):
    """An op that may be submitted so.

    Attributes:
        arguments: its result then, as a launch's is what it was given.
    """

    __slots__ = ()

    arguments: Any

    def _ended(self, stream: Stream) -> int:
        """Mark the end of the submission, where the call has launched and could not; the serial."""
        try:
            return stream.end(self)
        except Exception as error:
            self.annotate(error)
            if isinstance(error, DeviceError) and error.lost:
                stream.note_unfinished(error)
            raise

    def _waited(self, stream: Stream, serial: int) -> Any:
        """Block until it is done; the result."""
        try:
            stream.wait(serial)
        except Exception as error:
            self.annotate(error)
            raise
        return self.arguments
