"""Where the elements of tiles lie that are loaded, and of what is made of them, for passes that ask what a thread has.

It is what lowering will choose: `codegen.access_layouts` for loads, `codegen.operands` for what is computed element by element.
Of other tiles nothing is known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.nodes import LOOPS, Constant, Operation, Region, Value
from tilekit.compiler.ir.types import ObjectType, TensorType, TileType
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.lang import create, memory
from tilekit.lang.views import TileGrid, TileRow

__all__ = ["layouts_of"]

_SPLATS = (create.zeros, create.ones, create.full)


def layouts_of(kernel: Region, config: Config) -> Mapping[Value, Layout]:
    """The layouts of tiles, as far as they are known, in blocks of such a configuration."""
    units = {value.type.name: value.type.facts.unit for value in kernel.parameters if isinstance(value.type, TensorType)}
    layouts: dict[Value, Layout] = {}
    splats: set[Value] = set()
    before = -1
    while before < len(layouts):
        before = len(layouts)
        for operation in kernel.walk():
            if operation.kind in LOOPS:
                _follow_loop(operation, config, units, layouts)
            else:
                _follow(operation, config, layouts, splats)
    return layouts


def _follow_loop(loop: Operation, config: Config, units: Mapping[str, int | None], layouts: dict[Value, Layout]) -> None:
    """Note how what turns are given lies: tiles of streams as if they were loaded, and what a loop carries."""
    for before, first, result in zip(loop.carried, loop.initial, loop.results, strict=True):
        if isinstance(first, Value) and first in layouts:
            layouts[before] = layouts[result] = layouts[first]
    (body,) = loop.regions
    for stream, tile in zip(loop.operands, body.parameters, strict=False):
        name = _tensor_of(stream.type.object) if isinstance(stream, Value) and isinstance(stream.type, ObjectType) else None
        if name is not None and name in units and isinstance(tile.type, TileType):
            layouts[tile] = Layout.blocked(tile.type.shape, config, units[name])


def _tensor_of(view: object) -> str | None:
    """The name of the tensor that a view is of."""
    match view:
        case TileRow():
            return _tensor_of(view.grid)
        case TileGrid():
            return view.windows._view.name
    return None


def _follow(operation: Operation, config: Config, layouts: dict[Value, Layout], splats: set[Value]) -> None:
    """Note how what an operation makes lies."""
    if len(operation.results) != 1 or not isinstance(kind := operation.results[0].type, TileType):
        return
    (result,), source = operation.results, operation.operands[0] if operation.operands else None
    tensor = source.type if isinstance(source, Value) else None
    called = operation.what.value if operation.kind == "call" and isinstance(operation.what, Constant) else None
    if any(called is function for function in _SPLATS):
        splats.add(result)
    elif isinstance(tensor, TensorType) and _loads(operation, called):
        layouts[result] = Layout.blocked(kind.shape, config, tensor.facts.unit)
    elif (operation.kind, operation.what) == ("method", "reshape") and isinstance(source, Value) and source in layouts:
        layouts[result] = layouts[source].reshape(kind.shape)
    elif is_elementwise(operation):
        whole = [v for v in operation.reads() if isinstance(v.type, TileType) and v.type.shape == kind.shape]
        known = {layouts[value] for value in whole if value in layouts}
        if len(known) == 1 and all(value in layouts or value in splats for value in whole):
            layouts[result] = known.pop()


def _loads(operation: Operation, called: object) -> bool:
    """Whether an operation loads a tile as it lies in memory."""
    if operation.kind == "method":
        return bool(operation.what == "load")
    if called is memory.load:
        return operation.keywords.get("order", Constant("C")) == Constant("C")
    return called is memory.load_tile_like
