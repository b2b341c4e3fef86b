"""The peers of the kernels' benchmarks: PyTorch's eager functions, and Triton. They work on tilekit's memory and stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._runtime.stream import Stream
from tilekit._tensor.tensor import Tensor
from tilekit_benchmarks.harness import Contestant, Variant
from tilekit_benchmarks.kernel_cases import DROPPED, Case, Tensors
from tilekit_benchmarks.saxpy_peers import DeviceArray, Missing, need

__all__ = ["PEERS", "Build", "Missing", "flash_varlen", "sdpa", "triton_kernel"]

Build = Callable[[Case, Tensors, Tensor, Stream], tuple[Contestant, Callable[[], Any]]]
"""What makes a contestant of a case, its tensors, one for the result, and the stream; and what gives the result of the variant
that ran last, as a NumPy array."""

Launch = Callable[[], Any]
TorchTensors = Mapping[str, Any]


def _differentiated(forward: Callable[[Any, TorchTensors], Any], *by: str) -> Callable[[Any, TorchTensors, Any], Launch]:
    """Only the backward pass, by autograd: the forward pass has run before."""

    def build(torch: Any, t: TorchTensors, out: Any) -> Launch:
        leaves = {name: t[name].detach().requires_grad_() for name in by}
        result = forward(torch, {**t, **leaves})
        grad = t["grad"].to(result.dtype).expand_as(result)
        return lambda: torch.autograd.grad(result, tuple(leaves.values()), grad, retain_graph=True)[0]

    return build


def _layer_norm_backward(torch: Any, t: TorchTensors, out: Any) -> Launch:
    x, size = t["x"], [t["x"].shape[-1]]
    bias = torch.zeros_like(t["weight"])
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, size, t["weight"], bias, 1e-5)
    backward, wanted = torch.ops.aten.native_layer_norm_backward, [True, True, True]
    return lambda: backward(t["grad"], x, size, mean, rstd, t["weight"], bias, wanted)[0]


def _rope(torch: Any, t: TorchTensors, out: Any) -> Launch:
    x = t["x"].reshape(t["x"].shape[0], -1, 128)
    cos, sin = (t[name][:, None, :].to(x.dtype) for name in ("cos", "sin"))

    def launch() -> Any:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).reshape(t["x"].shape)

    return launch


def _scaled_mm(fast: bool) -> Callable[[Any, TorchTensors, Any], Launch]:
    """A product of 8-bit floats; unless it is `fast`, what tensor cores add up is added up in float32 every so often."""

    def build(torch: Any, t: TorchTensors, out: Any) -> Launch:
        x, b, one = t["x"], t["turned"].t(), torch.ones((), device=out.device)
        return lambda: torch._scaled_mm(x, b, scale_a=one, scale_b=one, out_dtype=out.dtype, use_fast_accum=fast)

    return build


def _as_tf32(torch: Any, t: TorchTensors, out: Any) -> Launch:
    x, b, options = t["x"], t["turned"].t(), torch.backends.cuda.matmul

    def launch() -> Any:
        before, options.allow_tf32 = options.allow_tf32, True
        try:
            return torch.matmul(x, b, out=out)
        finally:
            options.allow_tf32 = before

    return launch


TORCH: Mapping[str, Callable[[Any, TorchTensors, Any], Launch]] = {
    "softmax": lambda torch, t, out: lambda: torch.softmax(t["x"], -1),
    "log_softmax": lambda torch, t, out: lambda: torch.log_softmax(t["x"], -1),
    "softmax_backward": lambda torch, t, out: (
        lambda: torch.ops.aten._softmax_backward_data(t["grad"], t["x"], -1, t["x"].dtype)
    ),
    "rms_norm": lambda torch, t, out: (
        lambda: torch.nn.functional.rms_norm(t["x"], t["x"].shape[-1:], t["weight"], eps=1e-6)
    ),
    "layer_norm": lambda torch, t, out: (
        lambda: torch.nn.functional.layer_norm(t["x"], t["x"].shape[-1:], t["weight"], t["bias"], eps=1e-5)
    ),
    "add_rms_norm": lambda torch, t, out: (
        lambda: torch.nn.functional.rms_norm(t["x"] + t["grad"], t["x"].shape[-1:], t["weight"], eps=1e-6)
    ),
    "l2_norm": lambda torch, t, out: lambda: torch.nn.functional.normalize(t["x"], dim=-1),
    "rms_norm_backward": _differentiated(
        lambda torch, t: torch.nn.functional.rms_norm(t["x"], t["x"].shape[-1:], t["weight"], eps=1e-6), "x", "weight"
    ),
    "layer_norm_backward": _layer_norm_backward,
    "gelu": lambda torch, t, out: lambda: torch.nn.functional.gelu(t["x"]),
    "gelu_backward": lambda torch, t, out: lambda: torch.ops.aten.gelu_backward(t["grad"], t["x"]),
    "silu": lambda torch, t, out: lambda: torch.nn.functional.silu(t["x"]),
    "swiglu": lambda torch, t, out: lambda: torch.nn.functional.silu(t["x"]) * t["up"],
    "dropout": lambda torch, t, out: lambda: torch.nn.functional.dropout(t["x"], DROPPED),
    "transpose": lambda torch, t, out: lambda: out.copy_(t["x"].t()),
    "cumsum": lambda torch, t, out: lambda: torch.cumsum(t["x"], -1, out=out),
    "cross_entropy": lambda torch, t, out: (
        lambda: torch.nn.functional.cross_entropy(t["x"], t["target"], reduction="none")
    ),
    "cross_entropy_backward": _differentiated(
        lambda torch, t: torch.nn.functional.cross_entropy(t["x"], t["target"], reduction="sum"), "x"
    ),
    "argmax": lambda torch, t, out: lambda: torch.argmax(t["x"], -1, out=out),
    "topk": lambda torch, t, out: lambda: torch.topk(t["x"], 8)[0],
    "histogram": lambda torch, t, out: lambda: torch.bincount(t["x"].reshape(-1), minlength=out.shape[0]),
    "embedding": lambda torch, t, out: lambda: torch.nn.functional.embedding(t["target"], t["x"]),
    "embedding_backward": lambda torch, t, out: (
        lambda: torch.ops.aten.embedding_dense_backward(t["x"], t["target"], out.shape[0], -1, False)
    ),
    "rope": _rope,
    "gemm": lambda torch, t, out: lambda: torch.matmul(t["x"], t["weight"], out=out),
    "gemm e4m3": _scaled_mm(fast=False),
    "gemm e4m3 fast": _scaled_mm(fast=True),
    "gemm int8": lambda torch, t, out: lambda: torch._int_mm(t["x"], t["turned"].t(), out=out),
    "gemm tf32": _as_tf32,
}  # fmt: skip
"""For each kernel what makes a function that computes it with PyTorch and returns the result, of the tensors and one to write."""


def torch_eager(case: Case, tensors: Tensors, out: Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    """PyTorch's own functions."""
    torch, inputs, target, active = _in_torch(tensors, out, stream)
    with active():
        run = TORCH[case.kernel](torch, inputs, target)
    result: list[Any] = [None]

    def launch() -> None:
        result[0] = run()

    contestant = Contestant(name="torch", version=torch.__version__, variants=(Variant(launch=launch),), active=active)
    return contestant, lambda: _to_numpy(result[0].detach())


def sdpa(name: str, backend: str) -> Build:
    """PyTorch's scaled_dot_product_attention, or its gradients, by one backend: `"CUDNN_ATTENTION"`, `"FLASH_ATTENTION"`..."""

    def build(case: Case, tensors: Tensors, out: Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
        torch, inputs, _, active = _in_torch(tensors, out, stream)
        from torch.nn.attention import SDPBackend, sdpa_kernel

        @contextmanager
        def chosen() -> Iterator[None]:
            with active(), sdpa_kernel(getattr(SDPBackend, backend)):
                yield

        result: list[Any] = [None]
        operands = [inputs[what] for what in ("x", "key", "value")]
        options: dict[str, Any] = {"is_causal": case.kernel.startswith("causal")}
        if backend == "CUDNN_ATTENTION" and operands[0].shape[2] == 1:
            raise NotImplementedError  # PyTorch does not give a single query to cuDNN
        if operands[0].shape[1] != operands[1].shape[1]:
            options["enable_gqa"] = True

        def forward() -> None:
            result[0] = torch.nn.functional.scaled_dot_product_attention(*operands, **options)

        launch = forward
        if "grad" in inputs:  # only the gradients: what they are of has been computed before
            operands = [x.detach().requires_grad_() for x in operands]
            with chosen():
                forward()
            attended = result[0]

            def launch() -> None:
                result[0] = torch.autograd.grad(attended, operands, inputs["grad"], retain_graph=True)

        contestant = Contestant(name=name, version=torch.__version__, variants=(Variant(launch=launch),), active=chosen)
        return contestant, lambda: _to_numpy(result[0])

    return build


def flash_varlen(case: Case, tensors: Tensors, out: Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    """FlashAttention-2 for packed sequences, or its gradients, by the operators with which PyTorch calls it."""
    torch, inputs, _, active = _in_torch(tensors, out, stream)
    operands, starts = [inputs[what] for what in ("x", "key", "value")], inputs["starts"]
    longest, causal = int(starts.diff().max()), case.kernel.startswith("causal")
    result: list[Any] = [None]

    def forward() -> Any:
        result[0], *rest = torch.ops.aten._flash_attention_forward(
            *operands, starts, starts, longest, longest, 0.0, causal, False
        )
        return rest

    launch: Callable[[], Any] = forward
    if "grad" in inputs:
        with active():
            lse, *state = forward()
        attended = result[0]

        def launch() -> None:
            result[0] = torch.ops.aten._flash_attention_backward(
                inputs["grad"], *operands, attended, lse, starts, starts, longest, longest, 0.0, causal, *state[:2]
            )

    contestant = Contestant(
        name="flash-attention-2", version=torch.__version__, variants=(Variant(launch=launch),), active=active
    )
    return contestant, lambda: _to_numpy(result[0])


def triton_kernel(case: Case, tensors: Tensors, out: Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    """Triton, in several variants."""
    need(("torch", "torch"), ("triton", "triton"))
    import triton

    from tilekit_benchmarks import _triton_attention, _triton_kernels

    known = {**_triton_kernels.VARIANTS, **_triton_attention.VARIANTS}  # type: ignore[attr-defined,unused-ignore]
    _, inputs, target, active = _in_torch(tensors, out, stream)
    if case.kernel not in known:
        raise NotImplementedError
    variants = tuple(Variant(label=label, launch=launch) for label, launch in known[case.kernel](inputs, target))
    contestant = Contestant(name="triton", version=triton.__version__, variants=variants, active=active)
    return contestant, lambda: _to_numpy(target)


def _to_numpy(tensor: Any) -> Any:
    """A torch tensor as an array, or several of a shape as one; NumPy has no bfloat16 of its own."""
    if isinstance(tensor, tuple):
        return np.stack([_to_numpy(one) for one in tensor])
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).cpu().numpy()


# What that protocol has no name for goes through it as integers.
_NAMELESS = {dtypes.bfloat16: dtypes.int16, dtypes.float8_e4m3fn: dtypes.uint8, dtypes.float8_e5m2: dtypes.uint8}


def _in_torch(
    tensors: Tensors, out: Tensor, stream: Stream
) -> tuple[Any, dict[str, Any], Any, Callable[[], AbstractContextManager[Any]]]:
    """torch, the tensors as its own on the same memory, and what makes `stream` its current stream."""
    need(("torch", "torch"))
    import torch

    device = torch.device("cuda", stream.device.ordinal)
    current = torch.cuda.ExternalStream(stream.address, device=device)

    def seen(tensor: Tensor) -> Any:
        bits = _NAMELESS.get(tensor.dtype)
        view = torch.as_tensor(DeviceArray(tensor if bits is None else tensor.reinterpret(bits)), device=device)
        if view.data_ptr() != tensor.address:
            raise RuntimeError(f"torch.as_tensor copied: {view.data_ptr():#x} is not {tensor.address:#x}")
        return view if bits is None else view.view(getattr(torch, tensor.dtype.name))

    return torch, {name: seen(t) for name, t in tensors.items()}, seen(out), lambda: torch.cuda.stream(current)


PEERS: Mapping[str, Mapping[str, Build]] = {"cuda": {"torch": torch_eager, "triton": triton_kernel}, "cpu": {}}
"""The peers on each kind of device, by name."""
