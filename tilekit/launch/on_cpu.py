"""A specialisation on a CPU device: compiled for the CPU, or interpreted where that is asked for, or cannot be."""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit._capture.kernel_nodes import InterpretedLaunch
from tilekit._driver.nodes import Node
from tilekit._driver.protocol import Driver
from tilekit._driver.shadow import Touched
from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler import cache
from tilekit.compiler.cpu.interpret import interpret
from tilekit.compiler.facts import ArgumentFacts, TensorFacts
from tilekit.compiler.ir.verdict import Accepted, verdict
from tilekit.lang.views import TensorView
from tilekit.launch.packing import packing
from tilekit.launch.sharing import Sharing
from tilekit.settings import load_settings

if TYPE_CHECKING:
    from tilekit.compiler.cpu.kernel import CpuKernel, LoadedKernel
    from tilekit.launch.specialisation import Specialisation

__all__ = ["NOT_COMPILED", "Interpreted", "OnCpu"]

Triple = tuple[int, int, int]

NOT_COMPILED: dict[str, str] = {}
"""The kernels that this process interprets though they were to be compiled, by their names, and why."""


class Interpreted:
    """A specialisation whose blocks Python runs one by one."""

    def __init__(self, specialisation: Specialisation) -> None:
        self._bound, self._facts = specialisation.bound, specialisation.facts
        self._sharing = Sharing(specialisation)
        self._num_warps = specialisation.warps_on_cpu

    def launch(self, ctx: ExecutionContext, grid: Triple, arguments: Sequence[Any]) -> None:
        """Queue the launch on the stream's worker."""
        self.enqueue(ctx.device.driver, ctx.stream.handle, grid, arguments)

    def enqueue(self, driver: Driver, stream: Any, grid: Triple, arguments: Sequence[Any]) -> None:
        """The same, of a driver's stream."""
        driver.submit(stream, functools.partial(self._interpret, grid, self._views(arguments)))

    def as_node(self, grid: Triple, arguments: Sequence[Any]) -> Node:
        """The launch, to be written down."""
        shared = self._sharing.of(grid, arguments)
        return InterpretedLaunch(self.enqueue, grid, arguments, self._sharing.written, shared)

    def _interpret(self, grid: Triple, views: tuple[Any, ...]) -> None:
        interpret(self._bound, grid, views, self._num_warps)

    def _views(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        together = zip(self._bound.names, self._facts, arguments, strict=True)
        return tuple(_view(name, facts, argument) for name, facts, argument in together)


class OnCpu(Interpreted):
    """A specialisation that is compiled at its first launch, on the thread that runs it.

    Raises:
        CompileError: the language does not take the kernel.
    """

    def __init__(self, specialisation: Specialisation) -> None:
        super().__init__(specialisation)
        self._specialisation, settings = specialisation, load_settings()
        self._compiles = settings.cpu == "compiled" and not settings.checks
        self._codes: dict[bool, LoadedKernel | None] = {}  # by whether tensors overlap; None where there is none
        self._lock = threading.Lock()
        if self._compiles:
            from tilekit.compiler.cpu.kernel import slots_of

            packer = struct.Struct(slots_of(self._facts))
            self._parameter_bytes, self._pack = max(packer.size, 1), packing(self._facts, packer.pack_into)
            kernel = self._on_disk(aliased=False)
            if kernel is not None:  # it was accepted when it was compiled
                self._codes[False] = self._linked(kernel)
        if not self._codes:
            self._accepted.announce()

    @functools.cached_property
    def _accepted(self) -> Accepted:
        return verdict(self._bound, self._facts, self._num_warps)

    def enqueue(self, driver: Driver, stream: Any, grid: Triple, arguments: Sequence[Any]) -> None:
        if self._compiles:
            driver.submit(stream, functools.partial(self._run, grid, tuple(arguments)))
        else:
            super().enqueue(driver, stream, grid, arguments)

    def _run(self, grid: Triple, arguments: Sequence[Any]) -> None:
        tensors = [
            (argument.tensor if isinstance(argument, Partition) else argument, facts.role != "in")
            for facts, argument in zip(self._facts, arguments, strict=True)
            if isinstance(facts, TensorFacts)
        ]
        code = self._code(_overlap(tensors))
        if code is None:
            self._interpret(grid, self._views(arguments))
            return
        parameters = (ctypes.c_char * self._parameter_bytes)()
        self._pack(parameters, arguments)
        code.run(grid, parameters)
        for tensor, written in tensors:
            shadow = tensor.shadow_view() if written else None
            if shadow is not None:
                shadow.write((slice(None),) * len(tensor.shape))

    def _code(self, aliased: bool) -> LoadedKernel | None:
        """The machine code; None where there is none, and the kernel has to be interpreted."""
        if aliased not in self._codes:
            with self._lock:
                if aliased not in self._codes:
                    self._codes[aliased] = self._loaded(aliased)
        return self._codes[aliased]

    def _loaded(self, aliased: bool) -> LoadedKernel | None:
        kernel: CpuKernel | str | None = self._on_disk(aliased=aliased)
        if kernel is None:
            from tilekit.compiler.cpu.build import compile_for_cpu

            self._specialisation.compilations += 1
            kernel = compile_for_cpu(self._accepted, self._facts, self._num_warps, aliased=aliased)
            key = self._key(aliased=aliased)
            if key and not isinstance(kernel, str):
                cache.save(key, kernel)
        return self._linked(kernel)

    def _key(self, *, aliased: bool) -> bytes | None:
        from tilekit.compiler.cpu.machine import host

        return self._specialisation.key(f"{host().label}, {aliased}", places=True)

    def _on_disk(self, *, aliased: bool) -> CpuKernel | None:
        from tilekit.compiler.cpu.kernel import CpuKernel

        key = self._key(aliased=aliased) if load_settings().cache_dir is not None else None
        return cache.load(key, CpuKernel) if key else None

    def _linked(self, kernel: CpuKernel | str) -> LoadedKernel | None:
        """Code in memory; None, and a note, where there is a reason instead."""
        from tilekit.compiler.cpu.kernel import LoadedKernel

        try:
            if not isinstance(kernel, str):
                return LoadedKernel(kernel)
        except RuntimeError as error:
            kernel = str(error)
        NOT_COMPILED[self._bound.source.name] = kernel
        return None


def _overlap(tensors: Sequence[tuple[Tensor, bool]]) -> bool:
    """Whether a tensor that is written shares memory with another."""
    return any(
        (written or also_written) and tensor.shares_memory(other)
        for (tensor, written), (other, also_written) in itertools.combinations(tensors, 2)
    )


def _view(name: str, facts: ArgumentFacts, argument: Any) -> Any:
    if not isinstance(facts, TensorFacts):
        return argument.item() if isinstance(argument, np.generic) else argument
    tensor = argument.tensor if isinstance(argument, Partition) else argument
    array, shadow = tensor.host_view(noted=True), tensor.shadow_view()
    touched = None if facts.role == "in" else Touched(array.shape)
    return TensorView(name, array, facts.tile, facts.role != "out", facts.group, shadow, touched, facts.cluster)
