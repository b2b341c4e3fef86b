"""Ready-made kernels, written in the tile language: each a model of how to write such a kernel.

Their functions take tensors, or ops that produce some, and return a `DeviceOp` of a new tensor; nothing happens until it is run.

    y = kernels.softmax(x).sync()
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tilekit.kernels import epilogues as epilogues
from tilekit.kernels._activation import gelu as gelu
from tilekit.kernels._activation import gelu_backward as gelu_backward
from tilekit.kernels._activation import silu as silu
from tilekit.kernels._activation import silu_backward as silu_backward
from tilekit.kernels._activation import swiglu as swiglu
from tilekit.kernels._activation import swiglu_backward as swiglu_backward
from tilekit.kernels._attention.backward import attention_backward as attention_backward
from tilekit.kernels._attention.decode import attention_decode as attention_decode
from tilekit.kernels._attention.forward import attention as attention
from tilekit.kernels._attention.varlen import attention_varlen as attention_varlen
from tilekit.kernels._attention.varlen_backward import attention_varlen_backward as attention_varlen_backward
from tilekit.kernels._dropout import dropout as dropout
from tilekit.kernels._dropout import dropout_backward as dropout_backward
from tilekit.kernels._embedding import embedding as embedding
from tilekit.kernels._embedding import embedding_backward as embedding_backward
from tilekit.kernels._gemm.grouped import grouped_gemm as grouped_gemm
from tilekit.kernels._gemm.products import gemm as gemm
from tilekit.kernels._histogram import histogram as histogram
from tilekit.kernels._l2_norm import l2_norm as l2_norm
from tilekit.kernels._l2_norm import l2_norm_backward as l2_norm_backward
from tilekit.kernels._loss import cross_entropy as cross_entropy
from tilekit.kernels._loss import cross_entropy_backward as cross_entropy_backward
from tilekit.kernels._norm import add_rms_norm as add_rms_norm
from tilekit.kernels._norm import layer_norm as layer_norm
from tilekit.kernels._norm import rms_norm as rms_norm
from tilekit.kernels._norm_gradients import add_rms_norm_backward as add_rms_norm_backward
from tilekit.kernels._norm_gradients import layer_norm_backward as layer_norm_backward
from tilekit.kernels._norm_gradients import rms_norm_backward as rms_norm_backward
from tilekit.kernels._rope import rope as rope
from tilekit.kernels._rope import rope_backward as rope_backward
from tilekit.kernels._scan import cumsum as cumsum
from tilekit.kernels._selection import argmax as argmax
from tilekit.kernels._selection import topk as topk
from tilekit.kernels._softmax import log_softmax as log_softmax
from tilekit.kernels._softmax import log_softmax_backward as log_softmax_backward
from tilekit.kernels._softmax import softmax as softmax
from tilekit.kernels._softmax import softmax_backward as softmax_backward
from tilekit.kernels._transpose import transpose as transpose

if _TYPE_CHECKING:
    from tilekit.kernels._collective.all_reduce import AllReduceWorkspace as AllReduceWorkspace
    from tilekit.kernels._collective.all_reduce import all_reduce as all_reduce
    from tilekit.kernels._collective.products import AllGatherWorkspace as AllGatherWorkspace
    from tilekit.kernels._collective.products import ReduceScatterWorkspace as ReduceScatterWorkspace
    from tilekit.kernels._collective.products import all_gather_matmul as all_gather_matmul
    from tilekit.kernels._collective.products import matmul_reduce_scatter as matmul_reduce_scatter

__all__ = [
    "AllGatherWorkspace",
    "AllReduceWorkspace",
    "ReduceScatterWorkspace",
    "add_rms_norm",
    "add_rms_norm_backward",
    "all_gather_matmul",
    "all_reduce",
    "argmax",
    "attention",
    "attention_backward",
    "attention_decode",
    "attention_varlen",
    "attention_varlen_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "cumsum",
    "dropout",
    "dropout_backward",
    "embedding",
    "embedding_backward",
    "epilogues",
    "gelu",
    "gelu_backward",
    "gemm",
    "grouped_gemm",
    "histogram",
    "l2_norm",
    "l2_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "matmul_reduce_scatter",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_backward",
    "silu",
    "silu_backward",
    "softmax",
    "softmax_backward",
    "swiglu",
    "swiglu_backward",
    "topk",
    "transpose",
]

if not _TYPE_CHECKING:  # which then says itself that there is no such name
    # Those that communicate bring groups of devices along, which other programs need not load.
    _LATER = {
        **dict.fromkeys(("AllReduceWorkspace", "all_reduce"), "all_reduce"),
        **dict.fromkeys(("AllGatherWorkspace", "ReduceScatterWorkspace"), "products"),
        **dict.fromkeys(("all_gather_matmul", "matmul_reduce_scatter"), "products"),
    }

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_import_module(f"{__name__}._collective.{_LATER[name]}"), name)
        return value
