"""What stands in a kernel's annotations: tile-shape generics, and what it does with each parameter."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["Access", "Const", "Declared", "Dims", "Generic", "In", "InOut", "Out", "declaration", "generics"]


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
    created = tuple(Generic(word.removeprefix("*"), word.startswith("*")) for word in words)
    return created[0] if len(created) == 1 else created


Dims = tuple["int | Generic", ...]


class Access:
    """Base of `In`, `Out`, `InOut`: what a kernel does with a tensor parameter."""

    def __class_getitem__(cls, dims: Any) -> Declared:
        extents = dims if isinstance(dims, tuple) else (dims,)
        return Declared(cls, tuple(_dim(d, cls.__name__) for d in extents))


if TYPE_CHECKING:  # both a view, to the kernel, and whatever callers may pass
    from tilekit.lang.tensor_like import TensorLike

    In: TypeAlias = TensorLike
    Out: TypeAlias = TensorLike
    InOut: TypeAlias = TensorLike
    Const: TypeAlias = Any
else:

    class In(Access):
        """The parameter is a tensor that the kernel reads. `In[-1, 64]` fixes its rank, and extents that are not -1.

        Type checkers take `Annotated[tk.In, -1, 64]`, which is the same.

        (numba's `cuda.In` is another thing: it wraps a host array at the call.)
        """

    class Out(Access):
        """The parameter is a partition that the kernel writes. `Out[BM, BN]`, for type checkers `Annotated[tk.Out, BM, BN]`,
        names, or fixes, the shape of its tiles.
        """

    class InOut(Access):
        """The parameter is a partition that the kernel reads and writes. `InOut[BM, BN]` as for `Out`."""

    class Const:
        """The parameter is a compile-time value: bool, int, float, str, dtype, or a tuple of these.

        `Annotated[int, tk.Const]` says the same, and lets type checkers know which.
        """


@dataclass(frozen=True)
class Declared:
    """An annotation with dimensions, such as `Out[BM, BN]`."""

    access: type[Access]
    dims: Dims


def declaration(annotation: Any) -> Any:
    """An annotation that type checkers take in the form that they refuse, or that says no more to a kernel.

    Of `Annotated[Out, BM, BN]` that is `Out[BM, BN]`, of `Annotated[int, Const]` `Const`; of `In | None` and `tuple[In, ...]` it
    is `In`, since every parameter takes None and tuples; of anything else the annotation itself.

    Raises:
        TypeError: the dimensions are others than `Out[...]` takes.
    """
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        declared, *said = parts
        if isinstance(declared, type) and issubclass(declared, Access):
            return declared.__class_getitem__(tuple(said))
        return Const if any(one is Const for one in said) else declared
    if origin in (tuple, typing.Union, types.UnionType):
        kinds = {declaration(part) for part in parts if part not in (types.NoneType, ...)}
        if len(kinds) == 1:
            return kinds.pop()
    return annotation


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
