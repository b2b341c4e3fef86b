"""Loops that are written out when a kernel is compiled."""

from __future__ import annotations

from tilekit.errors import CompileError

__all__ = ["static_range", "unknown_bounds"]


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """The numbers of a `range`, for a loop that is written out: `for i in tk.static_range(4):`.

    The body stands in the compiled kernel once for each number, which is known there: it may be an axis, an extent of a tile
    (`2 ** i`), the index of a tuple. Loops over tuples are written out likewise.

    Args:
        start, stop, step: as for `range`; known when the kernel is compiled.

    Raises:
        CompileError: a bound is computed in the kernel.

    Examples:
        >>> @tk.kernel
        ... def powers(y: tk.InOut):
        ...     t = y.load()
        ...     for i in tk.static_range(3):
        ...         t = t + tk.sum(tk.ones(2**i))
        ...     y.store(t)
        >>> powers(api.zeros(2).partition(2)).out().sync().numpy()
        array([7., 7.], dtype=float32)
    """
    bounds = (0, start) if stop is None else (start, stop)
    if not all(isinstance(bound, int) for bound in (*bounds, step)) or step == 0:
        raise CompileError(f"static_range: {unknown_bounds()}")
    return range(*bounds, step)


def unknown_bounds() -> str:
    """What to say of bounds that are no constants."""
    return "its bounds are ints that are known when the kernel is compiled, its step not 0: range counts what is computed"
