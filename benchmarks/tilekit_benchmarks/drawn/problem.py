"""What a case is once it has memory: tensors of PyTorch's, tilekit's op on them, PyTorch's functions, and what must come out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tilekit as tk
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw

__all__ = ["Family", "Operands", "Problem", "error_of", "tolerance_of", "width_of"]

# What a result of this dtype may be off, see `error_of`: four times what rounding once does.
_TOLERANCES = {"float64": 1e-12, "float32": 5e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
_WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "int32": 4, "int64": 8}
# Elements that are compared at a time: their differences in float64 take as much memory again.
_CHUNK = 2**26


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A case with its tensors.

    Attributes:
        own: makes tilekit's op, which writes a tensor that is there where it can: launches that are recorded one after the other
            would each have a result of their own, where PyTorch has the memory of the last one again.
        peers: what each peer calls, by name: "torch" for PyTorch's eager function, which torch.compile compiles, too.
        reference: gives what must come out, in float64; several tensors where the op has several results.
        part: what of the results the reference gives, of all of them.
        by_rows: whether rows along the last axis are measured by their own size where that is above the average, see `error_of`.
        tolerance: how far off tilekit's results may be, see `error_of`.
        peers_tolerance: how far off peers', which round in between, may be; None for four times as far.
        triton: a kernel of `_triton_kernels.VARIANTS` or `_triton_attention.VARIANTS`, its tensors by name, and that which it
            writes; None where there is none that takes such tensors.
    """

    own: Callable[[], tk.DeviceOp[Any]]
    peers: Mapping[str, Callable[[], Any]]
    reference: Callable[[], Any]
    tolerance: float
    peers_tolerance: float | None = None
    part: Callable[[tuple[Any, ...]], tuple[Any, ...]] = field(default=lambda results: results)
    by_rows: bool = False
    triton: tuple[str, Mapping[str, Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """What cases are drawn of.

    Attributes:
        summary: in a few words.
        draw: draws a case.
        problem: gives a case its tensors.
    """

    summary: str
    draw: Callable[[Draw], Case]
    problem: Callable[[Case, Operands], Problem]


class Operands:
    """Makes the tensors of a case, always the same ones.

    Attributes:
        torch: PyTorch.
        device: PyTorch's name of the device.
        host_seed: for random numbers of the host's.
    """

    def __init__(self, torch: Any, device: Any, seed: int, case: Case) -> None:
        self.torch, self.device, self._case = torch, device, case
        self.host_seed = hash((seed, case.number, case.attempt)) % 2**32  # of ints, so that it is the same in each process
        self._generator = torch.Generator(device).manual_seed(self.host_seed)

    def dtype(self, name: str | None = None) -> Any:
        """PyTorch's dtype of this name, by default that of the case."""
        return getattr(self.torch, name or self._case.dtype)

    def normal(self, *shape: int, dtype: str | None = None, layout: str | None = None) -> Any:
        """Random numbers of a normal distribution, in the layout of the case, unless told otherwise."""
        outer = list(shape)
        gap = self._case.options.get("gap", 0)
        layout = layout or self._case.layout
        if layout == "rows with gaps":
            outer[-1] += gap
        elif layout == "batches with gaps":
            outer[-2] += gap
        values = self.torch.randn(outer, generator=self._generator, device=self.device).to(self.dtype(dtype))
        return values[(..., *map(slice, shape[-2:]))] if outer != list(shape) else values

    def vector(self, n: int, dtype: str | None = None) -> Any:
        """Such a vector, without gaps."""
        return self.normal(n, dtype=dtype, layout=CONTIGUOUS)

    def integers(self, low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
        """Random integers from `low` to `high - 1`."""
        options = {"generator": self._generator, "device": self.device, "dtype": self.dtype(dtype)}
        return self.torch.randint(low, high, shape, **options)

    def empty(self, *shape: int, dtype: str | None = None) -> Any:
        """A tensor without gaps."""
        return self.torch.empty(shape, device=self.device, dtype=self.dtype(dtype))


def width_of(dtype: str) -> int:
    """Bytes of an element."""
    return _WIDTHS[dtype]


def tolerance_of(dtype: str) -> float:
    """How far off results of a dtype may be."""
    return _TOLERANCES[dtype]


def error_of(torch: Any, results: Sequence[Any], right: Sequence[Any], by_rows: bool = False) -> float:
    """How far off results are: the largest difference of any element, divided by that element and the root mean square of all.

    If `by_rows`, it is the root mean square of the row along the last axis where that is larger. So are results measured whose
    rows are sums of unlike size, each of terms that were rounded: what is lost is a part of the row's terms, not of all rows'.

    Infinite where a result has another shape, NaN where one has an element that is none. Of integers, the largest difference.
    """
    worst = 0.0
    for result, wanted in zip(results, right, strict=True):
        if tuple(result.shape) != tuple(wanted.shape):
            return math.inf
        if not wanted.numel():
            continue
        floats = result.dtype.is_floating_point
        # Half of what lies between the numbers nearest to zero is lost whatever the rounding.
        least = 0.5 * torch.finfo(result.dtype).smallest_normal * torch.finfo(result.dtype).eps if floats else 0.0
        scale = wanted.square().mean().sqrt() if floats else 0.0
        rows = max(1, _CHUNK * (wanted.shape[0] if wanted.ndim else 1) // wanted.numel())
        pairs = zip(result.split(rows), wanted.split(rows)) if wanted.ndim else [(result, wanted)]
        for x, r in pairs:
            size = r.square().mean(-1, keepdim=True).sqrt().clamp(min=scale) if floats and by_rows else scale
            off = ((x.to(r.dtype) - r).abs() - least).clamp(min=0.0)
            part = float((off / (r.abs() + size).clamp(min=1e-300) if floats else off).max())
            worst = part if not part <= worst else worst  # a NaN stays
            if math.isnan(worst):
                return worst
    return worst
