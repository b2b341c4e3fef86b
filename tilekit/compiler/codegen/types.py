"""numba types of tensor parameters and tiles, how both look to LLVM (data models), and the state of a compilation.

A tile's value is the calling thread's fragment: one LLVM array with an element for each register of its layout. LLVM takes such
arrays apart into registers; they never reach memory.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion
from numba.cuda.types.ext_types import bfloat16

from tilekit import dtypes
from tilekit._driver.tensormaps import TensorMap
from tilekit.compiler.facts import ScalarFacts, TensorFacts
from tilekit.compiler.grids import Fold
from tilekit.compiler.layouts.linear import Config, Layout, elements
from tilekit.compiler.layouts.mma import is_accumulator
from tilekit.compiler.target import Target, of
from tilekit.dtypes import DType
from tilekit.lang.size import ELEMENTS_A_THREAD, MOST_WARPS

__all__ = [
    "BARRIER_ROOM", "RING_ALIGNMENT", "Asked", "Clash", "Compilation", "Crowded", "DTypeType", "DeferredType", "MoreWarps",
    "Pipelines", "TensorType", "TileType", "Turn", "Waited", "argument_type", "compiles", "compiling", "constant", "current",
    "current_config", "describe", "dtype_of", "extent_dtype", "extent_type", "integer", "lowered_line", "lowered_place", "noting",
    "own_line", "prevailing", "register_type", "scalar_dtype", "scalar_kind", "scalar_type",
]  # fmt: skip

i1, i8, i16, i32, i64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))

# What an element is in a register. bfloat16 and 8-bit floats travel as their bits: LLVM's dialect below sm_100 lacks such types.
_REGISTER: dict[DType, ir.Type] = {
    dtypes.bool_: i1,
    dtypes.int8: i8,
    dtypes.uint8: i8,
    dtypes.int16: i16,
    dtypes.uint16: i16,
    dtypes.int32: i32,
    dtypes.uint32: i32,
    dtypes.int64: i64,
    dtypes.uint64: i64,
    dtypes.float16: ir.HalfType(),
    dtypes.bfloat16: i16,
    dtypes.float8_e4m3fn: i8,
    dtypes.float8_e5m2: i8,
    dtypes.float32: ir.FloatType(),
    dtypes.float64: ir.DoubleType(),
}
_NARROW = (dtypes.float16, dtypes.bfloat16, *dtypes.EIGHT_BIT_FLOATS)
_SCALAR: dict[DType, types.Type] = {
    d: getattr(types, "boolean" if d == dtypes.bool_ else d.name) for d in dtypes.ALL if d not in _NARROW
}
_FROM_SCALAR: dict[types.Type, DType] = {t: d for d, t in _SCALAR.items()}
# A narrower float scalar is passed as float32, which holds it exactly: numba's own arithmetic on them goes through local memory.
_SCALAR |= dict.fromkeys(_NARROW, types.float32)
_NAMED: dict[types.Type, DType] = _FROM_SCALAR | {types.float16: dtypes.float16, bfloat16: dtypes.bfloat16}


def register_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element of `dtype` in a register."""
    return _REGISTER[dtype]


def integer(bits: int, value: int) -> ir.Constant:
    """An LLVM integer constant."""
    return ir.Constant(ir.IntType(bits), value)


def constant(dtype: DType, value: Any) -> ir.Constant:
    """An LLVM constant: `value`, as NumPy holds it in `dtype`."""
    exact = np.asarray(value).astype(dtype)
    if dtype == dtypes.bfloat16 or dtype in dtypes.EIGHT_BIT_FLOATS:
        return ir.Constant(register_type(dtype), int(exact.view(f"u{dtype.itemsize}")))
    if dtypes.is_float(dtype):
        return ir.Constant(register_type(dtype), float(exact))
    return ir.Constant(register_type(dtype), int(exact))


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
        tensors: by name, the place of a parameter among the arguments, and its type; `written`: those that are not only read.
        target: the GPU that the kernel is compiled for.
        rings: how many there are.
        producers: threads of a block besides those that calculate.
        shared: bytes of shared memory that a block may have, and `resident`, how many blocks should have room beside each other.
        rooms: bytes of dynamic shared memory that lie before the rings, and `kept` bytes that are for anything but rings.
        ring_bytes: how much the rings take, as far as they were lowered.
        barriers: by ring, how far before its stages its barriers lie, as far as they were lowered; `barrier_bytes`: of all.
        maps: the tensor maps that the kernel gets, as far as it was lowered.
        cluster: how many blocks load some tiles together; 1 if none do. `clusters`: of mapped partitions, by their names.
        products: what warpgroups were asked for, and what was waited for, since the tiles of a turn were taken, as far as it was
            lowered.
        left: by ring, how many may be under way when a turn has ended.
        operands: by ring, registers that operands of a turn's products have to themselves: their names, and how many;
            `operand_sets`: how many products have some; `apart`: whether they may.
        waiting: the last product that is waited for where it is asked for; None if another wait has come since.
        turn: that is being lowered; None outside of them. `parking`: by ring, whether the last one put operands somewhere.
        places: where such operands lie, in bytes behind all rings; `parked_bytes`: how much they take.
        read: the rings whose tiles threads read by themselves, as far as it was lowered; `unfenced`: since a fence.
        copied: whether all `producers` load, and not one of them alone, as far as it was lowered.
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
        rooms: int = 0,
        kept: int = 0,
        apart: bool = True,
    ) -> None:
        self.tensors, self.target, self.rings, self.producers = tensors, target, rings, producers
        self.shared, self.resident, self.rooms, self.kept = shared, resident, rooms, kept
        known = {name: ty.facts.cluster for name, (_, ty) in tensors.items()}
        self.clusters = {name: cluster for name, cluster in known.items() if cluster is not None}
        self.written = frozenset(name for name, (_, ty) in tensors.items() if ty.facts.role != "in")
        self.cluster = 1
        self.ring_bytes, self.copied = 0, False
        self.barriers: dict[int, int] = {}
        self.barrier_bytes = 0
        self.read: set[int] = set()
        self.unfenced: set[int] = set()
        self.products: list[Asked | Waited] = []
        self.left: dict[int, int] = {}
        self.operands: dict[int, list[tuple[str, int]]] = {}
        self.operand_sets, self.apart = 0, apart
        self.waiting: Any = None
        self.turn: Turn | None = None
        self.parking: dict[int, bool] = {}
        self.places: dict[tuple[int, ...], int] = {}
        self.parked_bytes = 0
        self.maps: list[TensorMap] = []

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
        sites: file, line and message of each such check.
        accesses: those to the parameters that the kernel writes, by name, as far as lowered: see `codegen.windows.order_access`.
        pipelines: what the rings of stages share; None if there are none.
    """

    __slots__ = (
        "accesses",
        "checks",
        "config",
        "crowded",
        "dynamic_bytes",
        "fold",
        "grows",
        "loops",
        "notes",
        "pipelines",
        "sites",
        "static_bytes",
        "target",
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
        crowded: bool = False,
    ) -> None:
        self.pipelines, self.fold, self.crowded = pipelines, fold, crowded
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
        self.sites.append((*lowered_place(), message))
        return len(self.sites) - 1

    def note(self, *what: Any) -> None:
        """Keep `what` for `compiler.explain`, with the line that is being lowered."""
        if self.notes is not None:
            self.notes.append((lowered_line(), *what))


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


def lowered_line() -> int:
    """The line of the kernel that is being lowered, 0 if none is."""
    return lowered_place()[1]


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
    crowded: bool = False,
) -> Iterator[Compilation]:
    """Compile a kernel of this configuration: operations ask for what they share by `current()`."""
    compilation = Compilation(
        config, loops=loops, checks=checks, grows=grows, target=target, pipelines=pipelines, fold=fold, crowded=crowded
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


class TensorType(types.Type):
    """A tensor parameter: everything the compiler may assume about it is in the type, and so in the compiled code.

    Attributes:
        parameter: the parameter's name, for errors.
        facts, config: as given.
        dtype: the element type.
        origins: the dimensions along which it begins behind the parameter's beginning, and ends with it: those of
            `x.slice(axis, start)`. None for any other part of a parameter.
    """

    mangling_args = ("T", ())  # symbol names spell out the types; kilobytes of them without this

    def __init__(self, parameter: str, facts: TensorFacts, config: Config, *, origins: tuple[int, ...] | None = ()) -> None:
        self.parameter, self.facts, self.config, self.origins = parameter, facts, config, origins
        self.dtype = np.dtype(dtypes.as_dtype(facts.dtype))
        super().__init__(f"Tensor({parameter}, {facts}, {config}{'' if origins == () else f', from {origins}'})")


class Clash(Exception):
    """A variable is now one tile, now another that it cannot be, or a scalar. No error of numba's: those wait for others."""


class TileType(types.Type):
    """A tile.

    Attributes:
        dtype: the element type.
        layout: which thread holds what.
        config: shared by all tiles of the kernel.
        splat: all elements are equal, so that any other layout holds them as well.
        zero: they are known to be zeros; a `splat`, too.
    """

    mangling_args = ("t", ())

    def __init__(self, dtype: DType, layout: Layout, config: Config, *, splat: bool = False, zero: bool = False) -> None:
        self.dtype, self.layout, self.config, self.splat, self.zero = dtype, layout, config, splat, zero
        super().__init__(f"Tile({dtype.name}, {layout}, {config}{', splat' * splat}{', zero' * zero})")
        compilation = _compilation.get(None)
        if compilation is not None:
            compilation.hold(self)

    @classmethod
    def of_shape(
        cls, dtype: DType, shape: tuple[int, ...], config: Config, *, splat: bool = False, zero: bool = False
    ) -> TileType:
        """The type of a tile of `shape` that nothing else has decided the layout of."""
        return cls(dtype, Layout.blocked(shape, config), config, splat=splat, zero=zero)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tile's extents."""
        return self.layout.shape

    def like(self, dtype: DType) -> TileType:
        """The same tile with another element type."""
        return TileType(dtype, self.layout, self.config, splat=self.splat)

    def at(self, layout: Layout) -> TileType:
        """The same elements in another layout, of this shape or another."""
        return TileType(self.dtype, layout, self.config, splat=self.splat)

    def unify(self, typingctx: Any, other: types.Type) -> TileType | None:
        """The type of a variable that is now one tile, now the other: a tile carried round a loop, or set in two branches."""
        if isinstance(other, TileType) and (self.dtype, self.shape) == (other.dtype, other.shape):
            return prevailing([self, other])
        if isinstance(other, TileType) or scalar_kind(other) is not None:
            raise Clash(self, other)
        return None

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """Between layouts, always; `codegen.convert_layout` does it."""
        same = isinstance(other, TileType) and (self.dtype, self.shape) == (other.dtype, other.shape)
        return Conversion.safe if same else None


def prevailing(tiles: Sequence[TileType]) -> TileType:
    """Of tiles of one shape, the one whose layout the others are converted to: no splat; that of products of matrices, if any,
    so that one which is added to round a loop stays where it is; else the layout that loads have."""
    fixed = [tile for tile in tiles if not tile.splat]
    products = (t for t in fixed if is_accumulator(t.layout))
    usual = (tile for tile in fixed if tile.layout == Layout.blocked(tile.shape, tile.config))
    return next(products, next(usual, (fixed or sorted(tiles, key=lambda tile: tile.zero))[0]))


class DeferredType(types.Type):
    """A tile that is no thread's yet: it lies in shared memory, or is still being computed, or can be at any time.

    Operations get what threads hold in the end, unless they say that they take it as it is (`definition.lowers`).

    Attributes:
        materialized: the tile that threads hold then.
        anywhere: whether threads can compute it in any layout, without each other.
    """

    materialized: TileType
    anywhere = False

    def materialize(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """Wait for it, or load it: the threads' fragments."""
        raise NotImplementedError

    def unify(self, typingctx: Any, other: types.Type) -> types.Type | None:
        """With any other tile, what threads hold."""
        return self.materialized.unify(typingctx, other.materialized if isinstance(other, DeferredType) else other)

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """To what threads hold, in any layout."""
        return self.materialized.can_convert_to(typingctx, other)


class DTypeType(types.Opaque):
    """A dtype in a kernel, such as `y.dtype`: it exists while compiling only."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        super().__init__(f"dtype({dtype.name})")


def extent_dtype(facts: TensorFacts) -> DType:
    """The integer type of a tensor's extents, and of arithmetic on its element indices."""
    return dtypes.int64 if facts.wide else dtypes.int32


def extent_type(tensor: TensorType) -> types.Type:
    """The type of a tensor's extents, and of the number of its tiles along a dimension."""
    return _SCALAR[extent_dtype(tensor.facts)]


@register_model(TensorType)
class _TensorModel(core_models.StructModel):
    """Address, extents, strides but the one that is 1: the flat kernel parameters, in this order. Of a slice also its origin."""

    def __init__(self, manager: Any, tensor: TensorType) -> None:
        extent = _SCALAR[extent_dtype(tensor.facts)]
        strides = [d for d in range(tensor.facts.rank) if d != tensor.facts.unit]
        members = [("address", types.uint64)]
        members += [(f"extent{d}", extent) for d in range(tensor.facts.rank)]
        members += [(f"stride{d}", types.int64) for d in strides]
        members += [(f"origin{d}", extent) for d in tensor.origins or ()]
        super().__init__(manager, tensor, members)


@register_model(TileType)
class _TileModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, tile: TileType) -> None:
        super().__init__(manager, tile, ir.ArrayType(register_type(tile.dtype), tile.layout.num_registers))


register_model(DTypeType)(core_models.OpaqueModel)


def argument_type(parameter: str, facts: TensorFacts | ScalarFacts, config: Config) -> types.Type:
    """The numba type of a kernel's parameter."""
    if isinstance(facts, TensorFacts):
        return TensorType(parameter, facts, config)
    return _SCALAR[dtypes.as_dtype(facts.dtype)]


def scalar_type(dtype: DType) -> types.Type:
    """The type of a scalar of `dtype` in a kernel."""
    return _SCALAR[dtype]


def scalar_dtype(ty: types.Type) -> DType | None:
    """The dtype of a scalar in a kernel, or None if `ty` is no scalar."""
    return _FROM_SCALAR.get(types.unliteral(ty))


def scalar_kind(ty: types.Type) -> type | None:
    """The Python type (bool, int, float) that a scalar of type `ty` counts as, or None if it is none."""
    dtype = scalar_dtype(ty)
    if dtype is None:
        return None
    return bool if dtype == dtypes.bool_ else float if dtypes.is_float(dtype) else int


def dtype_of(ty: types.Type) -> DType | None:
    """The dtype that a value of type `ty` names (`tk.float32`, `y.dtype`, `np.int8`, `"float16"`), or None."""
    match ty:
        case DTypeType():
            return ty.dtype
        case types.DType():
            return _NAMED.get(ty.dtype)
        case types.NumberClass():
            return _NAMED.get(ty.instance_type)
        case types.StringLiteral(literal_value=spec) | types.Omitted(value=spec):
            try:
                return dtypes.as_dtype(spec)
            except TypeError:
                return None
    return None


def describe(ty: types.Type) -> str:
    """What a value is, in the words of the tile language: numba's names mean nothing to the reader of an error."""
    match ty:
        case DeferredType():
            return describe(ty.materialized)
        case TileType():
            return f"a {ty.dtype.name} tile of shape {ty.shape}"
        case TensorType():
            return f"the tensor {ty.parameter}"
        case types.StringLiteral():
            return f"the string {ty.literal_value!r}"
        case types.UnicodeType():
            return "a string"
        case types.NoneType():
            return "None"
        case types.BaseTuple():
            return "a tuple"
        case types.List() | types.LiteralList():
            return "a list"
        case types.Array():
            return "an array"
    kind = scalar_kind(ty)
    if kind is not None:
        return f"a scalar ({kind.__name__})"
    return "a dtype" if dtype_of(ty) is not None else "something else"
