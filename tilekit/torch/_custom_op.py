"""`custom_op`: a launch as an operator of PyTorch's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, overload

import torch

from tilekit._runtime.device import use_device
from tilekit.ops import AsyncKernelLaunch, DeviceOp, zip_ops
from tilekit.torch._autograd import Backward, backward_of, register_autograd, shapes_of
from tilekit.torch._described import results_of
from tilekit.torch._dispatch import register_autocast, register_shortcuts, registry_of
from tilekit.torch._memory import Guests, described, device_of, our_dtype, torch_dtype
from tilekit.torch._repeated import Repeated, flat
from tilekit.torch._running import device_on, run
from tilekit.torch._signature import read_signature, schema_of

__all__ = ["custom_op"]

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_DEVICES = ("cpu", "cuda")


@overload
def custom_op(
    name: str,
    launch: None = None,
    /,
    *,
    mutates: Sequence[str] = (),
    results: Sequence[str] | None = None,
    backward: Callable[..., Any] | None = None,
    wrt: Sequence[str | tuple[str, ...]] | None = None,
    fake: Callable[..., Any] | None = None,
    contiguous: bool = True,
    pure: bool = False,
    autocast: torch.dtype | Literal["lower"] | None = None,
) -> Callable[[Callable[..., Any]], Any]: ...
@overload
def custom_op(
    name: str,
    launch: Callable[..., Any],
    /,
    *,
    mutates: Sequence[str] = (),
    results: Sequence[str] | None = None,
    backward: Callable[..., Any] | None = None,
    wrt: Sequence[str | tuple[str, ...]] | None = None,
    fake: Callable[..., Any] | None = None,
    contiguous: bool = True,
    pure: bool = False,
    autocast: torch.dtype | Literal["lower"] | None = None,
) -> Any: ...
def custom_op(
    name: str,
    launch: Callable[..., Any] | None = None,
    /,
    *,
    mutates: Sequence[str] = (),
    results: Sequence[str] | None = None,
    backward: Callable[..., Any] | None = None,
    wrt: Sequence[str | tuple[str, ...]] | None = None,
    fake: Callable[..., Any] | None = None,
    contiguous: bool = True,
    pure: bool = False,
    autocast: torch.dtype | Literal["lower"] | None = None,
) -> Any:
    """Make a launch an operator of PyTorch's, `torch.ops.ns.name`; a function, or a decorator without `launch`.

    ::

        def silu(x: torch.Tensor):
            return silu_forward(api.empty(x.shape, x.dtype), x).tile(1024)

        def silu_backward(grad, x):
            return silu_gradient(api.empty(x.shape, x.dtype), grad, x).tile(1024)

        silu = tilekit.torch.custom_op("mylib::silu", silu, backward=silu_backward)

    The operator works in eager programs, under `torch.compile(fullgraph=True)`, while CUDA graphs are captured, and on CPU
    tensors. It runs on PyTorch's current stream, in PyTorch's memory, and returns at once; on the CPU when it is done. What
    PyTorch must know of its results to compile a program follows from the op that `launch` returns: `launch` is then called with
    tensors that have no memory. Extents are numbers for it, and so PyTorch compiles a program for each shape, unless `fake` says
    what the results are where extents are symbols.

    Args:
        name: `"namespace::name"`. One that is there already is replaced.
        launch: a function of tensors, which it gets as `tk.Tensor`, and of numbers, that returns an op: a kernel's launch, whose
            outputs are the results; any op that gives a tensor or a tuple of tensors; or a tuple of ops. The operator's signature
            is that of its annotations, in which `torch.Tensor` and `tk.Tensor` are the same; with `| None`, `float`, `int`,
            `bool`, `str`, `list[int]`, and defaults.
        mutates: the names of the tensors that `launch` writes into.
        results: names for the results, by which `backward` may ask for them; by default `result`, of several `result0`,
            `result1`... Where the annotations do not say it, also how many there are.
        backward: a function like `launch`, of what its parameters are called: `grad` is the gradient by the (first) result,
            `grad_y` that by result `y`; parameters and results of `launch` are these. Others need defaults. Its results are
            the gradients, see `wrt`.
        wrt: the names of the tensors that `backward` gives gradients by, in order; by default all. A tuple among them names
            tensors that have one gradient together: `(("x", "y"), "weight")`. One that is None gets none.
        fake: a function of PyTorch's tensors, like `launch`, that gives tensors of the results' shapes and dtypes: for compiled
            programs that serve all shapes, where extents are symbols. `torch.empty_like`, for one.
        contiguous: whether `launch` and `backward` get copies of arguments with gaps, instead of the strides that they have.
        pure: whether `launch` and `backward` do the same for good for arguments that look alike: what they launch follows from
            shapes, strides, dtypes and alignment of the tensors and from the values of all else, and from nothing that may
            change, such as a global variable. Then they are called for the first two such calls, and what they did is done again
            for later ones, in some ten microseconds instead of hundreds. It makes no difference on the CPU, for operators that
            write into their arguments, and where an op does more than launch kernels on its arguments and on new tensors.
        autocast: what floating-point arguments become under `torch.autocast`, except float64: a dtype, such as `torch.float32`
            where the range matters; or `"lower"` for that of autocast. None leaves them.

    Returns:
        The operator, a `torch.library.CustomOpDef`: to be called, and checked by `torch.library.opcheck`.

    Raises:
        TypeError, ValueError: other arguments. When it is called also what `launch` raises, and for a launch that writes into
            other tensors than `mutates` names, or returns one of its arguments.
    """
    if not isinstance(name, str):
        raise TypeError(f'custom_op: a name is a str, "namespace::name", not {type(name).__name__}')
    if not _NAME.fullmatch(name):
        raise ValueError(f'custom_op: {name!r} is no name of an operator: it takes "namespace::name"')
    if launch is None:
        return partial(
            custom_op, name, mutates=mutates, results=results, backward=backward, wrt=wrt, fake=fake, contiguous=contiguous,
            pure=pure, autocast=autocast,
        )  # fmt: skip
    if autocast is not None and autocast != "lower" and not getattr(autocast, "is_floating_point", False):
        raise TypeError(f'{name}: autocast is a floating-point dtype of PyTorch\'s, or "lower", not {autocast!r}')
    mutated = _names(name, "mutates", mutates)
    signature = read_signature(launch, name, results, bool(mutated))
    if unknown := [each for each in mutated if each not in signature.tensors]:
        raise ValueError(f"{name}: mutates names {', '.join(unknown)}; the tensors are {', '.join(signature.tensors)}")
    formula: Backward | None = None
    if backward is not None:
        if mutated:
            raise ValueError(f"{name}: an operator that writes into its arguments has no gradient in PyTorch: leave out backward")
        formula = backward_of(name, backward, signature, None if wrt is None else _groups(name, wrt))
    elif wrt is not None:
        raise ValueError(f"{name}: wrt says what backward gives gradients by; there is no backward")

    if fake is not None and not callable(fake):
        raise TypeError(f"{name}: fake is a function that gives tensors like the results, not {type(fake).__name__}")
    count = len(signature.results)
    tensors = signature.tensors
    operator = _Operator(name, launch, list(signature.parameters), tensors, mutated, contiguous, pure, count, fake)
    op, registry = _registered(operator, schema_of(signature.parameters.values(), count, name, mutated))
    if formula is not None:
        back = _Gradients(formula.name, backward, list(formula.parameters), formula.tensors, (), contiguous, pure, None)
        register_autograd(op, _registered(back, formula.schema)[0], formula)
    if autocast is not None:
        register_autocast(op, registry, autocast, _DEVICES)
    return op


def _registered(operator: _Operator, schema: str) -> tuple[Any, torch.library.Library]:
    registry = registry_of(operator.name)
    op = torch.library.custom_op(
        operator.name, operator.call, mutates_args=operator.mutates, schema=schema, device_types=_DEVICES
    )
    op.register_fake(operator.fake)
    op.__doc__ = operator.launch.__doc__
    if not operator.mutates:
        register_shortcuts(op, registry, operator.call, _DEVICES)
    return op, registry


def _names(who: str, what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'{who}: {what} is a tuple of names, ("y",), not {names!r}')
    return tuple(names)


def _groups(who: str, wrt: Any) -> tuple[tuple[str, ...], ...]:
    """Of each gradient the names of the tensors whose it is."""
    groups = [(each,) if isinstance(each, str) else each for each in wrt]
    if isinstance(wrt, str) or not all(isinstance(group, tuple) and all(isinstance(n, str) for n in group) for group in groups):
        raise TypeError(f'{who}: wrt is a tuple of names and of tuples of names, ("y",), not {wrt!r}')
    return tuple(groups)


class _Operator:
    """What PyTorch calls.

    Attributes:
        name: the operator's.
        launch: makes the op.
        names: of the parameters, as `launch` calls them.
        tensors: of those that are tensors.
        mutates: of those that are written.
        contiguous: whether arguments with gaps are copied.
        repeated: what is known of calls that look alike; None if that is not looked for.
        count: how many results there are; 0 gives None, None a list of as many as the op has.
        like: what gives tensors like the results, where extents are symbols.
    """

    def __init__(
        self,
        name: str,
        launch: Any,
        names: Sequence[str],
        tensors: Sequence[str],
        mutates: tuple[str, ...],
        contiguous: bool,
        pure: bool,
        count: int | None,
        like: Callable[..., Any] | None = None,
    ) -> None:
        self.name, self.launch, self.names = name, launch, tuple(names)
        self.tensors, self.mutates = frozenset(tensors), mutates
        self.contiguous, self.count, self.like = contiguous, count, like
        self.repeated = Repeated(name, self._taken, self._op) if pure and not mutates else None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The operator, with memory."""
        if self.repeated is not None and not kwargs and (results := self.repeated.call(args)) is not None:
            return self._returned(results)
        return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        arguments, arrays = self._taken(args, kwargs)
        where = device_of(arrays, self.name)
        device = device_on(where)
        guests = Guests(where, device)
        for name, array in arrays.items():
            arguments[name] = guests.tensor(name, array, self.name)
        with use_device(device):
            op = self._op(arguments)
        done = run(op, guests)
        if undeclared := [name for name in guests.written() if name not in self.mutates and not self._shares(name, arrays)]:
            raise ValueError(
                f"{self.name}: the launch has written into {', '.join(undeclared)}, of which PyTorch must know: "
                f"custom_op(..., mutates={(*self.mutates, *undeclared)!r})"
            )
        return self._returned([] if self.count == 0 else [guests.result(each, self.name) for each in flat(done)])

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """The operator on tensors that have no memory: what its results are."""
        arguments, arrays = self._taken(args, kwargs)
        where = device_of(arrays, self.name)
        if self.like is not None and any(isinstance(n, torch.SymInt) for array in arrays.values() for n in array.shape):
            return self._returned(list(flat(self.like(*args, **kwargs))))
        for name, array in arrays.items():
            arguments[name] = described(name, array, self.name)
        op = self._op(arguments)
        op.consumed()
        results = [] if self.count == 0 else results_of(op, self.name)
        return self._returned(
            [
                torch.empty_strided(each.shape, each.strides, dtype=torch_dtype(each.dtype, self.name), device=where)
                for each in results
            ]
        )

    def _taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """The arguments by their names, and those that are tensors, without gaps if that is wanted."""
        arguments = {**dict(zip(self.names, args)), **kwargs}
        arrays = {}
        for name, value in arguments.items():
            if name not in self.tensors:
                arguments[name] = _number(value, self.name)
            elif value is not None:
                arrays[name] = value.contiguous() if self.contiguous and name not in self.mutates else value
        return arguments, arrays

    def _op(self, arguments: dict[str, Any]) -> DeviceOp[Any]:
        """What the launch makes of them, as one op whose result is the tensors."""
        launched = self.launch(**arguments)
        several = isinstance(launched, (tuple, list))
        parts = [self._part(part) for part in (launched if several else (launched,))]
        return zip_ops(*parts) if several else parts[0]

    def _part(self, launched: Any) -> DeviceOp[Any]:
        if not isinstance(launched, DeviceOp):
            raise TypeError(
                f"{self.name}: the launch returned {type(launched).__name__}, not an op; it describes work, without .sync() or "
                "await"
            )
        if not isinstance(launched, AsyncKernelLaunch) or self.count == 0:
            return launched
        whole = launched.out()
        whole._site = launched._site  # the user's line, and not PyTorch's
        return whole

    def _returned(self, results: list[torch.Tensor]) -> Any:
        if self.count is None:
            return results
        if len(results) != self.count:
            raise ValueError(f"{self.name}: the op has {len(results)} results, the operator {self.count}")
        return tuple(results) if self.count > 1 else results[0] if results else None

    def _shares(self, name: str, arrays: dict[str, torch.Tensor]) -> bool:
        """Whether memory that was written is that of an argument that may be."""
        address = arrays[name].untyped_storage().data_ptr()
        return any(arrays[other].untyped_storage().data_ptr() == address for other in self.mutates if other in arrays)


class _Gradients(_Operator):
    """The operator of a backward launch: its results are like arguments of another operator, and are known by that."""

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        *arguments, like = args
        gradients, wanted = super()._run(*arguments), shapes_of(like)
        if len(gradients) != len(wanted):
            raise ValueError(
                f"{self.name}: the op has {len(gradients)} results, gradients are wanted by {len(wanted)} tensors: name those "
                "that have one, custom_op(..., wrt=(...))"
            )
        for gradient, (shape, dtype) in zip(gradients, wanted):
            if gradient.shape != shape or gradient.dtype != dtype:
                raise ValueError(
                    f"{self.name}: a gradient is {gradient.dtype} of shape {tuple(gradient.shape)}, what it is by {dtype} of "
                    f"shape {shape}"
                )
        return gradients

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Tensors without memory like the gradients."""
        where = next(value.device for value in args if isinstance(value, torch.Tensor))
        return [torch.empty(shape, dtype=dtype, device=where) for shape, dtype in shapes_of(args[-1])]


def _number(value: Any, who: str) -> Any:
    """A number as Python's: where PyTorch traces, it may be a symbol. A dtype as tilekit's."""
    if isinstance(value, torch.dtype):
        return our_dtype(value, who)
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    return [_number(each, who) for each in value] if isinstance(value, (tuple, list)) else value
