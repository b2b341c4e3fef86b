"""`@kernel`, and what calling a kernel builds: a launch that is specialised and compiled when it runs.

A call goes through four questions, each answered once and remembered for the calls that look alike:
which parameter gets what (`_bind_arguments`), what may be assumed about it (`_facts`), which specialisation that is
(`Kernel.specialise`), and how it runs on a device (`compiler.load`).
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit.compiler.facts import ArgumentFacts, Role, ScalarFacts, TensorFacts, divisor
from tilekit.compiler.load import Specialisation
from tilekit.compiler.source import KernelSource
from tilekit.compiler.specialise import BoundKernel, bind
from tilekit.device import Device
from tilekit.lang.signature import Generic, KernelSignature, Parameter, read_signature
from tilekit.lang.tile import scalar_kind
from tilekit.ops import AsyncKernelLaunch, DeviceOp, Spec, Value
from tilekit.ops.execution import Steps, moments, unwrap
from tilekit.partition import Partition
from tilekit.schedule import ExecutionContext
from tilekit.storage import Storage
from tilekit.tensor import Tensor, as_shape

if TYPE_CHECKING:
    from tilekit.compiler.build import CompiledKernel

__all__ = ["Kernel", "KernelLaunch", "kernel"]

# The most blocks that CUDA launches along the axes 0, 1, 2.
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
# Extents up to this leave room for the overhang of a tile in 32-bit index arithmetic.
_NARROW = 2**31 - 2**24


def kernel(function: Callable[..., Any] | None = None, *, num_warps: int | None = None) -> Any:
    """Make a function a kernel: `@tk.kernel`, or `@tk.kernel(num_warps=8)`.

    Calling the kernel builds a launch (a `DeviceOp`); see `KernelLaunch`. The function itself stays as it was, and is not run
    by Python, except block by block on a CPU device.

    Args:
        function: the kernel. Its parameters are annotated `tk.In`, `tk.Out`, `tk.InOut`, `tk.Const`, for scalars `float`, `int`
            or `bool` (which of them makes no difference), or not at all: then a partition is read and written, a tensor is
            read, anything else is a scalar.
        num_warps: how many warps (of 32 threads) a block has, a power of two up to 32; by default as many as its tiles keep busy.

    Raises:
        TypeError: what is decorated is no plain function, or its annotations are others.
        CompileError: the function's source cannot be read.
    """
    scope = sys._getframe(1).f_locals
    if function is None:
        return lambda decorated: Kernel(decorated, scope, num_warps)
    return Kernel(function, scope, num_warps)


class Kernel:
    """A function in the tile language. Made by `@tk.kernel`.

    Attributes:
        name: the function's.
        signature: its parameters and generics.
        declares_shapes: whether an annotation says anything about a shape.
    """

    def __init__(self, function: Callable[..., Any], scope: Mapping[str, Any], num_warps: int | None) -> None:
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"@tk.kernel decorates a function, not {type(function).__name__}")
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self.signature: KernelSignature = read_signature(function, scope)
        self.declares_shapes = any(p.dims is not None for p in self.signature.parameters)
        self.num_warps = _check_warps(num_warps)
        self._function = function
        self._bound: dict[Any, BoundKernel] = {}
        self._specialisations: dict[Any, Specialisation] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def source(self) -> KernelSource:
        """The source of the function, for errors that point into it."""
        return KernelSource(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> KernelLaunch:
        """A launch with these arguments: tensors, partitions, scalars, values of `Const` parameters, or ops that produce them.

        Raises:
            TypeError: arguments are missing, too many, or of a kind that their parameter does not take.
        """
        return KernelLaunch(self, self._bind_arguments(args, kwargs))

    def _bind_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        if kwargs or len(args) != len(self.signature.parameters):
            try:
                bound = self.signature.binder.bind(*args, **kwargs)
            except TypeError as error:
                names = ", ".join(p.name for p in self.signature.parameters)
                raise TypeError(f"kernel {self.name}({names}): {error}") from None
            bound.apply_defaults()
            args = tuple(bound.arguments.values())
        for parameter, argument in zip(self.signature.parameters, args, strict=True):
            if not isinstance(argument, DeviceOp):
                self._check_kind(parameter, argument)
        return args

    def _check_kind(self, parameter: Parameter, argument: Any) -> None:
        """Whether `parameter` takes such an argument at all."""
        who = f"kernel {self.name}, argument {parameter.name}"
        if parameter.kind == "const":
            if not _is_constant(argument):
                raise TypeError(
                    f"{who}: a Const is a bool, int, float, str, dtype, or a tuple of these, not {type(argument).__name__}"
                )
        elif parameter.kind == "in":
            if isinstance(argument, Partition):
                raise TypeError(f"{who}: declared In, so it takes a tensor, not a partition; pass its .unpartition()")
            if not isinstance(argument, Tensor):
                raise TypeError(f"{who}: declared In, so it takes a tensor, not {_kind_of(argument)}")
        elif parameter.kind in ("out", "inout"):
            if isinstance(argument, Tensor):
                raise TypeError(
                    f"{who}: writing needs a partition: pass {parameter.name}.partition(shape), which gives each block "
                    "a tile of its own"
                )
            if not isinstance(argument, Partition):
                raise TypeError(
                    f"{who}: declared {parameter.kind.title()}, so it takes a partition of a tensor, not {_kind_of(argument)}"
                )
        elif parameter.kind == "scalar":
            if scalar_kind(argument) is None:
                raise TypeError(f"{who}: declared a scalar, not {_kind_of(argument)}")
        elif not isinstance(argument, (Tensor, Partition)) and scalar_kind(argument) is None:
            raise TypeError(f"{who}: kernels take tensors, partitions and scalars, not {_kind_of(argument)}")

    def specialise(
        self,
        facts: tuple[ArgumentFacts, ...],
        generics: tuple[tuple[str, Any], ...],
        constants: tuple[tuple[str, Any], ...],
        warps: int | None,
    ) -> Specialisation:
        """The specialisation for these facts, generics, constants and warps; made at the first call, compiled when needed.

        Raises:
            CompileError: a generic that the body uses has no value.
        """
        # True == 1 == 1.0 for a dictionary, not for a kernel: types belong to the key.
        typed = tuple((name, type(value), value) for name, value in constants)
        key = (facts, generics, typed, warps)
        found = self._specialisations.get(key)
        if found is None:
            with self._lock:
                bound = self._bound.get((generics, typed))
                if bound is None:
                    bound = bind(self._function, self.source, dict(generics), dict(constants))
                    self._bound[generics, typed] = bound
                found = self._specialisations.setdefault(key, Specialisation(bound, facts, warps))
        return found

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(p.name for p in self.signature.parameters)})>"


class _Plan(NamedTuple):
    """A launch, with every question answered."""

    specialisation: Specialisation
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]  # without the Const ones
    reads: tuple[Storage, ...]
    writes: tuple[Storage, ...]


class KernelLaunch(AsyncKernelLaunch):
    """One launch of a kernel, as an op. Its result is the tuple of the arguments, in the order of the signature.

    The grid follows from the partitions: a block for each tile.
    """

    def __init__(self, kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        self.kernel, self.arguments = kernel, arguments
        self._label: str = f"kernel {kernel.name}"
        self._grid: tuple[int, int, int] | None = None
        self._generics: dict[str, Any] = {}
        self._num_warps = kernel.num_warps
        for argument in arguments:
            if isinstance(argument, DeviceOp):
                argument.consumed()

    # what can be said about it before it runs

    def grid(self, grid: int | tuple[int, ...]) -> KernelLaunch:
        """Give the grid, a block count for each axis; it must be the one that the partitions have, if there are any.

        Raises:
            ValueError: more than three axes, a count that is negative or more than CUDA launches.
        """
        with self._configuring():
            given = as_shape(grid)
            if len(given) > 3:
                raise ValueError(f"{self._label}: a grid has up to three axes, not {len(given)} as {given}")
            self._grid = _check_grid((*given, 1, 1, 1)[:3], self._label)
        return self

    def generics(self, **values: int | tuple[int, ...]) -> KernelLaunch:
        """Give generics their values, by name, where the arguments do not.

        Raises:
            ValueError: the kernel has no such generic; TypeError: the value is not of its kind.
        """
        known = self.kernel.signature.generics
        with self._configuring():
            for name, value in values.items():
                if name not in known:
                    raise ValueError(f"{self._label} has no generic {name}; it has {', '.join(sorted(known)) or 'none'}")
                whole, is_int = known[name].whole, isinstance(value, (int, np.integer)) and not isinstance(value, bool)
                if whole != isinstance(value, (tuple, list)) or not (whole or is_int):
                    raise TypeError(
                        f"{self._label}: generic {name} stands for {'a shape' if whole else 'an integer'}, not {value!r}"
                    )
                self._generics[name] = as_shape(value) if isinstance(value, (tuple, list)) else int(value)
        return self

    def num_warps(self, num_warps: int) -> KernelLaunch:
        """Give each block `num_warps` warps of 32 threads, a power of two up to 32. No effect on a CPU device."""
        with self._configuring():
            self._num_warps = _check_warps(num_warps)
        return self

    @contextmanager
    def _configuring(self) -> Iterator[None]:
        """An op that was refused while it was being built has failed: it is spent, and need not be run."""
        try:
            yield
        except Exception:
            self._spent = True
            raise

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The arguments that are ops."""
        return tuple(a for a in self.arguments if isinstance(a, DeviceOp))

    @property
    def device(self) -> Device | None:
        """The device of the first argument that has one."""
        for argument in self.arguments:
            device = argument.device if isinstance(argument, (Tensor, Partition, DeviceOp)) else None
            if device is not None:
                return device
        return None

    @property
    def specs(self) -> tuple[Spec | None, ...]:
        """What is known of each result."""
        return tuple(
            a.spec if isinstance(a, DeviceOp) else Spec(a.shape, a.dtype) if isinstance(a, (Tensor, Partition)) else None
            for a in self.arguments
        )

    # running and compiling

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run the arguments that are ops, then launch."""
        arguments = self.arguments
        if any(isinstance(a, DeviceOp) for a in arguments):
            made = []
            for parameter, argument in zip(self.kernel.signature.parameters, arguments, strict=True):
                if isinstance(argument, DeviceOp):
                    argument = yield from argument.start(ctx)
                    pending = moments(argument)
                    if pending:
                        yield pending
                        argument = unwrap(argument)
                    self.kernel._check_kind(parameter, argument)
                made.append(argument)
            arguments = tuple(made)
        plan = self._plan(arguments)
        if ctx.device.kind == "cuda":
            _check_grid(plan.grid, self._label)
        self._check_devices(arguments, ctx.device)
        if 0 not in plan.grid:
            executable = plan.specialisation.executable(ctx.device)
            self.enqueue(ctx, executable, plan.grid, plan.arguments, plan.reads, plan.writes)
        return arguments
        yield

    def compile(self, target: str | None = None) -> CompiledKernel:
        """Compile the launch's specialisation without running it; needs no GPU, and no memory behind the tensors (`api.meta`).

        Args:
            target: `"sm_80"`, `"sm_89"`, `"sm_90a"`, `"sm_100a"`, `"sm_120"`; by default that of the arguments' device.

        Raises:
            CompileError: the kernel cannot be compiled; the text points at the line.
            ValueError: no such target, or none given and no GPU at hand.
        """
        self._spent = True
        if target is None:
            device = self.device
            if device is None or device.kind != "cuda":
                raise ValueError(f"{self._label}: no GPU to compile for; name a target, such as .compile(target='sm_90a')")
            target = device.target
        return self._plan(self._present("compile")).specialisation.compiled(target)

    def dispatcher(self) -> Any:
        """The launch's specialisation as a `numba.cuda.jit` dispatcher, for `dispatcher[grid, block, stream](*arguments)`.

        It takes the kernel's arguments without the `Const` ones; tensors of tilekit's, or anything with
        `__cuda_array_interface__`, that keep the facts of this launch's. `block` is `num_warps * 32` threads, at
        `dispatcher.block`.

        Raises:
            CompileError: the kernel cannot be compiled.
            DeviceUnavailableError: there is no GPU.
        """
        self._spent = True
        return self._plan(self._present("dispatcher")).specialisation.dispatcher()

    def _present(self, what: str) -> tuple[Any, ...]:
        """The arguments, where none has to be computed first."""
        arguments = tuple(a.result if isinstance(a, Value) else a for a in self.arguments)
        lazy = [p.name for p, a in zip(self.kernel.signature.parameters, arguments, strict=True) if isinstance(a, DeviceOp)]
        if lazy:
            raise TypeError(
                f"{self._label}: {what}() needs tensors, not ops, for {', '.join(lazy)}; api.meta(shape, dtype) stands for one"
            )
        return arguments

    # answering the questions

    def _plan(self, arguments: tuple[Any, ...]) -> _Plan:
        kernel = self.kernel
        named = tuple(zip(kernel.signature.parameters, arguments, strict=True))
        constants = tuple((p.name, a) for p, a in named if p.kind == "const")
        if constants:
            named = tuple((p, a) for p, a in named if p.kind != "const")
        written = [(p, a) for p, a in named if isinstance(a, Partition)]
        tensors = [(p, a) for p, a in named if isinstance(a, (Tensor, Partition))]
        generics = self._bind_generics(tensors) if kernel.signature.generics or kernel.declares_shapes else ()
        grid = self._infer_grid(written)
        if written:
            self._check_overlap(tensors, written)
        like = written[0][1] if len(written) == 1 or len({(a.tensor.shape, a.tile_shape) for _, a in written}) == 1 else None
        facts = tuple([_facts(p, a, like) for p, a in named])
        return _Plan(
            kernel.specialise(facts, generics, constants, self._num_warps),
            grid,
            tuple([a for _, a in named]),
            tuple([a.storage for p, a in tensors if p.kind != "out" and a.storage is not None]),
            tuple([a.storage for _, a in written if a.storage is not None]),
        )

    def _bind_generics(self, tensors: Sequence[tuple[Parameter, Any]]) -> tuple[tuple[str, Any], ...]:
        """The value of each generic, from the arguments' shapes and from `generics`; checks declared shapes on the way."""
        bound: dict[str, Any] = dict(self._generics)
        origin = dict.fromkeys(bound, "generics()")
        for parameter, argument in tensors:
            if parameter.dims is None:
                continue
            shape = argument.tile_shape if isinstance(argument, Partition) else argument.shape
            noun = "tiles" if isinstance(argument, Partition) else "a tensor"
            who = f"{self._label}, argument {parameter.name}"
            dims: tuple[int | Generic, ...] = parameter.dims
            if len(dims) == 1 and isinstance(dims[0], Generic) and dims[0].whole:
                pairs: list[tuple[int | Generic, Any]] = [(dims[0], shape)]
            elif len(dims) != len(shape):
                raise ValueError(f"{who}: declared with {len(dims)} dimensions, got {noun} of shape {shape}")
            else:
                pairs = list(zip(dims, shape, strict=True))
            for dim, extent in pairs:
                if isinstance(dim, Generic):
                    if bound.setdefault(dim.name, extent) != extent:
                        raise ValueError(
                            f"{who}: generic {dim.name} is {bound[dim.name]} by {origin[dim.name]}, and {extent} here"
                        )
                    origin.setdefault(dim.name, f"argument {parameter.name}")
                elif dim not in (-1, extent):
                    raise ValueError(f"{who}: declared {list(dims)}, got {noun} of shape {shape}")
        return tuple(sorted(bound.items()))

    def _infer_grid(self, written: Sequence[tuple[Parameter, Partition]]) -> tuple[int, int, int]:
        """A block for each tile; every partition, and the grid if it was given, must agree."""
        found: tuple[int, int, int] | None = None
        who = ""
        for parameter, partition in written:
            grid = _launch_grid(partition.grid)
            if found is not None and grid != found:
                raise ValueError(
                    f"{self._label}: the grids of its partitions disagree: {who} has {found}, {parameter.name} "
                    f"(shape {partition.shape} in tiles of {partition.tile_shape}) has {grid}"
                )
            found, who = grid, parameter.name
        if found is None:
            if self._grid is None:
                raise ValueError(f"{self._label}: no argument is a partition, so the grid must be given: .grid((blocks, 1, 1))")
            return self._grid
        if self._grid is not None and self._grid != found:
            raise ValueError(f"{self._label}: the grid {self._grid} is not the {found} that the partition {who} has")
        return found

    def _check_overlap(self, tensors: Sequence[tuple[Parameter, Any]], written: Sequence[tuple[Parameter, Partition]]) -> None:
        for at, (parameter, partition) in enumerate(written):
            storage, mine = partition.storage, partition.tensor
            for other, argument in tensors:
                if argument is partition or storage is None or argument.storage is not storage:
                    continue
                if argument in (partition for _, partition in written[:at]):
                    continue  # was compared from the other side
                theirs = argument.tensor if isinstance(argument, Partition) else argument
                same = theirs.offset == mine.offset and theirs.shape == mine.shape and theirs.strides == mine.strides
                if same and isinstance(argument, Tensor):
                    continue
                (low, high), (start, end) = mine.span(), theirs.span()
                if start < high and low < end:
                    raise ValueError(
                        f"{self._label}: arguments {parameter.name} and {other.name} overlap in memory, and {parameter.name} is "
                        "written; only the very same view may be written by one argument and read by another. Pass a dup() of "
                        "one of them"
                    )
            twice = [p.name for p, a in written if a is partition]
            if len(twice) > 1:
                raise ValueError(f"{self._label}: arguments {' and '.join(twice)} are the same partition, and both are written")

    def _check_devices(self, arguments: tuple[Any, ...], device: Device) -> None:
        for parameter, argument in zip(self.kernel.signature.parameters, arguments, strict=True):
            if not isinstance(argument, (Tensor, Partition)):
                continue
            if argument.device is None:
                raise TypeError(
                    f"{self._label}: argument {parameter.name} is a meta tensor, without memory: only compile() takes it"
                )
            if argument.device is not device:
                raise ValueError(f"{self._label}: argument {parameter.name} is on {argument.device!r}, the launch on {device!r}")


def _launch_grid(tiles: tuple[int, ...]) -> tuple[int, int, int]:
    """The grid for a partition of so many tiles: dimension d along axis d; of four dimensions the first two share axis 0."""
    if len(tiles) == 4:
        tiles = (tiles[0] * tiles[1], *tiles[2:])
    return (*tiles, 1, 1)[:3]  # type: ignore[return-value]


def _check_grid(grid: tuple[int, ...], who: str) -> tuple[int, int, int]:
    for axis, (blocks, limit) in enumerate(zip(grid, _GRID_LIMITS, strict=True)):
        if blocks > limit:
            raise ValueError(
                f"{who}: {blocks} blocks along axis {axis} of the grid {grid}; CUDA launches {limit} at most. Take larger tiles, "
                "or put the longest dimension first"
            )
    return grid  # type: ignore[return-value]


def _check_warps(num_warps: int | None) -> int | None:
    if num_warps is not None and num_warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"num_warps is a power of two from 1 to 32, not {num_warps!r}")
    return num_warps


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, (bool, int, float, str, np.dtype))


def _kind_of(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        return "a NumPy array; copy it to the device with api.from_host(array)"
    return f"{type(argument).__module__}.{type(argument).__qualname__}".removeprefix("builtins.")


def _facts(parameter: Parameter, argument: Any, like: Partition | None) -> ArgumentFacts:
    """What may be assumed about an argument; `like` is what all partitions look like, None if they differ or there are none."""
    if isinstance(argument, Partition):
        role: Role = "inout" if parameter.kind == "auto" else parameter.kind  # type: ignore[assignment]
        return _tensor_facts(argument.tensor, role, argument.tile_shape, argument.tile_shape)
    if isinstance(argument, Tensor):
        return _tensor_facts(argument, "in", None, like.tile_shape if like and argument.shape == like.shape else None)
    found = _PLAIN_SCALARS.get(type(argument))
    if found is None:
        return ScalarFacts(dtypes.as_dtype(argument.dtype).name)
    if found.dtype == "int64" and not -(2**63) <= argument < 2**63:
        raise ValueError(f"argument {parameter.name}: {argument} does not fit 64 bits")
    return found


_PLAIN_SCALARS = {bool: ScalarFacts("bool"), int: ScalarFacts("int64"), float: ScalarFacts("float64")}


def _tensor_facts(tensor: Tensor, role: Role, tile: tuple[int, ...] | None, grid_tile: tuple[int, ...] | None) -> TensorFacts:
    """What may be assumed about a tensor in such a role; `grid_tile` if the grid covers it in tiles of that shape. Kept on it."""
    key = (role, tile, grid_tile)
    found: TensorFacts | None = tensor.facts.get(key)
    if found is None:
        if not 1 <= tensor.ndim <= 4:
            raise ValueError(f"kernels take tensors of 1 to 4 dimensions, not {tensor.ndim} as {tensor!r} has")
        found = tensor.facts[key] = TensorFacts(
            dtype=tensor.dtype.name,
            role=role,
            tile=tile,
            rank=tensor.ndim,
            unit=tensor.unit,
            align=min(16, divisor(tensor.address)),
            extents=_extent_divisors(tensor.shape, grid_tile),
            strides=tuple(0 if d == tensor.unit else divisor(abs(stride)) for d, stride in enumerate(tensor.strides)),
            wide=max(tensor.shape) > _NARROW,
            covered=grid_tile is not None,
        )
    return found


def _extent_divisors(shape: tuple[int, ...], tile: tuple[int, ...] | None) -> tuple[int, ...]:
    """For each extent a power of two that divides it: the tile's own where that does, so that nothing hangs over the edge."""
    if tile is None:
        return tuple(map(divisor, shape))
    return tuple(n if extent % n == 0 else divisor(extent) for extent, n in zip(shape, tile, strict=True))
