"""`memory.stream_chunks`: arrays that go through a device in chunks."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, memory
from tilekit._driver.cpu.driver import CpuDriver
from tilekit._runtime.device import Device


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())


@pytest.mark.parametrize("rows", [1, 64, 1000])
@pytest.mark.parametrize("chunk_rows", [1, 64, 300, 5000])
def test_chunks_are_worked_on_in_order(device, rows, chunk_rows):
    source = np.random.default_rng(1).random((rows, 8), np.float32)
    out = np.zeros_like(source)
    seen = []
    op = memory.stream_chunks(
        lambda x: double(x.partition((64, 8))).first().unpartition(),
        source,
        out,
        chunk_bytes=chunk_rows * 32,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert op.sync() is out
    np.testing.assert_array_equal(out, 2 * source)
    ends = [*range(chunk_rows, rows, chunk_rows), rows]
    assert seen == [(end * 32, rows * 32) for end in ends]


def test_a_file_goes_through_the_device(device, tmp_path):
    rng = np.random.default_rng(2)
    np.save(tmp_path / "in.npy", rng.random((5000, 100), np.float32))
    source = np.load(tmp_path / "in.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, source.shape)
    op = memory.stream_chunks(lambda x: double(x.partition((64, 128))).first().unpartition(), source, out, chunk_bytes=100_000)
    assert asyncio.run(op.run()) is out
    out.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * source)


def test_chunks_in_place_and_changed_in_place(device):
    data = np.arange(3000, dtype=np.int32)
    memory.stream_chunks(lambda x: double(x.partition(64)).map(lambda _: x), data, data, chunk_bytes=400).sync()
    np.testing.assert_array_equal(data, 2 * np.arange(3000))


def test_without_out_the_results_are_listed(device):
    data = np.arange(1000, dtype=np.int64)
    sums = memory.stream_chunks(lambda x: x.to_host().map(lambda part: int(part.sum())), data, chunk_bytes=800).sync()
    assert sums == [int(data[at : at + 100].sum()) for at in range(0, 1000, 100)]
    assert memory.stream_chunks(lambda x: x, np.zeros((0, 3)), chunk_bytes=800).sync() == []


def test_progress_may_run_ops(device):
    data = np.arange(1 << 12, dtype=np.float32)
    seen = []

    def progress(done, total):
        seen.append(float(api.full(2, done / total).to_host().sync()[0]))

    made = memory.stream_chunks(lambda x: x, data, np.zeros_like(data), chunk_bytes=1 << 12, progress=progress).sync()
    assert seen == [0.25, 0.5, 0.75, 1.0]
    np.testing.assert_array_equal(made, data)


def test_chunks_that_do_not_fit_are_refused(device):
    data = np.zeros((10, 4), np.float32)
    fixed = np.zeros((10, 4), np.float32)
    fixed.flags.writeable = False
    for error, text, arguments in [
        (TypeError, "source is a NumPy array, not list", ([],)),
        (TypeError, "out is a NumPy array, not list", (data, [])),
        (ValueError, "source has rank 0", (np.zeros(()),)),
        (ValueError, "source has 10 rows, out has 9", (data, data[:9])),
        (ValueError, "out is read-only; open a memmap with mode", (data, fixed)),
    ]:
        with pytest.raises(error, match=f"stream_chunks: {text}"):
            memory.stream_chunks(lambda x: x, *arguments)
    with pytest.raises(ValueError, match="chunk_bytes is 0"):
        memory.stream_chunks(lambda x: x, data, chunk_bytes=0)
    for size in (80.5, float("nan"), "1k", True, None):
        with pytest.raises(TypeError, match=rf"stream_chunks: chunk_bytes is a number of bytes, an int, not {size!r}"):
            memory.stream_chunks(lambda x: x, data, chunk_bytes=size)
    with pytest.raises(TypeError, match="stream_chunks: work is a function, not 3"):
        memory.stream_chunks(3, data)
    with pytest.raises(TypeError, match="stream_chunks: progress is a function, not 3"):
        memory.stream_chunks(lambda x: x, data, progress=3)
    out = np.zeros((10, 5), np.float32)
    with pytest.raises(
        ValueError, match=r"the work gave float32 of shape \(5, 4\) for rows of out that are float32 of shape \(5, 5"
    ):
        memory.stream_chunks(lambda x: x, data, out, chunk_bytes=80).sync()
    with pytest.raises(TypeError, match="the work gave a meta tensor, which has no elements"):
        memory.stream_chunks(lambda x: api.meta(x.shape), data, data, chunk_bytes=80).sync()
    with pytest.raises(TypeError, match="the work gave None, not a tensor"):
        memory.stream_chunks(lambda x: None, data, data, chunk_bytes=80).sync()


def test_an_error_in_a_chunk_ends_the_op_and_nothing_else(device):
    calls = []

    def work(x):
        calls.append(x.shape)
        if len(calls) == 3:
            raise RuntimeError("the third")
        return x

    data = np.ones((100, 4), np.float32)
    with pytest.raises(RuntimeError, match="the third"):
        memory.stream_chunks(work, data, np.zeros_like(data), chunk_bytes=160).sync()
    assert calls == [(10, 4)] * 3
    out = np.zeros_like(data)
    memory.stream_chunks(lambda x: x, data, out, chunk_bytes=160).sync()
    np.testing.assert_array_equal(out, data)


def boom(*arguments):
    raise RuntimeError("boom")


def double_all(x):
    return double(x.partition(64)).first().unpartition()


def failing(work):
    """Work on chunks that fails in the third."""
    turns = iter([double_all, double_all])
    return lambda x: next(turns, work)(x)


def streaming(wrong):
    """An op on ten chunks in which something goes wrong."""
    data = np.ones(160_000, np.float32)
    work = {"the work": failing(boom), "its result": failing(lambda x: x.reshape(-1, 1))}.get(wrong, double_all)
    progress = boom if wrong == "the progress" else None
    return memory.stream_chunks(work, data, np.zeros_like(data), chunk_bytes=64_000, progress=progress)


@pytest.fixture
def uncollected():
    """The garbage collector does not run: what is held by a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def used(device):
    """The bytes that tensors hold, once all that was submitted is done."""
    device.synchronize()
    device.synchronize()
    return memory.stats(device).used_bytes


@pytest.mark.parametrize("wrong", ["the work", "its result", "the progress", "nothing"])
def test_an_error_leaves_no_chunk_behind(device, uncollected, wrong):
    before, failed = used(device), False
    try:
        streaming(wrong).sync()
    except (RuntimeError, ValueError):
        failed = True
    assert failed is (wrong != "nothing")
    assert used(device) == before


def test_an_error_in_a_task_leaves_no_chunk_behind(device, uncollected):
    async def main():
        before, failed = used(device), False
        try:
            await streaming("the work")
        except RuntimeError:
            failed = True
        assert failed
        assert used(device) == before

    asyncio.run(main())


@pytest.mark.parametrize("run", ["sync", "await", "async_on"])
@pytest.mark.parametrize("wrong", ["its result", "the progress"])
def test_an_error_that_somebody_keeps_holds_no_chunk(device, uncollected, wrong, run):
    op, before = streaming(wrong), used(device)
    ways = {
        "sync": op.sync,
        "await": lambda: asyncio.run(op.run()),
        "async_on": lambda: op.async_on(device.stream()).result(60),
    }
    with pytest.raises((RuntimeError, ValueError), match=r"boom|the work gave float32") as caught:
        ways[run]()
    assert used(device) == before
    assert caught.value.__traceback__ is not None


@pytest.mark.parametrize("copy", ["copy_from_host", "copy_to_host"])
def test_a_copy_that_fails_leaves_no_chunk_behind(uncollected, monkeypatch, copy):
    with tk.use_device(Device.of_driver(CpuDriver())) as device:
        original, turns = getattr(device.driver, copy), iter([1, 2])

        def limited(*arguments):
            if next(turns, None) is None:
                raise RuntimeError("no third copy")
            original(*arguments)

        monkeypatch.setattr(device.driver, copy, limited)
        data = np.ones(64_000, np.float32)
        with pytest.raises(RuntimeError, match="no third copy"):
            memory.stream_chunks(double_all, data, np.zeros_like(data), chunk_bytes=64_000).sync()
        assert used(device) == 0
        device.synchronize()


def test_two_copies_that_fail_at_once_are_one_error(monkeypatch):
    with tk.use_device(Device.of_driver(CpuDriver())) as device:
        original = device.driver.copy_from_host
        turns = iter([1])

        def once(*arguments):
            if next(turns, None) is None:
                raise RuntimeError("no second copy")
            original(*arguments)

        monkeypatch.setattr(device.driver, "copy_from_host", once)
        monkeypatch.setattr(device.driver, "copy_to_host", lambda *arguments: boom())
        data = np.ones(64_000, np.float32)
        with pytest.raises(RuntimeError, match=r"no second copy|boom"):
            memory.stream_chunks(double_all, data, np.zeros_like(data), chunk_bytes=64_000).sync()


def test_streaming_refuses_results_that_overwrite_what_is_to_be_read():
    rows = np.arange(40, dtype=np.float32)
    with pytest.raises(ValueError, match="out overlaps source and is not the same view"):
        memory.stream_chunks(lambda x: x, rows[:-1], rows[1:])
