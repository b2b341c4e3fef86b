"""torch.distributed's members: NCCL on GPUs, gloo on CPU devices; and torch's symmetric memory. Imported in their processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tilekit_benchmarks.collective_cases import Array, Case
from tilekit_benchmarks.collective_members import GRAPH_OPS, GROUP_S, EventClock, Member, WallClock, Work

__all__ = ["OfTorch", "join"]

_SYMMETRIC = {"one_shot": "one_shot_all_reduce", "two_shot": "two_shot_all_reduce_"}  # the second is in place


class OfTorch(Member):
    """This process's member of torch.distributed's default group, whose ops are submitted to the current stream.

    Args:
        rank: of the member.
        device: PyTorch's, of the member.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        about = {"torch": torch.__version__}
        if on_gpu:
            about["nccl of torch"] = ".".join(map(str, torch.cuda.nccl.version()))
        super().__init__([rank], about)
        self._rank, self._size, self._device = rank, dist.get_world_size(), device
        if on_gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.clock = EventClock(
                lambda: start.record(),
                lambda: end.record(),
                lambda: torch.cuda.synchronize(device),
                lambda: float(start.elapsed_time(end)),
            )
        else:
            self.clock = WallClock(lambda: None)  # gloo's ops are done when they return

    def work(self, way: str, case: Case) -> Work:
        """See `Member`. The ways are "eager", "graph", and of symmetric memory, in a graph, "one_shot" and "two_shot"."""
        once, x, result = self._symmetric(way, case) if way in _SYMMETRIC else self._collective(case)

        def fill(_: int, values: Array | None) -> None:
            if values is None:
                x.zero_()
            else:
                x.copy_(torch.from_numpy(values))

        in_place = way != "one_shot" and case.op in ("all_reduce", "broadcast")
        work = Work(launch=once, fill=fill, results=lambda: {self._rank: result().cpu().numpy().copy()}, in_place=in_place)
        if way != "eager":
            graph = self._recorded(once)
            work.launch, work.close, work.ops = graph.replay, graph.reset, GRAPH_OPS
        return work

    def _collective(self, case: Case) -> tuple[Callable[[], object], Any, Callable[[], Any]]:
        """What does it once, its input, and what gives its result."""
        x = torch.zeros(case.inputs, device=self._device)
        if case.op == "all_reduce":
            return lambda: dist.all_reduce(x), x, lambda: x
        if case.op == "broadcast":
            return lambda: dist.broadcast(x, 0), x, lambda: x
        y = torch.zeros(case.outputs, device=self._device)
        if case.op == "all_gather":
            return lambda: dist.all_gather_into_tensor(y, x), x, lambda: y
        if case.op == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(y, x), x, lambda: y
        follower, leader = (self._rank + 1) % self._size, (self._rank - 1) % self._size

        def ring() -> None:
            for one in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, follower), dist.P2POp(dist.irecv, y, leader)]):
                one.wait()

        return ring, x, lambda: y

    def _symmetric(self, way: str, case: Case) -> tuple[Callable[[], object], Any, Callable[[], Any]]:
        """As `_collective`, an all-reduce of a tensor that all members see."""
        import torch.distributed._symmetric_memory as symmetric_memory

        if case.op != "all_reduce":
            raise NotImplementedError(f"torch's symmetric memory has no {case.op} of this kind")
        group = dist.group.WORLD.group_name
        x = symmetric_memory.empty(case.inputs, dtype=torch.float32, device=self._device)
        x.zero_()
        seen = symmetric_memory.rendezvous(x, group)
        reduce, results = getattr(torch.ops.symm_mem, _SYMMETRIC[way]), [x]

        def once() -> None:
            assert seen is not None, "which is kept as long as this is"
            results[0] = reduce(x, "sum", group)

        return once, x, lambda: x if way == "two_shot" else results[0]

    def _recorded(self, once: Callable[[], object]) -> Any:
        """A graph of it, after what happens only once."""
        for _ in range(3):
            once()
        torch.cuda.synchronize(self._device)
        dist.barrier()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the group's own threads ask for events meanwhile
            for _ in range(GRAPH_OPS):
                once()
        return graph

    def drop(self) -> None:
        """See `Member`; the memory is given back to the device."""
        super().drop()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """See `Member`."""
        super().close()
        dist.destroy_process_group()


def join(rank: int, size: int, address: str, kind: str, ordinal: int) -> OfTorch:
    """Join torch.distributed's default group, at `address`, with the device of `kind` and `ordinal`."""
    options: dict[str, Any] = {}
    if kind == "cuda":
        torch.cuda.set_device(ordinal)
        device = torch.device("cuda", ordinal)
        backend, options["device_id"] = "nccl", device
    else:
        device, backend = torch.device("cpu"), "gloo"
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it asks for the address of the machine's name
    dist.init_process_group(
        backend, init_method=f"tcp://{address}", rank=rank, world_size=size, timeout=timedelta(seconds=GROUP_S), **options
    )
    return OfTorch(rank, device)
