"""The native function that CUDA calls when a stream has come to a signal.

It runs on the driver's thread and must neither take the GIL nor call CUDA. It is compiled when the first signal is asked for,
so that programs that only block do not pay for it.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

__all__ = ["ring_address"]

_lock = threading.Lock()
_ring: Any = None
_bell = np.ones(1, np.uint64)  # what is written to the descriptor


def ring_address() -> int:
    """The address of `void ring(CUstream, CUresult status, int32 slot[3])`, a CUstreamCallback.

    `slot` is one of a SignalBoard's: it gets the status plus one, 8 bytes are written to the descriptor it names, and it is
    counted as rung.
    """
    global _ring
    with _lock:
        if _ring is None:
            _ring = _compile()
            # Kept for good, beyond the end of the interpreter: the driver may call it until the process is gone.
            for kept in (_ring, _bell):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        return int(_ring.address)


def _compile() -> Any:
    from numba import cfunc, types

    write = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(("write", ctypes.CDLL(None)))
    bell = _bell.ctypes.data

    # nopython, so no Python object is touched, and cfunc's wrapper takes no GIL unless there is one to be returned.
    @cfunc(types.void(types.voidptr, types.int32, types.CPointer(types.int32)))
    def ring(stream, status, slot):  # type: ignore[no-untyped-def]
        slot[0] = status + 1
        write(slot[1], bell, 8)
        slot[2] += 1

    return ring
