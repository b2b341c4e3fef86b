"""Ready-made kernels on tensors beyond 2^31 elements, blocks or rows, as launches and machine code: none is refused for its size.

What they compute there is compared with PyTorch's in `tests/gpu/test_large.py`.
"""

from __future__ import annotations

import math

import pytest

pytest.importorskip("numba.cuda", reason="compiles kernels")

import tilekit as tk
from tilekit import api, kernels
from tilekit.compiler.grids import AXIS_LIMITS

H, F, I8 = tk.float16, tk.float32, tk.int8
N, ROW = 3_000_000_005, 2_200_000_000  # elements; a row beyond 2^31


def m(*shape, dtype=H):
    return api.meta(shape, dtype)


def launches_in(op):
    """All launches that an op is made of."""
    op.consumed()
    waiting, found = [op], []
    while waiting:
        op = waiting.pop()
        if isinstance(op, tk.KernelLaunch):
            found.append(op)
        waiting += reversed(op.parts())
    return found


HEADS = m(5000, 16, 64, 64)

# What is launched; how many tiles of indices in 64 bits the launches ask for; whether a grid is folded.
CASES = {
    "cumsum of long rows": (lambda: kernels.cumsum(m(2, ROW)), 0, True),
    "cumsum of many rows": (lambda: kernels.cumsum(m(ROW, 2)), 0, False),
    "transpose": (lambda: kernels.transpose(m(70_000 * 128, 512)), 0, True),
    "transpose of many": (lambda: kernels.transpose(m(N, 2, 2)), 0, True),
    "argmax of a long row": (lambda: kernels.argmax(m(1, ROW)), 1, False),
    "topk of a long row": (lambda: kernels.topk(m(1, ROW), 8), 1, True),
    "topk of many rows": (lambda: kernels.topk(m(ROW, 4), 2), 0, False),
    "histogram": (lambda: kernels.histogram(m(N, dtype=tk.int32), 256), 0, False),
    "histogram in the L2 cache": (lambda: kernels.histogram(m(N, dtype=tk.int64), 1 << 16), 0, False),
    "softmax of long rows": (lambda: kernels.softmax(m(2, ROW)), 0, True),
    "softmax of many rows": (lambda: kernels.softmax(m(ROW, 2)), 0, False),
    "layer_norm of a long row": (lambda: kernels.layer_norm(m(1, ROW), m(ROW), m(ROW)), 1, True),
    "l2_norm of a long row": (lambda: kernels.l2_norm(m(1, ROW)), 0, True),
    "l2_norm_backward of a long row": (lambda: kernels.l2_norm_backward(m(1, ROW), m(1, ROW)), 0, True),
    "rms_norm_backward of a long row": (lambda: kernels.rms_norm_backward(m(1, ROW), m(1, ROW), m(ROW)), 1, True),
    "cross_entropy of many rows": (lambda: kernels.cross_entropy(m(ROW, 2), m(ROW, dtype=tk.int64)), 2, False),
    "cross_entropy of many classes": (lambda: kernels.cross_entropy(m(1, ROW), m(1, dtype=tk.int32)), 1, False),
    "embedding": (lambda: kernels.embedding(m(N, 1024), m(N, dtype=tk.int32)), 0, True),
    "embedding of short rows": (lambda: kernels.embedding(m(N, 2), m(N, dtype=tk.int32)), 1, False),
    "embedding_backward": (lambda: kernels.embedding_backward(m(N, 2), m(N, dtype=tk.int32), 7), 1, False),
    "dropout": (lambda: kernels.dropout(m(N), 0.5, 1), 0, False),
    "gelu": (lambda: kernels.gelu(m(N)), 0, False),
    "gemm": (lambda: kernels.gemm(m(ROW, 16), m(16, 16)), 0, False),
    "attention_backward of many heads": (lambda: kernels.attention_backward(*[HEADS] * 5, m(5000, 16, 64, dtype=F)), 0, True),
}


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_is_refused_for_its_size(name):
    make, indices, folded = CASES[name]
    launches = launches_in(make())
    constants = [tk.int64 in [a for a in launch.arguments if isinstance(a, type(tk.int64))] for launch in launches]
    assert sum(constants) >= indices
    grids = [launch._plan("test").grid for launch in launches]
    beyond = [any(n > limit for n, limit in zip(grid, AXIS_LIMITS, strict=True)) for grid in grids]
    assert any(beyond) == folded
    for launch in launches:
        launch._spent = True


@pytest.mark.parametrize(
    "name",
    ["argmax of a long row", "layer_norm of a long row", "cross_entropy of many classes", "histogram", "embedding of short rows"],
)
def test_it_compiles(name):
    for launch in launches_in(CASES[name][0]()):
        made = launch.compile(target="sm_90a")
        assert made.local_bytes == 0


def test_a_histogram_of_more_elements_than_an_int32_counts_is_int64():
    """One bin may have them all."""
    sizes = {size: kernels.histogram(m(size, dtype=tk.int32), 8) for size in (2**31 - 1, 2**31)}
    assert {size: op.spec.dtype for size, op in sizes.items()} == {2**31 - 1: tk.int32, 2**31: tk.int64}
    for op in sizes.values():
        op.consumed()


def test_no_block_of_a_histogram_counts_more_than_an_int32_holds():
    (launch,) = launches_in(kernels.histogram(m(2**40, dtype=tk.int32), 256))
    blocks, tile = math.prod(launch._plan("test").grid), launch.arguments[4]
    assert -(-(2**40 // tile) // blocks) * tile < 2**31
