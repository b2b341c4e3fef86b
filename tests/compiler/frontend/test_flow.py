"""Variables without a value, ranges and divisors of which nothing comes: refused when a kernel is compiled, on both devices."""
# ruff: noqa: B007, F821, F841  (the kernels are wrong on purpose)

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

WRONG, RIGHT = [], []


def wrong(function):
    WRONG.append(tk.kernel(function))
    return function


def good(function):
    RIGHT.append(tk.kernel(function))
    return function


@wrong
def branch(y: tk.InOut, a):
    if a > 0:
        q = y.load() + 1
    y.store(q)


@wrong
def loop(y: tk.InOut, a):
    for i in range(a):
        q = y.load() + i
    y.store(q)


@wrong
def floats(y: tk.InOut, a):
    for i in range(2.5):
        y.store(1.0)


@wrong
def step_of_0(y: tk.InOut, a):
    for i in range(0, 5, 0):
        y.store(1.0)


@wrong
def modulo_0(y: tk.InOut, a):
    y.store(y.load() + a % 0)


@wrong
def quotient_by_a_variable(y: tk.InOut, a):
    n = 0
    y.store(y.load() + a // n)


@wrong
def while_loop(y: tk.InOut, a):
    while a > 3:
        q = 1
        a -= 1
    y.store(y.load() + q)


@wrong
def condition_that_changed(y: tk.InOut, a):
    if a > 0:
        q = 1
    a = a - 1
    if a > 0:
        y.store(y.load() + q)


@wrong
def later_turn(y: tk.InOut, a):
    for i in range(3):
        if i > 0:
            y.store(y.load() + q)
        if i > 1:
            q = 1


@wrong
def step_in_a_variable(y: tk.InOut, a):
    step = 0
    for i in range(0, a, step):
        y.store(1.0)


@wrong
def augmented(y: tk.InOut, a):
    q += 1
    y.store(y.load() + q)


@good
def same_condition(y: tk.InOut, a):
    if a > 0:
        q = 1
    if a > 0:
        y.store(y.load() + q)


@good
def implied_condition(y: tk.InOut, a):
    if a > 0:
        q = 1
    if not (a <= 0) and a < 5:
        y.store(y.load() + q)


@good
def first_turn(y: tk.InOut, a):
    for i in range(a):
        if i == 0:
            q = y.load()
        else:
            q = q + 1
        y.store(q)


@good
def known_turns(y: tk.InOut, a):
    for i in range(4):
        q = y.load() + i
    y.store(q)


@good
def same_loop(y: tk.InOut, a):
    for i in range(a):
        q = y.load() + i
    for i in range(a):
        y.store(q)


@good
def loop_that_ran(y: tk.InOut, a):
    for i in range(a):
        q = y.load() + i
    if a > 0:
        y.store(q)


@good
def flag(y: tk.InOut, a):
    first = True
    while a > 0:
        if first:
            q = y.load()
            first = False
        else:
            q = q + 1
        a -= 1
        y.store(q)


@good
def endless(y: tk.InOut, a):
    while True:
        q = y.load()
        if a > 0:
            break
        a += 1
    y.store(q)


@good
def returned(y: tk.InOut, a):
    if a > 0:
        q = 1
    else:
        return
    y.store(y.load() + q)


@good
def types(y: tk.InOut, a):
    t = y.load()
    if t.ndim == 1:
        q = 1
    elif t.ndim == 2:
        q = 2
    y.store(t + q)


@good
def first_of_a_range(y: tk.InOut, a):
    for i in range(a, a + 3):
        if i == a:
            q = y.load()
        y.store(q)


@good
def counted(y: tk.InOut, a):
    i = 0
    while i < 3:
        q = i
        i += 1
    y.store(y.load() + q)


@good
def turn_before(y: tk.InOut, a):
    """numba would have it set further up in the text."""
    for k in range(3):
        if k > 0:
            y.store(y.load() + q)
        q = k


@good
def tile_of_the_turn_before(y: tk.InOut, a):
    for k in range(3):
        if k > 0:
            y.store(y.load() + q)
        q = y.load() * k


@good
def named_condition(y: tk.InOut, a):
    p = a > 2 and a < 9
    if p:
        q = 3
    if p:
        y.store(y.load() + q)


@good
def dtype(y: tk.InOut, a):
    d = y.dtype
    if d == tk.float32:
        q = 3
    y.store(y.load() + q)


@good
def told_by_a_number(y: tk.InOut, a):
    if a > 3:
        m = 1
        q = 2
    else:
        m = 0
    if m == 1:
        y.store(y.load() + q)


@good
def one_or_the_other(y: tk.InOut, a):
    if a > 3:
        q = 1
    t = y.load()
    if not a > 3:
        q = 2
    y.store(t + q)


@good
def search(y: tk.InOut, a):
    found = False
    for i in range(a):
        if i * i > a:
            q = i
            found = True
    if found:
        y.store(y.load() + q)


@good
def search_in_while(y: tk.InOut, a):
    found = 0
    i = 0
    while i < a and not found:
        if i == 2:
            q = i
            found = 1
        i += 1
    if found == 1:
        y.store(y.load() + q)


@wrong
def not_found(y: tk.InOut, a):
    found = False
    for i in range(a):
        if i * i > a:
            q = i
            found = True
    if not found:
        y.store(y.load() + q)


@wrong
def turn_that_never_comes(y: tk.InOut, a):
    for i in range(1, a):
        if i == 0:
            q = 1
        y.store(y.load() + q)


@wrong
def tile_modulo_0(y: tk.InOut, a):
    t = y.load()
    y.store(t % 0)


@wrong
def divmod_by_0(y: tk.InOut, a):
    m, q = divmod(a, 0)
    y.store(y.load() + m + q)


REASONS = {
    "floats": "range: its bounds and step are ints, not floats",
    "step_of_0": "range: its step is 0",
    "step_in_a_variable": "range: its step is 0",
    "modulo_0": "%: the divisor is the constant 0",
    "tile_modulo_0": "%: the divisor is the constant 0",
    "quotient_by_a_variable": "//: the divisor is the constant 0",
    "divmod_by_0": "//: the divisor is the constant 0",
}


@pytest.mark.parametrize("kernel", WRONG, ids=lambda k: k.name)
def test_the_same_words_at_the_same_caret(device, kernel):
    """The CPU device says so although the path need not be taken; compiling for a GPU says the same."""
    found = []
    for run in (
        lambda: kernel(api.full(4, 5.0).partition(4), 3).sync(),
        lambda: kernel(api.meta(4).partition(4), 3).compile(target="sm_90a"),
    ):
        with pytest.raises(tk.CompileError) as error:
            run()
        found.append((error.value.reason, error.value.lineno, error.value.column, error.value.width))
    assert found[0] == found[1]
    assert found[0][0] == REASONS.get(kernel.name, "q may be used before it has a value: assign it on every path")


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda k: k.name)
def test_what_cannot_be_unset_is_no_error(device, kernel):
    for a in (0, 1, 3, 7):
        if kernel.name != "endless" or a:
            kernel(api.full(4, 5.0).partition(4), a).sync()
    kernel(api.meta(4).partition(4), 3).compile(target="sm_90a")


@tk.function
def half_set(a):
    block = tk.bid(0)
    if block > 0:
        q = 1
    return q + a


@tk.kernel
def helped(y: tk.InOut, a):
    y.store(y.load() + half_set(a))


def test_functions_that_kernels_call_are_looked_at_too(device):
    with pytest.raises(tk.CompileError, match="q may be used before it has a value.*in half_set, which kernel helped calls"):
        helped(api.zeros(4).partition(4), 1).sync()


@tk.kernel
def divided(y: tk.Out, z: tk.Out, t: tk.In, a, b, x, w):
    quotient = a // b
    quotient += a % b
    tile = tk.load_tile_like(t, y)
    y.store(tile // b + tile % b + quotient)
    z.store(tk.zeros(4) + x / w)


@pytest.mark.parametrize(("x", "wanted"), [(7.0, np.inf), (-7.0, -np.inf), (0.0, np.nan)])
def test_run_time_divisions_by_zero_give_the_same_everywhere(device, x, wanted):
    """Integers give 0, of scalars and of tiles; floats what IEEE 754 says."""
    outputs = api.ones(4, tk.int32).partition(4), api.zeros(4).partition(4)
    y, z, *_ = divided(*outputs, api.full(4, 7, tk.int32), 7, 0, x, 0.0).sync()
    np.testing.assert_array_equal(y.unpartition().to_host().sync(), np.zeros(4))
    np.testing.assert_array_equal(z.unpartition().to_host().sync(), np.full(4, wanted))
    y, *_ = divided(api.ones(4, tk.int32).partition(4), api.zeros(4).partition(4), api.full(4, 7, tk.int32), -7, 2, x, 1.0).sync()
    np.testing.assert_array_equal(y.unpartition().to_host().sync(), np.full(4, 7 // 2 + 7 % 2 + -7 // 2 + -7 % 2))


# -------------------------------------------------------------------------------------------------- scalars beyond a dtype


@tk.kernel
def loaded(y: tk.Out, x: tk.In, value: tk.Const):
    y.store(tk.load(x, 0, 8, padding_value=value))


@tk.kernel
def gathered(y: tk.Out, x: tk.In, value: tk.Const):
    y.store(tk.gather(x, tk.arange(8), mask=tk.arange(8) < 6, padding_value=value))


@pytest.mark.parametrize(("dtype", "value"), [(tk.int8, 300), (tk.int8, -129), (tk.uint8, -1), (tk.bool_, 2)])
@pytest.mark.parametrize("kernel", [loaded, gathered], ids=lambda k: k.name)
def test_padding_that_the_dtype_does_not_hold_is_refused(device, kernel, dtype, value):
    message = f"padding_value {value} does not fit x, which holds {np.dtype(dtype).name}"
    with pytest.raises(tk.CompileError, match=message):
        kernel(api.zeros(8, dtype).partition(8), api.zeros(6, dtype), value).sync()
    with pytest.raises(tk.CompileError, match=message):
        kernel(api.meta(8, dtype).partition(8), api.meta(6, dtype), value).compile(target="sm_90a")


@pytest.mark.parametrize(("dtype", "value"), [(tk.int8, -128), (tk.uint8, 255), (tk.int32, 2.0), (tk.bool_, 1), (tk.float16, 7)])
@pytest.mark.parametrize("kernel", [loaded, gathered], ids=lambda k: k.name)
def test_padding_that_it_holds_is_there(device, kernel, dtype, value):
    y = kernel(api.zeros(8, dtype).partition(8), api.zeros(6, dtype), value).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, np.array([0] * 6 + [value] * 2).astype(dtype))


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, np.uint64(2**63 + 5)])
def test_integers_of_64_bits_without_a_sign_are_passed(device, value):
    @tk.kernel
    def added(y: tk.InOut, a):
        y.store(y.load() + a)

    y = added(api.zeros(4, tk.uint64).partition(4), value).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, np.full(4, value, np.uint64))
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        added(api.zeros(4, tk.uint64).sync().partition(4), 2**64)
