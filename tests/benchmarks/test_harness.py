"""How contestants are sampled."""

import numpy as np
import pytest

from tilekit import api
from tilekit_benchmarks.harness import Contestant, EventTimer, HostTimer, Variant, compete, timer_for


class FakeTimer:
    """Each launch function says how long it takes; nothing is really timed."""

    def __init__(self):
        self.taken = []

    def sample_us(self, launch, launches):
        name, microseconds = launch()
        self.taken.append((name, launches))
        return microseconds


def contestant(name, **times):
    return Contestant(
        name=name,
        version="1",
        variants=tuple(Variant(label=label, launch=lambda k=k, us=us: (k, us)) for label, (k, us) in times.items()),
    )


def test_every_round_begins_with_another_contestant():
    timer = FakeTimer()
    compete([contestant(n, only=(n, 10.0)) for n in "abc"], timer, rounds=4, sample_ms=1)
    order = "".join(name for name, _ in timer.taken)
    assert order == "abc" + "abc" + "bca" + "cab" + "abc"  # once each to see how long it takes, then four rounds


def test_a_sample_lasts_long_enough_but_never_fills_the_queue():
    timer = FakeTimer()
    measured = compete([contestant("slow", v=("s", 3000.0)), contestant("fast", v=("f", 0.5))], timer, rounds=1, sample_ms=20)
    assert [m.launches_per_sample for m in measured] == [7, 1000]
    assert timer.taken == [("s", 1), ("f", 1), ("s", 7), ("f", 1000)]


def test_the_best_variant_is_chosen_by_samples_that_do_not_count():
    timer = FakeTimer()
    two = contestant("two", large=("two-large", 9.0), small=("two-small", 4.0))
    measured, other = compete([two, contestant("one", only=("one", 5.0))], timer, rounds=2, tuning_rounds=3)
    assert measured.variant == "small"
    assert measured.tried_us == {"large": 9.0, "small": 4.0}
    assert measured.samples_us == (4.0, 4.0)
    assert measured.median_us == 4.0
    assert other.tried_us == {}
    assert sum(name == "two-large" for name, _ in timer.taken) == 1 + 3
    assert sum(name == "two-small" for name, _ in timer.taken) == 1 + 3 + 2


def test_each_launch_happens_in_the_context_of_its_contestant():
    inside = []

    class Active:
        def __enter__(self):
            inside.append(True)

        def __exit__(self, *_):
            inside.pop()

    def launch():
        assert inside
        return "a", 1.0

    compete([Contestant(name="a", version="1", variants=(Variant(launch=launch),), active=Active)], FakeTimer(), rounds=2)
    assert not inside


def test_a_host_timer_waits_before_and_after():
    calls = []
    taken_us = HostTimer(lambda: calls.append("wait")).sample_us(lambda: calls.append("launch"), 3)
    assert calls == ["launch", "wait", "launch", "launch", "launch", "wait"]
    assert taken_us > 0


def test_an_event_timer_measures_the_stream(device):
    with device.stream() as stream:
        timer = EventTimer(stream)
        launched = []

        def launch():
            launched.append(api.from_host(np.zeros(1024, np.float32)).async_on(stream))

        assert timer.sample_us(launch, 4) >= 0
        assert len(launched) == 5
        timer.close()


def test_the_timer_follows_from_the_device(device):
    with device.stream() as stream:
        timer = timer_for(device, stream)
        assert isinstance(timer, EventTimer if device.kind == "cuda" else HostTimer)
        timer.close()


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_as_many_samples_as_rounds(rounds):
    (measured,) = compete([contestant("a", only=("a", 2.0))], FakeTimer(), rounds=rounds)
    assert len(measured.samples_us) == rounds
