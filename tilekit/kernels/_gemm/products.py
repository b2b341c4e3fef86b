"""Products of matrices: `alpha * a @ b + beta * c`, and what else is to be done with it before it is stored.

Blocks stay, and visit tiles of the result, those near each other at the same time. For each the tiles of `a` and `b` come in a
pipeline (`tk.pipelined`). Where there are fewer tiles than multiprocessors and the sums are long, a sum is taken in parts: one
kernel writes these, another adds them up, always in the same order, so that the result is the same in every run. Likewise where
whole rounds of tiles leave a few (`stream_k`).

A kernel is made for each epilogue; all else that differs is a constant of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._gemm.abreast import abreast_columns, parts_abreast, place_of, store_left, store_right, sums_abreast
from tilekit.kernels._gemm.exact import FEW_STEPS, fits_stages
from tilekit.kernels._gemm.model import Product
from tilekit.kernels._gemm.packing import AS_THEY_LIE, Packing, best_packing, packed
from tilekit.kernels._gemm.schedules import (
    FEW_ROWS,
    Schedule,
    check_tile,
    result_dtype,
    schedule_of,
    sum_dtype,
)
from tilekit.kernels._gemm.stream_k import shares_of
from tilekit.kernels._gemm.vectors import FEW_VECTORS, Vectors, products_of_vectors, vectors_of
from tilekit.kernels._host import (
    Launches,
    Operand,
    a_tensor,
    check_splits,
    filled,
    multiprocessors,
    on_cpu,
    out_or_new,
    power,
    shaped,
    takes_ops,
)
from tilekit.kernels._staging import (
    COPIES,
    LINES,
    aligned,
    exact_in_stages,
    in_stages,
    pitched,
    staged_operands,
    straightened,
)
from tilekit.lang.functions import Function
from tilekit.launch.copying import as_real
from tilekit.ops import DeviceOp, Spec

__all__ = ["gemm"]

BM, BN, BE, BK, BP = tk.generics("BM BN BE BK BP")

_MOST_OPERANDS = 3
_TURNED = 0.99  # of the time that it takes else, by a model: the transpose is no gain unless it takes less
_LEAST = 16  # of K: what an instruction of the tensor cores takes at once
# Elements of a block that adds up parts: 8 a thread of 4 warps, or fewer, down to one, where the result is small. Several parts
# are loaded at once, 256 bytes a thread: one after the other, 59 parts of 8 x 8 would take half of the product's time.
_SUMMED, _LEAST_SUMMED, _LOADED_BYTES, _SUMMED_WARPS, _TURNED_COLUMNS = 1024, 128, 32768, 4, 16


@tk.function
def _nothing_else(acc):
    return acc


# Which tile of a product a block has, where it has two next to each other (see `abreast`).
_WHOLE, _LEFT, _RIGHT = 0, 1, 2


@tk.function
def _view(x, rank: tk.Const, rows: tk.Const, columns: tk.Const, step: tk.Const):
    """Tiles of a matrix, or of a stack of them, that are `step` columns apart."""
    if rank == 2:
        tiles = x.tiled_view((rows, columns), traversal_steps=(rows, step))
    else:
        tiles = x.tiled_view((1, rows, columns), traversal_steps=(1, rows, step))
    return tiles


@tk.function
def _tile_of(x, along: tk.Const, n, i, j, which: tk.Const):
    """A tile of an operand: `along` says for each dimension whether it has the result's extent, or one element for all."""
    if len(along) == 2:
        at = (i * along[0], j * along[1])
    else:
        at = (n * along[0], i * along[1], j * along[2])
    if which == _LEFT:
        tile = _view(x, len(along), 1 + (BM - 1) * along[-2], 1 + (BN - 1) * along[-1], 1 + (BN + BE - 1) * along[-1]).load(at)
        tile = tile.reshape((1 + (BM - 1) * along[-2], 1 + (BN - 1) * along[-1]))
    elif which == _RIGHT:
        beyond = x.slice(len(along) - 1, BN * along[-1])
        tile = _view(beyond, len(along), 1 + (BM - 1) * along[-2], 1 + (BE - 1) * along[-1], 1 + (BN + BE - 1) * along[-1]).load(
            at
        )
        tile = tile.reshape((1 + (BM - 1) * along[-2], 1 + (BE - 1) * along[-1]))
    elif len(along) == 2:
        tile = tk.load(x, at, (1 + (BM - 1) * along[0], 1 + (BN - 1) * along[1]))
    else:
        stacked = tk.load(x, at, (1, 1 + (BM - 1) * along[1], 1 + (BN - 1) * along[2]))
        tile = stacked.reshape((1 + (BM - 1) * along[1], 1 + (BN - 1) * along[2]))
    return tile


class _Kernels(NamedTuple):
    """The kernels of one epilogue."""

    matrix: Any
    abreast: Any
    batch: Any
    finish: Any
    finish_batch: Any
    finish_stream: Any


@functools.lru_cache(maxsize=256)
def _kernels(epilogue: Function) -> _Kernels:
    @tk.function
    def finished(
        acc, n, i, j, which: tk.Const, alpha, beta, c, x, y, z, scaled: tk.Const, added: tk.Const, operands: tk.Const
    ):  # fmt: skip
        if scaled:
            acc = acc * alpha
        if len(added) > 0:
            acc = acc + _tile_of(c, added, n, i, j, which).astype(acc.dtype) * beta
        if len(operands) == 0:
            acc = epilogue(acc)
        elif len(operands) == 1:
            acc = epilogue(acc, _tile_of(x, operands[0], n, i, j, which).astype(acc.dtype))
        else:
            first, second = _tile_of(x, operands[0], n, i, j, which), _tile_of(y, operands[1], n, i, j, which)
            if len(operands) == 2:
                acc = epilogue(acc, first.astype(acc.dtype), second.astype(acc.dtype))
            else:
                third = _tile_of(z, operands[2], n, i, j, which)
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
            done = finished(acc, 0, i, j, _WHOLE, alpha, beta, c, x, y, z, scaled, added, operands)
            out.store(done.astype(out.dtype), tile)

    @tk.kernel
    def gemm_abreast(
        out: tk.Out, a: tk.In, b: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta,
        dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const, scaled: tk.Const, added: tk.Const, operands: tk.Const,
        each: tk.Const,
    ):  # fmt: skip
        rows, columns = tk.cdiv(out.shape[len(each) // 2], BM), tk.cdiv(out.shape[1 + len(each) // 2], BN + BE)
        steps, tiles = tk.cdiv(a.shape[1 + len(each) // 2], BK), rows * columns
        if len(each) > 0:
            tiles = tiles * out.shape[0]
        for at in range(tk.bid(0), tiles, tk.num_blocks(0)):
            n = at // (rows * columns) if len(each) > 0 else 0
            i, j = place_of(at - n * rows * columns, rows, columns)
            left, right = sums_abreast(a, b, n, i, j, 0, steps, dtype, precision, warp_specialize, each)
            done = finished(left, n, i, j, _LEFT, alpha, beta, c, x, y, z, scaled, added, operands)
            place = (n, i, j) if len(each) > 0 else (i, j)
            store_left(out, place, done.astype(out.dtype), 2 + len(each) // 2)
            if (BN + BE) * j + BN < out.shape[1 + len(each) // 2]:
                rest = finished(right, n, i, j, _RIGHT, alpha, beta, c, x, y, z, scaled, added, operands)
                store_right(out, place, rest.astype(out.dtype), 2 + len(each) // 2)

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
            done = finished(acc, n, i, j, _WHOLE, alpha, beta, c, x, y, z, scaled, added, operands)
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
        out.store(finished(acc, 0, i, j, _WHOLE, alpha, beta, c, x, y, z, scaled, added, operands).astype(out.dtype))

    @tk.kernel
    def batched_sum_of_parts(
        out: tk.Out, parts: tk.In, c: tk.In, x: tk.In, y: tk.In, z: tk.In, alpha, beta, count: int,
        scaled: tk.Const, added: tk.Const, operands: tk.Const,
    ):  # fmt: skip
        n, i, j = tk.bid(0), tk.bid(1), tk.bid(2)
        acc = tk.zeros((BM, BN), parts.dtype)
        for several in range(tk.cdiv(count, BP)):
            acc = acc + tk.sum(tk.load(parts, (n, several, i, j), (1, BP, BM, BN)).reshape((BP, BM, BN)), axis=0)
        done = finished(acc, n, i, j, _WHOLE, alpha, beta, c, x, y, z, scaled, added, operands)
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
        out.store(finished(acc, 0, i, j, _WHOLE, alpha, beta, c, x, y, z, scaled, added, operands).astype(out.dtype))

    return _Kernels(gemm, gemm_abreast, batched_gemm, sum_of_parts, batched_sum_of_parts, sum_of_shares)


@tk.kernel
def _parts(parts: tk.Out, a: tk.In, b: tk.In, share: int, precision: tk.Const, warp_specialize: tk.Const):
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
def _batched_parts(
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


@takes_ops
def gemm(
    a: Operand,
    b: Operand,
    c: Operand | None = None,
    *,
    alpha: float = 1,
    beta: float = 1,
    epilogue: Callable[..., Any] | None = None,
    operands: Sequence[Operand] = (),
    dtype: Any = None,
    precision: str = "ieee",
    out: Tensor | None = None,
    tile: tuple[int, int, int] | None = None,
    num_warps: int | None = None,
    splits: int | str | None = None,
) -> DeviceOp[Tensor]:
    """`epilogue(alpha * a @ b + beta * c, *operands)`, in one pass over the memory.

    Args:
        a: a matrix of shape `(M, K)`, or a batch of B of them, `(B, M, K)`; or an op that produces one.
        b: of shape `(K, N)` or `(B, K, N)`. One of the two may be a matrix for all of a batch. Both hold float16, bfloat16,
            float32 or float64; or 8-bit floats, or int8 and uint8, which may be mixed. Any strides will do, so `x.T` for one.
        c: what is added, of the result's shape or one that NumPy broadcasts to it; any float (integers for integers).
        alpha, beta: factors; ints for products of integers. `c` is not read where `beta` is 0.
        epilogue: a `tk.function`, or a plain function that could be one, of the accumulator and a tile of each of `operands`,
            all in the dtype in which the product is added up; `kernels.epilogues` has some. It returns the tile to be stored. A
            kernel is made for each such function: define it once, and not for each call.
        operands: up to 3 tensors (or ops) for the epilogue: of shape `(N,)` for a number for each column, `(M, 1)` for each row,
            or others that NumPy broadcasts to the result's.
        dtype: of the result; by default that of `a`, but float32 for 8-bit floats, and int32 for integers.
        precision: as for `tk.mma`: "tf32" lets tensor cores multiply float32; "fast" leaves sums of 8-bit floats to them.
        out: where the result goes, `c` itself for one; by default a new tensor.
        tile: `(BM, BN, BK)`, powers of two, instead of the tile that the sizes suggest. `BN` may be the sum of two (96, 160, 192)
            unless splits is "stream"; it is fast where K is contiguous in `b`, or its elements have 16 bits.
        num_warps: of a block, instead of those that the tile suggests.
        splits: into how many parts sums are split, instead of as many as keep all multiprocessors busy; or "stream", which deals
            the steps along K of the last tiles, too few for all multiprocessors, out to these (stream-K); not for batches.

    Returns:
        An op whose result is a tensor of shape `(M, N)` or `(B, M, N)`. It is rounded once, at the end.

    Raises:
        TypeError, ValueError: other arguments.
        CompileError: when it runs, for an epilogue that does not compile.

    How far a result may be off is that of `tk.mma`, over all of K.
    """
    if not isinstance(operands, (tuple, list)):
        raise TypeError(f"gemm: operands is a tuple of the epilogue's tensors and scalars, not {type(operands).__name__}")
    a_tensor("gemm", a=a, b=b)
    a, b = straightened(a), straightened(b)
    for at, x in enumerate(operands):
        a_tensor("gemm", **{f"operands[{at}]": x})
    if isinstance(beta, (int, float)) and beta == 0:
        c = None
    if c is not None:
        a_tensor("gemm", c=c)
    # Where the result goes to what is read, blocks keep to whole tiles of one partition: that no other one reads them is seen.
    beside = () if out is None else (*operands, *(() if c is None else (c,)))
    in_place = any(isinstance(x, Tensor) and x.shares_memory(out) for x in beside)
    # All that follows from what a tensor is, but for its address, is found out once.
    key = (
        a.traits, b.traits, None if c is None else c.traits, tuple(x.traits for x in operands), type(alpha), type(beta),
        epilogue, dtype, precision, tuple(tile) if isinstance(tile, list) else tile, num_warps, splits, in_place,
    )  # fmt: skip
    try:
        recipe = _recipes.get(key)
    except TypeError:  # one has no hash, which is wrong of all but the epilogue
        recipe = _recipe(a, b, c, operands, alpha, beta, epilogue, dtype, precision, tile, num_warps, splits, in_place)
    if recipe is None:
        if len(_recipes) >= _RECIPES_KEPT:
            _recipes.clear()
        recipe = _recipes[key] = _recipe(
            a, b, c, operands, alpha, beta, epilogue, dtype, precision, tile, num_warps, splits, in_place
        )
    extents, result, wide, added, along, warp_specialize, schedule, kernels, turned, packing, vectors = recipe
    destination, matrix, rank = out_or_new("gemm", out, a, extents, result), len(extents) == 2, len(extents)
    more = [shaped(x, _padded(x.shape, rank)) for x in operands]
    added_to = a if c is None else shaped(c, _padded(c.shape, rank))
    if turned and c is not None:
        added_to = _turned(added_to)
    if wide != dtypes.int32:  # floats always, and so one kernel for all numbers
        alpha, beta = as_real(alpha, "gemm: alpha"), as_real(beta, "gemm: beta")
    constants = (bool(alpha != 1), added, along)

    def rest(rows=None):
        """What else a kernel takes, of all rows of the result or of some."""
        tensors = (added_to, *more)
        if rows is not None:
            tensors = [x[rows] if each and each[0] else x for x, each in zip(tensors, (added, *along), strict=True)]
        return (*tensors, *[a] * (_MOST_OPERANDS - len(more)), alpha, beta)

    def common(rows=None):
        return (*rest(rows), wide, precision, warp_specialize, *constants)

    (m, n), k = extents[-2:], a.shape[-1]

    def steps(new):
        y = new(destination)
        if not y.size:
            return y
        left, right = yield from packed(new, (a, b), packing)
        if not k:  # nothing to add up, which zeros are as well
            left, right = (new(Spec((*x.shape[:-2], *ends), x.dtype)) for x, ends in ((a, (m, _LEAST)), (b, (_LEAST, n))))
            for x in (left, right):
                yield filled(x)
        target = y
        if turned:
            target, left, right = (_turned(x) for x in (y, right, left))
        # Which matrices of a batch move on from one product to the next.
        each = () if matrix else tuple(int(len(x.shape) == 3) for x in (left, right))
        if not matrix:
            left, right = (shaped(x, _padded(x.shape, 3)) for x in (left, right))
        if vectors is not None:
            batch = math.prod(extents[:-2])
            whole = vectors.splits == 1 and epilogue is None and constants == (False, (), ())
            parts = shaped(y, (batch, m, n)) if whole else new(Spec((batch * vectors.splits, m, n), wide))
            few = (parts, left, right) if m <= n else map(_turned, (parts, right, left))
            stacks = (shaped(x, _padded(x.shape, 3)) for x in few)
            yield products_of_vectors(*stacks, vectors, wide, (each or (0, 0))[:: 1 if m <= n else -1])
            if not whole:
                yield _added_up(kernels, y, parts, vectors.splits, rest(), constants)
        elif schedule.abreast and schedule.splits == 1:
            yield launched(kernels.abreast(target.scattered(), left, right, *common(), each).grid(schedule.blocks))
        elif not matrix and schedule.splits == 1:
            yield launched(kernels.batch(schedule.mapped(target), left, right, *common(), each))
        elif schedule.splits == 1 and schedule.stream is None:
            yield launched(kernels.matrix(schedule.mapped(target), left, right, *common()))
        elif schedule.stream is not None:
            stream, above = schedule.stream, schedule.stream.top * schedule.rows
            if above:
                yield launched(kernels.matrix(schedule.mapped(target[:above]), left, right, *common(slice(above))))
            parts = new(Spec((stream.places, schedule.rows, schedule.columns), wide))
            launch = shares_of(parts.scattered(), left, right, *stream[:-1], precision, warp_specialize)
            yield launched(launch.grid(stream.blocks))
            columns = min(schedule.columns, 256)
            rows = min(schedule.rows, 256 if on_cpu(a) else max(1, _SUMMED // columns))
            launch = kernels.finish_stream(
                target[above:].partition((rows, columns)), parts, *rest(slice(above, None)), stream.columns, stream.steps,
                stream.share, schedule.rows // rows, schedule.columns // columns, *constants,
            )  # fmt: skip
            yield launch.generics(BM=rows, BN=columns).num_warps(_SUMMED_WARPS)
        else:
            count, way = schedule.splits, (precision, warp_specialize)
            parts = new(Spec((math.prod(target.shape[:-2]) * count, *target.shape[-2:]), wide))
            if schedule.abreast:
                launch = parts_abreast(parts.scattered(), left, right, count, schedule.share, *way, each).grid(schedule.blocks)
            elif not matrix:
                launch = _batched_parts(schedule.mapped(parts), left, right, count, schedule.share, *way, each)
            else:
                launch = _parts(schedule.mapped(parts), left, right, schedule.share, *way)
            yield launched(launch)
            yield _added_up(kernels, target, parts, count, rest(), constants)
        return y

    def launched(launch):
        launch = launch.generics(**schedule.generics).num_warps(schedule.num_warps)
        return launch if schedule.occupancy is None else launch.occupancy(schedule.occupancy)

    return Launches(a, steps, Spec(extents, result))


def parts_added_up(target: Any, parts: Any, count: int) -> DeviceOp[Any]:
    """Add up so many parts of a matrix, `(count, M, N)`: a launch that writes `target`."""
    return _added_up(_kernels(_nothing_else), target, parts, count, (*[parts] * (1 + _MOST_OPERANDS), 1.0, 1.0), (False, (), ()))


def _added_up(kernels, target, parts, count, rest, constants):
    *batch, m, n = target.shape
    if on_cpu(target):
        rows, columns, several = min(power(m), 256), min(power(n), 256), 1
    else:
        # Of a transpose the result is contiguous down its columns: each is written in pieces of 128 bytes, not of 8.
        across = _TURNED_COLUMNS if target.unit == len(target.shape) - 2 else 256
        summed = max(_LEAST_SUMMED, min(_SUMMED, power(-(-target.size // multiprocessors(target)))))
        columns = min(power(n), across, summed)
        rows = min(power(m), summed // columns)
        several = min(power(count), _LOADED_BYTES // (rows * columns * parts.itemsize))
    finish, tile = (kernels.finish_batch, (1,)) if batch else (kernels.finish, ())
    parts = shaped(parts, (*batch, count, m, n))
    launch = finish(target.partition((*tile, rows, columns)), parts, *rest, count, *constants)
    return launch.generics(BM=rows, BN=columns, BP=several).num_warps(_SUMMED_WARPS)


class _Recipe(NamedTuple):
    """What a product takes: its shape and dtype, the constants of its kernels, the schedule, and the kernels.

    Operands may be packed first; a few rows or columns are `vectors`, of which no tiles are multiplied. If it is `turned`, the
    transpose is computed, `b.T @ a.T`: of few rows, for tensor cores take 64 rows at a time and 8 columns; and where other tiles
    fit.
    """

    extents: tuple[int, ...]
    result: Any
    wide: Any
    added: tuple[int, ...]
    along: tuple[tuple[int, ...], ...]
    ahead: bool | None
    schedule: Schedule
    kernels: _Kernels
    turned: bool
    packing: Packing
    vectors: Vectors | None


_recipes: dict[Any, _Recipe] = {}
_RECIPES_KEPT = 512


def _recipe(a, b, c, operands, alpha, beta, epilogue, dtype, precision, tile, num_warps, splits, in_place):
    wide = sum_dtype("gemm", a, b, precision)
    batch, m, n, k = _shape_of(a.shape, b.shape)
    _check_factors(wide, alpha, beta)
    matrix = len(a.shape) == len(b.shape) == 2
    extents = (m, n) if matrix else (batch, m, n)
    added = () if c is None else _along("c", c, extents)
    if len(operands) > _MOST_OPERANDS:
        raise ValueError(f"gemm: {len(operands)} operands for the epilogue; it takes up to {_MOST_OPERANDS}")
    if operands and epilogue is None:
        raise ValueError("gemm: operands are for an epilogue, and there is none: epilogue=kernels.epilogues.bias adds one")
    along = tuple(_along(f"operands[{at}]", x, extents) for at, x in enumerate(operands))
    check_splits("gemm", splits, otherwise="stream")
    tile = check_tile("gemm", tile, abreast=splits != "stream")
    if splits == "stream" and not matrix:
        raise ValueError('gemm: splits = "stream" is for matrices; the sums of a batch are split into so many parts each')
    result = result_dtype(a, dtype, wide)
    rounded, cpu = a.dtype == dtypes.float32 and precision == "tf32", on_cpu(a)
    exact = a.dtype == dtypes.float32 and not rounded
    beside = sum(x.itemsize for x, each in zip((c, *operands), (added, *along), strict=True) if each and all(each[-2:]))
    # Two tiles next to each other are one instruction of the warps that the model has in mind.
    modelled = splits != "stream" and num_warps is None and not in_place

    def planned(a, b):
        """The schedule for operands that lie like these, whether it is of the transpose, and whether tiles come ahead."""
        staged, copied = not exact and staged_operands(a, b), in_stages(a, b, to=COPIES, warpgroups=False)
        fetched = exact and not cpu and exact_in_stages(a, b)
        # By copies of 4 or 8 bytes, for little work: loaded as the loop goes they take 0.6 to 1 of the time.
        little = not (tile or aligned(a, b)) and (-(-k * a.itemsize // LINES) <= FEW_STEPS or min(m, n) <= FEW_ROWS)
        # In the transpose the second operand is the first, which K has to be contiguous in.
        otherwise = not (staged or little or copied or exact or cpu or tile or epilogue)
        otherwise = otherwise and staged_operands(_turned(b), _turned(a))
        staged = staged and not little

        def scheduled(turned):
            deep = a.unit == len(a.shape) - 1 if turned else b.unit == len(b.shape) - 2
            product = Product(
                (batch, *((n, m) if turned else (m, n)), k or _LEAST), multiprocessors(a), a.itemsize, beside,
                summed=a.dtype in dtypes.EIGHT_BIT_FLOATS and precision != "fast", turned=turned, lines=pitched(a, b, to=LINES),
                over=rounded and not deep,
                ragged=tuple(not pitched(x, to=LINES) for x in ((b, a) if turned else (a, b))),
                across=(_across(b, 1), _across(a, 0)) if turned else (_across(a, 0), _across(b, 1)),
            )  # fmt: skip
            return schedule_of(
                product, staged=staged or otherwise, copied=copied, even=aligned(a, b), cpu=cpu, tf32=rounded, tile=tile,
                num_warps=num_warps, splits=splits, fetched=fetched,
                abreast=abreast_columns(_turned(a) if turned else b) if modelled else (),
            )  # fmt: skip

        either = staged and epilogue is None and tile is None and not cpu
        turned = otherwise or (either and m <= FEW_ROWS < n)
        schedule = scheduled(turned)
        either = either and min(m, n) > FEW_ROWS and staged_operands(_turned(b), _turned(a))
        if either and (other := scheduled(True)).clocks < _TURNED * schedule.clocks:
            schedule, turned = (other, True) if other.stream is None else (schedule, False)
        ahead = fetched and fits_stages(schedule.rows, schedule.columns, schedule.depth, schedule.num_warps, k)
        return schedule, turned, staged or copied or otherwise or ahead

    plan = planned(a, b)
    free = not (cpu or exact or tile or num_warps or splits) and a.itemsize <= 4
    packing, vectors = AS_THEY_LIE, None
    if not (cpu or plan[-1] or tile or num_warps or splits) and 0 < min(m, n) <= FEW_VECTORS and batch * k:
        deep = b.unit == len(b.shape) - 2 if m <= n else a.unit == len(a.shape) - 1
        run = _run(b if m <= n else a)
        vectors = vectors_of(batch, min(m, n), max(m, n), k, deep, run, multiprocessors(a))
    elif free and batch * m * n * k:
        packing, plan = best_packing(a, b, plan, planned)
    schedule, turned, ahead = plan
    if turned:
        added = added[::-1]
    # Without fast tensor cores a product of small tiles takes so long that its operands come in time.
    at_once = not ahead and -(-k // schedule.depth) <= FEW_STEPS
    warp_specialize = False if (exact and not ahead) or a.dtype == dtypes.float64 or at_once else None
    kernels = _kernels(_function(epilogue))
    return _Recipe(extents, result, wide, added, along, warp_specialize, schedule, kernels, turned, packing, vectors)


# ------------------------------------------------------------------------------------------------------------------------- checks


def _shape_of(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, int, int]:
    """B, M, N and K of a product of operands of these shapes."""
    if not {len(a), len(b)} <= {2, 3}:
        raise ValueError(f"gemm: a has shape {a}, b {b}; each is a matrix, or a batch of matrices with 3 dimensions")
    if a[-1] != b[-2]:
        turned = "; pass a.T or b.T?" if a[-1] == b[-1] or a[-2] == b[-2] else ""
        raise ValueError(f"gemm: a has shape {a}, b {b}: rows of {a[-1]} elements meet columns of {b[-2]}{turned}")
    batches = {x[0] for x in (a, b) if len(x) == 3}
    if len(batches) > 1:
        raise ValueError(f"gemm: a has shape {a}, b {b}: batches of {a[0]} and {b[0]} matrices; a matrix serves a whole batch")
    return (*batches, a[-2], b[-1], a[-1]) if batches else (1, a[-2], b[-1], a[-1])  # type: ignore[return-value]


def _check_factors(wide: Any, alpha: Any, beta: Any) -> None:
    kinds = (int,) if wide == dtypes.int32 else (int, float)
    for what, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise TypeError(f"gemm: {what} is {'an int, for integers' if kinds == (int,) else 'a number'}, not {value!r}")


def _along(what: str, x: Any, extents: tuple[int, ...]) -> tuple[int, ...]:
    """For each dimension of the result whether `x` has it (1), or one element for all (0)."""
    if len(x.shape) > len(extents) or any(n not in (1, to) for n, to in zip(x.shape[::-1], extents[::-1], strict=False)):
        raise ValueError(f"gemm: {what} has shape {x.shape}, which does not broadcast to {extents}")
    return tuple(int(n == to) for n, to in zip(_padded(x.shape, len(extents)), extents, strict=True))


def _turned(x: Tensor) -> Tensor:
    """The transpose of a matrix, or of each matrix of a stack."""
    rank = len(x.shape)
    return x.permute(*range(rank - 2), rank - 1, rank - 2)


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + tuple(shape)


def _across(x: Tensor, dimension: int) -> bool:
    """Whether a matrix, or each of a stack, lies along this dimension of two."""
    return x.unit == len(x.shape) - 2 + dimension


def _run(x: Tensor) -> int:
    """How many elements a thread may load at once, by where rows or columns begin."""
    return next((to // x.itemsize for to in (16, 8, 4, 2) if to > x.itemsize and aligned(x, to=to)), 1)


def _function(epilogue: Any) -> Function:
    if epilogue is None:
        return _nothing_else  # type: ignore[no-any-return]
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
