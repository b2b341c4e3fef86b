"""Devices: which there are, which one is the default, and what belongs to one (streams, the event pool, memory to free)."""

from __future__ import annotations

import contextvars
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tilekit._driver import forking
from tilekit._driver.cpu import driver as cpu
from tilekit._driver.discovery import Discovery
from tilekit._driver.protocol import Driver, EventHandle, Memory
from tilekit._runtime.allocator import FreeLists, StreamOrderedMemory
from tilekit._runtime.scheduling import SchedulingPolicy, policy_of
from tilekit._runtime.stream import Event, Stream, address_of
from tilekit.errors import DeviceUnavailableError, TilekitError, check_flag
from tilekit.settings import load_settings

if TYPE_CHECKING:
    from tilekit._driver.cpu.driver import CpuDriver
    from tilekit._runtime.ranges import Ranges

__all__ = [
    "Device",
    "as_stream",
    "cuda_unavailable_reason",
    "default_device",
    "devices",
    "set_default_device",
    "use_device",
    "use_policies",
]

_log = logging.getLogger("tilekit")
_SPEC = re.compile(r"(cpu|cuda)(?::(\d+))?")


class Device(StreamOrderedMemory):
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
        "_policy",
        "_streams",
        "compute_capability",
        "event_pool",
        "kind",
        "label",
        "name",
        "no_memory",
        "ordinal",
        "ranges",
        "recycle",
        "target",
    )

    kind: Literal["cuda", "cpu"]
    ordinal: int
    label: str
    name: str
    compute_capability: tuple[int, int] | None
    target: str
    no_memory: Memory
    event_pool: list[EventHandle]  # finalizers append to it: nobody may need a lock for that
    recycle: Callable[[EventHandle], None]  # puts an event there
    ranges: Ranges | None  # of the memory that others have too
    _policy: SchedulingPolicy | None
    _streams: weakref.WeakValueDictionary[int, Stream]  # by address

    def __new__(cls, spec: int | str | Device | None = None) -> Device:  # noqa: PYI034 - one class, whose objects exist already
        """The one object for `spec`."""
        if isinstance(spec, Device):
            return spec
        if spec is None:
            return default_device()
        if isinstance(spec, int) and not isinstance(spec, bool):
            return _registry.device("cuda", spec)
        if not isinstance(spec, str):
            raise TypeError(f'a device is named by "cuda", "cuda:1", "cpu", "cpu:2", or a GPU\'s number, not {spec!r}')
        match = _SPEC.fullmatch(spec.strip().lower())
        if match is None:
            raise ValueError(f'{spec!r} names no device: expected "cuda", "cuda:1", "cpu" or "cpu:2"')
        return _registry.device(match[1], None if match[2] is None else int(match[2]))

    @classmethod
    def of_driver(cls, driver: Driver) -> Device:
        """A device made of a driver: how discovery makes them, and tests of drivers that they bring (internal)."""
        self = super().__new__(cls)
        self._no_garbage(driver)
        self.kind, self.ordinal, self.name = driver.kind, driver.ordinal, driver.name
        self.label = f"{driver.kind}:{driver.ordinal}"
        self.compute_capability, self.target = driver.compute_capability, driver.target
        self.event_pool = []
        self.recycle = partial(cpu.recycle, self.event_pool) if driver.kind == "cpu" else self.event_pool.append
        self._policy = self.ranges = None
        self._streams = weakref.WeakValueDictionary()
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
            self._streams[stream.address] = stream
            self.free_lists[stream.number] = FreeLists(stream.number, stream.handle)
        return stream

    def adopt(self, address: int, source: Any) -> Stream:
        """The Stream for a stream at `address` that `source` keeps alive, the same for the same address (internal)."""
        with self._lock:
            stream = self._streams.get(address)
            if stream is None:
                stream = Stream(self, self.driver.stream_adopt(address), owned=False, source=source)
                self._streams[address] = stream
            elif source is not None:
                stream.keep(source)
            return stream

    @staticmethod
    def as_stream(obj: Any, device: Device | None = None) -> Stream:
        """As the function `as_stream`, for events, which cannot import it (internal)."""
        return as_stream(obj, device)

    def forget(self, stream: Stream) -> None:
        """`stream` is closed: its address may be another's soon (internal)."""
        with self._lock:
            if self._streams.get(stream.address) is stream:
                del self._streams[stream.address]
            lists = self.free_lists.pop(stream.number, None)
        if lists is not None:
            lists.close(self.driver)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams in use, tilekit's own and adopted ones."""
        with self._lock:
            return tuple(self._streams.values())

    def event(self, timing: bool = False) -> Event:
        """A new event.

        Args:
            timing: whether `elapsed_ms` shall work; costs a little at each record.
        """
        return Event(self, check_flag("event: timing", timing))

    @property
    def policy(self) -> SchedulingPolicy:
        """Which streams ops get that are not given one; a pool of four in turn, unless set."""
        chosen = _policies.get()
        if chosen is not None and (chosen_policy := chosen(self)) is not None:
            return chosen_policy
        policy = self._policy
        if policy is None:
            with self._lock:
                if self._policy is None:
                    self._policy = policy_of(self)
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

    def after_fork(self) -> None:
        """In a forked process: other threads of the parent may have held locks (internal)."""
        self._lock = threading.Lock()
        for stream in tuple(self._streams.values()):
            stream.after_fork()

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
                stream.note_unfinished(error)
            raise
        for stream, mark in marks:
            if mark is not None:
                stream.wait(mark.serial)
        self.collect()

    def __reduce__(self) -> tuple[type[Device], tuple[str]]:
        return Device, (self.label,)

    def __repr__(self) -> str:
        return f'Device("{self.label}")'


def _discover_cuda() -> Discovery:
    """Look for GPUs. Nothing of CUDA is imported before."""
    from tilekit._driver.cuda.discovery import discover

    return discover()


class _Registry:
    """The devices that were discovered: drivers are looked for once, and each has one Device."""

    def __init__(self, discover: Callable[[], Discovery] = _discover_cuda) -> None:
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
        gpus = self.cuda()
        if ordinal in gpus.unusable:
            raise DeviceUnavailableError(f"cuda:{ordinal} cannot be used: {gpus.unusable[ordinal]}")
        if gpus.drivers:
            raise DeviceUnavailableError(f"there is no cuda:{ordinal}: {_are(drivers)}")
        raise DeviceUnavailableError(f'no GPU can be used: {gpus.reason}. The CPU device is Device("cpu")')

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


_registry = _Registry()
forking.in_child(lambda: _registry.after_fork())  # by name: tests put another in its place
_default: contextvars.ContextVar[Device | None] = contextvars.ContextVar("tilekit_default_device", default=None)
Policies = Callable[[Device], SchedulingPolicy | None]
_policies: contextvars.ContextVar[Policies | None] = contextvars.ContextVar("tilekit_policies", default=None)


def default_device() -> Device:
    """The device that is used where none is named.

    What `set_default_device` or `use_device` chose in this context; else what `TILEKIT_DEVICE` names; else the first usable
    GPU; else the CPU device (logged once, with the reason, by the logger `tilekit` at level INFO).

    Raises:
        DeviceUnavailableError: `TILEKIT_DEVICE` names a device that cannot be used.
    """
    return _default.get() or _registry.default()


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


@contextmanager
def use_policies(policies: Policies) -> Iterator[None]:
    """For the `with` block, the policy of a device is what `policies` gives for it; its own, where that is None."""
    token = _policies.set(policies)
    try:
        yield
    finally:
        _policies.reset(token)


def devices() -> list[Device]:
    """All devices that can be used, GPUs first."""
    gpus = [_registry.device("cuda", driver.ordinal) for driver in _registry.cuda().drivers]
    return gpus + [_registry.device("cpu", driver.ordinal) for driver in _registry.cpu()]


def cuda_unavailable_reason() -> str | None:
    """Why no GPU can be used, and what to do; None if one can. Looks once."""
    gpus = _registry.cuda()
    return None if gpus.drivers else gpus.reason


def as_stream(obj: Any, device: Device | None = None) -> Stream:
    """The stream that `obj` is, whoever made it.

    Args:
        obj: a tilekit Stream, a CUstream as an int (0 is the legacy default stream), or a stream of numba, torch, cupy, cuda.core
            or any other library that has `__cuda_stream__`. It is kept alive; an int must stay valid by itself.
        device: which device it is on, where the object does not say so; by default the current GPU.

    Returns:
        The same object for the same stream, as long as that is in use.

    Raises:
        TypeError: `obj` is no stream.
        ValueError: it is on another device than `device`, or closed.
    """
    if isinstance(obj, Stream):
        if obj.closed:
            raise ValueError(f"{obj!r} is closed: no work can be submitted to it")
        if device is not None and obj.device is not device:
            raise ValueError(f"{obj!r} is not on {device!r}")
        return obj
    address = address_of(obj)
    if address is None:
        raise TypeError(
            f"{obj!r} is no stream. Accepted: tilekit streams (device.stream()), those of numba, torch, cupy and cuda.core, "
            "objects with __cuda_stream__, and the CUstream as an int"
        )
    if device is None:
        device = _cuda_device(obj)
    return device.adopt(address, None if isinstance(obj, int) else obj)


def _cuda_device(obj: Any) -> Device:
    for name in ("device_index", "device_id"):  # torch; cupy
        ordinal = getattr(obj, name, None)
        if isinstance(ordinal, int) and ordinal >= 0:
            return Device(ordinal)
    current = default_device()
    return current if current.kind == "cuda" else Device("cuda")
