"""`Collective`: the op that lets a process's members of a group take part in one collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilekit._groups.call import Call
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._tensor.tensor import Tensor, new_tensor
from tilekit.ops import DeviceOp, Spec
from tilekit.ops.execution import Steps

if TYPE_CHECKING:
    from tilekit._groups.group import Group

__all__ = ["Collective"]


class Collective(DeviceOp[Any]):
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

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Submit each member's part."""
        group, call = self.group, self.call
        if ctx.recording is not None:
            contexts: list[ExecutionContext] = [ctx]
            if len(group.devices) > 1:
                ctx.recording.refuse(
                    f"it works on {len(group.devices)} devices, and a graph is of one: record in a process for each"
                )
        else:
            contexts = [ctx.on(stream) for stream in group.streams()]
        inputs: list[Tensor] = []
        for tensor, member in zip(self.inputs, contexts):
            inputs.append(tensor if tensor.is_contiguous else (yield tensor.dup().start(member)))
        with group.submitting():
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
