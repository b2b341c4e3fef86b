"""tilekit kernels as a `torch.autograd.Function`: SiLU, forward and backward, in PyTorch's own memory.

    python examples/12_torch_autograd.py
    python examples/12_torch_autograd.py --n 1000000 --steps 50

It compares values and gradients with PyTorch's, then trains a small model through the function. PyTorch's tensors are not copied:
tilekit works in their memory, and on a GPU on PyTorch's current stream, so that neither waits for the other. It runs on the first
GPU that tilekit can use, else on the CPU device; TILEKIT_DEVICE=cpu or cuda chooses. Without PyTorch it says so, and ends.
"""

import argparse

import tilekit as tk

try:
    import torch
except ImportError:
    torch = None

TILE = 1024


@tk.kernel
def silu_forward(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y)
    y.store(t / (1.0 + tk.exp(0.0 - t)))


@tk.kernel
def silu_backward(dx: tk.Out, dy: tk.In, x: tk.In):
    t = tk.load_tile_like(x, dx)
    s = 1.0 / (1.0 + tk.exp(0.0 - t))
    dx.store(tk.load_tile_like(dy, dx) * s * (1.0 + t * (1.0 - s)))


def run(kernel, out, *inputs):
    """Run `kernel` in the memory of torch tensors, in order with what PyTorch does on its current stream."""
    written, *read = (tk.as_tensor(tensor.detach().reshape(-1)) for tensor in (out, *inputs))
    op = kernel(written.partition(TILE), *read)
    if out.is_cuda:
        op.async_on(torch.cuda.current_stream(out.device))  # returns at once; what PyTorch does next comes behind
    else:
        op.sync()


def silu_function():
    """SiLU as PyTorch calls it. (In a function, since without PyTorch there is nothing to derive from.)"""

    class Silu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.contiguous()
            y = torch.empty_like(x)
            run(silu_forward, y, x)
            ctx.save_for_backward(x)
            return y

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            dx = torch.empty_like(x)
            run(silu_backward, dx, dy.contiguous(), x)
            return dx

    return Silu.apply


def compare(silu, n, place):
    """Whether values and gradients are those of PyTorch's own SiLU, up to rounding."""
    x = torch.randn(n, device=place, requires_grad=True)
    weights = torch.randn(n, device=place)
    found, expected = silu(x), torch.nn.functional.silu(x)
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    (reference,) = torch.autograd.grad((expected * weights).sum(), x)
    close = {"rtol": 1e-4, "atol": 1e-5}
    return torch.allclose(found, expected, **close) and torch.allclose(gradient, reference, **close)


def train(silu, steps, place):
    """Fit a parabola with one hidden layer; the loss before and after."""
    first, second = torch.nn.Linear(1, 64).to(place), torch.nn.Linear(64, 1).to(place)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.02)
    x = torch.linspace(-1, 1, 256, device=place).reshape(-1, 1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((second(silu(first(x))) - x * x) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses[0].item(), losses[-1].item()


def main(argv=None):
    parser = argparse.ArgumentParser(description="SiLU by tilekit as a torch.autograd.Function, compared with PyTorch's.")
    parser.add_argument("--n", type=int, default=100_003, help="number of elements to compare (default: 100003)")
    parser.add_argument("--steps", type=int, default=100, help="steps of training (default: 100)")
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
    silu = silu_function()
    if not compare(silu, options.n, place):
        parser.exit(1, f"{parser.prog}: values or gradients differ from PyTorch's\n")
    print(f"SiLU of {options.n} elements on {device.kind}:{device.ordinal}: values and gradients agree with PyTorch's")
    before, after = train(silu, options.steps, place)
    print(f"{options.steps} steps of training: loss {before:.4f} at first, {after:.6f} at last")


if __name__ == "__main__":
    main()
