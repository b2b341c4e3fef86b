"""An NCCL that notes what it is asked, in the place of `nccl.core` and `nccl.bindings.nccl`."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

from tilekit._driver.cuda.nccl import Nccl

__all__ = ["FakeNccl"]

_DataType = enum.IntEnum(
    "_DataType",
    "Int8 Uint8 Int32 Uint32 Int64 Uint64 Float16 Float32 Float64 Bfloat16 Float8e4m3 Float8e5m2",
    start=0,
)
_RedOp = enum.IntEnum("_RedOp", "Sum Prod Max Min Avg", start=0)
_Result = enum.IntEnum("_Result", "Success UnhandledCudaError SystemError InternalError InvalidArgument", start=0)
_Result.InProgress = 7  # type: ignore[attr-defined]


class _Comm:
    """What nccl4py's functions take for a communicator, and no address."""

    def __init__(self, handle: int = 0) -> None:
        self.handle = handle


class FakeNccl:
    """Both modules.

    Attributes:
        calls: what was called, with its arguments, in order.
        state: what communicators say went wrong.
        library: tilekit's view of the two.
    """

    DataType, RedOp, Result, Comm = _DataType, _RedOp, _Result, _Comm

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.state = 0
        fake = self

        class Communicator:
            def __init__(self, ptr: int) -> None:
                self.ptr = ptr

            @staticmethod
            def init(size: int, rank: int, identity: bytes) -> Communicator:
                fake.calls.append(("init", size, rank, identity))
                return Communicator(100 + rank)

            @staticmethod
            def init_all(devices: list[int]) -> list[Communicator]:
                fake.calls.append(("init_all", devices))
                return [Communicator(100 + device) for device in devices]

            def get_async_error(self) -> int:
                return fake.state

            def abort(self) -> None:
                fake.calls.append(("abort", self.ptr))

            def destroy(self) -> None:
                fake.calls.append(("destroy", self.ptr))

        identities = SimpleNamespace(from_bytes=bytes)
        core = SimpleNamespace(Communicator=Communicator, UniqueId=identities, get_unique_id=lambda: bytes(range(128)))
        self.library = Nccl(core, self)

    def get_version(self) -> int:
        return 22809

    def get_error_string(self, code: int) -> str:
        return f"error {code}"

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            if arguments and not any(isinstance(argument, _Comm) for argument in arguments):
                raise TypeError(f"{name} takes a Comm")
            self.calls.append((name, *(a.handle if isinstance(a, _Comm) else a for a in arguments)))

        return call

    def data(self) -> list[tuple[Any, ...]]:
        """The calls that move data, and where those that go together begin and end."""
        return [call for call in self.calls if call[0] not in ("init", "init_all", "destroy", "abort")]
