"""From a bound kernel to machine code, with or without a GPU.

numba types and lowers the Python function, NVVM makes PTX of it, nvJitLink a cubin. None of them needs a device, but numba asks
for one whenever a kernel calls a device function; `_standing_in` answers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cuda.pathfinder import DynamicLibNotFoundError
from numba.cuda import compiler, dispatcher, types
from numba.cuda.cudadrv.error import NvvmSupportError

from tilekit.compiler import lower
from tilekit.compiler.bound import BoundKernel
from tilekit.compiler.cubin import read_resources
from tilekit.compiler.diagnose import explain
from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.inlining import inlined
from tilekit.compiler.kernel import CompiledKernel, choose_config, param_format, target_capability
from tilekit.compiler.layout import Config
from tilekit.compiler.source import KernelSource
from tilekit.compiler.types import Compilation, argument_type, compiling
from tilekit.driver.report import Site
from tilekit.errors import TilekitError

__all__ = ["CompiledKernel", "argument_types", "build", "translated"]

assert lower.__all__, "importing it registers the tile operations"


def build(
    bound: BoundKernel,
    facts: Sequence[ArgumentFacts],
    num_warps: int | None,
    target: str,
    occupancy: int | None = None,
    *,
    checks: bool = False,
) -> CompiledKernel:
    """Compile a kernel.

    Args:
        bound: its generics bound.
        facts: what may be assumed about each argument.
        num_warps: warps in a block, a power of two; None leaves it to the compiler.
        target: `"sm_90a"`, see `compiler.kernel.TARGETS`.
        checks: whether it makes sure of indices while it runs, see `TILEKIT_CHECKS`.
        occupancy: blocks that a multiprocessor should have room for; a thread gets no more registers than that leaves.

    Raises:
        CompileError: the kernel cannot be compiled; it points at the user's line.
        ValueError: there is no such target.
    """
    capability, config = target_capability(target), choose_config(facts, num_warps)
    function, called = inlined(bound)
    with translated(bound, config, called, checks=checks) as compilation, _standing_in(capability):
        library, _ = compiler._compile_pyfunc_with_fixup(
            function, argument_types(bound.names, facts, config), device=False, abi="numba", cc=capability, fastmath=False,
            launch_bounds=(config.num_threads, occupancy or 1), lto=False,
        )  # fmt: skip
        library._lto = False
        ptx = library.get_asm_str(cc=capability)
        cubin = bytes(library.get_cubin(cc=capability).code)
    entry = re.search(r"\.entry\s+(\w+)\(", ptx)
    assert entry, "a kernel has an entry"
    resources = read_resources(cubin, entry[1])
    return CompiledKernel(
        entry=entry[1],
        ptx=ptx,
        cubin=cubin,
        target=target,
        registers=resources.registers,
        shared_bytes=resources.shared_bytes,
        dynamic_shared_bytes=compilation.dynamic_bytes,
        local_bytes=resources.local_bytes,
        block=(config.num_threads, 1, 1),
        param_format=param_format(facts),
        sites=tuple(Site(bound.source.name, *site) for site in compilation.sites),
    )


def argument_types(names: Sequence[str], facts: Sequence[ArgumentFacts], config: Config) -> tuple[types.Type, ...]:
    """The numba types of a kernel's parameters."""
    return tuple(argument_type(name, fact, config) for name, fact in zip(names, facts, strict=True))


@contextmanager
def translated(
    bound: BoundKernel, config: Config, called: Mapping[str, KernelSource], *, checks: bool = False
) -> Iterator[Compilation]:
    """Let numba compile `bound`: the tile operations know `config`, and numba's errors become `CompileError`.

    Args:
        bound, config: the kernel, and what its tiles share.
        called: the sources of the functions that it calls, see `inlined`.
        checks: whether it makes sure of indices while it runs.

    Raises:
        CompileError: what `explain` makes of any error.
        TilekitError: NVVM or nvJitLink is not installed.
    """
    with compiling(config, loops=bound.loops, checks=checks) as compilation:
        try:
            yield compilation
        except (DynamicLibNotFoundError, NvvmSupportError) as error:
            raise TilekitError(
                'kernels are compiled by parts of the CUDA toolkit that are not installed here: pip install "numba-cuda[cu13]" '
                f"(or cu12, for a driver of CUDA 12). {str(error).splitlines()[0]}"
            ) from error
        except Exception as error:
            explained = explain(error, bound.source, called)
            raise explained from explained.__cause__


class _StandIn:
    """As much of a device as numba's compiler asks for."""

    id = 0

    def __init__(self, capability: tuple[Any, ...]) -> None:
        self.compute_capability = capability[:2]


_patching = threading.Lock()


@contextmanager
def _standing_in(capability: tuple[Any, ...]) -> Iterator[None]:
    """While the block runs, numba's dispatcher finds the target device, in this thread.

    Compiling a call of a device function asks for the current device even when the target is given (numba-cuda 0.30.4,
    dispatcher.py:2065), which fails without a GPU, and with one would make a context and compile for the wrong architecture.
    There is no argument for it: this is tilekit's one patch of another module. Other threads keep the original.
    """
    stand_in, thread = _StandIn(capability), threading.get_ident()
    with _patching:
        original = dispatcher.get_current_device

        def current_device() -> Any:
            return stand_in if threading.get_ident() == thread else original()

        dispatcher.get_current_device = current_device
        try:
            yield
        finally:
            dispatcher.get_current_device = original
