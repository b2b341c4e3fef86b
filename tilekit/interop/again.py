"""Arrays that are met again: what is known of one from the first time needs no second export, only the order of the streams.

Exporting an array by DLPack takes 20 microseconds or more of the host's time; programs give the same weights and buffers to one
launch after the other. So the tensor of an array is remembered as long as the array lives. It holds while the array says the same
of itself: address, shape, strides, dtype. What the library has submitted by then is on its current stream, which is asked for.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from tilekit._runtime.device import Device, as_stream
from tilekit._runtime.hazards import AccessHistory
from tilekit._runtime.ranges import used
from tilekit._runtime.storage import Imported, Storage
from tilekit._tensor.tensor import Tensor

__all__ = ["exported", "met_again", "remember_array"]


class _Library(NamedTuple):
    """What is asked of a library's array.

    Attributes:
        says: what the array says of itself.
        stream: the library's current stream on a device, by its number: its address, or an object that has it.
        alias: another array of the same elements, to be exported in the array's place. What is exported keeps what it was
            exported from (PyTorch revives a tensor that only a DLPack capsule still has), and a tensor that is remembered keeps
            what was exported: so no array that is remembered would ever be gone.
    """

    says: Callable[[Any], Any]
    stream: Callable[[int], Any]
    alias: Callable[[Any], Any]


class _Known(NamedTuple):
    """An array that was met, by a weak reference; what it said; its tensor, storage and device; how it is asked."""

    array: weakref.ref[Any]
    said: Any
    tensor: Tensor
    storage: Storage
    device: Device
    library: _Library


_known: dict[int, _Known] = {}  # by the identity of the array
_libraries: dict[type, _Library | None] = {}


def met_again(obj: Any) -> Tensor | None:
    """The tensor of `obj`, behind the work that its library has submitted by now; None if it was not met, or has changed."""
    known = _known.get(id(obj))
    if known is None:
        return None
    array, said, tensor, storage, device, library = known
    if array() is not obj or library.says(obj) != said:
        return None
    handle = library.stream(device.ordinal)
    history: AccessHistory = storage.history if isinstance(storage, Imported) else storage
    before = history.theirs
    if before is not None:
        stream, serial = before
        if stream.address == handle and stream.device is device and not stream.closed:
            if serial != stream.pending:
                history.theirs = stream.moment()
            return tensor
    stream = device.adopt(handle, None) if isinstance(handle, int) else as_stream(handle, device)
    used(history, device, stream.moment())
    return tensor


def exported(obj: Any) -> Any:
    """What is to be exported for `obj`, so that it can be remembered: the array itself, or an alias."""
    library = _library(type(obj))
    return obj if library is None else library.alias(obj)


def remember_array(obj: Any, tensor: Tensor) -> None:
    """`tensor` is that of `obj`, an array of a library that was asked for it in full, by what `exported` gives."""
    library, storage = _library(type(obj)), tensor.storage
    if library is None or storage is None or storage.device.kind != "cuda" or storage.guarded:
        return
    key = id(obj)
    gone = weakref.ref(obj, lambda _: _known.pop(key, None))
    _known[key] = _Known(gone, library.says(obj), tensor, storage, storage.device, library)


def _library(kind: type) -> _Library | None:
    """How arrays of that type are asked; None for those of libraries that are always asked in full."""
    if kind not in _libraries:
        _libraries[kind] = _library_of(kind)
    return _libraries[kind]


def _library_of(kind: type) -> _Library | None:
    name = kind.__module__.partition(".")[0]
    module = sys.modules.get(name)
    if name == "torch":
        current = getattr(getattr(module, "_C", None), "_cuda_getCurrentRawStream", None)  # what torch's own compiler asks
        if current is None:
            current = lambda ordinal: module.cuda.current_stream(ordinal).cuda_stream  # type: ignore[union-attr]  # noqa: E731
        return _Library(_torch_says, current, _torch_alias)
    if name == "cupy" and module is not None:
        return _Library(_cupy_says, lambda _: module.cuda.get_current_stream(), _cupy_alias)
    return None


def _torch_says(array: Any) -> Any:
    return array.data_ptr(), array.shape, array.stride(), array.dtype, array.requires_grad


def _torch_alias(array: Any) -> Any:
    return array if array.requires_grad else array.detach()  # PyTorch refuses the export of the first, and says why


def _cupy_alias(array: Any) -> Any:
    """No view, which would keep the array as its base."""
    return type(array)(array.shape, array.dtype, memptr=array.data, strides=array.strides)


def _cupy_says(array: Any) -> Any:
    return array.data.ptr, array.shape, array.strides, array.dtype
