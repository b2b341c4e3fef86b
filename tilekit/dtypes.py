"""Element types: NumPy dtypes (bfloat16 and the 8-bit floats from ml_dtypes), and the rules by which they mix in a kernel.

They are cuTile Python's: bool < integer < float, whatever their sizes (int64 with float16 is float16); of one kind the wider;
signed with unsigned integers, and float16 with bfloat16, are an error; integers divided by `/` are float32; a constant takes the
tile's dtype, and has to fit it. Where tilekit differs:

* Every scalar is such a constant, also one computed in the kernel or passed to it, of whatever type (in cuTile those have a dtype
  of their own). A known one has to fit the tile's dtype; another wraps.
* The mathematical functions (`exp`, `sin`, `sqrt`...) refuse integers, which cuTile makes float32.
* `minimum` and `maximum` give NaN where one operand is NaN, as NumPy's; `propagate_nan=False` is cuTile's default.
* Negative powers of integers, integers divided by zero, and shifts by the width or more have results: see `tk.pow`,
  `tk.floordiv`, `tk.bitwise_lshift`.
* `//`, `%` and `divmod` of floats are Python's and NumPy's: what they give belongs together.
* 8-bit floats are loaded, stored, cast and multiplied as matrices; there are no tfloat32 (products of float32 take
  `precision="tf32"`) and no 4-bit floats.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "ALL",
    "EIGHT_BIT_FLOATS",
    "DType",
    "as_dtype",
    "bfloat16",
    "bool_",
    "common_dtype",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "holds",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_float",
    "misfit",
    "no_arithmetic",
    "quotient_dtype",
    "scalar_dtype",
    "storable",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unstorable",
]  # fmt: skip

DType = np.dtype[Any]

bool_: DType = np.dtype(np.bool_)
int8: DType = np.dtype(np.int8)
int16: DType = np.dtype(np.int16)
int32: DType = np.dtype(np.int32)
int64: DType = np.dtype(np.int64)
uint8: DType = np.dtype(np.uint8)
uint16: DType = np.dtype(np.uint16)
uint32: DType = np.dtype(np.uint32)
uint64: DType = np.dtype(np.uint64)
float8_e4m3fn: DType = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2: DType = np.dtype(ml_dtypes.float8_e5m2)
float16: DType = np.dtype(np.float16)
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
float32: DType = np.dtype(np.float32)
float64: DType = np.dtype(np.float64)

# Floats that are there to be stored: kernels load, store and cast them, and calculate in another type.
EIGHT_BIT_FLOATS = (float8_e4m3fn, float8_e5m2)
ALL = (bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64, *EIGHT_BIT_FLOATS)
_FLOATS = (float16, bfloat16, float32, float64, *EIGHT_BIT_FLOATS)


def as_dtype(spec: Any) -> DType:
    """`spec` (a dtype, a NumPy scalar type, a name) as one of tilekit's dtypes.

    Raises:
        TypeError: `spec` is no dtype, or none that tilekit stores (complex numbers, strings, big-endian numbers...).
    """
    dtype: DType | None
    try:
        dtype = np.dtype(spec)
    except (TypeError, ValueError):  # the latter of text that NumPy cannot read at all
        dtype = None
    if spec is None or dtype is None or dtype not in ALL:
        tuples = "; several extents are one shape, a tuple such as (3, 4)" if isinstance(spec, int) else ""
        raise TypeError(f"{spec!r} is not a dtype of tilekit; there are {', '.join(d.name for d in ALL)}{tuples}")
    return dtype


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is a floating-point type (bfloat16 and float8_e4m3fn included, whose NumPy kinds say otherwise)."""
    return dtype in _FLOATS


def no_arithmetic(dtype: DType) -> str | None:
    """Why nothing is calculated in `dtype`; None if it is."""
    if dtype not in EIGHT_BIT_FLOATS:
        return None
    return f"there is no arithmetic in {dtype.name}: such tiles are loaded, stored and cast; cast with .astype(tk.float32)"


def _rank(dtype: DType) -> int:
    return 0 if dtype == bool_ else 2 if is_float(dtype) else 1


def common_dtype(a: DType, b: DType, what: str = "arithmetic") -> DType:
    """The dtype in which two tiles meet: bool < integer < float, and within one of these the wider (cuTile Python's rule).

    Raises:
        TypeError: signed with unsigned integers, or floats of one size: neither holds the other.
    """
    if a == b:
        return a
    if _rank(a) != _rank(b):
        return a if _rank(a) > _rank(b) else b
    if (a.kind != b.kind and not is_float(a)) or (is_float(a) and a.itemsize == b.itemsize):
        raise TypeError(f"{what}: no common dtype of {a.name} and {b.name}; cast one of them with .astype(...)")
    wider: DType = a if a.itemsize > b.itemsize else b
    return wider


def scalar_dtype(tile: DType, scalar: type) -> DType:
    """The dtype in which a tile meets a scalar of Python type `scalar` (bool, int, float): scalars take the tile's dtype,
    unless they are of a higher kind: an int makes a bool tile int32, a float makes an integer or bool tile float32."""
    rank = 0 if scalar is bool else 1 if scalar is int else 2
    if rank <= _rank(tile):
        return tile
    return int32 if rank == 1 else float32


def holds(dtype: DType, value: Any) -> bool:
    """Whether the scalar `value` lies in the range of `dtype`; fractions are cut off, as NumPy does."""
    if is_float(dtype) or dtype == bool_:
        return True
    limits = np.iinfo(dtype)
    return math.isfinite(value) and bool(limits.min <= int(value) <= limits.max)


def misfit(dtype: DType, value: Any) -> str | None:
    """Why the integer scalar `value` cannot meet a tile of integer type `dtype`; None if it can."""
    if is_float(dtype) or dtype == bool_ or holds(dtype, value):
        return None
    return f"the scalar {value} does not fit {dtype.name}; cast the tile with .astype(...), or take another scalar"


def unstorable(target: DType, kind: type, value: Any, name: str) -> str | None:
    """Why a scalar cannot be stored into the tensor `name` of `target`; None if it can.

    Args:
        target: the tensor's dtype.
        kind: the Python type (bool, int, float) that the scalar counts as.
        value: the scalar; anything else where it is not known yet.
        name: what messages call the tensor.
    """
    if scalar_dtype(target, kind) != target:
        return (
            f"a {kind.__name__} does not fit {name}, which holds {target.name}, without loss; convert it first if that is meant"
        )
    if kind is int and isinstance(value, (int, np.integer)) and not is_float(target) and not holds(target, value):
        return f"the scalar {value} does not fit {name}, which holds {target.name}"
    return None


def unfit_padding(target: DType, value: Any, name: str) -> str | None:
    """Why the scalar `value` cannot stand for elements of the tensor `name` that are not there; None if it can.

    Of integers an integer or bool tensor takes those that it holds; all else is converted as by a cast.
    """
    if is_float(target) or isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        return None
    if value in (0, 1) if target == bool_ else holds(target, value):
        return None
    return f"padding_value {value} does not fit {name}, which holds {target.name}"


def quotient_dtype(dtype: DType) -> DType:
    """The dtype of `a / b` for operands that meet in `dtype`: float32 for integers and bools, else `dtype`."""
    return dtype if is_float(dtype) else float32


def storable(source: DType, target: DType) -> bool:
    """Whether a tile of `source` may be stored into a tensor of `target` without a cast: only where no value can be lost."""
    if source == target:
        return True
    try:
        return common_dtype(source, target) == target and not (_rank(source) == 1 and is_float(target))
    except TypeError:
        return False
