"""`Remote`: a result that stays on the worker that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tilekit.ops import DeviceOp

if TYPE_CHECKING:
    from tilekit.distributed.worker import Worker

__all__ = ["Remote", "refuse_pickling"]


def refuse_pickling(what: Any, instead: str) -> NoReturn:
    """A TypeError for what belongs to this process, and can be in no function that is sent to another: what to do `instead`."""
    raise TypeError(f"{what!r} cannot be pickled or copied: {instead}")


class Remote:
    """A result that stays on its worker: a tensor, or a tuple, list or dict with tensors in it, or any value.

    As an argument of `Worker.run` it stands for what it is: on its own worker for that very tensor, on others for a copy. When
    the last name of it is gone, the worker drops it.

    Attributes:
        worker: where it is.
        shape, dtype: the tensor's; None if it is no tensor.
    """

    __slots__ = ("__weakref__", "dtype", "shape", "worker")

    worker: Worker
    shape: tuple[int, ...] | None
    dtype: Any

    @property
    def lost(self) -> bool:
        """Whether its worker is known to be gone, and the result with it."""
        return False

    def to_host(self) -> DeviceOp[Any]:
        """An op that brings it here: a tensor as a NumPy array of its own, any other value as itself (or a copy).

        Raises:
            WorkerLostError: when the op runs, if the worker is gone, and the result with it.
        """
        raise NotImplementedError

    def to(self, worker: Worker) -> DeviceOp[Remote]:
        """An op that copies it to another worker of the same cluster; on that worker already, it is the Remote itself.

        Raises:
            TypeError, ValueError: `worker` is none, or of another cluster.
            WorkerLostError: when the op runs, if one of the two is gone.
        """
        return self.worker._moved(self, worker)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(
            self,
            "pass it as an argument, worker.run(build, remote), not in a closure or an object; it arrives as what it stands for",
        )

    def __repr__(self) -> str:
        what = "of a value" if self.shape is None else f"shape={self.shape}, dtype={getattr(self.dtype, 'name', self.dtype)}"
        return f"<Remote {what}, on {self.worker!r}>"
