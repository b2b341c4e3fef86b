"""A kernel of one's own as an operator of PyTorch's: SiLU, forward and backward, in eager and in compiled programs.

    python examples/12_torch_autograd.py
    python examples/12_torch_autograd.py --n 1000000 --steps 50 --compile

It compares values and gradients with PyTorch's, then trains a small model through the operator and a ready-made one, with
--compile as one program of `torch.compile(fullgraph=True)`. All of it is in PyTorch's memory, and on a GPU on PyTorch's current
stream, so that neither waits for the other. It runs on the first GPU that tilekit can use, else on the CPU device;
TILEKIT_DEVICE=cpu or cuda chooses. Without PyTorch it says so, and ends.
"""

import argparse
from collections.abc import Callable
from typing import Any

import tilekit as tk
from tilekit import api

try:
    import torch as pytorch

    import tilekit.torch as tilekit_torch

    torch: Any = pytorch  # whose types have gaps
    interop: Any = tilekit_torch
except ImportError:
    torch = interop = None

TILE = 1024


@tk.kernel
def silu_forward(y: tk.Out, x: tk.In) -> None:
    t = tk.load_tile_like(x, y)
    y.store(t / (1.0 + tk.exp(0.0 - t)))


@tk.kernel
def silu_backward(dx: tk.Out, dy: tk.In, x: tk.In) -> None:
    t = tk.load_tile_like(x, dx)
    s = 1.0 / (1.0 + tk.exp(0.0 - t))
    dx.store(tk.load_tile_like(dy, dx) * s * (1.0 + t * (1.0 - s)))


def forward(x: tk.Tensor) -> tk.DeviceOp[tk.Tensor]:
    """The launch: an op whose result is SiLU of `x`, a tensor of any shape."""
    return silu_forward(api.empty(x.size, x.dtype), x.reshape(-1)).tile(TILE).out().reshape(x.shape)


def backward(grad: tk.Tensor, x: tk.Tensor) -> tk.DeviceOp[tk.Tensor]:
    """The launch of the gradient by `x`; `grad` is that by the result."""
    return silu_backward(api.empty(x.size, x.dtype), grad.reshape(-1), x.reshape(-1)).tile(TILE).out().reshape(x.shape)


def compare(silu: Callable[..., Any], n: int, place: Any) -> bool:
    """Whether values and gradients are those of PyTorch's own SiLU, up to rounding."""
    x = torch.randn(n, device=place, requires_grad=True)
    weights = torch.randn(n, device=place)
    found, expected = silu(x), torch.nn.functional.silu(x)
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    (reference,) = torch.autograd.grad((expected * weights).sum(), x)
    pairs = ((found, expected), (gradient, reference))
    return all(torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5) for ours, theirs in pairs)


def train(silu: Callable[..., Any], steps: int, place: Any, is_compiled: bool) -> tuple[float, float]:
    """Fit a parabola with one hidden layer; the loss before and after."""
    first, second = torch.nn.Linear(1, 64).to(place), torch.nn.Linear(64, 1).to(place)
    weight, bias = (torch.nn.Parameter(start(64, device=place)) for start in (torch.ones, torch.zeros))
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters(), weight, bias], lr=0.02)
    x = torch.linspace(-1, 1, 256, device=place).reshape(-1, 1)

    def loss_of(x: Any) -> Any:
        hidden = interop.ops.layer_norm(silu(first(x)), weight, bias)
        return ((second(hidden) - x * x) ** 2).mean()

    step = torch.compile(loss_of, fullgraph=True, backend="aot_eager") if is_compiled else loss_of
    losses: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(x)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses[0].item(), losses[-1].item()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="SiLU by tilekit as an operator of PyTorch's, compared with PyTorch's own.")
    parser.add_argument("--n", type=int, default=100_003, help="number of elements to compare (default: 100003)")
    parser.add_argument("--steps", type=int, default=100, help="steps of training (default: 100)")
    parser.add_argument("--compile", action="store_true", help="train under torch.compile")
    options = parser.parse_args(argv)
    if options.n < 0:
        parser.exit(2, f"{parser.prog}: --n {options.n}: a length is not negative\n")
    if options.steps < 1:
        parser.exit(2, f"{parser.prog}: --steps {options.steps}: at least one\n")

    device = tk.default_device()
    if torch is None:
        print("PyTorch is not installed, so there is nothing to show: pip install torch")
        return
    if device.kind == "cuda" and not torch.cuda.is_available():
        print("this PyTorch was built without CUDA, so there is nothing to share: TILEKIT_DEVICE=cpu runs on the CPU device")
        return

    torch.manual_seed(0)
    place = torch.device("cuda", device.ordinal) if device.kind == "cuda" else torch.device("cpu")
    silu = interop.custom_op("examples::silu", forward, backward=backward)
    if not compare(silu, options.n, place):
        parser.exit(1, f"{parser.prog}: values or gradients differ from PyTorch's\n")
    print(f"SiLU of {options.n} elements on {device.kind}:{device.ordinal}: values and gradients agree with PyTorch's")
    before, after = train(silu, options.steps, place, options.compile)
    how = "compiled" if options.compile else "eager"
    print(f"{options.steps} steps of training, {how}: loss {before:.4f} at first, {after:.6f} at last")


if __name__ == "__main__":
    main()
