"""Objects that are no arguments of anything: functions, numbers of others, and objects that raise or lie when they are asked."""

from __future__ import annotations

import datetime
import decimal
import fractions
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import tilekit as tk
from tilekit import api

__all__ = ["OBJECTS", "Hostile", "Liar"]


class Hostile(Exception):
    """What objects of a user's raise: it comes back as it is."""


class Liar:
    """An object whose special methods raise or lie."""

    def __init__(self, **special: Any) -> None:
        self.special = special

    def __repr__(self) -> str:
        return f"Liar({', '.join(self.special)})"


def liar(**special: Any) -> Any:
    """One of a class of its own, with these special methods: a value to return, or an exception to raise."""

    def method(outcome: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(outcome, type) and issubclass(outcome, BaseException):
                raise outcome
            return outcome

        return call

    return type("Liar", (Liar,), {f"__{name}__": method(outcome) for name, outcome in special.items()})(**special)


def having(**attributes: Any) -> Any:
    """An object with these attributes, as those of other libraries have them."""
    return type("Liar", (Liar,), attributes)(**attributes)


class Everything(Liar):
    """It has every attribute, which has, too, and can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in (
            "__dlpack__",
            "__dlpack_device__",
            "__cuda_stream__",
            "__cuda_array_interface__",
        ):
            raise AttributeError(name)
        return Everything()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


def generator() -> Iterator[int]:
    yield 4


def interface(**wrong: Any) -> Any:
    """An array as others' are, wrong in this."""
    return having(__cuda_array_interface__={"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3, **wrong})


def endless() -> Any:
    """A list that contains itself."""
    items: list[Any] = []
    items.append(items)
    return items


def array_of_tensors() -> Any:
    array = np.empty(2, object)
    array[0] = api.zeros(4).sync()
    return array


OBJECTS: dict[str, Callable[[], Any]] = {
    "object()": object,
    "lambda": lambda: lambda *args: None,
    "lambda of an op": lambda: lambda *args: api.ones(4),
    "raising": lambda: lambda *args: (_ for _ in ()).throw(Hostile()),
    "generator": generator,
    "generator function": lambda: generator,
    "module": lambda: types,
    "index raises": lambda: liar(index=Hostile),
    "index lies": lambda: liar(index=2**80),
    "index is no int": lambda: liar(index="x"),
    "len raises": lambda: liar(len=Hostile),
    "len lies": lambda: liar(len=3, getitem=Hostile),
    "iter raises": lambda: liar(iter=Hostile),
    "iter lies": lambda: liar(iter=5),
    "array raises": lambda: liar(array=Hostile),
    "array lies": lambda: liar(array="x"),
    "dlpack raises": lambda: liar(dlpack=Hostile, dlpack_device=(1, 0)),
    "dlpack lies": lambda: liar(dlpack=5, dlpack_device=(1, 0)),
    "dlpack device lies": lambda: liar(dlpack=5, dlpack_device="x"),
    "stream raises": lambda: liar(cuda_stream=Hostile),
    "eq raises": lambda: liar(eq=Hostile, hash=1),
    "hash raises": lambda: liar(hash=Hostile),
    "bool raises": lambda: liar(bool=Hostile),
    "repr raises": lambda: liar(repr=Hostile),
    "float raises": lambda: liar(float=Hostile),
    "float lies": lambda: liar(float="x"),
    "call raises": lambda: liar(call=Hostile),
    "str subclass": lambda: type("Text", (str,), {})("cpu"),
    "int subclass": lambda: type("Number", (int,), {})(4),
    "tuple subclass": lambda: type("Pair", (tuple,), {})((4, 4)),
    "float subclass": lambda: type("Real", (float,), {})(2.0),
    "dict subclass": lambda: type("Map", (dict,), {})(x=4),
    "array subclass": lambda: np.zeros(4, np.float32).view(type("Array", (np.ndarray,), {})),
    "everything": Everything,
    "endless": endless,
    "decimal": lambda: decimal.Decimal("1.5"),
    "fraction": lambda: fractions.Fraction(1, 3),
    "date": lambda: datetime.date(2020, 1, 1),
    "memoryview": lambda: memoryview(b"abcd"),
    "no arguments": lambda: lambda: None,
    "one argument": lambda: lambda x: x,
    "one op": lambda: lambda x: api.dup(x),
    "a pair": lambda: lambda *args: (1, 2),
    "len": lambda: len,
    "partial": lambda: functools.partial(max, 4),
    "no source": lambda: eval("lambda x: x"),
    "kernel of a lambda": lambda: lambda y: y.store(y.load()),
    "PaddingMode": lambda: tk.PaddingMode.ZERO,
    "RoundingMode": lambda: tk.RoundingMode.RZ,
    "np.bool_": lambda: np.bool_(True),
    "np.float16 inf": lambda: np.float16("inf"),
    "np.complex64": lambda: np.complex64(1j),
    "np.longdouble": lambda: np.longdouble(1),
    "np.void": lambda: np.void(b"abc"),
    "np.uint64": lambda: np.uint64(2**64 - 1),
    "np.ma.masked": lambda: np.ma.masked,
    "int4": lambda: np.zeros(4, ml_dtypes.int4),
    "dtype of a record": lambda: np.dtype([("a", "i4")]),
    "dtype big-endian": lambda: np.dtype(">f4"),
    "dtype of rows": lambda: np.dtype((np.float32, (4,))),
    "array of tensors": array_of_tensors,
    "list of a tensor": lambda: [api.zeros(4).sync()],
    "pair of ops": lambda: (api.ones(4), api.ones(4)),
    "op and 5": lambda: [api.ones(4), 5],
    "fspath lies": lambda: liar(fspath=5),
    "stream lies": lambda: liar(cuda_stream=5),
    "stream has no address": lambda: liar(cuda_stream=(0, "x")),
    "stream of version 9": lambda: liar(cuda_stream=(9, 0)),
    "cuda_stream lies": lambda: having(cuda_stream="x"),
    "ptr lies": lambda: having(ptr=-1),
    "handle lies": lambda: having(handle=liar(index="x")),
    "interface raises": lambda: having(__cuda_array_interface__=property(liar(call=Hostile))),
    "interface is none": lambda: having(__cuda_array_interface__=5),
    "interface is empty": lambda: having(__cuda_array_interface__={}),
    "interface of version x": lambda: interface(version="x"),
    "interface of a shape": lambda: interface(shape="x"),
    "interface of negative shape": lambda: interface(shape=(-1,)),
    "interface of a typestr": lambda: interface(typestr="zz"),
    "interface of typestr 5": lambda: interface(typestr=5),
    "interface of strides": lambda: interface(strides=("x",)),
    "interface of data": lambda: interface(data="x"),
    "interface of no data": lambda: interface(data=None),
    "interface of a mask": lambda: interface(mask=5),
    "interface of a stream": lambda: interface(stream="x"),
    "shape lies": lambda: having(shape="x", dtype=5),
    "dtype lies": lambda: having(shape=(4,), dtype="x"),
    "storage lies": lambda: having(storage=5, shape=(4,), dtype=tk.float32),
    "device lies": lambda: having(device="x", device_index="x", device_id="x"),
    "name lies": lambda: having(__name__=5, __module__=5, __call__=lambda *args: None),
    "keys lie": lambda: having(keys=lambda self: 5),
    "fields lie": lambda: type("Pair", (tuple,), {"_fields": 5})((4, 4)),
}
