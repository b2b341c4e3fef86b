"""PyTorch's current stream, and `current_stream`: a block in which tilekit's work runs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tilekit._runtime.device import Device, as_stream, use_policies
from tilekit._runtime.scheduling import SchedulingPolicy
from tilekit._runtime.stream import Stream

__all__ = ["address_on", "current_stream", "stream_on"]

_KEPT = 256  # PyTorch has 32 streams of each priority; others' may be its current ones, too
_streams: dict[tuple[int, int], Stream] = {}  # by the GPU's number and the address: each costs ten microseconds to make


def _address_on(ordinal: int) -> int:
    return torch.cuda.current_stream(ordinal).cuda_stream  # type: ignore[no-any-return]


address_on: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _address_on)
"""The address of PyTorch's current stream on a GPU, by the GPU's number: without the object that `torch.cuda.current_stream`
makes in two microseconds, where PyTorch has what its own compiler and Triton ask, too."""


def stream_on(device: Device) -> Stream:
    """PyTorch's current stream on a GPU."""
    ordinal = device.ordinal
    address = address_on(ordinal)
    known = _streams.get((ordinal, address))
    if known is None or known.closed:
        if len(_streams) >= _KEPT:
            _streams.clear()
        known = _streams[ordinal, address] = as_stream(torch.cuda.current_stream(ordinal), device)
    return known


class _Current:
    """The policy that gives PyTorch's current stream, asked anew for each op."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def next_stream(self) -> Stream:
        """PyTorch's current stream."""
        return stream_on(self.device)

    def __repr__(self) -> str:
        return f"tilekit.torch.current_stream() of {self.device!r}"


_policies: dict[Device, SchedulingPolicy] = {}


def _policy(device: Device) -> SchedulingPolicy | None:
    if device.kind != "cuda":
        return None
    if device not in _policies:
        _policies[device] = _Current(device)
    return _policies[device]


@contextmanager
def current_stream() -> Iterator[None]:
    """In the `with` block, ops that are given no stream run on PyTorch's current one, whichever that is then.

    ::

        with tilekit.torch.current_stream():
            y = saxpy(y, 2.0, x).tile(1024).out().sync()

    So they are in one order with what PyTorch submits before and after, and nobody waits for anybody. It holds for `sync`,
    `await`, and `schedule(device.policy)`, which returns at once; in this thread or task, and the tasks that it starts. Ops with
    a stream or a policy of their own keep it. On a CPU device, which PyTorch has no streams of, nothing changes.
    """
    with use_policies(_policy):
        yield
