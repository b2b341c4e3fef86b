"""One form of a kernel to machine code, with or without a GPU.

numba types and lowers the Python function, NVVM makes PTX of it, nvJitLink a cubin. None of them needs a device, but numba asks
for one whenever a kernel calls a device function; `numba_patches` answers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar

from cuda.pathfinder import DynamicLibNotFoundError
from llvmlite import ir
from numba.cuda import cgutils, compiler, types
from numba.cuda.cudadrv.error import NvvmSupportError

from tilekit._driver.report import Site
from tilekit.compiler import lower, toolkit
from tilekit.compiler.codegen.blocks import pass_the_grid
from tilekit.compiler.codegen.compilation import Compilation, Crowded, MoreWarps, Pipelines, compiling, current
from tilekit.compiler.codegen.diagnose import compile_error
from tilekit.compiler.codegen.types import argument_type
from tilekit.compiler.cubin import read_resources
from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.inlining import inlined
from tilekit.compiler.frontend.pipelined import plain
from tilekit.compiler.grids import Fold, Visits
from tilekit.compiler.kernel import CompiledKernel, param_format
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.numba_patches import patched
from tilekit.compiler.nvidia import ptxas_defects
from tilekit.compiler.nvidia.early_starts import let_begin
from tilekit.compiler.passes.rings import Unfit
from tilekit.compiler.target import STATIC_SHARED_BYTES, numba_capability, of
from tilekit.errors import CompileError
from tilekit.lang.size import sized

__all__ = ["argument_types", "assembled", "translate"]

T = TypeVar("T")

_MAP_ALIGNMENT = 64  # bytes

assert lower.__all__, "importing it registers the tile operations"


def assembled(
    bound: BoundKernel,
    facts: Sequence[ArgumentFacts],
    config: Config,
    target: str,
    occupancy: int | None,
    pipelines: Pipelines | None,
    *,
    checks: bool,
    grows: bool,
    fold: Fold | None,
    visits: Visits | None,
) -> tuple[CompiledKernel, Compilation]:
    """The kernel that a form is, with rings for its pipelines or without, and what is known of its compilation."""
    capability, arguments = numba_capability(target), argument_types(bound.names, facts, config)
    threads = config.num_threads + (pipelines.producers if pipelines else 0)

    def compile_function(function: FunctionType) -> tuple[str, bytes]:
        library, _ = compiler._compile_pyfunc_with_fixup(
            function, arguments, device=False, abi="numba", cc=capability, fastmath=False,
            launch_bounds=(threads, occupancy or 1), lto=False,
        )  # fmt: skip
        if fold is not None:
            pass_the_grid(library.get_function(library._entry_name), fold)
        if pipelines is not None:
            if pipelines.early:
                let_begin(library.get_function(library._entry_name))
            _run_together(library, pipelines.cluster)
            _pass_by_value(library, len(pipelines.maps))
        # What is linked as a whole program comes from LLVM's code, not from this PTX.
        if ptxas_defects.mend(library, capability) and pipelines is not None:
            raise Unfit("it has arithmetic on integers that ptxas gets wrong there")
        ptx = library.get_asm_str(cc=capability)
        _check_own(ptx, current(), bound)
        # Of equal shares: ptxas does not look at what `setmaxnreg` gives those who multiply.
        if ptxas_defects.registers_wanted(ptx) > current().target.registers_of(threads * (occupancy or 1)):
            if pipelines is not None:
                pipelines.few_registers = True
            raise Unfit(f"its products need more registers than threads of {config.num_warps} warps and those that load have")
        # In whole programs alone ptxas deals registers out anew, and has no calls that products would have to end before.
        library._lto = pipelines is not None
        cubin = bytes(library.get_cubin(cc=capability).code)
        _look_at_log(library._linkerinfo_cache.get(capability) or "", current())
        return ptx, cubin

    with patched(capability):
        (ptx, cubin), compilation = translate(
            bound, config, arguments, capability, compile_function, checks=checks, grows=grows, pipelines=pipelines, fold=fold,
            visits=visits,
        )  # fmt: skip
    entry = re.search(r"\.entry\s+(\w+)\(", ptx)
    assert entry, "a kernel has an entry"
    resources = read_resources(cubin, entry[1])
    kernel = CompiledKernel(
        entry=entry[1],
        ptx=ptx,
        cubin=cubin,
        target=target,
        registers=resources.registers,
        shared_bytes=resources.shared_bytes,
        dynamic_shared_bytes=compilation.dynamic_bytes if pipelines is None else pipelines.shared_bytes,
        local_bytes=resources.local_bytes,
        block=(threads, 1, 1),
        param_format=param_format(facts),
        sites=tuple(Site(bound.source.name, *site) for site in compilation.sites),
        maps=() if pipelines is None else tuple(pipelines.maps),
    )
    return kernel, compilation


def _look_at_log(log: str, compilation: Compilation) -> None:
    """Note what ptxas says of the products: that of others they wait."""
    match = re.search(
        r"wgmma\.mma_async instructions are serialized due to (.*?)(?: (?:in|for) the function|$)", log, re.MULTILINE
    )
    if match is not None:
        compilation.serialised = match[1]
        if compilation.notes is not None:
            compilation.notes.append((0, "serialised", match[1]))


def _check_own(ptx: str, compilation: Compilation, bound: BoundKernel) -> None:
    """Make sure that a block has shared memory for a kernel's own arrays (`cuda.shared.array`) beside that of its operations.

    Raises:
        Crowded, Unfit: it may have, with all of that in one room, or without rings of stages.
        CompileError: it has not.
    """
    static = sum(int(size) for size in re.findall(r"^\s*(?:\.visible )?\.shared .*?\.b8 \S+\[(\d+)\];", ptx, re.MULTILINE))
    own, limit = static - compilation.static_bytes, compilation.target.block_shared_bytes
    if own <= 0 or (static <= STATIC_SHARED_BYTES and static + compilation.dynamic_bytes <= limit):
        return
    if compilation.pipelines is not None:
        raise Unfit(f"the kernel has arrays of {own:,} bytes in shared memory")
    if not compilation.crowded and compilation.static_bytes:
        raise Crowded
    gpu, left = compilation.target.label, max(0, min(STATIC_SHARED_BYTES, limit - compilation.dynamic_bytes))
    arrays = (n for n in ast.walk(bound.source.tree) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith("shared.array"))
    first = next(arrays, bound.source.tree)
    raise bound.source.error(
        f"arrays of {own:,} bytes of shared memory, and a block of {gpu} has {left:,} for them beside what tile "
        "operations take; take smaller ones", first.lineno, "array",
    )  # fmt: skip


def _pass_by_value(library: Any, count: int) -> None:
    """Make a kernel's last parameters, which are tensor maps, ones whose contents are passed, and whose address can be taken."""
    if not count:
        return
    kernel = library.get_function(library._entry_name)
    numbers = range(len(kernel.args) - count, len(kernel.args))
    for number in numbers:
        kernel.args[number].add_attribute("byval")
        kernel.args[number].attributes.align = _MAP_ALIGNMENT
    module = kernel.module
    places = module.add_metadata(tuple(ir.Constant(ir.IntType(32), number + 1) for number in numbers))
    annotations = cgutils.get_or_insert_named_metadata(module, "nvvm.annotations")
    annotations.add(module.add_metadata((kernel, ir.MetaDataString(module, "grid_constant"), places)))
    if not current().target.typed_attributes:
        library._llvm_strs = [re.sub(r"byval\(\[\d+ x i64\]\)", "byval", text) for text in library.llvm_strs]


def _run_together(library: Any, blocks: int) -> None:
    """Make so many neighbouring blocks of a kernel a cluster."""
    if blocks == 1:
        return
    kernel = library.get_function(library._entry_name)
    annotations = cgutils.get_or_insert_named_metadata(kernel.module, "nvvm.annotations")
    for axis, count in zip("xyz", (blocks, 1, 1), strict=True):
        name = ir.MetaDataString(kernel.module, f"cluster_dim_{axis}")
        annotations.add(kernel.module.add_metadata((kernel, name, ir.Constant(ir.IntType(32), count))))


def argument_types(names: Sequence[str], facts: Sequence[ArgumentFacts], config: Config) -> tuple[types.Type, ...]:
    """The numba types of a kernel's parameters."""
    return tuple(argument_type(name, fact, config) for name, fact in zip(names, facts, strict=True))


def translate(
    bound: BoundKernel,
    config: Config,
    arguments: tuple[types.Type, ...],
    capability: tuple[Any, ...],
    compile_function: Callable[[FunctionType], T],
    *,
    checks: bool = False,
    grows: bool = False,
    pipelines: Pipelines | None = None,
    fold: Fold | None = None,
    visits: Visits | None = None,
    crowded: bool = False,
) -> tuple[T, Compilation]:
    """Let numba compile `bound`: the tile operations know `config`, and numba's errors become `CompileError`.

    Args:
        bound, config: the kernel, and what its tiles share.
        arguments: the types of its parameters.
        capability: what it is compiled for, as numba writes it.
        compile_function: what compiles the function that is the kernel.
        checks: whether it makes sure of indices while it runs.
        grows: whether to stop where more warps are wanted.
        pipelines: what rings of stages share; None for pipelines that load as they go.
        fold: as for `build`.
        visits: in which order its blocks are visited; None for that of their numbers.
        crowded: see `Compilation`; where it is wanted, it is tried.

    Returns:
        What `compile_function` gives, and what is known of the compilation.

    Raises:
        CompileError: what `compile_error` makes of any error.
        MoreWarps: a tile is too large for these, if `grows`.
        Unfit: its pipelines cannot be rings.
        TilekitError: NVVM or nvJitLink is not installed.
    """
    if pipelines is None:
        bound = plain(bound)
    with (
        sized(None if grows else config.num_warps),
        compiling(
            config,
            loops=bound.loops,
            lines=bound.lines,
            checks=checks,
            grows=grows,
            target=of((capability[0], capability[1])),
            pipelines=pipelines,
            fold=fold,
            visits=visits,
            crowded=crowded,
        ) as compilation,
    ):
        function, called = inlined(bound)
        try:
            return compile_function(function), compilation
        except (MoreWarps, Unfit):
            raise
        except Crowded:
            crowded = True
        except (DynamicLibNotFoundError, NvvmSupportError) as error:
            raise toolkit.not_installed(error) from error
        except Exception as error:
            if isinstance(error, CompileError) and error.lineno is not None:
                raise
            at_the_line = compile_error(error, bound.source, called)
            raise at_the_line from at_the_line.__cause__
    return translate(
        bound,
        config,
        arguments,
        capability,
        compile_function,
        checks=checks,
        grows=grows,
        pipelines=pipelines,
        fold=fold,
        visits=visits,
        crowded=crowded,
    )
