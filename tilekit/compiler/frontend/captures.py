"""Captured values (globals, closures) that a kernel cannot have: huge ints, tensors, what no GPU knows. No numba here."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import types
from collections.abc import Callable, Collection
from typing import Any

from tilekit.compiler.frontend.folding import MISSING
from tilekit.compiler.frontend.source import KernelSource
from tilekit.lang.functions import LIBRARIES

__all__ = ["attribute_of", "check_values"]

_LEAST, _MOST = -(2**63), 2**64 - 1
_CONTAINERS: dict[type, str] = {
    list: "a list: kernels read tuples, so make it one, or pass it as a tensor",
    dict: "a dictionary, which does not exist in kernels: read what you need of it into names of their own, outside",
    set: "a set, which does not exist in kernels: make it a tuple",
    frozenset: "a set, which does not exist in kernels: make it a tuple",
    bytearray: "a bytearray, which does not exist in kernels: pass it as a tensor",
}
_BUILTINS = {
    id(getattr(builtins, name)): name
    for name in (
        "__import__", "compile", "dict", "dir", "eval", "exec", "filter", "format", "frozenset", "getattr",
        "globals", "hasattr", "hash", "id", "input", "iter", "list", "locals", "map", "next", "object", "open", "repr",
        "set", "setattr", "sorted", "str", "super", "type", "vars",
    )
}  # fmt: skip


def attribute_of(owner: Any, name: str) -> Any:
    """An attribute of an object that keeps constants: a namespace, a data class, a named tuple, a member of an enumeration, or
    any other object of the user's. `MISSING` of what is none, or has no such attribute."""
    fields = getattr(type(owner), "_fields", ()) if isinstance(owner, tuple) else ()
    if isinstance(owner, enum.Enum):
        fields = ("name", "value")
    elif dataclasses.is_dataclass(owner):
        fields = tuple(field.name for field in dataclasses.fields(owner))
    module = type(owner).__module__.partition(".")[0]
    if not fields and (isinstance(owner, types.SimpleNamespace) or module not in (*LIBRARIES, "tilekit")):
        fields = tuple(getattr(owner, "__dict__", ()))
    return getattr(owner, name, MISSING) if name in fields and not isinstance(owner, (type, types.ModuleType)) else MISSING


def check_values(definition: ast.FunctionDef, source: KernelSource, local: Collection[str], lookup: Callable[[str], Any]) -> None:
    """Look at the constants and the names from outside that are left in a function once its constants are put in.

    Args:
        definition: its tree.
        source: the user's, for the error.
        local: the names that mean something of their own in it.
        lookup: what another name stands for.

    Raises:
        CompileError: it points at the line.
    """
    for node in ast.walk(definition):
        match node:
            case ast.Constant(value=int() as value) if not _LEAST <= value <= _MOST:
                text = str(value) if abs(value) < 10**40 else f"an int of {value.bit_length()} bits"
                raise source.error(
                    f"{text} does not fit into 64 bits: ints in a kernel are from -2**63 to 2**64 - 1", node.lineno
                )
            case ast.Name(id=name, ctx=ast.Load()) if name not in local:
                value = lookup(name)
                reason = _CONTAINERS.get(type(value))
                if reason is not None:
                    raise source.error(f"{name} is {reason}", node.lineno, name)
                _check_host_object(value, node, source)
                if id(value) in _BUILTINS:
                    raise source.error(
                        f"{_BUILTINS[id(value)]} does not exist in kernels, which call tile operations (tk.*), functions of "
                        "math, and functions of yours",
                        node.lineno,
                        name,
                    )
            case ast.Attribute(ctx=ast.Load()):
                _check_host_object(_static(node, local, lookup), node, source)
            case ast.Call(func=ast.Name(id=name), keywords=[_, *_]) if name not in local and lookup(name) is print:
                raise source.error("print takes no keywords in a kernel", node.lineno, name)


def _check_host_object(value: Any, node: ast.Name | ast.Attribute, source: KernelSource) -> None:
    """Refuse tensors, ops and kernels, which know themselves what to write (`in_a_kernel`).

    Raises:
        CompileError: the expression stands for one.
    """
    words = getattr(type(value), "in_a_kernel", None)
    if isinstance(words, str):
        name = node.id if isinstance(node, ast.Name) else node.attr
        raise source.error(words.format(ast.unparse(node), name=name.lower()), node.lineno, name)


def _static(node: ast.expr, local: Collection[str], lookup: Callable[[str], Any]) -> Any:
    """What an expression of names and modules alone stands for; None for any other."""
    if isinstance(node, ast.Name):
        return None if node.id in local else lookup(node.id)
    if isinstance(node, ast.Attribute):
        owner = _static(node.value, local, lookup)
        return getattr(owner, node.attr, None) if isinstance(owner, types.ModuleType) else None
    return None
