"""What arithmetic becomes on a GPU: no conversions where the hardware has the type, no calls, no local memory."""

import re

import pytest

import tilekit as tk
from tilekit import api

TARGETS = ["sm_80", "sm_90a"]


def compiled(kernel, dtype, target, inputs):
    return kernel(api.meta(1024, dtype).partition(1024), *[api.meta(1024, dtype)] * inputs).compile(target=target)


@tk.kernel
def polynomial(z: tk.Out, x: tk.In, y: tk.In):
    a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
    z.store(a * b + a - 2.0 * b)


@tk.kernel
def quotient(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) / tk.load_tile_like(y, z))


@tk.kernel
def root(z: tk.Out, x: tk.In):
    z.store(tk.sqrt(tk.load_tile_like(x, z)))


@tk.kernel
def wave(z: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, z)
    z.store(tk.sin(t) + tk.cos(t) + tk.tan(t))


@tk.kernel
def fast(z: tk.Out, x: tk.In, y: tk.In):
    a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
    quotients = tk.truediv(a, b, rounding_mode=tk.RoundingMode.APPROX, flush_to_zero=True)
    roots = tk.sqrt(quotients, rounding_mode=tk.RoundingMode.APPROX, flush_to_zero=True)
    z.store(tk.exp(tk.tanh(roots, rounding_mode=tk.RoundingMode.APPROX), rounding_mode=tk.RoundingMode.APPROX))


@tk.kernel
def by_eight(z: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, z)
    z.store((t // 8) ^ (t % 8))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16], ids=str)
def test_arithmetic_of_16_bits_is_packed(dtype, target):
    made = compiled(polynomial, dtype, target, 2)
    instructions = re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+(?:@!?\w+ )?([\w.]+)", made.sass, re.MULTILINE)
    # Two elements an instruction; those in float32, and their conversions, would be some for each.
    arithmetic = [i for i in instructions if re.match("H(ADD|MUL|FMA)2|FADD|FMUL|FFMA|F2F", i)]
    assert all(re.match("H(ADD|MUL|FMA)2", i) for i in arithmetic)
    assert len(arithmetic) <= 4 * 1024 // (2 * made.block[0]) + 4  # and constants


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [quotient, root], ids=["quotient", "root"])
def test_divisions_of_float16_do_not_branch(kernel, target):
    made = compiled(kernel, tk.float16, target, 2 if kernel is quotient else 1)
    assert "CALL" not in made.sass
    assert made.local_bytes == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32], ids=str)
def test_angles_take_no_local_memory(dtype, target):
    made = compiled(wave, dtype, target, 1)
    assert made.local_bytes == 0
    assert "CALL" not in made.sass


@pytest.mark.parametrize("target", TARGETS)
def test_approximations_are_single_instructions(target):
    made = compiled(fast, tk.float32, target, 2)
    elements = 1024 // made.block[0]
    for name in ("RCP", "EX2", "TANH"):
        assert len(re.findall(rf"MUFU\.{name}\b", made.sass)) == elements
    assert "CALL" not in made.sass


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [tk.int32, tk.uint64], ids=str)
def test_division_by_a_power_of_two_is_a_shift(dtype, target):
    made = compiled(by_eight, dtype, target, 1)
    assert not re.search(r"\b(IMAD\.HI|MUFU|CALL|I2F)", made.sass)


def squares(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y)
    y.store(t * tk.sum(t * t, 1, keepdims=True))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_sum_of_products_takes_one_instruction_an_element(target):
    """32 registers in 8 chains: all products but the first of each chain go into additions. In a tree only half of them do."""
    x = api.meta((64, 4096))
    sass = tk.kernel(squares)(x.partition((1, 4096)), x).num_warps(4).compile(target=target).sass
    found = {name: len(re.findall(rf"\b{name}\b", sass)) for name in ("FFMA", "FMUL", "FADD")}
    assert found == {"FFMA": 24, "FMUL": 8 + 32, "FADD": 7 + 5 + 3}, "a tree of 8, of lanes, and of 4 warps; 32 for the result"
