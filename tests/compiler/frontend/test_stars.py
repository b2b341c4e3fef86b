"""Stars in calls of functions, and functions that take any number of arguments."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

OPTIONS = {"by": 3.0, "plus": 1.0}
KINDS = {"dtype": tk.float32}
MISTAKEN = {1: 2.0}
SIZES = (8,)
X = np.arange(16, dtype=np.float32)


def run(kernel, *arguments):
    return kernel(api.zeros(16).partition(8), *arguments).out().sync().numpy()


def both(y, x):
    t = tk.load_tile_like(x, y)
    return t, t + 1.0


@tk.function
def axpy(a, x, y, plus=0.0):
    return a * x + y + plus


@tk.function
def scaled(t, *, by=1.0, plus=0.0):
    return t * by + plus


@tk.function
def total(first, *rest, factor=1.0):
    t = first
    for r in rest:
        t = t + r * factor
    return t * 100.0 if len(rest) == 0 else t


@tk.function
def handed_on(*parts):
    return total(*parts) + total(parts[0], *parts[1:], factor=2.0)


@tk.function
def filled(shape, value, dtype: tk.Const = tk.float32):
    return tk.full(shape, value, dtype)


@tk.function
def applied(function, *arguments):
    return function(*arguments)


@tk.function
def loaded(y, *tensors):
    t = tk.zeros(y.tile_shape)
    for x, factor in zip(tensors, (1.0, 10.0)):
        t = t + tk.load_tile_like(x, y) * factor
    return t


@tk.kernel
def of_a_result(y: tk.Out, x: tk.In, n):
    y.store(axpy(2.0, *both(y, x), plus=5.0) + axpy(*(1.0, *both(y, x)), n) + axpy(1.0, *both(y, x), n))


@tk.kernel
def of_a_variable(y: tk.Out, x: tk.In, n):
    pair = x, x
    window = x, n - 2, SIZES
    y.store(loaded(y, *pair) + tk.load(*window))


@tk.kernel
def any_number(y: tk.Out, x: tk.In, n):
    t, u = both(y, x)
    y.store(total(t) + total(t, u) + total(t, u, 3.0, factor=n) + total(*both(y, x)) + total(t, 1.0, 2.0))


@tk.kernel
def on_and_on(y: tk.Out, x: tk.In, n):
    y.store(handed_on(*both(y, x)) + handed_on(tk.load_tile_like(x, y)))


@tk.kernel
def of_constants(y: tk.Out, x: tk.In, n):
    arguments = (SIZES, 2.0)
    y.store(filled(*arguments) + filled(*arguments, tk.float32) + filled(SIZES, *(1.0,), **KINDS) + tk.zeros(8, **KINDS))


@tk.kernel
def by_name(y: tk.Out, x: tk.In, n):
    t = tk.load_tile_like(x, y)
    y.store(scaled(t, **OPTIONS) + scaled(t, by=2.0, plus=n))


@tk.kernel
def through_functions(y: tk.Out, x: tk.In, n):
    y.store(applied(axpy, 2.0, *both(y, x)) + applied(lambda u, v: u - v, *both(y, x)) + applied(total, *both(y, x), n))


@tk.kernel
def written_in_the_kernel(y: tk.Out, x: tk.In, n):
    def inner(s, /, *rest, plus=1.0):
        for r in rest:
            s = s + r
        return s + plus

    y.store(inner(*both(y, x), plus=n) + inner(n))


CASES = {
    of_a_result: lambda t, n: 2 * t + t + 1 + 5 + 2 * (t + t + 1 + n),
    of_a_variable: lambda t, n: 11 * t + np.tile(X[:8], 2),
    any_number: lambda t, n: 100 * t + (2 * t + 1) + (t + n * (t + 1) + 3 * n) + (2 * t + 1) + t + 3,
    on_and_on: lambda t, n: (2 * t + 1) + t + 2 * (t + 1) + 200 * t,
    of_constants: lambda t, n: 0 * t + 5,
    by_name: lambda t, n: 3 * t + 1 + 2 * t + n,
    through_functions: lambda t, n: 2 * t + t + 1 - 1 + 2 * t + 1 + n,
    written_in_the_kernel: lambda t, n: 2 * t + 1 + n + n + 1,
}


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_it_is_called_as_python_calls_it(device, kernel):
    np.testing.assert_array_equal(run(kernel, api.from_host(X), 2), CASES[kernel](X, 2))


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_no_call_is_left(kernel):
    meta = api.meta(16, tk.float32)
    compiled = kernel(meta.partition(8), meta, 2).compile(target="sm_90a")
    assert ".func" not in compiled.ptx


def test_tensors_of_a_tuple_that_the_kernel_gets(device):
    @tk.kernel
    def kernel(y: tk.Out, parts):
        y.store(loaded(y, *parts) + total(*parts[2:] if len(parts) > 2 else (1.0, 2.0)))

    x = api.from_host(X).sync()
    np.testing.assert_array_equal(run(kernel, (x, x)), 11 * X + 3)


def test_a_dictionary_that_changes_counts(device):
    options = {"by": 2.0}

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In):
        y.store(scaled(tk.load_tile_like(x, y), **options))

    x = api.from_host(X).sync()
    np.testing.assert_array_equal(run(kernel, x), 2 * X)
    options["by"] = 3.0
    np.testing.assert_array_equal(run(kernel, x), 3 * X)


# ------------------------------------------------------------------------------------------------------------------- errors


def too_many(y, x, n):
    y.store(axpy(*both(y, x), *both(y, x), 1.0))


def too_few(y, x, n):
    y.store(axpy(*both(y, x)))


def twice(y, x, n):
    y.store(axpy(1.0, *both(y, x), a=2.0))


def no_such_name(y, x, n):
    y.store(axpy(*both(y, x), 1.0, factor=2.0))


def computed(y, x, n):
    y.store(filled(*(SIZES, 1.0, n)))


def computed_of_a_result(y, x, n):
    three = (SIZES, 1.0, n) if n > 1 else (SIZES, 2.0, n)
    y.store(filled(*three))


def no_tuple(y, x, n):
    y.store(axpy(*n))


def no_dictionary(y, x, n):
    y.store(scaled(tk.load_tile_like(x, y), **n))


def no_names(y, x, n):
    y.store(scaled(tk.load_tile_like(x, y), **MISTAKEN))


def keywords_twice(y, x, n):
    y.store(scaled(tk.load_tile_like(x, y), by=1.0, **OPTIONS))


def passed_on(y, x, n):
    y.store(tk.reduce(tk.load_tile_like(x, y), 0, total))


def keyword_parameters(y, x, n):
    def inner(t, **options):
        return t

    y.store(inner(1.0))


_AXPY = "axpy: {}; it is called as axpy(a, x, y, plus)"
_WRITTEN = (
    "what stands behind ** is a dictionary of the module, or is written there, with names for its keys: a kernel has no other "
    "dictionaries; write the keywords out, name=value"
)
REFUSED = {
    too_many: _AXPY.format("too many positional arguments"),
    too_few: _AXPY.format("missing a required argument: 'y'"),
    twice: "axpy: a is given twice; it is called as axpy(a, x, y, plus=0.0)",
    no_such_name: "axpy: got an unexpected keyword argument 'factor'; it is called as axpy(a, x, y, plus=0.0)",
    computed: "filled: dtype is a Const parameter: it must be known when the kernel is compiled",
    computed_of_a_result: "filled: dtype is a Const parameter: it must be known when the kernel is compiled",
    no_tuple: "only tuples can be unpacked in a kernel",
    no_dictionary: f"**n: {_WRITTEN}",
    no_names: f"**MISTAKEN: {_WRITTEN}",
    keywords_twice: "scaled: by is given twice",
    passed_on: "total, which is passed on, takes plain parameters, and no *args",
    keyword_parameters: "**options does not exist in kernels, which have no dictionaries: give each parameter a name",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_does_not_fit(device, function):
    with pytest.raises(tk.CompileError) as caught:
        run(tk.kernel(function), api.from_host(X), 2)
    assert caught.value.reason == REFUSED[function]
    assert caught.value.filename == __file__
