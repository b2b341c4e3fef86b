"""`@autotune`: a kernel that chooses its configuration itself, by a search or by the record of an earlier one."""

from __future__ import annotations

import ast
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device, default_device
from tilekit._tensor.arrays import is_array
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.lang.tile import scalar_kind
from tilekit.launch.decorator import Kernel
from tilekit.launch.launch import KernelLaunch
from tilekit.ops import DeviceOp
from tilekit.ops.execution import HostJob, Steps, called_on_host
from tilekit.ops.host_values import moments, unwrap
from tilekit.tuning import records
from tilekit.tuning.configs import Config, Space, as_configs
from tilekit.tuning.progress import shown
from tilekit.tuning.search import Tuning, search, search_options
from tilekit.tuning.workbench import workbench

__all__ = ["Autotuned", "TunedLaunch", "autotune"]


def autotune(
    configs: Space | Iterable[Config],
    *,
    key: Sequence[str] | None = None,
    check: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> Callable[[Kernel[...]], Autotuned]:
    """Let a kernel choose its configuration when it first meets arguments of a size: put above `@tk.kernel`.

    ::

        @tk.autotune(tk.Space(tile=[256, 1024], num_warps=[2, 4, 8]), key=["y"])
        @tk.kernel
        def scale(y: tk.Out, x: tk.In, a: float): ...

        scale(y, x, 2.0).sync()

    The call takes what the kernel's takes, without the parameters that configurations have values for, and gives an op. When that
    runs, it is launched as the fastest configuration has it: of this process's searches, of the records on disk, or else of a
    search now (see `tune`), whose result becomes a record.

    Args:
        configs: what to choose from.
        key: the parameters by whose values there are configurations of their own: tensors by their extents, and integers, each
            rounded up to a power of two; other values as they are. By default all tensors, and what is `Const`. The dtypes and
            numbers of dimensions of all tensors always count.
        check, rtol, atol, seed: as of `tune`.

    Raises:
        TypeError: what is decorated is no kernel; `configs` or `key` name parameters or generics that it does not have.
        ValueError: there are no configurations.
    """
    chosen, options = as_configs(configs, "autotune"), search_options("autotune", check, rtol, atol, seed)
    if key is not None and not (isinstance(key, (list, tuple)) and all(isinstance(name, str) for name in key)):
        raise TypeError(f"autotune: key is a list of parameters' names, as ['x'], not {key!r}")

    def decorate(kernel: Kernel[...]) -> Autotuned:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"@tk.autotune decorates a kernel: put it above @tk.kernel, not on {kernel!r}")
        return Autotuned(kernel, chosen, key, options)

    return decorate


class Autotuned:
    """A kernel that chooses its configuration itself. Made by `@tk.autotune`.

    Attributes:
        kernel: the one that is launched.
        configs: what it chooses from.
    """

    def __init__(
        self, kernel: Kernel[...], configs: tuple[Config, ...], key: Sequence[str] | None, options: Mapping[str, Any]
    ) -> None:
        functools.update_wrapper(self, kernel, updated=())
        self.kernel, self.configs, self._options = kernel, configs, options
        self.label = f"autotuned {kernel.label}"
        parameters = [parameter.name for parameter in kernel.signature.parameters]
        self._chosen = {name for config in configs for name in config.values if name in parameters}
        known = {*parameters, *kernel.signature.generics}
        for name in dict.fromkeys(name for config in configs for name in config.values):
            if name not in known:
                raise TypeError(
                    f"{self.label}: configurations have a value for {name}, which is no parameter and no generic of it; "
                    f"it has {', '.join(sorted(known))}"
                )
        for config in configs:
            if missing := self._chosen - set(config.values):
                raise TypeError(f"{self.label}: {config!r} has no value for {', '.join(sorted(missing))}, as others have")
        for name in key or ():
            if name not in parameters or name in self._chosen:
                raise TypeError(f"{self.label}: key: no parameter that calls give is called {name!r}")
        consts = {p.name for p in kernel.signature.parameters if p.kind == "const"}
        self._by_value = consts if key is None else {*key}
        self._by_extents = None if key is None else {*key}
        binder = kernel.signature.binder
        self._binder = binder.replace(parameters=[p for p in binder.parameters.values() if p.name not in self._chosen])
        self._best: dict[tuple[Device, str], Tuning] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> TunedLaunch:
        """A launch with these arguments, as an op; its configuration is chosen when it runs. Its result is that of the kernel's.

        Raises:
            TypeError: arguments are missing or too many, or one of them is a parameter that configurations have values for.
        """
        return TunedLaunch(self, self._bound(args, kwargs))

    def tune(self, *args: Any, **kwargs: Any) -> Tuning:
        """Choose the configuration for these arguments, and launch nothing else. Blocks.

        Raises:
            As `tune` and the kernel; TypeError: an argument is an op.
        """
        arguments = self._bound(args, kwargs)
        lazy = [name for name, argument in arguments.items() if isinstance(argument, DeviceOp)]
        if lazy:
            raise TypeError(f"{self.label}: tune() needs tensors, not ops, for {', '.join(lazy)}")
        return self.choose(arguments, _device_of(arguments.values()) or default_device())

    def known(self, arguments: Mapping[str, Any], device: Device) -> Tuning | None:
        """What this process knows to be the best for such arguments (internal)."""
        return self._best.get((device, self._sizes(arguments)))

    def choose(self, arguments: Mapping[str, Any], device: Device) -> Tuning:
        """The best for such arguments: known, of a record, or of a search now (internal)."""
        sizes = self._sizes(arguments)
        with self._lock:  # others with these arguments wait for the result
            tuning = self._best.get((device, sizes))
            if tuning is None:
                key = self._key(device, sizes)
                record = records.load(key)
                if record is not None and record.config in self.configs:
                    tuning = Tuning(best=record.config, us=record.us, candidates=record.candidates, from_record=True)
                else:
                    tuning = self._search(arguments, device)
                    records.save(records.Record(key=key, config=tuning.best, us=tuning.us, candidates=tuning.candidates))
                self._best[device, sizes] = tuning
        return tuning

    def launch(self, arguments: Mapping[str, Any], config: Config) -> KernelLaunch:
        """The launch of one configuration (internal)."""
        values = {name: config.values[name] for name in self._chosen}
        return config.apply(self.kernel(**arguments, **values))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name; whoever is told of a mistake need not run those that are ops."""
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, DeviceOp):
                argument.consumed()
        if chosen := self._chosen & set(kwargs):
            raise TypeError(f"{self.label}: {', '.join(sorted(chosen))} comes with the configuration, not with the call")
        try:
            bound = self._binder.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.label}({', '.join(self._binder.parameters)}): {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _search(self, arguments: Mapping[str, Any], device: Device) -> Tuning:
        launch = partial(self.launch, arguments)
        with workbench(launch, self.configs, (), device) as (bench, _), shown(f"tuning {self.kernel.name}") as progress:
            return search(self.configs, bench, who=self.label, progress=progress, **self._options)

    def _key(self, device: Device, sizes: str) -> records.Key:
        """What the record for arguments of such sizes is kept under."""
        source = ast.unparse(self.kernel.source.tree) + repr(self.configs)
        return records.Key(
            device=records.device_name(device),
            toolkit=records.toolkit_name(device),
            kernel=f"{self.__module__}.{self.__qualname__}",
            source=hashlib.sha256(source.encode()).hexdigest()[:16],
            sizes=sizes,
        )

    def _sizes(self, arguments: Mapping[str, Any]) -> str:
        """What of the arguments has to do with the choice, as a text."""
        return ", ".join(f"{name}={size}" for name, argument in arguments.items() if (size := self._size(name, argument)))

    def _size(self, name: str, argument: Any) -> str:
        """What an argument has to do with the choice, as a text; empty if it has nothing."""
        if isinstance(argument, tuple):
            return f"({', '.join(self._size(name, part) for part in argument)})"
        if isinstance(argument, (Tensor, Partition)) or is_array(argument):
            dtype = str(argument.dtype).rpartition(".")[2]
            counts = self._by_extents is None or name in self._by_extents
            extents = (str(_bucket(int(extent))) if counts else "_" for extent in argument.shape)
            return f"{dtype}[{', '.join(extents)}]"
        if name not in self._by_value:
            return ""
        return str(_bucket(int(argument))) if scalar_kind(argument) is int else repr(argument)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self.label} has no {name}; .kernel is the kernel, its call makes a launch")

    def __repr__(self) -> str:
        return f"<{self.label} of {len(self.configs)} configurations>"


class TunedLaunch(DeviceOp[tuple[Any, ...]]):
    """One launch of an autotuned kernel, as an op. Its result is the tuple of the arguments, as the kernel has them."""

    def __init__(self, kernel: Autotuned, arguments: dict[str, Any]) -> None:
        self.kernel, self.arguments, self._label = kernel, arguments, kernel.label

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The arguments that are ops."""
        return tuple(argument for argument in self.arguments.values() if isinstance(argument, DeviceOp))

    @property
    def device(self) -> Device | None:
        """The device of the first argument that has one."""
        return _device_of(self.arguments.values()) or super().device

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run the arguments that are ops, choose the configuration, launch."""
        arguments = dict(self.arguments)
        for name, argument in self.arguments.items():
            if isinstance(argument, DeviceOp):
                result = yield argument.start(ctx)
                if pending := moments(result):
                    yield pending
                    result = unwrap(result)
                arguments[name] = result
        tuning = self.kernel.known(arguments, ctx.device)
        if tuning is None:
            if ctx.recording is not None:
                ctx.recording.refuse("its kernel has no configuration yet for such arguments; run it, or .tune(...), once before")
            # The search runs work of its own, on a stream of its own.
            yield [(ctx.stream, ctx.stream.mark())]
            job = HostJob(partial(called_on_host, self.kernel.choose, arguments, ctx.device), prepares=True)
            yield [job]
            tuning = job.result()
        return (yield self.kernel.launch(arguments, tuning.best).start(ctx))


def _device_of(arguments: Iterable[Any]) -> Device | None:
    for argument in arguments:
        if isinstance(argument, (Tensor, Partition)) and argument.storage is not None:
            device: Device = argument.storage.device
            return device
    return None


def _bucket(extent: int) -> int:
    """An extent rounded up to a power of two."""
    return 1 << (extent - 1).bit_length() if extent > 1 else extent
