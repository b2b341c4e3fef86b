"""Devices: which there are, which one is the default, and what belongs to one (streams, the event pool, memory to free)."""

from __future__ import annotations

import contextvars
import gc
import logging
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tilekit._driver import forking
from tilekit._driver.cpu import driver as cpu
from tilekit._driver.discovery import Discovery, discover_cuda
from tilekit._driver.protocol import Allocator, Driver, EventHandle, Memory, StreamHandle
from tilekit._runtime.policy import SchedulingPolicy, StreamPoolRoundRobin
from tilekit._runtime.storage import LARGEST_SPARE, Garbage, Shelf
from tilekit._runtime.stream import Event, Stream
from tilekit.errors import DeviceUnavailableError, OutOfMemoryError, TilekitError
from tilekit.settings import load_settings

if TYPE_CHECKING:
    from tilekit._driver.cpu.driver import CpuDriver

__all__ = ["Device", "cuda_unavailable_reason", "default_device", "devices", "set_default_device", "use_device"]

_log = logging.getLogger("tilekit")
_SPEC = re.compile(r"(cpu|cuda)(?::(\d+))?")


class Device:
    """A GPU, or a CPU device. There is one object for each: `Device(0) is Device("cuda:0")`.

    Args:
        spec: `"cuda"` (the first usable GPU), `"cuda:1"` or 1, `"cpu"`, `"cpu:2"`, a Device; None for the default device.

    Attributes:
        kind: `"cuda"` or `"cpu"`.
        ordinal: its number among its kind, from 0.
        label: `"cuda:0"`.
        name: what its maker calls it.
        compute_capability: of a GPU, as (9, 0); None on the CPU.
        target: what kernels are compiled for: `"sm_90a"`; `"cpu"`.
        driver: what the layers above use it through (internal).

    Raises:
        DeviceUnavailableError: it does not exist or cannot be used; the text says why, and what to do.
        TypeError, ValueError: `spec` names no device.
    """

    __slots__ = (
        "__weakref__",
        "_lock",
        "_policy",
        "_private",
        "_registry",
        "compute_capability",
        "driver",
        "event_pool",
        "garbage",
        "kind",
        "label",
        "largest_spare",
        "name",
        "no_memory",
        "ordinal",
        "owners",
        "recycle",
        "retired",
        "shelves",
        "target",
    )

    driver: Driver
    kind: Literal["cuda", "cpu"]
    ordinal: int
    label: str
    name: str
    compute_capability: tuple[int, int] | None
    target: str
    no_memory: Memory
    # Finalizers append to these three, from any thread and at any moment, so nobody may need a lock for it.
    event_pool: list[EventHandle]
    recycle: Callable[[EventHandle], None]  # puts an event there
    garbage: deque[Garbage]
    retired: deque[tuple[weakref.ref[Stream], StreamHandle]]
    owners: list[Garbage]
    shelves: dict[int, Shelf]  # the spare memory of each stream of tilekit's own, by its number
    largest_spare: int  # 0 where spares are of no use
    _lock: threading.Lock
    _policy: SchedulingPolicy | None
    _registry: weakref.WeakValueDictionary[int, Stream]  # by address
    _private: StreamHandle

    def __new__(cls, spec: int | str | Device | None = None) -> Device:  # noqa: PYI034 - one class, whose objects exist already
        """The one object for `spec`."""
        if isinstance(spec, Device):
            return spec
        if spec is None:
            return default_device()
        if isinstance(spec, int) and not isinstance(spec, bool):
            return _found.device("cuda", spec)
        if not isinstance(spec, str):
            raise TypeError(f'a device is named by "cuda", "cuda:1", "cpu", "cpu:2", or a GPU\'s number, not {spec!r}')
        match = _SPEC.fullmatch(spec.strip().lower())
        if match is None:
            raise ValueError(f'{spec!r} names no device: expected "cuda", "cuda:1", "cpu" or "cpu:2"')
        return _found.device(match[1], None if match[2] is None else int(match[2]))

    @classmethod
    def of_driver(cls, driver: Driver) -> Device:
        """A device made of a driver: how discovery makes them, and tests of drivers that they bring (internal)."""
        self = super().__new__(cls)
        self.driver = driver
        self.kind, self.ordinal, self.name = driver.kind, driver.ordinal, driver.name
        self.label = f"{driver.kind}:{driver.ordinal}"
        self.compute_capability, self.target = driver.compute_capability, driver.target
        self.event_pool, self.garbage, self.retired = [], deque(), deque()
        self.recycle = partial(cpu.recycle, self.event_pool) if driver.kind == "cpu" else self.event_pool.append
        self._lock = threading.Lock()
        self._policy = None
        self._registry = weakref.WeakValueDictionary()
        self.owners, self.shelves = [], {}
        self.largest_spare = LARGEST_SPARE if driver.keeps_spares else 0
        self._private = None
        self.no_memory = Memory(0, 0, cpu.no_bytes() if driver.kind == "cpu" else None)
        return self

    # streams and events
    def stream(self, priority: int = 0) -> Stream:
        """A new stream. It does not wait for the legacy default stream, nor that for it.

        Args:
            priority: smaller is more urgent.

        Raises:
            ValueError: the device has no such priority.
        """
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority is an int, not {type(priority).__name__}")
        low, high = self.driver.priority_range()
        if not high <= priority <= low:
            raise ValueError(f"priority {priority} is out of range: {self.label} has {high} (most urgent) to {low}")
        self.collect()
        stream = Stream(self, self.driver.stream_create(priority), priority=priority)
        with self._lock:
            self._registry[stream.address] = stream
            self.shelves[stream.number] = Shelf(stream.number, stream.handle)
        return stream

    def adopt(self, address: int, source: Any) -> Stream:
        """The Stream for a stream at `address` that `source` keeps alive, the same for the same address (internal)."""
        with self._lock:
            stream = self._registry.get(address)
            if stream is None:
                stream = Stream(self, self.driver.stream_adopt(address), owned=False, source=source)
                self._registry[address] = stream
            elif source is not None:
                stream.keep(source)
            return stream

    def forget(self, stream: Stream) -> None:
        """`stream` is closed: its address may be another's soon (internal)."""
        with self._lock:
            if self._registry.get(stream.address) is stream:
                del self._registry[stream.address]
            shelf = self.shelves.pop(stream.number, None)
        if shelf is not None:
            shelf.close(self.driver)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams in use, tilekit's own and adopted ones."""
        with self._lock:
            return tuple(self._registry.values())

    def event(self, timing: bool = False) -> Event:
        """A new event.

        Args:
            timing: whether `elapsed_ms` shall work; costs a little at each record.
        """
        return Event(self, timing)

    @property
    def policy(self) -> SchedulingPolicy:
        """Which streams ops get that are not given one; a pool of four in turn, unless set."""
        policy = self._policy
        if policy is None:
            with self._lock:
                if self._policy is None:
                    self._policy = StreamPoolRoundRobin(self, streams=4)
                policy = self._policy
        return policy

    @policy.setter
    def policy(self, policy: SchedulingPolicy) -> None:
        if not isinstance(policy, SchedulingPolicy):
            raise TypeError(f"{policy!r} is no scheduling policy: it has no next_stream()")
        self._policy = policy

    # memory
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes."""
        return self.driver.memory_info()

    def collect(self) -> None:
        """Free the memory of collected storages, in stream order, and destroy collected streams. Does not block.

        Called by every allocation, by `stream` and by `synchronize`.
        """
        if self.garbage:
            for item in _drained(self.garbage):
                try:
                    self._free(item)
                except BaseException:
                    self.garbage.appendleft(item)  # the next call tries again
                    raise
        if self.retired:
            # In a cycle, a stream's finalizer may run before that of a storage, which names the stream as its user and so keeps
            # it alive until its memory has been freed.
            alive = []
            for stream, handle in _drained(self.retired):
                if stream() is None:
                    self._clear_shelf(handle)
                    self.driver.stream_destroy(handle)
                else:
                    alive.append((stream, handle))
            self.retired.extend(alive)
        if self.owners:
            with self._lock:
                owners, self.owners = self.owners, []
            busy = [item for item in owners if not all(stream.passed(serial) for stream, serial in item.uses)]
            with self._lock:
                self.owners += busy

    def obtain(self, nbytes: int, stream: Stream) -> Memory:
        """New memory from the driver. If it has none, everything is freed that nobody uses, and it is asked again (internal).

        Raises:
            OutOfMemoryError: there is none all the same.
        """
        driver = self.driver
        try:
            return driver.allocate(nbytes, stream.handle)
        except OutOfMemoryError as error:
            limit = driver.ledger.limit
            if 0 < error.total_bytes < nbytes or (limit is not None and limit < nbytes):
                raise
        gc.collect()  # tensors in cycles
        self.release()
        try:
            return driver.allocate(nbytes, stream.handle)
        except OutOfMemoryError:
            pass
        driver.settle()  # what is freed behind work comes free with it
        self.release()
        return driver.allocate(nbytes, stream.handle)

    def release(self) -> None:
        """Free collected storages, spare blocks, and what the driver's pool holds and nobody uses (internal)."""
        self.collect()
        for shelf in list(self.shelves.values()):
            shelf.drain(self.driver)
        self.driver.trim()
        self.driver.pinned.release()

    def use_allocator(self, allocator: Allocator | None) -> None:
        """Take memory from `allocator` from now on; None for the driver's own (internal)."""
        driver = self.driver
        driver.allocator = allocator
        self.largest_spare = LARGEST_SPARE if driver.keeps_spares and allocator is None else 0
        for shelf in list(self.shelves.values()):
            shelf.close(driver)

    def _clear_shelf(self, handle: StreamHandle) -> None:
        """The stream with this handle is about to be destroyed, and its object is gone."""
        for number, shelf in list(self.shelves.items()):
            if shelf.handle is handle:
                del self.shelves[number]
                shelf.close(self.driver)

    def after_fork(self) -> None:
        """In a forked process: other threads of the parent may have held locks (internal)."""
        self._lock = threading.Lock()
        for stream in tuple(self._registry.values()):
            stream.after_fork()

    def _free(self, item: Garbage) -> None:
        if item.memory is None:
            with self._lock:
                self.owners.append(item)
            return
        # A stream that runs behind all users needs no waits. If there is none, a private stream waits for them: a user's stream
        # must not be held up by others for the sake of memory that it is done with.
        for stream, _ in item.uses:
            if stream.closed or stream.device is not self:
                continue
            if len(item.uses) == 1 or all(stream.follows(*use) for use in item.uses):
                self.driver.free(item.memory, stream.handle)
                return
        with self._lock:
            if self._private is None:
                self._private = self.driver.stream_create(0)
        marks = [mark for stream, serial in item.uses if (mark := stream.mark_at(serial)) is not None]
        self.driver.free(item.memory, self._private, [mark.event for mark in marks])

    def synchronize(self) -> None:
        """Block until all work on the device is done.

        Raises:
            DeviceError: the device failed meanwhile.
        """
        self.collect()
        # Of a stream that is a bare address nobody knows whether it is still there.
        marks = [(stream, stream.mark_at(stream.pending)) for stream in self.streams if stream.lasting]
        try:
            self.driver.synchronize()
        except TilekitError as error:
            for stream, _ in marks:
                stream.explain(error)
            raise
        for stream, mark in marks:
            if mark is not None:
                stream.wait(mark.serial)
        self.collect()

    def __reduce__(self) -> tuple[type[Device], tuple[str]]:
        return Device, (self.label,)

    def __repr__(self) -> str:
        return f'Device("{self.label}")'


def _drained(queue: deque[Any]) -> Iterator[Any]:
    while True:
        try:
            item = queue.popleft()
        except IndexError:  # empty, or another thread was faster
            return
        yield item


class _Found:
    """What discovery found, asked once."""

    def __init__(self, discover: Callable[[], Discovery] = discover_cuda) -> None:
        self._discover = discover
        self._lock = threading.RLock()
        self._cuda: Discovery | None = None
        self._cpu: list[CpuDriver] | None = None
        self._devices: dict[str, Device] = {}
        self._default: Device | None = None

    def cuda(self) -> Discovery:
        with self._lock:
            if self._cuda is None:
                self._cuda = self._discover()
            return self._cuda

    def cpu(self) -> list[CpuDriver]:
        with self._lock:
            if self._cpu is None:
                self._cpu = cpu.discover(load_settings().cpu_devices)
            return self._cpu

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        for device in self._devices.values():
            device.after_fork()

    def device(self, kind: str, ordinal: int | None) -> Device:
        """The device of that kind and number; without a number the first usable one."""
        drivers: list[Any] = self.cpu() if kind == "cpu" else self.cuda().drivers
        for driver in drivers:
            if ordinal is None or driver.ordinal == ordinal:
                with self._lock:
                    label = f"{kind}:{driver.ordinal}"
                    if label not in self._devices:
                        self._devices[label] = Device.of_driver(driver)
                    return self._devices[label]
        if kind == "cpu":
            raise DeviceUnavailableError(
                f"there is no cpu:{ordinal}: {_are(drivers)}. TILEKIT_CPU_DEVICES={(ordinal or 0) + 1} makes that many"
            )
        found = self.cuda()
        if ordinal in found.unusable:
            raise DeviceUnavailableError(f"cuda:{ordinal} cannot be used: {found.unusable[ordinal]}")
        if found.drivers:
            raise DeviceUnavailableError(f"there is no cuda:{ordinal}: {_are(drivers)}")
        raise DeviceUnavailableError(f'no GPU can be used: {found.reason}. The CPU device is Device("cpu")')

    def default(self) -> Device:
        """What the environment asks for, or else the best there is."""
        if self._default is not None:
            return self._default
        with self._lock:
            if self._default is None:
                asked = load_settings().device
                if asked is not None:
                    try:
                        self._default = Device(asked)
                    except ValueError as error:
                        raise ValueError(f"TILEKIT_DEVICE: {error}") from None
                    except DeviceUnavailableError as error:
                        raise DeviceUnavailableError(f"TILEKIT_DEVICE={asked}: {error}") from None
                elif self.cuda().drivers:
                    self._default = self.device("cuda", None)
                else:
                    self._default = self.device("cpu", None)
                    _log.info("tilekit runs on the CPU device: %s", self.cuda().reason)
            return self._default


def _are(drivers: list[Any]) -> str:
    labels = ", ".join(f"{driver.kind}:{driver.ordinal}" for driver in drivers)
    return f"there {'is' if len(drivers) == 1 else 'are'} {labels}"


_found = _Found()
forking.in_child(lambda: _found.after_fork())  # by name: tests put another in its place
_default: contextvars.ContextVar[Device | None] = contextvars.ContextVar("tilekit_default_device", default=None)


def default_device() -> Device:
    """The device that is used where none is named.

    What `set_default_device` or `use_device` chose in this context; else what `TILEKIT_DEVICE` names; else the first usable
    GPU; else the CPU device (logged once, with the reason, by the logger `tilekit` at level INFO).

    Raises:
        DeviceUnavailableError: `TILEKIT_DEVICE` names a device that cannot be used.
    """
    return _default.get() or _found.default()


def set_default_device(device: Device | str | int | None) -> None:
    """Choose the default device of this context (thread or task, and the tasks it starts); None undoes it."""
    _default.set(None if device is None else Device(device))


@contextmanager
def use_device(device: Device | str | int) -> Iterator[Device]:
    """Choose the default device for the `with` block."""
    token = _default.set(Device(device))
    try:
        yield Device(device)
    finally:
        _default.reset(token)


def devices() -> list[Device]:
    """All devices that can be used, GPUs first."""
    found = [_found.device("cuda", driver.ordinal) for driver in _found.cuda().drivers]
    return found + [_found.device("cpu", driver.ordinal) for driver in _found.cpu()]


def cuda_unavailable_reason() -> str | None:
    """Why no GPU can be used, and what to do; None if one can. Looks once."""
    found = _found.cuda()
    return None if found.drivers else found.reason
