"""What types know is a compile-time value on both devices: arithmetic with it, and branches that it decides."""

import numpy as np
import pytest
from lines import both_refuse, kernel_of, run

import tilekit as tk
from tilekit import api


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("t.shape[0] // 2", 8),
        ("t.shape[0] + t.ndim - 1", 16),
        ("2 * t.shape[0] * t.ndim", 32),
        ("t.shape[0] % 3 + 1", 2),
        ("2 ** (t.ndim + 1)", 4),
        ("pow(2, t.ndim)", 2),
        ("1 << t.ndim", 2),
        ("t.shape[-1] >> 1", 8),
        ("t.shape[0] & 24 | 0 ^ 0", 16),
        ("-t.ndim + 2", 1),
        ("~t.ndim + 4", 2),
        ("abs(-t.ndim)", 1),
        ("min(t.shape[0], 4)", 4),
        ("max(t.shape[0], 64, t.ndim)", 64),
        ("tk.cdiv(t.shape[0], 3) + 2", 8),
        ("divmod(t.shape[0], 4)[0]", 4),
        ("len(t.shape) * 2", 2),
        ("len(x.shape) * 4", 4),
        ("x.ndim * 4", 4),
        ("sum(t.shape)", 16),
        ("math.prod(t[:, None].shape) // 2", 8),
        ("t.shape[t.ndim - 1]", 16),
        ("t[:, None].shape[t.ndim]", 1),
        ("(t.shape + (4,))[t.ndim]", 4),
        ("y.tile_shape[0] // 4", 4),
        ("x.dtype.itemsize * t.dtype.itemsize", 16),
        ("tk.float16.itemsize", 2),
        ("t.shape[0].bit_length() - 1", 4),
        ("int(t.ndim == 1)", 1),
        ("(t.ndim == 1) + (t.dtype == tk.float32)", 2),
        ("(t.dtype in (tk.float16, tk.float32)) + 1", 2),
        ("2 if t.ndim == 1 else 4", 2),
        ("4 if 1 < t.ndim < 4 else 8", 8),
        ("t.ndim == 1 and 4", 4),
        ("t.ndim == 2 or 8", 8),
        ("4 if not t.ndim == 2 and x.dtype != tk.float16 else 3", 4),
    ],
)
def test_expressions_of_what_types_know_are_tile_shapes(device, expression, value):
    kernel = kernel_of(f"n = {expression}", "y.store(tk.sum(tk.ones((n,))))")
    assert run(kernel).tolist() == [value] * 64


def test_axes_ranges_and_assignments(device):
    kernel = kernel_of(
        "u = t[:, None] * tk.ones((1, t.shape[0] // 4))",
        "last = u.ndim - 1",
        "last += 0",
        "s, n = tk.sum(u, last), 0",
        "for k in range(u.shape[last].bit_length()):",
        "    n = n + k",
        "for extent in u.shape:",
        "    n = n + extent",
        "y.store(s + n)",
    )
    assert run(kernel).tolist() == [4 + 3 + 20] * 64


def test_what_changes_round_a_loop_is_not_known(device):
    kernel = kernel_of("n = t.shape[0]", "while n > 1:", "    t = t + 1", "    n = n // 2", "y.store(t)")
    assert run(kernel).tolist() == [5.0] * 64
    shape = kernel_of("n = t.shape[0]", "for i in range(2):", "    y.store(tk.sum(tk.zeros(n)))", "    n = n * 2")
    with pytest.raises(tk.CompileError, match="zeros: the tile shape must be known when the kernel is compiled"):
        shape(api.meta(64).partition(16), api.meta(64)).compile(target="sm_80")


@pytest.mark.parametrize(
    "lines",
    [
        ("if t.ndim == 2:", "    t = tk.sum(t, 1)", "y.store(t)"),
        ("if t.ndim == 1:", "    u = t", "else:", "    u = tk.sum(t, 1)", "y.store(u)"),
        ("if t.ndim == 2 and t.shape[1] > 4 or t.dtype == tk.int32:", "    t = tk.sum(t, 1)", "y.store(t)"),
        ("y.store(tk.sum(t, 1) if t.ndim == 2 else t)",),
        # one decision after the other
        ("u = t[:, None] if t.ndim == 1 else t", "v = tk.sum(u, 1) if u.ndim == 2 else tk.sum(u, 2)", "y.store(v)"),
        ("u = None", "if t.ndim == 1:", "    u = t * 0", "if u is not None:", "    t = t + u", "y.store(t)"),
        ("u = t", "for i in range(2):", "    if t.dtype == tk.int8:", "        u = tk.zeros(3)", "y.store(u)"),
        ("y.store(rows(t))",),
        ("y.store(rows(rows(t[:, None] * 1.0)))",),
        ("if x.dtype == tk.uint8:", "    y.store(tk.full(16, 1, tk.float64))", "y.store(t)"),
    ],
)  # fmt: skip
def test_branches_that_types_decide(device, lines):
    assert run(kernel_of(*lines, rows=rows)).tolist() == [1.0] * 64


@tk.function
def rows(t):
    if t.ndim == 2:
        return tk.sum(t, 1)
    return t


def test_a_branch_is_kept_where_what_decides_it_may_change(device):
    """The first turn alone has a known n: no reason to drop the other path."""
    kernel = kernel_of(
        "n = t.ndim",
        "for i in range(3):",
        "    if n == 1:",
        "        s = t",
        "    else:",
        "        s = t.astype(tk.float64)",
        "    n = n + i",
        "    y.store(s.astype(tk.float32))",
    )
    running, compiling = both_refuse(kernel)
    for error in (running, compiling):
        assert error.reason.startswith("s is a float32 tile of shape (16,)")
        assert error.lineno == 9


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("t.shape[0] // 2 == 8", True),
        ("t.shape[0] // 2 == 4", False),
        ("t.ndim == 1 and t.shape[0] == 16", True),
        ("t.ndim == 1 and t.shape[0] == 8", False),
        ("t.shape == (16,)", True),
        ("0 < t.ndim < 2", True),
        ("t.dtype == tk.float16 or x.dtype.name == 'int8'", False),
    ],
)
def test_static_assertions(device, condition, holds):
    kernel = kernel_of(f'tk.static_assert({condition}, "as I said")', "y.store(t)")
    if holds:
        assert run(kernel).tolist() == [1.0] * 64
    else:
        assert {error.reason for error in both_refuse(kernel)} == {"static_assert: as I said"}


@pytest.mark.parametrize("condition", ["t.shape[0] == 8", "t.ndim == 1 and t.shape[0] == 8", "y.tile_shape[0] * 2 == 8"])
def test_a_static_assertion_is_told_before_what_comes_after_it(condition):
    kernel = kernel_of(f'tk.static_assert({condition}, "tiles of eight")', "y.store(tk.zeros(3))")
    for error in both_refuse(kernel):
        assert (error.reason, error.lineno) == ("static_assert: tiles of eight", 4)


def test_an_error_on_the_path_that_is_taken_stays():
    kernel = kernel_of("if t.ndim == 1:", "    t = tk.sum(t, 1)", "y.store(t)")
    for error in both_refuse(kernel):
        assert (error.reason, error.lineno) == ("sum: axis 1 of a tile with 1 dimensions; there are -1 to 0", 5)


def test_numba_kernels_are_typed_as_ever():
    """The templates answer only while a kernel of tilekit's is compiled."""
    from numba import cuda

    def plain(out):
        out[0] = out.ndim + 1

    ptx, result = cuda.compile_ptx(plain, "void(int64[:])", cc=(8, 0))
    assert "st.global" in ptx or "st." in ptx
    assert "void" in str(result) or "none" in str(result)


def plus(a, b):
    return a + b


class Elsewhere:
    @staticmethod
    def larger(a, b):
        return tk.maximum(a, b)


first_of_two = (lambda a, b: a, lambda a, b: b)[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y.store(tk.reduce(t, 0, plus))", [16] * 16),
        ("y.store(tk.scan(t, axis=0, func=plus))", list(range(1, 17))),
        ("y.store(tk.reduce(t, 0, tools.larger))", [1] * 16),
        ("y.store(tk.reduce(t, 0, tk.maximum))", [1] * 16),
    ],
)
def test_plain_functions_fold_and_scan(device, line, expected):
    assert run(kernel_of(line, plus=plus, tools=Elsewhere)).tolist() == 4 * expected


def test_a_lambda_of_several_in_one_place_is_refused_on_both_devices():
    """Which one is meant, its code does not say."""
    kernel = kernel_of("y.store(tk.reduce(t, 0, first_of_two))", first_of_two=first_of_two)
    for error in both_refuse(kernel):
        assert error.reason == "function the_lambda: a function that kernels call is defined with def"


def test_a_plain_function_with_any_number_of_arguments_is_refused_on_both_devices():
    def many(*values):
        return values[0]

    for error in both_refuse(kernel_of("y.store(tk.reduce(t, 0, many))", many=many)):
        assert "many, which is passed on, takes plain parameters, and no *args" in error.reason


def test_a_plain_function_is_part_of_the_kernel():
    """Another definition under its name is another specialisation."""
    kernel = kernel_of("y.store(tk.reduce(t, 0, plus))", plus=plus)
    with tk.use_device("cpu"):
        assert run(kernel)[0] == 16
        kernel._function.__globals__["plus"] = Elsewhere.larger
        assert run(kernel)[0] == 1


def test_constants_fold_in_chains_of_comparisons(device):
    BM = tk.generics("BM")
    kernel = kernel_of("if 0 < BM < 8:", "    y.store(t)", "else:", "    y.store(nothing.there)", BM=BM, nothing=np)
    op = kernel(api.zeros(64).partition(16), api.ones(64)).generics(BM=4)
    assert op.first().unpartition().to_host().sync()[0] == 1.0
