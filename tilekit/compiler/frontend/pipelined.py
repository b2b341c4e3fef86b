"""Loops over `tk.pipelined` in the text of a kernel: what may stand in them, and what they are without rings of stages.

`plain` makes them loops that load a tile of each stream in each turn. Rings are made of the IR, see `passes.rings`.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import replace
from typing import Any

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.frontend.bound import BoundKernel, resolved
from tilekit.compiler.frontend.folding import MISSING, value_of
from tilekit.compiler.frontend.source import KernelSource
from tilekit.errors import CompileError
from tilekit.lang import pipelines
from tilekit.lang.pipelines import check_rotate, check_split, check_stages, check_warp_specialize

__all__ = ["check_call", "pipelined_loops", "plain"]

_OPTIONS = {
    "stages": check_stages,
    "warp_specialize": check_warp_specialize,
    "rotate": check_rotate,
    "split": check_split,
}


def check_call(source: KernelSource, call: ast.Call, *, looped: bool) -> None:
    """Refuse a call of `tk.pipelined` whose place or options are wrong; `looped` if a `for` statement goes over it.

    Raises:
        CompileError: it points at the call.
    """
    values = {k.arg: k.value for k in call.keywords}
    try:
        if not looped:
            raise CompileError(f"pipelined: {pipelines.PLACE}")
        if None in values or any(isinstance(stream, ast.Starred) for stream in call.args):
            raise CompileError("pipelined: the streams and options are written out: *args and **kwargs do not exist in kernels")
        if not call.args:
            raise CompileError(f"pipelined: {pipelines.NO_STREAMS}")
        for name, check in _OPTIONS.items():
            value = value_of(values.pop(name, ast.Constant(None)))
            if value is MISSING:
                raise CompileError(f"pipelined: {name} is a constant, known when the kernel is compiled")
            check(value, "pipelined")
        if values:
            *others, last = _OPTIONS
            raise CompileError(f"pipelined: there is no option {next(iter(values))}; there are {', '.join(others)} and {last}")
    except CompileError as error:
        raise source.error(error.reason, call.lineno, "pipelined") from None


def pipelined_loops(bound: BoundKernel) -> list[ast.For]:
    """The loops over `tk.pipelined` of a kernel, and of the functions that it calls."""
    own = [node for node in ast.walk(bound.definition) if isinstance(node, ast.For) and _is_pipelined(bound, node.iter)]
    return own + [loop for function in bound.called.values() for loop in pipelined_loops(function)]


def _is_pipelined(bound: BoundKernel, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and resolved(bound, node.func) is pipelines.pipelined


_STEPS = {"tilekit__steps": intrinsics.steps, "tilekit__nth": intrinsics.nth}


def plain(bound: BoundKernel) -> BoundKernel:
    """The kernel without software pipelining: loops that load as they go."""
    if not pipelined_loops(bound):
        return bound
    rewritten = bound.changed(lambda path, tree: _Loads(bound, path).visit(tree), _STEPS)
    return replace(rewritten, cells={**bound.cells, **_STEPS})


class _Loads(ast.NodeTransformer):
    """Makes pipelines loops that load as they go."""

    def __init__(self, bound: BoundKernel, path: str) -> None:
        for name in path.split("/")[1:]:
            bound = bound.called[name]
        self.bound, self.count = bound, 0

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        if not _is_pipelined(self.bound, node.iter):
            return node
        assert isinstance(node.iter, ast.Call), "a call of tk.pipelined"
        name, self.count = f"tilekit__stream{self.count}", self.count + 1
        rows = [f"{name}_{at}" for at, _ in enumerate(node.iter.args)]

        def call(function: str, *arguments: str) -> ast.expr:
            return ast.Call(ast.Name(function, ast.Load()), [ast.Name(argument, ast.Load()) for argument in arguments], [])

        def assignment(target: ast.expr, value: ast.expr) -> ast.stmt:
            return ast.Assign([target], value)

        index = f"{name}_k"
        tiles = [call("tilekit__nth", row, index) for row in rows]
        get = assignment(copy.deepcopy(node.target), tiles[0] if len(tiles) == 1 else ast.Tuple(tiles, ast.Load()))
        before = [assignment(ast.Name(row, ast.Store()), stream) for row, stream in zip(rows, node.iter.args, strict=True)]
        turns = ast.Call(ast.Name("range", ast.Load()), [call("tilekit__steps", *rows)], [])
        loop = ast.For(ast.Name(index, ast.Store()), turns, [get, *node.body], node.orelse)
        for statement in (*before, loop):
            for part in ast.walk(statement):
                if isinstance(part, (ast.expr, ast.stmt)) and not hasattr(part, "lineno"):
                    ast.copy_location(part, node)
        return [*before, loop]
