"""How long a task polls for short work before other tasks get a turn: on a GPU that does nothing, by a clock that is set."""

import asyncio
from types import SimpleNamespace

import pytest
from fake_gpu import fake_device, fake_gpu

import tilekit as tk
from tilekit.ops.reactor import _asyncio, _reactor, _waiting, patience, reached
from tilekit.ops.reactor._running import running_reactor

SPIN_S, TURN_S = 20e-6, _reactor._TURN_S


class Mark:
    """Behind work that takes the device `work_s` from now."""

    def __init__(self, clock, work_s):
        self.clock, self.until = clock, clock.now + work_s

    def poll(self, seconds):
        """As the compiled part's."""
        self.clock.polls.append(round(1e6 * seconds))
        self.clock.now += min(seconds, max(0.0, self.until - self.clock.now))
        return self.clock.now >= self.until


@pytest.fixture
def clock(monkeypatch):
    """It stands still but for polls, and for turns, of 2 us each.

    Attributes:
        polls: how many microseconds each took at most.
        turns: how many turns tilekit gave.
    """
    made = SimpleNamespace(now=1.0, polls=[], turns=0)
    for module in (_reactor, _waiting):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: made.now))
    monkeypatch.delenv("TILEKIT_SPIN_US", raising=False)

    def turn(self):
        made.turns += 1
        made.now += 2e-6
        return _asyncio._TURN

    monkeypatch.setattr(_asyncio.AsyncioReactor, "turn", turn)
    return made


@pytest.fixture
def work(clock):
    """A function: `await work(s)` awaits work that takes the device so many seconds."""
    device, _ = fake_gpu()
    device.driver.make_signals_ready()
    stream = device.stream()

    def short(seconds):
        mark = Mark(clock, seconds)
        return SimpleNamespace(
            device=device,
            is_complete=lambda serial, poll_s=0.0: mark.poll(poll_s),
            signal=lambda serial, board, slot: stream.add_callback(lambda *_: None) or True,
        )

    class Waiting:
        def __init__(self, seconds):
            self.stream = short(seconds)

        def __await__(self):
            yield from reached([(self.stream, 1)])

    return Waiting


def test_one_task_polls_without_a_turn(clock, work):
    async def main():
        await work(5e-6)
        assert (clock.turns, clock.polls) == (1, [20 - 2]), "a turn before the first"
        clock.polls.clear()
        for _ in range(100):
            await work(9e-6)

    asyncio.run(main())
    assert 8 <= clock.turns - 1 <= 10, "one in 100 us"
    assert len(clock.polls) <= 111, "one for each, and one more where a turn came between"


def test_others_that_are_ready_get_a_turn_before_each(clock, work):
    given = []

    async def other():
        for _ in range(40):
            clock.now += 50e-6  # the host works, and so does the device
            given.append(clock.turns)
            await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(other())
        while not task.done():
            await work(9e-6)

    asyncio.run(main())
    assert given == list(range(1, 41)), "each of its turns is one that was given"
    assert set(clock.polls[:40]) == {0}


def test_what_others_wait_for_is_looked_at_every_hundred_microseconds(clock, work):
    """A timer, or a socket: nobody knows whether they are ready before the loop turns."""
    called = []

    async def main():
        await work(1e-6)
        start = clock.now
        asyncio.get_running_loop().call_later(0, lambda: called.append(clock.now - start))
        while not called:
            await work(15e-6)

    asyncio.run(main())
    assert called[0] <= TURN_S + SPIN_S


def test_what_tasks_submit_overlaps(clock, work):
    """Nobody waits for the first before the last has been submitted."""

    async def one():
        await work(9e-6)

    async def main():
        await one()
        clock.polls.clear()
        clock.turns = 0
        await asyncio.gather(*(one() for _ in range(4)))

    asyncio.run(main())
    assert clock.polls[:3] == [0, 0, 0]
    assert sum(us > 0 for us in clock.polls) <= 2, "the last, when the others have ended"


def test_tasks_that_wait_for_the_device_do_not_hold_each_other_up(clock, work):
    ended = []

    async def one(seconds):
        for _ in range(20):
            await work(seconds)
        ended.append(len(clock.polls))

    async def main():
        await one(1e-6)
        clock.polls.clear()
        await asyncio.gather(one(9e-6), one(9e-6))

    asyncio.run(main())
    assert all(us == 0 for us in clock.polls[: ended[1] - 1]), "as long as there are two"


def test_none_polls_while_another_waits_for_the_bell(clock, work):
    async def main():
        await work(1e-6)
        long = asyncio.ensure_future(asyncio.wait_for(_awaited(work(1.0)), 60))
        for _ in range(50):
            await asyncio.sleep(0)
        assert running_reactor()._waiting
        clock.polls.clear()
        for _ in range(20):
            await work(9e-6)
        assert set(clock.polls) == {0}
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long

    asyncio.run(main())


async def _awaited(work):
    await work


def test_work_that_is_long_is_polled_for_no_longer_than_the_setting_says(clock, work):
    async def main():
        await work(1e-6)
        start = clock.now
        task = asyncio.ensure_future(_awaited(work(1.0)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert SPIN_S - 1e-9 <= clock.now - start <= SPIN_S + 4e-6
        task.cancel()

    asyncio.run(main())


def test_nobody_polls_if_the_setting_is_0(clock, work, monkeypatch):
    monkeypatch.setenv("TILEKIT_SPIN_US", "0")

    async def main():
        for _ in range(30):
            await work(0.0)
        assert patience() == 0

    asyncio.run(main())
    assert set(clock.polls) == {0}


def test_a_launch_is_polled_for_as_it_is_submitted(clock):
    """The compiled part does it in the call that launches."""
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    from tilekit import api
    from tilekit._native import compiled as native

    if native is None:
        pytest.skip("tilekit was installed without a C compiler")

    with fake_device() as (_, driver):
        tiles = api.zeros(2048).sync().partition(1024)
        scaled(tiles, 1.0).sync()

        async def main():
            await scaled(tiles, 1.0)
            assert patience() == pytest.approx(SPIN_S)
            turns = clock.turns
            driver.calls.clear()
            driver.not_ready = 3
            for _ in range(10):
                await scaled(tiles, 1.0)
            assert clock.turns == turns
            assert driver.calls["cuEventQuery"] == 10 + 3

        asyncio.run(main())
    assert patience() == 0, "no loop runs"


@tk.kernel
def scaled(y: tk.InOut, value: float):
    y.store(y.load() * value)
