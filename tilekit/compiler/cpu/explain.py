"""What the compiler made of a kernel for the CPU: loops and their vectors, tiles that are kept, products, machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilekit.compiler.cpu.build import REFUSALS, lowered
from tilekit.compiler.cpu.machine import Machine, host
from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.ir.remarks import Remark, collected
from tilekit.compiler.ir.verdict import verdict
from tilekit.compiler.tables import Table, as_html, as_text, of_remarks
from tilekit.errors import CompileError

__all__ = ["CpuExplanation", "CpuLoop", "CpuProduct", "KeptTile", "explain"]


@dataclass(frozen=True, kw_only=True)
class CpuLoop:
    """A loop over the elements of a tile, in which all that leads to them is computed.

    Attributes:
        line: of the kernel's file; `what`: the operation that needs the elements.
        tile_shape: what it goes over.
        lanes: how many elements a turn computes.
        cost: what an element costs, in about additions.
        reads: the tensors that it reads, and whether it reads kept tiles, `a buffer`.
        edge: the tensors that the tile may hang over the edge of: there is a second loop for that, with masks.
    """

    line: int
    what: str
    tile_shape: tuple[int, ...]
    lanes: int
    cost: int
    reads: tuple[str, ...]
    edge: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeptTile:
    """A tile that is written down, and read again.

    Attributes:
        line: of the kernel's file.
        dtype, tile_shape: the tile's.
        reason: why it is not computed where it is needed.
    """

    line: int
    dtype: str
    tile_shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class CpuProduct:
    """A product of tiles.

    Attributes:
        line: of the kernel's file.
        extents: M, N and K.
        dtype: in which it is added up.
        registers: rows and columns of the result that stay in registers while K goes by.
    """

    line: int
    extents: tuple[int, int, int]
    dtype: str
    registers: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class CpuExplanation:
    """What `KernelLaunch.explain("cpu")` gives. `str` of it is a table.

    Attributes:
        name, filename: the kernel's.
        machine, vector_bytes: what it is compiled for, and what a vector of it holds.
        interpreted: why the kernel is not compiled; None if it is. All that follows is empty then.
        loops, kept, products: in the order in which they run.
        remarks: what passes did, or saw.
        scratch_bytes: of memory that each thread needs for kept tiles.
        ir: the kernel as the compiler sees it behind its passes, as text.
        llvm: LLVM's text of it, before that optimises; `assembly`: the machine's. Neither is in the table.
    """

    name: str
    filename: str
    machine: str
    vector_bytes: int
    interpreted: str | None = None
    loops: tuple[CpuLoop, ...] = ()
    kept: tuple[KeptTile, ...] = ()
    products: tuple[CpuProduct, ...] = ()
    remarks: tuple[Remark, ...] = ()
    scratch_bytes: int = 0
    ir: str = ""
    llvm: str = ""
    assembly: str = ""

    def __repr__(self) -> str:
        return f"<CpuExplanation of kernel {self.name} for {self.machine}: print(...) shows it>"

    def __str__(self) -> str:
        return as_text(self._parts())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return {"text/plain": repr(self), "text/html": as_html(self._parts())}

    def _parts(self) -> list[str | Table]:
        head = f"kernel {self.name} for the CPU ({self.machine}, vectors of {self.vector_bytes} bytes)"
        if self.interpreted is not None:
            return [f"{head}: interpreted, operation by operation: {self.interpreted}"]
        loops = [
            (
                str(x.line),
                x.what,
                _shown(x.tile_shape),
                str(x.lanes),
                str(x.cost),
                ", ".join(x.reads) or "-",
                ", ".join(x.edge) or "-",
            )
            for x in self.loops
        ]
        kept = [(str(x.line), f"{x.dtype} {_shown(x.tile_shape)}", x.reason) for x in self.kept]
        products = [(str(x.line), _shown(x.extents), x.dtype, _shown(x.registers)) for x in self.products]
        return [
            f"{head}: {self.scratch_bytes} bytes of memory a thread for tiles that are kept",
            Table(("line", "loop of", "elements", "at a time", "cost", "reads", "masked at the edge of"), loops),
            Table(("line", "kept tile", "because"), kept),
            Table(("line", "product", "added up in", "in registers"), products),
            of_remarks(self.remarks, self.filename),
        ]


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


def explain(
    bound: BoundKernel, facts: Sequence[ArgumentFacts], num_warps: int | None, machine: Machine | None = None
) -> CpuExplanation:
    """Lower a kernel, and note what the compiler does. The arguments are those of `lowered`; the CPU is this one by default.

    Raises:
        CompileError: the kernel cannot be compiled.
    """
    machine = machine or host()
    about: dict[str, Any] = {
        "name": bound.source.name, "filename": bound.source.filename, "machine": machine.name,
        "vector_bytes": machine.vector_bytes,
    }  # fmt: skip
    try:
        with collected() as remarks:
            kernel, code = lowered(verdict(bound, facts, num_warps), facts, num_warps, machine)
    except CompileError:
        raise
    except REFUSALS as reason:
        return CpuExplanation(**about, interpreted=str(reason))
    loops: list[CpuLoop] = []
    kept, products, edge = [], [], ()
    for line, kind, what, *rest in code.notes:
        match kind:
            case "edge":
                (edge,) = rest
            case "loop":
                shape, lanes, cost, reads = rest
                loops.append(CpuLoop(line=line, what=what, tile_shape=shape, lanes=lanes, cost=cost, reads=reads, edge=edge))
                edge = ()
            case "kept":
                dtype, shape, why = rest
                kept.append(KeptTile(line=line, dtype=dtype, tile_shape=shape, reason=why))
            case "product":
                extents, dtype, registers = rest
                products.append(CpuProduct(line=line, extents=extents, dtype=dtype, registers=registers))
    text = code.finish()
    return CpuExplanation(
        **about,
        loops=tuple(loops),
        kept=tuple(kept),
        products=tuple(products),
        remarks=tuple(dict.fromkeys(remarks)),
        scratch_bytes=code.scratch_bytes,
        ir=printed(kernel, bound.source.name),
        llvm=text,
        assembly=machine.assembly(text),
    )
