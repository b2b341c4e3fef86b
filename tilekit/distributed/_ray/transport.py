"""Tensors from actor to actor past Ray's object store: a transport for Ray Direct Transport.

Of CPU devices, on one machine: the receiver reads the sender's memory, by `process_vm_readv`. That is one copy, and nothing is
registered or left behind. The kernel may forbid it: by Yama's `ptrace_scope` (1, the default of several distributions, lets only
parents read), or a container's seccomp filter. Nothing is done to get around that: the transfer is `Refused`, and whoever asked
for it sends the tensor through Ray's object store, which is shared memory on one machine and the network between two.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ray.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata, register_tensor_transport

from tilekit import api
from tilekit._runtime.device import Device
from tilekit._tensor.tensor import Tensor

__all__ = ["NAME", "DirectTransport", "Refused", "SenderGone", "read_memory", "register"]

NAME = "TILEKIT"
_LARGEST = 1 << 30  # bytes a call: the kernel takes 2 GiB less a page at most


class Refused(OSError):
    """The system does not let one process read the other's memory."""


class SenderGone(OSError):
    """The process whose memory was to be read has ended."""


@dataclass
class _Described(TensorTransportMetadata):
    """Where the tensors of a sender are.

    Attributes:
        pid, born: the process, and when it started: its number may be another's later.
        addresses: of the tensors' first elements.
    """

    pid: int = 0
    born: str = ""
    addresses: list[int] = field(default_factory=list)


class DirectTransport(TensorTransportManager):
    """Reads the sender's memory. All methods are Ray's, see `TensorTransportManager`.

    Attributes:
        device: where what arrives is put: the receiving actor's.
    """

    device: Device | None = None

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True  # else Ray ends both actors after a failure

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> _Described:
        return _Described(
            tensor_meta=[(tensor.shape, tensor.dtype) for tensor in rdt_object],
            tensor_device="cpu",
            pid=os.getpid(),
            born=_born(os.getpid()),
            addresses=[tensor.address for tensor in rdt_object],
        )

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any, target_buffers: Any = None
    ) -> list[Tensor]:
        sent: _Described = tensor_transport_metadata
        tensors = []
        for (shape, dtype), address in zip(sent.tensor_meta, sent.addresses, strict=True):
            tensor = api.empty(shape, dtype).on(self.device or Device("cpu")).sync()
            read_memory(sent.pid, address, tensor.host_view().ctypes.data, tensor.nbytes, sent.born)
            tensors.append(tensor)
        return tensors

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("the receiver reads: Ray does not call this")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        """Nothing was registered."""

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """A read cannot block, so there is nothing to interrupt."""


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(pid: int, source: int, target: int, nbytes: int, born: str | None = None) -> None:
    """Copy bytes from another process's memory to this one's.

    Args:
        pid: the other process.
        source, target: addresses there and here.
        nbytes: how many.
        born: when it started, as `_born` says it; None if that need not be checked.

    Raises:
        Refused: the system does not allow or have it. SenderGone: there is no such process (any more).
        OSError: anything else.
    """
    read = getattr(_libc(), "process_vm_readv", None)
    if read is None:
        raise Refused("this system has no process_vm_readv")
    if born is not None and _born(pid) != born:
        raise SenderGone(f"process {pid} has ended")
    done = 0
    while done < nbytes:
        size = min(_LARGEST, nbytes - done)
        here, there = _Range(target + done, size), _Range(source + done, size)
        count = read(pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0))
        if count <= 0:
            code = ctypes.get_errno()
            text = f"reading {nbytes:,} bytes of process {pid}: {os.strerror(code)}"
            raise {1: Refused, 38: Refused, 3: SenderGone}.get(code, OSError)(code, text)  # EPERM, ENOSYS, ESRCH
        done += count
    if born is not None and _born(pid) != born:
        raise SenderGone(f"process {pid} has ended meanwhile")


def _born(pid: int) -> str:
    """When a process started, in ticks since the machine did; empty if there is none such, or the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


_registering = threading.Lock()
_registered = False


def register() -> None:
    """Tell Ray of the transport, once a process: before actors are made that use it."""
    global _registered
    with _registering:
        if not _registered:
            register_tensor_transport(NAME, ["cpu"], DirectTransport, Tensor)
            _registered = True
