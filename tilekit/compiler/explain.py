"""What the compiler made of a kernel: vector widths and coalescing of accesses, layouts, conversions, pipelines, occupancy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.grids import Fold
from tilekit.compiler.ir.remarks import Remark, collected
from tilekit.compiler.kernel import CompiledKernel
from tilekit.compiler.layouts.linear import WARP, Layout
from tilekit.compiler.optimize import text_of
from tilekit.compiler.passes.abreast import TOGETHER
from tilekit.compiler.passes.visits import ORDER
from tilekit.compiler.specialise import BoundKernel
from tilekit.compiler.tables import Table, as_html, as_text, of_remarks
from tilekit.compiler.target import named
from tilekit.compiler.toolkit import importing_numba
from tilekit.dtypes import DType

__all__ = [
    "Conversion", "Explanation", "LayoutInUse", "MatrixProduct", "MemoryAccess", "Pipeline", "explain", "resident_blocks",
]  # fmt: skip

_SECTOR = 32  # bytes that memory moves at least


@dataclass(frozen=True, kw_only=True)
class MemoryAccess:
    """A load or a store of a tile.

    Attributes:
        line: of the kernel's file.
        kind: load or store; gather or scatter where the kernel computes the place of each element.
        parameter, dtype, tile_shape: what is accessed.
        bits: that one instruction moves for a thread; `edge_bits` where the tile hangs over the edge, or the indices of a gather
            or scatter do not lie side by side.
        count: such instructions for the tile, in a thread.
        masked: whether elements may not exist, so that the accesses have predicates.
        branches: whether there is a branch for the one width and one for the other.
        coalesced: the share of the 32-byte sectors that the access of a warp moves which it asked for, from 0 to 1; None for a
            gather or scatter, where it depends on the indices.
    """

    line: int
    kind: str
    parameter: str
    dtype: DType
    tile_shape: tuple[int, ...]
    bits: int
    edge_bits: int
    count: int
    masked: bool
    branches: bool
    coalesced: float | None


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Elements that change their places.

    Attributes:
        line: of the kernel's file.
        what: a tile that gets another layout, or an exchange of a reduction's, a scan's or a sort's.
        way: registers (within each thread), shuffle (within each warp) or shared memory.
        count: how many there are of the kind in the line.
        nbytes: that a block moves through shared memory for one of them, 0 for the other ways.
        source, target: the layouts of a tile, as `LayoutInUse.name`; empty for an exchange.
    """

    line: int
    what: str
    way: str
    count: int
    nbytes: int
    source: str = ""
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class LayoutInUse:
    """Where the elements of a tile live.

    Attributes:
        name: L0, L1...
        layout: the map.
        registers: a thread's, for one such tile.
        copies: how many threads hold each element.
    """

    name: str
    layout: Layout
    registers: int
    copies: int


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What became of a loop over `tk.pipelined`.

    Attributes:
        line: of the kernel's file.
        stages: for how many turns there is room in shared memory; 0 if there is no ring of stages, and the loop loads as it goes.
        nbytes: of shared memory that all stages take.
        tiles: dtype and shape of what comes in each turn, by the TMA, or copied by threads (cp.async).
        reason: why there is no ring; empty if there is one.
    """

    line: int
    stages: int = 0
    nbytes: int = 0
    tiles: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """A product of tiles: `tk.mma`, `tk.matmul` or `@`.

    Attributes:
        line: of the kernel's file.
        a, b: dtype and shape of the operands, as they come to the product.
        instruction: what computes it, as PTX calls it: `wgmma`, which warpgroups issue and do not wait for, `mma.sync`, or `fma`,
            a thread's own multiplications and additions.
        present: what of it is computed, where rows of tensors are shorter than those of tiles: "96 of 128 columns"; or empty.
        count: how many there are of the kind in the line.
        refusals: the families of instructions that would have been preferred, and why each cannot compute it.
    """

    line: int
    a: str
    b: str
    instruction: str
    count: int
    refusals: tuple[tuple[str, str], ...] = ()
    present: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What `KernelLaunch.explain` gives. `str` of it is a table.

    Attributes:
        name, filename: the kernel's.
        compiled: the machine code, with registers, shared and local bytes.
        accesses, layouts, conversions, pipelines, products: in the order of the lines.
        blocks_per_multiprocessor: how many blocks have room on one, and `limited_by` what limits them.
        occupancy: the share of the warps that a multiprocessor can hold which these blocks are, from 0 to 1.
        serialised: why ptxas runs the products of warpgroups one after the other, in its words; empty if it does not.
        remarks: what passes made of loops that multiply, what not, with the reason, and what they saw.
        ir: the kernel as the compiler sees it behind its passes (helpers inlined, loads in loops as streams...), as text with the
            type of each value and its line; not in the table.
    """

    name: str
    filename: str
    compiled: CompiledKernel
    accesses: tuple[MemoryAccess, ...]
    layouts: tuple[LayoutInUse, ...]
    conversions: tuple[Conversion, ...]
    pipelines: tuple[Pipeline, ...]
    products: tuple[MatrixProduct, ...]
    blocks_per_multiprocessor: int
    limited_by: str
    occupancy: float
    serialised: str
    remarks: tuple[Remark, ...]
    ir: str

    def __repr__(self) -> str:
        return f"<Explanation of kernel {self.name} for {self.compiled.target}: print(...) shows it>"

    def __str__(self) -> str:
        return as_text(self._parts())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return {"text/plain": repr(self), "text/html": as_html(self._parts())}

    def _parts(self) -> list[str | Table]:
        kernel = self.compiled
        threads = kernel.block[0]
        shared = kernel.shared_bytes + kernel.dynamic_shared_bytes
        block = (
            f"kernel {self.name} for {kernel.target}: {threads} threads ({threads // WARP} warps) in a block, "
            f"{kernel.registers} registers and {kernel.local_bytes} local bytes a thread, {shared} bytes of shared memory"
        )
        room = (
            f"room for {self.blocks_per_multiprocessor} blocks on a multiprocessor (limited by {self.limited_by}): "
            f"{self.occupancy:.0%} of its warps"
        )
        parts: list[str | Table] = [block, room]
        if self.serialised:
            parts.append(f"ptxas runs products one after the other: {self.serialised}")
        if self.accesses:
            rows = [
                (
                    *(str(a.line), a.kind, f"{a.parameter}: {a.dtype.name}", _shown(a.tile_shape)),
                    *(_width(a), str(a.count), _mask(a), _share(a)),
                )
                for a in self.accesses
            ]
            parts.append(Table(("line", "access", "tensor", "tile", "bits", "a thread", "masked", "coalesced"), rows))
        if self.layouts:
            shown = [
                (use.name, _shown(use.layout.shape), str(use.registers), str(use.copies), _bits(use.layout))
                for use in self.layouts
            ]
            parts.append(Table(("layout", "tile", "registers", "copies", "register; lane; warp bits"), shown))
        if self.conversions:
            moved = [
                (str(c.line), c.what, f"{c.source} to {c.target}" if c.source else "", c.way, str(c.count), str(c.nbytes or "-"))
                for c in self.conversions
            ]
            parts.append(Table(("line", "conversion", "layouts", "way", "count", "bytes"), moved))
        if self.pipelines:
            rings = [
                (str(p.line), str(p.stages or "-"), str(p.nbytes or "-"), ", ".join(p.tiles) or f"as the loop goes: {p.reason}")
                for p in self.pipelines
            ]
            parts.append(Table(("line", "stages", "bytes", "tiles"), rings))
        if self.products:
            products = [
                (
                    str(p.line),
                    p.a,
                    p.b,
                    p.instruction + f": {p.present}" * bool(p.present),
                    str(p.count),
                    "; ".join(f"{name}: {why}" for name, why in p.refusals),
                )
                for p in self.products
            ]
            parts.append(Table(("line", "a", "b", "product by", "count", "not by"), products))
        if self.remarks:
            parts.append(of_remarks(self.remarks, self.filename))
        return parts


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _width(access: MemoryAccess) -> str:
    if access.edge_bits == access.bits:
        return str(access.bits)
    if access.coalesced is None:
        return f"{access.bits} or {access.edge_bits}"
    return f"{access.bits} ({access.edge_bits} at the edge)"


def _mask(access: MemoryAccess) -> str:
    return "at the edge" if access.branches and access.coalesced is not None else "yes" if access.masked else "no"


def _share(access: MemoryAccess) -> str:
    return "by index" if access.coalesced is None else f"{access.coalesced:.0%}"


def _bits(layout: Layout) -> str:
    """The basis vectors: what each bit of the register number, of the lane and of the warp adds to the coordinate."""
    groups = (layout.reg, layout.lane, layout.warp)
    return "; ".join(" ".join(",".join(map(str, vector)) for vector in basis) or "-" for basis in groups)


# ----------------------------------------------------------------------------------------------------------------------- making


def explain(
    bound: BoundKernel,
    facts: Sequence[ArgumentFacts],
    num_warps: int | None,
    target: str,
    occupancy: int | None,
    fold: Fold | None = None,
) -> Explanation:
    """Compile a kernel, and note what the compiler does. The arguments are those of `build`."""
    with importing_numba():  # which takes a second
        from tilekit.compiler.build import build
        from tilekit.compiler.codegen.compilation import noting

    with noting() as notes:
        compiled = build(bound, facts, num_warps, target, occupancy, fold=fold)
    blocks, limit, share = resident_blocks(compiled)
    with collected() as remarks:
        text = text_of(bound, facts, target, num_warps)
    layouts: dict[Layout, LayoutInUse] = {}
    source: KernelSource = bound.source
    return Explanation(
        name=source.name,
        filename=source.filename,
        compiled=compiled,
        accesses=tuple(_accesses(notes, layouts)),
        conversions=tuple(_conversions(notes, layouts)),
        layouts=tuple(layouts.values()),
        pipelines=tuple(_pipelines(notes)),
        products=tuple(_products(notes)),
        serialised=next((text for _, kind, text, *_ in notes if kind == "serialised"), ""),
        blocks_per_multiprocessor=blocks,
        limited_by=limit,
        occupancy=share,
        remarks=_remarks(remarks, notes),
        ir=text,
    )


def _named(layouts: dict[Layout, LayoutInUse], layout: Layout) -> str:
    """The name of a layout, which it gets when it is first met."""
    if layout not in layouts:
        idle = sum(not any(vector) for vector in layout.thread)
        in_use = LayoutInUse(name=f"L{len(layouts)}", layout=layout, registers=layout.num_registers, copies=1 << idle)
        layouts[layout] = in_use
    return layouts[layout].name


def _accesses(notes: list[tuple[Any, ...]], layouts: dict[Layout, LayoutInUse]) -> list[MemoryAccess]:
    accesses = []
    for line, kind, *rest in notes:
        if kind == "access":
            tensor, layout, pattern, writing = rest
            vector, edge, masked, branches = pattern.vector, pattern.edge, pattern.masked, pattern.branches
            share: float | None = _coalesced(layout, vector, tensor.facts.unit, tensor.dtype.itemsize)
            name = "store" if writing else "load"
        elif kind == "points":
            tensor, layout, vector, writing = rest
            edge, masked, branches, share = (), True, bool(vector), None
            name = "scatter" if writing else "gather"
        else:
            continue
        _named(layouts, layout)
        width = 8 * tensor.dtype.itemsize
        accesses.append(
            MemoryAccess(
                line=line,
                kind=name,
                parameter=tensor.parameter,
                dtype=tensor.dtype,
                tile_shape=layout.shape,
                bits=width << len(vector),
                edge_bits=width << len(edge if branches else vector),
                count=layout.num_registers >> len(vector),
                masked=masked,
                branches=branches,
                coalesced=share,
            )
        )
    return sorted(accesses, key=lambda access: access.line)


def _coalesced(layout: Layout, vector: tuple[int, ...], unit: int | None, itemsize: int) -> float:
    """Of the sectors that one access of a warp touches, the share that it asks for; rows lie apart."""
    sectors, elements = set(), set()
    for lane in range(WARP):
        for register in layout.chunks(vector)[0]:
            at = tuple(a ^ b for a, b in zip(layout.thread_coordinate(lane), layout.coordinates()[register], strict=True))
            elements.add(at)
            if unit is None:
                sectors.add(at)
            else:
                sectors.add((*at[:unit], at[unit] * itemsize // _SECTOR, *at[unit + 1 :]))
    return min(1.0, len(elements) * itemsize / (_SECTOR * len(sectors)))


def _conversions(notes: list[tuple[Any, ...]], layouts: dict[Layout, LayoutInUse]) -> list[Conversion]:
    counted: Counter[tuple[Any, ...]] = Counter()
    for line, kind, *rest in notes:
        if kind == "conversion":
            dtype, source, target, through_shared = rest
            size = dtype.itemsize
            for extent in source.shape:
                size *= extent
            way = "shared memory" if through_shared else "registers"
            names = (_named(layouts, source), _named(layouts, target))
            counted[line, f"{dtype.name} tile of {_shown(source.shape)}", way, size if through_shared else 0, *names] += 1
        elif kind == "exchange":
            dtype, bit, count = rest
            way = {"reg": "registers", "lane": "shuffle", "warp": "shared memory"}[bit.kind]
            size = count * dtype.itemsize if bit.kind == "warp" else 0
            counted[line, f"exchange of {dtype.name}", way, size, "", ""] += 1
    conversions = [
        Conversion(line=line, what=what, way=way, count=count, nbytes=size, source=source, target=target)
        for (line, what, way, size, source, target), count in counted.items()
    ]
    return sorted(conversions, key=lambda conversion: conversion.line)


def _pipelines(notes: list[tuple[Any, ...]]) -> list[Pipeline]:
    pipelines = []
    for line, kind, *rest in notes:
        if kind == "ring":
            (ring,) = rest
            tiles = tuple(f"{t.dtype.name} {_shown(t.shape)} by {way}" for t, way in zip(ring.tiles, ring.ways, strict=True))
            nbytes = ring.stages * ring.nbytes
            pipelines.append(Pipeline(line=line, stages=ring.stages, nbytes=nbytes, tiles=tiles))
        elif kind == "no ring":
            pipelines.append(Pipeline(line=line, reason=rest[0]))
    return sorted(pipelines, key=lambda pipeline: pipeline.line)


def _remarks(remarks: list[Remark], notes: list[tuple[Any, ...]]) -> tuple[Remark, ...]:
    """What passes said; of what was given up when it had been compiled, why."""
    given_up = {kind.removeprefix("no "): text for _, kind, text, *_ in notes if kind in ("no rotation", f"no {ORDER}")}
    why = next((rest[0] for _, kind, *rest in notes if kind == "as written"), None)
    otherwise = None if why is None else f"the kernel is compiled as it is written: {why}"
    apart = {line: dict(rest[-1]).get(TOGETHER) for line, kind, *rest in notes if kind == "product"}
    said = [rest[0] for _, kind, *rest in notes if kind == "remark"]  # of the kernel as it was compiled, without rings
    without_rings = {(remark.stack, remark.transformation) for remark in said}
    for remark in remarks:
        if (remark.stack, remark.transformation) in without_rings:
            continue
        # The order concerns a kernel as it is written, too.
        reason = given_up.get(remark.transformation, None if remark.transformation == ORDER else otherwise)
        reason = reason or (apart.get(remark.line) if remark.transformation == "products" else None)
        reason = reason if remark.done else None
        said.append(remark if reason is None else remark._replace(done=False, text=reason))
    return tuple(dict.fromkeys(said))


def _products(notes: list[tuple[Any, ...]]) -> list[MatrixProduct]:
    counted = Counter((line, *rest) for line, kind, *rest in notes if kind == "product")
    products = [
        MatrixProduct(line=line, a=a, b=b, instruction=instruction, count=count, refusals=refusals, present=present)
        for (line, a, b, instruction, present, refusals), count in counted.items()
    ]
    return sorted(products, key=lambda product: product.line)


def resident_blocks(kernel: CompiledKernel) -> tuple[int, str, float]:
    """How many blocks of a kernel a multiprocessor has room for, what limits them, and the share of its warps that they are."""
    target = named(kernel.target)
    warps = kernel.block[0] // WARP
    per_warp = -(-kernel.registers * WARP // 256) * 256  # registers are given out in units of 256 to a warp
    shared = kernel.shared_bytes + kernel.dynamic_shared_bytes + target.launch_shared_bytes
    room = {
        "threads": target.warps // warps,
        "registers": target.registers // per_warp // warps if per_warp else target.blocks,
        "shared memory": target.shared_bytes // shared,
        "the number of blocks": target.blocks,
    }
    limit = min(room, key=lambda name: room[name])
    return room[limit], limit, room[limit] * warps / target.warps
