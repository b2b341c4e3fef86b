"""Elements of a tensor at places that the kernel computes: gather and scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Tile, common_shape, convert, scalar_kind, what_is
from tilekit.lang.views import TensorView
from tilekit.lang.windows import check_eviction, mask_of, padding_tile, read_only, storable, written_only

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = ["Points", "gather", "points", "scatter", "values_of", "written"]


class Points(NamedTuple):
    """Elements of a tensor that indices name.

    Attributes:
        shape: that the indices broadcast to.
        places: for each dimension of the tensor the indices, of those that are inside and that the mask leaves; 1-D, in
            row-major order.
        chosen: which they are, of `shape`.
    """

    shape: tuple[int, ...]
    places: tuple[NDArray[Any], ...]
    chosen: NDArray[np.bool_]


def points(view: Any, indices: Any, mask: Any, what: str) -> Points:
    """Look at indices and mask as the user gave them.

    Raises:
        CompileError: they do not fit the tensor. DeviceError: an index is outside.
    """
    if not isinstance(view, TensorView):
        raise CompileError(f"{what}: needs a tensor parameter, not {what_is(view)}")
    parts = indices if isinstance(indices, tuple) else (indices,)
    for part in parts:
        whole = isinstance(part, Tile) and not dtypes.is_float(part.dtype) and part.dtype != dtypes.bool_
        if not whole and scalar_kind(part) is not int:
            shown = f"a {part.dtype.name} tile" if isinstance(part, Tile) else what_is(part)
            raise CompileError(f"{what}: indices are integer tiles and ints, one for each dimension of the tensor, not {shown}")
    if len(parts) != view.ndim:
        raise CompileError(f"{what}: {len(parts)} indices for {view.name}, which has {view.ndim} dimensions")
    shape = common_shape(what, [part.shape if isinstance(part, Tile) else () for part in parts])
    columns = [np.broadcast_to(part._array if isinstance(part, Tile) else np.asarray(int(part)), shape) for part in parts]
    chosen = mask_of(mask, shape, what)
    if chosen is None:
        chosen = np.ones(shape, np.bool_)
    inside = chosen
    for index, extent in zip(columns, view.shape, strict=True):
        inside = inside & (index >= 0) & (index < extent)
    if not np.array_equal(inside, chosen):
        at = tuple(np.argwhere(chosen & ~inside)[0])
        wrong = tuple(int(index[at]) for index in columns)
        raise DeviceError(
            f"{what}: index {wrong if len(wrong) > 1 else wrong[0]} is outside {view.name}, a tensor of shape {view.shape}"
        )
    return Points(shape, tuple(index[chosen].astype(np.int64) for index in columns), chosen)


def written(view: TensorView, what: str) -> None:
    """Refuse to write a tensor that the kernel only reads."""
    if not view.writable:
        raise CompileError(f"{what}: {read_only(view.name)}")


def values_of(view: TensorView, value: Any, shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """A value for each of the indices: a tile that broadcasts to their shape, or a scalar."""
    if isinstance(value, Tile) and common_shape(what, [value.shape, shape]) != shape:
        raise CompileError(f"{what}: a tile of shape {value.shape} for indices of shape {shape}")
    return np.broadcast_to(storable(view, value, what), shape)


def _in_parameter(view: TensorView, places: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    """Indices of a slice as those of the parameter that it is a slice of."""
    return tuple(index + at for index, at in zip(places, view._origin, strict=True)) if view._origin else places


@tile_op("gather", host="numpy.take")
def gather(
    array: TensorView, indices: Any, *, mask: Any = None, padding_value: Any = 0, eviction_policy: str = "evict_normal"
) -> Tile:
    """Read elements of a tensor by index.

    Args:
        array: a tensor parameter of the kernel.
        indices: an integer tile or scalar for each dimension of `array`, in a tuple (of one dimension, also without). They
            broadcast, and the result has their shape: `t[i, j] = array[rows[i, j], columns[i, j]]`. Indices count elements;
            negative ones are outside.
        mask: a bool tile that broadcasts to that shape; where it is False nothing is read.
        padding_value: a scalar, or a tile that broadcasts to that shape: what the result has where the mask is False, and on a
            GPU where an index is outside.
        eviction_policy: as for `tk.load`.

    Raises:
        CompileError: indices or mask do not fit the tensor or each other, or the tensor is written only.
        DeviceError: on the CPU device, and under `TILEKIT_CHECKS=1` on a GPU, an index outside the tensor that the mask leaves;
            under `TILEKIT_CHECKS=1` on the CPU device also an element that nobody has written.

    Examples:
        >>> @tk.kernel
        ... def pick(y: tk.Out, x: tk.In, where: tk.In):
        ...     y.store(tk.gather(x, tk.load_tile_like(where, y)))
        >>> x, where = api.arange(10, dtype=tk.float32), api.from_host(np.array([7, 1, 1, 9], np.int32))
        >>> pick(api.zeros(4).partition(4), x, where).out().sync().numpy()
        array([7., 1., 1., 9.], dtype=float32)
    """
    check_eviction(eviction_policy, "gather")
    targets = points(array, indices, mask, "gather")
    if not array.readable:
        raise CompileError(f"gather: {written_only(array.name)}")
    fill = padding_value
    if isinstance(padding_value, Tile):
        fill = padding_tile(array, padding_value, targets.shape, "gather")
    elif scalar_kind(padding_value) is None:
        raise CompileError(f"gather: padding_value is a scalar or a tile, not {what_is(padding_value)}")
    elif problem := dtypes.unfit_padding(array.dtype, padding_value, array.name):
        raise CompileError(f"gather: {problem}")
    if array._shadow is not None:
        array._shadow.check_points(targets.places, "gather", array.name)
    if array._touched is not None:
        array._touched.read(_in_parameter(array, targets.places), None, block.running_one(), array.name)
    elements = np.full(targets.shape, convert(fill, array.dtype))
    elements[targets.chosen] = array._elements[targets.places]
    return Tile(elements)


@tile_op("scatter")
def scatter(array: TensorView, indices: Any, value: Any, *, mask: Any = None, eviction_policy: str = "evict_normal") -> None:
    """Write elements of a tensor by index.

    No two blocks may write one element, which is an error on the CPU device under `TILEKIT_CHECKS=1`; where a block has an index
    twice, either value may stay. `tk.atomic_add` and its like are for indices that meet.

    Args:
        array: a partition, or a tensor that is passed as `y.scattered()`, of which no block owns a tile.
        indices: as for `tk.gather`.
        value: a tile that broadcasts to the shape of the indices, in a dtype that the tensor's holds without loss; or a scalar.
        mask: a bool tile that broadcasts to that shape; where it is False nothing is written.
        eviction_policy: as for `tk.store`.

    Raises:
        CompileError: indices, value or mask do not fit the tensor or each other, or the tensor is only read.
        DeviceError: on the CPU device, an index outside the tensor that the mask leaves. A GPU writes nothing there; under
            `TILEKIT_CHECKS=1` it is an error there, too.

    Examples:
        >>> @tk.kernel
        ... def reverse(y: tk.Out, x: tk.In):
        ...     place = tk.bid(0) * 4 + tk.arange(4)
        ...     tk.scatter(y, y.shape[0] - 1 - place, tk.load(x, tk.bid(0), 4))
        >>> x = api.arange(8, dtype=tk.float32)
        >>> reverse(api.zeros(8).scattered(), x).grid(2).out().sync().numpy()
        array([7., 6., 5., 4., 3., 2., 1., 0.], dtype=float32)
    """
    check_eviction(eviction_policy, "scatter")
    targets = points(array, indices, mask, "scatter")
    written(array, "scatter")
    values = values_of(array, value, targets.shape, "scatter")
    if array._touched is not None:
        array._touched.write(_in_parameter(array, targets.places), None, block.running_one(), array.name)
    array._elements[targets.places] = values[targets.chosen]
    if array._shadow is not None:
        array._shadow.write_points(targets.places)
