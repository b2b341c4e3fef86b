"""Ops of any depth: they are built, drawn, run, fail, are cancelled and collected in loops, not by recursion."""

import asyncio
import gc
import inspect
import random
import sys
import threading
import warnings
import weakref

import pytest
from held_up import failing, held

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu.driver import CpuDriver
from tilekit._runtime.device import Device
from tilekit.ops.borrowing import refuse_borrowed
from tilekit.ops.execution import Run

DEPTH = 3000  # three times the depth of Python's stack


def reraise(error):
    raise error


# Every kind of op around another one, such that the result stays what it is. All but the last two know what they are made of.
KINDS = {
    "shared": lambda op: op.map(lambda x: x).shared(),
    "zip": lambda op: tk.zip(op, 1).first(),
    "parallel zip": lambda op: tk.zip(tk.value(2), op, parallel=True).last(),
    "join_all": lambda op: tk.join_all([op, tk.value(1)]).map(lambda found: found[0]),
    "parallel join_all": lambda op: tk.join_all([op, tk.value(1)], parallel=True).map(lambda found: found[0]),
    "or_else": lambda op: op.or_else(reraise),
    "map": lambda op: op.map(lambda x: x),
    "inspect": lambda op: op.inspect(id),
    "then": lambda op: op.then(tk.value),
    "apply": lambda op: tk.zip(op, 1).apply(lambda x, one: tk.value(x)),
    "on": lambda op: op.on(tk.default_device()),
    "with_policy": lambda op: op.with_policy(tk.default_device().policy),
    "named": lambda op: op.map(lambda x: x).named("it"),
    "unzip": lambda op: tk.zip(0, op).unzip()[1],
    "elements through others": lambda op: tk.zip(op, 0).inspect(id).shared().with_policy(tk.default_device().policy).first(),
    "host_fn": lambda op: op.then(lambda x: tk.host_fn(lambda: x)),
    "then an op": lambda op: tk.value(0).then(lambda _: op),
    "with_context": lambda op: tk.with_context(lambda ctx: op),
}
OPEN = list(KINDS)[:-2]  # without those that a closure hides
every_kind = pytest.mark.parametrize("kind", KINDS)


def nested(kind, bottom, depth=DEPTH):
    op = bottom
    for _ in range(depth):
        op = KINDS[kind](op)
    return op


def mixed(seed, bottom, kinds=tuple(KINDS), depth=DEPTH):
    """Kinds at random, one around the other."""
    draw, op = random.Random(seed), bottom
    for _ in range(depth):
        op = KINDS[draw.choice(kinds)](op)
    return op


def ran(op):
    """`op`, which is not going to run, does not warn."""
    op.consumed()
    return op


@every_kind
def test_every_kind_nests(device, kind):
    tensor = nested(kind, api.full(3, 5.0)).sync()
    assert tensor.to_host().sync().tolist() == [5, 5, 5]
    with pytest.raises(LookupError, match="at the bottom"):
        nested(kind, api.ones(3).map(lambda _: reraise(LookupError("at the bottom"))), 1200).sync()


@pytest.mark.parametrize("kind", OPEN)
def test_every_kind_is_drawn(device, kind):
    op = ran(nested(kind, api.ones(3).named("bottom")))
    assert "..." in repr(op)
    assert len(repr(op)) < 10_000
    for text, arrow in ((op.mermaid(), "-->"), (op.graphviz(), "->")):
        assert "bottom float32[3]" in text
        assert text.count(arrow) >= DEPTH - 1
    assert op.device is None or op.device is device


def test_a_drawing_names_each_op_once_parts_first(device):
    part = tk.value(1).named("part").shared()
    op = ran(tk.zip(part, tk.value(2).named("two"), part).map(len))
    assert op.mermaid().splitlines() == [
        "flowchart TD",
        *(f'    n{at}["{name}"]' for at, name in enumerate(["Map", "Zip", "Shared", "part", "two"])),
        *("    n3 --> n2", "    n2 --> n1", "    n4 --> n1", "    n2 --> n1", "    n1 --> n0"),
    ]
    assert repr(op) == "Map(Zip(Shared(part), two, Shared(part)))"


def test_a_tree_that_is_too_wide_is_cut(device):
    op = tk.value(1).shared()
    for _ in range(40):  # 2 ** 40 ways from the top to the bottom
        op = tk.zip(op, op).shared()
    assert len(repr(op)) < 5000
    assert repr(op).startswith("Shared(Zip(Shared(Zip(")
    assert op.mermaid().count("-->") == 121
    assert op.device is None
    refuse_borrowed(op)
    assert ran(op).map(lambda found: type(found)).sync() is tuple
    many = repr(ran(tk.zip(*range(1000))))
    assert many.endswith("Value, Value, ...)")


@pytest.mark.parametrize("way", ["sync", "sync_on", "async_on", "schedule", "await", "run", "gather"])
@pytest.mark.parametrize(("bottom", "depth"), [("device", DEPTH), ("host", 1200)])
def test_mixtures_run_every_way(device, way, bottom, depth):
    """Around a value of the host's the submission is split at the bottom, below everything."""

    def op(seed=0):
        made = mixed(f"{way} {bottom} {seed}", api.full(3, 5.0).to_host() if bottom == "host" else api.full(3, 5.0), depth=depth)
        return made if bottom == "host" else made.to_host()

    async def main():
        if way == "gather":
            first, second = await asyncio.gather(op(), op(1).into_future())
            assert second.tolist() == [5, 5, 5]
            return first
        return await (op() if way == "await" else op().run())

    with device.stream() as stream:
        if way == "sync":
            result = op().sync()
        elif way == "sync_on":
            result = op().sync_on(stream)
        elif way == "async_on":
            result = op().async_on(stream).result(60)
        elif way == "schedule":
            result = op().schedule(device.policy).result(60)
        else:
            result = asyncio.run(main())
    assert result.tolist() == [5, 5, 5]


def tell(device):
    """Be told of the faults that are left on the streams of a device: those joined with the one that failed have it too."""
    while True:
        try:
            device.synchronize()
        except tk.DeviceError:
            continue
        return


def test_faults_at_the_bottom_come_up(cpu):
    def bottom():
        return failing(KeyError("lost")).then(lambda _: api.ones(3)).to_host()

    async def main():
        with pytest.raises(tk.DeviceError, match="KeyError: 'lost'"):
            await mixed(0, bottom(), depth=1200)

    try:
        asyncio.run(main())
        tell(cpu)
        with pytest.raises(tk.DeviceError, match="KeyError: 'lost'"):
            mixed(1, bottom(), depth=1200).sync()
        tell(cpu)
        with cpu.stream() as stream, pytest.raises(tk.DeviceError, match="KeyError: 'lost'"):
            mixed(2, bottom(), depth=1200).async_on(stream).result(60)
    finally:
        tell(cpu)


def test_a_fault_in_one_part_of_many_side_by_side(cpu, gate, monkeypatch):
    """The part learns of it, and mends it; the others, on streams of their own, go on waiting for what is theirs."""
    monkeypatch.setattr(cpu, "policy", tk.StreamPoolRoundRobin(cpu, 40))
    seen = []

    def read(at):
        before = held(gate) if at % 10 == 0 else tk.value(at)
        return before.then(lambda _: api.full(2, at)).to_host().map(lambda array: seen.append((at, array.tolist())))

    op = failing(KeyError("lost")).then(lambda _: api.ones(1)).to_host().or_else(lambda error: tk.value(type(error)))
    op = op.inspect(lambda _: gate.set())
    for at in range(30):
        op = tk.zip(op, read(at), parallel=True).first()
    assert op.sync() is tk.DeviceError
    assert sorted(seen) == [(at, [at, at]) for at in range(30)]
    tell(cpu)


def test_what_is_behind_a_fault_in_the_same_stream_is_lost_with_it(cpu):
    """Even where another part is told of the fault first, and mends its own share."""
    bad = failing(KeyError("lost")).then(lambda _: api.ones(1)).to_host().or_else(lambda error: tk.value(type(error)))
    with cpu.stream() as stream:
        good = tk.value(1).then(lambda _: api.ones(2)).to_host().map(lambda array: array.tolist())
        op = tk.zip(bad, good.with_policy(tk.SingleStream(stream)), parallel=True)
        with pytest.raises(tk.DeviceError, match="KeyError: 'lost'"):
            op.sync_on(stream)
    tell(cpu)


def test_an_error_deep_down_can_be_mended_on_top(device):
    def broken():
        return api.ones(3).map(lambda _: reraise(LookupError("no such layer")))

    assert mixed(0, broken(), depth=1200).or_else(lambda error: tk.value(str(error))).sync() == "no such layer"
    mended = mixed(1, broken(), depth=1200).or_else(lambda error: api.full(3, 2.0))
    assert mixed(2, mended, depth=1200).to_host().sync().tolist() == [2, 2, 2]


class Witness:
    """Something that a tensor's op holds, to see it go."""


@pytest.mark.parametrize("seed", range(2))
def test_cancelled_mixtures_end_and_are_collected(cpu, gate, seed):
    witness = Witness()
    there = weakref.ref(witness)

    def bottom(it):
        return held(gate, it).then(lambda _: api.ones(3)).to_host().map(lambda array: (array, it)[0])

    async def main(op):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(op, 0.01)

    asyncio.run(main(mixed(seed, bottom(witness), depth=1200)))
    del witness
    gate.set()
    cpu.synchronize()
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("way", ["dropped", "ran", "failed"])
def test_mixtures_are_collected(device, way):
    witness = Witness()
    there = weakref.ref(witness)
    op = mixed(7, tk.value(witness).map(lambda it: 1 / 0 if way == "failed" else it))
    del witness
    if way == "ran":
        op.sync()
    elif way == "failed":
        with pytest.raises(ZeroDivisionError):
            op.sync()
    else:
        op.consumed()
    assert there() is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tk.UnusedOpWarning)  # of what closures were to run
        del op
        gc.collect()
    assert there() is None


def test_a_deep_op_that_never_ran_warns_once(device):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mixed(3, api.ones(3), kinds=OPEN)
        gc.collect()
    assert [str(warning.message).partition(" was never run")[0].count("built at") for warning in caught] == [1]


def test_results_nest_as_deep_as_their_ops(device):
    op = api.full(2, 3.0).to_host()
    for _ in range(DEPTH):
        op = tk.zip(op)
    result, depth = op.sync(), 0
    while type(result) is tuple:
        (result,), depth = result, depth + 1
    assert (depth, result.tolist()) == (DEPTH, [3, 3])
    inner = (1, [2])
    cyclic = [inner]
    cyclic.append(cyclic)
    kept, again, array = tk.zip(tk.value(inner), tk.value(cyclic), api.ones(1).to_host()).sync()
    assert kept is inner
    assert again is cyclic
    assert array.tolist() == [1]


def test_a_loop_of_closures(device):
    def countdown(n):
        return tk.value(n).then(lambda left: countdown(left - 1) if left else tk.value("done"))

    assert countdown(DEPTH).sync() == "done"


def test_launches_in_the_arguments_of_launches(device):
    @tk.kernel
    def increment(y: tk.InOut):
        y.store(y.load() + 1)

    op = api.zeros(4).partition(4)
    for _ in range(1200):
        op = increment(op).first()
    assert op.device is None
    assert op.unpartition().to_host().sync().tolist() == [1200] * 4
    x = api.zeros(4).sync()
    op = tk.zip(x.partition(4))
    for _ in range(1200):
        op = increment(op.first())
    assert op.device is device
    assert len(op.sync()) == 1


def test_the_device_of_an_op(device):
    """That of the first part that has one; in a zip, a part that says where it runs speaks for itself alone."""
    other, x = Device.of_driver(CpuDriver(1)), api.zeros(4).sync()
    there = api.ones(4).on(other)
    assert ran(there.map(len)).device is other
    assert ran(tk.zip(api.ones(4).on(other), x)).device is device
    assert ran(tk.zip(1, api.ones(4).on(other))).device is None
    assert ran(tk.zip(1, api.ones(4).on(other).map(len))).device is other
    assert ran(tk.zip(tk.zip(1, x).shared(), api.ones(4)).map(len)).device is device
    assert ran(nested("shared", tk.value(x))).device is device
    there.consumed()

    class Bound(tk.DeviceOp):
        """An op of one's own that has a device only at times."""

        def __init__(self, part, mine=None):
            self.part, self.mine = part, mine
            part.consumed()

        def parts(self):
            return (self.part,)

        @property
        def device(self):
            return self.mine or super().device

    op = Bound(api.ones(4))
    for _ in range(DEPTH):
        op = Bound(op)
    assert ran(op.map(len)).device is None
    assert ran(Bound(Bound(api.ones(4), other))).device is other
    assert ran(tk.zip(Bound(Bound(tk.value(1))), x)).device is device


# what is in the middle of something when others fail, or the task is cancelled


class Closed(tk.DeviceOp):
    """An op that waits for the stream, and tells when its steps end."""

    def __init__(self, name, told):
        self.name, self.told = name, told

    def steps(self, ctx):
        try:
            yield [(ctx.stream, ctx.stream.mark())]
            return self.name
        finally:
            self.told.append(self.name)


@pytest.mark.parametrize("end", ["failure", "cancellation"])
def test_parts_side_by_side_are_ended_inner_ones_first(cpu, gate, end):
    told = []
    op = held(gate) if end == "cancellation" else tk.value(1).map(lambda _: 1 / 0)
    for name in range(1000):
        op = tk.zip(held(gate).then(lambda _, name=name: Closed(name, told)), op, parallel=True)
    if end == "failure":
        with pytest.raises(ZeroDivisionError):
            Run(op, tk.ExecutionContext(cpu, cpu.policy.next_stream())).advance()
        assert told == list(range(1000))
    else:
        run = Run(op, tk.ExecutionContext(cpu, cpu.policy.next_stream()))
        assert run.advance()
        run.close()
        assert told == list(range(1000))
    gate.set()


def test_an_interrupt_anywhere_leaves_no_shared_op_stuck(device):
    """It is raised at each line of the loop that runs ops, one after the other; another thread needs the same op then."""

    lines, first = inspect.getsourcelines(Run.advance)

    def attempt(line):
        """Interrupt one thread at the `line`-th line that it comes to, and see what another one gets; whether there was one."""
        inner = tk.zip(api.ones(3).map(len), tk.value(1), parallel=True).shared()
        shared = tk.zip(inner, inner.map(len)).shared()
        left = line

        def trace(frame, event, argument):
            nonlocal left
            if frame.f_code is not Run.advance.__code__:
                return None
            # Python itself is never interrupted at a `try:`, which it does not take for a part of what is around, nor at a
            # `continue`, where the handler that it leaves would not be done with its error.
            if (
                event == "line"
                and "outer" in frame.f_locals
                and lines[frame.f_lineno - first].strip() not in ("try:", "continue")
            ):
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        try:
            sys.settrace(trace)
            shared.sync()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert sys.exc_info() == (None, None, None), "what is raised later would seem to come of this interrupt"
        results = []

        def other():
            for op in (shared, inner):
                try:
                    results.append(op.sync())
                except RuntimeError as error:
                    results.append(str(error))

        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        thread.join(30)
        assert len(results) == 2, f"stuck after an interrupt at line {line}"
        whole, part = results
        assert whole == ((3, 1), 2) or "was interrupted, and cannot go on" in whole
        assert part == (3, 1) or "was interrupted, and cannot go on" in part
        return left <= 0

    line = 1
    while attempt(line):
        line += 1
    assert line > 20
