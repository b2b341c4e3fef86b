"""Products of matrices.

What a product is accumulated in follows from what its operands hold:

    operands                        accumulator and result of `tk.mma`      result of `tk.matmul` and `@`
    float16 or bfloat16             float32 (float16 if `acc` is, too)      as the operands
    float32                         float32                                 float32
    float64                         float64                                 float64
    float8_e4m3fn, float8_e5m2      float32 (the two may be mixed)          float32
    int8, uint8                     int32 (the two may be mixed)            int32

On a GPU the tensor cores compute them; float32 only with `precision="tf32"`. A float result is off by no more than
`K * 2**-22 * (abs(a) @ abs(b) + abs(acc))` for an accumulator of float32 (`2**-52` for float64), besides what `precision` and
the rounding to a narrower result cost: tensor cores cut off what does not fit into their sums, and nobody says in which order
they add. They take subnormal numbers for as large as the smallest normal one (`2**-14` of float16) there. Integers wrap.

Tensor cores that multiply 8-bit floats themselves (of compute capability 8.9; of 9.0 by warpgroups) keep only 13 bits behind the
leading one of such a sum, and of what goes into it: that costs up to `2**-12 * (abs(a) @ abs(b))` for each element of K. On 9.0
sums of 128 elements are therefore added up in float32, and it is no more than `2**-5` for any K. `precision="fast"` goes without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import block
from tilekit.lang.registry import tile_op
from tilekit.lang.size import check_size
from tilekit.lang.tile import Tile, convert, families, what_is

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = [
    "PRECISIONS", "accumulator_dtype", "check_accumulator", "check_precision", "matmul", "meeting_dtypes", "mma", "padded_shapes",
    "product_shape", "result_dtype", "sum_dtype",
]  # fmt: skip

PRECISIONS = ("ieee", "tf32", "fast")
_EIGHT_BIT_INTEGERS = (dtypes.int8, dtypes.uint8)
_ALONE = {
    dtypes.float16: dtypes.float32,
    dtypes.bfloat16: dtypes.float32,
    dtypes.float32: dtypes.float32,
    dtypes.float64: dtypes.float64,
}


def accumulator_dtype(a: dtypes.DType, b: dtypes.DType, what: str) -> dtypes.DType:
    """The dtype in which a product of tiles of these dtypes is added up.

    Raises:
        CompileError: there is no such product.
    """
    if a in dtypes.EIGHT_BIT_FLOATS and b in dtypes.EIGHT_BIT_FLOATS:
        return dtypes.float32
    if a in _EIGHT_BIT_INTEGERS and b in _EIGHT_BIT_INTEGERS:
        return dtypes.int32
    if a == b and a in _ALONE:
        return _ALONE[a]
    known = "float16, bfloat16, float32, float64 (both the same), 8-bit floats, or int8 and uint8"
    raise CompileError(f"{what}: no product of {a.name} and {b.name}: the operands hold {known}; cast them with .astype(...)")


def sum_dtype(a: dtypes.DType, b: dtypes.DType, acc: dtypes.DType, what: str) -> dtypes.DType:
    """The dtype in which a product is added up to an accumulator: float16 if it holds that, and so do both operands."""
    return acc if a == b == acc == dtypes.float16 else accumulator_dtype(a, b, what)


def meeting_dtypes(a: dtypes.DType, b: dtypes.DType, what: str) -> tuple[dtypes.DType, dtypes.DType]:
    """The dtypes to which `tk.matmul` converts its operands: their common one, unless they may be mixed."""
    for kinds in (dtypes.EIGHT_BIT_FLOATS, _EIGHT_BIT_INTEGERS):
        if a in kinds and b in kinds:
            return a, b
    try:
        dtype = dtypes.common_dtype(a, b, what)
    except TypeError as error:
        raise CompileError(str(error)) from None
    return dtype, dtype


def result_dtype(a: dtypes.DType, b: dtypes.DType, what: str) -> dtypes.DType:
    """The dtype of `tk.matmul`, of operands converted as `meeting_dtypes` says."""
    wide = accumulator_dtype(a, b, what)
    return a if a.itemsize > 1 else wide


def product_shape(a: tuple[int, ...], b: tuple[int, ...], what: str) -> tuple[int, ...]:
    """The shape of the product of tiles of two or three dimensions.

    Raises:
        CompileError: they do not fit.
    """
    if not {len(a), len(b)} <= {2, 3}:
        raise CompileError(
            f"{what}: operands have 2 dimensions, or 3 for a batch, not {len(a)} and {len(b)} (shapes {a} and {b}); use "
            ".reshape(...) or .broadcast_to(...)"
        )
    if a[-1] != b[-2]:
        turned = "; transpose one of them?" if a[-1] == b[-1] or a[-2] == b[-2] else ""
        raise CompileError(f"{what}: shapes {a} and {b} do not fit: rows of {a[-1]} elements meet columns of {b[-2]}{turned}")
    if len(a) == len(b) and a[:-2] != b[:-2]:
        raise CompileError(f"{what}: batches of {a[0]} and {b[0]} matrices (shapes {a} and {b}); use .broadcast_to(...)")
    return check_size((*max(a[:-2], b[:-2], key=len), a[-2], b[-1]), what)


def padded_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of operands of `tk.matmul` as matrices: a vector on the left is a row, one on the right a column."""
    rows = (1, *a) if len(a) == 1 else a
    columns = (*b, 1) if len(b) == 1 else b
    return rows, columns


def check_accumulator(
    shape: tuple[int, ...], dtype: dtypes.DType, wanted_shape: tuple[int, ...], wanted: dtypes.DType, what: str
) -> None:
    """Refuse an accumulator that is not what the product needs."""
    if shape != wanted_shape:
        raise CompileError(f"{what}: acc has shape {shape}; the product has shape {wanted_shape}")
    if dtype != wanted:
        raise CompileError(
            f"{what}: acc holds {dtype.name}; these operands are added up in {wanted.name}: start from tk.zeros({wanted_shape}, "
            f"tk.{wanted.name}), and cast the result"
        )


def check_precision(precision: Any, what: str) -> str:
    """`precision`, if there is such a one."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise CompileError(f'{what}: precision is "ieee", "tf32" or "fast", not {precision!r}')
    return str(precision)


def _tf32(array: NDArray[Any]) -> NDArray[Any]:
    """float32 numbers rounded to the 11 significant bits that tensor cores take, ties away from zero."""
    bits = (array.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), bits.view(np.float32), array)


def _product(a: NDArray[Any], b: NDArray[Any], wide: dtypes.DType, precision: str) -> NDArray[Any]:
    if block.running_one().sampled and min(a.ndim, b.ndim) > 1:
        return np.zeros((*max(a.shape[:-2], b.shape[:-2], key=len), a.shape[-2], b.shape[-1]), wide)
    if wide == dtypes.int32:  # NumPy has no fast product of integers; this one is exact up to K = 2**37
        wrapping: NDArray[Any] = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64).astype(np.int32)
        return wrapping
    x, y = (np.ascontiguousarray(convert(operand, wide)) for operand in (a, b))
    if a.dtype == dtypes.float32 and precision == "tf32":
        x, y = _tf32(x), _tf32(y)
    result: NDArray[Any] = np.matmul(x, y)
    return result


def _check_operands(what: str, **operands: Any) -> None:
    for name, value in operands.items():
        if not isinstance(value, Tile):
            raise CompileError(f"{what}: {name} is a tile, not {what_is(value)}")


@tile_op("mma", host="numpy.matmul")
def mma(a: Tile, b: Tile, acc: Tile, *, precision: str = "ieee") -> Tile:
    """The product of two matrices, added to a third: `a @ b + acc`.

    Round a loop, the accumulator stays in the registers where the tensor cores want it:
    `for k in range(n): acc = tk.mma(..., ..., acc)`. The operators `+` and `+=` may do the same with a product that begins with
    zeros, `acc += tk.mma(..., ..., tk.zeros(...))`: it is then added up in another order. `tk.add` never does. Zeros that a
    product begins with are not multiplied in a loop's first turn: `acc * s` is zeros there, whatever `s`.

    Args:
        a: of shape `(M, K)`, or `(B, M, K)` for a batch of B products; a matrix beside a batch is that of every product.
        b: of shape `(K, N)` or `(B, K, N)`. Both hold float16, bfloat16, float32 or float64; or 8-bit floats, or int8 and uint8,
            which may be mixed. Nothing is converted.
        acc: of the product's shape, `(M, N)` or `(B, M, N)`: float32; float64 for float64, int32 for 8-bit integers. Of float16
            operands it may hold float16, which takes half the registers: a sum is rounded to it at every instruction.
        precision: "tf32" takes 11 significant bits of float32 operands, for tensor cores, which is many times faster: rounded (a
            relative error of `2**-11` each), or cut off by warpgroups (`2**-10`). "ieee" multiplies them as they are, and adds up
            short sums of 8-bit floats in float32, which "fast" does not. These mean nothing for other dtypes.

    Any extents will do: what is smaller than an instruction of the tensor cores (16 x 8, and a K of 32 bytes) is filled up.

    Raises:
        CompileError: shapes or dtypes that do not fit, or tiles too large for shared memory.

    Examples:
        >>> @tk.kernel
        ... def product(c: tk.Out, a: tk.In, b: tk.In):
        ...     acc = tk.zeros((2, 2), tk.float32)
        ...     for k in range(2):
        ...         acc = tk.mma(tk.load(a, (0, k), (2, 2)), tk.load(b, (k, 0), (2, 2)), acc)
        ...     c.store(acc)
        >>> a = api.arange(8, dtype=tk.float32).reshape(2, 4).sync()
        >>> b = api.ones((4, 2), tk.float32).sync()
        >>> product(api.zeros((2, 2)).partition((2, 2)), a, b).out().sync().numpy()
        array([[ 6.,  6.],
               [22., 22.]], dtype=float32)
    """
    _check_operands("mma", a=a, b=b, acc=acc)
    shape = product_shape(a.shape, b.shape, "mma")
    total = sum_dtype(a.dtype, b.dtype, acc.dtype, "mma")
    check_accumulator(acc.shape, acc.dtype, shape, total, "mma")
    wide = accumulator_dtype(a.dtype, b.dtype, "mma")
    product = _product(a._array, b._array, wide, check_precision(precision, "mma"))
    return Tile(convert(product + convert(acc._array, wide), total))


@tile_op("matmul", host="numpy.matmul")
def matmul(a: Tile, b: Tile, *, precision: str = "ieee") -> Tile:
    """The product of two matrices; `a @ b` is the same.

    Args:
        a: of shape `(M, K)`, `(B, M, K)` for a batch, or `(K,)` for a row.
        b: of shape `(K, N)`, `(B, K, N)`, or `(K,)` for a column; a matrix beside a batch is that of every product. Operands
            meet as in arithmetic; 8-bit floats, and int8 with uint8, stay what they are.
        precision: as for `tk.mma`.

    The product is added up in float32 (float64, int32), and rounded once to the dtype in which the operands meet; 8-bit floats
    give float32, 8-bit integers int32. `tk.mma` keeps the float32 of 16-bit operands; so may the operators `+` and `+=` that add
    the product to a float32 tile, `acc += a @ b`, which leaves the rounding out. `tk.add(acc, a @ b)` never does.

    Raises:
        CompileError: shapes or dtypes that do not fit, or tiles too large for shared memory.

    Examples:
        >>> @tk.kernel
        ... def turn(y: tk.Out, x: tk.In, r: tk.In):
        ...     y.store(tk.load_tile_like(x, y) @ tk.load(r, (0, 0), (2, 2)))
        >>> x = api.arange(8, dtype=tk.float32).reshape(4, 2).sync()
        >>> r = api.from_host(np.array([[0, 1], [-1, 0]], np.float32)).sync()
        >>> turn(api.zeros((4, 2)).partition((4, 2)), x, r).out().sync().numpy()
        array([[-1.,  0.],
               [-3.,  2.],
               [-5.,  4.],
               [-7.,  6.]], dtype=float32)
    """
    return product_of("matmul", a, b, precision)


def product_of(what: str, a: Any, b: Any, precision: str) -> Tile:
    """`tk.matmul`; `what` names the operation in errors."""
    _check_operands(what, a=a, b=b)
    rows, columns = padded_shapes(a.shape, b.shape)
    product_shape(rows, columns, what)
    first, second = meeting_dtypes(a.dtype, b.dtype, what)
    result = result_dtype(first, second, what)
    wide = accumulator_dtype(first, second, what)
    elements = _product(convert(a._array, first), convert(b._array, second), wide, check_precision(precision, what))
    return Tile(convert(np.asarray(elements), result))


families["product_of"] = product_of
