"""Kernels that were not written in the tile language, as ops: numba's, CUDA C++, and modules that somebody compiled.

Each is called with a configuration in brackets and the arguments in parentheses: `kernel[tk.LaunchConfig(...)](y, x, n)`. What
is built then is a `ForeignLaunch`: lazy, in order with whatever else uses the tensors, composable like any other op.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.foreign import executables as foreign
from tilekit.compiler.foreign.image import ModuleImage, Origin, SourceText
from tilekit.compiler.foreign.nvrtc import CompiledCode, check_options, check_text
from tilekit.compiler.target import of as target_of
from tilekit.errors import DeviceError, DeviceUnavailableError
from tilekit.launch.foreign import declared
from tilekit.launch.foreign.aliasing import check_overlap
from tilekit.launch.foreign.configuration import LaunchConfig
from tilekit.launch.foreign.declared import Declaration, memory
from tilekit.launch.showing import argument_lines
from tilekit.ops import AsyncKernelLaunch, DeviceOp, Executable, Spec
from tilekit.ops.execution import Done, HostJob, Steps
from tilekit.ops.host_values import moments, unwrap

__all__ = ["CodeKernel", "ForeignKernel", "ForeignLaunch", "KernelModule", "NumbaKernel", "cuda_source", "load_module", "wrap"]


class ForeignKernel:
    """A kernel that was not written in the tile language. Made by `tk.wrap`, `tk.cuda_source`, `tk.load_module`.

    `kernel[config](*arguments)` builds a launch. What becomes of its tensors is what the signature declares; a tensor of which
    nothing is declared counts as read and written.

    Attributes:
        label: what messages call it.
        config: the configuration it is launched with; None before one is given in brackets.
        result_count: how many results a launch has, one for each parameter.
    """

    raw = False  # whether it gets bare pointers

    def __init__(self, label: str, parameters: tuple[Declaration, ...], config: LaunchConfig | None) -> None:
        self.label, self.parameters, self.result_count = label, parameters, len(parameters)
        self.config = None if config is None else self._checked(config)

    def _checked(self, config: Any) -> LaunchConfig:
        if not isinstance(config, LaunchConfig):
            raise TypeError(f"{self.label} is launched with kernel[tk.LaunchConfig(grid=..., block=...)], not {config!r}")
        return config

    def __getitem__(self, config: LaunchConfig) -> Self:
        """The kernel, to be launched with `config`."""
        configured = copy.copy(self)
        configured.config = self._checked(config)
        return configured

    def __call__(self, *arguments: Any) -> ForeignLaunch:
        """A launch with these arguments: tensors, partitions (the kernel gets their tensor), scalars, or ops that produce them.

        Raises:
            TypeError: no configuration was given, or the arguments are too many, too few, or not what is declared.
            ValueError: a scalar does not fit its type, or a raw kernel would get a tensor that is not contiguous.
        """
        if self.config is None:
            raise TypeError(f"{self.label}: say how it is launched, with kernel[tk.LaunchConfig(grid=..., block=...)](...)")
        if len(arguments) != len(self.parameters):
            listed = ", ".join(p.name if str(p) == "anything" else f"{p.name}: {p}" for p in self.parameters)
            raise TypeError(f"{self.label} takes {len(self.parameters)} arguments ({listed}), not {len(arguments)}")
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if not isinstance(argument, DeviceOp):
                declared.check(parameter, argument, self.label, raw=self.raw)
        return ForeignLaunch(self, arguments)

    def prepare(self, device: Device, arguments: Sequence[Any]) -> tuple[Executable | None, Callable[[], Executable] | None]:
        """What launches the kernel on `device`, or what has to be called for it, which may take long (internal).

        Raises:
            DeviceError, DeviceUnavailableError: it cannot run there.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self.label}({', '.join(p.name for p in self.parameters)})>"


class ForeignLaunch(AsyncKernelLaunch):
    """One launch of a kernel that is not tilekit's. Its result is the tuple of the arguments, what went in, in their order."""

    def __init__(self, kernel: ForeignKernel, arguments: tuple[Any, ...]) -> None:
        self.kernel, self.arguments, self._label = kernel, arguments, kernel.label
        for part in self.parts():
            part.consumed()

    @property
    def config(self) -> LaunchConfig:
        """How it is launched."""
        config = self.kernel.config
        assert config is not None, "checked when it was called"
        return config

    def _details(self) -> tuple[str, ...]:
        """The arguments."""
        return argument_lines(self.kernel.parameters, self.arguments)

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The arguments that are ops."""
        return tuple(a for a in self.arguments if isinstance(a, DeviceOp))

    @property
    def device(self) -> Device | None:
        """The device of the first argument that has one."""
        for argument in self.arguments:
            if isinstance(argument, (Tensor, Partition)) and argument.device is not None:
                return argument.device
        return super().device

    @property
    def specs(self) -> tuple[Spec | None, ...]:
        """What is known of each result."""
        return tuple(
            a.spec if isinstance(a, DeviceOp) else Spec(a.shape, a.dtype) if isinstance(a, (Tensor, Partition)) else None
            for a in self.arguments
        )

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Launch, at once if the arguments are there and the kernel is compiled."""
        return self._resolved(ctx) if self.parts() else self._launch(ctx, self.arguments)

    def _resolved(self, ctx: ExecutionContext) -> Steps:
        """Run the arguments that are ops, then launch."""
        resolved = []
        for argument in self.arguments:
            if isinstance(argument, DeviceOp):
                argument = yield argument.start(ctx)
                if pending := moments(argument):
                    yield pending
                    argument = unwrap(argument)
            resolved.append(argument)
        for parameter, argument in zip(self.kernel.parameters, resolved, strict=True):
            declared.check(parameter, argument, self.kernel.label, raw=self.kernel.raw)
        return (yield self._launch(ctx, tuple(resolved)))

    def _launch(self, ctx: ExecutionContext, arguments: tuple[Any, ...]) -> Steps | Done:
        kernel = self.kernel
        tensors = [(p, t) for p, a in zip(kernel.parameters, arguments, strict=True) if (t := memory(a)) is not None]
        for parameter, tensor in tensors:
            if tensor.storage is None:
                raise TypeError(
                    f"{kernel.label}: argument {parameter.name} is a meta tensor, without memory: it cannot be launched on"
                )
            if tensor.device is not ctx.device:
                raise ValueError(
                    f"{kernel.label}: argument {parameter.name} is on {tensor.device!r}, the launch on {ctx.device!r}"
                )
        check_overlap(kernel.label, tensors)
        reads = tuple(t.storage for p, t in tensors if p.access != "out" and t.storage is not None)
        writes = tuple(t.storage for p, t in tensors if p.access != "in" and t.storage is not None)
        executable, job = kernel.prepare(ctx.device, arguments)
        if 0 in self.config.grid:
            return Done(arguments)
        if executable is None:
            assert job is not None, "one of them"
            return self._prepared(ctx, job, arguments, reads, writes)
        self.enqueue(ctx, executable, self.config.grid, arguments, reads, writes)
        return Done(arguments)

    def _prepared(self, ctx: ExecutionContext, work: Callable[[], Executable], arguments: Any, reads: Any, writes: Any) -> Steps:
        """Compile or load, then launch."""
        job = HostJob(work, prepares=True)
        yield [job]
        self.enqueue(ctx, job.result(), self.config.grid, arguments, reads, writes)
        return arguments


# numba's kernels


class NumbaKernel(ForeignKernel):
    """A kernel of `numba.cuda.jit`. It gets tensors as numba's device arrays, of any strides, without a copy.

    Attributes:
        simulated: whether numba simulates it, on the CPU device only (NUMBA_ENABLE_CUDASIM=1), instead of compiling it.
    """

    def __init__(self, function: Any, config: LaunchConfig | None, signature: Any) -> None:
        kind = foreign.kind_of_kernel(function)
        if kind is None or kind == "device":
            described = "a device function, which only kernels call" if kind else f"{function!r}"
            raise TypeError(f"tk.wrap takes a kernel, a function decorated with numba.cuda.jit, not {described}")
        label = f"numba kernel {function.py_func.__name__}"
        super().__init__(label, declared.from_function(function.py_func, label, signature), config)
        self.function, self.simulated = function, kind == "simulated"

    def _checked(self, config: Any) -> LaunchConfig:
        checked = super()._checked(config)
        if checked.cluster is not None:
            raise ValueError(f"{self.label}: numba launches no clusters; leave out cluster={checked.cluster}")
        return checked

    def prepare(self, device: Device, arguments: Sequence[Any]) -> tuple[Executable | None, Callable[[], Executable] | None]:
        """In numba's simulator on a CPU device, through numba's dispatcher on a GPU (internal)."""
        config = self.config
        assert config is not None
        passed = [
            declared.scalar_of(p, a) if (tensor := memory(a)) is None else tensor
            for p, a in zip(self.parameters, arguments, strict=True)
        ]
        if self.simulated and device.kind == "cpu":
            read_only = [p.access == "in" for p in self.parameters]
            return foreign.SimulatedLaunch(self.function, self.label, passed, read_only, config.block, config.shared_bytes), None
        if self.simulated:
            raise DeviceUnavailableError(
                f"{self.label} is simulated (NUMBA_ENABLE_CUDASIM=1), which works on a CPU device only, not on {device.label}"
            )
        if device.kind == "cpu":
            raise foreign.no_simulator(self.label, device)
        launch = foreign.NumbaLaunch(self.function, self.label, passed, config.block, config.shared_bytes, device)
        return (launch, None) if launch.ready else (None, launch.compile)


def wrap(function: Any, config: LaunchConfig | None = None, *, signature: Any = None) -> NumbaKernel:
    """Make a kernel of `numba.cuda.jit` one whose launches are ops: `wrap(kernel)[config](y, x, n)`.

    numba compiles and launches it, on the stream of the op. On a CPU device it runs in numba's simulator, if that was chosen by
    NUMBA_ENABLE_CUDASIM=1 before numba was imported.

    Args:
        function: what `numba.cuda.jit` made.
        config: how it is launched, unless brackets say otherwise.
        signature: what it does with its parameters, such as `"InOut, In, f32"`; by default what they are annotated: `tk.In`,
            `tk.Out`, `tk.InOut`. An array without either counts as read and written. A scalar that is declared is converted.

    Raises:
        TypeError: it is no such kernel. ValueError: the signature does not read as one, or is another kernel's.
    """
    return NumbaKernel(function, config, signature)


# machine code


class CodeKernel(ForeignKernel):
    """A kernel of CUDA C++ or of a compiled module. It gets a pointer for each tensor, and scalars of the declared types."""

    raw = True

    def __init__(self, label: str, name: str, origin: Origin, parameters: tuple[Declaration, ...]) -> None:
        super().__init__(label, parameters, None)
        self.name, self._origin = name, origin
        self._slots, self._values = declared.packing(parameters)
        self._loaded: dict[Device, foreign.LoadedImage] = {}  # shared by the copies that differ in their configuration

    def prepare(self, device: Device, arguments: Sequence[Any]) -> tuple[Executable | None, Callable[[], Executable] | None]:
        """Loaded on a GPU, after it was compiled where it has to be (internal)."""
        config = self.config
        assert config is not None
        if device.kind == "cpu":
            raise DeviceUnavailableError(f"{self.label} is CUDA code: it needs a GPU, and {device.label} is none")
        assert device.compute_capability is not None, "a GPU"
        if config.cluster is not None and not target_of(device.compute_capability).clusters:
            raise DeviceError(
                f"{self.label}: clusters need sm_90 or newer, and {device.label} ({device.name}) is {device.target}"
            )
        if device in self._loaded:
            return self._configured(device), None
        return None, partial(self._load, device)

    def _load(self, device: Device) -> Executable:
        image = self._origin.image(self.name, device.target)
        self._check_parameters(image.parameters)
        self._loaded.setdefault(device, foreign.LoadedImage(image, self._slots, device, self.label))
        return self._configured(device)

    def _configured(self, device: Device) -> Executable:
        config = self.config
        assert config is not None
        written = [p.access not in ("in", "scalar") for p in self.parameters]
        loaded = self._loaded[device]
        return foreign.RawLaunch(loaded, config.block, config.shared_bytes, config.cluster, self._values, written)

    def _check_parameters(self, sizes: tuple[int, ...] | None) -> None:
        """Whether the compiled kernel has the parameters that are declared, as far as their sizes tell."""
        mine = tuple(p.nbytes for p in self.parameters)
        if sizes is None or sizes == mine:
            return
        listed = ", ".join(map(str, self.parameters))
        raise TypeError(
            f"{self.label}: the signature ({listed}) declares parameters of {list(mine)} bytes, "
            f"the compiled kernel has {list(sizes)}"
        )

    def compile(self, target: str | None = None) -> CompiledCode:
        """Compile without running; needs no GPU.

        Args:
            target: such as `"sm_80"` or `"sm_90a"`; by default that of the default device.

        Raises:
            CompileError: it cannot be compiled. TypeError: its parameters are not what the signature declares.
            ValueError: there is no kernel of that name, no such target, or no GPU and no target given; or the module is a cubin
                for another architecture.
            TilekitError: the compiler is not installed.
        """
        if target is None:
            from tilekit._runtime.device import default_device

            device = default_device()
            if device.kind != "cuda":
                raise ValueError(f"{self.label}: no GPU to compile for; name a target, such as .compile('sm_90a')")
            target = device.target
        compiled = self._origin.compiled(self.name, target)
        self._check_parameters(compiled.parameters)
        return compiled


def cuda_source(code: str, name: str, signature: Any, options: Sequence[str] = ()) -> CodeKernel:
    """A kernel of CUDA C++, compiled by NVRTC for each architecture that it is launched on, when it is first.

    Args:
        code: the source text. The toolkit's headers are found where they are installed.
        name: the kernel's, as C++ code would write it: `"add"`, `"scale<float>"`.
        signature: its parameters: `"y: InOut[f32], x: In[f32], a: f32, n: i32"`. Tensors must be contiguous, and the kernel gets
            their addresses; extents are passed as scalars. Types are bool, i8 to i64, u8 to u64, f16, bf16, f32, f64.
        options: for NVRTC, such as `("-DN=4", "--use_fast_math")`.

    Raises:
        TypeError, ValueError: the signature or the options do not read as such.
    """
    if not isinstance(code, str) or not isinstance(name, str):
        raise TypeError(f"tk.cuda_source takes a source text and the name of a kernel in it, not {code!r} and {name!r}")
    check_text("tk.cuda_source: the source", code)
    check_text("tk.cuda_source: the name", name)
    label = f"CUDA kernel {name}"
    return CodeKernel(label, name, SourceText(code, check_options(options)), declared.parse(signature, label))


class KernelModule:
    """A compiled module. Made by `tk.load_module`; `kernel(name, signature)` is a kernel of it.

    Attributes:
        kind: "PTX", "cubin" or "fatbin".
        names: its kernels; None for a fatbin, which only the driver reads.
    """

    def __init__(self, image: ModuleImage) -> None:
        self._image, self.kind, self.names = image, image.kind, image.names

    def kernel(self, name: str, signature: Any) -> CodeKernel:
        """A kernel of the module.

        Args:
            name: as the module has it: C++ mangles names that are not `extern "C"`.
            signature: its parameters, see `tk.cuda_source`.

        Raises:
            ValueError: there is none of that name; the text has those that there are. (Of a fatbin, when it is launched.)
            TypeError: the name is no str.
        """
        check_text(f"the name of a kernel of {self._image.where}", name)
        self._image.check_name(name)
        label = f"kernel {name} of {self._image.where}"
        return CodeKernel(label, name, self._image, declared.parse(signature, label))

    def __repr__(self) -> str:
        return (
            f"<{self.kind} {self._image.where}: {', '.join(self.names or ())}>"
            if self.names
            else f"<{self.kind} {self._image.where}>"
        )


def load_module(module: str | os.PathLike[str] | bytes) -> KernelModule:
    """Read a module that was compiled elsewhere: PTX, a cubin or a fatbin. No device is touched.

    PTX is assembled by nvJitLink for the GPU at hand where that is installed, since a driver refuses PTX of newer toolkits.

    Args:
        module: its path, or its bytes.

    Raises:
        FileNotFoundError: there is no such file; another OSError: it cannot be read. ValueError: it is something else than a
            module; the text says what. TypeError: it is neither a path nor bytes.
    """
    if isinstance(module, (bytes, bytearray, memoryview)):
        return KernelModule(ModuleImage(bytes(module), "the module"))
    if isinstance(module, str) and "\n" in module:
        raise ValueError("tk.load_module takes a path or bytes; this looks like the text of a module: pass text.encode()")
    try:
        path = Path(module)
    except TypeError:
        raise TypeError(f"tk.load_module takes the path of a module, or its bytes, not {module!r}") from None
    try:
        data = path.read_bytes()
    except OSError as error:  # of the same class, by its number
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise OSError(error.errno, f"tk.load_module: {reason}", str(path)) from None
    except ValueError as error:
        raise ValueError(f"tk.load_module: {str(path)!r} is no path of a file: {error}") from None
    return KernelModule(ModuleImage(data, str(path)))
