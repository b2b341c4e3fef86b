"""What the kernels that communicate become for sm_90a: how they tell and wait, how wide they read and write, what multiplies."""

from __future__ import annotations

import re

import pytest

import tilekit as tk
from tilekit import api
from tilekit.kernels._collective import all_reduce as reducing
from tilekit.kernels._collective import product_kernels
from tilekit.kernels._collective.signals import LINE, lanes_for

ANNOUNCES = "st.release.sys.global.b64"
LOOKS = "ld.acquire.sys.global.b64"


def flags(*shape):
    return api.meta(shape, tk.int64).scattered()


def compiled(op):
    op.consumed()
    return op.compile(target="sm_90a")


def accesses(op, tensor):
    """The widths, in bits, of the loads and stores of a tensor, as the compiler tells them."""
    return {
        access.bits for access in op.explain("sm_90a").accesses if access.parameter == tensor and access.kind in ("load", "store")
    }


def reduction(size, dtype, two_shot, count=1 << 16, tile=4096):
    blocks, room = 64, 1 << 14
    y, x = api.meta((count,), dtype).scattered(), api.meta((count,), dtype)
    stage = [api.meta((size, 2, blocks, room), dtype).scattered() for _ in range(1 + two_shot)]
    words = [flags(size, size, blocks * LINE) for _ in range(1 + two_shot)]
    kernel = reducing._two_shot if two_shot else reducing._one_shot
    op = kernel(y, x, *stage, *words, flags(blocks), 1, size, lanes_for(size), "sum")
    op.consumed()
    return op.generics(T=tile).num_warps(8).grid(blocks)


@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("dtype", [tk.float32, tk.bfloat16], ids=lambda dtype: dtype.name)
def test_reductions_tell_and_wait_by_the_system(size, dtype, two_shot):
    op = reduction(size, dtype, two_shot)
    kernel = compiled(op)
    assert kernel.local_bytes == 0
    assert ANNOUNCES in kernel.ptx and LOOKS in kernel.ptx
    # A thread has one member's word at most. To tell is to write: nobody waits for what the word was.
    assert len(re.findall(r"STG\S*\.64\.STRONG\.SYS", kernel.sass)) == 1 + two_shot
    assert len(re.findall(r"\bATOM", kernel.sass)) == 1, "the calls are counted"
    assert len(re.findall(r"LDG\S*\.64\.STRONG\.SYS", kernel.sass)) == 1 + two_shot, "to look keeps nobody from writing"
    assert len(re.findall(r"MEMBAR\S*\.SYS", kernel.sass)) == 1 + two_shot
    assert "CCTL.IVALL" in kernel.sass, "what the first-level cache has of others' memory is old"
    for tensor in ("stage", "x", "y", *(["sums"] if two_shot else [])):
        assert accesses(op, tensor) == {128}, tensor
    assert "ld.global.nc" not in kernel.ptx.replace("ld.global.nc.v4", ""), "only `x`, which nobody writes, may be read so"


def test_tails_are_read_and_written_wide_but_for_the_last_tile():
    op = reduction(2, tk.bfloat16, False, count=65533)
    assert accesses(op, "x") == accesses(op, "y") == {128}
    assert accesses(op, "stage") == {128}
    assert compiled(op).local_bytes == 0


def arriving(size, dtype=tk.bfloat16):
    m, k, n = 8192 // size, 8192, 8192 // size
    op = product_kernels.arriving(
        api.meta((size, m, n), dtype).scattered(), api.meta((m, k), dtype), api.meta((size, m, k), dtype),
        api.meta((k, n), dtype), flags(size), api.meta((1,), tk.int64), 1, m // 128, n // 256, size, tk.float32, "ieee", None,
    )  # fmt: skip
    op.consumed()
    return op.generics(BM=128, BN=256, BK=64).num_warps(8).grid(132)


def staying(op):
    op.consumed()
    return op.generics(BM=128, BN=256, BK=64).num_warps(8)


def mapped(target):
    batch = (1,) * (len(target.shape) - 2)
    return target.partition((*batch, 128, 256)).map(group=(*batch, 8, 8), num_blocks=132, cluster=(*batch, 2, 1))


def leaving(size, dtype=tk.bfloat16):
    m, k, n = 8192 // size, 8192 // size, 8192
    return staying(product_kernels.leaving(
        mapped(api.meta((size - 1, m, n), dtype)), api.meta((size, m, k), dtype), api.meta((k, n), dtype), flags((size - 1) * 4),
        1, 8, 4, size, tk.float32, "ieee", None,
    ))  # fmt: skip


def adding(size, dtype=tk.bfloat16):
    m, k, n = 8192 // size, 8192 // size, 8192
    return staying(product_kernels.adding(
        mapped(api.meta((m, n), dtype)), api.meta((m, k), dtype), api.meta((k, n), dtype),
        api.meta((size, m, n), dtype).scattered(), flags(size, size, 4), api.meta((1,), tk.int64), 1, 8, size, lanes_for(size),
        tk.float32, "ieee", None,
    ))  # fmt: skip


@pytest.mark.parametrize("make", [arriving, leaving, adding])
@pytest.mark.parametrize("size", [2, 8])
def test_products_are_those_of_the_tensor_cores(make, size):
    """The same pipeline as that of `kernels.gemm`, whose stages the accelerator fills."""
    op = make(size)
    kernel, explained = compiled(op), op.explain("sm_90a")
    loops = explained.pipelines
    assert len(loops) == (2 if make is arriving else 1)
    assert all(loop.stages == 4 and all("by TMA" in tile for tile in loop.tiles) for loop in loops)
    assert not explained.serialised
    assert kernel.local_bytes == kernel.spilled_bytes == 0
    assert len(re.findall(r"\bHGMMA\b", kernel.sass)) == 4 * len(loops)
    assert ("MULTICAST" in kernel.sass) == (make is not arriving), "pairs of blocks load a tile of `b` together"
    assert len(re.findall(r"\bSTG\S*\.128\b", kernel.sass)) >= 16
    assert not re.search(r"\bSTG\.E(\.U?16)?\s", kernel.sass)


def test_who_has_tiles_brought_waits_until_they_have_come():
    """Not only the threads that multiply: the others would have brought what was there before."""
    kernel = compiled(arriving(2))
    brings = kernel.ptx.index("cp.async.bulk.tensor.3d")  # what is one's own is of rank 2
    assert kernel.ptx.count(LOOKS) == 2
    assert "fence.proxy.async.global" in kernel.ptx[kernel.ptx.rindex(LOOKS, 0, brings) : brings]


def test_what_leaves_is_counted_and_what_comes_is_waited_for():
    assert re.search(r"(red|atom)\.release\.sys\.global\.add\.u64", compiled(leaving(2)).ptx)
    added = compiled(adding(2)).ptx
    assert LOOKS in added
    assert "fence.proxy.async.global" not in added, "whoever loads ahead need not wait for what is added at the end"


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_other_gpus(target):
    for op in (arriving(2), leaving(2), adding(2)):
        assert op.compile(target=target).cubin
    assert reduction(4, tk.float16, True).compile(target=target).cubin
