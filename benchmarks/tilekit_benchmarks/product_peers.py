"""torch's member of the benchmark of groups' products: NCCL, and its symmetric memory. Imported in its process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # which defines torch.ops.symm_mem
from numpy.typing import NDArray

import tilekit as tk
from tilekit_benchmarks.collective_members import EventClock
from tilekit_benchmarks.collective_peers import join as join_default_group
from tilekit_benchmarks.product_members import OPS, WAYS, Product, ProductMember

__all__ = ["join"]


class _OfTorch(ProductMember):
    """This process's member of torch.distributed's default group."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        super().__init__(rank, size)
        self._device = device
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.clock = EventClock(
            lambda: start.record(), lambda: end.record(), lambda: torch.cuda.synchronize(device), lambda: start.elapsed_time(end)
        )

    def version(self) -> str:
        """See `ProductMember`."""
        return f"{torch.__version__}"

    def make(self, product: Product) -> tuple[dict[str, Callable[[], object]], Callable[[], NDArray[Any]]]:
        """See `ProductMember`. "together" are `fused_all_gather_matmul` and `fused_matmul_reduce_scatter`."""
        (m, n, k), dtype, name = product.shape, getattr(torch, product.dtype), dist.group.WORLD.group_name
        x, w = (torch.from_numpy(each).to(self._device, dtype) for each in product.operands(self._rank, self._size))
        y = torch.empty(m, n, device=self._device, dtype=dtype)
        last: list[Any] = []
        alone: Callable[[], object]
        if product.op == OPS[0]:
            whole = torch.empty(m, k, device=self._device, dtype=dtype)

            def alone() -> object:
                return torch.mm(whole, w, out=y)

            def collective() -> object:
                return dist.all_gather_into_tensor(whole, x)

            def together() -> None:
                last[:] = torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, name)[1]

            parts = (collective, alone)
        else:
            part = torch.empty(m // self._size, n, device=self._device, dtype=dtype)

            def alone() -> object:
                return torch.mm(x, w, out=y)

            def collective() -> object:
                return dist.reduce_scatter_tensor(part, y)

            def together() -> None:
                last[:] = [torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w, "sum", 0, name)]

            parts = (alone, collective)

        def in_turn() -> None:
            for each in parts:
                each()

        ways = dict(zip(WAYS, (alone, collective, in_turn, together), strict=False))
        return ways, lambda: last[0].float().cpu().numpy().astype(np.float32)

    def close(self) -> None:
        """See `ProductMember`."""
        super().close()
        torch.cuda.synchronize(self._device)
        dist.destroy_process_group()


def join(rank: int, size: int, address: str, label: str) -> ProductMember:
    """Join torch.distributed's default group."""
    device = tk.Device(label)
    join_default_group(rank, size, address, device.kind, device.ordinal)
    return _OfTorch(rank, size, torch.device(device.kind, device.ordinal))
