"""`@kernel`, and what calling a kernel builds: a launch that is specialised and compiled when it runs.

A call goes through four questions, each answered once and remembered for the calls that look alike: which parameter takes what
(`decorator`), what may be assumed about the arguments and which grid follows (`planning`), which specialisation that is
(`Kernel.specialise`), and how it runs on a device (`compiler.load`).
"""

from __future__ import annotations

from tilekit import ops
from tilekit._capture.kernel_nodes import program
from tilekit._capture.replay import NATIVE
from tilekit._native import compiled as native
from tilekit._runtime import context
from tilekit._runtime.storage import Storage
from tilekit._runtime.stream import Stream
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.launch.decorator import Kernel as Kernel
from tilekit.launch.decorator import kernel as kernel
from tilekit.launch.launch import KernelLaunch as KernelLaunch
from tilekit.launch.planning import Form, Plan
from tilekit.ops.combinators import AndThen
from tilekit.ops.execution import Done
from tilekit.ops.future import DeviceFuture
from tilekit.ops.sites import INSIDE, site_of

__all__ = ["Kernel", "KernelLaunch", "kernel"]

NATIVE["program"] = program

if native.prepare is not None:
    native.prepare(
        *(Kernel, KernelLaunch, Form, Plan, DeviceFuture, Done, AndThen, context.ExecutionContext),
        *(Stream, Storage, Tensor, Partition),
        **{name: getattr(ops.DeviceOp, name) for name in ("start", "sync", "sync_on", "async_on")},
        submitting=context.submitting,
        inside=INSIDE,
        site_of=site_of,
        dropped=ops.DeviceOp.__del__,
        ended=KernelLaunch._ended,
        waited=KernelLaunch._waited,
    )
