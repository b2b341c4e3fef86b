"""Runs plans of `graph_plans`: the actors, and each kind of step."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import trio
from graph_plans import POLICIES, STREAMS, Plan, plain, raised, start
from graph_terms import Boom, Builder, beyond

import tilekit as tk
from tilekit import api

HANG_S = 30.0  # a plan takes milliseconds
SETTLE_S = 5.0  # how long threads that end, and callbacks, may take
FINE = object()  # an outcome that the step has looked at itself


class Wrong(Exception):
    """What a step has seen that must not be."""


class Turns:
    """The order of submission: each step has its turn when all before it have passed theirs on."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._turn = 0
        self._passed: set[int] = set()
        self._calls: dict[int, Callable[[], object]] = {}

    def wait(self, number: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._turn == number)

    def when(self, number: int, call: Callable[[], object]) -> None:
        with self._condition:
            if self._turn != number:
                self._calls[number] = call
                return
        call()

    def passed(self, number: int) -> None:
        """Pass the turn on; again, and it does nothing."""
        with self._condition:
            self._passed.add(number)
            while self._turn in self._passed:
                self._turn += 1
            call = self._calls.pop(self._turn, None)
            self._condition.notify_all()
        if call is not None:
            call()


class Anywhere:
    """A policy of a user's."""

    def __init__(self, streams: list[Any]) -> None:
        self.streams, self.turn = streams, 0

    def next_stream(self) -> Any:
        self.turn += 1
        return self.streams[self.turn * self.turn % len(self.streams)]


class Run:
    """One plan, on some devices."""

    def __init__(self, plan: Plan, devices: list[Any]) -> None:
        self.plan, self.devices = plan, devices
        self.streams = [[device.stream() for _ in range(STREAMS)] for device in devices]
        self.policies: list[list[Any]] = [
            [
                tk.StreamPoolRoundRobin(device, streams),
                tk.LeastLoaded(device, streams),
                tk.SingleStream(streams[0]),
                Anywhere(streams),
                tk.StreamPoolRoundRobin(device, streams[:1]),
            ]
            for device, streams in zip(devices, self.streams, strict=True)
        ]
        assert len(self.policies[0]) == POLICIES
        self.tensors = [
            api.from_host(array).sync_on(self.streams[home][0]) for array, home in zip(start(), plan["homes"], strict=True)
        ]
        self.builder = Builder(devices, self.policies, self.tensors, plan["shared"])
        self.turns = Turns()
        self.seen: list[Any] = [FINE] * len(plan["steps"])
        self.futures: dict[int, Any] = {}
        self.calls: dict[int, int] = {}

    def op(self, step: dict[str, Any]) -> Any:
        return self.builder.op(step["term"])

    # actors

    def actor(self, number: int) -> None:
        mine = [at for at, step in enumerate(self.plan["steps"]) if step["actor"] == number]
        kind = self.plan["actors"][number]
        if kind == "thread":
            for at in mine:
                self.turns.wait(at)
                self.step(at, self.plan["steps"][at])
        elif kind == "asyncio":
            asyncio.run(self.tasks(mine))
        else:
            trio.run(self.nursery, mine)

    def step(self, at: int, step: dict[str, Any]) -> None:
        """A step of a thread's."""
        try:
            with tk.use_device(self.devices[step.get("device", 0)]):
                self.seen[at] = getattr(self, step["mode"])(at, step)
        except BaseException as error:
            self.seen[at] = self.failed(error)
        finally:
            self.turns.passed(at)

    def failed(self, error: BaseException) -> Any:
        return raised(error) | {"text": f"{error} {getattr(error, '__notes__', '')}"}

    async def tasks(self, mine: list[int]) -> None:
        loop = asyncio.get_running_loop()
        problems: list[Any] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))

        async def one(at: int) -> None:
            turn = asyncio.Event()
            self.turns.when(at, lambda: loop.call_soon_threadsafe(turn.set))
            await turn.wait()
            await self.task_step(at, "asyncio")

        await asyncio.gather(*map(one, mine))
        if problems:
            raise Wrong(f"asyncio's handler got {problems}")

    async def nursery(self, mine: list[int]) -> None:
        token = trio.lowlevel.current_trio_token()

        async def one(at: int) -> None:
            turn = trio.Event()
            self.turns.when(at, lambda: token.run_sync_soon(turn.set))
            await turn.wait()
            await self.task_step(at, "trio")

        async with trio.open_nursery() as nursery:
            for at in mine:
                nursery.start_soon(one, at)

    async def task_step(self, at: int, library: str) -> None:
        step = self.plan["steps"][at]
        try:
            with tk.use_device(self.devices[step.get("device", 0)]):
                act = getattr(self, f"{step['mode']}_{library}", None) or getattr(self, f"{step['mode']}_task", None)
                self.seen[at] = await act(at, step) if act else getattr(self, step["mode"])(at, step)
        except BaseException as error:
            self.seen[at] = self.failed(error)
        finally:
            self.turns.passed(at)

    # steps of threads

    def sync(self, at: int, step: dict[str, Any]) -> Any:
        return plain(self.early(at, step, self.op(step)).sync())

    def sync_on(self, at: int, step: dict[str, Any]) -> Any:
        return plain(self.early(at, step, self.op(step)).sync_on(self.streams[step["device"]][step["stream"]]))

    def early(self, at: int, step: dict[str, Any], op: Any) -> Any:
        """The op, which passes the turn on as soon as it is submitted, where it is submitted in one go."""
        return op.inspect(lambda _: self.turns.passed(at)) if step["early"] else op

    def future(self, at: int, step: dict[str, Any]) -> Any:
        op = self.op(step)
        if step["mode"] == "schedule":
            return self.submitted(at, step, lambda: op.schedule(self.policies[step["device"]][step["stream"]]))
        return self.submitted(at, step, lambda: op.async_on(self.streams[step["device"]][step["stream"]]))

    schedule = future

    def submitted(self, at: int, step: dict[str, Any], submit: Callable[[], Any]) -> Any:
        then = step["then"]
        try:
            future = submit()
        except Exception as error:
            if then == "drop":
                return None
            if then == "keep":
                self.futures[at] = error
                return FINE
            raise
        if then == "callback":
            self.calls[at] = 0

            def called(same: Any) -> None:
                self.calls[at] += 1
                if same is not future or not same.done():
                    self.calls[at] += 100

            future.add_done_callback(called)
        if not step["early"]:  # the rest is submitted when its time comes: before anybody else submits
            future.exception(HANG_S)
        if then == "keep":
            self.futures[at] = future
            return FINE
        self.turns.passed(at)
        if then == "drop":
            return None
        if then == "poll":
            self.polled(future)
        return plain(future.result())

    def polled(self, future: Any) -> None:
        end = time.monotonic() + HANG_S
        while not future.done():
            with contextlib.suppress(TimeoutError, Boom, ValueError, TypeError):
                future.result(timeout_s=0.0)
            if time.monotonic() > end:
                raise Wrong("a future is never done")
        if future.state != "complete":
            raise Wrong(f"a future that is done is {future.state}")

    def join(self, at: int, step: dict[str, Any]) -> Any:
        self.turns.passed(at)
        return self.outcome(step["of"], step["how"])

    def outcome(self, of: int, how: str) -> Any:
        """What a kept future gives, every time."""
        future = self.futures[of]
        if isinstance(future, BaseException):
            return raised(future)
        if how == "poll":
            self.polled(future)
        if how == "exception":
            error = future.exception()
            return plain(future.result()) if error is None else raised(error)
        return plain(future.result(timeout_s=HANG_S))

    def recorded(self, at: int, step: dict[str, Any]) -> Any:
        op, stream = self.op(step), self.streams[step["device"]][step["stream"]]
        how = step["how"]
        if how == "scope":
            with tk.CudaGraph.scope(stream) as scope:
                scope.record(op)
            graph: Any = scope.graph
        else:
            graph = {"graph": op.graph, "graph_on": lambda: op.graph_on(stream), "prepare": op.prepare}[how]()
        result = None
        for launch in step["launches"]:
            if launch == "run":
                graph.run(stream)
                stream.synchronize()
                result = graph.output
            elif launch == "sync_on":
                result = graph.sync_on(stream)
            elif launch == "async":
                result = graph.launch().async_on(stream).result()
            elif launch == "chain":
                result = graph.launch().then(tk.value).sync()
            else:
                result = graph.launch().sync()
            result = plain(result[0] if how == "scope" else result)
        return result

    def unused(self, at: int, step: dict[str, Any]) -> Any:
        del step
        self.op(self.plan["steps"][at])
        return None

    def twice(self, at: int, step: dict[str, Any]) -> Any:
        op = self.op(step)
        kept = type(op).__name__ in ("Shared", "Value")
        try:
            result = plain(op.sync())
        finally:
            if not kept:
                self.refused(lambda: op.async_on(self.streams[step["device"]][step["stream"]]), "at most once")
        return result

    def closed(self, at: int, step: dict[str, Any]) -> Any:
        op, stream = self.op(step), self.devices[step["device"]].stream()
        stream.close()
        self.refused(lambda: op.async_on(stream), "closed")
        op.sync()
        return None

    def refused(self, call: Callable[[], Any], text: str) -> None:
        try:
            call()
        except ValueError as error:
            if text not in str(error):
                raise Wrong(f"another refusal than {text!r}: {error}") from None
        else:
            raise Wrong(f"not refused: {text}")

    def fault(self, at: int, step: dict[str, Any]) -> Any:
        """A kernel that fails on the device: whoever waits is told, and the stream goes on behind it."""
        how, stream = step["how"], self.devices[step["device"]].stream()
        op = beyond(api.zeros(8).partition(4), api.zeros(8))
        if how == "chain":
            op = op.first().unpartition().then(lambda y: y.dup()).to_host()
        called = threading.Event()
        try:
            if how in ("sync", "chain"):
                op.sync_on(stream)
            else:
                future = op.async_on(stream)
                if how == "callback":
                    future.add_done_callback(lambda _: called.set())
                    if not called.wait(HANG_S):
                        raise Wrong("no callback after a fault")
                if how == "exception":
                    error = future.exception()
                    if error is not None:
                        raise error
                if how != "drop":
                    future.result()
                del future
                stream.synchronize()
        except tk.DeviceError as error:
            if "outside x" not in str(error):
                raise Wrong(f"another fault: {error}") from None
        else:
            raise Wrong("a fault was not told")
        if api.ones(2).to_host().sync_on(stream).tolist() != [1, 1]:
            raise Wrong("work behind a fault that was told")
        stream.close()
        return None

    # steps of tasks

    async def await_task(self, at: int, step: dict[str, Any]) -> Any:
        return plain(await self.early(at, step, self.op(step)))

    async def idle_task(self, at: int, step: dict[str, Any]) -> Any:
        future = self.op(step).into_future()
        if future.state != "idle":
            raise Wrong(f"a new future is {future.state}")
        return plain(await future)

    async def future_task(self, at: int, step: dict[str, Any]) -> Any:
        return self.future(at, step)

    async def join_task(self, at: int, step: dict[str, Any]) -> Any:
        self.turns.passed(at)
        future = self.futures[step["of"]]
        return raised(future) if isinstance(future, BaseException) else plain(await future)

    async def task_asyncio(self, at: int, step: dict[str, Any]) -> Any:
        return plain(await asyncio.create_task(self.early(at, step, self.op(step)).run()))

    async def task_trio(self, at: int, step: dict[str, Any]) -> Any:
        results: list[Any] = []

        async def one() -> None:
            try:
                results.append(await self.early(at, step, self.op(step)).run())
            except (Boom, ValueError, TypeError) as error:
                results.append(raised(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
        return results[0] if isinstance(results[0], dict) else plain(results[0])

    async def before_asyncio(self, at: int, step: dict[str, Any]) -> Any:
        """A task that is cancelled before its first step has not run its op."""
        try:
            op = self.op(step)
        except ValueError:
            return None
        task = asyncio.create_task(op.run())
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
            raise Wrong("a cancelled task has a result")
        return None

    async def before_trio(self, at: int, step: dict[str, Any]) -> Any:
        return None

    async def after_asyncio(self, at: int, step: dict[str, Any]) -> Any:
        submitted = asyncio.Event()
        task = asyncio.create_task(self.op(step).inspect(lambda _: submitted.set()).run())
        await asyncio.wait({task, asyncio.ensure_future(submitted.wait())}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None

    async def after_trio(self, at: int, step: dict[str, Any]) -> Any:
        with trio.CancelScope() as scope:

            def submitted(_: Any) -> None:
                scope.cancel()

            await self.op(step).inspect(submitted)
        return None

    async def timeout_asyncio(self, at: int, step: dict[str, Any]) -> Any:
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self.op(step).run(), 0.0001)
        return FINE

    async def timeout_trio(self, at: int, step: dict[str, Any]) -> Any:
        with trio.move_on_after(0.0001):
            await self.op(step)
        return FINE

    # the end

    def finish(self, outcomes: list[Any]) -> None:
        """What the futures that were kept give, and what the tensors hold."""
        for at in self.futures:
            try:
                self.seen[at] = self.outcome(at, "result")
            except Exception as error:
                self.seen[at] = self.failed(error)
        end = time.monotonic() + SETTLE_S
        while any(count == 0 for count in self.calls.values()) and time.monotonic() < end:
            time.sleep(0.0005)
        wrong = {at: count for at, count in self.calls.items() if count != 1}
        if wrong:
            raise Wrong(f"calls of the callbacks of steps: {wrong}")
        for memo, (home, _) in zip(self.builder.memos, self.plan["shared_as"], strict=True):
            with contextlib.suppress(Boom, ValueError, TypeError), tk.use_device(self.devices[home]):
                memo.sync()  # in case nobody has
        for at, (seen, wanted) in enumerate(zip(self.seen, outcomes, strict=True)):
            if seen is FINE:
                continue
            same = seen == wanted
            if isinstance(seen, dict) and isinstance(wanted, dict):
                same = all(seen[name] == wanted[name] for name in ("error", "number"))
            if not same:
                raise Wrong(f"step {at} gave {seen}, not {wanted}")

    def contents(self) -> list[list[int]]:
        return [
            tensor.to_host().sync_on(self.streams[home][at % STREAMS]).tolist()
            for at, (tensor, home) in enumerate(zip(self.tensors, self.plan["homes"], strict=True))
        ]

    def close(self) -> None:
        for stream in (stream for streams in self.streams for stream in streams):
            stream.close()
