"""`Cluster`: the workers that an engine has, and those of them that communicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

from tilekit.distributed.mapping import MapOp
from tilekit.distributed.remote import Remote, refuse_pickling
from tilekit.distributed.worker import Worker
from tilekit.ops import DeviceOp

__all__ = ["COLLECTIVES", "Cluster", "WorkerGroup", "check_collective"]

COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce_scatter")


class WorkerGroup(Protocol):
    """Workers that communicate with each other."""

    def collective(self, name: str, parts: Sequence[Remote], **options: Any) -> DeviceOp[list[Remote]]:
        """An op that runs a collective: a tensor of each worker, in the order of the group, and a result on each.

        Args:
            name: as a method of `Group`: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier".
            parts: for "barrier" none.
            options: as that method has them: `op="max"`, `root=1`.
        """
        ...

    def close(self) -> None:
        """Give back what the members hold for each other."""
        ...


class Cluster:
    """Workers, and the engine that runs them. A context manager: at its end it is closed.

    Attributes:
        engine: its name: "local" or "ray".
        workers: in the order of their ranks.
    """

    engine: str
    workers: tuple[Worker, ...]
    _closed = False

    def close(self) -> None:
        """Give the workers back. What they have is gone, and ops that have not run cannot any more. Twice is as once."""
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def map(
        self, build: Callable[..., Any], items: Iterable[Any], *, progress: bool = True, retries: int = 0
    ) -> DeviceOp[list[Remote]]:
        """An op that runs `build(item)` for each item, on whichever worker is free next; its result is the list of the Remotes.

        At the first failure no further items are sent; when those under way are done, the failure is raised.

        Args:
            build: as of `Worker.run`.
            items: any number of arguments. A generator is asked for the next when a worker is free, from other threads.
            progress: whether a terminal shows a bar meanwhile, if rich is installed.
            retries: as of `Worker.run`. What a worker had done before it was lost is done again, too.

        Raises:
            TypeError: `build` is no function, or `items` cannot be iterated over.
        """
        return MapOp(self, build, items, progress, retries)

    def group(self, workers: Sequence[Worker] | None = None) -> WorkerGroup:
        """Workers that communicate; by default all. Blocks until they have joined.

        Raises:
            TypeError, ValueError: something that is no worker, or one of another cluster, or twice the same.
        """
        chosen = tuple(self.workers if workers is None else workers)
        for worker in chosen:
            if not isinstance(worker, Worker):
                raise TypeError(f"group takes workers of the cluster, not {worker!r}")
            self.check_own(worker, f"{worker!r} cannot be in the group")
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"group takes workers that differ, at least one, not {list(chosen)!r}")
        self.check_open()
        return self._group(chosen)

    def _group(self, workers: tuple[Worker, ...]) -> WorkerGroup:
        """What `group` does, by the engine."""
        raise NotImplementedError

    def check_open(self) -> None:
        """Whether it takes work (internal).

        Raises:
            ValueError: it is closed.
        """
        if self._closed:
            raise ValueError(f"{self!r} is closed: its workers take no more work, and what they had is gone")

    def check_own(self, worker: Worker, what: str) -> None:
        """Whether a worker is one of these (internal).

        Raises:
            ValueError: it is not; `what` cannot be done then.
        """
        if worker.cluster is not self:
            raise ValueError(
                f"{what}: it is of another cluster, {worker.cluster!r}, than {self!r}; bring it here with .to_host(), and put it"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self, "workers are sent work from here, and functions that they run use none of the cluster")

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<Cluster {self.engine}: {', '.join(worker.device for worker in self.workers)}{closed}>"


def check_collective(name: str, parts: Sequence[Any], workers: Sequence[Worker]) -> list[Remote]:
    """The parts of a collective as a list (internal).

    Raises:
        TypeError, ValueError: no such collective; no tensor of each worker in the group, in its order.
    """
    if name not in COLLECTIVES:
        raise ValueError(f"there is no collective {name!r} over workers; there are {', '.join(COLLECTIVES)}")
    parts = list(parts)
    expected = () if name == "barrier" else tuple(workers)
    if len(parts) != len(expected):
        raise ValueError(f"{name}: {len(parts)} parts for {len(expected)} workers; each gives one")
    for part, worker in zip(parts, expected, strict=True):
        if not isinstance(part, Remote):
            raise TypeError(f"{name}: a part is a Remote, not {type(part).__name__}; worker.put(array).sync() makes one")
        if part.worker is not worker:
            raise ValueError(f"{name}: {part!r} is not on {worker!r}; parts come in the order of the group's workers")
        if part.shape is None:
            raise TypeError(f"{name}: {part!r} is no tensor")
    return parts
