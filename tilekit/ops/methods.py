"""What the methods of ops make: ops that derive from `DeviceOp`, which therefore cannot import them. Each enters itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tilekit._capture import graph
    from tilekit._runtime.stream import Stream
    from tilekit.ops import combinators, placement, shared
    from tilekit.ops.op import DeviceOp

__all__ = ["methods"]

Entry = TypeVar("Entry")
R = TypeVar("R")


class _Methods:
    """The classes and functions behind `DeviceOp.then`, `zip`, `on`, `graph`..., by their names."""

    AndThen: type[combinators.AndThen]
    CudaGraph: type[graph.CudaGraph]
    Element: type[combinators.Element]
    Inspect: type[combinators.Inspect]
    Map: type[combinators.Map]
    OnDevice: type[placement.OnDevice]
    OrElse: type[combinators.OrElse]
    PreparedOp: type[graph.PreparedOp]
    Shared: type[shared.Shared]
    WithPolicy: type[placement.WithPolicy]
    unzip: Callable[[DeviceOp[Any], int | None], tuple[DeviceOp[Any], ...]]

    def recorded_op(self, op: DeviceOp[Any], stream: Stream, make: type[R]) -> R:
        """See `tilekit._capture.graph`, which takes the place of this."""
        raise NotImplementedError

    def enter(self, entry: Entry) -> Entry:
        """Keep a class or a function under its own name, for the method that needs it; a decorator."""
        name = entry.__name__  # type: ignore[attr-defined]
        setattr(self, name, entry)
        return entry


methods = _Methods()
