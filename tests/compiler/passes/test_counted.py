"""Loops that count, in whatever way they are written: each becomes a range of the turns that Python would take."""

from __future__ import annotations

import linecache
import os
import random

import numpy as np
import pytest
from through_ir import ir_of, rewritten, run_through_ir

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.passes.counted import count_loops

SEED = int(os.environ.get("TILEKIT_FUZZ_SEED", random.SystemRandom().randrange(1 << 30)))
COUNT = int(os.environ.get("TILEKIT_FUZZ", 60))


def drawn(rng):
    """A loop that comes to an end, as text: what it counts, and a number that it makes of that."""
    factor, width, offset = rng.choice([1, 1, 2, 5, 64]), rng.choice([1, 1, 1, 2, 3, -1, -1, -2]), rng.randrange(-9, 10)
    symbol = rng.choice(["<", "<=", "!="] if abs(factor * width) == 1 else ["<", "<="])
    k = f"k * {factor}" if factor > 1 else "k"
    if width < 0:
        k = f"-{k}" if factor == 1 else f"{k} * -1"
    turns = rng.randrange(6)
    start = rng.randrange(-3, 4)
    first = factor * start * (1 if width > 0 else -1)
    # What the condition compares with, for so many turns, or none: `!=` never begins behind its end.
    stop = first + abs(width) * factor * turns - (rng.randrange(abs(width) * factor) if symbol == "<" and turns else 0)
    stop -= symbol == "<=" and bool(turns)
    if not turns and symbol != "!=":
        stop -= rng.randrange(3) + (symbol == "<=")
    left, right = f"{k} + {offset}", f"n + {offset}" if rng.random() < 0.5 else f"{offset} + n"
    if rng.random() < 0.3 and symbol != "!=":
        left, right, symbol = right, left, symbol.replace("<", ">")
    condition = f"{left} {symbol} {right}"
    if rng.random() < 0.3:
        condition = (
            f"not ({left} {dict(zip(['<', '<=', '>', '>=', '!='], ['>=', '>', '<=', '<', '=='], strict=True))[symbol]} {right})"
        )
    step = rng.choice([f"k += {width}", f"k = {width} + k", f"k -= {-width}"])
    work = ["s = s * 3 + k", "t += 1"]
    if rng.random() < 0.3:
        work.insert(rng.randrange(3), "if s > 200: break" if rng.random() < 0.5 else "if s > 200: s -= 150")
    ahead = rng.random() < 0.5
    lines = ["k, s, t = m, 1, 0"]
    if rng.random() < 0.5:
        lines += [f"while {condition}:", *[f"    {line}" for line in (*work, step)]]
    else:
        leave = [f"if not ({condition}): break"] if rng.random() < 0.5 else [f"if {condition}: pass", "else: break"]
        behind = rng.random() < 0.5 and (turns > 0 or symbol != "!=")  # a turn comes in any case
        if not behind and rng.random() < 0.4 and "break" not in "".join(work):
            leave = [f"if not ({condition}):", "    t = t * 7 + s", "    s = s - t", "    break"]
        turn = (*work, step, *leave) if behind else (*leave, *work, step)
        lines += ["while True:", *[f"    {line}" for line in turn]]
    if ahead and "break" not in "".join(work):
        lines.append("s = s + 1000 * k + t")
    return lines, start, stop


def text_of(lines):
    body = "\n".join(f"    {line}" for line in lines)
    return f"def kernel(y: tk.Out, n: int, m: int):\n{body}\n    y.store(tk.full((1,), s, tk.int64))\n"


def kernel_of(source):
    name = f"<counted {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = {"tk": tk}
    exec(compile(source, name, "exec"), namespace)
    return namespace["kernel"]


def by_python(lines, n, m):
    names = {"n": n, "m": m}
    exec("\n".join(lines), names)
    return names["s"]


@pytest.mark.parametrize("number", range(COUNT))
def test_ranges_have_the_turns_of_the_loop(number, cpu):
    lines, start, stop = drawn(random.Random(SEED + number))
    source, expected = text_of(lines), by_python(lines, stop, start)
    said = f"TILEKIT_FUZZ=1 TILEKIT_FUZZ_SEED={SEED + number}, of n = {stop}, m = {start}:\n{source}"
    for by in (lambda: run_through_ir(count_loops), rewritten):
        y = api.full((1,), 0, np.int64).sync()
        with by() as kernels:
            tk.kernel(kernel_of(source))(y.partition((1,)), stop, start).sync()
        assert y.to_host().sync()[0] == expected, said
    assert " while " not in printed(kernels[0]), said


def stepping(y: tk.Out, n: int):
    k, s = 0, 0
    while k < n:
        s += k
        k += s
    y.store(tk.full((1,), s, tk.int64))


def missing(y: tk.Out, n: int):
    k, s = 0, 0
    while k != n:
        s += k
        k += 2
    y.store(tk.full((1,), s, tk.int64))


def away(y: tk.Out, n: int):
    k, s = 0, 0
    while k > n:
        s += k
        k += 1
    y.store(tk.full((1,), s, tk.int64))


def moving(y: tk.Out, n: int):
    k, s = 0, 0
    while k < n - s:
        s += 1
        k += 1
    y.store(tk.full((1,), s, tk.int64))


def goes_on_without_a_look(y: tk.Out, n: int):
    k, s = -1, 0
    while True:
        k += 1
        if k == 2:
            continue
        s += k
        if k >= n:
            break
    y.store(tk.full((1,), s, tk.int64))


def doubled_where_it_ends(y: tk.Out, n: int):
    k, s = 0, 1.0
    while True:
        if k >= n:
            s = s * 2.0
            break
        s = s + k
        k += 1
    y.store(tk.full((1,), s, tk.float32))


def test_what_a_loop_does_where_it_ends_stands_behind_it():
    launch = tk.kernel(doubled_where_it_ends)(api.meta(1, tk.float32).partition((1,)), 3)
    text = printed(ir_of(launch, count_loops))
    assert " while " not in text and "break" not in text
    assert text.index(" for ") < text.index("yield") < text.index("* 2.0")


@pytest.mark.parametrize("make", [stepping, missing, away, moving, goes_on_without_a_look], ids=lambda make: make.__name__)
def test_others_stay_as_they_are(make):
    text = printed(ir_of(tk.kernel(make)(api.meta(1, tk.int64).partition((1,)), 3), count_loops))
    assert " while " in text and " for " not in text
