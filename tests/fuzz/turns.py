"""Random loops whose turns add several products: what passes that roll turns up, join first turns or accumulate must leave right.

A turn loads tiles by affine functions of the counter, most of them one after the other, and multiplies pairs of them, some of
them twice or in another order; sums grow, shrink, begin in the first turn, or are two. All values are small whole numbers: every
sum is exact, and compared bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from draws import Draw
from running import kernel_of
from values import Array

import tilekit as tk
from tilekit import api

SIDE, MOST = 64, 24  # rows and columns of a tile, and tiles along K
LOOPS = {"count": "for k in range({turns}):", "steps": "for k in range(0, {end}, {step}):", "while": "while k < {end}:"}
FORMS = {
    "mma": "{to} = tk.mma({a}, {b}, {to})",
    "adds": "{to} += tk.mma({a}, {b}, zeros)",
    "sum": "{to} = {to} + tk.mma({a}, {b}, zeros)",
    "takes": "{to} -= tk.mma({a}, {b}, zeros)",
    "less": "{to} = {to} - tk.mma({a}, {b}, zeros)",
}


@dataclass
class Turns:
    """A loop.

    Attributes:
        loop: how it is written, of `LOOPS`; so many `turns`, in each of which `step` tiles are new.
        tiles: of `a` and of `b`, how far behind the turn's first each of those is that are loaded.
        products: the pairs that are multiplied, by their numbers in `tiles`, how, of `FORMS`, and to which sum.
        sums: how many.
        first: whether the first product of the first turn is what a sum begins with, and if by a branch or by an expression.
        flag: a product that is added once more where a parameter says so, and whether it does.
    """

    loop: str
    turns: int
    step: int
    tiles: list[tuple[int, int]]
    products: list[tuple[int, int, str, int]]
    sums: int
    first: str
    flag: tuple[int, bool] | None

    def source(self) -> str:
        """The text of the kernel."""
        at = "k" if self.loop != "count" else f"{self.step} * k"
        turn = []
        for n, (left, right) in enumerate(self.tiles):
            turn += [f"a{n} = tk.load(a, (0, {at} + {left}), shape)", f"b{n} = tk.load(b, ({at} + {right}, 0), shape)"]
        if self.first == "branch":
            turn += ["p = tk.mma(a0, b0, zeros)", "if k == 0:", "    s0 = p", "else:", "    s0 = s0 + p"]
        elif self.first:
            turn += ["p = tk.mma(a0, b0, zeros)", "s0 = p if k == 0 else s0 + p"]
        for n, (left, right, form, to) in enumerate(self.products):
            turn.append(FORMS[form].format(to=f"s{to}", a=f"a{left}", b=f"b{right}"))
            if self.flag is not None and self.flag[0] == n:
                turn += ["if flag:", f"    s{to} = tk.mma(a{left}, b{right}, s{to})"]
        if self.loop == "while":
            turn.append(f"k += {self.step}")
        body = [f"shape, zeros = ({SIDE}, {SIDE}), tk.zeros(({SIDE}, {SIDE}), tk.float32)"]
        body += [f"s{n} = tk.zeros(({SIDE}, {SIDE}), tk.float32)" for n in range(self.sums)]
        body += ["k = 0"] if self.loop == "while" else []
        body.append(LOOPS[self.loop].format(turns=self.turns, end=self.turns * self.step, step=self.step))
        body += [f"    {line}" for line in turn]
        body += [f"c.store({' + '.join(f's{n}' for n in range(self.sums))})"]
        head = ["import tilekit as tk", "", "", "@tk.kernel(num_warps=4)", "def k(c: tk.Out, a: tk.In, b: tk.In, flag: bool):"]
        return "\n".join([*head, *(f"    {line}" for line in body)]) + "\n"

    def matrices(self) -> tuple[Array, Array]:
        """The operands."""
        rng = np.random.default_rng(7)
        a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((SIDE, MOST * SIDE), (MOST * SIDE, SIDE)))
        return a, b

    def expected(self) -> Array:
        """What the kernel stores."""
        a, b = self.matrices()
        of_a = a.astype(np.float64).reshape(SIDE, MOST, SIDE).transpose(1, 0, 2)
        of_b = b.astype(np.float64).reshape(MOST, SIDE, SIDE)
        added = np.zeros((SIDE, SIDE))
        for turn in range(self.turns):
            begin = turn * self.step
            pairs = [(0, 0, 1)] if self.first else []
            for n, (left, right, form, _) in enumerate(self.products):
                times = -1 if form in ("takes", "less") else 1
                pairs.append((left, right, times + bool(self.flag is not None and self.flag == (n, True))))
            for left, right, times in pairs:
                added += times * (of_a[begin + self.tiles[left][0]] @ of_b[begin + self.tiles[right][1]])
        return added.astype(np.float32)


def turns(seed: Any, draw: Draw | None = None) -> Turns:
    """The loop of a seed."""
    draw = draw or Draw(("turns", seed))
    step = draw.pick([2, 3, 1, 4])
    tiles = []
    for n in range(step + draw.pick([0, 0, 0, 1])):
        with draw.span():
            tiles.append((draw.below(step + 2), draw.below(step + 2)) if draw.chance(15) else (n, n))
    forms = [draw.pick(list(FORMS))] if draw.chance(80) else list(FORMS)
    sums = draw.pick([1, 1, 2])
    products = []
    for n in range(len(tiles) + draw.pick([0, 0, 1])):
        with draw.span():
            left = draw.below(len(tiles)) if draw.chance(20) or n >= len(tiles) else n
            right = draw.below(len(tiles)) if draw.chance(15) else left
            products.append((left, right, draw.pick(forms), draw.below(sums)))
    first, flag = draw.pick(["", "", "", "branch", "expression"]), None
    if draw.chance(15):
        flag = draw.below(len(products)), draw.chance(50)
    return Turns(draw.pick(list(LOOPS)), draw.between(1, 4), step, tiles, products, sums, first, flag)


def problem(made: Turns, device: Any) -> str | None:
    """What is wrong with what it stores, or None."""
    expected = made.expected()
    with tk.use_device(device):
        a, b = (api.from_host(x).sync() for x in made.matrices())
        c = api.full((SIDE, SIDE), np.nan, np.float32).sync()
        kernel_of(made.source())(c.partition((SIDE, SIDE)), a, b, bool(made.flag and made.flag[1])).sync()
        found = c.to_host().sync()
    bad = found != expected
    if not bad.any():
        return None
    return f"{int(bad.sum())} of {bad.size} elements differ, the first is {found[bad][0]}, not {expected[bad][0]}"
