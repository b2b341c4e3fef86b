"""What groups take, looked at: devices, ranks, tensors to write to, values for the other hosts."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilekit._groups.call import Call
from tilekit._runtime.device import Device, default_device
from tilekit._runtime.device import devices as every
from tilekit._runtime.timeline import as_timeout
from tilekit._tensor.tensor import Tensor
from tilekit.ops import DeviceOp

__all__ = ["as_devices", "as_member", "as_pairs", "as_rank", "as_seconds", "check_out", "check_value", "refused"]

_LONGEST_S = 1e6  # eleven days: what a system call can count in milliseconds, and twice as long


def as_devices(devices: Sequence[Device | str] | None) -> tuple[Device, ...]:
    """Devices for the members of a group; by default all of the default device's kind.

    Raises:
        TypeError: it is no list of devices.
        ValueError: no devices, two of one kind and one of another, or one twice.
    """
    if devices is None:
        kind = default_device().kind
        return tuple(device for device in every() if device.kind == kind)
    if not isinstance(devices, (list, tuple)):
        raise TypeError(f'Group takes a list of devices, such as ["cuda:0", "cuda:1"], not {devices!r}')
    chosen = tuple(map(Device, devices))
    if not chosen:
        raise ValueError("Group: no devices; give one for each member")
    if len({device.kind for device in chosen}) > 1:
        raise ValueError(f"Group: devices of two kinds, {', '.join(device.label for device in chosen)}: take those of one")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"Group: a device twice among {', '.join(device.label for device in chosen)}: each member has its own")
    return chosen


def as_int(value: Any) -> int | None:
    """The int that a value is, NumPy's too; None if it is none."""
    return operator.index(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def as_member(rank: Any, size: Any, key: Any) -> tuple[int, int]:
    """The rank and the size with which a process can join.

    Raises:
        TypeError: `rank` or `size` is no int, or `key` no bytes. ValueError: there is no such rank.
    """
    mine, count = as_int(rank), as_int(size)
    if mine is None or count is None:
        name, number = ("rank", rank) if mine is None else ("size", size)
        raise TypeError(f"Group.join: {name} is an int, not {number!r}")
    if not 0 <= mine < count:
        raise ValueError(f"Group.join: there is no rank {mine} in a group of {count}; ranks count from 0")
    if not isinstance(key, bytes):
        raise TypeError(f"Group.join: key is bytes, the same in all processes, not {type(key).__name__}")
    return mine, count


def as_seconds(timeout_s: Any, default_s: float) -> float:
    """How long the members of a group wait for each other.

    Raises:
        TypeError: it is no number. ValueError: it is NaN, or not positive.
    """
    if timeout_s is None:
        return default_s
    seconds = as_timeout(timeout_s, "Group.join")
    if seconds is not None and seconds <= 0:
        raise ValueError(f"Group.join: timeout_s is {timeout_s!r}, and must be positive: members need time to come")
    return min(_LONGEST_S if seconds is None else seconds, _LONGEST_S)


def as_rank(kind: str, rank: Any, size: int, name: str) -> int:
    """A rank of a group of `size`, which `kind` takes as `name`.

    Raises:
        TypeError: it is no int. ValueError: there is none.
    """
    number = as_int(rank)
    if number is None:
        raise TypeError(f"{kind}: {name} is a rank, an int from 0 to {size - 1}, not {rank!r}")
    if not 0 <= number < size:
        raise ValueError(f"{kind}: there is no rank {number} in a group of {size}; ranks count from 0")
    return number


def as_pairs(pairs: Any, size: int) -> tuple[tuple[int, int], ...]:
    """From which rank to which tensors go, in a group of `size`.

    Raises:
        TypeError: something that is no list of pairs of ints. ValueError: there is no such rank; one sends, or gets, twice.
    """
    pairs = tuple(pairs) if isinstance(pairs, (list, tuple)) else pairs
    if not isinstance(pairs, tuple) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise TypeError(f"permute: pairs is a list of (source, target), not {pairs!r}")
    for side, name in enumerate(("source", "target")):
        ranks = [as_rank("permute", pair[side], size, name) for pair in pairs]
        for rank in ranks:
            if ranks.count(rank) > 1:
                raise ValueError(f"permute: rank {rank} is the {name} of two pairs: each is of one at most")
    return tuple((int(source), int(target)) for source, target in pairs)


def check_out(call: Call, size: int, inputs: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """Whether results can be written to these tensors.

    Raises:
        ValueError: another shape or dtype, or memory that is not contiguous, or in the way.
    """
    shape = call.result_shape(size)
    for x, y in zip(inputs, out):
        if (y.shape, y.dtype) != (shape, call.dtype):
            raise ValueError(f"{call.kind}: out is {y.dtype.name} {y.shape}, and the result {call.dtype.name} {shape}")
        if not y.is_contiguous:
            raise ValueError(f"{call.kind}: out is not contiguous")
        same = y.address == x.address and call.kind in ("all_reduce", "broadcast")
        if not same and y.shares_memory(x):
            raise ValueError(f"{call.kind}: out has memory of x's: give the same tensor where the shapes allow, or another one")


def check_value(value: Any) -> None:
    """Whether hosts can exchange that.

    Raises:
        TypeError: there is something in it that JSON has not, or would make something else of.
    """
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, dict):
            left += [*part.values()]
            for key in part:
                if not isinstance(key, str):
                    raise TypeError(f"exchange: the keys of a dict are str, not {key!r}; give a list of pairs")
        elif not (part is None or isinstance(part, (bool, int, float, str))):
            cure = "its .tolist()" if hasattr(part, "tolist") else "its repr, or what makes it again"
            raise TypeError(
                f"exchange: hosts give None, numbers, strings, lists and dicts of them, not {type(part).__name__}: give {cure}"
            )


@contextlib.contextmanager
def refused(*arguments: Any) -> Iterator[None]:
    """Around checks of arguments: if they fail, nobody need be told that ops among these have not run."""
    try:
        yield
    except BaseException:
        for argument in arguments:
            for part in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(part, DeviceOp):
                    part.consumed()
        raise
