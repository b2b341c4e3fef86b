"""Token by token: what a model of many small kernels takes for each, eager, chained, prepared, and as a CUDA graph.

A layer is `x = x + W @ rms_norm(x)`, in float16 with sums in float32, three kernels. The token's row of a table is copied into x;
the host waits for the result of all layers before the next token, as one does whose next token depends on it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api
from tilekit._environment import version_of
from tilekit._runtime.stream import Stream
from tilekit.ops import DeviceOp
from tilekit_benchmarks import Options, _tilekit_decode, launch_peers
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.harness import Contestant, Variant, compete, timer_for
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.saxpy_peers import DeviceArray
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["LAYERS", "WIDTHS", "run"]

LAYERS = {"cuda": 32, "cpu": 2}
"""How many layers the model has, by the kind of device."""

WIDTHS: Mapping[str, tuple[int, ...]] = {"cuda": (1024, 2048, 4096), "cpu": (64, 128)}
"""The lengths of x that are measured. On a GPU the weights of all layers are larger than its caches from 2048 on."""

_TOKENS, _EPS, _SEED = 16, 1e-6, 20261121
_TOLERANCE = 1e-2  # of the length of the result; a float16 that is rounded once more or less in each layer makes 1e-3
# Rows of a block of matvec, and its warps: the fastest are measured.
_MATVECS = tuple(itertools.product((1, 2, 4, 8), (4, 8, 16)))
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure a token of a model of `options.n` layers, for several widths. Blocks until it is done."""
    device, layers = options.device, options.n or LAYERS[options.device.kind]
    with ExitStack() as stack:
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        models = _Models(stream, layers)
        candidates = [*(_on_gpu(models) if device.kind == "cuda" else _on_cpu(models)), *_own(models)]
        _log.info("decode: %d layers, on %s", layers, device.label)
        return sweep(
            options,
            candidates,
            WIDTHS[device.kind],
            benchmark="decode",
            axis="width",
            unit="us per token",
            parameters=models.chosen,
            agreement=f"is within {_TOLERANCE:g} of it",
        )


class _Models:
    """The model of the width that is measured; the one before is dropped.

    Attributes:
        chosen: how many layers there are, and how the rows are dealt out to blocks, for each width.
    """

    def __init__(self, stream: Stream, layers: int) -> None:
        self.stream, self.layers = stream, layers
        self.chosen: dict[str, float] = {"n": layers}
        self._model: _Model | None = None

    def of(self, width: int) -> _Model:
        """The model of such a width."""
        if self._model is None or self._model.width != width:
            self._model = None  # its memory is free before the next one's is taken
            self._model = _Model(self.stream, self.layers, width)
            self.chosen |= {f"rows_{width}": self._model.rows, f"warps_{width}": self._model.warps}
        return self._model


class _Model:
    """The weights, what is calculated on the way, and the work that a contestant makes of a token.

    Attributes:
        width: the length of x.
        matrices, weights: of each layer, the matrix, and the weights of its rms_norm.
        table: a row for each token.
        x, h, v: the state, its rms_norm, and the product; written in place.
        rows, warps: of a block of matvec.
    """

    def __init__(self, stream: Stream, layers: int, width: int) -> None:
        self.stream, self.layers, self.width = stream, layers, width
        seeds = itertools.count(_SEED)

        def normal(shape: Any, mean: float, deviation: float) -> tk.Tensor:
            tensor: tk.Tensor = api.randn(mean, deviation, shape, seed=next(seeds), dtype=tk.float16).sync_on(stream)
            return tensor

        self.matrices = [normal((width, width), 0.0, width**-0.5) for _ in range(layers)]
        self.weights = [normal(width, 1.0, 0.1) for _ in range(layers)]
        self.table = normal((_TOKENS, width), 0.0, 1.0)
        self.tokens = [self.table[at] for at in range(_TOKENS)]
        self.x, self.h, self.v = (api.zeros(width, tk.float16).sync_on(stream) for _ in range(3))
        self._blank = api.full(width, float("nan"), tk.float16).sync_on(stream)
        self._tile = 1 << (width - 1).bit_length()
        self._norm_warps = max(1, min(16, self._tile // 256))  # 16 bytes a thread
        self.rows, self.warps = (4, 4)
        if stream.device.kind == "cuda":
            self.rows, self.warps = self._fastest()
        self._at = 0
        self._expected = self._on_host()

    def _fastest(self) -> tuple[int, int]:
        """Rows and warps with which a pass over all matrices takes least."""
        # Each thread reads 16 bytes at least.
        fitting = [(rows, warps) for rows, warps in _MATVECS if 8 * 32 * warps <= rows * self._tile] or [(8, 4)]
        timer = timer_for(self.stream.device, self.stream)
        try:
            variants = tuple(Variant(label=f"{rows} {warps}", launch=self._pass(rows, warps)) for rows, warps in fitting)
            for variant in variants:
                variant.launch()
            self.stream.synchronize()
            (best,) = compete([Contestant(name=OWN, version="", variants=variants)], timer, rounds=1, sample_ms=2.0)
        finally:
            timer.close()
        rows, warps = map(int, best.variant.split())
        return rows, warps

    def _pass(self, rows: int, warps: int) -> Callable[[], object]:
        recorded = tk.join_all([self._matvec(matrix, rows, warps) for matrix in self.matrices]).graph_on(self.stream)
        return lambda: recorded.run(self.stream)

    def _matvec(self, matrix: tk.Tensor, rows: int, warps: int) -> DeviceOp[Any]:
        launch: DeviceOp[Any] = _tilekit_decode.matvec(self.v.partition(rows), matrix, self.h, self._tile).num_warps(warps)
        return launch

    # the layers as ops

    def ops(self) -> list[DeviceOp[Any]]:
        """The launches of all layers, anew: three each."""
        launches = []
        for matrix, weights in zip(self.matrices, self.weights, strict=True):
            launches += [self._norm(weights), self._matvec(matrix, self.rows, self.warps), self._add()]
        return launches

    def fused_ops(self) -> list[DeviceOp[Any]]:
        """The same with the addition in the kernel of the product: two each."""
        launches: list[DeviceOp[Any]] = []
        x, tile = self.x.partition(self.rows), self._tile
        for matrix, weights in zip(self.matrices, self.weights, strict=True):
            launches += [self._norm(weights), _tilekit_decode.matvec_add(x, matrix, self.h, tile).num_warps(self.warps)]
        return launches

    def _norm(self, weights: tk.Tensor) -> DeviceOp[Any]:
        launch = _tilekit_decode.rms_norm(self.h.partition(self._tile), self.x, weights, 1 / self.width, _EPS)
        configured: DeviceOp[Any] = launch.num_warps(self._norm_warps)
        return configured

    def _add(self) -> DeviceOp[Any]:
        launch: DeviceOp[Any] = _tilekit_decode.add(self.x.partition(256), self.v)
        return launch

    # what is measured

    def next(self) -> int:
        """The number of the next token."""
        self._at = (self._at + 1) % _TOKENS
        return self._at

    def work(self, launch: Callable[[], object], **fields: Any) -> Work:
        """With the check that all contestants share: the token after `reset` is the first."""

        def reset() -> None:
            api.memcpy(self.x, self._blank).sync_on(self.stream)
            self._at = -1

        def check() -> str | None:
            result = self.x.to_host().sync_on(self.stream).astype(np.float64)
            off = float(np.linalg.norm(result - self._expected) / np.linalg.norm(self._expected))
            return None if off <= _TOLERANCE else f"the first token's result is off by {off:.3g}, {_TOLERANCE:g} is right"

        return Work(launch=launch, reset=reset, check=check, **fields)

    def _on_host(self) -> np.ndarray[Any, Any]:
        """What comes of the first token, in float32."""
        x = self.tokens[0].to_host().sync_on(self.stream).astype(np.float32)
        for matrix, weights in zip(self.matrices, self.weights, strict=True):
            on_host, w = (t.to_host().sync_on(self.stream).astype(np.float32) for t in (matrix, weights))
            x = x + on_host @ (x / np.sqrt(np.mean(x * x) + np.float32(_EPS)) * w)
        return x.astype(np.float64)


def _own(models: _Models) -> list[Candidate]:
    stream = models.stream

    def token(model: _Model) -> DeviceOp[Any]:
        return api.memcpy(model.x, model.tokens[model.next()])

    def eager(model: _Model) -> Callable[[], object]:
        def launch() -> None:
            token(model).async_on(stream)
            for op in model.ops():
                op.async_on(stream)
            stream.synchronize()

        return launch

    def chained(model: _Model) -> Callable[[], object]:
        return lambda: tk.join_all([token(model), *model.ops()]).sync_on(stream)

    def prepared(model: _Model) -> Callable[[], object]:
        op = tk.join_all(model.ops()).prepare()

        def launch() -> None:
            op.update(token(model))
            op.sync_on(stream)

        return launch

    def graph(ops: Callable[[_Model], list[DeviceOp[Any]]]) -> Callable[[_Model], Callable[[], object]]:
        def make(model: _Model) -> Callable[[], object]:
            recorded = tk.join_all(ops(model)).graph_on(stream)

            def launch() -> None:
                recorded.update(token(model))
                recorded.sync_on(stream)

            return launch

        return make

    def bound(model: _Model) -> Callable[[], object]:
        first = api.memcpy(model.x, tk.slot("token", model.tokens[0]))
        recorded = tk.join_all([first, *model.ops()]).graph_on(stream)
        return lambda: recorded.sync_on(stream, token=model.tokens[model.next()])

    def graphed(model: _Model) -> Callable[[], object]:
        function = tk.graphed(lambda row: tk.join_all([api.memcpy(model.x, row), *model.ops()]))
        return lambda: function(model.tokens[model.next()]).sync_on(stream)

    ways: dict[str, Callable[[_Model], Callable[[], object]]] = {
        "eager": eager,
        "chain built, sync": chained,
        "prepared": prepared,
        "graph": graph(_Model.ops),
        "graph, the token bound": bound,
        "a graphed function": graphed,
        "graph, add in matvec": graph(_Model.fused_ops),
    }

    def candidate(variant: str, way: Callable[[_Model], Callable[[], object]]) -> Candidate:
        def build(width: int) -> Work:
            model = models.of(width)
            return model.work(way(model))

        return Candidate(name=OWN, version=tk.__version__, variant=variant, build=build)

    return [candidate(variant, way) for variant, way in ways.items()]


def _on_gpu(models: _Models) -> list[Candidate]:
    stream = models.stream

    def in_torch(width: int) -> tuple[_Model, Callable[[], object], Callable[[], object], Callable[[], object], Any]:
        """The model; in PyTorch, what copies the next token, what a token's layers are, what waits; and what makes its stream."""
        device, active = launch_peers.in_torch(stream)
        import torch

        model = models.of(width)

        def shared(tensor: tk.Tensor) -> Any:
            return torch.as_tensor(DeviceArray(tensor), device=device)

        x, v, table = shared(model.x), shared(model.v), shared(model.table)
        layers = [(shared(m), shared(w)) for m, w in zip(model.matrices, model.weights, strict=True)]

        def forward() -> None:
            for matrix, weights in layers:
                torch.mv(matrix, torch.nn.functional.rms_norm(x, (width,), weights, _EPS), out=v)
                x.add_(v)

        tokens = list(table)
        with active():
            wait = torch.cuda.current_stream(device).synchronize
        return model, lambda: x.copy_(tokens[model.next()]), forward, wait, active

    def eager(width: int) -> Work:
        model, copy, forward, wait, active = in_torch(width)

        def launch() -> None:
            copy()
            forward()
            wait()

        return model.work(launch, active=active)

    def graph(width: int) -> Work:
        model, copy, forward, wait, active = in_torch(width)
        import torch

        with active():
            forward()  # what happens once happens before it is captured
            wait()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, capture_error_mode="relaxed"):  # tilekit's events may be asked meanwhile
            forward()

        def launch() -> None:
            copy()
            recorded.replay()
            wait()

        return model.work(launch, active=active)

    version = f"{version_of('torch')}"
    return [
        Candidate(name="torch", version=version, variant="CUDA graph", build=graph),
        Candidate(name="torch", version=version, variant="eager", build=eager),
    ]


def _on_cpu(models: _Models) -> list[Candidate]:
    """NumPy, in float32."""

    def build(width: int) -> Work:
        model = models.of(width)
        x = model.x.host_view()
        table = model.table.to_host().sync_on(models.stream)
        layers = [
            tuple(t.to_host().sync_on(models.stream).astype(np.float32) for t in pair)
            for pair in zip(model.matrices, model.weights, strict=True)
        ]

        def launch() -> None:
            state = table[model.next()].astype(np.float32)
            for matrix, weights in layers:
                state = state + matrix @ (state / np.sqrt(np.mean(state * state) + np.float32(_EPS)) * weights)
            x[:] = state

        return model.work(launch)

    return [Candidate(name="numpy", version=np.__version__, variant="float32", build=build)]
