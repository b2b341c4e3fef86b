# What a type checker takes the annotation of a tensor parameter for. When a program runs there is nothing of it.
#
# One annotation has two readers: the body of the kernel, to which the parameter is a view, and the callers, who pass tensors,
# partitions, arrays of any library, or ops that produce one. `typing` has no way to give a parameter one type inside and another
# outside (a ParamSpec hands on the types as they are), so `TensorLike` is a union of both:
#
# * `TensorView`, whose members the body may use, and no others: of a union every member must have what is used;
# * protocols that callers' arguments fulfil. They derive from Any, so they have every attribute there is, and take nothing away
#   from what the view says.

from typing import Any, Protocol, TypeAlias

from tilekit.lang.views import TensorView

__all__ = ["TensorLike"]

# A tensor, or an array of a library with DLPack: NumPy, PyTorch, CuPy, JAX.
class HasDlpack(Protocol, Any):  # type: ignore[misc]
    @property
    def __dlpack__(self) -> Any: ...

# An array of a library with the CUDA array interface: numba.
class HasCudaArrayInterface(Protocol, Any):  # type: ignore[misc]
    @property
    def __cuda_array_interface__(self) -> Any: ...

# A partition.
class HasTileShape(Protocol, Any):  # type: ignore[misc]
    @property
    def tile_shape(self) -> Any: ...

# An op whose result is one of these.
class Produces(Protocol, Any):  # type: ignore[misc]
    def sync(self) -> HasDlpack | HasCudaArrayInterface | HasTileShape: ...

TensorLike: TypeAlias = TensorView | HasDlpack | HasCudaArrayInterface | HasTileShape | Produces
