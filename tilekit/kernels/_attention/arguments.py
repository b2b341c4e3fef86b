"""What attention takes, checked."""

from __future__ import annotations

import math
from typing import Any

from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import a_tensor
from tilekit.launch.copying import as_real

__all__ = ["check_qkv", "check_starts", "scale_of"]

_DTYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32)
_MOST_HEAD = 256


def check_qkv(name: str, q: Any, k: Any, v: Any, *, paged: bool = False, packed: bool = False, **others: Any) -> None:
    """Raise TypeError or ValueError unless these go together; `others` are like `q`.

    Of pages there may be any number. Packed sequences lie one behind the other.
    """
    dims = ("length", "heads", "head size") if packed else ("batch", "heads", "length", "head size")
    a_tensor(name, q=q, k=k, v=v, **others)
    for what, x in {"q": q, "k": k, "v": v, **others}.items():
        if x.dtype not in _DTYPES:
            raise TypeError(f"{name}: {what} holds {x.dtype.name}; it takes float16, bfloat16 and float32")
        if x.dtype != q.dtype:
            raise TypeError(f"{name}: q holds {q.dtype.name}, {what} {x.dtype.name}; convert one with .astype(...)")
        if len(x.shape) != len(dims):
            raise ValueError(f"{name}: {what} has shape {x.shape}; it takes {len(dims)} dimensions: {', '.join(dims)}")
        if what in others and x.shape != q.shape:
            raise ValueError(f"{name}: q has shape {q.shape}, {what} {x.shape}; they must be the same")
    if k.shape != v.shape:
        raise ValueError(f"{name}: k has shape {k.shape}, v {v.shape}; they must be the same")
    if (q.shape[0] != k.shape[0] and not paged and not packed) or q.shape[-1] != k.shape[-1]:
        both = "the head size" if packed else "batch and head size"
        raise ValueError(f"{name}: q has shape {q.shape}, k {k.shape}; {both} must be the same")
    if not 1 <= q.shape[-1] <= _MOST_HEAD:
        raise ValueError(f"{name}: the head size is {q.shape[-1]}; it is from 1 to {_MOST_HEAD}")
    if q.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise ValueError(f"{name}: q has {q.shape[1]} heads, k {k.shape[1]}; the former must be a multiple of the latter")


def check_starts(name: str, q: Tensor, **starts: Any) -> None:
    """Raise TypeError or ValueError unless these are the cumulative lengths of equally many sequences, on the device of `q`."""
    a_tensor(name, **starts)
    for what, x in starts.items():
        if x.dtype != dtypes.int32:
            raise TypeError(f"{name}: {what} holds {x.dtype.name}; it takes int32: convert it with .astype(tk.int32)")
        if len(x.shape) != 1 or not x.shape[0]:
            raise ValueError(
                f"{name}: {what} has shape {x.shape}; for B sequences it is (B + 1,): where each begins, and where the last ends"
            )
        if None not in (x.device, q.device) and x.device is not q.device:
            raise ValueError(f"{name}: {what} is on {x.device.label}, q on {q.device.label}; copy it with .to(q.device)")
    (first, one), (second, other) = starts.items()
    if one.shape != other.shape:
        raise ValueError(f"{name}: {first} has shape {one.shape}, {second} {other.shape}; they must have equally many sequences")


def scale_of(name: str, scale: Any, q: Tensor) -> float:
    """The factor of the scores.

    Raises:
        TypeError, ValueError: it is no positive number.
    """
    if scale is None:
        return 1 / math.sqrt(q.shape[-1])
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"{name}: scale is a number, or None for 1 / sqrt(head size), not {scale!r}")
    if not 0 < scale < math.inf:
        raise ValueError(f"{name}: scale is a positive number, not {scale!r}")
    return as_real(scale, f"{name}: scale")
