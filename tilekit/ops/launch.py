"""A kernel launch as an op, whatever the kernel was written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tilekit._driver.nodes import Node
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.storage import Storage
from tilekit.ops.op import DeviceOp

__all__ = ["AsyncKernelLaunch", "Executable"]


class Executable(Protocol):
    """A kernel loaded on a device."""

    def launch(self, ctx: ExecutionContext, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Enqueue one launch on the context's stream."""
        ...

    def as_node(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> Node | None:
        """One launch, to be written down (`tilekit._driver.nodes`); None if somebody else launches, whom it takes a capture to
        follow.
        """
        ...


class AsyncKernelLaunch(DeviceOp[tuple[Any, ...]]):
    """One launch of a kernel. Its result is the tuple of its arguments."""

    if not TYPE_CHECKING:
        __slots__ = ()

    def enqueue(
        self,
        ctx: ExecutionContext,
        executable: Executable,
        grid: tuple[int, int, int],
        arguments: Sequence[Any],
        reads: Sequence[Storage],
        writes: Sequence[Storage],
    ) -> None:
        """Launch after whatever the storages still wait for on other streams, and let those who come later wait for it
        (internal)."""
        ctx.acquire(reads, writes)
        ctx.launch(executable, grid, arguments)
        ctx.stream.submitted(self._label or self.label)
        ctx.note(reads, writes)
