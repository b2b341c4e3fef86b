"""What went wrong in a block, in the words that the interpreter has for it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilekit.errors import DeviceError
from tilekit.lang.debug import assertion_text
from tilekit.lang.pipelines import unequal
from tilekit.lang.views import TensorView
from tilekit.lang.windows import window_of

__all__ = ["said_of"]

Values = Sequence[int]


def said_of(site: tuple[Any, ...], values: Values) -> str:
    """What is said of a site, see `Program.check`, and the numbers that the block reports."""
    kind, *about = site
    try:
        return _KINDS[kind](about, values)
    except DeviceError as error:
        return str(error)


def _window(about: Sequence[Any], values: Values) -> str:
    name, what, extents, steps, rank = about
    shape = values[rank : 2 * rank]
    view = TensorView(name, np.broadcast_to(np.zeros((), np.uint8), shape), None, True)
    window_of(view, tuple(values[:rank]), extents, steps, what)
    return f"{what}: a tile outside {name}"


def _point(about: Sequence[Any], values: Values) -> str:
    name, what, rank = about
    wrong, shape = tuple(values[:rank]), tuple(values[rank : 2 * rank])
    return f"{what}: index {wrong if rank > 1 else wrong[0]} is outside {name}, a tensor of shape {shape}"


def _slice(about: Sequence[Any], values: Values) -> str:
    (name, axis), (first, last, there) = about, values[:3]
    return f"slice: {first}:{last} is outside {name}, which has {there} along axis {axis}"


def _unequal(about: Sequence[Any], values: Values) -> str:
    return unequal(values[: about[0]])


def _part(about: Sequence[Any], values: Values) -> str:
    what, grid = about
    index = tuple(values[: len(grid)])
    return f"{what}: index {index if len(grid) > 1 else index[0]} of parts of which there are {grid}"


def _assertion(about: Sequence[Any], values: Values) -> str:
    message, shape = about
    return assertion_text(message, tuple(values[: len(shape)]) if shape else None)


def _call(about: Sequence[Any], values: Values) -> str:
    """Of a function of Python's that raises an error: what it raises."""
    function, kinds = about
    numbers = [struct.unpack("d", struct.pack("q", bits))[0] if kind is float else bits for kind, bits in zip(kinds, values, strict=False)]
    try:
        function(*numbers)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{function.__name__} of {', '.join(map(str, numbers))}"


_KINDS: dict[str, Callable[[Sequence[Any], Values], str]] = {
    "window": _window, "point": _point, "slice": _slice, "unequal": _unequal, "part": _part, "assertion": _assertion, "call": _call,
}  # fmt: skip
