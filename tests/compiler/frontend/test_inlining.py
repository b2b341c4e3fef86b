"""`@tk.function`: helpers of kernels are put into them, on the CPU device and by the compiler; their errors name both lines."""

import math
import re
import textwrap
import types

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

BM, K = tk.generics("BM K")
SCALE = 3


def run(kernel, *arguments, n=64, tile=16, **generics):
    """The output of a kernel; on a GPU as it is compiled, and its machine code is checked for what inlining must not leave."""
    op = kernel(api.zeros(n).partition(tile), *arguments)
    if generics:
        op = op.generics(**generics)
    return op.first().unpartition().to_host().sync()


def compiled(kernel, *arguments, n=64, tile=16, target="sm_90a", **generics):
    op = kernel(api.meta(n, tk.float32).partition(tile), *arguments)
    if generics:
        op = op.generics(**generics)
    return op.compile(target=target)


@tk.function
def scaled(t, by=2, *, plus=0):
    return t * by * K + plus


@tk.function
def twice(t):
    return scaled(t) + scaled(t, plus=1)


@tk.function
def clipped(t, low: tk.Const, high: tk.Const):
    if low is None:
        return tk.minimum(t, high)
    if high is None:
        return tk.maximum(t, low)
    return tk.minimum(tk.maximum(t, low), high)


@tk.function
def halves(t, half):
    return tk.extract(t, 0, half), tk.extract(t, 1, half)


@tk.function
def shape_of(t):
    return t.shape, t.dtype


@tk.function
def read(x, at, shape, mode=tk.PaddingMode.ZERO):
    return tk.load(x, at, shape, padding_mode=mode)


@tk.function
def write(y, t):
    y.store(t)


@tk.function
def powers(t, n):
    made = t
    for i in range(1, n):
        if i > 5:
            break
        made = made * t
    return made


def test_defaults_keywords_and_generics(device):
    @tk.kernel
    def k(y: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, y)
        y.store(twice(t) + scaled(plus=4, t=t, by=SCALE))

    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(run(k, api.from_host(x), K=5), x * 10 + x * 10 + 1 + x * 15 + 4)
    np.testing.assert_array_equal(run(k, api.from_host(x), K=1), x * 2 + x * 2 + 1 + x * 3 + 4)


def test_constants_choose_in_it(device):
    @tk.kernel
    def k(y: tk.Out, x: tk.In, low: tk.Const, high: tk.Const):
        y.store(clipped(tk.load_tile_like(x, y), low, high))

    x = np.arange(64, dtype=np.float32)
    for low, high in ((None, 9.0), (5.0, None), (5.0, 9.0)):
        wanted = np.clip(x, -math.inf if low is None else low, math.inf if high is None else high)
        np.testing.assert_array_equal(run(k, api.from_host(x), low, high), wanted)


@tk.function
def added(halves, t, twice=1.0):
    return halves + t * twice


def test_parameters_have_the_names_of_other_functions(device):
    """`halves` and `twice` stand in this module."""

    @tk.kernel
    def kernel(y: tk.InOut, twice: tk.Const):
        y.store(added(3.0, y.load()) + added(twice, y.load(), 2.0))

    np.testing.assert_array_equal(run(kernel, 4), [7.0] * 64)


@tk.function
def cast(t, to: tk.Const = tk.float32):
    return t.astype(to) if to != tk.float16 else t.astype(to) * 2


def test_types_tell_constants(device):
    """Dtypes of tensors and tiles, extents, what is computed of them, and what a function was itself told."""

    @tk.function
    def through(t, to: tk.Const):
        return cast(t, to)

    @tk.kernel
    def kernel(y: tk.InOut, x: tk.In):
        t = tk.load(x, (tk.bid(0),), (16,))
        n = t.shape[0] // 4
        kept = tk.sum(t.reshape((n, 4)), axis=n - 3)
        y.store(y.load() + through(t, x.dtype) + cast(t, to=y.dtype) + tk.sum(kept).astype(y.dtype))

    x = np.arange(64)
    for dtype, factor in ((tk.float16, 3), (tk.float32, 2)):
        expected = factor * x + np.repeat(x.reshape(4, 16).sum(1), 16)
        np.testing.assert_array_equal(run(kernel, api.from_host(x.astype(dtype))), expected)


def test_tensors_tuples_shapes_and_dtypes_pass(device):
    @tk.kernel
    def k(y: tk.Out, x: tk.In):
        t = read(x, tk.bid(0), (BM,))
        low, high = halves(t, BM // 2)
        shape, dtype = shape_of(low)
        write(y, tk.cat((high, low + tk.full(shape, 1, dtype)), 0))

    x = np.arange(64, dtype=np.float32)
    pairs = x.reshape(4, 2, 8)[:, ::-1].copy()
    pairs[:, 1] += 1
    np.testing.assert_array_equal(run(k, api.from_host(x), BM=16), pairs.reshape(-1))


def test_loops_branches_and_early_returns(device):
    @tk.function
    def sign(t, n):
        if n == 0:
            return t * 0.0
        for i in range(n):
            if i == 2:
                return t
        return -t

    @tk.kernel
    def k(y: tk.Out, x: tk.In, n):
        t = tk.load_tile_like(x, y)
        y.store(powers(sign(t, n), n + 1))

    x = (np.arange(64) % 9 - 4).astype(np.float32)
    for n, base in ((0, 0 * x), (1, -x), (2, -x), (3, x), (9, x)):
        np.testing.assert_array_equal(run(k, api.from_host(x), n), (base ** min(n + 1, 6)).astype(np.float32))


def test_closures_and_modules(device):
    offset = 7
    module = types.ModuleType("helpers")
    module.twice = twice

    @tk.function
    def shifted(t):
        return t + offset

    @tk.kernel
    def k(y: tk.Out, x: tk.In):
        y.store(module.twice(shifted(tk.load_tile_like(x, y))))

    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(run(k, api.from_host(x), K=1), 4 * (x + 7) + 1)


def test_functions_are_arguments_of_functions(device):
    @tk.function
    def applied(f, t, n=2):
        for _ in range(n):
            t = f(t)
        return t

    @tk.kernel
    def k(y: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, y)
        y.store(applied(twice, t) + applied(f=lambda u: u + K, t=t, n=3))

    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(run(k, api.from_host(x), K=1), 4 * (4 * x + 1) + 1 + x + 3)


def test_folds_inside_a_function_that_is_called_twice(device):
    """Both calls have shared memory of their own, or wait for each other."""

    @tk.function
    def normalised(t):
        return t - tk.max(t) + tk.reduce(t, 0, lambda a, b: tk.minimum(a, b))

    @tk.kernel(num_warps=8)
    def k(y: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, y)
        for _ in range(5):
            t = normalised(normalised(t) + 1.0)
        y.store(t)

    x = np.random.default_rng(0).integers(0, 99, 4096).astype(np.float32)
    wanted = x
    for _ in range(5):
        for plus in (1, 0):
            wanted = wanted - wanted.max() + wanted.min() + plus
    np.testing.assert_array_equal(run(k, api.from_host(x), n=4096, tile=4096), wanted)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_no_call_and_no_local_memory_is_left(target):
    @tk.function
    def larger(a, i, b, j):
        if a > b:
            return a, i
        return b, j

    @tk.kernel
    def k(y: tk.Out, x: tk.In):
        t = twice(tk.load_tile_like(x, y))
        best, at = tk.reduce((t, tk.arange(1024)), 0, larger)
        y.store(powers(t, 3) + best + at)

    made = compiled(k, api.meta(1024, tk.float32), n=1024, tile=1024, target=target, K=2)
    assert made.local_bytes == 0
    assert not re.search(r"\b(CALL|LDL|STL)\b", made.sass)
    assert ".func" not in made.ptx


# ------------------------------------------------------------------------------------------------------------------- errors


def refuse(kernel, *arguments, **generics):
    with pytest.raises(tk.CompileError) as caught:
        run(kernel, *arguments, **generics)
    return caught.value


@tk.function
def adds_seven(t):
    return t + tk.zeros(7)


@tk.function
def passes_on(t):
    return adds_seven(t * 2.0)


def test_an_error_inside_points_there_and_names_the_calls(device):
    @tk.kernel
    def k(y: tk.InOut):
        t = y.load()
        y.store(passes_on(t))

    error = refuse(k)
    first = k.source.tree.lineno
    outer = passes_on.function.__code__.co_firstlineno
    assert error.reason == (
        "zeros: every extent of a tile is a power of two; 7 in 7 is not: use 8; in adds_seven, which function passes_on calls in "
        f"line {outer + 2}: return adds_seven(t * 2.0), which kernel k calls in line {first + 2}: y.store(passes_on(t))"
    )
    assert error.line.strip() == "return t + tk.zeros(7)"
    assert error.line[error.column : error.column + error.width] == "tk.zeros(7)"
    assert error.filename == __file__


def test_of_two_calls_the_wrong_one_is_named(device):
    @tk.function
    def doubled(t):
        return t + tk.bitcast(t, tk.float32)

    @tk.kernel
    def k(y: tk.InOut):
        t = doubled(y.load())
        u = doubled(y.load().astype(tk.float64))
        y.store(t + u)

    error = refuse(k)
    first = k.source.tree.lineno
    words = f"; in doubled, which kernel k calls in line {first + 2}: u = doubled(y.load().astype(tk.float64))"
    assert error.reason.endswith(words)


def test_an_error_in_a_function_that_a_fold_calls(device):
    @tk.kernel
    def k(y: tk.InOut):
        y.store(y.load() + tk.reduce(y.load(), 0, lambda a, b: a + tk.zeros(7)))

    error = refuse(k)
    assert error.reason.startswith(
        "zeros: every extent of a tile is a power of two; 7 in 7 is not: use 8; in the_lambda, which kernel k"
    )
    assert error.line[error.column : error.column + error.width] == "tk.zeros(7)"


def test_recursion(device):
    @tk.kernel
    def k(y: tk.InOut):
        y.store(even(y.load()))

    error = refuse(k)
    assert error.reason.startswith(
        "even calls itself (even -> odd -> even): functions are put into the kernels that call them, so they cannot recurse; "
        "use a loop; in odd, which function even calls in line "
    )
    assert error.line.strip() == "return even(t)"


@tk.function
def even(t):
    return odd(t)


@tk.function
def odd(t):
    return even(t)


def test_arguments_that_do_not_fit(device):
    @tk.kernel
    def missing(y: tk.InOut):
        y.store(clipped(y.load(), 1.0))

    assert refuse(missing).reason.startswith("clipped: missing a required argument: 'high'; it is called as clipped(t, low")

    @tk.kernel
    def computed(y: tk.InOut):
        y.store(clipped(y.load(), None, tk.bid(0)))

    assert refuse(computed).reason == "clipped: high is a Const parameter: it must be known when the kernel is compiled"

    @tk.kernel
    def starred(y: tk.InOut):
        both = (1.0, 2.0)
        y.store(clipped(y.load(), *both))

    np.testing.assert_array_equal(run(starred), np.ones(64))


def test_a_generic_without_a_value(device):
    @tk.kernel
    def k(y: tk.InOut):
        y.store(scaled(y.load()))

    error = refuse(k)
    assert error.reason.startswith(
        "generic K is not bound: give it a value with .generics(K=...); in scaled, which kernel k calls"
    )


def test_what_python_cannot_do_in_kernels_it_cannot_here(device):
    @tk.function
    def listed(t):
        parts = {t, t}
        return parts

    @tk.kernel
    def k(y: tk.InOut):
        y.store(listed(y.load()))

    assert refuse(k).reason.startswith("sets do not exist in kernels: use a tuple; in listed, which kernel k calls")


def test_a_function_that_is_written_in_the_kernel_is_passed_on(device):
    """Of several statements and variables; with identities, which are floats."""

    @tk.kernel
    def kernel(y: tk.InOut):
        def merged(m, s, n, r):
            most = tk.maximum(m, n)
            left, right = s * tk.exp(m - most), r * tk.exp(n - most)
            return most, left + right

        def larger(a, b):
            return tk.maximum(a, b)

        t = y.load() + tk.arange(16)
        most, total = tk.reduce((t, tk.ones((16,))), 0, merged, (-1e30, 0.0))
        y.store(tk.scan(t, 0, larger, -1e30) - most - tk.log(total))

    log_sum = np.log(np.exp(np.arange(16.0)).sum())
    np.testing.assert_allclose(run(kernel), np.tile(np.arange(16) - log_sum, 4), rtol=1e-5)
    assert compiled(kernel).registers


def test_a_function_that_is_passed_on_sees_no_values_of_the_kernel(device):
    @tk.kernel
    def kernel(y: tk.InOut):
        factor = y.load()

        def larger(a, b):
            return tk.maximum(a, b * tk.sum(factor))

        y.store(tk.scan(y.load(), 0, larger))

    reason = "larger, which is passed on, sees its arguments and constants alone; factor is a value that the kernel computes"
    assert refuse(kernel).reason == reason


def test_a_lambda_sees_no_values_of_the_kernel(device):
    @tk.kernel
    def k(y: tk.InOut):
        t = y.load()
        y.store(tk.scan(t, 0, lambda a, b: a + b + t))

    assert refuse(k).reason == (
        "a lambda in a kernel sees its arguments and constants alone; t is a value that the kernel computes"
    )


def test_calling_one_outside_a_kernel():
    with pytest.raises(TypeError, match=r"scaled is a tk\.function: it works inside a function decorated with @tk\.kernel"):
        scaled(1.0)


def test_what_is_no_function():
    with pytest.raises(TypeError, match=r"@tk\.function decorates a function, not type"):
        tk.function(int)
    with pytest.raises(
        TypeError, match="parameter options is variadic keyword; kernels have no dictionaries: give each parameter a name"
    ):

        @tk.function
        def variadic(**options):
            return options


def test_a_variable_that_changes_round_a_loop():
    @tk.function
    def grows(t, n):
        made = t
        for _ in range(n):
            made = made.astype(tk.float64) + 1.0
        return made

    @tk.kernel
    def k(y: tk.Out, x: tk.In, n):
        y.store(grows(tk.load_tile_like(x, y), n).astype(tk.float32))

    with pytest.raises(tk.CompileError) as caught:
        compiled(k, api.meta(64, tk.float32), 3)
    assert caught.value.reason.startswith(
        "made is a float32 tile of shape (16,) and a float64 tile of shape (16,): on "
        "every path through the kernel, and each time round a loop, a variable keeps its shape and dtype; cast with "
        ".astype(...), or start from tk.zeros of the right shape and dtype; in grows, which kernel k calls in line "
    )
    assert caught.value.line.strip() == "made = made.astype(tk.float64) + 1.0"


@pytest.mark.parametrize(
    ("start", "step", "words"),
    [
        ("tk.zeros(16)", "acc + tk.load(x, (i, 0), (1, 16))", "a float32 tile of shape (16,)"),
        ("tk.zeros((1, 16), tk.int32)", "acc + tk.load(x, (i, 0), (1, 16))", "a int32 tile of shape (1, 16)"),
        ("0.0", "acc + tk.load(x, (i, 0), (1, 16))", "a scalar (float)"),
    ],
)
def test_what_changes_is_said_before_what_follows_from_it(tmp_path, start, step, words):
    """The store refuses the first type, too, and is typed before the loop."""
    path = tmp_path / "changing.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import tilekit as tk

            @tk.kernel
            def k(y: tk.Out, x: tk.In, n):
                acc = {start}
                for i in range(n):
                    acc = {step}
                y.store(acc)
            """
        )
    )
    import runpy

    k = runpy.run_path(str(path))["k"]
    with pytest.raises(tk.CompileError) as caught:
        k(api.meta((4, 16), tk.float32).partition((1, 16)), api.meta((4, 16), tk.float32), 3).compile(target="sm_90a")
    assert f"acc is {words} and a float32 tile of shape (1, 16): on every path" in caught.value.reason
    assert caught.value.lineno == 8


# ---------------------------------------------------------------------------------------------------- loops that carry tiles


def test_layouts_that_differ_round_a_loop(device):
    @tk.kernel
    def turn(y: tk.Out, x: tk.In, n):
        t = tk.load(x, (0, 0), (32, 32))
        best = tk.zeros((32, 32))  # a splat at first
        i = 0
        while i < n:
            t = tk.transpose(t) + 1.0
            i += 1
            if i == 3:
                continue
            if tk.sum(t) > 1e9:
                break
            if i % 2 == 0:
                best = tk.cumsum(t, 0)
            else:
                best = tk.sort(best + t, 0)
            if i == 6:
                break
        y.store(best + t)

    x = np.random.default_rng(1).integers(-9, 9, (32, 32)).astype(np.float32)

    def wanted(n):
        t, best, i = x, np.zeros_like(x), 0
        while i < n:
            t = t.T + 1
            i += 1
            if i == 3:
                continue
            best = np.cumsum(t, 0) if i % 2 == 0 else np.sort(best + t, 0)
            if i == 6:
                break
        return best + t

    for n in (0, 1, 2, 4, 9):
        np.testing.assert_array_equal(run(turn, api.from_host(x), n, n=(32, 32), tile=(32, 32)), wanted(n))


# ------------------------------------------------------------------------------------------------------- functions that change

EDITED = """
import tilekit as tk

@tk.function
def helper(t):
    return t + {plus}

@tk.kernel
def k(y: tk.InOut):
    y.store(helper(y.load()))
"""


def defined(path, plus):
    import runpy

    path.write_text(EDITED.format(plus=plus))
    return runpy.run_path(str(path))["k"]


def key(kernel):
    launch = kernel(api.meta(64, tk.float32).partition(64))
    launch._spent = True
    return launch._plan("compile").specialisation.key("sm_90a")


def test_its_text_decides_the_key_of_the_cache(tmp_path):
    first, again = key(defined(tmp_path / "a.py", 1)), key(defined(tmp_path / "a.py", 1))
    assert first is not None
    assert first == again
    assert key(defined(tmp_path / "a.py", 2)) != first


def test_what_it_takes_from_outside_decides_the_key():
    def make(value):
        @tk.function
        def plus(t):
            return t + value

        @tk.kernel
        def k(y: tk.InOut):
            y.store(plus(y.load()))

        return k

    assert key(make(1)) == key(make(1)) != key(make(2))
    assert key(make(1)) is not None


def test_a_definition_that_is_run_again_counts(device):
    """As when a notebook's cell is edited and run again, and the kernel's is not."""
    module = types.ModuleType("cell")
    module.helper = tk.function(_plus_one)

    @tk.kernel
    def k(y: tk.InOut):
        y.store(module.helper(y.load()))

    np.testing.assert_array_equal(run(k, n=4, tile=4), np.full(4, 1))
    module.helper = tk.function(_plus_two)
    np.testing.assert_array_equal(run(k, n=4, tile=4), np.full(4, 2))


def _plus_one(t):
    return t + 1


def _plus_two(t):
    return t + 2
