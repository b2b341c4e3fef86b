"""`@kernel`: what makes a function a kernel, and what a kernel takes."""

from __future__ import annotations

import functools
import sys
import threading
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, overload

import numpy as np

from tilekit._tensor.arrays import is_array, tensor_of
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel, Origin, current
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.grids import Fold
from tilekit.compiler.specialise import bind
from tilekit.lang.files import file_of
from tilekit.lang.functions import names_used
from tilekit.lang.signature import KernelSignature, Parameter, read_signature
from tilekit.lang.tile import scalar_kind
from tilekit.launch import habits, planning
from tilekit.launch.launch import KernelLaunch, check_occupancy, check_warps, launch_of
from tilekit.launch.specialisation import Specialisation
from tilekit.launch.structured import NestedLaunch, Structure, flat, named, parameters_of, structure_of
from tilekit.ops import DeviceOp
from tilekit.ops.fast_path import FAST_PATH
from tilekit.ops.sites import site_of

__all__ = ["Kernel", "kernel"]

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P", default=...)  # so that `Kernel` alone means any of them
else:
    P = typing.ParamSpec("P")


@overload
def kernel(function: Callable[P, None], /) -> Kernel[P]: ...
@overload
def kernel(*, num_warps: int | None = None, occupancy: int | None = None) -> Callable[[Callable[P, None]], Kernel[P]]: ...
def kernel(
    function: Callable[..., Any] | None = None, *, num_warps: int | None = None, occupancy: int | None = None, **others: Any
) -> Any:
    """Make a function a kernel: `@tk.kernel`, or `@tk.kernel(num_warps=8)`.

    Calling the kernel builds a launch (a `DeviceOp`); see `KernelLaunch`. The function itself stays as it was, and is not run
    by Python, except block by block on a CPU device that interprets kernels.

    Args:
        function: the kernel. Its parameters are annotated `tk.In`, `tk.Out`, `tk.InOut`, `tk.Const`, for scalars `float`, `int`
            or `bool` (which of them makes no difference), or not at all: then a partition is read and written, a tensor is
            read, anything else is a scalar. Type checkers see them in the calls of the kernel, and take shapes in the form
            `Annotated[tk.In, -1, 64]`; see "Types" in the guides.
        num_warps: how many warps (of 32 threads) a block has, a power of two up to 32; by default as many as its tiles keep busy.
        occupancy: how many blocks a multiprocessor should have at a time, 1 to 32, as in cuTile Python: the compiler then gives a
            thread no more registers than leave room for so many. Too many of them, and it keeps values in local memory, which is
            slow; `op.compile(target=...).local_bytes` says so. By default a thread gets as many registers as it can use.

    Raises:
        TypeError: what is decorated is no plain function, or its annotations are others.
        ValueError: `num_warps` or `occupancy` is another number.
        CompileError: the function's source cannot be read.
    """
    if others:
        raise habits.unknown_options(others)
    scope = sys._getframe(1).f_locals
    make = FAST_PATH.kernel or Kernel
    if function is None:
        return lambda decorated: make(decorated, scope, num_warps, occupancy)
    return make(function, scope, num_warps, occupancy)


_PUT_TOGETHER = {type(None), tuple}  # the types of arguments that may be taken apart


class _TooWide(ValueError):
    """An int that 64 bits with a sign do not hold. Those without one may."""


class Kernel(Generic[P]):
    """A function in the tile language. Made by `@tk.kernel`. To type checkers it takes what the function does.

    Attributes:
        name: the function's.
        label: what messages call it.
        signature: its parameters and generics.
        num_warps, occupancy: what the decorator was given.
        result_count: how many results a launch has, one for each parameter.
        grids: the options that have been made by `grid`, by what they were made of.
        structure: of a kernel that takes arguments apart how they are put together, see `launch.structured`.
    """

    __slots__ = ("__dict__", "__weakref__", "_form", "_forms", "_options", "_origins", "label")

    _launch_type: type[KernelLaunch] = KernelLaunch  # of what calling it makes
    structure: tuple[Structure, ...] | None = None

    def __init__(
        self, function: Callable[..., Any], scope: Mapping[str, Any], num_warps: int | None, occupancy: int | None = None
    ) -> None:
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"@tk.kernel decorates a function, not {type(function).__name__}{habits.decorated(function)}")
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self.label = f"kernel {self.name}"
        self.signature: KernelSignature = read_signature(function, scope)
        self.num_warps, self.occupancy = check_warps(num_warps), check_occupancy(occupancy)
        self._function = function
        self._file = file_of(function)  # as it is now: it may be edited before the first launch
        self._bound: dict[Any, BoundKernel] = {}
        self._specialisations: dict[Any, Specialisation] = {}
        self._forms: dict[tuple[type, ...], planning.Form] = {}
        self._arrays: dict[tuple[type, ...], tuple[int, ...]] = {}  # where arrays of other libraries are, by the types
        self._form: planning.Form | None = None  # the last one that native code took
        self._origins: list[Origin] = []  # what names outside of the kernel stood for when it was specialised
        self._nested: dict[Any, Kernel] = {}  # for arguments that are put together
        self._tuples: dict[str, Any] = {}  # the names of the parameters in the place of those that are
        self._lock = threading.Lock()
        self.result_count = len(self.signature.parameters)
        self._options = planning.Options(None, (), self.num_warps, self.occupancy)
        self.grids: dict[tuple[Any, ...], planning.Options] = {}

    @functools.cached_property
    def source(self) -> KernelSource:
        """The source of the function, for errors that point into it."""
        return KernelSource(self._function, self._file)

    @functools.cached_property
    def takes_exponentials(self) -> bool:
        """Whether it may: a kernel that does not has nothing of knowing whether its numbers are positive (internal)."""
        return not {"exp", "exp2"}.isdisjoint(names_used(self._function))

    @functools.cached_property
    def multiplies(self) -> bool:
        """Whether it may have products of matrices (internal)."""
        return not {"mma", "matmul", "@"}.isdisjoint(names_used(self._function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> KernelLaunch:
        """A launch with these arguments: tensors, partitions, scalars, values of `Const` parameters, or ops that produce them.

        Where a tensor goes, so does an array of NumPy on a CPU device, or one of PyTorch, CuPy, JAX, numba: see `as_tensor`. What
        is written is a partition; or a tensor or an array, which the parameter (`tk.Out[32, 64]`) or `.tile(shape)` of the launch
        cuts.

        Raises:
            TypeError: arguments are missing, too many, or of a kind that their parameter does not take.
        """
        if any(current(owner, name) is not value for owner, name, value in self._origins):
            self._look_again()
        arguments: tuple[Any, ...] = args
        kernel: Kernel[...] = self
        form = None if kwargs else self._forms.get(tuple(map(type, args)))
        try:
            if form is None:
                if kwargs or len(args) != self.result_count:
                    arguments = self._bind(args, kwargs)
                if not _PUT_TOGETHER.isdisjoint(map(type, arguments)):
                    kernel, arguments = self._put_together(arguments)
                arguments = kernel.prepared(arguments)
                form = kernel.form(arguments)
            elif form.ints or form.tuples:
                self._inspect(form, arguments)
        except _TooWide:
            arguments = tuple(
                np.uint64(a) if type(a) is int and 2**63 <= a < 2**64 and p.kind != "const" else a
                for p, a in zip(kernel.signature.parameters, arguments, strict=True)
            )
            form = kernel.form(arguments)
        except Exception:
            for argument in (*arguments, *kwargs.values()):
                if isinstance(argument, DeviceOp):
                    argument.consumed()  # whoever is told of a mistake need not run them
            raise
        return launch_of(kernel, arguments, form, self._options, site_of(sys._getframe(1)))

    def _put_together(self, arguments: tuple[Any, ...]) -> tuple[Kernel, tuple[Any, ...]]:
        """The kernel for arguments some of which are tuples or None, and what is in them; this one if there are none."""
        structure = structure_of(self.signature.parameters, arguments)
        if structure is None:
            return self, arguments
        kernel = self._nested.get(structure)
        if kernel is None:
            kernel = self._nested.setdefault(structure, _Flattened(self, structure))
        return kernel, tuple(leaf for part, argument in zip(structure, arguments, strict=True) for leaf in flat(part, argument))

    def prepared(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with tensors in the places of arrays, and cut where their parameter says how (internal).

        Raises:
            TypeError, ValueError, BufferError: as `tensor_of`; an extent of the parameter's that no tile has.
        """
        types, parameters = tuple(map(type, arguments)), self.signature.parameters
        places = self._arrays.get(types)
        if places is None:
            which = (p.kind not in ("const", "scalar") and is_array(a) for p, a in zip(parameters, arguments, strict=True))
            places = self._arrays[types] = tuple(at for at, is_one in enumerate(which) if is_one)
        if places:
            taken = list(arguments)
            for at in places:
                taken[at] = tensor_of(taken[at], taken, self.label, parameters[at].name)
            arguments = tuple(taken)
        cut = {at: dims for at, dims in self.signature.tiles.items() if isinstance(arguments[at], Tensor)}
        return tuple(a.partition(cut[at]) if at in cut else a for at, a in enumerate(arguments)) if cut else arguments

    def _look_again(self) -> None:
        """Forget what was specialised if a name that the kernel takes from outside stands for something else, as where a cell of
        a notebook was run again. An equal number is not something else."""
        with self._lock:
            for at, (owner, name, value) in enumerate(self._origins):
                now = current(owner, name)
                if now is value:
                    continue
                if not _is_constant(value) or planning.constant_key(now) != planning.constant_key(value):
                    break
                self._origins[at] = (owner, name, now)
            else:
                return
            for kept in (self._origins, self._bound, self._specialisations, self._forms, self._nested):
                kept.clear()
            self._form = None

    def _note(self, origins: tuple[Origin, ...]) -> None:
        """Remember what names stood for. The lock is held."""
        known = {(id(owner), name) for owner, name, _ in self._origins}
        self._origins += [origin for origin in origins if (id(origin[0]), origin[1]) not in known]

    def known_form(self, arguments: tuple[Any, ...]) -> planning.Form | None:
        """The form of such arguments, if there is one, and nothing in them has to be looked into (internal)."""
        form = self._forms.get(tuple(map(type, arguments)))
        return None if form is None or form.ints or form.tuples else form

    def form(self, arguments: tuple[Any, ...]) -> planning.Form:
        """The form of such arguments: whether each is of a kind that its parameter takes, and what follows from the types
        (internal).

        Raises:
            TypeError, ValueError: as `check_kind`.
        """
        types = tuple(map(type, arguments))
        form = self._forms.get(types)
        if form is None:
            for parameter, argument in zip(self.signature.parameters, arguments, strict=True):
                if not isinstance(argument, DeviceOp):
                    self.check_kind(parameter, argument)
            form = self._forms[types] = planning.Form(self.signature.parameters, types, self.takes_exponentials)
        if form.ints or form.tuples:
            self._inspect(form, arguments)
        return form

    def _inspect(self, form: planning.Form, arguments: tuple[Any, ...]) -> None:
        """Look into the arguments whose type does not say enough."""
        parameters = self.signature.parameters
        for at in form.ints:
            if not -(2**63) <= arguments[at] < 2**63:
                raise _TooWide(f"{self.label}, argument {parameters[at].name}: {arguments[at]} does not fit 64 bits")
        for at in form.tuples:
            self.check_kind(parameters[at], arguments[at])

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            bound = self.signature.binder.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(p.name for p in self.signature.parameters)
            raise TypeError(f"{self.label}({names}): {error}{habits.keywords(self, kwargs)}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def check_kind(self, parameter: Parameter, argument: Any) -> None:
        """Whether `parameter` takes such an argument at all; TypeError if not (internal)."""
        who = f"{self.label}, argument {parameter.name}"
        if parameter.kind == "const":
            if not _is_constant(argument):
                raise TypeError(
                    f"{who}: a Const is a bool, int, float, str, dtype, None, or a tuple of these, not {_kind_of(argument)}"
                )
        elif parameter.kind == "in":
            if isinstance(argument, Partition):
                raise TypeError(f"{who}: declared In, so it takes a tensor, not a partition; pass its .unpartition()")
            if not isinstance(argument, Tensor):
                raise TypeError(f"{who}: declared In, so it takes a tensor, not {_kind_of(argument)}")
        elif parameter.is_written:
            if not isinstance(argument, (Tensor, Partition)):
                declared = {"out": "Out", "inout": "InOut"}[parameter.kind]
                raise TypeError(f"{who}: declared {declared}, so it takes a partition of a tensor, not {_kind_of(argument)}")
        elif isinstance(argument, (Tensor, Partition)):
            if parameter.kind == "scalar":
                raise TypeError(f"{who}: declared a scalar, not {_kind_of(argument)}")
        elif scalar_kind(argument) is None and parameter.kind == "scalar":
            raise TypeError(f"{who}: declared a scalar, so it takes a number, not {_kind_of(argument)}")
        elif scalar_kind(argument) is None:
            raise TypeError(f"{who}: kernels take tensors, partitions, scalars, and tuples of these, not {_kind_of(argument)}")

    in_a_kernel = "{} is a kernel, which the host launches: take its @tk.kernel away, and it is a function that kernels call"

    if not TYPE_CHECKING:  # which then says itself that there is no such attribute, and no index

        def __getitem__(self, configuration: Any) -> NoReturn:
            raise habits.bracketed(self)

        def __getattr__(self, name: str) -> Any:
            raise habits.unknown(self, name)

    def specialise(
        self,
        facts: tuple[ArgumentFacts, ...],
        generics: tuple[tuple[str, Any], ...],
        constants: tuple[tuple[str, Any], ...],
        warps: int | None,
        occupancy: int | None = None,
        fold: Fold | None = None,
    ) -> Specialisation:
        """The specialisation for these facts, generics, constants, warps, occupancy, and grids that are folded so (None for those
        that are not): made at the first call, compiled when needed (internal).

        Raises:
            CompileError: a generic that the body uses has no value.
        """
        typed = tuple((name, planning.constant_key(value)) for name, value in constants)
        key = (facts, generics, typed, warps, occupancy, fold)
        specialisation = self._specialisations.get(key)
        if specialisation is None:
            with self._lock:
                bound = self._bound.get((generics, typed))
                if bound is None:
                    bound = bind(self._function, self.source, dict(generics), dict(constants), self._tuples)
                    self._bound[generics, typed] = bound
                    self._note(bound.origins)
                specialisation = self._specialisations.setdefault(key, Specialisation(bound, facts, warps, occupancy, fold))
        return specialisation

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(p.name for p in self.signature.parameters)})>"


class _Flattened(Kernel):
    """A kernel for arguments of one structure, with a parameter for each thing that is in them."""

    __slots__ = ()
    _launch_type = NestedLaunch

    def __init__(self, kernel: Kernel, structure: tuple[Structure, ...]) -> None:
        self.__dict__.update(kernel.__dict__)
        parameters = kernel.signature.parameters
        taken = {*kernel._function.__code__.co_varnames, *kernel._function.__code__.co_names}
        self._tuples = {
            parameter.name: named(parameter.name, part, taken)
            for parameter, part in zip(parameters, structure, strict=True)
            if part is not True
        }
        flattened = tuple(
            one for parameter in parameters for one in parameters_of(parameter, self._tuples.get(parameter.name, parameter.name))
        )
        self.signature, self.structure, self.label = replace(kernel.signature, parameters=flattened), structure, kernel.label
        self.result_count, self._options = len(parameters), kernel._options
        self._bound, self._specialisations, self._forms, self._arrays, self._nested, self.grids = {}, {}, {}, {}, {}, {}
        self._form, self._origins, self._lock = None, kernel._origins, threading.Lock()


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, int, float, str, np.dtype))


def _kind_of(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        return f"a NumPy array of shape {argument.shape}" + "; .item() is its number" * (argument.size == 1)
    return f"{type(argument).__module__}.{type(argument).__qualname__}".removeprefix("builtins.") + habits.shared(argument)
