"""Names that a kernel cannot have: unknown ones, and functions of other libraries; and what to write. No numba here."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from tilekit.compiler.frontend.bound import BoundKernel, resolved
from tilekit.compiler.frontend.folding import MISSING
from tilekit.compiler.frontend.source import KernelSource
from tilekit.elsewhere import LIBRARIES, OPERATIONS, TRITON, advice
from tilekit.lang.registry import OPS

__all__ = ["check_library", "check_numba", "no_attribute", "undefined"]

_BESIDE_OPERATIONS = ("PaddingMode", "RoundingMode", "static_range", "pipelined")


_ROOMS = ("math", "libdevice", "extra", "core", "language", "special")  # modules inside of others', with functions in them


def undefined(name: str, known: Iterable[str]) -> str:
    """That a name stands for nothing."""
    if name in OPS:
        return f"{name} is not defined: write tk.{name}"
    return f"{name} is not defined{advice(OPERATIONS, name, known)}"


def no_attribute(node: ast.Attribute, owner: Any) -> str:
    """That a module or a class has no such name in it."""
    known, table = dir(owner), {}
    if getattr(owner, "__name__", "") == "tilekit":
        known = [
            name for name in known if name in OPS or name in _BESIDE_OPERATIONS or isinstance(getattr(owner, name), np.dtype)
        ]
        table = dict(OPERATIONS)
    return f"{ast.unparse(node)} does not exist{advice(table, node.attr, known)}"


def check_library(node: ast.Attribute, source: KernelSource, local: Collection[str], lookup: Callable[[str], Any]) -> None:
    """Refuse a function of Triton's, cuTile's, PyTorch's...: `tl.load`, whether the library is there or not.

    numba's own are left to the device, where they are known: a GPU takes them.

    Args:
        node: the expression.
        source, local, lookup: as for `captures.check_values`.

    Raises:
        CompileError: it is one.
    """
    root, path = _parts(node)
    if not isinstance(root, ast.Name) or root.id in local:
        return
    owner = lookup(root.id)
    library = LIBRARIES.get(root.id)
    if isinstance(owner, types.ModuleType):
        value: Any = owner
        for name in path:
            value = getattr(value, name, None)
        package = "cuda.tile" if owner.__name__.startswith("cuda.tile") else owner.__name__.partition(".")[0]
        library = LIBRARIES.get(package)
        if library in (None, "numba") or not callable(value):
            return
    elif library is None or owner is not MISSING:
        return
    raise source.error(_of_a_library(ast.unparse(node), path, str(library)), node.lineno, node.attr)


def check_numba(bound: BoundKernel) -> None:
    """Refuse numba's own functions on a device that has none of them.

    Raises:
        CompileError: a kernel, or a function that it calls, uses one.
    """
    for node in ast.walk(bound.definition):
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        root, path = _parts(node) if isinstance(node, ast.Attribute) else (node, [])
        owner = resolved(bound, root)
        if path and isinstance(owner, types.ModuleType) and owner.__name__.partition(".")[0] == "numba":
            spelling = ast.unparse(node)
            reason = f"{spelling} is numba's, for GPUs alone{_in_words(path, OPERATIONS)}"
            raise bound.source.error(reason, node.lineno, path[-1])
        if not path and str(type(owner).__module__).startswith("numba.cuda") and callable(owner):
            reason = (
                f"{ast.unparse(node)} is a function of numba's, for GPUs alone: write it as a plain function, for all devices"
            )
            raise bound.source.error(reason, node.lineno, ast.unparse(node))
    for called in bound.called.values():
        check_numba(called)


def _parts(node: ast.Attribute) -> tuple[ast.expr, list[str]]:
    """What a chain of attributes begins with, and the attributes."""
    path: list[str] = []
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        path.insert(0, root.attr)
        root = root.value
    return root, path


def _in_words(path: list[str], table: Mapping[str, str]) -> str:
    name = path[-1] if path[0] in _ROOMS else path[0]
    return f": write tk.{name}" if name in OPS and name not in table else advice(table, name, OPS, "tk.")


def _of_a_library(spelling: str, path: list[str], library: str) -> str:
    """That a function is another library's."""
    table = {**OPERATIONS, **(TRITON if library == "Triton" else {})}
    return f"{spelling} is {library}'s, which kernels do not call{_in_words(path, table)}"
