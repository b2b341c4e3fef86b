"""`@kernel`, and what calling a kernel builds: a launch that is specialised and compiled when it runs.

A call goes through four questions, each answered once and remembered for the calls that look alike: which parameter takes what
(`decorator`), what may be assumed about the arguments and which grid follows (`planning`), which specialisation that is
(`Kernel.specialise`), and how it runs on a device (`specialisation`).
"""

from __future__ import annotations

from tilekit.launch.decorator import Kernel as Kernel
from tilekit.launch.decorator import kernel as kernel
from tilekit.launch.launch import KernelLaunch as KernelLaunch

__all__ = ["Kernel", "KernelLaunch", "kernel"]
