"""Which operands of products come to stages in shared memory, and by which way."""

from __future__ import annotations

from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import has_warpgroups

__all__ = [
    "COPIES", "LINES", "SECTOR", "aligned", "exact_in_stages", "in_stages", "pitched", "staged_operands", "straightened",
]  # fmt: skip

COPIES = 4
"""What rows must be multiples of, in bytes, for threads to copy them to shared memory (cp.async)."""
LINES = 128
"""The bytes of a line of the L2 cache: rows that are no multiple lie across several."""
SECTOR = 32
"""The bytes of it that memory moves at least."""


def straightened(x: Tensor) -> Tensor:
    """`x` with other strides where dimensions have one element, so that nothing is said of them: whole lines.

    Rows of one element, as they lie without gaps, would begin at any address, and columns would not be contiguous for being last.
    """
    if 1 not in x.shape or all(n == 1 for n in x.shape):
        return x
    strides = tuple(LINES if n == 1 else stride for n, stride in zip(x.shape, x.strides, strict=True))
    return Tensor(x.storage, x.shape, x.dtype, strides, x.offset)


def aligned(*tensors: Tensor, to: int = 16) -> bool:
    """Whether the rows, or the columns, of all of them are contiguous and begin at multiples of `to` bytes, 16 at most."""
    return all(x.align >= to for x in tensors) and pitched(*tensors, to=to)


def pitched(*tensors: Tensor, to: int) -> bool:
    """Whether the rows, or the columns, of all of them are contiguous and multiples of `to` bytes apart."""
    for x in tensors:
        if x.unit is None or x.unit < len(x.shape) - 2:
            return False
        if any(stride * x.itemsize % to for dim, stride in enumerate(x.strides) if dim != x.unit):
            return False
    return True


def in_stages(*tensors: Tensor, to: int = 16, warpgroups: bool = True) -> bool:
    """Whether tiles of all of them come to stages in shared memory, for products of 16-bit floats there.

    Args:
        tensors: the operands.
        to: what their rows must be multiples of: 16 for the tensor memory accelerator, `COPIES` if threads may copy them.
        warpgroups: whether it is for products by warpgroups (compute capability 9.0), or on GPUs that have none.
    """
    return tensors[0].dtype in (dtypes.float16, dtypes.bfloat16) and _fetched(*tensors, to=to, warpgroups=warpgroups)


def staged_operands(a: Tensor, b: Tensor) -> bool:
    """Whether tiles of both come there, by whichever way, and warpgroups multiply them.

    Other than 16-bit floats they multiply if K is contiguous in both: `a` is row-major, and `b` the transpose of such a matrix;
    a `b` of float32 is turned on its way to them.
    """
    deep = a.unit == len(a.shape) - 1 and (b.unit == len(b.shape) - 2 or b.itemsize == 4)
    return in_stages(a, b, to=COPIES) or (a.itemsize in (1, 4) and deep and _fetched(a, b, to=COPIES))


def exact_in_stages(a: Tensor, b: Tensor) -> bool:
    """Whether tiles of both come there, for products of float32 that threads add up by themselves; whichever dimension is
    contiguous, they lie across K there (see `compiler.passes.summed`)."""
    return a.dtype == b.dtype == dtypes.float32 and _fetched(a, b, to=COPIES)


def _fetched(*tensors: Tensor, to: int, warpgroups: bool = True) -> bool:
    return has_warpgroups(tensors[0]) is warpgroups and aligned(*tensors, to=to)
