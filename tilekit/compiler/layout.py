"""Where the elements of a tile live: linear maps from (register, lane, warp) to coordinates.

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["MAX_WARPS", "WARP", "Config", "Layout", "Vector", "choose_num_warps", "choose_vec", "elements"]

WARP = 32
MAX_WARPS = 8
ACCESS_BYTES = 16

Vector = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """What all tiles of one specialisation share, so that tiles of one shape have one layout and never need converting.

    Attributes:
        num_warps: warps in a block, a power of two.
        vec: neighbouring elements that a thread holds, a power of two: the elements of the narrowest tensor in 16 bytes.
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
    def blocked(cls, shape: Vector, config: Config) -> Layout:
        """The layout for element-wise work. From the fastest dimension: `vec` registers, the lanes, the warps, more registers."""
        rank = len(shape)
        bits = [
            tuple(1 << bit if d == dim else 0 for d in range(rank))
            for dim in reversed(range(rank))
            for bit in range(_log2(shape[dim]))
        ]
        zero = (0,) * rank

        def take(count: int) -> tuple[Vector, ...]:
            taken, bits[:count] = bits[:count], []
            return tuple(taken) + (zero,) * (count - len(taken))

        vector = tuple(v for v in take(_log2(config.vec)) if any(v))  # registers never hold copies: that would be waste
        lane, warp = take(_log2(WARP)), take(_log2(config.num_warps))
        return cls(shape, vector + tuple(bits), lane, warp)

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

    def thread_coordinate(self, thread: int) -> Vector:
        """The coordinate of register 0 in `thread`."""
        return self._combine(self.thread, thread)

    def _combine(self, basis: tuple[Vector, ...], number: int) -> Vector:
        at = [0] * len(self.shape)
        for bit, vector in enumerate(basis):
            if number >> bit & 1:
                at = [a ^ v for a, v in zip(at, vector, strict=True)]
        return tuple(at)

    def run(self, dim: int) -> tuple[int, ...]:
        """The register bits that step along `dim` by 1, 2, 4...: `2 ** len(run)` registers hold neighbouring elements."""
        found: list[int] = []
        while True:
            step = tuple(1 << len(found) if d == dim else 0 for d in range(len(self.shape)))
            if step not in self.reg:
                return tuple(found)
            found.append(self.reg.index(step))

    def chunks(self, bits: tuple[int, ...]) -> list[list[int]]:
        """All registers, in groups that differ only in `bits`; within a group in the order that `bits` count."""
        rest = [bit for bit in range(len(self.reg)) if bit not in bits]
        offsets = _spread(bits)
        return [[start + offset for offset in offsets] for start in _spread(tuple(rest))]

    def __str__(self) -> str:
        parts = (" ".join(",".join(map(str, v)) for v in basis) for basis in (self.reg, self.lane, self.warp))
        return "{} reg[{}] lane[{}] warp[{}]".format("x".join(map(str, self.shape)), *parts)


def _spread(bits: tuple[int, ...]) -> list[int]:
    """The numbers made of `bits`, counting up."""
    return [sum((n >> place & 1) << bit for place, bit in enumerate(bits)) for n in range(1 << len(bits))]


def _log2(n: int) -> int:
    if n < 1 or n & (n - 1):
        raise ValueError(f"{n} is no power of two")
    return n.bit_length() - 1


def elements(shape: Vector) -> int:
    """How many elements a tile of `shape` has."""
    return math.prod(shape)
