"""Every reason that the compiler gives for leaving something undone is true.

Each has a pair of kernels: one `against` which it speaks, and one `without` just that property, for which what was left undone is
done, and nothing is said. `tests/stand_ins/reasons.py` finds the reasons in the compiler's source.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import pytest
import reasons
from numba import cuda
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler import assembly
from tilekit.compiler.ir.products import is_product
from tilekit.compiler.ir.remarks import collected
from tilekit.compiler.optimize import PASSES

ROWS = (16, 64)


class Row(NamedTuple):
    """A reason, and what `kernel` is launched with for it to be given, and not to be."""

    reason: str
    kernel: Any
    against: dict[str, Any]
    without: dict[str, Any]


def parametrized(rows):
    return pytest.mark.parametrize(
        "row", rows, ids=lambda row: f"{row.reason[:60]}, {' '.join(map(str, row.against.values()))}"[:90]
    )


def meta(*shape, dtype=tk.float32):
    return api.meta(shape, dtype)


# ----------------------------------------------------------------------------------------------- why a loop has no ring of stages


def leaving(y: tk.Out, x: tk.In, how: tk.Const):
    s = tk.zeros(ROWS, tk.float32)
    for t in tk.pipelined(x.tiles(ROWS)[0, :], warp_specialize=False if how == "told" else None):
        s += t
        if how == "break" and x.shape[1] > 100:
            break
        if how == "continue" and x.shape[1] > 100:
            if x.shape[0] > 100:
                continue
            s += t
        if how == "return" and x.shape[1] > 100:
            return
        if how == "while":
            k = 1
            while k < x.shape[1]:
                s += t
                k *= 2
        if how == "inner break":
            for k in range(x.shape[1]):
                if k * k > 77:
                    break
                s += t
        if how == "counted":
            k = 1
            while k < x.shape[1]:
                s += t
                k += 2
        s += 1.0
    else:
        s += 1.0
    y.store(s)


def keeping(y: tk.Out, x: tk.In, how: tk.Const):
    s, before, last = tk.zeros(ROWS, tk.float32), tk.zeros(ROWS, tk.float32), tk.zeros((64, 16), tk.float32)
    for t in tk.pipelined(x.tiles(ROWS)[0, :]):
        s += t * before
        if how == "later":
            before = t
        if how == "behind":
            last = t.transpose()
        if how == "computed":
            before, last = t + 0.0, t.transpose() + 0.0
    y.store(s + last.transpose())


def choosing(y: tk.Out, x: tk.In, n: int, how: tk.Const):
    s, row, at = tk.zeros(ROWS, tk.float32), x.tiles(ROWS)[0, :], 0
    if how == "branch":
        row = x.tiles(ROWS)[0, :] if n > 2 else x.tiles(ROWS)[1, :]
    if how == "number by branch":
        at = 0 if n > 2 else 1
        row = x.tiles(ROWS)[at, :]
    for k in range(2):
        for t in tk.pipelined(row):
            s += t
        if how == "loop":
            row = x.tiles(ROWS)[k, :]
    y.store(s)


def choosing_a_part(y: tk.Out, x: tk.In, n: int, how: tk.Const):
    s, part = tk.zeros(ROWS, tk.float32), x.slice(0, 0, 32)
    if how:
        part = x.slice(0, 0, 32) if n > 2 else x.slice(0, 32, 64)
    for t in tk.pipelined(part.tiles(ROWS)[0, :]):
        s += t
    y.store(s)


def slicing(y: tk.Out, x: tk.In, n: int, how: tk.Const):
    s = tk.zeros(ROWS, tk.float32)
    for t in tk.pipelined(x.slice(0, 0, n + 16 if how else n).tiles(ROWS)[0, :]):
        s += t
    y.store(s)


def from_within(y: tk.Out, x: tk.In, n: int, how: tk.Const):
    s = tk.zeros(ROWS, tk.float32)
    for t in tk.pipelined(x.slice(how, 1).tiles(ROWS)[0, :]):
        s += t
    y.store(s)


def looking_up(y: tk.InOut, x: tk.In, table: tk.In, how: tk.Const):
    s, at = tk.zeros(ROWS, tk.float32), 0
    if how == "tile":
        at = tk.sum(tk.load(table, (0,), (4,))).item()
    if how == "written":
        at = int(tk.load(y, (0, 0), ()).item())
    if how == "element":
        at = tk.minimum(tk.maximum(tk.load(table, 0, ()), tk.load(table, 1, ())), 3).item()
    for t in tk.pipelined(x.tiles(ROWS)[at, :]):
        if how == "loaded" and tk.sum(t) > 0:
            for u in tk.pipelined(x.tiles(ROWS)[1, :]):
                s += u
        s += t
    y.store(s)


@tk.function
def endless(s, y):
    while True:
        s += 1.0
        y.store(s)
    return s


def without_form(y: tk.Out, x: tk.In, how: tk.Const):
    s, a, b, c, d, e = tk.zeros(ROWS, tk.float32), 1, 1, 1, 1, 1
    for t in tk.pipelined(x.tiles(ROWS)[0, :]):
        s += t
        if how == "types":
            e, d, c, b, a = d, c, b, a, 1.5
    if how == "breakpoint":
        breakpoint()
    if how == "endless":
        s = endless(s, y)
    if how == "element":
        own = cuda.shared.array(128, "float32")
        own[cuda.threadIdx.x] = 1.0
    if how == "element added to":
        own = cuda.shared.array(128, "float32")
        own[cuda.threadIdx.x] += 1.0
    y.store(s + e)


def of_tiles(y: tk.InOut, x: tk.In, tile: tk.Const, stages: tk.Const, how: tk.Const):
    s = tk.zeros(ROWS, tk.float32)
    for t in tk.pipelined(y.tiles(tile)[0, :] if how == "written" else x.tiles(tile)[0, :], stages=stages):
        s += tk.sum(t.astype(tk.float32))
    y.store(s)


def of_three(y: tk.Out, x: tk.In, how: tk.Const):
    s = tk.zeros(ROWS, tk.float32)
    for t in tk.pipelined(x.tiles((8, 32))[0, :], stages=16):
        s += tk.sum(t)
    for t in tk.pipelined(x.tiles((16, 32))[0, :], stages=15):
        s += tk.sum(t)
    for t in tk.pipelined(x.tiles((32, 32))[0, :], stages=how):
        s += tk.sum(t)
    y.store(s)


def with_an_array(y: tk.Out, x: tk.In, z: tk.Out, how: tk.Const):
    """An array of its own, beside what a transposition takes of static shared memory: 48 KB are there for both."""
    s = tk.zeros(ROWS, tk.float32)
    for t in tk.pipelined(x.tiles(ROWS)[0, :]):
        s += t
    if how:
        own = cuda.shared.array(8192, "float32")
        cuda.atomic.add(own, 0, 1.0)
        s += own[0]
    y.store(s)
    z.store(tk.load(x, (0, 0), (64, 128)).transpose())


def with_rooms(y: tk.Out, x: tk.In, z: tk.Out, how: tk.Const):
    """Transpositions through rooms of 32, 8 and 64 KB; a block of sm_86 has 99."""
    s = tk.zeros(ROWS, tk.float32)
    for t in tk.pipelined(x.tiles(ROWS)[0, :]):
        s += t
    y.store(s)
    if how:
        tk.store(z, (0, 0), tk.load(x, (0, 0), (128, 64)).transpose())
    tk.store(z, (1, 0), tk.load(x, (1, 0), (64, 32)).transpose())
    tk.store(z, (1, 0), tk.load(x, (0, 0), (128, 128)).transpose())


def multiplying(y: tk.Out, x: tk.In, number: tk.In, tile: tk.Const):
    acc = tk.zeros(tile, tk.float32)
    for ta, tb in tk.pipelined(x.tiles((tile[0], 64))[0, :], x.tiles((64, tile[1]))[:, 0]):
        acc = tk.mma(ta, tb, acc)
    y.store(acc + tk.where(-tk.load(number, 0, ()) < 0, 1, 0))


@functools.cache
def of_rows(make, *, warps=4, target="sm_90a", occupancy=None, shape=(256, 512), dtype=tk.float32, cut=None, **more):
    """What `explain` says of a kernel that takes tiles of `x`."""
    x = meta(*shape, dtype=dtype)
    x = x if cut is None else x[:, slice(*cut)]
    y = meta(*more.get("tile", ROWS)) if make is multiplying else meta(*ROWS)
    arguments = {"x": x, "n": 3, "table": meta(4, dtype=tk.int32), "number": meta(4, dtype=tk.int32), **more}
    if make is with_an_array:
        arguments["z"] = meta(128, 64).partition((128, 64))
    if make is with_rooms:
        arguments["z"] = meta(512, 512).scattered()
    if "number" in more:
        arguments["number"] = meta(4, dtype=more["number"])
    names = make.__code__.co_varnames[1 : make.__code__.co_argcount]
    op = tk.kernel(make)(y.partition(y.shape), *(arguments[name] for name in names)).num_warps(warps)
    if make is with_rooms:
        op = op.grid(1)
    return (op if occupancy is None else op.occupancy(occupancy)).explain(target)


def ways(make, *hows, without=None):
    """Of a kernel that has several ways."""
    return [Row(reason, make, {"how": how}, {"how": without}) for how, reason in hows]


TILE = {"tile": ROWS, "stages": None, "how": None}
_NO_FORM = "the compiler has no form for it: "
CHOSEN = "a branch or a loop decides which tensor, or which part of it, the tiles of a stream are of"


def tiles(reason, against, without):
    return Row(reason, of_tiles, {**TILE, **against}, {**TILE, **without})


RINGS = [
    *ways(
        leaving,
        ("told", "warp_specialize=False"),
        ("break", "the loop has a break, continue or return"),
        ("continue", "the loop has a break, continue or return"),
        ("return", "the loop has a break, continue or return"),
        ("while", "a loop in it has a break or continue, or goes on while a condition holds"),
        ("inner break", "a loop in it has a break or continue, or goes on while a condition holds"),
        without="counted",
    ),
    *ways(
        keeping,
        ("later", "before, a tile of the pipeline, may be used in a later turn"),
        ("behind", "last, a tile of the pipeline, is used behind the loop"),
        without="computed",
    ),
    *ways(choosing, ("branch", CHOSEN), ("loop", CHOSEN), without="number by branch"),
    *ways(choosing_a_part, (True, CHOSEN), without=False),
    *ways(from_within, (1, "x is a slice that may begin at a multiple of 4 bytes; copies are of 16"), without=0),
    *ways(
        looking_up,
        ("loaded", "which tiles come depends on t, which a pipeline loads"),
        ("tile", "which tiles come depends on tk.sum(tk.load(table, (0,), (4,)))"),
        ("written", "which tiles come depends on tk.load(y, (0, 0), ()), and y is written"),
        without="element",
    ),
    *ways(
        without_form,
        ("breakpoint", f"{_NO_FORM}breakpoint(), in without_form:LINE"),
        ("types", f"{_NO_FORM}a variable that changes its type in a loop, in without_form:LINE"),
        ("endless", f"{_NO_FORM}statements that are not reached, in endless:LINE"),
        ("element", f"{_NO_FORM}assignment to an element, in without_form:LINE"),
        ("element added to", f"{_NO_FORM}AugAssign, in without_form:LINE"),
    ),
    tiles("y is written, too", {"how": "written"}, {}),
    tiles("x has no dimension of stride 1", {"cut": (None, None, 2)}, {"cut": (0, 256)}),
    tiles("tiles of x have rows of 16 bytes", {"tile": (64, 4)}, {"tile": (64, 8)}),
    tiles("tiles of x have one row, of 512 float32", {"tile": (1, 512)}, {"tile": (1, 256)}),
    tiles("tiles of x have one row, of 256 int32", {"tile": (1, 256), "dtype": tk.int32}, {"tile": (1, 256)}),
    tiles("tiles of x have 4 rows", {"tile": (4, 256)}, {"tile": (8, 256)}),
    tiles("tiles of x have 512 bytes, no multiple of 1024", {"tile": (8, 16)}, {"tile": (8, 32)}),
    tiles(
        "x does not begin at a multiple of 4 bytes",
        {"dtype": tk.float16, "cut": (1, 257)}, {"dtype": tk.float16, "cut": (2, 258)},
    ),
    tiles("rows of x are not multiples of 4 bytes apart", {"dtype": tk.float16, "shape": (64, 255)}, {"shape": (64, 255)}),
    tiles(
        "a stage of 262144 bytes does not fit into the shared memory that is left, 230400",
        {"tile": (128, 512), "warps": 16},
        {"tile": (128, 256), "warps": 16},
    ),
    tiles(
        "its stages and the rest take 264720 bytes of shared memory; a block has 233472",
        {"tile": (64, 64), "stages": 16},
        {"tile": (64, 64), "stages": 13},
    ),
    *ways(of_three, (2, "all rings of a kernel have 32 stages together, at most"), without=1),
    *ways(with_an_array, (True, "the kernel has arrays of 32,768 bytes in shared memory"), without=False),
    Row(
        "the elements need 65,536 bytes of shared memory beside others, and a block of sm_86 has 101,376",
        with_rooms, {"how": True, "target": "sm_86", "warps": 8}, {"how": False, "target": "sm_86", "warps": 8},
    ),
    Row(
        "it has arithmetic on integers that ptxas gets wrong there",
        multiplying, {"tile": (64, 64), "dtype": tk.float16, "number": tk.int16}, {"tile": (64, 64), "dtype": tk.float16},
    ),
    Row(
        "its products need more registers than threads of 16 warps and those that load have",
        multiplying,
        {"tile": (256, 256), "dtype": tk.float16, "warps": 16}, {"tile": (256, 128), "dtype": tk.float16, "warps": 16},
    ),
    Row(
        "with warps that load, too, registers of 2 blocks on a multiprocessor spill",
        multiplying,
        {"tile": (128, 128), "dtype": tk.float16, "warps": 8, "target": "sm_80", "occupancy": 2},
        {"tile": (128, 128), "dtype": tk.float16, "warps": 8, "target": "sm_80", "occupancy": 1},
    ),
]  # fmt: skip


@parametrized(RINGS)
def test_why_a_loop_has_no_ring(row):
    against, without = of_rows(row.kernel, **row.against), of_rows(row.kernel, **row.without)
    loop, *_ = against.pipelines
    assert re.sub(r":\d+$", ":LINE", loop.reason) == row.reason
    assert (loop.stages, loop.tiles) == (0, ())
    assert f"as the loop goes: {loop.reason}" in str(against)
    assert "mbarrier" not in against.compiled.ptx
    assert without.pipelines
    assert all(ring.stages and not ring.reason for ring in without.pipelines)
    assert "mbarrier" in without.compiled.ptx


# ---------------------------------------------------------------------------------------------------- why a loop is not rotated


def attending(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int, how: tk.Const):
    query, once = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.load(v, (0, 0), (64, 64))
    acc, other, before, x = tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float16), 0.0
    keys, values = k.tiles((64, 64))[:, 0], v.tiles((64, 64))[:, 0]
    for key, value in tk.pipelined(
        keys, values, rotate=False if how == "told" else None, warp_specialize=False if how == "serial" else None
    ):
        s = tk.mma(query, key.transpose(), acc if how == "renewed" else tk.zeros((64, 64), tk.float32))
        if how == "break" and n > 7:
            break
        if how == "while":
            i = 1
            while i < n:
                s += 1
                i *= 2
        if how == "store":
            o.store(s)
        if how == "print":
            tk.print("n", n)
        if how == "assert":
            tk.assert_(n > 3, "n")  # noqa: PT009
        if how == "barrier":
            cuda.syncthreads()
        if how == "branch" and n > 5:
            other = tk.mma(query, key.transpose(), other)
        if how == "loop":
            for _ in range(n):
                other = tk.mma(query, key.transpose(), other)
        if how == "apart":
            other = tk.mma(query, key.transpose(), other)
        if how == "normed":
            s *= tk.sum(key.astype(tk.float32))
        w = s.astype(v.dtype)
        if how == "single":
            acc = tk.maximum(tk.mma(query, value, acc), s)
        elif how == "same":
            acc = tk.mma(w, key, acc)
        elif how == "both":
            acc = tk.mma(w, value, acc) + key
        elif how == "none":
            acc = tk.mma(w, once, acc)
        elif how == "handed on":
            acc = tk.mma(w, value, acc) + before
            before = value
        elif how == "turn":
            acc = tk.mma(w, value, acc) * x
            x = x + 1.0
        else:
            acc = tk.mma(w, value, acc)
    o.store(acc + other)


def along(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int, how: tk.Const):
    query, acc = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32)
    keys = k.tiles((64, 64)) if how == "all" else k.tiles((64, 64))[1:n, 0]
    for key, value in tk.pipelined(keys, v.tiles((64, 64))[:, 0]):
        s = tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32))
        acc = tk.mma(s.astype(v.dtype), value, acc)
    o.store(acc)


def chained(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int, how: tk.Const):
    query, acc, w = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32), tk.load(q, (0, 0), (64, how))
    for key, value in tk.pipelined(k.tiles((64, 64))[:, 0], v.tiles((how, 64))[:, 0]):
        s = tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32))
        s = tk.mma(s.astype(v.dtype), w, tk.zeros((64, how), tk.float32))
        acc = tk.mma(s.astype(v.dtype), value, acc)
    o.store(acc)


def looked_up(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int, how: tk.Const):
    query, acc = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32)
    at = 0
    for j in range(k.shape[0] // 64):
        at = (2 * at + 1) % 3 if how == "handed on" else j * j
        s = tk.mma(query, tk.load(k, (at, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32))
        acc = tk.mma(s.astype(v.dtype), tk.load(v, (at, 0), (64, 64)), acc)
    o.store(acc)


ROTATIONS = [
    *ways(looked_up, ("handed on", "each turn finds out which tiles come")),
    *ways(
        attending,
        ("told", "rotate=False"),
        ("serial", "warp_specialize=False"),
        ("break", "a turn may leave the loop, or go on with the next one"),
        ("while", "a loop in a turn has a break or continue, or goes on while a condition holds"),
        ("store", "a turn writes to memory, prints or asserts, or calls what may"),
        ("print", "a turn writes to memory, prints or asserts, or calls what may"),
        ("assert", "a turn writes to memory, prints or asserts, or calls what may"),
        ("barrier", "a turn writes to memory, prints or asserts, or calls what may"),
        ("branch", "a turn has 2 of its 3 products in it, the others in branches or loops"),
        ("loop", "a turn has 2 of its 3 products in it, the others in branches or loops"),
        ("apart", "a turn has 3 products, and not all but the last of them make what it multiplies"),
        ("renewed", "the first product reads what the turn before hands on"),
        ("single", "the second product is not made of the first"),
        ("handed on", "a turn hands a tile of a stream on"),
        ("same", "both halves of a turn, with a product each, read the same stream"),
        ("both", "both halves of a turn, with a product each, read the same stream"),
        ("none", "one of the halves of a turn, with a product each, reads no stream"),
        ("normed", "operands of the first product are read by more than it"),
        ("turn", "what the second product makes depends on a number of its turn"),
    ),
    *ways(
        along,
        ("all", "a stream is no row of tiles along one dimension, without a step"),
    ),
    *ways(chained, (128, "the products of a turn that make what the last one multiplies differ in shape or dtype"), without=64),
]  # fmt: skip


@functools.cache
def of_transformation(transformation, make, how):
    """The remarks of a kernel about it, and how many products its loops over streams have, each where it is written."""
    o, q = meta(128, 64).partition((64, 64)), meta(256, 128 if make is chained else 64, dtype=tk.float16)
    with collected() as remarks:
        kernel = ir_of(tk.kernel(make)(o, q, q, q, 3, how), *PASSES)
    count = sum(map(is_product, kernel.walk()))
    return {(remark.done, remark.text) for remark in remarks if remark.transformation == transformation}, count


@parametrized(ROTATIONS)
def test_why_a_loop_is_not_rotated(row):
    """Rotated, a loop is three, of which the first and the second have its first products, the second and the third its last."""
    against, _ = of_transformation("rotation", row.kernel, **row.against)
    assert against == {(False, row.reason)}
    without, count = of_transformation("rotation", row.kernel, **row.without)
    assert [done for done, _ in without] == [True]
    assert count == (6 if row.kernel is chained else 4)
    whole = {attending: "told", looked_up: "handed on"}.get(row.kernel, "all")
    assert row.kernel is chained or of_transformation("rotation", row.kernel, whole)[1] == 2


# ------------------------------------------------------------------------------------------------------ why a loop is not split


def masking(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int, how: tk.Const):
    query, acc, j = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32), 0
    for key in tk.pipelined(k.tiles((64, 64))[:, 0], split=False if how == "told" else None):
        s = tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32))
        acc += tk.where(tk.arange(64)[None, :] + 64 * j < n, s, 0.0)
        j += 1  # noqa: SIM113
    o.store(acc)


SPLITS = ways(masking, ("told", "split=False"))


@parametrized(SPLITS)
def test_why_a_loop_is_not_split(row):
    """Split, it is two: with the mask, and without it."""
    assert of_transformation("splitting", row.kernel, **row.against) == ({(False, row.reason)}, 1)
    without, count = of_transformation("splitting", row.kernel, **row.without)
    assert [done for done, _ in without] == [True]
    assert count == 2


# ----------------------------------------------------------------------------------------- why a product is not by an instruction


def product(c: tk.Out, a: tk.In, b: tk.In, tile: tk.Const, how: tk.Const, precision: tk.Const):
    acc, held = tk.zeros(c.tile_shape, c.dtype), tk.load(b, (0, 0), (tile, c.tile_shape[1]))
    for ta, tb in tk.pipelined(
        a.tiles((c.tile_shape[0], tile))[tk.bid(0), :],
        b.tiles((tile, c.tile_shape[1]))[:, tk.bid(1)],
        warp_specialize=False if how == "serial" else None,
    ):
        if how == "a":
            acc = tk.mma(ta * 2, tb, acc)
        elif how == "b":
            acc = tk.mma(ta, tb * 2, acc)
        elif how == "equal":
            acc = tk.mma(ta, tk.full((tile, c.tile_shape[1]), 3.0, b.dtype), acc)
        elif how == "unequal":
            acc = tk.mma(ta, held + 1, acc)
        elif how == "at once":
            acc = acc + ta @ tb
        elif how == "batch" or how == "batch of b":
            both = tk.broadcast_to(acc[None, :, :], (2, c.tile_shape[0], c.tile_shape[1]))
            if how == "batch":
                acc = tk.max(tk.mma(tk.broadcast_to(ta[None, :, :], (2, c.tile_shape[0], tile)), tb, both), 0)
            else:
                acc = tk.max(tk.mma(ta, tk.broadcast_to((tb * 2)[None, :, :], (2, tile, c.tile_shape[1])), both), 0)
        else:
            acc = tk.mma(ta, tb, acc, precision=precision)
    c.store(acc)


def few(c: tk.Out, a: tk.In, b: tk.In, tile: tk.Const, how: tk.Const, precision: tk.Const):
    """Products of little `k`, of operands that threads hold."""
    acc = tk.zeros(c.tile_shape, c.dtype)
    for ta in tk.pipelined(a.tiles((c.tile_shape[0], 64))[tk.bid(0), :]):
        x, y = tk.load(a, (0, 0), (c.tile_shape[0], tile)) + 1, tk.load(b, (0, 0), (tile, c.tile_shape[1])) + 1
        acc = tk.mma(x, y, acc) + tk.sum(ta.astype(c.dtype))
    c.store(acc)


@functools.cache
def of_product(
    make, *, k=64, how=None, precision="ieee", dtypes=(tk.float16,), sums=tk.float32, shape=(64, 128), warps=4, turned="",
    target="sm_90a",
):  # fmt: skip
    """What `explain` says of a kernel with one product; operands that are `turned` are column-major."""
    a, b = meta(1024, 1024, dtype=dtypes[0]), meta(1024, 1024, dtype=dtypes[-1])
    op = tk.kernel(make)(
        meta(1024, 1024, dtype=sums).partition(shape), a.T if "a" in turned else a, b.T if "b" in turned else b, k, how, precision
    )
    return op.num_warps(warps).explain(target)


def by_warpgroups(reason, against, without=None, make=product):
    return Row(reason, make, against, {} if without is None else without)


TF32 = {"dtypes": (tk.float32,), "precision": "tf32", "k": 32}
INTEGERS = {"dtypes": (tk.int8,), "sums": tk.int32, "k": 128, "turned": "b"}
_PUT = "are put into shared memory for it, not"
_OVER = "needs its k contiguous in memory, or 16 or more of k, {} or more columns, and 32768 bytes at most, to be turned over"
PRODUCTS = [
    by_warpgroups("sm_80 does not have it", {"target": "sm_80"}),
    by_warpgroups(
        "it has no accumulator: tk.mma(a, b, acc) in a loop adds to one",
        {"how": "at once", "dtypes": (tk.float8_e4m3fn, tk.float8_e5m2), "k": 128, "turned": "b"},
        {"dtypes": (tk.float8_e4m3fn, tk.float8_e5m2), "k": 128, "turned": "b"},
    ),
    by_warpgroups("b is in registers, and no loop of the kernel has a ring", {"how": "serial"}),
    by_warpgroups(
        f"b is in registers, from where float16 and bfloat16 {_PUT} int8", {"how": "b", **INTEGERS}, {"how": "b", "k": 128}
    ),
    by_warpgroups(f"b is in registers, from where tiles {_PUT} equal elements", {"how": "equal"}, {"how": "unequal"}),
    by_warpgroups(
        "b is in registers, and has not 8 rows of 32 bytes to be put into shared memory with",
        {"k": 16, "shape": (64, 8)}, {"k": 16, "shape": (64, 16)}, few,
    ),
    by_warpgroups(
        "b is in registers, and has not 8 rows of 32 bytes to be put into shared memory with", {"k": 4}, {"k": 16}, few
    ),
    by_warpgroups(
        "b is in registers, and takes more shared memory than 32768 bytes",
        {"how": "b", "k": 128, "shape": (64, 256)}, {"how": "b", "shape": (64, 256)},
    ),
    by_warpgroups("it does not take float16 and float16 with sums in float16", {"sums": tk.float16}),
    by_warpgroups(
        'it does not take float32 and float32 with sums in float32 (precision="tf32" rounds float32 for it)',
        {**TF32, "precision": "ieee", "turned": "b"}, {**TF32, "turned": "b"},
    ),
    by_warpgroups("it multiplies matrices, not batches of them", {"how": "batch"}),
    by_warpgroups("it multiplies matrices, not batches of them", {"how": "batch of b"}, {"how": "b"}),
    by_warpgroups("a is in registers, where it takes float16 and bfloat16, not int8", {"how": "a", **INTEGERS}, {"how": "a"}),
    by_warpgroups(
        "a is in registers, where it takes 64 rows of its own for each group of 4 warps: it has 64 rows and 8 warps",
        {"how": "a", "warps": 8}, {"how": "a", "warps": 4},
    ),
    by_warpgroups("b of int8 needs its k contiguous in memory", {**INTEGERS, "turned": ""}, INTEGERS),
    by_warpgroups(f"b of float32 {_OVER.format(16)}", {**TF32, "k": 64, "shape": (64, 256)}, {**TF32, "shape": (64, 256)}),
    by_warpgroups(f"b of float32 {_OVER.format(32)}", {**TF32, "k": 8}, {**TF32, "k": 16}),
    by_warpgroups(f"b of float32 {_OVER.format(32)}", {**TF32, "k": 16, "shape": (64, 16)}, {**TF32, "k": 16, "shape": (64, 32)}),
    by_warpgroups("a of float32 needs its k contiguous in memory", {**TF32, "turned": "ab"}, {**TF32, "turned": "b"}),
    by_warpgroups(
        "4 warps cannot share a result of 32x128: a group of 4 takes 64 rows and 8 columns at least", {"shape": (32, 128)}
    ),
    by_warpgroups("2 warps cannot share a result of 64x128: a group of 4 takes 64 rows and 8 columns at least", {"warps": 2}),
    by_warpgroups(
        "16 warps cannot share a result of 64x16: a group of 4 takes 64 rows and 8 columns at least",
        {"warps": 16, "shape": (64, 16), "turned": "b"}, {"warps": 16, "shape": (64, 32), "turned": "b"},
    ),
    by_warpgroups("it takes 32 bytes of k at a time, and there are 16", {"k": 8, "turned": "a"}, {"k": 16, "turned": "a"}),
]  # fmt: skip
BY_WARPS = [
    Row(
        'it does not take float32; precision="tf32" rounds them to 10 bits for it',
        product, {**TF32, "precision": "ieee", "target": "sm_80"}, {**TF32, "target": "sm_80"},
    )
]  # fmt: skip


@parametrized(PRODUCTS + BY_WARPS)
def test_why_a_product_is_not_by_an_instruction(row):
    family, mark = ("mma.sync", r"\bHMMA") if row in BY_WARPS else ("wgmma", "GMMA")
    whole, other = of_product(row.kernel, **row.against), of_product(row.kernel, **row.without)
    (against,), (without,) = whole.products, other.products
    assert dict(against.refusals)[family] == row.reason
    assert not against.instruction.startswith(family)
    assert not re.search(mark, whole.compiled.sass)
    assert f"{family}: {row.reason}" in str(whole)
    assert family not in dict(without.refusals)
    assert without.instruction.startswith(family)
    assert re.search(mark, other.compiled.sass)


BM, BN, BK = tk.generics("BM BN BK")


@functools.cache
def of_two_products(tile=(128, 64, 64), warps=8, turned=(True, True), other=64):
    """Of one tile, with tiles of two matrices, of which that of the second has `other` columns."""

    def kernel(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
        left, right = tk.zeros((BM, BN), tk.float32), tk.zeros((BM, other), tk.float32)
        for a, b, c in tk.pipelined(x.tiles((BM, BK))[0, :], gate.tiles((BK, BN))[:, 0], up.tiles((BK, other))[:, 0]):
            left, right = tk.mma(a, b, left), tk.mma(a, c, right)
        tk.store(out, (0, 0), left)
        tk.store(out, (0, 1), right)

    x = meta(1024, 1024, dtype=tk.bfloat16)
    op = tk.kernel(kernel)(meta(1024, 1024).scattered(), x, *(x.T if over else x for over in turned))
    return op.generics(BM=tile[0], BN=tile[1], BK=tile[2]).num_warps(warps).grid(1).explain("sm_90a")


ABREAST = [
    Row("the tiles lie otherwise than each other", None, {"turned": (True, False)}, {"turned": (False, False)}),
    Row("panels of one tile do not go on as those of the next", None,
        {"turned": (False, False), "tile": (128, 32, 64)}, {"turned": (False, False), "tile": (128, 32, 64), "other": 32}),
    Row("groups of warps have columns of their own: 64 of 128", None, {"tile": (64, 64, 64)}, {"tile": (64, 64, 64), "warps": 4}),
]  # fmt: skip


@parametrized(ABREAST)
def test_why_products_of_one_tile_are_not_one(row):
    against, without = of_two_products(**row.against), of_two_products(**row.without)
    assert all(dict(product.refusals)["one wgmma for all"] == row.reason for product in against.products)
    assert f"one wgmma for all: {row.reason}" in str(against)
    assert remarks_of(against, "products") == {(False, row.reason)}
    (product,) = without.products
    assert product.instruction.startswith("wgmma")
    assert not product.refusals


NEVER_SHOWN = {"it multiplies tiles", "it multiplies matrices that fit together"}
"""With which a family leaves it to another to refuse the kernel."""


@pytest.mark.parametrize("how", ["number", "depth", "sums"])
def test_what_is_no_product_of_tiles_is_an_error(how):
    """Also where the IR, which knows that first, has no form for the kernel."""

    def wrong(c: tk.Out, a: tk.In, b: tk.In, known: tk.Const):
        acc = tk.zeros((64, 128 if how == "sums" else 64), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((64, 64))[0, :], b.tiles((128 if how == "depth" else 64, 64))[:, 0]):
            acc = tk.mma(ta, 3.0 if how == "number" else tb, acc)
        if not known:
            breakpoint()
        c.store(tk.sum(acc) + tk.zeros((64, 64), tk.float32))

    for known in (True, False):
        a = meta(1024, 1024, dtype=tk.float16)
        with pytest.raises(tk.CompileError, match=r"^\S+: mma: "):
            tk.kernel(wrong)(meta(64, 64).partition((64, 64)), a, a, known).compile("sm_90a")


# ------------------------------------------------------------------------------------- why the tiles of a loop do not come ahead


@functools.cache
def of_a_loop(how=None, shape=(64, 64), columns=1024):
    """A plain loop, whose operands come ahead but for `how` it is written, what its results are, or how long rows are."""

    def kernel(c: tk.Out, a: tk.In, b: tk.InOut):
        acc, mode = tk.zeros(c.tile_shape, tk.float32), "neg_zero" if how == "padding" else "zero"
        part = b.slice(1, 3 * tk.bid(1)) if how == "slice" else b
        for k in range(a.shape[1] // 64):
            x = tk.load(a, (tk.bid(0), k), (c.tile_shape[0], 64))
            if how == "padding":
                x = tk.load(a, (tk.bid(0), k), (c.tile_shape[0], 64), padding_mode=mode)
            acc += x @ tk.load(part, (k, 0), (64, c.tile_shape[1]))
            if how == "break" and tk.max(acc).item() > 9:
                break
        c.store(acc)
        if how == "written":
            tk.store(b, (0, 0), tk.zeros((64, 64), b.dtype))

    kernel.__annotations__["b"] = tk.InOut if how == "written" else tk.In
    b = meta(1024, columns, dtype=tk.float16)
    b = b.scattered() if how == "written" else b
    op = tk.kernel(kernel)(meta(1024, 1024).partition(shape), meta(1024, 1024, dtype=tk.float16), b)
    return op.num_warps(4).explain("sm_90a")


AHEAD = [
    Row("a turn may be the last one, or be left in the middle", None, {"how": "break"}, {}),
    Row("results of products have fewer than 4096 elements", None, {"shape": (32, 64)}, {}),
    Row("the load has padding_mode=", None, {"how": "padding"}, {}),
    Row("the tensor is written, too", None, {"how": "written"}, {}),
    Row("its rows do not lie at multiples of 4 bytes", None, {"columns": 1025}, {"columns": 1026}),
    Row(
        "it is no tensor whose rows or columns are contiguous, nor a slice that begins at a multiple of 16 bytes of them",
        None, {"how": "slice"}, {},
    ),
]  # fmt: skip


@parametrized(AHEAD)
def test_why_tiles_do_not_come_ahead(row):
    against, without = of_a_loop(**row.against), of_a_loop(**row.without)
    assert (False, row.reason) in remarks_of(against, "loads ahead")
    assert f"loads ahead  no    {row.reason}" in re.sub(r"loads ahead +no +", "loads ahead  no    ", str(against))
    assert not against.pipelines
    assert not remarks_of(without, "loads ahead")
    assert [ring.stages for ring in without.pipelines] == [4]


# ------------------------------------------------------------------------------- why blocks do not share the turns of a loop


@functools.cache
def of_blocks(how=None, warps=4):
    """A product whose tiles four blocks visit each, but for `how` it is written."""

    def kernel(c: tk.Out, a: tk.In, b: tk.In, d: tk.Out):
        if how == "returns" and a.shape[0] > 9000:
            return
        shift = tk.bid(0) // 99999 if how == "bid" else 0
        for tile in c.tiles():
            i, j = tile.index[0] + shift, tile.index[1]
            if how == "written":
                tk.store(d, (i, j), tk.zeros((64, 64), tk.float32))
            start = 1.0 if how == "start" else 0.0
            acc = tk.full((64, 64), 1.0, tk.float32) if how == "start" else tk.zeros(c.tile_shape, tk.float32)
            rows = a.tiles((c.tile_shape[0], 64))[i, j:] if how == "part" else a.tiles((c.tile_shape[0], 64))[i, 1:]
            columns = b.tiles((64, c.tile_shape[1]))[j:, j] if how == "part" else b.tiles((64, c.tile_shape[1]))[1:9, j]
            for x, y in tk.pipelined(rows, columns):
                acc = tk.mma(x, y, acc)
                if how == "more":
                    acc = acc * 2.0
                if how == "stores":
                    tk.store(d, (i, j), tk.zeros((64, 64), tk.float32))
            c.store(acc + start, tile)

    side = 16 if how == "copies" else 64
    c, x = meta(1024, 1024), meta(1024, 1024, dtype=tk.float16)
    c = c.partition((side, side)).map(num_blocks=4 * (1024 // side) ** 2, blocks_per_tile=4)
    return tk.kernel(kernel)(c, x, x, meta(1024, 1024).scattered()).num_warps(warps).explain("sm_90a")


SHARED = [
    *(
        Row(
            "the kernel returns early, or asks for the number of its block: blocks that share a tile may differ",
            None,
            {"how": how},
            {},
        )
        for how in ("returns", "bid")
    ),
    Row("the kernel writes, or reads from others, before it", None, {"how": "written"}, {}),
    Row("its sums begin with something else than zeros", None, {"how": "start"}, {}),
    Row(
        "its streams are no rows of tiles, one after the other, from one on that is known when the kernel is compiled",
        None,
        {"how": "part"},
        {},
    ),
    Row("its turns do more than multiply tiles of its streams and add up 32 bits", None, {"how": "more"}, {}),
    Row("its turns do more than multiply tiles of its streams and add up 32 bits", None, {"how": "stores"}, {}),
]


@parametrized(SHARED)
def test_why_blocks_do_not_share_turns(row):
    """The first of them does all."""
    against, without = of_blocks(**row.against), of_blocks(**row.without)
    assert remarks_of(against, "split-K in a cluster") == {(False, row.reason)}
    assert "st.async" not in against.compiled.ptx
    assert remarks_of(without, "split-K in a cluster") == {(True, "4 blocks share its turns, and 4 have pieces of what follows")}
    assert "st.async" in without.compiled.ptx


def test_threads_with_the_same_elements_send_none():
    reason = "several threads have the same elements of what blocks add up together"
    assert reason in str(of_blocks("copies", 4))
    assert "st.async" in of_blocks("copies", 1).compiled.ptx


# --------------------------------------------------------------------------------- what is given up when it has been compiled


def attention(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, keys: tk.Const, size: tk.Const):
    rows = o.tile_shape[0]
    query = tk.load(q, (tk.bid(0), 0), (rows, size))
    most, total = tk.full((rows, 1), float("-inf"), tk.float32), tk.zeros((rows, 1), tk.float32)
    acc = tk.zeros((rows, size), tk.float32)
    for key, value in tk.pipelined(k.tiles((keys, size))[:, 0], v.tiles((keys, size))[:, 0]):
        s = tk.mma(query, key.transpose(), tk.zeros((rows, keys), tk.float32)) * size**-0.5
        higher = tk.maximum(most, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp(s - higher), tk.exp(most - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), value, acc * shrink)
        most = higher
    o.store((acc / total).astype(o.dtype))


def weighing(o: tk.Out, q: tk.In, k: tk.In, how: tk.Const):
    query, acc = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    for key in tk.pipelined(k.tiles((64, 64))[:, 0], warp_specialize=how):
        s = tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32))
        acc = acc + tk.sum(tk.exp(s - tk.max(s, 1, keepdims=True)), 1, keepdims=True)
    o.store(tk.broadcast_to(acc, (64, 64)))


@functools.cache
def of_attention(rows, keys, size):
    o = q = meta(4096, size, dtype=tk.bfloat16)
    op = tk.kernel(attention)(o.partition((rows, size)), q, q, q, keys, size)
    return op.num_warps(rows // 16).explain("sm_90a")


@functools.cache
def of_weighing(how):
    q = meta(512, 64, dtype=tk.float16)
    return tk.kernel(weighing)(meta(512, 64).partition((64, 64)), q, q, how).num_warps(4).explain("sm_90a")


GIVEN_UP = {
    "rotated, it would spill BYTES bytes of registers": (of_attention, "rotation", (128, 256, 64), (128, 64, 64)),
    "rotated, it would have shared memory for no tiles ahead": (of_attention, "rotation", (128, 64, 256), (128, 64, 64)),
    "a stage of 131072 bytes does not fit into the shared memory that is left, 66560": (
        of_attention, "rotation", (64, 128, 256), (64, 64, 64),
    ),
    "the kernel is compiled as it is written: warp_specialize=False": (of_weighing, "exponential", (False,), (None,)),
}  # fmt: skip


def remarks_of(explained, transformation):
    found = {(remark.done, remark.text) for remark in explained.remarks if remark.transformation == transformation}
    return {(done, re.sub(r"spill \d+", "spill BYTES", text)) for done, text in found}


@pytest.mark.parametrize("reason", GIVEN_UP)
def test_why_something_is_given_up(reason):
    """All but the last of them keep a ring: what was given up is that the loop is rotated."""
    make, transformation, against, without = GIVEN_UP[reason]
    undone, done = make(*against), make(*without)
    assert remarks_of(undone, transformation) == {(False, reason)}
    assert reason.replace("BYTES", "") in str(undone) or "BYTES" in reason
    assert {done for done, _ in remarks_of(done, transformation)} == {True}
    if transformation == "rotation":
        assert all(ring.stages for ring in undone.pipelines)
        assert [sum(product.count for product in each.products) for each in (undone, done)] == [2, 4]
    else:
        assert ("FFMA.FTZ" in undone.compiled.sass, bool(undone.pipelines[0].stages)) == (False, False)


def test_blocks_are_in_their_order_where_registers_are_short():
    few, enough = (of_product(product, shape=(128, 256), warps=warps) for warps in (4, 8))
    assert remarks_of(few, "order of visits") == {(False, "there are no registers left for it")}
    assert few.compiled.spilled_bytes
    assert {done for done, _ in remarks_of(enough, "order of visits")} == {True}
    assert not enough.compiled.spilled_bytes


def test_a_loop_is_not_rotated_where_ptxas_serialises_its_products(monkeypatch):
    """Whether ptxas does that differs from one version to the next: what its log says of the rotated kernel is put there."""
    log = "wgmma.mma_async instructions are serialized due to a reason of its own in the function 'attention'"
    look = assembly._look_at_log
    of_attention.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "_look_at_log", lambda _, compilation: look(log * (compilation.pipelines.rings > 2), compilation))
        undone = of_attention(128, 64, 64)
    of_attention.cache_clear()
    reason = "ptxas would run its products one after the other: a reason of its own"
    assert remarks_of(undone, "rotation") == {(False, reason)}
    assert not undone.serialised
    assert sum(product.count for product in undone.products) == 2
    assert {done for done, _ in remarks_of(of_attention(128, 64, 64), "rotation")} == {True}


# ------------------------------------------------------------------------------------------------------------------ all of them

HERE = {
    *(row.reason for row in (*RINGS, *ROTATIONS, *SPLITS, *PRODUCTS, *BY_WARPS, *ABREAST, *AHEAD, *SHARED)),
    "several threads have the same elements of what blocks add up together",
    *GIVEN_UP,
    *NEVER_SHOWN,
    "there are no registers left for it",
    "ptxas would run its products one after the other: a reason of its own",
}


def test_every_reason_has_its_pair():
    """A reason is that of the narrowest text that it matches: `{} is written, too` is none of `{}, and {} is written`."""
    texts = reasons.texts()
    narrow = {text: {other for other in texts if other != text and reasons.matches(text, other)} for text in texts}
    tested = {
        text for text in texts for reason in HERE
        if reasons.matches(text, reason) and not any(reasons.matches(other, reason) for other in narrow[text])
    }  # fmt: skip
    missing = [f"{where}: {text}" for text, where in texts.items() if text not in tested]
    assert not missing, "each needs a row here: a kernel against which it speaks, and the same without just that"
    assert not [reason for reason in HERE if not any(reasons.matches(text, reason) for text in texts)], "the compiler has no such"
    assert len(texts) > 60
