"""Rows of a table by index (an embedding), and the gradient: rows added up by index.

The forward pass is a copy. Of long rows a block reads an index, and then a part of that row, 16 bytes a thread. Short ones, and
those that are no whole number of 16 bytes, are written one behind the other, each block a piece of the whole; their elements are
looked up one by one, as the widest integers that a row is a whole number of. In the backward pass several rows may go to one
place, so they are added by atomic operations, in float32; the order in which they meet, and with it the last bits of the result,
differs from run to run on a GPU. Of a 16-bit table that is larger than what is added, float32 sums for all of its rows would be
most of the work: there are as many rows of sums as indices, and the first index of each row of the table takes one of them.
"""

from __future__ import annotations

from typing import Any

import tilekit as tk
from tilekit import api
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    a_tensor,
    check,
    compute_dtype,
    index_dtype,
    integers,
    on_cpu,
    out_or_new,
    power,
    shaped,
    takes_ops,
)
from tilekit.kernels._tiles import flat_tile, rows_tile
from tilekit.ops import DeviceOp, Spec

__all__ = ["embedding", "embedding_backward"]

# Bytes of a row that is worth a block of its own: an H200 starts 1.65 blocks in a nanosecond, which copy 3.4 TB/s of 1 KiB each.
_LONG = 2048
_BY_ELEMENTS = 8192  # bytes of a block's piece where elements are looked up one by one
_ALIGNED = 4  # float32 elements: where rows of sums begin
_WORDS = (tk.int64, tk.int32, tk.int16, tk.int8)


@tk.kernel
def _embedding(y: tk.Out, table: tk.In, ids: tk.In):
    row = tk.load(ids, tk.bid(0), ())
    y.store(tk.load(table, (row, tk.bid(1)), y.tile_shape))


@tk.kernel
def _embedding_by_elements(y: tk.Out, table: tk.In, ids: tk.In, width: tk.Const, index: tk.Const):
    (tile,) = y.tile_shape
    at = tk.arange(tile, dtype=index) + tk.bid(0) * tile
    row = at // width
    inside = row < ids.shape[0]
    y.store(tk.gather(table, (tk.gather(ids, row, mask=inside), at % width), mask=inside))


@tk.kernel
def _embedding_backward(total: tk.InOut, dy: tk.In, ids: tk.In, rows: tk.Const, columns: tk.Const, index: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    at, column = tk.load(ids, i, rows)[:, None], (tk.arange(columns, dtype=index) + j * columns)[None, :]
    mask = (column < dy.shape[1]) & ((tk.arange(rows, dtype=index) + i * rows)[:, None] < dy.shape[0])
    tk.atomic_add(total, (at, column), tk.load(dy, (i, j), (rows, columns)).astype(total.dtype), mask=mask)


@tk.kernel
def _add_to_owners(owners: tk.InOut, sums: tk.InOut, dy: tk.In, ids: tk.In, rows: tk.Const, columns: tk.Const, index: tk.Const):
    """`owners` has one more than the row of `sums` that a row of the table has got, 0 if it has none."""
    i, j = tk.bid(0), tk.bid(1)
    place, column = tk.arange(rows, dtype=index) + i * rows, (tk.arange(columns, dtype=index) + j * columns)[None, :]
    mine = (place + 1).astype(owners.dtype)
    owner = tk.atomic_cas(owners, tk.load(ids, i, rows), 0, mine, mask=place < dy.shape[0])
    at = tk.where(owner == 0, mine, owner) - 1
    mask = (column < dy.shape[1]) & (place < dy.shape[0])[:, None]
    tk.atomic_add(sums, (at[:, None], column), tk.load(dy, (i, j), (rows, columns)).astype(sums.dtype), mask=mask)


@tk.kernel
def _sums_of_owners(y: tk.Out, sums: tk.In, owners: tk.In, index: tk.Const):
    rows, columns = y.tile_shape
    owner = tk.load(owners, tk.bid(0), rows)
    if tk.max(owner).item() == 0:
        y.store(tk.zeros((rows, columns), y.dtype))
    else:
        column = (tk.arange(columns, dtype=index) + tk.bid(1) * columns)[None, :]
        mask = (owner > 0)[:, None] & (column < y.shape[1])
        y.store(tk.gather(sums, ((owner - 1)[:, None], column), mask=mask).astype(y.dtype))


@tk.kernel
def _sums_by_elements(y: tk.Out, sums: tk.In, owners: tk.In, width: tk.Const, index: tk.Const):
    (tile,) = y.tile_shape
    at = tk.arange(tile, dtype=index) + tk.bid(0) * tile
    row = at // width
    owner = tk.gather(owners, row, mask=row < owners.shape[0])
    y.store(tk.gather(sums, (owner - 1, at % width), mask=owner > 0).astype(y.dtype))


@takes_ops
def embedding(table: Operand, ids: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The rows `table[ids]`.

    Args:
        table: a matrix of any dtype; or an op that produces one.
        ids: a tensor of int32 or int64: indices of rows. One that is outside gives zeros on a GPU, and is an error on the CPU
            device.
        out: where the result goes; by default a new tensor.

    Returns:
        An op whose result is a tensor of the dtype of `table`, and of the shape of `ids` with a dimension for the row behind it.

    Raises:
        TypeError, ValueError: other arguments.
    """
    _check("embedding", table, ids)
    shape = (*ids.shape, table.shape[1])
    destination = shaped(out_or_new("embedding", out, table, shape, table.dtype), (ids.size, table.shape[1]))
    width, limit = power(table.shape[1]), max(1, 8192 // table.itemsize)
    columns, rows = min(width, limit), shaped(ids, (ids.size,))

    word = None if on_cpu(table) else _word(table, destination)

    def steps(new):
        y = new(destination)
        if word is not None:
            elements = y.reshape(-1).reinterpret(word)
            tile, count = _BY_ELEMENTS // word.itemsize, table.shape[1] * table.itemsize // word.itemsize
            index = index_dtype(elements.size)
            yield _embedding_by_elements(elements.partition(tile), table.reinterpret(word), rows, count, index)
            return shaped(y, shape) if out is None else out
        launch = _embedding(y.partition((1, columns)), table, rows)
        yield launch.num_warps(max(1, min(8, columns * table.itemsize // 1024)))
        return shaped(y, shape) if out is None else out

    return Launches(table, steps, Spec(shape, table.dtype))


@takes_ops
def embedding_backward(grad: Operand, ids: Operand, rows: int) -> DeviceOp[Tensor]:
    """The gradient of `embedding` by the table: zeros, with each row of `grad` added to the row of its index.

    Args:
        grad: the gradient by the result.
        ids: what `embedding` was given.
        rows: how many rows the table has.

    Returns:
        An op whose result is a tensor of the dtype of `grad`, of `rows` rows.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "embedding_backward"
    check(name, grad=grad)
    integers(name, ids=ids)
    if grad.shape[:-1] != ids.shape or not grad.shape:
        raise ValueError(f"{name}: grad has shape {grad.shape}, ids {ids.shape}; a row of grad belongs to each index")
    if type(rows) is not int or rows < 0:
        raise ValueError(f"{name}: rows is a number of rows, not {rows!r}")
    count, width = ids.size, grad.shape[-1]
    columns = min(1024, power(width))
    high = min(power(count), max(1, (1 << 15 if on_cpu(grad) else 1024) // columns))
    flat, at = grad.reshape(count, width), ids.reshape(count)
    dtype = compute_dtype(grad.dtype)

    index, grid, result = index_dtype(count, width), (-(-count // high), -(-width // columns), 1), Spec((rows, width), grad.dtype)

    def steps(new):
        total = yield api.zeros((rows, width), dtype)
        yield _embedding_backward(total.scattered(), flat, at, high, columns, index).grid(grid)
        return total if dtype == grad.dtype else (yield tk.value(total).astype(grad.dtype))

    def steps_of_few(new):
        begin = -(-rows // _ALIGNED) * _ALIGNED  # one tensor, for one launch sets it to zero
        zeros = yield api.zeros(begin + count * width, dtype)
        owners, sums = zeros[:rows].reinterpret(tk.int32), zeros[begin:].reshape(count, width)
        yield _add_to_owners(owners.scattered(), sums.scattered(), flat, at, high, columns, index).grid(grid)
        y = new(result)
        if width * grad.itemsize % 16:
            elements, tile = y.reshape(-1), _BY_ELEMENTS // grad.itemsize
            yield _sums_by_elements(elements.partition(tile), sums, owners, width, index_dtype(elements.size))
        else:
            yield _sums_of_owners(y.partition(rows_tile(y.shape, flat_tile(y))), sums, owners, index)
        return y

    # By the bytes that are moved: the sums of all rows are cleared, read and converted; those of few are cleared, added to, read.
    few = dtype != grad.dtype and 0 < count < 0.8 * rows and width
    return Launches(grad, steps_of_few if few else steps, result)


def _word(table: Tensor, destination: Any) -> Any:
    """As what the elements of short rows, and of those that are no whole number of 16 bytes, are looked up; None for others."""
    nbytes = table.shape[1] * table.itemsize
    if not nbytes or (nbytes % 16 == 0 and nbytes >= _LONG) or table.strides[1] != 1:
        return None
    if isinstance(destination, Tensor) and not destination.is_contiguous:
        return None
    units = [nbytes, table.strides[0] * table.itemsize]
    for tensor in (table, destination):
        if isinstance(tensor, Tensor):
            units += [tensor.align, tensor.offset * tensor.itemsize]
    return next(dtype for dtype in _WORDS if all(unit % dtype.itemsize == 0 for unit in units))


def _check(name, table, ids):
    a_tensor(name, table=table)
    integers(name, ids=ids)
    if len(table.shape) != 2:
        raise ValueError(f"{name}: the table is a matrix, whose rows are looked up; this has shape {table.shape}")
