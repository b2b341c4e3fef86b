"""Collectives of GPUs: NCCL's, and somebody who watches that no member is lost or late."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilekit._driver.cuda.nccl import Communicator, Nccl, load
from tilekit._groups.call import KINDS, Call
from tilekit._groups.control import Link
from tilekit._groups.transport import Contexts
from tilekit._runtime.stream import Stream
from tilekit._tensor.tensor import Tensor
from tilekit.errors import GroupError, TilekitError

if TYPE_CHECKING:
    from tilekit._groups.group import Group

__all__ = ["Gpus"]

_LOOK_S = 0.2  # how often is looked whether all members are there
_log = logging.getLogger(__name__)


class Gpus:
    """The members of this process, by NCCL.

    Args:
        group: the group.
        nccl, communicators: the library, and a communicator for each member.
        check: in debug mode, the connection by which members compare what they submit.
    """

    def __init__(self, group: Group, nccl: Nccl, communicators: Sequence[Communicator], check: Link | None = None) -> None:
        self._group, self._nccl, self._communicators, self._check = group, nccl, communicators, check
        self._watch: Watch | None = None
        # What a barrier reduces: an element a device, that nobody looks at.
        self._words = [device.obtain(4, stream) for device, stream in zip(group.devices, group.streams())]

    @classmethod
    def in_process(cls, group: Group, nccl: Nccl | None = None) -> Gpus:
        """All members are this process's."""
        nccl = nccl or load()
        return cls(group, nccl, nccl.join_all([device.driver for device in group.devices]))

    @classmethod
    def joined(cls, group: Group, host: Link, check: Link | None, timeout_s: float, nccl: Nccl | None = None) -> Gpus:
        """One member is this process's. Blocks until all have joined."""
        nccl = nccl or load()
        identity = group.exchange(nccl.unique_id() if group.rank == 0 else None)[0]
        communicator = nccl.join(group.devices[0].driver, group.rank, group.size, identity)
        self = cls(group, nccl, [communicator], check)
        self._watch = Watch(self, host, timeout_s)
        return self

    def submit(self, call: Call, contexts: Contexts, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """See `Transport`."""
        recording = contexts[0].recording
        if self._check is not None and recording is None:
            self._check.collective(call, None, None, checks=True)
        together = len(contexts) > 1 or call.kind == "all_to_all"
        if together:
            self._nccl.start()
        try:
            for member, (communicator, ctx) in enumerate(zip(self._communicators, contexts)):
                source = inputs[member].address if inputs else self._words[member].address
                target = outputs[member].address if outputs else self._words[member].address
                self._submit(call, communicator, source, target, int(ctx.stream.address))
        finally:
            if together:
                self._nccl.end()
        if recording is not None:
            recording.end_captures([t.storage.memory for t in (*inputs, *outputs) if t.storage is not None])

    def submitted(self, call: Call, stream: Stream) -> None:
        """The work of a collective is what `stream` holds now: who waits for that is told if it is aborted."""
        if self._watch is not None:
            self._watch.expect(call, stream)

    def _submit(self, call: Call, communicator: Communicator, source: int, target: int, stream: int) -> None:
        nccl, size = self._nccl, self._group.size
        count, dtype = math.prod(call.shape), nccl.dtypes.get(call.dtype.name)
        if dtype is None:  # it is only moved
            count, dtype = count * call.dtype.itemsize, nccl.dtypes["uint8"]
        if call.kind == "barrier":
            communicator.all_reduce(source, target, 1, nccl.dtypes["int32"], nccl.reductions["max"], stream)
        elif call.kind == "all_reduce":
            communicator.all_reduce(source, target, count, dtype, nccl.reductions[call.op], stream)
        elif call.kind == "reduce_scatter":
            communicator.reduce_scatter(source, target, count // size, dtype, nccl.reductions[call.op], stream)
        elif call.kind == "all_gather":
            communicator.all_gather(source, target, count, dtype, stream)
        elif call.kind == "broadcast":
            communicator.broadcast(source, target, count, dtype, call.root, stream)
        elif call.kind == "send":
            communicator.send(source, count, dtype, call.root, stream)
        elif call.kind == "recv":
            communicator.recv(target, count, dtype, call.root, stream)
        else:
            assert call.kind == "all_to_all", f"one of {list(KINDS)}"
            part = count // size
            nbytes = call.nbytes // size
            for rank in range(size):
                communicator.send(source + rank * nbytes, part, dtype, rank, stream)
                communicator.recv(target + rank * nbytes, part, dtype, rank, stream)

    def failure(self) -> str | None:
        """What NCCL says went wrong, if anything."""
        return next(filter(None, (communicator.failure() for communicator in self._communicators)), None)

    def abort(self) -> None:
        """See `Transport`."""
        for communicator in self._communicators:
            communicator.abort()

    def close(self) -> None:
        """See `Transport`."""
        if self._watch is not None:
            self._watch.stop()
        for communicator in self._communicators:
            communicator.close()  # of one that was aborted nothing is left
        for device, words, stream in zip(self._group.devices, self._words, self._group.streams()):
            device.driver.free(words, stream.handle)


class Watch:
    """Looks, from a thread of its own, whether the members of a joined group are there, and their work gets done.

    If not, the communicator is aborted, so that no kernel waits any longer, and whoever waits for its work gets the error.
    """

    def __init__(self, transport: Gpus, host: Link, timeout_s: float) -> None:
        self._transport, self._host, self._timeout_s = transport, host, timeout_s
        self._expected: deque[tuple[int, Call, Stream, int, float]] = deque()
        self._submitted, self._lock = 0, threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tilekit-group-watch", daemon=True)
        self._thread.start()

    def expect(self, call: Call, stream: Stream) -> None:
        """A collective was submitted."""
        with self._lock:
            self._submitted += 1
            self._expected.append((self._submitted, call, stream, stream.pending, time.monotonic()))

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                self._look()
            except TilekitError as error:
                if not self._stopped.is_set():
                    self._give_up(error if isinstance(error, GroupError) else GroupError(str(error)))
                return

    def _look(self) -> None:
        self._host.report(self._submitted)
        why = self._transport.failure()
        if why is not None:
            raise GroupError(f"NCCL says: {why}")
        while self._expected:
            number, call, stream, serial, at_s = self._expected[0]
            if not stream.passed(serial):
                if time.monotonic() - at_s > self._timeout_s:
                    self._host.accuse(number, str(call), self._timeout_s)
                return
            self._expected.popleft()

    def _give_up(self, error: GroupError) -> None:
        _log.error("%s", error)
        self._transport._group.broken(error)
        for _, _, stream, serial, _ in self._expected:
            if not stream.passed(serial):
                stream.fail(serial, error)
        self._transport.abort()
