"""What an operator's signature is, read from the annotations of a launch."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from tilekit._tensor.tensor import Tensor
from tilekit.ops import DeviceOp

__all__ = ["Signature", "read_signature", "schema_of"]

_NUMBERED = "result{}"


class Signature(NamedTuple):
    """An operator's.

    Attributes:
        parameters: their names and PyTorch's types, with the defaults.
        tensors: the names of those that are tensors.
        results: names of the results.
    """

    parameters: dict[str, inspect.Parameter]
    tensors: tuple[str, ...]
    results: tuple[str, ...]


def read_signature(launch: Callable[..., Any], who: str, results: Sequence[str] | None, is_mutating: bool) -> Signature:
    """The operator's signature: that of `launch`, where `tk.Tensor` means PyTorch's.

    What a launch returns by its annotation is one tensor, a tuple of them, or None; where it says `DeviceOp` or nothing, it is as
    many as `results` names, or one, or none of one that writes into its arguments.

    Raises:
        TypeError, ValueError: `launch` is no function with annotated parameters, at least one of them a tensor; other results
            than `results` names.
    """
    if not callable(launch):
        raise TypeError(f"{who}: the launch is a function that returns an op, not {type(launch).__name__}")
    try:
        signature = inspect.signature(launch, eval_str=True)
    except NameError as error:
        raise TypeError(f"{who}: an annotation of the launch cannot be read where it is defined: {error}") from None
    parameters = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{who}: parameter {parameter} of the launch: an operator's arguments are given by name or place")
        if parameter.annotation is parameter.empty:
            raise TypeError(
                f"{who}: parameter {name} has no annotation; write {name}: torch.Tensor, or float, int, bool, str, list[int]..."
            )
        parameters[name] = parameter.replace(annotation=_of_torch(parameter.annotation), kind=parameter.POSITIONAL_OR_KEYWORD)
    tensors = tuple(name for name, p in parameters.items() if p.annotation in (torch.Tensor, torch.Tensor | None))
    for name, parameter in parameters.items():
        if name not in tensors and _has_tensors(parameter.annotation):
            raise TypeError(
                f"{who}: parameter {name} is {parameter.annotation}; a tensor is torch.Tensor, or torch.Tensor | None"
            )
    if not tensors:
        raise TypeError(f"{who}: no parameter is a tensor, x: torch.Tensor, by which an operator knows its device")
    count = _count(signature.return_annotation, who)
    if results is None:
        count = (0 if is_mutating else 1) if count is None else count
        results = ("result",) if count == 1 else tuple(_NUMBERED.format(at) for at in range(count))
    elif isinstance(results, str) or not all(isinstance(name, str) for name in results):
        raise TypeError(f'{who}: results is a tuple of names, ("y",), not {results!r}')
    elif count is not None and count != len(results):
        raise ValueError(f"{who}: the launch returns {count} tensors by its annotation, results names {len(results)}")
    if twice := set(results) & set(parameters):
        raise ValueError(f"{who}: {', '.join(sorted(twice))} is the name of a parameter and of a result")
    return Signature(parameters, tensors, tuple(results))


def _of_torch(annotation: Any) -> Any:
    """An annotation in PyTorch's terms."""
    if annotation is Tensor or typing.get_origin(annotation) is DeviceOp:
        return torch.Tensor
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [_of_torch(member) for member in typing.get_args(annotation)]
        return typing.Union[tuple(members)]  # noqa: UP007 - of as many as there are
    return annotation


def _has_tensors(annotation: Any) -> bool:
    return annotation in (Tensor, torch.Tensor) or any(map(_has_tensors, typing.get_args(annotation)))


def _count(returned: Any, who: str) -> int | None:
    """How many tensors an annotation says are returned; None if it does not say."""
    if returned is inspect.Signature.empty or returned is Any:
        return None
    if returned is None:
        return 0
    if typing.get_origin(returned) is DeviceOp:
        (inner,) = typing.get_args(returned)
        # Of an op whose result is a tuple, or anything, it is not known how many.
        return 1 if inner is Tensor else None
    if isinstance(returned, type) and issubclass(returned, DeviceOp):
        return None
    if returned in (Tensor, torch.Tensor):
        return 1
    members = typing.get_args(returned)
    if typing.get_origin(returned) is tuple and all(member in (Tensor, torch.Tensor) for member in members):
        return len(members)
    raise TypeError(f"{who}: the launch returns {returned}; an operator returns tensors: torch.Tensor, a tuple of them, or None")


def schema_of(parameters: Iterable[inspect.Parameter], count: int | None, who: str, mutates: Sequence[str] = ()) -> str:
    """The schema in PyTorch's language, of an operator that returns `count` tensors, or a list of them.

    Raises:
        TypeError: an annotation that PyTorch's operators do not have; the text is PyTorch's.
    """

    def prototype() -> None: ...

    returned: Any = list[torch.Tensor]
    if count is not None:
        returned = tuple[(torch.Tensor,) * count] if count > 1 else torch.Tensor if count else None  # type: ignore[misc]
    prototype.__signature__ = inspect.Signature(list(parameters), return_annotation=returned)  # type: ignore[attr-defined]
    try:
        schema: str = torch.library.infer_schema(prototype, mutates_args=tuple(mutates))
    except ValueError as error:
        raise TypeError(f"{who}: {error}") from None
    return schema
