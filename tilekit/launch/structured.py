"""Arguments that are put together: tuples of tensors, nested as one likes, and None in the place of an optional tensor.

Behind a kernel that is called so stands another, with a parameter for each tensor and number in the tuples. Its launch is like
any other; its result is put together again, so that everything is in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilekit._runtime.context import ExecutionContext
from tilekit.lang.signature import Parameter
from tilekit.launch.launch import KernelLaunch
from tilekit.ops.execution import Done, Steps

if TYPE_CHECKING:
    from tilekit.launch.decorator import Kernel

__all__ = ["NestedLaunch", "Structure", "flat", "named", "nested", "parameters_of", "structure_of"]

Structure = Any
"""Of an argument: True for one that is passed as it is, None for None, a tuple of structures for a tuple."""


def structure_of(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> tuple[Structure, ...] | None:
    """How the arguments of a launch are put together; None if none of them is a tuple, or None."""
    together = zip(parameters, arguments, strict=True)
    structure = tuple(True if parameter.kind == "const" else _structure(argument) for parameter, argument in together)
    return None if all(part is True for part in structure) else structure


def _structure(argument: Any) -> Structure:
    if type(argument) is tuple:
        return tuple(map(_structure, argument))
    return None if argument is None else True


def flat(structure: Structure, argument: Any) -> Iterator[Any]:
    """What is in an argument of such a structure, in order."""
    if structure is True:
        yield argument
    elif structure is not None:
        for part, inner in zip(structure, argument, strict=True):
            yield from flat(part, inner)


def nested(structure: Structure, leaves: Iterator[Any]) -> Any:
    """An argument of such a structure, of what is in it."""
    if structure is True:
        return next(leaves)
    return None if structure is None else tuple(nested(part, leaves) for part in structure)


def named(name: str, structure: Structure, taken: set[str]) -> Any:
    """The names of the parameters that stand for one of such a structure, put together likewise."""
    if structure is None:
        return None
    if structure is not True:
        return tuple(named(f"{name}_{at}", part, taken) for at, part in enumerate(structure))
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def parameters_of(parameter: Parameter, names: Any) -> Iterator[Parameter]:
    """The parameters that stand for one, by their names."""
    if isinstance(names, tuple):
        for part in names:
            yield from parameters_of(parameter, part)
    elif names is not None:
        yield replace(parameter, name=names)


class NestedLaunch(KernelLaunch):
    """A launch whose result is put together as the arguments were."""

    __slots__ = ()

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Launch."""
        started = super().steps(ctx)
        return Done(self._nested(started.value)) if type(started) is Done else self._finished(started)

    def _finished(self, started: Any) -> Steps:
        result = yield started
        return self._nested(result)

    def _nested(self, results: Sequence[Any]) -> tuple[Any, ...]:
        leaves = iter(results)
        kernel: Kernel = self.kernel
        return tuple(nested(part, leaves) for part in kernel.structure or ())

    @property
    def specs(self) -> Sequence[Any]:
        """What is known of each result; of those in tuples nothing."""
        leaves = iter(super().specs)
        specs = [(part, nested(part, leaves)) for part in self.kernel.structure or ()]
        return [spec if part is True else None for part, spec in specs]
