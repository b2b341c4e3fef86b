"""What type checkers make of kernels, their calls and their results; `test_typing.py` compares.

A line that ends with `# wrong` is an error to both checkers, any other is none to either. What `reveal_type` shows stands behind
it: of two texts the first is mypy's.
"""

from __future__ import annotations

from typing import Annotated, Any, reveal_type

import numpy as np

import tilekit as tk
from tilekit import api

BM, BN = tk.generics("BM BN")


class Foreign:
    """An array of a library that has types."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return object()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class OnGpu:
    """An array of numba's kind."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


@tk.kernel
def scale(y: tk.Out, x: tk.In, a: float, shift: float = 0.0) -> None:
    """y = a * x + shift."""
    y.store(tk.load_tile_like(x, y) * a + shift)
    tk.store(y, (tk.bid(0),), tk.load(x, (tk.bid(0),), (4,)))
    reveal_type(x.shape[0])  # shows: int | Any
    reveal_type(x.load() * a)  # shows: tilekit.lang.tile.Tile | Any // Tile | Any
    reveal_type(a)  # shows: float
    for t in x.tiles(4):
        y.store(t)
    y.stor(0.0)  # wrong
    x.lod()  # wrong
    a.store(0.0)  # wrong
    tk.load(a, 0, 4)  # wrong


@tk.kernel(num_warps=4)
def shaped(
    c: Annotated[tk.Out, BM, BN], a: Annotated[tk.In, -1, 64], n: Annotated[int, tk.Const], any_constant: tk.Const = "any"
) -> None:
    c.store(a.tiles((BM, BN))[0, n])
    reveal_type(n)  # shows: int


@tk.function
def halved(t: Any, by: int = 2) -> float:
    """A helper, which does not say that it takes tiles."""
    return float(t / by)


@tk.kernel
def helped(y: tk.InOut) -> None:
    y.store(halved(y.load()))
    y.store(halved(y.load(), by="2"))  # wrong
    y.store(halved())  # wrong
    reveal_type(halved(1.0))  # shows: float


@tk.kernel
def parts(y: tk.InOut, xs: tuple[tk.In, ...], bias: tk.In | None = None) -> None:
    for x in xs:
        y.store(y.load() + tk.load_tile_like(x, y))
    if bias is not None:
        y.store(tk.load_tile_like(bias, y))
    bias.load()  # wrong


@tk.kernel(warps=4)  # wrong
def option(y: tk.Out) -> None: ...


@tk.kernel
def short(y: tk.Out[4], x: tk.In[-1, 4]) -> None: ...  # wrong


@tk.kernel  # wrong
def gives(y: tk.Out) -> int:
    return 1


def calls(t: tk.Tensor, p: tk.Partition, array: np.ndarray[Any, np.dtype[np.float32]], foreign: Foreign, gpu: OnGpu) -> None:
    scale(p, t, 2.0)
    scale(array, foreign, 2)
    scale(gpu, gpu, a=2.0, shift=1.0)
    scale(api.zeros(8).partition(4), api.zeros(8), 2.0)
    scale(api.zeros(8), scale(p, t, 2.0).first(), 2.0)
    scale(y=p, x=t, a=2.0)
    scale(p, t)  # wrong
    scale(p, t, 2.0, 3.0, 4.0)  # wrong
    scale(p, t, 2.0, by=1.0)  # wrong
    scale(p, t, 2.0, a=2.0)  # wrong
    scale(p, t, "2.0")  # wrong
    scale(p, 3, 2.0)  # wrong
    scale(p, "x", 2.0)  # wrong
    scale(p, None, 2.0)  # wrong
    scale(p, [t], 2.0)  # wrong
    scale(p, t, t)  # wrong
    scale(tk.value(3), t, 2.0)  # wrong
    scale(p, scale(p, t, 2.0), 2.0)  # wrong
    scale[1, 32](p, t, 2.0)  # wrong
    shaped(p, t, 4)
    shaped(p, t, n=4, any_constant=(1, tk.float32))
    shaped(p, t, "4")  # wrong
    shaped(p, t)  # wrong
    parts(p, (t, array), foreign)
    parts(p, (t,), None)
    parts(p, t)  # wrong
    parts(p, (t, 1))  # wrong


def results(t: tk.Tensor, p: tk.Partition) -> None:
    launch = scale(p, t, 2.0)
    reveal_type(launch)  # shows: tilekit.launch.launch.KernelLaunch // KernelLaunch
    reveal_type(launch.grid(4).num_warps(4))  # shows: tilekit.launch.launch.KernelLaunch // KernelLaunch
    reveal_type(launch.tile(4).sync())  # shows: tuple[Any, ...]
    reveal_type(t.numpy())  # shows: numpy.ndarray[Any, Any] // ndarray[Any, Any]
    reveal_type(p.numpy())  # shows: numpy.ndarray[Any, Any] // ndarray[Any, Any]
    reveal_type(scale.name)  # shows: str
    launch.grids(4)  # wrong
    scale.launch(4)  # wrong


def any_kernel(kernel: tk.Kernel, t: tk.Tensor) -> tk.KernelLaunch:
    return kernel(t, 1, 2, 3)


any_kernel(scale, api.zeros(4).sync())
