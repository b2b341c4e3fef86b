"""`@function`: helpers that kernels, and other helpers, call."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from tilekit.lang import block
from tilekit.lang.annotations import Const, declaration
from tilekit.lang.files import file_of

__all__ = ["LIBRARIES", "Function", "function", "helper_of", "names_used"]


if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)  # so that `Function` alone means any of them
    R = TypeVar("R", default=Any)
else:
    P, R = typing.ParamSpec("P"), typing.TypeVar("R")


@overload
def function(function: Callable[P, R], /) -> Function[P, R]: ...
@overload
def function() -> Callable[[Callable[P, R]], Function[P, R]]: ...
def function(function: Callable[..., Any] | None = None) -> Any:
    """Make a function a helper of kernels: `@tk.function`.

    A helper takes tiles, scalars, tensors, tuples and compile-time values, and may return any of them but tensors. It is put into
    each kernel that calls it: generics and constants fold inside it as in the kernel itself, shapes that it returns are known
    when the kernel is compiled, and on a GPU no call is left. Defaults are constants. A parameter annotated `tk.Const` takes
    nothing but a compile-time value: a constant, or what types tell (`x.dtype`, an extent of a tile). Helpers cannot recurse.

    Args:
        function: the helper.

    Returns:
        A `Function`, for kernels to call, or to pass to `tk.reduce` and `tk.scan`.

    Raises:
        TypeError: what is decorated is no plain function, or it has a parameter such as `**kwargs`.
    """
    return Function if function is None else Function(function)


def names_used(function: types.FunctionType) -> Iterator[str]:
    """The names in a kernel's code, and in that of the functions that it calls; of what they stand for, the names, too. And "@"
    where that stands."""
    waiting, seen = [function], set[types.FunctionType]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if any(step.argrepr.rstrip("=") == "@" or "MATRIX" in step.opname for step in dis.get_instructions(one)):
            yield "@"
        inside = dict(zip(one.__code__.co_freevars, one.__closure__ or (), strict=True))
        for name in (*one.__code__.co_names, *inside):
            value = one.__globals__.get(name)
            with suppress(ValueError):  # a variable around it has no value yet
                value = inside[name].cell_contents if name in inside else value
            with suppress(TypeError):  # what has other parameters is refused where it is called
                called = helper_of(value)
                if called is not None:
                    waiting.append(called.function)
            yield from (name, getattr(value, "__name__", name))


class Function(Generic[P, R]):
    """A function in the tile language that kernels call. Made by `@tk.function`. To type checkers it is the function.

    Attributes:
        name: the function's.
        function: as it was written.
        signature: its parameters.
        constants: those that are annotated `tk.Const`.
        file: the lines of its file, as they were when it was defined.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"@tk.function decorates a function, not {type(function).__name__}")
        functools.update_wrapper(self, function)
        self.name, self.function = function.__name__.replace("<lambda>", "the_lambda"), function
        self.signature = inspect.signature(function)
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                raise TypeError(
                    f"function {self.name}: parameter {name} is {parameter.kind.description}; kernels have no dictionaries: give "
                    "each parameter a name"
                )
        try:
            annotations = inspect.get_annotations(function, eval_str=True)
        except Exception:  # names that exist only for type checkers
            annotations = {}
        self.constants = frozenset(name for name, annotation in annotations.items() if declaration(annotation) is Const)
        self.file = file_of(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Only kernels call it.

        Raises:
            TypeError: it is called outside a kernel.
        """
        if block.current() is None:
            raise TypeError(
                f"{self.name} is a tk.function: it works inside a function decorated with @tk.kernel, or another @tk.function. "
                f"On the host call a kernel that uses it, or {self.name}.function, which is plain Python"
            )
        return cast(R, self.function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<function {self.name}{self.signature}>"


_plain: weakref.WeakKeyDictionary[types.FunctionType, Function] = weakref.WeakKeyDictionary()
# What kernels call of these is not put into them: numba knows it, or it is no function of a kernel's.
LIBRARIES = frozenset(("numpy", "numba", "ml_dtypes", *sys.stdlib_module_names)) - {"__main__"}
_OWN = ("tilekit.lang", "tilekit.compiler", "tilekit.api", "tilekit.random", "tilekit.ops", "tilekit.memory", "tilekit.interop")


def helper_of(value: Any) -> Function | None:
    """The helper that a value is, where a kernel calls it: any function of the user's is one. None if it is none.

    Raises:
        TypeError: it has a parameter such as `**kwargs`.
    """
    if isinstance(value, Function):
        return value
    if not isinstance(value, types.FunctionType):
        return None
    module = value.__module__ or ""
    if module.partition(".")[0] in LIBRARIES or module.startswith(_OWN):
        return None
    if value not in _plain:
        _plain[value] = Function(value)
    return _plain[value]
