"""From a bound kernel to machine code for this CPU, and how it runs: blocks dealt out to threads, errors as the interpreter's."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import binding as llvm

from tilekit import dtypes
from tilekit.compiler.cpu import indexed, mathematics, products, reduction, shape  # noqa: F401  (they enter themselves into the table)
from tilekit.compiler.cpu.machine import host
from tilekit.compiler.cpu.program import Program, Site
from tilekit.compiler.cpu.values import Unsupported
from tilekit.compiler.cpu.workers import run_with_helpers
from tilekit.compiler.facts import ArgumentFacts, TensorFacts
from tilekit.compiler.ir.build import Unsupported as NotInTheIR
from tilekit.compiler.ir.nodes import Location, Region
from tilekit.compiler.ir.types import Unknown, sampling
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.compiler.passes.canonical import canonicalize
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.ir.verdict import Accepted
from tilekit.errors import DeviceError
from tilekit.lang.pipelines import unequal
from tilekit.lang.views import TensorView
from tilekit.lang.windows import window_of

__all__ = ["CpuCode", "compile_for_cpu", "slots_of"]

_PASSES = (canonicalize, hoist_invariants, accumulate_products, eliminate_dead_code)
_REPORTED = 64  # numbers that a block says of what went wrong
_BROKEN = "kernel %s: it could not be compiled for the CPU, by a mistake of tilekit's; it is interpreted. Please report:"


def slots_of(facts: Sequence[ArgumentFacts]) -> str:
    """How arguments lie in memory, as a format of the module struct: as for a GPU, but eight bytes each."""
    codes = ["=" if facts else ""]
    for known in facts:
        if isinstance(known, TensorFacts):
            codes.append("q" * (1 + 2 * known.rank - (known.unit is not None)))
        else:
            dtype = dtypes.as_dtype(known.dtype)
            codes.append("d" if dtypes.is_float(dtype) else "Q" if dtype == dtypes.uint64 else "q")
    return "".join(codes)


@dataclass(frozen=True)
class CpuCode:
    """A kernel in machine code.

    Attributes:
        name: the kernel's.
        image: object code.
        scratch_bytes: how much memory each thread needs.
        sites: what may go wrong in a block, and where.
    """

    name: str
    image: bytes
    scratch_bytes: int
    sites: tuple[tuple[Site, Location], ...]

    def loaded(self) -> LoadedCode:
        """It, ready to run."""
        return LoadedCode(self)


def compile_for_cpu(
    accepted: Accepted, facts: Sequence[ArgumentFacts], num_warps: int | None, *, aliased: bool = False
) -> CpuCode | str:
    """A kernel in machine code; or why it has to be interpreted.

    Args:
        accepted, facts: the kernel.
        num_warps: of a block on a GPU, if they were given: they decide how large tiles may be.
        aliased: whether tensors that it writes may share memory with others.
    """
    try:
        return _compiled(accepted, facts, num_warps, aliased)
    except (Unsupported, NotInTheIR) as reason:
        return str(reason)
    except Exception as error:
        logging.getLogger("tilekit").warning(_BROKEN, accepted.bound.source.name, exc_info=True)
        return f"{type(error).__name__}: {error}"


def _compiled(accepted: Accepted, facts: Sequence[ArgumentFacts], num_warps: int | None, aliased: bool) -> CpuCode:
    kernel = accepted.ir()
    _check(kernel)
    for rewrite in _PASSES:
        rewrite(kernel)
    with sampling(num_warps=num_warps):
        program = Program(kernel, facts, host(), aliased=aliased)
    text = program.k.finish()
    return CpuCode(accepted.bound.source.name, host().assembled(text), program.k.scratch_bytes, tuple(program.sites))


def _check(kernel: Region) -> None:
    """Leave a kernel to the interpreter with something in it that nothing is known of."""
    for operation in kernel.walk():
        defined = [*operation.results, *(value for region in operation.regions for value in region.parameters)]
        if any(isinstance(value.type, Unknown) for value in defined):
            what = getattr(operation.what, "spelling", operation.what) or operation.kind
            raise Unsupported(f"{what} of unknown type, in {operation.location}")


class LoadedCode:
    """Machine code in memory."""

    def __init__(self, code: CpuCode) -> None:
        self.code = code
        machine = host()
        empty = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"')
        self._engine = llvm.create_mcjit_compiler(empty, machine.target(jit=True))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code.image))
        self._engine.finalize_object()
        address, numbers = ctypes.c_void_p, [ctypes.c_int64] * 4
        kind = ctypes.CFUNCTYPE(None, address, address, *numbers, address, address)
        self._run = kind(self._engine.get_function_address("run"))
        self._own = threading.local()

    def run(self, grid: tuple[int, int, int], parameters: Any) -> None:
        """Run every block of a grid, on this thread and idle ones.

        Args:
            grid: the number of blocks along each axis.
            parameters: the arguments, packed as `slots_of` says.

        Raises:
            DeviceError: a block failed.
        """
        total = grid[0] * grid[1] * grid[2]
        counter = ctypes.c_int64(0)
        address = ctypes.addressof(parameters)
        reports: list[Any] = []

        def work(helpers: int) -> None:
            scratch, report = self._room()
            report[0] = 0
            chunk = max(1, min(64, total // (8 * (helpers + 1))))
            self._run(address, ctypes.addressof(counter), chunk, *grid, scratch, ctypes.addressof(report))
            if report[0]:
                reports.append(list(report))

        run_with_helpers(work, total)
        if reports:
            self._fail(min(reports, key=lambda r: (r[3], r[2], r[1])))

    def _room(self) -> tuple[int, Any]:
        """This thread's scratch memory, and where its blocks say what went wrong."""
        room = getattr(self._own, "room", None)
        if room is None:
            memory = np.empty(self.code.scratch_bytes + 128, np.uint8)
            report = (ctypes.c_int64 * _REPORTED)()
            start = (memory.__array_interface__["data"][0] + 63) & ~63
            room = self._own.room = (start, report, memory)
        return room[0], room[1]

    def _fail(self, report: Sequence[int]) -> None:
        (kind, *about), location = self.code.sites[report[0] - 1]
        block, values = tuple(report[1:4]), tuple(report[4:])
        try:
            reason = getattr(self, f"_said_of_{kind}")(about, values)
        except DeviceError as error:
            reason = str(error)
        text = f"kernel {self.code.name}, block {block}: {reason}"
        raise DeviceError(str(location.source.error_of(text, location.line, location.column, location.end_line, location.end_column)))

    @staticmethod
    def _said_of_window(about: Sequence[Any], values: Sequence[int]) -> str:
        name, what, extents, steps, rank = about
        shape = values[rank : 2 * rank]
        view = TensorView(name, np.broadcast_to(np.zeros((), np.uint8), shape), None, True)
        window_of(view, tuple(values[:rank]), extents, steps, what)
        return f"{what}: a tile outside {name}"

    @staticmethod
    def _said_of_point(about: Sequence[Any], values: Sequence[int]) -> str:
        name, what, rank = about
        wrong, shape = tuple(values[:rank]), tuple(values[rank : 2 * rank])
        return f"{what}: index {wrong if rank > 1 else wrong[0]} is outside {name}, a tensor of shape {shape}"

    @staticmethod
    def _said_of_slice(about: Sequence[Any], values: Sequence[int]) -> str:
        (name, axis), (first, last, there) = about, values[:3]
        return f"slice: {first}:{last} is outside {name}, which has {there} along axis {axis}"

    @staticmethod
    def _said_of_unequal(about: Sequence[Any], values: Sequence[int]) -> str:
        return unequal(values[: about[0]])
