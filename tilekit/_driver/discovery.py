"""What a look for GPUs found. Kept apart from `cuda`, so that nothing of CUDA is imported before somebody looks."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilekit._driver.protocol import Driver

__all__ = ["Discovery", "discover_cuda"]


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """The GPUs.

    Attributes:
        drivers: those that can be used, in the order of their ordinals.
        reason: why there are none, and what to do; None if there are.
        unusable: by ordinal, why a GPU that exists cannot be used.
    """

    drivers: list[Driver] = field(default_factory=list)
    reason: str | None = None
    unusable: dict[int, str] = field(default_factory=dict)


def discover_cuda() -> Discovery:
    """Look for GPUs."""
    from tilekit._driver.cuda.discovery import discover

    return discover()
