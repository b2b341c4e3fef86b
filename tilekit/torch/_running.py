"""Running an op as PyTorch runs its own: on its current stream, returning at once; on the CPU until it is done."""

from __future__ import annotations

from typing import Any

import torch

from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.device import Device
from tilekit._runtime.storage import Storage
from tilekit._runtime.stream import Stream, next_stream
from tilekit.ops import DeviceOp
from tilekit.ops.execution import Done, Submission
from tilekit.torch._memory import Guests
from tilekit.torch._streams import stream_on

__all__ = ["device_on", "run"]


def device_on(where: torch.device) -> Device:
    """tilekit's device for one of PyTorch's.

    Raises:
        DeviceUnavailableError: tilekit cannot use it.
    """
    return Device("cpu") if where.type == "cpu" else Device(f"cuda:{where.index or 0}")


def run(op: DeviceOp[Any], guests: Guests) -> Any:
    """Submit `op`, whose memory is `guests`, and return its result. On a CPU device the work is done then.

    On a GPU no event is recorded: whoever comes later on the stream comes behind, and PyTorch orders its streams. So the stream
    may be in the middle of being captured.

    Raises:
        Whatever the op fails with.
    """
    device = guests.device
    if device.kind == "cpu":
        stream = next_stream(device.policy)
        try:
            return _Call(op, _Context(device, stream, guests)).submitted()
        finally:  # also of an op that failed in its middle: PyTorch may free the memory from here on
            stream.wait(stream.end(op))
    call = _Call(op, _Context(device, stream_on(device), guests))
    if torch.cuda.current_device() == device.ordinal:
        return call.submitted()
    with torch.cuda.device(device.ordinal):  # submitting makes the GPU's context the thread's current one: the block undoes that
        return call.submitted()


class _Context(ExecutionContext):
    """A context whose memory is PyTorch's."""

    __slots__ = ("_guests",)

    def __init__(self, device: Device, stream: Stream, guests: Guests) -> None:
        super().__init__(device, stream)
        self._guests = guests

    def allocate(self, nbytes: int) -> Storage:
        """New memory, PyTorch's."""
        return self._guests.allocate(nbytes)

    def beside(self) -> ExecutionContext:
        """The same: PyTorch's memory is in the order of one stream."""
        return self


class _Call(Submission):
    """One run of an op on PyTorch's stream."""

    __slots__ = ()

    def __init__(self, op: DeviceOp[Any], ctx: ExecutionContext) -> None:
        super().__init__(op, ctx.stream)
        self.ctx = ctx

    def submitted(self) -> Any:
        """Submit all of the op; its result, which the device may still be computing."""
        if submitting.submission is not None:
            self.op.consumed()
            raise RuntimeError(
                f"{self.op!r} cannot run while {submitting.submission.op!r} is being submitted by the same thread: functions "
                "given to then, map and with_context describe work. Call the operator before or after, or in a tk.host_fn"
            )
        submitting.submission = self
        try:
            failure: Exception | None = None
            while not isinstance(progress := self.advance(failure), Done):
                failure = None
                try:
                    self.block(progress)
                except Exception as error:
                    failure = error
            return progress.value
        except Exception as error:
            self.op.annotate(error)
            raise
        finally:
            submitting.submission = None
