"""A variable keeps its shape and dtype where paths meet: the compiler and the CPU device refuse the same kernels."""

import pytest
from lines import both_refuse, kernel_of, run

import tilekit as tk
from tilekit import api

T = "a float32 tile of shape (16,)"


@tk.function
def chosen(t, n):
    if n == 0:
        return t
    return tk.sum(t)


@pytest.mark.parametrize(
    ("lines", "name", "kinds"),
    [
        (["for i in range(1):", "    t = tk.sum(t)", "y.store(1.0)"], "t", {T, "a float32 tile of shape ()"}),
        (["for i in range(3):", "    t = t.astype(tk.float64)", "y.store(1.0)"], "t", {T, "a float64 tile of shape (16,)"}),
        (["s = 0", "for i in range(2):", "    s += t", "y.store(s)"], "s", {T, "a scalar (int)"}),
        (["if tk.bid(0) == 1:", "    t = tk.sum(t)", "y.store(t)"], "t", {T, "a float32 tile of shape ()"}),
        (["y.store(t if tk.bid(0) == 1 else tk.sum(t))", "y.store(t)"], "the value", {T, "a float32 tile of shape ()"}),
        (["y.store(chosen(t, tk.bid(0)))"], "the value", {T, "a float32 tile of shape ()"}),
        (
            ["i = 0", "while i < 3:", "    i += 1", "    if i == 1:", "        t = t > 0", "        continue",
             "    y.store(t.astype(tk.float32))"],
            "t", {T, "a bool tile of shape (16,)"},
        ),
        (
            ["for i in range(4):", "    if i == 2:", "        t = tk.sum(t)", "        break", "y.store(t)"],
            "t", {T, "a float32 tile of shape ()"},
        ),
        (
            ["i = tk.bid(0)", "while i < 9:", "    for j in range(2):", "        t = t + tk.zeros((2, 1))", "    i += 1",
             "    y.store(tk.sum(t))"],
            "t", {T, "a float32 tile of shape (2, 16)"},
        ),
    ],
)  # fmt: skip
def test_what_both_devices_refuse(lines, name, kinds):
    running, compiling = both_refuse(kernel_of(*lines, chosen=chosen))
    for error in (running, compiling):
        assert error.reason.startswith(f"{name} is ")
        assert all(kind in error.reason for kind in kinds)
        assert (
            "on every path through the kernel, and each time round a loop, a variable keeps its shape and dtype" in error.reason
        )
    if "chosen" not in lines[0]:
        assert running.lineno == compiling.lineno


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # assigned anew before it is used
        (["for i in range(3):", "    t = tk.load_tile_like(x, y)", "    t = t.astype(tk.float64)",
          "    y.store(t.astype(y.dtype))"], 1),
        (["for i in range(3):", "    for j in range(2):", "        u = tk.zeros(4)", "    u = tk.ones(16)", "y.store(u)"], 1),
        # not used afterwards
        (["if tk.bid(0) == 1:", "    t = tk.sum(t)", "y.store(2.0)"], 2),
        (["for i in range(4):", "    if i == 3:", "        t = tk.sum(t)", "        break", "    t = t + 1", "y.store(2.0)"], 2),
        (["while True:", "    t = tk.sum(t)", "    break", "y.store(t)"], 16),
        # a path that ends
        (["if tk.bid(0) == 9:", "    t = tk.sum(t)", "    y.store(t)", "    return", "y.store(t)"], 1),
        # no value yet
        (["for i in range(2):", "    if i == 0:", "        u = t", "    y.store(u)"], 1),
        # scalars
        (["s = 0", "for i in range(2):", "    s = s + 0.5", "y.store(s)"], 1),
        (["p = (t, 1)", "for i in range(2):", "    p = (p[0] + 1, p[1] + 0.5)", "y.store(p[0] * p[1])"], 6),
        # a function that is passed on is called with what the operation likes
        (["y.store(tk.reduce(t, 0, lambda a, b: a if a > b else b))"], 1),
        (["y.store(tk.reduce(t, 0, branching))"], 16),
    ],
)  # fmt: skip
def test_what_both_devices_take(device, lines, expected):
    def branching(a, b):
        c = a
        for _ in range(1):
            c = c + b
        return c

    assert run(kernel_of(*lines, branching=branching)).tolist() == [expected] * 64


def test_another_launch_may_have_other_tiles():
    """What a variable is belongs to a launch."""
    kernel = kernel_of("for i in range(2):", "    t = t + 1", "y.store(t)")
    with tk.use_device("cpu"):
        for tile in (16, 32):
            out = kernel(api.zeros(64).partition(tile), api.ones(64)).first().unpartition().to_host().sync()
            assert out.tolist() == [3.0] * 64


def test_the_last_assignment_is_pointed_at():
    running, compiling = both_refuse(kernel_of("for i in range(2):", "    t = t + 1", "    t = tk.sum(t)", "y.store(t)"))
    assert (running.lineno, compiling.lineno) == (6, 6)
    assert str(running).splitlines()[-2:] == ["    t = tk.sum(t)", "    ^"]
