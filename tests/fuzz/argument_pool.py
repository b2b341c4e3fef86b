"""What random calls are made with: values that fit, values that do not, and objects that lie. And what they are made on."""

from __future__ import annotations

import atexit
import functools
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from argument_liars import OBJECTS

import tilekit as tk
from tilekit import api, interop, kernels, memory, random

try:
    from tilekit.compiler import _launch
except ImportError:  # not built, and not needed
    _launch = None

Factory = Callable[[], Any]


def add_scaled(y: tk.InOut, x: tk.In, a: float):
    y.store(y.load() + a * tk.load_tile_like(x, y))


scale = tk.kernel(add_scaled)
x = tk.generics("x")


@tk.kernel
def with_generic(y: tk.InOut):
    y.store(y.load() + tk.sum(tk.ones((x,))))


@tk.kernel
def with_constant(y: tk.InOut, n: int, flag: tk.Const):
    y.store(y.load() + (n if flag else 2))


@tk.operation
def doubled(source):
    tensor = yield source
    other = yield api.dup(tensor)
    return tensor, other


SIGNATURE = "y: InOut[f32]"
PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 y, .param .f32 a, .param .u64 n, .param .u8 b) { ret; }
"""


CONFIG = tk.LaunchConfig(grid=(1,), block=(32,))


@functools.cache
def numba_kernel() -> Any:
    from numba import cuda

    return cuda.jit(lambda y: None)


def wrapped() -> Any:
    return tk.wrap(numba_kernel(), CONFIG)


def spent() -> Any:
    op = api.ones(4)
    op.sync()
    return op


def closed() -> Any:
    stream = tk.default_device().stream()
    stream.close()
    return stream


def closed_graph() -> Any:
    graph = scale(tensor().partition(2), tensor(), 2.0).graph()
    graph.close()
    return graph


@functools.cache
def group() -> Any:
    """Of a CPU device, wherever the tests run."""
    return tk.Group(["cpu"])


atexit.register(group.cache_clear)  # streams that outlive the modules have no way to go


def of_group(shape: Any = (4,)) -> Any:
    return [api.zeros(shape).on("cpu").sync()]


def tensor(dtype: Any = tk.float32, shape: Any = (4,)) -> Any:
    return api.zeros(shape, dtype).sync()


SCALARS: dict[str, Factory] = {
    repr(value): (lambda value=value: value)
    for value in (
        *(None, True, False, 0, 1, 2, 3, 4, 7, 8, 64, -1, -2, -(2**31), 2**31, 2**32 + 1, 2**63, 2**64, 2**70, -(2**70), 10**400),
        *(0.0, -0.0, 0.5, 2.0, -1.5, 1e308, math.inf, -math.inf, math.nan, 1j, 2**70 * 1.0),
        *(
            "",
            "cpu",
            "cuda",
            "cuda:99",
            "cpu:7",
            "float32",
            "zero",
            "k",
            "x",
            "sm_80",
            "sm_999",
            "nan",
            "nonsense",
            "\ud800",
            "a" * 300,
        ),
        *(b"", b"bytes", "\0", " ", "%s {x} {", "<f4", ">f4", "f4,f4", "int3", "(4,)"),
        *((), (4,), (2, 4), (1, 2), (1,), (3,), (0,), (-1,), (2**40, 2**40), (4, "x"), (None,), ((4,),), (1.5,), (1,) * 40),
        *([], [4], [[1, 2], [3]], [None], {}, {"x": 1}, {4}, slice(None), slice(0, 4, 0), slice("a"), ..., NotImplemented),
        *((True,), (math.nan,), ([4],), (2**70,), (slice(None), 7), (0, 0, 0), (slice(0, 4, 2**70),), (..., ...), (None, 0)),
        *({4: 4}, {"x": None}, {"shape": (4,)}, frozenset({4}), (4.0, 4), (b"x",), (("a", int),), [("a", "f4")], ["x"]),
        *(int, float, str, object, np.float32, np.int64, Exception, Exception("one"), range(4), bytearray(b"abc")),
    )
}
DTYPES = [np.dtype(name) for name in "?bBhHiIqQefdFDgOSUV"] + [
    *map(np.dtype, ("M8[s]", "m8[s]")),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
]
ARRAYS: dict[str, Factory] = {f"np.zeros(4, {dtype})": (lambda dtype=dtype: np.zeros(4, dtype)) for dtype in DTYPES} | {
    "np.ones((2, 4), np.float32)": lambda: np.ones((2, 4), np.float32),
    "np.array(3.0)": lambda: np.array(3.0),
    "np.zeros(0)": lambda: np.zeros(0),
    "np.zeros((2, 0, 3))": lambda: np.zeros((2, 0, 3)),
    "np.ones((4, 4), order='F')": lambda: np.ones((4, 4), np.float32, order="F"),
    "np.ones(16)[::-2]": lambda: np.ones(16, np.float32)[::-2],
    "big-endian": lambda: np.ones(4, ">f4"),
    "read-only": lambda: np.broadcast_to(np.float32(1), (4,)),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "matrix": lambda: np.matrix([[1.0]]),
    "record": lambda: np.zeros(2, [("a", "i4"), ("b", "f4")]),
    "np.float32(2)": lambda: np.float32(2),
    "np.int64(-3)": lambda: np.int64(-3),
    "np.nan64": lambda: np.float64("nan"),
    "np.datetime64": lambda: np.datetime64("2020-01-01"),
    "np.str_": lambda: np.str_("x"),
    "unaligned": lambda: np.frombuffer(b"\0" * 17, np.uint8)[1:].view(np.float32),
    "32 dimensions": lambda: np.zeros((1,) * 32, np.float32),
}
_TENSOR_DTYPES = [
    *(tk.bool_, tk.int8, tk.int16, tk.int32, tk.int64, tk.uint8, tk.uint16, tk.uint32, tk.uint64),
    *(tk.float16, tk.bfloat16, tk.float32, tk.float64, tk.float8_e4m3fn, tk.float8_e5m2),
]
DEVICE: dict[str, Factory] = {f"tensor({dtype.name})": (lambda dtype=dtype: tensor(dtype)) for dtype in _TENSOR_DTYPES} | {
    "tensor (8,)": lambda: tensor(shape=(8,)),
    "tensor (4, 4)": lambda: tensor(shape=(4, 4)),
    "tensor (2, 4, 8)": lambda: tensor(shape=(2, 4, 8)),
    "tensor (1, 2, 16, 16)": lambda: tensor(tk.float16, (1, 2, 16, 16)),
    "tensor ()": lambda: tensor(shape=()),
    "tensor (0,)": lambda: tensor(shape=(0,)),
    "tensor (2, 16, 16)": lambda: tensor(tk.float16, (2, 16, 16)),
    "matrix (16, 16)": lambda: tensor(tk.float16, (16, 16)),
    "rows (16, 2, 16)": lambda: tensor(tk.float16, (16, 2, 16)),
    "sums (1, 2, 16)": lambda: tensor(shape=(1, 2, 16)),
    "sums (2, 16)": lambda: tensor(shape=(2, 16)),
    "angles (2, 8)": lambda: tensor(shape=(2, 8)),
    "query (1, 2, 1, 16)": lambda: tensor(tk.float16, (1, 2, 1, 16)),
    "lengths": lambda: api.full((1,), 16, tk.int32).sync(),
    "starts": lambda: api.from_host(np.array([0, 16], np.int32)).sync(),
    "offsets": lambda: api.from_host(np.array([8, 16], np.int32)).sync(),
    "labels": lambda: tensor(tk.int64),
    "tensor strided": lambda: tensor(shape=(16,))[::2],
    "tensor turned": lambda: tensor(shape=(16,))[::-1],
    "tensor.T": lambda: tensor(shape=(4, 8)).T,
    "meta tensor": lambda: api.meta((4,)),
    "unwritten tensor": lambda: api.empty(4).sync(),
    "partition": lambda: tensor().partition(2),
    "partition (4, 4)": lambda: tensor(shape=(4, 4)).partition((2, 2)),
    "mapped partition": lambda: tensor().partition(2).map(),
    "scattered": lambda: tensor().scattered(),
    "meta partition": lambda: api.meta((4,)).partition(2),
    "tensor of cpu:1": lambda: api.zeros(4).on(other_device()).sync(),
    "op": lambda: api.ones(4),
    "op (4, 4)": lambda: api.ones((4, 4)),
    "spent op": spent,
    "shared op": lambda: api.ones(4).shared(),
    "host op": lambda: api.ones(4).to_host(),
    "tuple op": lambda: tk.zip(api.ones(4), 5),
    "value op": lambda: tk.value(3),
    "failing op": lambda: tk.value(3).map(lambda _: 1 // 0),
    "launch": lambda: scale(tensor().partition(2), tensor(), 2.0),
    "stream": lambda: tk.default_device().stream(),
    "closed stream": closed,
    "stream of cpu:1": lambda: other_device().stream(),
    "event": lambda: tk.default_device().event(),
    "timing event": lambda: tk.default_device().event(timing=True),
    "device": tk.default_device,
    "cpu:1": lambda: other_device(),
    "policy": lambda: tk.StreamPoolRoundRobin(tk.default_device(), 2),
    "least loaded": lambda: tk.LeastLoaded(tk.default_device(), 2),
    "single": lambda: tk.SingleStream(tk.default_device()),
    "graph": lambda: scale(tensor().partition(2), tensor(), 2.0).graph(),
    "prepared": lambda: scale(tensor().partition(2), tensor(), 2.0).prepare(),
    "slotted": lambda: scale(tensor().partition(2), tk.slot("x", tensor()), 2.0).graph(),
    "scope": lambda: tk.CudaGraph.scope(),
    "future": lambda: api.ones(4).async_on(tk.default_device().stream()),
    "idle future": lambda: api.ones(4).into_future(),
    "kernel": lambda: scale,
    "function": lambda: add_scaled,
    "numba kernel": numba_kernel,
    "wrapped kernel": lambda: tk.wrap(numba_kernel()),
    "configured wrapped kernel": lambda: wrapped(),
    "code kernel": lambda: tk.cuda_source('extern "C" __global__ void k(float* y) {}', "k", SIGNATURE),
    "configured code kernel": lambda: tk.load_module(PTX).kernel("k", "InOut[f32], f32, i64, bool")[CONFIG],
    "configurations": lambda: [tk.Config(tile=2), tk.Config(tile=4)],
    "kernel with a constant": lambda: with_constant,
    "launch with a generic": lambda: with_generic(tensor().partition(2)).generics(x=4),
    "operation": lambda: doubled,
    "graphed": lambda: tk.graphed(api.dup),
    "foreign launch": lambda: wrapped()(tensor()),
    "closed graph": closed_graph,
    "context": lambda: tk.ExecutionContext(tk.default_device(), tk.default_device().stream()),
    "tile function": lambda: tk.function(add_scaled),
    "Tensor": lambda: type(api.meta(4)),
    "partition of cpu:1": lambda: api.zeros(4).on(other_device()).sync().partition(2),
    "partition of overhang": lambda: tensor(shape=(5,)).partition(2),
    "capsule": lambda: tensor().__dlpack__(),
    "compiled module": lambda: tk.load_module(PTX),
    "signature": lambda: SIGNATURE,
    "ptx": lambda: PTX,
    "slot": lambda: tk.slot("x", tensor()),
    "dtype": lambda: tk.float32,
    "generic": lambda: tk.generics("BM BN")[0],
    "launch config": lambda: CONFIG,
    "stats": lambda: memory.stats(),
    "devices": lambda: [tk.Device("cpu")],
    "group": group,
    "tensors of a group": of_group,
    "matrices of a group": lambda: of_group((4, 4)),
    "workspace to reduce": lambda: kernels.AllReduceWorkspace(group(), 4),
    "workspace to gather": lambda: kernels.AllGatherWorkspace(group(), (4, 4)),
    "workspace to scatter": lambda: kernels.ReduceScatterWorkspace(group(), (4, 4)),
}
POOL = {**SCALARS, **ARRAYS, **DEVICE, **OBJECTS}

# What fits parameters, by words in their names: so that calls come further than the first check.
_TENSORS = ["tensor(float32)", "tensor (8,)", "tensor (4, 4)", "tensor (2, 4, 8)", "tensor (1, 2, 16, 16)", "op", "op (4, 4)"]
_WHOLE = ["1", "2", "4", "8", "64", "0"]
FITTING: dict[str, list[str]] = {
    "shape": ["(4,)", "(2, 4)", "4", "8"],
    "dtype": ["dtype"],
    "device": ["device", "'cpu'"],
    "stream": ["stream"],
    "policy": ["policy", "least loaded", "single"],
    "function": ["lambda", "lambda of an op"],
    "array": ["np.ones((2, 4), np.float32)", "np.zeros(4, float32)"],
    "op": ["op", "shared op", "tuple op", "launch"],
    "source": ["tensor(float32)", "op"],
    "y": ["partition", "partition (4, 4)", *_TENSORS],
    "a": [*_TENSORS, "2.0"],
    "target": ["tensor(float32)"],
    "name": ["'float32'"],
    "seed": _WHOLE,
    "nbytes": _WHOLE,
    "timeout": ["0.5", "0.0", "None"],
    "event": ["event", "timing event"],
    "end": ["timing event"],
    "axis": ["0", "1", "-1"],
}


def other_device() -> Any:
    """A device beside the default one."""
    if not _others:
        from tilekit._driver.cpu import driver as cpu

        _others.append(tk.Device.of_driver(cpu.discover(2)[1]))
    return _others[0]


_others: list[Any] = []

# What is called: every public function, and every public method of what the pool has.

_MODULES = {"tk": tk, "api": api, "kernels": kernels, "random": random, "memory": memory, "interop": interop}
_RECEIVERS = [
    *("tensor(float32)", "tensor (4, 4)", "tensor strided", "meta tensor", "partition", "partition (4, 4)", "mapped partition"),
    *("scattered", "op", "shared op", "host op", "tuple op", "launch", "stream", "event", "timing event", "device", "policy"),
    *("least loaded", "single", "graph", "prepared", "slotted", "scope", "future", "idle future", "kernel", "slot"),
    *("launch config", "generic", "wrapped kernel", "code kernel", "compiled module", "tile function"),
    *("configured wrapped kernel", "configured code kernel", "kernel with a constant", "launch with a generic"),
    *("graphed", "stats"),
]
_SPECIAL = ("__call__", "__getitem__", "__len__", "__eq__", "__lt__", "__mul__", "__add__", "__bool__", "__iter__", "__array__",
            "__hash__", "__repr__", "__setitem__", "__contains__", "__dlpack__", "__await__", "__radd__",
            "__matmul__", "__truediv__", "__neg__", "__float__", "__int__", "__index__", "__complex__", "__format__", "__round__",
            "__iadd__", "__dlpack_device__", "__array_ufunc__", "__array_function__", "__reduce__", "__deepcopy__")  # fmt: skip
# What runs code that has no end, or takes an address at its word.
_HOOKS = ("execute", "steps", "start", "claim", "parts")  # which classes of users' define, and tilekit calls
SKIPPED = {"memory.torch_allocator", "memory.cupy_allocator", "memory.rmm_allocator", "tk.init_device_contexts"}


@functools.cache
def kind_of(label: str) -> type:
    """The type of what the pool has under this name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ops are only looked at
        return type(POOL[label]())


def targets() -> dict[str, tuple[str | None, Any]]:
    """What can be called, by name: the receiver in the pool, if it is a method, and the function or the name of the method."""
    found: dict[str, tuple[str | None, Any]] = {}
    for prefix, module in _MODULES.items():
        for name in module.__all__:
            item = getattr(module, name)
            # Classes whose objects others make are not called, unless to look that this says so.
            if callable(item) and not (inspect.isclass(item) and "Made by" in (item.__doc__ or "")):
                found[f"{prefix}.{name}"] = (None, item)
    for label in _RECEIVERS:
        kind = kind_of(label)
        for name in dir(kind):
            if name in _HOOKS or (name.startswith("_") and name not in _SPECIAL):
                continue
            maker = next((base for base in kind.__mro__ if name in vars(base)), kind)
            internal = any("(internal)" in (one.__doc__ or "").partition("\n\n")[0] for one in (maker, getattr(kind, name)))
            if callable(getattr(kind, name)) and maker.__module__.startswith("tilekit") and not internal:
                found[f"<{label}>.{name}"] = (label, name)
    if _launch is not None:  # the compiled part: its types and functions, with anything at all
        found |= {f"_launch.{name}": (None, getattr(_launch, name)) for name in dir(_launch) if not name.startswith("_")}
    return {name: target for name, target in sorted(found.items()) if name not in SKIPPED}
