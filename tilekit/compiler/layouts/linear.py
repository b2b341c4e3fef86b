"""Linear layouts: where the elements of a tile live, by maps from (register, lane, warp) to coordinates.

A tile is spread over the threads of a block; each thread holds a fragment of it in registers. The layout says which element
register `r` of thread `t` holds. It is linear over GF(2): each *bit* of the register number and of the thread number has a
basis vector (a coordinate), and the element is at the XOR of the vectors whose bits are set. A zero vector means that the bit
does not matter: its two values hold copies of the same elements. So `blocked((64,), num_warps=1, vec=2)` is

    bit        r0   t0  t1  t2  t3   t4            coordinate   0  1   2  3   4  5  ...  62  63
    vector      1    2   4   8  16   32            thread       0  0   1  1   2  2  ...  31  31
                                                   register     0  1   0  1   0  1  ...   0   1

The lowest register bits walk the last dimension, which makes accesses wide; neighbouring lanes hold neighbouring vectors, which
makes them coalesced. Everything else is asked of the vectors too: how many elements a vector
access may take (`run`), which threads hold copies and must not store (`copies`), the offset of a register (`coordinates`).

Extents are powers of two, so a coordinate is a string of bits, and every vector here is one of them (or zero): a layout says
where each bit of the coordinate is kept. Changing the shape of a tile (`reshape`, `permute`, `expand_dims`) only renames these
bits, and costs nothing; reducing along a dimension (`without`) folds the places that hold its bits.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["MAX_WARPS", "WARP", "Config", "HardwareBit", "Layout", "Vector", "choose_num_warps", "choose_vec", "elements"]

WARP = 32
MAX_WARPS = 8
ACCESS_BYTES = 16

Vector = tuple[int, ...]


class HardwareBit(NamedTuple):
    """Where a bit of a tile's coordinates is kept: in a bit of the register number, of the lane, or of the warp."""

    kind: Literal["reg", "lane", "warp"]
    bit: int


@dataclass(frozen=True, slots=True)
class Config:
    """What all tiles of one specialisation share, so that tiles of one shape have one layout and never need converting.

    Attributes:
        num_warps: warps in a block, a power of two.
        vec: neighbouring elements that a thread holds, a power of two: those of the narrowest tensor in 16 bytes, or fewer where
            rows are aligned to fewer.
    """

    num_warps: int
    vec: int

    @property
    def num_threads(self) -> int:
        """Threads in a block."""
        return WARP * self.num_warps


def choose_vec(smallest_itemsize: int) -> int:
    """`Config.vec` for a kernel whose narrowest tensor has elements of `smallest_itemsize` bytes."""
    return ACCESS_BYTES // smallest_itemsize


def choose_num_warps(tile_elements: int, vec: int) -> int:
    """`Config.num_warps` for tiles of `tile_elements`: two vectors a thread where possible (32 bytes in flight a tensor).

    A block of 1024 float32 elements gets 4 warps. Fewer bytes a thread leave the memory idle: on an H200 16 KB in flight a
    multiprocessor give 1.8 TB/s, 48 KB give 4.0.
    """
    wanted = tile_elements // (2 * vec * WARP)
    return max(1, min(MAX_WARPS, 1 << max(0, wanted.bit_length() - 1)))


@dataclass(frozen=True, slots=True)
class Layout:
    """A map from registers and threads to the coordinates of a tile.

    Attributes:
        shape: the tile's extents, powers of two.
        reg, lane, warp: a basis vector for each bit of the register number, of the lane in the warp, and of the warp.
    """

    shape: Vector
    reg: tuple[Vector, ...]
    lane: tuple[Vector, ...]
    warp: tuple[Vector, ...]

    @classmethod
    def blocked(cls, shape: Vector, config: Config, fastest: int | None = None) -> Layout:
        """The layout for element-wise work. From the fastest dimension: `vec` registers, the lanes, the warps, more registers.

        Of narrow elements some of the registers come first (see `_across`).

        Args:
            shape: the tile's.
            config: the kernel's.
            fastest: the dimension that neighbouring registers and lanes walk, before the others; the last if it is None.
        """
        rank = len(shape)
        order = sorted(range(rank), key=lambda dim: (dim == fastest, dim), reverse=True)
        bits = [_bit(rank, dim, bit) for dim in order for bit in range(_log2(shape[dim]))]
        zero = (0,) * rank

        def take(count: int) -> tuple[Vector, ...]:
            taken, bits[:count] = bits[:count], []
            return tuple(taken) + (zero,) * (count - len(taken))

        vector = tuple(v for v in take(_log2(config.vec)) if any(v))  # registers never hold copies: that would be waste
        block = cls._across(bits, shape, order, config)
        lane, warp = take(_log2(WARP)), take(_log2(config.num_warps))
        return cls(shape, vector + block + tuple(bits), lane, warp)

    @staticmethod
    def _across(bits: list[Vector], shape: Vector, order: list[int], config: Config) -> tuple[Vector, ...]:
        """Of `bits`, those of the second dimension that a thread keeps, for elements of less than 4 bytes: taken out.

        A thread then holds what fills a word along that dimension too, and a transposed tile goes through shared memory in words.
        Only where registers are left over, and rows of 128 bytes for neighbouring lanes.
        """
        count = max(0, _log2(config.vec) - 2)
        spare = len(bits) - _log2(WARP) - _log2(config.num_warps)
        order = [dim for dim in order if shape[dim] > 1]
        if len(order) < 2 or spare < count or shape[order[0]] < 8 * config.vec or shape[order[1]] < 1 << count:
            return ()
        taken = tuple(_bit(len(shape), order[1], bit) for bit in range(count))
        bits[:] = [v for v in bits if v not in taken]
        return taken

    @property
    def num_registers(self) -> int:
        """Elements that each thread holds."""
        return 1 << len(self.reg)

    @property
    def thread(self) -> tuple[Vector, ...]:
        """The basis vectors by bit of the thread number."""
        return self.lane + self.warp

    @property
    def copies(self) -> int:
        """The bits of the thread number that do not matter; a thread with one of them set holds copies."""
        return sum(1 << bit for bit, vector in enumerate(self.thread) if not any(vector))

    def coordinates(self) -> list[Vector]:
        """The coordinate of each register in thread 0. A thread's own is the XOR with `thread_coordinate`."""
        return [self._combine(self.reg, r) for r in range(self.num_registers)]

    def least(self, dim: int) -> list[int]:
        """No thread's coordinate along a dimension is less, by register."""
        moved = functools.reduce(operator.or_, (vector[dim] for vector in self.thread), 0)
        return [at[dim] & ~moved for at in self.coordinates()]

    def thread_coordinate(self, thread: int) -> Vector:
        """The coordinate of register 0 in `thread`."""
        return self._combine(self.thread, thread)

    # ------------------------------------------------------------------------------------------- the same places, other names

    def expand_dims(self, axis: int) -> Layout:
        """With a dimension of extent 1 inserted before `axis`."""
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return self._renamed(shape, lambda v: (*v[:axis], 0, *v[axis:]))

    def permute(self, axes: Vector) -> Layout:
        """With its dimensions reordered: dimension `d` of the result is dimension `axes[d]` of this."""
        return self._renamed(tuple(self.shape[a] for a in axes), lambda v: tuple(v[a] for a in axes))

    def reshape(self, shape: Vector) -> Layout:
        """With other extents of the same product; elements keep their row-major order."""

        def rename(vector: Vector) -> Vector:
            flat = 0
            for extent, at in zip(self.shape, vector, strict=True):
                flat = flat * extent + at
            coordinate = []
            for extent in reversed(shape):
                flat, at = divmod(flat, extent)
                coordinate.append(at)
            return tuple(reversed(coordinate))

        return self._renamed(shape, rename)

    def without(self, axes: Vector) -> Layout:
        """What is left when dimensions `axes` are reduced: their register bits are gone, their thread bits hold copies."""
        kept = [d for d in range(len(self.shape)) if d not in axes]

        def cut(vector: Vector) -> Vector:
            return tuple(vector[d] for d in kept)

        reg = tuple(cut(v) for v in self.reg if any(cut(v)))
        return Layout(cut(self.shape), reg, tuple(map(cut, self.lane)), tuple(map(cut, self.warp)))

    def cut(self, bits: Sequence[Vector]) -> Layout:
        """Of a part of the tile in which these bits of the coordinate are fixed: registers with others are gone, and threads
        that differ in them hold other parts' elements in the same places.
        """
        zero = (0,) * len(self.shape)
        lane, warp = (tuple(zero if v in bits else v for v in basis) for basis in (self.lane, self.warp))
        return Layout(self.shape, tuple(v for v in self.reg if v not in bits), lane, warp)

    def project(self, shape: Vector) -> Layout:
        """The layout of a tile of `shape`, in which some extents are 1, that broadcasts to this one within each thread."""

        def cut(vector: Vector) -> Vector:
            return tuple(0 if extent == 1 else at for extent, at in zip(shape, vector, strict=True))

        reg = tuple(cut(v) for v in self.reg if any(cut(v)))
        return Layout(shape, reg, tuple(map(cut, self.lane)), tuple(map(cut, self.warp)))

    def _renamed(self, shape: Vector, rename: Callable[[Vector], Vector]) -> Layout:
        return Layout(shape, *(tuple(map(rename, basis)) for basis in (self.reg, self.lane, self.warp)))

    # ------------------------------------------------------------------------------------------------- where something is

    def bit_of(self, vector: Vector) -> HardwareBit:
        """Where a bit of the coordinate is kept.

        Raises:
            KeyError: nowhere; it is no bit of this shape.
        """
        kinds: tuple[tuple[Literal["reg", "lane", "warp"], tuple[Vector, ...]], ...]
        kinds = (("reg", self.reg), ("lane", self.lane), ("warp", self.warp))
        for kind, basis in kinds:
            if vector in basis:
                return HardwareBit(kind, basis.index(vector))
        raise KeyError(vector)

    def axis(self, dim: int) -> list[HardwareBit]:
        """Where the bits of the coordinate along `dim` are kept, the lowest first."""
        return [self.bit_of(_bit(len(self.shape), dim, bit)) for bit in range(_log2(self.shape[dim]))]

    def register_of(self, coordinate: Vector) -> int:
        """The register that holds `coordinate`, in the threads that hold it."""
        return sum(1 << bit for bit, v in enumerate(self.reg) if any(a & c for a, c in zip(v, coordinate, strict=True)))

    def broadcast(self, small: Layout) -> list[int] | None:
        """For each register, the one of `small` (of the same rank, extents equal or 1) that it broadcasts from.

        None if `small` has its elements in other threads: it must be converted to `project(small.shape)` before.
        """
        wanted = self.project(small.shape)
        if wanted.thread != small.thread or not set(wanted.reg) <= set(small.reg):
            return None
        return [small.register_of(_masked(c, small.shape)) for c in self.coordinates()]

    def _combine(self, basis: tuple[Vector, ...], number: int) -> Vector:
        at = [0] * len(self.shape)
        for bit, vector in enumerate(basis):
            if number >> bit & 1:
                at = [a ^ v for a, v in zip(at, vector, strict=True)]
        return tuple(at)

    def run(self, dim: int) -> tuple[int, ...]:
        """The register bits that step along `dim` by 1, 2, 4...: a vector of `2 ** len(run)` registers holds neighbours."""
        steps: list[int] = []
        while True:
            step = tuple(1 << len(steps) if d == dim else 0 for d in range(len(self.shape)))
            if step not in self.reg:
                return tuple(steps)
            steps.append(self.reg.index(step))

    def stretch(self, dim: int) -> int:
        """Coalescing: how many neighbouring elements along `dim` the threads of a warp hold together, at least."""
        steps = len(self.run(dim))
        while _bit(len(self.shape), dim, steps) in self.lane:
            steps += 1
        return 1 << steps

    def chunks(self, bits: tuple[int, ...]) -> list[list[int]]:
        """All registers, in groups that differ only in `bits`; within a group in the order that `bits` count."""
        rest = [bit for bit in range(len(self.reg)) if bit not in bits]
        offsets = _spread(bits)
        return [[start + offset for offset in offsets] for start in _spread(tuple(rest))]

    def __str__(self) -> str:
        parts = (" ".join(",".join(map(str, v)) for v in basis) for basis in (self.reg, self.lane, self.warp))
        return "{} reg[{}] lane[{}] warp[{}]".format("x".join(map(str, self.shape)), *parts)


def _bit(rank: int, dim: int, bit: int) -> Vector:
    return tuple(1 << bit if d == dim else 0 for d in range(rank))


def _masked(coordinate: Vector, shape: Vector) -> Vector:
    return tuple(at & (extent - 1) for at, extent in zip(coordinate, shape, strict=True))


def _spread(bits: tuple[int, ...]) -> list[int]:
    """The numbers made of `bits`, counting up."""
    return [sum((n >> k & 1) << bit for k, bit in enumerate(bits)) for n in range(1 << len(bits))]


def _log2(n: int) -> int:
    if n < 1 or n & (n - 1):
        raise ValueError(f"{n} is no power of two")
    return n.bit_length() - 1


def elements(shape: Vector) -> int:
    """How many elements a tile of `shape` has."""
    return math.prod(shape)
