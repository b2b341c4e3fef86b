"""tilekit in PyTorch's programs: kernels as operators of `torch.library`, and work on PyTorch's current stream.

    import tilekit.torch

    y = tilekit.torch.ops.rms_norm(x, weight)  # differentiable, in eager programs and under torch.compile

Nothing of tilekit imports this package; its user does, and it imports PyTorch. `custom_op` makes an operator of a launch,
`tilekit.torch.ops` has those of the ready-made kernels.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 - whether it is there
except ImportError as error:
    raise ImportError("tilekit.torch needs PyTorch: pip install 'tilekit-cuda[torch]'", name="torch") from error

from tilekit.torch import ops as ops
from tilekit.torch._custom_op import custom_op as custom_op
from tilekit.torch._streams import current_stream as current_stream

__all__ = ["current_stream", "custom_op", "ops"]
