"""Which bytes of an allocation have been written: on a CPU device, reading the others is an error.

A shadow is kept up to date by the work itself, in the order in which streams execute it. It costs nothing until a part of the
allocation is written, and nothing any more once everything is.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit.errors import DeviceError

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = ["Shadow", "ShadowView"]

_CURE = "Write it first (api.zeros, api.full and api.from_host do), or pass a view of the part that is written, such as x[:n]"


class Shadow:
    """What has been written of an allocation.

    Attributes:
        nbytes: the size of the allocation.
        left: how many of its bytes nobody has written.
    """

    __slots__ = ("_lock", "_written", "left", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.left = nbytes
        self._written: NDArray[np.bool_] | None = None  # None: nothing, or everything
        self._lock = threading.Lock()

    def trust(self) -> None:
        """From now on everything counts as written: somebody got hold of the memory whose writes are not seen."""
        with self._lock:
            self.left, self._written = 0, None

    def write(self, offset: int, nbytes: int) -> None:
        """These bytes have been written."""
        if not self.left:
            return
        if nbytes == self.nbytes:
            self.trust()
        else:
            self.write_part(lambda written: written[offset : offset + nbytes])

    def write_part(self, choose: Any) -> None:
        """The part that `choose` takes from an array with a bool for each byte has been written."""
        with self._lock:
            if not self.left:
                return
            if self._written is None:
                self._written = np.zeros(self.nbytes, np.bool_)
            part = choose(self._written)
            self.left -= part.size - int(np.count_nonzero(part))
            part[...] = True
            if not self.left:
                self._written = None

    def written(self, choose: Any) -> NDArray[np.bool_] | None:
        """The part that `choose` takes from an array with a bool for each byte, as a copy; None if all of it is written."""
        if not self.left:
            return None
        with self._lock:
            if not self.left:
                return None
            part = choose(np.zeros(self.nbytes, np.bool_) if self._written is None else self._written)
            return None if part.all() else part.copy()

    def check(self, offset: int, nbytes: int, what: str, array: NDArray[Any] | None = None) -> None:
        """DeviceError if any of these bytes was never written.

        Args:
            what: who reads them.
            array: what they are to become, to say which elements it would be; by default they are bytes.
        """
        part = self.written(lambda written: written[offset : offset + nbytes])
        if part is None:
            return
        if array is None:
            missing = np.flatnonzero(~part) + offset
            where = f"bytes {missing[0]:,} to {missing[-1] + 1:,} of an allocation of {self.nbytes:,}"
        else:
            elements = np.asarray(~part.reshape(*array.shape, array.itemsize).all(axis=-1))
            where = f"{_range(elements)} of a {array.dtype.name} tensor of shape {array.shape}"
        raise DeviceError(f"{what} reads what was never written: {where}. {_CURE}")


class ShadowView:
    """The part of a shadow that belongs to a tensor.

    Args:
        shadow: of the tensor's allocation.
        shape, strides, offset, itemsize: the tensor's place in it; the last three in bytes.
    """

    __slots__ = ("_itemsize", "_offset", "_shadow", "_shape", "_strides")

    def __init__(self, shadow: Shadow, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, itemsize: int) -> None:
        self._shadow, self._shape, self._offset, self._itemsize = shadow, (*shape, itemsize), offset, itemsize
        self._strides = (*strides, 1)

    def _of(self, written: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.ndarray(self._shape, np.bool_, written, self._offset, self._strides)

    def write(self, window: Any) -> None:
        """The elements of the tensor that the index `window` selects have been written."""
        if self._shadow.left:
            self._shadow.write_part(lambda written: self._of(written)[window])

    def trust(self) -> None:
        """All of the allocation counts as written."""
        self._shadow.trust()

    def check(self, window: tuple[slice, ...], what: str, name: str) -> None:
        """DeviceError if an element in `window`, a slice for each dimension, was never written.

        Args:
            what, name: the operation that reads, and the kernel's parameter that it reads from.
        """
        part = self._shadow.written(lambda written: self._of(written)[window])
        if part is not None:
            missing = _range(np.asarray(~part.all(axis=-1)), tuple(s.start for s in window))
            raise DeviceError(
                f"{what}: reads what was never written: {name}{missing}, of a tensor of shape {self._shape[:-1]}. {_CURE}"
            )


def _range(missing: NDArray[np.bool_], starts: tuple[int, ...] | None = None) -> str:
    """The smallest box around the true elements, as an index: `"[4:8, 0:2]"`."""
    found = np.argwhere(missing)
    low, high = found.min(axis=0), found.max(axis=0) + 1
    box = (f"{a + at}:{b + at}" for a, b, at in zip(low, high, starts or (0,) * missing.ndim, strict=True))
    return f"[{', '.join(box)}]" if missing.ndim else "[()]"
