"""The ready-made kernels as differentiable functions of PyTorch's tensors.

    y = tilekit.torch.ops.attention(q, k, v, causal=True)

They are operators, `torch.ops.tilekit.softmax` and so on, and work wherever `custom_op` says. Shapes, dtypes and errors are those
of `tilekit.kernels`; gradients that are not named are none. Under `torch.autocast` products and attention take their operands in
its dtype; softmax, norms, running sums and losses in float32, as PyTorch's own do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tilekit import kernels
from tilekit.ops import DeviceOp
from tilekit.torch._custom_op import custom_op

__all__ = [
    "add_rms_norm",
    "attention",
    "attention_varlen",
    "cross_entropy",
    "cumsum",
    "dropout",
    "embedding",
    "gelu",
    "gemm",
    "l2_norm",
    "layer_norm",
    "log_softmax",
    "rms_norm",
    "rope",
    "silu",
    "softmax",
    "swiglu",
    "transpose",
]

_operator = partial(custom_op, pure=True)


# What the results are, where extents are symbols: in programs that are compiled for all shapes.


def _like(x: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _like_both(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _like(x), _like(x)


def _like_product(a: Tensor, b: Tensor, *others: Any) -> Tensor:
    dtype = a.dtype
    if not a.is_floating_point():
        dtype = torch.int32
    elif dtype.itemsize == 1:
        dtype = torch.float32
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype)


def _like_attention(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _like_packed(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _like_loss(logits: Tensor, target: Tensor, reduction: str = "mean", *others: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    lse = logits.new_empty(target.shape, dtype=dtype)
    return (torch.empty_like(lse) if reduction == "none" else logits.new_empty((), dtype=dtype)), lse


def _like_turned(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _like_rows(table: Tensor, ids: Tensor) -> Tensor:
    return table.new_empty((*ids.shape, table.shape[1]))


# ------------------------------------------------------------------------------------------------------- products of matrices


def gemm(a: Tensor, b: Tensor, *, alpha: float = 1.0, precision: str = "ieee") -> Tensor:
    """`alpha * a @ b`, see `kernels.gemm`.

    Args:
        a: a matrix of shape `(M, K)`, or a batch of them, `(B, M, K)`.
        b: of shape `(K, N)` or `(B, K, N)`. One of the two may be a matrix for all of a batch. Any strides will do: `weight.T`.
        alpha: a factor.
        precision: of float32 operands: "ieee", or "tf32" for tensor cores; the gradients' too.
    """
    if a.ndim == 3 and b.ndim == 2:  # one product of all rows, whose gradient by b is one, too
        return _gemm(a.reshape(-1, a.shape[-1]), b, alpha, precision).unflatten(0, a.shape[:2])
    if a.ndim == 2 and b.ndim == 3:
        a = a.expand(b.shape[0], *a.shape)
    return _gemm(a, b, alpha, precision)


def _turned(x: Any) -> Any:
    return x.T if len(x.shape) == 2 else x.permute(0, 2, 1)


def _gemm_backward(grad: Any, a: Any, b: Any, alpha: float, precision: str) -> Any:
    by_a = kernels.gemm(grad, _turned(b), alpha=_factor(alpha), precision=precision)
    return by_a, kernels.gemm(_turned(a), grad, alpha=_factor(alpha), precision=precision)


def _factor(alpha: float) -> float:
    return 1 if alpha == 1 else alpha  # products of integers take ints


@_operator("tilekit::gemm", backward=_gemm_backward, fake=_like_product, contiguous=False, autocast="lower")
def _gemm(a: Tensor, b: Tensor, alpha: float = 1.0, precision: str = "ieee") -> DeviceOp[Any]:
    return kernels.gemm(a, b, alpha=_factor(alpha), precision=precision)


# ----------------------------------------------------------------------------------------------------------------- attention


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    precision: str = "ieee",
) -> Tensor:
    """`softmax(scale * q @ k.T) @ v` for each head, see `kernels.attention`.

    The gradient by `q` may differ in its last bits from run to run, unless `torch.use_deterministic_algorithms` is on.

    Args:
        q: queries of shape `(B, H, LQ, D)`, of float16, bfloat16 or float32. Any strides will do.
        k, v: keys and values, `(B, HK, LK, D)`; H is a multiple of HK.
        scale: a positive number; by default `1 / sqrt(D)`.
        causal: a query sees only the keys up to its own place; the last query stands at the last key.
        window: a query sees only keys less than so many places away.
        precision: of float32 operands: "ieee", or "tf32" for tensor cores.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    return _attention(q, k, v, scale, causal, window, precision, deterministic)[0]


@_operator(
    "tilekit::attention", results=("out", "lse"), backward=kernels.attention_backward, wrt=("q", "k", "v"),
    fake=_like_attention, contiguous=False, autocast="lower",
)  # fmt: skip
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    precision: str = "ieee",
    deterministic: bool = False,
) -> DeviceOp[Any]:
    return kernels.attention(q, k, v, scale=scale, causal=causal, window=window, precision=precision, return_lse=True)


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    precision: str = "ieee",
) -> Tensor:
    """`attention` of each of several sequences, which are packed one behind the other, see `kernels.attention_varlen`.

    Args:
        q: queries of shape `(TQ, H, D)`.
        k, v: keys and values, `(TK, HK, D)`.
        cu_seqlens_q, cu_seqlens_k: int32 of shape `(B + 1,)`: where the sequences begin, and the last ends.
        scale, causal, window, precision: as for `attention`.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal, window, precision, deterministic)[0]


@_operator(
    "tilekit::attention_varlen", results=("out", "lse"), backward=kernels.attention_varlen_backward, wrt=("q", "k", "v"),
    fake=_like_packed, contiguous=False, autocast="lower",
)  # fmt: skip
def _varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    precision: str = "ieee",
    deterministic: bool = False,
) -> DeviceOp[Any]:
    return kernels.attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, scale=scale, causal=causal, window=window, precision=precision, return_lse=True
    )


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, see `kernels.rope`. It has a gradient by `x`.

    Args:
        x: of shape `(..., positions, heads, size)`.
        cos, sin: of the angles, of shape `(positions, size // 2)`.
    """
    return _rope(x, cos, sin)


@_operator("tilekit::rope", backward=kernels.rope_backward, wrt=("x",), fake=_like)
def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> DeviceOp[Any]:
    return kernels.rope(x, cos, sin)


# ------------------------------------------------------------------------------------------------------------------ rows


def softmax(x: Tensor) -> Tensor:
    """softmax along the last dimension, see `kernels.softmax`."""
    return _softmax(x)


@_operator("tilekit::softmax", results=("y",), backward=kernels.softmax_backward, fake=_like, autocast=torch.float32)
def _softmax(x: Tensor) -> DeviceOp[Any]:
    return kernels.softmax(x)


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of softmax along the last dimension, see `kernels.log_softmax`."""
    return _log_softmax(x)


@_operator("tilekit::log_softmax", results=("y",), backward=kernels.log_softmax_backward, fake=_like, autocast=torch.float32)
def _log_softmax(x: Tensor) -> DeviceOp[Any]:
    return kernels.log_softmax(x)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """layer_norm along the last dimension, see `kernels.layer_norm`."""
    return _layer_norm(x, weight, bias, eps)


@_operator("tilekit::layer_norm", backward=kernels.layer_norm_backward, fake=_like, autocast=torch.float32)
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> DeviceOp[Any]:
    return kernels.layer_norm(x, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """rms_norm along the last dimension, see `kernels.rms_norm`."""
    return _rms_norm(x, weight, eps)


@_operator("tilekit::rms_norm", backward=kernels.rms_norm_backward, fake=_like, autocast=torch.float32)
def _rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> DeviceOp[Any]:
    return kernels.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`h = x + residual`, and its rms_norm, in one pass over the memory, see `kernels.add_rms_norm`.

    Returns:
        The tuple `(rms_norm(h, weight), h)`. Both have gradients; `x` and `residual` have the same.
    """
    normalised, h = _add_rms_norm(x, residual, weight, eps)
    return normalised, h


@_operator(
    "tilekit::add_rms_norm", results=("y", "h"), backward=kernels.add_rms_norm_backward, wrt=(("x", "residual"), "weight"),
    fake=_like_both, autocast=torch.float32,
)  # fmt: skip
def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> DeviceOp[Any]:
    return kernels.add_rms_norm(x, residual, weight, eps)


def l2_norm(x: Tensor, eps: float = 1e-12) -> Tensor:
    """Rows divided by their Euclidean norms along the last dimension, see `kernels.l2_norm`; `eps` is the smallest divisor."""
    return _l2_norm(x, eps)


@_operator("tilekit::l2_norm", backward=kernels.l2_norm_backward, fake=_like, autocast=torch.float32)
def _l2_norm(x: Tensor, eps: float = 1e-12) -> DeviceOp[Any]:
    return kernels.l2_norm(x, eps)


def cumsum(x: Tensor, *, reverse: bool = False) -> Tensor:
    """The running sums along the last dimension, see `kernels.cumsum`.

    Args:
        x: of floats, or of int32 or int64, whose sums have their dtype. (PyTorch's own function gives int64 of all integers.)
        reverse: whether the sums are of each element and all behind it, instead of before it.
    """
    return _cumsum(x, reverse)


def _cumsum_backward(grad: Any, reverse: bool) -> Any:
    return kernels.cumsum(grad, reverse=not reverse)


@_operator("tilekit::cumsum", backward=_cumsum_backward, fake=_like, autocast=torch.float32)
def _cumsum(x: Tensor, reverse: bool = False) -> DeviceOp[Any]:
    return kernels.cumsum(x, reverse=reverse)


def cross_entropy(logits: Tensor, target: Tensor, *, reduction: str = "mean", ignore_index: int = -100) -> Tensor:
    """The cross-entropy of rows of logits and their classes, see `kernels.cross_entropy`. It has a gradient by `logits`.

    Args:
        logits: classes along the last dimension. (PyTorch's own function has them along the second.)
        target: int32 or int64, of the shape of `logits` without the last dimension.
        reduction: `"mean"` over the rows that are not ignored, `"sum"`, or `"none"`.
        ignore_index: rows of this class have a loss of 0.

    Returns:
        The loss in float32 (float64 of float64).
    """
    return _cross_entropy(logits, target, reduction, ignore_index)[0]


@_operator(
    "tilekit::cross_entropy", results=("loss", "lse"), backward=kernels.cross_entropy_backward, wrt=("logits",),
    fake=_like_loss, autocast=torch.float32,
)  # fmt: skip
def _cross_entropy(logits: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = -100) -> DeviceOp[Any]:
    return kernels.cross_entropy(logits, target, reduction=reduction, ignore_index=ignore_index)


# ------------------------------------------------------------------------------------- element by element, and moving elements


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu of each element, see `kernels.gelu`; `approximate` is `"none"`, with erf, or `"tanh"`."""
    return _gelu(x, approximate)


@_operator("tilekit::gelu", backward=kernels.gelu_backward, fake=_like)
def _gelu(x: Tensor, approximate: str = "none") -> DeviceOp[Any]:
    return kernels.gelu(x, approximate=approximate)


def silu(x: Tensor) -> Tensor:
    """silu of each element, `x * sigmoid(x)`."""
    return _silu(x)


@_operator("tilekit::silu", backward=kernels.silu_backward, fake=_like)
def _silu(x: Tensor) -> DeviceOp[Any]:
    return kernels.silu(x)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up`, each element by itself."""
    return _swiglu(gate, up)


@_operator("tilekit::swiglu", backward=kernels.swiglu_backward, fake=_like)
def _swiglu(gate: Tensor, up: Tensor) -> DeviceOp[Any]:
    return kernels.swiglu(gate, up)


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """Zeros instead of elements with probability `p`, and the others times `1 / (1 - p)`, see `kernels.dropout`.

    Args:
        x: any floating-point tensor.
        p: the probability.
        seed: 0 <= seed < 2**63; another one for each call. A compiled program holds it as a constant.
    """
    return _dropout(x, p, seed)


@_operator("tilekit::dropout", backward=kernels.dropout_backward, fake=_like)
def _dropout(x: Tensor, p: float, seed: int) -> DeviceOp[Any]:
    return kernels.dropout(x, p, seed)


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    """The rows of `table` at the indices `ids` (int32 or int64), see `kernels.embedding`. It has a gradient by `table`."""
    return _embedding(table, ids)


def _embedding_backward(grad: Any, table: Any, ids: Any) -> Any:
    return kernels.embedding_backward(grad, ids, table.shape[0])


@_operator("tilekit::embedding", backward=_embedding_backward, wrt=("table",), fake=_like_rows)
def _embedding(table: Tensor, ids: Tensor) -> DeviceOp[Any]:
    return kernels.embedding(table, ids)


def transpose(x: Tensor) -> Tensor:
    """A contiguous copy of a matrix, or of each of a batch, with its last two dimensions exchanged, see `kernels.transpose`."""
    return _transpose(x)


def _transpose_backward(grad: Any) -> Any:
    return kernels.transpose(grad)


@_operator("tilekit::transpose", backward=_transpose_backward, fake=_like_turned)
def _transpose(x: Tensor) -> DeviceOp[Any]:
    return kernels.transpose(x)
