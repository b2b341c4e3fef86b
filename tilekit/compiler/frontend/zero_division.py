"""Division of scalars by zero on the CPU device: what a GPU gives, where Python would raise.

Integers give 0, by `//` and by `%`, as those of tiles do; floats give what NumPy's do. A copy of the kernel asks here for each
quotient that it makes.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["QUOTIENTS", "Quotients"]


def _guarded(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`function` for all that Python divides, and for what it does not."""

    def quotient(x: Any, y: Any) -> Any:
        try:
            return function(x, y)
        except ZeroDivisionError:
            if function is operator.truediv or isinstance(x, float) or isinstance(y, float):
                return getattr(np, _NUMPY[function])(np.float64(x), np.float64(y)).item()
            return 0

    return quotient


_NUMPY: dict[Any, str] = {operator.truediv: "true_divide", operator.floordiv: "floor_divide", operator.mod: "remainder"}
_OPERATORS: dict[type, str] = {ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod"}

QUOTIENTS = {f"tilekit__{name}": _guarded(getattr(operator, name)) for name in _OPERATORS.values()}
"""What stands for the operators, by the names that the copy has for them."""


class Quotients(ast.NodeTransformer):
    """Puts a call for each quotient; those whose divisor is a constant cannot fail."""

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        name = _OPERATORS.get(type(node.op))
        if name is None or isinstance(node.right, ast.Constant):
            return node
        call = ast.Call(ast.Name(f"tilekit__{name}", ast.Load()), [node.left, node.right], [])
        ast.copy_location(call.func, node)
        return ast.copy_location(call, node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if type(node.op) not in _OPERATORS or not isinstance(node.target, ast.Name):
            return node
        left = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = self.visit_BinOp(ast.copy_location(ast.BinOp(left, node.op, node.value), node))
        return ast.copy_location(ast.Assign([node.target], value), node)
