"""What a kernel declares, read from its annotations and default values: the signature that launches are checked against."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilekit.lang.annotations import Access, Const, Declared, Dims, Generic, In, InOut, Out, declaration
from tilekit.lang.functions import helper_of

__all__ = ["KernelSignature", "Parameter", "read_signature"]


Kind = Literal["in", "out", "inout", "const", "scalar", "auto"]
_KINDS: dict[Any, Kind] = {
    In: "in",
    Out: "out",
    InOut: "inout",
    Const: "const",
    bool: "scalar",
    int: "scalar",
    float: "scalar",
    inspect.Parameter.empty: "auto",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its name, what it was declared, and its dimensions if they were declared."""

    name: str
    kind: Kind
    dims: Dims | None = None

    @property
    def is_written(self) -> bool:
        """Whether it is declared to be: `Out` or `InOut`."""
        return self.kind in ("out", "inout")


@dataclass(frozen=True)
class KernelSignature:
    """The parameters of a kernel, the generics that it can be specialised by, and how Python binds its arguments.

    Attributes:
        parameters: in order.
        generics: by name, those of the annotations first.
        binder: the plain `inspect.Signature`, with the default values.
    """

    parameters: tuple[Parameter, ...]
    generics: Mapping[str, Generic]
    binder: inspect.Signature

    @functools.cached_property
    def written(self) -> tuple[int, ...]:
        """The positions of the parameters that are written."""
        return tuple(at for at, parameter in enumerate(self.parameters) if parameter.is_written)

    @functools.cached_property
    def tiles(self) -> dict[int, tuple[int, ...]]:
        """The shapes of the tiles of written parameters that name all their extents, by position."""
        declared = {at: p.dims for at, p in enumerate(self.parameters) if p.is_written and p.dims}
        return {at: dims for at, dims in declared.items() if all(type(n) is int and n > 0 for n in dims)}  # type: ignore[misc]


def read_signature(function: types.FunctionType, scope: Mapping[str, Any]) -> KernelSignature:
    """The signature of a kernel, with annotations that are strings evaluated (`from __future__ import annotations`).

    Args:
        function: the kernel's.
        scope: names visible where the function was defined, for annotations that name local variables.

    Raises:
        TypeError: an annotation is none of In, Out, InOut, Const, float, int, bool, or no expression; a parameter is variadic or
            positional-only.
        NameError: an annotation names something that does not exist.
    """
    enclosing = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = {name: cell.cell_contents for name, cell in enclosing.items() if _filled(cell)}
    type_parameters = {p.__name__: p for p in getattr(function, "__type_params__", ())}
    try:
        written = inspect.get_annotations(function, locals={**scope, **cells, **type_parameters}, eval_str=True)
        annotations = {name: declaration(annotation) for name, annotation in written.items()}
    except (NameError, SyntaxError, TypeError, ValueError, AttributeError) as error:
        text = f"kernel {function.__name__}: its annotations cannot be evaluated: {error}{_spelt(error)}"
        raise (NameError(text) if isinstance(error, NameError) else TypeError(text)) from None
    binder = inspect.signature(function)
    parameters: list[Parameter] = []
    declared: dict[str, Generic] = {}
    for name, parameter in binder.parameters.items():
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise TypeError(
                f"kernel {function.__name__}: parameter {name} is {parameter.kind.description}; kernels take plain parameters"
            )
        annotation = annotations.get(name, inspect.Parameter.empty)
        dims = annotation.dims if isinstance(annotation, Declared) else None
        access = annotation.access if isinstance(annotation, Declared) else annotation
        kind = _KINDS.get(access) if isinstance(access, type) else None
        if kind is None:
            shown = f"tk.{type(annotation).__name__}()" if isinstance(annotation, Access) else repr(annotation)
            shown = (
                f"{annotation.__module__}.{annotation.__qualname__}".removeprefix("builtins.")
                if isinstance(annotation, type)
                else shown
            )
            raise TypeError(
                f"kernel {function.__name__}: parameter {name} is annotated {shown}, not In, Out, InOut, Const, "
                f"or a scalar's float, int, bool{_instead(name, annotation)}"
            )
        parameters.append(Parameter(name, kind, dims))
        declared |= {dim.name: dim for dim in dims or () if isinstance(dim, Generic)}
    for name, parameter in type_parameters.items():
        declared.setdefault(name, Generic(name, isinstance(parameter, typing.TypeVarTuple)))
    for generic in _generics_of(function, set()):
        declared.setdefault(generic.name, generic)
    return KernelSignature(tuple(parameters), declared, binder)


def _spelt(error: Exception) -> str:
    """How an annotation is written that was written without its module."""
    name = getattr(error, "name", "")
    return f": write tk.{name}" if isinstance(error, NameError) and name in ("In", "Out", "InOut", "Const") else ""


def _instead(name: str, annotation: Any) -> str:
    """What to write for an annotation that is another library's, or a dtype."""
    if isinstance(annotation, np.dtype):
        return f"; the dtype is that of the argument: write {name}: tk.In, or {name}: float for a scalar"
    if isinstance(annotation, Access):
        return f"; write {name}: tk.{type(annotation).__name__}, without the brackets"
    if isinstance(annotation, str) and annotation.removeprefix("tk.") in ("In", "Out", "InOut", "Const"):
        return f"; write {name}: tk.{annotation.removeprefix('tk.')}, without the quotes"
    kind = getattr(annotation, "__name__", "")
    if kind in ("Tensor", "Partition", "ndarray", "Array", "DeviceNDArray", "DeviceOp"):
        return f"; write {name}: tk.In for a tensor that it reads, tk.Out or tk.InOut for one that it writes"
    if kind == "constexpr":
        return f"; write {name}: tk.Const"
    return ""


def _generics_of(function: types.FunctionType, seen: set[Any]) -> Iterator[Generic]:
    """The generics that a function uses by name; those of the `@tk.function`s that it calls, too."""
    seen.add(function)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    values |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [value for value in values.values() if isinstance(value, types.ModuleType)]:
        values |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    for value in [*values.values(), *(function.__defaults__ or ())]:
        if isinstance(value, Generic):
            yield value
        else:
            with suppress(TypeError):  # of what it is called with, the kernel's compiler says so
                helper = helper_of(value)
                if helper is not None and helper.function not in seen:
                    yield from _generics_of(helper.function, seen)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (an empty cell raises)
    except ValueError:
        return False
    return True
