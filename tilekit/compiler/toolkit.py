"""Which parts of the CUDA toolkit are here: asked of what looks for them when a kernel is compiled. No numba here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["PARTS", "Part", "where_is"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the CUDA toolkit.

    Attributes:
        name: NVIDIA's.
        distributions: the wheels that bring it, for CUDA 13 and for CUDA 12.
        purpose: what does not work without it.
        compiles: whether no kernel is compiled without it.
    """

    name: str
    distributions: tuple[str, str]
    purpose: str
    compiles: bool = True


# numba-cuda asks NVRTC which GPUs there are whenever it compiles: without any one of the first three no kernel is compiled.
_COMPILES = "compiling kernels for GPUs (launching them, op.compile, op.explain, op.dispatcher)"
PARTS = (
    Part(name="NVVM", distributions=("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"), purpose=_COMPILES),
    Part(name="NVRTC", distributions=("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"), purpose=f"{_COMPILES}; tk.cuda_source"),
    Part(
        name="nvJitLink",
        distributions=("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"),
        purpose=f"{_COMPILES}; assembling PTX in tk.load_module",
    ),
    Part(
        name="CUDA headers",
        distributions=("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
        purpose="#include <cuda_fp16.h> and the like in tk.cuda_source",
        compiles=False,
    ),
)


def where_is(name: str) -> str | None:
    """The file or folder of the part `name`, from a wheel, a CUDA toolkit or the system; None if it is in none of them."""
    try:
        from cuda import pathfinder
    except ImportError:  # comes with numba-cuda
        return None
    look: Callable[[], Any] = {
        "NVVM": lambda: pathfinder.load_nvidia_dynamic_lib("nvvm").abs_path,
        "NVRTC": lambda: pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path,
        "nvJitLink": lambda: pathfinder.load_nvidia_dynamic_lib("nvJitLink").abs_path,
        "CUDA headers": lambda: pathfinder.find_nvidia_header_directory("cudart"),
    }[name]
    try:
        found = look()
    except Exception:  # how it says that there is none differs between its versions, and between operating systems
        return None
    return None if found is None else str(found)
