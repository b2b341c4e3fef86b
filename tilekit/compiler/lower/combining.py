"""User-defined combine functions of `tk.reduce` and `tk.scan`: tuples of tiles in one layout, and calls of the functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing.templates import Signature

from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.definition import ABSENT, known
from tilekit.compiler.codegen.diagnose import InFunction, in_words, reject
from tilekit.compiler.codegen.emit import pack
from tilekit.compiler.codegen.operands import broadcast
from tilekit.compiler.codegen.types import TileType, describe, prevailing
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.lower.shape import constant
from tilekit.lang import combining as lang
from tilekit.lang.tile import common_shape

__all__ = ["Operands", "calling", "flag"]

Row = Sequence[ir.Value]


class Operands:
    """The tile, or the tuple of tiles, that are folded together.

    Attributes:
        tiles: their types.
        alone: whether it is one tile.
        layout: what they are brought into.
    """

    def __init__(self, x: types.Type, what: str) -> None:
        self.alone = not isinstance(x, types.BaseTuple)
        self.tiles: list[Any] = [x] if self.alone else list(x.types)
        for tile in self.tiles:
            if not isinstance(tile, TileType):
                reject(what, f"needs a tile or a tuple of tiles, not {describe(tile)}")
        if not self.tiles:
            reject(what, "needs a tile or a tuple of tiles, not an empty tuple")
        shape = in_words(what, lambda shapes, _: common_shape(what, shapes), [tile.shape for tile in self.tiles])
        whole = [tile for tile in self.tiles if tile.shape == shape and not tile.splat]
        config = self.tiles[0].config
        self.layout: Layout = prevailing(whole).layout if whole else Layout.blocked(shape, config)
        self.num_threads = config.num_threads

    def elements(self, builder: ir.IRBuilder, value: ir.Value) -> list[list[ir.Value]]:
        """By tile, the elements by register of `layout`."""
        values = [value] if self.alone else [builder.extract_value(value, k) for k in range(len(self.tiles))]
        return [broadcast(builder, tile, held, self.layout) for tile, held in zip(self.tiles, values, strict=True)]

    def result(self, layout: Layout) -> tuple[types.Type, Callable[[ir.IRBuilder, Sequence[Row]], ir.Value]]:
        """The type of results in `layout`, and how to make its value of their elements."""
        kinds = [TileType(tile.dtype, layout, tile.config) for tile in self.tiles]
        if self.alone:
            return kinds[0], lambda builder, columns: pack(builder, columns[0])
        ty = types.BaseTuple.from_types(kinds)

        def emit(builder: ir.IRBuilder, columns: Sequence[Row]) -> ir.Value:
            value: Any = ir.Constant(cuda_target.target_context.get_value_type(ty), ir.Undefined)
            for k, column in enumerate(columns):
                value = builder.insert_value(value, pack(builder, column), k)
            return value

        return ty, emit


def flag(ty: types.Type, what: str, name: str) -> bool:
    """The value of an argument that is True or False."""
    value = constant(ty, what, name)
    if not isinstance(value, bool):
        reject(what, f"{name} is True or False, not {value!r}")
    return value


def calling(
    func: types.Type, identity: types.Type, operands: Operands, what: str
) -> Callable[[ir.IRBuilder, Row, Row], list[ir.Value]]:
    """How to combine two rows of elements by the user's function, which is compiled for tiles of shape ()."""
    if known(identity) is not ABSENT:
        in_words(what, lang.known_identity, known(identity))
    elif not _is_number(identity):
        reject(what, "identity must be known when the kernel is compiled; none is needed here")
    if not isinstance(func, types.Callable):
        reject(what, f"func is a @tk.function, a lambda, or a function of the module operator, not {describe(func)}")
    if isinstance(func, types.Dispatcher) and (problem := lang.arity_problem(func.dispatcher.py_func, len(operands.tiles))):
        reject(what, problem)
    scalars = [TileType.of_shape(tile.dtype, (), tile.config) for tile in operands.tiles]
    signature = _resolved(func, (*scalars, *scalars), what)
    returned = signature.return_type
    results = list(returned.types) if isinstance(returned, types.BaseTuple) else [returned]
    kinds = [r.dtype if isinstance(r, TileType) and r.shape == () else describe(r) for r in results]
    problem = lang.misfit([tile.dtype for tile in operands.tiles], kinds, what)
    if problem:
        reject(what, problem)

    def combine(builder: ir.IRBuilder, first: Row, second: Row) -> list[ir.Value]:
        value = _call(builder, func, signature, [pack(builder, [element]) for element in (*first, *second)])
        tuples = isinstance(returned, types.BaseTuple)
        parts = [builder.extract_value(value, k) for k in range(len(results))] if tuples else [value]
        return [builder.extract_value(part, 0) for part in parts]

    return combine


def _is_number(ty: types.Type) -> bool:
    """Whether an identity, which is not needed here, is a float, or several: numba's types do not tell which."""
    if isinstance(ty, types.BaseTuple):
        return all(_is_number(part) or known(part) is not ABSENT for part in ty)
    return isinstance(ty, types.Float)


def _resolved(func: types.Type, arguments: tuple[types.Type, ...], what: str) -> Signature:
    """The function compiled for such arguments."""
    compilation = current()
    looped, compilation.loops = compilation.loops, True  # it is emitted once, and runs many times
    try:
        signature = cuda_target.typing_context.resolve_function_type(func, arguments, {})
    except Exception as error:
        raise InFunction from error
    finally:
        compilation.loops = looped
    if signature is None:
        reject(what, f"func does not take {len(arguments)} tiles of shape ()")
    return signature


def _call(builder: ir.IRBuilder, func: types.Type, signature: Signature, values: list[ir.Value]) -> ir.Value:
    """The result of the function; LLVM puts its code here."""
    context = cuda_target.target_context
    if not isinstance(func, types.Dispatcher):
        return context.get_function(func, signature)(builder, values)
    compiled = func.dispatcher.compile_device(signature.args)
    context.active_code_library.add_linking_library(compiled.library)
    described = compiled.fndesc
    function = described.declare_function(builder.module)
    # The status says whether it raised an exception, which no function of the language does.
    _, value = described.call_conv.call_function(builder, function, described.restype, described.argtypes, values)
    return value
