"""Measures drawn cases: all contestants of a case in turns, each checked before, by the device's time.

On a GPU each contestant's launches are recorded in a CUDA graph, several of them where they are short, so that what a launch
costs the host does not count. Where PyTorch or tilekit cannot record something, it is launched one by one, and the record says
so.
"""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tilekit as tk
from tilekit import api, memory
from tilekit._environment import version_of
from tilekit._runtime.stream import Stream
from tilekit.launch import KernelLaunch
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.drawn.distribution import Case, Limits
from tilekit_benchmarks.drawn.families import FAMILIES, drawn_case
from tilekit_benchmarks.drawn.problem import Operands, Problem, error_of
from tilekit_benchmarks.drawn.record import CaseResult, worst
from tilekit_benchmarks.harness import Contestant, EventTimer, HostTimer, Measurement, Variant, compete, timer_for
from tilekit_benchmarks.report import OWN, LeftOut
from tilekit_benchmarks.saxpy_peers import Missing, need

__all__ = ["Bench", "measure"]

_ATTEMPTS = 50  # to draw a case that takes long enough
_GRAPH_US, _MOST_RECORDED = 200.0, 50  # how long a graph takes at least, and how many launches it has at most
_SAMPLE_MS = 5.0
_LONGEST_REASON = 200  # characters of an error that are kept
_PEERS_FACTOR = 4.0  # times tilekit's tolerance: they round in between
_log = logging.getLogger("tilekit_benchmarks")


class _Short(Exception):
    """The case is too short to be measured."""


class Bench:
    """Where cases are measured: a stream that tilekit and PyTorch share.

    Attributes:
        torch: PyTorch.
        stream: tilekit's name of the stream.
        device: PyTorch's name of the device.
        active: makes the stream PyTorch's current one.
        timer: takes the samples.
        limits: of what is drawn.
        rounds: how many samples count.
        lock: a file that runs beside this one name, too; None if there are none.
    """

    def __init__(self, stream: Stream, limits: Limits, rounds: int, lock: Path | None = None) -> None:
        need(("torch", "torch"))
        import torch

        self.torch: Any = torch
        self.stream, self.limits, self.rounds, self.lock = stream, limits, rounds, lock
        self.cuda = stream.device.kind == "cuda"
        self.timer: EventTimer | HostTimer = timer_for(stream.device, stream)
        self.active: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.device = torch.device("cpu")
        if self.cuda:
            self.device = torch.device("cuda", stream.device.ordinal)
            current = torch.cuda.ExternalStream(stream.address, device=self.device)
            self.active = lambda: torch.cuda.stream(current)

    @contextmanager
    def use(self) -> Iterator[None]:
        """While cases are measured: both libraries use the stream."""
        with ExitStack() as stack:
            stack.callback(self.timer.close)
            stack.enter_context(tk.use_device(self.stream.device))
            stack.enter_context(policy_of(self.stream.device, self.stream))
            stack.enter_context(self.active())
            yield

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While the device is busy for this run, and for no other that has the same lock. What compiles does so outside."""
        if self.lock is None:
            yield
            return
        import fcntl  # of Unix alone

        with self.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
            self.stream.synchronize()

    def problem(self, family: str, seed: int, case: Case) -> Problem:
        """The case with its tensors."""
        return FAMILIES[family].problem(case, Operands(self.torch, self.device, seed, case))

    def free(self) -> None:
        """Give back what nobody uses any more."""
        gc.collect()
        self.stream.synchronize()
        memory.release(self.stream.device)
        if self.cuda:
            self.torch.cuda.empty_cache()

    def usable(self) -> bool:
        """Whether the device still works: after a fault nothing can run there."""
        try:
            self.stream.synchronize()
        except Exception:
            return False
        return True

    def recorded(self, launch: Callable[[], Any], count: int) -> Callable[[], object]:
        """A CUDA graph of `count` calls of PyTorch's or Triton's."""
        graph, current = self.torch.cuda.CUDAGraph(), self.torch.cuda.current_stream(self.device)
        # Relaxed, since tilekit's events may be asked meanwhile.
        with self.torch.cuda.graph(graph, stream=current, capture_error_mode="relaxed"):
            for _ in range(count):
                launch()
        replay: Callable[[], object] = graph.replay
        return replay


def measure(bench: Bench, family: str, seed: int, numbers: Sequence[int]) -> tuple[list[CaseResult], str | None]:
    """Measure the cases of these numbers, and explain the slowest. Blocks until it is done.

    Returns:
        The results, and why they are not all, if a fault has ended it.
    """
    results: list[CaseResult] = []
    for number in numbers:
        results.append(_measure_one(bench, family, seed, number))
        if not bench.usable():
            return results, f"a fault at case {number} has ended the run: measure the others by --from {number + 1}"
    slowest = {result.case.number for result in worst(results)}
    return [_explained(bench, family, seed, r) if r.case.number in slowest else r for r in results], None


def _measure_one(bench: Bench, family: str, seed: int, number: int) -> CaseResult:
    """A case, drawn again while it is too short."""
    start, again = time.perf_counter(), list[str]()
    for attempt in range(_ATTEMPTS):
        case = drawn_case(family, seed, number, bench.limits, attempt)
        _log.info("%d: %s", number, case.label)
        taken = _Taken(bench, case, last=attempt == _ATTEMPTS - 1)
        try:
            result = taken.measure(family, seed)
            return replace(result, drawn_again=tuple(again), seconds=round(time.perf_counter() - start, 2))
        except _Short as short:
            again.append(f"{case.label}: {short}")
        finally:
            del taken
            if bench.usable():
                bench.free()
    raise AssertionError("the last attempt is measured, however short it is")


@dataclass(kw_only=True)
class _Joined:
    """A contestant that takes part.

    Attributes:
        contestant: with its variants that are right.
        count: how many launches one call of a variant is.
        graph: whether they are recorded.
    """

    contestant: Contestant
    count: int = 1
    graph: bool = False


@dataclass
class _Taken:
    """A case while it is measured."""

    bench: Bench
    case: Case
    last: bool = False
    left_out: list[LeftOut] = field(default_factory=list)
    right: tuple[Any, ...] = ()
    error: float | None = None

    def measure(self, family: str, seed: int) -> CaseResult:
        """Check and measure all contestants. Raises `_Short` if the best peer is too fast, unless this is the last attempt."""
        try:
            with self.bench.turn():
                problem = self.bench.problem(family, seed, self.case)
                self.right = _several(problem.reference())
        except Exception as error:  # such as out of memory: nobody has failed at the case
            _log.warning("%s: no tensors", self.case.label, exc_info=error)
            return CaseResult(case=self.case, left_out=(LeftOut(name="the case", cause="failed", reason=_reason(error)),))
        peers: list[_Joined] = []
        for some in (self._libraries(problem), self._compilers(problem)):  # a short case is not compiled for
            new = [joined for joined in some if joined is not None]
            fastest, least = min(map(self._quickly, new), default=math.inf), self.bench.limits.shortest_us
            if fastest < least and not self.last:
                raise _Short(f"{fastest:.1f} us, {least:g} us is the least")
            peers += new
        own = self._join(OWN, tk.__version__, [("", problem.own)], problem, own=True)
        self.right = ()
        everybody = [*peers, *([own] if own is not None else [])]
        measured: tuple[Measurement, ...] = ()
        try:
            self.bench.free()
            with self.bench.turn():
                measured = self._compete(everybody)
        except Exception as error:  # a fault: nothing can be measured any more
            self._leave_out("the case", error)
        return self._result(everybody, measured)

    def _libraries(self, problem: Problem) -> Iterator[_Joined | None]:
        for name, call in problem.peers.items():
            yield self._join(name, self.bench.torch.__version__, [("", call)], problem)

    def _compilers(self, problem: Problem) -> Iterator[_Joined | None]:
        torch = self.bench.torch
        if not self.bench.cuda:
            return
        if self.case.compiled and "torch" in problem.peers:
            torch._dynamo.reset()  # what was compiled for another case
            compiled = torch.compile(problem.peers["torch"], dynamic=False)
            yield self._join("torch.compile", torch.__version__, [("", compiled)], problem)
        if problem.triton is not None:
            yield self._triton(problem)

    def _triton(self, problem: Problem) -> _Joined | None:
        assert problem.triton is not None, "it has been asked"
        name, tensors, out = problem.triton
        try:
            need(("triton", "triton"))
            from tilekit_benchmarks import _triton_attention, _triton_kernels

            known = {**_triton_kernels.VARIANTS, **_triton_attention.VARIANTS}  # type: ignore[attr-defined,unused-ignore]
            variants = [(label, _writing(launch, out)) for label, launch in known[name](tensors, out)]
        except Exception as error:
            self._leave_out("triton", error)
            return None
        return self._join("triton", f"{version_of('triton')}", variants, problem)

    def _join(
        self, name: str, version: str, calls: Sequence[tuple[str, Callable[[], Any]]], problem: Problem, own: bool = False
    ) -> _Joined | None:
        """Let a contestant take part, or write down why it does not."""
        tolerance = problem.tolerance
        if not own:
            tolerance = _PEERS_FACTOR * tolerance if problem.peers_tolerance is None else problem.peers_tolerance
        launches: list[tuple[str, Callable[[], Any]]] = []
        failure: Exception | None = None
        for label, call in calls:
            try:
                error = self._error(problem, call, own)
            except Exception as raised:
                failure = raised  # a block size that does not fit this GPU
                continue
            if own:
                self.error = error
            if not error <= tolerance:
                wrong = f"off by {error:.3g}, and {tolerance:.3g} is right"
                self.left_out.append(LeftOut(name=name, cause="wrong", reason=wrong))
                return None
            launches.append((label, call))
        if not launches:
            if failure is not None:
                self._leave_out(name, failure)
            return None
        try:
            count, graph, ready = self._ready(launches, own)
        except Exception as raised:
            self._leave_out(name, raised)
            return None
        variants = tuple(Variant(label=label, launch=launch) for label, launch in ready)
        return _Joined(contestant=Contestant(name=name, version=version, variants=variants), count=count, graph=graph)

    def _leave_out(self, name: str, error: Exception) -> None:
        _log.warning("%s, %s: not measured", name, self.case.label, exc_info=None if isinstance(error, Missing) else error)
        missing = isinstance(error, Missing)
        reason = str(error) if missing else _reason(error)
        self.left_out.append(LeftOut(name=name, cause="missing" if missing else "failed", reason=reason))

    def _error(self, problem: Problem, call: Callable[[], Any], own: bool) -> float:
        """How far off the results of a call are."""
        torch = self.bench.torch
        if own:
            results = tuple(map(torch.from_dlpack, _several(call().sync_on(self.bench.stream))))
        else:
            results = tuple(x.detach() for x in _several(call()))
        self.bench.stream.synchronize()
        with self.bench.turn():
            # The part that is compared may leave out what nobody wrote.
            if any(x.dtype.is_floating_point and bool(torch.isnan(x).any()) for x in results):
                return math.nan
            return error_of(torch, problem.part(results), self.right, problem.by_rows)

    def _ready(
        self, launches: Sequence[tuple[str, Callable[[], Any]]], own: bool
    ) -> tuple[int, bool, list[tuple[str, Callable[[], object]]]]:
        """How many launches a call is, whether it is a graph, and the calls."""
        stream = self.bench.stream
        prepared = launches
        if own:
            op = launches[0][1]().prepare()
            prepared = [("", lambda: op.run(stream))]
        if not self.bench.cuda:
            return 1, False, list(prepared)
        with self.bench.turn():
            once_us = self.bench.timer.sample_us(prepared[0][1], 3)
        count = max(1, min(_MOST_RECORDED, math.ceil(_GRAPH_US / max(once_us, 1e-3))))
        try:
            if own:
                graph = tk.join_all([launches[0][1]() for _ in range(count)]).graph_on(stream)
                recorded: list[tuple[str, Callable[[], object]]] = [("", lambda: graph.run(stream))]
            else:
                recorded = [(label, self.bench.recorded(launch, count)) for label, launch in launches]
            recorded[0][1]()
            stream.synchronize()
        except Exception as error:
            _log.warning("%s: cannot be recorded", self.case.label, exc_info=error)
            stream.synchronize()
            return 1, False, list(prepared)
        return count, True, recorded

    def _quickly(self, joined: _Joined) -> float:
        """About how long a contestant takes."""
        launch = joined.contestant.variants[0].launch
        with self.bench.turn():
            return min(self.bench.timer.sample_us(launch, 2) for _ in range(3)) / joined.count

    def _compete(self, everybody: Sequence[_Joined]) -> tuple[Measurement, ...]:
        contestants = [joined.contestant for joined in everybody]
        return compete(contestants, self.bench.timer, rounds=self.bench.rounds, sample_ms=_SAMPLE_MS) if contestants else ()

    def _result(self, everybody: Sequence[_Joined], measured: Sequence[Measurement]) -> CaseResult:
        samples = {m.name: [us / joined.count for us in m.samples_us] for joined, m in zip(everybody, measured)}
        medians = {name: statistics.median(each) for name, each in samples.items()}
        peers = {name: us for name, us in medians.items() if name != OWN}
        best = min(peers, key=lambda name: peers[name], default=None)
        ratio = None
        if best is not None:
            pairs = zip(samples[best], samples.get(OWN, ()))
            ratio = statistics.median(theirs / ours for theirs, ours in pairs) if OWN in samples else 0.0
        elif not any(joined.contestant.name == OWN for joined in everybody):
            ratio = 0.0
        return CaseResult(
            case=self.case,
            own_us=medians.get(OWN),
            peers_us=peers,
            best_peer=best,
            ratio=ratio,
            error=self.error,
            variants={m.name: m.variant for m in measured if m.variant},
            launched=tuple(j.contestant.name for j in everybody if not j.graph) if self.bench.cuda else (),
            left_out=tuple(self.left_out),
        )


def _writing(launch: Callable[[], Any], out: Any) -> Callable[[], Any]:
    """A launch that returns what it has written."""

    def launched() -> Any:
        launch()
        return out

    return launched


def _several(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


def _explained(bench: Bench, family: str, seed: int, result: CaseResult) -> CaseResult:
    """The result of a case with what `explain` says of tilekit's launches."""
    try:
        lines = [line for launch in _launches(bench.problem(family, seed, result.case).own()) for line in _remarks(launch, bench)]
    except Exception as error:
        lines = [f"no explanation: {_reason(error)}"]
    bench.free()
    return replace(result, explained=tuple(dict.fromkeys(lines)))


def _launches(op: tk.DeviceOp[Any]) -> Iterator[KernelLaunch]:
    """All launches of an op, in their order."""
    op.consumed()
    for part in op.parts():
        yield from _launches(part)
    if isinstance(op, KernelLaunch):
        yield _with_tensors(op)


def _with_tensors(launch: KernelLaunch) -> KernelLaunch:
    """The launch, with tensors that have no memory in the place of ops that compute its arguments, as copies of views are."""
    specs = [argument.spec if isinstance(argument, tk.DeviceOp) else None for argument in launch.arguments]
    if not any(specs):
        return launch
    pairs = zip(specs, launch.arguments)
    alike = launch.kernel(*(argument if spec is None else api.meta(spec.shape, spec.dtype) for spec, argument in pairs))
    alike._options = launch._options
    return alike


def _remarks(launch: KernelLaunch, bench: Bench) -> Iterator[str]:
    """The kernel, its occupancy, and what the compiler could not do."""
    if not bench.cuda:
        yield str(launch.explain("cpu")).partition("\n")[0]
        return
    # Of what is new when the op runs, a launch that is tried out knows no device.
    explained = launch.explain(bench.stream.device.target)
    yield from str(explained).splitlines()[:2]
    if explained.serialised:
        yield f"ptxas runs products one after the other: {explained.serialised}"
    for product in explained.products:
        yield from (f"line {product.line}: {product.instruction}, not {name}: {why}" for name, why in product.refusals)
    for ring in explained.pipelines:
        if ring.reason:
            yield f"line {ring.line}: tiles are loaded as the loop goes: {ring.reason}"
    for access in explained.accesses:
        if access.bits < 128 or (access.coalesced is not None and access.coalesced < 1):
            share = "" if access.coalesced is None else f", {access.coalesced:.0%} coalesced"
            yield f"line {access.line}: {access.kind} of {access.parameter}: {access.bits} bits at a time{share}"
    for remark in explained.remarks:
        if remark.done is False:
            yield f"line {remark.line}: {remark.transformation}, not done: {remark.text}"
