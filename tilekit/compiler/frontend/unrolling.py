"""The body of a loop that is unrolled: `break` and `continue` become flags, ahead of what is left out behind them.

if c: break                          if c: left = True
a                  becomes           if not left: a
"""

from __future__ import annotations

import ast
import copy

__all__ = ["without_jumps"]

_LEFT, _TURN = "tilekit__left", "tilekit__turn"
_LOOPS = (ast.For, ast.While)


def without_jumps(loop: ast.For | ast.While, number: int) -> tuple[list[ast.stmt], str]:
    """The statements of a turn, and the name of the variable that says whether the loop was left; empty if nothing jumps.

    Args:
        loop: the loop, which stays as it is.
        number: makes the names of its flags its own.
    """
    if not any(map(_jumps, loop.body)):
        return loop.body, ""
    left, turn = f"{_LEFT}{number}", f"{_TURN}{number}"
    body = [_assign(turn, False, loop), *_block(copy.deepcopy(loop.body), left, turn)]
    return [_unless(left, body, loop)], left


def _jumps(node: ast.stmt) -> bool:
    """Whether a statement may leave the turn of the loop that it stands in."""
    if isinstance(node, (ast.Break, ast.Continue)):
        return True
    if isinstance(node, _LOOPS):
        return any(map(_jumps, node.orelse))
    return isinstance(node, ast.If) and any(map(_jumps, (*node.body, *node.orelse)))


def _block(statements: list[ast.stmt], left: str, turn: str) -> list[ast.stmt]:
    for at, node in enumerate(statements):
        if not _jumps(node):
            continue
        if isinstance(node, (ast.Break, ast.Continue)):
            ends = [_assign(turn, True, node)]
            return [*statements[:at], *ends, *([_assign(left, True, node)] if isinstance(node, ast.Break) else [])]
        if isinstance(node, ast.If):
            node.body = _block(node.body, left, turn)
        node.orelse = _block(node.orelse, left, turn)  # type: ignore[attr-defined]
        rest = _block(statements[at + 1 :], left, turn)
        return [*statements[: at + 1], *([_unless(turn, rest, node)] if rest else [])]
    return statements


def _assign(name: str, value: bool, at: ast.stmt) -> ast.stmt:
    return _placed(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)), at)


def _unless(name: str, body: list[ast.stmt], at: ast.stmt) -> ast.stmt:
    test = ast.UnaryOp(ast.Not(), ast.Name(name, ast.Load()))
    return _placed(ast.If(test, body, []), at)


def _placed(statement: ast.stmt, at: ast.stmt) -> ast.stmt:
    for node in ast.walk(statement):
        if isinstance(node, (ast.stmt, ast.expr)) and not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return statement
