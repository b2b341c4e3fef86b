"""Pipeline intrinsics: acquire and fill a stage, wait for it, release it; and how code is written that is made of them.

The functions do nothing in Python; `lower.pipelines` and `nvidia.multibuffer` lower them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

__all__ = ["CONSUMER", "PRODUCER", "STEPS", "assignment", "call_of", "name_of", "placed"]

CONSUMER, PRODUCER = 0, 1


def _steps(*rows: Any) -> Any:
    """The number of turns."""


def _once(row: Any, slices: Any) -> Any:
    """A row has one tile at most, if so many slices of one tile each are all that it was cut by; else there is no ring."""


def _nth(row: Any, k: Any) -> Any:
    """Load the tile of a turn."""


def _ring(number: Any, stages: Any, shared: Any, *grids: Any) -> Any:
    """A ring: stages for tiles of such grids; those whose bits of `shared` are set come to all blocks of a cluster."""


def _role() -> Any:
    """Warp specialisation, what a thread does: CONSUMER, PRODUCER, or nothing."""


def _registers(role: Any, products: Any) -> Any:
    """Reallocate registers (setmaxnreg): a thread needs as many as its role does; a turn of some loop has so many `products`."""


def _put(ring: Any, turn: Any, k: Any, *rows: Any) -> Any:
    """Issue copies of the tiles of turn `k` of a loop, as soon as a stage is empty; `turn` counts those of all loops."""


def _take(ring: Any, turn: Any, lines: Any) -> Any:
    """Wait until the stage of a turn is full. The statements on the given lines run once in it."""


def _operand(tile: Any, renewed: Any) -> Any:
    """A tile as products take it, so that it need not be converted in each turn; `renewed` if the loop computes it anew."""


def _wait_product(product: Any, *later: Any) -> Any:
    """Wait for a product (wgmma.wait_group), and not for those that were asked for later."""


def _give(ring: Any, turn: Any, k: Any, lines: Any) -> Any:
    """Release a turn's stage; or, if a product that reads them may stay under way in the next turn, with those of the turn
    before. `k` is 0 if there is no next one. The statements on the given lines run once in each turn."""


def _end() -> Any:
    """All is done. A block of a cluster waits for the others, which may still tell it something."""


def _last(ring: Any, turn: Any, k: Any, lines: Any) -> Any:
    """The loop is over, which had `k` turns; `turn` is the next."""


STEPS: dict[str, Callable[..., Any]] = {
    f"tilekit_{function.__name__}": function
    for function in (_steps, _once, _nth, _ring, _role, _registers, _put, _take, _operand, _wait_product, _give, _last, _end)
}


def call_of(name: str, arguments: list[ast.expr], at: ast.AST) -> ast.Call:
    """A call of a function, at the place of `at`."""
    call: ast.Call = placed(ast.Call(ast.Name(name, ast.Load()), arguments, []), at)
    return call


def assignment(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    """`name = value`, at the place of `at`."""
    statement: ast.stmt = placed(ast.Assign([ast.Name(name, ast.Store())], value), at)
    return statement


def placed(tree: Any, at: ast.AST) -> Any:
    """`tree`, of which what has no place has that of `at`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.stmt)) and not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return tree


def name_of(name: str) -> ast.expr:
    """A variable, read."""
    return ast.Name(name, ast.Load())
