"""Groups of workers under Ray: each actor joins a `Group`, and takes part in what the caller asks all of them for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from tilekit._runtime.context import ExecutionContext
from tilekit.distributed._ray.calls import RayRemote, RayWorker, error_of, taken
from tilekit.distributed._ray.worker import DONE
from tilekit.distributed.cluster import check_collective
from tilekit.distributed.remote import Remote
from tilekit.errors import GroupError
from tilekit.ops import DeviceOp
from tilekit.ops.execution import HostJob, Steps

if TYPE_CHECKING:
    from tilekit.distributed._ray import RayCluster

__all__ = ["RayGroup"]

_END_S = 10.0  # within which Ray says that a process has ended


class RayGroup:
    """Actors that communicate: each joins a `Group`, whose rank 0 listens.

    Args:
        cluster, workers: whose.
        timeout_s: as of `Group.join`.
    """

    def __init__(self, cluster: RayCluster, workers: tuple[RayWorker, ...], timeout_s: float | None = None) -> None:
        self.cluster, self.workers = cluster, workers
        self._number = next(cluster.group_numbers)
        self._homes = [worker.home for worker in workers]
        self._closed = False
        alone = len({home.about.get("host") for home in self._homes}) == 1
        try:
            address = ray.get(self._homes[0].actor.listen.remote("127.0.0.1" if alone else None))
        except RayActorError as error:
            raise workers[0].lost(self._homes[0], "while it joined a group", error) from error
        key = secrets.token_bytes(16)
        with cluster.submitting:
            joining = [
                home.actor.join.remote(self._number, rank, len(workers), address, key, timeout_s)
                for rank, home in enumerate(self._homes)
            ]
        self._replies(joining, "while it joined a group")

    def collective(self, name: str, parts: Sequence[Remote], **options: Any) -> DeviceOp[list[Remote]]:
        """As of `WorkerGroup`."""
        checked = [part for part in check_collective(name, parts, self.workers) if isinstance(part, RayRemote)]
        return _Collective(self, name, checked, options)

    def submit(self, name: str, parts: list[RayRemote], options: dict[str, Any]) -> Callable[[], list[Remote]]:
        """Have all members take part, in one order for all, and give what waits for the results."""
        self.cluster.check_open()
        for part in parts:
            part.check()
        for worker, home in zip(self.workers, self._homes, strict=True):
            if home.lost:
                raise worker.lost(home, f"and the group with it: {name} needs all members. cluster.group(workers) makes another")
        results = [RayRemote(worker, home) for worker, home in zip(self.workers, self._homes, strict=True)]
        keys: list[int | None] = [part.key for part in parts] or [None] * len(results)
        with self.cluster.submitting:
            replies = [
                result.home.actor.collective.remote(self._number, name, result.key, key, options)
                for result, key in zip(results, keys, strict=True)
            ]

        def wait() -> list[Remote]:
            answers = self._replies(replies, f"while it took part in {name}")
            if not parts:
                return []
            return [taken(result, answer) for result, answer in zip(results, answers, strict=True)]

        return wait

    def _replies(self, replies: list[Any], what: str) -> list[Any]:
        """The replies of all. The first failure is raised at once: the others may wait for the one who failed."""
        waiting = list(replies)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            at = replies.index(done[0])
            answer = self._reply(at, done[0], what)
            if answer[0] != DONE:
                error = error_of(self.workers[at], answer)
                if isinstance(error, GroupError) and error.ranks:  # the others see a process end before Ray does
                    named = [replies[rank] for rank in error.ranks]
                    for other in ray.wait(named, num_returns=len(named), timeout=_END_S)[0]:
                        self._reply(replies.index(other), other, what)
                raise error
        return list(ray.get(replies))

    def _reply(self, at: int, reply: Any, what: str) -> Any:
        """That of a member.

        Raises:
            WorkerLostError: its process has ended.
        """
        try:
            return ray.get(reply)
        except RayActorError as error:
            raise self.workers[at].lost(self._homes[at], what, error) from error

    def close(self) -> None:
        """As of `WorkerGroup`."""
        if not self._closed and not self.cluster.closed:
            self._closed = True
            ray.wait([home.actor.leave.remote(self._number) for home in self._homes], num_returns=len(self._homes))


class _Collective(DeviceOp[list[Remote]]):
    """A collective of actors as an op."""

    _placed = True

    def __init__(self, group: RayGroup, name: str, parts: list[RayRemote], options: dict[str, Any]) -> None:
        self._group, self._name, self._parts, self._options = group, name, parts, options
        self._label = name

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Submit it to all, and wait for all."""
        job = HostJob(self._group.submit(self._name, self._parts, self._options))
        yield [job]
        return job.result()
