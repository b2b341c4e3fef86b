"""`tune`: a search by hand, and the workbench that compiles, runs and times what a function launches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilekit import api
from tilekit._runtime.device import Device, default_device
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.errors import DeviceError
from tilekit.launch.launch import KernelLaunch
from tilekit.ops import DeviceOp
from tilekit.tuning.compiling import compile_all
from tilekit.tuning.configs import Config, Space, as_configs
from tilekit.tuning.progress import shown
from tilekit.tuning.search import Report, Tuning, search, search_options
from tilekit.tuning.timing import Stopwatch

__all__ = ["tune"]

Launch = Callable[[Config], DeviceOp[Any]]


def tune(
    launch: Launch,
    space: Space | Iterable[Config],
    *,
    check: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    preserve: Sequence[Tensor] = (),
    seed: int = 0,
) -> Tuning:
    """Search a space for the configuration that an op is fastest with. Blocks.

    ::

        space = tk.Space(tile=[256, 512, 1024], num_warps=[2, 4, 8])
        tuning = tk.tune(lambda config: config.apply(saxpy(y, 2.0, x)), space)
        print(tuning)          # all that were tried, with their times, or why they were thrown out
        config = tuning.best

    All candidates are compiled, in processes where the device is a GPU. Those that spill registers, need more shared memory than
    there is, or leave no room for the occupancy that they ask for are thrown out; so are those that fail, and those whose result
    differs from that of the first which runs. The rest is measured, in turns, by successive halving.

    What a launch writes (its partitions) has behind the search what it had before. So has what `preserve` names.

    Args:
        launch: makes an op, for a configuration; called for each run.
        space: the configurations.
        check: whether results are compared: what launches write, or the tensors and arrays that another op results in.
        rtol, atol: how far floats may be apart, as of `numpy.allclose`. By default 32 roundings of their dtype, of the
            element, and of the largest one: sums are taken in other orders.
        preserve: tensors that the op writes without their being the partitions of one launch.
        seed: of the order in which candidates take turns.

    Raises:
        TypeError, ValueError: `launch` makes no op, `space` is none, or an option is something else.
        TilekitError: none of the configurations can be used; the text says why, for each.
        DeviceError: the device is lost.
    """
    configs = as_configs(space, "tune")
    if not callable(launch):
        raise TypeError(f"tune takes a function that makes an op for a configuration, not {launch!r}")
    options = search_options("tune", check, rtol, atol, seed)
    if not isinstance(preserve, (list, tuple)):
        raise TypeError(f"tune: preserve is a list of tensors, not {preserve!r}")
    for tensor in preserve:
        if not isinstance(tensor, Tensor) or tensor.storage is None:
            raise TypeError(f"tune: preserve takes tensors that have memory, not {tensor!r}")
    with workbench(launch, configs, preserve) as (bench, label), shown(f"tuning {label}") as progress:
        return search(configs, bench, who=f"tune: {label}", progress=progress, **options)


@contextmanager
def workbench(
    launch: Launch, configs: Sequence[Config], preserve: Sequence[Tensor], device: Device | None = None
) -> Iterator[tuple[_Workbench, str]]:
    """A workbench for what `launch` makes, and what that is called. In the end what it wrote is as it was."""
    op = _first(launch, configs)
    label = op.label if op is not None else "an op"
    written = [*preserve, *_written(op)]
    drifts = bool(preserve) or (isinstance(op, KernelLaunch) and _reads_what_it_writes(op))
    if op is not None:
        device = op.device or device
        op.consumed()
    device = device or default_device()
    with device.stream() as stream, Stopwatch(stream) as watch:
        for tensor in written:
            assert tensor.storage is not None, "it was looked at"
            if tensor.storage.memory.shadow is not None:
                tensor.storage.memory.shadow.trust()  # what nobody has written is copied, too
        before = [(tensor, tensor.dup().sync_on(stream)) for tensor in written]
        bench = _Workbench(launch, watch, before, drifts)
        try:
            yield bench, label
        finally:
            error = sys.exception()
            if not (isinstance(error, DeviceError) and error.lost):  # then nothing can be put back any more
                bench.restore()


def _first(launch: Launch, configs: Sequence[Config]) -> DeviceOp[Any] | None:
    """The op of the first configuration that there is one for."""
    for config in configs:
        try:
            op = launch(config)
        except (TypeError, ValueError):  # of this configuration; the search says so
            continue
        if not isinstance(op, DeviceOp):
            raise TypeError(f"tune: the function makes an op, not {op!r}")
        return op
    return None


def _written(op: DeviceOp[Any] | None) -> list[Tensor]:
    """The tensors with memory that a launch writes."""
    arguments = op.arguments if isinstance(op, KernelLaunch) else ()
    return [a.unpartition() for a in arguments if isinstance(a, Partition) and a.storage is not None]


def _reads_what_it_writes(op: KernelLaunch) -> bool:
    parameters = op.kernel.signature.parameters
    return any(isinstance(a, Partition) and p.kind != "out" for p, a in zip(parameters, op.arguments, strict=True))


class _Workbench:
    """Compiles, runs and times what a function launches, see `search.Workbench`.

    Args:
        launch: the function.
        watch: what times it, on its stream.
        before: tensors, and copies of what is in them.
        drifts: whether runs behind each other would not be of the same input.
    """

    def __init__(self, launch: Launch, watch: Stopwatch, before: Sequence[tuple[Tensor, Tensor]], drifts: bool) -> None:
        self._launch, self._watch, self._before, self._drifts = launch, watch, before, drifts

    def compile(self, configs: Sequence[Config], step: Callable[[], object]) -> list[Report]:
        """The launches; for a GPU, compiled in processes."""
        reports: list[Report] = [None] * len(configs)
        ops: dict[int, KernelLaunch] = {}
        for at, config in enumerate(configs):
            try:
                op = self._launch(config)
            except Exception as error:
                reports[at] = error
            else:
                op.consumed()
                if self._watch.device.kind == "cuda" and isinstance(op, KernelLaunch) and not op.parts():
                    ops[at] = op
                    continue
            step()
        compiled = compile_all(list(ops.values()), self._watch.device.driver.target, step)
        for at, report in zip(ops, compiled, strict=True):
            reports[at] = report
        return reports

    def run(self, config: Config) -> list[Any]:
        """Run it once, of what there was at first."""
        self.restore()
        return _on_host(self._launch(config).sync_on(self._watch.stream), self._watch.stream)

    def sample_us(self, config: Config) -> float:
        """Time it once."""
        if self._drifts:
            self.restore()
        return self._watch.sample_us(self._launch(config))

    def restore(self) -> None:
        """Put back what was in the tensors that are written."""
        for tensor, copy in self._before:
            api.memcpy(tensor, copy).sync_on(self._watch.stream)


def _on_host(result: Any, stream: Any) -> list[Any]:
    """The numbers in a result: of a launch those that it wrote, which are its partitions."""
    leaves = list(_leaves(result))
    written = [leaf for leaf in leaves if isinstance(leaf, Partition)]
    return [leaf.to_host().sync_on(stream) if isinstance(leaf, (Tensor, Partition)) else leaf for leaf in written or leaves]


def _leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from _leaves(part)
    elif isinstance(result, (Tensor, Partition, np.ndarray, np.generic, int, float)):
        yield result
