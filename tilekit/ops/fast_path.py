"""What makes launches faster: the one table that `tilekit._native` fills, where that was built.

Launches are complete without it. Nothing below `_native` imports that: whoever could do better asks here whether somebody does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilekit._driver.nodes import Node
from tilekit._driver.protocol import Memory
from tilekit._runtime.storage import Storage
from tilekit._runtime.stream import Stream

__all__ = ["FAST_PATH", "FastPath", "KnownLaunches", "MovableProgram", "NativeLaunch", "Program"]

# Takes the stream, the arguments and a label; 0 if it launched. Otherwise it has done nothing, and it is for others to do.
NativeLaunch = Callable[[Any, tuple[Any, ...], str], int]


class Program(Protocol):
    """Recorded work that is submitted by one native call."""

    def run(self, stream: Stream, reads: list[Storage], writes: list[Any], label: str, marked: bool, /) -> tuple[int, Any]:
        """Submit it, remember who uses the memory, and if `marked` record a mark behind it.

        Returns:
            0 if that was done, -1 if nothing was, since the memory is not free for the stream or anything else is unusual; else
            the driver's code, some of it submitted. And the mark, or None.
        """
        ...


class MovableProgram(Protocol):
    """Recorded work that is submitted by one native call, on memory that is elsewhere each time."""

    def run_at(self, addresses: tuple[int, ...], stream: int, /) -> int:
        """Submit it to the stream of that address. Who uses the memory is for the caller to know.

        Returns:
            0 if that was done, -1 if nothing was, since the stream's device is not the thread's current one; else the driver's
            code, some of it submitted.
        """
        ...


class KnownLaunches(Protocol):
    """Launches whose parameters are known but for addresses."""

    def submit(self, bases: list[Any], stream: Stream, poll_s: float | None, /) -> tuple[int, int | None]:
        """Launch on tensors in the places of those that were noted, record an event behind the last, and poll for it for so many
        seconds, or for as long as `TILEKIT_SPIN_US` says.

        Returns:
            How many were launched; and the serial behind all, 0 if it has passed, None if there are some left, or no event was
            recorded.
        """
        ...


class FastPath:
    """Each is None where there is nothing faster.

    Attributes:
        kernel: the class of what `@tk.kernel` makes, derived from `tilekit.launch.Kernel`. Its launches are of the class that it
            names as `_launch_type`.
        launcher: `launcher(executable, plan)` launches what a plan describes in one call, with all that belongs to it; None if
            it cannot.
        key: `key(function, args, kwargs, plain, tensors)` says what tells a call from others, see `tilekit.kernels._recall`; None
            if it cannot.
        launches: `launches(items)` makes launches that were noted in one call, see `tilekit.kernels._noting`; ValueError if it
            cannot.
        new_tensors: `new_tensors(tensors, new, stream)` appends new ones to some, see `tilekit.kernels._recipe`; None if it
            cannot.
        recalled: `recalled(known, function, name, args, kwargs, plain)` gives the op of a call that is known, see
            `tilekit.kernels._recall`; None if it is not, or it cannot tell.
        recalls: `recalls(op, recipe)` says of which classes these ops and what is known are, and gives the class in the place of
            the first.
        repeat: `repeat(known, args, empty, stream_on)` does what is known to be done for arguments of another library's operator,
            see `tilekit.torch._repeated`; or gives what tells them from others, None if it cannot tell.
        program: `program(driver, nodes)` submits recorded nodes in one call; None if it cannot.
        movable_program: `movable_program(driver, nodes, memories)` does on other memory; None if it cannot.
    """

    __slots__ = (
        "kernel",
        "key",
        "launcher",
        "launches",
        "movable_program",
        "new_tensors",
        "program",
        "recalled",
        "recalls",
        "repeat",
    )

    def __init__(self) -> None:
        self.kernel: type[Any] | None = None
        self.launcher: Callable[[Any, Any], NativeLaunch | None] | None = None
        self.key: Callable[..., tuple[Any, ...] | None] | None = None
        self.launches: Callable[[tuple[Any, ...]], KnownLaunches] | None = None
        self.new_tensors: Callable[..., list[Any] | None] = lambda *_: None
        self.recalled: Callable[..., Any] = lambda *_: None
        self.repeat: Callable[..., Any] = lambda *_: None
        self.recalls: Callable[[type[Any], type[Any]], type[Any]] = lambda op, _: op
        self.program: Callable[[Any, Sequence[Node]], Program | None] | None = None
        self.movable_program: Callable[[Any, Sequence[Node], Sequence[Memory]], MovableProgram | None] = lambda *_: None


FAST_PATH = FastPath()
