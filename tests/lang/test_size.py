"""How large a tile may be: the same limit, words and place on every device."""

import pytest

import tilekit as tk
from tilekit import api
from tilekit.lang.size import ELEMENTS_A_THREAD, MOST_WARPS, SORTED_A_THREAD

MOST = ELEMENTS_A_THREAD * 32 * MOST_WARPS
N, M = MOST, 2 * MOST
ROWS = 1024


def refused(op):
    """The CompileError of a launch on the CPU device, which is that of compiling it for a GPU."""
    with pytest.raises(tk.CompileError) as compiled:
        op().compile("sm_80")
    with pytest.raises(tk.CompileError) as run:
        op().sync()
    for error in (run.value, compiled.value):
        marked = error.line[error.column : error.column + error.width]
    assert (run.value.reason, run.value.lineno) == (compiled.value.reason, compiled.value.lineno)
    assert run.value.filename == __file__
    return run.value.reason, marked


def out(dtype=tk.float32, n=4):
    return api.zeros(n, dtype).sync().partition(n)


@tk.kernel
def zeros(y: tk.InOut):
    y.store(y.load() + tk.sum(tk.zeros(M)))


@tk.kernel
def arange(y: tk.InOut):
    y.store(y.load() + tk.sum(tk.arange(M).astype(tk.float32)))


@tk.kernel
def load(y: tk.InOut, x: tk.In):
    y.store(y.load() + tk.sum(tk.load(x, 0, M)))


@tk.kernel
def spread(y: tk.InOut, x: tk.In):
    column = tk.load(x, 0, ROWS)
    y.store(y.load() + tk.sum(column[:, None] + column[None, :]))


@tk.kernel
def repeated(y: tk.InOut, x: tk.In):
    y.store(y.load() + tk.sum(tk.broadcast_to(tk.load(x, 0, ROWS), (ROWS, ROWS))))


@tk.kernel
def beside(y: tk.InOut, x: tk.In):
    part = tk.load(x, 0, N)
    y.store(y.load() + tk.sum(tk.cat((part, part), 0)))


@tk.kernel
def outer(y: tk.InOut, x: tk.In):
    row = tk.load(x, 0, ROWS)
    y.store(y.load() + tk.sum(tk.matmul(row[:, None], row[None, :])))


@tk.kernel
def gathered(y: tk.InOut, x: tk.In):
    at = tk.arange(ROWS)
    y.store(y.load() + tk.sum(tk.gather(x, at[:, None] + 0 * at[None, :])))


CASES = [
    (zeros, "zeros", "tk.zeros(M)", (M,)),
    (arange, "arange", "tk.arange(M)", (M,)),
    (load, "load", "tk.load(x, 0, M)", (M,)),
    (spread, "+", "column[:, None] + column[None, :]", (ROWS, ROWS)),
    (repeated, "broadcast_to", "tk.broadcast_to(tk.load(x, 0, ROWS), (ROWS, ROWS))", (ROWS, ROWS)),
    (beside, "cat", "tk.cat((part, part), 0)", (M,)),
    (outer, "matmul", "tk.matmul(row[:, None], row[None, :])", (ROWS, ROWS)),
    (gathered, "+", "at[:, None] + 0 * at[None, :]", (ROWS, ROWS)),
]


@pytest.mark.parametrize(("kernel", "what", "place", "shape"), CASES, ids=[kernel.name for kernel, *_ in CASES])
def test_a_tile_that_no_block_holds(kernel, what, place, shape):
    x = api.zeros(M).sync()
    reason, marked = refused(lambda: kernel(out(), *[x] * (kernel is not zeros and kernel is not arange)))
    count = 1024 * 1024 if shape == (ROWS, ROWS) else M
    cure = "take smaller tiles" + (", or 32 warps a block (num_warps=32)" if count == M else "")
    assert reason == (
        f"{what}: a tile of shape {shape} has {count:,} elements; a block of 16 warps takes tiles of up to 131,072, "
        f"256 elements a thread: {cure}"
    )
    assert marked == place


@tk.kernel
def own(y: tk.InOut):
    y.store(y.load() + 1.0)


@tk.kernel
def negated(y: tk.InOut):
    y.store(-y.load())


@tk.kernel
def like(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


def test_a_partition_whose_tiles_no_block_holds():
    y = api.zeros(M).sync()
    assert refused(lambda: own(y.partition(M)))[1] == "y.load()"
    assert refused(lambda: like(y.partition(M), y.dup().sync()))[1] == "tk.load_tile_like(x, y)"


def test_the_limit_is_that_of_the_warps_asked_for(device):
    y, n = api.ones(8192 * 2).sync(), 8192 * 2
    with pytest.raises(tk.CompileError, match=r"16,384 elements; a block of 1 warps .* 8,192, .* or 2 warps a block"):
        own(y.partition(n)).num_warps(1).sync()
    assert own(y.partition(n)).num_warps(2).first().unpartition().to_host().sync().tolist() == [2.0] * n


def test_the_largest_tile_compiles():
    own(api.meta(N).partition(N)).compile("sm_90a")
    negated(api.meta(N, tk.int8).partition(N)).compile("sm_80")
    compiled = own(api.meta(M).partition(M)).num_warps(32).compile("sm_90a")
    assert compiled.block == (1024, 1, 1)


@tk.kernel
def in_order(y: tk.Out, x: tk.In):
    y.store(tk.sort(tk.load_tile_like(x, y)))


def test_sorted_tiles_are_smaller():
    n = 2 * SORTED_A_THREAD * 32 * MOST_WARPS
    x = api.zeros(n, tk.int8).sync()
    reason, marked = refused(lambda: in_order(api.zeros(n, tk.int8).sync().partition(n), x))
    assert reason.startswith(
        f"sort: a tile of shape ({n},) has 131,072 elements; a block of 16 warps takes tiles of up to 65,536"
    )
    assert marked == "tk.sort(tk.load_tile_like(x, y))"


def test_a_branch_that_is_not_taken_may_have_any_tile(device):
    """What types decide is decided before."""

    @tk.kernel
    def chosen(y: tk.InOut):
        if len(y.tile_shape) == 2:
            y.store(y.load() + tk.sum(tk.zeros(M)))
        else:
            y.store(y.load() + 1.0)

    assert chosen(api.zeros(4).partition(4)).first().unpartition().to_host().sync().tolist() == [1.0] * 4
