"""`@kernel`, and what calling a kernel builds: a launch that is specialised and compiled when it runs.

A call goes through four questions, each answered once and remembered for the calls that look alike: which parameter takes what
(`decorator`), what may be assumed about the arguments and which grid follows (`planning`), which specialisation that is
(`Kernel.specialise`), and how it runs on a device (`compiler.load`).
"""

from __future__ import annotations

from tilekit import ops, schedule
from tilekit.compiler import native
from tilekit.compiler.recorded import program
from tilekit.launcher.decorator import Kernel as Kernel
from tilekit.launcher.decorator import kernel as kernel
from tilekit.launcher.launch import KernelLaunch as KernelLaunch
from tilekit.launcher.planning import Form, Plan
from tilekit.ops.base import INSIDE, site_of
from tilekit.ops.execution import Done
from tilekit.ops.future import DeviceFuture
from tilekit.ops.nodes import AndThen
from tilekit.ops.recorded import NATIVE
from tilekit.partition import Partition
from tilekit.storage import Storage
from tilekit.stream import Stream
from tilekit.tensor import Tensor

__all__ = ["Kernel", "KernelLaunch", "kernel"]

NATIVE["program"] = program

if native.prepare is not None:
    native.prepare(
        *(Kernel, KernelLaunch, Form, Plan, DeviceFuture, Done, AndThen, schedule.ExecutionContext),
        *(Stream, Storage, Tensor, Partition),
        **{name: getattr(ops.DeviceOp, name) for name in ("start", "sync", "sync_on", "async_on")},
        submitting=schedule.submitting,
        inside=INSIDE,
        site_of=site_of,
        dropped=ops.DeviceOp.__del__,
        ended=KernelLaunch._ended,
        waited=KernelLaunch._waited,
    )
