"""`Config`, one way to launch a kernel, and `Space`, those that are worth a try."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tilekit.lang.tile import scalar_kind
from tilekit.launch.launch import KernelLaunch, check_occupancy, check_warps

__all__ = ["Config", "Space", "as_configs"]

_OPTIONS = ("tile", "num_warps", "occupancy")


class Config:
    """One way to launch a kernel: its tile, its warps, its occupancy, and the values of generics and `Const` parameters.

    `config["BM"]` and `config.BM` are the value that is called so. Equal configurations are equal, and hash alike.

    Args:
        tile: of `KernelLaunch.tile`: a shape, or a dict of shapes by the parameters' names; None leaves the launch as it is.
        num_warps: of `KernelLaunch.num_warps`, or None.
        occupancy: of `KernelLaunch.occupancy`, or None.
        values: of generics and parameters, by name: numbers, strings, bools, None, and tuples of these.

    Raises:
        TypeError: a value is something else, which a record on disk could not hold.
        ValueError: no such number of warps, or occupancy.
    """

    __slots__ = ("_items", "values")

    def __init__(
        self,
        *others: Any,
        tile: int | tuple[int, ...] | Mapping[str, int | tuple[int, ...]] | None = None,
        num_warps: int | None = None,
        occupancy: int | None = None,
        **values: Any,
    ) -> None:
        if others:
            raise TypeError(f"Config takes values by their names, tk.Config(BM=128, num_warps=4), and no {others[0]!r}")
        options = {"tile": tile, "num_warps": check_warps(num_warps), "occupancy": check_occupancy(occupancy)}
        self.values: dict[str, Any] = {name: _plain(name, value) for name, value in values.items()}
        chosen = {name: _plain(name, value) for name, value in options.items() if value is not None}
        self._items: dict[str, Any] = {**chosen, **self.values}

    def __getitem__(self, name: str) -> Any:
        if name in _OPTIONS:
            return self._items.get(name)
        try:
            return self._items[name]
        except KeyError:
            raise KeyError(f"{self!r} has no {name}") from None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # of copying and pickling, before there is anything in it
                raise AttributeError(name)
            try:
                return self[name]
            except KeyError as error:
                raise AttributeError(error.args[0]) from None

    else:

        def __getattr__(self, name: str) -> Any: ...

    def apply(self, launch: KernelLaunch) -> KernelLaunch:
        """`launch`, with the tile, the warps and the occupancy, and the values that are called like generics of its kernel.

        Raises:
            TypeError, ValueError: as the methods of `KernelLaunch` that it calls.
        """
        tile = self["tile"]
        if tile is not None:
            launch = launch.tile(**tile) if isinstance(tile, dict) else launch.tile(tile)
        generics = {name: value for name, value in self.values.items() if name in launch.kernel.signature.generics}
        if generics:
            launch = launch.generics(**generics)
        if self["num_warps"] is not None:
            launch = launch.num_warps(self["num_warps"])
        return launch if self["occupancy"] is None else launch.occupancy(self["occupancy"])

    def to_json(self) -> dict[str, Any]:
        """It, of what JSON has (internal)."""
        return dict(self._items)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Config:
        """The opposite; TypeError or ValueError if it is something else (internal)."""
        return cls(**{name: _tupled(value) for name, value in fields.items()})

    def __eq__(self, other: object) -> bool:
        return _key(self._items) == _key(other._items) if isinstance(other, Config) else NotImplemented

    def __hash__(self) -> int:
        return hash(_key(self._items))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._items.items())})"


class Space:
    """Configurations to choose from: all combinations of some values that satisfy some constraints.

    ::

        tk.Space(tile=[(64, 64), (128, 128)], num_warps=[4, 8], BK=[32, 64], where=lambda c: c.tile[0] * c.BK <= 4096)

    The first combination is that of all first values: what the others' results are compared with. The last name varies fastest.

    Args:
        where: a function of a `Config`, or several: those for which one of them is false are left out.
        choices: values to choose from, by the names that `Config` takes.

    Raises:
        TypeError: choices are no list or tuple, or a value is none that `Config` takes.
        ValueError: there are none, nothing is left, or a constraint raises.
    """

    def __init__(
        self, *, where: Callable[[Config], object] | Sequence[Callable[[Config], object]] = (), **choices: Sequence[Any]
    ) -> None:
        constraints = where if isinstance(where, (list, tuple)) else (where,)
        for constraint in constraints:
            if not callable(constraint):
                raise TypeError(f"Space: where is a function of a configuration, or a list of them, not {constraint!r}")
        for name, values in choices.items():
            if not isinstance(values, (list, tuple, range)):
                raise TypeError(f"Space: {name} takes a list of values to choose from, not {values!r}")
        combined = itertools.product(*choices.values()) if choices else ()
        every = [Config(**dict(zip(choices, values, strict=True))) for values in combined]
        self._configs = _distinct(config for config in every if all(_holds(constraint, config) for constraint in constraints))
        if not self._configs:
            why = f"none of {len(every)} combinations satisfies the constraints" if every else "there is nothing to choose from"
            raise ValueError(f"Space: {why}")

    def __iter__(self) -> Iterator[Config]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def __contains__(self, config: object) -> bool:
        return config in self._configs

    def __repr__(self) -> str:
        return f"<Space of {len(self)} configurations>"


def as_configs(space: Space | Iterable[Config], who: str) -> tuple[Config, ...]:
    """The configurations of a space, or of a list.

    Raises:
        TypeError: it is neither.
        ValueError: there are none.
    """
    try:
        configs = list(space)
    except TypeError:
        raise TypeError(f"{who} takes a tk.Space, or a list of tk.Config, not {space!r}") from None
    for config in configs:
        if not isinstance(config, Config):
            raise TypeError(f"{who} takes a tk.Space, or a list of tk.Config, with no {config!r} in it")
    if not configs:
        raise ValueError(f"{who}: there is no configuration to choose from")
    return _distinct(configs)


def _holds(constraint: Callable[[Config], object], config: Config) -> bool:
    try:
        return bool(constraint(config))
    except Exception as error:
        raise ValueError(f"Space: the constraint {constraint!r} fails at {config!r}: {type(error).__name__}: {error}") from error


def _distinct(configs: Iterable[Config]) -> tuple[Config, ...]:
    return tuple(dict.fromkeys(configs))


def _plain(name: str, value: Any) -> Any:
    """A value as a record can hold it."""
    if name == "tile" and isinstance(value, Mapping):
        return {str(parameter): _plain(name, shape) for parameter, shape in value.items()}
    if isinstance(value, (tuple, list)):
        try:
            return tuple(_plain(name, part) for part in value)
        except RecursionError:
            _refuse(name, value)
    if value is None or isinstance(value, (bool, str)):
        return value
    kind = scalar_kind(value)
    if kind is None:
        _refuse(name, value)
    return cast("Any", kind)(value)


def _refuse(name: str, value: Any) -> NoReturn:
    raise TypeError(f"Config: {name} is a number, a string, a bool, None, or a tuple of these, not {value!r}")


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tupled(part) for name, part in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _key(value: Any) -> Any:
    """Something to compare: True is not 1, nor is 1.0."""
    if isinstance(value, dict):
        return frozenset((name, _key(part)) for name, part in value.items())
    return (tuple, *map(_key, value)) if isinstance(value, tuple) else (type(value), value)
