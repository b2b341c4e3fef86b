"""`DeviceOp`: a description of device work that does nothing until it is run, and runs at most once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device, as_stream, default_device
from tilekit._runtime.scheduling import SchedulingPolicy
from tilekit._runtime.storage import BORROWED
from tilekit._runtime.stream import Stream, check_next, next_stream
from tilekit.errors import location
from tilekit.ops import drawing
from tilekit.ops.borrowing import refuse_borrowed
from tilekit.ops.composition import Composition
from tilekit.ops.execution import Done, Steps, Submission
from tilekit.ops.future import DeviceFuture
from tilekit.ops.methods import methods
from tilekit.ops.not_run import NotRun, as_coroutine
from tilekit.ops.reactor import awaited
from tilekit.ops.sites import site_of
from tilekit.ops.spec import Spec
from tilekit.ops.tensor_methods import TensorMethods
from tilekit.ops.unused import excused, warn_unused

if TYPE_CHECKING:
    from tilekit._capture.graph import CudaGraph, PreparedOp

__all__ = ["DeviceOp"]

T = TypeVar("T")
U = TypeVar("U")

_PACKAGE = __name__.partition(".")[0] + "."


class DeviceOp(Composition, TensorMethods, NotRun, Generic[T]):
    """A lazy operation on a device that produces a `T`.

    Building one does nothing: no allocation, no copy, no compilation, no choice of a stream. It runs at most once:

    | call | stream | waits |
    | --- | --- | --- |
    | `op.sync()` | the next of the device's policy | blocks |
    | `op.sync_on(stream)` | the given one | blocks |
    | `op.async_on(stream)` | the given one | no; gives a `DeviceFuture` |
    | `op.schedule(policy)` | the next of `policy` | no; gives a `DeviceFuture` |
    | `await op` | the next of the device's policy | suspends the task |
    | `op.graph_on(stream)` | none: records a `CudaGraph` | no |

    To make an operation of your own, derive from this class and define `execute`.
    """

    if not TYPE_CHECKING:  # which would take all attributes to be named here
        __slots__ = ("__weakref__",)  # classes with many instances name their attributes, any other gets a __dict__

    _fresh: None  # an op has it until somebody takes its one run
    _spent = False
    _consumed = False  # part of another op, which answers for it
    _site: tuple[CodeType, int] | None = None
    _label: str | None = None
    spec: Spec | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> DeviceOp[T]:
        self: DeviceOp[T] = object.__new__(cls)
        try:
            self._fresh = None
        except AttributeError:  # it has no room for it: only classes that derive from this one have
            raise TypeError("DeviceOp is no op by itself: derive a class from it that defines execute(ctx)") from None
        self._site = site_of(sys._getframe(1))
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        build = cls.__dict__.get("__init__")
        if build is not None and not cls.__module__.startswith(_PACKAGE):
            cls.__init__ = excused(build)  # type: ignore[method-assign]

    def execute(self, ctx: ExecutionContext) -> T:
        """Enqueue the work on `ctx.stream` and return its result, which the device may still be computing.

        Called once, by whatever runs the op. Must not wait for the device.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define execute(ctx)")

    def steps(self, ctx: ExecutionContext) -> Steps | Done:
        """Run the op, or begin to, see `tilekit.ops.execution`; ops made of other ops define this instead of `execute`."""
        return Done(self.execute(ctx))

    def _operands(self) -> Iterable[Any]:
        """What it was built with, in which borrowed memory is looked for."""
        return vars(self).values()

    _launch_row: Any = None  # `_native`'s, for ops that it can launch several of in one call, see `Zip.steps`

    # what is known before it runs

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result. AttributeError if that is not known before the op has run."""
        return self._known().shape

    @property
    def dtype(self) -> Any:
        """The dtype of the result. AttributeError if that is not known before the op has run."""
        return self._known().dtype

    def _known(self) -> Spec:
        if self.spec is None:
            raise AttributeError(f"{self!r} does not know the shape and dtype of its result before it has run")
        return self.spec

    # running it

    def claim(self) -> None:
        """Take the op's one run.

        Raises:
            ValueError: somebody has.
        """
        if not self._spent:
            try:
                del self._fresh  # one thread can do that
            except AttributeError:
                pass
            else:
                self._spent = True
                return
        raise ValueError(f"{self!r} has already run: an op runs at most once. op.shared() makes one that can be used again")

    def start(self, ctx: ExecutionContext) -> Steps | Done:
        """Take the op's one run, and begin it on `ctx`: for ops made of other ops, which yield what this returns."""
        self.claim()
        return self.steps(ctx)

    def sync(self) -> T:
        """Run on the next stream of the device's policy, block until the work is done, and return the result."""
        result: T = Submission(self, self._next_stream()).run()
        return result

    def sync_on(self, stream: Any) -> T:
        """Run on `stream` (a `Stream`, or anything that is one elsewhere), block until the work is done, return the result."""
        result: T = Submission(self, self._stream(stream)).run()
        return result

    def async_on(self, stream: Any) -> DeviceFuture[T]:
        """Submit to `stream` and return at once; the future has the result when the device is done.

        Raises:
            ValueError: the op uses borrowed memory (`tilekit.from_pointer`), which nobody keeps alive meanwhile.
        """
        future: DeviceFuture[T] = DeviceFuture(self, self._stream(stream))
        future.submit()
        return future

    def schedule(self, policy: SchedulingPolicy) -> DeviceFuture[T]:
        """Submit to the next stream of `policy` and return at once. Raises what `async_on` raises."""
        return self.async_on(next_of(policy))

    def run(self) -> Coroutine[Any, Any, T]:
        """The coroutine that `await op` runs, for `asyncio.create_task`, task groups, nurseries.

        Raises:
            ValueError: the op uses borrowed memory (`tilekit.from_pointer`), which a task of its own may outlive.
        """
        self._consumed = True
        if BORROWED:
            refuse_borrowed(self)
        return self._awaited()

    async def _awaited(self) -> T:
        return await _Detached(self)

    def __await__(self) -> Generator[Any, None, T]:
        return awaited(Submission(self, self._next_stream()))

    # recording it

    def graph_on(self, stream: Any) -> CudaGraph:
        """Record the op as a CUDA graph, for the device of `stream`. Nothing is executed, and nothing submitted to the stream.

        Closures (`then`, `map`) are called now, once. What the op allocates belongs to the graph, and is the same memory at
        each launch; so is its result, `graph.output`, which is defined once a launch has been waited for. Tensors that the op
        uses are read and written by each launch, arrays of `memory.pinned` too. Kernels are compiled. Work that closures submit
        to `ctx.stream` by other libraries is captured, on a GPU.

        Raises:
            TypeError: the op waits for the device in the middle, uses ordinary memory of the host's, or other devices.
            RuntimeError: the thread is submitting or recording an op.
            Whatever the op fails with; nothing is left behind.
        """
        return methods.recorded_op(self, self._stream(stream), methods.CudaGraph)

    def graph(self) -> CudaGraph:
        """As `graph_on`, with the next stream of the device's policy for its `update`."""
        return methods.recorded_op(self, self._next_stream(), methods.CudaGraph)

    def prepare(self) -> PreparedOp:
        """Record the op's work, to submit it again and again at the cost of the driver's calls: `prepared.run(stream)`.

        As `graph`, but the device gets the work piece by piece; worth it for one launch, or a few.
        """
        return methods.recorded_op(self, self._next_stream(), methods.PreparedOp)

    def _next_stream(self) -> Stream:
        policy = (self.device or default_device()).policy
        stream = policy.next_stream()
        return stream if type(stream) is Stream else check_next(stream, policy)

    def device_operation(self) -> DeviceOp[T]:
        """The op itself, as of a tensor the op whose result it is."""
        return self

    def _stream(self, stream: Any) -> Stream:
        try:
            return as_stream(stream, self.device)
        except ValueError as error:
            self.annotate(error)
            raise

    # combining

    def then(self, function: Callable[[T], DeviceOp[U]]) -> DeviceOp[U]:
        """Run `function(result)` next, on the same stream; it returns the op to run. A tuple is one result.

        `function` is called while this op is submitted: its result is there to be used by device work, not yet to be read by
        the host, except for host values (`to_host`), which are waited for.
        """
        return methods.AndThen(self, function)

    and_then = then

    def and_then_with_context(self, function: Callable[[ExecutionContext, T], DeviceOp[U]]) -> DeviceOp[U]:
        """Like `then`, for `function(ctx, result)`: the context has `device`, `stream`, `context` and `allocate`."""
        return methods.AndThen(self, function, False, True)

    def apply(self, function: Callable[..., DeviceOp[U]]) -> DeviceOp[U]:
        """Like `then`, with the elements of a tuple result as separate arguments."""
        return methods.AndThen(self, function, True)

    def map(self, function: Callable[[T], U]) -> DeviceOp[U]:
        """Turn the result into `function(result)`: host code that submits nothing."""
        return methods.Map(self, function)

    def inspect(self, function: Callable[[T], object]) -> DeviceOp[T]:
        """Show the result to `function` on the way; it stays what it is."""
        return methods.Inspect(self, function)

    def or_else(self, function: Callable[[Exception], DeviceOp[T]]) -> DeviceOp[T]:
        """If the op fails, run `function(error)` in its place, on the same stream. Waits for the op to know whether it does.

        After a fault of a GPU nothing else can run there; this is for what fails otherwise.
        """
        return methods.OrElse(self, function)

    def unzip(self, count: int | None = None) -> tuple[DeviceOp[Any], ...]:
        """The elements of a tuple result as ops of their own, in any order; this one runs once.

        Args:
            count: how many there are, where that is not known before the op runs (of `zip` and kernels it is).

        Raises:
            ValueError: it is not known, or another number.
        """
        return methods.unzip(self, count)

    def first(self) -> DeviceOp[Any]:
        """The first element of a tuple result."""
        return methods.Element(self, 0)

    def last(self) -> DeviceOp[Any]:
        """The last element of a tuple result."""
        return methods.Element(self, -1)

    def shared(self) -> DeviceOp[T]:
        """An op that can be run, or be part of others, any number of times; this one runs once, and its result is reused."""
        return methods.Shared(self)

    arc = shared

    def on(self, device: Device | str) -> DeviceOp[T]:
        """Run on `device`, whatever runs around the op.

        Raises:
            ValueError: the op works on tensors of another device.
        """
        return methods.OnDevice(self, Device(device))

    def with_policy(self, policy: SchedulingPolicy) -> DeviceOp[T]:
        """Run on the stream that `policy` gives, whatever runs around the op."""
        return methods.WithPolicy(self, policy)

    def boxed(self) -> DeviceOp[T]:
        """The op itself. (In the seeds, which are typed more strictly, ops of different kinds share a list only when boxed.)"""
        return self

    def into_future(self) -> DeviceFuture[T]:
        """An idle `DeviceFuture` on the next stream of the device's policy; it submits when it is awaited, or by `submit()`."""
        return DeviceFuture(self, self._next_stream())

    def named(self, name: str) -> DeviceOp[T]:
        """The op itself, called `name` in messages."""
        if not isinstance(name, str):
            raise TypeError(f"named: a name is a str, not {type(name).__name__}")
        self._label = name
        return self

    # being looked at

    def consumed(self) -> None:
        """Make another op answer for this one: it is that op's part now."""
        self._consumed = True

    def mermaid(self) -> str:
        """The op and its parts as a Mermaid flowchart, for Markdown."""
        return drawing.diagram(self).mermaid()

    def graphviz(self) -> str:
        """The op and its parts in Graphviz's language, for `dot -Tsvg`."""
        return drawing.diagram(self).graphviz()

    def svg(self) -> str:
        """The op and its parts as an SVG picture, which notebooks show of it. Of very many parts some are left out."""
        return drawing.diagram(self).svg()

    def _details(self) -> tuple[str, ...]:
        """What a picture says of the op below its name, a line each."""
        return ()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows. Nobody who reads that the op has not run need be warned of it."""
        note = "" if self._many else "has run" if self._spent else "has not run: .sync() or await runs it"
        self.consumed()
        return {"text/plain": repr(self), "image/svg+xml": drawing.diagram(self).svg(note)}

    def where(self) -> str:
        """`file:line` of the code that built the op, or the cell of a notebook and its line."""
        return "an unknown place" if self._site is None else location(*self.location())

    def location(self) -> tuple[str, int]:
        """The file and the line of the code that built the op (internal)."""
        assert self._site is not None, "asked by those who have looked"
        code, lasti = self._site
        positions = list(code.co_positions())
        line = positions[lasti // 2][0] if 0 <= lasti // 2 < len(positions) else None
        return code.co_filename, code.co_firstlineno if line is None else line

    def annotate(self, error: BaseException) -> None:
        """Note on `error` which op it comes from (internal)."""
        note = f"in {self!r}, built at {self.where()}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    @property
    def label(self) -> str:
        """What the op is called in messages."""
        return self._label or type(self).__name__

    def __repr__(self) -> str:
        return drawing.tree(self) + as_coroutine(sys._getframe(1))

    def __del__(self) -> None:
        if not self._spent and not self._consumed and self._site is not None and not sys.is_finalizing():
            warn_unused(self, sys._getframe().f_back)


def next_of(policy: SchedulingPolicy) -> Stream:
    """The next stream of a policy."""
    if not isinstance(policy, SchedulingPolicy):
        raise TypeError(f"{policy!r} is no scheduling policy: it has no next_stream()")
    return next_stream(policy)


class _Detached(Generic[T]):
    """What the coroutine of an op awaits: as the op, but borrowed memory is refused."""

    __slots__ = ("_op",)

    def __init__(self, op: DeviceOp[T]) -> None:
        self._op = op

    def __await__(self) -> Generator[Any, None, T]:
        return awaited(Submission(self._op, self._op._next_stream(), True))
