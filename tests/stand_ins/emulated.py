"""A builder that carries out what lowerings ask it to build, for all threads of a block at once."""

import operator
from types import SimpleNamespace

import numpy as np
from llvmlite import ir
from numba.cuda import types

import tilekit as tk
from tilekit import dtypes
from tilekit.compiler.codegen import definition as ops
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.compilation import compiling
from tilekit.compiler.codegen.types import TileType, i32, register_type
from tilekit.compiler.lower import sorting

ROOM = 160 * 1024
"""Bytes of the memory that operations may use."""
DRAIN = (1 << 18) - 4
"""An address of shared memory that is no room's."""


class Value:
    """A value that each thread has: its bits, in 64."""

    def __init__(self, kind, bits):
        self.type, self.bits = kind, np.asarray(bits, np.uint64) & np.uint64((1 << width_of(kind)) - 1)

    @property
    def signed(self):
        shift = np.uint64(64 - width_of(self.type))
        return (self.bits << shift).view(np.int64) >> shift.astype(np.int64)


def width_of(kind):
    """The bits of a type."""
    return kind.width if isinstance(kind, ir.IntType) else {"half": 16, "float": 32, "double": 64}[str(kind)]


def value_of(x):
    """`x`, also where it is a constant."""
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
        self.active = np.ones(num_threads, bool)

    def _binary(function, signed=False):
        def compute(self, x, y):
            x, y = value_of(x), value_of(y)
            with np.errstate(over="ignore"):
                made = function(x.signed, y.signed) if signed else function(x.bits, y.bits)
            return Value(x.type, made.astype(np.int64).view(np.uint64) if signed else made)

        return compute

    add, sub, mul = _binary(operator.add), _binary(operator.sub), _binary(operator.mul)
    and_, or_, xor = _binary(operator.and_), _binary(operator.or_), _binary(operator.xor)
    shl, lshr, ashr = _binary(operator.lshift), _binary(operator.rshift), _binary(operator.rshift, signed=True)

    def not_(self, x):
        return Value(x.type, ~value_of(x).bits)

    def _compare(self, symbol, x, y):
        function = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}[symbol]
        return Value(ir.IntType(1), function(x, y))

    def icmp_unsigned(self, symbol, x, y):
        return self._compare(symbol, value_of(x).bits, value_of(y).bits)

    def icmp_signed(self, symbol, x, y):
        return self._compare(symbol, value_of(x).signed, value_of(y).signed)

    def select(self, condition, x, y):
        x, y = value_of(x), value_of(y)
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


def emulate(monkeypatch, modules):
    """Put shuffles, special registers and shared memory of a `Block` in the place of PTX, in lowerings that use them."""

    def exchange(block, elements, dtype, place, num_threads):
        if place.kind == "reg":
            return [elements[r ^ 1 << place.bit] for r in range(len(elements))]
        step = 1 << place.bit if place.kind == "lane" else 32 << place.bit
        return [Value(e.type, block.whole(e.bits)[(block.thread ^ np.uint64(step)).astype(int)]) for e in elements]

    def shifted(block, elements, dtype, bits, step, *, down):
        """As PTX describes `shfl.sync.up`; where there is no such lane, nobody may rely on what comes."""
        rank, most = (block.thread >> np.uint64(bits[0])).astype(int) % (1 << len(bits)), (1 << len(bits)) - 1
        there = rank + step <= most if down else rank >= step
        source = np.where(there, block.thread.astype(int) + (step if down else -step) * (1 << bits[0]), 0)
        return [Value(e.type, np.where(there, block.whole(value_of(e).bits)[source], 0xA5)) for e in elements]

    def from_lane(block, elements, dtype, lane):
        source = (block.thread & ~np.uint64(31) | value_of(lane).bits).astype(int)
        return [Value(e.type, block.whole(value_of(e).bits)[source]) for e in elements]

    def put(block, address, offset, dtype, elements):
        size = dtype.itemsize
        start = block.whole(address.bits).astype(int) + offset
        assert not np.any(start % (size * len(elements))), "misaligned"
        for k, element in enumerate(elements):
            for byte in range(size):
                held = (block.whole(value_of(element).bits) >> np.uint64(8 * byte)).astype(np.uint8)
                block.memory[(start + k * size + byte)[block.active]] = held[block.active]

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

    def get_matrices(block, address, offset, dtype, *, transposed):
        """As PTX describes `ldmatrix`: of each matrix, 8 lanes have the addresses of the rows."""
        start = block.whole(address.bits).astype(int) + offset
        assert not np.any(start % 16), "misaligned"
        per_word = 4 // dtype.itemsize
        made = np.zeros((4 * per_word, len(block.thread)), np.uint64)
        for warp in range(0, len(block.thread), 32):
            for matrix in range(4):
                rows = [block.memory[s : s + 16] for s in start[warp + 8 * matrix : warp + 8 * matrix + 8]]
                halves = np.stack(rows).view(np.uint16)
                for lane in range(32):
                    group, member = divmod(lane, 4)
                    pair = (
                        halves[2 * member : 2 * member + 2, group] if transposed else halves[group, 2 * member : 2 * member + 2]
                    )
                    held = np.ascontiguousarray(pair).view(f"u{dtype.itemsize}")
                    made[matrix * per_word : (matrix + 1) * per_word, warp + lane] = held
        return [Value(register_type(dtype), bits) for bits in made]

    def room(block, nbytes, what):
        assert nbytes <= ROOM
        block.memory[:ROOM] = 0xA5  # what lies behind it are stages of a pipeline
        return Value(i32, 0)

    def where(block, condition, access, otherwise=()):
        block.active = block.whole(True if condition is None else condition.bits == 1)
        made = list(access() or ())
        if condition is not None:
            made = [
                Value(new.type, np.where(block.active, new.bits, 0xA5 if old is None else old.bits))
                for new, old in zip(made, otherwise, strict=True)
            ]
        block.active = block.whole(True)
        return made

    def special_register(block, name):
        assert name == "tid.x"
        return Value(i32, block.thread)

    for module in modules:
        for name, function in {
            "exchange": exchange, "from_lane": from_lane, "shifted": shifted, "special_register": special_register
        }.items():  # fmt: skip
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(sorting, "masked", lambda block, bits, mask: block.and_(bits, mask))
    monkeypatch.setattr(shared, "put", put)
    monkeypatch.setattr(shared, "get", get)
    monkeypatch.setattr(shared, "get_matrices", get_matrices)
    monkeypatch.setattr(shared, "room", room)
    monkeypatch.setattr(shared, "where", where)
    monkeypatch.setattr(shared, "barrier", lambda block: None)


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


def places(x, axis, descending):
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
