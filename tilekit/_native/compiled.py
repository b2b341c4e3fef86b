"""The compiled part of tilekit (`_launch.c`), if it was installed. What it leaves undone Python does, and without it all."""

from __future__ import annotations

__all__ = ["Calls", "Launcher", "Program", "Runs", "links", "prepare", "row", "submit"]

try:
    from tilekit._native._launch import Calls, Launcher, Program, Runs, links, prepare, row, submit
except ImportError:  # there was no C compiler: everything works, a launch takes a few microseconds longer

    class Calls:  # type: ignore[no-redef]
        """A base of `Kernel`'s that adds nothing."""

        __slots__ = ()

    class Runs:  # type: ignore[no-redef]
        """A base of `KernelLaunch`'s that adds nothing."""

        __slots__ = ()

    Launcher = Program = links = prepare = row = submit = None  # type: ignore[assignment,misc]
