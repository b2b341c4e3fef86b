"""A specialisation of a kernel, and how it comes to run: on a CPU device as `on_cpu` says, compiled and loaded on a GPU."""

from __future__ import annotations

import functools
import hashlib
import struct
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilekit._capture.kernel_nodes import compiled_launch
from tilekit._driver.nodes import Node, Parameters
from tilekit._driver.protocol import Driver
from tilekit._driver.tensormaps import TensorMap
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler import cache
from tilekit.compiler.facts import ArgumentFacts, TensorFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.garbage import collector_paused
from tilekit.compiler.grids import AXIS_LIMITS, FOLDED_SLOTS, Fold, folded_grid
from tilekit.compiler.kernel import CompiledKernel
from tilekit.compiler.toolkit import importing_numba
from tilekit.errors import DeviceUnavailableError, SpillWarning
from tilekit.lang.registry import OPS
from tilekit.lang.size import MOST_WARPS
from tilekit.launch.on_cpu import OnCpu
from tilekit.launch.packing import packing
from tilekit.launch.sharing import Sharing
from tilekit.ops import Executable
from tilekit.settings import load_settings

__all__ = ["Loaded", "Specialisation", "packed_grid"]

_PACKAGE = Path(__file__).parents[1]
_NO_PADDING = str.maketrans("", "", "<x1234567890")  # what a format of the module struct has beside the types


class Specialisation:
    """One version of a kernel: for given generics, constants, facts about the arguments, warps and occupancy.

    Attributes:
        bound: the kernel, its generics bound.
        facts: about each argument.
        num_warps, occupancy: what was asked for; None leaves it to the compiler.
        fold: how the grids that it is launched on are folded; None for those that CUDA launches as they are.
        checks: whether it checks itself on a GPU, by `TILEKIT_CHECKS`.
        compilations: how many times the compiler ran for it, cache hits excluded.
    """

    def __init__(
        self,
        bound: BoundKernel,
        facts: tuple[ArgumentFacts, ...],
        num_warps: int | None,
        occupancy: int | None = None,
        fold: Fold | None = None,
    ) -> None:
        self.bound, self.facts, self.num_warps, self.occupancy, self.fold = bound, facts, num_warps, occupancy, fold
        self.compilations, self.checks = 0, load_settings().checks
        self._compiled: dict[str, CompiledKernel] = {}
        self._executables: dict[Device, Executable] = {}
        self._lock = threading.Lock()

    @property
    def ready_made(self) -> bool:
        """Whether the kernel is tilekit's own, whose launches choose their tiles by the device."""
        return Path(self.bound.source.filename).is_relative_to(_PACKAGE)

    @property
    def warps_on_cpu(self) -> int | None:
        """The warps that a CPU device takes the size of a block's tiles by: none, of tilekit's own kernels."""
        return None if self.ready_made else self.num_warps

    def loaded(self, device: Device) -> Executable | None:
        """What `executable` gives, if that takes no time; None if it would have to compile."""
        return self._executables.get(device) or (self.executable(device) if device.kind == "cpu" else None)

    def executable(self, device: Device) -> Executable:
        """The specialisation on `device`; compiled and loaded at the first call.

        Raises:
            CompileError: it cannot be compiled.
        """
        executable = self._executables.get(device)
        if executable is None:
            loaded: Executable = OnCpu(self) if device.kind == "cpu" else Loaded(self, device)
            executable = self._executables.setdefault(device, loaded)
        return executable

    def compiled(self, target: str) -> CompiledKernel:
        """The specialisation compiled for `target`: from memory, from the disk cache, or by numba now.

        Raises:
            CompileError: it cannot be compiled. ValueError: no such target.
        """
        with self._lock:
            kernel = self._compiled.get(target)
            if kernel is None:
                key = self.key(target)
                kernel = cache.load(key) if key else None
                if kernel is None:
                    self.compilations += 1
                    asked = (self.num_warps, target, self.occupancy)
                    with collector_paused():
                        with importing_numba():
                            from tilekit.compiler.build import build
                        kernel = build(self.bound, self.facts, *asked, checks=self.checks, fold=self.fold)
                    if key:
                        cache.save(key, kernel)
                self._compiled[target] = kernel
                self._warn(kernel)
            return kernel

    def adopt(self, target: str, kernel: CompiledKernel) -> None:
        """Take it compiled for `target` by another process."""
        with self._lock:
            self._compiled.setdefault(target, kernel)

    def _warn(self, kernel: CompiledKernel) -> None:
        """Tell that registers spill. Of a ready-made kernel nobody is told: its tiles are nothing that a caller has written."""
        source, spilled = self.bound.source, kernel.spilled_bytes
        if not spilled or self.ready_made:
            return
        warps = kernel.block[0] // 32
        cures = ["smaller tiles"]
        if self.num_warps is not None and self.num_warps < MOST_WARPS:
            cures.append(f"more warps than {self.num_warps} (num_warps={2 * self.num_warps})")
        if (self.occupancy or 1) > 1:
            cures.append(f"a lower occupancy than {self.occupancy}")
        text = (
            f"kernel {source.name} spills: each thread keeps {spilled:,} bytes in memory for which its {kernel.registers} "
            f"registers are too few (for {kernel.target}, {warps} warps a block); take {' or '.join(cures)}"
        )
        # By the kernel's line: whoever launches it may be anywhere, and a thread of tilekit's compiles it.
        warnings.warn_explicit(text, SpillWarning, source.filename, source.tree.lineno, self.bound.function.__module__)

    def dispatcher(self) -> Any:
        """The specialisation as a `numba.cuda.jit` dispatcher.

        Raises:
            DeviceUnavailableError: there is no GPU. ValueError: the grid is one that CUDA does not launch as it is.
        """
        if self.fold is not None:
            raise ValueError(
                f"kernel {self.bound.source.name}: numba launches grids of up to {AXIS_LIMITS} blocks along the axes 0, 1, 2; "
                "this launch's has more, and only tilekit folds it: take larger tiles, or launch it with tilekit"
            )
        from tilekit._runtime.device import cuda_unavailable_reason

        reason = cuda_unavailable_reason()
        if reason is not None:
            raise DeviceUnavailableError(f"a numba dispatcher needs a GPU: {reason}")
        with importing_numba():
            from tilekit.compiler.dispatcher import make_dispatcher

        return make_dispatcher(self.bound, self.facts, self.num_warps, self.occupancy)

    def key(self, target: str, *, places: bool = False) -> bytes | None:
        """What decides the compiled code, as a digest; None if something does that has no fingerprint.

        Args:
            target: what it is compiled for.
            places: whether lines do, too; they do where the kernel checks itself.
        """
        outside = [(name, _fingerprint(value)) for name, value in self.bound.outside.items()]
        if any(mark is None for _, mark in outside):
            return None
        options = (self.num_warps, self.occupancy, target, self.fold)
        parts: tuple[Any, ...] = (cache.toolchain_fingerprint(), self.bound.text, outside, self.facts, *options)
        if places or self.checks:  # what they say has lines
            parts = (*parts, "places", *self.bound.places())
        return hashlib.sha256(repr(parts).encode()).digest()


# Modules whose contents change with the versions in the toolchain's fingerprint only.
_STABLE_MODULES = ("tilekit", "numba", "math", "operator", "numpy")


def _fingerprint(value: Any) -> str | None:
    """A text that changes when `value` does, for values whose whole meaning is known."""
    if value is None or isinstance(value, (bool, int, float, str, np.dtype)):
        return repr(value)
    if isinstance(value, types.ModuleType):
        return value.__name__ if value.__name__.partition(".")[0] in _STABLE_MODULES else None
    for op in OPS.values():
        if op.function is value:
            return f"tk.{op.name}"
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module == "builtins" and name:
        return f"builtins.{name}"
    return None


class Loaded:
    """A specialisation on a GPU.

    The parameters are packed into one block that belongs to the specialisation, so packing and launching happen under a lock;
    the driver has copied them when the launch returns.

    Attributes:
        driver: the GPU's.
        function: what the driver launches.
        block, shared_bytes: the threads of a block along each axis, and its dynamic shared memory.
        facts: about each argument that is passed.
        fold: how the grids are folded; None for those that CUDA launches as they are.
        slots: the codes in the module struct of the arguments' parameters, eight bytes each.
        maps: of the tensor maps behind them the number of the argument, what encodes one, and those of recent tensors, by what a
            kernel gets of the tensor (`Tensor.flat`).
    """

    def __init__(self, specialisation: Specialisation, device: Device) -> None:
        compiled, facts = specialisation.compiled(device.target), specialisation.facts
        fold = specialisation.fold
        self.function = device.driver.load(compiled.cubin, compiled.entry, compiled.dynamic_shared_bytes, compiled.starts_early)
        if compiled.sites:
            device.driver.watch(self.function, compiled.sites)
        self.driver, self.block, self.shared_bytes = device.driver, compiled.block, compiled.dynamic_shared_bytes
        packer = struct.Struct(compiled.param_format)
        self.fold, self._own_bytes = fold, packer.size
        self._parameters = Parameters(packer.size // 8 + (FOLDED_SLOTS if fold else 0), len(compiled.maps))
        self._buffer, self._params = self._parameters.values, self._parameters.address
        self._pack = packing(facts, packer.pack_into)
        self.maps: list[tuple[int, _Encoder, dict[tuple[int, ...], bytes]]] = [
            (known.argument, _encoder(device.driver, known), {}) for known in compiled.maps
        ]
        self.facts, self.slots = facts, compiled.param_format.translate(_NO_PADDING).encode()
        self._lock, self._sharing = threading.Lock(), Sharing(specialisation)
        slots = [2 * f.rank + (f.unit is None) if isinstance(f, TensorFacts) else 1 for f in facts]
        self._first = [sum(slots[:at]) for at in range(len(slots))]  # of each argument

    def launch(self, ctx: ExecutionContext, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Launch on the stream."""
        with self._lock:
            self._pack(self._buffer, arguments)
            if self.fold is not None:
                _pack_grid(self._buffer, self._own_bytes, *grid)
                grid = folded_grid(grid)
            for at, (number, encode, recent) in enumerate(self.maps):
                tensor = _tensor_of(arguments[number])
                encoded = recent.get(tensor.flat)
                if encoded is None:
                    if len(recent) >= _MAPS_KEPT:
                        recent.clear()
                    encoded = recent[tensor.flat] = encode(tensor.address, tensor.shape, tensor.strides)
                self._parameters.put_map(at, encoded)
            self.driver.launch(self.function, grid, self.block, self.shared_bytes, ctx.stream.handle, self._params)

    def as_node(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> Node:
        """The launch, to be written down."""
        shared = self._sharing.of(grid, arguments)
        values = bytearray(8 * len(self.slots))
        self._pack(values, arguments)
        if self.fold is not None:
            values += packed_grid(*grid)
            grid = folded_grid(grid)
        placed = list(zip(arguments, self._first, self._sharing.written, strict=True))
        maps = []
        for number, encode, _ in self.maps:
            tensor = _tensor_of(arguments[number])
            maps.append((number, functools.partial(_again, encode, tensor.shape, tensor.strides)))
        codes = self.slots.decode()
        return compiled_launch(
            self.function, grid, self.block, self.shared_bytes, bytes(values), codes, placed, maps=maps, shared=shared
        )


_GRID = struct.Struct(f"={FOLDED_SLOTS}q")  # of a launch whose grid is folded: what the kernel gets behind its other parameters
_pack_grid, packed_grid = _GRID.pack_into, _GRID.pack
_Encoder = Callable[[int, tuple[int, ...], tuple[int, ...]], bytes]
_MAPS_KEPT = 256  # of one parameter


def _encoder(driver: Driver, known: TensorMap) -> _Encoder:
    """`Driver.tensor_map` for one parameter. It remembers the maps of recent tensors."""
    return functools.lru_cache(_MAPS_KEPT)(functools.partial(driver.tensor_map, known))


def _tensor_of(argument: Any) -> Tensor:
    """A tensor, or a partition's."""
    tensor: Tensor = argument.tensor if isinstance(argument, Partition) else argument
    return tensor


def _again(encode: _Encoder, shape: tuple[int, ...], strides: tuple[int, ...], address: int) -> bytes:
    """The map of a tensor that looks the same, elsewhere."""
    return encode(address, shape, strides)
