"""The gradient of an operator by another launch, whose parameters say by their names what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tilekit.torch._memory import DTYPES as _DTYPES
from tilekit.torch._signature import Signature, schema_of

__all__ = ["Backward", "backward_of", "register_autograd", "shapes_of"]

_LIKE = "_like"  # the last parameter of the operator: what the gradients are, see `shapes_of`


class Backward(NamedTuple):
    """What a backward launch takes and gives.

    Attributes:
        name: of the operator that it becomes.
        schema: of that operator.
        parameters: for each of its parameters where its value is from: `(what, at)`, the place of a gradient, a parameter or a
            result of the operator that it belongs to.
        tensors: the names of those that are tensors.
        wrt: of each gradient that it gives the places of the parameters whose it is.
        inputs: how many parameters the operator has.
    """

    name: str
    schema: str
    parameters: dict[str, tuple[str, int]]
    tensors: tuple[str, ...]
    wrt: tuple[tuple[int, ...], ...]
    inputs: int


def backward_of(who: str, backward: Callable[..., Any], signature: Signature, wrt: Sequence[tuple[str, ...]] | None) -> Backward:
    """How `backward` belongs to the operator `who` of that signature.

    Raises:
        TypeError: it is no function, or a parameter of it is called as nothing that it could get.
        ValueError: `wrt` names what is no tensor.
    """
    if not callable(backward):
        raise TypeError(f"{who}: backward is a function that returns an op, not {type(backward).__name__}")
    if unknown := [name for group in wrt or () for name in group if name not in signature.tensors]:
        raise ValueError(f"{who}: wrt names {', '.join(unknown)}; the tensors are {', '.join(signature.tensors)}")
    names = list(signature.parameters)
    sources = {f"grad_{name}": ("gradient", at) for at, name in enumerate(signature.results)}
    if signature.results:
        sources["grad"] = ("gradient", 0)
    sources |= {name: ("result", at) for at, name in enumerate(signature.results)}
    sources |= {name: ("input", at) for at, name in enumerate(names)}
    parameters, types = {}, []
    for name, parameter in inspect.signature(backward).parameters.items():
        if name not in sources:
            if parameter.default is not parameter.empty:
                continue
            raise TypeError(
                f"{who}: backward has a parameter {name}, which is none of {', '.join(sources)}; one with a default is left out"
            )
        parameters[name] = sources[name]
        annotation = signature.parameters[name].annotation if name in names else torch.Tensor
        types.append(inspect.Parameter(name, parameter.POSITIONAL_OR_KEYWORD, annotation=annotation))
    if not any(source == "gradient" for source, _ in parameters.values()):
        raise TypeError(f"{who}: backward takes no gradient: call a parameter grad, or {', '.join(sorted(sources))}")
    tensors = tuple(name for name in parameters if name not in names or name in signature.tensors)
    groups = [(name,) for name in signature.tensors] if wrt is None else wrt
    chosen = tuple(tuple(map(names.index, group)) for group in groups)
    name = f"{who}_backward"
    types.append(inspect.Parameter(_LIKE, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=list[int]))
    return Backward(name, schema_of(types, None, name), parameters, tensors, chosen, len(names))


def shapes_of(like: Sequence[int]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """The shapes and dtypes of gradients, which are those of the arguments, from the numbers that the operator is given.

    Extents may be symbols: of each gradient there is the number of its dtype, that of its dimensions, and the extents.
    """
    shapes, at = [], 0
    while at < len(like):
        end = at + 2 + int(like[at + 1])
        shapes.append((tuple(like[at + 2 : end]), _DTYPES[int(like[at])]))
        at = end
    return shapes


def register_autograd(op: Any, back: Any, formula: Backward) -> None:
    """Make `back`, an operator, the gradient of `op`."""
    wanted = {at for what, at in formula.parameters.values() if what == "gradient"}
    kept = {
        name: source
        for name, source in formula.parameters.items()
        if source[0] == "result" or (source[0] == "input" and name in formula.tensors)
    }
    numbers = {name: at for name, (what, at) in formula.parameters.items() if what == "input" and name not in formula.tensors}

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*(inputs[at] if what == "input" else outputs[at] for what, at in kept.values()))
        ctx.numbers = {name: inputs[at] for name, at in numbers.items()}
        present = (tuple(at for at in group if inputs[at] is not None) for group in formula.wrt)
        ctx.wrt = [group for group in present if group]
        ctx.like = [n for at, *_ in ctx.wrt for n in (_DTYPES.index(inputs[at].dtype), inputs[at].ndim, *inputs[at].shape)]
        ctx.mark_non_differentiable(*(result for at, result in enumerate(outputs) if at not in wanted))

    def gradients(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values = {**dict(zip(kept, ctx.saved_tensors)), **ctx.numbers}
        for name, (what, at) in formula.parameters.items():
            if what == "gradient":
                values[name] = grads[at]
        of_present = back(*(values[name] for name in formula.parameters), ctx.like)
        by_place: list[torch.Tensor | None] = [None] * formula.inputs
        for group, gradient in zip(ctx.wrt, of_present):
            for at in group:
                by_place[at] = gradient
        return tuple(by_place)

    op.register_autograd(gradients, setup_context=setup_context)
