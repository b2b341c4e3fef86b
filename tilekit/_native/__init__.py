"""The host path in C: what every launch passes through, in one call, where it was built.

All of it has a form in Python, in `launch` and `_capture`, which does the same, and runs where this was not built. Importing this
package puts the faster forms into the table that those ask (`tilekit.ops.fast_path`); nothing below imports it.

Attributes:
    compiled: the compiled module; None if there is none, or only one that does not fit these sources.
"""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

__all__ = ["compiled"]

compiled: ModuleType | None = None

_STALE = (
    "the compiled part of tilekit, %s, does not fit its Python sources (%s): it is not used, and each launch takes a few "
    "microseconds longer. Build it anew: pip install -e ., or python -c 'from setuptools import setup; setup()' build_ext -i"
)


def _load() -> ModuleType | None:
    """Import the compiled module, and let launches go through it."""
    try:
        from tilekit._native import _launch
    except ImportError:  # there was no C compiler
        return None
    from tilekit._native.attributes import VERSION

    version = getattr(_launch, "VERSION", 0)
    try:
        if version != VERSION:
            raise ImportError(f"it is of version {version}, they are of {VERSION}")
        from tilekit._native import classes

        classes.prepare()
    except ImportError as error:
        logging.getLogger("tilekit").warning(_STALE, _launch.__file__, error)
        return None
    from tilekit._native.launcher import launcher
    from tilekit._native.program import movable_program, program
    from tilekit.ops.fast_path import FAST_PATH

    FAST_PATH.kernel, FAST_PATH.launcher, FAST_PATH.program = classes.Kernel, launcher, program
    FAST_PATH.movable_program, FAST_PATH.repeat = movable_program, _launch.repeat

    def recalls(op: type[Any], recipe: type[Any]) -> type[Any]:
        try:
            derived = classes.recalls(op, recipe)
        except ImportError as error:
            logging.getLogger("tilekit").warning(_STALE, _launch.__file__, error)
            return op
        FAST_PATH.recalled = _launch.recalled
        return derived

    FAST_PATH.recalls = recalls
    FAST_PATH.key, FAST_PATH.launches, FAST_PATH.new_tensors = _launch.key, _launch.Launches, _launch.new_tensors
    return _launch


compiled = _load()
