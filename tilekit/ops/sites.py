"""The line of the user's code that built an op."""

from __future__ import annotations

from types import CodeType, FrameType

__all__ = ["INSIDE", "RUNNING", "site_of"]

_PACKAGE = __name__.partition(".")[0] + "."
RUNNING = frozenset(_PACKAGE + name for name in ("ops.combinators", "ops.shared", "ops.sources"))  # build ops while others run

INSIDE: dict[str, bool] = {}  # by the name of a module: whether it is tilekit's own


def site_of(frame: FrameType) -> tuple[CodeType, int] | None:
    """The place in the user's code that called what runs in `frame`: the code, and where in it.

    None for what an op builds while it runs: then that op's own place is the better answer.
    """
    while True:
        name = frame.f_globals.get("__name__", "")
        inside = INSIDE.get(name)
        if inside is None:
            inside = INSIDE[name] = name.startswith(_PACKAGE)
        if not inside or frame.f_back is None:
            return frame.f_code, frame.f_lasti
        if name in RUNNING:
            return None
        frame = frame.f_back
