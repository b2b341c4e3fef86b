"""What moves a collective's data: one protocol; on CPU devices of one process, and of several. GPUs: `tilekit._groups.gpus`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilekit._groups.arithmetic import results
from tilekit._groups.call import Call
from tilekit._groups.link import Link
from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.tensor import Tensor
from tilekit.errors import GroupError

if TYPE_CHECKING:
    from tilekit._groups.group import Group

__all__ = ["AcrossProcesses", "InProcess", "Transport"]

Array = np.ndarray[Any, Any]
Contexts = Sequence[ExecutionContext]


class Transport(Protocol):
    """Submits a collective for this process's members. Hazards are the caller's business.

    Attributes:
        watched: whether what it submits would wait for ever for a member that is gone, unless it is aborted.
    """

    watched: bool

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

    def failure(self) -> str | None:
        """What went wrong since it was submitted, if anything."""
        ...

    def abort(self) -> None:
        """Let what waits for other members end, whatever it waits for."""
        ...

    def close(self) -> None:
        """Give up what it holds. All its work is done, or aborted."""
        ...


class InProcess:
    """Members on CPU devices of this process: their streams meet at the first one's, where NumPy does the work."""

    watched = False

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

    def failure(self) -> str | None:
        return None

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class AcrossProcesses:
    """A member on a CPU device of this process, the others in other ones: by the hub of rank 0's.

    Args:
        group: the group, which is broken when a member is lost.
        link: the connection for what the stream submits.
    """

    watched = False

    def __init__(self, group: Group, link: Link) -> None:
        self._group, self._link = group, link
        self._submitted = self._run = 0

    def submit(
        self, call: Call, contexts: Sequence[ExecutionContext], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        (ctx,) = contexts
        read, group, link = _reading(call, inputs), self._group, self._link
        target = [output.host_view(noted=True) for output in outputs]
        shadows = [output.shadow_view() for output in outputs]

        turn = 0  # a recorded one has as many as it has launches
        if ctx.recording is None:
            turn = self._submitted = self._submitted + 1

        def work() -> None:
            try:
                if turn:
                    self._check_turn(turn, call)
                link.collective(call, next(iter(read()), None), target[0] if target else None)
            except Exception as error:
                group.broken(error)
                if not isinstance(error, GroupError):  # the others do not know
                    with contextlib.suppress(GroupError):
                        link.give_up(f"{call} of rank {group.rank} failed: {error}")
                raise
            for shadow in shadows:
                if shadow is not None:
                    shadow.trust()

        ctx.driver.submit(ctx.stream.handle, work, (tuple(inputs), tuple(outputs)))

    def _check_turn(self, turn: int, call: Call) -> None:
        """Whether all that was submitted before has run: where it has not, this one must not meet the others' earlier one."""
        before, self._run = self._run, turn
        if turn > before + 1:
            self._link.give_up(
                f"rank {self._group.rank} left out what it had submitted before {call}: work that it waited for had failed there"
            )

    def failure(self) -> str | None:
        return None  # its streams fail

    def abort(self) -> None:
        pass

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
