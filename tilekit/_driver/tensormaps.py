"""Tensor maps: what the tensor memory accelerator (TMA, sm_90 and later) is told of a tensor, 128 bytes that a kernel gets by
value behind its other parameters. The rules are those of cuTensorMapEncodeTiled in the CUDA driver API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilekit import dtypes

__all__ = ["MAP_BYTES", "MOST_STRIDE", "UNIT", "Last", "TensorMap", "Tiled", "tiled"]

MAP_BYTES = 128
MOST_STRIDE = 1 << 40
"""Strides of a tensor map are not negative, and less than so many bytes."""

UNIT = 16
"""Bytes: what addresses, strides, and the rows of a box are multiples of."""

_RANKS = range(1, 6)
_MOST_IN_BOX = 256
_MOST_EXTENT = 1 << 32  # elements
_NOWHERE = UNIT  # an address where no memory is, but which a map may have
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
# Bits are copied as they are, so the width is what counts. There is no int8, int16, bool or 8-bit float.
_TYPES = {
    "bool": "UINT8", "int8": "UINT8", "uint8": "UINT8", "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8", "int16": "UINT16",
    "uint16": "UINT16", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "int32": "INT32", "uint32": "UINT32", "float32": "FLOAT32",
    "int64": "INT64", "uint64": "UINT64", "float64": "FLOAT64",
}  # fmt: skip
assert set(_TYPES) == {d.name for d in dtypes.ALL}


class Last(NamedTuple):
    """The last box along a dimension, of those that begin at an offset, and a period behind each other; at the offset alone if
    that is 0."""

    dim: int
    period: int
    offset: int

    def elements(self, extent: int, box: int) -> int:
        """How many there are of it, of a tensor of this extent: `box` at most, and 1 of one that has none."""
        before = max(extent - self.offset, 1) - 1
        return min(before % self.period if self.period else before, box - 1) + 1


@dataclass(frozen=True)
class TensorMap:
    """A parameter of a compiled kernel: one of its tensor arguments as the TMA sees it, and in boxes of which shape it copies it.

    What a box has outside the tensor is zeros where it is loaded, and is not stored.

    Attributes:
        argument: the number of the argument, as `Specialisation.facts` counts them.
        dtype: the name of its element type.
        box: elements along each of its dimensions, 1 to 256.
        order: its dimensions, from the one with stride 1 to the slowest: the first of `order` is the map's dimension 0, whose
            coordinate comes first in instructions.
        swizzle: how the 16-byte pieces of a box's rows are exchanged in shared memory, in bytes: 32, 64, 128; 0 for not at all.
        last: along which dimension a box has what there is of the last one, and where these begin; None if all have as much.
            (Zeros outside of a tensor come at a fraction of the speed of what is there.)

    Raises:
        ValueError: there is no such map.
    """

    argument: int
    dtype: str
    box: tuple[int, ...]
    order: tuple[int, ...]
    swizzle: int
    last: Last | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES:
            raise ValueError(f"{self!r}: there is no dtype {self.dtype!r}")
        if len(self.box) not in _RANKS or sorted(self.order) != list(range(len(self.box))):
            raise ValueError(f"{self!r}: a box has 1 to 5 dimensions, and the order has each of them once")
        if not all(1 <= n <= _MOST_IN_BOX for n in self.box):
            raise ValueError(f"{self!r}: a box has 1 to {_MOST_IN_BOX} elements along each dimension")
        if self.swizzle not in _SWIZZLES:
            raise ValueError(f"{self!r}: the swizzle is one of {', '.join(map(str, _SWIZZLES))} bytes")
        if self.last is not None and self.last.dim not in self.order[1:]:
            raise ValueError(f"{self!r}: the last box is short along one of the dimensions {', '.join(map(str, self.order[1:]))}")
        row = self.box[self.order[0]] * self.itemsize
        if row % UNIT or (self.swizzle and row > self.swizzle):
            limit = f", and at most the {self.swizzle} of the swizzle" if self.swizzle else ""
            raise ValueError(f"{self!r}: a row of the box has {row} bytes; that has to be a multiple of {UNIT}{limit}")

    @property
    def itemsize(self) -> int:
        """The size of an element, in bytes."""
        return dtypes.as_dtype(self.dtype).itemsize


class Tiled(NamedTuple):
    """What cuTensorMapEncodeTiled is given, dimension 0 first.

    Attributes:
        type, swizzle: the ends of the names of the driver's constants.
        address: of the first element.
        extents: elements along each dimension.
        strides: in bytes, of every dimension but the first.
        box: elements along each dimension.
    """

    type: str
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str


def tiled(known: TensorMap, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tiled:
    """How the driver is told of a tensor.

    A dimension of one element has no stride that anything depends on: it gets a legal one. A map has no extents of 0: that of
    an empty tensor is legal, but of an element where no memory is, so kernels do not load from empty tensors.

    Args:
        known: what is known of the map when the kernel is compiled.
        address: of the tensor's first element.
        shape, strides: the tensor's, in elements.

    Raises:
        ValueError: the TMA cannot address such a tensor.
    """

    def refusal(why: str) -> ValueError:
        what = f"argument {known.argument} (counted from 0), {known.dtype} of shape {original[0]} and strides {original[1]}"
        return ValueError(f"{what}, has no tensor map: {why}")

    original = shape, strides
    if len(shape) != len(known.box):
        raise refusal(f"the map was made for {len(known.box)} dimensions")
    if 0 in shape:
        address, shape = _NOWHERE, (1,) * len(shape)
    if address % UNIT:
        raise refusal(f"its address is {address:#x}, which is no multiple of {UNIT} bytes")
    steps = []
    for at, dim in enumerate(known.order):
        extent, stride = shape[dim], strides[dim] * known.itemsize
        if extent > _MOST_EXTENT:
            raise refusal(f"dimension {dim} has more than 2^32 elements")
        if extent == 1:
            stride = UNIT if at else known.itemsize
        if not at and stride != known.itemsize:
            raise refusal(f"the elements of dimension {dim} are {stride} bytes apart, not next to each other")
        if at and (stride % UNIT or not 0 <= stride < MOST_STRIDE):
            raise refusal(f"dimension {dim} has a stride of {stride} bytes, which is no multiple of {UNIT} from 0 to below 2^40")
        steps.append(stride)
    extents = tuple(shape[dim] for dim in known.order)
    box = list(known.box)
    if known.last is not None:
        box[known.last.dim] = known.last.elements(shape[known.last.dim], box[known.last.dim])
    return Tiled(
        _TYPES[known.dtype], address, extents, tuple(steps[1:]), tuple(box[dim] for dim in known.order), _SWIZZLES[known.swizzle]
    )
