"""Python's builtins on tiles, as operations of the language: `min(a, b)` is `tk.minimum(a, b)`, `print(t)` is `tk.print(t)`.

`abs`, `max`, `min` and `round` go element by element; `max`, `min` and `sum` of one tile, of one dimension, fold it as they fold
a tuple. `print` is `tk.print` of whatever there is, `pow` and `divmod` are the operators. What they come to is said once, for
values that the interpreter computes with and for operands of the IR.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tilekit.compiler.frontend.bound import BoundKernel, resolved
from tilekit.compiler.frontend.folding import BINARY
from tilekit.compiler.frontend.zero_division import QUOTIENTS
from tilekit.errors import CompileError
from tilekit.lang import calculation, debug, elementwise, reduction
from tilekit.lang.tile import Tile

__all__ = ["BUILTINS", "NAMES", "Builtins", "Renamed"]

_FOLDS: dict[Any, Callable[..., Any]] = {min: reduction.min_, max: reduction.max_, sum: reduction.sum_}
_PAIRS: dict[Any, Callable[..., Any]] = {min: elementwise.minimum, max: elementwise.maximum}
BUILTINS: tuple[Callable[..., Any], ...] = (min, max, sum, abs, round, pow, divmod, print)
_QUOTIENTS = {ast.FloorDiv: "floordiv", ast.Mod: "mod"}


class Builtins:
    """What calls of `BUILTINS` come to, for values as the interpreter has them."""

    def rank(self, value: Any) -> int | None:
        """The number of a tile's dimensions; None of anything else."""
        return value.ndim if isinstance(value, Tile) else None

    def parts(self, value: Any) -> Sequence[Any] | None:
        """What is in a tuple; None of anything else."""
        return value if isinstance(value, tuple) else None

    def number(self, value: int) -> Any:
        """A constant."""
        return value

    def apply(self, function: Callable[..., Any], *values: Any) -> Any:
        """The result of a function."""
        return function(*values)

    def operate(self, op: type[ast.operator], first: Any, second: Any) -> Any:
        """What an operator gives."""
        return QUOTIENTS[f"tilekit__{_QUOTIENTS[op]}"](first, second) if op in _QUOTIENTS else BINARY[op](first, second)

    def tuple_of(self, *values: Any) -> Any:
        """Several values as one."""
        return values

    def called(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """The result of a builtin."""
        if function is print:
            return self.apply(debug.print_, *values)
        if function is pow and len(values) == 2:
            return self.operate(ast.Pow, *values)
        if function is divmod and len(values) == 2:
            return self.tuple_of(self.operate(ast.FloorDiv, *values), self.operate(ast.Mod, *values))
        first = self.parts(values[0]) if len(values) == 1 or function is sum else None
        listed = values if first is None else first
        if not any(self.rank(value) is not None for value in (*listed, *values)):
            return self.apply(function, *values)
        if function in (abs, round):
            if len(values) > 1:
                raise CompileError(f"{function.__name__}: of a tile it takes nothing else: elements are rounded to integers")
            return self.apply(calculation.abs_ if function is abs else elementwise.round_, values[0])
        if first is None and (len(values) == 1 or function is sum):
            total = self._folded(function, values[0])
            return total if len(values) == 1 else self.operate(ast.Add, values[1], total)
        if function is sum:
            return functools.reduce(
                functools.partial(self.operate, ast.Add), listed, values[1] if len(values) > 1 else self.number(0)
            )
        return functools.reduce(functools.partial(self._paired, function), listed)

    def _folded(self, function: Callable[..., Any], tile: Any) -> Any:
        if (self.rank(tile) or 0) > 1:
            name = function.__name__
            raise CompileError(f"{name}: of a tile with {self.rank(tile)} dimensions say along which: tk.{name}(tile, axis)")
        return self.apply(_FOLDS[function], tile)

    def _paired(self, function: Callable[..., Any], first: Any, second: Any) -> Any:
        numbers = self.rank(first) is None and self.rank(second) is None
        return self.apply(function if numbers else _PAIRS[function], first, second)


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*values: Any, **options: Any) -> Any:
        return function(*values, **options) if options else Builtins().called(function, values)

    return call


NAMES = {f"tilekit__{function.__name__}": _interpreted(function) for function in BUILTINS}
"""What stands for the builtins where a kernel is interpreted, by the names that `Renamed` gives them."""


class Renamed(ast.NodeTransformer):
    """Puts these names into a kernel, or into a function that it calls, where they mean the builtins."""

    def __init__(self, bound: BoundKernel, path: str) -> None:
        for name in path.split("/")[1:]:
            bound = bound.called[name]
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and any(resolved(self.bound, node) is function for function in BUILTINS):
            node.id = f"tilekit__{resolved(self.bound, node).__name__}"
        return node
