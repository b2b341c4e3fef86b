"""In which layout a tile is loaded or stored that threads hold in another: warps move whole sectors of memory, of 32 bytes.

A layout is one of the extents of the tile, in the order of the tensor's dimensions.
"""

from __future__ import annotations

from tilekit.compiler.codegen.access import access_pattern, aligned
from tilekit.compiler.codegen.types import TensorType
from tilekit.compiler.layouts.conversion import with_lanes, with_runs, within_warps
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP, Config, Layout, elements

__all__ = ["WORD", "as_accessed", "as_stored", "words_of_lines"]

Shape = tuple[int, ...]
WORD = 4
"""Bytes that lanes hand each other where warps store whole lines of memory."""
_SECTOR = 32  # bytes that memory moves at least
_PIECE = 512  # of a row whose sectors are not its own: all that lanes have of it at once
_SMALL = 2048  # tiles up to so many bytes are moved as they lie


def as_accessed(tensor: TensorType, extents: Shape, held: Layout | None) -> Layout:
    """The layout in which a tile is accessed that threads hold in another, if in any: that one, or one from which elements stay
    in their warps, or else rows."""
    unit = tensor.facts.unit
    if held is not None:
        near = held if unit is None else with_runs(held, unit, tensor.dtype.itemsize)
        for layout in (held, near):
            if _wide_enough(layout, tensor):
                return layout
    return Layout.blocked(extents, tensor.config, unit)


def as_stored(tensor: TensorType, extents: Shape, steps: Shape, held: Layout | None, *, masked: bool, added: bool) -> Layout:
    """The same for a tile that is stored, maybe `masked`, or `added`; tiles start `steps` apart.

    A warp that would write one sector of each row writes two, 16 bytes a lane, for some shuffles: results of products in float32
    and int32 are stored in four fifths of the time. Of a tile whose rows begin anywhere, accesses take few of the neighbours that
    a thread would have: neighbouring lanes have them then. (A load that is as narrow finds its sectors in the L1 cache.)
    """
    unit, itemsize = tensor.facts.unit, tensor.dtype.itemsize
    if held is None or unit is None or elements(extents) * itemsize <= _SMALL:
        return as_accessed(tensor, extents, held)
    lies = _in_sectors(tensor, extents, steps, held, unit, added=added)
    if added or not _between_sectors(tensor):
        return lies
    lines = with_lanes(with_runs(held, unit, itemsize, WORD), unit, max(1, WORD // itemsize))
    if not masked and words_of_lines(tensor, lines, steps) is not None and within_warps(held, lines) is not None:
        return lines
    return _in_long_pieces(tensor, steps, held, unit, lies)


def words_of_lines(tensor: TensorType, layout: Layout, steps: Shape) -> tuple[int, ...] | None:
    """The register bits of a word, if warps have more of each row than a line of memory, of a tensor whose rows begin anywhere:
    see `line_stores`."""
    unit, itemsize = tensor.facts.unit, tensor.dtype.itemsize
    if unit is None or itemsize * aligned(tensor, steps) > WORD or not _between_sectors(tensor):
        return None
    bits = (WORD // itemsize).bit_length() - 1
    *words, more = (tuple(1 << bits + n if d == unit else 0 for d in range(len(layout.shape))) for n in range(WARP.bit_length()))
    word = layout.run(unit)[:bits]
    return word if len(word) == bits and set(layout.lane) == set(words) and more in layout.reg else None


def _between_sectors(tensor: TensorType) -> bool:
    """Whether some rows begin between two sectors, as far as is known."""
    strides = (stride for d, stride in enumerate(tensor.facts.strides) if d != tensor.facts.unit)
    return any(stride * tensor.dtype.itemsize < _SECTOR for stride in strides)


def _in_sectors(tensor: TensorType, extents: Shape, steps: Shape, held: Layout, unit: int, *, added: bool) -> Layout:
    """The layout by which a warp fills at least a sector of each row."""
    lies, itemsize = as_accessed(tensor, extents, held), tensor.dtype.itemsize
    if not added and lies.stretch(unit) * itemsize == _SECTOR:
        near = with_runs(lies, unit, itemsize)
        if near.stretch(unit) * itemsize > _SECTOR and _width(tensor, near, steps) * itemsize == ACCESS_BYTES:
            return near
    width, run = _width(tensor, lies, steps), 1 << len(lies.run(unit))
    # Two accesses for neighbours fill half of each sector at a time, twice; one for each sector of a row that begins between two
    # of them fills parts of both. Shuffles cost less, shared memory does not.
    between = not added and run == width and lies.stretch(unit) * itemsize == _SECTOR and width * itemsize < ACCESS_BYTES
    halves = width * itemsize in (ACCESS_BYTES, ACCESS_BYTES // 2, ACCESS_BYTES // 4) and (run == 2 * width or between)
    narrow = halves and width * itemsize < ACCESS_BYTES  # more accesses, and shuffles: two sectors of a row are enough
    together = held if 1 << len(held.run(unit)) >= width else lies
    beside = with_lanes(together, unit, width, lanes=2 * _SECTOR // (width * itemsize) if narrow else WARP)
    if 2 * width >= run and not (halves and within_warps(held, beside)):
        return lies
    if _wide_enough(beside, tensor):
        return beside
    return Layout.blocked(extents, Config(tensor.config.num_warps, width), unit)


def _in_long_pieces(tensor: TensorType, steps: Shape, held: Layout, unit: int, lies: Layout) -> Layout:
    """The same where rows begin between two sectors: more lanes have neighbours, if some more shuffles do that.

    A piece begins and ends with a part of a sector, and what writes parts takes longer: in pieces of 64 bytes an H200 stored 38
    products of 3928 x 1320 x 64 in bfloat16 at 1.6 TB/s, of 256 at 2.2, and of 512, which is a row of a tile, at 2.6 (cuBLAS at
    2.0); 34 of 5776 x 2824 x 16 in float16 at 1.8 with pieces of 256, and at 3.1 (cuBLAS 2.4).
    """
    itemsize, width = tensor.dtype.itemsize, _width(tensor, lies, steps)
    near = with_runs(held, unit, itemsize, width * itemsize)
    longer = with_lanes(near, unit, width, min(WARP, _PIECE // (width * itemsize)))
    further = within_warps(held, longer) is not None and longer.stretch(unit) > lies.stretch(unit)
    return longer if further and 1 << len(longer.run(unit)) >= width else lies


def _width(tensor: TensorType, layout: Layout, steps: Shape) -> int:
    """How many elements an access takes."""
    return 1 << len(access_pattern(tensor, layout, (), steps).vector)


def _wide_enough(layout: Layout, tensor: TensorType) -> bool:
    """Whether a tile may be stored as it lies: a warp fills whole sectors, or the tile is small anyway."""
    itemsize, unit = tensor.dtype.itemsize, tensor.facts.unit
    if elements(layout.shape) * itemsize <= _SMALL or unit is None:
        return True
    return layout.stretch(unit) * itemsize >= _SECTOR
