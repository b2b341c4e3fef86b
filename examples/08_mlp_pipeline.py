"""A pipeline: batches through a small network, each a chain of copies and kernels, several in flight on a pool of streams.

    python examples/08_mlp_pipeline.py
    python examples/08_mlp_pipeline.py --batches 32 --rows 1024 --features 512 --hidden 1024

For each batch: copy it to the device, hidden = relu(batch @ w1), scores = hidden @ w2, copy the scores back. That is one op; the
batches are awaited together, so that the copies of one overlap the kernels of another. The product of matrices is written as
multiplications and sums over small tiles, which shows how it goes; it is not how to do it fast.
"""

import argparse
import asyncio
import time

import numpy as np

import tilekit as tk
from tilekit import api

BM, BN, BK = 16, 16, 16  # a block's tile of the product, and the step along the sum


@tk.kernel
def gemm(c: tk.Out, a: tk.In, b: tk.In, steps: int, depth: tk.Const):
    """c = a @ b: the block (i, j) multiplies the tiles of row i of `a` with those of column j of `b`."""
    i, j = tk.bid(0), tk.bid(1)
    rows, columns = c.tile_shape
    total = tk.zeros((rows, columns), tk.float32)
    for k in range(steps):
        left, right = tk.load(a, (i, k), (rows, depth)), tk.load(b, (k, j), (depth, columns))
        total = total + tk.sum(left[:, :, None] * right[None, :, :], 1)
    c.store(total)


@tk.kernel
def relu(y: tk.InOut):
    y.store(tk.maximum(y.load(), 0.0))


@tk.kernel
def matvec(y: tk.Out, m: tk.In, x: tk.In, steps: int, columns: tk.Const):
    rows = y.tile_shape[0]
    total = tk.zeros(rows, tk.float32)
    for k in range(steps):
        total = total + tk.sum(tk.load(m, (tk.bid(0), k), (rows, columns)) * tk.load(x, k, columns), 1)
    y.store(total)


class Network:
    """Two layers: w1 of shape (features, hidden), w2 of length hidden."""

    def __init__(self, w1, w2):
        self.host = w1, w2
        self.w1, self.w2 = api.from_host(w1).sync(), api.from_host(w2).sync()

    def scores(self, batch):
        """An op: from a batch in the host's memory to its scores there."""
        (rows, features), hidden = batch.shape, self.w2.shape[0]
        return (
            gemm(api.empty((rows, hidden)).partition((BM, BN)), api.from_host(batch), self.w1, -(-features // BK), BK)
            .then(lambda done: relu(done[0]))
            .then(lambda done: matvec(api.empty(rows).partition(BM), done[0].unpartition(), self.w2, -(-hidden // 64), 64))
            .first()
            .unpartition()
            .to_host()
        )

    def on_host(self, batch):
        """The same by NumPy."""
        w1, w2 = self.host
        return np.maximum(batch @ w1, 0) @ w2


async def one_after_the_other(network, batches):
    """Each batch is waited for before the next begins."""
    return [await network.scores(batch) for batch in batches]


async def pipelined(network, batches):
    """All batches are submitted, on the streams of the device's pool in turn, and awaited together."""
    return await asyncio.gather(*(network.scores(batch) for batch in batches))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Batches through a small network, several in flight.")
    for name, default in (("batches", 6), ("rows", 32), ("features", 48), ("hidden", 64)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    options = parser.parse_args(argv)
    for name, value in vars(options).items():
        if value < 1:
            parser.exit(2, f"{parser.prog}: --{name} {value}: at least one\n")

    device = tk.default_device()
    rng = np.random.default_rng(0)
    w1 = rng.normal(0, options.features**-0.5, (options.features, options.hidden)).astype(np.float32)
    network = Network(w1, rng.normal(size=options.hidden).astype(np.float32))
    batches = rng.normal(size=(options.batches, options.rows, options.features)).astype(np.float32)
    print(f"{options.batches} batches of {options.rows} x {options.features} on {device.kind}:{device.ordinal} ({device.name})")

    asyncio.run(pipelined(network, batches))  # kernels are compiled
    for name, way in (("one after the other", one_after_the_other), ("pipelined", pipelined)):
        start = time.perf_counter()
        results = asyncio.run(way(network, batches))
        taken_ms = 1e3 * (time.perf_counter() - start)
        for batch, result in zip(batches, results):
            if not np.allclose(result, network.on_host(batch), rtol=1e-4, atol=1e-4):
                parser.exit(1, f"{parser.prog}: {name}: the scores of a batch differ from NumPy's\n")
        print(f"{name:20} {taken_ms:9.2f} ms, the same as NumPy's")


if __name__ == "__main__":
    main()
