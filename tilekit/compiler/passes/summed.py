"""Dimensions that threads sum over by themselves: across these they read operands in shared memory.

A thread that multiplies and adds float32 by itself (`nvidia.fma`) takes, for each `k`, neighbouring rows of `a` and neighbouring
columns of `b`, 16 bytes at a time. Neighbours along `k` would do as well for the accesses, but not for the registers: these are
in two banks, by whether their number is even, and so all of a `k` would be in one, which is read once in a clock.

Legal always: where a tile lies in a stage changes no element. A tile whose `k` is the dimension without gaps is transposed on its
way, which costs those that load more copies; so it is asked for only where all that reads the tile are such products, and each of
its elements is read many times.
"""

from __future__ import annotations

from tilekit import dtypes
from tilekit.compiler.ir.nodes import Constant, Operation, Region, Value, values_of
from tilekit.compiler.ir.products import product_of
from tilekit.compiler.ir.types import TileType
from tilekit.compiler.passes.factors import is_view

__all__ = ["summed_along"]


def summed_along(loop: Operation) -> list[int]:
    """For each stream of a loop, which dimension of its tiles is summed over so, counted from the end; 0 if there is none."""
    (body,) = loop.regions
    return [_of(tile, body) for tile in body.parameters[: len(body.parameters) - len(loop.carried)]]


def _of(tile: Value, body: Region) -> int:
    handed_on = any(tile in values_of(operand) for region in body.regions() for operand in region.operands)
    ways = {0} if handed_on else {_by(reader, tile, body) for reader in body.walk() if tile in reader.reads()}
    return ways.pop() if len(ways) == 1 else 0


def _by(reader: Operation, tile: Value, body: Region) -> int:
    """The same of one operation that reads a tile."""
    if is_view(reader):  # dimensions of extent 1 before a matrix come and go
        result = reader.results[0]
        return _of(result, body) if _matrix(result) is not None and _matrix(result) == _matrix(tile) else 0
    product = product_of(reader)
    if product is None or product.total is tile or product.options.get("precision", _EXACT) != _EXACT:
        return 0
    operands = product.a, product.b
    types = [x.type for x in operands if isinstance(x, Value)]
    matrices = [type_ for type_ in types if isinstance(type_, TileType) and type_.dtype == dtypes.float32]
    if len(matrices) < 2 or product.a is product.b or min(matrices[0].shape[-2], matrices[1].shape[-1]) < _LEAST:
        return 0
    return -1 if product.a is tile else -2


_EXACT = Constant("ieee")
_LEAST = 64  # rows and columns of a product that takes so long that more copies are no matter


def _matrix(tile: Value) -> tuple[int, ...] | None:
    """The extents of a tile that is a matrix, but for dimensions of extent 1 before it."""
    shape = tile.type.shape if isinstance(tile.type, TileType) else ()
    return shape[-2:] if len(shape) >= 2 and all(n == 1 for n in shape[:-2]) else None
