"""What each tile operation becomes: one file a family, named as in `tilekit.lang`. Importing it tells numba of them all."""

from __future__ import annotations

from tilekit.compiler import ops
from tilekit.compiler.lower import create, debug, elementwise, memory, reduction, relayout, shape, tile

__all__ = ["create", "debug", "elementwise", "memory", "reduction", "relayout", "shape", "tile"]

ops.install()
