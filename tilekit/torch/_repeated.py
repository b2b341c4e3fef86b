"""What an operator does for arguments that look alike is written down once, and done again: on their memory, and on new memory.

As `tilekit.kernels._recall` does it for the ready-made kernels; here for a whole operator, whichever ops it is made of, and
without a tensor or an op of tilekit's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from tilekit._capture.recorder import Recording
from tilekit._runtime.context import submitting
from tilekit._runtime.device import Device, use_device
from tilekit._runtime.storage import Storage
from tilekit._runtime.stream import Stream
from tilekit._tensor.partition import Partition
from tilekit.ops import DeviceOp
from tilekit.ops.fast_path import FAST_PATH, MovableProgram
from tilekit.torch._memory import Guests, device_of, torch_dtype
from tilekit.torch._running import device_on
from tilekit.torch._streams import address_on, stream_on

__all__ = ["Repeated", "flat"]

_Take = Callable[[tuple[Any, ...], dict[str, Any]], tuple[dict[str, Any], dict[str, torch.Tensor]]]
_KEPT = 256  # kinds of arguments, of one operator
# In the place of what is known: the arguments came up once; what is done for them cannot be repeated.
_ONCE, _NEVER = "once", "never"


def _empty_strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


# New memory on PyTorch's current GPU: as `torch.empty_strided`, which takes several times as long to understand its arguments, or
# what PyTorch's own compiler calls instead, where it has that.
_empty: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided)


class _New(NamedTuple):
    """Memory that is new each time.

    Attributes:
        result: which result it is; None for a workspace.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    result: int | None


class _Work(NamedTuple):
    """What is done for arguments that look alike.

    Attributes:
        program: submits it, given the addresses of the arguments and then of what is new.
        new: what is new.
        results: how many of that are results.
        copies: whether arguments are copied, to have no gaps.
        ordinal: the number of the device where all is.
    """

    program: MovableProgram
    new: tuple[_New, ...]
    results: int
    copies: bool
    ordinal: int

    def done(self, arrays: list[torch.Tensor]) -> list[torch.Tensor] | int | None:
        """Submit it to PyTorch's current stream; the results, or the driver's code if it refused. None, and nothing is done,
        where another device is current.
        """
        if self.copies:
            arrays = [array.contiguous() for array in arrays]
        addresses = [array.data_ptr() for array in arrays]
        results: list[Any] = [None] * self.results
        workspaces = []  # which are PyTorch's again, for what comes behind on the stream, when all is submitted
        for shape, strides, dtype, result in self.new:
            array = _empty(shape, strides, dtype)
            addresses.append(array.data_ptr())
            if result is None:
                workspaces.append(array)
            else:
                results[result] = array
        code = self.program.run_at(tuple(addresses), address_on(self.ordinal))
        return None if code < 0 else code or results


class Repeated:
    """What is known of an operator's calls.

    Args:
        who: the operator's name.
        take: gives the arguments by their names, and those that are tensors, without gaps if that is wanted.
        make: makes the op, given the arguments, with tensors of tilekit's.
    """

    def __init__(self, who: str, take: _Take, make: Callable[[dict[str, Any]], DeviceOp[Any]]) -> None:
        self._who, self._take, self._make = who, take, make
        self._known: dict[tuple[Any, ...], _Work | str] = {}

    def call(self, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """Do what is done for such arguments; the results. None, and nothing is done, if that is not known. It is written down
        when they come up for the second time.
        """
        if submitting.submission is not None:
            return None
        key = FAST_PATH.repeat(self._known, args, _empty, address_on)
        if type(key) is list:
            return key
        if type(key) is int:
            raise self._failure(key, args)
        if key is None:
            key = _key(args)
        known = self._known.get(key)
        if type(known) is _Work:
            done = known.done([value for value in args if isinstance(value, torch.Tensor)])
            if type(done) is int:
                raise self._failure(done, args)
            return done  # type: ignore[return-value]
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = _ONCE
            return None
        if known is _ONCE:
            self._known[key] = self._written(args) or _NEVER
            return self.call(args)
        return None

    def _failure(self, code: int, args: tuple[Any, ...]) -> Exception:
        _, arrays = self._take(args, {})
        return device_on(device_of(arrays, self._who)).driver.failure(code, f"running {self._who}")

    def _written(self, args: tuple[Any, ...]) -> _Work | None:
        """What is done for them, and nothing is done; None if there is more to it than a program has."""
        arguments, arrays = self._take(args, {})
        where = device_of(arrays, self._who)
        device = device_on(where)
        if device.driver.native is None or not all(array.numel() for array in arrays.values()):
            return None
        recording = _Recording(device, stream_on(device), self._who, Guests(where, device))
        try:
            return self._read(recording, args, arguments, arrays)
        except Exception:  # the op is run in the usual way, and fails if it was not for being written down
            return None
        finally:
            recording.discard()
            recording.forget()

    def _read(
        self, recording: _Recording, args: tuple[Any, ...], arguments: dict[str, Any], arrays: dict[str, torch.Tensor]
    ) -> _Work | None:
        device = recording.device
        tensors = {name: recording.guests.alone(name, array, self._who) for name, array in arrays.items()}
        with use_device(device):
            op = self._make({**arguments, **tensors})
        results = list(flat(recording.run(op)))
        memories = [tensor.storage.memory for tensor in tensors.values()]  # type: ignore[union-attr]
        if any(span.written and span.memory in memories for node in recording.nodes for span in node.ranges()):
            return None
        new = [_New((nbytes,), (1,), torch.uint8, None) for _, nbytes in recording.new]
        for number, result in enumerate(results):
            tensor = result.unpartition() if isinstance(result, Partition) else result
            own = [at for at, (storage, _) in enumerate(recording.new) if tensor.storage is storage]
            if not own or new[own[0]].result is not None or tensor.offset or tensor.nbytes != recording.new[own[0]][1]:
                return None
            new[own[0]] = _New(tensor.shape, tensor.strides, torch_dtype(tensor.dtype, self._who), number)
        memories += [storage.memory for storage, _ in recording.new]
        program = FAST_PATH.movable_program(device.driver, recording.nodes, memories)
        copies = not all(any(array is value for value in args) for array in arrays.values())
        return None if program is None else _Work(program, tuple(new), len(results), copies, device.ordinal)


class _Recording(Recording):
    """An operator's, whose memory is PyTorch's.

    Attributes:
        guests: that memory.
        new: what was allocated, with its size in bytes.
    """

    def __init__(self, device: Device, source: Stream, who: str, guests: Guests) -> None:
        self.new: list[tuple[Storage, int]] = []
        self.guests = guests
        super().__init__(device, source, who)

    def allocate(self, nbytes: int, stream: Any) -> Storage:
        """New memory, PyTorch's. All is alive until the operator ends."""
        storage = self.guests.allocate(nbytes)
        if nbytes:
            self.new.append((storage, nbytes))
        return storage

    def forget(self) -> None:
        """As for others: what is garbage in the pool of a CUDA graph of PyTorch's spoils that."""
        super().forget()
        self.new.clear()


def _key(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What all follows from: all but the addresses of tensors."""
    key: list[Any] = []
    for value in args:
        if isinstance(value, torch.Tensor):
            key += (value.shape, value.stride(), value.dtype, value.data_ptr() % 16, value.get_device())
        elif type(value) is list:
            key.append(tuple(value))
        else:
            key += (type(value), value if value or type(value) is not float else str(value))  # 0.0 == -0.0
    return tuple(key)


def flat(results: Any) -> Iterator[Any]:
    """The results of an op one by one."""
    if isinstance(results, (tuple, list)):
        for each in results:
            yield from flat(each)
    else:
        yield results
