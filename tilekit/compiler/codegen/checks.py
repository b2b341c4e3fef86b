"""Bounds checks and assertions at run time: what a kernel makes sure of on a GPU under `TILEKIT_CHECKS=1`.

The first thread that finds something wrong writes down what, where and in which block, in memory of the host's that outlives the
kernel, and stops the kernel; whoever waits for it gets a DeviceError that says so. Where that memory is stands in a variable of
the module, set when it is loaded (`Driver.watch`): compiled kernels can be kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit._driver.report import FIRST_VALUE, MOST_VALUES, VARIABLE
from tilekit.compiler.codegen.blocks import block_index
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.codegen.types import i64, integer

__all__ = ["checking", "require"]

_GLOBAL = 1  # the address space


def checking() -> bool:
    """Whether the kernel is compiled with its checks."""
    return current().checks


def require(
    builder: ir.IRBuilder, holds: ir.Value, message: str, values: Sequence[ir.Value] | Callable[[], Sequence[ir.Value]] = ()
) -> None:
    """Under `TILEKIT_CHECKS=1`, stop the kernel where a condition does not hold.

    Args:
        builder: at the place of the check; any threads may come by.
        holds: the condition, an i1.
        message: what is wrong, with `{}` for each of `values`, and the operation before a colon.
        values: at most four integers of up to 64 bits, signed where they are narrower; or what makes them where it failed.
    """
    if not checking():
        return
    site = current().site(message)
    with builder.if_then(builder.not_(holds), likely=False):
        shown = values() if callable(values) else values
        assert len(shown) <= MOST_VALUES, "a tensor has no more dimensions"
        wide = [value if value.type == i64 else builder.sext(value, i64) for value in shown]
        _stop(builder, site, wide)


def _stop(builder: ir.IRBuilder, site: int, values: list[ir.Value]) -> None:
    """One thread writes the record and traps. Others end: they must not stop the kernel before it is written."""
    variable: Any = builder.module.globals.get(VARIABLE)
    if variable is None:
        variable = ir.GlobalVariable(builder.module, ir.ArrayType(i64, 4), VARIABLE, addrspace=_GLOBAL)
        variable.linkage, variable.align = "weak", 16
        variable.initializer = ir.Constant(variable.value_type, [integer(64, 0)] * 4)
    lines = ["atom.global.cas.b32 t, [$0+16], 0, 1;", "setp.ne.b32 p, t, 0;", "@p exit;"]
    lines += ["ld.global.b64 a, [$0];", "setp.eq.b64 p, a, 0;", "@p trap;"]
    lines += ["ld.global.b64 s, [$0+8];", "cvt.u64.u32 z, $1;", "add.u64 s, s, z;", "st.global.b64 [a+8], s;"]
    lines += ["mov.u32 t, %tid.x;", "cvt.u64.u32 z, t;", "st.global.b64 [a+40], z;"]
    block = [index if index.type == i64 else builder.zext(index, i64) for index in block_index(builder)]
    shown = dict(enumerate(block, 2)) | dict(enumerate(values, FIRST_VALUE))
    lines += [f"st.global.b64 [a+{8 * word}], ${2 + k};" for k, word in enumerate(shown)]
    lines += ["membar.sys;", "mov.u64 z, 1;", "st.global.b64 [a], z;", "membar.sys;", "trap;"]
    text = "{ .reg .pred p; .reg .b32 t; .reg .b64 a, s, z; " + " ".join(lines) + " }"
    constraints = ",".join(["l", "r"] + ["l"] * len(shown) + ["~{memory}"])
    args = [builder.ptrtoint(variable, i64), integer(32, site), *shown.values()]
    asm(builder, text, constraints, ir.VoidType(), args, effect=True)
