"""Random programs on sharded arrays give what NumPy gives of whole ones: shapes, meshes, splits, functions, collectives.

A program's values are ops or arrays, as drawn, so that long chains run in one go, and are used by several steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import Draw
from sharded_plans import Plan, Step, Value, plan, split
from shrinking import shortest

import tilekit as tk
from tilekit import api, kernels
from tilekit._driver.cpu import driver as cpu_driver
from tilekit._runtime.device import Device
from tilekit.distributed.sharding.mesh import Mesh
from tilekit.distributed.sharding.specs import ShardSpec


@tk.kernel
def scaled(y: tk.Out, x: tk.In, factor: float):
    y.store(tk.load_tile_like(x, y) * factor)


@tk.kernel
def added(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) + tk.load_tile_like(y, z))


def scale(x, factor):
    return scaled(api.empty(x.size).partition(32), x.reshape(-1), factor).out().reshape(x.shape)


def add(x, y):
    return added(api.empty(x.size).partition(32), x.reshape(-1), y.reshape(-1)).out().reshape(x.shape)


def spec_of(value: Value) -> ShardSpec:
    return ShardSpec(*value.dims, partial=value.partial)


def step_op(mesh: Mesh, step: Step, operands: list[Any]) -> Any:
    """The op of a step."""
    options = step.options
    match step.kind:
        case "shard":
            array = options["array"]
            source = {"array": lambda: array, "tensor": lambda: api.from_host(array).sync(), "op": lambda: api.from_host(array)}
            return mesh.shard(source[options["how"]](), options["dims"])
        case "scale":
            partial = step.results[0].partial
            return mesh.map(scale, operands[0], options["factor"], out=spec_of(step.results[0]) if partial else None)
        case "add":
            return mesh.map(add, *operands)
        case "two results":
            specs = [spec_of(value) for value in step.results]
            return mesh.map(lambda x: (scale(x, 2.0), scale(x, -1.0)), operands[0], out=specs)
        case "softmax":
            return mesh.map(kernels.softmax, operands[0])
        case "product":
            return mesh.map(kernels.gemm, *operands, out=spec_of(step.results[0]))
        case "reshard":
            return mesh.reshard(operands[0], options["dims"])
        case "reduce":
            return mesh.reduce(operands[0])
        case "all_reduce":
            return mesh.all_reduce(operands[0], options["names"], options["op"])
        case "reduce_scatter":
            return mesh.reduce_scatter(operands[0], options["names"], options["dim"], options["op"])
        case "all_gather":
            return mesh.all_gather(operands[0], options["names"])
    raise AssertionError(step.kind)


def differs(value: Value, whole: Any, expected: Any) -> bool:
    if whole.shape != expected.shape or whole.dtype != expected.dtype:
        return True
    if value.exact:
        return not np.array_equal(whole, expected)
    return not np.allclose(whole, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max(initial=0))))


def wrong(mesh: Mesh, value: Value, x: Any) -> str | None:
    """What is wrong with a result; None if nothing is."""
    if (x.shape, x.spec) != (value.whole.shape, spec_of(value)):
        return f"is {x}, and should be {value.whole.shape} by {spec_of(value)}"
    if value.partial:
        x = mesh.reduce(x).sync()
    if differs(value, x.to_host().sync(), value.whole):
        return f"differs: {x.to_host().sync().tolist()}, and should be {value.whole.tolist()}"
    for number, (part, expected) in enumerate(zip(x.parts, split(value.whole, value.dims, dict(mesh.axes)))):
        if differs(value, part.to_host().sync(), expected):
            return f"differs on worker {number}: {part.to_host().sync().tolist()}, and should be {expected.tolist()}"
    return None


def run(program: Plan, devices: list[Device]) -> str | None:
    """Run a program; what is wrong with it, or None."""
    size = int(np.prod(list(program.axes.values())))
    results: list[Any] = []
    step: Any = None
    with Mesh(devices[:size], program.axes) as mesh:
        try:
            for step in program.steps:
                take(mesh, step, results)
            for number, (value, result) in enumerate(zip(program.values, results)):
                step = f"v{number}"
                problem = wrong(mesh, value, result.sync() if isinstance(result, tk.DeviceOp) else result)
                if problem is not None:
                    return f"{step} {problem}\n{program}"
        except Exception as error:
            return f"{step}: {type(error).__name__}: {error}\n{program}"
        finally:
            for result in results:
                if isinstance(result, tk.DeviceOp):
                    result.consumed()  # after an error nobody runs the others
    return None


def take(mesh: Mesh, step: Step, results: list[Any]) -> None:
    """Take a step: add its results, or see that it is refused."""
    if step.refused:
        try:
            step_op(mesh, step, [results[at] for at in step.operands]).sync()
        except ValueError as error:
            if step.refused in str(error):
                return
            raise
        raise AssertionError("was not refused")
    op = step_op(mesh, step, [results[at] for at in step.operands])
    ops = [each.shared() for each in op.unzip()] if len(step.results) > 1 else [op.shared()]
    results += [each.sync() if step.waits else each for each in ops]


@pytest.fixture(scope="module")
def devices():
    """CPU devices of this module's own."""
    return [Device.of_driver(driver) for driver in cpu_driver.discover(8)]


@pytest.mark.usefixtures("cpu")
def test_sharded_programs(cases, devices):
    for seed in cases:
        draw = Draw(seed)
        problem = run(plan(draw), devices)
        if problem is not None:
            _, shorter = shortest(draw.choices, plan, lambda program: run(program, devices))
            problem = f"{problem}\nshorter: {shorter}"
        assert problem is None, cases.report(seed, problem)


BUDGET = 0.5
