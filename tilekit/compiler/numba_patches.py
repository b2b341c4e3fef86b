"""What is replaced in numba while tilekit compiles: the only patches of another module."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda import dispatcher, lowering
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_use_defs, must_use_alloca

__all__ = ["patched"]

_patching = threading.Lock()


class _StandIn:
    """As much of a device as numba's compiler asks for."""

    id = 0

    def __init__(self, capability: tuple[Any, ...]) -> None:
        self.compute_capability = capability[:2]


@contextmanager
def patched(capability: tuple[Any, ...]) -> Iterator[None]:
    """While the block runs, numba's dispatcher finds the target device, in this thread, and lowers long functions faster.

    Compiling a call of a device function asks for the current device even when the target is given (numba-cuda 0.30.4,
    dispatcher.py:2065), which fails without a GPU, and with one would make a context and compile for the wrong architecture.
    There is no argument for it. Other threads keep the original.
    """
    stand_in, thread = _StandIn(capability), threading.get_ident()
    with _patching:
        original, slow = dispatcher.get_current_device, lowering.Lower._find_singly_assigned_variable

        def current_device() -> Any:
            return stand_in if threading.get_ident() == thread else original()

        dispatcher.get_current_device, lowering.Lower._find_singly_assigned_variable = current_device, _find_assigned_once
        try:
            yield
        finally:
            dispatcher.get_current_device, lowering.Lower._find_singly_assigned_variable = original, slow


def _find_assigned_once(self: Any) -> None:
    """The same as numba's, which looks through a whole block for each variable (lowering.py:459): in one walk.

    They are the variables that one statement assigns, and that are read in its block alone.
    """
    once: set[str] = set()
    if not self.func_ir.func_id.is_generator:
        used, kept = compute_use_defs(self.func_ir.blocks), must_use_alloca(self.func_ir.blocks)
        blocks_of = Counter(name for names in used.defmap.values() for name in names)
        elsewhere = {name for names in used.usemap.values() for name in names}
        for at, names in used.defmap.items():
            times = Counter(statement.target.name for statement in self.blocks[at].find_insts(ir.assign_types))
            once |= {n for n in names if times[n] == blocks_of[n] == 1 and n not in elsewhere and n not in kept}
    self._singly_assigned_vars, self._blk_local_varmap = once, {}
