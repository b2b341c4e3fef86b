"""Functions of the user's that operations are given: what one makes of elements, as code at each place that asks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu import elementwise, integral, questions, transcendental
from tilekit.compiler.cpu.registry import LOWERINGS
from tilekit.compiler.cpu.tiles import Tile, of_value, one
from tilekit.compiler.cpu.values import Unsupported
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.ir.build import build_function
from tilekit.compiler.ir.nodes import Operation, Region
from tilekit.compiler.ir.types import TileType, Unknown
from tilekit.dtypes import DType
from tilekit.lang.combining import arity_problem
from tilekit.lang.registry import OPS

__all__ = ["Combined"]

_UNARY = (("unary", "-"), ("unary", "+"), ("unary", "~"), ("method", "astype"))

_OPERATORS: dict[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//", operator.mod: "%",
    operator.pow: "**", operator.and_: "&", operator.or_: "|", operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>",
}  # fmt: skip


_BY_ELEMENT = (elementwise, integral, questions, transcendental)
"""The families whose operations do the same with a vector of elements as with one."""


class Combined:
    """A function that takes two of several elements each, and gives one of them: that of `tk.reduce` and `tk.scan`.

    Attributes:
        takes_vectors: whether elements may be vectors of them: it does not branch.
    """

    def __init__(self, p: Any, function: Any, dtypes: Sequence[DType], what: str) -> None:
        self.p, self.dtypes, self.what, self.takes_vectors = p, tuple(dtypes), what, True
        self._call = self._of(function)

    def __call__(self, *elements: ir.Value) -> list[ir.Value]:
        """The code of the results; elements of the first place, then those of the other."""
        tiles = [of_value((), dtype, value) for dtype, value in zip(self.dtypes * 2, elements, strict=True)]
        result = self._call(*tiles)
        results = result if isinstance(result, tuple) else (result,)
        actual = [(value.shape, value.dtype) if isinstance(value, Tile) else None for value in results]
        if actual != [((), dtype) for dtype in self.dtypes]:
            raise Unsupported(f"{self.what} with a function of other results")
        vectors = [one(self.p.k, value) for value in results]
        alike: list[ir.Value] = self.p.k.alike([*vectors, *elements])
        return alike[: len(vectors)]

    def _of(self, function: Any) -> Callable[..., Any]:
        if isinstance(function, BoundKernel):
            if len(function.names) != 2 * len(self.dtypes):
                raise Unsupported(f"{self.what} with a function of {len(function.names)} parameters")
            region = build_function(function, [TileType(dtype, ()) for dtype in self.dtypes * 2])
            _check(region)
            self.takes_vectors = all(map(_is_by_element, region.walk()))
            return lambda *tiles: self.p.inlined(region, tiles)
        try:
            symbol = _OPERATORS.get(function)
        except TypeError:  # it has no hash
            symbol = None
        if symbol is not None and len(self.dtypes) == 1:
            return lambda x, y: elementwise.operate(self.p.k, symbol, x, y)
        if (function is max or function is min) and len(self.dtypes) == 1:
            better = ">" if function is max else "<"
            return lambda x, y: elementwise.where(self.p, elementwise.compare(self.p.k, better, y, x), y, x)
        name = getattr(function, "__name__", "")
        if name in OPS and OPS[name].function is function and name in LOWERINGS and not arity_problem(function, len(self.dtypes)):
            self.takes_vectors = _is_of_elements(name)
            return lambda *tiles: self.p.operation(name, tiles)
        raise Unsupported(f"{self.what} with {name or function!r}")


def _is_of_elements(name: str) -> bool:
    return LOWERINGS[name].__module__ in [family.__name__ for family in _BY_ELEMENT]


def _is_by_element(operation: Operation) -> bool:
    """Whether an operation makes of vectors of elements what it makes of each."""
    if operation.kind == "call":
        function = operation.what.value
        name = getattr(function, "__name__", "")
        return name in OPS and OPS[name].function is function and _is_of_elements(name)
    return operation.kind in ("binary", "compare") or (operation.kind, operation.what) in _UNARY


def _check(region: Region) -> None:
    for operation in region.walk():
        if any(isinstance(value.type, Unknown) for value in operation.results):
            raise Unsupported(f"a value of unknown type, in {operation.location}")
