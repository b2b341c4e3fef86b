"""Rows in batches with gaps between these, of which no view is a matrix."""

import numpy as np
import pytest
import row_kernels

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import _host, _tiles

RNG = np.random.default_rng(7)


def batches(shape, dtype=np.float32):
    """A tensor with rows between its batches that are not its own."""
    b, m, n = shape
    whole = RNG.standard_normal((b, m + 3, n)).astype(dtype)
    return api.from_host(whole).sync()[:, :m]


CALLS = (
    row_kernels.CALLS
    | row_kernels.BACKWARD
    | {
        "add_rms_norm": lambda x, w: kernels.add_rms_norm(x, x, w),
        "cumsum": lambda x, w: kernels.cumsum(x),
        "cumsum, reverse": lambda x, w: kernels.cumsum(x, reverse=True),
        "argmax": lambda x, w: kernels.argmax(x),
        "topk": lambda x, w: kernels.topk(x, 3),
        "cross_entropy": lambda x, w: kernels.cross_entropy(x, api.zeros(x.shape[:-1], tk.int32).sync()),
    }
)


def on_host(results):
    return [tensor.numpy() for tensor in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("name", CALLS)
def test_they_are_as_others(device, name):
    x, weight = batches((3, 5, 32)), api.from_host(RNG.standard_normal(32).astype(np.float32)).sync()
    call = CALLS[name]
    expected = on_host(call(x.dup().sync(), weight).sync())
    for _ in range(3):
        for result, right in zip(on_host(call(x, weight).sync()), expected, strict=True):
            if name.endswith("norm_backward"):  # blocks have rows of one batch, and add up others
                np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("gaps", [True, False])
def test_out_may_have_gaps(device, gaps):
    x, y = batches((3, 5, 32)), batches((3, 5, 32))
    y = y if gaps else y.dup().sync()
    expected = kernels.softmax(x.dup().sync()).sync().numpy()
    op = kernels.softmax(x, out=y)
    assert op.spec.shape == x.shape
    assert op.sync() is y
    np.testing.assert_array_equal(y.numpy(), expected)
    assert kernels.softmax(x, out=x).sync() is x
    np.testing.assert_array_equal(x.numpy(), expected)


def test_mistakes_are_told_as_of_others(device):
    x = batches((3, 5, 32))
    with pytest.raises(ValueError, match=r"softmax: out is float32 of shape \(3, 5, 31\)"):
        kernels.softmax(x, out=api.zeros((3, 5, 31)).sync())
    with pytest.raises(TypeError, match="cumsum: x holds int8"):
        kernels.cumsum(batches((3, 5, 32), np.int8))


TAKEN = [
    "softmax", "log_softmax", "softmax_backward", "log_softmax_backward", "rms_norm", "layer_norm", "l2_norm", "l2_norm_backward",
]  # fmt: skip


@pytest.mark.parametrize("dealt", ["as here", "as on a GPU"])
@pytest.mark.parametrize("shape", [(3, 5, 32), (2, 3, 70000), (4, 70, 33)], ids=str)
@pytest.mark.parametrize("name", TAKEN)
def test_batches_are_taken_as_they_lie(device, monkeypatch, name, shape, dealt):
    """By the same kernels as matrices, which give the same; copies would be another launch, and twice the memory."""
    if dealt == "as on a GPU":
        for module in (_host, _tiles):
            monkeypatch.setattr(module, "on_cpu", lambda tensor: False)
    function = getattr(kernels, name)
    taken = [batches(shape), batches(shape)] if name.endswith("backward") else [batches(shape)]
    weights = {"rms_norm": 1, "layer_norm": 2}.get(name, 0)
    taken += [api.from_host(RNG.standard_normal(shape[-1]).astype(np.float32)).sync() for _ in range(weights)]
    expected = function(*(x.dup().sync() for x in taken)).sync().numpy()
    out = batches(shape)
    for op in (function(*taken), function(*taken, out=out)):
        parts = op.parts()
        assert len(parts) <= 2 and all(isinstance(part, tk.KernelLaunch) for part in parts)
        np.testing.assert_array_equal(op.sync().numpy(), expected)


@pytest.mark.parametrize("shape", [(3, 5, 32), (2, 3, 70000), (4, 70, 33)], ids=str)
def test_sums_of_batches_are_normalized_without_copies(device, shape):
    x, residual, weight = batches(shape), batches(shape), api.from_host(RNG.standard_normal(shape[-1]).astype(np.float32)).sync()
    op = kernels.add_rms_norm(x, residual, weight)
    op.consumed()
    one, few = shape[-1] <= 40000, ["kernel _add", "rms_norm"]  # of few long rows, which a GPU takes apart
    long = few if device.kind == "cuda" else ["kernel _add_rms_norm_long"]
    assert [part.label for part in op.parts()] == (["kernel _add_rms_norm"] if one else long)
    expected = on_host(kernels.add_rms_norm(x.dup().sync(), residual.dup().sync(), weight).sync())
    for result, right in zip(on_host(op.sync()), expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-6)
