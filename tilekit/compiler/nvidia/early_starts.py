"""Programmatic dependent launch: launches that begin before what they wait for has ended (PTX: `griddepcontrol`).

Each block says at once that the launch behind it may begin. When all have, the blocks of that take what room there is, and go as
far as they can without memory: they make barriers, and fetch tensor maps. Then they wait until the launch before them has ended,
and all that it wrote is there. Since all wait, a launch ends after all before it, not the last alone.

Whether a launch may begin early is said where it is submitted (`tilekit._driver.cuda.graphs`); else nobody waits. But blocks pay
for asking (some 80 ns on a multiprocessor, twice the time of a warp that loads a row of 147 elements and stores it). So kernels
do that have pipelines, and whose blocks stay: of mapped partitions.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.target import WAITS

__all__ = ["let_begin", "wait"]

_VOID = ir.VoidType()


def wait(builder: ir.IRBuilder) -> None:
    """Wait for the launch before."""
    asm(builder, f"{WAITS};", "~{memory}", _VOID, [], effect=True)


def let_begin(kernel: Any) -> None:
    """Let the next launch begin where `kernel` does."""
    builder = ir.IRBuilder(kernel.entry_basic_block)
    builder.position_at_start(kernel.entry_basic_block)
    asm(builder, "griddepcontrol.launch_dependents;", "~{memory}", _VOID, [], effect=True)
