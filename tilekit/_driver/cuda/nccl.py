"""NCCL, through nccl4py's bindings: communicators, and the calls that submit to a stream.

Addresses, counts and streams are ints here; what a collective means, and in which order with other work, is for
`tilekit._groups`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

__all__ = ["Communicator", "Nccl", "load"]

_DTYPES = {
    "int8": "Int8",
    "uint8": "Uint8",
    "int32": "Int32",
    "uint32": "Uint32",
    "int64": "Int64",
    "uint64": "Uint64",
    "float16": "Float16",
    "float32": "Float32",
    "float64": "Float64",
    "bfloat16": "Bfloat16",
    "float8_e4m3fn": "Float8e4m3",
    "float8_e5m2": "Float8e5m2",
}
_REDUCTIONS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "avg": "Avg"}


def load(core: Any = None, bindings: Any = None) -> Nccl:
    """NCCL.

    Args:
        core, bindings: the modules `nccl.core` and `nccl.bindings.nccl`, or what a test puts in their place; imported by default.

    Raises:
        ImportError: they, or the library, are not installed.
    """
    if core is None:
        try:
            core, bindings = (importlib.import_module(name) for name in ("nccl.core", "nccl.bindings.nccl"))
        except ImportError as error:
            raise ImportError(
                f"groups of GPUs need NCCL, and nccl4py is not installed ({error}); install both with: "
                'pip install "tilekit-cuda[nccl13]" (nccl12 for drivers of CUDA 12)'
            ) from error
    return Nccl(core, bindings)


class Nccl:
    """The library.

    Attributes:
        start, end: calls between them are submitted together: of several communicators, or to several ranks.
    """

    def __init__(self, core: Any, bindings: Any) -> None:
        try:
            bindings.get_version()
        except Exception as error:  # what it raises without the library differs between versions
            raise ImportError(
                f"nccl4py is installed, and finds no libnccl ({error}); install it with: pip install nvidia-nccl-cu13 "
                "(nvidia-nccl-cu12 for drivers of CUDA 12)"
            ) from error
        self.core, self.bindings = core, bindings
        self.start, self.end = bindings.group_start, bindings.group_end
        self.dtypes = {name: int(getattr(bindings.DataType, theirs)) for name, theirs in _DTYPES.items()}
        self.reductions = {name: int(getattr(bindings.RedOp, theirs)) for name, theirs in _REDUCTIONS.items()}

    def unique_id(self) -> list[int]:
        """What rank 0 makes, and tells to the others: bytes, as JSON has them."""
        return list(bytes(self.core.get_unique_id()))

    def join(self, driver: Any, rank: int, size: int, unique_id: Sequence[int]) -> Communicator:
        """This process's communicator. Blocks until all ranks have come."""
        driver.activate()
        identity = self.core.UniqueId.from_bytes(bytes(unique_id))
        return Communicator(self, driver, self.core.Communicator.init(size, rank, identity))

    def join_all(self, drivers: Sequence[Any]) -> list[Communicator]:
        """Communicators of GPUs of this process, their ranks in that order."""
        for driver in drivers:
            driver.activate()
        theirs = self.core.Communicator.init_all([driver.ordinal for driver in drivers])
        return [Communicator(self, driver, one) for driver, one in zip(drivers, theirs)]


class Communicator:
    """One GPU's. Its methods submit to a stream, and may be called between `Nccl.start` and `end`. NCCL makes the GPU current by
    itself, and then again the one that was.

    Args:
        nccl, driver, theirs: the library, the GPU's driver, and nccl4py's communicator.
    """

    def __init__(self, nccl: Nccl, driver: Any, theirs: Any) -> None:
        self._nccl, self._bindings, self._driver, self._theirs = nccl, nccl.bindings, driver, theirs
        self._handle = nccl.bindings.Comm(theirs.ptr)

    def activate(self) -> None:
        """Make the GPU current in this thread."""
        self._driver.activate()

    def all_reduce(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        """Of `count` elements."""
        self._bindings.all_reduce(source, target, count, dtype, op, self._handle, stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        """With `count` elements for each member."""
        self._bindings.reduce_scatter(source, target, count, dtype, op, self._handle, stream)

    def all_gather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        """With `count` elements of each member."""
        self._bindings.all_gather(source, target, count, dtype, self._handle, stream)

    def broadcast(self, source: int, target: int, count: int, dtype: int, root: int, stream: int) -> None:
        """Of `count` elements."""
        self._bindings.broadcast(source, target, count, dtype, root, self._handle, stream)

    def send(self, source: int, count: int, dtype: int, peer: int, stream: int) -> None:
        """`count` elements to a rank."""
        self._bindings.send(source, count, dtype, peer, self._handle, stream)

    def recv(self, target: int, count: int, dtype: int, peer: int, stream: int) -> None:
        """`count` elements from a rank."""
        self._bindings.recv(target, count, dtype, peer, self._handle, stream)

    def failure(self) -> str | None:
        """What went wrong other than in a call; None if nothing did."""
        result = self._bindings.Result
        code = int(self._theirs.get_async_error())
        return None if code in (int(result.Success), int(result.InProgress)) else str(self._bindings.get_error_string(code))

    def abort(self) -> None:
        """Let all its kernels end, whatever they wait for."""
        self._end("abort")

    def close(self) -> None:
        """Give it up; its work is done."""
        self._end("destroy")

    def _end(self, how: str) -> None:
        theirs, self._theirs, self._handle = self._theirs, None, self._bindings.Comm()
        if theirs is not None:
            self._driver.activate()
            getattr(theirs, how)()
