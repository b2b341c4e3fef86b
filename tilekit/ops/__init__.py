"""The lazy algebra of device work: building an op does nothing, running it happens once."""

from __future__ import annotations

from tilekit.ops.host_values import HostValue as HostValue
from tilekit.ops.launch import AsyncKernelLaunch as AsyncKernelLaunch
from tilekit.ops.launch import Executable as Executable
from tilekit.ops.op import DeviceOp as DeviceOp
from tilekit.ops.placement import Zip as Zip
from tilekit.ops.placement import join_all as join_all
from tilekit.ops.placement import zip_ops as zip_ops
from tilekit.ops.shared import Shared as Shared
from tilekit.ops.sources import StreamOperation as StreamOperation
from tilekit.ops.sources import Value as Value
from tilekit.ops.sources import host_fn as host_fn
from tilekit.ops.sources import value as value
from tilekit.ops.sources import with_context as with_context
from tilekit.ops.spec import Spec as Spec
from tilekit.ops.stepwise import operation as operation

__all__ = [
    "AsyncKernelLaunch",
    "DeviceOp",
    "Executable",
    "HostValue",
    "Shared",
    "Spec",
    "StreamOperation",
    "Value",
    "Zip",
    "host_fn",
    "join_all",
    "operation",
    "value",
    "with_context",
    "zip_ops",
]
