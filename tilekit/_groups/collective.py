"""`Collective`: the op that lets a process's members of a group take part in one collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilekit._groups.call import Call
from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.device import Device
from tilekit._runtime.storage import BORROWED
from tilekit._runtime.stream import Stream
from tilekit._tensor.tensor import Tensor, new_tensor
from tilekit.errors import DeviceError
from tilekit.ops import Spec
from tilekit.ops.at_once import AtOnce
from tilekit.ops.execution import Done, Steps
from tilekit.ops.future import DeviceFuture

if TYPE_CHECKING:
    from tilekit._groups.group import Group

__all__ = ["Collective"]


class Collective(AtOnce):
    """One collective of this process's members.

    Each member's part is submitted to the group's stream of its device, in the order in which the ops run, which must be that of
    the other processes'. The op's own stream then waits for all of them.

    Args:
        group, call: whose, and which.
        inputs: a tensor for each member, or none.
        outputs: where to; None for new tensors.
        joined: whether the result is that of the one member, instead of a list.
    """

    def __init__(
        self, group: Group, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None, *, joined: bool
    ) -> None:
        self.group, self.call, self.inputs, self.outputs, self._joined = group, call, tuple(inputs), outputs, joined
        self._label = call.kind
        if joined and call.kind not in ("send", "barrier"):
            self.spec = Spec(call.result_shape(group.size), call.dtype)

    @property
    def device(self) -> Device:
        """The first member's."""
        return self.group.devices[0]

    def _details(self) -> tuple[str, ...]:
        """What it does, and among how many."""
        return (str(self.call), f"{self.group.size} members")

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Submit each member's part."""
        group = self.group
        if ctx.recording is None:
            contexts = self._contexts()
        else:
            contexts = [ctx]
            if len(group.devices) > 1:
                ctx.recording.refuse(
                    f"it works on {len(group.devices)} devices, and a graph is of one: record in a process for each"
                )
        if all(tensor.is_contiguous for tensor in self.inputs):
            return Done(self._submit(ctx, contexts, self.inputs))
        return self._copied_first(ctx, contexts)

    def _contexts(self) -> Sequence[ExecutionContext]:
        self.group.streams()
        return self.group.contexts

    def _copied_first(self, ctx: ExecutionContext, contexts: Sequence[ExecutionContext]) -> Steps:
        inputs: list[Tensor] = []
        for tensor, member in zip(self.inputs, contexts):
            inputs.append(tensor if tensor.is_contiguous else (yield tensor.dup().start(member)))
        return self._submit(ctx, contexts, inputs)

    def _submit(self, ctx: ExecutionContext, contexts: Sequence[ExecutionContext], inputs: Sequence[Tensor]) -> Any:
        """Submit each member's part; the result."""
        group, call = self.group, self.call
        with group.submitting:
            outputs = self._outputs(contexts)
            storages = [[tensor.storage] for tensor in inputs] or [[]] * len(contexts)
            targets = [[tensor.storage] for tensor in outputs] or [[]] * len(contexts)
            for member, reads, writes in zip(contexts, storages, targets):
                member.acquire(reads, writes)  # type: ignore[arg-type]  # none is without memory: checked
            group.transport.submit(call, contexts, inputs, outputs)
            for member, reads, writes in zip(contexts, storages, targets):
                member.note(reads, writes)  # type: ignore[arg-type]
        for member in contexts:
            if member.stream is not ctx.stream:
                ctx.stream.wait_for(member.stream, member.stream.mark())
        if ctx.recording is None and group.transport.watched:
            group.expect(call, ctx.stream)
        if call.kind in ("send", "barrier"):
            return None
        return outputs[0] if self._joined else outputs

    # Without copies before, all is submitted in one go.

    def sync_on(self, stream: Any) -> Any:
        """As `DeviceOp.sync_on`."""
        where = self._stream(stream)
        serial = self._at_once(where)
        return super().sync_on(where) if serial is None else self._waited(where, serial)

    def sync(self) -> Any:
        """As `DeviceOp.sync`."""
        return self.sync_on(self._next_stream())

    def async_on(self, stream: Any) -> DeviceFuture[Any]:
        """As `DeviceOp.async_on`."""
        where = self._stream(stream)
        serial = None if BORROWED else self._at_once(where)
        return super().async_on(where) if serial is None else DeviceFuture.of_submitted(self, where, serial)

    def _at_once(self, stream: Stream) -> int | None:
        """Submit it; the serial behind it. None, and nothing is done, where that takes steps."""
        if submitting.submission is not None or not all(tensor.is_contiguous for tensor in self.inputs):
            return None
        self.claim()
        try:
            self.arguments = self._submit(ExecutionContext(stream.device, stream), self._contexts(), self.inputs)
        except Exception as error:
            self.annotate(error)
            if isinstance(error, DeviceError) and error.lost:
                stream.note_unfinished(error)
            raise
        return self._ended(stream)

    def _outputs(self, contexts: Sequence[ExecutionContext]) -> list[Tensor]:
        if self.call.kind in ("send", "barrier"):
            return []
        if self.outputs is not None:
            return list(self.outputs)
        shape, dtype, size = self.call.result_shape(self.group.size), self.call.dtype, self.group.size
        nbytes = self.call.nbytes * size if self.call.kind == "all_gather" else self.call.nbytes
        if self.call.kind == "reduce_scatter":
            nbytes //= size
        return [new_tensor(member.allocate(nbytes), shape, dtype) for member in contexts]
