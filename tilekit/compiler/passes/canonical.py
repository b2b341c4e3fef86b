"""Canonical form: of several ways to write an operation, the one that other passes look for.

    x.tiles(shape)[i, j]                tk.load(x, (i, j), shape)
    tk.reshape(x, s), tk.astype(x, t)   x.reshape(s), x.astype(t); tk.transpose and tk.permute, too
    tk.load(x, index=i, shape=s)        tk.load(x, i, s), and so other calls; options that are what they are anyway are left out
    tk.less(x, y), tk.logical_and(a, b) x < y, a & b, of tiles, and of those of bools
    x - -y                              x + y, of tiles
    tk.where(a > b, -inf, x)            tk.where(a <= b, x, -inf), of comparisons of integers
    tk.where(c | d, -inf, x)            tk.where(~(c | d), x, -inf), of what `Conditions` knows
    x + tk.where(m, 0.0, -inf)          tk.where(m, x, -inf); and tk.where(m, x, x - 1e30), where that is what is added
    tk.load(x, (i,), (1,)).item()       tk.load(x, (i,), ()).item(), which one thread can do

and for products, which read tiles in stages whichever way they lie (`load_as_it_lies`):

    tk.load(x, (i, j), s, order="F")    tk.load(x, (j, i), s[::-1]).permute((1, 0))
    v.load(i), of x.tiled_view(s)       tk.load(x, i, s); and v.num_tiles(axis)

Legal for all kernels: each pair is the same operation, or computes the same number; what `tk.where` says of sums says its text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilekit import dtypes
from tilekit.compiler.ir.constants import constant_of, dtype_constant, number_of
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.symbols import INVERSE
from tilekit.compiler.ir.types import ObjectType, ScalarType, TileType
from tilekit.compiler.passes.conditions import Conditions
from tilekit.lang import comparison, elementwise, memory, shape
from tilekit.lang.registry import OPS
from tilekit.lang.views import TiledView
from tilekit.lang.windows import check_order

__all__ = ["canonicalize", "load_as_it_lies"]

_METHODS = {
    shape.reshape: "reshape",
    shape.transpose: "transpose",
    shape.permute: "permute",
    elementwise.astype: "astype",
}
_OPERATORS = {
    comparison.less: ("compare", "<"),
    comparison.less_equal: ("compare", "<="),
    comparison.greater: ("compare", ">"),
    comparison.greater_equal: ("compare", ">="),
    comparison.logical_and: ("binary", "&"),
    comparison.logical_or: ("binary", "|"),
    comparison.logical_not: ("unary", "~"),
}
_LOAD, _NUM_TILES = Constant(memory.load, "load"), Constant(memory.num_tiles, "num_tiles")


def canonicalize(kernel: Region) -> None:
    """Bring the operations of a kernel into this form."""
    defined = definitions(kernel)
    for operation in kernel.walk():
        if operation.kind == "call" and isinstance(operation.what, Constant):
            _bind(operation)
    _load_elements(kernel)
    for region in kernel.regions():
        for operation in list(region.operations):
            if operation.kind == "item":
                _load_of_grid(operation, defined)
            elif operation.kind == "call" and isinstance(operation.what, Constant):
                if operation.what.value in _METHODS and not operation.keywords:
                    operation.kind, operation.what = "method", _METHODS[operation.what.value]
                    _drop_cast(operation, region, kernel)
                elif operation.what.value in _OPERATORS and not operation.keywords:
                    _write_as_operator(operation)
                elif operation.what.value is elementwise.where and not operation.keywords:
                    _turn(operation, region, defined)
            elif (operation.kind, operation.what) == ("method", "astype"):
                _drop_cast(operation, region, kernel)
            elif (operation.kind, operation.what) == ("binary", "-"):
                _add_negative(operation, kernel, defined)
            elif (operation.kind, operation.what) == ("binary", "+") and _choose(operation, region, defined):
                _turn(operation, region, defined)


def load_as_it_lies(kernel: Region) -> None:
    """Let tiles that are loaded in another order be turned, and windows that are tiles be loaded as such."""
    defined = definitions(kernel)
    for region in kernel.regions():
        for operation in list(region.operations):
            if operation.kind == "method" and operation.what in ("load", "num_tiles"):
                _of_view(operation, defined)
            elif operation.kind == "call" and operation.what.value is memory.load and operation.keywords.keys() == {"order"}:
                _load_in_order(operation, region, defined)


def _bind(call: Operation) -> None:
    """Let arguments of the language's operations stand in their places, and options be left out that are what they are anyway."""
    row = OPS.get(getattr(call.what.value, "__name__", ""))
    if row is None or row.function is not call.what.value or not call.keywords:
        return
    bound, parameters = row.signature.bind(*call.operands, **call.keywords), row.signature.parameters
    call.operands = list(bound.args)
    call.keywords = {name: value for name, value in bound.kwargs.items() if value != Constant(parameters[name].default)}
    if call.what.value is memory.load and "padding_mode" not in call.keywords:
        tile = call.results[0].type
        real = isinstance(tile, TileType) and dtypes.is_float(tile.dtype)
        if call.keywords.get("padding_value") in ([Constant(0), Constant(0.0)] if real else [Constant(0)]):
            del call.keywords["padding_value"]  # they stand there anyway


def _add_negative(difference: Operation, kernel: Region, defined: Mapping[Value, Operation]) -> None:
    """Add what the negative of is subtracted."""
    first, second = difference.operands
    if not isinstance(second, Value) or not isinstance(second.type, TileType):
        return
    negative = defined.get(second)
    if negative is None or (negative.kind, negative.what) != ("unary", "-"):
        return
    difference.what, difference.operands = "+", [first, negative.operands[0]]
    ends = (value for region in kernel.regions() for operand in region.operands for value in values_of(operand))
    if second not in ends and all(second not in operation.reads() for operation in kernel.walk()):
        region = next(region for region in kernel.regions() if negative in region.operations)
        region.operations.remove(negative)


def _of_view(method: Operation, defined: Mapping[Value, Operation]) -> None:
    view = defined.get(method.operands[0]) if isinstance(method.operands[0], Value) else None
    made = view.results[0].type if view is not None and view.what == "tiled_view" else None
    if view is None or not isinstance(made, ObjectType) or not isinstance(made.object, TiledView):
        return
    plain = len(view.operands) == 2 and not view.keywords and len(method.operands) == 2 and not method.keywords
    if plain and made.object.tile_shape == made.object.traversal_steps:
        what = _LOAD if method.what == "load" else _NUM_TILES
        method.kind, method.what, method.operands = "call", what, [view.operands[0], method.operands[1], view.operands[1]]


def _load_in_order(load: Operation, region: Region, defined: dict[Value, Operation]) -> None:
    """Load a tile as it lies, and then turn it."""
    (result,), order = load.results, constant_of(load.keywords["order"])
    tensor, index, shape_ = load.operands
    extents = constant_of(shape_)
    if order is None or extents is None or not isinstance(index, Group) or not isinstance(result.type, TileType):
        return
    rank = len(index.parts)
    if not isinstance(extents.value, tuple) or len(extents.value) != rank:
        return
    along = check_order(order.value, rank, "load")
    back = [along.index(d) for d in range(rank)]
    there = tuple(extents.value[d] for d in back)
    loaded = Value(result.name, TileType(result.type.dtype, there))
    load.operands = [tensor, Group(tuple(index.parts[d] for d in back)), Group(tuple(map(Constant, there)))]
    load.keywords, load.results = {}, [loaded]
    axes = Group(tuple(map(Constant, along)))
    turned = Operation("method", [loaded, axes], load.location, "permute", results=[result])
    region.operations.insert(region.operations.index(load) + 1, turned)
    defined.update({loaded: load, result: turned})


def _load_of_grid(item: Operation, defined: Mapping[Value, Operation]) -> None:
    grid = defined.get(item.operands[0]) if isinstance(item.operands[0], Value) else None
    if grid is None or (grid.kind, grid.what) != ("method", "tiles") or len(grid.operands) != 2 or grid.keywords:
        return
    if len(item.results) == 1 and isinstance(item.results[0].type, TileType) and item.pattern is None:
        tensor, extents = grid.operands
        item.kind, item.what, item.operands = "call", _LOAD, [tensor, item.operands[1], extents]


def _drop_cast(cast: Operation, region: Region, kernel: Region) -> None:
    """Leave out what makes a tile what it is."""
    tile, *_ = cast.operands
    if (
        cast.what == "astype"
        and isinstance(tile, Value)
        and isinstance(tile.type, TileType)
        and tile.type == cast.results[0].type
    ):
        region.operations.remove(cast)
        kernel.replace({cast.results[0]: tile})


def _write_as_operator(call: Operation) -> None:
    kind, symbol = _OPERATORS[call.what.value]
    tiles = [operand.type for operand in call.operands if isinstance(operand, Value) and isinstance(operand.type, TileType)]
    masks = len(tiles) == len(call.operands) and all(tile.dtype == dtypes.bool_ for tile in tiles)
    if masks or (kind == "compare" and any(tile.shape for tile in tiles)):
        call.kind, call.what = kind, symbol


def _load_elements(kernel: Region) -> None:
    """Let tiles of one element, of which nothing but the number is read, be loaded as elements."""
    numbers, others = set[Value](), {v for region in kernel.regions() for operand in region.operands for v in values_of(operand)}
    for operation in kernel.walk():
        (numbers if (operation.kind, operation.what) == ("method", "item") else others).update(operation.reads())
    for operation in kernel.walk():
        if operation.kind == "call" and operation.what.value is memory.load and not operation.keywords:
            (tile,) = operation.results
            alone = tile in numbers - others and len(operation.operands) == 3
            if alone and isinstance(tile.type, TileType) and set(tile.type.shape) == {1}:
                operation.operands[2], tile.type = Group(()), TileType(tile.type.dtype, ())


def _choose(sum_: Operation, region: Region, defined: dict[Value, Operation]) -> bool:
    """Let a mask that is added choose; whether there is one."""
    result = sum_.results[0].type
    for tile, other in (sum_.operands, sum_.operands[::-1]):
        where = defined.get(other) if isinstance(other, Value) else None
        if where is None or where.kind != "call" or where.what.value is not elementwise.where or where.keywords:
            continue
        mask, *numbers = where.operands
        at = next((n for n, number in enumerate(numbers) if number in (Constant(0), Constant(0.0))), None)
        other_number = None if at is None else number_of(numbers[1 - at], defined)
        if at is None or other_number is None or not isinstance(result, TileType) or not dtypes.is_float(result.dtype):
            continue
        known = isinstance(mask, Value) and Conditions(defined).of(mask, inverse=at == 1) is not None
        if other_number != -math.inf and not (math.isfinite(other_number) and known):
            continue
        if not isinstance(tile, Value) or not isinstance(tile.type, TileType) or tile.type.shape != result.shape:
            continue
        if tile.type != result:
            wide = Operation(
                "method", [tile, dtype_constant(result.dtype)], sum_.location, "astype", results=[Value("t", result)]
            )
            region.operations.insert(region.operations.index(sum_), wide)
            (tile,) = wide.results
        if other_number != -math.inf:
            less = Operation("binary", [tile, numbers[1 - at]], sum_.location, "+", results=[Value("t", result)])
            region.operations.insert(region.operations.index(sum_), less)
            (numbers[1 - at],) = less.results
        numbers[at] = tile
        sum_.kind, sum_.what, sum_.operands = "call", where.what, [mask, *numbers]
        return True
    return False


def _turn(where: Operation, region: Region, defined: dict[Value, Operation]) -> None:
    """Let the tile stand where the mask holds, and the number where it does not."""
    mask, first, second = where.operands
    test = defined.get(mask) if isinstance(mask, Value) else None
    if test is None or _is_tile(first) or not _is_tile(second):
        return
    assert isinstance(mask, Value), "it has a definition"
    if test.kind == "compare" and test.what in INVERSE and all(map(_is_whole, test.operands)):
        inverse = Operation("compare", test.operands, test.location, INVERSE[test.what])
    elif Conditions(defined).of(mask, inverse=True) is not None:
        inverse = Operation("unary", [mask], where.location, "~")
    else:
        return
    inverse.results = [Value(mask.name, mask.type)]
    region.operations.insert(region.operations.index(where), inverse)
    defined[inverse.results[0]] = inverse
    where.operands = [inverse.results[0], second, first]


def _is_tile(operand: Operand) -> bool:
    return isinstance(operand, Value) and isinstance(operand.type, TileType) and bool(operand.type.shape)


def _is_whole(operand: Operand) -> bool:
    """Whether it is of integers, of which the one comparison holds where the other does not."""
    if isinstance(operand, Constant):
        return type(operand.value) is int
    ty = operand.type if isinstance(operand, Value) else None
    return ty == ScalarType(int) or (isinstance(ty, TileType) and ty.dtype.kind in "iu")
