"""`Home`: the process that a worker under Ray has at the time."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayActorError

from tilekit.distributed._ray import transport
from tilekit.distributed._ray.worker import CONTROL, Process
from tilekit.errors import DeviceUnavailableError

__all__ = ["Home", "ProcessOptions"]


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """How workers' processes are started.

    Attributes:
        kind: of their devices: "cpu" or "cuda".
        runtime_env: Ray's.
        startup_timeout_s: how long one may take.
    """

    kind: str
    runtime_env: dict[str, Any] | None = None
    startup_timeout_s: float = 120.0

    @property
    def direct(self) -> bool:
        """Whether tensors go by the direct transport: of CPU devices. Of GPUs they go through the host."""
        return self.kind == "cpu"


class Home:
    """An actor, from its start to its end. A worker that lost one gets another: what the first had is gone.

    Args:
        rank: the worker's.
        options: how it is started.

    Attributes:
        actor: Ray's handle.
        lost: whether it is known to have ended.
        about: who it is, after `ready`: what `Process.about` says.
        files: the names and the lines of the source files that it was sent.
        dropped: the numbers of results that nobody has any more, and of which it has not been told.
    """

    def __init__(self, rank: int, options: ProcessOptions) -> None:
        self.rank, self._options = rank, options
        self.lost = False
        self.files: dict[str, Sequence[str]] = {}
        self.about: dict[str, Any] = {}
        self.dropped: deque[int] = deque()
        self._lock = threading.Lock()
        if options.direct:
            transport.register()
        actor_options: dict[str, Any] = {
            "num_cpus": 0,
            "num_gpus": 1 if options.kind == "cuda" else 0,
            "max_restarts": 0,  # Ray's own restart takes a second or two to report, and would have to be watched for all the same
            "max_task_retries": 0,
            "concurrency_groups": {CONTROL: 2},
            "scheduling_strategy": "SPREAD",
        }
        if options.runtime_env is not None:
            actor_options["runtime_env"] = options.runtime_env
        if options.direct:
            actor_options["enable_tensor_transport"] = True
        self.actor: Any = ray.remote(**actor_options)(Process).remote(options.kind, options.direct)
        self._asked: Any = self.actor.about.remote()

    def ready(self) -> None:
        """Block until it has started.

        Raises:
            DeviceUnavailableError: it does not, or not in time.
            Whatever its start raises.
        """
        with self._lock:
            if self.about:
                return
            seconds = self._options.startup_timeout_s
            try:
                self.about = ray.get(self._asked, timeout=seconds)
            except GetTimeoutError as error:
                raise DeviceUnavailableError(
                    f"worker {self.rank} did not start within {seconds:g} s: Ray has {ray.available_resources()} left of "
                    f"{ray.cluster_resources()}; `ray status` tells more"
                ) from error
            except RayActorError as error:
                raise DeviceUnavailableError(f"worker {self.rank} did not start: {error}") from error

    def send(self, key: int) -> Any:
        """A result on its way to another actor, by the direct transport."""
        return self.actor.send.options(tensor_transport=transport.NAME).remote(key)

    def take_dropped(self) -> list[int]:
        """What it must be told of now."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.dropped.popleft())
        return taken

    @property
    def where(self) -> str:
        """Its process and machine, for messages."""
        return f"process {self.about['pid']} on {self.about['host']}" if self.about else "a process that was starting"

    def end(self) -> None:
        """End it, if it has not ended."""
        self.lost = True
        if ray.is_initialized():
            ray.kill(self.actor, no_restart=True)

    def is_lost_by(self, error: BaseException) -> bool:
        """Whether an error of Ray's says that this very process has ended, or cannot be reached."""
        if not isinstance(error, (ActorDiedError, ActorUnavailableError)):
            return False
        return getattr(error, "actor_id", None) in (None, self.actor._actor_id.hex())
