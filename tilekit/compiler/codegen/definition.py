"""How an operation of the tile language reaches numba: one definition serves type inference and lowering.

    @lowers(memory.load)
    def load(array, index, shape, padding_mode):       # the lang function's parameters; here they are numba types
        ...                                            # reject(...) what cannot be
        def emit(builder, array, index, shape, padding_mode):   # LLVM values
            ...
        return result_type, emit                                # emit gives None for what has no value at run time

numba calls the definition once to learn the result's type and once more for the code. Types arrive as literals where the user
wrote constants; a parameter that was not given arrives as `types.Omitted(default)`. Nothing is compiled as a callee.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from tilekit.compiler.codegen.diagnose import OverLimit, refuse, reject
from tilekit.compiler.codegen.types import DeferredType, TileType

__all__ = ["ABSENT", "attribute", "install", "known", "lowers", "lowers_method", "lowers_operator", "materialize", "materialized"]

Emit = Callable[..., ir.Value]
Definition = Callable[..., tuple[types.Type, Emit]]

ABSENT: Any = object()

# What lowers each operation of the language.
LOWERINGS: dict[Callable[..., Any], Definition] = {}


def known(ty: types.Type) -> Any:
    """The Python value of a compile-time constant of type `ty` (tuples of constants too), or `ABSENT`."""
    if isinstance(ty, types.Literal):
        return ty.literal_value
    if isinstance(ty, types.Omitted):
        return ty.value
    if isinstance(ty, types.NoneType):
        return None
    if isinstance(ty, types.BaseTuple):
        values = tuple(known(element) for element in ty.types)
        return ABSENT if any(v is ABSENT for v in values) else values
    return ABSENT


def lowers(function: Callable[..., Any], *, deferred: bool = False, anywhere: bool = False) -> Callable[[Definition], Definition]:
    """Make the decorated definition the lowering of `function`, an operation of `tilekit.lang`.

    If it takes tiles that are `deferred` (`types.DeferredType`), it gets them as they are; else as threads hold them. One that
    takes tiles that can be computed `anywhere` gets only these as they are.
    """

    def register(define: Definition) -> Definition:
        parameters = _parameters(function)
        _check(function.__name__, parameters, define)
        template = _template(function.__name__, parameters, define, deferred=deferred, anywhere=anywhere)
        typing_registry.register(template)
        typing_registry.register_global(function, types.Function(template))
        LOWERINGS[function] = define
        return define

    return register


def lowers_method(
    owner: type[types.Type], method: Callable[..., Any], *, deferred: bool = False, anywhere: bool = False
) -> Callable[[Definition], Definition]:
    """Make the decorated definition the lowering of `method`, of a class of `tilekit.lang`, for values of type `owner`.

    `deferred` and `anywhere` are as for `lowers`.
    """

    def register(define: Definition) -> Definition:
        parameters = _parameters(method)
        _check(method.__name__, parameters, define)
        template = _template(method.__name__, parameters[1:], define, deferred=deferred, anywhere=anywhere)

        def resolve(value: types.Type) -> types.Type:
            return types.BoundFunction(template, value)

        _register_attribute(owner, method.__name__, resolve)
        return define

    return register


def lowers_operator(
    function: Callable[..., Any],
    symbol: str,
    owner: type[types.Type] = TileType,
    *,
    deferred: bool = False,
    anywhere: bool = False,
) -> Callable[[Definition], Definition]:
    """Make the decorated definition the lowering of a Python operator or builtin wherever a tile is among the operands.

    Args:
        function: `operator.add`, `abs`...; or numba's name for a protocol (`"getiter"`).
        symbol: as the user spells it, for errors.
        owner: another type, one of which must be among the operands instead.
        deferred, anywhere: as for `lowers`.
    """

    def register(define: Definition) -> Definition:
        template = _template(symbol, None, define, owner=owner, key=function, deferred=deferred, anywhere=anywhere)
        typing_registry.register(template)
        if callable(function):
            typing_registry.register_global(function, types.Function(template))
        return define

    return register


def attribute(owner: type[types.Type], name: str) -> Callable[[Callable[[Any], tuple[types.Type, Emit]]], Any]:
    """Make the decorated definition the attribute `name` of values of type `owner`; it gets the type, `emit` the value."""

    def register(define: Callable[[Any], tuple[types.Type, Emit]]) -> Any:
        _register_attribute(owner, name, lambda value: define(materialized(value))[0])

        def lower(context: Any, builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> ir.Value:
            result = define(materialized(ty))[1](builder, value)  # of a tile, it is known when the kernel is compiled
            return context.get_dummy_value() if result is None else result

        for each in _with_deferred(owner):
            lowering_registry.lower_getattr(each, name)(lower)
        return define

    return register


def install() -> None:
    """Make numba see everything registered so far."""
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _check(name: str, parameters: list[inspect.Parameter], define: Definition) -> None:
    """The one mistake that nobody would notice: a lowering whose parameters are in another order than the language's."""
    wanted, actual = [p.name for p in parameters], [p.name for p in _parameters(define)]
    if wanted != actual:
        raise TypeError(f"the lowering of {name} has the parameters {actual}, the language says {wanted}")


def _template(
    name: str,
    parameters: list[inspect.Parameter] | None,
    define: Definition,
    *,
    owner: type[types.Type] | None = None,
    key: Any = None,
    deferred: bool = False,
    anywhere: bool = False,
) -> type[AbstractTemplate]:
    """A numba template that binds arguments as Python would and asks `define`."""
    variadic = parameters is not None and any(p.kind is p.VAR_POSITIONAL for p in parameters)
    binder = inspect.Signature(parameters) if parameters is not None else None
    # numba folds keyword-only parameters wrongly when it lowers a call (it takes them for the last positional ones).
    folded = None
    if parameters is not None and not variadic:
        folded = inspect.Signature([p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in parameters])

    def kept(ty: types.Type) -> bool:
        return deferred or (anywhere and isinstance(ty, DeferredType) and ty.anywhere)

    class Template(AbstractTemplate):
        prefer_literal = True

        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
            if owner is not None and not any(isinstance(a, _with_deferred(owner)) for a in args):
                return None
            bound = args if binder is None or variadic else _bind(name, binder, args, kws)
            this = getattr(self, "this", None)
            whole = bound if this is None else (this, *bound)
            result, _ = define(*(ty if kept(ty) else materialized(ty) for ty in whole))
            typed = signature(result, *bound, recvr=this)
            return typed.replace(pysig=folded)

        def get_impl_key(self, sig: Any) -> Any:
            return define

    Template.key = define if key is None else key
    Template.__name__ = Template.__qualname__ = f"{name}_template"

    @lowering_registry.lower(define, types.VarArg(types.Any))
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: list[ir.Value]) -> ir.Value:
        taken = [ty if kept(ty) else materialized(ty) for ty in sig.args]
        # Defaults may be left out.
        held = (v if kept(ty) else materialize(builder, ty, v) for ty, v in zip(sig.args, args, strict=False))
        try:
            result = define(*taken)[1](builder, *held)
        except OverLimit as error:
            refuse(name, str(error))
        return context.get_dummy_value() if result is None else result

    return Template


def _with_deferred(owner: type[types.Type]) -> tuple[type[types.Type], ...]:
    """The types that count as `owner`."""
    return (owner, DeferredType) if owner is TileType else (owner,)


def materialized(ty: Any) -> Any:
    """The type of what threads hold in the end; in tuples, too."""
    if isinstance(ty, DeferredType):
        return ty.materialized
    if isinstance(ty, types.BaseTuple) and any(isinstance(part, DeferredType) for part in ty.types):
        return types.BaseTuple.from_types([materialized(part) for part in ty.types])
    return ty


def materialize(builder: ir.IRBuilder, ty: Any, value: ir.Value) -> ir.Value:
    """What threads hold in the end."""
    if isinstance(ty, DeferredType):
        return ty.materialize(builder, value)
    if materialized(ty) is ty:
        return value
    parts = [materialize(builder, part, builder.extract_value(value, index)) for index, part in enumerate(ty.types)]
    alike = isinstance(materialized(ty), types.UniTuple)
    kind = ir.ArrayType(parts[0].type, len(parts)) if alike else ir.LiteralStructType([part.type for part in parts])
    aggregate: Any = ir.Constant(kind, ir.Undefined)
    for index, part in enumerate(parts):
        aggregate = builder.insert_value(aggregate, part, index)
    return aggregate


def _bind(name: str, binder: inspect.Signature, args: tuple[Any, ...], kws: dict[str, Any]) -> tuple[types.Type, ...]:
    try:
        bound = binder.bind(*args, **kws)
    except TypeError as error:
        plain = binder.replace(parameters=[p.replace(annotation=p.empty) for p in binder.parameters.values()])
        reject(name, f"{error}; it is called as {name}{plain}")
    return tuple(
        bound.arguments[p.name] if p.name in bound.arguments else types.Omitted(p.default) for p in binder.parameters.values()
    )


def _register_attribute(owner: type[types.Type], name: str, resolve: Callable[[Any], types.Type]) -> None:
    def generic_resolve(self: Any, value: types.Type, attr: str) -> types.Type | None:
        return resolve(value) if attr == name else None

    for each in _with_deferred(owner):
        typing_registry.register_attr(type("Attribute", (AttributeTemplate,), {"key": each, "generic_resolve": generic_resolve}))
