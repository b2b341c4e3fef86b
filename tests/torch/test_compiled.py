"""A transformer's block of `tilekit.torch.ops` under `torch.compile(fullgraph=True)`, against the same in PyTorch alone."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from tilekit.torch import ops  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's, of its own parts
F = torch.nn.functional
WORDS, WIDTH, HEADS, LENGTH, HIDDEN = 50, 32, 4, 12, 48
SHAPES = {
    "table": (WORDS, WIDTH), "norm": (WIDTH,), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "norm2": (WIDTH,),
    "gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH), "scale": (WIDTH,), "bias": (WIDTH,),
}  # fmt: skip


def parameters():
    torch.manual_seed(0)
    return {name: (torch.randn(shape) / shape[0] ** 0.5).requires_grad_() for name, shape in SHAPES.items()}


def batch(length=LENGTH):
    torch.manual_seed(1)
    return torch.randint(0, WORDS, (2, length)), torch.randint(0, WORDS, (2, length))


def angles(length):
    angle = torch.arange(length)[:, None] / 10.0 ** torch.linspace(0, 2, WIDTH // HEADS // 2)
    return angle.cos(), angle.sin()


def heads_of(x):
    return x.reshape(*x.shape[:2], HEADS, -1)


def block(p, ids, target):
    """By tilekit's kernels."""
    x = ops.embedding(p["table"], ids)
    q, k, v = (heads_of(part) for part in ops.gemm(ops.rms_norm(x, p["norm"]), p["qkv"]).chunk(3, -1))
    cos, sin = angles(ids.shape[1])
    q, k, v = (part.transpose(1, 2) for part in (ops.rope(q, cos, sin), ops.rope(k, cos, sin), v))
    y = ops.attention(q, k, v, causal=True).transpose(1, 2).reshape(x.shape)
    h, x = ops.add_rms_norm(ops.gemm(y, p["out"]), x, p["norm2"])
    x = x + ops.gemm(ops.swiglu(ops.gemm(h, p["gate"]), ops.gemm(h, p["up"])), p["down"])
    x = ops.layer_norm(x, p["scale"], p["bias"])
    return ops.cross_entropy(ops.gemm(x, p["table"].T), target)


def reference(p, ids, target):
    """By PyTorch's functions."""

    def turned(x):
        first, second = x.chunk(2, -1)
        cos, sin = (part[:, None] for part in angles(ids.shape[1]))
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    x = F.embedding(ids, p["table"])
    q, k, v = (heads_of(part) for part in (F.rms_norm(x, (WIDTH,), p["norm"], 1e-6) @ p["qkv"]).chunk(3, -1))
    q, k, v = (part.transpose(1, 2) for part in (turned(q), turned(k), v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
    x = x + y @ p["out"]
    h = F.rms_norm(x, (WIDTH,), p["norm2"], 1e-6)
    x = x + (F.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
    x = F.layer_norm(x, (WIDTH,), p["scale"], p["bias"])
    return F.cross_entropy((x @ p["table"].T).flatten(0, 1), target.flatten())


def words(p, ids, target):
    """A smaller one."""
    x = ops.rms_norm(ops.embedding(p["table"], ids), p["norm"])
    return ops.cross_entropy(ops.gemm(x, p["table"].T), target)


def reference_words(p, ids, target):
    x = F.rms_norm(F.embedding(ids, p["table"]), (WIDTH,), p["norm"], 1e-6)
    return F.cross_entropy((x @ p["table"].T).flatten(0, 1), target.flatten())


# PyTorch's own compiler, which writes C++ on a CPU; without a compiler of that what comes before it.
BACKEND = "aot_eager" if shutil.which("g++") is None else "inductor"


def test_a_block_agrees_with_pytorchs(device, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    p, (ids, target) = parameters(), batch()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend=BACKEND)
    loss, expected = compiled(p, ids, target), reference(p, ids, target)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(loss, list(p.values()))
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, list(p.values())), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(block(p, ids, target), loss)


def test_training_by_a_compiled_step(device):
    p, (ids, target) = parameters(), batch()
    torch._dynamo.reset()
    step = torch.compile(block, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.Adam(p.values(), lr=0.02)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = step(p, ids, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_one_program_for_all_lengths(device):
    compilations = []

    def counted(graph, examples):
        compilations.append(graph)
        return aot_eager(graph, examples)

    aot_eager = torch._dynamo.lookup_backend("aot_eager")
    p = {name: parameters()[name] for name in ("table", "norm")}
    torch._dynamo.reset()
    compiled = torch.compile(words, fullgraph=True, backend=counted)
    for length in (LENGTH, 7, 31, 3):
        ids, target = batch(length)
        loss, expected = compiled(p, ids, target), reference_words(p, ids, target)
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
        gradients = torch.autograd.grad(loss, list(p.values()))
        torch.testing.assert_close(gradients, torch.autograd.grad(expected, list(p.values())), rtol=1e-3, atol=1e-5)
    assert len(compilations) == 2  # one for the first length, one for all


def test_autocast_in_a_compiled_program(device):
    p, (ids, target) = {name: parameters()[name] for name in ("table", "norm")}, batch()
    torch._dynamo.reset()

    def program(p, ids, target):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return words(p, ids, target)

    loss = torch.compile(program, fullgraph=True, backend="aot_eager")(p, ids, target)
    torch.testing.assert_close(loss, program(p, ids, target))
    torch.testing.assert_close(loss, reference_words(p, ids, target), rtol=3e-2, atol=3e-2)
    assert all(grad.dtype == torch.float32 for grad in torch.autograd.grad(loss, list(p.values())))


def test_checkpoints_and_inference_mode(device):
    x, weight = torch.randn(5, WIDTH, requires_grad=True), torch.ones(WIDTH)
    loss = checkpoint(lambda x: ops.rms_norm(x, weight).square().sum(), x, use_reentrant=False)
    (found,) = torch.autograd.grad(loss, x)
    (expected,) = torch.autograd.grad(F.rms_norm(x, (WIDTH,), weight, 1e-6).square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(ops.softmax(x), x.softmax(-1), rtol=1e-4, atol=1e-6)


def test_without_gradients(device):
    p, (ids, target) = parameters(), batch()
    torch._dynamo.reset()
    with torch.no_grad():
        loss = torch.compile(block, fullgraph=True, backend="aot_eager")(p, ids, target)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, reference(p, ids, target), rtol=1e-4, atol=1e-5)


def test_an_exported_program(device):
    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return ops.softmax(ops.rms_norm(x, self.weight))

    module, x = Norm(), torch.randn(3, WIDTH)
    exported = torch.export.export(module, (x,))
    assert "tilekit.rms_norm" in str(exported.graph)
    torch.testing.assert_close(exported.module()(x), module(x))
