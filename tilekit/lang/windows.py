"""Windows of tensors on the CPU device: the rules for what names one, and what reads and writes it.

The rules raise CompileError, and the compiler asks for them too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block
from tilekit.lang.mapped import TileIndex, not_an_index
from tilekit.lang.tile import Tile, check_shape, common_shape, convert, is_index, scalar_kind, what_is

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

    from tilekit.lang.views import TensorView

__all__ = [
    "EVICTION", "PADDING", "PaddingMode", "check_eviction", "check_order", "check_row", "check_steps", "check_window", "mask_of",
    "padding", "padding_tile", "read", "read_only", "storable", "stored", "tile_index", "tileless", "window_of", "write",
    "written_only",
]  # fmt: skip

Shape = tuple[int, ...]


class PaddingMode(StrEnum):
    """What a load gives for elements beyond the edge of a tensor. The plain string does as well: `"nan"`."""

    ZERO = "zero"
    NEG_ZERO = "neg_zero"
    NAN = "nan"
    POS_INF = "inf"
    NEG_INF = "-inf"


PADDING = {"zero": 0.0, "neg_zero": -0.0, "nan": np.nan, "inf": np.inf, "-inf": -np.inf}

EVICTION = ("evict_normal", "evict_first", "evict_last", "no_allocate")
"""How long a GPU keeps in its caches what an access brings there; `evict_normal` is no hint."""


# --------------------------------------------------------------------------------------------------------------------- rules


def padding(dtype: dtypes.DType, mode: Any, name: str, what: str) -> float:
    """The number that a padding mode stands for in `dtype`, that of the tensor `name`."""
    if mode not in PADDING:
        raise CompileError(f"{what}: padding_mode is one of {', '.join(map(repr, PADDING))}, not {mode!r}")
    if mode != "zero" and not dtypes.is_float(dtype):
        raise CompileError(f"{what}: padding_mode {str(mode)!r} needs a floating-point tensor; {name} is {dtype.name}")
    if mode in ("inf", "-inf") and dtype == dtypes.float8_e4m3fn:
        raise CompileError(f"{what}: padding_mode {str(mode)!r} of {name}: float8_e4m3fn has no infinities; 'nan' is there")
    return PADDING[mode]


def padding_tile(view: TensorView, tile: Tile, shape: Shape, what: str) -> NDArray[Any]:
    """The elements of a tile that is the padding of one of `shape`."""
    if not dtypes.storable(tile.dtype, view.dtype):
        raise CompileError(
            f"{what}: padding_value is a {tile.dtype.name} tile, which does not fit {view.name}, a {view.dtype.name} tensor, "
            f"without loss; write .astype({view.name}.dtype) if that is meant"
        )
    if common_shape(what, [tile.shape, shape]) != shape:
        raise CompileError(f"{what}: padding_value of shape {tile.shape} for a tile of shape {shape}")
    elements: NDArray[Any] = convert(np.broadcast_to(tile._array, shape), view.dtype)
    return elements


def check_eviction(policy: Any, what: str) -> str:
    """`policy`, which must be a name of `EVICTION`."""
    if not isinstance(policy, str) or policy not in EVICTION:
        raise CompileError(f"{what}: eviction_policy is one of {', '.join(map(repr, EVICTION))}, not {policy!r}")
    return policy


def check_order(order: Any, rank: int, what: str) -> Shape:
    """`order` ("C", "F", or a permutation) as the tensor's dimension that each dimension of the tile lies along."""
    if isinstance(order, str) and order in ("C", "F"):
        return tuple(range(rank)) if order == "C" else tuple(reversed(range(rank)))
    whole = isinstance(order, tuple) and all(isinstance(d, (int, np.integer)) and not isinstance(d, bool) for d in order)
    if not whole or sorted(d % rank if -rank <= d < rank else rank for d in order) != list(range(rank)):
        raise CompileError(f"{what}: order is 'C', 'F', or a tuple with each of the {rank} dimensions once, not {order!r}")
    return tuple(int(d) % rank for d in order)


def check_window(shape: Any, rank: int, name: str, what: str) -> tuple[Shape, Shape]:
    """A tile's `shape` as its extents along each dimension of a tensor of that rank, and as the shape that the tile has.

    They differ for `()`, one element.
    """
    if isinstance(shape, tuple) and not shape:
        return (1,) * rank, ()
    extents = check_shape(shape, what)
    if len(extents) != rank:
        raise CompileError(f"{what}: a tile of shape {extents} of {name}, which has {rank} dimensions")
    return extents, extents


def check_steps(steps: Any, extents: Shape, what: str) -> Shape:
    """`traversal_steps` (None for the tile's own extents) for each dimension."""
    if steps is None:
        return extents
    listed = steps if isinstance(steps, tuple) else (steps,)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0 for n in listed):
        raise CompileError(f"{what}: traversal_steps is a positive int, or a tuple of them, not {steps!r}")
    if len(listed) != len(extents):
        raise CompileError(f"{what}: {len(listed)} traversal_steps for a tensor of {len(extents)} dimensions")
    return tuple(int(n) for n in listed)


def written_only(name: str) -> str:
    """Why a tensor may not be read."""
    return f"{name} is declared Out, which is written only; annotate it InOut to read it"


def read_only(name: str) -> str:
    """Why a tensor may not be written."""
    return (
        f"{name} is a tensor that is only read: writing needs a partition, or {name}.scattered() for writes anywhere; declare it "
        "Out or InOut"
    )


def tileless(name: str, writable: bool) -> str:
    """Why a tensor has no tile of the block's own."""
    if writable:
        return (
            f"{name} has no tiles of its own: name a place, with tk.store({name}, index, tile), tk.scatter, tk.atomic_add..., "
            f"or pass {name}.partition(...), which gives each block a tile"
        )
    return (
        f"{name} is a tensor without tiles of its own: writing needs a partition; pass {name}.partition(...) to write it, "
        f"or read it with tk.load({name}, index, shape)"
    )


def check_row(parts: tuple[Any, ...], rank: int, name: str) -> None:
    """Refuse an index of a grid of tiles that is none."""
    if len(parts) != rank:
        raise CompileError(f"[]: {len(parts)} indices for the tiles of {name}, which has {rank} dimensions")
    for part in parts:
        if isinstance(part, slice):
            bounds_known = all(bound is None or is_index(bound) for bound in (part.start, part.stop))
            if bounds_known and part.step is None:
                continue
        elif is_index(part):
            continue
        problem = "without a step" if isinstance(part, slice) and part.step is not None else f"not {what_is(part)}"
        raise CompileError(f"[]: an index of tiles is an int, ':' or a range such as 'a:b', {problem}")


# ------------------------------------------------------------------------------------------------------- reading and writing


def window_of(view: TensorView, index: Shape, extents: Shape, steps: Shape, what: str) -> tuple[slice, ...]:
    """The slices of the tensor that window `index` covers; they may reach beyond the edge."""
    window = []
    for i, there, step, n in zip(index, view.shape, steps, extents, strict=True):
        start = i * step
        if start < 0 or (start >= there and start):
            kind = f"tiles of {extents}" + ("" if steps == extents else f" every {steps}")
            raise DeviceError(f"{what}: tile index {index} is outside {view.name}, a tensor of shape {view.shape} in {kind}")
        window.append(slice(start, start + n))
    return tuple(window)


def tile_index(view: TensorView, index: Any, what: str) -> Shape:
    """An index as the user gave it, as ints, one for each dimension."""
    if isinstance(index, TileIndex):
        raise CompileError(f"{what}: {not_an_index()}")
    indices = index if isinstance(index, tuple) else (index,)
    if not all(map(is_index, indices)):
        raise CompileError(f"{what}: a tile index is an int or a tuple of ints, not {what_is(index)}")
    if len(indices) != view.ndim:
        raise CompileError(f"{what}: {len(indices)} indices for {view.name}, which has {view.ndim} dimensions")
    return tuple(int(i) for i in indices)


def read(
    view: TensorView,
    window: tuple[slice, ...],
    extents: Shape,
    fill: Any,
    what: str,
    wanted: Shape = (),
    mask: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The elements in a window, with `fill` for those beyond the edge, and where `mask` is False.

    Only what the mask leaves must have been written, and only what lies within extents `wanted`, where these are given.
    """
    if not view.readable:
        raise CompileError(f"{what}: {written_only(view.name)}")
    if view._shadow is not None:
        looked_at = tuple(slice(s.start, min(s.stop, n)) for s, n in zip(window, wanted, strict=True)) if wanted else window
        view._shadow.check(looked_at, what, view.name, mask)
    if view._touched is not None:
        _note_read(view, window, extents, mask)
    inside = view._elements[window]
    if inside.shape == extents and mask is None:
        return inside.copy()
    elements: NDArray[Any] = np.full(extents, fill, view.dtype)
    there = tuple(slice(n) for n in inside.shape)
    if mask is None:
        elements[there] = inside
    else:
        np.copyto(elements[there], inside, where=mask[there])
    return elements


def write(
    view: TensorView,
    window: tuple[slice, ...],
    values: NDArray[Any],
    mask: NDArray[Any] | None,
    tile: Shape | None = None,
) -> None:
    """Store values into a window, where `mask` is True; what hangs over the edge is dropped.

    `tile` is the window's index in the partition, where it is a whole tile of one.
    """
    inside = view._elements[window]
    there = tuple(slice(n) for n in inside.shape)
    where = None if mask is None else mask[there]
    if view._touched is not None:
        running = block.running_one()
        if tile is not None and where is None:
            view._touched.write_tile(tile, view.tile_shape, running, view.name)
        else:
            view._touched.write(_in_parameter(view, window), where, running, view.name)
    if where is None:
        inside[...] = values[there]
    else:
        np.copyto(inside, values[there], where=where)
    if view._shadow is not None:
        view._shadow.write(window, where)


def _in_parameter(view: TensorView, window: tuple[slice, ...]) -> tuple[slice, ...]:
    """What a window covers of the parameter that `view` is a slice of."""
    placed = zip(window, view.shape, view._origin or (0,) * view.ndim, strict=True)
    return tuple(slice(s.start + at, min(s.stop, n) + at) for s, n, at in placed)


def _note_read(view: TensorView, window: tuple[slice, ...], extents: Shape, mask: NDArray[Any] | None) -> None:
    """Note what the running block reads of a tensor that is written as well."""
    assert view._touched is not None, "the caller has looked"
    tile, running = view.tile_shape, block.running_one()
    if mask is None and tile == extents and not any(s.start % n for s, n in zip(window, tile, strict=True)):
        index = tuple(s.start // n for s, n in zip(window, tile, strict=True))
        view._touched.read_tile(index, tile, running, view.name)
        return
    inside = _in_parameter(view, window)
    there = tuple(slice(max(s.stop - s.start, 0)) for s in inside)
    view._touched.read(inside, None if mask is None else mask[there], running, view.name)


def stored(view: TensorView, value: Any, shape: Shape, what: str) -> NDArray[Any]:
    """The elements of a value that is to be stored as a tile of `shape`, in a dtype that the tensor's holds."""
    if isinstance(value, Tile):
        if value.shape == shape:
            return storable(view, value, what)
        if value.shape:
            raise CompileError(f"{what}: a tile of shape {value.shape} into {view.name}, whose tiles are {shape}")
    return np.broadcast_to(storable(view, value, what), shape)


def storable(view: TensorView, value: Any, what: str) -> NDArray[Any]:
    """A tile's elements, or a scalar, if the tensor holds them without loss."""
    if isinstance(value, Tile):
        if not dtypes.storable(value.dtype, view.dtype):
            raise CompileError(
                f"{what}: a {value.dtype.name} tile does not fit {view.name}, a {view.dtype.name} tensor, without loss; "
                f"write .astype({view.name}.dtype) if that is meant"
            )
        return value._array
    kind = scalar_kind(value)
    if kind is None:
        raise CompileError(f"{what}: the value is a tile or a scalar, not {what_is(value)}")
    problem = dtypes.unstorable(view.dtype, kind, value, view.name)
    if problem:
        raise CompileError(f"{what}: {problem}")
    element: NDArray[Any] = convert(value, view.dtype)
    return element


def mask_of(mask: Any, shape: Shape, what: str) -> NDArray[Any] | None:
    """A mask as the user gave it (a bool scalar, or a bool tile that broadcasts to `shape`), as an array; None for none."""
    if mask is None:
        return None
    if isinstance(mask, Tile):
        if mask.dtype != dtypes.bool_:
            raise CompileError(f"{what}: the mask is a bool tile; this one holds {mask.dtype.name}")
        if common_shape(what, [mask.shape, shape]) != shape:
            raise CompileError(f"{what}: a mask of shape {mask.shape} for a tile of shape {shape}")
        return np.broadcast_to(mask._array, shape)
    if scalar_kind(mask) is not bool:
        raise CompileError(f"{what}: the mask is a bool tile, not {what_is(mask)}")
    return np.broadcast_to(np.bool_(mask), shape)
