"""What the lowerings of folds, scans, sorts and counts emit, carried out by a builder that computes for all threads of a
block at once.

The parity tests run them on a GPU; this checks them without one, on layouts that no load makes, too: exchanges between lanes and
warps, shared memory with its alignment, and that threads which hold copies agree.
"""

import itertools

import numpy as np
import pytest
from emulated import DRAIN, Block, Fragment, Value, emulate, gathered, places, run, same, sample, spread

import tilekit as tk
from tilekit.compiler import lower
from tilekit.compiler.codegen import convert_layout as relayout
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.compilation import compiling
from tilekit.compiler.codegen.types import i32
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.compiler.lower import counting, reduction, scanning, sorting


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    """Shuffles, special registers, shared memory and its atomics, in place of PTX."""
    emulate(monkeypatch, [counting, reduction, relayout, scanning, sorting])

    def asm(block, text, constraints, result, args, *, effect):
        assert (text, constraints, effect) == ("red.shared.add.u32 [$0], 1;", "r,~{memory}", True)
        np.add.at(block.memory.view(np.uint32), block.whole(args[0].bits).astype(int) // 4, 1)

    monkeypatch.setattr(counting, "asm", asm)
    monkeypatch.setattr(shared, "drain", lambda block: Value(i32, DRAIN))


SHAPES = [
    ((1,), 0, 1, 4), ((2,), 0, 2, 4), ((64,), 0, 1, 2), ((1024,), 0, 4, 4), ((1024,), 0, 8, 4), ((8, 64), 0, 2, 4),
    ((8, 64), 1, 4, 2), ((64, 4), 0, 4, 4), ((4, 8, 32), 1, 2, 4),
]  # fmt: skip
# Of which a thread has many stretches of neighbours: these change places first, or the last joins them with the warps.
LONG = [((1024,), 0, 2, 1), ((4, 256), 1, 2, 1), ((2048,), 0, 2, 4), ((2, 2048), 1, 4, 4)]


def _layouts(shapes):
    """Layouts of each kind: as loads make them, and with the bits of the axis in any order."""
    rng = np.random.default_rng(3)
    for shape, axis, warps, vec in shapes:
        config = Config(warps, vec)
        yield Layout.blocked(shape, config), axis, config
        yield Layout.blocked(shape, config, 0), axis, config
        plain = Layout.blocked(shape, config)
        places = [*plain.reg, *plain.thread]
        for _ in range(2):
            order = [places[k] for k in rng.permutation(len(places))]
            reg = order[: len(plain.reg)]
            thread = order[len(plain.reg) :]
            if all(map(any, reg)):  # registers never hold copies
                yield Layout(shape, tuple(reg), tuple(thread[:5]), tuple(thread[5:])), axis, config


CASES, SCANNED = list(_layouts(SHAPES)), list(_layouts(SHAPES + LONG))
IDS = [f"{n}: {layout}, axis {axis}" for n, (layout, axis, _) in enumerate(SCANNED)]


@pytest.mark.parametrize(("layout", "axis", "config"), SCANNED, ids=IDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(layout, axis, config, reverse):
    for dtype in (tk.int32, tk.int8, tk.uint64):
        x = sample(dtype, layout.shape)
        wide = {tk.int8: tk.int32}.get(dtype, dtype)
        wanted = np.cumsum(np.flip(x, axis) if reverse else x, axis, dtype=wide)
        same(run(tk.cumsum, layout, config, x, axis, reverse), np.flip(wanted, axis) if reverse else wanted)


@pytest.mark.parametrize(("layout", "axis", "config"), SCANNED, ids=IDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_keep_the_order_of_operands(layout, axis, config, reverse):
    """The maps x -> a * x + b, one after the other: associative, and not commutative; two columns of different sizes."""
    a, b = sample(tk.uint64, layout.shape) | np.uint64(1), sample(tk.uint16, layout.shape, 1)
    block = Block(config.num_threads)

    def after(block, first, second):
        factor = block.trunc(second[0], second[1].type)
        return [block.mul(first[0], second[0]), block.add(block.mul(factor, first[1]), second[1])]

    with compiling(config):
        columns = [spread(block, layout, array) for array in (a, b)]
        made = scanning.prefixes(block, columns, [tk.uint64, tk.uint16], layout, axis, after, reverse=reverse)
    x, y = (np.moveaxis(np.flip(v, axis) if reverse else v, axis, 0) for v in (a, b))
    p, q = np.empty_like(x), np.empty_like(y)
    p[0], q[0] = x[0], y[0]
    for k in range(1, len(x)):
        with np.errstate(over="ignore"):
            p[k], q[k] = p[k - 1] * x[k], q[k - 1] * x[k].astype(np.uint16) + y[k]
    for found, wanted, dtype in ((made[0], p, tk.uint64), (made[1], q, tk.uint16)):
        wanted = np.moveaxis(wanted, 0, axis)
        same(gathered(block, layout, Fragment(found), dtype), np.flip(wanted, axis) if reverse else wanted)


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS[: len(CASES)])
@pytest.mark.parametrize("descending", [False, True])
def test_sorts(layout, axis, config, descending):
    for dtype in (tk.float32, tk.int8, tk.uint16, tk.float64, tk.bool_, tk.float16):
        x = sample(dtype, layout.shape)
        with np.errstate(all="ignore"):
            wanted = np.sort(x, axis)
        same(run(tk.sort, layout, config, x, axis, descending), np.flip(wanted, axis) if descending else wanted)


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS[: len(CASES)])
@pytest.mark.parametrize("descending", [False, True])
def test_places_in_order(layout, axis, config, descending):
    for dtype in (tk.float32, tk.int8, tk.int64, tk.float64, tk.bool_):
        x = sample(dtype, layout.shape)
        same(run(tk.argsort, layout, config, x, axis, descending), places(x, axis, descending).astype(np.int32))


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS[: len(CASES)])
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_in_order(layout, axis, config, largest):
    extent = layout.shape[axis]
    for dtype, k in itertools.product((tk.float32, tk.uint8, tk.int64), {1, min(4, extent), extent // 2 or 1, extent}):
        x = sample(dtype, layout.shape)
        order = np.take(places(x, axis, largest), np.arange(k), axis).astype(np.int32)
        values, found = run(tk.topk, layout, config, x, k, axis, largest)
        same(found, order)
        same(values, np.take_along_axis(x, order.astype(np.int64), axis))


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS[: len(CASES)])
def test_folds(layout, axis, config):
    for dtype in (tk.int32, tk.int8, tk.uint64):
        x = sample(dtype, layout.shape)
        wide = {tk.int8: tk.int32}.get(dtype, dtype)
        same(run(tk.sum, layout, config, x, axis, False), np.sum(x, axis, dtype=wide))
        same(run(tk.argmax, layout, config, x, axis, False, True), np.argmax(x, axis).astype(np.int32))


@pytest.mark.parametrize(("layout", "config"), [(layout, config) for layout, _, config in CASES], ids=IDS[: len(CASES)])
def test_counts(layout, config):
    for dtype, bins in itertools.product((tk.int32, tk.int8, tk.uint64), (1, 16, 2048)):
        x = sample(dtype, layout.shape)
        inside = x[(x >= 0) & (x < min(bins, 64))].astype(np.int64)
        same(run(tk.histogram, layout, config, x, bins, None), np.bincount(inside, minlength=bins).astype(np.int32))


assert lower.__all__, "importing it registers the tile operations"
