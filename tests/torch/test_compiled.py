"""A transformer's block of `tilekit.torch.ops` under `torch.compile(fullgraph=True)`, against the same in PyTorch alone."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")

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


def batch():
    torch.manual_seed(1)
    return torch.randint(0, WORDS, (2, LENGTH)), torch.randint(0, WORDS, (2, LENGTH))


def angles():
    angle = torch.arange(LENGTH)[:, None] / 10.0 ** torch.linspace(0, 2, WIDTH // HEADS // 2)
    return angle.cos(), angle.sin()


def heads_of(x):
    return x.reshape(*x.shape[:2], HEADS, -1)


def block(p, ids, target):
    """By tilekit's kernels."""
    x = ops.embedding(p["table"], ids)
    q, k, v = (heads_of(part) for part in ops.gemm(ops.rms_norm(x, p["norm"]), p["qkv"]).chunk(3, -1))
    cos, sin = angles()
    q, k, v = (part.transpose(1, 2) for part in (ops.rope(q, cos, sin), ops.rope(k, cos, sin), v))
    y = ops.attention(q, k, v, causal=True).transpose(1, 2).reshape(x.shape)
    x = x + ops.gemm(y, p["out"])
    h = ops.rms_norm(x, p["norm2"])
    x = x + ops.gemm(ops.swiglu(ops.gemm(h, p["gate"]), ops.gemm(h, p["up"])), p["down"])
    x = ops.layer_norm(x, p["scale"], p["bias"])
    return ops.cross_entropy(ops.gemm(x, p["table"].T), target)


def reference(p, ids, target):
    """By PyTorch's functions."""

    def turned(x):
        first, second = x.chunk(2, -1)
        cos, sin = (part[:, None] for part in angles())
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


def needs_a_compiler(backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler, and there is no g++")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_block_agrees_with_pytorchs(device, backend, tmp_path, monkeypatch):
    needs_a_compiler(backend)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    p, (ids, target) = parameters(), batch()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend=backend)
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
