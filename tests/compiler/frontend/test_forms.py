"""Forms of Python that mean on both devices what they mean in Python: helpers, builtins, loops that are written out."""

import numpy as np
import pytest
from lines import both_refuse, kernel_of, results, run

import tilekit as tk

X = np.arange(64, dtype=np.float32)
BY = tk.generics("BY")


def scaled(t, by=2.0):
    return t * by


def chosen(t, n):
    if n == 0:
        return scaled(t, by=3.0)
    return t


def stopped(t):
    for i in range(4):
        if i == 2:
            return t + i
    return t


half = lambda t: t * 0.5  # noqa: E731


def stores(expected, *lines, **names):
    """See that every way to run the lines stores the same."""
    for result in results(*lines, **names):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y.store(scaled(t))", 2 * X),
        ("y.store(scaled(t, 4.0) + scaled(by=0.5, t=t))", 4.5 * X),
        ("y.store(chosen(t, 0) + chosen(t, 1))", 4 * X),
        ("y.store(chosen(t, tk.bid(0)))", np.where(np.arange(64) < 16, 3 * X, X)),
        ("y.store(stopped(t))", X + 2),
        ("y.store(half(t))", X / 2),
        ("y.store(half(scaled(t)))", X),
    ],
)
def test_plain_functions_and_lambdas_are_helpers(line, expected):
    """No decorator is needed: whatever of the user's a kernel calls is put into it."""
    stores(expected, line, scaled=scaled, chosen=chosen, stopped=stopped, half=half)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("both = (t, 2.0); y.store(tk.maximum(*both))", np.maximum(X, 2)),
        ("y.store(t.reshape((*t.shape, 1)).reshape((*(*t.shape, 1)[:-1],)))", X),
        ("at = (tk.bid(0),); y.store(tk.load(x, *((*at,), t.shape)))", X),
        ("add = lambda a, b, c: a + b * c; y.store(add(t, *(2.0, 3.0)))", X + 6),
        ("n = tk.bid(0); pair = (t, t) if n == 0 else (t, -t); y.store(tk.where(t < 0, *pair))", np.where(X < 16, X, -X)),
    ],
)
def test_a_star_takes_a_tuple_apart(line, expected):
    stores(expected, *line.split("; "))


@pytest.mark.parametrize(
    "condition",
    ["tk.sum(t) > 120 and tk.bid(0) < 3", "not (tk.bid(0) >= 3 or tk.max(t) < 16)", "0 < tk.bid(0) + 0 < 3",
     "tk.bid(0) == 1 or tk.min(t) == 32", "not tk.sum(t) <= 120 and not tk.bid(0) == 3"],
)  # fmt: skip
def test_conditions_of_tiles_of_one_element_and_of_numbers(condition):
    """What they have in common is whether they hold."""
    expected = X + np.repeat([0.0, 1, 1, 0], 16)
    stores(expected, f"if {condition}:", "    t = t + 1", "y.store(t)")
    stores(expected, f"y.store(t + 1 if {condition} else t)")


def test_an_error_in_a_plain_helper_names_the_call():
    for error in both_refuse(kernel_of("y.store(wrong(t))", wrong=wrong)):
        assert error.line.strip() == "return tk.sum(t, 1)"
        assert "; in wrong, which kernel k calls in " in error.reason


def wrong(t):
    return tk.sum(t, 1)


def test_a_plain_helper_that_calls_itself_is_refused():
    for error in both_refuse(kernel_of("y.store(endless(t))", endless=endless)):
        assert "endless calls itself" in error.reason


def endless(t):
    return endless(t) + 1


def test_functions_that_are_written_in_the_kernel():
    """They see the variables around them as these are when they are called."""
    stores(X * 5 + 1, "a = 2.0", "def by(u, more=1.0):", "    return u * a + more", "a = 5.0", "y.store(by(t))")
    stores(X * 3 + 7, "f = lambda u, v: u * 3 + v", "g = lambda u: f(u, v=7)", "y.store(g(t))")
    stores(X + 6, "s = 0", "add = lambda n: s + n", "for i in range(4):", "    s = add(i)", "y.store(t + s)")


def applied(function, t):
    return function(t) + 1


def test_functions_that_are_written_in_the_kernel_are_passed_to_helpers():
    stores(X * 3 + 3, "a = 2.0", "f = lambda u: u * 3 + a", "y.store(applied(f, t))", applied=applied)


def test_two_functions_that_call_each_other_are_refused():
    kernel = kernel_of("f = lambda u: g(u)", "g = lambda u: f(u)", "y.store(f(t))")
    for error in both_refuse(kernel):
        assert error.reason.startswith("the lambda calls itself: recursion does not exist in kernels")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y.store(min(t, 9.0))", np.minimum(X, 9)),
        ("y.store(max(t, t * -1, 4))", np.maximum(X, 4)),
        ("y.store(max((t, 2 * t)))", 2 * X),
        ("y.store(min(3, 5, t))", np.minimum(X, 3)),
        ("y.store(t * 0 + max(t))", np.repeat(X.reshape(4, 16).max(1), 16)),
        ("y.store(t * 0 + sum(t))", np.repeat(X.reshape(4, 16).sum(1), 16)),
        ("y.store(t * 0 + sum(t, 3.0))", np.repeat(X.reshape(4, 16).sum(1), 16) + 3),
        ("y.store(sum((t, t, 1.0)))", 2 * X + 1),
        ("y.store(abs(-t))", X),
        ("y.store(round(t / 2))", np.round(X / 2)),
        ("y.store(t + min(2, 3) + sum((1, 2)) + round(2.6) + abs(-1))", X + 9),
    ],
)
def test_builtins_take_tiles(line, expected):
    stores(expected, line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("y.store(sum(t[:, None] * t))", "sum: of a tile with 2 dimensions say along which: tk.sum(tile, axis)"),
        ("y.store(round(t, 2))", "round: of a tile it takes nothing else: elements are rounded to integers"),
        ("y.store(any((t, t)))", "if: a tile has no single truth value"),
    ],
)
def test_builtins_that_tiles_do_not_have(line, reason):
    for error in both_refuse(kernel_of(line)):
        assert error.reason.startswith(reason)


def test_print_takes_tiles(device, printed):
    """It is tk.print, on numbers as well."""
    run(kernel_of("print('block', tk.bid(0))", "if tk.bid(0) == 1:", "    print('t', t * 0.5)", "y.store(t)"))
    lines = printed().splitlines()
    assert lines.count("block 2") == 1 and lines.count("t [3] 0.5") == 1


@pytest.mark.parametrize(
    ("expression", "shape"),
    [("t[None]", (1, 16)), ("t[..., None]", (16, 1)), ("t[None, ...]", (1, 16)), ("t[:, None]", (16, 1)), ("t[...]", (16,)),
     ("t[None, :, None]", (1, 16, 1)), ("t[:, None][..., None]", (16, 1, 1)), ("t[:, None][None]", (1, 16, 1))],
)  # fmt: skip
def test_dimensions_are_inserted(expression, shape):
    stores(X, f"u = {expression}", f"tk.static_assert(u.shape == {shape})", "y.store(u.reshape(16))")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("for i in tk.static_range(4):", "    t = t + tk.sum(tk.ones(2 ** i))"), X + 15),
        (("for i in tk.static_range(6, 0, -2):", "    t = t + i"), X + 12),
        (("for n in (1, 2, 4):", "    t = t + tk.sum(tk.ones(n))"), X + 7),
        (("for u, n in ((t, 2), (t * 2, 4)):", "    t = t + u * tk.sum(tk.ones(n))"), X * 11),
        (("for i, n in enumerate((4, 2)):", "    t = t + i * tk.sum(tk.ones(n))"), X + 2),
        (("for n, m in zip((4, 2), (1, 3)):", "    t = t + m * tk.sum(tk.ones(n))"), X + 10),
        (("for i in tk.static_range(8):", "    if i == 3:", "        break", "    if i == 1:", "        continue",
          "    t = t + i"), X + 2),
        (("for n in (1, 2, 4):", "    if tk.bid(0) + 1 < n:", "        break", "    t = t + n"),
         X + np.repeat([1.0, 3, 3, 7], 16)),
        (("for n in (1, 2, 4):", "    if tk.bid(0) == n:", "        continue", "    t = t + n"),
         X + np.repeat([7.0, 6, 5, 7], 16)),
        (("for n in (1, 2):", "    if n == 5:", "        break", "else:", "    t = t + 1"), X + 1),
        (("parts = (t, t * 2)", "s = 0.0", "for n in t.shape:", "    s = s + n", "t = parts[1] + s"), X * 2 + 16),
    ],
)  # fmt: skip
def test_loops_over_constants_are_written_out(lines, expected):
    """What they count is known in each turn: it may be a shape, an axis, an index of a tuple."""
    stores(expected, *lines, "y.store(t)")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("for u in x.tiles(16)[1:3]:", "    t = t + u"), X + np.tile(X[16:32] + X[32:48], 4)),
        (("for u in tk.pipelined(x.tiles(16)[2:]):", "    t = t + u"), X + np.tile(X[32:48] + X[48:], 4)),
        (("row = x.tiles(16)[:1]", "for u in row:", "    t = t + u"), X + np.tile(X[:16], 4)),
        (("u = t[:, None]", "t = t + tk.sum(tk.ones(u.shape[:1] + u.shape[-1:]))"), X + 16),
        (("s = (t, t * 2, t * 3)[1:]", "t = s[0] + s[-1]"), 5 * X),
        (("a, (b, c) = 1, (2, t)", "t = a + b + c"), X + 3),
        (("k = 0", "while True:", "    k += 1", "    if k > 3:", "        break", "t = t + k"), X + 4),
        (("u = divmod(t, 4)", "t = u[0] * 4 + u[1] + pow(t, 2)"), X + X * X),
    ],
)  # fmt: skip
def test_slices_by_constants_and_other_forms_of_pythons(lines, expected):
    stores(expected, *lines, "y.store(t)")


def test_what_such_a_loop_assigns_is_there_behind_it():
    stores(X + 3, "for i in tk.static_range(1, 4):", "    u = t + i", "y.store(u)")
    stores(X + 3, "for i in (1, 3):", "    u = t + i", "y.store(u)")


def test_static_range_takes_constants():
    for error in both_refuse(kernel_of("for i in tk.static_range(x.shape[0]):", "    t = t + i", "y.store(t)")):
        assert error.reason.startswith("static_range: its bounds are ints that are known when the kernel is compiled")
