"""The text of a kernel: its syntax tree with true positions, and errors that point into it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tilekit.errors import CompileError

__all__ = ["KernelSource"]


class KernelSource:
    """Source of a kernel function.

    Attributes:
        name: the function's.
        filename: where it stands.
        tree: its definition; line and column numbers are the file's own.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the source of `function`.

        Raises:
            CompileError: there is none to read (a function typed at a prompt, or made by exec), or it is a lambda.
        """
        self.name, self.filename = function.__name__, function.__code__.co_filename
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise CompileError(
                f"kernel {self.name}: its source cannot be read ({self.filename}); write it in a file or a notebook cell"
            ) from None
        first = max(first, 1)
        self._first, self._lines = first, [line.rstrip("\n") for line in lines]
        indent = len(lines[0]) - len(lines[0].lstrip())
        text = textwrap.dedent("".join(lines))
        try:
            definition = ast.parse(text).body[0]
        except SyntaxError:
            definition = None
        if not isinstance(definition, ast.FunctionDef):
            raise CompileError(f"kernel {self.name}: a kernel is a function defined with def")
        for node in ast.walk(definition):
            if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword)):
                node.lineno += first - 1
                node.col_offset += indent
                node.end_lineno = (node.end_lineno or 1) + first - 1
                node.end_col_offset = (node.end_col_offset or 0) + indent
        self.tree: ast.FunctionDef = definition

    def error(self, reason: str, lineno: int, name: str | None = None) -> CompileError:
        """An error at a line; the caret goes under the use of `name` there (a call, an operator's operands), if it is found."""
        place = self._find(lineno, name)
        if place is None:
            line = self._line(lineno)
            column = len(line) - len(line.lstrip()) if line else None
            return self._error(reason, lineno, column, len(line.strip()) if line else 1)
        width = (place.end_col_offset or 0) - place.col_offset if place.end_lineno == place.lineno else 1
        return self._error(reason, place.lineno, place.col_offset, width)

    def error_from(self, reason: str, traceback: TracebackType | None) -> CompileError:
        """An error at the place in the kernel that `traceback` passed last."""
        found = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self.filename:
                found = traceback
            traceback = traceback.tb_next
        if found is None:
            return CompileError(f"kernel {self.name}: {reason}")
        positions = list(found.tb_frame.f_code.co_positions())
        line, end_line, column, end_column = positions[found.tb_lasti // 2]
        if line is None or column is None or end_column is None:
            return self.error(reason, found.tb_lineno)
        return self._error(reason, line, column, end_column - column if line == end_line else 1)

    def _error(self, reason: str, lineno: int, column: int | None, width: int) -> CompileError:
        return CompileError(
            reason, filename=self.filename, lineno=lineno, column=column, width=width, line=self._line(lineno) or None
        )

    def _line(self, lineno: int) -> str:
        at = lineno - self._first
        return self._lines[at] if 0 <= at < len(self._lines) else ""

    def _find(self, lineno: int, name: str | None) -> ast.expr | None:
        """The smallest expression on the line that uses `name`."""
        if name is None:
            return None
        found = None
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.expr) or not node.lineno <= lineno <= (node.end_lineno or node.lineno):
                continue
            if _uses(node, name) and (found is None or node.lineno >= found.lineno):
                found = node
        return found


_OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.MatMult: "@",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Invert: "~", ast.USub: "-",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def _uses(node: ast.expr, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=called)) | ast.Call(func=ast.Attribute(attr=called)):
            return called == name
        case ast.BinOp(op=operator) | ast.UnaryOp(op=operator):
            return _OPERATORS.get(type(operator)) == name
        case ast.Compare(ops=operators):
            return any(_OPERATORS.get(type(operator)) == name for operator in operators)
        case ast.Name(id=used) | ast.Attribute(attr=used):
            return used == name
    return False
