"""Runs a plan of `graph_plans` under a watch, and makes a failing one shorter.

`python tests/fuzz/graph_checks.py PLAN` runs a plan, given as JSON or as a file of it, and says what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio
from graph_plans import Plan, expected
from graph_runs import HANG_S, Run

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu import driver as cpu
from tilekit._driver.cpu import stepper

SETTLE_S = 1.0  # how long threads may take to end
SHRINK_S = 60.0
TRIES = 3  # of each shorter plan: what depends on the order of threads does not show each time
_CPUS: list[Any] = []  # devices of this module's own: what others left on theirs is not ours


def devices(kind: str) -> list[Any]:
    """The devices of the plans: three CPU devices, or a GPU and two."""
    if not _CPUS:
        _CPUS.extend(tk.Device.of_driver(driver) for driver in cpu.discover(3))
        for device in _CPUS:
            _warm(device)
    return [tk.Device("cuda"), *_CPUS[:2]] if kind == "cuda" else list(_CPUS)


def _warm(device: Any) -> None:
    """Let a device make what it makes once: the streams of its policy, the one that frees, the thread of the callbacks."""
    called = threading.Event()
    for _ in range(4):
        stream = device.policy.next_stream()
        api.zeros(1).sync_on(stream)
        stream.add_callback(lambda *_: called.set())
    with tk.use_device(device):
        asyncio.run(_one(device))
        trio.run(_one, device)
    with device.stream() as stream, device.stream() as other:
        x = api.zeros(1).sync_on(stream)
        x.to_host().sync_on(other)
    del x
    device.collect()
    called.wait(HANG_S)


async def _one(device: Any) -> None:
    await api.ones(1).on(device)


class Watch:
    """Everything that Python would only print: tracebacks that nobody catches, warnings, log records."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unused: list[str] = []

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = lambda caught: self.problems.append(f"unraisable: {caught.exc_value!r} in {caught.object!r}")
        threading.excepthook = lambda caught: self.problems.append(f"in {caught.thread}: {caught.exc_value!r}")
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.problems.append(f"logged: {record.getMessage()}")  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield
            for warning in caught:
                text = f"{warning.category.__name__}: {warning.message}"
                (self.unused if "was never run" in text else self.problems).append(text)
        finally:
            sys.unraisablehook, threading.excepthook = hooks
            logging.getLogger().removeHandler(handler)


def held(used: list[Any]) -> dict[str, int]:
    """What a run must give back."""
    counts = {f"bytes of {at}": device.driver.ledger.used for at, device in enumerate(used) if device.kind == "cpu"}
    counts |= {f"streams of {at}": len(device.streams) for at, device in enumerate(used)}
    counts["threads"] = threading.active_count()
    with contextlib.suppress(OSError):
        counts["files"] = len(os.listdir("/proc/self/fd"))
    return counts


def settle(used: list[Any]) -> None:
    gc.collect()
    for device in used:
        device.synchronize()
        device.collect()


def problem_of(plan: Plan, kind: str) -> str | None:
    """What is wrong with the run of a plan."""
    for _ in range(TRIES):  # what is made when first needed stays, and is not left behind the next time
        problem, left = _watched(plan, devices(kind))
        if problem is not None or not left:
            return problem
    return f"left behind (before, after): {left}"


def _watched(plan: Plan, used: list[Any]) -> tuple[str | None, dict[str, tuple[int, int]]]:
    settle(used)
    before, watch = held(used), Watch()
    with watch():
        problem = run(plan, used)
        if problem is not None:
            return problem, {}
        settle(used)
    problem = "; ".join(watch.problems) or _judged_unused(plan, watch.unused)
    if any(step["mode"] == "fault" for step in plan["steps"]):
        return problem, {}  # a fault's error has the frames of those who were told, and streams remember their last errors
    after, end = held(used), time.monotonic() + SETTLE_S
    while (
        watch.problems == [] and any(after[name] > before[name] for name in before) and time.monotonic() < end
    ):  # threads take their time to end
        time.sleep(0.001)
        if any(kind == "asyncio" for kind in plan["actors"]):
            asyncio.run(_one(used[-1]))  # the first await in a new loop closes what belongs to loops that are closed
        settle(used)
        after = held(used)
    return problem, {name: (before[name], after[name]) for name in before if after[name] > before[name]}


def _judged_unused(plan: Plan, unused: list[str]) -> str | None:
    """Only ops that were dropped are told of; those that an error left behind may be."""
    dropped = any(step["mode"] == "unused" for step in plan["steps"])
    failed = any(isinstance(outcome, dict) for outcome in expected(plan)[0])
    if failed:
        return None
    if dropped != bool(unused):
        return f"unused: {unused[0]}" if unused else "an op that was dropped is not told of"
    return None


def run(plan: Plan, used: list[Any]) -> str | None:
    """Run a plan; what its results are not."""
    outcomes, contents = expected(plan)
    with contextlib.ExitStack() as stack:
        if plan["stepped"] is not None:
            for at, device in enumerate(used):
                stack.enter_context(stepper.Stepper(device, plan["stepped"] + at))
        actors = Run(plan, used)
        problems: list[str] = []

        def act(number: int) -> None:
            try:
                actors.actor(number)
            except BaseException as error:
                problems.append(f"actor {number}: {error!r}")

        threads = [threading.Thread(target=act, args=(number,), daemon=True) for number in range(len(plan["actors"]))]
        end = time.monotonic() + HANG_S
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            return f"hangs\n{_stacks()}"
        if problems:
            return "; ".join(problems)
        try:
            actors.finish(outcomes)
            found = actors.contents()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        actors.close()
        return None if found == contents else f"the tensors hold {found}, not {contents}"


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


# shorter plans


def shrunk(plan: Plan, kind: str) -> tuple[Plan, str]:
    """A plan of fewer steps, and smaller ones, that fails as well, and with what. Each is run in another process."""
    end = time.monotonic() + SHRINK_S
    problem = _problem_elsewhere(plan, kind)
    if problem is None:
        return plan, "it does not fail each time"
    progress = True
    while progress:
        progress = False
        for candidate in shorter(plan):
            if time.monotonic() > end:
                return plan, problem
            again = _problem_elsewhere(candidate, kind)
            if again is not None:
                plan, problem, progress = candidate, again, True
                break
    return plan, problem


def _problem_elsewhere(plan: Plan, kind: str) -> str | None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        command = [sys.executable, __file__, file.name, kind]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S + 30, check=False)
        except subprocess.TimeoutExpired:
            return "hangs"
    return None if ended.returncode == 0 else ended.stdout + ended.stderr[-3000:]


def shorter(plan: Plan) -> Iterator[Plan]:
    """Plans with a step less, with fewer actors, or with smaller expressions."""
    steps = plan["steps"]
    for at in reversed(range(len(steps))):
        rest = [dict(step) for number, step in enumerate(steps) if number != at]
        if any(step.get("of") == at for step in rest):
            continue
        for step in rest:
            if "of" in step and step["of"] > at:
                step["of"] -= 1
        yield {**plan, "steps": rest}
    if plan["stepped"] is None and len(plan["actors"]) > 1 and set(plan["actors"]) == {"thread"}:
        yield {**plan, "actors": ["thread"], "steps": [{**step, "actor": 0} for step in steps]}
    for at, step in enumerate(steps):
        for term in _smaller(step.get("term")):
            yield {**plan, "steps": [*steps[:at], {**step, "term": term}, *steps[at + 1 :]]}
    for at, term in enumerate(plan["shared"]):
        for smaller in _smaller(term):
            yield {**plan, "shared": [*plan["shared"][:at], smaller, *plan["shared"][at + 1 :]]}


def _smaller(term: Any) -> Iterator[Any]:
    """Terms with one of their parts in the place of the whole, where that has as many elements."""
    if not isinstance(term, list):
        return
    for at, part in enumerate(term):
        if at and isinstance(part, list) and part and isinstance(part[0], str):
            if term[0] not in ("host", "hosts", "part", "bring"):
                yield part
            yield from ([*term[:at], smaller, *term[at + 1 :]] for smaller in _smaller(part))


def shown(plan: Plan) -> str:
    """A plan to read and to run."""
    lines = [f"devices {plan['kinds']}, actors {plan['actors']}, tensors on {plan['homes']}, stepped {plan['stepped']}"]
    lines += [f"  shared {at}: {json.dumps(term)}" for at, term in enumerate(plan["shared"])]
    lines += [f"  step {at}: {json.dumps(step)}" for at, step in enumerate(plan["steps"])]
    return "\n".join([*lines, f"run it: python tests/fuzz/graph_checks.py '{json.dumps(plan)}'"])


def main(given: str, kind: str = "cpu") -> int:
    plan = json.loads(given if given.lstrip().startswith("{") else Path(given).read_text())
    gc.collect()
    gc.freeze()
    for _ in range(TRIES):
        problem = problem_of(plan, kind)
        if problem is not None:
            print(problem)  # noqa: T201 - that is what it is for
            sys.stdout.flush()
            os._exit(1)  # threads may hang
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TILEKIT_CACHE_DIR", "off")
    sys.exit(main(*sys.argv[1:]))
