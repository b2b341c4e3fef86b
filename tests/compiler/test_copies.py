"""Copies of tiles to the stages of a ring, as the lowering emits them, carried out for all threads that load at once."""

import re
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from emulated import Block, Fragment, Value, emulate, value_of

import tilekit as tk
from tilekit.compiler.codegen import access
from tilekit.compiler.codegen import convert_layout as relayout
from tilekit.compiler.codegen.compilation import compiling
from tilekit.compiler.codegen.types import TensorType, i32, i64
from tilekit.compiler.codegen.view_types import TileGridType, TileRowType
from tilekit.compiler.codegen.windows import Padding, cut_of
from tilekit.compiler.facts import TensorFacts, divisor
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.nvidia import stage_copies as copies
from tilekit.compiler.nvidia.multibuffer import Way
from tilekit.compiler.nvidia.staged import StagedType

WARPS, BEGIN, STAGE = 4, 4096, 2048
COPY = re.compile(r"cp\.async\.(cg|ca)\.shared\.global(\S*) \[\$0\+(\d+)\], \[\$1\+(\d+)\], (\d+)(, \$2)?;")


class Copying(Block):
    """A block of which each thread that loads is there once for each turn of the loop."""

    def __init__(self, producers, turns, memory):
        super().__init__(producers * turns)
        self.thread, self.turn = 32 * WARPS + self.thread % producers, self.thread // producers
        self.memory[:] = 0xA5
        self.elsewhere, self.masked, self.sizes = memory, None, set()

    @contextmanager
    def if_else(self, inside):
        """Tiles are inside for all threads, or for none: the branch that is taken is carried out."""
        (taken,) = set(value_of(inside).bits.ravel().tolist())

        @contextmanager
        def branch(here):
            self.masked = not here
            self.idle = bool(taken) != here
            yield
            self.idle = False

        yield branch(True), branch(False)

    idle = False

    def copy(self, text, args):
        """`cp.async`, by all threads."""
        kind, _, offset, source, nbytes, partly = COPY.fullmatch(text).groups()
        nbytes = int(nbytes)
        assert (kind == "cg") == (nbytes == 16)
        if self.idle:
            return
        self.sizes.add((nbytes, bool(partly)))
        to, of = (self.whole(value_of(x).bits).astype(int) for x in args[:2])
        sizes = self.whole(value_of(args[2]).bits).astype(int) if partly else np.full(to.shape, nbytes)
        for target, begin, size in zip(to + int(offset), of + int(source), sizes, strict=True):
            assert target % nbytes == begin % nbytes == 0, "misaligned"
            assert 0 <= size <= nbytes
            self.memory[target : target + nbytes] = 0
            self.memory[target : target + size] = self.elsewhere[begin : begin + size]


# The tensor's extents and those of the tile, the elements between rows, where the tensor begins, and which tile.
PLACES = [
    ((256, 256), (64, 64), 256, 0, (1, 2)), ((100, 200), (64, 64), 200, 0, (1, 3)), ((100, 204), (64, 64), 204, 0, (0, 3)),
    ((70, 201), (64, 64), 202, 0, (1, 3)), ((70, 201), (64, 64), 202, 2, (0, 0)), ((64, 130), (16, 128), 132, 4, (3, 1)),
    ((64, 130), (16, 128), 136, 0, (9, 1)), ((64, 130), (16, 128), 136, 0, (1, 5)), ((33, 77), (32, 32), 80, 8, (1, 2)),
    ((300, 31), (256, 32), 32, 0, (1, 0)), ((20, 514), (8, 256), 518, 0, (1, 1)), ((20, 514), (8, 256), 518, 0, (2, 2)),
]  # fmt: skip


def width(dtype, pitch, first):
    """The bytes of a copy."""
    bits = BEGIN + first * dtype.itemsize | pitch * dtype.itemsize | 16
    return bits & -bits


DTYPES = (tk.bfloat16, tk.float32, tk.int8)
CASES = [(dtype, *place, 0) for dtype in DTYPES for place in PLACES if width(dtype, *place[2:4]) >= 4]
# In panels that are wider than the tile's rows.
CASES += [(tk.bfloat16, (100, 200), (64, columns), 200, 0, (1, 200 // columns), 128) for columns in (8, 16, 32)]
CASES += [(tk.bfloat16, (70, 201), (32, 16), 202, 0, (1, 2), panel) for panel in (64, 128)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("producers", [32, 128])
@pytest.mark.parametrize(("dtype", "extents", "shape", "pitch", "first", "index", "panel"), CASES, ids=str)
def test_copies(monkeypatch, dtype, extents, shape, pitch, first, index, panel, producers, turned):
    """A tile in a stage is what is there of the tensor, and zeros; nothing is read from beyond its rows."""
    size, unit, nbytes = dtype.itemsize, 0 if turned else 1, width(dtype, pitch, first)
    tensor = np.full(first + extents[0] * pitch, -1, np.int64)
    rows = np.random.default_rng(0).integers(1, 100, extents)
    for n, row in enumerate(rows):
        tensor[first + n * pitch : first + n * pitch + extents[1]] = row
    memory = np.concatenate([np.zeros(BEGIN, np.uint8), tensor.astype(dtype).view(np.uint8)])
    align = min(16, (BEGIN + first * size) & -(BEGIN + first * size))
    if turned:
        extents, shape, index, rows = extents[::-1], shape[::-1], index[::-1], rows.T
    strides = tuple(0 if d == unit else divisor(pitch) for d in range(2))
    facts = TensorFacts(dtype.name, "in", None, 2, unit, align, tuple(map(divisor, extents)), strides, False, False)
    config = Config(WARPS, 16 // size)
    with compiling(config):
        grid = TileGridType(TensorType("x", facts, config), cut_of(shape, shape), Padding())
        memory_shape, axes = (shape[::-1], (1, 0)) if turned else (shape, (0, 1))
        lies = StagedType(np.dtype(dtype), memory_shape, axes, config, panel=panel)
        _, _, turns = copies.dealt(lies, nbytes, producers)
        block = Copying(producers, turns, memory)
        emulate(monkeypatch, [access, copies, relayout])
        monkeypatch.setattr(copies, "the_pipelines", lambda: SimpleNamespace(producers=producers, summed=False))
        monkeypatch.setattr(copies, "asm", lambda block, text, letters, result, args, **_: block.copy(text, args))
        loop = contextmanager(lambda builder, count, intp: iter([SimpleNamespace(index=Value(i32, builder.turn))]))
        monkeypatch.setattr(copies, "cgutils", SimpleNamespace(for_range=loop))
        value = [Value(i64, BEGIN + first * size), *(Value(i32, n) for n in extents), Value(i64, pitch)]
        at = [Value(i32, n) for n in index]
        copies._copy(block, TileRowType(grid, ()), Fragment([Fragment(value)]), lies, Way(None, nbytes), Value(i32, STAGE), at)
    wanted = np.zeros(shape, np.int64)
    corner = [n * step for n, step in zip(index, shape, strict=True)]
    there = rows[corner[0] : corner[0] + shape[0], corner[1] : corner[1] + shape[1]]
    wanted[: there.shape[0], : there.shape[1]] = there
    swizzle, found = lies.swizzle(), block.memory[STAGE : STAGE + lies.nbytes].view(dtype)
    lying = np.array([found[swizzle.offset(at)] for at in np.ndindex(shape)]).reshape(shape)
    np.testing.assert_array_equal(lying, wanted.astype(dtype))
    assert {n for n, _ in block.sizes} == {nbytes}
    rest = np.delete(block.memory, np.s_[STAGE : STAGE + lies.nbytes])
    assert (rest == 0xA5).all()
