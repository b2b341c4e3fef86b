"""The process of a worker under Ray: an actor with one device, that keeps results by number, and runs what it is sent."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import ray

from tilekit._groups import Group, free_address
from tilekit._runtime.device import Device, use_device
from tilekit._tensor.tensor import Tensor
from tilekit.distributed._ray import transport
from tilekit.distributed._ray.pickling import Files, packed_error, unpacked
from tilekit.distributed.arguments import leaves, turned
from tilekit.distributed.local import LocalCluster, LocalRemote, LocalWorker
from tilekit.distributed.worker import RemoteRun

__all__ = ["CONTROL", "DONE", "FAILED", "Kept", "Part", "Process", "machine"]

CONTROL = "control"  # the actor's threads for what must not wait behind work
DONE, FAILED = "done", "failed"
_SITELESS = "built at an unknown place"  # what notes say of the op that stands for the call: the caller's names the line


@dataclass(frozen=True)
class Kept:
    """Stands for a result that the worker has, among arguments."""

    key: int


@dataclass(frozen=True)
class Part:
    """Stands for what is sent beside the arguments."""

    at: int


# Of a call: the result's number, the function, whether that is constant, the arguments, files, and what was dropped. It goes as
# bytes, and so does the reply: Ray passes these on as they are, where for anything else it takes a tenth of a millisecond.
Message = tuple[int, bytes, bool, bytes, Files, list[int]]


class Process:
    """What runs in the actor. Its replies are (DONE, ...) or (FAILED, the error's bytes, its traceback's text).

    Args:
        device: the device's label.
        direct: whether it sends and receives tensors by the direct transport.
    """

    def __init__(self, device: str, direct: bool) -> None:
        self._device = Device(device)
        if direct:
            transport.DirectTransport.device = self._device
            transport.register()
        worker = LocalCluster([self._device]).workers[0]
        assert isinstance(worker, LocalWorker), "a local cluster has no other"
        self._worker = worker
        self._kept: dict[int, LocalRemote | None] = {}  # None: of a call that failed. Whoever called drops that, too
        self._unwanted: set[int] = set()  # dropped before they were there
        self._lock = threading.Lock()
        self._groups: dict[int, Group] = {}

    def about(self) -> dict[str, Any]:
        """Who this is."""
        return {
            "device": self._device.label,
            "name": self._device.name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "machine": machine(),
        }

    def nothing(self) -> None:
        """Do nothing: what a call costs by itself."""

    def run(self, message: bytes, *parts: Any) -> bytes:
        """Call a function with its arguments, run the op that it returns, and keep the result; forget what was dropped."""
        return pickle.dumps(self._run(pickle.loads(message), parts))

    def _run(self, message: Message, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        key, function, constant, data, files, dropped = message
        if dropped:
            self._forget(dropped)
        with self._lock:
            if key in self._unwanted:  # nobody waits any more
                self._unwanted.discard(key)
                return DONE, None, None
        try:
            args, kwargs = turned(unpacked(data, files), lambda leaf: self._argument(leaf, parts))
            build = _function(function) if constant else unpacked(function, {})
            with self._here():
                op = RemoteRun(self._worker, build, args, kwargs, 0)
                op._site = None
                result = op.sync()
        except Exception as error:
            self._keep(key, None)
            return self._failed(error)
        self._keep(key, result)
        return DONE, result.shape, result.dtype

    def _argument(self, leaf: Any, parts: tuple[Any, ...]) -> Any:
        if type(leaf) is Kept:
            return self._result(leaf.key)
        return parts[leaf.at] if type(leaf) is Part else leaf

    def _result(self, key: int) -> LocalRemote:
        remote = self._kept[key]
        assert remote is not None, "nobody has a Remote of a call that failed"
        return remote

    def _keep(self, key: int, result: Any) -> None:
        with self._lock:
            if key in self._unwanted:
                self._unwanted.discard(key)
            else:
                self._kept[key] = result

    @ray.method(concurrency_group=CONTROL)
    def fetch(self, key: int) -> tuple[Any, ...]:
        """A result as the host has it."""
        try:
            return DONE, self._host_value(key)
        except Exception as error:
            return self._failed(error)

    @ray.method(concurrency_group=CONTROL)
    def export(self, key: int) -> Any:
        """As `fetch`, for another worker: by the object store."""
        return self._host_value(key)

    @ray.method(concurrency_group=CONTROL)
    def send(self, key: int) -> Any:
        """As `export`, but tensors stay tensors: called with `tensor_transport`, which takes them out."""

        def dense(leaf: Any) -> Any:
            return leaf.dup().sync() if isinstance(leaf, Tensor) and not leaf.is_contiguous else leaf

        with self._here():
            return turned(self._result(key).value, dense)

    def _host_value(self, key: int) -> Any:
        with self._here():
            return self._result(key).to_host().sync()

    @ray.method(concurrency_group=CONTROL)
    def drop(self, keys: list[int]) -> None:
        """Forget results; those that are not there yet, as soon as they are."""
        self._forget(keys)

    def _forget(self, keys: list[int]) -> None:
        with self._lock:
            for key in keys:
                if key in self._kept:
                    del self._kept[key]
                else:
                    self._unwanted.add(key)

    @ray.method(concurrency_group=CONTROL)
    def memory(self) -> tuple[int, int]:
        """How many results are kept, and the bytes of their tensors."""
        with self._lock:
            kept = [remote for remote in self._kept.values() if remote is not None]
            values = [leaf for remote in kept for leaf in leaves(remote.value)]
            storages = {leaf.storage for leaf in values if isinstance(leaf, Tensor) and leaf.storage is not None}
            return len(kept), sum(storage.nbytes for storage in storages)

    @ray.method(concurrency_group=CONTROL)
    def unwanted(self) -> int:
        """How many results it is to forget as soon as they are there."""
        return len(self._unwanted)

    def listen(self, host: str | None = None) -> str:
        """An address at which this process can listen for the members of a group."""
        return free_address(host or ray.util.get_node_ip_address())

    def join(self, number: int, rank: int, size: int, address: str, key: bytes, timeout_s: float | None) -> tuple[Any, ...]:
        """Join a group, which is `number` from now on."""
        try:
            with self._here():
                self._groups[number] = Group.join(rank, size, address=address, device=self._device, key=key, timeout_s=timeout_s)
        except Exception as error:
            return self._failed(error)
        return DONE, None, None

    def collective(self, number: int, name: str, key: int, part: int | None, options: dict[str, Any]) -> tuple[Any, ...]:
        """Take part in a collective with the result `part`; keep what comes as `key`."""
        try:
            with self._here():
                method = getattr(self._groups[number], name)
                result = method(**options).sync() if part is None else method(self._result(part).value, **options).sync()
        except Exception as error:
            self._keep(key, None)
            return self._failed(error)
        if part is None:
            self._keep(key, None)
            return DONE, None, None
        remote = LocalRemote(self._worker, result)
        self._keep(key, remote)
        return DONE, remote.shape, remote.dtype

    @ray.method(concurrency_group=CONTROL)
    def leave(self, number: int) -> None:
        """Leave a group."""
        group = self._groups.pop(number, None)
        if group is not None:
            group.close()

    @contextmanager
    def _here(self) -> Iterator[None]:
        """The worker's device is the default one: Ray calls methods in several threads."""
        with use_device(self._device):
            yield

    @staticmethod
    def _failed(error: Exception) -> tuple[Any, ...]:
        notes = getattr(error, "__notes__", None)
        if notes:
            error.__notes__ = [note for note in notes if not note.endswith(_SITELESS)]
        return FAILED, *packed_error(error)


@lru_cache(maxsize=256)
def _function(data: bytes) -> Any:
    """A function that has nothing of its own that could change."""
    return unpacked(data, {})


def machine() -> str:
    """What processes have in common that can read each other's memory: the machine, since when it runs, and the container."""
    if sys.platform != "linux":
        return ""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def is_large(array: np.ndarray[Any, Any]) -> bool:
    """Whether sending it blocks for so long that it is done beside the event loop."""
    return array.nbytes > 1 << 20
