"""The functions of `tilekit.torch.ops`: what PyTorch demands of operators, and values and gradients against its own."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

import tilekit.torch  # noqa: E402
from tilekit.torch import ops  # noqa: E402

F = torch.nn.functional
STARTS = torch.tensor([0, 5, 17], dtype=torch.int32)
IDS = torch.tensor([[3, 0, 3], [7, 9, 1]])
CLASSES = torch.tensor([4, 0, -100, 32, 8, 8, 1])
ANGLES = torch.linspace(0.0, 3.0, 40).reshape(5, 8)


def rope(x, cos, sin):
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def packed(q, k, v, *starts):
    parts = [[x[begin:end].transpose(0, 1) for x in (q, k, v)] for begin, end in ((0, 5), (5, 17))]
    return torch.cat([F.scaled_dot_product_attention(*part).transpose(0, 1) for part in parts])


def rows(x, weight, bias):
    return F.layer_norm(x, (33,), weight, bias)


def sums_norm(x, residual, weight):
    h = x + residual
    return torch.cat([F.rms_norm(h, (33,), weight, 1e-6), h])


def attended(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def no_dropout(x):
    return ops.dropout(x, 0.0, 7)


# The function, PyTorch's, and the shapes of its arguments (tensors stand for themselves).
CASES = {
    "softmax": (ops.softmax, lambda x: x.softmax(-1), [(7, 33)]),
    "log_softmax": (ops.log_softmax, lambda x: x.log_softmax(-1), [(2, 3, 33)]),
    "layer_norm": (ops.layer_norm, rows, [(7, 33), (33,), (33,)]),
    "rms_norm": (ops.rms_norm, lambda x, w: F.rms_norm(x, (33,), w, 1e-6), [(2, 7, 33), (33,)]),
    "add_rms_norm": (lambda *given: torch.cat(ops.add_rms_norm(*given)), sums_norm, [(2, 7, 33), (2, 7, 33), (33,)]),
    "l2_norm": (ops.l2_norm, lambda x: F.normalize(x, dim=-1), [(2, 7, 33)]),
    "l2_norm, short rows": (lambda x: ops.l2_norm(x, 6.0), lambda x: F.normalize(x, dim=-1, eps=6.0), [(9, 33)]),
    "cumsum": (ops.cumsum, lambda x: x.cumsum(-1), [(2, 7, 33)]),
    "cumsum, reverse": (lambda x: ops.cumsum(x, reverse=True), lambda x: x.flip(-1).cumsum(-1).flip(-1), [(7, 33)]),
    "cross_entropy": (ops.cross_entropy, F.cross_entropy, [(7, 33), CLASSES]),
    "losses": (
        lambda x, t: ops.cross_entropy(x, t, reduction="none"), lambda x, t: F.cross_entropy(x, t, reduction="none"),
        [(7, 33), CLASSES],
    ),
    "gelu": (ops.gelu, F.gelu, [(7, 33)]),
    "gelu tanh": (lambda x: ops.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), [(7, 33)]),
    "silu": (ops.silu, F.silu, [(7, 33)]),
    "swiglu": (ops.swiglu, lambda gate, up: F.silu(gate) * up, [(7, 33), (7, 33)]),
    "dropout": (no_dropout, lambda x: x * 1.0, [(7, 33)]),
    "embedding": (ops.embedding, lambda table, ids: F.embedding(ids, table), [(20, 33), IDS]),
    "transpose": (ops.transpose, lambda x: x.mT, [(7, 33)]),
    "transpose, batches": (ops.transpose, lambda x: x.mT, [(2, 3, 7, 33)]),
    "rope": (ops.rope, rope, [(2, 5, 3, 16), ANGLES.cos(), ANGLES.sin()]),
    "gemm": (ops.gemm, lambda a, b: a @ b, [(7, 33), (33, 20)]),
    "gemm, factor": (lambda a, b: ops.gemm(a, b.T, alpha=0.5), lambda a, b: 0.5 * a @ b.T, [(7, 33), (20, 33)]),
    "gemm, rows in a batch": (ops.gemm, lambda a, b: a @ b, [(3, 7, 33), (33, 20)]),
    "gemm, one for a batch": (ops.gemm, lambda a, b: a @ b, [(7, 33), (3, 33, 20)]),
    "gemm, batches": (ops.gemm, lambda a, b: a @ b, [(3, 7, 33), (3, 33, 20)]),
    "attention": (lambda q, k, v: ops.attention(q, k, v, causal=True), attended, [(2, 4, 17, 16)] * 3),
    "attention_varlen": (ops.attention_varlen, packed, [(17, 4, 16)] * 3 + [STARTS, STARTS]),
}  # fmt: skip
HALF_PRECISION_ONLY = ("attention", "attention_varlen")  # and float32, but not float64
OPERATORS = {
    "softmax": [(7, 33)],
    "log_softmax": [(2, 3, 33)],
    "layer_norm": [(7, 33), (33,), (33,)],
    "rms_norm": [(2, 7, 33), (33,)],
    "add_rms_norm": [(2, 7, 33), (2, 7, 33), (33,)],
    "l2_norm": [(2, 7, 33)],
    "cumsum": [(2, 7, 33), True],
    "cross_entropy": [(7, 33), CLASSES],
    "gelu": [(7, 33), "tanh"],
    "silu": [(7, 33)],
    "swiglu": [(7, 33), (7, 33)],
    "dropout": [(7, 33), 0.5, 3],
    "embedding": [(20, 33), IDS],
    "transpose": [(2, 7, 33)],
    "rope": [(2, 5, 3, 16), ANGLES.cos(), ANGLES.sin()],
    "gemm": [(7, 33), (33, 20)],
    "attention": [(2, 4, 17, 16), (2, 2, 19, 16), (2, 2, 19, 16), None, True],
    "attention_varlen": [(17, 4, 16), (17, 2, 16), (17, 2, 16), STARTS, STARTS],
}


def arguments(shapes, dtype=None):
    torch.manual_seed(3)
    dtype = torch.float32 if dtype is None else dtype
    drawn = [torch.randn(s, dtype=dtype, requires_grad=True) if isinstance(s, tuple) else s for s in shapes]
    return [x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and not x.requires_grad else x for x in drawn]


def leaves(arguments):
    return [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]


def test_every_function_is_here():
    assert set(OPERATORS) == set(ops.__all__)
    assert {name for name in ops.__all__ if any(case.startswith(name) for case in CASES)} == set(ops.__all__)


@pytest.mark.parametrize("name", OPERATORS)
def test_pytorch_finds_nothing_wrong_with_the_operator(device, name):
    torch.library.opcheck(getattr(torch.ops.tilekit, name).default, arguments(OPERATORS[name]))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_what_compiled_programs_are_told_is_so(device, name, dtype):
    """Where extents are symbols, and where they are numbers."""
    if dtype == torch.float64 and name in HALF_PRECISION_ONLY:
        pytest.skip("attention takes float32 and less")
    operator, given = getattr(torch.ops.tilekit, name), arguments(OPERATORS[name], dtype)
    results = operator(*given)
    results = results if isinstance(results, tuple) else (results,)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in given]
    for symbols in (False, True):
        with FakeTensorMode(shape_env=ShapeEnv() if symbols else None) as mode:
            faked = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in plain]
            told = operator(*faked)
        told = told if isinstance(told, tuple) else (told,)
        assert [(tuple(map(int, x.shape)), x.dtype) for x in told] == [(tuple(x.shape), x.dtype) for x in results]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_pytorch(device, name):
    function, reference, shapes = CASES[name]
    given = arguments(shapes)
    result, expected = function(*given), reference(*given)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(expected)
    # The gradient by the sum of products is contiguous, that by the sum alone has strides of 0.
    for loss in (lambda y: (y * weights).sum(), lambda y: y.sum()):
        gradients = torch.autograd.grad(loss(result), leaves(given), retain_graph=True)
        wanted = torch.autograd.grad(loss(expected), leaves(given), retain_graph=True)
        torch.testing.assert_close(gradients, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in CASES if name not in HALF_PRECISION_ONLY])
def test_gradients_are_those_of_differences(device, name):
    function, _, shapes = CASES[name]
    small = [tuple(min(n, 5) if len(s) > 1 and n != 33 else n for n in s) if isinstance(s, tuple) else s for s in shapes]
    given = arguments(small if name.startswith(("silu", "swiglu", "gelu")) else shapes, torch.float64)
    assert torch.autograd.gradcheck(function, given, fast_mode=True)


def test_arguments_may_have_gaps(device):
    x = torch.randn(4, 6, 33).transpose(0, 1)
    torch.testing.assert_close(ops.softmax(x), x.softmax(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ops.silu(x[:, ::2]), F.silu(x[:, ::2]), rtol=1e-4, atol=1e-5)
    heads = torch.randn(2, 17, 4, 16).transpose(1, 2)  # as they come from a projection
    expected = F.scaled_dot_product_attention(heads, heads, heads)
    torch.testing.assert_close(ops.attention(heads, heads, heads), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_the_results_of_add_rms_norm_may_be_unused(device, used):
    x, residual, weight = given = arguments([(7, 33), (7, 33), (33,)])
    expected = (F.rms_norm(x + residual, (33,), weight, 1e-6), x + residual + 0 * weight)[used]
    gradients = torch.autograd.grad(ops.add_rms_norm(*given)[used].square().sum(), given)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), given), rtol=1e-3, atol=1e-4)


def test_integers_have_no_gradient_but_are_moved_and_added_up(device):
    x = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    assert torch.equal(ops.transpose(x), x.mT)
    assert torch.equal(ops.transpose(x[:, ::2].mT), x[:, ::2])
    assert torch.equal(ops.cumsum(x), x.cumsum(-1, dtype=torch.int32))
    assert ops.transpose(x).is_contiguous()


def test_empty_arguments(device):
    x = torch.randn(0, 33, requires_grad=True)
    y = ops.softmax(x)
    assert y.shape == (0, 33)
    y.sum().backward()
    assert x.grad.shape == (0, 33)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits(device, dtype):
    x, w = arguments([(7, 33), (33,)], dtype)
    y = ops.rms_norm(x, w)
    assert y.dtype == dtype
    torch.testing.assert_close(y, F.rms_norm(x, (33,), w, 1e-6), rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert x.grad.dtype == w.grad.dtype == dtype


def test_the_elements_that_are_dropped_follow_from_the_seed(device):
    x = torch.ones(1000, requires_grad=True)
    y = ops.dropout(x, 0.25, 11)
    assert torch.equal(y, ops.dropout(x, 0.25, 11))
    assert not torch.equal(y, ops.dropout(x, 0.25, 12))
    y.sum().backward()
    assert torch.equal(x.grad, y)


def test_what_has_no_gradient_says_so(device):
    logits = torch.randn(7, 33, requires_grad=True)
    loss, lse = torch.ops.tilekit.cross_entropy(logits, CLASSES)
    assert loss.requires_grad
    assert not lse.requires_grad
    x = torch.randn(5, 9, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.softmax(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        grad.sum().backward()


def test_wrong_arguments_are_errors_of_the_kernels(device):
    with pytest.raises(ValueError, match=r"rms_norm: weight has shape \(32,\); rows of 33 elements need \(33,\)"):
        ops.rms_norm(torch.randn(7, 33), torch.randn(32))
    with pytest.raises(TypeError, match="softmax: x holds int32"):
        ops.softmax(torch.ones(3, 3, dtype=torch.int32))
    with pytest.raises(TypeError, match=r"tilekit::softmax: x holds torch\.complex64, which tilekit does not have"):
        ops.softmax(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(ValueError, match="reduction is"):
        ops.cross_entropy(torch.randn(7, 33), CLASSES, reduction="median")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(device, dtype):
    x, w = torch.randn(7, 33, requires_grad=True), torch.randn(20, 33, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        y = ops.gemm(x, w.T)
        assert y.dtype == dtype == (x @ w.T).dtype
        assert ops.softmax(y).dtype == ops.l2_norm(y).dtype == ops.cumsum(y).dtype == torch.float32
        assert ops.transpose(y).dtype == dtype
        assert ops.silu(y).dtype == dtype
        loss = ops.cross_entropy(y, torch.arange(7))
        assert loss.dtype == torch.float32
    loss.backward()
    expected = torch.autograd.grad(F.cross_entropy((x @ w.T), torch.arange(7)), (x, w))
    assert x.grad.dtype == w.grad.dtype == torch.float32
    torch.testing.assert_close((x.grad, w.grad), expected, rtol=5e-2, atol=5e-2)
    assert ops.gemm(x.double(), w.double().T).dtype == torch.float64


@pytest.mark.parametrize("module", [tilekit.torch, ops], ids=lambda module: module.__name__)
def test_public_names_are_in_the_reference(module):
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "host.md").read_text("utf-8")
    documented = {name for name in module.__all__ if f".. autofunction:: {module.__name__}.{name}\n" in page}
    assert documented == set(module.__all__) - {"ops"}
