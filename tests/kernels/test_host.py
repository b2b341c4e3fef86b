"""What all functions of `tilekit.kernels` have in common: ops as arguments, `out=`, errors that say what to do, laziness."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels


def refuse(call, error, *parts):
    with pytest.raises(error) as info:
        call()
    for part in parts:
        assert part in str(info.value)


def x(*shape, dtype=tk.float32):
    return api.zeros(shape, dtype).sync()


def test_ops_as_arguments_run_first_and_give_their_shape(device):
    op = kernels.softmax(api.ones((4, 8)))
    assert (op.shape, op.dtype) == ((4, 8), tk.float32)
    assert np.array_equal(op.to_host().sync(), np.full((4, 8), 0.125, np.float32))
    chained = kernels.rms_norm(kernels.silu(api.ones((4, 8))), api.ones(8)).then(kernels.softmax)
    assert np.allclose(chained.to_host().sync(), 0.125)
    unknown = api.ones((4, 8)).then(lambda t: tk.value(t))
    assert unknown.spec is None
    made = kernels.rms_norm(unknown, weight=api.ones(8))
    assert made.spec is None
    assert np.allclose(made.to_host().sync(), 1)


def test_nothing_happens_before_an_op_is_run(device):
    t = api.ones((4, 8)).sync()
    op = kernels.softmax(t, out=t)
    assert (t.to_host().sync() == 1).all()
    op.sync()
    assert (t.to_host().sync() == 0.125).all()


def test_messages_name_the_function(device):
    op = kernels.softmax(x(4, 8))
    assert op.label == "softmax"
    op.sync()
    with pytest.raises(ValueError, match="softmax.*has already run"):
        op.sync()


def test_mistakes_are_told_where_an_op_is_built(device):
    refuse(lambda: kernels.layer_norm(api.zeros((4, 8)), api.zeros(7), api.zeros(8)), ValueError, "weight has shape (7,)")
    refuse(lambda: kernels.softmax(api.zeros(4, tk.int32)), TypeError, "x holds int32")


def test_what_is_no_tensor(device):
    refuse(lambda: kernels.softmax([1.0]), TypeError, "softmax: x is a tensor or an op that produces one, not list")
    refuse(lambda: kernels.softmax(x(4).partition(4)), TypeError, "softmax: x is a tensor", "Partition")
    refuse(lambda: kernels.transpose(3.0), TypeError, "transpose: x is a tensor or an op that produces one, not float")
    refuse(lambda: kernels.softmax(x(4), out=[0.0] * 4), TypeError, "softmax: out is a tensor")


def test_dtypes(device):
    refuse(lambda: kernels.gelu(x(4, dtype=tk.int32)), TypeError, "gelu: x holds int32", "convert it with .astype(tk.float32)")
    refuse(
        lambda: kernels.l2_norm(x(4, dtype=tk.int32)), TypeError, "l2_norm: x holds int32", "convert it with .astype(tk.float32)"
    )
    refuse(lambda: kernels.softmax(x(4, dtype=tk.float8_e5m2)), TypeError, "x holds float8_e5m2")
    refuse(lambda: kernels.embedding(x(4, 4), x(4)), TypeError, "embedding: ids holds float32; it takes int32 and int64")
    refuse(lambda: kernels.cumsum(x(4, dtype=tk.uint8)), TypeError, "cumsum: x holds uint8", "int64")
    refuse(lambda: kernels.swiglu(x(4), x(4, dtype=tk.float16)), TypeError, "gate holds float32, up float16")


def test_shapes(device):
    ids = x(4, dtype=tk.int64)
    refuse(lambda: kernels.softmax(x()), ValueError, "softmax: a tensor without dimensions has no rows; reshape(1)")
    refuse(lambda: kernels.swiglu(x(4), x(5)), ValueError, "swiglu: gate has shape (4,), up (5,); they must be the same")
    refuse(lambda: kernels.softmax_backward(x(4), x(5)), ValueError, "grad has shape (4,), y (5,)")
    refuse(lambda: kernels.l2_norm_backward(x(4), x(5)), ValueError, "grad has shape (4,), x (5,)")
    refuse(lambda: kernels.add_rms_norm_backward(x(4), x(5), x(4), x(4)), ValueError, "h has shape (4,), grad_h (5,)")
    refuse(lambda: kernels.rms_norm(x(4, 8), x(4)), ValueError, "weight has shape (4,); rows of 8 elements need (8,)")
    refuse(lambda: kernels.cross_entropy(x(4, 8), x(3, dtype=tk.int64)), ValueError, "need a target of shape (4,), not (3,)")
    refuse(lambda: kernels.cross_entropy_backward(x(4), x(4, 8), ids, x(4)), ValueError, "grad is float32 of shape (4,)", "()")
    refuse(lambda: kernels.transpose(x(4)), ValueError, "has no two dimensions to exchange")
    refuse(lambda: kernels.embedding(x(4), ids), ValueError, "the table is a matrix", "(4,)")
    refuse(lambda: kernels.embedding_backward(x(5, 8), ids, 3), ValueError, "grad has shape (5, 8), ids (4,)")
    refuse(lambda: kernels.rope(x(4, 2, 7), x(4, 3), x(4, 3)), ValueError, "with an even size")
    refuse(lambda: kernels.rope(x(4, 2, 8), x(4, 8), x(4, 4)), ValueError, "cos has shape (4, 8)", "needs (4, 4)")
    refuse(lambda: kernels.argmax(x(4, 0)), ValueError, "rows without elements have no largest one")
    refuse(lambda: kernels.softmax(x(4, 8), out=x(8, 4)), ValueError, "out is float32 of shape (8, 4), the result is float32 of")
    refuse(lambda: kernels.l2_norm(x(4, 8), out=x(8, 4)), ValueError, "l2_norm: out is float32 of shape (8, 4)")
    refuse(lambda: kernels.l2_norm(x()), ValueError, "l2_norm: a tensor without dimensions has no rows")
    refuse(lambda: kernels.softmax(x(4, 8), out=x(4, 8, dtype=tk.float16)), ValueError, "out is float16")


def test_other_arguments(device):
    refuse(lambda: kernels.gelu(x(4), approximate="erf"), ValueError, """approximate is "none" or "tanh", not 'erf'""")
    refuse(lambda: kernels.l2_norm(x(4), "1"), TypeError, "l2_norm: eps is a number, not '1'")
    refuse(lambda: kernels.l2_norm(x(4), 0), ValueError, "l2_norm: eps is positive and finite, not 0")
    refuse(lambda: kernels.l2_norm_backward(x(4), x(4), -1.0), ValueError, "l2_norm_backward: eps is positive and finite")
    refuse(lambda: kernels.cumsum(x(4), reverse=1), TypeError, "cumsum: reverse is True or False, not 1")
    refuse(lambda: kernels.dropout(x(4), 1.5, 0), ValueError, "p is a probability, from 0 to 1, not 1.5")
    refuse(lambda: kernels.dropout(x(4), 0.5, 2**64), ValueError, "a seed is at least 0 and below 2**64")
    refuse(lambda: kernels.dropout(x(4), 0.5, 1.0), TypeError, "a seed is an int, not 1.0")
    refuse(lambda: kernels.cross_entropy(x(4, 8), x(4, dtype=tk.int64), reduction="max"), ValueError, '"mean", "sum" or "none"')
    refuse(
        lambda: kernels.gemm(x(4, 4), x(4, 4), precision=np.zeros(4)), ValueError, 'gemm: precision is "ieee", "tf32" or "fast"'
    )
    refuse(lambda: kernels.gemm(x(4, 4), x(4, 4), splits=np.zeros(4)), ValueError, "splits is an int from 1 on")
    refuse(lambda: kernels.topk(x(4, 8), 9), ValueError, "k is from 1 to 8 for rows of 8 elements, not 9")
    refuse(lambda: kernels.topk(x(4, 8), 2.0), TypeError, "k is an int, not 2.0")
    refuse(lambda: kernels.histogram(x(4, dtype=tk.int32), 0), ValueError, "bins is from 1 to 2**24, not 0")


def test_two_devices_do_not_meet(device):
    if device.kind != "cpu":
        pytest.skip("takes a second device: there may be one GPU only")
    t = api.zeros((4, 8)).on("cpu:0").sync()
    assert kernels.softmax(t).sync().device is tk.Device("cpu:0")


@pytest.mark.parametrize("name", kernels.__all__)
def test_every_function_says_what_it_does(name):
    assert getattr(kernels, name).__doc__, "a docstring"
