"""Groups of devices, the collectives among them, and the memory that they share. `tilekit.Group`, `tilekit.symmetric`."""

from __future__ import annotations

from tilekit._groups.control import free_address as free_address
from tilekit._groups.group import Group as Group
from tilekit._groups.symmetric_memory import Symmetric as Symmetric
from tilekit._groups.symmetric_memory import symmetric as symmetric

__all__ = ["Group", "Symmetric", "free_address", "symmetric"]
