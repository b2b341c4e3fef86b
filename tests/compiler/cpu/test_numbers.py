"""Numbers that a kernel computes are what Python and NumPy make of them; where Python raises an error, the block ends with it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


def numbers(kernel, count, *arguments):
    """What a kernel stores, as float64."""
    output = api.zeros(count, tk.float64).partition(count)
    return kernel(output, *arguments).first().unpartition().to_host().sync()


def said(monkeypatch, kernel, *arguments):
    """What the launch raises: compiled, and interpreted."""
    errors = []
    for how in ("compiled", "interpreted"):
        monkeypatch.setenv("TILEKIT_CPU", how)
        with pytest.raises((tk.DeviceError, tk.CompileError)) as error:
            kernel(api.zeros(2).partition(2), *arguments).sync()
        errors.append((type(error.value), str(error.value)))
    return errors


@pytest.mark.parametrize(("x", "y"), [(7, 3), (-7, 3), (7, -3), (0, 5), (2, 10)])
def test_integers(cpu, x, y):
    @tk.kernel
    def computed(z: tk.Out, a, b):
        quotient, rest = divmod(a, b)
        values = (
            quotient, rest, a // b, a % b, abs(a), min(a, b), max(a, b), math.gcd(a, b), a.bit_length(), round(a),
            (a, b, 9)[b % 3], a**2, a << 2, -a, ~a, a ^ b,
        )  # fmt: skip
        z.store(tk.astile(values, dtype=tk.float64))

    wanted = [
        *divmod(x, y), x // y, x % y, abs(x), min(x, y), max(x, y), math.gcd(x, y), x.bit_length(), x, (x, y, 9)[y % 3], x**2,
        x << 2, -x, ~x, x ^ y,
    ]  # fmt: skip
    assert numbers(computed, 16, x, y).tolist() == wanted


@pytest.mark.parametrize("n", [2, 3])
def test_the_least_of_an_int_and_a_float(cpu, n):
    """Which of them it is depends on the values: it is a float."""

    @tk.kernel
    def computed(z: tk.Out, n, a):
        z.store(tk.astile((min(n, a), max(n, a), min((a, n, 5)), sum((n, a, 1))), dtype=tk.float64))

    assert numbers(computed, 4, n, 2.5).tolist() == [min(n, 2.5), max(n, 2.5), min(n, 2.5), n + 3.5]


@pytest.mark.parametrize("x", [0, 1, 7, -1])
def test_questions(cpu, x):
    @tk.kernel
    def computed(z: tk.Out, a):
        values = (a in (1, 7), a not in (1, 7), not a, a > 0.5, bool(a), a == 7, a > 0, a != 1)
        z.store(tk.astile(values).astype(tk.float64))

    wanted = [x in (1, 7), x not in (1, 7), not x, x > 0.5, bool(x), x == 7, x > 0, x != 1]
    assert numbers(computed, 8, x).tolist() == wanted


@pytest.mark.parametrize("x", [0.5, 2.25, 1e-3, 30.0])
def test_functions_of_the_module_math(cpu, x):
    @tk.kernel
    def computed(z: tk.Out, a):
        values = (
            math.sqrt(a), math.exp(a), math.log(a), math.log2(a), math.sin(a), math.cos(a), math.tanh(a), float(math.floor(a)),
            float(math.ceil(a)), float(round(a)), math.hypot(a, 2.0), math.pow(a, 1.5), a**0.5, math.atan2(a, 3), math.log(a, 10),
            math.degrees(a),
        )  # fmt: skip
        z.store(tk.astile(values, dtype=tk.float64))

    wanted = [
        math.sqrt(x), math.exp(x), math.log(x), math.log2(x), math.sin(x), math.cos(x), math.tanh(x), math.floor(x), math.ceil(x),
        round(x), math.hypot(x, 2.0), math.pow(x, 1.5), x**0.5, math.atan2(x, 3), math.log(x, 10), math.degrees(x),
    ]  # fmt: skip
    np.testing.assert_allclose(numbers(computed, 16, x), wanted, rtol=1e-15)


@tk.kernel
def root(z: tk.Out, a):
    z.store(math.sqrt(a))


@tk.kernel
def exponential(z: tk.Out, a):
    z.store(math.exp(a))


@tk.kernel
def logarithm(z: tk.Out, a):
    z.store(math.log(a))


@tk.kernel
def floor(z: tk.Out, a):
    z.store(float(math.floor(a)))


@tk.kernel
def power(z: tk.Out, a):
    z.store(a ** (a - 2.5))


@tk.kernel
def whole(z: tk.Out, a):
    z.store(float(int(a)))


@tk.kernel
def shifted(z: tk.Out, n):
    z.store(float(1 << n))


@pytest.mark.parametrize(
    ("kernel", "x"),
    [
        (whole, math.inf),
        (shifted, -1),
        (root, -1.0),
        (exponential, 1e6),
        (logarithm, 0.0),
        (floor, math.inf),
        (floor, math.nan),
        (power, 0.0),
    ],
)
def test_errors_are_python_s(cpu, monkeypatch, kernel, x):
    compiled, interpreted = said(monkeypatch, kernel, x)
    assert compiled == interpreted


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.float64])
def test_numbers_of_numpy_s(cpu, dtype):
    """Elements of tiles as numbers have their own dtypes, and NumPy's rules."""

    @tk.kernel
    def computed(z: tk.Out, x: tk.In):
        a, b = tk.load(x, 0, 1).item(), tk.load(x, 1, 1).item()
        values = (
            a + b, a - b, a * b, a / b, -a, abs(a), max(a, b), min(a, b), a + 1, a * 2.5, a // b, a % b, a**2, a * b * a, a > b,
            a == b,
        )  # fmt: skip
        z.store(tk.astile(values, dtype=tk.float64))

    a, b = x = np.array([70001, 3], dtype)
    with np.errstate(all="ignore"):
        wanted = [a + b, a - b, a * b, a / b, -a, abs(a), max(a, b), min(a, b), a + 1, a * 2.5, a // b, a % b, a**2, a * b * a]
    np.testing.assert_array_equal(numbers(computed, 16, api.from_host(x)), np.array([*wanted, a > b, a == b], np.float64))


def test_integers_are_compared_as_they_are(cpu):
    """A number of 64 bits without a sign is never below zero, nor equal to one with a sign."""

    @tk.kernel
    def compared(z: tk.Out, x: tk.In, y: tk.In):
        a, b = tk.load(x, 0, 1).item(), tk.load(y, 0, 1).item()
        z.store(tk.astile((a > b, a == b, a > -1, b < 0)).astype(tk.float64))

    x, y = np.array([2**64 - 1], np.uint64), np.array([-1], np.int64)
    assert numbers(compared, 4, api.from_host(x), api.from_host(y)).tolist() == [1, 0, 1, 1]


def test_a_step_of_zero_is_an_error(cpu, monkeypatch):
    @tk.kernel
    def summed(z: tk.Out, stop, step):
        total = 0.0
        for i in range(5, stop, step):
            total += i
        z.store(total)

    assert numbers(summed, 2, 0, -2)[0] == 9
    compiled, interpreted = said(monkeypatch, summed, 0, 0)
    assert compiled == interpreted
    assert "range() arg 3 must not be zero" in compiled[1]


def test_parts_and_elements_outside_are_errors(cpu, monkeypatch):
    @tk.kernel
    def part(z: tk.Out, at):
        z.store(tk.extract(tk.arange(8), at, 2).astype(tk.float32))

    @tk.kernel
    def element(z: tk.Out, at):
        z.store((1.0, 2.0, 3.0)[at])

    for kernel in (part, element):
        compiled, interpreted = said(monkeypatch, kernel, 5)
        assert compiled == interpreted
    assert numbers(element, 2, -1)[0] == 3


def test_what_blocks_print_comes_in_their_order(cpu, capfd, monkeypatch):
    @tk.kernel
    def shown(z: tk.Out):
        tk.print("block", tk.bid(0), tk.num_blocks(0) > 1, 0.5 * tk.bid(0))
        z.store(0.0)

    monkeypatch.setenv("TILEKIT_CPU_THREADS", "4")
    shown(api.zeros(200).partition(1)).sync()
    assert capfd.readouterr().out.splitlines() == [f"block {i} True {0.5 * i:g}" for i in range(200)]


def test_printing_that_fails_is_an_error_of_the_launch(cpu, monkeypatch):
    @tk.kernel
    def shown(z: tk.Out):
        tk.print("block", tk.bid(0))
        z.store(0.0)

    class Closed:
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self):
            pass

    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", Closed())
        compiled, interpreted = said(patch, shown)
    assert compiled == interpreted
    assert "block (0, 0, 0): BrokenPipeError: [Errno 32] Broken pipe" in compiled[1]
