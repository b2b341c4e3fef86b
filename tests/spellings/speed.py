# ruff: noqa: T201
"""Mutants of the kernels here beside the kernels themselves, timed in turns on a GPU: how a user writes costs nothing.

    python tests/spellings/speed.py --mutants 8 --seed 1

It compiles as many mutants of each kernel, on all cores, skips those whose machine code is the kernel's own, checks the results
of the others against the kernel's, and prints how much longer each takes (the median of the rounds). It ends with an error where
one is more than 3 % slower, or wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("TILEKIT_CACHE_DIR", "/tmp/tilekit-spellings")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "stand_ins"), str(ROOT / "tests" / "spellings"), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from kernels import KERNELS  # noqa: E402
from mutations import mutated  # noqa: E402
from test_mutants import compiled_kernel  # noqa: E402

import tilekit as tk  # noqa: E402
from tilekit import api  # noqa: E402

MOST = 1.03
F16, F32, U8 = tk.float16, tk.float32, tk.uint8
# Of each kernel: its tensors, its result and that one's tiles, and scalars; they take from 50 us on.
SIZES = {
    "gemm": ([((4096, 4096), F16)] * 2, ((4096, 4096), F16), (128, 128), ()),
    "gemm by 32": ([((4096, 4096), F16)] * 2, ((4096, 4096), F16), (128, 128), ()),
    "split-K": ([((1024, 16384), F16), ((16384, 1024), F16)], ((4, 1024, 1024), F32), (1, 128, 128), (64,)),
    "int4": ([((4096, 4096), F16), ((4096, 4096), U8), ((4096,), F32)], ((4096, 4096), F16), (128, 128), ()),
    "convolution": ([((3, 16384, 512), F16), ((3, 512, 512), F16)], ((16384, 512), F16), (64, 64), ()),
    "softmax": ([((65536, 1000), F16)], ((65536, 1000), F16), (4, 1024), ()),
    "long softmax": ([((4096, 50000), F16)], ((4096, 1), F16), (1, 1), ()),
    "columns": ([((16384, 16384), F16)], ((16384,), F16), (64,), ()),
    "layer norm": ([((65536, 1024), F16), ((1024,), F32), ((1024,), F32)], ((65536, 1024), F16), (4, 1024), ()),
    "attention": ([((32, 4096, 64), F16)] * 3, ((32, 4096, 64), F16), (1, 128, 64), ()),
    "causal attention": ([((32, 4096, 64), F16)] * 3, ((32, 4096, 64), F16), (1, 128, 64), ()),
}


def launch(name, source, label, tensors, out):
    _, _, tile, scalars = SIZES[name]
    return compiled_kernel(source, label)(out.partition(tile), *tensors, *scalars)


def machine_code(job):
    """A kernel's instructions, compiled for an H100 or H200; it lies in the cache then."""
    name, source, label = job
    inputs, output, *_ = SIZES[name]
    kernel = launch(name, source, label, [api.meta(*one) for one in inputs], api.meta(*output)).compile("sm_90a")
    return kernel.cubin


def data(shape, dtype, seed):
    if dtype == U8:
        return api.randint(0, 256, shape, seed=seed, dtype=dtype).sync()
    return api.randn(0.0, 1.0, shape, seed=seed, dtype=dtype).sync()


def main():
    parser = argparse.ArgumentParser(description="Time mutants beside their kernels.")
    parser.add_argument("--mutants", type=int, default=8, help="of each kernel")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    jobs = []
    for name in SIZES:
        source = KERNELS[name][0]
        jobs.append((name, source, name))
        jobs += [(name, mutated(source, options.seed + n), f"{name} {options.seed + n}") for n in range(options.mutants)]
    with ProcessPoolExecutor() as pool:
        codes = dict(zip((label for _, _, label in jobs), pool.map(machine_code, jobs), strict=True))

    from tilekit_benchmarks.harness import Contestant, EventTimer, Variant, compete

    worst, wrong, equal = 0.0, [], 0
    with tk.default_device().stream() as stream:
        timer = EventTimer(stream)
        for name in SIZES:
            inputs, output, *_ = SIZES[name]
            tensors = [data(*one, seed) for seed, one in enumerate(inputs)]
            contestants, expected = [], None
            for _, source, label in (job for job in jobs if job[0] == name):
                if contestants and codes[label] == codes[name]:
                    equal += 1
                    continue
                out = api.full(output[0], float("nan"), output[1]).sync()
                ready = launch(name, source, label, tensors, out).prepare()
                ready.run(stream)
                stream.synchronize()
                found = out.to_host().sync().astype(np.float32)
                expected = found if expected is None else expected
                if not np.abs(found - expected).max() <= 4e-3 * np.abs(expected).max():
                    wrong.append(f"{label}\n{source}")
                variant = Variant(launch=lambda ready=ready: ready.run(stream))
                contestants.append(Contestant(name=label, version="", variants=(variant,)))
            first, *others = compete(contestants, timer, rounds=options.rounds)
            for one in others:
                ratio = statistics.median(a / b for a, b in zip(one.samples_us, first.samples_us, strict=True))
                worst = max(worst, ratio)
                print(f"{one.name}: {ratio:.3f} of {first.median_us:.1f} us{'  SLOW' if ratio > MOST else ''}", flush=True)
        timer.close()
    print(f"{len(jobs) - len(SIZES)} mutants, {equal} with the same machine code; the slowest {worst:.3f}; {len(wrong)} wrong")
    print(*wrong, sep="\n")
    return worst > MOST or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
