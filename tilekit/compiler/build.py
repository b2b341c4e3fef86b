"""From a bound kernel to machine code, with or without a GPU.

numba types and lowers the Python function, NVVM makes PTX of it, nvJitLink a cubin. None of them needs a device, but numba asks
for one whenever a kernel calls a device function; `numba_patches` answers.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
from tilekit.compiler.codegen.types import TensorType, argument_type
from tilekit.compiler.cubin import read_resources
from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.inlining import inlined
from tilekit.compiler.frontend.pipelined import pipelined_loops, plain
from tilekit.compiler.grids import Fold, Visits
from tilekit.compiler.ir.remarks import Remark
from tilekit.compiler.ir.verdict import Accepted, verdict
from tilekit.compiler.kernel import CompiledKernel, choose_config, param_format
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.numba_patches import patched
from tilekit.compiler.nvidia import ptxas_defects
from tilekit.compiler.nvidia.early_starts import let_begin
from tilekit.compiler.nvidia.multibuffer import deals_registers, fewest_producers, producers_of
from tilekit.compiler.optimize import Form, dump, folded, forms, simplified
from tilekit.compiler.passes.rings import Unfit
from tilekit.compiler.passes.visits import ORDER
from tilekit.compiler.target import STATIC_SHARED_BYTES, named, numba_capability, of
from tilekit.errors import CompileError
from tilekit.lang.size import MOST_WARPS, sized

__all__ = ["CompiledKernel", "argument_types", "as_written", "build", "translate", "with_enough_warps"]

T = TypeVar("T")

_log = logging.getLogger("tilekit")
_MAP_ALIGNMENT = 64  # bytes

assert lower.__all__, "importing it registers the tile operations"


def build(
    bound: BoundKernel,
    facts: Sequence[ArgumentFacts],
    num_warps: int | None,
    target: str,
    occupancy: int | None = None,
    *,
    checks: bool = False,
    fold: Fold | None = None,
) -> CompiledKernel:
    """Compile a kernel.

    Args:
        bound: its generics bound.
        facts: what may be assumed about each argument.
        num_warps: warps in a block, a power of two; None leaves it to the compiler, which takes more where registers spill.
        target: `"sm_90a"`, see `compiler.target.TARGETS`.
        checks: whether it makes sure of indices while it runs, see `TILEKIT_CHECKS`.
        occupancy: blocks that a multiprocessor should have room for; a thread gets no more registers than that leaves.
        fold: how the grid is folded, see `compiler.grids`; None if it is not.

    Raises:
        CompileError: the kernel cannot be compiled; it points at the user's line.
        ValueError: there is no such target.
    """

    accepted = verdict(bound, facts, num_warps)
    accepted.announce()
    dump(accepted, target)

    def attempt(config: Config) -> tuple[CompiledKernel, Compilation]:
        return _compiled(accepted, facts, config, target, occupancy, checks=checks, grows=num_warps is None, fold=fold)

    kernel, compilation = with_enough_warps(accepted, facts, num_warps, attempt)
    notes = list(compilation.notes or ())
    while num_warps is None and occupancy is None and kernel.spilled_bytes and compilation.config.num_warps < MOST_WARPS:
        other, compilation = attempt(choose_config(facts, 2 * compilation.config.num_warps, accepted.accesses, accepted.folded))
        if other.local_bytes >= kernel.local_bytes:
            break
        kernel, notes = other, list(compilation.notes or ())
    if compilation.notes is not None:
        compilation.notes[:] = notes
    return kernel


def with_enough_warps(
    accepted: Accepted, facts: Sequence[ArgumentFacts], num_warps: int | None, attempt: Callable[[Config], T]
) -> T:
    """What `attempt` gives for `num_warps`; or, if that is None, for so many that the largest tile has room in registers."""
    config = choose_config(facts, num_warps, accepted.accesses, accepted.folded)
    while True:
        try:
            return attempt(config)
        except MoreWarps as wanted:
            config = choose_config(facts, wanted.num_warps, accepted.accesses, accepted.folded)


Attempt = Callable[[BoundKernel, Pipelines | None], tuple[CompiledKernel, Compilation]]


def _compiled(
    accepted: Accepted,
    facts: Sequence[ArgumentFacts],
    config: Config,
    target: str,
    occupancy: int | None,
    *,
    checks: bool,
    grows: bool,
    fold: Fold | None,
) -> tuple[CompiledKernel, Compilation]:
    """A kernel for blocks of so many warps, and what is known of its compilation."""

    visits: Visits | None = None

    def attempt(form: BoundKernel, pipelines: Pipelines | None) -> tuple[CompiledKernel, Compilation]:
        def assembled() -> tuple[CompiledKernel, Compilation]:
            return _assembled(
                form, facts, config, target, occupancy, pipelines, checks=checks, grows=grows, fold=fold, visits=visits
            )

        return assembled() if pipelines else unspilled(assembled)

    def ringed(form: Form) -> tuple[CompiledKernel, Compilation]:
        if form.unfit is not None:
            raise form.unfit
        return unspilled(lambda: _with_rings(form, facts, config, target, occupancy, attempt))

    def unspilled(compile_: Callable[[], tuple[CompiledKernel, Compilation]]) -> tuple[CompiledKernel, Compilation]:
        """The kernel; with blocks in the order of their numbers, if there are no registers for another."""
        nonlocal visits
        kernel, compilation = compile_()
        if visits is None or not kernel.spilled_bytes:
            return kernel, compilation
        visits = None
        kernel, compilation = compile_()
        if compilation.notes is not None:
            compilation.notes.append((0, f"no {ORDER}", "there are no registers left for it"))
        return kernel, compilation

    # A check of an index looks at each load as it is written.
    others: Iterator[Form] = iter(()) if checks else forms(accepted, target, config)
    form = next(others, None)
    visits = None if form is None else form.visits
    if form is None or not form.rotated:
        return _unrotated(accepted, config, attempt, ringed, form)
    try:
        kernel, compilation = ringed(form)
    except (Unfit, CompileError) as error:
        reason = str(error)
    else:
        reason = _no_gain(kernel, compilation)
        if not reason:
            return kernel, compilation
    kernel, compilation = _unrotated(accepted, config, attempt, ringed, next(others, None))
    if compilation.notes is not None:
        compilation.notes.append((0, "no rotation", reason))
    return kernel, compilation


def _no_gain(kernel: CompiledKernel, compilation: Compilation) -> str:
    """Why a kernel whose loops are rotated is no faster than it was; empty if it is."""
    assert compilation.pipelines is not None, "it has rings"
    if kernel.spilled_bytes > _FEW_SPILLS:
        return f"rotated, it would spill {kernel.spilled_bytes} bytes of registers"
    if compilation.serialised:
        return f"ptxas would run its products one after the other: {compilation.serialised}"
    return "" if compilation.pipelines.fewest > 1 else "rotated, it would have shared memory for no tiles ahead"


def _unrotated(
    accepted: Accepted,
    config: Config,
    attempt: Attempt,
    ringed_form: Callable[[Form], tuple[CompiledKernel, Compilation]],
    form: Form | None,
) -> tuple[CompiledKernel, Compilation]:
    """A kernel with its loops as they are: with rings (`form`), or as it is written, without."""
    asked = pipelined_loops(accepted.bound)
    reason: Unfit | CompileError | None = None
    ringed = None
    if form is not None:
        try:
            ringed = ringed_form(form)
        except (Unfit, CompileError) as error:
            reason = error
    if ringed is not None and (asked or ringed[0].spilled_bytes <= _FEW_SPILLS):
        return ringed
    notes = None if ringed is None else list(ringed[1].notes or ())
    # It says what is wrong with the user's text.
    (kernel, compilation), remarks = as_written(accepted, config, lambda bound: attempt(bound, None))
    if isinstance(reason, CompileError):
        _log.warning(
            "tilekit: kernel %s has no rings of stages, since with them it failed: %s", accepted.bound.source.name, reason
        )
    if ringed is not None and (ringed[0].local_bytes <= kernel.local_bytes or _multiplies_faster(ringed[0], kernel)):
        if compilation.notes is not None:
            compilation.notes[:] = notes or ()
        return ringed
    if compilation.notes is not None and asked and reason is not None:
        compilation.notes.append((asked[0].lineno, "no ring", str(reason)))
    if compilation.notes is not None:  # for `explain`: what passes over its IR would have done was not done
        spilling = ringed and f"with tiles loaded ahead it would spill {ringed[0].spilled_bytes} bytes of registers"
        compilation.notes.append((0, "as written", str(reason or spilling or "no loop loads tiles ahead")))
        compilation.notes.extend((0, "remark", remark) for remark in remarks)
    return kernel, compilation


def _multiplies_faster(kernel: CompiledKernel, other: CompiledKernel) -> bool:
    """Whether only the one has instructions of warpgroups: two to three times as fast, which outweighs some spills.

    What spills is mostly what the kernel does with the sums, once: the loop has what it needs.
    """
    return kernel.spilled_bytes <= _MANY_SPILLS and _has_wgmma(kernel) and not _has_wgmma(other)


def _has_wgmma(kernel: CompiledKernel) -> bool:
    return "wgmma." in kernel.ptx


def as_written(accepted: Accepted, config: Config, attempt: Callable[[BoundKernel], T]) -> tuple[T, list[Remark]]:
    """A kernel without rings, and what passes said of it. Where numba does not take its text, with a variable that is unset above
    or a path that types exclude, it is written anew."""
    by_parts = folded(accepted, config)
    if by_parts is not None:
        with suppress(CompileError):  # then the one of the user's own text is raised
            return attempt(by_parts[0]), by_parts[1]
    try:
        return attempt(accepted.compilable), []
    except CompileError:
        anew = simplified(accepted)
        with suppress(CompileError):
            if anew is not None:
                return attempt(anew), []
        raise


# Bytes of a thread: which cost less than loads that nothing hides, and less than products of single warps.
_FEW_SPILLS, _MANY_SPILLS = 128, 1024
_SPARE = 16  # registers of a thread


def _with_rings(
    form: Form,
    facts: Sequence[ArgumentFacts],
    config: Config,
    target: str,
    occupancy: int | None,
    attempt: Attempt,
) -> tuple[CompiledKernel, Compilation]:
    """A kernel with rings of stages for its loops over streams.

    Raises:
        Unfit: it cannot have them.
    """
    types_, gpu = argument_types(form.bound.names, facts, config), named(target)
    tensors = {ty.parameter: (at, ty) for at, ty in enumerate(types_) if isinstance(ty, TensorType)}
    producers, room = producers_of(gpu, config.num_warps), gpu.room
    fewer, may_deal = fewest_producers(config.num_warps), deals_registers(gpu)

    # Not where each thread has as many as it can use; and in blocks that share a multiprocessor only if they have to be.
    short = gpu.registers_of(config.num_threads + producers) < gpu.thread_registers
    alone = may_deal and short and (occupancy or 1) == 1
    narrow = False  # whether instructions of products have fewer columns

    def state(rooms: int, kept: int, *, apart: bool = True, deals: bool = alone, spare: int = 0) -> Pipelines:
        return Pipelines(
            tensors, gpu, form.rings, producers=producers, shared=room, resident=occupancy or 1,
            alone=alone or occupancy == 1, rooms=rooms, kept=kept, apart=apart, deals=deals and may_deal, spare=spare,
            narrow=narrow,
        )  # fmt: skip

    tried, spilling = state(0, 0), None
    while True:
        try:
            kernel, compilation = attempt(form.bound, tried)
        except (Unfit, CompileError):
            if tried.few_registers and producers > fewer:
                producers, may_deal = fewer, False  # and have no registers to give
                tried = state(tried.rooms, tried.kept, apart=tried.apart)
                continue
            if spilling is None:
                raise
            return spilling
        rooms = compilation.dynamic_bytes
        if rooms <= tried.rooms and kernel.shared_bytes + kernel.dynamic_shared_bytes <= room:
            # ptxas has each product wait where registers are short, and where it sees their operands written too early.
            if tried.operand_sets and (kernel.spilled_bytes or compilation.serialised):
                tried = state(tried.rooms, tried.kept, apart=False, deals=tried.deals)
                continue
            if (occupancy or 1) > 1 and kernel.spilled_bytes:
                if deals_registers(gpu) and not may_deal and not narrow and _has_wgmma(kernel):
                    # Instructions of fewer columns want no more registers than all begin with; those who load have some to give.
                    spilling, narrow = (kernel, compilation), True
                    producers, may_deal = producers_of(gpu, config.num_warps), True
                    tried = state(tried.rooms, tried.kept, apart=tried.apart, deals=True)
                    continue
                if may_deal and not tried.deals:
                    tried = state(tried.rooms, tried.kept, apart=tried.apart, deals=True, spare=tried.spare)
                    continue
                # Those who copy words for sums by threads may spill what they need once in a turn: it is not they who are late.
                if tried.deals and tried.summed and kernel.spilled_bytes <= _FEW_SPILLS:
                    return kernel, compilation
                if not _has_wgmma(kernel):  # else what it spills is weighed against what it is without a ring
                    raise Unfit(f"with warps that load, too, registers of {occupancy} blocks on a multiprocessor spill")
            if 0 < kernel.spilled_bytes <= _FEW_SPILLS and not tried.spare and may_deal:
                # Perhaps it is those who load that spill, since it takes much to find out which tiles come.
                spilling = kernel, compilation
                tried = state(tried.rooms, tried.kept, apart=tried.apart, deals=tried.deals, spare=_SPARE)
                continue
            if spilling is not None and spilling[0].spilled_bytes <= kernel.spilled_bytes:
                return spilling
            return kernel, compilation
        # What other operations need of shared memory is known now, and is left to them.
        kept = max(kernel.shared_bytes + tried.parked_bytes, tried.kept)
        further = state(max(rooms, tried.rooms), kept, apart=tried.apart, deals=tried.deals, spare=tried.spare)
        if (further.rooms, further.kept) == (tried.rooms, tried.kept):
            total = kernel.shared_bytes + kernel.dynamic_shared_bytes
            raise Unfit(f"its stages and the rest take {total} bytes of shared memory; a block has {room}")
        tried = further


def _assembled(
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
    """The same, with or without rings for its pipelines."""
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
