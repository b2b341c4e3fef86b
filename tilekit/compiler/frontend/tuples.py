"""Parameters that are tuples of others: the names of these, and the statement that puts them together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

__all__ = ["names_of", "put_together"]


def names_of(names: Any) -> Iterator[str]:
    """The names in a tuple of such, in order; of None none."""
    if isinstance(names, tuple):
        for part in names:
            yield from names_of(part)
    elif names is not None:
        yield names


def put_together(parameter: ast.arg, names: Any) -> ast.stmt:
    """A parameter's value, of other parameters: tuples of their names, and None for None."""

    def value(names: Any) -> ast.expr:
        if isinstance(names, tuple):
            return ast.Tuple([value(part) for part in names], ast.Load())
        return ast.Constant(None) if names is None else ast.Name(names, ast.Load())

    statement = ast.Assign([ast.Name(parameter.arg, ast.Store())], value(names))
    for node in ast.walk(statement):
        if isinstance(node, (ast.expr, ast.stmt)):
            ast.copy_location(node, parameter)
    return statement
