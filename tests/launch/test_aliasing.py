"""What the arguments of a launch must not be to each other: tensors of other extents, and memory that blocks would race for."""

import numpy as np
import pytest
from tiled import host, numbers, refuse

import tilekit as tk
from tilekit import api
from tilekit.compiler.passes.aliasing import apart

# ------------------------------------------------------------------------------------------------------------- other extents


@tk.kernel
def vecadd(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) + tk.load_tile_like(y, z))


@pytest.mark.parametrize("n", [1, 4, 10, 11, 13, 24])
def test_a_tile_like_that_of_a_tensor_of_other_extents_is_refused(device, n):
    x, y = api.ones(12).sync(), api.ones(n).sync()
    text = refuse(
        vecadd(api.zeros(12).sync().partition(4), x, y),
        ValueError,
        rf"kernel vecadd: arguments y of shape \({n},\) and z of shape \(12,\) have other extents, and tk.load_tile_like\(y, z\)",
    )
    assert 'if padding is meant, write tk.load_tile_like(y, z, padding_mode="zero"), or tk.load' in text
    result = vecadd(api.zeros(n).sync().partition(4), y, api.ones(n)).first().unpartition()
    np.testing.assert_array_equal(result.to_host().sync(), np.full(n, 2.0))


def test_padding_that_is_meant_is_no_error(device):
    @tk.kernel
    def padded(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z, padding_mode="zero") + 1)

    z = padded(api.zeros(12).partition(4), api.ones(10)).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(z, [2] * 10 + [1] * 2)


def test_a_dimension_of_one_is_not_repeated_either(device):
    @tk.kernel
    def copied(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y))

    target = api.zeros((4, 8)).sync().partition((2, 4))
    for shape in ((1, 8), (4, 1), (0, 8), (8, 4)):
        refuse(copied(target, api.ones(shape).sync()), ValueError, "have other extents")
    copied(target, api.ones((4, 8))).sync()


@tk.function
def taken(source, like):
    return tk.load_tile_like(source, like)


@tk.function
def through_another(tensors, like):
    first, _ = tensors
    return taken(first, like)


@tk.kernel
def by_helper(y: tk.Out, x: tk.In):
    y.store(taken(x, y))


@tk.kernel
def by_helpers(y: tk.Out, x: tk.In, n):
    t = tk.zeros(y.tile_shape)
    for _ in range(2):
        t = t + through_another((x, y), y)
    y.store(t)


@tk.kernel
def by_variables(y: tk.Out, x: tk.In):
    a, b = x, y
    c = a
    b.store(tk.load_tile_like(like=b, array=c))


@tk.kernel
def by_blocks(y: tk.Out, x: tk.In):
    if tk.bid(0) == 0:
        y.store(tk.load_tile_like(x, y))
    else:
        y.store(0.0)


@tk.kernel
def by_turns(y: tk.Out, x: tk.In):
    for tile in y.tiles():
        y.store(tk.load_tile_like(x, tile), tile)


@pytest.mark.parametrize("kernel", [by_helper, by_helpers, by_variables, by_blocks, by_turns], ids=lambda k: k.name)
def test_helpers_variables_and_loops_are_followed(device, kernel):
    y = api.zeros(16).sync().partition(4)
    y, more = (y.map(num_blocks=2) if kernel is by_turns else y), (1,) * (kernel is by_helpers)
    refuse(kernel(y, api.ones(12).sync(), *more), ValueError, r"arguments x of shape \(12,\) and y of shape \(16,\)")
    kernel(y, api.ones(16), *more).sync()


def test_what_need_not_run_is_no_error(device):
    """A stand-in for a tensor that is not used, and extents that the kernel looks at itself."""

    @tk.kernel
    def biased(y: tk.Out, x: tk.In, b: tk.In, has_bias, constant: tk.Const):
        t = tk.load_tile_like(x, y)
        if has_bias:
            t = t + tk.load_tile_like(b, y)
        if constant:
            t = t + tk.load_tile_like(b, y)
        y.store(t)

    @tk.kernel
    def looked_at(y: tk.Out, x: tk.In):
        if x.shape[0] == y.shape[0]:
            y.store(tk.load_tile_like(x, y))
        else:
            y.store(tk.sum(tk.load(x, 0, 1)))

    @tk.kernel
    def left_early(y: tk.Out, x: tk.In, n):
        y.store(3.0)
        if n == 0:
            return
        y.store(tk.load_tile_like(x, y))

    x, dummy = api.full(8, 2.0).sync(), api.zeros(1).sync()
    for op in (biased(api.zeros(8).partition(4), x, dummy, False, False), looked_at(api.zeros(8).partition(4), api.full(1, 2.0))):
        np.testing.assert_array_equal(op.first().unpartition().to_host().sync(), [2] * 8)
    left_early(api.zeros(8).partition(4), dummy, 0).sync()
    refuse(biased(api.zeros(8).sync().partition(4), x, dummy, False, True), ValueError, "arguments b of shape")


def test_a_prefix_covers_what_a_shorter_tensor_has(device):
    y, x = api.zeros(40).sync(), numbers(16)
    copied(y.partition(8).prefix(2), api.from_host(x)).sync()
    np.testing.assert_array_equal(host(y)[:16], x)
    refuse(copied(y.partition(8).prefix(3), api.from_host(x).sync()), ValueError, "have other extents")


@tk.kernel
def copied(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


def test_it_is_seen_again_for_other_tensors(device):
    """What is found once is the pair of parameters; extents are compared for each shape, in recorded launches too."""
    for n in (8, 16, 8):
        copied(api.zeros(n).partition(4), api.ones(n)).sync()
        refuse(
            copied(api.zeros(n).sync().partition(4), api.ones(n + 1).sync()), ValueError, rf"\({n + 1},\) and y of shape \({n},\)"
        )
    x, y = api.ones(8).sync(), api.zeros(8).sync()
    graph = copied(y.partition(4), tk.slot("x", x)).graph()
    with pytest.raises(ValueError, match="recorded for shape"):
        graph.bind(x=api.ones(9).sync())


def test_it_needs_no_device():
    with pytest.raises(ValueError, match="have other extents"):
        copied(api.meta(8).partition(4), api.meta(9)).compile(target="sm_90a")


# ------------------------------------------------------------------------------------------------------ one view, in and out


@tk.kernel
def reverse_tiles(y: tk.Out, x: tk.In):
    y.store(tk.load(x, tk.num_blocks(0) - 1 - tk.bid(0), 2))


@tk.kernel
def whole(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y) / tk.sum(tk.load(x, 0, 8)))


@tk.kernel
def moved(y: tk.Out, x: tk.In):
    tk.store(y, tk.num_blocks(0) - 1 - tk.bid(0), tk.load_tile_like(x, y))


@tk.kernel
def gathered(y: tk.Out, x: tk.In):
    y.store(tk.gather(x, 7 - (tk.bid(0) * 2 + tk.arange(2))))


@tk.kernel
def sliced(y: tk.Out, x: tk.In):
    y.store(tk.load(x.slice(0, 0), tk.bid(0), 2))


@tk.kernel
def narrower(y: tk.Out, x: tk.In):
    y.store(tk.sum(tk.load(x, tk.bid(0), 1)))


@tk.kernel
def some_time(y: tk.Out, x: tk.In, n):
    i = tk.bid(0)
    if n > 0:
        i = 3 - i
    y.store(tk.load(x, i, 2))


@tk.kernel
def kept(y: tk.Out, x: tk.In, z: tk.In, n):
    w = x if n > 0 else z
    y.store(tk.load(w, 3 - tk.bid(0), 2))


@tk.kernel
def written_before(y: tk.Out, x: tk.In):
    y.store(1.0)
    y.store(tk.load_tile_like(x, y))


@pytest.mark.parametrize(
    "kernel", [reverse_tiles, whole, moved, gathered, sliced, narrower, some_time, written_before], ids=lambda k: k.name
)
def test_blocks_that_read_what_others_write_are_refused_in_place(device, kernel):
    y = api.from_host(numbers(8)).sync()
    more = (1,) * (kernel is some_time)
    text = refuse(
        kernel(y.partition(2), y, *more),
        ValueError,
        r"arguments y and x are the same memory, y is written",
    )
    assert "tk.load_tile_like(x, y) does. Pass a dup() of one of them" in text
    np.testing.assert_array_equal(host(y), numbers(8))
    kernel(y.partition(2), y.dup(), *more).sync()


def test_a_block_that_is_alone_may_read_anything(device):
    y = api.ones(8).sync()
    whole(y.partition(8), y).sync()
    np.testing.assert_array_equal(host(y), np.full(8, 0.125))


@tk.function
def twice(source, at):
    return tk.load(source, at, 2) * 2


@tk.kernel
def own_index(y: tk.Out, x: tk.In):
    y.store(tk.load(x, tk.bid(0), y.tile_shape) * 2)


@tk.kernel
def own_of_a_helper(y: tk.Out, x: tk.In):
    i = tk.bid(0)
    tk.store(y, i, twice(x, i))


@tk.kernel
def own_row(y: tk.Out, x: tk.In):
    y.store(x.tiles((2,))[tk.bid(0)] * 2)


@tk.kernel
def own_and_described(y: tk.InOut, x: tk.In):
    n = x.shape[0] + tk.num_tiles(x, 0, 2)
    y.store(y.load() + tk.load_tile_like(x, y) + (n - 12))


@pytest.mark.parametrize("kernel", [own_index, own_of_a_helper, own_row, own_and_described], ids=lambda k: k.name)
def test_blocks_that_keep_to_their_tiles_work_in_place(device, kernel):
    y = api.from_host(numbers(8)).sync()
    kernel(y.partition(2), y).sync()
    np.testing.assert_array_equal(host(y), numbers(8) * 2)


@tk.kernel
def long_rows(y: tk.Out, x: tk.In, chunks):
    i, total = tk.bid(0), tk.zeros((1, 4))
    for j in range(chunks):
        total = total + tk.load(x, (i, j), (1, 4))
    whole = tk.sum(total)
    for j in range(chunks):
        tk.store(y, (i, j), tk.load(x, (i, j), y.tile_shape) / whole)


def test_rows_that_a_block_has_to_itself_work_in_place(device):
    x = np.arange(1, 41, dtype=np.float32).reshape(4, 10)
    y = api.from_host(x).sync()
    long_rows(y.partition((1, 4)).prefix((4, 1)), y, 3).sync()
    np.testing.assert_allclose(host(y), x / x.sum(1, keepdims=True), rtol=1e-6)
    # with blocks along the rows as well, one reads what the other writes
    refuse(long_rows(y.partition((1, 4)), y, 3), ValueError, "are the same memory")


@tk.kernel
def turns(y: tk.Out, x: tk.In):
    for tile in y.tiles():
        y.store(tk.load(x, tile.index, y.tile_shape) + tk.load_tile_like(x, tile), tile)


@tk.kernel
def other_turns(y: tk.Out, x: tk.In):
    for tile in y.tiles():
        y.store(tk.load(x, 7 - tile.index[0], 2), tile)


def test_tiles_of_a_map_work_in_place(device):
    y = api.from_host(numbers(16)).sync()
    turns(y.partition(2).map(num_blocks=3), y).sync()
    np.testing.assert_array_equal(host(y), numbers(16) * 2)
    refuse(other_turns(y.partition(2).map(num_blocks=3), y), ValueError, "are the same memory")


def test_a_tensor_that_may_be_either_is_refused(device):
    y = api.from_host(numbers(8)).sync()
    refuse(kept(y.partition(2), y, y.dup().sync(), 1), ValueError, "are the same memory")


def test_a_binding_that_blocks_would_race_for_is_refused(device):
    """In what was recorded, too: another tensor may be bound that is the output."""
    x, y = api.from_host(numbers(8)).sync(), api.zeros(8).sync()
    backwards = reverse_tiles(y.partition(2), tk.slot("x", x)).graph()
    with pytest.raises(ValueError, match=r"bind\(x=...\) would let kernel reverse_tiles use 32 bytes of which some"):
        backwards.bind(x=y)
    doubled = own_index(y.partition(2), tk.slot("x", x)).graph()
    doubled.bind(x=y).launch().sync()


def test_blocks_of_which_starred_arguments_say_where_they_load_are_not_known_to_keep_apart():
    """As a launch that is recorded asks of tensors that look alike."""

    @tk.kernel
    def plain(y: tk.Out, x: tk.In):
        y.store(tk.load(x, (tk.bid(0), tk.bid(1)), (2, 4)) * 2)

    @tk.kernel
    def starred(y: tk.Out, x: tk.In):
        place = ((tk.bid(0), tk.bid(1)), (2, 4))
        y.store(tk.load(x, *place) * 2)

    @tk.kernel
    def at_once(y: tk.Out, x: tk.In):
        y.store(tk.load(x, *((tk.bid(0), tk.bid(1)), (2, 4))) * 2)

    for kernel, keeps in ((plain, True), (starred, False), (at_once, False)):
        y, x = api.meta((4, 8)).partition((2, 4)), api.meta((4, 8))
        op = kernel(y, x)
        op.consumed()
        plan = op._plan("test")
        assert apart(plan.specialisation.bound, {"y": y, "x": x}, plan.grid, "y", "x") is keeps
