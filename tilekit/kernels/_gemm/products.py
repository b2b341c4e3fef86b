"""Products of matrices: `alpha * a @ b + beta * c`, and what else is to be done with it before it is stored.

Where there are fewer tiles than multiprocessors and the sums are long, a sum is taken in parts: one kernel writes these, another
adds them up, always in the same order, so that the result is the same in every run. Likewise where whole rounds of tiles leave a
few (`stream_k`). What a product takes is a recipe (`recipes`), of kernels that are made for each epilogue (`product_kernels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._gemm.abreast import parts_abreast
from tilekit.kernels._gemm.packing import packed
from tilekit.kernels._gemm.product_kernels import (
    MOST_OPERANDS,
    batched_sums_in_parts,
    kernels_of,
    nothing_else,
    sums_in_parts,
)
from tilekit.kernels._gemm.recipes import LEAST, padded_shape, recipe_of, turned_over
from tilekit.kernels._gemm.stream_k import shares_of
from tilekit.kernels._gemm.vectors import products_of_vectors
from tilekit.kernels._host import (
    Launches,
    Operand,
    a_tensor,
    filled,
    multiprocessors,
    on_cpu,
    out_or_new,
    power,
    shaped,
    takes_ops,
)
from tilekit.kernels._staging import straightened
from tilekit.launch.copying import as_real
from tilekit.ops import DeviceOp, Spec

__all__ = ["gemm", "parts_added_up"]

# Elements of a block that adds up parts: 8 a thread of 4 warps, or fewer, down to one, where the result is small. Several parts
# are loaded at once, 256 bytes a thread: one after the other, 59 parts of 8 x 8 would take half of the product's time.
_SUMMED, _LEAST_SUMMED, _LOADED_BYTES, _SUMMED_WARPS, _TURNED_COLUMNS = 1024, 128, 32768, 4, 16


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
        tile: `(BM, BN, BK)`, powers of two, instead of the tile that the sizes suggest. `BN` may be the sum of two or three (96,
            160, 208) unless splits is "stream"; it is fast where K is contiguous in `b`, or, of two, its elements have 16 bits.
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
    recipe = recipe_of(
        a, b, c, operands, alpha, beta, epilogue, dtype, precision, tile, num_warps, splits, in_place=in_place
    )  # fmt: skip
    extents, result, wide, added, along, warp_specialize, schedule, kernels, turned, packing, vectors = recipe
    destination, matrix, rank = out_or_new("gemm", out, a, extents, result), len(extents) == 2, len(extents)
    more = [shaped(x, padded_shape(x.shape, rank)) for x in operands]
    added_to = a if c is None else shaped(c, padded_shape(c.shape, rank))
    if turned and c is not None:
        added_to = turned_over(added_to)
    if wide != dtypes.int32:  # floats always, and so one kernel for all numbers
        alpha, beta = as_real(alpha, "gemm: alpha"), as_real(beta, "gemm: beta")
    constants = (bool(alpha != 1), added, along)

    def rest(rows=None):
        """What else a kernel takes, of all rows of the result or of some."""
        tensors = (added_to, *more)
        if rows is not None:
            tensors = [x[rows] if each and each[0] else x for x, each in zip(tensors, (added, *along), strict=True)]
        return (*tensors, *[a] * (MOST_OPERANDS - len(more)), alpha, beta)

    def common(rows=None):
        return (*rest(rows), wide, precision, warp_specialize, *constants)

    (m, n), k = extents[-2:], a.shape[-1]

    def steps(new):
        y = new(destination)
        if not y.size:
            return y
        left, right = yield from packed(new, (a, b), packing)
        if not k:  # nothing to add up, which zeros are as well
            left, right = (new(Spec((*x.shape[:-2], *ends), x.dtype)) for x, ends in ((a, (m, LEAST)), (b, (LEAST, n))))
            for x in (left, right):
                yield filled(x)
        target = y
        if turned:
            target, left, right = (turned_over(x) for x in (y, right, left))
        # Which matrices of a batch move on from one product to the next.
        each = () if matrix else tuple(int(len(x.shape) == 3) for x in (left, right))
        if not matrix:
            left, right = (shaped(x, padded_shape(x.shape, 3)) for x in (left, right))
        if vectors is not None:
            batch = math.prod(extents[:-2])
            whole = vectors.splits == 1 and epilogue is None and constants == (False, (), ())
            parts = shaped(y, (batch, m, n)) if whole else new(Spec((batch * vectors.splits, m, n), wide))
            few = (parts, left, right) if m <= n else map(turned_over, (parts, right, left))
            stacks = (shaped(x, padded_shape(x.shape, 3)) for x in few)
            yield products_of_vectors(*stacks, vectors, wide, (each or (0, 0))[:: 1 if m <= n else -1])
            if not whole:
                yield _added_up(kernels, y, parts, vectors.splits, rest(), constants)
        elif schedule.abreast and schedule.splits == 1:
            places = schedule.places(new, target)
            yield launched(kernels.abreast(places, target.scattered(), left, right, *common(), each, schedule.columns))
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
                launch = parts_abreast(parts.scattered(), left, right, count, schedule.share, *way, each, schedule.columns)
                launch = launch.grid(schedule.blocks)
            elif not matrix:
                launch = batched_sums_in_parts(schedule.mapped(parts), left, right, count, schedule.share, *way, each)
            else:
                launch = sums_in_parts(schedule.mapped(parts), left, right, schedule.share, *way)
            yield launched(launch)
            yield _added_up(kernels, target, parts, count, rest(), constants)
        return y

    def launched(launch):
        launch = launch.generics(**schedule.generics).num_warps(schedule.num_warps)
        return launch if schedule.occupancy is None else launch.occupancy(schedule.occupancy)

    return Launches(a, steps, Spec(extents, result))


def parts_added_up(target: Any, parts: Any, count: int) -> DeviceOp[Any]:
    """Add up so many parts of a matrix, `(count, M, N)`: a launch that writes `target`."""
    return _added_up(kernels_of(nothing_else), target, parts, count, (*[parts] * (1 + MOST_OPERANDS), 1.0, 1.0), (False, (), ()))


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
