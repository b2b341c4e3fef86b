"""Forms of Python that are others, written shorter: each becomes the other one before anything is looked at.

    [a, b]                             (a, b)
    [f(i) for i in t if i > 1]         tuple(f(i) for i in t if i > 1)
    a, *rest = t                       a, *rest = t; rest = tuple(rest)
    for i in reversed(range(a, b))     for i in range(b - 1, a - 1, -1)
    assert x > 0, "why"                tk.assert_(x > 0, "why")

Nothing in a kernel changes, so a list is a tuple. What a comprehension counts with has a name of its own, as in Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tilekit.lang import debug

__all__ = ["ASSERTION", "STANDING_FOR", "desugared"]

_TAKING_RANGES = (tuple, sum, min, max, any, all)
_TUPLE, ASSERTION = "tilekit__tuple", "tilekit__assert"
STANDING_FOR: dict[str, Any] = {_TUPLE: tuple, ASSERTION: debug.assert_}
"""What the names that are put in stand for."""


def desugared(statements: list[ast.stmt], static: Callable[[ast.expr], Any]) -> list[ast.stmt]:
    """Statements without such forms.

    Args:
        statements: which are changed in place.
        static: what a name from outside stands for.
    """
    return _Desugar(static).block(statements)


class _Desugar(ast.NodeTransformer):
    def __init__(self, static: Callable[[ast.expr], Any]) -> None:
        self.static, self.count = static, 0

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        rewritten: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            rewritten.extend(result if isinstance(result, list) else [result])
        return rewritten

    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(ast.Tuple(node.elts, node.ctx), node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        return [node, *self._tuples(node.targets)]

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.iter = self._forwards(node.iter)
        self.generic_visit(node)
        node.body = [*self._tuples([node.target]), *node.body]
        return node

    def _tuples(self, targets: list[ast.expr]) -> list[ast.stmt]:
        """What makes tuples of the lists that Python makes of `*rest`."""
        starred = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Starred)]
        names = [part.value for part in starred if isinstance(part.value, ast.Name)]
        return [
            _placed(ast.Assign([ast.Name(name.id, ast.Store())], _call(_TUPLE, ast.Name(name.id, ast.Load()))), name)
            for name in names
        ]

    def _forwards(self, node: ast.expr) -> ast.expr:
        """`reversed(range(...))` as a range that counts down."""
        match node:
            case ast.Call(func=function, args=[ast.Call(func=inner, args=[*bounds], keywords=[])], keywords=[]):
                if self.static(function) is not reversed or self.static(inner) is not range or len(bounds) not in (1, 2):
                    return node
            case _:
                return node
        first, last = bounds if len(bounds) == 2 else (ast.Constant(0), bounds[0])
        down = [ast.BinOp(bound, ast.Sub(), ast.Constant(1)) for bound in (last, first)]
        counted: ast.expr = _placed(ast.Call(inner, [*down, ast.UnaryOp(ast.USub(), ast.Constant(1))], []), node)
        return counted

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.generic_visit(node)
        said = [] if node.msg is None else [node.msg]
        statement: ast.stmt = _placed(ast.Expr(_call(ASSERTION, node.test, *said)), node)
        return statement

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if any(self.static(node.func) is taking for taking in _TAKING_RANGES):
            node.args = [self._written_out(argument) for argument in node.args]
        self.generic_visit(node)
        return node

    def _written_out(self, node: ast.expr) -> ast.expr:
        """A range as what it counts."""
        if not isinstance(node, ast.Call) or self.static(node.func) is not range:
            return node
        each = ast.comprehension(ast.Name("n", ast.Store()), node, [], 0)
        counted: ast.expr = _placed(ast.GeneratorExp(ast.Name("n", ast.Load()), [each]), node)
        return counted

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        return self.visit_GeneratorExp(ast.copy_location(ast.GeneratorExp(node.elt, node.generators), node))

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        self.count += 1
        own = {
            part.id
            for generator in node.generators
            for part in ast.walk(generator.target)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        first = node.generators[0].iter  # which sees the names outside
        for part in (node.elt, *node.generators):
            for inner in ast.walk(part):
                if isinstance(inner, ast.Name) and inner.id in own and inner not in [*ast.walk(first)]:
                    inner.id = f"tilekit__{inner.id}{self.count}"
        for generator in node.generators:
            generator.iter = self._forwards(generator.iter)
        self.generic_visit(node)
        listed: ast.expr = _placed(_call(_TUPLE, node), node)
        return listed


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _placed(node: Any, at: ast.AST) -> Any:
    """The node, of which what is new stands where another node does."""
    for part in ast.walk(node):
        if isinstance(part, (ast.expr, ast.stmt)) and not hasattr(part, "lineno"):
            ast.copy_location(part, at)
    return node
