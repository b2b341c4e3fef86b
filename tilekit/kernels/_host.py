"""What the host functions of this package share: ops and arrays for tensors, checks, and new tensors.

Each of them makes a launch and says which argument is the result. They take tensors, or ops that produce some.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tilekit import api, dtypes
from tilekit._tensor.arrays import is_array, tensor_of
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.facts import MOST_NARROW
from tilekit.compiler.target import of
from tilekit.kernels._launches import Destination, Launches, New
from tilekit.kernels._recall import SEQUENCES, Recall, leaves, with_leaves
from tilekit.launch import copying
from tilekit.ops import DeviceOp, Spec, zip_ops

__all__ = [
    "MULTIPROCESSORS",
    "Destination",
    "Launches",
    "New",
    "Operand",
    "a_tensor",
    "batches_of",
    "check",
    "compute_dtype",
    "exponential",
    "filled",
    "flat",
    "has_warpgroups",
    "index_dtype",
    "integers",
    "lacks_rows",
    "multiprocessors",
    "on_cpu",
    "out_or_new",
    "power",
    "result",
    "rows_in",
    "rows_of",
    "same_shape",
    "shaped",
    "takes_batches",
    "takes_ops",
    "takes_rows",
]  # fmt: skip

MULTIPROCESSORS = 132
"""Of an H200, where there is no GPU."""

_FLOATS = frozenset((dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64))
_INTEGERS = frozenset((dtypes.int32, dtypes.int64))
_HALVES = frozenset((dtypes.float16, dtypes.bfloat16))

Operand = Tensor | DeviceOp[Tensor]
"""What the functions take: a tensor, or an op that produces one."""

F = TypeVar("F", bound=Callable[..., DeviceOp[Any]])


def takes_ops(function: F) -> F:
    """Let a function that takes tensors take ops that produce them too; it is then called when they have run. And arrays of other
    libraries, as kernels do. What takes several tensors takes a tuple or a list of these.

    Where the ops know the shapes of their results, the function is asked at once, with tensors that have no memory: mistakes are
    told where they are made, and the op knows its result's shape too.

    What the function decides for arguments that look alike is found again, see `Recall`.
    """
    name = function.__name__.lstrip("_")
    parameters = inspect.signature(function).parameters.values()
    tensors = [p for p in parameters if "Operand" in str(p.annotation) or "Tensor" in str(p.annotation)]
    named = {p.name for p in tensors}
    at = [p in tensors for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    beyond = any(p.kind is p.VAR_POSITIONAL for p in tensors)
    recall = Recall(function, name)

    def with_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        others = leaves(args, kwargs)

        def one(value: Any) -> Any:
            return tensor_of(value, others, name) if is_array(value) else value

        def taken(argument: Any, is_tensor: bool) -> Any:
            if not is_tensor:
                return argument
            return type(argument)(map(one, argument)) if type(argument) in SEQUENCES else one(argument)

        wanted = itertools.chain(at, itertools.repeat(beyond))
        return tuple(map(taken, args, wanted)), {key: taken(value, key in named) for key, value in kwargs.items()}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> DeviceOp[Any]:
        op = recall.op(args, kwargs)
        if op is not None:
            return op
        lazy = arrays = False
        for argument in leaves(args, kwargs):
            if type(argument) is Tensor or argument is None:
                continue
            if isinstance(argument, DeviceOp):
                lazy = True
            elif is_array(argument):
                arrays = True
        if arrays:
            args, kwargs = with_tensors(args, kwargs)
        if not lazy:
            op = recall.op(args, kwargs) if arrays else None
            return function(*args, **kwargs).named(name) if op is None else op
        ops = [a for a in leaves(args, kwargs) if isinstance(a, DeviceOp)]

        def called(tensors: Sequence[Any]) -> DeviceOp[Any]:
            left = iter(tensors)
            placed, by_name = with_leaves(args, kwargs, lambda a: next(left) if isinstance(a, DeviceOp) else a)
            op = recall.op(placed, by_name)
            return function(*placed, **by_name) if op is None else op

        for op in ops:
            op.consumed()  # also if this is a mistake: whoever is told need not run them
        specs = [op.spec for op in ops]
        spec = None
        if all(known is not None and known.shape is not None for known in specs):
            trial = called([api.meta(known.shape, known.dtype) for known in specs if known is not None])
            trial.consumed()
            spec = trial.spec
        whole: DeviceOp[Any] = zip_ops(*ops).then(called)
        whole.spec = spec
        return whole.named(name)

    return call  # type: ignore[return-value]


def takes_rows(function: F) -> F:
    """As `takes_ops`, of a function that works on rows along the last dimension: tensors of which no view is a matrix of these
    rows, such as batches with gaps between them, are copied first, and results come to such an `out` by a copy."""
    return _takes(function, lacks_rows)


def takes_batches(function: F) -> F:
    """As `takes_rows`, of a function that takes batches of rows as they lie, too; see `rows_in`."""
    return _takes(function, lambda x: lacks_rows(x) and len(x.shape) != 3)


def _takes(function: F, copied: Callable[[Any], bool]) -> F:
    whole = takes_ops(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> DeviceOp[Any]:
        if not any(map(copied, (*args, *kwargs.values()))):
            return function(*args, **kwargs)
        out = kwargs.pop("out", None)
        if out is not None and not copied(out):
            kwargs["out"], out = out, None
        taken = [x.dup() if copied(x) else x for x in args]
        op = whole(*taken, **{key: x.dup() if copied(x) else x for key, x in kwargs.items()})
        if out is None:
            return op
        moved = op.then(lambda result: result.copy_into(out))
        moved.spec = op.spec
        return moved

    return takes_ops(call)  # type: ignore[type-var]


def lacks_rows(x: Any) -> bool:
    """Whether it is a tensor of which `rows_of` makes no matrix."""
    if type(x) is not Tensor or len(x.shape) <= 2 or x.is_contiguous:
        return False
    try:
        rows_of("", x)
    except ValueError:
        return True
    return False


def check(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors, with floats for elements."""
    for what, tensor in tensors.items():
        if type(tensor) is not Tensor:
            _check_tensor(name, what, tensor)
        if tensor.dtype not in _FLOATS:
            raise TypeError(
                f"{name}: {what} holds {tensor.dtype.name}; it takes float16, bfloat16, float32 and float64: "
                "convert it with .astype(tk.float32)"
            )


def integers(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors of int32 or int64."""
    for what, tensor in tensors.items():
        _check_tensor(name, what, tensor)
        if tensor.dtype not in _INTEGERS:
            raise TypeError(f"{name}: {what} holds {tensor.dtype.name}; it takes int32 and int64")


def a_tensor(name: str, **tensors: Any) -> None:
    """Raise TypeError unless all of them are tensors."""
    for what, tensor in tensors.items():
        _check_tensor(name, what, tensor)


def _check_tensor(name: str, what: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {what} is a tensor or an op that produces one, not {type(tensor).__name__}")


def check_choice(name: str, what: str, choice: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless it is one of `choices`."""
    if not isinstance(choice, str) or choice not in choices:
        *others, last = map('"{}"'.format, choices)
        raise ValueError(f"{name}: {what} is {', '.join(others)} or {last}, not {choice!r}")


def check_splits(name: str, splits: Any, *, otherwise: str = "") -> None:
    """Raise ValueError unless it is None or a number of parts that sums are split into, or what else is allowed."""
    also = f', or "{otherwise}"' if otherwise else ""
    known = splits in (otherwise or None,) if isinstance(splits, str) else type(splits) is int and splits >= 1
    if splits is not None and not known:
        raise ValueError(f"{name}: splits is an int from 1 on{also}, not {splits!r}")


def same_shape(name: str, **tensors: Tensor) -> None:
    """Raise ValueError or TypeError unless all of them have the shape and the dtype of the first."""
    (first, like), *others = tensors.items()
    for what, tensor in others:
        if tensor.shape != like.shape:
            raise ValueError(f"{name}: {first} has shape {like.shape}, {what} {tensor.shape}; they must be the same")
        if tensor.dtype != like.dtype:
            raise TypeError(f"{name}: {first} holds {like.dtype.name}, {what} {tensor.dtype.name}; convert one with .astype(...)")


def compute_dtype(dtype: Any) -> Any:
    """What is calculated in: float32 for 16-bit floats, else the dtype itself."""
    return dtypes.float32 if dtype in _HALVES else dtype


def index_dtype(*counts: int) -> Any:
    """What tiles of indices up to any of `counts`, and of a tile more, are of: int32, or int64 where that is too small."""
    return dtypes.int64 if max(counts) > MOST_NARROW else dtypes.int32


def exponential(dtype: Any) -> str | None:
    """The rounding mode of `tk.exp` for elements of `dtype`: in 16 bits nobody sees the difference, and it takes a third."""
    return "approx" if dtype in _HALVES else None


def on_cpu(tensor: Tensor) -> bool:
    """Whether it is a CPU device's, whose blocks work on what the caches of a core hold."""
    return tensor.storage is not None and tensor.storage.device.kind == "cpu"


def multiprocessors(tensor: Tensor) -> int:
    """Those of its device."""
    return MULTIPROCESSORS if tensor.device is None else tensor.device.driver.multiprocessors


def has_warpgroups(tensor: Tensor) -> bool | None:
    """Whether products on its GPU are by warpgroups (a tensor without memory: they are); None on a CPU device."""
    if tensor.device is None:
        return True
    capability = tensor.device.compute_capability
    return None if capability is None else of(capability).wgmma


def power(n: int) -> int:
    """The smallest power of two from `n` on."""
    return 1 << max(0, n - 1).bit_length()


# ------------------------------------------------------------------------------------------------------------ tensors and results


def rows_of(name: str, x: Tensor) -> Tensor:
    """`x` as a matrix, whose rows lie along its last dimension.

    Raises:
        ValueError: it has no dimensions, or its strides give no such view.
    """
    if not x.shape:
        raise ValueError(f"{name}: a tensor without dimensions has no rows; reshape(1) makes one of one element")
    return x if len(x.shape) == 2 else shaped(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def rows_in(name: str, *tensors: Destination) -> list[Any]:
    """Tensors of one shape as matrices, whose rows lie along their last dimension; or, if one of them has three dimensions and
    no such view, all as batches of rows.

    Raises:
        ValueError: they have no dimensions.
    """
    shape = tensors[0].shape
    if not shape:
        raise ValueError(f"{name}: a tensor without dimensions has no rows; reshape(1) makes one of one element")
    if any(map(lacks_rows, tensors)):
        return list(tensors)
    return [x if len(shape) == 2 else shaped(x, (math.prod(shape[:-1]), shape[-1])) for x in tensors]


def batches_of(*tensors: Destination) -> list[Destination] | None:
    """Tensors of one shape as batches of matrices, whose rows lie along the last dimension: views in three dimensions. None if
    some have no such view."""
    views = [Tensor(None, x.shape, x.dtype) if type(x) is Spec else x for x in tensors]
    dims: list[tuple[int, list[int]]] = []
    for dim, extent in enumerate(views[0].shape[:-1]):
        strides = [view.strides[dim] for view in views]
        if extent == 1:
            continue
        if dims and all(outer == extent * inner for outer, inner in zip(dims[-1][1], strides, strict=True)):
            dims[-1] = (dims[-1][0] * extent, strides)
        else:
            dims.append((extent, strides))
    if len(dims) > 2:
        return None
    width = views[0].shape[-1]
    for extent in (1,) * (2 - len(dims)):
        dims.insert(0, (extent, [dims[0][0] * stride for stride in dims[0][1]] if dims else [width] * len(views)))
    shape = (*(extent for extent, _ in dims), width)
    return [
        Spec(shape, x.dtype)
        if type(x) is Spec
        else Tensor(view.storage, shape, view.dtype, (*(strides[k] for _, strides in dims), view.strides[-1]), view.offset)
        for k, (x, view) in enumerate(zip(tensors, views, strict=True))
    ]


def shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """`x`, a `Destination` or an op that produces a tensor, in another shape of as many elements; as it is, if it has that."""
    if x.shape == shape:
        return x
    if type(x) is Spec:
        return Spec(shape, x.dtype)
    if isinstance(x, Tensor) and x.is_contiguous:  # what reshape makes of it, without asking NumPy
        return Tensor(x.storage, shape, x.dtype, None, x.offset)
    return x.reshape(shape)


def flat(x: Tensor) -> Any:
    """The elements of `x` in one dimension: a view; of a tensor with gaps an op that copies it."""
    return shaped(x, (x.size,)) if x.is_contiguous else x.dup().reshape(x.size)


def out_or_new(name: str, out: Any, like: Tensor, shape: tuple[int, ...] | None = None, dtype: Any = None) -> Destination:
    """`out`, if it was given and is what is needed; else what a new tensor is to be, on the device of `like`.

    Raises:
        TypeError, ValueError: `out` is no tensor, or has another shape or dtype.
    """
    shape, dtype = like.shape if shape is None else shape, like.dtype if dtype is None else dtype
    if out is None:
        return Spec(tuple(shape), dtype)
    _check_tensor(name, "out", out)
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"{name}: out is {out.dtype.name} of shape {out.shape}, the result is {dtype.name} of shape {tuple(shape)}"
        )
    return out  # type: ignore[no-any-return]


def filled(x: Tensor, value: float = 0) -> DeviceOp[Tensor]:
    """An op that sets every element; unlike `Tensor.fill` also of tensors that have no memory, with which steps are tried out."""
    return copying.fill(x, np.array(value, x.dtype))


def result(launch: DeviceOp[Any], like: Any, out: Tensor | None) -> DeviceOp[Tensor]:
    """The first argument of a launch, a partition, as the tensor that was asked for.

    Args:
        launch: the launch.
        like: what has the shape and dtype of the result.
        out: the result itself, if it was given.
    """
    tensor: DeviceOp[Tensor] = launch.map(lambda done: shaped(done[0].unpartition(), like.shape) if out is None else out)
    tensor.spec = Spec(tuple(like.shape), like.dtype)
    return tensor
