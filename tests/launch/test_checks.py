"""What is made sure of while a kernel runs: indices always on the CPU device, races and unwritten reads there under
TILEKIT_CHECKS=1; on a GPU see tests/gpu."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
from fake_gpu import fake_gpu

import tilekit as tk
from tilekit import api
from tilekit._driver.cuda import driver as cuda
from tilekit._driver.cuda.errors import failure
from tilekit._driver.report import FIRST_VALUE, VARIABLE, WORDS, Report, Site, stop_message
from tilekit._driver.shadow import Touched
from tilekit.compiler import cache
from tilekit.lang.block import Block
from tilekit.settings import load_settings


def refused(op, match):
    with pytest.raises(tk.DeviceError, match=match) as caught:
        op.sync()
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- two blocks, one element


@tk.kernel
def overlapping(y: tk.Out):
    tk.scatter(y, tk.bid(0) * 2 + tk.arange(4), 1.0)


def test_two_blocks_scatter_to_one_element(checked):
    text = refused(overlapping(api.zeros(16).scattered()).grid(3), r"blocks \(0, 0, 0\) and \(1, 0, 0\) both write y\[2\]")
    assert "kernel overlapping, block (1, 0, 0): " in text
    assert "tk.scatter(y, tk.bid(0) * 2 + tk.arange(4), 1.0)" in text
    assert "tk.atomic_add" in text
    overlapping(api.zeros(16).scattered()).grid(1).sync()


def test_two_blocks_store_one_tile(checked):
    @tk.kernel
    def first(y: tk.Out):
        tk.store(y, (0, tk.bid(1)), 1.0)

    refused(first(api.zeros((8, 8)).partition((4, 4))), r"blocks \(0, 0, 0\) and \(1, 0, 0\) both write y\[0:4, 0:4\]")

    @tk.kernel
    def mine_and_the_first(y: tk.Out):
        y.store(1.0)
        tk.store(y, 0, 2.0)

    refused(mine_and_the_first(api.zeros(8).partition(4)), r"blocks \(0, 0, 0\) and \(1, 0, 0\) both write y\[0:4\]")


def test_tiles_and_elements_are_told_apart_and_together(checked):
    @tk.kernel
    def spill(y: tk.Out):
        y.store(1.0)
        tk.scatter(y, tk.bid(0) * 4 + 4, 2.0, mask=tk.bid(0) == 1)

    refused(spill(api.zeros(12).partition(4)), r"blocks \(1, 0, 0\) and \(2, 0, 0\) both write y\[8\]")

    @tk.kernel
    def within(y: tk.Out):
        y.store(1.0)
        tk.scatter(y, tk.bid(0) * 4 + tk.arange(2), 2.0)
        y.store(y.tile_shape[0] * 1.0, None)

    within(api.zeros(12).partition(4)).sync()


def test_windows_that_overlap(checked):
    @tk.kernel
    def slide(y: tk.Out):
        y.tiled_view(4, traversal_steps=3).store(tk.bid(0), 1.0)

    refused(slide(api.zeros(12).scattered()).grid(2), r"blocks \(0, 0, 0\) and \(1, 0, 0\) both write y\[3\]")


def test_slices_are_parts_of_their_tensor(checked):
    @tk.kernel
    def halves(y: tk.Out, shift):
        half = y.slice(1, tk.bid(0) * 4 - shift, tk.bid(0) * 4 + 4 - shift)
        tk.scatter(half, (1, tk.arange(4)), 1.0)

    halves(api.zeros((2, 8)).scattered(), 0).grid(2).sync()
    refused(halves(api.zeros((2, 8)).scattered(), 0).grid(3), "slice: 8:12 is outside y, which has 8 along axis 1")

    @tk.kernel
    def same(y: tk.Out):
        tk.scatter(y.slice(0, tk.bid(0), 8), 3 - tk.bid(0), 1.0)

    refused(same(api.zeros(8).scattered()).grid(2), r"both write y\[3\]")


def test_atomics_may_meet(cpu):
    @tk.kernel
    def add(y: tk.InOut):
        tk.atomic_add(y, tk.arange(4), 1.0)
        tk.atomic_add_tile(y, 0, tk.ones(4))

    found = add(api.zeros(4).scattered()).grid(5).first().unpartition().to_host().sync()
    assert found.tolist() == [10, 10, 10, 10]


def test_a_masked_store_writes_what_the_mask_leaves(checked):
    @tk.kernel
    def mine(y: tk.Out):
        place = tk.arange(4)
        tk.store(y, 0, tk.bid(0) * 1.0, mask=place % 2 == tk.bid(0))

    assert mine(api.zeros(8).partition(4)).first().unpartition().to_host().sync().tolist() == [0, 1, 0, 1, 0, 0, 0, 0]


def test_every_launch_begins_anew(checked):
    y = api.zeros(8).sync()
    for _ in range(2):
        overlapping(y.scattered()).grid(1).sync()


def test_many_dimensions():
    touched, block = Touched((4, 6, 5)), Block((3, 2, 2))
    window = (slice(0, 2), slice(0, 3), slice(1, 5))
    for at in [(0, 0, 0), (2, 1, 1)]:
        block.index = at
        if at == (0, 0, 0):
            touched.write(window, None, block, "y")
        else:
            with pytest.raises(tk.DeviceError, match=r"blocks \(0, 0, 0\) and \(2, 1, 1\) both write y\[1, 2, 4\]"):
                touched.write(tuple(np.array([i]) for i in (1, 2, 4)), None, block, "y")
            touched.write(tuple(np.array([i]) for i in (1, 3, 4)), None, block, "y")
    block.index = (0, 0, 0)
    with pytest.raises(tk.DeviceError, match=r"blocks \(2, 1, 1\) and \(0, 0, 0\) both write y\[1, 3, 4\]"):
        touched.write((slice(1, 2), slice(3, 4), slice(0, 5)), None, block, "y")


@pytest.mark.parametrize("step", [1, 3])
def test_a_block_that_reads_what_another_writes_is_an_error(checked, step):
    """Whichever comes first: the blocks run in order here, and in any order on a GPU."""

    @tk.kernel
    def shifted(y: tk.InOut, step):
        y.store(tk.load(y, (tk.bid(0) + step) % tk.num_blocks(0), 2))

    first = {
        1: r"block \(0, 0, 0\) reads y\[2:4\], which block \(1, 0, 0\) writes",
        3: r"block \(1, 0, 0\) reads y\[0:2\], .* \(0, 0, 0\)",
    }
    text = refused(shifted(api.zeros(8).partition(2), step), first[step])
    assert "it is chance which comes first" in text
    assert shifted(api.ones(8).partition(2), 4).first().unpartition().to_host().sync().tolist() == [1] * 8


@pytest.mark.parametrize("form", ["window", "gather", "masked"])
def test_so_is_one_that_reads_single_elements_of_it(checked, form):
    @tk.kernel
    def neighbours(y: tk.InOut, form: tk.Const):
        at = (tk.bid(0) * 2 + tk.arange(2) + 1) % 8
        if form == "gather":
            y.store(tk.gather(y, at))
        elif form == "masked":
            y.store(tk.sum(tk.load(y, tk.bid(0) // 2, 4, mask=tk.arange(4) == 3)))
        else:
            y.store(tk.sum(tk.load(y, 0, 8)))

    refused(neighbours(api.zeros(8).partition(2), form), r"reads? y\[\d\], which block \(\d, 0, 0\) writes")


def test_blocks_that_tell_each_other_by_atomics_may_read_what_others_wrote(checked):
    @tk.kernel
    def passed_on(y: tk.InOut, ready: tk.InOut):
        tk.atomic_add(ready, 0, 1, memory_order="acq_rel")
        y.store(tk.load(y, max(tk.bid(0) - 1, 0), 2) + 1)

    y = passed_on(api.zeros(8).partition(2), api.zeros(1, tk.int32).scattered()).first().unpartition().to_host().sync()
    assert y.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


# ------------------------------------------------------------------------------------------- outside, and never written


def test_indices_outside_are_errors(cpu):
    @tk.kernel
    def take(y: tk.Out, x: tk.In, where: tk.In):
        y.store(tk.gather(x, (1, tk.load_tile_like(where, y))))

    x = api.zeros((3, 10)).sync()
    for wrong in (10, -1):
        where = api.from_host(np.array([1, 2, wrong, 3], np.int32))
        text = refused(
            take(api.zeros(4).partition(4), x, where), rf"gather: index \(1, {wrong}\) is outside x, a tensor of shape \(3, 10\)"
        )
        assert "y.store(tk.gather(x, (1, tk.load_tile_like(where, y))))" in text

    @tk.kernel
    def put(y: tk.InOut, where: tk.In):
        at = tk.load(where, 0, 4)
        tk.scatter(y, at, 1.0, mask=at < 8)
        tk.atomic_max(y, at, 2.0)

    where = api.from_host(np.array([1, 2, 8, 3], np.int32))
    refused(put(api.zeros(8).scattered(), where).grid(1), r"atomic_max: index 8 is outside y, a tensor of shape \(8,\)")


def test_windows_outside_are_errors(cpu):
    @tk.kernel
    def window(y: tk.Out, x: tk.In, i):
        y.store(x.tiled_view(4, traversal_steps=2).load(i))

    window(api.zeros(4).partition(4), api.zeros(7), 3).sync()
    refused(
        window(api.zeros(4).partition(4), api.zeros(7), 4),
        r"load: tile index \(4,\) is outside x, a tensor of shape \(7,\) in tiles of \(4,\) every \(2,\)",
    )


def test_what_nobody_wrote(checked):
    @tk.kernel
    def fill(y: tk.Out):
        tk.scatter(y, tk.arange(8) * 2, 1.0)

    @tk.kernel
    def take(y: tk.Out, x: tk.In, shift):
        y.store(tk.gather(x, tk.arange(8) * 2 + shift))

    @tk.kernel
    def part(y: tk.Out, x: tk.In, masked: tk.Const):
        even = tk.arange(16) % 2 == 0
        y.store(tk.load(x, 0, 16, mask=even if masked else None))

    x = api.empty(16).sync()
    fill(x.scattered()).grid(1).sync()
    take(api.zeros(8).partition(8), x, 0).sync()
    refused(take(api.zeros(8).partition(8), x, 1), r"gather: reads what was never written: x\[1\], of a tensor of shape \(16,\)")
    part(api.zeros(16).partition(16), x, True).sync()
    refused(part(api.zeros(16).partition(16), x, False), "load: reads what was never written")


def test_what_was_written_through_a_slice(checked):
    @tk.kernel
    def fill(y: tk.Out):
        tk.scatter(y.slice(0, 4, 8), tk.arange(4), 1.0)
        y.slice(0, 8, 16).tiled_view(4).store(1, 2.0)

    @tk.kernel
    def take(y: tk.Out, x: tk.In, i):
        y.store(tk.load(x.slice(0, 4, 16), i, 4))

    x = api.empty(16).sync()
    fill(x.scattered()).grid(1).sync()
    take(api.zeros(4).partition(4), x, 0).sync()
    take(api.zeros(4).partition(4), x, 2).sync()
    refused(take(api.zeros(4).partition(4), x, 1), r"reads what was never written: x\[4:8\]")


# ---------------------------------------------------------------------------------------------------- tensors without tiles


def test_a_scattered_tensor_has_no_tiles(device):
    @tk.kernel
    def own(y: tk.InOut):
        y.store(y.load())

    with pytest.raises(tk.CompileError) as caught:
        own(api.zeros(8).scattered()).grid(1).sync()
    assert caught.value.reason.startswith("load: y has no tiles of its own: name a place, with tk.store(y, index, tile)")

    with pytest.raises(ValueError, match=r"no argument is cut into tiles, so the grid must be given: \.grid\("):
        own(api.zeros(8).scattered()).sync()
    with pytest.raises(TypeError, match=r"scattered\(\) has no map\(\) of its own"):
        api.zeros(8).sync().scattered().map()
    with pytest.raises(ValueError, match=r"kernels write tensors of 1 to 4 dimensions; one of shape \(1, 1, 1, 1, 1\) has 5"):
        api.zeros((1, 1, 1, 1, 1)).sync().scattered()


def test_what_is_only_read_is_not_scattered_into(device):
    @tk.kernel
    def put(x: tk.In):
        tk.scatter(x, 0, 1.0)

    with pytest.raises(tk.CompileError, match=r"scatter: x is a tensor that is only read: .*x\.scattered\(\)"):
        put(api.zeros(8)).grid(1).sync()


def test_its_grid_follows_from_other_partitions(device):
    @tk.kernel
    def both(y: tk.Out, z: tk.InOut):
        y.store(tk.bid(0))
        tk.atomic_add(z, 0, 1)

    y, z = both(api.zeros(12, tk.int32).partition(4), api.zeros(1, tk.int32).scattered()).sync()
    assert y.unpartition().to_host().sync().tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert z.unpartition().to_host().sync().tolist() == [3]


# ------------------------------------------------------------------------------------------------------- checks on a GPU


@tk.kernel
def pick(y: tk.Out, x: tk.In, where: tk.In, i):
    y.store(tk.gather(x, tk.load(where, i, y.tile_shape)))


def compiled(monkeypatch, checks):
    monkeypatch.setenv("TILEKIT_CHECKS", checks)
    kernel = tk.kernel(pick._function)  # anew: the setting is read once for each kind of arguments
    launch = kernel(api.meta(1024).partition(256), api.meta(1000), api.meta(1024, tk.int32), 2)
    launch._spent = True
    specialisation = launch._plan("compile").specialisation
    return specialisation.key("sm_90a"), specialisation


def test_the_setting():
    assert not load_settings({}).checks
    assert load_settings({"TILEKIT_CHECKS": "1"}).checks
    with pytest.raises(ValueError, match="TILEKIT_CHECKS='yes': expected a whole number between 0 and 1"):
        load_settings({"TILEKIT_CHECKS": "yes"})


def test_the_setting_of_what_is_dumped():
    assert load_settings({}).dump == frozenset()
    assert load_settings({"TILEKIT_DUMP": "ir, passes"}).dump == {"ir", "passes"}
    with pytest.raises(ValueError, match="TILEKIT_DUMP='all': it is ir or passes, or both with a comma"):
        load_settings({"TILEKIT_DUMP": "all"})


def test_the_setting_is_part_of_the_key_and_nothing_is_paid_without_it(monkeypatch):
    pytest.importorskip("numba.cuda", reason="compiles kernels")
    (plain, without), (checked, with_checks) = compiled(monkeypatch, "0"), compiled(monkeypatch, "1")
    assert plain != checked
    made = with_checks.compiled("sm_90a")
    assert VARIABLE not in without.compiled("sm_90a").ptx
    assert without.compiled("sm_90a").sites == ()
    assert f".weak .global .align 16 .b8 {VARIABLE}[32];" in made.ptx
    assert "trap;" in made.ptx
    assert made.local_bytes == 0
    line = pick._function.__code__.co_firstlineno + 2
    assert made.sites == (
        Site("pick", __file__, line, "load: tile index ({}) is outside where"),
        Site("pick", __file__, line, "gather: index ({}) is outside x"),
    )


def test_kernels_with_checks_are_kept(monkeypatch, tmp_path):
    pytest.importorskip("numba.cuda", reason="compiles kernels")
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    _, first = compiled(monkeypatch, "1")
    made = first.compiled("sm_90a")
    key, second = compiled(monkeypatch, "1")
    assert second.compiled("sm_90a") == made
    assert (first.compilations, second.compilations) == (1, 0)
    assert cache.load(key).sites == made.sites
    assert isinstance(made.sites[0], Site)


def test_no_code_of_the_record_changes_when_a_line_moves_but_the_key_does(monkeypatch):
    key, specialisation = compiled(monkeypatch, "1")
    monkeypatch.setattr(specialisation.bound.source.tree.body[0], "lineno", 7)
    assert specialisation.key("sm_90a") != key


def test_a_record(tmp_path):
    (tmp_path / "model.py").write_text("import tilekit\nt = tk.gather(x, i)\n")
    words = np.zeros(8 * WORDS, np.uint8)
    report = Report(words)
    report.add([Site("other", "other.py", 1, "nothing")])
    address, first = report.add([Site("pick", str(tmp_path / "model.py"), 2, "gather: index ({}, {}) is outside x")])
    assert address == words.__array_interface__["data"][0]
    assert first == 1
    assert report.message() is None
    record = words.view(np.int64)
    record[:FIRST_VALUE] = [1, 1, 3, 0, 2, 64]
    record[FIRST_VALUE : FIRST_VALUE + 2] = [-5, 70000]
    assert report.message() == (
        f"{tmp_path}/model.py:2: kernel pick, block (3, 0, 2): gather: index (-5, 70000) is outside x\n    t = tk.gather(x, i)"
    )
    assert stop_message() == report.message()
    record[:] = 0
    assert stop_message() is None


def test_the_record_is_written_before_the_kernel_stops(monkeypatch):
    pytest.importorskip("numba.cuda", reason="compiles kernels")
    _, specialisation = compiled(monkeypatch, "1")
    for block in re.findall(r"\{ \.reg \.pred p; \.reg \.b32 t; \.reg \.b64 a, s, z;.*", specialisation.compiled("sm_90a").ptx):
        assert re.search(r"@p exit;.*membar\.sys; mov\.u64 z, 1; st\.global\.b64 \[a\], z; membar\.sys; trap;", block)


RECORDS = []  # stay for the life of the process, as page-locked memory does


def test_the_driver_tells_a_module_where_the_record_is_and_an_error_says_what_it_holds():
    """With a stand-in for the driver's functions: what they are given, and what is made of the code of a fault."""
    _, bindings = fake_gpu()
    driver = cuda.CudaDriver(bindings, 0, False)
    host, variable = (ctypes.c_int64 * WORDS)(), (ctypes.c_int64 * 4)()
    RECORDS.append(host)
    bindings.cuMemHostAlloc = lambda nbytes, flags: (0, ctypes.addressof(host))
    bindings.cuLibraryGetGlobal = lambda library, name: (0, ctypes.addressof(variable), 32)
    bindings.cuMemcpyHtoD = lambda target, source, nbytes: (ctypes.memmove(target, source, nbytes), 0)[1:]
    function = driver.load(b"image", "pick")
    for _ in range(2):
        driver.watch(function, [Site("pick", "model.py", 12, "gather: index ({}) is outside x"), Site("", "", 0, "")])
    assert list(variable) == [ctypes.addressof(host), 2, 0, 0]
    assert "A kernel launched earlier failed" in str(failure(bindings, 719))
    host[:] = [1, 2, 5, 6, 7, 31, 99, 0, 0, 0]
    try:
        said = "model.py:12: kernel pick, block (5, 6, 7): gather: index (99) is outside x"
        assert said in str(failure(bindings, 719))
        assert failure(bindings, 719).lost
        assert said not in str(failure(bindings, 2)), "no fault of a kernel"
    finally:
        host[0] = 0
