"""What the walks through the seed documents share: a latch, streams, and an op that tells where it ran."""

import contextlib
import threading

import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu.driver import CpuDriver
from tilekit._runtime.device import Device


class Latch:
    """Holds streams back until it opens, so that a test sees what happens while work is still running.

    Only a CPU device can be held. On a GPU `works` is False, and the tests check the results alone.
    """

    def __init__(self, device):
        self.works = device.kind == "cpu"
        self._device, self._gate = device, threading.Event()

    def hold(self, stream):
        """Let nothing that is submitted to `stream` from now on begin before the latch opens."""
        if self.works:
            stream.device.driver.submit(stream.handle, lambda: self._gate.wait(60))

    def let_others_get_on(self):
        """Give everything that is not held the time of a few ops, so that what wrongly does not wait shows itself."""
        with self._device.stream() as stream:
            for _ in range(20):
                api.ones(1000).to_host().sync_on(stream)

    def open(self):
        self._gate.set()


@pytest.fixture
def latch(device):
    latch = Latch(device)
    yield latch
    latch.open()


@pytest.fixture
def streams(device):
    """Four streams of the device under test."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(device.stream()) for _ in range(4)]


@pytest.fixture
def where():
    """Makes ops whose result is the stream that they ran on."""
    return lambda *_: tk.with_context(lambda ctx: tk.value(ctx.stream))


class Turns:
    """A scheduling policy that counts how often it was asked."""

    def __init__(self, device):
        self.count, self._pool = 0, tk.StreamPoolRoundRobin(device, streams=4)

    def next_stream(self):
        self.count += 1
        return self._pool.next_stream()


@pytest.fixture
def turns(device, monkeypatch):
    """The device's policy while the test runs; `turns.count` says how many streams were asked for."""
    policy = Turns(device)
    monkeypatch.setattr(device, "policy", policy)
    return policy


@pytest.fixture
def other(device):
    """A second device: one of the same kind where there is one, else a CPU device."""
    alike = [found for found in tk.devices() if found.kind == device.kind and found is not device]
    if alike:
        return alike[0]
    return Device.of_driver(CpuDriver(1)) if device.kind == "cpu" else tk.Device("cpu")
