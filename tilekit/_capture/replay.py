"""What all ops that were written down have in common: slots, launches, and what they keep alive."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np

from tilekit._capture.recorder import Recording
from tilekit._driver.nodes import Captured, Launch, MemoryRange, Node
from tilekit._driver.protocol import Memory
from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.device import Device, as_stream
from tilekit._runtime.storage import Garbage, Storage
from tilekit._runtime.stream import Stream
from tilekit.ops.drawing import Diagram
from tilekit.ops.execution import Done
from tilekit.ops.fast_path import FAST_PATH, Program
from tilekit.ops.future import DeviceFuture
from tilekit.ops.host_values import HostValue, moments, rebuilt
from tilekit.ops.op import DeviceOp
from tilekit.settings import load_settings

__all__ = ["Binding", "GraphLaunch", "Recorded", "refuse_nested", "unwrapped"]


class Binding:
    """Where something recorded uses a piece of memory, or a number from a slot, and can be given another.

    Args:
        recorded: what was recorded.
        memory, offset: the memory, and where in it that begins which is moved; None for a number.
        slot: whose number, or whose memory it is; None if it has no name.

    Attributes:
        value: what a slot stands for now.
        numbers: of the nodes that use it.
        captured: a node that works on it and cannot be changed, if there is one.
        launches: whether the others are all launches.
        conflicts: of its ranges those that must not overlap another one, with their node, that range and its node, since
            one of the two is written; and whether they may be the very same.
    """

    __slots__ = (
        "_ranges", "_reads", "_recorded", "_scalars", "_tensor", "_writes", "captured", "conflicts", "launches", "numbers",
        "slot", "value",
    )  # fmt: skip

    def __init__(self, recorded: Recorded, memory: Memory | None, offset: int, slot: Any = None) -> None:
        self._recorded, self.slot, self.value = recorded, slot, None if slot is None else slot.value
        self._tensor = memory is not None
        # Each range with its node, and how many bytes it lies behind `offset`.
        self._ranges: list[tuple[Node, MemoryRange, int]] = []
        self._scalars: list[Node] = []
        self.captured: Node | None = None
        self.numbers: set[int] = set()
        self._reads, self._writes = (
            next((at for at, storage in enumerate(side) if memory is not None and storage.memory is memory), None)
            for side in (recorded.reads, recorded.writes)
        )
        for at, node in enumerate(recorded.nodes):
            if isinstance(node, Captured) and memory in node.memories:
                self.captured = node
            ranges = [(node, span, span.offset - offset) for span in node.ranges() if span.memory is memory]
            self._ranges += ranges
            takes = slot is not None and any(named is slot for named, *_ in getattr(node, "scalars", ()))
            if takes:
                self._scalars.append(node)
            if ranges or takes:
                self.numbers.add(at)
        self.launches = all(isinstance(recorded.nodes[at], Launch) for at in self.numbers)
        own = {id(span) for _, span, _ in self._ranges}
        self.conflicts = [
            (span, node, other, owner, owner is node and (span.beside is None or any(other is one for one in span.beside)))
            for node, span, _ in self._ranges
            for owner in (recorded.nodes if recorded.branches else (node,))
            for other in owner.ranges()
            if id(other) not in own and (span.written or other.written)
        ]

    def move(self, storage: Storage, start: int) -> None:
        """Use `storage` from now on, from the byte `start` on. The recorded op's lock is held."""
        memory = storage.memory
        for node, span, behind in self._ranges:
            span.move(memory, start + behind)
            node.refresh(span)
        self.keep(storage)

    def keep(self, storage: Storage) -> None:
        """Keep `storage` alive, and in order with its other users, in the place of what was. The recorded op's lock is held."""
        if self._reads is not None:
            self._recorded.reads[self._reads] = storage
        if self._writes is not None:
            self._recorded.writes[self._writes] = storage

    def set(self, value: Any) -> None:
        """Let the slot stand for `value`, which it can. The recorded op's lock is held."""
        self.value = value
        if self._tensor:
            self.move(value.storage, value.offset * value.dtype.itemsize)
            return
        for node in self._scalars:
            node.set(self.slot, value)


class Recorded:
    """An op's work, written down, to be run any number of times. Everything that it uses is kept alive.

    Any thread may launch it, on any stream of its device. Launches of one recorded op come one after the other, since they
    write the same memory.

    Attributes:
        device: where it runs.
        stream: where `update` runs ops.
        label: what messages call it.
        nodes: the work.
        branches: whether some nodes may run side by side.
        reads, writes: the storages that a launch uses.
        peers: those of other devices that it reads.
        lock: held while it is launched, and changed.
    """

    _noun = "recorded op"
    _one_by_one = True  # whether the device gets the nodes one by one

    def __init__(self, recording: Recording, output: Any, stream: Stream, label: str) -> None:
        self.device, self.stream, self.label = recording.device, stream, label
        self.nodes: tuple[Node, ...] = tuple(recording.nodes)
        self.lock = threading.Lock()
        self.reads, self.writes = list(recording.reads.values()), list[Any](recording.writes.values())
        self.peers = list(recording.peers.values())
        if recording.arena.blocks:
            self.writes.append(recording.arena)
        self.branches = any(len(node.after) != (1 if at else 0) for at, node in enumerate(self.nodes))
        self._result, self._taken, self._on_host = output, False, bool(moments(output))
        self._arrays = recording.arrays
        self._spin_s = 1e-6 * load_settings().spin_us
        self._slots = {name: Binding(self, slot.memory, slot.offset, slot) for name, slot in recording.slots.items()}
        self._closed = self._embedded = False
        self._program: Program | None = None
        self._programmed = False  # whether `_program` is known
        self._dirty: set[int] = set()  # the nodes that are not what the driver was told

    # what comes out of it

    @property
    def output(self) -> Any:
        """The result of the op: tensors, partitions and arrays that each launch writes. Defined once one has been waited for."""
        return unwrapped(self._result)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots."""
        return tuple(self._slots)

    def take_output(self) -> Any:
        """`output`, once: for whoever goes on with it by himself.

        Raises:
            ValueError: it has been taken.
        """
        if self._taken:
            raise ValueError(f"{self!r}: its output has been taken already; .output shows it as often as you like")
        self._taken = True
        return self.output

    # what goes into it

    def bind(self, **values: Any) -> Self:
        """Let slots stand for something else in the launches that follow. Does not wait, and changes none that is under way.

        Args:
            values: by the name of the slot, see `tilekit.slot`: a tensor of the same shape, strides and dtype on the same
                device, or a number.

        Raises:
            ValueError: there is no such slot; a tensor does not fit it, or overlaps others that the same work writes.
            TypeError: it is something else. Then nothing is changed.
        """
        with self.lock:
            self.bind_locked(values)
        return self

    def bind_locked(self, values: Mapping[str, Any]) -> None:
        """As `bind`, with the lock held (internal)."""
        previous = []
        try:
            for name, value in values.items():
                bound = self._slots.get(name)
                if bound is None or bound.captured is not None or self._embedded:
                    self._refuse_binding(name, bound)
                if value is not bound.value:
                    value = bound.slot.check(value, self)
                    previous.append((bound, bound.value))
                    bound.set(value)
            for bound, _ in previous:
                for span, node, other, owner, may_meet in bound.conflicts:
                    if span.address != other.address or not may_meet:
                        self._check_overlap(bound, span, node, other, owner)
                self.changed(bound)
        except BaseException:
            for bound, before in previous:
                bound.set(before)
            raise

    def _refuse_binding(self, name: str, bound: Binding | None) -> NoReturn:
        self._check_open()
        if self._embedded:
            raise ValueError(
                f"{self!r} is part of another recorded op, which would not learn of this: bind before recording that"
            )
        if bound is None:
            known = ", ".join(self._slots) or "none: mark what is to change with tk.slot(name, tensor) before recording"
            raise ValueError(f"{self!r} has no slot {name!r}; it has {known}")
        assert bound.captured is not None, "the last reason"
        raise ValueError(
            f"{self!r}: bind({name}=...) cannot reach {bound.captured.label}, which was captured from another library's launch. "
            "Copy to the recorded tensor instead, with update(api.memcpy(...))"
        )

    def _check_overlap(self, bound: Binding, span: MemoryRange, node: Node, other: MemoryRange, owner: Node) -> None:
        """Refuse memory that is written beside another use of it."""
        if span.overlaps(other):
            where = "itself" if owner is node else f"{owner.label}, which may run at the same time"
            raise ValueError(
                f"{self!r}: bind({bound.slot.name}=...) would let {node.label} use {span.nbytes:,} bytes of which some are "
                f"used, and written, by {where} as well. Bind a tensor that does not overlap"
            )

    def changed(self, binding: Binding) -> None:
        """The nodes with this are not what they were. The lock is held (internal)."""
        self._dirty |= binding.numbers
        if not binding.launches and self._one_by_one:  # the parameters of launches stay where they are; all else is told anew
            self._program, self._programmed = None, False

    def update(self, op: DeviceOp[Any]) -> DeviceFuture[Any]:
        """Submit `op` to the graph's stream, to change what the next launch finds: `graph.update(api.memcpy(x, token))`.

        Launches that come later wait for it, on whatever stream. Does not block.

        Returns:
            The future of the op.
        """
        if not isinstance(op, DeviceOp):
            raise TypeError(f"update takes an op, not {type(op).__name__}: graph.update(api.memcpy(x, token))")
        return op.async_on(self.stream)

    # running it

    def launch(self) -> GraphLaunch:
        """An op that runs all of it, on any stream; its result is `output`."""
        self._check_open()
        return GraphLaunch(self)

    def run(self, stream: Any, **values: Any) -> None:
        """Submit all of it to `stream`, and return at once; `stream.synchronize()` waits for it.

        What `launch().async_on(stream)` does, without an op, a future, and an event behind it: for loops in which every
        microsecond counts. Who waits for it on another stream records the event, and so waits for what is in `stream` by then.

        Args:
            stream: where, of the op's device, in anything that `as_stream` takes.
            values: for slots, see `bind`.

        Raises:
            ValueError: the stream is closed or on another device; what `bind` raises.
        """
        self._run(stream, values, False)

    def sync_on(self, stream: Any, **values: Any) -> Any:
        """As `run`, and block until the work is done; the result is `output`."""
        where, mark = self._run(stream, values, True)
        if mark and mark.poll(self._spin_s):
            if mark.serial > where.completed:
                where.completed = mark.serial
        else:
            where.wait(mark.serial if mark else where.mark())
        if not self._on_host:
            return self._result
        return rebuilt(self._result, lambda value: self._copied(value.get(), where).get())

    def _run(self, stream_like: Any, values: Mapping[str, Any], marked: bool) -> tuple[Stream, Any]:
        """Submit all of it; the stream, and if asked for and there is one the mark behind it."""
        stream: Stream = stream_like
        if type(stream_like) is not Stream or stream_like.device is not self.device or stream_like.closed:
            stream = as_stream(stream_like, self.device)
        if submitting.submission is not None:
            refuse_nested(self)
        with self.lock:
            if values:
                self.bind_locked(values)
            mark = self._submitted(stream, marked)
            if mark is False:
                self._submit(ExecutionContext(self.device, stream))
        return stream, mark

    def _submitted(self, stream: Stream, marked: bool) -> Any:
        """Submit all of it in one native call; the mark behind it, if there is one. False if nothing was done."""
        program = self._program
        if program is None:
            self._check_open()
            if self._programmed:
                return False
            make = None if self.peers else FAST_PATH.program
            program = self._program = None if make is None else make(self.device.driver, self._steps())
            self._programmed = True
            if program is None:
                return False
        if self._dirty:
            self._apply_changes()
        code, mark = program.run(stream, self.reads, self.writes, self.label, marked)
        if code == 0:
            return mark
        if code > 0:
            raise self.device.driver.failure(code, f"running {self.label}")
        return False

    def _steps(self) -> Sequence[Node]:
        """The nodes that are submitted one by one."""
        return self.nodes

    def _apply_changes(self) -> None:
        """Tell the driver what was changed."""
        self._dirty.clear()

    def submit(self, ctx: ExecutionContext) -> Any:
        """Submit all of it; the result, which the device still computes (internal)."""
        with self.lock:
            self.submit_locked(ctx)
        return self._delivered(ctx)

    def submit_locked(self, ctx: ExecutionContext) -> None:
        """The same, with the lock held (internal)."""
        if ctx.recording is not None or self._submitted(ctx.stream, False) is False:
            self._submit(ctx)

    def _submit(self, ctx: ExecutionContext) -> None:
        self._check_open()
        reads, writes = self.reads, self.writes
        peers = () if ctx.recording is not None else self.peers
        ctx.acquire(reads, writes)
        for storage in peers:
            for use in filter(None, (storage.last_write, storage.theirs)):
                ctx.stream.wait_for(*use)
        try:
            if ctx.recording is not None:
                self._embed(ctx)
            else:
                self._enqueue(ctx)
        finally:
            ctx.note((*reads, *peers), writes)
        ctx.stream.submitted(self.label)

    def _embed(self, ctx: ExecutionContext) -> None:
        """Be a part of what is recorded. That has what the slots stand for now; it would not learn of a change."""
        for storage in self.peers:
            ctx.recording.read_peer(storage)
        self._embedded = True
        graph = self._graph()
        node = Captured(self.label, graph, owned=graph not in self._handles())
        node.keep = self
        ctx.recording.add(node, ctx.stream)

    def _delivered(self, ctx: ExecutionContext) -> Any:
        if not self._on_host:
            return self._result
        return rebuilt(self._result, lambda value: self._copied(value.get(), ctx.stream))

    def _copied(self, array: Any, stream: Stream) -> HostValue:
        """An array of the host's that a launch in `stream` writes: a copy, but for those that the caller gave."""
        if not any(array is own for own in self._arrays):
            return HostValue(array, stream)
        copy = np.empty_like(array)
        return HostValue(copy, stream, lambda: np.copyto(copy, array))

    def _enqueue(self, ctx: ExecutionContext) -> None:
        """Submit the nodes to the stream."""
        raise NotImplementedError

    def _graph(self) -> Any:
        """The driver's graph of the nodes as they are now."""
        raise NotImplementedError

    # the end

    def close(self) -> None:
        """Give it up. What was launched still runs. May be called again."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self._give_up()
            self._program, self._programmed = None, True
            self.nodes, self._slots, self.reads, self.writes, self.peers, self._result = (), {}, [], [], [], None

    def _give_up(self) -> None:
        """Leave to the device, until all launches are done, what they use beside memory of its own."""
        owned = [node.graph for node in self.nodes if isinstance(node, Captured) and node.owned]
        uses = [use for order in (*self.writes, *self.reads) for use in order.uses()]
        self.device.garbage.append(Garbage(None, uses, _Left(self.device, self.nodes, [*owned, *self._handles()])))

    def _handles(self) -> list[Any]:
        """The driver's graphs that are this one's."""
        return []

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not sys.is_finalizing():
            self._give_up()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self!r} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    # being looked at

    def mermaid(self) -> str:
        """The recorded work as a Mermaid flowchart, for Markdown, what runs first on top."""
        return self._diagram().mermaid()

    def graphviz(self) -> str:
        """The recorded work in Graphviz's language, what runs first on top: `dot -Tsvg`."""
        return self._diagram().graphviz()

    def svg(self) -> str:
        """The recorded work as an SVG picture, which notebooks show of it. Of very many pieces some are left out."""
        return self._diagram().svg()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.svg()}

    def _diagram(self) -> Diagram:
        return Diagram(
            title=repr(self),
            nodes=[(node.label, *node.details()) for node in self.nodes],
            edges=[(before, at) for at, node in enumerate(self.nodes) for before in node.after],
            name="graph_",
        )

    def __len__(self) -> int:
        return len(self.nodes)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        count = len(self.nodes)
        return f"<{self._noun} {self.label}: {count} node{'' if count == 1 else 's'}{', closed' if self._closed else ''}>"


def unwrapped(value: Any) -> Any:
    """`value` with arrays where the host's copies will be."""
    return rebuilt(value, HostValue.get) if moments(value) else value


class GraphLaunch(DeviceOp[Any]):
    """One launch of a recorded op. Its result is the recorded op's output."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self._label = recorded, f"launch of {recorded.label}"

    @property
    def device(self) -> Device:
        """Where it was recorded for."""
        return self.recorded.device

    def steps(self, ctx: ExecutionContext) -> Done:
        """Submit all of it."""
        if ctx.device is not self.recorded.device:
            raise ValueError(f"{self.recorded!r} was recorded for {self.recorded.device!r}, and is launched on {ctx.device!r}")
        return Done(self.recorded.submit(ctx))


class _Left:
    """What is left of something recorded that nobody has any more. The device lets go of it when all launches are done.

    Nodes keep arrays of the host's, for example.
    """

    __slots__ = ("_device", "_handles", "_nodes")

    def __init__(self, device: Device, nodes: Sequence[Node], handles: Sequence[Any]) -> None:
        self._device, self._nodes, self._handles = device, nodes, handles

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for handle in self._handles:
                self._device.driver.graph_destroy(handle)


def refuse_nested(what: DeviceOp[Any] | Recorded) -> NoReturn:
    """RuntimeError: this thread is submitting an op."""
    does = "run" if isinstance(what, Recorded) else "be recorded"
    if isinstance(what, DeviceOp):
        what.consumed()
    raise RuntimeError(f"{what!r} cannot {does} while {submitting.submission.op!r} is being submitted by the same thread")
