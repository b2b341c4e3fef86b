"""`Together`: an op that launches kernels of all of a group's members here at the same time, which may wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from tilekit._groups.group import Group
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._tensor.tensor import Tensor
from tilekit.launch.launch import KernelLaunch, launch_of
from tilekit.launch.specialisation import Specialisation
from tilekit.ops import DeviceOp, Spec, zip_ops
from tilekit.ops.execution import Done, HostJob, Steps

__all__ = ["Together", "Work", "again", "known", "of_members", "started"]


class Work(Protocol):
    """What one member does.

    Attributes:
        launches: the kernels that it launches, which are compiled and loaded before any member begins.
    """

    launches: Sequence[KernelLaunch]

    def submit(self, ctx: ExecutionContext) -> Any:
        """Submit all of it, and give the result. Nothing in it waits for the host."""
        ...


class Together(DeviceOp[Any]):
    """What members of a group do together, each on its device.

    Kernels that wait for each other have to run at the same time. So each member's are submitted to a stream of its own device,
    none behind another member's; all are compiled and loaded before the first is submitted; and one thread submits at a time, so
    that all devices have such ops in the same order.

    Args:
        group: whose.
        inputs: for each member of this process its tensors. The first is made contiguous before.
        work: of a member's number among those of this process, its context and these: what it does.
        label: what it is called.
        spec: what is known of a member's result.
    """

    def __init__(
        self,
        group: Group,
        inputs: Sequence[Sequence[Tensor]],
        work: Callable[..., Work],
        label: str,
        spec: Spec | None = None,
    ) -> None:
        self.group, self.inputs, self._work, self._label = group, tuple(inputs), work, label
        if group.joined:
            self.spec = spec

    @property
    def device(self) -> Device:
        """The first member's."""
        return self.group.devices[0]

    def _details(self) -> tuple[str, ...]:
        """Among how many it is."""
        return (f"{self.group.size} members",)

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Prepare everything, then submit it."""
        group = self.group
        contexts = [ctx]
        if len(group.devices) > 1:
            if ctx.recording is not None:
                ctx.recording.refuse(
                    f"it works on {len(group.devices)} devices, and a graph is of one: record in a process for each"
                )
            contexts += [ctx.on(stream) for stream in group.streams()[1:]]
        works: list[Work] = []
        for at, ((x, *others), member) in enumerate(zip(self.inputs, contexts, strict=True)):
            dense = x if x.is_contiguous else (yield x.dup().start(member))
            works.append(self._work(at, member, dense, *others))
        for work, member in zip(works, contexts, strict=True):
            for launch in work.launches:
                launch.consumed()
                version = _specialisation(launch)
                if version.loaded(member.device) is None:
                    job = HostJob(partial(version.executable, member.device), prepares=True)
                    yield [job]
                    job.result()
        with group.submitting:
            results = [work.submit(member) for work, member in zip(works, contexts, strict=True)]
            if ctx.recording is None:
                group.expect(self._label, ctx.stream)
        for member in contexts[1:]:
            ctx.stream.wait_for(member.stream, member.stream.mark())
        return results[0] if group.joined else results


def _specialisation(launch: KernelLaunch) -> Specialisation:
    form, arguments, options = launch._form, launch.arguments, launch._options
    plan = form.plans.get(form.key(arguments, options)) or form.plan(launch.kernel, arguments, options)
    return plan.specialisation


def of_members(name: str, group: Group, operands: dict[str, Any], function: Callable[..., DeviceOp[Any]]) -> DeviceOp[Any]:
    """The op that `function` makes of the members' tensors, as soon as these are there.

    Args:
        name: of the op, for messages.
        group: whose.
        operands: by name: in one process a list with a tensor or an op for each member, or an op that gives such a list; in a
            joined group a tensor or an op.
        function: of a list for each operand, with a tensor for each member of this process.

    Raises:
        TypeError, ValueError: it is something else.
    """
    alone = group.joined

    def with_tensors(values: Sequence[Any]) -> DeviceOp[Any]:
        pairs = zip(operands, values, strict=True)
        return function(*(group.tensors(name, [value] if alone else value, what) for what, value in pairs))

    values = [x if alone or isinstance(x, DeviceOp) else group.together(name, x) for x in operands.values()]
    if any(isinstance(x, DeviceOp) for x in values):
        return zip_ops(*values).then(with_tensors).named(name)
    return with_tensors(values)


def again(launch: KernelLaunch, arguments: tuple[Any, ...]) -> KernelLaunch:
    """A launch once more, on arguments of the same kinds."""
    once_more = launch_of(launch.kernel, arguments, launch._form, launch._options, launch._site)
    once_more._consumed = True
    return once_more


def known(launch: KernelLaunch) -> KernelLaunch:
    """A launch to be made again and again, on arguments that look like these: nothing in them is looked at any more."""
    form, options = launch._form, launch._options
    launch._form = form.alone(options, form.plan(launch.kernel, launch.arguments, options))
    launch._consumed = True
    return launch


def started(op: DeviceOp[Any], ctx: ExecutionContext) -> Any:
    """Submit an op that is ready, and give its result."""
    progress = op.start(ctx)
    if not isinstance(progress, Done):
        raise AssertionError(f"{op!r} has to be prepared before")
    return progress.value
