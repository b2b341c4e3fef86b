"""What the benchmarks of `tilekit.kernels` measure: each kernel with its inputs, its bytes, and what must come out.

A case is checked on some of its rows, in float64, and all of its result is looked at for elements that nobody wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import tilekit as tk
from tilekit import api, kernels
from tilekit._runtime.stream import Stream
from tilekit_benchmarks.report import Unit

__all__ = ["DROPPED", "Case", "Check", "Tensors", "kernel_cases", "norm_cases", "row_warps", "softmax_cases"]

Tensors = Mapping[str, tk.Tensor]
Arrays = Mapping[str, Any]

DROPPED = 0.25
"""The probability in the cases of dropout."""
_SQRT_2_PI = math.sqrt(2 * math.pi)
_ROW_WARPS, _MOST = (2, 4, 8, 16, 32), 128
_F, _H, _I = tk.float32, tk.float16, tk.int64


class Check(Protocol):
    """What knows the right result of a case."""

    def error(self, result: Any) -> float:
        """The largest error of an array, relative to the largest element; NaN if any element is."""
        ...


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel at one size.

    Attributes:
        kernel: which.
        shape, dtype: of its first input, `"x"`; of a product M, N and K.
        nbytes: what a launch must move.
        inputs: ops that make the tensors, by name.
        output: the shape and the dtype of the result that is checked.
        own: tilekit's op, of the inputs and a tensor for the result; some make the result themselves.
        expected: what the inputs, as arrays of some rows each, give for these rows; None where `wrong` says it all.
        wrong: how far off the result is, of the inputs and the result as arrays, relative to the largest element.
        turned: the rows of the result are the columns of `"x"`.
        whole: the check needs all rows.
        tolerance: what is right.
        operations: of a launch, where these are what counts, and not the bytes.
        prepared: tilekit's op is prepared, so that the device's time is measured also where that is short.
        check: makes what knows the right result, of the case, its inputs and a stream, instead of `expected` and `wrong`.
    """

    kernel: str
    shape: tuple[int, ...]
    dtype: Any
    nbytes: int
    inputs: Mapping[str, Callable[[], tk.DeviceOp[tk.Tensor]]]
    output: tuple[tuple[int, ...], Any]
    own: Callable[[Tensors, tk.Tensor], tk.DeviceOp[Any]]
    expected: Callable[[Arrays], Any] | None = None
    wrong: Callable[[Arrays, Any], float] | None = None
    turned: bool = False
    whole: bool = False
    tolerance: float = 2e-5
    operations: int | None = None
    prepared: bool = False
    check: Callable[[Case, Tensors, Stream], Check] | None = None

    @property
    def unit(self) -> Unit:
        """Of its rates."""
        return "GB/s" if self.operations is None else "TFLOP/s"

    @property
    def label(self) -> str:
        """The kernel, the dtype and the shape."""
        return f"{self.kernel} {self.dtype.name} {'x'.join(map(str, self.shape))}"

    def error(self, arrays: Arrays, result: Any) -> float:
        """How far off `result` is for these inputs, relative to the largest element."""
        if self.wrong is not None:
            return self.wrong(arrays, result)
        assert self.expected is not None, "one of them is given"
        right = np.asarray(self.expected({name: _wide(a) for name, a in arrays.items()}), np.float64)
        off = np.abs(np.asarray(result, np.float64) - right).max(initial=0.0)
        return float(off / max(np.abs(right).max(initial=0.0), 1e-30))


def _wide(array: Any) -> Any:
    return array if array.dtype.kind in "iu" else array.astype(np.float64)


def _random(shape: tuple[int, ...], dtype: Any, seed: int) -> Callable[[], tk.DeviceOp[tk.Tensor]]:
    return lambda: api.randn(0.0, 1.0, shape, seed=seed, dtype=dtype)


def _integers(high: int, count: int, seed: int = 9) -> Callable[[], tk.DeviceOp[tk.Tensor]]:
    return lambda: api.randint(0, high, count, dtype=_I, seed=seed)


def _case(kernel: str, shape: tuple[int, int], dtype: Any, own: Any, expected: Any = None, **fields: Any) -> Case:
    """A case that reads `"x"` and what else it is given, and writes as much as it reads of `"x"`, unless told otherwise."""
    nbytes = math.prod(shape) * dtype.itemsize
    more: dict[str, Any] = fields.pop("more", {})
    fields.setdefault("output", (shape, dtype))
    fields.setdefault("nbytes", 2 * nbytes)
    fields.setdefault("tolerance", 2e-3 if dtype == _H else 2e-5)
    inputs = {"x": fields.pop("x", None) or _random(shape, dtype, 1), **more}
    return Case(kernel=kernel, shape=shape, dtype=dtype, own=own, expected=expected, inputs=inputs, **fields)


# --------------------------------------------------------------------------------------------------------- formulas, in float64


def _softmax(a: Arrays) -> Any:
    e = np.exp(a["x"] - a["x"].max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _log_sum_exp(x: Any) -> Any:
    top = x.max(-1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[..., 0]


def _normed(x: Any, eps: float, centred: bool) -> tuple[Any, Any]:
    t = x - x.mean(-1, keepdims=True) if centred else x
    rstd = 1 / np.sqrt((t * t).mean(-1, keepdims=True) + eps)
    return t * rstd, rstd


def _norm_gradient(a: Arrays, eps: float, centred: bool) -> Any:
    t, rstd = _normed(a["x"], eps, centred)
    g = a["grad"] * a["weight"]
    d = g - t * (g * t).mean(-1, keepdims=True)
    return (d - g.mean(-1, keepdims=True) if centred else d) * rstd


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _gelu(a: Arrays) -> Any:
    return 0.5 * a["x"] * (1 + _erf(a["x"] / 2**0.5))


def _dropout_wrong(a: Arrays, result: Any) -> float:
    """Elements are zero or grown; and about as many are dropped as should be."""
    x, y = a["x"].astype(np.float64), result.astype(np.float64)
    if abs(np.mean(y == 0) - DROPPED) > 6 * math.sqrt(DROPPED * (1 - DROPPED) / y.size) + 1e-3:
        return math.inf
    return float(np.abs(np.where(y == 0, 0.0, y - x / (1 - DROPPED))).max() / np.abs(x).max())


def _rope(a: Arrays) -> Any:
    first, second = np.split(a["x"].reshape(*a["x"].shape[:-1], -1, 128), 2, -1)
    c, s = a["cos"][:, None, :], a["sin"][:, None, :]
    return np.concatenate((first * c - second * s, second * c + first * s), -1).reshape(a["x"].shape)


# --------------------------------------------------------------------------------------------------------------------- the cases


def row_warps(block: int) -> tuple[int, ...]:
    """The warps of Triton's variants that have a row in one block of so many elements: a thread has one to 128 of them.

    More do not fit its registers: compiling takes minutes, and what comes of it is slow.
    """
    return tuple(warps for warps in _ROW_WARPS if 32 * warps <= block <= 32 * warps * _MOST)


def softmax_cases(rows: int | None = None) -> list[Case]:
    """softmax of float32, rows of 1024 to 32768 elements, and longer ones."""
    shapes = ((65536, 1024), (32768, 4096), (8192, 16384), (8192, 32768), (2048, 131072))
    return [
        _case("softmax", (rows or count, n), _F, lambda t, y: kernels.softmax(t["x"], out=y), _softmax, tolerance=1e-4)
        for count, n in shapes
    ]


def norm_cases(rows: int | None = None) -> list[Case]:
    """rms_norm and layer_norm of float16, with a sum before it, and the gradients; l2_norm."""
    cases = []
    for count, n in ((32768, 4096), (16384, 8192)):
        shape = (rows or count, n)
        weights = {"weight": _random((n,), _H, 2)}
        both = {**weights, "bias": _random((n,), _H, 3)}
        grad = {**weights, "grad": _random(shape, _H, 4)}
        size = math.prod(shape) * 2
        cases += [
            _case(
                "rms_norm", shape, _H, lambda t, y: kernels.rms_norm(t["x"], t["weight"], out=y),
                lambda a: _normed(a["x"], 1e-6, False)[0] * a["weight"], more=weights,
            ),
            _case(
                "layer_norm", shape, _H, lambda t, y: kernels.layer_norm(t["x"], t["weight"], t["bias"], out=y),
                lambda a: _normed(a["x"], 1e-5, True)[0] * a["weight"] + a["bias"], more=both,
            ),
            _case(
                "add_rms_norm", shape, _H, lambda t, y: kernels.add_rms_norm(t["x"], t["grad"], t["weight"]).first(),
                lambda a: _normed((a["x"] + a["grad"]).astype(np.float16).astype(float), 1e-6, False)[0] * a["weight"],
                more=grad, nbytes=4 * size,
            ),
            _case(
                "l2_norm", shape, _H, lambda t, y: kernels.l2_norm(t["x"], out=y),
                lambda a: a["x"] / np.linalg.norm(a["x"], axis=1, keepdims=True),
            ),
            _case(
                "rms_norm_backward", shape, _H,
                lambda t, y: kernels.rms_norm_backward(t["grad"], t["x"], t["weight"]).first(),
                lambda a: _norm_gradient(a, 1e-6, False), more=grad, nbytes=5 * size,
            ),
            _case(
                "layer_norm_backward", shape, _H,
                lambda t, y: kernels.layer_norm_backward(t["grad"], t["x"], t["weight"]).first(),
                lambda a: _norm_gradient(a, 1e-5, True), more=grad, nbytes=5 * size,
            ),
        ]  # fmt: skip
    return cases


def kernel_cases(rows: int | None = None) -> list[Case]:
    """All other kernels."""
    n = 4096
    count = rows or 32768
    shape, size = (count, n), count * n * 4
    square = (rows or 16384,) * 2
    vocabulary = (rows or 8192, 32768)
    target = {"target": _integers(vocabulary[1], vocabulary[0])}
    grad, other = {"grad": _random(shape, _F, 4)}, {"up": _random(shape, _F, 4)}
    table, width = 50304, 1024
    bins = 256
    flags = {"grad": lambda: api.full((), 1.0)}
    angle = {"cos": _random((count, 64), _F, 5), "sin": _random((count, 64), _F, 6)}
    lse = {"lse": lambda: kernels.cross_entropy(api.randn(0.0, 1.0, vocabulary, seed=1, dtype=_H), target["target"]()).last()}

    def gradient_of_loss(a: Arrays) -> Any:
        p = np.exp(a["x"] - a["lse"][:, None])
        p[np.arange(len(p)), a["target"]] -= 1
        return p

    def picked(a: Arrays, result: Any) -> float:
        best = np.sort(a["x"].astype(np.float64), -1)[:, ::-1][:, :8]
        return float(np.abs(result - best).max())

    def added(a: Arrays, result: Any) -> float:
        columns = slice(0, width, 61)  # NumPy adds slowly
        right = np.zeros((table, width))[:, columns]
        np.add.at(right, a["target"], a["x"][:, columns].astype(np.float64))
        return float(np.abs(right - result[:, columns]).max() / np.abs(right).max())

    def counted(a: Arrays, result: Any) -> float:
        return float(np.abs(np.bincount(a["x"].reshape(-1), minlength=bins) - result).max())

    few, heads = (rows or 65536, width), (count, n // 128, 128)
    return [
        *(_case("gelu", shape, dtype, lambda t, y: kernels.gelu(t["x"], out=y), _gelu) for dtype in (_F, _H)),
        _case(
            "gelu_backward", shape, _F, lambda t, y: kernels.gelu_backward(t["grad"], t["x"], out=y),
            lambda a: a["grad"] * (0.5 * (1 + _erf(a["x"] / 2**0.5)) + a["x"] * np.exp(-(a["x"] ** 2) / 2) / _SQRT_2_PI),
            more=grad, nbytes=3 * size,
        ),
        _case("silu", shape, _F, lambda t, y: kernels.silu(t["x"], out=y), lambda a: a["x"] * _sigmoid(a["x"])),
        _case(
            "swiglu", shape, _F, lambda t, y: kernels.swiglu(t["x"], t["up"], out=y),
            lambda a: a["x"] * _sigmoid(a["x"]) * a["up"], more=other, nbytes=3 * size,
        ),
        *(
            _case("dropout", shape, dtype, lambda t, y: kernels.dropout(t["x"], DROPPED, 123, out=y), wrong=_dropout_wrong)
            for dtype in (_F, _H)
        ),
        *(
            _case("transpose", square, dtype, lambda t, y: kernels.transpose(t["x"], out=y), lambda a: a["x"].T, turned=True)
            for dtype in (_F, _H)
        ),
        _case(
            "cumsum", shape, _F, lambda t, y: kernels.cumsum(t["x"], out=y), lambda a: np.cumsum(a["x"], -1), tolerance=1e-4
        ),
        _case(
            "cross_entropy", vocabulary, _H,
            lambda t, y: kernels.cross_entropy(t["x"], t["target"], reduction="none").first(),
            lambda a: _log_sum_exp(a["x"]) - a["x"][np.arange(len(a["x"])), a["target"]],
            more=target, output=(vocabulary[:1], _F), nbytes=math.prod(vocabulary) * 2, tolerance=2e-5,
        ),
        _case(
            "cross_entropy_backward", vocabulary, _H,
            lambda t, y: kernels.cross_entropy_backward(t["grad"], t["x"], t["target"], t["lse"], reduction="sum", out=y),
            gradient_of_loss, more={**target, **flags, **lse},
        ),
        _case(
            "log_softmax", shape, _F, lambda t, y: kernels.log_softmax(t["x"], out=y),
            lambda a: a["x"] - _log_sum_exp(a["x"])[:, None],
        ),
        _case(
            "softmax_backward", shape, _F, lambda t, y: kernels.softmax_backward(t["grad"], t["x"], out=y),
            lambda a: a["x"] * (a["grad"] - (a["grad"] * a["x"]).sum(-1, keepdims=True)), more=grad, nbytes=3 * size,
            tolerance=1e-4,
        ),
        _case(
            "argmax", shape, _F, lambda t, y: kernels.argmax(t["x"], out=y), lambda a: np.argmax(a["x"], -1),
            output=(shape[:1], _I), nbytes=size + 8 * count, tolerance=0.0,
        ),
        _case(
            "topk", shape, _F, lambda t, y: kernels.topk(t["x"], 8).first(), wrong=picked, output=((count, 8), _F),
            nbytes=size + 12 * 8 * count, tolerance=0.0,
        ),
        _case(
            "histogram", shape, _I, lambda t, y: kernels.histogram(t["x"], bins), wrong=counted, output=((bins,), tk.int32),
            x=lambda: api.randint(0, bins, shape, dtype=_I, seed=1), nbytes=2 * size, whole=True, tolerance=0.0,
        ),
        _case(
            "embedding", (table, width), _H, lambda t, y: kernels.embedding(t["x"], t["target"], out=y),
            wrong=lambda a, result: float(np.abs(a["x"][a["target"]] - result).max()), whole=True,
            more={"target": _integers(table, few[0])}, output=(few, _H), tolerance=0.0,
            nbytes=2 * math.prod(few) * 2 + 8 * few[0],
        ),
        _case(
            "embedding_backward", few, _F, lambda t, y: kernels.embedding_backward(t["x"], t["target"], table), wrong=added,
            more={"target": _integers(table, few[0])}, output=((table, width), _F), whole=True,
            nbytes=math.prod(few) * 4 * 3 + table * width * 4,
        ),
        _case(
            "rope", shape, _H,
            lambda t, y: kernels.rope(t["x"].reshape(heads), t["cos"], t["sin"], out=y.reshape(heads)),
            _rope, more=angle, nbytes=size + 8 * 64 * count,
        ),
    ]  # fmt: skip
