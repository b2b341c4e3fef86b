"""The machine code of pipelined loops with vectors in their stages, and with second operands that threads hold."""

import importlib
import re
import sys

import pytest
from warpgroup_code import products

import tilekit as tk
from tilekit import api
from tilekit.compiler.codegen.compilation import Pipelines, compiling
from tilekit.compiler.codegen.types import TileType
from tilekit.compiler.layouts.conversion import wavefronts
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.layouts.mma import warpgroup_accumulator
from tilekit.compiler.target import of

BM, BN, BK = tk.generics("BM BN BK")


@tk.kernel
def held(y: tk.Out, a: tk.In, b: tk.In, row: tk.In, twice: tk.Const):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb, shift in tk.pipelined(a.tiles((BK, BM))[:, 0], b.tiles((BN, BM))[:, 0], row.tiles((BN,))[:], stages=2):
        made = tk.mma(ta, tb.transpose(), tk.zeros((BK, BN), tk.float32)) + shift[None, :]
        acc = tk.mma(ta.transpose(), made.astype(a.dtype), acc)
        if twice:
            acc = tk.mma(ta.transpose(), (made * 2).astype(a.dtype), acc)
    y.store(acc)


def compiled(target, count=1, rows=128):
    a, b = api.meta((rows * 16, 128), tk.bfloat16), api.meta((64 * 16, 128), tk.bfloat16)
    op = held(api.meta((128, 64), tk.float32).partition((128, 64)), a, b, api.meta((64 * 16,), tk.float32), count == 2)
    op = op.generics(BM=128, BN=64, BK=rows).num_warps(8)
    return op, op.compile(target=target)


@pytest.mark.parametrize("count", [1, 2])
def test_second_operands_that_threads_hold(count):
    """They are put where the turn before the last put them, so that one barrier is enough; elements change threads nowhere."""
    op, made = compiled("sm_90a", count)
    assert op.explain(target="sm_90a").pipelines[0].stages == 2
    turn = "A" + "H" * 7 + "G" + "[01]+" + ("A" + "H" * 7 + "G" + "[01]*") * count
    assert re.fullmatch(f"{turn}[01]*", products(made)), products(made)
    calculating = made.sass.split("USETMAXREG.TRY_ALLOC")[-1]
    loop = calculating.split("WARPGROUP.ARRIVE", 1)[1].rsplit("HGMMA", 1)[0]
    assert len(re.findall(r"\bBAR\.SYNC", loop)) == count
    assert len(re.findall(r"\bSTS\b", loop)) == count * 128 * 64 // 256 // 2, "two elements at a time"
    assert "HMMA" not in made.sass.replace("HGMMA", "")
    assert made.local_bytes == 0


def test_vectors_come_with_the_other_tiles():
    """By the accelerator, 256 bytes at once; each thread reads two neighbours where it needs them, without a barrier."""
    _, made = compiled("sm_90a")
    (vector,) = (m for m in made.maps if m.argument == 3)
    assert (vector.box, vector.swizzle) == ((64,), 0)
    assert made.sass.count("UTMALDG.1D") >= 1
    assert len(re.findall(r"\bLDS\.64\b", made.sass)) == 64 // 8
    assert not re.search(r"\bLDG\b", made.sass)


def test_vectors_are_copied_on_other_gpus():
    _, made = compiled("sm_80", rows=64)
    assert re.search(r"cp\.async\.c[ga]\.shared\.global\S* \[\S+\], \[\S+\], 16", made.ptx)
    assert "UTMALDG" not in made.sass


def test_what_is_shared_memory_for_second_operands_is_no_stage():
    """Without a number of stages, as many fit as the places of such operands leave room for."""

    @tk.kernel
    def kernel(y: tk.Out, a: tk.In, b: tk.In):
        acc = tk.zeros((128, 128), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((128, 128))[:, 0], b.tiles((128, 128))[:, 0]):
            acc = tk.mma(ta.transpose(), tb * 2, acc)
        y.store(acc)

    y, x = api.meta((128, 128), tk.float32).partition((128, 128)), api.meta((2048, 128), tk.bfloat16)
    op = kernel(y, x, x).num_warps(8)
    (ring,), made = op.explain(target="sm_90a").pipelines, op.compile(target="sm_90a")
    assert ring.stages == 2, "of 64 KB, beside two places of 32"
    assert made.dynamic_shared_bytes + made.shared_bytes <= 227 * 1024
    assert "HGMMA" in made.sass


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("shape", [(128, 64), (64, 64), (64, 128), (64, 256), (128, 32), (64, 16)], ids=str)
def test_putting_operands_meets_no_bank_conflicts(shape, warps):
    """Of what a product made, two elements of a lane at a time: a warp writes 128 bytes, to all banks."""
    from tilekit.compiler.codegen.convert_layout import InShared
    from tilekit.compiler.nvidia.shared_operands import parked

    layout = warpgroup_accumulator(shape, warps)
    config = Config(warps, 8)
    with compiling(config, target=of((9, 0)), pipelines=Pipelines({}, of((9, 0)), 1, producers=128, shared=227 * 1024)):
        lies = parked(TileType(tk.bfloat16, layout, config))
    assert lies.memory == shape
    way = InShared(tk.bfloat16, lies.swizzle(), layout)
    assert len(way.swizzle.shared) == 1
    assert wavefronts(way.swizzle, layout, 2) == 1


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("shape", [(32, 64), (32, 128), (32, 256), (64, 128), (16, 64), (16, 256)], ids=str)
def test_turning_a_second_operand_over_meets_no_bank_conflicts(shape, warps):
    """16 bytes at a time out of its stage, in four wavefronts a warp, and an element at a time to where its k is contiguous: two
    lanes to a bank, where there are 16 of k."""
    from tilekit.compiler.codegen.convert_layout import InShared
    from tilekit.compiler.nvidia.shared_operands import turned_over
    from tilekit.compiler.nvidia.staged import StagedType

    staged = StagedType(tk.float32, shape, (0, 1), Config(warps, 4))
    layout, lies = turned_over(staged)
    assert (lies.memory, lies.shape, lies.span) == (shape[::-1], shape, min(128, 4 * shape[0]))
    threads = [layout.thread_coordinate(thread) for thread in range(32 * warps)]
    held = {(i | k, j | n) for i, j in threads for k, n in layout.coordinates()}
    assert len(held) == shape[0] * shape[1] == 32 * warps * layout.num_registers, "each element once"
    read, written = InShared(tk.float32, staged.swizzle(), layout), InShared(tk.float32, lies.swizzle(), layout)
    assert (len(read.swizzle.shared), len(written.swizzle.shared)) == (2, 0)
    assert (wavefronts(read.swizzle, layout, 4), wavefronts(written.swizzle, layout, 4)) == (4, 1 if shape[0] >= 32 else 2)


@tk.kernel
def rounded(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), tk.float32)
    for k in range(tk.num_tiles(a, 1, (128, 32))):
        ta, tb = tk.load(a, (tk.bid(0), k), (128, 32)), tk.load(b, (k, tk.bid(1)), (32, 128))
        acc = tk.mma(ta, tb, acc, precision="tf32")
    y.store(acc)


def test_a_second_operand_of_float32_is_turned_over():
    a = api.meta((512, 512))
    made = rounded(a.partition((128, 128)), a, a).num_warps(8).compile(target="sm_90a")
    (loop,) = re.findall(r"WARPGROUP.ARRIVE.*?WARPGROUP.DEPBAR", made.sass, re.S)
    assert len(re.findall(r"\bHGMMA.64x128x8.F32.TF32", loop)) == 4
    counts = [len(re.findall(rf"\b{name}\b", made.sass)) for name in ("LDS.128", "STS", "HMMA", "LDL")]
    assert counts == [4, 16, 0, 0], "of 4096 elements each of 256 threads takes 16"


@tk.kernel
def sometimes(y: tk.Out, a: tk.In, b: tk.In):
    acc, k = tk.zeros((128, 64), tk.float32), 0
    for ta, tb in tk.pipelined(a.tiles((64, 128))[:, 0], b.tiles((64, 64))[:, 0], stages=3):
        k = k + 1
        more = tk.mma(ta.transpose(), tb * 2, tk.zeros((128, 64), tk.float32)) if k % 2 else tk.zeros((128, 64), tk.float32)
        acc += more
    y.store(acc)


@tk.kernel
def waited_for_sometimes(y: tk.Out, a: tk.In, b: tk.In):
    acc, k = tk.zeros((128, 64), tk.float32), 0
    for ta, tb in tk.pipelined(a.tiles((64, 128))[:, 0], b.tiles((64, 64))[:, 0], stages=3):
        k = k + 1
        made = tk.mma(ta.transpose(), tb, tk.zeros((128, 64), tk.float32))
        acc += made * 2 if k % 2 else tk.zeros((128, 64), tk.float32)
    y.store(acc)


CALLED = """
import tilekit as tk
@tk.function
def added(acc, ta, tb):
    for n in range(4):
        acc = tk.mma(ta.transpose(), tb + n, acc)
    return acc
"""
CALLS = """import tilekit as tk; from its_functions import added
@tk.kernel
def calls(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 64), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 128))[:, 0], b.tiles((64, 64))[:, 0], stages=3):
        acc = 1.0 * added(acc, ta, tb)
    y.store(acc)
"""
ON_ONE_LINE = """import tilekit as tk
@tk.kernel
def calls(y: tk.Out, a: tk.In, b: tk.In):
    acc, k, nothing = tk.zeros((128, 64), tk.float32), 0, tk.zeros((128, 64), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 128))[:, 0], b.tiles((64, 64))[:, 0], stages=3):
        k = k + 1; more = tk.mma(ta.transpose(), tb * 2, nothing) if k % 2 else nothing
        acc += more
    y.store(acc)
"""


def ptx_of(kernel):
    a, b = api.meta((1024, 128), tk.bfloat16), api.meta((1024, 64), tk.bfloat16)
    return kernel(api.meta((128, 64), tk.float32).partition((128, 64)), a, b).num_warps(8).compile(target="sm_90a").ptx


@pytest.mark.parametrize("which", ["an expression", "behind another statement", "a function"])
def test_operands_that_may_not_be_put_once_a_turn_have_barriers_on_both_sides(which, tmp_path, monkeypatch):
    """Lines of a function that have the numbers of the loop's are others; and a part of an expression may not be computed."""
    kernel = sometimes
    if which != "an expression":
        monkeypatch.syspath_prepend(tmp_path)
        for name, text in (("its_functions", CALLED), ("its_kernel", CALLS if which == "a function" else ON_ONE_LINE)):
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        kernel = importlib.import_module("its_kernel").calls
    ptx = ptx_of(kernel)
    done = re.findall(r"bar\.sync 1|st\.shared|wgmma\.mma", ptx)
    names = "".join({"b": "B", "s": "S", "w": "W"}[what[0]] for what in done)
    assert re.match(r"(BS+BW)+", names) and "W" not in re.sub(r"(BS+BW+)", "", names), names


def test_a_product_that_is_waited_for_in_some_turns_is_under_way_when_a_turn_ends():
    loop = ptx_of(waited_for_sometimes).split("wgmma.mma_async")[-1]
    waits = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)|(mbarrier\.arrive\.shared)", loop)
    assert waits[:3] == [("0", ""), ("1", ""), ("", "mbarrier.arrive.shared")], waits
