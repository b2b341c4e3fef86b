"""`@kernel`, and what calling a kernel builds: a launch that is specialised and compiled when it runs.

A call goes through four questions, each answered once and remembered for the calls that look alike: which parameter takes what
(`decorator`), what may be assumed about the arguments and which grid follows (`planning`), which specialisation that is
(`Kernel.specialise`), and how it runs on a device (`specialisation`).
"""

from __future__ import annotations

import sys
import types
from typing import Any, NoReturn

from tilekit.launch import habits
from tilekit.launch.decorator import Kernel as Kernel
from tilekit.launch.decorator import kernel as kernel
from tilekit.launch.launch import KernelLaunch as KernelLaunch

__all__ = ["Kernel", "KernelLaunch", "kernel"]


class _Package(types.ModuleType):
    """This package, which to those who come from cuTile looks like a function: `tk.launch(stream, grid, kernel, arguments)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        kernels = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Kernel)]
        call = habits.call_of(kernels[0]) if kernels else "kernel(y.partition(shape), x)"
        raise TypeError(
            f"tk.launch does not exist: call the kernel, and run what that gives: write {call}.async_on(stream), or .sync()"
        )


sys.modules[__name__].__class__ = _Package
