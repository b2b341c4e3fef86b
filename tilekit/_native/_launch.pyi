# The compiled part of tilekit: see _launch.c.
from collections.abc import Callable
from typing import Any, Self

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.stream import Stream

# Launches of one kernel with arguments of one kind, on one device. `rest`: the parameters behind those of the arguments, eight
# bytes each.
class Launcher:
    def __new__(
        cls,
        *,
        launch: int,
        current: int,
        context: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        plain: type,
        kinds: bytes,
        uses: bytes,
        slots: bytes,
        record: int = ...,
        query: int = ...,
        spin_s: float = ...,
        rest: bytes = ...,
    ) -> Self: ...
    def launch(self, stream: object, arguments: tuple[object, ...], label: str, /) -> int: ...

# Recorded work, submitted in one go: see `tilekit._capture.replay.Program`. `launcher` is any of the same device. `steps` is ten
# numbers of eight bytes each: the kind, and what it takes. Of a launch (0) the function, grid, block, shared bytes, and the
# address of its parameters; of a graph (1) its handle; of a copy (2) where to, where from, bytes; of a fill (3) the address, the
# pattern, how often, and its bytes. The others are addresses: of cuGraphLaunch, cuMemcpyAsync, cuMemsetD8Async and its like.
class Program:
    def __new__(
        cls, *, launcher: Launcher, steps: bytes, graph: int, copy: int, fill8: int, fill16: int, fill32: int
    ) -> Self: ...
    def run(self, stream: Stream, reads: list[Any], writes: list[Any], label: str, marked: bool, /) -> tuple[int, Any]: ...

# A base of `Kernel`: calls it, and leaves to its `_build` what is unusual.
class Calls:
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

# A base of `KernelLaunch`: its start(), sync(), sync_on() and async_on(). What is unusual is left to those of `DeviceOp`.
class Runs: ...

# Tell the compiled part the classes whose attributes it reads, all of them slots, and what of Python's it needs: `start`,
# `sync`, `sync_on`, `async_on` of `DeviceOp`; `site_of` and what it knows, `inside`; `submitting`; `ended(op, stream)`, which
# ends a submission that has been made; `dropped(op)`, its finalizer; `waited(op, stream, serial)`, which waits for it.
def prepare(*classes: type, **helpers: Callable[..., Any] | object) -> None: ...

# Submit a launch to the next stream of its device, and poll for its end for so many seconds. None if it is over; else the stream,
# if one was asked for, and the serial behind the launch, if it was made.
def submit(op: object, poll_s: float, /) -> tuple[Stream | None, int | None] | None: ...

# Run the ops of a chain, first to last, from number `at` on, as far as each applies a kernel to `result`, which a launch leaves
# as it is, and all is as usual. The number of the op to go on with.
def links(ops: list[Any], at: int, result: Any, ctx: ExecutionContext, /) -> int: ...

# Run ops from number `at` on as far as they are launches, and all is as usual; append their results. The number of the op to go
# on with.
def row(ops: tuple[Any, ...], at: int, results: list[Any], ctx: ExecutionContext, /) -> int: ...
