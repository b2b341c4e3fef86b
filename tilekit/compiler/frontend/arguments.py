"""Arguments of calls: stars over what stands there or is a constant are written out, ahead of anything else.

`f(a, *(b, 2))` is `f(a, b, 2)`, and `f(a, **OPTIONS)` has a keyword for each entry of a dictionary of the module. How many values
another tuple has, types tell: its star stays, and the function is called with it as Python calls it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilekit.compiler.frontend.folding import MISSING, literal, value_of
from tilekit.errors import CompileError

__all__ = ["has_stars", "is_variadic", "kept_parameters", "options_of", "parameters_of", "written_out"]


def has_stars(node: ast.Call) -> bool:
    """Whether a call has a tuple of arguments whose length is not known yet."""
    return any(isinstance(argument, ast.Starred) for argument in node.args)


def written_out(arguments: Sequence[ast.expr], visit: Callable[[ast.expr], Any]) -> Iterator[ast.expr]:
    """Arguments, with those of a tuple that stands behind a star; `visit` puts constants into another."""
    for argument in arguments:
        if not isinstance(argument, ast.Starred):
            yield argument
            continue
        if not isinstance(argument.value, ast.Tuple):
            argument.value = visit(argument.value)
        value = value_of(argument.value)
        if isinstance(argument.value, ast.Tuple):
            yield from written_out(argument.value.elts, visit)
        elif isinstance(value, tuple):
            yield from (literal(one, argument) for one in value)
        else:
            yield argument


def options_of(keyword: ast.keyword, lookup: Callable[[ast.expr], Any]) -> Mapping[str, Any]:
    """The entries of the dictionary that stands behind `**`: expressions of one that is written there, else values.

    Args:
        keyword: the argument.
        lookup: what a name of the module's stands for.

    Raises:
        CompileError: its entries are not known, or are no names of parameters.
    """
    node = keyword.value
    entries: Any = lookup(node)
    if isinstance(node, ast.Dict):
        names = [MISSING if key is None else value_of(key) for key in node.keys]
        entries = None if MISSING in names else dict(zip(names, node.values, strict=True))
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in entries):
        raise CompileError(
            f"**{ast.unparse(node)}: what stands behind ** is a dictionary of the module, or is written there, with names for "
            "its keys: a kernel has no other dictionaries; write the keywords out, name=value"
        )
    return entries


def kept_parameters(tree: ast.arguments, put_in: Mapping[str, Any], defaults: Mapping[str, ast.expr]) -> ast.arguments:
    """The parameters of a function that is called with a star: all but those that have a value, with their defaults."""
    before = [*tree.posonlyargs, *tree.args]
    positional = [ast.copy_location(ast.arg(a.arg), a) for a in before if a.arg not in put_in]
    only = [ast.copy_location(ast.arg(a.arg), a) for a in tree.kwonlyargs if a.arg not in put_in]
    return ast.arguments(
        posonlyargs=[],
        args=positional,
        vararg=None if tree.vararg is None else ast.copy_location(ast.arg(tree.vararg.arg), tree.vararg),
        kwonlyargs=only,
        kw_defaults=[defaults.get(a.arg) for a in only],
        defaults=[defaults[a.arg] for a in positional if a.arg in defaults],
    )


def parameters_of(tree: ast.arguments) -> list[ast.arg]:
    """The parameters of a function, in order."""
    return [*tree.posonlyargs, *tree.args, *([] if tree.vararg is None else [tree.vararg]), *tree.kwonlyargs]


def is_variadic(signature: inspect.Signature) -> bool:
    """Whether a function takes any number of arguments."""
    return any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
