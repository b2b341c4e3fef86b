"""Groups of devices and the collectives among them. `Group` is `tilekit.Group`."""

from __future__ import annotations

from tilekit._groups.control import free_address as free_address
from tilekit._groups.group import Group as Group

__all__ = ["Group", "free_address"]
