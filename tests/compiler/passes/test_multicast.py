"""Which tiles the blocks of a cluster load alike: what may differ between them, and what decides about loops."""

import pytest
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.nodes import definitions
from tilekit.compiler.passes.multicast import alike

TILE = (64, 64)
bid = tk.bid


def shared(kernel, clusters=None):
    """For each loop of a kernel, in the order of their lines, along which dimensions of the cluster its streams are alike: for
    each `y`, if along all that have several tiles, the number of one, or `n`.
    """
    clusters = {"c": (2, 1)} if clusters is None else clusters
    x, arguments = api.meta((4096, 4096), tk.float16), []
    kernel.__annotations__.update({name: tk.Out if name in "cd" else int if name == "n" else tk.In for name in names(kernel)})
    for name in names(kernel):
        cut = {"cluster": clusters[name]} if name in clusters else {}
        arguments.append(x.partition(TILE).map(num_blocks=64, **cut) if name in "cd" else 1 if name == "n" else x)
    ir = ir_of(tk.kernel(kernel)(*arguments))
    loops = [operation for operation in ir.walk() if operation.kind == "stream"]
    whole = sum(1 << d for d, n in enumerate(next(iter(clusters.values()), ())) if n > 1)
    letters = {0: "n", 1: "0", 2: "1"} | ({whole: "y"} if whole else {})
    return ["".join(letters[each] for each in streams) for streams in alike(ir, loops, definitions(ir)).values()]


def names(kernel):
    return kernel.__code__.co_varnames[: kernel.__code__.co_argcount]


def product(c, a, b):
    for tile in c.tiles():
        i, j = tile.index
        for _ in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, j]):
            pass


@pytest.mark.parametrize(
    ("clusters", "wanted"),
    [
        ({"c": (2, 1)}, "ny"),
        ({"c": (1, 2)}, "yn"),
        ({"c": (2, 2)}, "10"),
        ({"c": (2, 4)}, "10"),
        ({"c": (8, 1)}, "ny"),
        ({}, "nn"),
    ],
)
def test_the_dimension_that_has_one_tile_in_a_cluster(clusters, wanted):
    assert shared(product, clusters) == [wanted]


def test_a_tile_that_is_indexed():
    def kernel(c, a, b):
        for tile in c.tiles():
            for _ in tk.pipelined(a.tiles(TILE)[tile.index[0], :], b.tiles(TILE)[:, tile.index[1]]):
                pass

    assert shared(kernel) == ["ny"]
    assert shared(kernel, {"c": (1, 2)}) == ["yn"]


def test_how_an_index_is_taken_apart_makes_no_difference():

    def whole(c, a, b):
        for tile in c.tiles():
            index, again = tile.index, tile
            for _ in tk.pipelined(a.tiles(TILE)[:, index[1]], b.tiles(TILE)[:, again.index[1]]):
                pass

    def from_behind(c, a, b):
        for tile in c.tiles():
            for _ in tk.pipelined(a.tiles(TILE)[:, tile.index[-1]], b.tiles(TILE)[:, 0]):
                pass

    assert shared(whole) == ["yy"]
    assert shared(from_behind) == ["yy"]


def test_arithmetic_and_variables():
    def kernel(c, a, b, n):
        shift = n * 2
        for tile in c.tiles():
            i, j = tile.index
            up = j // 2 + shift
            down = up
            down += i
            both: int = min(i, j)
            for _ in tk.pipelined(
                a.tiles(TILE)[up, :], a.tiles(TILE)[down, :], a.tiles(TILE)[both, :], a.tiles(TILE)[j % 2 + 1, :],
                b.tiles(TILE)[n + c.shape[0], :], b.tiles(TILE)[0, :], b.tiles(TILE)[tk.num_blocks(0), :],
            ):  # fmt: skip
                pass

    assert shared(kernel) == ["ynnyyyy"]


def test_a_variable_that_differs_anywhere_differs_everywhere():
    """Also where it gets its value later in the text, through others, or in a turn before."""

    def kernel(c, a, b):
        k, m = 0, 0
        for tile in c.tiles():
            i, j = tile.index
            for _ in tk.pipelined(a.tiles(TILE)[k, :], a.tiles(TILE)[m, :], b.tiles(TILE)[:, j]):
                pass
            k = m
            m = i

    assert shared(kernel) == ["nny"]


@pytest.mark.parametrize("own", [tk.bid, bid], ids=["by module", "by name"])
def test_the_number_of_the_block(own):
    def by_module(c, a, b):
        for tile in c.tiles():
            j = tile.index[1]
            for _ in tk.pipelined(a.tiles(TILE)[tk.bid(0), :], b.tiles(TILE)[:, j]):
                pass

    def by_name(c, a, b):
        me = bid(0) // 2
        for tile in c.tiles():
            j = tile.index[1]
            for _ in tk.pipelined(a.tiles(TILE)[me, :], b.tiles(TILE)[:, j]):
                pass

    assert shared(by_module if own is tk.bid else by_name) == ["ny"]


def test_outside_of_the_loop_over_tiles():
    def kernel(c, a, b):
        for _ in tk.pipelined(a.tiles(TILE)[0, :], b.tiles(TILE)[tk.bid(0), :]):
            pass
        for tile in c.tiles():
            c.store(0.0, tile)

    assert shared(kernel) == ["yn"]


@pytest.mark.parametrize("differs", [False, True])
def test_branches_that_blocks_take_apart(differs):
    """Nothing is shared in the whole kernel: a block that goes another way would wait for copies that nobody makes."""

    def by_row(c, a, b):
        for tile in c.tiles():
            i, j = tile.index
            if i % 2 == 0:
                for _ in tk.pipelined(b.tiles(TILE)[:, j]):
                    pass
            for _ in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, j]):
                pass

    def by_column(c, a, b):
        for tile in c.tiles():
            i, j = tile.index
            if j % 2 == 0:
                for _ in tk.pipelined(b.tiles(TILE)[:, j]):
                    pass
            else:
                for _ in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, j]):
                    pass

    assert shared(by_row if differs else by_column) == (["n", "nn"] if differs else ["y", "ny"])


def test_what_branches_and_loops_that_differ_assign():
    def branches(c, a, b):
        k, m, at = 0, 0, 0
        for tile in c.tiles():
            i, j = tile.index
            if i > 3:
                k = j
            else:
                m += 1
            while at < i:
                at += 1
            for _ in tk.pipelined(a.tiles(TILE)[k, :], a.tiles(TILE)[m, :], a.tiles(TILE)[at, :], b.tiles(TILE)[j, :]):
                pass

    def counts(c, a, b):
        last, n = 0, 0
        for tile in c.tiles():
            i, j = tile.index
            for k in range(i):
                last = k
            for k2 in range(j):
                n = k2
            for _ in tk.pipelined(a.tiles(TILE)[last, :], b.tiles(TILE)[n, :]):
                pass

    assert shared(branches) == ["nnny"]
    assert shared(counts) == ["ny"]


def test_loops_around_whose_length_differs():
    def by_row(c, b):
        for tile in c.tiles():
            i, j = tile.index
            for _k in range(i):
                for _ in tk.pipelined(b.tiles(TILE)[:, j]):
                    pass

    def by_column(c, b):
        for tile in c.tiles():
            j = tile.index[1]
            at = 0
            while at < j:
                at += 1
                for _ in tk.pipelined(b.tiles(TILE)[at, :]):
                    pass

    assert shared(by_row) == ["n"]
    assert shared(by_column) == ["y"]


def test_lengths():
    """One stream that is as long as the row of the tile is (a triangle), and all of the kernel's go on their own."""

    def triangle(c, a, b):
        for tile in c.tiles():
            i, j = tile.index
            for _ in tk.pipelined(a.tiles(TILE)[i, 0:i], b.tiles(TILE)[0:i, j]):
                pass
            for _ in tk.pipelined(b.tiles(TILE)[:, j]):
                pass

    def other(c, a, b):
        for tile in c.tiles():
            i, j = tile.index
            for _ in tk.pipelined(a.tiles(TILE)[i, j : j + 3], b.tiles(TILE)[j : j + 3, j]):
                pass

    assert shared(triangle) == ["nn", "n"]
    assert shared(other) == ["ny"]


def test_one_pipeline_in_the_turn_of_another():
    def kernel(c, a, b):
        for tile in c.tiles():
            j = tile.index[1]
            at = 0
            for _ in tk.pipelined(a.tiles(TILE)[:, j]):
                at += 1  # noqa: SIM113
                for _t in tk.pipelined(b.tiles(TILE)[at, :], a.tiles(TILE)[tile.index[0], :]):
                    pass

    assert shared(kernel) == ["y", "yn"]


@pytest.mark.parametrize("way", ["return", "break", "continue", "break by row"])
def test_ways_out(way):
    """All blocks of a cluster take them, or none; but a block that is gone cannot be told anything."""

    def returns(c, b):
        if c.shape[0] == 0:
            return
        for tile in c.tiles():
            for _ in tk.pipelined(b.tiles(TILE)[:, tile.index[1]]):
                pass

    def breaks(c, b):
        for tile in c.tiles():
            for _ in tk.pipelined(b.tiles(TILE)[:, tile.index[1]]):
                pass
            if c.shape[0] == 0:
                break

    def continues(c, b):
        for tile in c.tiles():
            if c.shape[0] == 0:
                continue
            for _ in tk.pipelined(b.tiles(TILE)[:, tile.index[1]]):
                pass

    def breaks_by_row(c, b):
        for tile in c.tiles():
            for _ in tk.pipelined(b.tiles(TILE)[:, tile.index[1]]):
                pass
            if tile.index[0] == 0:
                break

    ways = {"return": (returns, "n"), "break": (breaks, "y"), "continue": (continues, "y"), "break by row": (breaks_by_row, "n")}
    kernel, wanted = ways[way]
    assert shared(kernel) == [wanted]


def test_one_loop_over_two_partitions_that_are_cut_alike():
    """There are two maps, though with the same cluster: nothing is shared."""

    def kernel(c, d, b):
        for tile in c.tiles(d):
            for _ in tk.pipelined(b.tiles(TILE)[:, tile.index[1]]):
                pass

    assert shared(kernel, {"c": (2, 1), "d": (2, 1)}) == ["n"]


def second_map(c, d, a, b):
    for tile in c.tiles():
        c.store(0.0, tile)
    for other in d.tiles():
        m, n = other.index
        for _ in tk.pipelined(a.tiles(TILE)[m, :], b.tiles(TILE)[:, n]):
            pass


def test_a_second_map_that_has_no_clusters():
    """The blocks of a cluster of `c` visit any tiles of `d`, and not equally many."""
    assert shared(second_map, {"c": (2, 1)}) == ["nn"]


def test_a_tile_that_is_another_ones_in_some_blocks():
    def kernel(c, b):
        for first in c.tiles():
            c.store(0.0, first)
        for tile in c.tiles():
            if tk.bid(0) % 2 == 0:
                tile = first
            i, j = tile.index
            for _ in tk.pipelined(b.tiles(TILE)[:, tile.index[1]], b.tiles(TILE)[:, j]):
                c.store(i, tile)

    assert shared(kernel) == ["nn"]
