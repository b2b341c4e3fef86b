"""Which parts of the CUDA toolkit are here: asked of what looks for them when a kernel is compiled. No numba here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilekit.errors import TilekitError

__all__ = ["PARTS", "Part", "importing_numba", "not_installed", "where_is"]


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


# numba-cuda asks the runtime for its version when it is imported, and NVRTC which GPUs there are whenever it compiles: without
# any one of the first four no kernel is compiled.
_COMPILES = "compiling kernels for GPUs (launching them, op.compile, op.explain, op.dispatcher)"
PARTS = (
    Part(name="NVVM", distributions=("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"), purpose=_COMPILES),
    Part(name="NVRTC", distributions=("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"), purpose=f"{_COMPILES}; tk.cuda_source"),
    Part(
        name="nvJitLink",
        distributions=("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"),
        purpose=f"{_COMPILES}; assembling PTX in tk.load_module",
    ),
    Part(name="CUDA runtime", distributions=("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"), purpose=_COMPILES),
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
        "CUDA runtime": lambda: pathfinder.load_nvidia_dynamic_lib("cudart").abs_path,
        "CUDA headers": lambda: pathfinder.find_nvidia_header_directory("cudart"),
    }[name]
    try:
        path = look()
    except Exception:  # how it says that there is none differs between its versions, and between operating systems
        return None
    return None if path is None else str(path)


def not_installed(error: Exception) -> TilekitError:
    """What to tell where a kernel cannot be compiled because of `error`: which parts are missing, and what brings them."""
    # What the error names may be a way out that was tried last: without nvJitLink it is the driver.
    missing = ", ".join(part.name for part in PARTS if part.compiles and where_is(part.name) is None)
    return TilekitError(
        f"kernels are compiled by parts of the CUDA toolkit that are not installed here ({missing or error}): "
        'pip install "numba-cuda[cu13]" (or cu12, for a driver of CUDA 12)'
    )


@contextmanager
def importing_numba() -> Iterator[None]:
    """Around the import of what stands on numba's CUDA target, which looks for the toolkit when it is imported.

    Raises:
        TilekitError: numba-cuda is not installed, or the part of the toolkit that it looks for is not.
    """
    try:
        yield
    except ImportError as error:
        raise TilekitError(
            f'compiling needs numba-cuda, which is not installed here ({error}); pip install "numba-cuda[cu13]"'
        ) from error
    except RuntimeError as error:
        from cuda.pathfinder import DynamicLibNotFoundError

        if not isinstance(error, DynamicLibNotFoundError):
            raise
        raise not_installed(error) from error
