"""Persistent kernels as machine code: the order in which tiles are visited, and accesses as wide as in any other kernel."""

import ctypes
import itertools
import math
import re

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="compiles kernels")

from llvmlite import ir
from on_host import engine_of
from tiled import order

import tilekit as tk
from tilekit import api
from tilekit._tensor.partition import grouped_index
from tilekit.compiler.build import build
from tilekit.compiler.lower.mapped import _visited

TARGETS = ["sm_80", "sm_90a"]


def native(group, cluster=None, bits=32):
    """What the compiler emits for the index of a tile, as a function for this machine: `f(place, tiles, index)`."""
    i32, kind = ir.IntType(32), ir.IntType(bits)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [kind, kind.as_pointer(), kind.as_pointer()]), "index")
    builder = ir.IRBuilder(function.append_basic_block())
    at, tiles, out = function.args
    cell = lambda base, dim: builder.gep(base, [ir.Constant(i32, dim)])  # noqa: E731
    counts = [builder.load(cell(tiles, dim)) for dim in range(len(group))]
    for dim, value in enumerate(_visited(builder, at, counts, group, cluster)):
        builder.store(value, cell(out, dim))
    builder.ret_void()
    engine = engine_of(module)
    number = {32: ctypes.c_uint32, 64: ctypes.c_uint64}[bits]
    array = ctypes.POINTER(number)
    call = ctypes.CFUNCTYPE(None, number, array, array)(engine.get_function_address("index"))

    def index(at, tiles):
        out = (number * len(group))()
        call(at, (number * len(tiles))(*tiles), out)
        return tuple(out)

    index.engine = engine  # it owns the code
    return index


@pytest.mark.parametrize(
    "group", [(1,), (3,), (1, 1), (4, 1), (1, 4), (3, 2), (2, 1, 3), (1, 2, 1), (3, 3, 3), (2, 3, 1, 2), (1, 1, 1, 1)]
)
def test_the_compiled_order_is_that_of_the_host(group):
    index = native(group)
    for tiles in itertools.product((1, 2, 3, 5, 7), repeat=len(group)):
        if len(tiles) == 4 and math.prod(tiles) > 250:
            continue
        assert [index(at, tiles) for at in range(math.prod(tiles))] == [
            grouped_index(at, tiles, group) for at in range(math.prod(tiles))
        ]


@pytest.mark.parametrize(
    ("group", "cluster"),
    [
        ((1,), (2,)), ((5,), (3,)), ((1, 1), (2, 1)), ((4, 1), (2, 1)), ((3, 1), (2, 1)), ((4, 1), (1, 2)), ((3, 2), (2, 4)),
        ((2, 1, 3), (1, 2, 2)), ((2, 3, 1, 2), (2, 1, 2, 1)),
    ],
)  # fmt: skip
def test_the_compiled_order_of_clusters_is_that_of_the_host_and_of_numpy(group, cluster):
    index = native(group, cluster)
    for clusters in itertools.product((1, 2, 3, 5), repeat=len(group)):
        tiles = tuple(n * c for n, c in zip(clusters, cluster, strict=True))
        if len(tiles) == 4 and math.prod(tiles) > 250:
            continue
        expected = order(tiles, group, cluster)
        assert [grouped_index(at, tiles, group, cluster) for at in range(math.prod(tiles))] == expected
        assert [index(at, tiles) for at in range(math.prod(tiles))] == expected


def test_as_many_tiles_as_there_may_be():
    tiles, group = (46_341, 46_340), (8, 4)  # just under 2^31
    index = native(group)
    for at in (0, 1, 2**30, 2**31 - 2**20, math.prod(tiles) - 1):
        assert index(at, tiles) == grouped_index(at, tiles, group)
    assert index(math.prod(tiles) - 1, tiles) == (46_340, 46_339)
    tiles, group, cluster = (46_340, 46_340), (8, 4), (1, 2)
    index = native(group, cluster)
    for at in (0, 1, 2**30, 2**31 - 2**20, math.prod(tiles) - 1):
        assert index(at, tiles) == grouped_index(at, tiles, group, cluster)


@pytest.mark.parametrize(
    ("tiles", "group", "cluster"),
    [
        ((3_000_000_000,), (8,), None), ((70_000, 80_000), (8, 4), None), ((70_000, 80_000), (8, 4), (1, 2)),
        ((5, 2**33, 3), (2, 3, 1), None), ((2**20, 2**20), (8, 1), (2, 1)),
    ],
)  # fmt: skip
def test_more_tiles_than_32_bits_count(tiles, group, cluster):
    index, total = native(group, cluster, bits=64), math.prod(tiles)
    for at in (0, 1, 2**31 - 1, 2**31, min(2**32 + 5, total - 2), total // 3, total - 1):
        assert index(at, tiles) == grouped_index(at, tiles, group, cluster)


@tk.kernel
def scale(y: tk.Out, x: tk.In, a):
    for tile in y.tiles():
        y.store(a * tk.load_tile_like(x, tile), tile)


@tk.kernel
def increment(y: tk.InOut):
    for tile in y.tiles():
        y.store(y.load(tile) + 1.0, tile)


@tk.kernel
def transpose_tiles(y: tk.Out, x: tk.In):
    for tile in y.tiles():
        i, j = tile.index
        y.store(tk.load(x, (j, i), y.tile_shape), tile)


def compiled(kernel, shape, tile, group, target, **options):
    y = api.meta(shape, **options).partition(tile).map(group=group)
    arguments = {"scale": (api.meta(shape, **options), 2.0), "transpose_tiles": (api.meta(shape[::-1], **options),)}
    made = kernel(y, *arguments.get(kernel.name, ())).compile(target=target)
    return made, re.findall(r"\b((?:LDG|STG|LDL|STL)\b[.\w]*)", made.sass)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [scale, increment, transpose_tiles], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("shape", "group"), [((4096, 4096), (1, 1)), ((4096, 4096), (4, 1)), ((4096, 4096), (2, 4)), ((1000, 500), (4, 1))]
)
def test_accesses_are_wide_and_nothing_is_in_local_memory(kernel, shape, group, target):
    made, accesses = compiled(kernel, shape, (32, 32), group, target)
    assert {"LDG.E.128", "STG.E.128"} == set(accesses)
    assert made.local_bytes == 0
    assert ".local" not in made.ptx
    assert made.registers <= 64


@pytest.mark.parametrize("shape", [(1 << 20,), (64, 64, 64), (8, 16, 32, 64), ((1 << 33),)], ids=str)
def test_ranks_and_wide_extents(shape):
    tile = {1: (1024,), 3: (4, 8, 16), 4: (1, 2, 8, 16)}[len(shape)]
    made, accesses = compiled(increment, shape, tile, None, "sm_90a")
    assert {"LDG.E.128", "STG.E.128"} == set(accesses)
    assert made.local_bytes == 0


def test_tiles_that_divide_take_no_mask():
    """The loop has a branch; no access is predicated."""
    made, _ = compiled(scale, (4096, 4096), (32, 32), (4, 1), "sm_90a")
    assert not re.search(r"@p (ld|st)\.global", made.ptx)
    ragged, _ = compiled(scale, (4095, 4092), (32, 32), (4, 1), "sm_90a")
    assert re.search(r"@p ld\.global", ragged.ptx)


def test_the_group_is_part_of_the_compiled_code():
    """numba takes types of the same name for one type, whatever else they hold."""
    texts = {compiled(increment, (4096, 4096), (32, 32), group, "sm_90a")[0].ptx for group in ((1, 1), (4, 1), (8, 1), (4, 2))}
    assert len(texts) == 4
    launches = [increment(api.meta((4096, 4096)).partition((32, 32)).map(group=group)) for group in ((1, 1), (4, 1))]
    for launch in launches:
        launch._spent = True
    assert len({launch._plan("compile").specialisation.key("sm_90a") for launch in launches}) == 2


def test_the_cluster_is_part_of_the_compiled_code():
    """Also without a pipeline, whose tiles they would share: the order in which tiles are visited is another."""

    def launch(cluster):
        made = increment(api.meta((4096, 4096)).partition((32, 32)).map(num_blocks=8, cluster=cluster))
        made._spent = True
        return made._plan("compile").specialisation

    shapes = (None, (2, 1), (1, 2), (2, 2), (8, 1))
    made = [launch(cluster) for cluster in shapes]
    assert [specialisation.facts[0].cluster for specialisation in made] == list(shapes)
    assert len({specialisation.key("sm_90a") for specialisation in made}) == len(shapes)
    texts = [
        increment(api.meta((4096, 4096)).partition((32, 32)).map(num_blocks=8, cluster=cluster)).compile(target="sm_90a").ptx
        for cluster in shapes[:3]
    ]
    assert len(set(texts)) == 3
    assert not any("cluster" in text for text in texts), "nothing is shared: blocks run on their own"


@tk.kernel
def together(p: tk.InOut, m: tk.InOut):
    for tile in p.tiles(m):
        t = p.load(tile) * 0.5 + m.load(tile)
        m.store(t, tile)
        p.store(t, tile)


def test_a_loop_over_two_partitions_takes_no_mask_where_they_are_known_to_be_alike():
    p, m = (api.meta((4096, 4096)).partition((32, 32)).map(group=(4, 1)) for _ in range(2))
    made = together(p, m).compile(target="sm_90a")
    assert not re.search(r"@p (ld|st)\.global", made.ptx)
    launch = together(p, m)
    launch._spent = True
    facts = launch._plan("compile").specialisation.facts
    assert [fact.cut_class for fact in facts] == [0, 0]
    # numba's dispatchers are launched on whatever they are given
    loose = [fact._replace(covered=False) for fact in facts]
    made = build(launch._plan("compile").specialisation.bound, loose, None, "sm_90a")
    assert re.findall(r"@p (ld|st)\.global", made.ptx), "the tiles of m are only known to be tiles of p"
    assert made.local_bytes == 0


def test_the_number_of_blocks_is_not():
    y, x = api.meta((64, 64)), api.meta((64, 64))
    few, many = scale(y.partition((8, 8)).map(num_blocks=2), x, 2.0), scale(y.partition((8, 8)).map(num_blocks=3), x, 2.0)
    few._spent = many._spent = True
    plans = few._plan("compile"), many._plan("compile")
    assert plans[0] is not plans[1]
    assert plans[0].specialisation is plans[1].specialisation
    assert [plan.grid for plan in plans] == [(2, 1, 1), (3, 1, 1)]


def test_a_loop_in_a_loop_and_tiles_kept_across_iterations():
    @tk.kernel
    def nested(y: tk.InOut, x: tk.In):
        total = tk.zeros((8, 16))
        for tile in y.tiles():
            for other in y.tiles():
                total += y.load(other) * 0.5
            for k in range(4):
                total += tk.load(x, (tile.index[0], k), (8, 16))
            if tile.index[1] > 2:
                continue
            y.store(total, tile)

    made = nested(api.meta((64, 64)).partition((8, 16)).map(group=(2, 2)), api.meta((64, 64))).compile(target="sm_90a")
    assert made.local_bytes == 0


def refuse(kernel, *arguments):
    with pytest.raises(tk.CompileError) as caught:
        kernel(*arguments).compile(target="sm_90a")
    return caught.value


def mapped(n=8):
    return api.meta(n).partition(4).map()


def test_misuse_points_at_the_line():
    @tk.kernel
    def own(y: tk.Out):
        for _ in y.tiles():
            y.store(1.0)

    error = refuse(own, mapped())
    assert error.reason.startswith(
        "store: y is a mapped partition, whose blocks visit many tiles: name one, in `for tile in y.tiles()"
    )
    assert error.line.strip() == "y.store(1.0)"

    error = refuse(own, api.meta(8).partition(4))
    assert error.reason.startswith("tiles: y is a partition of which each block owns one tile: use y.load() and y.store(value)")
    assert error.line.strip() == "for _ in y.tiles():"


def test_types_that_are_no_tile_of_the_partition():
    @tk.kernel
    def bare(y: tk.Out):
        for _ in y.tiles():
            y.store(1.0, tk.bid(0))

    assert refuse(bare, mapped()).reason == (
        "store: the tile is one that y.tiles() gives, not a scalar (int); of any tile write tk.load(y, index, shape), "
        "tk.store(y, index, tile)"
    )

    @tk.kernel
    def swapped(y: tk.Out, z: tk.InOut):
        for tile in y.tiles():
            y.store(z.load(tile), tile)

    assert refuse(swapped, mapped(), mapped()).reason == (
        "load: the tile is one of y.tiles(); z takes tiles of its own, from z.tiles() or y.tiles(z)"
    )


def test_an_order_in_numpy():
    """`grouped_index` against groups cut out of an array of places."""
    for tiles, group in (((7, 5), (4, 1)), ((6, 4), (2, 2)), ((5, 3, 4), (2, 2, 3)), ((9,), (4,))):
        places = np.arange(math.prod(tiles)).reshape(tiles)
        starts = itertools.product(*(range(0, n, g) for n, g in zip(tiles, group, strict=True)))
        cut = [places[tuple(slice(s, s + g) for s, g in zip(start, group, strict=True))].ravel() for start in starts]
        expected = [tuple(map(int, np.unravel_index(place, tiles))) for place in np.concatenate(cut)]
        assert [grouped_index(at, tiles, group) for at in range(places.size)] == expected
