"""Collectives among all devices: a group of tilekit's in one process, one with a process for each, and torch.distributed.

What each contestant needs runs in processes of its own, its crew: so that the libraries have NCCL for themselves, and that what
hangs or dies can be ended. This process tells the crews what to do, one after the other, in every round.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import tilekit as tk
from tilekit import kernels
from tilekit._environment import version_of
from tilekit_benchmarks import Options, saxpy_peers
from tilekit_benchmarks.collective_cases import DEFAULT_N, OPS, Case, cases, size_label
from tilekit_benchmarks.collective_crew import Crew, CrewError, Refused
from tilekit_benchmarks.collective_members import GRAPH_OPS, one_process, process_each
from tilekit_benchmarks.collective_record import CollectiveCase, CollectiveRun, Samples, results
from tilekit_benchmarks.report import OWN, LeftOut, surroundings

__all__ = ["Candidate", "candidates", "run"]

_SAMPLE_US, _MOST_LAUNCHES = 2e4, 200
_GRAPHS = ("cuda",)  # the kinds of devices on which ops are measured in graphs, too
_GRAPH_BYTES = 1 << 25  # no larger ones: a graph saves what the host takes, which is nothing to those
_VARIABLES = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "GLOO_")  # which change what is measured
_log = logging.getLogger("tilekit_benchmarks")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Who may take part, and in which way.

    Attributes:
        name, version, variant: the library's, and what tells the way from its others.
        way: what its members call it, see `Member.work`.
        crew: which processes do it; candidates may share them.
        make: makes a member of the crew, with the arguments of one.
        arguments: of each process, by the labels of the devices and an address where they can meet.
        reference: the peer's variant that the times are compared with.
        ops: the collectives that there are in this way.
        limit: bytes of the largest message.
        ops_per_launch: how many collectives a launch is.
        optional: whether the run goes on when the crew is lost.
    """

    name: str
    version: str
    variant: str
    way: str
    crew: str
    make: Callable[..., Any]
    arguments: Callable[[Sequence[str], str], list[tuple[Any, ...]]]
    reference: str
    ops: Sequence[str] = OPS
    limit: int | None = None
    ops_per_launch: int = 1
    optional: bool = False

    @property
    def label(self) -> str:
        """Tells it from all others."""
        return f"{self.name}, {self.variant}"


def run(options: Options) -> CollectiveRun:
    """Measure the collectives. Blocks until it is done.

    Raises:
        ValueError: there are fewer than two devices.
        CrewError: a process has died, or is late.
    """
    kind = options.device.kind
    labels = [device.label for device in tk.devices() if device.kind == kind]
    if len(labels) < 2:
        raise ValueError(
            f"collectives: they need two devices at least, and there is {', '.join(labels) or 'none'}: "
            + ("use a machine with more GPUs" if kind == "cuda" else "set TILEKIT_CPU_DEVICES=2")
        )
    largest = options.n or DEFAULT_N[kind]
    taking_part, left_out = candidates(kind)
    with ExitStack() as stack:
        bench = _Bench(stack, labels, left_out)
        taking_part = bench.begin(taking_part)
        measured = []
        for case in cases(largest, len(labels)):
            here = [c for c in taking_part if case.op in c.ops and (c.limit is None or case.nbytes <= c.limit)]
            done = bench.measure(case, here, options.rounds)
            if done.results:
                measured.append(done)
        notes = bench.end()
    fields = surroundings(options.device, [r for case in measured for r in case.results])
    fields["versions"] |= bench.about
    return CollectiveRun(
        **fields,
        benchmark="collectives",
        rounds=options.rounds,
        timer="device events" if kind == "cuda" else "host clock",
        command=options.command,
        left_out=tuple(left_out),
        notes=tuple(notes),
        devices=tuple(labels),
        dtype="float32",
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
        cases=tuple(measured),
    )


def candidates(kind: str) -> tuple[list[Candidate], list[LeftOut]]:
    """Who takes part on devices of that kind, and who is missing."""
    backend = "NCCL" if kind == "cuda" else "gloo"
    in_graph = f"{backend}, in a graph"
    eager: dict[str, Any] = {"way": "eager", "reference": backend}
    graph: dict[str, Any] = {"ops_per_launch": GRAPH_OPS, "limit": _GRAPH_BYTES, "optional": True, "reference": in_graph}
    own: dict[str, Any] = {"name": OWN, "version": tk.__version__, "make": process_each, "arguments": _each}
    torch: dict[str, Any] = {"name": "torch", "version": f"{version_of('torch')}", "make": torch_member, "arguments": _of_torch}
    able, left_out = list[Candidate](), list[LeftOut]()
    with_graphs = kind in _GRAPHS
    try:
        saxpy_peers.need(("torch", "torch"))
        able.append(Candidate(variant=backend, crew="torch.distributed", **torch, **eager))
    except saxpy_peers.Missing as missing:
        left_out.append(LeftOut(name="torch", cause="missing", reason=str(missing)))
    one = {**own, "make": one_process, "arguments": lambda labels, address: [(list(labels),)]}
    able += [
        Candidate(variant="one process", crew="tilekit in one process", **one, **eager),
        Candidate(variant="a process each", crew="tilekit with a process each", **own, **eager),
    ]
    if with_graphs and not left_out and kind == "cuda":
        able.append(Candidate(variant=in_graph, way="graph", crew="torch.distributed in graphs", **torch, **graph))
        shared = {**torch, **graph, "crew": "torch's symmetric memory", "ops": ("all_reduce",)}
        for way, name in (("one_shot", "one-shot"), ("two_shot", "two-shot")):
            able.append(Candidate(variant=f"symmetric memory, {name}, in a graph", way=way, **shared))
    if with_graphs:
        able.append(Candidate(variant="a process each, in a graph", way="graph", crew="tilekit in graphs", **own, **graph))
        if hasattr(kernels, "all_reduce") and hasattr(kernels, "AllReduceWorkspace"):
            with_kernel = {**own, **graph, "crew": "tilekit's kernel", "ops": ("all_reduce",)}
            able.append(Candidate(variant="kernels.all_reduce, in a graph", way="kernel", **with_kernel))
        else:
            reason = "this tilekit has no kernels.all_reduce"
            left_out.append(LeftOut(name=f"{OWN}, kernels.all_reduce", cause="missing", reason=reason))
    return able, left_out


def torch_member(*arguments: Any) -> Any:
    """A member of torch.distributed's; only its own process imports PyTorch."""
    from tilekit_benchmarks import collective_peers

    return collective_peers.join(*arguments)


def _each(labels: Sequence[str], address: str) -> list[tuple[Any, ...]]:
    return [(rank, len(labels), address, label) for rank, label in enumerate(labels)]


def _of_torch(labels: Sequence[str], address: str) -> list[tuple[Any, ...]]:
    devices = [tk.Device(label) for label in labels]
    return [(rank, len(labels), address, device.kind, device.ordinal) for rank, device in enumerate(devices)]


class _Bench:
    """The crews of a run.

    Args:
        stack: ends them.
        labels: of the devices.
        left_out: gets whoever does not take part, or not any further, and why.

    Attributes:
        about: versions of what takes part.
    """

    def __init__(self, stack: ExitStack, labels: Sequence[str], left_out: list[LeftOut]) -> None:
        self._stack, self._labels, self._left_out = stack, labels, left_out
        self._crews: dict[str, Crew] = {}
        self._failed = set[tuple[str, str]]()  # candidate and collective: not asked again
        self.about: dict[str, str | None] = {}

    def begin(self, taking_part: Sequence[Candidate]) -> list[Candidate]:
        """Start the crews, all at once; those that take part then."""
        first = {candidate.crew: candidate for candidate in reversed(taking_part)}
        addresses = set[str]()
        while len(addresses) < len(first):
            addresses.add(tk.Group.free_address())
        _log.info("collectives among %s: starting %d crews", ", ".join(self._labels), len(first))
        for name, candidate in first.items():
            crew = Crew(name, candidate.make, candidate.arguments(self._labels, addresses.pop()))
            self._crews[name] = self._stack.enter_context(crew)
        remaining = list(taking_part)
        for name, candidate in first.items():
            try:
                for about in self._crews[name].started():
                    self.about |= about
            except (Refused, CrewError) as error:
                if not candidate.optional and (candidate.name == OWN or isinstance(error, CrewError)):
                    raise CrewError(str(error) if name in str(error) else f"{name}: {error}") from error
                for one in [one for one in remaining if one.crew == name]:
                    self._left_out.append(LeftOut(name=one.label, cause="failed", reason=str(error)))
                    remaining.remove(one)
        return remaining

    def measure(self, case: Case, here: Sequence[Candidate], rounds: int) -> CollectiveCase:
        """Check the candidates, then sample them in turns."""
        label = f"{case.op} of {size_label(case.nbytes)}"
        _log.info("%s: building, checking", label)
        measured: dict[str, Samples] = {}
        admitted = [c for c in here if self._admitted(c, case)]
        for candidate in admitted:
            # Two samples that do not count: what happens only once happens in the first, the second says how long one takes.
            taken = [self._sample(candidate, case, 2) for _ in range(2)][-1]
            if taken is None:
                continue
            launches = math.ceil(_SAMPLE_US / (candidate.ops_per_launch * max(1e-3, *taken)))
            measured[candidate.label] = Samples(
                name=candidate.name,
                version=candidate.version,
                variant=candidate.variant,
                reference=candidate.reference,
                ops=candidate.ops_per_launch,
                launches=max(1, min(_MOST_LAUNCHES, launches)),
                device_us=[],
                host_us=[],
            )
        _log.info("%s: measuring", label)
        for first in range(rounds):
            for at in range(len(admitted)):
                candidate = admitted[(first + at) % len(admitted)]
                samples = measured.get(candidate.label)
                if samples is None:
                    continue
                taken = self._sample(candidate, case, samples.launches)
                if taken is None:
                    del measured[candidate.label]
                else:
                    samples.device_us.append(taken[0])
                    samples.host_us.append(taken[1])
        for crew in {candidate.crew: candidate for candidate in here}.values():
            self._ask(crew, case, "drop")
        done = results(case, measured)
        for r in done.results:
            _log.info("    %s, %s: %.4g us, host %.4g us, %.4g GB/s", r.name, r.variant, r.device_us, r.host_us, r.bus_gb_per_s)
        return done

    def end(self) -> list[str]:
        """Let the crews end; what there is to say of that."""
        return [line for crew in self._crews.values() for line in crew.close()]

    def _admitted(self, candidate: Candidate, case: Case) -> bool:
        answers = self._ask(candidate, case, "build", candidate.way, case)
        if answers is None:
            return False
        wrong = next((answer for answer in answers if answer is not None), None)
        if wrong is not None:
            self._leave_out(candidate, case, "wrong", wrong)
        return wrong is None

    def _sample(self, candidate: Candidate, case: Case, launches: int) -> tuple[float, float] | None:
        """Of the slowest member, the device's time and the host's."""
        answers = self._ask(candidate, case, "sample", candidate.way, launches)
        return None if answers is None else (max(one[0] for one in answers), max(one[1] for one in answers))

    def _ask(self, candidate: Candidate, case: Case, method: str, *arguments: Any) -> list[Any] | None:
        """What the members answer; None if the candidate is out, or is now."""
        crew = self._crews[candidate.crew]
        if crew.lost and not any(one.name.startswith(f"{candidate.label}, ") for one in self._left_out):
            self._leave_out(candidate, case, "failed", f"{candidate.crew}: its processes were lost")
        if crew.lost or (method != "drop" and (candidate.label, case.op) in self._failed):
            return None
        try:
            return crew.ask(method, *arguments)
        except Refused as error:
            self._leave_out(candidate, case, "failed", str(error))
        except CrewError as error:
            if not candidate.optional:
                raise
            self._leave_out(candidate, case, "failed", str(error))
        return None

    def _leave_out(self, candidate: Candidate, case: Case, cause: Any, reason: str) -> None:
        """From now on, of this collective."""
        self._failed.add((candidate.label, case.op))
        _log.warning("%s, %s: %s: %s", candidate.label, case.op, cause, reason)
        name = f"{candidate.label}, {case.op} of {size_label(case.nbytes)}"
        self._left_out.append(LeftOut(name=name, cause=cause, reason=reason))
