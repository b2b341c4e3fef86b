"""`KernelLaunch`: one launch of a kernel as an op, specialised and compiled when it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._runtime.stream import next_stream
from tilekit._tensor.partition import Partition
from tilekit._tensor.shapes import as_shape
from tilekit._tensor.tensor import Tensor
from tilekit.elsewhere import LAUNCHES
from tilekit.launch.aliasing import check_overlap
from tilekit.launch.planning import Form, Options, Plan, check_grid
from tilekit.launch.showing import argument_lines
from tilekit.ops import AsyncKernelLaunch, DeviceOp, Executable, Spec, Value
from tilekit.ops.combinators import is_shallow
from tilekit.ops.execution import Done, HostJob, Steps
from tilekit.ops.host_values import moments, unwrap
from tilekit.ops.sources import elsewhere

if TYPE_CHECKING:
    from tilekit.compiler.cpu.explain import CpuExplanation
    from tilekit.compiler.explain import Explanation
    from tilekit.compiler.kernel import CompiledKernel
    from tilekit.launch.decorator import Kernel

__all__ = ["KernelLaunch", "check_occupancy", "check_warps", "launch_of"]

_GRIDS_KEPT = 1024  # of a kernel's, see `Kernel.grids`


class KernelLaunch(AsyncKernelLaunch):
    """One launch of a kernel, as an op. Its result is the tuple of the arguments, in the order of the signature.

    Made by calling a kernel. The grid follows from the partitions: a block for each tile, or what a mapped partition says.
    """

    __slots__ = ("_consumed", "_form", "_fresh", "_label", "_options", "_site", "_spent", "arguments", "kernel")

    _elsewhere = LAUNCHES
    _finds_home = True
    kernel: Kernel
    arguments: tuple[Any, ...]
    _form: Form
    _options: Options

    # what can be said about it before it runs

    def grid(self, grid: int | tuple[int, ...], *more: int) -> KernelLaunch:
        """Give the grid, a block count for each axis, as a tuple or one after the other; it must be the one that the partitions
        have, if there are any. Where all of them are prefixes that leave the grid open, it says how many of their tiles the
        launch covers.

        Raises:
            ValueError: more than three axes, a count that is negative or more than CUDA launches.
        """
        if more:
            grid = (grid, *more)  # type: ignore[arg-type]
        before, known = self._options, self.kernel.grids
        key = (before, grid, *map(type, grid)) if type(grid) is tuple else (before, grid) if type(grid) is int else None
        with _Configuring(self):
            try:
                options = None if key is None else known.get(key)
            except TypeError:  # something in it cannot be hashed, and is no int
                options = None
            if options is None:
                extents = as_shape(grid)
                if len(extents) > 3:
                    raise ValueError(f"{self.label}: a grid has up to three axes, not {len(extents)} as {extents}")
                options = before._replace(grid=check_grid((*extents, 1, 1, 1)[:3], self.label))
                if len(known) >= _GRIDS_KEPT:
                    known.clear()
                if key is not None:
                    known[key] = options
            self._options = options
        return self

    def tile(self, shape: int | tuple[int, ...] | None = None, /, **shapes: int | tuple[int, ...]) -> KernelLaunch:
        """Cut the tensors that are written into tiles, each of which a block owns: `saxpy(y, 2.0, x).tile(1024)` is
        `saxpy(y.partition(1024), 2.0, x)`.

        Args:
            shape: of the tiles of all that are declared `Out` or `InOut` and are not cut yet; powers of two.
            shapes: of those of one parameter, by its name, where they differ.

        Raises:
            ValueError: there is nothing to cut; the shape has other dimensions than the tensor, or an extent that no tile has.
            TypeError: no parameter has such a name, or what it has is no tensor.
        """
        before, arguments = self._form, list(self.arguments)
        if before.tiled is not None and shape is not None and not shapes:
            places, form = before.tiled
            try:
                for at in places:
                    arguments[at] = arguments[at].partition(shape)
            except BaseException:
                self._spent = True
                raise
            self._form, self.arguments = form, tuple(arguments)
            return self
        with _Configuring(self):
            parameters = self.kernel.signature.parameters
            for name in shapes:
                if all(name != parameter.name for parameter in parameters):
                    names = ", ".join(parameter.name for parameter in parameters)
                    raise TypeError(f"{self.label}: tile: no parameter is called {name}; it has {names}")
            for at in range(len(parameters)) if shapes else self.kernel.signature.written:
                parameter, argument = parameters[at], arguments[at]
                extents = shapes.get(parameter.name, shape if parameter.is_written else None)
                if extents is None or (isinstance(argument, Partition) and parameter.name not in shapes):
                    continue
                if not isinstance(argument, (Tensor, DeviceOp)):
                    what = "a partition already" if isinstance(argument, Partition) else f"no tensor but {argument!r}"
                    raise TypeError(f"{self.label}: tile: {parameter.name} is {what}")
                arguments[at] = argument.partition(extents)
            cut = tuple(at for at, old in enumerate(self.arguments) if arguments[at] is not old)
            if not cut:
                raise ValueError(f"{self.label}: tile: no argument is a tensor that is written and has no tiles yet")
            self._form, self.arguments = self.kernel.form(tuple(arguments)), tuple(arguments)
            if not shapes and not before.lazy:
                before.tiled = cut, self._form
            for argument in self.parts():
                argument._consumed = True
        return self

    def generics(self, **values: int | tuple[int, ...]) -> KernelLaunch:
        """Give generics their values, by name, where the arguments do not.

        Raises:
            ValueError: the kernel has no such generic; TypeError: the value is not of its kind.
        """
        known, chosen = self.kernel.signature.generics, dict(self._options.generics)
        with _Configuring(self):
            for name, value in values.items():
                if name not in known:
                    raise ValueError(f"{self.label} has no generic {name}; it has {', '.join(sorted(known)) or 'none'}")
                whole, is_int = known[name].whole, isinstance(value, (int, np.integer)) and not isinstance(value, bool)
                if whole != isinstance(value, (tuple, list)) or not (whole or is_int):
                    kind = "a shape" if whole else "an integer"
                    raise TypeError(f"{self.label}: generic {name} stands for {kind}, not {value!r}")
                chosen[name] = as_shape(value) if isinstance(value, (tuple, list)) else int(value)
        self._options = self._options._replace(generics=tuple(sorted(chosen.items())))
        return self

    def num_warps(self, num_warps: int) -> KernelLaunch:
        """Give each block `num_warps` warps of 32 threads, a power of two up to 32. No effect on a CPU device."""
        with _Configuring(self):
            self._options = self._options._replace(num_warps=check_warps(num_warps))
        return self

    def occupancy(self, occupancy: int) -> KernelLaunch:
        """Let a multiprocessor have `occupancy` blocks at a time, 1 to 32, see `tk.kernel`. No effect on a CPU device."""
        with _Configuring(self):
            self._options = self._options._replace(occupancy=check_occupancy(occupancy))
        return self

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The arguments that are ops."""
        return tuple(a for a in self.arguments if isinstance(a, DeviceOp)) if self._form.lazy else ()

    def _details(self) -> tuple[str, ...]:
        """The arguments."""
        return argument_lines(self.kernel.signature.parameters, self.arguments)

    @property
    def device(self) -> Device | None:
        """The device of the first argument that has one."""
        for argument in self.arguments:
            if isinstance(argument, (Tensor, Partition)) and argument.storage is not None:
                device: Device = argument.storage.device
                return device
        return super().device

    @property
    def specs(self) -> Sequence[Spec | None]:
        """What is known of each result."""
        return _Specs(self.arguments)

    @property
    def written_specs(self) -> list[Spec | None]:
        """What is known of each result that is declared as written."""
        return [spec for spec, p in zip(self.specs, self.kernel.signature.parameters, strict=False) if p.is_written]

    def _operands(self) -> Iterable[Any]:
        """The arguments."""
        return self.arguments

    # running and compiling

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Launch, at once if the arguments are there and the kernel is compiled."""
        form, arguments = self._form, self.arguments
        if form.lazy:
            resolved: list[Any] = []
            for argument in arguments:
                if isinstance(argument, DeviceOp):
                    started = argument.start(ctx) if is_shallow(argument) else None
                    if type(started) is not Done or moments(started.value):
                        return self._resolved(ctx, resolved, started)
                    argument = started.value
                resolved.append(argument)
            return self._launch_resolved(ctx, tuple(resolved))
        plan = form.plans.get(form.key(arguments, self._options)) or form.plan(self.kernel, arguments, self._options)
        return self._launch(ctx, plan, arguments)

    def _resolved(self, ctx: ExecutionContext, resolved: list[Any], started: Steps | Done | None) -> Steps:
        """Run the arguments that are ops, then launch. Those in `made` are there; the next may be `started`."""
        for argument in self.arguments[len(resolved) :]:
            if isinstance(argument, DeviceOp):
                argument = yield (started or argument.start(ctx))
                started = None
                pending = moments(argument)
                if pending:
                    yield pending
                    argument = unwrap(argument)
            resolved.append(argument)
        return (yield self._launch_resolved(ctx, tuple(resolved)))

    def _launch_resolved(self, ctx: ExecutionContext, arguments: tuple[Any, ...]) -> Steps | Done:
        form, options = self.kernel.known_form(arguments), self._options
        if form is None:
            arguments = self.kernel.prepared(arguments)
            form = self.kernel.form(arguments)
        if form.lazy:  # an op may have produced anything, another op included
            for parameter, argument in zip(self.kernel.signature.parameters, arguments, strict=True):
                self.kernel.check_kind(parameter, argument)
        plan = form.plans.get(form.key(arguments, options)) or form.plan(self.kernel, arguments, options)
        return self._launch(ctx, plan, arguments)

    def _launch(self, ctx: ExecutionContext, plan: Plan, arguments: tuple[Any, ...]) -> Steps | Done:
        if plan.home is not ctx.device:
            if plan.meta is not None:
                raise TypeError(f"{self.label}: argument {plan.meta} is a meta tensor, without memory: only compile() takes it")
            if plan.device is not None:
                return elsewhere(lambda there: self._launch(there, plan, arguments), next_stream(plan.device.policy), ctx)
            plan = plan.on(ctx.device)
        if plan.native is not None and plan.native(ctx.stream, arguments, self._label or self.label) == 0:
            return Done(arguments)
        reads, writes, ours = plan.storages(arguments)
        for storage in writes:
            if storage in reads or len(writes) > 1 or not ours:
                check_overlap(self.kernel, arguments, plan)
                break
        if not plan.empty:
            executable = plan.executable or plan.specialisation.loaded(ctx.device)
            passed = arguments if plan.all_passed else [arguments[at] for at in plan.passed]
            if executable is None:
                return self._compiled(ctx, plan, arguments, (plan.grid, passed, reads, writes))
            if plan.executable is None:
                plan.keep(executable)
            self.enqueue(ctx, executable, plan.grid, passed, reads, writes)
        return Done(arguments)

    def _compiled(self, ctx: ExecutionContext, plan: Plan, arguments: tuple[Any, ...], work: tuple[Any, ...]) -> Steps:
        """Compile, then launch."""
        job = HostJob(partial(plan.specialisation.executable, ctx.device), prepares=True)
        yield [job]
        executable: Executable = job.result()
        plan.keep(executable)
        self.enqueue(ctx, executable, *work)
        return arguments

    def compile(self, target: str | None = None) -> CompiledKernel:
        """Compile the launch's specialisation without running it; needs no GPU, and no memory behind the tensors (`api.meta`).

        The op can still be run, or compiled for another target.

        Args:
            target: `"sm_80"`, `"sm_89"`, `"sm_90a"`, `"sm_100a"`, `"sm_120"`; by default that of the arguments' device.

        Raises:
            CompileError: the kernel cannot be compiled; the text points at the line.
            ValueError: no such target, or none given and no GPU at hand.
        """
        self._consumed = True  # it was of use: that it has not run needs no warning
        return self._plan("compile").specialisation.compiled(self._target(target))

    def adopt(self, kernel: CompiledKernel) -> None:
        """Take the launch's specialisation as another process compiled it (internal)."""
        self._plan("adopt").specialisation.adopt(kernel.target, kernel)

    @overload
    def explain(self, target: Literal["cpu"]) -> CpuExplanation: ...  # type: ignore[overload-overlap]
    @overload
    def explain(self, target: str | None = None) -> Explanation: ...
    def explain(self, target: str | None = None) -> Explanation | CpuExplanation:
        """What the compiler makes of the launch: `print(op.explain())` shows each access to memory and its width, each layout and
        conversion, registers, shared memory and occupancy. It compiles anew, and runs nothing.

        Args:
            target: as for `compile`; or "cpu", for the CPU of this machine: which loops there are, over how many elements at a
                time, which tiles are kept in memory and why, products, LLVM's text and the machine's.

        Raises:
            CompileError, ValueError: as `compile`.
        """
        from tilekit.compiler.explain import explain

        self._consumed = True
        chosen = self._plan("explain").specialisation
        if isinstance(target, str) and target == "cpu":
            from tilekit.compiler.cpu import explain as on_cpu

            return on_cpu.explain(chosen.bound, chosen.facts, chosen.warps_on_cpu)
        return explain(chosen.bound, chosen.facts, chosen.num_warps, self._target(target), chosen.occupancy, chosen.fold)

    def _target(self, target: str | None) -> str:
        """`target`, or that of the arguments' device."""
        if target is not None:
            if not isinstance(target, str):
                raise TypeError(f"{self.label}: a target is a str such as 'sm_90a', not {type(target).__name__}")
            return target
        device = self.device
        if device is None or device.kind != "cuda":
            raise ValueError(f"{self.label}: no GPU to compile for; name a target, such as .compile(target='sm_90a')")
        chosen: str = device.target
        return chosen

    def dispatcher(self) -> Any:
        """The launch's specialisation as a `numba.cuda.jit` dispatcher, for `dispatcher[grid, block, stream](*arguments)`.

        It takes the kernel's arguments without the `Const` ones; tensors of tilekit's, or anything with
        `__cuda_array_interface__`, that keep the facts of this launch's. A block has `dispatcher.block` threads.

        Raises:
            CompileError: the kernel cannot be compiled.
            DeviceUnavailableError: there is no GPU.
        """
        self._consumed = True
        return self._plan("dispatcher").specialisation.dispatcher()

    def _plan(self, what: str) -> Plan:
        """The plan, where no argument has to be computed first."""
        arguments = tuple(a.result if isinstance(a, Value) else a for a in self.arguments)
        lazy = [p.name for p, a in zip(self.kernel.signature.parameters, arguments, strict=True) if isinstance(a, DeviceOp)]
        if lazy:
            names = ", ".join(lazy)
            raise TypeError(f"{self.label}: {what}() needs tensors, not ops, for {names}; api.meta(shape, dtype) stands for one")
        return self.kernel.form(arguments).plan(self.kernel, arguments, self._options)


class _Configuring:
    """An op that is refused while it is being built has failed: it is spent, and need not be run."""

    __slots__ = ("_op",)

    def __init__(self, op: KernelLaunch) -> None:
        self._op = op

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self._op._spent = True


class _Specs(Sequence[Any]):
    """What is known of each of a launch's arguments, worked out for those that somebody asks for."""

    __slots__ = ("_arguments",)

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._arguments = arguments

    def __len__(self) -> int:
        return len(self._arguments)

    def __getitem__(self, at: Any) -> Any:
        a = self._arguments[at]
        return a.spec if isinstance(a, DeviceOp) else Spec(a.shape, a.dtype) if isinstance(a, (Tensor, Partition)) else None


def launch_of(kernel: Kernel, arguments: tuple[Any, ...], form: Form, options: Options, site: Any) -> KernelLaunch:
    """The launch of `kernel` that was asked for at `site`, once the kernel has looked at the arguments."""
    self: KernelLaunch = object.__new__(kernel._launch_type)  # past DeviceOp's, which takes twice as long
    self._fresh, self._spent, self._consumed, self._site = None, False, False, site
    self.kernel, self.arguments, self._form, self._options = kernel, arguments, form, options
    self._label = kernel.label
    if form.lazy:
        for argument in arguments:
            if isinstance(argument, DeviceOp):
                argument._consumed = True
    return self


def check_warps(num_warps: int | None) -> int | None:
    """`num_warps`, if a block can have so many (None leaves it open); ValueError if not."""
    if num_warps is not None and (not isinstance(num_warps, (int, np.integer)) or num_warps not in (1, 2, 4, 8, 16, 32)):
        raise ValueError(f"num_warps is a power of two from 1 to 32, not {num_warps!r}")
    return num_warps


def check_occupancy(occupancy: int | None) -> int | None:
    """`occupancy`, if a multiprocessor can have so many blocks (None leaves it open); ValueError if not."""
    if occupancy is not None and (type(occupancy) is not int or not 1 <= occupancy <= 32):
        raise ValueError(f"occupancy is a number of blocks from 1 to 32, not {occupancy!r}")
    return occupancy
