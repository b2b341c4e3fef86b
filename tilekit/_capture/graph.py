"""Recorded ops that run any number of times: `CudaGraph`, which the device launches as one, and `PreparedOp`, node by node.

Recording executes nothing. What comes out of an op that was recorded, `output`, is memory that every launch writes anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from tilekit._capture.recorder import Recording
from tilekit._capture.replay import Recorded, refuse_nested, unwrapped
from tilekit._driver.nodes import Captured, Node
from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.device import as_stream, default_device
from tilekit._runtime.stream import Stream, next_stream
from tilekit.ops.methods import methods
from tilekit.ops.op import DeviceOp

__all__ = ["CudaGraph", "GraphScope", "PreparedOp", "recorded_op"]

R = TypeVar("R", bound="Recorded")


@methods.enter
class PreparedOp(Recorded):
    """An op whose work is submitted again and again, without the op being built or looked at. Made by `DeviceOp.prepare`."""

    _noun = "prepared"

    def _enqueue(self, ctx: ExecutionContext) -> None:
        driver, handle = self.device.driver, ctx.stream.handle
        for node in self.nodes:
            node.enqueue(driver, handle)

    def _graph(self) -> Any:
        return self.device.driver.graph_create(self.nodes)


@methods.enter
class CudaGraph(Recorded):
    """An op, recorded as a CUDA graph: one call of the driver launches all of it. On a CPU device the nodes run one by one.

    ::

        graph = op.graph_on(stream)          # recorded, not executed
        out = graph.output
        for token in tokens:
            graph.update(api.memcpy(x, token))
            graph.launch().sync_on(stream)

    Made by `op.graph()`, `op.graph_on(stream)`, `CudaGraph.capture` and `CudaGraph.scope`.
    """

    _noun = "CUDA graph"
    _one_by_one = False

    def __init__(self, recording: Recording, output: Any, stream: Stream, label: str) -> None:
        self._handle: Any = None
        super().__init__(recording, output, stream, label)
        self._handle = self.device.driver.graph_create(self.nodes)

    @classmethod
    def capture(cls, stream: Any, op: DeviceOp[Any]) -> CudaGraph:
        """`op.graph_on(stream)`."""
        if not isinstance(op, DeviceOp):
            raise TypeError(f"capture records an op, not {type(op).__name__}: CudaGraph.capture(stream, op)")
        return op.graph_on(stream)

    @staticmethod
    def scope(stream: Any = None) -> GraphScope:
        """Record several ops as one graph: `with tk.CudaGraph.scope(stream) as scope: scope.record(op)`, then `scope.graph`."""
        return GraphScope(stream)

    def _steps(self) -> Sequence[Node]:
        return (Captured(self.label, self._handle),)

    def _apply_changes(self) -> None:
        self.device.driver.graph_change(self._handle, self.nodes, sorted(self._dirty))
        self._dirty.clear()

    def _enqueue(self, ctx: ExecutionContext) -> None:
        if self._dirty:
            self._apply_changes()
        self.device.driver.graph_launch(self._handle, ctx.stream.handle)

    def _graph(self) -> Any:
        changed = sorted({at for bound in self._slots.values() for at in bound.numbers})
        self.device.driver.graph_change(self._handle, self.nodes, changed, template=True)
        return self._handle

    def _handles(self) -> list[Any]:
        return [self._handle] if self._handle is not None else []


class GraphScope:
    """The time in which ops are recorded as one graph; a context manager, for one thread. See `CudaGraph.scope`.

    In it nothing can be run by the same thread. After an exception there is no graph, and the stream is as it was: nothing
    was submitted to it.

    Attributes:
        stream: the graph's.
    """

    detached = records = True

    def __init__(self, stream: Any = None) -> None:
        self.stream = next_stream(default_device().policy) if stream is None else as_stream(stream)
        self._recording: Recording | None = None
        self._graph: CudaGraph | None = None
        self._results: list[Any] = []
        self._failure: BaseException | None = None
        self._outer: Any = None
        self._thread = 0

    @property
    def op(self) -> GraphScope:
        """What is being submitted, for messages."""
        return self

    @property
    def graph(self) -> CudaGraph:
        """The graph, when the scope is over. Its output is the list of the results.

        Raises:
            ValueError: it is not over, or was left by an exception.
        """
        if self._graph is None:
            raise ValueError(f"{self!r} has no graph: " + ("it is not over" if self._recording else "nothing was recorded in it"))
        return self._graph

    def record(self, op: DeviceOp[Any]) -> Any:
        """Record `op` behind what was recorded before. Its result: what the launches will write.

        Raises:
            RuntimeError: the scope is over, has not begun, or is another thread's.
            TypeError: something in the op cannot be recorded. Whatever it fails with. Then there will be no graph.
        """
        if not isinstance(op, DeviceOp):
            raise TypeError(f"record takes an op, not {type(op).__name__}")
        if self._recording is None or self._thread != threading.get_ident():
            why = "it has not begun, or is over" if self._recording is None else "it is another thread's"
            op.consumed()
            raise RuntimeError(f"{self!r} records nothing now: {why}")
        submitting.submission = self._outer
        try:
            result = unwrapped(self._recording.run(op))
        except BaseException as error:
            self._failure = error
            raise
        finally:
            submitting.submission = self
        self._results.append(result)
        return result

    def __enter__(self) -> Self:
        if self._recording is not None or self._graph is not None:
            raise RuntimeError(f"{self!r} has been entered before: make another one")
        if submitting.submission is not None:
            raise RuntimeError(f"{self!r} cannot begin while {submitting.submission.op!r} is being submitted by the same thread")
        self._thread = threading.get_ident()
        self._recording = Recording(self.stream.device, self.stream, self)
        self._outer, submitting.submission = submitting.submission, self
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        recording, self._recording = self._recording, None
        submitting.submission = self._outer
        assert recording is not None, "it has begun"
        if error is not None:
            recording.discard()
        elif self._failure is not None:
            recording.discard()
            raise RuntimeError(f"{self!r}: an op was not recorded, so there is no graph: {self._failure}") from self._failure
        else:
            recording.finish()
            self._graph = CudaGraph(recording, self._results, self.stream, "scope")

    def __repr__(self) -> str:
        return f"<CudaGraph.scope on {self.stream!r}>"


@methods.enter
def recorded_op(op: DeviceOp[Any], stream: Stream, make: type[R]) -> R:
    """`op`, recorded for the device of `stream`."""
    if submitting.submission is not None:
        refuse_nested(op)
    recording = Recording(stream.device, stream, op)
    try:
        output = recording.run(op)
    except BaseException:
        recording.discard()
        raise
    recording.finish()
    return make(recording, output, stream, op.label)
