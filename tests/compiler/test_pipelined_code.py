"""The machine code of loops over `tk.pipelined`: who loads, how products follow each other, and why some load as they go."""

import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import nvjitlink
from warpgroup_code import products

import tilekit as tk
from tilekit import api
from tilekit.compiler import build
from tilekit.compiler.codegen.types import TileType
from tilekit.compiler.layouts.conversion import wavefronts
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.compiler.layouts.mma import warpgroup_accumulator
from tilekit.compiler.nvidia.wgmma_types import OperandType
from tilekit.compiler.passes.rings import Unfit

BM, BN, BK = tk.generics("BM BN BK")
MOST_SHARED = 227 * 1024


@tk.kernel
def gemm(c: tk.Out[BM, BN], a: tk.In[-1, -1], b: tk.In[-1, -1], stages: tk.Const):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)], stages=stages):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel
def turned(c: tk.Out[BM, BN], a: tk.In[-1, -1], b: tk.In[-1, -1]):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BK, BM))[:, tk.bid(0)], b.tiles((BN, BK))[tk.bid(1), :]):
        acc = tk.mma(ta.transpose(), tk.transpose(tb), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel
def persistent(c: tk.Out, a: tk.In, b: tk.In):
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros((BM, BN), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
            acc = tk.mma(ta, tb, acc)
        c.store(acc.astype(c.dtype), tile)


@tk.kernel
def persistent_turned(c: tk.Out, a: tk.In, b: tk.In):
    for tile in c.tiles():
        acc = tk.zeros((BM, BN), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((BK, BM))[:, tile.index[0]], b.tiles((BN, BK))[tile.index[1], :]):
            acc = tk.mma(ta.transpose(), tb.transpose(), acc)
        c.store(acc.astype(c.dtype), tile)


def meta(*shape, dtype=tk.bfloat16):
    return api.meta(shape, dtype)


def launch(kernel, tile, warps, *, dtype=tk.bfloat16, stages=None, cluster=None):
    c = meta(4096, 4096, dtype=dtype).partition(tile[:2])
    c = c.map(num_blocks=132, cluster=cluster) if kernel in (persistent, persistent_turned) else c
    more = (stages,) if kernel is gemm else ()
    op = kernel(c, meta(4096, 4096, dtype=dtype), meta(4096, 4096, dtype=dtype), *more)
    return op.generics(BM=tile[0], BN=tile[1], BK=tile[2]).num_warps(warps)


SHAPES = [
    ((64, 64, 64), 4),
    ((64, 128, 64), 4),
    ((64, 256, 128), 4),
    ((128, 128, 64), 8),
    ((128, 256, 64), 8),
    ((256, 128, 64), 8),
    ((256, 128, 64), 16),
]


@pytest.mark.parametrize(("tile", "warps"), SHAPES, ids=str)
@pytest.mark.parametrize("kernel", [gemm, turned, persistent], ids=lambda kernel: kernel.name)
def test_products_follow_each_other(kernel, tile, warps):
    """A turn has 4 instructions for 64 of k and 64 rows; one group stays under way, and ptxas does not wait for it."""
    compiled = launch(kernel, tile, warps).compile(target="sm_90a")
    rows = tile[0] // min(warps // 4, tile[0] // 64) // 64
    turn = "A" + "H" * (4 * (tile[2] // 64) * rows - 1) + "G1"
    assert re.fullmatch(f"(?:{turn})+0+", products(compiled)), products(compiled)
    calculating = compiled.sass.split("USETMAXREG.TRY_ALLOC")[-1]  # behind it, where registers are dealt out anew
    assert "LDL" not in calculating
    assert "STL" not in calculating
    assert "HMMA" not in compiled.sass.replace("HGMMA", "")
    assert "LDSM" not in compiled.sass


@tk.kernel(num_warps=8)
def gradients(y: tk.Out, k: tk.In, q: tk.In, stages: tk.Const):
    for tk_ in tk.pipelined(k.tiles((128, 64))[0:1, 0], stages=1):
        acc = tk.zeros((128, 64), tk.float32)
        for tq in tk.pipelined(q.tiles((64, 64))[:, 0], stages=stages):
            p = tk.exp2(tk.mma(tk_, tq.transpose(), tk.zeros((128, 64), tk.float32)))
            acc = tk.mma(p.astype(q.dtype), tq, acc)
        y.store(acc)


@pytest.mark.parametrize(("stages", "end"), [(2, "wgmma.wait_group.sync.aligned 0"), (3, "mbarrier.arrive")])
def test_one_of_two_stages_is_loaded_ahead(stages, end):
    """Where threads wait in a turn, the last product stays under way in the next one only if there are more stages than two."""
    if stages == 3 and nvjitlink.version() == (13, 0):
        pytest.skip("the ptxas of CUDA 13.0 serialises products that stay under way here (C7513): it is compiled otherwise")
    op = gradients(meta(128, 64, dtype=tk.float32).partition((128, 64)), meta(128, 64), meta(8192, 64), stages)
    last = op.compile(target="sm_90a").ptx.rsplit("wgmma.commit_group", 1)[1]
    assert re.search(r"wgmma\.wait_group\.sync\.aligned \d|mbarrier\.arrive", last)[0] == end


@tk.kernel(num_warps=4)
def once(y: tk.Out, x: tk.In, some: int):
    i, s = tk.bid(0), tk.zeros((64, 64), tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))[i, i : i + 1], stages=1):
        s += t
    y.store(s)


@tk.kernel(num_warps=4)
def several(y: tk.Out, x: tk.In, some: int):
    i, s = tk.bid(0), tk.zeros((64, 64), tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))[i, i : i + some], stages=1):
        s += t
    y.store(s)


FIRST = slice(0, 2)


@tk.kernel(num_warps=4)
def elsewhere(y: tk.Out, x: tk.In, some: int):
    i, s = tk.bid(0), tk.zeros((64, 64), tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))[i, FIRST], stages=1):
        s += t
    y.store(s)


@tk.kernel(num_warps=4)
def beside(y: tk.Out, x: tk.In, some: int):
    i, s = tk.bid(0), tk.zeros((64, 64), tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))[FIRST, i : i + 1], stages=1):
        s += t
    y.store(s)


def test_a_slice_that_is_written_elsewhere_may_have_several_tiles():
    y, x = (meta(256, n, dtype=tk.float32) for n in (64, 256))
    (ring,) = elsewhere(y.partition((64, 64)), x, 2).explain("sm_90a").pipelines
    assert ring.stages == 1
    (ring,) = beside(y.partition((64, 64)), x, 2).explain("sm_90a").pipelines
    assert ring.stages == 1


@pytest.mark.parametrize(("kernel", "loops"), [(once, 0), (several, 2), (elsewhere, 2)], ids=["once", "several", "elsewhere"])
def test_one_turn_is_no_loop(kernel, loops):
    """Neither of the threads that load nor of the others: `x[i : i + 1]` is one tile at most."""
    op = kernel(meta(256, 64, dtype=tk.float32).partition((64, 64)), meta(256, 256, dtype=tk.float32), 2)
    ptx = op.compile(target="sm_90a").ptx
    assert "cp.async.bulk.tensor" in ptx
    labels = {found[1]: found.start() for found in re.finditer(r"^(\$L\w+):", ptx, re.M)}
    back = [found for found in re.finditer(r"bra(?:\.uni)?\s+(\$L\w+);", ptx) if labels[found[1]] < found.start()]
    assert len(back) == loops, ptx


@pytest.mark.parametrize(
    ("tile", "warps", "columns", "dealt"),
    [
        ((128, 256, 64), 8, 4096, [232, 40]),
        ((256, 128, 64), 16, 4096, [112, 32]),
        ((128, 256, 64), 8, 4090, [216, 72]),  # which threads copy
        ((256, 128, 64), 16, 4090, [104, 64]),
        ((64, 128, 64), 4, 4096, []),
    ],
    ids=str,
)
def test_registers_are_dealt_out_anew(tile, warps, columns, dealt):
    """Those that calculate get what those that load do not need: all together have no more than they began with."""
    c, a, b = meta(4096, columns), meta(4096, columns), meta(columns, columns)
    op = gemm(c.partition(tile[:2]), a, b, None).generics(BM=tile[0], BN=tile[1], BK=tile[2]).num_warps(warps)
    compiled = op.compile(target="sm_90a")
    found = [int(n) for way in ("inc", "dec") for n in re.findall(rf"setmaxnreg\.{way}\.sync\.aligned\.u32 (\d+);", compiled.ptx)]
    assert found == dealt
    assert not re.search(r"\b(LDL|STL)\b", compiled.sass)
    if found:
        assert found[0] * 32 * warps + found[1] * 128 <= compiled.registers * compiled.block[0]


def test_who_loads():
    """One thread of four more warps has the tiles brought; those that calculate wait at barriers, and load nothing."""
    compiled = launch(gemm, (128, 256, 64), 8).compile(target="sm_90a")
    assert compiled.block == ((8 + 4) * 32, 1, 1)
    assert [m.box for m in compiled.maps] == [(128, 64), (64, 64)]
    assert len(compiled.maps) == 2
    assert [m.argument for m in compiled.maps] == [1, 2]
    assert compiled.sass.count("UTMALDG.2D") % (1 + 256 // 64) == 0
    assert "BRA.U.ANY" not in compiled.sass, "each copy in a loop over the lanes of a warp"
    assert "SYNCS.PHASECHK" in compiled.sass
    assert not re.search(r"\bLDG", compiled.sass)
    assert not re.search(r"\bLDS", compiled.sass)
    assert "mbarrier.try_wait" in compiled.ptx
    assert compiled.dynamic_shared_bytes + compiled.shared_bytes <= MOST_SHARED


@pytest.mark.parametrize(
    ("tile", "wanted", "got"), [((64, 64, 64), None, 4), ((128, 256, 64), None, 4), ((128, 256, 128), None, 2)]
)
def test_as_many_stages_as_fit(tile, wanted, got):
    op = launch(gemm, tile, 4 * tile[0] // 64, stages=wanted)
    (ring,) = op.explain("sm_90a").pipelines
    each = 2 * (tile[0] * tile[2] + tile[2] * tile[1])
    assert (ring.stages, ring.nbytes, ring.reason) == (got, got * each, "")
    compiled = op.compile(target="sm_90a")
    assert compiled.dynamic_shared_bytes + compiled.shared_bytes <= MOST_SHARED


@pytest.mark.parametrize("stages", [2, 3, 8, 13])
def test_the_stages_that_are_asked_for(stages):
    (ring,) = launch(gemm, (64, 64, 64), 4, stages=stages).explain("sm_90a").pipelines
    assert ring.stages == stages


# ------------------------------------------------------------------------------------------------------------------- clusters

ALONE = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("target", "depth", "stages"), [("sm_90a", 64, 4), ("sm_90a", 128, 2), ("sm_80", 64, 3), ("sm_80", 128, 1)]
)
def test_two_products_in_a_row_have_all_stages_each(target, depth, stages):
    """As many, each of the size of the larger tiles."""

    def kernel(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, e: tk.In):
        acc = tk.zeros((128, 256), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 256))[:, tk.bid(1)]):
            acc = tk.mma(ta, tb, acc)
        for td, te in tk.pipelined(d.tiles((128, depth))[tk.bid(0), :], e.tiles((depth, 256))[:, tk.bid(1)]):
            acc = tk.mma(td, te, acc)
        c.store(acc.astype(c.dtype))

    op = tk.kernel(num_warps=8)(kernel)(meta(4096, 4096).partition((128, 256)), *[meta(4096, 4096)] * 4)
    explained = op.explain(target)
    assert [loop.stages for loop in explained.pipelines] == [stages] * 2
    assert {loop.nbytes for loop in explained.pipelines} == {stages * max(64, depth) * (128 + 256) * 2}
    assert op.compile(target).dynamic_shared_bytes < stages * max(64, depth) * (128 + 256) * 2 + 8192


def copies(kernel):
    """The loads, in the order of their streams: `b` for one that comes to the block, `c` to its cluster."""
    found = re.findall(rf"{re.escape(ALONE)}(\.multicast::cluster)?", kernel.ptx)
    return "".join("c" if shared else "b" for shared in found)


# Of each case: the loads of a turn, the boxes of `a` and `b`.
CLUSTERS = {
    "b by panels": (persistent, (2, 1), "b" + "cc", [(128, 64), (64, 64)]),
    "a by rows": (persistent, (1, 2), "c" + "bbbb", [(64, 64), (64, 64)]),
    "b by rows": (persistent_turned, (2, 1), "bb" + "c", [(64, 64), (128, 64)]),
    "a by panels": (persistent_turned, (1, 2), "c" + "b", [(64, 64), (256, 64), (256, 64)]),  # one of the last rows of `b`
    "b in fours": (persistent, (4, 1), "b" + "c", [(128, 64), (64, 64)]),
    "b's rows in fours": (persistent_turned, (4, 1), "bb" + "c", [(64, 64), (64, 64)]),
    "both": (persistent, (2, 2), "c" + "cc", [(64, 64), (64, 64)]),
    "a in fours": (persistent, (1, 4), "c" + "bbbb", [(32, 64), (64, 64)]),
}


@pytest.mark.parametrize("case", CLUSTERS)
def test_blocks_of_a_cluster_load_a_part_each(case):
    kernel, cluster, loads, boxes = CLUSTERS[case]
    tile, blocks = (128, 256, 64), cluster[0] * cluster[1]
    compiled = launch(kernel, tile, 8, cluster=cluster).compile(target="sm_90a")
    alone = launch(kernel, tile, 8).compile(target="sm_90a")
    assert re.fullmatch(f"(?:{loads})+", copies(compiled))
    assert [m.box for m in compiled.maps] == boxes
    assert f".reqnctapercluster {blocks}, 1, 1" in compiled.ptx
    together = re.compile(rf"mov\.[bu]32\s+%r\d+, {2**blocks - 1};")
    assert (together.search(compiled.ptx) is None) == (cluster == (2, 2)), "a block has one operand in common with two"
    assert re.search(r"UTMALDG\.2D\.MULTICAST", compiled.sass)
    # Whoever has read a stage tells all who load into it: a warp arrives at as many barriers as there are blocks.
    barriers = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (\d+);", compiled.ptx)
    assert set(barriers) == {"1", str(8 * blocks)}
    assert "mapa.shared::cluster.u32" in compiled.ptx
    # Nobody begins before the others are there; nor is a block gone before all have told it that they read its stages.
    assert compiled.ptx.count("barrier.cluster.wait.acquire") == 1
    waits, waits_alone = (kernel.ptx.count("mbarrier.try_wait") for kernel in (compiled, alone))
    assert waits - waits_alone == len(barriers) // 2
    assert not re.search("cluster_ctarank|multicast|reqncta|barrier.cluster|mapa", alone.ptx)
    assert (compiled.registers, compiled.block, compiled.dynamic_shared_bytes) == (168, (384, 1, 1), alone.dynamic_shared_bytes)
    calculating = compiled.sass.split("USETMAXREG.TRY_ALLOC")[-1]
    assert "LDL" not in calculating
    assert "STL" not in calculating
    assert products(compiled) == products(alone)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_has_a_ring_may_begin_early(target):
    """If its blocks stay. It waits when its barriers are there, before anybody has a role; others pay for no wait."""
    made = launch(persistent, (64, 64, 64), 4).compile(target=target)
    assert made.starts_early == (target == "sm_90a")
    if made.starts_early:
        order = re.findall(r"griddepcontrol\.\w+|mbarrier\.init|bar\.sync|cp\.async\.bulk", made.ptx)
        assert [what for what, _ in itertools.groupby(order)][:5] == [
            "griddepcontrol.launch_dependents", "mbarrier.init", "bar.sync", "griddepcontrol.wait", "cp.async.bulk"
        ]  # fmt: skip
    loads = plain_copy(meta(64, 64).partition((64, 64)), meta(64, 64))
    for other in (loads, launch(gemm, (64, 64, 64), 4)):
        assert "griddepcontrol" not in other.compile(target=target).ptx


@tk.kernel
def plain_copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@pytest.mark.parametrize("cluster", [(8, 1), (2, 1)])
def test_clusters_that_share_nothing_are_none(cluster):
    """132 blocks are no clusters of 8; sm_80 has none."""
    op = launch(persistent, (128, 256, 64), 8, cluster=cluster)
    compiled = op.compile(target="sm_80" if cluster == (2, 1) else "sm_90a")
    assert "cluster_ctarank" not in compiled.ptx
    assert "reqnctapercluster" not in compiled.ptx


# ------------------------------------------------------------------------------------------------------ products and a softmax


@tk.kernel
def attention(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    """The scores of one turn are under way while the softmax of the turn before is multiplied by its values."""
    h, i = tk.bid(0), tk.bid(1)
    n = tk.cdiv(k.shape[1], BN)
    query = tk.load(q, (h, i, 0), (1, BM, BK)).reshape((BM, BK))
    acc, scores = tk.zeros((BM, BK), tk.float32), tk.zeros((BM, BN), tk.float32)
    for first in tk.pipelined(k.tiles((1, BN, BK))[h, 0:1, 0], stages=1):
        scores = tk.mma(query, first.reshape((BN, BK)).transpose(), scores)
    most = tk.max(scores, 1, keepdims=True) * scale
    p32 = tk.exp2(tk.fma(scores, scale, -most), flush_to_zero=True)
    total = tk.sum(p32, 1, keepdims=True)
    p = p32.astype(v.dtype)
    for key, value in tk.pipelined(k.tiles((1, BN, BK))[h, 1:n, 0], v.tiles((1, BN, BK))[h, 0 : n - 1, 0], stages=2):
        scores = tk.mma(query, key.reshape((BN, BK)).transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(p, value.reshape((BN, BK)), acc)
        higher = tk.maximum(most, tk.max(scores, 1, keepdims=True) * scale)
        p32 = tk.exp2(tk.fma(scores, scale, -higher), flush_to_zero=True)
        shrink = tk.exp2(most - higher, flush_to_zero=True)
        total = tk.fma(total, shrink, tk.sum(p32, 1, keepdims=True))
        most = higher
        acc = acc * shrink
        p = p32.astype(v.dtype)
    for value in tk.pipelined(v.tiles((1, BN, BK))[h, n - 1 : n, 0], stages=1):
        acc = tk.mma(p, value.reshape((BN, BK)), acc)
    o.store((acc * (1.0 / total)).astype(o.dtype).reshape((1, BM, BK)))


def of_attention(queries, keys, depth, dtype=tk.bfloat16):
    x = meta(32, 8192, depth, dtype=dtype)
    op = attention(x.partition((1, queries, depth)), x, x, x, 1.0).generics(BM=queries, BN=keys, BK=depth)
    return op.num_warps(queries // 16)


def turn_of(letters):
    """What the loop with two products does, of the whole."""
    (found,) = re.findall(r"A(?:H+)GA(?:H+)G\d\d?", letters)
    return found


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float16], ids=str)
@pytest.mark.parametrize(("queries", "keys", "depth"), [(128, 128, 128), (128, 128, 64), (128, 64, 128)])
def test_a_product_stays_under_way_until_it_is_needed(queries, keys, depth, dtype):
    """Scores are waited for with the other product under way; the softmax of these comes between that and its own wait."""
    compiled = of_attention(queries, keys, depth, dtype).compile(target="sm_90a")
    letters = products(compiled)
    by_scores, by_values = "H" * (depth // 16 - 1), "H" * (keys // 16 - 1)
    turn = f"A{by_scores}GA{by_values}G10"
    assert letters.count("1") == 1
    assert turn_of(letters) == turn
    before, after = letters.split(turn)
    assert re.fullmatch(f"A{by_scores}G0+", before), before
    assert re.fullmatch(f"0*(?:A{by_values}G0)+0*", after), after
    calculating = compiled.sass.split("USETMAXREG.TRY_ALLOC")[-1]
    between = calculating.split("gsb0, 0x1")[1].split("gsb0, 0x0")[0]
    assert "FMNMX" in between, "maxima are computed while the second product runs"
    assert "LDL" not in calculating
    assert "STL" not in calculating
    assert compiled.registers == 168
    assert "HMMA" not in compiled.sass.replace("HGMMA", "")
    assert "LDSM" not in calculating.partition("HGMMA")[2], "the query comes into registers once"


@pytest.mark.parametrize("keys", [64, 128])
def test_a_division_serialises_no_products(keys):
    """Of four warps, too, among which registers are not dealt out anew."""
    letters = products(of_attention(64, keys, 64).compile(target="sm_90a"))
    assert turn_of(letters) == "A" + "H" * 3 + "GA" + "H" * (keys // 16 - 1) + "G10"


def test_an_operand_may_be_made_anew_before_its_product_is_needed():
    @tk.kernel
    def kernel(y: tk.Out, a: tk.In, b: tk.In, c: tk.In):
        p = query = tk.load(a, (0, 0), (128, 64))
        acc = tk.zeros((128, 64), tk.float32)
        for tb, tc in tk.pipelined(b.tiles((64, 64))[0, :], c.tiles((64, 64))[:, 0], stages=2):
            scores = tk.mma(query, tb, tk.zeros((128, 64), tk.float32))
            acc = tk.mma(p, tc, acc)
            p = scores.astype(a.dtype)
            acc = acc * 0.5
        y.store(acc)

    op = kernel(meta(128, 64, dtype=tk.float32).partition((128, 64)), meta(128, 64), meta(64, 640), meta(640, 64))
    assert "AHHHGAHHHG1" in products(op.num_warps(8).compile(target="sm_90a"))


def test_an_operand_that_is_made_anew_later_is_one_from_the_start():
    """What begins as the operand of other products; on some Pythons the two did not unify, and the kernel had no ring."""
    layout = warpgroup_accumulator((128, 64), 8)
    operand = OperandType.of_tile(TileType(tk.bfloat16, layout, Config(num_warps=8, vec=8)))
    renewed = OperandType.of_tile(operand, renewed=True)
    assert (operand.renewed, renewed.renewed, renewed.materialized) == (False, True, operand.materialized)
    assert OperandType.of_tile(renewed) == renewed


def test_a_kernel_that_fails_with_rings_says_so(monkeypatch, caplog):
    """It is compiled as it is written: slower, which is a defect of the compiler's, and no secret."""

    def failing(*args):
        raise tk.CompileError("nvJitLink says so")

    monkeypatch.setattr(build, "_with_rings", failing)
    explained = launch(gemm, (128, 128, 64), 8).explain("sm_90a")
    assert explained.pipelines[0].reason == "nvJitLink says so"
    assert "kernel gemm has no rings of stages, since with them it failed: nvJitLink says so" in caplog.text


def test_threads_that_load_get_more_registers_if_any_spill(monkeypatch):
    """The second try counts if less spills, and not if it fails."""
    tried, assemble = [], build.assembled

    def assembled(*args, **options):
        tried.append(args[5].spare)
        if fails and args[5].spare:
            raise Unfit("no")
        return assemble(*args, **options)

    monkeypatch.setattr(build, "assembled", assembled)
    spills = property(lambda kernel: 8 if "setmaxnreg.dec.sync.aligned.u32 40;" in kernel.ptx else 0)
    monkeypatch.setattr(build.CompiledKernel, "spilled_bytes", spills)
    for fails, registers in ((False, ["224", "56"]), (True, ["232", "40"])):
        tried.clear()
        ptx = launch(gemm, (128, 256, 64), 8, dtype=tk.float16 if fails else tk.bfloat16).explain("sm_90a").compiled.ptx
        assert tried[:2] == [0, 16]  # and once more, in the order of the blocks' numbers, if it spills
        assert re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)", ptx) == registers


def test_a_packed_operand_is_packed_once():
    """`p` is carried round the loop in words: 64 of 128 x 128 elements for each thread, and none is converted twice."""
    compiled = of_attention(128, 128, 128).compile(target="sm_90a")
    calculating = compiled.sass.split("USETMAXREG.TRY_ALLOC")[-1]
    loop = calculating.split("gsb0, 0x1")[0].rsplit("WARPGROUP.ARRIVE", 2)[1] + calculating.split("gsb0, 0x1")[1]
    loop = loop.split("HGMMA")[:16]  # behind the loop comes the last product
    assert calculating.count("F2FP.BF16.F32.PACK_AB") == 3 * 32, "of the first scores, of a turn, of the result"
    assert not re.search(r"\bPRMT\b", "".join(loop))


@pytest.mark.parametrize("scaled", [False, True])
def test_fences_stand_where_threads_have_read(scaled):
    """Queries come from their ring into registers: it is given back with a fence. One that products alone read is not."""

    @tk.kernel(num_warps=8)
    def kernel(y: tk.Out, q: tk.In, k: tk.In, v: tk.In, scaled: tk.Const):
        for tq in tk.pipelined(q.tiles((128, 64))[0:1, 0], stages=1):
            acc = tk.zeros((128, 64), tk.float32)
            for key, value in tk.pipelined(k.tiles((64, 64))[:, 0], v.tiles((64, 64))[:, 0], stages=2, rotate=False):
                p = tk.mma(tq, key.transpose(), tk.zeros((128, 64), tk.float32))
                if scaled:
                    p += tk.sum(key.astype(tk.float32), 1)[None, :]
                acc = tk.mma(p.astype(q.dtype), value, acc) * 1.0
            y.store(acc)

    op = kernel(meta(128, 64, dtype=tk.float32).partition((128, 64)), *[meta(128 * n, 64) for n in (1, 9, 9)], scaled)
    compiled = op.compile(target="sm_90a")
    found = re.findall(r"wgmma\.mma_async|fence\.proxy\.async\.shared::cta|mbarrier\.arrive\.shared", compiled.ptx)
    after = [step for step in found[found.index("wgmma.mma_async") :] if not step.startswith("wgmma")]
    fence, arrive = "fence.proxy.async.shared::cta", "mbarrier.arrive.shared"
    assert after == [*[fence] * scaled, arrive, fence, arrive]


def test_the_stage_of_an_only_turn_is_given_back_when_nothing_reads_it_any_more():
    """The next tile of queries is on its way while this one's last product runs, and its result is stored."""

    @tk.kernel(num_warps=8)
    def kernel(y: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
        i = tk.bid(0)
        while i < n:
            for tq in tk.pipelined(q.tiles((128, 64))[i : i + 1, 0], stages=1):
                acc = tk.zeros((128, 64), tk.float32)
                for key, value in tk.pipelined(k.tiles((64, 64))[:, 0], v.tiles((64, 64))[:, 0], stages=2):
                    p = tk.mma(tq, key.transpose(), tk.zeros((128, 64), tk.float32))
                    acc = tk.mma(tk.exp2(p).astype(q.dtype), value, acc) * 1.0
                tk.store(y, (i, 0), acc)
            i += tk.num_blocks(0)

    x = [meta(128 * n, 64) for n in (9, 9, 9)]
    ptx = kernel(meta(1152, 64, dtype=tk.float32).scattered(), *x, 9).grid(3).compile(target="sm_90a").ptx
    assert ptx.count("bar.sync 0;") == 1, "all rings begin together"
    calculating = ptx[ptx.index("// take R0") : ptx.rindex("st.global")]
    assert calculating.count("// give R0") == 1
    assert 0 <= calculating.index("// give R0") < calculating.rindex("wgmma.mma_async")


def test_a_product_added_to_zeros_sets_no_register():
    """The first instruction of scores does not add; those of sums that are carried round do."""
    ptx = of_attention(128, 128, 128).compile(target="sm_90a").ptx
    groups = re.findall(r"wgmma\.fence\.sync\.aligned;(.*?)wgmma\.commit_group", ptx)
    found = [re.search(r"y, ([01]), 1, 1", group)[1] for group in groups]
    assert (found[:2], found.count("0")) == (["0", "0"], 2), "of the first scores, which are no loop's, and of those in the loop"


@tk.kernel
def shifted(y: tk.Out, a: tk.In, b: tk.In, row: tk.In, column: tk.In):
    acc = tk.zeros((BM, BK), tk.float32)
    j = 0
    for tb in tk.pipelined(b.tiles((BN, BK))[:, 0], stages=2):
        scores = tk.mma(tk.load(a, (0, 0), (BM, BK)), tb.transpose(), tk.zeros((BM, BN), tk.float32))
        scores = scores + tk.load(row, (0, j), (1, BN))
        p = (scores + tk.load(column, (0, 0), (1, BM)).reshape((BM, 1))).astype(b.dtype)
        acc = tk.mma(p, tb, acc)
        j = j + 1
    tk.store(y, (0, 0), acc.astype(y.dtype))


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float32, tk.int32], ids=str)
def test_a_short_vector_is_loaded_where_it_is_needed(dtype):
    """Two neighbours of a row at a time, and without a barrier; unless the result may have its storage."""
    y, row, column = meta(128, 64, dtype=dtype), meta(1, 1024, dtype=tk.float32), meta(1, 128, dtype=tk.float32)
    op = shifted(y.scattered(), meta(128, 64), meta(1024, 64), row, column).generics(BM=128, BN=64, BK=64)
    ptx = op.num_warps(8).grid(1).compile(target="sm_90a").ptx
    between = ptx[ptx.index("wgmma.mma_async") : ptx.rindex("wgmma.mma_async")]
    barriers = len(re.findall(r"\b(?:bar|barrier)\.sync\b", between))
    loads = between.count("@p ld.global.nc.v2.f32"), ptx.count("@p ld.global.nc.f32")
    assert (barriers > 0, loads) == ((False, (8, 2)) if dtype == tk.bfloat16 else (True, (0, 0)))
    assert "@p ld.global.nc.f32" not in between, "what is the same in each turn is loaded before"


@pytest.mark.parametrize(("tile", "warps"), [((64, 128, 64), 4), ((128, 128, 64), 8), ((128, 256, 64), 8)], ids=str)
@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float16], ids=str)
def test_results_get_their_wide_stores_by_shuffles(tile, warps, dtype):
    """In a word go two elements that lie together: half of the words of a thread change lanes, twice."""
    compiled = launch(persistent, tile, warps, dtype=dtype).compile(target="sm_90a")
    words = tile[0] * tile[1] // (32 * warps) // 2
    stores = re.findall(r"\bSTG[.\w]*", compiled.sass)
    assert stores == ["STG.E.128"] * (words // 4)
    assert compiled.sass.count("SHFL.BFLY") == 2 * words // 2
    assert not re.search(r"\b(STS|LDS)\b", compiled.sass)


def test_a_tensor_has_one_map_for_tiles_of_a_shape():
    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, x: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for ta, tb in tk.pipelined(x.tiles((64, 64))[0, :], x.tiles((64, 64))[1, :]):
            acc = tk.mma(ta, tb.transpose(), acc)
        y.store(acc)

    assert len(kernel(meta(64, 64, dtype=tk.float32).partition((64, 64)), meta(128, 256)).compile(target="sm_90a").maps) == 1


# ------------------------------------------------------------------------------------------------------------- copies by threads


def counted(kernel, *names):
    """How often instructions of these names are in a kernel, by their full names."""
    return Counter(re.findall(rf"\b((?:{'|'.join(names)})\b[.\w]*)", kernel.sass))


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_87", "sm_89"])
@pytest.mark.parametrize("kernel", [gemm, turned, persistent], ids=lambda kernel: kernel.name)
def test_gpus_without_tma_copy(kernel, target):
    """A warp copies 16 bytes a thread; those that calculate read matrices where they lie, and write nothing to shared memory."""
    op = launch(kernel, (64, 64, 64), 4, dtype=tk.float16)
    compiled = op.compile(target=target)
    found = counted(compiled, "LDGSTS", "LDSM", "LDG", "STS", "HMMA")
    copies, reads = 2 * 64 * 64 * 2 // 16 // 32, 2 * 2 * 64 * 64 * 2 // 16 // 32 // 4  # two warps read the same rows, or columns
    assert {name.partition(".")[0] for name in found} - {"STS"} == {"LDGSTS", "LDSM", "HMMA"}
    assert set(counted(compiled, "STS")) <= {"STS.64"}, "barriers, which are set up"
    assert {n for n in found if n.startswith("LDGSTS")} == {"LDGSTS.E.BYPASS.LTC128B.128"}
    assert found["LDGSTS.E.BYPASS.LTC128B.128"] % copies == 0
    assert sum(n for name, n in found.items() if name.startswith("LDSM")) % reads == 0
    assert all(".4" in name for name in found if name.startswith("LDSM")), "four matrices at a time"
    assert (compiled.maps, compiled.block, compiled.local_bytes) == ((), (128 + 32, 1, 1), 0)
    assert "wgmma" not in compiled.ptx
    (ring,) = op.explain(target).pipelines
    assert (ring.stages, ring.tiles) == (4, ("float16 64x64 by cp.async of 16 bytes",) * 2)


# Blackwell: what the TMA brings is multiplied by warps. Compiled, and never run: no such GPU was at hand.
BLACKWELL = ["sm_100a", "sm_100f", "sm_103a", "sm_110a", "sm_120", "sm_120a", "sm_120f", "sm_121"]


@pytest.mark.parametrize("target", BLACKWELL)
@pytest.mark.parametrize("kernel", [gemm, turned, persistent], ids=lambda kernel: kernel.name)
def test_products_by_warps_of_what_the_tma_brings(kernel, target):
    """One thread asks for tiles; the others read matrices where they lie, and write nothing to shared memory."""
    op = launch(kernel, (128, 128, 64), 8, dtype=tk.float16)
    compiled = op.compile(target=target)
    found = counted(compiled, "UTMALDG", "LDGSTS", "LDSM", "LDG", "STS", "HMMA", "LDL", "STL")
    assert {name.partition(".")[0] for name in found} == {"UTMALDG", "LDSM", "HMMA"}
    assert found["UTMALDG.2D"] % 3 == 0, "of rows of 128 and of 256 bytes"
    assert all(".4" in name for name in found if name.startswith("LDSM")), "four matrices at a time"
    assert (len(compiled.maps), compiled.block, compiled.local_bytes) == (2, (256 + 64, 1, 1), 0)
    ptx = compiled.ptx
    assert "mbarrier.try_wait" in ptx
    assert "cp.async.bulk.tensor.2d.shared::" in ptx
    assert not re.search(r"wgmma|setmaxnreg|multicast|cp\.async\.c[ag]", ptx)
    assert ptx.count("fence.proxy.async") == ptx.count("// give R0"), "threads read before the TMA writes there again"
    (ring,) = op.explain(target).pipelines
    assert (ring.stages, ring.reason) == (3 if target.startswith("sm_12") else 4, "")
    assert all(tile.endswith("by TMA") for tile in ring.tiles)


@pytest.mark.parametrize(("target", "parts"), [("sm_100a", 2), ("sm_120", 1)])
def test_blocks_of_a_cluster_on_blackwell(target, parts):
    """GeForce GPUs gain nothing from multicast: there is no cluster on them."""
    compiled = launch(persistent, (128, 128, 64), 8, cluster=(2, 1)).compile(target=target)
    assert ("multicast::cluster" in compiled.ptx) == (parts > 1)
    assert (".explicitcluster" in compiled.ptx) == (parts > 1)
    barriers = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (\d+);", compiled.ptx)
    assert set(barriers) == {"1", str(8 * parts)}
    assert compiled.local_bytes == 0


def test_rows_that_the_tma_cannot_bring_are_copied_on_blackwell():
    op = gemm(meta(4092, 4092).partition((128, 128)), meta(4092, 4092), meta(4092, 4092), None).generics(BK=64).num_warps(8)
    for target in ("sm_100a", "sm_120"):
        (ring,) = op.explain(target).pipelines
        assert ring.tiles == ("bfloat16 128x64 by cp.async of 8 bytes", "bfloat16 64x128 by cp.async of 8 bytes")
        assert op.compile(target=target).maps == ()


@pytest.mark.parametrize(("tile", "warps"), [((128, 128, 64), 8), ((128, 128, 64), 4), ((128, 64, 64), 4)], ids=str)
def test_tiles_of_older_gpus(tile, warps):
    """The next matrices are read while products run; no register spills."""
    compiled = launch(persistent, tile, warps).compile(target="sm_80")
    assert compiled.local_bytes == 0
    assert compiled.block == (32 * (warps + max(1, warps // 4)), 1, 1)
    assert compiled.dynamic_shared_bytes + compiled.shared_bytes <= 163 * 1024
    order = "".join(name[0] for name in re.findall(r"\b(HMMA|LDSM)\b", compiled.sass))
    assert order.count("H") == tile[0] * tile[1] * tile[2] // warps // 2048
    assert max(map(len, re.findall("L+", order))) <= 16
    assert "mbarrier.test_wait.parity" in compiled.ptx
    assert "cp.async.mbarrier.arrive.noinc" in compiled.ptx


# Of each case: elements in a row of the operands, and the bytes of a copy.
COPIES = {"16 bytes": (4096, 16), "8 bytes": (4092, 8), "4 bytes": (4090, 4)}


@pytest.mark.parametrize("case", COPIES)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_how_wide_copies_are(case, target):
    """Rows decide. On sm_90a the tensor memory accelerator brings what it can, and warpgroups multiply whatever came."""
    n, nbytes = COPIES[case]
    op = gemm(meta(n, n).partition((128, 256)), meta(n, n), meta(n, n), None).generics(BK=64).num_warps(8)
    compiled = op.compile(target=target)
    (ring,) = op.explain(target).pipelines
    way = "TMA" if nbytes == 16 and target == "sm_90a" else f"cp.async of {nbytes} bytes"
    assert ring.tiles == (f"bfloat16 128x64 by {way}", f"bfloat16 64x256 by {way}")
    names = set(re.findall(r"\bLDGSTS\.[.\w]*", compiled.sass))
    wide = {16: "LDGSTS.E.BYPASS.LTC128B.128", 8: "LDGSTS.E.64", 4: "LDGSTS.E"}[nbytes]
    assert names == (set() if way == "TMA" else {wide})
    assert "LDG.E" not in compiled.sass
    if target == "sm_90a":
        turn = "A" + "H" * 3 + "G1"
        assert re.fullmatch(f"(?:{turn})+0+", products(compiled))
        calculating = compiled.sass.split("USETMAXREG.TRY_ALLOC")[-1]
        assert not re.search(r"\b(LDL|STL)\b", calculating)
        assert ("fence.proxy.async" in compiled.ptx) == (way != "TMA"), "wgmma reads through another proxy"


def test_each_stream_comes_as_it_can():
    """One by the tensor memory accelerator, to a cluster, the other by copies; a stage is full when both are there."""
    c = meta(4096, 4092).partition((128, 256)).map(num_blocks=132, cluster=(1, 2))
    op = persistent(c, meta(4096, 4096), meta(4096, 4092)).generics(BM=128, BN=256, BK=64).num_warps(8)
    (ring,) = op.explain("sm_90a").pipelines
    assert ring.tiles == ("bfloat16 128x64 by TMA", "bfloat16 64x256 by cp.async of 8 bytes")
    compiled = op.compile(target="sm_90a")
    assert [m.box for m in compiled.maps] == [(64, 64)]
    barriers = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (\d+);", compiled.ptx)
    assert set(barriers) == {str(128 + 1), str(8 * 2)}, "those who copy and the one who asks; the warps of both blocks"
    assert re.search(rf"expect_tx.*, {128 * 64 * 2};", compiled.ptx)
    assert "multicast::cluster" in compiled.ptx


def test_copies_at_the_edge_fill_up_with_zeros():
    """What is left of a row is counted in bytes; tiles inside need no such number."""
    op = gemm(meta(4096, 4088).partition((64, 64)), meta(4096, 4090), meta(4090, 4088), None).generics(BK=64).num_warps(4)
    copy = r"cp\.async\.\w+\.shared\.global\S* \[\S+\], \[\S+\], (\d+)(, %\w+)?;"
    found = {(width, bool(left)) for width, left in re.findall(copy, op.compile(target="sm_80").ptx)}
    assert found == {("4", True), ("4", False), ("16", True), ("16", False)}


@pytest.mark.parametrize(("blocks", "stages"), [(1, 6), (2, 3)])
def test_blocks_that_share_a_multiprocessor_have_fewer_stages(blocks, stages):
    op = launch(gemm, (64, 128, 64), 4).occupancy(blocks)
    (ring,) = op.explain("sm_80").pipelines
    assert (ring.stages, ring.reason) == (stages, "")


def test_a_ring_is_not_worth_spilled_registers():
    op = launch(gemm, (128, 128, 64), 8).occupancy(2)
    (loop,) = op.explain("sm_80").pipelines
    assert loop.reason == "with warps that load, too, registers of 2 blocks on a multiprocessor spill"
    assert op.compile(target="sm_80").local_bytes == 0


# ------------------------------------------------------------------------------------------------- why there is no ring of stages


def by_rows(make, *, tile=(16, 64), shape=(64, 256), dtype=tk.float32, x=None):
    """A launch of the kernel that `make` gives for tiles of `x`."""
    kernel = tk.kernel(make)
    return kernel(meta(16, 64, dtype=tk.float32).partition((16, 64)), meta(*shape, dtype=dtype) if x is None else x)


def summed(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        s += t.astype(tk.float32)
    y.store(s)


def told(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[0, :], warp_specialize=False):
        s += t
    y.store(s)


def breaks(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        s += t
        if x.shape[1] > 100:
            break
    y.store(s)


def sliced(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.slice(0, 16, 30).tiles((16, 64))[0, :]):
        s += t
    y.store(s)


def sliced_twice(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.slice(0, 0, 32).slice(0, 3).tiles((16, 64))[0, :]):
        s += t
    y.store(s)


def sliced_to_the_end(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.slice(1, 1).tiles((16, 64))[0, :]):
        s += t
    y.store(s)


def renamed(y: tk.Out, x: tk.In):
    s, z = tk.zeros((16, 64), tk.float32), x
    for t in tk.pipelined(z.tiles((16, 64))[0, :]):
        s += t
    y.store(s)


def looked_up(y: tk.Out, x: tk.In):
    s, row = tk.zeros((16, 64), tk.float32), tk.sum(tk.load(x, (0, 0), (16, 64))).astype(tk.int32).item()
    for t in tk.pipelined(x.tiles((16, 64))[row, :]):
        s += t
    y.store(s)


def looked_up_late(y: tk.InOut, x: tk.In):
    s, z = tk.zeros((16, 64), tk.float32), y.slice(0, 0, 1)
    for t in tk.pipelined(x.tiles((16, 64))[int(tk.load(z, (0, 0), ()).item()), :]):
        s += t
    y.store(s)


def looked_up_by_a_tile(y: tk.Out, x: tk.In):
    s, row = tk.zeros((16, 64), tk.float32), tk.load(x, (0, 0), (1, 1)).item() > 0
    for t in tk.pipelined(x.tiles((16, 64))[1 if row else 0, :]):
        s += t
    y.store(s)


def chained(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        for u in tk.pipelined(x.tiles((16, 64))[t.shape[0] // 16, :]):
            s += u
    y.store(s)


def behind(y: tk.Out, x: tk.In):
    u = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        u = t
    y.store(u)


def turned_behind(y: tk.Out, x: tk.In):
    u, v = tk.zeros((64, 16), tk.float32), 0
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        u, v = t.transpose(), 1
    y.store(u.transpose() + v)


def carried(y: tk.Out, x: tk.In):
    s, before = tk.zeros((16, 64), tk.float32), tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        s += t * before
        before = t
    y.store(s)


def written(y: tk.InOut, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t, u in tk.pipelined(x.tiles((16, 64))[0, :], y.tiles((16, 64))):
        s += t + u
    y.store(s)


@tk.function
def helper(x):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        s += t
    return s


def helped(y: tk.Out, x: tk.In):
    s = helper(x)
    for t in tk.pipelined(x.tiles((16, 64))[0, :]):
        s += t
    y.store(s)


def narrow(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((64, 4))[0, :]):
        s += tk.sum(t)
    y.store(s)


def flat(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((4, 256))[0, :]):
        s += tk.sum(t)
    y.store(s)


def tall(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((512, 16))[0, :]):
        s += tk.sum(t)
    y.store(s)


def large(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((128, 256))[0, :]):
        s += tk.sum(t)
    y.store(s)


def greedy(y: tk.Out, x: tk.In):
    s = tk.zeros((16, 64), tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))[0, :], stages=16):
        s += tk.sum(t)
    y.store(s)


REASONS = {
    "told": (told, {}, "warp_specialize=False"),
    "break": (breaks, {}, "the loop has a break, continue or return"),
    "slice": (sliced_to_the_end, {"shape": (64, 250)}, "x is a slice that may begin at a multiple of 4 bytes; copies are of 8"),
    "slice of rows": (sliced_to_the_end, {}, "x is a slice that may begin at a multiple of 4 bytes; copies are of 16"),
    "looked up": (looked_up, {}, "which tiles come depends on tk.sum(tk.load(x, (0, 0), (16, 64))).astype(tk.int32)"),
    "looked up late": (looked_up_late, {}, "which tiles come depends on tk.load(z, (0, 0), ()), and z is written"),
    "behind": (turned_behind, {}, "u, a tile of the pipeline, is used behind the loop"),
    "carried": (carried, {}, "before, a tile of the pipeline, may be used in a later turn"),
    "last": (behind, {}, "u, a tile of the pipeline, is used behind the loop"),
    "written": (written, {}, "y is written, too"),
    "narrow": (narrow, {}, "tiles of x have rows of 16 bytes"),
    "flat": (flat, {}, "tiles of x have 4 rows"),
    "greedy": (greedy, {}, "its stages and the rest take 264720 bytes of shared memory; a block has 233472"),
    "stride": (summed, {"shape": (64, 255), "dtype": tk.float16}, "rows of x are not multiples of 4 bytes apart"),
    "align": (summed, {"x": lambda: meta(64, 260, dtype=tk.float16)[:, 1:257]}, "x does not begin at a multiple of 4 bytes"),
    "gaps": (
        summed,
        {"x": lambda: meta(64, 512, dtype=tk.float32)[:, ::2]},
        "x has no dimension of stride 1",
    ),
}


@pytest.mark.parametrize(("make", "loops"), [(renamed, 1), (chained, 2), (helped, 2)])
def test_another_spelling_has_its_rings(make, loops):
    """What only the text would keep from them is resolved by the IR."""
    explained = by_rows(make).explain("sm_90a")
    assert "UTMALDG" in explained.compiled.sass
    assert explained.compiled.local_bytes == 0
    assert all(ring.stages for ring in explained.pipelines)
    assert len(explained.pipelines) in (1, loops), "loops over the same tiles share a ring"


def test_a_large_tile_has_one_stage():
    kernel = tk.kernel(large)(api.meta((16, 64)).partition((16, 64)), api.meta((512, 512))).compile(target="sm_90a")
    assert kernel.dynamic_shared_bytes == 131072 + 1024 + 512  # alignment, barriers


@pytest.mark.parametrize("name", REASONS)
def test_why_there_is_no_ring(name):
    """All the same it compiles, and loads as it goes."""
    make, how, reason = REASONS[name]
    how = dict(how)
    if "x" in how:
        how["x"] = how["x"]()
    explained = by_rows(make, **how).explain("sm_90a")
    assert (explained.compiled.maps, "UTMALDG" in explained.compiled.sass) == ((), False)
    assert explained.compiled.block == by_rows(make, **how).compile(target="sm_80").block
    (loop, *_) = explained.pipelines
    assert loop.reason.startswith(reason)
    assert (loop.stages, loop.nbytes, loop.tiles) == (0, 0, ())
    assert f"as the loop goes: {reason}" in str(explained)


def test_sums_that_have_no_room_beside_threads_that_load():
    """A thread of 16 warps and 4 that load has 96 registers to begin with; sums of one instruction alone would take 128."""
    c, x = meta(4096, 4096, dtype=tk.float32).partition((256, 256)), meta(4096, 4096)
    explained = gemm(c, x, x, None).generics(BK=64).num_warps(16).explain("sm_90a")
    assert "more registers than threads of 16 warps" in explained.pipelines[0].reason
    assert explained.compiled.block == (512, 1, 1)


def test_there_is_one_otherwise():
    explained = by_rows(summed).explain("sm_90a")
    (ring,) = explained.pipelines
    assert "in tk.pipelined" in Path(__file__).read_text().splitlines()[ring.line - 1]
    assert (ring.stages, ring.nbytes, ring.tiles, ring.reason) == (4, 4 * 16 * 64 * 4, ("float32 16x64 by TMA",), "")
    assert re.search(rf"^line  stages  bytes  tiles\n{ring.line} +4 +16384  float32 16x64 by TMA$", str(explained), re.M)
    assert len(explained.compiled.maps) == 1


def test_a_tile_of_one_element_may_decide_which_tiles_come():
    explained = by_rows(looked_up_by_a_tile).explain("sm_90a")
    assert [ring.stages > 1 for ring in explained.pipelines] == [True]
    assert "UTMALDG" in explained.compiled.sass


def test_single_elements_may_decide_which_tiles_come():
    """The thread that loads reads them by itself, as do those that calculate; also in a function."""

    @tk.function
    def row_of(table, at):
        return tk.load(table, at, ()).item() - 1

    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, x: tk.In, table: tk.In):
        s, begin = tk.zeros((16, 64), tk.float32), tk.load(table, 0, ()).item()
        for t in tk.pipelined(x.tiles((16, 64))[row_of(table, 1), begin:]):
            s += t
        y.store(s)

    out = api.meta((16, 64), tk.float32).partition((16, 64))
    explained = kernel(out, meta(64, 256, dtype=tk.float32), api.meta((2,), tk.int32)).explain("sm_90a")
    assert [ring.stages for ring in explained.pipelines] == [4]


@pytest.mark.parametrize(
    ("make", "how", "nbytes"),
    [
        (summed, {"shape": (64, 250)}, 8),
        (summed, {"x": lambda: meta(64, 260, dtype=tk.float32)[:, 1:257]}, 4),
        (sliced, {}, 16),
        (sliced_twice, {}, 16),
        (tall, {"shape": (1024, 256)}, 16),
    ],
    ids=["stride", "align", "slice", "slice of a slice", "tall"],
)
def test_threads_copy_what_the_accelerator_cannot_bring(make, how, nbytes):
    how = {name: value() if name == "x" else value for name, value in how.items()}
    explained = by_rows(make, **how).explain("sm_90a")
    (ring,) = explained.pipelines
    assert [tile.rpartition(" by ")[2] for tile in ring.tiles] == [f"cp.async of {nbytes} bytes"]
    assert explained.compiled.maps == ()
    assert f"by cp.async of {nbytes} bytes" in str(explained)


@tk.kernel
def from_a_row(y: tk.Out[BM, BN], x: tk.In, rows: tk.In, apart: tk.Const = 16):
    s = tk.zeros((BM, BN), tk.float32)
    first = int(tk.load(rows, tk.bid(0), ()).item()) * apart
    for t in tk.pipelined(x.slice(0, first).slice(1, 8).tiles((BM, BN))[0, :]):
        s += t
    y.store(s)


def test_a_slice_to_the_end_has_a_ring():
    """The thread that loads looks its beginning up by itself, and meets no barrier of the others, who zero what is not there."""
    y, x, rows = (
        meta(*shape, dtype=dtype) for shape, dtype in (((64, 64), tk.float32), ((999, 512), tk.float32), ((4,), tk.int32))
    )

    def compiled_with(apart):
        op = from_a_row(y.partition((16, 64)), x, rows, apart)
        return op.generics(BM=16, BN=64).num_warps(8).compile(target="sm_90a")

    assert [m.box for m in compiled_with(1).maps] == [(16, 32)], "they begin anywhere, and so the last has any number of rows"
    compiled = compiled_with(16)
    assert [m.box for m in compiled.maps] == [(16, 32), (16, 32)], "whole ones, and the last"
    loading, calculating = compiled.sass.split("USETMAXREG.TRY_ALLOC")
    assert "UTMALDG.2D" in loading
    assert len(re.findall(r"\bLDG\.E\b", loading)) == 1
    assert len(re.findall(r"\bLDG\.E\b", calculating)) == 1
    assert "STS.128" not in loading
    assert loading.count("BAR.SYNC") == 1, "that all threads meet at, when there are barriers"


def test_column_major_tensors_have_rings():
    explained = by_rows(summed, x=meta(256, 64, dtype=tk.float32).permute(1, 0)).explain("sm_90a")
    assert [ring.stages for ring in explained.pipelines] == [4]


# -------------------------------------------------------------------------------------------------------- how a stage is laid out


def staged(dtype, memory, axes=None, warps=4):
    from tilekit.compiler.nvidia.staged import StagedType

    axes = tuple(range(len(memory))) if axes is None else axes
    return StagedType(np.dtype(dtype), memory, axes, Config(warps, 16 // np.dtype(dtype).itemsize))


def as_the_tma_writes(dtype, memory):
    """The offset in elements of each element of a box, by a model of the TMA: panels, and in them swizzled rows."""
    itemsize = np.dtype(dtype).itemsize
    span = next(s for s in (128, 64, 32) if memory[-1] * itemsize % s == 0)
    rows, columns = int(np.prod(memory[:-1])), memory[-1]
    row, column = np.indices((rows, columns))
    panel, within = np.divmod(column * itemsize, span)
    address = panel * rows * span + row * span + within
    # The number of a 16-byte piece within a row of the panel, exchanged by that of the 128 bytes it lies in.
    exchanged = address ^ (address >> 7 & span // 16 - 1) << 4
    return (exchanged // itemsize).reshape(memory)


TILES = [
    (tk.bfloat16, (64, 64)), (tk.bfloat16, (64, 256)), (tk.float16, (16, 32)), (tk.float16, (64, 16)), (tk.float32, (8, 32)),
    (tk.float32, (32, 128)), (tk.float32, (32, 16)), (tk.float64, (16, 8)), (tk.float64, (64, 4)), (tk.int8, (32, 256)),
    (tk.int8, (64, 32)), (tk.uint8, (16, 64)), (tk.float32, (4, 8, 64)), (tk.bfloat16, (1, 16, 128)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "memory"), TILES, ids=str)
def test_where_elements_lie(dtype, memory):
    model = as_the_tma_writes(dtype, memory)
    assert sorted(model.ravel()) == list(range(model.size))
    swizzle = staged(dtype, memory).swizzle()
    for at in np.ndindex(memory):
        assert swizzle.offset(at) == model[at]
    turned = staged(dtype, memory, tuple(reversed(range(len(memory))))).swizzle()
    for at in np.ndindex(memory):
        assert turned.offset(at[::-1]) == model[at]


@pytest.mark.parametrize(("dtype", "memory"), TILES, ids=str)
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_reading_a_stage_meets_no_bank_conflicts(dtype, memory, warps):
    """As loads from the tensor would hold the tile: 16 bytes a thread, in four wavefronts a warp."""
    tile = staged(dtype, memory, warps=warps)
    swizzle, layout = tile.swizzle(), tile.materialized.layout
    assert all(vector in layout.reg for vector in swizzle.shared), "16 bytes at a time"
    assert wavefronts(swizzle, layout, np.dtype(dtype).itemsize) == 4


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("depth", [16, 32, 64, 128])
def test_reading_matrices_from_a_stage_meets_no_bank_conflicts(depth, warps, turned):
    """Of both operands, whichever dimension has no gaps: eight lanes point to 128 bytes in all banks."""
    from tilekit.compiler.layouts import mma as fragments

    product = fragments.product((128, 64), depth, warps, 2, 1, wide=True)
    for layout in (product.a, product.b):
        memory, axes = (layout.shape[::-1], (1, 0)) if turned else (layout.shape, (0, 1))
        lies = staged(tk.bfloat16, memory, axes, warps).reader(layout, matrices=True)
        assert lies.matrices is not None
        assert lies.matrices.transposed == (turned == (layout is product.a))
        assert wavefronts(lies.swizzle, lies.read, 2) == 4


@pytest.mark.parametrize(("dtype", "memory"), TILES, ids=str)
@pytest.mark.parametrize("producers", [32, 64, 128])
@pytest.mark.parametrize("nbytes", [4, 8, 16])
def test_copying_to_a_stage_meets_no_bank_conflicts(dtype, memory, producers, nbytes):
    """Neighbouring threads copy neighbours in a row, and all of them together each element once."""
    from tilekit.compiler.nvidia.stage_copies import dealt

    itemsize = np.dtype(dtype).itemsize
    nbytes = max(nbytes, itemsize)
    tile = staged(dtype, memory)
    layout, swizzle, turns = dealt(tile, nbytes, producers)
    assert (itemsize << len(swizzle.shared), 1 << len(layout.thread)) == (nbytes, producers * turns)
    assert wavefronts(swizzle, layout, itemsize) == nbytes * 32 // 128
    assert layout.num_registers * itemsize // nbytes <= 31, "copies that are written out"
    once = [v for v in (*layout.reg, *layout.thread) if any(v)]
    assert sorted(once) == sorted(swizzle.offsets)
    assert layout.reg[: len(swizzle.shared)] == swizzle.shared


def test_wavefronts_counts_conflicts():
    """Lanes that walk down a column of one piece each would meet in the same banks without the exchange."""
    tile = staged(tk.float32, (32, 32), warps=1)
    swizzle = tile.swizzle()
    plain = type(swizzle)({v: v[0] * 32 + v[1] for v in swizzle.offsets}, swizzle.shared)
    down = Layout((32, 32), ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16)), ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0)), ())
    assert (wavefronts(swizzle, down, 4), wavefronts(plain, down, 4)) == (4, 32)


def test_a_plain_loop_beside_one_over_streams_has_a_ring_too():
    """In it, a tile of the other is called something else: in each turn anew."""

    @tk.kernel(num_warps=4)
    def kernel(y: tk.Out, q: tk.In, k: tk.In):
        for tq in tk.pipelined(q.tiles((1, 64, 64))[0, tk.bid(0) : tk.bid(0) + 1, 0], stages=1):
            acc = tk.zeros((64, 64), tk.float32)
            for j in range(tk.cdiv(k.shape[0], 64)):
                key = tk.load(k, (j, 0), (64, 64))
                query = tq.reshape((64, 64))
                acc = tk.mma(query, key, acc)
            y.store(acc)

    op = kernel(meta(512, 64, dtype=tk.float32).partition((64, 64)), meta(1, 512, 64), meta(4096, 64))
    assert [ring.stages for ring in op.explain("sm_90a").pipelines] == [1, 4]


@pytest.mark.parametrize("dtype", [tk.float8_e4m3fn, tk.float8_e5m2], ids=lambda dtype: dtype.name)
def test_an_operand_may_be_cast_to_the_dtype_of_a_tensor(dtype):
    """Of 8 bits, too, which numba does not know."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, w: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for k in range(x.shape[1] // 128):
            acc = tk.mma(tk.load(x, (0, k), (64, 128)).astype(w.dtype), tk.load(w, (0, k), (64, 128)).transpose(), acc)
        y.store(acc)

    x, w = api.meta((64, 1024), tk.bfloat16), api.meta((64, 1024), dtype)
    explained = kernel(api.meta((64, 64)).partition((64, 64)), x, w).num_warps(4).explain("sm_90a")
    (ring,) = explained.pipelines
    assert (ring.stages, len(ring.tiles)) == (4, 2)


@pytest.mark.parametrize("turns", [2, 3])
def test_loops_of_few_turns_in_a_loop_have_a_ring(turns):
    """Scales of groups: products of each are added up by themselves."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, w: tk.In, scales: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for group in range(scales.shape[0]):
            part = tk.zeros((64, 64), tk.float32)
            for k in range(turns):
                at = group * turns + k
                part = tk.mma(tk.load(x, (0, at), (64, 64)), tk.load(w, (at, 0), (64, 64)), part)
            acc += part * tk.load(scales, (group, 0), (1, 64))
        y.store(acc)

    x, w = api.meta((64, 6144), tk.float16), api.meta((6144, 64), tk.float16)
    op = kernel(api.meta((64, 64)).partition((64, 64)), x, w, api.meta((6144 // 64 // turns, 64)))
    explained = op.num_warps(4).explain("sm_90a")
    assert [(ring.stages, len(ring.tiles)) for ring in explained.pipelines] == [(4, 2)]
    assert explained.products[0].instruction.startswith("wgmma")
