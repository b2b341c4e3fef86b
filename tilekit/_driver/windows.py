"""Windows: memory of several devices, or processes, a part each, behind each other in this process's addresses.

`HostWindow` is that of CPU devices: the host's memory in one process, else a file that all map. `tilekit._driver.cuda.windows`
has GPUs'. `swap` hands open files from process to process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilekit.errors import DeviceError

__all__ = ["Exchange", "HostWindow", "Window", "close_all", "swap", "together"]

Exchange = Callable[[Any], list[Any]]
"""Gives all processes what each of them gives, by rank: values that JSON has. Blocks until all have called it."""

_PAGE = 4096
_SHARED_MEMORY = "/dev/shm"  # a file system in memory, on Linux
_SWAP_S = 60.0  # how long a process waits for the open files of the others


class Window(Protocol):
    """Memory of several devices. Whoever has a reference keeps it mapped; a part lasts as long as some process maps it.

    Attributes:
        address: of the first part, in this process.
        stride: how many bytes a part is behind the one before.
        nbytes: of all parts.
        raw: on CPU devices the NumPy buffer (uint8) of all parts; else None.
    """

    address: int
    stride: int
    nbytes: int
    raw: np.ndarray[Any, Any] | None


class HostWindow:
    """A window of CPU devices, filled with zeros.

    Args:
        rank: of this process's first member; it is rank 0 that makes the file.
        size: how many parts there are.
        nbytes: of a part.
        exchange: what connects the processes; None where one has all parts.

    Raises:
        OSError: there is no room for the file, or it cannot be mapped.
        DeviceError: the same in another process, such as one on another machine.
    """

    def __init__(self, rank: int, size: int, nbytes: int, exchange: Exchange | None) -> None:
        self.stride = -(-max(nbytes, 1) // _PAGE) * _PAGE
        self.nbytes = size * self.stride
        if exchange is None:
            room = np.zeros(self.nbytes + _PAGE, np.uint8)
            skip = -room.__array_interface__["data"][0] % _PAGE
            self.raw: np.ndarray[Any, Any] | None = room[skip : skip + self.nbytes]
        else:
            self.raw = np.frombuffer(_mapped(rank, self.nbytes, exchange), np.uint8)
        self.address: int = self.raw.__array_interface__["data"][0]


@contextlib.contextmanager
def together(exchange: Exchange | None) -> Iterator[None]:
    """What all processes do at this point: an error in one of them is an error in all.

    Raises:
        DeviceError: it failed in another process.
    """
    try:
        yield
    except Exception as error:
        if exchange is not None:
            exchange(str(error) or type(error).__name__)
        raise
    for rank, problem in enumerate([] if exchange is None else exchange("")):
        if problem:
            raise DeviceError(f"rank {rank} could not have symmetric memory, which is of one machine: {problem}")


def _mapped(rank: int, nbytes: int, exchange: Exchange) -> mmap.mmap:
    """A new file's memory, the same in all processes. The file has no name any more when this returns.

    (`multiprocessing.shared_memory` has a process that unlinks what others still name, before Python 3.13.)
    """
    path = ""
    try:
        with together(exchange):
            path = _new_file(nbytes) if rank == 0 else ""
        name = exchange(path)[0]
        with together(exchange), Path(name).open("r+b") as file:
            return mmap.mmap(file.fileno(), nbytes)
    finally:
        if path:
            Path(path).unlink(missing_ok=True)


def _new_file(nbytes: int) -> str:
    """The name of a file with room for so many bytes, in memory if that has it."""
    folders = [folder for folder in (_SHARED_MEMORY, tempfile.gettempdir()) if os.access(folder, os.W_OK)]
    for folder in folders:
        number, path = tempfile.mkstemp(prefix="tilekit-", dir=folder)
        try:
            if hasattr(os, "posix_fallocate"):  # else a file system that is full kills who writes
                os.posix_fallocate(number, 0, nbytes)
            else:
                os.ftruncate(number, nbytes)
        except OSError:
            Path(path).unlink()
            if folder == folders[-1]:
                raise
        else:
            return path
        finally:
            os.close(number)
    raise OSError(f"nothing can be written in {tempfile.gettempdir()}")


def swap(rank: int, size: int, descriptor: int, exchange: Exchange) -> dict[int, int]:
    """Give all other processes of this machine an open file, and get theirs: descriptors of this process, by rank.

    Args:
        rank, size: this process's number, and how many there are.
        descriptor: the open file, which stays open here.
        exchange: what connects the processes.

    Raises:
        OSError: a process is on another machine, or does not answer.
        DeviceError: the same, in another process.
    """
    others, received = [r for r in range(size) if r != rank], dict[int, int]()
    with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory(prefix="tilekit-") as folder:
        with together(exchange):
            listener.bind(f"{folder}/{rank}")
            listener.listen(size)
            listener.settimeout(_SWAP_S)
        paths = exchange(f"{folder}/{rank}")
        try:
            with together(exchange):
                for other in others:
                    with socket.socket(socket.AF_UNIX) as connection:
                        connection.settimeout(_SWAP_S)
                        connection.connect(paths[other])
                        socket.send_fds(connection, [rank.to_bytes(4, "little")], [descriptor])
                while len(received) < len(others):
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(_SWAP_S)
                        data, files, _, _ = socket.recv_fds(connection, 4, 1)
                        received[int.from_bytes(data, "little")] = files[0]
        except BaseException:
            close_all(received.values())
            raise
    return received


def close_all(descriptors: Iterable[int]) -> None:
    """Close open files."""
    for descriptor in descriptors:
        os.close(descriptor)
