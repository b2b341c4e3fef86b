"""What a product takes, found out once for operands that lie alike: its kernels, the schedule, and what is packed before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._gemm.abreast import abreast_columns
from tilekit.kernels._gemm.exact import FEW_STEPS, fits_stages
from tilekit.kernels._gemm.model import Product
from tilekit.kernels._gemm.packing import AS_THEY_LIE, Packing, best_packing
from tilekit.kernels._gemm.product_kernels import MOST_OPERANDS, ProductKernels, function_of, kernels_of
from tilekit.kernels._gemm.schedules import FEW_ROWS, Schedule, check_tile, result_dtype, schedule_of, sum_dtype
from tilekit.kernels._gemm.vectors import FEW_VECTORS, Vectors, vectors_of
from tilekit.kernels._host import check_splits, has_warpgroups, multiprocessors, on_cpu
from tilekit.kernels._staging import COPIES, LINES, SECTOR, aligned, exact_in_stages, in_stages, pitched, staged_operands
from tilekit.launch.launch import check_warps

__all__ = ["LEAST", "Recipe", "padded_shape", "recipe_of", "turned_over"]

LEAST = 16
"""Of K: what an instruction of the tensor cores takes at once."""

# Bytes along K, and of a result, up to which tiles are loaded as the loop goes, which has one turn then: 512 x 4096 x 4 takes
# 4.5 us so, and 6.0 in stages; 8192 x 1024 x 1 6.4, 8.1; 3400 x 2512 x 24 8.0, 10.0. With 96 bytes there is no gain, with 32 and
# 40 MB 1.1 times as much. Of more, rows are whole sectors: 8192 x 4096 x 8 takes 20.9 us, and 24.1; but 11584 x 2883 x 1 takes
# 41.2 us, and 37.8.
_BRIEF, _BRIEF_RESULT = 48, 24 << 20
_BRIEFER, _BRIEFER_RESULT = 16, 72 << 20
# Nor are operands packed for it, up to a result of so many bytes: 22 x 60 x 10607 x 13 takes 20 us without, and 36 with.
_UNPACKED = 32 << 20

_TURNED = 0.99  # of the time that it takes else, by a model: the transpose is no gain unless it takes less


class Recipe(NamedTuple):
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
    kernels: ProductKernels
    turned: bool
    packing: Packing
    vectors: Vectors | None


_recipes: dict[Any, Recipe] = {}
_RECIPES_KEPT = 512


def recipe_of(
    a: Tensor, b: Tensor, c: Tensor | None, operands: Sequence[Any], alpha: Any, beta: Any, epilogue: Any, dtype: Any,
    precision: str, tile: Any, num_warps: int | None, splits: int | str | None, *, in_place: bool,
) -> Recipe:  # fmt: skip
    """The recipe for a product of such tensors: all that follows from what they are, but for their addresses, is found out once.

    Args:
        a, b, c, operands, alpha, beta, epilogue, dtype, precision, tile, num_warps, splits: as for `gemm`.
        in_place: whether the result goes to what is read.

    Raises:
        TypeError, ValueError: as `gemm`.
    """
    key = (
        a.traits, b.traits, None if c is None else c.traits, tuple(x.traits for x in operands), type(alpha), type(beta),
        epilogue, dtype, precision, tuple(tile) if isinstance(tile, list) else tile, num_warps, splits, in_place,
    )  # fmt: skip
    asked = a, b, c, operands, alpha, beta, epilogue, dtype, precision, tile, num_warps, splits, in_place
    try:
        recipe = _recipes.get(key)
    except TypeError:  # one has no hash, which is wrong of all but the epilogue
        return _recipe(*asked)
    if recipe is None:
        if len(_recipes) >= _RECIPES_KEPT:
            _recipes.clear()
        recipe = _recipes[key] = _recipe(*asked)
    return recipe


def _recipe(a, b, c, operands, alpha, beta, epilogue, dtype, precision, tile, num_warps, splits, in_place):
    wide = sum_dtype("gemm", a, b, precision)
    batch, m, n, k = _shape_of(a.shape, b.shape)
    _check_factors(wide, alpha, beta)
    matrix = len(a.shape) == len(b.shape) == 2
    extents = (m, n) if matrix else (batch, m, n)
    added = () if c is None else _along("c", c, extents)
    if len(operands) > MOST_OPERANDS:
        raise ValueError(f"gemm: {len(operands)} operands for the epilogue; it takes up to {MOST_OPERANDS}")
    if operands and epilogue is None:
        raise ValueError("gemm: operands are for an epilogue, and there is none: epilogue=kernels.epilogues.bias adds one")
    along = tuple(_along(f"operands[{at}]", x, extents) for at, x in enumerate(operands))
    check_splits("gemm", splits, otherwise="stream")
    check_warps(num_warps)
    tile = check_tile("gemm", tile, abreast=1 if splits == "stream" else 3)
    if splits == "stream" and not matrix:
        raise ValueError('gemm: splits = "stream" is for matrices; the sums of a batch are split into so many parts each')
    result = result_dtype(a, dtype, wide)
    rounded, cpu = a.dtype == dtypes.float32 and precision == "tf32", on_cpu(a)
    exact = a.dtype == dtypes.float32 and not rounded
    beside = sum(x.itemsize for x, each in zip((c, *operands), (added, *along), strict=True) if each and all(each[-2:]))
    summed = a.dtype in dtypes.EIGHT_BIT_FLOATS and precision != "fast"
    reach, stored = k * a.itemsize, batch * m * n * result.itemsize
    # Two tiles next to each other are one instruction of the warps that the model has in mind.
    modelled = splits != "stream" and num_warps is None and not in_place

    def planned(a, b):
        """The schedule for operands that lie like these, whether it is of the transpose, and whether tiles come ahead."""
        staged, copied = not exact and staged_operands(a, b), in_stages(a, b, to=COPIES, warpgroups=False)
        fetched = exact and not cpu and exact_in_stages(a, b)
        # By copies of 4 or 8 bytes, for little work: loaded as the loop goes they take 0.6 to 1 of the time. (Of more they take
        # longer: 12000 x 5004 x 64 83 us, and 51.)
        short = -(-k * a.itemsize // LINES) <= FEW_STEPS and stored <= _BRIEF_RESULT
        little = not aligned(a, b) and (short or min(m, n) <= FEW_ROWS)
        # Blocks that stay begin later, and store what they have one tile after the other.
        brief = reach <= _BRIEF and stored <= _BRIEF_RESULT
        brief |= reach <= _BRIEFER and stored <= _BRIEFER_RESULT and n * result.itemsize % SECTOR == 0
        little = (little or (brief and not (num_warps or splits))) and not tile
        # In the transpose the second operand is the first, which K has to be contiguous in.
        otherwise = not (staged or little or copied or exact or cpu or tile or epilogue)
        otherwise = otherwise and staged_operands(turned_over(b), turned_over(a))
        staged = staged and not little

        def scheduled(turned):
            deep = a.unit == len(a.shape) - 1 if turned else b.unit == len(b.shape) - 2
            product = Product(
                (batch, *((n, m) if turned else (m, n)), k or LEAST), multiprocessors(a), a.itemsize, beside,
                summed=summed, turned=turned, lines=pitched(a, b, to=LINES),
                over=rounded and not deep,
                ragged=tuple(not pitched(x, to=LINES) for x in ((b, a) if turned else (a, b))),
                across=(_across(b, 1), _across(a, 0)) if turned else (_across(a, 0), _across(b, 1)),
                stored=result.itemsize, begins=math.gcd(n * result.itemsize, LINES),
                plain=epilogue is None and c is None and not summed,
            )  # fmt: skip
            return schedule_of(
                product, staged=staged or otherwise, copied=copied, even=aligned(a, b), cpu=cpu, tf32=rounded, tile=tile,
                num_warps=num_warps, splits=splits, fetched=fetched,
                abreast=abreast_columns(turned_over(a) if turned else b) if modelled else (),
            )  # fmt: skip

        either = staged and epilogue is None and tile is None and not cpu
        turned = otherwise or (either and m <= FEW_ROWS < n)
        schedule = scheduled(turned)
        either = either and min(m, n) > FEW_ROWS and staged_operands(turned_over(b), turned_over(a))
        if either and (other := scheduled(True)).clocks < _TURNED * schedule.clocks:
            schedule, turned = (other, True) if other.stream is None else (schedule, False)
        ahead = fetched and fits_stages(schedule.rows, schedule.columns, schedule.depth, schedule.num_warps, k)
        return schedule, turned, staged or copied or otherwise or ahead

    plan = planned(a, b)
    free = not (cpu or tile or num_warps or splits) and a.itemsize <= 4 and (not exact or has_warpgroups(a))
    packing, vectors = AS_THEY_LIE, None
    if not (cpu or plan[-1] or tile or num_warps or splits) and 0 < min(m, n) <= FEW_VECTORS and batch * k:
        deep = b.unit == len(b.shape) - 2 if m <= n else a.unit == len(a.shape) - 1
        run = _run(b if m <= n else a)
        vectors = vectors_of(batch, min(m, n), max(m, n), k, deep, run, multiprocessors(a))
    elif free and batch * m * n * k and (reach > _BRIEF or stored > _UNPACKED):
        packing, plan = best_packing(a, b, plan, planned, across=exact)
    schedule, turned, ahead = plan
    if turned:
        added = (*added[:-2], *added[:-3:-1])
    # Without fast tensor cores a product of small tiles takes so long that its operands come in time.
    at_once = not ahead and -(-k // schedule.depth) <= FEW_STEPS
    warp_specialize = False if (exact and not ahead) or a.dtype == dtypes.float64 or at_once else None
    kernels = kernels_of(function_of(epilogue))
    return Recipe(extents, result, wide, added, along, warp_specialize, schedule, kernels, turned, packing, vectors)


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
    return tuple(int(n == to) for n, to in zip(padded_shape(x.shape, len(extents)), extents, strict=True))


def turned_over(x: Tensor) -> Tensor:
    """The transpose of a matrix, or of each matrix of a stack."""
    rank = len(x.shape)
    return x.permute(*range(rank - 2), rank - 1, rank - 2)


def padded_shape(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + tuple(shape)


def _across(x: Tensor, dimension: int) -> bool:
    """Whether a matrix, or each of a stack, lies along this dimension of two."""
    return x.unit == len(x.shape) - 2 + dimension


def _run(x: Tensor) -> int:
    """How many elements a thread may load at once, by where rows or columns begin."""
    return next((to // x.itemsize for to in (16, 8, 4, 2) if to > x.itemsize and aligned(x, to=to)), 1)
