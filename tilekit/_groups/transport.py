"""What moves a collective's data: one protocol; on CPU devices of one process, and of several. GPUs: `tilekit._groups.gpus`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilekit._groups.arithmetic import results
from tilekit._groups.call import Call
from tilekit._groups.control import Link
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.stream import Stream
from tilekit._tensor.tensor import Tensor

if TYPE_CHECKING:
    from tilekit._groups.group import Group

__all__ = ["AcrossProcesses", "InProcess", "Transport"]

Array = np.ndarray[Any, Any]
Contexts = Sequence[ExecutionContext]


class Transport(Protocol):
    """Submits a collective for this process's members. Hazards are the caller's business."""

    def submit(
        self, call: Call, contexts: Sequence[ExecutionContext], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """Enqueue it on each member's stream.

        Args:
            call: which.
            contexts: where, one for each member of this process, in the order of their ranks.
            inputs: C-contiguous, one each; none for `recv` and `barrier`.
            outputs: likewise; none for `send` and `barrier`.
        """
        ...

    def submitted(self, call: Call, stream: Stream) -> None:
        """The op's own stream waits for the collective from now on."""
        ...

    def close(self) -> None:
        """Give up what it holds. All its work is done, or aborted."""
        ...


class InProcess:
    """Members on CPU devices of this process: their streams meet at the first one's, where NumPy does the work."""

    def submit(
        self, call: Call, contexts: Sequence[ExecutionContext], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        first, *others = contexts
        for ctx in others:
            first.stream.wait_for(ctx.stream, ctx.stream.mark())
        if call.kind != "barrier":
            read, write = _reading(call, inputs), _writing(outputs)

            def work() -> None:
                # Results may be views of what members brought, and theirs what is written: all are there before any is.
                write([np.array(r) if outputs_alias else r for r in results(call, read())])

            outputs_alias = any(a.storage is b.storage for a in inputs for b in outputs)
            first.driver.submit(first.stream.handle, work, keep=(tuple(inputs), tuple(outputs)))
        for ctx in others:
            ctx.stream.wait_for(first.stream, first.stream.mark())

    def submitted(self, call: Call, stream: Stream) -> None:
        pass

    def close(self) -> None:
        pass


class AcrossProcesses:
    """A member on a CPU device of this process, the others in other ones: by the hub of rank 0's.

    Args:
        group: the group, which is broken when a member is lost.
        link: the connection for what the stream submits.
    """

    def __init__(self, group: Group, link: Link) -> None:
        self._group, self._link = group, link

    def submit(
        self, call: Call, contexts: Sequence[ExecutionContext], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        (ctx,) = contexts
        read, group, link = _reading(call, inputs), self._group, self._link
        target = [output.host_view(noted=True) for output in outputs]
        shadows = [output.shadow_view() for output in outputs]

        def work() -> None:
            try:
                link.collective(call, next(iter(read()), None), target[0] if target else None)
            except Exception as error:
                group.broken(error)
                raise
            for shadow in shadows:
                if shadow is not None:
                    shadow.trust()

        ctx.driver.submit(ctx.stream.handle, work, (tuple(inputs), tuple(outputs)))

    def submitted(self, call: Call, stream: Stream) -> None:
        pass  # if it fails, so does the stream

    def close(self) -> None:
        pass


def _reading(call: Call, inputs: Sequence[Tensor]) -> Callable[[], list[Array]]:
    """What reads the members' tensors once the work has come to it: an unwritten element is an error then."""
    arrays = [tensor.host_view(noted=True) for tensor in inputs]
    shadows = [tensor.shadow_view() for tensor in inputs]

    def read() -> list[Array]:
        for shadow, array in zip(shadows, arrays):
            if shadow is not None:
                shadow.check(tuple(slice(0, n) for n in array.shape), call.kind, "x")
        return arrays

    return read


def _writing(outputs: Sequence[Tensor]) -> Callable[[list[Array]], None]:
    arrays = [tensor.host_view(noted=True) for tensor in outputs]
    shadows = [tensor.shadow_view() for tensor in outputs]

    def write(values: list[Array]) -> None:
        for array, shadow, value in zip(arrays, shadows, values):
            np.copyto(array, value)
            if shadow is not None:
                shadow.write(tuple(slice(0, n) for n in array.shape))

    return write
