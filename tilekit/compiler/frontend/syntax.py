"""Syntax checks: statements of Python that a kernel cannot have, refused before anything is compiled. No numba here."""

from __future__ import annotations

import ast

from tilekit.compiler.frontend.source import KernelSource

__all__ = ["NOT_CALLED", "NOT_UNPACKED", "TOO_FEW", "WRONG_LENGTH", "check_syntax"]

# What only types or values tell: the words for both devices.
NOT_CALLED = "what is called here is no function: kernels call tile operations (tk.*), functions of math, and functions of yours"
NOT_UNPACKED = "only tuples can be unpacked in a kernel"
WRONG_LENGTH = "there are {wanted} names to assign to, and the tuple has another number of values"
TOO_FEW = "there are {wanted} names to assign to, and the tuple has fewer values"

_NO_ERRORS = "kernels cannot raise or catch exceptions; tk.assert_(condition, 'why') stops the launch"
_NO_ASYNC = "a kernel is a plain function: async, await and yield belong on the host"
_NO_SCOPE = "a kernel sees module and enclosing variables as constants: it cannot assign to them"

_REFUSED: dict[type[ast.AST], str] = {
    ast.Try: _NO_ERRORS,
    ast.TryStar: _NO_ERRORS,
    ast.Raise: _NO_ERRORS,
    ast.With: "a with block does not exist in kernels: write its lines without it",
    ast.AsyncWith: _NO_ASYNC,
    ast.AsyncFor: _NO_ASYNC,
    ast.AsyncFunctionDef: _NO_ASYNC,
    ast.Await: _NO_ASYNC,
    ast.Yield: _NO_ASYNC,
    ast.YieldFrom: _NO_ASYNC,
    ast.Global: _NO_SCOPE,
    ast.Nonlocal: _NO_SCOPE,
    ast.ClassDef: "a class cannot be defined in a kernel: put values together in tuples",
    ast.Import: "a kernel cannot import: import at the top of the file",
    ast.ImportFrom: "a kernel cannot import: import at the top of the file",
    ast.Delete: "del does not exist in kernels",
    ast.Match: "match does not exist in kernels: use if and elif",
    ast.Dict: "dictionaries do not exist in kernels: use a name for each value, or a tuple",
    ast.DictComp: "dictionaries do not exist in kernels: use a name for each value, or a tuple",
    ast.Set: "sets do not exist in kernels: use a tuple",
    ast.SetComp: "sets do not exist in kernels: use a tuple",
    ast.JoinedStr: "formatted strings do not exist in kernels: pass the parts to tk.print one by one, tk.print('x', x)",
}


def check_syntax(source: KernelSource, *, returns: bool = False) -> None:
    """Refuse a kernel that uses Python which has no meaning on a GPU.

    Args:
        source: the kernel's, or that of a function that kernels call.
        returns: whether it may return a value, as such a function may.

    Raises:
        CompileError: it points at the first such statement.
    """
    for statement in source.tree.body:
        _check(statement, source, nested=returns)


def _check(node: ast.AST, source: KernelSource, *, nested: bool) -> None:
    """Check a statement or expression and what is in it, in the order of the text; `nested` where values may be returned."""
    reason = _REFUSED.get(type(node)) or _refused_target(node) or _refused_walrus(node)
    if isinstance(node, ast.Return) and not nested and node.value is not None and not _is_none(node.value):
        reason = "a kernel returns nothing: store the result into a partition, with y.store(...)"
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.BinOp, ast.Compare)):
        reason = f"{ast.unparse(node)} is computed and dropped: store it, with y.store(...), or assign it to a name"
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        reason = _refused_function(node)
    if reason:
        raise source.error(reason, getattr(node, "lineno", source.tree.lineno))
    nested = nested or isinstance(node, ast.FunctionDef)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg is None and isinstance(child.value, ast.Dict):
            for value in child.value.values:  # see `arguments`
                _check(value, source, nested=nested)
            continue
        _check(child, source, nested=nested)


def _refused_target(node: ast.AST) -> str | None:
    """What a kernel cannot assign to."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return (
            f"{ast.unparse(node)} cannot be assigned to: a kernel assigns to variables, and writes to tensors with .store(...) "
            "and tk.store"
        )
    return None


def _refused_walrus(node: ast.AST) -> str | None:
    """What a kernel cannot assign to in an expression: it may be skipped there, or is looked at more than once."""
    match node:
        case ast.IfExp(body=first, orelse=second):
            parts: list[ast.AST] = [first, second]
        case ast.BoolOp(values=[_, *rest]):
            parts = [*rest]
        case ast.Compare(ops=[_, _, *_]) | ast.Lambda() | ast.comprehension():
            parts = [node]
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            parts = [element]
        case _:
            return None
    assigned = next((inner for part in parts for inner in ast.walk(part) if isinstance(inner, ast.NamedExpr)), None)
    if assigned is None:
        return None
    return f"{ast.unparse(assigned)} stands where it may not be reached, or more than once: assign in a line of its own"


def _refused_function(node: ast.FunctionDef | ast.Lambda) -> str | None:
    """What a function inside a kernel cannot have."""
    if node.args.kwarg:
        return f"**{node.args.kwarg.arg} does not exist in kernels, which have no dictionaries: give each parameter a name"
    name = node.name if isinstance(node, ast.FunctionDef) else None
    if any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node)):
        return f"{name} calls itself: recursion does not exist in kernels; write a loop"
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
