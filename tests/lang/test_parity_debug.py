"""What kernels print, and where they stop. A GPU's lines come in any order."""

# ruff: noqa: PT009 - tk.assert_ is none of unittest's

import numpy as np
import pytest
from parity import run, sample
from scale import kernel_of

import tilekit as tk
from tilekit import api


@tk.kernel
def show(x: tk.In, k, f):
    t = tk.load(x, tk.bid(0), 4)
    tk.printf("%d %5.2f|%+.3e|%-4d|%x %%\n", tk.bid(0), t, f, k, t.astype(tk.int32) * -1)


def test_printf_writes_what_c_writes(device, printed):
    x = np.array([1.5, 2.25, -3, 4, 5, 6, 7, 8], np.float32)
    show(api.from_host(x), 7, 2.5).grid((2, 1, 1)).sync()
    expected = [
        f"{i // 4} {v:5.2f}|+2.500e+00|7   |{(-int(v)) % 2**32:x} %" for i, v in enumerate(x.tolist())
    ]  # fmt: skip
    assert sorted(printed().splitlines()) == sorted(expected)


def test_printf_of_scalars_is_one_line_a_block(device, printed):
    @tk.kernel
    def line():
        tk.printf("block %d of %u\n", tk.bid(0), tk.num_blocks(0))

    line().grid((3, 1, 1)).sync()
    assert sorted(printed().splitlines()) == [f"block {i} of 3" for i in range(3)]


def test_printf_of_several_tiles_broadcasts(device, printed):
    @tk.kernel
    def table(x: tk.In):
        t = tk.load(x, 0, 4)
        tk.printf("%d+%d=%d\n", t[:, None], t[None, :], t[:, None] + t[None, :])

    table(api.arange(4)).grid((1, 1, 1)).sync()
    assert sorted(printed().splitlines()) == sorted(f"{i}+{j}={i + j}" for i in range(4) for j in range(4))


@pytest.mark.parametrize(
    "dtype", [tk.bool_, tk.int8, tk.uint8, tk.int64, tk.uint64, tk.float16, tk.bfloat16, tk.float64], ids=str
)
def test_printf_of_every_kind_of_element(device, printed, dtype):
    letter = "g" if dtype in (tk.float16, tk.bfloat16, tk.float64) else "d"
    kernel = kernel_of(f'tk.printf("%{letter}\\n", tk.load(a, 0, 8))', 1, 0, "InOut", "shown")
    x = sample(dtype, n=8)
    kernel(api.zeros(8).partition(8), api.from_host(x)).sync()
    wide = x.astype(np.float64) if letter == "g" else x.astype(np.int64)
    assert sorted(printed().splitlines()) == sorted(f"%{letter}" % value for value in wide.tolist())


def test_print_and_printf_keep_their_place_in_a_line_of_text(device, printed):
    kernel = kernel_of('tk.printf("a line without values, 100%%\\n")\ntk.print("x", 1.5, True)', 0, 0, "InOut", "said")
    kernel(api.zeros(8).partition(8)).sync()
    assert sorted(printed().splitlines()) == ["a line without values, 100%", "x 1.5 True"]


@tk.kernel
def checked(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y)
    tk.assert_(t >= 0, "no negative numbers")
    tk.assert_(tk.bid(0) < 100)
    y.store(tk.sqrt(t))


def test_assertions_that_hold_change_nothing(device):
    x = np.abs(sample(tk.float32, n=100))
    np.testing.assert_array_equal(run(checked, tk.float32, x), np.sqrt(x))


def test_an_assertion_that_does_not_hold_names_kernel_line_block_and_element(cpu):
    x = np.ones(128, np.float32)
    x[70] = -1
    with pytest.raises(tk.DeviceError) as caught:
        run(checked, tk.float32, x, n=128, tile=64)
    message = str(caught.value)
    assert "kernel checked, block (1, 0, 0): assert_: no negative numbers at element (6,)" in message
    assert 'tk.assert_(t >= 0, "no negative numbers")' in message


def test_an_assertion_of_a_scalar(cpu):
    @tk.kernel
    def few(y: tk.Out):
        tk.assert_(tk.bid(0) < 1)
        y.store(0.0)

    with pytest.raises(tk.DeviceError, match=r"kernel few, block \(1, 0, 0\): assert_: the condition does not hold"):
        few(api.zeros(4).partition(2)).sync()


def both_refuse(body, message):
    """The two devices say the same, at the last line of the body."""
    kernel = kernel_of(body, 0, 0, "InOut", "refused")
    with pytest.raises(tk.CompileError) as caught:
        kernel(api.zeros(8).partition(8)).sync()
    with pytest.raises(tk.CompileError) as compiling:
        kernel(api.meta(8).partition(8)).compile(target="sm_80")
    for error in (caught.value, compiling.value):
        assert message in error.reason
        assert error.lineno == 2 + len(body.splitlines())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('tk.printf("%s", 1)', "printf: '%s' in the format is no directive"),
        ('tk.printf("%d %d", 1)', "printf: the format takes 2 values, and 1 are given"),
        ('tk.printf("%d", 1.5)', "printf: %d does not print a value of float64; e, f or g does"),
        ('tk.printf("%f", tk.bid(0))', "printf: %f does not print a value of int"),
        ('tk.printf("%d", y)', "printf: values are scalars and tiles, not "),
        (
            "tk.assert_(y.load())",
            "assert_: the condition is a bool scalar or a bool tile, such as the result of a comparison, not a ",
        ),
        ("tk.assert_(1)", "assert_: the condition is a bool scalar or a bool tile"),
        ("tk.assert_(tk.bid(0) == 0, 1)", "assert_: the message is a string known when the kernel is compiled, not "),
        ('tk.static_assert(y.ndim == 2, "y has rows")', "static_assert: y has rows"),
        ("tk.static_assert(y.tile_shape[0] > 8)", "static_assert: the condition does not hold"),
        ("tk.static_assert(False)", "static_assert: the condition does not hold"),
        ("tk.static_assert(y.load() > 0)", "static_assert: the condition must be known when the kernel is compiled"),
        ("tk.static_print(y)", "static_print: values are constants, dtypes and tiles, not "),
    ],
)
def test_what_is_refused_in_the_same_words(device, body, message):
    both_refuse(body, message)


def test_static_assertions_of_what_types_know(device):
    kernel = kernel_of(
        """
        t = y.load()[:, None]
        tk.static_assert(y.ndim == 1, "rank")
        tk.static_assert(t.shape[1] == 1)
        tk.static_assert((t.ndim == 2) & (y.tile_shape[0] <= 8))
        y.store(1.0)
        """, 0, 0, "InOut", "known",
    )  # fmt: skip
    kernel(api.meta(8).partition(8)).compile(target="sm_90a")
    assert kernel(api.zeros(8).partition(8)).first().unpartition().to_host().sync().tolist() == [1.0] * 8


def test_a_computed_condition_is_no_static_one():
    kernel = kernel_of("tk.static_assert(tk.bid(0) == 0)\ny.store(1.0)", 0, 0, "Out", "computed")
    with pytest.raises(tk.CompileError, match="must be known when the kernel is compiled; tk.assert_ looks at values"):
        kernel(api.meta(8).partition(8)).compile(target="sm_80")


def test_static_print_says_what_is_known(device, printed):
    kernel = kernel_of('tk.static_print("t", y.load() > 0, 3, tk.float16, y.tile_shape)\ny.store(1.0)', 0, 0, "InOut", "looked")
    kernel(api.zeros(16).partition(8)).sync()
    assert printed() == "t bool tile of shape (8,) 3 float16 (8,)\n"
