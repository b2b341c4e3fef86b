"""A kernel's source text: its syntax tree with true positions, and errors that point into it with a caret."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, TracebackType
from typing import Any

from tilekit.errors import CompileError, location
from tilekit.lang.files import file_of

__all__ = ["KernelSource"]

_WANTED = {"kernel": "a kernel is a function", "function": "a function that kernels call is"}


def _lambda_in(statement: ast.stmt | None, code: CodeType) -> ast.FunctionDef | None:
    """The lambda that a statement has in it, as a function; None if there are several that may be meant."""
    parameters = list(code.co_varnames[: code.co_argcount])
    nodes = ast.walk(statement) if statement is not None else ()
    lambdas = [n for n in nodes if isinstance(n, ast.Lambda) and [a.arg for a in n.args.args] == parameters]
    if len(lambdas) != 1:
        return None
    body = ast.copy_location(ast.Return(lambdas[0].body), lambdas[0])
    function = ast.FunctionDef(name="the_lambda", args=lambdas[0].args, body=[body], decorator_list=[])
    return ast.copy_location(function, lambdas[0])


class KernelSource:
    """Source of a kernel function, or of a function that kernels call.

    Attributes:
        name: the function's.
        title: what messages call it, `kernel softmax`.
        filename: where it stands.
        tree: its definition; line and column numbers are the file's own.
        calls: of a function that a kernel calls, by what calls it is reached, in words; empty for a kernel.
    """

    def __init__(self, function: Callable[..., Any], file: Sequence[str] | None = None, kind: str = "kernel") -> None:
        """Read the source of `function`.

        Args:
            function: the kernel's.
            file: the lines of its file as they were when it was defined (`file_of`); by default as they are now.
            kind: what it is, for messages: a kernel or a function.

        Raises:
            CompileError: there is none to read (a function typed at a prompt, or made by exec), or it is a lambda.
        """
        file = file_of(function) if file is None else file
        self.name, self.filename = function.__name__.replace("<lambda>", "the_lambda"), function.__code__.co_filename
        self.title, self.calls = f"{kind} {self.name}", ""
        self._first = max(function.__code__.co_firstlineno, 1)
        lines = file[self._first - 1 :]
        if not lines:
            raise CompileError(
                f"{self.title}: its source cannot be read ({self.filename}); write it in a file or a notebook cell"
            )
        is_lambda = function.__code__.co_name == "<lambda>"
        try:
            lines = inspect.getblock(lines)
            # An indented definition stands in a block of its own, so that columns are those of the file.
            nested = lines[0][:1].isspace()
            definition: ast.stmt | None = ast.parse(("if True:\n" if nested else "") + "".join(lines)).body[0]
            definition = definition.body[0] if isinstance(definition, ast.If) else definition
            definition = _lambda_in(definition, function.__code__) if is_lambda and kind == "function" else definition
        except (SyntaxError, IndexError):
            definition = None
        if is_lambda and not (kind == "function" and isinstance(definition, ast.FunctionDef)):
            raise CompileError(f"{self.title}: {_WANTED[kind]} defined with def")
        if isinstance(definition, ast.AsyncFunctionDef):
            raise CompileError(
                f"{self.title}: {_WANTED[kind]} defined with def: await belongs on the host, `await {self.name}(...)`"
            )
        if not isinstance(definition, ast.FunctionDef) or (definition.name != function.__code__.co_name and not is_lambda):
            raise CompileError(
                f"{self.title}: {self.filename} has changed since it was imported: line {self._first} is not its definition"
            )
        self._lines = [line.rstrip("\n") for line in lines]
        ast.increment_lineno(definition, self._first - (2 if nested else 1))
        self.tree: ast.FunctionDef = definition

    def part(self, tree: ast.FunctionDef) -> KernelSource:
        """The source of a function that is written inside this one."""
        source = copy.copy(self)
        source.name, source.title, source.tree = tree.name, f"function {tree.name}", tree
        return source

    def called(self, caller: KernelSource, lineno: int) -> KernelSource:
        """This source at one of its calls: its errors name the line of `caller`, and the lines by which that is reached."""
        source = copy.copy(self)
        line = f"line {lineno}" if caller.filename == self.filename else location(caller.filename, lineno)
        source.calls = f", which {caller.title} calls in {line}: {caller._line(lineno).strip()}{caller.calls}"
        return source

    def error(self, reason: str, lineno: int, name: str | None = None) -> CompileError:
        """An error at a line; the caret goes under the use of `name` there (a call, an operator's operands), if it is found."""
        node = self._find(lineno, name)
        if node is None:
            line = self._line(lineno)
            column = len(line) - len(line.lstrip()) if line else None
            return self._error(reason, lineno, column, len(line.strip()) if line else 1)
        width = (node.end_col_offset or 0) - node.col_offset if node.end_lineno == node.lineno else 1
        return self._error(reason, node.lineno, node.col_offset, width)

    def error_from(self, reason: str, traceback: TracebackType | None) -> CompileError:
        """An error at the place in the kernel that `traceback` passed last."""
        last = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self.filename:
                last = traceback
            traceback = traceback.tb_next
        if last is None:
            return CompileError(f"{self.title}: {reason}")
        return self.error_at(reason, last)

    def error_at(self, reason: str, step: TracebackType) -> CompileError:
        """An error at the place that one step of a traceback, in this function, stands at."""
        positions = list(step.tb_frame.f_code.co_positions())
        line, end_line, column, end_column = positions[step.tb_lasti // 2]
        if line is None or column is None or end_column is None:
            return self.error(reason, step.tb_lineno)
        return self._error(reason, line, column, end_column - column if line == end_line else 1)

    def error_of(self, reason: str, line: int, column: int, end_line: int, end_column: int) -> CompileError:
        """An error about what stands from one place to another; columns count the bytes of UTF-8."""
        return self._error(reason, line, column, end_column - column if line == end_line else 1)

    def _error(self, reason: str, lineno: int, column: int | None, width: int) -> CompileError:
        line = self._line(lineno)
        if self.calls:
            reason = f"{reason}; in {self.name}{self.calls}"
        if column is not None:  # Python counts the bytes of UTF-8
            text = line.encode()
            width = len(text[column : column + width].decode(errors="ignore"))
            column = self.column(lineno, column)
        return CompileError(reason, filename=self.filename, lineno=lineno, column=column, width=width, line=line or None)

    def _line(self, lineno: int) -> str:
        at = lineno - self._first
        return self._lines[at] if 0 <= at < len(self._lines) else ""

    def column(self, line: int, offset: int) -> int:
        """The column of what stands behind so many bytes of UTF-8."""
        return len(self._line(line).encode()[:offset].decode(errors="ignore"))

    def text(self, line: int, column: int, end_line: int, end_column: int) -> str:
        """What stands from one place to another, on one line; columns count the bytes of UTF-8."""
        lines = [self._line(number).encode() for number in range(line, end_line + 1)]
        lines[-1] = lines[-1][:end_column]
        lines[0] = lines[0][column:]
        return " ".join(part.decode(errors="ignore").strip() for part in lines)

    def _find(self, lineno: int, name: str | None) -> ast.expr | None:
        """The smallest expression on the line that calls `name` or applies it as an operator; else the one that is the name."""
        if name is None:
            return None
        smallest = None
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.expr) or not node.lineno <= lineno <= (node.end_lineno or node.lineno):
                continue
            if not _uses(node, name):
                continue
            plain = isinstance(node, (ast.Name, ast.Attribute))
            if smallest is None or (
                node.lineno >= smallest.lineno and (not plain or isinstance(smallest, (ast.Name, ast.Attribute)))
            ):
                smallest = node
        return smallest


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
