"""Kernels of products: tiles of the result, parts of sums, and what adds these up; made for each epilogue.

Blocks stay, and visit tiles of the result, those near each other at the same time. For each the tiles of `a` and `b` come in a
pipeline (`tk.pipelined`). All that differs between products is a constant of a kernel, but for the epilogue, which is a function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tilekit as tk
from tilekit.kernels._gemm.abreast import store_part, sums_abreast, sums_of_three
from tilekit.lang.functions import Function

__all__ = [
    "MOST_OPERANDS", "ProductKernels", "batched_sums_in_parts", "function_of", "kernels_of", "nothing_else",
    "sums_in_parts",
]  # fmt: skip

BM, BN, BE, BF, BK, BP = tk.generics("BM BN BE BF BK BP")

MOST_OPERANDS = 3
"""How many operands an epilogue takes."""


@tk.function
def nothing_else(acc):
    return acc


@tk.function
def _view(x, rank: tk.Const, rows: tk.Const, columns: tk.Const, step: tk.Const):
    """Tiles of a matrix, or of a stack of them, that are `step` columns apart."""
    if rank == 2:
        tiles = x.tiled_view((rows, columns), traversal_steps=(rows, step))
    else:
        tiles = x.tiled_view((1, rows, columns), traversal_steps=(1, rows, step))
    return tiles


@tk.function
def _tile_of(x, along: tk.Const, n, i, j, offset: tk.Const, columns: tk.Const, wide: tk.Const):
    """A tile of an operand: `along` says for each dimension whether it has the result's extent, or one element for all. Where
    blocks have several next to each other (see `abreast`), of `wide` columns together, that of so many behind an offset."""
    if len(along) == 2:
        at = (i * along[0], j * along[1])
    else:
        at = (n * along[0], i * along[1], j * along[2])
    if columns < wide:
        if offset == 0:
            beyond = x
        else:
            beyond = x.slice(len(along) - 1, offset * along[-1])
        high, broad = 1 + (BM - 1) * along[-2], 1 + (columns - 1) * along[-1]
        tile = _view(beyond, len(along), high, broad, 1 + (wide - 1) * along[-1]).load(at).reshape((high, broad))
    elif len(along) == 2:
        tile = tk.load(x, at, (1 + (BM - 1) * along[0], 1 + (BN - 1) * along[1]))
    else:
        stacked = tk.load(x, at, (1, 1 + (BM - 1) * along[1], 1 + (BN - 1) * along[2]))
        tile = stacked.reshape((1 + (BM - 1) * along[1], 1 + (BN - 1) * along[2]))
    return tile


class ProductKernels(NamedTuple):
    """The kernels of one epilogue."""

    matrix: Any
    abreast: Any
    batch: Any
    finish: Any
    finish_batch: Any
    finish_stream: Any


@functools.lru_cache(maxsize=256)
def kernels_of(epilogue: Function) -> ProductKernels:
    """Made once for each."""

    @tk.function
    def finished(
        acc, n, i, j, alpha, beta, c, x, y, z, scaled: tk.Const, added: tk.Const, operands: tk.Const,
        offset: tk.Const = 0, columns: tk.Const = BN, wide: tk.Const = BN,
    ):  # fmt: skip
        if scaled:
            acc = acc * alpha
        if len(added) > 0:
            acc = acc + _tile_of(c, added, n, i, j, offset, columns, wide).astype(acc.dtype) * beta
        if len(operands) == 0:
            acc = epilogue(acc)
        elif len(operands) == 1:
            acc = epilogue(acc, _tile_of(x, operands[0], n, i, j, offset, columns, wide).astype(acc.dtype))
        else:
            first, second = (
                _tile_of(x, operands[0], n, i, j, offset, columns, wide),
                _tile_of(y, operands[1], n, i, j, offset, columns, wide),
            )
            if len(operands) == 2:
                acc = epilogue(acc, first.astype(acc.dtype), second.astype(acc.dtype))
            else:
                third = _tile_of(z, operands[2], n, i, j, offset, columns, wide)
                acc = epilogue(acc, first.astype(acc.dtype), second.astype(acc.dtype), third.astype(acc.dtype))
        return acc

    @tk.kernel
    def gemm(
        out: tk.Out, a: tk.In, b: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta,
        dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const, scaled: tk.Const, added: tk.Const, operands: tk.Const,
    ):  # fmt: skip
        for tile in out.tiles():
            i, j = tile.index
            acc = tk.zeros((BM, BN), dtype)
            for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
                acc = tk.mma(ta, tb, acc, precision=precision)
            done = finished(acc, 0, i, j, alpha, beta, c, x, y, z, scaled, added, operands)
            out.store(done.astype(out.dtype), tile)

    @tk.kernel
    def gemm_abreast(
        places: tk.Out, out: tk.Out, a: tk.In, b: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta,
        dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const, scaled: tk.Const, added: tk.Const, operands: tk.Const,
        each: tk.Const, wide: tk.Const,
    ):  # fmt: skip
        steps, rank = tk.cdiv(a.shape[1 + len(each) // 2], BK), 2 + len(each) // 2
        for tile in places.tiles():
            n, i, j = tile.index
            place = (n, i, j) if len(each) > 0 else (i, j)
            if wide == BN + BE:
                left, right = sums_abreast(a, b, n, i, j, 0, steps, dtype, precision, warp_specialize, each)
            else:
                left, middle, right = sums_of_three(a, b, n, i, j, 0, steps, dtype, precision, warp_specialize, each)
            done = finished(left, n, i, j, alpha, beta, c, x, y, z, scaled, added, operands, 0, BN, wide)
            store_part(out, place, done.astype(out.dtype), rank, 0, BN, wide)
            if wide > BN + BE and wide * j + BN < out.shape[rank - 1]:
                more = finished(middle, n, i, j, alpha, beta, c, x, y, z, scaled, added, operands, BN, BE, wide)
                store_part(out, place, more.astype(out.dtype), rank, BN, BE, wide)
            last = BN if wide == BN + BE else BN + BE
            if wide * j + last < out.shape[rank - 1]:
                rest = finished(right, n, i, j, alpha, beta, c, x, y, z, scaled, added, operands, last, wide - last, wide)
                store_part(out, place, rest.astype(out.dtype), rank, last, wide - last, wide)

    @tk.kernel
    def batched_gemm(
        out: tk.Out, a: tk.In, b: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta,
        dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const, scaled: tk.Const, added: tk.Const, operands: tk.Const,
        each: tk.Const,
    ):  # fmt: skip
        for tile in out.tiles():
            n, i, j = tile.index
            acc = tk.zeros((BM, BN), dtype)
            for ta, tb in tk.pipelined(
                a.tiles((1, BM, BK))[n * each[0], i, :], b.tiles((1, BK, BN))[n * each[1], :, j], warp_specialize=warp_specialize
            ):
                acc = tk.mma(ta.reshape((BM, BK)), tb.reshape((BK, BN)), acc, precision=precision)
            done = finished(acc, n, i, j, alpha, beta, c, x, y, z, scaled, added, operands)
            out.store(done.astype(out.dtype).reshape((1, BM, BN)), tile)

    @tk.kernel
    def sum_of_parts(
        out: tk.Out, parts: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta, count: int,
        scaled: tk.Const, added: tk.Const, operands: tk.Const,
    ):  # fmt: skip
        i, j = tk.bid(0), tk.bid(1)
        acc = tk.zeros((BM, BN), parts.dtype)
        for several in range(tk.cdiv(count, BP)):
            acc = acc + tk.sum(tk.load(parts, (several, i, j), (BP, BM, BN)), axis=0)
        out.store(finished(acc, 0, i, j, alpha, beta, c, x, y, z, scaled, added, operands).astype(out.dtype))

    @tk.kernel
    def batched_sum_of_parts(
        out: tk.Out, parts: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta, count: int,
        scaled: tk.Const, added: tk.Const, operands: tk.Const,
    ):  # fmt: skip
        n, i, j = tk.bid(0), tk.bid(1), tk.bid(2)
        acc = tk.zeros((BM, BN), parts.dtype)
        for several in range(tk.cdiv(count, BP)):
            acc = acc + tk.sum(tk.load(parts, (n, several, i, j), (1, BP, BM, BN)).reshape((BP, BM, BN)), axis=0)
        done = finished(acc, n, i, j, alpha, beta, c, x, y, z, scaled, added, operands)
        out.store(done.astype(out.dtype).reshape((1, BM, BN)))

    @tk.kernel
    def sum_of_shares(
        out: tk.Out, parts: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta, columns: int, steps: int,
        share: int, down: tk.Const, across: tk.Const, scaled: tk.Const, added: tk.Const, operands: tk.Const,
    ):  # fmt: skip
        i, j = tk.bid(0), tk.bid(1)
        tile = i // down * columns + j // across
        acc = tk.zeros((BM, BN), parts.dtype)
        for block in range(tile * steps // share, ((tile + 1) * steps - 1) // share + 1):
            acc = acc + tk.load(parts, (block + tile, i % down, j % across), (1, BM, BN)).reshape((BM, BN))
        out.store(finished(acc, 0, i, j, alpha, beta, c, x, y, z, scaled, added, operands).astype(out.dtype))

    return ProductKernels(gemm, gemm_abreast, batched_gemm, sum_of_parts, batched_sum_of_parts, sum_of_shares)


@tk.kernel
def sums_in_parts(parts: tk.Out, a: tk.In, b: tk.In, share: int, precision: tk.Const, warp_specialize: tk.Const):
    """Part `s` of the sums has tiles `s * share` to `(s + 1) * share` along K."""
    for tile in parts.tiles():
        s, i, j = tile.index
        first, last = s * share, (s + 1) * share
        acc = tk.zeros((BM, BN), parts.dtype)
        for ta, tb in tk.pipelined(
            a.tiles((BM, BK))[i, first:last], b.tiles((BK, BN))[first:last, j], warp_specialize=warp_specialize
        ):
            acc = tk.mma(ta, tb, acc, precision=precision)
        parts.store(acc.reshape((1, BM, BN)), tile)


@tk.kernel
def batched_sums_in_parts(
    parts: tk.Out, a: tk.In, b: tk.In, count: int, share: int, precision: tk.Const, warp_specialize: tk.Const, each: tk.Const
):
    """The same of a batch: the first `count` are those of its first product, and so on."""
    for tile in parts.tiles():
        s, i, j = tile.index
        n = s // count
        first = (s - n * count) * share
        last = first + share
        acc = tk.zeros((BM, BN), parts.dtype)
        for ta, tb in tk.pipelined(
            a.tiles((1, BM, BK))[n * each[0], i, first:last],
            b.tiles((1, BK, BN))[n * each[1], first:last, j],
            warp_specialize=warp_specialize,
        ):
            acc = tk.mma(ta.reshape((BM, BK)), tb.reshape((BK, BN)), acc, precision=precision)
        parts.store(acc.reshape((1, BM, BN)), tile)


def function_of(epilogue: Any) -> Function:
    """An epilogue as kernels call it.

    Raises:
        TypeError: it is a lambda, or no function in the tile language.
    """
    if epilogue is None:
        return nothing_else  # type: ignore[no-any-return]
    if isinstance(epilogue, Function):
        return epilogue
    if getattr(epilogue, "__name__", "") == "<lambda>":
        raise TypeError("gemm: epilogue is a lambda; define it with def, once, for a kernel is made for each function")
    try:
        return _helper(epilogue)
    except TypeError as error:
        raise TypeError(f"gemm: epilogue is a function in the tile language, see tk.function: {error}") from None


@functools.lru_cache(maxsize=256)
def _helper(epilogue: Callable[..., Any]) -> Function:
    return Function(epilogue)
