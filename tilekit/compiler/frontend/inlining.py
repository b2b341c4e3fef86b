"""Inlining of the functions that a kernel calls: each call is replaced by the function's code before anything is typed.

So what a function is given and returns keeps its whole type, compile-time values included, and no call is left. numba knows
places in code by file and line, and each call has a copy of the function: so each copy pretends to stand in a file of its own,
which tells by which call an error was reached.
"""

from __future__ import annotations

import types
from typing import Any

from numba import cuda

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.source import KernelSource

__all__ = ["inlined"]


def inlined(bound: BoundKernel) -> tuple[types.FunctionType, dict[str, KernelSource]]:
    """A kernel for numba to compile, and the sources of the functions that it calls, by what numba takes for their files."""
    sources: dict[str, KernelSource] = {}
    return _with_calls(bound, bound.function.__code__, sources), sources


def _with_calls(bound: BoundKernel, code: types.CodeType, sources: dict[str, KernelSource]) -> types.FunctionType:
    """The function of `bound` with other code, in which the functions that it calls are numba's."""
    original = bound.function
    if not bound.called:
        function = types.FunctionType(code, original.__globals__, original.__name__, None, original.__closure__)
    else:
        cells = []
        for name, cell in zip(code.co_freevars, original.__closure__ or (), strict=True):
            called = bound.called.get(name)
            cells.append(cell if called is None else types.CellType(_function(called, sources)))
        function = types.FunctionType(code, original.__globals__, original.__name__, None, tuple(cells))
    function.__qualname__, function.__module__ = original.__qualname__, original.__module__
    return function


def _function(bound: BoundKernel, sources: dict[str, KernelSource]) -> Any:
    """A called function for numba: inlined where it is called, and by LLVM where it is passed to what calls it."""
    filename = f"{bound.source.filename}#{len(sources) + 1}"
    sources[filename] = bound.source
    code = _moved(bound.function.__code__, filename)
    return cuda.jit(_with_calls(bound, code, sources), device=True, inline="always", forceinline=True)


def _moved(code: types.CodeType, filename: str) -> types.CodeType:
    constants = tuple(_moved(c, filename) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)
