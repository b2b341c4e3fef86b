"""Binding generics and constants: what folds, what stays, what is an error; and that nothing of the user's is changed."""

import inspect
import sys
import textwrap

import numpy as np
import pytest

import tilekit as tk
from tilekit.compiler import specialise
from tilekit.compiler.frontend.source import KernelSource
from tilekit.errors import CompileError
from tilekit.lang.annotations import Generic

BM, BN = tk.generics("BM BN")
S = tk.generics("*S")
WIDTH = 16


@pytest.fixture(autouse=True)
def _any_statement(monkeypatch):
    """These functions return values, which kernels do not; test_syntax.py has what a kernel may say."""
    monkeypatch.setattr(specialise, "check_syntax", lambda source: None)


def bound(function, constants=None, **generics):
    return specialise.bind(function, KernelSource(function), generics, constants or {})


def constants_of(function):
    return set(function.__code__.co_consts)


def test_generics_become_integers_and_expressions_fold():
    def f(x):
        return (BM // 2, BM * BN + 1, -BM, BM > BN, min(BM, BN))

    made = bound(f, BM=64, BN=32)
    assert made.function(0) == (32, 2049, -64, True, 32)
    assert (32, 2049, -64, True, 32) in constants_of(made.function), "the whole tuple is a constant, so nothing is computed"
    assert isinstance(BM, Generic)


def test_a_whole_shape_is_a_tuple():
    def f():
        return S, S[0] * S[1], len(S)

    assert bound(f, S=(4, 8)).function() == ((4, 8), 32, 2)


def test_globals_that_are_integers_fold_and_closures_are_kept():
    scale, helper = 3, np.array([7])

    def f(x):
        return x * (WIDTH // 4) * scale + helper[0]

    made = bound(f)
    assert made.function(1) == 19
    assert made.outside == {"helper": helper}


def test_branches_on_constants_disappear():
    def f(x):
        if BM > 32:
            x = x + 1
        else:
            x = undefined_name(x)  # noqa: F821
        return 1 if BM == 64 else undefined_name  # noqa: F821

    assert bound(f, BM=64).function(1) == 1


def test_a_local_name_shadows_a_generic():
    def f(BM):
        return BM + 1

    assert bound(f, BM=64).function(1) == 2


def scale(t):
    return t * 100.0


@pytest.mark.parametrize("value", [False, None, 3])
def test_a_const_shadows_a_function_of_the_module(value):
    def f(x, scale):
        return scale, x if scale else -x, scale is None, scale == 3

    assert bound(f, {"scale": value}).function(1) == (value, 1 if value else -1, value is None, value == 3)


def test_const_parameters_leave_the_signature():
    def f(x, n, flag, dtype):
        return x * n if flag else dtype

    made = bound(f, {"n": 5, "flag": True, "dtype": tk.float32})
    assert made.names == ("x",)
    assert list(inspect.signature(made.function).parameters) == ["x"]
    assert made.function(2) == 10
    assert bound(f, {"n": 5, "flag": False, "dtype": tk.float32}).function(2) is tk.float32


def test_padding_modes_become_strings():
    def f():
        return tk.PaddingMode.NEG_INF

    assert bound(f).function() == "-inf"


def test_an_unbound_generic_is_named_where_it_is_used():
    def f(x):
        return x + BN

    with pytest.raises(CompileError, match=r"generic BN is not bound: give it a value with \.generics\(BN=\.\.\.\)") as caught:
        bound(f, BM=1)
    assert caught.value.line.strip() == "return x + BN"
    assert str(caught.value).splitlines()[-1].index("^") == str(caught.value).splitlines()[-2].index("BN")


def test_assigning_to_a_const_is_an_error():
    def f(n):
        n = n + 1
        return n

    with pytest.raises(CompileError, match="n is a Const parameter: the kernel cannot assign to it"):
        bound(f, {"n": 1})


def test_an_impossible_constant_expression_is_an_error():
    def f():
        return BM // (BM - BM)

    with pytest.raises(CompileError, match="division"):
        bound(f, BM=4)


def test_users_globals_are_not_touched():
    def f():
        return BM

    before = dict(globals())
    bound(f, BM=4).function()
    assert globals() == before


def test_lines_and_columns_survive():
    def f(x):
        y = x + BM
        return y // (x - x)

    made = bound(f, BM=4)
    with pytest.raises(ZeroDivisionError) as caught:
        made.function(1)
    error = made.source.error_from("here", caught.value.__traceback__)
    assert error.line.strip() == "return y // (x - x)"
    assert error.line[error.column : error.column + error.width] == "y // (x - x)"


def test_a_lambda_is_no_kernel():
    with pytest.raises(CompileError, match="a kernel is a function defined with def"):
        KernelSource(lambda x: x)


def test_source_that_is_not_there():
    names = {}
    exec("def f(x): return x", names)
    with pytest.raises(CompileError, match="its source cannot be read"):
        KernelSource(names["f"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12 (PEP 695)")
def test_type_parameters_are_generics(tmp_path):
    path = tmp_path / "typed.py"
    path.write_text(
        textwrap.dedent(
            """
            import tilekit as tk

            def f[BM, *S](y: tk.Out[BM], x: tk.In[*S]):
                return BM * 2, S
            """
        )
    )
    import runpy

    from tilekit.lang.signature import read_signature

    f = runpy.run_path(str(path))["f"]
    signature = read_signature(f, {})
    assert set(signature.generics) == {"BM", "S"}
    assert signature.generics["S"].whole
    assert bound(f, BM=4, S=(1, 2)).function(0, 0) == (8, (1, 2))
