"""Attention and its gradients against PyTorch, which takes both in float64 on the GPU."""

from __future__ import annotations

import pytest

import tilekit as tk
from tilekit import kernels

# PyTorch's, of the thread in which autograd runs; it finds the context by itself.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")

# Of the largest element: weights and their gradients are rounded to 16 bits before they are multiplied.
TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 4e-6}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def attended(torch, q, k, v, causal, window):
    """Attention of `(heads, length, head size)`, and the logarithms of the sums; zeros where a query sees no key."""
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    place = torch.arange(q.shape[1], device="cuda")[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1], device="cuda")[None, :]
    seen = torch.ones((q.shape[1], k.shape[1]), dtype=torch.bool, device="cuda")
    if causal:
        seen &= key <= place
    if window is not None:
        seen &= (key - place).abs() < window
    scores = (q @ k.transpose(1, 2) * q.shape[2] ** -0.5).masked_fill(~seen, -torch.inf)
    some = seen.any(1)[:, None]
    weights = torch.where(some, torch.softmax(torch.where(some, scores, 0.0), -1), 0.0)
    return weights @ v, torch.logsumexp(scores, -1)


def normal(torch, shape, dtype, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64).to(dtype)


def check(torch, found, wanted, dtype):
    for ours, theirs in zip(found, wanted, strict=True):
        ours = torch.from_dlpack(ours).double()
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * max(theirs.abs().max(), 1.0)


def with_gradients(torch, tensors, grad, run):
    """What `run` gives of these tensors in float64, and the gradients."""
    exact = [x.double().requires_grad_() for x in tensors]
    y, lse = run(*exact)
    y.backward(grad.double())
    return y.detach(), lse.detach(), [x.grad for x in exact]


@pytest.mark.parametrize(
    ("dtype", "size", "lengths", "options"),
    [
        ("float16", 64, (200, 300), {"causal": True}),
        ("float16", 128, (256, 256), {}),
        ("bfloat16", 128, (300, 77), {"causal": True}),
        ("float32", 64, (300, 200), {"causal": True}),
    ],
    ids=str,
)
def test_gradients(device, torch, options, lengths, size, dtype):
    """Of grouped queries; where there are more of them than keys, the first see none."""
    queries, keys = lengths
    shapes = [(2, 4, queries, size), (2, 2, keys, size), (2, 2, keys, size), (2, 4, queries, size)]
    *tensors, grad = (normal(torch, shape, getattr(torch, dtype), seed) for seed, shape in enumerate(shapes))
    masks = (options.get("causal", False), options.get("window"))

    def run(q, k, v):
        each = [attended(torch, *one, *masks) for one in zip(q, k, v, strict=True)]
        return [torch.stack(parts) for parts in zip(*each, strict=True)]

    wanted, sums, gradients = with_gradients(torch, tensors, grad, run)
    q, k, v, g = (tk.as_tensor(x) for x in (*tensors, grad))
    y, lse = kernels.attention(q, k, v, return_lse=True, **options).sync()
    check(torch, [y], [wanted], dtype)
    torch.testing.assert_close(torch.from_dlpack(lse).double(), sums, rtol=1e-5, atol=1e-5)
    for deterministic in (False, True):
        made = kernels.attention_backward(g, q, k, v, y, lse, deterministic=deterministic, **options).sync()
        check(torch, made, gradients, dtype)


@pytest.mark.parametrize(
    ("dtype", "size", "options"), [("float16", 64, {"window": 70}), ("bfloat16", 128, {"causal": True})], ids=str
)
def test_gradients_of_packed_sequences(device, torch, options, size, dtype):
    starts = [[0, 5, 5, 305, 306, 434, 500], [0, 5, 12, 212, 215, 343, 600]]
    (queries, keys), group = (s[-1] for s in starts), 2
    shapes = [(queries, 2 * group, size), (keys, 2, size), (keys, 2, size), (queries, 2 * group, size)]
    *tensors, grad = (normal(torch, shape, getattr(torch, dtype), seed) for seed, shape in enumerate(shapes))
    masks = (options.get("causal", False), options.get("window"))

    def run(q, k, v):
        made = []
        for first, last, begin, end in zip(starts[0], starts[0][1:], starts[1], starts[1][1:], strict=False):
            one = q[first:last], k[begin:end], v[begin:end]
            made.append(attended(torch, *(x.transpose(0, 1) for x in one), *masks))
        return torch.cat([y for y, _ in made], 1).transpose(0, 1), torch.cat([lse for _, lse in made], 1)

    wanted, sums, gradients = with_gradients(torch, tensors, grad, run)
    given = [tk.as_tensor(x) for x in (*tensors, *(torch.tensor(s, dtype=torch.int32, device="cuda") for s in starts))]
    y, lse = kernels.attention_varlen(*given, return_lse=True, **options).sync()
    check(torch, [y], [wanted], dtype)
    torch.testing.assert_close(torch.from_dlpack(lse).double(), sums, rtol=1e-5, atol=1e-5)
    made = kernels.attention_varlen_backward(tk.as_tensor(grad), *given[:3], y, lse, *given[3:], **options).sync()
    check(torch, made, gradients, dtype)
