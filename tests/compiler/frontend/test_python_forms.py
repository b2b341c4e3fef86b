"""Forms of Python that users bring along: what they mean in a kernel is what they mean in Python."""

# ruff: noqa: B011, C416, PT015, RUF005 - kernels are written as users write them

import enum
import types
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

X = np.arange(16, dtype=np.float32)
SIZES = (8, 4)


class Pair(NamedTuple):
    a: int = 2
    b: float = 0.5


@dataclass(frozen=True)
class Shapes:
    width: int = 8
    dtype: object = tk.float32


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Kind(enum.IntEnum):
    ONE = 1
    TWO = 2


class Settings:
    def __init__(self):
        self.scale = 3.0
        self.inner = types.SimpleNamespace(plus=4)


PAIR, SHAPES, SETTINGS = Pair(), Shapes(), Settings()


def assigned_in_a_condition(y, x, n):
    if (k := n) > 0:
        y.store(tk.load_tile_like(x, y) * k)


def assigned_in_an_argument(y, x, n):
    y.store((t := tk.load_tile_like(x, y)) + t)


def assigned_in_each_turn(y, x, n):
    i, t = 0, tk.load_tile_like(x, y)
    while (i := i + 1) < 4:
        t += i
    y.store(t + i)


def assigned_where_it_ends(y, x, n):
    i, t = 0, tk.load_tile_like(x, y)
    while True:
        i += 1
        if i >= 3 + n:
            t = t + 100
            break
        t = t + i
    y.store(t + i)


def assigned_where_it_does_not_go_on(y, x, n):
    i, t = 0, tk.load_tile_like(x, y)
    while True:
        i += 1
        if i < 3 + n:
            t = t * 2
        else:
            t = t + 100
            i = i + 7
            break
        i += 1
    y.store(t + i)


def assigned_where_an_inner_loop_ends(y, x, n):
    t, s = tk.load_tile_like(x, y), 0
    for j in range(3):
        i = j
        while True:
            if i >= 3 + n:
                s = s + 1
                i = i - 1
                break
            s = s + 2
            i = i + 2
        t = t + s + i
    y.store(t)


def what_is_left_over(y, x, n):
    a, *b = (1, n, 3)
    c, *_, (d, *e) = [1, 2, 3, (4, 5, 6)]
    y.store(tk.load_tile_like(x, y) + b[0] + b[-1] * len(b) + a + c + d + sum(e))


def left_over_in_a_loop(y, x, n):
    t = tk.load_tile_like(x, y)
    for a, *rest in ((1, 2), (3, 2, n)):
        t += a * sum(rest)
    y.store(t)


def lists(y, x, n):
    t, parts = tk.full([8], 1.0, tk.float32), [1, 2]
    parts += [n]
    for part in parts:
        t += part
    y.store(tk.load_tile_like(x, y) + t.reshape([8]))


def comprehensions(y, x, n):
    tiles = [tk.load_tile_like(x, y) * i for i in range(3)]
    odd = tuple(i for i in range(6) if i % 2)
    pairs = [i * j for i in (1, 2) for j in odd if j > i]
    i = n
    y.store(
        sum(tiles)
        + sum(pairs)
        + sum(v for v in (1, 2, 3))
        + max(i * n for i in (1, 2))
        + i
        + len([[i for i in odd] for _ in odd])
    )


def conditions(y, x, n):
    t = tk.load_tile_like(x, y)
    if any(n == v for v in (1, 2)) and all(size % 4 == 0 for size in SIZES) and not any((n > 5, n < 0)):
        t += 1
    y.store(t + all((n, n > 1)))


def counted(y, x, n):
    t = tk.load_tile_like(x, y)
    for i, v in enumerate((5, n), 1):
        t += i * v
    for i, v in enumerate((7, 8), start=n - n + 1) if False else enumerate((7, 8), start=2):
        t += i * v
    y.store(t + sum(range(4)) + max(range(2, 5)) + tuple(range(3))[-1])


def backwards(y, x, n):
    t = tk.load_tile_like(x, y)
    for v in reversed((1, 2)):
        t = t * 2 + v
    for i in reversed(range(3)):
        t = t * 2 + i
    for i in reversed(range(n, 2 * n)):
        t = t * 2 + i
    y.store(t)


def tuples_that_grow(y, x, n):
    tiles = ()
    for i in tk.static_range(2):
        tiles += (tk.load_tile_like(x, y) + i,)
    y.store(tiles[0] + (*tiles, n)[1] + (tiles + (n,))[2])


def attributes(y, x, n):
    t = tk.load_tile_like(x, y) * SETTINGS.scale + SETTINGS.inner.plus + PAIR.a * PAIR.b + PAIR[0]
    if n == Kind.TWO:
        t += Colour.BLUE.value
    width: anything = SHAPES.width  # noqa: F821
    y.store(t + tk.ones(width, SHAPES.dtype))


def asserted(y, x, n):
    assert x.ndim == 1, "a vector"
    assert n > 0
    y.store(tk.load_tile_like(x, y))


CASES = {
    assigned_in_a_condition: lambda x, n: x * n,
    assigned_in_an_argument: lambda x, n: x + x,
    assigned_in_each_turn: lambda x, n: x + 6 + 4,
    assigned_where_it_ends: lambda x, n: x + 10 + 100 + 5,
    assigned_where_it_does_not_go_on: lambda x, n: 4 * x + 100 + 12,
    assigned_where_an_inner_loop_ends: lambda x, n: x + (7 + 5) + (12 + 4) + (17 + 5),
    what_is_left_over: lambda x, n: x + n + 6 + 1 + 1 + 4 + 11,
    left_over_in_a_loop: lambda x, n: x + 2 + 3 * (2 + n),
    lists: lambda x, n: x + 1 + 3 + n,
    comprehensions: lambda x, n: 3 * x + (3 + 5 + 6 + 10) + 6 + 2 * n + n + 3,
    conditions: lambda x, n: x + 2,
    counted: lambda x, n: x + 5 + 2 * n + 14 + 24 + 6 + 4 + 2,
    backwards: lambda x, n: ((((((x * 2 + 2) * 2 + 1) * 2 + 2) * 2 + 1) * 2 + 0) * 2 + 3) * 2 + 2,
    tuples_that_grow: lambda x, n: x + x + 1 + n,
    attributes: lambda x, n: x * 3 + 4 + 1 + 2 + 2 + 1,
    asserted: lambda x, n: x,
}
kernels = pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)


def kernel_of(function):
    return tk.kernel(function)


@kernels
def test_it_means_what_it_means_in_python(device, function):
    op = kernel_of(function)(api.zeros(16).partition(8), api.from_host(X), 2)
    np.testing.assert_array_equal(op.out().sync().numpy(), CASES[function](X, 2))


@kernels
def test_it_is_compiled_for_a_gpu(function):
    meta = api.meta(16, tk.float32)
    assert "st.global" in kernel_of(function)(meta.partition(8), meta, 2).compile(target="sm_90a").ptx, "it has an end"


def test_attributes_that_change_count(device):
    settings = Settings()

    @tk.kernel
    def kernel(y: tk.Out):
        y.store(settings.scale * tk.ones(8) + settings.inner.plus)

    def run():
        return kernel(api.zeros(8).partition(8)).out().sync().numpy()[0]

    assert run() == 7
    settings.scale = 5.0
    assert run() == 9
    settings.inner.plus = 1
    assert run() == 6


def test_an_assertion_that_does_not_hold_stops_the_launch(cpu):
    @tk.kernel
    def kernel(y: tk.InOut):
        assert tk.sum(y.load()) > 100, "too little"
        y.store(1.0)

    with pytest.raises(tk.DeviceError, match="too little"):
        kernel(api.zeros(8).partition(8)).sync()


def test_a_false_assertion_under_a_condition_is_for_the_launch(device):
    @tk.kernel
    def kernel(y: tk.Out, n):
        if n > 5:
            assert False, "so large"
        y.store(1.0)

    np.testing.assert_array_equal(kernel(api.zeros(8).partition(8), 2).out().sync().numpy(), np.ones(8))


def test_a_name_of_a_comprehension_is_its_own(device):
    """Around it the name stays what it was, also round a loop."""

    @tk.kernel
    def kernel(y: tk.Out, n):
        i, t = 5, tk.zeros(8)
        for _ in range(n):
            t += sum([i for i in (1, 2)])
            t += i
        y.store(t + i)

    np.testing.assert_array_equal(kernel(api.zeros(8).partition(8), 3).out().sync().numpy(), np.full(8, 29))
