"""What the lowerings of folds, scans, sorts and counts emit, carried out by a builder that computes for all threads of a
block at once.

The parity tests run them on a GPU; this checks them without one, on layouts that no load makes, too: exchanges between lanes and
warps, shared memory with its alignment, and that threads which hold copies agree.
"""

import itertools
import operator
from types import SimpleNamespace

import numpy as np
import pytest
from llvmlite import ir
from numba.cuda import types

import tilekit as tk
from tilekit import dtypes
from tilekit.compiler import lower, ops
from tilekit.compiler.layout import Config, Layout
from tilekit.compiler.lower import counting, reduction, relayout, scanning, shared, sorting
from tilekit.compiler.types import TileType, compiling, i32, register_type

DRAIN = (1 << 18) - 4  # an address of shared memory that is no room's


class Value:
    """A value that each thread has: its bits, in 64."""

    def __init__(self, kind, bits):
        self.type, self.bits = kind, np.asarray(bits, np.uint64) & np.uint64((1 << _width(kind)) - 1)

    @property
    def signed(self):
        shift = np.uint64(64 - _width(self.type))
        return (self.bits << shift).view(np.int64) >> shift.astype(np.int64)


def _width(kind):
    return kind.width if isinstance(kind, ir.IntType) else {"half": 16, "float": 32, "double": 64}[str(kind)]


def _value(x):
    return x if isinstance(x, Value) else Value(x.type, np.uint64(int(x.constant) % 2**64))


class Fragment(list):
    """The elements of a tile, or of a tuple."""

    @property
    def type(self):
        return SimpleNamespace(count=len(self))


class Block:
    """A builder, and the machine that carries out what it is asked to build."""

    def __init__(self, num_threads):
        self.thread = np.arange(num_threads, dtype=np.uint64)
        self.memory = np.zeros(1 << 18, np.uint8)

    def _binary(function, signed=False):
        def compute(self, x, y):
            x, y = _value(x), _value(y)
            with np.errstate(over="ignore"):
                made = function(x.signed, y.signed) if signed else function(x.bits, y.bits)
            return Value(x.type, made.astype(np.int64).view(np.uint64) if signed else made)

        return compute

    add, sub, mul = _binary(operator.add), _binary(operator.sub), _binary(operator.mul)
    and_, or_, xor = _binary(operator.and_), _binary(operator.or_), _binary(operator.xor)
    shl, lshr, ashr = _binary(operator.lshift), _binary(operator.rshift), _binary(operator.rshift, signed=True)

    def not_(self, x):
        return Value(x.type, ~_value(x).bits)

    def _compare(self, symbol, x, y):
        function = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}[symbol]
        return Value(ir.IntType(1), function(x, y))

    def icmp_unsigned(self, symbol, x, y):
        return self._compare(symbol, _value(x).bits, _value(y).bits)

    def icmp_signed(self, symbol, x, y):
        return self._compare(symbol, _value(x).signed, _value(y).signed)

    def select(self, condition, x, y):
        x, y = _value(x), _value(y)
        assert x.type == y.type
        return Value(x.type, np.where(condition.bits == 1, x.bits, y.bits))

    def zext(self, x, to):
        return Value(to, x.bits)

    trunc = bitcast = zext

    def sext(self, x, to):
        return Value(to, x.signed.view(np.uint64))

    def extract_value(self, fragment, at):
        return fragment[at]

    def insert_value(self, fragment, element, at):
        made = Fragment(fragment if isinstance(fragment, Fragment) else [])
        made.insert(at, element)
        return made

    def whole(self, bits):
        """`bits` in all threads."""
        return np.broadcast_to(bits, self.thread.shape)


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    """Shuffles, special registers and shared memory, in place of PTX."""

    def exchange(block, elements, dtype, place, num_threads):
        if place.kind == "reg":
            return [elements[r ^ 1 << place.bit] for r in range(len(elements))]
        step = 1 << place.bit if place.kind == "lane" else 32 << place.bit
        return [Value(e.type, block.whole(e.bits)[(block.thread ^ np.uint64(step)).astype(int)]) for e in elements]

    def put(block, address, offset, dtype, elements):
        size = dtype.itemsize
        start = block.whole(address.bits).astype(int) + offset
        assert not np.any(start % (size * len(elements))), "misaligned"
        for k, element in enumerate(elements):
            for byte in range(size):
                block.memory[start + k * size + byte] = (block.whole(_value(element).bits) >> np.uint64(8 * byte)).astype(
                    np.uint8
                )

    def get(block, address, offset, dtype, count):
        size, kind = dtype.itemsize, register_type(dtype)
        start = block.whole(address.bits).astype(int) + offset
        assert size * count <= 16
        assert not np.any(start % (size * count)), "misaligned"
        read = [
            [block.memory[start + k * size + byte].astype(np.uint64) << np.uint64(8 * byte) for byte in range(size)]
            for k in range(count)
        ]
        return [Value(kind, sum(parts[1:], parts[0])) for parts in read]

    def room(block, nbytes, what):
        assert nbytes <= shared.ROOM
        block.memory[:] = 0xA5
        return Value(i32, 0)

    def special_register(block, name):
        assert name == "tid.x"
        return Value(i32, block.thread)

    def asm(block, text, constraints, result, args, *, effect):
        assert (text, constraints, effect) == ("red.shared.add.u32 [$0], 1;", "r,~{memory}", True)
        np.add.at(block.memory.view(np.uint32), block.whole(args[0].bits).astype(int) // 4, 1)

    monkeypatch.setattr(counting, "asm", asm)
    monkeypatch.setattr(shared, "drain", lambda block: Value(i32, DRAIN))
    for module in (reduction, scanning, sorting):
        monkeypatch.setattr(module, "exchange", exchange)
    for module in (counting, reduction, scanning, sorting, relayout):
        monkeypatch.setattr(module, "special_register", special_register)
    monkeypatch.setattr(shared, "put", put)
    monkeypatch.setattr(shared, "get", get)
    monkeypatch.setattr(shared, "room", room)
    monkeypatch.setattr(shared, "barrier", lambda block: None)


def _layouts():
    """Layouts of each kind: as loads make them, and with the bits of the axis in any order."""
    rng = np.random.default_rng(3)
    for shape, axis, warps, vec in [
        ((1,), 0, 1, 4), ((2,), 0, 2, 4), ((64,), 0, 1, 2), ((1024,), 0, 4, 4), ((1024,), 0, 8, 4), ((8, 64), 0, 2, 4),
        ((8, 64), 1, 4, 2), ((64, 4), 0, 4, 4), ((4, 8, 32), 1, 2, 4),
    ]:  # fmt: skip
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


CASES = list(_layouts())
IDS = [f"{n}: {layout}, axis {axis}" for n, (layout, axis, _) in enumerate(CASES)]


def spread(block, layout, array):
    """An array as a fragment."""
    kind, bits = register_type(array.dtype), array.view(f"u{array.dtype.itemsize}").astype(np.uint64)
    made = Fragment()
    for at in layout.coordinates():
        threads = [tuple(a ^ b for a, b in zip(at, layout.thread_coordinate(int(t)), strict=True)) for t in block.thread]
        made.append(Value(kind, bits[tuple(np.array(threads).T)] if layout.shape else block.whole(bits)))
    return made


def gathered(block, layout, fragment, dtype):
    """A fragment as an array; threads that hold copies must hold the same."""
    made, seen = np.zeros(layout.shape, np.uint64), np.zeros(layout.shape, bool)
    for at, value in zip(layout.coordinates(), fragment, strict=True):
        for t, bits in enumerate(block.whole(value.bits)):
            place = tuple(a ^ b for a, b in zip(at, layout.thread_coordinate(t), strict=True))
            assert not seen[place] or made[place] == bits, "copies differ"
            made[place], seen[place] = bits, True
    assert seen.all()
    if dtype == tk.bool_:
        return made.astype(bool)
    return made.astype(f"u{dtype.itemsize}").view(dtype)


def run(function, layout, config, array, *arguments):
    """The result of an operation on a tile of one layout."""
    block = Block(config.num_threads)
    with compiling(config):
        ty, emit = ops.LOWERINGS[function](TileType(array.dtype, layout, config), *map(_known, arguments))
        made = emit(block, spread(block, layout, array), *[None] * len(arguments))
    if isinstance(ty, types.BaseTuple):
        return [gathered(block, t.layout, part, t.dtype) for t, part in zip(ty.types, made, strict=True)]
    return gathered(block, ty.layout, made, ty.dtype)


def _known(value):
    return types.literal(value) if isinstance(value, int) else types.Omitted(value)


def sample(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == tk.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtypes.is_float(dtype):
        return rng.integers(0 if dtype.kind == "u" else -20, 20, shape).astype(dtype)
    values = rng.integers(-9, 9, shape) / 2
    return np.where(rng.random(shape) < 0.1, rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0], shape), values).astype(dtype)


def same(found, wanted):
    if dtypes.is_float(found.dtype):
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(layout, axis, config, reverse):
    for dtype in (tk.int32, tk.int8, tk.uint64):
        x = sample(dtype, layout.shape)
        wide = {tk.int8: tk.int32}.get(dtype, dtype)
        wanted = np.cumsum(np.flip(x, axis) if reverse else x, axis, dtype=wide)
        same(run(tk.cumsum, layout, config, x, axis, reverse), np.flip(wanted, axis) if reverse else wanted)


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS)
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


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS)
@pytest.mark.parametrize("descending", [False, True])
def test_sorts(layout, axis, config, descending):
    for dtype in (tk.float32, tk.int8, tk.uint16, tk.float64, tk.bool_, tk.float16):
        x = sample(dtype, layout.shape)
        with np.errstate(all="ignore"):
            wanted = np.sort(x, axis)
        same(run(tk.sort, layout, config, x, axis, descending), np.flip(wanted, axis) if descending else wanted)


def places(x, axis, descending):
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS)
@pytest.mark.parametrize("descending", [False, True])
def test_places_in_order(layout, axis, config, descending):
    for dtype in (tk.float32, tk.int8, tk.int64, tk.float64, tk.bool_):
        x = sample(dtype, layout.shape)
        same(run(tk.argsort, layout, config, x, axis, descending), places(x, axis, descending).astype(np.int32))


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS)
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_in_order(layout, axis, config, largest):
    extent = layout.shape[axis]
    for dtype, k in itertools.product((tk.float32, tk.uint8, tk.int64), {1, min(4, extent), extent // 2 or 1, extent}):
        x = sample(dtype, layout.shape)
        order = np.take(places(x, axis, largest), np.arange(k), axis).astype(np.int32)
        values, found = run(tk.topk, layout, config, x, k, axis, largest)
        same(found, order)
        same(values, np.take_along_axis(x, order.astype(np.int64), axis))


@pytest.mark.parametrize(("layout", "axis", "config"), CASES, ids=IDS)
def test_folds(layout, axis, config):
    for dtype in (tk.int32, tk.int8, tk.uint64):
        x = sample(dtype, layout.shape)
        wide = {tk.int8: tk.int32}.get(dtype, dtype)
        same(run(tk.sum, layout, config, x, axis, False), np.sum(x, axis, dtype=wide))
        same(run(tk.argmax, layout, config, x, axis, False, True), np.argmax(x, axis).astype(np.int32))


@pytest.mark.parametrize(("layout", "config"), [(layout, config) for layout, _, config in CASES], ids=IDS)
def test_counts(layout, config):
    for dtype, bins in itertools.product((tk.int32, tk.int8, tk.uint64), (1, 16, 2048)):
        x = sample(dtype, layout.shape)
        inside = x[(x >= 0) & (x < min(bins, 64))].astype(np.int64)
        same(run(tk.histogram, layout, config, x, bins, None), np.bincount(inside, minlength=bins).astype(np.int32))


assert lower.__all__, "importing it registers the tile operations"
