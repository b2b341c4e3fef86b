"""How products are dealt out: the choices of the model, against what was measured, and what small products get."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, dtypes, kernels
from tilekit.compiler.passes import pieces
from tilekit.kernels._gemm import exact, model, schedules
from tilekit.kernels._gemm.stream_k import stream_k

MULTIPROCESSORS = 132  # of an H200


def clocks(product, rows, columns, warps, parts, turned=False):
    """What the model says, of the transpose if it is `turned`; infinity where steps cannot be dealt out so."""
    m, n, k, layout = (product[key] for key in ("m", "n", "k", "layout"))
    lines = all(
        extent * product["itemsize"] % 128 == 0 for extent in (m if layout[0] == "T" else k, k if layout[1] == "T" else n)
    )
    across = layout[0] == "T", layout[1] == "N"
    m, n, across = (n, m, across[::-1]) if turned else (m, n, across)
    if parts == "stream":
        blocks = model.held(MULTIPROCESSORS, columns, warps)
        parts = stream_k(-(-m // rows), -(-n // columns), -(-k * product["itemsize"] // 128), blocks)
        if parts is None:
            return math.inf
    shape, summed = (product["batch"], m, n, k), product["itemsize"] == 1
    one = model.Product(shape, MULTIPROCESSORS, product["itemsize"], summed=summed, turned=turned, lines=lines, across=across)
    return model.clocks(one, model.Way(rows, columns, warps, parts))


def behind_and_off(products):
    """How much longer what the model chooses takes than the best, and how far off it is, of random products that were measured,
    each with all tiles and several numbers of parts.
    """
    behind, off = [], []
    for product in products:
        taken = {tuple(way): us for *way, us in product["times"]}
        said = {way: clocks(product, *way) for way in taken}
        best, chosen = min(taken.values()), min(said, key=said.get)
        behind.append(taken[chosen] / best)
        off += [abs(math.log(said[way] / 1755 / us)) for way, us in taken.items() if us < 1.3 * best and said[way] < math.inf]
    return behind, off


def measured(file):
    return json.loads((Path(__file__).parent / file).read_text())["products"]


def test_the_model_agrees_with_what_was_measured(monkeypatch):
    monkeypatch.setattr(model, "_STAGES_ALONE", 4)  # as many as blocks had when these were
    products = [{**each, "itemsize": dtypes.as_dtype(each["dtype"]).itemsize} for each in measured("tiles-h200.json")]
    behind, off = behind_and_off(products)
    assert len(behind) == 115
    assert geometric_mean(behind) <= 1.025
    assert max(behind) <= 1.35
    assert median(off) <= 0.25


def test_the_model_agrees_with_what_was_measured_of_few_rows():
    behind, off = behind_and_off([{**each, "itemsize": 2, "batch": 1} for each in measured("short-h200.json")])
    assert len(behind) == 9
    assert geometric_mean(behind) <= 1.055
    assert max(behind) <= 1.3
    assert median(off) <= 0.15


@pytest.mark.parametrize(
    ("file", "count", "mean"),
    [
        ("ways-h200.json", 94, 1.04),
        ("tall-h200.json", 73, 1.04),
        ("shared-h200.json", 264, 1.03),
        ("clusters-h200.json", 84, 1.035),
    ],
)
def test_the_model_agrees_with_what_was_measured_of_all_ways(file, count, mean):
    """Of products drawn for sweeps, of Llama 3's layers, and their transposes; with clusters, and blocks that share tiles."""
    behind = []
    for product in measured(file):
        taken, said = {}, {}
        for one in product["of"]:
            ways = one.pop("ways")
            known = {key: tuple(value) if isinstance(value, list) else value for key, value in one.items()}
            of = model.Product(**known, count=MULTIPROCESSORS)
            for rows, columns, warps, parts, cluster, sharing, depth, us in ways:
                if parts == "stream":
                    _, m, n, k = of.shape
                    steps = -(-k * of.itemsize // model.STAGED_BYTES)
                    parts = stream_k(-(-m // rows), -(-n // columns), steps, model.held(of.count, columns, warps))
                if parts is not None and (not isinstance(parts, tuple) or parts.share < parts.steps):
                    way = model.Way(rows, columns, warps, parts, cluster and tuple(cluster), sharing, depth)
                    taken[of, way], said[of, way] = us, model.clocks(of, way)
        behind.append(taken[min(said, key=said.get)] / min(taken.values()))
    assert len(behind) == count
    assert geometric_mean(behind) <= mean
    assert max(behind) <= 1.51


def launch_of(m, n, k, dtype, **options):
    op = kernels.gemm(api.meta((m, k), dtype), api.meta((k, n), dtype), **options)
    op.consumed()
    launch = next(part for part in op.parts() if part.kernel.name != "_pack")
    launch.consumed()
    return launch


def tile_of(*asked, **options):
    generics = dict(launch_of(*asked, **options)._options.generics)
    return generics["BM"], sum(generics.get(name, 0) for name in ("BN", "BE", "BF"))


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        # The best of 24 tiles and splits on an H200, by itself or with others.
        ((270, 4096, 4096), (64, 144)),  # of the transpose: 15.3 us, with 128 x 144 in two parts 17.2
        ((768, 6144, 4096), (256, 144)),  # 52 us, with 128 x 128 73
        ((512, 4096, 4096), (128, 128)),
        ((8192, 8192, 8192), (128, 256)),
    ],
    ids=str,
)
def test_tiles_are_those_that_were_measured_to_be_best(shape, tile):
    assert tile_of(*shape, tk.bfloat16) == tile


def test_products_of_few_steps_have_several_blocks_on_a_multiprocessor():
    """Of what no stages take: a ring, and the warps that fill it, would leave room for one, which waits before it stores."""
    a, b = api.meta((23, 8, 689), tk.float32).permute(0, 2, 1), api.meta((23, 8, 912), tk.float32)
    op = kernels.gemm(a, b, precision="tf32")
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    explained = launch.explain("sm_90a")
    assert 65536 // (32 * launch._options.num_warps * explained.compiled.registers) >= 3
    assert not any(ring.stages for ring in explained.pipelines)
    long = kernels.gemm(
        api.meta((23, 512, 689), tk.float32).permute(0, 2, 1), api.meta((23, 512, 912), tk.float32), precision="tf32",
        tile=(128, 128, 32),
    )  # fmt: skip
    long.consumed()
    (launch,) = long.parts()
    launch.consumed()
    assert [ring.stages for ring in launch.explain("sm_90a").pipelines] != [0]


def way(m, n, k, layout="NN", gap=0, dtype=tk.bfloat16, **options):
    """The op of a product of float operands that lie so, with gaps of so many elements between rows."""

    def operand(rows, columns, transposed):
        outer, inner = (columns, rows) if transposed else (rows, columns)
        x = api.meta((outer, inner + gap), dtype)[:, :inner]
        return x.permute(1, 0) if transposed else x

    op = kernels.gemm(operand(m, k, layout[0] == "T"), operand(k, n, layout[1] == "T"), **options)
    op.consumed()
    return op


def test_clusters_spare_what_lies_across_lines_of_the_cache():
    """Both operands have rows that are no whole lines: each tile comes to several blocks. Of whole lines they need none."""
    (launch,) = way(1500, 1000, 700, "TN", gap=8).parts()
    assert math.prod(launch.arguments[0].cluster) == 4
    (launch,) = way(1000, 1000, 1000).parts()
    assert launch.arguments[0].cluster == (2, 1)
    (launch,) = way(1024, 1024, 1024, "NT").parts()
    assert launch.arguments[0].cluster is None


@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "tile", "blocks"),
    [
        # The best of many tiles and numbers of blocks on an H200, or within 5 % of it.
        ((256, 128, 2048), "TN", tk.float16, (64, 64), 8),  # 3.2 us, in one block a tile 6.2
        ((512, 1024, 8192), "NT", tk.float8_e4m3fn, (128, 64), 2),  # 11.9, was 19.9
        ((64, 4096, 16384), "TN", tk.bfloat16, (64, 64), 2),  # 34.5, was 40.2
        ((5688, 24, 8368), "TN", tk.float16, (256, 32), 4),  # 28.9, and by three 28.2; was 43.7
        ((4096, 16, 8192), "NT", tk.float8_e4m3fn, (64, 16), 2),  # 7.3, was 10.3
    ],
    ids=str,
)
def test_blocks_share_turns_where_tiles_are_few(shape, layout, dtype, tile, blocks):
    launch = way(*shape, layout, dtype=dtype).parts()[0]
    assert launch.arguments[0].tile_shape == tile
    assert launch.arguments[0].blocks_per_tile == blocks


@pytest.mark.parametrize("blocks", [2, 3, 4, 6, 8])
def test_blocks_that_share_turns_are_all_there_at_once(blocks):
    """Clusters are of multiprocessors that are near each other, of which some are left over. And their sums have room."""
    for m, n, k in ((1000, 200, 9000), (4096, 32, 20000), (640, 640, 640), (8192, 8192, 8192), (64, 64, 100000)):
        for tile in ((64, 64, 4), (128, 128, 8), (64, 32, 4)):
            one = model.Way(*tile)
            if blocks in model._sharing(of(m, n, k), one):
                together = -(-m // tile[0]) * -(-n // tile[1]) * blocks
                assert together <= MULTIPROCESSORS * {2: 1, 3: 0.95}.get(blocks, 0.8)
                assert model._received(one._replace(sharing=blocks)) <= 196 << 10
    assert not model._sharing(of(64, 64, 100000, clusters=False), model.Way(64, 64, 4))


@pytest.mark.parametrize(("tile", "warps"), [((64, 64, 64), 4), ((64, 32, 64), 4), ((128, 128, 64), 8), ((32, 64, 64), 1)])
def test_tiles_that_somebody_asks_for_have_warpgroups(tile, warps):
    (launch,) = way(1024, 1024, 1024, tile=tile).parts()
    assert launch._options.num_warps == warps


def test_few_rows_load_few_zeros_beyond_their_sums():
    assert [model._depth(n, 512) for n in (16, 128, 336, 500, 512, 4096, 4100)] == [128, 128, 128, 512, 512, 512, 512]
    assert model._depth(4096, 256) == 256


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_vectors_that_begin_anywhere_are_no_tiles(layout):
    """Copied to stages 4 bytes at a time, with zeros for 63 of 64 columns, 63 of 775 x 1 x 2477 took 240 us (memory: 115)."""
    launch = way(775, 1, 2477, layout, dtype=tk.float32, precision="tf32").parts()[0]
    assert "vectors" in launch.label


def chosen(a, b, **options):
    """The tile, and whether it is one of the transpose."""
    op = kernels.gemm(a, b, **options)
    op.consumed()
    launch = op.parts()[0]
    launch.consumed()
    generics = dict(launch._options.generics)
    return generics["BM"], sum(generics.get(name, 0) for name in ("BN", "BE", "BF"))


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((17, 3040, 304, 4312), (256, 160)),  # 128 x 256 would calculate 512 columns for 304
        ((12, 2752, 384, 2968), (256, 192)),  # by pairs of blocks, as rows of K lie across lines: 109 us, with 128 rows 119
        ((8, 1024, 1024, 1024), (128, 256)),
    ],
    ids=str,
)
def test_batches_choose_among_the_same_tiles(shape, tile):
    batch, m, n, k = shape
    b = api.meta((batch, n, k), tk.bfloat16).permute(0, 2, 1)
    assert chosen(api.meta((batch, m, k), tk.bfloat16), b) == tile


@pytest.mark.parametrize(
    ("dtype", "layout", "shape", "tile"),
    [
        (tk.bfloat16, "TN", (7576, 272, 1576), (128, 144)),
        (tk.float8_e4m3fn, "NT", (12601, 144, 1456), (128, 144)),
        (tk.float8_e4m3fn, "NT", (432, 4888, 2032), (128, 160)),
    ],
    ids=str,
)
def test_sides_of_a_tile_and_a_bit_are_no_two_tiles(dtype, layout, shape, tile):
    """Wherever K lies, and of short sums."""
    launch = way(*shape, layout, dtype=dtype).parts()[0]
    launch.consumed()
    generics = dict(launch._options.generics)
    assert (generics["BM"], sum(generics.get(name, 0) for name in ("BN", "BE", "BF"))) == tile


def test_columns_that_come_in_panels_take_as_long_to_load_as_whole_ones():
    products = [of(4096, 5760, 8192, across=(False, across)) for across in (False, True)]
    deep, wide = ([model.clocks(product, model.Way(128, n, 8)) for n in (144, 192)] for product in products)
    assert deep[0] < wide[0]
    assert deep[1] == wide[1]


def test_groups_choose_among_the_same_tiles():
    b = api.meta((1, 344, 9944), tk.float16).permute(0, 2, 1)
    op = kernels.grouped_gemm(api.meta((16152, 9944), tk.float16), b, api.meta((1,), tk.int32))
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    generics = dict(launch._options.generics)
    assert (generics["BM"], generics["BN"] + generics["BE"]) == (128, 192)


def of(m, n, k, **options):
    return model.Product((1, m, n, k), MULTIPROCESSORS, 2, **options)


def test_an_odd_number_of_rows_of_tiles_has_no_clusters_in_the_model():
    """As in `Partition.map`: a tile of `b` comes to each block by itself, then."""
    way = model.Way(128, 256, 8)
    even, odd = (model.clocks(of(128 * rows, 8192, 512), way) for rows in (24, 23))
    assert odd > even
    alone = model.clocks(of(128 * 24, 8192, 512, clusters=False), way)
    assert alone > odd


def test_rows_beyond_a_matrix_take_longer_if_blocks_load_them_together():
    """As measured: with tiles of 128 x 128, 129 rows took longer than 256. To blocks by themselves, no such rows come."""
    alone, together = (
        [model.clocks(of(rows, 8192, 8192), model.Way(128, 128, 8, cluster=cluster)) for rows in (129, 194, 256)]
        for cluster in (None, (1, 2))
    )
    assert together == sorted(together, reverse=True)
    assert alone == sorted(alone)
    assert together[0] > 1.2 * together[-1]


def test_blocks_with_one_tile_each_load_the_larger_operand_together():
    few, many = of(75, 10240, 8192), of(224, 8192, 8192)
    assert set(model._clusters_of(few, (128, 128, 8), 1)) == {(1, 2), (1, 4)}, "no two have the same columns"
    assert model._clusters_of(many, (128, 128, 8), 1) == [(2, 1)], "128 blocks in clusters of four have no room"
    assert model._clusters_of(of(8192, 224, 8192), (128, 128, 8), 1) == [(1, 2)]
    assert model._clusters_of(of(4096, 4096, 4096), (128, 128, 8), 1) == [], "blocks visit several"
    assert model._clusters_of(of(75, 10240, 8192, clusters=False), (128, 128, 8), 1) == []
    together, alone = model.Way(128, 128, 8, 1, (1, 4)), model.Way(128, 128, 8)
    assert model.clocks(few, together) > model.clocks(few, alone), "no rows come that are not there"
    few = few._replace(across=(True, False))  # where they lie along M
    assert model.clocks(few, together) < model.clocks(few, alone)


def test_blocks_that_spare_nothing_together_have_no_clusters():
    """Operands that come from the L2 cache, and hardly any rows beyond them."""
    assert model._clusters_of(of(2048, 512, 4096), (128, 64, 8), 1) == []
    assert model._clusters_of(of(2048, 512, 16384), (128, 64, 8), 1) == [(1, 2)], "a comes from memory"


def test_pairs_of_blocks_load_rows_that_lie_across_lines():
    """Those that stay, too, and those that have two tiles next to each other; not where half of the tiles are mostly zeros."""
    lying = {"ragged": (True, True), "lines": False}
    wide, odd = (128, 256, 8), (128, 192, 8)
    for shape, pairs in (((4416, 3584, 13336), [[(1, 2)], []]), ((4416, 3328, 13336), [[], [(1, 2)]])):
        assert [model._clusters_of(of(*shape, **lying), tile, 1) for tile in (wide, odd)] == pairs
        assert model._clusters_of(of(*shape), odd, 1) == [], "whole lines"
        assert model._clusters_of(of(*shape, **lying), odd, 2) == [], "parts of sums"
    assert model._clusters_of(of(13312, 272, 13336, **lying), wide, 1) == []
    assert model._clusters_of(of(896, 272, 400, **lying), (128, 144, 8), 1) == [(1, 2)]
    assert model._clusters_of(of(896, 272, 400, **lying), (64, 144, 4), 1) == [(2, 1), (1, 2), (2, 2)]
    assert model._clusters_of(of(896, 272, 400, **lying), (64, 144, 4), 2) == [], "parts of sums"
    assert model._clusters_of(of(200, 4440, 1304, **lying), (64, 144, 4), 1) == [(2, 1)], "31 of four blocks do not fit"


@pytest.mark.parametrize(
    ("product", "tile", "stages", "blocks"),
    [
        ((160, 6144, 4096), (64, 160, 64), 8, 117),
        ((6400, 2560, 640), (64, 160, 64), 8, MULTIPROCESSORS),
        ((6400, 2560, 640), (64, 128, 64), 4, 2 * MULTIPROCESSORS),
        ((64, 2560, 640), (64, 128, 64), 8, 20),
    ],
    ids=str,
)
def test_blocks_that_are_alone_on_a_multiprocessor_have_all_of_its_stages(product, tile, stages, blocks):
    """Those of four warps, too: with wide tiles a second one has no registers, and without more tiles nothing to do."""
    m, n, k = product
    op = kernels.gemm(api.meta((m, k), tk.bfloat16), api.meta((n, k), tk.bfloat16).T, tile=tile, num_warps=4)
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    explained = launch.explain("sm_90a")
    assert [ring.stages for ring in explained.pipelines] == [stages]
    assert launch._plan("plan").grid[0] == blocks <= MULTIPROCESSORS * explained.blocks_per_multiprocessor


def test_blocks_load_together_what_has_a_part_for_each():
    assert [model._mine(columns, below) for columns, below in ((144, 2), (144, 4), (104, 4), (128, 4))] == [72, 48, 32, 32]


def test_operands_that_are_turned_over_have_tall_tiles():
    """Each column costs until it is turned, and a row does not."""
    schedule = {over: model.cheapest(of(4096, 8192, 1024)._replace(itemsize=4, over=over))[0] for over in (False, True)}
    assert [(way.rows, way.columns) for way in schedule.values()] == [(128, 256), (256, 128)]


def test_short_sums_of_few_rows_have_short_tiles():
    """What a tile has beyond the operands takes longer than what it has of them."""
    launch = launch_of(6672, 24, 64, tk.bfloat16)
    assert dict(launch._options.generics)["BK"] == 64


@pytest.mark.parametrize(("m", "n", "k"), [(13296, 16, 168), (13728, 24, 2928)])
def test_blocks_of_few_rows_are_all_there_at_once(m, n, k):
    """One that had all stages which fit a multiprocessor would keep others from it, until it is through."""
    launch = launch_of(m, n, k, tk.bfloat16)
    (blocks, *_), each = launch._plan("plan").grid, launch.explain("sm_90a").blocks_per_multiprocessor
    assert MULTIPROCESSORS * 0.7 < blocks <= each * MULTIPROCESSORS


@pytest.mark.parametrize(("m", "n", "k"), [(12088, 304, 8), (11336, 1904, 24)])
def test_short_sums_have_no_two_tiles_next_to_each_other(m, n, k):
    """Between these, warps wait for what takes as long as all of a short sum."""
    a, b = api.meta((m, k), tk.bfloat16), api.meta((n, k), tk.bfloat16).T
    op = kernels.gemm(a, b)
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    assert "BE" not in dict(launch._options.generics)


@pytest.mark.parametrize("num_warps", [[4, 4], np.zeros(4), 3, "x"], ids=str)
def test_wrong_warps_of_brief_sums_are_refused(num_warps):
    with pytest.raises(ValueError, match="num_warps is a power of two from 1 to 32, not "):
        launch_of(4, 4, 4, tk.float32, num_warps=num_warps)


@pytest.mark.parametrize(("m", "n", "k", "dtype", "staged"), [
    (8240, 544, 16, tk.bfloat16, False), (512, 4096, 4, tk.float32, False), (840, 5552, 16, tk.int8, False),
    (8240, 544, 24, tk.bfloat16, False), (8240, 544, 32, tk.bfloat16, True), (8240, 5440, 16, tk.bfloat16, True),
    (8192, 4096, 8, tk.bfloat16, False), (8192, 4100, 8, tk.bfloat16, True),
])  # fmt: skip
def test_brief_sums_of_little_work_are_loaded_as_the_loop_goes(m, n, k, dtype, staged):
    """They have one turn: blocks that stay begin later, and store one tile after the other."""
    a, b = api.meta((m, k), dtype), api.meta((n, k), dtype).T
    op = kernels.gemm(a, b, **({"precision": "tf32"} if dtype == tk.float32 else {}))
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    assert ("GMMA" in launch.compile("sm_90a").sass) == staged
    assert (launch._plan("plan").grid[0] > MULTIPROCESSORS) != staged


@pytest.mark.parametrize(("batch", "launches"), [(22, 1), (220, 2)])
def test_operands_of_brief_sums_are_packed_for_much_work_alone(batch, launches):
    op = kernels.gemm(api.meta((batch, 60, 13), tk.float16), api.meta((batch, 13, 10607), tk.float16))
    op.consumed()
    assert len(op.parts()) == launches


@pytest.mark.parametrize(("dtype", "n", "bits"), [(tk.float32, 1818, 64), (tk.bfloat16, 1028, 64)], ids=["float32", "bfloat16"])
def test_results_whose_rows_begin_at_8_bytes_fill_sectors(dtype, n, bits):
    """Two accesses of 8 bytes for 16 of a thread would fill half of each sector, twice."""
    launch = launch_of(1382, n, 64, dtype)
    (stored,) = [access for access in launch.explain("sm_90a").accesses if access.kind == "store"]
    assert (stored.bits, stored.coalesced) == (bits, 1)


@pytest.mark.parametrize("n", [1034, 1036, 1267], ids=["8_bytes", "16_bytes", "4_bytes"])
def test_results_of_tensor_cores_are_stored_two_sectors_of_a_row_at_a_time(n):
    """A warp has 32 bytes of each of eight rows: where rows begin between two sectors, these would be parts of both."""
    a, b = api.meta((700, 64), tk.float32), api.meta((n, 64), tk.float32).T
    op = kernels.gemm(a, b, precision="tf32", tile=(128, 128, 32))
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    compiled = launch.compile(target="sm_90a")
    assert compiled.local_bytes == 0 and "HGMMA" in compiled.sass
    width = {"STG.E": 1, "STG.E.64": 2, "STG.E.128": 4}
    (stored,) = {width[name] for name in re.findall(r"\bSTG[.\w]*", compiled.sass)}
    bits = [line for line in str(launch.explain("sm_90a")).splitlines() if " store " in line]
    assert stored == math.gcd(n, 4) and len(bits) == 1
    assert "SHFL.BFLY" in compiled.sass and "STS" not in behind_products(compiled)


@pytest.mark.parametrize(
    ("n", "columns", "nbytes"), [(1328, 128, 64), (1320, 128, 256), (1324, 128, 256), (1320, 256, 512), (1324, 256, 256)]
)
def test_rows_that_begin_between_sectors_are_written_in_long_pieces(n, columns, nbytes):
    """By more shuffles, and as wide as rows allow: at both of its ends, a piece is a part of a sector, of which memory gives the
    rest. So a piece is a row of the tile. Where rows are whole sectors, two of a row are enough."""
    explained, compiled = stored_rows(n, tk.bfloat16, 64, columns)
    (stored,) = [access for access in explained.accesses if access.kind == "store"]
    assert stored.bits == 8 * math.gcd(2 * n, 16)
    assert max(use.layout.stretch(1) * 2 for use in explained.layouts) == nbytes
    assert compiled.local_bytes == 0 and "STS" not in behind_products(compiled)


@pytest.mark.parametrize(("dtype", "n", "split"), [
    (tk.bfloat16, 1321, True), (tk.bfloat16, 1322, False), (tk.float16, 67, True), (tk.float32, 1321, False),
    (tk.int8, 1321, False),
])  # fmt: skip
def test_rows_that_begin_anywhere_are_written_by_whole_lines(dtype, n, split):
    """Lanes hand each other words of 4 bytes, also the next one where rows begin between two: what is left is an element."""
    explained, compiled = stored_rows(n, dtype, 128 // dtype.itemsize)
    (stored,) = [access for access in explained.accesses if access.kind == "store"]
    assert (stored.bits, stored.edge_bits) == (32, 32)
    rows = 128 // 4  # of a warp, inside and at the edge
    sass, lines = compiled.sass, 4 if dtype == tk.int8 else dtype.itemsize  # whose results are int32
    assert sass.count("SHFL.IDX") == rows * lines * (1 + split)
    assert len(re.findall(r"\bSTG\.E ", sass)) == rows * (lines + 1)
    assert ("STG.E.U16" in sass) == split
    assert compiled.local_bytes == 0 and "STS" not in behind_products(compiled)


def behind_products(compiled):
    """The machine code behind the last product: before the first one, rows of stages are cleared."""
    _, product, behind = compiled.sass.rpartition("GMMA")
    assert product
    return behind


def stored_rows(n, dtype, depth, columns=128):
    """What is said of a product of so many columns, and its machine code."""
    options = {"precision": "tf32"} if dtype == tk.float32 else {}
    op = kernels.gemm(api.meta((3928, depth), dtype), api.meta((n, depth), dtype).T, tile=(128, columns, depth), **options)
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    return launch.explain("sm_90a"), launch.compile("sm_90a")


@pytest.mark.parametrize("n", [4104, 4112])
def test_transposes_are_written_as_wide_as_threads_have_neighbours(n):
    """A warp has 16 rows of a tile of warpgroups, which are a sector of a column of the result: neighbours come in pairs."""
    launch = launch_of(24, n, 64, tk.bfloat16)
    assert set(re.findall(r"\bSTG[.\w]*", launch.compile("sm_90a").sass)) == {"STG.E"}


def exactly(m, n, k, layout="NN"):
    return of(m, n, k)._replace(
        itemsize=4, stored=4, begins=math.gcd(4 * n, model.STAGED_BYTES), across=(layout[0] == "T", layout[1] == "N")
    )


def exact_ways(*shape, **options):
    """By tile, the clocks of the best way of exact products."""
    ways = exact.exact_ways(exactly(*shape, **options), even=True, fetched=True, splits=None)
    return {way[:2]: way.clocks for way in reversed(ways)}


def test_tiles_of_exact_float32_have_few_rows_of_what_comes_one_element_at_a_time():
    """240 x 6704 x 11240 with `b` along K took 8 % longer with 128 columns; 560 x 2992 x 592, and `a` so, with 128 rows."""
    turned, plain, even = (exact_ways(1024, 4096, 4096, layout=layout) for layout in ("TT", "NN", "TN"))
    assert turned[128, 64] * 1.07 < turned[64, 128]
    assert plain[64, 128] * 1.07 < plain[128, 64]
    assert even[64, 128] == even[128, 64] < plain[64, 128]


def test_blocks_of_exact_float32_that_get_a_tile_more_are_few_or_many():
    """The first that a GPU starts lie on the same multiprocessor, some of them, and take it as long as three with one more."""
    product = exactly(176, 9304, 15272)
    way = exact.exact_way(product, even=True, fetched=True, splits=None)
    assert (way.rows, way.columns, way.room) == (64, 128, 3)
    parts = {parts: exact.clocks(product, way._replace(parts=parts), True) for parts in (2, 3, 4)}
    assert parts[3] > 1.05 * parts[4], "of 657 tiles 261 of 396 blocks have two"
    assert parts[3] == pytest.approx(parts[2], rel=0.1), "of 438, 42 have"
    assert way.clocks <= parts[4]


def test_rows_of_exact_float32_that_begin_anywhere_are_stored_in_long_pieces():
    odd = exact.exact_way(exactly(6046, 1649, 1)._replace(shape=(49, 6046, 1649, 1)), even=False, fetched=True, splits=None)
    assert odd.columns == 128


def test_parts_of_little_work_are_short():
    """Blocks that wait for few steps each, and one more launch, where whole sums would leave most multiprocessors idle."""
    way = exact.exact_way(exactly(96, 440, 272), even=True, fetched=True, splits=None)
    blocks = -(-96 // way.rows) * -(-440 // way.columns) * way.parts
    assert way.parts > 1 and MULTIPROCESSORS * 0.9 < blocks <= MULTIPROCESSORS


def test_blocks_of_exact_float32_that_are_loaded_have_room():
    """No more of them than a multiprocessor has registers for, by the model, and about as many."""
    for m, n, tile, warps in ((96, 440, (32, 32, 32), 4), (96, 440, (64, 32, 32), 2), (1000, 1000, (64, 64, 16), 4)):
        (room,) = {way.room for way in exact._cut(m, n, 0, True) if way[:4] == (*tile, warps)}
        op = kernels.gemm(api.meta((m, 272), tk.float32), api.meta((n, 272), tk.float32).T, tile=tile, num_warps=warps)
        op.consumed()
        (launch,) = op.parts()
        launch.consumed()
        fits = launch.explain("sm_90a").blocks_per_multiprocessor
        assert room <= fits <= 1.5 * room


def test_rows_of_exact_float32_that_are_spared():
    """Tiles of 32 rows, where those of 64 would have nearly as many beyond the product; else none."""
    sizes = {m: {way[:2] for way in exact._cut(m, 9017, 0, False)} for m in (66, 90, 1000)}
    assert {m: (32, 128) in each for m, each in sizes.items()} == {66: True, 90: True, 1000: False}
    assert all((128, 32) not in each for each in sizes.values())


def test_clusters_are_as_the_schedule_says():
    product = of(75, 14336, 8192, across=(True, False))
    options = dict.fromkeys(("copied", "cpu", "tf32"), False) | dict.fromkeys(("tile", "num_warps", "splits"))
    chosen = schedules.schedule_of(product, staged=True, even=True, **options)
    assert chosen.cluster == (1, 4)
    assert chosen.mapped(api.meta((75, 14336), tk.bfloat16)).cluster == (1, 4)
    assert chosen.mapped(api.meta((3, 75, 14336), tk.bfloat16)).cluster == (1, 1, 4)


def test_blocks_that_are_alone_have_all_stages():
    launch = launch_of(40, 8192, 8192, tk.bfloat16)
    assert launch._options.occupancy == 1
    (ring,) = launch.explain("sm_90a").pipelines
    assert ring.stages > 4


def test_other_warps_than_the_model_has_in_mind_get_one_tile():
    """Two next to each other would be two products for groups of warps that have columns of their own."""
    assert dict(launch_of(768, 6144, 4096, tk.bfloat16, num_warps=4)._options.generics).keys() == {"BM", "BN", "BK"}


@pytest.mark.parametrize(
    ("shape", "tile", "warps"),
    [
        ((4096, 4096, 512), (128, 128), 4),
        ((4096, 4100, 512), (128, 128), 4),
        ((4096, 4099, 512), (128, 128), 4),
        ((1000, 1000, 1000), (64, 128), 4),  # 64 tiles of 128 x 128 would leave half of the multiprocessors idle
        ((2000, 2000, 500), (128, 128), 4),
        ((2176, 2048, 500), (64, 128), 4),  # 272 tiles of 128 x 128 would take a third round for 8 of them
        ((271, 14987, 15583), (64, 128), 4),
        ((512, 1024, 512), (64, 128), 4),  # in parts: of whole sums a multiprocessor would have one block of small tiles
        ((20, 4096, 512), (32, 128), 4),
        ((96, 440, 272), (32, 32), 4),  # of larger ones, and parts of the sum, a fifth of the multiprocessors would have one
        ((6, 5, 7), (16, 16), 1),
    ],
    ids=str,
)
def test_tiles_of_exact_float32(shape, tile, warps):
    assert tile_of(*shape, tk.float32) == tile
    assert launch_of(*shape, tk.float32)._options.num_warps == warps


def test_few_products_of_exact_float32_are_not_multiplied_by_zeros():
    a, b = api.meta((21, 16384, 2), tk.float32), api.meta((21, 2, 128), tk.float32)
    op = kernels.gemm(a, b)
    op.consumed()
    (launch,) = op.parts()
    assert dict(launch._options.generics)["BK"] == 4
    launch.consumed()
    kernel = launch.compile(target="sm_90a")
    assert kernel.local_bytes == 0
    assert set(re.findall(r"STG[.\w]*", kernel.sass)) == {"STG.E.128"}


@pytest.mark.parametrize("extra", [0, 3], ids=["aligned", "words"])
@pytest.mark.parametrize("way", exact._STAGED, ids=lambda way: f"{way.rows}x{way.columns}")
def test_blocks_of_exact_float32_have_room(way, extra):
    """As many as the model says, and what multiplies does not spill; what copies words may keep some of it in memory."""
    a, b = api.meta((4096 + extra, 4096 + extra), tk.float32), api.meta((4096 + extra, 4096 + extra), tk.float32).T
    op = kernels.gemm(a, b, tile=way[:3], num_warps=way.warps)
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    explained = launch.explain("sm_90a")
    assert [ring.stages for ring in explained.pipelines] == [4]
    assert explained.blocks_per_multiprocessor == way.room
    assert explained.compiled.spilled_bytes <= (64 if extra and way.rows == way.columns else 0)


def test_exact_float32_with_another_matrix_beside_it_has_smaller_tiles():
    """For its elements a thread has registers only where it has 64 of the result."""
    alone, beside = (
        exact.exact_way(exactly(8192, 8192, 1024)._replace(beside=nbytes), even=True, fetched=True, splits=None)
        for nbytes in (0, 4)
    )
    assert (alone[:2], sorted(beside[:2])) == ((128, 128), [64, 128])


def test_sums_of_exact_float32_are_split_where_there_are_few_tiles():
    few, many = (
        exact.exact_way(exactly(*shape), even=True, fetched=True, splits=None)
        for shape in ((512, 512, 16384), (8192, 8192, 1024))
    )
    assert few.parts > 2 and many.parts == 1
    assert exact.exact_way(exactly(512, 512, 16384), even=True, fetched=True, splits=3).parts == 3


def test_tiles_of_batches_of_exact_float32():
    """A thread of a small tile has 64 elements, too, where each multiprocessor has several."""
    a, b = api.meta((1133, 213, 53), tk.float32).permute(0, 2, 1), api.meta((1133, 213, 272), tk.float32)
    op = kernels.gemm(a, b)
    op.consumed()
    (launch,) = op.parts()
    launch.consumed()
    kernel = launch.compile(target="sm_90a")
    found = Counter(re.findall(r"\b(FFMA|LDS(?:\.U)?(?:\.64|\.128)?)\b", kernel.sass))
    read = sum(found[name] for name in ("LDS.128", "LDS.U.128"))
    assert found["FFMA"] >= 512
    assert found["FFMA"] >= 12 * read
    assert not kernel.local_bytes


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("n", [2048, 2047], ids=["even", "odd"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_thread_of_exact_float32_reads_an_operand_for_eight_products(n, turned, target):
    a, b = api.meta((4096, n), tk.float32), api.meta((n, 4096), tk.float32)
    op = kernels.gemm(a, api.meta((4096, n), tk.float32).T if turned else b)
    op.consumed()
    launch = next(part for part in op.parts() if part.kernel.name != "_pack")
    launch.consumed()
    kernel = launch.compile(target=target)
    warps = launch._options.num_warps
    assert kernel.registers <= 65536 // (2 * 32 * warps), "two blocks on a multiprocessor"
    assert kernel.spilled_bytes <= (32 if warps == 8 else 0)
    found = Counter(re.findall(r"\b(FFMA|LDS(?:\.U)?(?:\.64|\.128)?)\b", kernel.sass))
    read = sum(
        found[name] * words for name, words in (("LDS", 1), ("LDS.64", 2), ("LDS.U.64", 2), ("LDS.128", 4), ("LDS.U.128", 4))
    )
    assert found["FFMA"] >= 512
    assert found["FFMA"] >= 2.5 * read


def test_what_is_added_to_transposes_of_a_batch_may_be_one_matrix():
    op = kernels.gemm(
        api.meta((5, 24, 240), tk.float8_e4m3fn), api.meta((176, 240), tk.float8_e4m3fn).T, api.meta((24, 176)), dtype=tk.float32
    )
    op.consumed()
    (launch,) = op.parts()
    assert launch.arguments[0].tensor.strides[-2:] == (1, 176), "it is the transposes that are stored"
    along = [argument for argument in launch.arguments if type(argument) is tuple]
    assert (0, 1, 1) in along, "where the matrix has the extents of the result"
    assert (1, 1, 0) not in along


def test_the_model_cuts_tiles_as_the_compiler_does():
    assert pieces.LEAST_COLUMNS == model._LEAST_PIECE
    assert [model._pieces(model.Way(64, columns, 4, sharing=6)) for columns in (128, 16, 96)] == [4, 2, 1]
