"""DLPack's structures, and the capsules that carry them (https://dmlc.github.io/dlpack, version 1).

Capsules are read here, with ctypes. They are not made here: their destructors run while errors are on their way and after the
interpreter has ended, where no Python code may. NumPy makes them, of arrays over the same memory, and what they say is changed
where NumPy cannot say it: GPUs, and the dtypes of ml_dtypes.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilekit import dtypes

__all__ = ["CPU", "CUDA", "CUDA_HOST", "CUDA_MANAGED", "View", "capsule_of", "dtype_of", "is_capsule", "taken"]

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_NEWEST = 1  # the major version of the structures below

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # kDLInt, kDLUInt, kDLFloat, kDLBool, by NumPy's kind
_SPECIAL = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}  # kDLBfloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2
_NAMES = {0: "int", 1: "uint", 2: "float", 3: "opaque handle", 4: "bfloat", 5: "complex", 6: "bool"}


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_KINDS: dict[bytes, Any] = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}
_USED = {name: b"used_" + name for name in _KINDS}

_api = ctypes.pythonapi
for _name in _USED.values():
    _api.Py_IncRef(ctypes.py_object(_name))  # a capsule has the address of its name, and may outlive this module
# Prototypes of this module's own: those of `ctypes.pythonapi` itself are everybody's.
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Owner:
    """What keeps somebody's memory alive until it is collected."""

    __slots__ = ("_address", "_delete")

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address, self._delete = address, _Deleter(deleter) if deleter else None

    def __del__(self) -> None:
        if self._delete is not None and not sys.is_finalizing():
            self._delete(self._address)


@dataclass(frozen=True, kw_only=True)
class View:
    """What a capsule says.

    Attributes:
        device: the kind and the number of the device, as DLPack has them.
        address: of the first element.
        shape: the extents.
        strides: in elements; None for C-contiguous memory.
        dtype: one of tilekit's.
        readonly: whether it must not be written.
        owner: keeps the memory alive.
    """

    device: tuple[int, int]
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: dtypes.DType
    readonly: bool
    owner: Any


def is_capsule(obj: Any) -> bool:
    """Whether `obj` is a capsule, of whatever."""
    return type(obj).__name__ == "PyCapsule" and type(obj).__module__ == "builtins"


def taken(capsule: Any) -> View:
    """Take over what `capsule` carries.

    Raises:
        ValueError: somebody has taken it already; it is no DLPack capsule, or of a version that tilekit does not know.
        TypeError: the elements are of a type that tilekit does not have.
    """
    if not is_capsule(capsule):
        raise TypeError(f"__dlpack__ gave {type(capsule).__name__}, not a capsule")
    for name, used in _USED.items():
        if _valid(capsule, used):
            raise ValueError("this DLPack capsule was used already: a capsule can be taken once; call __dlpack__() again")
        if _valid(capsule, name):
            break
    else:
        raise ValueError(f"{capsule!r} is no DLPack capsule")
    address = _pointer(capsule, name)
    managed = _KINDS[name].from_address(address)
    if _rename(capsule, used):
        raise ValueError(f"{capsule!r} cannot be taken over")
    owner = _Owner(address, managed.deleter)
    if name == b"dltensor_versioned" and managed.major != _NEWEST:
        raise ValueError(f"the capsule has version {managed.major}.{managed.minor} of DLPack; tilekit knows version {_NEWEST}")
    tensor = managed.tensor
    dtype = _dtype(tensor.dtype)
    return View(
        device=(tensor.device.type, tensor.device.id),
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        dtype=dtype,
        readonly=name == b"dltensor_versioned" and bool(managed.flags & _READ_ONLY),
        owner=owner,
    )


def dtype_of(code: int, bits: int) -> dtypes.DType | None:
    """The dtype that DLPack calls so; None if tilekit does not have it."""
    return next((dtype for dtype in dtypes.ALL if (code, bits) == (_code(dtype), 8 * dtype.itemsize)), None)


def _dtype(element: _DataType) -> dtypes.DType:
    dtype = dtype_of(element.code, element.bits) if element.lanes == 1 else None
    if dtype is not None:
        return dtype
    kind = _NAMES.get(element.code, f"type {element.code} of DLPack, ")
    name = f"{kind}{element.bits}" + f"x{element.lanes}" * (element.lanes != 1)
    raise TypeError(f"elements of {name} are none of tilekit's dtypes, which are {', '.join(d.name for d in dtypes.ALL)}")


def _code(dtype: dtypes.DType) -> int:
    special = _SPECIAL.get(dtype.name)
    return _CODES[dtype.kind] if special is None else special


def capsule_of(
    array: np.ndarray[Any, Any], dtype: dtypes.DType, device: tuple[int, int], max_version: tuple[int, int] | None
) -> Any:
    """A capsule with the elements of `array`, which counts as one of `dtype` on `device`.

    Args:
        array: of unsigned integers of the size of `dtype`. It is kept alive; its elements are not looked at.
        dtype: the element type.
        device: DLPack's kind and number of the device.
        max_version: of DLPack, the newest that the consumer knows; None for those before 1.0.
    """
    capsule = array.__dlpack__(max_version=max_version)
    for name, kind in _KINDS.items():
        if _valid(capsule, name):
            tensor = kind.from_address(_pointer(capsule, name)).tensor
            tensor.device.type, tensor.device.id = device
            tensor.dtype.code = _code(dtype)
            return capsule
    raise BufferError(f"NumPy {np.__version__} makes DLPack capsules of a kind that tilekit does not know: {capsule!r}")
