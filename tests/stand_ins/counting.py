"""How many of tilekit's Python functions are called. Times differ between machines, counts do not."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import tilekit as tk

__all__ = ["counted"]

PACKAGE = os.path.dirname(tk.__file__)


def counted(function: Callable[[], object]) -> int:
    """How many of tilekit's Python functions `function` calls."""
    calls = 0

    def profile(frame: Any, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    gc.disable()  # finalizers of other tests' would be counted
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls
