"""Kernels, called and run: arguments, generics, grids, results, on the device under test."""

import asyncio

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu.driver import CpuDriver

BM, BN = tk.generics("BM BN")
S = tk.generics("*S")


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    """y = a * x + y, tile by tile."""
    y.store(a * tk.load_tile_like(x, y) + y.load())


@tk.kernel
def block_numbers(y: tk.Out[BM, BN]):
    y.store(tk.full((BM, BN), tk.bid(0) * 100 + tk.bid(1), tk.int32))


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


def host(tensor):
    return tensor.to_host().sync()


def test_the_result_is_the_tuple_of_the_arguments(device):
    y, x = api.ones(8).sync(), api.arange(8, dtype=tk.float32).sync()
    partition = y.partition(4)
    result = saxpy(partition, 2.0, x).sync()
    assert result[0] is partition
    assert result[1] == 2.0
    assert result[2] is x
    np.testing.assert_array_equal(host(y), 2 * np.arange(8) + 1)


def test_ops_as_arguments_come_back_as_what_they_produced(device):
    y, a, x = saxpy(api.ones(8).partition(4), 3.0, api.ones(8)).sync()
    assert isinstance(y, tk.Partition)
    assert isinstance(x, tk.Tensor)
    np.testing.assert_array_equal(host(y.unpartition()), np.full(8, 4, np.float32))
    assert a == 3.0


def test_keywords_and_defaults(device):
    @tk.kernel
    def scaled(y: tk.InOut, a=4.0):
        y.store(a * y.load())

    y = api.ones(4).sync()
    scaled(y=y.partition(4)).sync()
    scaled(a=0.5, y=y.partition(4)).sync()
    np.testing.assert_array_equal(host(y), np.full(4, 2, np.float32))


def test_parameters_without_annotations_follow_their_arguments(device):
    @tk.kernel
    def plain(y, a, x):
        y.store(a * tk.load_tile_like(x, y) + y.load())

    y = api.ones(4).sync()
    plain(y.partition(2), 2, y.dup()).sync()
    np.testing.assert_array_equal(host(y), np.full(4, 3, np.float32))


def test_annotations_that_are_strings(device):
    def make():
        rows = tk.generics("rows")

        @tk.kernel
        def named(y: "tk.Out[rows]", a: "tk.Const"):
            y.store(tk.full(rows, a, tk.float32))

        return named

    np.testing.assert_array_equal(host(make()(api.zeros(4).partition(4), 2.5).first().unpartition().sync()), [2.5] * 4)


def test_const_values_and_their_types_are_specialisations_of_their_own(device):
    @tk.kernel
    def typed(y: tk.Out, value: tk.Const, dtype: tk.Const = tk.float32):
        y.store(tk.full(y.tile_shape, value, dtype))

    for value in (1, True, 1.0):
        typed(api.zeros(4).partition(4), value).sync()
    typed(api.zeros(4, tk.float64).partition(4), 1.0, tk.float64).sync()
    assert len(typed._specialisations) == 4


def test_generics_from_tiles_and_by_name(device):
    tiles = host(block_numbers(api.zeros((4, 6), tk.int32).partition((2, 4))).first().unpartition().sync())
    expected = np.repeat(np.repeat([[0, 1], [100, 101]], 2, axis=0), 4, axis=1)[:, :6]
    np.testing.assert_array_equal(tiles, expected)

    @tk.kernel
    def fill(y: tk.Out):
        y.store(tk.full(BM * 2, BN))

    np.testing.assert_array_equal(
        host(fill(api.zeros(8, tk.int32).partition(4)).generics(BM=2, BN=7).first().unpartition().sync()), [7] * 8
    )


def test_a_whole_shape_as_a_generic(device):
    @tk.kernel
    def add(z: tk.Out[S], x: tk.In, y: tk.In):
        z.store(tk.load(x, tk.bid(0), S) + tk.load_tile_like(y, z))

    z = add(api.zeros(8).partition(4), api.ones(8), api.ones(8)).first().unpartition()
    np.testing.assert_array_equal(z.to_host().sync(), [2.0] * 8)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [((10,), 4), ((5, 7), (2, 4)), ((3, 4, 5), (2, 2, 4)), ((2, 3, 4, 5), (1, 2, 2, 4)), ((5, 2, 3, 9), (2, 1, 4, 2))],
)
def test_ranks_one_to_four_with_ragged_edges(device, shape, tile):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = copy(api.full(shape, -1).partition(tile), api.from_host(x)).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, x)


def test_strided_inputs_and_outputs(device):
    x = np.arange(60, dtype=np.float32).reshape(5, 12)
    tensor = api.from_host(x).sync()
    for view, expected in (
        (tensor[1:4, 2:11:3], x[1:4, 2:11:3]),
        (tensor.permute(), x.T),
        (tensor[::-1, ::-2], x[::-1, ::-2]),
        (tensor[2], x[2]),
        (tensor[:, 3], x[:, 3]),
    ):
        np.testing.assert_array_equal(host(view), expected)
    target = api.zeros((5, 12)).sync()
    copy(target[:, 1::2].partition((2, 4)), tensor[:, :6]).sync()
    expected = np.zeros((5, 12), np.float32)
    expected[:, 1::2] = x[:, :6]
    np.testing.assert_array_equal(host(target), expected)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_tensors_are_a_no_op(device, shape):
    y = api.zeros(shape).sync()
    copy(y.partition((2,) * len(shape)), y.dup()).sync()
    assert host(y).shape == shape


def test_a_kernel_without_arguments(device, capfd):
    @tk.kernel
    def hello():
        tk.print("block", tk.bid(0), "of", tk.num_blocks(0))

    hello().grid((2, 1, 1)).sync()
    device.synchronize()
    assert sorted(capfd.readouterr().out.splitlines()) == ["block 0 of 2", "block 1 of 2"]


def test_a_second_launch_reuses_the_specialisation(device):
    x = api.ones(64).sync()
    for n in (64, 64):
        copy(api.zeros(n).partition(16), x).sync()
    before = len(copy._specialisations)
    copy(api.zeros(64).partition(16), x).sync()
    assert len(copy._specialisations) == before


def test_in_place_on_the_same_view(device):
    y = api.ones(8).sync()
    saxpy(y.partition(4), 2.0, y).sync()
    np.testing.assert_array_equal(host(y), [3.0] * 8)


def test_two_outputs(device):
    @tk.kernel
    def split(low: tk.Out, high: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, low)
        low.store(tk.minimum(t, 0.0))
        high.store(tk.maximum(t, 0.0))

    low, high, _ = split(
        api.zeros(4).partition(2), api.zeros(4).partition(2), api.from_host(np.array([-1, 2, -3, 4], np.float32))
    ).sync()
    np.testing.assert_array_equal(host(low.unpartition()), [-1, 0, -3, 0])
    np.testing.assert_array_equal(host(high.unpartition()), [0, 2, 0, 4])


def test_await_and_async_on_and_sync_on(device):
    async def main():
        y = await api.ones(8)
        await saxpy(y.partition(4), 1.0, y)
        return await y.to_host()

    np.testing.assert_array_equal(asyncio.run(main()), [2.0] * 8)
    with device.stream() as stream:
        y = api.ones(8).sync_on(stream)
        future = saxpy(y.partition(4), 1.0, y).async_on(stream)
        assert future.result(timeout_s=60)[0].unpartition() is y
        np.testing.assert_array_equal(y.to_host().sync_on(stream), [2.0] * 8)


def test_loops_and_branches_in_a_kernel(device):
    @tk.kernel
    def power(y: tk.InOut, n):
        t = y.load()
        acc = tk.ones(y.tile_shape)
        for _ in range(n):
            acc = acc * t
        if n > 2:
            acc = acc + 1.0
        y.store(acc)

    y = api.full(4, 3.0).sync()
    power(y.partition(4), 3).sync()
    np.testing.assert_array_equal(host(y), [28.0] * 4)


def test_numpy_scalars_are_scalars(device):
    y = api.ones(4).sync()
    saxpy(y.partition(4), np.float32(0.5), y).sync()
    saxpy(y.partition(4), np.int32(2), y).sync()
    np.testing.assert_array_equal(host(y), [4.5] * 4)


@pytest.mark.parametrize("value", [True, np.True_, np.False_])
def test_a_bool_is_a_scalar(device, value):
    @tk.kernel
    def choose(y: tk.Out, first, second: bool):
        y.store((1.0 if first else 2.0) + (4.0 if second else 8.0))

    y = api.ones(4).sync()
    choose(y.partition(4), value, value).sync()
    np.testing.assert_array_equal(host(y), [5.0 if value else 10.0] * 4)


# what is refused


def test_the_function_is_described_by_the_kernel():
    assert saxpy.__doc__ == "y = a * x + y, tile by tile."
    assert saxpy.__name__ == "saxpy"
    assert repr(saxpy) == "<kernel saxpy(y, a, x)>"


def refuse(op, error, match):
    with pytest.raises(error, match=match):
        op.sync()


def test_missing_and_surplus_arguments():
    with pytest.raises(TypeError, match=r"kernel saxpy\(y, a, x\): missing a required argument: 'x'"):
        saxpy(1, 2)
    with pytest.raises(TypeError, match=r"kernel saxpy\(y, a, x\): too many positional arguments"):
        saxpy(1, 2, 3, 4)


def test_writing_needs_a_partition(device):
    y = api.ones(4).sync()
    with pytest.raises(TypeError, match=r"kernel saxpy, argument y: writing needs a partition.* \.tile\(shape\) on the launch"):
        saxpy(y, 1.0, y).sync()


def test_kinds_of_arguments(device):
    y = api.ones(4).sync()
    with pytest.raises(TypeError, match="argument x: declared In, so it takes a tensor, not a partition"):
        saxpy(y.partition(4), 1.0, y.partition(4))
    with pytest.raises(TypeError, match="argument a: kernels take tensors, partitions, scalars, and tuples of these, not list"):
        saxpy(y.partition(4), [1], y)

    @tk.kernel
    def scaled(y: tk.InOut, a: float):
        y.store(a * y.load())

    scaled(y.partition(4), 2).sync()
    with pytest.raises(TypeError, match="argument a: declared a scalar, not tilekit._tensor.tensor.Tensor"):
        scaled(y.partition(4), y)


def test_a_kernel_takes_plain_parameters():
    with pytest.raises(TypeError, match="parameter xs is variadic positional; kernels take plain parameters"):

        @tk.kernel
        def bad(*xs):
            pass

    with pytest.raises(TypeError, match=r"parameter x is annotated list, not In, Out, InOut, Const, or a scalar's float, int"):

        @tk.kernel
        def worse(x: list):
            pass


@pytest.mark.parametrize(
    ("annotation", "error"), [("InOuts", NameError), ("tk.", TypeError), ("tk.In[", TypeError), ("\ud800", TypeError)]
)
def test_an_annotation_that_cannot_be_evaluated(annotation, error):
    def bad(y):
        pass

    bad.__annotations__["y"] = annotation
    with pytest.raises(error, match="kernel bad: its annotations cannot be evaluated: "):
        tk.kernel(bad)


def test_a_generic_left_unbound(device):
    @tk.kernel
    def fill(y: tk.Out):
        y.store(tk.zeros(BM))

    refuse(
        fill(api.zeros(4).partition(4)), tk.CompileError, r"generic BM is not bound: give it a value with \.generics\(BM=\.\.\.\)"
    )
    with pytest.raises(ValueError, match="kernel fill has no generic BX; it has BM"):
        fill(api.meta(4).partition(4)).generics(BX=3)
    with pytest.raises(TypeError, match=r"generic BM stands for an integer, not \(4,\)"):
        fill(api.meta(4).partition(4)).generics(BM=(4,))


def test_generics_that_disagree(device):
    @tk.kernel
    def square(y: tk.Out[BM, BM]):
        y.store(tk.zeros((BM, BM)))

    refuse(
        square(api.zeros((4, 4)).partition((2, 4))),
        ValueError,
        "kernel square, argument y: generic BM is 2 by argument y, and 4 here",
    )


def test_a_tile_dimension_that_is_no_power_of_two(device):
    with pytest.raises(ValueError, match=r"every extent of a tile is a power of two; 3 in \(3,\) is not: use 2 or 4"):
        api.zeros(4).sync().partition(3)
    with pytest.raises(ValueError, match=r"a tensor of shape \(4,\) has 1 dimensions; tiles of shape \(2, 2\) have 2"):
        api.zeros(4).sync().partition((2, 2))

    @tk.kernel
    def odd(y: tk.Out):
        y.store(tk.zeros(3))

    refuse(odd(api.zeros(4).partition(4)), tk.CompileError, r"zeros: every extent of a tile is a power of two; 3 in .* is not")


def test_grids_that_disagree(device):
    y, z = api.zeros(8).sync(), api.zeros(8).sync()

    @tk.kernel
    def two(y: tk.Out, z: tk.Out):
        y.store(0.0)
        z.store(0.0)

    refuse(
        two(y.partition(4), z.partition(2)),
        ValueError,
        r"kernel two: the grids of its partitions disagree: y has \(2, 1, 1\), z \(shape \(8,\) in tiles of \(2,\)\) has \(4,",
    )
    refuse(
        saxpy(y.partition(4), 1.0, z).grid((3, 1, 1)),
        ValueError,
        r"kernel saxpy: the grid \(3, 1, 1\) is not the \(2, 1, 1\) that the partition y has",
    )

    @tk.kernel
    def nothing():
        pass

    refuse(nothing(), ValueError, r"no argument is a partition, so the grid must be given: \.grid\(\(blocks, 1, 1\)\)")
    with pytest.raises(ValueError, match=r"the grid \(1, 100000, 10000000000\) has 1000000000000000 blocks; 140735340806145 are"):
        nothing().grid((1, 100_000, 10**10))


def test_a_grid_may_have_any_number_of_blocks_along_any_axis(device):
    @tk.kernel
    def place(y: tk.Out):
        y.store(tk.full(y.tile_shape, tk.bid(1) * 10 + tk.bid(2) + tk.num_blocks(1), y.dtype))

    y = api.zeros((1, 70_000, 2), tk.int32).sync()
    place(y.partition((1, 1, 1))).sync()
    wanted = 10 * np.arange(70_000)[:, None] + np.arange(2) + 70_000
    np.testing.assert_array_equal(y.to_host().sync()[0], wanted)

    @tk.kernel
    def count(total: tk.InOut):
        tk.atomic_add(total, 0, tk.bid(1) + tk.num_blocks(2))

    total = api.zeros(1, tk.int64).sync()
    count(total.scattered()).grid((1, 3, 66_000)).sync()
    assert total.to_host().sync()[0] == 66_000 * (0 + 1 + 2) + 3 * 66_000 * 66_000


def test_ranks_and_shapes_that_were_declared(device):
    @tk.kernel
    def rows(y: tk.Out, x: tk.In[-1, 4]):
        y.store(0.0)

    y = api.zeros(4).sync()
    refuse(rows(y.partition(4), y), ValueError, r"argument x: declared with 2 dimensions, got a tensor of shape \(4,\)")
    refuse(rows(y.partition(4), api.zeros((4, 5))), ValueError, r"argument x: declared \[-1, 4\], got a tensor of shape \(4, 5\)")


def test_arguments_that_overlap(device):
    y = api.zeros(16).sync()
    refuse(
        saxpy(y[:8].partition(4), 1.0, y[4:12]), ValueError, "kernel saxpy: arguments y and x overlap in memory, and y is written"
    )
    refuse(saxpy(y.partition(4), 1.0, y.reshape(4, 4)), ValueError, "arguments y and x overlap in memory")
    saxpy(y[:8].partition(4), 1.0, y[8:]).sync()
    saxpy(y[::2].partition(4), 1.0, y[1::2]).sync()
    block = y.reshape(4, 4)
    copy(block[:, :2].partition((4, 2)), block[:, 2:]).sync()

    @tk.kernel
    def two(y: tk.Out, z: tk.Out):
        y.store(0.0)
        z.store(1.0)

    partition = y.partition(4)
    refuse(two(partition, partition), ValueError, "arguments y and z are the same partition, and both are written")
    refuse(two(y.partition(4), y.partition(4)), ValueError, "arguments y and z overlap in memory")


def test_a_meta_tensor_is_not_run(device):
    refuse(
        saxpy(api.meta(8).partition(4), 1.0, api.meta(8)),
        TypeError,
        "argument y is a meta tensor, without memory: only compile\\(\\) takes it",
    )


def test_warps():
    with pytest.raises(ValueError, match="num_warps is a power of two from 1 to 32, not 3"):
        tk.kernel(num_warps=3)(lambda: None)


@pytest.mark.parametrize("occupancy", [0, 33, 2.0, True])
def test_occupancy(occupancy):
    with pytest.raises(ValueError, match=f"occupancy is a number of blocks from 1 to 32, not {occupancy}"):
        tk.kernel(occupancy=occupancy)(lambda: None)
    launch = saxpy(api.meta(8).partition(4), 1.0, api.meta(8))
    with pytest.raises(ValueError, match="occupancy is a number of blocks from 1 to 32"):
        launch.occupancy(occupancy)


def test_a_kernel_that_failed_leaves_its_tensors_usable(device):
    """Whoever mends the kernel and runs it again must not meet the old error."""

    @tk.kernel
    def wrong(y: tk.InOut):
        y.store(y.load() + tk.zeros(2))

    y = api.ones(8).sync()
    for _ in range(3):
        refuse(wrong(y.partition(4)), tk.CompileError, "do not match")
        for _ in range(5):  # on every stream of the pool
            saxpy(y.partition(4), 0.0, y).sync()
    np.testing.assert_array_equal(host(y), [1.0] * 8)


def test_a_file_that_was_edited_before_the_first_launch(device, tmp_path, monkeypatch):
    """The kernel is the text that was imported, not what stands at its line now."""
    module = tmp_path / "edited_kernels.py"
    kernel = "@tk.kernel\ndef {}(y: tk.Out):\n    y.store({})\n\n"
    text = "import tilekit as tk\n\n" + kernel.format("one", 1.0) + kernel.format("two", 2.0)
    module.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib
    import linecache

    kernels = importlib.import_module("edited_kernels")
    module.write_text(text.replace(kernel.format("one", 1.0), kernel.format("zero", 0.0) + kernel.format("one", 1.0)))
    linecache.checkcache()
    np.testing.assert_array_equal(host(kernels.two(api.zeros(2).partition(2)).first().unpartition().sync()), [2.0, 2.0])


def test_constants_of_every_type_in_tuples(device):
    @tk.kernel
    def pair(y: tk.Out, values: tk.Const):
        y.store(tk.full(y.tile_shape, values[0]).astype(y.dtype))

    for values in ((1, 2), (1.0, 2.0), (True, 2), (0.0, 1), (-0.0, 1)):
        pair(api.zeros(2).partition(2), values).sync()
    assert len(pair._specialisations) == 5
    for _ in range(3):
        pair(api.zeros(2).partition(2), (float("nan"), 1)).sync()
    assert len(pair._specialisations) == 6


def test_and_and_or_of_constants_give_operands(device, capfd):
    size = 4

    @tk.kernel
    def show():
        tk.print(size or 1, size and 7, 0 or size)

    show().grid(1).sync()
    device.synchronize()
    assert capfd.readouterr().out == "4 7 4\n"


def test_text_at_the_left_margin_of_an_indented_kernel(device):
    @tk.kernel
    def commented(y: tk.Out):
        # a comment in the first column
        y.store(3.0)

    np.testing.assert_array_equal(host(commented(api.zeros(2).partition(2)).first().unpartition().sync()), [3.0, 3.0])


def test_tensors_of_another_device_are_refused():
    here, there = tk.Device("cpu"), tk.Device.of_driver(CpuDriver())
    x = api.ones(3).on(here).sync()
    with pytest.raises(ValueError, match="cannot be used by work on .* bring the tensor there with"):
        tk.with_context(lambda ctx: tk.value(ctx.acquire((x.storage,), ()))).sync_on(there.stream())


def test_how_many_results_a_kernel_has_is_known_before_it_runs(device):
    x, y = api.ones(2048), api.ones(2048)
    first, _, last = tk.zip(y.partition(512), 2.0, x).apply(saxpy).unzip()
    np.testing.assert_array_equal(first.unpartition().to_host().sync(), np.full(2048, 3, np.float32))
    assert last.to_host().sync()[0] == 1


@tk.kernel
def copied(z: tk.Out, x: tk.In):
    z.store(tk.load_tile_like(x, z))


def test_a_tile_that_is_refused_leaves_nothing_behind(device):
    x, z = api.zeros((64, 64)).sync(), api.zeros((64, 64)).sync()
    for _ in range(2):
        copied(z, x).tile((16, 16)).sync()
    op = copied(z, x)
    for _ in range(2):
        with pytest.raises(ValueError, match="has 2 dimensions"):
            op.tile(3)
    for _ in range(2):
        with pytest.raises(ValueError, match="no argument is a tensor that is written and has no tiles yet"):
            copied(z, x).tile((16, 16)).tile((16, 16))
    copied(z, x).tile((16, 16)).sync()
