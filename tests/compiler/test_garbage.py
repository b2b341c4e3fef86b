"""Python's collector waits while kernels compile, and goes on behind that."""

import gc
import os
import threading

import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.garbage import collector_paused


@pytest.fixture(autouse=True)
def collector():
    enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if enabled else gc.disable)()


def test_it_goes_on_behind_the_last_block():
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_behind_an_error():
    with pytest.raises(ValueError, match="wrong"), collector_paused():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_who_has_turned_it_off_keeps_it_so():
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_threads_share_the_pause():
    inside, leave = threading.Event(), threading.Event()

    def compile_():
        with collector_paused():
            inside.set()
            leave.wait(10)

    other = threading.Thread(target=compile_)
    with collector_paused():
        other.start()
        assert inside.wait(10)
    assert not gc.isenabled(), "the other still compiles"
    leave.set()
    other.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_it_runs_in_what_is_forked_meanwhile():
    with collector_paused():
        child = os.fork()
        if not child:
            with collector_paused():
                paused = not gc.isenabled()
            os._exit(0 if paused and gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled()


@tk.kernel
def doubled(y: tk.Out, x: tk.In):
    y.store(2 * tk.load_tile_like(x, y))


def test_a_kernel_that_compiles_pauses_it(monkeypatch):
    from tilekit.compiler import assembly

    states, translate = [], assembly.translate

    def watched(*arguments, **options):
        states.append(gc.isenabled())
        return translate(*arguments, **options)

    monkeypatch.setattr(assembly, "translate", watched)
    doubled(api.meta((64,)).partition(64), api.meta((64,))).compile(target="sm_90a")
    assert states
    assert not any(states)
    assert gc.isenabled()
