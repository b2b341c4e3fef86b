"""From kernels to the IR: names, tuples and calls vanish, control flow is structured, types are known."""

from __future__ import annotations

import pytest
import through_ir

import tilekit as tk
from tilekit import api
from tilekit._runtime.device import Device, use_device
from tilekit.compiler.ir.build import Unsupported, build
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.ir.verify import verify


def ir_of(launch):
    """The IR of a launch's kernel, verified."""
    launch.consumed()
    specialisation = launch._plan("a test").specialisation
    kernel = build(specialisation.bound, specialisation.facts)
    verify(kernel)
    return kernel


def text_of(launch):
    """Its text, without the lines of the source and the blanks before them."""
    return "\n".join(line.partition("  #")[0].rstrip() for line in printed(ir_of(launch)).splitlines()[1:])


def y(*shape, dtype=tk.float32):
    return api.meta(shape or (64, 64), dtype).partition((16, 16))


@tk.function
def halves(t, by):
    if by == 2:
        return t * 0.5, t
    return t, t / by


def test_calls_tuples_and_constants_vanish():
    @tk.kernel
    def kernel(y: tk.InOut):
        pair = halves(y.load(), 2)
        a, b = pair
        shape = (a.shape[0] // 2, 2 * a.ndim)
        y.store(a + b * shape[0] - shape[1])

    assert text_of(kernel(y())) == (
        "    pair: float32[16, 16] = y.load()\n"
        "    pair.1: float32[16, 16] = pair * 0.5\n"
        "    t: float32[16, 16] = pair * 8\n"
        "    t.1: float32[16, 16] = pair.1 + t\n"
        "    t.2: float32[16, 16] = t.1 - 4\n"
        "    y.store(t.2)\n"
        "    return"
    )


def test_a_branch_hands_on_what_is_read_behind_it():
    @tk.kernel
    def kernel(y: tk.InOut, n: int):
        t = y.load()
        if n > 3:
            t, more = t + 1, 1
            t = t * more
        y.store(t)

    assert text_of(kernel(y(), 5)) == (
        "    t: float32[16, 16] = y.load()\n"
        "    t.1: bool = n > 3\n"
        "    t.4: float32[16, 16] = if t.1:\n"
        "        t.2: float32[16, 16] = t + 1\n"
        "        t.3: float32[16, 16] = t.2 * 1\n"
        "        yield t.3\n"
        "    else:\n"
        "        yield t\n"
        "    y.store(t.4)\n"
        "    return"
    )


def test_a_loop_carries_what_turns_hand_on():
    @tk.kernel
    def kernel(y: tk.InOut, n: int):
        total, k = y.load(), 0
        while k < n:
            k += 1
            if k == 3:
                continue
            if k > 7:
                break
            total = total * k
        y.store(total)

    assert text_of(kernel(y(), 5)) == (
        "    total: float32[16, 16] = y.load()\n"
        "    k.2: int, total.3: float32[16, 16] = while with k = 0, total.1 = total:\n"
        "        t: bool = k < n\n"
        "        if t:\n"
        "            yield\n"
        "        else:\n"
        "            break k, total.1\n"
        "        k.1: int = k + 1\n"
        "        t.1: bool = k.1 == 3\n"
        "        if t.1:\n"
        "            continue k.1, total.1\n"
        "        else:\n"
        "            yield\n"
        "        t.2: bool = k.1 > 7\n"
        "        if t.2:\n"
        "            break k.1, total.1\n"
        "        else:\n"
        "            yield\n"
        "        total.2: float32[16, 16] = total.1 * k.1\n"
        "        yield k.1, total.2\n"
        "    y.store(total.3)\n"
        "    return"
    )


def test_a_variable_widens_round_a_loop():
    @tk.kernel
    def kernel(y: tk.InOut, n: int):
        scale = 1
        for _ in range(n):
            scale = scale * 0.5
        y.store(y.load() * scale)

    assert "scale.2: float = for" in text_of(kernel(y(), 5))


def test_a_variable_that_the_first_turn_sets():
    @tk.kernel
    def kernel(y: tk.InOut, n: int):
        for i in range(n):
            pair = (y.load(), i) if i == 0 else (pair[0] + 1, pair[1] + i)  # noqa: F821
            if i == n - 1:
                y.store(pair[0] + pair[1])

    text = text_of(kernel(y(), 5))
    assert "with pair = undefined, pair.1 = undefined:" in text
    assert "?" not in text


def test_what_has_no_form_says_so():
    """An array of numba's own is nothing that the language knows."""
    from numba import cuda

    @tk.kernel
    def kernel(y: tk.InOut):
        shared = cuda.shared.array(16, "float32")
        shared[0] = 1.0

    with pytest.raises(Unsupported, match=r"assignment to an element, in kernel:\d+"):
        ir_of(kernel(y()))


# ------------------------------------------------------------------------------------------------------------- exits of loops


@tk.function
def first_beyond(n, bound):
    for i in range(n):
        for j in range(n):
            if i * j > bound:
                return i, j + 0
    return n, -1


@tk.function
def searched(n):
    total = 0
    for i in range(n):
        total += i
        if total == 6:
            break
        if total > 100:
            return -1
    else:
        return total + 1000
    return total


@pytest.mark.parametrize("n", [0, 3, 4, 30])
def test_returns_from_loops_and_else(n):
    @tk.kernel
    def kernel(y: tk.Out, n: int):
        i, j = first_beyond(n, 8)
        found = 0
        while found < n:
            found += 2
            if found == 4:
                break
        else:
            found = -found
        y.store(tk.full((4,), 0, tk.int32) + i * 1000 + j + searched(n) * 100000 + found)

    def python(n):
        i, j = next(((i, j) for i in range(n) for j in range(n) if i * j > 8), (n, -1))
        total = {0: 1000, 3: 1003, 4: 6, 30: 6}[n]
        found = 4 if n > 2 else 0
        return i * 1000 + j + total * 100000 + found

    with use_device(Device("cpu")), through_ir.run_through_ir():
        result = kernel(api.zeros(4, tk.int32).partition(4), n).first().unpartition().to_host().sync()
    assert result.tolist() == [python(n)] * 4
