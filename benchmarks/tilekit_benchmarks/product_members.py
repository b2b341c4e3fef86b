"""What a process does that takes part in the benchmark of groups' products: one member, of tilekit's or another library's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import api, kernels
from tilekit_benchmarks.collective_members import GROUP_S, Clock, EventClock, WallClock

__all__ = ["OPS", "WAYS", "Product", "ProductMember", "of_tilekit"]

OPS = ("all_gather_matmul", "matmul_reduce_scatter")
WAYS = ("product", "collective", "in turn", "together", "in a graph")
"""The product alone, the collective alone, one after the other, both in one op, and that in a CUDA graph."""

_CHECKED = 64  # rows and columns that are compared with NumPy's


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product that is dealt out to `size` members, of shape `(M, N, K)`.

    Of `all_gather_matmul` each member has `M / size` rows of `x`, and its own `w`; of `matmul_reduce_scatter` all rows, and gets
    `M / size` rows of the sum.
    """

    op: str
    shape: tuple[int, int, int]
    dtype: str

    def operands(self, rank: int, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """`x` and `w` of a member: normally distributed sixteenths, which have bits enough to heat the device, and are exact."""
        m, n, k = self.shape
        rng = np.random.default_rng(rank)
        rows = m // size if self.op == OPS[0] else m
        x, w = (np.rint(16 * rng.standard_normal(shape, np.float32)) / np.float32(16) for shape in ((rows, k), (k, n)))
        return x, w

    def difference(self, corner: NDArray[Any], rank: int, size: int) -> str | None:
        """What is wrong with the first rows and columns of a member's result; None if nothing is."""
        expected = _corner(self, rank, size)
        wrong = np.abs(corner - expected) > 0.02 * np.abs(expected) + 1  # sums are rounded to 16 bits
        return f"rank {rank}: {wrong.sum()} of {wrong.size} elements are wrong" if wrong.any() else None


@lru_cache(maxsize=1)
def _corner(product: Product, rank: int, size: int) -> NDArray[np.float32]:
    """The first rows and columns of a member's result."""
    operands = [product.operands(each, size) for each in range(size)]
    if product.op == OPS[0]:
        rows = np.concatenate([x[:_CHECKED] for x, _ in operands])[:_CHECKED]
        return np.asarray(rows @ operands[rank][1][:, :_CHECKED])
    height = product.shape[0] // size
    own = slice(rank * height, rank * height + min(height, _CHECKED))
    return np.asarray(sum(x[own] @ w[:, :_CHECKED] for x, w in operands))


class ProductMember:
    """What is the same for all libraries: its ways, made by `make`, are called without waiting.

    Attributes:
        about: what it says of itself when it has started.
    """

    clock: Clock

    def __init__(self, rank: int, size: int) -> None:
        self.about: dict[str, str | None] = {}
        self._rank, self._size = rank, size
        self._ways: dict[str, Callable[[], object]] = {}

    def make(self, product: Product) -> tuple[dict[str, Callable[[], object]], Callable[[], NDArray[Any]]]:
        """The ways of a product, and what gives the result of the last call of "together", or its first rows and columns."""
        raise NotImplementedError

    def version(self) -> str:
        """The library's."""
        raise NotImplementedError

    def build(self, product: Product) -> str | None:
        """Build a product and check it; what is wrong with its result, None if nothing is."""
        self._ways, result = self.make(product)
        wrong = None
        for _ in range(3):
            self._ways["together"]()
            self.clock.wait()
            wrong = wrong or product.difference(result()[:_CHECKED, :_CHECKED], self._rank, self._size)
        return wrong

    def ways(self) -> list[str]:
        """Those that there are."""
        return list(self._ways)

    def sample(self, way: str, calls: int) -> float:
        """Microseconds of the device's that a call takes, as the mean of so many, behind as many: the device is as hot then as
        such calls make it, on which its clock depends.
        """
        return [self.clock.sample_us(self._ways[way], calls)[0] for _ in range(2)][-1]

    def drop(self) -> None:
        """Give up what was built."""
        self._ways = {}
        gc.collect()

    def close(self) -> None:
        """Leave the group."""
        self.drop()


class _OfTilekit(ProductMember):
    """This process's member of a group of tilekit's. All is submitted to one stream."""

    def __init__(self, rank: int, size: int, group: tk.Group) -> None:
        super().__init__(rank, size)
        self._group, (self._device,) = group, group.devices
        self._stream = stream = self._device.stream()
        self.clock = WallClock(stream.synchronize)
        if self._device.kind == "cuda":
            start, end = (self._device.event(timing=True) for _ in range(2))
            self.clock = EventClock(
                lambda: start.record(stream), lambda: end.record(stream), stream.synchronize, lambda: start.elapsed_ms(end)
            )

    def version(self) -> str:
        """See `ProductMember`."""
        return tk.__version__

    def make(self, product: Product) -> tuple[dict[str, Callable[[], object]], Callable[[], NDArray[Any]]]:
        """See `ProductMember`."""
        group, (m, n, k), dtype = self._group, product.shape, getattr(tk, product.dtype)
        made: Any = kernels  # which have no annotations

        def new(*shape: int) -> tk.Tensor:
            return api.zeros(shape, dtype).on(self._device).sync()

        x, w = (api.from_host(each).on(self._device).astype(dtype).sync() for each in product.operands(self._rank, self._size))
        y = new(m, n)
        alone: Callable[[], Any]
        collective: Callable[[], Any]
        together: Callable[[], Any]
        in_turn: Callable[[], Any]
        if product.op == OPS[0]:
            whole, target = new(m, k), y
            gathering = made.AllGatherWorkspace(group, x.shape, dtype)
            alone = lambda: made.gemm(whole, w, out=y)  # noqa: E731
            collective = lambda: group.all_gather(x, out=whole)  # noqa: E731
            in_turn = lambda: collective().then(lambda _: alone())  # noqa: E731
            together = lambda: made.all_gather_matmul(x, w, gathering, out=y)  # noqa: E731
        else:
            target = new(m // self._size, n)
            scattering = made.ReduceScatterWorkspace(group, (m, n), dtype)
            alone = lambda: made.gemm(x, w, out=y)  # noqa: E731
            collective = lambda: group.reduce_scatter(y, out=target)  # noqa: E731
            in_turn = lambda: alone().then(lambda _: collective())  # noqa: E731
            together = lambda: made.matmul_reduce_scatter(x, w, scattering, out=target)  # noqa: E731
        ops = dict(zip(WAYS, (alone, collective, in_turn, together), strict=False))
        ways: dict[str, Callable[[], object]] = {way: partial(self._submit, op) for way, op in ops.items()}
        if self._device.kind == "cuda":
            together().sync_on(self._stream)
            graph = together().graph_on(self._stream)
            ways[WAYS[-1]] = lambda: graph.run(self._stream)
        return ways, lambda: target.to_host().sync().astype(np.float32)

    def _submit(self, op: Callable[[], Any]) -> None:
        op().async_on(self._stream)

    def close(self) -> None:
        """See `ProductMember`."""
        super().close()
        self._device.synchronize()
        self._group.close()


def of_tilekit(rank: int, size: int, address: str, label: str) -> ProductMember:
    """Join a group of tilekit's, with a process for each member."""
    tk.set_default_device(label)
    return _OfTilekit(rank, size, tk.Group.join(rank, size, address=address, device=label, timeout_s=GROUP_S))
