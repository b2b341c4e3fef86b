"""What the compiled module reads of Python's: attributes, methods, functions and constants, in the order in which it has them.

`_launch.h` has the same lists. `prepare` compares the two, name by name, and refuses a module that was built from others. An
attribute here is a slot of its class, read and written in place: renaming one, or taking it out of `__slots__`, means a change
here and in `_launch.h`, and another build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilekit import launch
from tilekit._driver.protocol import Memory
from tilekit._runtime.allocator import MANY, MUCH, FreeList
from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.device import Device, as_stream
from tilekit._runtime.hazards import READERS_KEPT, AccessHistory
from tilekit._runtime.ranges import Range, Ranges
from tilekit._runtime.storage import BORROWED, Imported, Storage
from tilekit._runtime.stream import Stream
from tilekit._runtime.timeline import MARKS_KEPT
from tilekit._tensor.layout import Layout
from tilekit._tensor.partition import Partition, Traits
from tilekit._tensor.tensor import Tensor
from tilekit.launch import planning
from tilekit.launch.planning import Form, Plan
from tilekit.ops import DeviceOp
from tilekit.ops.combinators import AndThen
from tilekit.ops.execution import Done
from tilekit.ops.future import DeviceFuture
from tilekit.ops.sites import INSIDE, RUNNING, site_of

__all__ = ["CONSTANTS", "HELPERS", "NAMES", "SLOTS", "VERSION"]

# Raised when a function of the module takes or gives something else than before: see `_launch.pyi`.
VERSION = 8

# Of each class the attributes, and what for.
SLOTS: Mapping[type, Mapping[str, str]] = {
    Stream: {
        "_create": "makes an event where the pool has none left",
        "_events": "the device's pool of events, from which one is taken for each mark",
        "_failures": "serials that failed: while there are any, marks are forgotten by Python",
        "_lock": "held while an event is recorded",
        "_marks": "the recorded events, to which each launch appends one",
        "_names": "of recent work, to which each launch appends its label",
        "_seen": "what it has waited for of other streams, to which each wait adds",
        "_stable": "whether that may be remembered of it",
        "_trim_at": "of how many marks it is looked whether some have passed",
        "address": "the driver's stream",
        "closed": "a closed stream is left to Python",
        "completed": "up to where all is known to have passed",
        "device": "a launch is made by the plan for this device",
        "number": "by which others remember that they have waited for it",
        "pending": "the serial of the next mark",
    },
    AccessHistory: {
        "last_write": "who wrote the memory last, for whom others may have to wait",
        "reads": "who read it since",
        "theirs": "what another library has done with it, which everybody waits for",
    },
    Storage: {
        "_free_list": "none, of others' memory",
        "_leave": "takes what is left of others' memory",
        "borrowed": "whether nobody keeps the memory alive",
        "device": "where it is",
        "guarded": "whether Python has to look at each use",
        "memory": "whether an array lies in it",
        "nbytes": "the same",
        "owned": "whether it is tilekit's own",
        "owner": "the array that keeps others' memory alive",
        "readonly": "why it must not be written",
    },
    Imported: {
        "history": "memory of others' has its history there",
        "kept": "set, of a storage that stays as long as work uses it",
        "view": "the tensor that was made of it last",
    },
    Memory: {
        "address": "where it begins",
        "nbytes": "how much it is",
        "raw": "none, of a GPU's",
        "shadow": "the same",
    },
    Device: {
        "free_lists": "blocks that are kept, by the streams' numbers",
        "garbage": "while there is any, Python frees it first",
        "imports": "the same",
        "ordinal": "what is let go of is counted for each",
        "owners": "as `garbage`",
        "ranges": "the memory that others have too",
        "retired": "as `garbage`",
    },
    FreeList: {
        "capacity": "how many blocks are kept",
        "closed": "whether none are",
        "number": "of the stream whose work may use them",
    },
    Ranges: {
        "entries": "in which an array's is looked for",
        "leave": "what storages in it have as `_leave`",
        "left": "while there are any, Python drops them first",
    },
    Range: {
        "high": "its upper end",
        "low": "its lower end",
        "memory": "what all storages of the whole of it share",
        "order": "the history of storages in it",
        "parts": "these storages",
        "ranges": "whether it is still in use",
    },
    Layout: {
        "before": "how far a tensor reaches below its address",
        "behind": "and how far above",
        "device": "where `traits` are for",
        "dtype": "the tensor's",
        "itemsize": "what its address is a multiple of",
        "shape": "the tensor's",
        "strides": "the tensor's",
        "tail": "the tensor's parameters behind the address",
        "traits": "the tensor's, where the address is a multiple of 16",
    },
    Tensor: {
        "dtype": "of tensors in one memory: whether the offsets count the same",
        "flat": "its parameters: the address, extents and strides",
        "offset": "of tensors in one memory: how far they are apart",
        "shape": "set, of a tensor over an array",
        "storage": "what order is kept by",
        "strides": "set, of a tensor over an array",
        "traits": "select the plan",
    },
    Partition: {
        "storage": "what order is kept by",
        "tensor": "whose parameters are passed",
        "tile_shape": "set, of one that `tile` makes",
        "traits": "select the plan",
    },
    Traits: {
        "cuts": "by the shape of the tiles, the traits of a tensor's partition",
    },
    ExecutionContext: {
        "device": "where a chain or a row of launches runs",
        "stream": "the same",
    },
    AndThen: {
        "function": "a link of a chain is launched if this is a kernel",
        "unpack": "and if that gets the result as its arguments",
    },
    Done: {
        "value": "the arguments, which are the result of a launch",
    },
    DeviceFuture: {
        "_serial": "behind the launch, of a future that is otherwise made later",
        "op": "the launch",
        "stream": "where it was submitted",
    },
    Form: {
        "ints": "the arguments of which it is looked whether 64 bits hold them",
        "keyed": "what each argument adds to the plan's key",
        "last": "the plan that was looked up last, and by what",
        "lazy": "arguments that are ops are left to Python",
        "plans": "by their keys",
        "tiled": "which arguments `tile` cuts, and the form of what comes of that",
        "tuples": "arguments that Python looks into",
        "types": "of the arguments that it is for",
    },
    Plan: {
        "device": "where a launch runs that nobody gave a stream",
        "elsewhere": "of a plan without tensors those for other devices",
        "home": "the device that `native` is for",
        "native": "the method `launch` of a Launcher",
    },
    launch.Kernel: {
        "_form": "the form of the last call's arguments",
        "_forms": "all forms, by the types",
        "_origins": "what names outside of the kernel stood for: if one means something else now, the kernel is left to Python",
        "_options": "of a launch of which nothing else was said",
        "label": "of its launches",
    },
    launch.KernelLaunch: {
        "_consumed": "an op that is part of another is not missed when it is dropped",
        "_form": "of the arguments",
        "_fresh": "is there until somebody takes the one run",
        "_label": "what messages call it",
        "_options": "part of the plan's key",
        "_site": "where it was built",
        "_spent": "whether the one run was taken",
        "arguments": "what is launched on, and the result",
        "kernel": "what is launched",
    },
}

# Attributes and methods of objects of any class, asked for by their names.
NAMES: Mapping[str, str] = {
    "annotate": "of an op: note on an exception that it is the op's",
    "append": "of a device's garbage",
    "__dict__": "of a `threading.local`, the attributes in this thread",
    "__name__": "of a module, in its globals: whether it is tilekit's own",
    "__module__": "of an array's type: which library's it is",
    "__c_dlpack_exchange_api__": "of an array's type, as it was called at first: the functions that describe one in place",
    "__dlpack_c_exchange_api__": "the same",
    "__dlpack__": "of a class derived from such a type: whether it is exported otherwise",
    "__dlpack_device__": "the same",
    "__torch_dispatch__": "the same, of PyTorch's",
    "collect": "of a device: let go of what was imported and nobody uses any more",
    "device": "of a launch, where a stream is that another library has",
    "event": "of a mark of Python's",
    "_fields": "of `Recipe`, which is compared with what was built",
    "_forget_until": "Stream: forget marks where some have failed",
    "_go_on": "of a recalled op: let Python make the launches that are left",
    "_trim": "Stream: forget the older half of the marks where the device is asked by Python",
    "next_stream": "of a policy",
    "passed": "of a stream: whether a moment has passed",
    "policy": "of a device",
    "recording": "of a context that is derived from ExecutionContext: whether its work is written down",
    "_registry": "of `tilekit._runtime.device`: all devices, among which an address is that of one stream",
    "requires_grad": "of an array: whether its library differentiates by it",
    "serial": "of a mark of Python's",
    "submission": "of `submitting`: what the thread is in the middle of submitting",
    "traits": "of an argument that is no Tensor or Partition itself",
    "written_by": "of a storage: remember a write where others have used it",
}

# What it calls, or looks into. `call`, `start`, `sync`, `sync_on`, `async_on`, `tile`, `dropped`, `left` and `left_imported` are
# what it leaves to Python of the methods that it has itself; `ended` and `waited` are added by `_native.classes`.
HELPERS: Mapping[str, Callable[..., Any] | object] = {
    "as_stream": as_stream,
    "async_on": launch.KernelLaunch.async_on,
    "borrowed": BORROWED,
    "call": launch.Kernel.__call__,
    "dropped": DeviceOp.__del__,
    "inside": INSIDE,
    "left": Storage.__del__,
    "left_imported": Imported.__del__,
    "running": RUNNING,
    "site_of": site_of,
    "start": launch.KernelLaunch.start,
    "submitting": submitting,
    "sync": launch.KernelLaunch.sync,
    "sync_on": launch.KernelLaunch.sync_on,
    "tile": launch.KernelLaunch.tile,
}

# Of the layers below. (What is the compiled module's own, such as the kinds of arguments, that module has for Python to import.)
CONSTANTS: Mapping[str, int] = {
    "KEYED_COMPUTED": planning.KEYED_COMPUTED,
    "KEYED_NOT": planning.KEYED_NOT,
    "KEYED_SIGNED": planning.KEYED_SIGNED,
    "KEYED_TRAITS": planning.KEYED_TRAITS,
    "MANY": MANY,
    "MARKS_KEPT": MARKS_KEPT,
    "MUCH": MUCH,
    "READERS_KEPT": READERS_KEPT,
}
