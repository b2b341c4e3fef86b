"""Tensor parallelism: a network of two layers whose weights are split over all devices, with one all-reduce.

    python examples/16_tensor_parallel_mlp.py
    python examples/16_tensor_parallel_mlp.py --data 2 --rows 4096 --features 1024 --hidden 4096 --outputs 1024

The first layer's weights are split by columns, the second's by rows. So each device calculates its columns of the hidden layer
and goes on with them alone: what it gets is a summand of the scores, and only these have to be summed across devices. With
`--data 2` the devices form a grid, and the batch is split over its other axis.

It uses every GPU that tilekit can use, else four CPU devices (or TILEKIT_CPU_DEVICES), which share the same cores. The scores
must be those of one device.
"""

import argparse
import os
from typing import Any

import numpy as np

os.environ.setdefault("TILEKIT_CPU_DEVICES", "4")  # read when tilekit first looks for devices

import tilekit as tk
from tilekit import api, distributed, kernels
from tilekit.kernels import epilogues


def network(batch: Any, w1: Any, w2: Any) -> tk.DeviceOp[Any]:
    """Two layers. All of the weights' columns and rows, or some of them: it is the same here."""
    hidden = kernels.gemm(batch, w1, epilogue=epilogues.relu)
    return kernels.gemm(hidden, w2)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A network of two layers, split over all devices.")
    sizes = {"data": 1, "rows": 48, "features": 64, "hidden": 200, "outputs": 24}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        if value < 1:
            parser.exit(2, f"{parser.prog}: --{name} {value}: at least one\n")
    kind = tk.default_device().kind
    devices = [device for device in tk.devices() if device.kind == kind]
    if len(devices) % args.data:
        parser.exit(2, f"{parser.prog}: --data {args.data} does not divide {len(devices)} devices\n")

    rng = np.random.default_rng(0)
    batch = rng.standard_normal((args.rows, args.features), np.float32)
    w1 = rng.standard_normal((args.features, args.hidden), np.float32) * args.features**-0.5
    w2 = rng.standard_normal((args.hidden, args.outputs), np.float32) * args.hidden**-0.5
    alone = network(*(api.from_host(array) for array in (batch, w1, w2))).to_host().sync()

    with distributed.Mesh(devices, {"data": args.data, "model": len(devices) // args.data}) as mesh:
        rows = mesh.shard(batch, ("data", None)).sync()
        by_columns = mesh.shard(w1, (None, "model")).sync()
        by_rows = mesh.shard(w2, ("model", None)).sync()
        summands = distributed.ShardSpec("data", None, partial="model")  # how what the network gives belongs together
        scores = mesh.map(network, rows, by_columns, by_rows, out=summands).reduce().sync()
        for array in (by_columns, by_rows, scores):
            print(array.layout(), end="\n\n")
        np.testing.assert_allclose(scores.to_host().sync(), alone, rtol=1e-4, atol=1e-4)
    print(f"{args.rows} x {args.outputs} scores, the same on {len(devices)} x {devices[0].kind} as on one device")


if __name__ == "__main__":
    main()
