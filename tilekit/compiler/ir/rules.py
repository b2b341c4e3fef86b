"""The rules of the language that samples of values cannot show, and Python's own refusals in the language's words.

A sample has a value, so an operation that wants a constant takes it: which of its parameters are constants stands here.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.syntax import NOT_CALLED
from tilekit.compiler.ir.nodes import Choice, Constant, Group, Operand, Operation, Value, View, leaves
from tilekit.compiler.ir.types import TensorType, TileType
from tilekit.elsewhere import CALLS, TILES, VIEWS, advice, keyword
from tilekit.errors import CompileError
from tilekit.lang.debug import unknown_condition, unknown_value
from tilekit.lang.mapped import cut_otherwise
from tilekit.lang.memory import bid, num_blocks
from tilekit.lang.pipelines import check_streams
from tilekit.lang.registry import OPS
from tilekit.lang.tile import NO_ITERATION, NO_TRUTH, Tile, what_is
from tilekit.lang.views import TensorView, TiledView, TileGrid, TileRow

__all__ = [
    "array_of_numpy",
    "check",
    "check_condition",
    "check_iterable",
    "check_stream",
    "in_place",
    "in_words",
    "is_foreign",
    "unassignable",
]

Sample = Callable[[Operand], Any]

_SHAPE = "the tile shape must be known when the kernel is compiled: make it a generic (tk.generics) or a tk.Const"
_COMPUTED = "a value that is computed in the kernel"
_CONSTANT = frozenset((
    "shape", "tile_shape", "size", "bins", "k", "axis", "axes", "axis0", "axis1", "keepdims", "reverse", "descending", "largest",
    "propagate_nan", "flush_to_zero", "rounding_mode", "dtype", "order", "padding_mode", "eviction_policy", "memory_order",
    "memory_scope", "precision", "identity", "traversal_steps", "stages", "warp_specialize", "rotate", "split",
))  # fmt: skip
"""The parameters of operations, and of methods, whose values are known when the kernel is compiled."""
_SHAPES = ("shape", "tile_shape", "size")
_VIEWS = (TensorView, TiledView, TileGrid, TileRow)

_NOT_TAKEN = (
    "{} cannot be used in a kernel, which takes numbers, tuples, tile operations (tk.*), functions of math, functions of yours, "
    "and functions decorated with @numba.cuda.jit(device=True)"
)
_NO_STRINGS = "strings in a kernel are constants: nothing is computed with them"
_TILE_ATTRIBUTES = "there are shape, dtype, ndim, and the methods astype, reshape, permute, transpose, broadcast_to and item"
_METHODS = ("astype", "reshape", "permute", "transpose", "broadcast_to", "item")
_TENSOR_ATTRIBUTES = "there are shape, dtype, ndim, tile_shape, and the methods load and store"


def is_foreign(operation: Operation) -> bool:
    """Whether an operation is numba's own, for a GPU: nothing is known of it here."""
    what = operation.what if operation.kind == "call" else operation.operands[0]
    return isinstance(what, Constant) and any(
        module.partition(".")[0] == "numba" for module in (_module_of(what.value), type(what.value).__module__)
    )


def check(operation: Operation, sample: Sample) -> None:
    """Refuse an operation whatever the values of its operands are.

    Args:
        operation: a call, a method, or any other that is no control flow.
        sample: gives the sample of an operand.

    Raises:
        CompileError: it is none of the language's, is called otherwise, or needs a constant where something is computed.
    """
    if operation.kind == "call":
        function = operation.what.value
        name = getattr(function, "__name__", "")
        if name in OPS and OPS[name].function is function:
            _check_arguments(name, OPS[name].signature, operation.operands, operation.keywords, function)
        else:
            _check_call(name, function, [sample(operand) for operand in operation.operands], bool(operation.keywords))
            if function is range and Constant(0) in operation.operands[2:]:
                raise CompileError("range: its step is 0")
    elif operation.kind == "method":
        owner = sample(operation.operands[0])
        method = getattr(type(owner), operation.what, None)
        if isinstance(owner, str):
            raise CompileError(_NO_STRINGS)
        if isinstance(owner, (Tile, *_VIEWS)) and inspect.isfunction(method) and not operation.what.startswith("_"):
            _check_arguments(operation.what, inspect.signature(method), operation.operands, operation.keywords, method)
            if operation.what == "tiles":
                _check_cuts(operation.operands)
    elif operation.kind == "binary" and any(isinstance(sample(one), TensorView) for one in operation.operands):
        raise CompileError(_of_a_tensor(operation, sample))
    elif operation.kind == "binary" and operation.what in ("//", "%"):
        divisor = operation.operands[1]
        if isinstance(divisor, Constant) and type(divisor.value) is int and divisor.value == 0:
            raise CompileError(f"{operation.what}: the divisor is the constant 0")
    elif operation.kind == "item" and isinstance(operation.operands[0], Group):
        if isinstance(operation.operands[1], Constant) and isinstance(operation.operands[1].value, int):
            raise CompileError("index: the tuple has no such element")
        kinds = {what_is(sample(part)) for part in operation.operands[0].parts}
        if len(kinds) > 1:
            raise CompileError(f"index: of a tuple of different things ({', '.join(sorted(kinds))}) the index must be a constant")


def _check_cuts(operands: list[Operand]) -> None:
    """See that mapped partitions that one loop visits are cut alike: samples have one shape, whatever the tensors have."""
    tensors = [operand.type for operand in operands if isinstance(operand, Value) and isinstance(operand.type, TensorType)]
    mapped = [ty for ty in tensors if ty.facts.group is not None]
    for other in mapped[1:]:
        if other.facts.cut_class != mapped[0].facts.cut_class:
            raise CompileError(f"tiles: {cut_otherwise(mapped[0].name, other.name)}")


def _check_arguments(
    name: str,
    signature: inspect.Signature,
    operands: list[Operand],
    keywords: dict[str, Operand],
    function: Callable[..., Any],
) -> None:
    """See that arguments fit the parameters, and are constants where these are."""
    try:
        bound = signature.bind(*operands, **keywords)
    except TypeError as error:
        parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
        plain = inspect.Signature(parameters)
        raise CompileError(
            f"{name}: {error}{_meant(keywords, plain, name)}; it is called as {name}{plain}{_called(name)}"
        ) from None
    for parameter, operand in bound.arguments.items():
        computed = [leaf for leaf in _leaves(operand) if isinstance(leaf, Value)]
        if not computed:
            continue
        wanted = parameter in _CONSTANT or (parameter == "what" and not isinstance(computed[0].type, TensorType))
        if function is OPS["static_assert"].function and parameter == "condition":
            raise CompileError(f"{name}: {unknown_condition()}")
        if function is OPS["static_print"].function:
            for leaf in computed:
                if not isinstance(leaf.type, TileType):
                    raise CompileError(f"{name}: {unknown_value(what_is(leaf.type.sample()))}")
        if not wanted:
            continue
        if function in (bid, num_blocks):
            raise CompileError(f"{name}: the axis is 0, 1 or 2, known when the kernel is compiled, not {_COMPUTED}")
        kinds = [what_is(leaf.type.sample()) for leaf in computed]
        if parameter in (*_SHAPES, "what"):
            wrong = next((kind for kind in kinds if kind != "a scalar (int)"), None)
            raise CompileError(
                f"{name}: {_SHAPE}" if wrong is None else f"{name}: a tile shape is an int or a tuple of ints, not {wrong}"
            )
        raise CompileError(f"{name}: {parameter} must be known when the kernel is compiled; it is {kinds[0]}")


def _called(name: str) -> str:
    """A line with the call, of operations that others call otherwise."""
    return f": {CALLS[name]}" if name in CALLS else ""


def _meant(keywords: dict[str, Operand], signature: inspect.Signature, name: str) -> str:
    """What keywords that an operation does not have are called here."""
    unknown = [word for word in keywords if word not in signature.parameters]
    free = [one for one in signature.parameters if one not in keywords]
    meant = {word: keyword(word, free) for word in unknown}
    if name == "load" and "mask" in keywords and "index" not in keywords:
        return "; an index counts tiles, and what lies beyond the edge is padded: there are no pointers to mask"
    return "".join(f"; {word} is called {ours} here{_written(ours, keywords[word])}" for word, ours in meant.items() if ours)


def _written(parameter: str, operand: Operand) -> str:
    """A keyword with its value, where that is a constant."""
    return f": write {parameter}={operand.value!r}" if isinstance(operand, Constant) else ""


def _leaves(operand: Any) -> list[Operand]:
    """The leaves of an argument; of `*values`, of all of them."""
    return [leaf for one in (operand if isinstance(operand, tuple) else (operand,)) for leaf in leaves(one)]


def _check_call(name: str, function: Any, samples: list[Any], keywords: bool) -> None:
    """See that a function that is no operation of the language can be called, with such values."""
    if isinstance(function, (BoundKernel, np.dtype)):
        return
    if not callable(function):
        raise CompileError(NOT_CALLED)
    if function is range:
        return _check_range(samples, keywords)
    if _module_of(function).partition(".")[0] == "tilekit" and not _module_of(function).startswith(_LANGUAGE):
        raise CompileError(_on_the_host(name, function))
    if not _is_known(function):
        raise CompileError(_NOT_TAKEN.format(name or what_is(function)))
    if any(isinstance(one, TensorView) for one in samples) and function is not len:
        view = next(one for one in samples if isinstance(one, TensorView))
        raise CompileError(f"a tensor in a kernel has no {name}: {_load_of(view)}")
    if any(isinstance(one, TensorView) for one in samples):
        raise CompileError("len: a tensor in a kernel has no len; its extents are x.shape")
    if any(isinstance(one, Tile) for one in samples):
        if function is len:
            raise CompileError("len: a tile has no len; its extents are tile.shape")
        if function in (int, float, bool) and not all(_converts(function, one) for one in samples if isinstance(one, Tile)):
            raise CompileError(
                f"{name} does not take tiles: cast with .astype(tk.{_DTYPES[function]}); of one element write .item()"
            )
        if function not in (abs, divmod, pow, int, float, bool):
            instead = f"; write tk.{name}" if name in OPS else ""
            raise CompileError(f"{name} does not take tiles: the operations on tiles are tk.*, the operators and abs{instead}")


def _converts(function: Any, tile: Tile) -> bool:
    """Whether Python's `int`, `float` or `bool` takes a tile."""
    return not tile.shape and (function is bool or tile.dtype.kind in "iu")


def _check_range(samples: list[Any], keywords: bool) -> None:
    if keywords or not 1 <= len(samples) <= 3:
        raise CompileError("range: takes one to three ints, without keywords")
    for bound in samples:
        if isinstance(bound, Tile) and bound.shape:
            raise CompileError(f"range does not take tiles: the operations on tiles are tk.*, the operators and abs; {_ONE}")
        if not hasattr(type(bound), "__index__") or isinstance(bound, (np.floating, TensorView)):
            words = "floats" if what_is(bound) == "a scalar (float)" else what_is(bound)
            raise CompileError(f"range: its bounds and step are ints, not {words}")


_DTYPES = {int: "int32", float: "float32", bool: "bool_"}
_ONE = "of one element write .item()"
_LANGUAGE = ("tilekit.lang", "tilekit.compiler", "tilekit.dtypes", "tilekit.errors")
_MODULES = ("builtins", "math", "operator", "_operator", "numpy", "ml_dtypes", "tilekit")


def _is_known(function: Any) -> bool:
    return isinstance(function, np.ufunc) or _module_of(function).partition(".")[0] in _MODULES


def _module_of(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    return str(getattr(value, "__module__", None) or type(value).__module__)


def check_condition(operand: Operand) -> None:
    """Refuse what is neither true nor false.

    Raises:
        CompileError: it is a tile with several elements, a tensor, or the like.
    """
    if isinstance(operand, Choice):
        check_condition(operand.first)
    if not isinstance(operand, (Value, View)):
        return
    if isinstance(operand.type, TileType) and operand.type.shape:
        raise CompileError(f"if: {NO_TRUTH}")
    if isinstance(operand.type, TensorType):
        raise CompileError(f"if: {what_is(operand.type.sample())} has no truth value: load a tile of it, and reduce that")


def unassignable(owner: Operand) -> str:
    """Why no element of a thing is assigned to."""
    ty = owner.type if isinstance(owner, Value) else None
    if isinstance(ty, TensorType):
        x = ty.name
        return f"a tensor in a kernel has no assignment to an index: write {x}.store(tile), or tk.store({x}, index, tile)"
    instead = "tile operations work on all its elements at once; use tk.where or tk.insert"
    return f"[]: elements cannot be assigned to: {instead if isinstance(ty, TileType) else 'make another tuple'}"


def in_place(name: str, symbol: str, value: str) -> str:
    """Why a tensor is not changed by `x += y`."""
    return f"{name} is a tensor, which has no {symbol}=: write {name}.store({name}.load() {symbol} {value})"


def check_iterable(sample: Any) -> None:
    """Refuse what a `for` statement cannot go over."""
    if isinstance(sample, Tile):
        raise CompileError(f"for: {NO_ITERATION}")
    if isinstance(sample, TensorView) or not hasattr(type(sample), "__iter__"):
        raise CompileError("only ranges, tuples and tiles of tensors (x.tiles(...)) can be iterated over in a kernel")


def check_stream(operation: Operation, sample: Sample) -> None:
    """Refuse what `tk.pipelined` cannot go over."""
    check_streams([sample(operand) for operand in operation.operands])


def in_words(operation: Operation, error: Exception, sample: Sample) -> str:
    """What Python says of an operation that values of such types do not have, in the language's words."""
    owner = sample(operation.operands[0]) if operation.operands else None
    what = getattr(operation.what, "spelling", operation.what) or operation.kind
    if operation.kind in ("method", "attribute") and isinstance(error, AttributeError):
        return _no_attribute(owner, what)
    if operation.kind == "item":
        if isinstance(owner, TensorView):
            return f"a tensor in a kernel has no index: {_load_of(owner, elements=True)}"
        if inspect.ismethod(owner) or inspect.isfunction(owner):
            return f"{owner.__name__} is called with round brackets: write {owner.__name__}(...)"
        return f"index: {what_is(owner)} has no elements"
    if operation.kind in ("binary", "unary", "compare"):
        samples = [sample(operand) for operand in operation.operands]
        if any(isinstance(one, TensorView) for one in samples):
            return _of_a_tensor(operation, sample)
        return f"{what}: there is none of {' and '.join(map(what_is, samples))}"
    return f"{what} does not take these values in a kernel"


def _of_a_tensor(operation: Operation, sample: Sample) -> str:
    """That there is no such operator of a tensor."""
    samples = [sample(operand) for operand in operation.operands]
    view = next(one for one in samples if isinstance(one, TensorView))
    return f"a tensor in a kernel has no {operation.what}: {_load_of(view, elements=operation.what == '+')}"


def _load_of(view: TensorView, *, elements: bool = False) -> str:
    """How a kernel gets at what is in a tensor; at single `elements`, too."""
    x = view.name
    tile = f"{x}.load()" if view.tile_shape is not None else f"tk.load({x}, index, shape), or tk.load_tile_like({x}, y)"
    return f"load a tile of it, {tile}" + (f"; elements by their index are tk.gather({x}, indices)" if elements else "")


def _no_attribute(owner: Any, what: str) -> str:
    """That a value has no such attribute, and what to write."""
    if isinstance(owner, Tile):
        words, known = f"a tile has no attribute {what}", ("shape", "dtype", "ndim", *_METHODS)
        if what in OPS and what not in TILES:
            return f"{words}: write tk.{what}(x)"
        return words + (advice(TILES, what, known) or f"; {_TILE_ATTRIBUTES}")
    if isinstance(owner, TensorView):
        words = f"a tensor in a kernel has no attribute {what}"
        if what in OPS and what not in VIEWS:
            return f"{words}: {_load_of(owner)}, and write tk.{what}(tile)"
        return words + (re.sub(r"\bx\b", owner.name, advice(VIEWS, what, dir(owner))) or f"; {_TENSOR_ATTRIBUTES}")
    if inspect.ismethod(owner) or inspect.isfunction(owner):
        return f"{owner.__name__} is a function, which has no attribute {what}: write {owner.__name__}(...)"
    if owner is None and what in ("sync", "result", "wait"):
        return f"None has no attribute {what}: leave it out; .sync() of the launch waits for it on the host"
    if isinstance(owner, tuple) and hasattr(list, what):
        return f"a tuple has no attribute {what}: nothing changes a list or tuple in a kernel; make another, t = (*t, x)"
    return f"{what_is(owner)} has no attribute {what}{advice({}, what, dir(owner))}"


def _on_the_host(name: str, function: Any) -> str:
    """That a function of tilekit's is for the host."""
    here = f"; in a kernel write tk.{name}(...)" if name in OPS else ""
    return f"{name} of {_module_of(function)} works on the host: run it there, and pass the tensor as an argument{here}"


def array_of_numpy(operation: Operation) -> str:
    """That a function of NumPy's has made an array, which kernels do not have."""
    spelling = getattr(operation.what, "spelling", "") or "this"
    name = spelling.rpartition(".")[2]
    instead = (
        f"write tk.{name}(...), which makes a tile" if name in OPS else "make a tile, with tk.zeros, tk.arange, tk.astile..."
    )
    return f"{spelling} makes a NumPy array, which kernels do not have: {instead}"
