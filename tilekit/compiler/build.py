"""From a bound kernel to machine code: which of its forms is compiled, with which rings of stages, for how many warps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from tilekit.compiler.assembly import argument_types, assembled
from tilekit.compiler.codegen.compilation import Compilation, MoreWarps, Pipelines
from tilekit.compiler.codegen.types import TensorType
from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.pipelined import pipelined_loops
from tilekit.compiler.grids import Fold, Visits
from tilekit.compiler.ir.remarks import Remark
from tilekit.compiler.ir.verdict import Accepted, verdict
from tilekit.compiler.kernel import CompiledKernel, choose_config
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.nvidia.multibuffer import deals_registers, fewest_producers, producers_of
from tilekit.compiler.optimize import Form, dump, forms, ringless, simplified
from tilekit.compiler.passes.rings import Unfit
from tilekit.compiler.passes.visits import ORDER
from tilekit.compiler.target import named
from tilekit.errors import CompileError
from tilekit.lang.size import MOST_WARPS

__all__ = ["CompiledKernel", "as_written", "build", "with_enough_warps"]

T = TypeVar("T")

_log = logging.getLogger("tilekit")


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
        def compiled() -> tuple[CompiledKernel, Compilation]:
            return assembled(
                form, facts, config, target, occupancy, pipelines, checks=checks, grows=grows, fold=fold, visits=visits
            )

        return compiled() if pipelines else unspilled(compiled)

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
        return _unrotated(accepted, None if checks else config, attempt, ringed, form)
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
    config: Config | None,
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


def as_written(accepted: Accepted, config: Config | None, attempt: Callable[[BoundKernel], T]) -> tuple[T, list[Remark]]:
    """A kernel without rings, and what passes said of it. Where numba does not take its text, with a variable that is unset above
    or a path that types exclude, it is written anew. Without a configuration no pass runs over it."""
    better = None if config is None else ringless(accepted, config)
    if better is not None:
        with suppress(CompileError):  # then the one of the user's own text is raised
            return attempt(better[0]), better[1]
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
