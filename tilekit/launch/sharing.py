"""Which arguments of a launch may be one tensor, though the kernel writes one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilekit.compiler.facts import TensorFacts
from tilekit.compiler.passes.aliasing import apart

if TYPE_CHECKING:
    from tilekit.launch.specialisation import Specialisation

__all__ = ["Sharing"]

_LAUNCHES_KEPT = 256  # of one specialisation


class Sharing:
    """Which arguments of a launch may be in the same memory, though one of the two is written, and they look the same.

    Attributes:
        written: for each argument, whether it is a tensor that is written; None for what is no tensor.
    """

    def __init__(self, specialisation: Specialisation) -> None:
        self._bound = specialisation.bound
        self.written = [f.role != "in" if isinstance(f, TensorFacts) else None for f in specialisation.facts]
        self._known: dict[Any, list[tuple[int, int]]] = {}  # of launches that look alike

    def of(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> list[tuple[int, int]]:
        """The numbers of each two, that of what is written first."""
        key = (grid, *[getattr(argument, "traits", None) for argument in arguments])
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _LAUNCHES_KEPT:
                self._known.clear()
            outs, ins = ([at for at, w in enumerate(self.written) if w is side] for side in (True, False))
            known = [(one, other) for one in outs for other in ins if self._shares(grid, arguments, one, other)]
            self._known[key] = known
        return known

    def _shares(self, grid: tuple[int, int, int], arguments: Sequence[Any], written: int, read: int) -> bool:
        one, other = arguments[written].tensor, arguments[read]
        if one.shape != other.shape or one.strides != other.strides or one.itemsize != other.itemsize:
            return False
        names = self._bound.names
        return apart(self._bound, dict(zip(names, arguments, strict=True)), grid, names[written], names[read])
