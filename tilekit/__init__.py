"""tilekit: GPU kernels on tiles, in Python, run as lazy, composable, awaitable operations.

The façade: the tile language (what a kernel's body uses), and the host's entry points. `tilekit.api` makes tensors.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tilekit import _native as _native  # the fast path of launches, which puts itself into its place
from tilekit._capture.graph import CudaGraph as CudaGraph
from tilekit._capture.graph import PreparedOp as PreparedOp
from tilekit._capture.graphed import graphed as graphed
from tilekit._capture.slots import slot as slot
from tilekit._runtime.context import ExecutionContext as ExecutionContext
from tilekit._runtime.device import Device as Device
from tilekit._runtime.device import default_device as default_device
from tilekit._runtime.device import devices as devices
from tilekit._runtime.device import set_default_device as set_default_device
from tilekit._runtime.device import use_device as use_device
from tilekit._runtime.policy import LeastLoaded as LeastLoaded
from tilekit._runtime.policy import SchedulingPolicy as SchedulingPolicy
from tilekit._runtime.policy import SingleStream as SingleStream
from tilekit._runtime.policy import StreamPoolRoundRobin as StreamPoolRoundRobin
from tilekit._runtime.policy import global_policy as global_policy
from tilekit._runtime.policy import init_device_contexts as init_device_contexts
from tilekit._runtime.stream import Event as Event
from tilekit._runtime.stream import Stream as Stream
from tilekit._tensor.partition import Partition as Partition
from tilekit._tensor.tensor import Tensor as Tensor
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
from tilekit.elsewhere import no_name as _no_name
from tilekit.errors import CompileError as CompileError
from tilekit.errors import DeviceError as DeviceError
from tilekit.errors import DeviceUnavailableError as DeviceUnavailableError
from tilekit.errors import GroupError as GroupError
from tilekit.errors import OutOfMemoryError as OutOfMemoryError
from tilekit.errors import SpillWarning as SpillWarning
from tilekit.errors import TilekitError as TilekitError
from tilekit.errors import UnusedOpWarning as UnusedOpWarning
from tilekit.interop import as_tensor as as_tensor
from tilekit.interop import from_pointer as from_pointer
from tilekit.lang.annotations import Const as Const
from tilekit.lang.annotations import In as In
from tilekit.lang.annotations import InOut as InOut
from tilekit.lang.annotations import Out as Out
from tilekit.lang.annotations import generics as generics
from tilekit.lang.atomic import atomic_add as atomic_add
from tilekit.lang.atomic import atomic_add_tile as atomic_add_tile
from tilekit.lang.atomic import atomic_and as atomic_and
from tilekit.lang.atomic import atomic_cas as atomic_cas
from tilekit.lang.atomic import atomic_max as atomic_max
from tilekit.lang.atomic import atomic_min as atomic_min
from tilekit.lang.atomic import atomic_or as atomic_or
from tilekit.lang.atomic import atomic_xchg as atomic_xchg
from tilekit.lang.atomic import atomic_xor as atomic_xor
from tilekit.lang.bits import bitwise_and as bitwise_and
from tilekit.lang.bits import bitwise_lshift as bitwise_lshift
from tilekit.lang.bits import bitwise_not as bitwise_not
from tilekit.lang.bits import bitwise_or as bitwise_or
from tilekit.lang.bits import bitwise_rshift as bitwise_rshift
from tilekit.lang.bits import bitwise_xor as bitwise_xor
from tilekit.lang.bits import clz as clz
from tilekit.lang.bits import popcount as popcount
from tilekit.lang.calculation import abs_ as abs
from tilekit.lang.calculation import add as add
from tilekit.lang.calculation import cdiv as cdiv
from tilekit.lang.calculation import divmod_ as divmod
from tilekit.lang.calculation import floordiv as floordiv
from tilekit.lang.calculation import fma as fma
from tilekit.lang.calculation import mod as mod
from tilekit.lang.calculation import mul as mul
from tilekit.lang.calculation import mulhi as mulhi
from tilekit.lang.calculation import negative as negative
from tilekit.lang.calculation import pow_ as pow
from tilekit.lang.calculation import sub as sub
from tilekit.lang.calculation import truediv as truediv
from tilekit.lang.comparison import equal as equal
from tilekit.lang.comparison import greater as greater
from tilekit.lang.comparison import greater_equal as greater_equal
from tilekit.lang.comparison import isfinite as isfinite
from tilekit.lang.comparison import isinf as isinf
from tilekit.lang.comparison import isnan as isnan
from tilekit.lang.comparison import less as less
from tilekit.lang.comparison import less_equal as less_equal
from tilekit.lang.comparison import logical_and as logical_and
from tilekit.lang.comparison import logical_not as logical_not
from tilekit.lang.comparison import logical_or as logical_or
from tilekit.lang.comparison import logical_xor as logical_xor
from tilekit.lang.comparison import not_equal as not_equal
from tilekit.lang.counting import histogram as histogram
from tilekit.lang.create import arange as arange
from tilekit.lang.create import astile as astile
from tilekit.lang.create import full as full
from tilekit.lang.create import ones as ones
from tilekit.lang.create import zeros as zeros
from tilekit.lang.debug import assert_ as assert_
from tilekit.lang.debug import print_ as print
from tilekit.lang.debug import printf as printf
from tilekit.lang.debug import static_assert as static_assert
from tilekit.lang.debug import static_print as static_print
from tilekit.lang.elementwise import astype as astype
from tilekit.lang.elementwise import bitcast as bitcast
from tilekit.lang.elementwise import ceil as ceil
from tilekit.lang.elementwise import clip as clip
from tilekit.lang.elementwise import copysign as copysign
from tilekit.lang.elementwise import floor as floor
from tilekit.lang.elementwise import maximum as maximum
from tilekit.lang.elementwise import minimum as minimum
from tilekit.lang.elementwise import round_ as round
from tilekit.lang.elementwise import sign as sign
from tilekit.lang.elementwise import trunc as trunc
from tilekit.lang.elementwise import where as where
from tilekit.lang.exponential import cbrt as cbrt
from tilekit.lang.exponential import erf as erf
from tilekit.lang.exponential import erfc as erfc
from tilekit.lang.exponential import exp as exp
from tilekit.lang.exponential import exp2 as exp2
from tilekit.lang.exponential import expm1 as expm1
from tilekit.lang.exponential import log as log
from tilekit.lang.exponential import log1p as log1p
from tilekit.lang.exponential import log2 as log2
from tilekit.lang.exponential import log10 as log10
from tilekit.lang.exponential import rsqrt as rsqrt
from tilekit.lang.exponential import sigmoid as sigmoid
from tilekit.lang.exponential import softplus as softplus
from tilekit.lang.exponential import sqrt as sqrt
from tilekit.lang.functions import function as function
from tilekit.lang.indexed import gather as gather
from tilekit.lang.indexed import scatter as scatter
from tilekit.lang.loops import static_range as static_range
from tilekit.lang.matmul import matmul as matmul
from tilekit.lang.matmul import mma as mma
from tilekit.lang.memory import PaddingMode as PaddingMode
from tilekit.lang.memory import bid as bid
from tilekit.lang.memory import load as load
from tilekit.lang.memory import load_tile_like as load_tile_like
from tilekit.lang.memory import num_blocks as num_blocks
from tilekit.lang.memory import num_tiles as num_tiles
from tilekit.lang.memory import store as store
from tilekit.lang.pipelines import pipelined as pipelined
from tilekit.lang.randomness import philox as philox
from tilekit.lang.randomness import rand as rand
from tilekit.lang.randomness import randint as randint
from tilekit.lang.randomness import randn as randn
from tilekit.lang.reduction import all_ as all
from tilekit.lang.reduction import any_ as any
from tilekit.lang.reduction import argmax as argmax
from tilekit.lang.reduction import argmin as argmin
from tilekit.lang.reduction import max_ as max
from tilekit.lang.reduction import min_ as min
from tilekit.lang.reduction import prod as prod
from tilekit.lang.reduction import reduce as reduce
from tilekit.lang.reduction import sum_ as sum
from tilekit.lang.rounding import RoundingMode as RoundingMode
from tilekit.lang.scanning import cumprod as cumprod
from tilekit.lang.scanning import cumsum as cumsum
from tilekit.lang.scanning import scan as scan
from tilekit.lang.shape import broadcast_to as broadcast_to
from tilekit.lang.shape import cat as cat
from tilekit.lang.shape import expand_dims as expand_dims
from tilekit.lang.shape import extract as extract
from tilekit.lang.shape import insert as insert
from tilekit.lang.shape import permute as permute
from tilekit.lang.shape import reshape as reshape
from tilekit.lang.shape import transpose as transpose
from tilekit.lang.sorting import argsort as argsort
from tilekit.lang.sorting import sort as sort
from tilekit.lang.sorting import topk as topk
from tilekit.lang.trigonometry import acos as acos
from tilekit.lang.trigonometry import acosh as acosh
from tilekit.lang.trigonometry import asin as asin
from tilekit.lang.trigonometry import asinh as asinh
from tilekit.lang.trigonometry import atan as atan
from tilekit.lang.trigonometry import atan2 as atan2
from tilekit.lang.trigonometry import atanh as atanh
from tilekit.lang.trigonometry import cos as cos
from tilekit.lang.trigonometry import cosh as cosh
from tilekit.lang.trigonometry import sin as sin
from tilekit.lang.trigonometry import sinh as sinh
from tilekit.lang.trigonometry import tan as tan
from tilekit.lang.trigonometry import tanh as tanh
from tilekit.launch import Kernel as Kernel
from tilekit.launch import KernelLaunch as KernelLaunch
from tilekit.launch import kernel as kernel
from tilekit.launch.foreign.configuration import LaunchConfig as LaunchConfig
from tilekit.launch.foreign.op import cuda_source as cuda_source
from tilekit.launch.foreign.op import load_module as load_module
from tilekit.launch.foreign.op import wrap as wrap
from tilekit.ops import DeviceOp as DeviceOp
from tilekit.ops import host_fn as host_fn
from tilekit.ops import join_all as join_all
from tilekit.ops import operation as operation
from tilekit.ops import value as value
from tilekit.ops import with_context as with_context
from tilekit.ops import zip_ops as zip

if _TYPE_CHECKING:
    from tilekit._groups import Group as Group
    from tilekit._groups import Symmetric as Symmetric
    from tilekit._groups import symmetric as symmetric
    from tilekit.distributed import Mesh as Mesh
    from tilekit.tuning import Config as Config
    from tilekit.tuning import Space as Space
    from tilekit.tuning import autotune as autotune
    from tilekit.tuning import do_bench as do_bench
    from tilekit.tuning import tune as tune

DeviceOperation = DeviceOp  # the seeds' name

__version__ = "0.1.0"
__all__ = [
    "CompileError",
    "Config",
    "Const",
    "CudaGraph",
    "Device",
    "DeviceError",
    "DeviceOp",
    "DeviceOperation",
    "DeviceUnavailableError",
    "Event",
    "ExecutionContext",
    "Group",
    "GroupError",
    "In",
    "InOut",
    "Kernel",
    "KernelLaunch",
    "LaunchConfig",
    "LeastLoaded",
    "Mesh",
    "Out",
    "OutOfMemoryError",
    "PaddingMode",
    "Partition",
    "PreparedOp",
    "RoundingMode",
    "SchedulingPolicy",
    "SingleStream",
    "Space",
    "SpillWarning",
    "Stream",
    "StreamPoolRoundRobin",
    "Symmetric",
    "Tensor",
    "TilekitError",
    "UnusedOpWarning",
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "as_tensor",
    "asin",
    "asinh",
    "assert_",
    "astile",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "atomic_add",
    "atomic_add_tile",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
    "autotune",
    "bfloat16",
    "bid",
    "bitcast",
    "bitwise_and",
    "bitwise_lshift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_rshift",
    "bitwise_xor",
    "bool_",
    "broadcast_to",
    "cat",
    "cbrt",
    "cdiv",
    "ceil",
    "clip",
    "clz",
    "copysign",
    "cos",
    "cosh",
    "cuda_source",
    "cumprod",
    "cumsum",
    "default_device",
    "devices",
    "divmod",
    "do_bench",
    "equal",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "extract",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "floor",
    "floordiv",
    "fma",
    "from_pointer",
    "full",
    "function",
    "gather",
    "generics",
    "global_policy",
    "graphed",
    "greater",
    "greater_equal",
    "histogram",
    "host_fn",
    "init_device_contexts",
    "insert",
    "int8",
    "int16",
    "int32",
    "int64",
    "isfinite",
    "isinf",
    "isnan",
    "join_all",
    "kernel",
    "less",
    "less_equal",
    "load",
    "load_module",
    "load_tile_like",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "min",
    "minimum",
    "mma",
    "mod",
    "mul",
    "mulhi",
    "negative",
    "not_equal",
    "num_blocks",
    "num_tiles",
    "ones",
    "operation",
    "permute",
    "philox",
    "pipelined",
    "popcount",
    "pow",
    "print",
    "printf",
    "prod",
    "rand",
    "randint",
    "randn",
    "reduce",
    "reshape",
    "round",
    "rsqrt",
    "scan",
    "scatter",
    "set_default_device",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "slot",
    "softplus",
    "sort",
    "sqrt",
    "static_assert",
    "static_print",
    "static_range",
    "store",
    "sub",
    "sum",
    "symmetric",
    "tan",
    "tanh",
    "topk",
    "transpose",
    "truediv",
    "trunc",
    "tune",
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

if not _TYPE_CHECKING:  # which then says itself that there is no such name
    # Few programs tune, or work on several devices: for the others it stays unloaded.
    _LATER = {
        **dict.fromkeys(("Config", "Space", "autotune", "do_bench", "tune"), "tilekit.tuning"),
        **dict.fromkeys(("Group", "Symmetric", "symmetric"), "tilekit._groups"),
        "Mesh": "tilekit.distributed",
    }

    def __getattr__(name: str) -> object:
        if name in _LATER:
            value = globals()[name] = getattr(_import_module(_LATER[name]), name)
            return value
        raise _no_name(_sys.modules[__name__], name)
