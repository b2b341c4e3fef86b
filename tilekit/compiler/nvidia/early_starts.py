"""Programmatic dependent launch: launches that begin before what they wait for has ended (PTX: `griddepcontrol`).

Each block of a kernel says at once that those behind it may begin. When all have, the blocks of the next launch take what room
there is, and go as far as they can without memory: they make barriers, and fetch tensor maps. Then they wait until the launches
before them have ended, and all that these wrote is there. Since all wait, a launch ends after all before it, not the last alone.

Whether a launch may begin early is said where it is submitted (`tilekit._driver.cuda.graphs`); else nobody waits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.kernel import WAITS

__all__ = ["start_early", "wait"]

_VOID = ir.VoidType()


def wait(builder: ir.IRBuilder) -> None:
    """Wait for the launches before."""
    asm(builder, f"{WAITS};", "~{memory}", _VOID, [], effect=True)


def start_early(kernel: Any, waits: bool) -> None:
    """Let the next launch begin where `kernel` does, and wait there if it `waits` nowhere else."""
    builder = ir.IRBuilder(kernel.entry_basic_block)
    builder.position_at_start(kernel.entry_basic_block)
    asm(builder, "griddepcontrol.launch_dependents;", "~{memory}", _VOID, [], effect=True)
    if not waits:
        wait(builder)
