"""A transformer's block, forward and backward: of `tilekit.torch.ops`, beside the same of PyTorch's functions.

Both are run eagerly, and compiled by `torch.compile(fullgraph=True)`. What is timed ends with the gradients of all parameters.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilekit as tk
from tilekit._environment import version_of
from tilekit_benchmarks import Options
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.saxpy_peers import need
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["DEFAULT_N", "Sizes", "batch", "of_tilekit", "of_torch", "parameters"]

DEFAULT_N = 1024
"""The tokens of a sequence."""

_EPS = 1e-6  # of rms_norm
_APART = 0.05  # how far a gradient may be from PyTorch's, as a part of its length: each rounds in its own places
_log = logging.getLogger("tilekit_benchmarks")

Parameters = dict[str, Any]
Block = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a block.

    Attributes:
        words: of the vocabulary.
        width: of the model.
        heads: of attention.
        hidden: the width of the middle of its network.
        sequences: in a batch.
    """

    words: int
    width: int
    heads: int
    hidden: int
    sequences: int


_SIZES = {
    "cuda": Sizes(words=8192, width=1024, heads=16, hidden=2816, sequences=4),
    "cpu": Sizes(words=50, width=32, heads=4, hidden=48, sequences=2),
}


def parameters(sizes: Sizes, device: Any = None, dtype: Any = None) -> Parameters:
    """The block's parameters, always the same, by their names."""
    import torch

    width = sizes.width
    shapes = {
        "table": (sizes.words, width), "norm": (width,), "qkv": (width, 3 * width), "out": (width, width), "norm2": (width,),
        "gate": (width, sizes.hidden), "up": (width, sizes.hidden), "down": (sizes.hidden, width), "scale": (width,),
        "bias": (width,),
    }  # fmt: skip
    torch.manual_seed(0)
    drawn = {name: torch.randn(shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    return {name: value.to(device, dtype).requires_grad_() for name, value in drawn.items()}


def batch(sizes: Sizes, length: int, device: Any = None) -> tuple[Any, Any]:
    """Words, and those that are to come out, each `(sequences, length)`."""
    import torch

    torch.manual_seed(1)
    ids, target = (torch.randint(0, sizes.words, (sizes.sequences, length)) for _ in range(2))
    return ids.to(device), target.to(device)


def of_tilekit(sizes: Sizes) -> Block:
    """`block(parameters, ids, target)`, the loss, by tilekit's kernels."""
    from tilekit.torch import ops

    def block(p: Parameters, ids: Any, target: Any) -> Any:
        x = ops.embedding(p["table"], ids)
        q, k, v = (_heads(part, sizes) for part in ops.gemm(ops.rms_norm(x, p["norm"], _EPS), p["qkv"]).chunk(3, -1))
        cos, sin = _angles(x, sizes)
        q, k, v = (part.transpose(1, 2) for part in (ops.rope(q, cos, sin), ops.rope(k, cos, sin), v))
        y = ops.attention(q, k, v, causal=True).transpose(1, 2).reshape(x.shape)
        h, x = ops.add_rms_norm(ops.gemm(y, p["out"]), x, p["norm2"], _EPS)
        x = x + ops.gemm(ops.swiglu(ops.gemm(h, p["gate"]), ops.gemm(h, p["up"])), p["down"])
        x = ops.layer_norm(x, p["scale"], p["bias"])
        return ops.cross_entropy(ops.gemm(x, p["table"].T), target)

    return block


def of_torch(sizes: Sizes) -> Block:
    """The same by PyTorch's functions."""
    import torch
    import torch.nn.functional as F

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def block(p: Parameters, ids: Any, target: Any) -> Any:
        x = F.embedding(ids, p["table"])
        width = (sizes.width,)
        q, k, v = (_heads(part, sizes) for part in (F.rms_norm(x, width, p["norm"], _EPS) @ p["qkv"]).chunk(3, -1))
        cos, sin = (part[:, None] for part in _angles(x, sizes))
        q, k, v = (part.transpose(1, 2) for part in (turned(q, cos, sin), turned(k, cos, sin), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + y @ p["out"]
        h = F.rms_norm(x, width, p["norm2"], _EPS)
        x = x + (F.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        x = F.layer_norm(x, width, p["scale"], p["bias"])
        return F.cross_entropy((x @ p["table"].T).flatten(0, 1), target.flatten())

    return block


def _heads(x: Any, sizes: Sizes) -> Any:
    return x.reshape(*x.shape[:2], sizes.heads, -1)


def _angles(x: Any, sizes: Sizes) -> tuple[Any, Any]:
    import torch

    half = sizes.width // sizes.heads // 2
    angle = torch.arange(x.shape[1], device=x.device)[:, None] / 10.0 ** torch.linspace(0, 2, half, device=x.device)
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def run(options: Options) -> Sweep:
    """Measure the block. Blocks until it is done."""
    device, n = options.device, options.n or DEFAULT_N
    with tk.use_device(device):
        _log.info("block: sequences of %d tokens, on %s", n, device.label)
        sizes = _SIZES[device.kind]
        return sweep(
            options,
            _candidates(device, sizes),
            [n],
            benchmark="block",
            axis="tokens of a sequence",
            unit="us, forward and backward",
            reference="torch, eager",
            parameters={"n": n, **vars(sizes)},
            agreement=f"each gradient is within {_APART:.0%} of PyTorch's",
        )


def _candidates(device: tk.Device, sizes: Sizes) -> list[Candidate]:
    makers = {"torch": of_torch, OWN: of_tilekit}
    versions = {"torch": f"{version_of('torch')}", OWN: tk.__version__}

    def build(name: str, compiled: bool, length: int) -> Work:
        need(("torch", "torch"))
        import torch

        on = torch.device("cuda", device.ordinal) if device.kind == "cuda" else torch.device("cpu")
        p = parameters(sizes, on, torch.bfloat16 if device.kind == "cuda" else torch.float32)
        ids, target = batch(sizes, length, on)
        block = makers[name](sizes)
        if compiled:
            block = torch.compile(block, fullgraph=True, dynamic=False, backend=_backend(device))
        found: list[Any] = []

        def launch() -> None:
            found[:] = torch.autograd.grad(block(p, ids, target), list(p.values()))
            if device.kind == "cuda":
                torch.cuda.synchronize()

        def check() -> str | None:
            expected = torch.autograd.grad(of_torch(sizes)(p, ids, target), list(p.values()))
            for called, one, other in zip(p, found, expected, strict=True):
                apart = (one - other).float().norm() / other.float().norm()
                if not apart <= _APART:
                    return f"the gradient of {called} is {apart:.1%} off PyTorch's"
            return None

        return Work(launch=launch, reset=found.clear, check=check)

    return [
        Candidate(
            name=name,
            version=versions[name],
            variant="compiled" if compiled else "eager",
            build=lambda length, name=name, compiled=compiled: build(name, compiled, int(length)),  # type: ignore[misc]
        )
        for name in makers
        for compiled in (False, True)
    ]


def _backend(device: tk.Device) -> str:
    """PyTorch's own compiler, which writes C++ for a CPU; without a compiler of that what comes before it."""
    return "aot_eager" if device.kind == "cpu" and shutil.which("g++") is None else "inductor"
