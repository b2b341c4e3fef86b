"""Type checks where paths join: a variable keeps its shape and dtype, on the CPU device as well as in numba's type inference.

Where paths through a kernel meet (after an `if`, at the start of each turn of a loop), a variable that is used later must be the
same kind of thing by whichever path it came. numba sees that in the types. On the CPU device Python runs the kernel, so a copy
of it looks at such variables each time it comes by, in every block of a launch; variables that are assigned anew before they are
used may be anything.
"""

from __future__ import annotations

import ast
import weakref
from typing import Any

from tilekit.compiler.frontend.bound import BoundKernel, stored
from tilekit.compiler.frontend.liveness import Liveness, is_endless
from tilekit.compiler.frontend.zero_division import QUOTIENTS, Quotients
from tilekit.errors import CompileError
from tilekit.lang import block
from tilekit.lang.tile import Tile, scalar_kind

__all__ = ["KEEPS", "checked"]

KEEPS = (
    "on every path through the kernel, and each time round a loop, a variable keeps its shape and dtype; cast with "
    ".astype(...), or start from tk.zeros of the right shape and dtype"
)

_LOOK, _CHOSEN, _LOCALS = "tilekit__look", "tilekit__chosen", "tilekit__locals"
_checked: weakref.WeakKeyDictionary[BoundKernel, BoundKernel] = weakref.WeakKeyDictionary()


def checked(bound: BoundKernel) -> BoundKernel:
    """A kernel for the CPU device to run: a CompileError where a variable is one thing on one path and another on another."""
    instrumented = _checked.get(bound)
    if instrumented is None:
        cells = {_LOOK: _look, _CHOSEN: _chosen, _LOCALS: locals, **QUOTIENTS}
        instrumented = _checked[bound] = bound.changed(
            lambda path, tree: Quotients().visit(_Joins(path, tree).visit(tree)), cells
        )
    return instrumented


# -------------------------------------------------------------------------------------------------------------- while it runs


def _look(site: str, name: str, variables: dict[str, Any]) -> None:
    """Compare a variable with what it was when this place was passed before, in this launch; it may have no value yet."""
    if name in variables:
        _compare((site, name), name, variables[name])


def _chosen(site: str, value: Any) -> Any:
    """The same of a value without a name: of `a if b else c`, or returned."""
    _compare((site, ""), "the value", value)
    return value


def _compare(key: tuple[str, str], name: str, value: Any) -> None:
    running = block.current()
    assert running is not None, "a kernel runs"
    kind = _kind(value)
    before = running.kinds.setdefault(key, kind)
    if _clash(before, kind):
        raise CompileError(f"{name} is {_described(before)} and {_described(kind)}: {KEEPS}")


def _kind(value: Any) -> Any:
    """What must stay the same: of a tile dtype and shape."""
    if isinstance(value, Tile):
        return value.dtype, value.shape
    if isinstance(value, tuple):
        return [_kind(v) for v in value]
    return scalar_kind(value) or type(value)


def _clash(before: Any, kind: Any) -> bool:
    """Whether these cannot be one variable, for the sake of a tile: a scalar may be now an int, now a float."""
    if isinstance(before, list) and isinstance(kind, list) and len(before) == len(kind):
        return any(map(_clash, before, kind))
    return before != kind and (_holds_tile(before) or _holds_tile(kind))


def _holds_tile(kind: Any) -> bool:
    return any(map(_holds_tile, kind)) if isinstance(kind, list) else isinstance(kind, tuple)


def _described(kind: Any) -> str:
    if isinstance(kind, tuple):
        return f"a {kind[0].name} tile of shape {kind[1]}"
    if isinstance(kind, list):
        return f"a tuple of {len(kind)}: {', '.join(map(_described, kind))}"
    if kind in (bool, int, float):
        return f"a scalar ({kind.__name__})"
    return "None" if kind is type(None) else f"a {kind.__name__}"


# ------------------------------------------------------------------------------------------------------------- where paths meet


class _Joins(ast.NodeTransformer):
    """Puts checks into a function."""

    def __init__(self, path: str, tree: ast.FunctionDef) -> None:
        self.path, self.uses, self.count = path, Liveness(tree), 0
        self.loops: list[list[ast.stmt]] = []
        self.tree = tree

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self.generic_visit(node) if node is self.tree else node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node  # what it is called with is an operation's to decide

    def visit_If(self, node: ast.If) -> Any:
        after = self._checks(node, self.uses.after, self._next_site())
        self.generic_visit(node)
        return [node, *after]

    def visit_For(self, node: ast.For) -> Any:
        return self._loop(node)

    def visit_While(self, node: ast.While) -> Any:
        return self._loop(node)

    def _loop(self, node: ast.For | ast.While) -> Any:
        site = self._next_site()
        turn = self._checks(node, self.uses.again, site)
        # What a loop ends with is what its next turn would have found; unless `else` comes first, or it ends by `break` alone.
        after = self._checks(node, self.uses.after, self._next_site() if node.orelse or is_endless(node) else site)
        self.loops.append(turn)
        node.body = [visited for statement in node.body for visited in _listed(self.visit(statement))] + turn
        self.loops.pop()
        node.orelse = [visited for statement in node.orelse for visited in _listed(self.visit(statement))]
        return [*turn, node, *after]

    def visit_Continue(self, node: ast.Continue) -> Any:
        return [*self.loops[-1], node]

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        if node.value is not None:
            node.value = self._call(_CHOSEN, [ast.Constant(f"{self.path}:return"), node.value], node.value)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        return self._call(_CHOSEN, [ast.Constant(self._next_site()), node], node)

    def _checks(self, node: ast.If | ast.For | ast.While, used: dict[int, set[str]], site: str) -> list[ast.stmt]:
        """Of the variables that a statement assigns to and that are used."""
        own = stored(ast.walk(node.target)) if isinstance(node, ast.For) else set()
        return [self._check(site, name, node) for name in sorted(used[id(node)] & stored(ast.walk(node)) - own)]

    def _check(self, site: str, name: str, within: ast.stmt) -> ast.stmt:
        """A check of a variable, at the last place inside a statement that assigns to it: errors point there."""
        stores = [n for n in ast.walk(within) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
        at = max(stores, key=lambda n: (n.lineno, n.col_offset))
        variables = ast.Call(ast.Name(_LOCALS, ast.Load()), [], [])
        return ast.copy_location(ast.Expr(self._call(_LOOK, [ast.Constant(site), ast.Constant(name), variables], at)), at)

    def _call(self, function: str, arguments: list[ast.expr], at: ast.expr) -> ast.Call:
        call = ast.Call(ast.Name(function, ast.Load()), arguments, [])
        for node in ast.walk(call):
            if isinstance(node, ast.expr) and not hasattr(node, "lineno"):
                ast.copy_location(node, at)
        return call

    def _next_site(self) -> str:
        self.count += 1
        return f"{self.path}:{self.count}"


def _listed(nodes: Any) -> list[ast.stmt]:
    return nodes if isinstance(nodes, list) else [nodes]
