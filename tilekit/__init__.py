"""tilekit: GPU kernels on tiles, in Python, run as lazy, composable, awaitable operations.

The façade: the tile language (what a kernel's body uses), and the host's entry points. `tilekit.api` makes tensors.
"""

from __future__ import annotations

from tilekit.device import Device as Device
from tilekit.device import default_device as default_device
from tilekit.device import devices as devices
from tilekit.device import set_default_device as set_default_device
from tilekit.device import use_device as use_device
from tilekit.dtypes import bfloat16 as bfloat16
from tilekit.dtypes import bool_ as bool_
from tilekit.dtypes import float8_e4m3fn as float8_e4m3fn
from tilekit.dtypes import float8_e5m2 as float8_e5m2
from tilekit.dtypes import float16 as float16
from tilekit.dtypes import float32 as float32
from tilekit.dtypes import float64 as float64
from tilekit.dtypes import int8 as int8
from tilekit.dtypes import int16 as int16
from tilekit.dtypes import int32 as int32
from tilekit.dtypes import int64 as int64
from tilekit.dtypes import uint8 as uint8
from tilekit.dtypes import uint16 as uint16
from tilekit.dtypes import uint32 as uint32
from tilekit.dtypes import uint64 as uint64
from tilekit.errors import CompileError as CompileError
from tilekit.errors import DeviceError as DeviceError
from tilekit.errors import DeviceUnavailableError as DeviceUnavailableError
from tilekit.errors import OutOfMemoryError as OutOfMemoryError
from tilekit.errors import TilekitError as TilekitError
from tilekit.interop import as_tensor as as_tensor
from tilekit.interop import from_pointer as from_pointer
from tilekit.lang.create import arange as arange
from tilekit.lang.create import full as full
from tilekit.lang.create import ones as ones
from tilekit.lang.create import zeros as zeros
from tilekit.lang.debug import print_ as print
from tilekit.lang.elementwise import astype as astype
from tilekit.lang.elementwise import bitcast as bitcast
from tilekit.lang.elementwise import cos as cos
from tilekit.lang.elementwise import exp as exp
from tilekit.lang.elementwise import log as log
from tilekit.lang.elementwise import maximum as maximum
from tilekit.lang.elementwise import minimum as minimum
from tilekit.lang.elementwise import mul as mul
from tilekit.lang.elementwise import mulhi as mulhi
from tilekit.lang.elementwise import sin as sin
from tilekit.lang.elementwise import sqrt as sqrt
from tilekit.lang.elementwise import where as where
from tilekit.lang.memory import PaddingMode as PaddingMode
from tilekit.lang.memory import bid as bid
from tilekit.lang.memory import load as load
from tilekit.lang.memory import load_tile_like as load_tile_like
from tilekit.lang.memory import num_blocks as num_blocks
from tilekit.lang.memory import store as store
from tilekit.lang.reduction import all_ as all
from tilekit.lang.reduction import any_ as any
from tilekit.lang.reduction import argmax as argmax
from tilekit.lang.reduction import argmin as argmin
from tilekit.lang.reduction import max_ as max
from tilekit.lang.reduction import min_ as min
from tilekit.lang.reduction import prod as prod
from tilekit.lang.reduction import sum_ as sum
from tilekit.lang.shape import broadcast_to as broadcast_to
from tilekit.lang.shape import cat as cat
from tilekit.lang.shape import expand_dims as expand_dims
from tilekit.lang.shape import extract as extract
from tilekit.lang.shape import insert as insert
from tilekit.lang.shape import permute as permute
from tilekit.lang.shape import reshape as reshape
from tilekit.lang.shape import transpose as transpose
from tilekit.lang.signature import Const as Const
from tilekit.lang.signature import In as In
from tilekit.lang.signature import InOut as InOut
from tilekit.lang.signature import Out as Out
from tilekit.lang.signature import generics as generics
from tilekit.launcher import Kernel as Kernel
from tilekit.launcher import KernelLaunch as KernelLaunch
from tilekit.launcher import kernel as kernel
from tilekit.launcher.configuration import LaunchConfig as LaunchConfig
from tilekit.launcher.foreign import cuda_source as cuda_source
from tilekit.launcher.foreign import load_module as load_module
from tilekit.launcher.foreign import wrap as wrap
from tilekit.ops import DeviceOp as DeviceOp
from tilekit.ops import host_fn as host_fn
from tilekit.ops import join_all as join_all
from tilekit.ops import value as value
from tilekit.ops import with_context as with_context
from tilekit.ops import zip_ops as zip
from tilekit.partition import Partition as Partition
from tilekit.schedule import ExecutionContext as ExecutionContext
from tilekit.schedule import LeastLoaded as LeastLoaded
from tilekit.schedule import SchedulingPolicy as SchedulingPolicy
from tilekit.schedule import SingleStream as SingleStream
from tilekit.schedule import StreamPoolRoundRobin as StreamPoolRoundRobin
from tilekit.schedule import global_policy as global_policy
from tilekit.schedule import init_device_contexts as init_device_contexts
from tilekit.stream import Event as Event
from tilekit.stream import Stream as Stream
from tilekit.tensor import Tensor as Tensor

DeviceOperation = DeviceOp  # the seeds' name

__version__ = "0.1.0"
__all__ = [
    "CompileError",
    "Const",
    "Device",
    "DeviceError",
    "DeviceOp",
    "DeviceOperation",
    "DeviceUnavailableError",
    "Event",
    "ExecutionContext",
    "In",
    "InOut",
    "Kernel",
    "KernelLaunch",
    "LaunchConfig",
    "LeastLoaded",
    "Out",
    "OutOfMemoryError",
    "PaddingMode",
    "Partition",
    "SchedulingPolicy",
    "SingleStream",
    "Stream",
    "StreamPoolRoundRobin",
    "Tensor",
    "TilekitError",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "as_tensor",
    "astype",
    "bfloat16",
    "bid",
    "bitcast",
    "bool_",
    "broadcast_to",
    "cat",
    "cos",
    "cuda_source",
    "default_device",
    "devices",
    "exp",
    "expand_dims",
    "extract",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "from_pointer",
    "full",
    "generics",
    "global_policy",
    "host_fn",
    "init_device_contexts",
    "insert",
    "int8",
    "int16",
    "int32",
    "int64",
    "join_all",
    "kernel",
    "load",
    "load_module",
    "load_tile_like",
    "log",
    "max",
    "maximum",
    "min",
    "minimum",
    "mul",
    "mulhi",
    "num_blocks",
    "ones",
    "permute",
    "print",
    "prod",
    "reshape",
    "set_default_device",
    "sin",
    "sqrt",
    "store",
    "sum",
    "transpose",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "use_device",
    "value",
    "where",
    "with_context",
    "wrap",
    "zeros",
    "zip",
]
