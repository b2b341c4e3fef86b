"""What discovery gives: the drivers of the GPUs there are, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilekit._driver.protocol import Driver

__all__ = ["Discovery"]


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
