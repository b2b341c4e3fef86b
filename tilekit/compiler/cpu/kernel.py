"""A kernel in machine code for a CPU, and how it runs: blocks dealt out to threads, errors as the interpreter's."""

from __future__ import annotations

import ctypes
import importlib
import json
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit.compiler.cpu.machine import linked
from tilekit.compiler.cpu.printing import printed
from tilekit.compiler.cpu.workers import run_with_helpers
from tilekit.compiler.facts import ArgumentFacts, TensorFacts
from tilekit.errors import CompileError, DeviceError
from tilekit.lang.block import Block, running
from tilekit.lang.create import outside
from tilekit.lang.debug import assertion_text
from tilekit.lang.mapped import cut_otherwise
from tilekit.lang.pipelines import unequal
from tilekit.lang.views import TensorView
from tilekit.lang.windows import window_of

__all__ = ["PRINTER", "REASON", "CpuKernel", "LoadedKernel", "Site", "slots_of"]

REASON = "\0"
"""What stands for the words about what went wrong, in `Site.where`."""

PRINTER = 63
"""Which of the numbers of a report is the address of what prints for a block."""


class Site(NamedTuple):
    """Something that may go wrong in a block.

    Attributes:
        kind: `window`, `point`...: which of the functions below says it in words.
        about: what it needs for that: names, extents.
        where: of the error, in the user's text: what a CompileError there says, where `REASON` stands for the words, the file,
            the line, the column, the width, and the text of the line.
    """

    kind: str
    about: tuple[Any, ...]
    where: tuple[Any, ...]

    def error(self, reason: str) -> CompileError:
        """An error there."""
        said, filename, lineno, column, width, line = self.where
        text = said.replace(REASON, reason)
        return CompileError(text, filename=filename, lineno=lineno, column=column, width=width, line=line)


@dataclass(frozen=True, kw_only=True)
class CpuKernel:
    """Machine code of one specialisation.

    Attributes:
        name: the kernel's.
        image: object code.
        scratch_bytes: how much memory each thread needs.
        sites: what may go wrong.
    """

    name: str
    image: bytes
    scratch_bytes: int
    sites: tuple[Site, ...]

    def to_bytes(self) -> bytes:
        """It, as the cache keeps it."""
        header = {"name": self.name, "scratch_bytes": self.scratch_bytes, "sites": self.sites}
        return json.dumps(header).encode() + b"\n" + self.image

    @classmethod
    def from_bytes(cls, data: bytes) -> CpuKernel:
        """The opposite.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: it is something else.
        """
        header, _, image = data.partition(b"\n")
        fields = json.loads(header)
        fields["sites"] = tuple(Site(*_as_tuples(site)) for site in fields["sites"])
        return cls(image=image, **fields)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def slots_of(facts: Sequence[ArgumentFacts]) -> str:
    """How arguments lie in memory, as a format of the module struct: as for a GPU, but eight bytes each."""
    codes = ["=" if facts else ""]
    for known in facts:
        if isinstance(known, TensorFacts):
            codes.append("q" * (1 + 2 * known.rank - (known.unit is not None)))
        else:
            dtype = dtypes.as_dtype(known.dtype)
            whole = {dtypes.uint64: "Q", dtypes.bool_: "?7x"}  # which takes NumPy's bools, too
            codes.append("d" if dtypes.is_float(dtype) else whole.get(dtype, "q"))
    return "".join(codes)


class LoadedKernel:
    """A kernel in memory, ready to run.

    Raises:
        RuntimeError: it calls a function that is not in this process.
    """

    def __init__(self, kernel: CpuKernel) -> None:
        self.kernel = kernel
        self._code = linked(kernel.image)
        address, numbers = ctypes.c_void_p, [ctypes.c_int64] * 4
        self._run = ctypes.CFUNCTYPE(None, address, address, *numbers, address, address)(self._code["run"])
        printer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, address, *numbers[:3])(self._print)
        self._printer, self._printer_address = printer, ctypes.cast(printer, address).value or 0
        self._ordered = any(site.kind == "print" for site in kernel.sites)
        self._own = threading.local()

    def run(self, grid: tuple[int, int, int], parameters: Any) -> None:
        """Run every block of a grid, on this thread and idle ones; here, one after the other, if they print something.

        Args:
            grid: the number of blocks along each axis.
            parameters: the arguments, packed as `slots_of` says.

        Raises:
            DeviceError: a block failed.
            CompileError: it calculated with a number that does not fit.
        """
        total = grid[0] * grid[1] * grid[2]
        counter = ctypes.c_int64(0)
        addresses = ctypes.addressof(parameters), ctypes.addressof(counter)
        reports: list[Any] = []

        def work(helpers: int) -> None:
            scratch, report, address = self._room()
            report[0] = 0
            self._run(*addresses, max(1, min(64, total // (8 * (helpers + 1)))), *grid, scratch, address)
            if report[0]:
                reports.append(list(report))

        if total == 1 or self._ordered:
            work(0)
        else:
            run_with_helpers(work, total)
        if reports:
            self._fail(min(reports, key=lambda r: (r[3], r[2], r[1])))

    def _room(self) -> tuple[int, Any, int]:
        """This thread's scratch memory, and where its blocks say what went wrong, with the address."""
        room = getattr(self._own, "room", None)
        if room is None:
            memory = np.empty(self.kernel.scratch_bytes + 128, np.uint8)
            report = (ctypes.c_int64 * (PRINTER + 1))()
            report[PRINTER] = self._printer_address
            start = (memory.__array_interface__["data"][0] + 63) & ~63
            self._own.memory = memory
            room = self._own.room = start, report, ctypes.addressof(report)
        return room

    def _print(self, number: int, memory: int, x: int, y: int, z: int) -> int:
        """Print what a block says at a site; 1 where that fails, and why for the one who reports it."""
        name, *values = self.kernel.sites[number].about
        try:
            with running(Block((1, 1, 1))) as block:
                block.index = (x, y, z)
                printed(name, values, memory)
        except Exception as error:
            self._own.error = f"{type(error).__name__}: {error}"
            return 1
        return 0

    def _fail(self, report: Sequence[int]) -> None:
        site = self.kernel.sites[report[0] - 1]
        block, values = tuple(report[1:4]), tuple(report[4:])
        try:
            reason = self._own.error if site.kind == "print" else _SAID[site.kind](site.about, values)
        except DeviceError as error:
            reason = str(error)
        except CompileError as error:
            raise site.error(error.reason) from None
        raise DeviceError(str(site.error(f"kernel {self.kernel.name}, block {block}: {reason}")))


# ----------------------------------------------------------------------------------------------------- what went wrong, in words


def _said_of_window(about: Sequence[Any], values: Sequence[int]) -> str:
    name, what, extents, steps, rank = about
    shape = values[rank : 2 * rank]
    view = TensorView(name, np.broadcast_to(np.zeros((), np.uint8), shape), None, True)
    window_of(view, tuple(values[:rank]), extents, steps, what)
    return f"{what}: a tile outside {name}"


def _said_of_point(about: Sequence[Any], values: Sequence[int]) -> str:
    name, what, unsigned = about
    rank = len(unsigned)
    wrong, shape = (
        tuple(value % 2**64 if large else value for value, large in zip(values, unsigned)),
        tuple(values[rank : 2 * rank]),
    )
    return f"{what}: index {wrong if rank > 1 else wrong[0]} is outside {name}, a tensor of shape {shape}"


def _said_of_slice(about: Sequence[Any], values: Sequence[int]) -> str:
    (name, axis), (first, last, there) = about, values[:3]
    return f"slice: {first}:{last} is outside {name}, which has {there} along axis {axis}"


def _said_of_unequal(about: Sequence[Any], values: Sequence[int]) -> str:
    return unequal(values[: about[0]])


def _said_of_scalar(about: Sequence[Any], values: Sequence[int]) -> str:
    what, dtype = about
    raise CompileError(f"{what}: {dtypes.misfit(dtypes.as_dtype(dtype), values[0])}")


def _said_of_range(about: Sequence[Any], values: Sequence[int]) -> str:
    name, dtype = about
    raise CompileError(f"arange: {outside(name, values[0], dtypes.as_dtype(dtype))}")


def _said_of_part(about: Sequence[Any], values: Sequence[int]) -> str:
    what, grid = about
    index = tuple(values[: len(grid)])
    raise CompileError(f"{what}: index {index if len(grid) > 1 else index[0]} of parts of which there are {grid}")


def _said_of_assertion(about: Sequence[Any], values: Sequence[int]) -> str:
    message, shape = about
    return assertion_text(message, tuple(values[: len(shape)]) if shape else None)


def _said_of_cut(about: Sequence[Any], values: Sequence[int]) -> str:
    raise CompileError(f"tiles: {cut_otherwise(*about)}")


def _said_of_element(about: Sequence[Any], values: Sequence[int]) -> str:
    return "IndexError: tuple index out of range"


def _said_of_call(about: Sequence[Any], values: Sequence[int]) -> str:
    """Of one of Python's functions: the error that it raises for these numbers, which are bits of floats where it says so."""
    module, name, floats = about
    together = zip(floats, values, strict=False)
    numbers = [struct.unpack("d", struct.pack("q", bits))[0] if is_float else bits for is_float, bits in together]
    try:
        getattr(importlib.import_module(module), name)(*numbers)
    except (ArithmeticError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{name} of {', '.join(map(str, numbers))}"


_SAID: dict[str, Callable[[Sequence[Any], Sequence[int]], str]] = {
    "window": _said_of_window, "point": _said_of_point, "slice": _said_of_slice, "unequal": _said_of_unequal,
    "scalar": _said_of_scalar, "range": _said_of_range, "part": _said_of_part, "assertion": _said_of_assertion,
    "cut": _said_of_cut, "element": _said_of_element, "call": _said_of_call,
}  # fmt: skip
