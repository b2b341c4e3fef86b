"""Calls that work, of everything that takes an argument: a wrong one is put in the place of each of theirs.

A row has the labels of the pool's values that are passed in order, or, in a dict, by name.
"""

from __future__ import annotations

__all__ = ["CALLS", "REFUSED"]

Row = list[str] | dict[str, str]

_Q, _ROWS = "tensor (1, 2, 16, 16)", "rows (16, 2, 16)"
_X, _M = "tensor(float32)", "tensor (4, 4)"
_STATS = (
    *("used_bytes", "peak_used_bytes", "kept_bytes", "reserved_bytes", "free_bytes", "total_bytes", "limit_bytes"),
    *("pinned_bytes", "allocations"),
)
_FUNCTIONS: dict[str, Row] = {
    "api.arange": ["4"],
    "api.convert": [_X, "dtype"],
    "api.dup": [_X],
    "api.empty": ["(2, 4)"],
    "api.eye": ["4"],
    "api.from_host": ["np.zeros(4, float32)"],
    "api.full": ["(4,)", "2.0"],
    "api.linspace": ["0.0", "2.0", "4"],
    "api.memcpy": [_X, _X],
    "api.meta": ["(2, 4)"],
    "api.ones": ["(2, 4)"],
    "api.rand": ["(2, 4)"],
    "api.randint": ["2", "8", "(4,)"],
    "api.randn": ["2.0", "1", "(4,)"],
    "api.zeros": ["(2, 4)"],
    "interop.as_tensor": ["np.zeros(4, float32)"],
    "interop.from_pointer": ["64", "(2, 4)", "dtype"],
    "kernels.AllGatherWorkspace": ["group", "(2, 4)"],
    "kernels.AllReduceWorkspace": ["group", "4"],
    "kernels.ReduceScatterWorkspace": ["group", "(2, 4)"],
    "kernels.add_rms_norm": [_X, _X, _X],
    "kernels.add_rms_norm_backward": [_X, _X, _X, _X],
    "kernels.all_gather_matmul": ["matrices of a group", "matrices of a group", "workspace to gather"],
    "kernels.all_reduce": ["tensors of a group", "workspace to reduce"],
    "kernels.argmax": [_X],
    "kernels.attention": [_Q, _Q, _Q],
    "kernels.attention_backward": [_Q, _Q, _Q, _Q, _Q, "sums (1, 2, 16)"],
    "kernels.attention_decode": ["query (1, 2, 1, 16)", _Q, _Q, "lengths"],
    "kernels.attention_varlen": [_ROWS, _ROWS, _ROWS, "starts", "starts"],
    "kernels.attention_varlen_backward": [_ROWS, _ROWS, _ROWS, _ROWS, _ROWS, "sums (2, 16)", "starts", "starts"],
    "kernels.cross_entropy": [_M, "labels"],
    "kernels.cross_entropy_backward": ["tensor ()", _M, "labels", _X],
    "kernels.cumsum": [_X],
    "kernels.dropout": [_M, "0.5", "8"],
    "kernels.dropout_backward": [_M, "0.5", "8"],
    "kernels.embedding": [_M, "labels"],
    "kernels.embedding_backward": [_M, "labels", "4"],
    "kernels.gelu": [_X],
    "kernels.gelu_backward": [_X, _X],
    "kernels.gemm": [_M, _M],
    "kernels.grouped_gemm": ["matrix (16, 16)", "tensor (2, 16, 16)", "offsets"],
    "kernels.histogram": ["tensor(int32)", "4"],
    "kernels.l2_norm": [_X],
    "kernels.l2_norm_backward": [_X, _X],
    "kernels.layer_norm": [_X, _X, _X],
    "kernels.layer_norm_backward": [_X, _X, _X],
    "kernels.log_softmax": [_X],
    "kernels.log_softmax_backward": [_X, _X],
    "kernels.matmul_reduce_scatter": ["matrices of a group", "matrices of a group", "workspace to scatter"],
    "kernels.rms_norm": [_X, _X],
    "kernels.rms_norm_backward": [_X, _X, _X],
    "kernels.rope": [_Q, "angles (2, 8)", "angles (2, 8)"],
    "kernels.rope_backward": [_Q, "angles (2, 8)", "angles (2, 8)"],
    "kernels.silu": [_X],
    "kernels.silu_backward": [_X, _X],
    "kernels.softmax": [_X],
    "kernels.softmax_backward": [_X, _X],
    "kernels.swiglu": [_X, _X],
    "kernels.swiglu_backward": [_X, _X, _X],
    "kernels.topk": [_X, "2"],
    "kernels.transpose": [_M],
    "memory.MemoryStats": dict.fromkeys(_STATS, "4"),
    "memory.is_pinned": ["np.zeros(4, float32)", "device"],
    "memory.limit": ["device"],
    "memory.pinned": ["(2, 4)"],
    "memory.release": ["device"],
    "memory.reset_peak": ["device"],
    "memory.set_limit": ["64"],
    "memory.stats": ["device"],
    "memory.stream_chunks": ["lambda of an op", "np.zeros(4, float32)"],
    "memory.use_allocator": ["None", "device"],
    "random.rand": ["(2, 4)"],
    "random.randint": ["2", "8", "(4,)"],
    "random.randn": ["2.0", "1", "(4,)"],
    "tk.CompileError": ["'zero'"],
    "tk.Config": {"tile": "4", "num_warps": "4", "occupancy": "2", "x": "4"},
    "tk.Device": ["'cpu'"],
    "tk.DeviceError": ["'zero'"],
    "tk.DeviceUnavailableError": ["'zero'"],
    "tk.ExecutionContext": ["device", "stream"],
    "tk.Group": ["devices"],
    "tk.GroupError": ["'zero'"],
    "tk.LaunchConfig": {"grid": "(4,)", "block": "(4,)"},
    "tk.LeastLoaded": ["device", "2"],
    "tk.Mesh": ["devices", "{'x': 1}"],
    "tk.OutOfMemoryError": {"message": "'zero'", "requested_bytes": "4", "free_bytes": "4", "total_bytes": "4"},
    "tk.PaddingMode": ["'zero'"],
    "tk.RoundingMode": ["'zero'"],
    "tk.SingleStream": ["device"],
    "tk.Space": {"tile": "(2, 4)", "where": "[]"},
    "tk.StreamPoolRoundRobin": ["device", "2"],
    "tk.as_tensor": ["np.zeros(4, float32)"],
    "tk.autotune": ["configurations"],
    "tk.cuda_source": ["'cpu'", "'cpu'", "signature"],
    "tk.do_bench": {"op": "lambda of an op", "seconds": "0"},
    "tk.from_pointer": ["64", "(2, 4)", "dtype"],
    "tk.function": ["function"],
    "tk.generics": ["'cpu'"],
    "tk.global_policy": ["device"],
    "tk.graphed": ["lambda of an op"],
    "tk.host_fn": ["lambda", "4"],
    "tk.join_all": ["[]"],
    "tk.kernel": ["function"],
    "tk.load_module": ["ptx"],
    "tk.operation": ["generator function"],
    "tk.set_default_device": ["device"],
    "tk.slot": ["'x'", "4"],
    "tk.static_range": ["4"],
    "tk.symmetric": ["group", "(2, 4)"],
    "tk.tune": ["lambda of an op", "configurations"],
    "tk.use_device": ["device"],
    "tk.value": ["4"],
    "tk.with_context": ["lambda of an op"],
    "tk.wrap": ["numba kernel", "launch config"],
    "tk.zip": ["op", "4"],
}

# Methods, of each receiver that has them.
_OPS: dict[str, Row] = {
    "and_then": ["lambda of an op"],
    "and_then_with_context": ["lambda of an op"],
    "async_on": ["stream"],
    "graph_on": ["stream"],
    "inspect": ["lambda"],
    "map": ["lambda"],
    "named": ["'x'"],
    "on": ["device"],
    "or_else": ["lambda of an op"],
    "schedule": ["policy"],
    "sync_on": ["stream"],
    "then": ["lambda of an op"],
    "with_policy": ["policy"],
}
_TUPLE_OPS: dict[str, Row] = {"apply": ["lambda of an op"], "unzip": []}
_TENSOR_OPS: dict[str, Row] = {
    "astype": ["dtype"],
    "partition": ["(4,)"],
    "permute": ["0"],
    "reinterpret": ["dtype"],
    "reshape": ["2", "-1"],
    "view": ["2", "-1"],
}
_VIEWS: dict[str, Row] = {
    "__getitem__": ["Ellipsis"],
    "partition": ["(4,)"],
    "permute": ["0"],
    "reinterpret": ["dtype"],
    "reshape": ["2", "-1"],
    "shares_memory": [_X],
    "transpose": [],
    "try_partition": ["(4,)"],
    "view": ["2", "-1"],
}
_COPIES: dict[str, Row] = {
    "__dlpack__": [],
    "astype": ["dtype"],
    "copy_into": [_X],
    "fill": ["2.0"],
    "to": ["device"],
    "to_host": [],
    "to_host_vec": [],
}
_OF_A_MATRIX: dict[str, Row] = {
    "copy_into": [_M],
    "partition": ["(2, 4)"],
    "permute": ["1", "0"],
    "try_partition": ["(2, 4)"],
}
_REPLAYED: dict[str, Row] = {"bind": {}, "run": ["stream"], "sync_on": ["stream"], "update": ["launch"]}
_SLOTTED: dict[str, Row] = {"bind": {"x": _X}, "run": {"stream": "stream", "x": _X}, "sync_on": {"stream": "stream", "x": _X}}
_LAUNCH: dict[str, Row] = {
    "compile": ["'sm_80'"],
    "explain": ["'sm_80'"],
    "generics": {},
    "grid": ["2"],
    "num_warps": ["4"],
    "occupancy": ["1"],
}
_Group = tuple[tuple[str, ...], dict[str, Row]]
_LAUNCHES = ("launch", "launch with a generic")
_ALL_OPS = ("op", "shared op", "host op", "tuple op", *_LAUNCHES)
_TENSORS = (_X, _M, "tensor strided", "slot")
_FOREIGN = ("code kernel", "wrapped kernel", "configured code kernel", "configured wrapped kernel")
_ALL_PARTITIONS = ("partition", "partition (4, 4)", "mapped partition", "scattered")
_METHODS: list[_Group] = [
    (_ALL_OPS, _OPS),
    (("op", "shared op"), _TENSOR_OPS),
    (("tuple op", *_LAUNCHES), _TUPLE_OPS),
    (_LAUNCHES, _LAUNCH),
    (("launch with a generic",), {"generics": {"x": "4"}}),
    ((*_TENSORS, "meta tensor"), _VIEWS),
    (_TENSORS, _COPIES),
    ((_M,), _OF_A_MATRIX),
    (("tensor strided",), {"copy_into": ["tensor (8,)"]}),
    (_ALL_PARTITIONS, {"to_host": []}),
    (("partition",), {"map": [], "prefix": ["(1,)"]}),
    (("partition (4, 4)",), {"map": [], "prefix": ["(1, 2)"]}),
    (("event", "timing event"), {"record": ["stream"], "synchronize": ["0.5"], "wait": ["stream"]}),
    (("future", "idle future"), {"add_done_callback": ["lambda"], "exception": ["0.5"]}),
    (("future",), {"result": ["0.5"]}),
    (("graph", "prepared", "slotted"), _REPLAYED),
    (("slotted",), _SLOTTED),
    (("graph", "slotted"), {"capture": ["stream", "launch"], "scope": ["stream"]}),
    (("kernel",), {"__call__": ["partition", _X, "2.0"]}),
    (("kernel with a constant",), {"__call__": ["partition", "3", "True"]}),
    (("graphed",), {"__call__": [_X]}),
    (("stats",), {"__eq__": ["stats"]}),
    (("launch config",), {"__eq__": ["launch config"], "for_num_elems": ["64"]}),
    (("device",), {"event": [], "stream": ["0"]}),
    (("stream",), {"add_callback": ["lambda"]}),
    (_FOREIGN, {"__getitem__": ["launch config"]}),
    (("code kernel", "configured code kernel"), {"compile": ["'sm_80'"]}),
    (("compiled module",), {"kernel": ["'k'", "signature"]}),
]

# What refuses whatever it is called with, and says what to do instead.
_OPERATORS = ("__add__", "__contains__", "__eq__", "__lt__", "__matmul__", "__mul__", "__radd__", "__truediv__")
_ARITHMETIC: dict[str, Row] = {name: ["2.0"] for name in _OPERATORS}
_REFUSING: list[_Group] = [
    ((*_ALL_OPS, *_TENSORS, "meta tensor", *_ALL_PARTITIONS), {"__array__": []}),
    ((*_TENSORS, "meta tensor", *_ALL_PARTITIONS), _ARITHMETIC),
    (_ALL_OPS, {**{name: ["2.0"] for name in _OPERATORS if name != "__eq__"}, "__getitem__": ["Ellipsis"]}),
    ((*_TENSORS, "meta tensor", *_ALL_PARTITIONS), {"__array_function__": ["lambda", "()", "()", "{}"]}),
    (_ALL_PARTITIONS, {"__getitem__": ["Ellipsis"]}),
    (("kernel", "kernel with a constant", "future", "idle future"), {"__getitem__": ["Ellipsis"]}),
    ((*_ALL_OPS, *_TENSORS, "meta tensor", *_ALL_PARTITIONS), {"__setitem__": ["Ellipsis", "2.0"]}),
    (("op", "shared op", "host op"), _TUPLE_OPS),  # what they give is not a tuple
    (("host op", "tuple op", *_LAUNCHES), _TENSOR_OPS),  # what they give is no tensor
    (("meta tensor",), _COPIES),  # it has no memory
    (("mapped partition", "scattered"), {"map": [], "prefix": ["(1,)"]}),  # these begin with a plain partition
    (("event", "timing event"), {"elapsed_ms": ["timing event"]}),  # it was never recorded
    (("idle future",), {"result": ["0.5"]}),  # it was not submitted
    (("scope",), {"record": ["op"]}),  # it is not open
    (_LAUNCHES, {"tile": ["(4,)"]}),  # what they write has been cut
    (("code kernel", "wrapped kernel"), {"__call__": [_X]}),  # nothing says how they are launched
    (("configured code kernel",), {"__call__": [_X, "2.0", "4", "True"]}),  # it needs a GPU
    (("configured wrapped kernel",), {"__call__": [_X]}),  # as that
    (("tile function",), {"__call__": [_X, _X, "2.0"]}),  # kernels call it
]


def _named(groups: list[_Group]) -> dict[str, Row]:
    return {f"<{label}>.{name}": row for labels, rows in groups for label in labels for name, row in rows.items()}


_ABSTRACT: dict[str, Row] = {"memory.Allocator": [], "tk.DeviceOp": [], "tk.DeviceOperation": [], "tk.SchedulingPolicy": []}
REFUSED = _ABSTRACT | _named(_REFUSING)
CALLS: dict[str, Row] = _FUNCTIONS | _named(_METHODS) | REFUSED
