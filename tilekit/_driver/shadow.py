"""What a CPU device knows of its memory that a GPU does not: which bytes have been written, and which block wrote an element.

Reading bytes that nobody wrote is an error. A shadow is kept up to date by the work itself, in the order in which streams
execute it. It costs nothing until a part of the allocation is written, and nothing any more once everything is. Kernels look at
it where they are interpreted; one that is compiled counts as the writer of all that it is given to write.

Two blocks of a kernel that write one element race: on a GPU either may win. So do one that writes and one that reads an element.
`Touched` notes who does what during a launch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilekit.errors import DeviceError

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = ["Shadow", "ShadowView", "Touched"]

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

    def write_part(self, choose: Any, where: Any = ...) -> None:
        """The part that `choose` takes from an array with a bool for each byte, of it what `where` indexes, has been written."""
        with self._lock:
            if not self.left:
                return
            if self._written is None:
                self._written = np.zeros(self.nbytes, np.bool_)
            part = choose(self._written)
            chosen = part[where]
            self.left -= chosen.size - int(np.count_nonzero(chosen))
            part[where] = True
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

    def write(self, window: tuple[slice, ...], where: NDArray[Any] | None = None) -> None:
        """The elements of the tensor in `window`, a slice for each dimension, have been written; those where `where` is True."""
        if self._shadow.left:
            self._shadow.write_part(lambda written: self._of(written)[window], ... if where is None else where)

    def write_points(self, index: tuple[NDArray[Any], ...]) -> None:
        """The elements at these indices have been written."""
        if self._shadow.left and index[0].size:
            flat = np.unique(np.ravel_multi_index(index, self._shape[:-1]))
            self._shadow.write_part(self._of, np.unravel_index(flat, self._shape[:-1]))

    def part(self, axis: int, start: int, stop: int) -> ShadowView:
        """Of a slice of the tensor along one dimension."""
        shape, itemsize = list(self._shape[:-1]), self._itemsize
        shape[axis] = stop - start
        return ShadowView(self._shadow, tuple(shape), self._strides[:-1], self._offset + start * self._strides[axis], itemsize)

    def trust(self) -> None:
        """All of the allocation counts as written."""
        self._shadow.trust()

    def check(self, window: tuple[slice, ...], what: str, name: str, mask: NDArray[Any] | None = None) -> None:
        """DeviceError if an element in `window`, a slice for each dimension, was never written.

        Args:
            what, name: the operation that reads, and the kernel's parameter that it reads from.
            mask: which elements of the window are read; it may be larger than what the window has inside the tensor.
        """
        part = self._shadow.written(lambda written: self._of(written)[window])
        if part is None:
            return
        missing: NDArray[np.bool_] = np.asarray(~part.all(axis=-1))
        if mask is not None:
            missing = missing & mask[tuple(map(slice, missing.shape))]
        if missing.any():
            self._refuse(what, name, _range(missing, tuple(s.start for s in window)))

    def check_points(self, index: tuple[NDArray[Any], ...], what: str, name: str) -> None:
        """DeviceError if an element at one of these indices was never written; see `check`."""
        part = self._shadow.written(self._of)
        if part is None:
            return
        missing = np.flatnonzero(~np.asarray(part.all(axis=-1))[index])
        if missing.size:
            self._refuse(what, name, f"[{', '.join(str(int(along[missing[0]])) for along in index)}]")

    def _refuse(self, what: str, name: str, where: str) -> None:
        raise DeviceError(
            f"{what}: reads what was never written: {name}{where}, of a tensor of shape {self._shape[:-1]}. {_CURE}"
        )


class _Running(Protocol):
    """A block: `tilekit.lang.block.Block`."""

    index: tuple[int, int, int]
    grid: tuple[int, int, int]
    ordered: bool


_SEVERAL = -1
Window = tuple[slice, ...]


class Touched:
    """Which blocks of a launch wrote, and read, an element of a tensor that the launch writes, by plain stores and loads.

    A second block that writes an element is an error, and so is one that reads what another writes; but for reads in a launch
    that used atomics, with which blocks may tell each other that something is there.

    Blocks mostly have whole tiles of a partition, each its own: that is a look into a dictionary. Once a kernel goes elsewhere,
    there is a number for each element: 0 for nobody, or 1 + the place of the block in the grid, or `_SEVERAL`.

    Args:
        shape: the tensor's.
    """

    __slots__ = ("_readers", "_shape", "_tiles", "_writers")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        # By the index of a tile: its extents, who wrote it, and who read it.
        self._tiles: dict[tuple[int, ...], tuple[tuple[int, ...], int, int]] = {}
        self._writers: NDArray[Any] | None = None
        self._readers: NDArray[Any] | None = None

    def write_tile(self, index: tuple[int, ...], tile_shape: tuple[int, ...], block: _Running, name: str) -> None:
        """`block` writes a whole tile of the partition `name`.

        Raises:
            DeviceError: another block wrote it, or read it.
        """
        if self._writers is not None:
            self.write(_tile_window(index, tile_shape, self._shape), None, block, name)
            return
        mine = _number(block.index, block)
        _, writer, reader = self._tiles.get(index, (tile_shape, 0, 0))
        if writer not in (0, mine):
            _refuse(name, _box(_tile_window(index, tile_shape, self._shape)), _index(writer, block), block.index)
        if reader not in (0, mine) and not block.ordered:
            _refuse_read(name, _box(_tile_window(index, tile_shape, self._shape)), reader, mine, block)
        self._tiles[index] = (tile_shape, mine, reader)

    def read_tile(self, index: tuple[int, ...], tile_shape: tuple[int, ...], block: _Running, name: str) -> None:
        """`block` reads a whole tile of the partition `name`.

        Raises:
            DeviceError: another block wrote it.
        """
        if self._writers is not None:
            self.read(_tile_window(index, tile_shape, self._shape), None, block, name)
            return
        mine = _number(block.index, block)
        _, writer, reader = self._tiles.get(index, (tile_shape, 0, 0))
        if writer not in (0, mine) and not block.ordered:
            _refuse_read(name, _box(_tile_window(index, tile_shape, self._shape)), mine, writer, block)
        self._tiles[index] = (tile_shape, writer, mine if reader in (0, mine) else _SEVERAL)

    def write(self, where: Any, chosen: NDArray[Any] | None, block: _Running, name: str) -> None:
        """`block` writes elements: in a window that lies inside the tensor, of which those where `chosen` is True, or at these
        indices. Raises as `write_tile`.
        """
        writers, readers = self._by_element(block)
        mine, marks, seen = _number(block.index, block), writers[where], readers[where]
        at = _first((marks != 0) & (marks != mine), chosen)
        if at is not None:
            _refuse(name, _element(where, at), _index(int(marks[at]), block), block.index)
        at = None if block.ordered else _first((seen != 0) & (seen != mine), chosen)
        if at is not None:
            _refuse_read(name, _element(where, at), int(seen[at]), mine, block)
        writers[where] = mine if chosen is None else np.where(chosen, mine, marks)

    def read(self, where: Any, chosen: NDArray[Any] | None, block: _Running, name: str) -> None:
        """`block` reads elements, given as for `write`. Raises as `read_tile`."""
        writers, readers = self._by_element(block)
        mine, marks, seen = _number(block.index, block), writers[where], readers[where]
        at = None if block.ordered else _first((marks != 0) & (marks != mine), chosen)
        if at is not None:
            _refuse_read(name, _element(where, at), mine, int(marks[at]), block)
        now = np.where((seen == 0) | (seen == mine), mine, _SEVERAL)
        readers[where] = now if chosen is None else np.where(chosen, now, seen)

    def _by_element(self, block: _Running) -> tuple[NDArray[Any], NDArray[Any]]:
        """Who wrote each element, and who read it."""
        if self._writers is None or self._readers is None:
            many = block.grid[0] * block.grid[1] * block.grid[2] >= 1 << 31
            self._writers, self._readers = (np.zeros(self._shape, np.int64 if many else np.int32) for _ in range(2))
            for index, (tile_shape, writer, reader) in self._tiles.items():
                window = _tile_window(index, tile_shape, self._shape)
                self._writers[window], self._readers[window] = writer, reader
            self._tiles.clear()
        return self._writers, self._readers


def _first(wrong: NDArray[Any], chosen: NDArray[Any] | None) -> tuple[int, ...] | None:
    """The first place where something is wrong, among those that are chosen."""
    wrong = wrong if chosen is None else wrong & chosen
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


def _element(where: Any, at: tuple[int, ...]) -> str:
    """The index of the element at a place of a window, or of one of many indices."""
    window = isinstance(where[0], slice)
    parts = (s.start + i for s, i in zip(where, at, strict=True)) if window else (int(along[at]) for along in where)
    return f"[{', '.join(map(str, parts))}]"


def _number(index: tuple[int, int, int], block: _Running) -> int:
    x, y, z = index
    return 1 + x + block.grid[0] * (y + block.grid[1] * z)


def _index(number: int, block: _Running) -> tuple[int, int, int]:
    rest, x = divmod(number - 1, block.grid[0])
    z, y = divmod(rest, block.grid[1])
    return x, y, z


def _tile_window(index: tuple[int, ...], tile_shape: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i * n, min(i * n + n, extent)) for i, n, extent in zip(index, tile_shape, shape, strict=True))


def _box(window: tuple[slice, ...]) -> str:
    return f"[{', '.join(f'{s.start}:{s.stop}' for s in window)}]"


def _refuse(name: str, where: str, first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
    raise DeviceError(
        f"blocks {first} and {second} both write {name}{where}: which of the values stays is chance. Let each block write "
        "elements of its own, or combine what they have with tk.atomic_add, tk.atomic_max..."
    )


def _refuse_read(name: str, where: str, reader: int, writer: int, block: _Running) -> None:
    who = "several blocks read" if reader == _SEVERAL else f"block {_index(reader, block)} reads"
    raise DeviceError(
        f"{who} {name}{where}, which block {_index(writer, block)} writes: on a GPU it is chance which comes first. Read from a "
        "tensor that the launch does not write, such as a dup(), or let each block read what it writes itself"
    )


def _range(missing: NDArray[np.bool_], starts: tuple[int, ...] | None = None) -> str:
    """The smallest box around the true elements, as an index: `"[4:8, 0:2]"`."""
    indices = np.argwhere(missing)
    low, high = indices.min(axis=0), indices.max(axis=0) + 1
    box = (f"{a + at}:{b + at}" for a, b, at in zip(low, high, starts or (0,) * missing.ndim, strict=True))
    return f"[{', '.join(box)}]" if missing.ndim else "[()]"
