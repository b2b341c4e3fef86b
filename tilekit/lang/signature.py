"""What a kernel declares: tile-shape generics, and what it does with each parameter."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

__all__ = ["Const", "Dims", "Generic", "In", "InOut", "KernelSignature", "Out", "Parameter", "generics", "read_signature"]


class Generic:
    """A name that stands for an integer, or with `whole` for a whole shape, until a kernel is specialised.

    Made by `tk.generics`. Kernels use it in annotations and wherever their body needs the number.
    """

    __slots__ = ("name", "whole")

    def __init__(self, name: str, whole: bool = False) -> None:
        self.name, self.whole = name, whole

    def __repr__(self) -> str:
        return f"*{self.name}" if self.whole else self.name

    def __iter__(self) -> Iterator[Generic]:
        if not self.whole:
            raise TypeError(
                f"generic {self.name} stands for one integer; tk.generics('*{self.name}') makes one for a whole shape"
            )
        yield self

    def __index__(self) -> int:
        raise TypeError(f"generic {self.name} has no value here: it gets one when a kernel that uses it is specialised")


def generics(names: str) -> Any:
    """Make generics: `BM, BN = tk.generics("BM BN")`. A star makes one for a whole shape: `S = tk.generics("*S")`.

    Args:
        names: identifiers, separated by spaces or commas.

    Returns:
        One generic for one name, a tuple of them for several.

    Raises:
        ValueError: no names, or something that is no identifier.
    """
    words = names.replace(",", " ").split() if isinstance(names, str) else []
    if not words or not all(word.removeprefix("*").isidentifier() for word in words):
        raise ValueError(f"tk.generics takes names such as 'BM BN' or '*S', not {names!r}")
    made = tuple(Generic(word.removeprefix("*"), word.startswith("*")) for word in words)
    return made[0] if len(made) == 1 else made


Dims = tuple["int | Generic", ...]


if TYPE_CHECKING:  # inside a kernel, a parameter annotated so is a view
    from tilekit.lang.memory import TensorView as _View

    _Value = Any
else:
    _View = _Value = object


class _Access(_View):
    """Base of `In`, `Out`, `InOut`: what a kernel does with a tensor parameter."""

    def __class_getitem__(cls, dims: Any) -> Declared:
        given = dims if isinstance(dims, tuple) else (dims,)
        return Declared(cls, tuple(_dim(d, cls.__name__) for d in given))


class In(_Access):
    """The parameter is a tensor that the kernel reads. `In[-1, 64]` fixes its rank, and extents that are not -1.

    (numba's `cuda.In` is another thing: it wraps a host array at the call.)
    """


class Out(_Access):
    """The parameter is a partition that the kernel writes. `Out[BM, BN]` names, or fixes, the shape of its tiles."""


class InOut(_Access):
    """The parameter is a partition that the kernel reads and writes. `InOut[BM, BN]` as for `Out`."""


class Const(_Value):  # type: ignore[misc]
    """The parameter is a compile-time value: bool, int, float, str, dtype, or a tuple of these."""


@dataclass(frozen=True)
class Declared:
    """An annotation with dimensions, such as `Out[BM, BN]`."""

    access: type[_Access]
    dims: Dims


def _dim(dim: Any, where: str) -> int | Generic:
    if isinstance(dim, Generic):
        return dim
    if isinstance(dim, typing.TypeVar):
        return Generic(dim.__name__)
    if isinstance(dim, typing.TypeVarTuple):
        return Generic(dim.__name__, whole=True)
    unpacked = typing.get_args(dim)
    if typing.get_origin(dim) is typing.Unpack and isinstance(unpacked[0], typing.TypeVarTuple):
        return Generic(unpacked[0].__name__, whole=True)
    if isinstance(dim, int) and not isinstance(dim, bool) and (dim == -1 or dim > 0):
        return dim
    raise TypeError(f"{where}[...] takes positive ints, -1, and generics, not {dim!r}")


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


def read_signature(function: types.FunctionType, scope: Mapping[str, Any]) -> KernelSignature:
    """The signature of a kernel, with annotations that are strings evaluated (`from __future__ import annotations`).

    Args:
        function: the kernel's.
        scope: names visible where the function was defined, for annotations that name local variables.

    Raises:
        TypeError: an annotation is none of In, Out, InOut, Const, float, int, bool; a parameter is variadic or positional-only.
        NameError: an annotation names something that does not exist.
    """
    enclosing = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = {name: cell.cell_contents for name, cell in enclosing.items() if _filled(cell)}
    type_parameters = {p.__name__: p for p in getattr(function, "__type_params__", ())}
    annotations = inspect.get_annotations(function, locals={**scope, **cells, **type_parameters}, eval_str=True)
    binder = inspect.signature(function)
    parameters: list[Parameter] = []
    found: dict[str, Generic] = {}
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
            raise TypeError(
                f"kernel {function.__name__}: parameter {name} is annotated {annotation!r}, not In, Out, InOut, Const, "
                "or a scalar's float, int, bool"
            )
        parameters.append(Parameter(name, kind, dims))
        found |= {dim.name: dim for dim in dims or () if isinstance(dim, Generic)}
    for name, parameter in type_parameters.items():
        found.setdefault(name, Generic(name, isinstance(parameter, typing.TypeVarTuple)))
    for generic in _generics_of(function, set()):
        found.setdefault(generic.name, generic)
    return KernelSignature(tuple(parameters), found, binder)


def _generics_of(function: types.FunctionType, seen: set[Any]) -> Iterator[Generic]:
    """The generics that a function uses by name; those of the `@tk.function`s that it calls, too."""
    from tilekit.lang.functions import Function  # it imports this module

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
        elif isinstance(value, Function) and value.function not in seen:
            yield from _generics_of(value.function, seen)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (an empty cell raises)
    except ValueError:
        return False
    return True
