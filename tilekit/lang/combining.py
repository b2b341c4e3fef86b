"""What `tk.reduce` and `tk.scan` share: tuples of tiles, and functions of the user's on tiles of shape ()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import block
from tilekit.lang.tile import Tile, common_shape, scalar_kind, what_is

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = ["arity_problem", "check_function", "columns_of", "combined", "first_of", "known_identity", "misfit"]


def columns_of(x: Any, what: str) -> tuple[list[NDArray[Any]], bool]:
    """The arrays of a tile, or of a tuple of tiles, broadcast to one shape; and whether it is one tile."""
    tiles = x if isinstance(x, tuple) else (x,)
    for tile in tiles:
        if not isinstance(tile, Tile):
            raise CompileError(f"{what}: needs a tile or a tuple of tiles, not {what_is(tile)}")
    if not tiles:
        raise CompileError(f"{what}: needs a tile or a tuple of tiles, not an empty tuple")
    shape = common_shape(what, [tile.shape for tile in tiles])
    return [np.broadcast_to(tile._array, shape) for tile in tiles], not isinstance(x, tuple)


def first_of(tiles: Sequence[Tile], alone: bool) -> Any:
    """What a fold of a tile, or of a tuple of tiles, returns."""
    return tiles[0] if alone else tuple(tiles)


def arity_problem(func: Callable[..., Any], tiles: int) -> str | None:
    """Why `func` cannot combine the elements of so many tiles; None if it can, as far as its parameters tell."""
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):  # a function in C that does not say
        return None
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in places)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or needed <= 2 * tiles <= len(places):
        return None
    return f"func takes {needed} values; for {tiles} tile{'s' * (tiles > 1)} it must take {2 * tiles}"


def check_function(func: Any, tiles: int, what: str) -> None:
    """Refuse what cannot combine the elements of so many tiles."""
    if not callable(func):
        raise CompileError(f"{what}: func is a @tk.function, a lambda, or a function of the module operator, not {what_is(func)}")
    if problem := arity_problem(func, tiles):
        raise CompileError(f"{what}: {problem}")


def known_identity(identity: Any, what: str) -> None:
    """Refuse an identity that is no constant: it is cuTile Python's, and of no use here."""
    for value in identity if isinstance(identity, tuple) else (identity,):
        if value is not None and scalar_kind(value) is None:
            raise CompileError(f"{what}: identity is a scalar, a tuple of scalars, or None, not {what_is(value)}")


def misfit(wanted: Sequence[dtypes.DType], actual: Sequence[dtypes.DType | str], what: str) -> str | None:
    """Why the results of `func` cannot take the place of what it was given; None if they can.

    Args:
        wanted: the dtypes of what it gets.
        actual: for each result its dtype if it is a tile of shape (), else what it is, in words.
        what: the operation.
    """
    if len(actual) != len(wanted):
        return f"func gives {len(actual)} values, and takes two times {len(wanted)}: it must give {len(wanted)}"
    for dtype, result in zip(wanted, actual, strict=True):
        if isinstance(result, str):
            return f"func gives {result}, and must give a tile of shape ()"
        if dtype != result:
            return f"func gives {result.name} where it gets {dtype.name}; cast its result with .astype(...)"
    return None


def combined(func: Callable[..., Any], elements: Sequence[Any], what: str) -> tuple[Any, ...]:
    """`func` of elements, or of arrays of elements of one shape, as arrays of that shape.

    Functions of elements are mostly functions of whole tiles too, and so much faster to run; where one is not, as when it
    branches on an element, it is run for each.
    """
    arrays = [np.asarray(value) for value in elements]
    wanted, shape = [a.dtype for a in arrays[: len(arrays) // 2]], arrays[0].shape
    if block.running_one().sampled:  # one element stands for all
        ones = [array.reshape(-1)[0] for array in arrays]
        return tuple(np.broadcast_to(one, shape) for one in _once(func, list(map(np.asarray, ones)), wanted, (), what))
    try:
        return _once(func, arrays, wanted, shape, what)
    except CompileError:
        if not shape:
            raise
    columns = tuple(np.empty(shape, dtype) for dtype in wanted)
    for at in np.ndindex(shape):
        for column, value in zip(columns, _once(func, [np.asarray(a[at]) for a in arrays], wanted, (), what), strict=True):
            column[at] = value
    return columns


def _once(
    func: Callable[..., Any], arrays: Sequence[NDArray[Any]], wanted: Sequence[dtypes.DType], shape: tuple[int, ...], what: str
) -> tuple[Any, ...]:
    result = func(*map(Tile, arrays))
    results = result if isinstance(result, tuple) else (result,)
    kinds = [r.dtype if isinstance(r, Tile) and r.shape in ((), shape) else what_is(r) for r in results]
    problem = misfit(wanted, kinds, what)
    if problem:
        raise CompileError(f"{what}: {problem}")
    return tuple(np.broadcast_to(r._array, shape) for r in results)
