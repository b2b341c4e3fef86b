"""A plan's launches in one native call."""

from __future__ import annotations

from typing import Any

from tilekit._native import _launch
from tilekit.compiler.facts import TensorFacts
from tilekit.compiler.grids import folded_grid
from tilekit.launch.planning import Plan
from tilekit.launch.specialisation import Loaded, packed_grid
from tilekit.ops.fast_path import NativeLaunch
from tilekit.settings import load_settings

__all__ = ["launcher"]


def launcher(executable: Any, plan: Plan) -> NativeLaunch | None:
    """What launches `plan` by `executable` in one call, see `FastPath.launcher`.

    None for an executable that is none of tilekit's on a GPU, or has more arguments than there is room for.
    """
    if type(executable) is not Loaded or not load_settings().native:
        return None
    calls = executable.driver.native
    if calls is None:
        return None
    kinds, uses = bytearray([_launch.ABSENT] * plan.count), bytearray(plan.count)
    for at, facts in zip(plan.passed, executable.facts, strict=True):
        tensor = _launch.TENSOR if isinstance(facts, TensorFacts) and facts.role == "in" else _launch.PARTITION
        kinds[at] = tensor if isinstance(facts, TensorFacts) else _launch.SCALAR
    for use, side in ((_launch.READ, plan.reads), (_launch.WRITTEN, plan.writes)):
        for at in side:
            uses[at] |= use
    folded = executable.fold is not None
    try:
        return _launch.Launcher(
            **calls._asdict(),
            function=int(executable.function.handle),
            grid=folded_grid(plan.grid) if folded else plan.grid,
            block=executable.block,
            shared_bytes=executable.shared_bytes,
            kinds=bytes(kinds),
            uses=bytes(uses),
            slots=executable.slots,
            rest=packed_grid(*plan.grid) if folded else b"",
            maps=tuple((plan.passed[number], recent) for number, _, recent in executable.maps),
        ).launch
    except ValueError:  # more arguments, or maps, than it has room for
        return None
