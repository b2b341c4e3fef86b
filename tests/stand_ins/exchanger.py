"""An array library that describes its arrays in place, by DLPack's C exchange API, and exports them by `__dlpack__`, too."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np
from exporter import Exporter

from tilekit import dtypes
from tilekit.interop import dlpack

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}


class _Table(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("exported", ctypes.c_void_p),
        ("imported", ctypes.c_void_p),
        ("describe", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(dlpack._Tensor))),
        ("stream", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def exchanging(*, major: int = 1, spelling: str = "__dlpack_c_exchange_api__", number: bool = False) -> Any:
    """A class of such arrays, with a table of its own.

    Args:
        major: the version of DLPack that it says it has.
        spelling: the attribute that has the table.
        number: whether that is its address, and not a capsule.
    """

    class Array(Exporter):
        """One array; see `Exporter`.

        Attributes:
            described: how many were described.
            current: the address of the stream that the library works in.
            lanes: of an element.
            fails: whether none can be described.
        """

        described: ClassVar[int] = 0
        current: ClassVar[int] = 0
        lanes: ClassVar[int] = 1
        fails: ClassVar[bool] = False
        requires_grad = False

        def __init__(self, array: Any = None, dtype: Any = np.float32, device: tuple[int, int] = (2, 0)) -> None:
            super().__init__(np.zeros(64, np.uint32) if array is None else array, dtype, device)

        def __getitem__(self, part: Any) -> Any:
            return type(self)(self.array[part], self.dtype, self.device)

    def describe(array: Any, out: Any) -> int:
        cls = type(array)
        cls.described += 1
        if cls.fails:
            return -1
        a, it = array.array, out.contents
        array.extents = (ctypes.c_int64 * max(1, 2 * a.ndim))(*a.shape, *(step // a.itemsize for step in a.strides))
        it.data, it.device.type, it.device.id, it.ndim = a.ctypes.data, *array.device, a.ndim
        special = dlpack._SPECIAL.get(dtypes.as_dtype(array.dtype).name) if array.dtype.kind != "c" else None
        it.dtype.code = _CODES[array.dtype.kind] if special is None else special
        it.dtype.bits, it.dtype.lanes = 8 * array.dtype.itemsize, cls.lanes
        address = ctypes.addressof(array.extents)
        it.shape = ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))
        contiguous = a.flags.c_contiguous and getattr(array, "no_strides", False)
        it.strides = None if contiguous else ctypes.cast(address + 8 * a.ndim, ctypes.POINTER(ctypes.c_int64))
        return 0

    def stream(kind: int, ordinal: int, out: Any) -> int:
        out[0] = Array.current
        return 0

    table = _Table(major, 0)
    table.describe, table.stream = _Table._fields_[6][1](describe), _Table._fields_[7][1](stream)
    Array.table = table  # type: ignore[attr-defined]
    address = ctypes.addressof(table)
    setattr(Array, spelling, address if number else _new_capsule(address, b"dlpack_exchange_api", None))
    return Array
