"""Ops that say where their parts run: one after the other, side by side, on a device, by a policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._runtime.scheduling import SchedulingPolicy
from tilekit._runtime.stream import Stream, next_stream
from tilekit.errors import check_flag
from tilekit.ops.combinators import Derived
from tilekit.ops.execution import Done, HostJob, Run, Steps, Wait
from tilekit.ops.methods import methods
from tilekit.ops.op import DeviceOp
from tilekit.ops.sources import as_op, elsewhere
from tilekit.ops.spec import Spec

__all__ = ["JoinAll", "OnDevice", "WithPolicy", "Zip", "join_all", "zip_ops"]


class Zip(DeviceOp[Any]):
    """Several ops as one, whose result is the tuple of theirs.

    Its device is that of the first part that has one; parts that say `on(device)` speak for themselves alone.
    """

    _side_by_side = True

    def __init__(self, ops: Iterable[Any], parallel: bool = False) -> None:
        self.ops = tuple(map(as_op, ops))
        for op in self.ops:
            op._consumed = True
        if type(parallel) is not bool:
            self._consumed = True  # of one that is refused nobody need be told
            parallel = check_flag("parallel", parallel)
            self._consumed = False
        self.parallel = parallel

    @property
    def specs(self) -> tuple[Spec | None, ...]:
        """What is known of each result."""
        return tuple(op.spec for op in self.ops)

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The ops it is made of."""
        return self.ops

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Each in turn, or all side by side."""
        if self.parallel and self.ops:
            return (yield from _side_by_side(self.ops, ctx))
        results: list[Any] = []
        while len(results) < len(self.ops):
            op = self.ops[len(results)]
            if op._launch_row is None or op._launch_row(self.ops, len(results), results, ctx) < len(self.ops):
                result = yield self.ops[len(results)].start(ctx)
                results.append(result)
        return tuple(results)


class JoinAll(Zip):
    """As `Zip`, with a list for a result."""

    specs: Any = None  # a list is no tuple of results

    def steps(self, ctx: ExecutionContext) -> Steps:
        """As Zip's."""
        return list((yield super().steps(ctx)))


def _side_by_side(ops: tuple[DeviceOp[Any], ...], ctx: ExecutionContext) -> Steps:
    """Run the first op on the stream at hand and each other one on the next of the device's policy; join them at the end.

    All start behind what the stream holds now, and are submitted in their order, as far as none has to wait for the device: what
    they do to the same memory comes in that order. One that fails lets those that were submitted finish, and is raised.
    """
    start = ctx.stream.mark() if len(ops) > 1 else 0
    contexts = [ctx]
    for _ in ops[1:]:
        beside = ctx.beside()
        beside.stream.wait_for(ctx.stream, start)
        contexts.append(beside)
    running = {at: Run(op, context) for at, (op, context) in enumerate(zip(ops, contexts, strict=True))}
    results: list[Any] = [None] * len(ops)
    waits: dict[int, Sequence[Wait]] = {}
    ready = list(running)
    try:
        while running:
            for at in ready:
                run = running[at]
                progress = run.begin() or (yield run)
                while not isinstance(progress, Done) and any(isinstance(w, HostJob) and w.prepares for w in progress):
                    try:
                        yield progress  # the others are behind it, as they are when nothing has to be compiled
                    except Exception as error:
                        run.failure = error
                    progress = yield run
                if isinstance(progress, Done):
                    results[at] = progress.value
                    waits.pop(at, None)
                    del running[at]
                else:
                    waits[at] = progress
            if not running:
                break
            try:
                yield [wait for mine in waits.values() for wait in mine]
                ready = list(running)
            except Exception:
                # Whose was it? Each part learns of its own failure, and may go on after it; the others still have to wait.
                failures = _failures(waits)
                for at, failure in failures.items():
                    running[at].failure = failure
                ready = list(failures)
                if not ready:
                    raise
    finally:
        for run in running.values():
            run.close()
        for context in contexts[1:]:
            ctx.stream.wait_for(context.stream, context.stream.mark())
    return tuple(results)


def _failures(waits: dict[int, Sequence[Wait]]) -> dict[int, Exception]:
    """Which parts wait for what is known to have failed. Asks nobody to wait: parts are in parts, at any depth."""
    expected = {
        at: [moment for wait in mine for moment in (wait.after if isinstance(wait, HostJob) else (wait,))]
        for at, mine in waits.items()
    }
    failures: dict[int, Exception] = {}
    lost: dict[Stream, tuple[int, Exception]] = {}  # from which serial on
    for at, mine in expected.items():
        for stream, serial in mine:
            try:
                stream.is_complete(serial)
            except Exception as error:
                failures.setdefault(at, error)
                if stream not in lost or serial < lost[stream][0]:
                    lost[stream] = (serial, error)
    for at, mine in expected.items():  # all was submitted before anybody was told: what is behind a fault was lost with it
        for stream, serial in mine:
            if at not in failures and stream in lost and serial >= lost[stream][0]:
                failures[at] = lost[stream][1]
    return failures


@methods.enter
class OnDevice(Derived):
    """An op that runs on a given device, whatever runs around it."""

    _passes_on = True
    _placed = True

    def __init__(self, source: DeviceOp[Any], device: Device) -> None:
        super().__init__(source, label=f"on {device.kind}:{device.ordinal}", spec=source.spec)
        self._device = device
        own = source.device
        if own is not None and own is not device:
            self._spent = True
            raise ValueError(f"on({device!r}): {source!r} works on tensors of {own!r}; move them with .to(device)")

    @property
    def device(self) -> Device:
        """The given one."""
        return self._device

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run it there."""
        if ctx.device is self._device:
            return (yield self.source.start(ctx))
        return (yield from elsewhere(self.source.start, next_stream(self._device.policy), ctx))


@methods.enter
class WithPolicy(Derived):
    """An op that runs on the stream that a policy gives, whatever runs around it."""

    _passes_on = True

    def __init__(self, source: DeviceOp[Any], policy: SchedulingPolicy) -> None:
        super().__init__(source, spec=source.spec)
        if not isinstance(policy, SchedulingPolicy):
            self._consumed = True
            raise TypeError(f"with_policy: {policy!r} is no scheduling policy: it has no next_stream()")
        self.policy = policy

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run it there."""
        return (yield from elsewhere(self.source.start, next_stream(self.policy), ctx))


def zip_ops(*ops: Any, parallel: bool = False) -> Zip:
    """Several ops as one, whose result is the tuple of theirs; plain values pass through.

    Args:
        ops: any number.
        parallel: run them side by side on the streams of the device's policy, instead of in order on one stream.
    """
    return Zip(ops, parallel)


def join_all(ops: Iterable[Any], parallel: bool = False) -> JoinAll:
    """As `zip`, of a list (or any iterable), with the list of the results for a result.

    Raises:
        TypeError: `ops` is no iterable.
    """
    try:
        parts = None if isinstance(ops, DeviceOp) else iter(ops)
    except TypeError:  # arrays without dimensions say that they can be iterated over, and cannot
        parts = None
    if parts is None:
        raise TypeError(f"join_all takes one list of ops (or any iterable), not {ops!r}: join_all([op, op])")
    return JoinAll(parts, parallel)
