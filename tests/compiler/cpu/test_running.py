"""How compiled kernels run: on several threads, with locks between blocks, from the disk, and never down with the process."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.cpu import kernel as kernels
from tilekit.compiler.cpu import workers
from tilekit.launch import on_cpu


@tk.kernel
def counted(total: tk.InOut, lock: tk.InOut):
    """Adds one to a plain element, behind a lock."""
    while tk.atomic_cas(lock, 0, 0, 1, memory_order="acquire").item() != 0:
        pass
    tk.store(total, 0, tk.load(total, 0, ()) + 1)
    tk.atomic_xchg(lock, 0, 0, memory_order="release")


@tk.kernel
def looked_back(sums: tk.InOut, ready: tk.InOut, x: tk.In):
    """A prefix sum of tiles: each block waits for what the one before it has summed up."""
    own = tk.sum(tk.load(x, tk.bid(0), 64))
    before = tk.zeros(1, tk.int32)
    if tk.bid(0) > 0:
        while tk.atomic_add(ready, tk.bid(0) - 1, 0, memory_order="acquire").item() == 0:
            pass
        before = tk.load(sums, tk.bid(0) - 1, 1)
    tk.store(sums, tk.bid(0), before + own)
    tk.atomic_xchg(ready, tk.bid(0), 1, memory_order="release")


def zeros(n):
    return api.zeros(n, tk.int32).sync().scattered()


def compiled(op):
    """The launch, of which it is known that it is compiled: interpreted, blocks that wait for others would wait forever."""
    assert op.explain("cpu").interpreted is None
    return op


@pytest.fixture(params=[1, 2, 5])
def threads(request, monkeypatch, cpu):
    monkeypatch.setenv("TILEKIT_CPU_THREADS", str(request.param))
    return request.param


def test_a_lock_guards_a_store(threads):
    total, lock = compiled(counted(zeros(1), zeros(1)).grid(2000)).sync()
    assert total.unpartition().to_host().sync().tolist() == [2000]
    assert lock.unpartition().to_host().sync().tolist() == [0]


def test_blocks_look_back(threads):
    x = np.random.default_rng(0).integers(-9, 10, 64 * 300).astype(np.int32)
    sums, *_ = compiled(looked_back(zeros(300), zeros(300), api.from_host(x).sync()).grid(300)).sync()
    np.testing.assert_array_equal(sums.unpartition().to_host().sync(), x.reshape(300, 64).sum(1).cumsum())


def test_idle_threads_take_part(cpu, monkeypatch):
    """Blocks that wait for each other, each for all: as many threads run at once."""

    @tk.kernel
    def met(here: tk.InOut):
        tk.atomic_add(here, 0, 1)
        while tk.atomic_add(here, 0, 0, memory_order="acquire").item() < tk.num_blocks(0):
            pass

    monkeypatch.setenv("TILEKIT_CPU_THREADS", "4")
    assert workers.cores() == 4
    assert compiled(met(zeros(1)).grid(4)).first().unpartition().to_host().sync().tolist() == [4]


@tk.kernel
def calculated(y: tk.Out, x: tk.In, z: tk.In, f: tk.In, what: tk.Const, into: tk.Const):
    a, b = tk.load_tile_like(x, y), tk.load_tile_like(z, y)
    if what == "quotient":
        y.store((a // b).astype(into))
    elif what == "rest":
        y.store((a % b).astype(into))
    elif what == "left":
        y.store((a << b).astype(into))
    elif what == "right":
        y.store((a >> b).astype(into))
    else:
        y.store(tk.load_tile_like(f, y).astype(into))


@pytest.mark.parametrize("dtype", [tk.int8, tk.int32, tk.int64, tk.uint8, tk.uint64], ids=str)
@pytest.mark.parametrize("what", ["quotient", "rest", "left", "right", "cast"])
def test_what_would_trap_has_a_result(cpu, monkeypatch, dtype, what):
    """Divisions by zero and of the least number by -1, shifts by more than there are bits; floats that no integer holds, whose
    result is nobody's to know."""
    limits = np.iinfo(dtype)
    values = [limits.min, limits.max, 0, 1, 7, limits.max // 2, limits.min + 1, 3]
    a, b = (np.array(v, dtype) for v in zip(*((x, y) for x in values for y in values), strict=True))
    f = np.resize(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.5, -0.5, 3e9], np.float32), a.size)

    def result():
        kernel, inputs = tk.kernel(calculated._function), [api.from_host(x) for x in (a, b, f)]
        return kernel(api.zeros(64, dtype).partition(16), *inputs, what, dtype).first().unpartition().to_host().sync()

    compiled = result()
    monkeypatch.setenv("TILEKIT_CPU", "interpreted")
    known = slice(None) if what != "cast" else (np.abs(f) < 1)
    np.testing.assert_array_equal(compiled[known], result()[known])


def test_a_failing_block_stops_the_others(cpu):
    """The error names the first of those that failed, with its line."""

    @tk.kernel
    def taken(y: tk.Out, x: tk.In, at: tk.In):
        y.store(tk.gather(x, tk.load_tile_like(at, y)))

    at = np.arange(64, dtype=np.int32)
    at[[37, 60]] = 99, -1
    with pytest.raises(
        tk.DeviceError, match=r"kernel taken, block \((9|15), 0, 0\): gather: index (99|-1) is outside x"
    ) as error:
        taken(api.zeros(64).partition(4), api.zeros(64), api.from_host(at)).sync()
    assert "y.store(tk.gather(x, tk.load_tile_like(at, y)))" in str(error.value)
    assert "^^^" in str(error.value)


# ----------------------------------------------------------------------------------------------------------------- on the disk


@tk.kernel
def scaled(y: tk.InOut, a: float):
    y.store(a * y.load())


def launched(a=2.0):
    op = scaled(api.ones(8).sync().partition(4), a)
    specialisation = op._plan("compile").specialisation
    assert op.first().unpartition().to_host().sync().tolist() == [a] * 8
    return specialisation


@pytest.fixture
def anew(monkeypatch, tmp_path, cpu):
    """The kernel as another process would meet it, with a cache of its own."""
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))

    def forget():
        global scaled
        scaled = tk.kernel(scaled._function)

    forget()
    return forget


def test_code_is_kept_on_the_disk(anew, tmp_path):
    assert launched().compilations == 1
    anew()
    assert launched().compilations == 0
    (entry,) = (tmp_path / "kernels").glob("*.kernel")
    entry.write_bytes(entry.read_bytes()[:-9])
    anew()
    assert launched().compilations == 1  # what is damaged is compiled again
    anew()
    assert launched().compilations == 0


def test_a_missing_function_is_no_crash(anew, monkeypatch, interpreted_kernels):
    """Code that calls what this process has not is not run: the kernel is interpreted, and the reason is told."""

    def linked(image):
        raise RuntimeError("Failed to materialize symbols: { run }")

    monkeypatch.setattr(kernels, "linked", linked)
    launched()
    assert on_cpu.NOT_COMPILED.pop("scaled").startswith("Failed to materialize symbols")
    interpreted_kernels.clear()


def test_a_mistake_of_the_compiler_s_is_told_and_interpreted(anew, monkeypatch, caplog, interpreted_kernels):
    from tilekit.compiler.cpu import build

    def broken(*_, **__):
        raise AssertionError("nobody thought of this")

    monkeypatch.setattr(build, "lowered", broken)
    launched()
    assert "by a mistake of tilekit's" in caplog.text
    assert on_cpu.NOT_COMPILED.pop("scaled") == "AssertionError: nobody thought of this"
    interpreted_kernels.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_threads_of_its_own(cpu):
    """Of a process that has run kernels on several threads."""
    done = threading.Event()
    workers.run_with_helpers(lambda _: done.set(), 8)
    child = os.fork()
    if child == 0:
        reached = []
        workers.run_with_helpers(lambda _: reached.append(1), 8)
        os._exit(0 if reached else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
