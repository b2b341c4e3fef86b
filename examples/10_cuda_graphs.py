"""CUDA graphs: the layers of a small model recorded once, and launched for one token after the other.

    python examples/10_cuda_graphs.py
    python examples/10_cuda_graphs.py --width 4096 --layers 32 --tokens 100

A layer is x = x + W @ rms_norm(x). The layers are recorded in two ways: as one op made of combinators, `op.graph_on(stream)`, and
by a loop in a scope, `with tk.CudaGraph.scope(stream) as scope: scope.record(...)`. Then each token is copied into x, by
`graph.update`, or bound to the slot it was recorded with, and the graph is launched. On the CPU device the recorded work runs
piece by piece: the same results, and little to gain.
"""

import argparse
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import api

EPS = 1e-6
ROWS = 8  # of a block of matvec
Vector = NDArray[np.float32]


@tk.kernel
def rms_norm(y: tk.Out, x: tk.In, w: tk.In, per_n: float, eps: float) -> None:
    t = tk.load_tile_like(x, y)
    y.store(t * tk.rsqrt(tk.sum(t * t) * per_n + eps) * tk.load_tile_like(w, y))


@tk.kernel
def matvec(y: tk.Out, m: tk.In, x: tk.In, columns: Annotated[int, tk.Const]) -> None:
    rows = tk.load(m, (tk.bid(0), 0), (y.tile_shape[0], columns))
    y.store(tk.sum(rows * tk.load(x, 0, columns), 1))


@tk.kernel
def add(y: tk.InOut, v: tk.In) -> None:
    y.store(y.load() + tk.load_tile_like(v, y))


class Model:
    """Weights on the device, and the memory that all launches write: the graphs are recorded with it."""

    def __init__(self, width: int, layers: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.matrices = rng.normal(0, width**-0.5, (layers, width, width)).astype(np.float32)
        self.weights = rng.normal(1, 0.1, (layers, width)).astype(np.float32)
        self.width, self.tile = width, 1 << (width - 1).bit_length()
        self.layers = [(api.from_host(m).sync(), api.from_host(w).sync()) for m, w in zip(self.matrices, self.weights)]
        self.x, self.h, self.v = (api.zeros(width).sync() for _ in range(3))

    def norm(self, weights: tk.Tensor) -> tk.KernelLaunch:
        return rms_norm(self.h.partition(self.tile), self.x, weights, 1 / self.width, EPS)

    def product(self, matrix: tk.Tensor) -> tk.KernelLaunch:
        return matvec(self.v.partition(ROWS), matrix, self.h, self.tile)

    def residual(self) -> tk.KernelLaunch:
        return add(self.x.partition(self.tile), self.v)

    def layer(self, matrix: tk.Tensor, weights: tk.Tensor) -> tk.DeviceOp[Any]:
        """One layer as an op: three launches, in order."""
        return self.norm(weights).then(lambda _: self.product(matrix)).then(lambda _: self.residual())

    def forward(self) -> tk.DeviceOp[tk.Tensor]:
        """All layers as one op, whose result is x."""
        return tk.join_all([self.layer(*layer) for layer in self.layers]).map(lambda _: self.x)

    def on_host(self, x: Vector) -> Vector:
        """The same by NumPy."""
        for matrix, weights in zip(self.matrices, self.weights):
            x = x + matrix @ (x / np.sqrt(np.mean(x * x) + EPS) * weights)
        return x


def by_combinators(model: Model, stream: tk.Stream) -> tk.CudaGraph:
    """The op is recorded; nothing is executed."""
    return model.forward().graph_on(stream)


def by_scope(model: Model, stream: tk.Stream) -> tk.CudaGraph:
    """What is recorded in the scope becomes one graph, in this order."""
    with tk.CudaGraph.scope(stream) as scope:
        for matrix, weights in model.layers:
            scope.record(model.norm(weights))
            scope.record(model.product(matrix))
            scope.record(model.residual())
    return scope.graph


def with_a_slot(model: Model, stream: tk.Stream, first: tk.Tensor) -> tk.CudaGraph:
    """The copy of the token belongs to the graph, and what it copies from can be bound."""
    copy = api.memcpy(model.x, tk.slot("token", first))
    return tk.zip(copy, model.forward()).last().graph_on(stream)


def updated(graph: tk.CudaGraph, model: Model, tokens: list[tk.Tensor], stream: tk.Stream) -> list[Vector]:
    """The token is copied in before each launch."""
    results: list[Vector] = []
    for token in tokens:
        graph.update(api.memcpy(model.x, token))
        graph.launch().sync_on(stream)
        results.append(model.x.to_host().sync_on(stream))
    return results


def bound(graph: tk.CudaGraph, model: Model, tokens: list[tk.Tensor], stream: tk.Stream) -> list[Vector]:
    """The graph is told where the token is."""
    results: list[Vector] = []
    for token in tokens:
        x = graph.bind(token=token).launch().sync_on(stream)
        results.append(x.to_host().sync_on(stream))
    return results


def eager(model: Model, tokens: list[tk.Tensor], stream: tk.Stream) -> list[Vector]:
    """Without a graph: each op built and submitted, for each token."""
    results: list[Vector] = []
    for token in tokens:
        api.memcpy(model.x, token).async_on(stream)
        results.append(model.forward().to_host().sync_on(stream))
    return results


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The layers of a small model as a CUDA graph, token by token.")
    parser.add_argument("--width", type=int, default=256, help="the length of x (default: 256)")
    parser.add_argument("--layers", type=int, default=4, help="how many layers (default: 4)")
    parser.add_argument("--tokens", type=int, default=6, help="how many tokens (default: 6)")
    options = parser.parse_args(argv)
    if min(options.width, options.layers, options.tokens) < 1:
        parser.exit(2, f"{parser.prog}: --width, --layers and --tokens are at least 1\n")

    device = tk.default_device()
    model = Model(options.width, options.layers)
    values = np.random.default_rng(1).normal(size=(options.tokens, options.width)).astype(np.float32)
    table = api.from_host(values).sync()
    tokens = [table[i] for i in range(options.tokens)]
    expected = [model.on_host(token) for token in values]
    print(f"{options.layers} layers of width {options.width} on {device.kind}:{device.ordinal} ({device.name})")

    with device.stream() as stream:
        combined, scoped, slotted = by_combinators(model, stream), by_scope(model, stream), with_a_slot(model, stream, tokens[0])
        print(f"recorded: {len(combined)} nodes by combinators, {len(scoped)} in a scope, {len(slotted)} with a slot")
        ways: dict[str, Callable[[], list[Vector]]] = {
            "eager": lambda: eager(model, tokens, stream),
            "graph_on, update": lambda: updated(combined, model, tokens, stream),
            "scope, update": lambda: updated(scoped, model, tokens, stream),
            "slot, bind": lambda: bound(slotted, model, tokens, stream),
        }
        for name, way in ways.items():
            way()  # what happens once, such as compiling, happens now
            start = time.perf_counter()
            results = way()
            taken_us = 1e6 * (time.perf_counter() - start) / options.tokens
            for result, right in zip(results, expected):
                if not np.allclose(result, right, rtol=1e-3, atol=1e-3):
                    parser.exit(1, f"{parser.prog}: {name}: a token's result differs from NumPy's\n")
            print(f"{name:18} {taken_us:9.1f} us per token, the same as NumPy's")


if __name__ == "__main__":
    main()
