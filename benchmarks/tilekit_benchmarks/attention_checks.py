"""Attention and its gradients by NumPy, and what the benchmarks `attention` and `varlen` compare with them, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tilekit._runtime.stream import Stream
from tilekit_benchmarks.kernel_cases import Case, Tensors

__all__ = [
    "CheckedGradients", "CheckedRows", "CheckedSequences", "attend", "gradients", "heads_of", "is_causal", "of_sequences",
]  # fmt: skip

# Heads that are compared, and rows of each; all rows of gradients, since each depends on all others.
_HEADS, _ROWS = 4, 32
_HEADS_OF_GRADIENTS = 2
# Packed sequences that are compared, of the first and of the last head in turn.
_SEQUENCES = 5
# Queries at a time, of which the weights are in memory.
_CHUNK = 1024


def is_causal(case: Case) -> bool:
    """Whether queries see only the keys up to their own place."""
    return case.kernel.startswith("causal")


def heads_of(queries: tuple[int, ...], keys: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """For these shapes the sequence, the head, and the head of the keys, of all heads."""
    for b in range(queries[0]):
        for h in range(queries[1]):
            yield b, h, h * keys[1] // queries[1]


def _weights(q: Any, k: Any, places: Any) -> Any:
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if places is not None:
        scores = np.where(np.arange(len(k))[None, :] <= places[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attend(q: Any, k: Any, v: Any, places: Any) -> Any:
    """Rows of the result, for queries at these places of a causal sequence, or anywhere if there are none."""
    return _weights(q, k, places) @ v


def gradients(q: Any, k: Any, v: Any, grad: Any, places: Any) -> tuple[Any, Any, Any]:
    """The gradients by `q`, `k` and `v` for a gradient by the result, as `attend`."""
    factor = 1 / math.sqrt(q.shape[-1])
    dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
    for at in range(0, len(q), _CHUNK):
        some = slice(at, at + _CHUNK)
        p = _weights(q[some], k, None if places is None else places[some])
        dp = grad[some] @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * factor
        dq[some] = ds @ k
        dk += ds.T @ q[some]
        dv += p.T @ grad[some]
    return dq, dk, dv


def of_sequences(q: Any, k: Any, v: Any, grad: Any = None, *, causal: bool) -> Any:
    """The result for a head of a sequence; with a gradient by the result, the three gradients."""
    places = np.arange(len(q)) if causal else None
    return attend(q, k, v, places) if grad is None else np.stack(gradients(q, k, v, grad, places))


def _chosen(tensors: Tensors, count: int) -> list[tuple[int, int, int]]:
    """Some of all heads, first and last included."""
    heads = list(heads_of(tensors["x"].shape, tensors["key"].shape))
    return [heads[i] for i in np.unique(np.linspace(0, len(heads) - 1, min(count, len(heads))).astype(int))]


def _wide(tensors: Tensors, what: str, b: int, h: int, stream: Stream) -> Any:
    """A head on the host."""
    return tensors[what][b, h].to_host().sync_on(stream).astype(np.float64)


def _error(result: Any, right: Any) -> float:
    return float(np.abs(result.astype(np.float64) - right).max() / np.abs(right).max())


class CheckedRows:
    """Some rows of some heads of the right result."""

    def __init__(self, case: Case, tensors: Tensors, stream: Stream) -> None:
        length = tensors["x"].shape[2]
        self._heads = _chosen(tensors, _HEADS)
        self._rows = np.unique(np.linspace(0, length - 1, min(_ROWS, length)).astype(int))
        places = self._rows if is_causal(case) else None
        right = []
        for b, h, at in self._heads:
            q, k, v = (
                _wide(tensors, "x", b, h, stream),
                _wide(tensors, "key", b, at, stream),
                _wide(tensors, "value", b, at, stream),
            )
            right.append(attend(q[self._rows], k, v, places))
        self._right = np.stack(right)

    def error(self, result: Any) -> float:
        """The largest error of these rows, relative to the largest element; NaN where an element of any row is NaN."""
        if bool(np.isnan(result).any()):
            return float("nan")
        return _error(np.stack([result[b, h][self._rows] for b, h, _ in self._heads]), self._right)


class CheckedGradients:
    """The gradients of some heads; each head has keys of its own."""

    def __init__(self, case: Case, tensors: Tensors, stream: Stream) -> None:
        self._heads = _chosen(tensors, _HEADS_OF_GRADIENTS)
        places = np.arange(tensors["x"].shape[2]) if is_causal(case) else None
        self._right = []
        for b, h, _ in self._heads:
            q, k, v, grad = (_wide(tensors, what, b, h, stream) for what in ("x", "key", "value", "grad"))
            self._right.append(gradients(q, k, v, grad, places))

    def error(self, result: Any) -> float:
        """The largest error of any of the three, each relative to its largest element; NaN where any element is NaN."""
        if bool(np.isnan(result).any()):
            return float("nan")
        errors = [_error(x[b, h], right) for (b, h, _), three in zip(self._heads, self._right) for x, right in zip(result, three)]
        return max(errors)


class CheckedSequences:
    """Some packed sequences, each with one head: the result, or the gradients if there is one by the result."""

    def __init__(self, case: Case, tensors: Tensors, stream: Stream) -> None:
        starts, heads = tensors["starts"].to_host().sync_on(stream), case.shape[1]
        count = len(starts) - 1
        chosen = np.unique(np.linspace(0, count - 1, min(_SEQUENCES, count)).astype(int))
        self._right = []
        for n, b in enumerate(chosen):
            h, some = (0, heads - 1)[n % 2], slice(int(starts[b]), int(starts[b + 1]))
            operands = [
                tensors[what][some, h].to_host().sync_on(stream).astype(np.float64)
                for what in ("x", "key", "value", "grad")
                if what in tensors
            ]
            self._right.append((np.s_[..., some, h, :], of_sequences(*operands, causal=is_causal(case))))

    def error(self, result: Any) -> float:
        """The largest error, relative to the largest element of each; NaN where any element is NaN."""
        if bool(np.isnan(result).any()):
            return float("nan")
        several = result.ndim > 3
        errors = []
        for at, right in self._right:
            computed = result[at]
            errors += [_error(*pair) for pair in zip(computed, right)] if several else [_error(computed, right)]
        return max(errors)
