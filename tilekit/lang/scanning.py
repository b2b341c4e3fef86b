"""Operations that fold a tile along a dimension and keep every step: prefix sums and their like.

Sums and products of 16-bit floats are computed in float32, each result rounded once. The order in which elements meet is not
NumPy's, so that sums of floats differ from its in the last bits; it is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import block
from tilekit.lang.combining import check_function, columns_of, combined, first_of, known_identity
from tilekit.lang.reduction import sum_dtype
from tilekit.lang.registry import tile_op
from tilekit.lang.shape import axis_of
from tilekit.lang.tile import Tile, computable, convert, what_is

__all__ = ["cumprod", "cumsum", "scan"]


def _accumulated(name: str, function: Callable[..., Any], x: Any, axis: Any, reverse: bool) -> Tile:
    if not isinstance(x, Tile):
        raise CompileError(f"{name}: needs a tile, not {what_is(x)}")
    computable(name, x.dtype)
    along, dtype = axis_of(axis, x.ndim, name), sum_dtype(x.dtype)
    wide = dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
    array = convert(x._array, wide)
    array = np.flip(array, along) if reverse else array
    prefixes = function(array, axis=along, dtype=wide)
    return Tile(convert(np.flip(prefixes, along) if reverse else prefixes, dtype))


@tile_op("cumsum", host="numpy.cumsum")
def cumsum(x: Tile, axis: int, *, reverse: bool = False) -> Tile:
    """The sums of each element and all before it along `axis`.

    Args:
        x: a tile; bools count as 0 and 1. Integers of fewer than 32 bits give int32 or uint32.
        axis: the dimension, known when the kernel is compiled.
        reverse: whether the sums are of each element and all behind it.

    Raises:
        CompileError: there is no such dimension, or nothing is calculated in the tile's dtype.

    Examples:
        >>> @tk.kernel
        ... def running(y: tk.Out, x: tk.In):
        ...     y.store(tk.cumsum(tk.load_tile_like(x, y), 0))
        >>> op = running(api.zeros(8, tk.int64).partition(4), api.arange(8)).first()
        >>> op.unpartition().to_host().sync()
        array([ 0,  1,  3,  6,  4,  9, 15, 22])
    """
    return _accumulated("cumsum", np.cumsum, x, axis, reverse)


@tile_op("cumprod", host="numpy.cumprod")
def cumprod(x: Tile, axis: int, *, reverse: bool = False) -> Tile:
    """The products of each element and all before it along `axis`.

    Args:
        x, axis, reverse: as for `tk.cumsum`.

    Raises:
        CompileError: there is no such dimension, or nothing is calculated in the tile's dtype.

    Examples:
        >>> @tk.kernel
        ... def factorials(y: tk.Out):
        ...     y.store(tk.cumprod(tk.arange(4) + 1, 0))
        >>> factorials(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([ 1,  2,  6, 24], dtype=int32)
    """
    return _accumulated("cumprod", np.cumprod, x, axis, reverse)


@tile_op("scan", host="numpy.ufunc.accumulate")
def scan(
    x: Tile | tuple[Tile, ...],
    axis: int,
    func: Callable[..., Any],
    identity: Any = None,
    *,
    reverse: bool = False,
) -> Any:
    """Fold each element with all before it along `axis`, by a function of one's own.

    Args:
        x: a tile, or a tuple of tiles whose shapes broadcast and whose dtypes may differ; their elements are folded together.
        axis: the dimension, known when the kernel is compiled.
        func: a `@tk.function`, a plain function, a lambda, or one of Python's `operator` functions: of two tiles of shape `()`,
            what came before and what follows, to another. For a tuple of N tiles it takes the N of what came before, then the N
            of what follows, and returns a tuple of N. It must be associative.
        identity: for cuTile Python's sake: a constant (or a tuple of them) that `func` leaves other values as they are with.
            Nothing here needs one, and none is used.
        reverse: whether each element is folded with all behind it; what is behind comes first to `func` then.

    Returns:
        A tile of the dtype of `x`, or a tuple of them.

    Raises:
        CompileError: there is no such dimension, or `func` gives other dtypes than it gets.

    Examples:
        >>> @tk.kernel
        ... def peaks(y: tk.InOut):
        ...     y.store(tk.scan(y.load(), 0, lambda a, b: tk.maximum(a, b)))
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> peaks(x.partition(8)).out().sync().numpy()
        array([3, 3, 4, 4, 5, 9, 9, 9], dtype=int32)
    """
    columns, alone = columns_of(x, "scan")
    along = axis_of(axis, columns[0].ndim, "scan")
    known_identity(identity, "scan")
    check_function(func, len(columns), "scan")

    def step(*elements: Any) -> tuple[Any, ...]:
        return combined(func, elements, "scan")

    rows = [np.moveaxis(np.flip(c, along) if reverse else c, along, 0) for c in columns]
    if block.running_one().sampled:
        step(*(row[0] for row in rows), *(row[0] for row in rows))
        return first_of(list(map(Tile, columns)), alone)
    prefixes = [np.empty_like(row) for row in rows]
    last = tuple(row[0] for row in rows)
    for at in range(rows[0].shape[0]):
        last = step(*last, *(row[at] for row in rows)) if at else last
        for column, value in zip(prefixes, last, strict=True):
            column[at] = value
    back = [np.moveaxis(column, 0, along) for column in prefixes]
    return first_of([Tile(np.flip(b, along) if reverse else b) for b in back], alone)
