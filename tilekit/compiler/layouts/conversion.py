"""Layout conversion without bank conflicts: which registers to take, which lanes to shuffle, or a swizzle of shared memory.

A conversion that needs no other thread's elements is a choice of registers (`within_threads`). One in which bits of the register
number and of the lane change places goes by shuffles (`within_warps`). All others go through shared memory, at offsets that are a
linear map of the coordinate's bits too (`Swizzle`), chosen so that neither side meets a bank conflict:

* bits that both sides keep in registers come lowest: an access takes up to 16 bytes of them;
* then come the 32 banks. Bits that the lanes of both sides walk get a bank bit each. One that only the writing lanes walk shares
  its bank bit, by XOR, with one that only the reading lanes walk: each side sees the other's as a constant, and covers all banks;
* the rest goes anywhere.

A tile that is larger than the memory goes in parts, one after the other (`parts`), each as if it were a tile of its own.

Such a map is one to one: every bit has a place of its own, and what the sharing ones add lies below their own. The idea is that
of Triton's swizzling (Zhou et al., Linear Layouts, 2025), for the layouts of this package, where each vector is one bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP, Layout, Vector

__all__ = [
    "MATRIX_ITEMSIZE", "Matrices", "Swizzle", "parts", "wavefronts", "with_lanes", "with_registers_first", "with_runs",
    "within_threads", "within_warps",
]  # fmt: skip

MATRIX_ITEMSIZE = 2
"""Of elements that `ldmatrix` deals with, in bytes."""

_BANKS, _BANK_BYTES, _LANE_BITS = 32, 4, 5


def within_threads(source: Layout, target: Layout) -> list[tuple[int, list[tuple[int, int]]]] | None:
    """The conversion as a choice of registers, or None if elements must change threads.

    Returns:
        For each register of `target` the register of `source` to take, and for bits of the thread number (if any) what to XOR to
        that register's number where the bit is set: of these, the thread chooses when the kernel runs.
    """
    choices = []
    for bit, (old, new) in enumerate(zip(source.thread, target.thread, strict=True)):
        if old == new:
            continue
        if any(old) or new not in source.reg:
            return None
        choices.append((bit, source.register_of(new)))
    if not set(target.reg) <= set(source.reg):
        return None
    return [(source.register_of(at), choices) for at in target.coordinates()]


def within_warps(source: Layout, target: Layout) -> list[tuple[int, int]] | None:
    """The conversion as bits of the register number and of the lane that change places; None if it is more than that."""
    if source.warp != target.warp or len(source.reg) != len(target.reg):
        return None
    swaps = []
    for lane, (old, new) in enumerate(zip(source.lane, target.lane, strict=True)):
        if old == new:
            continue
        if not any(old) or new not in source.reg or target.reg[source.reg.index(new)] != old:
            return None
        swaps.append((source.reg.index(new), lane))
    changed = {reg for reg, _ in swaps}
    same = all(a == b for reg, (a, b) in enumerate(zip(source.reg, target.reg, strict=True)) if reg not in changed)
    return swaps if same else None


def with_runs(layout: Layout, dim: int, itemsize: int, nbytes: int = ACCESS_BYTES) -> Layout:
    """The layout whose threads hold up to so many neighbouring bytes along a dimension, with other elements of their warps for
    it.

    Bits of the lane that walk the dimension change places with bits of the register number that walk it further on.
    """
    reg, lane = list(layout.reg), list(layout.lane)
    for bit in range(len(layout.run(dim)), (nbytes // itemsize).bit_length() - 1):
        near = tuple(1 << bit if d == dim else 0 for d in range(len(layout.shape)))
        further = [r for r, v in enumerate(reg) if v[dim] >= nbytes // itemsize]
        if near not in lane or not further:
            break
        lane_bit, register = lane.index(near), further[0]
        lane[lane_bit], reg[register] = reg[register], near
    return Layout(layout.shape, tuple(reg), tuple(lane), layout.warp)


def with_lanes(layout: Layout, dim: int, run: int, lanes: int = WARP) -> Layout:
    """The layout in which each thread holds `run` neighbours along a dimension together, and neighbouring lanes, so many, the
    next ones, with other elements of their warps for it.
    """
    reg, lane = list(layout.reg), list(layout.lane)
    first = run.bit_length() - 1
    wanted = [tuple(1 << bit if d == dim else 0 for d in range(len(layout.shape))) for bit in range(first, first + _LANE_BITS)]
    for near in wanted[: lanes.bit_length() - 1]:
        if near in lane:
            continue
        others = [at for at, vector in enumerate(lane) if any(vector) and vector not in wanted]
        if near not in reg or not others:
            break
        register = reg.index(near)
        lane[others[0]], reg[register] = reg[register], lane[others[0]]
    return Layout(layout.shape, tuple(reg), tuple(lane), layout.warp)


def with_registers_first(layout: Layout, dim: int) -> Layout:
    """The layout in which what a thread holds along a dimension is in a row there: its registers walk that dimension first, then
    its lanes, then its warps. The bits that walk it change places, and no others.
    """
    sides = {"reg": list(layout.reg), "lane": list(layout.lane), "warp": list(layout.warp)}
    held = layout.axis(dim)
    vectors = [sides[kind][bit] for kind, bit in held]
    for (kind, bit), vector in zip(sorted(held, key=lambda one: (list(sides).index(one.kind), one.bit)), vectors, strict=True):
        sides[kind][bit] = vector
    return Layout(layout.shape, *(tuple(side) for side in sides.values()))


def parts(source: Layout, target: Layout, itemsize: int, limit: int) -> tuple[Vector, ...]:
    """The bits of the coordinate that number the parts in which a tile goes through `limit` bytes of shared memory.

    A part's elements have these bits in common. First come those that both sides keep in registers, as all threads then write
    and read; then those that a side keeps in warps, of which the others have nothing to do meanwhile. Lanes that have nothing to
    do cost as much as the others, and bits that an access covers make it narrower: both only where nothing else is left.
    """
    shared = Swizzle.between(source, target, itemsize).shared
    bits = _moving(source.reg + source.thread)

    def cost(vector: Vector) -> int:
        kinds = [side.bit_of(vector).kind for side in (source, target)]
        return 8 * (vector in shared) + 3 * kinds.count("lane") + kinds.count("warp")

    count = max(0, ((itemsize << len(bits)) - 1) // limit).bit_length()
    return tuple(sorted(bits, key=cost)[: min(count, len(bits))])


@dataclass(frozen=True)
class Swizzle:
    """A swizzle: a linear map from coordinates to offsets in shared memory, against bank conflicts.

    Attributes:
        offsets: for each bit of the coordinate, what it adds (by XOR) to the offset, in elements.
        shared: the bits that one access covers, the lowest offset first.
    """

    offsets: dict[Vector, int]
    shared: tuple[Vector, ...]

    @classmethod
    def between(
        cls, source: Layout, target: Layout, itemsize: int, apart: Sequence[Vector] = (), *, read_wide: bool = False
    ) -> Swizzle:
        """The map for writing a tile in `source` and reading it in `target`, free of bank conflicts on both sides.

        Elements that differ in a bit of `apart` are not read in one access. If it is `read_wide`, an access reads as many as it
        can, though they may have to be written one by one: of what is read more often than written.
        """
        widest = (ACCESS_BYTES // itemsize).bit_length() - 1
        shared = [v for v in target.reg if (read_wide or v in source.reg) and v not in apart][:widest]
        order = list(shared)
        # Lanes take part in an access in phases of 128 bytes: the lowest lanes, the fewer the wider the access.
        covered = len(shared), len(_together(shared, source))
        widths = [max(_BANK_BYTES, itemsize << bits) // _BANK_BYTES for bits in covered]
        phases = [_LANE_BITS - width.bit_length() + 1 for width in widths]
        reading, writing = (
            [v for v in _moving(side.lane[:phase]) if v not in shared]
            for side, phase in zip((target, source), phases, strict=True)
        )
        below = max(0, (_BANK_BYTES // itemsize).bit_length() - 1 - len(shared))  # offsets within a bank, for narrow elements
        both = [v for v in writing if v in reading]
        only_writing, only_reading = ([v for v in side if v not in both] for side in (writing, reading))
        rest = [v for v in _moving(source.reg + source.thread) if v not in (*shared, *both, *only_writing, *only_reading)]
        order += rest[:below]
        paired = len(order) + len(both)
        order += both + only_writing
        if len(only_writing) < len(only_reading):  # they have bank bits of their own for what is left over
            order += only_reading[len(only_writing) :]
        order += [v for v in (*only_reading, *rest) if v not in order]
        offsets = {vector: 1 << position for position, vector in enumerate(order)}
        for position, vector in enumerate(only_reading[: len(only_writing)]):
            offsets[vector] |= 1 << (paired + position)
        return cls(offsets, tuple(shared))

    def offset(self, coordinate: Vector) -> int:
        """The offset of an element, in elements."""
        total = 0
        for vector, offset in self.offsets.items():
            if any(a & b for a, b in zip(vector, coordinate, strict=True)):
                total ^= offset
        return total

    def within(self, layout: Layout) -> Swizzle:
        """The same for a layout: an access covers only elements that a thread has together there."""
        return Swizzle(self.offsets, _together(self.shared, layout))

    def registers(self, layout: Layout) -> list[list[int]]:
        """The registers of `layout`, in groups that one access covers, in the order of their offsets."""
        return layout.chunks(tuple(layout.reg.index(v) for v in self.shared))

    def of_thread(self, layout: Layout) -> list[int]:
        """What each bit of the thread number adds (by XOR) to the offset."""
        return [self.offset(v) for v in layout.thread]


@dataclass(frozen=True)
class Matrices:
    """How `ldmatrix` reads a tile of 16-bit elements: matrices of 8 x 8, to whose rows of 16 bytes 8 lanes point; 4 at a time.

    Of each matrix a lane then holds two elements: in row `lane // 4` those from `2 * (lane % 4)` on; or, if it is transposed, in
    column `lane // 4` those of rows `2 * (lane % 4)` and the next.

    Attributes:
        pointing: the layout in which lanes point: a row in the lowest registers; the lowest three bits of the lane count rows,
            the others matrices.
        transposed: see above.
    """

    pointing: Layout
    transposed: bool

    @classmethod
    def between(cls, together: Sequence[Vector], target: Layout, itemsize: int) -> Matrices | None:
        """To read in `target` what lies in runs of 16 bytes that bits of `together` walk; None if it cannot be done."""
        if itemsize != MATRIX_ITEMSIZE or len(target.reg) < 3:
            return None
        pair, numbers, rest = target.reg[:1], target.reg[1:3], target.reg[3:]
        near, far = (*pair, *target.lane[:2]), target.lane[2:]
        for along, rows, transposed in ((near, far, False), (far, near, True)):
            if set(along) <= set(together) and len(set(along)) == len(along):
                return cls(Layout(target.shape, (*along, *rest), (*rows, *numbers), target.warp), transposed)
        return None


def wavefronts(swizzle: Swizzle, layout: Layout, itemsize: int) -> int:
    """Bank conflicts: how many times the banks are accessed for one access of a warp; 1 for each 128 bytes if there are none."""
    per_access = itemsize << len(swizzle.shared)
    lanes = _LANE_BITS - max(0, (per_access // _BANK_BYTES).bit_length() - 1)
    total = 0
    for first in range(0, 1 << _LANE_BITS, 1 << lanes):
        words: dict[int, set[int]] = {}
        for lane in range(first, first + (1 << lanes)):
            start = swizzle.offset(layout.thread_coordinate(lane)) * itemsize // _BANK_BYTES
            for word in range(start, start + max(1, per_access // _BANK_BYTES)):
                words.setdefault(word % _BANKS, set()).add(word)
        total += max(map(len, words.values()))
    return total


def _together(shared: Sequence[Vector], layout: Layout) -> tuple[Vector, ...]:
    """Of the bits that an access may cover, the lowest, as far as threads have all that they count."""
    return tuple(shared[: next((n for n, vector in enumerate(shared) if vector not in layout.reg), len(shared))])


def _moving(vectors: Iterable[Vector]) -> list[Vector]:
    return [v for v in vectors if any(v)]
