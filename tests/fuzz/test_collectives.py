"""Random groups, collectives, dtypes, shapes and views, in one process and joined, against their meaning."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import tilekit as tk
from tilekit import api
from tilekit._groups import Group, free_address

BUDGET = 0.4

DTYPES = [tk.float32, tk.float64, tk.float16, tk.bfloat16, tk.int8, tk.uint8, tk.int32, tk.uint32, tk.int64, tk.uint64]
MOVED = [*DTYPES, tk.bool_, tk.int16, tk.uint16]
REDUCING = ("all_reduce", "reduce_scatter")
CUT = ("reduce_scatter", "all_to_all")


class Plan:
    """A few collectives, one after the other, of one group."""

    def __init__(self, seed):
        rng = self.rng = np.random.default_rng(seed)
        self.size = int(rng.integers(1, 6))
        self.calls = [self._call() for _ in range(int(rng.integers(1, 6)))]

    def _call(self):
        rng = self.rng
        kind = str(rng.choice(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "permute"]))
        dtype = (DTYPES if kind in REDUCING else MOVED)[int(rng.integers(len(DTYPES)))]
        shape = tuple(int(n) for n in rng.integers(1, 9, int(rng.integers(1, 4))))
        if kind in CUT:
            shape = (shape[0] * self.size, *shape[1:])
        options = {}
        if kind in REDUCING:
            options["op"] = str(rng.choice(["sum", "prod", "max", "min"] + ["avg"] * (np.dtype(dtype).kind not in "iu")))
        if kind == "broadcast":
            options["root"] = int(rng.integers(self.size))
        if kind == "permute":
            sources, targets = (rng.permutation(self.size)[: int(rng.integers(self.size + 1))] for _ in range(2))
            options["pairs"] = [(int(source), int(target)) for source, target in zip(sources, targets)]
        parts = [rng.integers(0, 3, shape).astype(dtype) for _ in range(self.size)]
        return kind, options, parts, bool(rng.integers(2)), bool(rng.integers(2))

    def expected(self, rank):
        return [_meaning(kind, options, parts, rank) for kind, options, parts, *_ in self.calls]


def _meaning(kind, options, parts, rank):
    n = parts[0].shape[0] // len(parts)
    if kind == "all_gather":
        return np.concatenate(parts)
    if kind == "broadcast":
        return parts[options["root"]]
    if kind == "permute":
        return next((parts[source] for source, target in options["pairs"] if target == rank), np.zeros_like(parts[0]))
    if kind == "all_to_all":
        return np.concatenate([part[rank * n : (rank + 1) * n] for part in parts])
    wide = np.stack([part.astype(np.float64) for part in parts])
    function = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "avg": np.mean}[options["op"]]
    whole = function(wide, axis=0)
    return whole if kind == "all_reduce" else whole[rank * n : (rank + 1) * n]


def _tensor(array, device, turned):
    """On the device; as a view that is not contiguous if `turned`."""
    if not turned:
        return api.from_host(array).on(device).sync()
    return api.from_host(np.ascontiguousarray(array.T)).on(device).sync().T


def _wrong(found, expected, dtype):
    close = np.allclose(found.astype(np.float64), expected.astype(np.float64), rtol=1e-2 if dtype.itemsize < 4 else 1e-6)
    return found.shape != expected.shape or found.dtype != dtype or not close


def _problem(plan, results):
    """`results`: for each rank, what each call gave."""
    for rank, found in enumerate(results):
        for (kind, options, parts, *_), a, b in zip(plan.calls, found, plan.expected(rank), strict=True):
            if _wrong(a, b, parts[0].dtype):
                return f"rank {rank} of {plan.size}: {kind} {options} of {parts[0].dtype} {parts[0].shape}: {a} and not {b}"
    return None


def _in_one_process(plan, devices):
    with Group(devices) as group:
        futures = []
        for kind, options, parts, turned, lazily in plan.calls:
            xs = [_tensor(part, device, turned) for part, device in zip(parts, devices)]
            xs = [tk.value(x) for x in xs] if lazily else xs
            futures.append(getattr(group, kind)(xs, **options).schedule(devices[0].policy))
        found = [[tensor.numpy() for tensor in future.result()] for future in futures]
    return list(zip(*found))


def _joined(plan, devices):
    address = free_address()

    def member(rank):
        device = devices[rank]
        with Group.join(rank, plan.size, address=address, device=device, timeout_s=60) as group:
            futures = []
            for kind, options, parts, turned, lazily in plan.calls:
                x = _tensor(parts[rank], device, turned)
                futures.append(getattr(group, kind)(tk.value(x) if lazily else x, **options).schedule(device.policy))
            return [future.result().numpy() for future in futures]

    with ThreadPoolExecutor(plan.size) as pool:
        return list(pool.map(member, range(plan.size)))


def test_in_one_process(several_devices, cases):
    for seed in cases:
        plan = Plan(seed)
        problem = _problem(plan, _in_one_process(plan, several_devices(plan.size)))
        assert problem is None, cases.report(seed, problem)


def test_joined(several_devices, cases):
    for seed in cases:
        plan = Plan(seed)
        problem = _problem(plan, _joined(plan, several_devices(plan.size)))
        assert problem is None, cases.report(seed, problem)
