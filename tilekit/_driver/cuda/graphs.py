"""CUDA graphs of recorded work, and the capture of what other libraries submit."""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tilekit._driver.cuda.context import this_thread
from tilekit._driver.cuda.errors import check, failure, given_up
from tilekit._driver.cuda.memory import CudaMemory
from tilekit._driver.nodes import Captured, Copy, CopyIn, CopyOut, Fill, Launch, Node, WaitForWord
from tilekit.errors import DeviceError

__all__ = ["CudaGraphs", "GraphExec"]


def _reduced(after: Sequence[Sequence[int]]) -> list[list[int]]:
    """What each node waits for, but for what something else waits for that it waits for (transitive reduction)."""
    ancestors: list[int] = []  # a bit each
    reduced = []
    for before in after:
        further = functools.reduce(operator.or_, (ancestors[at] for at in before), 0)
        reduced.append([at for at in before if not further >> at & 1])
        ancestors.append(further | sum(1 << at for at in set(before)))
    return reduced


def _starts_early(before: Node, node: Node, multiprocessors: int) -> bool:
    """Whether a node is a launch that may begin before `before` has ended: it waits for that alone, and nothing else does.

    They are launches of so few blocks that each has a multiprocessor for itself. Of more, those that begin early get places that
    others leave, several on one multiprocessor and none on the next. (A product with 48 blocks takes 9.6 us so, and else 11; one
    with 90 would take 21, and takes 17.)
    """
    if not isinstance(before, Launch) or not isinstance(node, Launch) or not node.function.starts_early:
        return False
    return math.prod(before.grid) + math.prod(node.grid) <= multiprocessors


class GraphExec:
    """A CUDA graph.

    Attributes:
        template: the CUgraph.
        executable: the CUgraphExec; None until it is launched for the first time.
        nodes: the CUgraphNodes, in the order of the recorded ones.
        launches: what the driver was told of launches, by their numbers, as far as they have been changed.
    """

    __slots__ = ("executable", "launches", "nodes", "template")

    def __init__(self, template: Any, nodes: Sequence[Any] = ()) -> None:
        self.template, self.nodes = template, tuple(nodes)
        self.executable: Any = None
        self.launches: dict[int, Any] = {}


class CudaGraphs(CudaMemory):
    """One GPU's graphs."""

    def __init__(self, bindings: Any, ordinal: int, alone: bool) -> None:
        super().__init__(bindings, ordinal, alone)
        self._instantiating = threading.Lock()
        self._adders: dict[type[Node], Callable[[Any, list[Any], Any], Any]] = {
            Launch: self._add_launch,
            Fill: self._add_fill,
            Copy: self._add_copy,
            CopyIn: self._add_copy,
            CopyOut: self._add_copy,
            WaitForWord: self._add_wait,
            Captured: self._add_captured,
        }

    def graph_create(self, nodes: Sequence[Node]) -> GraphExec:
        self.activate()
        cu = self._cu
        template = check(cu, cu.cuGraphCreate(0))
        handles: list[Any] = []
        direct = _reduced([node.after for node in nodes])
        behind = Counter(at for before in direct for at in before)
        try:
            for node, before in zip(nodes, direct, strict=True):
                after = [handles[at] for at in before]
                alone = len(before) == 1 and behind[before[0]] == 1
                early = alone and _starts_early(nodes[before[0]], node, self.multiprocessors)
                handles.append(self._adders[type(node)](template, [] if early else after, node))
                if early:
                    self._add_early(template, after, handles[-1])
            graph = GraphExec(template, handles)
            self._instantiate(graph)
        except BaseException:
            cu.cuGraphDestroy(template)
            raise
        return graph

    def _instantiate(self, graph: GraphExec) -> None:
        with self._instantiating:
            if graph.executable is None:
                graph.executable = check(self._cu, self._cu.cuGraphInstantiate(graph.template, 0))

    def _launch_params(self, node: Launch) -> Any:
        params = self._cu.CUDA_KERNEL_NODE_PARAMS()
        params.func = node.function.handle
        params.gridDimX, params.gridDimY, params.gridDimZ = node.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = node.block
        params.sharedMemBytes, params.kernelParams = node.shared_bytes, node.params
        return params

    def _add_launch(self, graph: Any, after: list[Any], node: Launch) -> Any:
        cu = self._cu
        self.allow(node.function, node.shared_bytes, node.cluster)
        handle = check(cu, cu.cuGraphAddKernelNode(graph, after, len(after), self._launch_params(node)))
        if node.cluster is not None:
            value = cu.CUkernelNodeAttrValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = node.cluster
            kind = cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            check(cu, cu.cuGraphKernelNodeSetAttribute(handle, kind, value))
        return handle

    def _add_early(self, graph: Any, after: list[Any], handle: Any) -> None:
        """Let a launch begin when all blocks of another have said that it may, or have ended."""
        cu = self._cu
        edge = cu.CUgraphEdgeData()
        edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = int(cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        # Of the name that versions 12 of the bindings have for it; the other one has no data there.
        add = getattr(cu, "cuGraphAddDependencies_v2", cu.cuGraphAddDependencies)
        check(cu, add(graph, after, [handle], [edge], 1))

    def allow(self, function: Any, shared_bytes: int, cluster: tuple[int, int, int] | None = None) -> None:
        """Allow a kernel what its launches ask for. Raises DeviceError if the device does not have it."""
        raise NotImplementedError

    def _fill_params(self, node: Fill) -> Any:
        params = self._cu.CUDA_MEMSET_NODE_PARAMS()
        params.dst, params.value = node.target.address, int.from_bytes(node.pattern, "little")
        params.elementSize, params.width, params.height, params.pitch = len(node.pattern), node.count, 1, 0
        return params

    def _add_fill(self, graph: Any, after: list[Any], node: Fill) -> Any:
        cu = self._cu
        return check(cu, cu.cuGraphAddMemsetNode(graph, after, len(after), self._fill_params(node), self._context))

    def _copy_params(self, node: Copy | CopyIn | CopyOut) -> Any:
        cu = self._cu
        params, kinds = cu.CUDA_MEMCPY3D(), cu.CUmemorytype
        if isinstance(node, CopyIn):
            params.srcMemoryType, params.srcHost = kinds.CU_MEMORYTYPE_HOST, node.source.__array_interface__["data"][0]
            nbytes = node.source.nbytes
        else:
            params.srcMemoryType, params.srcDevice = kinds.CU_MEMORYTYPE_DEVICE, node.source.address
            nbytes = node.source.nbytes
        if isinstance(node, CopyOut):
            params.dstMemoryType, params.dstHost = kinds.CU_MEMORYTYPE_HOST, node.target.__array_interface__["data"][0]
        else:
            params.dstMemoryType, params.dstDevice = kinds.CU_MEMORYTYPE_DEVICE, node.target.address
        params.WidthInBytes, params.Height, params.Depth = nbytes, 1, 1
        return params

    def _add_copy(self, graph: Any, after: list[Any], node: Copy | CopyIn | CopyOut) -> Any:
        cu = self._cu
        return check(cu, cu.cuGraphAddMemcpyNode(graph, after, len(after), self._copy_params(node), self._context))

    def _wait_params(self, node: WaitForWord) -> Any:
        cu = self._cu
        wait, params = cu.CUstreamBatchMemOpParams(), cu.CUDA_BATCH_MEM_OP_NODE_PARAMS()
        wait.operation = cu.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_64
        wait.waitValue.address, wait.waitValue.value64 = node.word.address, node.least
        wait.waitValue.flags = int(cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        params.ctx, params.count, params.paramArray, params.flags = self._context, 1, [wait], 0
        return params

    def _add_wait(self, graph: Any, after: list[Any], node: WaitForWord) -> Any:
        cu = self._cu
        return check(cu, cu.cuGraphAddBatchMemOpNode(graph, after, len(after), self._wait_params(node)))

    def _add_captured(self, graph: Any, after: list[Any], node: Captured) -> Any:
        return check(self._cu, self._cu.cuGraphAddChildGraphNode(graph, after, len(after), node.graph.template))

    def graph_change(self, graph: GraphExec, nodes: Sequence[Node], changed: Sequence[int], template: bool = False) -> None:
        self.activate()
        cu, run = self._cu, graph.executable
        for at in changed:
            node, handle = nodes[at], graph.nodes[at]
            if isinstance(node, Launch):
                params = graph.launches.get(at)  # it points to the parameters, which are the node's
                if params is None:
                    params = graph.launches[at] = self._launch_params(node)
                check(cu, cu.cuGraphExecKernelNodeSetParams(run, handle, params))
                if template:
                    check(cu, cu.cuGraphKernelNodeSetParams(handle, params))
            elif isinstance(node, Fill):
                params = self._fill_params(node)
                check(cu, cu.cuGraphExecMemsetNodeSetParams(run, handle, params, self._context))
                if template:
                    check(cu, cu.cuGraphMemsetNodeSetParams(handle, params))
            elif isinstance(node, (Copy, CopyIn, CopyOut)):
                params = self._copy_params(node)
                check(cu, cu.cuGraphExecMemcpyNodeSetParams(run, handle, params, self._context))
                if template:
                    check(cu, cu.cuGraphMemcpyNodeSetParams(handle, params))
            elif isinstance(node, WaitForWord):
                params = self._wait_params(node)
                check(cu, cu.cuGraphExecBatchMemOpNodeSetParams(run, handle, params))
                if template:
                    check(cu, cu.cuGraphBatchMemOpNodeSetParams(handle, params))

    def graph_launch(self, graph: GraphExec, stream: Any) -> None:
        if this_thread.driver is not self:
            self.activate()
        if graph.executable is None:
            self._instantiate(graph)
        result = self._cu.cuGraphLaunch(graph.executable, stream)
        if result[0]:
            raise failure(self._cu, result[0], f"launching a CUDA graph of {len(graph.nodes)} nodes")

    def graph_handle(self, graph: GraphExec) -> int:
        """The CUgraphExec, as a number."""
        self.activate()
        self._instantiate(graph)
        return int(graph.executable)

    def graph_destroy(self, graph: GraphExec) -> None:
        self.activate()
        cu = self._cu
        if graph.executable is not None:
            given_up(cu, cu.cuGraphExecDestroy(graph.executable))
        given_up(cu, cu.cuGraphDestroy(graph.template))

    # what others submit
    def capture_begin(self) -> Any:
        stream = self.stream_create(0)
        # The relaxed mode: nobody else's calls are forbidden meanwhile, in this thread or in others.
        check(self._cu, self._cu.cuStreamBeginCapture(stream, self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        return stream

    def capture_end(self, stream: Any) -> GraphExec | None:
        self.activate()
        cu = self._cu
        result = cu.cuStreamEndCapture(stream)
        self.stream_destroy(stream)
        if result[0]:
            why = failure(cu, result[0], "what another library submitted cannot be recorded")
            raise DeviceError(f"{why}. It must not wait for the device, and what it uses must be ready before", code=why.code)
        template = result[1]
        _, count = check(cu, cu.cuGraphGetNodes(template))
        if not count:
            check(cu, cu.cuGraphDestroy(template))
            return None
        return GraphExec(template)
