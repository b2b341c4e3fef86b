"""Random pipelines whose products take computed operands: what a defect of the hardware's schedule would make wrong.

On compute capability 9.0 products are under way when a turn ends; the next turn must not touch the registers, stages and
accumulators that they still read. So here operands are made anew in each turn: converted, scaled, chosen, loaded in the loop,
used twice, by one product or two. All values are small whole numbers: every sum is exact, and compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from draws import Draw
from running import kernel_of
from values import DTYPES, EIGHTS, INT32, Array, DType, is_float

import tilekit as tk
from tilekit import api

F16, BF16, F32 = DTYPES["float16"], DTYPES["bfloat16"], DTYPES["float32"]
# What a turn makes of a tile: text, and the same of the whole matrix. {t} is the tile, {w} the dtype of the product.
CHANGES: dict[str, tuple[str, Any]] = {
    "none": ("{t}", lambda a: a),
    "abs": ("tk.abs({t})", np.abs),
    "relu": ("tk.maximum({t}, 0)", lambda a: np.maximum(a, 0)),
    "scaled": ("{t} * 2", lambda a: a * 2),
    "negated": ("-{t}", np.negative),
    "where": ("tk.where({t} > 0, {t}, 1)", None),
    "clipped": ("tk.clip({t}, -1, 2)", lambda a: np.clip(a, -1, 2)),
    "parameter": ("{t} * scale", lambda a: a * 2),
    "added": ("{t} + {t}", lambda a: a + a),
}


@dataclass
class Operand:
    """One matrix: its elements, how they lie, and what a turn makes of them.

    Attributes:
        stored: the dtype in memory; `dtype` that of the product.
        turned: whether it lies with the other dimension contiguous; and whether the kernel or the host turns it.
        skew: elements before each row, and how much longer rows are: what alignment follows from.
    """

    name: str
    stored: DType
    dtype: DType
    changes: list[str]
    turned: str
    skew: tuple[int, int]
    array: Array = field(default_factory=lambda: np.zeros(0))

    def computed(self, tile: int) -> Array:
        """What the products see of it, padded along K to whole tiles: padding is changed, too."""
        k_axis = 1 if self.name == "a" else 0
        rest = -self.array.shape[k_axis] % tile
        made = np.pad(self.array, [(0, rest if d == k_axis else 0) for d in range(2)]).astype(np.float64)
        for name in self.changes:
            made = np.where(made > 0, made, 1) if name == "where" else CHANGES[name][1](made)
        return made

    def text(self, tile: str) -> tuple[list[str], str]:
        """The lines that make the operand of a tile, and its text."""
        lines, at = [], tile
        if self.turned == "kernel":
            at = f"tk.transpose({at})"
        if self.stored != self.dtype:
            at = f"{at}.astype(tk.{self.dtype.name})"
        for n, name in enumerate(self.changes):
            lines.append(f"p{self.name}{n} = {at}")
            at = CHANGES[name][0].format(t=f"p{self.name}{n}")
        return lines, at

    def placed(self, meta: bool) -> Any:
        """The tensor on the default device."""
        a = self.array.T if self.turned != "no" else self.array
        before, more = self.skew
        memory = np.zeros((a.shape[0], a.shape[1] + before + more), self.stored)
        memory[:, before : before + a.shape[1]] = a
        whole = api.meta(memory.shape, self.stored) if meta else api.from_host(memory).sync()
        view = whole[:, before : before + a.shape[1]]
        return view.permute(1, 0) if self.turned == "host" else view


@dataclass
class Case:
    """A kernel with a pipeline, and its operands.

    Attributes:
        tile: BM, BN, BK. extents: M, N, K.
        loaded: whether the first operand is loaded in the loop.
        products: one a turn, or two, of which the second takes the first operand as well (`reused`), or the changed one.
    """

    seed: Any
    tile: tuple[int, int, int]
    extents: tuple[int, int, int]
    a: Operand
    b: Operand
    warps: int
    products: int
    loaded: bool
    reused: bool
    persistent: int
    stages: int | None
    used: bool
    waits: bool
    first: int

    @property
    def accumulated(self) -> DType:
        """The dtype of the sums."""
        return F32 if is_float(self.a.dtype) else INT32

    def source(self) -> str:
        """The text of the kernel."""
        bm, bn, bk = self.tile
        acc = f"tk.zeros(({bm}, {bn}), tk.{self.accumulated.name})"
        a_tile, a_row = ((bm, bk), f"i, {self.first}:") if self.a.turned != "kernel" else ((bk, bm), f"{self.first}:, i")
        b_tile, b_row = ((bk, bn), f"{self.first}:, j") if self.b.turned != "kernel" else ((bn, bk), f"j, {self.first}:")
        streams = (
            [f"b.tiles({b_tile})[{b_row}]"] if self.loaded else [f"a.tiles({a_tile})[{a_row}]", f"b.tiles({b_tile})[{b_row}]"]
        )
        names = ["tb"] if self.loaded else ["ta", "tb"]
        more = "" if self.stages is None else f", stages={self.stages}"
        lines_a, a = self.a.text("ta")
        lines_b, b = self.b.text("tb")
        turn = []
        if self.loaded:
            index = "(i, n)" if self.a.turned != "kernel" else "(n, i)"
            turn += [f"ta = tk.load(a, {index}, {a_tile})", "n += 1"]
        turn += [*lines_a, f"pa = {a}", *lines_b, f"pb = {b}", "acc = tk.mma(pa, pb, acc)"]
        if self.products == 2:
            second = "pa" if self.reused else "pa + pa" if is_float(self.a.dtype) and self.a.dtype not in EIGHTS else "pa"
            turn.append(f"second = tk.mma({second}, pb, second)")
        if self.used:
            turn.append("total = total + tk.sum(pa.astype(tk.float32), 1)")
        if self.waits:
            turn.append("acc = acc + 0" if self.accumulated == INT32 else "acc = acc * 1.0")
        body = [f"acc = {acc}", *(["second = " + acc] if self.products == 2 else [])]
        body += [f"total = tk.zeros({bm}, tk.float32)"] if self.used else []
        body += [f"n = {self.first}"] if self.loaded else []
        body += [f"for {', '.join(names)} in tk.pipelined({', '.join(streams)}{more}):", *(f"    {line}" for line in turn)]
        outputs = ["c"] + (["d"] if self.products == 2 else []) + (["r"] if self.used else [])
        values = {"c": "acc", "d": "second", "r": f"total.reshape(({bm}, 1))"}
        if self.persistent:
            others = ", ".join(outputs[1:2] if self.products == 2 else [])
            body = ["i, j = tile.index", *body, *(f"{o}.store({values[o]}, tile)" for o in outputs if o != "r")]
            body = [f"for tile in c.tiles({others}):", *(f"    {line}" for line in body)]
        else:
            body = ["i, j = tk.bid(0), tk.bid(1)", *body, *(f"{o}.store({values[o]})" for o in outputs)]
        parameters = [*(f"{o}: tk.Out" for o in outputs), "a: tk.In", "b: tk.In", "scale"]
        lines = [
            "import tilekit as tk",
            "",
            "",
            "@tk.kernel",
            f"def k({', '.join(parameters)}):",
            *(f"    {line}" for line in body),
        ]
        return "\n".join(lines) + "\n"

    def op(self, meta: bool = False) -> tuple[Any, list[Any]]:
        """The launch, and the tensors that it writes."""
        bm, bn, _ = self.tile
        m, n, _ = self.extents

        def empty(shape: tuple[int, int], dtype: DType) -> Any:
            return api.meta(shape, dtype) if meta else api.from_host(np.full(shape, 77, dtype)).sync()

        made = [(empty((m, n), self.accumulated), (bm, bn)) for _ in range(self.products)]
        if self.used:
            made.append((empty((m, -(-n // bn)), F32), (bm, 1)))
        parts = [x.partition(tile) for x, tile in made]
        if self.persistent:
            parts = [p.map(num_blocks=self.persistent) for p in parts]
        scale = 2 if self.accumulated == INT32 else 2.0
        op = kernel_of(self.source())(*parts, self.a.placed(meta), self.b.placed(meta), scale).num_warps(self.warps)
        return op, [x for x, _ in made]

    def expected(self) -> list[Array]:
        """What the outputs hold afterwards."""
        _, bn, bk = self.tile
        m, n, _ = self.extents
        a, b = self.a.computed(bk)[:, self.first * bk :], self.b.computed(bk)[self.first * bk :]
        doubled = not self.reused and is_float(self.a.dtype) and self.a.dtype not in EIGHTS
        made = [(a @ b).astype(self.accumulated)]
        made += [((2 if doubled else 1) * (a @ b)).astype(self.accumulated)] if self.products == 2 else []
        if self.used:
            made.append(np.broadcast_to(a.sum(1, keepdims=True), (m, -(-n // bn))).astype(F32))
        return made


def case(seed: Any, draw: Draw | None = None) -> Case:
    """The case of a seed."""
    draw = draw or Draw(("pipelined", seed))
    warps = draw.pick([4, 8, 8])
    bm, bn, bk = draw.pick([64, 128, 256]), draw.pick([64, 128, 256]), draw.pick([64, 64, 128, 32])
    products = 1 + draw.chance(30)
    while bm * bn * products > 128 * 32 * warps:  # 128 registers of each thread
        bm, bn = (bm // 2, bn) if bm >= bn else (bm, bn // 2)
    while (bm + bn) * bk > 24576:
        bk //= 2
    stored = draw.pick([F16, DTYPES["int8"], BF16, DTYPES["uint8"], *EIGHTS])
    if stored in (F16, BF16):
        second, dtype = stored, stored
    elif draw.chance(80):
        second = dtype = draw.pick([F16, BF16])
    else:
        dtype, second = stored, draw.pick([DTYPES["int8"], DTYPES["uint8"]] if not is_float(stored) else EIGHTS)
    plain = dtype in EIGHTS
    changes = list(CHANGES)[1:] if dtype.kind != "u" or is_float(dtype) else ["added"]
    if not is_float(dtype):
        changes = [name for name in changes if name not in ("scaled", "parameter", "where", "clipped", "relu", "negated")]

    def some(least: int, chance: int) -> list[str]:
        return [] if plain else [draw.pick(changes) for _ in range(least + draw.chance(chance))]

    def skew() -> tuple[int, int]:
        return (draw.pick([0, 16, 32, 1, 2, 4, 8]), draw.pick([0, 16, 1, 2, 4, 8])) if draw.chance(20) else (0, 0)

    turned = ["no", "no", "kernel", "host"]
    least = 0 if stored != dtype else 1
    a = Operand("a", stored, dtype, some(least, 30), draw.pick(turned), skew())
    b_stored = second if draw.chance(75) or plain or not is_float(second) else DTYPES["int8"]
    b = Operand("b", b_stored, second, some(0, 25), draw.pick(turned), skew())
    turns = draw.pick([3, 0, 1, 2, 4, 5, 8, 13])

    def cut(tile: int) -> int:
        """How much of the last tile hangs over the edge: as a rule rows stay multiples of 16 bytes."""
        if not draw.chance(40):
            return 0
        return 16 * draw.below(max(1, tile // 16)) if draw.chance(80) else draw.below(tile)

    m, n = (tile * draw.pick([1, 2]) - cut(tile) for tile in (bm, bn))
    k = max(1, bk * turns - cut(bk))
    first = draw.pick([0, 0, 1]) if turns > 1 else 0
    if turns == 0:
        first, k = 1, bk  # the only tile is left out
    persistent = draw.pick([1, 2, 3]) if draw.chance(20) else 0
    loaded, reused, stages = draw.chance(25), draw.chance(50), draw.pick([None, None, 2, 3, 4])
    used, waits = draw.chance(20) and not persistent, draw.chance(15)
    made = Case(
        seed, (bm, bn, bk), (m, n, k), a, b, warps, products, loaded, reused, persistent, stages, used, waits, first
    )  # fmt: skip
    rng = np.random.default_rng([*repr(("pipelined", seed)).encode()])
    for operand, shape in ((a, (m, k)), (b, (k, n))):
        low = 0 if operand.stored.kind == "u" else -3
        operand.array = rng.integers(low, 4, shape).astype(operand.stored)
    return made


def problem(made: Case, device: Any, launches: int = 1) -> str | None:
    """What is wrong with so many launches of a case, or None."""
    expected = made.expected()
    with tk.use_device(device):
        for number in range(launches):
            op, tensors = made.op()
            op.sync()
            for at, (tensor, right) in enumerate(zip(tensors, expected, strict=True)):
                found = tensor.to_host().sync()
                bad = found != right
                if bad.any():
                    place = tuple(int(i) for i in np.argwhere(bad)[0])
                    return (
                        f"{device.kind}, launch {number}: output {at} differs at {int(bad.sum())} of {bad.size} elements; at "
                        f"{place} it is {found[place]!r}, not {right[place]!r}"
                    )
    return None


def programs(seed: int, count: int, target: str = "sm_90a") -> Iterator[tuple[str, Any]]:
    """The source and the compiled kernel of `count` cases from `seed` on, for a scan of their machine code."""
    for number in range(seed, seed + count):
        made = case(number)
        op, _ = made.op(meta=True)
        yield made.source(), op.compile(target=target)
