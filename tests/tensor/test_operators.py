"""Python's operators on tensors and partitions: a TypeError whose line can be copied, never identity."""

import operator
import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor", "matmul"]
COMPARE = ["lt", "le", "gt", "ge"]
VIEWS = {"tensor": lambda x: x, "partition": lambda x: x.partition(4), "scattered": lambda x: x.scattered()}


@pytest.fixture(params=VIEWS)
def pair(request, cpu):
    make = VIEWS[request.param]
    a, b = api.arange(1, 9, dtype=tk.int32).sync(), api.full(8, 2, tk.int32).sync()
    return make(a), make(b)


def dense(view):
    return view if isinstance(view, tk.Tensor) else view.unpartition()


def lines(error):
    """The code in a message."""
    return re.findall(r"`([^`]*)`", str(error.value))


def on_host(code, x, y):
    return eval(code, {"x": x, "y": y, "np": np})


@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_an_operator_shows_the_line_for_the_host_and_for_a_kernel(pair, name):
    x, y = pair
    function = getattr(operator, name)
    a, b = dense(x).numpy(), dense(y).numpy()
    for left, right in ((x, y), (x, 2), (2, x), (x, np.int32(2)), (b, x), (x, b)):
        if not isinstance(left, type(x)) and name in COMPARE:
            continue  # Python swaps them, and the operator
        with pytest.raises(TypeError, match="does not calculate with Tensor") as caught:
            function(left, right)
        host = lines(caught)[-1]
        if name != "matmul" or isinstance(left, type(right)):
            values = {"x": a, "y": b}
            given = {"x": x, "y": right if left is x else left}
            expected = function(*(values["x"] if v is x else (b if v is y else v) for v in (left, right)))
            np.testing.assert_array_equal(eval(host, given), expected)
    with pytest.raises(TypeError, match="on the device"):
        function(x, y)


@tk.kernel
def by_the_message(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) * tk.load_tile_like(y, z))


def test_the_line_for_a_kernel_is_one(cpu):
    x, y = api.full(8, 3.0).sync(), api.full(8, 2.0).sync()
    with pytest.raises(TypeError) as caught:
        _ = x * y
    assert lines(caught)[0] == "z.store(tk.load_tile_like(x, z) * tk.load_tile_like(y, z))"
    z = api.zeros(8).sync()
    by_the_message(z.partition(4), x, y).sync()
    assert z.numpy().tolist() == [6.0] * 8
    with pytest.raises(TypeError, match=r"`z.store\(tk.load_tile_like\(x, z\) \* 2.5\)`"):
        _ = x * 2.5
    with pytest.raises(TypeError, match=r"`z.store\(2 - tk.load_tile_like\(x, z\)\)`"):
        _ = 2 - x
    with pytest.raises(TypeError, match=r"run `kernels.gemm\(x, y\).sync\(\)`"):
        _ = x @ y
    assert callable(kernels.gemm)


@pytest.mark.parametrize("change", ["iadd", "imul", "ipow", "ior"])
def test_nothing_is_changed_in_place(pair, change):
    x, y = pair
    with pytest.raises(TypeError, match="on the device store it in a kernel"):
        getattr(operator, change)(x, y)


def test_equality_is_never_identity(pair):
    x, y = pair
    for compare, symbol in ((operator.eq, "=="), (operator.ne, "!=")):
        for other in (y, x):
            with pytest.raises(TypeError, match=f"x {symbol} y does not compare Tensor") as caught:
                compare(x, other)
            whole, elements = lines(caught)
            assert on_host(whole, x, other) is ((x is other) is (symbol == "=="))
            assert on_host(elements, x, other) is ((x is other) is (symbol == "=="))
        with pytest.raises(TypeError) as caught:
            compare(x, None)
        assert on_host(lines(caught)[0], x, None) is (symbol == "!=")
        for scalar in (2, 2.0, np.ones(8), "text"):
            for left, right in ((x, scalar), (scalar, x)):
                with pytest.raises(TypeError, match="does not compare Tensor"):
                    compare(left, right)
        with pytest.raises(TypeError) as caught:
            compare(x, 2)
        np.testing.assert_array_equal(on_host(lines(caught)[0], x, 2), compare(dense(x).numpy(), 2))


def test_hash_and_containers_go_by_identity(pair):
    x, y = pair
    assert hash(x) == object.__hash__(x)
    assert {x: 1, y: 2}[y] == 2
    assert len({x, y, x}) == 2
    assert x in [x, y]
    assert x in (x,)
    assert [x, y].index(x) == 0
    assert (x, 1) == (x, 1)
    with pytest.raises(TypeError, match="`x is y`"):
        _ = y in [x]


@pytest.mark.parametrize(
    ("use", "line"),
    [
        (lambda x: -x, "-x.numpy()"),
        (lambda x: +x, "+x.numpy()"),
        (lambda x: ~x, "~x.numpy()"),
        (abs, "abs(x.numpy())"),
        (lambda x: 3 in x, "value in x.numpy()"),
        (np.asarray, "x.numpy()"),
        (np.array, "x.numpy()"),
        (lambda x: x.cpu(), "x.numpy()"),
        (lambda x: x.item(), "x.numpy().item()"),
        (lambda x: x.tolist(), "x.numpy().tolist()"),
        (lambda x: x.sum(), "x.numpy().sum()"),
    ],
)
def test_what_else_reads_elements_shows_the_line(pair, use, line):
    x, _ = pair
    with pytest.raises(TypeError) as caught:
        use(x)
    assert lines(caught)[-1] == (line if isinstance(x, tk.Tensor) else line.replace("x.", "x.unpartition()."))
    if not line.startswith("value") and ".item" not in line:
        eval(lines(caught)[-1], {"x": x})


@pytest.mark.parametrize("kind", [int, float, complex])
def test_a_number_is_read_by_a_line(cpu, kind):
    x = api.full(1, 3.0).sync()
    for view in (x, x.partition(1)):
        with pytest.raises(TypeError) as caught:
            kind(view)
        assert eval(lines(caught)[0], {"x": view}) == 3


def test_a_partition_is_read_whole(cpu):
    x = api.ones(8).sync().partition(4)
    assert x.to_host().sync().tolist() == x.numpy().tolist() == [1.0] * 8
    with pytest.raises(AttributeError, match="'Partition' object has no attribute 'nothing'"):
        _ = x.nothing


def test_attributes_of_other_arrays_are_missing_for_those_who_ask(pair):
    for view in pair:
        assert not hasattr(view, "tolist")
        assert not hasattr(view, "item")
        assert getattr(view, "cpu", None) is None
        assert not hasattr(view, "__array_interface__")
        with pytest.raises(AttributeError):
            _ = view.item
