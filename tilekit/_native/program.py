"""Recorded nodes, submitted in one native call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tilekit._driver.nodes import Captured, Copy, CopyIn, CopyOut, Fill, Launch, Node
from tilekit._native import _launch
from tilekit.settings import load_settings

__all__ = ["program"]

_STEP = struct.Struct(f"={_launch.FIELDS}q")  # see Program in _launch.pyi


def program(driver: Any, nodes: Sequence[Node]) -> _launch.Program | None:
    """What submits the nodes in one call; None if the driver has no native functions, or a node is of another kind."""
    if not load_settings().native:
        return None
    calls, work = driver.native, driver.native_work
    if calls is None or work is None:
        return None
    steps = [_step(driver, node) for node in nodes]
    if None in steps:
        return None
    knows_device: Any = _launch.Launcher(  # of no kernel
        **calls._asdict(),
        function=0,
        grid=(1, 1, 1),
        block=(1, 1, 1),
        shared_bytes=0,
        kinds=b"",
        uses=b"",
        slots=b"",
    )
    return _launch.Program(launcher=knows_device, steps=b"".join(step for step in steps if step is not None), **work._asdict())


def _step(driver: Any, node: Node) -> bytes | None:
    if isinstance(node, Launch):
        if node.cluster is not None:
            return None
        driver.allow(node.function, node.shared_bytes)
        return _packed(_launch.LAUNCH, int(node.function.handle), *node.grid, *node.block, node.shared_bytes, node.params)
    if isinstance(node, Captured):
        return _packed(_launch.GRAPH, driver.graph_handle(node.graph))
    if isinstance(node, Fill):
        return _packed(_launch.FILL, node.target.address, int.from_bytes(node.pattern, "little"), node.count, len(node.pattern))
    if isinstance(node, Copy):
        return _packed(_launch.COPY, node.target.address, node.source.address, node.nbytes)
    if isinstance(node, CopyIn):
        return _packed(_launch.COPY, node.target.address, node.source.__array_interface__["data"][0], node.source.nbytes)
    if isinstance(node, CopyOut):
        return _packed(_launch.COPY, node.target.__array_interface__["data"][0], node.source.address, node.target.nbytes)
    return None


def _packed(*numbers: int) -> bytes:
    signed = [number - (1 << 64) if number >= 1 << 63 else number for number in numbers]
    return _STEP.pack(*signed, *[0] * (_launch.FIELDS - len(signed)))
