"""What workers do with the parts of sharded arrays: functions that a `Worker` runs, of tensors on its device.

All are found by their names, so that other processes can be told to call them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilekit import api
from tilekit._tensor.arrays import is_array, tensor_of
from tilekit._tensor.tensor import Tensor
from tilekit.distributed.sharding.specs import Region
from tilekit.ops import DeviceOp, join_all, value, zip_ops

__all__ = ["MapCall", "assembled", "cut", "element", "empty", "exchanged", "leading", "trailing"]

_NUMBERS = (bool, int, float, np.generic, np.ndarray)


class MapCall:
    """A user's function as a worker calls it: what it gives becomes a contiguous tensor.

    Args:
        function: of the local parts, and of what else `map` was called with.
        keywords: the names of the last arguments.
        count: how many results there are; None for one that is no tuple.
    """

    def __init__(self, function: Callable[..., Any], keywords: Sequence[str] = (), count: int | None = None) -> None:
        self.function, self.keywords, self.count = function, tuple(keywords), count
        self.__name__ = self.__qualname__ = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *arguments: Any) -> DeviceOp[Any]:
        """Call it."""
        at = len(arguments) - len(self.keywords)
        result = self.function(*arguments[:at], **dict(zip(self.keywords, arguments[at:])))
        if isinstance(result, DeviceOp):
            return result.then(self._settled)
        return self._settled(result)

    def _settled(self, result: Any) -> DeviceOp[Any]:
        if self.count is None:
            return self._part(result)
        if not isinstance(result, (tuple, list)) or len(result) != self.count:
            several = f"{len(result)} results" if isinstance(result, (tuple, list)) else _kind(result)
            raise TypeError(f"map: {self.__name__} gave {several}, and out= has {self.count} specs, one for each result")
        return zip_ops(*map(self._part, result))

    def _part(self, result: Any) -> DeviceOp[Any]:
        if isinstance(result, DeviceOp):  # one of several
            return result.then(self._part)
        if hasattr(result, "unpartition"):
            result = result.unpartition()
        elif not isinstance(result, Tensor) and isinstance(result, _NUMBERS):
            return api.from_host(np.asarray(result))
        elif not isinstance(result, Tensor) and is_array(result):
            result = tensor_of(result, (), "map", f"what {self.__name__} gives")
        if not isinstance(result, Tensor) or result.storage is None:
            cure = "; a launch gives all its arguments: end it with .out()" if isinstance(result, tuple) else ""
            listed = ", or say out=[spec, ...], a spec for each result" if isinstance(result, (tuple, list)) else ""
            raise TypeError(f"map: {self.__name__} gave {_kind(result)}, not a tensor, or an op that gives one{cure}{listed}")
        return value(result) if result.is_contiguous else result.dup()


def _kind(result: Any) -> str:
    return "a meta tensor, which has no memory" if getattr(result, "is_meta", False) is True else type(result).__name__


def element(results: tuple[Any, ...], index: int) -> Any:
    """One of several results."""
    return results[index]


def _window(tensor: Tensor, held: Region) -> Tensor:
    return tensor[tuple(slice(*ends) for ends in held)] if held else tensor


def cut(tensor: Tensor, held: Region) -> DeviceOp[Tensor]:
    """A copy of the part between these bounds."""
    return _window(tensor, held).dup()


def empty(shape: tuple[int, ...], dtype: Any) -> DeviceOp[Tensor]:
    """A tensor without elements."""
    return api.empty(shape, dtype)


def assembled(
    shape: tuple[int, ...], targets: Sequence[Region], sources: Sequence[Region | None], *pieces: Tensor
) -> DeviceOp[Tensor]:
    """A new tensor of pieces.

    Args:
        shape: its extents.
        targets: where each piece goes.
        sources: which part of a piece it is; None for all of it.
        pieces: on this device, and together all of the tensor.
    """

    def fill(whole: Tensor) -> DeviceOp[Tensor]:
        copies = []
        for target, source, piece in zip(targets, sources, pieces):
            copies.append(api.memcpy(_window(whole, target), piece if source is None else _window(piece, source)))
        return join_all(copies).map(lambda _: whole)

    return api.empty(shape, pieces[0].dtype).then(fill)


def leading(tensor: Tensor, dim: int) -> DeviceOp[Tensor]:
    """A contiguous copy whose first dimension is `dim`: collectives split and join along the first."""
    return tensor.permute(dim, *(d for d in range(tensor.ndim) if d != dim)).dup()


def exchanged(tensor: Tensor, before: int, after: int, count: int) -> DeviceOp[Tensor]:
    """What an all-to-all of `count` tensors, each with dimension `after` in front, gives, as a part.

    In front are the pieces of all members, one behind the other; they belong behind each other along dimension `before`.
    """
    others = [dim for dim in range(tensor.ndim) if dim != after]
    pieces = tensor.reshape((count, tensor.shape[0] // count, *tensor.shape[1:]))
    order: list[int] = []
    shape: list[int] = []
    for dim in range(tensor.ndim):
        at = 1 if dim == after else 2 + others.index(dim)
        order += [0, at] if dim == before else [at]
        shape.append(pieces.shape[at] * (count if dim == before else 1))
    return pieces.permute(*order).dup().reshape(tuple(shape))


def trailing(tensor: Tensor, dim: int) -> DeviceOp[Tensor]:
    """The way back from `leading`."""
    order = list(range(1, tensor.ndim))
    order.insert(dim, 0)
    return tensor.permute(*order).dup()
