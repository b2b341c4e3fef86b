"""The graphs of a GPU that does nothing: launching one notes down what its nodes are."""

from __future__ import annotations

import collections
import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

__all__ = ["FakeGraphs"]


class _Node(SimpleNamespace):
    """kind, after, params."""


class FakeGraphs:
    """As much of cuda.bindings.driver as `tilekit._driver.cuda.graphs` calls.

    Attributes:
        graphs: what each launched graph did: its nodes, as (kind, what it was told).
    """

    calls: collections.Counter[str]
    slots: int
    maps: int

    CUgraphEdgeData = SimpleNamespace
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CUDA_KERNEL_NODE_PARAMS = CUDA_MEMSET_NODE_PARAMS = CUDA_MEMCPY3D = SimpleNamespace
    CUDA_BATCH_MEM_OP_NODE_PARAMS = SimpleNamespace
    CUstreamBatchMemOpType = SimpleNamespace(CU_STREAM_MEM_OP_WAIT_VALUE_64=4)
    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_GEQ=0)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_HOST=1, CU_MEMORYTYPE_DEVICE=2)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self) -> None:
        self.graphs: list[list[tuple[str, Any]]] = []
        self._executables: dict[int, dict[Any, Any]] = {}
        self._numbers = itertools.count(1 << 16)

    def _done(self, name: str, *values: Any) -> tuple[Any, ...]:
        self.calls[name] += 1
        return (0, *values)

    def _values(self, params: Any) -> bytes:
        """What the driver copies of a kernel's parameters, given their addresses."""
        return b"".join(ctypes.string_at(params[i], 8 if i < self.slots else 128) for i in range(self.slots + self.maps))

    def cuGraphCreate(self, flags: int) -> tuple[Any, ...]:
        return self._done("cuGraphCreate", [])

    def _add(self, kind: str, graph: list[_Node], after: list[_Node], count: int, params: Any) -> tuple[Any, ...]:
        assert count == len(after)
        assert all(any(node is other for other in graph) for node in after), "nodes of this graph"
        graph.append(_Node(kind=kind, after=list(after), params=params))
        return self._done("cuGraphAddNode", graph[-1])

    def cuGraphAddKernelNode(self, graph: Any, after: Any, count: int, params: Any) -> tuple[Any, ...]:
        return self._add("kernel", graph, after, count, params)

    def cuGraphAddDependencies_v2(self, graph: Any, before: Any, behind: Any, edges: Any, count: int) -> tuple[Any, ...]:
        assert len(before) == len(behind) == len(edges) == count
        for first, second, edge in zip(before, behind, edges, strict=True):
            assert first.kind == second.kind == "kernel" and edge.from_port == edge.type == 1, "launches alone begin early"
            second.after.append(first)
            second.early = True
        return self._done("cuGraphAddDependencies")

    def cuGraphAddMemsetNode(self, graph: Any, after: Any, count: int, params: Any, context: Any) -> tuple[Any, ...]:
        return self._add("memset", graph, after, count, params)

    def cuGraphAddMemcpyNode(self, graph: Any, after: Any, count: int, params: Any, context: Any) -> tuple[Any, ...]:
        return self._add("memcpy", graph, after, count, params)

    def CUstreamBatchMemOpParams(self) -> Any:
        return SimpleNamespace(waitValue=SimpleNamespace())

    def cuGraphAddBatchMemOpNode(self, graph: Any, after: Any, count: int, params: Any) -> tuple[Any, ...]:
        return self._add("wait", graph, after, count, params)

    def cuGraphAddChildGraphNode(self, graph: Any, after: Any, count: int, child: Any) -> tuple[Any, ...]:
        return self._add("child", graph, after, count, child)

    def cuGraphInstantiate(self, graph: list[_Node], flags: int) -> tuple[Any, ...]:
        number = next(self._numbers)
        self._executables[number] = {id(node): self._told(node) for node in graph} | {"nodes": list(graph)}
        return self._done("cuGraphInstantiate", number)

    def _told(self, node: _Node) -> tuple[str, Any]:
        """What the driver copies of a node when it is told."""
        p = node.params
        if node.kind == "kernel":
            pointers = ctypes.cast(p.kernelParams, ctypes.POINTER(ctypes.c_void_p))
            values = self._values(pointers)
            grid, block = (p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)
            return "kernel", (p.func, grid, block, p.sharedMemBytes, values)
        if node.kind == "memset":
            return "memset", (p.dst, p.value, p.elementSize, p.width)
        if node.kind == "memcpy":
            return "memcpy", (getattr(p, "dstDevice", None), getattr(p, "srcDevice", None), p.WidthInBytes)
        if node.kind == "wait":
            (wait,) = p.paramArray
            return "wait", (wait.operation, wait.waitValue.address, wait.waitValue.value64, wait.waitValue.flags)
        return "child", [self._told(inner) for inner in p]

    def _set(self, run: Any, node: _Node, params: Any) -> tuple[Any, ...]:
        self._executables[run][id(node)] = self._told(_Node(kind=node.kind, after=(), params=params))
        return self._done("cuGraphExecNodeSetParams")

    def cuGraphExecKernelNodeSetParams(self, run: Any, node: _Node, params: Any) -> tuple[Any, ...]:
        return self._set(run, node, params)

    def cuGraphExecMemsetNodeSetParams(self, run: Any, node: _Node, params: Any, context: Any) -> tuple[Any, ...]:
        return self._set(run, node, params)

    def cuGraphExecMemcpyNodeSetParams(self, run: Any, node: _Node, params: Any, context: Any) -> tuple[Any, ...]:
        return self._set(run, node, params)

    def cuGraphExecBatchMemOpNodeSetParams(self, run: Any, node: _Node, params: Any) -> tuple[Any, ...]:
        return self._set(run, node, params)

    def cuGraphLaunch(self, run: Any, stream: Any) -> tuple[Any, ...]:
        made = self._executables[int(run)]
        self.graphs.append([made[id(node)] for node in made["nodes"]])
        return self._done("cuGraphLaunch")

    def cuStreamEndCapture(self, stream: Any) -> tuple[Any, ...]:
        return self._done("cuStreamEndCapture", [])

    def cuGraphGetNodes(self, graph: list[_Node]) -> tuple[Any, ...]:
        return self._done("cuGraphGetNodes", graph, len(graph))
