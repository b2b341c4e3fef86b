"""What an op that gives a tensor can do as the tensor does: each method is an op that calls the tensor's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tilekit.dtypes import as_dtype
from tilekit.ops.methods import methods
from tilekit.ops.spec import Spec, reshaped

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["TensorMethods"]

_TENSOR = "is_meta"  # an attribute of tensors alone, where arrays of the host's have a method of the same name


class TensorMethods:
    """The part of `DeviceOp` that goes on with a resulting tensor or partition; only its methods are known here."""

    if not TYPE_CHECKING:
        __slots__ = ()

    spec: Spec | None

    def to_host(self) -> DeviceOp[Any]:
        """The resulting tensor as a NumPy array, see `Tensor.to_host`."""
        return methods.AndThen(_op(self), self._call("to_host"), label="to_host", spec=self.spec)

    to_host_vec = to_host

    def partition(self, shape: int | tuple[int, ...]) -> DeviceOp[Any]:
        """The resulting tensor cut into tiles of `shape`, see `Tensor.partition`."""
        function = self._call("partition", shape, of=_TENSOR)
        return methods.Map(_op(self), function, label=f"partition({shape})", spec=self.spec)

    def scattered(self) -> DeviceOp[Any]:
        """The resulting tensor as an argument that blocks write anywhere, see `Tensor.scattered`."""
        return methods.Map(_op(self), self._call("scattered"), label="scattered", spec=self.spec)

    def unpartition(self) -> DeviceOp[Any]:
        """The tensor of the resulting partition."""
        return methods.Map(_op(self), self._call("unpartition"), label="unpartition", spec=self.spec)

    def out(self) -> DeviceOp[Any]:
        """What a launch has written, whole: a tensor, or a tuple of them if there are several.

        By itself a launch's result has each argument in its place; `saxpy(y, 2.0, x).tile(1024).out().sync()` is a tensor.

        Raises:
            TypeError: when the op runs, if there is no partition in the result, that is if nothing was written.
        """

        def whole(result: Any) -> Any:
            written = tuple(_written(result))
            if not written:
                raise TypeError(f"out: {self!r} wrote nothing: its result has no partition, but is {type(result).__name__}")
            return written[0] if len(written) == 1 else written

        specs = self.written_specs
        several = tuple(specs) if len(specs) > 1 else None
        return methods.Map(_op(self), whole, label="out", spec=None if several else next(iter(specs), None), specs=several)

    @property
    def written_specs(self) -> list[Spec | None]:
        """What is known of each tensor that is written (internal)."""
        return []

    def reshape(self, *shape: Any) -> DeviceOp[Any]:
        """The resulting tensor in another shape, see `Tensor.reshape`."""
        function = self._call("reshape", *shape, of=_TENSOR)
        return methods.Map(_op(self), function, label=f"reshape{shape}", spec=reshaped(self.spec, shape))

    view = reshape

    def permute(self, *axes: Any) -> DeviceOp[Any]:
        """The resulting tensor with its dimensions in another order, see `Tensor.permute`."""
        return methods.Map(_op(self), self._call("permute", *axes, of=_TENSOR), label=f"permute{axes}")

    def reinterpret(self, dtype: Any) -> DeviceOp[Any]:
        """The bytes of the resulting tensor as another dtype, see `Tensor.reinterpret`."""
        return methods.Map(_op(self), self._call("reinterpret", dtype), label=f"reinterpret({as_dtype(dtype).name})")

    def astype(self, dtype: Any) -> DeviceOp[Any]:
        """The resulting tensor converted to `dtype`, see `Tensor.astype`."""
        chosen = as_dtype(dtype)
        spec = None if self.spec is None else Spec(self.spec.shape, chosen)
        return methods.AndThen(_op(self), self._call("astype", chosen), label=f"astype({chosen.name})", spec=spec)

    def dup(self) -> DeviceOp[Any]:
        """A copy of the resulting tensor, see `Tensor.dup`."""
        return methods.AndThen(_op(self), self._call("dup"), label="dup", spec=self.spec)

    def _call(self, method: str, *args: Any, of: str | None = None) -> Callable[[Any], Any]:
        """What calls `method` of the result; a TypeError if it has none, or not the attribute `of`."""

        def call(result: Any) -> Any:
            if not hasattr(result, of or method):
                one = "; .first(), .last() and .unzip() take one of it" if isinstance(result, tuple) else ""
                raise TypeError(f"{method}: {self!r} gave {type(result).__name__}, not what has {method}() on a device{one}")
            return getattr(result, method)(*args)

        return call


def _written(result: Any) -> Iterator[Any]:
    """The tensors of the partitions in a result, in whatever tuples they are."""
    if isinstance(result, tuple):
        for part in result:
            yield from _written(part)
    elif hasattr(result, "unpartition"):
        yield result.unpartition()


def _op(methods_of: TensorMethods) -> DeviceOp[Any]:
    return methods_of  # type: ignore[return-value]  # whoever derives from `TensorMethods` is an op
