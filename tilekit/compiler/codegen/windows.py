"""Loads and stores of tiles, whatever names them: their types, checks, barriers between accesses, and code."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.access import open_access, open_window
from tilekit.compiler.codegen.access_layouts import as_accessed, as_stored, words_of_lines
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.convert_layout import in_layout
from tilekit.compiler.codegen.definition import ABSENT, known
from tilekit.compiler.codegen.diagnose import refuse, reject
from tilekit.compiler.codegen.emit import pack, unpack
from tilekit.compiler.codegen.line_stores import store_lines
from tilekit.compiler.codegen.mapped_types import TileIndexType
from tilekit.compiler.codegen.operands import elements as operand_elements
from tilekit.compiler.codegen.shared_memory import barrier
from tilekit.compiler.codegen.transfer import Padding, read, write
from tilekit.compiler.codegen.types import TensorType, TileType, describe, scalar_dtype, scalar_kind
from tilekit.compiler.layouts.linear import Layout
from tilekit.errors import CompileError
from tilekit.lang import mapped, windows
from tilekit.lang.tile import check_shape, common_shape

__all__ = [
    "Cut", "check_eviction", "check_index", "check_indices", "check_mask", "check_padding", "check_value", "constant_of",
    "cut_of", "in_rule", "index_values", "load_window", "mask_elements", "order_access", "proven", "store_window", "the_tensor",
    "tile_shape", "to_store", "with_tiles", "writable",
]  # fmt: skip

Shape = tuple[int, ...]


class Cut(NamedTuple):
    """How a tensor is cut into tiles.

    Attributes:
        extents: of a tile along each dimension of the tensor, which are all 1 for one element.
        shape: of the tile as the kernel sees it: its own order of dimensions; `()` for one element.
        along: the tensor's dimension that each dimension of the tile lies along.
        steps: how many elements apart tiles start, along each dimension of the tensor.
    """

    extents: Shape
    shape: Shape
    along: Shape
    steps: Shape

    @property
    def back(self) -> Shape:
        """The tile's dimension that lies along each dimension of the tensor."""
        return tuple(int(d) for d in np.argsort(self.along))

    def seen(self, layout: Layout) -> Layout:
        """A layout of the extents as the tile has it."""
        return layout.permute(self.along) if self.shape else layout.reshape(())

    def unseen(self, layout: Layout) -> Layout:
        """A layout of the tile as one of the extents."""
        return layout.permute(self.back) if self.shape else layout.reshape(self.extents)


def cut_of(extents: Shape, shape: Shape, along: Shape | None = None, steps: Shape | None = None) -> Cut:
    """A cut whose extents and steps are given in the order of the tile's dimensions."""
    along = tuple(range(len(extents))) if along is None else along
    back = np.argsort(along)
    lies = tuple(extents[d] for d in back)
    return Cut(lies, shape, along, lies if steps is None else tuple(steps[d] for d in back))


# -------------------------------------------------------------------------------------------------- checks, as in the language


def in_rule(what: str, rule: Callable[..., Any], *args: Any) -> Any:
    """`rule(*args, what)`, of the language; what it refuses is refused at the call."""
    try:
        return rule(*args, what)
    except CompileError as error:
        reject(what, error.reason)


def constant_of(ty: types.Type, what: str, name: str) -> Any:
    """The value of an argument, which must be known when the kernel is compiled."""
    value = known(ty)
    if value is ABSENT:
        reject(what, f"{name} must be known when the kernel is compiled; it is {describe(ty)}")
    return value


def tile_shape(ty: types.Type, what: str, *, empty: bool = False) -> Shape:
    """The tile shape that an argument of type `ty` gives; rejected unless it is known, and of powers of two.

    `empty` allows `()`.
    """
    shape = known(ty)
    if shape is ABSENT:
        parts = ty.types if isinstance(ty, types.BaseTuple) else [ty]
        if all(scalar_kind(part) is int for part in parts):
            reject(
                what,
                "the tile shape must be known when the kernel is compiled: make it a generic (tk.generics) or a tk.Const",
            )
        reject(what, f"a tile shape is an int or a tuple of ints, not {describe(ty)}")
    if empty and shape == ():
        return ()
    return in_rule(what, check_shape, shape)  # type: ignore[no-any-return]


def the_tensor(ty: types.Type, what: str) -> TensorType:
    """`ty`, which must be a tensor's."""
    if not isinstance(ty, TensorType):
        reject(what, f"needs a tensor parameter, not {describe(ty)}")
    return ty


def with_tiles(ty: types.Type, what: str) -> TensorType:
    """The type of a partition: a tensor with tiles of its own."""
    tensor = the_tensor(ty, what)
    if tensor.facts.tile is None:
        reject(what, windows.tileless(tensor.parameter, tensor.facts.role != "in"))
    return tensor


def writable(tensor: TensorType, what: str) -> None:
    """Refuse to write a tensor that the kernel only reads."""
    if tensor.facts.role == "in":
        reject(what, windows.read_only(tensor.parameter))


def check_indices(ty: types.Type, rank: int, what: str, rule: str) -> list[types.Type]:
    """The types of an index's parts: an int, or an integer tile of shape (), for each dimension.

    Args:
        ty: the index.
        rank: how many parts there must be.
        what: the operation.
        rule: what an index is, for the error.
    """
    parts = list(ty.types) if isinstance(ty, types.BaseTuple) else [ty]
    for part in parts:
        dtype = part.dtype if isinstance(part, TileType) and part.shape == () else scalar_dtype(part)
        if dtype is None or dtype == dtypes.bool_ or dtypes.is_float(dtype):
            reject(what, f"{rule}, not {describe(part)}")
    if len(parts) != rank:
        reject(what, f"{rule}; here are {len(parts)} of {rank}")
    return parts


def check_index(ty: types.Type, tensor: TensorType, what: str) -> None:
    """Refuse what is no index of tiles of the tensor."""
    if isinstance(ty, TileIndexType):
        reject(what, mapped.not_an_index())
    parts = len(ty.types) if isinstance(ty, types.BaseTuple) else 1
    check_indices(ty, parts, what, "a tile index is an int or a tuple of ints")
    if parts != tensor.facts.rank:
        reject(what, f"{parts} indices for {tensor.parameter}, which has {tensor.facts.rank} dimensions")


def proven(index: types.Type, tensor: TensorType, cut: Cut) -> tuple[int, ...]:
    """The dimensions of the tensor in which an index of its tiles, by their dimensions, is known and sure to be inside.

    An extent of which a factor is known is no less than that.
    """
    parts = index.types if isinstance(index, types.BaseTuple) else [index]
    inside = []
    for d, position in enumerate(cut.back):
        at, least = known(parts[position]), tensor.facts.extents[d]
        if least > 1 and isinstance(at, int) and 0 <= at * cut.steps[d] < least:
            inside.append(d)
    return tuple(inside)


def index_values(builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> list[ir.Value]:
    """An index as an i32 or i64 for each dimension."""
    if isinstance(ty, types.BaseTuple):
        parts = [(t, builder.extract_value(value, d)) for d, t in enumerate(ty.types)]
    else:
        parts = [(ty, value)]
    return [index_value(builder, part, element) for part, element in parts]


def index_value(builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> ir.Value:
    """An integer scalar, or a tile of shape (), as an i32 or i64."""
    if isinstance(ty, TileType):
        dtype, value = ty.dtype, builder.extract_value(value, 0)
    else:
        dtype = scalar_dtype(ty)
    wide = dtype.itemsize == 8 or dtype == dtypes.uint32
    return convert(builder, value, dtype, dtypes.int64 if wide else dtypes.int32)


def check_value(what: str, value: types.Type, tensor: TensorType) -> None:
    """Refuse a value whose elements may not be stored into the tensor."""
    name = tensor.parameter
    if isinstance(value, TileType):
        if not dtypes.storable(value.dtype, tensor.dtype):
            reject(
                what,
                f"a {value.dtype.name} tile does not fit {name}, a {tensor.dtype.name} tensor, without loss; "
                f"write .astype({name}.dtype) if that is meant",
            )
    elif scalar_kind(value) is None:
        reject(what, f"the value is a tile or a scalar, not {describe(value)}")
    else:
        problem = dtypes.unstorable(tensor.dtype, scalar_kind(value), known(value), tensor.parameter)
        if problem:
            refuse(what, problem)


def check_mask(what: str, mask: types.Type, shape: Shape) -> bool:
    """Whether there is a mask; refuse one that is no bool, or does not broadcast to `shape`."""
    if known(mask) is None:
        return False
    if isinstance(mask, TileType):
        if mask.dtype != dtypes.bool_:
            reject(what, f"the mask is a bool tile; this one holds {mask.dtype.name}")
        try:
            fits = common_shape(what, [mask.shape, shape]) == shape
        except CompileError as error:
            reject(what, error.reason)
        if not fits:
            reject(what, f"a mask of shape {mask.shape} for a tile of shape {shape}")
    elif scalar_kind(mask) is not bool:
        reject(what, f"the mask is a bool tile, not {describe(mask)}")
    return True


def mask_elements(builder: ir.IRBuilder, ty: types.Type, value: ir.Value, like: TileType) -> list[ir.Value]:
    """A mask by register of a tile."""
    return operand_elements(builder, ty, value, like.like(dtypes.bool_))


def check_padding(what: str, tensor: TensorType, mode: types.Type, value: types.Type) -> Padding | None:
    """What elements are that do not exist: a constant, or None for a value that is computed."""
    name = known(mode)
    if name is ABSENT:
        reject(what, f"padding_mode is one of {', '.join(map(repr, windows.PADDING))}, not {describe(mode)}")
    number = in_rule(what, windows.padding, tensor.dtype, name, tensor.parameter)
    if known(value) is None:
        return Padding(number=number)
    if name != "zero":
        reject(what, "padding_mode or padding_value, not both")
    if scalar_kind(value) is None:
        reject(what, f"padding_value is a scalar, not {describe(value)}")
    check_fill(what, tensor, value)
    return None


def check_fill(what: str, tensor: TensorType, value: types.Type) -> None:
    """Refuse a constant that the elements of a tensor cannot be."""
    number = known(value)
    problem = None if number is ABSENT or number is None else dtypes.unfit_padding(tensor.dtype, number, tensor.parameter)
    if problem:
        refuse(what, problem)


def fill_of(builder: ir.IRBuilder, tensor: TensorType, ty: types.Type, value: ir.Value) -> Padding:
    """The padding that a scalar is. A constant that elements can be is written ahead of the load; of all else each thread
    chooses behind it, which keeps loads that come later from being in flight with it.
    """
    number = known(ty)
    if number is ABSENT and isinstance(value, ir.Constant) and dtypes.is_float(tensor.dtype):
        number = value.constant
    if isinstance(number, (int, float)):
        scalar = np.asarray(number)
        with np.errstate(all="ignore"):
            exact = np.array_equal(scalar.astype(tensor.dtype).astype(scalar.dtype), scalar, equal_nan=True)
        if exact:
            return Padding(number=number)
    return Padding(value=convert(builder, value, scalar_dtype(ty), tensor.dtype))


def check_eviction(what: str, policy: types.Type) -> str:
    """The eviction policy that an argument names."""
    return in_rule(what, windows.check_eviction, constant_of(policy, what, "eviction_policy"))  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------------- loads and stores


def order_access(
    builder: ir.IRBuilder,
    tensor: TensorType,
    *,
    lies: Hashable = None,
    writes: bool = False,
    atomic: bool = False,
) -> None:
    """Put barriers between accesses to a tensor that the kernel writes: what other threads of the block did before is done.

    Of the block's own tile each thread accesses the elements that a layout gives it: two accesses in one layout need no order
    between threads. In a loop what comes later in the text has come before, too, one turn ago; so an access that is lowered later
    puts a barrier where it is missing.

    Args:
        builder: at the place of the access.
        tensor: whose elements are accessed.
        lies: what says which thread accesses an element: the layout of the block's own tile; in a tuple, that of any tile of the
            tensor, as `_of_any_tile` gives it; either stored by lines. None where any thread may access any element.
        writes: whether it writes.
        atomic: two such accesses need no order.
    """
    if tensor.facts.role == "in":
        return
    compilation = current()
    others, access = compilation.accesses[tensor.parameter], _Access(lies, writes, atomic, builder)
    if any(access.meets(other) for other in others) or (compilation.loops and access.meets(access)):
        barrier(builder)
        access.ordered = True
    if compilation.loops:
        for other in others:
            if not other.ordered and access.meets(other):
                other.order(builder)
    others.append(access)


def _of_any_tile(tensor: TensorType, cut: Cut, lies: Layout) -> tuple[Layout] | None:
    """What says which thread stores an element, whichever tile of the tensor is stored; None where nothing does.

    Tiles that begin at multiples of their extents are the same, or have nothing in common: each element is in one, where the
    layout gives it to one thread, in all turns of a loop. (Warpgroups of attention waited for each other before they stored.) A
    slice begins anywhere, and steps that are shorter than tiles let these overlap.
    """
    return (lies,) if tensor.origins == () and cut.shape and cut.steps == cut.extents else None


class _Access:
    """An access to a tensor that the kernel writes, and the place before it."""

    def __init__(self, lies: Hashable, writes: bool, atomic: bool, builder: ir.IRBuilder) -> None:
        self.lies, self.writes, self.atomic, self.ordered = lies, writes, atomic, False
        self.block = builder.block
        self.last = self.block.instructions[-1] if self.block.instructions else None

    def meets(self, other: _Access) -> bool:
        """Whether threads may have to wait for each other between the two: one writes what another thread accesses."""
        if (self.atomic and other.atomic) or not (self.writes or other.writes):
            return False
        return self.lies is None or self.lies != other.lies

    def order(self, builder: ir.IRBuilder) -> None:
        """Put a barrier before it; `builder` is at the end of a block."""
        before = ir.IRBuilder(self.block)
        if self.last is None:
            before.position_at_start(self.block)
        else:
            before.position_after(self.last)
        barrier(before)
        self.ordered = True
        if builder.block is self.block:
            builder.position_at_end(self.block)


def load_window(
    what: str,
    tensor: TensorType,
    cut: Cut,
    padding: Padding | None,
    *,
    proven: bool | Sequence[int],
    roams: bool = True,
    value_type: types.Type = types.none,
    mask_type: types.Type = types.none,
    policy: types.Type | None = None,
    held: Layout | None = None,
) -> tuple[TileType, Callable[..., ir.Value]]:
    """The type of a loaded tile; and how to load it, given the tensor, an index in the order of its dimensions, mask and padding.

    Args:
        what, tensor, cut: the operation, and what it loads.
        padding: as `check_padding` gives it.
        proven: as for `open_window`.
        roams: whether it is another tile than the block's own.
        value_type, mask_type: the types of what is given for padding and mask.
        policy: the type of what is given for the eviction policy.
        held: the layout in which it is wanted; None for the one in which it is loaded.
    """
    eviction = "evict_normal" if policy is None else check_eviction(what, policy)
    if tensor.facts.role == "out":
        reject(what, windows.written_only(tensor.parameter))
    lies = as_accessed(tensor, cut.extents, None if held is None else cut.unseen(held))
    tile = TileType(tensor.dtype, cut.seen(lies), tensor.config)
    wanted = tile if held is None else tile.at(held)
    masked = check_mask(what, mask_type, cut.shape)

    def emit(
        builder: ir.IRBuilder, value: ir.Value, index: list[ir.Value], mask: ir.Value = None, fill: ir.Value = None
    ) -> ir.Value:
        order_access(builder, tensor, lies=None if roams else lies)
        window = open_window(builder, tensor, value, index, lies, proven=proven, writing=False, what=what, steps=cut.steps)
        chosen = mask_elements(builder, mask_type, mask, tile) if masked else None
        pad = fill_of(builder, tensor, value_type, fill) if padding is None else padding
        loaded = read(builder, open_access(window), tensor.dtype, pad, chosen, eviction=eviction)
        return pack(builder, in_layout(builder, tile, loaded, wanted.layout))

    return wanted, emit


def store_window(
    what: str,
    tensor: TensorType,
    cut: Cut,
    value: types.Type,
    *,
    proven: bool | Sequence[int],
    roams: bool = True,
    mask_type: types.Type = types.none,
    policy: types.Type | None = None,
) -> Callable[..., None]:
    """How to store a tile or a scalar, given the tensor, an index in the order of its dimensions, the value and the mask."""
    eviction = "evict_normal" if policy is None else check_eviction(what, policy)
    masked = check_mask(what, mask_type, cut.shape)
    lies, tile, bring = to_store(what, tensor, cut, value, masked=masked)
    words = None if masked else words_of_lines(tensor, lies, cut.steps)

    def emit(
        builder: ir.IRBuilder, tensor_value: ir.Value, index: list[ir.Value], stored: ir.Value, mask: ir.Value = None
    ) -> None:
        column = bring(builder, stored)
        chosen = mask_elements(builder, mask_type, mask, tile) if masked else None
        who = _of_any_tile(tensor, cut, lies) if roams else lies
        order_access(builder, tensor, lies=who if who is None or words is None else ("lines", who), writes=True)
        window = open_window(
            builder, tensor, tensor_value, index, lies, proven=proven, writing=True, what=what, steps=cut.steps, words=words
        )
        if words is not None:
            store_lines(builder, window, column, eviction=eviction)
        else:
            write(builder, open_access(window), tensor.dtype, column, chosen, eviction=eviction)

    return emit


def to_store(
    what: str, tensor: TensorType, cut: Cut, value: types.Type, *, masked: bool = False, added: bool = False
) -> tuple[Layout, TileType, Callable[[ir.IRBuilder, ir.Value], list[ir.Value]]]:
    """How a tile or a scalar lies when it is written, maybe `masked`, or `added`: a layout of the extents, the tile's type, and
    how to bring it there."""
    if isinstance(value, TileType) and value.shape not in (cut.shape, ()):
        reject(what, f"a tile of shape {value.shape} into {tensor.parameter}, whose tiles are {cut.shape}")
    check_value(what, value, tensor)
    whole = isinstance(value, TileType) and value.shape == cut.shape
    held = cut.unseen(value.layout) if whole and not value.splat else None
    lies = as_stored(tensor, cut.extents, cut.steps, held, masked=masked, added=added)
    tile = TileType(tensor.dtype, cut.seen(lies), tensor.config)

    def bring(builder: ir.IRBuilder, stored: ir.Value) -> list[ir.Value]:
        if not whole:
            return operand_elements(builder, value, stored, tile)
        held = _present(builder, tensor, cut, value, unpack(builder, stored))
        converted = [convert(builder, e, value.dtype, tensor.dtype) for e in held]
        return in_layout(builder, value.like(tensor.dtype), converted, tile.layout)

    return lies, tile, bring


def _present(builder: ir.IRBuilder, tensor: TensorType, cut: Cut, tile: TileType, held: list[ir.Value]) -> list[ir.Value]:
    """What threads hold of a tile that is stored, with zeros for what no tile of the tensor has: nobody need compute it."""
    unit = tensor.facts.unit
    if unit is None or not cut.shape:
        return held
    dim, there = cut.back[unit], tensor.facts.present(cut.extents[unit])
    return [e if at < there else ir.Constant(e.type, None) for e, at in zip(held, tile.layout.least(dim), strict=True)]
