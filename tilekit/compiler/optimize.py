"""The passes over the kernel IR, in order: what a user writes as plain loops becomes loops over streams."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.grids import Visits
from tilekit.compiler.ir.build import Unsupported
from tilekit.compiler.ir.nodes import LOOPS, Region
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.ir.products import PRODUCTS
from tilekit.compiler.ir.python import to_python
from tilekit.compiler.ir.remarks import Remark, collected
from tilekit.compiler.ir.verdict import Accepted, verdict
from tilekit.compiler.ir.verify import MalformedIR, verify
from tilekit.compiler.kernel import choose_config
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.passes.abreast import multiply_abreast
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.compiler.passes.bounds import bound_loops, separate_conditions
from tilekit.compiler.passes.canonical import canonicalize, load_as_it_lies
from tilekit.compiler.passes.computed import read_as_operands
from tilekit.compiler.passes.conditions import gather_masks
from tilekit.compiler.passes.counted import count_loops
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.exponentials import fuse_exponentials
from tilekit.compiler.passes.first_turns import join_first_turns
from tilekit.compiler.passes.fragments import load_beside_products
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.passes.masks import mask_tiles
from tilekit.compiler.passes.maxima import carry_scaled_maxima
from tilekit.compiler.passes.multiples import find_multiples, slice_of
from tilekit.compiler.passes.order import calculate_rows_first
from tilekit.compiler.passes.own_maxima import take_own_maxima
from tilekit.compiler.passes.partial_sums import add_up_by_parts
from tilekit.compiler.passes.prefetched import load_in_turns
from tilekit.compiler.passes.rings import Unfit, make_rings
from tilekit.compiler.passes.rolled import roll_up_turns
from tilekit.compiler.passes.rotation import rotate_products
from tilekit.compiler.passes.shared_turns import share_turns
from tilekit.compiler.passes.slices import load_from_whole_tensors
from tilekit.compiler.passes.splitting import split_by_masks
from tilekit.compiler.passes.spreading import spread_beside_products
from tilekit.compiler.passes.staging import stage_operands
from tilekit.compiler.passes.streams import streams_from_loads
from tilekit.compiler.passes.thread_parts import is_fold
from tilekit.compiler.passes.traversals import count_traversals
from tilekit.compiler.passes.turns import end_turns_together
from tilekit.compiler.passes.unswitched import unswitch_loops
from tilekit.compiler.passes.visits import order_visits
from tilekit.compiler.target import named
from tilekit.lang import pipelines
from tilekit.settings import load_settings

__all__ = [
    "PASSES", "WITHOUT_RINGS", "Form", "PassError", "dump", "forms", "optimized", "ringless", "simplified", "text_of",
]  # fmt: skip

_STREAMED = (*PRODUCTS, pipelines.pipelined)
_BROKEN = (
    "kernel %s: a pass over its IR failed, by a mistake of tilekit's; it is compiled as it is written. "
    "TILEKIT_DUMP=ir,passes prints its IR up to there. Please report:"
)

R = TypeVar("R")
Watch = Callable[[str, Region], None]

PASSES: tuple[Callable[[Region], object], ...] = (
    canonicalize, load_as_it_lies, count_traversals, separate_conditions, hoist_invariants, count_loops, bound_loops,
    load_from_whole_tensors, end_turns_together, load_in_turns, join_first_turns, accumulate_products, unswitch_loops,
    roll_up_turns, mask_tiles, streams_from_loads, order_visits, stage_operands, take_own_maxima, fuse_exponentials,
    carry_scaled_maxima, eliminate_dead_code, add_up_by_parts, calculate_rows_first, rotate_products, gather_masks,
    split_by_masks, eliminate_dead_code, share_turns, load_beside_products, spread_beside_products, read_as_operands,
    multiply_abreast, find_multiples,
)  # fmt: skip
"""In the order in which they run. Each rewrites a kernel in place, or finds something out; its module says when it is legal."""
# For products by warpgroups: their results are not there at once, and their first operands may be in registers.
_ASYNCHRONOUS = (stage_operands, rotate_products, read_as_operands, multiply_abreast)
WITHOUT_RINGS: tuple[Callable[[Region], Any], ...] = (
    canonicalize, separate_conditions, hoist_invariants, count_loops, bound_loops, load_from_whole_tensors, end_turns_together,
    join_first_turns, take_own_maxima, add_up_by_parts, eliminate_dead_code, find_multiples,
)  # fmt: skip
"""Those of kernels without rings, if they find slices that move, or something for threads to fold by themselves."""
_FINDING = (load_from_whole_tensors, take_own_maxima, add_up_by_parts, find_multiples)


class PassError(RuntimeError):
    """A pass failed, or made IR that the verifier refuses: a mistake of tilekit's, or of who is writing the pass. It names it."""


def _run(rewrite: Callable[[Region], R], kernel: Region) -> R:
    """Run a pass.

    Raises:
        PassError: it raised what it may not.
    """
    try:
        return rewrite(kernel)
    except (Unsupported, Unfit):
        raise
    except Exception as error:
        raise PassError(f"pass {rewrite.__name__} failed: {type(error).__name__}: {error}") from error


def optimized(
    accepted: Accepted,
    target: str,
    config: Config | None = None,
    *,
    rotate: bool = True,
    watch: Watch | None = None,
    counts: dict[str, Any] | None = None,
) -> Region:
    """The IR of a kernel behind all passes.

    Args:
        accepted: the kernel.
        target: what it is compiled for.
        config: for which blocks, where that is known.
        rotate: whether loops may be rotated.
        watch: called with a name and the IR once it is built (`"built"`), and behind each pass.
        counts: gets what passes return, by their names.

    Raises:
        Unsupported: the kernel has a statement that the IR has no form for.
        PassError: a pass failed.
    """
    kernel = accepted.ir(config)
    if watch is not None:
        watch("built", kernel)
    for rewrite in PASSES:
        if (rewrite in _ASYNCHRONOUS and not named(target).wgmma) or (rewrite is rotate_products and not rotate):
            continue
        if rewrite is share_turns and not named(target).clusters:
            continue
        result = _run(rewrite, kernel)
        if counts is not None:
            counts[rewrite.__name__] = result
        if watch is not None:
            watch(rewrite.__name__, kernel)
    return kernel


def text_of(bound: BoundKernel, facts: Sequence[ArgumentFacts], target: str, num_warps: int | None = None) -> str:
    """The IR of a kernel behind all passes, as text; or why it has none."""
    try:
        accepted = verdict(bound, facts, num_warps)
        config = choose_config(facts, num_warps, accepted.accesses, accepted.folded)
        return _text(optimized(accepted, target, config), bound.source.name)
    except Unsupported as error:
        return f"# no IR: {error}"
    except PassError as error:  # of which `forms` warns
        return f"# no IR: {error}"


def dump(accepted: Accepted, target: str) -> None:
    """Print what `TILEKIT_DUMP` asks for, on standard error, and verify the IR behind each pass.

    Raises:
        PassError: a pass failed, or its IR is not well formed. What it was given is printed by then, and what it made of that.
    """
    wanted, name = load_settings().dump, accepted.bound.source.name
    if not wanted:
        return

    def watch(step: str, kernel: Region) -> None:
        if ("ir" if step == "built" else "passes") in wanted:
            sys.stderr.write(f"# {step}\n{_text(kernel, name)}\n\n")
        try:
            verify(kernel)
        except Exception as error:  # a malformed kernel may have anything in it
            made = "the IR as built" if step == "built" else f"what pass {step} made"
            said = error if isinstance(error, MalformedIR) else f"{type(error).__name__}: {error}"
            raise PassError(f"{made} is not well formed: {said}") from error

    try:
        kernel = optimized(accepted, target, watch=watch)
        if _run(make_rings, kernel):
            watch(make_rings.__name__, kernel)
    except PassError as error:
        where = f"TILEKIT_DUMP={','.join(sorted(wanted))} has printed what there was up to there on standard error"
        sys.stderr.write(f"# {error}\n\n")
        raise PassError(f"kernel {name}: {error}; {where}") from error.__cause__
    except Unsupported as error:
        sys.stderr.write(f"# no IR: {error}\n\n")
    except Unfit as unfit:
        sys.stderr.write(f"# no rings: {unfit}\n\n")


def _text(kernel: Region, name: str) -> str:
    """The text of a kernel, which may mean nothing."""
    try:
        return printed(kernel, name)
    except Exception as error:
        return f"# no text: {type(error).__name__}: {error}"


class Form(NamedTuple):
    """A kernel as passes leave it.

    Attributes:
        bound: it, with rings of stages.
        rings: how many; 0 where it cannot have them, and `unfit` says why.
        rotated: whether a loop has been rotated.
        visits: in which order its blocks are to be visited; None for that of their numbers.
    """

    bound: BoundKernel
    rings: int
    unfit: Unfit | None
    rotated: bool
    visits: Visits | None


def forms(accepted: Accepted, target: str, config: Config) -> Iterator[Form]:
    """A kernel whose loops over streams, written as such or not, have rings of stages.

    Where loops are rotated there are two, the second with the loops as they are; none where there is no such loop.
    """
    bound = accepted.bound
    if not _may_have_streams(bound):
        return
    try:
        for rotate in (True, False):
            counts: dict[str, Any] = {}
            kernel = optimized(accepted, target, config, rotate=rotate, counts=counts)
            rotated, visits = bool(counts.get("rotate_products")), counts["order_visits"]
            try:
                rings = _run(make_rings, kernel)
            except Unfit as unfit:
                yield Form(bound, 0, unfit, rotated, visits)
            else:
                if not rings:
                    return
                yield Form(to_python(kernel, bound), rings, None, rotated, visits)
            if not rotated:
                return
    except Unsupported as error:
        yield Form(bound, 0, Unfit(f"the compiler has no form for it: {error}"), False, None)
    except Exception:
        logging.getLogger("tilekit").warning(_BROKEN, bound.source.name, exc_info=True)


def ringless(accepted: Accepted, config: Config) -> tuple[BoundKernel, list[Remark]] | None:
    """A kernel without rings whose slices are known to begin at multiples, and in which each thread folds its own part of what
    several folds join; and what passes said of it. None if it has nothing of the kind."""
    operations = [] if accepted.kernel is None else list(accepted.kernel.walk())
    if not any(one.kind in LOOPS or slice_of(one) for one in operations) and sum(map(is_fold, operations)) < 2:
        return None
    try:
        kernel = accepted.ir(config)
        with collected() as remarks:
            counts = {rewrite: _run(rewrite, kernel) for rewrite in WITHOUT_RINGS}
        if not any(counts[rewrite] for rewrite in _FINDING):
            return None
        if "passes" in load_settings().dump:
            sys.stderr.write(f"# without rings\n{_text(kernel, accepted.bound.source.name)}\n\n")
            verify(kernel)
        return to_python(kernel, accepted.bound), remarks
    except Exception:
        logging.getLogger("tilekit").warning(_BROKEN, accepted.bound.source.name, exc_info=True)
        return None


def simplified(accepted: Accepted) -> BoundKernel | None:
    """A kernel written anew, with a value for each variable ahead of all that reads it, but otherwise as it stands; or None."""
    try:
        return to_python(accepted.ir(), accepted.bound)
    except Exception:
        return None


def _may_have_streams(bound: BoundKernel) -> bool:
    """Whether a kernel may have products, or loops over `tk.pipelined`: others gain nothing."""
    written = any(name in bound.text for name in ("MatMult", *(function.__name__ for function in _STREAMED)))
    return written or any(value is function for value in bound.outside.values() for function in _STREAMED)
