"""The mathematical functions of compiled kernels, on CPUs of all kinds: within the bounds that the language states."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from formulas import code_of, compiled, vector_lanes
from machines import MACHINES, runs_here

import tilekit as tk
from tilekit import api
from tilekit.compiler.cpu.machine import host
from tilekit.compiler.cpu.mathematics import error_function, exponential, inverse, logarithm, power, trigonometry
from tilekit.lang import rounding

N = 1 << 14


def by_element(function):
    """A function of Python's floats, of an array."""
    mapped = np.frompyfunc(function, 1, 1)
    return lambda x: mapped(x.astype(np.float64)).astype(x.dtype)


def logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


# The formula, what it computes, and how many units in the last place float32 and float64 may be off, as the language says.
# (Python's erf and erfc have 53 bits, so that float64 is allowed one more there.)
FUNCTIONS = {
    "exp": (exponential.exp, np.exp, 2, 1),
    "exp2": (exponential.exp2, np.exp2, 2, 1),
    "expm1": (exponential.expm1, np.expm1, 2, 1),
    "sigmoid": (exponential.sigmoid, logistic, 4, 4),
    "sinh": (exponential.sinh, np.sinh, 3, 2),
    "cosh": (exponential.cosh, np.cosh, 2, 1),
    "tanh": (exponential.tanh, np.tanh, 2, 1),
    "log": (logarithm.log, np.log, 1, 1),
    "log2": (logarithm.log2, np.log2, 1, 1),
    "log10": (logarithm.log10, np.log10, 2, 1),
    "log1p": (logarithm.log1p, np.log1p, 1, 1),
    "softplus": (logarithm.softplus, lambda x: np.logaddexp(0, x), 5, 3),
    "asinh": (logarithm.asinh, np.arcsinh, 3, 3),
    "acosh": (logarithm.acosh, np.arccosh, 4, 3),
    "atanh": (logarithm.atanh, np.arctanh, 3, 3),
    "erf": (error_function.erf, by_element(math.erf), 2, 3),
    "erfc": (error_function.erfc, by_element(math.erfc), 4, 6),
    "sin": (trigonometry.sin, np.sin, 2, 2),
    "cos": (trigonometry.cos, np.cos, 2, 2),
    "tan": (trigonometry.tan, np.tan, 4, 2),
    "asin": (inverse.asin, np.arcsin, 2, 2),
    "acos": (inverse.acos, np.arccos, 2, 2),
    "atan": (inverse.atan, np.arctan, 2, 2),
    "cbrt": (power.cbrt, np.cbrt, 1, 1),
    "atan2": (inverse.atan2, np.arctan2, 3, 2),
    "power": (power.power, np.power, 4, 2),
}
OF_TWO = ("atan2", "power")
# Where functions begin to overflow, or to be 0 or 1, or turn from one formula to another.
TURNS = [
    0.5, 0.625, 2**-0.5, 2**0.5, 1.0, 2.0, math.pi, math.pi / 2, 3 * math.pi / 2, 3000 * math.pi, 9.02, 10.05, 19.06, 26.54,
    27.22, 87.34, 88.72, 89.41, 103.97, 126.0, 127.99, 149.5, 708.4, 709.78, 710.47, 745.13, 1022.5, 1023.99, 1074.5, 2.0**16,
    2.0**20, 2.0**28, 2.0**30, 2.0**60,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet_numpy():
    """Overflow, NaN and division by zero are part of the tests."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(params=[name for name, machine in MACHINES.items() if not machine.triple])
def kind(request):
    """A CPU whose code runs here."""
    machine = MACHINES[request.param]
    if not runs_here(machine):
        pytest.skip(f"this CPU does not run code for {machine.name}")
    return machine


def arguments(dtype, seed=0):
    """Numbers of any magnitude (subnormal ones too), ordinary ones, those near to where functions turn, and special ones."""
    rng = np.random.default_rng([seed, dtype.itemsize])
    info = np.finfo(dtype)
    special = [0.0, np.inf, np.nan, info.max, info.smallest_normal, info.smallest_subnormal]
    near = np.multiply.outer(TURNS, 1 + info.eps * np.arange(-8, 9)).reshape(-1)
    turns = np.arange(1, 400) * (math.pi / 2)
    apart = np.concatenate([special, near, turns])
    apart = np.concatenate([apart, -apart])
    ordinary = [rng.normal(0, 1, 2000), rng.uniform(-1, 1, 2000), rng.uniform(-100, 100, 1000), rng.uniform(-750, 750, 1000)]
    spread = np.exp(rng.uniform(-20, 20, 2000)) * rng.choice([-1, 1], 2000)
    known = np.concatenate([apart, *ordinary, spread]).astype(dtype)
    any_bits = rng.integers(0, 256, (N - known.size, dtype.itemsize), np.uint8).view(dtype).reshape(-1)
    return np.concatenate([known, any_bits])


def pairs(dtype):
    """Numbers of two kinds: all special ones with each other, and others."""
    x, y = arguments(dtype, 1), np.random.default_rng(3).permutation(arguments(dtype, 2))
    special = [
        0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 4.0, 7.0, 1e30, np.inf, np.nan, 2.0**24 - 1, 2.0**24 + 2, 2.0**53 - 1, 2.0**53 + 2, 5e-324,
    ]  # fmt: skip
    special = [*special, *(-v for v in special)]
    known = np.array([(a, b) for a in special for b in special], dtype)
    x[: len(known)], y[: len(known)] = known.T
    rng = np.random.default_rng(4)
    x[-6000:], y[-6000:] = np.exp(rng.normal(0, 2, 6000)), rng.normal(0, 20, 6000)
    return x, y


def units_off(actual, exact):
    """How far results are from exact ones, in units in the last place of these; infinity is the next one to the largest."""
    info = np.finfo(actual.dtype)
    assert np.array_equal(np.isnan(actual), np.isnan(exact))
    beyond = np.ldexp(exact.dtype.type(1), info.maxexp)
    a, e = (
        np.clip(np.nan_to_num(v.astype(exact.dtype), posinf=np.inf, neginf=-np.inf), -beyond, beyond) for v in (actual, exact)
    )
    unit = np.ldexp(exact.dtype.type(1), np.maximum(np.frexp(e)[1] - 1, info.minexp) - info.nmant)
    return np.abs(a - e) / unit


@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_near_as_they_say(kind, name, dtype):
    """On each machine, with fused multiply-adds and without; zeros have the right sign."""
    formula, reference, single, double = FUNCTIONS[name]
    operands = pairs(dtype) if name in OF_TWO else (arguments(dtype),)
    exact = reference(*(x.astype(np.longdouble if dtype == tk.float64 else np.float64) for x in operands))
    actual = compiled(formula, dtype, kind, operands=len(operands))(*operands)
    off = units_off(actual, exact)
    worst = int(np.argmax(off))
    where = ", ".join(repr(x[worst]) for x in operands)
    assert off[worst] <= (single if dtype == tk.float32 else double), f"{off[worst]} off at {where}: {actual[worst]!r}"
    zeros = (actual == 0) & (exact == 0)
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(exact[zeros]))


@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_is_the_same_among_any_others(kind, name, dtype):
    """One at a time, in the vectors of small tiles, or of large ones; beside elements that the C library computes, too."""
    operands = pairs(dtype) if name in OF_TWO else (arguments(dtype),)
    formula = FUNCTIONS[name][0]
    widths = (vector_lanes(kind, dtype), 1, 4)
    first, *others = (compiled(formula, dtype, kind, lanes, len(operands))(*operands) for lanes in widths)
    for other in others:
        np.testing.assert_array_equal(first, other)
        np.testing.assert_array_equal(np.signbit(first)[~np.isnan(first)], np.signbit(other)[~np.isnan(other)])


@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_machines_with_fused_multiply_adds_agree(name, dtype):
    """To the last bit: what AVX-512 has instructions of its own for is no other result."""
    machines = [machine for machine in MACHINES.values() if machine.fused and runs_here(machine)]
    if len(machines) < 2:
        pytest.skip("this CPU does not run code for two such machines")
    operands = pairs(dtype) if name in OF_TWO else (arguments(dtype),)
    first, *others = (compiled(FUNCTIONS[name][0], dtype, machine, operands=len(operands))(*operands) for machine in machines)
    for other in others:
        np.testing.assert_array_equal(first, other)
        np.testing.assert_array_equal(np.signbit(first)[~np.isnan(first)], np.signbit(other)[~np.isnan(other)])


@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_nothing_is_called_that_need_not_be_there(machine, name, dtype):
    """LLVM makes calls of what a machine has no instructions for: none is left but those of huge angles."""
    code = code_of(FUNCTIONS[name][0], dtype, machine, vector_lanes(machine, dtype), 2 if name in OF_TWO else 1)
    called = set(re.findall(r"^\s+(?:callq?|jmp|bl)\s+\*?([a-z]\w*)", machine.assembly(code.finish()), re.MULTILINE))
    assert called - {"block"} <= ({name} if name in ("sin", "cos", "tan") else set())


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles_are_reduced(kind, name):
    """Beyond what parts of pi / 2 are good for, and infinite ones are none."""
    formula, reference, *_ = FUNCTIONS[name]
    x = np.array([1e22, -1e22, 1e300, 2.0**1000, 1e9, 3e9, np.inf, -np.inf] * 4)
    assert units_off(compiled(formula, tk.float64, kind)(x), reference(x.astype(np.longdouble))).max() <= 2
    x = x.clip(-3e38, 3e38).astype(np.float32)
    assert units_off(compiled(formula, tk.float32, kind)(x), reference(x.astype(np.float64))).max() <= 4


@tk.kernel
def roots(z: tk.Out, x: tk.In, MODE: tk.Const):
    z.store(tk.sqrt(tk.load_tile_like(x, z), rounding_mode=MODE))


@pytest.mark.parametrize("mode", ["zero", "negative_inf", "positive_inf"])
@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64], ids=str)
def test_roots_are_rounded_in_a_direction(machine, dtype, mode):
    rng = np.random.default_rng(5)
    squares = np.arange(1, 50).astype(dtype) ** 2
    any_bits = np.abs(rng.integers(0, 256, (400, dtype.itemsize), np.uint8).view(dtype).reshape(-1))
    x = np.concatenate([np.array([0.0, -0.0, np.inf, np.nan, -1.0]).astype(dtype), squares, any_bits])
    z, *_ = roots(api.zeros(x.size, dtype).partition(128), api.from_host(x), mode).sync()
    with np.errstate(all="ignore"):
        expected = rounding.rounded("sqrt", rounding.RoundingMode(mode), dtype, x)
    np.testing.assert_array_equal(z.unpartition().to_host().sync().astype(np.float64), expected.astype(np.float64))


@tk.kernel
def flushed(z: tk.Out, w: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, z)
    z.store(tk.exp2(t, flush_to_zero=True))
    w.store(tk.sqrt(t, flush_to_zero=True))


def test_subnormal_numbers_are_flushed(machine):
    x = np.array([-130.0, -126.0, 3.0, 1e-40, -1e-40, 0.0, -0.0, 4.0], np.float32)
    z, w, *_ = flushed(api.zeros(8).partition(8), api.zeros(8).partition(8), api.from_host(x)).sync()
    z, w = (part.unpartition().to_host().sync() for part in (z, w))
    np.testing.assert_array_equal(z, np.array([0, 2.0**-126, 8, 1, 1, 1, 1, 16], np.float32))
    np.testing.assert_array_equal(w, np.array([np.nan, np.nan, np.sqrt(np.float32(3)), 0, 0, 0, 0, 2], np.float32))
    np.testing.assert_array_equal(np.signbit(w[3:]), [False, True, False, True, False])


def test_this_machine_is_one_of_those():
    """What is compiled for the CPU at hand has vectors as one of the machines here."""
    assert any(host().vector_bytes == machine.vector_bytes and host().fused == machine.fused for machine in MACHINES.values())


@tk.kernel
def known_power(z: tk.Out, x: tk.In, EXPONENT: tk.Const):
    z.store(tk.load_tile_like(x, z) ** EXPONENT)


@pytest.mark.parametrize("exponent", [2, 3, 4, -1, -2, 0.5, -0.5, 1.5, 2.5])
@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
def test_powers_by_known_exponents_are_as_others(machine, dtype, exponent):
    """As near as those that are not known, for zeros, infinities and negative numbers, too."""
    x = arguments(dtype)
    z, *_ = known_power(api.zeros(N, dtype).partition(256), api.from_host(x), exponent).sync()
    actual = z.unpartition().to_host().sync()
    wide = np.longdouble if dtype == tk.float64 else np.float64
    exact = np.power(x.astype(wide), np.full(N, exponent, wide))
    assert units_off(actual, exact).max() <= (4 if dtype == tk.float32 else 2)
    zeros = (actual == 0) & (exact == 0)
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(exact[zeros]))


@tk.kernel
def anywhere(folds: tk.Out, scans: tk.Out, products: tk.Out, turns: tk.Out, x: tk.In):
    t = tk.load(x, (0, 0), (32, 32))
    folds.store(tk.sum(tk.pow(tk.abs(t), 1.5), 1) + tk.max(tk.sin(t), 0))
    scans.store(tk.sum(tk.cumsum(tk.sin(t), 1), 0))
    products.store(tk.sum(tk.sin(t) @ tk.cos(t), 0))
    total = tk.zeros((32,), x.dtype)
    while tk.sum(tk.sin(total)).item() < 3.0:
        total = total + 0.1 * tk.cos(total)
    turns.store(total)


@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
def test_formulas_with_branches_may_stand_anywhere(machine, dtype):
    """In folds, scans, products and conditions, with elements that take either way."""
    x = np.random.default_rng(6).normal(0, 2, (32, 32)).astype(dtype)
    x[3, 5], x[9, 9], x[4, 1] = 3e9, 0, -1e10
    outs = (api.zeros(32, dtype).partition(32) for _ in range(4))
    *outs, _ = anywhere(*outs, api.from_host(x)).sync()
    folds, scans, products, turns = (out.unpartition().to_host().sync() for out in outs)
    wide = x.astype(np.float64)
    sine, cosine = np.sin(wide), np.cos(wide)
    near = {"rtol": 1e-5 if dtype == tk.float32 else 1e-13, "atol": 1e-5 if dtype == tk.float32 else 1e-13}
    np.testing.assert_allclose(folds, (np.abs(wide) ** 1.5).sum(1) + sine.max(0), **near)
    np.testing.assert_allclose(scans, sine.cumsum(1).sum(0), **near)
    np.testing.assert_allclose(products, (sine @ cosine).sum(0), **near)
    total = 0.1
    while 32 * math.sin(total) < 3.0:
        total += 0.1 * math.cos(total)
    np.testing.assert_allclose(turns, total, **near)
