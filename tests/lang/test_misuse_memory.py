"""What views, gather, scatter and atomics refuse: in the same words on the CPU device and by the compiler."""

import pytest

import tilekit as tk
from tilekit import api


def load_order(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 4), order=(0, 0)).reshape(16))


def load_order_name(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 4), order="K").reshape(16))


def load_mask_dtype(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 4), mask=tk.arange(4)).reshape(16))


def load_mask_shape(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 4), mask=tk.arange(8) < 4).reshape(16))


def load_mask_larger(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 1), mask=(tk.arange(4) < 4)).reshape(4))


def load_two_paddings(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 4), padding_mode="nan", padding_value=1.0).reshape(16))


def load_rank(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), 16))


def element_rank(y: tk.Out, x: tk.In):
    y.store(tk.load(x, 0, ()))


def view_rank(y: tk.Out, x: tk.In):
    y.store(x.tiled_view(16).load(0))


def view_steps(y: tk.Out, x: tk.In):
    y.store(x.tiled_view((4, 4), traversal_steps=(1, 0)).load((0, 0)).reshape(16))


def view_steps_rank(y: tk.Out, x: tk.In):
    y.store(x.tiled_view((4, 4), traversal_steps=2).load((0, 0)).reshape(16))


def view_store(y: tk.Out, x: tk.In):
    x.tiled_view((4, 4)).store((0, 0), 1.0)


def view_load(y: tk.Out, x: tk.In):
    x.tiled_view((4, 4)).load((0, 0))
    y.tiled_view(4).load(0)


def view_store_shape(y: tk.Out, x: tk.In):
    y.tiled_view(8).store(0, tk.load(x, (0, 0), (4, 4)))


def view_mode(y: tk.Out, x: tk.In):
    x.tiled_view((4, 4), "edge")


def grid_rank(y: tk.Out, x: tk.In):
    for t in x.tiles((4, 4))[:]:
        y.store(t.reshape(16))


def grid_index(y: tk.Out, x: tk.In):
    for t in x.tiles((4, 4))[1.5, :]:
        y.store(t.reshape(16))


def grid_of_two(y: tk.Out, x: tk.In):
    for t in x.tiles(4, 4):
        y.store(t.reshape(16))


def tiles_of_a_plain_tensor(y: tk.Out, x: tk.In):
    for _ in x.tiles():
        y.store(1.0)


def slice_axis(y: tk.Out, x: tk.In):
    y.store(tk.load(x.slice(2, 0, 4), (0, 0), (4, 4)).reshape(16))


def slice_bound(y: tk.Out, x: tk.In):
    y.store(tk.load(x.slice(0, 0.5, 4), (0, 0), (4, 4)).reshape(16))


def tiles_axis(y: tk.Out, x: tk.In):
    y.store(tk.num_tiles(x, 2, (4, 4)) * 1.0)


def gather_rank(y: tk.Out, x: tk.In):
    y.store(tk.gather(x, tk.arange(16)))


def gather_float(y: tk.Out, x: tk.In):
    y.store(tk.gather(x, (0, tk.arange(16) * 1.0)))


def gather_shapes(y: tk.Out, x: tk.In):
    y.store(tk.gather(x, (tk.arange(4), tk.arange(16))))


def gather_padding(y: tk.Out, x: tk.In):
    y.store(tk.gather(x, (0, tk.arange(16)), padding_value=x))


def gather_written_only(y: tk.Out, x: tk.In):
    y.store(tk.gather(y, tk.arange(16)))


def scatter_shape(y: tk.Out, x: tk.In):
    tk.scatter(y, tk.arange(16), tk.zeros(8))


def scatter_larger(y: tk.Out, x: tk.In):
    tk.scatter(y, 0, tk.zeros(8))


def scatter_dtype(y: tk.Out, x: tk.In):
    tk.scatter(y, tk.arange(16), tk.zeros(16, tk.float64))


def scatter_mask(y: tk.Out, x: tk.In):
    tk.scatter(y, tk.arange(16), 1.0, mask=1)


def store_into_in(y: tk.Out, x: tk.In):
    tk.store(x, (0, 0), 1.0)


def atomic_bits(y: tk.InOut, x: tk.In):
    tk.atomic_or(y, 0, 1)


def atomic_scope(y: tk.InOut, x: tk.In):
    tk.atomic_add(y, 0, 1.0, memory_scope="cluster")


def add_tile_rank(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(y, 0, tk.zeros((4, 4)))


def add_tile_index(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(y, (0, 0), tk.zeros(4))


def add_tile_float_index(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(y, 0.5, tk.zeros(4))


def add_tile_read_only(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(x, (0, 0), tk.zeros((4, 4)))


def add_tile_written_only(y: tk.Out, x: tk.In):
    tk.atomic_add_tile(y, 0, tk.zeros(4))


def add_tile_dtype(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(y, 0, tk.zeros(4, tk.float64))


def add_tile_scalar(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(y, 0, 1.0)


def add_tile_tensor(y: tk.InOut, x: tk.In):
    tk.atomic_add_tile(1.0, 0, tk.zeros(4))


def load_policy(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 4), eviction_policy="evict").reshape(16))


def load_policy_name(y: tk.Out, x: tk.In):
    y.store(tk.load(x, (0, 0), (4, 4), eviction_policy=1).reshape(16))


def load_like_policy(y: tk.InOut, x: tk.In):
    y.store(tk.load_tile_like(y, y, eviction_policy=".cs"))


def load_own_policy(y: tk.InOut, x: tk.In):
    y.store(y.load(eviction_policy=""))


def store_policy(y: tk.Out, x: tk.In):
    tk.store(y, 0, 1.0, eviction_policy="write_back")


def store_own_policy(y: tk.Out, x: tk.In):
    y.store(1.0, eviction_policy="write_back")


def view_load_policy(y: tk.Out, x: tk.In):
    y.store(x.tiled_view((4, 4)).load((0, 0), eviction_policy="last").reshape(16))


def view_store_policy(y: tk.Out, x: tk.In):
    y.tiled_view(4).store(0, 1.0, eviction_policy="last")


def gather_policy(y: tk.Out, x: tk.In):
    y.store(tk.gather(x, (0, tk.arange(16)), eviction_policy="last"))


def scatter_policy(y: tk.Out, x: tk.In):
    tk.scatter(y, tk.arange(16), 1.0, eviction_policy="last")


POLICIES = "eviction_policy is one of 'evict_normal', 'evict_first', 'evict_last', 'no_allocate', not "
PERMUTED = "load: order is 'C', 'F', or a tuple with each of the 2 dimensions once, not "
INDICES = "gather: indices are integer tiles and ints, one for each dimension of the tensor, not a float32 tile"
WRONG = {
    load_order: PERMUTED + "(0, 0)",
    load_order_name: PERMUTED + "'K'",
    load_mask_dtype: "load: the mask is a bool tile; this one holds int32",
    load_mask_shape: "load: tiles of shapes (8,) and (4, 4) do not match; an extent of 1 would broadcast",
    load_mask_larger: "load: a mask of shape (4,) for a tile of shape (4, 1)",
    load_two_paddings: "load: padding_mode or padding_value, not both",
    load_rank: "load: a tile of shape (16,) of x, which has 2 dimensions",
    element_rank: "load: 1 indices for x, which has 2 dimensions",
    view_rank: "tiled_view: a tile of shape (16,) of x, which has 2 dimensions",
    view_steps: "tiled_view: traversal_steps is a positive int, or a tuple of them, not (1, 0)",
    view_steps_rank: "tiled_view: 1 traversal_steps for a tensor of 2 dimensions",
    view_store: "store: x is a tensor that is only read: writing needs a partition",
    view_load: "load: y is declared Out, which is written only; annotate it InOut to read it",
    view_store_shape: "store: a tile of shape (4, 4) into y, whose tiles are (8,)",
    view_mode: "tiled_view: padding_mode is one of 'zero', 'neg_zero', 'nan', 'inf', '-inf', not 'edge'",
    grid_rank: "[]: 1 indices for the tiles of x, which has 2 dimensions",
    grid_index: "[]: an index of tiles is an int, ':' or a range such as 'a:b', not ",
    grid_of_two: "tiles: one tile shape, such as x.tiles((64, 32)), not 2 arguments",
    tiles_of_a_plain_tensor: "tiles: x is a tensor without tiles of its own: writing needs a partition; pass x.partition(...)",
    slice_axis: "slice: axis 2 of a tile with 2 dimensions; there are -2 to 1",
    slice_bound: "slice: start and stop are ints, not ",
    tiles_axis: "num_tiles: axis 2 of a tile with 2 dimensions; there are -2 to 1",
    gather_rank: "gather: 1 indices for x, which has 2 dimensions",
    gather_float: INDICES,
    gather_shapes: "gather: tiles of shapes (4,) and (16,) do not match; an extent of 1 would broadcast",
    gather_padding: "gather: padding_value is a scalar or a tile, not the tensor x",
    gather_written_only: "gather: y is declared Out, which is written only; annotate it InOut to read it",
    scatter_shape: "scatter: tiles of shapes (8,) and (16,) do not match; an extent of 1 would broadcast",
    scatter_larger: "scatter: a tile of shape (8,) for indices of shape ()",
    scatter_dtype: "scatter: a float64 tile does not fit y, a float32 tensor, without loss; write .astype(y.dtype)",
    scatter_mask: "scatter: the mask is a bool tile, not ",
    store_into_in: "store: x is a tensor without tiles of its own: writing needs a partition; pass x.partition(...) to write it",
    add_tile_rank: "atomic_add_tile: a tile of shape (4, 4) of y, which has 1 dimensions",
    add_tile_index: "atomic_add_tile: 2 indices for y, which has 1 dimensions",
    add_tile_float_index: "atomic_add_tile: a tile index is an int or a tuple of ints, not ",
    add_tile_read_only: "atomic_add_tile: x is a tensor that is only read: writing needs a partition, or x.scattered()",
    add_tile_written_only: "atomic_add_tile: y is declared Out, which is written only; annotate it InOut to read it",
    add_tile_dtype: "atomic_add_tile: a float64 tile does not fit y, a float32 tensor, without loss; write .astype(y.dtype)",
    add_tile_scalar: "atomic_add_tile: adds a tile, not ",
    add_tile_tensor: "atomic_add_tile: needs a tensor parameter, not ",
    load_policy: f"load: {POLICIES}'evict'",
    load_policy_name: f"load: {POLICIES}1",
    load_like_policy: f"load_tile_like: {POLICIES}'.cs'",
    load_own_policy: f"load: {POLICIES}''",
    store_policy: f"store: {POLICIES}'write_back'",
    store_own_policy: f"store: {POLICIES}'write_back'",
    view_load_policy: f"load: {POLICIES}'last'",
    view_store_policy: f"store: {POLICIES}'last'",
    gather_policy: f"gather: {POLICIES}'last'",
    scatter_policy: f"scatter: {POLICIES}'last'",
    atomic_bits: "atomic_or: y holds float32; there are atomics of this kind for int32, uint32, int64, uint64",
    atomic_scope: "atomic_add: memory_scope is one of 'block', 'device', 'system', not 'cluster'",
}


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_misuse_on_the_cpu_device(cpu, function):
    with pytest.raises(tk.CompileError) as caught:
        tk.kernel(function)(api.zeros(16).partition(16), api.zeros((8, 16))).sync()
    assert caught.value.reason.startswith(WRONG[function])
    assert caught.value.line.strip().startswith(("y.", "x.", "tk.", "for "))


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_misuse_for_a_gpu(function):
    pytest.importorskip("numba.cuda", reason="compiles kernels")
    with pytest.raises(tk.CompileError) as caught:
        tk.kernel(function)(api.meta(16).partition(16), api.meta((8, 16))).compile(target="sm_90a")
    assert caught.value.reason.startswith(WRONG[function])
    assert caught.value.line.strip().startswith(("y.", "x.", "tk.", "for "))
