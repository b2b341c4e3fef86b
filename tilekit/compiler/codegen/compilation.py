"""The state of a compilation: what the operations of one kernel share while it is lowered, and what its rings of stages share."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tilekit.compiler.grids import Fold, Visits
from tilekit.compiler.layouts.linear import Config, elements
from tilekit.compiler.target import Target, of
from tilekit.lang.pipelines import MOST_STAGES
from tilekit.lang.size import ELEMENTS_A_THREAD, MOST_WARPS

if TYPE_CHECKING:
    from llvmlite import ir

    from tilekit._driver.tensormaps import TensorMap
    from tilekit.compiler.codegen.types import TensorType, TileType

__all__ = [
    "BARRIER_ROOM", "MOST_REGISTERS", "RING_ALIGNMENT", "Asked", "Compilation", "Crowded", "MoreWarps", "Pipelines", "Turn",
    "Waited", "compiles", "compiling", "current", "current_config", "lowered_place", "noting", "own_line",
]  # fmt: skip

MOST_REGISTERS = 64
"""What one tile may take of a thread's 255 registers before a block gets more warps, which nobody has asked for."""


RING_ALIGNMENT = 1024
"""What a ring of stages begins at a multiple of, in bytes."""
BARRIER_ROOM = 512
"""What there is for the barriers of all rings of a kernel, in bytes: those of 32 stages."""


_OLDEST = of((8, 0))  # what a compilation is for unless it says: that of layouts alone


class Crowded(Exception):
    """Rooms in shared memory fit one by one, and not beside each other. No error of numba's: they are made to share one."""


class MoreWarps(Exception):
    """A tile is too large for the warps of a block: so many are wanted. No error of numba's, which would go on without it."""

    def __init__(self, num_warps: int) -> None:
        self.num_warps = num_warps
        super().__init__(num_warps)


@dataclass
class Turn:
    """The turn of a pipelined loop that is being lowered.

    Attributes:
        ring: the number of its ring.
        number: of the turn, an i32, counted over all loops with that ring.
        lines: of the statements that run once in it.
        parked: how many operands it has put into shared memory, as far as it was lowered.
    """

    ring: int
    number: ir.Value
    lines: tuple[int, ...]
    parked: int = 0


class Asked(NamedTuple):
    """A product that warpgroups were asked for.

    Attributes:
        line: of the statement; 0 if it stands in a function that the kernel calls.
        renewed: whether it reads registers of a first operand that are written where turns meet.
        computed: what `lower.warpgroups` knows of a first operand that its statement computes; None if it computes none.
    """

    line: int
    renewed: bool = False
    computed: Any = None


class Waited(NamedTuple):
    """A wait for products: so many may be `left` under way after it. `line` as for `Asked`."""

    line: int
    left: int


class Pipelines:
    """What the rings of stages of one kernel share.

    Attributes:
        tensors: by name, the place of a parameter among the arguments, and its type.
        target: the GPU that the kernel is compiled for.
        rings: how many there are.
        producers: threads of a block besides those that calculate.
        shared: bytes of shared memory that a block may have, and `resident`, how many blocks should have room beside each other;
            `alone`: whether no other has, as registers are, or as the user says.
        rooms: bytes of dynamic shared memory that lie before the rings, and `kept` bytes that are for anything but rings.
        chosen: by ring, how much those take of which the user said how many stages they have, as far as they were typed.
        fewest: the fewest stages of any of the others.
        ring_bytes: how much the rings take, as far as they were lowered.
        barriers: by ring, how far before its stages its barriers lie, as far as they were lowered; `barrier_bytes`: of all.
        begun: the types of the rings, and where they are, as far as they were lowered.
        received: bytes of room for what other blocks of a cluster send, and `sums`: where that of each sum lies behind all rooms,
            and its size, as far as they were lowered.
        maps: the tensor maps that the kernel gets, as far as it was lowered.
        rows: by ring, and variant of it, the rows of each stream's tensor, if the last tile may have fewer than others, else None
            (see `nvidia.fewer_rows`); as far as they were lowered.
        cluster: how many blocks load some tiles together; 1 if none do. `clusters`: of mapped partitions, by their names.
        early: whether launches may begin early (see `nvidia.early_starts`): its blocks stay, and visit the tiles of a partition.
        products: what warpgroups were asked for, and what was waited for, since the tiles of a turn were taken, as far as it was
            lowered.
        left: by ring, how many may be under way when a turn has ended.
        operands: by ring, registers that operands of a turn's products have to themselves: their names, and how many;
            `operand_sets`: how many products have some; `apart`: whether they may.
        deals: whether registers are dealt out anew, from those who load to those who calculate.
        spare: how many more registers than usual a thread that loads keeps.
        few_registers: whether a thread has fewer than a product takes, as far as it was compiled. `narrow`: instructions take as
            many columns as those suffice for that all begin with.
        waiting: the last product that is waited for where it is asked for; None if another wait has come since.
        turn: that is being lowered; None outside of them. `parking`: by ring, whether the last one put operands somewhere.
        places: where such operands lie, in bytes behind all rings; `parked_bytes`: how much they take.
        read: the rings whose tiles threads read by themselves, as far as it was lowered; `unfenced`: since a fence.
        copied: whether all `producers` load, and not one of them alone, as far as it was lowered. `summed`: whether threads
            multiply and add what they load by themselves.
    """

    def __init__(
        self,
        tensors: Mapping[str, tuple[int, TensorType]],
        target: Target,
        rings: int,
        *,
        producers: int,
        shared: int,
        resident: int = 1,
        alone: bool = False,
        rooms: int = 0,
        kept: int = 0,
        apart: bool = True,
        deals: bool = False,
        spare: int = 0,
        narrow: bool = False,
    ) -> None:
        self.tensors, self.target, self.rings, self.producers = tensors, target, rings, producers
        self.shared, self.resident, self.alone, self.rooms, self.kept = shared, resident, alone, rooms, kept
        known = {name: ty.facts.cluster for name, (_, ty) in tensors.items()}
        self.clusters = {name: cluster for name, cluster in known.items() if cluster is not None}
        self.cluster = 1
        self.early = target.early_starts and any(ty.facts.group is not None for _, ty in tensors.values())
        self.ring_bytes, self.copied, self.chosen, self.fewest = 0, False, dict[int, int](), MOST_STAGES
        self.summed = False
        self.barriers: dict[int, int] = {}
        self.begun: list[tuple[Any, ir.Value]] = []
        self.rows: dict[tuple[int, int], list[Any]] = {}
        self.barrier_bytes = self.received = 0
        self.sums: list[tuple[int, int]] = []
        self.read: set[int] = set()
        self.unfenced: set[int] = set()
        self.products: list[Asked | Waited] = []
        self.left: dict[int, int] = {}
        self.operands: dict[int, list[tuple[str, int]]] = {}
        self.operand_sets, self.apart, self.deals, self.spare = 0, apart, deals, spare
        self.few_registers, self.narrow = False, narrow
        self.waiting: Any = None
        self.turn: Turn | None = None
        self.parking: dict[int, bool] = {}
        self.places: dict[tuple[int, ...], int] = {}
        self.parked_bytes = 0
        self.maps: list[TensorMap] = []

    def number_of(self, tensor_map: TensorMap) -> int:
        """The number of a tensor map that the kernel gets."""
        if tensor_map not in self.maps:
            self.maps.append(tensor_map)
        return self.maps.index(tensor_map)

    def note_read(self, ring: int) -> None:
        """Threads read tiles of a ring by themselves, and those who have its stages filled must wait for that."""
        self.read.add(ring)
        self.unfenced.add(ring)

    @property
    def shared_bytes(self) -> int:
        """The dynamic shared memory of a block: what is no ring's, barriers, from a multiple of 1024 bytes on the stages, and
        places of operands.
        """
        return self.rooms + BARRIER_ROOM + RING_ALIGNMENT + self.ring_bytes + self.parked_bytes


class Compilation:
    """What the operations of one kernel share while it is compiled.

    Attributes:
        config: warps and vector width.
        grows: whether another number of warps may be taken for the sake of a large tile.
        loops: whether code may run more than once in a block, so that shared memory may still be read when it is written again.
        static_bytes, dynamic_bytes: shared memory that the operations asked for, as far as they were lowered.
        crowded: whether all that the operations ask for is one dynamic room, with a barrier before each use.
        notes: what the operations do, for `compiler.explain`: the line, and what was noted. None where nobody wants to know.
        checks: whether the kernel looks after itself while it runs, see `lower.checks`.
        target: the GPU that it is compiled for.
        fold: how its grid is folded; None if it is not.
        visits: in which order the blocks of a grid that is not are visited; None for that of their numbers.
        sites: file, line and message of each such check.
        accesses: those to the parameters that the kernel writes, by name, as far as lowered: see `codegen.windows.order_access`.
        pipelines: what the rings of stages share; None if there are none.
        lines: see `BoundKernel`.
        serialised: why ptxas runs asynchronous products one after the other, in its words; empty if it does not.
    """

    __slots__ = (
        "accesses",
        "checks",
        "config",
        "crowded",
        "dynamic_bytes",
        "fold",
        "grows",
        "lines",
        "loops",
        "notes",
        "pipelines",
        "serialised",
        "sites",
        "static_bytes",
        "target",
        "visits",
    )

    def __init__(
        self,
        config: Config,
        *,
        loops: bool,
        checks: bool = False,
        grows: bool = False,
        target: Target = _OLDEST,
        pipelines: Pipelines | None = None,
        fold: Fold | None = None,
        visits: Visits | None = None,
        crowded: bool = False,
        lines: Mapping[int, tuple[str, int]] = MappingProxyType({}),
    ) -> None:
        self.lines, self.serialised = lines, ""
        self.pipelines, self.fold, self.visits, self.crowded = pipelines, fold, visits, crowded
        self.config, self.loops, self.checks, self.grows, self.target = config, loops, checks, grows, target
        self.sites: list[tuple[str, int, str]] = []
        self.accesses: defaultdict[str, list[Any]] = defaultdict(list)
        self.static_bytes = self.dynamic_bytes = 0
        self.notes = _wanted.get()
        if self.notes is not None:
            self.notes.clear()  # an earlier attempt's

    def hold(self, tile: TileType) -> None:
        """Take notice of a tile that threads hold; `MoreWarps` if it is too large for them, and there may be more."""
        if not tile.splat:
            self._grow(tile.layout.num_registers * tile.dtype.itemsize // 4 // MOST_REGISTERS)
            self.spread(tile.shape, ELEMENTS_A_THREAD)

    def spread(self, shape: tuple[int, ...], each: int) -> None:
        """Take notice of code for `each` elements of a thread, of a tile of that shape; `MoreWarps` as for `hold`."""
        self._grow(elements(shape) // (each * self.config.num_threads))

    def _grow(self, times: int) -> None:
        if self.grows and times > 1 and self.config.num_warps < MOST_WARPS:
            raise MoreWarps(min(MOST_WARPS, self.config.num_warps * times))

    def site(self, message: str) -> int:
        """The number of a check at the line that is being lowered."""
        self.sites.append((*self.location(), message))
        return len(self.sites) - 1

    def note(self, *what: Any) -> None:
        """Keep `what` for `compiler.explain`, with the line that is being lowered."""
        if self.notes is not None:
            self.notes.append((self.location()[1], *what))

    def location(self) -> tuple[str, int]:
        """The file and the line of the user's that are being lowered."""
        file, line = lowered_place()
        return self.lines.get(line, (file, line))


_wanted: ContextVar[list[tuple[Any, ...]] | None] = ContextVar("tilekit_notes", default=None)


@contextmanager
def noting() -> Iterator[list[tuple[Any, ...]]]:
    """While the block runs, compilations in this thread note what they do in the list that it gets."""
    notes: list[tuple[Any, ...]] = []
    token = _wanted.set(notes)
    try:
        yield notes
    finally:
        _wanted.reset(token)


def own_line() -> int:
    """The same; 0 in a function that the kernel calls, whose lines may have the numbers of the kernel's."""
    file, line = _lowered()
    return 0 if _COPY.search(file) else line


def lowered_place() -> tuple[str, int]:
    """The file and the line of the kernel that are being lowered."""
    file, line = _lowered()
    return _COPY.sub("", file), line


_COPY = re.compile(r"#\d+$")  # each call of a function has a copy of it, see `inlining`


def _lowered() -> tuple[str, int]:
    """What numba takes for the file, and the line: its lowering has them, further down the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        loc: Any = getattr(frame.f_locals.get("self"), "loc", None)
        line = getattr(loc, "line", None)
        if isinstance(line, int):
            return str(loc.filename), line
        frame = frame.f_back
    return "", 0


_compilation: ContextVar[Compilation] = ContextVar("tilekit_compilation")


@contextmanager
def compiling(
    config: Config,
    *,
    loops: bool = True,
    checks: bool = False,
    grows: bool = False,
    target: Target = _OLDEST,
    pipelines: Pipelines | None = None,
    fold: Fold | None = None,
    visits: Visits | None = None,
    crowded: bool = False,
    lines: Mapping[int, tuple[str, int]] = MappingProxyType({}),
) -> Iterator[Compilation]:
    """Compile a kernel of this configuration: operations ask for what they share by `current()`."""
    compilation = Compilation(
        config,
        loops=loops,
        checks=checks,
        grows=grows,
        target=target,
        pipelines=pipelines,
        fold=fold,
        visits=visits,
        crowded=crowded,
        lines=lines,
    )
    token = _compilation.set(compilation)
    try:
        yield compilation
    finally:
        _compilation.reset(token)


def current() -> Compilation:
    """The compilation that is under way."""
    return _compilation.get()


def compiles() -> bool:
    """Whether numba is compiling a kernel of tilekit's, and none of the user's own."""
    return _compilation.get(None) is not None


def current_config() -> Config:
    """The configuration of the kernel that is being compiled."""
    return current().config
