"""Grids beyond what CUDA launches: how they are folded, what blocks make of it, and that no other launch pays for it."""

import ctypes
import math
import random
import re
import struct

import numpy as np
import pytest
from fake_gpu import fake_device, launch_through

pytest.importorskip("numba.cuda", reason="compiles kernels")

from llvmlite import ir
from on_host import engine_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.codegen import blocks
from tilekit.compiler.codegen.compilation import compiling
from tilekit.compiler.grids import AXIS_LIMITS, MOST_BLOCKS, Fold, fold_of, folded_grid
from tilekit.compiler.layouts.linear import Config

TARGETS = ["sm_80", "sm_90a"]
LARGE = [
    (1, 65536, 1), (70000, 70000, 1), (3, 1, 65536), (2**31, 1, 1), (3_000_000_000, 1, 1), (1, 2**31, 1),
    (5, 7, 100_000_000), (2**40, 1, 1), (1, 1, 2**33), (2**17, 2**16, 16383),
]  # fmt: skip


@tk.kernel
def where(y: tk.Out):
    y.store(tk.full(y.tile_shape, tk.bid(0) + tk.bid(1) * 1000, tk.int64).astype(y.dtype))


@tk.kernel
def add(y: tk.Out, x: tk.In, a: float):
    y.store(tk.load_tile_like(x, y) + a)


def launches(grid):
    """Whether CUDA launches a grid."""
    return all(count <= limit for count, limit in zip(grid, AXIS_LIMITS, strict=True))


def test_only_grids_that_cuda_does_not_launch_are_folded():
    for grid in [(1, 1, 1), AXIS_LIMITS, (2**31 - 1, 1, 1), (0, 70000, 1), (2**33, 0, 1), (1, 65535, 65535)]:
        assert fold_of(grid) is None
    assert fold_of((1, 65536, 1)) == Fold(wide=False, axes=2)
    assert fold_of((1, 1, 65536)) == Fold(wide=False, axes=3)
    assert fold_of((2**31, 1, 1)) == Fold(wide=True, axes=1)
    assert fold_of((2**16, 2**16, 1)) == Fold(wide=True, axes=2)


@pytest.mark.parametrize("grid", [*LARGE, (65537, 65539, 3), (2**20 + 7, 65536 * 3 + 1, 5)], ids=str)
def test_a_folded_grid_is_launched_and_has_hardly_more_blocks(grid):
    made, total = folded_grid(grid), math.prod(grid)
    assert launches(made)
    assert total <= math.prod(made) < total + made[1]
    if total <= AXIS_LIMITS[0]:
        assert made == (total, 1, 1)


class Machine:
    """What the compiler emits for a folded grid, as a function for this machine: of the special registers and the grid."""

    def __init__(self, monkeypatch, fold):
        wide = ir.IntType(64)
        module, names = ir.Module(), ("ctaid.x", "ctaid.y", "nctaid.x")
        types = [ir.IntType(32)] * len(names) + [wide] * 3 + [wide.as_pointer()]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), "place")
        builder = ir.IRBuilder(function.append_basic_block())
        registers = dict(zip(names, function.args, strict=False))
        monkeypatch.setattr(blocks, "special_register", lambda builder, name: registers[name])
        monkeypatch.setattr(blocks, "_parameters", lambda kernel: function.args[3:6])
        with compiling(Config(1, 4), fold=fold):
            found = blocks.block_index(builder) + blocks.block_counts(builder)
        assert {value.type.width for value in found} == {64 if fold.wide else 32}
        for n, value in enumerate(found):
            value = value if value.type == wide else builder.zext(value, wide)
            builder.store(value, builder.gep(function.args[-1], [ir.Constant(wide, n)]))
        builder.ret_void()
        self.engine = engine_of(module)
        array = ctypes.POINTER(ctypes.c_uint64)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_uint32] * 3, *[ctypes.c_uint64] * 3, array)
        self.call = kind(self.engine.get_function_address("place"))

    def __call__(self, number, grid):
        width, out = folded_grid(grid)[0], (ctypes.c_uint64 * 6)()
        self.call(number % width, number // width, width, *grid, out)
        return tuple(out[:3]), tuple(out[3:])


@pytest.mark.parametrize("grid", LARGE, ids=str)
def test_a_block_knows_its_place_in_the_grid_that_was_asked_for(monkeypatch, grid):
    place, total, seeded = Machine(monkeypatch, fold_of(grid)), math.prod(grid), random.Random(str(grid))
    numbers = {0, 1, total - 1, total // 2, *(seeded.randrange(total) for _ in range(200))}
    for number in numbers:
        index, counts = place(number, grid)
        assert counts == grid
        assert index == (number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1])


@pytest.mark.parametrize("target", TARGETS)
def test_machine_code_of_ordinary_grids_has_no_fold(target):
    """The largest grid that CUDA launches, and one beyond: parameters, divisions, blocks that end are in the second alone."""
    plain = where(api.meta((1, 65535), tk.int8).partition((1, 1))).compile(target=target).ptx
    folded = where(api.meta((1, 65536), tk.int8).partition((1, 1))).compile(target=target).ptx
    wide = where(api.meta((65536, 65536), tk.int8).partition((1, 1))).compile(target=target).ptx
    assert "%ctaid.y" in plain
    assert "div." not in plain
    assert "exit" not in plain
    assert len(re.findall(r"\.param ", folded[: folded.index(")")])) == 3 + len(
        re.findall(r"\.param ", plain[: plain.index(")")])
    )
    assert "%ctaid.y" not in folded
    assert "exit" not in folded  # as many blocks as there are
    assert "rem.u32" in folded or "div.u32" in folded
    assert "setp.ge.u64" in wide
    assert "exit" in wide
    assert "%ctaid.y" in wide


@pytest.mark.parametrize("target", TARGETS)
def test_a_block_along_one_axis_divides_nothing(target):
    ptx = add(api.meta(3_000_000_000, tk.float32).partition(1), api.meta(3_000_000_000), 1.0).compile(target=target).ptx
    assert "div." not in ptx
    assert "rem." not in ptx


@pytest.mark.parametrize("target", TARGETS)
def test_a_pipeline_on_a_folded_grid_has_its_tensor_maps_behind_the_grid(target):
    @tk.kernel
    def product(c: tk.Out, a: tk.In, b: tk.In):
        acc = tk.zeros(c.tile_shape, tk.float32)
        for x, y in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 64))[:, tk.bid(1)]):
            acc = tk.mma(x, y, acc)
        c.store(acc)

    a, b, c = api.meta((64, 256), tk.float16), api.meta((256, 64 * 70000), tk.float16), api.meta((64, 64 * 70000))
    made = product(c.partition((64, 64)), a, b).compile(target=target)
    signature = made.ptx[made.ptx.index(".entry") : made.ptx.index("\n)")]
    sizes = re.findall(r"\.param (?:\.align \d+ )?\.(\w+) \S+?(?:\[(\d+)\])?,?\n", signature + "\n")
    maps = [kind for kind, _ in sizes if kind == "b8"]
    assert len(maps) == len(made.maps) == (2 if target == "sm_90a" else 0)
    own = len(sizes) - len(maps)
    assert [kind for kind, _ in sizes[own - 3 : own]] == ["u64"] * 3
    assert struct.calcsize(made.param_format) == 8 * (own - 3)
    assert made.local_bytes == 0


@pytest.fixture(params=["native", "python"])
def gpu(request, monkeypatch):
    launch_through(request.param, monkeypatch)
    with fake_device() as made:
        yield made


def test_the_launch_is_folded_and_the_kernel_told_the_grid(gpu):
    driver, n = gpu[1], 3_000_000_000
    y, x = api.empty(n, tk.int8).sync(), api.empty(n, tk.int8).sync()

    @tk.kernel
    def copy(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y))

    driver.slots = 7
    for _ in range(3):  # by Python, then by native code where there is some
        driver.launches.clear()
        copy(y.partition(1), x).sync()
        ((_, grid, _, _, _, values),) = driver.launches
        assert grid == (1_500_000_000, 2, 1)
        assert np.frombuffer(values, np.int64).tolist() == [y.address, n, x.address, n, n, 1, 1]


def test_prepared_launches_and_graphs_are_folded_too(gpu):
    device, driver = gpu
    y, x, other = (api.empty((2, 70000)).sync() for _ in range(3))
    stream = device.policy.next_stream()
    named = tk.slot("x", x)
    driver.slots = 4 + 4 + 1 + 3
    expected = [140000, 1, 1]

    def told(values):
        numbers = np.frombuffer(values, np.int64)
        return int(numbers[4]), numbers[-3:].tolist()

    prepared = add(y.partition((1, 1)), named, 2.0).prepare()
    driver.launches.clear()
    prepared.run(stream)
    prepared.bind(x=other)
    prepared.run(stream)
    assert [list(launch[1]) for launch in driver.launches] == [expected] * 2
    assert [told(launch[-1]) for launch in driver.launches] == [(t.address, [2, 70000, 1]) for t in (x, other)]

    graph = add(y.partition((1, 1)), named, 2.0).graph()
    driver.graphs.clear()
    graph.run(stream)
    graph.bind(x=other)
    graph.run(stream)
    found = [params for nodes in driver.graphs for kind, params in nodes if kind == "kernel"]
    assert [list(grid) for _, grid, _, _, _ in found] == [expected] * 2
    assert [told(values) for *_, values in found] == [(t.address, [2, 70000, 1]) for t in (x, other)]


def test_a_function_that_is_graphed_folds_where_a_call_needs_it(gpu):
    """Each shape has a graph of its own, and only that of the large one is folded."""
    driver = gpu[1]
    y = {n: api.empty((1, n)).sync() for n in (8, 70000)}

    @tk.graphed
    def step(x, n):
        return add(y[n].partition((1, 1)), x, 1.0)

    driver.graphs.clear()
    for n in (8, 70000, 8):
        step(api.empty((1, n)).sync(), n).sync()
    grids = [params[1] for nodes in driver.graphs for kind, params in nodes if kind == "kernel"]
    assert grids == [(1, 8, 1), (70000, 1, 1), (1, 8, 1)]


def test_a_grid_that_is_given_is_folded_and_one_of_10_to_the_15_refused(gpu):
    driver = gpu[1]
    total = api.zeros(1, tk.int32).sync()

    @tk.kernel
    def count(total: tk.InOut):
        tk.atomic_add(total, 0, tk.num_blocks(2) - tk.num_blocks(2) + 1)

    driver.launches.clear()
    count(total.scattered()).grid((3, 1, 100_000)).sync()
    assert driver.launches[0][1] == (300_000, 1, 1)
    op = count(total.scattered())
    with pytest.raises(ValueError, match=rf"the grid \(1000000000000000, 1, 1\) has 10{{15}} blocks; {MOST_BLOCKS} are launched"):
        op.grid(10**15)


def test_numba_is_not_handed_a_launch_that_only_tilekit_folds(monkeypatch):
    monkeypatch.setattr("tilekit._runtime.device.cuda_unavailable_reason", lambda: None)
    with pytest.raises(
        ValueError, match=r"kernel where: numba launches grids of up to \(2147483647, 65535, 65535\) blocks along"
    ):
        where(api.meta((1, 65536), tk.int8).partition((1, 1))).dispatcher()


def test_a_check_that_fails_names_the_block_of_the_grid_that_was_asked_for(monkeypatch):
    monkeypatch.setenv("TILEKIT_CHECKS", "1")

    @tk.kernel
    def far(y: tk.Out, x: tk.In):
        y.store(tk.load(x, (tk.bid(0), tk.bid(1) + 1), (1, 1)))

    plain, large = (api.meta((3, n)) for n in (600, 70000))
    ptx = {n: far(t.partition((1, 1)), t).compile(target="sm_90a").ptx for n, t in ((600, plain), (70000, large))}
    assert "%ctaid.y" in ptx[600]
    assert "%ctaid.y" not in ptx[70000]
    assert all("trap" in text for text in ptx.values())


def test_a_launch_on_a_folded_grid_is_explained():
    tiles = api.meta((1, 65536), tk.float32)
    found = add(tiles.partition((1, 1)), tiles, 1.0).explain(target="sm_90a")
    assert "%nctaid" not in found.compiled.ptx
    assert [access.parameter for access in found.accesses] == ["x", "y"]
