"""`graphed`: a function that builds ops, as one whose calls replay a graph that was recorded at the first like them."""

from __future__ import annotations

import copy
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tilekit._capture.graph import CudaGraph
from tilekit._capture.recorder import Recording
from tilekit._capture.replay import Binding
from tilekit._capture.slots import slot
from tilekit._driver.nodes import Captured
from tilekit._driver.protocol import Memory
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._runtime.storage import Storage
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.ops import DeviceOp
from tilekit.ops.execution import Steps
from tilekit.ops.host_values import moments, unwrap

__all__ = ["Graphed", "graphed"]


def graphed(function: Callable[..., DeviceOp[Any]] | None = None, *, most: int = 16) -> Any:
    """Let calls of a function that builds an op replay a CUDA graph: `@tk.graphed`, or `tk.graphed(function, most=4)`.

    ::

        @tk.graphed
        def layer(x, weights, scale):
            return kernels.rms_norm(x, weights).then(lambda y: ...)

        y = layer(x, weights, 0.5).sync()    # records, then launches
        y = layer(x2, weights, 0.5).sync()   # launches, with x2 in the place of x

    A call builds an op, and does nothing by itself. When the op runs, the function is called if no graph was recorded for such
    arguments yet; else the graph that was is launched, with the tensors of this call. The results are new memory at each call.

    Arguments are tensors, or ops that produce them; tuples, lists and dicts of tensors; and anything else that can be hashed. A
    graph is recorded for the shapes, strides, dtypes, alignment and device of the tensors, and for the values of all else: a
    number that differs at each call belongs into a tensor.

    Args:
        function: gets the arguments, tensors in the place of ops, and returns the op. What it does besides, it does only when a
            graph is recorded. Tensors that it takes from elsewhere are part of the graph.
        most: how many graphs are kept; the one that was not used for the longest time goes first.

    Raises:
        TypeError: `function` cannot be called. ValueError: `most` is less than 1.
    """
    if type(most) is not int or most < 1:
        raise ValueError(f"tk.graphed: most is how many graphs are kept, at least 1, not {most!r}")
    if function is None:
        return functools.partial(graphed, most=most)
    if not callable(function):
        raise TypeError(f"tk.graphed takes a function that builds an op, not {function!r}")
    return Graphed(function, most)


class Graphed:
    """What `graphed` makes of a function.

    Attributes:
        graphs: how many graphs are kept now.
        recorded: how many were recorded in all.
    """

    def __init__(self, function: Callable[..., DeviceOp[Any]], capacity: int) -> None:
        functools.update_wrapper(self, function)
        self.function, self.capacity, self.recorded = function, capacity, 0
        self.label = f"graphed {getattr(function, '__name__', type(function).__name__)}"
        self._kept: OrderedDict[Any, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def graphs(self) -> int:
        return len(self._kept)

    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOp[Any]:
        """The op of a call with these arguments.

        Raises:
            TypeError: one of them is of a kind that cannot be told from others, such as a NumPy array.
        """
        return _Call(self, args, kwargs)

    def clear(self) -> None:
        """Forget all graphs."""
        with self._lock:
            self._kept.clear()

    def entry(self, key: Any, ctx: ExecutionContext, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Entry:
        """The graph for such arguments, recorded if there is none; locked, for one launch (internal)."""
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                entry = _Entry(self, ctx, args, kwargs)
                self.recorded += 1
                self._kept[key] = entry
                if len(self._kept) > self.capacity:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(key)
            return entry

    def __repr__(self) -> str:
        return f"<{self.label}: {len(self._kept)} graphs>"


class _Call(DeviceOp[Any]):
    """One call of a graphed function."""

    def __init__(self, graphed: Graphed, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.graphed, self.args, self.kwargs, self._label = graphed, args, kwargs, graphed.label
        self._parts = tuple(a for a in (*args, *kwargs.values()) if isinstance(a, DeviceOp))
        for part in self._parts:
            part.consumed()
        try:
            self._key = None if self._parts else _key_of(args, kwargs, graphed.label)
        except BaseException:
            self._spent = True
            raise

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """The arguments that are ops."""
        return self._parts

    @property
    def device(self) -> Device | None:
        """That of the first tensor."""
        for tensor in _tensors((self.args, self.kwargs)):
            return tensor.device
        return super().device

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Run the arguments that are ops; launch the graph for what there is then."""
        args, kwargs, key = self.args, dict(self.kwargs), self._key
        if self._parts:
            results = []
            for part in self._parts:
                result = yield part.start(ctx)
                if pending := moments(result):
                    yield pending
                    result = unwrap(result)
                results.append(result)
            left = iter(results)
            args = tuple(next(left) if isinstance(a, DeviceOp) else a for a in args)
            kwargs = {name: next(left) if isinstance(a, DeviceOp) else a for name, a in kwargs.items()}
            key = _key_of(args, kwargs, self.graphed.label)
        if ctx.recording is not None:  # a part of another graph
            return (yield _built(self.graphed, args, kwargs).start(ctx))
        return self.graphed.entry((ctx.device, key), ctx, args, kwargs).launch(ctx, list(_tensors((args, kwargs))))


def _built(graphed: Graphed, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> DeviceOp[Any]:
    op = graphed.function(*args, **kwargs)
    if not isinstance(op, DeviceOp):
        raise TypeError(
            f"{graphed.label}: the function returned {type(op).__name__}, not an op; tk.zip(...) makes one of several"
        )
    return op


def _key_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], who: str) -> Any:
    """What tells calls from each other that take different graphs: the arguments, and which of them share memory."""
    try:
        tensors = list(_tensors((args, kwargs)))
    except RecursionError:
        raise ValueError(f"{who}: an argument contains itself: pass tensors, and tuples, lists and dicts of them") from None
    storages = [tensor.storage for tensor in tensors]
    return _key((args, kwargs), who), tuple(map(storages.index, storages)), _firsts(tensors)


def _firsts(tensors: list[Tensor]) -> tuple[int, ...]:
    """For each tensor the first that is the same view as it."""
    views = [(tensor.storage, tensor.offset, tensor.traits) for tensor in tensors]
    return tuple(map(views.index, views))


def _key(value: Any, who: str) -> Any:
    """What tells arguments from each other that take different graphs."""
    if isinstance(value, Tensor):
        if value.storage is None:
            raise TypeError(f"{who}: a meta tensor, without memory, cannot be an argument")
        return value.traits
    if isinstance(value, (tuple, list)):
        return (type(value), tuple(_key(part, who) for part in value))
    if isinstance(value, Mapping):
        return (dict, tuple((name, _key(part, who)) for name, part in value.items()))
    if isinstance(value, (Partition, DeviceOp, np.ndarray)):
        hints = {Partition: "pass the tensor, and cut it in the function", DeviceOp: "only whole arguments can be ops"}
        hint = next(
            (text for kind, text in hints.items() if isinstance(value, kind)), "copy it to the device: api.from_host(array)"
        )
        raise TypeError(f"{who}: an argument is {type(value).__name__}: {hint}")
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{who}: an argument is {type(value).__name__}, which cannot be told from others: it has no hash"
        ) from None
    return (type(value), value)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results, in order; of partitions theirs."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Partition):
        yield value.tensor
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)


def _with(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Arguments or results with other tensors."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Partition):
        partition = copy.copy(value)
        partition.tensor = next(tensors)
        partition.storage = partition.tensor.storage
        return partition
    if isinstance(value, (tuple, list)):
        parts = [_with(part, tensors) for part in value]
        try:
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        except TypeError as error:
            raise TypeError(f"graphed: {type(value).__name__} is no tuple or list that its elements make: {error}") from None
    if isinstance(value, Mapping):
        return {name: _with(part, tensors) for name, part in value.items()}
    return value


class _Entry:
    """A graph for arguments of one kind: their tensors are its slots, and its results are given new memory at each launch."""

    def __init__(self, graphed: Graphed, ctx: ExecutionContext, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tensors = list(_tensors((args, kwargs)))
        every = [slot(f"t{at}", tensor) for at, tensor in enumerate(tensors)]
        named = [every[first] for first in _firsts(tensors)]
        inside = _with((args, kwargs), iter(named))
        op = _built(graphed, *inside)
        recording = Recording(ctx.device, ctx.stream, op)
        try:
            output = recording.run(op)
            _check(graphed, recording, output)
        except BaseException:
            recording.discard()
            raise
        self._results: dict[Memory, Storage] = {}  # what is new at each launch, by the memory that it was recorded with
        for tensor in _tensors(output):
            if tensor.storage is not None and recording.owns(tensor.storage.memory):
                self._results[tensor.storage.memory] = tensor.storage
        recording.finish()
        self._graph = CudaGraph(recording, None, ctx.stream, graphed.label)
        self._moves = [Binding(self._graph, memory, 0) for memory in self._results]
        # Nobody shall keep the memory of the results: what they look like is enough.
        stands = {id(storage): Storage(ctx.device, ctx.device.no_memory) for storage in self._results.values()}
        self._sizes = [(stands[id(storage)], storage.nbytes) for storage in self._results.values()]
        self._output = _with(output, (_over(t, stands.get(id(t.storage), t.storage)) for t in _tensors(output)))
        self._results.clear()
        self._named = [tensor.storage for tensor in named]
        self._offsets = [tensor.offset * tensor.itemsize for tensor in named]

    def launch(self, ctx: ExecutionContext, tensors: list[Tensor]) -> Any:
        """Launch with these tensors; the result."""
        graph, storages = self._graph, [ctx.allocate(nbytes) for _, nbytes in self._sizes]
        slots = set(graph.slots)
        with graph.lock:
            try:
                for move, storage in zip(self._moves, storages, strict=True):
                    move.move(storage, 0)  # first: where results of the last launch lay the arguments of this one may lie
                graph.bind_locked({f"t{at}": tensor for at, tensor in enumerate(tensors) if f"t{at}" in slots})
                for move in self._moves:
                    graph.changed(move)
                graph.submit_locked(ctx)
            finally:
                for move, (stand, _) in zip(self._moves, self._sizes, strict=True):
                    move.keep(stand)  # the results are the caller's alone
        bases: dict[int, tuple[Any, int]] = {
            id(stand): (storage, 0) for (stand, _), storage in zip(self._sizes, storages, strict=True)
        }
        for named, tensor, offset in zip(self._named, tensors, self._offsets, strict=True):
            bases[id(named)] = (tensor.storage, tensor.offset * tensor.itemsize - offset)
        return _with(self._output, (_over(t, *bases.get(id(t.storage), (t.storage, 0))) for t in _tensors(self._output)))


def _check(graphed: Graphed, recording: Recording, output: Any) -> None:
    for node in recording.nodes:
        if isinstance(node, Captured):
            raise TypeError(
                f"{graphed.label}: its op has work of other libraries in it, or a graph, which has this call's tensors and "
                "cannot be given others. Record it with op.graph(), and copy to its tensors with graph.update(api.memcpy(...))"
            )
    if moments(output):
        raise TypeError(
            f"{graphed.label}: its result is the host's, one array for all calls. Return tensors, and copy those: "
            f"{graphed.label.split()[-1]}(...).to_host()"
        )


def _over(tensor: Tensor, storage: Any, shift: int = 0) -> Tensor:
    """A tensor like another, over other memory."""
    if storage is tensor.storage and not shift:
        return tensor
    return Tensor(storage, tensor.shape, tensor.dtype, tensor.strides, tensor.offset + shift // tensor.itemsize)
