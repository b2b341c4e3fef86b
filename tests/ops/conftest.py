"""What tests of running ops share: a CPU device, and an event that holds its work up. `held_up` has ops for both."""

import threading

import pytest

import tilekit as tk


@pytest.fixture
def gate():
    """An event that is set when the test is over, whatever happens: work that waits for it must not hold up others."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def cpu():
    """A CPU device, where work can be held up by an event. Nothing may be left on it."""
    device = tk.Device("cpu")
    with tk.use_device(device):
        yield device
    device.synchronize()
