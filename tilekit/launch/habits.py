"""What kernels say to those who launch them as elsewhere: `kernel[grid, block](...)`, `kernel.launch(...)`, `grid=`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilekit.elsewhere import KERNELS, LAUNCH_KEYWORDS, UnknownAttribute, advice

if TYPE_CHECKING:
    from tilekit.launch.decorator import Kernel

__all__ = ["bracketed", "decorated", "keywords", "shared", "unknown", "unknown_options"]

_OPTIONS = ("num_warps", "occupancy")


def call_of(kernel: Kernel) -> str:
    """A line that launches a kernel."""
    cut = {"out", "inout"}
    arguments = [f"{p.name}.partition(shape)" if p.kind in cut else p.name for p in kernel.signature.parameters]
    return f"{kernel.name}({', '.join(arguments)})"


def bracketed(kernel: Kernel) -> TypeError:
    """That the grid does not stand in brackets behind the kernel."""
    return TypeError(
        f"{kernel.label} takes no grid in brackets, which follows from the partition that it writes, and no threads: write "
        f"{call_of(kernel)}.sync(); where there is no partition, .grid(blocks) before .sync()"
    )


def unknown(kernel: Kernel, name: str) -> AttributeError:
    """That kernels have no such attribute."""
    if name.startswith("__") or "signature" not in vars(kernel):  # it is asked what it can, or is being made
        return AttributeError(f"{type(kernel).__name__!r} object has no attribute {name!r}", name=name, obj=kernel)
    if hasattr(kernel._launch_type, name):
        own = {name: f"its launches have it: write {call_of(kernel)}.{name}({'' if name == 'sync' else '...'})"}
        return UnknownAttribute(kernel, name, own, kernel.label)
    call = f"{call_of(kernel)}.sync()"
    table = {key: line.removesuffix(" ") + f" {call}" if line.endswith(": ") else line for key, line in KERNELS.items()}
    return UnknownAttribute(kernel, name, table, kernel.label)


def keywords(kernel: Kernel, passed: Mapping[str, Any]) -> str:
    """How to say what others pass with the arguments of a launch."""
    names = {p.name for p in kernel.signature.parameters}
    known = [LAUNCH_KEYWORDS[name] for name in passed if name in LAUNCH_KEYWORDS and name not in names]
    return "".join(f"; {line.format(call=call_of(kernel))}" for line in known)


def decorated(function: Any) -> str:
    """How the decorator is written."""
    if type(function).__name__ == "Kernel":
        return ": it is one already"
    if isinstance(function, type):
        return ": write def"
    return "; write @tk.kernel, or @tk.kernel(num_warps=8)"


def unknown_options(options: Mapping[str, Any]) -> TypeError:
    """That the decorator has no such options."""
    instead = {
        "num_stages": "write tk.pipelined(..., stages=3) in the kernel",
        "stages": "write tk.pipelined(..., stages=3) in the kernel",
        "grid": "the grid follows from the partition at each launch",
        **dict.fromkeys(("block", "threads"), "write num_warps=, each of 32 threads"),
        **dict.fromkeys(("debug", "fastmath", "device", "inline", "link", "cache"), "leave it out"),
    }
    name = next(iter(options))
    return TypeError(f"@tk.kernel has no option {name}{advice(instead, name, _OPTIONS)}; there are num_warps and occupancy")


def shared(argument: Any) -> str:
    """How a list, or another library's array, becomes what a launch takes."""
    if str(type(argument).__module__).startswith("tilekit."):
        return "; annotate the parameter tk.In for a tensor" if hasattr(argument, "storage") else ""
    if isinstance(argument, list):
        return "; make it a tensor, api.from_host(numpy.array(...)).sync(), or a tuple"
    if hasattr(type(argument), "__dlpack__") or hasattr(type(argument), "__cuda_array_interface__"):
        return "; pass tk.as_tensor(array), which shares its memory"
    return ""
