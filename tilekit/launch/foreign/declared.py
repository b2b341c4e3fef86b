"""What a kernel that is not tilekit's declares of its parameters: `"y: InOut[f32], x: In[f32], a: f32, n: i32"`.

A parameter is memory that the kernel reads (`In`), writes (`Out`) or both (`InOut`), with a dtype in brackets (of any dtype
without), or a scalar of a C type. A name and a colon may come first.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from tilekit import dtypes
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.lang.annotations import Declared, In, InOut, Out, declaration

__all__ = ["Declaration", "check", "from_function", "memory", "packing", "parse", "scalar_of"]

Access = Literal["in", "out", "inout", "scalar", "auto"]

_SHORT = {
    "bool": dtypes.bool_, "i8": dtypes.int8, "i16": dtypes.int16, "i32": dtypes.int32, "i64": dtypes.int64, "u8": dtypes.uint8,
    "u16": dtypes.uint16, "u32": dtypes.uint32, "u64": dtypes.uint64, "f16": dtypes.float16, "bf16": dtypes.bfloat16,
    "f32": dtypes.float32, "f64": dtypes.float64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _SHORT.items()}
# `float` and `int` are not among them: they are other types in C than in Python.
_DTYPES = _SHORT | {dtype.name: dtype for dtype in dtypes.ALL}
_ACCESS: dict[str, Access] = {"In": "in", "Out": "out", "InOut": "inout"}
_PARAMETER = re.compile(r"(?:([A-Za-z_]\w*)\s*:\s*)?(?:(In|Out|InOut)\s*(?:\[\s*(\w+)\s*\])?|(\w+))")
_FORM = "write parameters such as In[f32], Out[i32], InOut[bf16], f32 or n: i32"

# One slot of eight bytes each, as the driver is given them; what C has no number for travels as its bits.
_SLOTS = {
    "bool": "?7x", "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q", "uint8": "B7x", "uint16": "H6x", "uint32": "I4x",
    "uint64": "Q", "float16": "e6x", "float32": "f4x", "float64": "d",
}  # fmt: skip
_BITS = {1: "B7x", 2: "H6x"}


class Declaration(NamedTuple):
    """What is known of a parameter.

    Attributes:
        name: what messages call it.
        access: memory and what becomes of it, or a scalar, or "auto" where nobody said: then memory counts as read and written.
        dtype: of the elements, or of the scalar; None where nobody said.
    """

    name: str
    access: Access
    dtype: dtypes.DType | None = None

    @property
    def nbytes(self) -> int:
        """What a compiled kernel takes for it."""
        return 8 if self.access != "scalar" or self.dtype is None else self.dtype.itemsize

    def __str__(self) -> str:
        dtype = "" if self.dtype is None else _NAMES.get(self.dtype, self.dtype.name)
        if self.access in ("scalar", "auto"):
            return dtype or "anything"
        access = {"in": "In", "out": "Out", "inout": "InOut"}[self.access]
        return f"{access}[{dtype}]" if dtype else access


def parse(signature: Any, what: str, names: Sequence[str] = ()) -> tuple[Declaration, ...]:
    """Read a signature.

    Args:
        signature: a string with commas, or a sequence of strings and, for scalars, dtypes.
        what: what messages call the kernel.
        names: of the parameters, where the signature has none.

    Raises:
        TypeError: it is something else. ValueError: it does not read as a signature, or has one name twice.
    """
    if isinstance(signature, str):
        items: list[Any] = signature.split(",") if signature.strip() else []
    elif isinstance(signature, Sequence):
        items = list(signature)
    else:
        raise TypeError(f"{what}: a signature is a string such as 'Out[f32], In[f32], i32', or a sequence, not {signature!r}")
    declarations: list[Declaration] = []
    for at, item in enumerate(items):
        declared = _parameter(item, what)
        name = declared.name or (names[at] if at < len(names) else str(at))
        if name in (other.name for other in declarations):
            raise ValueError(f"{what}: its signature has two parameters {name}; give each a name of its own, or none")
        declarations.append(declared._replace(name=name))
    return tuple(declarations)


def _parameter(item: Any, what: str) -> Declaration:
    if not isinstance(item, str):
        try:
            return Declaration("", "scalar", dtypes.as_dtype(item))
        except TypeError as error:
            raise TypeError(f"{what}: a parameter is declared by a string or, for scalars, a dtype: {error}") from None
    match = _PARAMETER.fullmatch(item.strip())
    if match is None:
        raise ValueError(f"{what}: {item.strip()!r} declares no parameter; {_FORM}")
    name, access, element, scalar = match.groups()
    wanted = element or scalar
    if wanted is not None and wanted not in _DTYPES:
        raise ValueError(f"{what}: {wanted!r} in {item.strip()!r} is no dtype: there are {', '.join(_SHORT)}; {_FORM}")
    return Declaration(name or "", _ACCESS[access] if access else "scalar", _DTYPES[wanted] if wanted else None)


def from_function(function: Callable[..., Any], what: str, signature: Any) -> tuple[Declaration, ...]:
    """The parameters of a Python function: from `signature` if there is one, else from annotations In, Out and InOut.

    Raises:
        TypeError, ValueError: the signature does not read as one, or has another number of parameters.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters]
    variadic = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    if signature is not None:
        declared = parse(signature, what, names)
        if not variadic and len(declared) != len(names):
            raise ValueError(f"{what} has {len(names)} parameters ({', '.join(names)}), its signature declares {len(declared)}")
        return declared
    if variadic:
        raise TypeError(
            f"{what} takes any number of arguments: say what it is called with, by wrap(..., signature='InOut, In, f32')"
        )
    return tuple(Declaration(p.name, _annotated(function, p.annotation)) for p in parameters)


def _annotated(function: Callable[..., Any], annotation: Any) -> Access:
    if isinstance(annotation, str):  # from __future__ import annotations
        scope = inspect.getclosurevars(function)
        try:
            annotation = eval(annotation, {**scope.builtins, **function.__globals__, **scope.nonlocals})
        except Exception:  # meant for a type checker
            return "auto"
    annotation = declaration(annotation)
    access = annotation.access if isinstance(annotation, Declared) else annotation
    return "in" if access is In else "out" if access is Out else "inout" if access is InOut else "auto"


def memory(argument: Any) -> Tensor | None:
    """The tensor behind a tensor or partition; None for anything else."""
    return argument if isinstance(argument, Tensor) else argument.tensor if isinstance(argument, Partition) else None


def check(declared: Declaration, argument: Any, what: str, *, raw: bool) -> None:
    """Whether a parameter takes such an argument.

    Args:
        raw: whether the kernel gets a bare pointer of a tensor, and knows nothing of its strides.

    Raises:
        TypeError, ValueError: it does not.
    """
    who = f"{what}, argument {declared.name}"
    tensor = memory(argument)
    if tensor is not None:
        if declared.access == "scalar":
            raise TypeError(f"{who}: declared {declared}, a scalar, not {argument!r}")
        if declared.dtype is not None and tensor.dtype != declared.dtype:
            raise TypeError(
                f"{who}: declared {declared}, not a tensor of {tensor.dtype.name}; .astype(...) makes another, or change one"
            )
        if raw and not tensor.is_contiguous:
            raise ValueError(
                f"{who}: the kernel gets a bare pointer, so the tensor must be C-contiguous, unlike {tensor!r}; pass its dup()"
            )
        return
    if declared.access not in ("scalar", "auto"):
        raise TypeError(f"{who}: declared {declared}, so it takes a tensor, not {_kind_of(argument)}")
    if declared.access == "auto":
        if not isinstance(argument, (bool, int, float, complex, np.generic)):
            raise TypeError(f"{who}: kernels take tensors and scalars, not {_kind_of(argument)}")
    else:
        _check_scalar(declared, argument, who)


def _check_scalar(declared: Declaration, value: Any, who: str) -> None:
    dtype = declared.dtype
    assert dtype is not None, "scalars are declared with their type"
    if dtype == dtypes.bool_:
        fits = isinstance(value, (bool, np.bool_))
    elif isinstance(value, (bool, np.bool_)):
        fits = False
    elif isinstance(value, (int, np.integer)):
        fits = True
    else:
        fits = dtypes.is_float(dtype) and (isinstance(value, (float, np.floating, ml_dtypes.bfloat16)))
    if not fits:
        raise TypeError(f"{who}: declared {declared}, not {_kind_of(value)}")
    if dtype == dtypes.bool_:
        return
    low, high = _limits(dtype)
    number = int(value) if isinstance(value, (int, np.integer)) else float(value)
    if (number < low or number > high) and number not in (np.inf, -np.inf):
        raise ValueError(f"{who}: {value} does not fit {declared}")


@functools.cache
def _limits(dtype: dtypes.DType) -> tuple[float, float]:
    """The least and the largest finite number of a type."""
    if not dtypes.is_float(dtype):
        whole = np.iinfo(dtype)
        return int(whole.min), int(whole.max)
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return -largest, largest


def scalar_of(declared: Declaration, argument: Any) -> Any:
    """A checked scalar as NumPy's of the declared type, where there is one declared."""
    return argument if declared.access != "scalar" or declared.dtype is None else declared.dtype.type(argument)


def packing(parameters: Sequence[Declaration]) -> tuple[str, Callable[[Sequence[Any]], list[Any]]]:
    """The `struct` format of a raw kernel's parameters, in slots of eight bytes, and a function from arguments to its values."""
    convert: list[Callable[[Any], Any]] = []
    slots = "<"
    for declared in parameters:
        dtype = declared.dtype
        if declared.access != "scalar" or dtype is None:
            slots += "Q"
            convert.append(_address)
        elif dtype.name in _SLOTS:
            slots += _SLOTS[dtype.name]
            convert.append(bool if dtype == dtypes.bool_ else float if dtypes.is_float(dtype) else int)
        else:
            slots += _BITS[dtype.itemsize]
            convert.append(_bits_in(dtype))
    return slots, lambda arguments: [turn(argument) for turn, argument in zip(convert, arguments, strict=True)]


def _address(argument: Any) -> int:
    tensor = memory(argument)
    assert tensor is not None, "checked before"
    return tensor.address


def _bits_in(dtype: dtypes.DType) -> Callable[[Any], int]:
    return lambda value: int(np.asarray(value, dtype).view(f"u{dtype.itemsize}"))


def _kind_of(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        return "a NumPy array; copy it to the device with api.from_host(array)"
    kind = f"{type(argument).__module__}.{type(argument).__qualname__}".removeprefix("builtins.")
    if hasattr(type(argument), "__cuda_array_interface__") or hasattr(type(argument), "__dlpack__"):
        return f"{kind}; tk.as_tensor makes it a tensor"
    return kind
