"""Operations that read an element of a tensor, change it and write it back with nobody in between.

The indices of several blocks, and those of one tile, may name the same element. The order in which they take their turn is
chance, and with it the last bits of a sum of floats; within a tile, a CPU device goes in row-major order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import block
from tilekit.lang.indexed import Points, points, values_of, written
from tilekit.lang.memory import tensor
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Tile, what_is
from tilekit.lang.views import TensorView
from tilekit.lang.windows import check_window, storable, tile_index, window_of, written_only

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = [
    "ORDERS", "SCOPES", "atomic_add", "atomic_add_tile", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_xchg", "atomic_xor", "one_of", "unsupported",
]  # fmt: skip

_one_at_a_time = threading.Lock()  # blocks of several streams are interpreted at the same time

ORDERS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("block", "device", "system")

_WORDS = (dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64)
_FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
_TAKEN: dict[str, tuple[dtypes.DType, ...]] = {
    "add": (*_WORDS, *_FLOATS),
    "max": (*_WORDS, *_FLOATS),
    "min": (*_WORDS, *_FLOATS),
    "and": _WORDS,
    "or": _WORDS,
    "xor": _WORDS,
    "xchg": (*_WORDS, dtypes.float32, dtypes.float64),
    "cas": (*_WORDS, dtypes.float32, dtypes.float64),
}


def unsupported(name: str, dtype: dtypes.DType, tensor: str) -> str | None:
    """Why there is no such operation on elements of `dtype`; None if there is."""
    taken = _TAKEN[name.removeprefix("atomic_")]
    if dtype in taken:
        return None
    return f"{tensor} holds {dtype.name}; there are atomics of this kind for {', '.join(d.name for d in taken)}"


def one_of(value: Any, names: tuple[str, ...], what: str, which: str) -> str:
    """`value`, which must be one of `names`."""
    if value not in names:
        raise CompileError(f"{what}: {which} is one of {', '.join(map(repr, names))}, not {value!r}")
    return str(value)


Change = Callable[..., Any]


def _atomic(
    what: str, array: TensorView, indices: Any, values: tuple[Any, ...], mask: Any, order: Any, scope: Any, change: Change
) -> Tile:
    """Change the elements, and give what they were; 0 where the mask is False.

    Args:
        change: of what elements are, and the values for them: what they become.
    """
    one_of(order, ORDERS, what, "memory_order")
    one_of(scope, SCOPES, what, "memory_scope")
    targets = points(array, indices, mask, what)
    _check_tensor(what, what, array)
    operands = [values_of(array, value, targets.shape, what).astype(array.dtype)[targets.chosen] for value in values]
    if array._shadow is not None:
        array._shadow.check_points(targets.places, what, array.name)
    before: NDArray[Any] = np.zeros(targets.shape, array.dtype)
    with _one_at_a_time:
        before[targets.chosen] = _in_turns(array._elements, targets, operands, change)
    if scope == "system" and order in ("acquire", "acq_rel"):
        time.sleep(0)  # who looks for what other devices say may wait for one that waits for Python's lock
    return Tile(before)


def _check_tensor(what: str, name: str, array: TensorView) -> None:
    block.running_one().ordered = True
    written(array, what)
    if not array.readable:
        raise CompileError(f"{what}: {written_only(array.name)}")
    if problem := unsupported(name, array.dtype, array.name):
        raise CompileError(f"{what}: {problem}")


def _in_turns(elements: NDArray[Any], targets: Points, values: list[NDArray[Any]], change: Change) -> NDArray[Any]:
    """Apply `change` for one index after the other: first the first of each element, then the second of each..."""
    count = len(targets.places[0])
    flat = np.ravel_multi_index(targets.places, elements.shape)
    order = np.argsort(flat, kind="stable")
    starts = np.flatnonzero(np.diff(flat[order], prepend=-1))
    turns = np.empty(count, np.int64)
    turns[order] = np.arange(count) - np.repeat(starts, np.diff(starts, append=count))
    before = np.empty(count, elements.dtype)
    for turn in range(int(turns.max(initial=-1)) + 1):
        now = np.flatnonzero(turns == turn) if turn or len(starts) < count else slice(None)
        at = tuple(index[now] for index in targets.places)
        before[now] = elements[at]
        elements[at] = change(before[now], *(value[now] for value in values))
    return before


def _define(name: str, says: str, change: Any, example: str) -> Callable[..., Tile]:
    what = f"atomic_{name}"

    def function(
        array: TensorView,
        indices: Any,
        value: Any,
        *,
        mask: Any = None,
        memory_order: str = "relaxed",
        memory_scope: str = "device",
    ) -> Tile:
        return _atomic(what, array, indices, (value,), mask, memory_order, memory_scope, change)

    function.__module__ = __name__
    function.__name__ = function.__qualname__ = what
    function.__doc__ = _DOC.format(says=says, example=example, dtypes=_listed(_TAKEN[name]))
    return tile_op(what)(function)


def _listed(taken: tuple[dtypes.DType, ...]) -> str:
    return ", ".join(dtype.name for dtype in taken)


_DOC = """{says}

    Args:
        array: a tensor that the kernel reads and writes, of {dtypes}: a partition, or one that is passed as `y.scattered()`, of
            which no block owns a tile.
        indices: as for `tk.gather`; any number of them may name the same element.
        value: a tile that broadcasts to the shape of the indices, in a dtype that the tensor's holds without loss; or a scalar.
        mask: a bool tile that broadcasts to that shape; where it is False nothing happens, and the result is 0.
        memory_order: `"relaxed"`; `"acquire"`: what the block does next comes after it, and sees what was released there;
            `"release"`: what the block wrote before is seen by who acquires; `"acq_rel"`: both.
        memory_scope: among whom: the threads of the `"block"`, the whole `"device"`, or the `"system"` with host and other GPUs.

    Returns:
        What the elements were before, of the shape of the indices. Nothing is fetched where it is not used.

    Raises:
        CompileError: indices, value or mask do not fit the tensor or each other, the tensor is not both read and written
            (`InOut`), or there is no such operation on its dtype.
        DeviceError: on the CPU device, an index outside the tensor that the mask leaves. A GPU does nothing there; under
            `TILEKIT_CHECKS=1` it is an error there, too.

    Examples:
{example}
    """


def _histogram(name: str, start: str, values: str, expected: str) -> str:
    """An example: four values at two places."""
    lines = [
        ">>> @tk.kernel",
        "... def apply(y: tk.InOut, where: tk.In, values: tk.In):",
        f"...     tk.atomic_{name}(y, tk.load(where, tk.bid(0), 2), tk.load(values, tk.bid(0), 2))",
        f">>> y = api.full(2, {start}, tk.int32)",
        ">>> where = api.from_host(np.array([0, 1, 1, 1], np.int32))",
        f">>> values = api.from_host(np.array({values}, np.int32))",
        ">>> apply(y.scattered(), where, values).grid(2).out().sync().numpy()",
        f"array({expected}, dtype=int32)",
    ]
    return "\n".join(f"        {line}" for line in lines)


def _extreme(function: Any) -> Change:
    """NumPy's, in bfloat16 too: a NaN stays."""

    def choose(a: NDArray[Any], b: NDArray[Any]) -> Any:
        wide = a.dtype == dtypes.bfloat16
        return function(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype) if wide else function(a, b)

    return choose


def _says(verb: str) -> str:
    return f"{verb}, with nobody in between."


_FLUSHES = """

    A GPU's instruction for float32 (PTX `atom.add.f32` and `red.add.f32` on global memory) takes subnormal operands, and gives
    subnormal sums, as zeros of the same sign. The CPU device keeps them, and so do all devices for the other dtypes."""

atomic_add = _define(
    "add", _says("Add values to elements of a tensor") + _FLUSHES, np.add, _histogram("add", "0", "[5, 1, 2, 3]", "[5, 6]")
)
atomic_max = _define(
    "max",
    _says("Raise elements of a tensor to the larger of themselves and a value; a NaN stays"),
    _extreme(np.maximum),
    _histogram("max", "2", "[1, 4, 7, 3]", "[2, 7]"),
)
atomic_min = _define(
    "min",
    _says("Lower elements of a tensor to the smaller of themselves and a value; a NaN stays"),
    _extreme(np.minimum),
    _histogram("min", "2", "[1, 4, 7, 3]", "[1, 2]"),
)
atomic_and = _define(
    "and",
    _says("Clear bits of elements of a tensor: keep those that a value has, too"),
    np.bitwise_and,
    _histogram("and", "15", "[3, 7, 14, 31]", "[3, 6]"),
)
atomic_or = _define(
    "or", _says("Set bits of elements of a tensor"), np.bitwise_or, _histogram("or", "0", "[1, 1, 4, 8]", "[ 1, 13]")
)
atomic_xor = _define(
    "xor", _says("Flip bits of elements of a tensor"), np.bitwise_xor, _histogram("xor", "0", "[1, 3, 6, 8]", "[ 1, 13]")
)
atomic_xchg = _define(
    "xchg",
    _says("Exchange elements of a tensor for values"),
    lambda before, value: value,
    _histogram("xchg", "0", "[4, 5, 5, 5]", "[4, 5]"),
)


@tile_op("atomic_cas")
def atomic_cas(
    array: TensorView,
    indices: Any,
    expected: Any,
    desired: Any,
    *,
    mask: Any = None,
    memory_order: str = "relaxed",
    memory_scope: str = "device",
) -> Tile:
    """Set elements of a tensor to `desired` if they are `expected`, with nobody in between. Floats are compared by their bits.

    Args:
        array: as for `tk.atomic_add`, of int32, uint32, int64, uint64, float32, float64.
        indices, mask, memory_order, memory_scope: as for `tk.atomic_add`.
        expected, desired: tiles that broadcast to the shape of the indices, in a dtype that the tensor's holds without loss; or
            scalars.

    Returns:
        What the elements were before: where that is `expected`, it was replaced.

    Raises:
        CompileError, DeviceError: as `tk.atomic_add`.

    Examples:
        >>> @tk.kernel
        ... def fill_gaps(y: tk.InOut, values: tk.In):
        ...     tk.atomic_cas(y, tk.arange(4), 0, tk.load(values, 0, 4))
        >>> y = api.from_host(np.array([7, 0, 0, 4], np.int32)).sync()
        >>> values = api.from_host(np.array([1, 2, 3, 5], np.int32))
        >>> fill_gaps(y.scattered(), values).grid(1).out().sync().numpy()
        array([7, 2, 3, 4], dtype=int32)
    """

    def change(before: NDArray[Any], wanted: NDArray[Any], new: NDArray[Any]) -> Any:
        bits = f"u{before.dtype.itemsize}"
        return np.where(before.view(bits) == wanted.view(bits), new, before)

    return _atomic("atomic_cas", array, indices, (expected, desired), mask, memory_order, memory_scope, change)


@tile_op("atomic_add_tile")
def atomic_add_tile(array: TensorView, index: Any, tile: Tile) -> None:
    """Add a tile to a tile of a tensor, element by element, with nobody in between.

    It is to `tk.atomic_add` what `tk.store` is to `tk.scatter`: the index is that of a tile, and a GPU adds vectors where it can
    (PTX `red.global.add.v4.f32` and its like, on sm_90). The order is relaxed, the scope the device. Subnormal numbers of float32
    are zeros on a GPU, as for `tk.atomic_add`.

    Args:
        array: a tensor that the kernel reads and writes, of the dtypes of `tk.atomic_add`: a partition, or one that is
            passed as `y.scattered()`, of which no block owns a tile.
        index: which tile, counted in tiles along each dimension. Any number of blocks may add to the same one.
        tile: of any shape with as many dimensions as `array`, in a dtype that the tensor's holds without loss; what hangs over
            the edge is dropped. One of shape `()` is added to one element, and the index counts elements.

    Raises:
        CompileError: index or tile do not fit the tensor, the tensor is not both read and written (`InOut`), or there is no such
            operation on its dtype.
        DeviceError: on the CPU device, an index outside the tensor, or, under `TILEKIT_CHECKS=1`, an element that nobody has
            written. A GPU adds nothing outside; under `TILEKIT_CHECKS=1` it is an error there, too.

    Examples:
        >>> @tk.kernel
        ... def total(y: tk.InOut, x: tk.In):
        ...     tk.atomic_add_tile(y, 0, tk.load(x, tk.bid(0), 2))
        >>> y, x = api.zeros(2), api.arange(6, dtype=tk.float32)
        >>> total(y.scattered(), x).grid(3).out().sync().numpy()
        array([6., 9.], dtype=float32)
    """
    what = "atomic_add_tile"
    view = tensor(array, what)
    _check_tensor(what, "add", view)
    if not isinstance(tile, Tile):
        raise CompileError(f"{what}: adds a tile, not {what_is(tile)}")
    where = tile_index(view, index, what)
    extents, _ = check_window(tile.shape, view.ndim, view.name, what)
    values = storable(view, tile, what).astype(view.dtype).reshape(extents)
    window = window_of(view, where, extents, extents, what)
    if view._shadow is not None:
        view._shadow.check(window, what, view.name)
    inside = view._elements[window]
    with _one_at_a_time:
        inside += values[tuple(map(slice, inside.shape))]
