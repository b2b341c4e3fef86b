"""A specialisation as a genuine `numba.cuda.jit` function: `d[grid, block, numba_stream](*arguments)`.

numba passes arguments as the types of its own; an extension turns tensors into the flat integers that the kernel takes, after
checking that they are what the specialisation assumes. Nobody checks the grid of such a launch, so nothing is taken for granted
about tile indices here: what a block beyond the partition would touch is masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numba.cuda import types

from tilekit import dtypes
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.assembly import argument_types, translate
from tilekit.compiler.build import as_written, with_enough_warps
from tilekit.compiler.codegen.compilation import Compilation
from tilekit.compiler.codegen.types import TensorType
from tilekit.compiler.facts import MOST_NARROW, ArgumentFacts, TensorFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.ir.verdict import verdict
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.nvidia import ptxas_defects
from tilekit.errors import TilekitError

__all__ = ["make_dispatcher"]


def make_dispatcher(
    bound: BoundKernel, facts: Sequence[ArgumentFacts], num_warps: int | None, occupancy: int | None = None
) -> Any:
    """Compile `bound` for the current GPU as a numba dispatcher.

    Args:
        bound, facts, num_warps, occupancy: as for `build`.

    Returns:
        A `numba.cuda.dispatcher.CUDADispatcher` with this one signature, for blocks of `dispatcher.block` threads. It takes
        tensors, partitions, and whatever has a `__cuda_array_interface__`: numba's device arrays, torch's, cupy's.

    Raises:
        CompileError: the kernel cannot be compiled.
        TilekitError: it needs more than 48 KB of shared memory.
    """
    accepted = verdict(bound, facts, num_warps)
    accepted.announce()
    unproven = [f._replace(covered=False, short=0) if isinstance(f, TensorFacts) else f._replace(positive=False) for f in facts]
    capability = cuda.get_current_device().compute_capability

    def attempt(config: Config) -> tuple[Any, Compilation]:
        signature = argument_types(bound.names, unproven, config)
        decorate = cuda.jit(signature, extensions=[_Flatten()], launch_bounds=(config.num_threads, occupancy or 1), lto=False)

        def compiled(form: BoundKernel) -> tuple[Any, Compilation]:
            return translate(
                form, config, signature, capability, lambda function: _mended(decorate(function)), grows=num_warps is None
            )

        return as_written(accepted, config, compiled)[0]

    dispatcher, compilation = with_enough_warps(accepted, facts, num_warps, attempt)
    if compilation.dynamic_bytes:
        raise TilekitError(
            f"kernel {bound.source.name} needs {compilation.dynamic_bytes} bytes of dynamic shared memory, which numba "
            "does not give a launch; take smaller tiles, or launch it with tilekit"
        )
    dispatcher.block = compilation.config.num_threads
    return dispatcher


def _mended(compiled: Any) -> Any:
    """A dispatcher that assembles its kernel anew when it is next asked for it, where ptxas would get it wrong."""
    for kernel in compiled.overloads.values():
        library = kernel._codelibrary
        if ptxas_defects.mend(library):
            library._cubin_cache.clear()
            library._cufunc_cache.clear()
    return compiled


class _Flatten:
    """numba's hook for arguments: called for each, and for each part of what it returns."""

    def prepare_args(self, ty: types.Type, value: Any, stream: Any, retr: Any) -> tuple[types.Type, Any]:
        """The type and value that numba passes for `value`."""
        if not isinstance(ty, TensorType):
            return ty, value
        facts, memory = ty.facts, _memory(ty.parameter, value)
        _check(ty, memory)
        extent = types.int64 if facts.wide else types.int32
        strides = [stride for dim, stride in enumerate(memory.strides) if dim != facts.unit]
        flat = types.Tuple([types.uint64, *[extent] * facts.rank, *[types.int64] * len(strides)])
        return flat, (memory.address, *memory.shape, *strides)


class _Memory(NamedTuple):
    """Device memory; strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any] | None
    tile: tuple[int, ...] | None
    writable: bool


def _memory(name: str, value: Any) -> _Memory:
    if isinstance(value, Partition):
        return _memory(name, value.tensor)._replace(tile=value.tile_shape)
    if isinstance(value, Tensor):
        writable = value.storage is None or value.storage.readonly is None
        return _Memory(value.address, value.shape, value.strides, value.dtype, None, writable)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(
            f"{name}: needs a tensor in GPU memory (tilekit's, or what has __cuda_array_interface__), not {type(value).__name__}"
        )
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    address, read_only = interface["data"]
    steps = interface.get("strides")
    if steps is None:
        steps = [dtype.itemsize] * len(shape)
        for dim in reversed(range(len(shape) - 1)):
            steps[dim] = steps[dim + 1] * shape[dim + 1]
    if any(step % dtype.itemsize for step in steps):
        raise ValueError(f"{name}: strides of {tuple(steps)} bytes are no multiples of the element's {dtype.itemsize}")
    strides = tuple(step // dtype.itemsize for step in steps)
    return _Memory(int(address), shape, strides, dtype, None, not read_only)


def _check(ty: TensorType, memory: _Memory) -> None:
    """Refuse memory that is not what the specialisation was compiled for."""
    name, facts = ty.parameter, ty.facts
    problem = None
    if memory.dtype != dtypes.as_dtype(facts.dtype):
        problem = f"elements of {memory.dtype}, not {facts.dtype}"
    elif len(memory.shape) != facts.rank:
        problem = f"{len(memory.shape)} dimensions, not {facts.rank}"
    elif memory.tile is not None and facts.tile is not None and memory.tile != facts.tile:
        problem = f"tiles of {memory.tile}, not {facts.tile}"
    elif facts.role != "in" and not memory.writable:
        problem = "read-only memory, and the kernel writes it"
    elif memory.address % facts.align:
        problem = f"an address that is no multiple of {facts.align} bytes"
    elif not facts.wide and max(memory.shape, default=0) > MOST_NARROW:
        problem = "an extent of more than 2^31 - 2^24"
    elif not facts.many and facts.group is None and math.prod(memory.shape) >= 1 << 31:
        problem = "2^31 elements or more"
    else:
        for dim, (extent, stride) in enumerate(zip(memory.shape, memory.strides, strict=True)):
            if extent % facts.extents[dim] or (not extent and facts.extents[dim] > 1):
                problem = f"extent {extent} in dimension {dim}, no positive multiple of {facts.extents[dim]}"
            elif dim == facts.unit and stride != 1 and extent > 1:
                problem = f"stride {stride} in dimension {dim}, not 1"
            elif dim != facts.unit and stride % facts.strides[dim] and extent > 1:
                problem = f"stride {stride} in dimension {dim}, no multiple of {facts.strides[dim]}"
    if problem:
        raise ValueError(
            f"{name} has {problem}: this dispatcher is one specialisation; get another with .dispatcher() for such arguments"
        )
