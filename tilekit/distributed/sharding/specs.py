"""Over which axes of a mesh the dimensions of an array are split, and which elements a worker holds then. Only numbers here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tilekit.elsewhere import similar

__all__ = ["Axes", "Region", "ShardSpec", "as_names", "as_spec", "bounds", "region", "regions", "shown_region", "whole_shape"]

Axes = Mapping[str, int]  # the axes of a mesh and their lengths, the last one the fastest
Region = tuple[tuple[int, int], ...]  # of each dimension the first index, and the one behind the last


class ShardSpec:
    """Over which axes of a mesh each dimension of an array is split.

    Wherever one is taken, a tuple does as well: `("data", None)` for `ShardSpec("data", None)`; a name alone is that of the first
    dimension; `None` or `()` means that every worker holds all of the array. jax has the same as `PartitionSpec`.

    Args:
        dims: per dimension the name of an axis; a tuple of names, the first of which the slowest; or None, if it is not split.
            Dimensions at the end may be left out. An axis that occurs nowhere holds copies.
        partial: the axes over which the parts are summands: their sum is the array. `map` gives such parts, as of a product
            whose inner dimension is split, and `reduce` sums them.

    Attributes:
        dims, partial: the arguments, as tuples.

    Raises:
        TypeError: something that is no name, tuple of names, or None.
        ValueError: an axis occurs twice.
    """

    __slots__ = ("dims", "partial")

    dims: tuple[str | tuple[str, ...] | None, ...]
    partial: tuple[str, ...]

    def __init__(self, *dims: str | Sequence[str] | None, partial: str | Sequence[str] = ()) -> None:
        names = [as_names(dim, "a dimension of a spec") if dim is not None else () for dim in dims]
        summed = as_names(partial, "partial")
        used = [*itertools.chain(*names), *summed]
        for name in used:
            if used.count(name) > 1:
                raise ValueError(f"the axis {name!r} occurs twice in {_shown(tuple(dims), summed)}; an axis splits one dimension")
        object.__setattr__(self, "dims", tuple(n[0] if len(n) == 1 else n or None for n in names))
        object.__setattr__(self, "partial", summed)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a ShardSpec does not change: make another, ShardSpec(..., {name}=...)")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.dims, self.partial)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardSpec) and (self.dims, set(self.partial)) == (other.dims, set(other.partial))

    def __hash__(self) -> int:
        return hash((self.dims, frozenset(self.partial)))

    def __repr__(self) -> str:
        return _shown(self.dims, self.partial)

    def names(self, dim: int) -> tuple[str, ...]:
        """The axes over which a dimension is split, the slowest first; none if it is not."""
        entry = self.dims[dim]
        return () if entry is None else (entry,) if isinstance(entry, str) else entry

    @property
    def split(self) -> tuple[str, ...]:
        """All axes over which a dimension is split."""
        return tuple(itertools.chain.from_iterable(map(self.names, range(len(self.dims)))))

    def dim_of(self, name: str) -> int | None:
        """The dimension that is split over the axis, or None."""
        return next((dim for dim in range(len(self.dims)) if name in self.names(dim)), None)

    def with_dim(self, dim: int, names: Sequence[str]) -> ShardSpec:
        """The same, but with another split of one dimension."""
        return ShardSpec(*self.dims[:dim], tuple(names), *self.dims[dim + 1 :], partial=self.partial)

    def reduced(self, names: Sequence[str]) -> ShardSpec:
        """The same with these axes holding copies: they split nothing, and nothing is partial over them."""
        dims = [tuple(name for name in self.names(dim) if name not in names) for dim in range(len(self.dims))]
        return ShardSpec(*dims, partial=tuple(name for name in self.partial if name not in names))


def _rebuilt(dims: tuple[Any, ...], partial: tuple[str, ...]) -> ShardSpec:
    return ShardSpec(*dims, partial=partial)


def _shown(dims: tuple[Any, ...], partial: tuple[str, ...]) -> str:
    shown = [*map(repr, dims), *([f"partial={partial!r}"] if partial else [])]
    return f"ShardSpec({', '.join(shown)})"


def as_names(names: Any, what: str) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, (tuple, list)) or not all(isinstance(name, str) for name in several):
        raise TypeError(f"{what}: the name of an axis or a tuple of names, not {names!r}")
    return tuple(several)


def check_names(names: Iterable[str], axes: Axes, what: str) -> None:
    """Refuse names that are no axis of the mesh."""
    for name in names:
        if name not in axes:
            close = similar(name, axes)
            meant = f"; did you mean {close!r}?" if close else ""
            raise ValueError(f"{what}: the mesh has no axis {name!r}: its axes are {', '.join(map(repr, axes))}{meant}")


def as_spec(spec: Any, axes: Axes, ndim: int | None, what: str) -> ShardSpec:
    """What a user gave as a spec, with as many entries as the array has dimensions.

    Args:
        spec: a `ShardSpec`, a tuple, a name or None.
        axes: of the mesh.
        ndim: how many dimensions the array has; None if that is not known yet.
        what: the call, for messages.

    Raises:
        TypeError: it is something else.
        ValueError: an axis that the mesh does not have, or that occurs twice; more entries than dimensions.
    """
    if isinstance(spec, ShardSpec):
        checked: ShardSpec = spec
    else:
        entries = () if spec is None else (spec,) if isinstance(spec, str) else spec
        if not isinstance(entries, tuple):
            raise TypeError(
                f"{what}: a spec is a tuple with the name of an axis, a tuple of names or None for each dimension, not {spec!r}"
            )
        checked = ShardSpec(*entries)
    check_names((*checked.split, *checked.partial), axes, what)
    if ndim is None:
        return checked
    if len(checked.dims) > ndim:
        raise ValueError(f"{what}: {checked!r} is for {len(checked.dims)} dimensions, and the array has {ndim}")
    return ShardSpec(*checked.dims, *(None,) * (ndim - len(checked.dims)), partial=checked.partial)


def bounds(extent: int, count: int) -> list[tuple[int, int]]:
    """Where the parts of a dimension begin and end: NumPy's `array_split`, the first `extent % count` parts are one longer."""
    length, longer = divmod(extent, count)
    ends = [(at + 1) * length + min(at + 1, longer) for at in range(count)]
    return list(zip([0, *ends], ends))


def _index(names: Sequence[str], axes: Axes, at: Mapping[str, int]) -> int:
    index = 0
    for name in names:
        index = index * axes[name] + at[name]
    return index


def region(shape: Sequence[int], spec: ShardSpec, axes: Axes, at: Mapping[str, int]) -> Region:
    """The elements that the worker at the coordinates `at` holds."""
    held = []
    for dim, extent in enumerate(shape):
        names = spec.names(dim)
        held.append(bounds(extent, math.prod(axes[name] for name in names))[_index(names, axes, at)] if names else (0, extent))
    return tuple(held)


def coordinates(axes: Axes) -> Iterator[dict[str, int]]:
    """The coordinates of each worker, in order: the last axis is the fastest."""
    for at in itertools.product(*map(range, axes.values())):
        yield dict(zip(axes, at))


def regions(shape: Sequence[int], spec: ShardSpec, axes: Axes) -> list[Region]:
    """The elements that each worker holds."""
    return [region(shape, spec, axes, at) for at in coordinates(axes)]


def shown_region(held: Region, shape: Sequence[int]) -> str:
    """As one writes it: `[0:4, :]`."""
    return f"[{', '.join(':' if ends == (0, n) else f'{ends[0]}:{ends[1]}' for ends, n in zip(held, shape))}]"


def whole_shape(parts: Sequence[tuple[int, ...]], spec: ShardSpec, axes: Axes, what: str) -> tuple[int, ...]:
    """The shape of the array whose parts have these shapes.

    Args:
        parts: the shape of each worker's.
        spec: with an entry for each dimension.
        axes: of the mesh.
        what: the call, for messages.

    Raises:
        ValueError: they are not the parts into which the spec splits any array.
    """
    places = list(coordinates(axes))
    shape = []
    for dim in range(len(spec.dims)):
        names = spec.names(dim)
        extents: dict[int, int] = {}  # by the index along the axes of the dimension
        for at, part in zip(places, parts):
            extents.setdefault(_index(names, axes, at), part[dim])
        shape.append(sum(extents.values()))
    for at, part, held in zip(places, parts, regions(shape, spec, axes)):
        expected = tuple(stop - start for start, stop in held)
        if part != expected:
            where = ", ".join(f"{name}={index}" for name, index in at.items())
            raise ValueError(
                f"{what}: parts of the shapes {_few(parts)} are not those of one array by {spec!r}: at {where} it would be "
                f"{expected} of {tuple(shape)}. Split dimensions follow NumPy's array_split (the first parts are one longer if "
                "the extent does not divide); workers along other axes hold copies, or summands. Another spec may say how they "
                "belong together"
            )
    return tuple(shape)


def _few(parts: Sequence[tuple[int, ...]]) -> str:
    shown = list(dict.fromkeys(parts))
    return ", ".join(map(str, shown[:4])) + (", ..." if len(shown) > 4 else "")
