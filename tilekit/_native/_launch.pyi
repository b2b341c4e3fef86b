# The compiled part of tilekit: see _launch.c. VERSION in attributes.py and _launch.h is raised when what is here changes.
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, Self

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.storage import Imported, Kept, Storage
from tilekit._runtime.stream import Stream
from tilekit._tensor.layout import Layout
from tilekit._tensor.tensor import Tensor
from tilekit.ops.fast_path import NativeLaunch

VERSION: Final[int]

# What an argument of a kernel is; the last kind is not passed. Whether memory is read, and whether it is written.
TENSOR: Final[int]
PARTITION: Final[int]
SCALAR: Final[int]
ABSENT: Final[int]
READ: Final[int]
WRITTEN: Final[int]

# Launches of one kernel with arguments of one kind, on one device. `kinds` and `uses` have a byte for each argument, of the
# above. `rest`: the parameters behind those of the arguments, eight bytes each. `maps`: of the tensor maps behind these the
# number of the argument, and a dict that has them, 128 bytes each, by `Tensor.flat`; it does not launch where one is not there.
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
        kinds: bytes,
        uses: bytes,
        slots: bytes,
        record: int = ...,
        query: int = ...,
        wait: int = ...,
        not_ready: int = ...,
        spin_s: float = ...,
        rest: bytes = ...,
        maps: tuple[tuple[int, dict[tuple[int, ...], bytes]], ...] = ...,
    ) -> Self: ...
    def launch(self, stream: object, arguments: tuple[object, ...], label: str, /) -> int: ...

# The kinds of steps of a Program, and how many numbers a step has.
LAUNCH: Final[int]
GRAPH: Final[int]
COPY: Final[int]
FILL: Final[int]
FIELDS: Final[int]

# Recorded work, submitted in one go: see `tilekit.ops.fast_path.Program`. `launcher` is any of the same device. `steps` is FIELDS
# numbers of eight bytes each: the kind, and what it takes. Of a LAUNCH the function, grid, block, shared bytes, and the address
# of its parameters; of a GRAPH its handle; of a COPY where to, where from, bytes; of a FILL the address, the pattern, how often,
# and its bytes. The others are addresses: of cuGraphLaunch, cuMemcpyAsync, cuMemsetD8Async and its like, and
# cuTensorMapReplaceAddress.
#
# With `blocks` and `moves` it is `tilekit.ops.fast_path.MovableProgram`. `blocks` has the parameters of the launches, those of
# each from a multiple of 64 bytes on, first its tensor maps, then its slots. A LAUNCH says where, in the place of the address,
# and behind that how many slots and maps there are. Each of `moves` is four numbers of eight bytes: where an address is, in bytes
# from the first step on, with the blocks behind the steps at the next multiple of 64; which of the addresses; how far behind it;
# and 1 for that in a tensor map.
class Program:
    def __new__(
        cls,
        *,
        launcher: Launcher,
        steps: bytes,
        graph: int,
        copy: int,
        fill8: int,
        fill16: int,
        fill32: int,
        replace: int = ...,
        blocks: bytes = ...,
        moves: bytes = ...,
    ) -> Self: ...
    def run_at(self, addresses: tuple[int, ...], stream: int, /) -> int: ...
    def run(self, stream: Stream, reads: list[Any], writes: list[Any], label: str, marked: bool, /) -> tuple[int, Any]: ...

# What a ready-made kernel is known to launch. Each item is a launch that was made: its Launcher's `launch`, its arguments, of
# each that is a tensor or a partition the number of its base and how many bytes behind that it begins, else None, and its label.
# ValueError for any that no Launcher launches. Later launches have the same parameters but for the addresses.
#
# `submit` launches on tensors in the places of the bases, which have the same traits, records an event behind the last, and polls
# for it: see `tilekit.ops.fast_path.KnownLaunches`.
class Launches:
    def __new__(
        cls, items: tuple[tuple[NativeLaunch, tuple[Any, ...], tuple[tuple[int, int] | None, ...], str], ...], /
    ) -> Self: ...
    def submit(self, bases: list[Tensor], stream: Stream, poll_s: float | None, /) -> tuple[int, int | None]: ...

# An event recorded in a stream, and its serial: see `tilekit._runtime.timeline.Mark`.
class Mark:
    serial: int
    event: Any
    def poll(self, seconds: float, /) -> bool | None: ...

# A base of `Kernel`: calls it, and leaves to the helper `call` what is unusual.
class Calls:
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

# A base of `KernelLaunch`: its start(), sync(), sync_on() and async_on(). What is unusual is left to those of `DeviceOp`.
class Runs: ...

# The methods `sync`, `sync_on` and `async_on` of ops that are recalled.
class Recalls: ...

# Tell the compiled part what of Python's it reads: the classes, each with the attributes, all of them slots; the names that it
# asks any object for; the helpers; the constants. See attributes.py. ImportError, and nothing is kept, if it was built for
# others.
# Of the helpers `ended(op, stream)` ends a submission that has been launched; `waited(op, stream, serial)` waits for it.
# What comes back are methods `__del__` for Storage and for Imported.
def prepare(
    classes: tuple[tuple[type, tuple[str, ...]], ...],
    names: tuple[str, ...],
    helpers: dict[str, Callable[..., Any] | object],
    constants: dict[str, int],
    /,
) -> tuple[Callable[[Storage], None], Callable[[Imported], None]]: ...

# What tells a call of a function from others: the function, the number of `args`, the names in `kwargs`, and of each argument in
# order the traits of a tensor, None, or the type and the value where the type is in `plain`. The tensors are appended to a list,
# those over arrays of other libraries, too.
# None, and the list is of no use, where any argument is unusual: see `tilekit.kernels._recall`, which looks then.
def key(
    function: object, args: tuple[Any, ...], kwargs: dict[str, Any], plain: frozenset[type], tensors: list[Any], /
) -> tuple[Any, ...] | None: ...

# Tensors, and behind them new ones, of which each item of `new` says how many bytes it has, its Layout, and its traits: in
# memory that the stream has in its free lists. None if that has none, or anything is unusual: see `Recipe.bases`.
def new_tensors(tensors: list[Tensor], new: tuple[tuple[Any, ...], ...], stream: Stream, /) -> list[Tensor] | None: ...

# What is known of a call, by its `key`: the op of one whose recipe is in `known`; else None. `name` is what the op is called.
def recalled(
    known: dict[Any, Any], function: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], plain: frozenset[type], /
) -> Any: ...

# The class of ops that `recalled` makes, which is derived from `Recalls`; that of recipes; and `(sync, sync_on, async_on)`, which
# do what its methods leave to Python. ImportError if the recipes have other fields than it was built to read.
def recalls(op: type, recipe: type, in_python: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]], /) -> None: ...

# Do what is known to be done for arguments that look alike. `known` has it by what such arguments have in common: (program, new,
# results, copies, ordinal), with a Program that is moved; of new memory (shape, strides, dtype, result), the last None for
# workspaces; how many results there are; whether arguments are copied before, which is left to the caller; and the number of the
# device. `empty(shape, strides, dtype)` gives new memory, `stream_on(ordinal)` the address of a stream.
# The results, or the driver's code if it refused; else what the arguments have in common, and nothing is done, since it is not
# known, or another device is current. None where any argument is unusual.
def repeat(
    known: dict[Any, Any], args: tuple[Any, ...], empty: Callable[..., Any], stream_on: Callable[[int], int], /
) -> list[Any] | int | tuple[Any, ...] | None: ...

# As `StreamOrderedMemory._in_use`: what is not in use is taken out of the list, and let go. A storage in it is in use, too, while
# anything else holds it.
def in_use(waiting: list[Kept], /) -> list[Kept]: ...

# Submit a launch to the next stream of its device, and poll for its end for so many seconds. None if it is over; else the stream,
# if one was asked for, and the serial behind the launch, if it was submitted.
def submit(op: object, poll_s: float, /) -> tuple[Stream | None, int | None] | None: ...

# Run the ops of a chain, first to last, from number `at` on, as far as each applies a kernel to `result`, which a launch leaves
# as it is, and all is as usual. The number of the op to go on with.
def links(ops: list[Any], at: int, result: Any, ctx: ExecutionContext, /) -> int: ...

# Run ops from number `at` on as far as they are launches, and all is as usual; append their results. The number of the op to go
# on with.
def row(ops: tuple[Any, ...], at: int, results: list[Any], ctx: ExecutionContext, /) -> int: ...

# What is asked about arrays of other libraries. `layout` makes a Layout of a shape, strides (in elements), and the code and the
# bits of a dtype of DLPack's, once for arrays that are alike; None for other dtypes. `stream` finds a stream by the number of a
# device, one of those that the module `devices` has, and an address. Types of modules whose names begin with one of `refused` are
# left alone.
def arrays(
    layout: Callable[[tuple[int, ...], tuple[int, ...], int, int], Layout | None],
    stream: Callable[[int, int], Stream],
    devices: ModuleType,
    refused: tuple[str, ...],
    /,
) -> None: ...

# An array of another library's, by the functions of DLPack's that its type names: the tensor over it, behind what the library has
# submitted by now, if it is a GPU's, in memory that is known, and nothing about it is unusual. Else what it says of itself:
# DLPack's kind (CPU or CUDA) and number of its device, the address of the stream that its library works in there, that of the
# first element, and its layout. None where it is to be asked in another way.
def described(array: object, /) -> Tensor | tuple[int, int, int, int, Layout | None] | None: ...
