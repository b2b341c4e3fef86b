"""Python's debugger in a kernel on a CPU device: a kernel with a breakpoint is interpreted, and stops where it stands."""

from __future__ import annotations

import linecache
import sys
import threading

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.launch.on_cpu import NOT_COMPILED


@tk.function
def checked(t):
    breakpoint()
    return t


@tk.kernel
def doubled(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y)
    breakpoint()
    y.store(2.0 * t)


@tk.kernel
def through_a_function(y: tk.Out, x: tk.In):
    y.store(2.0 * checked(tk.load_tile_like(x, y)))


@pytest.fixture
def stops(monkeypatch, cpu, interpreted_kernels):
    """Where breakpoints stopped: the function, its line, and what is in its variable t."""
    found = []

    def stop():
        frame = sys._getframe(1)
        found.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno, frame.f_locals["t"]._array.copy()))

    monkeypatch.setattr(sys, "breakpointhook", stop)
    yield found
    NOT_COMPILED.clear()
    interpreted_kernels.clear()  # as it has to be


def launched(kernel):
    x = api.from_host(np.arange(4, dtype=np.float32)).sync()
    return kernel(api.empty(4).partition(2), x).first().unpartition().to_host().sync().tolist()


@pytest.mark.parametrize(("kernel", "where"), [(doubled, "doubled"), (through_a_function, "checked")])
def test_a_breakpoint_stops_once_a_block(stops, kernel, where):
    """In the user's line, with the user's variables, on a device that compiles kernels; and the result is what it is without."""
    assert launched(kernel) == [0, 2, 4, 6]
    assert [t.tolist() for *_, t in stops] == [[0, 1], [2, 3]]
    assert {(name, filename) for name, filename, *_ in stops} == {(where, __file__)}
    assert {linecache.getline(__file__, line).strip() for _, _, line, _ in stops} == {"breakpoint()"}
    assert "breakpoint()" in NOT_COMPILED[kernel.__name__]


def test_lines_of_interpreted_kernels_are_traced(cpu, monkeypatch):
    """What debuggers that follow all threads need: the file and the lines are the user's."""

    @tk.kernel
    def halved(y: tk.InOut):
        half = 0.5 * y.load()
        y.store(half)

    monkeypatch.setenv("TILEKIT_CPU", "interpreted")
    lines = []

    def trace(frame, event, _):
        if frame.f_code.co_filename != __file__ or frame.f_code.co_name != "halved":
            return None
        if event == "line":
            lines.append(frame.f_lineno)
        return trace

    monkeypatch.setattr(threading, "_trace_hook", threading._trace_hook)
    threading.settrace(trace)
    with tk.Device("cpu").stream() as stream:  # its worker starts now
        halved(api.ones(2).partition(2)).sync_on(stream)
    first = halved._function.__code__.co_firstlineno
    assert lines == [first + 2, first + 3]
