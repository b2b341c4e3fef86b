"""As much of PyTorch as the benchmarks call, on NumPy's arrays: for memory of a CPU device, whose addresses are the host's.

Everything happens at once. What is done while a graph is captured is written down, and done by `replay`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class FakeArray:
    """A tensor of PyTorch's."""

    def __init__(self, array: np.ndarray[Any, Any], do: Callable[[Callable[[], object]], None]) -> None:
        self.array, self._do = array, do

    def copy_(self, other: FakeArray) -> None:
        self._do(lambda: np.copyto(self.array, other.array))

    def add_(self, other: FakeArray) -> None:
        self._do(lambda: np.add(self.array, other.array, out=self.array))

    def __iter__(self) -> Iterator[FakeArray]:
        return (FakeArray(row, self._do) for row in self.array)

    def to(self, device: Any) -> np.ndarray[Any, Any]:
        return self.array  # tilekit takes it as it takes PyTorch's


def fake_torch() -> tuple[ModuleType, list[str]]:
    """The module, and what is noted down: captures, replays, and waits; and what was done with which stream current."""
    torch, seen = ModuleType("torch"), list[str]()
    torch.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    recording: list[Callable[[], object]] | None = None
    current: list[Any] = []

    def do(work: Callable[[], object]) -> None:
        if recording is None:
            assert current, "the benchmark's stream must be PyTorch's current one"
            work()
        else:
            recording.append(work)

    def as_tensor(exported: Any, device: Any) -> FakeArray:
        interface = exported.__cuda_array_interface__
        dtype, shape = np.dtype(interface["typestr"]), interface["shape"]
        memory = (ctypes.c_char * (dtype.itemsize * int(np.prod(shape)))).from_address(interface["data"][0])
        return FakeArray(np.frombuffer(memory, dtype).reshape(shape), do)

    def made(like: FakeArray, values: Callable[[], Any]) -> FakeArray:
        result = FakeArray(np.empty_like(like.array), do)
        do(lambda: np.copyto(result.array, values(), casting="same_kind"))
        return result

    def rms_norm(x: FakeArray, shape: tuple[int, ...], weight: FakeArray, eps: float) -> FakeArray:
        assert x.array.shape == shape

        def values() -> Any:
            t = x.array.astype(np.float32)
            return t / np.sqrt(np.mean(t * t) + eps) * weight.array

        return made(x, values)

    def mv(matrix: FakeArray, vector: FakeArray, out: FakeArray) -> None:
        do(lambda: np.copyto(out.array, matrix.array.astype(np.float32) @ vector.array, casting="same_kind"))

    def add(a: FakeArray, b: FakeArray, out: FakeArray) -> None:
        do(lambda: np.add(a.array, b.array, out=out.array))

    class CUDAGraph:
        def __init__(self) -> None:
            self.work: list[Callable[[], object]] = []

        def replay(self) -> None:
            assert current
            seen.append("replay")
            for work in self.work:
                work()

    @contextlib.contextmanager
    def graph(made: CUDAGraph, capture_error_mode: str) -> Iterator[None]:
        nonlocal recording
        recording = made.work
        seen.append("capture")
        yield
        recording = None

    @contextlib.contextmanager
    def stream(made: Any) -> Iterator[None]:
        current.append(made)
        yield
        current.pop()

    torch.device = lambda *kind: kind  # type: ignore[attr-defined]
    torch.as_tensor, torch.mv, torch.add = as_tensor, mv, add  # type: ignore[attr-defined]
    torch.from_numpy = lambda array: FakeArray(array, do)  # type: ignore[attr-defined]
    torch.nn = SimpleNamespace(functional=SimpleNamespace(rms_norm=rms_norm))  # type: ignore[attr-defined]
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        ExternalStream=lambda address, device: SimpleNamespace(synchronize=lambda: seen.append("wait")),
        stream=stream,
        current_stream=lambda device: current[-1],
        CUDAGraph=CUDAGraph,
        graph=graph,
    )
    return torch, seen
