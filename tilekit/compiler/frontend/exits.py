"""Structured exits: the `else` of a loop that may `break`, and a `return` from inside a loop of a helper, by way of flags.

for ...:                            broken = False
    if c: break                     for ...:
else:                  becomes          if c: broken = True; break
    a                               if not broken: a

for ...:                            returned = False
    if c: return x                  for ...:
                       becomes          if c: result = x; returned = True; break
                                    if returned: return result
"""

from __future__ import annotations

import ast
import copy

__all__ = ["structured"]

_BROKEN, _RETURNED, _RESULT = "tilekit__broken", "tilekit__returned", "tilekit__result"
_LOOPS = (ast.For, ast.While)


def structured(definition: ast.FunctionDef, *, returns: bool) -> ast.FunctionDef:
    """A function without such exits; the same one if it has none.

    Args:
        definition: its tree, which stays as it is.
        returns: whether its returns are looked at: a kernel's end the kernel, and stay.
    """
    loops = [node for node in ast.walk(definition) if isinstance(node, _LOOPS)]
    leaves = returns and any(map(_returns, loops))
    if not leaves and not any(loop.orelse and _jumps(loop) for loop in loops):
        return definition
    definition = copy.deepcopy(definition)
    if leaves:
        start = _assign(_RETURNED, ast.Constant(False), definition.body[0])
        definition.body = [start, *_block(definition.body, within=False)]
    definition.body = _Elses().block(definition.body)
    return definition


def _jumps(loop: ast.For | ast.While) -> bool:
    """Whether a loop may be left by a `break` of its own."""
    waiting: list[ast.stmt] = list(loop.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, ast.If):
            waiting += [*statement.body, *statement.orelse]
        elif isinstance(statement, _LOOPS):
            waiting += statement.orelse
    return False


def _returns(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Return) for inner in ast.walk(node))


def _assign(name: str, value: ast.expr, at: ast.stmt) -> ast.stmt:
    statement = ast.Assign([ast.Name(name, ast.Store())], value)
    for node in ast.walk(statement):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return statement


def _test(name: str, body: list[ast.stmt], at: ast.stmt, *, holds: bool = True) -> ast.If:
    flag: ast.expr = ast.copy_location(ast.Name(name, ast.Load()), at)
    test = flag if holds else ast.copy_location(ast.UnaryOp(ast.Not(), flag), at)
    return ast.copy_location(ast.If(test, body, []), at)


class _Elses:
    """Gives each loop with `break` and `else` a flag of its own."""

    def __init__(self) -> None:
        self.count = 0

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [rewritten for statement in statements for rewritten in self.statement(statement)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.If | ast.For | ast.While):
            node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        if not isinstance(node, _LOOPS) or not node.orelse or not _jumps(node):
            return [node]
        self.count += 1
        flag = f"{_BROKEN}{self.count}"
        node.body = _before_breaks(node.body, flag)
        otherwise, node.orelse = node.orelse, []
        return [_assign(flag, ast.Constant(False), node), node, _test(flag, otherwise, node, holds=False)]


def _before_breaks(statements: list[ast.stmt], flag: str) -> list[ast.stmt]:
    """The body of a loop in which each `break` of its own sets a flag."""
    rewritten: list[ast.stmt] = []
    for statement in statements:
        if isinstance(statement, ast.Break):
            rewritten.append(_assign(flag, ast.Constant(True), statement))
        elif isinstance(statement, ast.If):
            statement.body = _before_breaks(statement.body, flag)
            statement.orelse = _before_breaks(statement.orelse, flag)
        elif isinstance(statement, _LOOPS):
            statement.orelse = _before_breaks(statement.orelse, flag)
        rewritten.append(statement)
    return rewritten


def _block(statements: list[ast.stmt], *, within: bool) -> list[ast.stmt]:
    """Statements whose returns leave `within` a loop by a flag."""
    rewritten: list[ast.stmt] = []
    for statement in statements:
        if isinstance(statement, ast.Return) and within:
            value = statement.value or ast.copy_location(ast.Constant(None), statement)
            rewritten += [_assign(_RESULT, value, statement), _assign(_RETURNED, ast.Constant(True), statement)]
            rewritten.append(ast.copy_location(ast.Break(), statement))
            continue
        rewritten.append(statement)
        if isinstance(statement, ast.If):
            statement.body = _block(statement.body, within=within)
            statement.orelse = _block(statement.orelse, within=within)
        elif isinstance(statement, _LOOPS) and _returns(statement):
            statement.body = _block(statement.body, within=True)
            statement.orelse = _block(statement.orelse, within=within)
            result = ast.copy_location(ast.Name(_RESULT, ast.Load()), statement)
            leave: list[ast.stmt] = [ast.copy_location(ast.Return(result), statement)]
            if within:
                leave = [ast.copy_location(ast.Break(), statement)]
            rewritten.append(_test(_RETURNED, leave, statement))
    return rewritten
