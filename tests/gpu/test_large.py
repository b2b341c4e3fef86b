"""Tensors beyond 2^31 elements, and grids beyond what CUDA launches, against PyTorch.

A case takes 30 GB at most, and gives them back. What is compared is computed by PyTorch on the device, chunk by chunk: most of
all where an index of 32 bits would have wrapped, at the far end.
"""

from __future__ import annotations

import gc
import math

import pytest

import tilekit as tk
from tilekit import api, kernels, memory
from tilekit.launch.foreign.configuration import LaunchConfig

torch = pytest.importorskip("torch", reason="torch, which computes what is compared with, is not installed")

pytestmark = pytest.mark.alone

CHUNK = 1 << 27  # elements that PyTorch computes at a time
N = 3_000_000_005  # beyond 2^31, a multiple of no tile
ROW = 2_200_000_000  # a row beyond 2^31
LIMIT = 1 << 31
SPARE = 6  # GB that PyTorch takes besides for a chunk
TAIL = 5_000  # elements at an end that are compared one by one
WHERE = "cuda"


@pytest.fixture(autouse=True)
def _room(device, request):
    """Room for the case, given back to both libraries."""
    needed = request.node.get_closest_marker("gigabytes")
    free = torch.cuda.mem_get_info()[0] / 1e9
    if needed is not None and free < needed.args[0] + SPARE:
        pytest.skip(f"takes {needed.args[0] + SPARE} GB of the GPU's memory; {free:.0f} are free")
    yield
    device.synchronize()
    gc.collect()
    memory.release()
    torch.cuda.empty_cache()


def gigabytes(n):
    return pytest.mark.gigabytes(n)


def pattern(start, stop, dtype=torch.int8):
    """Elements `start` to `stop` of a sequence without a short period, from 0 to 126."""
    i = torch.arange(start, stop, device=WHERE)
    return ((i ^ (i >> 11) ^ (i >> 23)) % 127).to(dtype)


def chunks(n):
    return ((start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


def made(shape, dtype=torch.int8, function=pattern):
    """A tensor of PyTorch's: `function(start, stop, dtype)` of its elements in C order; and tilekit's view of it."""
    n = math.prod(shape) if isinstance(shape, tuple) else shape
    flat = torch.empty(n, dtype=dtype, device=WHERE)
    for start, stop in chunks(n):
        flat[start:stop] = function(start, stop, dtype)
    theirs = flat.view(shape)
    torch.cuda.synchronize()
    return theirs, tk.as_tensor(theirs)


def seen(tensor):
    """A tensor of tilekit's as PyTorch's."""
    return torch.from_dlpack(tensor)


def same(ours, wanted):
    """Whether all elements are those that `wanted(start, stop)` gives."""
    flat = (ours if isinstance(ours, torch.Tensor) else seen(ours)).reshape(-1)
    for start, stop in chunks(flat.numel()):
        expected = wanted(start, stop)
        if not torch.equal(flat[start:stop], expected.to(flat.dtype)):
            at = int((flat[start:stop] != expected).nonzero()[0]) + start
            raise AssertionError(f"element {at} is {flat[at]}, not {wanted(at, at + 1)[0]}")


def near(ours, wanted, rtol=2e-3, atol=1e-3):
    torch.testing.assert_close(ours.float(), wanted.float(), rtol=rtol, atol=atol)


def launched(op, *, first=True):
    """The tensor behind the first argument of a launch."""
    done = op.sync()
    return done[0].unpartition() if first else done


# ----------------------------------------------------------------------------------------------------------------- elementwise


@tk.kernel
def plus(y: tk.Out, x: tk.In, a: int):
    y.store((tk.load_tile_like(x, y) + a).astype(y.dtype))


@gigabytes(10)
def test_each_element(device):
    _, x = made(N)
    same(launched(plus(api.empty(N, tk.int8).partition(4096), x, 1)), lambda a, b: pattern(a, b) + 1)


@gigabytes(14)
def test_more_elements_than_32_bits_count_without_a_sign(device):
    n = (1 << 32) + TAIL
    _, x = made(n)
    same(launched(plus(api.empty(n, tk.int8).partition(4096), x, 1)), lambda a, b: pattern(a, b) + 1)


@gigabytes(10)
def test_many_rows_and_few_columns(device):
    n = ROW // 8
    _, x = made((n, 8))
    y = launched(plus(api.empty((n, 8), tk.int8).partition((512, 8)), x, 2))
    same(y, lambda a, b: pattern(a, b) + 2)


@gigabytes(10)
def test_a_square_of_extents_that_fit_and_elements_that_do_not(device):
    shape = (50_000, 50_001)
    _, x = made(shape)
    same(launched(plus(api.empty(shape, tk.int8).partition((16, 256)), x, 2)), lambda a, b: pattern(a, b) + 2)


@gigabytes(8)
def test_a_conversion(device):
    n = LIMIT + TAIL
    _, x = made(n)
    same(x.astype(tk.int16).sync(), lambda a, b: pattern(a, b, torch.int16))


@gigabytes(8)
def test_a_copy(device):
    _, x = made(N)
    same(x.dup().sync(), pattern)


@gigabytes(8)
def test_filling_a_view_far_behind(device):
    theirs, x = made(N)
    x[LIMIT + 7 :].fill(99).sync()
    same(theirs, lambda a, b: torch.where(torch.arange(a, b, device=WHERE) < LIMIT + 7, pattern(a, b), 99))


@gigabytes(4)
def test_zeros_and_ones(device):
    y = api.ones(N, tk.int8).sync()
    same(y, lambda a, b: torch.ones(b - a, device=WHERE, dtype=torch.int8))


@gigabytes(12)
def test_a_range(device):
    n = LIMIT + TAIL
    same(
        api.arange(n, dtype=tk.uint32).sync().reinterpret(tk.int32), lambda a, b: torch.arange(a, b, device=WHERE).to(torch.int32)
    )


# ------------------------------------------------------------------------------------------------------------- loads and stores


@tk.kernel
def the_last(y: tk.Out, x: tk.In):
    """The last whole tile, and the number of tiles."""
    n = tk.num_tiles(x, 0, 1024)
    y.store(tk.load(x, n - 2, 1024).astype(tk.int64) + n)


@gigabytes(4)
def test_the_last_tile_by_the_number_of_tiles(device):
    _, x = made(N)
    y = launched(the_last(api.empty(1024, tk.int64).partition(1024), x))
    count = -(-N // 1024)
    assert torch.equal(seen(y), pattern((count - 2) * 1024, (count - 1) * 1024, torch.int64) + count)


@tk.kernel
def counted(y: tk.Out, x: tk.In):
    total = x.shape[0] + tk.num_tiles(x, 0, 1)
    y.store(tk.full(1, total, tk.int64))


@gigabytes(4)
def test_extents_and_tiles_are_not_cut_to_32_bits(device):
    y = launched(counted(api.empty(1, tk.int64).partition(1), api.empty(N, tk.int8).sync()))
    assert int(seen(y)) == 2 * N


@tk.kernel
def store_far(y: tk.Out, first: int):
    tk.store(y, first + tk.bid(0), tk.bid(0) % 100)


@gigabytes(4)
def test_stores_of_elements_far_behind(device):
    y = api.zeros(N, tk.int8).sync()
    store_far(y.scattered(), N - TAIL).grid(TAIL).sync()
    tail = seen(y)[N - 2 * TAIL :]
    assert torch.equal(tail[TAIL:], (torch.arange(TAIL, device=WHERE) % 100).to(torch.int8))
    assert not tail[:TAIL].any()


@tk.kernel
def gathered(y: tk.Out, x: tk.In, places: tk.In):
    y.store(tk.gather(x, tk.load_tile_like(places, y)))


@gigabytes(5)
def test_elements_by_index(device):
    _, x = made(N)
    places = torch.randint(0, N, (1 << 20,), device=WHERE)
    places[:4] = torch.tensor([N - 1, LIMIT, LIMIT - 1, 0])
    y = launched(gathered(api.empty(1 << 20, tk.int8).partition(1024), x, tk.as_tensor(places)))
    wanted = ((places ^ (places >> 11) ^ (places >> 23)) % 127).to(torch.int8)
    assert torch.equal(seen(y), wanted)


@tk.kernel
def moved(y: tk.Out, x: tk.In, by: int):
    """By index, `by` elements further: neighbours, which are moved together."""
    at = tk.arange(1024, dtype=tk.int64, start=tk.bid(0) * 1024)
    tk.scatter(y, at + by, tk.gather(x, at, mask=at < x.shape[0]), mask=at + by < y.shape[0])


@gigabytes(8)
def test_scattering_far_behind(device):
    _, x = made(TAIL)
    y = api.zeros(N, tk.int8).sync()
    moved(y.scattered(), x, N - TAIL).grid(-(-TAIL // 1024)).sync()
    tail = seen(y)[N - 2 * TAIL :]
    assert torch.equal(tail[TAIL:], pattern(0, TAIL))
    assert not tail[:TAIL].any()


@tk.kernel
def marked(y: tk.InOut, places: tk.In):
    tk.atomic_add(y, tk.load(places, tk.bid(0), 1024), 1)


@gigabytes(10)
def test_atomic_additions_far_behind(device):
    n = LIMIT + TAIL
    y = api.zeros(n, tk.int32).sync()
    places = torch.randint(LIMIT - TAIL, n, (1 << 16,), device=WHERE)
    marked(y.scattered(), tk.as_tensor(places)).grid((1 << 16) // 1024).sync()
    wanted = torch.bincount(places - (LIMIT - TAIL), minlength=2 * TAIL).to(torch.int32)
    assert torch.equal(seen(y)[LIMIT - TAIL :], wanted)
    assert int(seen(y)[:TAIL].sum()) == 0


# ------------------------------------------------------------------------------------------------------------------------- views


@tk.kernel
def copied(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@gigabytes(4)
def test_a_view_that_begins_far_behind(device):
    theirs, x = made(N)
    y = launched(copied(api.empty(TAIL, tk.int8).partition(1024), x[N - TAIL :]))
    assert torch.equal(seen(y), theirs[N - TAIL :])


@gigabytes(4)
def test_a_partition_of_what_is_far_behind(device):
    y, x = api.zeros(N, tk.int8).sync(), made(TAIL)[1]
    copied(y[N - 2 * TAIL : N - TAIL].partition(1024), x).sync()
    tail = seen(y)[N - 3 * TAIL :]
    assert torch.equal(tail[TAIL : 2 * TAIL], pattern(0, TAIL))
    assert not tail[:TAIL].any()
    assert not tail[2 * TAIL :].any()


@gigabytes(8)
def test_every_third_element(device):
    _, x = made(N)
    same(x[1::3].dup().sync(), lambda a, b: pattern(3 * a + 1, 3 * b)[::3])


@gigabytes(8)
def test_all_elements_from_the_end(device):
    _, x = made(N)
    same(x[::-1].dup().sync(), lambda a, b: pattern(N - b, N - a).flip(0))


@gigabytes(10)
def test_a_transposed_view_is_copied(device):
    rows, columns = 70_001, 40_000
    theirs, x = made((rows, columns))
    y = seen(x.T.dup().sync())
    for at in (0, columns // 2, columns - 100):
        assert torch.equal(y[at : at + 100], theirs[:, at : at + 100].T)


@tk.kernel
def sliced(y: tk.Out, x: tk.In, first: int):
    rest = x.slice(0, first)
    y.store(tk.load(rest, tk.bid(0), y.tile_shape))


@gigabytes(4)
def test_a_slice_in_a_kernel(device):
    theirs, x = made(N)
    first = N - 3 * TAIL
    y = launched(sliced(api.empty(TAIL, tk.int8).partition(1024), x, first))
    assert torch.equal(seen(y), theirs[first : first + TAIL])


@tk.kernel
def windows(y: tk.Out, x: tk.In):
    """Windows that overlap, from the last on."""
    view = x.tiled_view(1024, traversal_steps=512)
    y.store(view.load(view.num_tiles(0) - 3 - tk.bid(0)))


@gigabytes(4)
def test_windows_that_overlap(device):
    theirs, x = made(N)
    y = seen(launched(windows(api.empty(4096, tk.int8).partition(1024), x)))
    for block in range(4):
        first = (-(-N // 512) - 3 - block) * 512
        assert torch.equal(y[1024 * block : 1024 * (block + 1)], theirs[first : first + 1024])


@tk.kernel
def added_up(y: tk.Out, x: tk.In, first: int):
    total = tk.zeros(1024, tk.int32)
    for t in x.tiles(1024)[first:-1]:
        total = total + t.astype(tk.int32)
    y.store(total)


@gigabytes(4)
def test_a_row_of_tiles(device):
    theirs, x = made(N)
    tiles = -(-N // 1024)
    y = launched(added_up(api.empty(1024, tk.int32).partition(1024), x, tiles - 101))
    wanted = theirs[(tiles - 101) * 1024 : (tiles - 1) * 1024].view(100, 1024).sum(0, dtype=torch.int32)
    assert torch.equal(seen(y), wanted)


# ------------------------------------------------------------------------------------------------------------------------- grids


@tk.kernel
def numbered(y: tk.Out):
    """The place of the block, from the axes of the grid."""
    at = (tk.bid(0) * tk.num_blocks(1) + tk.bid(1)) * tk.num_blocks(2) + tk.bid(2)
    y.store(tk.full(y.tile_shape, at, tk.int64).astype(y.dtype))


@pytest.mark.parametrize("shape", [(3, 70_000), (70_000, 3), (2, 3, 100_000), (1, 66_000, 3), (100_000, 2, 2)], ids=str)
def test_a_grid_beyond_what_cuda_launches_along_an_axis(device, shape):
    y = launched(numbered(api.empty(shape, tk.int32).partition((1,) * len(shape))))
    assert torch.equal(seen(y).flatten(), torch.arange(math.prod(shape), device=WHERE, dtype=torch.int32))


def test_a_partition_of_four_dimensions_beyond_what_cuda_launches(device):
    shape = (2, 3, 70_000, 4)
    _, x = made(shape)
    same(launched(plus(api.empty(shape, tk.int8).partition((1, 1, 1, 4)), x, 1)), lambda a, b: pattern(a, b) + 1)


@gigabytes(3)
def test_a_plane_of_more_blocks_than_32_bits_count(device):
    shape = (50_000, 43_000)
    y = launched(numbered(api.empty(shape, tk.uint8).partition((1, 1))))
    same(y, lambda a, b: (torch.arange(a, b, device=WHERE) & 255).to(torch.uint8))


@tk.kernel
def some(y: tk.InOut, step: int):
    """One block in `step` writes."""
    if tk.bid(0) % step == 0:
        tk.atomic_add(y, 0, tk.bid(0) // step)
        tk.atomic_add(y, 1, 1)


def test_a_line_of_three_thousand_million_blocks(device):
    blocks, step = 3_000_000_000, 1_000_003
    y = api.zeros(2, tk.int64).sync()
    some(y.scattered(), step).grid(blocks).sync()
    count = -(-blocks // step)
    assert seen(y).tolist() == [count * (count - 1) // 2, count]


def test_prepared_launches_and_graphs_are_folded(device):
    y, stream = api.zeros((3, 70_000), tk.int32).sync(), device.policy.next_stream()
    wanted = torch.arange(3 * 70_000, device=WHERE, dtype=torch.int32)
    for way in ("prepare", "graph"):
        y.fill(0).sync()
        found = getattr(numbered(y.partition((1, 1))), way)()
        found.run(stream)
        stream.synchronize()
        assert torch.equal(seen(y).flatten(), wanted)


@gigabytes(10)
def test_a_graph_of_copies_and_fills(device):
    _, x = made(N)
    y = api.zeros(N, tk.int8).sync()
    graph = x.copy_into(y).graph()
    graph.run(device.policy.next_stream())
    device.synchronize()
    same(y, pattern)
    fill = y.fill(5).graph()
    fill.run(device.policy.next_stream())
    device.synchronize()
    same(y, lambda a, b: torch.full((b - a,), 5, dtype=torch.int8, device=WHERE))


def test_another_languages_kernel_is_told_the_axis_and_its_limit(device):
    with pytest.raises(ValueError, match=r"grid \(1, 70000\) has 70000 along axis 1; CUDA has 0 to 65535 there"):
        LaunchConfig(grid=(1, 70_000), block=32)
    with pytest.raises(ValueError, match=r"up to \(2147483647, 65535, 65535\) blocks along the axes 0, 1, 2"):
        numbered(api.empty((1, 70_000), tk.int32).sync().partition((1, 1))).dispatcher()


@tk.kernel
def visited(y: tk.Out, x: tk.In):
    for tile in y.tiles():
        y.store(tk.load_tile_like(x, tile), tile)


@gigabytes(8)
def test_a_persistent_kernel(device):
    _, x = made(N)
    same(launched(visited(api.empty(N, tk.int8).sync().partition(4096).map(num_blocks=1056), x)), pattern)


@gigabytes(6)
def test_a_persistent_kernel_with_more_tiles_than_32_bits_count(device):
    shape = ((LIMIT + 2**16) // 256, 256)
    _, x = made(shape)
    cut = api.empty(shape, tk.int8).sync().partition((1, 1)).map(group=(8, 1), num_blocks=132 * 32)
    same(launched(visited(cut, x).num_warps(1)), pattern)


# ---------------------------------------------------------------------------------------------------------- reductions and places


@tk.kernel
def totalled(total: tk.InOut, x: tk.In):
    tk.atomic_add(total, 0, tk.sum(tk.load(x, tk.bid(0), 4096).astype(tk.int64)))


@gigabytes(4)
def test_a_sum(device):
    theirs, x = made(N)
    total = api.zeros(1, tk.int64).sync()
    totalled(total.scattered(), x).grid(-(-N // 4096)).sync()
    assert int(seen(total)) == sum(int(theirs[a:b].sum(dtype=torch.int64)) for a, b in chunks(N))


def halves(start, stop, dtype=torch.float16):
    return pattern(start, stop, torch.int16).to(dtype) / 128


@gigabytes(6)
@pytest.mark.parametrize("at", [[ROW - 1], [LIMIT + 5, ROW - 3]], ids=str)
def test_argmax_of_a_row(device, at):
    theirs, x = made((1, ROW), torch.float16, halves)
    theirs[0, at] = 100.0
    torch.cuda.synchronize()
    assert seen(kernels.argmax(x).sync()).tolist() == [at[0]]


@gigabytes(8)
def test_topk_of_a_row(device):
    theirs, x = made((1, ROW), torch.float16, halves)
    places = [LIMIT + 11, 17, ROW - 1, LIMIT - 1]
    theirs[0, places] = torch.tensor([40.0, 30.0, 20.0, 10.0], dtype=torch.float16, device=WHERE)
    torch.cuda.synchronize()
    values, found = kernels.topk(x, 4).sync()
    assert seen(found).tolist() == [places]
    assert seen(values).tolist() == [[40.0, 30.0, 20.0, 10.0]]


@gigabytes(12)
@pytest.mark.parametrize("bins", [256, 1 << 16])
def test_a_histogram(device, bins):
    n = LIMIT + 100_000
    theirs = torch.full((n,), 3, dtype=torch.int32, device=WHERE)
    theirs[-1000:] = bins - 1
    theirs[-10:] = bins  # none
    torch.cuda.synchronize()
    found = kernels.histogram(tk.as_tensor(theirs), bins).sync()
    assert found.dtype == tk.int64
    counts = seen(found)
    assert (int(counts[3]), int(counts[bins - 1]), int(counts.sum())) == (n - 1000, 990, n - 10)


@gigabytes(20)
def test_cumsum_of_a_row(device):
    theirs, x = made((1, ROW), torch.int32, lambda a, b, dtype: pattern(a, b, dtype) % 2)
    y = seen(kernels.cumsum(x).sync())[0]
    before = 0
    for start, stop in chunks(ROW):
        wanted = theirs[0, start:stop].cumsum(0, dtype=torch.int64) + before
        assert torch.equal(y[start:stop], wanted.to(torch.int32))
        before = int(wanted[-1])


@gigabytes(20)
def test_cumsum_of_many_rows(device):
    shape = (ROW // 8, 8)
    theirs, x = made(shape, torch.int32)
    y = seen(kernels.cumsum(x).sync())
    for start in range(0, shape[0], CHUNK // 8):
        part = theirs[start : start + CHUNK // 8]
        assert torch.equal(y[start : start + CHUNK // 8], part.cumsum(1, dtype=torch.int32))


@gigabytes(10)
def test_a_transposed_copy(device):
    shape = (70_000 * 128, 300)
    theirs, x = made(shape)
    y = seen(kernels.transpose(x).sync())
    for at in (0, shape[0] // 2, shape[0] - CHUNK // 512):
        assert torch.equal(y[:, at : at + CHUNK // 512], theirs[at : at + CHUNK // 512].T)


# ------------------------------------------------------------------------------------------------------------------ rows and sums


def rows_like(ours, theirs, function, **tolerance):
    """Rows of a matrix, computed in float32: those at both ends."""
    ours = seen(ours)
    count = max(1, CHUNK // 4 // theirs.shape[1])
    for part in (slice(0, count), slice(max(0, theirs.shape[0] - count), None)):
        near(ours[part], function(theirs[part].float()), **tolerance)


@gigabytes(14)
def test_softmax_of_many_rows(device):
    theirs, x = made((ROW // 16, 16), torch.float16, halves)
    rows_like(kernels.softmax(x).sync(), theirs, lambda t: torch.softmax(t, 1))


@gigabytes(14)
def test_softmax_of_a_long_row(device):
    theirs, x = made((1, ROW), torch.float16, lambda a, b, dtype: halves(a, b, dtype) * 0)
    theirs[0, -1] = 21.5  # as much as all others together
    torch.cuda.synchronize()
    y = seen(kernels.softmax(x).sync())[0]
    total = math.exp(21.5) + ROW - 1
    near(y[-1], torch.tensor(math.exp(21.5) / total, device=WHERE))
    assert float(y[LIMIT:-1].float().max()) <= 1e-6


@gigabytes(14)
def test_layer_norm_of_many_rows(device):
    theirs, x = made((ROW // 32, 32), torch.float16, halves)
    w, b = api.ones(32, tk.float16).sync(), api.zeros(32, tk.float16).sync()
    rows_like(kernels.layer_norm(x, w, b).sync(), theirs, lambda t: torch.layer_norm(t, (32,)), rtol=1e-2, atol=1e-2)


@gigabytes(16)
def test_rms_norm_of_a_long_row(device):
    theirs, x = made((1, ROW), torch.float16, halves)
    y = seen(kernels.rms_norm(x, api.ones(ROW, tk.float16).sync()).sync())[0]
    square = sum(float(theirs[0, a:b].float().square().sum(dtype=torch.float64)) for a, b in chunks(ROW))
    factor = 1 / math.sqrt(square / ROW + 1e-6)
    for part in (slice(0, TAIL), slice(LIMIT, LIMIT + TAIL), slice(ROW - TAIL, None)):
        near(y[part], theirs[0, part].float() * factor, rtol=1e-2, atol=1e-2)


@gigabytes(10)
def test_cross_entropy_of_many_rows(device):
    theirs, x = made((ROW // 8, 8), torch.float16, halves)
    target, classes = made(ROW // 8, torch.int64, lambda a, b, dtype: torch.arange(a, b, device=WHERE) % 8)
    losses, _ = kernels.cross_entropy(x, classes, reduction="none").sync()
    for part in (slice(0, TAIL), slice(-TAIL, None)):
        near(seen(losses)[part], torch.nn.functional.cross_entropy(theirs[part].float(), target[part], reduction="none"))


@gigabytes(10)
def test_cross_entropy_of_many_classes(device):
    theirs, x = made((1, ROW), torch.float16, lambda a, b, dtype: halves(a, b, dtype) * 0)
    theirs[0, -1] = 3.0
    torch.cuda.synchronize()
    for dtype, wanted in ((torch.int64, ROW - 1), (torch.int32, LIMIT - 1)):
        loss, lse = kernels.cross_entropy(x, tk.as_tensor(torch.tensor([wanted], dtype=dtype, device=WHERE))).sync()
        total = math.log(ROW - 1 + math.exp(3.0))
        near(seen(lse).flatten()[0], torch.tensor(total, device=WHERE))
        near(seen(loss).flatten()[0], torch.tensor(total - 3.0 * (wanted == ROW - 1), device=WHERE))


@gigabytes(20)
def test_rms_norm_backward_of_many_rows(device):
    theirs, x = made((ROW // 32, 32), torch.float16, halves)
    grads, g = made((ROW // 32, 32), torch.float16, lambda a, b, dtype: halves(a + 1, b + 1, dtype) - 0.5)
    w = torch.ones(32, device=WHERE, dtype=torch.float16)
    dx, dw = kernels.rms_norm_backward(g, x, tk.as_tensor(w)).sync()
    total = torch.zeros(32, device=WHERE, dtype=torch.float64)
    rows = CHUNK // 4 // 32
    for start in range(0, theirs.shape[0], rows):
        t, d = theirs[start : start + rows].float(), grads[start : start + rows].float()
        r = torch.rsqrt(t.square().mean(1, keepdim=True) + 1e-6)
        total += (d * t * r).sum(0, dtype=torch.float64)
    near(seen(dw), total.half(), rtol=2e-2, atol=1.0)
    t, d = theirs[-rows:].float(), grads[-rows:].float()
    r = torch.rsqrt(t.square().mean(1, keepdim=True) + 1e-6)
    near(seen(dx)[-rows:], r * (d - t * r * r * (d * t).mean(1, keepdim=True)), rtol=1e-2, atol=1e-2)


@gigabytes(14)
def test_gelu(device):
    _, x = made(ROW, torch.float16, halves)
    y = seen(kernels.gelu(x).sync())
    for a, b in ((0, TAIL), (LIMIT - TAIL, LIMIT + TAIL), (ROW - TAIL, ROW)):
        near(y[a:b], torch.nn.functional.gelu(halves(a, b).float()))


# ---------------------------------------------------------------------------------------------------------------- random numbers


@tk.kernel
def drawn(y: tk.Out, first: int, seed: int):
    y.store(tk.rand(seed, tk.arange(1024, dtype=tk.int64, start=first + tk.bid(0) * 1024)))


def random_from(first, seed):
    """`tk.rand` of 8192 places, drawn by a small launch."""
    return seen(launched(drawn(api.empty(8192).partition(1024), first, seed)))


@gigabytes(10)
def test_random_numbers(device):
    n = LIMIT + 100_000
    y = seen(api.rand(n, seed=7).sync())
    for first in (0, LIMIT - 8192, LIMIT, n - 8192):
        assert torch.equal(y[first : first + 8192], random_from(first, 7))


@gigabytes(6)
def test_normally_distributed_numbers(device):
    n = LIMIT + 100_000
    y = seen(api.randn(1.0, 2.0, n, seed=3, dtype=tk.float16).sync())
    tail = y[LIMIT - 1_000_000 :].float()
    assert abs(float(tail.mean()) - 1.0) < 0.02
    assert abs(float(tail.std()) - 2.0) < 0.02
    head = seen(api.randn(1.0, 2.0, 4096, seed=3, dtype=tk.float16).sync())
    assert torch.equal(y[:4096], head)
    assert not torch.equal(y[LIMIT : LIMIT + 4096], head)


@gigabytes(5)
def test_random_integers(device):
    y = seen(api.randint(-5, 6, N, tk.int8, seed=1).sync())
    tail = y[LIMIT:]
    assert (int(tail.min()), int(tail.max())) == (-5, 5)
    assert not torch.equal(y[:4096], y[LIMIT : LIMIT + 4096])


@gigabytes(14)
def test_dropout(device):
    _, x = made(ROW, torch.float16, lambda a, b, dtype: halves(a, b, dtype) + 1)
    y = seen(kernels.dropout(x, 0.25, 11).sync())
    for first in (0, LIMIT - 4096, ROW - 8192):
        t = halves(first, first + 8192).float() + 1
        near(y[first : first + 8192], torch.where(random_from(first, 11) >= 0.25, t / 0.75, 0.0))


# ------------------------------------------------------------------------------------------------------------ tables and products


@gigabytes(4)
def test_rows_of_a_large_table(device):
    theirs, table = made((ROW // 128, 128))
    ids = torch.randint(0, ROW // 128, (5000,), device=WHERE)
    ids[:2] = torch.tensor([ROW // 128 - 1, LIMIT // 128])
    torch.cuda.synchronize()
    for dtype in (torch.int64, torch.int32):
        found = kernels.embedding(table, tk.as_tensor(ids.to(dtype))).sync()
        assert torch.equal(seen(found), theirs[ids])


@gigabytes(6)
def test_many_rows_of_a_small_table(device):
    """The result is large: a block a row."""
    theirs, table = made((100, 8))
    ids, numbers = made(ROW // 8, torch.int32, lambda a, b, dtype: pattern(a, b, dtype) % 100)
    found = seen(kernels.embedding(table, numbers).sync())
    for part in (slice(0, TAIL), slice(-TAIL, None)):
        assert torch.equal(found[part], theirs[ids[part].long()])


@gigabytes(16)
def test_the_gradient_of_an_embedding(device):
    shape = (ROW // 8, 8)
    grads, g = made(shape, torch.float16, lambda a, b, dtype: torch.ones(b - a, dtype=dtype, device=WHERE))
    ids, numbers = made(shape[0], torch.int32, lambda a, b, dtype: pattern(a, b, dtype) % 100)
    grads[:-1000] = 0
    torch.cuda.synchronize()
    total = seen(kernels.embedding_backward(g, numbers, 100).sync())
    counts = torch.bincount(ids[-1000:], minlength=100)
    assert torch.equal(total, counts[:, None].expand(100, 8).half())


@gigabytes(14)
def test_a_product_with_a_large_operand(device):
    rows = ROW // 64
    theirs, a = made((rows, 64), torch.bfloat16, lambda s, e, dtype: halves(s, e, torch.float32).to(dtype))
    b = torch.randn(64, 64, device=WHERE, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    c = seen(kernels.gemm(a, tk.as_tensor(b)).sync())
    for part in (slice(0, TAIL), slice(LIMIT // 64 - TAIL, LIMIT // 64 + TAIL), slice(rows - TAIL, None)):
        near(c[part], theirs[part].float() @ b.float(), rtol=2e-2, atol=5e-2)


@tk.kernel
def piped(y: tk.Out, x: tk.In, first: int):
    total = tk.zeros((64, 64), tk.int32)
    for t in tk.pipelined(x.tiles((64, 64))[first : first + 9, 0]):
        total = total + t.astype(tk.int32)
    y.store(total)


@gigabytes(10)
@pytest.mark.parametrize(("rows", "step"), [(ROW // 64 & -64, 64), (LIMIT + 64, 4)], ids=["by the TMA", "by threads"])
def test_a_pipeline(device, rows, step):
    """Coordinates of the TMA have 32 bits; along a longer dimension threads copy. Its rows overlap, to take less memory."""
    base, _ = made(rows * step + 64)
    theirs = torch.as_strided(base, (rows, 64), (step, 1))
    tiles = rows // 64
    y = seen(launched(piped(api.empty((64, 64), tk.int32).partition((64, 64)), tk.as_tensor(theirs), tiles - 9)))
    wanted = theirs[(tiles - 9) * 64 : tiles * 64].reshape(9, 64, 64).sum(0, dtype=torch.int32)
    assert torch.equal(y, wanted)


@gigabytes(24)
def test_attention_over_many_keys(device):
    heads, keys, size = 8, 2_200_000, 128
    k, ours_k = made(
        (1, heads, keys, size), torch.bfloat16, lambda a, b, dtype: (pattern(a, b, torch.float32) / 127 - 0.5).to(dtype)
    )
    v, ours_v = made(
        (1, heads, keys, size), torch.bfloat16, lambda a, b, dtype: (pattern(a + 3, b + 3, torch.float32) / 127).to(dtype)
    )
    assert k.numel() > LIMIT
    q = torch.randn(1, heads, 16, size, device=WHERE, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    out = seen(kernels.attention(tk.as_tensor(q), ours_k, ours_v).sync())
    for h in (0, heads - 1):
        weights = torch.softmax(q[0, h].float() @ k[0, h].float().T / math.sqrt(size), 1)
        near(out[0, h], weights @ v[0, h].float(), rtol=2e-2, atol=1e-2)


# -------------------------------------------------------------------------------------------------------------- other libraries


@gigabytes(4)
def test_others_see_the_same_memory(device):
    theirs, x = made(N)
    back = seen(x)
    assert back.data_ptr() == theirs.data_ptr()
    assert back.shape == (N,)
    interface = x.__cuda_array_interface__
    assert interface["shape"] == (N,)

    class Exporter:
        __cuda_array_interface__ = interface
        owner = x

    again = tk.as_tensor(Exporter())
    launched(plus(again[N - TAIL :].partition(1024), again[:TAIL].dup().sync(), 1))
    assert torch.equal(theirs[N - TAIL :], pattern(0, TAIL) + 1)


@gigabytes(4)
def test_the_far_end_comes_to_the_host(device):
    theirs, x = made(N)
    host = x[N - TAIL :].to_host().sync()
    assert torch.equal(torch.from_numpy(host), theirs[N - TAIL :].cpu())
