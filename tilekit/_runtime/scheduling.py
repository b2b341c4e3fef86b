"""What a scheduling policy is: the choice of a stream for each op. `tilekit._runtime.policy` has those that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from tilekit._runtime.stream import Stream

__all__ = ["SchedulingPolicy", "default_policy", "policy_of"]

P = TypeVar("P")


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Decides which stream the next op runs on."""

    def next_stream(self) -> Stream:
        """The stream for the next op. Called once for each, from any thread."""
        ...


_default: list[Callable[[Any], SchedulingPolicy]] = []


def default_policy(policy: type[P]) -> type[P]:
    """Give devices that were given no policy one of this class, called with the device; a decorator.

    Policies are made of devices, so a device cannot import any.
    """
    _default[:] = [policy]  # type: ignore[list-item]
    return policy


def policy_of(device: Any) -> SchedulingPolicy:
    """The policy of a device that was given none."""
    return _default[0](device)
