"""`Worker`: a device, and the process that drives it, as those see it who send it work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilekit import dtypes
from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.tensor import Tensor, refuse_mask
from tilekit.distributed.arguments import as_sent, leaves, run_ops
from tilekit.distributed.remote import Remote, refuse_pickling
from tilekit.errors import DeviceUnavailableError
from tilekit.ops import DeviceOp, Spec, value
from tilekit.ops.execution import Steps

if TYPE_CHECKING:
    from tilekit._runtime.device import Device
    from tilekit.distributed.cluster import Cluster

__all__ = ["RemoteRun", "Worker", "WorkerLostError", "check_retries"]


class WorkerLostError(DeviceUnavailableError):
    """A worker is gone, and what it had with it. The text names the worker, and what it ran or had.

    Attributes:
        worker: which; it may have got another process since, and take work again.
    """

    worker: Worker | None = None


class Worker:
    """A device that is sent work, in this process or another.

    Attributes:
        cluster: which it belongs to.
        rank: its number there, from 0.
        device: the label of its device, as its own process calls it: "cuda:0", "cpu:1".
    """

    __slots__ = ("__weakref__", "cluster", "device", "rank")

    def __init__(self, cluster: Cluster, rank: int, device: str) -> None:
        self.cluster, self.rank, self.device = cluster, rank, device

    def run(self, build: Callable[..., Any], /, *args: Any, retries: int = 0, **kwargs: Any) -> DeviceOp[Remote]:
        """An op that calls `build(*args, **kwargs)` on the worker, and runs the op that this returns there, in one call.

        `build` describes work, as functions given to `then` do: what it does itself is not waited for by others, and it runs no
        ops, but in a `tk.host_fn`. The worker's device is the default one while it is called. If it returns no op, that is the
        result. A launch's partitions are kept as their tensors.

        Args:
            build: on other machines it is what cloudpickle makes of it: its module must be there, unless that is `__main__`.
            args, kwargs: a Remote arrives as what it stands for, copied to the worker if it is on another one; a NumPy array or a
                tensor as a tensor on the worker's device; an op is run before, here, and its result arrives. The same holds in
                tuples, lists and dicts. All else arrives as itself, on other machines as a copy.
            retries: how often the work is sent again after its worker was lost, if that comes back and the arguments are still
                there. The function should do no harm when it is called twice.

        Raises:
            TypeError, ValueError: no function; an array of a dtype that tensors cannot have; a Remote of another cluster.
            Whatever `build` and its op raise, when the op runs; and WorkerLostError.
        """
        return RemoteRun(self, build, args, kwargs, retries)

    def put(self, array: Any) -> DeviceOp[Remote]:
        """An op that copies an array to the worker. Its result is the tensor's Remote, with the same shape and dtype.

        Args:
            array: a NumPy array (or what NumPy makes one of), or a tensor. It is read while the op runs.

        Raises:
            TypeError: its dtype is none of tilekit's, or it has a mask; it is an op.
        """
        if isinstance(array, DeviceOp):
            array.consumed()
            raise TypeError(
                f"put takes an array or a tensor, not an op: run(lambda x: x, op) runs {array!r} and sends the result"
            )
        refuse_mask("put", array)
        if not isinstance(array, Tensor):
            try:
                array = np.asarray(array)
            except (TypeError, ValueError) as error:
                raise TypeError(f"put: NumPy makes no array of this {type(array).__name__}: {error}") from error
        spec = Spec(array.shape, dtypes.as_dtype(array.dtype))
        op = RemoteRun(self, _same, (array,), {}, 0)
        op.spec = spec
        return op.named("put")

    def _steps(self, call: RemoteRun, args: tuple[Any, ...], kwargs: dict[str, Any], ctx: ExecutionContext) -> Steps:
        """Steps that do what `run` says; ops among the arguments have been run. By the engine."""
        raise NotImplementedError

    def _moved(self, remote: Remote, worker: Any) -> DeviceOp[Remote]:
        """What `Remote.to` does for a Remote that is here."""
        if not isinstance(worker, Worker):
            raise TypeError(f"to takes a worker, such as cluster.workers[0], not {type(worker).__name__}")
        if worker is self:
            return value(remote)
        op = RemoteRun(worker, _same, (remote,), {}, 0)
        if remote.shape is not None:
            op.spec = Spec(remote.shape, remote.dtype)
        return op.named("to")

    @property
    def _device(self) -> Device | None:
        """The device, if it is this process's."""
        return None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self, "what a function needs of it, such as its .rank, is passed as an argument")

    def __repr__(self) -> str:
        return f"<worker {self.rank} of {self.cluster.engine}, {self.device}>"


class RemoteRun(DeviceOp[Remote]):
    """The work of a worker as an op.

    Attributes:
        worker, build, args, kwargs, retries: as `Worker.run` has them.
    """

    _placed = True

    def __init__(
        self, worker: Worker, build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], retries: int
    ) -> None:
        self.worker, self.build, self.retries = worker, build, retries
        self.args, self.kwargs = args, kwargs
        self._ops = tuple(dict.fromkeys(leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, DeviceOp)))
        for op in (*self._ops, build):
            if isinstance(op, DeviceOp):
                op.consumed()
        self._label = f"run {getattr(build, '__qualname__', type(build).__name__)}"
        try:
            self._check()
        except BaseException:
            self.consumed()
            raise

    def _check(self) -> None:
        if not callable(self.build) or isinstance(self.build, DeviceOp):
            raise TypeError(
                f"run takes a function that returns an op, and its arguments, not {self.build!r}: run(lambda x: ..., x)"
            )
        check_retries(self.retries)
        for remote in leaves((self.args, self.kwargs)):
            if isinstance(remote, Remote):
                self.worker.cluster.check_own(remote.worker, f"{remote!r} cannot be sent")
        self.args, self.kwargs = as_sent((self.args, self.kwargs), self._label or "run")

    @property
    def device(self) -> Device | None:
        """The worker's, if it is this process's."""
        return self.worker._device

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The ops among the arguments."""
        return self._ops

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run the ops among the arguments here, then the function there."""
        self.worker.cluster.check_open()
        args, kwargs = self.args, self.kwargs
        if self._ops:
            args, kwargs = yield run_ops((args, kwargs), ctx)
            for remote in leaves((args, kwargs)):
                if isinstance(remote, Remote):
                    self.worker.cluster.check_own(remote.worker, f"{remote!r} cannot be sent")
            args, kwargs = as_sent((args, kwargs), self.label)
        return (yield self.worker._steps(self, args, kwargs, ctx))


def check_retries(retries: Any) -> None:
    """Whether `retries` is a number of retries.

    Raises:
        TypeError, ValueError: it is no int, or negative.
    """
    if isinstance(retries, bool) or not isinstance(retries, int):
        raise TypeError(f"retries is an int, how often lost work is sent again, not {retries!r}")
    if retries < 0:
        raise ValueError(f"retries is {retries}, and cannot be negative")


def _same(value: Any) -> Any:
    """What came."""
    return value
