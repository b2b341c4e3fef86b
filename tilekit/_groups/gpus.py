"""Collectives of GPUs: NCCL's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilekit._driver.cuda.nccl import Communicator, Nccl, load
from tilekit._groups.call import Call
from tilekit._groups.link import Link
from tilekit._groups.transport import Contexts
from tilekit._tensor.tensor import Tensor

if TYPE_CHECKING:
    from tilekit._groups.group import Group

__all__ = ["Gpus"]

Sending = Callable[[Communicator, int, int, int], None]
_CALLS_KEPT = 256


class Gpus:
    """The members of this process, by NCCL.

    Args:
        group: the group.
        nccl, communicators: the library, and a communicator for each member.
        check: in debug mode, the connection by which members compare what they submit.
    """

    watched = True

    def __init__(self, group: Group, nccl: Nccl, communicators: Sequence[Communicator], check: Link | None = None) -> None:
        self._group, self._nccl, self._communicators, self._check = group, nccl, communicators, check
        # What a barrier reduces: an element a device, that nobody looks at.
        self._streams = list(group.streams())
        self._known: dict[Call, list[Sending]] = {}
        self._words = [device.obtain(4, stream) for device, stream in zip(group.devices, self._streams)]

    @classmethod
    def in_process(cls, group: Group, nccl: Nccl | None = None) -> Gpus:
        """All members are this process's."""
        nccl = nccl or load()
        return cls(group, nccl, nccl.join_all([device.driver for device in group.devices]))

    @classmethod
    def joined(cls, group: Group, check: Link | None, nccl: Nccl | None = None) -> Gpus:
        """One member is this process's. Blocks until all have joined."""
        nccl = nccl or load()
        identity = group.exchange(nccl.unique_id() if group.rank == 0 else None)[0]
        communicator = nccl.join(group.devices[0].driver, group.rank, group.size, identity)
        return cls(group, nccl, [communicator], check)

    def submit(self, call: Call, contexts: Contexts, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """See `Transport`."""
        recording = contexts[0].recording
        if self._check is not None and recording is None:
            self._check.collective(call, None, None, checks=True)
        if call.kind == "permute" and call.nbytes:  # zeros for those that get nothing
            for rank, ctx, output in zip(self._group.ranks, contexts, outputs):
                if output.storage is not None and all(to != rank for _, to in call.pairs):
                    memory = output.storage.memory
                    ctx.driver.fill(memory, output.address - memory.address, call.nbytes, b"\0", ctx.stream.handle)
        sending = self._known.get(call)
        if sending is None:
            if len(self._known) >= _CALLS_KEPT:
                self._known = {}
            sending = self._known[call] = [self._sending(call, rank) for rank in self._group.ranks]
        self._communicators[0].activate()
        together = len(contexts) > 1 or call.kind in ("all_to_all", "permute")
        if together:
            self._nccl.start()
        try:
            for member, (communicator, ctx) in enumerate(zip(self._communicators, contexts)):
                source = inputs[member].address if inputs else self._words[member].address
                target = outputs[member].address if outputs else self._words[member].address
                sending[member](communicator, source, target, ctx.stream.address)
        finally:
            if together:
                self._nccl.end()
        if recording is not None:
            recording.end_captures([t.storage.memory for t in (*inputs, *outputs) if t.storage is not None])

    def _sending(self, call: Call, rank: int) -> Sending:
        """What has a member take part: with its communicator, the addresses of its tensors, and the stream."""
        nccl, size, root = self._nccl, self._group.size, call.root
        count, dtype = math.prod(call.shape), nccl.dtypes.get(call.dtype.name)
        if dtype is None:  # it is only moved
            count, dtype = count * call.dtype.itemsize, nccl.dtypes["uint8"]
        part, nbytes, reduction = count // size, call.nbytes // size, nccl.reductions[call.op or "sum"]

        def permute(by: Communicator, source: int, target: int, stream: int) -> None:
            for start, to in call.pairs:
                if start == rank:
                    by.send(source, count, dtype, to, stream)
                if to == rank:
                    by.recv(target, count, dtype, start, stream)

        def all_to_all(by: Communicator, source: int, target: int, stream: int) -> None:
            for peer in range(size):
                by.send(source + peer * nbytes, part, dtype, peer, stream)
                by.recv(target + peer * nbytes, part, dtype, peer, stream)

        sending: dict[str, Sending] = {
            "barrier": lambda by, x, y, stream: by.all_reduce(x, y, 1, nccl.dtypes["int32"], nccl.reductions["max"], stream),
            "all_reduce": lambda by, x, y, stream: by.all_reduce(x, y, count, dtype, reduction, stream),
            "reduce_scatter": lambda by, x, y, stream: by.reduce_scatter(x, y, part, dtype, reduction, stream),
            "all_gather": lambda by, x, y, stream: by.all_gather(x, y, count, dtype, stream),
            "broadcast": lambda by, x, y, stream: by.broadcast(x, y, count, dtype, root, stream),
            "send": lambda by, x, y, stream: by.send(x, count, dtype, root, stream),
            "recv": lambda by, x, y, stream: by.recv(y, count, dtype, root, stream),
            "permute": permute,
            "all_to_all": all_to_all,
        }
        return sending[call.kind]

    def failure(self) -> str | None:
        """See `Transport`."""
        why = next(filter(None, (communicator.failure() for communicator in self._communicators)), None)
        return None if why is None else f"NCCL says: {why}"

    def abort(self) -> None:
        """See `Transport`."""
        for communicator in self._communicators:
            communicator.abort()

    def close(self) -> None:
        """See `Transport`."""
        for communicator in self._communicators:
            communicator.close()  # of one that was aborted nothing is left
        for device, words, stream in zip(self._group.devices, self._words, self._streams):
            device.driver.free(words, stream.handle)
