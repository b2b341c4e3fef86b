"""Liveness, a data-flow analysis: which variables are read behind each branch and loop, and from the start of each turn."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tilekit.compiler.frontend.bound import stored

__all__ = ["Liveness", "is_endless"]


@dataclass(frozen=True)
class _Loop:
    """The variables that are used after a loop, and those that are used from the start of a turn on."""

    after: set[str]
    again: set[str]


class Liveness:
    """Liveness: which variables are used later, from the end of a function to its start.

    Attributes:
        after: of each `if` and loop, by its identity, what is used after it.
        again: of each loop, what is used from the start of a turn on.
    """

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.after: dict[int, set[str]] = {}
        self.again: dict[int, set[str]] = {}
        self._block(tree.body, set(), None)
        inner = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda)) and n is not tree]
        captured = set[str]().union(*map(_loads, inner))  # a function reads what they are when it is called
        for used in (*self.after.values(), *self.again.values()):
            used |= captured

    def _block(self, statements: list[ast.stmt], used: set[str], loop: _Loop | None) -> set[str]:
        for statement in reversed(statements):
            used = self._statement(statement, used, loop)
        return used

    def _statement(self, node: ast.stmt, used: set[str], loop: _Loop | None) -> set[str]:
        match node:
            case ast.If():
                self.after[id(node)] = used
                return _loads(node.test) | self._block(node.body, used, loop) | self._block(node.orelse, used, loop)
            case ast.While():
                return self._loop(node, _loads(node.test), set(), used, loop)
            case ast.For():
                return self._loop(node, set(), stored(ast.walk(node.target)), used, loop) | _loads(node.iter)
            case ast.Break() | ast.Continue():
                assert loop is not None, "Python's grammar"
                return loop.after if isinstance(node, ast.Break) else loop.again
            case ast.Return():
                return _loads(node)
            case ast.FunctionDef():
                return (used - {node.name}) | _loads(node)
        reads = stored([node.target]) if isinstance(node, ast.AugAssign) else set()
        return (used - stored(ast.walk(node))) | _loads(node) | reads

    def _loop(self, node: ast.For | ast.While, head: set[str], own: set[str], used: set[str], loop: _Loop | None) -> set[str]:
        """Of a loop that reads `head` at the start of each turn and sets `own`."""
        self.after[id(node)] = used
        again = head if is_endless(node) else head | self._block(node.orelse, used, loop)
        while (wider := again | (self._block(node.body, again, _Loop(used, again)) - own)) != again:
            again = wider
        self.again[id(node)] = again
        return again


def is_endless(node: ast.For | ast.While) -> bool:
    """Whether a loop ends by `break` or `return` alone."""
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)


def _loads(tree: ast.AST) -> set[str]:
    """The names that a tree reads, but those of comprehensions, which nobody else has (`desugar`)."""
    nodes = list(ast.walk(tree))
    own = stored(part for one in nodes if isinstance(one, ast.comprehension) for part in ast.walk(one.target))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - own
