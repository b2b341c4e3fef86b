"""Software pipelines: tiles that are on their way while earlier ones are being worked on.

A loop that loads a tile and works on it waits for the memory in each turn. `tk.pipelined` says beforehand which tiles come, so
that a GPU keeps several of them under way, in a ring of stages in shared memory. What it means is what the plain loop means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilekit.errors import CompileError, DeviceError
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import is_index, what_is
from tilekit.lang.views import TileGrid, TileRow

__all__ = [
    "MOST_STAGES",
    "NO_STREAMS",
    "PLACE",
    "check_rotate",
    "check_split",
    "check_stages",
    "check_streams",
    "check_warp_specialize",
    "no_stream",
    "pipelined",
    "unequal",
]

MOST_STAGES = 16
NO_STREAMS = "at least one stream of tiles"
PLACE = (
    "stands in a for statement: for ta, tb in tk.pipelined(...): or for k, (ta, tb) in enumerate(tk.pipelined(...)): and not in "
    "zip, since it takes several streams"
)


def check_stages(stages: Any, what: str) -> int | None:
    """`stages`, if there can be so many."""
    if stages is None or (is_index(stages) and 1 <= stages <= MOST_STAGES):
        return None if stages is None else int(stages)
    raise CompileError(f"{what}: stages is an int from 1 to {MOST_STAGES}, or None, not {stages!r}")


def check_warp_specialize(wanted: Any, what: str) -> bool | None:
    """`warp_specialize`, if it is one of its values."""
    return _choice("warp_specialize", wanted, what)


def check_rotate(wanted: Any, what: str) -> bool | None:
    """`rotate`, if it is one of its values."""
    return _choice("rotate", wanted, what)


def check_split(wanted: Any, what: str) -> bool | None:
    """`split`, if it is one of its values."""
    return _choice("split", wanted, what)


def _choice(name: str, wanted: Any, what: str) -> bool | None:
    if wanted is None or isinstance(wanted, bool):
        return wanted
    raise CompileError(f"{what}: {name} is True, False or None, not {wanted!r}")


def check_streams(streams: Sequence[Any]) -> None:
    """Refuse what is no stream of tiles, or none at all."""
    if not streams:
        raise CompileError(f"pipelined: {NO_STREAMS}")
    for stream in streams:
        if not isinstance(stream, (TileRow, TileGrid)):
            raise CompileError(f"pipelined: {no_stream(what_is(stream))}")


def no_stream(actual: str) -> str:
    """What to say of a thing that is no stream of tiles."""
    return f"a stream of tiles is a row such as x.tiles((BM, BK))[i, :], or all of x.tiles((BM, BK)), not {actual}"


def unequal(counts: Any) -> str:
    """What to say of streams that have different numbers of tiles."""
    return f"pipelined: the streams have {', '.join(map(str, counts))} tiles; they must have equally many"


@tile_op("pipelined")
def pipelined(
    *streams: Any,
    stages: int | None = None,
    warp_specialize: bool | None = None,
    rotate: bool | None = None,
    split: bool | None = None,
) -> Iterator[Any]:
    """Tiles of one or several tensors, one after the other, loaded ahead: `for ta, tb in tk.pipelined(...):`.

    Args:
        streams: rows of tiles, `x.tiles(shape)[i, :]`, or all tiles of a grid, `x.tiles(shape)`. All have equally many.
        stages: how many tiles of each stream there is room for in shared memory, those that are being worked on included: 1 to
            16, and 32 in all loops of a kernel. By default as many as fit, up to 4, or 8 where a multiprocessor has one such
            block alone. A constant.
        warp_specialize: whether loading is the work of warps of its own, besides the `num_warps` that calculate. By default the
            compiler decides. A constant.
        rotate: False keeps products in their turns. By default, where a turn has two products, the second made of the first, as
            in attention, the first one is asked for a turn ahead, if products need not be waited for at once (from compute
            capability 9.0 on). A constant.
        split: False keeps all turns in one loop. By default, turns in which a mask (`tk.where`) holds for the whole of a large
            tile are a loop of their own, without it. A constant.

    In each turn there is a tile of each stream; with one stream it is the tile itself, with several a tuple.

    On a GPU, tiles come to stages in shared memory if their tensors are only read, begin at a multiple of 4 bytes, have one
    dimension without gaps and rows that are multiples of 4 bytes apart: where these are multiples of 16 bytes, by the tensor
    memory accelerator (TMA) from compute capability 9.0 on, else by copies of warps of their own (cp.async). A product (`tk.mma`)
    takes them from there. Otherwise they are loaded as in the loop without `tk.pipelined`; `op.explain()` says why.

    Raises:
        CompileError: not in a `for` statement, or arguments of other types.
        DeviceError: on the CPU device, streams of unequal length. A GPU stops with the shortest.

    Examples:
        >>> @tk.kernel
        ... def product(c: tk.Out, a: tk.In, b: tk.In):
        ...     acc = tk.zeros((2, 2), tk.float32)
        ...     for ta, tb in tk.pipelined(a.tiles((2, 2))[tk.bid(0), :], b.tiles((2, 2))[:, tk.bid(1)]):
        ...         acc = tk.mma(ta, tb, acc)
        ...     c.store(acc)
        >>> a = api.arange(8, dtype=tk.float32).reshape(2, 4).sync()
        >>> b = api.ones((4, 2), tk.float32).sync()
        >>> product(api.zeros((2, 2)).partition((2, 2)), a, b).out().sync().numpy()
        array([[ 6.,  6.],
               [22., 22.]], dtype=float32)
    """
    check_stages(stages, "pipelined")
    check_warp_specialize(warp_specialize, "pipelined")
    check_rotate(rotate, "pipelined")
    check_split(split, "pipelined")
    check_streams(streams)
    counts = [len(stream) for stream in streams]
    if len(set(counts)) > 1:
        raise DeviceError(unequal(counts))
    return (tiles[0] if len(tiles) == 1 else tiles for tiles in zip(*streams, strict=True))
