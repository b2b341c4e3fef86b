"""Mathematical formulas of the compiler for CPUs, as functions of arrays: compiled for any CPU whose code runs here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, i64, pointer
from tilekit.compiler.cpu.machine import Machine, linked
from tilekit.compiler.cpu.mathematics.vectors import Formula, Vector

__all__ = ["code_of", "compiled", "vector_lanes"]


def vector_lanes(machine: Machine, dtype: dtypes.DType) -> int:
    """How many elements of a tile a loop takes at once."""
    return max(4, 2 * machine.vector_bytes // dtype.itemsize)


def code_of(formula: Formula, dtype: dtypes.DType, machine: Machine, lanes: int, operands: int = 1) -> Code:
    """A block that applies a formula to arrays: to addresses of operands and of the result, and how many elements there are."""
    k = Code(machine)
    slots = [k.b.load(k.offset(k.arguments, 8 * n), typ=i64) for n in range(operands + 2)]
    arrays = [k.b.inttoptr(slot, pointer) for slot in slots[:-1]]
    with k.counted(slots[-1], lanes) as i:
        *sources, target = (k.offset(array, k.mul(i, dtype.itemsize)) for array in arrays)
        values = [Vector(k, k.read(source, dtype, lanes, dtype.itemsize)) for source in sources]
        k.write(target, dtype, lanes, dtype.itemsize, None, formula(*values).value)
    return k


def compiled(formula: Formula, dtype: dtypes.DType, machine: Machine, lanes: int = 0, operands: int = 1) -> Callable[..., Any]:
    """A formula as a function of arrays whose size is a multiple of the lanes; by default as many as loops over tiles have."""
    lanes = lanes or vector_lanes(machine, dtype)
    code = code_of(formula, dtype, machine, lanes, operands)
    library = linked(machine.assembled(code.finish()))
    address = ctypes.c_void_p
    run = ctypes.CFUNCTYPE(None, address, address, *[ctypes.c_int64] * 4, address, address)(library["run"])
    scratch, report = np.zeros(code.scratch_bytes, np.uint8), (ctypes.c_int64 * 64)()

    def function(*arrays: Any) -> Any:
        sources = [np.ascontiguousarray(array, dtype) for array in arrays]
        result = np.empty_like(sources[0])
        assert result.size % lanes == 0
        slots = (ctypes.c_int64 * (operands + 2))(*(array.ctypes.data for array in (*sources, result)), result.size)
        counter = ctypes.c_int64(0)
        run(ctypes.addressof(slots), ctypes.addressof(counter), 1, 1, 1, 1, scratch.ctypes.data, ctypes.addressof(report))
        return result

    function.library = library  # type: ignore[attr-defined]  # the code is there as long as this is
    return function
