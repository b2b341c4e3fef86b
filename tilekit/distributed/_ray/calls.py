"""Workers and results under Ray, as those see them who call."""

from __future__ import annotations

import contextlib
import math
import pickle
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.tensor import Tensor
from tilekit.distributed._ray.pickling import packed, packed_function, unpacked_error
from tilekit.distributed._ray.process import Home
from tilekit.distributed._ray.transport import Refused, SenderGone
from tilekit.distributed._ray.worker import DONE, Kept, Message, Part, is_large
from tilekit.distributed.arguments import leaves, turned
from tilekit.distributed.local import to_host_steps
from tilekit.distributed.remote import Remote
from tilekit.distributed.worker import RemoteRun, Worker, WorkerLostError
from tilekit.ops import DeviceOp, Spec
from tilekit.ops.execution import HostJob, Steps
from tilekit.ops.host_values import moments, unwrap

if TYPE_CHECKING:
    from tilekit.distributed._ray import RayCluster

__all__ = ["Dropper", "RayRemote", "RayWorker", "error_of", "taken"]


# From how many bytes on a tensor goes by the direct transport, which takes three messages more than the object store, and copies
# once where that copies three times. On two cores: 1 MB 20 ms against 14, 4 MB 17 against 20, 64 MB 36 against 184.
_DIRECT_FROM = 1 << 21


class _Rerouted(Exception):
    """A transfer was refused: the next attempt takes the other way."""


class RayWorker(Worker):
    """A worker that is an actor.

    Args:
        cluster, rank: as of `Worker`.

    Attributes:
        home: its process at the time.
    """

    __slots__ = ("_lock", "_refused", "home")

    cluster: RayCluster

    def __init__(self, cluster: RayCluster, rank: int) -> None:
        super().__init__(cluster, rank, cluster.options.kind)
        self._lock = threading.Lock()
        self._refused: set[str] = set()  # the machines whose processes this one may not read
        self.home = Home(rank, cluster.options)

    def replace(self, home: Home) -> None:
        """`home` is lost: start another, unless that was done."""
        home.lost = True
        with self._lock:
            if self.home is home and not self.cluster.closed:
                home.end()  # it may only be out of reach
                self.home = Home(self.rank, self.cluster.options)

    def lost(self, home: Home, what: str, error: BaseException | None = None) -> WorkerLostError:
        """The error of those who wanted something of a home that is lost. Another is started."""
        self.replace(home)
        lost = WorkerLostError(f"{self!r}, {home.where}, was lost {what}")
        lost.worker, lost.__cause__ = self, error
        return lost

    def _steps(self, call: RemoteRun, args: tuple[Any, ...], kwargs: dict[str, Any], ctx: ExecutionContext) -> Steps:
        """Send the call and wait for the reply; again, where the work was lost and may be retried."""
        args, kwargs = yield _on_host((args, kwargs), ctx)
        again = 0
        while True:
            home = self.home
            if not home.about:  # the worker was lost before, and another process is starting
                job = HostJob(home.ready)
                yield [job]
                job.result()
            sending = _Call(self, home, call)
            large = {id(leaf): leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, np.ndarray) and is_large(leaf)}
            stored: dict[int, Any] = {}
            if large:
                job = HostJob(lambda large=large: {key: ray.put(array) for key, array in large.items()})  # type: ignore[misc]
                yield [job]
                stored = job.result()
            sending.send(args, kwargs, stored)
            job = HostJob(sending.wait)
            try:
                yield [job]
            except GeneratorExit:  # nobody waits any more, as for a task that was cancelled
                sending.cancel()
                raise
            try:
                return job.result()
            except _Rerouted:
                continue
            except WorkerLostError as error:
                if error.worker is not self or again >= call.retries or self.cluster.closed:
                    raise
                again += 1

    def may_read(self, other: Home) -> bool:
        """Whether tensors of another process arrive by the direct transport."""
        machine = self.home.about.get("machine")
        return bool(
            self.cluster.options.direct and machine and machine == other.about.get("machine") and machine not in self._refused
        )

    def refuse(self) -> None:
        """Processes on its machine may not be read."""
        self._refused.add(self.home.about["machine"])

    def __repr__(self) -> str:
        return f"<worker {self.rank} of ray, {self.device}>"


class _Call:
    """One sending of a call, and the wait for its reply."""

    def __init__(self, worker: RayWorker, home: Home, op: RemoteRun) -> None:
        self._worker, self._home, self._op = worker, home, op
        self._sources: list[RayRemote] = []
        self._dropped: list[int] = []
        self._files: dict[str, Any] = {}
        self._direct = False

    def send(self, args: tuple[Any, ...], kwargs: dict[str, Any], stored: dict[int, Any]) -> None:
        """Send it.

        Raises:
            WorkerLostError: an argument was on a worker that is lost.
            TypeError, PicklingError: the function or an argument cannot be pickled.
        """
        parts: list[Any] = []
        known: dict[int, Part] = {}

        def placed(leaf: Any) -> Any:
            if isinstance(leaf, RayRemote) and leaf.home is self._home:
                return Kept(leaf.key)
            if not isinstance(leaf, (RayRemote, np.ndarray)):
                return leaf
            if id(leaf) not in known:
                known[id(leaf)] = Part(len(parts))
                parts.append(self._fetched(leaf) if isinstance(leaf, RayRemote) else stored.get(id(leaf), leaf))
            return known[id(leaf)]

        try:
            function, files, constant = packed_function(self._op.build)
            data, more = packed(turned((args, kwargs), placed))
        except WorkerLostError:
            raise
        except Exception as error:
            error.add_note(f"the function and its arguments are pickled, to be sent to {self._worker!r}")
            raise
        home = self._home
        self._files = new = {name: lines for name, lines in (files | more).items() if home.files.get(name) is not lines}
        home.files.update(new)
        self.remote = RayRemote(self._worker, home)
        self._dropped = home.take_dropped()
        message: Message = (self.remote.key, function, constant, data, new, self._dropped)
        self._reply = home.actor.run.remote(pickle.dumps(message), *parts)

    def _fetched(self, remote: RayRemote) -> Any:
        """What stands for another worker's result until it arrives."""
        remote.check()
        self._sources.append(remote)
        if (remote.nbytes is None or remote.nbytes >= _DIRECT_FROM) and self._worker.may_read(remote.home):
            self._direct = True
            return remote.home.send(remote.key)
        return remote.home.actor.export.remote(remote.key)

    def wait(self) -> RayRemote:
        """Block until the reply is there, and give the result.

        Raises:
            WorkerLostError, or whatever the call raised.
        """
        try:
            reply = pickle.loads(ray.get(self._reply))
        except Exception as error:
            self.remote.forget()
            failure = self._failure(error)
            # An argument did not come: the worker has read nothing of what it was sent.
            for name in self._files:
                self._home.files.pop(name, None)
            for key in self._dropped:
                self._worker.cluster.dropper.drop(self._home, key)
            raise failure from failure.__cause__
        return taken(self.remote, reply)

    def cancel(self) -> None:
        """Have the result dropped, or the call left out if it has not begun."""
        self.remote.drop()

    def _failure(self, error: Exception) -> BaseException:
        """What an error of Ray's means."""
        cause = getattr(error, "cause", None) if isinstance(error, RayTaskError) else None
        if isinstance(cause, Refused) and self._direct:
            self._worker.refuse()
            return _Rerouted()
        lost = isinstance(error, RayActorError)
        for remote in self._sources:
            if (lost and remote.home.is_lost_by(error)) or isinstance(cause, SenderGone):
                return remote.worker.lost(remote.home, f"with an argument of {self._op.label} that it had", error)
        if lost:
            return self._worker.lost(self._home, f"while it ran {self._op.label}", error)
        return cause if isinstance(cause, BaseException) else error


def taken(remote: RayRemote, reply: tuple[Any, ...]) -> RayRemote:
    """The result that a reply tells of. Raises the error that it tells of."""
    if reply[0] == DONE:
        _, remote.shape, remote.dtype = reply
        return remote
    raise error_of(remote.worker, reply)


def error_of(worker: Worker, reply: tuple[Any, ...]) -> BaseException:
    """The error in a reply, with the other side's traceback as a note."""
    error = unpacked_error(reply[1])
    error.add_note(f"on {worker!r}:\n{reply[2]}")
    return error


def _on_host(value: Any, ctx: ExecutionContext) -> Steps:
    """Steps that give `value` with arrays for this process's tensors."""
    if not any(isinstance(leaf, Tensor) for leaf in leaves(value)):
        return value
    value = yield to_host_steps(value, ctx)
    if pending := moments(value):
        yield pending
        value = unwrap(value)
    return value


class RayRemote(Remote):
    """A result that an actor keeps by number.

    Args:
        worker, home: whose.

    Attributes:
        key: the number.
        home: the process that has it.
    """

    __slots__ = ("_finalizer", "home", "key")

    worker: RayWorker

    def __init__(self, worker: RayWorker, home: Home) -> None:
        self.worker, self.home = worker, home
        self.shape = self.dtype = None
        self.key = next(worker.cluster.keys)
        self._finalizer = weakref.finalize(self, worker.cluster.dropper.drop, home, self.key)
        self._finalizer.atexit = False

    @property
    def nbytes(self) -> int | None:
        """The size of the tensor, in bytes; None if it is none."""
        return None if self.shape is None else math.prod(self.shape) * int(self.dtype.itemsize)

    @property
    def lost(self) -> bool:
        """As of `Remote`."""
        return self.home.lost

    def forget(self) -> None:
        """There is nothing to drop: it never came to be."""
        self._finalizer.detach()

    def drop(self) -> None:
        """Have it dropped now."""
        self._finalizer()

    def check(self) -> None:
        """Whether its process is there, as far as is known.

        Raises:
            WorkerLostError: it is not.
        """
        if self.home.lost:
            raise self.worker.lost(self.home, f"with {self!r}: run again what made it")

    def to_host(self) -> DeviceOp[Any]:
        """As of `Remote`."""
        return _ToHost(self)


class _ToHost(DeviceOp[Any]):
    """An actor's result as the host has it."""

    _label = "to_host"

    def __init__(self, remote: RayRemote) -> None:
        self.remote = remote
        if remote.shape is not None:
            self.spec = Spec(remote.shape, remote.dtype)

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Ask for it, and wait."""
        remote = self.remote
        remote.worker.cluster.check_open()
        remote.check()
        reply = remote.home.actor.fetch.remote(remote.key)

        def wait() -> Any:
            try:
                return ray.get(reply)
            except RayActorError as error:
                raise remote.worker.lost(remote.home, f"with {remote!r}", error) from error
            except RayTaskError as error:  # the reply, which Ray pickles
                cause = getattr(error, "cause", None)
                if not isinstance(cause, Exception):
                    raise
                cause.add_note(f"{remote!r} is pickled, to be sent from there")
                raise cause from None

        job = HostJob(wait)
        yield [job]
        answer = job.result()
        if answer[0] != DONE:
            raise error_of(remote.worker, answer)
        # Ray's arrays are read-only, and hold its memory: what the caller gets is the caller's own.
        return turned(answer[1], lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf)


class Dropper:
    """Has workers drop results: from a thread, since finalizers run anywhere, in the middle of Ray's own calls too.

    The numbers go with the next call, or by themselves if there is none for some milliseconds.
    """

    _PATIENCE_S = 0.02

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Home | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tilekit drops results", daemon=True)
        self._thread.start()

    def drop(self, home: Home, key: int) -> None:
        """Have a result dropped. Takes no lock that the caller could hold."""
        if not home.lost:
            home.dropped.append(key)
            self._waiting.put(home)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            homes = {self._waiting.get()}
            self._stopped.wait(self._PATIENCE_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    homes.add(self._waiting.get_nowait())
            for home in homes:
                keys = [] if home is None or home.lost else home.take_dropped()
                if home is not None and keys:
                    home.actor.drop.remote(keys)
