"""Recorded nodes, submitted in one native call: as they are, or on other memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tilekit._driver.nodes import Captured, Copy, CopyIn, CopyOut, Fill, Launch, MemoryRange, Node
from tilekit._driver.protocol import Memory
from tilekit._native import _launch
from tilekit.settings import load_settings

__all__ = ["movable_program", "program"]

# See Program in _launch.pyi.
_STEP, _MOVE = struct.Struct(f"={_launch.FIELDS}q"), struct.Struct("=4q")
_ALIGNED = 64


def program(driver: Any, nodes: Sequence[Node]) -> _launch.Program | None:
    """What submits the nodes in one call; None if the driver has no native functions, or a node is of another kind."""
    calls = _calls(driver)
    steps = [] if calls is None else [_step(driver, node) for node in nodes]
    if calls is None or None in steps:
        return None
    return _launch.Program(steps=b"".join(step for step in steps if step is not None), **calls)


def movable_program(driver: Any, nodes: Sequence[Node], memories: Sequence[Memory]) -> _launch.Program | None:
    """What submits the nodes in one call, on memory that is elsewhere each time; None if it cannot, or they use other memory.

    Args:
        driver: the device's.
        nodes: in the order in which they are to be submitted.
        memories: what they were recorded with, in the order in which the addresses will be given.
    """
    if (calls := _calls(driver)) is None:
        return None
    steps, blocks, moves = bytearray(), bytearray(), list[tuple[int, MemoryRange, bool]]()
    first_block = -(-_STEP.size * len(nodes) // _ALIGNED) * _ALIGNED  # in bytes from the first step on
    for node in nodes:
        fields = len(steps) + 8  # where those of this step begin
        if isinstance(node, Launch) and node.cluster is None:
            driver.allow(node.function, node.shared_bytes)
            (values, maps), block = node.contents, len(blocks)
            numbers = (*node.grid, *node.block, node.shared_bytes, block, len(values) // 8, len(maps))
            steps += _packed(_launch.LAUNCH, int(node.function.handle), *numbers)
            for span, encoded in maps:
                moves.append((first_block + len(blocks), span, True))
                blocks += encoded
            moves += [(first_block + len(blocks) + 8 * slot, span, False) for slot, span in node.pointers]
            blocks += values
            blocks += bytes(-len(blocks) % _ALIGNED)
        elif isinstance(node, Fill):
            pattern = int.from_bytes(node.pattern, "little")
            steps += _packed(_launch.FILL, 0, pattern, node.count, len(node.pattern))
            moves.append((fields, node.target, False))
        elif isinstance(node, Copy):
            steps += _packed(_launch.COPY, 0, 0, node.nbytes)
            moves += [(fields, node.target, False), (fields + 8, node.source, False)]
        else:
            return None
    numbers_of = {id(memory): number for number, memory in enumerate(memories)}
    if any(id(span.memory) not in numbers_of for _, span, _ in moves):
        return None
    packed = [_MOVE.pack(at, numbers_of[id(span.memory)], span.offset, mapped) for at, span, mapped in moves]
    return _launch.Program(steps=bytes(steps), blocks=bytes(blocks), moves=b"".join(packed), **calls)


def _calls(driver: Any) -> dict[str, Any] | None:
    """What a Program needs to know of the device; None if the driver has no native functions."""
    if not load_settings().native:
        return None
    calls, work = driver.native, driver.native_work
    if calls is None or work is None:
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
    return {"launcher": knows_device, **work._asdict()}


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
